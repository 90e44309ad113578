"""Networks for every recurrent algorithm whose memory is a tree of dicts and tuples.

Its leaves are float32, int32 and bool, and none is zero at the start of an episode.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from birl.maths.distributions import Categorical, DiagonalGaussian
from birl.nets.heads import ActionValueHead, make_action_value_head
from birl.nets.layers import Linear, make_linear
from birl.nets.recurrent import reset_memory
from birl.nets.values import distribution_of, outputs_each
from birl.parts import ValueConfig

FIRST_STEP = 5
SIZE = 4  # features


class Memory(eqx.Module):
    """A decaying sum of observations, the number of the step, and whether that is even."""

    layer: Linear
    start: jax.Array  # of the sum

    def initial_memory(self, num_envs):
        steps = np.full((num_envs, 1), FIRST_STEP, np.int32)
        total = jnp.broadcast_to(self.start, (num_envs, 2, SIZE))
        return {
            "sums": (total, {"last": np.ones((num_envs, SIZE), np.float32)}),
            "time": [(steps,), np.ones(num_envs, bool), ()],
        }

    def __call__(self, observations, memory, resets):
        initial = self.initial_memory(resets.shape[1])
        encoded = jnp.tanh(self.layer(observations))

        def step(memory, row):
            features, starts = row
            memory = reset_memory(memory, starts, initial)
            (total, last), ((steps,), even, _) = memory["sums"], memory["time"]
            total = 0.5 * total + features[:, None]
            output = total.mean(1) + last["last"] + 0.1 * steps + jnp.where(even, 0.2, -0.2)[:, None]
            return {"sums": (total, {"last": features}), "time": [(steps + 1,), ~even, ()]}, jnp.tanh(output)

        memory, features = jax.lax.scan(step, memory, (encoded, resets))
        return features, memory


class ActorCritic(eqx.Module):
    """A policy and V(s)."""

    memory: Memory
    logits: Linear
    value: Linear

    def initial_memory(self, num_envs):
        return self.memory.initial_memory(num_envs)

    def __call__(self, observations, memory, resets, action_masks):
        features, memory = self.memory(observations, memory, resets)
        return Categorical(self.logits(features)), self.value(features)[..., 0], memory


class ActorQCritic(eqx.Module):
    """A policy, and features for Q(s, a)."""

    memory: Memory
    logits: Linear
    action_value_head: ActionValueHead

    def initial_memory(self, num_envs):
        return self.memory.initial_memory(num_envs)

    def __call__(self, observations, memory, resets, action_masks):
        features, memory = self.memory(observations, memory, resets)
        return Categorical(self.logits(features)), features, memory


class ActorQ(eqx.Module):
    """A policy and Q(s, ·)."""

    memory: Memory
    logits: Linear
    values: Linear

    def initial_memory(self, num_envs):
        return self.memory.initial_memory(num_envs)

    def __call__(self, observations, memory, resets, action_masks):
        features, memory = self.memory(observations, memory, resets)
        return Categorical(self.logits(features)), self.values(features), memory


class DuelingActor(eqx.Module):
    """A Gaussian policy, V(s) and A(s, a)."""

    memory: Memory
    means: Linear
    value: Linear
    advantage: Linear

    def initial_memory(self, num_envs):
        return self.memory.initial_memory(num_envs)

    def __call__(self, observations, memory, resets, action_masks):
        features, memory = self.memory(observations, memory, resets)
        means = self.means(features)
        return DiagonalGaussian(means, jnp.zeros_like(means)), features, memory

    def values(self, features):
        return self.value(features)[..., 0]

    def advantages(self, features, actions):
        return self.advantage(jnp.concatenate([features, actions], axis=-1))[..., 0]


class QNetwork(eqx.Module):
    """Q(s, ·)."""

    memory: Memory
    values: Linear

    def initial_memory(self, num_envs):
        return self.memory.initial_memory(num_envs)

    def __call__(self, observations, memory, resets):
        features, memory = self.memory(observations, memory, resets)
        return self.values(features), memory


class DistributionNetwork(eqx.Module):
    """Quantiles of Q(s, ·), or probabilities."""

    memory: Memory
    outputs: Linear
    kind: ValueConfig = eqx.field(static=True)

    def initial_memory(self, num_envs):
        return self.memory.initial_memory(num_envs)

    def __call__(self, observations, memory, resets):
        features, memory = self.memory(observations, memory, resets)
        outputs = self.outputs(features).reshape(*resets.shape, -1, outputs_each(self.kind))
        return distribution_of(outputs, self.kind), memory


def make_memory(rng, observation_space):
    return Memory(make_linear(rng, observation_space.shape[0], SIZE), jnp.float32(0.3))


def make_actor_critic(rng, observation_space, action_space):
    memory = make_memory(rng, observation_space)
    # TRPO needs a value function with parameters of its own: the head.
    return ActorCritic(memory, make_linear(rng, SIZE, int(action_space.n)), make_linear(rng, SIZE, 1))


def make_actor_q_critic(rng, observation_space, action_space):
    head = make_action_value_head(rng, action_space, SIZE, "tanh")
    return ActorQCritic(make_memory(rng, observation_space), make_linear(rng, SIZE, int(action_space.n)), head)


def make_actor_q(rng, observation_space, action_space):
    logits, values = (make_linear(rng, SIZE, int(action_space.n)) for _ in range(2))
    return ActorQ(make_memory(rng, observation_space), logits, values)


def make_dueling_actor(rng, observation_space, action_space):
    actions = action_space.shape[0]
    means, value, advantage = (make_linear(rng, *size) for size in ((SIZE, actions), (SIZE, 1), (SIZE + actions, 1)))
    return DuelingActor(make_memory(rng, observation_space), means, value, advantage)


def make_q_network(rng, observation_space, action_space):
    return QNetwork(make_memory(rng, observation_space), make_linear(rng, SIZE, int(action_space.n)))


def make_distribution_network(rng, observation_space, action_space, kind):
    outputs = make_linear(rng, SIZE, int(action_space.n) * outputs_each(kind))
    return DistributionNetwork(make_memory(rng, observation_space), outputs, kind)


make_quantiles = partial(make_distribution_network, kind=ValueConfig("quantiles", num_quantiles=3))
make_probabilities = partial(make_distribution_network, kind=ValueConfig("categorical", num_atoms=5))
