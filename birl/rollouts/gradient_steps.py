"""Whether gradient steps are due after a rollout, and an update with or without them.

For algorithms that learn from a replay. With compiled environments both questions are part of the
program, and so is the answer.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from birl.rollouts.device_replay import AnyReplay, DeviceReplay
from birl.types import Array, Metrics, PyTree, Rollout

Batches = TypeVar("Batches")
Result = TypeVar("Result", bound=tuple[Any, ...])

LEARNED = "learned"  # in the metrics of a program's cycle: whether it took gradient steps


class Counters(Protocol):
    """The part of an algorithm's State that counts steps."""

    @property
    def env_steps(self) -> Array: ...
    @property
    def owed(self) -> Array: ...


def gradient_steps(config: Any) -> int:
    """Gradient steps in one update: `update_ratio` for each environment step, rounded up."""
    return max(1, math.ceil(config.replay.update_ratio * config.rollout_length * config.env.num_envs - 1e-3))


def gradient_steps_due(config: Any, state: Counters, replay: AnyReplay, rollout: Rollout) -> tuple[Array, Array]:
    """Gradient steps to take after this rollout, and how many are still owed then.

    It is all of an update's steps or none, so that one program is compiled. The rest is owed: it is
    carried over to the next update. Before `learning_starts` nothing is due and nothing is owed.
    """
    if isinstance(replay, DeviceReplay):
        return _due_in_program(config, state, replay, rollout)
    if int(state.env_steps) < config.replay.learning_starts or not replay.ready:
        return 0, np.float32(0)
    due, owed = due_steps(config, float(state.owed), int(rollout.valid.sum()))
    return due, np.float32(owed)


def due_steps(config: Any, owed: float, env_steps: int) -> tuple[int, float]:
    """Gradient steps to take after `env_steps` more steps, and how many are owed then."""
    owed += config.replay.update_ratio * env_steps
    whole = gradient_steps(config)
    return (whole, owed - whole) if owed > whole - 1e-3 else (0, owed)  # 1e-3: ratios such as 1/3 are rounded


def _due_in_program(config: Any, state: Counters, replay: DeviceReplay, rollout: Rollout) -> tuple[Array, Array]:
    """The same as arrays."""
    whole = gradient_steps(config)
    starts = ~(state.env_steps < config.replay.learning_starts) & replay.ready
    owed = state.owed + np.float32(config.replay.update_ratio) * rollout.valid.sum(dtype=jnp.float32)
    due = starts & (owed > whole - 1e-3)
    return jnp.where(due, whole, 0), jnp.where(starts, owed - jnp.where(due, np.float32(whole), 0), 0)


def update_if_due(due: Array, sample: Callable[[], Batches], update: Callable[[Batches | None], Result]) -> Result:
    """The update with batches if gradient steps are due, else without: state, metrics, others.

    In a program the two must give the same arrays. What an update without batches does not give is
    `unknown` there.
    """
    if not isinstance(due, jax.Array):
        return update(sample() if due else None)

    def learn() -> tuple[Any, ...]:
        state, metrics, *others = update(sample())
        return state, metrics | {LEARNED: jnp.bool_(True)}, *others

    _, known, *rest = jax.eval_shape(learn)

    def wait() -> tuple[Any, ...]:
        state, metrics, *_ = update(None)
        return state, unknown(known) | metrics | {LEARNED: jnp.bool_(False)}, *map(unknown, rest)

    return jax.lax.cond(due > 0, learn, wait)


def newest_metrics(metrics: Metrics, before: Metrics) -> Metrics:
    """Metrics of a program's cycle; if it took no gradient steps, theirs from before."""
    if LEARNED not in before:
        return metrics
    learned = metrics[LEARNED]
    newest = {name: jnp.where(learned | ~jnp.isnan(new), new, before[name]) for name, new in metrics.items()}
    return newest | {LEARNED: learned | before[LEARNED]}


def known_metrics(metrics: Metrics) -> Metrics:
    """Metrics at a program's end as floats, without those of gradient steps if it took none."""
    values = {name: float(np.asarray(value)) for name, value in metrics.items()}
    learned = values.pop(LEARNED, 1.0)
    return {name: value for name, value in values.items() if learned or not np.isnan(value)}


def unknown(like: PyTree) -> PyTree:
    """Arrays of these shapes and types that stand for nothing: NaN, False, or -1."""

    def nothing(array: jax.ShapeDtypeStruct) -> Array:
        value = {"f": jnp.nan, "b": False}.get(np.dtype(array.dtype).kind, -1)
        return jnp.full(array.shape, value, array.dtype)

    return jax.tree.map(nothing, like)
