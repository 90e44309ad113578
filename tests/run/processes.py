"""Birl in processes of its own, and what two runs must have in common to be the same run."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from birl.algos import ppo
from birl.cli import main
from birl.envs.make import make_envs
from birl.run import checkpoint as checkpoints
from birl.run.checkpoint import numbered

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "birl.cli"]
SECONDS = 600  # that a command may take: nothing is wrong with one that a busy machine makes wait
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "SDL_VIDEODRIVER": "dummy", "PYTHONPATH": str(ROOT)}


def birl(*words: Any, cwd: Path, timeout: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def succeed(*words: Any, cwd: Path) -> str:
    """Run a command that must work; what it said."""
    finished = birl(*words, cwd=cwd)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def call(*words: Any) -> tuple[int, str]:
    """Run a command in this process, which saves starting one; its exit code and what it said."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(list(map(str, words)))
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
    return code, output.getvalue()


def call_well(*words: Any) -> str:
    """Run a command in this process that must work; what it said."""
    code, said = call(*words)
    assert code == 0, said
    return said


def start(*words: Any, cwd: Path) -> subprocess.Popen[str]:
    """A command under way; its output is in cwd/output."""
    with (cwd / "output").open("w") as output:
        return subprocess.Popen(
            [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, stdout=output, stderr=output, text=True
        )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = SECONDS) -> None:
    """Return as soon as the condition holds; fail if the process ends before it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the process ended with {process.returncode} before its time"
        assert time.monotonic() < deadline, f"nothing happened in {seconds} s"
        time.sleep(0.005)


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock measured."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if name != "seconds" and not name.startswith("time/")}
        for row in rows
    ]


def training_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Those rows that are not evaluations."""
    return [row for row in metric_rows(run_dir) if "eval/return_mean" not in row]


def end_of(run_dir: Path) -> dict[str, Any]:
    """Everything in the last checkpoint that does not come from a clock: the files' bytes."""
    last = numbered(run_dir / "checkpoints")[-1]
    snapshot = json.loads((last / "world.json").read_text())
    del snapshot["seconds"]
    arrays = {name: (last / name).read_bytes() for name in ("state.safetensors", "world.safetensors", "spaces.json")}
    return {"number": last.name, "world": snapshot} | arrays


def assert_same_run(left: Path, right: Path) -> None:
    """The two ended in the same state, to the bit, and logged the same numbers on the way."""
    assert end_of(left) == end_of(right)
    assert training_rows(left) == training_rows(right)


def write_untrained(run_dir: Path, config: ppo.Config) -> ppo.State:
    """A run directory with one checkpoint of a policy that has learned nothing, but has seen
    things; its state.
    """
    with make_envs(config.env, 0) as envs:
        envs.reset(0)
        spaces, snapshot = (envs.observation_space, envs.action_space), envs.snapshot()
    state = ppo.init(config, *spaces)
    rng = np.random.default_rng(1)
    seen = jax.tree.map(lambda x: rng.uniform(0.5, 2.0, np.shape(x)).astype(np.float32), state.normalizer.observations)
    state = state._replace(normalizer=state.normalizer._replace(observations=seen))
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoints.save(run_dir / "checkpoints", "ppo", config, spaces, state, snapshot, {})
    return state
