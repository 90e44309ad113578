"""A pulled run is a stranger's run: no module that it names is imported without trust."""

import json
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import birl
from birl.config import ConfigError
from birl.errors import CheckpointError
from tests.lab.sharing.conftest import logits
from tests.lab.sharing.hub_server import Hub
from tests.run.processes import call, call_well
from tests.run.test_strangers import TINY, forged, put_module


@pytest.fixture
def module_run(tiny_run: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pull a run whose environment is of a module that leaves a mark when it is imported; the mark.

    The user has trained it, and has the module here: it is a stranger's all the same.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    mark = put_module(tmp_path, "my_module")
    call_well("train", "a2c", "my_module:Marked-v0", *TINY, "--run-dir", "run")
    birl.push("run", "owner/own", checkpoint="last")
    birl.push("run", "owner/policy")
    for name in ("own", "policy"):
        birl.pull(f"owner/{name}", name)
    forget("my_module")
    mark.unlink()
    return mark


def forget(module: str) -> None:
    """Make the next import of this module run its code again."""
    sys.modules.pop(module, None)
    gym.registry.pop("Marked-v0", None)


def test_a_pulled_run_imports_the_module_of_its_environment_only_with_trust(module_run, tmp_path):
    commands = [["eval", "--episodes", 1], ["play", "--episodes", 1], ["record", "--out", "x.gif"]]
    goes_on = [["resume", "--total-steps", 32], ["fork", "--total-steps", 32]]
    for run, (command, *words) in [
        *(("own", words) for words in commands + goes_on),
        *(("policy", words) for words in commands),
    ]:
        code, said = call(command, run, *words)
        assert code == 2, said
        assert "env.id 'my_module:Marked-v0' would import the module my_module" in said
        assert "if you trust it, use --trust" in said
    assert birl.load("own").env is None
    assert not module_run.exists()
    for run in ("own", "policy"):
        call_well("eval", run, "--episodes", 1, "--trust")
        assert module_run.exists()
        module_run.unlink()
        forget("my_module")


def test_a_pulled_run_imports_the_module_of_its_encoder_only_with_trust(tiny_run, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    mark = put_module(tmp_path, "evil")
    birl.push(tiny_run, "owner/evil", checkpoint="last")
    birl.pull("owner/evil", "honest")
    run = forged(Path("honest"), Path("pulled"), settings={"encoder": "evil:make_encoder"}, signed=False)
    for use in (birl.load, birl.evaluate, birl.resume, birl.card):
        with pytest.raises(
            ConfigError, match=r"encoder 'evil:make_encoder' would import the module evil .*use --trust"
        ):
            use(run)
    assert not mark.exists()
    with pytest.raises(CheckpointError, match="has no function or class make_encoder"):  # imported
        birl.load(run, trust=True)
    assert mark.exists()
    forget("evil")


def test_a_signature_of_ones_own_in_a_repository_is_left_out(tiny_run, hub, tmp_path):
    """The files as they are here, uploaded by hand: they are signed by this user."""
    birl.push(tiny_run, "owner/mine", checkpoint="last")
    birl.load(tiny_run).save(tmp_path / "policy.safetensors")
    files = hub.repos["owner/mine"].files
    files["policy.safetensors"] = (tmp_path / "policy.safetensors").read_bytes()
    for path in tiny_run.rglob("*"):
        name = path.relative_to(tiny_run).as_posix()
        if name in files:
            files[name] = path.read_bytes()
    assert json.loads(files["config.json"])["signature"] is not None
    birl.pull("owner/mine", tmp_path / "pulled")
    assert json.loads((tmp_path / "pulled" / "config.json").read_text())["signature"] is None
    for manifest in (tmp_path / "pulled").glob("checkpoints/*/manifest.json"):
        assert json.loads(manifest.read_text())["signature"] is None
    assert b'\\"signature\\": null' in (tmp_path / "pulled" / "policy.safetensors").read_bytes()
    assert logits(birl.load(tmp_path / "pulled")) == logits(birl.load(tiny_run))
