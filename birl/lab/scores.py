"""The score of each run: of its final evaluation, or at a number of steps that all runs have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from birl.maths.curves import mean_between, moving_mean
from birl.maths.statistics import iqm
from birl.run.console import number
from birl.run.history import RunHistory

RETURN = "episode/return"
EVALUATION = "eval/return_mean"
CPU_SECONDS = "time/cpu_seconds"
LAST = 0.1  # the share of the steps up to a step that the training return there is the mean of
HIGH = 0.95  # the share of the way from the lowest start to the best end at which a target is
NEAR = 0.05  # an evaluation is one "at" a step if it is not farther from it than this share
SMOOTH = 0.04  # width of the moving mean of a curve, as a share of the common steps; as `birl plot` has it

Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Scoring:
    """The way in which runs are scored."""

    kind: Literal["final", "evaluation", "training"]
    at: int | None  # environment steps; None with "final"

    def text(self) -> str:
        """The meaning of a score, in words."""
        match self.kind:
            case "final":
                return "return of the final evaluation"
            case "evaluation":
                return f"return of the evaluation at {self.at:,} steps"
            case "training":
                return f"training return at {self.at:,} steps (mean over the last {100 * LAST:.0f} % of them)"

    def policy_text(self, runs: Sequence[RunHistory]) -> str:
        """The policy that was scored and the number of episodes; "" with training returns."""
        if self.kind == "training":
            return ""
        found = {
            evaluated_episodes(run) if self.kind == "final" else run.settings.get("run.eval_episodes") for run in runs
        }
        counts = sorted(count for count in found if isinstance(count, int))
        how_many = "" if not counts else f", {' or '.join(map(str, counts))} episodes for each run"
        which = "at the end of training" if self.at is None else f"that each run had at about {self.at:,} steps"
        return f"the policy {which}{how_many}"

    def score(self, run: RunHistory) -> float | None:
        """The score of a run; None if it has none."""
        if self.at is None:
            return final_evaluation(run)
        if trained_steps(run) < self.at:
            return None
        return evaluation_at(run, self.at) if self.kind == "evaluation" else return_at(run, self.at)


def choose_scoring(runs: Sequence[RunHistory], at: int | None) -> tuple[Scoring | None, list[str]]:
    """A scoring that fits all these runs, and notes on it.

    Final evaluations if all have ended. Else at the most steps that all have, or at those asked
    for: by evaluations if all have one there, by training returns if not. None: there is no result.
    """
    if at is None and all(final_evaluation(run) is not None for run in runs):
        return Scoring("final", None), []
    begun = [run for run in runs if len(run.curve(RETURN)[0]) or len(run.curve(EVALUATION)[0])]
    known = {run.run_dir for run in begun}
    notices = [f"{run.run_dir} has no returns yet and is left out" for run in runs if run.run_dir not in known]
    if at is None:
        if not begun:
            return None, notices
        shortest = min(begun, key=trained_steps)
        at = trained_steps(shortest)
        notices.append(
            f"not all runs have ended with an evaluation: all are compared at {at:,} steps, as many as "
            f"{shortest.run_dir} has; --at STEP chooses others, and leaves out runs with fewer"
        )
    short = [run for run in begun if trained_steps(run) < at]
    notices += [f"{run.run_dir} has {trained_steps(run):,} of {at:,} steps and is left out" for run in short]
    long = [run for run in begun if trained_steps(run) >= at]
    evaluated = len(long) > 0 and all(evaluation_at(run, at) is not None for run in long)
    return Scoring("evaluation" if evaluated else "training", at), notices


def final_evaluation(run: RunHistory) -> float | None:
    """The return of the evaluation that ended the run; None if it goes on, or was not evaluated."""
    if run.summary is None or run.summary["evaluation"] is None or trained_steps(run) > run.summary["env_steps"]:
        return None
    return _number(run.summary["evaluation"].get("return_mean"))


def evaluated_episodes(run: RunHistory) -> int | None:
    """The episodes of the evaluation that ended the run; None if it does not say."""
    match run.summary:
        case {"evaluation": {"episodes": int(episodes)}}:
            return episodes
    return None


def trained_steps(run: RunHistory) -> int:
    """The environment steps of a run, as far as it has written them."""
    return max(0 if run.summary is None else run.summary["env_steps"], run.last_step)


def own_steps(run: RunHistory) -> int:
    """The steps that a run trained itself; a fork counts on from those of its parent."""
    return max(0, trained_steps(run) - (0 if run.fork is None else run.fork.env_steps))


def evaluation_at(run: RunHistory, at: int) -> float | None:
    """The return of the evaluation nearest to these steps; None if none is near."""
    steps, returns = run.curve(EVALUATION)
    if not len(steps):
        return None
    nearest = int(np.argmin(abs(steps - at)))
    return float(returns[nearest]) if abs(steps[nearest] - at) <= NEAR * at else None


def return_at(run: RunHistory, at: int) -> float | None:
    """The mean training return over the last steps up to these; None if no episode had ended."""
    steps, returns = run.curve(RETURN)
    return mean_between(steps, returns, (1 - LAST) * at, at) if len(steps) and steps[0] <= at else None


def common_range(curves: Sequence[Curve], at: int | None) -> tuple[float, float] | None:
    """The steps that all curves have, up to `at`; None if there are none."""
    if not curves:
        return None
    start, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    end = end if at is None else min(end, at)
    return (float(start), float(end)) if start < end else None


def smoothed(curve: Curve, steps: tuple[float, float] | None, at: int | None) -> Curve:
    """The curve as a moving mean over a share of these steps, or else of its own; up to `at`."""
    x, y = curve
    start, end = (x[0], x[-1]) if steps is None else steps
    kept = x if at is None else x[x <= at]
    return kept, moving_mean(x, y, kept, SMOOTH * (end - start))


def choose_target(groups: Sequence[Sequence[Curve]], steps: tuple[float, float]) -> tuple[float | None, str]:
    """A training return that tells quick groups from slow ones, and how it was chosen.

    It is 95 % of the way from the lowest IQM at the start to the highest at the end.
    """
    start, end = steps
    width = LAST * (end - start)
    levels = [
        [iqm(np.array([mean_between(*curve, low, high) for curve in curves])) for curves in groups if curves]
        for low, high in ((start, start), (end - width, end))
    ]
    lowest, best = min(levels[0]), max(levels[1])
    if best <= lowest:
        return None, f"no group ends above the lowest start, {number(lowest)}"
    way = f"{100 * HIGH:.0f} % of the way from the lowest start, {number(lowest)}, to the best end, {number(best)}"
    return lowest + HIGH * (best - lowest), way


def seconds_at(run: RunHistory, steps: float) -> tuple[float | None, float | None]:
    """Wall and CPU seconds of a run up to these steps; None if it has not logged them.

    CPU seconds of runs that did not log them are the wall seconds, scaled by their summary.
    """
    wall = _interpolated(run.curve("seconds"), steps)
    cpu = _interpolated(run.curve(CPU_SECONDS), steps)
    if cpu is None and wall is not None and run.summary is not None:
        of_all = [_number(run.summary.get(name)) for name in ("cpu_seconds", "wall_seconds")]
        cpu = wall * of_all[0] / of_all[1] if of_all[0] is not None and of_all[1] else None
    return wall, cpu


def _interpolated(curve: Curve, at: float) -> float | None:
    return float(np.interp(at, *curve)) if len(curve[0]) else None


def _number(value: Any) -> float | None:
    """The number in a file that may be anybody's; None if it is none."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None
