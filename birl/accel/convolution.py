"""Convolutions of images in the form in which XLA is fast on a CPU.

XLA has fast kernels for stride 1 and one order of axes. It brings other convolutions into that
order, but not inside loops, where ours are: there the gradient of 256 images took 1.4 s, and takes
0.17. So blocks of stride x stride pixels become one pixel with more channels, which makes every
stride 1. The gradient of the weights is a convolution in that order, the gradient of the images a
matrix product.
"""

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from birl.accel.devices import on_cpu

AXES = ("NHWC", "HWIO", "NHWC")
# as many bytes, moved as one: blocks of 8 Atari images take 0.11 ms so, byte by byte 0.38
WORDS = {
    2: jnp.uint16,
    4: jnp.uint32,
}


def convolve(x: Array, weight: Array, bias: Array, stride: int, channels_first: bool = False) -> Array:
    """A valid convolution of images [N, height, width, channels], or [N, channels, height, width].

    Images are numbers or bytes; weights are [rows, columns, inputs, outputs].
    """
    if on_cpu() and weight.shape[0] % stride == 0:
        return block_convolution(x, weight, stride, channels_first) + bias
    return xla_convolution(jnp.moveaxis(x, 1, -1) if channels_first else x, weight, stride) + bias


def xla_convolution(x: Array, weight: Float[Array, "rows columns inputs outputs"], stride: int) -> Array:
    """Each place of a filter times the filter, by XLA's own operation."""
    return jax.lax.conv_general_dilated(
        x.astype(weight.dtype), weight, (stride, stride), "VALID", dimension_numbers=AXES
    )


# blocks of bytes are four times their image, and quickly made again for the gradient
@partial(jax.checkpoint, static_argnums=(2, 3))
def block_convolution(
    x: Array, weight: Float[Array, "rows columns inputs outputs"], stride: int, channels_first: bool
) -> Array:
    """A convolution by blocks of pixels; the stride must divide the kernel."""
    kernel, _, inputs, outputs = weight.shape
    steps = kernel // stride
    order = (0, 2, 4, 1, 3, 5) if channels_first else (0, 2, 1, 3, 4, 5)  # as in the images' blocks
    blocks = (
        weight.reshape(steps, stride, steps, stride, inputs, outputs)
        .transpose(order)
        .reshape(steps, steps, -1, outputs)
    )
    # Behind barriers, or XLA would let the convolution's own axes have another order instead.
    images = blocks_of(x, kernel, stride, channels_first).astype(weight.dtype)
    return convolution(*jax.lax.optimization_barrier((images, blocks)))


def blocks_of(x: Array, kernel: int, stride: int, channels_first: bool) -> Array:
    """[N, height, width, channels] to [N, rows, columns, stride · stride · channels], without what
    no filter sees.

    Of [N, channels, height, width] the last axis is channels · stride · stride.
    """
    height, width = x.shape[2:] if channels_first else x.shape[1:3]
    rows, columns = ((side - kernel) // stride + kernel // stride for side in (height, width))
    if not channels_first:
        x = x[:, : rows * stride, : columns * stride].reshape(len(x), rows, stride, columns, stride, -1)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), rows, columns, -1)
    x = x[:, :, : rows * stride, : columns * stride].reshape(len(x), -1, rows, stride, columns, stride)
    if x.dtype == jnp.uint8 and stride in WORDS:
        words = jax.lax.bitcast_convert_type(x, WORDS[stride]).transpose(0, 2, 4, 1, 3)
        x = jax.lax.bitcast_convert_type(jax.lax.optimization_barrier(words), jnp.uint8)
    else:
        x = x.transpose(0, 2, 4, 1, 3, 5)
    return x.reshape(len(x), rows, columns, -1)


def convolution(x: Float[Array, "N height width inputs"], weight: Float[Array, "rows columns inputs outputs"]) -> Array:
    """A valid convolution with stride 1, whose gradients are those below."""
    return convolution_p.bind(x, weight)


def images_gradient(
    weight: Array, gradient: Float[Array, "N rows columns outputs"]
) -> Float[Array, "N height width inputs"]:
    """Each pixel's part in the outputs: times each place of the filters, and added up where that
    place lay.

    As a convolution it would have a margin of zeros, with which 7 x 7 outputs take as long as 9 x
    9: for 8 images 0.56 ms against 0.28.
    """
    kernel, _, inputs, outputs = weight.shape
    by_output = jax.lax.optimization_barrier(weight.transpose(3, 0, 1, 2).reshape(outputs, -1))
    rows = jax.lax.optimization_barrier(gradient).reshape(-1, outputs)
    products = jax.lax.optimization_barrier(rows @ by_output).reshape(*gradient.shape[:3], kernel, kernel, inputs)
    places = [(row, column) for row in range(kernel) for column in range(kernel)]
    margins = [[(0, 0), *[(before, kernel - 1 - before) for before in place], (0, 0)] for place in places]
    return reduce(
        jnp.add, [jnp.pad(products[..., *place, :], margin) for place, margin in zip(places, margins, strict=True)]
    )


def weight_gradient(
    x: Array, gradient: Float[Array, "N rows columns outputs"]
) -> Float[Array, "rows columns inputs outputs"]:
    """Each input channel as an image, with the N images as its channels, under the gradient as
    filters.
    """
    channels, filters = jax.lax.optimization_barrier((x.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3)))
    return jax.lax.optimization_barrier(xla_convolution(channels, filters, 1)).transpose(1, 2, 0, 3)


def _shaped(x: ShapedArray, weight: ShapedArray) -> ShapedArray:
    (images, height, width, _), (rows, columns, _, outputs) = x.shape, weight.shape
    return ShapedArray((images, height - rows + 1, width - columns + 1, outputs), weight.dtype)


def _batched(arrays: tuple[Array, Array], axes: tuple[Any, Any]) -> tuple[Array, int]:
    """Many convolutions at once: of more images, if the filters are the same; otherwise by XLA's
    own operation.
    """
    (x, weight), (x_axis, weight_axis) = arrays, axes
    if weight_axis is not None:
        return jax.vmap(partial(xla_convolution, stride=1), axes)(x, weight), 0
    x = jnp.moveaxis(x, x_axis, 0)
    outputs = convolution(x.reshape(-1, *x.shape[2:]), weight)
    return outputs.reshape(*x.shape[:2], *outputs.shape[1:]), 0


# An operation of JAX's, so that it has gradients of its own in both directions, gradients of
# gradients, and vmap of all of them.
convolution_p = Primitive("birl_convolution")
convolution_p.def_impl(partial(xla_convolution, stride=1))
convolution_p.def_abstract_eval(_shaped)
mlir.register_lowering(convolution_p, mlir.lower_fun(partial(xla_convolution, stride=1), multiple_results=False))
ad.defbilinear(
    convolution_p,
    lambda gradient, x, weight: images_gradient(weight, gradient),
    lambda gradient, x, weight: weight_gradient(x, gradient),
)
batching.primitive_batchers[convolution_p] = _batched
