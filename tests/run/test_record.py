"""Episodes are recorded on a machine without a screen, and no video replaces another."""

import os
import re
import subprocess
from ctypes.util import find_library
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.algos import ppo
from birl.config import ConfigError, EnvConfig
from birl.run.record import OFF_SCREEN, play, record, render_off_screen
from tests.run.processes import COMMAND, ROOT, SECONDS, call, call_well, write_untrained
from tests.run.processes import birl as run_birl

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # JAX's warning of the ffmpeg that reads the video back


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("record")
    paths = {env_id: directory / env_id for env_id in ("CartPole-v1", "LunarLander-v3")}
    for env_id, path in paths.items():
        write_untrained(path, ppo.Config(EnvConfig(env_id, num_envs=2), hidden_sizes=(8,)))
    write_untrained(
        directory / "Hybrid-v0", ppo.Config(EnvConfig("tests.envs.hybrid:Hybrid-v0", num_envs=2), hidden_sizes=(8,))
    )
    return paths | {"Hybrid-v0": directory / "Hybrid-v0"}


def read_video(path: Path) -> tuple[int, tuple[int, int], float]:
    """Number of frames, their size, and frames per second."""
    reader = imageio_ffmpeg.read_frames(path)
    meta = next(reader)
    return sum(1 for _ in reader), meta["size"], meta["fps"]


@pytest.mark.parametrize(("env_id", "size"), [("CartPole-v1", (600, 400)), ("LunarLander-v3", (600, 400))])
def test_a_video_of_one_episode_has_a_frame_for_each_step(env_id, size, runs, tmp_path, monkeypatch):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(variable, raising=False)
    path, filmed = record(runs[env_id], tmp_path / "film.mp4", episodes=1, seed=0, deterministic=True)
    frames, shape, fps = read_video(path)
    assert (shape, fps) == (size, 50.0), "as the environment's metadata says"
    assert frames > 5
    if env_id == "CartPole-v1":
        assert filmed.returns.tolist() == [float(frames)], "reward 1 a step"


def test_what_is_filmed_is_what_the_policy_does(runs, tmp_path):
    _, filmed = record(runs["CartPole-v1"], tmp_path / "film.mp4", episodes=2, seed=4, deterministic=True)
    policy, by_hand = birl.load(runs["CartPole-v1"]), []
    with gym.make("CartPole-v1") as env:
        for seed in (4, 5):
            observation, _ = env.reset(seed=seed)
            total, ended, memory = 0.0, False, None
            while not ended:
                action, memory = policy.act(observation, memory)
                observation, reward, terminated, truncated, _ = env.step(action)
                total, ended = total + float(reward), terminated or truncated
            by_hand.append(total)
    assert filmed.returns.tolist() == by_hand


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_tree_of_actions_is_filmed_with_actions_that_the_environment_has_and_allows(deterministic, runs, tmp_path):
    """The environment raises an error for any other action."""
    path, filmed = record(runs["Hybrid-v0"], tmp_path / "film.mp4", episodes=2, seed=0, deterministic=deterministic)
    assert read_video(path)[0] > 2
    assert len(filmed.returns) == 2


def test_a_video_never_overwrites_another(runs, tmp_path):
    """SB3 #2063."""
    words = ["record", runs["CartPole-v1"], "--out", tmp_path / "film.mp4", "--seed"]
    assert call_well(*words, 0).startswith(f"{tmp_path / 'film.mp4'}: returns")
    first = (tmp_path / "film.mp4").read_bytes()
    assert call_well(*words, 1).startswith(f"{tmp_path / 'film-2.mp4'}: returns")
    assert (tmp_path / "film.mp4").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film-2.mp4", "film.mp4"], (
        "and leaves nothing else behind"
    )


def test_without_a_name_it_goes_to_the_runs_own_videos(runs):
    said = call_well("record", runs["CartPole-v1"])
    assert (runs["CartPole-v1"] / "videos" / "episodes.mp4").exists()
    assert str(runs["CartPole-v1"] / "videos" / "episodes.mp4") in said


def test_in_a_process_of_its_own_it_says_nothing_but_the_result(runs, tmp_path):
    finished = run_birl("record", runs["CartPole-v1"], "--out", "film.mp4", "--sample", "--seed", 50_000, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("film.mp4: returns ")
    assert finished.stderr == "", "JAX's warning of a fork would only frighten"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "film.avi"], "out film.avi must end in .mp4 or .gif"),
        (["--episodes", "0"], "episodes 0 must be at least 1"),
        (["--seed", "-1"], "seed -1 must be 0 or more"),
    ],
)
def test_what_cannot_be_filmed_is_refused(words, message, runs):
    code, said = call("record", runs["CartPole-v1"], *words)
    assert (code, message in said) == (2, True), said


def test_play_without_a_screen_says_what_to_do_instead(runs, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match="there is no screen to play on; record a video instead: birl record"):
        play(runs["CartPole-v1"], 1, 0, True)
    code, said = call("play", "runs/none")
    assert (code, "runs/none holds no checkpoint; give a run directory" in said, "birl record" in said) == (
        2,
        True,
        False,
    )
    code, said = call("play", runs["CartPole-v1"])
    assert code == 2
    assert f"birl record {runs['CartPole-v1']}" in said


def test_play_on_a_screen_that_is_not_there_to_be_seen(runs, monkeypatch):
    """SDL's dummy screen stands for a real one."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    _, filmed = record(runs["CartPole-v1"], runs["CartPole-v1"] / "play.mp4", 1, 0, True)
    played = play(runs["CartPole-v1"], 1, 0, True)
    assert (played.returns.tolist(), played.lengths.tolist()) == (filmed.returns.tolist(), filmed.lengths.tolist())


def test_a_film_has_no_more_steps_than_asked_for_and_says_so(runs, tmp_path):
    said = call_well("record", runs["CartPole-v1"], "--out", tmp_path / "film.mp4", "--max-steps", 5, "--episodes", 2)
    assert read_video(tmp_path / "film.mp4")[0] == 10
    assert "2 of 2 episodes did not end, and were cut after 5 steps; --max-steps sets the limit" in said


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mujoco")
    directory = tmp_path_factory.mktemp("record") / "Hopper-v5"
    write_untrained(directory, ppo.Config(EnvConfig("Hopper-v5", num_envs=1, max_episode_steps=8), hidden_sizes=(8,)))
    return directory


HEADLESS = {
    name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")
}


@pytest.mark.slow
@pytest.mark.skipif(not any(map(find_library, OFF_SCREEN.values())), reason="there is neither EGL nor OSMesa")
def test_mujoco_is_filmed_without_a_screen_and_is_seen(hopper, tmp_path):
    """In a new process: MuJoCo reads MUJOCO_GL when it is imported."""
    words = ["record", str(hopper), "--out", str(tmp_path / "film.mp4")]
    subprocess.run([*COMMAND, *words], env=HEADLESS | {"PYTHONPATH": str(ROOT)}, check=True, timeout=SECONDS)
    reader = imageio_ffmpeg.read_frames(tmp_path / "film.mp4")
    width, height = next(reader)["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    assert len(frames) == 8
    assert frames[0].std() > 20, "neither black nor of one colour"
    assert not np.array_equal(frames[0], frames[-1]), "and it moves"


@pytest.mark.parametrize(
    ("libraries", "given", "chosen"),
    [("EGL OSMesa", None, "egl"), ("OSMesa", None, "osmesa"), ("", None, None), ("EGL", "glfw", "glfw")],
    ids=["both", "no EGL", "neither", "the user's own choice"],
)
def test_mujoco_draws_by_what_is_installed_unless_the_user_chose(libraries, given, chosen, monkeypatch):
    monkeypatch.setattr("birl.run.record.find_library", lambda name: name if name in libraries.split() else None)
    monkeypatch.setattr("birl.run.record.sys.platform", "linux")
    monkeypatch.setattr("birl.run.record.os.environ", {} if given is None else {"MUJOCO_GL": given})
    render_off_screen()
    assert os.environ.get("MUJOCO_GL") == chosen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Gymnasium's renderer, half made
def test_where_mujoco_cannot_draw_the_error_says_what_to_install(hopper, tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "no such thing")
    with pytest.raises(
        ConfigError, match=r"Hopper-v5 cannot be rendered here: .*MUJOCO_GL.*; .*apt install libegl1 or libosmesa6"
    ):
        record(hopper, tmp_path / "film.mp4", episodes=1, seed=0, deterministic=True)
    assert not list(tmp_path.iterdir())


class Undrawn(gym.Env):
    """Has no rendering."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}


class BadlyDrawn(Undrawn):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        raise RuntimeError("out of paint")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Undrawn,
            "env.id 'tests/Undrawn-v0' cannot be drawn: .* let its class take render_mode, "
            "list 'rgb_array' in metadata.*render method",
        ),
        (
            BadlyDrawn,
            "cannot be rendered here: RuntimeError: out of paint; "
            "its render method must work with render_mode 'rgb_array'",
        ),
    ],
)
def test_an_environment_that_cannot_be_drawn_is_told_what_it_lacks_once(kind, message, tmp_path):
    env_id = f"tests/{kind.__name__}-v0"
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=kind)
    write_untrained(tmp_path / "run", ppo.Config(EnvConfig(env_id, num_envs=1), hidden_sizes=(8,)))
    code, said = call("record", tmp_path / "run", "--out", tmp_path / "film.mp4")
    assert code == 2
    assert re.search(message, said)
    assert said.count("\n") == 1
    assert "MuJoCo" not in said
    assert "kwargs {}" not in said


def test_another_environment_is_recorded_and_played_with_make_env(runs, tmp_path, monkeypatch):
    def short(render_mode: str | None = None) -> gym.Env:
        return gym.make("CartPole-v1", render_mode=render_mode, max_episode_steps=4)

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    _, filmed = birl.record(runs["CartPole-v1"], tmp_path / "film.mp4", make_env=short)
    assert filmed.lengths.tolist() == [4]
    assert birl.play(runs["CartPole-v1"], 2, make_env=short).lengths.tolist() == [4, 4]
    with pytest.raises(ConfigError, match="env and make_env each name the environment; use one of them"):
        birl.record(runs["CartPole-v1"], tmp_path / "other.mp4", env="CartPole-v1", make_env=short)
