"""The benchmark of compiled environments gives every contender the same work."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from birl.cli.train_options import training_config
from birl.config import RunConfig

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("compiled", "compiled_pictures", "compiled_rows", "speed", "speed_rows", "results", "peers", "birl_settings")


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
