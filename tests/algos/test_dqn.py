"""DQN: targets by hand, a chain with known Q, what moves the target network, and the probes."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.algos import dqn
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.maths.schedules import linear, piecewise
from birl.maths.statistics import Moments
from birl.nets.layers import Linear, make_linear
from birl.nets.values import double_q_values, values_here
from birl.rollouts.learning import Batch, sample_batches
from birl.rollouts.replay import Indices, Replay, make_replay
from birl.rollouts.source import Collector
from birl.speed import prepare_jax
from birl.types import Rollout, Snapshot, Transitions
from tests import oracle
from tests.algos import chain
from tests.algos.probing import assert_same_bits, sign

# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = dqn.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=10,
    update_ratio=0.1,
    learning_starts=0,
    batch_size=16,
    replay_size=500,
    hidden_sizes=(8,),
    core_size=8,
    priority_correction=1.0,
)
TRUNCATING = replace(SMALL, env=EnvConfig("birl/ProbeTruncation-v0", num_envs=4))
MASKED = replace(SMALL, env=EnvConfig("birl/ProbeMask-v0", num_envs=4), rollout_length=8, update_ratio=0.125)
PROBE = dqn.Config(
    env=EnvConfig(num_envs=4),
    run=RunConfig(total_steps=3000),
    rollout_length=8,
    update_ratio=0.25,
    learning_starts=100,
    batch_size=32,
    replay_size=2000,
    discount=0.9,
    exploration=linear(1.0, 0.1, 0.5),
    target_every=20,
    learning_rate=linear(2e-2, 1e-3),
    hidden_sizes=(16,),
    core_size=8,
    priority_correction=1.0,
)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


# Hardly optimised: else the tests would mostly compile. The probes run what users run.
jit = partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
compare_transitions, compare_sequences = jit(dqn.compare_transitions), jit(dqn.compare_sequences)
loss_and_gradients = jit(jax.value_and_grad(dqn.loss, has_aux=True, argnums=(0, 1)))
learn, update = jit(dqn.learn), jit(dqn.update.__wrapped__)


class Replayed(NamedTuple):
    """A state whose networks differ, its rollouts, and a replay of them."""

    state: dqn.State
    rollouts: list[Rollout]
    replay: Replay


def perturbed(network: Any, seed: int) -> Any:
    """A network with other parameters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(p + 0.5 * rng.standard_normal(p.shape), jnp.float32), network)


@cache
def replayed(config: dqn.Config) -> Replayed:
    """Six rollouts of a network unlike the initial one, with another target network and moments."""
    with make_envs(config.env, config.run.seed) as envs:
        state = dqn.init(config, envs.observation_space, envs.action_space)
        state = state._replace(network=perturbed(state.network, 1), target=perturbed(state.network, 2))
        collector = Collector(envs, dqn.act, config.rollout_length, state.network.initial_memory(envs.num_envs))
        collector.start(config.run.seed)
        replay = make_replay(config.replay, collector.empty_rollout(), config.discount)
        rollouts = [collector.collect(dqn.policy(state), np.array([3, number], np.uint32)) for number in range(6)]
        for rollout in rollouts:
            replay.add(rollout)
        return Replayed(state, rollouts, replay)


def one_batch(config: dqn.Config) -> tuple[dqn.State, Batch]:
    """A state and the first of the batches drawn for it."""
    state, _, replay = replayed(config)
    batches, _ = sample_batches(replay, state.key, config)
    return state, jax.tree.map(lambda x: x[0], batches)


def values_at(network: Any, observations: np.ndarray) -> np.ndarray:
    """Q of a feed-forward network at observations [N, ...]."""
    found, _ = values_here(network, observations, (), np.zeros(len(observations), bool))
    return np.asarray(found.mean(), np.float64)


def errors_in(compared: dqn.Compared) -> Any:
    """How much higher the target is than what was predicted."""
    return compared.targets.mean() - compared.predicted.mean()


def errors_of(state: dqn.State, batch: Transitions | Rollout, config: dqn.Config) -> np.ndarray:
    compare = compare_transitions if isinstance(batch, Transitions) else compare_sequences
    return np.asarray(errors_in(compare(state.network, state.target, state.normalizer, batch, config)))


# Targets


@pytest.mark.parametrize("config", [SMALL, TRUNCATING], ids=["terminated", "truncated"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_the_error_is_reward_plus_discounted_value_of_the_best_next_action_minus_q(config, double, n_step):
    """(Mnih et al. 2015, algorithm 1; van Hasselt et al. 2016, eq. 4.)"""
    config = replace(config, double=double, n_step=n_step)
    state, batch = one_batch(config)
    steps = batch.steps
    following, target = (values_at(network, steps.next_observations) for network in (state.network, state.target))
    best = (following if double else target).argmax(-1)
    bootstrap = np.take_along_axis(target, best[:, None], axis=-1)[:, 0]
    taken = np.take_along_axis(values_at(state.network, steps.observations), steps.actions[:, None], axis=-1)[:, 0]
    expected = steps.rewards + steps.discounts * bootstrap - taken
    np.testing.assert_allclose(errors_of(state, steps, config), expected, atol=1e-5)
    assert np.any(steps.discounts == 0) == (config is not TRUNCATING and config.env == SMALL.env)


@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_double_is_vanilla_when_both_networks_are_equal_and_only_then(core):
    state, batch = one_batch(replace(SMALL, core=core))
    equal = state._replace(target=state.network)
    vanilla, double = (replace(SMALL, core=core, double=double) for double in (False, True))
    np.testing.assert_array_equal(errors_of(equal, batch.steps, vanilla), errors_of(equal, batch.steps, double))
    assert np.abs(errors_of(state, batch.steps, vanilla) - errors_of(state, batch.steps, double)).max() > 1e-2


def test_the_best_value_is_the_targets_of_the_action_that_the_other_values_most_among_those_allowed():
    choosing = jnp.array([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]])
    target = jnp.array([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
    np.testing.assert_array_equal(double_q_values(choosing, target, None), [20.0, 60.0])
    np.testing.assert_array_equal(double_q_values(target, target, None), [30.0, 60.0])
    masks = np.array([[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(double_q_values(choosing, target, masks), [30.0, 50.0])


def preferring(network: Any, action: int) -> Any:
    """The network, with that action worth a million more."""
    return eqx.tree_at(lambda n: n.head.bias, network, replace_fn=lambda bias: bias.at[action].add(1e6))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_a_masked_next_action_is_never_bootstrapped_from_and_an_allowed_one_is(core, double):
    config = replace(MASKED, core=core, double=double)
    state, batch = one_batch(config)
    steps = batch.steps
    if core == "feedforward":
        masks = steps.next_action_masks
        bootstraps = steps.discounts > 0
    else:
        masks = steps.action_masks[1:]
        bootstraps = steps.valid & ~steps.terminated
        assert bootstraps[-1].any(), "a sequence's last step bootstraps too"
    plain = errors_of(state, steps, config)
    for action in range(3):
        preferred = state._replace(target=preferring(state.target, action))
        if double:  # the network chooses the action, so it must prefer it, too
            preferred = preferred._replace(network=preferring(state.network, action))
        changed = errors_of(preferred, steps, config) + np.where(double & (steps.actions == action), 1e6, 0)
        much = np.abs(changed - plain) > 1e5
        np.testing.assert_array_equal(much, bootstraps & masks[..., action])


# Loss and gradients


def test_the_slope_of_the_loss_is_the_error_clipped_at_1():
    state, batch = one_batch(SMALL)
    steps = batch.steps._replace(rewards=batch.steps.rewards + np.linspace(-4, 4, 16, dtype=np.float32))
    errors = errors_of(state, steps, SMALL)
    assert (np.abs(errors) > 1).any()
    assert (np.abs(errors) < 1).any()
    (value, (metrics, _)), (gradients, of_target) = loss_and_gradients(
        state.network,
        state.target,
        state.normalizer,
        Batch(steps, np.ones(16, np.float32)),
        SMALL,
    )
    for action in range(2):
        expected = -np.mean(np.clip(errors, -1, 1) * np.asarray(steps.actions == action))
        assert float(gradients.head.bias[action]) == pytest.approx(expected, abs=1e-5)
    huber = np.where(np.abs(errors) <= 1, errors**2 / 2, np.abs(errors) - 0.5)
    assert float(value) == float(metrics["loss/value"]) == pytest.approx(huber.mean(), rel=1e-5)
    assert float(metrics["value/td_error"]) == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_target))


@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_no_gradient_flows_through_the_target_even_if_it_is_the_network(core):
    config = replace(SMALL, core=core)
    state, batch = one_batch(config)

    equal = state._replace(target=state.network)
    _, (of_network, of_target) = loss_and_gradients(*equal[:2], state.normalizer, batch, config)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_target))
    # The loss falls by the clipped error where Q(s, a) rises: a bias has those of its action.
    slopes = np.clip(errors_of(equal, batch.steps, config), -1, 1)
    valid = np.ones_like(slopes) if core == "feedforward" else np.asarray(batch.steps.valid)
    expected = [-(slopes * valid * (batch.steps.actions == action)).sum() / valid.sum() for action in range(2)]
    np.testing.assert_allclose(of_network.head.bias, expected, atol=1e-5)


@pytest.mark.parametrize("correction", [0.0, 0.4, 1.0])
def test_each_error_is_weighed_by_its_chance_to_the_minus_beta_over_the_largest_such_weight(correction):
    """(Schaul et al. 2016, section 3.4.)"""
    state, batch = one_batch(SMALL)
    probabilities = np.random.default_rng(0).uniform(0.1, 3, 16).astype(np.float32)
    errors = errors_of(state, batch.steps, SMALL)
    (value, _), _ = loss_and_gradients(
        state.network,
        state.target,
        state.normalizer,
        Batch(batch.steps, probabilities),
        replace(SMALL, priority_correction=correction),
    )
    weights = (1 / probabilities.astype(np.float64)) ** correction
    huber = np.where(np.abs(errors) <= 1, errors**2 / 2, np.abs(errors) - 0.5)
    assert float(value) == pytest.approx(np.mean(weights / weights.max() * huber), rel=1e-5)


def test_with_beta_1_the_expected_gradient_of_prioritised_draws_points_where_that_of_equal_chances_does():
    # Σ_i P_i ∇l_i / P_i is N times the mean: weight every transition by its probability.
    config = SMALL
    state, _, replay = replayed(config)
    known = np.argwhere(replay.on_host().columns.valid[: replay.rows(replay.on_host()).stop])
    indices = Indices(*known.T, np.ones(len(known), np.float32))
    batch = replay.gather(indices)
    probabilities = np.random.default_rng(0).uniform(0.1, 3, len(known)).astype(np.float32)

    @jax.jit
    def expected_gradient(probabilities, correction):
        def weighed(network):  # each transition counts as often as it would be drawn
            compared = dqn.compare_transitions(network, state.target, state.normalizer, batch, config)
            weights = (probabilities / probabilities.min()) ** -correction
            errors, _ = compared.predicted.loss(jax.lax.stop_gradient(compared.targets))
            return jnp.sum(probabilities * weights * errors)

        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(jax.grad(weighed)(state.network))])

    fair, corrected, biased = (
        expected_gradient(p, b)
        for p, b in ((np.ones_like(probabilities), 0.0), (probabilities, 1.0), (probabilities, 0.0))
    )
    alike = [float(jnp.vdot(fair, g) / jnp.linalg.norm(fair) / jnp.linalg.norm(g)) for g in (corrected, biased)]
    assert alike[0] == pytest.approx(1.0, abs=1e-5)
    assert alike[1] < 0.9999


# Sequences


@pytest.mark.parametrize("config", [SMALL, TRUNCATING], ids=["terminated", "truncated"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_without_memory_the_errors_of_a_sequence_are_those_of_its_transitions(config, n_step):
    config = replace(config, n_step=n_step)
    state, rollouts, replay = replayed(config)
    sequence = rollouts[2]
    length = config.rollout_length
    rows, envs = np.argwhere(sequence.valid[: length - n_step + 1]).T  # those whose n rewards are all inside
    batch = replay.gather(Indices(2 * length + rows, envs, np.ones(len(rows))))
    compared = compare_sequences(state.network, state.target, state.normalizer, sequence, config)
    np.testing.assert_array_equal(compared.valid, sequence.valid)
    np.testing.assert_allclose(errors_in(compared)[rows, envs], errors_of(state, batch, config), atol=1e-5)


def step_by_step(network: Any, sequence: Rollout) -> np.ndarray:
    """Q at the T+1 observations of a sequence, asked for one at a time as in acting."""
    memory = sequence.memory
    found = []
    resets = np.concatenate([np.zeros_like(sequence.valid[:1]), ~sequence.valid])
    ask = jax.jit(lambda *inputs: network(*inputs))
    for observations, begins in zip(sequence.observations, resets, strict=True):
        values, memory = ask(observations[None], memory, begins[None])
        found.append(np.asarray(values.mean()[0], np.float64))
    return np.stack(found)


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("n_step", [1, 2])
def test_with_memory_the_errors_are_those_of_both_networks_run_step_by_step_from_the_memory_at_the_start(core, n_step):
    config = replace(SMALL, core=core, n_step=n_step)
    state, rollouts, _ = replayed(config)
    sequence = rollouts[1]
    assert any(np.any(leaf) for leaf in jax.tree.leaves(sequence.memory))
    ours, theirs = step_by_step(state.network, sequence), step_by_step(state.target, sequence)
    bootstrap = np.take_along_axis(theirs[1:], ours[1:].argmax(-1)[..., None], axis=-1)[..., 0]
    flags = sequence.terminated, sequence.truncated, sequence.valid
    targets = oracle.n_step_returns(sequence.rewards, *flags, bootstrap, config.discount, n_step)
    taken = np.take_along_axis(ours[:-1], sequence.actions[..., None], axis=-1)[..., 0]
    errors = errors_of(state, sequence, config)
    np.testing.assert_allclose(errors[sequence.valid], (targets - taken)[sequence.valid], atol=1e-4)


@pytest.mark.parametrize("burn_in", [1, 4, 9])
def test_after_a_burn_in_errors_are_what_they_are_without_and_those_before_do_not_count(burn_in):
    config = replace(SMALL, core="lstm")
    state, batch = one_batch(config)
    inputs = state.network, state.target, state.normalizer, batch.steps
    whole, warm = (compare_sequences(*inputs, each) for each in (config, replace(config, burn_in=burn_in)))
    np.testing.assert_allclose(errors_in(warm), errors_in(whole)[burn_in:], atol=1e-5)
    np.testing.assert_array_equal(warm.valid, whole.valid[burn_in:])


def test_no_gradient_flows_through_the_burn_in():
    config = replace(SMALL, core="gru", rollout_length=3)
    state, rollouts, _ = replayed(config)

    @partial(jax.jit, static_argnames="config")
    def by_observation(observations, steps, config):
        def total(observations):
            batch = steps._replace(observations=observations)
            compared = dqn.compare_sequences(state.network, state.target, state.normalizer, batch, config)
            return jnp.sum(errors_in(compared) * compared.valid)

        return jax.grad(total)(observations)

    steps = rollouts[3]  # two steps of an episode under way, and a reset
    cold, warm = (by_observation(steps.observations, steps, replace(config, burn_in=burn_in)) for burn_in in (0, 1))
    assert np.any(cold[0])
    assert not np.any(warm[0])
    assert np.any(warm[1])


def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_loss():
    config = replace(SMALL, core="gru", normalize_rewards=True)
    state, batch = one_batch(config)
    steps = batch.steps
    strange = steps._replace(
        rewards=np.where(steps.valid, steps.rewards, 1e6).astype(np.float32),
        actions=np.where(steps.valid, steps.actions, 1 - steps.actions),
    )
    assert np.any(strange.rewards != steps.rewards)
    results = [
        loss_and_gradients(state.network, state.target, state.normalizer, batch._replace(steps=s), config)
        for s in (steps, strange)
    ]
    assert_same_bits(results[0][0][0], results[1][0][0])
    assert_same_bits(results[0][1], results[1][1])


def test_rewards_are_divided_by_the_deviation_of_returns_seen_by_now():
    config = replace(SMALL, normalize_rewards=True)
    state, batch = one_batch(config)
    deviations = (1.0, 2.0)
    errors = [
        errors_of(
            state._replace(
                normalizer=state.normalizer._replace(
                    returns=Moments(np.float32(9), np.float32(0), np.float32(deviation**2))
                )
            ),
            batch.steps,
            config,
        )
        for deviation in deviations
    ]
    np.testing.assert_allclose(errors[0] - errors[1], batch.steps.rewards / 2, atol=1e-5)


# The target network


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_the_target_network_moves_every_so_many_gradient_steps_and_stands_still_between(rate):
    config = replace(SMALL, target_every=3, target_rate=rate, learning_rate=1e-2)
    state, batch = one_batch(config)
    for number in range(1, 8):
        before = state.target
        state, _ = learn(state, batch, config)
        assert int(state.gradient_steps) == number
        if number % 3:
            assert_same_bits(state.target, before)
        elif rate == 1.0:
            assert_same_bits(state.target, state.network)
        else:
            expected = jax.tree.map(lambda t, p: 0.75 * np.asarray(t) + 0.25 * np.asarray(p), before, state.network)
            jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), state.target, expected)


def test_a_cycles_gradient_steps_are_single_ones_in_turn_and_the_target_moves_within_it():
    config = replace(SMALL, target_every=3, learning_rate=1e-2, priority_correction=1.0)
    state, rollouts, replay = replayed(config)
    batches, _ = sample_batches(replay, state.key, config)
    assert len(batches.probabilities) == 4
    after, _, errors = update(state, rollouts[-1], batches, config)
    by_hand = state
    for number in range(4):
        batch = jax.tree.map(lambda x, number=number: x[number], batches)
        by_hand, (_, found) = learn(by_hand, batch, config)
        np.testing.assert_allclose(errors[number], found, atol=1e-5)
        copied = by_hand.target if number == 2 else None
        if copied is not None:
            jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), after.target, copied)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), after.network, by_hand.network)


# Cycles


WATCHED = replace(
    SMALL,
    env=EnvConfig("CartPole-v1", num_envs=2),
    run=RunConfig(total_steps=160),
    rollout_length=6,
    update_ratio=0.5,
    learning_starts=30,
    replay_size=60,
    target_every=8,
    exploration=linear(1.0, 0.1, 0.5),
    prioritized=True,
    priority_exponent=1.0,
)


@cache
def watched() -> tuple[list[dqn.Update], Snapshot]:
    """All updates of a short run, and the snapshot after the last."""
    updates = list(dqn.train(WATCHED))
    return updates, updates[-1].snapshot()


def test_gradient_steps_begin_after_learning_starts_and_are_the_update_ratio_of_environment_steps():
    updates, _ = watched()
    env_steps = np.array([0, *(int(update.state.env_steps) for update in updates)])
    ready = env_steps[:-1] >= 30
    assert ready.tolist() == [False] * 3 + [True] * (len(updates) - 3)
    due = np.cumsum(0.5 * np.diff(env_steps) * ready)
    taken = np.array([int(update.state.gradient_steps) for update in updates])
    np.testing.assert_array_equal(taken, due // 6 * 6)  # six at a time, and never more than are due
    assert_same_bits(updates[0].state.network, updates[2].state.network)
    assert ["loss/value" in update.metrics for update in updates] == (np.diff([0, *taken]) > 0).tolist()


# SB3 #1463, CleanRL #323
def test_the_target_moves_after_so_many_gradient_steps_whatever_the_cycles_and_environments_are():
    updates, _ = watched()
    moves = []
    for before, after in pairwise([update.state for update in updates]):
        pairs = zip(jax.tree.leaves(before.target), jax.tree.leaves(after.target), strict=True)
        moves.append(any(np.any(left != right) for left, right in pairs))
        assert moves[-1] == (int(before.gradient_steps) // 8 != int(after.gradient_steps) // 8)
    assert True in moves
    assert False in moves[3:]


def test_epsilon_follows_its_schedule_over_environment_steps():
    updates, _ = watched()
    steps = np.array([0, *(int(update.state.env_steps) for update in updates)])
    expected = np.maximum(0.1, 1.0 - 0.9 * steps / 80)
    np.testing.assert_allclose([float(update.state.epsilon) for update in updates], expected[1:], atol=1e-6)
    # The metric is the ε of the rollout.
    np.testing.assert_allclose([u.metrics["exploration/epsilon"] for u in updates], expected[:-1], atol=1e-6)
    assert steps[-1] >= 160


def test_drawn_transitions_are_weighed_by_their_errors():
    _, snapshot = watched()
    weights = snapshot.arrays[
        f"replay/{max(int(name.split('/')[1]) for name in snapshot.arrays if name.startswith('replay/'))}"
    ]
    # Without errors all would have the largest weight, as new ones do.
    assert len(np.unique(weights[weights > 0])) >= 20
    assert weights.max() <= snapshot.values["replay"]["largest"]


def test_bytes_and_steps_of_the_replay_are_told():
    updates, _ = watched()
    rows = 42  # of two environments: 60 transitions and one more step of each are six rollouts of 12, and one more
    assert [u.metrics["replay/steps"] for u in updates] == [
        min(12 * number, 2 * rows) for number in range(1, len(updates) + 1)
    ]
    observation, action, reward, flags = 16, 4, 4, 4
    tree = 2 * 128 * 4
    assert {u.metrics["replay/bytes"] for u in updates} == {2 * rows * (observation + action + reward + flags) + tree}


def test_the_best_action_is_taken_without_a_key_and_any_with_epsilon_1():
    state, rollouts, _ = replayed(SMALL)
    observations = np.random.default_rng(0).normal(size=(400, *rollouts[0].observations.shape[2:])).astype(np.float32)
    best = values_at(state.network, observations).argmax(-1)
    assert set(best.tolist()) == {0, 1}
    resets = np.zeros(len(observations), bool)
    exploring = state._replace(epsilon=np.float32(1.0))
    np.testing.assert_array_equal(dqn.act(dqn.policy(exploring), observations, (), resets, None, None).actions, best)
    drawn = dqn.act(dqn.policy(exploring), observations, (), resets, None, np.array([1, 2], np.uint32)).actions
    assert abs(np.mean(np.asarray(drawn) == best) - 0.5) < 0.1
    greedy = state._replace(epsilon=np.float32(0.0))
    np.testing.assert_array_equal(
        dqn.act(dqn.policy(greedy), observations, (), resets, None, np.array([1, 2], np.uint32)).actions, best
    )


def test_schedules_stand_where_progress_is():
    config = replace(
        SMALL,
        prioritized=True,
        learning_rate=linear(2e-2, 0.0),
        priority_correction=piecewise((0, 0.5, 1), (0, 0.3, 1)),
    )
    state, rollouts, replay = replayed(config)
    batches = sample_batches(replay, state.key, config)[0]
    batches = batches._replace(
        probabilities=np.random.default_rng(0).uniform(0.1, 2, batches.probabilities.shape).astype(np.float32)
    )
    halfway = state._replace(env_steps=np.int32(500))
    scheduled, metrics, _ = update(halfway, rollouts[-1], batches, config)
    constant, _, _ = update(
        halfway, rollouts[-1], batches, replace(config, learning_rate=1e-2, priority_correction=0.3)
    )
    assert metrics["optimizer/learning_rate"] == pytest.approx(1e-2)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), scheduled.network, constant.network)


def test_a_replay_too_large_for_the_machine_or_for_32_bits_stops_training_before_it_begins(monkeypatch):
    monkeypatch.setattr("birl.rollouts.replay.free_memory", lambda: 10**9)
    with pytest.raises(ConfigError, match=r"replay_size 900,000,000 needs [\d.]+ GB and 1.0 GB are free"):
        next(dqn.train(replace(SMALL, replay_size=900_000_000)))
    with pytest.raises(
        ConfigError, match=r"replay_size 1,000,000,000,000,000 is too large; use less than 1,073,741,824"
    ):
        next(dqn.train(replace(SMALL, replay_size=10**15)))


# Settings


WRONG = {
    "update_ratio 0.0 must be positive": {"update_ratio": 0.0},
    "burn_in 10 must leave a step of rollout_length 10; use at most 9": {"burn_in": 10, "core": "lstm"},
    "burn_in 2 warms up a memory, and this network has none; use 0, or core lstm": {"burn_in": 2},
    "prioritized samples single steps, and a recurrent network learns from sequences": {
        "prioritized": True,
        "core": "gru",
    },
    "replay_size 39 must hold a rollout: 10 steps of 4 environments": {"replay_size": 39},
    r"frame_stack 2 does not fit observations of shape \(2,\); use 1|not stacks of frames": {"frame_stack": 2},
    r"exploration from 0.1 to 1.5 must lie in \[0, 1\]": {"exploration": linear(1.5, 0.1)},
    r"exploration from -0.1 to 1.0 must lie in \[0, 1\]": {"exploration": linear(1.0, -0.1)},
    "priority_correction -1.0 must not be negative": {"priority_correction": -1.0},
    r"priority_exponent 2.0 must lie in \[0, 1\]": {"priority_exponent": 2.0},
    r"target_rate 0.0 must be positive": {"target_rate": 0.0},
    "target_every 0 must be at least 1": {"target_every": 0},
    "n_step 0 must be at least 1": {"n_step": 0},
    "learning_starts -1 must not be negative": {"learning_starts": -1},
    "learning_starts 100 lies beyond the run's 100 total_steps": {
        "learning_starts": 100,
        "run": RunConfig(total_steps=100),
    },
    "learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "value_min 5 must lie below value_max 5: the atoms lie between them": {"value_min": 5.0, "value_max": 5.0},
    "value_min 1 must lie below value_max -1: ": {"values": "categorical", "value_min": 1.0, "value_max": -1.0},
    "num_atoms 1 must be at least 2: one atom has no distance to another; 51 is usual": {"num_atoms": 1},
    "num_quantiles 0 must be at least 1": {"num_quantiles": 0},
    "values 'median' is not one of mean, quantiles, categorical": {"values": "median"},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(dqn.train(replace(SMALL, **changes)))


# A network of the user's own


class OwnNetwork(eqx.Module):
    """What a user may write: one linear layer, no memory."""

    linear: Linear

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets):
        return self.linear(observations), memory


def make_own(rng, observation_space, action_space):
    return OwnNetwork(make_linear(rng, observation_space.shape[0], int(action_space.n), 0.01))


def test_an_equinox_module_of_the_users_own_learns():
    config = replace(PROBE, env=EnvConfig("birl/ProbeObservationAction-v0", num_envs=4))
    *_, last = dqn.train(config, make_network=make_own)
    assert isinstance(last.state.network, OwnNetwork)
    np.testing.assert_allclose(
        values_at(last.state.network, np.array([[-1.0], [1.0]], np.float32)), [[1, -1], [-1, 1]], atol=0.05
    )


# A chain whose Q is known

slow = pytest.mark.slow  # seconds each
VARIANTS = [
    pytest.param({"double": False}, id="vanilla"),
    pytest.param({"dueling": True, "prioritized": True}, id="double, dueling and prioritised"),
    pytest.param({"values": "quantiles", "num_quantiles": 8}, id="quantiles"),
    pytest.param({"values": "categorical", "value_min": 0.0, "value_max": 1.0}, id="categorical"),
    pytest.param({"target_every": 1, "target_rate": 0.05}, id="soft target", marks=slow),
    pytest.param({"hidden_sizes": (32,), "learning_rate": linear(1e-2, 1e-4)}, id="hidden layer", marks=slow),
    pytest.param(
        {"core": "gru", "core_size": 16, "learning_rate": linear(1e-2, 1e-4), "batch_size": 16},
        id="sequences",
        marks=slow,
    ),
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_on_a_chain_q_converges_to_the_known_one(changes):
    config = replace(
        PROBE,
        env=EnvConfig(chain.ID, num_envs=4),
        run=RunConfig(total_steps=4000),
        exploration=1.0,  # off-policy: acts at random, learns the best
        update_ratio=0.5,
        hidden_sizes=(),
        learning_rate=linear(5e-2, 1e-3),
    )
    *_, last = dqn.train(replace(config, **changes))
    network = last.state.network
    observations = chain.OBSERVATIONS[:, None]  # in turn, as on the shortest way
    found, _ = network(observations, network.initial_memory(1), np.zeros((4, 1), bool))
    values = np.asarray(found.mean()[:, 0])
    np.testing.assert_allclose(values, chain.chain_values(epsilon=0.0), atol=0.05)


# Probes: values and policies that are known; other algorithms learn the slow ones in make test


def learned(env_id: str, **changes) -> dqn.Update:
    """The last update of a short run."""
    *_, last = dqn.train(replace(PROBE, env=EnvConfig(env_id, num_envs=4), **changes))
    return last


def answers(state: dqn.State, *numbers: float) -> np.ndarray:
    """Q at observations of one number."""
    return values_at(state.network, np.stack([sign(number) for number in numbers]))


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
@slow
def test_probe_a_constant_reward_of_1_has_value_1():
    np.testing.assert_allclose(answers(learned("birl/ProbeConstant-v0").state, 0), [[1, 1]], atol=0.02)


@slow
def test_probe_a_reward_one_step_later_is_discounted_once():
    np.testing.assert_allclose(answers(learned("birl/ProbeDelayed-v0").state, -1, 1), [[0.9, 0.9], [1, 1]], atol=0.03)


@pytest.mark.parametrize(("n_step", "steps"), [pytest.param(1, 6000, marks=slow), (3, 3000)])
def test_probe_where_an_episode_is_cut_the_value_goes_on(n_step, steps):
    run = RunConfig(total_steps=steps)  # a target network brings the value nearer to 10 by a factor of γⁿ only
    last = learned("birl/ProbeTruncation-v0", n_step=n_step, target_every=5, update_ratio=0.5, run=run)
    # 1 / (1 - γ); without the bootstrap at the truncation, below 4.1
    np.testing.assert_allclose(answers(last.state, 0), [[10, 10]], atol=0.5)


@slow
def test_probe_the_better_action_follows_the_observation():
    np.testing.assert_allclose(
        answers(learned("birl/ProbeObservationAction-v0").state, -1, 1), [[1, -1], [-1, 1]], atol=0.05
    )


@pytest.mark.parametrize("core", ["lstm", pytest.param("gru", marks=slow)])
def test_probe_what_was_seen_at_the_start_is_remembered(core):
    last = learned(
        "birl/ProbeMemory-v0",
        core=core,
        exploration=linear(1.0, 0.0, 0.5),
        update_ratio=0.5,
        learning_rate=linear(1e-2, 0.0),
    )
    assert last.metrics["episode/return"] >= 0.9


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_what_was_seen_at_the_start_cannot_be_known_without_memory():
    env = EnvConfig("birl/ProbeMemory-v0", num_envs=4)
    returns = [
        update.metrics["episode/return"]
        for update in dqn.train(replace(PROBE, env=env, exploration=linear(1.0, 0.0, 0.5)))
    ]
    assert np.mean(returns[-50:]) < 0.3  # 0 in the mean


@pytest.mark.parametrize("core", ["feedforward", pytest.param("gru", marks=slow)])
def test_probe_a_masked_action_is_never_taken(core):
    env = EnvConfig("birl/ProbeMask-v0", num_envs=4)
    returns = {
        u.metrics["episode/return"]
        for u in dqn.train(replace(PROBE, env=env, core=core, run=RunConfig(total_steps=1000)))
    }
    assert {score for score in returns if score == score} == {4.0}  # NaN before the first episode has ended


@slow
def test_probe_the_vector_and_the_image_of_a_dict_are_both_used():
    state = learned("birl/ProbeDict-v0", encoder="cnn_small", learning_rate=2e-3).state
    images = np.stack([np.full((36, 36, 1), brightness, np.uint8) for brightness in (0, 255, 0, 255)])
    observations = {"vector": np.float32([[-1], [-1], [1], [1]]), "image": images}
    values = values_here(state.network, observations, (), np.zeros(4, bool))[0].mean()
    assert values.argmax(-1).tolist() == [0, 1, 2, 3]
