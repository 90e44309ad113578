"""One run at a time in a directory; the error names the holder, and a dead one holds nothing."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from birl.algos import a2c
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.errors import CheckpointError
from birl.run.lock import LOCK, locked
from birl.run.start import resume, train
from tests.run.processes import ENVIRONMENT

HOLD = """
import os, sys, time
from pathlib import Path
from birl.run.lock import locked
with locked(Path(sys.argv[1])):
    child = os.fork() if sys.argv[2] != "alone" else -1
    if child == 0:
        if sys.argv[2] == "with a child":
            print(os.getpid(), flush=True)  # it runs, and has done what a child does first
            time.sleep(600)
        os._exit(0)
    if sys.argv[2] == "after a child":
        os.waitpid(child, 0)
    if sys.argv[2] != "with a child":
        print(child, flush=True)
    time.sleep(600)
"""


def tiny(run_dir: Path) -> a2c.Config:
    run = RunConfig(total_steps=16, eval_episodes=1, run_dir=str(run_dir))
    return a2c.Config(EnvConfig("CartPole-v1", num_envs=2), run, rollout_length=4, hidden_sizes=(8,))


def holder(directory: Path, how: str = "alone") -> tuple[subprocess.Popen[str], int]:
    """Start a process that holds the lock, and has a child."""
    command = [sys.executable, "-c", HOLD, str(directory), how]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a filesystem without locks."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_run_that_is_under_way_is_neither_resumed_nor_trained_over_and_its_holder_is_named(tmp_path):
    train(tiny(tmp_path / "run"))
    config = (tmp_path / "run" / "config.json").read_bytes()
    (tmp_path / "empty").mkdir()
    uses = {tmp_path / "run": partial(resume, total_steps=32), tmp_path / "empty": lambda path: train(tiny(path))}
    for directory, use in uses.items():
        process, _ = holder(directory)
        try:
            with pytest.raises(
                ConfigError,
                match=f"is in use by process {process.pid} on {socket.gethostname()}; wait until it has ended",
            ):
                use(directory)
        finally:
            kill(process)
    assert (tmp_path / "run" / "config.json").read_bytes() == config
    assert resume(tmp_path / "run", 32)["env_steps"] >= 32, "its holder was killed"
    assert not (tmp_path / "run" / LOCK).exists()


def test_two_runs_of_one_process_do_not_share_a_directory(tmp_path):
    with locked(tmp_path):
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"), locked(tmp_path):
            pass
        assert (tmp_path / LOCK).exists(), "who was refused takes nothing away"
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_hold_on_after_its_parent_is_dead(tmp_path):
    process, child = holder(tmp_path, "with a child")
    try:
        process.kill()
        process.wait()
        with locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        kill(process)


def test_a_forked_child_that_ends_does_not_let_go_for_its_parent(tmp_path):
    process, _ = holder(tmp_path, "after a child")
    try:
        with pytest.raises(ConfigError, match=f"in use by process {process.pid}"), locked(tmp_path):
            pass
    finally:
        kill(process)


@pytest.mark.parametrize("harm", ["a link", "a second name", "a pipe", "a directory"])
def test_a_lock_file_that_is_something_else_is_refused_and_nothing_is_written_through_it(harm, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    run = tmp_path / "run"
    run.mkdir()
    match harm:
        case "a link":
            (run / LOCK).symlink_to(precious)
        case "a second name":
            os.link(precious, run / LOCK)
        case "a pipe":
            os.mkfifo(run / LOCK)
        case "a directory":
            (run / LOCK).mkdir()
    with pytest.raises(CheckpointError, match=r"run\.lock is not a (regular )?file.*; remove it"), locked(run):
        pass
    assert precious.read_text() == "kept"


def test_what_a_killed_holder_left_is_taken_over(tmp_path):
    (tmp_path / LOCK).write_text(
        json.dumps({"pid": os.getpid(), "machine": socket.gethostname()}) + "rest of a longer line"
    )
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text()) == {"pid": os.getpid(), "machine": socket.gethostname()}


def test_without_locks_the_file_is_the_lock(no_locks, tmp_path):
    with locked(tmp_path):
        with (
            pytest.raises(
                ConfigError, match=f"in use by process {os.getpid()} on .*; if it is dead, remove .*run.lock"
            ),
            locked(tmp_path),
        ):
            pass
        assert (tmp_path / LOCK).exists()
    assert list(tmp_path.iterdir()) == []


def test_without_locks_the_dead_of_this_machine_are_known_and_others_are_asked_about(no_locks, tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / LOCK).write_text(json.dumps({"pid": dead.pid, "machine": socket.gethostname()}))
    with locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text(json.dumps({"pid": dead.pid, "machine": "another"}))
    with pytest.raises(ConfigError, match=f"in use by process {dead.pid} on another"), locked(tmp_path):
        pass


def test_a_lock_that_is_removed_between_opening_and_locking_is_made_anew(tmp_path, monkeypatch):
    """The previous holder ends at that moment; a lock on a removed file would lock nobody out."""
    flock, calls = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(descriptor)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path):
        with pytest.raises(ConfigError, match="in use"), locked(tmp_path):
            pass
        assert len(calls) == 3


@pytest.mark.parametrize(
    "content", [b"", b"[" * 1000, b"\xff", b"[]", b'{"pid": "1", "machine": 2}', b'{"pid": 1, "machine": "\\u001b[2J"}']
)
def test_a_holder_that_gives_no_name_is_another_process(content, tmp_path):
    with locked(tmp_path):
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(ConfigError, match="is in use by another process; wait"), locked(tmp_path):
            pass


def test_a_directory_that_was_replaced_meanwhile_keeps_the_lock_of_its_own_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with locked(run):
        run.rename(tmp_path / "moved")
        run.mkdir()
        (run / LOCK).write_text("another's")
    assert (run / LOCK).read_text() == "another's"
