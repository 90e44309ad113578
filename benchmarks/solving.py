"""What `birl solve` reaches in ten minutes on environments that have no preset.

    python benchmarks/solving.py                          all five, one after another
    python benchmarks/solving.py --only FrozenLake-v1 --minutes 1

Everything goes to runs/solving/; an environment that has a solution there is not repeated, and one
that was stopped goes on. With all of them and the usual time, the table goes to RESULTS.md and to
docs/solve.md with its Chinese twin.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import RESULTS, machine, table, today, write_section

ROOT = Path(__file__).resolve().parent.parent
MINUTES = 10.0
PAGES = {
    ROOT / "docs/solve.md": (
        "environment", "observations", "actions", "found", "return (95 %)", "at random", "solved at", "trials", "steps"
    ),
    ROOT / "docs/solve.zh-CN.md": (
        "环境", "观测", "动作", "找到", "回报（95 %）", "随机动作", "解决标准", "试验", "步数"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """An environment to solve."""

    env: str
    observations: str
    actions: str
    solved: str  # the return at which it counts as solved, and who says so
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.env.replace(":", "-").replace("/", "-")


TASKS = (
    Task("FrozenLake-v1", "Discrete(16)", "Discrete(4)", "0.70 (Gymnasium)"),
    Task("Taxi-v4", "Discrete(500)", "Discrete(6)", "8 (Gymnasium)"),
    Task("BipedalWalker-v3", "Box(24)", "Box(4)", "300 (Gymnasium)"),
    Task(
        "MiniGrid-DoorKey-5x5-v0",
        "Dict: image 7×7×3, direction",
        "Discrete(7)",
        "0.9",
        ("--ignore-observations", "mission"),
    ),
    Task("dict_environment:Dock-v0", "Dict: Box(4), Discrete(4), Box(1)", "Discrete(5)", "0.7"),
)


def solve(task: Task, minutes: float) -> dict[str, Any]:
    """The solution of a task."""
    name = task.name if minutes == MINUTES else f"{task.name}-{minutes:g}"
    directory = ROOT / "runs/solving" / name
    if not (directory / "solution.json").exists():
        words = [sys.executable, "-m", "birl", "solve", task.env, *task.options]
        words += ["--minutes", f"{minutes:g}", "--run-dir", str(directory)]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}
        code = subprocess.run(words, cwd=ROOT, env=variables, check=False).returncode
        if not (directory / "solution.json").exists():  # code 1 may also mean: nothing better than random
            raise SystemExit(f"birl solve {task.env} ended with code {code}")
    return json.loads((directory / "solution.json").read_text(encoding="utf-8"))


def row_of(task: Task, found: dict[str, Any]) -> list[str]:
    """A row of the table."""
    low, high = found["interval"]
    return [
        f"`{task.env}`",
        task.observations,
        task.actions,
        found["algorithm"] if found["better"] else f"{found['algorithm']}, not better than random",
        f"{found['score']:.2f} ({low:.2f} to {high:.2f})",
        f"{found['random_score']:.2f}",
        task.solved,
        str(found["trials"]),
        f"{found['env_steps']:,}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--only", nargs="+", choices=[task.env for task in TASKS], default=[])
    arguments = parser.parse_args()
    where = machine()
    chosen = [task for task in TASKS if not arguments.only or task.env in arguments.only]
    rows = [row_of(task, solve(task, arguments.minutes)) for task in chosen]
    bodies = {page: table(list(header), rows, text_columns=4) for page, header in PAGES.items()}
    english = next(iter(bodies.values()))
    print(english)
    if len(chosen) == len(TASKS) and arguments.minutes == MINUTES:
        for page, body in bodies.items():
            write_section(page, "solving", body)
        title = "## Environments without a preset, ten minutes each: birl solve"
        about = f"{today()}; {where}. `python benchmarks/solving.py`"
        write_section(RESULTS, "solving", f"{title}\n\n{english}\n\n{about}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
