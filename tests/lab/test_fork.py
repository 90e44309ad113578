"""Forks: what they begin with, what they change, what they refuse, and that the parent stays."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.config import ConfigError, RunConfig
from birl.lab.branch import _misfit_alone, fold_seed, fork_directory, fork_texts, read_branch
from birl.lab.forking import plan_forks
from birl.run.checkpoint import checkpoints_in, load_checkpoint
from birl.run.configure import with_settings
from birl.run.directory import read_fork
from birl.run.groups.group_plan import read_group
from birl.run.history import by_settings, read_histories
from birl.run.start import stretched_text
from tests.run.processes import (
    assert_same_run,
    call,
    end_of,
    metric_rows,
    reseal,
    start,
    succeed,
    training_rows,
    wait_until,
)

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 8,
    "hidden_sizes": (8,),
    "eval_episodes": 1,
    "total_steps": 640,
    "checkpoint_every": 160,
    "keep_checkpoints": 9,
}
REPLAY: dict[str, Any] = {"replay_size": 512, "learning_starts": 64, "batch_size": 8, "rollout_length": 4}
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", {"epochs": 2, "minibatches": 2}),
    "recurrent ppo": ("ppo", "CartPole-v1", {"epochs": 1, "minibatches": 1, "core": "lstm", "core_size": 4}),
    "dqn": ("dqn", "CartPole-v1", REPLAY),
    "sac": ("sac", "Pendulum-v1", REPLAY),
    "acer": ("acer", "CartPole-v1", {"replay_size": 512, "learning_starts": 64}),
    "compiled ppo": ("ppo", "CartPole-v1", {"epochs": 1, "minibatches": 1, "backend": "compiled"}),
    "compiled dqn": ("dqn", "CartPole-v1", REPLAY | {"backend": "compiled"}),
    "actor-learners": (
        "a3c",
        "CartPole-v1",
        {"actor_learners": 2, "report_every": 32, "num_envs": 1, "pool": "serial"},
    ),
}


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as options."""
    found = []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        found += [f"--{name.replace('_', '-')}", *map(str, values)]
    return found


def train(task: str, run_dir: Path, **more: Any) -> Path:
    """A small run with several checkpoints, trained in this process."""
    algorithm, env_id, settings = TASKS[task]
    birl.train(algorithm, env_id, **SMALL | settings | more, run_dir=str(run_dir), quiet=True)
    return run_dir


def middle_of(run_dir: Path) -> int:
    """The steps of a checkpoint in the middle of a run."""
    steps = [int(path.name) for path in checkpoints_in(run_dir / "checkpoints")]
    assert len(steps) >= 3
    return steps[1]


def contents(run_dir: Path) -> dict[str, Any]:
    """The content of the last checkpoint; the metrics of actor-learners hold measured times."""
    last = load_checkpoint(checkpoints_in(run_dir / "checkpoints")[-1])
    arrays = {name: array.tobytes() for name, array in last.snapshot.arrays.items() if name != "metrics"}
    whole = end_of(run_dir)
    return whole if "metrics" not in last.snapshot.arrays else whole | {"snapshot.safetensors": arrays}


def files_of(run_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task", list(TASKS))
def test_a_fork_without_a_change_ends_in_the_same_bits_as_its_parent(task, tmp_path):
    """Both in processes of their own, at the command line."""
    algorithm, env_id, settings = TASKS[task]
    parent, fork = tmp_path / "parent", tmp_path / "parent-fork"
    succeed("train", algorithm, env_id, *words(SMALL | settings), "--run-dir", parent, cwd=tmp_path)
    before = files_of(parent)
    middle = middle_of(parent)
    assert f"at {middle:,} steps: no setting changed" in succeed("fork", parent, "--at", middle, cwd=tmp_path)
    assert contents(fork) == contents(parent)
    later = [row for row in training_rows(parent) if row["env_steps"] > middle]
    if "compiled" not in task:  # whose rows are at chunks, which depend on the clock
        assert training_rows(fork) == later
    assert files_of(parent) == before, "the parent is not touched"


def test_a_changed_setting_is_the_only_difference_and_fork_json_says_which(tmp_path):
    parent = train("ppo", tmp_path / "parent")
    middle = middle_of(parent)
    birl.fork(parent, middle, learning_rate=0.01, total_steps=960, run_dir=str(tmp_path / "fork"), quiet=True)
    first, at = (
        load_checkpoint(tmp_path / "fork" / "checkpoints" / f"{middle:09d}"),
        load_checkpoint(parent / "checkpoints" / f"{middle:09d}"),
    )
    assert all(np.array_equal(first.tensors[name], at.tensors[name]) for name in at.tensors)
    assert json.loads((tmp_path / "fork" / "fork.json").read_text()) == {
        "parent": "../parent",
        "checkpoint": f"{middle:09d}",
        "env_steps": middle,
        "changed": {
            "learning_rate": [{"kind": "linear", "values": [0.001, 0.0], "points": [1.0]}, 0.01],
            "run.total_steps": [640, 960],
        },
    }
    assert metric_rows(tmp_path / "fork")[0]["env_steps"] > middle
    assert metric_rows(tmp_path / "fork")[0]["optimizer/learning_rate"] == pytest.approx(0.01)
    assert int(checkpoints_in(tmp_path / "fork" / "checkpoints")[-1].name) >= 960


def test_another_end_names_the_schedules_that_it_moves(tmp_path):
    parent = train("ppo", tmp_path / "parent", learning_rate="linear:1e-3:0", clip_range=0.2)
    steps = middle_of(parent)
    branch = read_branch(parent, steps)

    def said(**settings: Any) -> list[str]:
        config = with_settings(branch.config, settings)
        return fork_texts(branch, config, branch.changes_to(config))[1:]

    before, after = (f"{1e-3 * (1 - steps / total):.4g}" for total in (640, 1280))
    assert said(total_steps=1280) == [
        f"total_steps is 1,280 now: schedules end there; at {steps} steps, learning_rate {before} -> {after}"
    ]
    assert said(total_steps=1280, learning_rate=1e-3) == [], "no setting is a schedule"
    assert said(epochs=3) == []


def test_the_fraction_of_a_falling_exploration_moves_with_the_end():
    config = birl.async_q.Config(run=RunConfig(total_steps=2000))
    assert stretched_text(config, 500, 1000) == (
        "end there; at 500 steps, learning_rate 0.00035 -> 0.000525, exploration_fraction is of the new total_steps"
    )


def test_a_fork_that_is_killed_at_once_is_resumed_exactly(tmp_path):
    parent = train("dqn", tmp_path / "parent")
    middle = middle_of(parent)
    process = start("fork", parent, "--at", middle, "--run-dir", "killed", cwd=tmp_path)
    wait_until(lambda: (tmp_path / "killed" / "config.json").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    succeed("resume", "killed", cwd=tmp_path)
    assert end_of(tmp_path / "killed") == end_of(parent)


def test_another_seed_is_another_continuation_of_the_same_networks(tmp_path):
    parent = train("dqn", tmp_path / "parent")
    middle = middle_of(parent)
    for name, seed in {"two": 2, "two again": 2, "three": 3}.items():
        birl.fork(parent, middle, seed=seed, run_dir=str(tmp_path / name), quiet=True)
    assert_same_run(tmp_path / "two", tmp_path / "two again")
    ends = [end_of(tmp_path / name)["state.safetensors"] for name in ("parent", "two", "three")]
    assert len(set(ends)) == 3
    first, at = (
        load_checkpoint(tmp_path / "two" / "checkpoints" / f"{middle:09d}"),
        load_checkpoint(parent / "checkpoints" / f"{middle:09d}"),
    )
    different = {name for name in at.tensors if not np.array_equal(first.tensors[name], at.tensors[name])}
    assert different == {".key"}
    replay = [name for name in at.snapshot.arrays if name.startswith("replay/")]
    assert replay
    assert all(np.array_equal(first.snapshot.arrays[name], at.snapshot.arrays[name]) for name in replay)


@pytest.mark.parametrize("task", ["ppo", "compiled dqn", "actor-learners", "acer"])
def test_another_seed_begins_new_episodes_exactly_wherever_the_environments_are(task, tmp_path):
    parent = train(task, tmp_path / "parent")
    middle = middle_of(parent)
    with birl.open_fork(parent, middle, seed=2, run_dir=str(tmp_path / "stopped"), quiet=True) as run:
        next(iter(run))
    birl.resume(tmp_path / "stopped", quiet=True)
    birl.fork(parent, middle, seed=2, run_dir=str(tmp_path / "fork"), quiet=True)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "fork")
    assert end_of(tmp_path / "fork")["state.safetensors"] != end_of(parent)["state.safetensors"]
    summary = json.loads((tmp_path / "fork" / "summary.json").read_text())
    assert summary["inexact_resumes"] == [], "new episodes were asked for"


def test_folded_keys_differ_by_seed_and_by_key():
    keys = np.arange(8, dtype=np.uint32).reshape(4, 2)
    folded = np.concatenate([fold_seed(keys, seed) for seed in range(5)])
    assert folded.dtype == np.uint32
    assert len({tuple(key) for key in folded}) == 20
    np.testing.assert_array_equal(fold_seed(keys[1], 3), fold_seed(keys, 3)[1])


def test_other_settings_of_the_environment_begin_new_episodes_with_them(tmp_path):
    parent = train("ppo", tmp_path / "parent")
    with birl.open_fork(parent, middle_of(parent), max_episode_steps=5, run_dir=str(tmp_path / "fork")) as run:
        for _ in run:
            pass
    lengths = [row["episode/length"] for row in training_rows(tmp_path / "fork")]
    assert lengths[-1] == 5


REFUSED = [
    ("ppo", {"hidden_sizes": (16,)}, "hidden_sizes [8] -> [16] cannot be changed in a fork"),
    ("ppo", {"num_envs": 2, "learning_rate": 1.0}, "num_envs 4 -> 2 cannot be changed in a fork"),
    ("ppo", {"optimizer": "rmsprop", "clip_range": 0.3}, "optimizer adam -> rmsprop cannot be changed in a fork"),
    ("ppo", {"core": "lstm"}, "core feedforward -> lstm cannot be changed in a fork"),
    ("ppo", {"backend": "compiled"}, "backend gymnasium -> compiled cannot be changed in a fork"),
    ("ppo", {"env": "Acrobot-v1"}, "env CartPole-v1 -> Acrobot-v1 cannot be changed in a fork: the observation space"),
    ("ppo", {"total_steps": 160}, "total_steps 160 must be more than"),
    ("ppo", {"learning_rat": 1.0}, "ppo has no setting 'learning_rat'"),
    ("dqn", {"replay_size": 1024}, "replay_size 512 -> 1024 cannot be changed in a fork"),
    ("dqn", {"rollout_length": 8}, "rollout_length 4 -> 8 cannot be changed in a fork"),
    ("dqn", {"prioritized": True, "eval_episodes": 2}, "prioritized False -> True cannot be changed in a fork: only"),
]


@pytest.fixture(scope="module")
def parents(tmp_path_factory) -> dict[str, Path]:
    return {task: train(task, tmp_path_factory.mktemp("parents") / task) for task in ("ppo", "dqn", "compiled dqn")}


@pytest.mark.parametrize(("task", "settings", "said"), REFUSED, ids=[str(settings) for _, settings, _ in REFUSED])
def test_settings_that_do_not_fit_are_refused_by_name_and_nothing_is_left(task, settings, said, parents, tmp_path):
    parent = parents[task]
    with pytest.raises(ConfigError) as problem:
        birl.fork(parent, middle_of(parent), **settings, run_dir=str(tmp_path / "fork"), quiet=True)
    assert said in str(problem.value)
    assert not (tmp_path / "fork").exists()


def test_a_change_that_is_not_valid_alone_is_not_named_as_what_does_not_fit(parents):
    branch = read_branch(parents["ppo"])
    assert _misfit_alone(branch, "state_dependent_std", True, None) is None  # it needs continuous actions
    assert _misfit_alone(branch, "hidden_sizes", [16], None) is not None


def test_an_unknown_step_is_refused_with_the_steps_that_there_are(parents):
    steps = ", ".join(f"{int(path.name):,}" for path in checkpoints_in(parents["ppo"] / "checkpoints"))
    with pytest.raises(ConfigError, match=f"at 161: .* there are {steps}"):
        birl.fork(parents["ppo"], 161)
    with pytest.raises(ConfigError, match="no best checkpoint"):
        birl.fork(parents["ppo"], "best")


def test_the_best_checkpoint_can_be_forked_and_the_best_of_the_fork_begins_anew(tmp_path):
    parent = train("ppo", tmp_path / "parent", eval_every=160, keep_checkpoints=1, total_steps=960)
    best = json.loads((parent / "checkpoints" / "best.json").read_text())
    with birl.open_fork(parent, "best", total_steps=1280, eval_every=0, quiet=True) as run:
        assert run.env_steps == int(best["checkpoint"])
    assert not (tmp_path / "parent-fork" / "checkpoints" / "best.json").exists()


def test_a_damaged_newest_checkpoint_is_reported_and_the_one_before_is_forked(tmp_path):
    parent = train("ppo", tmp_path / "parent")
    *_, before, newest = checkpoints_in(parent / "checkpoints")
    (newest / "state.safetensors").write_bytes(b"damaged")
    code, said = call("fork", parent)
    assert code == 0, said
    assert f"using {before.name} instead" in said
    fork = read_fork(tmp_path / "parent-fork")
    assert fork is not None
    assert (fork.parent, fork.checkpoint) == (parent, before.name)


def test_a_run_that_is_training_can_be_forked(tmp_path):
    with birl.start("ppo", "CartPole-v1", **SMALL, minibatches=1, run_dir=str(tmp_path / "parent"), quiet=True) as run:
        updates = iter(run)
        while not checkpoints_in(tmp_path / "parent" / "checkpoints"):
            next(updates)
        birl.fork(tmp_path / "parent", quiet=True)
        for _ in updates:
            pass
    assert end_of(tmp_path / "parent-fork") == end_of(tmp_path / "parent")


def test_forks_are_beside_their_parent_and_numbered_and_forks_of_lanes_beside_the_group(tmp_path):
    parent = train("ppo", tmp_path / "parent")
    for _ in range(2):
        birl.fork(parent, middle_of(parent), quiet=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parent", "parent-fork", "parent-fork-2"]
    (tmp_path / "group" / "seed-1").mkdir(parents=True)
    (tmp_path / "group" / "group.json").write_text("{}")
    assert fork_directory(tmp_path / "group" / "seed-1") == tmp_path / "group-seed-1-fork"


def test_forks_of_trials_are_beside_the_search(tmp_path):
    trial = tmp_path / "search" / "trials" / "0003"
    (trial / "seed-1").mkdir(parents=True)
    (trial / "group.json").write_text("{}")
    (tmp_path / "search" / "tune.json").write_text("{}")
    assert fork_directory(trial / "seed-1") == tmp_path / "search-trials-0003-seed-1-fork"
    assert fork_directory(trial) == tmp_path / "search-trials-0003-fork"


def test_the_seconds_of_a_fork_are_its_own(tmp_path):
    parent = train("ppo", tmp_path / "parent")
    birl.fork(parent, middle_of(parent), run_dir=str(tmp_path / "fork"), quiet=True)
    first = load_checkpoint(checkpoints_in(tmp_path / "fork" / "checkpoints")[0])
    assert first.manifest["progress"]["wall_seconds"] == 0
    assert first.manifest["progress"]["cpu_seconds"] == 0


def test_a_group_of_forks_begins_with_the_run_itself_and_other_continuations(parents, tmp_path):
    parent = parents["compiled dqn"]  # whose lanes share a process
    middle = middle_of(parent)
    group = tmp_path / "group"
    sweep = ["--seeds", 2, "--sweep", "learning_rate=1e-4,1e-3", "--jobs", 1, "--run-dir", group]
    code, said = call("fork", parent, "--at", middle, *sweep)
    assert code == 0, said
    lanes = {lane.name: lane.run_dir for lane in read_group(group).lanes}
    assert list(lanes) == [f"learning_rate={rate}/seed-{seed}" for seed in (1, 2) for rate in (0.0001, 0.001)]
    ends = {end_of(run_dir)["state.safetensors"] for run_dir in lanes.values()}
    assert len(ends) == 4
    for run_dir in lanes.values():
        fork = read_fork(run_dir)
        assert fork is not None
        assert (fork.parent, fork.env_steps) == (parent, middle)
        assert checkpoints_in(run_dir / "checkpoints")[0].name == f"{middle:09d}"
    single = birl.fork(parent, middle, learning_rate=1e-3, seed=2, run_dir=str(tmp_path / "single"), quiet=True)
    lane = json.loads((lanes["learning_rate=0.001/seed-2"] / "summary.json").read_text())
    assert end_of(tmp_path / "single") == end_of(lanes["learning_rate=0.001/seed-2"])
    assert lane["evaluation"] == single["evaluation"]


def test_the_first_seed_of_a_group_of_forks_is_the_parent_itself(tmp_path):
    parent = train("compiled ppo", tmp_path / "parent")
    birl.fork(parent, middle_of(parent), seeds=2, jobs=1, quiet=True)
    assert end_of(tmp_path / "parent-fork" / "seed-1") == end_of(parent)
    assert end_of(tmp_path / "parent-fork" / "seed-2")["state.safetensors"] != end_of(parent)["state.safetensors"]


def test_every_run_of_a_group_is_forked_where_keep_every_kept_it(tmp_path):
    algorithm, env_id, settings = TASKS["compiled ppo"]
    small = SMALL | settings | {"checkpoint_every": 0, "keep_checkpoints": 1, "keep_every": 200}
    group = tmp_path / "group"
    birl.train(algorithm, env_id, **small, seeds=2, jobs=1, run_dir=str(group), quiet=True)
    birl.fork(group, 200, entropy_weight=0.1, jobs=1, quiet=True)
    forks = [read_fork(tmp_path / "group-fork" / f"seed-{seed}") for seed in (1, 2)]
    assert [fork.parent.name for fork in forks if fork] == ["seed-1", "seed-2"]
    assert all(200 <= fork.env_steps < 400 for fork in forks if fork)
    assert len(by_settings(read_histories(tmp_path / "group-fork"))) == 1, "they are seeds of one experiment"
    for wrong, said in (({"seeds": 3}, "seeds 3: "), ({"seed": 9}, "seed tells the runs of")):
        with pytest.raises(ConfigError, match=said):
            birl.fork(group, 200, **wrong, quiet=True)
    with pytest.raises(ConfigError, match=r"at 100: .* there are"):
        birl.fork(group, 100, quiet=True)


def test_a_group_that_trains_is_forked_from_its_newest_checkpoints_while_it_removes_old_ones(tmp_path, monkeypatch):
    algorithm, env_id, settings = TASKS["compiled ppo"]
    group = tmp_path / "group"
    small = SMALL | settings | {"seeds": 1, "jobs": 1, "run_dir": str(group), "quiet": True}
    birl.train(algorithm, env_id, **small)
    *_, before, newest = checkpoints_in(group / "seed-1" / "checkpoints")
    hidden = newest.rename(tmp_path / newest.name)

    def train_on(*given: Any) -> Any:
        """Plan; meanwhile the parent saves a newer checkpoint and removes the older one."""
        plan = plan_forks(*given)
        if before.exists():
            hidden.rename(newest)
            shutil.rmtree(before)
        return plan

    monkeypatch.setattr("birl.lab.forking.plan_forks", train_on)
    birl.fork(group, total_steps=960, jobs=1, quiet=True)
    fork = read_fork(tmp_path / "group-fork" / "seed-1")
    assert fork is not None
    assert fork.env_steps == int(newest.name)


def test_a_group_of_forks_says_what_is_damaged_in_its_parents(tmp_path):
    parent = train("compiled ppo", tmp_path / "parent")
    *_, before, newest = checkpoints_in(parent / "checkpoints")
    (newest / "state.safetensors").write_bytes(b"damaged")
    code, said = call("fork", parent, "--seeds", 2, "--jobs", 1)
    assert code == 0, said
    assert said.count(f"using {before.name} instead") == 1


def test_the_swept_settings_of_the_environment_still_tell_the_forks_of_a_group_apart(tmp_path):
    algorithm, env_id, settings = TASKS["compiled ppo"]
    sweep = {"max_episode_steps": [50, 100]}
    group = str(tmp_path / "group")
    birl.train(algorithm, env_id, **SMALL | settings, sweep=sweep, jobs=1, run_dir=group, quiet=True)
    with pytest.raises(ConfigError, match="max_episode_steps tells the runs of"):
        birl.fork(group, total_steps=960, max_episode_steps=70, jobs=1, quiet=True)
    assert not (tmp_path / "group-fork").exists()


def test_a_parent_and_its_fork_are_plotted_compared_and_reported(parents, tmp_path):
    parent = parents["ppo"]
    birl.fork(parent, middle_of(parent), learning_rate=0.01, run_dir=str(tmp_path / "fork"), quiet=True)
    both = parent, tmp_path / "fork"
    options = {"plot": ["--out", tmp_path / "plot.png"], "compare": [], "report": ["--out", tmp_path / "report.html"]}
    for command, more in options.items():
        code, said = call(command, *both, *more)
        assert code == 0, said
    assert (tmp_path / "plot.png").stat().st_size > 0
    assert "fork" in (tmp_path / "report.html").read_text()


def test_a_group_of_forks_that_cannot_be_made_leaves_nothing(parents, tmp_path):
    with pytest.raises(ConfigError, match="hidden_sizes"):
        birl.fork(parents["ppo"], sweep={"hidden_sizes": [(8,), (16,)]}, total_steps=1280, run_dir=str(tmp_path / "g"))
    assert not (tmp_path / "g").exists()


def test_a_strangers_run_that_names_a_module_is_forked_only_with_trust(tmp_path, monkeypatch):
    parent = train("ppo", tmp_path / "parent", max_episode_steps=7)
    checkpoint = checkpoints_in(parent / "checkpoints")[1]
    settings = json.loads((checkpoint / "config.json").read_text())
    settings["env"]["id"] = "tests.envs.troubled:CartPole-v1"
    (checkpoint / "config.json").write_text(json.dumps(settings))
    reseal(checkpoint)
    with pytest.raises(ConfigError, match=r"would import the module tests\.envs\.troubled"):
        birl.fork(parent, int(checkpoint.name), quiet=True)
    assert not (tmp_path / "parent-fork").exists()
    birl.fork(parent, int(checkpoint.name), trust=True, quiet=True)
    birl.fork(tmp_path / "parent-fork", int(checkpoint.name), quiet=True)  # it is the user's own now


def test_a_fork_has_the_settings_that_its_checkpoint_had(tmp_path):
    """The parent was trained longer afterwards, with schedules that end later."""
    parent = train("ppo", tmp_path / "parent")
    middle = middle_of(parent)
    birl.fork(parent, middle, run_dir=str(tmp_path / "before"), quiet=True)
    birl.resume(parent, total_steps=960, quiet=True)
    code, said = call("fork", parent, "--at", middle, "--run-dir", tmp_path / "after")
    assert code == 0, said
    assert "config.json differs" not in said
    assert_same_run(tmp_path / "before", tmp_path / "after")
