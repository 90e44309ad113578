"""MuJoCo environments are equal through Gymnasium and EnvPool."""

import numpy as np
import pytest

from birl.algos import ppo
from birl.config import EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.envs.outputs import narrowed

pytest.importorskip("mujoco")
pytest.importorskip("envpool")

IDS = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Reacher-v5", "Swimmer-v5"]
BACKENDS = ("gymnasium", "envpool")


def first_rewards(env_id: str, backend: str) -> tuple[np.ndarray, np.ndarray]:
    """[3, B] rewards of three steps with the same action everywhere, and the last observations."""
    with make_envs(EnvConfig(env_id, 64, backend), 0) as envs:
        envs.reset(0)
        low, high = envs.action_space.low, envs.action_space.high
        action = low + (high - low) * np.linspace(0.2, 0.9, len(low), dtype=np.float32)
        steps = [envs.step(np.tile(action, (64, 1))) for _ in range(3)]
    return np.array([step.rewards for step in steps]), steps[-1].observations


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_and_first_rewards_are_the_same_through_gymnasium_and_envpool(env_id):
    spaces = []
    for backend in BACKENDS:
        with make_envs(EnvConfig(env_id, 2, backend), 0) as envs:
            spaces.append((envs.observation_space, narrowed(envs.action_space)))  # EnvPool's actions are float64
    assert spaces[0] == spaces[1]
    (rewards, observations), (pool_rewards, pool_observations) = (
        first_rewards(env_id, backend) for backend in BACKENDS
    )
    # Starts are random: means of 64 differ by five standard errors at most.
    for found, expected in ((rewards, pool_rewards), (observations, pool_observations)):
        axis = 1 if found is rewards else 0
        error = np.sqrt((found.var(axis) + expected.var(axis)) / 64)
        assert (np.abs(found.mean(axis) - expected.mean(axis)) <= 5 * error + 1e-4).all()


def test_half_cheetah_trains_through_envpool():
    config = ppo.Config(
        env=EnvConfig("HalfCheetah-v5", 2, "envpool", max_episode_steps=10),
        run=RunConfig(total_steps=60),
        rollout_length=16,
        epochs=1,
        minibatches=1,
        hidden_sizes=(8,),
        normalize_observations=True,
        normalize_rewards=True,
    )
    *_, last = ppo.train(config)
    assert last.metrics["episode/length"] == 10
    assert np.isfinite(last.metrics["loss/value"])
