"""Search spaces: every point is a valid Config, and the user's changes are read as written."""

import dataclasses
from typing import Annotated

import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.lab.tuning.search_space import at_point, search_space
from birl.maths.schedules import linear
from birl.registry import ALGORITHMS, algorithm_named, supports, validate
from birl.run.configure import with_settings
from birl.search import Choices, LogRange, Range, draw
from birl.settings import declared_search, flat_settings
from birl.traced import settings

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (84, 84, 3), np.uint8)
DISCRETE = spaces.Discrete(4)
BOX = spaces.Box(-1, 1, (2,), np.float32)


def config_of(name, **settings):
    return with_settings(algorithm_named(name).Config(), settings)


def action_spaces_of(name):
    return [space for space in (DISCRETE, BOX) if type(space).__name__ in supports(name).actions]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_of_a_table_is_a_setting_and_every_value_fits_its_type(name):
    config = config_of(name)
    for setting, dimension in declared_search(type(config)).items():
        match dimension:
            case Choices(values=values):
                tried = values
            case Range(low=low, high=high) | LogRange(low=low, high=high):
                tried = (low, high)
        for value in tried:
            changed = with_settings(config, {setting: value})
            assert flat_settings(changed)[setting] == value


@pytest.mark.parametrize("observations", [VECTOR, IMAGE, DISCRETE, spaces.Dict({"a": VECTOR, "b": DISCRETE})])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_point_of_a_space_is_a_valid_config(name, observations):
    rng = np.random.default_rng(0)
    settings = [{}, {"num_envs": 3}, {"total_steps": 500}]
    if supports(name).recurrent:
        settings.append({"core": "lstm"})
    for given in settings:
        config = config_of(name, **given)
        for actions in action_spaces_of(name):
            space, base = search_space(config, observations, actions)
            for _ in range(25):
                validate(name, at_point(base, draw(space, rng)))


def test_what_the_task_does_not_use_is_left_out():
    config = config_of("ppo")
    space, _ = search_space(config, DISCRETE, DISCRETE)
    assert not {"log_std", "normalize_observations", "core_size"} & set(space)
    assert "hidden_sizes" in space
    space, _ = search_space(config, VECTOR, BOX)
    assert {"log_std", "normalize_observations"} <= set(space)
    space, _ = search_space(with_settings(config, {"encoder": "cnn", "core": "gru"}), IMAGE, DISCRETE)
    assert "hidden_sizes" not in space
    assert "core_size" in space
    compiled = dataclasses.replace(config, env=EnvConfig("CartPole-v1", backend="compiled"))
    assert "num_envs" not in search_space(compiled, VECTOR, DISCRETE)[0]
    assert "prioritized" not in search_space(config_of("dqn", core="lstm"), VECTOR, DISCRETE)[0]


def test_the_user_narrows_widens_and_fixes():
    search = [
        "learning_rate=1e-4:1e-2",
        "epochs=1:20",
        "--clip-range=0.1:0.4",
        "hidden_sizes=32 32,64",
        "optimizer=adam,rmsprop",
        "entropy_weight=0.0,linear:0.01:0",
        "target_kl=None,0.02",
        "share_trunk",
    ]
    space, config = search_space(config_of("ppo"), VECTOR, DISCRETE, search, ["discount=0.97", "gae-lambda"])
    assert space["learning_rate"] == LogRange(1e-4, 1e-2)
    assert space["epochs"] == Range(1, 20)
    assert space["epochs"].whole
    assert space["clip_range"] == Range(0.1, 0.4)
    assert space["hidden_sizes"] == Choices(((32, 32), (64,)))
    assert space["optimizer"] == Choices(("adam", "rmsprop"))
    assert space["entropy_weight"] == Choices((0.0, linear(0.01, 0.0)))
    assert space["target_kl"] == Choices((None, 0.02))
    assert space["share_trunk"] == Choices((False, True))
    assert not {"discount", "gae_lambda"} & set(space)
    assert config.discount == 0.97
    assert config.gae_lambda == config_of("ppo").gae_lambda


@pytest.mark.parametrize(
    ("search", "fix", "message"),
    [
        (["learning_rat=1:2"], [], "'learning_rat' to search; you may mean learning_rate"),
        (["seed=1:5"], [], "has no setting 'seed' to search"),
        (["epochs=1.5:3"], [], "epochs is a whole number; use whole numbers"),
        (["discount=0.99:0.9"], [], "is empty; write LOW:HIGH"),
        (["activation=1:2"], [], "activation is not a number; name its values"),
        (["value_weight"], [], "names no values; write --search value_weight=LOW:HIGH"),
        (["epochs="], [], "names no values; write --search epochs=VALUE"),
        (["activation=swish"], [], "activation 'swish' is not one of"),
        (["learning_rate=1_:2"], [], "cannot read schedule '1_:2'"),
        (["epochs=1:2"], ["epochs=3"], "contradict each other"),
    ],
)
def test_a_change_that_cannot_be_meant_is_refused(search, fix, message):
    with pytest.raises(ConfigError, match=message):
        search_space(config_of("ppo"), VECTOR, DISCRETE, search, fix)


def test_nothing_left_to_search_is_refused():
    config = config_of("ppo")
    with pytest.raises(ConfigError, match="no setting is left to search"):
        search_space(config, VECTOR, BOX, fix=list(declared_search(type(config))))


@settings
class Own:
    """A Config of the user's own, which says only of one setting what to search."""

    env: EnvConfig = EnvConfig()
    run: RunConfig = RunConfig()
    learning_rate: Annotated[float, LogRange(1e-4, 1e-2)] = 1e-3
    discount: float = 0.99


def test_an_own_algorithm_searches_what_its_settings_say_and_what_the_user_names():
    assert search_space(Own(), VECTOR, DISCRETE)[0] == {"learning_rate": LogRange(1e-4, 1e-2)}
    assert search_space(Own(), VECTOR, DISCRETE, ["discount=0.9:0.99"])[0].keys() == {"learning_rate", "discount"}
    with pytest.raises(ConfigError, match=r"no setting is left to search; .* add --search NAME=LOW:HIGH"):
        search_space(Own(), VECTOR, DISCRETE, fix=["learning_rate"])


def test_an_algorithm_searches_a_parts_settings_as_it_says_or_else_as_the_part_does():
    found = {name: declared_search(algorithm_named(name).Config) for name in ("ppo", "dqn", "sac", "td3")}
    assert found["dqn"]["update_ratio"] == Choices((0.125, 0.25, 0.5, 1.0))
    assert found["sac"]["update_ratio"] == Choices((0.25, 0.5, 1.0))
    assert found["sac"]["batch_size"] == found["dqn"]["batch_size"] == Choices((32, 64, 128, 256, 512))
    assert "normalize_rewards" in found["ppo"]
    assert "normalize_rewards" not in found["dqn"], "left out by Search(normalize_rewards=None)"
    assert "core_size" not in found["td3"], "a setting that TD3 has not"


def test_a_number_scales_a_schedule_and_minibatches_divide():
    config = at_point(config_of("a2c"), {"learning_rate": 1e-3})
    assert config.learning_rate == linear(1e-3, 0.0)
    config = at_point(config_of("ppo", num_envs=3), {"rollout_length": 32, "minibatches": 9})
    assert config.minibatches == 8
    config = at_point(config_of("ppo", num_envs=6, core="lstm"), {"rollout_length": 32, "minibatches": 16})
    assert config.minibatches == 6


def test_draws_are_spread_over_the_whole_range():
    rng = np.random.default_rng(1)
    logs = np.log10([LogRange(1e-5, 1e-1).draw(rng) for _ in range(2000)])
    assert logs.min() >= -5
    assert logs.max() <= -1
    assert np.mean(logs) == pytest.approx(-3, abs=0.1)
    whole = [Range(1, 4).draw(rng) for _ in range(400)]
    assert {type(value) for value in whole} == {int}
    assert set(whole) == {1, 2, 3, 4}
    assert {LogRange(1, 4).draw(rng) for _ in range(400)} == {1, 2, 3, 4}
    assert {Choices(("a", None)).draw(rng) for _ in range(50)} == {"a", None}


def test_the_same_generator_draws_the_same_points():
    space, _ = search_space(birl.ppo.Config(), VECTOR, DISCRETE)
    assert draw(space, np.random.default_rng(3)) == draw(space, np.random.default_rng(3))
