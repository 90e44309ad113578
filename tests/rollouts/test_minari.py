"""Minari datasets, made here by Minari itself, go into the replay."""

import sys

import gymnasium as gym
import minari
import numpy as np
import pytest

from birl.algos import dqn, sac
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.rollouts.transition_files import read_dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning")


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def collect(env_id: str, name: str, episodes: int) -> list[np.ndarray]:
    """Make a dataset of random episodes; the observations of each."""
    env = minari.DataCollector(gym.make(env_id, max_episode_steps=30), record_infos=False)
    env.action_space.seed(0)
    seen = []
    for number in range(episodes):
        observations = [env.reset(seed=number)[0]]
        ended = False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            observations.append(observation)
            ended = terminated or truncated
        seen.append(np.array(observations))
    env.create_dataset(name)
    env.close()
    return seen


def dqn_config(prefill: str, **settings) -> dqn.Config:
    env = EnvConfig("CartPole-v1", num_envs=2)
    return dqn.Config(
        env, RunConfig(total_steps=40), learning_starts=0, batch_size=8, hidden_sizes=(8,), prefill=prefill, **settings
    )


def test_episodes_become_transitions_that_end_where_they_ended():
    seen = collect("CartPole-v1", "cartpole/random-v0", 5)
    arrays = read_dataset("cartpole/random-v0", 10_000)
    np.testing.assert_array_equal(arrays["observations"], np.concatenate([one[:-1] for one in seen]))
    np.testing.assert_array_equal(arrays["next_observations"], np.concatenate([one[1:] for one in seen]))
    ends = np.cumsum([len(one) - 1 for one in seen]) - 1
    np.testing.assert_array_equal(np.flatnonzero(arrays["terminated"] | arrays["truncated"]), ends)
    newest = read_dataset("cartpole/random-v0", 1)
    np.testing.assert_array_equal(newest["observations"], seen[-1][:-1])


def test_a_run_is_prefilled_from_a_dataset():
    seen = collect("CartPole-v1", "cartpole/random-v0", 5)
    update = next(dqn.train(dqn_config("minari:cartpole/random-v0")))
    assert len(update.replay) == sum(len(one) - 1 for one in seen) + 8
    assert np.isfinite(update.metrics["loss/value"])


def test_continuous_actions_of_a_dataset_are_taken_too():
    collect("Pendulum-v1", "pendulum/random-v0", 2)
    env = EnvConfig("Pendulum-v1", num_envs=1)
    settings = {"learning_starts": 0, "batch_size": 8, "hidden_sizes": (8,), "prefill": "minari:pendulum/random-v0"}
    update = next(sac.train(sac.Config(env, RunConfig(total_steps=20), **settings)))
    assert len(update.replay) == 60 + 8


def test_what_is_wrong_with_a_dataset_is_said(monkeypatch):
    with pytest.raises(ConfigError, match=r"minari:none/at-all-v0 cannot be read: .*; minari list local shows those"):
        next(dqn.train(dqn_config("minari:none/at-all-v0")))
    collect("Pendulum-v1", "pendulum/random-v0", 1)
    with pytest.raises(
        ConfigError, match=r"minari:pendulum/random-v0: actions has shape \(30, 1\); action space Discrete"
    ):
        next(dqn.train(dqn_config("minari:pendulum/random-v0")))
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"needs the minari package: pip install '\.\[minari\]'"):
        next(dqn.train(dqn_config("minari:pendulum/random-v0")))
