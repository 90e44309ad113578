"""Actors and critics for bounded actions, and scaling by the bounds of the space."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from birl.config import ConfigError
from birl.nets.critics import make_action_critic, make_deterministic_actor
from birl.nets.heads import bounds_of
from birl.parts import NetworkConfig

BOX = spaces.Box(-1, 1, (4,), np.float32)
OBSERVATIONS = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
ACTIONS = np.random.default_rng(1).uniform(-1, 1, (6, 2)).astype(np.float32)


SMALL = NetworkConfig(hidden_sizes=(8, 7), activation="relu")


# Bounds


def test_bounds_of_minus_2_and_3_are_scaled_to_minus_1_and_1():
    bounds = bounds_of(spaces.Box(-2, 3, (1,), np.float32))
    pairs = [(-1.0, -2.0), (0.0, 0.5), (1.0, 3.0), (0.4, 1.5)]
    for unit, own in pairs:
        assert float(bounds.from_unit(np.float32([unit]))[0]) == pytest.approx(own, abs=1e-6)
        assert float(bounds.to_unit(np.float32([own]))[0]) == pytest.approx(unit, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.floats(0.125, 1e3, width=32)), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_to_unit_is_the_inverse_of_from_unit_for_each_dimension(lows_and_widths, seed):
    low, width = np.array(lows_and_widths, np.float32).T
    bounds = bounds_of(spaces.Box(low, low + width, dtype=np.float32))
    units = np.random.default_rng(seed).uniform(-1, 1, (5, len(low))).astype(np.float32)
    actions = bounds.from_unit(units)
    scale = np.abs(low).max() + width.max()
    assert bounds.size == len(low)
    assert np.all(actions >= low - 1e-6 * scale)
    assert np.all(actions <= low + width + 1e-6 * scale)
    np.testing.assert_allclose(bounds.to_unit(actions), units, atol=1e-6 * scale / width.min() + 1e-6)


def test_bounds_of_a_box_of_two_axes_are_flat_like_stored_actions():
    low = np.array([[-1, -2], [-3, -4]], np.float32)
    bounds = bounds_of(spaces.Box(low, -low, dtype=np.float32))
    assert (bounds.low, bounds.high) == ((-1.0, -2.0, -3.0, -4.0), (1.0, 2.0, 3.0, 4.0))


HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (1,), np.float32),
        spaces.Box(np.float32([-1, -1]), np.float32([1, np.inf]), dtype=np.float32),
        spaces.Box(-np.inf, 1, (2,), np.float32),
        spaces.Box(-HUGE, HUGE, (1,), np.float32),  # some environments mean "no bounds"
        spaces.Box(np.float32([0, 1]), np.float32([1, 1]), dtype=np.float32),
    ],
    ids=["none", "one above", "none below", "float32's own", "no width"],
)
def test_a_box_without_finite_bounds_is_refused_with_a_remedy(space):
    with pytest.raises(ConfigError, match=r"action space Box.* needs finite bounds.*RescaleAction"):
        bounds_of(space)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Dict({"a": BOX})]
)
def test_a_space_that_is_no_box_is_refused(space):
    with pytest.raises(ConfigError, match=rf"action space {type(space).__name__}.* is not a Box; use a Box"):
        bounds_of(space)


# Networks


def test_an_actors_first_actions_are_near_0_and_all_actions_are_within_the_bounds():
    actor = make_deterministic_actor(np.random.default_rng(0), BOX, 2, SMALL)
    first = actor(OBSERVATIONS)
    assert first.shape == (6, 2)
    assert np.abs(first).max() < 0.1
    assert np.abs(actor(1e6 * OBSERVATIONS)).max() <= 1.0
    np.testing.assert_allclose(np.linalg.norm(actor.head.weight, axis=0), 0.01, rtol=1e-5)


@pytest.mark.parametrize("hidden_sizes", [(8, 7), (5,), ()])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_critic_depends_on_all_of_the_observation_and_the_action(layer_norm, hidden_sizes):
    network = replace(SMALL, hidden_sizes=hidden_sizes, layer_norm=layer_norm)
    critic = make_action_critic(np.random.default_rng(0), BOX, 2, network)
    assert critic(OBSERVATIONS, ACTIONS).shape == (6,)
    of_observation, of_action = jax.grad(lambda o, a: critic(o, a).sum(), argnums=(0, 1))(OBSERVATIONS, ACTIONS)
    assert np.all(np.abs(of_action).sum(0) > 0)
    assert np.all(np.abs(of_observation).sum(0) > 0)


def test_layer_norm_follows_each_hidden_layer_only_if_it_is_switched_on():
    for layer_norm, count in ((True, 2), (False, 0)):
        network = replace(SMALL, layer_norm=layer_norm)
        actor = make_deterministic_actor(np.random.default_rng(0), BOX, 2, network)
        critic = make_action_critic(np.random.default_rng(0), BOX, 2, network)
        for mlp in (actor.encoder.mlp, critic.mlp):
            assert len([norm for norm in mlp.norms if norm is not None]) == count


def test_a_critic_without_hidden_layers_is_linear_in_observation_and_action():
    critic = make_action_critic(np.random.default_rng(0), BOX, 2, replace(SMALL, hidden_sizes=()))
    expected = np.concatenate([OBSERVATIONS, ACTIONS], axis=-1) @ np.asarray(critic.head.weight)[:, 0]
    np.testing.assert_allclose(critic(OBSERVATIONS, ACTIONS), expected, atol=1e-5)


def test_actor_and_critic_take_dict_observations_and_images():
    space = spaces.Dict({"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "vector": BOX})
    observations = {"image": np.zeros((6, 36, 36, 1), np.uint8), "vector": OBSERVATIONS}
    network = replace(SMALL, encoder="cnn_small")
    assert make_deterministic_actor(np.random.default_rng(0), space, 2, network)(observations).shape == (6, 2)
    assert make_action_critic(np.random.default_rng(0), space, 2, network)(observations, ACTIONS).shape == (6,)
