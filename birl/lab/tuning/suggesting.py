"""The settings that a trial tries: random ones, or those that Optuna suggests.

The only file that imports optuna, if a search needs it.
"""

import json
import warnings
from typing import Any

import numpy as np

from birl.config import ConfigError, to_json
from birl.errors import install_extra
from birl.lab.tuning.journal import SearchState, Trial
from birl.lab.tuning.plan import Candidate, TunePlan, is_in, point_json
from birl.lab.tuning.search_space import at_point
from birl.registry import validate
from birl.search import Choices, Dimension, LogRange, SearchSpace, draw
from birl.settings import flat_settings

LEAST_TRIALS = 12  # for the importance of settings
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
    """True if these settings go together."""
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


def load_optuna() -> Any:
    """The package optuna; ConfigError if it is not installed."""
    try:
        import optuna
    except ImportError as problem:
        remedy = f"{install_extra('tune')}, or search at random: --sampler random"
        raise ConfigError(f"Optuna is not installed: {remedy}") from problem
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def suggest(state: SearchState, candidate: int, number: int) -> dict[str, Any]:
    """Settings that the trials so far make promising, as JSON (TPE, Bergstra et al. 2011).

    Optuna gets all trials, in memory. One that is paused at a rung counts as pruned there: a
    running one would teach the sampler nothing.
    """
    optuna = load_optuna()
    space = state.plan.candidates[candidate].space
    seed = int(np.random.SeedSequence([state.plan.search_seed, number]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is marked as experimental
        sampler = optuna.samplers.TPESampler(n_startup_trials=0, multivariate=True, constant_liar=True, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial, point in _searched(state, candidate):
            study.add_trial(_frozen(optuna, space, point, **_outcome(optuna, state, trial)))
        found = study.ask(_distributions(optuna, space)).params
    return {name: _value(dimension, found[name]) for name, dimension in space.items()}


def importance(state: SearchState, candidate: int) -> dict[str, float]:
    """The importance of each setting for the score, 0 to 1, largest first; {} with few trials.

    It is Optuna's PED-ANOVA (Watanabe et al. 2023) on the scores at the highest rung that enough
    trials have reached. {} if it finds that no setting matters, and without Optuna.
    """
    try:
        optuna = load_optuna()
    except ConfigError:  # without the extra
        return {}
    space = state.plan.candidates[candidate].space
    sound = [(trial, point) for trial, point in _searched(state, candidate) if trial.problem is None]
    for rung in reversed(range(len(state.plan.rungs))):
        known = [(score, point) for trial, point in sound if (score := trial.score(rung)) is not None]
        if len(known) >= LEAST_TRIALS and len({score for score, _ in known}) > 1:
            break
    else:
        return {}
    several = [name for name in space if len({json.dumps(point[name]) for _, point in known}) > 1]
    if not several:
        return {}
    study = optuna.create_study(direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study.add_trials([_frozen(optuna, space, point, value=score) for score, point in known])
        # Normalized, Optuna would make equal shares of zeros.
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=several, normalize=False
        )
    whole = sum(found.values())
    if not whole > 0:
        return {}
    return {name: float(value / whole) for name, value in sorted(found.items(), key=lambda item: -item[1])}


def _outcome(optuna: Any, state: SearchState, trial: Trial) -> dict[str, Any]:
    """The state and scores of a trial, as Optuna names them."""
    states, last = optuna.trial.TrialState, state.plan.last_rung
    scores = {rung: score for rung in range(last + 1) if (score := trial.score(rung)) is not None}
    if trial.problem is not None:  # pruned before it had a score: ranked last
        return {"state": states.PRUNED}
    if last in scores:
        return {"value": scores[last]}
    return {"intermediate_values": scores, "state": states.PRUNED if scores else states.RUNNING}


def _searched(state: SearchState, candidate: int) -> list[tuple[Trial, dict[str, Any]]]:
    """The candidate's trials whose settings lie in the space; those to begin with may not."""
    one = state.plan.candidates[candidate]
    settings = flat_settings(one.config)
    first = point_json({name: settings[name] for name in one.space})
    own = [(trial, trial.point or first) for trial in state.trials if trial.candidate == candidate]
    return [(trial, point) for trial, point in own if is_in(one.space, point)]


def _frozen(optuna: Any, space: SearchSpace, point: dict[str, Any], **outcome: Any) -> Any:
    """A trial of Optuna's."""
    params = {name: _number(dimension, point[name]) for name, dimension in space.items()}
    return optuna.trial.create_trial(params=params, distributions=_distributions(optuna, space), **outcome)


def _distributions(optuna: Any, space: SearchSpace) -> dict[str, Any]:
    return {name: _distribution(optuna.distributions, dimension) for name, dimension in space.items()}


def _distribution(kinds: Any, dimension: Dimension) -> Any:
    if isinstance(dimension, Choices):  # by their numbers: Optuna takes no lists
        return kinds.CategoricalDistribution(tuple(range(len(dimension.values))))
    log = isinstance(dimension, LogRange)
    if dimension.whole:
        return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=log)
    return kinds.FloatDistribution(dimension.low, dimension.high, log=log)


def _number(dimension: Dimension, value: Any) -> Any:
    if not isinstance(dimension, Choices):
        return value
    return next(i for i, choice in enumerate(dimension.values) if to_json(choice) == value)


def _value(dimension: Dimension, number: Any) -> Any:
    return to_json(dimension.values[number]) if isinstance(dimension, Choices) else number
