"""Checks of the environment's settings: how many, where they run, which wrappers, Atari."""

import os

from birl.compiled_ids import is_compiled, is_compiled_id
from birl.config import AtariConfig, EnvConfig, require
from birl.functions import is_local

MOST_ENVS = 1 << 20  # more is surely a mistake, and would fill the memory
MOST_FRAMES = 108_000  # in an Atari game, half an hour of play; then the episode is truncated
ATARI_OPTIONS = {  # arguments of ALE's environment that Birl sets itself, and what to use instead
    "frameskip": "env.atari.frame_skip",
    "repeat_action_probability": "env.atari.sticky_actions",
    "max_num_frames_per_episode": "env.max_episode_steps",
    "obs_type": "grey pictures",
    "continuous": "its discrete actions",
    "sound_obs": "pictures alone",
}


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


def is_atari(env_id: str) -> bool:
    """Whether an id is that of an Atari game."""
    return env_id.rpartition(":")[2].startswith("ALE/")


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
