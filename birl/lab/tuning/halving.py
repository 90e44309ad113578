"""The next step of a search: asynchronous successive halving, ASHA (Li et al. 2020, Alg. 2).

1. Finish what was begun: the other seeds of a trial, and runs whose worker died.
2. Else, from the highest rung down: if a trial is among the best 1/η of its rung and has not been
   promoted, it goes on to the next rung, from its checkpoint.
3. Else begin a new trial.

Differs from the paper: a trial has several seeds, and when the budget is used, the best few trials
are trained to the end before one of them wins. The winner is then trained on fresh seeds. Of these
runs, only those are begun that can end in time, by the speed of their trial so far.
"""

from typing import NamedTuple

from birl.lab.tuning.journal import FINAL_DEFAULT, LaneState, SearchState, Trial
from birl.lab.tuning.plan import ETA

UNCOUNTED = 0.05  # of the time, for what no worker counts: starting the processes, writing the result
SHARE = 0.25  # of the time, kept for the final runs until their speed is known
MOST_SHARE = 0.6
MARGIN = 1.15  # of the estimated time of the final runs
HOPELESS = 12  # if this many trials have failed and none has not, the search ends


class Job(NamedTuple):
    """A run to be trained until a rung."""

    group: str  # directory of its group: trials/0007, final or final-default
    seed: int
    rung: int


class Promote(NamedTuple):
    """A trial that goes on to the next rung."""

    trial: int
    rung: int


class Begin(NamedTuple):
    """A new trial."""

    number: int


class Close(NamedTuple):
    """The search for settings is over; these trials are trained to the end."""

    finalists: list[int]


class Choose(NamedTuple):
    """All finalists are there: this one wins."""

    winner: int


class Wait(NamedTuple):
    """There is nothing to do until another worker is done."""


class Over(NamedTuple):
    """Everything is done."""


Step = Job | Promote | Begin | Close | Choose | Wait | Over


def next_step(state: SearchState, now: float, workers: int, worker: str = "") -> Step:
    """The next step of a free worker. `workers` is the number of workers."""
    if state.winner is not None:
        return _final_job(state, now)
    if state.finalists is not None:
        chosen = [state.trials[number] for number in state.finalists]
        able = [trial for trial in chosen if _can_end(state, trial, steps_left(state, trial), now)]
        return _pending(able, worker) or (Wait() if _held(chosen) else _choice(state))
    is_over = time_left(state, now, workers) <= 0
    if is_over and ranked(state):
        return Close(_finalists(state))
    # The seeds of a trial share compiled programs: a worker that has them trains all its seeds.
    alone = [trial for trial in state.trials if not _held([trial])]
    step: Step | None = _pending(alone, worker) or _promotion(state)
    if step is not None:
        return step
    if may_begin(state) and not (is_over and state.trials):  # one is tried, however short the time is
        return Begin(len(state.trials))
    return _pending(state.trials, worker) or (Wait() if _held(state.trials) else Close(_finalists(state)))


def ranked(state: SearchState) -> list[Trial]:
    """The trials that have a score, best first: a higher rung counts more than a higher score."""
    known = [(trial.best, trial) for trial in state.trials]
    scored = [(best, trial) for best, trial in known if best is not None]
    return [trial for _, trial in sorted(scored, key=lambda one: (one[0], -one[1].number), reverse=True)]


def time_left(state: SearchState, now: float, workers: int) -> float:
    """Seconds of the search for settings, without what the final runs need; infinite: no limit."""
    if state.plan.budget.minutes is None:
        return float("inf")
    return time_to_end(state, now) - reserve(state, workers)


def time_to_end(state: SearchState, now: float) -> float:
    """Seconds until the last run has to end; infinite: no limit."""
    minutes = state.plan.budget.minutes
    return float("inf") if minutes is None else (1 - UNCOUNTED) * 60 * minutes - state.used_seconds(now)


def time_of_job(state: SearchState, job: Job, now: float, workers: int) -> tuple[float, bool]:
    """Seconds after which this job is ended, and whether it is then evaluated where it is.

    That is so while no trial has a score: a search whose time is too short has a result, too. Each
    seed that the trial has left gets the same time.
    """
    trial = next((trial for trial in state.trials if trial.name == job.group), None)
    if trial is None or state.finalists is not None:
        return time_to_end(state, now), False
    left = time_left(state, now, workers)
    if ranked(state):
        return left, False
    return left / sum(lane.rung < job.rung for lane in trial.lanes.values()), True


def reserve(state: SearchState, workers: int) -> float:
    """Seconds to keep for the finalists and the final runs, as measured so far."""
    assert state.plan.budget.minutes is not None
    whole = 60 * state.plan.budget.minutes
    best = ranked(state)
    if not best:
        return SHARE * whole
    compared = [best[0], state.trials[0] if state.trials[0].best is not None else best[0]]
    finals = sum(run_seconds(trial, state.total_steps(trial)) for trial in compared) * len(state.plan.final_seeds)
    finalists = [state.trials[number] for number in _finalists(state)]
    ahead = [trial for trial in finalists if trial.rung < state.plan.last_rung]
    lanes = [(trial, lane) for trial in ahead for lane in trial.lanes.values()]
    left = sum(run_seconds(trial, state.total_steps(trial) - lane.env_steps) for trial, lane in lanes)
    return min(MARGIN * (left + finals) / max(workers, 1), MOST_SHARE * whole)


def run_seconds(trial: Trial, env_steps: int) -> float:
    """The time that one run of this trial takes for so many steps, as measured so far."""
    lanes = list(trial.lanes.values())
    measured = [(lane.rate, lane.overhead or 0.0) for lane in lanes if lane.rate is not None]
    if measured:
        rate, overhead = (sum(one) / len(measured) for one in zip(*measured, strict=True))
        return overhead + rate * env_steps
    done = sum(lane.env_steps for lane in lanes)
    return sum(lane.seconds for lane in lanes) / max(1, done) * env_steps


def steps_left(state: SearchState, trial: Trial) -> int:
    """The environment steps that a trial still needs to its end, of the seed with the most left."""
    return state.total_steps(trial) - min(lane.env_steps for lane in trial.lanes.values())


def may_begin(state: SearchState) -> bool:
    """True if the budget allows another trial."""
    failed = len(state.trials) >= HOPELESS and all(trial.problem is not None for trial in state.trials)
    limit = state.plan.budget.trials
    return not failed and (limit is None or len(state.trials) < limit)


def _pending(trials: list[Trial], worker: str) -> Job | None:
    """A run that was begun or promoted and that nobody trains.

    Trials that this worker has trained come first, then those with the highest rung.
    """
    known = {trial.number for trial in trials if any(lane.worker == worker for lane in trial.lanes.values())}
    for trial in sorted(trials, key=lambda one: (one.number not in known, -one.target, one.number)):
        if trial.problem is None:
            for seed, lane in trial.lanes.items():
                if lane.holder is None and lane.rung < trial.target:
                    return Job(trial.name, seed, trial.target)
    return None


def _promotion(state: SearchState) -> Promote | None:
    for rung in reversed(range(state.plan.last_rung)):
        # A trial that failed counts as one that was worse.
        there = [trial for trial in state.trials if trial.rung >= rung or trial.problem is not None]
        scores = [(trial.score(rung), trial) for trial in there if trial.problem is None]
        best = sorted(((s, -t.number, t) for s, t in scores if s is not None), key=lambda one: one[:2], reverse=True)
        for _, _, trial in best[: len(there) // ETA]:
            if trial.target == rung:
                return Promote(trial.number, rung + 1)
    return None


def _finalists(state: SearchState) -> list[int]:
    """The best trials, and that of the settings to begin with: what has to be beaten at the end."""
    first = {0} if len(state.plan.candidates) == 1 else set()
    found = [trial.number for trial in ranked(state)]
    return [number for place, number in enumerate(found) if place < state.plan.finalists or number in first]


def _choice(state: SearchState) -> Step:
    """The winner; nothing if no trial is left."""
    best = ranked(state)
    return Choose(best[0].number) if best else Over()


def _final_job(state: SearchState, now: float) -> Step:
    """A final run that can end in time: first one seed of each group, then the next."""
    assert state.winner is not None
    lanes = [(seed, group, lane) for group, lanes in state.finals.items() for seed, lane in lanes.items()]
    for seed, group, lane in sorted(lanes, key=lambda one: one[0]):
        trial = state.trials[0 if group == FINAL_DEFAULT else state.winner]
        is_open = lane.holder is None and lane.problem is None and lane.rung < state.plan.last_rung
        if is_open and _can_end(state, trial, state.total_steps(trial) - lane.env_steps, now):
            return Job(group, seed, state.plan.last_rung)
    return Wait() if any(lane.holder is not None for _, _, lane in lanes) else Over()


def _can_end(state: SearchState, trial: Trial, env_steps: int, now: float) -> bool:
    """True if so many steps with the settings of this trial fit into the time that is left."""
    return run_seconds(trial, env_steps) < time_to_end(state, now)


def _held(trials: list[Trial]) -> bool:
    return any(lane.holder is not None for trial in trials for lane in trial.lanes.values())


def running(state: SearchState) -> list[tuple[str, int, LaneState]]:
    """The runs that a worker trains now."""
    lanes = [(group, seed, lane) for group, lanes in state.groups() for seed, lane in lanes.items()]
    return [one for one in lanes if one[2].holder is not None]
