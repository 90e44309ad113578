"""Hindsight: copies of finished episodes, against the environment's own rewards."""

import json

import jax
import numpy as np
import pytest

import birl
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.serial import SerialEnvs
from birl.rollouts.hindsight import Hindsight
from birl.rollouts.source import Collector
from birl.types import Action, Snapshot
from tests.envs.goals import GOAL_PARTS, BitFlip

COPIES = 4


def act(policy, observations, memory, resets, masks, key):
    """Flip the bits in turn, each environment from another one on; the memory counts steps."""
    bits = observations["observation"].shape[1]
    return Action((policy + memory + np.arange(len(memory))) % bits, memory + 1)


def collected(bits=5, num_envs=3, length=7, rollouts=4, ends=True):
    """Environments, and rollouts of theirs that begin and end inside of episodes."""
    envs = SerialEnvs([lambda: BitFlip(bits, ends)] * num_envs)
    collector = Collector(envs, act, length, np.zeros(num_envs, np.int32))
    collector.start(0)
    return envs, [collector.collect(np.int32(number), np.array([0, number], np.uint32)) for number in range(rollouts)]


def copies_of(envs, rollouts, copies=COPIES, seed=0):
    hindsight = Hindsight(envs, copies)
    found = [hindsight.add(rollout, np.array([seed, t], np.uint32)) for t, rollout in enumerate(rollouts)]
    return hindsight, jax.tree.map(lambda *parts: np.concatenate(parts), *[one for one in found if one is not None])


def episodes_of(rollouts):
    """The finished episodes: lists of (observation, action, next observation)."""
    done, open_ = [], [[] for _ in range(rollouts[0].rewards.shape[1])]
    for rollout in rollouts:
        for t, env in np.ndindex(*rollout.rewards.shape):
            here, after = (jax.tree.map(lambda x, s=s, env=env: x[s, env], rollout.observations) for s in (t, t + 1))
            if not rollout.valid[t, env]:
                open_[env] = []
                continue
            open_[env].append((here, rollout.actions[t, env], after))
            if rollout.terminated[t, env] or rollout.truncated[t, env]:
                done.append(open_[env])
                open_[env] = []
    return done


@pytest.mark.parametrize("ends", [False, True])
def test_rewards_and_ends_of_copies_are_the_environments_own_for_the_new_goal(ends):
    envs, rollouts = collected(ends=ends)
    _, copies = copies_of(envs, rollouts)
    env = BitFlip(5, ends)
    for row in range(len(copies.rewards)):
        achieved = copies.next_observations["achieved_goal"][row]
        desired = copies.next_observations["desired_goal"][row]
        assert copies.rewards[row] == env.compute_reward(achieved, desired, {})
        assert copies.terminated[row] == (ends and (achieved == desired).all())
        np.testing.assert_array_equal(copies.observations["desired_goal"][row], desired)
    assert (copies.rewards == 0).any()
    assert (copies.rewards < 0).any()
    assert not (copies.terminated & copies.truncated).any()


def test_every_step_of_a_finished_episode_has_its_copies_with_goals_reached_there_or_later():
    envs, rollouts = collected(ends=False)
    _, copies = copies_of(envs, rollouts)
    episodes = episodes_of(rollouts)
    assert len(copies.rewards) == COPIES * sum(map(len, episodes))
    row = 0
    # In the order in which episodes end: by time, then by environment.
    for episode in episodes:
        for t, (here, action, after) in enumerate(episode):
            later = {tuple(step[2]["achieved_goal"]) for step in episode[t:]}
            for _ in range(COPIES):
                assert copies.actions[row] == action
                for part in GOAL_PARTS[:2]:
                    np.testing.assert_array_equal(copies.observations[part][row], here[part])
                    np.testing.assert_array_equal(copies.next_observations[part][row], after[part])
                assert tuple(copies.next_observations["desired_goal"][row]) in later
                row += 1


def test_goals_are_drawn_from_this_step_and_all_later_ones_with_equal_chances():
    envs, [rollout] = collected(bits=4, num_envs=1, length=4, rollouts=1, ends=False)
    assert rollout.truncated[-1, 0]  # one whole episode, cut by its limit: such episodes count as ended
    _, copies = copies_of(envs, [rollout], copies=99)
    reached = [tuple(rollout.observations["achieved_goal"][t + 1, 0]) for t in range(4)]
    assert len(set(reached)) == 4
    for step in range(4):
        goals = [tuple(goal) for goal in copies.next_observations["desired_goal"][step * 99 : (step + 1) * 99]]
        counts = np.array([goals.count(one) for one in reached])
        assert counts[:step].sum() == 0
        expected = 99 / (4 - step)
        assert ((counts[step:] - expected) ** 2 / expected).sum() < 20  # χ² with at most three degrees of freedom


def test_unfinished_episodes_have_no_copies_and_lost_ones_never_get_any():
    envs, [rollout, *_] = collected(bits=6, num_envs=1, length=4, ends=False)
    hindsight = Hindsight(envs, COPIES)
    assert hindsight.add(rollout, np.zeros(2, np.uint32)) is None
    lost = rollout._replace(
        valid=np.array([[False], [True], [True], [True]]), truncated=np.array([[False], [False], [False], [True]])
    )
    assert len(hindsight.add(lost, np.zeros(2, np.uint32)).rewards) == 3 * COPIES


def test_a_snapshot_has_the_unfinished_episodes_and_new_episodes_begin_without_them():
    envs, rollouts = collected()
    first = Hindsight(envs, COPIES)
    for t, rollout in enumerate(rollouts[:2]):
        first.add(rollout, np.array([0, t], np.uint32))
    saved = first.snapshot(Snapshot())
    for fresh in (np.zeros(3, bool), np.array([True, False, False])):
        second = Hindsight(envs, COPIES)
        second.restore(Snapshot(saved.arrays, json.loads(json.dumps(saved.values))), rollouts[0], fresh)
        key = np.array([0, 2], np.uint32)
        again = second.add(rollouts[2], key)
        if fresh.any():
            assert len(again.rewards) < len(copies_of(envs, rollouts[:3])[1].rewards)
            continue
        jax.tree.map(np.testing.assert_array_equal, again, first.add(rollouts[2], key))


def config_with(bits, steps, **settings):
    env = EnvConfig(f"{__name__}:make_{bits}_bits", num_envs=4)
    run = RunConfig(total_steps=steps)
    chosen = {"rollout_length": bits, "update_ratio": 0.5, "batch_size": 128, "hidden_sizes": (128,)}
    chosen |= {"exploration": birl.linear(1.0, 0.02, 0.5), "discount": 0.98, "env": env, "run": run}
    return birl.dqn.Config(**(chosen | settings))


def make_8_bits():
    return BitFlip(8, ends=True)


def make_6_bits():
    return BitFlip(6, ends=True)


def test_k_of_k_plus_1_transitions_in_the_replay_are_copies():
    *_, update = birl.dqn.train(config_with(6, 1500, hindsight=3))
    steps = int(update.state.env_steps)
    unfinished = 4 * 6  # at most
    assert 4 * steps - 4 * unfinished <= len(update.replay) <= 4 * steps


@pytest.mark.parametrize(("hindsight", "lowest", "highest"), [(4, 0.9, 1.0), (0, 0.0, 0.6)])
def test_dqn_reaches_goals_of_eight_bits_with_hindsight_and_not_without(hindsight, lowest, highest):
    *_, update = birl.dqn.train(config_with(8, 15_000, hindsight=hindsight))
    envs = SerialEnvs([make_8_bits] * 100)
    observations, _ = envs.reset(7)
    policy = birl.dqn.policy(update.state)
    reached = np.zeros(100, bool)
    for _ in range(8):
        action = birl.dqn.act(policy, observations, (), np.zeros(100, bool), None, None)
        step = envs.step(np.asarray(action.actions))
        reached |= step.valid & (step.rewards == 0)
        observations = step.observations
    assert lowest <= reached.mean() <= highest


def test_a_run_with_hindsight_continues_to_the_bit():
    config = config_with(6, 1500, hindsight=2, learning_starts=100)
    updates = birl.dqn.train(config)
    for _ in range(25):
        update = next(updates)
    state, snapshot = update.state, update.snapshot()
    snapshot = Snapshot({name: np.array(array) for name, array in snapshot.arrays.items()}, snapshot.values)
    *_, last = updates
    *_, again = birl.dqn.train(config, state=state, snapshot=snapshot)
    jax.tree.map(np.testing.assert_array_equal, last.state, again.state)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env": EnvConfig("CartPole-v1", num_envs=1)}, "hindsight needs goals, and observation space"),
        ({"env": EnvConfig("CartPole-v1", num_envs=1, backend="compiled")}, "compiled environments have no compute_"),
        ({"core": "lstm"}, "a recurrent network learns from sequences; use hindsight 0"),
        ({"hindsight": 100}, "hindsight 100 must be below 100; 4 is usual"),
    ],
)
def test_hindsight_that_cannot_work_is_refused_before_the_first_step(settings, said):
    config = config_with(6, 1500, **({"hindsight": 4} | settings))
    with pytest.raises(ConfigError, match=said):
        next(birl.dqn.train(config))


class Unrewarding(BitFlip):
    """Goals without a way to ask what they are worth."""

    compute_reward = property()


def test_an_environment_without_compute_reward_or_with_one_for_single_goals_is_named():
    class OneGoal(BitFlip):
        def compute_reward(self, achieved, desired, info):
            return -float((achieved != desired).any())

    with pytest.raises(ConfigError, match="compute_reward"):
        Hindsight(SerialEnvs([Unrewarding]), 4)
    envs = SerialEnvs([OneGoal])
    with pytest.raises(ConfigError, match="let it take arrays of goals"):
        envs.goal_outcomes(np.zeros((3, 8)), np.zeros((3, 8)))
