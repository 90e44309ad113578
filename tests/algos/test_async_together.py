"""What the three asynchronous Q algorithms share: worker steps, masks, target network, ε."""

import pickle
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import jax
import numpy as np
import pytest

from birl.algos import async_q
from birl.algos.async_q import async_nstep_q, async_sarsa
from birl.asynchronous.actor_learner import final_exploration, make_work
from birl.asynchronous.parameters import WorkerResult, state_to_shared
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import spaces_of
from birl.maths.schedules import linear
from birl.nets.layers import Linear, make_linear
from birl.registry import name_of
from birl.speed import prepare_jax
from tests.algos.worker_steps import THREE, gradients_of, perturbed, steps_of, values_at

MEMORY, CARTS = EnvConfig("birl/ProbeMemory-v0", num_envs=1), EnvConfig("CartPole-v1", num_envs=1, max_episode_steps=9)
MASKED = EnvConfig("birl/ProbeMask-v0", num_envs=1)

each = pytest.mark.parametrize("algorithm", THREE.values(), ids=THREE)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


def small(algorithm, env=CARTS, **changes):
    return algorithm.Config(
        env, RunConfig(total_steps=400), pool="serial", actor_learners=2, report_every=20, hidden_sizes=(8,), **changes
    )


# Three names


def test_the_class_of_a_config_says_which_of_the_three_it_is_in_other_processes_too():
    for name, algorithm in THREE.items():
        config = pickle.loads(pickle.dumps(algorithm.Config(discount=0.5)))  # noqa: S301
        assert config == algorithm.Config(discount=0.5)
        assert name_of(config) == name.replace("_", "-")
    with pytest.raises(ConfigError, match=r"the Config of birl\.async_q; async_sarsa needs birl\.async_sarsa\."):
        async_sarsa.validate(async_q.Config())


# Worker steps and episodes


@each
@pytest.mark.parametrize("env", [MEMORY, CARTS], ids=["terminated", "truncated"])
def test_a_worker_step_ends_with_the_episode_and_the_next_begins_with_the_environments_reset(algorithm, env):
    steps = [step.rollout for step in steps_of(algorithm, small(algorithm, env), 30)]
    ended = [rollout.terminated | rollout.truncated for rollout in steps]
    for rollout, ends, following in zip(steps, ended, steps[1:], strict=False):
        rows = np.nonzero(ends[:, 0])[0]
        assert len(rows) <= 1
        assert not rollout.valid[rows[0] + 1 :].any() if len(rows) else rollout.valid[1:].all()
        assert following.valid[0, 0] == (not len(rows)), "a reset comes after an end, and only then"
        assert following.valid[1, 0]
        last = rows[0] + 1 if len(rows) else len(ends)
        np.testing.assert_array_equal(following.observations[0], rollout.observations[last])
    assert sum(ends.any() for ends in ended) >= 5


@each
def test_only_the_steps_of_environments_are_counted(algorithm):
    steps = steps_of(algorithm, small(algorithm, MEMORY), 12)
    # With the reset, an episode has four rows, and a worker step has five.
    assert [step.result.env_steps for step in steps] == [3] * 12


@each
def test_in_a_run_too_no_update_mixes_two_episodes(algorithm):
    # A worker step of five rows could hold more than an episode and its reset, which are four.
    for update in algorithm.train(small(algorithm, MEMORY)):
        assert int(update.state.env_steps) == 3 * int(update.state.gradient_steps)


@each
def test_what_stands_in_rows_that_are_not_valid_changes_no_bit_of_the_gradient_nor_of_what_was_seen(algorithm):
    config = small(algorithm, MEMORY, normalize_observations=True, normalize_rewards=True)
    step = steps_of(algorithm, config, 3)[2]
    rollout = step.rollout
    # The row after the last observation, which is the true successor of a valid step.
    first_invalid = int(np.nonzero(rollout.terminated)[0][0]) + 2
    assert not rollout.valid[0]
    assert first_invalid < len(rollout.observations)
    observations = rollout.observations.copy()
    observations[first_invalid:] = 77.0
    strange = rollout._replace(
        observations=observations,
        rewards=np.where(rollout.valid, rollout.rewards, 1e6).astype(np.float32),
        actions=np.where(rollout.valid, rollout.actions, 1 - rollout.actions),
    )
    for left, right in zip(*(jax.tree.leaves(gradients_of(step, r)) for r in (rollout, strange)), strict=True):
        np.testing.assert_array_equal(left, right)


@each
def test_observations_that_were_never_seen_are_not_normalised_by(algorithm):
    step = steps_of(algorithm, small(algorithm, MEMORY, normalize_observations=True, normalize_rewards=True), 3)[0]
    seen = step.rollout.observations[:-1][step.rollout.valid]
    moments = step.work.layouts.normalizer.tree(step.result.normalizer).observations
    assert float(moments.count) == len(seen) == 3 < len(step.rollout.valid)
    np.testing.assert_allclose(moments.mean, seen.mean(0), atol=1e-6)


# The gradient


@each
def test_the_gradient_is_that_of_the_mean_square_with_the_target_held_constant(algorithm):
    # The bias of action a changes Q(s, a) alone: its derivative is twice that action's mean error.
    config = small(algorithm, MEMORY, max_grad_norm=None)
    step = steps_of(algorithm, config, 6)[4]
    found = step.work.layouts.network.tree(step.result.gradients)
    # With the network itself as its target network.
    same = step.work.layouts.network.tree(gradients_of(step, step.rollout, step.network)[0])
    for gradient, target_weights in ((found, step.target_weights), (same, step.network)):
        base = gradients_of(step, step.rollout, target_weights)[1]["loss/value"]
        for action in range(2):
            higher = eqx.tree_at(
                lambda n: n.head.bias, step.network, replace_fn=lambda b, a=action: b + 1e-2 * (np.arange(2) == a)
            )
            moved = step._replace(weights=step.weights._replace(network=step.work.layouts.network.vector(higher)))
            difference = (gradients_of(moved, step.rollout, target_weights)[1]["loss/value"] - base) / 1e-2
            share = np.mean(step.rollout.actions[step.rollout.valid] == action)
            assert float(gradient.head.bias[action]) == pytest.approx(float(difference) - 1e-2 * share, abs=2e-3)


@each
def test_the_gradient_is_clipped_by_its_norm(algorithm):
    free, tight = (
        steps_of(algorithm, small(algorithm, MEMORY, max_grad_norm=norm), 1)[0].result for norm in (None, 0.01)
    )
    norm = np.linalg.norm(free.gradients)
    assert tight.metrics["optimizer/grad_norm"] == pytest.approx(norm, rel=1e-4)
    np.testing.assert_allclose(tight.gradients, free.gradients * 0.01 / norm, rtol=1e-3)


# Masks


@each
def test_a_forbidden_action_is_neither_taken_nor_bootstrapped_from(algorithm):
    config = small(algorithm, MASKED, rollout_length=2, final_explorations=(0.5,), exploration_chances=(1.0,))
    steps = steps_of(algorithm, config, 40)
    going_on = [step for step in steps if not step.rollout.terminated.any() and step.rollout.valid.all()]
    assert len(going_on) >= 10
    changes = set()
    for step in going_on:
        assert step.rollout.rewards.tolist() == [[1.0], [1.0]]
        for action in range(3):  # loved by the target network: the loss explodes where it is bootstrapped from
            target_weights = eqx.tree_at(
                lambda n: n.head.bias, step.target_weights, replace_fn=lambda b, a=action: b + 1e4 * (np.arange(3) == a)
            )
            exploded = bool(gradients_of(step, step.rollout, target_weights)[1]["loss/value"] > 1e6)
            allowed = step.rollout.action_masks[1:, 0, action]
            changes.add(exploded)
            if algorithm is async_q:
                assert exploded == allowed.any()
            elif algorithm is async_nstep_q:
                assert exploded == allowed[-1]
            else:
                assert allowed.any() or not exploded
    assert changes == {True, False}


# The target network


@each
def test_the_target_network_is_copied_at_multiples_of_target_every_and_stands_still_between(algorithm):
    config = small(algorithm, target_every=10)
    state = algorithm.init(config, *spaces_of(config.env))
    work = make_work(config, async_q.__name__, algorithm.worker_step, algorithm.apply_gradients, state, until_end=True)
    shared = state_to_shared(state, work.layouts)
    total = 0
    np.testing.assert_array_equal(shared.target_weights, shared.weights)  # θ⁻ ← θ, to begin with
    for number, steps in enumerate([4, 5, 1, 0, 7, 2, 12, 9, 25, 4]):
        before = shared.target_weights.copy()
        gradients = np.full_like(shared.weights, number + 1.0)
        result = WorkerResult(gradients, 0.1, steps, shared.normalizers[0], shared.keys[number % 2], {})
        algorithm.apply_gradients(shared, result, config)
        shared.write(number % 2, result)
        copied = total // 10 != (total + steps) // 10
        total += steps
        np.testing.assert_array_equal(shared.target_weights, shared.weights if copied else before)
        assert not np.array_equal(shared.weights, before)


@each
def test_in_a_run_the_target_network_changes_with_every_target_every_steps_of_all_actor_learners(algorithm):
    states = [update.state for update in algorithm.train(small(algorithm, target_every=50))]
    changes = []
    for before, after in pairwise(states):
        leaves = zip(jax.tree.leaves(before.target_weights), jax.tree.leaves(after.target_weights), strict=True)
        changes.append(any(np.any(left != right) for left, right in leaves))
        assert changes[-1] == (int(before.env_steps) // 50 != int(after.env_steps) // 50)
    assert set(changes) == {True, False}


# Exploration


@each
def test_each_actor_learner_explores_with_its_own_epsilon_as_far_as_the_run_is(algorithm):
    # pfrl #183: a schedule that is not restored
    config = small(algorithm, exploration_fraction=0.5)
    drawn = config.final_explorations, config.exploration_chances, config.run.seed
    finals = [final_exploration(*drawn, number) for number in range(2)]
    with closing(algorithm.train(config)) as training:
        middle = next(update for update in training if int(update.state.env_steps) >= 100)
        state = middle.state
        snapshot = middle.snapshot()
    # Half-way to its end, but for the steps since each read the parameters.
    assert middle.metrics["exploration/epsilon"] == pytest.approx(
        np.mean([(1 + final) / 2 for final in finals]), abs=0.12
    )
    resumed = list(algorithm.train(config, None, state, snapshot))
    assert resumed[0].metrics["exploration/epsilon"] < middle.metrics["exploration/epsilon"]
    assert resumed[-1].metrics["exploration/epsilon"] == pytest.approx(np.mean(finals), abs=1e-6)


@each
def test_what_is_evaluated_is_greedy_and_what_explores_is_not(algorithm):
    config = small(algorithm, MEMORY)
    state = algorithm.init(config, *spaces_of(config.env))
    state = state._replace(network=perturbed(state.network, 1))
    network, moments, epsilon = algorithm.policy(state)
    assert epsilon == 0
    observations = np.random.default_rng(0).uniform(-1, 1, (300, 2)).astype(np.float32)
    best = values_at(network, observations[None])[0].argmax(-1)
    resets = np.zeros(300, bool)
    key = np.array([1, 2], np.uint32)
    assert 0 < best.mean() < 1
    for given in (None, key):
        np.testing.assert_array_equal(
            algorithm.act(algorithm.policy(state), observations, (), resets, None, given).actions, best
        )
    drawn = algorithm.act((network, moments, np.float32(1.0)), observations, (), resets, None, key).actions
    assert abs(np.mean(np.asarray(drawn) == best) - 0.5) < 0.1


# Settings


WRONG = {
    "target_every 0 must be at least 1": {"target_every": 0},
    "rollout_length 0 must be at least 1": {"rollout_length": 0},
    r"discount 1.5 must lie in \[0, 1\]": {"discount": 1.5},
    r"rmsprop_decay 1.0 must lie in \[0, 1\); 0.99 is usual": {"rmsprop_decay": 1.0},
    "max_grad_norm 0.0 must be positive, or None": {"max_grad_norm": 0.0},
    "learning_rate -0.1 must not be negative": {"learning_rate": linear(1e-3, -0.1)},
    r"exploration_fraction 2.0 must lie in \(0, 1\]": {"exploration_fraction": 2.0},
}


@each
@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_a_setting_that_cannot_work_is_named_with_its_value_and_what_to_use_before_the_first_step(
    algorithm, message, changes
):
    with pytest.raises(ConfigError, match=message):
        next(algorithm.train(small(algorithm, **changes)))


@each
def test_environments_that_were_passed_in_are_refused(algorithm):
    with pytest.raises(ConfigError, match=r"each actor-learner makes its own environments; set env\.id"):
        next(algorithm.train(small(algorithm), envs=[]))


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
    config = replace(
        small(async_q, EnvConfig("birl/ProbeObservationAction-v0", num_envs=8)), run=RunConfig(total_steps=4000)
    )
    config = replace(config, report_every=1000, rollout_length=8, learning_rate=linear(5e-2, 0.0))
    *_, last = async_q.train(config, make_network=make_own)
    assert isinstance(last.state.network, OwnNetwork)
    np.testing.assert_allclose(
        values_at(last.state.network, np.array([[[-1.0], [1.0]]], np.float32))[0], [[1, -1], [-1, 1]], atol=0.05
    )
