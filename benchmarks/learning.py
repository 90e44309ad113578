"""How well a preset learns: several seeds, their evaluations, and one row of RESULTS.md.

    python benchmarks/learning.py ppo CartPole-v1 --seeds 5
    python benchmarks/learning.py ppo CartPole-v1 --core lstm    other flags go to `birl train`
    python benchmarks/learning.py ppo CartPole-v1 --seeds 50 --ray 10.0.0.1:6379    on a cluster
    python benchmarks/learning.py a2c CartPole-v1 --section rmsprop    in a table of its own
    python benchmarks/learning.py ppo ALE/Pong-v5 --finished runs/pong    runs that have ended

The score is the interquartile mean over seeds of the final evaluation's mean return, with a 95 %
stratified bootstrap interval.
"""

import argparse
import contextlib
import io
import json
import os
import queue
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from results import RESULTS, machine, read_section, table, today, write_section

from birl.cli import main as birl_main
from birl.cli.train_options import training_config
from birl.maths.statistics import bootstrap_interval, iqm
from birl.workers.faults import Failure

ROOT = Path(__file__).resolve().parent.parent
BIRL = Path(sys.executable).with_name("birl")
HEADER = [
    "algorithm",
    "environment",
    "variant",
    "IQM",
    "95 % interval",
    "each seed",
    "env steps",
    "wall s a seed",
    "versions",
    "date",
]
KEY = 3  # the first columns of a row say which result it is
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True)
class Run:
    """One seed: its summary, or why there is none."""

    seed: int
    directory: Path
    summary: dict[str, Any] | None
    problem: str = ""

    @property
    def score(self) -> float | None:
        return None if self.summary is None else float(self.summary["evaluation"]["return_mean"])


def train_seed(seed: int, command: list[str], directory: Path, cores: "queue.Queue[int]") -> Run:
    """Train one seed on a core of its own; its console output goes to a file beside its run."""
    core = cores.get()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        log = directory.parent / f"{directory.name}.log"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--seed", str(seed), "--run-dir", str(directory.relative_to(ROOT))],
                env=os.environ | {"XLA_FLAGS": flags},
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            if sys.platform == "linux":
                os.sched_setaffinity(process.pid, {core})  # at once, before it has other threads; they inherit it
            code = process.wait()
        run = read_run(seed, directory, code, log)
        print(f"seed {seed}: {run.problem or f'{run.score:.1f}'}", file=sys.stderr, flush=True)
        return run
    finally:
        cores.put(core)


def read_run(seed: int, directory: Path, code: int, log: Path) -> Run:
    """The run's summary; a run that failed or left no usable summary is kept as a problem."""
    if code != 0:
        return Run(
            seed,
            directory,
            None,
            f"`birl train` ended with code {code}; see {os.path.relpath(log)}\n{log.read_text()[-2000:]}",
        )
    try:
        summary = json.loads((directory / "summary.json").read_text())
        run = Run(seed, directory, summary)
        if not np.isfinite(run.score):
            return Run(seed, directory, None, f"the evaluation's mean return is {run.score}")
    except (OSError, KeyError, TypeError, ValueError) as problem:
        return Run(seed, directory, None, f"no usable summary.json: {problem!r}; see {os.path.relpath(log)}")
    return run


def train_seeds(seeds: list[int], command: list[str], parent: Path, jobs: int) -> list[Run]:
    """All seeds, `jobs` at a time, each pinned to one core.

    Two runs that share the threads of two cores slow each other down.
    """
    available = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
    cores: queue.Queue[int] = queue.Queue()
    for job in range(jobs):
        cores.put(available[job % len(available)])
    train = partial(train_seed, command=command, cores=cores)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda seed: train(seed, directory=parent / f"seed-{seed}"), seeds))


def train_elsewhere(words: list[str]) -> tuple[int, str, dict[str, bytes]]:
    """Train in this process, which Ray has started.

    Returns the exit code, the console output and the run's files except its checkpoints.
    """
    output = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        run_dir = Path(scratch) / "run"
        try:
            code = birl_main([*words, "--run-dir", str(run_dir)])
        except BaseException as problem:  # also SystemExit
            traceback.print_exc()
            code = problem.code if isinstance(problem, SystemExit) and isinstance(problem.code, int) else 1
        files = {path.name: path.read_bytes() for path in run_dir.glob("*") if path.is_file()}
    return code, output.getvalue(), files


def train_on_ray(seeds: list[int], command: list[str], parent: Path, address: str | None, jobs: int) -> list[Run]:
    """All seeds on a Ray cluster, a processor each; what they wrote is brought here."""
    from birl.workers.ray import call_each  # which needs an extra

    runs: dict[int, Run] = {}
    words = [[*command[1:], "--seed", str(seed)] for seed in seeds]
    for index, answer in call_each(train_elsewhere, words, address, jobs):
        seed, directory = seeds[index], parent / f"seed-{seeds[index]}"
        if isinstance(answer, Failure):
            runs[index] = Run(seed, directory, None, f"{answer.reason}\n{answer.traceback}")
        else:
            code, output, files = answer
            directory.mkdir(parents=True)
            log = parent / f"{directory.name}.log"
            log.write_text(output)
            for name, content in files.items():
                (directory / name).write_bytes(content)
            runs[index] = read_run(seed, directory, code, log)
        print(f"seed {seed}: {runs[index].problem or f'{runs[index].score:.1f}'}", file=sys.stderr, flush=True)
    return [runs[index] for index in range(len(seeds))]


def finished_runs(directories: list[Path], algorithm: str, env: str, flags: list[str]) -> list[Run]:
    """These runs; one that has not ended is a problem.

    SystemExit if a run had other settings than `birl train` would give it.
    """
    wanted = asdict(training_config(algorithm, env, flags)[0])
    runs = []
    for directory in directories:
        stored = json.loads((directory / "config.json").read_text())
        config, steps = stored["config"], stored["config"]["run"]["total_steps"]
        same = stored["algorithm"] == algorithm and steps == wanted["run"]["total_steps"]
        # Compared as JSON, which has no tuples; settings of the run itself may differ.
        others = [name for name in wanted if name != "run" and json.loads(json.dumps(wanted[name])) != config.get(name)]
        if others or not same:
            different = ", ".join(others) or "algorithm or steps"
            sys.exit(f"{directory} is not a run of {algorithm} on {env} with these settings: {different}")
        runs.append(read_run(config["run"]["seed"], directory.resolve(), 0, directory / "summary.json"))
    if len({run.seed for run in runs}) < len(runs):
        sys.exit("two of these runs have the same seed")
    return runs


def result_row(algorithm: str, env: str, variant: str, runs: list[Run]) -> list[str]:
    """The cells of the table; no IQM if a seed failed, since the rest alone may look better."""
    scores = [run.score for run in runs]
    each = ", ".join("failed" if score is None else f"{score:.1f}" for score in scores)
    summaries = [run.summary for run in runs if run.summary is not None]
    middle = interval = "–"
    if None not in scores:
        low, high = bootstrap_interval(np.array(scores)[:, None])
        middle, interval = f"{iqm(np.array(scores)):.1f}", f"{low:.1f} to {high:.1f}"
    steps = "–" if not summaries else f"{max(summary['env_steps'] for summary in summaries):,}"
    wall = "–" if not summaries else f"{statistics.median(summary['wall_seconds'] for summary in summaries):,.0f}"
    versions = (
        "–"
        if not summaries
        else ", ".join(f"{name} {value}" for name, value in sorted(summaries[0]["versions"].items()))
    )
    return [algorithm, env, variant, middle, interval, each, steps, wall, versions, today()]


def write_row(path: Path, row: list[str], where: str, section: str = "learning") -> None:
    """Put the row into the section's table; it replaces the row of the same run."""
    lines = [line for line in read_section(path, section).splitlines() if line.startswith("| ")]
    # After the header and the line below it.
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]
    rows = sorted([*(old for old in rows if old[:KEY] != row[:KEY]), row], key=lambda cells: cells[:KEY])
    about = (
        "Mean return of the final, deterministic evaluation: interquartile mean over seeds with its 95 % "
        "stratified bootstrap interval, by "
        f"`python benchmarks/learning.py ALGORITHM ENVIRONMENT VARIANT`. Last row measured on: {where}."
    )
    title = "Learning" if section == "learning" else f"Learning: {section}"
    write_section(path, section, f"## {title}\n\n{about}\n\n{table(HEADER, rows)}")


def plot(runs: list[Run], out: Path) -> int:
    """Learning curves of the seeds as a PNG; the exit code of `birl plot`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [BIRL, "plot", *(str(run.directory) for run in runs if run.summary), "--out", str(out)]
    ).returncode


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    about = "Train seeds of a preset and record how well it learned; other flags go to `birl train`"
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)  # else --seed would be taken for --seeds
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    on_ray = "train on a Ray cluster: at this address, or on one of this machine"
    parser.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=on_ray)
    parser.add_argument(
        "--finished", type=Path, nargs="+", metavar="RUN_DIR", help="runs to score instead of training any"
    )
    parser.add_argument("--plot", type=Path, help="PNG to draw the learning curves into")
    parser.add_argument(
        "--section", default="learning", help="of the results: another one for comparisons, which READMEs do not show"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file whose learning table is updated")
    arguments, flags = parser.parse_known_args()
    if arguments.seeds < 1 or arguments.jobs < 1:
        parser.error(f"--seeds {arguments.seeds} and --jobs {arguments.jobs} must be at least 1")
    taken = [flag for flag in flags if flag.split("=")[0] in ("--seed", "--run-dir")]
    if taken:
        parser.error(f"{', '.join(taken)} is set for each run by this script; use --first-seed and --seeds")
    return arguments, flags


def main() -> int:
    """Train, score, write; 1 if a seed failed or the plot could not be drawn."""
    arguments, flags = parse_arguments()
    where, variant = machine(), " ".join(flags).replace("|", "/")
    name = (
        "-".join([arguments.algorithm, arguments.env, *(flag.strip("-") for flag in flags)])
        .replace("/", "-")
        .replace("=", "-")
    )
    parent = ROOT / "runs" / "learning" / name / time.strftime("%Y%m%d-%H%M%S")
    command = [str(BIRL), "train", arguments.algorithm, arguments.env, *flags]
    seeds = list(range(arguments.first_seed, arguments.first_seed + arguments.seeds))
    if arguments.finished:
        runs = finished_runs(arguments.finished, arguments.algorithm, arguments.env, flags)
    else:
        asked = shlex.join(["birl", *command[1:]])
        print(f"{asked}: seeds {seeds[0]} to {seeds[-1]} into {parent.relative_to(ROOT)}", file=sys.stderr, flush=True)
        if arguments.ray is None:
            runs = train_seeds(seeds, command, parent, arguments.jobs)
        else:
            runs = train_on_ray(seeds, command, parent, arguments.ray or None, arguments.jobs)

    row = result_row(arguments.algorithm, arguments.env, variant, runs)
    write_row(arguments.results, row, where, arguments.section)
    print(table(HEADER, [row]))
    failed = [run for run in runs if run.score is None]
    for run in failed:
        print(f"seed {run.seed} failed: {run.problem}", file=sys.stderr)
    drawn = plot(runs, arguments.plot) if arguments.plot and len(failed) < len(runs) else 0
    return 1 if failed or drawn != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
