"""The replay of a run in its user's hands: add transitions, save them, prefill from a file."""

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from birl.config import ConfigError, require
from birl.registry import algorithms_with_prefill
from birl.rollouts.replay import Replay, ReplayArrays, free_memory, stacked_observations
from birl.rollouts.transition_files import Headers, read_transitions, write_transitions
from birl.rollouts.transitions import Arrays, Now, TransitionFormat, insert, masks_apart, named_arrays
from birl.types import PyTree, Update

MINARI = "minari:"  # what the name of a Minari dataset begins with


class UserReplay:
    """The replay of a run. What is added is sampled, and saved in checkpoints, like other steps."""

    def __init__(
        self, replay: Replay, spaces: tuple[gym.Space, gym.Space], clip_rewards: bool, now: Callable[[], Now]
    ) -> None:
        self._replay = replay
        self._clip_rewards = clip_rewards
        self._now = now  # where the environments are
        masked = replay.arrays.columns.action_masks is not None
        self._format = TransitionFormat(*spaces, masked, replay.shape.frame_stack)

    def __len__(self) -> int:
        """The number of transitions in the replay."""
        arrays = self._replay.on_host()
        return int(np.count_nonzero(arrays.columns.valid[: int(arrays.written)]))

    def add(
        self,
        observations: PyTree,
        actions: Any,
        rewards: Any,
        next_observations: PyTree,
        terminated: Any,
        truncated: Any = None,
        action_masks: Any = None,
        next_action_masks: Any = None,
    ) -> None:
        """Add transitions [N, ...] in the order in which they happened, or one without the N.

        They may be of any policy. Call this between updates. Each call takes the place of a whole
        rollout or more, so it is better to add many at once.
        """
        self._require_single_steps()
        given = {
            "actions": actions, "rewards": rewards, "terminated": terminated, "truncated": truncated,
            "action_masks": action_masks, "next_action_masks": next_action_masks,
        }  # fmt: skip
        arrays = named_arrays("observations", observations) | named_arrays("next_observations", next_observations)
        arrays |= {name: np.asarray(array) for name, array in given.items() if array is not None}
        if arrays["rewards"].ndim == 0:
            arrays = {name: array[None] for name, array in arrays.items()}
        if arrays["rewards"].size:
            self._insert(arrays, "replay.add", self._now())

    def prefill(self, source: str) -> None:
        """Put the transitions of a file, or of a Minari dataset, into the empty replay."""
        self._require_single_steps()
        label = f"prefill {source}"
        size = self._replay.shape.ring_size * self._replay.shape.num_envs
        if source.startswith(MINARI):
            from birl.rollouts.transition_files import read_dataset  # which needs an extra

            arrays = read_dataset(source.removeprefix(MINARI), size)
        else:
            arrays = read_transitions(Path(source), label, partial(self._require_fits, label))
        self._insert(arrays, label, None)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all transitions as an .npz file, from which another run can be prefilled; the file.

        The newest step of each environment is left out: its successor is not in the replay yet.
        """
        self._require_single_steps()
        arrays = self._replay.on_host()
        first = self._replay.rows(arrays).start
        every_row = np.arange(first, max(int(arrays.written) - 1, first))
        # One environment after the other, so that steps that follow one another stay together.
        envs, found = np.nonzero(arrays.columns.valid[every_row % self._replay.shape.ring_size].T)
        rows = every_row[found]
        require(rows.size > 0, f"{path}: the replay holds no transitions yet; save it after an update")

        return write_transitions(
            Path(path),
            len(rows),
            list(self._format.expected()),
            lambda name, span: self._rows_of(arrays, name, rows[span], envs[span]),
        )

    def _insert(self, arrays: Arrays, label: str, now: Now | None) -> None:
        transitions = self._format.read(masks_apart(arrays), label)
        if self._clip_rewards:
            transitions = transitions._replace(rewards=np.sign(transitions.rewards))
        count = len(transitions.rewards)
        require(count > 0, f"{label} holds no transitions")
        kept = insert(self._replay, transitions, now)
        if kept < count:
            why = "episode ends, and steps whose successor is not the next one, take a place of their own"
            warnings.warn(
                f"{label}: of {count:,} transitions the newest {kept:,} fit in the replay, where {why}; "
                "a larger replay_size keeps more",
                stacklevel=2,
            )

    def _rows_of(self, arrays: ReplayArrays, name: str, rows: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Some rows of one array, as `add` takes it."""
        shape, named = self._replay.shape, arrays.columns._asdict()
        here, following = (rows % shape.ring_size, envs), ((rows + 1) % shape.ring_size, envs)
        match name.partition("/")[0]:
            case "observations":
                return named_arrays("observations", stacked_observations(arrays, shape, rows, envs))[name]
            case "next_observations":
                return named_arrays("next_observations", stacked_observations(arrays, shape, rows + 1, envs))[name]
            case "actions":
                return self._format.own_actions(arrays.columns.actions[here])
            case "next_action_masks":
                return named["action_masks"][following]
        return named[name][here]

    def _require_fits(self, label: str, headers: Headers) -> None:
        """Raise ConfigError unless arrays of these shapes and types fit, also in memory."""
        count = self._format.require_shapes(masks_apart(headers), label)
        size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in headers.values())
        needed = size + self._format.bytes_of(count)
        free = free_memory()
        if free is not None and needed > free:
            sizes = f"{needed / 1e9:.1f} GB to be read and {free / 1e9:.1f} GB are free"
            raise ConfigError(f"{label} needs {sizes}; use fewer transitions")

    def _require_single_steps(self) -> None:
        """Raise ConfigError if the algorithm learns from sequences."""
        names = ", ".join(algorithms_with_prefill())
        columns = self._replay.arrays.columns
        wrong = "transitions cannot be added to a replay of sequences"
        require(columns.behaviour is None, f"{wrong} with the probabilities of their actions; use {names}")
        require(not self._replay.recurrent, f"{wrong} with the memory of a recurrent network; use core feedforward")


def replay_of(name: str, update: Update | None) -> UserReplay:
    """The replay of the algorithm of this name after its latest update."""
    if update is None:
        raise RuntimeError("there is no replay before the first update; use it in the body of the loop")
    names = ", ".join(algorithms_with_prefill())
    require(update.replay is not None, f"{name} has no replay to add transitions to; use {names}")
    return update.replay
