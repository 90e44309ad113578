"""Scores that others have published for Birl's algorithms, with where and how they were measured.

They are for comparison and no part of any training. Scores that were only quoted second-hand, and
averages over whole runs, are left out.
"""

from typing import NamedTuple


class Source(NamedTuple):
    """Who published scores, and what they are."""

    url: str
    measured: str  # how: seeds, and what of a run counts


class Published(NamedTuple):
    """A published score."""

    score: float
    source: str  # a name in SOURCES
    env_id: str  # the environment in which it was measured, perhaps an older version
    env_steps: int | None  # None: not stated
    note: str = ""  # what is special about its settings


SOURCES = {
    "RL Zoo": Source(
        "https://github.com/DLR-RM/rl-baselines3-zoo",
        "one run; deterministic evaluation, with Atari sampled actions",
    ),
    "Tianshou": Source("https://github.com/thu-ml/tianshou", "10 seeds; maximum over the run"),
    "rlfromscratch": Source(
        "https://github.com/NJUWCY/rlfromscratch",
        "10 seeds; mean of the best five points of the mean curve, which is optimistic; not verified by others",
    ),
    "deep-rl-from-scratch": Source(
        "https://github.com/nickgreenquist/deep-rl-from-scratch", "3 seeds; greedy, 100 episodes"
    ),
    "sb3-contrib": Source("https://github.com/Stable-Baselines-Team/stable-baselines3-contrib", "3 seeds"),
    "CleanRL": Source("https://github.com/vwxyzjn/cleanrl", "3 seeds; mean return in training"),
    "openrlbenchmark": Source("https://github.com/openrlbenchmark/openrlbenchmark", "OpenAI Baselines' PPO2"),
    "PFRL": Source("https://github.com/pfnet/pfrl", "best evaluation during the run; A3C: 3 seeds"),
    "SLM-Lab": Source("https://github.com/kengz/SLM-Lab", "mean return in training"),
    "Stable-Baselines 2 zoo": Source("https://github.com/araffin/rl-baselines-zoo", "one run"),
}
# By source, then by algorithm and environment steps: the score in each environment.
# fmt: off
SCORES: dict[str, dict[tuple[str, int | None], dict[str, float]]] = {
    "RL Zoo": {
        ("ppo", 100_000): {
            "CartPole-v1": 500, "Pendulum-v1": -172, "CartPoleNoVel-v1": 500, "PendulumNoVel-v1": -218,
        },
        ("ppo", 1_000_000): {
            "LunarLander-v2": 242, "LunarLanderContinuous-v2": 271, "Acrobot-v1": -73.5, "MountainCar-v0": -110,
            "HalfCheetah-v3": 5819, "Hopper-v3": 2410, "Walker2d-v3": 3479, "Ant-v3": 1327, "Swimmer-v3": 282,
        },
        ("ppo", 20_000): {"MountainCarContinuous-v0": 88.3},
        ("ppo", 5_000_000): {"BipedalWalker-v3": 288},
        ("ppo", 10_000_000): {
            "PongNoFrameskip-v4": 21.0, "BreakoutNoFrameskip-v4": 398, "BeamRiderNoFrameskip-v4": 3397,
            "SpaceInvadersNoFrameskip-v4": 960, "QbertNoFrameskip-v4": 15627, "EnduroNoFrameskip-v4": 996,
            "SeaquestNoFrameskip-v4": 1784,
        },
        ("a2c", 500_000): {"CartPole-v1": 500, "Acrobot-v1": -83.4},
        ("a2c", 200_000): {"LunarLander-v2": 156},
        ("a2c", 5_000_000): {"LunarLanderContinuous-v2": 84, "BipedalWalker-v3": 300},
        ("a2c", 1_000_000): {
            "MountainCar-v0": -111, "Pendulum-v1": -163, "HalfCheetah-v3": 3041, "Hopper-v3": 733, "Walker2d-v3": 582,
            "Ant-v3": -44, "Swimmer-v3": 201,
        },
        ("a2c", 100_000): {"MountainCarContinuous-v0": 91.2},
        ("a2c", 10_000_000): {
            "PongNoFrameskip-v4": 17.3, "BreakoutNoFrameskip-v4": 280, "BeamRiderNoFrameskip-v4": 2890,
            "SpaceInvadersNoFrameskip-v4": 627, "QbertNoFrameskip-v4": 3882, "EnduroNoFrameskip-v4": 0,
            "SeaquestNoFrameskip-v4": 1721,
        },
        ("dqn", 50_000): {"CartPole-v1": 500},
        ("dqn", 100_000): {"LunarLander-v2": 154, "Acrobot-v1": -76.6},
        ("dqn", 120_000): {"MountainCar-v0": -101},
        ("dqn", 10_000_000): {
            "PongNoFrameskip-v4": 20.6, "BreakoutNoFrameskip-v4": 358, "BeamRiderNoFrameskip-v4": 4296,
            "SpaceInvadersNoFrameskip-v4": 623, "QbertNoFrameskip-v4": 9497, "EnduroNoFrameskip-v4": 831,
            "SeaquestNoFrameskip-v4": 2000,
        },
        ("trpo", 100_000): {"CartPole-v1": 500, "Acrobot-v1": -83.1, "MountainCar-v0": -107, "Pendulum-v1": -175},
        ("trpo", 200_000): {"LunarLander-v2": 133, "LunarLanderContinuous-v2": 262},
        ("trpo", 50_000): {"MountainCarContinuous-v0": 92.5},
        ("trpo", 1_000_000): {
            "BipedalWalker-v3": 182, "HalfCheetah-v3": 1785, "Hopper-v3": 3618, "Walker2d-v3": 4933, "Ant-v3": 4982,
            "Swimmer-v3": 366,
        },
        ("ddpg", 300_000): {"LunarLanderContinuous-v2": 230, "MountainCarContinuous-v0": 93.5},
        ("ddpg", 20_000): {"Pendulum-v1": -152},
        ("ddpg", 1_000_000): {"BipedalWalker-v3": 197},
        ("sac", 500_000): {"LunarLanderContinuous-v2": 260, "BipedalWalker-v3": 298},
        ("sac", 50_000): {"MountainCarContinuous-v0": 94.7},
        ("sac", 20_000): {"Pendulum-v1": -157},
        ("sac", 1_000_000): {
            "HalfCheetah-v3": 9535, "Hopper-v3": 2326, "Walker2d-v3": 3863, "Ant-v3": 4616, "Swimmer-v3": 346,
        },
        ("td3", 300_000): {"LunarLanderContinuous-v2": 207, "MountainCarContinuous-v0": 93.5},
        ("td3", 20_000): {"Pendulum-v1": -152},
        ("td3", 1_000_000): {
            "BipedalWalker-v3": 306, "HalfCheetah-v3": 9656, "Hopper-v3": 3606, "Walker2d-v3": 4718, "Ant-v3": 5813,
            "Swimmer-v3": 359,
        },
        ("ppo", 300_000): {"MountainCarContinuousNoVel-v0": 91.5},
    },
    "Tianshou": {
        ("ppo", 1_000_000): {
            "HalfCheetah-v3": 5784, "Hopper-v3": 2609, "Walker2d-v3": 3589, "Ant-v3": 3258, "Reacher-v2": -4.1,
        },
        ("trpo", 1_000_000): {
            "HalfCheetah-v3": 4471, "Hopper-v3": 2046, "Walker2d-v3": 3827, "Ant-v3": 2867, "Reacher-v2": -5.1,
        },
        ("a2c", 1_000_000): {
            "HalfCheetah-v3": 1830, "Hopper-v3": 1253, "Walker2d-v3": 1092, "Ant-v3": 3485, "Reacher-v2": -6.7,
        },
        ("ddpg", 1_000_000): {
            "HalfCheetah-v3": 11719, "Hopper-v3": 2197, "Walker2d-v3": 1401, "Ant-v3": 990, "Swimmer-v3": 144,
            "Reacher-v2": -3.3,
        },
        ("td3", 1_000_000): {
            "HalfCheetah-v3": 10201, "Hopper-v3": 3472, "Walker2d-v3": 3982, "Ant-v3": 5116, "Swimmer-v3": 104,
            "Reacher-v2": -2.7,
        },
        ("sac", 1_000_000): {
            "HalfCheetah-v3": 12139, "Hopper-v3": 3542, "Walker2d-v3": 5007, "Ant-v3": 5850, "Swimmer-v3": 44.4,
            "Reacher-v2": -2.6,
        },
        ("reinforce", 10_000_000): {"HalfCheetah-v3": 1139, "Hopper-v3": 416, "Walker2d-v3": 441, "Ant-v3": 1108},
    },
    "rlfromscratch": {
        ("ppo", 1_000_000): {"Ant-v5": 1762},
        ("trpo", 1_000_000): {"HalfCheetah-v5": 2105},
        ("td3", 1_000_000): {"HalfCheetah-v5": 10292, "Hopper-v5": 3308, "Walker2d-v5": 3710, "Ant-v5": 4457},
        ("sac", 1_000_000): {"HalfCheetah-v5": 11232, "Hopper-v5": 3396, "Ant-v5": 5150},
    },
    "deep-rl-from-scratch": {
        ("ppo", 1_000_000): {"HalfCheetah-v5": 2730, "Hopper-v5": 2912, "Walker2d-v5": 4122},
        ("sac", 1_000_000): {"Walker2d-v5": 4830},
    },
    "sb3-contrib": {
        ("trpo", 1_000_000): {"HalfCheetah-v3": 1803, "Hopper-v3": 3372, "Walker2d-v3": 4502, "Ant-v3": 3554},
    },
    "CleanRL": {
        ("ppo", None): {
            "PongNoFrameskip-v4": 20.36, "BreakoutNoFrameskip-v4": 414.7, "BeamRiderNoFrameskip-v4": 1916,
        },
        ("ppo", 1_000_000): {"HalfCheetah-v4": 1443, "Hopper-v4": 2383, "Walker2d-v4": 2288},
        ("dqn", 10_000_000): {
            "PongNoFrameskip-v4": 20.25, "BreakoutNoFrameskip-v4": 366.9, "BeamRiderNoFrameskip-v4": 6673,
            "SpaceInvadersNoFrameskip-v4": 1442,
        },
        ("ddpg", 1_000_000): {"HalfCheetah-v4": 10374, "Hopper-v4": 1577, "Walker2d-v4": 1240},
        ("td3", 1_000_000): {"HalfCheetah-v4": 9583, "Hopper-v4": 3135, "Walker2d-v4": 4058},
        ("sac", 1_000_000): {"HalfCheetah-v4": 9635, "Hopper-v4": 2310, "Walker2d-v4": 3591},
    },
    "openrlbenchmark": {
        ("ppo", None): {
            "PongNoFrameskip-v4": 20.45, "BreakoutNoFrameskip-v4": 405.7, "BeamRiderNoFrameskip-v4": 2836,
            "SpaceInvadersNoFrameskip-v4": 1020, "QbertNoFrameskip-v4": 15228, "EnduroNoFrameskip-v4": 987,
            "SeaquestNoFrameskip-v4": 1518,
        },
    },
    "PFRL": {
        ("a3c", None): {
            "PongNoFrameskip-v4": 20.9, "BreakoutNoFrameskip-v4": 581.0, "BeamRiderNoFrameskip-v4": 8883,
            "SpaceInvadersNoFrameskip-v4": 1044, "QbertNoFrameskip-v4": 20722, "EnduroNoFrameskip-v4": 0,
            "SeaquestNoFrameskip-v4": 1782,
        },
        ("ddpg", 1_000_000): {"HalfCheetah-v2": 10263, "Hopper-v2": 3521, "Walker2d-v2": 3933, "Ant-v2": 1532},
    },
    "SLM-Lab": {
        ("ppo", 200_000): {"CartPole-v1": 498.9},
        ("ppo", 300_000): {"Acrobot-v1": -81.3, "LunarLander-v3": 183.3},
        ("a2c", 200_000): {"CartPole-v1": 496.7},
        ("dqn", 300_000): {"Acrobot-v1": -94.2, "LunarLander-v3": 265.9},
    },
    "Stable-Baselines 2 zoo": {
        ("acer", 500_000): {"CartPole-v1": 498.6, "Acrobot-v1": -90.9},
        ("acer", 1_000_000): {"LunarLander-v2": 185.2, "MountainCar-v0": -131.2},
        ("acer", 10_000_000): {
            "PongNoFrameskip-v4": 20.67, "BeamRiderNoFrameskip-v4": 2441, "SpaceInvadersNoFrameskip-v4": 543,
            "QbertNoFrameskip-v4": 18880, "EnduroNoFrameskip-v4": 0, "SeaquestNoFrameskip-v4": 872,
        },
        ("ddpg", None): {"Pendulum-v0": -169.8, "LunarLanderContinuous-v2": 244.6},
    },
}
# fmt: on
NOTES = {  # by source, algorithm and environment
    ("SLM-Lab", "dqn", "LunarLander-v3"): "double, prioritized",
    ("Stable-Baselines 2 zoo", "ddpg", "LunarLanderContinuous-v2"): "OU noise",
}
ROBOTS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Swimmer", "Reacher")
VERSIONS = dict.fromkeys(ROBOTS, "v5") | {"LunarLander": "v3", "LunarLanderContinuous": "v3", "Pendulum": "v1"}
NO_VELOCITIES = "NoVel"  # RL Zoo's name for hidden velocities, which its recurrent PPO with an LSTM learns
GAME = "NoFrameskip"


def best_published(
    algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward"
) -> Published | None:
    """The highest score that is listed here for this task; None if none is."""
    found = published(algorithm, env_id, hide_velocities, core)
    return max(found, key=lambda one: one.score, default=None)


def published(algorithm: str, env_id: str, hide_velocities: bool = False, core: str = "feedforward") -> list[Published]:
    """All scores that are listed here for this task, also those of older versions of it."""
    wanted = algorithm, env_id, hide_velocities, core
    return [
        Published(score, source, theirs, steps, NOTES.get((source, name, theirs), ""))
        for source, rows in SCORES.items()
        for (name, steps), scores in rows.items()
        for theirs, score in scores.items()
        if task_of(name, theirs) == wanted
    ]


def task_of(algorithm: str, theirs: str) -> tuple[str, str, bool, str]:
    """The task of a preset that an environment of a source belongs to; as `Preset.task`."""
    name, _, version = theirs.rpartition("-")
    if name.endswith(GAME):
        return algorithm, f"ALE/{name.removesuffix(GAME)}-v5", False, "feedforward"
    plain = name.removesuffix(NO_VELOCITIES)
    is_hidden = plain != name
    env_id = f"{plain}-{VERSIONS.get(plain, version)}"
    return algorithm, env_id, is_hidden, "lstm" if is_hidden else "feedforward"
