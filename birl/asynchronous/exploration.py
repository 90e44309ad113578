"""How actor-learners explore: each reaches a final ε of its own (Mnih et al. 2016, section 5.1)."""

import numpy as np


def final_exploration(finals: tuple[float, ...], chances: tuple[float, ...], seed: int, number: int) -> float:
    """The final ε of actor-learner `number`. It is random, but fixed by the run's seed."""
    rng = np.random.default_rng([seed, number])
    bounds = np.cumsum(chances)
    return finals[int(np.searchsorted(bounds[:-1], rng.random(), side="right"))]
