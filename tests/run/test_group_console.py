"""What the console shows of a group, and how it is read from the metrics of its lanes."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.maths.statistics import bootstrap_interval, iqm
from birl.run.groups.group_results import GroupConsole, point_text, score_statistics, settings_text
from birl.run.groups.lane import GroupProgress, GroupStatus, LaneMetrics, LaneNews


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def write_rows(run_dir: Path, *rows: dict[str, Any]) -> None:
    run_dir.mkdir(exist_ok=True)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def make_lane(run_dir: Path, total_steps: int, *rows: dict[str, Any]) -> tuple[str, Path]:
    write_rows(run_dir, *rows)
    (run_dir / "config.json").write_text(json.dumps({"config": {"run": {"total_steps": total_steps}}}))
    return run_dir.name, run_dir


def row(steps: int, score: float | None, speed: float) -> dict[str, Any]:
    return {"env_steps": steps, "seconds": 1.0, "episode/return": score, "time/env_steps_per_second": speed}


def test_new_rows_are_read_once_and_half_a_row_later(tmp_path):
    metrics = LaneMetrics(tmp_path)
    metrics.read()
    assert (metrics.env_steps, metrics.values) == (0, {}), "there is no file yet"
    write_rows(tmp_path, row(10, 1.5, 100), row(20, None, 200))
    metrics.read()
    assert metrics.env_steps == 20
    assert metrics.values["episode/return"] == 1.5, "no episode ended in the last row"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 30, "episode/re')
        file.flush()
        metrics.read()
        assert metrics.env_steps == 20
        file.write('turn": 7.0}\n')
    metrics.read()
    assert (metrics.env_steps, metrics.values["episode/return"]) == (30, 7.0)


def test_a_file_that_a_resume_has_written_again_is_read_from_its_start(tmp_path):
    metrics = LaneMetrics(tmp_path)
    write_rows(tmp_path, row(10, 1.0, 1), row(20, 2.0, 1))
    metrics.read()
    (tmp_path / "metrics.jsonl").rename(tmp_path / "old")
    write_rows(tmp_path, row(10, 1.0, 1))
    metrics.read()
    assert (metrics.env_steps, metrics.values["episode/return"]) == (10, 1.0)


def test_the_speed_is_that_of_lanes_that_run_now_and_a_finished_lane_is_whole(tmp_path):
    lanes = [
        make_lane(tmp_path / "a", 100, row(50, 10.0, 1000)),
        make_lane(tmp_path / "b", 100, row(25, 30.0, 1000)),
        make_lane(tmp_path / "c", 100, row(90, 20.0, 1000)),
    ]
    (tmp_path / "c" / "summary.json").write_text(json.dumps({"env_steps": 90, "evaluation": None}))
    progress = GroupProgress(lanes)
    progress.end("c", finished=True)
    assert progress.status().steps_per_second == 0, "all rows are of an earlier process"
    write_rows(tmp_path / "a", row(75, 12.0, 300))
    status = progress.status()
    assert status == GroupStatus((0.75 + 0.25 + 1) / 3, 190, 300, 300.0, {"a": 12.0, "b": 30.0, "c": 20.0})
    assert status.worst == ("a", 12.0)
    assert status.mean_and_deviation() == (pytest.approx(62 / 3), pytest.approx(math.sqrt(488 / 9)))


def test_plain_lines_show_lanes_steps_mean_spread_and_worst_every_two_seconds():
    stream, clock = io.StringIO(), Clock()
    console = GroupConsole("ppo CartPole-v1", 4, stream, clock)
    status = GroupStatus(0.5, 2000, 4000, 100.0, {"seed-1": 10.0, "seed-2": 30.0})
    console.show(lambda: status, finished=1, running=2, failed=1)
    clock.seconds = 1.9
    console.show(lambda: status, finished=1, running=2, failed=1)
    assert stream.getvalue() == (
        "ppo CartPole-v1:  50%, 1 of 4 lanes done, 2 running, 1 failed, 2,000 / 4,000 steps, 20 s left, "
        "return 20 +/- 10, worst 10 (seed-1), 100 steps/s\n"
    )
    clock.seconds = 2.0
    console.show(lambda: status, finished=2, running=2, failed=0)
    assert "2 of 4 lanes done, 2 running, 2,000" in stream.getvalue().splitlines()[1]


def test_a_line_is_written_only_when_something_has_changed():
    stream, clock = io.StringIO(), Clock()
    console = GroupConsole("ppo CartPole-v1", 4, stream, clock)
    for steps in (0, 0, 0, 100, 100, 200):
        console.show(lambda steps=steps: GroupStatus(steps / 400, steps, 400, 0.0, {}), 0, 4, 0)  # type: ignore[misc]
        clock.seconds += 10
    assert stream.getvalue().splitlines() == [
        f"ppo CartPole-v1: {percent:3}%, 0 of 4 lanes done, 4 running, {steps} / 400 steps"
        for steps, percent in ((0, 0), (100, 25), (200, 50))
    ]


def test_a_lane_whose_files_are_elsewhere_tells_how_far_it_is(tmp_path):
    (tmp_path / "a").mkdir()
    progress = GroupProgress([make_lane(tmp_path / "a", 100)])
    progress.take("a", LaneNews(tmp_path / "a", 40, {"episode/return": 3.0}))
    assert progress.status() == GroupStatus(0.4, 40, 100, 0.0, {"a": 3.0})
    progress.end("a", finished=False)
    progress.take("a", LaneNews(tmp_path / "a", 50, {}))
    assert progress.status().env_steps == 40, "its own files count now"


def test_a_quiet_group_says_only_what_failed(capsys):
    console = GroupConsole("ppo CartPole-v1", 1, quiet=True)
    console.message("a")
    console.show(lambda: GroupStatus(0.0, 0, 1, 0.0, {}), 0, 1, 0)
    console.warn("seed-1 failed")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "birl: seed-1 failed\n")


def test_statistics_of_scores_are_those_of_the_benchmarks():
    scores = {"a": 1.0, "b": 5.0, "c": 3.0, "d": 100.0}
    found = score_statistics(scores)
    array = np.array(list(scores.values()))
    assert found["iqm"] == iqm(array) == 4.0, "the mean of 3 and 5"
    assert tuple(found["interval"]) == bootstrap_interval(array[:, None])
    assert found["mean"] == 27.25
    assert found["worst"] == {"directory": "a", "return_mean": 1.0}
    assert score_statistics({"a": 1.0})["interval"] is None, "one seed has no interval"
    assert set(score_statistics({}).values()) == {None}


def test_a_result_says_how_many_seeds_it_has():
    lanes = [{"return_mean": 1.0}, {"return_mean": 3.0}, {"return_mean": None}]
    point = {**score_statistics({"seed-1": 1.0, "seed-2": 3.0}), "lanes": lanes}
    assert point_text(point) == (
        "IQM 2 (95 % interval 1 to 3) over 2 of 3 seeds: the others have no result, mean 2 +/- 1, worst 1 (seed-1)"
    )
    assert point_text({**score_statistics({}), "lanes": lanes[2:]}) == "no result of 1 seed"


def test_swept_settings_are_written_as_options_are():
    schedule = {"kind": "linear", "values": [0.001, 0.0], "points": [1.0]}
    assert settings_text({"learning_rate": schedule, "hidden_sizes": [64, 64], "discount": 0.99}) == (
        "learning_rate=linear:0.001:0, hidden_sizes=64 64, discount=0.99"
    )
