"""The driver: runs an algorithm's generator, and logs, evaluates and saves around it."""

import dataclasses
import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from birl.config import from_json, require, to_json, validate_run
from birl.device import prepare_jax
from birl.envs.make import open_envs
from birl.run import checkpoint as checkpoints
from birl.run.algorithms import algorithm_named, name_of
from birl.run.checkpoint import Checkpoint
from birl.run.console import Console
from birl.run.evaluate import Evaluation, evaluate_policy
from birl.run.policy import Policy, make_policy
from birl.run.track import open_sinks
from birl.run.versions import versions
from birl.types import Metrics, Update


class Interrupted(SystemExit):
    """A signal ended the run after a checkpoint; the exit code is the shell's for that signal."""


def train(config: Any, envs: Any = None, make_network: Any = None, notices: Sequence[str] = ()) -> dict[str, Any]:
    """Train from the start in a new run directory; its summary, which is also in summary.json."""
    name = name_of(config)
    algorithm = algorithm_named(name)
    validate_run(config.run)
    algorithm.validate(config)
    run_dir = new_run_dir(name, config)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir=str(run_dir)))
    return Run(name, config, run_dir, None, envs, make_network).go(notices)


def resume(run_dir: str | Path, total_steps: int | None = None, envs: Any = None, make_network: Any = None) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint, exactly as if it had not stopped; its summary."""
    run_dir = Path(run_dir)
    require((run_dir / "config.json").exists(), f"{run_dir} holds no run: there is no config.json; start one with birl train")
    stored = json.loads((run_dir / "config.json").read_text())
    config = from_json(algorithm_named(stored["algorithm"]).Config, stored["config"])
    notices: list[str] = []
    saved = checkpoints.load_newest(run_dir / "checkpoints", notices.append)
    if saved is None:
        notices.append("there is no checkpoint yet: starting from the beginning, with the same seed")
    if total_steps is not None and total_steps != config.run.total_steps:
        notices.append(f"total_steps {config.run.total_steps:,} -> {total_steps:,}: schedules now run to the new end")
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=total_steps))
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, run_dir=str(run_dir)))
    return Run(stored["algorithm"], config, run_dir, saved, envs, make_network).go(notices)


class Run:
    """One training run in its directory: what has been logged, evaluated and saved so far."""

    def __init__(self, name: str, config: Any, run_dir: Path, saved: Checkpoint | None, envs: Any, make_network: Any):
        self.name, self.algorithm, self.config, self.run_dir, self.saved = name, algorithm_named(name), config, run_dir, saved
        self.envs, self.make_network = envs, make_network
        self.start_steps = saved.env_steps if saved else 0
        progress: dict[str, Any] = saved.manifest["progress"] if saved else {"wall_seconds": 0.0, "cpu_seconds": 0.0, "best_return": None}
        self.best_return: float | None = progress["best_return"]
        self.wall_began = time.perf_counter() - progress["wall_seconds"]
        self.cpu_began = time.process_time() - progress["cpu_seconds"]
        self.logged = {"seconds": progress["wall_seconds"], "env_steps": float(self.start_steps)}  # at the last log line
        self.saved_steps = self.start_steps if saved else -1
        self.evaluated_steps = -1
        self.evaluation: Evaluation | None = None
        self.policy: Policy | None = None

    def go(self, notices: Sequence[str]) -> dict[str, Any]:
        """Train to the end, or until a signal; the summary."""
        prepare_jax()
        run = self.config.run
        with ExitStack() as stack:
            envs = stack.enter_context(open_envs(self.config.env, run.seed, self.envs))
            self.spaces = envs.observation_space, envs.action_space
            state = self.algorithm.init(self.config, *self.spaces, self.make_network)
            if self.saved is not None:
                state = checkpoints.tensors_to_state(state, self.saved.tensors)
            self._write_config()
            self.sinks = open_sinks(run, self.run_dir, to_json(self.config), self.start_steps if self.resumed else None)
            self.console = Console(self.name, self.config.env.id, run.total_steps, self.start_steps)
            for sink in [*self.sinks, self.console]:
                stack.callback(sink.close)
            for notice in [*notices, f"run directory {self.run_dir}"]:
                self.console.message(notice)
            signals = stack.enter_context(caught_signals())
            world = self.saved.world if self.saved else None
            last = self._follow(self.algorithm.train(self.config, envs, state, world), signals)
            return self._finish(last, state)

    @property
    def resumed(self) -> bool:
        return (self.run_dir / "metrics.jsonl").exists()

    def _follow(self, updates: Iterator[Update], signals: list[int]) -> Update | None:
        run, update, before = self.config.run, None, self.start_steps
        for update in updates:
            steps = int(update.state.env_steps)
            self._log(update)
            if crossed(before, steps, run.eval_every):
                self._evaluate(update.state, update)
            if crossed(before, steps, run.checkpoint_every):
                self._save_if_possible(update)
            if signals:
                self._save(update)
                self.console.message(f"{signal.Signals(signals[0]).name}: saved at {steps:,} steps; go on with: birl resume {self.run_dir}")
                raise Interrupted(128 + signals[0])
            if self._good_enough():
                self.console.message(f"stop_at_return {run.stop_at_return} reached")
                break
            before = steps
        return update

    def _log(self, update: Update) -> None:
        if int(update.state.updates) % self.config.run.log_every:
            return
        seconds, env_steps = self._wall_seconds(), int(update.state.env_steps)
        spent = {name: float(update.metrics[f"time/{name}_seconds"]) for name in ("environment", "policy", "learning")}
        elapsed = max(seconds - self.logged["seconds"], 1e-9)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        metrics |= {f"time/{name}_share": (value - self.logged.get(name, value)) / elapsed for name, value in spent.items()}
        metrics["time/env_steps_per_second"] = (env_steps - self.logged["env_steps"]) / elapsed
        self.logged = {"seconds": seconds, "env_steps": float(env_steps)} | spent
        self._write(env_steps, metrics)

    def _evaluate(self, state: Any, update: Update | None) -> None:
        """Score the policy; a new best is saved at once, while the update it belongs to is at hand."""
        run, steps = self.config.run, int(state.env_steps)
        if self.envs is not None:
            return  # environments that were handed in are for training: an evaluation would step them
        if self.policy is None:
            self.policy = make_policy(self.algorithm, state, self.spaces[1])
        self.policy.set_parameters(self.algorithm.policy(state))
        self.evaluation = evaluate_policy(self.policy, self.config.env, run.eval_episodes, run.seed, run.eval_deterministic)
        self.evaluated_steps = steps
        metrics = self.evaluation.metrics()
        score = float(metrics["eval/return_mean"])
        self._write(steps, metrics)
        self.console.message(f"evaluation at {steps:,} steps: return {score:.1f} +/- {metrics['eval/return_std']:.1f}")
        if update is not None and (self.best_return is None or score > self.best_return):
            self.best_return = score
            path = self._save_if_possible(update)
            if path is not None:
                checkpoints.mark_best(self.run_dir / "checkpoints", path, score)

    def _good_enough(self) -> bool:
        goal = self.config.run.stop_at_return
        return goal is not None and self.evaluation is not None and float(self.evaluation.returns.mean()) >= goal

    def _save_if_possible(self, update: Update) -> Path | None:
        try:
            return self._save(update)
        except OSError as problem:  # a full disk must not end a run that still learns
            self.console.message(f"checkpoint not written, training goes on: {problem}")
            return None

    def _save(self, update: Update) -> Path:
        directory, steps = self.run_dir / "checkpoints", int(update.state.env_steps)
        progress = {"wall_seconds": self._wall_seconds(), "cpu_seconds": self._cpu_seconds(), "best_return": self.best_return}
        path = checkpoints.save(directory, self.name, self.config, self.spaces, update.state, update.world(), progress)
        checkpoints.prune(directory, self.config.run.keep_checkpoints)
        self.saved_steps = steps
        return path

    def _finish(self, update: Update | None, state: Any) -> dict[str, Any]:
        """The last checkpoint, the last evaluation, summary.json."""
        summary_path = self.run_dir / "summary.json"
        if update is None:
            self.console.message(f"this run has reached its {self.config.run.total_steps:,} steps; give more with --total-steps")
            if summary_path.exists():
                return json.loads(summary_path.read_text())
        else:
            state = update.state
            if self.saved_steps != int(state.env_steps):
                self._save(update)
        if self.evaluated_steps != int(state.env_steps):
            self._evaluate(state, update if self.config.run.eval_every else None)
        summary = {
            "algorithm": self.name,
            "env": self.config.env.id,
            "seed": self.config.run.seed,
            "env_steps": int(state.env_steps),
            "evaluation": None if self.evaluation is None else self._evaluation_summary(self.evaluation),
            "best_return": self.best_return,
            "wall_seconds": round(self._wall_seconds(), 2),
            "cpu_seconds": round(self._cpu_seconds(), 2),
            "versions": versions(),
        }
        checkpoints.write_json(summary_path, summary)
        return summary

    def _evaluation_summary(self, evaluation: Evaluation) -> dict[str, Any]:
        metrics = {name.removeprefix("eval/"): value for name, value in evaluation.metrics().items()}
        return metrics | {"deterministic": self.config.run.eval_deterministic, "returns": evaluation.returns.tolist()}

    def _write(self, env_steps: int, metrics: Metrics) -> None:
        for sink in [*self.sinks, self.console]:
            sink.write(env_steps, self._wall_seconds(), metrics)

    def _write_config(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        checkpoints.write_json(self.run_dir / "config.json", {"algorithm": self.name, "config": to_json(self.config)})

    def _wall_seconds(self) -> float:
        return time.perf_counter() - self.wall_began

    def _cpu_seconds(self) -> float:
        return time.process_time() - self.cpu_began


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every


def new_run_dir(name: str, config: Any) -> Path:
    """The directory asked for, which must not hold a run; or runs/NAME-ENV-SEED, numbered if it is taken."""
    if config.run.run_dir is not None:
        path = Path(config.run.run_dir)
        require(not (path / "config.json").exists(), f"run_dir {path} already holds a run; go on with birl resume {path}, or name another")
        return path
    plain = f"{name}-{config.env.id.replace('/', '-').replace(':', '-')}-{config.run.seed}"
    taken = (Path("runs") / (plain if n == 1 else f"{plain}-{n}") for n in itertools.count(1))
    return next(path for path in taken if not path.exists())


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM that have come: the first is noted, the second stops at once. Only in the main thread."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            raise Interrupted(128 + number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
