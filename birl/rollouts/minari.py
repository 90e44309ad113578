"""Transitions from Minari datasets. Only this file imports minari, and only if asked for."""

from typing import Any

import numpy as np

from birl.config import ConfigError, require
from birl.errors import install_extra
from birl.rollouts.transition_arrays import Arrays, named_arrays


def read_dataset(dataset_id: str, most: int) -> Arrays:
    """The newest episodes of a dataset on this machine, with at least `most` transitions if it has.

    Nothing is downloaded: `minari download` does that.
    """
    try:
        import minari
    except ImportError as problem:
        wrong = f"prefill minari:{dataset_id} needs the minari package"
        raise ConfigError(f"{wrong}: {install_extra('minari')}") from problem
    try:
        dataset = minari.load_dataset(dataset_id, download=False)
    except (OSError, ValueError, ImportError) as problem:
        remedy = "minari list local shows those on this machine, and minari download gets others"
        raise ConfigError(f"prefill minari:{dataset_id} cannot be read: {problem}; {remedy}") from problem
    parts: list[Arrays] = []
    steps = 0
    for index in reversed(dataset.episode_indices.tolist()):
        if steps >= most:
            break
        episode = next(iter(dataset.iterate_episodes([index])))
        parts.append(_arrays_of(episode))
        steps += len(episode.rewards)
    require(steps > 0, f"prefill minari:{dataset_id} holds no transitions")
    return {name: np.concatenate([part[name] for part in reversed(parts)]) for name in parts[0]}


def _arrays_of(episode: Any) -> Arrays:
    """The transitions of one episode, whose last observation has no action."""
    arrays = {
        "rewards": np.asarray(episode.rewards),
        "terminated": np.asarray(episode.terminations),
        "truncated": np.asarray(episode.truncations),
    }
    arrays |= named_arrays("actions", episode.actions)
    for name, observations in named_arrays("observations", episode.observations).items():
        arrays |= {name: observations[:-1], f"next_{name}": observations[1:]}
    return arrays
