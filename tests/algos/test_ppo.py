"""PPO: what must hold exactly in every update, and probes whose answers are known."""

from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import islice

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_env
from birl.maths.distributions import Categorical
from birl.maths.schedules import exponential, linear, piecewise
from birl.nets.layers import Linear, make_linear
from birl.speed import prepare_jax
from birl.types import Rollout
from tests import oracle
from tests.algos import probing
from tests.algos.probing import answers, assert_same_bits, behaviour_log_probs, sign
from tests.tiers import sooner

# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = ppo.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=10,
    epochs=1,
    minibatches=1,
    hidden_sizes=(8,),
    core_size=8,
    learning_rate=1e-2,
)
PENALTY_WEIGHT = jnp.float32(3.0)
NO_MEMORY = ()
PROBE = ppo.Config(
    run=RunConfig(total_steps=4000),
    rollout_length=16,
    minibatches=2,
    discount=0.9,
    hidden_sizes=(16,),
    core_size=8,
    learning_rate=linear(2e-2, 0.0),
)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


collected = partial(probing.collected, ppo)

# Hardly optimised: else the tests would mostly compile. The probes run what users run.
update = jax.jit(
    ppo.update.__wrapped__, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0}
)


# The first minibatch


@partial(jax.jit, static_argnames="config")
def look_again(state: ppo.State, rollout: Rollout, config: ppo.Config):
    """Log-ratios and KL of the policy that acted to itself, and the loss's metrics at first."""
    batch = ppo.batch_of(state, rollout, replace(config, objective="kl"))
    distribution, _, _ = state.network(batch.observations, rollout.memory, batch.resets, batch.action_masks)
    _, metrics = ppo.loss(state.network, batch, rollout.memory, PENALTY_WEIGHT, config)
    return distribution.log_prob(batch.actions) - behaviour_log_probs(rollout), batch.old.kl(distribution), metrics


FIRST_LOOKS = {
    "feed-forward": SMALL,
    "lstm": replace(SMALL, core="lstm"),
    "gru": replace(SMALL, core="gru"),
    "lnlstm": replace(SMALL, core="lnlstm"),
    "lstm on a shared trunk": replace(SMALL, core="lstm", share_trunk=True),
    "normalised observations": replace(SMALL, normalize_observations=True),
    "normalised observations with gru": replace(SMALL, normalize_observations=True, core="gru"),
    "action masks": replace(SMALL, env=EnvConfig("birl/ProbeMask-v0", num_envs=4)),
    "action masks with lstm": replace(SMALL, env=EnvConfig("birl/ProbeMask-v0", num_envs=4), core="lstm"),
    "continuous": replace(SMALL, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=4), log_std=0.5),
    "continuous, state-dependent std": replace(
        SMALL, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=4), log_std=0.5, state_dependent_std=True
    ),
    "continuous, cut episodes, lstm": replace(SMALL, env=EnvConfig("Pendulum-v1", 4, max_episode_steps=4), core="lstm"),
    "gsde": replace(SMALL, env=EnvConfig("Pendulum-v1", 4, max_episode_steps=4), gsde=True, gsde_every=3),
    "gsde with gru": replace(SMALL, env=EnvConfig("Pendulum-v1", 4, max_episode_steps=4), gsde=True, core="gru"),
    "squashed actions": replace(
        SMALL, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=4), log_std=0.5, squash_actions=True
    ),
    "squashed actions near the bounds": replace(
        SMALL, env=EnvConfig("Pendulum-v1", 4, max_episode_steps=4), log_std=2.0, squash_actions=True
    ),
    "gsde, squashed, a Dict of vector and image, lstm": replace(
        SMALL,
        env=EnvConfig("tests.envs.still:Still-v0", 4, kwargs={"kind": "dict"}),
        encoder="cnn_small",
        gsde=True,
        squash_actions=True,
        core="lstm",
    ),
    "gsde with cached images": replace(
        SMALL,
        env=EnvConfig("tests.envs.still:Still-v0", 4, kwargs={"kind": "image"}),
        encoder="cnn_small",
        gsde=True,
        share_trunk=True,
    ),
    "MultiDiscrete": replace(SMALL, env=EnvConfig("birl/ProbeMultiDiscrete-v0", num_envs=4)),
    "MultiBinary": replace(SMALL, env=EnvConfig("birl/ProbeMultiBinary-v0", num_envs=4)),
    "Dict of actions": replace(SMALL, env=EnvConfig("birl/ProbeDictAction-v0", num_envs=4), log_std=0.5),
    "nested actions, masks, lstm": replace(
        SMALL, env=EnvConfig("tests.envs.hybrid:Hybrid-v0", 4, max_episode_steps=4), core="lstm"
    ),
    "mask in the observation, gru": replace(
        SMALL, env=EnvConfig("birl/ProbeMaskedMemory-v0", 4, kwargs={"mask_in_observation": True}), core="gru"
    ),
    "Dict": replace(
        SMALL, env=EnvConfig("birl/ProbeDict-v0", num_envs=4), encoder="cnn_small", normalize_observations=True
    ),
}


# Each kind of core, of action and of observation, and the pairs of them that share code.
AT_FIRST = (
    "lnlstm",
    "lstm on a shared trunk",
    "normalised observations with gru",
    "action masks",
    "continuous, state-dependent std",
    "continuous, cut episodes, lstm",
    "squashed actions near the bounds",
    "gsde, squashed, a Dict of vector and image, lstm",
    "nested actions, masks, lstm",
)


@pytest.mark.parametrize("case", sooner(AT_FIRST, FIRST_LOOKS))
def test_on_the_first_minibatch_every_ratio_is_1_and_the_kl_is_0(case):
    config = FIRST_LOOKS[case]
    state, rollout = collected(config)
    assert not rollout.valid.all()  # episodes ended inside
    assert np.ptp(behaviour_log_probs(rollout)) > 0.01  # and the policy is not uniform
    log_ratios, kls, metrics = look_again(state, rollout, config)
    np.testing.assert_allclose(log_ratios, 0.0, atol=1e-6)
    np.testing.assert_allclose(kls, 0.0, atol=1e-6)
    assert float(metrics["policy/approx_kl"]) == pytest.approx(0.0, abs=1e-9)
    assert float(metrics["policy/clip_fraction"]) == 0.0


def test_memory_matters_so_that_a_wrong_one_would_show():
    config = FIRST_LOOKS["lstm"]
    state, rollout = collected(config)
    empty = rollout._replace(memory=jax.tree.map(jnp.zeros_like, rollout.memory))
    unmarked = rollout._replace(valid=np.ones_like(rollout.valid))
    for wrong in (empty, unmarked):
        assert np.abs(look_again(state, wrong, config)[0]).max() > 1e-3


@pytest.mark.parametrize("name", ["lstm", "action masks"])
def test_without_steps_every_minibatch_of_every_epoch_has_ratio_1(name):
    config = replace(FIRST_LOOKS[name], learning_rate=0.0, epochs=2, minibatches=2)
    state, metrics = update(*collected(FIRST_LOOKS[name]), config)
    assert float(metrics["policy/approx_kl"]) == pytest.approx(0.0, abs=1e-9)
    assert float(metrics["policy/clip_fraction"]) == 0.0
    assert int(metrics["optimizer/steps"]) == 4
    assert_same_bits(state.network, collected(FIRST_LOOKS[name])[0].network)


# What the loss is made of


def tampered(config: ppo.Config, **changes) -> ppo.Batch:
    state, rollout = collected(SMALL)
    return batch_of(state, rollout, config)._replace(**changes)


batch_of = jax.jit(ppo.batch_of, static_argnames="config")
loss_and_gradients = jax.jit(jax.value_and_grad(ppo.loss, has_aux=True), static_argnames="config")


def replicated(number: float) -> jax.Array:
    return jnp.full((SMALL.rollout_length, SMALL.env.num_envs), number, jnp.float32)


@pytest.mark.parametrize(
    ("ratio", "advantage", "learns"),
    [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, -1.0, False), (0.5, 1.0, True), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_the_policy_gradient_is_0_where_the_ratio_has_left_the_clip_in_the_direction_of_the_advantage(
    ratio, advantage, learns
):
    config = replace(SMALL, normalize_advantages=False)
    state, _ = collected(SMALL)
    batch = tampered(config, advantages=replicated(advantage))
    # As if the old policy had been less sure.
    batch = batch._replace(log_probs=batch.log_probs - jnp.log(jnp.float32(ratio)))
    (_, metrics), gradients = loss_and_gradients(state.network, batch, NO_MEMORY, PENALTY_WEIGHT, config)
    assert any(np.any(leaf) for leaf in jax.tree.leaves((gradients.actor, gradients.policy_head))) == learns
    assert float(metrics["policy/clip_fraction"]) == (1.0 if abs(ratio - 1) > 0.2 else 0.0)
    clipped = np.clip(ratio, 0.8, 1.2)
    assert float(metrics["loss/policy"]) == pytest.approx(-min(ratio * advantage, clipped * advantage), rel=1e-5)


def test_eq_8_the_kl_costs_its_weight():
    config = replace(SMALL, objective="kl", normalize_advantages=False)
    state, _ = collected(SMALL)
    batch = tampered(
        config, advantages=replicated(0.0), old=Categorical(jnp.stack([replicated(0.0), replicated(1.0)], axis=-1))
    )
    (_, metrics), _ = loss_and_gradients(state.network, batch, NO_MEMORY, PENALTY_WEIGHT, config)
    new = oracle.softmax(np.asarray(state.network(batch.observations, NO_MEMORY, batch.resets, None)[0].logits))
    old = oracle.softmax(np.array([0.0, 1.0]))
    kl = (old * np.log(old / new)).sum(-1)[np.asarray(batch.valid)].mean()
    assert float(metrics["loss/policy"]) == pytest.approx(3.0 * kl, rel=1e-4)


def test_a_clipped_value_may_not_take_credit_for_moving_further():
    state, _ = collected(SMALL)
    values = tampered(SMALL).values
    moved = tampered(SMALL, values=values - 1.0, value_targets=values)  # right on target, but 1 away from before
    losses = {}
    for value_clip in (None, 0.1):
        (_, metrics), gradients = loss_and_gradients(
            state.network, moved, NO_MEMORY, PENALTY_WEIGHT, replace(SMALL, value_clip=value_clip)
        )
        losses[value_clip] = float(metrics["loss/value"])
        # 0 but for rounding: the values of the batch come from another compiled program
        np.testing.assert_allclose(gradients.value_head.weight, 0.0, atol=1e-7)
    assert losses[None] == pytest.approx(0.0, abs=1e-9)
    assert losses[0.1] == pytest.approx(0.9**2, rel=1e-4)


def test_entropy_is_subtracted_with_its_weight_and_the_value_error_added_with_its():
    state, _ = collected(SMALL)
    batch = tampered(SMALL)
    config = replace(SMALL, value_weight=0.25, entropy_weight=0.1)
    (total, metrics), _ = loss_and_gradients(state.network, batch, NO_MEMORY, PENALTY_WEIGHT, config)
    expected = metrics["loss/policy"] + 0.25 * metrics["loss/value"] - 0.1 * metrics["policy/entropy"]
    assert float(total) == pytest.approx(float(expected), rel=1e-5)


# What a batch is made of


def test_advantages_are_gae_of_the_networks_values_with_targets_above_them():
    config = replace(SMALL, gae_lambda=0.7, discount=0.8)
    state, rollout = collected(SMALL)
    batch = batch_of(state, rollout, config)
    never = np.zeros(rollout.observations.shape[:2], bool)
    values = np.asarray(state.network(rollout.observations, NO_MEMORY, never, None)[1], np.float64)
    advantages = oracle.gae(
        rollout.rewards, values[:-1], values[1:], rollout.terminated, rollout.truncated, rollout.valid, 0.8, 0.7
    )
    np.testing.assert_allclose(batch.advantages, advantages, atol=1e-5)
    np.testing.assert_allclose(batch.value_targets, advantages + values[:-1], atol=1e-5)


@pytest.mark.parametrize("row", ["in an episode", "ending an episode", "resetting"])
def test_a_rollout_that_stops_earlier_has_the_same_td_errors_up_to_there(row):
    """The last successor's value has its episode's memory, or none after a reset."""
    config = replace(FIRST_LOOKS["lstm"], gae_lambda=0.0, env=replace(SMALL.env, num_envs=1))
    state, rollout = collected(config)
    ended = rollout.terminated | rollout.truncated
    rows = {"in an episode": rollout.valid & ~ended, "ending an episode": ended, "resetting": ~rollout.valid}[row]
    last = int(np.flatnonzero(rows[2:, 0])[0]) + 2
    changes = {
        name: getattr(rollout, name)[: last + 1] for name in ("actions", "rewards", "terminated", "truncated", "valid")
    }
    shorter = rollout._replace(observations=rollout.observations[: last + 2], **changes)
    whole, part = (np.asarray(batch_of(state, r, config).advantages) for r in (rollout, shorter))
    np.testing.assert_allclose(part, whole[: last + 1], atol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"objective": "kl"}, {"core": "gru", "minibatches": 2}], ids=str)
def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_update(changes):
    config = replace(
        SMALL, normalize_rewards=True, normalize_observations=True, epochs=2, entropy_weight=0.01, **changes
    )
    state, rollout = collected(config)
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(rollout.valid, rollout.actions, 1 - rollout.actions),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert_same_bits(update(state, rollout, config), update(state, strange, config))


def test_the_continuous_action_is_stored_as_drawn_while_the_environment_gets_it_clipped():
    config = replace(SMALL, env=EnvConfig("birl/ProbeContinuous-v0", num_envs=4), log_std=1.5)  # bounds [-2, 3]
    _, rollout = collected(config)
    stored = rollout.actions[rollout.valid][:, 0]
    assert stored.min() < -2
    assert stored.max() > 3
    np.testing.assert_allclose(rollout.rewards[rollout.valid], -((np.clip(stored, -2, 3) - 0.5) ** 2), rtol=1e-5)


# The update


def test_the_step_in_which_an_environment_resets_itself_is_not_an_environment_step():
    config = replace(SMALL, env=EnvConfig("birl/ProbeConstant-v0", num_envs=4))  # every second row is a reset
    first = next(ppo.train(config))
    assert int(first.state.env_steps) == 4 * 10 // 2
    assert int(first.state.updates) == 1


def test_minibatches_of_one_sample_valid_or_not_give_no_nan():
    # SB3 #440
    env = EnvConfig("birl/ProbeObservationAction-v0", num_envs=1)
    config = replace(SMALL, env=env, rollout_length=4, minibatches=4)
    state, rollout = collected(config)
    state, metrics = update(state, rollout, config)
    assert int(metrics["optimizer/steps"]) == int(rollout.valid.sum()) == 2  # the others move nothing
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics)))


def test_schedules_stand_where_progress_is():
    state, rollout = collected(SMALL)
    halfway = state._replace(env_steps=np.int32(500))
    changing = {
        "learning_rate": linear(2e-2, 0.0),
        "clip_range": piecewise((0.0, 0.5, 1.0), (0.9, 0.1, 0.5)),
        "entropy_weight": exponential(1, 0.01),
        "value_clip": linear(0.02, 0.0),
    }
    standing = {"learning_rate": 1e-2, "clip_range": 0.1, "entropy_weight": 0.1, "value_clip": 0.01}
    (scheduled, metrics), (constant, _), (early, early_metrics) = (
        update(start, rollout, replace(SMALL, epochs=3, **settings))
        for start, settings in ((halfway, changing), (halfway, standing), (state, changing))
    )
    assert float(metrics["optimizer/learning_rate"]) == pytest.approx(1e-2)
    assert float(early_metrics["optimizer/learning_rate"]) == pytest.approx(2e-2)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), scheduled, constant)
    assert np.abs(early.network.policy_head.linear.weight - constant.network.policy_head.linear.weight).max() > 1e-3
    wider, _ = update(halfway, rollout, replace(SMALL, epochs=3, **standing | {"value_clip": 0.02}))
    assert np.abs(wider.network.value_head.weight - constant.network.value_head.weight).max() > 1e-6


def test_target_kl_stops_the_steps_of_all_epochs_that_are_left():
    state, rollout = collected(SMALL)
    stopping = replace(SMALL, target_kl=1e-7)  # the first step is taken at KL 0 and leads beyond
    (three, metrics), (five, more_metrics) = (
        update(state, rollout, replace(stopping, epochs=epochs)) for epochs in (3, 5)
    )
    assert int(metrics["optimizer/steps"]) == int(more_metrics["optimizer/steps"]) == 1  # contrib #325: only real steps
    assert_same_bits((three.network, three.optimizer), (five.network, five.optimizer))
    assert np.any(three.network.policy_head.linear.weight != state.network.policy_head.linear.weight)
    # Two minibatches were looked at: the one that led to the step and the one that stopped.
    assert float(metrics["policy/approx_kl"]) == pytest.approx(float(more_metrics["policy/approx_kl"]))
    assert float(metrics["policy/approx_kl"]) > 1.5e-7 / 2


def test_steps_end_where_the_kl_is_above_one_and_a_half_times_its_target():
    state, rollout = collected(SMALL)
    twice = replace(SMALL, epochs=2)
    # The metric is the mean of 0, at the first step, and of this KL.
    kl = 2 * float(update(state, rollout, twice)[1]["policy/approx_kl"])
    steps = [
        int(update(state, rollout, replace(twice, target_kl=kl / factor))[1]["optimizer/steps"])
        for factor in (1.4, 1.6)
    ]
    assert steps == [2, 1]


@pytest.mark.parametrize("stopped", [False, True])
def test_an_update_that_has_stopped_takes_no_step_on_a_later_minibatch_of_a_small_kl(stopped):
    state, rollout = collected(SMALL)
    config = replace(SMALL, target_kl=1.0)
    batch = jax.jit(ppo.batch_of, static_argnames="config")(state, rollout, config)
    before = ppo.Learning(state.network, state.optimizer, jnp.int32(1), jnp.bool_(stopped))
    rates = jnp.float32(1e-2), jnp.float32(1.0)
    after, metrics = jax.jit(ppo.learn_minibatch)(before, (batch, NO_MEMORY), *rates, config)
    assert float(metrics["policy/approx_kl"]) == pytest.approx(0.0, abs=1e-9)
    assert (bool(after.stopped), int(after.steps)) == (stopped, 1 if stopped else 2)
    assert np.array_equal(after.network.policy_head.linear.weight, state.network.policy_head.linear.weight) == stopped


def test_a_target_kl_that_is_not_reached_stops_nothing():
    _, metrics = update(*collected(SMALL), replace(SMALL, epochs=3, target_kl=1e3))
    assert int(metrics["optimizer/steps"]) == 3


def test_eq_8_the_penalty_doubles_above_1_5_times_its_target_halves_below_two_thirds_and_else_stands():
    config = replace(SMALL, objective="kl", epochs=2, penalty_target_kl=1e-3, learning_rate=exponential(1e-1, 1e-4))
    state, rollout = collected(SMALL)
    factors = []
    for env_steps in range(0, 1000, 50):  # smaller and smaller steps
        start = state._replace(env_steps=np.int32(env_steps), penalty_weight=np.float32(4.0))
        after, metrics = update(start, rollout, config)
        kl = float(metrics["policy/kl"])
        factors.append(2.0 if kl > 1.5e-3 else 0.5 if kl < 1e-3 / 1.5 else 1.0)
        assert float(after.penalty_weight) == float(metrics["policy/penalty_weight"]) == 4.0 * factors[-1]
    assert set(factors) == {2.0, 1.0, 0.5}


def test_the_kl_that_steers_the_penalty_is_that_of_the_valid_steps_from_the_policy_that_acted():
    state, rollout = collected(SMALL)
    config = replace(SMALL, objective="kl", epochs=2)
    after, metrics = update(state, rollout, config)
    inputs = rollout.observations[:-1], NO_MEMORY, ~rollout.valid, None
    old, new = (oracle.softmax(np.asarray(s.network(*inputs)[0].logits)) for s in (state, after))
    kls = (old * np.log(old / new)).sum(-1)
    assert float(metrics["policy/kl"]) == pytest.approx(kls[rollout.valid].mean(), rel=1e-3)
    assert kls.mean() != pytest.approx(kls[rollout.valid].mean(), rel=1e-2)


def test_a_stronger_penalty_keeps_the_policy_closer():
    state, rollout = collected(SMALL)
    config = replace(SMALL, objective="kl", epochs=10)
    kls = [
        float(update(state._replace(penalty_weight=np.float32(b)), rollout, config)[1]["policy/kl"])
        for b in (0.01, 1.0, 100.0)
    ]
    assert kls[0] > kls[1] > kls[2]


# Settings


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    "epochs -1 must be at least 1": {"epochs": -1},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    r"gae_lambda -0.1 must lie in \[0, 1\]": {"gae_lambda": -0.1},
    "target_kl 0.0 must be positive, or None": {"target_kl": 0.0},
    "value_clip -1.0 must be positive, or None": {"value_clip": -1.0},
    "value_clip 0.0 must be positive, or None": {"value_clip": linear(0.2, 0.0)},
    "rollout_length x num_envs 40 does not divide into 3 minibatches; use one of 1, 2, 4, 5, 8, 10, 20, 40": {
        "minibatches": 3
    },
    "minibatches 0 must be at least 1": {"minibatches": 0},
    "num_envs 4 does not divide into 8 minibatches; use one of 1, 2, 4": {"minibatches": 8, "core": "lstm"},
    "env.num_envs 0 is less than 1; use 8, or 1": {"env": EnvConfig(num_envs=0)},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "core_size 0 must be at least 1": {"core_size": 0},
    r"hidden_sizes \(64, 0\) must each be at least 1": {"hidden_sizes": (64, 0)},
    "penalty_target_kl 0.0 must be positive; 0.01 is usual": {"penalty_target_kl": 0.0},
    "penalty_weight -1.0 must be positive; 1 is usual": {"penalty_weight": -1.0},
    "learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
    "clip_range -0.2 must not be negative": {"clip_range": -0.2},
    "gsde_every 4 does nothing without gsde; use gsde True, or gsde_every None": {"gsde_every": 4},
    "gsde_every 0 must be at least 1": {"gsde": True, "gsde_every": 0},
    "gsde_every 11 exceeds rollout_length 10, .*; use at most 10, or None": {"gsde": True, "gsde_every": 11},
    "state_dependent_std True does not go with gsde True.*; use one of them": {
        "gsde": True,
        "state_dependent_std": True,
    },
    r"gsde True needs Box actions, and action space Discrete\(2\) is none; use gsde False": {"gsde": True},
    r"squash_actions True: action space Discrete\(2\) is not a Box; .*; or use squash_actions False": {
        "squash_actions": True
    },
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(ppo.train(replace(SMALL, **changes)))


def test_settings_that_work_pass():
    ppo.validate(SMALL)
    ppo.validate(replace(SMALL, rollout_length=1024, env=EnvConfig(num_envs=16), minibatches=256))
    ppo.validate(replace(SMALL, discount=1.0, gae_lambda=0.0, minibatches=4, core="gru"))


# Networks and environments of the user's own


class OwnNetwork(eqx.Module):
    """What a user may write: one linear layer each, no memory."""

    policy: Linear
    value: Linear

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets, action_masks):
        return Categorical(self.policy(observations)), self.value(observations)[..., 0], memory


def make_own(rng, observation_space, action_space):
    inputs = observation_space.shape[0]
    return OwnNetwork(make_linear(rng, inputs, int(action_space.n), 0.01), make_linear(rng, inputs, 1, 1.0))


def test_an_equinox_module_of_the_users_own_learns():
    config = replace(PROBE, env=EnvConfig("birl/ProbeObservationAction-v0"), run=RunConfig(total_steps=2000))
    *_, last = ppo.train(config, make_network=make_own)
    assert isinstance(last.state.network, OwnNetwork)
    assert last.metrics["episode/return"] > 0.8


def test_a_vector_environment_of_the_users_own_is_stepped_and_left_open():
    config = replace(SMALL, env=EnvConfig("birl/ProbeMemory-v0", num_envs=2))
    own = SyncVectorEnv([partial(make_env, config.env)] * 2)
    assert int(next(ppo.train(config, own)).state.env_steps) > 0
    own.reset(seed=0)  # raises if it was closed
    with pytest.raises(ConfigError, match="num_envs 4 but envs has 2; set num_envs to that"):
        next(ppo.train(SMALL, own))


# A tree of actions with masks


HYBRID = replace(
    SMALL, env=EnvConfig("tests.envs.hybrid:Hybrid-v0", num_envs=4), core="lstm", normalize_observations=True
)


@cache
def hybrid_run(workers: int = 0) -> tuple[ppo.Update, ...]:
    config = replace(HYBRID, env=replace(HYBRID.env, workers=workers))
    with closing(ppo.train(config)) as training:
        return tuple(islice(training, 6))


def test_a_tree_of_actions_is_one_array_of_a_rollout():
    _, rollout = collected(HYBRID)
    assert (rollout.actions.shape, rollout.actions.dtype) == ((10, 4, 7), np.float32)
    assert (rollout.action_masks.shape, rollout.action_masks.dtype) == ((11, 4, 8), bool)
    moves = np.take_along_axis(rollout.action_masks[:-1, :, :3], rollout.actions[..., 2:3].astype(int), axis=-1)
    assert moves.all()
    assert (np.abs(rollout.actions[..., :2]) > 1).any()  # numbers are stored as drawn, and clipped for the environment


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_with_a_tree_of_actions_workers_change_nothing(workers):
    for left, right in zip(hybrid_run(), hybrid_run(workers), strict=True):
        assert_same_bits(left.state, right.state)


@pytest.mark.parametrize("workers", [0, 2])
def test_with_a_tree_of_actions_a_resumed_run_is_the_same_to_the_bit(workers):
    with closing(ppo.train(HYBRID)) as training:
        *_, stopped = islice(training, 3)
        snapshot = stopped.snapshot()
    assert snapshot.exact
    assert snapshot.arrays["envs/actions"].dtype == np.float32
    assert snapshot.arrays["envs/actions"].shape[1:] == (4, 7)
    config = replace(HYBRID, env=replace(HYBRID.env, workers=workers))
    with closing(ppo.train(config, None, stopped.state, snapshot)) as training:
        for left, right in zip(hybrid_run()[3:], islice(training, 3), strict=True):
            assert_same_bits(left.state, right.state)


# Probes: values and policies that are known


def learned(env_id: str, **changes) -> ppo.Update:
    """The last update of a short run."""
    *_, last = ppo.train(replace(PROBE, env=EnvConfig(env_id), **changes))
    return last


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


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_the_better_action_is_learned():
    (value, action), _ = answers(learned("birl/ProbeAction-v0").state, sign(1), sign(-1))
    assert action == 1
    assert value == pytest.approx(1.0, abs=0.05)


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
        update.metrics["episode/return"] for update in ppo.train(replace(PROBE, env=EnvConfig("birl/ProbeMemory-v0")))
    ]
    assert np.mean(returns[-20:]) < 0.3  # 0 in the mean


def test_probe_a_masked_action_is_never_taken():
    assert all(
        update.metrics["episode/return"] == 4.0
        for update in ppo.train(replace(PROBE, env=EnvConfig("birl/ProbeMask-v0")))
    )


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_every_part_of_a_dict_of_actions_is_learned():
    (high, forward), (low, backward) = answers(learned("birl/ProbeDictAction-v0").state, sign(1), sign(-1))
    assert forward == pytest.approx([2, 0.5], abs=0.1)  # gear 1 is the third of three, in a row that counts from 0
    assert backward == pytest.approx([0, -0.5], abs=0.1)
    assert (high, low) == pytest.approx((1.0, 1.0), abs=0.05)


@pytest.mark.slow  # seconds each; the parts are learned one by one in make test
def test_probe_every_part_of_a_tree_of_actions_is_learned():
    (high, ones), (low, zeros) = answers(learned("birl/ProbeTupleAction-v0").state, sign(1), sign(-1))
    assert ones == pytest.approx([1, 2, 0.5, -0.5, 1, 1], abs=0.1)
    assert zeros == pytest.approx([1, 2, 0.5, -0.5, 0, 0], abs=0.1)
    assert (high, low) == pytest.approx((1.0, 1.0), abs=0.05)


def in_each(**changes) -> tuple[ppo.Update, ppo.Update]:
    """The probe of masks and memory, with the mask in the info and in the observation."""
    envs = [EnvConfig("birl/ProbeMaskedMemory-v0", kwargs={"mask_in_observation": where}) for where in (False, True)]
    info, observation = ([*ppo.train(replace(PROBE, env=env, share_trunk=True, **changes))][-1] for env in envs)
    return info, observation


@pytest.mark.slow  # seconds each; masks and memory are learned one by one in make test
def test_probe_masks_and_memory_together_whether_the_mask_comes_in_the_info_or_the_observation():
    info, observation = in_each(core="lstm")
    assert info.metrics["episode/return"] >= 0.9
    assert observation.metrics["episode/return"] == info.metrics["episode/return"]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(observation.state), jax.tree.leaves(info.state))


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_masks_without_memory_are_kept_but_do_not_tell_the_answer():
    config = replace(PROBE, env=EnvConfig("birl/ProbeMaskedMemory-v0"))
    returns = [update.metrics["episode/return"] for update in ppo.train(config)]
    assert min(returns) >= -1  # no forbidden action, ever: each would take 10 off
    assert abs(np.mean(returns[-20:])) < 0.3


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


def test_probe_the_vector_and_the_image_of_a_dict_are_both_used():
    # Convolutions need small steps: in a bright image every weight changes the output.
    settings = {"learning_rate": linear(5e-3, 0.0), "share_trunk": True, "minibatches": 4}  # two have valid steps
    state = learned("birl/ProbeDict-v0", encoder="cnn_small", run=RunConfig(total_steps=2000), **settings).state
    images = [np.full((36, 36, 1), brightness, np.uint8) for brightness in (0, 255)]
    found = list(answers(state, *({"vector": sign(s), "image": image} for s in (-1, 1) for image in images)))
    assert [int(action) for _, action in found] == [0, 1, 2, 3]
    assert [value for value, _ in found] == pytest.approx([1.0] * 4, abs=0.2)
