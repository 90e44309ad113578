"""An algorithm's State as named arrays, and back.

Each leaf of the State is one array, named by its path: `.network.actor.layers[0].weight`.
"""

from typing import Any

import jax
import numpy as np

from birl.errors import CheckpointError
from birl.maths.count import Count, count_of
from birl.speed import place_like
from birl.types import PyTree

# By the checkpoint format that introduced the new name: the old path of a leaf, or of a subtree,
# and the new one. To rename a leaf, add a line here.
RENAMED_LEAVES: dict[int, dict[str, str]] = {
    2: {
        ".squares": ".mean_squares",
        ".older": ".target_weights",
        ".warming": ".in_warmup",
    },
}
NEW_LEAVES = {".owed"}  # missing in older checkpoints: then they start as in a fresh State


def state_to_tensors(state: PyTree) -> dict[str, np.ndarray]:
    """One array for each leaf of a State, named by its path."""
    paths = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_count)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in paths}


def tensors_to_state(template: PyTree, tensors: dict[str, np.ndarray]) -> PyTree:
    """A State like the template with the saved leaves; every name, shape and type must match."""
    paths, structure = jax.tree_util.tree_flatten_with_path(template, is_leaf=_is_count)
    expected = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}
    tensors = {name: expected[name] for name in NEW_LEAVES & expected.keys()} | tensors
    missing = sorted(set(expected) - set(tensors))
    unknown = sorted(set(tensors) - set(expected))
    if missing or unknown:
        raise CheckpointError(f"the checkpoint does not fit this network: missing {missing}, not expected {unknown}")
    tensors = {name: _widen_counter(tensors[name], leaf) for name, leaf in expected.items()}
    for name, leaf in expected.items():
        _require_fit(name, tensors[name], leaf)
    leaves = [_restore_leaf(leaf, tensors[name]) for (_, leaf), name in zip(paths, expected, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def with_current_names(tensors: dict[str, np.ndarray], format: int) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint of this format, under the names that this version gives them."""
    for introduced, names in sorted(RENAMED_LEAVES.items()):
        if format < introduced:
            tensors = {_renamed(name, names): tensor for name, tensor in tensors.items()}
    return tensors


def non_finite_leaf(tensors: dict[str, np.ndarray]) -> str:
    """A sentence about the first weight or statistic that is not finite; "" if all are."""
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f":
            continue
        if name.startswith(".network") and not np.isfinite(tensor).all():
            return f"the network's {name.removeprefix('.network')} holds NaN or infinity"
        if name.startswith(".normalizer") and np.isnan(tensor).any():
            return f"the normaliser's {name.removeprefix('.normalizer')} holds NaN"
    return ""


def _renamed(name: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        if name == old or name.startswith((f"{old}.", f"{old}[")):
            return new + name.removeprefix(old)
    return name


def _require_fit(name: str, saved: np.ndarray, leaf: np.ndarray) -> None:
    if (saved.shape, saved.dtype) != (leaf.shape, leaf.dtype):
        raise CheckpointError(
            f"{name} is {saved.dtype}{saved.shape} in the checkpoint but {leaf.dtype}{leaf.shape} in this network"
        )
    if saved.dtype == np.int64 and saved < 0:
        raise CheckpointError(f"{name} is {saved} in the checkpoint; a number of steps cannot be negative")


def _widen_counter(saved: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The saved array; a counter from before counters had 64 bits is widened."""
    return saved.astype(np.int64) if (saved.dtype, like.dtype) == (np.int32, np.int64) else saved


def _is_count(node: Any) -> bool:
    """True if this is a Count: a pair of words in a State, one 64-bit integer in a file."""
    return isinstance(node, Count)


def _restore_leaf(leaf: Any, array: np.ndarray) -> Any:
    """The saved array as a leaf of a State, on the devices where the template's leaf is."""
    if isinstance(leaf, Count):
        return Count(place_like(leaf.words, np.asarray(count_of(int(array)).words)))
    return place_like(leaf, array)
