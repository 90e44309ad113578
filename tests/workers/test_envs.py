"""Environments in worker processes: the same run as here, also after faults; nothing is left."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from birl.config import ConfigError, EnvConfig
from birl.envs.actions import flat_action
from birl.envs.make import make_env, make_envs
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import is_composite
from birl.errors import EnvError
from birl.types import Snapshot
from birl.workers import faults
from birl.workers.envs import WorkerEnvs
from tests.envs.troubled import CHILD, EXIT, HANG, HANG_WITH_CHILD, KILL, RAISE, RAISED_AT
from tests.run.processes import SECONDS

# What is well takes microseconds for a step, or a little more on a busy machine.
TROUBLED = EnvConfig("tests.envs.troubled:Troubled-v0", 4, workers=2, step_timeout=5.0)

SAME = {
    "LunarLander": EnvConfig("LunarLander-v3", 5),
    "LunarLander with wind, hidden velocities": EnvConfig(
        "LunarLander-v3", 3, hide_velocities=True, kwargs={"enable_wind": True}
    ),
    "CartPole": EnvConfig("CartPole-v1", 7),
    "Pendulum": EnvConfig("Pendulum-v1", 3, max_episode_steps=30),
    "masks in info": EnvConfig("birl/ProbeMask-v0", 4),
    "masks of some environments only": EnvConfig("tests.envs.troubled:SometimesMasked-v0", 4, kwargs={"limit": 5}),
    "nested Dict with a mask": EnvConfig("tests.envs.troubled:DictCounting-v0", 3),
    "Dict with images": EnvConfig("birl/ProbeDict-v0", 4),
    "a tree of actions": EnvConfig("tests.envs.hybrid:Hybrid-v0", 4, kwargs={"masks": "none"}),
}


def random_actions(envs, count, seed=0):
    space = envs.action_space
    space.seed(seed)
    samples = [[space.sample() for _ in range(envs.num_envs)] for _ in range(count)]
    return [np.array([flat_action(space, sample) for sample in row] if is_composite(space) else row) for row in samples]


def serial(config):
    return make_envs(replace(config, workers=0), 0)


def written(snapshot):
    """The snapshot as it is after being written as JSON and read again."""
    return Snapshot(snapshot.arrays, json.loads(json.dumps(snapshot.values)), snapshot.exact, snapshot.reason)


def assert_same_world(left, right):
    np.testing.assert_equal(left.arrays, right.arrays)
    assert {name: array.dtype for name, array in left.arrays.items()} == {
        name: array.dtype for name, array in right.arrays.items()
    }
    assert json.dumps(left.values, sort_keys=True) == json.dumps(right.values, sort_keys=True)
    assert (left.exact, left.reason) == (right.exact, right.reason)


def alive(pid):
    """Whether the process runs; a zombie, which only waits for its parent to notice, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def children():
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True
    ).stdout.split()
    return {int(pid) for pid in listed if alive(int(pid))}


def left():
    """Processes, descriptors, mappings and segments of shared memory."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:birl")
    return children(), len(os.listdir("/proc/self/fd")), mapped, os.listdir("/dev/shm")


@pytest.fixture(autouse=True)
def _nothing_left():
    """Every test leaves what it found and no more."""
    before = left()
    yield
    assert left() == before


# The same run.


@pytest.mark.parametrize("config", SAME.values(), ids=SAME.keys())
def test_the_same_run_and_the_same_snapshots_as_in_this_process(config):
    with serial(config) as alone, make_envs(replace(config, workers=2), 9) as envs:
        assert (envs.observation_space, envs.action_space, envs.num_envs) == (
            alone.observation_space,
            alone.action_space,
            alone.num_envs,
        )
        for seed in (0, 1):
            np.testing.assert_equal(envs.reset(seed), alone.reset(seed))
            resets = 0
            for t, actions in enumerate(random_actions(envs, 250)):
                step = envs.step(actions)
                expected = alone.step(actions)
                np.testing.assert_equal(tuple(step), tuple(expected))
                resets += (~step.valid).sum()
                if t % 50 == 0:
                    assert_same_world(envs.snapshot(), alone.snapshot())
            assert resets > 0
            assert step.rewards.dtype == np.float32
            assert envs.faults == []


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing_nor_does_the_hash_seed(workers, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "123")
    config = EnvConfig("LunarLander-v3", 4)
    with serial(config) as alone, make_envs(replace(config, workers=workers), 0) as envs:
        assert len(envs.pids) == workers
        np.testing.assert_equal(envs.reset(3), alone.reset(3))
        for actions in random_actions(envs, 200):
            np.testing.assert_equal(tuple(envs.step(actions)), tuple(alone.step(actions)))


def test_what_was_returned_never_changes_afterwards():
    with make_envs(replace(SAME["nested Dict with a mask"], workers=2), 0) as envs:
        first, masks = envs.reset(0)
        returned = [{**first, "masks": masks}]
        for actions in random_actions(envs, 6):
            step = envs.step(actions)
            returned.append(
                {**step.observations, "masks": step.action_masks, "rewards": step.rewards, "valid": step.valid}
            )
            for earlier, later in pairwise(returned):
                assert not any(np.shares_memory(earlier[name], later[name]) for name in earlier)
        copies = [{name: array.copy() for name, array in row.items()} for row in returned]
        for actions in random_actions(envs, 6, seed=1):
            envs.step(actions)
        np.testing.assert_equal(returned, copies)


def test_a_worker_imports_no_jax():
    with make_envs(replace(SAME["CartPole"], workers=1), 0) as envs:
        assert "jaxlib" not in Path(f"/proc/{envs.pids[0]}/maps").read_text()


# Settings.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(workers=-1), "env.workers -1 is negative; use 0"),
        (EnvConfig(num_envs=2, workers=3), "env.workers 3 is more than env.num_envs 2; use at most"),
        (EnvConfig(backend="envpool", workers=2), "env.workers 2 does not go with env.backend 'envpool'"),
        (EnvConfig(workers=1, step_timeout=0.0), "env.step_timeout 0.0 is not more than 0"),
        (EnvConfig("Nowhere-v0", 1, workers=1), "env.id 'Nowhere-v0' is not registered"),
        (EnvConfig("CartPole-v1", 1, workers=1, kwargs={"colour": 3}), "env.kwargs {'colour': 3} do not fit"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(config, message):
    with pytest.raises(ConfigError, match=message):
        make_envs(config, 0)


def test_an_environment_that_cannot_be_made_says_why():
    with pytest.raises(RuntimeError, match=r"environment 0 cannot be made: ZeroDivisionError: mass is zero\nTraceback"):
        make_envs(EnvConfig("tests.envs.troubled:Broken-v0", 2, workers=2), 0)


def test_misuse_raises_at_once_and_does_no_harm():
    envs = make_envs(TROUBLED, 0)
    with pytest.raises(RuntimeError, match=r"have not been reset; call reset"):
        envs.step(np.ones(4, int))
    assert not envs.snapshot().exact
    envs.reset(0)
    for actions in (np.ones(3, int), np.ones(5, int), np.ones((4, 1), int), np.ones(4)):
        with pytest.raises(ValueError, match="actions have"):
            envs.step(actions)
    assert envs.step(np.ones(4, int)).observations[:, 1].tolist() == [1] * 4
    envs.close()
    envs.close()
    for call in (lambda: envs.step(np.ones(4, int)), lambda: envs.reset(0)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


# Accidents.

ACCIDENTS = {
    RAISE: f"environment 2 raised in step: ZeroDivisionError: mass is zero ({RAISED_AT})",
    KILL: "its process was ended by SIGKILL",
    EXIT: "its process exited with code 3",
    HANG: "no answer within 5.0 seconds",
}


def test_an_accident_is_a_reset_of_its_workers_environments_and_no_others_notice():
    config = replace(TROUBLED, kwargs={"limit": 9})
    with make_envs(config, 0) as envs, serial(config) as alone:
        np.testing.assert_equal(envs.reset(0), alone.reset(0))
        names = set()
        for number, (accident, reason) in enumerate(ACCIDENTS.items()):
            for _ in range(6):
                np.testing.assert_equal(
                    envs.step(np.ones(4, int)).observations[:2], alone.step(np.ones(4, int)).observations[:2]
                )
            victim = envs.pids[1]
            why = re.escape(reason.replace("its process", f"process {victim}"))
            with pytest.warns(UserWarning, match=f"environments 2 to 3 began new episodes in a new process .*: {why}"):
                step = envs.step(np.array([1, 1, accident, 1]))
            expected = alone.step(np.ones(4, int))
            for ours, theirs in zip(step[:5], expected[:5], strict=True):
                np.testing.assert_array_equal(ours[:2], theirs[:2])
            assert step.observations[2:, 1:].tolist() == [[0, 0], [0, 0]]
            names |= set(step.observations[2:, 0].tolist())
            assert step.rewards[2:].tolist() == [0, 0]
            assert not (step.valid | step.terminated | step.truncated)[2:].any()
            assert gone(victim)
            assert len(envs.faults) == number + 1
            fault = envs.faults[-1]
            assert (fault.who, fault.index) == ("environments 2 to 3", 1)
            assert (fault.step, fault.pid, fault.reason) == (7 * (number + 1), victim, reason)
        after = envs.step(np.ones(4, int))
        assert after.valid[2:].all()
        assert after.observations[2:, 1].tolist() == [1, 1]
        assert len(names) == 2 * len(ACCIDENTS)  # no episode came twice


def test_accidents_in_several_workers_at_once_cost_one_timeout_and_take_what_they_started_along():
    with make_envs(replace(TROUBLED, workers=4), 0) as envs:
        envs.reset(0)
        envs.step(np.ones(4, int))
        before = envs.pids
        with pytest.warns(UserWarning, match="new episodes"):
            step = envs.step(np.array([HANG, HANG_WITH_CHILD, RAISE, 1]))
        assert step.valid.tolist() == [False, False, False, True]
        assert step.observations[:, 1].tolist() == [0, 0, 0, 2]
        assert [fault.index for fault in envs.faults] == [0, 1, 2]
        assert envs.pids[3] == before[3]
        assert all(gone(pid) for pid in before[:3])
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if alive(path.parent.name)]
    assert "\0".join(CHILD).encode() + b"\0" not in running


def test_a_worker_killed_between_steps_is_replaced_in_the_next():
    with make_envs(TROUBLED, 0) as envs:
        envs.reset(0)
        envs.step(np.ones(4, int))
        os.kill(envs.pids[0], signal.SIGKILL)
        snapshot = envs.snapshot()
        assert not snapshot.exact
        assert snapshot.reason == "environments 0 to 1 failed: its process was ended by SIGKILL"
        with pytest.warns(UserWarning, match="SIGKILL"):
            assert envs.step(np.ones(4, int)).valid.tolist() == [False, False, True, True]
        assert envs.snapshot().exact
        with pytest.warns(UserWarning, match="not exact"):
            envs.restore(snapshot)
        assert envs.fresh.all()


def test_signals_meant_for_the_parent_do_not_disturb_workers():
    with make_envs(TROUBLED, 0) as envs:
        envs.reset(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(envs.pids[0], number)
        assert envs.step(np.ones(4, int)).valid.all()
        assert envs.faults == []
        assert os.getpgid(envs.pids[0]) != os.getpgid(0)  # ctrl-C in a terminal does not even reach them


def play(envs, steps):
    envs.reset(0)
    for _ in range(steps):
        envs.step(np.ones(envs.num_envs, int))


@pytest.mark.parametrize("way", [{"raise_at": 1}, {"raise_in_reset": True}], ids=["in step", "in reset"])
@pytest.mark.filterwarnings("ignore:environment")
def test_an_error_that_returns_at_once_is_final_and_keeps_its_name(way, monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 2)
    with make_envs(replace(TROUBLED, num_envs=1, workers=1, kwargs=way), 0) as envs:
        with pytest.raises(
            RuntimeError,
            match=r"environment 0 failed 3 times in a row: environment 0 .* zero \(.*.py, line \d+\)\nTraceback",
        ):
            play(envs, 9)
        assert len(envs.faults) == 3


@pytest.mark.filterwarnings("ignore:environment")
def test_an_error_that_every_episode_hits_is_final_however_late_it_comes(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 2)
    with make_envs(replace(TROUBLED, num_envs=2, workers=1, kwargs={"bug_at": 40}), 0) as envs:
        with pytest.raises(
            RuntimeError,
            match=r"environments 0 to 1 failed 3 times in a row: .* mass is zero \(.*.py, line \d+\)\nTraceback",
        ):
            play(envs, 999)
        assert [fault.step for fault in envs.faults] == [40, 80, 120]


@pytest.mark.filterwarnings("ignore:environment")
def test_errors_with_whole_episodes_between_are_not_a_row_but_are_counted(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 1)
    monkeypatch.setattr(faults, "MOST_FAULTS", 3)
    with make_envs(replace(TROUBLED, num_envs=1, workers=1, kwargs={"raise_at": 6, "limit": 5}), 0) as envs:
        with pytest.raises(
            RuntimeError, match=r"environment 0 failed after 3 faults in all: environment 0 .* mass is zero"
        ):
            play(envs, 99)
        assert [fault.step for fault in envs.faults] == [7, 14, 21, 28]


@pytest.mark.filterwarnings("ignore:environment")
def test_an_environment_that_cannot_begin_again_after_whole_episodes_is_not_tried_for_ever(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 2)
    with make_envs(replace(TROUBLED, num_envs=1, workers=1, kwargs={"limit": 3}), 0) as envs:
        play(envs, 3)
        monkeypatch.setattr(envs, "_config", replace(envs._config, kwargs={"raise_in_reset": True}))
        os.kill(envs.pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="environment 0 failed 3 times"):
            envs.step(np.ones(1, int))


@pytest.mark.parametrize("way", ["quits", "wrong observation", "wrong flag"])
def test_what_breaks_the_rules_in_a_worker_is_told_as_in_this_process(way):
    kwargs = {"quits": {"quits": True}, "wrong observation": {"shape": 1}, "wrong flag": {"flag": "nan"}}[way]
    kind = "Troubled" if way == "quits" else "Unruly"
    config = EnvConfig(f"tests.envs.troubled:{kind}-v0", 2, kwargs=kwargs)
    said = []
    for workers in (0, 2):
        with make_envs(replace(config, workers=workers), 0) as envs:
            envs.reset(0)
            if way == "quits" and workers:
                with pytest.warns(UserWarning, match="environment 1 raised in step: SystemExit: 0"):
                    assert envs.step(np.array([1, RAISE])).valid.tolist() == [True, False]
                continue
            with pytest.raises((EnvError, RuntimeError)) as raised:
                envs.step(np.array([1, RAISE if way == "quits" else 1]))
            said.append(str(raised.value))
    assert len(set(said)) == 1


def test_an_interrupted_step_must_be_followed_by_a_reset():
    def interrupt(number, frame):
        raise KeyboardInterrupt

    with make_envs(replace(TROUBLED, step_timeout=60.0), 0) as envs, serial(TROUBLED) as alone:
        envs.reset(0)
        previous = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([1, 1, HANG, 1]))
        signal.signal(signal.SIGALRM, previous)
        with pytest.raises(RuntimeError, match="the last step was interrupted; call reset"):
            envs.step(np.ones(4, int))
        assert not envs.snapshot().exact
        np.testing.assert_equal(envs.reset(5), alone.reset(5))
        np.testing.assert_equal(tuple(envs.step(np.ones(4, int))), tuple(alone.step(np.ones(4, int))))


def test_episodes_that_an_accident_cut_are_not_counted():
    import jax.numpy as jnp

    from birl.rollouts.source import Collector
    from birl.types import Action

    def always_one(policy, observations, memory, resets, masks, key):
        return Action(jnp.ones(resets.shape, jnp.int32), memory)

    config = replace(TROUBLED, num_envs=2, workers=2, kwargs={"limit": 4, "raise_at": 11})
    with make_envs(config, 0) as envs:
        collector = Collector(envs, always_one, 5, ())
        collector.start(0)
        with pytest.warns(UserWarning, match="mass is zero"):
            rollouts = [collector.collect((), np.array([0, k], np.uint32)) for k in range(4)]
    # Each counts 4 + 4 + 2 steps and two resets, is cut in its third episode, and begins again.
    valid = np.concatenate([rollout.valid for rollout in rollouts])[:, 0]
    assert np.flatnonzero(~valid).tolist() == [4, 9, 12, 17]
    assert list(collector.episode_stats.recent) == [(11.0 + 21 + 31 + 41, 4)] * 6
    assert collector.episode_stats.lengths.tolist() == [2, 2]
    assert collector.episode_stats.returns.tolist() == [11.0 + 21] * 2


# Snapshots.


@pytest.mark.parametrize("name", ["LunarLander", "nested Dict with a mask", "masks of some environments only"])
def test_a_snapshot_is_restored_by_any_number_of_workers(name):
    config = SAME[name]
    with (
        serial(config) as alone,
        make_envs(replace(config, workers=2), 0) as two,
        make_envs(replace(config, workers=3), 0) as three,
    ):
        alone.reset(7)
        two.reset(1)
        for actions in random_actions(alone, 170):
            alone.step(actions)
        for steps in (0, 1, 2, 60):
            for actions in random_actions(alone, steps):
                alone.step(actions)
            start = two.restore(written(alone.snapshot()))
            np.testing.assert_equal(three.restore(written(two.snapshot())), start)
            with serial(config) as again:
                np.testing.assert_equal(again.restore(written(three.snapshot())), start)
                assert_same_world(three.snapshot(), alone.snapshot())
                assert not three.fresh.any()
                for actions in random_actions(alone, 40, seed=5):
                    expected = tuple(alone.step(actions))
                    for envs in (two, three, again):
                        np.testing.assert_equal(tuple(envs.step(actions)), expected)
                assert_same_world(three.snapshot(), alone.snapshot())


def test_a_snapshot_after_an_accident_is_exact():
    with make_envs(TROUBLED, 0) as envs, serial(TROUBLED) as alone:
        envs.reset(0)
        for _ in range(3):
            envs.step(np.ones(4, int))
        with pytest.warns(UserWarning, match="mass is zero"):
            envs.step(np.array([RAISE, 1, 1, 1]))
        for _ in range(3):
            step = envs.step(np.ones(4, int))
        snapshot = written(envs.snapshot())
        assert snapshot.exact
        assert snapshot.arrays["starts"].tolist() == [4, 4, 0, 0]
        np.testing.assert_equal(alone.restore(snapshot)[0], step.observations)
        assert not alone.fresh.any()
        np.testing.assert_equal(tuple(envs.step(np.ones(4, int))), tuple(alone.step(np.ones(4, int))))
        assert_same_world(envs.snapshot(), alone.snapshot())


def test_environments_that_cannot_be_lived_again_begin_the_same_new_episodes_as_in_this_process():
    config = EnvConfig("tests.envs.troubled:Unrepeatable-v0", 6, kwargs={"limit": 4})
    with serial(config) as alone, make_envs(replace(config, workers=2), 0) as envs:
        alone.reset(0)
        for _ in range(12):
            alone.step(np.ones(6, int))
        snapshot = written(alone.snapshot())
        with pytest.warns(
            UserWarning,
            match=r"environments \(. is the first\) began a new episode; replaying its actions gave a different",
        ):
            start = envs.restore(snapshot)
        with serial(config) as again:
            with pytest.warns(UserWarning, match="not exact"):
                np.testing.assert_equal(again.restore(snapshot), start)
            np.testing.assert_array_equal(envs.fresh, again.fresh)
            assert 0 < envs.fresh.sum() < 6
            assert envs.restore_problem == again.restore_problem
            np.testing.assert_equal(tuple(envs.step(np.ones(6, int))), tuple(again.step(np.ones(6, int))))
            np.testing.assert_equal(envs.snapshot().arrays, again.snapshot().arrays)


def test_episodes_too_long_to_log_are_named_as_in_this_process():
    config = replace(TROUBLED, kwargs={})
    alone = SerialEnvs([partial(make_env, config)] * 4, action_limit=5)
    with WorkerEnvs(config, action_limit=5) as envs:
        envs.reset(0)
        alone.reset(0)
        for _ in range(7):
            envs.step(np.ones(4, int))
            alone.step(np.ones(4, int))
        assert_same_world(envs.snapshot(), alone.snapshot())
        assert not envs.snapshot().exact
        with (
            pytest.raises(ValueError, match="snapshot has 4 environments, not 2"),
            WorkerEnvs(replace(config, num_envs=2)) as fewer,
        ):
            fewer.restore(envs.snapshot())


# Nothing is left.


def test_closing_ends_the_workers_also_after_an_exception_and_unasked():
    with pytest.raises(ZeroDivisionError), make_envs(TROUBLED, 0) as envs:  # noqa: PT012
        started = envs.pids
        assert all(alive(pid) for pid in started)
        raise ZeroDivisionError
    assert all(gone(pid) for pid in started)
    forgotten = make_envs(TROUBLED, 0)
    started = forgotten.pids
    del forgotten, envs
    gc.collect()
    assert all(gone(pid, 0) for pid in started)


def test_closing_does_not_wait_long_for_an_environment_that_hangs():
    envs = make_envs(TROUBLED, 0)
    envs.reset(0)
    started = envs.pids
    envs._shared.actions[...] = HANG
    for worker in envs._supervisor.workers:
        worker.step()
    before = time.monotonic()
    envs.close()
    assert time.monotonic() - before < 500, "they hang for 1000 s"
    assert all(gone(pid, 0) for pid in started)


def test_workers_outlive_the_thread_that_started_them():
    made = []
    thread = threading.Thread(target=lambda: made.append(make_envs(TROUBLED, 0)))
    thread.start()
    thread.join()
    with made[0] as envs:
        envs.reset(0)
        time.sleep(0.1)
        assert envs.step(np.ones(4, int)).valid.all()


PARENT = """
import sys, numpy as np
from birl.config import EnvConfig
from birl.envs.make import make_envs
envs = make_envs(EnvConfig("tests.envs.troubled:Troubled-v0", 4, workers=2), 0)
envs.reset(0)
print(*envs.pids, flush=True)
way = sys.argv[1]
while way != "exit":
    if way == "raise":
        raise ZeroDivisionError
    envs.step(np.array([1, 1, 1, 5 if way == "hang" else 1]))
"""


@pytest.mark.parametrize(
    ("way", "number", "said"),
    [
        ("exit", None, ""),
        ("raise", None, "ZeroDivisionError"),
        ("step", signal.SIGINT, "KeyboardInterrupt"),
        ("hang", signal.SIGINT, "KeyboardInterrupt"),
        ("step", signal.SIGKILL, ""),
        ("hang", signal.SIGKILL, ""),
    ],
)
def test_no_worker_outlives_its_parent(way, number, said):
    command = [sys.executable, "-c", PARENT, way]  # no guard by __name__ is needed, as multiprocessing would
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        started = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(started) == 2, parent.stderr.read()
        if number is not None:
            time.sleep(0.2)
            assert all(alive(pid) for pid in started)
            os.killpg(parent.pid, number)  # as ctrl-C in a terminal does
        _, errors = parent.communicate(timeout=SECONDS)
    finally:
        parent.kill()
    assert all(gone(pid) for pid in started)
    assert errors.count("Traceback") == bool(said)
    assert said in errors
    assert "leaked" not in errors
