"""Has a run learned? Its training return at the beginning, at its best and now."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from birl.lab.diagnosis.findings import Learned, Verdict
from birl.run.console import number
from birl.run.history import RunHistory

AVERAGED = 20  # episodes that `episode/return` is the mean of
LEAST_EPISODES = 2 * AVERAGED  # two means that share no episode
LEAST_ROWS = 5
WINDOW = 0.1  # the share of the steps so far that a mean is taken over
CLEAR = 2.0  # standard deviations by which a return must move
WORDS: dict[Learned, str] = {
    "improved": "has improved",
    "improved and fell": "rose and fell",
    "fell": "has fallen",
    "not moved": "has not moved",
    "too short": "cannot be judged yet",
}


def learning_verdict(run: RunHistory) -> Verdict:
    """Whether the return has moved since the run began, by how much its means differ."""
    steps, returns = run.curve("episode/return")
    counted, counts = run.curve("episode/count")
    episodes = int(counts[-1]) if len(counts) else 0
    if episodes < LEAST_EPISODES:
        return Verdict("too short", f"too short to judge: {episodes} episodes have ended")
    if len(steps) < LEAST_ROWS:
        rows = f"logged rows with a return: {len(steps)}"
        return Verdict("too short", f"too short to judge: {rows}, of at least {LEAST_ROWS}")
    ended = np.interp(steps, counted, counts)
    # Not the first tenth: a run may have learned all of its task by then.
    first = float(returns[ended <= max(LEAST_EPISODES, ended[0] + AVERAGED)].mean())
    means = window_means(steps, returns)
    last, best = float(means[-1]), max(first, float(means.max()))
    clear = CLEAR * noise(returns, ended) + 1e-6 * abs(first)
    learned = _judged(first, best, last, clear)
    what = f"rose to {number(best)} and fell" if learned == "improved and fell" else WORDS[learned]
    course = f"{number(first)} in the first episodes, {number(last)} in the last tenth of the steps"
    return Verdict(learned, f"the return {what}: {course}", first, best, last, clear)


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict that most seeds have, of equally many the worse one, with means over the seeds.

    Its sentence says how many have which verdict, and the range of their returns.
    """
    counts = Counter(verdict.learned for verdict in verdicts)
    often = sorted(counts, key=lambda learned: (-counts[learned], learned == "improved"))
    parts = [f"{WORDS[learned]} in {counts[learned]}" for learned in often]
    parts[0] += f" of {len(verdicts)} seeds"
    what = f"the return {', '.join(parts)}"
    judged = [verdict for verdict in verdicts if verdict.first is not None]
    if not judged:
        return Verdict(often[0], what)
    ends = [[getattr(verdict, name) for verdict in judged] for name in ("first", "best", "last", "clear")]
    means = [float(np.mean(values)) for values in ends]
    first, _, last, _ = (
        f"{number(mean)} ({number(min(values))} to {number(max(values))})"
        for mean, values in zip(means, ends, strict=True)
    )
    course = f"{first} in the first episodes, {last} in the last tenth of the steps, as mean and range over the seeds"
    return Verdict(often[0], f"{what}: {course}", *means)


def _judged(first: float, best: float, last: float, clear: float) -> Learned:
    # The best of ten windows is high by chance, so it must stand out more.
    if best - first > 1.5 * clear and best - last > max(0.5 * (best - first), clear):
        return "improved and fell"
    if last - first > clear:
        return "improved"
    return "fell" if first - last > clear else "not moved"


def noise(returns: np.ndarray, ended: np.ndarray) -> float:
    """Standard deviation of the difference of an early and a late return if nothing is learned.

    It comes from differences of neighbouring rows, in which learning hardly shows. Rows k < 20
    episodes apart share 20 - k of those that each is the mean of: the variance of their difference
    is k/20 of that of rows that share none. Of all differences the median counts, for a jump is no
    noise; of the last tenth the mean square, for a late return may vary more.
    """
    apart = np.diff(ended)
    moved = apart > 0
    differences = np.diff(returns)[moved] * np.sqrt(AVERAGED / np.clip(apart[moved], 1, AVERAGED))
    if not len(differences):
        return 0.0
    usual = 1.4826 * float(np.median(np.abs(differences)))  # of a Gaussian: its standard deviation
    late = float(np.sqrt(np.mean(differences[-max(LEAST_ROWS, len(differences) // 10) :] ** 2)))
    # Half of the variance of a difference is that of each of its two rows.
    return float(np.hypot(usual, late if len(differences) > 2 * LEAST_ROWS else usual) / np.sqrt(2))


def window_means(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Means of a curve over ten windows of equal length; those without a value are left out."""
    edges = np.linspace(steps[0], steps[-1], round(1 / WINDOW) + 1)
    place = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, len(edges) - 2)
    parts = [values[place == index] for index in range(len(edges) - 1)]
    return np.array([part.mean() for part in parts if len(part)])
