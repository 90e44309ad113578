"""Environments of EnvPool, which steps them in C++ threads. The only file that imports envpool."""

import difflib
import importlib.util
import os
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

from birl.config import AtariConfig, ConfigError, EnvConfig, is_atari
from birl.envs.atari import step_limit
from birl.envs.registration import errors_explained, make_arguments
from birl.envs.spaces import GAME_OVER, HAS_LIVES, derived_seeds
from birl.envs.vector import VectorAdapter
from birl.envs.wrappers import positions
from birl.errors import install_extra

NO_LIMIT = 2**31 - 1  # steps of an episode: EnvPool's number for "no limit"


def make_envpool(config: EnvConfig, seed: int) -> VectorAdapter:
    """The environments of EnvPool, not yet reset."""
    envpool, name = _find(config)
    atari = is_atari(config.id)
    kwargs = _atari_arguments(config) if atari else make_arguments(config)

    def build(seed: int) -> gym.vector.VectorEnv:
        # EnvPool would use seed + i: runs with seeds 1 and 2 would then share environments.
        seeds = derived_seeds(seed, config.num_envs)
        # One thread more than CPUs, because a thread is slow to wake: 38,000 against 28,000 steps/s
        # for 8 LunarLanders on 2 CPUs.
        threads = min(config.num_envs, (os.cpu_count() or 1) + 1)
        pool = envpool.make(
            name, env_type="gymnasium", num_envs=config.num_envs, num_threads=threads, seed=seeds, **kwargs
        )
        with warnings.catch_warnings():  # spaces are made at first use, with a warning about their precision
            warnings.simplefilter("ignore")
            _ = pool.observation_space, pool.action_space
        return AtariPool(pool, config.atari) if atari else pool  # type: ignore[return-value]

    with errors_explained(config):
        pool = build(seed)
    keep = positions(config.id) if config.hide_velocities else None
    return VectorAdapter(pool, _true_bounds(pool.single_observation_space), keep, build, config.ignore_observations)


def envpool_step_limit(config: EnvConfig) -> int | None:
    """The steps after which EnvPool truncates an episode; None if it does not."""
    envpool, name = _find(config)
    limit = int(envpool.make_spec(name).config.max_episode_steps)
    return limit if limit < NO_LIMIT else None


class AtariPool:
    """EnvPool's Atari games, with two corrections.

    The first image of an episode is repeated also after a lost life, and the end of a whole game is
    reported.
    """

    def __init__(self, pool: Any, config: AtariConfig) -> None:
        self.pool = pool
        self.config = config
        self.num_envs = len(pool.all_env_ids)
        self.single_observation_space = pool.single_observation_space
        self.single_action_space = pool.single_action_space
        self.metadata: dict[str, Any] = {
            "autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP,
            HAS_LIVES: config.episodic_life,
        }
        self.images = np.ones(self.num_envs, np.int64)  # of each episode so far
        self.ended = np.zeros(self.num_envs, bool)
        self.game_over = np.ones(self.num_envs, bool)
        self.lives = np.zeros(self.num_envs, np.int64)

    @property
    def unwrapped(self) -> Any:
        return self.pool

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        """First observations; every environment begins a new game."""
        observations, _ = self.pool.reset()
        return observations, self._infos(np.ones(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all games, in NEXT_STEP order."""
        observations, rewards, terminated, truncated, infos = self.pool.step(actions)
        over = infos["terminated"].astype(bool) & ~self.ended
        terminated = terminated | over
        truncated = truncated & ~over  # a game that ends in its last allowed step is not truncated
        # A game that is lost during the no-op frames begins again: its lives go up.
        begins = self.ended & (self.game_over | (infos["lives"] > self.lives))
        self.lives = infos["lives"].copy()
        self.images = np.where(self.ended, 1, self.images + 1)
        self.ended = terminated | truncated
        self.game_over = over | truncated
        for index in np.flatnonzero(self.images < self.config.stacked_frames):
            first = self.config.stacked_frames - self.images[index]
            observations[index, :first] = observations[index, first]
        return observations, rewards, terminated, truncated, self._infos(self.game_over | begins)

    def close(self) -> None:
        self.pool.close()

    def _infos(self, game_over: np.ndarray) -> dict[str, Any]:
        return {GAME_OVER: game_over} if self.config.episodic_life else {}


def _find(config: EnvConfig) -> tuple[Any, str]:
    """The module envpool, and its name for the environment; raises ConfigError if it has none."""
    if importlib.util.find_spec("envpool") is None:
        remedy = f"{install_extra('envpool')}, or use backend gymnasium"
        raise ConfigError(f"env.backend 'envpool' is not installed: {remedy}")
    import envpool

    known = envpool.list_all_envs()
    wrong = f"env.id {config.id!r} is not in EnvPool"
    if is_atari(config.id):
        name = config.id.rpartition(":")[2].removeprefix("ALE/")
        if name not in known:
            raise ConfigError(f"{wrong}, where its name would be {name}; use backend gymnasium")
        return envpool, name
    if config.id not in known:
        close = ", ".join(difflib.get_close_matches(config.id, known)) or "see envpool.list_all_envs()"
        raise ConfigError(f"{wrong}; did you mean {close}? Or use backend gymnasium")
    return envpool, config.id


def _atari_arguments(config: EnvConfig) -> dict[str, Any]:
    """Arguments of envpool.make for the game that `Atari` makes of ALE's."""
    atari = config.atari
    own = {
        "noop_max": atari.noop_max,
        "frame_skip": atari.frame_skip,
        "img_height": atari.screen_size,
        "img_width": atari.screen_size,
        "stack_num": atari.stacked_frames,
        "episodic_life": atari.episodic_life,
        "use_fire_reset": atari.fire_reset,
        "repeat_action_probability": atari.sticky_actions,
        "max_episode_steps": step_limit(config),
        "reward_clip": False,
    }
    return own | dict(config.kwargs)


def _true_bounds(space: gym.Space) -> gym.Space:
    """The space without bounds where EnvPool 1.2.5 declares FLT_MIN to FLT_MAX by mistake.

    It does so for LunarLander and BipedalWalker.
    """
    float_box = isinstance(space, gym.spaces.Box) and space.dtype == np.float32
    if float_box and np.any(space.low == np.finfo(np.float32).tiny):  # type: ignore[attr-defined]
        return gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space
