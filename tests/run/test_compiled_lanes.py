"""Lanes of compiled environments: several in a process, in turns, each an ordinary run."""

import os
import signal
from pathlib import Path

import pytest

import birl
from birl.run.groups.group_plan import read_group
from birl.run.groups.lane import LaneOptions
from birl.run.groups.lane_training import run_shares, take_turns
from tests.run.processes import SECONDS, assert_same_run, call_well, metric_rows, start, succeed, wait_until
from tests.run.test_group import has_checkpoint

SETTINGS = [
    "--backend", "compiled", "--num-envs", 4, "--rollout-length", 16, "--epochs", 2, "--minibatches", 4,
    "--hidden-sizes", 16, "--checkpoint-every", 500, "--eval-episodes", 2, "--total-steps", 4_000,
]  # fmt: skip
TRAIN = ["train", "ppo", "CartPole-v1", *SETTINGS]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds in two processes."""
    directory = tmp_path_factory.mktemp("group")
    succeed(*TRAIN, "--seeds", 3, "--jobs", 2, "--run-dir", "group", cwd=directory)
    return directory / "group"


def test_a_lane_is_the_run_with_its_seed_bit_for_bit(group: Path, tmp_path: Path) -> None:
    for seed in (1, 3):  # they take turns in one process
        call_well(*TRAIN, "--seed", seed, "--run-dir", tmp_path / f"run-{seed}")
        assert_same_run(group / f"seed-{seed}", tmp_path / f"run-{seed}")
        assert metric_rows(group / f"seed-{seed}") == metric_rows(tmp_path / f"run-{seed}")


def test_a_lane_says_in_its_log_how_it_went(group: Path) -> None:
    for seed in (1, 2, 3):
        assert "evaluation return" in (group / f"seed-{seed}" / "console.log").read_text()


def test_a_group_that_was_stopped_goes_on_to_the_same_bits(group: Path, tmp_path: Path) -> None:
    process = start(*TRAIN, "--seeds", 3, "--jobs", 2, "--run-dir", tmp_path / "group", cwd=tmp_path)
    wait_until(lambda: all(has_checkpoint(tmp_path / "group" / f"seed-{seed}") for seed in (1, 2, 3)), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) in (0, 130)  # 0: it had just ended
    succeed("resume", tmp_path / "group", "--jobs", 1, cwd=tmp_path)
    for seed in (1, 2, 3):
        assert_same_run(tmp_path / "group" / f"seed-{seed}", group / f"seed-{seed}")


def test_after_a_signal_every_lane_saves_and_the_group_says_how_to_go_on(tmp_path: Path) -> None:
    words = [*TRAIN, "--total-steps", 50_000_000, "--checkpoint-every", 0]
    process = start(*words, "--seeds", 3, "--jobs", 2, "--run-dir", tmp_path / "group", cwd=tmp_path)
    runs = [tmp_path / "group" / f"seed-{seed}" for seed in (1, 2, 3)]
    wait_until(lambda: all((run / "metrics.jsonl").exists() for run in runs), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 143
    said = (tmp_path / "output").read_text()
    assert f"SIGTERM: seed-1, seed-2, seed-3 not finished; continue with: birl resume {tmp_path / 'group'}" in said
    for run in runs:
        assert has_checkpoint(run)
        assert "SIGTERM: saved at" in (run / "console.log").read_text()


def test_a_lane_whose_numbers_are_not_finite_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    options = {"num_envs": 4, "rollout_length": 8, "minibatches": 1, "hidden_sizes": (8,), "total_steps": 600}
    sweep = {"learning_rate": [1e-3, 1e30]}
    summary = birl.train(
        "a2c", "CartPole-v1", backend="compiled", seeds=2, sweep=sweep, jobs=1, run_dir=tmp_path / "group",
        max_grad_norm=None, quiet=True, **{name: value for name, value in options.items() if name != "minibatches"},
    )  # fmt: skip
    good, bad = summary["points"]
    assert [lane["problem"] for lane in good["lanes"]] == [None, None]
    assert all("not" in lane["problem"] or "nan" in lane["problem"] for lane in bad["lanes"])
    assert all(lane["return_mean"] is not None for lane in good["lanes"])


def test_lanes_whose_process_was_killed_are_named(group: Path, tmp_path: Path) -> None:
    call_well(*TRAIN, "--seeds", 2, "--jobs", 1, "--run-dir", tmp_path / "group", "--total-steps", 64)
    run_dirs = [lane.run_dir for lane in read_group(tmp_path / "group").lanes]
    lanes = run_shares(run_dirs, LaneOptions(total_steps=10_000_000), 1, [])
    assert next(lanes) is None
    os.killpg(lanes.gi_frame.f_locals["shares"][0].program.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    ends = [end for end in lanes if end is not None]
    assert [end.run_dir for end in ends] == run_dirs
    assert all(end.problem == "its process was ended by SIGKILL" for end in ends)


def test_lanes_with_a_function_of_the_script_take_turns_in_this_process(tmp_path: Path) -> None:
    from birl.envs.compiled.classic import CartPole

    made: list[int] = []

    def mine() -> CartPole:
        made.append(os.getpid())
        return CartPole()

    options = {"num_envs": 2, "rollout_length": 8, "minibatches": 1, "hidden_sizes": (8,), "total_steps": 64}
    summary = birl.train(
        "ppo", make_env=mine, backend="compiled", seeds=2, run_dir=tmp_path / "group", quiet=True, eval_episodes=2,
        max_episode_steps=20, **options,
    )  # fmt: skip
    assert set(made) == {os.getpid()}
    assert [lane["problem"] for lane in summary["points"][0]["lanes"]] == [None, None]


def test_an_error_in_one_lane_leaves_the_others_alone(tmp_path: Path) -> None:
    call_well(*TRAIN, "--seeds", 2, "--jobs", 1, "--run-dir", tmp_path / "group", "--total-steps", 64)
    run_dirs = [lane.run_dir for lane in read_group(tmp_path / "group").lanes]
    (run_dirs[0] / "config.json").write_text("{")
    for checkpoint in (run_dirs[0] / "checkpoints").iterdir():
        if checkpoint.is_dir():
            (checkpoint / "manifest.json").write_text("{")
    ends = [end for end in take_turns(run_dirs, LaneOptions(total_steps=128), []) if end is not None]
    problems = {end.run_dir: end.problem for end in ends}
    assert problems[run_dirs[0]]
    assert problems[run_dirs[1]] is None
