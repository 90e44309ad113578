"""The result of a search: the winner's score on fresh seeds, beside the settings to begin with.

The best of many trials is flattered: it was chosen because its score was high, and part of that was
luck. So the winner is trained again on seeds that the search has not seen.
"""

from pathlib import Path
from typing import Any

from birl.config import ConfigError, to_json
from birl.errors import CheckpointError
from birl.lab.comparison import compare, verdict_text
from birl.lab.tuning.halving import ranked
from birl.lab.tuning.journal import FINAL, FINAL_DEFAULT, LaneState, SearchState
from birl.lab.tuning.suggesting import importance
from birl.lab.tuning.worker import trial_config
from birl.run.console import counted, number
from birl.run.files import write_json
from birl.run.groups.group_results import score_statistics, settings_text
from birl.run.history import BOOKKEEPING
from birl.settings import flat_settings

BEST = "best.json"
RESULT = "result.json"


def write_result(directory: Path, state: SearchState, now: float) -> dict[str, Any]:
    """Write result.json, and best.json if there is a winner; the content of result.json."""
    found = make_result(directory, state, now)
    write_json(directory / RESULT, found)
    if state.winner is not None:
        write_json(directory / BEST, best_settings(state))
    return found


def best_settings(state: SearchState) -> dict[str, Any]:
    """The best settings so far, in the form that `birl train --config` takes; {} without a trial.

    All settings are there: those that were not searched are the same as in the search, whatever
    presets there are when the file is used.
    """
    best = [state.trials[state.winner]] if state.winner is not None else ranked(state)
    if not best:
        return {}
    config = trial_config(state.plan, best[0])
    left_out = {name.removeprefix("run.") for name in BOOKKEEPING} | {"stop_at_return", "ray_address"}
    settings = {name: to_json(value) for name, value in flat_settings(config).items() if name not in left_out}
    algorithm = state.plan.candidates[best[0].candidate].algorithm
    return {"algorithm": algorithm, "env": config.env.id, **settings}


def make_result(directory: Path, state: SearchState, now: float) -> dict[str, Any]:
    """The content of result.json."""
    last = state.plan.last_rung
    winner = None if state.winner is None else state.trials[state.winner]
    return {
        "algorithm": None if winner is None else state.plan.candidates[winner.candidate].algorithm,
        "env": state.plan.env_id,
        "winner": state.winner,
        "settings": None if winner is None else winner.point or {},
        "search_score": None if winner is None else winner.score(last),
        "fresh": _scores(state.finals.get(FINAL), last),
        "default": _scores(state.finals.get(FINAL_DEFAULT), last),
        "comparison": _comparison(directory, state),
        "importance": importance(state, 0 if winner is None else winner.candidate),
        "trials": [_trial(state, number) for number in range(len(state.trials))],
        "rungs": list(state.plan.rungs),
        "env_steps": state.env_steps(),
        "seconds": round(state.used_seconds(now), 1),
    }


def result_texts(directory: Path, result: dict[str, Any]) -> list[str]:
    """The result of a search in a few sentences."""
    if result["winner"] is None:
        failed = [trial["problem"] for trial in result["trials"] if trial["problem"] is not None]
        last = f", the last: {failed[-1]}" if failed else ""
        return [f"nothing was found: {len(failed)} of {counted(len(result['trials']), 'trial')} failed{last}"]
    fresh, default = result["fresh"], result["default"]
    steps = f"{result['env_steps']:,} steps in {counted(len(result['trials']), 'trial')}"
    texts = [f"winner: trial {result['winner']} of {steps}: {trial_text(result['settings'])}"]
    if fresh is not None:
        texts.append(f"on {counted(len(fresh['returns']), 'seed')} that the search has not seen: {_score_text(fresh)}")
    if default is not None:
        texts.append(f"the settings to begin with, on the same seeds: {_score_text(default)}")
    if result["comparison"] is not None:
        texts.append(result["comparison"]["sentence"])
    if fresh is not None and fresh["iqm"] is not None and result["search_score"] is not None:
        gap = result["search_score"] - fresh["iqm"]
        flattered = f"flattered by {number(gap)}" if gap > 0 else "not flattered"
        texts.append(f"its score in the search was {number(result['search_score'])}: {flattered}")
    if result["importance"]:
        shares = [f"{name} {share:.0%}" for name, share in list(result["importance"].items())[:5]]
        texts.append(f"importance of settings: {', '.join(shares)}")
    # A module is imported only if the user names it.
    task = f"{result['algorithm']} {result['env']} " if ":" in result["algorithm"] else ""
    texts.append(f"train with these settings: birl train {task}--config {directory / BEST}")
    return texts


def _comparison(directory: Path, state: SearchState) -> dict[str, Any] | None:
    """The winner beside the settings to begin with; None if they are the same, or have no runs."""
    if FINAL_DEFAULT not in state.finals:
        return None
    try:
        [pair] = compare(directory / FINAL, directory / FINAL_DEFAULT).pairs
    except (ConfigError, CheckpointError):  # no run has finished
        return None
    return {
        "probability": pair.probability,  # that a seed of the winner beats one of the others
        "interval": pair.probability_interval and list(pair.probability_interval),
        "p_value": pair.p_value,
        "better": {"first": True, "second": False}.get(pair.verdict),
        "sentence": verdict_text(pair, "the winner", "the settings to begin with"),
    }


def _scores(lanes: dict[int, LaneState] | None, rung: int) -> dict[str, Any] | None:
    """The statistics of final runs; None if there are none."""
    if lanes is None:
        return None
    returns = {f"seed-{seed}": lane.scores[rung] for seed, lane in lanes.items() if rung in lane.scores}
    failed = {f"seed-{seed}": lane.problem for seed, lane in lanes.items() if lane.problem is not None}
    left = len(lanes) - len(returns) - len(failed)
    return {**score_statistics(returns), "returns": returns, "failed": failed, "no_time": left}


def _trial(state: SearchState, index: int) -> dict[str, Any]:
    trial = state.trials[index]
    scores = [trial.score(rung) for rung in range(len(state.plan.rungs))]
    return {
        "directory": trial.name,
        "algorithm": state.plan.candidates[trial.candidate].algorithm,
        "how": trial.how,
        "settings": trial.point,
        "scores": scores,
        "env_steps": sum(lane.env_steps for lane in trial.lanes.values()),
        "problem": trial.problem,
    }


def _score_text(found: dict[str, Any]) -> str:
    late = f"; there was no time for {counted(found['no_time'], 'other run')}" if found["no_time"] else ""
    if found["iqm"] is None:
        return f"no run has finished{late}"
    interval = found["interval"]
    between = f" (95 % interval {number(interval[0])} to {number(interval[1])})" if interval else ""
    failed = f", {len(found['failed'])} failed" if found["failed"] else ""
    return f"IQM {number(found['iqm'])}{between}{failed}{late}"


def trial_text(settings: dict[str, Any] | None) -> str:
    """The settings of a trial in one line."""
    return settings_text(settings or {}) or "the settings to begin with"
