"""A run's directory as data: settings, curves, and which runs differ only in their seed."""

from pathlib import Path

import pytest

from birl.config import ConfigError
from birl.run.history import by_settings, differing, read_histories, read_history
from tests.run.test_plot import make_run


def test_a_history_has_settings_rows_and_no_summary_before_the_end(tmp_path: Path):
    run = read_history(make_run(tmp_path / "a", seed=3, learning_rate=0.1))
    assert run.seed == 3
    assert run.settings["learning_rate"] == 0.1
    assert len(run.rows) == 10
    assert run.summary is None


def test_a_curve_is_in_the_order_of_its_axis_without_rows_that_lack_the_metric(tmp_path: Path):
    run = read_history(make_run(tmp_path / "a", seed=3))
    steps, returns = run.curve("episode/return")
    assert steps.tolist() == [100.0 * row for row in range(1, 11)]
    assert returns.tolist() == [10.0 * row + 3 for row in range(1, 11)]
    assert run.curve("episode/return", "seconds")[0].tolist() == list(range(1, 11))
    assert len(run.curve("loss/value")[0]) == 0  # NaN in every row
    assert "loss/value" not in run.metric_names()


def test_runs_that_differ_only_in_their_seed_are_one_group(tmp_path: Path):
    for seed in (1, 2):
        for rate in (0.1, 0.2):
            make_run(tmp_path / f"rate={rate}" / f"seed-{seed}", seed=seed, learning_rate=rate)
    groups = by_settings(read_histories(tmp_path))
    assert [group.label for group in groups] == ["ppo, learning_rate=0.1", "ppo, learning_rate=0.2"]
    assert [[run.seed for run in group.runs] for group in groups] == [[1, 2], [1, 2]]
    assert differing([group.settings for group in groups]) == ["learning_rate"]


def test_a_directory_without_runs_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no run"):
        read_histories(tmp_path)
