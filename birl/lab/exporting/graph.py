"""A policy as a graph: named inputs, operations, named outputs.

`act` of the algorithm is traced for one batch size. Around it is what `Policy.act` does: inputs of
the observation space's own types, and actions as the environment's `step` takes them.
"""

import inspect
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from birl import __version__
from birl.config import ConfigError, require
from birl.envs.spaces import action_shape, first_value, mask_width, name_of, shown, space_to_json, walk, width_of
from birl.errors import printable
from birl.lab.exporting.nodes import Inliner, Node, Noise, needed_nodes, nodes_of
from birl.nets.images import plain_encoders
from birl.operations import Operation, Value, WaitsFor, evaluate, needed
from birl.registry import algorithm_named, supports
from birl.registry import name_of as algorithm_of
from birl.run.policy import Policy
from birl.run.state_tensors import state_to_tensors
from birl.speed import plain_forms
from birl.types import Array, PyTree

PRODUCER = "birl"
KIND = "birl policy"  # of the description in the metadata
FORMAT = 1
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


class Port(NamedTuple):
    """A named input or output."""

    name: str
    value: Value
    meaning: str
    distribution: str = ""  # what noise is drawn from


class Graph(NamedTuple):
    """A policy to be exported."""

    inputs: list[Port]
    nodes: list[Node]
    outputs: list[Port]
    names: dict[Value, str]  # of the parameters among the constants
    key: Value  # the random key that noise is drawn from in Birl
    draws: list[Operation]  # how

    def draw(self, key: Array) -> dict[str, Array]:
        """The noise inputs that `act` draws from this key."""
        found = evaluate(self.draws, {self.key: key})
        return {port.name: found[port.value] for port in self.inputs if port.distribution}


class _Given(NamedTuple):
    """The arguments of `act`, without the policy and the key."""

    observations: PyTree
    memory: PyTree
    resets: Any
    masks: Any


def graph_of(policy: Policy, batch_size: int, sample: bool, masks: bool) -> Graph:
    """The graph of a policy for batches of this size, ConfigError if it has no such form.

    It takes the most likely actions, or with `sample` noise to sample them.
    """
    require(batch_size >= 1, f"batch_size {batch_size} must be at least 1")
    if masks:
        _require_masks(policy)
    tree = plain_encoders(policy.tree())
    leaves, structure = jax.tree.flatten(tree)
    leaves = [np.asarray(jnp.asarray(leaf)) for leaf in leaves]  # of JAX's types, on no device
    names = [name.removeprefix(".") for name in state_to_tensors(tree)]
    act = inspect.unwrap(algorithm_named(algorithm_of(policy.config)).act)
    given = _given(policy, batch_size, masks)

    def run(leaves: list[Array], key: Array, given: _Given) -> tuple[list[Array], PyTree]:
        action = act(jax.tree.unflatten(structure, leaves), *given, key if sample else None)
        return _columns(policy.action_space, action.actions), action.memory

    with plain_forms():
        closed, _ = jax.make_jaxpr(run, return_shape=True)(leaves, KEY, given)
    require(not closed.effects, f"the network has side effects, {closed.effects}, which no file can have")
    parameters = [_constant(leaf) for leaf in leaves]
    key = Value(WaitsFor.KEY, KEY.shape, KEY.dtype)
    inner = [Value(WaitsFor.STEP, leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(given)]
    inliner = Inliner(dict(zip(parameters, names, strict=True)))
    with plain_forms():
        results = inliner.inline(closed, [*parameters, key, *inner])
    return _graph(policy, jax.tree.unflatten(jax.tree.structure(given), inner), results, inliner, key)


def _graph(policy: Policy, given: _Given, results: list[Value], inliner: Inliner, key: Value) -> Graph:
    memory = jax.tree.leaves(given.memory)
    actions, new_memory = results[: len(results) - len(memory)], results[len(results) - len(memory) :]
    in_step, used, kept = _needed_memory(inliner.operations, actions, memory, new_memory)
    names = _memory_names(given.memory)
    changed = [(names[number], memory[number], new_memory[number]) for number in kept]
    wanted = [*actions, *(new for _, _, new in changed)]
    _require_known_noise(used)
    nodes, wanted = nodes_of(in_step, wanted, inliner.names)
    outputs, finishing = _outputs(policy.action_space, wanted[: len(actions)])
    ports = [
        Port(f"new_{name}", value, "the memory to pass with the next call")
        for (name, _, _), value in zip(changed, wanted[len(actions) :], strict=True)
    ]
    nodes = needed_nodes([*nodes, *finishing], [port.value for port in (*outputs, *ports)])
    inputs, nodes = _inputs(policy, given, used, nodes, [(name, value) for name, value, _ in changed])
    noises = [noise for noise in inliner.noises if noise.value in used]
    draws = needed([*inliner.operations, *(noise.operation for noise in noises)], [noise.value for noise in noises])
    return Graph([*inputs, *_noise_ports(noises)], nodes, [*outputs, *ports], inliner.names, key, draws)


def _needed_memory(
    operations: list[Operation], actions: list[Value], memory: list[Value], new_memory: list[Value]
) -> tuple[list[Operation], set[Value], list[int]]:
    """The operations of a step, their inputs, and the numbers of the parts of memory among these.

    Memory that no action depends on, now or later, is left out: a critic's, or that of noise.
    """
    kept: list[int] = []
    while True:
        wanted = [*actions, *(new_memory[number] for number in kept)]
        in_step = [operation for operation in needed(operations, wanted) if operation.waits_for == WaitsFor.STEP]
        used = {value for operation in in_step for value in operation.inputs} | set(wanted)
        found = [number for number, value in enumerate(memory) if number in kept or value in used]
        if found == kept:
            return in_step, used, kept
        kept = found


def _given(policy: Policy, batch_size: int, masks: bool) -> _Given:
    """The shapes of what `act` takes, in JAX's types."""

    def of(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((batch_size, *shape), jax.dtypes.canonicalize_dtype(dtype))

    space = policy.observation_space
    parts = {name: of(part.shape or (), part.dtype) for name, part in observation_parts(space).items()}
    memory = jax.tree.map(lambda x: of(np.shape(x)[1:], np.asarray(x).dtype), policy.initial_memory(batch_size))
    mask = of((mask_width(policy.action_space) or 0,), bool) if masks else None
    return _Given(parts if isinstance(space, spaces.Dict) else parts[""], memory, of((), bool), mask)


def observation_parts(space: gym.Space) -> dict[str, gym.Space]:
    """The parts of an observation by name; "" for an observation that has none."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}


def _inputs(
    policy: Policy, given: _Given, used: set[Value], nodes: list[Node], memory: list[tuple[str, Value]]
) -> tuple[list[Port], list[Node]]:
    """The inputs in their own types, and the nodes with casts to JAX's types before them."""
    ports, casts = [], []
    values = given.observations if isinstance(given.observations, dict) else {"": given.observations}
    for name, part in observation_parts(policy.observation_space).items():
        value = values[name]
        port = value
        if np.dtype(part.dtype) != value.dtype:
            port = Value(WaitsFor.STEP, value.shape, np.dtype(part.dtype))
            casts.append(Node("convert_element_type", [port], value, {}))
        ports.append(Port(".".join(filter(None, ("observation", name))), port, shown(part)))
    ports += [
        Port(name, value, "what the last call returned; anything where an episode begins") for name, value in memory
    ]
    if given.resets in used:
        ports.append(Port("resets", given.resets, "true where an episode begins: the memory is not used there"))
    if given.masks is not None:
        ports.append(Port("action_mask", given.masks, "true where a choice is allowed"))
    return ports, [*casts, *nodes]


def _noise_ports(noises: list[Noise]) -> list[Port]:
    names = ["noise"] if len(noises) == 1 else [f"noise.{number}" for number in range(len(noises))]
    return [
        Port(name, noise.value, f"independent {noise.distribution} numbers, new ones for each call", noise.distribution)
        for name, noise in zip(names, noises, strict=True)
    ]


def _columns(space: gym.Space, actions: Array) -> list[Array]:
    """[B, ...] for each leaf of the action space, from the algorithm's flat actions."""
    rows = actions.reshape(-1, *action_shape(space))
    leaves = walk(space, "action")
    if leaves[0][0] == ():
        return [rows]
    ends = np.cumsum([width_of(leaf) for _, leaf in leaves])[:-1].tolist()
    parts = zip(jnp.split(rows, ends, axis=1), leaves, strict=True)
    return [part.reshape(-1, *(leaf.shape or ())) for part, (_, leaf) in parts]


def _outputs(space: gym.Space, actions: list[Value]) -> tuple[list[Port], list[Node]]:
    """The actions as `step` takes them: of the space's type, within its bounds, with its start."""
    ports, nodes = [], []
    for (path, leaf), value in zip(walk(space, "action"), actions, strict=True):
        made: list[Node] = []
        for name, other in _finishing(leaf, value):
            before = made[-1].output if made else value
            output = Value(WaitsFor.STEP, value.shape, np.dtype(leaf.dtype))
            made.append(Node(name, [before, *other], output, {}))
        nodes += made
        ports.append(
            Port(".".join(filter(None, ("action", name_of(path)))), made[-1].output if made else value, shown(leaf))
        )
    return ports, nodes


def _finishing(leaf: gym.Space, value: Value) -> list[tuple[str, list[Value]]]:
    """The operations from the algorithm's action to that of this space, with their constants."""
    steps: list[tuple[str, list[Value]]] = []
    if value.dtype != np.dtype(leaf.dtype):
        steps.append(("convert_element_type", []))
    if isinstance(leaf, spaces.Box):
        for name, bound in (("max", leaf.low), ("min", leaf.high)):
            if np.isfinite(bound).any():
                steps.append((name, [_constant(bound.astype(leaf.dtype))]))
    elif (start := first_value(leaf)) is not None:
        steps.append(("add", [_constant(np.asarray(start, leaf.dtype))]))
    return steps


def _constant(array: Array) -> Value:
    array = np.asarray(array)
    return Value(WaitsFor.POLICY, array.shape, array.dtype, array)


def _memory_names(memory: PyTree) -> list[str]:
    """memory, memory.0, memory.actor.1: a name for each array."""
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(memory)[0]]
    return [".".join(("memory", *(jax.tree_util.keystr((key,), simple=True) for key in path))) for path in paths]


def _require_known_noise(used: set[Value]) -> None:
    if any(value.waits_for == WaitsFor.KEY for value in used):
        raise ConfigError(
            "the policy draws random numbers that export has no input for; use jax.random.normal, uniform, gumbel, "
            "categorical or bernoulli, or leave sample out (--sample)"
        )


def _require_masks(policy: Policy) -> None:
    name, space = algorithm_of(policy.config), policy.action_space
    wrong = f"masks True (--masks): action space {shown(space)} has no choices to mask"
    require(mask_width(space) is not None, f"{wrong}; leave it out")
    require(supports(name).masks, f"masks True (--masks): {name} has no action masks; leave it out")


def describe(policy: Policy, graph: Graph, batch_size: int, sample: bool) -> dict[str, Any]:
    """The description, as plain JSON values."""
    return {
        "format": FORMAT,
        "birl": __version__,
        "algorithm": algorithm_of(policy.config),
        "actions": "sampled" if sample else "most likely",
        "batch_size": batch_size,
        "inputs": [_described(port) for port in graph.inputs],
        "outputs": [_described(port) for port in graph.outputs],
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
    }


def description_text(description: dict[str, Any]) -> str:
    """The inputs and outputs as text, a line each."""
    rows = [
        [side, printable(port["name"]), f"{port['dtype']}{port['shape']}", printable(port["meaning"])]
        for side, ports in (("input", description["inputs"]), ("output", description["outputs"]))
        for port in ports
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def _described(port: Port) -> dict[str, Any]:
    shape = {"name": port.name, "dtype": str(np.dtype(port.value.dtype)), "shape": list(port.value.shape)}
    return shape | {"meaning": port.meaning} | ({"distribution": port.distribution} if port.distribution else {})
