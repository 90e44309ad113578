"""How the size of ACER's replay changes its learning on LunarLander-v3: a curve for each size.

    python benchmarks/acer_replay.py                sizes 0, 5,000 and 50,000, seeds 1 to 3
    python benchmarks/acer_replay.py --seeds 1 --total-steps 20000 --out /tmp/quick.png

Runs go to runs/acer-replay/; one that has ended is not repeated. The picture is
docs/images/acer-replay.png, and the table of final evaluations goes to RESULTS.md if nothing was
changed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from results import RESULTS, machine, table, today, write_section

from birl.run.plot import plot_runs

ROOT = Path(__file__).resolve().parent.parent
BIRL = Path(sys.executable).with_name("birl")
SIZES = (0, 5_000, 50_000)
SEEDS = 3
TOTAL_STEPS = 1_000_000
PICTURE = ROOT / "docs/images/acer-replay.png"


def train(size: int, seed: int, total_steps: int | None) -> Path:
    """The directory of a finished run with this size of replay."""
    name = f"{size}-seed{seed}" if total_steps is None else f"{size}-seed{seed}-{total_steps}"
    directory = ROOT / "runs/acer-replay" / name
    if not (directory / "summary.json").exists():
        words = [BIRL, "train", "acer", "LunarLander-v3", "--replay-size", size, "--seed", seed, "--run-dir", directory]
        words += ["--total-steps", total_steps or TOTAL_STEPS]
        subprocess.run([str(word) for word in words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return directory


def evaluation(directory: Path) -> float:
    return float(json.loads((directory / "summary.json").read_text())["evaluation"]["return_mean"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--total-steps", type=int, help=f"instead of {TOTAL_STEPS:,}")
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    where, rows, directories = machine(), [], []
    for size in arguments.sizes:
        runs = [train(size, seed, arguments.total_steps) for seed in range(1, arguments.seeds + 1)]
        scores = [evaluation(run) for run in runs]
        rows.append([f"{size:,}", f"{np.mean(scores):.1f}", ", ".join(f"{score:.1f}" for score in scores)])
        directories += runs
        print(table(["replay size", "mean return", "each seed"], rows[-1:]), flush=True)
    print(plot_runs(directories, arguments.out))
    if (tuple(arguments.sizes), arguments.seeds, arguments.total_steps) == (SIZES, SEEDS, None):
        body = table(["replay size", "mean return", "each seed"], rows)
        title = "## ACER on LunarLander-v3 with replays of several sizes"
        write_section(
            RESULTS, "acer-replay", f"{title}\n\n{body}\n\n{today()}; {where}. `python benchmarks/acer_replay.py`"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
