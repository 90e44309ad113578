"""Recording during a run: a video of one episode of the policy as it is now."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from birl.config import require
from birl.run.console import Console
from birl.run.display import number
from birl.run.evaluate import PASSED_IN, with_limit
from birl.run.files import require_real_directory
from birl.run.policy import Policy
from birl.run.record import VIDEOS, record_policy


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
