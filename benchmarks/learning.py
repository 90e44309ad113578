"""How well a preset learns: a group of seeds, and one row of RESULTS.md.

    python benchmarks/learning.py ppo CartPole-v1 --seeds 5
    python benchmarks/learning.py ppo CartPole-v1 --core lstm    other flags go to `birl train`
    python benchmarks/learning.py ppo CartPole-v1 --seeds 50 --ray 10.0.0.1:6379    on a cluster
    python benchmarks/learning.py a2c CartPole-v1 --section rmsprop    in a table of its own
    python benchmarks/learning.py ppo ALE/Pong-v5 --finished runs/pong    runs that have ended

The score is that of `birl train --seeds`: the interquartile mean over seeds of the final
evaluation's mean return, with a 95 % stratified bootstrap interval.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results import RESULTS, machine, read_section, table, today, write_section

from birl.cli import main as birl_main
from birl.cli.train_options import training_config
from birl.config import to_json
from birl.run.groups.group_results import score_statistics
from birl.run.history import BOOKKEEPING, RunHistory, comparable_settings, differing, read_histories
from birl.run.plot import plot_runs

ROOT = Path(__file__).resolve().parent.parent
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
NONE = "–"
OWN = ("--seed", "--run-dir", "--ray-address", "--sweep")  # of `birl train`, not for a row


def train_seeds(arguments: argparse.Namespace, flags: list[str]) -> list[RunHistory]:
    """The runs of a new group of seeds; SystemExit if `birl train` refuses or is stopped."""
    name = "-".join([arguments.algorithm, arguments.env, *(flag.strip("-") for flag in flags)])
    group = ROOT / "runs" / "learning" / name.replace("/", "-").replace("=", "-") / time.strftime("%Y%m%d-%H%M%S")
    words = ["train", arguments.algorithm, arguments.env, *flags, "--seed", arguments.first_seed]
    words += ["--seeds", arguments.seeds, "--jobs", arguments.jobs, "--run-dir", group]
    words += ["--ray-address", arguments.ray] if arguments.ray is not None else []
    code = birl_main(list(map(str, words)))
    if not (group / "summary.json").exists():  # it was refused or stopped; a seed that failed is shown by its row
        sys.exit(code)
    return read_histories(group)


def finished_runs(directories: list[Path], algorithm: str, env: str, flags: list[str]) -> list[RunHistory]:
    """The runs in these directories and groups.

    SystemExit if a run had other settings than `birl train` would give it.
    """
    wanted = comparable_settings(algorithm, to_json(training_config(algorithm, env, flags)[0]))
    runs = [run for directory in directories for run in read_histories(directory)]
    for run in runs:
        others = [name for name in differing([wanted, run.settings]) if name not in BOOKKEEPING]
        if others:
            sys.exit(f"{run.run_dir} is not a run of {algorithm} on {env} with these settings: {', '.join(others)}")
    if len({run.seed for run in runs}) < len(runs):
        sys.exit("two of these runs have the same seed")
    return runs


def score_of(run: RunHistory) -> float | None:
    """The mean return of a run's final evaluation; None if it has not ended."""
    evaluation = run.summary["evaluation"] if run.summary is not None else None
    return None if evaluation is None else float(evaluation["return_mean"])


class SeedScore(NamedTuple):
    """What a row takes from the run of one seed; the run has not ended if there is no score."""

    seed: int
    score: float | None
    env_steps: int
    wall_seconds: float
    versions: dict[str, str]


def seed_score(run: RunHistory) -> SeedScore:
    """The score of a run, and what it cost."""
    summary: dict[str, Any] = run.summary or {"env_steps": 0, "wall_seconds": 0.0, "versions": {}}
    return SeedScore(run.seed, score_of(run), *(summary[name] for name in ("env_steps", "wall_seconds", "versions")))


def result_row(algorithm: str, env: str, variant: str, seeds: Sequence[SeedScore]) -> list[str]:
    """The cells of the table; no IQM if a seed failed, since the rest alone may look better."""
    scores = {str(seed.seed): seed.score for seed in sorted(seeds, key=lambda seed: seed.seed)}
    each = ", ".join("failed" if score is None else f"{score:.1f}" for score in scores.values())
    over_seeds = score_statistics({} if None in scores.values() else scores)
    middle = NONE if over_seeds["iqm"] is None else f"{over_seeds['iqm']:.1f}"
    interval = NONE if over_seeds["interval"] is None else "{:.1f} to {:.1f}".format(*over_seeds["interval"])
    ended = [seed for seed in seeds if seed.score is not None]
    steps = wall = versions = NONE
    if ended:
        steps = f"{max(seed.env_steps for seed in ended):,}"
        wall = f"{statistics.median(seed.wall_seconds for seed in ended):,.0f}"
        versions = ", ".join(f"{name} {value}" for name, value in sorted(ended[0].versions.items()))
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


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    about = "Train seeds of a preset and record how well it learned; other flags go to `birl train`"
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)  # else --seed would be taken for --seeds
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    on_ray = "train on a Ray cluster: at this address, or on one of this machine"
    parser.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=on_ray)
    finished = "runs or groups to score instead of training any"
    parser.add_argument("--finished", type=Path, nargs="+", metavar="RUN_DIR", help=finished)
    parser.add_argument("--plot", type=Path, help="PNG to draw the learning curves into")
    section = "of the results: another one for comparisons, which READMEs do not show"
    parser.add_argument("--section", default="learning", help=section)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file whose learning table is updated")
    arguments, flags = parser.parse_known_args()
    taken = [flag for flag in flags if flag.split("=")[0] in OWN]
    if taken:
        parser.error(f"{', '.join(taken)} is not for a row of seeds; use --first-seed, --seeds and --ray")
    return arguments, flags


def main() -> int:
    """Train, score, write; 1 if a seed failed."""
    arguments, flags = parse_arguments()
    where, task = machine(), (arguments.algorithm, arguments.env)
    runs = finished_runs(arguments.finished, *task, flags) if arguments.finished else train_seeds(arguments, flags)
    row = result_row(*task, " ".join(flags).replace("|", "/"), [seed_score(run) for run in runs])
    write_row(arguments.results, row, where, arguments.section)
    print(table(HEADER, [row]))
    ended = [run.run_dir for run in runs if run.summary is not None]
    if arguments.plot and ended:
        print(plot_runs(ended, arguments.plot))
    return 0 if all(score_of(run) is not None for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
