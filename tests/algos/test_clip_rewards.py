"""With clip_rewards an algorithm learns from signs; returns are reported unclipped."""

import gymnasium as gym
import numpy as np
import pytest

from birl.algos import async_q
from birl.config import EnvConfig, RunConfig
from birl.registry import algorithm_named, supports
from birl.rollouts.finite import for_learning
from birl.types import Rollout
from tests.envs.counting import Counting

gym.register(
    "tests/CountingLoss-v0", entry_point=lambda: gym.wrappers.TransformReward(Counting(), lambda reward: reward - 21)
)


class LearnedError(Exception):
    """Carries what an algorithm was about to learn from."""


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "acer", "a3c", "async-q", "async-nstep-q", "async-sarsa"])
@pytest.mark.parametrize("clip", [True, False])
def test_what_is_learned_from_has_signs_for_rewards(name, clip, monkeypatch):
    def look(*inputs, **_):
        raise LearnedError(next(value for value in inputs if isinstance(value, Rollout)))

    algorithm = algorithm_named(name)
    for module in (algorithm, async_q):
        for learning in ("update", "gradients"):
            monkeypatch.setattr(module, learning, look, raising=False)
    # With a state on several devices an update is a program of its own, and is given arrays.
    monkeypatch.setattr("birl.speed.has_several_devices", lambda state: True)
    env = EnvConfig("tests/CountingLoss-v0", num_envs=4)
    settings = {"rollout_length": 8, "hidden_sizes": (4,), "clip_rewards": clip}
    if not supports(name).passed_envs:
        settings |= {"pool": "serial", "actor_learners": 1}
    with pytest.raises(LearnedError) as caught:
        next(algorithm.train(algorithm.Config(env, RunConfig(total_steps=10_000), **settings)))
    rewards = caught.value.args[0].rewards
    assert set(np.unique(rewards)) <= ({-1.0, 0.0, 1.0} if clip else set(range(-11, 22)))
    assert rewards.min() == (-1 if clip else rewards.min())
    assert clip or rewards.min() < -1


def test_only_rewards_are_clipped_and_the_rollout_itself_stays_as_it_is():
    rewards, game_over = np.array([[-3.0, 0.0, 0.5]], np.float32), np.array([[True, False, False]])
    whole = Rollout("observations", "actions", rewards, "terminated", "truncated", "valid", (), game_over=game_over)
    clipped = for_learning(whole, clip_rewards=True)
    np.testing.assert_array_equal(clipped.rewards, [[-1.0, 0.0, 1.0]])
    assert clipped.rewards.dtype == np.float32
    assert (
        clipped._replace(rewards=rewards) == for_learning(whole, clip_rewards=False) == whole._replace(game_over=None)
    )
    np.testing.assert_array_equal(whole.rewards, [[-3.0, 0.0, 0.5]])
