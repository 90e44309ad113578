"""During training, videos of the policy as it is now; a failure does not end the run."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import spaces_of
from birl.registry import validate
from birl.run.console import Console
from birl.run.given import PASSED_IN
from birl.run.policy import Policy, make_policy
from birl.run.record import VideoRecorder
from tests.run.test_record import read_video

pytestmark = pytest.mark.filterwarnings("ignore:os.fork")  # JAX's warning of the ffmpeg that reads the video back


class Dark(gym.Env):
    """Cannot be rendered."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, True, False, {}


if "Dark-v0" not in gym.registry:
    gym.register("Dark-v0", Dark)


class Lines:
    """A stream that keeps what is written."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def recorder_of(run_dir: Path, env_id: str = "CartPole-v1") -> tuple[VideoRecorder, Any, Lines]:
    """The recorder of an untrained PPO, its State, and what the console says."""
    config = ppo.Config(EnvConfig(env_id), RunConfig(seed=3), hidden_sizes=(8,))
    spaces = spaces_of(EnvConfig("CartPole-v1") if env_id == PASSED_IN else config.env)
    state = ppo.init(config, *spaces)

    def policy_of(state: Any) -> Policy:
        return make_policy(config, state, *spaces)

    said = Lines()
    console = Console("ppo", env_id, 1000, stream=said)  # type: ignore[arg-type]
    return VideoRecorder(config, run_dir, console, policy_of), state, said


def test_a_video_has_one_episode_and_is_named_by_the_steps(tmp_path):
    recorder, state, said = recorder_of(tmp_path)
    path = recorder.record(state._replace(env_steps=state.env_steps + 1200))
    assert path == tmp_path / "videos" / "step-000001200.mp4"
    frames, size, _ = read_video(path)
    assert (frames > 5, size) == (True, (600, 400))
    assert said.text == f"video at 1,200 steps: {path}, return {frames}\n", "CartPole has a reward of 1 a step"


def test_a_video_that_is_there_is_not_recorded_again(tmp_path):
    recorder, state, _ = recorder_of(tmp_path)
    assert recorder.record(state) is not None
    assert recorder.record(state) is None
    assert len(list((tmp_path / "videos").iterdir())) == 1


@pytest.mark.parametrize("env_id", ["tests.run.test_recorder:Dark-v0", PASSED_IN])
def test_what_cannot_be_recorded_is_said_once(env_id, tmp_path):
    recorder, state, said = recorder_of(tmp_path, env_id)
    assert recorder.record(state) is None
    assert recorder.record(state) is None
    assert said.text.count("warning: no videos are recorded, training goes on: ") == 1
    assert not (tmp_path / "videos").exists()


def test_a_stop_gives_the_video_up_and_says_nothing(tmp_path):
    recorder, state, said = recorder_of(tmp_path)
    answers = iter([False, False, True])
    assert recorder.record(state, lambda: next(answers)) is None
    assert list((tmp_path / "videos").iterdir()) == []
    assert said.text == ""
    assert recorder.record(state) is not None, "it was no failure"


def test_a_negative_interval_is_refused():
    with pytest.raises(ConfigError, match="video_every -1 must be 0"):
        validate("ppo", ppo.Config(run=RunConfig(video_every=-1)))
