"""Speed of this version of Birl against an earlier one, alternating in one run.

    python benchmarks/versions.py f15d23b --rows cartpole a2c lunarlander --rounds 6

The earlier version is checked out beside this one and runs in this one's venv. Its own
peer_scripts/birl_run.py starts it, since modules may have moved. A pair is one run of each; every
other pair begins with the earlier version.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from results import RESULTS, machine, table, today, write_section
from speed_rows import ROWS, Contender, Row, Settings

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 3600


def run(checkout: Path, settings: Settings, scratch: Path) -> float:
    """Environment steps per second of one process that runs the Birl in this checkout."""
    cache = scratch / f"cache-{checkout.name}"
    environment = os.environ | {"BIRL_CACHE_DIR": str(cache), "PYTHONPATH": str(checkout)}
    script = checkout / "benchmarks" / "peer_scripts" / "birl_run.py"
    command = [sys.executable, str(script), json.dumps(settings | {"spawned_at": time.time()})]
    ended = subprocess.run(
        command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if ended.returncode != 0:
        raise SystemExit(f"{script} ended with code {ended.returncode}:\n{ended.stderr[-3000:]}")
    rate = json.loads(ended.stdout.splitlines()[-1])["steps_per_second"]
    return math.nan if rate is None else float(rate)


def run_pairs(checkouts: list[Path], settings: Settings, rounds: int, scratch: Path) -> list[list[float]]:
    """Of each round, the rate of each checkout."""
    for checkout in checkouts:  # fills the compilation cache; any return ends the run
        run(checkout, settings | {"wanted_return": -math.inf, "rate_from": 0}, scratch)
    pairs = []
    for index in range(rounds):
        order = [0, 1] if index % 2 == 0 else [1, 0]
        rates = [0.0, 0.0]
        for which in order:
            rates[which] = run(checkouts[which], settings, scratch)
        pairs.append(rates)
        print(f"  round {index + 1} of {rounds}: {rates[1] / rates[0]:.3f}", file=sys.stderr, flush=True)
    return pairs


def table_row(title: str, contender: Contender, pairs: list[list[float]]) -> list[str]:
    before, after = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    ratios = sorted(late / early for early, late in pairs)
    each = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f}–{ratios[-1]:.3f})"
    return [f"{title}: {contender.name}", f"{before:,.0f}", f"{after:,.0f}", each]


def settings_of_row(checkout: Path, name: str) -> Settings:
    """The row's settings in this checkout; an earlier script may read some that are gone."""
    command = [sys.executable, "-c", f"import json, speed_rows; print(json.dumps(speed_rows.ROWS[{name!r}].settings))"]
    return json.loads(subprocess.check_output(command, cwd=checkout / "benchmarks", text=True))


def measure(row: Row, names: list[str], checkouts: list[Path], rounds: int, scratch: Path) -> list[list[str]]:
    """A line of the table for each Birl contender of the row."""
    lines = []
    for contender in row.contenders:
        if contender.script == "birl_run.py" and (not names or contender.name in names):
            print(f"{row.title}: {contender.name}", file=sys.stderr, flush=True)
            lines.append(
                table_row(
                    row.title, contender, run_pairs(checkouts, row.settings | contender.settings, rounds, scratch)
                )
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description="this version of Birl against an earlier one", allow_abbrev=False)
    parser.add_argument("revision", help="the earlier version, as git knows it")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=["cartpole", "a2c", "lunarlander"])
    parser.add_argument("--contenders", nargs="+", default=[], help="only these of a row, such as Birl; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write")
    arguments = parser.parse_args()
    names = [
        subprocess.check_output(["git", "rev-parse", "--short", name], cwd=ROOT, text=True).strip()
        for name in (arguments.revision, "HEAD")
    ]
    lines = []
    with tempfile.TemporaryDirectory(prefix="birl-versions-") as scratch:
        earlier = Path(scratch) / "earlier"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(earlier)], check=True)
        subprocess.run(["git", "checkout", "--quiet", names[0]], cwd=earlier, check=True)
        for name in arguments.rows:
            row = replace(ROWS[name], settings=settings_of_row(earlier, name) | ROWS[name].settings)
            lines += measure(row, arguments.contenders, [earlier, ROOT], arguments.rounds, Path(scratch))
    body = table(
        ["work", f"{names[0]}, steps per second", f"{names[1]}, steps per second", "ratio within a round"], lines
    )
    rounds = f"{arguments.rounds} alternating rounds: the median ratio, in brackets the smallest and largest"
    about = f"{today()}; {machine()}; {rounds}."
    text = f"## Speed against the version before\n\n{body}\n\n{about}"
    print(text)
    write_section(arguments.results, "versions", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
