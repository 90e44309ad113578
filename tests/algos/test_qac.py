"""QAC: the actor's gradient by exact action values, Sarsa's targets, and the probes."""

from dataclasses import replace
from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import qac
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.maths.distributions import Categorical
from birl.maths.schedules import linear
from birl.nets.models import evaluate_rollout
from birl.speed import prepare_jax
from birl.types import Rollout
from tests import oracle
from tests.algos.probing import behaviour_log_probs, recording_collector

# Episodes of three steps and a reset: some end inside every rollout, and some are cut by its end.
SMALL = qac.Config(
    env=EnvConfig("birl/ProbeMemory-v0", num_envs=4),
    run=RunConfig(total_steps=1000),
    rollout_length=9,
    hidden_sizes=(8,),
    core_size=8,
    learning_rate=1e-2,
    critic_learning_rate=1e-2,
)
CUT = replace(SMALL, env=EnvConfig("Pendulum-v1", 4, max_episode_steps=4))
PROBE = qac.Config(
    run=RunConfig(total_steps=6000),
    rollout_length=8,
    discount=0.9,
    hidden_sizes=(16,),
    core_size=8,
    learning_rate=linear(1e-2, 0.0),
    critic_learning_rate=linear(2e-2, 0.0),
    max_grad_norm=None,
)
CRITICS = pytest.mark.parametrize("critic", ["q", "v"])

# Hardly optimised: else the tests would mostly compile. The probes run what users run.
jit = partial(jax.jit, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0})
update = jit(qac.update.__wrapped__)


@jit
def gradients_of(network, moments, rollout, config):
    """The gradient of both losses together, and the metrics."""

    def total(network):
        (actor_loss, critic_loss), metrics = qac.loss(network, moments, rollout, config)
        return actor_loss + critic_loss, metrics

    return jax.grad(total, has_aux=True)(network)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


class TableHead(eqx.Module):
    """Q(s, a) looked up; the features are the number of the state."""

    table: jax.Array  # [S, A]

    def __call__(self, features, actions):
        return self.table[features, actions]

    def expected(self, features, distribution):
        return jnp.sum(jax.nn.softmax(distribution.logits) * self.table[features], axis=-1)


class Table(eqx.Module):
    """Logits, action values and a value for each state; an observation is a state's number."""

    logits: jax.Array  # [S, A]
    action_value_head: TableHead
    values: jax.Array | None  # [S] with critic "v"

    def __call__(self, observations, memory, resets, action_masks):
        states = observations.astype(int)
        return Categorical(self.logits[states]), states if self.values is None else self.values[states], memory


def table(logits, action_values, values=None) -> Table:
    numbers = partial(jnp.array, dtype=jnp.float32)
    return Table(numbers(logits), TableHead(numbers(action_values)), None if values is None else numbers(values))


def rollout_of(observations, actions, rewards, terminated=False, truncated=False, valid=True) -> Rollout:
    """A rollout from [T, B] lists, and [T+1, B] observations."""
    shape = np.shape(actions)
    flags = (np.array(np.broadcast_to(flag, shape), bool) for flag in (terminated, truncated, valid))
    return Rollout(np.array(observations, np.float32), np.array(actions), np.array(rewards, np.float32), *flags, ())


@cache
def collected(config: qac.Config) -> tuple[qac.State, Rollout]:
    """A state and its second rollout, which starts in the middle of episodes."""
    with make_envs(config.env, config.run.seed) as envs:
        state = qac.init(config, envs.observation_space, envs.action_space)
        weight = lambda network: network.policy_head.linear.weight  # noqa: E731
        state = state._replace(network=eqx.tree_at(weight, state.network, replace_fn=lambda w: 50 * w))
        collector = recording_collector(envs, qac, state, config.rollout_length)
        collector.start(config.run.seed)
        collector.collect(qac.policy(state), np.array([0, 1], np.uint32))
        return state, collector.collect(qac.policy(state), state.key)


def assert_same_bits(left, right) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


# The actor. With exact action values its mean step is the gradient of J = Σ π(a) r(a).

CHANCES, REWARDS = np.array([0.25, 0.75]), np.array([3.0, 1.0])
J = CHANCES @ REWARDS
ANALYTIC = CHANCES * (REWARDS - J)
EXPECTED_PULLS = [0, 1, 1, 1]  # each arm as often as its chance says: the mean over these is the expectation
FORMS = {
    "log π · Q": SMALL,
    "log π · (Q - E Q)": replace(SMALL, baseline=True),
    "log π · δ": replace(SMALL, critic="v"),
}


def ascent(pulls: list[int], config: qac.Config, rewards: np.ndarray = REWARDS) -> np.ndarray:
    """How the actor moves the logits of a two-armed bandit with an exact critic."""
    network = table([np.log(CHANCES)], [REWARDS], [J] if config.critic == "v" else None)
    rollout = rollout_of(np.zeros((2, len(pulls))), [pulls], [rewards[pulls]], terminated=True)
    return -np.asarray(gradients_of(network, None, rollout, config)[0].logits[0])


@pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)
def test_the_policy_gradient_theorem_on_a_two_armed_bandit(config):
    np.testing.assert_allclose(ascent(EXPECTED_PULLS, config), ANALYTIC, rtol=1e-4)


def test_the_actor_is_told_by_q_and_not_by_the_reward():
    other = np.array([-100.0, 50.0])
    np.testing.assert_array_equal(ascent([0], SMALL, rewards=other), ascent([0], SMALL))
    assert not np.allclose(ascent([0], FORMS["log π · δ"], rewards=other), ascent([0], FORMS["log π · δ"]))


def test_less_its_mean_q_has_the_same_expected_step_with_less_variance():
    variances = []
    for config in (SMALL, replace(SMALL, baseline=True)):
        single = np.array([ascent([arm], config) for arm in (0, 1)])
        np.testing.assert_allclose(CHANCES @ single, ANALYTIC, rtol=1e-4)
        variances.append(CHANCES @ (single - ANALYTIC) ** 2)
    assert np.all(variances[1] < 0.5 * variances[0])


def test_the_entropy_bonus_moves_towards_the_rarer_action_by_its_weight():
    network = table([np.log(CHANCES)], [REWARDS])
    rollout = rollout_of(np.zeros((2, 4)), [EXPECTED_PULLS], [REWARDS[EXPECTED_PULLS]], terminated=True)
    with_bonus = -np.asarray(gradients_of(network, None, rollout, replace(SMALL, entropy_weight=0.1))[0].logits[0])
    entropy = -CHANCES @ np.log(CHANCES)
    np.testing.assert_allclose(with_bonus - ANALYTIC, 0.1 * -CHANCES * (np.log(CHANCES) + entropy), rtol=1e-4)


def test_standardised_weights_have_mean_0_and_a_single_one_gives_no_nan():
    config = replace(SMALL, normalize_advantages=True)
    weights = (REWARDS - J) / np.sqrt(CHANCES @ (REWARDS - J) ** 2)
    np.testing.assert_allclose(ascent(EXPECTED_PULLS, config), CHANCES * weights, rtol=1e-4)
    np.testing.assert_array_equal(ascent([0], config), 0.0)


# The critic


def test_the_critic_moves_q_of_the_action_taken_towards_sarsas_target_and_holds_the_target_still():
    action_values = np.array([[1.0, 2.0], [3.0, 4.0], [50.0, 60.0]])
    rollout = rollout_of([[0], [1], [2]], [[0], [1]], [[0.5], [0.25]], terminated=[[False], [True]])
    config = replace(SMALL, discount=0.8)
    gradient, metrics = gradients_of(table(np.zeros((3, 2)), action_values), None, rollout, config)
    errors = np.array([1.0 - (0.5 + 0.8 * 4.0), 4.0 - 0.25])  # Q(0, 0) and Q(1, 1): nothing follows the end
    expected = np.zeros((3, 2))
    expected[0, 0], expected[1, 1] = 2 * errors / 2  # the mean of two squares
    np.testing.assert_allclose(gradient.action_value_head.table, expected, rtol=1e-5)
    assert float(metrics["loss/value"]) == pytest.approx((errors**2).mean(), rel=1e-5)


def test_the_state_values_move_towards_the_reward_and_the_next_value_which_is_held_still():
    rollout = rollout_of([[0], [1], [2]], [[0], [1]], [[0.5], [0.25]])
    config = replace(SMALL, discount=0.8, critic="v")
    network = table(np.zeros((3, 2)), np.zeros((3, 2)), values=[1.0, 3.0, 7.0])
    gradient, _ = gradients_of(network, None, rollout, config)
    errors = np.array([1.0 - (0.5 + 0.8 * 3.0), 3.0 - (0.25 + 0.8 * 7.0)])  # the last row too: its next value is known
    np.testing.assert_allclose(gradient.values, [*errors, 0.0], rtol=1e-5)
    # -δ ∇log π / 2
    np.testing.assert_allclose(gradient.logits[:, 0], [0.25 * errors[0], -0.25 * errors[1], 0.0], rtol=1e-4)


@CRITICS
@pytest.mark.parametrize(
    ("still", "moves"),
    [("learning_rate", ("critic", "value")), ("critic_learning_rate", ("actor", "policy"))],
    ids=["critic", "actor"],
)
def test_actor_and_critic_step_at_rates_of_their_own(critic, still, moves):
    config = replace(SMALL, critic=critic)
    state, rollout = collected(config)
    after, _ = update(state, rollout, replace(config, **{still: 0.0}))
    for path, difference in jax.tree.leaves_with_path(
        jax.tree.map(lambda old, new: np.any(old != new), state.network, after.network)
    ):
        moved_part = any(word in jax.tree_util.keystr(path) for word in moves)
        assert bool(difference) == moved_part, path


# What is known at a rollout's end and where an episode was cut


@partial(jax.jit, static_argnames="config")
def critic_targets(state: qac.State, rollout: Rollout, config: qac.Config) -> qac.CriticTargets:
    return qac.critic_targets_q(state.network, evaluate_rollout(qac.policy(state), rollout), rollout, config)


@pytest.mark.parametrize(
    "config",
    [SMALL, CUT, replace(SMALL, core="lstm"), replace(CUT, core="gru")],
    ids=["ends", "cuts", "ends, lstm", "cuts, gru"],
)
def test_targets_are_the_explicit_ones_of_the_actions_that_were_drawn(config):
    state, rollout = collected(config)
    values, targets, known, _ = critic_targets(state, rollout, config)
    expected = oracle.sarsa_targets(
        rollout.rewards, np.asarray(values), rollout.terminated, rollout.valid, config.discount
    )
    assert np.any(rollout.valid[-1] & ~rollout.terminated[-1])  # steps whose next action is not known yet
    np.testing.assert_array_equal(known, ~np.isnan(expected))
    np.testing.assert_allclose(np.asarray(targets)[known], expected[known], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_where_an_episode_was_cut_the_next_action_is_one_that_the_policy_drew_at_the_last_observation(core):
    config = replace(CUT, core=core)
    state, rollout = collected(config)
    cuts = np.argwhere(rollout.truncated[:-1])
    assert cuts.size
    distributions = evaluate_rollout(qac.policy(state), rollout).distributions
    log_probs = jax.jit(lambda d, actions: d.log_prob(actions))(
        jax.tree.map(lambda x: x[:-1], distributions), rollout.actions
    )
    recorded = np.asarray(behaviour_log_probs(rollout))
    for t, b in cuts:
        assert not rollout.valid[t + 1, b]
        assert log_probs[t + 1, b] == pytest.approx(recorded[t + 1, b], abs=1e-5)


def test_the_reward_of_a_last_step_that_goes_on_is_not_learned_from_and_of_one_that_ends_is():
    observations, actions = [[0, 0], [1, 1], [2, 2]], [[0, 0], [1, 1]]
    network = table(np.zeros((3, 2)), np.ones((3, 2)))
    gradients = {}
    for last_reward in (0.0, 9.0):
        rewards = [[1.0, 1.0], [last_reward, last_reward]]
        for ends in (False, True):
            rollout = rollout_of(observations, actions, rewards, terminated=[[False, False], [ends, ends]])
            gradients[last_reward, ends] = gradients_of(network, None, rollout, SMALL)[0]
    assert_same_bits(gradients[0.0, False], gradients[9.0, False])
    assert np.any(gradients[0.0, True].action_value_head.table != gradients[9.0, True].action_value_head.table)
    assert np.any(gradients[0.0, False].logits[1])  # the actor learns from the last step too


def test_with_action_masks_a_cut_step_is_learned_from_for_its_next_action_was_one_that_is_allowed_there():
    config = replace(SMALL, env=EnvConfig("birl/ProbeMask-v0", 4, max_episode_steps=3))
    state, rollout = collected(config)
    cuts = rollout.truncated[:-1]
    assert cuts.any()
    assert critic_targets(state, rollout, config).known[:-1][cuts].all()
    masks, actions = rollout.action_masks[1:-1][cuts], rollout.actions[1:][cuts]
    assert not masks.all(axis=-1).any()
    assert np.take_along_axis(masks, actions[:, None], axis=-1).all()


@CRITICS
def test_what_stands_in_a_row_that_is_not_valid_changes_no_bit_but_for_the_action_drawn_after_a_cut(critic):
    config = replace(SMALL, critic=critic, normalize_rewards=True, normalize_observations=True, entropy_weight=0.01)
    state, rollout = collected(config)  # its episodes terminate: nothing is drawn after a cut
    strange = rollout._replace(
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(rollout.valid, rollout.actions, 1 - rollout.actions),
    )
    assert np.any(strange.rewards != rollout.rewards)
    assert_same_bits(update(state, rollout, config), update(state, strange, config))


# Memory, schedules, settings


@CRITICS
def test_the_memory_at_the_rollouts_start_is_used(critic):
    config = replace(SMALL, core="lstm", critic=critic)
    state, rollout = collected(config)
    empty = rollout._replace(memory=jax.tree.map(jnp.zeros_like, rollout.memory))
    (_, kept), (_, lost) = update(state, rollout, config), update(state, empty, config)
    assert abs(float(kept["loss/policy"]) - float(lost["loss/policy"])) > 1e-4
    log_probs = jax.jit(lambda s, r: evaluate_rollout(qac.policy(s), r).distributions.logits[:-1])(state, rollout)
    taken = np.take_along_axis(np.log(oracle.softmax(log_probs)), rollout.actions[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(taken, behaviour_log_probs(rollout), atol=1e-5)


def test_schedules_stand_where_progress_is():
    state, rollout = collected(SMALL)
    halfway = state._replace(env_steps=np.int32(500))
    changing = {
        "learning_rate": linear(2e-2, 0),
        "critic_learning_rate": linear(4e-2, 0),
        "entropy_weight": linear(1, 0),
    }
    standing = {"learning_rate": 1e-2, "critic_learning_rate": 2e-2, "entropy_weight": 0.5}
    (scheduled, metrics), (constant, _) = (
        update(halfway, rollout, replace(SMALL, **settings)) for settings in (changing, standing)
    )
    assert float(metrics["optimizer/learning_rate"]) == pytest.approx(1e-2)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), scheduled, constant)


WRONG = {
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    "rollout_length 1 holds no next action for the target of critic 'q'; use 2 or more, or critic v": {
        "rollout_length": 1
    },
    "baseline True does not go with critic 'v'.*use baseline False, or critic q": {"critic": "v", "baseline": True},
    "baseline True does not go with action space Box.*use baseline False, or critic v": {
        "env": CUT.env,
        "baseline": True,
    },
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "^learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
    "critic_learning_rate -1.0 must not be negative": {"critic_learning_rate": -1.0},
    "env.num_envs 0 is less than 1; use 8, or 1": {"env": EnvConfig(num_envs=0)},
    "core_size 0 must be at least 1": {"core_size": 0},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(message, changes):
    with pytest.raises(ConfigError, match=message):
        next(qac.train(replace(SMALL, **changes)))


def test_a_state_value_learns_from_rollouts_of_one_step():
    first = next(qac.train(replace(SMALL, critic="v", rollout_length=1)))
    assert int(first.state.env_steps) == 4


def test_a_network_of_the_users_own_is_used():
    def make_own(rng, observation_space, action_space):
        assert isinstance(action_space, spaces.Discrete)
        network = replace(SMALL.network, hidden_sizes=(5,))
        return qac.make_actor_q_critic(rng, observation_space, action_space, network, SMALL.actions)

    first = next(qac.train(SMALL, make_network=make_own))
    assert first.state.network.policy_head.linear.weight.shape == (5, 2)


# Probes: values and policies that are known


def learned(env_id: str, **changes) -> qac.Update:
    """The last update of a short run."""
    *_, last = qac.train(replace(PROBE, env=EnvConfig(env_id), **changes))
    return last


@jax.jit
def look(network, observations):
    return network(observations, network.initial_memory(1), jnp.zeros((1, 1), bool), None)[:2]


def best_action(state: qac.State, observation: float) -> np.ndarray:
    distribution, _ = look(state.network, np.full((1, 1, 1), observation, np.float32))
    return np.asarray(distribution.mode()[0, 0])


def action_values(state: qac.State, observation: float) -> list[float]:
    _, features = look(state.network, np.full((1, 1, 1), observation, np.float32))
    return [float(state.network.action_value_head(features, np.full((1, 1), action))[0, 0]) for action in (0, 1)]


def test_probe_a_reward_one_step_later_is_discounted_once():
    # With this entropy weight both actions stay likely, so that both are learned.
    state = learned("birl/ProbeDelayed-v0", entropy_weight=1.0).state
    assert action_values(state, -1) == pytest.approx([0.9, 0.9], abs=0.05)
    assert action_values(state, 1) == pytest.approx([1.0, 1.0], abs=0.05)


def test_probe_where_an_episode_is_cut_the_action_value_goes_on():
    state = learned("birl/ProbeTruncation-v0", critic_learning_rate=linear(5e-2, 0.0)).state
    # Without the bootstrap at the truncation, below 4.1.
    assert max(action_values(state, 0)) == pytest.approx(1 / (1 - 0.9), abs=0.5)


def test_probe_each_action_has_its_own_value():
    state = learned("birl/ProbeObservationAction-v0", entropy_weight=2.0).state
    assert action_values(state, 1) == pytest.approx([-1.0, 1.0], abs=0.1)
    assert action_values(state, -1) == pytest.approx([1.0, -1.0], abs=0.1)


@pytest.mark.parametrize("form", [{}, {"baseline": True}, {"critic": "v"}], ids=["q", "q less its mean", "v"])
def test_probe_the_better_action_follows_the_observation(form):
    state = learned("birl/ProbeObservationAction-v0", **form).state
    assert (best_action(state, 1), best_action(state, -1)) == (1, 0)


def test_probe_what_was_seen_at_the_start_is_remembered():
    last = learned("birl/ProbeMemory-v0", core="lstm", baseline=True)
    assert last.metrics["episode/return"] >= 0.9


@CRITICS
def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric(critic):
    # Every Q is negative here: unless they are standardised, whatever is drawn is discouraged.
    state = learned(
        "birl/ProbeContinuous-v0", critic=critic, normalize_advantages=True, run=RunConfig(total_steps=12_000)
    ).state
    for observation in (1, -1):
        assert best_action(state, observation) == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
@CRITICS
def test_probe_every_part_of_a_multi_discrete_and_of_a_multi_binary_action_is_learned(critic):
    state = learned("birl/ProbeMultiDiscrete-v0", critic=critic).state
    assert best_action(state, 1).tolist() == best_action(state, -1).tolist() == [1, 2]
    state = learned("birl/ProbeMultiBinary-v0", critic=critic).state
    assert (best_action(state, 1).tolist(), best_action(state, -1).tolist()) == ([1, 1, 1], [0, 0, 0])


@pytest.mark.slow  # seconds each; other algorithms learn the same probe in make test
def test_probe_a_masked_action_is_never_taken():
    config = replace(PROBE, env=EnvConfig("birl/ProbeMask-v0"), run=RunConfig(total_steps=2000))
    assert all(update.metrics["episode/return"] == 4.0 for update in qac.train(config))
