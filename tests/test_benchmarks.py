"""Benchmarks give every contender the same work, and their rows say what was measured."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from birl.cli.train_options import training_config
from birl.config import RunConfig
from tests.run.processes import call_well

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("compiled", "compiled_pictures", "compiled_rows", "speed", "speed_rows", "results", "peers", "birl_settings")
MODULES += ("learning", "tuning")
SHORT = ["--total-steps", "1000", "--eval-episodes", "1"]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    for folder in ("benchmarks", "benchmarks/peer_scripts"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("row", ["ppo-lanes", "dqn-lanes"])
def test_the_words_for_the_command_line_give_the_config_of_the_settings(row):  # and nothing of a preset
    from birl_settings import config_of, words_of
    from compiled_rows import ROWS

    settings = ROWS[row].settings
    algorithm, env, *words = words_of(settings, total_steps=1000)
    given, _ = training_config(algorithm, env, words)
    assert (given.run.total_steps, given.run.seed) == (1000, settings["seed"])
    assert replace(given, run=RunConfig()) == replace(config_of(settings), run=RunConfig())


def test_a_quick_row_has_the_contenders_and_settings_of_the_row_and_fewer_steps():
    from compiled_rows import ROWS, quick

    for row in ROWS.values():
        for whole, short in zip(row.contenders, quick(row).contenders, strict=True):
            before, after = (row.settings | contender.settings for contender in (whole, short))
            assert after["total_steps"] <= before["total_steps"]
            assert {name for name in before if before[name] != after[name]} <= {"total_steps", "lanes"}


def test_a_target_names_contenders_of_its_row():
    from compiled_rows import ROWS

    for row in ROWS.values():
        names = {contender.name for contender in row.contenders}
        assert {name for wanted in row.wanted for name in (wanted.contender, wanted.against)} <= names


def test_a_row_replaces_only_its_own_part_of_the_results(tmp_path):
    from compiled import SECTION
    from results import read_section
    from speed import write_row

    path = tmp_path / "RESULTS.md"
    for name, text in (("bands", "first"), ("ppo-zoo", "second"), ("bands", "third")):
        write_row(path, SECTION, name, text)
    assert (read_section(path, "compiled/ppo-zoo"), read_section(path, "compiled/bands")) == ("second", "third")
    assert path.read_text().index("second") < path.read_text().index("third")  # in the order of the rows


def test_equal_curves_overlap_everywhere_and_distant_ones_nowhere():
    from compiled_pictures import compare

    steps, noise = np.linspace(0, 100, 50), np.random.default_rng(0).normal(size=(10, 50))
    curves = [(steps, row) for row in noise]
    assert compare(curves, curves)[-1].startswith("100%")
    assert compare(curves, [(x, y + 50) for x, y in curves])[-1].startswith("0%")
    assert compare(curves, [(x, y + 50 * (x > 50)) for x, y in curves])[-1].startswith(("48%", "49%", "50%"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A group of two seeds of A2C."""
    group = tmp_path_factory.mktemp("trained") / "group"
    call_well("train", "a2c", "CartPole-v1", *SHORT, "--seed", 3, "--seeds", 2, "--run-dir", group)
    return group


def rows_of_learning(path: Path, monkeypatch, *words: object) -> tuple[int, list[list[str]]]:
    """The exit code of learning.py with these words, and the rows of its table afterwards."""
    import learning

    monkeypatch.setattr(learning, "ROOT", path.parent)
    monkeypatch.setattr(sys, "argv", ["learning.py", *map(str, words), "--results", str(path)])
    code = learning.main()
    table = [line for line in learning.read_section(path, "learning").splitlines() if line.startswith("| ")]
    return code, [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_a_row_of_learning_has_the_scores_of_the_groups_summary(tmp_path, monkeypatch):
    task = ("a2c", "CartPole-v1", "--first-seed", 3, "--seeds", 2, *SHORT)
    code, [row] = rows_of_learning(tmp_path / "RESULTS.md", monkeypatch, *task, "--plot", tmp_path / "curves.png")
    [summary] = [json.loads(path.read_text()) for path in tmp_path.glob("runs/learning/*/*/summary.json")]
    [point] = summary["points"]
    assert (code, row[:4]) == (0, ["a2c", "CartPole-v1", " ".join(SHORT), f"{point['iqm']:.1f}"])
    assert row[4:6] == ["{:.1f} to {:.1f}".format(*point["interval"]), scores_text(point["lanes"])]
    assert [lane["seed"] for lane in point["lanes"]] == [3, 4]
    assert row[6] == f"{max(lane['env_steps'] for lane in point['lanes']):,}"
    assert (tmp_path / "curves.png").stat().st_size > 0


def scores_text(lanes: list[dict]) -> str:
    return ", ".join(f"{lane['return_mean']:.1f}" for lane in lanes)


def test_finished_runs_and_groups_are_scored_as_they_were_when_they_ended(trained, tmp_path, monkeypatch):
    task = ("a2c", "CartPole-v1", *SHORT, "--finished")
    path = tmp_path / "RESULTS.md"
    code, [of_group] = rows_of_learning(path, monkeypatch, *task, trained)
    _, [of_runs] = rows_of_learning(path, monkeypatch, *task, trained / "seed-4", trained / "seed-3")
    [point] = json.loads((trained / "summary.json").read_text())["points"]
    assert (code, of_group[3], of_group[5]) == (0, f"{point['iqm']:.1f}", scores_text(point["lanes"]))
    assert of_group[:-1] == of_runs[:-1]  # all but the time
    _, [alone] = rows_of_learning(path, monkeypatch, *task, trained / "seed-3")
    assert (alone[3], alone[4]) == (alone[5], "–")  # one seed has no interval


def test_a_run_that_has_not_ended_leaves_no_mean(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "group")
    (tmp_path / "group" / "seed-3" / "summary.json").unlink()
    task = ("a2c", "CartPole-v1", *SHORT, "--finished")
    code, [row] = rows_of_learning(tmp_path / "RESULTS.md", monkeypatch, *task, tmp_path / "group")
    assert (code, row[3], row[4], row[5].partition(",")[0]) == (1, "–", "–", "failed")


@pytest.mark.parametrize(
    ("algorithm", "flags", "named"),
    [
        ("a2c", ["--total-steps", "1001"], "total_steps"),
        ("a2c", [*SHORT, "--discount", "0.5"], ": discount"),
        ("a3c", SHORT, "algorithm"),
    ],
)
def test_runs_with_other_settings_are_not_scored(trained, algorithm, flags, named):
    from learning import finished_runs

    with pytest.raises(SystemExit, match=f"seed-3 is not a run of {algorithm} on CartPole-v1 .*{named}"):
        finished_runs([trained], algorithm, "CartPole-v1", flags)


def test_a_seed_is_not_scored_twice(trained):
    from learning import finished_runs

    with pytest.raises(SystemExit, match="the same seed"):
        finished_runs([trained, trained / "seed-3"], "a2c", "CartPole-v1", SHORT)


def test_what_birl_train_refuses_leaves_no_row(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        rows_of_learning(tmp_path / "RESULTS.md", monkeypatch, "a2c", "CartPole-v1", "--discont", "0.9")
    assert (ended.value.code, "you may mean --discount" in capsys.readouterr().err) == (2, True)
    assert not (tmp_path / "RESULTS.md").exists()


def test_a_halving_that_ends_below_random_has_not_reached_its_score():
    from tuning import HALVING, Reached, halving_cells

    random = Reached(best=200.0, env_steps=9_000, first=6_000)
    named = dict(zip(HALVING[3:8], halving_cells(Reached(200.0, 3_000, 1_500), random), strict=True))
    assert named["env steps to random's best"] == "1,500"
    assert named["of random's steps to it"] == "25%"
    assert named["env steps of the whole search"] == "3,000"
    assert named["of random's whole search"] == "33%"
    worse = halving_cells(Reached(150.0, 3_000, None), random)
    assert worse == ["150.0", "not reached", "", "3,000", "33%"]
