"""Published figures are measured figures, and the READMEs count what there is."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from birl import ALGORITHMS
from birl.nets.encoders import make_mlp
from birl.presets import all_presets
from birl.presets.entry import SCORES as MEASURED
from birl.presets.published import NOTES, SCORES, SOURCES, best_published, published, task_of

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ["", ".zh-CN"]


@pytest.fixture
def readme(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme

    yield readme
    for name in ("readme", "readme_zh", "results", "speed_rows"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def reading_path():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import reading_path

        yield reading_path
    for name in ("reading_path", "reading_path_sb3"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def paths(reading_path):
    """What docs/reading_path.py records for each algorithm."""
    return reading_path.record_each(reading_path.RUNS)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def numbers_in(text: str) -> list[str]:
    """The numbers of a text, without those in code, links and names such as SB3."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    return re.findall(r"(?<![A-Za-z\d.,])\d(?:[\d,.]*\d)?", prose)


def bullets_of(name: str) -> list[str]:
    """The bullets of the second section of a README, which says why to use Birl."""
    return re.split(r"^- ", text_of(name).split("\n## ")[1], flags=re.MULTILINE)[1:]


def test_the_presets_state_the_scores_of_the_results(readme):
    written = readme.preset_scores(readme.learning_rows())
    assert json.loads(MEASURED.read_text(encoding="utf-8")) == written, "run python benchmarks/readme.py"
    assert sum(preset.measured is not None for preset in all_presets()) == len(written) > 40


def test_only_rows_of_presets_become_their_scores(readme):
    cartpole = {"algorithm": "ppo", "environment": "CartPole-v1", "IQM": "499.5", "95 % interval": "480.0 to 500.0"}
    rows = [
        cartpole | {"variant": "", "each seed": "1: 499, 2: 500"},
        cartpole | {"variant": "--hide-velocities --core gru", "each seed": "1: 499.5"},
        cartpole | {"variant": "--total-steps 1000", "each seed": "1: 499, 2: 500"},
        cartpole | {"variant": "", "environment": "Mine-v0", "each seed": "1: 499, 2: 500"},
    ]
    assert readme.preset_scores(rows) == {
        "ppo CartPole-v1": {"score": 499.5, "interval": [480.0, 500.0], "seeds": 2},
        "ppo CartPole-v1 --hide-velocities --core gru": {"score": 499.5, "interval": None, "seeds": 1},
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_show_the_figures_of_the_results(readme, language):
    for page, texts in readme.sections(language).items():
        for name, text in texts.items():
            assert readme.read_section(ROOT / page, name) == text, f"{page}: run python benchmarks/readme.py"


def test_every_published_score_has_a_source_and_belongs_to_an_algorithm_and_an_environment():
    keys = [
        (source, algorithm, env)
        for source, rows in SCORES.items()
        for (algorithm, _), scores in rows.items()
        for env in scores
    ]
    assert len(set(keys)) == len(keys)
    assert set(SCORES) == set(SOURCES)
    assert set(NOTES) <= set(keys)
    assert {algorithm for _, algorithm, _ in keys} <= set(ALGORITHMS)
    presets = {preset.config.env.id for preset in all_presets()}
    elsewhere = {task_of(algorithm, env)[1] for _, algorithm, env in keys} - presets
    assert elsewhere == {"BipedalWalker-v3"}  # has no preset; a wrong id or version would be here, too


@pytest.mark.parametrize(
    ("theirs", "task"),
    [
        ("Hopper-v3", ("ppo", "Hopper-v5", False, "feedforward")),
        ("LunarLander-v2", ("ppo", "LunarLander-v3", False, "feedforward")),
        ("CartPole-v1", ("ppo", "CartPole-v1", False, "feedforward")),
        ("PongNoFrameskip-v4", ("ppo", "ALE/Pong-v5", False, "feedforward")),
        ("PendulumNoVel-v1", ("ppo", "Pendulum-v1", True, "lstm")),
    ],
)
def test_an_older_version_of_an_environment_is_compared_with_the_presets_one(theirs, task):
    assert task_of("ppo", theirs) == task


def test_the_best_published_score_is_the_highest_of_its_task_with_its_source():
    assert {(one.source, one.env_id) for one in published("trpo", "Hopper-v5")} == {
        ("RL Zoo", "Hopper-v3"),
        ("Tianshou", "Hopper-v3"),
        ("sb3-contrib", "Hopper-v3"),
    }
    assert best_published("trpo", "Hopper-v5") == (3618, "RL Zoo", "Hopper-v3", 1_000_000, "")
    assert best_published("dqn", "LunarLander-v3").note == "double, prioritized"
    assert best_published("ppo", "CartPole-v1", hide_velocities=True, core="lstm").env_id == "CartPoleNoVel-v1"
    assert best_published("ppo", "CartPole-v1", hide_velocities=True) is None


def test_the_page_of_scores_names_every_row_that_is_below_a_published_score(readme):
    rows = {row["algorithm"] + " " + row["environment"]: row for row in readme.learning_rows() if not row["variant"]}
    page = readme.read_section(ROOT / "docs" / "scores.md", "published")
    named = set(re.findall(r"`([^`]+)`", page))
    for key, row in rows.items():
        best = best_published(row["algorithm"], row["environment"])
        assert (best is not None and float(row["IQM"]) < best.score) == (key in named)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_on_speed_states_the_ratios_of_the_quiet_machine(readme, language):
    prose = text_of(f"docs/speed{language}.md").split("<!-- speed:begin -->")[0]
    ratios = {ratio for shown in readme.SHOWN_SPEED for ratio in numbers_in(f"{shown.quiet_sb3} {shown.quiet_sbx}")}
    assert ratios <= set(numbers_in(prose))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_readme_is_short(language):
    assert len(text_of(f"README{language}.md").splitlines()) <= 180


def test_the_picture_of_the_readmes_is_small():
    assert (ROOT / "docs" / "images" / "lunarlander.gif").stat().st_size < 1_000_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_reasons_to_use_birl_have_the_numbers_of_the_tables(readme, language):
    fast, _, exact, _, measured = bullets_of(f"README{language}.md")
    assert set(numbers_in(fast)) <= set(numbers_in(readme.short_speed(language)))
    assert numbers_in(exact) == [str(len(ALGORITHMS))]
    presets = all_presets()
    scores = [preset.measured for preset in presets if preset.measured is not None]
    intervals = sum(measured.interval is not None for measured in scores)
    assert numbers_in(measured) == [str(len(presets)), str(len(scores)), str(intervals), "95"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_counts_of_lines_in_the_readmes_are_where_the_script_writes_them(reading_path, tmp_path, language):
    path = tmp_path / "README.md"
    path.write_text(text_of(f"README{language}.md"), encoding="utf-8")
    bullet, paragraph = counts_in(text_of(f"README{language}.md"))
    assert len(bullet) == 2
    sb3, sb3_files = reading_path.SB3_COUNTS["ppo"]
    assert paragraph[3:] == [f"{n:,}" for n in (sb3, sb3_files, reading_path.CLEANRL_PPO)]
    assert {paragraph[3], paragraph[5]} <= set(numbers_in(text_of(f"docs/decisions{language}.md")))
    reading_path.write_counts(path, ["7,001", "7,002"], ["7,003", "7,004", "7,005", *paragraph[3:]])
    written = path.read_text(encoding="utf-8")
    assert counts_in(written) == (["7,001", "7,002"], ["7,003", "7,004", "7,005", *paragraph[3:]])
    reading_path.write_counts(path, bullet, paragraph)
    assert path.read_text(encoding="utf-8") == text_of(f"README{language}.md")


def counts_in(readme: str) -> tuple[list[str], list[str]]:
    """The numbers of the bullet on readable code, and of the paragraph on docs/reading_path.py."""
    _, readable, *_ = re.split(r"^- ", readme.split("\n## ")[1], flags=re.MULTILINE)[1:]
    [paragraph] = [part for part in readme.split("\n\n") if "docs/reading_path.py" in part]
    return numbers_in(readable), numbers_in(paragraph)


@pytest.mark.release
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_readmes_count_the_lines_that_a_newcomer_reads(reading_path, paths, language):
    training, command = paths["ppo"].training, paths["ppo"].command
    lines, before = (sum(sum(counts.values()) for counts in files.values()) for files in (training, command))
    sb3, sb3_files = reading_path.SB3_COUNTS["ppo"]
    cleanrl = reading_path.CLEANRL_PPO
    ppo = len(reading_path.code_lines(text_of("birl/algos/ppo.py")))
    bullet, paragraph = counts_in(text_of(f"README{language}.md"))
    remedy = "run python docs/reading_path.py --write"
    assert bullet == [f"{n:,}" for n in (ppo, lines)], remedy
    assert paragraph == [f"{n:,}" for n in (lines, len(training), before, sb3, sb3_files, cleanrl)], remedy


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_the_reading_path_of_an_algorithm_has_its_own_update_and_what_it_learns_from(paths, algorithm):
    training = paths[algorithm].training
    own = {name for name in training if name.startswith("algos/")}
    assert own == {f"algos/{algorithm}.py"}
    assert {"train", "cycle", "update"} <= set(training[f"algos/{algorithm}.py"])
    of_a_replay = {"Replay.gather", "take_steps"}
    called = {definition for definitions in training.values() for definition in definitions}
    assert of_a_replay & called == (set() if algorithm == "ppo" else of_a_replay)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_switches_are_between_two_files_of_the_training_part(paths, algorithm):
    path = paths[algorithm]
    assert len(set(path.switches)) == len(path.switches)
    for (file, caller), (other_file, called) in path.switches:
        assert file != other_file
        assert caller in path.training[file]
        assert called in path.training[other_file]
    called = {name for caller, (_, name) in path.switches if caller == (f"algos/{algorithm}.py", "cycle")}
    assert any(name.endswith(".collect") for name in called)


def test_a_switch_counts_once_however_often_it_is_taken(reading_path):
    recorder = reading_path.Recorder("ppo")
    sys.setprofile(recorder)
    for _ in range(2):
        make_mlp(np.random.default_rng(0), (2, 3, 3), "tanh")
    sys.setprofile(None)
    files = ["nets/allowance.py", "nets/encoders.py", "nets/layers.py"]
    assert reading_path.switches_of(recorder.calls, files) == [
        (("nets/encoders.py", "make_mlp"), ("nets/layers.py", "make_linear")),
        (("nets/layers.py", "full"), ("nets/allowance.py", "spend")),
        (("nets/layers.py", "orthogonal"), ("nets/allowance.py", "spend")),
    ]
    assert reading_path.switches_of(recorder.calls, files[:2]) == []


def test_the_table_of_reading_paths_is_where_the_script_writes_it(reading_path, tmp_path):
    page = tmp_path / "architecture.md"
    page.write_text(text_of("docs/architecture.md"), encoding="utf-8")
    reading_path.write_table(page, reading_path.table_of({}, {}))
    header = reading_path.table_of({}, {})
    before, after = text_of("docs/architecture.md").split(header)
    rows, end, after = after.partition("\n\n<!-- reading-path:end -->")
    counted = re.findall(r"^\| (\w+) \| [\d,]+ \| \d+ \| \d+ \| ([\d,]+) \| (\d+) \|$", rows, re.MULTILINE)
    assert counted == [(name, f"{lines:,}", str(files)) for name, (lines, files) in reading_path.SB3_COUNTS.items()]
    assert page.read_text(encoding="utf-8") == before + header + end + after


@pytest.mark.release
def test_the_page_on_architecture_has_the_table_of_reading_paths(reading_path, paths, tmp_path):
    page = tmp_path / "architecture.md"
    page.write_text(text_of("docs/architecture.md"), encoding="utf-8")
    reading_path.write_table(page, reading_path.table_of(paths, reading_path.SB3_COUNTS))
    assert page.read_text(encoding="utf-8") == text_of("docs/architecture.md"), "run docs/reading_path.py --write"


def test_a_class_in_two_lists_of_sb3_counts_once(reading_path, tmp_path):
    (tmp_path / "a.py").write_text("class A:\n    x = 1\n    def f(self):\n        return 1\n    def g(self): ...\n")
    fields, f, g = 2, 2, 1
    assert reading_path.count_listed(tmp_path, ({"a.py": "A: f"}, {"a.py": "A: g"})) == (fields + f + g, 1)


def test_the_script_prints_the_table_and_each_switch(reading_path, paths, monkeypatch, capsys):
    monkeypatch.setattr(reading_path, "record_each", lambda names: {name: paths[name] for name in names})
    monkeypatch.setattr(sys, "argv", ["reading_path.py", "--algorithm", "dqn", "--verbose"])
    reading_path.main()
    printed = capsys.readouterr().out
    assert reading_path.table_of({"dqn": paths["dqn"]}, reading_path.SB3_COUNTS) in printed
    assert printed.count(" -> ") == len(paths["dqn"].switches)
