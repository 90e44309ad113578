"""What is published is what was measured."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.processes import call_well

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def readme(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme

    yield readme
    for name in ("readme", "results", "speed_rows", "learning"):
        sys.modules.pop(name, None)


def test_the_presets_state_the_scores_of_the_results(readme):
    assert readme.wrong_scores(readme.read_table(readme.read_section(readme.RESULTS, "learning"))) == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readmes_show_the_figures_of_the_results(readme, name):
    learning = readme.read_table(readme.read_section(readme.RESULTS, "learning"))
    assert readme.read_section(ROOT / name, "scores") == readme.score_figures(learning)
    assert readme.read_section(ROOT / name, "speed") == readme.speed_figures()


def test_finished_runs_are_scored_if_they_had_the_settings_that_are_asked_for(readme, tmp_path):
    import learning

    flags = ["--total-steps", "64", "--eval-episodes", "1"]
    call_well("train", "a2c", "CartPole-v1", *flags, "--seed", 3, "--run-dir", tmp_path / "run")
    [run] = learning.finished_runs([tmp_path / "run"], "a2c", "CartPole-v1", flags)
    assert run.seed == 3
    assert run.score is not None
    for algorithm, other in (("a2c", ["--total-steps", "65"]), ("a2c", [*flags, "--discount", "0.5"]), ("a3c", flags)):
        with pytest.raises(SystemExit, match="is not a run of"):
            learning.finished_runs([tmp_path / "run"], algorithm, "CartPole-v1", other)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(SystemExit, match="the same seed"):
        learning.finished_runs([tmp_path / "run", tmp_path / "copy"], "a2c", "CartPole-v1", flags)
    (tmp_path / "copy" / "summary.json").unlink()
    [run] = learning.finished_runs([tmp_path / "copy"], "a2c", "CartPole-v1", flags)
    assert (run.score, "no usable summary" in run.problem) == (None, True)


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readmes_count_the_lines_that_a_newcomer_reads(name):
    counted = subprocess.run(
        [sys.executable, ROOT / "docs" / "reading_path.py"], capture_output=True, text=True, check=True
    ).stdout
    sums = re.findall(r"^ *(\d+) lines", counted, re.MULTILINE)
    wholes = [
        re.search(rf"of +(\d+) in birl/{path}:", counted)
        for path in ("types.py", "maths/returns.py", "data/collect.py", "algos/ppo.py")
    ]
    text = (ROOT / name).read_text(encoding="utf-8")
    paragraph = next(line for line in text.split("\n\n") if "docs/reading_path.py" in line)
    assert re.findall(r"\b\d{2,}\b", paragraph) == [*sums, *[whole[1] for whole in wholes if whole]]
