"""A plot shows the given numbers, groups runs by seed, and reports what is missing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from birl.config import ConfigError
from birl.run.directory import Fork, runs_below, write_fork
from birl.run.logging import JsonlSink
from birl.run.plot import (
    COLOURS,
    Series,
    bootstrap_band,
    draw_series,
    mean_notes,
    plot_curves,
    plot_runs,
    read_run,
    read_runs,
    series_of,
    tick_text,
    with_parents,
)


def make_run(
    run_dir: Path, seed: int = 1, algorithm: str = "ppo", env_id: str = "CartPole-v1", **settings: Any
) -> Path:
    """A run whose return is env_steps / 10 + seed, in rows 100 steps and 1 second apart."""
    config = {"env": {"id": env_id, "num_envs": 8}, "run": {"seed": seed, "total_steps": 1000, "run_dir": str(run_dir)}}
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps({"algorithm": algorithm, "config": config | settings}))
    sink = JsonlSink(run_dir / "metrics.jsonl")
    for row in range(1, 11):
        sink.write(100 * row, float(row), {"episode/return": 10.0 * row + seed, "loss/value": float("nan")})
    sink.close()
    return run_dir


def labels(*run_dirs: Path) -> list[str]:
    return [
        series.label for series in series_of([read_run(run_dir, "env_steps", "episode/return") for run_dir in run_dirs])
    ]


def drawn(series: Series, smooth: float = 0.0) -> Any:
    axes = Figure().add_subplot()
    draw_series(axes, series, COLOURS[0], "-", smooth)
    return axes


def test_the_band_of_three_seeds_is_from_the_lowest_to_the_highest():
    low, high = bootstrap_band(np.array([[1.0, 10.0], [5.0, 30.0], [3.0, 20.0]]))
    np.testing.assert_allclose([low, high], [[1.0, 10.0], [5.0, 30.0]])


def test_the_band_of_many_normal_seeds_is_1_96_standard_errors_wide():
    curves = np.random.default_rng(1).normal(size=(400, 1))
    low, high = bootstrap_band(curves)
    np.testing.assert_allclose((high - low) / 2, 1.96 * curves.std() / 20, rtol=0.1)


def test_several_seeds_are_drawn_as_their_mean_where_all_of_them_have_values():
    curves = [(np.array([0.0, 10.0]), np.array([0.0, 10.0])), (np.array([2.0, 8.0]), np.array([6.0, 12.0]))]
    [line] = drawn(Series("ppo", curves)).get_lines()
    x, y = line.get_data()
    assert (x[0], x[-1]) == (2.0, 8.0)
    np.testing.assert_allclose(y, x + 2)


def test_one_seed_is_drawn_twice_raw_and_faint_then_smoothed_and_strong():
    x = np.arange(100.0)
    y = np.tile([0.0, 1.0], 50)
    raw, smoothed = drawn(Series("ppo", [(x, y)]), smooth=0.2).get_lines()
    np.testing.assert_array_equal(raw.get_ydata(), y)
    assert np.ptp(smoothed.get_ydata()) < 0.15
    assert raw.get_alpha() < 0.5
    assert raw.get_linewidth() < smoothed.get_linewidth()
    assert smoothed.get_label() == "ppo"


def test_a_single_evaluation_is_drawn_as_a_point():
    [line] = drawn(Series("ppo", [(np.array([1000.0]), np.array([500.0]))])).get_lines()
    assert (line.get_marker(), line.get_xdata(), line.get_ydata()) == ("o", 1000.0, 500.0)


def test_runs_that_differ_in_seed_directory_and_bookkeeping_are_one_series(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed) for seed in (1, 2, 3)]
    written = json.loads((runs[0] / "config.json").read_text())
    written["config"]["run"] |= {"tensorboard": True, "eval_every": 100}
    (runs[0] / "config.json").write_text(json.dumps(written))
    [series] = series_of([read_run(run, "env_steps", "episode/return") for run in runs])
    assert series.label == "ppo"
    assert [y[0] for _, y in series.curves] == [11.0, 12.0, 13.0]


def test_a_series_is_named_by_the_settings_that_set_it_apart(tmp_path):
    runs = [make_run(tmp_path / str(i), clip_range=clip_range, core="lstm") for i, clip_range in enumerate((0.1, 0.2))]
    assert labels(*runs, make_run(tmp_path / "a2c", algorithm="a2c")) == [
        "ppo, clip_range=0.1",
        "ppo, clip_range=0.2",
        "a2c",
    ]


def test_of_many_different_settings_the_fewest_that_tell_series_apart_are_named(tmp_path):
    settings = [
        {"core": core, "epochs": 1 + (core == "lstm"), "discount": 0.9, "minibatches": 1} for core in ("gru", "lstm")
    ]
    settings.append({"core": "feedforward", "epochs": 1, "discount": 0.99, "minibatches": 2})
    runs = [make_run(tmp_path / str(i), **one) for i, one in enumerate(settings)]
    assert labels(*runs) == [f"ppo, core={core}, and 3 more settings" for core in ("gru", "lstm", "feedforward")]


def test_a_series_is_named_by_its_environment_if_there_are_several(tmp_path):
    assert labels(make_run(tmp_path / "a"), make_run(tmp_path / "b", env_id="Acrobot-v1")) == [
        "ppo CartPole-v1",
        "ppo Acrobot-v1",
    ]


def test_a_picture_shows_each_series_in_its_colour(tmp_path):
    runs = [make_run(tmp_path / "a", 1), make_run(tmp_path / "b", 2), make_run(tmp_path / "c", 300, algorithm="a2c")]
    pixels = imread(plot_runs(runs, tmp_path / "curves.png"))[..., :3]
    for number, colour in enumerate(COLOURS[:3]):
        assert (np.abs(pixels - to_rgb(colour)).max(axis=-1) < 0.01).any() == (number < 2)


def test_seconds_are_shown_in_the_unit_that_reads_best(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "birl.run.plot.plot_curves",
        lambda series, out, title, x_label, *_: seen.update(curve=series[0].curves[0], label=x_label),
    )
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text(
        '{"env_steps": 1, "seconds": 60, "episode/return": 1}\n{"env_steps": 2, "seconds": 600, "episode/return": 2}\n'
    )
    plot_runs([run], tmp_path / "curves.png", x="seconds")
    assert seen["label"] == "wall time (min)"
    np.testing.assert_array_equal(seen["curve"][0], [1.0, 10.0])


def test_a_name_without_an_ending_becomes_a_png_in_a_directory_made_for_it(tmp_path):
    series = [Series("a very long label " * 20, [(np.array([0.0, 1.0]), np.array([0.0, 1.0]))])]
    out = plot_curves(series, tmp_path / "new" / "curves", "title", "x", "y")
    assert out == tmp_path / "new" / "curves.png"
    assert imread(out).shape[:2] == (704, 1152)


def test_plotting_leaves_pyplot_and_its_global_figures_alone_and_needs_no_jax(tmp_path):
    run, out = make_run(tmp_path / "a"), tmp_path / "a.png"
    code = (
        "import sys; from pathlib import Path; from birl.run.plot import plot_runs\n"
        f"plot_runs([Path({str(run)!r})], Path({str(out)!r}))\n"
        "print([name for name in ('matplotlib.pyplot', 'jax') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_cannot_be_plotted_is_said_with_what_there_is_instead(tmp_path):
    run = make_run(tmp_path / "a")
    out = tmp_path / "curves.png"
    with pytest.raises(ConfigError, match="no runs to plot"):
        plot_runs([], out)
    with pytest.raises(ConfigError, match=r"elsewhere holds no run: there is no config\.json"):
        plot_runs([tmp_path / "elsewhere"], out)
    with pytest.raises(ConfigError, match=r"no metric 'eval/return_mean'; it has episode/return$"):
        plot_runs([run], out, metric="eval/return_mean")
    with pytest.raises(ConfigError, match="no metric 'loss/value'"):  # all of it is null
        plot_runs([run], out, metric="loss/value")
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has no metrics yet"):
        plot_runs([run], out)
    assert not out.exists()


def test_a_run_that_is_still_being_written_can_be_plotted(tmp_path):
    run = make_run(tmp_path / "a")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 11')
    assert plot_runs([run], tmp_path / "curves.png").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-150.0, "-150"), (1500.0, "1.5k"), (100_000.0, "100k"), (2e6, "2M"), (0.25, "0.25")],
)
def test_numbers_on_axes_are_short(value, text):
    assert tick_text(value) == text


def test_a_directory_without_a_run_stands_for_the_runs_below_it(tmp_path):
    for name in ("b", "a", "deeper/c"):
        make_run(tmp_path / "runs" / name)
    checkpoint = tmp_path / "runs" / "a" / "checkpoints" / "000000100"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    assert runs_below(tmp_path / "runs") == [tmp_path / "runs" / name for name in ("a", "b", "deeper/c")]
    assert len(read_runs(tmp_path / "runs", "env_steps", "episode/return")) == 3
    assert plot_runs([tmp_path / "runs"], tmp_path / "all.png") == tmp_path / "all.png"
    assert len(read_runs(tmp_path / "runs" / "a", "env_steps", "episode/return")) == 1


def test_runs_below_a_directory_that_have_no_metrics_yet_are_left_out_with_a_warning(tmp_path):
    make_run(tmp_path / "old")
    (make_run(tmp_path / "young") / "metrics.jsonl").unlink()
    with pytest.warns(UserWarning, match=r"left out: .*young has no metrics yet"):
        assert len(read_runs(tmp_path, "env_steps", "episode/return")) == 1
    missing = r"no run below .* has the metric 'no/metric'"
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ConfigError, match=missing):
        read_runs(tmp_path, "env_steps", "no/metric")


def test_the_metrics_that_there_are_are_named_once_for_all_seeds(tmp_path, recwarn):
    for seed in (1, 2, 3):
        make_run(tmp_path / f"seed-{seed}", seed)
    with pytest.raises(ConfigError, match=r"no run below .* has the metric 'retrun'; they have episode/return"):
        read_runs(tmp_path, "env_steps", "retrun")
    assert not recwarn.list
    with (tmp_path / "seed-3" / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1100, "loss/value": 1.0}\n')
    assert len(read_runs(tmp_path, "env_steps", "loss/value")) == 1
    assert [str(one.message).partition("seed-")[2] for one in recwarn.list] == [
        "1 has no metric 'loss/value'",
        "2 has no metric 'loss/value'",
    ]


def test_a_run_that_is_named_itself_must_have_the_metric(tmp_path):
    with pytest.raises(ConfigError, match="has no metric"):
        plot_runs([make_run(tmp_path / "run")], tmp_path / "out.png", metric="no/metric")


def test_a_fork_leaves_the_line_of_its_parent_where_it_branched_off(tmp_path):
    parent, fork = make_run(tmp_path / "parent"), make_run(tmp_path / "fork", seed=5)
    write_fork(fork, Fork(parent, "000000550", 550, {}))
    read = [read_run(run_dir, "env_steps", "episode/return") for run_dir in (parent, fork)]
    whole, branch = with_parents(read)
    np.testing.assert_array_equal(whole.x, read[0].x)
    np.testing.assert_array_equal(branch.x, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000])
    np.testing.assert_array_equal(branch.y, [11, 21, 31, 41, 51, 65, 75, 85, 95, 105])
    series = series_of([branch])[0]
    axes = drawn(series)
    assert axes.lines[-1].get_xdata()[0] == 550, "the dot"
    np.testing.assert_allclose(axes.lines[-1].get_ydata()[0], 58.0)  # between the parent's 51 and the fork's 65
    assert min(axes.lines[1].get_xdata()) == 550, "the parent's part is drawn as the parent's"


def test_a_fork_without_its_parent_begins_with_its_own_rows(tmp_path):
    fork = make_run(tmp_path / "fork")
    write_fork(fork, Fork(tmp_path / "elsewhere", "000000050", 50, {}))
    run = with_parents([read_run(fork, "env_steps", "episode/return")])[0]
    assert drawn(series_of([run])[0]).lines[-1].get_xdata()[0] == 100


def test_forks_that_name_each_other_as_parents_do_not_hang(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        write_fork(make_run(tmp_path / name), Fork(tmp_path / other, "000000050", 50, {}))
    runs = with_parents([read_run(tmp_path / name, "env_steps", "episode/return") for name in "ab"])
    assert [len(run.x) for run in runs] == [10, 10]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_dollar_in_a_name_is_no_formula(tmp_path, ending):
    formula = r"a$\nothing$b"  # matplotlib refuses it as one
    series = [Series(formula, [(np.array([0.0, 1.0]), np.array([0.0, 1.0]))])]
    out = plot_curves(series, tmp_path / f"plot.{ending}", formula, formula, formula)
    assert out.stat().st_size > 1000


def short_rows(run_dir: Path, rows: int) -> Path:
    """The run, cut after so many rows."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("".join(lines[:rows]))
    return run_dir


def group_with_a_short_seed(folder: Path, failed: bool) -> Path:
    """Three seeds, of which the third has 3 of 10 rows, because it failed or is not there yet."""
    for seed in (1, 2, 3):
        make_run(folder / f"seed-{seed}", seed=seed)
    short_rows(folder / "seed-3", 3)
    (folder / "group.json").write_text("{}")
    (folder / "summary.json").write_text(json.dumps({"failed": {"seed-3": "NaN"} if failed else {}}))
    return folder


def test_a_failed_seed_is_drawn_thin_and_does_not_end_the_mean(tmp_path):
    [series] = series_of(read_runs(group_with_a_short_seed(tmp_path, failed=True), "env_steps", "episode/return"))
    thin, mean = drawn(series).get_lines()
    assert thin.get_xdata()[-1] == 300
    assert thin.get_linewidth() < mean.get_linewidth()
    assert mean.get_xdata()[-1] == 1000
    np.testing.assert_allclose(mean.get_ydata(), mean.get_xdata() / 10 + 1.5)  # of seeds 1 and 2
    assert mean_notes([series]) == ["ppo: 1 failed seed is drawn thin and not in the mean"]
    plot_curves([series], tmp_path / "plot.png", "title", "x", "y")


def test_a_mean_that_ends_with_an_unfinished_seed_is_noted(tmp_path):
    [series] = series_of(read_runs(group_with_a_short_seed(tmp_path, failed=False), "env_steps", "episode/return"))
    [mean] = drawn(series).get_lines()
    assert mean.get_xdata()[-1] == 300
    assert mean_notes([series]) == ["ppo: the mean ends at 300, with its first seed"]


def test_seeds_that_all_failed_are_drawn_as_they_are(tmp_path):
    folder = group_with_a_short_seed(tmp_path, failed=False)
    (folder / "summary.json").write_text(json.dumps({"failed": {f"seed-{seed}": "NaN" for seed in (1, 2, 3)}}))
    [series] = series_of(read_runs(folder, "env_steps", "episode/return"))
    assert (len(series.curves), len(series.failed)) == (3, 0)
