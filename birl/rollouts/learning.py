"""Learning from a replay: a new rollout is added, and gradient steps follow if they are due.

Compiled environments do this inside their program, with both answers to "are steps due" compiled.
On the host Python asks, between two programs.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from birl import speed
from birl.maths.keys import stream
from birl.rollouts.replay import Indices, Replay
from birl.types import Array, Metrics, PyTree, Rollout

State = TypeVar("State", bound=Any)

LEARNED = "learned"  # in the metrics of a program: whether it took gradient steps


class Batch(NamedTuple):
    """What gradient steps learn from: arrays [G, N, ...] in an update, [N, ...] in one step."""

    steps: Any  # Transitions; if recurrent a Rollout, sequences [G, T, N, ...]
    probabilities: Array  # [G, N] with which each was sampled, up to a factor
    noise: Any = None  # [G, ..., N, A] standard normal, for algorithms that ask for it


# state, batch of one gradient step, Config -> state, (metrics, the new errors of the batch or None)
Learn = Callable[[State, Batch, Any], tuple[State, tuple[Metrics, Array | None]]]
# state, rollout, batches or None if no step is due, Config -> state, metrics, errors [G, N] or None
UpdateState = Callable[[State, Rollout, Batch | None, Any], tuple[State, Metrics, Array | None]]


def steps_per_update(config: Any) -> int:
    """G: gradient steps in one update, `update_ratio` for each environment step, rounded up."""
    return max(1, math.ceil(config.replay.update_ratio * config.rollout_length * config.env.num_envs - 1e-3))


def learn_in_program(
    update: UpdateState[State], state: State, replay: Replay, rollout: Rollout, config: Any
) -> tuple[State, Replay, Metrics]:
    """Add the rollout, and update the state with batches from the replay if steps are due.

    For use inside a program. Metrics that only gradient steps have are NaN if there were none.
    """
    replay.add(rollout)
    due, owed = steps_due(state.env_steps, state.owed, replay, rollout, config)
    state = state._replace(owed=owed)

    def learn() -> tuple[Any, ...]:
        return jax.tree.map(jnp.asarray, sample_and_update(update, state, replay, rollout, config))

    def wait() -> tuple[Any, ...]:
        state_after, metrics, _ = update(state, rollout, None, config)
        return jax.tree.map(jnp.asarray, (state_after, unknown(metrics_if_due) | metrics)) + unknown((errors, indices))

    _, metrics_if_due, errors, indices = jax.eval_shape(learn)
    state, metrics, errors, indices = jax.lax.cond(due, learn, wait)
    set_errors(replay, indices, errors)  # not in a branch, which would copy the replay
    return state, replay, metrics | {LEARNED: due}


def learn_on_host(
    update: UpdateState[State], state: State, replay: Replay, rollout: Rollout, config: Any
) -> tuple[State, Metrics]:
    """The same on the host: a program that adds, and one that learns if steps are due."""
    replay.require_fits(rollout)
    several = speed.has_several_devices(state)  # the replay stays on one
    counts = state.env_steps, state.owed
    added, due, owed = _add(replay, rollout, *(_on_host(counts) if several else counts), config)
    replay.arrays = added.arrays
    state = state._replace(owed=owed)
    if not due:
        state, metrics, _ = update(state, rollout, None, config)
    elif several:
        batches, indices = sample_batches(replay, _on_host(state.key), config)
        state, metrics, errors = update(state, rollout, batches, config)
        set_errors(replay, indices, _on_host(errors))
    else:
        state, learned, metrics = _learn(update, state, replay, rollout, config)
        replay.arrays = learned.arrays
    return state, known_metrics(metrics)


@partial(jax.jit, donate_argnames="replay")
def _add(replay: Replay, rollout: Rollout, env_steps: Any, owed: Array, config: Any) -> tuple[Replay, Array, Array]:
    replay.add(rollout)
    return replay, *steps_due(env_steps, owed, replay, rollout, config)


@partial(jax.jit, static_argnames="update", donate_argnames="replay")
def _learn(
    update: UpdateState[State], state: State, replay: Replay, rollout: Rollout, config: Any
) -> tuple[State, Replay, Metrics]:
    state, metrics, errors, indices = sample_and_update(update, state, replay, rollout, config)
    set_errors(replay, indices, errors)
    return state, replay, metrics


def sample_and_update(
    update: UpdateState[State], state: State, replay: Replay, rollout: Rollout, config: Any
) -> tuple[State, Metrics, Array | None, Indices | None]:
    """The state after gradient steps on batches from the replay; metrics, errors and indices."""
    batches, indices = sample_batches(replay, state.key, config)
    return *update(state, rollout, batches, config), indices


def set_errors(replay: Replay, indices: Indices | None, errors: Array | None) -> None:
    """Set the priorities of sampled transitions to their new errors, if there are any."""
    if errors is not None and indices is not None:
        replay.set_errors(indices, errors)


def _on_host(tree: PyTree) -> PyTree:
    """The arrays as NumPy's, which are on no device."""
    return jax.tree.map(np.asarray, tree)


def steps_due(env_steps: Any, owed: Array, replay: Replay, rollout: Rollout, config: Any) -> tuple[Array, Array]:
    """Whether gradient steps are due after this rollout, and how many are still owed then.

    It is all of an update's steps or none, so that one program is compiled. The rest is owed: it is
    carried over to the next update. Before `learning_starts` nothing is due and nothing is owed.
    """
    whole = np.float32(steps_per_update(config))
    starts = ~(env_steps < config.replay.learning_starts) & replay.ready
    owed = owed + np.float32(config.replay.update_ratio) * rollout.valid.sum(dtype=np.float32)
    due = starts & (owed > whole - 1e-3)  # 1e-3: ratios such as 1/3 are rounded
    return due, jnp.where(starts, owed - jnp.where(due, whole, np.float32(0)), np.float32(0))


def sample_batches(replay: Replay, key: Array, config: Any) -> tuple[Batch, Indices | None]:
    """The G batches of one update, and where they are in the replay; None for sequences."""
    shape = steps_per_update(config), config.replay.batch_size
    if replay.recurrent:  # never prioritized, so all probabilities are equal
        return Batch(replay.sample_sequences(key, shape), jnp.ones(shape)), None
    indices = replay.sample_indices(key, shape)
    return Batch(replay.gather(indices), indices.probabilities), indices


def take_steps(
    learn: Learn[State], state: State, batches: Batch | None, config: Any, noise: tuple[int, ...] = ()
) -> tuple[State, Metrics, Array | None]:
    """The state after a gradient step on each batch, the mean metrics, and the errors [G, N].

    `noise` is the shape of the normal noise that a step takes for each transition of its batch,
    before and behind N: (2, A) for [2, N, A]. It is drawn for all steps at once: sampling it in
    each gradient step of SAC took 0.2 of 4.6 ms.
    """
    if batches is None:
        return state, {}, None
    if noise:
        shape = (*batches.probabilities.shape[:1], *noise[:-1], *batches.probabilities.shape[1:], *noise[-1:])
        batches = batches._replace(noise=jax.random.normal(stream(state.key, "learning"), shape))
    state, (metrics, errors) = jax.lax.scan(lambda now, batch: learn(now, batch, config), state, batches)
    return state, jax.tree.map(jnp.mean, metrics), errors


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
