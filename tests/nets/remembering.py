"""A recurrent network that a user might write: memory of several shapes, none starting at zero."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from birl.maths.distributions import Categorical
from birl.nets.recurrent import reset_memory

COUNT_START = 7


class Remembering(eqx.Module):
    """Counts the steps of an episode in every leaf of its memory; the counts are its outputs."""

    start: jax.Array  # the initial value of two leaves
    bias: jax.Array  # [A], for up to three actions
    value: jax.Array
    slots: int = eqx.field(static=True)

    def initial_memory(self, num_envs):
        return {
            "count": np.full(num_envs, COUNT_START, np.int32),
            "slots": jnp.broadcast_to(self.start, (num_envs, self.slots, 2)),
            "row": jnp.broadcast_to(-self.start, (num_envs, 1, 2)),
        }

    def counted(self, observations, memory, resets):
        """[T, B, 3] the steps that each leaf has counted before, and the new memory."""
        initial = self.initial_memory(resets.shape[1])

        def step(memory, starts):
            memory = reset_memory(memory, starts, initial)
            slots = jnp.min(memory["slots"] - initial["slots"], axis=(1, 2))
            row = jnp.max(memory["row"] - initial["row"], axis=(1, 2))
            counts = [count.astype(jnp.float32) for count in (memory["count"] - COUNT_START, slots, row)]
            return jax.tree.map(lambda leaf: leaf + 1, memory), jnp.stack(counts, axis=-1)

        if len(resets) == 1:
            memory, counts = step(memory, resets[0])
            return counts[None], memory
        memory, counts = jax.lax.scan(step, memory, resets)
        return counts, memory

    def __call__(self, observations, memory, resets, action_masks):
        counts, memory = self.counted(observations, memory, resets)
        return Categorical(counts[..., : self.bias.size] + self.bias), counts[..., 0] + self.value, memory


class RememberingValues(eqx.Module):
    """Remembering with the interface of a QNetwork."""

    inside: Remembering

    def initial_memory(self, num_envs):
        return self.inside.initial_memory(num_envs)

    def __call__(self, observations, memory, resets):
        counts, memory = self.inside.counted(observations, memory, resets)
        return counts[..., : self.inside.bias.size] + self.inside.bias, memory


def make_remembering(rng, observation_space, action_space):
    return Remembering(jnp.float32(0.5), jnp.zeros(int(action_space.n)), jnp.zeros(()), slots=3)


def make_remembering_values(rng, observation_space, action_space):
    return RememberingValues(make_remembering(rng, observation_space, action_space))
