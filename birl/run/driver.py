"""The driver: runs an algorithm's generator, and logs, evaluates and saves around it."""

import dataclasses
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from birl.config import from_json, require, to_json
from birl.envs.check import restore_problem
from birl.envs.make import open_envs, spaces_of
from birl.errors import CheckpointError, InexactResume, NonFiniteError, RunDirectoryError, plain_warning
from birl.registry import algorithm_named, name_of, validate
from birl.run import checkpoint as checkpoints
from birl.run import files
from birl.run.checkpoint import Checkpoint
from birl.run.console import Console, score_text
from birl.run.directory import METRICS, new_directory, require_run, verified_settings, write_config
from birl.run.evaluate import HANDED_IN, Evaluation, evaluate_policy
from birl.run.lock import locked
from birl.run.policy import Policy, make_policy
from birl.run.signals import Interrupted, caught_signals
from birl.run.track import Sink, open_sinks, read_metrics
from birl.run.trust import allowed_run, is_own, unsigned_notice
from birl.run.versions import changed_versions, versions
from birl.types import Envs, Metrics, Update

MOST_ROWS = 50_000  # of training in metrics.jsonl, each about 1 kB


def train(config: Any, envs: Any = None, make_network: Any = None, notices: Sequence[str] = ()) -> dict[str, Any]:
    """Train from the start in a new run directory; its summary, which is also in summary.json."""
    name = name_of(config)
    if envs is not None:
        config = dataclasses.replace(config, env=dataclasses.replace(config.env, id=HANDED_IN))
    validate(name, config)
    with caught_signals() as signals, new_directory(name, config) as run_dir:
        run = Run(name, with_run(config, run_dir=str(run_dir)), run_dir, None, signals, envs, make_network)
        return run.go([*notices, *unsigned_notice(config)])


def resume(
    run_dir: str | Path,
    total_steps: int | None = None,
    workers: int | None = None,
    envs: Any = None,
    make_network: Any = None,
    trust: bool = False,
    env: str | None = None,
) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint, exactly as if it had not stopped; its
    summary.

    A run that was not made here by this person may import a module, start processes or reach other
    machines only with `trust`. Or name the environment yourself: `env` is used instead of the run's
    id.
    """
    run_dir = Path(run_dir)
    require_run(run_dir)
    with caught_signals() as signals, locked(run_dir):
        notices: list[str] = []
        saved = checkpoints.load_newest(run_dir / "checkpoints", notices.append)
        settings = verified_settings(run_dir, saved, notices)
        name, own = settings.algorithm, is_own(settings.algorithm, settings.values, settings.signature)
        config = from_json(algorithm_named(name).Config, settings.values)
        config, told = allowed_run(config, own, trust, HANDED_IN if envs is not None else env, settings.source)
        config = with_run(config, run_dir=str(run_dir))
        notices += told
        if workers is not None:
            config = dataclasses.replace(config, env=dataclasses.replace(config.env, workers=workers))
        if saved is None:
            notices.append("there is no checkpoint yet: starting from the beginning, with the same seed")
        else:
            notices += [
                f"{change}: the run may go on differently" for change in changed_versions(saved.manifest["versions"])
            ]
        run = Run(name, config, run_dir, saved, signals, envs, make_network)
        if total_steps is not None and total_steps != config.run.total_steps:
            require(
                total_steps > run.start_steps,
                f"total_steps {total_steps:,} must be more than the {run.start_steps:,} steps done",
            )
            notices.append(
                f"total_steps {config.run.total_steps:,} -> {total_steps:,}: schedules now run to the new end"
            )
            goal = (
                None if run.reached_goal else config.run.stop_at_return
            )  # whoever asks for more wants more than the goal
            run.config = with_run(config, total_steps=total_steps, stop_at_return=goal)
        validate(name, run.config)
        return run.go(notices)


class Run:
    """One training run in its directory: what has been logged, evaluated and saved so far."""

    def __init__(
        self,
        name: str,
        config: Any,
        run_dir: Path,
        saved: Checkpoint | None,
        signals: list[int],
        envs: Any,
        make_network: Any,
    ) -> None:
        self.name, self.algorithm, self.config, self.run_dir, self.saved = (
            name,
            algorithm_named(name),
            config,
            run_dir,
            saved,
        )
        self.signals, self.envs, self.make_network = signals, envs, make_network  # signals that have come
        self.checkpoints = run_dir / "checkpoints"
        self.start_steps = saved.env_steps if saved else 0
        self.notices: list[str] = []  # to be said once there is a console
        progress = to_json(checkpoints.Progress()) | (saved.manifest["progress"] if saved else {})
        self.best = self._best_of(progress["best"], checkpoints.read_best(self.checkpoints, self.notices.append))
        self.wall_began = time.perf_counter() - progress["wall_seconds"]
        self.cpu_began = time.process_time() - progress["cpu_seconds"]
        self.logged = {
            "seconds": progress["wall_seconds"],
            "env_steps": float(self.start_steps),
        }  # at the last log line
        self.steps = self.start_steps  # environment steps done
        self.saved_steps = self.start_steps if saved else -1
        self.evaluated_steps = -1
        self.evaluation: Evaluation | None = None
        self.evaluation_due: bool = progress.get(
            "evaluation_due", False
        )  # a signal ended the one after the checkpoint's update
        self.policy: Policy | None = None
        self.inexact_resumes: list[dict[str, Any]] = list(
            progress["inexact_resumes"]
        )  # this one too, once it is known to be
        self.restore_problem = ""  # why no resume of this run can be exact, as a trial found
        self.inexact_told = ""  # the reason that was said last
        self.config_written = self.replay_told = False
        self.unwritten: dict[Sink, str] = {}  # why the last metrics were not written; said once

    def go(self, notices: Sequence[str]) -> dict[str, Any]:
        """Train to the end, or until a signal; the summary."""
        run = self.config.run
        with ExitStack() as stack:
            self.console = Console(self.name, self.config.env.id, run.total_steps, self.start_steps)
            stack.callback(self.console.close)
            envs = None if self.envs is None else stack.enter_context(open_envs(self.config.env, run.seed, self.envs))
            self.spaces = spaces_of(self.config.env) if envs is None else (envs.observation_space, envs.action_space)
            state = self.algorithm.init(self.config, *self.spaces, self.make_network)
            if self.saved is not None:
                state = checkpoints.tensors_to_state(state, self.saved.tensors)
            self._leave_if_stopped()
            self.directory = os.open(
                self.run_dir, os.O_RDONLY | os.O_DIRECTORY
            )  # while it is open, no other can have its inode
            stack.callback(os.close, self.directory)
            files.refuse_others(self.checkpoints)
            for directory in (self.run_dir, self.checkpoints):
                files.remove_partial(directory)
            checkpoints.set_aside(self.checkpoints, self.start_steps)
            checkpoints.mark_best(self.checkpoints, self.best)
            if self.saved is None:
                self._write_config()
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always", InexactResume)  # to be noted, whatever is shown
            warnings.showwarning = self._show_warning
            resume_at = self.start_steps if os.path.lexists(self.run_dir / METRICS) else None
            self.sinks = open_sinks(run, self.run_dir, {"algorithm": self.name} | to_json(self.config), resume_at)
            for sink in self.sinks:
                stack.callback(sink.close)
            for notice in [*notices, *self.notices, f"run directory {self.run_dir}"]:
                self.console.message(notice)
            if envs is None and self.start_steps < run.total_steps and not self.reached_goal:
                self.restore_problem = restore_problem(self.config.env)
                self._tell_inexact(self.restore_problem)
            return self._train(envs, state)

    def _leave_if_stopped(self) -> None:
        """Obey a signal that came before there was anything to save."""
        if self.signals:
            self.console.message(f"{signal.Signals(self.signals[0]).name}: stopped before training began")
            raise Interrupted(128 + self.signals[0])

    def _train(self, envs: Envs | None, state: Any) -> dict[str, Any]:
        snapshot = self.saved.snapshot if self.saved else None
        try:
            if self.evaluation_due:
                self._evaluate(state, None)
            updates = iter(()) if self.reached_goal else self.algorithm.train(self.config, envs, state, snapshot)
            return self._finish(self._follow(updates), state)
        except NonFiniteError as problem:
            kept = (
                f"{self.checkpoints / f'{self.saved_steps:09d}'} is kept"
                if self.saved_steps >= 0
                else "none had been written yet"
            )
            raise NonFiniteError(
                f"{self.config.env.id} after {self.steps:,} steps: {problem}. Last checkpoint: {kept}"
            ) from problem

    def _follow(self, updates: Iterator[Update]) -> Update | None:
        run, update = self.config.run, None
        for update in updates:
            if not self.config_written:  # not before: a resume that is refused leaves the run as it was
                self._write_config()
            if self.saved is not None and not self.saved.snapshot.exact and not self.resumed_inexactly:
                self._show_warning(f"this resume is not exact: {self.saved.snapshot.reason}", InexactResume)
            if "replay/bytes" in update.metrics and not self.replay_told:
                self._tell_replay(update.metrics["replay/bytes"])
            before, self.steps = self.steps, int(update.state.env_steps)
            evaluate = crossed(before, self.steps, run.eval_every)
            # The last one, too: once the next update is asked for, the environments are closed.
            save = crossed(before, self.steps, run.checkpoint_every) or self.steps >= run.total_steps
            if evaluate or save or self.signals or self._is_due():
                self._log(update)
            if evaluate:
                self._evaluate(update.state, update)
            if save:
                self._save_if_possible(update)
            if self.signals:
                self._stop(update)
            if self.reached_goal:
                self.console.message(f"stop_at_return {run.stop_at_return} reached")
                break
        return update

    def _stop(self, update: Update | None) -> None:
        """End the run well; without an update, at the checkpoint that it was resumed from."""
        number, stopped = (
            self.signals[0],
            self.saved_steps == self.steps if update is None else self._save_if_possible(update),
        )
        saved = f"saved at {self.steps:,} steps" if stopped else "the newest checkpoint is an older one"
        self.console.message(f"{signal.Signals(number).name}: {saved}; go on with: birl resume {self.run_dir}")
        raise Interrupted(128 + number)

    def _write_config(self) -> None:
        write_config(self.run_dir, self.name, self.config)
        self.config_written = True

    def _tell_replay(self, size: float) -> None:
        """Say once how much memory the replay takes: all of it, from the start."""
        self.replay_told = True
        self.console.message(f"replay: {self.config.replay_size:,} transitions, {memory_size(size)}")

    def _is_due(self) -> bool:
        """Whether the last line is long enough ago, in steps and by the clock: a fast run or a long
        one must not fill the disk.
        """
        run = self.config.run
        spacing = max(1, run.total_steps // MOST_ROWS)
        return (
            crossed(int(self.logged["env_steps"]), self.steps, spacing)
            and self._wall_seconds() - self.logged["seconds"] >= run.log_seconds
        )

    def _log(self, update: Update) -> None:
        if int(update.state.updates) % self.config.run.log_every:
            return
        seconds, env_steps = self._wall_seconds(), int(update.state.env_steps)
        spent = {name: float(update.metrics[f"time/{name}_seconds"]) for name in ("environment", "policy", "learning")}
        elapsed = max(seconds - self.logged["seconds"], 1e-9)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        if self.logged.keys() >= spent.keys():  # at the first line it is not known since when they were spent
            metrics |= {f"time/{name}_share": (value - self.logged[name]) / elapsed for name, value in spent.items()}
        metrics["time/env_steps_per_second"] = (env_steps - self.logged["env_steps"]) / elapsed
        self.logged = {"seconds": seconds, "env_steps": float(env_steps)} | spent
        self._write(env_steps, metrics)

    def _evaluate(self, state: Any, update: Update | None) -> None:
        """Score the policy, and keep it if it is the best so far."""
        run, steps = self.config.run, int(state.env_steps)
        if self.envs is not None:
            return  # environments that were handed in are for training: an evaluation would step them
        if self.policy is None:
            self.policy = make_policy(self.algorithm, state, *self.spaces)
        self.policy.set_parameters(self.algorithm.policy(state))
        self.evaluation_due = True

        def watch(ended: int, longest: int) -> None:
            if self.signals:
                self._stop(update)
            self.console.evaluating(ended, run.eval_episodes, longest)

        settings = run.eval_episodes, run.seed, run.eval_deterministic, run.eval_max_steps
        self.evaluation = evaluate_policy(self.policy, self.config.env, *settings, watch)
        self.evaluation_due, self.evaluated_steps = False, steps
        metrics = self.evaluation.metrics()
        score = float(metrics["eval/return_mean"])
        if self._was_evaluated(steps):
            self.console.write(steps, self._wall_seconds(), metrics)
        else:
            self._write(steps, metrics)
        if cuts := self.evaluation.cuts():
            self.console.message(f"{cuts}; eval_max_steps sets how many are played")
        if run.eval_every and (self.best is None or score > self.best["return_mean"]):
            self._keep_best({"checkpoint": f"{steps:09d}", "return_mean": score}, update)
        if steps < run.total_steps and not self.reached_goal:  # the last one is said with the run's end
            found = score_text(score, metrics["eval/return_std"], run.eval_episodes)
            self.console.message(f"evaluation at {steps:,} steps: {found}")

    def _was_evaluated(self, steps: int) -> bool:
        """Whether this evaluation was logged by a process that died before it could write the
        summary.
        """
        if steps != self.start_steps:
            return False
        return any(
            row["env_steps"] == steps and "eval/return_mean" in row for row in read_metrics(self.run_dir / METRICS)
        )

    def _keep_best(self, best: dict[str, Any], update: Update | None) -> None:
        """Save it at once, while its update is at hand. The checkpoint says itself that it is the
        best: best.json may come too late.
        """
        before, self.best = self.best, best
        try:
            if update is not None:
                self._save(update)
            checkpoints.mark_best(self.checkpoints, best)
            checkpoints.prune(self.checkpoints, self.config.run.keep_checkpoints)
        except OSError as problem:
            self.best = before
            self.console.message(f"best checkpoint not written, training goes on: {problem}")

    def _best_of(self, *found: dict[str, Any] | None) -> dict[str, Any] | None:
        """The best checkpoint of the past; what lies beyond the one resumed from has not happened
        yet.
        """
        known = [best for best in found if best is not None and int(best["checkpoint"]) <= self.start_steps]
        return max(known, key=lambda best: best["return_mean"], default=None)

    @property
    def resumed_inexactly(self) -> bool:
        return any(resume["env_steps"] == self.start_steps for resume in self.inexact_resumes)

    @property
    def reached_goal(self) -> bool:
        goal = self.config.run.stop_at_return
        return goal is not None and self.best is not None and self.best["return_mean"] >= goal

    def _save_if_possible(self, update: Update) -> Path | None:
        try:
            return self._save(update)
        except OSError as problem:  # a full disk must not end a run that still learns
            self.console.message(f"checkpoint not written, training goes on: {problem}")
            return None

    def _save(self, update: Update) -> Path:
        """The checkpoint of this update; written once, however many reasons there are to save
        it.
        """
        self._require_directory()
        path = self.checkpoints / f"{self.steps:09d}"
        if self.saved_steps != self.steps:
            progress: dict[str, Any] = {
                "wall_seconds": self._wall_seconds(),
                "cpu_seconds": self._cpu_seconds(),
                "best": self.best,
            }
            progress |= {"evaluation_due": self.evaluation_due, "inexact_resumes": self.inexact_resumes}
            snapshot = update.snapshot()
            if snapshot.exact and self.restore_problem:
                snapshot = dataclasses.replace(snapshot, exact=False, reason=self.restore_problem)
            self._tell_inexact(snapshot.reason)
            path = checkpoints.save(
                self.checkpoints, self.name, self.config, self.spaces, update.state, snapshot, progress
            )
            checkpoints.prune(self.checkpoints, self.config.run.keep_checkpoints)
            self.saved_steps = self.steps
        return path

    def _finish(self, update: Update | None, state: Any) -> dict[str, Any]:
        """The last checkpoint, the last evaluation, summary.json."""
        summary_path = self.run_dir / "summary.json"
        if update is not None:
            state = update.state
            self._save(update)
        else:
            end = (
                f"stop_at_return {self.config.run.stop_at_return}"
                if self.reached_goal
                else f"its {self.config.run.total_steps:,} steps"
            )
            self.console.message(
                f"this run has reached {end}; train on with: birl resume {self.run_dir} --total-steps N"
            )
            summary = self._read_summary(summary_path)
            if summary is not None and summary["env_steps"] == self.steps:
                if (found := summary["evaluation"]) is not None:
                    score = score_text(found["return_mean"], found["return_std"], found["episodes"])
                    self.console.message(f"evaluation {score}")
                return summary
        if self.evaluated_steps != self.steps:
            self._evaluate(state, update)
        summary = {
            "run_dir": str(self.run_dir),
            "algorithm": self.name,
            "env": self.config.env.id,
            "seed": self.config.run.seed,
            "env_steps": int(state.env_steps),
            "evaluation": None
            if self.evaluation is None
            else self.evaluation.summary(self.config.run.eval_deterministic),
            "best_return": None if self.best is None else self.best["return_mean"],
            "wall_seconds": round(self._wall_seconds(), 2),
            "cpu_seconds": round(self._cpu_seconds(), 2),
            "inexact_resumes": self.inexact_resumes,
            "versions": versions(),
        }
        self._require_directory()
        files.write_json(summary_path, summary)
        return summary

    def _read_summary(self, path: Path) -> dict[str, Any] | None:
        """The summary that was written when the run ended; None if there is none or it is damaged,
        which is said.
        """
        try:
            summary = files.read_json(path)
        except FileNotFoundError:
            return None
        except CheckpointError as problem:
            self.console.message(f"{problem}; it is written again")
            return None
        match summary:
            case {"env_steps": int(), "evaluation": None}:
                return summary
            case {
                "env_steps": int(),
                "evaluation": {"return_mean": int() | float(), "return_std": int() | float(), "episodes": int()},
            }:
                return summary
        self.console.message(f"{path} is damaged: it is not a summary; it is written again")
        return None

    def _require_directory(self) -> None:
        """Raise RunDirectoryError if the directory is no longer the one the run began in: it is not
        brought back.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.stat(self.run_dir), os.fstat(self.directory)):
                return
        wrong = f"{self.run_dir} was removed, moved or replaced while the run was writing there"
        raise RunDirectoryError(
            f"{wrong}; what was learned up to {self.steps:,} steps is not saved. Train again, in a directory that stays"
        )

    def _write(self, env_steps: int, metrics: Metrics) -> None:
        self._require_directory()
        for sink in self.sinks:
            try:
                sink.write(env_steps, self._wall_seconds(), metrics)
                self.unwritten.pop(sink, None)
            except (
                OSError
            ) as problem:  # a full disk; what was not written is written with a later line, once there is room
                if str(problem) != self.unwritten.get(sink):
                    self.console.message(f"metrics not written, training goes on: {problem}")
                self.unwritten[sink] = str(problem)
        self.console.write(env_steps, self._wall_seconds(), metrics)

    def _show_warning(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        """Say it above the progress bar, where standard error would be drawn over."""
        self.console.message(f"warning: {plain_warning(message)}")
        if issubclass(category, InexactResume):
            self._note_inexact(str(message))

    def _note_inexact(self, reason: str) -> None:
        """Keep for all later checkpoints that this resume was not exact."""
        if not self.resumed_inexactly:
            self.inexact_resumes.append({"env_steps": self.start_steps, "reason": reason})

    def _tell_inexact(self, reason: str) -> None:
        """Say once that a resume will not be exact, and why."""
        if reason and reason != self.inexact_told:
            self.console.message(f"a resume of this run will not be exact: {reason}")
            self.inexact_told = reason

    def _wall_seconds(self) -> float:
        return time.perf_counter() - self.wall_began

    def _cpu_seconds(self) -> float:
        return time.process_time() - self.cpu_began


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every


def with_run(config: Any, **changes: Any) -> Any:
    """The config with other run settings."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))


def memory_size(size: float) -> str:
    """So many bytes, with the unit in which they are easy to read."""
    unit, name = next(((unit, name) for unit, name in ((1e9, "GB"), (1e6, "MB")) if size >= unit), (1e3, "kB"))
    return f"{size / unit:.1f} {name}"
