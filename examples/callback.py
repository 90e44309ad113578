"""Callbacks: the body of your own `for` loop, with all the files of `birl.train`.

python examples/callback.py

Here the body logs a metric of its own, evaluates when it wants to, and stops early.
"""

import argparse

import jax
import numpy as np

import birl

GOAL = 475.0  # stop when an evaluation reaches this mean return
EVALUATE_EVERY = 5_000  # environment steps


def weight_norm(network):
    """A metric of our own: the length of the vector of all weights."""
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(network)))


def main(steps):
    with birl.start("ppo", "CartPole-v1", total_steps=steps, eval_episodes=10) as run:
        next_evaluation = 0
        # Each round of the loop is one update: a rollout was collected and learned from.
        for update in run:
            run.log({"my/weight_norm": weight_norm(update.state.network)})  # to metrics.jsonl and every tracker
            if run.env_steps >= next_evaluation:
                next_evaluation = run.env_steps + EVALUATE_EVERY
                evaluation = run.evaluate()  # logs the score, and keeps the best policy so far
                if evaluation.returns.mean() >= GOAL:
                    break  # saves the run, which can be resumed

    print(f"stopped at {run.env_steps:,} steps; best return {run.summary['best_return']:.1f}")
    print(birl.evaluate(run.run_dir, episodes=10, seed=1))  # the best policy, in other episodes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps to train for at most")
    main(parser.parse_args().steps)
