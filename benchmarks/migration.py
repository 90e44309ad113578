"""The script of docs/migrating-from-sb3.md in both libraries: do they reach the same returns?

    python benchmarks/migration.py              both halves of the page, seeds 1 to 3
    python benchmarks/migration.py --seeds 1    does it run? Prints, writes nothing

The blocks of the page are run as they stand, each seed in a directory of its own; only the line
SEED = 1 is changed. The last line that a script prints is its score. The table goes to RESULTS.md
with a digest of the blocks, and into the page and its Chinese twin.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers
from results import RESULTS, machine, table, today, write_section

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/migrating-from-sb3.md"
TWIN = ROOT / "docs/migrating-from-sb3.zh-CN.md"
SECTION = "migration"
SHARED, SB3, BIRL = "reach.py", "reach_sb3.py", "reach_birl.py"
SEEDS = 3
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # PyTorch's best for networks this small


def blocks(page: str) -> dict[str, str]:
    """The code of the page that has a file name, by that name."""
    found = re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return {name: code for name, code in found if name in (SHARED, SB3, BIRL)}


def digest(page: str) -> str:
    """A digest of the blocks that are measured."""
    code = blocks(page)
    return hashlib.sha256("\0".join(code[name] for name in (SHARED, SB3, BIRL)).encode()).hexdigest()[:16]


def run(python: Path, name: str, code: dict[str, str], seed: int) -> float:
    """The mean return that one script prints with this seed."""
    script, found = re.subn(r"^SEED = 1$", f"SEED = {seed}", code[name], flags=re.MULTILINE)
    if found != 1:
        raise ValueError(f"{name} has {found} lines SEED = 1; it needs exactly one")
    with tempfile.TemporaryDirectory() as folder:
        for file, text in {SHARED: code[SHARED], name: script}.items():
            (Path(folder) / file).write_text(text)
        command = [str(python), name]
        ended = subprocess.run(command, cwd=folder, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise RuntimeError(f"{name} with seed {seed} ended with exit code {ended.returncode}")
    return float(ended.stdout.strip().splitlines()[-1])


def row(name: str, scores: list[float]) -> list[str]:
    return [f"`{name}`", f"{np.mean(scores):.2f}", ", ".join(f"{score:.2f}" for score in scores)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    code, where = blocks(page), machine()
    pythons = {SB3: peers.ensure(), BIRL: Path(sys.executable)}
    scores: dict[str, list[float]] = {name: [] for name in pythons}
    for seed in range(1, arguments.seeds + 1):
        for name, python in pythons.items():
            scores[name].append(run(python, name, code, seed))
            print(f"{name}, seed {seed}: {scores[name][-1]:.2f}", flush=True)
    rows = [row(name, found) for name, found in scores.items()]
    header = ["script", "mean return", "each seed"]
    print(table(header, rows))
    if arguments.seeds == SEEDS:
        notes = f"{today()}; {where}; 20 episodes for each seed; digest of the page's blocks {digest(page)}."
        write_section(RESULTS, SECTION, f"## A script of SB3 and the same in Birl\n\n{table(header, rows)}\n\n{notes}")
        write_section(PAGE, SECTION, table(header, rows))
        write_section(TWIN, SECTION, table(["脚本", "平均回报", "各个种子"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
