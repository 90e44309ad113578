"""Settings: to JSON and back, and errors that say what to change."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import birl
from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig, Wrapper, from_json, function_named, require, to_json
from birl.envs.attributes import read_attribute
from birl.errors import on_command_line
from birl.maths.schedules import constant, exponential, linear, piecewise, schedule

UNUSUAL = ppo.Config(
    env=EnvConfig(
        "LunarLander-v3",
        num_envs=3,
        max_episode_steps=77,
        kwargs={"gravity": -9.5, "enable_wind": True, "mode": "hard", "n": 2},
    ),
    run=RunConfig(total_steps=123, seed=0, run_dir="runs/mine", stop_at_return=195.5, wandb="project"),
    learning_rate=linear(3e-4, 0.0),
    clip_range=piecewise((0.0, 0.5), (0.2, 0.1)),
    entropy_weight=exponential(0.1, 0.001),
    target_kl=0.01,
    max_grad_norm=None,
    hidden_sizes=(400, 300),
    core="lnlstm",
)


@pytest.mark.parametrize("config", [ppo.Config(), UNUSUAL], ids=["default", "unusual"])
def test_a_config_survives_json(config):
    text = json.dumps(to_json(config), allow_nan=False)
    assert from_json(ppo.Config, json.loads(text)) == config


def test_what_comes_back_has_the_types_that_went_in():
    back = from_json(ppo.Config, json.loads(json.dumps(to_json(UNUSUAL))))
    assert type(back.network.hidden_sizes) is tuple  # a list would not be hashable, and the config is a static argument
    assert type(back.learning_rate) is type(UNUSUAL.learning_rate)
    assert {name: type(value) for name, value in back.env.kwargs.items()} == {
        "gravity": float,
        "enable_wind": bool,
        "mode": str,
        "n": int,
    }
    hash(back)


def test_fields_left_out_have_their_defaults():
    assert from_json(ppo.Config, {"epochs": 7, "env": {"num_envs": 2}}) == ppo.Config(
        epochs=7, env=EnvConfig(num_envs=2)
    )


def test_an_int_may_stand_for_a_float_and_a_whole_float_for_an_int_and_nothing_else():
    assert from_json(ppo.Config, {"discount": 1, "target_kl": 1}) == ppo.Config(discount=1.0, target_kl=1.0)
    assert type(from_json(ppo.Config, {"discount": 1}).discount) is float
    assert type(from_json(ppo.Config, {"epochs": 4.0}).epochs) is int
    for wrong in (1.5, True, "1", None, [1]):
        with pytest.raises(ConfigError, match=r"config\.epochs must be a whole number, not"):
            from_json(ppo.Config, {"epochs": wrong})


ILL_TYPED = [
    ({"env": {"id": 3}}, r"env\.id must be a string, not 3"),
    ({"run": 3}, r"run must be a RunConfig, not 3"),
    ({"env": 3}, r"env must be an EnvConfig, not 3; write it like 'CartPole-v1'"),
    (
        {"env": {"kwargs": {"a": [1]}}},
        r"env\.kwargs\.a must be True or False, a whole number, a number or a string, not \[1\]",
    ),
    ({"env": {"kwargs": {1: 2}}}, r"env\.kwargs has the key 1; use strings"),
    ({"hidden_sizes": 64}, r"hidden_sizes must be a list, not 64"),
    ({"hidden_sizes": [64, "64"]}, r"hidden_sizes\[1\] must be a whole number, not '64'"),
    ({"core": "rnn"}, r"core 'rnn' is not one of feedforward, lstm, lnlstm, gru"),
    ({"activation": "swish"}, r"activation 'swish' is not one of tanh, relu"),
    ({"activation": ["relu"]}, r"activation \['relu'\] is not one of tanh, relu"),
    ({"discount": True}, r"discount must be a number, not True"),
    ({"discount": None}, r"discount must be a number, not None"),
    ({"discount": float("nan")}, r"discount nan must be a finite number"),
    ({"discount": 10**400}, r"discount 1000000.* must be a finite number"),
    ({"target_kl": "0.1"}, r"target_kl must be a number or None, not '0.1'"),
    ({"epochs": float("inf")}, r"epochs must be a whole number, not inf"),
    ({"normalize_rewards": 1}, r"normalize_rewards must be True or False, not 1"),
    (
        {"learning_rate": "fast"},
        r"learning_rate: cannot read schedule 'fast'.* write it like one of 3e-4, linear:3e-4:0",
    ),
    ({"learning_rate": {"kind": "linear", "values": [1.0]}}, r"learning_rate .*a linear schedule has 2 values"),
    ({"learning_rate": {"kind": "linear"}}, r"learning_rate .*missing.*values"),
    (
        {"learning_rate": {"kind": "cosine", "values": [1.0]}},
        r"learning_rate\.kind 'cosine' is not one of constant, linear",
    ),
    (
        {"learning_rate": len},
        r"learning_rate: len raised TypeError \(object of type 'float' has no len\(\)\) at progress 0; "
        r"it must give a finite number for every progress from 0 to 1$",
    ),
    ({"discount": len}, r"discount must be a number, not <built-in function len>, a function, which can be neither"),
]


@pytest.mark.parametrize(("values", "message"), ILL_TYPED, ids=[str(values)[:60] for values, _ in ILL_TYPED])
def test_an_ill_typed_field_is_refused_when_the_config_is_made_as_it_is_when_it_is_read(values, message):
    with pytest.raises(ConfigError, match="^" + message):
        ppo.Config(**values)
    with pytest.raises(ConfigError, match=r"^config\." + message):
        from_json(ppo.Config, values)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"run": RunConfig(total_steps=2e3)}, {"run": RunConfig(total_steps=2000)}),
        ({"run": RunConfig(run_dir=Path("runs/mine"))}, {"run": RunConfig(run_dir="runs/mine")}),
        ({"run": {"seed": 3}}, {"run": RunConfig(seed=3)}),
        ({"env": "Acrobot-v1"}, {"env": EnvConfig("Acrobot-v1")}),
        ({"env": EnvConfig(num_envs=np.int64(3))}, {"env": EnvConfig(num_envs=3)}),
        ({"env": EnvConfig(kwargs={"gravity": np.float32(-9.5)})}, {"env": EnvConfig(kwargs={"gravity": -9.5})}),
        ({"hidden_sizes": [32, 16.0]}, {"hidden_sizes": (32, 16)}),
        ({"hidden_sizes": np.array([32, 16])}, {"hidden_sizes": (32, 16)}),
        ({"discount": np.float64(0.5)}, {"discount": 0.5}),
        ({"discount": jnp.float32(0.5)}, {"discount": 0.5}),
        ({"normalize_rewards": np.bool_(True)}, {"normalize_rewards": True}),
        ({"learning_rate": "linear:1e-3:0"}, {"learning_rate": linear(1e-3, 0)}),
        ({"learning_rate": "1e-3"}, {"learning_rate": 1e-3}),
        ({"clip_range": linear(np.float64(0.5), 0.0)}, {"clip_range": linear(0.5, 0.0)}),
        ({"clip_range": abs}, {"clip_range": schedule(abs)}),
        (
            {"clip_range": {"kind": "piecewise", "values": [1, 0], "points": np.array([0, 1])}},
            {"clip_range": piecewise((0, 1), (1, 0))},
        ),
    ],
    ids=str,
)
def test_what_is_meant_is_clear_so_it_is_taken_and_survives_json(given, meant):
    config = ppo.Config(**given)
    assert repr(config) == repr(ppo.Config(**meant))
    hash(config)
    assert from_json(ppo.Config, json.loads(json.dumps(to_json(config), allow_nan=False))) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, r"config has no field epoch; it has .*epochs"),
        ({"env": {"name": "x"}}, r"config\.env has no field name; it has .*id"),
        ([], r"config must be a Config, not \[\]"),
    ],
    ids=str,
)
def test_what_is_stored_and_is_no_config_is_named_with_its_path(values, message):
    with pytest.raises(ConfigError, match=message):
        from_json(ppo.Config, values)


def test_paths_become_strings_and_tuples_lists():
    @dataclasses.dataclass
    class Indices:
        home: Path
        others: tuple[int, ...]

    assert to_json(Indices(Path("a/b"), (1, 2))) == {"home": "a/b", "others": [1, 2]}


def test_require_raises_a_value_error_with_the_message():
    require(True, "unused")
    with pytest.raises(ValueError, match="use 2"):
        require(False, "use 2")


def test_configs_are_frozen_so_that_a_run_cannot_change_its_own():
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNUSUAL.run.seed = 5


def test_schedules_of_every_kind_survive_json():
    lines = piecewise((0.0, 1.0), (1.0, 0.0))
    for known in (constant(0.1), linear(1.0, 0.1, 0.5), exponential(1.0, 0.1), lines, schedule(lambda x: x**0.3)):
        assert from_json(type(known), json.loads(json.dumps(to_json(known)))) == known


def test_a_damaged_schedule_of_many_points_gives_a_short_message():
    stored = to_json(schedule(abs))
    with pytest.raises(ConfigError, match="does not fit: a piecewise schedule has 1000 values") as refused:
        from_json(ppo.Config, {"learning_rate": stored | {"points": stored["points"][1:]}})
    assert len(str(refused.value)) < 400


def test_a_stored_option_that_is_gone_is_ignored_where_it_was_off_and_refused_where_it_was_on():
    stored = to_json(EnvConfig("Acrobot-v1"))
    assert from_json(EnvConfig, stored | {"overlap": False}) == EnvConfig("Acrobot-v1")
    with pytest.raises(
        ConfigError, match=r"config\.overlap is True: this option was removed; .* train again without it"
    ):
        from_json(EnvConfig, stored | {"overlap": True})


class Table:
    def __repr__(self):
        return "  a  b\n" * 5000


@pytest.mark.parametrize("value", [np.zeros((1000, 3)), Table(), [0.5] * 5000], ids=["array", "table", "list"])
@pytest.mark.parametrize("make", [EnvConfig, lambda **given: Wrapper("m:C", **given)], ids=["env", "wrapper"])
def test_a_large_keyword_argument_is_cut_in_the_message_which_names_the_remedy(make, value):
    with pytest.raises(
        ConfigError, match=r"use make_env=lambda: MyEnv\(table=...\), or give the name of a file"
    ) as caught:
        make(kwargs={"table": value})
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)
    with (
        on_command_line(),
        pytest.raises(ConfigError, match=r"use a function of yours as the id, my_module:make_env, or"),
    ):
        make(kwargs={"table": value})


@pytest.mark.parametrize(
    "use",
    [
        lambda value: birl.configure("ppo", "CartPole-v1", learning_rate=value),
        lambda value: birl.configure("ppo", "CartPole-v1", core=value),
        lambda value: birl.configure("ppo", value),
        lambda value: birl.configure(value, "CartPole-v1"),
        lambda value: birl.train(value),
        lambda value: birl.train("ppo", make_env=value),
        lambda value: birl.evaluate("runs/mine", env=value),
        lambda value: birl.record("runs/mine", make_env=value),
        lambda value: birl.check_env(value),
        lambda value: read_attribute("level", value),
    ],
)
def test_a_large_value_is_cut_in_every_message(use):
    with pytest.raises(ConfigError) as caught:
        use(Table())
    assert len(str(caught.value)) < 500


def test_a_function_of_another_process_is_passed_again_in_python_and_named_on_the_command_line():
    with pytest.raises(ConfigError, match=r"pass it again as make_env=, or put it into a module that can be imported$"):
        function_named("local:gone", "env.id")
    with on_command_line(), pytest.raises(ConfigError, match=r"imported and name it: --env my_module:make_env$"):
        function_named("local:gone", "env.id")
