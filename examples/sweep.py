"""A sweep: three learning rates with two seeds each, compared by their final evaluations.

python examples/sweep.py

The runs are a group in runs/sweep. If it is stopped, start it again: finished runs are not
repeated, and unfinished ones go on from their last checkpoints.
"""

import argparse
from pathlib import Path

import birl

LEARNING_RATES = (1e-4, 1e-3, 1e-2)
OUT = Path("runs/sweep")


def train(steps):
    """Train the group, or go on with it; its summary."""
    if OUT.exists():
        return birl.resume(OUT)
    sweep = {"learning_rate": [birl.linear(rate, 0.0) for rate in LEARNING_RATES]}
    settings = {"total_steps": steps, "eval_episodes": 10, "run_dir": OUT}
    return birl.train("ppo", "CartPole-v1", seeds=2, sweep=sweep, **settings)


def main(steps):
    points = dict(zip(LEARNING_RATES, train(steps)["points"], strict=True))
    print("\nlearning rate   IQM of returns   95 % interval")
    for rate, point in points.items():
        # The interval resamples the seeds. Use five or more before you decide anything.
        low, high = point["interval"]
        print(f"{rate:13g}   {point['iqm']:14.1f}   {low:.1f} to {high:.1f}")
    best = max(points, key=lambda rate: points[rate]["iqm"])
    print(f"best learning rate: {best:g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of each run")
    main(parser.parse_args().steps)
