"""NaNs and infinities inside a program: it notes the first one, and the host says where it was."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from birl.errors import NonFiniteError
from birl.rollouts.learning import LEARNED
from birl.types import Array, Metrics, PyTree, Rollout

NONE, GRADIENT, REWARD = range(3)  # kinds; the parts of an observation are numbered from REWARD + 1


class Problem(NamedTuple):
    """The first number that is not finite."""

    kind: Array  # NONE if all are
    step: Array  # of the rollout
    env: Array
    value: Array


def no_problem() -> Problem:
    """All numbers are finite."""
    return Problem(jnp.int32(NONE), jnp.int32(0), jnp.int32(0), jnp.float32(0))


def first_problem(rollout: Rollout) -> Problem:
    """The first reward or observation of a rollout that is not finite."""
    problem = no_problem()
    arrays = [rollout.rewards, *_floats(rollout.observations).values()]
    for number, array in reversed(list(enumerate(arrays))):  # rewards last: they win
        flat = array.reshape(*array.shape[:2], -1)
        bad = ~jnp.isfinite(flat)
        place = jnp.argmax(bad)
        step, env, entry = jnp.unravel_index(place, flat.shape)
        found = Problem(jnp.int32(REWARD + number), step, env, flat[step, env, entry].astype(jnp.float32))
        problem = _choose(bad.any(), found, problem)
    return problem


def with_gradients(problem: Problem, metrics: Metrics) -> Problem:
    """The problem; if there is none, that of a gradient's norm which is not finite."""
    learned = metrics.get(LEARNED, True)
    for name, norm in metrics.items():
        if name.endswith("grad_norm"):
            found = Problem(jnp.int32(GRADIENT), jnp.int32(0), jnp.int32(0), jnp.asarray(norm, jnp.float32))
            problem = _choose((problem.kind == NONE) & learned & ~jnp.isfinite(norm), found, problem)
    return problem


def raise_problem(problem: Problem, observations: PyTree, metrics: Metrics) -> None:
    """Raise NonFiniteError if there is a problem; the observations give the names of its arrays."""
    kind = int(problem.kind)
    if kind == NONE:
        return
    if kind == GRADIENT:
        rounded = {name: round(float(value), 4) for name, value in metrics.items()}
        raise NonFiniteError(
            f"the gradient's norm is {float(problem.value)}. Lower learning_rate, set max_grad_norm "
            f"or switch on normalize_observations; metrics of the update: {rounded}"
        )
    name = ["reward", *_floats(observations)][kind - REWARD]
    where = f"{name} of environment {int(problem.env)} is {float(problem.value)} at step {int(problem.step)}"
    raise NonFiniteError(f"{where} of the rollout; training stopped")


def _floats(observations: PyTree) -> dict[str, Array]:
    """The parts of an observation that must be finite, by name."""
    parts = observations if isinstance(observations, dict) else {"": observations}
    return {
        f"observation {name}".strip(): array for name, array in parts.items() if np.issubdtype(array.dtype, np.floating)
    }


def _choose(condition: Array, yes: Problem, no: Problem) -> Problem:
    return Problem(*(jnp.where(condition, a, b) for a, b in zip(yes, no, strict=True)))
