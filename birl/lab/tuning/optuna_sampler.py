"""Optuna's TPE and importance of settings. The only file that imports optuna, if a search needs it.

A search keeps its own journal: in Optuna's, a trial that is paused at a rung would be running, and
the sampler would learn nothing from it. So Optuna gets the trials anew each time, in memory, with a
paused trial as one that was pruned at its rung.
"""

import warnings
from typing import Any

import numpy as np

from birl.config import ConfigError, to_json
from birl.errors import install_extra
from birl.lab.tuning.plan import is_in, point_json
from birl.lab.tuning.state import SearchState, Trial
from birl.search import Choices, Dimension, LogRange, SearchSpace
from birl.settings import flat_settings

try:
    import optuna
except ImportError as problem:
    remedy = f"{install_extra('tune')}, or search at random: --sampler random"
    raise ConfigError(f"Optuna is not installed: {remedy}") from problem

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

LEAST_TRIALS = 12  # for the importance of settings

optuna.logging.set_verbosity(optuna.logging.ERROR)


def suggest(state: SearchState, candidate: int, number: int) -> dict[str, Any]:
    """Settings that the trials so far make promising, as JSON (TPE, Bergstra et al. 2011)."""
    space = state.plan.candidates[candidate].space
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is marked as experimental
        seed = int(np.random.SeedSequence([state.plan.search_seed, number]).generate_state(1)[0])
        sampler = optuna.samplers.TPESampler(n_startup_trials=0, multivariate=True, constant_liar=True, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(_trials(state, candidate))
        found = study.ask(_distributions(space)).params
    return {name: _value(dimension, found[name]) for name, dimension in space.items()}


def importance(state: SearchState, candidate: int) -> dict[str, float]:
    """How much each setting matters to the score, 0 to 1, most first; {} with too few trials.

    It is Optuna's PED-ANOVA (Watanabe et al. 2023) on the scores at the highest rung that enough
    trials have reached. {} if it finds that no setting matters.
    """
    space = state.plan.candidates[candidate].space
    for rung in reversed(range(len(state.plan.rungs))):
        scores = {trial.number: trial.score(rung) for trial in state.trials if trial.problem is None}
        known = [trial for trial in _searched(state, candidate) if scores.get(trial.number) is not None]
        if len(known) >= LEAST_TRIALS and len({scores[trial.number] for trial in known}) > 1:
            break
    else:
        return {}
    study = optuna.create_study(direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in known:
            params = _params(space, _point(state, trial))
            study.add_trial(
                create_trial(params=params, distributions=_distributions(space), value=scores[trial.number])
            )
        tried = [trial.params for trial in study.get_trials(deepcopy=False)]
        several = [name for name in space if len({params[name] for params in tried}) > 1]
        if not several:
            return {}
        # Normalized, Optuna would make equal shares of zeros.
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=several, normalize=False
        )
    whole = sum(found.values())
    if not whole > 0:
        return {}
    return {name: float(value / whole) for name, value in sorted(found.items(), key=lambda item: -item[1])}


def _trials(state: SearchState, candidate: int) -> list[FrozenTrial]:
    space = state.plan.candidates[candidate].space
    found = []
    for trial in _searched(state, candidate):
        params, distributions = _params(space, _point(state, trial)), _distributions(space)
        scores = {rung: score for rung in range(len(state.plan.rungs)) if (score := trial.score(rung)) is not None}
        if trial.problem is not None:  # pruned before it had a score: ranked last
            found.append(create_trial(params=params, distributions=distributions, state=TrialState.PRUNED))
        elif state.plan.last_rung in scores:
            value = scores[state.plan.last_rung]
            found.append(create_trial(params=params, distributions=distributions, value=value))
        else:
            stage = TrialState.PRUNED if scores else TrialState.RUNNING
            found.append(
                create_trial(params=params, distributions=distributions, intermediate_values=scores, state=stage)
            )
    return found


def _searched(state: SearchState, candidate: int) -> list[Trial]:
    """The candidate's trials whose settings lie in the space; those to begin with may not."""
    space = state.plan.candidates[candidate].space
    own = [trial for trial in state.trials if trial.candidate == candidate]
    return [trial for trial in own if is_in(space, _point(state, trial))]


def _point(state: SearchState, trial: Trial) -> dict[str, Any]:
    if trial.point is not None:
        return trial.point
    one = state.plan.candidates[trial.candidate]
    settings = flat_settings(one.config)
    return point_json({name: settings[name] for name in one.space})


def _distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    return {name: _distribution(dimension) for name, dimension in space.items()}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Choices):  # by their numbers: Optuna takes no lists
        return CategoricalDistribution(tuple(range(len(dimension.values))))
    log = isinstance(dimension, LogRange)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=log)
    return FloatDistribution(dimension.low, dimension.high, log=log)


def _params(space: SearchSpace, point: dict[str, Any]) -> dict[str, Any]:
    return {name: _number(dimension, point[name]) for name, dimension in space.items()}


def _number(dimension: Dimension, value: Any) -> Any:
    if not isinstance(dimension, Choices):
        return value
    return next(i for i, choice in enumerate(dimension.values) if to_json(choice) == value)


def _value(dimension: Dimension, number: Any) -> Any:
    return to_json(dimension.values[number]) if isinstance(dimension, Choices) else number
