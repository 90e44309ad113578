"""How the size of ACER's replay changes its learning on LunarLander-v3: a curve for each size.

    python benchmarks/acer_replay.py                sizes 0, 5,000 and 50,000, seeds 1 to 3
    python benchmarks/acer_replay.py --seeds 1 --total-steps 20000 --out /tmp/quick.png

The runs are a group in runs/acer-replay/; one that has ended is not repeated. The picture is
docs/images/acer-replay.png, and the table of final evaluations goes to RESULTS.md if nothing was
changed.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from results import RESULTS, machine, table, today, write_section

import birl
from birl.run.plot import plot_runs

ROOT = Path(__file__).resolve().parent.parent
SIZES = (0, 5_000, 50_000)
SEEDS = 3
TOTAL_STEPS = 1_000_000
PICTURE = ROOT / "docs/images/acer-replay.png"


def train(group: Path, sizes: list[int], seeds: int, total_steps: int) -> dict[str, Any]:
    """Train a group with each size of replay, or go on with it; its summary."""
    if group.exists():
        return birl.resume(group)
    settings = {"total_steps": total_steps, "run_dir": str(group)}
    return birl.train("acer", "LunarLander-v3", seeds=seeds, sweep={"replay_size": sizes}, **settings)


def row(point: dict[str, Any]) -> list[str]:
    each = ", ".join(f"{lane['return_mean']:.1f}" for lane in point["lanes"])
    return [f"{point['settings']['replay_size']:,}", f"{point['mean']:.1f}", each]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--total-steps", type=int, default=TOTAL_STEPS)
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    asked, where = (arguments.sizes, arguments.seeds, arguments.total_steps), machine()
    group = ROOT / "runs/acer-replay" / "-".join(map(str, [*arguments.sizes, *asked[1:]]))
    summary = train(group, *asked)
    if summary["failed"]:
        return 1
    body = table(["replay size", "mean return", "each seed"], [row(point) for point in summary["points"]])
    print(body, plot_runs([group], arguments.out), sep="\n")
    if len(arguments.sizes) > 1:
        print(*(pair.sentence for pair in birl.compare(group, all_pairs=True).pairs), sep="\n")
    if asked == (list(SIZES), SEEDS, TOTAL_STEPS):
        title = "## ACER on LunarLander-v3 with replays of several sizes"
        written = f"{today()}; {where}. `python benchmarks/acer_replay.py`"
        write_section(RESULTS, "acer-replay", f"{title}\n\n{body}\n\n{written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
