"""The evidence queue: trains the rows of evidence_rows.py one after the other, most valuable first.

    python benchmarks/evidence.py --status        what is done, what is left, in hours
    python benchmarks/evidence.py --run           train until all is done or a signal comes
    python benchmarks/evidence.py --run --jobs 2  two seeds at a time

Training has the lowest priority, and a stopped queue continues where it was. Each finished seed
leaves a small file in benchmarks/evidence/, which is committed: another machine, or a clone, goes
on with the seeds that are missing. A row is put into RESULTS.md, and from there into the pages and
`birl list`, when all of its seeds are there. Seeds whose settings differ from those of today's
preset do not count and are trained again.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import readme
from evidence_rows import ROWS, EvidenceRow
from learning import HEADER, SeedScore, result_row, write_row
from results import RESULTS, machine, table, today, write_lines

from birl.cli.train_options import training_config
from birl.config import to_json
from birl.maths.curves import moving_mean
from birl.run.directory import GROUP
from birl.run.groups.group_plan import read_group
from birl.run.groups.lane import is_finished
from birl.run.history import BOOKKEEPING, comparable_settings, read_history

ROOT = Path(__file__).resolve().parent.parent
FINISHED = ROOT / "benchmarks" / "evidence"  # committed
RUNS = ROOT / "runs" / "evidence"  # not committed
POINTS = 20  # of the curve that is kept of a seed
LOOK_SECONDS = 5.0  # between two looks for seeds that have finished
LOWEST_PRIORITY = 19


def settings_of(row: EvidenceRow) -> dict[str, Any]:
    """The settings that this row trains with today, by dotted name."""
    config = to_json(training_config(row.algorithm, row.env, list(row.flags))[0])
    every = comparable_settings(row.algorithm, config)
    return {name: every[name] for name in sorted(every) if name not in BOOKKEEPING}


def finished_seeds(row: EvidenceRow, settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The finished seeds of a row, by number; none if they were trained with other settings.

    A setting that did not exist then has its default, which changes nothing.
    """
    kept = FINISHED / row.name
    if not (kept / "settings.json").exists():
        return {}
    before = json.loads((kept / "settings.json").read_text(encoding="utf-8"))
    if any(before[name] != settings[name] for name in before.keys() & settings.keys()):
        return {}
    found = [json.loads(path.read_text(encoding="utf-8")) for path in kept.glob("seed-*.json")]
    return {seed["seed"]: seed for seed in sorted(found, key=lambda seed: seed["seed"]) if seed["seed"] <= row.seeds}


def keep_seed(row: EvidenceRow, settings: dict[str, Any], run_dir: Path) -> None:
    """Write the small file of a seed that has finished."""
    kept = FINISHED / row.name
    if not finished_seeds(row, settings):
        shutil.rmtree(kept, ignore_errors=True)  # of other settings
        kept.mkdir(parents=True)
        write_lines(kept / "settings.json", settings)
    run = read_history(run_dir)
    assert run.summary is not None
    facts = {name: run.summary[name] for name in ("env_steps", "cpu_seconds", "wall_seconds", "versions", "machine")}
    evaluation = run.summary["evaluation"]
    seed = {"seed": run.seed, "score": evaluation["return_mean"], "episodes": evaluation["episodes"], "date": today()}
    write_lines(kept / f"seed-{run.seed}.json", seed | facts | {"curve": _curve(run)})


def _curve(run: Any) -> dict[str, list[float]]:
    """Steps, seconds and the mean return of training at so many places of a run."""
    steps, returns = run.curve("episode/return")
    clock_steps, seconds = run.curve("seconds")
    at = np.linspace(0, run.summary["env_steps"], POINTS + 1)[1:]
    columns = {
        "env_steps": at,
        "seconds": np.interp(at, clock_steps, seconds),
        "return": moving_mean(steps, returns, at.clip(steps[0], steps[-1]), run.summary["env_steps"] / POINTS),
    }
    return {name: [round(float(value), 2) for value in values] for name, values in columns.items()}


def write_result(row: EvidenceRow, seeds: dict[int, dict[str, Any]]) -> list[str]:
    """Put a whole row into RESULTS.md; its cells."""
    names = ("seed", "score", "env_steps", "wall_seconds", "versions")
    scores = [SeedScore(*(seed[name] for name in names)) for seed in seeds.values()]
    cells = result_row(row.algorithm, row.env, row.variant, scores)
    write_row(RESULTS, cells, machine())
    return cells


def missing_seeds(row: EvidenceRow, done: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last of the first consecutive seeds that are missing; None if none is."""
    missing = [seed for seed in range(1, row.seeds + 1) if seed not in done]
    if not missing:
        return None
    first = missing[0]
    return first, next(seed for seed in range(first, row.seeds + 1) if seed + 1 not in missing)


def group_directory(row: EvidenceRow, settings: dict[str, Any], first: int, last: int) -> Path:
    """Where these seeds train: one that was begun before and holds them all, or else a new one."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    folder = RUNS / f"{row.name}-{digest}"
    for begun in sorted(folder.glob("*/" + GROUP)):
        if set(range(first, last + 1)) <= {lane.seed for lane in read_group(begun.parent).lanes}:
            return begun.parent
    return folder / f"seeds-{first}-{last}"


def train_words(row: EvidenceRow, directory: Path, first: int, last: int, jobs: int) -> list[str]:
    """The words after `birl` that begin or continue the training of these seeds."""
    if (directory / GROUP).exists():
        return ["resume", str(directory), "--jobs", str(jobs)]
    seeds = ["--seed", str(first), "--seeds", str(last - first + 1), "--jobs", str(jobs)]
    return ["train", row.algorithm, row.env, *row.flags, *seeds, "--run-dir", str(directory)]


class Queue:
    """Trains rows until none is left or a signal comes."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.stop = threading.Event()
        self.code = 0

    def run(self, rows: Sequence[EvidenceRow] = ROWS) -> int:
        """0, 1 if a row failed, or 128 plus the number of the signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        os.nice(LOWEST_PRIORITY)
        for row in rows:
            self._finish(row)
            if self.stop.is_set():
                break
        return self.code

    def _stop(self, number: int, frame: Any) -> None:
        self.code = 128 + number
        self.stop.set()

    def _finish(self, row: EvidenceRow) -> None:
        """Train the seeds of a row that are missing, and write its result."""
        settings = settings_of(row)
        done = finished_seeds(row, settings)
        if len(done) == row.seeds:
            return
        while (missing := missing_seeds(row, list(done))) is not None and not self.stop.is_set():
            directory = group_directory(row, settings, *missing)
            print(f"{row.name}: seeds {missing[0]} to {missing[1]} in {directory.relative_to(ROOT)}", flush=True)
            self._train(row, settings, directory, train_words(row, directory, *missing, self.jobs))
            before, done = done, finished_seeds(row, settings)
            if len(done) == len(before) and not self.stop.is_set():
                print(f"{row.name}: no seed finished; see {directory}", flush=True)
                self.code = 1
                return
        if len(done) == row.seeds:
            print(table(HEADER, [write_result(row, done)]), flush=True)
            readme.main()

    def _train(self, row: EvidenceRow, settings: dict[str, Any], directory: Path, words: list[str]) -> None:
        """Run a command of Birl, keep each seed as it finishes, and pass on a signal."""
        # A session of its own: Ctrl-C would reach it twice, and the second signal stops at once.
        training = subprocess.Popen([sys.executable, "-m", "birl", *words], start_new_session=True)
        give_way(training.pid)
        told = False
        while training.poll() is None:
            if self.stop.is_set() and not told:
                training.send_signal(signal.SIGTERM)
                told = True
            with suppress(subprocess.TimeoutExpired):
                training.wait(0.2 if told else LOOK_SECONDS)
            self._keep(row, settings, directory)
        self._keep(row, settings, directory)

    def _keep(self, row: EvidenceRow, settings: dict[str, Any], directory: Path) -> None:
        lanes = read_group(directory).lanes if (directory / GROUP).exists() else []
        for lane in lanes:
            if is_finished(lane.run_dir) and lane.seed not in finished_seeds(row, settings):
                keep_seed(row, settings, lane.run_dir)


def give_way(process: int) -> None:
    """The lowest priority for a session on Linux, which shares cores between sessions, whatever
    `nice` says.
    """
    with suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(str(LOWEST_PRIORITY))


def status(rows: Sequence[EvidenceRow] = ROWS) -> str:
    """A table of all rows: seeds finished, and the CPU hours done and left."""
    cells, totals = [], [0.0, 0.0]
    for row in rows:
        seeds = finished_seeds(row, settings_of(row))
        used = [seed["cpu_seconds"] / 3600 for seed in seeds.values()]
        each = statistics.median(used) if used else row.minutes / 60
        hours = [sum(used), each * (row.seeds - len(used))]
        totals = [total + more for total, more in zip(totals, hours, strict=True)]
        state = "done" if len(used) == row.seeds else "begun" if _is_begun(row) or used else "waiting"
        task = [row.algorithm, row.env, row.variant, state, f"{len(used)} of {row.seeds}"]
        cells.append([*task, *(f"{hour:.2f}" for hour in hours), row.compared_with])
    header = ["algorithm", "environment", "variant", "state", "seeds", "CPU hours", "hours left", "compared with"]
    return f"{table(header, cells, 3)}\n\n{totals[0]:.1f} CPU hours done, {totals[1]:.1f} left"


def _is_begun(row: EvidenceRow) -> bool:
    return any(RUNS.glob(f"{row.name}-????????/*/{GROUP}"))


def main() -> int:
    parser = argparse.ArgumentParser(description="The evidence queue", allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", action="store_true", help="train until all is done or a signal comes")
    what.add_argument("--status", action="store_true", help="what is done and what is left")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, one thread each")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs} must be at least 1")
    if arguments.status:
        print(status())
        return 0
    return Queue(arguments.jobs).run()


if __name__ == "__main__":
    sys.exit(main())
