"""An encoder of your own: attention over a set of items, with Birl's dense layers and heads.

python examples/own_encoder.py

An encoder is an Equinox module that maps observations [*batch, ...] to features [*batch, width].
The function that makes it is `make_encoder(rng, observation_space) -> (module, width)`.
"""

import argparse

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import birl
from birl.nets.layers import Linear, make_linear

ITEMS = 8


class Heaviest(gym.Env):
    """Walk to the heaviest of eight items. The order in which they are seen means nothing."""

    action_space = spaces.Discrete(4)

    def __init__(self):
        items = spaces.Box(-np.inf, np.inf, (ITEMS, 3), np.float32)  # x, y from here, and weight
        self.observation_space = spaces.Dict({"items": items, "steps_left": spaces.Box(0, 1, (1,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.items = self.np_random.uniform(-1, 1, (ITEMS, 3)).astype(np.float32)
        self.position, self.step_number = np.zeros(2, np.float32), 0
        return self.observation(), {}

    def observation(self):
        items = self.np_random.permutation(self.items)
        items[:, :2] -= self.position
        return {"items": items, "steps_left": np.array([1 - self.step_number / 10], np.float32)}

    def distance(self):
        return float(np.linalg.norm(self.items[self.items[:, 2].argmax(), :2] - self.position))

    def step(self, action):
        before = self.distance()
        self.position[action // 2] += 0.2 * (1 if action % 2 else -1)
        self.step_number += 1
        return self.observation(), before - self.distance(), False, self.step_number == 10, {}


gym.register("Heaviest-v0", entry_point=Heaviest)


class SetAttention(eqx.Module):
    """Learned queries look at all items; the order of the items does not matter."""

    embed: Linear
    keys: Linear
    values: Linear
    queries: jax.Array  # [Q, D]

    def __call__(self, observations):
        items = jax.nn.relu(self.embed(observations["items"]))  # [*batch, N, D]
        scores = jnp.einsum("...nd,qd->...qn", self.keys(items), self.queries)
        seen = jax.nn.softmax(scores) @ self.values(items)  # [*batch, Q, D]
        flat = seen.reshape(*seen.shape[:-2], -1)
        return jnp.concatenate([flat, observations["steps_left"]], axis=-1)


def make_encoder(rng, observation_space, queries=2, size=32):
    """A SetAttention and its number of features. All weights are drawn from `rng`."""
    embed = make_linear(rng, observation_space["items"].shape[-1], size)
    keys, values = (make_linear(rng, size, size, scale=1.0) for _ in range(2))
    drawn = jnp.asarray(rng.standard_normal((queries, size)), jnp.float32)
    return SetAttention(embed, keys, values, drawn), queries * size + 1


def train(steps, **encoder):
    """Train PPO, and evaluate it."""
    settings = {"learning_rate": 1e-3, "entropy_weight": 0.01, "num_envs": 16, "rollout_length": 64}
    summary = birl.train("ppo", "Heaviest-v0", total_steps=steps, quiet=True, **settings, **encoder)
    return birl.evaluate(summary["run_dir"], episodes=100)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of each training")
    steps = parser.parse_args().steps
    print("dense layers alone:", train(steps, encoder="mlp"))
    print("attention:", train(steps, make_encoder=make_encoder))
    # On the command line, from the directory of this file:
    # birl train ppo own_encoder:Heaviest-v0 --encoder own_encoder:make_encoder
