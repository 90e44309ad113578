"""The training loop of a run: takes updates from the algorithm, and logs, evaluates and saves."""

import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from birl.config_json import to_json
from birl.envs.check_resume import restore_problem
from birl.envs.make import open_envs, spaces_of
from birl.errors import InexactResume, NonFiniteError
from birl.registry import algorithm_named
from birl.run import checkpoint_folder, files
from birl.run.checkpoint import Checkpoint
from birl.run.console import Console, memory_size, score_text
from birl.run.directory import CHECKPOINTS, METRICS, OpenDirectory, write_config
from birl.run.evaluator import Evaluator
from birl.run.exactness import Exactness
from birl.run.log import RunLog
from birl.run.progress import RunProgress, crossed
from birl.run.saver import Saver
from birl.run.signals import Interrupted
from birl.run.state_tensors import tensors_to_state
from birl.run.summary import SUMMARY, make_summary, read_summary
from birl.run.track import open_sinks
from birl.speed import prepare_jax
from birl.types import Envs, Update


class Run:
    """A run in this process: from its start or a checkpoint, to its end or a signal."""

    def __init__(
        self,
        name: str,
        config: Any,
        run_dir: Path,
        saved: Checkpoint | None,  # the checkpoint to resume from; None: a new run
        progress: RunProgress,
        signals: list[int],  # those received so far; see signals.caught_signals
        envs: Any,
        make_network: Any,
    ) -> None:
        self.name = name
        self.algorithm = algorithm_named(name)
        self.config = config
        self.run_dir = run_dir
        self.saved = saved
        self.progress = progress
        self.signals = signals
        self.envs = envs
        self.make_network = make_network
        self.checkpoints = run_dir / CHECKPOINTS
        self.config_written = False
        self.replay_reported = False

    def train(self, notices: Sequence[str]) -> dict[str, Any]:
        """Train to the end, or until a signal; the summary."""
        run = self.config.run
        with ExitStack() as stack:
            self.console = Console(self.name, self.config.env.id, run.total_steps, self.progress.start_steps)
            stack.callback(self.console.close)
            envs = None if self.envs is None else stack.enter_context(open_envs(self.config.env, run.seed, self.envs))
            spaces = spaces_of(self.config.env) if envs is None else (envs.observation_space, envs.action_space)
            state = self._initial_state(spaces)
            self._leave_if_signalled()
            directory = OpenDirectory(self.run_dir)
            stack.callback(directory.close)
            self._tidy_directory()
            self._open_parts(stack, directory, spaces)
            for notice in [*notices, f"run directory {self.run_dir}"]:
                self.console.message(notice)
            if envs is None and self.progress.start_steps < run.total_steps and not self._reached_goal():
                self.exactness.set_restore_problem(restore_problem(self.config.env))
            return self._train(envs, state)

    def _initial_state(self, spaces: tuple[Any, Any]) -> Any:
        prepare_jax(self.config)
        state = self.algorithm.init(self.config, *spaces, self.make_network)
        return state if self.saved is None else tensors_to_state(state, self.saved.tensors)

    def _leave_if_signalled(self) -> None:
        """End the run if a signal came before there was anything to save."""
        if self.signals:
            self.console.message(f"{signal.Signals(self.signals[0]).name}: stopped before training began")
            raise Interrupted(128 + self.signals[0])

    def _tidy_directory(self) -> None:
        """Remove what killed processes left, and go back to the checkpoint that is resumed from."""
        files.require_real_directory(self.checkpoints)
        for directory in (self.run_dir, self.checkpoints):
            files.remove_partial(directory)
        checkpoint_folder.set_aside(self.checkpoints, self.progress.start_steps)
        checkpoint_folder.mark_best(self.checkpoints, self.progress.best)
        if self.saved is None:
            self._write_config()

    def _open_parts(self, stack: ExitStack, directory: OpenDirectory, spaces: tuple[Any, Any]) -> None:
        """Make the parts of the loop, in the order in which they need each other."""
        run = self.config.run
        progress = self.progress
        console = self.console
        self.exactness = Exactness(progress, console)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", InexactResume)  # each is recorded, whatever filters are set
        warnings.showwarning = self.exactness.show_warning
        resume_at = progress.start_steps if os.path.lexists(self.run_dir / METRICS) else None
        sinks = open_sinks(run, self.run_dir, {"algorithm": self.name} | to_json(self.config), resume_at)
        for sink in sinks:
            stack.callback(sink.close)
        self.log = RunLog(run, directory, sinks, console, progress)
        self.directory = directory
        self.saver = Saver(self.name, self.config, spaces, directory, progress, self.exactness, console)
        self.evaluator = Evaluator(
            self.algorithm, self.config, spaces, directory, progress, self.log, self.saver, console
        )

    def _train(self, envs: Envs | None, state: Any) -> dict[str, Any]:
        """Train to the end; the summary. A NaN or infinity is reported with the last checkpoint."""
        try:
            if self.progress.evaluation_due:
                self._evaluate(state, None)
            return self._finish(self._for_each_update(self._updates(envs, state)), state)
        except NonFiniteError as problem:
            newest = self.progress.saved_steps
            kept = f"{self.checkpoints / f'{newest:09d}'} is kept" if newest >= 0 else "none had been written yet"
            where = f"{self.config.env.id} after {self.progress.steps:,} steps"
            raise NonFiniteError(f"{where}: {problem}. Last checkpoint: {kept}") from problem

    def _updates(self, envs: Envs | None, state: Any) -> Iterator[Update]:
        """The algorithm's updates; none if the run has reached its goal before."""
        if self._reached_goal():
            return iter(())
        return self.algorithm.train(self.config, envs, state, self.saved.snapshot if self.saved else None)

    def _for_each_update(self, updates: Iterator[Update]) -> Update | None:
        """Log, evaluate and save after each update, where that is due; the last update."""
        run = self.config.run
        progress = self.progress
        update = None
        for update in updates:
            self._report_first(update)
            before = progress.steps
            progress.steps = int(update.state.env_steps)
            evaluate = crossed(before, progress.steps, run.eval_every)
            # The last update too: asking for another one would close the environments.
            save = crossed(before, progress.steps, run.checkpoint_every) or progress.steps >= run.total_steps
            if evaluate or save or self.signals or self.log.is_due():
                self.log.write_update(update)
            if evaluate:
                self._evaluate(update.state, update)
            if save:
                self.saver.try_save(update)
            if self.signals:
                self._stop(update)
            if self._reached_goal():
                self.console.message(f"stop_at_return {run.stop_at_return} reached")
                break
        return update

    def _report_first(self, update: Update) -> None:
        """Say and write what is known only once the first update is there."""
        if not self.config_written:  # not earlier: a resume that fails leaves the run as it was
            self._write_config()
        self.exactness.warn_if_inexact(self.saved.snapshot if self.saved else None)
        if "replay/bytes" in update.metrics and not self.replay_reported:
            self.replay_reported = True
            size = memory_size(update.metrics["replay/bytes"])
            self.console.message(f"replay: {self.config.replay_size:,} transitions, {size}")

    def _evaluate(self, state: Any, update: Update | None) -> None:
        """Evaluate the policy. Environments that were passed in are not: they are for training."""
        if self.envs is None:
            self.evaluator.evaluate(state, update, lambda: self._stop(update) if self.signals else None)

    def _stop(self, update: Update | None) -> None:
        """End the run after a signal, with a checkpoint if there is an update to save."""
        number = self.signals[0]
        steps = self.progress.steps
        saved = self.progress.saved_steps == steps if update is None else self.saver.try_save(update)
        state = f"saved at {steps:,} steps" if saved else "not saved, the newest checkpoint is an older one"
        self.console.message(f"{signal.Signals(number).name}: {state}; continue with: birl resume {self.run_dir}")
        raise Interrupted(128 + number)

    def _finish(self, update: Update | None, state: Any) -> dict[str, Any]:
        """Save and evaluate a last time, and write summary.json; its content."""
        path = self.run_dir / SUMMARY
        if update is not None:
            state = update.state
            self.saver.save(update)
        elif (summary := self._earlier_summary(path)) is not None:
            return summary
        if self.evaluator.latest_steps != self.progress.steps:
            self._evaluate(state, update)
        summary = make_summary(self.run_dir, self.name, self.config, self.progress, self.evaluator.latest)
        self.directory.require_in_place(self.progress.steps)
        files.write_json(path, summary)
        return summary

    def _earlier_summary(self, path: Path) -> dict[str, Any] | None:
        """Say that the run had ended before; the summary that was written then, if it fits."""
        run = self.config.run
        end = f"stop_at_return {run.stop_at_return}" if self._reached_goal() else f"its {run.total_steps:,} steps"
        remedy = f"to train longer: birl resume {self.run_dir} --total-steps N"
        self.console.message(f"this run has reached {end}; {remedy}")
        summary = read_summary(path, self.console.message)
        if summary is None or summary["env_steps"] != self.progress.steps:
            return None
        if (found := summary["evaluation"]) is not None:
            score = score_text(found["return_mean"], found["return_std"], found["episodes"])
            self.console.message(f"evaluation {score}")
        return summary

    def _reached_goal(self) -> bool:
        return self.progress.reached_goal(self.config.run)

    def _write_config(self) -> None:
        write_config(self.run_dir, self.name, self.config)
        self.config_written = True
