"""MiniGrid, whose observation has a text: leave it out, or use one of MiniGrid's own wrappers.

pip install minigrid
python examples/minigrid_wrappers.py
"""

import argparse

import gymnasium as gym

import birl


class Scaled(gym.RewardWrapper):
    """A wrapper of your own, with an argument: each reward is scaled."""

    def __init__(self, env, scale=1.0):
        super().__init__(env)
        self.scale = scale

    def reward(self, reward):
        return self.scale * float(reward)


# Three ways to a network that can read MiniGrid's Dict of an image, a direction and a text. Each is
# also an option of the command line, for instance: --wrapper minigrid.wrappers:FlatObsWrapper
WAYS = {
    "without the text": {"ignore_observations": ("mission",)},
    "ImgObsWrapper": {"wrappers": ("minigrid.wrappers:ImgObsWrapper",)},
    "FlatObsWrapper, and one of mine": {
        "wrappers": ("minigrid.wrappers:FlatObsWrapper,maxStrLen=32", birl.Wrapper(Scaled, {"scale": 10.0}))
    },
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    steps = parser.parse_args().steps
    for way, settings in WAYS.items():
        # The id is enough: Birl knows which package registers it.
        summary = birl.train("ppo", "MiniGrid-Empty-5x5-v0", total_steps=steps, quiet=True, **settings)
        policy = birl.load(summary["run_dir"])
        score = summary["evaluation"]["return_mean"]
        print(f"{way}: observation {shape_of(policy.observation_space)}, return {score:.2f}")


def shape_of(space):
    """The shape of each part of an observation."""
    if isinstance(space, gym.spaces.Dict):
        return {name: part.shape for name, part in space.items()}
    return space.shape


if __name__ == "__main__":
    main()
