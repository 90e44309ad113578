"""Which updates get a line in metrics.jsonl."""

import json
import signal
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.algos import ppo
from birl.config import MOST_ROWS, EnvConfig, RunConfig
from birl.presets import all_presets
from birl.run.checkpoint import checkpoints_in
from birl.run.console import Console
from birl.run.run import Run
from birl.run.start import resume, train
from tests.run.processes import ROOT, metric_rows, reseal, training_rows

FOREVER = 10**9
PPO: dict[str, Any] = {"num_envs": 4, "rollout_length": 8, "epochs": 1, "minibatches": 1}
DQN: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 4, "learning_starts": 100, "batch_size": 4, "replay_size": 500,
    "update_ratio": 0.05,
}  # fmt: skip
RUNS = {
    "ppo": ("ppo", PPO),
    "ppo, compiled": ("ppo", PPO | {"backend": "compiled"}),
    "dqn": ("dqn", DQN),
    "dqn, compiled": ("dqn", DQN | {"backend": "compiled"}),
    "a3c": ("a3c", {"pool": "serial", "actor_learners": 2, "report_every": 50}),
}


def config(run_dir: Path, **settings: Any) -> ppo.Config:
    defaults = {
        "total_steps": 600,
        "checkpoint_every": 0,
        "eval_episodes": 1,
        "run_dir": str(run_dir),
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


def test_lines_are_chosen_by_steps_alone_and_of_a_long_run_there_are_about_2000():
    assert [RunConfig(total_steps=steps).steps_between_rows for steps in (1, 3_999, 40_000, 10**7)] == [1, 1, 20, 5_000]
    asked = [RunConfig(total_steps=10**8, log_every=every).steps_between_rows for every in (1, 10**6)]
    assert asked == [2_000, 10**6], "at most 50,000 lines"
    assert all(entry.config.run.log_every == 0 for entry in all_presets())


def test_the_return_is_null_before_an_episode_has_finished_and_the_pages_say_so(tmp_path):
    train(replace(config(tmp_path / "run", total_steps=8), rollout_length=2))
    assert training_rows(tmp_path / "run")[0]["episode/return"] is None
    for page, said in (("", "`null` until the first has finished"), (".zh-CN", "还没有回合结束时是 `null`")):
        lines = (ROOT / "docs" / f"runs-and-checkpoints{page}.md").read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith("| `episode/return`") and said in line]


def test_every_update_has_its_line_and_with_log_every_the_first_after_each_n_steps(tmp_path):
    train(config(tmp_path / "all"))
    train(config(tmp_path / "some", log_every=150))
    every = training_rows(tmp_path / "all")
    assert len(every) >= 9
    due = [next(row for row in every if row["env_steps"] >= steps) for steps in (150, 300, 450, 600)]
    assert training_rows(tmp_path / "some") == due


def test_what_is_saved_or_evaluated_is_logged_however_few_lines_there_are(tmp_path):
    train(config(tmp_path / "all"))
    train(config(tmp_path / "last", log_every=FOREVER))
    assert training_rows(tmp_path / "last") == training_rows(tmp_path / "all")[-1:]

    train(config(tmp_path / "some", log_every=FOREVER, checkpoint_every=200, keep_checkpoints=100))
    assert steps_of(training_rows(tmp_path / "some")) == [
        int(path.name) for path in checkpoints_in(tmp_path / "some" / "checkpoints")
    ]

    train(config(tmp_path / "evaluated", log_every=FOREVER, eval_every=150))
    evaluated = steps_of([row for row in metric_rows(tmp_path / "evaluated") if "eval/return_mean" in row])
    assert len(evaluated) >= 4
    assert steps_of(training_rows(tmp_path / "evaluated")) == evaluated


@pytest.mark.parametrize("algorithm", RUNS)
def test_the_same_run_has_the_same_lines_on_a_slow_clock_and_after_a_stop(algorithm, tmp_path, monkeypatch):
    """Compiled cycles are many to a chunk, as the clock goes, and not each one of DQN's learns."""
    name, settings = RUNS[algorithm]
    few = {"total_steps": 1200, "log_every": 200, "eval_episodes": 1, "hidden_sizes": (8,), "quiet": True}
    settings = settings | few
    with_clock(monkeypatch, 1e-6)
    birl.train(name, "CartPole-v1", **settings, run_dir=tmp_path / "whole")
    with_clock(monkeypatch, 10)
    with pytest.raises(SystemExit):
        stop_at(500, birl.start(name, "CartPole-v1", **settings, run_dir=str(tmp_path / "run")))
    with_clock(monkeypatch, 1e-3)
    birl.resume(tmp_path / "run", quiet=True)
    rows = training_rows(tmp_path / "whole")
    assert 5 <= len(rows) <= 6
    assert training_rows(tmp_path / "run") == rows


def stop_at(env_steps: int, run: Run) -> None:
    with run:
        for _ in run:
            if run.env_steps > env_steps:
                signal.raise_signal(signal.SIGTERM)


def with_clock(monkeypatch: pytest.MonkeyPatch, tick: float) -> None:
    """Time goes on by so many seconds at each look at the clock."""
    monkeypatch.setattr("time.perf_counter", partial(next, count(0, tick)))


def test_a_thousand_million_steps_take_less_than_100_megabytes(tmp_path):
    train(config(tmp_path / "run"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    assert MOST_ROWS * max(map(len, lines)) < 100e6


def test_the_console_is_told_what_the_file_is_told(tmp_path, monkeypatch):
    told: list[int] = []
    monkeypatch.setattr(Console, "write", lambda self, env_steps, *_: told.append(env_steps))
    train(config(tmp_path / "run", log_every=100))
    assert told == steps_of(metric_rows(tmp_path / "run"))


def test_a_run_of_a_version_that_chose_lines_by_the_clock_is_resumed(tmp_path):
    train(config(tmp_path / "run", total_steps=100))
    newest = checkpoints_in(tmp_path / "run" / "checkpoints")[-1]
    stored = json.loads((newest / "config.json").read_text())
    stored["run"] |= {"log_seconds": 0.5, "log_every": 1}
    (newest / "config.json").write_text(json.dumps(stored))
    reseal(newest)
    resume(tmp_path / "run", total_steps=200)
    assert "log_seconds" not in json.loads((tmp_path / "run" / "config.json").read_text())["config"]["run"]
