"""Settings by flat name: each stands in one place of a Config, and is found and changed there."""

import copy
import dataclasses
import json
import pickle
import types
import typing
from dataclasses import dataclass, field, replace

import jax
import pytest

import birl
from birl.algos import dqn, ppo, sac, trpo
from birl.cli.train_options import training_config
from birl.config import AtariConfig, ConfigError, EnvConfig, RunConfig, from_json, from_stored, to_json
from birl.limits import Limit
from birl.parts import NetworkConfig, NormalizeConfig, OptimizerConfig
from birl.registry import algorithm_named
from birl.settings import FLAT_PARTS, dotted_settings, flat_settings, left_out_settings, places_of, plain, replaced
from birl.settings import changed as changed_settings


@dataclass(frozen=True)
class Inner:
    depth: int = 3


@dataclass(frozen=True)
class Part:
    width: int = 2
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Config:
    id: str = "none"
    part: Part = field(default_factory=Part)
    rate: float = 0.5


@dataclass(frozen=True)
class Ambiguous:
    width: int = 1
    part: Part = field(default_factory=Part)


def test_every_setting_has_a_flat_and_a_dotted_name():
    assert flat_settings(Config()) == {"rate": 0.5, "width": 2, "depth": 3}
    assert dotted_settings(Config()) == {"id": "none", "rate": 0.5, "width": 2, "depth": 3}
    real = dotted_settings(ppo.Config())
    assert {"env.num_envs", "env.atari.frame_skip", "run.seed", "hidden_sizes", "max_grad_norm", "epochs"} < real.keys()
    assert places_of(Config)["depth"].kind is Inner


def test_settings_are_replaced_where_they_stand_and_nothing_else_is():
    changed = replaced(Config(), {"depth": 7, "rate": 0.25})
    assert changed == Config(part=Part(inner=Inner(7)), rate=0.25)
    assert replaced(Config(), {}) == Config()
    with pytest.raises(KeyError, match="height"):
        replaced(Config(), {"height": 1})


def test_a_name_in_two_parts_is_a_mistake_in_the_config():
    with pytest.raises(TypeError, match="Ambiguous has width in two places"):
        places_of(Ambiguous)


every_algorithm = pytest.mark.parametrize("algorithm", birl.ALGORITHMS)


@every_algorithm
def test_flat_names_of_an_algorithm_are_unambiguous_and_its_parts_are_known(algorithm):
    Config = algorithm_named(algorithm).Config
    config = Config(env=EnvConfig("ALE/Pong-v5", atari=AtariConfig(frame_skip=7)))
    assert flat_settings(config)["frame_skip"] == 7
    kinds = {place.kind for place in places_of(Config).values()} - {Config}
    assert kinds - FLAT_PARTS == {EnvConfig, AtariConfig, RunConfig}
    own = {
        field.name for field in dataclasses.fields(config) if not dataclasses.is_dataclass(getattr(config, field.name))
    }
    assert own <= {name for name, place in places_of(Config).items() if not place.path}


def kinds_of(hint: object) -> frozenset[object]:
    """The types of a setting, but None; a choice of names is a choice in all algorithms."""
    several = typing.get_origin(plain(hint)) in (typing.Union, types.UnionType)
    kinds = typing.get_args(plain(hint)) if several else (plain(hint),)
    return frozenset(typing.get_origin(kind) or kind for kind in kinds) - {types.NoneType}


def test_a_name_means_the_same_in_all_algorithms():
    found: dict[str, set[object]] = {}
    for algorithm in birl.ALGORITHMS:
        for name, place in places_of(algorithm_named(algorithm).Config).items():
            limits = tuple(limit.text for limit in place.about(Limit))
            found.setdefault(name, set()).add((kinds_of(place.hint), limits, place.section))
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}


# Configs made with flat names, with parts, or with both


@every_algorithm
def test_a_config_takes_the_settings_of_its_parts_by_flat_name(algorithm):
    Config = algorithm_named(algorithm).Config
    default = Config()
    for name, place in places_of(Config).items():
        value = flat_settings(default).get(name)
        if type(value) is bool and place.path[:1] not in (("env",), ("run",)):
            changed = Config(**{name: not value})
            assert changed == replaced(default, {name: not value}) == replace(default, **{name: not value})
            assert changed != default
            assert flat_settings(changed) == flat_settings(default) | {name: not value}


def test_flat_names_change_the_algorithms_own_part_and_a_part_takes_its_place():
    assert dqn.Config(hidden_sizes=(8,)).network == NetworkConfig(hidden_sizes=(8,), activation="relu")
    assert dqn.Config(network=NetworkConfig(hidden_sizes=(8,))).network.activation == "tanh", "as the part has it"
    assert ppo.Config(num_envs=3, frame_skip=2, seed=4) == ppo.Config(
        EnvConfig(num_envs=3, atari=AtariConfig(frame_skip=2)), RunConfig(seed=4)
    )


def test_a_flat_name_changes_a_part_that_is_given_too():
    network = NetworkConfig(core="lstm", hidden_sizes=(5,))
    assert ppo.Config(network=network, hidden_sizes=(7,)).network == replace(network, hidden_sizes=(7,))
    assert network.hidden_sizes == (5,)


def test_optimizer_is_the_name_of_a_rule_or_the_part_with_all_of_it():
    mine = OptimizerConfig("rmsprop", optimizer_epsilon=1e-3)
    assert ppo.Config(gradient=mine).gradient == mine
    assert ppo.Config(optimizer="rmsprop").gradient == OptimizerConfig("rmsprop", max_grad_norm=0.5), "PPO's norm"
    with pytest.raises(ConfigError, match=r"^optimizer 'sgd' is not one of adam, rmsprop, rmsprop-tf$"):
        ppo.Config(optimizer="sgd")
    for wrong in (3, None):
        with pytest.raises(ConfigError, match=f"^optimizer {wrong} is not one of adam, rmsprop, rmsprop-tf$"):
            ppo.Config(optimizer=wrong)


def test_replace_takes_parts_and_flat_names_and_keeps_all_others():
    config = ppo.Config(hidden_sizes=(3,), max_grad_norm=7.0, optimizer_epsilon=1e-3, seed=5, epochs=9)
    changed = replace(config, hidden_sizes=(4,), core="gru", num_envs=2, discount=0.5)
    assert flat_settings(changed) == flat_settings(config) | {
        "hidden_sizes": (4,), "core": "gru", "num_envs": 2, "discount": 0.5
    }  # fmt: skip
    assert flat_settings(replace(config, optimizer="rmsprop")) == flat_settings(config) | {"optimizer": "rmsprop"}
    assert replace(config, gradient=OptimizerConfig()).gradient == OptimizerConfig()
    assert replace(config, network=replace(config.network, core="gru")) == replace(config, core="gru")
    assert changed_settings(config, optimizer="rmsprop") == replace(config, optimizer="rmsprop")


def test_a_wrong_value_or_name_is_refused_by_its_flat_name():
    with pytest.raises(ConfigError, match=r"^hidden_sizes must be a list, not 'x'$"):
        ppo.Config(hidden_sizes="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden_size'"):
        ppo.Config(hidden_size=(8,))
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden_size'"):
        replace(ppo.Config(), hidden_size=(8,))
    with pytest.raises(ConfigError, match=r"^network must be a NetworkConfig, not 'mlp'$"):
        ppo.Config(network="mlp")


@pytest.mark.parametrize(("algorithm", "name", "part"), [(trpo, "share_trunk", "network"), (sac, "core", "network")])
def test_a_setting_that_an_algorithm_leaves_out_of_a_part_is_refused_everywhere(algorithm, name, part):
    called = algorithm.__name__.rpartition(".")[2]
    value = {"share_trunk": True, "core": "lstm"}[name]
    assert left_out_settings(algorithm.Config)[name] == part
    assert name not in flat_settings(algorithm.Config()) | to_json(algorithm.Config())
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        algorithm.Config(**{name: value})
    with pytest.raises(ConfigError, match=f"^{called} has no setting '{name}'; "):
        birl.configure(called, "Pendulum-v1", **{name: value})
    with pytest.raises(ConfigError, match=f"^config has no field {name}; it has "):
        from_json(algorithm.Config, {name: value})
    with pytest.raises(ConfigError, match=f"^{called} has no option --{name.replace('_', '-')}; "):
        training_config(called, "Pendulum-v1", [f"--{name.replace('_', '-')}"])
    hidden = algorithm.Config(**{part: NetworkConfig(**{name: value})})
    with pytest.raises(ConfigError, match=f"^{part}.{name} {value!r}: {called} has no setting {name}; leave it out$"):
        algorithm.validate(hidden)


# Files, copies and compiled functions


def test_a_file_has_the_settings_of_parts_flat_as_version_0_6_0_wrote_them():
    old = {
        "env": {"id": "CartPole-v1", "num_envs": 2}, "run": {"total_steps": 500}, "hidden_sizes": [16], "core": "lstm",
        "normalize_observations": True, "optimizer": "rmsprop", "max_grad_norm": None, "squash_actions": False,
        "learning_rate": {"kind": "linear", "values": [1e-3, 0.0], "points": [1.0]}, "epochs": 2,
    }  # fmt: skip
    config = from_stored(ppo.Config, old)
    assert config.network == NetworkConfig(hidden_sizes=(16,), core="lstm")
    assert config.normalize == NormalizeConfig(normalize_observations=True)
    assert config.gradient == OptimizerConfig("rmsprop")
    assert config.actions.scale_actions is False, "as before there was such a setting"
    written = to_json(config)
    assert {name: written[name] for name in old.keys() - {"env", "run"}} == {
        name: old[name] for name in old.keys() - {"env", "run"}
    }
    assert not {"network", "actions", "normalize"} & written.keys()
    with pytest.raises(ConfigError, match=r"^config has no field network; it has activation, "):
        from_json(ppo.Config, {"network": {"hidden_sizes": [16]}})


@every_algorithm
def test_configs_are_equal_have_one_hash_and_survive_copies_pickles_and_files(algorithm):
    Config = algorithm_named(algorithm).Config
    config = Config(num_envs=3, normalize_observations=True, discount=0.5)
    again = [copy.copy(config), copy.deepcopy(config), from_json(Config, json.loads(json.dumps(to_json(config))))]
    again.append(pickle.loads(pickle.dumps(config)))  # noqa: S301
    assert all(other == config and hash(other) == hash(config) for other in again)
    assert config != replace(config, normalize_observations=False)
    assert "_whole" not in {field.name for field in dataclasses.fields(config)} | vars(config).keys()


def test_in_a_compiled_function_sizes_are_constants_and_rates_are_traced_in_every_part():
    seen = []

    @jax.jit
    def read(config):
        seen.append((config.network.hidden_sizes, config.replay.batch_size, config.replay.update_ratio))
        return config.learning_rate * config.gradient.max_grad_norm, config.replay.priority_exponent

    product, exponent = read(dqn.Config(hidden_sizes=(7,), learning_rate=0.5, max_grad_norm=4.0))
    assert (float(product), float(exponent)) == (2.0, pytest.approx(0.6))
    assert float(read(dqn.Config(hidden_sizes=(7,), learning_rate=0.25, max_grad_norm=4.0))[0]) == 1.0
    assert seen == [((7,), 64, 0.25)], "compiled once"
    read(dqn.Config(hidden_sizes=(8,)))
    assert seen[1:] == [((8,), 64, 0.25)]
