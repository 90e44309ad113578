"""The collector against an environment that counts, with a policy that counts too."""

import json
from functools import partial
from itertools import pairwise

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.envs.actions import action_clipper
from birl.envs.probes import ActionMask, OneStep
from birl.envs.serial import SerialEnvs
from birl.envs.vector import VectorAdapter
from birl.errors import NonFiniteError
from birl.rollouts.finite import check_finite, check_finite_metrics
from birl.rollouts.source import Collector
from birl.types import Action, Snapshot
from tests.envs.counting import Counting, DictCounting, counting_functions
from tests.envs.faulty import Faulty

SHAPES = [(5, 100), (100, 4), (3, 3)]  # (goal, limit): ends by reaching, by being cut, by whichever comes first
NO_POLICY = None


@jax.jit
def count_and_draw(policy, observations, memory, resets, masks, key):
    """Random actions from 0 to 2; memory and behaviour count the steps since the last reset."""
    memory = jnp.where(resets[:, None], 0.0, memory) + 1.0
    return Action(jax.random.randint(key, resets.shape, 0, 3), memory, memory[:, 0])


@jax.jit
def always_one(policy, observations, memory, resets, masks, key):
    return Action(jnp.ones(resets.shape, jnp.int32), memory)


@jax.jit
def wide_gaussian(policy, observations, memory, resets, masks, key):
    return Action(5.0 * jax.random.normal(key, (*resets.shape, 2)), memory)


@jax.jit
def first_allowed(policy, observations, memory, resets, masks, key):
    return Action(jnp.argmax(masks, axis=-1), memory)


def start(envs, act=count_and_draw, length=7, seed=0, snapshot=None):
    memory = jnp.zeros((envs.num_envs, 1)) if act is count_and_draw else ()
    collector = Collector(
        envs, act, length, memory, behaviour=np.zeros(envs.num_envs, np.float32) if act is count_and_draw else None
    )
    collector.start(seed, snapshot)
    return collector


def key(number):
    return jax.random.key_data(jax.random.key(number))


def joined(rollouts):
    """Rollouts one after another as one: the last observation of each is the first of the next."""
    arrays = {
        name: np.concatenate([getattr(r, name) for r in rollouts])
        for name in ("actions", "rewards", "terminated", "truncated", "valid")
    }
    observations = np.concatenate([r.observations[:-1] for r in rollouts] + [rollouts[-1].observations[-1:]])
    return rollouts[0]._replace(observations=observations, **arrays)


def test_each_observation_is_followed_by_its_true_successor_and_resets_are_marked():
    collector = start(SerialEnvs(counting_functions(SHAPES)))
    rollout = joined([collector.collect(NO_POLICY, key(k)) for k in range(6)])
    names, steps, totals = np.moveaxis(rollout.observations[:-1], -1, 0)
    after = rollout.observations[1:]
    valid = rollout.valid
    assert (~valid).sum() > 10
    np.testing.assert_array_equal(after[valid], np.stack([names, steps + 1, totals + rollout.actions], axis=-1)[valid])
    np.testing.assert_array_equal(after[~valid], np.stack([names, 0 * steps, 0 * totals], axis=-1)[~valid])
    np.testing.assert_array_equal(rollout.rewards, np.where(valid, 10 * (steps + 1) + rollout.actions, 0))
    goals, limits = np.array(SHAPES).T
    reached = after[..., 2] >= goals
    cut = after[..., 1] >= limits
    np.testing.assert_array_equal(rollout.terminated, valid & reached)
    np.testing.assert_array_equal(rollout.truncated, valid & cut & ~reached)
    ended = rollout.terminated | rollout.truncated
    np.testing.assert_array_equal(~valid[1:], ended[:-1])  # a reset follows each end, and nothing else


def test_episodes_go_on_across_rollouts():
    collector = start(SerialEnvs(counting_functions([(1000, 1000)])), length=3)
    rollouts = [collector.collect(NO_POLICY, key(k)) for k in range(4)]
    # ray #41168: environments were reset at the end of a rollout
    np.testing.assert_array_equal(joined(rollouts).observations[:, 0, 1], np.arange(13))
    for before, after in pairwise(rollouts):
        np.testing.assert_array_equal(before.observations[-1], after.observations[0])


def test_returns_and_lengths_of_episodes_that_span_rollouts_are_those_of_the_whole_episode():
    # With action 1: five steps, 10 (1+2+3+4+5) + 5 = 155; four steps, 10 (1+2+3+4) + 4 = 104.
    envs = SerialEnvs(counting_functions([(5, 100), (100, 4)]))
    collector = start(envs, always_one, length=3)
    # 21 rows are 3 episodes of 5 steps and a reset, and 3 steps; or 4 of 4 steps, and 1 step.
    for k in range(7):
        collector.collect(NO_POLICY, key(k))
    assert sorted(collector.episode_stats.recent) == [(104.0, 4)] * 4 + [(155.0, 5)] * 3
    metrics = collector.episode_stats.metrics()
    assert metrics["episode/count"] == 7
    assert metrics["episode/return"] == pytest.approx((4 * 104 + 3 * 155) / 7)
    assert metrics["episode/length"] == pytest.approx((4 * 4 + 3 * 5) / 7)
    assert collector.episode_stats.lengths.tolist() == [3, 1]
    assert collector.episode_stats.returns.tolist() == [10 * (1 + 2 + 3) + 3, 10 * 1 + 1]


def test_several_episodes_of_one_environment_in_one_rollout_are_counted_apart():
    collector = start(SerialEnvs(counting_functions([(5, 100)])), always_one, length=20)
    collector.collect(NO_POLICY, key(0))
    assert list(collector.episode_stats.recent) == [(155.0, 5)] * 3
    assert collector.episode_stats.lengths.tolist() == [2]


def test_the_episode_metrics_are_the_mean_of_the_last_20():
    collector = start(SerialEnvs(counting_functions([(5, 100)])), always_one, length=6)
    collector.episode_stats.recent.extend([(0.0, 0)] * 20)
    for k in range(20):
        assert collector.episode_stats.metrics()["episode/return"] == pytest.approx(155 * k / 20)
        collector.collect(NO_POLICY, key(k))
    assert collector.episode_stats.metrics()["episode/return"] == 155.0


class Losing(SerialEnvs):
    """Loses an episode in its third step, as when a worker dies: a reset without an end."""

    steps = 0

    def step(self, actions):
        self.steps += 1
        self._ended[0] |= self.steps == 3
        return super().step(actions)


def test_an_episode_that_was_lost_is_counted_neither_by_itself_nor_with_the_next():
    collector = start(Losing(counting_functions([(5, 100)])), always_one, length=4)
    rollouts = [collector.collect(NO_POLICY, key(k)) for k in range(3)]
    assert joined(rollouts).valid[:, 0].tolist() == [
        True,
        True,
        False,
        True,
        True,
        True,
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert list(collector.episode_stats.recent) == [(155.0, 5)]
    assert collector.episode_stats.lengths.tolist() == [3]


def test_the_return_is_nan_before_an_episode_has_ended():
    assert np.isnan(start(SerialEnvs(counting_functions(SHAPES))).episode_stats.metrics()["episode/return"])


def test_memory_is_emptied_exactly_at_the_first_observation_of_an_episode():
    collector = start(SerialEnvs(counting_functions(SHAPES)), length=5)
    resets = 0
    for k in range(12):
        rollout = collector.collect(NO_POLICY, key(k))
        resets += (~rollout.valid[-1]).sum()
        # The policy has counted the episode's steps as the environment has, also in a reset's row.
        np.testing.assert_array_equal(rollout.behaviour, rollout.observations[:-1, :, 1] + 1)
        np.testing.assert_array_equal(np.where(rollout.resets, 0, rollout.memory[:, 0]), rollout.observations[0, :, 1])
    assert resets > 0  # some rollouts began right after a reset


def test_a_rollouts_memory_is_that_before_its_first_step():
    collector = start(SerialEnvs(counting_functions([(1000, 1000)])), length=3)
    assert [float(collector.collect(NO_POLICY, key(k)).memory[0, 0]) for k in range(3)] == [0.0, 3.0, 6.0]


def through_json(snapshot):
    return Snapshot(
        {name: array.copy() for name, array in snapshot.arrays.items()},
        json.loads(json.dumps(snapshot.values)),
        snapshot.exact,
        snapshot.reason,
    )


@pytest.mark.parametrize("length", [4, 5, 7])
def test_a_snapshot_goes_on_bit_for_bit_where_it_was_taken(length):
    collector = start(SerialEnvs(counting_functions(SHAPES)), length=length)
    for k in range(3):
        collector.collect(NO_POLICY, key(k))
    snapshot = through_json(collector.snapshot())
    resumed = start(SerialEnvs(counting_functions(SHAPES)), length=length, seed=99, snapshot=snapshot)
    assert snapshot.exact
    for k in range(3, 8):
        jax.tree.map(
            np.testing.assert_array_equal, collector.collect(NO_POLICY, key(k)), resumed.collect(NO_POLICY, key(k))
        )
    assert list(collector.episode_stats.recent) == list(resumed.episode_stats.recent)
    assert collector.episode_stats.metrics()["episode/return"] == resumed.episode_stats.metrics()["episode/return"]
    assert collector.episode_stats.episodes == resumed.episode_stats.episodes
    np.testing.assert_array_equal(collector.episode_stats.returns, resumed.episode_stats.returns)
    np.testing.assert_array_equal(collector.episode_stats.lengths, resumed.episode_stats.lengths)


def test_a_rollout_tells_which_episodes_begin_with_it():
    collector = start(SerialEnvs(counting_functions(SHAPES)), length=5)
    expected = np.ones(3, bool)
    for k in range(6):
        rollout = collector.collect(NO_POLICY, key(k))
        np.testing.assert_array_equal(rollout.resets, expected)
        expected = ~rollout.valid[-1]


def test_after_a_restore_that_could_not_go_back_all_episodes_begin():
    vector = partial(gym.vector.SyncVectorEnv, counting_functions(SHAPES))  # which cannot save its state
    collector = start(VectorAdapter(vector()), length=2)
    collector.collect(NO_POLICY, key(0))
    assert not collector.collect(NO_POLICY, key(1)).resets.any()
    with pytest.warns(UserWarning, match="this resume is not exact"):
        resumed = start(VectorAdapter(vector()), length=2, snapshot=collector.snapshot())
    assert resumed.collect(NO_POLICY, key(2)).resets.all()


def test_a_snapshot_is_not_changed_by_what_is_collected_after_it():
    collector = start(SerialEnvs(counting_functions(SHAPES)))
    collector.collect(NO_POLICY, key(0))
    snapshot = collector.snapshot()
    before = through_json(snapshot)
    collector.collect(NO_POLICY, key(1))
    jax.tree.map(np.testing.assert_array_equal, snapshot.arrays, before.arrays)
    assert json.loads(json.dumps(snapshot.values)) == before.values


def test_a_rollout_is_not_changed_by_the_next():
    collector = start(SerialEnvs(counting_functions(SHAPES)))
    rollout = collector.collect(NO_POLICY, key(0))
    copy = jax.tree.map(np.array, rollout)
    collector.collect(NO_POLICY, key(1))
    jax.tree.map(np.testing.assert_array_equal, rollout, copy)


class Drawing(gym.Env):
    """Observes random numbers, so that seeds show."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action):
        return self.np_random.random(2, np.float32), 0.0, bool(self.np_random.random() < 0.2), False, {}


def test_two_collectors_with_the_same_seed_are_identical_and_seed_0_is_a_seed():
    runs = {}
    for seed in (0, 0, 1):
        collector = start(SerialEnvs([Drawing] * 3), seed=seed)
        runs.setdefault(seed, []).append([collector.collect(NO_POLICY, key(k)) for k in range(2)])
    jax.tree.map(np.testing.assert_array_equal, *runs[0])
    assert not np.any(runs[0][0][0].observations == runs[1][0][0].observations)


def test_the_same_key_draws_the_same_actions_and_another_key_others():
    first, again, other = (
        start(SerialEnvs(counting_functions([(9, 9)] * 3))).collect(NO_POLICY, key(k)).actions for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_every_step_of_a_rollout_draws_with_a_key_of_its_own():
    collector = start(
        SerialEnvs([partial(OneStep, spaces.Box(-2, 3, (2,), np.float32), lambda *_: 0.0)]), wide_gaussian, length=50
    )
    actions = collector.collect(NO_POLICY, key(0)).actions
    assert len(np.unique(actions)) == actions.size


def test_a_box_action_is_stored_as_drawn_and_clipped_for_the_environment():
    received = []

    def remember(_, action):
        received.append(np.array(action))
        return 0.0

    bounds = spaces.Box(np.float32([-2, -0.5]), np.float32([3, 0.5]))
    rollout = start(SerialEnvs([partial(OneStep, bounds, remember)]), wide_gaussian, length=40).collect(
        NO_POLICY, key(0)
    )
    stored = rollout.actions[rollout.valid]
    assert (stored < bounds.low).any()
    assert (stored > bounds.high).any()
    np.testing.assert_array_equal(received, np.clip(stored, [-2, -0.5], [3, 0.5]).astype(np.float32))


def test_actions_of_several_axes_reach_the_environment_in_its_shape():
    flat = np.arange(12).reshape(2, 6)
    assert action_clipper(spaces.Box(-100, 100, (2, 3), np.float32))(flat.astype(np.float32)).shape == (2, 2, 3)
    assert action_clipper(spaces.MultiBinary((2, 3)))(flat).shape == (2, 2, 3)
    np.testing.assert_array_equal(action_clipper(spaces.Discrete(3))(np.array([0, 2])), [0, 2])


def test_the_mask_stored_with_an_action_is_the_one_it_was_chosen_under():
    rollout = start(SerialEnvs([ActionMask] * 3), first_allowed, length=30).collect(NO_POLICY, key(0))
    assert rollout.action_masks.shape == (31, 3, 3)
    np.testing.assert_array_equal(rollout.actions, rollout.action_masks[:-1].argmax(-1))
    assert (rollout.rewards[rollout.valid] == 1).all()  # the environment agrees that all were allowed
    assert (~rollout.action_masks[:-1][rollout.valid]).sum(-1).tolist() == [1] * rollout.valid.sum()


@jax.jit
def tell(policy, observations, memory, resets, masks, key):
    """The largest of three random numbers; the behaviour is these numbers."""
    numbers = jax.random.normal(key, (*resets.shape, 3))
    return Action(jnp.argmax(numbers, axis=-1), memory, {"logits": numbers, "first": numbers[:, 0]})


def test_what_a_policy_tells_of_its_actions_is_kept_with_each_of_them_if_asked_for():
    envs = SerialEnvs(counting_functions(SHAPES))
    collector = Collector(
        envs, tell, 7, (), behaviour={"logits": np.zeros((3, 3), np.float32), "first": np.zeros(3, np.float32)}
    )
    collector.start(0)
    assert jax.tree.map(np.shape, collector.empty_rollout().behaviour) == {"logits": (7, 3, 3), "first": (7, 3)}
    rollout = collector.collect(NO_POLICY, key(0))
    np.testing.assert_array_equal(rollout.behaviour["logits"].argmax(-1), rollout.actions)
    np.testing.assert_array_equal(rollout.behaviour["first"], rollout.behaviour["logits"][..., 0])
    assert len(np.unique(rollout.behaviour["first"])) == 21


def test_what_a_policy_tells_unasked_is_not_kept():
    assert start(SerialEnvs(counting_functions(SHAPES)), tell).collect(NO_POLICY, key(0)).behaviour is None


@jax.jit
def act_with_extras(policy, observations, memory, resets, masks, key):
    return Action(jnp.ones(resets.shape, jnp.int32), memory, extras=(observations[None], None, 2 * observations[None]))


def test_the_extras_of_a_policy_are_kept_step_by_step_as_they_are():
    collector = start(SerialEnvs(counting_functions(SHAPES)), act_with_extras, length=7)
    for number in range(2):  # the second has its own
        rollout = collector.collect(NO_POLICY, key(number))
        assert len(rollout.extras) == 7
        for observations, (once, none, twice) in zip(rollout.observations, rollout.extras, strict=False):
            np.testing.assert_array_equal(once, observations[None])
            assert none is None
            np.testing.assert_array_equal(twice, 2 * observations[None])


def test_without_extras_a_rollout_has_none():
    assert start(SerialEnvs(counting_functions(SHAPES)), always_one).collect(NO_POLICY, key(0)).extras is None


def test_the_mask_after_the_last_step_is_the_first_of_the_next_rollout():
    collector = start(SerialEnvs([ActionMask] * 3), first_allowed, length=7)
    first = collector.collect(NO_POLICY, key(0))
    second = collector.collect(NO_POLICY, key(1))
    np.testing.assert_array_equal(first.action_masks[-1], second.action_masks[0])
    assert not first.action_masks[-1].all()
    assert start(SerialEnvs([partial(Counting, 5, 100)]), always_one).collect(NO_POLICY, key(0)).action_masks is None


def test_a_rollout_until_the_end_stops_there_and_the_next_begins_with_the_reset():
    envs = SerialEnvs(counting_functions([(5, 100)]))
    collector = Collector(envs, always_one, 3, (), until_end=True)
    collector.start(0)
    rollouts = [collector.collect(NO_POLICY, key(number)) for number in range(4)]
    assert [rollout.valid[:, 0].tolist() for rollout in rollouts] == [
        [True] * 3,
        [True, True, False],
        [False, True, True],
        [True] * 3,
    ]
    assert [bool(rollout.terminated.any()) for rollout in rollouts] == [False, True, False, True]
    np.testing.assert_array_equal(rollouts[2].observations[0], rollouts[1].observations[2])
    assert collector.episode_stats.metrics()["episode/length"] == 5
    assert collector.episode_stats.metrics()["episode/count"] == 2


def test_after_a_rollout_that_ended_early_every_action_is_allowed():
    collector = Collector(SerialEnvs([ActionMask]), first_allowed, 6, (), until_end=True)  # episodes of four steps
    collector.start(0)
    rollout = collector.collect(NO_POLICY, key(0))
    assert rollout.valid[:, 0].tolist() == [True] * 4 + [False] * 2
    assert rollout.action_masks[4:].all()


def test_dict_observations_are_collected_part_by_part():
    collector = start(SerialEnvs(counting_functions(SHAPES, DictCounting)), always_one, length=7)
    rollout = collector.collect(NO_POLICY, key(0))
    steps = rollout.observations["count/steps"]
    assert steps.shape == (8, 3)
    np.testing.assert_array_equal(steps[1:][rollout.valid], steps[:-1][rollout.valid] + 1)
    np.testing.assert_array_equal(rollout.observations["pair/0"][..., 0, 0, 0], steps)


def faulty(fault, at=2):
    """Two environments, of which the second goes wrong at its `at`-th step."""
    return SerialEnvs([partial(Faulty, "none"), partial(Faulty, fault, at)])


def test_a_nan_observation_stops_with_the_environment_and_the_step():
    with pytest.raises(NonFiniteError, match=r"observation of environment 1 is nan at step 2 of the rollout"):
        start(faulty("nan observation"), always_one).collect(NO_POLICY, key(0))


def test_an_infinite_reward_stops_with_the_environment_and_the_step():
    with pytest.raises(NonFiniteError, match=r"reward of environment 1 is inf at step 1 of the rollout"):
        start(faulty("infinite reward"), always_one).collect(NO_POLICY, key(0))


def test_a_nan_in_a_dict_names_the_part():
    collector = start(SerialEnvs(counting_functions(SHAPES, DictCounting)), always_one)
    rollout = collector.collect(NO_POLICY, key(0))
    rollout.observations["count/total"][3, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"observation count/total of environment 1 is nan at step 3"):
        check_finite(rollout)


def test_an_exception_in_an_environment_names_the_environment_and_keeps_its_words():
    with pytest.raises(RuntimeError, match="environment 1 raised in step: ValueError: the simulator diverged"):
        start(faulty("raise"), always_one).collect(NO_POLICY, key(0))


class NanThenRaise(Counting):
    """As simulators do: shows NaN, and fails at the next step because of it."""

    def step(self, action):
        if self.steps == 1:
            raise ValueError("cannot step from NaN")
        observation, *rest = super().step(action)
        return observation * np.nan, *rest


def test_if_a_nan_came_before_an_exception_the_nan_is_reported_as_the_cause():
    with pytest.raises(NonFiniteError, match="observation of environment 0"):
        start(SerialEnvs([NanThenRaise]), always_one).collect(NO_POLICY, key(0))


def test_a_gradient_that_is_not_finite_is_refused_with_advice():
    assert check_finite_metrics({"optimizer/grad_norm": jnp.float32(2.0)}) == {"optimizer/grad_norm": 2.0}
    with pytest.raises(NonFiniteError, match=r"gradient's norm is nan.*Lower learning_rate"):
        check_finite_metrics({"optimizer/grad_norm": jnp.nan})
    with pytest.raises(NonFiniteError, match=r"gradient's norm is inf"):
        check_finite_metrics({"optimizer/grad_norm": jnp.float32(2.0), "optimizer/value_grad_norm": jnp.inf})


def test_the_time_that_something_takes_is_added_to_its_name():
    collector = start(SerialEnvs(counting_functions(SHAPES)))
    with collector.episode_stats.timed("learning"):
        collector.collect(NO_POLICY, key(0))
    seconds = {
        name: collector.episode_stats.metrics()[f"time/{name}_seconds"]
        for name in ("environment", "policy", "learning")
    }
    assert 0 < seconds["environment"] + seconds["policy"] < seconds["learning"]


def test_a_rollout_that_ends_with_the_episode_leaves_the_rest_of_its_rows_empty_and_nothing_out():
    whole, parts = (start(SerialEnvs(counting_functions([(5, 100)])), always_one) for _ in range(2))
    parts.until_end = True
    steps = [rollout.valid.sum() for rollout in (parts.collect(NO_POLICY, key(0)) for _ in range(3))]
    rollouts = [parts.collect(NO_POLICY, key(0)) for _ in range(2)]
    assert steps == [5, 5, 5]
    for rollout in rollouts:
        ends = np.flatnonzero(rollout.terminated[:, 0])
        assert ends.tolist() == [5]  # after the environment's own reset
        assert not rollout.valid[6:].any()
    for _ in range(5):
        whole.collect(NO_POLICY, key(0))
    assert parts.episode_stats.metrics()["episode/count"] == 5
    assert parts.episode_stats.metrics()["episode/length"] == whole.episode_stats.metrics()["episode/length"] == 5
    assert parts.episode_stats.metrics()["episode/return"] == whole.episode_stats.metrics()["episode/return"]
