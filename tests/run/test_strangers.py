"""Someone else's run cannot run code, start processes or connect anywhere without consent."""

import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import birl as api
from birl import ALGORITHMS
from birl.algos import a2c, a3c
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.errors import CheckpointError
from birl.run.checkpoint import checkpoints_in
from tests.own_algorithm import put_algorithm
from tests.run.processes import call, call_well

MODULE = '''"""Leaves a mark when it is imported."""
import pathlib
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
pathlib.Path({mark!r}).touch()
gym.register("Marked-v0", entry_point=CartPoleEnv, max_episode_steps=20)
'''
NOTHING: dict[str, Any] = {}
TINY = ["--num-envs", 2, "--rollout-length", 4, "--hidden-sizes", 8, "--eval-episodes", 1, "--total-steps", 16]


def tiny(env: EnvConfig, run_dir: Path, **run: Any) -> a2c.Config:
    settings = RunConfig(total_steps=16, eval_episodes=1, run_dir=str(run_dir), **run)
    return a2c.Config(env, settings, rollout_length=4, hidden_sizes=(8,))


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on plain CartPole."""
    path = tmp_path_factory.mktemp("strangers") / "run"
    api.train(tiny(EnvConfig("CartPole-v1", num_envs=2), path))
    return path


@pytest.fixture
def other_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this user a new data directory, so that earlier runs are someone else's."""
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "data-of-another"))


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Change to a directory and forget imported modules, which is quicker than a new process."""
    path = [*sys.path]

    def begin(directory: Path) -> None:
        monkeypatch.chdir(directory)
        sys.path[:] = path
        for name in ("my_module", "evil"):
            sys.modules.pop(name, None)
        gym.registry.pop("Marked-v0", None)
        ALGORITHMS.pop("my_module:vpg", None)
        importlib.invalidate_caches()

    yield begin
    begin(Path.cwd())


def forged(
    original: Path,
    copy: Path,
    env: dict[str, Any] = NOTHING,
    run: dict[str, Any] = NOTHING,
    signed: bool = True,
    settings: dict[str, Any] = NOTHING,
) -> Path:
    """A copy of a run with other settings, and with valid hashes."""
    shutil.copytree(original, copy)
    stored = json.loads((copy / "config.json").read_text())
    stored["config"] |= settings
    stored["config"]["env"] |= env
    stored["config"]["run"] |= run
    if not signed:
        stored.pop("signature", None)
    write(copy / "config.json", stored)
    for checkpoint in checkpoints_in(copy / "checkpoints"):
        write(checkpoint / "config.json", stored["config"])
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest["sha256"]["config.json"] = digest(stored["config"])
        for name in ["seal"] if signed else ["seal", "signature"]:
            manifest.pop(name, None)
        write(checkpoint / "manifest.json", manifest | {"seal": digest(manifest)})
    return copy


def write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n")


def digest(values: dict[str, Any]) -> str:
    return hashlib.sha256((json.dumps(values, indent=1) + "\n").encode()).hexdigest()


def put_module(directory: Path, name: str) -> Path:
    """Write a module that leaves a mark when it is imported; where the mark will be."""
    mark = directory / f"{name}-was-imported"
    (directory / f"{name}.py").write_text(MODULE.format(mark=str(mark)))
    return mark


@pytest.mark.parametrize(
    "words", [["eval", "--episodes", 1], ["record"], ["play", "--episodes", 1], ["resume", "--total-steps", 32]]
)
def test_a_module_that_a_strangers_run_names_is_not_imported(words, own_run, tmp_path, monkeypatch):
    run = forged(own_run, tmp_path / "received" / "stranger", env={"id": "received.stranger.evil:Marked-v0"})
    mark = put_module(run, "evil")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # it would be found
    code, said = call(words[0], "received/stranger", *words[1:])
    assert code == 2
    assert (
        f"env.id 'received.stranger.evil:Marked-v0' would import the module received.stranger.evil in {tmp_path}"
        in said
    )
    assert "if you trust it, use --trust" in said
    assert "--env received.stranger.evil:Marked-v0" in said
    assert not mark.exists()


def test_loading_and_plotting_a_strangers_run_import_nothing_that_it_names(own_run, tmp_path, new_process):
    run = forged(own_run, tmp_path / "stranger", env={"id": "evil:Marked-v0"})
    mark = put_module(tmp_path, "evil")
    new_process(tmp_path)
    sys.path.insert(0, str(tmp_path))  # it would be found
    api.load(run).act(np.zeros(4, np.float32))
    call_well("plot", run, "--metric", "loss/policy", "--out", tmp_path / "curves.png")
    assert not mark.exists()


@pytest.mark.parametrize("flags", [["--trust"], ["--env", "evil:Marked-v0"]])
def test_a_module_of_a_strangers_run_is_imported_with_trust_or_by_name(flags, own_run, tmp_path, new_process):
    run = forged(own_run, tmp_path / "stranger", env={"id": "evil:Marked-v0"})
    mark = put_module(tmp_path, "evil")
    new_process(tmp_path)
    call_well("eval", run, "--episodes", 1, *flags)
    assert mark.exists()


def test_whoever_stands_in_a_strangers_run_finds_no_modules_there(own_run, new_process):
    """A package that is not installed would be found there."""
    new_process(own_run)
    before = [*sys.path]
    call_well("eval", ".", "--episodes", 1)
    assert sys.path == before


def test_a_strangers_run_on_a_registered_environment_needs_no_word(own_run, other_person):
    assert len(api.evaluate(own_run, episodes=2).returns) == 2
    assert "not made here" not in call_well("eval", own_run, "--episodes", 1)


def test_ones_own_run_on_a_module_of_ones_own_is_evaluated_and_resumed_without_a_word(tmp_path, new_process):
    mark = put_module(tmp_path, "my_module")
    new_process(tmp_path)
    call_well("train", "a2c", "my_module:Marked-v0", *TINY, "--run-dir", "runs/mine")
    shutil.copytree("runs/mine", "elsewhere")  # a copy is the user's own run, too
    for words in (["eval", "elsewhere", "--episodes", 1], ["resume", "runs/mine", "--total-steps", 32]):
        mark.unlink()
        new_process(tmp_path)
        call_well(*words)
        assert mark.exists()


def test_ones_own_run_that_comes_back_with_a_module_beside_it_does_not_import_that(tmp_path, new_process):
    """The signature is the user's own, but the module is now found in another directory."""
    home, received = tmp_path / "home", tmp_path / "received"
    home.mkdir()
    put_module(home, "my_module")
    new_process(home)
    call_well("train", "a2c", "my_module:Marked-v0", *TINY, "--run-dir", "run")
    shutil.copytree(home / "run", received / "run")
    mark = put_module(received, "my_module")
    new_process(received)
    code, said = call("eval", "run")
    assert code == 2
    assert f"would import the module my_module in {received}" in said
    assert not mark.exists()


@pytest.mark.parametrize("signed", [True, False])
def test_a_run_whose_settings_were_changed_or_never_signed_is_a_strangers(signed, own_run, tmp_path):
    run = forged(own_run, tmp_path / "old", env={"id": "tests.envs.flaky:FlakyCartPole-v0"}, signed=signed)
    for use in (api.evaluate, api.resume):
        with pytest.raises(
            ConfigError, match=r"would import the module tests\.envs\.flaky.*--trust \(trust=True in Python\)"
        ):
            use(run)
    assert len(api.evaluate(run, episodes=1, trust=True).returns) == 1


def test_text_for_an_environment_is_asked_about_and_numbers_are_not(own_run, tmp_path):
    harmless = forged(own_run, tmp_path / "harmless", env={"kwargs": {"sutton_barto_reward": True}})
    assert len(api.evaluate(harmless, episodes=1).returns) == 1
    run = forged(own_run, tmp_path / "text", env={"id": "GymV26Environment-v0", "kwargs": {"env_id": "evil:Evil-v0"}})
    for given in (None, "GymV26Environment-v0"):
        with pytest.raises(
            ConfigError, match=r"env\.kwargs \{'env_id': 'evil:Evil-v0'\} would pass text to GymV26Environment-v0"
        ):
            api.evaluate(run, env=given)
    replaced = forged(own_run, tmp_path / "replaced", env={"kwargs": {"render_mode": "evil"}})
    with pytest.raises(ConfigError, match="would pass text to CartPole-v1"):
        api.evaluate(replaced, episodes=1)
    assert len(api.evaluate(replaced, episodes=1, kwargs={"sutton_barto_reward": True}).returns) == 1


@pytest.mark.parametrize("given", [None, "CartPole-v1"])
def test_a_module_that_a_strangers_wrapper_names_needs_trust_also_if_the_environment_is_named(given, own_run, tmp_path):
    path = "gymnasium.wrappers:TransformReward"
    run = forged(own_run, tmp_path / "wrapped", env={"wrappers": [{"path": path, "kwargs": {"func": "os.system"}}]})
    texts = r"env\.wrappers\[0\]\.kwargs \{'func': 'os.system'\} would pass text to gymnasium.wrappers:TransformReward"
    for use in (api.evaluate, api.resume):
        with pytest.raises(ConfigError, match=rf"env\.wrappers\[0\] '{path}' would import .*; {texts}.*use --trust"):
            use(run, env=given)
    forged(own_run, tmp_path / "trusted", env={"wrappers": [{"path": "gymnasium.wrappers:Autoreset", "kwargs": {}}]})
    assert len(api.evaluate(tmp_path / "trusted", episodes=1, trust=True).returns) == 1


def test_a_module_that_a_strangers_encoder_names_needs_trust_also_to_load_the_policy(own_run, tmp_path, new_process):
    run = forged(own_run, tmp_path / "run", settings={"encoder": "evil:make_encoder"})
    mark = put_module(tmp_path, "evil")
    new_process(tmp_path)
    sys.path.append(str(tmp_path))
    for use in (api.load, api.evaluate, api.resume):
        with pytest.raises(
            ConfigError, match=r"encoder 'evil:make_encoder' would import the module evil .*use --trust"
        ):
            use(run)
    assert not mark.exists()
    with pytest.raises(CheckpointError, match="has no function or class make_encoder"):  # imported
        api.load(run, trust=True)
    assert mark.exists()


def test_ones_own_run_of_an_algorithm_of_ones_own_is_used_without_a_word(tmp_path, new_process):
    mark = put_algorithm(tmp_path, "my_module")
    new_process(tmp_path)
    call_well("train", "my_module:vpg", "CartPole-v1", *TINY, "--run-dir", "runs/mine")
    assert json.loads(Path("runs/mine/config.json").read_text())["algorithm"] == "my_module:vpg"
    for words in (
        ["eval", "runs/mine", "--episodes", 1],
        ["resume", "runs/mine", "--total-steps", 32],
        ["export", "runs/mine", "--out", "exported"],
        ["fork", "runs/mine", "--total-steps", 48, "--learning-rate", 0.01, "--run-dir", "runs/forked"],
    ):
        mark.unlink()
        new_process(tmp_path)
        call_well(*words)
        assert mark.exists()


def test_the_module_of_a_strangers_algorithm_is_imported_only_with_trust(tmp_path, new_process, monkeypatch):
    mark = put_algorithm(tmp_path, "my_module")
    new_process(tmp_path)
    call_well("train", "my_module:vpg", "CartPole-v1", *TINY, "--run-dir", "run")
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "data-of-another"))
    mark.unlink()
    new_process(tmp_path)
    sys.path.append(str(tmp_path))  # it would be found
    message = rf"algorithm 'my_module:vpg' would import the module my_module in {tmp_path}, .*use --trust \(trust=True"
    for use in (api.load, api.evaluate, api.resume):
        with pytest.raises(ConfigError, match=message):
            use("run")
    for words in (["eval"], ["record"], ["export"], ["resume", "--total-steps", 32], ["fork"], ["card"]):
        code, said = call(words[0], "run", *words[1:])
        assert (code, mark.exists()) == (2, False), (words, said)
    call_well("plot", "run", "--metric", "loss/policy", "--out", "curves.png")
    call_well("report", "run")
    assert not mark.exists()
    assert api.load("run", trust=True).act(np.zeros(4, np.float32))[0] in (0, 1)
    assert mark.exists()


def test_ones_own_run_in_a_wrapper_of_ones_own_is_evaluated_and_resumed_without_a_word(tmp_path, new_process):
    mark = put_module(tmp_path, "my_module")
    with (tmp_path / "my_module.py").open("a") as file:
        file.write("class Same(gym.Wrapper):\n    pass\n")
    new_process(tmp_path)
    call_well("train", "a2c", "CartPole-v1", "--wrapper", "my_module:Same", *TINY, "--run-dir", "runs/mine")
    for words in (["eval", "runs/mine", "--episodes", 1], ["resume", "runs/mine", "--total-steps", 32]):
        mark.unlink()
        new_process(tmp_path)
        call_well(*words)
        assert mark.exists()
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree("runs/mine", "elsewhere/mine")
    other = put_module(tmp_path / "elsewhere", "my_module")
    new_process(tmp_path / "elsewhere")
    code, said = call("eval", "mine")
    assert (code, other.exists()) == (2, False)
    assert f"env.wrappers[0] 'my_module:Same' would import the module my_module in {tmp_path / 'elsewhere'}" in said


def test_a_strangers_workers_are_left_out_with_the_same_result(own_run, tmp_path):
    run = forged(own_run, tmp_path / "workers", env={"workers": 1000, "ray_address": "ray://evil:10001"})
    with pytest.warns(
        UserWarning, match=r"env\.workers 1000 is left out, because this run was not made here: this process steps"
    ):
        evaluation = api.evaluate(run, episodes=3)
    assert evaluation.returns.tolist() == api.evaluate(own_run, episodes=3).returns.tolist()
    said = call_well("resume", run, "--total-steps", 32)
    assert "env.workers 1000 is left out" in said
    assert json.loads((run / "config.json").read_text())["config"]["env"]["ray_address"] is None


def test_a_strangers_run_sends_nothing_to_weights_and_biases(own_run, tmp_path, monkeypatch):
    monkeypatch.setattr("birl.run.trackers._start_wandb", lambda *_: pytest.fail("W&B was started"))
    run = forged(own_run, tmp_path / "logged", run={"wandb": "theirs"})
    said = call_well("resume", run, "--total-steps", 32)
    assert (
        "run.wandb 'theirs' is left out, because this run was not made here: nothing is sent to Weights & Biases"
        in said
    )


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"ray_actors": 2, "ray_address": "evil:6379"}, "env.ray_address 'evil:6379' would connect to a Ray cluster"),
        ({"ray_actors": 2}, "env.ray_address None would connect to a Ray cluster"),
    ],
)
def test_a_strangers_run_connects_to_no_cluster(env, message, own_run, tmp_path):
    run = forged(own_run, tmp_path / "run", env=env)
    before = (run / "config.json").read_bytes()
    code, said = call("resume", run, "--total-steps", 32)
    assert code == 2
    assert message in said
    assert (run / "config.json").read_bytes() == before


def test_actor_learners_of_a_strangers_run_are_asked_about_before_they_start(tmp_path, other_person):
    """From config.json alone: there is no checkpoint yet."""
    run = RunConfig(total_steps=16, eval_episodes=1, run_dir=str(tmp_path / "run"))
    api.train(
        a3c.Config(
            EnvConfig("CartPole-v1", num_envs=1),
            run,
            pool="serial",
            actor_learners=2,
            hidden_sizes=(8,),
            report_every=8,
        )
    )
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    stored["config"]["pool"] = "processes"
    write(tmp_path / "run" / "config.json", stored)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(
        ConfigError, match=r"actor_learners 2 would start that many processes; if you trust it, use --trust"
    ):
        api.resume(tmp_path / "run")


def test_a_strangers_run_that_was_gone_on_with_is_ones_own_from_then(own_run, tmp_path):
    run = forged(own_run, tmp_path / "run", env={"id": "tests.envs.flaky:FlakyCartPole-v0"})
    with pytest.raises(ConfigError, match="would import"):
        api.resume(run, total_steps=32)
    api.resume(run, total_steps=32, trust=True)
    assert len(api.evaluate(run, episodes=1).returns) == 1
    with pytest.raises(ConfigError, match="would import"):
        api.evaluate(checkpoints_in(run / "checkpoints")[0])


def with_snapshot(run: Path, **values: Any) -> Path:
    """Put values into the snapshot of the environments of every checkpoint, with valid hashes."""
    for checkpoint in checkpoints_in(run / "checkpoints"):
        snapshot = json.loads((checkpoint / "snapshot.json").read_text())
        snapshot["envs"] |= values
        write(checkpoint / "snapshot.json", snapshot)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest.pop("seal")
        manifest["sha256"]["snapshot.json"] = digest(snapshot)
        write(checkpoint / "manifest.json", manifest | {"seal": digest(manifest)})
    return run


@pytest.mark.parametrize("command", ["resume", "fork"])
def test_text_that_a_strangers_snapshot_would_set_in_an_environment_is_asked_about(command, own_run, tmp_path):
    run = with_snapshot(forged(own_run, tmp_path / "run", signed=False), attributes={"render_mode": ["human"]})
    words = (command, run, "--total-steps", 32, *(["--run-dir", tmp_path / "fork"] if command == "fork" else []))
    code, said = call(*words)
    assert (code, "its snapshot's {'attributes': {'render_mode': ['human']}} would set text" in said) == (2, True), said
    harmless = with_snapshot(forged(own_run, tmp_path / "more", signed=False), attributes={"render_mode": 3})
    call_well("resume", harmless, "--total-steps", 32)


@pytest.mark.parametrize("name", ["step", "no_such_name"])
def test_a_snapshot_sets_no_attribute_that_the_environment_has_not_and_no_method(name, own_run, tmp_path):
    run = with_snapshot(shutil.copytree(own_run, tmp_path / "run"), attributes={name: 1})
    code, said = call("resume", run, "--total-steps", 400)
    assert (code, "attribute" in said, said.count("Traceback")) == (2, True, 0), said


CODES = "\x1b]0;title\x07\x1b[31m\r\u202e"  # for a terminal
WITH_CODES: dict[str, dict[str, Any]] = {
    "env.id": {"env": {"id": CODES}},
    "env.kwargs": {"env": {"kwargs": {CODES: 1}}},
    "a setting": {"settings": {CODES: 1}},
    "run.wandb": {"run": {"wandb": CODES}},
}


@pytest.mark.parametrize("case", WITH_CODES)
def test_codes_for_the_terminal_in_a_strangers_settings_are_not_printed(case, own_run, tmp_path):
    run = forged(own_run, tmp_path / "run", signed=False, **WITH_CODES[case])
    for words in (["eval", "--episodes", 1], ["compare", own_run], ["fork", "--run-dir", tmp_path / "fork"]):
        _, said = call(words[0], run, *words[1:])
        assert said.replace("\n", "").isprintable()


def test_codes_for_the_terminal_in_the_names_of_metrics_and_of_the_directory_are_not_printed(own_run, tmp_path):
    run = Path(shutil.copytree(own_run, tmp_path / CODES))
    (run / "metrics.jsonl").write_text(json.dumps({"env_steps": 1, CODES: 1.0}) + "\n")
    for words in (["plot", run, "--metric", "none"], ["resume", run, "--total-steps", 32]):
        _, said = call(*words)
        assert "?]0;title??[31m??" in said
        assert said.replace("\n", "").isprintable()


def test_an_environment_that_does_not_fit_the_policy_is_refused_by_its_spaces(own_run):
    with pytest.raises(ConfigError, match=r"env 'Pendulum-v1' has spaces .* and the policy was trained for"):
        api.evaluate(own_run, env="Pendulum-v1")


def test_a_run_without_a_place_for_a_secret_is_told_to_need_trust(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "file"))
    api.train(tiny(EnvConfig("CartPole-v1", num_envs=2), tmp_path / "plain"))
    assert "not signed" not in capsys.readouterr().out
    api.train(tiny(EnvConfig("CartPole-v1", num_envs=2, kwargs={"render_mode": "rgb_array"}), tmp_path / "text"))
    assert "this run is not signed, so birl eval and resume will need --trust" in capsys.readouterr().out
    assert json.loads((tmp_path / "text" / "config.json").read_text())["signature"] is None
