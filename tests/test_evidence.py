"""The evidence queue trains what is missing, keeps what has finished, and goes on elsewhere."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHORT = ("--total-steps", "1000", "--eval-episodes", "1", "--num-envs", "4")
LONG = ("--total-steps", "100000000", "--eval-episodes", "1")


@pytest.fixture
def evidence(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import evidence

    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    monkeypatch.setattr(evidence, "FINISHED", tmp_path / "evidence")
    monkeypatch.setattr(evidence, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(evidence, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(evidence, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(evidence.readme, "main", lambda: 0)
    monkeypatch.setattr(evidence.os, "nice", lambda by: by)  # the tests that follow keep their priority
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    yield evidence
    for number, handler in handlers:
        signal.signal(number, handler)
    for name in ("evidence", "evidence_rows", "learning", "readme", "readme_zh", "results", "speed_rows"):
        sys.modules.pop(name, None)


def row_of(evidence, flags=SHORT, seeds=3):
    return evidence.EvidenceRow("a2c", "CartPole-v1", 0.1, "nothing", flags, seeds)


def keep(evidence, row, seeds, **changed) -> None:
    """Files of seeds as a finished run leaves them."""
    folder = evidence.FINISHED / row.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(evidence.settings_of(row) | changed))
    for seed in seeds:
        facts = {"seed": seed, "score": 10.0 * seed, "env_steps": 1000, "wall_seconds": 1.0, "cpu_seconds": 36.0}
        (folder / f"seed-{seed}.json").write_text(json.dumps(facts | {"versions": {"birl": "0"}}))


def test_the_queue_trains_the_missing_seeds_and_writes_the_row_of_all(evidence, capsys):
    row = row_of(evidence)
    keep(evidence, row, [1])  # from another machine
    assert evidence.Queue(jobs=1).run([row]) == 0
    seeds = evidence.finished_seeds(row, evidence.settings_of(row))
    assert list(seeds) == [1, 2, 3]
    trained = seeds[2]
    assert trained["env_steps"] >= 1000
    assert {len(column) for column in trained["curve"].values()} == {evidence.POINTS}
    assert trained["curve"]["env_steps"][-1] == trained["env_steps"]
    [run_dir] = evidence.RUNS.glob("*/seeds-2-3/seed-2")
    summary = json.loads((run_dir / "summary.json").read_text())
    assert trained["score"] == summary["evaluation"]["return_mean"]
    scores = ", ".join(f"{seed['score']:.1f}" for seed in seeds.values())
    assert f"| a2c | CartPole-v1 | {' '.join(SHORT)} |" in evidence.RESULTS.read_text()
    assert f"| {scores} |" in evidence.RESULTS.read_text()
    shutil.rmtree(evidence.RUNS)
    assert evidence.Queue(jobs=1).run([row]) == 0  # nothing is left to do
    assert not evidence.RUNS.exists()


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux with CONFIG_SCHED_AUTOGROUP")
def test_training_gives_way_to_other_sessions(evidence):
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as session:
        try:
            evidence.give_way(session.pid)
            assert Path(f"/proc/{session.pid}/autogroup").read_text().endswith("nice 19\n")
        finally:
            session.kill()


def test_a_signal_stops_the_queue_and_it_continues_the_same_group(evidence):
    row = row_of(evidence, LONG, seeds=1)
    settings = evidence.settings_of(row)
    queue = evidence.Queue(jobs=1)

    def interrupt() -> None:
        while not list(evidence.RUNS.glob("*/*/seed-1/metrics.jsonl")):
            time.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    assert queue.run([row]) == 128 + signal.SIGTERM
    assert list(evidence.RUNS.glob("*/*/seed-1/checkpoints/*/manifest.json"))
    directory = evidence.group_directory(row, settings, 1, 1)
    assert evidence.train_words(row, directory, 1, 1, jobs=1)[:2] == ["resume", str(directory)]
    assert "| begun | 0 of 1 |" in evidence.status([row])


def test_seeds_of_other_settings_do_not_count_and_a_setting_that_was_added_changes_nothing(evidence):
    row = row_of(evidence)
    keep(evidence, row, [1, 2])
    settings = evidence.settings_of(row)
    assert list(evidence.finished_seeds(row, settings | {"added.later": 1})) == [1, 2]
    assert evidence.finished_seeds(row, settings | {"discount": 0.5}) == {}


@pytest.mark.parametrize(
    ("done", "missing"), [([], (1, 5)), ([1, 2], (3, 5)), ([2, 4], (1, 1)), ([1, 4], (2, 3)), ([1, 2, 3, 4, 5], None)]
)
def test_the_first_consecutive_seeds_that_are_missing_train_as_a_group(evidence, done, missing):
    assert evidence.missing_seeds(row_of(evidence, seeds=5), done) == missing


def test_the_status_adds_up_the_hours_that_are_done_and_left(evidence):
    row = row_of(evidence, seeds=5)
    keep(evidence, row, [1, 2])  # 36 CPU seconds each
    assert evidence.status([row]).endswith("0.0 CPU hours done, 0.0 left")
    assert "| 2 of 5 | 0.02 | 0.03 |" in evidence.status([row])


def test_the_rows_of_the_queue_train_with_valid_settings_and_have_names_of_their_own(evidence):
    assert all(evidence.settings_of(row) for row in evidence.ROWS)
    assert len({row.name for row in evidence.ROWS}) == len(evidence.ROWS)
