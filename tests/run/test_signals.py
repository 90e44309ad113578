"""However a run is stopped, it can be resumed, and ends in the same bits."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from birl.run.checkpoint import checkpoints_in
from birl.run.signals import Interrupted, caught_signals
from tests.run.processes import (
    ENVIRONMENT,
    SECONDS,
    assert_same_run,
    call,
    call_well,
    metric_rows,
    start,
    succeed,
    wait_until,
)

TOTAL_STEPS = 12_000
# A checkpoint after each update, so that a random kill often hits the writing of one.
SETTINGS = [
    "--num-envs", 4, "--rollout-length", 16, "--epochs", 4, "--minibatches", 4, "--hidden-sizes", 16,
    "--normalize-observations", "--normalize-rewards", "--checkpoint-every", 1, "--keep-checkpoints", 3,
    "--eval-episodes", 2,
]  # fmt: skip
TRAIN = ["train", "ppo", "CartPole-v1", *SETTINGS]


class Slow(gym.Env):
    """Takes a twentieth of a second for each step, so that an update takes long."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.05)
        return np.zeros(1, np.float32), 1.0, False, False, {}


gym.register("Slow-v0", entry_point=Slow)


def output(directory: Path) -> str:
    return (directory / "output").read_text()


def newest_number(run: Path) -> int:
    return max((int(path.name) for path in checkpoints_in(run / "checkpoints")), default=0)


def stop(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    return process.wait(SECONDS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole")
    call_well(*TRAIN, "--total-steps", TOTAL_STEPS, "--run-dir", directory / "run")
    return directory / "run"


def test_sigint_and_sigterm_end_in_a_checkpoint_with_their_own_exit_codes_and_the_run_goes_on_exactly(whole, tmp_path):
    run = tmp_path / "run"
    process = start(*TRAIN, "--total-steps", TOTAL_STEPS, "--run-dir", run, cwd=tmp_path)
    wait_until(lambda: len(checkpoints_in(run / "checkpoints")) >= 2, process)
    assert stop(process, signal.SIGINT) == 130
    first = checkpoints_in(run / "checkpoints")[-1]
    assert f"SIGINT: saved at {int(first.name):,} steps; continue with: birl resume {run}" in output(tmp_path)
    assert metric_rows(run)[-1]["env_steps"] == int(first.name), "it stopped at the end of an update"

    process = start("resume", run, cwd=tmp_path)
    wait_until(lambda: checkpoints_in(run / "checkpoints")[-1] > first, process)
    assert stop(process, signal.SIGTERM) == 143
    second = checkpoints_in(run / "checkpoints")[-1]
    assert f"SIGTERM: saved at {int(second.name):,} steps" in output(tmp_path)
    assert "Traceback" not in output(tmp_path)

    succeed("resume", run, cwd=tmp_path)
    assert_same_run(run, whole)
    assert metric_rows(run) == metric_rows(whole)


def test_a_second_signal_stops_at_once(tmp_path):
    """The update takes seconds because its environment is slow; the second signal does not wait."""
    run = tmp_path / "run"
    settings = ["--num-envs", 1, "--rollout-length", 1000, "--minibatches", 1, "--max-episode-steps", 100]
    process = start("train", "ppo", "tests.run.test_signals:Slow-v0", *settings, "--run-dir", run, cwd=tmp_path)
    wait_until(lambda: "run directory" in output(tmp_path), process)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None, "the first signal waits for the end of the update"
    assert stop(process, signal.SIGTERM) == 143
    assert not checkpoints_in(run / "checkpoints"), (
        "it did not wait for the end of the update, which takes 50 s and is saved"
    )
    assert "Traceback" not in output(tmp_path)


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_after_kill_9_at_random_moments_resume_works_each_time(kills, whole, tmp_path):
    """Some kills hit the start of a process, most hit its training and saving."""
    run, rng = tmp_path / "run", np.random.default_rng(2)
    words: list[object] = [*TRAIN, "--total-steps", TOTAL_STEPS, "--run-dir", run]
    reached = [0]
    for life in range(kills):
        process = start(*words, cwd=tmp_path)
        if life == 0:
            wait_until((run / "config.json").exists, process)
        elif life % 5 == 0:
            time.sleep(rng.uniform(0, 3))
        else:
            wait_until(lambda: newest_number(run) > reached[-1], process)
            time.sleep(rng.uniform(0, 0.08))
        assert process.poll() is None, f"life {life} ended before it could be killed: {output(tmp_path)}"
        process.kill()
        process.wait()
        words = ["resume", run]
        reached.append(newest_number(run))
    assert reached == sorted(reached), "no life loses what the one before had saved"
    assert len(set(reached)) > kills // 2, "most lives came to train"
    succeed("resume", run, cwd=tmp_path)
    assert_same_run(run, whole)
    assert metric_rows(run) == metric_rows(whole)


def test_the_first_signal_is_noted_and_the_second_ends_the_program_and_is_nobody_elses():
    """An environment's own sys.exit is caught where it is stepped; this is not."""
    with pytest.raises(Interrupted) as caught, caught_signals() as received:  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        with contextlib.suppress(Exception, SystemExit):
            os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it was taken for an error of the environment")
    assert caught.value.code == 130


def test_the_first_signal_says_what_comes_next_and_a_third_ends_code_that_catches_everything():
    code = """
import contextlib, os, signal
from birl.run.signals import caught_signals
with caught_signals():
    while True:
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    said = (
        "\nbirl: SIGINT: ending after this update, with a checkpoint; once more ends at once, even while a step hangs\n"
    )
    assert (finished.returncode, finished.stderr) == (130, said)


def test_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with caught_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_outside_the_main_thread_signals_are_left_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with caught_signals() as received:
            seen.append((signal.getsignal(signal.SIGINT), received))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(before, [])]


def test_a_run_under_nohup_goes_on_when_its_terminal_is_closed():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with caught_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_among_the_imports_ends_the_process_even_where_an_exception_would_be_lost(number):
    code = f"""
import os, time
from birl.run.signals import starting
with starting():
    try:
        os.kill(os.getpid(), {int(number)})
        time.sleep(60)
    except BaseException:  # as C code does, in an import
        pass
print("it was lost")
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (128 + number, "", "birl: interrupted\n")


class Signalling(Slow):
    """Sends a signal while it is made, before there is anything to save."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


gym.register("Signalling-v0", entry_point=Signalling)


def test_a_signal_before_training_begins_leaves_nothing_behind(tmp_path):
    code, said = call("train", "ppo", "tests.run.test_signals:Signalling-v0", "--run-dir", tmp_path / "run")
    assert code == 130
    assert "SIGINT: stopped before training began" in said
    assert not (tmp_path / "run").exists()


def test_what_is_imported_at_the_start_is_not_scanned_for_garbage_again():
    program = """
import gc
from birl.run.signals import starting
before = gc.get_freeze_count()
with starting():
    assert not gc.isenabled()
    import numpy
assert gc.isenabled() and gc.get_freeze_count() > before + 1000
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)
