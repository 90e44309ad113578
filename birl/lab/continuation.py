"""What a fork begins with: the checkpoint as it is, or with new random keys and new episodes."""

import dataclasses
from typing import Any

import numpy as np

from birl.run.checkpoint import Checkpoint
from birl.types import NEW_EPISODES, Snapshot
from birl.workers.supervisor import child_seed

SEED = "run.seed"
KEY = ".key"  # the leaf of every State that all its randomness comes from
CYCLE_KEY = "cycle/key"  # of an actor-learner with a replay, for its next cycle
# Settings of EnvConfig that do not change what an environment does.
WHERE_ENVS_RUN = {"env.workers", "env.step_timeout", "env.ray_address"}


def begins_new_episodes(changed: dict[str, Any]) -> bool:
    """Whether a fork with these changes cannot go on with the saved episodes."""
    return SEED in changed or any(name.startswith("env.") and name not in WHERE_ENVS_RUN for name in changed)


def continuation(saved: Checkpoint, seed: int, changed: dict[str, Any]) -> tuple[dict[str, np.ndarray], Snapshot]:
    """The State's tensors and the snapshot that a fork with these changes begins with.

    Another seed gives other random keys. With another seed or other settings of the environment,
    new episodes begin. Networks, optimiser, replay and statistics stay.
    """
    tensors, snapshot = saved.tensors, saved.snapshot
    if SEED in changed:
        tensors = tensors | {KEY: fold_seed(tensors[KEY], seed)}
        keys = {name: fold_seed(key, seed) for name, key in snapshot.arrays.items() if _is_cycle_key(name)}
        snapshot = dataclasses.replace(snapshot, arrays=snapshot.arrays | keys)
    if begins_new_episodes(changed):
        snapshot = with_new_episodes(snapshot, seed, saved.env_steps)
    return tensors, snapshot


def fold_seed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Keys [..., 2] that are different for every seed, each derived from its own key."""
    words = [np.random.SeedSequence([seed, *key.tolist()]).generate_state(2) for key in keys.reshape(-1, 2)]
    return np.array(words, np.uint32).reshape(keys.shape)


def with_new_episodes(snapshot: Snapshot, seed: int, env_steps: int) -> Snapshot:
    """The snapshot with new episodes, which begin with a seed that no run begins with.

    The snapshots of actor-learners and of Ray actors are parts of one.
    """
    values = snapshot.values | {NEW_EPISODES: child_seed(seed, 0, env_steps)}
    for name in ("learners", "parts"):
        if name in values:
            values[name] = [
                part | {NEW_EPISODES: child_seed(seed, number if name == "learners" else 0, env_steps)}
                for number, part in enumerate(values[name])
            ]
    if snapshot.arrays:  # nothing of the episodes is restored, so nothing of it is inexact
        return dataclasses.replace(snapshot, values=values, exact=True, reason="")
    return snapshot  # of actor-learners in processes, which always begin new episodes


def _is_cycle_key(name: str) -> bool:
    return name == CYCLE_KEY or name.endswith(f"/{CYCLE_KEY}")
