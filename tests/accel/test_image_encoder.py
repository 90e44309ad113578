"""The fast image encoder, in parts, in blocks and from cached outputs, against the plain one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl import speed
from birl.accel import convolution, image_encoder
from birl.accel.image_encoder import CachedImages, in_parts
from birl.nets.encoders import make_encoder
from birl.nets.images import ImageEncoder
from tests.nets.test_encoders import jit as quickly
from tests.nets.test_encoders import samples


def value_and_gradients(encoder, observations):
    """Compiled anew: which form is taken is decided while it is traced."""
    compiled = quickly(
        lambda encoder, seen: (encoder(seen), jax.grad(lambda encoder: jnp.sum(jnp.sin(encoder(seen))))(encoder))
    )
    return jax.tree.leaves(compiled(encoder, observations))


def assert_same(mine, theirs):
    for left, right in zip(mine, theirs, strict=True):
        assert np.abs(right).max() > 0
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


KINDS = pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("cnn", (3, 37, 46), np.uint8),
        ("conv_only", (37, 46, 3), np.uint8),
        ("cnn_small", (30, 25, 2), np.float32),
        ("cnn_tiny", (9, 10, 2), np.uint8),
        ("cnn_small", (2, 30, 25), np.uint8),
    ],
)


@KINDS
def test_in_parts_and_in_blocks_images_have_the_features_and_gradients_of_xlas_convolutions(
    name, shape, kind, monkeypatch
):
    monkeypatch.setattr(image_encoder, "IMAGES_AT_ONCE", 4)  # of T · B = 6: one whole part, and two images left
    space = spaces.Box(0, 255 if kind == np.uint8 else 1, shape, kind)
    encoder, _ = make_encoder(np.random.default_rng(0), space, name, (), "relu")
    pictures = samples(space)
    on_cpu = value_and_gradients(encoder, pictures)
    monkeypatch.setattr(image_encoder, "on_cpu", lambda: False)
    monkeypatch.setattr(convolution, "on_cpu", lambda: False)
    assert_same(on_cpu, value_and_gradients(encoder, pictures))


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 9])
def test_in_parts_gives_what_the_whole_gives(rows, monkeypatch):
    monkeypatch.setattr(image_encoder, "IMAGES_AT_ONCE", 4)
    array = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    np.testing.assert_array_equal(in_parts(lambda x: (x * x).sum(-1), array), (array * array).sum(-1))


def test_patches_are_not_kept_for_the_gradient():
    """Memory for one more image must stay below that for its patches.

    Those of Mnih's first layer take 8 x 8 / (4 x 4) floats for each byte of the image.
    """
    space = spaces.Box(0, 255, (44, 44, 4), np.uint8)
    encoder, _ = make_encoder(np.random.default_rng(0), space, "conv_only", (), "relu")

    def needed(count):
        gradient = quickly(jax.grad(lambda encoder, images: jnp.sum(jnp.sin(encoder(images)))))
        return (
            gradient.lower(encoder, np.zeros((count, *space.shape), np.uint8))
            .compile()
            .memory_analysis()
            .temp_size_in_bytes
        )

    patches = 4 * (10 * 10 * 8 * 8 * 4 + 4 * 4 * 4 * 4 * 32 + 2 * 2 * 3 * 3 * 64)
    assert (needed(64) - needed(16)) / 48 < patches / 2


@KINDS
@pytest.mark.parametrize("last_only", [False, True])
def test_from_what_was_computed_before_images_have_their_features_and_gradients(
    name, shape, kind, last_only, monkeypatch
):
    monkeypatch.setattr(image_encoder, "IMAGES_AT_ONCE", 4)  # of T · B = 6
    space = spaces.Box(0, 255 if kind == np.uint8 else 1, shape, kind)
    encoder = make_encoder(np.random.default_rng(0), space, name, (), "silu")[0].parts[0]
    pictures = samples(space)
    outputs = quickly(lambda encoder, pictures: encoder.outputs(pictures))(encoder, pictures)
    known = (*[None] * (len(outputs) - 1), outputs[-1]) if last_only else outputs
    assert_same(value_and_gradients(encoder, CachedImages(pictures, known)), value_and_gradients(encoder, pictures))


@pytest.mark.parametrize("last_only", [False, True])
def test_what_was_computed_before_is_not_computed_again(last_only):
    """Wrong activations give wrong features; the only products left are the gradient's."""
    space = spaces.Box(0, 255, (2, 24, 20), np.uint8)
    encoder = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")[0].parts[0]
    pictures = samples(space)
    outputs = quickly(lambda encoder, pictures: encoder.outputs(pictures))(encoder, pictures)
    wrong = tuple(
        None if last_only and number + 1 < len(outputs) else output + 1 for number, output in enumerate(outputs)
    )
    features = jax.jit(lambda encoder, seen: encoder(seen))
    np.testing.assert_allclose(
        features(encoder, CachedImages(pictures, wrong)), np.maximum(outputs[-1] + 1, 0), rtol=1e-5
    )
    text = features.lower(encoder, CachedImages(pictures, wrong)).compile().as_text()
    assert not any(word in text for word in (" convolution(", " dot(", "ynn_fusion"))


def test_going_back_from_what_is_known_takes_fewer_products_than_going_there_and_back():
    space = spaces.Box(0, 255, (2, 24, 20), np.uint8)
    encoder = make_encoder(np.random.default_rng(0), space, "cnn_small", (), "relu")[0].parts[0]
    pictures = samples(space)
    outputs = quickly(lambda encoder, pictures: encoder.outputs(pictures))(encoder, pictures)

    def work(observations):
        gradient = quickly(jax.grad(lambda encoder, seen: jnp.sum(jnp.sin(encoder(seen)))))
        return gradient.lower(encoder, observations).compile().cost_analysis()["flops"]

    assert work(CachedImages(pictures, outputs)) < 0.75 * work(pictures)


@KINDS
@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_fast_encoder_has_the_features_and_gradients_of_the_plain_one(name, shape, kind, layer_norm, monkeypatch):
    space = spaces.Box(0, 255 if kind == np.uint8 else 1, shape, kind)
    fast = make_encoder(np.random.default_rng(0), space, name, (), "relu", layer_norm)[0].parts[0]
    plain = ImageEncoder(fast.convolutions, fast.dense, fast.channels_first, fast.scale, "relu", fast.norm)
    pictures = samples(space)
    found = value_and_gradients(fast, pictures)
    monkeypatch.setattr(speed, "accel_enabled", lambda: False)
    assert_same(found, value_and_gradients(plain, pictures))
