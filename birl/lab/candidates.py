"""The algorithms to try on an environment: settings to begin with, and a number of steps."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium import spaces

from birl.config import ConfigError, EnvConfig, is_compiled
from birl.envs.make import spaces_of
from birl.envs.spaces import has_images, holds_pixels, shown, walk
from birl.lab.tuning.search_space import repaired, search_space
from birl.presets import find_preset
from birl.registry import action_kind, algorithm_named, algorithms_for, name_of, supports, validate
from birl.run.configure import configured, with_settings
from birl.search import SearchSpace
from birl.settings import flat_settings, places_of

# By the kind of actions, in the order in which they are tried first.
FITTING: dict[str, tuple[str, ...]] = {"Discrete": ("ppo", "dqn"), "Box": ("ppo", "sac", "td3")}
OTHERS = ("ppo", "a2c")  # they take every kind of action
LEARNED = "optimizer/learning_rate"  # a metric of updates with gradient steps
SHARE = 0.3  # of the time, for the whole training of one trial
OTHER_WORKERS = 0.8  # how much of its speed is left to a trial beside others
LEAST_STEPS = 3_000


class Fitting(NamedTuple):
    """An algorithm that fits the environment."""

    algorithm: str
    config: Any
    space: SearchSpace
    source: str  # where its first settings come from, as a sentence


def fitting(
    env: EnvConfig, algorithms: Sequence[str] = (), seed: int = 1, total_steps: int | None = None
) -> list[Fitting]:
    """The algorithms that fit the environment's spaces, or those of `algorithms`, with settings.

    ConfigError if none of them fits, or one that was named does not.
    """
    observation_space, action_space = spaces_of(env)
    names = list(dict.fromkeys(algorithms)) or default_algorithms(action_space)
    fit = algorithms_for(action_space)
    if is_compiled(env):
        fit = [name for name in fit if supports(name).compiled]
    able = [name for name in names if name in fit]
    others = [name for name in names if name not in fit and algorithm_named(name)]  # which names a typo
    if not able or (algorithms and others):
        backend = " on compiled environments" if is_compiled(env) else ""
        wrong = f"{', '.join(others)} cannot take actions of {shown(action_space)}{backend}"
        raise ConfigError(f"{wrong}; algorithms that can: {', '.join(fit) or 'none'}")
    found = []
    for name in able:
        settings = {"seed": seed} | ({} if total_steps is None else {"total_steps": total_steps})
        preset = find_preset(name, env.id)
        if preset is None:
            settings |= first_settings(name, observation_space, action_space)
        own = {"num_envs": (preset.config if preset else algorithm_named(name).Config()).env.num_envs}
        named = {} if env.num_envs == EnvConfig().num_envs else {"num_envs": env.num_envs}
        config, source = configured(name, env, own | settings | named)
        space, config = search_space(config, observation_space, action_space)
        config = repaired(config)  # few total steps may end before learning starts
        validate(name, config)
        found.append(Fitting(name, config, space, source))
    return found


def default_algorithms(action_space: gym.Space) -> list[str]:
    """The names of the algorithms to try with these actions."""
    names = FITTING.get(action_kind(action_space), OTHERS)
    able = [name for name in names if name in algorithms_for(action_space)]
    return able if len(able) > 1 else list(OTHERS)  # SAC and TD3 need finite bounds


def first_settings(name: str, observation_space: gym.Space, action_space: gym.Space) -> dict[str, Any]:
    """Settings that suit these spaces better than the defaults, where there is no preset."""
    known = places_of(algorithm_named(name).Config)
    leaves = [leaf for _, leaf in walk(observation_space, "observation")]
    numbers = any(isinstance(leaf, spaces.Box) and not holds_pixels(leaf) for leaf in leaves)
    on_policy = name in OTHERS
    settings: dict[str, Any] = {}
    if numbers and on_policy:
        settings["normalize_observations"] = True
    if action_kind(action_space) == "Box" and on_policy:
        settings["normalize_rewards"] = True
    if action_kind(action_space) != "Box" and on_policy:
        settings["eval_deterministic"] = False  # the mode of a policy that has learned little says nothing about it
    if name == "ppo":
        settings |= {"num_envs": 16, "entropy_weight": 0.0 if action_kind(action_space) == "Box" else 0.01}
    if has_images(observation_space) and "encoder" in known:
        settings |= {"replay_size": 20_000} if "replay_size" in known else {}
        settings |= {"share_trunk": True} if "share_trunk" in known else {}
    return settings


def training_speed(config: Any, seconds: float, patience: float = 30.0) -> float:
    """Environment steps per second of training, once it learns; compiling does not count.

    Training is measured for about this many seconds, and for at least one update. It ends after
    `patience` seconds: what cannot be measured by then counts as steps so far.
    """
    early = {"learning_starts": 0} if "learning_starts" in flat_settings(config) else {}
    probe = with_settings(config, early | {"total_steps": 10**9})
    begin = time.monotonic()
    first: tuple[float, int] | None = None
    steps = 0
    with closing(algorithm_named(name_of(config)).train(probe)) as training:
        for update in training:
            now, steps = time.monotonic(), int(update.state.env_steps)
            if first is None and LEARNED in update.metrics:
                first = now, steps
            elif first is not None and now - first[0] >= seconds:
                return (steps - first[1]) / (now - first[0])
            if now - begin > patience:
                break
    return steps / max(time.monotonic() - begin, 1e-6)


def steps_in(seconds: float, speed: float, workers: int) -> int:
    """Steps that a trial can train for, of a search that lasts this many seconds.

    A round number of at most two digits, and not below the least from which anything is learned.
    """
    steps = speed * SHARE * seconds * (OTHER_WORKERS if workers > 1 else 1.0)
    return max(LEAST_STEPS, round_down(int(steps)))


def round_down(steps: int) -> int:
    """The largest number of two digits and zeros that is not above it."""
    unit = 10 ** max(0, len(str(steps)) - 2)
    return steps // unit * unit
