"""Playing episodes with a policy, in a window or as an mp4 or a GIF that every browser plays."""

import itertools
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
import imageio_ffmpeg
import numpy as np

from birl.config import ConfigError, EnvConfig, Plain, require
from birl.envs import make
from birl.envs.make import MakeEnv
from birl.envs.outputs import ErrorSource, layout_of, read_flag, read_reset, read_reward
from birl.envs.spaces import GAME_OVER, HAS_LIVES, MASK, mask_width
from birl.run.console import Console, number
from birl.run.evaluating import Evaluation, with_limit
from birl.run.files import require_real_directory
from birl.run.given import PASSED_IN, Given
from birl.run.loading import load_to_play
from birl.run.lock import own_partial, remove_abandoned
from birl.run.policy import Policy

OFF_SCREEN = {"egl": "EGL", "osmesa": "OSMesa"}  # values of MUJOCO_GL and their libraries, the better one first
OPENGL_MODULES = ("mujoco", "gymnasium.envs.mujoco", "OpenGL", "glfw")  # MuJoCo draws with these
NEEDS_OPENGL = "MuJoCo needs EGL or OSMesa (apt install libegl1 or libosmesa6), chosen by MUJOCO_GL=egl or osmesa"
VIDEOS = "videos"  # the directory of a run's videos
Episode = tuple[float, int, bool]  # return, length, and whether the limit cut it
# Quality 6 of 10 is x264's crf 20, where flat colours show no blocks. The index comes first, so
# that a browser plays before it has everything.
MP4_OPTIONS: dict[str, Any] = {"codec": "libx264", "quality": 6, "output_params": ["-movflags", "+faststart"]}
ENDINGS = (".mp4", ".gif")
GIF_FPS = 25  # at most: viewers slow down GIFs with more
GIF_WIDTH = 480  # at most, so that a page with a GIF loads quickly


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
    player, env_config, limit = _load(policy, max_steps, Given(env, make_env=make_env, trust=trust), kwargs)
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
    player, env_config, limit = _load(policy, max_steps, Given(env, make_env=make_env, trust=trust), kwargs)
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


class VideoRecorder:
    """Records a run's policy into its videos/. A failure is reported once, and ends that."""

    def __init__(self, config: Any, run_dir: Path, console: Console, policy_of: Callable[[Any], Policy]) -> None:
        self._config = config
        self._folder = run_dir / VIDEOS
        self._console = console
        self._policy_of = policy_of  # from a State
        self._failed = False

    def record(self, state: Any, is_stopped: Callable[[], bool] = lambda: False) -> Path | None:
        """Record one episode of the policy of this State; the video, None if there is no new one.

        The environment is one of its own, as in an evaluation, so training does not change.
        `is_stopped` is called after each step; once it is true, the video is given up.
        """
        steps = int(state.env_steps)
        path = self._folder / f"step-{steps:09d}.mp4"
        if self._failed or path.exists():  # a process that died later has recorded the same episode
            return None
        try:
            found, score = self._record(state, path, is_stopped)
        except _StoppedError:
            return None
        except Exception as problem:  # rendering may raise anything
            self._failed = True
            reason = str(problem) or type(problem).__name__
            self._console.warn(f"no videos are recorded, training goes on: {reason}")
            return None
        self._console.message(f"video at {steps:,} steps: {found}, return {number(score)}")
        return found

    def _record(self, state: Any, path: Path, is_stopped: Callable[[], bool]) -> tuple[Path, float]:
        run = self._config.run
        env = self._config.env
        require(env.id != PASSED_IN, "Birl cannot make the environments, which were passed in")
        require_real_directory(self._folder)
        env, limit = with_limit(env, run.eval_max_steps)

        def watch() -> None:
            if is_stopped():
                raise _StoppedError

        policy = self._policy_of(state)
        found, episode = record_policy(policy, env, limit, path, 1, run.seed, run.eval_deterministic, watch)
        return found, float(episode.returns[0])


class _StoppedError(Exception):
    """The run is to end now."""


def film(frames: Iterable[np.ndarray], path: Path, fps: float) -> Path:
    """Write these frames to a new video; its path."""
    with warnings.catch_warnings():  # JAX warns of every fork; starting ffmpeg is harmless
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        return write_video(frames, path, fps)


def write_video(frames: Iterable[np.ndarray], path: Path, fps: float) -> Path:
    """Write these [H, W, 3] uint8 frames to a new mp4 (H.264, yuv420p) or GIF; its path.

    An existing file is never overwritten: the new one is then NAME-2.mp4, NAME-3.mp4, ... (SB3
    #2063). It gets its name only once it is complete. A GIF is small: at most 480 pixels wide, with
    at most 25 frames a second.
    """
    if path.suffix not in ENDINGS:
        raise ValueError(f"video path {str(path)!r} must end in {' or '.join(ENDINGS)}")
    if not fps > 0:
        raise ValueError(f"fps {fps} must be above 0; use the environment's metadata['render_fps']")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, *ENDINGS)
    with own_partial(path) as partial:  # with the same ending: ffmpeg needs it to know the format
        _encode(_checked(frames), partial, fps)
        return partial.replace(_claim_free_name(path))


def render_off_screen() -> None:
    """Let pygame and MuJoCo render without a window."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    found = next((name for name, library in OFF_SCREEN.items() if find_library(library)), None)
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and found is not None:
        os.environ.setdefault("MUJOCO_GL", found)  # only if it is installed: else importing MuJoCo fails


def _validate(episodes: int, seed: int) -> None:
    require(episodes > 0, f"episodes {episodes} must be at least 1")
    require(seed >= 0, f"seed {seed} must be 0 or more")


def _load(
    policy: Policy | str | Path, max_steps: int | None, given: Given, kwargs: dict[str, Plain] | None
) -> tuple[Policy, EnvConfig, int | None]:
    player, env = load_to_play(policy, given, kwargs)
    return player, *with_limit(env, player.config.run.eval_max_steps if max_steps is None else max_steps)


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
    """True if the error was raised inside one of these packages."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(name == package or name.startswith(f"{package}.") for name in frames for package in packages)


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


def _frame(env: gym.Env) -> np.ndarray:
    frame: Any = env.render()
    name = env.spec.id if env.spec else env
    require(isinstance(frame, np.ndarray), f"{name} renders {type(frame).__name__}, not an image array")
    return np.asarray(frame)


def _sum_up(steps: Iterable[tuple[float, bool]], limit: int | None) -> Episode:
    rewards, truncated = zip(*steps, strict=True)
    return sum(rewards), len(rewards), truncated[-1] and len(rewards) == limit


def _evaluation(episodes: list[Episode]) -> Evaluation:
    return Evaluation(*map(np.array, zip(*episodes, strict=True)))


def _encode(frames: Iterator[np.ndarray], path: Path, fps: float) -> None:
    first = next(frames, None)
    if first is None:
        raise ValueError("a video needs at least one frame; was the environment made with render_mode='rgb_array'?")
    height, width = first.shape[:2]
    options = _gif_options(width, fps) if path.suffix == ".gif" else MP4_OPTIONS
    writer = imageio_ffmpeg.write_frames(path, (width, height), fps=fps, macro_block_size=1, **options)
    writer.send(None)
    try:
        for frame in itertools.chain([first], frames):
            writer.send(frame)
    finally:
        writer.close()
    # imageio-ffmpeg ignores ffmpeg's exit code; a truncated file (disk full) cannot be opened.
    try:
        next(reader := imageio_ffmpeg.read_frames(path))
        reader.close()
    except (OSError, RuntimeError) as problem:
        raise OSError(f"ffmpeg could not write {path}; is the disk full?") from problem


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The frames with even height and width, as yuv420p needs: an edge may be repeated."""
    shape = None
    for place, frame in enumerate(frames):
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ValueError(f"frame {place} is {frame.dtype} {frame.shape}; frames must be uint8 (height, width, 3)")
        shape = shape or frame.shape
        if frame.shape != shape:
            raise ValueError(f"frame {place} is {frame.shape}, the first was {shape}; all frames must have one size")
        height, width = shape[:2]
        yield np.ascontiguousarray(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _gif_options(width: int, fps: float) -> dict[str, Any]:
    """ffmpeg's options for a GIF with a palette of its own colours."""
    size = f"fps={min(fps, GIF_FPS):g},scale={min(width, GIF_WIDTH)}:-1:flags=lanczos"
    palette = f"{size},split[a][b];[a]palettegen[p];[b][p]paletteuse=dither=bayer"
    return {"codec": "gif", "pix_fmt_out": "pal8", "output_params": ["-filter_complex", palette]}


def _claim_free_name(path: Path) -> Path:
    free, count = path, 1
    while True:
        try:
            free.touch(exist_ok=False)  # claims the name, even if another process looks for one too
            return free
        except FileExistsError:
            count += 1
            free = path.with_stem(f"{path.stem}-{count}")
