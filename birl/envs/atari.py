"""Atari games as deep RL sees them, the same through ale-py and through EnvPool. Needs neither to
be imported.

An episode begins with 1 to `noop_max` frames without an action, the last of them fire if the game
needs it. An action is held for `frame_skip` frames. Of the last two the brighter pixels are taken
(sprites that flicker are in every other frame), in grey, scaled by area to a square. The newest so
many pictures are the observation, an episode's first one repeated; its newest is the last.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.checks import MOST_FRAMES, is_atari
from birl.config import AtariConfig, ConfigError, EnvConfig
from birl.envs.spaces import GAME_OVER, HAS_LIVES

NOOP, FIRE = 0, 1  # ALE's numbers of these actions


def has_lives(config: EnvConfig) -> bool:
    """Whether an episode of these environments may be one life of a game."""
    return is_atari(config.id) and config.atari.episodic_life


def step_limit(config: EnvConfig) -> int:
    """The steps after which a game is cut, lives or not."""
    return config.max_episode_steps or MOST_FRAMES // config.atari.frame_skip


def make_arguments(config: EnvConfig) -> dict[str, Any]:
    """For gymnasium.make: the bare game, frame by frame. Actions stick in our wrapper: ALE's state
    does not say which one does.
    """
    own = {"frameskip": 1, "repeat_action_probability": 0.0, "max_num_frames_per_episode": 0}
    return own | dict(config.kwargs)


def pool_arguments(config: EnvConfig) -> dict[str, Any]:
    """For envpool.make: the same game."""
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


class AreaScale:
    """Pictures of one size to another, each new pixel the mean of the area it covers, by OpenCV's
    float32 sums in its order.
    """

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._rows, self._row_weights = _area_table(source[0], target[0], target[1])
        self._columns, self._column_weights = _area_table(source[1], target[1], source[0])

    def __call__(self, picture: np.ndarray) -> np.ndarray:
        columns = picture.T.astype(np.float32, order="C")  # whole lines are gathered sooner than single pixels
        across = _weighed(columns, self._columns, self._column_weights)
        return np.rint(_weighed(across.T.copy(), self._rows, self._row_weights)).astype(np.uint8)


def _weighed(lines: np.ndarray, taps: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[target, width] Σ_k weights[k] lines[taps[k]], added in the order of k: the last bit decides
    which way a half is rounded.
    """
    total = lines.take(taps[0], 0)
    total *= weights[0]
    for tap, weight in zip(taps[1:], weights[1:], strict=True):
        part = lines.take(tap, 0)
        part *= weight
        total += part
    return total


def _area_table(source: int, target: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, target] the lines that each new line covers; [K, target, width] which part of it each of
    them is, 0 where there are fewer.
    """
    edges = np.arange(target + 1) * (source / target)
    edges = np.where(np.abs(edges - np.rint(edges)) < 1e-9, np.rint(edges), edges)
    first = np.floor(edges[:-1]).astype(int)
    count = int((np.ceil(edges[1:]) - first).max())
    lines = first + np.arange(count)[:, None]
    covered = np.minimum(lines + 1, edges[1:]) - np.maximum(lines, edges[:-1])
    weights = np.maximum(covered, 0) / (source / target)
    return np.minimum(lines, source - 1), np.repeat(weights.astype(np.float32)[..., None], width, axis=2)


class Atari(gym.Wrapper):
    """One game, from ALE's environment with single frames. After a lost life reset goes on; else it
    begins a new game.
    """

    def __init__(self, env: gym.Env, config: AtariConfig, limit: int) -> None:
        super().__init__(env)
        self.config, self.limit = config, limit
        self.metadata = {**env.metadata, HAS_LIVES: config.episodic_life}
        self.ale: Any = env.unwrapped.ale  # type: ignore[attr-defined]
        self.actions: list[Any] = list(env.unwrapped._action_set)  # type: ignore[attr-defined]
        self.fires = config.fire_reset and FIRE in [int(action.value) for action in self.actions]
        self.noop, self.fire = (type(self.actions[0])(number) for number in (NOOP, FIRE))
        height, width = self.ale.getScreenDims()
        size = config.screen_size
        self.scale = AreaScale((height, width), (size, size))
        self.observation_space = spaces.Box(0, 255, (config.stacked_frames, size, size), np.uint8)
        self.screens = np.zeros((2, height, width), np.uint8)  # scratch: the last two frames of a step
        self.frames = np.zeros((config.stacked_frames, size, size), np.uint8)
        self.held = self.noop  # the last frame's action
        self.lives = 0
        self.elapsed = 0  # steps of this game
        self.life_lost = False  # with the last step, and the game goes on

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        begins = seed is not None or not self.life_lost
        if begins:
            self.env.reset(seed=seed, options=options)
            self.held = self.noop
        waits = int(self.np_random.integers(1, self.config.noop_max + 1))
        for action in [self.noop] * (waits - self.fires) + [self.fire] * self.fires:
            self._act(action)
            if self.ale.game_over():  # some games are lost by waiting, or by a life that was the last
                self.ale.reset_game()
                self.held = self.noop
                begins = True
        self.elapsed = 0 if begins else self.elapsed
        self.life_lost, self.lives = False, self.ale.lives()
        self.ale.getScreenGrayscale(self.screens[0])
        self.frames = np.repeat(self.scale(self.screens[0])[None], self.config.stacked_frames, axis=0)
        return self.frames, self._info(begins)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, over, newest = self._hold(self.actions[action])
        self.frames = np.concatenate([self.frames[1:], newest[None]])
        self.elapsed += 1
        lives, lives_before, self.lives = self.ale.lives(), self.lives, self.ale.lives()
        truncated = self.elapsed >= self.limit and not over
        self.life_lost = self.config.episodic_life and 0 < lives < lives_before and not (over or truncated)
        return self.frames, reward, over or self.life_lost, truncated, self._info(over or truncated)

    def _hold(self, action: Any) -> tuple[float, bool, np.ndarray]:
        """The rewards of some frames with one action, whether the game ended, and the picture of
        the last two.
        """
        reward, over, seen = 0.0, False, 0
        for left in reversed(range(self.config.frame_skip)):
            reward += self._act(action)
            over = self.ale.game_over()
            if left < 2:
                self.ale.getScreenGrayscale(self.screens[seen])
                seen += 1
            if over:
                break
        if not seen:  # the game ended before: what was seen last, as EnvPool does
            return reward, over, self.frames[-1]
        return reward, over, self.scale(self.screens[0] if seen == 1 else np.maximum(*self.screens))

    def _act(self, action: Any) -> float:
        """The reward of one frame with this action, or by chance with the one before (Machado et
        al. 2018, section 5).
        """
        if self.config.sticky_actions == 0 or self.np_random.random() >= self.config.sticky_actions:
            self.held = action
        return float(self.ale.act(self.held))

    def _info(self, game_over: bool) -> dict[str, Any]:
        return {GAME_OVER: game_over, "lives": self.lives} if self.config.episodic_life else {"lives": self.lives}

    def get_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything but what ALE and np_random keep themselves, as arrays and as plain JSON
        values.
        """
        values = {
            "lives": self.lives,
            "elapsed": self.elapsed,
            "life_lost": self.life_lost,
            "held": int(self.held.value),
        }
        return {"frames": self.frames.copy()}, values

    def set_state(self, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Be as `get_state` was."""
        self.frames = arrays["frames"].copy()
        self.lives, self.elapsed, self.life_lost = values["lives"], values["elapsed"], values["life_lost"]
        self.held = type(self.noop)(values["held"])


class AtariPool:
    """EnvPool's games with an episode's first picture repeated also where the game goes on after a
    lost life, and what is a game's end.
    """

    def __init__(self, pool: Any, config: AtariConfig) -> None:
        self.pool, self.config = pool, config
        self.num_envs = len(pool.all_env_ids)
        self.single_observation_space, self.single_action_space = (
            pool.single_observation_space,
            pool.single_action_space,
        )
        self.metadata: dict[str, Any] = {
            "autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP,
            HAS_LIVES: config.episodic_life,
        }
        self.pictures = np.ones(self.num_envs, np.int64)  # of each episode so far
        self.ended = np.zeros(self.num_envs, bool)
        self.game_over = np.ones(self.num_envs, bool)
        self.lives = np.zeros(self.num_envs, np.int64)

    @property
    def unwrapped(self) -> Any:
        return self.pool

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        observations, _ = self.pool.reset()
        return observations, self._infos(np.ones(self.num_envs, bool))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = self.pool.step(actions)
        over = infos["terminated"].astype(bool) & ~self.ended
        terminated, truncated = (
            terminated | over,
            truncated & ~over,
        )  # a game that is over with its last step was not cut
        begins = self.ended & (
            self.game_over | (infos["lives"] > self.lives)
        )  # it may also be lost, and begun anew, while it waits
        self.lives = infos["lives"].copy()
        self.pictures = np.where(self.ended, 1, self.pictures + 1)
        self.ended = terminated | truncated
        self.game_over = over | truncated
        for index in np.flatnonzero(self.pictures < self.config.stacked_frames):
            first = self.config.stacked_frames - self.pictures[index]
            observations[index, :first] = observations[index, first]
        return observations, rewards, terminated, truncated, self._infos(self.game_over | begins)

    def close(self) -> None:
        self.pool.close()

    def _infos(self, game_over: np.ndarray) -> dict[str, Any]:
        return {GAME_OVER: game_over} if self.config.episodic_life else {}


def pool_id(env_id: str, known: list[str]) -> str:
    """EnvPool's name of a game."""
    name = env_id.rpartition(":")[2].removeprefix("ALE/")
    if name not in known:
        raise ConfigError(f"env.id {env_id!r} is not in EnvPool, where it would be {name}; use backend gymnasium")
    return name
