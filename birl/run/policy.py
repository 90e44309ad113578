"""A policy: it returns actions for observations, can be looked into and saved to a file."""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from birl.config import EnvConfig, require
from birl.envs.actions import action_clipper, action_tree, flat_mask, mask_of, own_actions
from birl.envs.spaces import MASK, first_value, is_composite, mask_width, shown
from birl.maths.distributions import Distribution
from birl.nets.models import Inside
from birl.registry import algorithm_named, name_of, require_inside
from birl.run.policy_file import write_policy
from birl.run.state_tensors import state_to_tensors
from birl.types import PyTree


class Policy:
    """Maps observations to actions. The caller keeps the memory of a recurrent policy."""

    def __init__(
        self,
        config: Any,
        parameters: PyTree,
        initial_memory: Callable[[int], PyTree],
        observation_space: gym.Space,
        action_space: gym.Space,
        env: EnvConfig | None = None,
    ):
        self.config = config
        self.env = env  # of the run; None: unknown, or not to be made without the user's consent
        self.masks = False  # it learned with action masks
        self.env_steps: int | None = None  # of the checkpoint that it is from
        self.observation_space = observation_space
        self.action_space = action_space
        self.initial_memory = initial_memory
        act = algorithm_named(name_of(config)).act
        structure = self._structure = jax.tree.structure(parameters)
        self._names = [name.removeprefix(".") for name in state_to_tensors(parameters)]
        self._leaves = jax.tree.leaves(parameters)
        self.is_of_run = False  # a copy of what a run trains, which has parameters of its own
        self._act = jax.jit(lambda leaves, *inputs: act(jax.tree.unflatten(structure, leaves), *inputs))
        self._inside = jax.jit(lambda leaves, *inputs: jax.tree.unflatten(structure, leaves).inside(*inputs))
        self._clip_actions = action_clipper(action_space)
        self._memory_shapes: dict[int, PyTree] = {}  # by the number of observations
        self.seed(config.run.seed)

    def __repr__(self) -> str:
        numbers = sum(np.size(leaf) for leaf in self._leaves)
        memory = ", with memory" if jax.tree.leaves(self.initial_memory(1)) else ""
        return f"Policy({shown(self.observation_space)} -> {shown(self.action_space)}, {numbers:,} parameters{memory})"

    def set_parameters(self, parameters: PyTree) -> None:
        """Act with these from now on: what `parameters` or `tree` gives of the same network.

        ConfigError for the policy of a run: what trains is not this copy.
        """
        remedy = "make_network= begins with weights of your own, and birl.load gives a policy to change"
        require(not self.is_of_run, f"this policy is a copy, and the run would go on with its own weights; {remedy}")
        leaves, odd = jax.tree.leaves(parameters), []
        if isinstance(parameters, dict) and not parameters.keys().isdisjoint(self._names):
            odd = sorted(parameters.keys() ^ set(self._names))
            leaves = [parameters[name] for name in self._names if name in parameters]
        elif len(leaves) != len(self._names):
            odd = [f"{len(leaves)} arrays for {len(self._names)}"]
        shapes = zip(self._names, map(np.shape, leaves), map(np.shape, self._leaves), strict=False)
        odd = odd or [f"{name} {new} for {old}" for name, new, old in shapes if new != old]
        wrong = f"these are parameters of another network: {', '.join(odd)}"
        require(not odd, f"{wrong}; change what policy.parameters() gives")
        self._leaves = leaves

    def seed(self, seed: int) -> None:
        """Begin the random numbers of `act` with deterministic=False again."""
        self._noise = np.random.default_rng(seed % 2**64)

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
        self,
        observation: PyTree,
        memory: PyTree = None,
        action_mask: PyTree = None,
        seed: int | None = None,
        deterministic: bool = True,
    ) -> tuple[Any, PyTree]:
        """The action for one observation or for a batch, and the memory to pass with the next call.

        An observation has the shape of the observation space, a batch [B, ...] one more axis in
        front; the masks of a batch are [B, ...] too. The actions are what the environment's `step`
        takes, or for a batch what a vector environment's takes. Pass None as memory when an episode
        begins. The actions are the most likely ones; not `deterministic`, they are sampled, by
        random numbers that go on from call to call. With a seed they are sampled by that seed
        alone: the same in every call.
        """
        inputs, size = self._inputs(observation, memory, action_mask)
        key = None if deterministic else self._noise.integers(2**32, size=2, dtype=np.uint32)
        if seed is not None:
            key = np.array(divmod(operator.index(seed) % 2**64, 2**32), np.uint32)
        actions, memory = self.act_batch(*inputs, key)
        return self._env_actions(actions, is_batch=size is not None), memory

    def values(self, observation: PyTree, memory: PyTree = None, action_mask: PyTree = None) -> np.ndarray:
        """V(s), or Q(s, ·) with a number for each action, of one observation or of a batch.

        Which of the two depends on the algorithm (`values` of its SUPPORTS); ConfigError if what
        acts has no values. The memory is that of `act`, and is not changed.
        """
        require_inside(self.config, "values")
        return np.asarray(self._look(observation, memory, action_mask).values)

    def distribution(self, observation: PyTree, memory: PyTree = None, action_mask: PyTree = None) -> Distribution:
        """The distribution of the actions for one observation, or of those for a batch.

        It has `sample`, `mode`, `log_prob`, `entropy` and `kl`. Choices count from 0, and Dict and
        Tuple actions are flat; SAC's actions are scaled to [-1, 1]. ConfigError if the algorithm
        has no distribution.
        """
        require_inside(self.config, "distribution")
        found = self._look(observation, memory, action_mask).distribution
        assert found is not None
        return found

    def parameters(self) -> dict[str, np.ndarray]:
        """A copy of every array of the policy, named by its path: network.actor.head.weight."""
        return {name: np.array(leaf) for name, leaf in zip(self._names, self._leaves, strict=True)}

    def tree(self) -> PyTree:
        """The policy as the algorithm's `act` takes it."""
        return jax.tree.unflatten(self._structure, self._leaves)

    def save(self, path: str | Path) -> None:
        """Write the policy alone to a file, which `birl.load` reads.

        It holds the parameters, the spaces and the settings of the network; neither environments
        nor anything that training needs. Only another policy file is replaced.
        """
        write_policy(Path(path), self.config, self.observation_space, self.action_space, self.parameters(), self.masks)

    def _look(self, observation: PyTree, memory: PyTree, action_mask: PyTree) -> Inside:
        """Values and distribution for one observation, without an axis B, or for a batch."""
        inputs, size = self._inputs(observation, memory, action_mask)
        inside = self._inside(self._leaves, *inputs)
        return jax.tree.map(lambda x: x[0], inside) if size is None else inside

    def _inputs(
        self, observation: PyTree, memory: PyTree, action_mask: PyTree
    ) -> tuple[tuple[PyTree, PyTree, np.ndarray, np.ndarray | None], int | None]:
        """Observations, memory, resets and masks [B, ...], and B, which is None for one."""
        observations, size = read_observations(self.observation_space, observation, self.config.env.ignore_observations)
        if action_mask is None and isinstance(observation, Mapping) and mask_width(self.action_space) is not None:
            action_mask = observation.get(MASK)  # as in training
        if self.masks and action_mask is None:
            warnings.warn("this policy learned with action masks; pass action_mask, or all are allowed", stacklevel=3)
        count = size or 1
        resets = np.full(count, memory is None)  # where true, the network uses its own initial memory
        memory = self.initial_memory(count) if memory is None else self._checked_memory(memory, count)
        return (observations, memory, resets, self._masks(action_mask, size)), size

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


def make_policy(config: Any, state: PyTree, observation_space: gym.Space, action_space: gym.Space) -> Policy:
    """The policy of an algorithm's State."""
    parameters = algorithm_named(name_of(config)).policy(state)
    memory = state.network.initial_memory
    return Policy(config, parameters, memory, observation_space, action_space, config.env)


def read_observations(space: gym.Space, observation: PyTree, ignored: Sequence[str] = ()) -> tuple[PyTree, int | None]:
    """Arrays [B, ...] of the space's types, and B, which is None for a single observation.

    ValueError says what is wrong. A Dict may be nested, as in the environment, or flat, with the
    names of the space. It may have the parts that are ignored, or not.
    """
    if not isinstance(space, spaces.Dict):
        array, single = _read_part(space, observation, "observation")
        return array, None if single else len(array)
    _require_known_parts(space, observation, ignored)
    parts = {
        name: _read_part(part, _part_of(observation, name, space), f"observation {name!r}")
        for name, part in space.items()
    }
    sizes = {name: None if single else len(array) for name, (array, single) in parts.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(
            f"{name!r} {'one' if size is None else f'a batch of {size}'}" for name, size in sizes.items()
        )
        raise ValueError(
            f"the parts of the observation do not agree: {counts}; give one of each, or batches of one size"
        )
    return {name: array for name, (array, _) in parts.items()}, next(iter(sizes.values()))


def _read_part(space: gym.Space, given: Any, name: str) -> tuple[np.ndarray, bool]:
    """The values as an array [B, ...] of the space's type, and whether this is one observation."""
    shape = space.shape or ()
    try:
        array = np.asarray(given)
    except ValueError as problem:
        raise ValueError(f"{name} is not an array: {problem}; {shown(space)} needs {_shapes(shape)}") from problem
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} {_text(given)} holds no numbers; {shown(space)} needs {_shapes(shape)}")
    if array.ndim - len(shape) not in (0, 1) or array.shape[array.ndim - len(shape) :] != shape:
        raise ValueError(f"{name} has shape {array.shape}; {shown(space)} needs {_shapes(shape)}")
    single = array.ndim == len(shape)
    if not single and len(array) == 0:
        raise ValueError(f"{name} has shape {array.shape}, an empty batch; give at least one observation")
    _check_values(space, array, name)
    return (array[None] if single else array).astype(space.dtype, copy=False), single


def _check_values(space: gym.Space, array: np.ndarray, name: str) -> None:
    """Raise ValueError for values outside the space, which a network would silently accept."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise ValueError(
            f"{name} is {array[place]} at {list(place)}; a policy needs finite numbers"
            if place
            else f"{name} is {array}"
        )
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return
    low, high = _range(space)
    wrong = (array < low) | (array > high) | (array != np.trunc(array))
    if np.any(wrong):
        limits = f"whole numbers from {np.min(low)} to {np.max(high)}"
        raise ValueError(f"{name} holds {array[wrong].flat[0]}; {shown(space)} needs {limits}")


def _range(space: gym.Space) -> tuple[Any, Any]:
    """The smallest and the largest value that an array of this space can hold."""
    match space:
        case spaces.Discrete():
            return 0, int(space.n) - 1
        case spaces.MultiDiscrete():
            return 0, space.nvec - 1
        case spaces.Box() if space.dtype != bool:
            return np.iinfo(space.dtype).min, np.iinfo(space.dtype).max
    return 0, 1


def _part_of(observation: Any, name: str, space: spaces.Dict) -> Any:
    if isinstance(observation, Mapping) and name in observation:
        return observation[name]
    part = observation
    for key in name.split("/"):
        try:
            part = part[int(key)] if isinstance(part, tuple | list) else part[key]
        except (LookupError, TypeError, ValueError):
            raise ValueError(
                f"the observation has no part {name!r}; it needs {', '.join(map(repr, space.spaces))}"
            ) from None
    return part


def _require_known_parts(space: spaces.Dict, observation: Any, ignored: Sequence[str]) -> None:
    names = {*space.spaces, *ignored}
    known = {name.split("/")[0] for name in names} | names | {MASK}
    if isinstance(observation, Mapping) and (unknown := [key for key in observation if str(key) not in known]):
        raise ValueError(f"the observation has a part {unknown[0]!r}; it needs {', '.join(map(repr, space.spaces))}")


def _shapes(shape: tuple[int, ...]) -> str:
    one = str(shape) if shape else "a number"
    return f"{one}, or ({', '.join(map(str, ('B', *shape)))}{',' if not shape else ''}) for a batch"


def _text(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 60 else f"{text[:60]}..."
