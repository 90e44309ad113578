"""Stacked frames: a replay keeps the newest one of each stack and rebuilds the others."""

import numpy as np

from birl.config import ConfigError, require


def newest_frame(observations: np.ndarray, frame_stack: int) -> np.ndarray:
    """The newest frame of stacks [T, B, frames, ...]; the observations if they are not stacked."""
    if frame_stack == 1:
        return observations
    frames = observations.shape[2] if observations.ndim > 2 else 0
    require(
        frames == frame_stack,
        f"frame_stack {frame_stack} does not fit observations of shape {observations.shape[2:]}; use 1",
    )
    return observations[:, :, -1]


def require_stacks(observations: np.ndarray, begins: np.ndarray, follows: np.ndarray) -> None:
    """Raise ConfigError unless observations are stacks of frames.

    Each is the one before with one frame more; the first of an episode is one frame repeated.
    """
    starts = observations[:-1][begins]
    grows = np.array_equal(observations[1:, :, :-1][follows], observations[:-1, :, 1:][follows])
    if not grows or np.any(starts[:, :-1] != starts[:, -1:]):
        raise ConfigError(
            "observations are not stacks of frames, newest last, that begin with one frame repeated; use frame_stack 1"
        )
