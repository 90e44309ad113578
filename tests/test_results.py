"""What is published is what was measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def readme(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme

    yield readme
    for name in ("readme", "results", "speed_rows"):
        sys.modules.pop(name, None)


def test_the_presets_state_the_scores_of_the_results(readme):
    assert readme.wrong_scores(readme.read_table(readme.read_section(readme.RESULTS, "learning"))) == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readmes_show_the_figures_of_the_results(readme, name):
    learning = readme.read_table(readme.read_section(readme.RESULTS, "learning"))
    assert readme.read_section(ROOT / name, "scores") == readme.chosen(learning, readme.SCORE_COLUMNS)
    assert readme.read_section(ROOT / name, "speed") == readme.speed_figures()
