"""Closed output, or output without a reader, is not an error."""

import os
import subprocess
import sys
from pathlib import Path

from birl.lab.tuning.search_output import SearchConsole
from birl.run.signals import is_abandoned, say, silence
from tests.run.processes import COMMAND, ENVIRONMENT, SECONDS


def run_in_shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = " ".join([*COMMAND, command])
    return subprocess.run(
        ["bash", "-c", words], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_a_run_whose_output_is_closed_trains_and_writes_its_files(tmp_path):
    settings = "--total-steps 64 --rollout-length 16 --num-envs 4 --minibatches 1 --eval-episodes 1 --run-dir run"
    finished = run_in_shell(f"train ppo CartPole-v1 {settings} >&- 2>&- <&-", tmp_path)
    assert finished.returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()
    first = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0]
    assert first.startswith("{"), "nothing that was meant for the screen went into a file"


def test_a_reader_who_has_left_is_not_an_error(tmp_path):
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run(
        [*COMMAND, "--help"], env=ENVIRONMENT, stdout=write, stderr=subprocess.PIPE, timeout=SECONDS, check=False
    )
    os.close(write)
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_a_pipe_is_abandoned_once_its_reader_left_and_then_what_is_written_goes_nowhere():
    read, write = os.pipe()
    with open(write, "w") as stream:
        assert not is_abandoned(stream)
        os.close(read)
        assert is_abandoned(stream)
        silence(stream)
        stream.write("nobody")
        stream.flush()
        assert not is_abandoned(stream)


def test_a_line_for_a_reader_who_has_left_goes_nowhere_and_the_work_goes_on(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        say("nobody")
        say("reads this")


def test_a_search_goes_on_without_a_reader():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        SearchConsole(stream).message("nobody reads this")
        silence(stream)


def test_what_is_no_file_is_not_abandoned(capsys):
    assert not is_abandoned(sys.stdout)
