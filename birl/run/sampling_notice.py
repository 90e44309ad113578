"""Whether a score is far below the training return, and what may be the reason.

An evaluation takes the policy's most likely actions; training samples them. A policy that has not
settled, or that must be random, can be much worse without sampling.
"""

import math

import numpy as np

from birl.run.display import number

STANDARD_ERRORS = 3.0  # by which the mean of the evaluation must be below
SHARE = 0.2  # of the scale of the returns, by which it must be below, too
FEWEST_EPISODES = 5  # with fewer, the standard error says little


def is_far_below(returns: np.ndarray, training_return: float, lowest_return: float) -> bool:
    """Whether these returns are far below the training return.

    The mean must be below it by 3 standard errors, so that it is no chance, and by 20 % of the
    scale of the returns, so that it matters. The scale is the size of the training return or what
    training has gained since its lowest value, whichever is larger.
    """
    if len(returns) < FEWEST_EPISODES or not math.isfinite(training_return):
        return False
    gap = training_return - float(returns.mean())
    error = float(returns.std(ddof=1)) / math.sqrt(len(returns))
    scale = max(abs(training_return), training_return - lowest_return)
    return gap > STANDARD_ERRORS * error and gap > SHARE * scale


def sampling_notice(returns: np.ndarray, training_return: float, lowest_return: float, run_dir: object) -> str:
    """A sentence about a score that is far below the training return; "" if it is not."""
    if not is_far_below(returns, training_return, lowest_return):
        return ""
    score = f"the score {number(float(returns.mean()))} is far below the training return {number(training_return)}"
    reason = "the policy was evaluated without sampling, and training samples its actions"
    return f"{score}: {reason}. To sample: birl eval {run_dir} --sample, or train with --no-eval-deterministic"
