"""A run: the updates of an algorithm, with a directory, logs, evaluations and checkpoints."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO

from birl.config import RunConfig, require, to_json
from birl.envs.check.trials import try_envs
from birl.envs.make import open_envs, spaces_of
from birl.envs.spaces import has_images
from birl.errors import EnvError, InexactResume, NonFiniteError
from birl.nets.allowance import limited_by
from birl.nets.images import encoders_chosen
from birl.registry import algorithm_named
from birl.rollouts.user_replay import UserReplay, replay_of
from birl.run import checkpoint, files
from birl.run.checkpoint import Checkpoint
from birl.run.console import Console, memory_size
from birl.run.directory import CHECKPOINTS, METRICS, SUMMARY, OpenDirectory, write_config
from birl.run.evaluating import Evaluation, Evaluator
from birl.run.given import Given
from birl.run.lock import remove_abandoned
from birl.run.logging import RunLog, open_sinks
from birl.run.policy import Policy
from birl.run.record import ENDINGS, VIDEOS, VideoRecorder
from birl.run.saving import (
    Exactness,
    OpenRun,
    RunProgress,
    Saver,
    crossed,
    ended_text,
    kept_text,
    make_summary,
    read_summary,
    saved_text,
)
from birl.run.signals import Interrupted, caught_signals, may_save_after
from birl.run.state_tensors import tensors_to_state
from birl.settings import flat_settings
from birl.speed import prepare_jax
from birl.types import Metrics, Update


class Due:
    """The actions that are due after an update: a row, an evaluation, a checkpoint, ..."""

    def __init__(self, run: RunConfig, progress: RunProgress, has_evaluations: bool, pause_at: int | None) -> None:
        self._run = run
        self._progress = progress
        self._has_evaluations = has_evaluations
        self._pause_at = pause_at
        self._before = progress.steps  # the steps of the update before the latest one

    def count(self, steps: int) -> None:
        """Take the steps of a new update."""
        self._before, self._progress.steps = self._progress.steps, steps
        self._progress.evaluation_due = False  # that was of an update before

    def row(self) -> bool:
        """True if the latest update gets a line in the log: only settings and steps decide."""
        return self._crossed(self._run.steps_between_rows) or self.evaluation() or self.checkpoint()

    def evaluation(self) -> bool:
        return self._has_evaluations and self._crossed(self._run.eval_every)

    def checkpoint(self) -> bool:
        # At the last update too: asking for another one would close the environments.
        is_due = self._crossed(self._run.checkpoint_every) or self._crossed(self._run.keep_every)
        return is_due or self._progress.steps >= self._run.total_steps

    def video(self) -> bool:
        return self._crossed(self._run.video_every)

    def pause(self) -> bool:
        """True if this process has reached the steps at which it is to pause the run."""
        return self._pause_at is not None and self._pause_at <= self._progress.steps < self._run.total_steps

    def goal(self) -> bool:
        """True if an evaluation reached `stop_at_return`."""
        return self._progress.reached_goal(self._run)

    def _crossed(self, every: int) -> bool:
        return crossed(self._before, self._progress.steps, every)


class Opened(NamedTuple):
    """A run's directory, locked, and how far the run is."""

    name: str  # of the algorithm
    config: Any
    run_dir: Path
    saved: Checkpoint | None  # the checkpoint to resume from; None: a new run
    progress: RunProgress
    notices: Sequence[str]  # to say on the console


class Run:
    """A run in this process, from its start or a checkpoint to its end, a `break` or a signal.

    `with birl.start(...) as run: for update in run: ...`. Each update is logged before the body of
    the loop sees it, and evaluated and saved after the body, where that is due. So a checkpoint
    holds what the body has changed. At the end of the `with` block the run is saved and evaluated,
    and its summary is written.
    """

    def __init__(
        self,
        open_directory: Callable[[ExitStack], Opened],
        given: Given,
        quiet: bool = False,
        pause_at: int | None = None,  # end this process at these steps, with an evaluation but without a summary
    ) -> None:
        self._open_directory = open_directory
        self._given = given
        self._quiet = quiet
        self._pause_at = pause_at
        self._lane: tuple[Sequence[int], TextIO] | None = None  # signals and output of a run among several in a process
        self._stack: ExitStack | None = None  # closes everything; None outside of the `with` block
        self._updates: Iterator[Update] | None = None  # the algorithm's
        self._is_pending = False  # the latest update is not evaluated and saved yet
        self._replay_reported = False
        self.update: Update | None = None  # the latest one
        self.summary: dict[str, Any] | None = None  # the content of summary.json, once the run has ended

    def as_lane(self, signals: Sequence[int], output: TextIO) -> Self:
        """This run as one of several in this process, which catches the signals for all of them."""
        self._lane = signals, output
        return self

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._signals = stack.enter_context(caught_signals()) if self._lane is None else self._lane[0]
            opened = self._open_directory(stack)
            self.name, self.config, self.run_dir, self._saved, self._progress, _ = opened
            self._open(stack, opened)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = self._opened()
        try:
            self._end(error)
        except BaseException as another:
            stack.__exit__(type(another), another, another.__traceback__)
            raise
        finally:
            self._stack = None
        stack.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Update]:
        """Train: the updates that are left."""
        self._opened()
        if self._has_evaluations and self._evaluator.is_due():
            self._evaluate(None)
        while True:
            self._complete()
            update = None if self._due.goal() or self._due.pause() else next(self._training(), None)
            if update is None:
                return
            self._take(update)
            yield update

    @property
    def state(self) -> Any:
        """The algorithm's State as it is now."""
        return self._first_state if self.update is None else self.update.state

    @property
    def env_steps(self) -> int:
        """Environment steps done."""
        return self._progress.steps

    @property
    def metrics(self) -> Metrics:
        """The metrics of the latest update."""
        return {} if self.update is None else self.update.metrics

    @property
    def evaluation(self) -> Evaluation | None:
        """The latest evaluation; None if there was none in this process."""
        return self._evaluator.latest

    @property
    def replay(self) -> UserReplay:
        """The algorithm's replay, to add transitions to it or to save it."""
        return replay_of(self.name, self.update)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Write numbers of your own to metrics.jsonl, and wherever else metrics go."""
        self._opened()
        self._log.write_own(metrics)

    def evaluate(self) -> Evaluation:
        """Score the policy now; the score is logged, and the best policy so far is kept."""
        self._opened()
        wrong = "this run cannot be evaluated: Birl cannot make environments that were passed in as envs="
        require(self._has_evaluations, f"{wrong}; pass eval_envs= too")
        return self._evaluate(self.update, keep_best=True)

    def save(self) -> Path:
        """Write a checkpoint now; its directory."""
        self._opened()
        if self.update is None:
            raise RuntimeError("there is nothing to save before the first update")
        self._saver.save(self.update)
        return self._checkpoints / f"{self._progress.steps:09d}"

    def policy(self) -> Policy:
        """The policy as it is now. It stays as it is when training goes on."""
        self._opened()
        policy = self._evaluator.policy_of(self.state)
        policy.is_of_run = True
        return policy

    def _open(self, stack: ExitStack, opened: Opened) -> None:
        """Open the console, environments that were passed in, and the parts that write files."""
        run = self.config.run
        env = self.config.env
        envs = self._given.envs
        self._algorithm = algorithm_named(self.name)
        self._checkpoints = self.run_dir / CHECKPOINTS
        self._config_written = self._saved is None
        self._has_evaluations = envs is None or self._given.eval_envs is not None
        self._due = Due(run, self._progress, self._has_evaluations, self._pause_at)
        start_steps = self._progress.start_steps
        output = self._lane and self._lane[1]
        self._console = Console(self.name, env.id, run.total_steps, start_steps, output, quiet=self._quiet)
        stack.callback(self._console.close)
        self._envs = None if envs is None else stack.enter_context(open_envs(env, run.seed, envs))
        spaces = spaces_of(env) if self._envs is None else (self._envs.observation_space, self._envs.action_space)
        self._first_state = self._initial_state(spaces)
        self._leave_if_signalled()
        self._open_parts(stack, spaces)
        encoder = flat_settings(self.config).get("encoder", "mlp")
        chosen = encoders_chosen(spaces[0], encoder) if self._given.make_network is None else []
        for notice in [*opened.notices, *chosen, f"run directory {self.run_dir}"]:
            self._console.message(notice)
        if self._envs is None and start_steps < run.total_steps and not self._due.goal():
            self._exactness.take(try_envs(env))

    def _open_parts(self, stack: ExitStack, spaces: tuple[Any, Any]) -> None:
        """Open what writes files, in the order in which the parts need each other."""
        directory = OpenDirectory(self.run_dir)
        stack.callback(directory.close)
        tidy_directory(self.run_dir, self._progress)
        if (
            self._saved is None
        ):  # else it is written with the first update: a resume that fails leaves the run as it was
            write_config(self.run_dir, self.name, self.config)
        self._exactness = Exactness(self._progress, self._console)
        if self._lane is None:  # warnings of this process are about this run
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always", InexactResume)  # each is recorded, whatever filters are set
            warnings.showwarning = self._exactness.show_warning
        resume_at = self._progress.start_steps if os.path.lexists(self.run_dir / METRICS) else None
        sinks = open_sinks(self.config.run, self.run_dir, {"algorithm": self.name} | to_json(self.config), resume_at)
        for sink in sinks:
            stack.callback(sink.close)
        self._shared = OpenRun(self.name, self.config, spaces, directory, self._progress, self._console)
        self._log = RunLog(self._shared, sinks)
        self._saver = Saver(self._shared, self._exactness)
        self._evaluator = Evaluator(self._shared, self._log, self._saver, self._given.eval_envs)
        self._recorder = VideoRecorder(self.config, self.run_dir, self._console, self._evaluator.policy_of)

    def _opened(self) -> ExitStack:
        """The stack that closes the run; RuntimeError outside of a `with` block."""
        if self._stack is None:
            raise RuntimeError("this run is not open; use: with birl.start(...) as run: for update in run: ...")
        return self._stack

    def _initial_state(self, spaces: tuple[Any, Any]) -> Any:
        prepare_jax(self.config, has_images(spaces[0]))
        inputs = self.config, *spaces, self._given.make_network
        if self._saved is None:
            return self._algorithm.init(*inputs)
        with limited_by(self._saved.tensors):
            template = self._algorithm.init(*inputs)
        return tensors_to_state(template, self._saved.tensors)

    def _leave_if_signalled(self) -> None:
        """End the run if a signal came before there was anything to save."""
        if self._signals:
            self._console.message(f"{signal.Signals(self._signals[0]).name}: stopped before training began")
            raise Interrupted(128 + self._signals[0])

    def _training(self) -> Iterator[Update]:
        """The algorithm's updates. Training begins when the first one is asked for."""
        if self._updates is None:
            self._console.compiling()
            snapshot = self._saved.snapshot if self._saved else None
            self._updates = updates = self._algorithm.train(self.config, self._envs, self._first_state, snapshot)
            self._opened().callback(updates.close)
        return self._updates

    def _take(self, update: Update) -> None:
        """Count an update, and log it where that is due."""
        self._report_first(update)
        self.update = update
        self._is_pending = True
        self._due.count(int(update.state.env_steps))
        if self._due.row():
            self._log.write_update(update)
        else:
            self._console.progress(self.env_steps, self._progress.wall_seconds())

    def _complete(self) -> None:
        """Evaluate and save the latest update where that is due; end the run after a signal."""
        if not self._is_pending or self.update is None:
            return
        self._is_pending = False
        if self._due.evaluation():
            self._evaluate(self.update)
        if self._due.video():
            self._recorder.record(self.state, lambda: bool(self._signals))
        if self._due.checkpoint():
            self._saver.try_save(self.update)
        if self._signals:
            self._stop(self.update)
        if self._due.goal():
            self._console.message(f"stop_at_return {self.config.run.stop_at_return} reached")

    def _report_first(self, update: Update) -> None:
        """Say and write what is known only once the first update is there."""
        self._write_config()  # not earlier: a resume that fails leaves the run as it was
        self._exactness.warn_if_inexact(self._saved.snapshot if self._saved else None)
        if "replay/bytes" in update.metrics and not self._replay_reported:
            self._replay_reported = True
            number, size = flat_settings(self.config)["replay_size"], memory_size(update.metrics["replay/bytes"])
            self._console.message(f"replay: {number:,} transitions, {size}")

    def _write_config(self) -> None:
        """Write the settings of a resumed run, once."""
        if not self._config_written:
            write_config(self.run_dir, self.name, self.config, self._progress.changes)
            self._config_written = True

    def _evaluate(self, update: Update | None, keep_best: bool = False) -> Evaluation:
        """Evaluate the policy. Without an update, it is that of the newest checkpoint."""

        def stop_if_signalled() -> None:
            if self._signals:
                self._stop(update)

        has_checkpoint = update is not None or self._progress.saved_steps == self.env_steps
        keep_best = has_checkpoint and (keep_best or self.config.run.eval_every > 0)
        return self._evaluator.evaluate(self.state, update, stop_if_signalled, keep_best)

    def _stop(self, update: Update | None) -> None:
        """End the run after a signal, with a checkpoint if there is an update to save."""
        name = signal.Signals(self._signals[0]).name
        saved = self._progress.saved_steps == self.env_steps if update is None else self._saver.try_save(update)
        self._console.message(f"{name}: {saved_text(saved, self.env_steps, self.run_dir)}")
        raise Interrupted(128 + self._signals[0])

    def _end(self, error: BaseException | None) -> None:
        """Finish the run; after an error in the body of the loop, save what was learned."""
        try:
            if error is None and self._due.pause():
                self._pause()
            elif error is None:
                self.summary = self._finish()
            elif isinstance(error, NonFiniteError | EnvError):
                raise error
            elif self._is_pending and self.update is not None and may_save_after(error):
                saved = self._saver.try_save(self.update)
                self._console.message(
                    f"{type(error).__name__} in the loop: {saved_text(saved, self.env_steps, self.run_dir)}"
                )
        except (NonFiniteError, EnvError) as problem:
            where = f"{self.config.env.id} after {self.env_steps:,} steps"
            kept = kept_text(self._progress.saved_steps, self._checkpoints)
            raise type(problem)(f"{where}: {problem}. Last checkpoint: {kept}") from problem

    def _pause(self) -> None:
        """Evaluate and save, so that another process continues from here."""
        if self._has_evaluations and not self._evaluator.has_scored(self.env_steps):
            self._evaluate(self.update)
        if self.update is not None:  # after the evaluation: the checkpoint says that none is due
            self._saver.save(self.update)

    def _finish(self) -> dict[str, Any]:
        """Save and evaluate a last time, and write summary.json; its content."""
        path = self.run_dir / SUMMARY
        if self.update is not None:
            self._saver.save(self.update)
        elif (summary := self._earlier_summary(path)) is not None:
            return summary
        if self._has_evaluations and self._evaluator.latest_steps != self.env_steps:
            self._evaluate(self.update)
        deterministic = self.config.run.eval_deterministic
        found = None if self.evaluation is None else self.evaluation.summary(deterministic)
        summary = make_summary(self._shared, found)
        self._shared.directory.require_in_place(self.env_steps)
        self._write_config()  # it may have ended here because its settings have another end now
        files.write_json(path, summary)
        return summary

    def _earlier_summary(self, path: Path) -> dict[str, Any] | None:
        """Say that the run had ended before; the summary that was written then, if it fits."""
        run = self.config.run
        if self.env_steps < run.total_steps and not self._due.goal():
            return None
        self._console.message(ended_text(run, self._due.goal(), self.run_dir))
        return read_summary(path, self.env_steps, self._console.message)


def tidy_directory(run_dir: Path, progress: RunProgress) -> None:
    """Remove what killed processes left, and go back to the checkpoint that is resumed from."""
    checkpoints = run_dir / CHECKPOINTS
    files.require_real_directory(checkpoints)
    for directory in (run_dir, checkpoints):
        files.remove_partial(directory)
    if not (run_dir / VIDEOS).is_symlink():  # birl record may be writing another video there
        remove_abandoned(run_dir / VIDEOS, *ENDINGS)
    checkpoint.set_aside(checkpoints, progress.start_steps)
    checkpoint.mark_best(checkpoints, progress.best)
