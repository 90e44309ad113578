"""Actor-learners in processes: counts are complete, faults are named, none outlives the run."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest

from birl.asynchronous.processes import FINISHED, ProcessPool
from birl.config import EnvConfig
from birl.errors import NonFiniteError
from birl.workers import faults
from tests.asynchronous.adding import ORDERS, make_adding, make_config
from tests.envs.troubled import EXIT, HANG, KILL, RAISE
from tests.run.processes import SECONDS

COUNTING = EnvConfig("tests.envs.troubled:Troubled-v0", num_envs=1)


def make_pool(
    actor_learners: int, env: EnvConfig = COUNTING, size: int = ORDERS + 1, total_steps: int = 10**9
) -> ProcessPool:
    return ProcessPool(*make_adding(make_config("processes", env, actor_learners, total_steps), size), None)


def run_until(pool: ProcessPool, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to it"
        pool.run(int(pool.last_copy.env_steps.sum()) + 1)


def gone(pid: int) -> bool:
    for _ in range(20 * SECONDS):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_all_steps_are_counted_and_the_processes_end_with_them():
    with make_pool(2, total_steps=4000) as pool:
        first = pool.run(1000)
        assert first.gradient_steps.sum() * 4 == first.env_steps.sum() >= 1000
        last = pool.run(4000)
        assert 4000 <= last.env_steps.sum() <= 4000 + 2 * 4
        assert last.gradient_steps.sum() * 4 == last.env_steps.sum()
        assert last.normalizers[:, 0].tolist() == last.gradient_steps.tolist()
        assert not pool.faults
        pids = pool.pids
    assert all(map(gone, pids))


def test_actor_learners_that_end_before_they_are_asked_have_metrics():
    with make_pool(1, total_steps=8) as pool:
        deadline = time.monotonic() + SECONDS
        while pool._control.paused[0] != FINISHED:
            assert time.monotonic() < deadline, "it never came to its end"
            time.sleep(0.01)
        assert pool.run(8).env_steps.sum() >= 8
        assert "weights/version" in pool.metrics()


def test_what_is_copied_for_a_report_is_never_half_written():
    with make_pool(1, size=2_000_000) as pool:  # one step takes a millisecond to write
        for _ in range(20):
            seen = pool.run(int(pool.last_copy.env_steps.sum()) + 1)
            assert seen.weights[ORDERS:].min() == seen.weights[ORDERS:].max() == seen.gradient_steps.sum() > 0


FAULTS = {
    "raised": (RAISE, "ZeroDivisionError: mass is zero"),
    "was killed": (KILL, "its process was ended by SIGKILL"),
    "exited": (EXIT, "its process exited with code 3"),
    "hangs": (HANG, "no heartbeat for 5 seconds"),
}


def test_who_fails_is_named_and_replaced_with_its_statistics_counters_and_a_key_of_its_own():
    impatient = replace(COUNTING, step_timeout=5.0)  # a step takes milliseconds, or a little more on a busy machine
    with make_pool(2, impatient) as pool, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run_until(pool, lambda: pool.last_copy.gradient_steps.min() > 0)
        for order, reason in FAULTS.values():
            before = pool.last_copy.gradient_steps.copy()
            pid = pool.pids[1]
            faults = len(pool.faults)
            pool._shared.weights[1] = order
            run_until(pool, lambda: len(pool.faults) > faults)  # noqa: B023
            pool._shared.weights[1] = 0
            fault = pool.faults[faults]
            assert (fault.index, fault.pid) == (1, pid)
            assert reason in fault.reason
            assert f"process {pid}" in str(told[faults].message)
            assert fault.reason.removeprefix("its process") in str(told[faults].message)
            run_until(pool, lambda: pool.last_copy.gradient_steps[1] > before[1] + 20)  # noqa: B023
        assert pool.last_copy.normalizers[:, 0].tolist() == pool.last_copy.gradient_steps.tolist()
        assert pool.pids[0] not in {fault.pid for fault in pool.faults}
        pids = pool.pids
    assert all(map(gone, pids))


def test_others_go_on_while_one_is_replaced_and_its_episodes_stay_counted():
    env = EnvConfig("tests.envs.troubled:Troubled-v0", num_envs=1, kwargs={"limit": 5})
    with make_pool(2, env) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_until(pool, lambda: pool.last_copy.gradient_steps.min() > 20)
        episodes = pool.metrics()["episode/count"]
        assert episodes >= 2 * 20 * 4 // 6
        os.kill(pool.pids[0], signal.SIGKILL)
        run_until(pool, lambda: bool(pool.faults))
        os.kill(pool.pids[0], signal.SIGSTOP)  # the new process shall begin after the others' steps
        before = pool.last_copy.gradient_steps.copy()  # of one that is known to be gone
        assert pool.metrics()["episode/count"] >= episodes
        run_until(pool, lambda: pool.last_copy.gradient_steps[1] > before[1] + 100)
        assert pool.last_copy.gradient_steps[0] - before[0] <= 2  # the last ones of the old process
        os.kill(pool.pids[0], signal.SIGCONT)
        run_until(pool, lambda: pool.last_copy.gradient_steps[0] > before[0] + 20)


def test_who_fails_again_and_again_ends_the_run_with_the_first_reason(monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 2)
    env = EnvConfig("tests.envs.troubled:Troubled-v0", num_envs=1, kwargs={"bug_at": 90})
    reason = "environment 0 raised in step: ZeroDivisionError: mass is zero"
    message = rf"actor-learner 0 failed 3 times in a row: {reason}[\s\S]*line"
    with warnings.catch_warnings(), make_pool(1, env) as pool:
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match=message):
            pool.run(10**6)


def test_an_environment_that_cannot_be_made_ends_the_run_at_once():
    message = r"actor-learner 0 cannot start: ZeroDivisionError: mass is zero\nTraceback"
    with (
        make_pool(1, EnvConfig("tests.envs.troubled:Broken-v0", num_envs=1)) as pool,
        pytest.raises(RuntimeError, match=message),
    ):
        pool.run(1)


def test_a_nan_ends_the_run_with_a_report():
    message = "actor-learner 0: observation of environment 0 is"
    with (
        make_pool(1, EnvConfig("tests.envs.faulty:nan_observation", num_envs=1)) as pool,
        pytest.raises(NonFiniteError, match=message),
    ):
        pool.run(10**6)


PARENT = """
import sys, time
from tests.asynchronous.test_processes import make_pool
with make_pool(2) as pool:
    pool.run(8)
    print(*pool.pids, flush=True)
    if sys.argv[1] == "hang":
        pool._shared.weights[:2] = 5
    pool.run(10**9)
"""


@pytest.mark.parametrize(
    ("way", "number"), [("learn", signal.SIGINT), ("learn", signal.SIGKILL), ("hang", signal.SIGKILL)]
)
def test_no_actor_learner_outlives_its_parent_and_no_shared_memory_is_left(way, number):
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", PARENT, way]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    started = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(started) == 2, parent.stderr.read()
    time.sleep(0.2)
    os.killpg(parent.pid, number)  # as ctrl-C in a terminal does
    parent.communicate(timeout=SECONDS)
    assert all(map(gone, started))
    assert not set(os.listdir("/dev/shm")) - before
