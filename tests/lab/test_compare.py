"""Groups of seeds side by side: what is compared, at which steps, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from birl.config import ConfigError
from birl.lab.comparison import Comparison, compare, compare_groups, labelled
from birl.maths.statistics import bootstrap_interval, iqm
from birl.run.directory import Fork, write_fork
from birl.run.files import to_json_bytes
from birl.run.history import read_histories
from birl.run.logging import JsonlSink
from tests.run.test_plot import make_run


def make_ended(run_dir: Path, seed: int, score: float, **settings: Any) -> Path:
    """A run of make_run that ended at this score after 1,000 steps, 10 wall and 20 CPU seconds."""
    return end(make_run(run_dir, seed, **settings), score)


def end(run_dir: Path, score: float, env_steps: int = 1000) -> Path:
    evaluation = {"return_mean": score, "return_std": 0.0, "episodes": 20}
    summary = {"env_steps": env_steps, "evaluation": evaluation, "wall_seconds": 10.0, "cpu_seconds": 20.0}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return run_dir


def make_group(directory: Path, scores: list[float], **settings: Any) -> Path:
    for seed, score in enumerate(scores, start=1):
        make_ended(directory / f"seed-{seed}", seed, score, **settings)
    return directory


def make_curve(run_dir: Path, seed: int, points: dict[int, dict[str, float]], **settings: Any) -> Path:
    """A run with these metrics at these steps, 100 of them a second."""
    (make_run(run_dir, seed, **settings) / "metrics.jsonl").unlink()
    sink = JsonlSink(run_dir / "metrics.jsonl")
    for steps, metrics in points.items():
        sink.write(steps, steps / 100, metrics)
    sink.close()
    return run_dir


@pytest.fixture
def two(tmp_path: Path) -> Comparison:
    a = make_group(tmp_path / "a", [10.0, 11.0, 12.0, 13.0, 14.0], learning_rate=0.1)
    b = make_group(tmp_path / "b", [1.0, 2.0, 3.0, 4.0, 5.0], learning_rate=0.2)
    return compare(a, b)


def test_groups_have_the_iqm_of_their_final_evaluations_with_its_interval(two):
    assert two.env_id == "CartPole-v1"
    assert two.score == "return of the final evaluation"
    assert two.at is None
    scores = np.array([10.0, 11.0, 12.0, 13.0, 14.0])
    assert two.groups[0].label == "ppo, learning_rate=0.1"
    assert two.groups[0].score.iqm == iqm(scores) == 12.0
    assert two.groups[0].score.interval == bootstrap_interval(scores[:, None])
    assert two.groups[1].score.iqm == 3.0
    assert two.notices == [
        "some runs did not log CPU seconds: theirs are wall seconds, scaled by the run's whole CPU time"
    ]


def test_the_area_is_the_mean_training_return_over_the_common_steps(two):
    # The return is env_steps / 10 + seed at steps 100 to 1000: its mean is 55 + seed.
    assert two.step_range == (100.0, 1000.0)
    assert list(two.groups[0].area.values.values()) == pytest.approx([56.0, 57.0, 58.0, 59.0, 60.0])
    assert two.groups[0].area.iqm == pytest.approx(58.0)


def test_a_pair_that_does_not_overlap_is_told_apart_by_five_seeds_each(two):
    [pair] = two.pairs
    assert (pair.first, pair.second) == ("ppo, learning_rate=0.1", "ppo, learning_rate=0.2")
    assert pair.probability == 1.0
    assert pair.probability_interval == pytest.approx((0.6427, 1.0), abs=1e-4)
    assert pair.probability_bootstrap == (1.0, 1.0)
    assert pair.iqm_difference == 9.0
    assert pair.difference_interval is not None
    assert 6.0 < pair.difference_interval[0] < 9.0 < pair.difference_interval[1] < 12.0
    assert pair.p_value == pair.adjusted_p_value == pytest.approx(2 / 252)
    assert pair.verdict == "first"
    assert pair.seeds_needed is None
    expected = "ppo, learning_rate=0.1 is better than ppo, learning_rate=0.2: a seed of it wins with probability 1.00"
    assert pair.sentence == f"{expected} (p = 0.0079)."
    assert pair.differing == {"learning_rate": (0.1, 0.2)}


def test_a_comparison_is_strict_json_with_every_number(two):
    found = json.loads(to_json_bytes(two.to_json()))
    assert found["pairs"][0]["probability_interval"] == pytest.approx([0.6427, 1.0], abs=1e-4)
    assert found["pairs"][0]["differing"] == {"learning_rate": [0.1, 0.2]}
    assert found["groups"][1]["score"]["iqm"] == 3.0
    assert set(found) == {
        "env_id", "score", "scored_policy", "at", "target", "target_reason", "step_range", "groups", "pairs",
        "notices", "level",
    }  # fmt: skip


def test_the_second_group_may_be_the_better_one(tmp_path):
    worse = make_group(tmp_path / "a", [1.0, 2.0, 3.0, 4.0, 5.0], discount=0.9)
    better = make_group(tmp_path / "b", [10.0, 11.0, 12.0, 13.0, 14.0], discount=0.99)
    [pair] = compare(worse, better).pairs
    assert (pair.verdict, pair.probability, pair.iqm_difference) == ("second", 0.0, -9.0)
    assert pair.sentence.startswith("ppo, discount=0.99 is better than ppo, discount=0.9: a seed of it wins with ")
    assert "probability 1.00" in pair.sentence


def test_a_pair_that_overlaps_is_undecided_and_says_how_many_seeds_would_tell(tmp_path):
    a = make_group(tmp_path / "a", [1.0, 3.0, 5.0, 7.0, 9.0], discount=0.9)
    b = make_group(tmp_path / "b", [0.0, 2.0, 4.0, 6.0, 8.0], discount=0.99)
    [pair] = compare(a, b).pairs
    assert pair.probability == 0.6
    assert pair.verdict == "undecided"
    assert pair.seeds_needed == 131  # Noether: 7.8489 / (6 · 0.01) = 130.8
    assert "cannot be told apart with these seeds" in pair.sentence
    assert "about 131 seeds of each would tell (126 more of each)" in pair.sentence


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], "No difference was seen"),
        ([1.0, 2.0, 3.0, 4.0, 5.5], "more than 1,000 seeds of each are needed"),
    ],
)
def test_a_difference_that_is_almost_none_is_said_to_be_out_of_reach(tmp_path, second, said):
    a = make_group(tmp_path / "a", [1.0, 2.0, 3.0, 4.0, 5.0], discount=0.9)
    [pair] = compare(a, make_group(tmp_path / "b", second, discount=0.99)).pairs
    assert said in pair.sentence


def test_three_seeds_can_never_be_told_apart_and_are_warned_of(tmp_path):
    a = make_group(tmp_path / "a", [11.0, 12.0, 13.0], discount=0.9)
    b = make_group(tmp_path / "b", [1.0, 2.0, 3.0], discount=0.99)
    comparison = compare(a, b)
    [pair] = comparison.pairs
    assert (pair.verdict, pair.probability, pair.p_value) == ("undecided", 1.0, pytest.approx(0.1))
    assert pair.seeds_needed == 6
    warned = [notice for notice in comparison.notices if "too narrow" in notice]
    assert warned[0] == "ppo, discount=0.9 has 3 seeds: bootstrap intervals of fewer than 5 are too narrow"
    assert len(warned) == 2


def test_a_group_that_has_the_seeds_that_are_needed_needs_no_more(tmp_path):
    a = make_group(tmp_path / "a", [11.0, 12.0], discount=0.9)
    [pair] = compare(a, make_group(tmp_path / "b", list(map(float, range(7))), discount=0.99)).pairs
    assert (pair.verdict, pair.p_value) == ("undecided", pytest.approx(2 / 36))
    assert "about 6 seeds of each would tell (4 and 0 more)" in pair.sentence


def test_one_seed_has_no_interval_and_decides_nothing(tmp_path):
    one = make_group(tmp_path / "a", [100.0], discount=0.9)
    comparison = compare(one, make_group(tmp_path / "b", [1.0] * 40, discount=0.99))
    [pair] = comparison.pairs
    assert pair.probability == 1.0
    assert pair.probability_interval is pair.difference_interval is pair.p_value is pair.adjusted_p_value is None
    assert comparison.groups[0].score.interval is None
    assert pair.verdict == "undecided"
    assert "of ppo, discount=0.9 there is only one seed" in pair.sentence
    assert "Train at least 5 seeds of each" in pair.sentence
    assert any("has one seed" in notice for notice in comparison.notices)


def test_several_groups_are_compared_with_the_first_and_p_values_are_adjusted(tmp_path):
    low, high = [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0]
    groups = [
        make_group(tmp_path / name, scores, epochs=i)
        for i, (name, scores) in enumerate(zip("abc", (high, low, low), strict=True))
    ]
    comparison = compare(*groups)
    assert [(pair.first, pair.second) for pair in comparison.pairs] == [
        ("ppo, epochs=0", "ppo, epochs=1"),
        ("ppo, epochs=0", "ppo, epochs=2"),
    ]
    assert [pair.p_value for pair in comparison.pairs] == pytest.approx([2 / 252] * 2)
    assert [pair.adjusted_p_value for pair in comparison.pairs] == pytest.approx([4 / 252] * 2)
    every = compare(*groups, all_pairs=True)
    assert [(pair.first[-1], pair.second[-1]) for pair in every.pairs] == [("0", "1"), ("0", "2"), ("1", "2")]
    assert every.pairs[0].adjusted_p_value == pytest.approx(6 / 252)
    assert [pair.verdict for pair in every.pairs] == ["first", "first", "undecided"]


def test_the_seeds_needed_grow_with_the_number_of_pairs(tmp_path):
    scores = ([1.0, 3.0, 5.0, 7.0, 9.0], [0.0, 2.0, 4.0, 6.0, 8.0], [0.0, 2.0, 4.0, 6.0, 8.0])
    groups = [make_group(tmp_path / str(i), own, epochs=i) for i, own in enumerate(scores)]
    assert compare(*groups[:2]).pairs[0].seeds_needed == 131
    assert compare(*groups).pairs[0].seeds_needed == 159  # (2.241403 + 0.841621)² / 0.06 = 158.4


def test_a_swept_group_gives_a_column_for_each_combination(tmp_path):
    for rate in (0.1, 0.2):
        make_group(tmp_path / "sweep" / f"learning_rate={rate}", [1.0, 2.0], learning_rate=rate)
    comparison = compare(tmp_path / "sweep")
    assert [group.label for group in comparison.groups] == ["ppo, learning_rate=0.1", "ppo, learning_rate=0.2"]


def test_two_directories_of_equal_settings_are_never_one_group(tmp_path):
    old, new = make_group(tmp_path / "old", [1.0, 2.0]), make_group(tmp_path / "new", [3.0, 4.0])
    comparison = compare(old, new)
    assert [group.label for group in comparison.groups] == [str(old), str(new)]
    assert comparison.pairs[0].differing == {}


def test_of_equal_settings_in_two_sweeps_the_directory_and_the_settings_are_named(tmp_path):
    for name in ("old", "new"):
        for rate in (0.1, 0.2):
            make_group(tmp_path / name / str(rate), [1.0, 2.0], learning_rate=rate)
    given = [(name, read_histories(tmp_path / name)) for name in ("old", "new")]
    assert [group.label for group in labelled(given)] == [
        f"{name}: ppo, learning_rate={rate}" for name in ("old", "new") for rate in (0.1, 0.2)
    ]


def test_a_run_that_is_named_twice_is_refused(tmp_path):
    group = make_group(tmp_path / "a", [1.0, 2.0])
    with pytest.raises(ConfigError, match="seed-1 is named twice"):
        compare(group, group / "seed-1")


def test_a_single_group_and_an_unknown_environment_are_refused_with_what_to_do(tmp_path):
    group = make_group(tmp_path / "a", [1.0, 2.0])
    with pytest.raises(ConfigError, match="only one group, ppo; give another directory"):
        compare(group)
    with pytest.raises(ConfigError, match="no runs to compare"):
        compare()
    with pytest.raises(ConfigError, match=r"none of these runs is of the environment Pong; there are CartPole-v1"):
        compare(group, env="Pong")
    with pytest.raises(ConfigError, match="at is 0; give a positive number"):
        compare(group, make_group(tmp_path / "b", [1.0]), at=0)


def test_runs_of_two_environments_are_refused_unless_one_is_chosen(tmp_path):
    for name in ("a", "b"):
        for env_id in ("CartPole-v1", "Acrobot-v1"):
            make_group(tmp_path / name / env_id, [1.0, 2.0], env_id=env_id, algorithm="ppo" if name == "a" else "dqn")
    with pytest.raises(ConfigError, match="2 environments, Acrobot-v1, CartPole-v1, whose returns"):
        compare(tmp_path / "a", tmp_path / "b")
    comparison = compare(tmp_path / "a", tmp_path / "b", env="Acrobot-v1")
    assert [group.label for group in comparison.groups] == ["ppo", "dqn"]
    assert comparison.env_id == "Acrobot-v1"


def test_failed_seeds_are_counted_and_nothing_else(tmp_path):
    a, b = make_group(tmp_path / "a", [1.0, 2.0, 3.0], epochs=1), make_group(tmp_path / "b", [4.0, 5.0], epochs=2)
    (a / "seed-3" / "summary.json").unlink()
    (a / "group.json").write_text("{}")
    (a / "summary.json").write_text(json.dumps({"failed": {"seed-3": "NaN in the rewards"}}))
    comparison = compare(a, b)
    assert comparison.score == "return of the final evaluation"
    assert comparison.groups[0].failed == {str(a / "seed-3"): "NaN in the rewards"}
    assert list(comparison.groups[0].score.values.values()) == [1.0, 2.0]
    assert len(comparison.groups[0].directories) == 3
    assert (
        comparison.notices[0]
        == "1 of 3 seeds of ppo, epochs=1 failed: the statistics are those of the others, and so too good"
    )


def test_a_group_without_a_score_is_not_said_to_have_narrow_intervals(tmp_path):
    a, b = make_group(tmp_path / "a", [1.0, 2.0], epochs=1), make_group(tmp_path / "b", [4.0, 5.0], epochs=2)
    for seed in ("seed-1", "seed-2"):
        (a / seed / "summary.json").unlink()
    (a / "group.json").write_text("{}")
    (a / "summary.json").write_text(json.dumps({"failed": {"seed-1": "NaN", "seed-2": "NaN"}}))
    notices = compare(a, b).notices
    assert notices[0] == "ppo, epochs=1 has no seed with a score, and 2 of its 2 failed: it cannot be compared"
    assert not any("0 seeds" in notice or "too good" in notice for notice in notices)


def test_with_an_unfinished_run_all_are_compared_at_the_steps_that_it_has(tmp_path):
    a, b = make_group(tmp_path / "a", [1.0, 2.0], epochs=1), make_group(tmp_path / "b", [4.0, 5.0], epochs=2)
    make_curve(b / "seed-3", 3, {200: {"episode/return": 20.0}, 400: {"episode/return": 40.0}}, epochs=2)
    comparison = compare(a, b)
    assert comparison.at == 400
    assert comparison.score == "training return at 400 steps (mean over the last 10 % of them)"
    assert "all are compared at 400 steps, as many as" in comparison.notices[0]
    # env_steps / 10 + seed over the last 40 steps
    assert list(comparison.groups[0].score.values.values()) == pytest.approx([39.0, 40.0])
    assert comparison.groups[1].score.values[str(b / "seed-3")] == pytest.approx(38.0)
    assert comparison.step_range == (200.0, 400.0)
    assert list(comparison.groups[0].area.values.values()) == pytest.approx([31.0, 32.0])


def test_a_run_that_trains_on_after_its_summary_is_unfinished(tmp_path):
    a = make_group(tmp_path / "a", [1.0, 2.0], epochs=1)
    b = end(make_run(tmp_path / "b", 1, epochs=2), 5.0, env_steps=700)
    assert compare(a, b).at == 1000


def test_at_compares_by_evaluations_where_all_runs_have_one_near_it(tmp_path):
    for name, epochs in (("a", 1), ("b", 2)):
        points = {steps: {"episode/return": 0.0, "eval/return_mean": steps * epochs} for steps in (100, 200, 306)}
        make_curve(tmp_path / name, 1, points, epochs=epochs)
    found = compare(tmp_path / "a", tmp_path / "b", at=300)
    assert found.score == "return of the evaluation at 300 steps"
    assert [group.score.iqm for group in found.groups] == [306.0, 612.0]
    assert compare(tmp_path / "a", tmp_path / "b", at=306).score == "return of the evaluation at 306 steps"
    assert compare(tmp_path / "a", tmp_path / "b", at=150).score.startswith("training return at 150 steps")


def test_at_compares_by_training_returns_if_one_run_has_no_evaluation_there(tmp_path):
    for name, own in (("a", {"eval/return_mean": 7.0}), ("b", {})):
        points = {steps: {"episode/return": float(steps), **own} for steps in (100, 200, 300)}
        make_curve(tmp_path / name, 1, points, epochs=len(own))
    assert compare(tmp_path / "a", tmp_path / "b", at=300).score.startswith("training return at 300 steps")


def test_at_leaves_out_runs_that_have_fewer_steps(tmp_path):
    a, b = make_group(tmp_path / "a", [1.0, 2.0], epochs=1), make_group(tmp_path / "b", [4.0, 5.0], epochs=2)
    make_curve(b / "seed-3", 3, {200: {"episode/return": 20.0}, 400: {"episode/return": 40.0}}, epochs=2)
    comparison = compare(a, b, at=500)
    assert comparison.notices[0] == f"{b / 'seed-3'} has 400 of 500 steps and is left out"
    assert len(comparison.groups[1].score.values) == 2
    assert comparison.step_range == (100.0, 500.0)
    assert comparison.groups[0].score.values[str(a / "seed-1")] == pytest.approx(48.5)


def test_runs_without_any_result_are_said_to_have_none(tmp_path):
    for name, epochs in (("a", 1), ("b", 2)):
        (make_run(tmp_path / name, epochs=epochs) / "metrics.jsonl").unlink()
    comparison = compare(tmp_path / "a", tmp_path / "b")
    assert comparison.score == "no run has a result yet"
    assert comparison.notices[0] == f"{tmp_path / 'a'} has no returns yet and is left out"
    assert comparison.pairs[0].sentence.endswith("compared: there is no score of ppo, epochs=1 and of ppo, epochs=2.")
    assert comparison.groups[0].score.iqm is None


def test_steps_and_seconds_to_the_target_are_medians_in_which_a_seed_that_fails_is_never(tmp_path):
    a = make_group(tmp_path / "a", [1.0] * 3, epochs=1)
    b = make_group(tmp_path / "b", [1.0] * 2, epochs=2)
    make_ended(b / "seed-0", 0, 1.0, epochs=2)
    found = compare(a, b, target=101.0)  # at the end, the moving mean is 99.1 + seed
    [quick, slow] = [group.reached for group in found.groups]
    assert quick is not None
    assert slow is not None
    assert (quick.seeds, quick.env_steps) == (2, pytest.approx(998.9, abs=0.01))
    assert quick.wall_seconds == pytest.approx(9.989, abs=1e-4)
    assert quick.cpu_seconds == pytest.approx(2 * quick.wall_seconds)
    assert (slow.seeds, slow.env_steps, slow.wall_seconds, slow.cpu_seconds) == (1, None, None, None)
    assert found.target_reason == "given"


def test_at_counts_only_what_was_reached_by_then(tmp_path):
    groups = [make_group(tmp_path / name, [1.0] * 3, epochs=i) for i, name in enumerate("ab")]
    end(groups[0] / "seed-3", 1.0, env_steps=2000)
    late, early = compare(*groups, target=60.0), compare(*groups, target=60.0, at=400)
    assert [one.groups[0].reached.seeds for one in (late, early) if one.groups[0].reached] == [3, 0]
    assert late.groups[0].env_steps == 1000.0  # the median


def test_before_the_first_episode_has_ended_there_is_no_score(tmp_path):
    groups = [make_group(tmp_path / name, [1.0] * 2, epochs=i) for i, name in enumerate("ab")]
    assert compare(*groups, at=99).groups[0].score.values == {}
    assert len(compare(*groups, at=100).groups[0].score.values) == 2


def test_seeds_of_compiled_environments_are_said_to_share_their_seconds(tmp_path):
    env = {"id": "CartPole-v1", "backend": "compiled"}
    groups = [make_group(tmp_path / name, [1.0] * 2, env=env, epochs=i) for i, name in enumerate("ab")]
    assert any("their seconds include those of others" in notice for notice in compare(*groups).notices)


def test_the_target_is_by_default_almost_the_best_end(two):
    # The lowest start is 10 + 3, and the best end is the mean over 910 to 1000 steps: 95.5 + 3.
    assert two.target == pytest.approx(13.0 + 0.95 * 85.5)
    assert two.target_reason == "95 % of the way from the lowest start, 13, to the best end, 98.5"
    assert two.groups[0].reached is not None
    assert two.groups[0].reached.seeds == 5


def test_the_target_lies_between_the_lowest_start_and_the_best_end_of_all_groups(tmp_path):
    for name, (start, level) in {"low": (5.0, 40.0), "high": (20.0, 90.0)}.items():
        points = {steps: {"episode/return": start if steps == 100 else level} for steps in range(100, 1001, 50)}
        make_curve(tmp_path / name, 1, points, level=level)
    for order in (("low", "high"), ("high", "low")):
        assert compare(*(tmp_path / name for name in order)).target == pytest.approx(5.0 + 0.95 * 85.0)


def test_runs_without_common_steps_have_no_area_and_a_target_only_if_it_is_given(tmp_path):
    """A fork begins where its parent ended."""
    for name, start in (("a", 0), ("b", 1000)):
        points = {start + steps: {"episode/return": start + steps} for steps in range(0, 1001, 10)}
        end(make_curve(tmp_path / name, 1, points, epochs=start), 5.0, env_steps=start + 1000)
    runs = tmp_path / "a", tmp_path / "b"
    without = compare(*runs)
    assert without.step_range is without.target is without.groups[0].area.iqm is None
    assert without.target_reason == "the runs have no common steps with training returns"
    given = compare(*runs, target=500.0)
    assert given.groups[0].reached is not None
    assert given.groups[0].reached.env_steps == pytest.approx(500.0)
    assert given.groups[1].reached is not None
    assert given.groups[1].reached.env_steps == 1000.0  # it had it when it began


def test_without_learning_there_is_no_target(tmp_path):
    for name, epochs in (("a", 1), ("b", 2)):
        make_curve(tmp_path / name, 1, {100: {"episode/return": 9.0}, 200: {"episode/return": 9.0}}, epochs=epochs)
    comparison = compare(tmp_path / "a", tmp_path / "b")
    assert comparison.target is None
    assert comparison.target_reason == "no group ends above the lowest start, 9"
    assert comparison.groups[0].reached is None


def test_logged_cpu_seconds_are_taken_where_there_are_some(tmp_path):
    for name, epochs in (("a", 1), ("b", 2)):
        points = {s: {"episode/return": s / 10, "time/cpu_seconds": s / 25} for s in (0, 100, 200, 300, 400)}
        end(make_curve(tmp_path / name, 1, points, epochs=epochs), 5.0, env_steps=400)
    comparison = compare(tmp_path / "a", tmp_path / "b", target=20.0)
    assert comparison.groups[0].reached is not None
    assert comparison.groups[0].reached.cpu_seconds == pytest.approx(8.0)
    assert not any("CPU seconds" in notice for notice in comparison.notices)


def test_what_makes_scores_hard_to_compare_is_said(tmp_path):
    a = make_group(tmp_path / "a", [1.0, 2.0], epochs=1)
    b = make_group(tmp_path / "b", [1.0, 2.0], epochs=2)
    for seed in (1, 2):
        path = b / f"seed-{seed}" / "config.json"
        stored = json.loads(path.read_text())
        stored["config"]["run"] |= {"eval_deterministic": False}
        path.write_text(json.dumps(stored))
        end(b / f"seed-{seed}", 1.0, env_steps=2000)
    notices = compare(a, b).notices
    assert any("different numbers of steps, from 1,000 to 2,000" in notice for notice in notices)
    assert any("different run.eval_deterministic" in notice for notice in notices)


def test_seeds_that_are_forks_of_one_checkpoint_are_said_to_be(tmp_path):
    groups = [make_group(tmp_path / name, [1.0, 2.0], epochs=i) for i, name in enumerate("ab")]
    write_fork(groups[1] / "seed-1", Fork(tmp_path / "parent", "000000100", 100, {}))
    assert not any("forks" in notice for notice in compare(*groups).notices)
    write_fork(groups[1] / "seed-2", Fork(tmp_path / "parent", "000000200", 200, {}))
    assert not any("forks" in notice for notice in compare(*groups).notices)
    write_fork(groups[1] / "seed-2", Fork(tmp_path / "parent", "000000100", 100, {}))
    [notice] = [notice for notice in compare(*groups).notices if "forks" in notice]
    assert notice.startswith("seeds of ppo, epochs=1")
    assert "are forks of one checkpoint" in notice


def test_a_winner_with_the_lower_iqm_is_said_to_be_one(tmp_path):
    """It wins 5 of 6 times but by little, and loses the others by much."""
    a = make_group(tmp_path / "a", [6.0] * 14 + [-1000.0] * 6, epochs=1)
    b = make_group(tmp_path / "b", [5.0] * 20, epochs=2)
    [pair] = compare(a, b).pairs
    assert (pair.verdict, pair.probability) == ("first", pytest.approx(0.7))
    assert pair.iqm_difference is not None
    assert pair.iqm_difference < 0
    assert "though its IQM is lower" in pair.sentence


@pytest.mark.parametrize("forged", ["high", 1e305, None, True])
def test_a_forged_summary_is_not_a_score(tmp_path, forged):
    a, b = make_group(tmp_path / "a", [1.0, 2.0], epochs=1), make_group(tmp_path / "b", [4.0, 5.0], epochs=2)
    end(a / "seed-1", forged)
    assert compare(a, b).score.startswith("training return at 1,000 steps")
    to_json_bytes(compare(a, b).to_json())


def test_compare_groups_takes_one_group_for_a_table_without_pairs(tmp_path):
    [group] = labelled([("a", read_histories(make_group(tmp_path / "a", [1.0, 2.0])))])
    comparison = compare_groups([group])
    assert comparison.pairs == []
    assert comparison.groups[0].score.iqm == 1.5
