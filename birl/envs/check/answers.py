"""Checks of what an environment declares and returns: reset, step, observations, action space."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from birl import ALGORITHMS
from birl.config import EnvConfig, is_compiled
from birl.envs.actions import sample_action
from birl.envs.compiled.copies import KEY, example_action
from birl.envs.compiled.host import CompiledEnvs, new_programs, programs_of
from birl.envs.make import HostEnvs, make_env, make_envs, validate_env
from birl.envs.outputs import ErrorSource, read_reset, read_reward
from birl.envs.snapshot import same_tree
from birl.envs.spaces import MASK, at_path, far_from_one, is_composite, leaves_of, mask_width, name_of, shown, walk
from birl.envs.wrappers import MASK_METHOD
from birl.errors import EnvError
from birl.registry import algorithms_for, algorithms_with_compiled_envs


@dataclass(frozen=True)
class Finding:
    """One thing that is right or wrong with an environment, and what to do about it."""

    level: Literal["ok", "warning", "error"]
    title: str
    explanation: str


def ok(title: str, explanation: str) -> Finding:
    """A finding that needs no action."""
    return Finding("ok", title, explanation)


def warning(title: str, explanation: str) -> Finding:
    """A finding about something that still trains, but may do so badly."""
    return Finding("warning", title, explanation)


def error(title: str, explanation: str) -> Finding:
    """A finding about something that must be fixed before training."""
    return Finding("error", title, explanation)


def tried_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The environments, not yet reset; compiled ones themselves, not their twins."""
    if not is_compiled(config):
        return make_envs(config, seed)
    validate_env(config)
    return CompiledEnvs(programs_of(config))


def new_tried_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The same, made as another process would make them: compiled ones are compiled again."""
    return CompiledEnvs(new_programs(config)) if is_compiled(config) else make_envs(config, seed)


def check_interface(config: EnvConfig) -> list[Finding]:
    """Check that reset and step return what Gymnasium's rules ask for."""
    env = make_env(config)
    source = ErrorSource("it", env)
    try:
        first, info = read_reset(_called("reset", source, lambda: env.reset(seed=0)), source)
    except (EnvError, RuntimeError) as problem:
        return [error("reset", str(problem))]
    findings = [_check_observation(env.observation_space, first, "reset")]
    findings += _check_mask_names(env, info)
    first_copy = copy.deepcopy(first)
    action = sample_action(env, first, info)
    try:
        answer: Any = _called("step", source, lambda: env.step(action))
    except (EnvError, RuntimeError) as problem:
        return [*findings, error("step", str(problem))]
    if not (isinstance(answer, tuple) and len(answer) == 5):
        size = len(answer) if isinstance(answer, tuple) else 1
        return [*findings, error("step", str(source.breaks_rules("step", f"it returns {size} values")))]
    observation, reward, terminated, truncated, _ = answer
    findings.append(_check_observation(env.observation_space, observation, "step"))
    try:
        read_reward(reward, source)
    except EnvError as problem:
        findings.append(error("reward type", str(problem)))
    if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, truncated)):
        wrong = f"terminated and truncated are {terminated!r} and {truncated!r}"
        findings.append(warning("flags", f"{wrong}; return bools"))
    if not same_tree(first_copy, first):
        wrong = "step wrote into the array that reset had returned"
        effect = "Birl copies observations, but other libraries will see old ones change"
        findings.append(
            warning("observations share memory", f"{wrong}. {effect}. Return a new array, or array.copy().")
        )
    env.close()
    return findings


def _called(function: str, source: ErrorSource, call: Callable[[], Any]) -> Any:
    """The answer of reset or step; an error in it names the line."""
    try:
        return call()
    except (Exception, SystemExit) as problem:
        raise source.raised(function, problem) from problem


def _check_mask_names(env: gym.Env, info: dict[str, Any]) -> list[Finding]:
    """Masks that nothing reads, because of their name or of the action space."""
    parts = env.observation_space.spaces if isinstance(env.observation_space, spaces.Dict) else {}
    named = [str(name) for name in (*info, *parts) if "mask" in str(name).lower()]
    named += [MASK_METHOD] if env.has_wrapper_attr(MASK_METHOD) else []
    if mask_width(env.action_space) is None:
        text = f"{shown(env.action_space)} has no choices to mask: {', '.join(named)} is not read"
    else:
        named = [] if {MASK, MASK_METHOD} & {*named} else named
        text = f"{', '.join(named)} is not read as a mask: name it {MASK}"
    return [warning("action masks", text)] if named else []


def check_actions(config: EnvConfig) -> list[Finding]:
    """The action space, the algorithms that take it, and bounds that cause trouble."""
    with tried_envs(replace(config, num_envs=1), 0) as envs:
        space = envs.action_space
    boxes = [leaf for leaf in leaves_of(space) if isinstance(leaf, spaces.Box)]
    kind = "hybrid" if is_composite(space) else "continuous" if boxes else "discrete"
    can_learn = algorithms_with_compiled_envs() if is_compiled(config) else ALGORITHMS
    names = ", ".join(name for name in algorithms_for(space) if name in can_learn)
    return [ok("actions", f"{kind}, {shown(space)}; algorithms that take it: {names}"), *_check_bounds(boxes)]


def _check_observation(space: gym.Space, observation: Any, function: str) -> Finding:
    title = f"observation of {function}"
    if space.contains(observation):
        return ok(title, f"lies in {shown(space)}")
    array = np.asarray(observation) if not isinstance(observation, dict | tuple) else None
    if array is None or not isinstance(space, spaces.Box):
        return error(title, f"{observation!r} is not in {shown(space)}")
    if array.shape != space.shape:
        return error(title, f"its shape is {array.shape}, observation_space says {space.shape}")
    if not np.isfinite(array).all():
        return error(title, f"it holds NaN or infinity: {array}")
    if array.dtype != space.dtype:
        return warning(title, f"its dtype is {array.dtype}, observation_space says {space.dtype}; Birl casts it")
    return warning(title, "it lies outside the bounds of observation_space; correct the bounds")


def _check_bounds(boxes: list[spaces.Box]) -> list[Finding]:
    if not all(np.isfinite(box.low).all() and np.isfinite(box.high).all() for box in boxes):
        return [
            warning("action bounds", "some are infinite: algorithms that scale actions to the bounds cannot be used")
        ]
    far = [(box.low[far_from_one(box)], box.high[far_from_one(box)]) for box in boxes if far_from_one(box).any()]
    if far:
        low, high = min(low.min() for low, _ in far), max(high.max() for _, high in far)
        scaled = "Birl scales the actions of a Gaussian policy to them (scale_actions); many libraries do not"
        return [warning("action bounds", f"they are far from ±1, between {low:g} and {high:g}. {scaled}")]
    if not all(np.allclose(box.low, -box.high) for box in boxes):
        return [warning("action bounds", "they are not symmetric about 0. Birl handles this; many libraries do not")]
    return []


def check_compiled(config: EnvConfig) -> list[Finding]:
    """Check that reset and step return what the spaces say.

    Shapes are right, because an environment whose shapes are wrong cannot be made.
    """
    env = programs_of(config).copies.env
    state, observation = jax.eval_shape(env.reset, KEY)
    _, _, _, *flags = jax.eval_shape(env.step, state, example_action(env.action_space), KEY)
    text = "reset and step can be traced by JAX, and the state keeps its shapes and types"
    findings = [ok("compiles", text), *_check_types(env.observation_space, observation)]
    kinds = {name: flag.dtype for name, flag in zip(("terminated", "truncated"), flags, strict=True)}
    if others := [f"{name} is {kind}" for name, kind in kinds.items() if kind != np.bool_]:
        findings.append(warning("flags", f"{', '.join(others)}; return bools"))
    return findings


def _check_types(space: gym.Space, observation: Any) -> list[Finding]:
    """Warnings of fractions that would be cut off."""
    findings = []
    for path, leaf in walk(space, "observation"):
        given = np.dtype(at_path(observation, path).dtype)
        if given.kind == "f" and np.dtype(leaf.dtype).kind in "iu":
            wrong = f"its type is {given}, and {shown(leaf)} holds whole numbers"
            findings.append(
                warning(f"observation {name_of(path)}".strip(), f"{wrong}: fractions are cut off; correct one of them")
            )
    return findings
