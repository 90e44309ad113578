"""Act in NumPy between two steps of the environments, where the network is small.

A call of a compiled program costs about 80 µs between two steps of Python environments, and the
environments are slower after it: that is more than the arithmetic of a small network. So `act` is
traced once, and its operations are sorted by their inputs. Those that need only the policy run once
in a rollout; those that need the random key run once for all steps; both in JAX. What needs the
observations runs in NumPy at each step. A large network, or one with an operation that is not
listed here or that NumPy computes differently, is called as one compiled program instead.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np

from birl.accel.numpy_program import numpy_program
from birl.maths.keys import step_keys
from birl.operations import Operation, Value, WaitsFor, evaluate, inline, needed
from birl.types import ActAt, Action, Array, PyTree, StartActing

MOST_PRODUCTS = 2_000_000  # multiplications in a step: with more, XLA's arithmetic is worth its call
MOST_OPERATIONS = 64  # in a step, of about 1 µs each
MOST_RANDOM_NUMBERS = 2**17  # for a step: those of a whole rollout are kept at once


def take_apart(
    act: Callable[..., Action], policy: PyTree, inputs: PyTree, key: Array, length: int
) -> StartActing | None:
    """How to act in rollouts of this length; None if a compiled call of `act` is better.

    Policies and inputs must have these shapes.
    """
    leaves, structure = jax.tree.flatten(policy)
    closed, action = jax.make_jaxpr(
        lambda leaves, key, inputs: act(jax.tree.unflatten(structure, leaves), *inputs, key), return_shape=True
    )(leaves, key, inputs)
    types = [variable.aval.dtype for variable in closed.jaxpr.invars]
    if closed.effects:  # what is printed, for example
        return None
    kinds = [WaitsFor.POLICY] * len(leaves) + [WaitsFor.KEY] + [WaitsFor.STEP] * len(jax.tree.leaves(inputs))
    arguments = [
        Value(kind, variable.aval.shape, variable.aval.dtype)
        for kind, variable in zip(kinds, closed.jaxpr.invars, strict=True)
    ]
    operations: list[Operation] = []
    results = inline(closed.jaxpr, closed.consts, arguments, operations)
    operations = needed(operations, results)
    in_step = [operation for operation in operations if operation.waits_for == WaitsFor.STEP]
    if len(in_step) > MOST_OPERATIONS or sum(map(_products, in_step)) > MOST_PRODUCTS:
        return None
    before = [operation for operation in operations if operation.waits_for != WaitsFor.STEP]
    wanted = list(dict.fromkeys([value for operation in in_step for value in operation.inputs] + results))
    constants = [value for value in wanted if value.constant is not None]
    number_of = {value: number for number, value in enumerate(arguments[: len(leaves)])}
    # the policy's own arrays: they need not go through JAX
    untouched = [value for value in wanted if value in number_of]
    from_policy, from_key = (
        [value for value in wanted if value.constant is None and value.waits_for == kind and value not in number_of]
        for kind in (WaitsFor.POLICY, WaitsFor.KEY)
    )
    if sum(math.prod(value.shape) for value in from_key) > MOST_RANDOM_NUMBERS:
        return None
    used = [value for value in number_of if any(value in operation.inputs for operation in before)]
    given = [value for value in arguments if value.waits_for == WaitsFor.STEP]
    step = numpy_program([*constants, *untouched, *from_policy, *from_key, *given], in_step, results)
    if step is None:
        return None
    leaves_of, action_of = _flattening(inputs, types[len(leaves) + 1 :]), _unflattening(action)

    @partial(jax.jit, static_argnames="steps_per_key")
    def prepare(leaves: Sequence[Array], key: Array, steps_per_key: int) -> tuple[list[Array], list[Array]]:
        once = evaluate([op for op in before if op.waits_for == WaitsFor.POLICY], dict(zip(used, leaves, strict=True)))

        def at_one_step(step_key: Array) -> list[Array]:
            known = once | {arguments[len(number_of)]: step_key}
            found = evaluate([op for op in before if op.waits_for == WaitsFor.KEY], known)
            return [found[value] for value in from_key]

        return [once[value] for value in from_policy], jax.vmap(at_one_step)(step_keys(key, length)[::steps_per_key])

    def start(policy: PyTree, key: Array, steps_per_key: int = 1) -> ActAt:
        leaves = jax.tree.leaves(policy)
        once, each = prepare([leaves[number_of[value]] for value in used], key, steps_per_key)
        numbers = [number_of[value] for value in untouched]
        same = [value.constant for value in constants] + [
            np.asarray(leaves[number], types[number]) for number in numbers
        ]
        same += [np.asarray(array) for array in once]
        prepared = [np.asarray(array) for array in each]

        def act_at(t: int, *inputs: PyTree) -> Action:
            with np.errstate(all="ignore"):  # what is not finite is looked for in the rollout
                return action_of(step(*same, *[array[t // steps_per_key] for array in prepared], *leaves_of(inputs)))

        return act_at

    return start


def _flattening(
    inputs: tuple[PyTree, PyTree, Array, Array | None], types: list[np.dtype]
) -> Callable[[PyTree], Sequence[Array]]:
    """A function that flattens such inputs into arrays of JAX's types, which have 32 bits."""
    apart = _leaves_of(inputs)
    if [np.asarray(leaf).dtype for leaf in jax.tree.leaves(inputs)] == types:
        return apart
    return lambda given: [np.asarray(leaf, dtype) for leaf, dtype in zip(apart(given), types, strict=True)]


def _leaves_of(inputs: tuple[PyTree, PyTree, Array, Array | None]) -> Callable[[PyTree], Sequence[Array]]:
    """A function that flattens such inputs; jax.tree.leaves takes 10 µs, a step about 100."""
    observations, memory, _, masks = inputs
    if isinstance(observations, dict) or jax.tree.leaves(memory):
        return jax.tree.leaves
    return (lambda given: (given[0], given[2])) if masks is None else (lambda given: (given[0], given[2], given[3]))


def _unflattening(action: Action) -> Callable[[list[Array]], Action]:
    """A function that makes an Action like this from its leaves."""
    structure = jax.tree.structure(action)
    if jax.tree.leaves((action.memory, action.behaviour, action.extras)) or isinstance(action.actions, dict):
        return lambda results: jax.tree.unflatten(structure, results)
    return lambda results: Action(results[0], action.memory)


def _products(operation: Operation) -> int:
    """The number of multiplications in a matrix product; 0 for other operations."""
    if operation.equation.primitive.name != "dot_general":
        return 0
    (contracted, _), _ = operation.equation.params["dimension_numbers"]
    return math.prod(operation.outputs[0].shape) * math.prod(operation.inputs[0].shape[axis] for axis in contracted)
