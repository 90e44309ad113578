"""Each rule of `birl diagnose` on made-up histories: it fires, and just does not."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.algos import ppo
from birl.config import EnvConfig
from birl.lab.diagnosis import diagnosing, evidence, proof
from birl.lab.diagnosis.diagnoses import Diagnosis, Evidence, Unseen, diagnosis_text
from birl.lab.diagnosis.diagnosing import (
    BASELINE,
    check,
    command_for,
    diagnose_facts,
    diagnose_runs,
    suggested_settings,
    with_baseline,
)
from birl.lab.diagnosis.facts import Facts, SavedFacts, dead_share, joint_verdict, learning_verdict, moved_biases
from birl.lab.diagnosis.rules import RULES
from birl.lab.report.sections import diagnosis_parts
from birl.maths.schedules import linear
from birl.run.console import number
from birl.run.directory import write_config
from birl.run.history import RunHistory, read_history
from tests.run.processes import write_untrained

ROWS = 50
STEPS = 10_000  # of each run, all of them done
FLAT = {"episode/return": 10 + np.tile([0.0, 1.0], ROWS // 2), "episode/count": np.linspace(4, 200, ROWS)}
RISING = {"episode/return": np.linspace(10.0, 400.0, ROWS), "episode/count": np.linspace(4, 200, ROWS)}
SAVED = SavedFacts(spaces.Discrete(2), dead_share=0.0)


def facts(
    metrics: dict[str, Any], settings: dict[str, Any] | None = None, saved: SavedFacts | None = SAVED, done: float = 1.0
) -> Facts:
    """A run with these metrics, each a number for all rows or one for each, and these settings."""
    plain = {"algorithm": "ppo", "env.id": "Some-v0", "run.seed": 1, "run.total_steps": STEPS, "env.num_envs": 8}
    columns = {name: np.broadcast_to(values, ROWS) for name, values in (FLAT | metrics).items()}
    steps = np.linspace(100, done * STEPS, ROWS).astype(int)
    rows = [
        {"env_steps": int(at)} | {name: float(values[row]) for name, values in columns.items()}
        for row, at in enumerate(steps)
    ]
    return Facts(RunHistory(Path("runs/x"), plain | (settings or {}), rows, None), saved)


def moved(**parts: float) -> SavedFacts:
    return SavedFacts(spaces.Discrete(2), dead_share=0.0, moved=parts)


def target(its: float, **parts: float) -> SavedFacts:
    return dataclasses.replace(moved(**parts), target_moved=dict.fromkeys(parts, its))


RAW = {"state_dependent_std": False, "scale_actions": False}
WIDE = SavedFacts(spaces.Box(0, 500, (2,)), dead_share=None)
DQN = {"algorithm": "dqn", "update_ratio": 0.25, "learning_starts": 1000, "batch_size": 32, "replay_size": 100}
EPSILON = {"exploration": "linear:1.0:0.05:0.1"}
CONSTANT = {"episode/return": 7.0, "reward/min": 0.0, "reward/max": 0.0}
CUT = {"episode/truncated_share": 1.0, "episode/length": 30.0, "reward/min": -1.0, "reward/max": -1.0}
REPLAY = {"replay/steps": 100, "episode/length": 50}
EVALUATED = {"eval/return_mean": 1.0, "eval/return_std": 1.0, "eval/episodes": 20}
# The first row holds the compilation, which does not count.
TIMES = {
    "time/environment_seconds": np.linspace(0, 80.0, ROWS),
    "time/policy_seconds": np.linspace(0, 5.0, ROWS),
    "time/learning_seconds": np.linspace(500, 515.0, ROWS),
}
EARLY = np.where(np.arange(ROWS) < 5, 0.69, 0.001)
AFTER_LEARNING = np.where(np.arange(ROWS) < 10, 0.69, 0.001)
LATE = np.where(np.arange(ROWS) < 30, 0.69, 0.001)
BOUND = {"reward/min": 0.0, "reward/max": 1.0}  # with a discount of 0.99 no value is above 100

# rule: what fires it; what just does not
CASES: dict[str, tuple[Facts, list[Facts]]] = {
    "observations-constant": (
        facts({"observation/constant_share": 1.0}),
        [facts({"observation/constant_share": 0.98}), facts({"observation/constant_share": 1.0}, done=0.04)],
    ),
    "observations-badly-scaled": (
        facts({"observation/largest": 1001.0, "observation/widest": 5.0}, {"normalize_observations": False}),
        [
            facts({"observation/largest": 999.0, "observation/widest": 5.0}, {"normalize_observations": False}),
            facts({"observation/largest": 1e9, "observation/widest": 5.0}, {"normalize_observations": True}),
        ],
    ),
    "actions-not-scaled": (
        facts({}, RAW, WIDE),
        [
            facts({}, RAW, SavedFacts(spaces.Box(-4, 4, (2,)), None)),
            facts({}, RAW | {"scale_actions": True}, WIDE),
            facts({}, RAW | {"squash_actions": True}, WIDE),
            facts({}, {}, WIDE),
            facts(RISING, RAW, WIDE),
        ],
    ),
    "rewards-not-seen": (
        facts(CONSTANT),
        [
            facts(CONSTANT | {"episode/return": np.where(np.arange(ROWS) == 30, 7.05, 7.0)}),
            facts(CONSTANT, done=0.29),
            facts(CONSTANT | {"exploration/epsilon": 0.11}),
            facts(CONSTANT | {"episode/count": np.linspace(1, 49, ROWS)}),
        ],
    ),
    "time-limit-only": (
        facts(CUT),
        [
            facts(CUT | {"episode/truncated_share": np.where(np.arange(ROWS) == 30, 0.95, 1.0)}),
            facts(CUT | RISING),
            facts(CUT | {"reward/max": 0.0}),  # as Pendulum: rewards say more than when an episode ends
            facts(CUT, done=0.29),
            facts(CUT | {"exploration/epsilon": 0.11}),
        ],
    ),
    "exploration-ended": (
        facts({"exploration/epsilon": np.where(np.arange(ROWS) < 4, 1.0, 0.05)}, DQN | EPSILON),
        [
            facts({"exploration/epsilon": np.where(np.arange(ROWS) < 8, 1.0, 0.05)}, DQN | EPSILON),
            facts({"exploration/epsilon": np.where(np.arange(ROWS) < 4, 1.0, 0.11)}, DQN | EPSILON),
            facts({"exploration/epsilon": 0.01} | RISING, DQN | EPSILON),
        ],
    ),
    "replay-forgets": (
        facts(REPLAY, DQN),
        [
            facts(REPLAY | {"replay/steps": 501}, DQN),
            facts({"replay/steps": 400, "episode/length": 100}, DQN | {"batch_size": 40}),
            facts(REPLAY, {"algorithm": "ppo"}),
        ],
    ),
    "too-few-updates": (
        facts({}, DQN | {"update_ratio": 0.009}),
        [
            facts({}, DQN | {"update_ratio": 0.01}),
            facts(RISING, DQN | {"update_ratio": 0.009}),
            facts({}, {"rollout_length": 125, "epochs": 10, "minibatches": 1}),
        ],
    ),
    "steps-too-small": (
        facts({"optimizer/grad_norm": 1.0, "optimizer/learning_rate": 1e-9}, saved=moved(actor=1e-8, critic=0.3)),
        [
            facts({"optimizer/grad_norm": 1.0}, saved=moved(actor=0.002, critic=0.002)),
            facts({"optimizer/grad_norm": 0.0}, saved=moved(actor=0.0)),  # gradients that are 0 are another fault
            facts({"optimizer/grad_norm": 1.0} | RISING, saved=moved(actor=2e-5)),
            facts({"optimizer/grad_norm": 1.0}, saved=moved(actor=1e-8), done=0.19),
            facts({"optimizer/grad_norm": 51.0}, {"max_grad_norm": 0.5}, moved(actor=1e-8, critic=0.3)),
        ],
    ),
    "rewards-too-large": (
        facts({"optimizer/grad_norm": 51.0}, {"max_grad_norm": 0.5}, moved(actor=1e-8, critic=0.3)),
        [
            facts({"optimizer/grad_norm": 49.0}, {"max_grad_norm": 0.5}, moved(actor=1e-8, critic=0.3)),
            facts({"optimizer/grad_norm": 51.0}, {"max_grad_norm": 0.5}, moved(actor=1e-8, critic=1e-8)),
            facts({"optimizer/grad_norm": 51.0}, {"max_grad_norm": 0.5}, moved(actor=0.002, critic=0.3)),
            facts({"optimizer/grad_norm": 51.0}, {}, moved(actor=1e-8, critic=0.3)),
        ],
    ),
    "target-frozen": (
        facts({}, DQN, target(0.0, trunk=0.3)),
        [
            facts({}, DQN, target(0.002, trunk=0.3)),
            facts({}, DQN, target(0.0, trunk=0.0)),
            facts({}, DQN, target(0.0, trunk=0.3), done=0.19),
            facts(RISING, DQN, target(0.0, trunk=0.3)),
        ],
    ),
    "discount-too-small": (
        facts({"episode/length": 20.0}, {"discount": 0.0}),
        [
            facts({"episode/length": 1.0}, {"discount": 0.0}),  # as a bandit: nothing follows
            facts({"episode/length": 500.0}, {"discount": 0.81}),
            facts({"episode/length": 14.0}, {"discount": 0.8}),
            facts({"episode/length": 20.0} | RISING, {"discount": 0.0}),
        ],
    ),
    "steps-too-large": (
        facts({"policy/approx_kl": np.where(np.arange(ROWS) % 10 < 5, 0.3, 0.0), "policy/clip_fraction": 0.1}),
        [
            facts({"policy/approx_kl": np.where(np.arange(ROWS) % 10 < 1, 0.9, 0.0), "policy/clip_fraction": 0.1}),
            facts({"policy/approx_kl": 0.19, "policy/clip_fraction": 0.5}),
        ],
    ),
    "weights-too-large": (
        facts({}, DQN, moved(trunk=10.4)),
        [facts({}, DQN, moved(trunk=4.9)), facts(RISING, DQN, moved(trunk=10.4))],
    ),
    "values-too-large": (
        facts({"value/mean": 151.0} | BOUND, {"discount": 0.99}),
        [
            facts({"value/mean": 149.0} | BOUND, {"discount": 0.99}),
            facts({"value/mean": 151.0} | BOUND, {"discount": 0.999}),
            facts({"value/mean": 151.0} | BOUND, {"discount": 0.99, "normalize_rewards": True}),
            facts({"value/mean": 151.0, "exploration/temperature": 1.0, "policy/entropy": 1.0} | BOUND),  # SAC
        ],
    ),
    "dead-units": (
        facts({}, saved=SavedFacts(spaces.Discrete(2), 0.9)),
        [facts({}, saved=SavedFacts(spaces.Discrete(2), 0.89)), facts(RISING, saved=SavedFacts(spaces.Discrete(2), 1))],
    ),
    "policy-collapsed": (
        facts({"policy/entropy": EARLY}),
        [
            facts({"policy/entropy": LATE}),
            facts({"policy/entropy": np.where(np.arange(ROWS) < 5, 0.69, 0.03)}),
            facts({"policy/entropy": np.where(np.arange(ROWS) % 2 < 1, 0.69, 0.001)}),
            facts({"policy/entropy": AFTER_LEARNING, "episode/return": np.where(np.arange(ROWS) < 6, 0.0, 100.0)}),
            facts({"policy/entropy": EARLY}, saved=SavedFacts(spaces.Box(-1, 1, (1,)), 0.0)),  # a Gaussian of 0.24
        ],
    ),
    "dead-gradients": (
        facts({"optimizer/grad_norm": np.where(np.arange(ROWS) < 25, 1.0, 0.0)}),
        [
            facts({"optimizer/grad_norm": np.where(np.arange(ROWS) < 40, 1.0, 0.0)}),
            facts({"optimizer/grad_norm": 1e-6}),
        ],
    ),
    "values-worse-than-constant": (
        facts({"value/explained_variance": -0.11}),
        [
            facts({"value/explained_variance": -0.09}),
            facts({"value/explained_variance": -0.11}, done=0.29),
            facts({"value/explained_variance": -0.11} | RISING),
        ],
    ),
    "evaluation-below-training": (
        facts(EVALUATED),
        [
            facts(EVALUATED | {"eval/return_mean": 8.0}),
            facts(EVALUATED | {"eval/return_std": 12.0}),
            facts(EVALUATED, {"run.eval_deterministic": False}),
            facts(EVALUATED | {"eval/episodes": 4}),
            facts(EVALUATED, done=0.49),
        ],
    ),
    "time-in-environment": (
        facts(TIMES),
        [
            facts(TIMES | {"time/learning_seconds": np.linspace(500, 530.0, ROWS)}),
            facts({name: value / 10 for name, value in TIMES.items()}),
            facts(TIMES, {"env.workers": 2}),
        ],
    ),
}


def test_every_rule_has_cases_and_a_check():
    assert set(CASES) == set(RULES)
    assert all(name.replace("-", "_") in vars(evidence) for name in RULES)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_fires_with_a_sentence_that_holds_its_numbers(name):
    found = check(name, CASES[name][0])
    assert isinstance(found, Evidence)
    assert any(character.isdigit() for character in found.sentence)
    assert 0 < found.confidence <= 1
    assert set(found.lines) <= set(RULES[name].draw)


@pytest.mark.parametrize(
    ("name", "index"), [(name, i) for name, (_, quiet) in CASES.items() for i in range(len(quiet))]
)
def test_a_rule_is_silent_just_beside_its_limits(name, index):
    assert not isinstance(check(name, CASES[name][1][index]), Evidence)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_fires_alone_is_the_first_finding(name):
    assert diagnose_facts(CASES[name][0]).findings[0].rule == name


def test_symptoms_come_below_their_cause_and_name_it():
    run = facts(
        {"observation/largest": 1e6, "observation/widest": 1e6, "policy/approx_kl": 1.0, "policy/entropy": EARLY}
    )
    first, *rest = diagnose_facts(run).findings
    assert (first.rule, first.follows_from) == ("observations-badly-scaled", None)
    assert {one.rule: one.follows_from for one in rest} == {
        "steps-too-large": "observations-badly-scaled",
        "policy-collapsed": "observations-badly-scaled",
    }


def test_what_costs_only_time_comes_after_what_costs_learning():
    found = diagnose_facts(facts(TIMES | {"value/explained_variance": -5.0})).findings
    assert [one.rule for one in found] == ["values-worse-than-constant", "time-in-environment"]


def test_rules_name_only_rules_as_their_symptoms():
    assert all(set(rule.causes) <= set(RULES) - {name} for name, rule in RULES.items())


def test_a_healthy_run_says_what_was_checked_and_what_could_not_be():
    found = diagnose_facts(facts(RISING, saved=None))
    assert found.findings == []
    assert "dead-units" in found.unseen
    assert "rewards-not-seen" in found.healthy
    text = diagnosis_text(found)
    assert "nothing wrong was found" in text
    assert "not checked: dead-units" in text


def test_a_run_without_rows_is_too_short_and_nothing_is_found():
    found = diagnose_facts(dataclasses.replace(facts({}), run=dataclasses.replace(facts({}).run, rows=[]), saved=None))
    assert found.verdict.learned == "too short"
    assert found.findings == []


def test_of_a_group_a_fault_counts_if_half_of_the_seeds_show_it():
    broken, healthy = facts({"value/explained_variance": -5.0}), facts({"value/explained_variance": 0.9})
    (found,) = diagnose_runs([broken, healthy]).findings
    assert (found.rule, found.seeds) == ("values-worse-than-constant", (1, 2))
    assert diagnose_runs([broken, healthy, healthy]).findings == []
    assert "(1 of 2 seeds)" in diagnosis_text(diagnose_runs([broken, healthy]))


def of_seed(run: Facts, seed: int) -> Facts:
    settings = run.run.settings | {"run.seed": seed}
    return dataclasses.replace(run, run=dataclasses.replace(run.run, settings=settings, run_dir=Path(f"runs/{seed}")))


def test_a_fault_of_few_seeds_is_said_with_their_number_and_not_as_checked():
    healthy = facts(EVALUATED | RISING | {"eval/return_mean": 400.0})
    broken = facts(EVALUATED | RISING)
    seeds = [of_seed(broken if seed == 3 else healthy, seed) for seed in range(1, 6)]
    found = diagnose_runs(seeds)
    assert found.findings == []
    assert "evaluation-below-training" not in found.healthy
    (few,) = found.in_few
    assert (few.rule, few.seeds, few.run_dir) == ("evaluation-below-training", (1, 5), Path("runs/3"))
    for text in (diagnosis_text(found), "".join(str(part) for part in diagnosis_parts(found))):
        assert "in 1 of 5 seeds: " in text
        assert "Seed 3: the last evaluation returned 1, training" in text
        assert "birl eval runs/3 --sample" in text
        assert "othing wrong was found" not in text


def test_what_few_seeds_show_is_proved_with_one_that_shows_it(monkeypatch):
    healthy, broken = facts(EVALUATED | RISING | {"eval/return_mean": 400.0}), facts(EVALUATED | RISING)
    found = diagnose_runs([of_seed(healthy, 1), of_seed(healthy, 2), of_seed(broken, 3)])
    monkeypatch.setattr(proof, "_by_evaluation", lambda finding, run_dir, trust: run_dir)
    assert proof.prove(found) == Path("runs/3")


def test_a_finding_of_a_group_says_whose_numbers_it_has():
    mild, clear = facts({"value/explained_variance": -5.0}), facts(CONSTANT | {"value/explained_variance": -2.0})
    found = diagnose_runs([of_seed(mild, 1), of_seed(mild, 2), of_seed(clear, 3)])
    sentence = found.findings[0].evidence.sentence
    assert sentence.startswith("seed 1, in which it is clearest: explained variance is -5")
    assert [one.run_dir for one in found.in_few] == [Path("runs/3")]


def test_a_rule_that_some_seeds_could_not_check_is_said_so():
    found = diagnose_runs([facts({}), facts({}, saved=None), facts({}, saved=None)])
    assert found.unseen["dead-units"].startswith("in 2 of 3 seeds: there is no checkpoint")
    assert "dead-units" not in found.healthy


def test_the_verdict_of_a_group_has_the_mean_and_the_range_of_its_seeds():
    seeds = [facts({"episode/return": np.linspace(10.0, last, ROWS)}) for last in (419.0, 414.4, 219.5)]
    lasts = [seed.verdict.last for seed in seeds]
    verdict = diagnose_runs(seeds).verdict
    assert verdict.last == pytest.approx(np.mean(lasts))
    course = f"{number(np.mean(lasts))} ({number(min(lasts))} to {number(max(lasts))}) in the last tenth"
    assert course in verdict.sentence
    mixed = joint_verdict([facts({"episode/return": np.linspace(10.0, last, ROWS)}).verdict for last in (400, 5, 400)])
    assert mixed.learned == "improved"
    assert mixed.sentence.startswith("the return has improved in 2 of 3 seeds, has fallen in 1: ")
    short = learning_verdict(facts({"episode/count": 3.0}).run)
    assert joint_verdict([short, short]).sentence == "the return cannot be judged yet in 2 of 2 seeds"


def test_of_equally_many_verdicts_of_a_group_the_worse_one_counts():
    rising, flat = facts(RISING).verdict, facts({}).verdict
    assert joint_verdict([rising, flat]).learned == joint_verdict([flat, rising]).learned == "not moved"


def test_a_group_has_made_at_least_the_steps_of_its_last_seed():
    found = diagnose_runs([facts({}), facts({}, done=0.5)])
    assert "at least 5,000 of 10,000 steps, 2 seeds" in diagnosis_text(found)


def at_random(run_dir: Path, returns: list[float]) -> Diagnosis:
    """The diagnosis of a run that has not moved from 10.5, with these returns of random actions."""
    (run_dir / BASELINE).write_text(json.dumps({"returns": returns}))
    return with_baseline(dataclasses.replace(diagnose_facts(facts({})), runs=[run_dir]))


@pytest.mark.parametrize(("mean", "word"), [(10.0, "no better"), (500.0, "worse"), (-500.0, "better")])
def test_where_nothing_was_learned_no_known_cause_was_found_and_random_actions_are_named(mean, word, tmp_path):
    found = at_random(tmp_path, [mean - 1, mean + 1])
    for text in (diagnosis_text(found).replace("\n", " "), "".join(str(part) for part in diagnosis_parts(found))):
        assert "o known cause was found; random actions return" in text
        assert f"this is {word}" in text
        assert "uled out: rewards-not-seen, " in text
        assert "othing wrong" not in text
    assert found.to_json()["baseline"]["mean"] == mean


def test_a_damaged_file_of_random_actions_is_said(tmp_path):
    (tmp_path / BASELINE).write_text('{"returns": ["many"]}')
    found = with_baseline(dataclasses.replace(diagnose_facts(facts({})), runs=[tmp_path]))
    assert "not compared with random actions: " in diagnosis_text(found).replace("\n", " ")
    assert "is damaged: it must hold a list of returns; remove it" in found.no_baseline


def test_random_actions_are_only_played_where_nothing_was_learned_and_no_cause_is_known(monkeypatch):
    monkeypatch.setattr(diagnosing, "_play", lambda run_dir, trust: pytest.fail("played"))
    for run in (facts(RISING), facts(CONSTANT), facts({"episode/count": 3.0})):
        assert with_baseline(diagnose_facts(run), play=True).baseline is None


def test_random_actions_are_played_once_and_kept_with_the_run(tmp_path, monkeypatch):
    write_untrained(tmp_path / "run", ppo.Config(EnvConfig("CartPole-v1"), hidden_sizes=(8,)))
    flat = dataclasses.replace(diagnose_facts(facts({})), runs=[tmp_path / "run"])
    played = with_baseline(flat, play=True).baseline
    assert played.episodes == 20
    assert 9 < played.low < played.mean < played.high < 50
    monkeypatch.setattr(diagnosing, "_play", lambda run_dir, trust: pytest.fail("played again"))
    assert with_baseline(flat, play=True).baseline == with_baseline(flat).baseline == played


def test_random_actions_that_cannot_be_played_are_said(tmp_path, monkeypatch):
    write_untrained(tmp_path / "run", ppo.Config(EnvConfig("CartPole-v1"), hidden_sizes=(8,)))
    flat = dataclasses.replace(diagnose_facts(facts({})), runs=[tmp_path / "run"])
    assert "birl diagnose plays them once" in diagnosis_text(with_baseline(flat)).replace("\n", " ")
    monkeypatch.setattr(diagnosing, "PATIENCE", 0.0)
    assert with_baseline(flat, play=True).no_baseline == "20 episodes take more than 0 seconds"
    assert not (tmp_path / "run" / BASELINE).exists()
    nowhere = dataclasses.replace(flat, runs=[tmp_path / "nowhere"])
    assert "nowhere" in with_baseline(nowhere, play=True).no_baseline


@pytest.mark.parametrize(
    ("returns", "learned"),
    [
        (np.linspace(10, 400, ROWS), "improved"),
        (np.linspace(400, 10, ROWS), "fell"),
        (FLAT["episode/return"], "not moved"),
        (np.concatenate([np.linspace(10, 400, ROWS // 2), np.linspace(400, 10, ROWS // 2)]), "improved and fell"),
    ],
)
def test_the_verdict_compares_the_beginning_with_the_end(returns, learned):
    assert learning_verdict(facts({"episode/return": returns}).run).learned == learned


def test_a_run_that_solves_its_task_at_once_has_improved():
    rng = np.random.default_rng(0)
    for solved in (2, 4, 8):  # rows of 50; a tenth is 5
        rising = np.clip(20 + 480 * np.arange(ROWS) / solved + rng.normal(0, 5, ROWS), 0, 500)
        found = diagnose_facts(
            facts(
                {
                    "episode/return": rising,
                    "episode/count": np.linspace(20, 1000, ROWS),
                    "episode/truncated_share": (rising == 500).astype(float),
                    "reward/min": 1.0,
                    "reward/max": 1.0,
                    "value/explained_variance": -0.5,
                }
            )
        )
        assert found.verdict.learned == "improved", solved
        assert found.findings == []


def test_returns_that_only_vary_have_not_moved():
    rng = np.random.default_rng(1)
    for every in (1, 4, 40):  # episodes between two rows, which are means of the last 20
        verdicts = []
        for _ in range(100):
            episodes = rng.normal(100, 30, ROWS * every + 20)
            means = [episodes[row * every : row * every + 20].mean() for row in range(ROWS)]
            columns = {"episode/return": np.array(means), "episode/count": 20.0 + every * np.arange(ROWS)}
            verdicts.append(learning_verdict(facts(columns).run).learned)
        assert verdicts.count("not moved") >= 90, (every, verdicts)


def test_a_policy_that_became_certain_after_it_had_learned_and_fell_later_has_not_collapsed():
    rose_and_fell = np.where(np.arange(ROWS) < 6, 10.0, np.where(np.arange(ROWS) < 30, 400.0, 20.0))
    run = facts({"policy/entropy": AFTER_LEARNING, "episode/return": rose_and_fell})
    assert run.verdict.learned == "improved and fell"
    assert check("policy-collapsed", run) is None


def test_a_lucky_first_episode_is_no_learning():
    lucky = np.where(np.arange(ROWS) < 4, 30.0, FLAT["episode/return"])
    certain = np.where(np.arange(ROWS) < 3, 0.69, 0.001)
    run = facts({"policy/entropy": certain, "episode/return": lucky})
    assert isinstance(check("policy-collapsed", run), Evidence)


def test_a_return_that_rose_because_the_policy_became_certain_is_no_learning():
    """The update before the first certain row has made it so, and that row's episodes show it."""
    columns = {
        "policy/approx_kl": np.where(np.arange(ROWS) < 1, 18.0, 0.0),
        "policy/entropy": np.where(np.arange(ROWS) < 3, 0.69, 1e-8),
        "episode/return": np.where(np.arange(ROWS) < 3, -208.0, -130.0),
        "episode/count": np.linspace(160, 2000, ROWS),
    }
    first, second = diagnose_facts(facts(columns, {"learning_rate": 0.03})).findings
    assert (first.rule, second.rule) == ("steps-too-large", "policy-collapsed")
    assert first.lasting == "policy-collapsed"
    assert first.command.startswith("birl train --like"), "a fork would go on with the same policy"


def test_few_rows_are_not_called_few_episodes():
    run = facts({"episode/count": 5000.0}).run
    found = learning_verdict(dataclasses.replace(run, rows=run.rows[-1:]))
    assert found.learned == "too short"
    assert found.sentence == "too short to judge: logged rows with a return: 1, of at least 5"


def test_with_few_episodes_the_verdict_is_that_it_is_too_early():
    assert learning_verdict(facts({"episode/count": np.linspace(0, 39, ROWS)} | {}).run).learned == "too short"


def test_suggested_settings_are_those_that_the_run_has():
    rule = RULES["steps-too-large"]
    assert suggested_settings(rule, {"learning_rate": 3e-4, "value_learning_rate": None}) == {"learning_rate": 3e-5}
    assert suggested_settings(rule, {"learning_rate": 0.5}) == {"learning_rate": 1e-3}
    assert suggested_settings(rule, {"learning_rate": "fast"}) == {}  # a damaged file


def test_each_value_of_a_schedule_is_changed(tmp_path):
    written = {"learning_rate": linear(1e-3, 0.0), "entropy_weight": linear(0.05, 0.0, 0.5)}
    write_config(tmp_path, "ppo", birl.configure("ppo", "CartPole-v1", **written))
    settings = read_history(tmp_path).settings
    assert suggested_settings(RULES["policy-collapsed"], settings) == {
        "entropy_weight": "linear:0.05:0.01:0.5",
        "learning_rate": "linear:0.0001:0.0",
    }
    changed = birl.configure(like=tmp_path, learning_rate="linear:0.0001:0.0")
    assert changed.learning_rate == linear(1e-4, 0.0)


@pytest.mark.parametrize(("now", "new"), [(2048, 512), (50, 12), (10_000_000, 2_500_000), (5, 4), (4, None), (1, None)])
def test_a_whole_number_stays_whole_and_divides_into_minibatches(now, new):
    settings = {"rollout_length": now, "minibatches": 4, "epochs": 10}
    changes = suggested_settings(RULES["too-few-updates"], settings)
    assert changes == ({} if new is None else {"rollout_length": new})
    assert all(type(value) is int for value in changes.values())


def test_a_command_is_quoted_for_the_shell():
    changes = {"rollout_length": 2_500_000, "normalize_observations": True, "learning_rate": 1e-4}
    words = command_for(RULES["too-few-updates"], changes, Path("runs/a b"), True)
    assert words == "birl fork 'runs/a b' --rollout-length 2500000 --normalize-observations --learning-rate 0.0001"


def test_a_setting_that_is_large_enough_is_not_suggested():
    assert suggested_settings(RULES["replay-forgets"], {"replay_size": 50_000}) == {}
    assert suggested_settings(RULES["replay-forgets"], {"replay_size": 64}) == {"replay_size": 50_000}


def layer(weight: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    name = ".network.trunk.encoder.mlp.layers[0]"
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def test_units_that_never_change_over_the_range_of_observations_are_dead():
    weight = np.ones((1, 4), np.float32)
    bias = np.array([-5.0, -5.0, -5.0, 0.0], np.float32)  # relu: three are 0 for all of [0, 1]
    ranges = np.array([[0.0], [1.0]])
    assert dead_share(layer(weight, bias), ranges, "relu") == 0.75
    assert dead_share(layer(weight, bias), np.array([[0.0], [9.0]]), "relu") == 0.0
    assert dead_share(layer(weight, bias), ranges, "tanh") == 0.0


def test_units_of_a_network_that_is_no_plain_mlp_are_not_judged():
    weight, bias = np.ones((1, 4), np.float32), np.zeros(4, np.float32)
    ranges = np.array([[0.0], [1.0]])
    assert dead_share(layer(weight, bias) | {".network.trunk.encoder.norm.scale": bias}, ranges, "relu") is None
    assert dead_share(layer(weight, bias), None, "relu") is None
    assert dead_share(layer(weight, bias), ranges, "gelu") is None
    assert dead_share({}, ranges, "relu") is None
    assert dead_share(layer(weight, bias), np.ones((2, 1)), "relu") is None, "one observation says nothing of a unit"


def test_weights_have_moved_by_the_largest_bias_of_their_hidden_layers():
    tensors = {
        ".network.actor.encoder.mlp.layers[0].bias": np.array([1e-9, -2e-9]),
        ".network.actor.encoder.mlp.layers[1].bias": np.array([0.5e-9]),
        ".network.actor.encoder.mlp.layers[0].weight": np.ones((2, 2)),
        ".network.critic.encoder.convs[0].bias": np.array([0.25]),
        ".network.critics[1].mlp.layers[0].bias": np.array([0.5]),
        ".target[0].mlp.layers[0].bias": np.array([0.1]),
        ".network.actor.head.bias": np.ones(3),  # may begin with a log_std
        ".network.actor.core.bias": np.ones(3),  # forget gates begin at 1
        ".target.actor.encoder.mlp.layers[0].bias": np.zeros(2),
    }
    assert moved_biases(tensors, "network") == {"actor": 2e-9, "critic": 0.25, "critics": 0.5}
    assert moved_biases(tensors, "target") == {"actor": 0.0, "": 0.1}


@pytest.mark.parametrize(
    ("name", "run", "reason"),
    [
        ("rewards-not-seen", facts(CONSTANT, done=0.1), "too early: 10 % of the steps are done, of at least 30 %"),
        ("rewards-not-seen", facts(CONSTANT | {"exploration/epsilon": 0.5}), "ε is still above 0.1"),
        ("observations-constant", facts({"observation/constant_share": 1.0}, done=0.04), "400 steps are done"),
        ("time-limit-only", facts(CUT, done=0.1), "too early"),
        ("exploration-ended", facts({}), "ppo has no exploration"),
        ("actions-not-scaled", facts({}, RAW, None), "no checkpoint"),
        ("replay-forgets", facts({}), "ppo has no replay_size"),
        ("too-few-updates", facts({}, {"rollout_length": 5, "actor_learners": 2}), "actor-learners"),
        ("steps-too-large", facts({}, DQN), "only PPO"),
        ("policy-collapsed", facts({}), "the run has no policy/entropy"),
        ("values-worse-than-constant", facts({}), "the run has no value/explained_variance"),
        ("evaluation-below-training", facts(EVALUATED | {"eval/episodes": 4}), "4 episodes"),
        ("time-in-environment", facts({}), "the run has no times yet"),
        ("time-in-environment", facts({}, {"env.backend": "compiled"}), "compiled environments"),
    ],
)
def test_a_rule_that_was_not_checked_says_why(name, run, reason):
    found = diagnose_facts(run)
    assert reason in found.unseen[name]
    assert name not in found.healthy
    assert f"not checked: {name}: " in diagnosis_text(found)


def test_steps_of_each_environment_are_those_of_one_actor_learner(monkeypatch):
    endless = {"episode/count": 0.0}
    monkeypatch.setitem(RULES["time-limit-only"].limits, "steps_per_env", STEPS / 8)
    assert isinstance(check("time-limit-only", facts(endless)), Evidence)
    assert isinstance(check("time-limit-only", facts(endless, {"actor_learners": 2})), Unseen)


def test_codes_for_the_terminal_are_not_printed():
    text = diagnosis_text(diagnose_facts(facts({}, {"env.id": "Cart\x1b[31mPole\x07"})))
    assert "Cart?[31mPole?" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["run.total_steps", "env.num_envs"])
@pytest.mark.parametrize("value", ["many", True, 1e999])
def test_a_setting_that_should_be_a_number_is_named(name, value):
    with pytest.raises(birl.ConfigError, match=f"{name} .* is not a finite number"):
        diagnose_facts(facts(CUT, {name: value}))


def test_a_metric_that_is_missing_is_said_and_no_fault():
    found = check("observations-constant", facts({}))
    assert isinstance(found, Unseen)
    assert "observation/constant_share" in str(found)


@pytest.mark.parametrize("page", ["docs/diagnose.md", "docs/diagnose.zh-CN.md"])
def test_the_table_of_the_page_is_that_of_the_rules(page):
    text = (Path(__file__).parents[2] / page).read_text()
    table = text.partition("<!-- rules:begin -->")[2].partition("<!-- rules:end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    limits = [", ".join(f"{name} {value:g}" for name, value in rule.limits.items()) for rule in RULES.values()]
    assert [row[0] for row in rows] == [f"`{name}`" for name in RULES]
    assert [row[3] for row in rows] == limits
    if page == "docs/diagnose.md":
        assert [row[1:3] for row in rows] == [[rule.title, rule.sees] for rule in RULES.values()]
