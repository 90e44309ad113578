"""Rollouts and metrics that hold a NaN or an infinity stop the run before anything is learned."""

import numpy as np

from birl.errors import NonFiniteError
from birl.types import Metrics, Rollout


def check_finite(rollout: Rollout) -> None:
    """Raise NonFiniteError if an observation or a reward is not finite.

    The message names the array, the environment and the step.
    """
    arrays = {"reward": rollout.rewards}
    observations = rollout.observations if isinstance(rollout.observations, dict) else {"": rollout.observations}
    arrays |= {f"observation {name}".strip(): array for name, array in observations.items() if array.dtype.kind == "f"}
    for name, array in arrays.items():
        bad = ~np.isfinite(array)
        if bad.any():
            t, i = np.argwhere(bad)[0][:2]
            where = f"{name} of environment {i} is {array[t, i]} at step {t} of the rollout"
            raise NonFiniteError(f"{where}; training stopped before learning from it")


def check_finite_metrics(metrics: Metrics) -> Metrics:
    """The metrics as plain numbers; NonFiniteError if a gradient's norm is not finite."""
    # np.asarray first: float() of a JAX array takes 17 µs more.
    numbers = {name: float(np.asarray(value)) for name, value in metrics.items()}
    broken = [value for name, value in numbers.items() if name.endswith("grad_norm") and not np.isfinite(value)]
    if broken:
        rounded = {name: round(value, 4) for name, value in numbers.items()}
        raise NonFiniteError(
            f"the gradient's norm is {broken[0]}; the update was thrown away. Lower learning_rate, set max_grad_norm "
            f"or switch on normalize_observations; metrics of the update: {rounded}"
        )
    return numbers


def for_learning(rollout: Rollout, clip_rewards: bool) -> Rollout:
    """The rollout without what is for statistics only; rewards are their signs if they are clipped.

    Clipping follows Mnih et al. 2015; returns are reported as they are.
    """
    rewards = np.sign(rollout.rewards) if clip_rewards else rollout.rewards
    return rollout._replace(game_over=None, successes=None, rewards=rewards)
