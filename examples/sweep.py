"""A sweep: three learning rates with two seeds each, compared by mean return.

python examples/sweep.py

Each run has its own directory under runs/sweep. If the sweep is stopped, start it again: finished
runs are not repeated, and an unfinished one goes on from its last checkpoint.
"""

import argparse
from pathlib import Path

import numpy as np

import birl
from birl.maths.statistics import bootstrap_interval

LEARNING_RATES = (1e-4, 1e-3, 1e-2)
SEEDS = (1, 2)
OUT = Path("runs/sweep")


def train(learning_rate, seed, steps):
    """Train one run, or go on with it; the mean return of its last evaluation."""
    run_dir = OUT / f"learning-rate-{learning_rate:g}-seed-{seed}"
    if run_dir.exists():
        summary = birl.resume(run_dir)
    else:
        schedule = birl.linear(learning_rate, 0.0)
        settings = {"learning_rate": schedule, "seed": seed, "run_dir": run_dir, "total_steps": steps}
        summary = birl.train("ppo", "CartPole-v1", eval_episodes=10, **settings)
    return summary["evaluation"]["return_mean"]


def main(steps):
    returns = {rate: np.array([train(rate, seed, steps) for seed in SEEDS]) for rate in LEARNING_RATES}
    print("\nlearning rate   mean return   95 % interval")
    for rate, scores in returns.items():
        # The interval resamples the seeds. Use five or more before you decide anything.
        low, high = bootstrap_interval(scores[:, None], np.mean)
        print(f"{rate:13g}   {scores.mean():11.1f}   {low:.1f} to {high:.1f}")
    best = max(returns, key=lambda rate: returns[rate].mean())
    print(f"best learning rate: {best:g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of each run")
    main(parser.parse_args().steps)
