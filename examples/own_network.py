"""Networks of your own for PPO: one without memory, and one that remembers.

python examples/own_network.py

A network is an Equinox module with two methods, `initial_memory` and `__call__`. Arrays are
[T, B, ...]: T steps of B environments. Acting uses T = 1, learning uses whole rollouts.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp

import birl
from birl.maths.distributions import Categorical
from birl.nets.heads import PolicyHead, make_policy_head
from birl.nets.layers import Linear, make_linear
from birl.nets.recurrent import reset_memory


class Residual(eqx.Module):
    """A dense layer with a skip connection. It has no memory."""

    hidden: Linear
    logits: Linear
    value: Linear

    def initial_memory(self, num_envs):
        return ()  # no memory

    def __call__(self, observations, memory, resets, action_masks):
        features = jnp.concatenate([observations, jnp.tanh(self.hidden(observations))], axis=-1)
        return Categorical(self.logits(features)), self.value(features)[..., 0], memory


def make_residual(rng, observation_space, action_space):
    """A Residual for these spaces. `rng` is a NumPy generator seeded with run.seed."""
    inputs = observation_space.shape[0]
    return Residual(
        make_linear(rng, inputs, 64),
        make_linear(rng, inputs + 64, int(action_space.n), scale=0.01),
        make_linear(rng, inputs + 64, 1, scale=1.0),
    )


class Traces(eqx.Module):
    """Remembers slow and fast moving averages of its features, with learned decay rates."""

    hidden: Linear
    decay: jax.Array  # [F] before the sigmoid
    policy_head: PolicyHead  # Birl's own head works with every action space and with action masks
    value: Linear
    size: int = eqx.field(static=True)  # what is not an array must be static

    def initial_memory(self, num_envs):
        return jnp.zeros((num_envs, self.size))  # [num_envs, ...], or a tree of such arrays

    def __call__(self, observations, memory, resets, action_masks):
        features = jnp.tanh(self.hidden(observations))  # [T, B, F]
        initial = self.initial_memory(resets.shape[1])
        decay = jax.nn.sigmoid(self.decay)

        def step(memory, row):
            features, starts = row
            memory = reset_memory(memory, starts, initial)  # an episode begins: forget the one before
            memory = decay * memory + (1 - decay) * features
            return memory, memory

        memory, traces = jax.lax.scan(step, memory, (features, resets))
        features = jnp.concatenate([features, features - traces], axis=-1)
        return self.policy_head(features, action_masks), self.value(features)[..., 0], memory


def make_traces(rng, observation_space, action_space):
    """Traces for these spaces."""
    size = 64
    return Traces(
        make_linear(rng, observation_space.shape[0], size),
        jnp.linspace(-2.0, 2.0, size),
        make_policy_head(rng, action_space, 2 * size, log_std=0.0),
        make_linear(rng, 2 * size, 1, scale=1.0),
        size,
    )


def train(make_network, env, steps):
    """Train PPO with this network, and evaluate it."""
    config = birl.ppo.Config(
        env=env,
        run=birl.RunConfig(total_steps=steps),
        rollout_length=64,
        epochs=10,
        minibatches=2,  # with memory, whole environments are divided: 8 of them into 2 parts
        learning_rate=birl.linear(2e-3, 0.0),
        normalize_rewards=True,
    )
    run_dir = birl.train(config, make_network=make_network)["run_dir"]
    # A checkpoint holds weights and no code, so whatever loads it needs make_network again.
    return birl.evaluate(run_dir, episodes=10, make_network=make_network)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of each training")
    steps = parser.parse_args().steps
    print("without memory:", train(make_residual, birl.EnvConfig("CartPole-v1"), steps))
    hidden = birl.EnvConfig("CartPole-v1", hide_velocities=True)  # now the policy must remember
    print("with memory:", train(make_traces, hidden, steps))
