"""Environments made from an EnvConfig: seeded, wrapped, and stepped together."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym

from birl.compiled_ids import has_twin, is_compiled
from birl.config import EnvConfig, require
from birl.env_checks import is_atari, validate_env
from birl.envs.atari import Atari, ale_arguments, step_limit
from birl.envs.by_name import env_from, wrapped
from birl.envs.envpool import envpool_step_limit, make_envpool
from birl.envs.explain import errors_explained
from birl.envs.probes import register_probes
from birl.envs.registration import find_function, find_spec, make_arguments, newer_version
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import part_names
from birl.envs.vector import VectorAdapter
from birl.envs.wrappers import HideVelocities, StepTimeout, positions, with_method_masks
from birl.types import Envs
from birl.workers.envs import WorkerEnvs

if TYPE_CHECKING:  # they need JAX, which worker processes do without
    from birl.envs.compiled.copies import CompiledCopies
    from birl.envs.compiled.host import CompiledEnvs

CARTPOLE = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"  # the vector environment with snapshots
HostEnvs: TypeAlias = "SerialEnvs | VectorAdapter | WorkerEnvs | CompiledEnvs"
VECTOR_FROM = 8  # CartPoles; with fewer, its fixed 70 µs a step cost more than stepping one by one


def make_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The environments, not yet reset. A context manager that closes them.

    In place of compiled ones, Gymnasium's of the same physics are made where there are any.
    """
    _validate(config)
    require(seed >= 0, f"run.seed {seed} is negative; use 0 or more")
    if is_compiled(config):
        if not has_twin(config):
            return _compiled_envs(config)
        config = replace(config, backend="gymnasium")
    if config.backend == "envpool":
        return make_envpool(config, seed)
    if config.workers:  # CartPole too: its vector environment has one generator, which workers cannot share
        return WorkerEnvs(config)
    register_probes()
    keep = positions(config.id) if config.hide_velocities else None
    with errors_explained(config):
        if _has_native_vector(config):
            arguments = make_arguments(config)
            made = gym.make_vec(find_spec(config.id), config.num_envs, "vector_entry_point", **arguments)
            return VectorAdapter(made, keep=keep, ignored=config.ignore_observations)
        return SerialEnvs([partial(make_env, config)] * config.num_envs, ignored=config.ignore_observations)


def spare(config: EnvConfig, num_envs: int, workers: int = 0) -> EnvConfig:
    """Settings of environments beside those that train, to evaluate or to try them.

    There are `num_envs`, in at most `workers` processes; Ray actors are for rollouts only.
    """
    return replace(config, num_envs=num_envs, workers=min(config.workers, workers), ray_actors=0)


def make_share(config: EnvConfig, share: range) -> SerialEnvs:
    """Some of the environments, with the seeds that they have among all.

    A step that takes longer than `step_timeout` ends this process.
    """
    register_probes()
    make = partial(make_env, config)
    functions = [lambda: StepTimeout(make(), config.step_timeout)] * len(share)
    return SerialEnvs(functions, first=share.start, ignored=config.ignore_observations)


def make_env(config: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """One environment, wrapped as in training: to evaluate, play or record."""
    _validate(config)
    if is_compiled(config):
        if not has_twin(config):
            return _compiled_env(config, render_mode)
        config = replace(config, backend="gymnasium")
    register_probes()
    rendering: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    with errors_explained(config, render_mode):
        function = find_function(config.id)
        if function is None:
            # Gymnasium's checks at every step are not needed: Birl keeps the order of calls.
            spec = replace(find_spec(config.id), order_enforce=False, disable_env_checker=True)
            atari = is_atari(config.id)
            env = gym.make(spec, **(ale_arguments(config) if atari else make_arguments(config)), **rendering)
            env = Atari(env, config.atari, step_limit(config)) if atari else env
    if function is not None:
        env = env_from(function, config, render_mode)
    env = HideVelocities(env, positions(config.id)) if config.hide_velocities else env
    return with_method_masks(wrapped(env, config.wrappers))


@contextmanager
def open_envs(config: EnvConfig, seed: int, envs: Envs | gym.vector.VectorEnv | None = None) -> Iterator[Envs]:
    """The environments of the config, closed at the end; or those passed in, which stay open."""
    if envs is None:
        with make_envs(config, seed) as made:
            yield made
        return
    hidden = config.hide_velocities and isinstance(envs, gym.vector.VectorEnv)
    wrong = "env.hide_velocities True cannot change a vector environment that is passed in"
    require(not hidden, f"{wrong}; hide them there and use False")
    given = as_envs(envs, config)
    wrong = f"env.num_envs {config.num_envs} but envs has {given.num_envs}"
    require(given.num_envs == config.num_envs, f"{wrong}; set num_envs to that")
    yield given


def as_envs(envs: object, config: EnvConfig) -> Envs:
    """The environments passed in as `envs`, in Birl's episode convention.

    Raises ConfigError for anything but a vector environment or Birl's own Envs.
    """
    if isinstance(envs, gym.vector.VectorEnv):
        return VectorAdapter(envs, ignored=config.ignore_observations)
    kind = "a single environment" if isinstance(envs, gym.Env) else "not a gymnasium.vector.VectorEnv"
    example = "gymnasium.vector.SyncVectorEnv([make_env] * 8)"
    remedy = f"pass one, such as {example}, or leave envs out: Birl makes num_envs of the environment that you name"
    require(isinstance(envs, Envs), f"envs {envs!r} is {kind}; {remedy}")
    wrong = f"env.ignore_observations {config.ignore_observations} cannot change Birl's own environments"
    left = set(part_names(envs.observation_space)) & set(config.ignore_observations)  # type: ignore[attr-defined]
    require(not left, f"{wrong} that are passed in; leave parts out where you make them")
    return envs  # type: ignore[return-value]


def episode_limit(config: EnvConfig) -> int | None:
    """The steps after which an episode is truncated; None if no limit is known beforehand."""
    if is_compiled(config):
        return _compiled_copies(config).limit
    if is_atari(config.id):
        return step_limit(config)
    if config.max_episode_steps is not None:
        return config.max_episode_steps
    if config.backend == "envpool":
        return envpool_step_limit(config)
    register_probes()
    with errors_explained(config):
        return find_spec(config.id).max_episode_steps


def spaces_of(config: EnvConfig) -> tuple[gym.Space, gym.Space]:
    """The observation and action space that networks see.

    Makes one environment and closes it, so a config that cannot work fails here. A compiled one is
    made, and traced.
    """
    _validate(config)
    if is_compiled(config):
        return _compiled_copies(config).spaces
    with make_envs(spare(config, 1), 0) as envs:
        if config.backend == "gymnasium" and (newer := newer_version(config.id)):
            warnings.warn(f"env.id {config.id!r} is an old version; use {newer}", stacklevel=2)
        return envs.observation_space, envs.action_space


def _compiled_envs(config: EnvConfig) -> "CompiledEnvs":
    from birl.envs.compiled.host import CompiledEnvs, programs_of

    return CompiledEnvs(programs_of(config))


def _compiled_copies(config: EnvConfig) -> "CompiledCopies":
    from birl.envs.compiled.host import programs_of

    return programs_of(config).copies


def _compiled_env(config: EnvConfig, render_mode: str | None) -> gym.Env:
    """A compiled environment that Gymnasium does not have, to play or record."""
    from birl.envs.compiled.host import CompiledGymEnv

    env: gym.Env = CompiledGymEnv(config, None if render_mode is None else "rgb_array")
    env = HideVelocities(env, positions(config.id)) if config.hide_velocities else env
    with errors_explained(config, render_mode):
        return gym.wrappers.HumanRendering(env) if render_mode == "human" else env


def _validate(config: EnvConfig) -> None:
    """Raise ConfigError if environments with these settings cannot be made."""
    validate_env(config)
    if config.hide_velocities:
        positions(config.id)


def _has_native_vector(config: EnvConfig) -> bool:
    """Whether to use Gymnasium's vector CartPole."""
    spec = find_spec(config.id)
    wrappers = spec.additional_wrappers or config.wrappers
    unchanged = not wrappers and set(config.kwargs) <= {"sutton_barto_reward"}
    return spec.vector_entry_point == CARTPOLE and unchanged and config.num_envs >= VECTOR_FROM
