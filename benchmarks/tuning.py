"""What a search for settings finds, and what halving saves.

    python benchmarks/tuning.py winner ppo LunarLander-v3 --total-steps 200000 --minutes 20
    python benchmarks/tuning.py winner dqn Acrobot-v1 --minutes 20
    python benchmarks/tuning.py halving ppo LunarLander-v3 --total-steps 200000 --trials 27

`winner` searches around the defaults and compares the winner with them on fresh seeds. `halving`
searches at random twice, with the same trials and seeds: once with halving, once with every trial
trained to the end. Searches are in runs/tuning/; one that was stopped is continued, and one that is
over is not repeated. The rows go to RESULTS.md.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from results import RESULTS, machine, read_section, table, today, write_section

import birl
from birl.lab.tuning.journal import Journal, SearchState
from birl.lab.tuning.plan import read_plan

ROOT = Path(__file__).resolve().parent.parent
WINNER = [
    "task", "IQM of the winner", "IQM of the defaults", "compared", "score in the search", "trials", "env steps",
    "minutes",
]  # fmt: skip
HALVING = [
    "task", "search", "trials", "best score", "env steps to random's best", "of random's steps to it",
    "env steps of the whole search", "of random's whole search", "minutes",
]  # fmt: skip
TITLES = {
    "winner": "## Settings found by `birl tune`, on seeds that the search has not seen",
    "halving": "## Searches with the same trials, with and without halving",
}


class Reached(NamedTuple):
    """A search: its best fully trained trial, and what it took."""

    best: float
    env_steps: int  # of the whole search
    first: int | None  # until a trial first had the target; None: none has


def search(directory: Path, task: tuple[str, str], options: dict[str, Any]) -> dict[str, Any]:
    """Search, or go on with it; the result."""
    if (directory / "result.json").exists():
        found: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return found
    return birl.tune(*task, run_dir=directory, preset=False, **options)


def reached(directory: Path, target: float | None = None) -> Reached:
    """What the journal of a search says; the target is by default the best score itself."""
    state = SearchState(read_plan(directory)[0])
    seen: list[tuple[int, float]] = []  # environment steps so far, best score of a trial trained to the end
    for event in Journal(directory).read():
        state.add([event])
        scores = [score for trial in state.trials if (score := trial.score(state.plan.last_rung)) is not None]
        if event["event"] == "done" and scores and state.winner is None:
            seen.append((state.env_steps(), max(scores)))
    best = seen[-1][1]
    goal = best if target is None else target
    return Reached(best, state.env_steps(), next((steps for steps, score in seen if score >= goal), None))


def winner_rows(name: str, directory: Path, task: tuple[str, str], options: dict[str, Any]) -> list[list[str]]:
    """The winner of a search, beside the defaults."""
    result = search(directory, task, options)
    trials, steps = str(len(result["trials"])), f"{result['env_steps']:,}"
    verdict = result["comparison"]["sentence"] if result["comparison"] else "the defaults won"
    score = f"{result['search_score']:.1f}"
    minutes = f"{result['seconds'] / 60:.0f}"
    return [[name, interval(result["fresh"]), interval(result["default"]), verdict, score, trials, steps, minutes]]


def halving_rows(name: str, directory: Path, task: tuple[str, str], options: dict[str, Any]) -> list[list[str]]:
    """The same trials with and without halving, and the steps to the best score without."""
    kinds = {"halving": 3, "random": 1}
    given = options | {"sampler": "random", "final_seeds": 0}
    results = {kind: search(directory / kind, task, given | {"rungs": rungs}) for kind, rungs in kinds.items()}
    target = reached(directory / "random").best
    found = {kind: reached(directory / kind, target) for kind in kinds}
    return [
        [name, kind, str(len(results[kind]["trials"])), *halving_cells(one, found["random"]),
         f"{results[kind]['seconds'] / 60:.0f}"]
        for kind, one in found.items()
    ]  # fmt: skip


def halving_cells(one: Reached, random: Reached) -> list[str]:
    """Best score, steps to random's best and of the whole search, each also as a share of random's.

    A search that ends below random's best score has not reached it, however few steps it took.
    """
    to_best = ["not reached", ""]
    if one.first is not None and random.first is not None:
        to_best = [f"{one.first:,}", f"{one.first / random.first:.0%}"]
    return [f"{one.best:.1f}", *to_best, f"{one.env_steps:,}", f"{one.env_steps / random.env_steps:.0%}"]


def interval(scores: dict[str, Any] | None) -> str:
    if scores is None or scores["iqm"] is None:
        return ""
    low, high = scores["interval"] or (scores["iqm"], scores["iqm"])
    return f"{scores['iqm']:.1f} ({low:.1f} to {high:.1f})"


def merged(name: str, kind: str, rows: list[list[str]]) -> list[list[str]]:
    """The rows of RESULTS.md, with these in place of the task's own."""
    lines = [line for line in read_section(RESULTS, f"tuning-{kind}").splitlines() if line.startswith("| ")]
    kept = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return sorted([*(row for row in kept if row[0] != name), *rows], key=lambda row: row[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["winner", "halving"])
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--total-steps", type=int, default=100_000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--final-seeds", type=int, default=5)
    parser.add_argument("--search-seed", type=int, default=0)
    parser.add_argument("--search", action="append", default=[])
    parser.add_argument("--fix", action="append", default=[])
    parser.add_argument("--dry", action="store_true", help="write nothing to RESULTS.md")
    given = vars(parser.parse_args())
    where = machine()
    kind, dry, task = given.pop("kind"), given.pop("dry"), (given.pop("algorithm"), given.pop("env"))
    name = f"{task[0]} {task[1]}, {given['total_steps']:,} steps"
    directory = ROOT / "runs/tuning" / "-".join([kind, *task, str(given["total_steps"])]).replace("/", "-")
    rows = (winner_rows if kind == "winner" else halving_rows)(name, directory, task, given)
    header = WINNER if kind == "winner" else HALVING
    body = table(header, rows if dry else merged(name, kind, rows), 2)
    print(body)
    if not dry:
        written = f"Last row measured on {where}, {today()}, by `python benchmarks/tuning.py {kind} ...`"
        write_section(RESULTS, f"tuning-{kind}", f"{TITLES[kind]}\n\n{written}\n\n{body}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
