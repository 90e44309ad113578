"""A2C: it is a special case of PPO, its targets are the paper's sums, and it learns the probes."""

from dataclasses import fields, replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.algos import a2c, ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.maths.distributions import Categorical
from birl.maths.schedules import exponential, linear
from birl.nets.layers import Linear, make_linear
from birl.speed import prepare_jax
from birl.types import Rollout
from tests import oracle
from tests.algos import probing
from tests.algos.probing import answers, assert_same_bits, sign

# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = a2c.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=10,
    hidden_sizes=(8,),
    core_size=8,
    learning_rate=1e-2,
)
PROBE = a2c.Config(
    run=RunConfig(total_steps=4000),
    discount=0.9,
    hidden_sizes=(16,),
    core_size=8,
    learning_rate=linear(2e-2, 0.0),
)
ENTROPY_WEIGHT = 0.1


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


collected = partial(probing.collected, a2c)

# Hardly optimised: else the tests would mostly compile. The probes run what users run.
update = jax.jit(
    a2c.update.__wrapped__, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0}
)
loss_and_gradients = jax.jit(jax.value_and_grad(a2c.loss, has_aux=True), static_argnames="config")


def look(state: a2c.State, rollout: Rollout, config: a2c.Config):
    """The loss, its metrics and its gradients."""
    return loss_and_gradients(
        state.network, state.normalizer.observations, rollout, replace(config, entropy_weight=ENTROPY_WEIGHT)
    )


# A special case of PPO


@cache
def last_state(algorithm, config):
    *_, last = algorithm.train(config)
    return last.state


def furthest(left, right) -> float:
    """The largest difference between two networks' parameters."""
    return max(
        float(np.abs(a - b).max())
        for a, b in zip(jax.tree.leaves(left.network), jax.tree.leaves(right.network), strict=True)
    )


def plain(env_id: str, core: str) -> a2c.Config:
    return a2c.Config(
        EnvConfig(env_id, max_episode_steps=50),
        RunConfig(total_steps=3000),
        core=core,
        hidden_sizes=(32,),
        core_size=16,
    )


def as_ppo(config: a2c.Config) -> ppo.Config:
    """PPO's settings with which it should be A2C."""
    names = {field.name for field in fields(a2c.Config)} & {field.name for field in fields(ppo.Config)}
    shared = {name: getattr(config, name) for name in names}
    return ppo.Config(**shared, epochs=1, minibatches=1, normalize_advantages=False, value_clip=None)


@pytest.mark.parametrize(
    ("env_id", "core"),
    [
        ("CartPole-v1", "feedforward"),
        pytest.param("CartPole-v1", "lstm", marks=pytest.mark.slow),
        ("Pendulum-v1", "feedforward"),
        pytest.param("Pendulum-v1", "lstm", marks=pytest.mark.slow),
    ],
)
def test_a2c_is_ppo_with_one_epoch_of_one_batch_lambda_1_and_nothing_normalised_or_clipped(env_id, core):
    config = plain(env_id, core)
    assert as_ppo(config).gae_lambda == 1.0
    ours, theirs = last_state(a2c, config), last_state(ppo, as_ppo(config))
    assert furthest(ours, theirs) <= 1e-6
    assert int(ours.env_steps) == int(theirs.env_steps) >= 3000
    assert furthest(ours, next(a2c.train(config)).state) > 1e-2  # they have gone far from where they began


def test_a2c_is_not_ppo_with_another_lambda_or_two_epochs():
    config = plain("CartPole-v1", "feedforward")
    for changes in ({"gae_lambda": 0.5}, {"epochs": 2}):
        assert furthest(last_state(a2c, config), last_state(ppo, replace(as_ppo(config), **changes))) > 1e-3


# What the loss is made of


def truncating(config: a2c.Config) -> a2c.Config:
    return replace(config, env=EnvConfig("birl/ProbeTruncation-v0", num_envs=4))


def values_and_log_probs(state: a2c.State, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """Of a feed-forward network, observation by observation."""
    inputs = rollout.observations, (), np.zeros(rollout.observations.shape[:2], bool), None
    distribution, values, _ = state.network(*inputs)
    log_probs = np.log(oracle.softmax(np.asarray(distribution.logits)[:-1]))
    return np.asarray(values, np.float64), np.take_along_axis(log_probs, rollout.actions[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("config", [SMALL, truncating(SMALL)], ids=["terminated", "truncated"])
def test_the_targets_are_n_step_returns_bootstrapped_where_the_episode_goes_on_or_was_cut(config):
    state, rollout = collected(config)
    assert rollout.terminated.any() != rollout.truncated.any()
    assert not rollout.valid.all()
    values, log_probs = values_and_log_probs(state, rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    returns = oracle.n_step_returns(rollout.rewards, *flags, values[1:], config.discount, n=config.rollout_length)
    errors = (returns - values[:-1])[rollout.valid]
    (_, metrics), _ = look(state, rollout, config)
    assert float(metrics["loss/value"]) == pytest.approx((errors**2).mean(), rel=1e-4)
    assert float(metrics["loss/policy"]) == pytest.approx(-(errors * log_probs[rollout.valid]).mean(), rel=1e-4)
    assert float(metrics["value/explained_variance"]) == pytest.approx(
        1 - errors.var() / returns[rollout.valid].var(), abs=1e-4
    )


@pytest.mark.parametrize("config", [SMALL, truncating(SMALL)], ids=["terminated", "truncated"])
def test_with_lambda_below_1_the_advantages_are_gae_and_the_targets_lie_above_the_values_by_them(config):
    config = replace(config, gae_lambda=0.7, discount=0.8)
    state, rollout = collected(config)
    values, log_probs = values_and_log_probs(state, rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    advantages = oracle.gae(rollout.rewards, values[:-1], values[1:], *flags, 0.8, 0.7)[rollout.valid]
    (_, metrics), _ = look(state, rollout, config)
    assert float(metrics["loss/value"]) == pytest.approx((advantages**2).mean(), rel=1e-4)
    assert float(metrics["loss/policy"]) == pytest.approx(-(advantages * log_probs[rollout.valid]).mean(), rel=1e-4)


def test_entropy_is_subtracted_with_its_weight_and_the_value_error_added_with_its():
    config = replace(SMALL, value_weight=0.25)
    (total, metrics), _ = look(*collected(SMALL), config)
    expected = metrics["loss/policy"] + 0.25 * metrics["loss/value"] - 0.1 * metrics["policy/entropy"]
    assert float(total) == pytest.approx(float(expected), rel=1e-5)


def test_the_policy_gradient_does_not_reach_the_critic_through_the_advantages():
    _, gradients = look(*collected(SMALL), replace(SMALL, value_weight=0.0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((gradients.critic, gradients.value_head)))
    assert np.any(gradients.policy_head.linear.weight)


def test_the_value_gradient_is_that_of_targets_held_constant():
    state, rollout = collected(truncating(SMALL))
    _, gradients = look(state, rollout, truncating(replace(SMALL, value_weight=1.0)))
    values, _ = values_and_log_probs(state, rollout)
    flags = rollout.terminated, rollout.truncated, rollout.valid
    errors = values[:-1] - oracle.n_step_returns(
        rollout.rewards, *flags, values[1:], SMALL.discount, n=SMALL.rollout_length
    )
    assert float(gradients.value_head.bias[0]) == pytest.approx(2 * errors[rollout.valid].mean(), rel=1e-4)


@pytest.mark.parametrize("name", ["ProbeMemory", "ProbeMask", "ProbeContinuous"])
@pytest.mark.parametrize("core", ["feedforward", "gru"])
def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_of_the_update(name, core):
    config = replace(
        SMALL,
        env=EnvConfig(f"birl/{name}-v0", num_envs=4),
        core=core,
        normalize_rewards=True,
        normalize_observations=True,
    )
    state, rollout = collected(config)
    valid = rollout.valid[..., None] if rollout.actions.ndim == 3 else rollout.valid
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(valid, rollout.actions, 1 - rollout.actions),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert_same_bits(update(state, rollout, config), update(state, strange, config))


def test_memory_at_the_rollouts_start_and_resets_inside_it_matter():
    config = replace(SMALL, core="lstm")
    state, rollout = collected(config)
    empty = rollout._replace(memory=jax.tree.map(jnp.zeros_like, rollout.memory))
    losses = [float(look(state, r, config)[0][0]) for r in (rollout, empty)]
    assert abs(losses[0] - losses[1]) > 1e-4


# The update


def test_the_step_is_rmsprops_in_tensorflows_form_and_the_gradient_is_clipped_by_its_norm():
    config = replace(
        SMALL, optimizer="rmsprop-tf", optimizer_epsilon=1e-3, rmsprop_decay=0.9, max_grad_norm=0.2, entropy_weight=0.1
    )
    state, rollout = collected(config)
    [mean_squares] = state.optimizer.nu  # of so small a network all parameters are one vector
    mean_square = np.linspace(0.0, 0.01, mean_squares.size, dtype=np.float32)
    state = state._replace(optimizer=state.optimizer._replace(nu=[mean_square]))
    after, metrics = update(state, rollout, config)

    gradient, before, moved = (
        np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
        for tree in (look(state, rollout, config)[1], state.network, after.network)
    )
    norm = np.sqrt((gradient**2).sum())
    assert norm > 0.2
    assert float(metrics["optimizer/grad_norm"]) == pytest.approx(norm, rel=1e-4)
    gradient *= 0.2 / norm
    mean_square = 0.9 * mean_square + 0.1 * gradient**2
    np.testing.assert_allclose(after.optimizer.nu[0], mean_square, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(moved, before - 1e-2 * gradient / np.sqrt(mean_square + 1e-3), atol=1e-6)


def test_adams_first_step_has_the_length_of_the_learning_rate_unless_epsilon_is_larger_than_the_gradient():
    steps = {}
    for epsilon in (1e-12, 1e6):
        config = replace(SMALL, optimizer="adam", optimizer_epsilon=epsilon)
        state, rollout = collected(config)
        steps[epsilon] = furthest(update(state, rollout, config)[0], state)
    assert steps[1e-12] == pytest.approx(1e-2, rel=1e-3)
    assert steps[1e6] < 1e-6


def test_schedules_stand_where_progress_is():
    state, rollout = collected(SMALL)
    halfway = state._replace(env_steps=np.int32(500))
    changing = {"learning_rate": linear(2e-2, 0.0), "entropy_weight": exponential(1, 0.01)}
    standing = {"learning_rate": 1e-2, "entropy_weight": 0.1}
    (scheduled, metrics), (constant, _), (early, early_metrics) = (
        update(start, rollout, replace(SMALL, **settings))
        for start, settings in ((halfway, changing), (halfway, standing), (state, changing))
    )
    assert float(metrics["optimizer/learning_rate"]) == pytest.approx(1e-2)
    assert float(early_metrics["optimizer/learning_rate"]) == pytest.approx(2e-2)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), scheduled, constant)
    assert furthest(early, constant) > 1e-3


def test_the_learning_rate_of_the_defaults_falls_from_7e_4_to_0_in_a_straight_line():
    config = a2c.Config(env=EnvConfig("birl/ProbeConstant-v0"), run=RunConfig(total_steps=200))
    steps_and_rates = [(int(u.state.env_steps), u.metrics["optimizer/learning_rate"]) for u in a2c.train(config)]
    before = [0, *(steps for steps, _ in steps_and_rates)]
    assert [rate for _, rate in steps_and_rates] == pytest.approx(
        [7e-4 * (1 - done / 200) for done in before[:-1]], rel=1e-4
    )


def test_the_step_in_which_an_environment_resets_itself_is_not_an_environment_step():
    config = replace(SMALL, env=EnvConfig("birl/ProbeConstant-v0", num_envs=4))  # every second row is a reset
    first = next(a2c.train(config))
    assert int(first.state.env_steps) == 4 * 10 // 2
    assert int(first.state.updates) == 1


@pytest.mark.parametrize("valid", [True, False])
def test_a_rollout_of_one_row_valid_or_not_gives_no_nan(valid):
    config = replace(SMALL, env=EnvConfig("birl/ProbeConstant-v0", num_envs=1), rollout_length=1)
    state, rollout = collected(config)
    row = rollout._replace(valid=np.full((1, 1), valid), rewards=np.ones((1, 1), np.float32))
    after, metrics = update(state, row, config)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert (furthest(after, state) > 0) == valid  # from nothing, nothing is learned


# Settings


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    r"gae_lambda -0.1 must lie in \[0, 1\]": {"gae_lambda": -0.1},
    "env.num_envs 0 is less than 1; use 8, or 1": {"env": EnvConfig(num_envs=0)},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "optimizer_epsilon 0.0 must be positive; 1e-05 is usual": {"optimizer_epsilon": 0.0},
    r"rmsprop_decay 1.0 must lie in \[0, 1\); 0.99 is usual": {"rmsprop_decay": 1.0},
    "core_size 0 must be at least 1": {"core_size": 0},
    "learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(a2c.train(replace(SMALL, **changes)))


# A network of the user's own


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
    *_, last = a2c.train(replace(PROBE, env=EnvConfig("birl/ProbeObservationAction-v0")), make_network=make_own)
    assert isinstance(last.state.network, OwnNetwork)
    assert last.metrics["episode/return"] > 0.8


# Probes: values and policies that are known


def learned(env_id: str, **changes) -> a2c.Update:
    """The last update of a short run."""
    *_, last = a2c.train(replace(PROBE, env=EnvConfig(env_id), **changes))
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
        update.metrics["episode/return"] for update in a2c.train(replace(PROBE, env=EnvConfig("birl/ProbeMemory-v0")))
    ]
    assert np.mean(returns[-50:]) < 0.3  # 0 in the mean


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_masked_action_is_never_taken():
    returns = {
        update.metrics["episode/return"] for update in a2c.train(replace(PROBE, env=EnvConfig("birl/ProbeMask-v0")))
    }
    assert {score for score in returns if score == score} == {4.0}  # NaN before the first episode has ended


def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric():
    for value, action in answers(learned("birl/ProbeContinuous-v0", entropy_weight=0.0).state, sign(1), sign(-1)):
        assert action == pytest.approx(0.5, abs=0.1)
        assert value == pytest.approx(0.0, abs=0.1)


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
    # A strong entropy bonus, since the image's 128 features outweigh the vector at first.
    settings = {"learning_rate": 2e-3, "entropy_weight": 0.2, "activation": "relu", "share_trunk": True}
    state = learned("birl/ProbeDict-v0", encoder="cnn_small", **settings).state
    images = [np.full((36, 36, 1), brightness, np.uint8) for brightness in (0, 255)]
    found = [
        int(action)
        for _, action in answers(state, *({"vector": sign(s), "image": image} for s in (-1, 1) for image in images))
    ]
    assert found == [0, 1, 2, 3]
