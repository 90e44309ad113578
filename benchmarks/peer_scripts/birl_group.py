"""`birl train --seeds N`, measured from outside. Runs in Birl's venv.

A group's processes start, compile and evaluate, too. So two groups are trained that differ only in
`total_steps`: the rate is the additional steps of all lanes over the additional seconds. With a
`wanted_return` only the short one is trained, which fills the compilation cache.
"""

import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from birl_settings import words_of
from measure import read_settings

SAMPLE_SECONDS = 0.2  # between two looks at the memory
PACKAGES = ("birl", "jax", "equinox", "optax", "gymnasium", "numpy")
# Nothing that the other contender does not do: one evaluation episode is the fewest.
QUIET = ("--checkpoint-every", "0", "--eval-episodes", "1")


class Group(NamedTuple):
    """A finished group."""

    env_steps: int  # of all lanes
    seconds: float
    peak_rss_mb: float  # of all its processes together
    first_update: float | None  # the clock when the first lane had written metrics


def train(settings: dict[str, Any], total_steps: int) -> Group:
    """Train a group of `lanes` seeds, `total_steps` each."""
    with tempfile.TemporaryDirectory() as folder:
        group = Path(folder) / "group"
        words = [*words_of(settings, total_steps), "--seeds", str(settings["lanes"]), "--run-dir", str(group), *QUIET]
        started, peak, first_update = time.time(), 0.0, None
        with open(Path(folder) / "output", "w+") as output:
            process = subprocess.Popen([sys.executable, "-m", "birl", "train", *words], stdout=output, stderr=output)
            while process.poll() is None:
                peak = max(peak, rss_mb_of_tree(process.pid))
                if first_update is None and any(file.stat().st_size for file in group.glob("**/metrics.jsonl")):
                    first_update = time.time()
                time.sleep(SAMPLE_SECONDS)
            ended = time.time()
            output.seek(0)
            if process.returncode != 0:
                raise SystemExit(f"birl train ended with code {process.returncode}:\n{output.read()[-3000:]}")
        return Group(steps_of(group), ended - started, peak, first_update)


def steps_of(group: Path) -> int:
    """The environment steps of all lanes."""
    points = json.loads((group / "summary.json").read_text())["points"]
    return sum(lane["env_steps"] for point in points for lane in point["lanes"])


def rss_mb_of_tree(pid: int) -> float:
    """The resident memory of a process and all below it; pages they share are counted for each."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):  # it has ended meanwhile
        return 0.0
    return resident + sum(rss_mb_of_tree(int(child)) for child in children)


settings = read_settings()
groups = [train(settings, settings["short_steps"])]
if settings["wanted_return"] is None:
    groups.append(train(settings, settings["short_steps"] + settings["total_steps"]))
short, long = groups[0], groups[-1]
# None if only noise was measured: the longer one was not slower.
rate = (long.env_steps - short.env_steps) / (long.seconds - short.seconds) if long.seconds > short.seconds else None
print(
    json.dumps(
        {
            "env_steps": long.env_steps,
            "seconds_total": long.seconds,
            "seconds_training": long.seconds,
            "seconds_to_first_update": short.first_update and short.first_update - settings["spawned_at"],
            "steps_per_second": rate,
            "seconds_to_return": None,
            "steps_to_return": None,
            "peak_rss_mb": long.peak_rss_mb,
            "versions": {name: version(name) for name in PACKAGES},
        }
    )
)
