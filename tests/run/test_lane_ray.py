"""Lanes as tasks of a real Ray cluster: the same runs, wherever their directory is seen from."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from birl.errors import CheckpointError
from birl.run.checkpoint import checkpoints_in
from birl.run.groups.lane import LaneOptions, is_finished
from birl.run.groups.lane_training import make_task, read_files, train_here, write_files, write_into
from tests.run.processes import SECONDS, assert_same_run, birl, call, metric_rows, start, succeed, wait_until
from tests.run.test_group import TRAIN, content_of, has_checkpoint

pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, trained in processes."""
    directory = tmp_path_factory.mktemp("group")
    succeed(*TRAIN, "--seeds", 2, "--run-dir", "group", cwd=directory)
    return directory / "group"


def prepared(tmp_path: Path, group: Path) -> Path:
    """The directory of a lane that has not begun."""
    run = tmp_path / "seed-1"
    run.mkdir()
    (run / "config.json").write_bytes((group / "seed-1" / "config.json").read_bytes())
    return run


def test_tasks_are_stopped_as_processes_are(cluster, tmp_path):
    runs = [tmp_path / "group" / name for name in ("seed-1", "seed-2")]
    words = [*TRAIN, "--total-steps", 50_000_000, "--seeds", 2, "--ray-address", cluster.address]
    process = start(*words, "--jobs", 1, "--run-dir", tmp_path / "group", cwd=tmp_path)
    wait_until(lambda: has_checkpoint(runs[0]), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 143
    assert "SIGTERM: saved at" in (runs[0] / "console.log").read_text()
    assert not has_checkpoint(runs[1])
    assert "as tasks of the Ray cluster at" in (tmp_path / "output").read_text()


def test_tasks_that_were_stopped_are_continued_to_the_same_bits(cluster, group, tmp_path):
    runs = [tmp_path / "group" / name for name in ("seed-1", "seed-2")]
    words = [*TRAIN, "--seeds", 2, "--ray-address", cluster.address, "--run-dir", tmp_path / "group"]
    process = start(*words, "--jobs", 1, cwd=tmp_path)
    wait_until(lambda: has_checkpoint(runs[0]), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) in (0, 143)  # 0: it had just ended
    done = birl("resume", tmp_path / "group", "--ray-address", cluster.address, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for run in runs:
        assert_same_run(run, group / run.name)
        assert metric_rows(run) == metric_rows(group / run.name)


def test_a_group_does_not_choose_a_cluster_when_it_is_resumed(group, tmp_path):
    """It may come from somebody else."""
    stored = (group / "group.json").read_text().replace('"ray_address": null', '"ray_address": "10.0.0.1:6379"')
    for name, content in content_of(group).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "group.json").write_text(stored)
    code, said = call("resume", tmp_path)
    assert code == 0
    assert "now they train here" in said


def test_no_cluster_is_named_in_one_line(tmp_path):
    words = [*TRAIN, "--seeds", 1, "--ray-address", "127.0.0.1:9", "--run-dir", tmp_path / "group"]
    code, said = call(*words)
    assert code == 2
    assert "env.ray_address '127.0.0.1:9': no cluster answers there" in said
    assert not (tmp_path / "group").exists(), "the corrected command works"


def test_a_machine_without_the_directory_gets_the_files_and_gives_them_back(group, tmp_path):
    run = prepared(tmp_path, group)
    task = make_task(run, LaneOptions())._replace(whole_path=Path("/not/here"))
    told: list[tuple[int, dict[str, float]]] = []

    def talk(news: Any = None) -> int:
        told.append(news)
        return 0

    end, files = train_here(task, talk)
    assert (end.run_dir, end.problem, end.stopped) == (run, None, False)
    assert told[0] == (0, {}), "how far it is"
    assert not is_finished(run), "nothing is written here before it is brought back"
    write_files(run, files)
    assert is_finished(run)
    assert_same_run(run, group / "seed-1")
    assert "evaluation return" in (run / "console.log").read_text()


def test_files_are_replaced_and_old_checkpoints_removed(group, tmp_path):
    run = prepared(tmp_path, group)
    files = read_files(group / "seed-1")
    assert files == {name: content for name, content in content_of(group / "seed-1").items() if name != "run.lock"}
    old = run / "checkpoints" / "000000001"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text("{}")
    write_files(run, files)
    assert content_of(run) == files
    assert [path.name for path in checkpoints_in(run / "checkpoints")] == sorted(
        path.name for path in checkpoints_in(group / "seed-1" / "checkpoints")
    )


def test_what_a_task_tells_is_heard_while_it_runs_and_so_is_the_signal_there(cluster):
    from birl.workers.ray_actors import run_tasks

    heard: list[tuple[int, int]] = []

    def task(argument: int, talk: Any) -> int:
        talk(argument)
        while (number := talk()) == 0:
            time.sleep(0.1)
        return number

    signals: list[int] = []
    found = []
    for answer in run_tasks(task, iter([7]), cluster.address, 1, signals, lambda *news: heard.append(news)):
        found += [answer] if answer is not None else []
        signals += [15] if heard and not signals else []
    assert heard == [(0, 7)]
    assert found == [(0, 15)]


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_files_stay_below_their_directory(name, tmp_path):
    with pytest.raises(CheckpointError, match="is not a path below"):
        write_into(tmp_path, {name: b""})
