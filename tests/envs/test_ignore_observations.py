"""Parts of a Dict observation that are left out by name."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import birl
from birl.config import ConfigError, EnvConfig
from birl.envs.make import make_env, make_envs, make_share, open_envs, spaces_of
from birl.envs.outputs import layout_of
from birl.envs.serial import SerialEnvs
from tests.envs.own import Talking

TALKING = "tests.envs.own:Talking"
SPACE = Talking.observation_space
DISCRETE = spaces.Discrete(2)


def names(ignored: tuple[str, ...]) -> list[str]:
    return sorted(layout_of(SPACE, DISCRETE, ignored).leaves)


def test_parts_are_left_out_by_name_also_nested_and_whole_branches():
    assert names(("mission",)) == ["camera/depth", "camera/image", "place"]
    assert names(("mission", "camera/depth")) == ["camera/image", "place"]
    assert names(("mission", "camera")) == ["place"]


def test_the_refusal_of_a_text_says_how_to_leave_it_out():
    with pytest.raises(
        ConfigError,
        match=r"at mission is not supported; .*Or leave it out with ignore_observations \('mission',\) "
        r"\(--ignore-observations mission\)",
    ):
        spaces_of(EnvConfig(TALKING))


@pytest.mark.parametrize(
    ("ignored", "said"),
    [
        (("mision",), r"ignore_observations 'mision' is no part of .*; its parts are camera, camera/depth, camera/ima"),
        (("mission", "camera", "place"), r"ignore_observations \('mission', 'camera', 'place'\) leaves nothing of"),
        (("action_mask",), r"ignore_observations 'action_mask' is no part of"),
    ],
)
def test_names_that_cannot_be_left_out_are_refused(ignored, said):
    with pytest.raises(ConfigError, match=said):
        make_envs(EnvConfig(TALKING, ignore_observations=ignored), 0)


def test_a_box_has_no_parts():
    with pytest.raises(ConfigError, match=r"'x' is no part of the observation Box.*; it has no parts"):
        make_envs(EnvConfig("CartPole-v1", ignore_observations=("x",)), 0)
    with pytest.raises(ConfigError, match=r"it has no parts"):
        make_envs(EnvConfig("CartPole-v1", backend="envpool", ignore_observations=("x",)), 0)


def test_they_are_left_out_wherever_environments_are_stepped():
    config = EnvConfig(TALKING, 2, ignore_observations=("mission", "camera/image"))
    expected = spaces_of(config)[0]
    assert sorted(expected) == ["camera/depth", "place"]
    vector_env = SyncVectorEnv([lambda: make_env(EnvConfig(TALKING))] * 2)
    with (
        make_envs(config, 0) as here,
        make_envs(replace(config, workers=1), 0) as there,
        make_share(config, range(2)) as share,
        open_envs(config, 0, vector_env) as passed_in,
    ):
        for envs in (here, there, share, passed_in):
            assert envs.observation_space == expected
            first, _ = envs.reset(3)
            step = envs.step(np.zeros(2, int))
            for observations in (first, step.observations):
                assert sorted(observations) == ["camera/depth", "place"]
        np.testing.assert_array_equal(here.reset(3)[0]["place"], there.reset(3)[0]["place"])


def test_birls_own_environments_that_are_passed_in_must_have_left_them_out_themselves():
    config = EnvConfig(TALKING, 2, ignore_observations=("mission", "place"))
    for ignored in (("mission",), ("mission", "place")):
        envs = SerialEnvs([Talking] * 2, ignored=ignored)
        if len(ignored) == 2:
            with open_envs(config, 0, envs) as same:
                assert same is envs
        else:
            with pytest.raises(ConfigError, match=r"cannot change Birl's own environments"), open_envs(config, 0, envs):
                pass


def test_a_trained_policy_takes_observations_with_and_without_the_parts_that_are_left_out(tmp_path):
    settings = {"rollout_length": 8, "minibatches": 1, "epochs": 1, "hidden_sizes": (8,), "total_steps": 16}
    settings |= {"num_envs": 2, "eval_episodes": 2, "ignore_observations": ("mission", "camera/image"), "quiet": True}
    birl.train("ppo", TALKING, run_dir=str(tmp_path / "run"), **settings)
    raw = Talking().reset(seed=0)[0]
    policy = birl.load(tmp_path / "run")
    policy.save(tmp_path / "alone")
    flat = {"place": raw["place"], "camera/depth": raw["camera"]["depth"]}
    for loaded in (policy, birl.load(tmp_path / "alone")):
        assert loaded.act(raw)[0] == loaded.act(flat)[0]
        with pytest.raises(ValueError, match=r"the observation has a part 'wind'"):
            loaded.act(raw | {"wind": 1.0})
    assert len(birl.evaluate(tmp_path / "run", episodes=2).returns) == 2
    assert len(birl.evaluate(tmp_path / "alone", episodes=2, env=TALKING).returns) == 2
    path, film = birl.record(tmp_path / "run", tmp_path / "film.gif")
    assert path.exists()
    assert film.lengths.tolist() == [5]
