"""Which updates get a line in metrics.jsonl."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from birl.algos import ppo
from birl.config import EnvConfig, RunConfig
from birl.presets import all_presets
from birl.run import log
from birl.run.checkpoint_folder import numbered
from birl.run.console import Console
from birl.run.driver import resume, train
from tests.run.processes import ROOT, metric_rows, training_rows

ONE_UPDATE = 61  # steps of the first update: 4 environments, 16 steps each, without 3 resets
FOREVER = 1e9


def config(run_dir: Path, **settings: Any) -> ppo.Config:
    defaults = {
        "total_steps": 600,
        "checkpoint_every": 0,
        "eval_episodes": 1,
        "run_dir": str(run_dir),
        "log_seconds": 0.0,
    }
    return ppo.Config(
        EnvConfig("CartPole-v1", num_envs=4),
        RunConfig(**defaults | settings),
        rollout_length=16,
        epochs=1,
        minibatches=1,
        hidden_sizes=(8,),
    )


def steps_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["env_steps"] for row in rows]


def test_by_default_ten_lines_a_second_are_written():
    assert RunConfig().log_seconds == pytest.approx(1 / 10)
    assert all((entry.config.run.log_seconds, entry.config.run.log_every) == (0.1, 1) for entry in all_presets())


def test_the_return_is_null_before_an_episode_has_finished_and_the_pages_say_so(tmp_path):
    train(replace(config(tmp_path / "run", total_steps=8), rollout_length=2))
    assert training_rows(tmp_path / "run")[0]["episode/return"] is None
    for page, said in (("", "`null` until the first has finished"), (".zh-CN", "还没有回合结束时是 `null`")):
        lines = (ROOT / "docs" / f"runs-and-checkpoints{page}.md").read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith("| `episode/return`") and said in line]


def test_without_a_wait_every_update_has_its_line_and_log_every_takes_each_nth(tmp_path):
    train(config(tmp_path / "all"))
    train(config(tmp_path / "third", log_every=3))
    every = training_rows(tmp_path / "all")
    assert len(every) >= 9
    assert training_rows(tmp_path / "third") == every[2::3]


def test_within_the_wait_only_what_is_saved_or_evaluated_is_logged(tmp_path):
    train(config(tmp_path / "all"))
    train(config(tmp_path / "last", log_seconds=FOREVER))
    assert training_rows(tmp_path / "last") == training_rows(tmp_path / "all")[-1:]

    train(config(tmp_path / "some", log_seconds=FOREVER, checkpoint_every=200, keep_checkpoints=100))
    assert steps_of(training_rows(tmp_path / "some")) == [
        int(path.name) for path in numbered(tmp_path / "some" / "checkpoints")
    ]

    train(config(tmp_path / "evaluated", log_seconds=FOREVER, eval_every=150))
    evaluated = steps_of([row for row in metric_rows(tmp_path / "evaluated") if "eval/return_mean" in row])
    assert len(evaluated) >= 4
    assert steps_of(training_rows(tmp_path / "evaluated")) == evaluated


def test_the_lines_of_a_run_have_a_number_that_its_length_does_not_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "MOST_ROWS", 4)
    train(config(tmp_path / "run"))
    assert len(training_rows(tmp_path / "run")) <= 4 + 1, "and the last"


def test_a_thousand_million_steps_take_less_than_100_megabytes(tmp_path):
    train(config(tmp_path / "run"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    assert log.MOST_ROWS * max(map(len, lines)) < 100e6


def test_the_console_is_told_what_the_file_is_told(tmp_path, monkeypatch):
    told: list[int] = []
    monkeypatch.setattr(Console, "write", lambda self, env_steps, *_: told.append(env_steps))
    train(config(tmp_path / "run", log_every=2))
    assert told == steps_of(metric_rows(tmp_path / "run"))


def test_a_resumed_run_logs_the_same_lines_where_there_are_fewer_than_updates(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "MOST_ROWS", 5)
    whole, stopped = config(tmp_path / "whole"), config(tmp_path / "stopped")
    train(whole)
    with pytest.MonkeyPatch.context() as patch:
        is_due = log.RunLog.is_due

        def stop_at_the_fourth(self: log.RunLog) -> bool:
            due = is_due(self)
            if self._progress.steps > 3 * ONE_UPDATE:
                signal.raise_signal(signal.SIGTERM)
            return due

        patch.setattr(log.RunLog, "is_due", stop_at_the_fourth)
        with pytest.raises(SystemExit):
            train(stopped)
    resume(tmp_path / "stopped")
    at = int(numbered(tmp_path / "stopped" / "checkpoints")[0].name)
    rows = [
        row
        for row in training_rows(tmp_path / "stopped")
        if row["env_steps"] != at or row in training_rows(tmp_path / "whole")
    ]
    assert rows == training_rows(tmp_path / "whole"), "except for the update at which it was stopped"
