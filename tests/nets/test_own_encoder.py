"""Encoders of the user's own: what they may return, and what follows them."""

import re

import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl.accel.setup import MOST_PRODUCTS_OF_ONE_THREAD, work_size
from birl.algos import a3c, acer, dqn, ppo, sac
from birl.config import ConfigError, EnvConfig, from_json, to_json
from birl.nets.encoders import OwnEncoder, make_encoder
from tests.nets import own_encoders

BOX = spaces.Box(-1, 1, (4,), np.float32)
HERE = "tests.nets.own_encoders"


def make(name, space=BOX, hidden_sizes=(), layer_norm=False):
    return make_encoder(np.random.default_rng(0), space, f"{HERE}:{name}", hidden_sizes, "tanh", layer_norm)


def test_its_features_are_the_modules_and_have_its_parameters():
    encoder, width = make("make_squares")
    module, _ = own_encoders.make_squares(np.random.default_rng(0), BOX)
    observations = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    assert width == 6
    np.testing.assert_array_equal(encoder(observations), module(observations))
    assert len(jax.tree.leaves(encoder)) == len(jax.tree.leaves(module.layer))  # the factor is no parameter


def test_dense_layers_follow_it_with_the_settings_of_all_encoders():
    encoder, width = make("make_squares", hidden_sizes=(5, 3), layer_norm=True)
    assert [layer.weight.shape for layer in encoder.mlp.layers] == [(6, 5), (5, 3)]
    assert len(encoder.mlp.norms) == 2
    assert width == 3
    assert encoder(np.zeros((2, 3, 4), np.float32)).shape == (2, 3, 3)


def test_it_takes_a_dict_observation_as_a_whole():
    space = spaces.Dict({"a": BOX, "b": spaces.MultiBinary(3)})
    encoder, width = make("make_parts", space)
    features = encoder({"a": np.ones((2, 4), np.float32), "b": np.ones((2, 3), np.int8)})
    assert features.shape == (2, width) == (2, 5)


def test_weights_of_another_kind_become_float32():
    encoder, _ = make("make_numpy")
    [weight] = jax.tree.leaves(encoder)
    assert isinstance(weight, jax.Array)
    assert weight.dtype == np.float32


def test_functions_in_its_fields_are_constants():
    encoder, _ = make("make_perceptron")
    [part] = encoder.parts
    assert isinstance(part, OwnEncoder)
    assert jax.jit(lambda encoder, x: encoder(x))(encoder, np.zeros((3, 4), np.float32)).shape == (3, 4)
    assert jax.tree.structure(encoder) == jax.tree.structure(make("make_perceptron")[0])


WRONG = {
    "make_no_pair": r"returned Squares.*; make_encoder\(rng, observation_space\) returns \(module, width\)",
    "make_no_module": r"returned .*tanh.* as its module; make_encoder",
    "make_no_width": r"returned '6' as its width; make_encoder",
    "make_zero_width": r"returned 0 as its width",
    "make_other_width": r"shape \(3, 4\) to features of shape \(3, 6\); for width 7 it must be \(3, 7\): \[\*batch, wi",
    "make_flat": r"shape \(2, 3, 4\) to features of shape \(6, 4\); for width 4 it must be \(2, 3, 4\)",
    "make_pairs": r"to \(ShapeDtypeStruct.*; return one array of shape \(3, 4\)",
    "make_integers": r"to features of type int32; return float32",
    "make_single": r"fails for observations of shape \(3, 4\): TypeError: .*; its module takes observations \[\*batch",
    "make_table": r"\.weight of Any is array\(\[0, 1, 2\]\): parameters are float32, and constants are static",
    "make_of_one": r"cannot be called with \(rng, observation_space\): too many positional arguments",
    "not_a_function": r"module tests\.nets\.own_encoders has no function or class not_a_function",
    "nothing": r"module tests\.nets\.own_encoders has no function or class nothing",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_it_is_said_with_its_name(name):
    with pytest.raises(ConfigError, match=rf"^encoder '{HERE}:{name}'.*{WRONG[name]}"):
        make(name)


# The setting


@pytest.mark.parametrize("value", ["resnet", ":make", "module:", "a b:c", 3, None])
def test_a_name_that_is_none_is_refused_when_the_config_is_made(value):
    message = (
        f"encoder {value!r} is not one of auto, mlp, cnn, cnn_2013, cnn_small, cnn_tiny, conv_only, or module:function"
    )
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        ppo.Config(encoder=value)


def test_a_function_becomes_its_name_and_the_settings_stay_data():
    config = ppo.Config(encoder=own_encoders.make_squares)
    assert config.network.encoder == f"{HERE}:make_squares"
    assert from_json(ppo.Config, to_json(config)) == config


def test_a_module_that_is_not_there_is_named_before_anything_is_made():
    with pytest.raises(ConfigError, match=r"^encoder 'no_such_module:make' cannot be imported: No module named"):
        ppo.validate(ppo.Config(encoder="no_such_module:make"))
    with pytest.raises(ConfigError, match=f"^encoder '{HERE}:nothing': module {HERE} has no function or class nothing"):
        sac.validate(sac.Config(encoder=f"{HERE}:nothing"))


def test_a_function_that_only_this_process_has_is_refused_where_others_need_it():
    def here(rng, observation_space):
        return own_encoders.make_squares(rng, observation_space)

    assert dqn.Config(encoder=here).network.encoder.startswith("local:here")
    ppo.validate(ppo.Config(encoder=here))
    a3c.validate(a3c.Config(encoder=here, pool="serial"))
    message = "is a function that only this process has, and {} uses other processes; put it into a module"
    with pytest.raises(ConfigError, match=message.format("pool 'processes'")):
        a3c.validate(a3c.Config(encoder=here, pool="processes"))
    with pytest.raises(ConfigError, match=message.format("pool 'ray'")):
        acer.validate(acer.Config(encoder=here, pool="ray"))
    with pytest.raises(ConfigError, match=message.format("env.ray_actors 2")):
        ppo.validate(ppo.Config(EnvConfig(num_envs=4, ray_actors=2), encoder=here))


def test_xla_may_use_all_threads_for_it():
    assert work_size(ppo.Config(encoder=own_encoders.make_squares)) == MOST_PRODUCTS_OF_ONE_THREAD + 1
    assert work_size(ppo.Config(encoder="cnn")) == "images"
    assert work_size(ppo.Config(), images=True) == "images"
    assert work_size(ppo.Config()) == work_size(ppo.Config(encoder="mlp"), images=True) != "images"
