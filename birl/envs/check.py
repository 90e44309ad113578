"""Whether an environment is fit for training, in plain words. A bad environment gives findings,
never an exception.
"""

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import ConfigError, EnvConfig
from birl.envs.make import episode_limit, make_env, make_envs, newer_version
from birl.envs.snapshot import REPLAY
from birl.envs.spaces import MASK, first_value, holds_pixels, is_composite, leaves_of, mask_width, parts_of, shown
from birl.envs.trees import flat_action, flat_mask
from birl.types import Envs, Step

PLAY_STEPS = 10_000  # random steps in search of an episode's end
PLAY_SECONDS = 5.0
TRIAL_ENVS, TRIAL_ROUNDS = 4, 3  # with fewer environments, more rounds
TRIAL_STEPS, TRIAL_HOLD = 60, 8  # steps before and after a snapshot, and how many an action is held for
TRIAL_SECONDS = 5.0  # for a slow simulator
TAKE_EVERYTHING = ("ppo", "a2c", "a3c", "trpo", "reinforce", "qac")  # the algorithms that take every kind of action
SCALE = 10.0  # observations beyond ± this slow learning down


@dataclass(frozen=True)
class Finding:
    """One thing that is right or wrong with an environment, and what to do."""

    level: Literal["ok", "warning", "error"]
    title: str
    explanation: str


def check_env(config: EnvConfig) -> list[Finding]:
    """What was found by making, resetting, stepping, seeding and restoring the environment, in this
    process.
    """
    config = replace(config, workers=0)
    try:
        make_envs(replace(config, num_envs=1), 0).close()
    except ConfigError as error:
        return [Finding("error", "cannot be made", str(error))]
    except Exception as error:
        return [Finding("error", "cannot be made", f"its constructor raised {type(error).__name__}: {error}")]
    newer = newer_version(config.id) if config.backend == "gymnasium" else None
    findings = [Finding("warning", "old version", f"use {newer}")] if newer else []
    checks: list[Callable[[EnvConfig], list[Finding]]] = [check_interface] if config.backend == "gymnasium" else []
    checks += [check_actions, check_seeding, check_play, check_resume]
    for check in checks:
        found, broken = _guarded(check, config)
        findings += found
        if broken:  # the same fault would be found again by all that follow
            return [*findings, Finding("warning", "not checked further", "mend the error above, then check again")]
    return findings


def check_interface(config: EnvConfig) -> list[Finding]:
    """What reset and step return, against Gymnasium's rules."""
    env = make_env(config)
    answer: Any = env.reset(seed=0)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)):
        return [
            Finding(
                "error", "reset", f"it returns {type(answer).__name__}; return (observation, info), info being a dict"
            )
        ]
    first = answer[0]
    findings = [_check_observation(env.observation_space, first, "reset")]
    kept = copy.deepcopy(first)
    answer = env.step(_allowed_action(env, first, answer[1]))
    if not (isinstance(answer, tuple) and len(answer) == 5):
        size = len(answer) if isinstance(answer, tuple) else 1
        return [
            *findings,
            Finding(
                "error", "step", f"it returns {size} values; return observation, reward, terminated, truncated, info"
            ),
        ]
    observation, reward, terminated, truncated, _ = answer
    findings.append(_check_observation(env.observation_space, observation, "step"))
    if not np.isscalar(reward) or isinstance(reward, str | bytes):
        findings.append(
            Finding("error", "reward type", f"the reward is {reward!r}, a {type(reward).__name__}; return a float")
        )
    if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, truncated)):
        findings.append(
            Finding("warning", "flags", f"terminated and truncated are {terminated!r} and {truncated!r}; return bools")
        )
    if not _equal(kept, first):
        findings.append(
            Finding(
                "warning",
                "observations share memory",
                "step wrote into the array that reset had returned. Birl copies what it gets; other programs will see old observations "
                "change. Return a new array, or array.copy().",
            )
        )
    env.close()
    return findings


def check_actions(config: EnvConfig) -> list[Finding]:
    """The action space, and bounds that make trouble."""
    with make_envs(replace(config, num_envs=1), 0) as envs:
        space = envs.action_space
    boxes = [leaf for leaf in leaves_of(space) if isinstance(leaf, spaces.Box)]
    kind = "hybrid" if is_composite(space) else "continuous" if boxes else "discrete"
    *names, last = takers(space)
    return [
        Finding("ok", "actions", f"{kind}, {shown(space)}: for {', '.join(names)} and {last}"),
        *_check_bounds(boxes),
    ]


def takers(space: gym.Space) -> tuple[str, ...]:
    """The names of the algorithms that take actions of this space."""
    match space:
        case spaces.Discrete():
            return *TAKE_EVERYTHING, "acer", "dqn", "async-q", "async-sarsa", "async-nstep-q"
        case spaces.Box():
            return *TAKE_EVERYTHING, "acer", "dpg", "ddpg", "td3", "sac"
    return TAKE_EVERYTHING


def check_seeding(config: EnvConfig) -> list[Finding]:
    """Same seed, same trajectory; another seed, another one."""
    config = replace(config, num_envs=2)
    first, again, other = (_trajectory(config, seed) for seed in (0, 0, 1))
    different = next(
        (t for t, (left, right) in enumerate(zip(first, again, strict=True)) if not _equal(left, right)), None
    )
    if different is not None:
        where = "the first observation" if different == 0 else f"step {different}"
        text = (
            f"two runs with seed 0 and the same actions differ from {where} on. Draw all randomness from self.np_random"
        )
        return [Finding("error", "not reproducible", text)]
    if all(_equal(left, right) for left, right in zip(first, other, strict=True)):
        text = "seeds 0 and 1 give the same trajectory: either nothing is random, or reset ignores its seed"
        return [Finding("warning", "seed has no effect", text)]
    return [
        Finding("ok", "reproducible", "the same seed and actions give the same trajectory, another seed gives another")
    ]


def check_play(config: EnvConfig) -> list[Finding]:
    """What random actions meet: finite numbers, their scale, episodes' ends, speed."""
    with make_envs(replace(config, num_envs=1), 0) as envs:
        observations, masks = envs.reset(0)
        envs.action_space.seed(0)
        steps: list[Step] = []
        start = time.perf_counter()
        while len(steps) < PLAY_STEPS and time.perf_counter() - start < PLAY_SECONDS:
            steps.append(envs.step(_sample(envs, masks)))
            masks = steps[-1].action_masks
            if len(steps) >= 1000 and any(step.terminated[0] or step.truncated[0] for step in steps[-1000:]):
                break
        seconds = time.perf_counter() - start
    seen = [observations] + [step.observations for step in steps]
    findings = [
        _check_rewards(steps),
        *_check_scale(envs.observation_space, seen),
        _check_ends(steps, episode_limit(config)),
    ]
    return [
        *findings,
        Finding("ok", "speed", f"{len(steps) / seconds:,.0f} steps a second, one environment, random actions"),
    ]


def check_resume(config: EnvConfig) -> list[Finding]:
    """Take snapshots in mid-episode, restore them elsewhere, go on in both and compare."""
    config = _for_trial(config)
    with make_envs(config, 0) as envs, make_envs(config, 1) as others:
        problem = _restore_trial(envs, others)
    if problem:
        text = f"a resumed run will not end as the uninterrupted one would: {problem}"
        return [Finding("warning", "exact resume is not possible", text)]
    return [Finding("ok", "exact resume", "restored from a snapshot, it went on to the bit as the original did")]


def restore_problem(config: EnvConfig) -> str:
    """Why a run in environments like these cannot be resumed exactly, as a trial in spare ones
    finds it; "" if it finds nothing.

    Only for those that live their episodes again. A state that is read and written whole needs no
    trial, and what cannot be saved says so.
    """
    config = _for_trial(config)
    try:
        with make_envs(config, 0) as envs:
            envs.reset(0)
            if envs.snapshot().values.get("tier") != REPLAY:
                return ""
            with make_envs(config, 1) as others:
                return _restore_trial(envs, others)
    except Exception as error:
        return f"a trial in spare environments raised {type(error).__name__}: {error}"


def _for_trial(config: EnvConfig) -> EnvConfig:
    """Few environments, for each is made twice: a simulator may be large. Where steps may crash or
    hang, in a worker.
    """
    return replace(config, num_envs=min(config.num_envs, TRIAL_ENVS), workers=min(config.workers, 1))


def _restore_trial(envs: Envs, others: Envs) -> str:
    """What went wrong when snapshots of the environments were restored in the others and both went
    on; "" if nothing did.
    """
    deadline = time.perf_counter() + TRIAL_SECONDS
    envs.action_space.seed(0)
    envs.reset(0)  # so that the others, which are new when a run is resumed, have never been reset as often
    for seed in range(TRIAL_ENVS * TRIAL_ROUNDS // envs.num_envs):
        masks = envs.reset(seed)[1]
        for t in range(2 * TRIAL_STEPS):
            if masks is not None or t % TRIAL_HOLD == 0:  # held for a while, actions lead further
                actions = _sample(envs, masks)
            if t == TRIAL_STEPS:
                snapshot = envs.snapshot()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    others.restore(snapshot)
                if others.restore_problem:
                    return snapshot.reason or others.restore_problem.partition("; ")[2]
            step = envs.step(actions)
            masks = step.action_masks
            if t >= TRIAL_STEPS and not _equal(step, others.step(actions)):
                return (
                    "after a restore it went another way than the original: it keeps state from one episode to the next"
                )
            if time.perf_counter() > deadline:
                return ""
    return ""


def _guarded(check: Callable[[EnvConfig], list[Finding]], config: EnvConfig) -> tuple[list[Finding], bool]:
    """What it found, and whether the environment is too broken to go on: it raised, or its reset or
    step breaks the rules.
    """
    try:
        findings = check(config)
    except (Exception, SystemExit) as error:
        return [Finding("error", check.__name__.removeprefix("check_"), f"{type(error).__name__}: {error}")], True
    return findings, check is check_interface and any(finding.level == "error" for finding in findings)


def _check_observation(space: gym.Space, observation: Any, function: str) -> Finding:
    if space.contains(observation):
        return Finding("ok", f"observation of {function}", f"lies in {shown(space)}")
    array = np.asarray(observation) if not isinstance(observation, dict | tuple) else None
    if array is None or not isinstance(space, spaces.Box):
        return Finding("error", f"observation of {function}", f"{observation!r} is not in {shown(space)}")
    if array.shape != space.shape:
        return Finding(
            "error", f"observation of {function}", f"its shape is {array.shape}, the space says {space.shape}"
        )
    if not np.isfinite(array).all():
        return Finding("error", f"observation of {function}", f"it holds NaN or infinity: {array}")
    if array.dtype != space.dtype:
        return Finding(
            "warning",
            f"observation of {function}",
            f"its type is {array.dtype}, the space says {space.dtype}; Birl casts it",
        )
    return Finding(
        "warning", f"observation of {function}", "it lies outside the bounds of observation_space; correct the bounds"
    )


def _check_bounds(boxes: list[spaces.Box]) -> list[Finding]:
    if not all(np.isfinite(box.low).all() and np.isfinite(box.high).all() for box in boxes):
        return [
            Finding(
                "warning", "action bounds", "some are infinite: algorithms that scale actions to the bounds cannot work"
            )
        ]
    if not all(np.allclose(box.low, -box.high) for box in boxes):
        return [
            Finding(
                "warning", "action bounds", "they are not symmetric about 0. Birl allows for it; many programs do not"
            )
        ]
    return []


def _check_rewards(steps: list[Step]) -> Finding:
    rewards = np.array([step.rewards[0] for step in steps if step.valid[0]])
    bad = np.flatnonzero(~np.isfinite(rewards))
    if bad.size:
        return Finding(
            "error", "rewards", f"reward number {bad[0] + 1} is {rewards[bad[0]]}; training would stop there"
        )
    return Finding("ok", "rewards", f"finite, between {rewards.min():.4g} and {rewards.max():.4g} for random actions")


def _check_scale(space: gym.Space, seen: list[Any]) -> list[Finding]:
    findings = []
    for name in seen[0] if isinstance(seen[0], dict) else [""]:
        part = space[name] if isinstance(space, spaces.Dict) else space
        if not isinstance(part, spaces.Box) or holds_pixels(part):
            continue
        values = np.stack([observations[name] if name else observations for observations in seen]).astype(np.float32)
        if not np.isfinite(values).all():
            step = int(np.argwhere(~np.isfinite(values))[0][0])
            findings.append(
                Finding(
                    "error", f"observations {name}".strip(), f"the observation after step {step} holds NaN or infinity"
                )
            )
        elif np.abs(values).max() > SCALE:
            text = f"values reach {np.abs(values).max():.4g}; beyond ±{SCALE:g} networks learn slowly. Use normalize_observations"
            findings.append(Finding("warning", f"observation scale {name}".strip(), text))
    return findings or [
        Finding("ok", "observation scale", f"within ±{SCALE:g}, or no numbers: images, categories, bits")
    ]


def _check_ends(steps: list[Step], limit: int | None) -> Finding:
    terminated = sum(bool(step.terminated[0]) for step in steps)
    truncated = sum(bool(step.truncated[0]) for step in steps)
    if terminated + truncated == 0:
        text = f"no episode ended in {len(steps)} random steps; if none ever does, set max_episode_steps, which cuts and bootstraps"
        return Finding("warning", "episodes do not end", text)
    if limit is None and not truncated:
        text = "episodes end by themselves for random actions, but nothing cuts those of a policy that never gets to an end"
        return Finding(
            "warning", "no time limit", f"{text}; give max_episode_steps to gymnasium.register, or set it in EnvConfig"
        )
    return Finding(
        "ok", "episodes end", f"{terminated} terminated, {truncated} truncated by a limit, in {len(steps)} random steps"
    )


def _trajectory(config: EnvConfig, seed: int, length: int = 100) -> list[Any]:
    with make_envs(config, seed) as envs:
        observations, masks = envs.reset(seed)
        envs.action_space.seed(0)
        trajectory = [observations]
        for _ in range(length):
            trajectory.append(envs.step(_sample(envs, masks)))
            masks = trajectory[-1].action_masks
        return trajectory


def _allowed_action(env: gym.Env, observation: Any, info: dict[str, Any]) -> Any:
    env.action_space.seed(0)
    shown = observation.get(MASK) if isinstance(observation, dict) else None
    mask = info.get(MASK, shown)
    return (
        env.action_space.sample()
        if mask is None
        else env.action_space.sample(mask=_sample_mask(env.action_space, flat_mask(mask, env.action_space)))
    )


def _sample(envs: Envs, masks: np.ndarray | None) -> np.ndarray:
    """[B, ...] random allowed actions, as `Envs.step` takes them."""
    space = envs.action_space
    rows = [None] * envs.num_envs if masks is None else [_sample_mask(space, mask) for mask in masks]
    actions = [space.sample(mask=mask) for mask in rows]
    if is_composite(space):
        return np.array([flat_action(space, action) for action in actions])
    start = first_value(space)
    return np.array(actions) if start is None else np.array(actions) - start


def _sample_mask(space: gym.Space, mask: np.ndarray) -> Any:
    """A flat mask as `sample` of the space wants it."""
    if is_composite(space):
        ends = np.cumsum([mask_width(part) or 0 for _, part in parts_of(space)])[:-1]
        masks = {
            key: _sample_mask(part, cut) for (key, part), cut in zip(parts_of(space), np.split(mask, ends), strict=True)
        }
        return masks if isinstance(space, spaces.Dict) else tuple(masks.values())
    if mask_width(space) is None:
        return None
    bits = mask.astype(np.int8)
    return tuple(np.split(bits, np.cumsum(space.nvec)[:-1])) if isinstance(space, spaces.MultiDiscrete) else bits


def _equal(left: Any, right: Any) -> bool:
    """Whether two trees of arrays are the same to the bit."""
    if isinstance(left, dict):
        return all(_equal(left[name], right[name]) for name in left)
    if isinstance(left, tuple):
        return all(map(_equal, left, right))
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()
