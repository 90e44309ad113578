"""What a search does next: promotions, seeds, the end of the budget. No run is trained here."""

from typing import Any

import pytest

from birl.algos import ppo
from birl.config import ConfigError, RunConfig
from birl.lab.tuning.halving import (
    SHARE,
    UNCOUNTED,
    Begin,
    Choose,
    Close,
    Job,
    Over,
    Promote,
    Wait,
    next_step,
    ranked,
    time_left,
    time_of_job,
)
from birl.lab.tuning.journal import SearchState, trial_name
from birl.lab.tuning.plan import Budget, Candidate, make_plan, rung_steps
from birl.search import LogRange

SPACE = {"learning_rate": LogRange(1e-4, 1e-2)}


def make(seeds: int = 1, rungs: int = 3, **budget: Any) -> SearchState:
    config = ppo.Config(run=RunConfig(total_steps=900))
    plan = make_plan((Candidate("ppo", config, SPACE),), Budget(**(budget or {"trials": 100})), seeds, 2, rungs)
    return SearchState(plan)


def begin(state: SearchState, number: int) -> None:
    point = {"learning_rate": 1e-3} if number else None
    state.add([{"event": "trial", "trial": number, "candidate": 0, "point": point, "how": "random"}])


def finish(state: SearchState, number: int, rung: int, score: float, worker: str = "w") -> None:
    trial = state.trials[number]
    for seed in trial.lanes:
        what = {"group": trial.name, "seed": seed, "rung": rung, "worker": worker, "at": 1.0}
        steps = state.plan.rungs[rung]
        state.add([{"event": "claim", **what}])
        state.add([{"event": "done", "score": score, "env_steps": steps, "seconds": 1.0, **what}])


def with_scores(*scores: float, **options: Any) -> SearchState:
    state = make(**options)
    for number, score in enumerate(scores):
        begin(state, number)
        finish(state, number, 0, score)
    return state


def step(state: SearchState, now: float = 2.0, worker: str = "w") -> Any:
    return next_step(state, now, 1, worker)


def test_each_rung_has_three_times_the_steps_of_the_one_before() -> None:
    assert rung_steps(900, 3) == (100, 300, 900)
    assert rung_steps(1000, 3) == (111, 333, 1000)
    assert rung_steps(1000, 1) == (1000,)
    with pytest.raises(ConfigError, match="rungs 9 are too many for 1,000 steps; use at most 7"):
        rung_steps(1000, 9)


def test_the_first_of_three_is_promoted_and_the_others_are_not() -> None:
    state = with_scores(1.0, 3.0)
    assert step(state) == Begin(2)
    begin(state, 2)
    finish(state, 2, 0, 2.0)
    assert step(state) == Promote(1, 1)
    state.add([{"event": "promote", "trial": 1, "rung": 1}])
    assert step(state) == Job(trial_name(1), 1, 1)
    finish(state, 1, 1, 5.0)
    assert step(state) == Begin(3)


def test_a_trial_of_a_higher_rung_is_promoted_before_one_of_a_lower() -> None:
    state = with_scores(*range(9))
    for number in (8, 7, 6):
        assert step(state) == Promote(number, 1)
        state.add([{"event": "promote", "trial": number, "rung": 1}])
        finish(state, number, 1, 10.0 - number)
    assert step(state) == Promote(6, 2)


def test_a_trial_that_failed_counts_as_a_worse_one() -> None:
    state = with_scores(1.0, 0.5)
    begin(state, 2)
    state.add([{"event": "failed", "group": trial_name(2), "seed": 1, "problem": "NaN"}])
    assert step(state) == Promote(0, 1)
    assert [trial.number for trial in ranked(state)] == [0, 1]


def test_all_seeds_of_a_trial_are_trained_before_it_has_a_score() -> None:
    state = make(seeds=2)
    begin(state, 0)
    assert step(state) == Job(trial_name(0), 1, 0)
    done = {"event": "done", "group": trial_name(0), "rung": 0, "env_steps": 100, "seconds": 1.0}
    state.add([done | {"seed": 1, "score": 1.0}])
    assert state.trials[0].score(0) is None
    assert step(state) == Job(trial_name(0), 2, 0)
    state.add([done | {"seed": 2, "score": 3.0}])
    assert state.trials[0].score(0) == 2.0


def test_another_worker_begins_a_trial_instead_of_the_other_seed_of_one_that_is_being_trained() -> None:
    state = make(seeds=2, trials=2)
    begin(state, 0)
    state.add([{"event": "claim", "group": trial_name(0), "seed": 1, "rung": 0, "worker": "a", "at": 1.0}])
    assert step(state, worker="b") == Begin(1)
    begin(state, 1)
    state.add([{"event": "claim", "group": trial_name(1), "seed": 1, "rung": 0, "worker": "c", "at": 1.0}])
    assert step(state, worker="b") == Job(trial_name(0), 2, 0)  # there is nothing else to do


def test_the_best_are_trained_to_the_end_and_then_the_winner_on_fresh_seeds() -> None:
    state = with_scores(1.0, 3.0, trials=2)
    assert step(state) == Close([1, 0])
    state.add([{"event": "finalists", "trials": [1, 0]}])
    for number in (0, 1):  # in the order of their numbers, at the same rung
        assert step(state) == Job(trial_name(number), 1, 2)
        state.add([{"event": "claim", "group": trial_name(number), "seed": 1, "worker": "w", "at": 1.0}])
    assert step(state) == Wait()
    finish(state, 0, 2, 9.0)
    finish(state, 1, 2, 7.0)
    assert step(state) == Choose(0)
    state.add([{"event": "winner", "trial": 0, "groups": ["final"]}])
    assert step(state) == Job("final", 1001, 2)
    for seed in (1001, 1002):
        what = {"group": "final", "seed": seed, "rung": 2}
        state.add([{"event": "done", "score": 1.0, "env_steps": 900, "seconds": 1.0, **what}])
    assert step(state) == Over()


def test_the_settings_to_begin_with_are_always_trained_to_the_end() -> None:
    state = with_scores(0.0, 1.0, 2.0, 3.0, 4.0, trials=5, rungs=1)
    assert step(state) == Close([4, 3, 2, 0])


def test_when_the_time_of_the_search_is_over_no_trial_begins() -> None:
    state = with_scores(1.0, 3.0, minutes=1.0)
    assert step(state, now=2.0) == Begin(2)
    assert time_left(state, 2.0, 1) < 59
    assert step(state, now=61.0) == Close([1, 0])


def test_without_a_score_the_search_goes_on_beyond_its_time() -> None:
    state = make(minutes=1.0)
    state.add([{"event": "worker", "worker": "w", "at": 0.0}])
    begin(state, 0)
    assert time_left(state, 100.0, 1) < 0
    assert step(state, now=100.0) == Job(trial_name(0), 1, 0)


def test_a_first_trial_is_evaluated_where_it_is_when_its_share_of_the_time_is_over() -> None:
    state = make(seeds=2, minutes=1.0)
    state.add([{"event": "worker", "worker": "w", "at": 0.0}])
    begin(state, 0)
    search = 60 * (1 - UNCOUNTED - SHARE)
    assert time_of_job(state, Job(trial_name(0), 1, 0), 0.0, 1) == (pytest.approx(search / 2), True)
    state.trials[0].lanes[1].rung = 0
    assert time_of_job(state, Job(trial_name(0), 2, 0), 10.0, 1) == (pytest.approx(search - 10), True)
    finish(state, 0, 0, 1.0)
    seconds, is_evaluated = time_of_job(state, Job(trial_name(0), 1, 1), 10.0, 1)
    assert seconds == time_left(state, 10.0, 1)
    assert not is_evaluated, "it has a score already"


def test_only_runs_that_can_end_in_time_are_begun_after_the_search() -> None:
    state = with_scores(3.0, 1.0, minutes=1.0)  # a second for 100 steps: 9 seconds for a whole run
    state.add([{"event": "finalists", "trials": [0, 1]}])
    assert step(state, now=45.0) == Job(trial_name(0), 1, 2)
    assert step(state, now=51.0) == Choose(0), "8 seconds more would be too many"
    state.add([{"event": "winner", "trial": 0, "groups": ["final", "final-default"]}])
    assert step(state, now=40.0) == Job("final", 1001, 2)
    state.add([{"event": "claim", "group": "final", "seed": 1001, "rung": 2, "worker": "w", "at": 40.0}])
    assert step(state, now=41.0) == Job("final-default", 1001, 2), "both groups have the same seeds, if it can be"
    assert step(state, now=50.0) == Wait()
    assert time_of_job(state, Job("final", 1001, 2), 41.0, 1) == (pytest.approx(60 * (1 - UNCOUNTED) - 40), False)
    state.add([{"event": "stopped", "group": "final", "seed": 1001, "rung": 2, "seconds": 17.0, "worker": "w"}])
    assert step(state, now=58.0) == Over()


def test_when_the_time_is_over_and_every_trial_has_failed_the_search_ends() -> None:
    state = make(minutes=1.0)
    state.add([{"event": "worker", "worker": "w", "at": 0.0}])
    assert step(state, now=100.0) == Begin(0)
    begin(state, 0)
    state.add([{"event": "failed", "group": trial_name(0), "seed": 1, "problem": "no"}])
    assert step(state, now=10.0) == Begin(1)
    assert step(state, now=100.0) == Close([])


def test_steps_of_runs_that_stopped_failed_or_were_lost_are_counted() -> None:
    state = make()
    for number in range(3):
        begin(state, number)
        what = {"group": trial_name(number), "seed": 1, "rung": 0, "worker": "w", "at": 1.0}
        state.add([{"event": "claim", **what}])
    state.add([{"event": "stopped", "seconds": 1.0, "env_steps": 40, "group": trial_name(0), "seed": 1}])
    state.add([{"event": "failed", "problem": "no", "env_steps": 30, "group": trial_name(1), "seed": 1}])
    state.add([{"event": "lost", "worker": "w", "env_steps": 20, "at": 1.0}])
    assert state.env_steps() == 90


def test_time_counts_only_while_a_worker_is_at_work() -> None:
    state = make(minutes=1.0)
    for name, first, last in (("a", 0.0, 10.0), ("b", 5.0, 20.0), ("c", 1000.0, 1005.0)):
        state.add([{"event": "worker", "worker": name, "at": first}, {"event": "left", "worker": name, "at": last}])
    assert state.used_seconds(9999.0) == 25.0


def test_the_start_of_a_workers_process_counts() -> None:
    state = make(minutes=1.0)
    state.add([{"event": "worker", "worker": "w", "at": 30.0, "started": 10.0}])
    assert state.used_seconds(40.0) == 30.0


def lose(state: SearchState, worker: str, steps: int, *, alone: bool = True, told_first: bool = False) -> None:
    """A worker dies at these saved steps; if it dies alone, the process that started it says so."""
    crashed = [{"event": "crashed", "process": worker, "at": 1.0}] if alone else []
    lost = [{"event": "lost", "worker": worker, "env_steps": steps, "at": 1.0}]
    state.add([{"event": "claim", "group": trial_name(0), "seed": 1, "rung": 0, "worker": worker, "at": 1.0}])
    state.add([*crashed, *lost] if told_first else [*lost, *crashed])
    assert state.trials[0].lanes[1].holder is None


def test_a_run_whose_process_dies_three_times_at_the_same_steps_has_failed() -> None:
    state = make()
    begin(state, 0)
    for worker, steps in (("a", 10), ("b", 20), ("c", 20), ("d", 20)):
        assert state.trials[0].problem is None
        lose(state, worker, steps, told_first=worker == "b")
    assert state.trials[0].problem == "its process died 3 times after 20 steps"


def test_a_run_is_not_to_blame_if_the_whole_search_was_killed() -> None:
    state = make()
    begin(state, 0)
    for worker in "abcdefgh":
        lose(state, worker, -1, alone=False)
    assert state.trials[0].problem is None
    assert step(state) == Job(trial_name(0), 1, 0)


def test_a_search_in_which_every_trial_fails_ends() -> None:
    state = make()
    for number in range(12):
        assert step(state) == Begin(number)
        begin(state, number)
        state.add([{"event": "failed", "group": trial_name(number), "seed": 1, "problem": "no"}])
    assert step(state) == Close([])


def test_events_that_make_no_sense_are_skipped() -> None:
    state = with_scores(1.0)
    strange: list[dict[str, Any]] = [
        {"event": "trial", "trial": 7, "candidate": 0, "point": None, "how": "x"},
        {"event": "trial", "trial": 1, "candidate": 3, "point": None, "how": "x"},
        {"event": "trial", "trial": 1, "candidate": 0, "point": {"encoder": "evil:make"}, "how": "x"},
        {"event": "trial", "trial": 1, "candidate": 0, "point": {"learning_rate": 5.0}, "how": "x"},
        {"event": "done", "group": "../../elsewhere", "seed": 1, "rung": 0},
        {"event": "winner", "trial": 9, "groups": ["/etc"]},
        {"event": "promote", "trial": -1, "rung": 2},
        {"event": "nonsense"},
    ]
    state.add(strange)
    assert (len(state.trials), state.winner, state.trials[0].target) == (1, None, 0)


def test_a_rung_is_the_same_part_of_the_steps_of_each_candidate() -> None:
    quick, slow = (ppo.Config(run=RunConfig(total_steps=steps)) for steps in (90_000, 900))
    candidates = tuple(Candidate("ppo", config, SPACE) for config in (quick, slow))
    state = SearchState(make_plan(candidates, Budget(trials=9), seeds=1, final_seeds=0, finalists=2))
    assert [state.plan.steps(0, rung) for rung in range(3)] == [10_000, 30_000, 90_000]
    assert [state.plan.steps(1, rung) for rung in range(3)] == [100, 300, 900]
    for number in range(2):
        state.add([{"event": "trial", "trial": number, "candidate": number, "point": None, "how": "default"}])
    assert (state.steps(trial_name(0), 1), state.steps(trial_name(1), 1)) == (30_000, 300)
    assert state.total_steps(state.trials[1]) == 900
    assert (state.plan.finalists, state.plan.final_seeds) == (2, ())
