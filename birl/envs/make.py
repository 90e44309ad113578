"""EnvConfig to environments: seeded, wrapped, stepped together. The only file that imports
envpool.
"""

import difflib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from birl.checks import is_atari, validate_env
from birl.config import ConfigError, EnvConfig, require
from birl.envs.atari import (
    Atari,
    AtariPool,
    make_arguments,
    pool_arguments,
    pool_id,
    step_limit,
)
from birl.envs.probes import register_probes
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import derived_seeds
from birl.envs.vector import VectorAdapter
from birl.envs.wrappers import HideVelocities, StepTimeout, positions
from birl.types import Envs
from birl.workers.envs import WorkerEnvs

CARTPOLE = (
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"  # the native vector environment that can be snapshot
)
NATIVE_FROM = 8  # environments: with fewer, its fixed price of 70 µs a step is more than theirs one by one
NO_LIMIT = 2**31 - 1  # steps of an episode: EnvPool's word for "as many as it takes"
EXTRAS = {"ale_py": "birl[atari]", "mujoco": "birl[mujoco]", "Box2D": "box2d", "pygame": "gymnasium[classic-control]"}


def make_envs(config: EnvConfig, seed: int) -> SerialEnvs | VectorAdapter | WorkerEnvs:
    """The environments, not yet reset. Use as a context manager, which closes them."""
    validate_env(config)
    require(seed >= 0, f"run.seed {seed} is negative; use 0 or more")
    if config.backend == "envpool":
        return _make_envpool(config, seed)
    if (
        config.workers
    ):  # also for CartPole: its own vector environment has one generator for all, which cannot be shared out
        return WorkerEnvs(config)
    register_probes()
    keep = positions(config.id) if config.hide_velocities else None
    with _explained(config):
        if _has_native_vector(config):
            kwargs = _make_kwargs(config)
            return VectorAdapter(
                gym.make_vec(_find_spec(config.id), config.num_envs, "vector_entry_point", **kwargs), keep=keep
            )
        return SerialEnvs([partial(make_env, config)] * config.num_envs)


def make_share(config: EnvConfig, share: range) -> SerialEnvs:
    """Some of the environments, with the seeds that they have among all; a step that takes too long
    ends this process.
    """
    register_probes()
    make = partial(make_env, config)
    return SerialEnvs([lambda: StepTimeout(make(), config.step_timeout)] * len(share), first=share.start)


def make_env(config: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """One environment, wrapped as the vector of them is: to evaluate, play or record."""
    validate_env(config)
    register_probes()
    rendering: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    with _explained(config, render_mode):
        spec = replace(
            _find_spec(config.id), order_enforce=False, disable_env_checker=True
        )  # we keep the order, and check once
        if is_atari(config.id):
            return Atari(gym.make(spec, **make_arguments(config), **rendering), config.atari, step_limit(config))
        env = gym.make(spec, **_make_kwargs(config), **rendering)
    return HideVelocities(env, positions(config.id)) if config.hide_velocities else env


def as_envs(envs: object, config: EnvConfig) -> Envs:
    """What was handed in as `envs`, a vector environment of the user's own in Birl's episode
    convention; ConfigError for anything else.
    """
    if isinstance(envs, gym.vector.VectorEnv):
        return VectorAdapter(envs)
    remedy = f"give gymnasium.make_vec({config.id!r}, {config.num_envs}), or leave envs out: env.id and env.num_envs make them"
    kind = "a single environment" if isinstance(envs, gym.Env) else "no gymnasium.vector.VectorEnv"
    require(isinstance(envs, Envs), f"envs {envs!r} is {kind}; {remedy}")
    return envs  # type: ignore[return-value]


def episode_limit(config: EnvConfig) -> int | None:
    """The steps after which an episode is cut; None if nothing is known to cut it before the
    environment is made.
    """
    if is_atari(config.id):
        return step_limit(config)
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    if config.backend == "envpool":
        pool, name = _find_pool(config)
        limit = int(pool.make_spec(name).config.max_episode_steps)
        return limit if limit < NO_LIMIT else None
    register_probes()
    with _explained(config):
        return _find_spec(config.id).max_episode_steps


def spaces_of(config: EnvConfig) -> tuple[gym.Space, gym.Space]:
    """Observation and action space of one environment, as networks see them; makes one and closes
    it, so it can be made.
    """
    validate_env(config)
    with make_envs(replace(config, num_envs=1, workers=0), 0) as envs:
        if config.backend == "gymnasium" and (newer := newer_version(config.id)):
            warnings.warn(f"env.id {config.id!r} is an old version; use {newer}", stacklevel=2)
        return envs.observation_space, envs.action_space


def _make_kwargs(config: EnvConfig) -> dict[str, Any]:
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return limit | dict(config.kwargs)


def _has_native_vector(config: EnvConfig) -> bool:
    spec = _find_spec(config.id)
    plain = not spec.additional_wrappers and set(config.kwargs) <= {"sutton_barto_reward"}
    return spec.vector_entry_point == CARTPOLE and plain and config.num_envs >= NATIVE_FROM


def _find_spec(env_id: str) -> EnvSpec:
    """The registered spec; imports the module of a module:Id, and ale_py for its namespace."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    if name.startswith("ALE/"):
        ale_py = importlib.import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # or each process greets
        gym.register_envs(ale_py)
    return gym.spec(name)


@contextmanager
def _explained(config: EnvConfig, render_mode: str | None = None) -> Iterator[None]:
    """Turn what can go wrong while an environment is made into a ConfigError that says what to
    do.
    """
    try:
        yield
    except gym.error.UnregisteredEnv as error:
        hint = f"For an environment of your own, name the module that registers it: my_module:{config.id.rpartition(':')[2]}"
        raise ConfigError(f"env.id {config.id!r} is not registered: {error} {hint}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(_missing_module(config, error.name or "")) from error
    except gym.error.DependencyNotInstalled as error:
        missing = next((name for name in EXTRAS if name.lower() in str(error).lower()), "")
        raise ConfigError(f"{_missing_module(config, missing)} ({error})") from error
    except ImportError as error:  # of something that is installed, and has moved or been removed
        newer = newer_version(config.id)
        raise ConfigError(f"env.id {config.id!r} cannot be made: {error}{f'; use {newer}' if newer else ''}") from error
    except gym.error.DeprecatedEnv as error:
        raise ConfigError(f"env.id {config.id!r} is too old: {error}") from error
    except gym.error.Error as error:
        raise ConfigError(
            f"env.id {config.id!r} cannot be made: {error} (ids end in a version: CartPole-v1)"
        ) from error
    except SystemExit as error:
        raise ConfigError(
            f"env.id {config.id!r} cannot be made: it called sys.exit({error}); have it raise what is wrong"
        ) from error
    except TypeError as error:
        if render_mode is not None:  # the rest was taken when it was trained
            remedy = f"let its class take render_mode, list {render_mode!r} in metadata['render_modes'] and have a render method"
            raise ConfigError(f"env.id {config.id!r} cannot be drawn: {error}; {remedy}") from error
        raise ConfigError(
            f"env.kwargs {config.kwargs} do not fit env.id {config.id!r}: {error}; use what its constructor takes"
        ) from error


def newer_version(env_id: str) -> str | None:
    """The id of the latest version, if one later than this is registered."""
    name, _, version = env_id.rpartition(":")[2].rpartition("-v")
    versions = [
        spec.version or 0
        for spec in gym.registry.values()
        if "/".join(filter(None, (spec.namespace, spec.name))) == name
    ]
    latest = max(versions, default=0)
    return f"{name}-v{latest}" if version.isdigit() and latest > int(version) else None


def _missing_module(config: EnvConfig, module: str) -> str:
    remedy = (
        f"pip install '{EXTRAS[module]}'"
        if module in EXTRAS
        else f"install {module}, or correct the module before the colon"
    )
    return f"env.id {config.id!r} needs the module {module}, which is not installed: {remedy}"


def _find_pool(config: EnvConfig) -> tuple[Any, str]:
    """The module envpool, and its name for the environment; ConfigError if it has none."""
    if importlib.util.find_spec("envpool") is None:
        raise ConfigError(
            "env.backend 'envpool' is not installed: pip install 'birl[envpool]', or use backend gymnasium"
        )
    import envpool

    known = envpool.list_all_envs()
    name = pool_id(config.id, known) if is_atari(config.id) else config.id
    if name not in known:
        close = ", ".join(difflib.get_close_matches(config.id, known)) or "see envpool.list_all_envs()"
        raise ConfigError(f"env.id {config.id!r} is not in EnvPool; did you mean {close}? Or use backend gymnasium")
    return envpool, name


def _make_envpool(config: EnvConfig, seed: int) -> VectorAdapter:
    envpool, name = _find_pool(config)
    games = is_atari(config.id)
    kwargs = pool_arguments(config) if games else _make_kwargs(config)

    def build(seed: int) -> gym.vector.VectorEnv:
        # Seeds one by one: from a single one EnvPool gives seed + i, so runs with seeds 1 and 2
        # would share environments.
        seeds = derived_seeds(seed, config.num_envs)
        # One more thread than cores: while one waits to be woken another steps. 8 LunarLanders on 2
        # cores: 38,000 steps/s, with two 28,000.
        threads = min(config.num_envs, (os.cpu_count() or 1) + 1)
        pool = envpool.make(
            name, env_type="gymnasium", num_envs=config.num_envs, num_threads=threads, seed=seeds, **kwargs
        )
        with warnings.catch_warnings():  # its spaces are made at first use, and lose precision loudly
            warnings.simplefilter("ignore")
            _ = pool.observation_space, pool.action_space
        return AtariPool(pool, config.atari) if games else pool  # type: ignore[return-value]

    with _explained(config):
        pool = build(seed)
    keep = positions(config.id) if config.hide_velocities else None
    return VectorAdapter(pool, _true_bounds(pool.single_observation_space), keep, build)


def _true_bounds(space: gym.Space) -> gym.Space:
    """EnvPool 1.2.5 says FLT_MIN to FLT_MAX for LunarLander and BipedalWalker where it means any
    number.
    """
    if (
        isinstance(space, gym.spaces.Box)
        and space.dtype == np.float32
        and np.any(space.low == np.finfo(np.float32).tiny)
    ):
        return gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


@contextmanager
def open_envs(config: EnvConfig, seed: int, envs: Envs | gym.vector.VectorEnv | None = None) -> Iterator[Envs]:
    """The environments of the config, closed at the end; or those that were handed in, left open
    for whoever made them.
    """
    if envs is None:
        with make_envs(config, seed) as made:
            yield made
        return
    hidden = config.hide_velocities and isinstance(envs, gym.vector.VectorEnv)
    require(
        not hidden,
        "env.hide_velocities True cannot change a vector environment that is handed in; hide them there and use False",
    )
    given = as_envs(envs, config)
    require(
        given.num_envs == config.num_envs,
        f"env.num_envs {config.num_envs} but envs has {given.num_envs}; set num_envs to that",
    )
    yield given
