"""Dict and Tuple actions as flat rows and back, masks in every form, unsupported spaces."""

from collections import OrderedDict
from inspect import signature
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from birl.config import ConfigError
from birl.envs.actions import action_tree, flat_action, flat_mask, mask_of, own_actions
from birl.envs.outputs import layout_of
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import (
    action_dtype,
    action_reader,
    action_shape,
    far_from_one,
    learnable_actions,
    mask_width,
    space_from_json,
    space_to_json,
)
from birl.presets import all_presets
from tests.envs.counting import Counting
from tests.envs.hybrid import ACTIONS, STATE

NUMBER = spaces.Box(-1, 1, (1,), np.float32)
TREES = {
    "Dict": spaces.Dict({"go": spaces.Discrete(3), "how": spaces.Box(-2, 3, (2,), np.float32)}),
    "Tuple": spaces.Tuple((spaces.Discrete(2, start=7), spaces.MultiBinary((2, 2)), spaces.Box(0, 1, (), np.float32))),
    "nested": ACTIONS,
    "Dict of one": spaces.Dict({"only": spaces.Discrete(4)}),
    "empty branch": spaces.Tuple((spaces.Dict({}), spaces.Discrete(2))),
}


def equal(left: Any, right: Any) -> bool:
    """Whether two trees are equal, in structure, numbers and dtypes."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(equal, left, right))
    return np.array_equal(left, right) and np.asarray(left).dtype == np.asarray(right).dtype


def test_columns_are_the_keys_in_order_and_every_part_flattened():
    # force (2), move (1), switches/0 (2), switches/1 (2)
    assert (action_shape(ACTIONS), action_dtype(ACTIONS)) == ((7,), np.float32)
    (action,) = own_actions(ACTIONS, np.array([[0.5, 0.8, 2, 0, 1, 1, 2]], np.float32))
    expected = {
        "force": np.float32([0.5, 0.8]).astype(float),
        "move": 3,
        "switches": (np.int8([0, 1]), np.array([1, 7])),
    }
    assert equal(action, expected)


def test_the_order_in_which_a_dict_was_written_does_not_matter():
    parts = {"b": spaces.Discrete(3), "a": NUMBER}
    row = np.array([[0.25, 2]], np.float32)
    unsorted = {"sort_keys": False} if "sort_keys" in signature(spaces.Dict).parameters else {}  # of Gymnasium 1.2
    for space in (spaces.Dict(parts), spaces.Dict(OrderedDict(parts)), spaces.Dict(parts, **unsorted)):
        assert equal(own_actions(space, row)[0], {"a": np.float32([0.25]), "b": 2})


@pytest.mark.parametrize("space", TREES.values(), ids=TREES)
def test_actions_are_equal_after_being_flattened_and_restored(space):
    space.seed(0)
    samples = [space.sample() for _ in range(20)]
    rows = np.stack([flat_action(space, sample) for sample in samples])
    assert rows.shape == (20, *action_shape(space))
    assert rows.dtype == np.float32
    for sample, action in zip(samples, own_actions(space, rows), strict=True):
        assert space.contains(action)
        np.testing.assert_allclose(flat_action(space, action), flat_action(space, sample), rtol=1e-6)


@pytest.mark.parametrize("space", TREES.values(), ids=TREES)
def test_actions_lie_in_the_space_whatever_numbers_a_policy_draws(space):
    drawn = np.random.default_rng(0).normal(scale=10, size=(20, *action_shape(space))).astype(np.float32)
    space.seed(0)
    whole = np.stack([flat_action(space, space.sample()) for _ in range(20)])
    kinds = flat_action(space, _marked(space))  # 1 where a column holds a number of a Box
    assert all(space.contains(action) for action in own_actions(space, np.where(kinds == 1, drawn, whole)))


def _marked(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _marked(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_marked(part) for part in space.spaces)
    return np.ones(space.shape) if isinstance(space, spaces.Box) else np.zeros(space.shape) + getattr(space, "start", 0)


# Gymnasium passes a number for a Box of shape ().
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize(
    "space", [tree for name, tree in TREES.items() if name != "empty branch"], ids=lambda space: type(space).__name__
)
def test_a_vector_environment_splits_the_tree_of_arrays_into_the_same_actions(space):
    space.seed(0)
    rows = np.stack([flat_action(space, space.sample()) for _ in range(3)])
    tree = action_tree(space, rows)
    apart = list(iterate(batch_space(space, 3), tree))
    assert all(equal(one, other) for one, other in zip(apart, own_actions(space, rows), strict=True))
    assert all(space.contains(action) for action in apart)


def test_actions_are_copies():
    rows = np.zeros((2, 7), np.float32)
    first, second = own_actions(ACTIONS, rows)
    before = flat_action(ACTIONS, second)
    first["force"] += 5
    first["switches"][0][:] = 1
    np.testing.assert_array_equal(flat_action(ACTIONS, second), before)
    assert not rows.any()


def test_flat_actions_of_the_wrong_width_raise_with_both_shapes():
    with pytest.raises(ValueError, match=r"shape \(2, 6\); 2 environments .* need \(2, 7\)"):
        action_reader(ACTIONS, 2)(np.zeros((2, 6), np.float32))


@pytest.mark.parametrize("space", TREES.values(), ids=TREES)
def test_an_action_space_survives_json_with_its_starts(space):
    assert space_from_json(space_to_json(space)) == space


# Masks


ALL = [True] * 8
NESTED = {"move": [1, 0, 1], "switches": (None, ([0, 1], [1, 1, 0]))}


def test_the_mask_of_a_tree_is_the_masks_of_its_choices_side_by_side():
    assert mask_width(ACTIONS) == 3 + 2 + 3
    assert flat_mask(NESTED, ACTIONS).tolist() == [True, False, True, False, True, True, True, False]
    assert flat_mask(np.array([1, 0, 1, 0, 1, 1, 1, 0]), ACTIONS).tolist() == flat_mask(NESTED, ACTIONS).tolist()
    assert flat_mask(NESTED, ACTIONS).dtype == bool


@pytest.mark.parametrize("mask", [{}, None, {"move": None}, {"switches": (None, None)}])
def test_a_part_without_a_mask_allows_everything(mask):
    assert flat_mask(mask, ACTIONS).tolist() == ALL


def test_a_mask_of_a_part_leaves_the_others_alone():
    assert flat_mask({"move": [0, 0, 1]}, ACTIONS).tolist() == [False, False, True, *ALL[3:]]
    assert flat_mask((None, np.array([0, 1])), spaces.Tuple((NUMBER, spaces.Discrete(2)))).tolist() == [False, True]


def test_a_tree_of_numbers_and_bits_cannot_be_masked():
    assert mask_width(spaces.Dict({"a": NUMBER, "b": spaces.MultiBinary(3)})) is None


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"mvoe": [1, 1, 1]}, "has a part 'mvoe'; action space Dict.* has none of that name"),
        ({"move": [1, 1]}, r"has 2 entries; action space Discrete\(3, start=1\) has 3 choices"),
        ({"force": [1, 1]}, r"has 2 entries; action space Box.* has 0 choices that can be masked"),
        ({"switches": (None,)}, "has 1 parts; action space Tuple.* has 2"),
        (np.ones(1), "has 1 entries; action space Dict.* has 8 choices"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(mask, message):
    with pytest.raises(ValueError, match=f"action_mask {message}"):
        flat_mask(mask, ACTIONS)


def test_a_mask_of_one_entry_is_not_spread_over_all_choices():
    with pytest.raises(ValueError, match="has 1 entries"):
        flat_mask([True], spaces.Discrete(3))


def test_one_environments_mask_is_read_out_of_a_vector_environments_tree():
    masks = {"move": np.array([[1, 0], [0, 0]]), "_move": np.array([True, False]), "_odd": np.array([[1], [2]])}
    assert equal(mask_of(masks, 0), {"move": np.array([1, 0]), "_odd": np.array([1])})
    assert equal(mask_of(masks, 1), {"_odd": np.array([2])})
    assert equal(mask_of((np.array([[1], [0]]), np.array([[1, 1], [0, 1]])), 1), (np.array([0]), np.array([0, 1])))


def test_a_tree_of_masks_is_taken_out_of_the_observation():
    masks = spaces.Dict({"move": spaces.MultiBinary(3)})
    layout = layout_of(spaces.Dict({"state": STATE, "action_mask": masks}), ACTIONS)
    assert (list(layout.space.spaces), layout.mask_path) == (["state"], ("action_mask",))
    kept = layout_of(spaces.Dict({"state": STATE, "action_mask": masks}), NUMBER)  # no choices to mask
    assert (list(kept.space.spaces), kept.mask_path) == (["action_mask/move", "state"], None)


# Unsupported spaces


UNSUPPORTED = {
    "Text": (spaces.Text(5), "a Discrete among known texts, or a MultiDiscrete of characters"),
    "Sequence": (spaces.Sequence(NUMBER), "pad it to a fixed length"),
    "Graph": (spaces.Graph(NUMBER, None), "pad it to a fixed number of nodes and edges"),
    "OneOf": (spaces.OneOf((NUMBER, spaces.Discrete(2))), "a Discrete that says which space is used"),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("role", ["observation", "action"])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_space_is_refused_with_its_name_and_a_remedy(name, role, nested):
    space, remedy = UNSUPPORTED[name]
    given = spaces.Dict({"good": spaces.Discrete(2), "bad": spaces.Tuple((NUMBER, space))}) if nested else space

    class Refused(Counting):
        observation_space = given if role == "observation" else Counting.observation_space
        action_space = given if role == "action" else Counting.action_space

        def reset(self, *, seed=None, options=None):
            raise AssertionError("reset before the spaces were checked")

    with pytest.raises(ConfigError) as refusal:
        SerialEnvs([Refused])
    said = str(refusal.value)
    assert said.startswith(f"{role} space {name}")
    assert (" at bad/1 is not supported" in said) == nested
    assert "use Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these" in said
    assert remedy in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            spaces.Box(0, 255, (2,), np.uint8),
            "action space Box.*uint8.* is a Box of integers; use MultiDiscrete, or a Box of float32",
        ),
        (spaces.Dict({"a": spaces.Box(0, 9, (1,), np.int64)}), "action space Box.* at a is a Box of integers"),
        (spaces.Dict({}), r"action space Dict\(\) has no parts; use Discrete"),
        (spaces.Tuple((spaces.Dict({}),)), "has no parts"),
        (spaces.Dict({1: spaces.Discrete(2)}), "has keys that are not strings; use strings"),
    ],
)
def test_unsupported_action_spaces_are_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        learnable_actions(space)


def test_an_observation_space_that_does_not_start_at_0_is_refused_with_a_remedy():
    with pytest.raises(
        ConfigError, match=r"observation space Discrete\(3, start=1\) at a does not start at 0; subtract its start"
    ):
        layout_of(spaces.Dict({"a": spaces.Discrete(3, start=1)}), NUMBER)


def test_two_observations_of_one_name_are_refused():
    space = spaces.Dict({"a": spaces.Dict({"b": NUMBER}), "a/b": NUMBER})
    with pytest.raises(ConfigError, match="two parts of one name; use keys without a slash"):
        layout_of(space, NUMBER)


@pytest.mark.parametrize(
    ("low", "high", "far"),
    [
        (-1, 1, False),
        (-2, 2, False),  # Pendulum, Pusher
        (-3, 3, False),  # InvertedPendulum
        (-0.4, 0.4, False),  # Humanoid
        (-2, 3, False),
        (-4, 4, False),
        (-0.25, 0.25, False),
        (0, 500, True),
        (0, 1, False),
        (0.5, 1.5, True),
        (0, 0.4, True),
        (-8, 8, True),
        (-0.1, 0.1, True),
        (0, 0.01, True),
        (10, 11, True),
        (-np.inf, np.inf, False),
        (0, np.inf, False),
        (5, 5, False),
    ],
)
def test_bounds_are_far_from_1_beyond_a_factor_of_4(low, high, far):
    space = spaces.Box(np.float32([low, -1]), np.float32([high, 1]))
    np.testing.assert_array_equal(far_from_one(space), [far, False])


def test_the_bounds_of_every_preset_are_near_1():
    for env_id in {preset.config.env.id for preset in all_presets()}:
        if not env_id.startswith("ALE/") and env_id in gym.registry:
            space = gym.make(env_id).action_space
            assert not isinstance(space, spaces.Box) or not far_from_one(space).any(), env_id
