"""Atari games with the usual preprocessing of deep RL, equal to EnvPool's. Imports no ale_py.

An episode begins with 1 to `noop_max` frames without an action; the last of them fires if the game
needs it. Each action is held for `frame_skip` frames. The image is the pixelwise maximum of the
last two frames, because sprites that flicker are in every other frame; it is grey and scaled to a
square. An observation is the newest `stacked_frames` images, the newest last. The first image of an
episode is repeated.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from birl.config import AtariConfig, EnvConfig, is_atari
from birl.envs.spaces import GAME_OVER, HAS_LIVES

MOST_FRAMES = 108_000  # in an Atari game, half an hour of play; then the episode is truncated
NOOP, FIRE = 0, 1  # ALE's numbers of these actions


def has_lives(config: EnvConfig) -> bool:
    """True if an episode of these environments may be one life of a game."""
    return is_atari(config.id) and config.atari.episodic_life


def step_limit(config: EnvConfig) -> int:
    """The steps after which a game is truncated, whatever lives are left."""
    return config.max_episode_steps or MOST_FRAMES // config.atari.frame_skip


def ale_arguments(config: EnvConfig) -> dict[str, Any]:
    """Arguments of gymnasium.make for the bare game, frame by frame.

    Sticky actions are in our wrapper: ALE's state does not say which action it repeats.
    """
    own = {"frameskip": 1, "repeat_action_probability": 0.0, "max_num_frames_per_episode": 0}
    return own | dict(config.kwargs)


class Atari(gym.Wrapper):
    """One preprocessed game, around ALE's environment with single frames.

    After a lost life `reset` continues the same game; else it begins a new one.
    """

    def __init__(self, env: gym.Env, config: AtariConfig, limit: int) -> None:
        super().__init__(env)
        self.config = config
        self.limit = limit  # steps of a game
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
        self.held = self.noop  # the action of the last frame
        self.lives = 0
        self.elapsed = 0  # steps of this game
        self.life_lost = False  # in the last step, and the game continues

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new game, or the next life of this one."""
        new_game = seed is not None or not self.life_lost
        if new_game:
            self.env.reset(seed=seed, options=options)
            self.held = self.noop
        waits = int(self.np_random.integers(1, self.config.noop_max + 1))
        for action in [self.noop] * (waits - self.fires) + [self.fire] * self.fires:
            self._act(action)
            if self.ale.game_over():  # some games are lost by waiting, or the lost life was the last
                self.ale.reset_game()
                self.held = self.noop
                new_game = True
        self.elapsed = 0 if new_game else self.elapsed
        self.life_lost = False
        self.lives = self.ale.lives()
        self.ale.getScreenGrayscale(self.screens[0])
        self.frames = np.repeat(self.scale(self.screens[0])[None], self.config.stacked_frames, axis=0)
        return self.frames, self._info(new_game)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold the action for `frame_skip` frames."""
        reward, over, newest = self._hold(self.actions[action])
        self.frames = np.concatenate([self.frames[1:], newest[None]])
        self.elapsed += 1
        lives_before = self.lives
        self.lives = self.ale.lives()
        truncated = self.elapsed >= self.limit and not over
        self.life_lost = self.config.episodic_life and 0 < self.lives < lives_before and not (over or truncated)
        return self.frames, reward, over or self.life_lost, truncated, self._info(over or truncated)

    def _hold(self, action: Any) -> tuple[float, bool, np.ndarray]:
        """The sum of rewards, whether the game is over, and the image of the last two frames."""
        reward, over = 0.0, False
        taken = 0  # screens kept so far
        for left in reversed(range(self.config.frame_skip)):
            reward += self._act(action)
            over = self.ale.game_over()
            if left < 2:
                self.ale.getScreenGrayscale(self.screens[taken])
                taken += 1
            if over:
                break
        if not taken:  # the game ended before the last two frames: repeat the last image, as EnvPool does
            return reward, over, self.frames[-1]
        return reward, over, self.scale(self.screens[0] if taken == 1 else np.maximum(*self.screens))

    def _act(self, action: Any) -> float:
        """The reward of one frame with this action.

        With probability `sticky_actions` the last action is repeated (Machado et al. 2018, sec. 5).
        """
        if self.config.sticky_actions == 0 or self.np_random.random() >= self.config.sticky_actions:
            self.held = action
        return float(self.ale.act(self.held))

    def _info(self, game_over: bool) -> dict[str, Any]:
        return {GAME_OVER: game_over, "lives": self.lives} if self.config.episodic_life else {"lives": self.lives}

    def get_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The state that ALE and np_random do not keep, as arrays and as plain JSON values."""
        values = {
            "lives": self.lives,
            "elapsed": self.elapsed,
            "life_lost": self.life_lost,
            "held": int(self.held.value),
        }
        return {"frames": self.frames.copy()}, values

    def set_state(self, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Set the state that `get_state` returned."""
        self.frames = arrays["frames"].copy()
        self.lives = values["lives"]
        self.elapsed = values["elapsed"]
        self.life_lost = values["life_lost"]
        self.held = type(self.noop)(values["held"])


class AreaScale:
    """Scale images of one size to another; each new pixel is the mean of the area it covers.

    The sums are float32 and in OpenCV's order, because the last bit decides how a half is rounded.
    """

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._rows, self._row_weights = _area_table(source[0], target[0], target[1])
        self._columns, self._column_weights = _area_table(source[1], target[1], source[0])

    def __call__(self, image: np.ndarray) -> np.ndarray:
        columns = image.T.astype(np.float32, order="C")  # gathering whole lines is faster than single pixels
        across = _weighted_sum(columns, self._columns, self._column_weights)
        return np.rint(_weighted_sum(across.T.copy(), self._rows, self._row_weights)).astype(np.uint8)


def _weighted_sum(lines: np.ndarray, indices: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[target, width] Σ_k weights[k] lines[indices[k]], added in the order of k."""
    total = lines.take(indices[0], 0)
    total *= weights[0]
    for index, weight in zip(indices[1:], weights[1:], strict=True):
        part = lines.take(index, 0)
        part *= weight
        total += part
    return total


def _area_table(source: int, target: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """[K, target] the lines that each new line covers, and [K, target, width] their weights.

    The weight is 0 where a new line covers fewer than K lines.
    """
    edges = np.arange(target + 1) * (source / target)
    edges = np.where(np.abs(edges - np.rint(edges)) < 1e-9, np.rint(edges), edges)
    first = np.floor(edges[:-1]).astype(int)
    count = int((np.ceil(edges[1:]) - first).max())
    lines = first + np.arange(count)[:, None]
    covered = np.minimum(lines + 1, edges[1:]) - np.maximum(lines, edges[:-1])
    weights = np.maximum(covered, 0) / (source / target)
    return np.minimum(lines, source - 1), np.repeat(weights.astype(np.float32)[..., None], width, axis=2)
