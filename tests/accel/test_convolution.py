"""Convolutions against their sum, and in blocks against XLA's own."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.accel.convolution import block_convolution, blocks_of, convolve, xla_convolution
from birl.nets.images import make_conv


def in_blocks(x, weight, stride, channels_first=False):
    """A block convolution of [N, height, width, channels], in either order of axes."""
    return block_convolution(jnp.moveaxis(x, -1, 1) if channels_first else x, weight, stride, channels_first)


@pytest.mark.parametrize("kernel", [3, 4])  # by XLA, since 2 does not divide 3; in blocks
def test_a_convolution_is_the_sum_over_kernel_and_channels(kernel):
    conv = make_conv(np.random.default_rng(0), kernel, inputs=2, outputs=4, stride=2)
    images = np.random.default_rng(1).standard_normal((2, 8, 9, 2)).astype(np.float32)
    outputs = np.asarray(convolve(images, conv.weight, conv.bias, conv.stride, channels_first=False))
    np.testing.assert_allclose(conv(images), outputs, rtol=1e-4, atol=1e-5)  # the plain form
    assert outputs.shape == (2, 3, 7 - kernel, 4)  # (8 - kernel) // 2 + 1, (9 - kernel) // 2 + 1
    patch = images[1, 4 : 4 + kernel, 2 : 2 + kernel]  # row 2, column 1 at stride 2
    np.testing.assert_allclose(outputs[1, 2, 1], np.einsum("rci,rcio->o", patch, conv.weight), rtol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "shape"),
    # Strides do not divide the sides.
    [(8, 4, (2, 21, 30, 3)), (4, 2, (3, 9, 12, 5)), (3, 1, (2, 5, 4, 6)), (2, 2, (1, 5, 5, 1))],
)
@pytest.mark.parametrize("channels_first", [False, True])
def test_a_convolution_in_blocks_has_the_values_and_gradients_of_xlas(kernel, stride, shape, channels_first):
    rng = np.random.default_rng(0)
    images = rng.standard_normal(shape).astype(np.float32)
    weight = rng.standard_normal((kernel, kernel, shape[-1], 7)).astype(np.float32)

    def derived(convolution):
        return jax.jit(
            lambda x, w: (
                convolution(x, w, stride),
                jax.grad(lambda x, w: jnp.sum(jnp.sin(convolution(x, w, stride))), (0, 1))(x, w),
            )
        )

    expected = derived(xla_convolution)(images, weight)
    found = derived(partial(in_blocks, channels_first=channels_first))(images, weight)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_a_convolution_in_blocks_has_the_tangents_of_xlas_which_trpo_needs():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, 9, 12, 3)).astype(np.float32)
    weight = rng.standard_normal((4, 4, 3, 5)).astype(np.float32)
    directions = (
        rng.standard_normal(images.shape).astype(np.float32),
        rng.standard_normal(weight.shape).astype(np.float32),
    )
    mine, theirs = (
        jax.jvp(lambda x, w, f=function: jnp.sin(f(x, w, 2)), (images, weight), directions)[1]
        for function in (in_blocks, xla_convolution)
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def total(function, x, w):
    return jnp.sum(jnp.sin(function(x, w, 2)))


TWICE = {  # what a user may ask of a convolution beyond its gradient
    "a gradient's gradient": lambda f, x, w: jax.grad(lambda w: jnp.sum(jax.grad(partial(total, f))(x, w) ** 2))(w),
    "a gradient's tangent": lambda f, x, w: jax.jvp(lambda x: jax.grad(partial(total, f), 1)(x, w), (x,), (x,))[1],
    "a tangent's gradient": lambda f, x, w: jax.grad(lambda w: jax.jvp(partial(total, f), (x, w), (x, w))[1])(w),
    "gradients for many images": lambda f, x, w: jax.vmap(lambda x: jax.grad(partial(total, f), (0, 1))(x[None], w))(x),
    "gradients for many filters": lambda f, x, w: jax.vmap(lambda s: jax.grad(partial(total, f), (0, 1))(x, s * w))(
        jnp.arange(3.0)
    ),
    "rows of a Jacobian": lambda f, x, w: jax.jacrev(lambda w: f(x, w, 2).mean((1, 2)))(w),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_convolution_in_blocks_can_be_differentiated_twice_and_batched_like_xlas(name):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, 9, 8, 3)).astype(np.float32)
    weight = rng.standard_normal((4, 4, 3, 5)).astype(np.float32)
    found, expected = (jax.jit(partial(TWICE[name], f))(images, weight) for f in (in_blocks, xla_convolution))
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_in_a_loop_no_convolution_has_axes_for_which_xla_has_no_fast_kernel():
    # XLA mends their order outside of loops only; inside, the gradient of 256 images took 1.4 s.
    images, weight = np.zeros((2, 3, 9, 9, 4), np.float32), np.zeros((4, 4, 4, 5), np.float32)

    def loss(images, weight):
        return jnp.sum(jax.lax.map(lambda part: jnp.sin(in_blocks(part, weight, 2)), images))

    program = jax.jit(jax.grad(loss, (0, 1))).lower(images, weight).compile().as_text()
    orders = [
        line.partition("dim_labels=")[2].split(",")[0].split()[0]
        for line in program.splitlines()
        if " convolution(" in line
    ]
    assert len(orders) == 2  # forwards, and the weights' gradient; the images' is a product
    assert set(orders) == {"b01f_01io->b01f"}


def test_a_block_holds_a_strides_pixels_and_bytes_stay_bytes():
    image = np.arange(36, dtype=np.uint8).reshape(1, 6, 6, 1)
    blocks = blocks_of(jnp.asarray(image), kernel=4, stride=2, channels_first=False)
    assert blocks.dtype == np.uint8
    assert blocks.shape == (1, 3, 3, 4)
    np.testing.assert_array_equal(blocks[0, 1, 2], [16, 17, 22, 23])


def test_what_no_filter_sees_is_in_no_block():
    assert blocks_of(jnp.zeros((1, 7, 9, 2)), 4, 2, channels_first=False).shape == (1, 3, 4, 8)
    assert blocks_of(jnp.zeros((1, 2, 7, 9)), 4, 2, channels_first=True).shape == (1, 3, 4, 8)


# Bytes are moved in words if the stride is 2 or 4, else one by one.
@pytest.mark.parametrize(("stride", "dtype"), [(4, np.uint8), (2, np.uint8), (3, np.uint8), (4, np.float32)])
def test_a_block_of_planes_holds_each_planes_pixels_in_turn(stride, dtype):
    images = np.random.default_rng(0).integers(0, 255, (2, 3, 27, 25)).astype(dtype)
    blocks = np.asarray(blocks_of(jnp.asarray(images), 2 * stride, stride, channels_first=True))
    assert blocks.dtype == dtype
    expected = images[1, :, 2 * stride : 3 * stride, stride : 2 * stride]
    np.testing.assert_array_equal(blocks[1, 2, 1], expected.reshape(-1))


@pytest.mark.parametrize(("backend", "form"), [("cpu", "birl_convolution"), ("gpu", "window_strides=(2, 2)")])
def test_the_form_of_a_convolution_is_chosen_by_the_backend_and_the_parameters_are_the_same(backend, form, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    conv = make_conv(np.random.default_rng(0), 4, 2, 3, 2)
    assert conv.weight.shape == (4, 4, 2, 3)
    images = np.zeros((1, 8, 8, 2), np.float32)
    traced = jax.make_jaxpr(lambda x: convolve(x, conv.weight, conv.bias, conv.stride, False))(images)
    assert form in str(traced)


def test_a_convolution_starts_orthogonal_scaled_by_root_2():
    weight = np.asarray(make_conv(np.random.default_rng(0), 3, 2, 4, 1).weight, np.float64).reshape(-1, 4)
    np.testing.assert_allclose(weight.T @ weight, 2.0 * np.eye(4), atol=1e-5)
