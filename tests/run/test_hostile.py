"""No damaged or forged run directory leads to a traceback, a hang, or a write outside of it."""

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import birl
from birl.algos import a3c, ddpg, dpg, ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.spaces import space_from_json
from birl.errors import CheckpointError, RunDirectoryError
from birl.nets.allowance import limited_by
from birl.registry import algorithm_named, name_of
from birl.run import checkpoint as checkpoints
from birl.run import evaluating, files
from birl.run.evaluating import Evaluation
from birl.run.loading import find_checkpoint
from birl.run.run import Run
from birl.run.start import resume, train
from tests.run.processes import call, metric_rows

pytestmark = pytest.mark.timeout(600)


def small_config(run_dir: Path, **settings: Any) -> ppo.Config:
    run = RunConfig(
        **{"total_steps": 192, "checkpoint_every": 64, "eval_every": 64, "eval_episodes": 1, "run_dir": str(run_dir)}
        | settings
    )
    return ppo.Config(
        EnvConfig("CartPole-v1", num_envs=4), run, rollout_length=16, epochs=1, minibatches=1, hidden_sizes=(8,)
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with three checkpoints, of which the second is the best."""
    run_dir = tmp_path_factory.mktemp("hostile") / "run"
    scores = iter([1.0, 5.0, 2.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            evaluating, "evaluate_policy", lambda *_: Evaluation(np.array([next(scores, 1.0)]), np.array([1]))
        )
        train(small_config(run_dir))
    assert len(checkpoints.checkpoints_in(run_dir / "checkpoints")) == 3
    return run_dir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None) -> None:
    """Update hashes and seal after files were changed, as a forger would."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["seal"]
    for name in manifest["sha256"]:
        manifest["sha256"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    change(manifest)
    seal = hashlib.sha256(files.to_json_bytes(manifest)).hexdigest()
    (checkpoint / "manifest.json").write_bytes(files.to_json_bytes(manifest | {"seal": seal}))


def spoil_weights(checkpoint: Path) -> None:
    """Put a NaN into the network, with valid hashes."""
    path = checkpoint / "state.safetensors"
    tensors = load_tensors(path.read_bytes())
    name = next(name for name in tensors if name.startswith(".network") and tensors[name].dtype == np.float32)
    tensors[name] = np.full_like(tensors[name], np.nan)
    path.write_bytes(save_tensors(tensors))
    forge(checkpoint)


def three(run: Path) -> list[Path]:
    return checkpoints.checkpoints_in(run / "checkpoints")


FORGED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda m: m["sha256"].update({"../../../../../etc/passwd": "0" * 64}), "not the files of a checkpoint"),
    (lambda m: m["sha256"].update({"/dev/zero": "0" * 64}), "not the files of a checkpoint"),
    (lambda m: m["sha256"].pop("snapshot.json"), "not the files of a checkpoint"),
    (lambda m: m["sha256"].update({"snapshot.json": 5}), "manifest.sha256.snapshot.json must be"),
    (lambda m: m.update(sha256=[]), "manifest.sha256 must be"),
    (lambda m: m.update(env_steps=-5), "manifest.env_steps -5 must lie between 0"),
    (lambda m: m.update(env_steps=1e308), "manifest.env_steps"),
    (lambda m: m.update(env_steps=2**64), "manifest.env_steps 18446744073709551616 must lie between"),
    (lambda m: m.update(env_steps=7), "manifest.env_steps is 7, but the directory is 0000"),
    (lambda m: m.update(exact="yes"), "manifest.exact must be"),
    (lambda m: m.update(progress=None), "manifest.progress must be"),
    (lambda m: m["progress"].update(wall_seconds="long"), "manifest.progress.wall_seconds"),
    (
        lambda m: m["progress"].update(best={"checkpoint": "../..", "return_mean": 1.0}),
        "is not the name of a checkpoint",
    ),
    (lambda m: m["progress"].update(best={"checkpoint": "1²", "return_mean": 1.0}), "is not the name of a checkpoint"),
    (lambda m: m.update(versions={"jax": None}), "manifest.versions.jax must be"),
    (lambda m: m.update(more={}), "manifest has no field more"),
    (lambda m: m.pop("algorithm"), "algorithm"),
]


@pytest.mark.parametrize(("change", "said"), FORGED, ids=[said for _, said in FORGED])
def test_a_manifest_that_breaks_its_schema_is_damaged_and_an_older_checkpoint_is_taken(change, said, run):
    newest = three(run)[-1]
    forge(newest, change)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load_checkpoint(newest)
    assert "is damaged" in str(caught.value)
    assert said in str(caught.value)
    reports: list[str] = []
    saved = checkpoints.load_newest(run / "checkpoints", reports.append)
    assert saved is not None
    assert saved.path == three(run)[-2]
    assert len(reports) == 1


def test_no_file_is_opened_that_is_not_part_of_a_checkpoint(run, monkeypatch):
    newest = three(run)[-1]
    os.mkfifo(newest / "pipe")
    forge(newest, lambda manifest: manifest["sha256"].update({"pipe": "0" * 64, "../../config.json": "0" * 64}))
    opened: list[str] = []
    monkeypatch.setattr(
        files, "open_to_read", lambda path, real=files.open_to_read: opened.append(path.name) or real(path)
    )
    with pytest.raises(CheckpointError, match="not the files of a checkpoint"):
        checkpoints.load_checkpoint(newest)
    assert opened == ["manifest.json"]


@pytest.mark.parametrize("name", ["1²", "-00000005", "5", "0000000000005", "٣" * 9, "9" * 30])
def test_a_directory_whose_name_no_run_would_give_is_not_a_checkpoint(name, run):
    before = three(run)
    shutil.copytree(before[0], run / "checkpoints" / name)
    assert three(run) == before
    assert find_checkpoint(run).path == before[1]


def test_of_a_run_whose_best_checkpoint_is_damaged_the_newest_is_loaded_and_that_is_said(run):
    best, newest = three(run)[1:]
    assert find_checkpoint(run).path == best
    (best / "state.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=f"{best}.* is damaged: .*; using {newest.name} instead"):
        assert find_checkpoint(run).path == newest
    with pytest.warns(UserWarning, match="is damaged"):
        birl.load(run).act(np.zeros(4, np.float32))
    (newest / "spaces.json").unlink()
    with pytest.warns(UserWarning, match="is damaged"):
        assert find_checkpoint(run).path == three(run)[0]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '{"checkpoint": 5}',
        '{"checkpoint": "../x", "return_mean": 1}',
        "[" * 9999,
        '{"checkpoint": "000000064"}',
    ],
)
def test_a_damaged_best_json_is_said_and_the_newest_checkpoint_taken(content, run):
    (run / "checkpoints" / "best.json").write_text(content)
    with pytest.warns(UserWarning, match=r"best\.json is not used: "):
        assert find_checkpoint(run).path == three(run)[-1]


def test_weights_that_are_not_finite_are_refused_by_load_eval_and_resume_and_an_older_checkpoint_is_taken(run):
    for checkpoint in three(run)[1:]:
        spoil_weights(checkpoint)
    with pytest.raises(CheckpointError, match=r"is damaged: the network's .* holds NaN or infinity; it cannot act"):
        birl.load(three(run)[-1])
    code, said = call("eval", three(run)[-1])
    assert (code, "holds NaN or infinity" in said) == (2, True)
    with pytest.warns(UserWarning, match="holds NaN or infinity"):
        assert find_checkpoint(run).path == three(run)[0]
    spoil_weights(three(run)[0])
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read: .*NaN"):
        resume(run)


def test_a_disk_that_cannot_be_read_now_is_no_reason_to_throw_the_newest_checkpoint_away(run, monkeypatch):
    def fail(path: Path, *_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read_bytes", fail)
        with pytest.raises(CheckpointError, match=r"cannot be read: .*Input/output error"):
            checkpoints.load_newest(run / "checkpoints", print)
    monkeypatch.setattr(checkpoints, "free_memory", lambda: 10)
    with pytest.raises(CheckpointError, match="of memory are free; free some"):
        checkpoints.load_newest(run / "checkpoints", print)


@pytest.mark.parametrize(
    "space",
    [
        {"kind": "Box", "shape": [1 << 40], "dtype": "float32", "low": 0.0, "high": 1.0},
        {"kind": "Box", "shape": [-1], "dtype": "float32", "low": 0.0, "high": 1.0},
        {"kind": "Box", "shape": [2], "dtype": "object", "low": 0.0, "high": 1.0},
        {"kind": "Box", "shape": [2], "dtype": "float32", "low": "import", "high": 1.0},
        {"kind": "Box", "shape": "ab", "dtype": "float32", "low": 0.0, "high": 1.0},
        {"kind": "Discrete", "n": 0},
        {"kind": "Discrete", "n": 1e5},
        {"kind": "Discrete", "n": 1 << 60},
        {"kind": "MultiDiscrete", "nvec": [3, 10**30]},
        {"kind": "MultiBinary", "shape": [1 << 40]},
        {"kind": "Dict", "spaces": [1]},
        {"kind": "Tuple", "spaces": {}},
        {"kind": ["Box"]},
        [],
        None,
    ],
)
def test_a_space_that_cannot_be_is_refused_with_a_sentence(space):
    with pytest.raises(ValueError, match="space"):
        space_from_json(space)


FORGED_SETTINGS: list[tuple[str, Any]] = [
    ("hidden_sizes", [-1]), ("hidden_sizes", [2**40]), ("hidden_sizes", [2**31 - 1, 2**31 - 1]),
    ("hidden_sizes", [2**63]), ("hidden_sizes", [8] * 1000), ("minibatches", 0), ("seed", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), FORGED_SETTINGS)
def test_settings_of_which_no_network_can_be_made_are_said(name, value, run):
    newest = three(run)[-1]
    settings = json.loads((newest / "config.json").read_text())
    (newest / "config.json").write_text(json.dumps(settings | {name: value}))
    forge(newest)
    code, said = call("eval", newest)
    assert (code, name in said or "no network can be made" in said) == (2, True), said


def test_spaces_that_a_checkpoint_has_no_weights_for_are_refused_by_every_command(run):
    """A small file would fill the memory."""
    vast = {"kind": "Box", "shape": [1 << 24], "dtype": "float32", "low": 0.0, "high": 1.0}
    for checkpoint in three(run):
        spaces = json.loads((checkpoint / "spaces.json").read_text())
        (checkpoint / "spaces.json").write_text(json.dumps(spaces | {"observation": vast}))
        forge(checkpoint)
    for words in (["eval"], ["resume", "--total-steps", 256], ["fork"], ["export"]):
        code, said = call(words[0], run, *words[1:])
        assert (code, "asks for 16,777,216 numbers" in said) == (2, True), said


LARGE = EnvConfig("CartPole-v1", num_envs=1 << 30)


@pytest.mark.parametrize(
    "config",
    [
        ppo.Config(LARGE, normalize_rewards=True, hidden_sizes=(8,)),
        ddpg.Config(LARGE, noise="parameter", hidden_sizes=(8,)),
        a3c.Config(actor_learners=1 << 30, hidden_sizes=(8,)),
        dpg.Config(num_features=1 << 30),
        dpg.Config(actor_features="quadratic"),
    ],
    ids=lambda config: type(config).__module__,
)
def test_settings_that_ask_for_more_than_a_file_holds_are_refused_before_anything_is_allocated(config):
    observations, actions = spaces.Box(0, 1, (4000,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
    with limited_by({}), pytest.raises(ConfigError, match="asks for"):
        algorithm_named(name_of(config)).init(config, observations, actions)


FORESEEABLE = [
    ".config.json.partial",
    ".metrics.jsonl.partial",
    ".summary.json.partial",
    "checkpoints/.best.json.partial",
]


def test_a_resume_writes_through_no_link_that_somebody_put_there(run, tmp_path):
    """The links have the names of partial files that could be guessed, and of a file itself."""
    victim = tmp_path / "bashrc"
    victim.write_text("mine")
    for name in FORESEEABLE:
        (run / name).symlink_to(victim)
    (run / "summary.json").unlink()
    (run / "summary.json").symlink_to(victim)
    resume(run, total_steps=256)
    assert victim.read_text() == "mine"
    assert json.loads((run / "summary.json").read_text())["env_steps"] >= 256
    assert not (run / "summary.json").is_symlink()


@pytest.mark.parametrize(("name", "code"), [("config.json", 0), ("metrics.jsonl", 2)])
def test_what_a_link_leads_to_is_neither_read_nor_written(name, code, run, tmp_path):
    """The checkpoint has a copy of config.json; metrics.jsonl cannot be replaced."""
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_text()
    found, said = call("resume", run, "--total-steps", 256)
    assert (found, f"{run / name} is a symbolic link" in said) == (code, True), said
    assert (tmp_path / "elsewhere").read_text() == before


def test_a_run_whose_checkpoints_are_somebody_elses_is_refused_and_theirs_are_kept(finished, run, tmp_path):
    theirs = shutil.copytree(finished, tmp_path / "theirs")
    before = sorted(path.relative_to(theirs) for path in theirs.rglob("*"))
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(theirs / "checkpoints")
    for words in (["resume", run, "--total-steps", 256], ["eval", run], ["record", run, "--out", tmp_path / "a.mp4"]):
        code, said = call(*words)
        assert (code, "checkpoints is a symbolic link; put the directory itself there" in said) == (2, True), said
    assert sorted(path.relative_to(theirs) for path in theirs.rglob("*")) == before


def test_a_run_directory_that_is_itself_a_link_is_the_persons_own_choice(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert resume(tmp_path / "link", total_steps=256)["env_steps"] >= 256
    assert find_checkpoint(tmp_path / "link").env_steps > 0


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_file_in_the_place_of_the_checkpoints_is_said(command, run):
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")
    code, said = call(command, run)
    assert (code, "checkpoints is not a directory; move it away" in said) == (2, True), said


def test_one_checkpoint_that_is_a_link_is_neither_used_nor_pruned(finished, run, tmp_path):
    theirs = shutil.copytree(three(finished)[0], tmp_path / "theirs")
    (run / "checkpoints" / "000000001").symlink_to(theirs)
    assert [path.name for path in three(run)] == [path.name for path in three(finished)]
    checkpoints.prune(run / "checkpoints", 1)
    assert (theirs / "manifest.json").exists()


@pytest.mark.parametrize("name", ["tensorboard", "videos", "wandb"])
def test_a_directory_that_leads_out_of_the_run_is_refused(name, run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (run / name).symlink_to(tmp_path / "elsewhere")
    newest = three(run)[-1]
    stored = json.loads((newest / "config.json").read_text())
    stored["run"] |= {"tensorboard": name == "tensorboard", "wandb": "project" if name == "wandb" else None}
    (newest / "config.json").write_text(json.dumps(stored))
    forge(newest)
    code, said = call(*(["record", run] if name == "videos" else ["resume", run, "--total-steps", 256, "--trust"]))
    assert (code, f"{name} is a symbolic link" in said) == (2, True), said
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"env_steps": 192}', '{"env_steps": 192, "evaluation": 5}', "[" * 99_999, '{"env_steps": 1e999}'],
)
def test_a_damaged_summary_is_said_and_written_again(content, run, capsys):
    (run / "summary.json").write_text(content)
    summary = resume(run)
    assert "it is written again" in capsys.readouterr().out
    assert json.loads((run / "summary.json").read_text()) == summary


@pytest.mark.parametrize("replaced", ["removed", "moved", "replaced"])
def test_a_run_whose_directory_is_gone_stops_and_does_not_bring_it_back(replaced, tmp_path, monkeypatch):
    run_dir, saves = tmp_path / "run", []

    def save_and_lose(*args: Any) -> Path:
        path = checkpoints_save(*args)
        saves.append(path)
        if len(saves) == 2:
            run_dir.rename(tmp_path / "moved") if replaced == "moved" else shutil.rmtree(run_dir)
        if len(saves) == 2 and replaced == "replaced":
            run_dir.mkdir()
        return path

    checkpoints_save = checkpoints.save_checkpoint
    monkeypatch.setattr(checkpoints, "save_checkpoint", save_and_lose)
    with pytest.raises(
        RunDirectoryError, match="run was removed, moved or replaced while the run was writing there; what was learned"
    ):
        train(small_config(run_dir, total_steps=2000, eval_every=0))
    assert len(saves) == 2
    assert not run_dir.exists() or not list(run_dir.iterdir())


def test_a_run_whose_directory_is_gone_ends_with_code_1_and_a_sentence(tmp_path, monkeypatch):
    words = [
        "--num-envs",
        4,
        "--rollout-length",
        16,
        "--epochs",
        1,
        "--minibatches",
        1,
        "--eval-every",
        64,
        "--total-steps",
        2000,
    ]
    monkeypatch.setattr(Run, "_evaluate", lambda self, *_: shutil.rmtree(tmp_path / "run", ignore_errors=True))
    code, said = call("train", "ppo", "CartPole-v1", *words, "--run-dir", tmp_path / "run")
    assert code == 1
    assert "birl: training stopped: " in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_checkpoints_directory_that_was_emptied_to_make_room_is_made_again(tmp_path, monkeypatch):
    directories = iter([tmp_path / "run" / "checkpoints"])
    monkeypatch.setattr(Run, "_evaluate", lambda self, *_: shutil.rmtree(next(directories, "none"), ignore_errors=True))
    train(small_config(tmp_path / "run"))
    assert len(three(tmp_path / "run")) == 3


def test_a_checkpoint_whose_removal_was_cut_short_is_never_met_again(run, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "delete", lambda path: (path / "state.safetensors").unlink())  # killed in the middle of it
        files.remove(three(run)[0])
    assert len(three(run)) == 2
    resume(run, total_steps=256)
    assert not list((run / "checkpoints").glob(f"{files.PARTIAL}*"))


def test_rows_that_a_full_disk_refused_are_written_once_there_is_room(tmp_path, monkeypatch, capsys):
    """The disk is full in the middle of a line; that line is completed, and none is repeated."""
    write, calls, full = os.write, iter(range(10_000)), range(2, 5)

    def sometimes_full(descriptor: int, line: bytes) -> int:
        call = next(calls)
        if call == full.start:
            return write(descriptor, line[:10])
        if call in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, line)

    config = small_config(tmp_path / "run", total_steps=500, eval_every=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("birl.run.logging.os.write", sometimes_full)
        train(config)
    assert (
        capsys.readouterr().out.count("metrics not written, training goes on: [Errno 28] No space left on device") == 1
    ), "said once"
    train(small_config(tmp_path / "other", total_steps=500, eval_every=0))
    assert metric_rows(tmp_path / "run") == metric_rows(tmp_path / "other")


def test_rows_that_never_found_room_are_counted_and_take_little_memory(tmp_path, monkeypatch):
    from birl.run import logging as run_logging

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_logging, "MOST_WAITING", 5)
    sink = run_logging.JsonlSink(tmp_path / "metrics.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_logging.os, "write", full)
        for step in range(20):
            with pytest.raises(OSError, match="No space left"):
                sink.write(step, 0.0, {})
        assert len(sink._waiting) == 5
    with pytest.warns(UserWarning, match="15 lines were not written: the disk was full for too long"):
        sink.close()
    with warnings.catch_warnings(action="error"):
        assert len(list(run_logging.read_metrics(tmp_path / "metrics.jsonl"))) == 5
