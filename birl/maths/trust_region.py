"""A step within a trust region: the natural gradient by conjugate gradients, then a line search (Schulman et al. 2015, appendix C).

Parameters and gradients are flat vectors (jax.flatten_util.ravel_pytree), so that each product and sum is one operation.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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


def fisher_vector_product(mean_kl: Callable[[Array], Array], parameters: Vector, damping: Scalar) -> Product:
    """v -> (H + damping · I) v, H the Hessian of θ -> mean KL(old‖θ) at old: the Fisher matrix (appendix C.1).

    Forward over reverse: the derivative of the gradient in the direction v. The gradient is linearised once, so that a product does
    not repeat the network's own forward and backward pass.
    """
    _, derivative = jax.linearize(jax.grad(mean_kl), parameters)
    return lambda vector: derivative(vector) + damping * vector


def conjugate_gradient(product: Product, target: Vector, max_steps: int, tolerance: float = 1e-10) -> Vector:
    """x with H x ≈ target for a positive definite H (Hestenes & Stiefel 1952); stops once ‖target - H x‖² ≤ tolerance · ‖target‖²."""
    enough = tolerance * jnp.vdot(target, target)

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, squared, step = state
        return (step < max_steps) & (squared > enough)

    def improve(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, residual, direction, squared, step = state
        curved = product(direction)
        curvature = jnp.vdot(direction, curved)
        # Rounding can make a flat direction curve downwards: stop there, rather than run off along it.
        length = jnp.where(curvature > 0, squared / jnp.where(curvature > 0, curvature, 1.0), 0.0)
        x, residual = x + length * direction, residual - length * curved
        smaller = jnp.where(curvature > 0, jnp.vdot(residual, residual), 0.0)
        return x, residual, residual + smaller / squared * direction, smaller, step + 1

    start = jnp.zeros_like(target), target, target, jnp.vdot(target, target), jnp.int32(0)
    return jax.lax.while_loop(unfinished, improve, start)[0]


def natural_step(product: Product, gradient: Vector, max_kl: Scalar, cg_steps: int) -> Step:
    """Direction x = -H⁻¹g and size √(2δ / xᵀHx), at which the quadratic model of the KL, ½ size² xᵀHx, is δ (appendix C)."""
    direction = -conjugate_gradient(product, gradient, cg_steps)
    curvature = jnp.vdot(direction, product(direction))
    # Without a gradient there is no direction: a size of 0, for ∞ · 0 is NaN.
    size = jnp.where(curvature > 0, jnp.sqrt(2.0 * max_kl / jnp.where(curvature > 0, curvature, 1.0)), 0.0)
    return Step(direction, size)


def line_search(
    evaluate: Callable[[Array], tuple[Array, Array]],  # parameters -> loss, KL
    parameters: Vector,
    step: Vector,
    loss: Float[Array, ""],  # at the parameters
    max_kl: Scalar,  # δ
    factor: float,
    max_tries: int,
) -> LineSearch:
    """The first of parameters + factorᵏ · step, k = 0, 1, ..., with KL ≤ δ and a lower loss; else the parameters as they were.

    A comparison with NaN is false, so that nothing is ever accepted there.
    """

    def searching(search: LineSearch) -> Array:
        return ~search.accepted & (search.backtracks < max_tries)

    def try_next(search: LineSearch) -> LineSearch:
        fraction = jnp.float32(factor) ** search.backtracks
        candidate = parameters + fraction * step
        candidate_loss, kl = evaluate(candidate)
        accepted = (kl <= max_kl) & (candidate_loss < loss)
        found = LineSearch(candidate, candidate_loss, kl, fraction, accepted, search.backtracks)
        return jax.tree.map(partial(jnp.where, accepted), found, search._replace(backtracks=search.backtracks + 1))

    zero = jnp.zeros_like(loss)
    return jax.lax.while_loop(searching, try_next, LineSearch(parameters, loss, zero, zero, jnp.bool_(False), jnp.int32(0)))
