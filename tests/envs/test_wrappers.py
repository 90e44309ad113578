"""Hidden velocities, and steps that exceed their time limit."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from birl.config import ConfigError, EnvConfig, name_of_function
from birl.envs.make import make_env, make_envs, open_envs
from tests.envs.counting import DictCounting, MaskedCounting
from tests.run.processes import ENVIRONMENT, SECONDS

VELOCITIES = {  # from Gymnasium's documentation
    "CartPole-v1": [1, 3],
    "Pendulum-v1": [2],
    "MountainCar-v0": [1],
    "MountainCarContinuous-v0": [1],
    "Acrobot-v1": [4, 5],
    "LunarLander-v3": [2, 3, 5],
    "LunarLanderContinuous-v3": [2, 3, 5],
}


@pytest.mark.parametrize("env_id", VELOCITIES)
def test_what_remains_is_the_observation_without_its_velocities(env_id):
    hidden, full = make_env(EnvConfig(env_id, hide_velocities=True)), make_env(EnvConfig(env_id))
    hidden.reset(seed=3)
    full.reset(seed=3)
    full.action_space.seed(0)
    for _ in range(3):
        action = full.action_space.sample()
        shown, whole = hidden.step(action)[0], full.step(action)[0]
    np.testing.assert_array_equal(shown, np.delete(whole, VELOCITIES[env_id]))
    assert hidden.observation_space.contains(shown)


@pytest.mark.parametrize("num_envs", [2, 8])
def test_one_by_one_and_batched_hide_the_same_features(num_envs):
    with make_envs(EnvConfig("CartPole-v1", num_envs, hide_velocities=True), 0) as envs:
        observations, _ = envs.reset(0)
        assert observations.shape == (num_envs, 2)
        np.testing.assert_allclose(envs.observation_space.high, [4.8, 24 * np.pi / 180], rtol=1e-6)
        for _ in range(15):
            step = envs.step(np.zeros(num_envs, int))
            assert step.observations.shape == (num_envs, 2)
            fallen = np.abs(step.observations[:, 1]) > 12 * np.pi / 180
            np.testing.assert_array_equal(step.terminated, fallen & step.valid)  # the second is the angle


def test_an_unknown_environment_names_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"hide_velocities True is not known for env.id 'FrozenLake-v1'; it is for Acrobot, CartPole"
    ):
        make_envs(EnvConfig("FrozenLake-v1", hide_velocities=True), 0)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGALRM")
def test_a_step_that_takes_too_long_ends_the_process_and_time_between_steps_does_not_count():
    code = """
import time
from birl.envs.wrappers import StepTimeout
from tests.envs.troubled import HANG, Troubled
env = StepTimeout(Troubled(), 1.5)
env.reset(seed=1)
env.step(0)
time.sleep(2.0)
print("stepped", flush=True)
env.step(HANG)
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (finished.returncode, finished.stdout) == (-signal.SIGALRM, "stepped\n"), finished.stderr


@pytest.mark.parametrize(
    "config", [EnvConfig("ALE/Pong-v5", 2), EnvConfig("ALE/Pong-v5", 2, workers=2), EnvConfig("Ant-v5", 2, workers=2)]
)
def test_hiding_velocities_where_they_are_not_known_is_refused_wherever_environments_run(config):
    config = replace(config, hide_velocities=True)
    with pytest.raises(
        ConfigError, match=f"hide_velocities True is not known for env.id '{config.id}'; it is for Acrobot, CartPole"
    ):
        make_envs(config, 0).close()
    with pytest.raises(ConfigError, match="hide_velocities True is not known"):
        make_env(config).close()


def test_velocities_of_a_vector_environment_that_is_passed_in_cannot_be_hidden():
    vector_env = gym.make_vec("CartPole-v1", 2)
    with (
        pytest.raises(ConfigError, match="hide_velocities True cannot change a vector environment that is passed in"),
        open_envs(EnvConfig("CartPole-v1", 2, hide_velocities=True), 0, vector_env),
    ):
        pytest.fail("it was accepted")


def test_the_method_action_masks_gives_the_masks_that_infos_would_give():
    kinds = ("MaskedCounting", "MethodCounting")
    expected, given = (make_envs(EnvConfig(f"tests.envs.counting:{kind}", 2), 0) for kind in kinds)
    masks = given.reset(0)[1]
    assert np.array_equal(expected.reset(0)[1], masks)
    for _ in range(20):
        actions = masks.argmax(1)
        step = given.step(actions)
        masks = step.action_masks
        assert np.array_equal(expected.step(actions).action_masks, masks)
        assert masks.all(axis=1).tolist() == step.terminated.tolist()


def test_a_mask_in_the_info_or_the_observation_comes_before_the_method():
    class Both(MaskedCounting):
        def action_masks(self):
            raise AssertionError

    class Observed(DictCounting):
        action_masks = Both.action_masks

    for kind in (Both, Observed):
        envs = make_envs(EnvConfig(name_of_function(kind), 1), 0)
        assert envs.reset(0)[1].tolist() == [[False, True, True]]
