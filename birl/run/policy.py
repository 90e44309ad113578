"""A trained policy to use: load it from a run, ask it for actions."""

import dataclasses
import operator
import os
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from birl.config import from_json, require
from birl.envs.make import spaces_of
from birl.envs.spaces import MASK, first_value, is_composite, mask_width, shown
from birl.envs.trees import action_tree, flat_mask, mask_of, own_actions
from birl.errors import CheckpointError
from birl.registry import algorithm_named
from birl.rollouts.collector import for_envs
from birl.run import checkpoint as checkpoints
from birl.run.checkpoint import Checkpoint
from birl.run.observations import read_observations
from birl.run.trust import allowed_env, is_own
from birl.types import PyTree


class Policy:
    """Observations to actions, with memory handed in and out."""

    def __init__(
        self,
        act: Callable[..., Any],
        parameters: PyTree,
        initial_memory: Callable[[int], PyTree],
        observation_space: gym.Space,
        action_space: gym.Space,
    ):
        self.observation_space, self.action_space, self.initial_memory = observation_space, action_space, initial_memory
        structure = jax.tree.structure(parameters)
        self.set_parameters(parameters)
        self._act = jax.jit(lambda leaves, *inputs: act(jax.tree.unflatten(structure, leaves), *inputs))
        self._for_envs = for_envs(action_space)
        self._memory_shapes: dict[int, PyTree] = {}  # by the number of observations

    def __repr__(self) -> str:
        numbers = sum(np.size(leaf) for leaf in self._leaves)
        memory = ", with memory" if jax.tree.leaves(self.initial_memory(1)) else ""
        return f"Policy({shown(self.observation_space)} -> {shown(self.action_space)}, {numbers:,} parameters{memory})"

    def set_parameters(self, parameters: PyTree) -> None:
        """Act by other parameters of the same network from now on."""
        self._leaves = jax.tree.leaves(parameters)

    def act_batch(
        self,
        observations: PyTree,
        memory: PyTree,
        resets: np.ndarray,
        action_masks: np.ndarray | None = None,
        key: np.ndarray | None = None,
    ) -> tuple[np.ndarray, PyTree]:
        """Actions [B, ...] for `Envs.step`, counted from 0, trees flat; the most likely ones, or
        samples if a random key is given.
        """
        action = self._act(self._leaves, observations, memory, resets, action_masks, key)
        return self._for_envs(np.asarray(action.actions)), action.memory

    def act(
        self, observation: PyTree, memory: PyTree = None, action_mask: PyTree = None, seed: int | None = None
    ) -> tuple[Any, PyTree]:
        """The action for one observation, or those for a batch of them, and the memory to hand in
        with the next. A seed samples.

        Which of the two it is the observation space says: an observation has its shape, a batch [B,
        ...] one axis more in front. Actions are the environment's own, with its start and its type:
        what its `step` takes; for a batch, what a vector environment's takes. Memory of None begins
        episodes. Masks of a batch have [B, ...] too.
        """
        observations, size = read_observations(self.observation_space, observation)
        if action_mask is None and isinstance(observation, Mapping) and mask_width(self.action_space) is not None:
            action_mask = observation.get(MASK)  # where training found it
        count = size or 1
        resets = np.full(
            count, memory is None
        )  # the network then begins with its initial memory; this one has its shapes
        memory = self.initial_memory(count) if memory is None else self._checked_memory(memory, count)
        key = None if seed is None else np.array(divmod(operator.index(seed) % 2**64, 2**32), np.uint32)
        actions, memory = self.act_batch(observations, memory, resets, self._masks(action_mask, size), key)
        if is_composite(self.action_space):
            return (
                own_actions(self.action_space, actions)[0] if size is None else action_tree(self.action_space, actions)
            ), memory
        start = first_value(self.action_space)
        actions = (
            actions.astype(self.action_space.dtype)
            if start is None
            else actions.astype(self.action_space.dtype) + start
        )
        if size is not None:
            return actions, memory
        return (int(actions[0]) if isinstance(self.action_space, gym.spaces.Discrete) else actions[0]), memory

    def _masks(self, given: PyTree, size: int | None) -> np.ndarray | None:
        if given is None:
            return None
        rows = [given] if size is None else [mask_of(given, index) for index in range(size)]
        return np.stack([flat_mask(row, self.action_space) for row in rows])

    def _checked_memory(self, memory: PyTree, count: int) -> PyTree:
        if count not in self._memory_shapes:
            self._memory_shapes[count] = jax.tree.map(np.shape, self.initial_memory(count))
        wanted, given = self._memory_shapes[count], jax.tree.map(np.shape, memory)
        if wanted != given:
            remedy = "hand in what act returned for the observations before, or None to begin episodes"
            raise ValueError(f"memory has shapes {given}; {count} observations at once need {wanted}: {remedy}")
        return memory


def load(path: str | Path, make_network: Any = None) -> Policy:
    """The policy of a run (its best checkpoint if evaluations chose one, else the newest) or of one
    checkpoint directory.
    """
    return policy_of(find_checkpoint(Path(path)), make_network)


def policy_of(saved: Checkpoint, make_network: Any = None) -> Policy:
    algorithm = algorithm_named(saved.manifest["algorithm"])
    config = from_json(algorithm.Config, saved.config)
    try:
        template = algorithm.init(config, saved.observation_space, saved.action_space, make_network)
    except (ValueError, ArithmeticError, MemoryError) as problem:
        if make_network is not None:
            raise  # it is the caller's code that has to be mended
        raise CheckpointError(
            f"of the settings in {saved.path / 'config.json'} no network can be made: {problem}"
        ) from problem
    return make_policy(
        algorithm, checkpoints.tensors_to_state(template, saved.tensors), saved.observation_space, saved.action_space
    )


def config_of(saved: Checkpoint, trust: bool = False, given: str | None = None) -> Any:
    """The Config of a checkpoint to make its environment by, or the `given` one; ConfigError if
    that may not be made (see trust.py).
    """
    name = saved.manifest["algorithm"]
    config = from_json(algorithm_named(name).Config, saved.config)
    own = is_own(name, saved.config, saved.manifest.get("signature"))
    env, notices = allowed_env(config.env, own, trust, given, saved.path)
    for notice in notices:
        warnings.warn(notice, stacklevel=3)
    if given is not None:
        expected, found = (saved.observation_space, saved.action_space), spaces_of(env)
        require(found == expected, f"env {given!r} has spaces {found}, and the policy was trained for {expected}")
    return dataclasses.replace(config, env=env)


def make_policy(algorithm: Any, state: PyTree, observation_space: gym.Space, action_space: gym.Space) -> Policy:
    return Policy(algorithm.act, algorithm.policy(state), state.network.initial_memory, observation_space, action_space)


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this directory, or the best of this run; the newest that is whole, if there
    is no best or it is damaged.
    """
    if os.path.lexists(path / checkpoints.MANIFEST):
        return checkpoints.load(path)
    directory, report = path / "checkpoints", partial(warnings.warn, stacklevel=4)
    found = checkpoints.numbered(directory)[::-1]
    best = checkpoints.read_best(directory, report)
    if best is not None:
        found.sort(
            key=lambda checkpoint: checkpoint.name != best["checkpoint"]
        )  # the best first, then from the newest on
    saved = checkpoints.load_first(found, directory, report)
    if saved is None:
        remedy = "give a run directory such as runs/mine, or train one: birl train ppo CartPole-v1"
        raise CheckpointError(f"{path} holds no checkpoint; {remedy}")
    return saved
