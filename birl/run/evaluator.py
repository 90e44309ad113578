"""Evaluating during a run: scoring the policy, logging the score, keeping the best checkpoint."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from birl.config import EnvConfig, require
from birl.envs.make import as_envs
from birl.run.console import Console, score_text
from birl.run.directory import METRICS
from birl.run.evaluate import Evaluation, evaluate_policy
from birl.run.log import RunLog
from birl.run.open_directory import OpenDirectory
from birl.run.policy import Policy, make_policy
from birl.run.progress import RunProgress
from birl.run.sampling_notice import sampling_notice
from birl.run.saver import Saver
from birl.run.track import read_metrics
from birl.types import Envs, Metrics, Update


def usable_eval_envs(eval_envs: object, env: EnvConfig, spaces: tuple[gym.Space, gym.Space]) -> Envs:
    """Environments passed in to evaluate on; ConfigError unless they have these spaces."""
    envs = as_envs(eval_envs, env)
    found = envs.observation_space, envs.action_space
    require(found == spaces, f"eval_envs {eval_envs!r} have spaces {found}, and the policy is for {spaces}")
    return envs


class Evaluator:
    """Evaluates a run's policy on environments of its own."""

    def __init__(
        self,
        algorithm: Any,
        config: Any,
        spaces: tuple[gym.Space, gym.Space],
        directory: OpenDirectory,
        progress: RunProgress,
        log: RunLog,
        saver: Saver,
        console: Console,
        eval_envs: Any = None,
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._spaces = spaces
        self._metrics_path = directory.path / METRICS
        self._progress = progress
        self._log = log
        self._saver = saver
        self._console = console
        self._eval_envs = None if eval_envs is None else usable_eval_envs(eval_envs, config.env, spaces)
        self._policy: Policy | None = None
        self.latest: Evaluation | None = None
        self.latest_steps = -1  # environment steps of the latest evaluation

    def evaluate(
        self, state: Any, update: Update | None, check_signals: Callable[[], None], keep_best: bool
    ) -> Evaluation:
        """Score the policy of this State; with `keep_best`, keep its update if it is the best.

        `check_signals` is called after each step; what it raises ends the evaluation, which is then
        due when the run is resumed. Without an update, the State is that of the newest checkpoint.
        """
        run = self._config.run
        policy = self.policy_of(state)

        def watch(ended: int, longest: int) -> None:
            check_signals()
            self._console.evaluating(ended, run.eval_episodes, longest)

        self._progress.evaluation_due = True
        self._console.evaluating(0, run.eval_episodes, 0)
        settings = run.eval_episodes, run.seed, run.eval_deterministic, run.eval_max_steps
        self.latest = evaluate_policy(policy, self._config.env, *settings, watch, self._eval_envs)
        self.latest_steps = int(state.env_steps)
        self._progress.evaluation_due = False
        self._write(self.latest, update, keep_best)
        return self.latest

    def policy_of(self, state: Any) -> Policy:
        """The policy of this State. All policies of a run share one compiled program."""
        if self._policy is None:
            self._policy = make_policy(self._config, state, *self._spaces)
        policy = copy.copy(self._policy)
        policy.set_parameters(self._algorithm.policy(state))
        policy.seed(self._config.run.seed)
        policy.masks = self._progress.masks
        return policy

    def _write(self, evaluation: Evaluation, update: Update | None, keep_best: bool) -> None:
        run = self._config.run
        metrics = evaluation.metrics()
        score = float(metrics["eval/return_mean"])
        best = self._progress.best
        is_best = keep_best and (best is None or score > best["return_mean"])
        if is_best and update is None:  # before its row, which says that nothing is left to do
            self._saver.keep_best(score, self.latest_steps, None)
        self._log_once(metrics)
        if notice := evaluation.cut_notice():
            self._console.message(f"{notice}; eval_max_steps sets the limit")
        if is_best and update is not None:
            self._saver.keep_best(score, self.latest_steps, update)
        # The console's last line has the score of a run that ends here.
        if self.latest_steps < run.total_steps and not self._progress.reached_goal(run):
            found = score_text(score, metrics["eval/return_std"], run.eval_episodes)
            self._console.message(f"evaluation at {self.latest_steps:,} steps: {found}")
        else:
            self._explain_low_score(evaluation)

    def _explain_low_score(self, evaluation: Evaluation) -> None:
        """Say if the last score is far below the training return, and that sampling may be why."""
        if self._config.run.eval_deterministic and not np.any(evaluation.cut):
            returns = self._console.training_returns
            if notice := sampling_notice(evaluation.returns, *returns, self._metrics_path.parent):
                self._console.message(notice)

    def is_due(self) -> bool:
        """Whether a process was stopped in the middle of an evaluation, and none has repeated it.

        A checkpoint that says so is not written again: the row of the evaluation tells.
        """
        return self._progress.evaluation_due and not self.has_scored(self._progress.steps)

    def has_scored(self, steps: int) -> bool:
        """Whether the policy of these steps is evaluated: in this process, or before it started."""
        return steps == self.latest_steps or (steps == self._progress.start_steps and self._was_logged(steps))

    def _was_logged(self, steps: int) -> bool:
        rows = read_metrics(self._metrics_path)
        return any(row["env_steps"] == steps and "eval/return_mean" in row for row in rows)

    def _log_once(self, metrics: Metrics) -> None:
        """Log the evaluation, unless a process that died before its end has done so."""
        steps = self.latest_steps
        if steps == self._progress.start_steps and self._was_logged(steps):
            self._log.show(steps, metrics)
        else:
            self._log.write(steps, metrics)
