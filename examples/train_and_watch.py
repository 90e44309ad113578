"""Train PPO on CartPole, play episodes with the trained policy, and record a video.

python examples/train_and_watch.py
"""

import argparse

import gymnasium as gym

import birl


def play(policy, env, seed):
    """Play one episode; its return."""
    observation, _ = env.reset(seed=seed)
    memory = None  # None at the start of an episode; a feed-forward policy needs no memory, the code is the same
    total = 0.0
    ended = False
    while not ended:
        action, memory = policy.act(observation, memory)  # the most likely action; deterministic=False samples
        observation, reward, terminated, truncated, _ = env.step(action)
        total += reward
        ended = terminated or truncated
    return total


def main(steps):
    # Train with the tuned settings for this task, as `birl train ppo CartPole-v1` does. The names
    # of settings are those of the options. The run directory gets metrics and checkpoints.
    summary = birl.train("ppo", "CartPole-v1", total_steps=steps)
    run_dir = summary["run_dir"]
    print(f"evaluation after training: {summary['evaluation']['return_mean']:.1f}")

    # Load the policy and play. `birl.load` needs neither the environment nor this script.
    policy = birl.load(run_dir)
    with gym.make("CartPole-v1") as env:
        for seed in range(3):
            print(f"episode with seed {seed}: {play(policy, env, seed):.0f}")

    # Record one episode. `birl record RUN_DIR` does the same; `birl play RUN_DIR` opens a window.
    path, _ = birl.record(run_dir, "cartpole.mp4")
    print(f"video: {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps to train for")
    main(parser.parse_args().steps)
