"""Playing episodes with a policy, in a window or as a video."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from birl.config import ConfigError, EnvConfig, Plain, require
from birl.envs import make
from birl.envs.make import MakeEnv
from birl.envs.outputs import ErrorSource, layout_of, read_flag, read_reset, read_reward
from birl.envs.spaces import GAME_OVER, HAS_LIVES, MASK, mask_width
from birl.run.evaluate import Evaluation, with_limit
from birl.run.files import require_real_directory
from birl.run.loading import load_to_play
from birl.run.policy import Policy
from birl.run.video import ENDINGS, write_video

OFF_SCREEN = {"egl": "EGL", "osmesa": "OSMesa"}  # values of MUJOCO_GL and their libraries, the better one first
OPENGL_MODULES = ("mujoco", "gymnasium.envs.mujoco", "OpenGL", "glfw")  # MuJoCo draws with these
NEEDS_OPENGL = "MuJoCo needs EGL or OSMesa (apt install libegl1 or libosmesa6), chosen by MUJOCO_GL=egl or osmesa"
VIDEOS = "videos"  # the directory of a run's videos

Episode = tuple[float, int, bool]  # return, length, and whether the limit cut it


def play(
    policy: Policy | str | Path,
    episodes: int = 3,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    trust: bool = False,
    env: str | EnvConfig | None = None,
    kwargs: dict[str, Plain] | None = None,
    make_env: MakeEnv | None = None,
) -> Evaluation:
    """Show whole episodes in a window; their returns and lengths.

    `make_env` is a function that makes another environment with the same spaces.
    """
    _validate(episodes, seed)
    has_screen = sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    player, env_config, limit = _load(policy, max_steps, trust, env, kwargs, make_env)
    can_play = bool(has_screen) or "SDL_VIDEODRIVER" in os.environ
    require(can_play, f"there is no screen to play on; record a video instead: birl record {policy}")
    with _rendered(env_config, "human") as window:
        play_one = partial(
            _episode, window, player, deterministic=deterministic, ignored=env_config.ignore_observations
        )
        shown = [_sum_up(play_one(seed=seed + episode), limit) for episode in range(episodes)]
    return _evaluation(shown)


def record(
    policy: Policy | str | Path,
    out: str | Path | None = None,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    trust: bool = False,
    env: str | EnvConfig | None = None,
    kwargs: dict[str, Plain] | None = None,
    make_env: MakeEnv | None = None,
) -> tuple[Path, Evaluation]:
    """Record whole episodes in one video; its path, and the episodes' returns and lengths.

    The policy is one that was loaded, or that of a policy file, a run or a checkpoint. `out` ends
    in .mp4 or .gif; None: in the run's videos/. An existing file is not overwritten. `make_env` is
    a function that makes another environment with the same spaces.
    """
    _validate(episodes, seed)
    out = None if out is None else Path(out)
    require(out is None or out.suffix in ENDINGS, f"out {out} must end in {' or '.join(ENDINGS)}")
    player, env_config, limit = _load(policy, max_steps, trust, env, kwargs, make_env)
    if out is None:
        has_directory = not isinstance(policy, Policy) and Path(policy).is_dir()
        require(has_directory, f"{policy} has no directory for videos; name the video: out='mine.mp4', --out mine.mp4")
        out = Path(str(policy)) / VIDEOS / "episodes.mp4"
        require_real_directory(out.parent)
    return record_policy(player, env_config, limit, out, episodes, seed, deterministic)


def record_policy(
    policy: Policy,
    env: EnvConfig,
    limit: int | None,
    path: Path,
    episodes: int,
    seed: int,
    deterministic: bool,
    watch: Callable[[], None] = lambda: None,
) -> tuple[Path, Evaluation]:
    """Record whole episodes of a policy in one video; its path, and the returns and lengths.

    `limit` is the number of steps after which `env` cuts episodes, if an evaluation does so.
    `watch` is called after each step; what it raises ends the recording, and leaves no video.
    """
    render_off_screen()
    recorded: list[Episode] = []
    with _rendered(env, "rgb_array") as filmed:
        fps = float(filmed.metadata.get("render_fps") or 30)
        play_one = partial(_episode, filmed, policy, deterministic=deterministic, ignored=env.ignore_observations)
        frames = _frames(filmed, play_one, episodes, seed, limit, recorded)
        path = film(_watched(frames, watch), path, fps)
    return path, _evaluation(recorded)


def film(frames: Iterable[np.ndarray], path: Path, fps: float) -> Path:
    """Write these frames to a new video; its path."""
    with warnings.catch_warnings():  # JAX warns of every fork; starting ffmpeg is harmless
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        return write_video(frames, path, fps)


def render_off_screen() -> None:
    """Let pygame and MuJoCo render without a window."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    found = next((name for name, library in OFF_SCREEN.items() if find_library(library)), None)
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and found is not None:
        os.environ.setdefault("MUJOCO_GL", found)  # only if it is installed: else importing MuJoCo fails


@contextmanager
def _rendered(config: EnvConfig, render_mode: str) -> Iterator[gym.Env]:
    """The environment, once it has rendered a first frame; ConfigError if it cannot."""
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of a mode that the environment does not list; if it fails, we say so.
            warnings.filterwarnings("ignore", "(?s).*render_mode")
            env = make.make_env(config, render_mode)
        env.reset(seed=0)
        env.render()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # OpenGL and MuJoCo may raise anything, some of it on import
        own_fault = f"its render method must work with render_mode {render_mode!r}"
        remedy = NEEDS_OPENGL if _was_raised_in(error, OPENGL_MODULES) else own_fault
        raise ConfigError(f"{config.id} cannot be rendered here: {type(error).__name__}: {error}; {remedy}") from error
    with env:
        try:
            yield env
        except SystemExit as error:  # an environment must not end the program
            raise RuntimeError(f"{config.id} called sys.exit({error}) while it was stepped") from error


def _was_raised_in(error: BaseException, packages: tuple[str, ...]) -> bool:
    """Whether the error was raised inside one of these packages."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(name == package or name.startswith(f"{package}.") for name in frames for package in packages)


def _validate(episodes: int, seed: int) -> None:
    require(episodes > 0, f"episodes {episodes} must be at least 1")
    require(seed >= 0, f"seed {seed} must be 0 or more")


def _load(
    policy: Policy | str | Path,
    max_steps: int | None,
    trust: bool,
    env: str | EnvConfig | None,
    kwargs: dict[str, Plain] | None,
    make_env: MakeEnv | None,
) -> tuple[Policy, EnvConfig, int | None]:
    player, env = load_to_play(policy, env, trust, kwargs=kwargs, make_env=make_env)
    return player, *with_limit(env, player.config.run.eval_max_steps if max_steps is None else max_steps)


def _frames(
    env: gym.Env,
    play_one: Callable[..., Iterator[tuple[float, bool]]],  # with a seed
    episodes: int,
    seed: int,
    limit: int | None,
    recorded: list[Episode],
) -> Iterator[np.ndarray]:
    """A frame of each step. Each episode that has ended is appended to `recorded`."""
    for episode in range(episodes):
        steps: list[tuple[float, bool]] = []
        for step in play_one(seed=seed + episode):
            steps.append(step)
            yield _frame(env)
        recorded.append(_sum_up(steps, limit))


def _watched(frames: Iterator[np.ndarray], watch: Callable[[], None]) -> Iterator[np.ndarray]:
    for frame in frames:
        watch()
        yield frame


def _sum_up(steps: Iterable[tuple[float, bool]], limit: int | None) -> Episode:
    rewards, truncated = zip(*steps, strict=True)
    return sum(rewards), len(rewards), truncated[-1] and len(rewards) == limit


def _evaluation(episodes: list[Episode]) -> Evaluation:
    return Evaluation(*map(np.array, zip(*episodes, strict=True)))


def _episode(
    env: gym.Env, policy: Policy, seed: int, deterministic: bool, ignored: Sequence[str] = ()
) -> Iterator[tuple[float, bool]]:
    """Play one episode, or a whole game; for each step its reward, and whether it was truncated."""
    layout = layout_of(env.observation_space, env.action_space, ignored)
    source = ErrorSource("the environment", env)
    observation, info = read_reset(env.reset(seed=seed), source)
    maskable = mask_width(env.action_space) is not None
    memory = None
    ended = False
    step = 0
    while not ended:
        arrays = layout.empty(1)
        layout.write(arrays, 0, observation, source)
        single = {name: array[0] for name, array in arrays.items()}
        mask = info.get(MASK) if layout.mask_path is None else observation[MASK]
        mask = mask if maskable else None
        action, memory = policy.act(layout.tree(single), memory, mask, None if deterministic else seed * 100_003 + step)
        observation, reward, terminated, truncated, info = env.step(action)
        terminated, truncated = (
            read_flag(flag, name, source) for flag, name in ((terminated, "terminated"), (truncated, "truncated"))
        )
        ended = terminated or truncated
        step += 1
        yield float(read_reward(reward, source)), truncated and not terminated
        if ended and env.metadata.get(HAS_LIVES) and not info[GAME_OVER]:
            observation, info = env.reset()
            memory, ended = None, info[GAME_OVER]


def _frame(env: gym.Env) -> np.ndarray:
    frame: Any = env.render()
    name = env.spec.id if env.spec else env
    require(isinstance(frame, np.ndarray), f"{name} renders {type(frame).__name__}, not an image array")
    return np.asarray(frame)
