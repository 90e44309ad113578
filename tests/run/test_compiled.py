"""Runs in compiled environments are evaluated, played and recorded, and obey the same rules."""

import dataclasses
from pathlib import Path

import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.algos import ppo
from birl.config import CLASSIC, ConfigError, EnvConfig
from birl.envs.make import make_env
from birl.presets import all_presets
from birl.registry import supports, validate
from birl.run.configure import configured
from birl.run.record import play, record
from birl.run.trust import Consent
from birl.settings import flat_settings
from tests.envs.compiled.counting import Pulled
from tests.envs.own import Walk
from tests.run.processes import call_well, write_untrained

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # JAX's warning of the ffmpeg that reads the video back
HOME = "tests.envs.compiled.counting"
SMALL = {"total_steps": 64, "num_envs": 2, "rollout_length": 16, "minibatches": 2, "epochs": 1, "eval_episodes": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of policies that were not trained, by the name of the environment."""
    directory = tmp_path_factory.mktemp("compiled")
    ids = {name: f"{HOME}:{name}" for name in ("Pulled", "Obedient", "Counting")} | {"CartPole-v1": "CartPole-v1"}
    for name, env_id in ids.items():
        config = ppo.Config(EnvConfig(env_id, 2, "compiled"), hidden_sizes=(8,))
        write_untrained(directory / name, config)
    return {name: directory / name for name in ids}


def test_cartpole_is_evaluated_filmed_and_played_in_gymnasiums(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    path, twin = runs["CartPole-v1"], EnvConfig("CartPole-v1")
    np.testing.assert_array_equal(birl.evaluate(path, 5).returns, birl.evaluate(path, 5, env=twin).returns)
    filmed = [record(path, tmp_path / "film.mp4", 2, env=env)[1].returns for env in (None, twin)]
    np.testing.assert_array_equal(*filmed)
    np.testing.assert_array_equal(play(path, 2).returns, filmed[0])


def test_an_environment_that_only_jax_has_is_evaluated_filmed_and_played_itself(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    evaluation = birl.evaluate(runs["Pulled"], 3)
    assert evaluation.lengths.tolist() == [20] * 3
    assert (evaluation.returns < 0).all()
    assert not np.any(evaluation.cut)
    film, filmed = record(runs["Pulled"], tmp_path / "film.mp4", 2)
    reader = imageio_ffmpeg.read_frames(film)
    assert next(reader)["fps"] == 12.0, "as the environment says"
    assert sum(1 for _ in reader) == 40
    np.testing.assert_array_equal(play(runs["Pulled"], 2).returns, filmed.returns)
    assert record(runs["Pulled"], tmp_path / "short.mp4", max_steps=7)[1].lengths.tolist() == [7]
    with pytest.raises(ConfigError, match=r"cannot be drawn: it has no render\(state\)"):
        record(runs["Counting"], tmp_path / "none.mp4")


@pytest.mark.parametrize("deterministic", [True, False])
def test_only_allowed_actions_are_chosen(deterministic, runs):
    evaluation = birl.evaluate(runs["Obedient"], 6, deterministic=deterministic)
    assert evaluation.returns.tolist() == [4.0] * 6
    policy = birl.load(runs["Obedient"])
    env = make_env(EnvConfig(f"{HOME}:Obedient", backend="compiled"))
    observation, info = env.reset(seed=0)
    rewards, ended, memory = [], False, None
    while not ended:
        action, memory = policy.act(observation.astype(np.float32), memory, info["action_mask"])
        observation, reward, _, ended, info = env.step(action)
        rewards.append(reward)
    assert rewards == [1.0] * 4


def test_a_policy_of_a_compiled_run_can_be_played_in_any_environment_of_the_same_spaces(runs):
    module = "gymnasium.envs.classic_control.cartpole"
    expected = birl.evaluate(runs["CartPole-v1"], 3).returns
    for env in (f"{module}:CartPole-v1", f"{module}:CartPoleEnv"):
        found = birl.evaluate(runs["CartPole-v1"], 3, env=env, max_steps=500).returns
        np.testing.assert_array_equal(found, expected)
    assert "return" in call_well("eval", str(runs["CartPole-v1"]), "--episodes", "1", "--env", f"{module}:CartPole-v1")
    other = birl.evaluate(runs["Pulled"], 1, env=f"{HOME}:Pulled")
    np.testing.assert_array_equal(other.returns, birl.evaluate(runs["Pulled"], 1).returns)
    with pytest.raises(ConfigError, match="'CartPol-v1' is not registered; you may mean CartPole-v1"):
        birl.evaluate(runs["CartPole-v1"], 1, env="CartPol-v1")


def test_a_class_of_this_script_is_trained_in_and_evaluated(tmp_path):
    class Guess:
        """The reward is 1 for the action that the observation shows."""

        observation_space = spaces.Discrete(3)
        action_space = spaces.Discrete(3)
        max_episode_steps = 5

        def reset(self, key):
            shown = jax.random.randint(key, (), 0, 3)
            return shown, shown

        def step(self, state, action, key):
            shown = jax.random.randint(key, (), 0, 3)
            return shown, shown, jnp.float32(action == state), False, False

    settings = SMALL | {"run_dir": tmp_path / "run", "quiet": True}
    summary = birl.train("ppo", make_env=Guess, backend="compiled", **settings)
    assert summary["env_steps"] >= 64
    again = birl.evaluate(tmp_path / "run", 2, 1, make_env=Guess)
    assert again.returns.tolist() == summary["evaluation"]["returns"]
    resumed = birl.resume(tmp_path / "run", 128, make_env=Guess, quiet=True)
    assert resumed["env_steps"] >= 128


def test_a_class_of_the_other_kind_is_refused_with_the_backend_to_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"is a compiled environment; use backend compiled \(--backend compiled\)"):
        birl.train("ppo", make_env=Pulled, quiet=True)
    with pytest.raises(ConfigError, match="is a Gymnasium environment and not a compiled one; use backend gymnasium"):
        birl.train("ppo", make_env=Walk, backend="compiled", quiet=True)
    with pytest.raises(ConfigError, match=r"make_env .* is not a function; pass the class"):
        birl.train("ppo", make_env=Pulled(), backend="compiled", quiet=True)


def test_presets_apply_to_the_compiled_environments_unchanged():
    presets = [one for one in all_presets() if one.config.env.id in CLASSIC and supports(one.algorithm).compiled]
    assert {one.config.env.id for one in presets} == set(CLASSIC)
    for preset in presets:
        config, notice = configured(preset.algorithm, preset.config.env.id, _switches(preset) | {"backend": "compiled"})
        expected = dataclasses.replace(preset.config, env=dataclasses.replace(preset.config.env, backend="compiled"))
        assert config == expected
        assert notice.startswith("preset ")
        validate(preset.algorithm, config)


def _switches(preset):
    """The settings that choose this preset among those of its task."""
    config = preset.config
    flat = flat_settings(config)
    core = {"core": flat["core"]} if "core" in flat else {}
    return {"hide_velocities": config.env.hide_velocities} | core


def test_a_strangers_run_may_name_a_compiled_environment_but_no_module():
    """An id of a suite imports a package of Birl's own table, as ids of other packages do."""
    for env_id in ("birl/MemoryGrid-v0", "gymnax/CartPole-v1", "brax/ant", "CartPole-v1"):
        env = EnvConfig(env_id, backend="compiled")
        assert Consent(Path("run"), own=False).env(env) == (env, [])
    for env_id in (f"{HOME}:Pulled", "os:gymnax/CartPole-v1", "gymnax/os:system"):
        env = EnvConfig(env_id, backend="compiled")
        with pytest.raises(ConfigError, match="would import the module"):
            Consent(Path("run"), own=False).env(env)
        assert Consent(Path("run"), own=False, trust=True).env(env) == (env, [])
    texts = EnvConfig("brax/ant", kwargs={"backend": "mjx"})
    with pytest.raises(ConfigError, match="would pass text to brax/ant"):
        Consent(Path("run"), own=False).env(texts)
