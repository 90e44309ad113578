"""REINFORCE: gradients summed over every action, returns of whole episodes, and the probes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from birl.algos import reinforce
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_env, make_envs
from birl.maths.distributions import Categorical
from birl.maths.schedules import linear
from birl.speed import prepare_jax
from birl.types import Rollout
from tests import oracle
from tests.algos.probing import behaviour_log_probs, recording_collector

# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = reinforce.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=9,
    hidden_sizes=(8,),
    core_size=8,
    learning_rate=1e-2,
)
PLAIN = replace(SMALL, baseline=False, normalize_advantages=False)
PROBE = reinforce.Config(
    run=RunConfig(total_steps=6000),
    rollout_length=8,
    discount=0.9,
    hidden_sizes=(16,),
    core_size=8,
    learning_rate=linear(2e-2, 0.0),
    max_grad_norm=None,
)

# Hardly optimised: else the tests would mostly compile. The probes run what users run.
jit = partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
update = jit(reinforce.update.__wrapped__)
gradients_of = jit(jax.grad(reinforce.loss, has_aux=True))


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


class Table(eqx.Module):
    """Logits and a value for each state; an observation is the number of its state."""

    logits: jax.Array  # [S, A]
    values: jax.Array  # [S]

    def __call__(self, observations, memory, resets, action_masks):
        states = observations.astype(int)
        return Categorical(self.logits[states]), self.values[states], memory


def table(logits, values) -> Table:
    return Table(jnp.array(logits, jnp.float32), jnp.array(values, jnp.float32))


def rollout_of(observations, actions, rewards, terminated, truncated=False, valid=True) -> Rollout:
    """A rollout from [T, B] lists, and [T+1, B] observations."""
    shape = np.shape(actions)
    flags = (np.array(np.broadcast_to(flag, shape), bool) for flag in (terminated, truncated, valid))
    return Rollout(np.array(observations, np.float32), np.array(actions), np.array(rewards, np.float32), *flags, ())


@cache
def collected(config: reinforce.Config) -> tuple[reinforce.State, Rollout]:
    """A state and its second rollout, which starts in the middle of episodes."""
    with make_envs(config.env, config.run.seed) as envs:
        state = reinforce.init(config, envs.observation_space, envs.action_space)
        weight = lambda network: network.policy_head.linear.weight  # noqa: E731
        state = state._replace(network=eqx.tree_at(weight, state.network, replace_fn=lambda w: 50 * w))
        collector = recording_collector(envs, reinforce, state, config.rollout_length)
        collector.start(config.run.seed)
        collector.collect(reinforce.policy(state), np.array([0, 1], np.uint32))
        return state, collector.collect(reinforce.policy(state), state.key)


def assert_same_bits(left, right) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


# The two-armed bandit: J = Σ π(a) r(a), and dJ / d logit_a = π(a) (r(a) - J)

CHANCES, REWARDS = np.array([0.25, 0.75]), np.array([3.0, 1.0])
J = CHANCES @ REWARDS
ANALYTIC = CHANCES * (REWARDS - J)


def bandit(pulls: list[int], value: float = 0.0) -> tuple[Table, Rollout]:
    """The policy with those chances, and one episode of one step for each arm that was pulled."""
    return table([np.log(CHANCES)], [value]), rollout_of(
        np.zeros((2, len(pulls))), [pulls], [REWARDS[pulls]], terminated=True
    )


def ascent(pulls: list[int], config: reinforce.Config, value: float = 0.0) -> np.ndarray:
    """The direction in which REINFORCE moves the two logits."""
    network, rollout = bandit(pulls, value)
    return -np.asarray(gradients_of(network, None, rollout, config)[0].logits[0])


EXPECTED_PULLS = [0, 1, 1, 1]  # each arm as often as its chance says: the mean over these is the expectation


def test_the_gradient_on_a_two_armed_bandit_is_the_analytic_one():
    np.testing.assert_allclose(ascent(EXPECTED_PULLS, PLAIN), ANALYTIC, rtol=1e-5)


@pytest.mark.parametrize("value", [-2.0, J, 10.0])
def test_whatever_the_baseline_the_mean_of_the_gradient_stays(value):
    config = replace(PLAIN, baseline=True)
    np.testing.assert_allclose(ascent(EXPECTED_PULLS, config, value), ANALYTIC, rtol=1e-4)
    single = np.array([ascent([arm], config, value) for arm in (0, 1)])
    np.testing.assert_allclose(CHANCES @ single, ANALYTIC, rtol=1e-4)


def test_the_baseline_lowers_the_variance_of_the_gradient():
    def variance(config: reinforce.Config) -> np.ndarray:
        single = np.array([ascent([arm], config, value=J) for arm in (0, 1)])
        return CHANCES @ (single - ANALYTIC) ** 2

    scores = np.array([[1 - CHANCES[0], -CHANCES[1]], [-CHANCES[0], 1 - CHANCES[1]]])  # ∇ log π(a) for each arm a
    for config, value in ((PLAIN, 0.0), (replace(PLAIN, baseline=True), J)):
        known = CHANCES @ (scores * (REWARDS - value)[:, None]) ** 2 - ANALYTIC**2
        np.testing.assert_allclose(variance(config), known, rtol=1e-4)
    assert np.all(variance(replace(PLAIN, baseline=True)) < 0.5 * variance(PLAIN))


def test_the_baseline_is_not_moved_by_the_policys_loss_nor_the_policy_by_the_baselines():
    config = replace(PLAIN, baseline=True, value_weight=0.0)
    network, rollout = bandit(EXPECTED_PULLS, value=7.0)
    assert not np.any(gradients_of(network, None, rollout, config)[0].values)
    weighted = gradients_of(network, None, rollout, replace(config, value_weight=0.5))[0]
    np.testing.assert_allclose(weighted.values, [0.5 * 2 * (7.0 - J)], rtol=1e-5)
    np.testing.assert_allclose(-weighted.logits[0], ANALYTIC, rtol=1e-4)


def test_the_entropy_bonus_moves_towards_the_rarer_arm_by_its_weight():
    network, rollout = bandit(EXPECTED_PULLS)
    with_bonus = -np.asarray(gradients_of(network, None, rollout, replace(PLAIN, entropy_weight=0.1))[0].logits[0])
    entropy = -CHANCES @ np.log(CHANCES)
    np.testing.assert_allclose(with_bonus - ANALYTIC, 0.1 * -CHANCES * (np.log(CHANCES) + entropy), rtol=1e-4)


# Two steps, the second state tells the first action: every one of the four episodes, equally likely

OUTCOMES = np.array([[0.0, 1.0], [2.0, 5.0]])  # reward at the end, by first and second action
FIRST, SECOND = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
FINAL = OUTCOMES[FIRST, SECOND]


def chain(discount: float) -> tuple[Table, Rollout]:
    """The uniform policy with exact values, and all four episodes side by side."""
    after = OUTCOMES.mean(axis=1)
    network = table(np.zeros((4, 2)), [discount * after.mean(), *after, 100.0])  # the value of the end must not be used
    states = [np.zeros(4), 1 + FIRST, np.full(4, 3)]
    return network, rollout_of(states, [FIRST, SECOND], [np.zeros(4), FINAL], [[False] * 4, [True] * 4])


def rows(rollout: Rollout, start: int, stop: int) -> Rollout:
    parts = {
        name: getattr(rollout, name)[start:stop] for name in ("actions", "rewards", "terminated", "truncated", "valid")
    }
    return rollout._replace(observations=rollout.observations[start : stop + 1], **parts)


def test_rollouts_that_cut_every_episode_have_the_expected_gradient_of_whole_episodes_if_the_baseline_is_right():
    config = replace(PLAIN, baseline=True, discount=0.8, value_weight=0.0)
    network, whole = chain(0.8)
    expected = gradients_of(network, None, whole, config)[0].logits
    pieces = [gradients_of(network, None, rows(whole, t, t + 1), config)[0].logits for t in (0, 1)]
    np.testing.assert_allclose((pieces[0] + pieces[1]) / 2, expected, atol=1e-6)
    np.testing.assert_allclose(-expected[0] * 2, 0.8 * 0.5 * (OUTCOMES.mean(axis=1) - OUTCOMES.mean()), atol=1e-6)


def test_a_step_is_not_credited_with_rewards_before_it():
    network, rollout = chain(1.0)
    early = rollout._replace(rewards=np.array([[7.0] * 4, [0.0] * 4], np.float32))
    gradient = gradients_of(network, None, early, PLAIN)[0].logits
    assert not np.any(gradient[1:3])


def test_an_episode_that_the_rollout_cuts_is_dropped_without_a_baseline():
    network, whole = chain(0.8)
    cut = rows(whole, 0, 1)
    gradient, metrics = gradients_of(network, None, cut, replace(PLAIN, entropy_weight=0.1))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))
    assert float(metrics["episode/finished_share"]) == 0.0


# Returns


def explicit_returns(
    rollout: Rollout, next_values: np.ndarray, config: reinforce.Config
) -> tuple[np.ndarray, np.ndarray]:
    """Reward-to-go as a sum over the rows of the episode, and where it may be used."""
    returns, known = np.zeros(rollout.rewards.shape), np.zeros(rollout.rewards.shape, bool)
    for t, b in np.ndindex(*rollout.rewards.shape):
        episode = oracle.episode_rows(t, b, rollout.terminated, rollout.truncated, rollout.valid)
        if not episode:
            continue
        last = episode[-1]
        returns[t, b] = sum(config.discount ** (row - t) * rollout.rewards[row, b] for row in episode)
        if config.baseline and not rollout.terminated[last, b]:
            returns[t, b] += config.discount ** len(episode) * next_values[last, b]
        known[t, b] = config.baseline or rollout.terminated[last, b] or rollout.truncated[last, b]
    return returns, known


TASKS = {"terminated": SMALL.env, "cut by a time limit": EnvConfig("Pendulum-v1", 4, max_episode_steps=4)}


@pytest.mark.parametrize("env", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "no baseline"])
def test_reward_to_go_is_the_explicit_sum_to_the_episodes_end(env, baseline):
    _, rollout = collected(replace(SMALL, env=env))
    config = replace(SMALL, baseline=baseline, discount=0.8)
    values = np.random.default_rng(0).normal(size=rollout.rewards.shape).astype(np.float32) + 3.0
    returns = jit(reinforce.returns_to_go)(rollout, values, config=config)
    known = jit(reinforce.known_rows)(rollout, config=config)
    expected, usable = explicit_returns(rollout, values, config)
    assert usable.any()
    assert np.any(rollout.valid & ~usable) != baseline  # some episodes are under way at the end
    np.testing.assert_array_equal(known, usable)
    np.testing.assert_allclose(np.where(usable, returns, 0), np.where(usable, expected, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_without_a_baseline_nothing_in_an_unfinished_episode_changes_a_bit_of_the_step(core):
    config = replace(SMALL, baseline=False, core=core)
    state, rollout = collected(config)
    _, usable = explicit_returns(rollout, rollout.rewards, config)
    assert np.any(rollout.valid & ~usable)
    other = rollout._replace(
        rewards=np.where(usable, rollout.rewards, 50.0).astype(np.float32),
        actions=np.where(usable, rollout.actions, 1 - rollout.actions),
    )
    (left, _), (right, _) = update(state, rollout, config), update(state, other, config)
    assert_same_bits(left.network, right.network)
    assert np.any(left.network.policy_head.linear.weight != state.network.policy_head.linear.weight)


def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_update():
    config = replace(SMALL, normalize_rewards=True, normalize_observations=True, entropy_weight=0.01)
    state, rollout = collected(config)
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(rollout.valid, rollout.actions, 1 - rollout.actions),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert_same_bits(update(state, rollout, config), update(state, strange, config))


def test_where_no_episode_ends_nothing_moves_not_even_by_the_optimisers_momentum():
    state, rollout = collected(replace(SMALL, baseline=False))
    config = replace(SMALL, baseline=False)
    state, _ = update(state, rollout, config)
    endless = rollout._replace(terminated=np.zeros_like(rollout.terminated))
    after, metrics = update(state, endless, config)
    assert_same_bits((after.network, after.optimizer), (state.network, state.optimizer))
    assert float(metrics["episode/finished_share"]) == 0.0
    assert int(after.env_steps) == int(state.env_steps) + rollout.valid.sum()


def test_the_finished_share_is_that_of_the_steps_whose_episode_ended():
    state, rollout = collected(SMALL)
    _, usable = explicit_returns(rollout, rollout.rewards, replace(SMALL, baseline=False))
    for baseline in (True, False):
        _, metrics = update(state, rollout, replace(SMALL, baseline=baseline))
        assert float(metrics["episode/finished_share"]) == pytest.approx(usable.sum() / rollout.valid.sum())


# Standardisation


@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "no baseline"])
def test_weights_are_standardised_over_the_steps_that_are_learned_from(baseline):
    config = replace(SMALL, baseline=baseline, discount=0.8)
    state, rollout = collected(SMALL)
    inputs = rollout.observations, (), np.zeros(rollout.observations.shape[:2], bool), None
    distribution, values, _ = jax.tree.map(np.asarray, state.network(*inputs))
    returns, usable = explicit_returns(rollout, values[1:], config)
    weights = (returns - values[:-1] if baseline else returns)[usable]
    weights = (weights - weights.mean()) / weights.std()
    probabilities = np.log(oracle.softmax(distribution.logits[:-1]))
    log_probs = np.take_along_axis(probabilities, rollout.actions[..., None], axis=-1)[..., 0][usable]
    _, metrics = update(state, rollout, config)
    assert float(metrics["loss/policy"]) == pytest.approx(-(log_probs * weights).mean(), rel=1e-4)


@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "no baseline"])
def test_a_single_sample_standardises_to_0_and_not_to_nan(baseline):
    config = replace(SMALL, baseline=baseline, normalize_advantages=True)  # SB3 #440
    network, rollout = bandit([0])
    gradient, metrics = gradients_of(network, None, rollout, config)
    assert not np.any(gradient.logits)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((gradient, metrics)))


# Memory, schedules, settings


@pytest.mark.parametrize("core", ["lstm", "gru", "lnlstm"])
def test_the_memory_at_the_rollouts_start_is_used(core):
    config = replace(SMALL, core=core)
    state, rollout = collected(config)
    empty = rollout._replace(memory=jax.tree.map(jnp.zeros_like, rollout.memory))
    (_, kept), (_, lost) = update(state, rollout, config), update(state, empty, config)
    assert abs(float(kept["loss/policy"]) - float(lost["loss/policy"])) > 1e-4
    inputs = (
        rollout.observations[:-1],
        rollout.memory,
        np.concatenate([np.zeros((1, 4), bool), ~rollout.valid[:-1]]),
        None,
    )
    log_probs = jax.jit(lambda network, actions, *inputs: network(*inputs)[0].log_prob(actions))(
        state.network, rollout.actions, *inputs
    )
    np.testing.assert_allclose(log_probs, behaviour_log_probs(rollout), atol=1e-6)


def test_schedules_stand_where_progress_is():
    state, rollout = collected(SMALL)
    halfway = state._replace(env_steps=np.int32(500))
    changing = {"learning_rate": linear(2e-2, 0), "entropy_weight": linear(1, 0)}
    standing = {"learning_rate": 1e-2, "entropy_weight": 0.5}
    (scheduled, metrics), (constant, _) = (
        update(halfway, rollout, replace(SMALL, **settings)) for settings in (changing, standing)
    )
    assert float(metrics["optimizer/learning_rate"]) == pytest.approx(1e-2)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), scheduled, constant)


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
    "env.num_envs 0 is less than 1; use 8, or 1": {"env": EnvConfig(num_envs=0)},
    "core_size 0 must be at least 1": {"core_size": 0},
    "rollout_length 9 is below the 500 steps of an episode of CartPole-v1.*use rollout_length 500 .*baseline True": {
        "env": EnvConfig("CartPole-v1"),
        "baseline": False,
    },
    "rollout_length 9 is below the 10 steps": {
        "env": EnvConfig("CartPole-v1", max_episode_steps=10),
        "baseline": False,
    },
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(reinforce.train(replace(SMALL, **changes)))


def test_without_a_baseline_a_rollout_as_long_as_the_time_limit_is_enough():
    env = EnvConfig("CartPole-v1", num_envs=2, max_episode_steps=9)
    first = next(reinforce.train(replace(SMALL, env=env, baseline=False)))
    assert 0 < first.metrics["episode/finished_share"] <= 1
    assert "loss/value" not in first.metrics


def test_environments_that_are_handed_in_have_no_known_limit():
    config = replace(SMALL, env=EnvConfig("CartPole-v1", num_envs=2), baseline=False)
    own = SyncVectorEnv([partial(make_env, EnvConfig("birl/ProbeMemory-v0"))] * 2)
    assert int(next(reinforce.train(config, own)).state.env_steps) > 0
    own.close()


# Probes: values and policies that are known


def learned(env_id: str, num_envs: int = 8, **changes) -> reinforce.Update:
    """The last update of a short run."""
    *_, last = reinforce.train(replace(PROBE, env=EnvConfig(env_id, num_envs), **changes))
    return last


def answers(state: reinforce.State, *observations) -> Iterator[tuple[float, np.ndarray]]:
    """The value of each observation at an episode's start, and the policy's best action there."""
    for observation in observations:
        batch = np.array(observation, np.float32)[None, None, None]
        inputs = batch, state.network.initial_memory(1), np.zeros((1, 1), bool), None
        distribution, values, _ = jax.jit(lambda network, *inputs: network(*inputs))(state.network, *inputs)
        yield float(values[0, 0]), np.asarray(distribution.mode()[0, 0])


def test_probe_a_reward_one_step_later_is_discounted_once():
    (first, _), (second, _) = answers(learned("birl/ProbeDelayed-v0").state, -1, 1)
    assert (first, second) == pytest.approx((0.9, 1.0), abs=0.03)


@pytest.mark.parametrize("rollout_length", [8, 3])
def test_probe_where_a_time_limit_or_the_rollout_cuts_an_episode_the_value_goes_on(rollout_length):
    last = learned("birl/ProbeTruncation-v0", rollout_length=rollout_length, learning_rate=linear(5e-2, 0.0))
    ((value, _),) = answers(last.state, 0)
    assert value == pytest.approx(1 / (1 - 0.9), abs=0.3)  # without the bootstrap at the cut, below 4.1


@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "no baseline"])
def test_probe_the_better_action_follows_the_observation(baseline):
    (_, right), (_, left) = answers(learned("birl/ProbeObservationAction-v0", baseline=baseline).state, 1, -1)
    assert (right, left) == (1, 0)


@pytest.mark.parametrize("core", [pytest.param("lstm", marks=pytest.mark.slow), "gru"])
def test_probe_what_was_seen_at_the_start_is_remembered(core):
    last = learned("birl/ProbeMemory-v0", core=core)
    assert last.metrics["episode/return"] >= 0.9


def test_probe_episodes_longer_than_the_rollout_are_learned():
    # Not with every seed: gradients go back two steps, and memory is needed for three.
    last = learned(
        "birl/ProbeMemory-v0", core="lstm", rollout_length=2, num_envs=16, run=RunConfig(total_steps=6000, seed=5)
    )
    assert last.metrics["episode/return"] >= 0.9


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_what_was_seen_at_the_start_cannot_be_known_without_memory():
    returns = [
        update.metrics["episode/return"]
        for update in reinforce.train(replace(PROBE, env=EnvConfig("birl/ProbeMemory-v0")))
    ]
    assert np.mean(returns[-20:]) < 0.3  # 0 in the mean


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_masked_action_is_never_taken():
    config = replace(PROBE, env=EnvConfig("birl/ProbeMask-v0"), run=RunConfig(total_steps=2000))
    assert all(update.metrics["episode/return"] == 4.0 for update in reinforce.train(config))


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric():
    for _, action in answers(learned("birl/ProbeContinuous-v0").state, 1, -1):
        assert action == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_every_part_of_a_multi_discrete_and_of_a_multi_binary_action_is_learned():
    for _, action in answers(learned("birl/ProbeMultiDiscrete-v0").state, 1, -1):
        assert action.tolist() == [1, 2]
    (_, ones), (_, zeros) = answers(learned("birl/ProbeMultiBinary-v0").state, 1, -1)
    assert (ones.tolist(), zeros.tolist()) == ([1, 1, 1], [0, 0, 0])
