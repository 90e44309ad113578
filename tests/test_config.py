"""Settings: to JSON and back, and errors that say what to change."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig, from_json, require, to_json, validate_run
from birl.maths.schedules import constant, exponential, linear, piecewise

UNUSUAL = ppo.Config(
    env=EnvConfig(
        "LunarLander-v3", num_envs=3, max_episode_steps=77, kwargs={"gravity": -9.5, "enable_wind": True, "mode": "hard", "n": 2}
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
    assert type(back.hidden_sizes) is tuple  # a list would not be hashable, and the config is a static argument
    assert type(back.learning_rate) is type(UNUSUAL.learning_rate)
    assert {name: type(value) for name, value in back.env.kwargs.items()} == {"gravity": float, "enable_wind": bool, "mode": str, "n": int}
    hash(back)


def test_fields_left_out_have_their_defaults():
    assert from_json(ppo.Config, {"epochs": 7, "env": {"num_envs": 2}}) == ppo.Config(epochs=7, env=EnvConfig(num_envs=2))


def test_an_int_may_stand_for_a_float_but_nothing_else_for_an_int():
    assert from_json(ppo.Config, {"discount": 1, "target_kl": 1}) == ppo.Config(discount=1.0, target_kl=1.0)
    assert type(from_json(ppo.Config, {"discount": 1}).discount) is float
    for wrong in (1.0, True, "1"):
        with pytest.raises(ConfigError, match=r"config\.epochs must be int"):
            from_json(ppo.Config, {"epochs": wrong})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, r"config has no field epoch; it has .*epochs"),
        ({"env": {"name": "x"}}, r"config\.env has no field name; it has .*id"),
        ({"env": "CartPole-v1"}, r"config\.env must be an object, not 'CartPole-v1'"),
        ({"env": {"id": 3}}, r"config\.env\.id must be str, not 3"),
        ({"env": {"kwargs": {"a": [1]}}}, r"config\.env\.kwargs\.a must be bool, not \[1\]"),
        ({"hidden_sizes": 64}, r"config\.hidden_sizes must be a list, not 64"),
        ({"hidden_sizes": [64, "64"]}, r"config\.hidden_sizes\[1\] must be int, not '64'"),
        ({"core": "rnn"}, r"config\.core 'rnn' is not one of feedforward, lstm, lnlstm, gru"),
        ({"discount": True}, r"config\.discount must be float, not True"),
        ({"discount": None}, r"config\.discount must be float, not None"),
        ({"target_kl": "0.1"}, r"config\.target_kl must be float, not '0.1'"),
        ({"learning_rate": "fast"}, r"config\.learning_rate must be float, not 'fast'"),
        ({"learning_rate": {"kind": "linear", "values": [1.0]}}, r"config\.learning_rate .*a linear schedule has 2 values"),
        ({"learning_rate": {"kind": "linear"}}, r"config\.learning_rate .*missing.*values"),
        ({"learning_rate": {"kind": "cosine", "values": [1.0]}}, r"config\.learning_rate\.kind 'cosine' is not one of constant, linear"),
        ([], r"config must be an object, not \[\]"),
    ],
    ids=str,
)
def test_an_ill_typed_field_is_named_with_its_path_its_value_and_what_it_must_be(values, message):
    with pytest.raises(ConfigError, match=message):
        from_json(ppo.Config, values)


def test_paths_become_strings_and_tuples_lists():
    @dataclasses.dataclass
    class Places:
        home: Path
        others: tuple[int, ...]

    assert to_json(Places(Path("a/b"), (1, 2))) == {"home": "a/b", "others": [1, 2]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": 0}, "total_steps 0 must lie between 1 and 2,147,483,647"),
        ({"total_steps": 2**31}, "total_steps 2147483648 must lie between 1 and 2,147,483,647"),
        ({"seed": -1}, "seed -1 must lie between 0 and 2,147,483,647"),
        ({"eval_every": -1}, "eval_every -1 must be 0 (only at the end) or more"),
        ({"eval_episodes": 0}, "eval_episodes 0 must be at least 1"),
        ({"checkpoint_every": -5}, "checkpoint_every -5 must be 0 (only at the end) or more"),
        ({"keep_checkpoints": 0}, "keep_checkpoints 0 must be at least 1"),
        ({"log_every": 0}, "log_every 0 must be at least 1"),
        ({"stop_at_return": 475.0}, "stop_at_return 475.0 needs evaluations; set eval_every"),
    ],
    ids=str,
)
def test_run_settings_that_cannot_work_are_named_with_their_value_and_a_remedy(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        validate_run(dataclasses.replace(RunConfig(), **changes))


def test_run_settings_that_work_pass_and_seed_0_is_one():
    validate_run(RunConfig(seed=0, total_steps=2**31 - 1, eval_every=1000, stop_at_return=475.0, checkpoint_every=0))


def test_require_raises_a_value_error_with_the_message():
    require(True, "unused")
    with pytest.raises(ValueError, match="use 2"):
        require(False, "use 2")


def test_configs_are_frozen_so_that_a_run_cannot_change_its_own():
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNUSUAL.run.seed = 5


def test_schedules_of_every_kind_survive_json():
    for schedule in (constant(0.1), linear(1.0, 0.1, 0.5), exponential(1.0, 0.1), piecewise((0.0, 1.0), (1.0, 0.0))):
        assert from_json(type(schedule), json.loads(json.dumps(to_json(schedule)))) == schedule


def test_a_stored_option_that_is_gone_is_ignored_where_it_was_off_and_refused_where_it_was_on():
    stored = to_json(EnvConfig("Acrobot-v1"))
    assert from_json(EnvConfig, stored | {"overlap": False}) == EnvConfig("Acrobot-v1")
    with pytest.raises(ConfigError, match=r"config\.overlap is True: this option is gone; .* train again without it"):
        from_json(EnvConfig, stored | {"overlap": True})
