"""Checks by playing random actions: seeds, rewards, observations, ends of episodes, speed."""

import time
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import EnvConfig
from birl.envs.findings import Finding, error, ok, warning
from birl.envs.make import episode_limit, make_envs
from birl.envs.sampling import sample_actions
from birl.envs.snapshot import same_tree
from birl.envs.spaces import holds_pixels
from birl.envs.time_budget import TimeBudget
from birl.types import Step

PLAY_STEPS = 10_000  # random steps until an episode must have ended
PLAY_SECONDS = 5.0  # of CPU time
SCALE = 10.0  # observations beyond ± this slow down learning


def check_seeding(config: EnvConfig) -> list[Finding]:
    """Whether equal seeds give equal trajectories, and different seeds different ones."""
    config = replace(config, num_envs=2)
    first, again, other = (_trajectory(config, seed) for seed in (0, 0, 1))
    pairs = enumerate(zip(first, again, strict=True))
    different = next((t for t, (left, right) in pairs if not same_tree(left, right)), None)
    if different is not None:
        where = "the first observation" if different == 0 else f"step {different}"
        wrong = f"two runs with seed 0 and the same actions differ from {where} on"
        return [error("not reproducible", f"{wrong}. Draw all random numbers from self.np_random")]
    if all(same_tree(left, right) for left, right in zip(first, other, strict=True)):
        text = "seeds 0 and 1 give the same trajectory: either nothing is random, or reset ignores its seed"
        return [warning("seed has no effect", text)]
    return [ok("reproducible", "the same seed and actions give the same trajectory, another seed a different one")]


def check_play(config: EnvConfig) -> list[Finding]:
    """What happens with random actions: rewards, observations, ends of episodes, speed."""
    with make_envs(replace(config, num_envs=1), 0) as envs:
        first, masks = envs.reset(0)
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
    return [
        _check_rewards(steps),
        *_check_scale(envs.observation_space, observations),
        _check_ends(steps, episode_limit(config)),
        ok("speed", f"{len(steps) / seconds:,.0f} steps a second with one environment and random actions"),
    ]


def _check_rewards(steps: list[Step]) -> Finding:
    rewards = np.array([step.rewards[0] for step in steps if step.valid[0]])
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if wrong.size:
        first = wrong[0]
        return error("rewards", f"reward number {first + 1} is {rewards[first]}; training would stop there")
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


def _check_ends(steps: list[Step], limit: int | None) -> Finding:
    terminated = sum(bool(step.terminated[0]) for step in steps)
    truncated = sum(bool(step.truncated[0]) for step in steps)
    if terminated + truncated == 0:
        wrong = f"no episode ended in {len(steps)} random steps"
        remedy = "if none ever ends, set max_episode_steps, which truncates and bootstraps"
        return warning("episodes do not end", f"{wrong}; {remedy}")
    if limit is None and not truncated:
        wrong = "episodes end with random actions, but a policy that never reaches an end would go on for ever"
        remedy = "give max_episode_steps to gymnasium.register, or set it in EnvConfig"
        return warning("no time limit", f"{wrong}; {remedy}")
    counts = f"{terminated} terminated, {truncated} truncated by a limit"
    return ok("episodes end", f"{counts}, in {len(steps)} random steps")


def _trajectory(config: EnvConfig, seed: int, length: int = 100) -> list[Any]:
    """The first observations and all steps of random play with this seed."""
    with make_envs(config, seed) as envs:
        observations, masks = envs.reset(seed)
        envs.action_space.seed(0)
        trajectory = [observations]
        for _ in range(length):
            trajectory.append(envs.step(sample_actions(envs, masks)))
            masks = trajectory[-1].action_masks
        return trajectory
