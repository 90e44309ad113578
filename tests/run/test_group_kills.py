"""A group of runs is killed at random moments: nothing is lost, and nothing is done twice."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.config import ConfigError, RunConfig
from birl.run.checkpoint import checkpoints_in
from birl.run.groups.group_plan import GroupPlan, make_group, plan_group
from birl.run.groups.lane import is_finished
from tests.run.processes import SECONDS, assert_same_run, call_well, metric_rows, start, succeed
from tests.run.test_group import content_of, wait_until_free

SEEDS = (3, 4)
# A checkpoint after each update, so that a kill often hits the writing of one.
SETTINGS = [
    "--num-envs", 4, "--rollout-length", 16, "--epochs", 2, "--minibatches", 2, "--hidden-sizes", 16,
    "--checkpoint-every", 1, "--eval-episodes", 2,
]  # fmt: skip


def train_words(backend: str, total_steps: int, group: Path) -> list[Any]:
    task = ["train", "ppo", "CartPole-v1", *SETTINGS, "--backend", backend, "--total-steps", total_steps]
    return [*task, "--seeds", len(SEEDS), "--seed", SEEDS[0], "--jobs", 2, "--run-dir", group]


class Watch:
    """What a group has done so far, which it must neither lose nor do again."""

    def __init__(self, group: Path) -> None:
        self.runs = [group / f"seed-{seed}" for seed in SEEDS]
        self.group = group
        self.reached = dict.fromkeys(self.runs, 0)
        self.finished: dict[Path, dict[str, bytes]] = {}
        self.plan: bytes | None = None

    def look(self) -> None:
        """Compare the group with what was seen last."""
        if self.plan is None and (self.group / "group.json").exists():
            self.plan = (self.group / "group.json").read_bytes()
        assert self.plan is None or (self.group / "group.json").read_bytes() == self.plan
        for run in self.runs:
            newest = newest_of(run)
            assert newest >= self.reached[run], "a checkpoint was lost"
            self.reached[run] = newest
            if run in self.finished:
                assert content_of(run) == self.finished[run], "a run that had finished was touched again"
            elif is_finished(run):
                wait_until_free(run)
                self.finished[run] = content_of(run)

    def wait_for_progress(self, process: subprocess.Popen[str]) -> None:
        """Wait until a lane has saved something new, or until the process has ended."""
        end = time.monotonic() + SECONDS
        while process.poll() is None and all(newest_of(run) == steps for run, steps in self.reached.items()):
            assert time.monotonic() < end
            time.sleep(0.005)


def newest_of(run: Path) -> int:
    return max((int(path.name) for path in checkpoints_in(run / "checkpoints")), default=0)


def children_of(pid: int) -> list[int]:
    """The processes of the lanes that run now."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


def kill_often(train: list[Any], group: Path, kills: int, seed: int) -> list[str]:
    """Train a group that is killed so many times; what was killed each time.

    It is the group's own process, or that of lanes. Every fourth time it is killed as it starts.
    """
    rng = np.random.default_rng(seed)
    watch = Watch(group)
    killed: list[str] = []
    process = None
    while len(killed) < kills and not all(map(is_finished, watch.runs)):
        if process is None or process.poll() is not None:
            process = start(*(["resume", group] if watch.plan else train), cwd=group.parent)
        if len(killed) % 4 == 0:
            time.sleep(rng.uniform(0, 4))
        else:
            watch.wait_for_progress(process)
            time.sleep(rng.uniform(0, 0.2))
        lanes = children_of(process.pid)
        victim = int(rng.choice([process.pid, process.pid, *lanes]))
        if process.poll() is None:
            os.kill(victim, signal.SIGKILL)
            killed.append("group" if victim == process.pid else "lane")
            if victim == process.pid:
                process.wait(SECONDS)
                for run in filter(Path.exists, watch.runs):
                    wait_until_free(run)  # lanes end with their group
        watch.look()
    if process is not None:
        process.kill()
        process.wait(SECONDS)
    for run in filter(Path.exists, watch.runs):
        wait_until_free(run)
    watch.look()
    succeed(*(["resume", group] if watch.plan else train), cwd=group.parent)
    watch.look()
    return killed


def assert_same_group(group: Path, whole: Path) -> None:
    """Check that every lane ended in the same bits, with the same rows, each of them once."""
    for seed in SEEDS:
        lanes = group / f"seed-{seed}", whole / f"seed-{seed}"
        assert_same_run(*lanes)
        rows = [metric_rows(lane) for lane in lanes]
        assert rows[0] == rows[1]
    summaries = [json.loads((one / "summary.json").read_text()) for one in (group, whole)]
    for summary in summaries:
        assert summary["failed"] == {}
        for lane in summary["points"][0]["lanes"]:
            del lane["wall_seconds"]
    assert summaries[0]["points"] == summaries[1]["points"]


@pytest.mark.parametrize(
    ("backend", "kills", "total_steps"),
    [
        pytest.param("gymnasium", 2, 2_000, id="twice", marks=pytest.mark.later),
        pytest.param("gymnasium", 20, 30_000, id="twenty times", marks=pytest.mark.faults),
        pytest.param("compiled", 20, 30_000, id="twenty times, compiled", marks=pytest.mark.faults),
    ],
)
def test_a_group_that_is_killed_at_random_moments_ends_in_the_same_bits(backend, kills, total_steps, tmp_path):
    call_well(*train_words(backend, total_steps, tmp_path / "whole"))
    killed = kill_often(train_words(backend, total_steps, tmp_path / "group"), tmp_path / "group", kills, seed=1)
    assert len(killed) >= 0.75 * kills, f"it ended too soon to be killed: {killed}"
    assert kills < 10 or len(set(killed)) == 2, "groups and lanes were killed"
    assert_same_group(tmp_path / "group", tmp_path / "whole")


def small_plan(group: Path) -> GroupPlan:
    return plan_group(lambda _: birl.ppo.Config(run=RunConfig(run_dir=str(group), seed=SEEDS[0])), {}, len(SEEDS))


def test_a_group_that_was_killed_while_it_was_made_is_made_again(tmp_path):
    """Before group.json is written, nothing has been trained."""
    left = tmp_path / "seed-3" / "config.json"
    left.parent.mkdir()
    left.write_text("{")
    group, _ = make_group(small_plan(tmp_path), None, overwrite=False)
    assert [lane.seed for lane in group.lanes] == list(SEEDS)
    assert json.loads(left.read_text())["config"]["run"]["seed"] == 3


def test_a_run_that_is_where_a_lane_should_be_is_not_touched(tmp_path):
    (tmp_path / "seed-3").mkdir()
    (tmp_path / "seed-3" / "metrics.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="seed-3 holds a run; choose another run_dir"):
        make_group(small_plan(tmp_path), None, overwrite=False)
    assert content_of(tmp_path) == {"seed-3/metrics.jsonl": b"{}"}
