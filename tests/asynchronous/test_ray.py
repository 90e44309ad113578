"""A real Ray cluster of two nodes here: lost actors are replaced, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from birl.algos import a2c, a3c, acer, dqn
from birl.asynchronous.pool import open_pool
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs
from birl.errors import NonFiniteError
from birl.rollouts.source import Collector, open_rollouts
from birl.types import Rollout
from birl.workers import faults
from tests.asynchronous.adding import act, make_adding, make_config
from tests.envs.troubled import HANG, KILL, RAISE
from tests.run.processes import ENVIRONMENT, SECONDS

pytest.importorskip("ray")

from birl.asynchronous.ray_pool import RayPool
from birl.rollouts.ray_rollouts import RayCollector, joined, open_ray_actors
from birl.workers.ray_actors import OUT_OF_REACH, connected

cluster_utils = pytest.importorskip("ray.cluster_utils")


COUNTING = EnvConfig("tests.envs.troubled:Troubled-v0", num_envs=1, step_timeout=15.0)
PROBE = EnvConfig("tests.envs.troubled:Troubled-v0", num_envs=4, kwargs={"goal": 6})
# A dead machine is found after 15 s by default.
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, each with processes and a store of its own."""
    cluster = cluster_utils.Cluster(
        True, head_node_args={"num_cpus": 2, "include_dashboard": False, "_system_config": SOON}
    )
    cluster.add_node(num_cpus=2)
    yield cluster
    cluster.shutdown()


@contextmanager
def heard() -> Iterator[list[str]]:
    """Warnings, as they come."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        told: list[str] = []
        warnings.showwarning = lambda message, *_, **__: told.append(str(message))
        yield told


def run_until(pool: RayPool, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to it"
        pool.run(int(pool.shared.env_steps.sum()) + 1)


def gone(pid: int) -> bool:
    for _ in range(20 * SECONDS):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_who_fails_is_named_and_replaced_with_its_statistics_and_counters(cluster):
    config = make_config("ray", replace(COUNTING, ray_address=cluster.address), 2)
    with open_pool(*make_adding(config), None) as pool, warnings.catch_warnings():
        told = []

        def obey(message: Warning | str, *_: Any, **__: Any) -> None:
            """One accident is enough: the replacement is sent the orders, too."""
            pool.shared.weights[1] = 0
            told.append(str(message))

        warnings.simplefilter("always")
        warnings.showwarning = obey
        run_until(pool, lambda: pool.shared.gradient_steps.min() > 0)
        reasons = {
            RAISE: "ZeroDivisionError: mass is zero",
            KILL: "its worker process has died",
            HANG: "no answer within 15 seconds",
        }
        for order, reason in reasons.items():
            before = pool.shared.gradient_steps.copy()
            pid, machine = pool.actors.places[1]
            pool.shared.weights[1] = order
            # On a busy machine actor-learner 0 may be late, too: only this one's faults count.
            run_until(pool, lambda: any(reason in fault.reason for fault in pool.faults if fault.index == 1))  # noqa: B023
            run_until(pool, lambda: pool.shared.gradient_steps[1] > before[1] + 20)  # noqa: B023
            (fault,) = [fault for fault in pool.faults if fault.index == 1 and reason in fault.reason]
            assert fault.pid == pid
            (message,) = [message for message in told if reason in message and str(pid) in message]
            assert machine in message
            assert gone(pid)
        assert len(told) == len(pool.faults)
        shared = pool.run(int(pool.shared.env_steps.sum()) + 100)
        assert shared.gradient_steps.sum() * 4 == shared.env_steps.sum()
        assert shared.normalizers[:, 0].tolist() == shared.gradient_steps.tolist()
        assert shared.weights[-1] == shared.gradient_steps.sum()
        assert not pool.snapshot().exact
        pids = [pid for pid, _ in pool.actors.places]
    assert all(map(gone, pids))


def collect_here(config: EnvConfig, length: int) -> Collector:
    envs = SerialEnvs([partial(make_env, config)] * config.num_envs)
    return Collector(envs, act, length, np.zeros((config.num_envs, 1), np.float32))


def assert_same(left: Rollout, right: Rollout) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def columns(rollout: Rollout, rows: slice) -> Rollout:
    plain = rollout._replace(memory=(), resets=None, action_masks=None)
    return jax.tree.map(lambda x: x[:, rows], plain)


def test_parts_in_actors_are_the_rollout_of_one_process_go_on_exactly_and_survive_a_kill(cluster):
    config = replace(PROBE, ray_actors=2, ray_address=cluster.address)
    policy = np.int32(1)
    key = np.zeros(2, np.uint32)
    here = collect_here(PROBE, 4)
    here.start(3)
    with open_ray_actors(config) as (actors, _), heard() as told:
        there = RayCollector(config, actors, act, 4, np.zeros((4, 1), np.float32))
        there.start(3)
        for _ in range(3):
            assert_same(there.collect(policy, key), here.collect(policy, key))
        mine = here.episode_stats.metrics()
        theirs = there.episode_stats.metrics()
        names = [name for name in mine if name.startswith("episode/")]
        assert [theirs[name] for name in names] == [mine[name] for name in names]
        assert theirs["episode/count"] > 0
        snapshot = there.snapshot()
        assert snapshot.exact

        pid = actors.places[1][0]
        os.kill(pid, signal.SIGKILL)
        expected = here.collect(policy, key)
        found = there.collect(policy, key)
        assert_same(columns(found, slice(0, 2)), columns(expected, slice(0, 2)))
        assert np.all(found.valid[:, 2:])
        # Sums of the lost episodes end here.
        assert found.resets.tolist() == [False, False, True, True]
        assert not np.any(found.observations[0, 2:, 0] == expected.observations[0, 2:, 0]), "episodes of other names"
        assert [fault.pid for fault in there.faults] == [pid]
        assert told == [str(there.faults[0])]
        assert told[0].startswith("Ray actor 1 restarted in a new process at step")
        assert "its worker process has died, or a step took longer than env.step_timeout 60" in told[0]

        again = RayCollector(config, actors, act, 4, np.zeros((4, 1), np.float32))
        again.start(3, snapshot)
        assert_same(again.collect(policy, key), expected)
        assert len(told) == 1
    assert not there.snapshot().exact


def test_a2c_on_two_actors_is_the_same_run_again_and_goes_on_exactly(cluster):
    env = EnvConfig("CartPole-v1", num_envs=4, ray_actors=2, ray_address=cluster.address)
    config = a2c.Config(
        env, RunConfig(total_steps=10**6), hidden_sizes=(8,), core="lstm", core_size=4, normalize_observations=True
    )
    updates = a2c.train(config)
    for _ in range(2):
        middle = next(updates)
    snapshot = middle.snapshot()
    end = next(islice(updates, 2, None))
    updates.close()
    resumed = list(islice(a2c.train(config, None, middle.state, snapshot), 3))[-1]
    assert_same(end.state, resumed.state)
    assert end.metrics["episode/return"] == resumed.metrics["episode/return"]


def test_with_gsde_every_environment_of_an_actor_keeps_its_matrix_for_a_rollout(cluster):
    env = EnvConfig("tests.envs.still:Still-v0", num_envs=4, ray_actors=2, ray_address=cluster.address)
    config = a2c.Config(env, RunConfig(total_steps=10**6), hidden_sizes=(8,), gsde=True, log_std=-2.0)
    with open_rollouts(config, a2c.act) as rollouts:
        state = rollouts.start(a2c.init(config, *rollouts.spaces))
        found = [
            rollouts.collect(a2c.policy(state), np.asarray(state.key), steps).actions
            for steps in (config.actions.steps_per_matrix(config.rollout_length), 1)
        ]
    distinct = [[len(np.unique(actions[:, number], axis=0)) for number in range(4)] for actions in found]
    assert distinct == [[1] * 4, [5] * 4]
    assert len(np.unique(found[0][0], axis=0)) == 4


def test_an_error_in_an_actor_is_told_as_it_is_and_is_final_if_every_episode_hits_it(cluster, monkeypatch):
    memory, key = np.zeros((2, 1), np.float32), np.zeros(2, np.uint32)
    config = EnvConfig("tests.envs.faulty:nan_observation", num_envs=2, ray_actors=1, ray_address=cluster.address)
    with open_ray_actors(config) as (actors, _):
        collector = RayCollector(config, actors, act, 64, memory)
        collector.start(1)
        with pytest.raises(
            NonFiniteError, match=r"among environments 0 to 1, counted from 0: observation of environment 0 is"
        ):
            collector.collect(np.int32(0), key)
        broken = RayCollector(replace(config, id="tests.envs.troubled:Broken-v0"), actors, act, 4, memory)
        with pytest.raises(RuntimeError, match=r"Ray actor 0 cannot start: ZeroDivisionError: mass is zero\nTraceback"):
            broken.start(1)
        monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 1)
        buggy = replace(config, id="tests.envs.troubled:Buggy-v0", kwargs={"bug_at": 20})
        collector = RayCollector(buggy, actors, act, 12, memory)
        collector.start(1)
        with (
            pytest.warns(UserWarning, match="mass is zero"),
            pytest.raises(
                RuntimeError,
                match=r"Ray actor 0 failed 2 times in a row: .* in step: .* mass is zero \(.*.py, line \d+\)\nTrace",
            ),
        ):
            deque((collector.collect(np.int32(0), key) for _ in range(9)), 0)


def test_a_cluster_that_is_not_there_or_too_small_is_an_error_with_a_remedy(cluster):
    with (
        pytest.raises(ConfigError, match=r"env.ray_address '127.0.0.1:1': no cluster answers there .*ray start --head"),
        connected("127.0.0.1:1", 1),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"5 Ray actors need a processor each, and the cluster at .* has 4"),
        connected(cluster.address, 5),
    ):
        pass


@pytest.mark.slow
def test_acer_learns_in_a_cluster_from_a_replay_of_each_actor_learner(cluster):
    env = EnvConfig("CartPole-v1", num_envs=2, max_episode_steps=9, ray_address=cluster.address)
    settings = {
        "rollout_length": 5,
        "replay_size": 2000,
        "learning_starts": 20,
        "report_every": 100,
        "hidden_sizes": (8,),
    }
    *_, last = acer.train(acer.Config(env, RunConfig(total_steps=400), pool="ray", actor_learners=2, **settings))
    assert 400 <= int(last.state.env_steps) <= 400 + 10
    assert int(last.state.gradient_steps) > 2 * 400 / 10
    assert last.metrics["replay/steps"] >= 400
    assert last.snapshot().reason.endswith("in new episodes and with empty replays")


def lost_by(told: list[str]) -> set[str]:
    """Which actors were lost with a machine; until its death is known, they are out of reach."""
    lost = [message for message in told if "its node has died" in message or OUT_OF_REACH in message]
    return {message.partition(" restarted")[0] for message in lost}  # a replacement may be sent to the dead machine too


def test_a3c_goes_on_with_all_its_actor_learners_though_a_machine_dies(cluster):
    env = EnvConfig("CartPole-v1", num_envs=1, ray_address=cluster.address)
    config = a3c.Config(
        env, RunConfig(total_steps=10**7), pool="ray", actor_learners=4, report_every=100, hidden_sizes=(8,)
    )
    [doomed] = [node for node in cluster.list_all_nodes() if node != cluster.head_node]
    deadline = time.monotonic() + SECONDS
    enough = 10**7
    with heard() as told, closing(a3c.train(config)) as training:
        for update in training:
            steps = int(update.state.env_steps)
            if doomed in cluster.list_all_nodes() and steps >= 1000:
                cluster.remove_node(doomed, allow_graceful=False)
            if len(lost_by(told)) == 2:
                enough = min(enough, steps + 2000)
            if steps >= enough or time.monotonic() > deadline:
                break
    assert len(lost_by(told)) == 2, told
    assert all(who.startswith("actor-learner ") for who in lost_by(told))
    assert steps >= enough
    assert np.isfinite(update.metrics["optimizer/grad_norm"])


PARENT = """
from tests.asynchronous.test_ray import COUNTING, make_adding, make_config
from birl.asynchronous.ray_pool import RayPool
with RayPool(*make_adding(make_config("ray", COUNTING, 2)), None) as pool:
    pool.run(8)
    print(*[pid for pid, _ in pool.actors.places], flush=True)
    pool.run(10**9)
"""


def marked(mark: str) -> list[int]:
    """Processes that have inherited this environment variable, of any parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_nothing_is_left_of_a_cluster_that_a_run_has_started(number, tmp_path):
    mark = f"BIRL_TEST_MARK={uuid.uuid4()}"
    variables = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_")}
    name, _, value = mark.partition("=")
    # A home of its own: the first cluster on a machine makes up a token.
    variables |= {name: value, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline().split(), parent.stderr and parent.stderr.read()
    assert len(marked(mark)) > 3
    os.killpg(parent.pid, number)  # as ctrl-C in a terminal does
    parent.communicate(timeout=SECONDS)
    for _ in range(20 * SECONDS):
        if not marked(mark):
            break
        time.sleep(0.05)
    assert not marked(mark)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvConfig(num_envs=2, ray_actors=3), "env.ray_actors 3 is more than env.num_envs 2"),
        (EnvConfig(ray_actors=-1), "env.ray_actors -1 is negative"),
        (EnvConfig(ray_actors=2, workers=2), "env.workers 2 does not go with env.ray_actors 2"),
        (EnvConfig(ray_actors=2, backend="envpool"), "env.backend 'envpool' does not go with env.ray_actors 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(env, message):
    with pytest.raises(ConfigError, match=message):
        a2c.validate(a2c.Config(env))


def test_ray_actors_are_refused_where_they_would_not_be_used():
    with pytest.raises(ConfigError, match=r"env.ray_actors 2: only .* take rollouts from Ray actors"):
        next(dqn.train(dqn.Config(EnvConfig(num_envs=4, ray_actors=2))))
    with pytest.raises(ConfigError, match=r"env.ray_actors 2 does not go with actor-learners"):
        a3c.validate(a3c.Config(EnvConfig(num_envs=4, ray_actors=2)))
    given = collect_here(PROBE, 4).envs
    with (
        pytest.raises(ConfigError, match=r"cannot go to env.ray_actors 2"),
        open_rollouts(a2c.Config(replace(PROBE, ray_actors=2)), act, given),
    ):
        pass


def test_a_part_without_masks_forbids_nothing_in_the_joined_rollout():
    flags = np.ones((2, 1), bool)
    part = Rollout(np.zeros((3, 1, 4)), flags, flags, flags, flags, flags, np.zeros((1, 2)))
    masked = part._replace(action_masks=np.zeros((3, 1, 3), bool))
    whole = joined([masked, part])
    assert whole.action_masks.tolist() == [[[False] * 3, [True] * 3]] * 3
    assert (whole.observations.shape, whole.memory.shape, whole.rewards.shape) == ((3, 2, 4), (2, 2), (2, 2))
    assert joined([part, part]).action_masks is None
