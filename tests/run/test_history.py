"""A run's directory as data: settings, curves, and which runs differ only in their seed."""

from pathlib import Path

import pytest

import birl
from birl.config import ConfigError, to_json
from birl.errors import UnreadableError
from birl.maths.schedules import Schedule, format
from birl.run import history
from birl.run.directory import Fork, write_fork
from birl.run.history import by_settings, differing, label, read_histories, read_history
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


def test_of_several_rows_at_one_step_the_last_counts(tmp_path: Path):
    run_dir = make_run(tmp_path / "a")
    rows = [(500, 1), (300, 2), (500, 3), (300, 4)]
    lines = [f'{{"env_steps": {step}, "seconds": 1, "episode/return": {value}}}\n' for step, value in rows]
    (run_dir / "metrics.jsonl").write_text("".join(lines))
    steps, returns = read_history(run_dir).curve("episode/return")
    assert (steps.tolist(), returns.tolist()) == ([300, 500], [4, 3])


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


@pytest.mark.parametrize(
    "schedule",
    [
        birl.linear(1e-3, 0.0),
        birl.linear(1.0, 0.1, 0.5),
        birl.exponential(1.0, 0.1),
        birl.piecewise((0.0, 0.5), (1.0, 2.0)),
    ],
)
def test_a_schedule_is_one_setting_as_its_option_writes_it(tmp_path: Path, schedule: Schedule):
    values = [schedule, 0.1]
    for number, value in enumerate(values):
        make_run(tmp_path / str(number), learning_rate=to_json(value))
    groups = by_settings(read_histories(tmp_path))
    assert [group.label for group in groups] == [f"ppo, learning_rate={format(value)}" for value in values]
    assert groups[0].settings["learning_rate"] == format(schedule)


def test_a_damaged_fork_file_is_reported_and_the_run_is_read_without_it(tmp_path: Path):
    run = make_run(tmp_path / "a")
    (run / "fork.json").write_text("{}")
    with pytest.warns(UserWarning, match="must name a parent"):
        assert read_history(run).fork is None


def test_a_lane_has_the_problem_that_its_group_names_until_it_has_ended(tmp_path: Path):
    group, lane = tmp_path / "group", tmp_path / "group" / "rate=1" / "seed-1"
    make_run(lane)
    assert read_history(lane).problem is None
    (group / "group.json").write_text("{}")
    (group / "summary.json").write_text('{"failed": {"rate=1/seed-1": "killed"}}')
    assert read_history(lane).problem == "killed"
    (lane / "summary.json").write_text('{"env_steps": 1000, "evaluation": null}')
    assert read_history(lane).problem is None


def make_fork(
    run_dir: Path, parent: Path, env_steps: int, changed: dict[str, tuple[float, float]], seed: int = 1
) -> Path:
    """A run that says that it is a fork; `changed` has values before and after."""
    make_run(run_dir, seed=seed, **{name: new for name, (_, new) in changed.items()})
    write_fork(run_dir, Fork(parent, f"{env_steps:09d}", env_steps, changed))
    return run_dir


def test_a_fork_knows_its_parent_wherever_both_are_moved(tmp_path: Path):
    parent = make_run(tmp_path / "a" / "parent")
    make_fork(tmp_path / "a" / "fork", parent, 500, {"learning_rate": (0.1, 0.2)})
    (tmp_path / "a").rename(tmp_path / "b")
    fork = read_history(tmp_path / "b" / "fork").fork
    assert fork == Fork(tmp_path / "b" / "parent", "000000500", 500, {"learning_rate": (0.1, 0.2)})
    assert read_history(tmp_path / "b" / "parent").fork is None


def test_a_fork_is_not_a_seed_of_runs_that_had_its_settings_all_the_time(tmp_path: Path):
    parent = make_run(tmp_path / "parent", learning_rate=0.1)
    make_run(tmp_path / "other", learning_rate=0.2)
    for seed, steps in ((1, 500), (2, 503)):  # the checkpoints of seeds are near each other
        make_fork(tmp_path / f"fork-{seed}", parent, steps, {"learning_rate": (0.1, 0.2)}, seed)
    make_fork(tmp_path / "late", parent, 900, {"learning_rate": (0.1, 0.2)})
    groups = by_settings(read_histories(tmp_path))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("ppo, fork at 50 %, learning_rate=0.2", 2),
        ("ppo, fork at 90 %, learning_rate=0.2", 1),
        ("ppo, learning_rate=0.2", 1),
        ("ppo, learning_rate=0.1", 1),
    ]


def test_forks_of_different_parents_to_the_same_settings_are_told_apart(tmp_path: Path):
    parent = make_run(tmp_path / "parent")
    for before in (0.1, 0.3):
        make_fork(tmp_path / f"from-{before}", parent, 500, {"learning_rate": (before, 0.2)})
    assert [group.label for group in by_settings(read_histories(tmp_path))[:2]] == [
        "ppo, fork at 50 %, before: learning_rate=0.1, learning_rate=0.2",
        "ppo, fork at 50 %, before: learning_rate=0.3, learning_rate=0.2",
    ]


def test_a_damaged_fork_json_is_reported_and_the_run_is_read(tmp_path: Path):
    make_run(tmp_path / "a")
    (tmp_path / "a" / "fork.json").write_text('{"parent": 3}')
    with pytest.warns(UserWarning, match=r"fork\.json is damaged"):
        assert read_history(tmp_path / "a").fork is None


@pytest.mark.parametrize(("env_steps", "text"), [(400, "400 steps"), (413, "400 steps"), (470, "47 %"), (150, "15 %")])
def test_forks_of_several_seeds_are_at_the_steps_that_their_checkpoints_were_kept_for(tmp_path, env_steps, text):
    config = {"id": "CartPole-v1"}, {"seed": 1, "total_steps": 1000, "keep_every": 200}
    make_run(tmp_path / "fork", env=config[0], run=config[1])
    write_fork(tmp_path / "fork", Fork(tmp_path / "parent", f"{env_steps:09d}", env_steps, {}))
    assert read_history(tmp_path / "fork").settings["fork"] == f"fork at {text}"


def test_labels_end_where_nothing_tells_runs_apart():
    task = {"algorithm": "ppo", "env.id": "CartPole-v1"}
    first, second = ({**task, **dict.fromkeys("abcd", value)} for value in (1, 2))
    assert label(second, [first, first, second]) == "ppo, a=2, and 3 more settings"
    assert label(first, [first, first | {"e": None}, second]) == "ppo, a=1, and 3 more settings"


def test_a_curve_is_read_once_and_cannot_be_changed_by_a_caller(tmp_path: Path):
    run = read_history(make_run(tmp_path / "a"))
    steps, returns = run.curve("episode/return")
    assert run.curve("episode/return")[0] is steps
    assert run.curve("episode/return", "seconds")[0].tolist() != steps.tolist()
    with pytest.raises(ValueError, match="read-only"):
        returns += 1.0


def test_metrics_that_might_fill_the_memory_as_rows_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(tmp_path / "run")
    size = (run / "metrics.jsonl").stat().st_size
    monkeypatch.setattr(history, "free_memory", lambda: 17 * size)
    assert len(read_history(run).rows) == 10
    monkeypatch.setattr(history, "free_memory", lambda: 17 * size - 1)
    with pytest.raises(UnreadableError, match=r"metrics\.jsonl needs .* GB of memory are free; free some"):
        read_history(run)
