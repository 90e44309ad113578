"""Which settings a trial tries: random ones, or those that Optuna suggests from the others."""

from typing import Any

import numpy as np

from birl.config import ConfigError
from birl.lab.search_space import at_point
from birl.lab.tuning.plan import Candidate, TunePlan, point_json
from birl.lab.tuning.state import SearchState
from birl.registry import validate
from birl.search import draw

MOST_DRAWS = 50  # of settings that do not go together, before a trial counts as failed


def choose_settings(state: SearchState, number: int) -> tuple[int, dict[str, Any] | None, str]:
    """The candidate, the point as JSON, and who chose it; the first trials are those to begin with.

    Random ones depend only on the search's seed and the trial's number.
    """
    plan = state.plan
    if number < len(plan.candidates):
        return number, None, "default"
    rng = np.random.default_rng([plan.search_seed, number])
    learns = plan.sampler == "tpe" and number >= plan.startup
    candidate = _candidate(state, rng, learns)
    if learns:
        from birl.lab.tuning.optuna_sampler import suggest  # which needs an extra

        point = suggest(state, candidate, number)
        if is_valid(plan.candidates[candidate], point):
            return candidate, point, "tpe"
    return candidate, random_point(plan, candidate, rng), "random"


def random_point(plan: TunePlan, candidate: int, rng: np.random.Generator) -> dict[str, Any]:
    """Settings drawn at random, as JSON; those that cannot work are drawn again."""
    one = plan.candidates[candidate]
    for _ in range(MOST_DRAWS):
        point = point_json(draw(one.space, rng))
        if is_valid(one, point):
            break
    return point


def is_valid(candidate: Candidate, point: dict[str, Any]) -> bool:
    """Whether these settings go together."""
    try:
        validate(candidate.algorithm, at_point(candidate.config, point))
    except ConfigError:
        return False
    return True


def _candidate(state: SearchState, rng: np.random.Generator, learns: bool) -> int:
    """One of the algorithms; half of the time the best one so far, once there is one."""
    drawn = int(rng.integers(len(state.plan.candidates)))
    scored = [(trial.best, trial.candidate) for trial in state.trials]
    known = [(best, candidate) for best, candidate in scored if best is not None]
    return max(known)[1] if learns and known and rng.random() < 0.5 else drawn
