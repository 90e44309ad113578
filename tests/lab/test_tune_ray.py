"""Workers of a search as tasks of a real Ray cluster."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from birl.lab.tuning.journal import Journal
from birl.lab.tuning.supervise import WorkerTask, work_on_cluster
from tests.lab.test_tune import WORDS
from tests.run.processes import COMMAND, ENVIRONMENT, wait_until

pytest.importorskip("ray.cluster_utils")


def test_a_machine_that_does_not_see_the_directory_says_so(tmp_path: Path) -> None:
    end = work_on_cluster(WorkerTask(tmp_path, "token", 0, False), lambda: 0)
    assert end.is_final
    assert "does not see" in end.problem
    assert "shared file system" in end.problem


def test_tasks_of_a_cluster_work_on_a_search_and_one_that_dies_is_replaced(cluster: Any, tmp_path: Path) -> None:
    words = ["--trials", 2, "--total-steps", 3_000, "--ray-address", cluster.address, "--run-dir", tmp_path / "search"]
    words = [*map(str, [*COMMAND, *WORDS, *words])]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    journal = Journal(tmp_path / "search")
    events: list[Any] = []
    wait_until(lambda: events.extend(journal.read()) or any(one["event"] == "claim" for one in events), process)
    worker = next(one["worker"] for one in events if one["event"] == "claim")
    os.kill(int(worker.split("-")[-2]), signal.SIGKILL)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    assert "on 2 seeds that the search has not seen" in output
    assert "2 workers, tasks of the Ray cluster at" in output
    assert sum(one["event"] == "worker" for one in Journal(tmp_path / "search").read()) == 3
    assert not list((tmp_path / "search").glob(".partial-*"))
