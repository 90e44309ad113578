"""Settings by flat names, as the command line has them."""

import dataclasses

import pytest

import birl
from birl import ALGORITHMS
from birl.cli.train_options import read_request, training_config
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.maths.schedules import Schedule
from birl.registry import algorithm_named
from birl.run.configure import configure, configured
from birl.settings import left_out_settings


def test_flat_names_change_the_preset_wherever_the_setting_is():
    config = configure("ppo", "CartPole-v1", total_steps=1e5, learning_rate=3e-4, num_envs=4, noop_max=3)
    preset = birl.preset("ppo", "CartPole-v1")
    assert (config.run.total_steps, config.learning_rate, config.env.num_envs, config.env.atari.noop_max) == (
        100_000,
        3e-4,
        4,
        3,
    )
    assert config.epochs == preset.epochs
    assert configure("ppo", "CartPole-v1") == preset


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, []),
        ({"total_steps": 500, "seed": 3}, ["--total-steps", "500", "--seed", "3"]),
        ({"hide_velocities": True, "core": "lstm"}, ["--hide-velocities", "--core", "lstm"]),
        (
            {"hidden_sizes": (8, 8), "learning_rate": "linear:1:0"},
            ["--hidden-sizes", "8", "8", "--learning-rate", "linear:1:0"],
        ),
    ],
)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_python_and_the_command_line_give_the_same_config_and_say_the_same(settings, words, env_id):
    assert configured("ppo", env_id, settings) == training_config("ppo", env_id, words)


def test_without_the_preset_a_task_begins_with_the_defaults(tmp_path):
    words = ["ppo", "CartPole-v1", "--no-preset", "--epochs", "7"]
    expected = birl.ppo.Config(EnvConfig("CartPole-v1"), epochs=7)
    request = read_request(words)
    assert configure("ppo", "CartPole-v1", preset=False, epochs=7) == expected == request.config
    assert request.notices == [configured("ppo", "CartPole-v1", {}, preset=False)[1]] == ["default settings"]
    env = EnvConfig("CartPole-v1", num_envs=2)
    assert configure("ppo", env, preset=False) == birl.ppo.Config(env)
    with birl.start("ppo", "CartPole-v1", preset=False, run_dir=tmp_path / "run", eval_episodes=1, quiet=True) as run:
        assert dataclasses.replace(run.config, run=RunConfig()) == birl.ppo.Config(EnvConfig("CartPole-v1"))
    assert expected != configure("ppo", "CartPole-v1", epochs=7)


def test_an_env_config_replaces_the_environment_of_the_preset():
    env = EnvConfig("CartPole-v1", num_envs=2)
    config = configure("ppo", env, epochs=3)
    assert config.env == env
    assert config == dataclasses.replace(birl.preset("ppo", "CartPole-v1"), env=env, epochs=3)


def test_an_unknown_setting_and_a_bad_value_are_refused_by_name():
    with pytest.raises(ConfigError, match="ppo has no setting 'lr'; you may mean learning_rate"):
        configure("ppo", "CartPole-v1", lr=1e-3)
    with pytest.raises(ConfigError, match="has no setting 'xyz'; birl train ppo --help lists them"):
        configure("ppo", "CartPole-v1", xyz=1e-3)
    with pytest.raises(ConfigError, match="total_steps must be a whole number"):
        configure("ppo", "CartPole-v1", total_steps=0.5)
    with pytest.raises(ConfigError, match="is not an environment's id"):
        configure("ppo", 3)
    with pytest.raises(ConfigError, match="an algorithm and an environment are needed"):
        configure("ppo")
    with pytest.raises(ConfigError, match="algorithm 'pop' is unknown"):
        configure("pop", "CartPole-v1")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_two_settings_have_the_same_flat_name(algorithm):
    config = algorithm_named(algorithm).Config()
    parts = [config, config.env.atari, *(part for part in vars(config).values() if dataclasses.is_dataclass(part))]
    kinds = [type(part) for part in parts if not isinstance(part, Schedule)]
    names = [field.name for kind in kinds for field in dataclasses.fields(kind) if field.name not in ("optimizer", "values")]
    names = [name for name in names if name not in left_out_settings(type(config))]
    assert len(names) == len(set(names)) > 50


def test_like_takes_the_settings_of_a_run_but_not_its_directory(tmp_path):
    settings = {"rollout_length": 16, "num_envs": 4, "minibatches": 1, "hidden_sizes": (8,), "eval_episodes": 1}
    birl.train("ppo", "CartPole-v1", total_steps=64, run_dir=tmp_path / "run", quiet=True, **settings)
    plain = configure("ppo", "CartPole-v1", total_steps=64, **settings)
    assert configure(like=tmp_path / "run") == plain
    assert configure(like=tmp_path / "run", seed=2) == dataclasses.replace(
        plain, run=dataclasses.replace(plain.run, seed=2)
    )
    assert configure("ppo", "Acrobot-v1", like=tmp_path / "run").env.id == "Acrobot-v1"
    with pytest.raises(ConfigError, match="has settings of ppo, not of a2c"):
        configure("a2c", like=tmp_path / "run")


@pytest.mark.parametrize("value", [16, "x", [64.5], {"vf": [3]}])
def test_a_wrong_value_of_an_optional_list_is_named(value):
    wanted = r"value_hidden_sizes.* must be a list \(each a whole number\) or None, not "
    with pytest.raises(ConfigError, match=wanted):
        configure("ppo", "CartPole-v1", value_hidden_sizes=value)


def test_wrappers_on_the_command_line_replace_those_of_another_run(tmp_path):
    wrapper = "gymnasium.wrappers:TimeAwareObservation"
    settings = {"rollout_length": 16, "num_envs": 4, "minibatches": 1, "hidden_sizes": (8,), "eval_episodes": 1}
    run_dir = tmp_path / "run"
    birl.train(
        "ppo", "CartPole-v1", total_steps=64, run_dir=run_dir, quiet=True, wrappers=[wrapper, wrapper], **settings
    )
    same = read_request(["--like", str(run_dir)])
    other = read_request(["--like", str(run_dir), "--wrapper", f"{wrapper},normalize_time=true"])
    assert [one.path for one in same.config.env.wrappers] == [wrapper, wrapper]
    assert [one.text() for one in other.config.env.wrappers] == [f"{wrapper},normalize_time=true"]
