"""Find the first NaN or infinity in a rollout or in the gradients, and report its place.

`first_problem` works inside compiled programs, which cannot raise: the host calls `raise_problem`
when the program has ended.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from birl.errors import NonFiniteError
from birl.types import Array, Metrics, PyTree, Rollout

NONE, GRADIENT, REWARD = range(3)  # kinds; the parts of an observation are numbered from REWARD + 1
REMEDY = "Lower learning_rate, set max_grad_norm or switch on normalize_observations"


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
    for number, array in reversed(
        list(enumerate(_floats(rollout.rewards, rollout.observations).values()))
    ):  # rewards last: they win
        flat = array.reshape(*array.shape[:2], -1)
        bad = ~jnp.isfinite(flat)
        step, env, entry = jnp.unravel_index(jnp.argmax(bad), flat.shape)
        found = Problem(jnp.int32(REWARD + number), step, env, flat[step, env, entry].astype(jnp.float32))
        problem = _choose(bad.any(), found, problem)
    return problem


def with_gradients(problem: Problem, metrics: Metrics, learned: Array | bool) -> Problem:
    """The problem; if there is none, that of a gradient's norm which is not finite."""
    for name, norm in metrics.items():
        if name.endswith("grad_norm"):
            found = Problem(jnp.int32(GRADIENT), jnp.int32(0), jnp.int32(0), jnp.asarray(norm, jnp.float32))
            problem = _choose((problem.kind == NONE) & learned & ~jnp.isfinite(norm), found, problem)
    return problem


def raise_problem(problem: Problem, observations: PyTree, metrics: Metrics) -> None:
    """Raise NonFiniteError if there is a problem; observations give the names of their parts."""
    kind = int(problem.kind)
    if kind == GRADIENT:
        rounded = {name: round(float(value), 4) for name, value in metrics.items()}
        raise NonFiniteError(
            f"the gradient's norm is {float(problem.value)}. {REMEDY}; metrics of the update: {rounded}"
        )
    if kind != NONE:
        name = list(_floats(None, observations))[kind - REWARD]
        where = f"{name} of environment {int(problem.env)} is {float(problem.value)} at step {int(problem.step)}"
        raise NonFiniteError(f"{where} of the rollout; training stopped")


def check_finite(rollout: Rollout) -> None:
    """Raise NonFiniteError if an observation or a reward on the host is not finite.

    The message names the array, the environment and the step.
    """
    if not all(np.isfinite(array).all() for array in _floats(rollout.rewards, rollout.observations).values()):
        raise_problem(first_problem(rollout), rollout.observations, {})


def check_finite_metrics(metrics: Metrics) -> Metrics:
    """The metrics as plain numbers; NonFiniteError if a gradient's norm is not finite."""
    # np.asarray first: float() of a JAX array takes 17 µs more.
    numbers = {name: float(np.asarray(value)) for name, value in metrics.items()}
    norms = (value for name, value in numbers.items() if name.endswith("grad_norm"))
    broken = next((norm for norm in norms if not np.isfinite(norm)), None)
    if broken is not None:
        rounded = {name: round(value, 4) for name, value in numbers.items()}
        thrown = f"the gradient's norm is {broken}; the update was thrown away."
        raise NonFiniteError(f"{thrown} {REMEDY}; metrics of the update: {rounded}")
    return numbers


def _floats(rewards: Array, observations: PyTree) -> dict[str, Array]:
    """The arrays that must be finite, by name."""
    parts = observations if isinstance(observations, dict) else {"": observations}
    floats = {name: part for name, part in parts.items() if np.issubdtype(part.dtype, np.floating)}
    return {"reward": rewards} | {f"observation {name}".strip(): part for name, part in floats.items()}


def _choose(condition: Array, yes: Problem, no: Problem) -> Problem:
    return Problem(*(jnp.where(condition, a, b) for a, b in zip(yes, no, strict=True)))


def for_learning(rollout: Rollout, clip_rewards: bool) -> Rollout:
    """The rollout without what is for statistics only; rewards are their signs if they are clipped.

    Clipping follows Mnih et al. 2015; returns are reported as they are.
    """
    rewards = np.sign(rollout.rewards) if clip_rewards else rollout.rewards
    return rollout._replace(game_over=None, successes=None, rewards=rewards)
