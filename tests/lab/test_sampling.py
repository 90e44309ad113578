"""Which settings are tried: random ones are repeatable, and Optuna learns from what was tried."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from birl.algos import dqn, ppo
from birl.config import EnvConfig, RunConfig
from birl.lab.tuning.journal import SearchState
from birl.lab.tuning.plan import Budget, Candidate, is_in, make_plan, point_json, space_json
from birl.lab.tuning.suggesting import choose_settings, importance, suggest
from birl.search import Choices, LogRange, Range

SPACE: dict[str, Any] = {
    "learning_rate": LogRange(1e-5, 1e-1),
    "entropy_weight": Range(0.0, 1.0),
    "epochs": Range(1, 9),
    "hidden_sizes": Choices(((8,), (8, 8))),
    "normalize_rewards": Choices((False, True)),
}


def make(sampler: Any = "tpe", *more: Candidate, seed: int = 0) -> SearchState:
    config = ppo.Config(env=EnvConfig("CartPole-v1"), run=RunConfig(total_steps=900))
    plan = make_plan((Candidate("ppo", config, SPACE), *more), Budget(trials=99), 1, 1, 3, sampler, seed)
    return SearchState(plan)


def try_settings(state: SearchState, rng: np.random.Generator, rung: int = 0) -> None:
    """A trial that is better the nearer its learning rate is to 1e-2; nothing else matters."""
    number = len(state.trials)
    candidate, point, how = choose_settings(state, number)
    state.add([{"event": "trial", "trial": number, "candidate": candidate, "point": point, "how": how}])
    rate = 3e-4 if point is None else point["learning_rate"]
    score = -abs(np.log10(rate) + 2) + 0.01 * rng.normal()
    what = {"group": state.trials[number].name, "seed": 1, "env_steps": 100, "seconds": 1.0, "score": score}
    state.add([{"event": "done", "rung": one, **what} for one in range(rung + 1)])


def test_random_settings_depend_only_on_the_seed_and_the_number_of_the_trial() -> None:
    first, second, other = make("random"), make("random"), make("random", seed=1)
    try_settings(first, np.random.default_rng(0))
    assert choose_settings(first, 5) == choose_settings(second, 5)
    assert choose_settings(first, 5) != choose_settings(first, 6)
    assert choose_settings(first, 5) != choose_settings(other, 5)
    assert choose_settings(first, 0) == (0, None, "default")


def test_tpe_learns_from_paused_trials_where_good_settings_are() -> None:
    rng = np.random.default_rng(0)
    state = make()
    for _ in range(40):
        try_settings(state, rng)
    how = Counter(trial.how for trial in state.trials)
    assert how == {"default": 1, "random": 9, "tpe": 30}
    rates = [np.log10(trial.point["learning_rate"]) for trial in state.trials if trial.point is not None]
    assert np.mean(np.abs(np.array(rates[-15:]) + 2)) < 0.5 * np.mean(np.abs(np.array(rates[:9]) + 2))


def test_tpe_takes_trials_of_every_kind() -> None:
    rng = np.random.default_rng(0)
    state = make()
    for rung in (0, 0, 1, 2, 0, 1):
        try_settings(state, rng, rung)
    state.add([{"event": "failed", "group": state.trials[1].name, "seed": 1, "problem": "NaN"}])
    point = point_json({name: dimension.draw(rng) for name, dimension in SPACE.items()})
    state.add([{"event": "trial", "trial": 6, "candidate": 0, "point": point, "how": "random"}])  # without a score yet
    found = suggest(state, 0, 7)
    assert is_in(SPACE, found)
    assert found == suggest(state, 0, 7)


def test_the_setting_that_alone_matters_is_the_most_important() -> None:
    rng = np.random.default_rng(1)
    state = make("random")
    for _ in range(60):
        try_settings(state, rng)
    found = importance(state, 0)
    assert next(iter(found)) == "learning_rate"
    assert found["learning_rate"] > 0.5
    assert sum(found.values()) == pytest.approx(1)


def test_the_importance_of_settings_needs_trials() -> None:
    state = make("random")
    assert importance(state, 0) == {}


def test_a_search_over_two_algorithms_tries_both_and_then_more_of_the_better_one() -> None:
    other = Candidate("dqn", dqn.Config(run=RunConfig(total_steps=900)), {"learning_rate": LogRange(1e-5, 1e-1)})
    state = make("tpe", other)
    rng = np.random.default_rng(0)
    for number in range(60):
        candidate, point, how = choose_settings(state, number)
        state.add([{"event": "trial", "trial": number, "candidate": candidate, "point": point, "how": how}])
        score = candidate + 0.1 * rng.normal()
        what = {"group": state.trials[number].name, "seed": 1, "env_steps": 100, "seconds": 1.0, "score": score}
        state.add([{"event": "done", "rung": 0, **what}])
    assert [trial.candidate for trial in state.trials[:2]] == [0, 1]
    counts = Counter(trial.candidate for trial in state.trials[10:])
    assert counts[1] > 1.5 * counts[0] > 0


def test_a_space_is_the_same_after_json() -> None:
    assert space_json(SPACE) == {
        "learning_rate": {"log_range": [1e-5, 0.1]},
        "entropy_weight": {"range": [0.0, 1.0]},
        "epochs": {"range": [1, 9]},
        "hidden_sizes": {"choices": [[8], [8, 8]]},
        "normalize_rewards": {"choices": [False, True]},
    }


def test_no_trial_begins_to_learn_after_it_was_first_compared() -> None:
    space: dict[str, Any] = {"learning_starts": Choices((100, 1_000, 5_000))}
    for total_steps, expected in ((9_000, (100,)), (90_000, (100, 1_000, 5_000)), (90, (100,))):
        config = dqn.Config(run=RunConfig(total_steps=total_steps))
        plan = make_plan((Candidate("dqn", config, space),), Budget(trials=9), rungs=3)
        assert plan.candidates[0].space["learning_starts"] == Choices(expected)


@pytest.mark.parametrize(
    ("changes", "inside"),
    [
        ({}, True),
        ({"learning_rate": 1.0}, False),
        ({"hidden_sizes": [8, 8]}, True),
        ({"hidden_sizes": [64]}, False),
        ({"normalize_rewards": 1}, False),
        ({"epochs": True}, False),
        ({"encoder": "module:function"}, False),
    ],
)
def test_a_point_outside_of_the_space_is_recognised(changes: dict[str, Any], inside: bool) -> None:
    point = {
        "learning_rate": 1e-3,
        "entropy_weight": 0.5,
        "epochs": 2,
        "hidden_sizes": [8],
        "normalize_rewards": False,
    }
    assert is_in(SPACE, point | changes) == inside


def test_a_search_seed_may_be_large() -> None:
    state = make(seed=2**40)
    assert is_in(SPACE, suggest(state, 0, 10))


@pytest.mark.parametrize("rates", [(1e-3,), (1e-4, 1e-3, 1e-2)])
def test_settings_that_do_not_matter_get_no_importance(rates: tuple[float, ...]) -> None:
    state = make()
    values = {"entropy_weight": 0.5, "epochs": 3, "hidden_sizes": [8], "normalize_rewards": False}
    for number in range(20):  # one trial alone is better: it says nothing about a setting
        point = {"learning_rate": rates[number % len(rates)], **values}
        state.add([{"event": "trial", "trial": number, "candidate": 0, "point": point, "how": "random"}])
        what = {"group": state.trials[number].name, "seed": 1, "env_steps": 100, "seconds": 1.0, "rung": 0}
        state.add([{"event": "done", "score": float(number == 0), **what}])
    assert importance(state, 0) == {}


def test_a_setting_with_a_single_value_has_no_importance() -> None:
    config = ppo.Config(env=EnvConfig("CartPole-v1"), run=RunConfig(total_steps=900))
    space = SPACE | {"epochs": Choices((3,))}
    state = SearchState(make_plan((Candidate("ppo", config, space),), Budget(trials=99), 1, 1, 3, "random", 0))
    rng = np.random.default_rng(0)
    for _ in range(30):
        try_settings(state, rng)
    found = importance(state, 0)
    assert "epochs" not in found
    assert next(iter(found)) == "learning_rate"
    assert sum(found.values()) == pytest.approx(1)


def test_values_of_learning_starts_that_the_user_named_stay() -> None:
    space: dict[str, Any] = {"learning_starts": Choices((1_000, 5_000))}
    config = dqn.Config(run=RunConfig(total_steps=9_000, keep_every=100))
    [one] = make_plan((Candidate("dqn", config, space),), Budget(trials=9), rungs=3).candidates
    assert one.space == space
    assert one.config.run.keep_every == 0
