"""Checkpoints of older formats are read: files and State leaves that had other names."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import birl
from birl import EnvConfig, RunConfig
from birl.algos import a3c, async_q, ppo
from birl.errors import CheckpointError
from birl.registry import algorithm_named
from birl.run.checkpoint import FORMAT, SNAPSHOT_NAMES, checkpoints_in, files_of, load_checkpoint
from birl.run.state_tensors import RENAMED_LEAVES, with_current_names
from tests.run.processes import call_well, reseal, training_rows

CONFIGS: dict[str, Callable[..., Any]] = {
    "ppo": lambda env, run: ppo.Config(env, run, rollout_length=16, epochs=1, hidden_sizes=(8,)),
    "a3c": lambda env, run: a3c.Config(env, run, pool="serial", actor_learners=2, report_every=32, hidden_sizes=(8,)),
    "async-q": lambda env, run: async_q.Config(
        env, run, pool="serial", actor_learners=2, report_every=32, hidden_sizes=(8,)
    ),
}


@pytest.fixture(scope="module", params=CONFIGS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with several checkpoints."""
    run_dir = tmp_path_factory.mktemp("formats") / request.param
    run = RunConfig(total_steps=192, checkpoint_every=64, eval_episodes=1, keep_checkpoints=9, run_dir=str(run_dir))
    birl.train(CONFIGS[request.param](EnvConfig("CartPole-v1", num_envs=2), run))
    return run_dir


def write_as_format_1(checkpoint: Path) -> None:
    """Rewrite a checkpoint with the names of format 1."""
    for ending in (".json", ".safetensors"):
        (checkpoint / f"snapshot{ending}").rename(checkpoint / f"world{ending}")
    old_names = {new: old for old, new in RENAMED_LEAVES[2].items()}
    tensors = load_file(checkpoint / "state.safetensors")
    for new, old in old_names.items():
        tensors = {name.replace(new, old) if name.startswith(new) else name: x for name, x in tensors.items()}
    save_file(tensors, checkpoint / "state.safetensors")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    reseal(checkpoint, format=1, sha256=dict.fromkeys(files_of(1), ""), versions=manifest["versions"])


def cut_to_format_1(finished: Path, copy: Path) -> Path:
    """A copy of a run as it was after its first checkpoint, in format 1."""
    shutil.copytree(finished, copy)
    first, *later = checkpoints_in(copy / "checkpoints")
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    (copy / "summary.json").unlink()
    write_as_format_1(first)
    return copy


def test_a_run_of_format_1_is_resumed_exactly_and_goes_on_in_format_2(finished, tmp_path):
    resumed = cut_to_format_1(finished, tmp_path / "resumed")
    assert "not exact" not in call_well("resume", resumed)
    ends = [checkpoints_in(run / "checkpoints")[-1] for run in (resumed, finished)]
    assert ends[0].name == ends[1].name
    assert (ends[0] / "state.safetensors").read_bytes() == (ends[1] / "state.safetensors").read_bytes()
    assert training_rows(resumed) == training_rows(finished)
    formats = [load_checkpoint(path).manifest["format"] for path in checkpoints_in(resumed / "checkpoints")]
    assert formats == [1, *[FORMAT] * (len(formats) - 1)]


def test_a_policy_of_format_1_acts_as_before(finished, tmp_path):
    old = cut_to_format_1(finished, tmp_path / "old")
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    now, then = (birl.load(checkpoints_in(run / "checkpoints")[0]).act(observations)[0] for run in (finished, old))
    assert now.tolist() == then.tolist()


@pytest.mark.parametrize(("format", "other"), [(1, 2), (2, 1)])
def test_a_format_allows_only_the_file_names_of_its_own(format, other, finished, tmp_path):
    run = cut_to_format_1(finished, tmp_path / "run") if format == 1 else shutil.copytree(finished, tmp_path / "run")
    checkpoint = checkpoints_in(run / "checkpoints")[0]
    old, new = SNAPSHOT_NAMES[format], SNAPSHOT_NAMES[other]
    for ending in (".json", ".safetensors"):
        (checkpoint / f"{old}{ending}").rename(checkpoint / f"{new}{ending}")
    reseal(checkpoint, sha256=dict.fromkeys(files_of(other), ""))
    with pytest.raises(CheckpointError, match=f"names .*{new}.json.* these are not the files of a checkpoint"):
        load_checkpoint(checkpoint)


def test_a_renamed_leaf_takes_its_subtree_with_it_and_nothing_else():
    one = np.zeros(1)
    old = {
        ".older.trunk[0].weight": one,
        ".older[1]": one,
        ".squares": one,
        ".squares_of_another": one,
        ".a.older": one,
    }
    assert list(with_current_names(old, 1)) == [
        ".target_weights.trunk[0].weight", ".target_weights[1]", ".mean_squares", ".squares_of_another", ".a.older",
    ]  # fmt: skip
    assert with_current_names(old, FORMAT) == old


def test_every_new_name_is_a_leaf_of_some_algorithm():
    """A table that names leaves which do not exist would rename nothing."""
    fields = {field for name in birl.ALGORITHMS for field in state_fields(name)}
    for names in RENAMED_LEAVES.values():
        assert {new.removeprefix(".") for new in names.values()} <= fields


def state_fields(name: str) -> set[str]:
    state = algorithm_named(name).State
    return set(state._fields) if hasattr(state, "_fields") else {f.name for f in dataclasses.fields(state)}
