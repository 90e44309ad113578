"""Cores: what a network remembers between steps. One signature for all, so recurrence is a switch,
not a class of algorithm.

core(features [T, B, F], memory, resets [T, B]) -> (features [T, B, H], memory). Where resets[t] is
set, step t starts from the initial memory, whatever is handed in: its observation is the first of
an episode.
"""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from birl.nets.layers import LayerNorm, make_layer_norm, make_linear, orthogonal, zeros
from birl.types import PyTree, Rollout

CoreName = Literal["feedforward", "lstm", "lnlstm", "gru"]


class FeedForward(eqx.Module):
    """No memory: features pass through."""

    size: int = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> tuple[()]:
        return ()

    def __call__(
        self, features: Float[Array, "T B F"], memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[Array, PyTree]:
        return features, memory


class LSTM(eqx.Module):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), with forget gates (Gers et al.
    2000).
    """

    inputs: Float[Array, "F 4H"]
    recurrent: Float[Array, "H 4H"]
    bias: Float[Array, " 4H"]
    size: int = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        return zeros(num_envs, self.size), zeros(num_envs, self.size)

    def __call__(
        self, features: Float[Array, "T B F"], memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[Array, PyTree]:
        # The inputs' part of the gates does not wait for the memory: one matrix product for all
        # steps.
        return _unroll(
            self._step, features @ self.inputs + self.bias, memory, resets, self.initial_memory(resets.shape[1])
        )

    def _step(self, memory: PyTree, projected: Array) -> tuple[PyTree, Array]:
        hidden, cell = memory
        cell, output_gate = _lstm_cell(projected + hidden @ self.recurrent, cell)
        hidden = output_gate * jnp.tanh(cell)
        return (hidden, cell), hidden


class LayerNormLSTM(eqx.Module):
    """LSTM with layer normalisation of inputs, recurrence and cell (Ba et al. 2016, eqs. 20-22)."""

    inputs: Float[Array, "F 4H"]
    recurrent: Float[Array, "H 4H"]
    bias: Float[Array, " 4H"]
    norm_inputs: LayerNorm
    norm_recurrent: LayerNorm
    norm_cell: LayerNorm
    size: int = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        return zeros(num_envs, self.size), zeros(num_envs, self.size)

    def __call__(
        self, features: Float[Array, "T B F"], memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[Array, PyTree]:
        return _unroll(
            self._step,
            self.norm_inputs(features @ self.inputs) + self.bias,
            memory,
            resets,
            self.initial_memory(resets.shape[1]),
        )

    def _step(self, memory: PyTree, projected: Array) -> tuple[PyTree, Array]:
        hidden, cell = memory
        cell, output_gate = _lstm_cell(projected + self.norm_recurrent(hidden @ self.recurrent), cell)
        hidden = output_gate * jnp.tanh(self.norm_cell(cell))
        return (hidden, cell), hidden


class GRU(eqx.Module):
    """Gated recurrent unit (Cho et al. 2014), the reset gate applied after the matrix product."""

    inputs: Float[Array, "F 3H"]
    recurrent: Float[Array, "H 3H"]
    bias: Float[Array, " 3H"]
    candidate_bias: Float[Array, " H"]
    size: int = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        return zeros(num_envs, self.size)

    def __call__(
        self, features: Float[Array, "T B F"], memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[Array, PyTree]:
        return _unroll(
            self._step, features @ self.inputs + self.bias, memory, resets, self.initial_memory(resets.shape[1])
        )

    def _step(self, hidden: Array, projected: Array) -> tuple[Array, Array]:
        reset_in, update_in, candidate_in = jnp.split(projected, 3, axis=-1)
        reset_rec, update_rec, candidate_rec = jnp.split(hidden @ self.recurrent, 3, axis=-1)
        reset_gate, update_gate = jax.nn.sigmoid(reset_in + reset_rec), jax.nn.sigmoid(update_in + update_rec)
        candidate = jnp.tanh(candidate_in + reset_gate * (candidate_rec + self.candidate_bias))
        hidden = update_gate * hidden + (1 - update_gate) * candidate
        return hidden, hidden


Core = FeedForward | LSTM | LayerNormLSTM | GRU


def make_core(rng: np.random.Generator, name: CoreName, inputs: int, size: int) -> Core:
    """The core of that name for `inputs` features; orthogonal weights, zero biases, forget gates
    open.
    """
    if name == "feedforward":
        return FeedForward(inputs)
    gates = 3 if name == "gru" else 4
    from_inputs = make_linear(rng, inputs, gates * size, scale=1.0).weight
    recurrent = jnp.asarray(np.concatenate([orthogonal(rng, size, size, 1.0) for _ in range(gates)], axis=1))
    bias = np.zeros(gates * size, np.float32)
    if name == "gru":
        return GRU(from_inputs, recurrent, jnp.asarray(bias), zeros(size), size)
    bias[size : 2 * size] = 1.0  # forget nothing at first (Jozefowicz et al. 2015)
    if name == "lstm":
        return LSTM(from_inputs, recurrent, jnp.asarray(bias), size)
    norms = make_layer_norm(4 * size), make_layer_norm(4 * size), make_layer_norm(size)
    return LayerNormLSTM(from_inputs, recurrent, jnp.asarray(bias), *norms, size)


def reset_memory(memory: PyTree, resets: Bool[Array, " B"], initial: PyTree) -> PyTree:
    """Memory with the initial one in the rows of environments that begin an episode; leaves [B,
    ...] of any shape and type.
    """

    def chosen(before: Array, start: Array) -> Array:
        return jnp.where(resets.reshape(-1, *[1] * (before.ndim - 1)), start, before)

    return jax.tree.map(chosen, memory, initial)


def rollout_resets(rollout: Rollout) -> Bool[Array, "T+1 B"]:
    """Where memory starts anew: after the steps in which environments reset themselves."""
    first = jnp.zeros_like(rollout.valid[0]) if rollout.resets is None else rollout.resets
    return jnp.concatenate([first[None], ~rollout.valid])


def _unroll(
    step: Callable[[PyTree, Array], tuple[PyTree, Array]],
    projected: Array,
    memory: PyTree,
    resets: Array,
    initial: PyTree,
) -> tuple[Array, PyTree]:
    def forget_then_step(memory: PyTree, at_t: tuple[Array, Array]) -> tuple[PyTree, Array]:
        features, starts = at_t
        return step(reset_memory(memory, starts, initial), features)

    if len(projected) == 1:  # to act: no loop
        memory, output = forget_then_step(memory, (projected[0], resets[0]))
        return output[None], memory
    memory, outputs = jax.lax.scan(forget_then_step, memory, (projected, resets))
    return outputs, memory


def _lstm_cell(gates: Array, cell: Array) -> tuple[Array, Array]:
    input_gate, forget_gate, output_gate, candidate = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(forget_gate) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    return cell, jax.nn.sigmoid(output_gate)
