"""Running Birl in child processes, and comparing runs."""

import contextlib
import hashlib
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
from birl.run.checkpoint import MANIFEST, checkpoints_in
from birl.run.files import to_json_bytes

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "birl"]
SECONDS = 600  # the time limit of a command, on a busy machine
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "SDL_VIDEODRIVER": "dummy", "PYTHONPATH": str(ROOT)}


def birl(*words: Any, cwd: Path, timeout: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, successful or not."""
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
    """Run a command that must succeed; its output."""
    finished = birl(*words, cwd=cwd)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def call(*words: Any) -> tuple[int, str]:
    """Run a command in this process, which is faster; its exit code and its output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(list(map(str, words)))
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
    return code, output.getvalue()


def call_well(*words: Any) -> str:
    """Run a command that must succeed in this process; its output."""
    code, said = call(*words)
    assert code == 0, said
    return said


def start(*words: Any, cwd: Path) -> subprocess.Popen[str]:
    """Start a command; its output goes to cwd/output."""
    with (cwd / "output").open("w") as output:
        return subprocess.Popen(
            [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, stdout=output, stderr=output, text=True
        )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = SECONDS) -> None:
    """Wait until the condition holds; fail if the process ends before that."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the process ended with {process.returncode} before its time"
        assert time.monotonic() < deadline, f"nothing happened in {seconds} s"
        time.sleep(0.005)


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without measured times."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if name != "seconds" and not name.startswith("time/")}
        for row in rows
    ]


def training_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl that are not evaluations, without measured times."""
    return [row for row in metric_rows(run_dir) if "eval/return_mean" not in row]


def end_of(run_dir: Path) -> dict[str, Any]:
    """The content of the last checkpoint, without measured times."""
    last = checkpoints_in(run_dir / "checkpoints")[-1]
    snapshot = json.loads((last / "snapshot.json").read_text())
    for part in (snapshot, *snapshot.get("learners", [])):
        part.pop("seconds", None)
    arrays = {name: (last / name).read_bytes() for name in ("state.safetensors", "snapshot.safetensors", "spaces.json")}
    return {"number": last.name, "snapshot": snapshot} | arrays


def assert_same_run(left: Path, right: Path) -> None:
    """Check that two runs ended in the same bits, and logged the same numbers."""
    assert end_of(left) == end_of(right)
    assert training_rows(left) == training_rows(right)


def reseal(checkpoint: Path, **changes: Any) -> None:
    """Change fields of a manifest, and update its hashes and its seal, as a forger would."""
    manifest = json.loads((checkpoint / MANIFEST).read_text()) | changes
    manifest.pop("seal", None)
    for name in manifest["sha256"]:
        manifest["sha256"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    seal = hashlib.sha256(to_json_bytes(manifest)).hexdigest()
    (checkpoint / MANIFEST).write_bytes(to_json_bytes(manifest | {"seal": seal}))


def write_untrained(run_dir: Path, config: ppo.Config) -> ppo.State:
    """Write a run directory with one checkpoint of an untrained policy; its state.

    The observation statistics are random, as if it had seen something.
    """
    with make_envs(config.env, 0) as envs:
        envs.reset(0)
        spaces, snapshot = (envs.observation_space, envs.action_space), envs.snapshot()
    state = ppo.init(config, *spaces)
    rng = np.random.default_rng(1)
    seen = jax.tree.map(lambda x: rng.uniform(0.5, 2.0, np.shape(x)).astype(np.float32), state.normalizer.observations)
    state = state._replace(normalizer=state.normalizer._replace(observations=seen))
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoints.save_checkpoint(run_dir / "checkpoints", "ppo", config, spaces, state, snapshot, {})
    return state
