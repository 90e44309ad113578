"""A trained policy: loaded from a run, it returns actions for observations."""

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

from birl.config import require
from birl.config_json import from_json
from birl.envs.actions import action_clipper
from birl.envs.make import spaces_of
from birl.envs.spaces import MASK, first_value, is_composite, mask_width, shown
from birl.envs.trees import action_tree, flat_mask, mask_of, own_actions
from birl.errors import CheckpointError
from birl.registry import algorithm_named
from birl.run import checkpoint_folder
from birl.run.checkpoint import Checkpoint
from birl.run.checkpoint import load as load_checkpoint
from birl.run.directory import CHECKPOINTS
from birl.run.manifest import MANIFEST
from birl.run.observations import read_observations
from birl.run.state_tensors import tensors_to_state
from birl.run.trust import allowed_env, is_own, require_allowed_network
from birl.speed import prepare_jax
from birl.types import PyTree


class Policy:
    """Maps observations to actions. The caller keeps the memory of a recurrent policy."""

    def __init__(
        self,
        act: Callable[..., Any],
        parameters: PyTree,
        initial_memory: Callable[[int], PyTree],
        observation_space: gym.Space,
        action_space: gym.Space,
    ):
        self.observation_space = observation_space
        self.action_space = action_space
        self.initial_memory = initial_memory
        structure = jax.tree.structure(parameters)
        self.set_parameters(parameters)
        self._act = jax.jit(lambda leaves, *inputs: act(jax.tree.unflatten(structure, leaves), *inputs))
        self._clip_actions = action_clipper(action_space)
        self._memory_shapes: dict[int, PyTree] = {}  # by the number of observations

    def __repr__(self) -> str:
        numbers = sum(np.size(leaf) for leaf in self._leaves)
        memory = ", with memory" if jax.tree.leaves(self.initial_memory(1)) else ""
        return f"Policy({shown(self.observation_space)} -> {shown(self.action_space)}, {numbers:,} parameters{memory})"

    def set_parameters(self, parameters: PyTree) -> None:
        """Use these parameters of the same network from now on."""
        self._leaves = jax.tree.leaves(parameters)

    def act_batch(
        self,
        observations: PyTree,
        memory: PyTree,
        resets: np.ndarray,
        action_masks: np.ndarray | None = None,
        key: np.ndarray | None = None,
    ) -> tuple[np.ndarray, PyTree]:
        """Actions [B, ...] for `Envs.step`, and the new memory.

        They are the most likely ones, or samples if a random key is given. Discrete actions count
        from 0; Dict and Tuple actions are flat.
        """
        action = self._act(self._leaves, observations, memory, resets, action_masks, key)
        return self._clip_actions(np.asarray(action.actions)), action.memory

    def act(
        self, observation: PyTree, memory: PyTree = None, action_mask: PyTree = None, seed: int | None = None
    ) -> tuple[Any, PyTree]:
        """The action for one observation or for a batch, and the memory to pass with the next call.

        An observation has the shape of the observation space, a batch [B, ...] one more axis in
        front; the masks of a batch are [B, ...] too. The actions are what the environment's `step`
        takes, or for a batch what a vector environment's takes. They are the most likely ones; with
        a seed they are sampled. Pass None as memory when an episode begins.
        """
        observations, size = read_observations(self.observation_space, observation)
        if action_mask is None and isinstance(observation, Mapping) and mask_width(self.action_space) is not None:
            action_mask = observation.get(MASK)  # as in training
        count = size or 1
        resets = np.full(count, memory is None)  # where true, the network uses its own initial memory
        memory = self.initial_memory(count) if memory is None else self._checked_memory(memory, count)
        key = None if seed is None else np.array(divmod(operator.index(seed) % 2**64, 2**32), np.uint32)
        actions, memory = self.act_batch(observations, memory, resets, self._masks(action_mask, size), key)
        return self._env_actions(actions, is_batch=size is not None), memory

    def _env_actions(self, actions: np.ndarray, is_batch: bool) -> Any:
        """The actions as the environment takes them: its tree, its start, its type."""
        space = self.action_space
        if is_composite(space):
            return action_tree(space, actions) if is_batch else own_actions(space, actions)[0]
        start = first_value(space)
        actions = actions.astype(space.dtype) if start is None else actions.astype(space.dtype) + start
        if is_batch:
            return actions
        return int(actions[0]) if isinstance(space, gym.spaces.Discrete) else actions[0]

    def _masks(self, given: PyTree, size: int | None) -> np.ndarray | None:
        if given is None:
            return None
        rows = [given] if size is None else [mask_of(given, index) for index in range(size)]
        return np.stack([flat_mask(row, self.action_space) for row in rows])

    def _checked_memory(self, memory: PyTree, count: int) -> PyTree:
        if count not in self._memory_shapes:
            self._memory_shapes[count] = jax.tree.map(np.shape, self.initial_memory(count))
        wanted = self._memory_shapes[count]
        given = jax.tree.map(np.shape, memory)
        if wanted != given:
            remedy = "pass what the last call of act returned, or None when episodes begin"
            raise ValueError(f"memory has shapes {given}; a batch of {count} needs {wanted}: {remedy}")
        return memory


def load(path: str | Path, make_network: Any = None, trust: bool = False) -> Policy:
    """The policy of a run, or of one of its checkpoint directories.

    Of a run it is the best checkpoint if evaluations chose one, else the newest. A run that was
    made elsewhere or by someone else may import the module of its encoder only with `trust`.
    """
    return policy_of(find_checkpoint(Path(path)), make_network, trust)


def policy_of(saved: Checkpoint, make_network: Any = None, trust: bool = False) -> Policy:
    """The policy in a checkpoint; ConfigError if it may not import its encoder (see trust.py)."""
    name = saved.manifest["algorithm"]
    algorithm = algorithm_named(name)
    config = from_json(algorithm.Config, saved.config)
    own = is_own(name, saved.config, saved.manifest.get("signature"))
    require_allowed_network(config, own, trust, saved.path)
    try:
        prepare_jax(config)
        template = algorithm.init(config, saved.observation_space, saved.action_space, make_network)
    except (ValueError, ArithmeticError, MemoryError) as problem:
        if make_network is not None:
            raise  # the mistake is in the caller's code
        raise CheckpointError(
            f"no network can be made from the settings in {saved.path / 'config.json'}: {problem}"
        ) from problem
    state = tensors_to_state(template, saved.tensors)
    return make_policy(algorithm, state, saved.observation_space, saved.action_space)


def config_of(saved: Checkpoint, trust: bool = False, given: str | None = None) -> Any:
    """The Config of a checkpoint, to make its environment or the `given` one.

    ConfigError if that environment may not be made (see trust.py).
    """
    name = saved.manifest["algorithm"]
    config = from_json(algorithm_named(name).Config, saved.config)
    own = is_own(name, saved.config, saved.manifest.get("signature"))
    env, notices = allowed_env(config.env, own, trust, given, saved.path)
    for notice in notices:
        warnings.warn(notice, stacklevel=3)
    if given is not None:
        expected = (saved.observation_space, saved.action_space)
        found = spaces_of(env)
        require(found == expected, f"env {given!r} has spaces {found}, and the policy was trained for {expected}")
    return dataclasses.replace(config, env=env)


def make_policy(algorithm: Any, state: PyTree, observation_space: gym.Space, action_space: gym.Space) -> Policy:
    """The policy of an algorithm's State."""
    return Policy(algorithm.act, algorithm.policy(state), state.network.initial_memory, observation_space, action_space)


def find_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this directory, or the best one of this run.

    If the run has no best checkpoint, or it is damaged, this is the newest undamaged one.
    """
    if os.path.lexists(path / MANIFEST):
        return load_checkpoint(path)
    directory = path / CHECKPOINTS
    report = partial(warnings.warn, stacklevel=4)
    found = checkpoint_folder.numbered(directory)[::-1]
    best = checkpoint_folder.read_best(directory, report)
    if best is not None:
        found.sort(key=lambda checkpoint: checkpoint.name != best["checkpoint"])  # the best first, then the newest
    saved = checkpoint_folder.load_first(found, directory, report)
    if saved is None:
        remedy = "give a run directory such as runs/mine, or train one: birl train ppo CartPole-v1"
        raise CheckpointError(f"{path} holds no checkpoint; {remedy}")
    return saved
