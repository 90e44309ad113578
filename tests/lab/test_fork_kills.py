"""Forks that are killed before their training begins, and what the next command makes of that."""

from pathlib import Path

import pytest

import birl
from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.branch import read_branch, write_first
from birl.run.checkpoint import checkpoints_in
from birl.run.directory import read_fork
from birl.run.groups.group_plan import make_group, plan_group
from birl.run.start import with_run
from tests.lab.test_fork import files_of, middle_of, train
from tests.run.processes import call, end_of


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    return train("compiled ppo", tmp_path_factory.mktemp("kills") / "parent")


def steps_of(run_dir: Path) -> list[int]:
    return [int(path.name) for path in checkpoints_in(run_dir / "checkpoints")]


def leave_lane(parent: Path, at: int, run_dir: Path) -> None:
    """Leave a lane as a process does that is killed while it makes a group of forks."""
    branch = read_branch(parent, at)
    run_dir.mkdir(parents=True)
    write_first(run_dir, branch, branch.config, {})


def leave_half(run_dir: Path) -> None:
    """Leave what a fork does that is killed while it writes its first checkpoint."""
    (run_dir / "checkpoints" / ".partial-1").mkdir(parents=True)
    (run_dir / "checkpoints" / ".partial-1" / "config.json").write_text("{")
    (run_dir / "fork.json").write_text("{}")


def test_lanes_of_a_killed_group_of_forks_are_made_again_from_the_checkpoint_now_asked_for(parent, tmp_path):
    early, *_, late = steps_of(parent)[:-1]
    assert early < late
    leave_lane(parent, late, tmp_path / "group" / "seed-1")
    leave_half(tmp_path / "group" / "seed-2")
    birl.fork(parent, early, seeds=2, jobs=1, run_dir=str(tmp_path / "group"), quiet=True)
    for seed in (1, 2):
        run_dir = tmp_path / "group" / f"seed-{seed}"
        fork = read_fork(run_dir)
        assert fork is not None
        assert fork.env_steps == early
        first, second, *_ = steps_of(run_dir)
        assert first == early
        assert second < late, "it was trained from there"
    assert end_of(tmp_path / "group" / "seed-1") == end_of(parent)


def test_a_group_of_runs_inherits_nothing_of_a_killed_group_of_forks(parent, tmp_path):
    leave_lane(parent, middle_of(parent), tmp_path / "seed-1")
    config = with_run(read_branch(parent).config, run_dir=str(tmp_path))
    group, _ = make_group(plan_group(lambda _: config, {}, 1), None, overwrite=False)
    assert list(files_of(group.lanes[0].run_dir)) == ["config.json"]


@pytest.mark.parametrize("has_metrics", [True, False])
def test_a_lane_that_has_begun_is_never_removed_nor_is_one_before_it_touched(parent, has_metrics, tmp_path):
    """It has metrics, or it was trained beyond the checkpoint that it began with."""
    leave_lane(parent, middle_of(parent), tmp_path / "seed-1")
    birl.fork(parent, middle_of(parent), run_dir=str(tmp_path / "seed-2"), keep_checkpoints=1, quiet=True)
    if not has_metrics:
        (tmp_path / "seed-2" / "metrics.jsonl").unlink()
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="seed-2 holds a run; choose another run_dir"):
        birl.fork(parent, seeds=2, total_steps=960, run_dir=str(tmp_path), quiet=True)
    assert files_of(tmp_path) == before


def test_a_lane_behind_a_link_is_refused_before_anything_is_removed(parent, tmp_path):
    leave_lane(parent, middle_of(parent), tmp_path / "other")
    before = files_of(tmp_path / "other")
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "seed-1").symlink_to(tmp_path / "other")
    with pytest.raises(CheckpointError, match="symbolic link"):
        birl.fork(parent, middle_of(parent), seeds=1, run_dir=str(tmp_path / "group"), quiet=True)
    assert files_of(tmp_path / "other") == before


def test_a_group_that_fails_while_it_is_made_leaves_nothing(parent, tmp_path):
    config = with_run(read_branch(parent).config, run_dir=str(tmp_path / "group"))

    def fail_at_the_second(run_dir: Path, lane) -> None:
        leave_half(run_dir)
        if lane.seed == 2:
            raise ConfigError("no such checkpoint")

    with pytest.raises(ConfigError, match="no such checkpoint"):
        make_group(plan_group(lambda _: config, {}, 2), None, False, None, fail_at_the_second)
    assert not (tmp_path / "group").exists()


def test_a_fork_that_was_killed_while_it_wrote_its_first_checkpoint_is_begun_again(parent, tmp_path):
    leave_half(tmp_path / "fork")
    code, said = call("resume", tmp_path / "fork")
    assert code != 0
    assert "holds no run" in said
    code, said = call("fork", parent, "--at", middle_of(parent), "--run-dir", tmp_path / "fork")
    assert code == 0, said
    assert end_of(tmp_path / "fork") == end_of(parent)


def test_a_plain_run_where_a_fork_was_killed_is_no_fork(tmp_path):
    leave_half(tmp_path / "run")
    train("ppo", tmp_path / "run")
    assert read_fork(tmp_path / "run") is None
    assert not list((tmp_path / "run" / "checkpoints").glob(".partial-*"))


def test_a_folder_of_other_checkpoints_is_not_taken_for_what_a_killed_fork_left(parent, tmp_path):
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mine" / "checkpoints" / "model.pt").write_text("mine")
    with pytest.raises(ConfigError, match=r"already holds a run \(checkpoints\)"):
        birl.fork(parent, middle_of(parent), run_dir=str(tmp_path / "mine"), quiet=True)
    assert files_of(tmp_path) == {"mine/checkpoints/model.pt": b"mine"}
