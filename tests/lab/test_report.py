"""A report says what the run directories say, in one file, and strangers' text stays text."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.config import ConfigError
from birl.lab.diagnosis.diagnoses import Evidence, Fault, diagnosis_text
from birl.lab.diagnosis.diagnosing import diagnose_runs
from birl.lab.diagnosis.facts import facts_of
from birl.lab.diagnosis.rules import RULES
from birl.lab.report.charts import FEWEST_POINTS, curve_data, curves_section, mean_and_band, rounded, thinned
from birl.lab.report.page import (
    COLOURS,
    Html,
    Section,
    bars,
    code_of,
    data,
    element,
    folded,
    join,
    page,
    table,
    write_report,
)
from birl.lab.report.provenance import branches_section, settings_section
from birl.lab.report.results import (
    compared,
    comparison_section,
    episodes_section,
    results_section,
    seconds_of,
    times_section,
)
from birl.lab.report.sections import best_run, diagnosis_parts, findings_section, read_groups, report
from birl.run.directory import Fork, write_fork
from birl.run.history import by_settings, read_histories, read_history
from birl.run.logging import JsonlSink
from tests.run.processes import call, call_well
from tests.run.test_plot import group_with_a_short_seed, make_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\u202e\"'&lt;\ud800"


class Structure(HTMLParser):
    """The elements of a page, its text, and what is inside of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.scripts if self.tags and self.tags[-1][0] == "script" else self.words).append(data)


def write_group(folder: Path, seeds: int = 3, algorithm: str = "ppo", **settings: Any) -> Path:
    """Runs of several seeds that have ended, with evaluations and times."""
    for seed in range(1, seeds + 1):
        run_dir = make_run(folder / f"seed-{seed}", seed=seed, algorithm=algorithm, **settings)
        sink = JsonlSink(run_dir / "metrics.jsonl", resume_at=10_000)
        sink.write(1000, 10.0, {"eval/return_mean": 100.0 + seed, "time/learning_seconds": 5.0})
        sink.close()
        evaluation = {
            "return_mean": 100.0 + seed,
            "return_std": 1.0,
            "episodes": 2,
            "returns": [99.0 + seed, 101.0 + seed],
        }
        summary = {"env_steps": 1000, "evaluation": evaluation, "wall_seconds": 10.0, "cpu_seconds": 7.5}
        (run_dir / "summary.json").write_text(json.dumps(summary | {"versions": {"jax": "0.1.2"}}))
    return folder


def text_of(section: Section | None) -> str:
    assert section is not None
    return " ".join(" ".join(Structure(section.body.code).words).split())


def test_a_page_has_one_file_and_refers_to_nothing_outside(tmp_path):
    out = report([write_group(tmp_path / "a"), write_group(tmp_path / "b", algorithm="a2c")], tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]
    found = Structure(out.read_text())
    addresses = [value for _, attributes in found.tags for name, value in attributes.items() if name in ("src", "href")]
    assert [address for address in addresses if not str(address).startswith(("#", "data:"))] == []
    assert "lang" in dict(found.tags)["html"]
    assert len(out.read_bytes()) < 100_000


def test_texts_and_lines_are_seen_in_light_and_dark():
    style = (Path(birl.__file__).parent / "lab" / "report" / "page.css").read_text()
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style)
    colours = {name: given for name, *given in pairs}
    for theme in (0, 1):
        grounds = [luminance(colours[name][theme]) for name in ("ground", "raised")]
        for name in ("text", "soft", "accent"):
            assert min(contrast(luminance(colours[name][theme]), ground) for ground in grounds) >= 4.5, name
        for name in [f"c{number}" for number in range(COLOURS)]:
            assert contrast(luminance(colours[name][theme]), grounds[0]) >= 3, name


def luminance(colour: str) -> float:
    """The relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: float, second: float) -> float:
    return (max(first, second) + 0.05) / (min(first, second) + 0.05)


def test_every_link_of_the_page_has_its_section():
    sections = [
        Section(title, element("p", "x")) for title in ("Results", "Results", "Ergebnisse & mehr", "结果", "结果")
    ]
    found = Structure(page("t", sections))
    targets = [attributes["href"] for tag, attributes in found.tags if tag == "a"]
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(targets) == 6
    assert {f"#{id}" for id in ids} >= set(targets)
    assert len(set(ids)) == len(ids)


def test_the_policy_allows_the_script_and_the_style_of_the_page_only():
    text = page("t", [])
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_strangers_text_stays_text_everywhere(tmp_path):
    run_dir = make_run(tmp_path / "<b>bold</b>", algorithm=HOSTILE, env_id=f"{HOSTILE}-v0", learning_rate=HOSTILE)
    make_run(tmp_path / "other", algorithm=HOSTILE, env_id=f"{HOSTILE}-v0", learning_rate=2)
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"env_steps": 2000, "seconds": 20.0, HOSTILE: 1.0}) + "\n")
    summary = {"env_steps": 1000, "evaluation": None, "versions": {HOSTILE: HOSTILE}, "machine": {HOSTILE: HOSTILE}}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    out = report(tmp_path, tmp_path / "page.html", title=HOSTILE)
    text = out.read_bytes().decode()  # valid UTF-8
    found = Structure(text)
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in found.tags}
    assert "<b>bold" not in text  # the name of the directory
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    [curves] = [script for script in found.scripts if script.startswith('{"groups"')]
    assert HOSTILE.encode(errors="replace").decode() != HOSTILE
    assert HOSTILE in [metric["name"] for metric in json.loads(curves)["metrics"]]
    assert "\u2028" not in curves
    assert "\u202e" not in text


def test_a_text_of_a_megabyte_is_cut():
    assert len(code_of("x" * 1_000_000)) < 400


def test_json_for_a_script_reads_back_and_ends_nothing():
    value = {HOSTILE: [1, 2.5, None, HOSTILE]}
    [(tag, attributes)] = Structure(data("curves", value).code).tags
    inside = re.fullmatch(r"<script[^>]*>(.*)</script>", data("curves", value).code)[1]
    assert (tag, attributes["id"]) == ("script", "curves")
    assert json.loads(inside) == value
    assert set("<>&\u2028") & set(inside) == set()


def test_elements_escape_texts_and_keep_html():
    assert element("p", "a < b", title='"x"', data_curves="c", class_=None).code == (
        '<p title="&quot;x&quot;" data-curves="c">a &lt; b</p>'
    )
    assert table(["x", "y"], [[Html("<b>1</b>"), "<b>"]]).code.count("<b>") == 1
    assert "<summary>more &amp; more</summary>" in folded("more & more", Html("")).code
    assert 'width="100.00%"' in bars([("learning_rate", 1.5, "large")]).code


def test_the_mean_over_seeds_is_taken_where_all_have_values():
    curves = [(np.array([0.0, 10.0]), np.array([0.0, 10.0])), (np.array([5.0, 20.0]), np.array([7.0, 7.0]))]
    x, mean, low, high = mean_and_band(curves, 50)
    assert x == [5, 10]
    assert mean == [6, 8.5]
    assert (low, high) == ([5, 7], [7, 10])
    assert mean_and_band([(np.array([1.0]), np.array([1.0])), (np.array([2.0]), np.array([1.0]))], 50) is None


@pytest.mark.parametrize(
    ("failed", "end", "note"),
    [
        (True, 1000, "ppo: seed 3 failed and is not in the mean."),
        (False, 300, "ppo: the mean ends at 300 steps, where seed 3 is now."),
    ],
)
def test_a_failed_seed_does_not_end_the_mean_and_a_slow_one_is_noted(tmp_path, failed, end, note):
    groups = by_settings(read_histories(group_with_a_short_seed(tmp_path, failed)))
    found = curve_data(groups)
    [curves] = [metric["groups"][0] for metric in found["metrics"] if metric["name"] == "episode/return"]
    assert [len(values) for _, values in curves["seeds"]] == [10, 10, 3]
    assert curves["steps"][0][-1] == end
    assert curves["seconds"][0][-1] == end / 100
    assert found["notes"] == [note]
    assert note in text_of(curves_section(groups))


def test_only_curves_of_many_points_are_said_to_be_smoothed(tmp_path):
    run_dir = make_run(tmp_path / "a")
    assert "smoothed" not in text_of(curves_section(by_settings([read_history(run_dir)])))
    rows = [{"env_steps": row, "seconds": row, "episode/return": row} for row in range(60)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = text_of(curves_section(by_settings([read_history(run_dir)])))
    assert "of more than 50 points are smoothed over 4 % of the steps" in said


def test_a_thinned_line_is_the_line():
    x = np.linspace(0, 100, 1001)
    at, values = thinned(x, 2 * x, 21)
    assert at.tolist() == np.linspace(0, 100, 21).tolist()
    np.testing.assert_allclose(values[1:-1], 2 * at[1:-1])


def test_numbers_keep_the_digits_that_a_chart_shows():
    assert rounded(np.array([0.123456789, 100.0])) == [0.12, 100]
    assert rounded(np.array([1e-7, 3.333333e-7])) == [1e-7, 3.333e-7]
    assert rounded(np.array([100000.0, 100001.23456])) == [100000, 100001.235]
    assert rounded(np.array([0.0])) == [0]


def test_the_data_of_many_runs_stays_small(tmp_path):
    for seed in range(20):
        run_dir = make_run(tmp_path / f"seed-{seed}", seed=seed)
        rng = np.random.default_rng(seed)
        sink = JsonlSink(run_dir / "metrics.jsonl", resume_at=10_000)
        for row in range(11, 200):
            sink.write(100 * row, float(row), {f"my/{name}": float(rng.normal()) for name in range(70)})
        sink.close()
    found = curve_data(by_settings(read_histories(tmp_path)))
    assert len(json.dumps(found)) < 700_000
    assert found["metrics"][0]["name"] == "episode/return"
    assert len(found["left_out"]) > 0
    assert all(len(seed[1]) >= FEWEST_POINTS for seed in found["metrics"][5]["groups"][0]["seeds"])


def test_curves_of_a_metric_that_some_seeds_lack(tmp_path):
    folder = write_group(tmp_path / "a", seeds=2)
    make_run(folder / "seed-3", seed=3)
    found = curve_data(by_settings(read_histories(folder)))
    curves = {metric["name"]: metric["groups"][0]["seeds"] for metric in found["metrics"]}
    assert [seed is not None for seed in curves["eval/return_mean"]] == [True, True, False]
    grid, values = curves["episode/return"][2]
    assert values == [13, 23, 33, 43, 53, 63, 73, 83, 93, 103]
    assert found["grids"][grid]["seconds"] == list(range(1, 11))


def test_a_fork_begins_where_its_parent_was_and_is_listed(tmp_path):
    parent = make_run(tmp_path / "parent")  # returns are steps / 10 + 1
    fork = make_run(tmp_path / "fork", learning_rate=0.5)
    rows = [json.loads(line) for line in (fork / "metrics.jsonl").read_text().splitlines()]
    (fork / "metrics.jsonl").write_text("".join(json.dumps(row | {"episode/return": 9}) + "\n" for row in rows[5:]))
    changed = {"learning_rate": ({"kind": "linear", "values": [1.0, 0.0], "points": [1.0]}, 0.5)}
    write_fork(fork, Fork(parent, "000000550", 550, changed))
    groups = by_settings(read_histories(tmp_path))
    [curves] = [metric for metric in curve_data(groups)["metrics"] if metric["name"] == "episode/return"]
    grids = curve_data(groups)["grids"]
    found = {groups[place].runs[0].run_dir.name: own["seeds"][0] for place, own in enumerate(curves["groups"])}
    assert grids[found["fork"][0]]["steps"] == [550, 600, 700, 800, 900, 1000]
    assert found["fork"][1] == [56, 9, 9, 9, 9, 9]
    said = text_of(branches_section(groups))
    assert "learning_rate linear:1.0:0.0 → 0.5 550" in said
    assert branches_section(by_settings([read_history(parent)])) is None


def test_forks_are_no_seeds_of_runs_from_the_beginning(tmp_path):
    for seed in (1, 2):
        parent = make_run(tmp_path / f"seed-{seed}", seed=seed)
        fork = make_run(tmp_path / f"fork-{seed}", seed=seed)  # a fork without a change
        steps = 548 + seed  # checkpoints of two seeds are seldom at the same step
        write_fork(fork, Fork(parent, f"{steps:09}", steps, {}))
    groups = read_groups([tmp_path])
    assert [(len(group.runs), group.runs[0].fork is None) for group in groups] == [(2, False), (2, True)]
    assert groups[0].label == "ppo, fork at 55 %"


def test_a_report_says_for_how_many_pairs_p_is_adjusted_and_why_compare_may_differ(tmp_path):
    groups = [group for name in "abc" for group in by_settings(read_histories(write_group(tmp_path / name, seeds=4)))]
    named = [replace(group, label=name) for name, group in zip("abc", groups, strict=True)]
    said = text_of(comparison_section(compared(named)))
    assert "p is adjusted by Holm's method for 3 pairs, each group with every other; birl compare counts" in said
    assert "adjusted" not in text_of(comparison_section(compared(named[:2])))
    assert "final evaluation (the policy at the end of training, " in text_of(results_section(compared(named)))


def test_values_too_large_to_add_up_are_not_drawn(tmp_path):
    run_dir = make_run(tmp_path / "a")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(f'{{"env_steps": {row}, "seconds": 1, "loss/policy": 1e{row}}}\n' for row in range(90, 299))
    found = curve_data(by_settings([read_history(run_dir)]))
    [loss] = [metric for metric in found["metrics"] if metric["name"] == "loss/policy"]
    assert len(loss["groups"][0]["seeds"][0][1]) == 10
    json.dumps(found, allow_nan=False)


def test_scores_are_those_of_the_evaluations_and_the_preset(tmp_path):
    groups = by_settings(read_histories(write_group(tmp_path / "a", seeds=4)))
    said = text_of(results_section(compared(groups)))
    assert "ppo 4 102.5" in said
    assert "101 to 104" in said
    assert "final evaluation" in said
    assert "500 50,000 steps" in said  # of the preset
    assert "500 100,000 steps" in said  # published
    assert "Published: ppo, RL Zoo: CartPole-v1, one run" in said


def test_every_published_score_has_its_source(tmp_path):
    env = {"id": "CartPole-v1", "num_envs": 8, "hide_velocities": True}
    groups = [*by_settings(read_histories(write_group(tmp_path / "a", seeds=2)))]
    groups += by_settings(read_histories(write_group(tmp_path / "b", seeds=2, core="lstm", env=env)))
    said = text_of(results_section(compared(groups)))
    assert "ppo, RL Zoo: CartPole-v1, one run" in said
    assert "ppo, RL Zoo: CartPoleNoVel-v1, one run" in said


def test_pairs_and_times_are_those_of_compare(tmp_path):
    groups = by_settings(read_histories(write_group(tmp_path / "a", seeds=6)))
    others = by_settings(read_histories(write_group(tmp_path / "b", seeds=6, algorithm="a2c")))
    [found] = compared([*groups, *others])
    said = text_of(comparison_section([found]))
    assert "ppo a2c 0.50" in said  # the same scores: half of the pairs are won
    assert "the mean training return from step 100 to 1,000" in said
    assert found.found.pairs[0].sentence in text_of(results_section([found]))
    assert comparison_section(compared(groups)) is None


def test_groups_of_two_environments_are_not_compared_with_each_other(tmp_path):
    for env in ("CartPole-v1", "Acrobot-v1"):
        make_run(tmp_path / env, env_id=env)
    comparisons = compared(by_settings(read_histories(tmp_path)))
    assert [one.found.env_id for one in comparisons] == ["Acrobot-v1", "CartPole-v1"]
    assert comparison_section(comparisons) is None
    assert "Acrobot-v1" in text_of(results_section(comparisons))


def test_runs_that_still_train_are_scored_by_their_last_episodes(tmp_path):
    make_run(tmp_path / "a", seed=1)
    said = text_of(results_section(compared(by_settings(read_histories(tmp_path)))))
    assert "96" in said  # the returns at 900 and 1,000 steps are 91 and 101
    assert "training return at 1,000 steps" in said


def test_evaluation_episodes_are_dots_in_their_place(tmp_path):
    groups = by_settings(read_histories(write_group(tmp_path / "a", seeds=2)))
    section = episodes_section(groups)
    assert section is not None
    places = [attributes["cx"] for tag, attributes in Structure(section.body.code).tags if tag == "circle"]
    assert places == ["0.00%", "66.67%", "33.33%", "100.00%"]  # 100, 102; 101, 103
    assert episodes_section(by_settings([read_history(make_run(tmp_path / "b"))])) is None


@pytest.mark.parametrize("returns", [["x", None, float("1e400")], "many", {"a": 1}, [[1.0]], [True]])
def test_forged_returns_are_left_out(tmp_path, returns):
    run_dir = make_run(tmp_path / "a")
    summary = {"env_steps": 1000, "evaluation": {"return_mean": "high", "returns": returns}, "versions": [1]}
    (run_dir / "summary.json").write_text(json.dumps(summary, allow_nan=True))
    groups = by_settings([read_history(run_dir)])
    assert episodes_section(groups) is None
    report(run_dir, tmp_path / "page.html")


def test_the_time_of_a_resumed_run_is_the_sum_of_its_parts(tmp_path):
    run_dir = make_run(tmp_path / "a")
    rows = [
        {"env_steps": 2000 + row, "seconds": 20, "time/learning_seconds": count}
        for row, count in enumerate([2, 5, 1, 4])
    ]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert seconds_of(read_history(run_dir), "learning") == 5 + 4
    assert "45% 55% 100.2 20" in text_of(times_section(by_settings([read_history(run_dir)])))


def test_the_time_of_a_fork_is_its_own(tmp_path):
    run_dir = make_run(tmp_path / "a")
    rows = [{"env_steps": 2000 + row, "seconds": 10 + row, "time/learning_seconds": 500 + row} for row in range(3)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert seconds_of(read_history(run_dir), "learning") == 10 + 2


def test_the_speed_of_a_fork_is_that_of_its_own_steps(tmp_path):
    parent = write_group(tmp_path / "parent", seeds=1) / "seed-1"
    fork = write_group(tmp_path / "fork", seeds=1) / "seed-1"  # 1,000 steps, 10 seconds
    write_fork(fork, Fork(parent, "000000600", 600, {}))
    assert "50% 50% 40 10" in text_of(times_section(by_settings([read_history(fork)])))
    assert "50% 50% 100 10" in text_of(times_section(by_settings([read_history(parent)])))


def test_settings_that_differ_come_first_and_the_same_ones_are_folded(tmp_path):
    for rate in (0.1, 0.2):
        write_group(tmp_path / str(rate), seeds=2, learning_rate=rate)
    body = settings_section(by_settings(read_histories(tmp_path))).body.code
    shown, _, rest = body.partition("<details>")
    assert "learning_rate" in shown
    assert "0.1" in shown
    assert "0.2" in shown
    assert "clip_range" not in shown
    assert "clip_range" in rest


def test_settings_have_all_their_digits_as_options_take_them(tmp_path):
    write_group(tmp_path / "a", seeds=1, learning_rate=0.00012345678, env={"id": "CartPole-v1", "kwargs": {"g": 1.5}})
    said = text_of(settings_section(by_settings(read_histories(tmp_path))))
    assert "learning_rate 0.00012345678" in said
    assert "kwargs g 1.5" in said


def test_settings_of_one_group_are_compared_with_its_preset(tmp_path):
    said = text_of(settings_section(by_settings([read_history(make_run(tmp_path / "a", gae_lambda=0.5))])))
    shown = said.partition("settings that are the same")[0]
    assert "differ from the preset" in shown
    assert "gae_lambda 0.5 0.9" in shown
    assert "num_envs" not in shown


def test_the_page_says_what_is_probably_wrong(tmp_path):
    run_dir = make_run(tmp_path / "a")
    rows = [
        {"env_steps": 100 * row, "seconds": row, "episode/return": 10, "policy/approx_kl": 5, "policy/clip_fraction": 1}
        for row in range(1, 200)
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    groups = by_settings([read_history(run_dir)])
    diagnosis = diagnose_runs([facts_of(run) for run in groups[0].runs])
    section = findings_section(groups)
    said = text_of(section)
    assert len(diagnosis.findings) > 0
    for finding in diagnosis.findings:
        assert f"{finding.title} [{finding.rule}]" in said
        assert " ".join(finding.advice.split()) in said
    assert [tag for tag, _ in Structure(section.body.code).tags].count("li") == len(diagnosis.findings)


def test_a_finding_that_costs_only_time_is_said_to(tmp_path):
    [facts] = [facts_of(read_history(make_run(tmp_path / "a")))]
    rule = next(rule for rule in RULES.values() if rule.only_speed)
    finding = Fault(rule.name, rule.title, Evidence("it is slow", {}, 1.0), rule.why, rule.advice, {}, "", tmp_path)
    diagnosis = replace(diagnose_runs([facts]), findings=[finding])
    said = text_of(Section("", join(diagnosis_parts(diagnosis))))
    assert f"{rule.title} [{rule.name}], which costs only time" in said
    assert f"{rule.title} [{rule.name}], which costs only time" in diagnosis_text(diagnosis)


def test_a_run_that_cannot_be_diagnosed_does_not_stop_the_report(tmp_path):
    run_dir = make_run(tmp_path / "a")
    stored = json.loads((run_dir / "config.json").read_text())
    stored["config"]["run"]["total_steps"] = "many"
    (run_dir / "config.json").write_text(json.dumps(stored))
    assert "could not be diagnosed" in report(run_dir, tmp_path / "page.html").read_text()


def test_the_video_is_of_the_best_seed(tmp_path):
    [group] = by_settings(read_histories(write_group(tmp_path / "a", seeds=3)))
    assert best_run(group).seed == 3


def test_a_report_of_a_real_run_has_its_video_and_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    birl.train("ppo", "CartPole-v1", total_steps=600, eval_episodes=2, run_dir="runs/mine")
    said = call_well("report", "runs/mine", "--out", "deep/page.html", "--video", "--title", "Mine")
    assert said == "deep/page.html\n"
    text = Path("deep/page.html").read_text()
    assert text.count('src="data:video/mp4;base64,') == 1
    assert "birl train ppo CartPole-v1 --total-steps 600 --eval-episodes 2 --seed 1" in text
    assert "<title>Mine</title>" in text
    assert f"birl {birl.__version__}" in text


def test_a_video_that_cannot_be_recorded_is_explained_on_the_page(tmp_path):
    run_dir = make_run(tmp_path / "a")  # without a checkpoint
    with pytest.warns(UserWarning, match="no video of"):
        out = birl.report(run_dir, tmp_path / "page.html", video=True)
    assert "No video: " in out.read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["missing"], "missing holds no run"),
        (["a", "--out", "page.pdf"], "must end in .html"),
        (["a", "--out", "folder.html"], "is a directory"),
        ([], "no runs to report"),
    ],
)
def test_mistakes_are_named_in_one_line(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    make_run(Path("a"))
    Path("folder.html").mkdir()
    code, said = call("report", *words)
    assert code == 2
    assert problem in said
    assert len(said.splitlines()) == 1


def test_no_runs_are_refused():
    with pytest.raises(ConfigError, match="no runs to report"):
        report([])


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    write_group(tmp_path / "a", seeds=2)
    out = report([tmp_path / "a", tmp_path / "a" / "seed-1"], tmp_path / "page.html")
    assert "2 runs of 1 setting" in out.read_text()


def test_other_commands_can_make_pages_of_their_own_sections(tmp_path):
    out = write_report(
        tmp_path / "tune.html", "Tuning", [Section("Importance", bars([("learning_rate", 0.8, "80 %")]))]
    )
    assert "Importance" in out.read_text()


def test_the_files_of_the_page_are_part_of_the_package():
    import tomllib

    project = tomllib.loads((Path(birl.__file__).parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["birl"]
    packed = {path.name for pattern in patterns for path in Path(birl.__file__).parent.glob(pattern)}
    folder = Path(birl.__file__).parent / "lab" / "report"
    assert {path.name for path in folder.iterdir() if path.suffix in (".html", ".css", ".js")} <= packed
