"""An environment of your own: check it, train on it by its id, and train on a VectorEnv of it.

python examples/own_environment.py
"""

import argparse

import gymnasium as gym
import numpy as np

import birl


class Corridor(gym.Env):
    """Walk to the right end of a corridor. Each step costs 0.1."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)  # left, right

    def __init__(self, length=10):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random
        self.cell = int(self.np_random.integers(self.length // 2))  # all randomness comes from self.np_random
        return self._observe(), {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        terminated = self.cell == self.length  # the task has ended: there is no value beyond
        truncated = False  # max_episode_steps below sets it; then the value of the last state counts
        return self._observe(), -0.1, terminated, truncated, {}

    def _observe(self):
        return np.array([self.cell / self.length], np.float32)


# Worker processes and the command line import this module by the name in front of the colon, in
# own_environment:Corridor-v0. This line then runs for them too.
if "Corridor-v0" not in gym.registry:
    gym.register("Corridor-v0", entry_point=Corridor, max_episode_steps=50)


def check():
    """Look for mistakes first; `birl check-env own_environment:Corridor-v0` prints the same."""
    for finding in birl.check_env("own_environment:Corridor-v0"):
        print(f"{finding.level:8}{finding.title}: {finding.explanation}")


def train_by_id(steps):
    """Birl makes the environments, so it can evaluate, save and restore them."""
    settings = {"rollout_length": 32, "minibatches": 1, "learning_rate": 3e-3}
    summary = birl.train("ppo", "own_environment:Corridor-v0", kwargs={"length": 12}, total_steps=steps, **settings)
    print(f"return with module:Id: {summary['evaluation']['return_mean']:.2f}")


def train_on_vector_env(steps):
    """You make the environments. There is no evaluation, and a resume begins new episodes."""
    envs = gym.make_vec("Corridor-v0", num_envs=4, vectorization_mode="sync")
    config = birl.ppo.Config(
        env=birl.EnvConfig(num_envs=4),  # must be the number of environments in `envs`
        run=birl.RunConfig(total_steps=steps),
        rollout_length=32,
        minibatches=1,
        learning_rate=3e-3,
    )
    for update in birl.ppo.train(config, envs=envs):
        mean_return = update.metrics["episode/return"]  # of the last 20 episodes; NaN until one has ended
    print(f"return with envs=: {mean_return:.2f} after {int(update.state.env_steps):,} steps")
    envs.close()  # Birl leaves open what you passed in


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps of each training")
    steps = parser.parse_args().steps
    check()
    train_by_id(steps)
    train_on_vector_env(steps)
