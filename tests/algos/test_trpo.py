"""TRPO: what must hold exactly in every update, and probes whose answers are known."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from birl.algos import trpo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.errors import NonFiniteError
from birl.maths.distributions import Categorical
from birl.maths.schedules import linear
from birl.maths.trust_region import fisher_vector_product, natural_step
from birl.nets.dependence import split_actor_critic
from birl.nets.layers import Linear, make_linear
from birl.rollouts.finite import check_finite_metrics
from birl.rollouts.source import Collector
from birl.settings import places_of
from birl.speed import prepare_jax
from birl.types import Rollout
from tests import oracle
from tests.algos import probing
from tests.algos.probing import behaviour_log_probs

# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = trpo.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=10,
    epochs=2,
    minibatches=2,
    hidden_sizes=(8,),
    core_size=8,
    learning_rate=1e-2,
)
NO_MEMORY = ()
PROBE = trpo.Config(
    run=RunConfig(total_steps=4000),
    rollout_length=16,
    epochs=4,
    minibatches=2,
    discount=0.9,
    max_kl=0.05,
    hidden_sizes=(16,),
    core_size=8,
    learning_rate=linear(2e-2, 0.0),
)
# So short a step changes no probability in float32: the line search accepts nothing.
HOPELESS = {"max_kl": 1e-30}


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


collected = partial(probing.collected, trpo)

# Hardly optimised: else the tests would mostly compile. The probes and the runs are what users run.
quickly = partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
update = quickly(trpo.update.__wrapped__)
batch_of = quickly(trpo.batch_of)


@quickly
def improve_policy(state: trpo.State, batch: trpo.Batch, memory, config: trpo.Config):
    """The network after the policy's step alone, and its metrics."""
    actor, critic = split_actor_critic(state.network, batch.observations)
    actor, metrics = trpo.improve_policy(actor, critic, batch, memory, config)
    return eqx.combine(actor, critic), metrics


def bits(tree) -> list[tuple[str, bytes]]:
    """Every leaf with its name, as bytes: -0.0 is not 0.0."""
    return [
        (jax.tree_util.keystr(path), np.asarray(leaf).tobytes())
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def parts(network) -> tuple[list, list]:
    """The bits of the policy, and of the critic."""
    return bits((network.actor, network.policy_head)), bits((network.critic, network.value_head))


# The policy that acted, seen again


@partial(jax.jit, static_argnames="config")
def look_again(state: trpo.State, rollout: Rollout, config: trpo.Config):
    """Log-ratios and mean KL of the policy that acted to itself, and that KL's gradient."""
    batch = trpo.batch_of(state, rollout, config)
    distribution, _, _ = state.network(batch.observations, rollout.memory, batch.resets, batch.action_masks)
    kl, gradients = jax.value_and_grad(lambda network: trpo.loss(network, batch, rollout.memory)[1])(state.network)
    return distribution.log_prob(batch.actions) - behaviour_log_probs(rollout), kl, gradients


SETTINGS = {
    "feed-forward": SMALL,
    "lstm": replace(SMALL, core="lstm"),
    "gru": replace(SMALL, core="gru"),
    "lnlstm": replace(SMALL, core="lnlstm"),
    "normalised with gru": replace(SMALL, normalize_observations=True, normalize_rewards=True, core="gru"),
    "action masks": replace(SMALL, env=EnvConfig("birl/ProbeMask-v0", num_envs=4)),
    "action masks with lstm": replace(SMALL, env=EnvConfig("birl/ProbeMask-v0", num_envs=4), core="lstm"),
    "continuous": replace(SMALL, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=4), log_std=0.5),
    "continuous, state-dependent std": replace(
        SMALL, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=4), log_std=0.5, state_dependent_std=True
    ),
    "continuous, cut episodes, lstm": replace(SMALL, env=EnvConfig("Pendulum-v1", 4, max_episode_steps=4), core="lstm"),
    "MultiDiscrete": replace(SMALL, env=EnvConfig("birl/ProbeMultiDiscrete-v0", num_envs=4)),
    "MultiBinary": replace(SMALL, env=EnvConfig("birl/ProbeMultiBinary-v0", num_envs=4)),
    "Dict": replace(
        SMALL, env=EnvConfig("birl/ProbeDict-v0", num_envs=4), encoder="cnn_small", normalize_observations=True
    ),
}
SECONDS_EACH = (  # to compile
    "gru",
    "lnlstm",
    "normalised with gru",
    "action masks with lstm",
    "continuous, cut episodes, lstm",
    "MultiBinary",
    "Dict",
)
SOME_SETTINGS = [
    pytest.param(config, id=name, marks=pytest.mark.slow if name in SECONDS_EACH else ())
    for name, config in SETTINGS.items()
]


@pytest.mark.parametrize("config", SOME_SETTINGS)
def test_before_the_step_every_ratio_is_1_and_the_kl_and_its_gradient_are_0(config):
    state, rollout = collected(config)
    assert not rollout.valid.all()  # episodes ended inside
    assert np.ptp(behaviour_log_probs(rollout)) > 0.01  # and the policy is not uniform
    log_ratios, kl, gradients = look_again(state, rollout, config)
    np.testing.assert_allclose(log_ratios, 0.0, atol=1e-6)
    assert float(kl) == pytest.approx(0.0, abs=1e-7)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients)) < 1e-6


def test_memory_matters_so_that_a_wrong_one_would_show():
    config = SETTINGS["lstm"]
    state, rollout = collected(config)
    empty = rollout._replace(memory=jax.tree.map(jnp.zeros_like, rollout.memory))
    unmarked = rollout._replace(valid=np.ones_like(rollout.valid))
    for wrong in (empty, unmarked):
        assert np.abs(look_again(state, wrong, config)[0]).max() > 1e-3


@pytest.mark.parametrize("config", SOME_SETTINGS)
def test_an_update_moves_the_policy_by_a_kl_of_at_most_delta_and_fits_the_critic(config):
    state, rollout = collected(config)
    after, metrics = update(state, rollout, config)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert 0 < float(metrics["policy/kl"]) <= config.max_kl
    assert bool(metrics["trust_region/accepted"])
    (old_policy, old_critic), (policy, critic) = parts(state.network), parts(after.network)
    assert policy != old_policy
    assert critic != old_critic


# The Fisher matrix


@quickly
def fisher_products(state: trpo.State, rollout: Rollout, vectors, config: trpo.Config):
    """Products with the damped Fisher matrix, and the gradient of the mean KL nearby."""
    batch = trpo.batch_of(state, rollout, config)
    actor, critic = split_actor_critic(state.network, batch.observations)
    parameters, unravel = ravel_pytree(actor)

    def mean_kl(parameters):
        return trpo.loss(eqx.combine(unravel(parameters), critic), batch, rollout.memory)[1]

    def distribution_of(parameters):
        return eqx.combine(unravel(parameters), critic)(
            batch.observations, rollout.memory, batch.resets, batch.action_masks
        )[0]

    product = fisher_vector_product(distribution_of, partial(trpo.mean_kl, batch), parameters, config.cg_damping)
    gradient = jax.grad(mean_kl)
    differences = [(gradient(parameters + 5e-4 * v) - gradient(parameters - 5e-4 * v)) / 1e-3 for v in vectors]
    return jnp.stack([product(v) for v in vectors]), jnp.stack(differences)


@pytest.mark.parametrize(
    "name",
    [
        "feed-forward",
        "gru",
        "continuous",
        "MultiDiscrete",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "lnlstm", "action masks", "MultiBinary")],
    ],
)
def test_fisher_vector_products_are_the_finite_differences_of_the_kls_gradient_plus_the_damping(name):
    config = replace(SETTINGS[name], cg_damping=0.2)
    state, rollout = collected(SETTINGS[name])
    size = sum(leaf.size for leaf in jax.tree.leaves((state.network.actor, state.network.policy_head)))
    vectors = np.random.default_rng(0).standard_normal((2, size)).astype(np.float32)
    products, differences = fisher_products(state, rollout, vectors, config)
    assert np.abs(differences).max() > 1e-2
    np.testing.assert_allclose(products - 0.2 * vectors, differences, rtol=1e-2, atol=1e-3 * np.abs(differences).max())


@pytest.mark.parametrize("name", ["feed-forward", pytest.param("gru", marks=pytest.mark.slow)])
def test_a_fisher_matrix_from_every_second_of_pairs_of_equal_ones_is_that_of_all(name):
    config = SETTINGS[name]
    state, rollout = collected(config)
    batch = batch_of(state, rollout, config)
    axis = 1 if config.network.core == "gru" else 0  # equal sequences, or equal steps
    twice = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=axis), batch)
    twice_memory = jax.tree.map(lambda m: jnp.repeat(m, 2, axis=0), rollout.memory)
    once, _ = improve_policy(state, batch, rollout.memory, config)
    thinned, _ = improve_policy(state, twice, twice_memory, replace(config, fisher_every=2))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4), thinned, once)


def test_thinning_takes_every_kth_step_or_with_memory_every_kth_sequence():
    for name, shape in {"feed-forward": (4, 4), "gru": (10, 2)}.items():
        config = SETTINGS[name]
        state, rollout = collected(config)
        batch = batch_of(state, rollout, config)
        thinned, memory = trpo.thin_out(batch, rollout.memory, 2 if config.network.core == "gru" else 3)
        assert thinned.valid.shape == shape
        rows = batch.observations[:, ::2] if config.network.core == "gru" else batch.observations[::3]
        np.testing.assert_array_equal(thinned.observations, rows)
        assert all(leaf.shape[0] == shape[1] for leaf in jax.tree.leaves(memory))


def test_a_thinned_fisher_matrix_still_keeps_the_kl_of_the_whole_batch_within_delta():
    state, rollout = collected(SMALL)
    after, metrics = update(state, rollout, replace(SMALL, fisher_every=5))
    assert exact_kl(state, after, rollout) <= SMALL.max_kl * (1 + 1e-4)
    assert float(metrics["policy/kl"]) != float(update(state, rollout, SMALL)[1]["policy/kl"])


# The step


def test_the_step_is_the_natural_gradients_by_a_dense_solver():
    config = replace(SMALL, cg_steps=60, cg_damping=0.1, max_kl=1e-4, hidden_sizes=(2,))
    state, rollout = collected(config)
    batch = batch_of(state, rollout, config)
    actor, critic = split_actor_critic(state.network, batch.observations)
    parameters, unravel = ravel_pytree(actor)

    def evaluate(parameters):
        return trpo.loss(eqx.combine(unravel(parameters), critic), batch, NO_MEMORY)

    gradient = np.asarray(jax.grad(lambda p: evaluate(p)[0])(parameters), np.float64)
    fisher = np.asarray(jax.hessian(lambda p: evaluate(p)[1])(parameters), np.float64) + 0.1 * np.eye(len(parameters))
    direction = -np.linalg.solve(fisher, gradient)
    step = direction * np.sqrt(2 * config.max_kl / (direction @ fisher @ direction))
    network, metrics = improve_policy(state, batch, NO_MEMORY, config)
    moved = np.asarray(ravel_pytree(split_actor_critic(network, batch.observations)[0])[0]) - np.asarray(parameters)
    np.testing.assert_allclose(moved, step * 0.8 ** int(metrics["trust_region/backtracks"]), rtol=2e-2, atol=2e-5)
    assert float(metrics["optimizer/grad_norm"]) == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
    # The quadratic model of the KL, at the step that was tried first.
    tried = moved / 0.8 ** int(metrics["trust_region/backtracks"])
    assert 0.5 * tried @ fisher @ tried == pytest.approx(config.max_kl, rel=1e-2)


def test_eq_14_the_loss_is_minus_the_mean_of_ratio_times_advantage_over_valid_steps():
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, SMALL)
    ratios = np.random.default_rng(0).uniform(0.5, 2.0, batch.valid.shape)
    shifted = batch._replace(log_probs=batch.log_probs - jnp.log(jnp.asarray(ratios, jnp.float32)))
    value, _ = trpo.loss(state.network, shifted, NO_MEMORY)
    valid = np.asarray(batch.valid)
    assert float(value) == pytest.approx(-(ratios * np.asarray(batch.advantages))[valid].mean(), abs=1e-5)


def test_the_surrogate_is_better_after_an_accepted_step():
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, SMALL)
    network, metrics = improve_policy(state, batch, NO_MEMORY, SMALL)
    before, after = (float(trpo.loss(n, batch, NO_MEMORY)[0]) for n in (state.network, network))
    assert bool(metrics["trust_region/accepted"])
    assert after < before
    assert float(metrics["loss/policy"]) == pytest.approx(after, abs=1e-6)


def test_the_reported_step_size_is_that_of_the_step_taken():
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, SMALL)
    actor, critic = split_actor_critic(state.network, batch.observations)
    parameters, unravel = ravel_pytree(actor)
    inputs = batch.observations, NO_MEMORY, batch.resets, batch.action_masks
    product = fisher_vector_product(
        lambda p: eqx.combine(unravel(p), critic)(*inputs)[0],
        partial(trpo.mean_kl, batch),
        parameters,
        SMALL.cg_damping,
    )
    gradient = jax.grad(lambda p: trpo.loss(eqx.combine(unravel(p), critic), batch, NO_MEMORY)[0])(parameters)
    direction, _ = natural_step(product, gradient, SMALL.max_kl, SMALL.cg_steps)
    network, metrics = improve_policy(state, batch, NO_MEMORY, SMALL)
    moved = ravel_pytree(split_actor_critic(network, batch.observations)[0])[0] - parameters
    np.testing.assert_allclose(moved, float(metrics["trust_region/step_size"]) * direction, rtol=5e-3, atol=1e-5)


# A line search that fails


@pytest.mark.parametrize("name", [pytest.param("feed-forward", marks=pytest.mark.slow), "lstm", "continuous"])
def test_a_failed_line_search_leaves_the_policy_equal_bit_for_bit_while_the_critic_learns(name):
    config = replace(SETTINGS[name], **HOPELESS)
    state, rollout = collected(SETTINGS[name])
    after, metrics = update(state, rollout, config)
    assert (bool(metrics["trust_region/accepted"]), int(metrics["trust_region/backtracks"])) == (
        False,
        config.backtrack_tries,
    )
    assert float(metrics["policy/kl"]) == float(metrics["trust_region/step_size"]) == 0.0
    (old_policy, old_critic), (policy, critic) = parts(state.network), parts(after.network)
    assert policy == old_policy
    assert critic != old_critic


def test_advantages_of_0_leave_the_policy_equal_bit_for_bit():
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, SMALL)
    network, metrics = improve_policy(
        state, batch._replace(advantages=jnp.zeros_like(batch.advantages)), NO_MEMORY, SMALL
    )
    assert not bool(metrics["trust_region/accepted"])
    assert float(metrics["optimizer/grad_norm"]) == 0.0
    assert bits(network) == bits(state.network)


def test_a_step_that_overshoots_is_shortened_until_its_kl_is_within_delta():
    # A policy that is nearly deterministic has little curvature, so the first step is too long.
    state, rollout = collected(SMALL)
    sure = eqx.tree_at(lambda n: n.policy_head.linear.weight, state.network, replace_fn=lambda weight: 4 * weight)
    config = replace(SMALL, cg_damping=1e-6, max_kl=0.3, backtrack_tries=50)
    state = state._replace(network=sure)
    batch = batch_of(state, rollout, config)
    batch = batch._replace(log_probs=batch.old.log_prob(batch.actions))
    network, metrics = improve_policy(state, batch, NO_MEMORY, config)
    assert int(metrics["trust_region/backtracks"]) > 0
    assert bool(metrics["trust_region/accepted"])
    assert float(trpo.loss(network, batch, NO_MEMORY)[1]) <= 0.3
    stubborn, metrics = improve_policy(
        state, batch, NO_MEMORY, replace(config, backtrack_tries=int(metrics["trust_region/backtracks"]))
    )
    assert not bool(metrics["trust_region/accepted"])
    assert bits(stubborn) == bits(state.network)


def test_a_reward_that_is_not_a_number_moves_no_bit_of_the_policy_and_stops_the_run():
    state, rollout = collected(SMALL)
    broken = rollout._replace(rewards=np.full_like(rollout.rewards, np.nan))
    after, metrics = update(state, broken, SMALL)
    assert parts(after.network)[0] == parts(state.network)[0]
    with pytest.raises(NonFiniteError, match="gradient's norm is nan"):
        check_finite_metrics(metrics)


def test_a_critic_that_diverges_stops_the_run():
    config = replace(
        SMALL, env=EnvConfig("birl/ProbeConstant-v0", num_envs=4), learning_rate=1e30, activation="relu", epochs=20
    )
    with pytest.raises(NonFiniteError, match=r"gradient's norm is (nan|inf)"):
        list(trpo.train(config))


# Every update of a run


def exact_kl(before: trpo.State, after: trpo.State, rollout: Rollout) -> float:
    """The mean KL of a feed-forward categorical policy from the one that acted, in float64."""
    inputs = rollout.observations[:-1], NO_MEMORY, ~rollout.valid, None
    old, new = (oracle.softmax(np.asarray(state.network(*inputs)[0].logits, np.float64)) for state in (before, after))
    return float((old * np.log(old / new)).sum(-1)[rollout.valid].mean())


RUNS = {
    "CartPole": (
        replace(trpo.Config(), env=EnvConfig("CartPole-v1", num_envs=4), rollout_length=64, minibatches=4),
        30,
    ),
    # After more steps without damping, conjugate gradients follow rounding errors of nearly flat
    # directions of a new policy, and the line search rejects what they give.
    "CartPole, no damping": (
        trpo.Config(
            env=EnvConfig(num_envs=4), rollout_length=32, minibatches=1, cg_steps=8, cg_damping=0.0, max_kl=0.1
        ),
        30,
    ),
    "LunarLander": (
        trpo.Config(env=EnvConfig("LunarLander-v3", num_envs=4), rollout_length=128, minibatches=4, cg_damping=0.01),
        15,
    ),
}


@pytest.mark.parametrize(
    ("config", "updates"),
    [pytest.param(*run, id=name, marks=() if name == "CartPole" else pytest.mark.slow) for name, run in RUNS.items()],
)
def test_at_every_update_of_a_run_the_kl_is_at_most_delta(config, updates):
    kls, accepted = [], []
    with make_envs(config.env, 1) as envs:
        state = trpo.init(config, envs.observation_space, envs.action_space)
        collector = Collector(envs, trpo.act, config.rollout_length, ())
        collector.start(1)
        for _ in range(updates):
            rollout = collector.collect(trpo.policy(state), state.key)
            before = state
            state, metrics = trpo.update(state, rollout, config)
            assert float(metrics["policy/kl"]) <= config.max_kl
            kls.append(exact_kl(before, state, rollout))
            accepted.append(bool(metrics["trust_region/accepted"]))
            assert kls[-1] == pytest.approx(float(metrics["policy/kl"]), rel=1e-3, abs=1e-6)
            if not accepted[-1]:
                assert parts(state.network)[0] == parts(before.network)[0]
    assert max(kls) <= config.max_kl * (1 + 1e-4)
    assert np.mean(accepted) > 0.8
    assert np.median(kls) > config.max_kl / 4  # and it is used


# The critic, and what is left alone


def test_a_critic_that_does_not_learn_is_left_equal_bit_for_bit_while_the_policy_moves():
    state, rollout = collected(SMALL)
    after, _ = update(state, rollout, replace(SMALL, learning_rate=0.0))
    (old_policy, old_critic), (policy, critic) = parts(state.network), parts(after.network)
    assert critic == old_critic
    assert policy != old_policy


def test_the_critics_settings_change_no_bit_of_the_policys_step():
    state, rollout = collected(SMALL)
    changes = {"learning_rate": 0.5, "epochs": 3, "minibatches": 4, "max_grad_norm": 0.1}
    one, other = (update(state, rollout, replace(SMALL, **settings))[0].network for settings in ({}, changes))
    assert parts(one)[0] == parts(other)[0]
    assert parts(one)[1] != parts(other)[1]


def test_the_critics_gradient_is_clipped_by_its_norm():
    state, rollout = collected(SMALL)
    one = replace(SMALL, epochs=1, minibatches=1)
    _, metrics = update(state, rollout, one)
    norm = float(metrics["optimizer/value_grad_norm"])
    moments = [update(state, rollout, replace(one, max_grad_norm=limit))[0].optimizer.mu for limit in (None, norm / 10)]
    # Adam's first moment after one step is a tenth of the gradient.
    full, clipped = (float(jnp.linalg.norm(ravel_pytree(m)[0])) for m in moments)
    assert full == pytest.approx(norm / 10, rel=1e-3)
    assert clipped == pytest.approx(norm / 100, rel=1e-3)


def test_the_critics_learning_rate_stands_where_progress_is():
    state, rollout = collected(SMALL)
    _, metrics = update(
        state._replace(env_steps=np.int32(500)), rollout, replace(SMALL, learning_rate=linear(2e-2, 0.0))
    )
    assert float(metrics["optimizer/learning_rate"]) == pytest.approx(1e-2)


def test_a_perfect_critic_has_no_loss_and_a_fitted_one_less_than_before():
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, SMALL)
    actor, critic = split_actor_critic(state.network, batch.observations)
    assert float(
        trpo.critic_loss(critic, actor, batch._replace(value_targets=batch.values), NO_MEMORY)
    ) == pytest.approx(0.0, abs=1e-10)
    after, _ = update(state, rollout, replace(SMALL, epochs=100))
    fitted = split_actor_critic(after.network, batch.observations)
    # No critic can tell steps with the same observation apart: what their targets vary is left.
    valid = np.asarray(batch.valid, bool)
    _, groups = np.unique(np.asarray(batch.observations)[valid], axis=0, return_inverse=True)
    targets = np.asarray(batch.value_targets)[valid]
    least = np.mean((targets - (np.bincount(groups, targets) / np.bincount(groups))[groups]) ** 2)
    losses = [float(trpo.critic_loss(*pair, batch, NO_MEMORY)) for pair in ((critic, actor), (fitted[1], fitted[0]))]
    assert losses[1] - least < 0.1 * (losses[0] - least)


def test_advantages_are_gae_of_the_networks_values_with_targets_above_them():
    config = replace(SMALL, gae_lambda=0.7, discount=0.8, normalize_advantages=False)
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, config)
    never = np.zeros(rollout.observations.shape[:2], bool)
    values = np.asarray(state.network(rollout.observations, NO_MEMORY, never, None)[1], np.float64)
    advantages = oracle.gae(
        rollout.rewards, values[:-1], values[1:], rollout.terminated, rollout.truncated, rollout.valid, 0.8, 0.7
    )
    np.testing.assert_allclose(batch.advantages, advantages, atol=1e-5)
    np.testing.assert_allclose(batch.value_targets, advantages + values[:-1], atol=1e-5)
    normalised = batch_of(state, rollout, replace(config, normalize_advantages=True))
    kept = advantages[rollout.valid]
    np.testing.assert_allclose(
        np.asarray(normalised.advantages)[rollout.valid], (kept - kept.mean()) / kept.std(), atol=1e-4
    )
    np.testing.assert_allclose(normalised.value_targets, batch.value_targets, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"core": "gru"}], ids=str)
def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_update(changes):
    config = replace(SMALL, normalize_rewards=True, normalize_observations=True, **changes)
    state, rollout = collected(config)
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(rollout.valid, rollout.actions, 1 - rollout.actions),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert bits(update(state, rollout, config)) == bits(update(state, strange, config))


# Settings


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    "epochs -1 must be at least 1": {"epochs": -1},
    "cg_steps 0 must be at least 1": {"cg_steps": 0},
    "backtrack_tries 0 must be at least 1": {"backtrack_tries": 0},
    "fisher_every 0 must be at least 1": {"fisher_every": 0},
    "fisher_every 11 exceeds rollout_length 10; use a number from 1 to 10": {"fisher_every": 11},
    "fisher_every 5 exceeds num_envs 4; use a number from 1 to 4": {"fisher_every": 5, "core": "gru"},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    r"gae_lambda -0.1 must lie in \[0, 1\]": {"gae_lambda": -0.1},
    "max_kl 0.0 must be positive; 0.01 is usual": {"max_kl": 0.0},
    "cg_damping -0.1 must not be negative": {"cg_damping": -0.1},
    "backtrack_factor 1.0 must lie between 0 and 1; 0.8 is usual": {"backtrack_factor": 1.0},
    "backtrack_factor 0.0 must lie between 0 and 1": {"backtrack_factor": 0.0},
    "learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "rollout_length x num_envs 40 does not divide into 3 minibatches; use one of 1, 2, 4, 5, 8, 10, 20, 40": {
        "minibatches": 3
    },
    "num_envs 4 does not divide into 8 minibatches; use one of 1, 2, 4": {"minibatches": 8, "core": "lstm"},
    "env.num_envs 0 is less than 1; use 8, or 1": {"env": EnvConfig(num_envs=0)},
    "core_size 0 must be at least 1": {"core_size": 0},
    r"hidden_sizes \(64, 0\) must each be at least 1": {"hidden_sizes": (64, 0)},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(trpo.train(replace(SMALL, **changes)))


def test_one_trunk_for_policy_and_value_is_no_option():
    assert "share_trunk" not in places_of(trpo.Config)
    assert collected(SMALL)[0].network.critic is not None


# Networks of the user's own


class OwnNetwork(eqx.Module):
    """What a user may write: one layer for both, a linear layer each on top, no memory."""

    trunk: Linear
    policy: Linear
    value: Linear

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets, action_masks):
        features = jnp.tanh(self.trunk(observations))
        return Categorical(self.policy(features)), self.value(features)[..., 0], memory


def make_own(rng, observation_space, action_space):
    trunk = make_linear(rng, observation_space.shape[0], 8, 1.0)
    return OwnNetwork(trunk, make_linear(rng, 8, int(action_space.n), 0.01), make_linear(rng, 8, 1, 1.0))


def test_an_equinox_module_of_the_users_own_learns():
    config = replace(PROBE, env=EnvConfig("birl/ProbeObservationAction-v0"), run=RunConfig(total_steps=2000))
    *_, last = trpo.train(config, make_network=make_own)
    assert isinstance(last.state.network, OwnNetwork)
    assert last.metrics["episode/return"] > 0.8


def test_what_policy_and_value_share_is_moved_by_the_policys_step_alone():
    config = replace(PROBE, env=EnvConfig("birl/ProbeObservationAction-v0"), **HOPELESS)
    with make_envs(config.env, 1) as envs:
        start = trpo.init(config, envs.observation_space, envs.action_space, make_own)
    first = next(trpo.train(config, make_network=make_own)).state.network
    assert bits((first.trunk, first.policy)) == bits((start.network.trunk, start.network.policy))
    assert bits(first.value) != bits(start.network.value)


# Probes: values and policies that are known


def learned(env_id: str, **changes) -> trpo.Update:
    """The last update of a short run."""
    *_, last = trpo.train(replace(PROBE, env=EnvConfig(env_id), **changes))
    return last


def answers(state: trpo.State, *observations) -> Iterator[tuple[float, np.ndarray]]:
    """The value of each observation at an episode's start, and the policy's best action there."""
    for observation in observations:
        batch = jax.tree.map(lambda x: np.asarray(x)[None, None], observation)
        distribution, values, _ = jax.jit(lambda network, *inputs: network(*inputs))(
            state.network, batch, state.network.initial_memory(1), np.zeros((1, 1), bool), None
        )
        yield float(values[0, 0]), np.asarray(distribution.mode()[0, 0])


def sign(number: float) -> np.ndarray:
    return np.array([number], np.float32)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_constant_reward_of_1_has_value_1():
    ((value, _),) = answers(learned("birl/ProbeConstant-v0").state, sign(0))
    assert value == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_values_follow_the_observation():
    (high, _), (low, _) = answers(learned("birl/ProbeObservation-v0").state, sign(1), sign(-1))
    assert (high, low) == pytest.approx((1.0, -1.0), abs=0.05)


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


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
@pytest.mark.parametrize("core", ["lstm", "lnlstm", "gru"])
def test_probe_what_was_seen_at_the_start_is_remembered(core):
    assert learned("birl/ProbeMemory-v0", core=core).metrics["episode/return"] >= 0.9


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_what_was_seen_at_the_start_cannot_be_known_without_memory():
    returns = [
        update.metrics["episode/return"] for update in trpo.train(replace(PROBE, env=EnvConfig("birl/ProbeMemory-v0")))
    ]
    assert np.mean(returns[-20:]) < 0.3  # 0 in the mean


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_masked_action_is_never_taken():
    assert all(
        update.metrics["episode/return"] == 4.0
        for update in trpo.train(replace(PROBE, env=EnvConfig("birl/ProbeMask-v0")))
    )


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric():
    for value, action in answers(learned("birl/ProbeContinuous-v0").state, sign(1), sign(-1)):
        assert action == pytest.approx(0.5, abs=0.1)
        assert value == pytest.approx(0.0, abs=0.1)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_every_part_of_a_multi_discrete_action_is_learned():
    for value, action in answers(learned("birl/ProbeMultiDiscrete-v0").state, sign(1), sign(-1)):
        assert action.tolist() == [1, 2]
        assert value == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_every_bit_of_a_multi_binary_action_is_learned():
    (high, ones), (low, zeros) = answers(learned("birl/ProbeMultiBinary-v0").state, sign(1), sign(-1))
    assert (ones.tolist(), zeros.tolist()) == ([1, 1, 1], [0, 0, 0])
    assert (high, low) == pytest.approx((1.0, 1.0), abs=0.05)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_the_vector_and_the_image_of_a_dict_are_both_used():
    state = learned(
        "birl/ProbeDict-v0", encoder="cnn_small", run=RunConfig(total_steps=2000), activation="relu", cg_steps=5
    ).state
    images = [np.full((36, 36, 1), brightness, np.uint8) for brightness in (0, 255)]
    found = [
        int(action)
        for _, action in answers(state, *({"vector": sign(s), "image": image} for s in (-1, 1) for image in images))
    ]
    assert found == [0, 1, 2, 3]
