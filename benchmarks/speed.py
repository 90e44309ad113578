"""Speed of Birl and its peers: the same environment and settings, alternating in one run.

    python benchmarks/speed.py                        everything; about half an hour
    python benchmarks/speed.py --rows cartpole --rounds 5
    python benchmarks/speed.py --quick                does it run? writes nothing

Every contender is a process of its own (peer_scripts/), started again in every round, and times
itself. This file uses the standard library alone: a child's peak memory begins at its parent's, so
the parent must be small.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import peers
from results import RESULTS, machine, read_section, table, today, write_section
from speed_rows import ROWS, Contender, Row, Settings, Wanted

SCRIPTS = Path(__file__).resolve().parent / "peer_scripts"
TIMEOUT_SECONDS = 3600
MAKERS = (
    "Peers step the single environments of `make_vec_env`; Birl what it makes by default, "
    "for CartPole Gymnasium's vector one."
)
QUICK = "\n--quick: one round of a few updates; these figures show that it runs, and nothing else\n"

Report = dict[str, Any]
Rounds = list[dict[str, Report]]  # of each round, the report of each contender
Measure = Callable[[str, int, str, Path], str]


class Section(NamedTuple):
    """A section of RESULTS.md with a part for each row."""

    name: str
    title: str
    rows: tuple[str, ...]


class ContenderError(RuntimeError):
    """A contender ended without a report."""


def run_row(row: Row, rounds: int, scratch: Path) -> Rounds:
    """The reports of all rounds. Contenders alternate, and each round begins with another one."""
    warm_up(row, scratch)
    reports: Rounds = []
    for index in range(rounds):
        first = index % len(row.contenders)
        seed = row.settings["seed"] + (index if row.seeds_differ else 0)
        reports.append({})
        for contender in row.contenders[first:] + row.contenders[:first]:
            report = run(contender, row.settings | {"seed": seed}, scratch)
            reports[-1][contender.name] = report
            print(
                f"  round {index + 1} of {rounds}, {contender.name}: {summarise(report)}", file=sys.stderr, flush=True
            )
    return reports


def warm_up(row: Row, scratch: Path) -> None:
    """One short, unmeasured run of each contender that uses the cache, with another seed."""
    for contender in row.contenders:
        if contender.needs_warm_up:
            # Any return ends it; total_steps stays, since compiled schedules depend on it.
            run(contender, row.settings | {"seed": row.settings["seed"] - 1, "wanted_return": -math.inf}, scratch)


def run(contender: Contender, settings: Settings, scratch: Path) -> Report:
    """One process of a contender, from start to end."""
    cache = tempfile.mkdtemp(dir=scratch) if contender.empty_cache else scratch / "warm"
    python = Path(sys.executable) if contender.venv == "birl" else peers.ensure(contender.venv)
    environment = os.environ | {"BIRL_CACHE_DIR": str(cache)}
    request = json.dumps(settings | contender.settings | {"spawned_at": time.time()})
    command = [str(python), str(SCRIPTS / contender.script), request]
    ended = subprocess.run(
        command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if ended.returncode != 0 or not ended.stdout.strip():
        raise ContenderError(f"{contender.name} ended with code {ended.returncode}:\n{ended.stderr[-3000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def summarise(report: Report) -> str:
    reached = (
        f", return reached at {report['seconds_to_return']:.1f} s" if report["seconds_to_return"] is not None else ""
    )
    rate = number(quantity(report, "steps_per_second"))
    return f"{rate} steps per second, {report['seconds_total']:.1f} s in all{reached}"


def quantity(report: Report, name: str) -> float:
    """A figure of a report: infinite if it was never reached, NaN if a rate could not be taken."""
    value = report[name]
    if value is None:
        return math.inf if name.endswith("_to_return") else math.nan
    return float(value)


def median(rounds: Rounds, contender: str, name: str) -> float:
    return statistics.median(quantity(reports[contender], name) for reports in rounds)


def ratio(rounds: Rounds, contender: str, against: str, name: str) -> tuple[float, float, float]:
    """Ratio of the medians, then the smallest and largest ratio within a round."""
    each = [divide(quantity(reports[contender], name), quantity(reports[against], name)) for reports in rounds]
    return divide(median(rounds, contender, name), median(rounds, against, name)), min(each), max(each)


def divide(numerator: float, denominator: float) -> float:
    """The ratio; NaN if the other never got there, since a ratio of 0 would look like a win."""
    return numerator / denominator if math.isfinite(denominator) else math.nan


def number(value: float) -> str:
    if not math.isfinite(value):
        return "not reached" if math.isinf(value) else "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def ratio_text(rounds: Rounds, contender: str, against: str, name: str) -> str:
    middle, low, high = ratio(rounds, contender, against, name)
    # A round without a ratio shows as nan or inf.
    return f"{middle:.2f} ({low:.2f}–{high:.2f})" if math.isfinite(middle) else "–"


def rate_table(row: Row, rounds: Rounds) -> str:
    """Environment steps per second once compiled, beside each peer and the environments alone."""
    with_ceiling = any(contender.ceiling for contender in row.contenders)
    rivals = [contender.name for contender in row.contenders if contender.is_rival]
    header = [
        "contender",
        "steps per second",
        *[f"times {rival}" for rival in rivals],
        *(["share of environments alone"] if with_ceiling else []),
        "first update, s",
        "process, s",
        "peak MB",
    ]
    lines = []
    for contender in row.contenders:
        share = ratio_text(rounds, contender.name, contender.ceiling, "steps_per_second") if contender.ceiling else ""
        # Environments alone are compared with peers only in rows where nobody learns.
        trains = contender.script != "birl_envs.py" or any(other.rival for other in row.contenders)
        times = [ratio_text(rounds, contender.name, rival, "steps_per_second") if trains else "" for rival in rivals]
        figures = [
            number(median(rounds, contender.name, name))
            for name in ("steps_per_second", "seconds_to_first_update", "seconds_total", "peak_rss_mb")
        ]
        lines.append([contender.name, figures[0], *times, *([share] if with_ceiling else []), *figures[1:]])
    return table(header, lines)


def start_table(row: Row, rounds: Rounds) -> str:
    """Wall time from process start to what the row measures, with the time of each round.

    With a wanted return, each round is another seed, and steps are shown, too.
    """
    to_return = row.measured == "seconds_to_return"
    rivals = [contender.name for contender in row.contenders if contender.is_rival]
    each_round, steps = ("each seed, s", ["steps"]) if to_return else ("each round, s", [])
    header = ["contender", "seconds", *[f"of {rival}'s time" for rival in rivals], each_round, *steps, "peak MB"]
    lines = []
    for contender in row.contenders:
        of_time = [ratio_text(rounds, contender.name, rival, row.measured) for rival in rivals]
        each = ", ".join(number(quantity(reports[contender.name], row.measured)) for reports in rounds)
        shown = (row.measured, *(["steps_to_return"] if to_return else []), "peak_rss_mb")
        figures = [number(median(rounds, contender.name, name)) for name in shown]
        lines.append([contender.name, figures[0], *of_time, each, *figures[1:]])
    return table(header, lines)


def verdict(wanted: Wanted, rounds: Rounds) -> str:
    """One line: what was asked, what was measured."""
    unit = wanted.quantity.replace("_", " ").replace("peak rss mb", "MB at the peak")
    if wanted.against is None:
        measured, ask = median(rounds, wanted.contender, wanted.quantity), f"at most {wanted.limit:g} {unit}"
    else:
        measured = ratio(rounds, wanted.contender, wanted.against, wanted.quantity)[0]
        bound = "least" if wanted.quantity == "steps_per_second" else "most"
        ask = f"at {bound} {wanted.limit:g} times {wanted.against}'s {unit}"
    met = measured >= wanted.limit if wanted.quantity == "steps_per_second" else measured <= wanted.limit
    outcome = (
        "**no comparison**"
        if math.isnan(measured)
        else f"measured {measured:.4g}: {'reached' if met else '**not reached**'}"
    )
    return f"- wanted of {wanted.contender}: {ask}; {outcome}"


def describe(row: Row, rounds: Rounds, where: str, notes: str) -> str:
    """The row's part of RESULTS.md."""
    body = rate_table(row, rounds) if row.measured == "steps_per_second" else start_table(row, rounds)
    verdicts = "\n".join(verdict(wanted, rounds) for wanted in row.wanted)
    brackets = "in brackets the smallest and largest ratio within a round"
    about = f"{today()}; {where}; medians of {len(rounds)} alternating rounds, {brackets}"
    packages = ", ".join(
        sorted({f"{key} {value}" for report in rounds[0].values() for key, value in report["versions"].items()})
    )
    command = f"`python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}`"
    return f"### {row.title}\n\n{body}\n\n{verdicts}\n\n{about}. {notes} {packages}. {command}"


def write_row(path: Path, section: Section, name: str, text: str) -> None:
    """Replace one row of a section; the rows not run now stay as they are."""
    if not read_section(path, section.name):
        marked = [f"{section.name}/{row}" for row in section.rows]
        places = "\n\n".join(f"<!-- {place}:begin -->\n\n<!-- {place}:end -->" for place in marked)
        write_section(path, section.name, f"{section.title}\n\n{places}")
    write_section(path, f"{section.name}/{name}", text)


def make_parser(description: str, section: Section) -> argparse.ArgumentParser:
    """A parser of the options that every script with rows has."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--rows", nargs="+", choices=section.rows, default=list(section.rows))
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds over all contenders; where a return is waited for, another seed"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of a few updates, printed and not written: does it run?"
    )
    parser.add_argument("--results", type=Path, help="file to write instead of benchmarks/RESULTS.md")
    return parser


def read_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of this process, checked."""
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds} measures nothing; use 1 or more, 3 for a result worth quoting")
    return arguments


def measure_rows(arguments: argparse.Namespace, section: Section, measure: Measure) -> int:
    """Run the rows and write them; returns 1 if one was not finished, whose old result is kept.

    `measure` returns a row's text, given its name, how many rounds, the machine, and a folder.
    """
    path = arguments.results or (None if arguments.quick else RESULTS)
    where, failed = machine(), []
    print(f"{shlex.join(sys.argv)} on {where}", file=sys.stderr, flush=True)
    for name in [row for row in section.rows if row in arguments.rows]:
        print(name, file=sys.stderr, flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="birl-speed-") as scratch:
                text = measure(name, 1 if arguments.quick else arguments.rounds, where, Path(scratch))
        except (ContenderError, subprocess.SubprocessError) as problem:
            print(f"{name} was not finished: {problem}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        print(f"{text}\n{QUICK if arguments.quick else ''}", flush=True)
        if path is not None:
            write_row(path, section, name, text)
    if failed:
        print(f"not finished: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    """Run the rows of speed_rows.py."""
    section = Section("speed", "## Speed", tuple(ROWS))
    parser = make_parser("Birl and its peers, timed side by side", section)
    parser.add_argument(
        "--threads", type=int, default=1, help="PyTorch threads of the peers; one is their best for small networks"
    )
    arguments = read_arguments(parser)

    def measure(name: str, rounds: int, where: str, scratch: Path) -> str:
        row = ROWS[name]
        steps = row.quick_steps if arguments.quick else row.settings["total_steps"]
        row = replace(row, settings=row.settings | {"threads": arguments.threads, "total_steps": steps})
        return describe(row, run_row(row, rounds, scratch), where, MAKERS)

    return measure_rows(arguments, section, measure)


if __name__ == "__main__":
    sys.exit(main())
