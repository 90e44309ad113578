"""A checkpoint is written completely or not at all, detects every flipped bit, and runs no code."""

import ast
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import birl
from birl.algos import dqn, ppo
from birl.config import EnvConfig, RunConfig, from_json
from birl.envs.make import make_envs, spaces_of
from birl.errors import CheckpointError, NonFiniteError, UnreadableError
from birl.maths.count import count_of
from birl.run import checkpoint as checkpoints
from birl.run import evaluating, files
from birl.run.evaluating import Evaluation
from birl.run.logging import JsonlSink
from birl.run.saving import expected_sizes
from birl.run.start import resume, train
from birl.run.state_tensors import state_to_tensors, tensors_to_state
from birl.types import Snapshot
from tests.run.processes import reseal

FILES = ["config.json", "manifest.json", "snapshot.json", "snapshot.safetensors", "spaces.json", "state.safetensors"]
CONFIG = ppo.Config(EnvConfig("CartPole-v1", num_envs=2), hidden_sizes=(4,), normalize_observations=True)


class KilledError(BaseException):
    """Stands for kill -9: nothing catches it."""


@pytest.fixture(scope="module")
def save() -> Callable[..., Path]:
    """A function that writes a checkpoint of that many steps."""
    with make_envs(CONFIG.env, 0) as envs:
        envs.reset(0)
        spaces, snapshot = (envs.observation_space, envs.action_space), envs.snapshot()
    state = ppo.init(CONFIG, *spaces)

    def write(directory: Path, env_steps: int, **more: Any) -> Path:
        progress = {"wall_seconds": 0.1 + 0.2, "cpu_seconds": 1e-7, "best": None}
        numbered = state._replace(env_steps=count_of(env_steps))
        return checkpoints.save_checkpoint(
            directory, "ppo", CONFIG, spaces, more.get("state", numbered), snapshot, progress
        )

    return write


def newest(directory: Path) -> tuple[int | None, list[str]]:
    """The steps of the checkpoint that `load_newest` chooses, and what it reports."""
    reports: list[str] = []
    found = checkpoints.load_newest(directory, reports.append)
    return (None if found is None else found.env_steps), reports


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flip_bit(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def every_operation(monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[int], None]) -> None:
    """Call `interrupt` with a running number before each operation of `save` on the disk."""
    count = iter(range(1000))

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            interrupt(next(count))
            return function(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(files, "write_new", before(files.write_new))
    monkeypatch.setattr(files, "sync_directory", before(files.sync_directory))
    monkeypatch.setattr(os, "fsync", before(os.fsync))
    monkeypatch.setattr(Path, "rename", before(Path.rename))


def test_a_checkpoint_from_before_gradient_steps_were_owed_owes_none():
    state = dqn.init(dqn.Config(CONFIG.env, hidden_sizes=(4,)), *spaces_of(CONFIG.env))
    older = state_to_tensors(state._replace(owed=np.float32(3)))
    del older[".owed"]
    assert tensors_to_state(state, older).owed == 0
    del older[".epsilon"]
    with pytest.raises(CheckpointError, match=r"missing \['\.epsilon'\]"):
        tensors_to_state(state, older)


def test_a_checkpoint_comes_back_as_it_was(save, tmp_path):
    saved = checkpoints.load_checkpoint(save(tmp_path, 7))
    assert names(tmp_path / "000000007") == FILES
    assert saved.env_steps == 7
    assert from_json(ppo.Config, saved.config) == CONFIG
    template = ppo.init(CONFIG, saved.observation_space, saved.action_space)
    state = tensors_to_state(template, saved.tensors)
    assert jax.tree.all(
        jax.tree.map(lambda a, b: np.array_equal(a, b), state, template._replace(env_steps=count_of(7)))
    )
    assert saved.tensors[".env_steps"].dtype == np.int64, "one number in the file"
    with pytest.raises(CheckpointError, match=r"\.updates is -1 in the checkpoint; a number of steps cannot be"):
        tensors_to_state(template, saved.tensors | {".updates": np.array(-1)})


def test_a_state_of_another_network_is_refused_by_name(save, tmp_path):
    saved = checkpoints.load_checkpoint(save(tmp_path, 7))
    spaces = saved.observation_space, saved.action_space
    wider = ppo.init(ppo.Config(CONFIG.env, hidden_sizes=(5,), normalize_observations=True), *spaces)
    with pytest.raises(
        CheckpointError, match=r"weight is float32\(4, 4\) in the checkpoint but float32\(4, 5\) in this network"
    ):
        tensors_to_state(wider, saved.tensors)
    deeper = ppo.init(ppo.Config(CONFIG.env, hidden_sizes=(4, 4), normalize_observations=True), *spaces)
    with pytest.raises(CheckpointError, match=r"does not fit this network: missing .*network"):
        tensors_to_state(deeper, saved.tensors)


@pytest.mark.parametrize("error", [KilledError(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_crash_between_any_two_writes_leaves_the_old_one_usable(error, save, tmp_path):
    operations = 0
    for moment in range(100):
        directory = tmp_path / str(moment)
        directory.mkdir()
        save(directory, 1)

        def interrupt(number: int, moment: int = moment) -> None:
            if number == moment:
                raise error

        with pytest.MonkeyPatch.context() as monkeypatch:
            every_operation(monkeypatch, interrupt)
            try:
                save(directory, 2)
                operations = moment
                break
            except (KilledError, OSError):
                pass
        number, reports = newest(directory)
        assert number in (1, 2), f"operation {moment}"
        assert reports == [], "what is half written is ignored"
        if isinstance(error, OSError):
            assert not list(directory.glob(".partial-*")), "a full disk is not filled further"
        save(directory, 3)
        checkpoints.prune(directory, 10)
        assert newest(directory) == (3, [])
        assert not list(directory.glob(".partial-*"))
    assert operations >= 2 * len(FILES) + 4, "each file was opened and synced, the directories too, and one rename"


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_noticed_in_each_file(name, save, tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / name
    size, rng = path.stat().st_size, np.random.default_rng(0)
    for position in {0, size - 1, *rng.integers(size, size=20).tolist()}:
        bit = int(rng.integers(8))
        flip_bit(path, position, bit)
        with pytest.raises(CheckpointError, match="is damaged"):
            checkpoints.load_checkpoint(tmp_path / "000000002")
        number, reports = newest(tmp_path)
        assert number == 1
        assert len(reports) == 1
        assert "using 000000001 instead" in reports[0]
        flip_bit(path, position, bit)
    assert newest(tmp_path) == (2, [])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut in half", "empty", "missing"])
def test_a_damaged_file_is_named_and_the_one_before_is_used(name, damage, save, tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 if damage == "cut in half" else 0])
    number, reports = newest(tmp_path)
    assert number == 1
    assert str(tmp_path / "000000002") in reports[0]
    assert "is damaged" in reports[0]


def test_if_all_are_damaged_the_error_names_each(save, tmp_path):
    for number in (1, 2, 3):
        flip_bit(save(tmp_path, number) / "snapshot.json", 3, 1)
    with pytest.raises(CheckpointError) as caught:
        newest(tmp_path)
    for number in (1, 2, 3):
        assert f"{tmp_path / f'00000000{number}'}/snapshot.json is damaged" in str(caught.value)
    assert "restore one from a backup" in str(caught.value)


def test_no_checkpoint_at_all_is_none(tmp_path):
    assert newest(tmp_path / "nowhere") == (None, [])


def test_a_newer_format_is_refused_and_nothing_older_is_taken_instead(save, tmp_path):
    save(tmp_path, 1)
    reseal(save(tmp_path, 2), format=3)
    said = "has format 3; this version of Birl reads 1 and 2: install the version that wrote it"
    with pytest.raises(UnreadableError, match=said):
        newest(tmp_path)


def test_pruning_keeps_the_newest_and_the_best_and_removes_what_is_half_written(save, tmp_path):
    for number in (1, 2, 3, 4, 5):
        save(tmp_path, number)
    checkpoints.mark_best(tmp_path, {"checkpoint": "000000002", "return_mean": 9.0})
    (tmp_path / ".partial-000000006-123").mkdir()
    (tmp_path / ".partial-000000006-123" / "state.safetensors").write_bytes(b"half")
    checkpoints.prune(tmp_path, 2)
    assert names(tmp_path) == ["000000002", "000000004", "000000005", "best.json"]


def test_pruning_keeps_the_first_at_or_after_each_multiple_of_keep_every(save, tmp_path):
    for number in (3, 9, 11, 15, 20, 24, 38, 41, 42, 43):
        save(tmp_path, number)
    checkpoints.prune(tmp_path, 1, keep_every=10)
    assert [int(name) for name in names(tmp_path)] == [11, 20, 38, 41, 43]
    checkpoints.prune(tmp_path, 1, keep_every=10)
    assert [int(name) for name in names(tmp_path)] == [11, 20, 38, 41, 43], "a second time changes nothing"


def test_a_thousand_million_steps_are_newer_than_one_less(save, tmp_path):
    save(tmp_path, 999_999_999)
    save(tmp_path, 1_000_000_000)
    assert newest(tmp_path) == (1_000_000_000, [])
    checkpoints.prune(tmp_path, 1)
    assert names(tmp_path) == ["1000000000"]


def test_damaged_ones_that_are_newer_do_not_push_out_good_ones(save, tmp_path):
    """An inexact resume saves at other steps, which may be lower than a damaged checkpoint's."""
    save(tmp_path, 100)
    flip_bit(save(tmp_path, 200) / "snapshot.json", 3, 1)
    assert newest(tmp_path)[0] == 100
    checkpoints.set_aside(tmp_path, after=100)
    save(tmp_path, 150)
    checkpoints.prune(tmp_path, 1)
    assert names(tmp_path) == ["000000150"]


def test_a_best_that_is_gone_or_unreadable_is_none(save, tmp_path):
    assert checkpoints.read_best(tmp_path) is None
    save(tmp_path, 1)
    best = {"checkpoint": "000000001", "return_mean": 0.5}
    checkpoints.mark_best(tmp_path, best)
    assert checkpoints.read_best(tmp_path) == best
    (tmp_path / "best.json").write_text("{")
    assert checkpoints.read_best(tmp_path) is None
    checkpoints.mark_best(tmp_path, best)
    shutil.rmtree(tmp_path / "000000001")
    assert checkpoints.read_best(tmp_path) is None


def test_weights_that_are_not_finite_are_never_saved(save, tmp_path):
    save(tmp_path, 1)
    state = ppo.init(
        CONFIG,
        *[
            checkpoints.load_checkpoint(tmp_path / "000000001").__dict__[f"{name}_space"]
            for name in ("observation", "action")
        ],
    )
    broken = state._replace(network=jax.tree.map(lambda x: np.full_like(x, np.nan), state.network))
    with pytest.raises(NonFiniteError, match="holds NaN or infinity, so this state was not saved"):
        save(tmp_path, 2, state=broken)
    assert names(tmp_path) == ["000000001"]


def test_every_json_file_is_strict_and_the_hashes_are_those_of_the_files(save, tmp_path):
    path = save(tmp_path, 1)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for name in FILES:
        if name.endswith(".json"):
            json.loads((path / name).read_text(), parse_constant=refuse)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["sha256"] == {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in FILES if name != "manifest.json"
    }
    assert set(manifest["versions"]) >= {"python", "birl", "jax", "numpy", "gymnasium"}


def test_what_is_not_json_cannot_be_saved(save, tmp_path):
    snapshot = Snapshot(values={"value": float("nan")})
    spaces = [
        checkpoints.load_checkpoint(save(tmp_path, 1)).__dict__[f"{name}_space"] for name in ("observation", "action")
    ]
    with pytest.raises(ValueError, match="not JSON compliant"):
        checkpoints.save_checkpoint(tmp_path, "ppo", CONFIG, tuple(spaces), ppo.init(CONFIG, *spaces), snapshot, {})


def sources() -> Iterator[tuple[Path, ast.AST]]:
    for path in Path(birl.__file__).parent.rglob("*.py"):
        yield path, ast.parse(path.read_text())


def test_nothing_in_birl_can_run_code_from_a_file():
    """No pickle, eval, exec, yaml or allow_pickle anywhere (SB3 #2281, zoo #505)."""
    modules = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml", "jsonpickle"}
    calls = {"eval", "exec", "compile", "__import__"}
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                found += [where for alias in node.names if alias.name.split(".")[0] in modules]
            elif isinstance(node, ast.ImportFrom):
                found += [where] if (node.module or "").split(".")[0] in modules else []
            elif isinstance(node, ast.Call):
                found += [where] if isinstance(node.func, ast.Name) and node.func.id in calls else []
                found += [where for word in node.keywords if word.arg == "allow_pickle"]
            elif isinstance(node, ast.Attribute):
                found += [where] if node.attr in ("unsafe_load", "UnsafeLoader") else []
    assert found == []


def short_run(run_dir: Path, **settings: Any) -> ppo.Config:
    plain = {"total_steps": 500, "checkpoint_every": 1, "eval_episodes": 1}
    run = RunConfig(**plain | settings, run_dir=str(run_dir))
    return ppo.Config(EnvConfig("CartPole-v1", num_envs=4), run, rollout_length=16, epochs=1, hidden_sizes=(8,))


def test_a_full_disk_does_not_end_a_run_that_still_learns(tmp_path, monkeypatch, capsys):
    write_new, calls = files.write_new, iter(range(1000))

    def sometimes_full(path: Path, content: bytes) -> None:
        if path.name == "state.safetensors" and 1 <= next(calls) <= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_new(path, content)

    monkeypatch.setattr(files, "write_new", sometimes_full)
    summary = train(short_run(tmp_path / "run", keep_checkpoints=100))
    said = capsys.readouterr().out
    assert said.count("checkpoint not written, training goes on: [Errno 28] No space left on device") == 3
    assert summary["env_steps"] >= 500
    steps = [json.loads(line)["env_steps"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    written = [int(path.name) for path in checkpoints.checkpoints_in(tmp_path / "run" / "checkpoints")]
    assert written == [steps[0], *dict.fromkeys(steps[4:])], "all but three were written"
    assert not list((tmp_path / "run" / "checkpoints").glob(".partial-*"))


def test_a_disk_too_full_for_metrics_does_not_end_a_run_either(tmp_path, monkeypatch, capsys):
    write, calls = JsonlSink.write, iter(range(1000))

    def sometimes_full(self: JsonlSink, *args: Any) -> None:
        if next(calls) in (2, 3):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, *args)

    monkeypatch.setattr(JsonlSink, "write", sometimes_full)
    assert train(short_run(tmp_path / "run"))["env_steps"] >= 500
    assert (
        capsys.readouterr().out.count("metrics not written, training goes on: [Errno 28] No space left on device") == 1
    ), "said once"


def test_pruning_in_a_run_keeps_its_newest_and_its_best(tmp_path, monkeypatch):
    scores = iter([1.0, 5.0, 2.0, 3.0, 2.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(evaluating, "evaluate_policy", lambda *_: Evaluation(np.array([next(scores)]), np.array([1])))
    train(short_run(tmp_path / "run", keep_checkpoints=2, eval_every=64))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row["env_steps"] for row in rows if "eval/return_mean" in row]
    kept = [int(path.name) for path in checkpoints.checkpoints_in(tmp_path / "run" / "checkpoints")]
    assert kept == [steps[1], *steps[-2:]]
    assert checkpoints.read_best(tmp_path / "run" / "checkpoints") == {
        "checkpoint": f"{steps[1]:09d}",
        "return_mean": 5.0,
    }


def test_a_run_keeps_the_same_checkpoints_however_often_it_is_stopped(tmp_path, capsys):
    settings: dict[str, Any] = {"keep_every": 100, "checkpoint_every": 0, "keep_checkpoints": 1}
    train(short_run(tmp_path / "whole", **settings))
    said = capsys.readouterr().out
    assert said.count("keep_every 100: checkpoint 000000") == 1
    assert "about 5 will be kept for good" in said
    with birl.start(short_run(tmp_path / "stopped", **settings)) as run:
        for update, _ in zip(run, range(4), strict=False):
            assert int(update.state.env_steps) < 500
    resume(tmp_path / "stopped")
    kept = [
        [path.name for path in checkpoints.checkpoints_in(tmp_path / name / "checkpoints")]
        for name in ("whole", "stopped")
    ]
    assert kept[0] == kept[1]
    assert [int(name) // 100 for name in kept[0]] == [1, 2, 3, 4, 5]


def test_the_expected_size_of_kept_checkpoints_grows_with_the_replay_until_it_is_full():
    sizes = {"state.safetensors": 10, "snapshot.safetensors": 100}
    assert expected_sizes(sizes, 100, every=100, total_steps=400, replay_size=0) == (4, 4 * 110)
    assert expected_sizes(sizes, 100, every=100, total_steps=400, replay_size=200) == (4, 4 * 10 + 100 + 3 * 200)


def test_a_best_whose_name_was_not_written_in_time_is_the_best_after_a_resume(tmp_path, monkeypatch):
    """The process is killed before it writes best.json; the manifest names the best, too."""

    def killed(directory: Path, best: dict[str, Any] | None) -> None:
        if best is not None:
            raise KilledError

    scores = iter([5.0, *[1.0] * 20])
    monkeypatch.setattr(evaluating, "evaluate_policy", lambda *_: Evaluation(np.array([next(scores)]), np.array([1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "mark_best", killed)
        with pytest.raises(KilledError):
            train(short_run(tmp_path / "run", eval_every=64))
    first = checkpoints.checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name
    summary = resume(tmp_path / "run")
    assert summary["best_return"] == 5.0
    assert checkpoints.read_best(tmp_path / "run" / "checkpoints") == {"checkpoint": first, "return_mean": 5.0}
