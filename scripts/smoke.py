"""Does an installed Birl work? Run this with a Python that has it, in an empty directory.

It uses Birl as a user does: the command line, a short training, its evaluation and report, and the
trained policy in Python. It needs nothing of the clone that it is in.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

STEPS = 4096
RUN = Path("run")


def birl(*words: str) -> str:
    """Run the installed command; its output."""
    command = Path(sysconfig.get_path("scripts")) / "birl"
    finished = subprocess.run([command, *words], capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"birl {' '.join(words)} ended with {finished.returncode}:\n{finished.stderr}")
    return finished.stdout


def find_the_package() -> str:
    """Birl comes from site-packages, and has its data."""
    import birl

    home = Path(birl.__file__).parent
    installed = Path(sysconfig.get_path("purelib"))
    require(home.parent == installed, f"birl was imported from {home}, not from {installed}")
    pages = [f"lab/report/page.{kind}" for kind in ("html", "css", "js")]
    for name in ("py.typed", *pages):
        require((home / name).is_file(), f"{name} is missing in {home}")
    require(not (installed / "tests").exists(), f"tests were installed into {installed}")
    return str(home)


def ask_the_command_line() -> str:
    version = birl("--version").strip()
    require(version == f"birl {importlib.metadata.version('birl')}", f"birl --version says {version}")
    require("train" in birl("--help"), "birl --help does not name train")
    require("ppo" in birl("list"), "birl list does not name ppo")
    return version


def train() -> str:
    birl("train", "ppo", "CartPole-v1", "--total-steps", str(STEPS), "--eval-episodes", "2", "--run-dir", str(RUN))
    summary = json.loads((RUN / "summary.json").read_text())
    require(summary["env_steps"] >= STEPS, f"training ended after {summary['env_steps']} of {STEPS} steps")
    return f"{summary['env_steps']} steps of ppo on CartPole-v1"


def evaluate() -> str:
    said = birl("eval", str(RUN), "--episodes", "3")
    returns = [line.strip() for line in said.splitlines() if "return" in line]
    require(bool(returns), f"birl eval does not say a return: {said}")
    return returns[0]


def act() -> str:
    import gymnasium as gym

    import birl

    policy = birl.load(RUN)
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action, _ = policy.act(observation)
    require(env.action_space.contains(action), f"{action!r} is no action of CartPole-v1")
    return f"birl.load and act: {action}"


def report() -> str:
    page = Path("report.html")
    birl("report", str(RUN), "--out", str(page))
    text = page.read_text(encoding="utf-8")
    require("<style" in text and "<script" in text, f"{page} lacks its style or its script")
    require("CartPole-v1" in text, f"{page} does not name CartPole-v1")
    return f"{page} has {len(text):,} characters"


def require(condition: bool, wrong: str) -> None:
    if not condition:
        raise RuntimeError(wrong)


def main() -> int:
    require(not any(Path.cwd().iterdir()), f"{Path.cwd()} is not empty; run this in an empty directory")
    # Nothing is left in the home directory, and no program that another version compiled is used.
    os.environ |= {"BIRL_DATA_DIR": str(Path.cwd() / "data"), "BIRL_CACHE_DIR": str(Path.cwd() / "cache")}
    os.environ |= {"JAX_PLATFORMS": "cpu", "SDL_VIDEODRIVER": "dummy"}
    os.environ.pop("PYTHONPATH", None)
    steps: list[Callable[[], str]] = [find_the_package, ask_the_command_line, train, evaluate, act, report]
    for step in steps:
        began = time.perf_counter()
        try:
            found = step()
        except Exception as problem:
            print(f"failed  {step.__name__}: {type(problem).__name__}: {problem}", flush=True)
            return 1
        print(f"ok      {step.__name__}: {found} ({time.perf_counter() - began:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
