"""Environments from a config; errors name the field, its value and what to do."""

import importlib.util
import os
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from birl.config import ConfigError, EnvConfig
from birl.envs.make import make_env, make_envs, open_envs, spaces_of
from birl.envs.serial import SerialEnvs
from birl.envs.vector import VectorAdapter
from tests.run.processes import SECONDS


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (EnvConfig("CartPole-v1", 8), VectorAdapter),
        (EnvConfig("CartPole-v1", 2), SerialEnvs),  # with few, stepping one by one is faster
        (EnvConfig("CartPole-v1", 8, max_episode_steps=9), VectorAdapter),
        (EnvConfig("CartPole-v1", 8, kwargs={"sutton_barto_reward": True}), VectorAdapter),
        (EnvConfig("CartPole-v1", 8, kwargs={"render_mode": "rgb_array"}), SerialEnvs),
        (EnvConfig("LunarLander-v3", 8), SerialEnvs),
        (EnvConfig("LunarLander-v3", 8, "envpool"), VectorAdapter),
    ],
)
def test_the_right_kind_of_environments_is_made(config, kind):
    with make_envs(config, 0) as envs:
        assert type(envs) is kind
        assert envs.num_envs == config.num_envs
        observations, masks = envs.reset(0)
        assert masks is None
        assert observations.shape == (config.num_envs, *envs.observation_space.shape)
        assert observations.dtype == envs.observation_space.dtype == np.float32
        assert envs.observation_space.contains(observations[0])


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
@pytest.mark.parametrize("num_envs", [2, 8])
def test_max_episode_steps_truncates_and_does_not_terminate(backend, num_envs):
    with make_envs(EnvConfig("CartPole-v1", num_envs, backend, max_episode_steps=4), 0) as envs:
        envs.reset(0)
        steps = [envs.step(np.full(num_envs, t % 2)) for t in range(11)]
        truncated = np.array([step.truncated for step in steps])
        assert np.flatnonzero(truncated[:, 0]).tolist() == [3, 8]
        assert not any(step.terminated.any() for step in steps)
        assert (truncated == truncated[:, :1]).all()


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_run_also_after_a_second_reset(env_id, backend, seed):
    actions = np.random.default_rng(0).integers(0, 2, (40, 8))

    def run(envs):
        first, _ = envs.reset(seed)
        return np.stack([first] + [envs.step(row).observations for row in actions])

    with (
        make_envs(EnvConfig(env_id, 8, backend), seed) as envs,
        make_envs(EnvConfig(env_id, 8, backend), seed) as others,
    ):
        first = run(envs)
        np.testing.assert_array_equal(first, run(others))
        np.testing.assert_array_equal(first, run(envs))
        other = others.reset(seed + 1)[0]
        # With seed + i, EnvPool's own way, seven of eight would be shared.
        assert not {tuple(row) for row in first[0]} & {tuple(row) for row in other}


def test_wrong_bounds_of_envpool_are_removed():
    with make_envs(EnvConfig("LunarLander-v3", 1, "envpool"), 0) as envs:
        assert (envs.observation_space.low == -np.inf).all()


def test_a_user_can_pass_in_a_vector_environment():
    with open_envs(EnvConfig(num_envs=2), 0, SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)) as envs:
        assert envs.reset(0)[0].shape == (2, 4)


def test_one_environment_is_wrapped_as_the_vector_of_them():
    config = EnvConfig("CartPole-v1", 2, hide_velocities=True, max_episode_steps=3)
    single = make_env(config, render_mode="rgb_array")
    with make_envs(config, 0) as envs:
        assert single.observation_space == envs.observation_space
    single.reset(seed=0)
    assert [single.step(0)[3] for _ in range(3)] == [False, False, True]
    assert single.render().ndim == 3


BAD = {
    "a misspelt id": (
        EnvConfig("CartPol-v1"),
        r"env.id 'CartPol-v1' .*you may mean CartPole-v1\..*my_module:CartPol-v1",
    ),
    "an unknown version": (EnvConfig("CartPole-v7"), r"env.id 'CartPole-v7' .*you may mean CartPole-v1"),
    "an old version": (EnvConfig("LunarLander-v2"), r"env.id 'LunarLander-v2' .*LunarLander-v3"),
    "no version": (EnvConfig("CartPole"), r"env.id 'CartPole' .*CartPole-v1"),
    "an unknown module": (
        EnvConfig("no_such_module:A-v0"),
        r"env.id 'no_such_module:A-v0' needs the module no_such_module",
    ),
    "no environments": (EnvConfig(num_envs=0), r"env.num_envs 0 is less than 1; use 8"),
    "no steps": (EnvConfig(max_episode_steps=0), r"env.max_episode_steps 0 .*None"),
    "an unknown argument": (
        EnvConfig("LunarLander-v3", kwargs={"gravitty": 1}),
        r"env.kwargs \{'gravitty': 1\} .*LunarLander-v3",
    ),
    "an unknown argument of a native vector": (
        EnvConfig("CartPole-v1", kwargs={"gravity": 1}),
        r"env.kwargs \{'gravity': 1\}",
    ),
    "an id that is not in EnvPool": (
        EnvConfig("CartPole-v2", backend="envpool"),
        r"env.id 'CartPole-v2' is not in EnvPool; did you mean CartPole-v1",
    ),
    "an argument that EnvPool does not take": (
        EnvConfig("CartPole-v1", backend="envpool", kwargs={"gravity": 1}),
        r"env.kwargs",
    ),
    "no velocities to hide": (EnvConfig("FrozenLake-v1", hide_velocities=True), r"env.hide_velocities True"),
}


@pytest.mark.parametrize(("config", "message"), BAD.values(), ids=BAD.keys())
def test_settings_that_cannot_work_are_explained_before_training(config, message):
    with pytest.raises(ConfigError, match=message):
        spaces_of(config)


def test_a_negative_seed_is_explained():
    with pytest.raises(ConfigError, match=r"run.seed -1 is negative; use 0 or more"):
        make_envs(EnvConfig(), -1)


@pytest.mark.parametrize(
    ("module", "config", "extra"),
    [
        ("envpool", EnvConfig("CartPole-v1", backend="envpool"), r"\.\[envpool\]"),
        ("mujoco", EnvConfig("HalfCheetah-v5"), r"\.\[mujoco\]"),
        ("ale_py", EnvConfig("ALE/Pong-v5"), r"\.\[atari\]"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(module, config, extra, monkeypatch):
    if module == "envpool":
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=f"pip install '{extra}'"):
        spaces_of(config)


@pytest.mark.parametrize(
    "config", [EnvConfig(), EnvConfig("LunarLander-v3", 2), EnvConfig("birl/ProbeDict-v0"), EnvConfig("Blackjack-v1")]
)
def test_settings_that_work_are_accepted(config):
    spaces_of(config)


TRAJECTORY = """
import hashlib, numpy as np
from birl.config import EnvConfig
from birl.envs.make import make_envs
digest = hashlib.sha256()
for env_id in ("LunarLander-v3", "birl/ProbeDict-v0", "CartPole-v1", "Blackjack-v1"):
    with make_envs(EnvConfig(env_id, 8), 3) as envs:
        envs.reset(3)
        for t in range(60):
            observations = envs.step(np.full(8, t % 2)).observations
            parts = observations if isinstance(observations, dict) else {"": observations}
            for name, array in parts.items():
                digest.update(name.encode() + array.tobytes())
print(digest.hexdigest())
"""


def test_runs_do_not_depend_on_the_hash_seed():
    digests = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", TRAJECTORY],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1]


def test_importing_birl_envs_registers_nothing_and_loads_no_extra():
    registered = "[i for i in gymnasium.registry if i.startswith('birl')]"
    script = f"import sys, gymnasium, birl.envs.make; print({registered}, 'envpool' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=SECONDS
    ).stdout
    assert found.strip() == "[] False"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (gym.make("CartPole-v1"), "a single environment"),
        ([gym.make("CartPole-v1")], "not a gymnasium.vector.VectorEnv"),
        ("CartPole-v1", "not a gym"),
    ],
    ids=["one", "a list", "a name"],
)
def test_envs_that_are_not_a_vector_environment_are_refused_with_a_remedy(given, kind):
    remedy = re.escape("pass one, such as gymnasium.vector.SyncVectorEnv([make_env] * 8), or leave envs out")
    with (
        pytest.raises(ConfigError, match=rf"envs .*CartPole.* is {kind}.*; {remedy}"),
        open_envs(EnvConfig(num_envs=2), 0, given),
    ):
        pass
