"""Which random keys a function derives and draws from, found by tracing it.

Only what depends on keys and counters alone is computed.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

Key = tuple[int, int]
UNKNOWN = object()  # depends on more than the key and counters


@dataclass
class Uses:
    """What was done with each key."""

    drawn: Counter[Key] = field(default_factory=Counter)  # how often numbers were drawn from it
    split: dict[Key, set[int]] = field(default_factory=dict)  # into how many keys
    folded: dict[Key, set[int]] = field(default_factory=dict)  # with which numbers

    def __add__(self, other: "Uses") -> "Uses":
        both = [
            {key: a.get(key, set()) | b.get(key, set()) for key in a | b}
            for a, b in ((self.split, other.split), (self.folded, other.folded))
        ]
        return Uses(self.drawn + other.drawn, *both)

    def add_one_of(self, branches: list["Uses"]) -> None:
        """Add what a branch does with each key, of which only one is taken."""
        self.drawn.update(reduce(or_, (branch.drawn for branch in branches)))
        for branch in branches:
            for mine, theirs in ((self.split, branch.split), (self.folded, branch.folded)):
                for key, numbers in theirs.items():
                    mine.setdefault(key, set()).update(numbers)

    def problems(self) -> list[str]:
        """Where a random number could be used twice."""
        found = [f"drawn from {count} times: {key}" for key, count in self.drawn.items() if count > 1]
        found += [
            f"drawn from, and a parent of other keys: {key}"
            for key in self.drawn
            if key in self.split or key in self.folded
        ]
        for key, counts in self.split.items():
            if len(counts) > 1:  # the first of more keys are those of fewer
                found.append(f"split into {sorted(counts)} keys: {key}")
            # fold_in(key, i) is split(key, n)[i] for any n above i.
            found += [
                f"split into {max(counts)} keys, of which {number} is folded in too: {key}"
                for number in self.folded.get(key, ())
                if number < max(counts)
            ]
        return found


def keys_of(function: Callable[..., Any], *arguments: Any, **options: Any) -> Uses:
    """What a call does with the keys among its arguments."""
    # Python numbers alone may be a static argument, which must not be traced.
    traced = [
        number
        for number, argument in enumerate(arguments)
        if any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(argument))
        and all(map(_is_number, jax.tree.leaves(argument)))
    ]
    leaves, structure = jax.tree.flatten([arguments[number] for number in traced])

    def call(leaves: list[Any]) -> Any:
        given = dict(zip(traced, jax.tree.unflatten(structure, leaves), strict=True))
        return function(*[given.get(number, argument) for number, argument in enumerate(arguments)], **options)

    given = [np.asarray(leaf, np.int32 if isinstance(leaf, int) else None) for leaf in leaves]
    closed = jax.make_jaxpr(call)(given)
    uses = Uses()
    # Keys and counters: arrays of data are neither so small nor of whole numbers.
    _follow(closed.jaxpr, closed.consts, [x if x.dtype.kind in "iu" and x.size <= 8 else UNKNOWN for x in given], uses)
    return uses


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array | int | float)


def _follow(jaxpr: Jaxpr, constants: Any, inputs: list[Any], uses: Uses) -> list[Any]:
    """The outputs of a traced function, where they can be computed; notes its uses of keys."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))
    for equation in jaxpr.eqns:
        values = [atom.val if isinstance(atom, Literal) else known[atom] for atom in equation.invars]
        known |= zip(equation.outvars, _outputs(equation, values, uses), strict=True)
    return [atom.val if isinstance(atom, Literal) else known[atom] for atom in jaxpr.outvars]


def _outputs(equation: Any, values: list[Any], uses: Uses) -> list[Any]:
    name = equation.primitive.name
    parameters = equation.params
    nothing = [UNKNOWN] * len(equation.outvars)
    if name == "scan":
        return _follow_scan(parameters, values, uses)
    if name == "cond":
        branches = [Uses() for _ in parameters["branches"]]
        for branch, own in zip(parameters["branches"], branches, strict=True):
            _follow(branch.jaxpr, branch.consts, values[1:], own)
        uses.add_one_of(branches)
        return nothing
    if name == "while":
        body, conditions = parameters["body_jaxpr"], parameters["cond_nconsts"]
        start = conditions + parameters["body_nconsts"]
        carried = values[start:]
        for _ in range(2):  # a key that each turn draws from is found in the second
            carried = _follow(body.jaxpr, body.consts, [*values[conditions:start], *carried], uses)
        return nothing
    inner = parameters.get("jaxpr", parameters.get("call_jaxpr"))
    if inner is not None:
        return (
            _follow(inner.jaxpr, inner.consts, values, uses)
            if isinstance(inner, ClosedJaxpr)
            else _follow(inner, (), values, uses)
        )
    if name.startswith("random_"):
        _note(name, parameters, values, uses)
    if any(value is UNKNOWN for value in values):
        return nothing
    found = equation.primitive.bind(*values, **parameters)
    return list(found) if equation.primitive.multiple_results else [found]


def _follow_scan(parameters: Any, values: list[Any], uses: Uses) -> list[Any]:
    first = parameters["num_consts"]
    last = first + parameters["num_carry"]
    body = parameters["jaxpr"]
    constants, carry, rows = values[:first], values[first:last], values[last:]
    for t in range(parameters["length"]):
        row = [UNKNOWN if x is UNKNOWN else x[t] for x in rows]
        carry = _follow(body.jaxpr, body.consts, [*constants, *carry, *row], uses)[: len(carry)]
    return [*carry, *[UNKNOWN] * (len(body.out_avals) - len(carry))]


def _note(name: str, parameters: Any, values: list[Any], uses: Uses) -> None:
    if name in ("random_wrap", "random_unwrap"):
        return
    assert not any(value is UNKNOWN for value in values), f"{name} of a key that is made of more than keys and counters"
    keys = [tuple(row) for row in np.asarray(jax.random.key_data(values[0])).reshape(-1, 2).tolist()]
    for number, key in enumerate(keys):
        match name:
            case "random_bits":
                uses.drawn[key] += 1
            case "random_split":
                uses.split.setdefault(key, set()).add(int(np.prod(parameters["shape"])))
            case "random_fold_in":
                numbers = np.broadcast_to(np.asarray(values[1]), (len(keys),))
                uses.folded.setdefault(key, set()).add(int(numbers[number]))
            case _:
                raise AssertionError(f"{name} is not known here")
