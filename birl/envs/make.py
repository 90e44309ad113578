"""Environments made from an EnvConfig: seeded, wrapped, and stepped together."""

import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym

from birl.config import (
    AtariConfig,
    ConfigError,
    EnvConfig,
    Wrapper,
    function_named,
    has_twin,
    is_atari,
    is_compiled,
    is_compiled_id,
    is_local,
    name_of_function,
    require,
)
from birl.envs.atari import MOST_FRAMES, Atari, ale_arguments, step_limit
from birl.envs.compiled.interface import CompiledEnv
from birl.envs.envpool import envpool_step_limit, make_envpool
from birl.envs.registration import errors_explained, find_function, find_spec, make_arguments, newer_version
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import part_names
from birl.envs.vector import VectorAdapter
from birl.envs.wrappers import HideVelocities, StepTimeout, positions, with_method_masks
from birl.errors import cut
from birl.types import Envs
from birl.workers.envs import WorkerEnvs

if TYPE_CHECKING:  # they need JAX, which worker processes do without
    from birl.envs.compiled.copies import CompiledCopies
    from birl.envs.compiled.host import CompiledEnvs

CARTPOLE = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"  # the vector environment with snapshots
HostEnvs: TypeAlias = "SerialEnvs | VectorAdapter | WorkerEnvs | CompiledEnvs"
VECTOR_FROM = 8  # CartPoles; with fewer, its fixed 70 µs a step cost more than stepping one by one
MakeEnv = Callable[..., gym.Env | CompiledEnv]  # a class, or a function that makes one environment

_made: "weakref.WeakValueDictionary[int, gym.Env]" = weakref.WeakValueDictionary()  # by id
MOST_ENVS = 1 << 20  # more is surely a mistake, and would fill the memory
ATARI_OPTIONS = {  # arguments of ALE's environment that Birl sets itself, and what to use instead
    "frameskip": "env.atari.frame_skip",
    "repeat_action_probability": "env.atari.sticky_actions",
    "max_num_frames_per_episode": "env.max_episode_steps",
    "obs_type": "grey pictures",
    "continuous": "its discrete actions",
    "sound_obs": "pictures alone",
}


def make_envs(config: EnvConfig, seed: int) -> HostEnvs:
    """The environments, not yet reset. A context manager that closes them.

    In place of compiled ones, Gymnasium's of the same physics are made where there are any.
    """
    _validate(config)
    require(seed >= 0, f"run.seed {seed} is negative; use 0 or more")
    if is_compiled(config):
        if not has_twin(config):
            from birl.envs.compiled.host import CompiledEnvs, programs_of

            return CompiledEnvs(programs_of(config))
        config = replace(config, backend="gymnasium")
    if config.backend == "envpool":
        return make_envpool(config, seed)
    if config.workers:  # CartPole too: its vector environment has one generator, which workers cannot share
        return WorkerEnvs(config)
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
    """True if Gymnasium's vector CartPole can be used, and is faster."""
    spec = find_spec(config.id)
    wrappers = spec.additional_wrappers or config.wrappers
    unchanged = not wrappers and set(config.kwargs) <= {"sutton_barto_reward"}
    return spec.vector_entry_point == CARTPOLE and unchanged and config.num_envs >= VECTOR_FROM


def name_of_make_env(make_env: MakeEnv) -> str:
    """The id that stands for a function or a class which is passed in as `make_env`."""
    remedy = "pass the class, or a function that makes a new environment each time: make_env=lambda: MyEnv()"
    require(callable(make_env), f"make_env {cut(make_env)} is not a function; {remedy}")
    return name_of_function(make_env)


def env_from(function: Callable[..., Any], config: EnvConfig, render_mode: str | None = None) -> gym.Env:
    """The environment that a user's function makes, cut after `max_episode_steps`."""
    rendering = {"render_mode": render_mode} if render_mode is not None and _takes(function, "render_mode") else {}
    arguments = config.kwargs | rendering
    _require_fits(function, (), arguments, f"env.kwargs {cut(config.kwargs)} do not fit env.id {config.id!r}")
    env = function(**arguments)
    is_compiled_env = isinstance(env, CompiledEnv) and not isinstance(env, gym.Env)
    wrong = f"env.id {config.id!r} is a compiled environment"
    require(not is_compiled_env, f"{wrong}; use backend compiled (--backend compiled)")
    remedy = "return one gymnasium.Env; Birl makes num_envs of them"
    require(isinstance(env, gym.Env), f"env.id {config.id!r} returned {cut(env)}; {remedy}")
    again = _made.get(id(env)) is env
    require(not again, f"env.id {config.id!r} returned the same environment twice; make a new one at each call")
    _made[id(env)] = env
    if render_mode is not None and env.render_mode != render_mode:
        wrong = f"env.id {config.id!r} cannot be drawn: its render_mode is {env.render_mode!r}, not {render_mode!r}"
        raise ConfigError(f"{wrong}; let the function take render_mode and pass it on")
    return env if config.max_episode_steps is None else gym.wrappers.TimeLimit(env, config.max_episode_steps)


def wrapped(env: gym.Env, wrappers: tuple[Wrapper, ...]) -> gym.Env:
    """The environment inside these wrappers, the first one innermost."""
    for number, wrapper in enumerate(wrappers):
        setting = f"env.wrappers[{number}]"
        make = function_named(wrapper.path, setting)
        _require_fits(make, (env,), wrapper.kwargs, f"{setting} {wrapper.text()!r} has wrong arguments")
        try:
            outer = make(env, **wrapper.kwargs)
        except (AssertionError, TypeError, ValueError) as problem:  # it is made for other environments
            wrong = f"{setting} {wrapper.text()!r} does not fit {env}: {type(problem).__name__}: {problem}"
            raise ConfigError(wrong) from problem
        remedy = "use a gymnasium.Wrapper, or a function that returns one"
        require(isinstance(outer, gym.Env), f"{setting} {wrapper.text()!r} gave {cut(outer)}, no environment; {remedy}")
        env = outer
    return env


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a function; None if it does not say, as some built-in functions."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _takes(function: Callable[..., Any], name: str) -> bool:
    """True if a function has a parameter of this name, or takes any."""
    signature = _signature(function)
    parameters = {} if signature is None else signature.parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _require_fits(function: Callable[..., Any], arguments: tuple[Any, ...], kwargs: dict[str, Any], wrong: str) -> None:
    """Raise ConfigError, beginning with `wrong`, if a function does not take these arguments."""
    if (signature := _signature(function)) is None:
        return
    try:
        signature.bind(*arguments, **kwargs)
    except TypeError as problem:
        raise ConfigError(f"{wrong}: {problem}; it takes {signature}") from problem


def validate_env(env: EnvConfig) -> None:
    """Check how many environments there are and where they run."""
    num_envs = env.num_envs
    limit = env.max_episode_steps
    require(num_envs >= 1, f"env.num_envs {num_envs} is less than 1; use 8, or 1 for a single environment")
    require(num_envs <= MOST_ENVS, f"env.num_envs {num_envs} is more than {MOST_ENVS:,}; use as many as memory holds")
    require(
        limit is None or limit >= 1,
        f"env.max_episode_steps {limit} is less than 1; use None for the environment's own limit",
    )
    require(env.step_timeout > 0, f"env.step_timeout {env.step_timeout} is not more than 0 seconds; use 60")
    if is_compiled(env):
        _validate_compiled(env)
    _validate_workers(env)
    _validate_ray_actors(env)
    _validate_wrappers(env)
    if is_atari(env.id):
        _validate_atari(env, env.atari)


def _validate_compiled(env: EnvConfig) -> None:
    """Raise ConfigError for what does not go with environments that JAX steps in this process."""
    by_id = is_compiled_id(env.id)
    what = f"env.id {env.id!r}, which is a compiled environment" if by_id else "env.backend 'compiled'"
    instead = "" if by_id else ", or backend gymnasium"
    wrong = f"env.workers {env.workers} does not go with {what}"
    require(env.workers == 0, f"{wrong}: JAX steps it in this process; use workers 0{instead}")
    wrong = f"env.ray_actors {env.ray_actors} does not go with {what}"
    require(env.ray_actors == 0, f"{wrong}: JAX steps it in this process; use ray_actors 0{instead}")
    paths = tuple(wrapper.path for wrapper in env.wrappers)
    wrong = f"env.wrappers {paths} do not go with {what}: they wrap Gymnasium's environments"
    remedy = "leave them out and change the environment itself, in a class of your own"
    require(not paths, f"{wrong}; {remedy}{instead}")
    wrong = f"env.backend {env.backend!r} does not go with {what}"
    require(env.backend != "envpool", f"{wrong}; use backend compiled")
    wrong = f"env.id {env.id!r} does not go with {what}: Atari games are not written in JAX"
    require(not is_atari(env.id), f"{wrong}; use backend gymnasium or envpool")


def require_importable(env: EnvConfig, where: str, remedy: str) -> None:
    """Raise ConfigError if other processes would need a function that only this one has."""
    names = {"env.id": env.id} | {f"env.wrappers[{i}]": wrapper.path for i, wrapper in enumerate(env.wrappers)}
    for setting, name in names.items():
        wrong = f"{setting} {name!r} is a function that only this process has, and {where} uses other processes"
        require(not is_local(name), f"{wrong}; put it into a module that can be imported, or use {remedy}")


def _validate_wrappers(env: EnvConfig) -> None:
    paths = tuple(wrapper.path for wrapper in env.wrappers)
    wrong = f"env.wrappers {paths} do not go with env.backend 'envpool', which has no single environments"
    require(not paths or env.backend != "envpool", f"{wrong}; use backend gymnasium")
    if env.workers:
        require_importable(env, f"env.workers {env.workers}", "workers 0")
    if env.ray_actors:
        require_importable(env, f"env.ray_actors {env.ray_actors}", "ray_actors 0")


def _validate_workers(env: EnvConfig) -> None:
    workers = env.workers
    require(workers >= 0, f"env.workers {workers} is negative; use 0 to step the environments in this process")
    wrong = f"env.workers {workers} is more than env.num_envs {env.num_envs}"
    require(workers <= env.num_envs, f"{wrong}; use at most one worker for each environment")
    remedy = "EnvPool steps them in threads of its own; use workers 0, or backend gymnasium"
    wrong = f"env.workers {workers} does not go with env.backend 'envpool'"
    require(workers == 0 or env.backend != "envpool", f"{wrong}: {remedy}")
    require(workers == 0 or os.name == "posix", f"env.workers {workers} needs Linux or macOS; use workers 0")


def _validate_ray_actors(env: EnvConfig) -> None:
    actors = env.ray_actors
    require(actors >= 0, f"env.ray_actors {actors} is negative; use 0 to collect rollouts in this process")
    wrong = f"env.ray_actors {actors} is more than env.num_envs {env.num_envs}"
    require(actors <= env.num_envs, f"{wrong}; use at most one for each environment")
    remedy = "each Ray actor steps its environments itself; use workers 0, and more ray_actors"
    wrong = f"env.workers {env.workers} does not go with env.ray_actors {actors}"
    require(actors == 0 or env.workers == 0, f"{wrong}: {remedy}")
    wrong = f"env.backend {env.backend!r} does not go with env.ray_actors {actors}"
    require(actors == 0 or env.backend == "gymnasium", f"{wrong}; use backend gymnasium")


def _validate_atari(env: EnvConfig, atari: AtariConfig) -> None:
    noops = atari.noop_max
    skip = atari.frame_skip
    size = atari.screen_size
    sticky = atari.sticky_actions
    require(noops >= 1, f"env.atari.noop_max {noops} is less than 1; use 30, or 1 for the same start each time")
    require(1 <= skip <= MOST_FRAMES, f"env.atari.frame_skip {skip} must lie between 1 and {MOST_FRAMES:,}; use 4")
    require(1 <= size <= 160, f"env.atari.screen_size {size} must lie between 1 and the screen's 160; use 84")
    require(atari.stacked_frames >= 1, f"env.atari.stacked_frames {atari.stacked_frames} is less than 1; use 4")
    require(0 <= sticky < 1, f"env.atari.sticky_actions {sticky} must lie in [0, 1): it is a probability; use 0.25")
    for name in env.kwargs:
        remedy = ATARI_OPTIONS.get(name)
        require(remedy is None, f"env.kwargs {name!r} does not go with {env.id}: use {remedy}")
