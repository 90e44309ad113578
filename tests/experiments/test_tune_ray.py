"""Workers of a search as tasks of a real Ray cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from birl.experiments.tuning.journal import Journal
from birl.experiments.tuning.supervise import WorkerTask, work_on_cluster
from tests.experiments.test_tune import WORDS
from tests.run.processes import succeed

cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    cluster = cluster_utils.Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def test_tasks_of_a_cluster_work_on_a_search(cluster: Any, tmp_path: Path) -> None:
    words = ["--trials", 2, "--total-steps", 900, "--ray-address", cluster.address, "--run-dir", tmp_path / "search"]
    output = succeed(*WORDS, *words, cwd=tmp_path)
    assert "tasks of the Ray cluster at" in output
    assert "on 2 seeds that the search has not seen" in output
    assert sum(event["event"] == "worker" for event in Journal(tmp_path / "search").read()) == 2
    assert not list((tmp_path / "search").glob(".partial-*"))


def test_a_machine_that_does_not_see_the_directory_says_so(tmp_path: Path) -> None:
    problem = work_on_cluster(WorkerTask(tmp_path, "token", 0, False), lambda: 0)
    assert "does not see" in problem
    assert "shared file system" in problem
