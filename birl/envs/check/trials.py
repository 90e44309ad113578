"""Checks by stepping environments: seeds, random play, and whether a run can be resumed exactly."""

import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import EnvConfig, is_compiled
from birl.envs.actions import sample_actions
from birl.envs.check.answers import Finding, error, new_tried_envs, ok, tried_envs, warning
from birl.envs.compiled.host import programs_of
from birl.envs.make import episode_limit, make_envs, spare
from birl.envs.snapshot import EACH, REPLAY, same_tree
from birl.envs.spaces import holds_pixels, mask_width, shown
from birl.types import Envs, Step

PLAY_STEPS = 10_000  # random steps until an episode must have ended
PLAY_SECONDS = 5.0  # of CPU time
SCALE = 10.0  # observations beyond ± this slow down learning
REWARD_SCALE = 1000.0  # and rewards beyond ± this
TRIAL_ENVS = 4
TRIAL_ROUNDS = 3  # with 4 environments; with fewer there are more rounds
TRIAL_STEPS = 60  # before and after a snapshot
TRIAL_HOLD = 8  # steps for which an action is repeated
TRIAL_SECONDS = 5.0  # of CPU time: the trial stops then, because a simulator may be slow
PATIENCE = 12  # wall time over CPU time, on a busy machine


class TimeBudget:
    """A number of CPU seconds, so that other programs on the machine do not shorten a check.

    A simulator that waits uses no CPU time: the wall time is limited too, to 12 times as much.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cpu_began = time.process_time()
        self._wall_began = time.monotonic()

    def is_left(self) -> bool:
        """True if there is time for another step."""
        cpu = time.process_time() - self._cpu_began
        wall = time.monotonic() - self._wall_began
        return cpu < self.seconds and wall < PATIENCE * self.seconds


def check_seeding(config: EnvConfig) -> list[Finding]:
    """Check that equal seeds give equal trajectories, and different seeds different ones."""
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
    """Check rewards, observations, ends of episodes and speed with random actions."""
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
    """Check that the observations of one environment lie in their space."""
    for t, each in enumerate(observations):
        single = {name: array[0] for name, array in each.items()} if isinstance(each, dict) else each[0]
        if not space.contains(single):
            where = "of reset" if t == 0 else f"after step {t}"
            wrong = f"the observation {where} lies outside the bounds of observation_space"
            return [warning("observation bounds", f"{wrong}: {single}; correct the bounds")]
    return [ok("observation bounds", f"{len(observations) - 1} random steps stay in {shown(space)}")]


def _check_masks(space: gym.Space, masks: np.ndarray | None) -> list[Finding]:
    """Report the action masks of an environment whose actions can be masked."""
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


def check_resume(config: EnvConfig) -> list[Finding]:
    """Check that environments restored from a snapshot continue as the originals do."""
    if is_compiled(config):
        return [ok("exact resume", "the state of a compiled environment is arrays, which a checkpoint holds")]
    config = _trial_config(config)
    with make_envs(config, 0) as envs, make_envs(config, 1) as others:
        problem = _restore_trial(envs, others)
    if problem:
        text = f"a resumed run will differ from an uninterrupted one: {problem}"
        return [warning("exact resume is not possible", text)]
    return [ok("exact resume", "environments restored from a snapshot went on exactly as the originals")]


class Trial(NamedTuple):
    """The result of a trial of a run's environments before training."""

    problem: str  # why a run in them cannot be resumed exactly; "" if nothing was found
    masks: bool | None  # whether they give action masks; None: the trial failed


def try_envs(config: EnvConfig) -> Trial:
    """Try environments like these.

    Environments that are restored by replaying their episodes are tried, and those inside a user's
    wrappers. Any other state that is copied needs no trial, and environments that cannot be
    saved say so themselves. The state of compiled ones is arrays.
    """
    if is_compiled(config):
        return Trial("", programs_of(config).copies.gives_masks)
    config = _trial_config(config)
    masks: bool | None = None
    try:
        with make_envs(config, 0) as envs:
            masks = envs.reset(0)[1] is not None
            tier = envs.snapshot().values.get("tier")
            if tier != REPLAY and not (tier == EACH and config.wrappers):
                return Trial("", masks)
            with make_envs(config, 1) as others:
                return Trial(_restore_trial(envs, others), masks)
    except Exception as error:
        return Trial(f"a trial in spare environments raised {type(error).__name__}: {error}", masks)


def _trial_config(config: EnvConfig) -> EnvConfig:
    """The config with few environments, because each is made twice and a simulator may be large.

    They run in a worker if the run has workers: there a step may crash or hang.
    """
    return spare(config, min(config.num_envs, TRIAL_ENVS), workers=1)


def _restore_trial(envs: Envs, others: Envs) -> str:
    """Restore `others` from `envs` and step both; the first difference, or ""."""
    budget = TimeBudget(TRIAL_SECONDS)
    envs.action_space.seed(0)
    envs.reset(0)  # once more than the others, which are new, as in a resumed run
    for seed in range(TRIAL_ENVS * TRIAL_ROUNDS // envs.num_envs):
        masks = envs.reset(seed)[1]
        for t in range(2 * TRIAL_STEPS):
            if masks is not None or t % TRIAL_HOLD == 0:  # repeated actions lead further
                actions = sample_actions(envs, masks)
            if t == TRIAL_STEPS:
                snapshot = envs.snapshot()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    others.restore(snapshot)
                if others.restore_problem:
                    return snapshot.reason or others.restore_problem.partition("; ")[2]
            step = envs.step(actions)
            masks = step.action_masks
            if t >= TRIAL_STEPS and not same_tree(step, others.step(actions)):
                wrong = "after a restore it stepped differently from the original"
                return f"{wrong}: it keeps state from one episode to the next"
            if not budget.is_left():
                return ""
    return ""
