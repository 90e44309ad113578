"""Steps within a trust region: the natural gradient by conjugate gradients, then a line search
(Schulman et al. 2015, appendix C), of parameters and gradients as flat vectors
(jax.flatten_util.ravel_pytree), so that each product and sum is one operation; and the projection
of the gradients of each state's policy (Wang et al. 2017, section 3.3).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Scalar = float | Float[Array, ""]
Vector = Float[Array, " P"]
Product = Callable[[Array], Array]  # v -> H v


class Step(NamedTuple):
    """Where to go from the parameters and how far: size · direction."""

    direction: Array  # [P]
    size: Array


class LineSearch(NamedTuple):
    """What a line search found."""

    parameters: Array  # [P]; the ones it started from, bit for bit, if nothing was accepted
    loss: Array  # there
    kl: Array  # there; 0 if nothing was accepted
    fraction: Array  # of the step that was taken; 0 if nothing was accepted
    accepted: Array
    backtracks: Array  # candidates that were refused


class _Solution(NamedTuple):
    x: Array
    residual: Array  # target - H x
    direction: Array
    squared: Array  # ‖residual‖²
    steps: Array


def fisher_vector_product(
    distribution_of: Callable[[Array], PyTree],  # parameters -> the policy's statistics
    mean_kl: Callable[[PyTree], Array],  # statistics -> mean KL(old‖new)
    parameters: Vector,
    damping: Scalar,
) -> Product:
    """v -> (JᵀMJ + damping · I) v, J the statistics' derivative, M the KL's Hessian in them: the
    Fisher matrix (appendix C.1).

    At the old parameters it is the Hessian of the mean KL: the KL's gradient is zero there, and
    with it what J's own derivative would add. The network is linearised once, so that a product
    does not repeat its forward pass.
    """
    statistics, forward = jax.linearize(distribution_of, parameters)
    backward = jax.linear_transpose(forward, parameters)
    _, curve = jax.linearize(jax.grad(mean_kl), statistics)
    return lambda vector: backward(curve(forward(vector)))[0] + damping * vector


def conjugate_gradient(product: Product, target: Vector, max_steps: int, tolerance: float = 1e-10) -> Vector:
    """x with H x ≈ target for a positive definite H (Hestenes & Stiefel 1952); stops once ‖target -
    H x‖² ≤ tolerance · ‖target‖².
    """
    enough = tolerance * jnp.vdot(target, target)

    def unfinished(solution: _Solution) -> Array:
        return (solution.steps < max_steps) & (solution.squared > enough)

    def improve(solution: _Solution) -> _Solution:
        curved = product(solution.direction)
        curvature = jnp.vdot(solution.direction, curved)
        # Rounding can make a flat direction curve downwards: stop there, rather than run off along
        # it.
        length = jnp.where(curvature > 0, solution.squared / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        residual = solution.residual - length * curved
        squared = jnp.where(curvature > 0, jnp.vdot(residual, residual), 0.0)
        direction = residual + squared / solution.squared * solution.direction
        return _Solution(solution.x + length * solution.direction, residual, direction, squared, solution.steps + 1)

    start = _Solution(jnp.zeros_like(target), target, target, jnp.vdot(target, target), jnp.int32(0))
    return jax.lax.while_loop(unfinished, improve, start).x


def natural_step(product: Product, gradient: Vector, max_kl: Scalar, cg_steps: int) -> Step:
    """Direction x = -H⁻¹g and size √(2δ / xᵀHx), at which the quadratic model of the KL, ½ size²
    xᵀHx, is δ (appendix C).
    """
    direction = -conjugate_gradient(product, gradient, cg_steps)
    curvature = jnp.vdot(direction, product(direction))
    # Without a gradient there is no direction: a size of 0, for ∞ · 0 is NaN.
    size = jnp.where(curvature > 0, jnp.sqrt(2.0 * max_kl / jnp.where(curvature > 0, curvature, 1.0)), 0.0)
    return Step(direction, size)


def line_search(
    evaluate: Callable[[Array], tuple[Array, Array]],  # parameters -> loss, KL
    parameters: Vector,
    step: Vector,
    max_kl: Scalar,  # δ
    factor: float,
    max_tries: int,
) -> LineSearch:
    """The first of parameters + factorᵏ · step, k = 0, 1, ..., with KL ≤ δ and a lower loss; else
    the parameters as they were.

    A comparison with NaN is false, so that nothing is ever accepted there.
    """

    def searching(search: LineSearch) -> Array:
        return ~search.accepted & (search.backtracks < max_tries)

    def try_next(search: LineSearch) -> LineSearch:
        # The loss to beat comes from this loop too: compiled elsewhere, its last bits could make a
        # step of nothing look better.
        at_start = search.backtracks < 0
        fraction = jnp.float32(factor) ** search.backtracks
        candidate = jnp.where(at_start, parameters, parameters + fraction * step)
        loss, kl = evaluate(candidate)
        accepted = ~at_start & (kl <= max_kl) & (loss < search.loss)
        found = LineSearch(candidate, loss, kl, fraction, accepted, search.backtracks)
        refused = search._replace(loss=jnp.where(at_start, loss, search.loss), backtracks=search.backtracks + 1)
        return jax.tree.map(partial(jnp.where, accepted), found, refused)

    zero = jnp.zeros((), parameters.dtype)
    return jax.lax.while_loop(
        searching, try_next, LineSearch(parameters, zero, zero, zero, jnp.bool_(False), jnp.int32(-1))
    )


def project(gradients: PyTree, kl_gradients: PyTree, limit: Scalar) -> PyTree:
    """z closest to g with k·z ≤ δ: g - max(0, (k·g - δ) / ‖k‖²) k (Wang et al. 2017, eq. 12), for
    each state by itself.

    The leaves are [..., statistics]; the products run over the statistics of all of them.
    """
    squared = dot(kl_gradients, kl_gradients)
    # Where the policies are the same k is 0, and so is k·g: nothing to project, but no 0 / 0.
    excess = jnp.maximum(0.0, dot(kl_gradients, gradients) - limit) / jnp.where(squared > 0, squared, 1.0)
    return jax.tree.map(lambda g, k: g - excess[..., None] * k, gradients, kl_gradients)


def dot(left: PyTree, right: PyTree) -> Float[Array, "*batch"]:
    """Sums over the last axis of the products of all leaves."""
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y, axis=-1), left, right)), start=jnp.zeros(()))
