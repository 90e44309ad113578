"""ACER's actor-learners: one is the same as one learner; cycles, replays, exact resume, faults."""

import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from birl.algos import acer
from birl.asynchronous.actor_learner import ActorLearner, Work, make_work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import State as SharedState
from birl.asynchronous.parameters import Weights, WorkerResult, state_to_shared
from birl.asynchronous.pool import SerialPool
from birl.asynchronous.replay_learner import Cycle, ReplayShare
from birl.config import ConfigError, EnvConfig, RunConfig, from_json
from birl.envs.make import spaces_of
from birl.nets.actor_q import DuelingActor, empty_behaviour
from birl.nets.recurrent import CoreName
from birl.rollouts.finite import for_learning
from birl.run import checkpoint as checkpoints
from birl.run.state_tensors import tensors_to_state
from birl.speed import prepare_jax
from birl.types import Snapshot, Update
from tests.algos.test_a3c import actor_learner_pids
from tests.run.processes import SECONDS
from tests.test_contract import assert_same_bits, run, without_clock

CARTS = EnvConfig("CartPole-v1", num_envs=2, max_episode_steps=9)  # some episode ends inside every rollout
SMALL = acer.Config(
    env=CARTS,
    run=RunConfig(total_steps=400, seed=3),
    pool="serial",
    actor_learners=2,
    report_every=30,
    rollout_length=5,
    learning_starts=30,
    replay_size=200,
    hidden_sizes=(8,),
    core_size=4,
)
SWITCHED_ON = replace(SMALL, core="lstm", normalize_observations=True, normalize_rewards=True)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


# A special case

SETTINGS: dict[str, dict[str, Any]] = {
    "LSTM, masks, other batches": {"env": EnvConfig("birl/ProbeMask-v0", num_envs=2), "core": "lstm", "batch_size": 3},
    "continuous": {"env": EnvConfig("Pendulum-v1", num_envs=2), "entropy_weight": 0.0},
}
slowly = [pytest.param(settings, marks=pytest.mark.slow, id=name) for name, settings in SETTINGS.items()]


@pytest.mark.parametrize(
    "settings", [pytest.param({"normalize_observations": True, "normalize_rewards": True}, id="normalised"), *slowly]
)
def test_one_actor_learner_is_acer_with_one_learner_and_as_many_environments(settings):
    config = replace(SMALL, actor_learners=1, **settings)
    *_, one = acer.train(config)
    *_, alone = acer.train(replace(config, pool="none"))
    assert int(one.state.env_steps) == int(alone.state.env_steps)
    assert int(one.state.gradient_steps) == int(alone.state.gradient_steps) > 2 * int(alone.state.updates)
    assert np.array_equal(one.state.key[0], alone.state.key)
    pairs = (one.state.network, alone.state.network), (one.state.target_weights, alone.state.average)
    pairs = tuple(tuple(map(without_cancelled_bias, pair)) for pair in pairs)
    for shared, own in (*pairs, (jax.tree.map(lambda x: x[0], one.state.normalizer), alone.state.normalizer)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), shared, own)
    same = ("replay/steps", "replay/bytes", "replay/updates", "episode/count", "episode/return")
    assert [one.metrics[name] for name in same] == pytest.approx([alone.metrics[name] for name in same], rel=1e-5)


def without_cancelled_bias(network: Any) -> Any:
    """A dueling network without the bias that cancels in A(s, a) - mean A(s, u) (eq. 9).

    Its gradient is 0 but for rounding, which RMSProp divides by its own size.
    """
    if not isinstance(network, DuelingActor):
        return network
    return eqx.tree_at(lambda net: net.advantage_head.linear.bias, network, replace_fn=np.zeros_like)


# Worker steps

CYCLING = replace(SMALL, normalize_observations=True, replay_ratio=2.0)


def opened(config: acer.Config) -> tuple[Work, SharedState, ActorLearner]:
    """What the first actor-learner of such a run begins with."""
    observation_space, action_space = spaces_of(config.env)
    state = acer.init(config, observation_space, action_space)
    share = ReplayShare(100, config.discount, 1, empty_behaviour(action_space, config.env.num_envs))
    work = make_work(config, "birl.algos.acer", acer.worker_step, acer.apply_gradients, state, replay=share)
    return work, state, open_actor_learner(work, 0, np.asarray(state.key[0]), config.run.seed)


@cache
def cycles_of(config: acer.Config, count: int) -> list[list[tuple[Weights, WorkerResult]]]:
    """The worker steps of some cycles of one actor-learner, each with newer weights."""
    work, state, learner = opened(config)
    shared = state_to_shared(state, work.layouts)
    cycles = []
    for _ in range(count):
        steps: list[tuple[Weights, WorkerResult]] = []
        while not steps or learner.cycle.left:
            weights = shared.read()
            result, learner = run_worker_step(learner, weights, work)
            acer.apply_gradients(shared, result, config)
            shared.write(0, result)
            steps.append((weights, result))
        cycles.append(steps)
    learner.envs.close()
    return cycles


def test_a_cycle_is_a_fresh_rollout_and_poisson_replayed_steps_and_counts_with_the_last():
    cycles = cycles_of(CYCLING, 40)
    assert [len(steps) for steps in cycles[:2]] == [1, 1]  # nothing to replay yet
    lengths = [len(steps) - 1 for steps in cycles[6:]]
    assert lengths == [steps[0][1].metrics["replay/updates"] for steps in cycles[6:]]
    assert np.mean(lengths) == pytest.approx(2.0, abs=0.75)  # three deviations of the mean
    assert len(set(lengths)) > 2
    for steps in cycles:
        *early, last = [result for _, result in steps]
        before = steps[0][0]
        assert [result.env_steps for result in early] == [0] * len(early)
        assert 0 < last.env_steps <= 10
        assert not np.array_equal(last.normalizer, before.normalizers[0])
        for result in early:
            np.testing.assert_array_equal(result.normalizer, before.normalizers[0])
            assert not np.array_equal(result.key, last.key)
    assert len({result.key.tobytes() for steps in cycles for _, result in steps}) == 40


def test_each_step_has_the_newest_weights_and_another_gradient():
    *_, steps = (steps for steps in cycles_of(CYCLING, 40) if len(steps) > 2)
    vectors = [weights.network.tobytes() for weights, _ in steps], [result.gradients.tobytes() for _, result in steps]
    assert [len(set(found)) for found in vectors] == [len(steps)] * 2
    every = [weights.gradient_steps for steps in cycles_of(CYCLING, 40) for weights, _ in steps]
    assert every == list(range(len(every)))  # so that no two sample the same actions


def test_a_step_is_rmsprops_and_then_the_average_network_follows():
    work, state, learner = opened(
        replace(SMALL, average_decay=0.9, optimizer="rmsprop-tf", rmsprop_decay=0.8, optimizer_epsilon=0.1)
    )
    learner.envs.close()
    shared = state_to_shared(state, work.layouts)
    shared.target_weights[:] += 1.0
    before = shared.copy()
    gradients = np.linspace(-1, 1, shared.weights.size, dtype=np.float32)
    for times in (1, 2):
        acer.apply_gradients(
            shared, WorkerResult(gradients, 0.5, 0, shared.normalizers[0], shared.keys[0], {}), work.config
        )
        mean_squares = 0.8**times + (1 - 0.8**times) * gradients**2  # the mean of squares starts at 1
        np.testing.assert_allclose(shared.mean_squares, mean_squares, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            shared.weights, before.weights - 0.5 * gradients / np.sqrt(mean_squares + 0.1), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            shared.target_weights, 0.9 * before.target_weights + 0.1 * shared.weights, rtol=1e-5, atol=1e-6
        )
        before = shared.copy()


# Several


def test_what_is_left_of_a_cycle_is_restored_also_where_an_episode_is_one_life_of_a_game():
    work, _, learner = opened(CYCLING)
    counted = learner.collector.empty_rollout()
    like = counted._replace(game_over=np.zeros_like(counted.valid))  # as collected
    cycle, restored = Cycle(work.replay, like), Cycle(work.replay, like)
    cycle.begin(for_learning(like, False), [for_learning(like, False)], np.ones(3), np.ones(2, np.uint32))
    restored.restore(cycle.snapshot(Snapshot()), np.zeros(2, bool))
    assert_same_bits(restored.left, cycle.left)
    learner.envs.close()


def test_each_keeps_its_own_rollouts_and_its_share_of_the_replay():
    work, state, learner = opened(SMALL)
    learner.envs.close()
    *_, last = acer.train(SMALL)
    with SerialPool(work, state_to_shared(state, work.layouts), None) as pool:
        pool.run(SMALL.run.total_steps)
        replays = [learner.cycle.replay for learner in pool.learners]
        # 100 transitions of 2 environments with their successors, and a rollout.
        assert [replay.shape.ring_size for replay in replays] == [60, 60]
        seen = [replay.on_host().columns.observations for replay in replays]
        assert not np.array_equal(*seen)
        assert pool.metrics()["replay/steps"] == sum(len(replay) for replay in replays)
        # In `train` the replay_size of 200 is divided.
        assert pool.metrics()["replay/bytes"] == 2 * replays[0].bytes == last.metrics["replay/bytes"]


@pytest.mark.slow
def test_several_learn_what_the_observation_asks_for():
    env = EnvConfig("birl/ProbeObservationAction-v0", num_envs=4)
    config = replace(
        SMALL, env=env, run=RunConfig(total_steps=2500), actor_learners=3, replay_size=3000, learning_rate=2e-2
    )
    *_, last = acer.train(config)
    assert last.metrics["episode/return"] > 0.8


# The contract, which other algorithms with actor-learners are held to in tests/test_contract.py


@pytest.mark.parametrize("config", [SMALL, SWITCHED_ON], ids=["plain", "recurrent and normalised"])
def test_the_same_seed_gives_the_same_run_and_so_does_going_on_in_the_middle_of_a_cycle(config, tmp_path):
    whole = run("acer", config, updates=9)
    with closing(acer.train(config)) as training:
        for number, stopped in enumerate(training, 1):
            assert_same_bits(whole.updates[number - 1].state, stopped.state)
            if number >= 4 and any(part["cycle"]["left"] > 0 for part in stopped.snapshot().values["learners"]):
                break
        path = checkpoints.save_checkpoint(
            tmp_path, "acer", config, spaces_of(config.env), stopped.state, stopped.snapshot(), {}
        )
    assert number < 8
    saved = checkpoints.load_checkpoint(path)
    assert saved.manifest["exact"]
    state = tensors_to_state(acer.init(replace(config, run=RunConfig(seed=7)), *spaces_of(config.env)), saved.tensors)
    resumed = run("acer", from_json(acer.Config, saved.config), state, saved.snapshot, 9 - number)
    for left, right in zip(whole.updates[number:], resumed.updates, strict=True):
        assert_same_bits(left.state, right.state)
        assert without_clock(left) == without_clock(right)
    for update, copy in zip(whole.updates, whole.copies, strict=True):
        assert_same_bits(update.state, copy)
    keys = {np.asarray(state.key).tobytes() for state in whole.copies}
    assert len(keys) == len(whole.copies)
    assert [int(state.updates) for state in whole.copies] == list(range(1, 10))
    assert all(np.isfinite(list(update.metrics.values())).all() for update in whole.updates)


def test_two_seeds_differ_and_the_run_ends_at_total_steps():
    one, two = (list(acer.train(replace(SMALL, run=RunConfig(total_steps=60, seed=seed)))) for seed in (0, 1))
    assert any(
        np.any(left != right)
        for left, right in zip(*(jax.tree.leaves(r[-1].state.network) for r in (one, two)), strict=True)
    )
    assert int(one[-1].state.env_steps) >= 60 > int(one[-2].state.env_steps)


# Settings


WRONG: dict[str, dict[str, Any]] = {
    "optimizer 'adam' does not go with pool 'serial': .* use optimizer rmsprop or rmsprop-tf, or pool none": {
        "optimizer": "adam"
    },
    "pool 'threads' is not one of none, serial, processes, ray": {"pool": "threads"},
    "actor_learners 0 must be at least 1": {"actor_learners": 0},
    "replay_size 19 leaves 2 actor-learners 9 each, less than a rollout: 5 steps of 2 .*; use at least 20, or 0": {
        "replay_size": 19
    },
    "env.workers 2 does not go with actor-learners": {"env": replace(CARTS, workers=2)},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(acer.train(replace(SMALL, **changes)))


def test_environments_that_were_passed_in_are_refused():
    with pytest.raises(ConfigError, match="each actor-learner makes its own environments"):
        next(acer.train(SMALL, envs=[]))


def test_the_state_of_one_way_is_refused_by_the_other():
    spaces = spaces_of(SMALL.env)
    alone = replace(SMALL, pool="none")
    with pytest.raises(
        ConfigError, match="the state is that of one learner; continue with pool none, not with pool serial"
    ):
        next(acer.train(SMALL, state=acer.init(alone, *spaces)))
    with pytest.raises(
        ConfigError, match="the state is that of actor-learners; continue with the pool that it was taken from"
    ):
        next(acer.train(alone, state=acer.init(SMALL, *spaces)))


def test_without_a_replay_there_are_only_fresh_steps():
    updates = list(acer.train(replace(SMALL, replay_size=0, run=RunConfig(total_steps=100))))
    assert {update.metrics["replay/updates"] for update in updates} == {0.0}
    assert int(updates[-1].state.gradient_steps) * 10 >= int(updates[-1].state.env_steps)


# In processes


def assert_goes_on(config: acer.Config, last: Update) -> None:
    """A resume goes on from there, and tells what is lost."""
    snapshot = last.snapshot()
    assert not snapshot.exact
    longer = replace(config, run=replace(config.run, total_steps=int(last.state.env_steps) + 40))
    with pytest.warns(UserWarning, match="this resume is not exact: .* and with empty replays"):
        again = list(acer.train(longer, None, last.state, snapshot))
    assert int(again[-1].state.env_steps) >= longer.run.total_steps
    assert int(again[-1].state.gradient_steps) > int(last.state.gradient_steps)
    assert again[0].metrics["replay/steps"] < last.metrics["replay/steps"]


@pytest.mark.slow
def test_two_processes_with_memory_go_on_when_one_is_killed_and_its_replacement_begins_with_an_empty_replay():
    config = replace(
        SWITCHED_ON, pool="processes", run=RunConfig(total_steps=10**7), replay_size=6000, report_every=100
    )
    steps = []
    killed = 0
    deadline = time.monotonic() + SECONDS
    with warnings.catch_warnings(record=True) as told, closing(acer.train(config)) as training:
        warnings.simplefilter("always")
        for update in training:
            steps.append(update.metrics["replay/steps"])
            if not killed and steps[-1] >= 6000:  # both are full, so that the other's growth hides nothing
                killed = min(actor_learner_pids())
                os.kill(killed, signal.SIGKILL)
            if (killed and steps[-1] < max(steps) - 100) or time.monotonic() > deadline:  # the new one is heard of
                break
    assert [
        str(warning.message) for warning in told if f"process {killed} was ended by SIGKILL" in str(warning.message)
    ]
    assert np.isfinite(update.metrics["optimizer/grad_norm"])
    assert steps[-1] < max(steps) - 100
    assert actor_learner_pids() == []


def in_a_box(core: CoreName) -> tuple[acer.Config, Update]:
    """The last update of a short run, and its settings."""
    env = EnvConfig("birl/ProbeContinuous-v0", num_envs=2)
    config = replace(SMALL, env=env, core=core, pool="processes", run=RunConfig(total_steps=500), entropy_weight=0.0)
    *_, last = acer.train(config)
    return config, last


@pytest.mark.slow
def test_two_processes_learn_with_memory_what_to_do_in_a_box():
    _, last = in_a_box("lstm")
    assert 500 <= int(last.state.env_steps) <= 500 + 2 * 10
    assert int(last.state.gradient_steps) > 1.5 * int(last.state.env_steps) / 10
    assert last.metrics["replay/steps"] > 100
    assert last.snapshot().reason.endswith("in new episodes and with empty replays")


@pytest.mark.slow
def test_a_run_in_processes_goes_on_from_its_parameters_with_empty_replays():
    assert_goes_on(*in_a_box("feedforward"))


@pytest.mark.slow
def test_a_run_in_processes_that_is_interrupted_is_saved_and_leaves_no_process(tmp_path):
    words = [
        "acer",
        "CartPole-v1",
        "--pool",
        "processes",
        "--actor-learners",
        "2",
        "--hidden-sizes",
        "8",
        "--total-steps",
        "10000000",
    ]
    command = [sys.executable, "-m", "birl", "train", *words, "--run-dir", str(tmp_path / "run")]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, start_new_session=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + SECONDS
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    children = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == process.pid]
    process.send_signal(signal.SIGINT)
    process.wait(SECONDS)
    manifest = checkpoints.load_checkpoint(checkpoints.checkpoints_in(tmp_path / "run" / "checkpoints")[-1]).manifest
    assert not manifest["exact"]
    assert "with empty replays" in str(manifest)
    assert len(children) >= 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
