"""Checks by playing random actions: seeds, rewards, observations, ends of episodes, speed."""

import time
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.compiled_ids import is_compiled
from birl.config import EnvConfig
from birl.envs.findings import Finding, error, ok, warning
from birl.envs.make import episode_limit
from birl.envs.sampling import sample_actions
from birl.envs.snapshot import same_tree
from birl.envs.spaces import holds_pixels, mask_width, shown
from birl.envs.time_budget import TimeBudget
from birl.envs.tried import new_tried_envs, tried_envs
from birl.types import Envs, Step

PLAY_STEPS = 10_000  # random steps until an episode must have ended
PLAY_SECONDS = 5.0  # of CPU time
SCALE = 10.0  # observations beyond ± this slow down learning
REWARD_SCALE = 1000.0  # and rewards beyond ± this


def check_seeding(config: EnvConfig) -> list[Finding]:
    """Whether equal seeds give equal trajectories, and different seeds different ones."""
    config = replace(config, num_envs=2)
    with tried_envs(config, 0) as envs, new_tried_envs(config, 0) as others:
        first, again, other = _trajectory(envs, 0), _trajectory(others, 0), _trajectory(envs, 1)
    pairs = enumerate(zip(first, again, strict=True))
    different = next((t for t, (left, right) in pairs if not same_tree(left, right)), None)
    if different is not None:
        where = "the first observation" if different == 0 else f"step {different}"
        wrong = f"two runs with seed 0 and the same actions differ from {where} on"
        source = "the key, and keep nothing outside of the state" if is_compiled(config) else "self.np_random"
        return [error("not reproducible", f"{wrong}. Draw all random numbers from {source}")]
    if all(same_tree(left, right) for left, right in zip(first, other, strict=True)):
        ignored = "key" if is_compiled(config) else "seed"
        text = f"seeds 0 and 1 give the same trajectory: either nothing is random, or reset ignores its {ignored}"
        return [warning("seed has no effect", text)]
    return [ok("reproducible", "the same seed and actions give the same trajectory, another seed a different one")]


def check_play(config: EnvConfig) -> list[Finding]:
    """What happens with random actions: rewards, observations, ends of episodes, speed."""
    with tried_envs(replace(config, num_envs=1), 0) as envs:
        first, masks = envs.reset(0)
        first_masks = masks
        envs.action_space.seed(0)
        steps: list[Step] = []
        budget = TimeBudget(PLAY_SECONDS)
        start = time.perf_counter()
        while len(steps) < PLAY_STEPS and budget.is_left():
            steps.append(envs.step(sample_actions(envs, masks)))
            masks = steps[-1].action_masks
            if len(steps) >= 1000 and any(step.terminated[0] or step.truncated[0] for step in steps[-1000:]):
                break
        seconds = time.perf_counter() - start
    observations = [first] + [step.observations for step in steps]
    speed = ok("speed", f"{len(steps) / seconds:,.0f} steps a second with one environment and random actions")
    return [
        *(_check_bounds(envs.observation_space, observations) if is_compiled(config) else []),
        *_check_masks(envs.action_space, first_masks),
        _check_rewards(steps),
        *_check_scale(envs.observation_space, observations),
        _check_ends(config, steps),
        *([] if is_compiled(config) else [speed]),  # compiled ones are not trained by single steps
    ]


def _check_bounds(space: gym.Space, observations: list[Any]) -> list[Finding]:
    """Whether observations lie in their space, with one environment."""
    for t, each in enumerate(observations):
        single = {name: array[0] for name, array in each.items()} if isinstance(each, dict) else each[0]
        if not space.contains(single):
            where = "of reset" if t == 0 else f"after step {t}"
            wrong = f"the observation {where} lies outside the bounds of observation_space"
            return [warning("observation bounds", f"{wrong}: {single}; correct the bounds")]
    return [ok("observation bounds", f"{len(observations) - 1} random steps stay in {shown(space)}")]


def _check_masks(space: gym.Space, masks: np.ndarray | None) -> list[Finding]:
    """Whether the environment gives action masks, if its actions can be masked."""
    if masks is not None:
        text = f"found: {masks[0].sum()} of {masks[0].size} choices are allowed at the first observation"
        return [ok("action masks", text)]
    return [] if mask_width(space) is None else [ok("action masks", "none: every action is always allowed")]


def _check_rewards(steps: list[Step]) -> Finding:
    rewards = np.array([step.rewards[0] for step in steps if step.valid[0]])
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if wrong.size:
        first = wrong[0]
        return error("rewards", f"reward number {first + 1} is {rewards[first]}; training would stop there")
    largest = np.abs(rewards).max()
    if largest > REWARD_SCALE:
        text = f"rewards reach {largest:.4g}; values as large as their sums are learned slowly. Use normalize_rewards"
        return warning("reward scale", f"{text}, or divide them in the environment")
    return ok("rewards", f"finite, between {rewards.min():.4g} and {rewards.max():.4g} for random actions")


def _check_scale(space: gym.Space, observations: list[Any]) -> list[Finding]:
    findings = []
    for name in observations[0] if isinstance(observations[0], dict) else [""]:
        part = space[name] if isinstance(space, spaces.Dict) else space
        if not isinstance(part, spaces.Box) or holds_pixels(part):
            continue
        values = np.stack([each[name] if name else each for each in observations]).astype(np.float32)
        if not np.isfinite(values).all():
            step = int(np.argwhere(~np.isfinite(values))[0][0])
            text = f"the observation after step {step} holds NaN or infinity"
            findings.append(error(f"observations {name}".strip(), text))
        elif np.abs(values).max() > SCALE:
            wrong = f"values reach {np.abs(values).max():.4g}; networks learn slowly from values beyond ±{SCALE:g}"
            findings.append(warning(f"observation scale {name}".strip(), f"{wrong}. Use normalize_observations"))
    return findings or [
        ok("observation scale", f"all numbers are within ±{SCALE:g}; images and categories do not count")
    ]


def _check_ends(config: EnvConfig, steps: list[Step]) -> Finding:
    terminated = sum(bool(step.terminated[0]) for step in steps)
    truncated = sum(bool(step.truncated[0]) for step in steps)
    if terminated + truncated == 0:
        wrong = f"no episode ended in {len(steps)} random steps"
        remedy = "if none ever ends, set max_episode_steps, which truncates and bootstraps"
        return warning("episodes do not end", f"{wrong}; {remedy}")
    if episode_limit(config) is None and not truncated:
        wrong = "episodes end with random actions, but a policy that never reaches an end would go on for ever"
        owner = "the environment a number" if is_compiled(config) else "gymnasium.register a number"
        return warning("no time limit", f"{wrong}; give {owner} max_episode_steps, or set it in EnvConfig")
    counts = f"{terminated} terminated, {truncated} truncated by a limit"
    return ok("episodes end", f"{counts}, in {len(steps)} random steps")


def _trajectory(envs: Envs, seed: int, length: int = 100) -> list[Any]:
    """The first observations and all steps of random play with this seed."""
    observations, masks = envs.reset(seed)
    envs.action_space.seed(0)
    steps = [observations]
    for _ in range(length):
        steps.append(envs.step(sample_actions(envs, masks)))
        masks = steps[-1].action_masks
    return steps
