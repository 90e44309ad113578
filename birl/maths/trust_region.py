"""Trust region steps: natural gradient and line search (TRPO), and gradient projection (ACER).

The natural gradient comes from conjugate gradients (Schulman et al. 2015, section 6). Parameters
and gradients are flat vectors (jax.flatten_util.ravel_pytree), so that each product or sum is one
operation. The projection is that of Wang et al. 2017, section 3.3.
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


class NaturalStep(NamedTuple):
    """A step of the parameters: size · direction."""

    direction: Array  # [P]
    size: Array


class LineSearch(NamedTuple):
    """The result of a line search."""

    parameters: Array  # [P]; the initial parameters, bit for bit, if no candidate was accepted
    loss: Array  # at these parameters
    kl: Array  # at these parameters; 0 if no candidate was accepted
    fraction: Array  # the fraction of the step that was taken; 0 if no candidate was accepted
    accepted: Array  # whether a candidate was accepted
    backtracks: Array  # the number of rejected candidates


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
    """v -> (JᵀMJ + damping · I) v, by the Fisher matrix (Schulman et al. 2015, appendix C.1).

    J is the Jacobian of the statistics and M the Hessian of the KL in them. At the old parameters
    JᵀMJ is the Hessian of the mean KL: the gradient of the KL is zero there, so the term with the
    derivative of J vanishes. The network is linearised once, so a product needs no forward pass.
    """
    statistics, forward = jax.linearize(distribution_of, parameters)
    backward = jax.linear_transpose(forward, parameters)
    _, curve = jax.linearize(jax.grad(mean_kl), statistics)
    return lambda vector: backward(curve(forward(vector)))[0] + damping * vector


def conjugate_gradient(product: Product, target: Vector, max_steps: int, tolerance: float = 1e-10) -> Vector:
    """x with H x ≈ target for a positive definite H (Hestenes & Stiefel 1952).

    It stops once ‖target - H x‖² ≤ tolerance · ‖target‖².
    """
    enough = tolerance * jnp.vdot(target, target)

    def unfinished(solution: _Solution) -> Array:
        return (solution.steps < max_steps) & (solution.squared > enough)

    def improve(solution: _Solution) -> _Solution:
        curved = product(solution.direction)
        curvature = jnp.vdot(solution.direction, curved)
        # Rounding can give a flat direction a negative curvature: stop there.
        length = jnp.where(curvature > 0, solution.squared / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        residual = solution.residual - length * curved
        squared = jnp.where(curvature > 0, jnp.vdot(residual, residual), 0.0)
        direction = residual + squared / solution.squared * solution.direction
        return _Solution(solution.x + length * solution.direction, residual, direction, squared, solution.steps + 1)

    start = _Solution(jnp.zeros_like(target), target, target, jnp.vdot(target, target), jnp.int32(0))
    return jax.lax.while_loop(unfinished, improve, start).x


def natural_step(product: Product, gradient: Vector, max_kl: Scalar, cg_steps: int) -> NaturalStep:
    """The direction x = -H⁻¹g and the size √(2δ / xᵀHx) (Schulman et al. 2015, appendix C).

    At this size the quadratic model of the KL, ½ size² xᵀHx, equals δ.
    """
    direction = -conjugate_gradient(product, gradient, cg_steps)
    curvature = jnp.vdot(direction, product(direction))
    # A zero gradient gives a zero direction: the size must be 0 then, for ∞ · 0 is NaN.
    size = jnp.where(curvature > 0, jnp.sqrt(2.0 * max_kl / jnp.where(curvature > 0, curvature, 1.0)), 0.0)
    return NaturalStep(direction, size)


def line_search(
    evaluate: Callable[[Array], tuple[Array, Array]],  # parameters -> loss, KL
    parameters: Vector,
    step: Vector,
    max_kl: Scalar,  # δ
    factor: Scalar,
    max_tries: int,
) -> LineSearch:
    """The first of parameters + factorᵏ · step, k = 0, 1, ..., with KL ≤ δ and a lower loss.

    This is TRPO's line search. If there is none, the parameters stay as they are. A candidate with
    a NaN is never accepted, for comparisons with NaN are false.
    """

    def searching(search: LineSearch) -> Array:
        return ~search.accepted & (search.backtracks < max_tries)

    def try_next(search: LineSearch) -> LineSearch:
        # The first pass computes the loss to beat: compiled elsewhere, it could differ in its last
        # bits, and a step of zero could look like progress.
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
    """The z closest to g with k·z ≤ δ: g - max(0, (k·g - δ) / ‖k‖²) k (Wang et al. 2017, eq. 12).

    Each state is projected separately. Leaves are [..., statistics], and a product sums over the
    statistics of all leaves.
    """
    squared = dot(kl_gradients, kl_gradients)
    # Where the policies are equal, k and k·g are 0: avoid 0 / 0.
    excess = jnp.maximum(0.0, dot(kl_gradients, gradients) - limit) / jnp.where(squared > 0, squared, 1.0)
    return jax.tree.map(lambda g, k: g - excess[..., None] * k, gradients, kl_gradients)


def dot(left: PyTree, right: PyTree) -> Float[Array, "*batch"]:
    """The dot product over the last axis, summed over all leaves."""
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y, axis=-1), left, right)), start=jnp.zeros(()))
