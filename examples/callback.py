"""Callbacks: `train` is a generator, so a callback is the body of your own `for` loop.

python examples/callback.py

Here the body computes a metric of its own, evaluates, saves the best policy and stops early.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np

import birl
from birl.run.checkpoint import save
from birl.run.evaluate import evaluate_policy
from birl.run.policy import make_policy

GOAL = 475.0  # stop when an evaluation reaches this mean return
EVALUATE_EVERY = 5_000  # environment steps


def weight_norm(network):
    """A metric of our own: the length of the vector of all weights."""
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(network))))


def main(steps):
    config = birl.preset("ppo", "CartPole-v1")
    config = replace(config, run=replace(config.run, total_steps=steps))
    with gym.make("CartPole-v1") as env:
        spaces = env.observation_space, env.action_space

    policy = None
    best_return = -np.inf
    best_checkpoint = None
    next_evaluation = 0
    with open("metrics.jsonl", "w") as log:
        # Each round of the loop is one update: a rollout was collected and learned from.
        for update in birl.ppo.train(config):
            env_steps = int(update.state.env_steps)
            row = {"env_steps": env_steps, "episode/return": update.metrics["episode/return"]}
            row["my/weight_norm"] = weight_norm(update.state.network)

            if env_steps >= next_evaluation:
                next_evaluation = env_steps + EVALUATE_EVERY
                if policy is None:
                    policy = make_policy(birl.ppo, update.state, *spaces)
                policy.set_parameters(birl.ppo.policy(update.state))  # the same program, the new weights
                evaluation = evaluate_policy(policy, config.env, episodes=10, seed=0)
                mean_return = float(evaluation.returns.mean())
                row["my/evaluation"] = mean_return
                print(f"{env_steps:,} steps: {evaluation}")
                if mean_return > best_return:
                    best_return = mean_return
                    # The snapshot holds the environments. Take it before the next update.
                    best_checkpoint = save(
                        Path("checkpoints"), "ppo", config, spaces, update.state, update.snapshot(), progress={}
                    )

            log.write(json.dumps(row) + "\n")
            if best_return >= GOAL:
                break  # stops training and closes the environments

    print(f"best: {best_return:.1f}, saved as {best_checkpoint}")
    print(birl.evaluate(best_checkpoint, episodes=10, seed=1))  # birl.load(best_checkpoint) gives the policy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps to train for at most")
    main(parser.parse_args().steps)
