"""ACER: Retrace and the projected policy gradient in plain NumPy, its replay, and the probes."""

from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import acer
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.maths.distributions import Categorical, DiagonalGaussian
from birl.maths.keys import stream
from birl.maths.schedules import linear
from birl.nets.actor_q import critic_estimates, empty_behaviour
from birl.nets.layers import Linear, make_linear
from birl.nets.models import evaluate_rollout, without_last
from birl.nets.optimizers import gradient_step
from birl.rollouts.replay import Replay
from birl.rollouts.source import Collector
from birl.speed import prepare_jax
from birl.types import Rollout
from tests import oracle
from tests.algos.probing import assert_same_bits, behaviour_log_probs, sign

T, B = 7, 5
# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = acer.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=10,
    discount=0.9,
    entropy_weight=0.0,
    importance_truncation=1.5,
    trust_region=0.05,
    learning_starts=0,
    replay_size=400,
    learning_rate=1e-2,
    hidden_sizes=(8,),
    core_size=8,
)
PROBE = acer.Config(
    run=RunConfig(total_steps=4000),
    rollout_length=10,
    discount=0.9,
    learning_starts=100,
    replay_size=2000,
    learning_rate=linear(2e-2, 0.0),
    hidden_sizes=(16,),
    core_size=8,
)
SEEN = spaces.Box(-3, 3, (3,), np.float32)
SPACES = {"discrete": spaces.Discrete(4), "continuous": spaces.Box(-1, 1, (2,), np.float32)}
KEY = np.array([5, 7], np.uint32)
both_kinds = pytest.mark.parametrize("kind", SPACES)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


# Hardly optimised: else the tests would mostly compile. The probes run what users run.
jit = partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
gradients, update = jit(jax.grad(acer.loss, has_aux=True)), jit(acer.update.__wrapped__)


class Case(NamedTuple):
    """A state with another average network, and a third policy's rollout with all kinds of ends."""

    state: acer.State
    rollout: Rollout
    config: acer.Config

    def gradients(self, **changes: Any) -> tuple[Any, dict[str, Any]]:
        state = self.state
        config = replace(self.config, **changes)
        return gradients(state.network, state.average, state.normalizer, self.rollout, KEY, jnp.float32(0.0), config)


def perturbed(network: Any, seed: int, by: float = 0.4) -> Any:
    """A network with other parameters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(p + by * rng.standard_normal(p.shape), jnp.float32), network)


def random_behaviour(kind: str, rng: np.random.Generator) -> Categorical | DiagonalGaussian:
    if kind == "discrete":
        return Categorical(jnp.asarray(rng.standard_normal((T, B, 4)), jnp.float32))
    return DiagonalGaussian(*(jnp.asarray(0.5 * rng.standard_normal((T, B, 2)), jnp.float32) for _ in range(2)))


@cache
def case_of(kind: str, core: str = "feedforward") -> Case:
    config = replace(SMALL, core=core)
    rng = np.random.default_rng(3)
    state = acer.init(config, SEEN, SPACES[kind])
    state = state._replace(network=perturbed(state.network, 1), average=perturbed(state.network, 2))
    terminated, truncated, valid = np.zeros((3, T, B), bool)
    valid[:] = True
    terminated[2, 0] = truncated[3, 1] = terminated[0, 2] = truncated[6, 2] = terminated[6, 3] = True
    valid[3, 0] = valid[4, 1] = valid[1, 2] = valid[0, 4] = False
    behaviour = random_behaviour(kind, rng)
    actions = behaviour.sample(jax.random.key(0))
    rollout = Rollout(
        observations=rng.standard_normal((T + 1, B, 3)).astype(np.float32),
        actions=np.asarray(actions),
        rewards=rng.standard_normal((T, B)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        memory=jax.tree.map(lambda m: rng.standard_normal(m.shape).astype(np.float32), state.network.initial_memory(B)),
        behaviour=jax.tree.map(np.asarray, behaviour),
    )
    return Case(state, rollout, config)


def answer(network: Any, rollout: Rollout) -> tuple[Any, np.ndarray]:
    """Distributions, and action values or the critic's features, of a feed-forward network."""
    distribution, values, _ = network(rollout.observations, (), np.zeros(rollout.observations.shape[:2], bool), None)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), distribution), np.asarray(values, np.float64)


def ends_of(rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rollout.terminated, rollout.truncated, rollout.valid


def projected(gradient: np.ndarray, kl_gradient: np.ndarray, limit: float) -> np.ndarray:
    """(Wang et al. 2017, eq. 12), its two cases."""
    product = kl_gradient @ gradient
    return gradient if product <= limit else gradient - (product - limit) / (kl_gradient @ kl_gradient) * kl_gradient


# Discrete


class Worked(NamedTuple):
    """What an update on a Discrete space is made of, in NumPy."""

    action_values: np.ndarray
    targets: np.ndarray
    gradients: np.ndarray  # [T, B, A] by the logits, as algorithm 2 has them
    kl_gradients: np.ndarray


def worked(state: acer.State, rollout: Rollout, config: acer.Config) -> Worked:
    (distribution, all_values), (average, _) = answer(state.network, rollout), answer(state.average, rollout)
    policy, average_policy = oracle.softmax(distribution.logits), oracle.softmax(average.logits[:-1])
    values = (policy * all_values).sum(-1)
    policy = policy[:-1]
    all_values = all_values[:-1]
    behaviour = oracle.softmax(rollout.behaviour.logits)
    ratios = policy / behaviour
    taken = np.eye(policy.shape[-1])[rollout.actions]
    truncation = config.importance_truncation
    action_values = (all_values * taken).sum(-1)
    taken_ratios = (ratios * taken).sum(-1)
    targets = oracle.retrace(
        rollout.rewards, action_values, values[1:], *ends_of(rollout), np.log(taken_ratios), config.discount, 1.0
    )
    found = (np.minimum(truncation, taken_ratios) * (targets - values[:-1]))[..., None] * (taken - policy)
    for action in range(policy.shape[-1]):
        weight = (
            np.maximum(0, 1 - truncation / ratios[..., action])
            * policy[..., action]
            * (all_values[..., action] - values[:-1])
        )
        found = found + weight[..., None] * (np.eye(policy.shape[-1])[action] - policy)
    return Worked(action_values, targets, found, policy - average_policy)


def test_the_q_loss_is_the_squared_error_to_retrace_bootstrapped_from_the_true_successors():
    state, rollout, config = case_of("discrete")
    work = worked(state, rollout, config)
    _, metrics = case_of("discrete").gradients()
    errors = (work.targets - work.action_values)[rollout.valid]
    assert float(metrics["loss/value"]) == pytest.approx((errors**2).mean(), rel=1e-4)
    assert float(metrics["value/explained_variance"]) == pytest.approx(
        1 - errors.var() / work.targets[rollout.valid].var(), abs=1e-3
    )


@pytest.mark.parametrize(("limit", "truncation"), [(0.05, 0.7), (0.05, 1e6), (1.0, 1.5), (None, 0.7)])
def test_the_policy_gradient_is_algorithm_2s_projected_in_each_state(limit, truncation):
    case = case_of("discrete")
    config = replace(case.config, importance_truncation=truncation)
    work = worked(case.state, case.rollout, config)
    valid = case.rollout.valid
    steps = [
        projected(g, k, np.inf if limit is None else limit)
        for g, k in zip(work.gradients[valid], work.kl_gradients[valid], strict=True)
    ]
    found, metrics = case.gradients(trust_region=limit, importance_truncation=truncation)
    np.testing.assert_allclose(found.policy_head.linear.bias, -np.mean(steps, axis=0), atol=1e-5)
    outside = 0.0 if limit is None else ((work.gradients * work.kl_gradients).sum(-1) > limit)[valid].mean()
    assert float(metrics["trust_region/projected_share"]) == pytest.approx(outside, abs=1e-6)
    assert (outside > 0) == (limit == 0.05)


def test_the_q_gradient_is_that_of_targets_held_constant():
    case = case_of("discrete")
    work = worked(*case)
    valid = case.rollout.valid
    errors = (work.action_values - work.targets)[valid]
    taken = np.eye(4)[case.rollout.actions[valid]]
    found, _ = case.gradients(value_weight=0.25)
    np.testing.assert_allclose(found.action_values_head.bias, 0.25 * 2 * (errors[:, None] * taken).mean(0), atol=1e-5)


def test_the_last_row_bootstraps_from_the_last_successor_and_not_from_its_own_state():
    state, rollout, config = case_of("discrete")
    elsewhere = rollout._replace(
        observations=np.concatenate([rollout.observations[:-1], rollout.observations[-1:] + 1.0])
    )
    losses = [float(Case(state, r, config).gradients()[1]["loss/value"]) for r in (rollout, elsewhere)]
    assert abs(losses[0] - losses[1]) > 1e-3
    # Where every environment terminates in the last row, its successor is not looked at.
    ended = [
        r._replace(terminated=np.concatenate([r.terminated[:-1], np.ones((1, B), bool)])) for r in (rollout, elsewhere)
    ]
    assert_same_bits(*(Case(state, r, config).gradients() for r in ended))


# Continuous


def without_advantages(network: Any) -> Any:
    """The network with A(s, a) = 0 for all actions, so that Q(s, a) = V(s) for every sample."""
    return eqx.tree_at(
        lambda n: n.advantage_head.linear, network, replace_fn=lambda head: jax.tree.map(jnp.zeros_like, head)
    )


@cache
def plain_case() -> Case:
    case = case_of("continuous")
    return case._replace(state=case.state._replace(network=without_advantages(case.state.network)))


def values_and_log_ratios(case: Case) -> tuple[np.ndarray, np.ndarray]:
    distribution, features = answer(case.state.network, case.rollout)
    mean, log_std = (x[:-1] for x in distribution)
    densities = oracle.normal_density((case.rollout.actions - mean) / np.exp(log_std), 0.0, 1.0) / np.exp(log_std)
    values = np.asarray(case.state.network.values(features.astype(np.float32)), np.float64)
    return values, np.log(densities).sum(-1) - np.asarray(behaviour_log_probs(case.rollout))


def test_traces_are_cut_at_the_dth_root_of_the_ratio_and_v_moves_by_the_truncated_ratio():
    """(Wang et al. 2017, algorithm 3 and eq. 14), with Q = V."""
    case = plain_case()
    values, log_ratios = values_and_log_ratios(case)
    rollout, valid = case.rollout, case.rollout.valid
    targets = oracle.retrace(rollout.rewards, values[:-1], values[1:], *ends_of(rollout), log_ratios / 2, 0.9, 1.0)
    errors = (targets - values[:-1])[valid]
    ratios = np.minimum(1.0, np.exp(log_ratios[valid]))
    _, metrics = case.gradients()
    assert float(metrics["loss/value"]) == pytest.approx((errors**2).mean() + ((ratios * errors) ** 2).mean(), rel=1e-4)


@pytest.mark.parametrize("limit", [0.05, None])
def test_the_policy_gradient_is_algorithm_3s_with_uncut_targets_projected_in_each_state(limit):
    """With Q = V the correction is 0, and Q^opc is the return, bootstrapped at the end."""
    case = plain_case()
    values, log_ratios = values_and_log_ratios(case)
    rollout, valid = case.rollout, case.rollout.valid
    (policy, _), (average, _) = answer(case.state.network, rollout), answer(case.state.average, rollout)
    mean, log_std, average_mean, average_log_std = (x[:-1] for x in (*policy, *average))
    returns = oracle.discounted_returns(rollout.rewards, *ends_of(rollout), values[1:], 0.9)
    weights = np.minimum(1.5, np.exp(log_ratios)) * (returns - values[:-1])
    deviations = (rollout.actions - mean) / np.exp(log_std)
    by_mean = weights[..., None] * deviations / np.exp(log_std)
    by_log_std = weights[..., None] * (deviations**2 - 1)
    kl_by_mean = (mean - average_mean) / np.exp(2 * log_std)
    kl_by_log_std = 1 - (np.exp(2 * average_log_std) + (mean - average_mean) ** 2) / np.exp(2 * log_std)
    together = (np.concatenate(pair, axis=-1)[valid] for pair in ((by_mean, by_log_std), (kl_by_mean, kl_by_log_std)))
    steps = np.mean(
        [projected(g, k, np.inf if limit is None else limit) for g, k in zip(*together, strict=True)], axis=0
    )
    found, metrics = case.gradients(trust_region=limit)
    np.testing.assert_allclose(found.policy_head.linear.bias, -steps[:2], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.policy_head.log_std, -steps[2:], rtol=1e-3, atol=1e-4)
    assert (float(metrics["trust_region/projected_share"]) > 0) == (limit is not None)


def test_q_of_an_action_is_v_and_its_advantage_over_those_of_actions_of_the_policy():
    """Wang et al. 2017, eq. 13: a constant A(s, a) cancels, and with many samples its mean."""
    case = case_of("continuous")
    network = without_advantages(case.state.network)
    lifted = eqx.tree_at(lambda n: n.advantage_head.linear.bias, network, replace_fn=lambda bias: bias + 7.0)
    found = [
        case._replace(state=case.state._replace(network=n)).gradients()[1]["loss/value"] for n in (network, lifted)
    ]
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-4)


def test_the_actions_sampled_differ_from_gradient_step_to_gradient_step():
    case = case_of("continuous")
    later = case.state._replace(gradient_steps=np.int32(1))
    first, again, other = (update(state, case.rollout, case.config)[1] for state in (case.state, case.state, later))
    assert float(first["loss/value"]) == float(again["loss/value"]) != float(other["loss/value"])


# Both


def test_the_continuous_correction_weighs_a_new_action_by_its_own_value_whatever_was_done():
    case = case_of("continuous")
    # With ratios truncated at almost 0, only the correction is left in the policy's gradient.
    alone = {"importance_truncation": 1e-6, "trust_region": None, "value_weight": 0.0}
    found, _ = case.gradients(**alone)
    other_actions = case._replace(rollout=case.rollout._replace(actions=case.rollout.actions[::-1] + np.float32(0.5)))
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(other_actions.gradients(**alone)[0]), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    assert np.abs(found.policy_head.linear.weight).max() > 1e-2  # it is there
    # Q(s, a') - V(s) is what the advantages say of a': without them there is nothing to correct.
    flat = jax.tree.map(lambda x: 0 * x, case.state.network.advantage_head)
    flat = case._replace(state=case.state._replace(network=replace(case.state.network, advantage_head=flat)))
    assert np.abs(flat.gradients(**alone)[0].policy_head.linear.weight).max() < 1e-4


@both_kinds
def test_where_the_average_is_the_network_the_trust_region_changes_nothing(kind):
    case = case_of(kind)
    same = case._replace(state=case.state._replace(average=case.state.network))
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-6),
        same.gradients(trust_region=1e-6)[0],
        same.gradients(trust_region=None)[0],
    )
    left, right = (jax.tree.leaves(case.gradients(trust_region=limit)[0]) for limit in (1e-6, None))
    assert max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True)) > 1e-3


@both_kinds
def test_the_policy_gradient_does_not_reach_the_critic(kind):
    found, _ = case_of(kind).gradients(value_weight=0.0)
    heads = ("action_values_head",) if kind == "discrete" else ("value_head", "advantage_head")
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((found.critic, *(getattr(found, head) for head in heads))))
    assert np.any(found.policy_head.linear.weight)
    assert np.any(case_of(kind).gradients()[0].critic.encoder.mlp.layers[0].weight)


@both_kinds
def test_no_gradient_of_the_value_loss_reaches_the_policy(kind):
    one, two = (case_of(kind).gradients(value_weight=weight)[0] for weight in (1.0, 2.0))
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-5), (one.actor, one.policy_head), (two.actor, two.policy_head)
    )


@both_kinds
@pytest.mark.parametrize("core", ["feedforward", "gru"])
def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_update(kind, core):
    state, rollout, config = case_of(kind, core)
    valid = rollout.valid[..., None] if kind == "continuous" else rollout.valid
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(valid, rollout.actions, 1 - rollout.actions if kind == "continuous" else 0).astype(
            rollout.actions.dtype
        ),
        behaviour=jax.tree.map(
            lambda x: np.where(rollout.valid[..., None], x, 5.0).astype(np.float32), rollout.behaviour
        ),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert_same_bits(update(state, rollout, config)[0], update(state, strange, config)[0])


@both_kinds
def test_the_stored_memory_and_resets_inside_the_sequence_matter(kind):
    state, rollout, config = case_of(kind, "lstm")
    empty = rollout._replace(memory=jax.tree.map(np.zeros_like, rollout.memory))
    found = [float(Case(state, r, config).gradients()[1]["loss/value"]) for r in (rollout, empty)]
    assert abs(found[0] - found[1]) > 1e-3
    # The fifth environment resets itself in the first row, so its memory before has no effect.
    memory = jax.tree.map(lambda m: np.where(np.arange(B)[:, None] == 4, m + 9.0, m), rollout.memory)
    assert_same_bits(*(Case(state, r, config).gradients()[0] for r in (rollout, rollout._replace(memory=memory))))


@both_kinds
def test_the_critic_estimates_one_number_for_each_step(kind):
    state, rollout, config = case_of(kind)

    def estimated(state, rollout):
        evaluation = evaluate_rollout((state.network, None), rollout)
        settings = config.discount, config.importance_truncation, config.advantage_samples
        critic = critic_estimates(state.network, evaluation, rollout, KEY, *settings)
        return critic.action_values, critic.targets, critic.objective(without_last(evaluation.distributions))

    assert [x.shape for x in jax.eval_shape(estimated, state, rollout)] == [(T, B)] * 3


@both_kinds
def test_update_takes_the_step_of_gradients_and_moves_the_average_by_its_decay(kind):
    state, rollout, config = case_of(kind)
    config = replace(config, average_decay=0.9)
    key = jax.random.fold_in(stream(state.key, "learning"), 0)
    found, _ = gradients(state.network, state.average, state.normalizer, rollout, key, jnp.float32(0.0), config)
    step = jit(partial(gradient_step, config.gradient), static_argnames=())
    expected, _, norm = step(state.network, state.optimizer, found, 1e-2)
    after, metrics = update(state, rollout, config)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, after.network, expected)
    jax.tree.map(
        lambda new, old, network: close(new, 0.9 * old + 0.1 * network), after.average, state.average, after.network
    )
    assert float(metrics["optimizer/grad_norm"]) == pytest.approx(float(norm), rel=1e-4)
    assert int(after.gradient_steps) == 1


def test_entropy_is_raised_by_its_weight():
    state, rollout, config = case_of("discrete")
    inputs = state.network, state.average, state.normalizer, rollout, KEY
    (without, with_bonus), metrics = zip(
        *(jit(acer.loss)(*inputs, jnp.float32(w), config) for w in (0.0, 0.3)), strict=True
    )
    assert float(without - with_bonus) == pytest.approx(0.3 * float(metrics[0]["policy/entropy"]), rel=1e-4)


def test_the_share_of_truncated_ratios_is_told():
    state, rollout, _ = case_of("discrete")
    policy = oracle.softmax(answer(state.network, rollout)[0].logits[:-1])
    ratios = (policy / oracle.softmax(rollout.behaviour.logits) * np.eye(4)[rollout.actions]).sum(-1)[rollout.valid]
    assert 0 < (ratios > 1.5).mean() < 1
    assert float(case_of("discrete").gradients()[1]["policy/truncated_share"]) == pytest.approx(
        (ratios > 1.5).mean(), abs=1e-6
    )


# Replay


class Replayed(NamedTuple):
    """A state, its rollouts, and a replay of them."""

    state: acer.State
    rollouts: list[Rollout]
    replay: Replay


@cache
def replayed(config: acer.Config) -> Replayed:
    with make_envs(config.env, config.run.seed) as envs:
        state = acer.init(config, envs.observation_space, envs.action_space)
        state = state._replace(network=perturbed(state.network, 1))
        behaviour = empty_behaviour(envs.action_space, envs.num_envs)
        memory = state.network.initial_memory(envs.num_envs)
        collector = Collector(envs, acer.act, config.rollout_length, memory, behaviour=behaviour)
        collector.start(config.run.seed)
        replay = Replay(config.replay_size, collector.empty_rollout(), config.discount, frame_stack=config.frame_stack)
        rollouts = [collector.collect(acer.policy(state), np.array([3, number], np.uint32)) for number in range(6)]
        for rollout in rollouts:
            replay.add(rollout)
        return Replayed(state, rollouts, replay)


@pytest.mark.parametrize("env_id", ["birl/ProbeMemory-v0", "birl/ProbeContinuous-v0", "birl/ProbeMask-v0"])
@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_a_replayed_sequence_is_a_rollout_as_it_was_lived_with_its_behaviour_and_memory(env_id, core):
    config = replace(SMALL, env=EnvConfig(env_id, num_envs=4), core=core, batch_size=3)
    _, rollouts, replay = replayed(config)
    stored = [
        jax.tree.map(
            lambda x, b=b: np.asarray(x)[:, b], r._replace(memory=(), resets=None, action_masks=None)
        )._replace(**jax.tree.map(lambda x, b=b: np.asarray(x)[b], {"memory": r.memory, "resets": r.resets}))
        for r in rollouts[:-1]
        for b in range(4)
    ]
    keys = [np.array([number, 0], np.uint32) for number in range(5)]
    drawn = [sequences for key in keys for sequences in acer.sample_replayed(replay, key, 0, config)]
    assert len(drawn) > 5
    for sequences in drawn:
        assert sequences.rewards.shape == (10, 3)
        for n in range(3):
            one = jax.tree.map(lambda x, n=n: x[:, n], sequences._replace(memory=(), resets=None, action_masks=None))
            one = one._replace(
                **jax.tree.map(lambda x, n=n: x[n], {"memory": sequences.memory, "resets": sequences.resets})
            )
            assert any(all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other))) for other in stored)


@pytest.mark.parametrize("env_id", ["birl/ProbeMemory-v0", "birl/ProbeContinuous-v0", "birl/ProbeMask-v0"])
def test_of_a_fresh_rollout_and_of_a_replayed_one_by_the_same_policy_no_ratio_differs_from_1(env_id):
    config = replace(SMALL, env=EnvConfig(env_id, num_envs=4), importance_truncation=1.001)
    state, rollouts, replay = replayed(config)
    (sequences, *_) = acer.sample_replayed(replay, state.key, 0, config)
    for rollout in (rollouts[-1], sequences):
        _, metrics = update(state._replace(average=state.network), rollout, config)
        assert float(metrics["policy/truncated_share"]) == 0.0  # of ratios above 1.001
        assert float(metrics["policy/average_kl"]) == pytest.approx(0.0, abs=1e-6)


def test_the_number_of_replayed_updates_is_poissons_and_the_states_key_draws_it():
    _, _, replay = replayed(SMALL)
    keys = [np.array([number, 1], np.uint32) for number in range(400)]
    counts = np.array([len(acer.sample_replayed(replay, key, 0, replace(SMALL, batch_size=1))) for key in keys])
    assert counts.mean() == pytest.approx(4.0, abs=0.3)  # three deviations of the mean
    assert counts.var() == pytest.approx(4.0, abs=0.9)
    first, again = (acer.sample_replayed(replay, keys[0], 0, SMALL) for _ in range(2))
    assert_same_bits(first, again)


@pytest.mark.parametrize("changes", [{"replay_ratio": 0.0}, {"replay_size": 0}, {"learning_starts": 10**6}])
def test_without_a_replay_ratio_or_size_or_before_learning_starts_nothing_is_replayed(changes):
    updates = list(acer.train(replace(SMALL, run=RunConfig(total_steps=150), **changes)))
    assert [update.metrics["replay/updates"] for update in updates] == [0] * len(updates)
    assert [int(update.state.gradient_steps) for update in updates] == list(range(1, len(updates) + 1))


def test_the_replay_is_told_as_it_fills_and_what_was_replayed_counted():
    updates = list(acer.train(replace(SMALL, run=RunConfig(total_steps=800), replay_size=200)))
    steps = [update.metrics["replay/steps"] for update in updates]
    assert steps[:3] == [40, 80, 120]
    assert steps[-1] == steps[-2] == 280  # 200 with their successors, in whole rollouts, and the one being added
    assert int(updates[-1].state.gradient_steps) == len(updates) + sum(
        update.metrics["replay/updates"] for update in updates
    )
    assert updates[0].metrics["replay/updates"] == 0


def test_a_replay_smaller_than_a_rollout_is_refused():
    with pytest.raises(ConfigError, match="replay_size 39 must hold a rollout: 10 steps of 4 environments"):
        next(acer.train(replace(SMALL, replay_size=39)))


def test_the_mask_after_a_sequences_last_step_is_the_one_that_was_given():
    state, rollout, config = case_of("discrete")
    masks = np.ones((T + 1, B, 4), bool)
    first_only = np.concatenate([masks[:-1], np.eye(4, dtype=bool)[np.zeros((1, B), int)]])
    found = [
        Case(state, rollout._replace(action_masks=m), config).gradients()[1]["loss/value"]
        for m in (None, masks, first_only)
    ]
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-5)
    assert abs(float(found[2] - found[1])) > 1e-3  # V of the last observation is that of the one action allowed there


# Settings


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    "advantage_samples 0 must be at least 1": {"advantage_samples": 0},
    r"average_decay 1.5 must lie in \[0, 1\]": {"average_decay": 1.5},
    "importance_truncation 0.0 must be positive; 10 is usual": {"importance_truncation": 0.0},
    "trust_region 0.0 must be positive, or None": {"trust_region": 0.0},
    "batch_size 0 must be at least 1": {"batch_size": 0},
    "replay_ratio -1.0 must not be negative": {"replay_ratio": -1.0},
    "replay_size -5 must not be negative": {"replay_size": -5},
    "learning_starts -5 must not be negative": {"learning_starts": -5},
    r"rmsprop_decay 1.0 must lie in \[0, 1\); 0.99 is usual": {"rmsprop_decay": 1.0},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(acer.train(replace(SMALL, **changes)))


# A network of the user's own


class OwnNetwork(eqx.Module):
    """What a user may write: one linear layer each, no memory."""

    policy: Linear
    action_values: Linear

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets, action_masks):
        return Categorical(self.policy(observations)), self.action_values(observations), memory


def make_own(rng, observation_space, action_space):
    inputs = observation_space.shape[0]
    actions = int(action_space.n)
    return OwnNetwork(make_linear(rng, inputs, actions, 0.01), make_linear(rng, inputs, actions, 1.0))


def test_an_equinox_module_of_the_users_own_learns():
    *_, last = acer.train(replace(PROBE, env=EnvConfig("birl/ProbeObservationAction-v0")), make_network=make_own)
    assert isinstance(last.state.network, OwnNetwork)
    assert last.metrics["episode/return"] > 0.8


# Probes: values and policies that are known


def learned(env_id: str, **changes) -> acer.Update:
    """The last update of a short run."""
    *_, last = acer.train(replace(PROBE, env=EnvConfig(env_id), **changes))
    return last


def answers(state: acer.State, *observations: Any):
    """V of each observation at an episode's start, and the policy's best action there."""
    for observation in observations:
        batch = jax.tree.map(lambda x: np.asarray(x)[None, None], observation)
        distribution, found, _ = state.network(batch, state.network.initial_memory(1), np.zeros((1, 1), bool), None)
        if isinstance(distribution, Categorical):
            value = (oracle.softmax(distribution.logits) * np.asarray(found)).sum()
        else:
            value = state.network.values(found)[0, 0]
        yield float(value), np.asarray(distribution.mode()[0, 0])


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_constant_reward_of_1_has_value_1():
    ((value, _),) = answers(learned("birl/ProbeConstant-v0").state, sign(0))
    assert value == pytest.approx(1.0, abs=0.02)


def test_probe_a_reward_one_step_later_is_discounted_once():
    (first, _), (second, _) = answers(learned("birl/ProbeDelayed-v0").state, sign(-1), sign(1))
    assert (first, second) == pytest.approx((0.9, 1.0), abs=0.03)


def test_probe_where_an_episode_is_cut_the_value_goes_on():
    ((value, _),) = answers(learned("birl/ProbeTruncation-v0").state, sign(0))
    assert value == pytest.approx(1 / (1 - 0.9), abs=0.3)  # without the bootstrap at the cut, below 4.1


def test_probe_the_better_action_follows_the_observation():
    (high, right), (low, left) = answers(learned("birl/ProbeObservationAction-v0").state, sign(1), sign(-1))
    assert (right, left) == (1, 0)
    assert (high, low) == pytest.approx((1.0, 1.0), abs=0.05)


@pytest.mark.parametrize("core", ["lstm", pytest.param("gru", marks=pytest.mark.slow)])
def test_probe_what_was_seen_at_the_start_is_remembered(core):
    last = learned("birl/ProbeMemory-v0", core=core, share_trunk=True)
    assert last.metrics["episode/return"] >= 0.9


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_what_was_seen_at_the_start_cannot_be_known_without_memory():
    returns = [
        update.metrics["episode/return"] for update in acer.train(replace(PROBE, env=EnvConfig("birl/ProbeMemory-v0")))
    ]
    assert np.mean(returns[-20:]) < 0.3  # 0 in the mean


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_masked_action_is_never_taken():
    returns = {
        update.metrics["episode/return"] for update in acer.train(replace(PROBE, env=EnvConfig("birl/ProbeMask-v0")))
    }
    assert {score for score in returns if score == score} == {4.0}  # NaN before the first episode has ended


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric():
    for value, action in answers(learned("birl/ProbeContinuous-v0", entropy_weight=0.0).state, sign(1), sign(-1)):
        assert action == pytest.approx(0.5, abs=0.1)
        assert value == pytest.approx(0.0, abs=0.1)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_the_vector_and_the_image_of_a_dict_are_both_used():
    settings = {"learning_rate": 2e-3, "entropy_weight": 0.2, "activation": "relu", "share_trunk": True}
    state = learned("birl/ProbeDict-v0", encoder="cnn_small", **settings).state
    images = [np.full((36, 36, 1), brightness, np.uint8) for brightness in (0, 255)]
    found = [
        int(action)
        for _, action in answers(state, *({"vector": sign(s), "image": image} for s in (-1, 1) for image in images))
    ]
    assert found == [0, 1, 2, 3]


def test_images_are_replayed_as_they_were_seen():
    config = replace(SMALL, env=EnvConfig("birl/ProbeDict-v0", num_envs=4), encoder="cnn_small")
    *_, last = islice(acer.train(config), 4)
    assert last.metrics["replay/updates"] + 4 < int(last.state.gradient_steps)
    assert np.isfinite(last.metrics["loss/value"])
