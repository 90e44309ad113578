"""Cores: the recurrent part of a network, between encoder and heads.

All cores have the same signature, so recurrence is only a setting:
core(features [T, B, F], memory, resets [T, B]) -> (features [T, B, H], memory).
Where resets[t] is set, observation t is the first of an episode, and step t starts from the initial
memory.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from birl.nets.layers import LayerNorm, make_layer_norm, make_linear, orthogonal, zeros
from birl.parts import CoreName
from birl.types import PyTree, Rollout


class FeedForward(eqx.Module):
    """No memory: returns the features unchanged."""

    size: int = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> tuple[()]:
        return ()

    def __call__(
        self, features: Float[Array, "T B F"], memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[Array, PyTree]:
        return features, memory


class LSTM(eqx.Module):
    """LSTM (Hochreiter & Schmidhuber 1997) with forget gates (Gers et al. 2000)."""

    inputs: Float[Array, "F 4H"]
    recurrent: Float[Array, "H 4H"]
    bias: Float[Array, " 4H"]
    size: int = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        return zeros(num_envs, self.size), zeros(num_envs, self.size)

    def __call__(
        self, features: Float[Array, "T B F"], memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[Array, PyTree]:
        # The input part of the gates does not depend on memory: one matrix product for all steps.
        projected = features @ self.inputs + self.bias
        return _unroll(self._step, projected, memory, resets, self.initial_memory(resets.shape[1]))

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
        projected = self.norm_inputs(features @ self.inputs) + self.bias
        return _unroll(self._step, projected, memory, resets, self.initial_memory(resets.shape[1]))

    def _step(self, memory: PyTree, projected: Array) -> tuple[PyTree, Array]:
        hidden, cell = memory
        cell, output_gate = _lstm_cell(projected + self.norm_recurrent(hidden @ self.recurrent), cell)
        hidden = output_gate * jnp.tanh(self.norm_cell(cell))
        return (hidden, cell), hidden


class GRU(eqx.Module):
    """GRU (Cho et al. 2014) with the reset gate applied after the matrix product."""

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
        projected = features @ self.inputs + self.bias
        return _unroll(self._step, projected, memory, resets, self.initial_memory(resets.shape[1]))

    def _step(self, hidden: Array, projected: Array) -> tuple[Array, Array]:
        reset_in, update_in, candidate_in = jnp.split(projected, 3, axis=-1)
        reset_rec, update_rec, candidate_rec = jnp.split(hidden @ self.recurrent, 3, axis=-1)
        reset_gate = jax.nn.sigmoid(reset_in + reset_rec)
        update_gate = jax.nn.sigmoid(update_in + update_rec)
        candidate = jnp.tanh(candidate_in + reset_gate * (candidate_rec + self.candidate_bias))
        hidden = update_gate * hidden + (1 - update_gate) * candidate
        return hidden, hidden


Core = FeedForward | LSTM | LayerNormLSTM | GRU


def make_core(rng: np.random.Generator, name: CoreName, inputs: int, size: int) -> Core:
    """The core `name` for `inputs` features.

    Weights are orthogonal and biases zero, except those of an LSTM's forget gates, which are 1.
    """
    if name == "feedforward":
        return FeedForward(inputs)
    gates = 3 if name == "gru" else 4
    from_inputs = make_linear(rng, inputs, gates * size, scale=1.0).weight
    recurrent = jax.device_put(np.concatenate([orthogonal(rng, size, size, 1.0) for _ in range(gates)], axis=1))
    bias = np.zeros(gates * size, np.float32)
    if name == "gru":
        return GRU(from_inputs, recurrent, jnp.asarray(bias), zeros(size), size)
    bias[size : 2 * size] = 1.0  # open forget gates (Jozefowicz et al. 2015)
    if name == "lstm":
        return LSTM(from_inputs, recurrent, jnp.asarray(bias), size)
    norms = make_layer_norm(4 * size), make_layer_norm(4 * size), make_layer_norm(size)
    return LayerNormLSTM(from_inputs, recurrent, jnp.asarray(bias), *norms, size)


def reset_memory(memory: PyTree, resets: Bool[Array, " B"], initial: PyTree) -> PyTree:
    """The memory, with the initial memory in the rows where `resets` is set.

    Leaves are [B, ...], of any shape and type.
    """

    def reset(before: Array, start: Array) -> Array:
        return jnp.where(resets.reshape(-1, *[1] * (before.ndim - 1)), start, before)

    return jax.tree.map(reset, memory, initial)


def rollout_resets(rollout: Rollout) -> Bool[Array, "T+1 B"]:
    """Resets before each observation of a rollout: true where it is the first of an episode."""
    first = jnp.zeros_like(rollout.valid[0]) if rollout.resets is None else rollout.resets
    return jnp.concatenate([first[None], ~rollout.valid])


def _unroll(
    step: Callable[[PyTree, Array], tuple[PyTree, Array]],
    projected: Array,
    memory: PyTree,
    resets: Array,
    initial: PyTree,
) -> tuple[Array, PyTree]:
    def reset_and_step(memory: PyTree, row: tuple[Array, Array]) -> tuple[PyTree, Array]:
        features, row_resets = row
        return step(reset_memory(memory, row_resets, initial), features)

    if len(projected) == 1:  # one step, as for acting, needs no loop
        memory, output = reset_and_step(memory, (projected[0], resets[0]))
        return output[None], memory
    memory, outputs = jax.lax.scan(reset_and_step, memory, (projected, resets))
    return outputs, memory


def _lstm_cell(gates: Array, cell: Array) -> tuple[Array, Array]:
    input_gate, forget_gate, output_gate, candidate = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(forget_gate) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
    return cell, jax.nn.sigmoid(output_gate)
