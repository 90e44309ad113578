"""Learning from a replay: when gradient steps are due, from which batches, and where it is done."""

from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl import speed
from birl.algos import ddpg, dqn, sac, td3
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.maths.count import Count, count_of
from birl.maths.keys import stream
from birl.rollouts.learning import (
    LEARNED,
    Batch,
    known_metrics,
    learn_in_program,
    learn_on_host,
    newest_metrics,
    sample_batches,
    steps_due,
    steps_per_update,
    take_steps,
    unknown,
)
from birl.rollouts.replay import LEAST_ERROR, Replay
from birl.types import Rollout, Snapshot
from tests.accel.test_devices import outcome
from tests.rollouts.test_replay import (
    assert_same_trees,
    filled,
    key,
    pointers,
    random_stream,
    rows_written,
    stacked,
    weights_by_row,
)

READY = SimpleNamespace(ready=np.bool_(True))
EMPTY = SimpleNamespace(ready=np.bool_(False))


def config_of(ratio=0.5, length=4, num_envs=3, learning_starts=100, **switches):
    env = EnvConfig(num_envs=num_envs)
    return ddpg.Config(env=env, update_ratio=ratio, rollout_length=length, learning_starts=learning_starts, **switches)


def rollout_of(steps):
    """A rollout of twelve rows, of which so many are valid."""
    return SimpleNamespace(valid=np.arange(12).reshape(4, 3) < steps)


# How many steps are due


@pytest.mark.parametrize(
    ("ratio", "steps"),
    [(0.5, 6), (1.0, 12), (2.0, 24), (0.3, 4), (1 / 3, 4), (0.01, 1)],  # of 12 environment steps, rounded up
)
def test_an_update_takes_the_ratio_of_a_whole_rollout_rounded_up_and_at_least_one(ratio, steps):
    assert steps_per_update(config_of(ratio)) == steps


@pytest.mark.parametrize(
    ("owed", "env_steps", "due", "left"),
    [
        (0.0, 12, True, 0.0),
        (0.0, 11, False, 5.5),  # a row was a reset: not yet enough for an update
        (5.5, 11, True, 5.0),
        (5.5, 1, True, 0.0),
        (5.9995, 0, True, -0.0005),  # rounding of the ratio does not delay an update
    ],
)
def test_all_steps_of_an_update_are_due_or_none_and_the_rest_is_owed(owed, env_steps, due, left):
    found = steps_due(count_of(100), np.float32(owed), READY, rollout_of(env_steps), config_of(0.5))
    assert (bool(found[0]), float(found[1])) == (due, pytest.approx(left, abs=1e-6))


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1 / 3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a program"])
def test_in_the_long_run_the_ratio_is_kept_in_spite_of_resets(ratio, inside):
    config = config_of(ratio)
    whole = steps_per_update(config)
    due_after = partial(steps_due, config=config)
    if inside:
        due_after = jax.jit(lambda now, owed, ready, valid: steps_due(
            now, owed, SimpleNamespace(ready=ready), SimpleNamespace(valid=valid), config))  # fmt: skip
    rng = np.random.default_rng(0)
    owed, taken, total = np.float32(0), 0, 0
    for env_steps in rng.integers(6, 13, 500).tolist():
        rollout = rollout_of(env_steps)
        given = (READY.ready, rollout.valid) if inside else (READY, rollout)
        due, owed = due_after(count_of(100 + total), owed, *given)
        assert owed.dtype == np.float32
        taken += whole * int(due)
        total += env_steps
        assert taken + float(owed) == pytest.approx(ratio * total, abs=2e-3)
        assert -2e-3 < float(owed) < whole
    # Of what is owed whole updates are taken, each as soon as it can be.
    assert taken in (whole * np.floor((ratio * total + slack) / whole) for slack in (0, 2e-3))


@pytest.mark.parametrize(
    ("env_steps", "replay", "expected"),
    [(99, READY, (False, 0.0)), (100, EMPTY, (False, 0.0)), (100, READY, (True, 1.5)), (2**40, READY, (True, 1.5))],
)
def test_nothing_is_due_or_owed_before_learning_starts_or_while_the_replay_is_empty(env_steps, replay, expected):
    due, owed = steps_due(count_of(env_steps), np.float32(2.5), replay, rollout_of(10), config_of(0.5))
    assert (bool(due), float(owed)) == expected
    assert owed.dtype == np.float32


# Batches, and what is done with them


class State(NamedTuple):
    """What learning from a replay needs of an algorithm's state, and what this one has seen."""

    env_steps: Count
    owed: Any
    key: Any
    seen: Any  # the sum of all rewards it learned from
    updates: Any


STATE = State(count_of(100), np.float32(0), key(0), np.float32(0), np.int32(0))


@jax.jit
def update(state: State, rollout: Rollout, batches: Batch | None, config: Any) -> tuple[State, dict[str, Any], Any]:
    """An error is its reward."""
    state = state._replace(key=stream(state.key, "next"), updates=state.updates + 1)
    metrics = {"reward/sum": rollout.rewards.sum()}
    if batches is None:
        return state, metrics, None
    rewards = batches.steps.rewards
    state = state._replace(seen=state.seen + rewards.sum())
    return state, metrics | {"loss/value": rewards.mean()}, rewards


ROLLOUTS = [rollout._replace(memory=()) for rollout in random_stream(80).rollouts(4)]
SMALL = {"batch_size": 2, "replay_size": 60}


def replay_and_config(count: int, **switches: Any) -> tuple[Replay, Any]:
    return filled(ROLLOUTS[:count], 60, **switches), config_of(0.5, **SMALL)


@pytest.fixture(params=[False, True], ids=["one program", "apart"])
def apart(request, monkeypatch) -> bool:
    """Whether the state seems to be on several devices, so that programs are apart."""
    monkeypatch.setattr(speed, "has_several_devices", lambda tree: request.param)
    return request.param


def test_errors_become_the_priorities_of_the_transitions_that_were_learned_from(apart):
    replay, config = replay_and_config(3, priority_exponent=0.5)
    rollout = ROLLOUTS[3]._replace(valid=np.ones((4, 3), bool))
    state, metrics = learn_on_host(update, STATE, replay, rollout, config)
    twin, _ = replay_and_config(3, priority_exponent=0.5)
    twin.add(rollout)
    before = weights_by_row(twin).copy()
    batches, indices = sample_batches(twin, STATE.key, config)
    assert batches.probabilities.shape == batches.steps.rewards.shape == (6, 2)
    np.testing.assert_array_equal(batches.probabilities, indices.probabilities)
    rewards = np.asarray(batches.steps.rewards)
    assert float(state.seen) == pytest.approx(rewards.sum(), rel=1e-5)
    assert metrics == {
        "reward/sum": pytest.approx(rollout.rewards.sum(), rel=1e-5),
        "loss/value": pytest.approx(rewards.mean(), rel=1e-5),
    }
    before[np.asarray(indices.rows) % replay.shape.ring_size, np.asarray(indices.envs)] = np.sqrt(
        np.abs(rewards) + LEAST_ERROR
    )
    np.testing.assert_allclose(weights_by_row(replay), before, rtol=1e-5)


def test_while_nothing_is_due_the_rollout_is_added_and_metrics_are_those_of_the_rollout(apart):
    for state, count in ((STATE._replace(env_steps=count_of(99)), 3), (STATE, 0)):
        replay, config = replay_and_config(max(count, 1))
        if not count:
            replay = Replay(60, ROLLOUTS[0], 0.9)
        after, metrics = learn_on_host(update, state, replay, ROLLOUTS[3], config)
        assert metrics == {"reward/sum": pytest.approx(ROLLOUTS[3].rewards.sum(), rel=1e-5)}
        assert (int(after.updates), float(after.seen), float(after.owed)) == (1, 0.0, 0.0)
        assert rows_written(replay) == 4 * count + 4


def test_the_ring_is_written_in_place(apart):
    replay, config = replay_and_config(2, priority_exponent=0.5)
    state, before = STATE, pointers(replay)
    for number, rollout in enumerate(ROLLOUTS[2:]):
        if number % 4 == 1:
            replay.snapshot(Snapshot())
        state, _ = learn_on_host(update, state, replay, rollout, config)
        assert pointers(replay) == before
    assert float(state.seen) != 0


def test_observations_that_are_no_stacks_are_refused_before_they_are_added(apart):
    rollouts = stacked(random_stream(12), 3).rollouts(4)
    rollouts = [rollout._replace(memory=()) for rollout in rollouts]
    replay, config = filled(rollouts[:2], 60, frame_stack=3), config_of(0.5, **SMALL)
    before = jax.tree.map(np.array, replay.arrays)
    wrong = rollouts[2]._replace(observations=rollouts[2].observations[:, :, ::-1])
    with pytest.raises(ConfigError, match=r"not stacks of frames, newest last, .* use frame_stack 1"):
        learn_on_host(update, STATE, replay, wrong, config)
    assert_same_trees(replay.arrays, before)
    learn_on_host(update, STATE, replay, rollouts[2], config)
    assert rows_written(replay) == 12


@pytest.mark.parametrize("exponent", [None, 0.5])
def test_learning_is_the_same_in_a_program_and_on_the_host(exponent):
    one_program = jax.jit(partial(learn_in_program, update), donate_argnames="replay")
    (inside, config), (outside, _) = (replay_and_config(1, priority_exponent=exponent) for _ in range(2))
    left = right = STATE
    learned = []
    for rollout in ROLLOUTS[1:]:
        left, inside, mine = one_program(left, replay=inside, rollout=rollout, config=config)
        right, theirs = learn_on_host(update, right, outside, rollout, config)
        learned.append(bool(mine[LEARNED]))
        assert known_metrics(mine) == theirs
        assert_same_trees(inside.arrays, outside.arrays)
        assert_same_trees(left, right)
    assert {True, False} == set(learned)


def test_sequences_have_equal_probabilities_and_no_indices():
    replay = filled(random_stream(40).rollouts(4), 60)
    assert replay.recurrent
    batches, indices = sample_batches(replay, key(0), config_of(0.5, **SMALL))
    assert indices is None
    assert batches.steps.rewards.shape == (6, 4, 2)
    np.testing.assert_array_equal(batches.probabilities, np.ones((6, 2)))


def test_steps_are_taken_on_one_batch_after_the_other_and_metrics_are_their_means():
    def learn(state: State, batch: Batch, config: float) -> tuple[State, tuple[dict[str, Any], Any]]:
        seen = config * state.seen + batch.steps.sum()
        return state._replace(seen=seen), ({"loss/value": seen}, batch.steps - 1)

    batches = Batch(jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), jnp.ones((3, 2)))
    state, metrics, errors = take_steps(learn, STATE, batches, 10.0)
    assert float(state.seen) == 100 * 3 + 10 * 7 + 11
    assert metrics == {"loss/value": pytest.approx((3 + 37 + 381) / 3)}
    np.testing.assert_array_equal(errors, batches.steps - 1)
    assert take_steps(learn, STATE, None, 10.0) == (STATE, {}, None)


@pytest.mark.parametrize(("noise", "shape"), [((4,), (3, 50, 4)), ((2, 4), (3, 2, 50, 4))])
def test_the_noise_of_all_steps_is_standard_normal_and_another_for_each(noise, shape):
    def learn(state: State, batch: Batch, config: None) -> tuple[State, tuple[dict[str, Any], Any]]:
        return state, ({}, batch.noise)

    batches = Batch(jnp.zeros((3, 50)), jnp.ones((3, 50)))
    drawn = np.asarray(take_steps(learn, STATE, batches, None, noise)[2])
    assert drawn.shape == shape
    assert len(np.unique(drawn)) == drawn.size
    assert abs(drawn.mean()) < 5 / np.sqrt(drawn.size)
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / drawn.size)
    np.testing.assert_array_equal(drawn, take_steps(learn, STATE, batches, None, noise)[2])
    other = take_steps(learn, STATE._replace(key=key(1)), batches, None, noise)[2]
    assert not np.any(drawn == other)


# Metrics


def test_what_is_not_known_is_nan_false_or_minus_1():
    like = jax.eval_shape(lambda: (jnp.zeros(2), jnp.zeros((), bool), jnp.zeros(1, jnp.int32)))
    nothing = unknown(like)
    np.testing.assert_array_equal(nothing[0], [np.nan, np.nan])
    assert (bool(nothing[1]), nothing[2].tolist()) == (False, [-1])
    assert [x.dtype for x in nothing] == [x.dtype for x in like]


def test_metrics_of_steps_that_were_not_taken_are_left_out_and_a_nan_of_steps_that_were_is_not():
    metrics = {"loss/value": np.nan, "exploration/epsilon": 0.5}
    assert known_metrics(metrics | {LEARNED: False}) == {"exploration/epsilon": 0.5}
    assert known_metrics(metrics | {LEARNED: True}).keys() == metrics.keys()
    assert known_metrics(metrics).keys() == metrics.keys()


def test_metrics_of_the_latest_gradient_steps_stay_until_there_are_others():
    before = {"loss/value": 3.0, "exploration/epsilon": 0.5, LEARNED: True}
    waited = {"loss/value": np.nan, "exploration/epsilon": 0.25, LEARNED: np.bool_(False)}
    assert newest_metrics(waited, before) == {"loss/value": 3.0, "exploration/epsilon": 0.25, LEARNED: True}
    learned = waited | {"loss/value": 2.0, LEARNED: np.bool_(True)}
    assert newest_metrics(learned, before) == learned
    assert newest_metrics({"loss/value": 2.0}, {"loss/value": 3.0}) == {"loss/value": 2.0}


# Whole runs

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "dqn": (dqn, {"frame_stack": 1}),
    "dqn, prioritized": (dqn, {"prioritized": True, "n_step": 3}),
    "dqn, recurrent": (dqn, {"core": "lstm", "core_size": 4, "burn_in": 2}),
    "ddpg": (ddpg, {}),
    "td3": (td3, {"n_step": 2}),
    "sac": (sac, {}),
}
every_case = pytest.mark.parametrize("case", CASES)


def run_of(case: str) -> list[tuple[Any, dict[str, float], dict[str, np.ndarray]]]:
    """The state, the metrics and what the replay holds after each update of a small run."""
    module, own = CASES[case]
    env = EnvConfig("CartPole-v1" if module is dqn else "Pendulum-v1", num_envs=2, max_episode_steps=9)
    settings = {
        "rollout_length": 6, "update_ratio": 0.3, "learning_starts": 60, "batch_size": 8, "replay_size": 100,
        "hidden_sizes": (8,),
    } | own  # fmt: skip
    with closing(module.train(module.Config(env=env, run=RunConfig(total_steps=240), **settings))) as training:
        return [
            (
                jax.tree.map(np.array, update.state),
                {name: value for name, value in update.metrics.items() if not name.startswith("time/")},
                {name: np.array(array) for name, array in update.snapshot().arrays_under("replay/").items()},
            )
            for update in training
        ]


@every_case
def test_a_run_on_the_host_is_the_same_in_one_program_and_apart_and_all_its_metrics_are_finite(case, monkeypatch):
    together = run_of(case)
    monkeypatch.setattr(speed, "has_several_devices", lambda tree: True)
    for one, other in zip(together, run_of(case), strict=True):  # XLA rounds another way in another program
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), one, other)
    steps = 0
    learned = []
    for state, metrics, _ in together:
        learned.append(int(state.gradient_steps) > steps)
        steps = int(state.gradient_steps)
        assert ("loss/value" in metrics) == learned[-1]
        assert LEARNED not in metrics
        assert all(np.isfinite(value) for name, value in metrics.items() if not name.startswith("episode/")), metrics
    assert learned[:5] == [False] * 5
    assert steps >= 30
    assert not all(learned[5:]), "resets delay some gradient steps"


SEVERAL = """
import json, jax
from birl import speed
from birl.accel.devices import replicated
from birl.algos import dqn
from birl.config import EnvConfig, RunConfig
from birl.rollouts import learning, source

found = []

def learn_on_two(update, state, replay, rollout, config):
    result = learning.learn_on_host(update, jax.device_put(state, replicated()), replay, rollout, config)
    found.append([speed.has_several_devices(result[0]), max(len(x.devices()) for x in jax.tree.leaves(replay.arrays))])
    return result

source.learn_on_host = learn_on_two
config = dqn.Config(
    env=EnvConfig("CartPole-v1", num_envs=2), run=RunConfig(total_steps=60), learning_starts=20, batch_size=8,
    replay_size=64, hidden_sizes=(8,), prioritized=True,
)
for update in dqn.train(config):
    pass
print(json.dumps({"devices": len(jax.devices()), "found": found, "steps": int(update.state.gradient_steps)}))
"""


def test_the_replay_stays_on_one_device_though_the_state_and_its_errors_are_on_several():
    found = outcome(SEVERAL, XLA_FLAGS="--xla_force_host_platform_device_count=2", NPROC="1")
    assert found["devices"] == 2
    assert found["steps"] > 5
    assert found["found"] == [[True, 1]] * len(found["found"])
