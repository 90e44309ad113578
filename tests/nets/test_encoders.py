"""Encoders for every observation space, against sizes and features computed by hand."""

from functools import partial
from multiprocessing.reduction import ForkingPickler

import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.nets.encoders import make_encoder
from birl.nets.images import encoders_chosen
from birl.nets.layers import ACTIVATIONS

T, B = 3, 2
# Little optimisation, to save compile time.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
encode = jit(lambda encoder, observations: encoder(observations))
make_bare = partial(make_encoder, name="mlp", hidden_sizes=(), activation="tanh")  # without layers


def bare_features(space, observations):
    """The inputs of the first layer for these observations."""
    encoder, width = make_bare(np.random.default_rng(0), space)
    features = np.asarray(encode(encoder, observations))
    assert features.shape[-1] == width
    return features


def samples(space):
    """[T, B, ...] observations of the space; a dict of them for a Dict."""
    space.seed(0)
    draws = [space.sample() for _ in range(T * B)]
    return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(T, B, *np.shape(leaves[0])), *draws)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4)])
def test_a_box_of_any_rank_becomes_one_flat_float_vector(shape):
    observations = samples(spaces.Box(-1, 1, shape, np.float32))
    features = bare_features(spaces.Box(-1, 1, shape, np.float32), observations)
    np.testing.assert_array_equal(features, observations.reshape(T, B, -1))


def test_discrete_becomes_one_hot():
    np.testing.assert_array_equal(bare_features(spaces.Discrete(3), np.array([[2, 0]])), [[[0, 0, 1], [1, 0, 0]]])


def test_multi_discrete_becomes_one_hot_vectors_concatenated():
    features = bare_features(spaces.MultiDiscrete([2, 3]), np.array([[[1, 0], [0, 2]]]))
    np.testing.assert_array_equal(features, [[[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]])


def test_multi_discrete_in_two_rows_is_read_row_by_row():
    features = bare_features(spaces.MultiDiscrete([[2, 2], [2, 3]]), np.array([[[[1, 0], [0, 2]]]]))
    np.testing.assert_array_equal(features, [[[0, 1, 1, 0, 1, 0, 0, 0, 1]]])


def test_multi_binary_becomes_its_bits():
    features = bare_features(spaces.MultiBinary(3), np.array([[[1, 0, 1]]], np.int8))
    np.testing.assert_array_equal(features, [[[1.0, 0.0, 1.0]]])
    assert features.dtype == np.float32


def test_a_dict_becomes_its_parts_concatenated_in_the_order_of_the_space():
    space = spaces.Dict({"position": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(2)})
    features = bare_features(space, {"position": np.array([[[0.5, -0.5]]], np.float32), "kind": np.array([[1]])})
    expected = {"position": [0.5, -0.5], "kind": [0.0, 1.0]}
    np.testing.assert_array_equal(features[0, 0], np.concatenate([expected[key] for key in space.spaces]))


@pytest.mark.parametrize(
    ("name", "side", "convolved", "width"),
    [
        ("conv_only", 84, 7 * 7 * 64, 7 * 7 * 64),  # 84 -> (84-8)/4+1 = 20 -> (20-4)/2+1 = 9 -> 9-3+1 = 7
        ("cnn", 44, 2 * 2 * 64, 512),  # 44 -> 10 -> 4 -> 2
        ("cnn_2013", 84, 9 * 9 * 32, 256),
        ("cnn_small", 84, 9 * 9 * 16, 128),  # 84 -> 20 -> 9
    ],
)
def test_convolutional_encoders_have_the_sizes_of_their_papers(name, side, convolved, width):
    space = spaces.Box(0, 255, (side, side, 4), np.uint8)
    encoder, features = make_encoder(np.random.default_rng(0), space, name, (64, 64), "relu")
    dense = encoder.parts[0].dense
    assert (convolved if dense is None else dense.weight.shape[0]) == convolved
    assert encoder.mlp.layers == ()  # hidden_sizes are for vectors
    assert jax.eval_shape(encoder, np.zeros((T, B, *space.shape), np.uint8)).shape == (T, B, features) == (T, B, width)


def test_images_in_either_channel_order_give_the_same_features():
    last, first = spaces.Box(0, 255, (36, 44, 3), np.uint8), spaces.Box(0, 255, (3, 36, 44), np.uint8)
    images = samples(last)
    encoders = [make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")[0] for space in (last, first)]
    features = [encode(encoders[0], images), encode(encoders[1], np.moveaxis(images, -1, 2))]
    np.testing.assert_allclose(*features, atol=1e-6)
    assert np.abs(features[0]).max() > 0.01


def test_pixels_are_scaled_to_0_to_1_and_floats_are_not():
    bytes_space, float_space = spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Box(0, 1, (36, 36, 1), np.float32)
    images = samples(bytes_space)
    encoders = [
        make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")[0]
        for space in (bytes_space, float_space)
    ]
    features = [encode(encoders[0], images), encode(encoders[1], images.astype(np.float32) / 255)]
    np.testing.assert_allclose(*features, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((84, 84, 3), "cnn"),
        ((3, 64, 80), "cnn"),
        ((63, 80, 3), "cnn_small"),
        ((20, 20, 1), "cnn_small"),
        ((16, 16, 3), "cnn_tiny"),
        ((8, 8, 3), "cnn_tiny"),
        ((7, 7, 3), "mlp"),  # a view of symbols
        ((12,), "mlp"),
    ],
)
def test_auto_is_the_encoder_that_fits_the_size_of_the_image(shape, name):
    space = spaces.Box(0, 255, shape, np.uint8)
    made = [make_encoder(np.random.default_rng(0), space, each, (8,), "tanh") for each in ("auto", name)]
    jax.tree.map(np.testing.assert_array_equal, *[encoder for encoder, _ in made])
    assert made[0][1] == made[1][1]


def test_auto_chooses_for_each_part_of_a_dict_and_says_it():
    image = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    space = spaces.Dict({"front": image, "map": spaces.Box(0, 1, (10, 10, 4), np.float32), "speed": spaces.Box(0, 1)})
    encoder, _ = make_encoder(np.random.default_rng(0), space, "auto", (8,), "tanh")
    assert [len(getattr(part, "convolutions", ())) for part in encoder.parts] == [3, 2, 0]
    assert encoders_chosen(space, "auto") == [
        "observation front is an image of shape (84, 84, 3): encoder cnn",
        "observation map is an image of shape (10, 10, 4): encoder cnn_tiny",
    ]
    assert encoders_chosen(image, "auto") == ["observation is an image of shape (84, 84, 3): encoder cnn"]
    assert encoders_chosen(image, "mlp") == encoders_chosen(space["speed"], "auto") == []


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 8, 3), (3, 8, 9), (4, 84, 84)])
def test_an_image_is_bytes_from_0_to_255_on_three_axes_at_least_8_high_and_wide(shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    images = samples(space)
    np.testing.assert_allclose(bare_features(space, images), images.reshape(T, B, -1) / 255, atol=1e-6)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (3,), np.uint8),  # RAM of an Atari console
        spaces.Box(0, 255, (9, 9), np.uint8),
        spaces.Box(0, 255, (7, 7, 3), np.uint8),  # MiniGrid's view
        spaces.Box(0, 255, (3, 9, 7), np.uint8),
        spaces.Box(0, 10, (16, 16, 3), np.uint8),  # a map of symbols
        spaces.Box(-500, 1000, (9, 9, 3), np.int32),
    ],
    ids=str,
)
def test_other_integers_are_not_scaled(space):
    numbers = samples(space)
    np.testing.assert_array_equal(bare_features(space, numbers), numbers.reshape(T, B, -1))


def test_a_small_array_beside_an_image_is_a_vector():
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "view": spaces.Box(0, 255, (7, 7, 3), np.uint8)}
    )
    encoder, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")
    observations = samples(space)
    np.testing.assert_array_equal(encode(encoder, observations)[..., 128:], observations["view"].reshape(T, B, -1))


def test_a_map_of_symbols_is_convolved_without_scaling():
    small, bytes_space = spaces.Box(0, 10, (36, 36, 1), np.uint8), spaces.Box(0, 255, (36, 36, 1), np.uint8)
    symbols = samples(small)
    encoders = [
        make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")[0] for space in (small, bytes_space)
    ]
    assert [encoder.parts[0].scale for encoder in encoders] == [1, 1 / 255]
    assert np.abs(encode(encoders[0], symbols)).max() > 0.01


def test_an_image_beside_a_vector_is_convolved_and_both_enter_the_dense_layers():
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "vector": spaces.Box(-1, 1, (3,), np.float32)}
    )
    encoder, width = make_encoder(np.random.default_rng(0), space, "cnn_small", (16, 8), "relu")
    assert [layer.weight.shape for layer in encoder.mlp.layers] == [(128 + 3, 16), (16, 8)]
    observations = samples(space)
    features = encode(encoder, observations)
    assert features.shape == (T, B, width) == (T, B, 8)
    for key in space.spaces:  # each part matters
        changed = observations | {key: observations[key] * 0}
        assert np.abs(encode(encoder, changed) - features).max() > 1e-3


def test_the_features_of_an_image_have_the_total_length_of_the_numbers_beside_it():
    """Hundreds of features of order 1 would dominate the numbers, which then are learned poorly."""
    vector, image = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 255, (36, 36, 1), np.uint8)
    for numbers, expected in (
        ({"vector": vector}, np.sqrt(3 / 128)),
        ({"vector": vector, "kind": spaces.Discrete(5)}, np.sqrt(8 / 128)),
    ):
        space = spaces.Dict({"image": image} | numbers)
        encoder, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (4,), "relu")
        by_key = dict(zip(encoder.keys, encoder.scales, strict=True))
        assert by_key == pytest.approx({"image": expected} | dict.fromkeys(numbers, 1.0))
    space = spaces.Dict({"image": image, "vector": spaces.Box(-1, 1, (500,), np.float32)})
    long, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")
    space = spaces.Dict({"left": image, "right": image})
    two, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")
    assert long.scales == two.scales == (1.0, 1.0)  # many numbers, or none: no scaling


def test_the_scale_of_an_image_is_applied_to_its_features():
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "vector": spaces.Box(-1, 1, (2,), np.float32)}
    )
    encoder, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")
    observations = samples(space)
    features = encode(encoder, observations)
    alone = encode(encoder.parts[0], observations["image"])
    np.testing.assert_allclose(features[..., :128], alone * np.sqrt(2 / 128), rtol=1e-5)
    np.testing.assert_array_equal(features[..., 128:], observations["vector"])


def test_hidden_layers_are_dense_layers_each_followed_by_the_activation():
    encoder, width = make_encoder(np.random.default_rng(0), spaces.Box(-1, 1, (3,), np.float32), "mlp", (6, 5), "tanh")
    x = samples(spaces.Box(-1, 1, (3,), np.float32))
    hidden = x
    for layer in encoder.mlp.layers:
        hidden = np.tanh(hidden @ np.asarray(layer.weight) + np.asarray(layer.bias))
    assert width == 5
    np.testing.assert_allclose(encode(encoder, x), hidden, atol=1e-6)


def test_leading_axes_do_not_matter():
    space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    encoder, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")
    images = samples(space)
    together = np.asarray(encode(encoder, images))
    flat = encode(encoder, images.reshape(T * B, 36, 36, 1))
    np.testing.assert_allclose(together.reshape(T * B, -1), flat, atol=1e-6)


@pytest.mark.parametrize("side", [7, 20])
def test_an_image_too_small_for_the_convolutions_is_refused_with_a_remedy(side):
    with pytest.raises(
        ConfigError, match=rf"encoder 'cnn' needs larger images than \({side}, {side}, 3\).*84x84.*--encoder mlp"
    ):
        make_encoder(np.random.default_rng(0), spaces.Box(0, 255, (side, side, 3), np.uint8), "cnn", (), "relu")


def test_a_space_without_an_encoder_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"observation space Text.* has no encoder; use Box, Discrete"):
        make_encoder(np.random.default_rng(0), spaces.Text(5), "mlp", (), "tanh")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_encoder_of_images_can_be_sent_to_another_process(activation):  # of A3C's or ACER's pool
    space = spaces.Box(0, 255, (30, 25, 2), np.uint8)
    encoder, _ = make_encoder(np.random.default_rng(0), space, "cnn_small", (), activation)
    sent = ForkingPickler.loads(ForkingPickler.dumps(encoder))
    seen = samples(space)
    np.testing.assert_array_equal(encode(sent, seen), encode(encoder, seen))


@pytest.mark.parametrize(
    ("name", "side"), [("cnn", 36), ("cnn_2013", 20), ("cnn_small", 20), ("cnn_tiny", 8), ("conv_only", 36)]
)
def test_each_convolutional_encoder_reads_images_from_its_smallest_side_on_and_says_it(name, side):
    encoder, width = make_encoder(
        np.random.default_rng(0), spaces.Box(0, 255, (side, side, 3), np.uint8), name, (), "relu"
    )
    assert encoder(np.zeros((2, side, side, 3), np.uint8)).shape == (2, width)
    smaller = spaces.Box(0, 255, (side - 1, side + 5, 3), np.uint8)
    with pytest.raises(ConfigError, match=f"at least {side}x{side}"):
        make_encoder(np.random.default_rng(0), smaller, name, (), "relu")
