"""Has a run learned? Its training return at the beginning, at its best and now."""

import numpy as np

from birl.experiments.diagnosis.findings import Verdict
from birl.run.display import number
from birl.run.history import RunHistory

LEAST_EPISODES = 40  # `episode/return` is a mean of 20: two means that share no episode
LEAST_ROWS = 5
WINDOW = 0.1  # the share of the steps so far that a mean is taken over
CLEAR = 2.0  # standard deviations by which a return must move


def learning_verdict(run: RunHistory) -> Verdict:
    """Whether the return has moved since the run began, by how much its means differ."""
    steps, returns = run.curve("episode/return")
    counts = run.curve("episode/count")[1]
    episodes = int(counts[-1]) if len(counts) else 0
    if episodes < LEAST_EPISODES or len(steps) < LEAST_ROWS:
        return Verdict("too short", f"too short to judge: {episodes} episodes have ended")
    means, deviations = windows(steps, returns)
    first, last, best = float(means[0]), float(means[-1]), float(means.max())
    clear = CLEAR * float(np.hypot(deviations[0], deviations[-1])) + 1e-6 * abs(first)
    course = f"{number(first)} in the first tenth of the steps, {number(last)} in the last"
    # The best of ten windows is high by chance, so it must stand out more.
    if best - first > 1.5 * clear and best - last > max(0.5 * (best - first), clear):
        return Verdict("improved and fell", f"the return rose to {number(best)} and fell: {course}", first, best, last)
    if last - first > clear:
        return Verdict("improved", f"the return has improved: {course}", first, best, last)
    if first - last > clear:
        return Verdict("fell", f"the return has fallen: {course}", first, best, last)
    return Verdict("not moved", f"the return has not moved: {course}", first, best, last)


def windows(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of a curve over ten windows of equal length.

    Windows without a value are left out.
    """
    edges = np.linspace(steps[0], steps[-1], round(1 / WINDOW) + 1)
    place = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, len(edges) - 2)
    parts = [values[place == index] for index in range(len(edges) - 1)]
    held = [part for part in parts if len(part)]
    return np.array([part.mean() for part in held]), np.array([part.std() for part in held])
