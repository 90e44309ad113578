"""No algorithm uses a random number twice.

Each test follows the key of one cycle, from the first action to the key of the next cycle.
"""

import sys
from collections import defaultdict
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest

from birl import ALGORITHMS
from birl.algos import acer
from birl.config import EnvConfig, RunConfig
from birl.maths.count import Count
from birl.maths.keys import FIRST_STREAM, numbered, step_keys, stream
from birl.registry import algorithm_named
from birl.rollouts.replay import Replay, ReplayArrays
from birl.rollouts.source import Collector
from birl.settings import places_of
from tests.keys import Key, Uses, keys_of

SMALL: dict[str, Any] = {
    "epochs": 2,
    "minibatches": 2,
    "hidden_sizes": (4,),
    "batch_size": 2,
    "update_ratio": 1.0,
    "learning_starts": 0,
}
POOL = {"pool": "serial", "actor_learners": 1, "report_every": 1}
NEXT = FIRST_STREAM  # the number that stream(key, "next") folds in
CONTINUOUS = {"ddpg", "td3", "sac", "dpg"}
# With short rollouts the number of a step, of an epoch and of a split may be the same.
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, {"rollout_length": 2 if name in ("qac", "ppo") else 1}) for name in ALGORITHMS
]
CASES += [("ppo", {"core": "lstm"}), ("ppo", {"core": "lstm", "rollout_length": 2})]
CASES += [("ddpg", {"noise": "parameter", "layer_norm": True})]
CASES += [("acer", {"env": "Pendulum-v1"}), ("acer", {"env": "Pendulum-v1"} | POOL)]


class Watched:
    """A compiled function that records its calls, except those that are part of another's."""

    def __init__(self, function: Any, calls: list[tuple[Any, Any, Any]]) -> None:
        self.function = function
        self.calls = calls

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, options))):
            self.calls.append((self.function, tuple(map(kept, arguments)), options))
        return self.function(*arguments, **options)


def kept(argument: Any) -> Any:
    """The argument, of which a replay is copied: its arrays are given up to the program."""
    return jax.tree.map(np.array, argument) if isinstance(argument, Replay | ReplayArrays) else argument


def watch_compiled(monkeypatch: Any) -> list[tuple[Any, Any, Any]]:
    """The calls of all compiled functions of Birl from now on, except those that only act."""
    calls: list[tuple[Any, Any, Any]] = []
    modules = [module for name, module in sys.modules.items() if name.startswith("birl.")]
    for module in modules:
        for name, function in list(vars(module).items()):
            if hasattr(function, "lower") and callable(function) and not name.startswith("act"):
                monkeypatch.setattr(module, name, Watched(function, calls))
    return calls


def config_of(name: str, changes: dict[str, Any]) -> Any:
    algorithm = algorithm_named(name)
    fields = set(places_of(algorithm.Config)) - ({"pool"} if name == "acer" else set())
    settings = {key: value for key, value in ({"rollout_length": 1} | SMALL | POOL).items() if key in fields} | changes
    task = settings.pop("env", "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1")
    return algorithm.Config(env=EnvConfig(task, num_envs=2), run=RunConfig(total_steps=100), **settings)


def uses_of_keys(name: str, config: Any, monkeypatch: Any) -> dict[Key, Uses]:
    """By the key with which a cycle began, what was done with it and those derived from it."""
    algorithm = algorithm_named(name)
    calls = watch_compiled(monkeypatch)
    collect = Collector.collect

    def collected(self: Collector, policy: Any, key: Any, steps_per_key: int = 1) -> Any:
        inputs = self.observations, self.memory, self.resets, self.masks

        def act_in_all_steps(policy: Any, key: Any, inputs: Any) -> Any:
            return [self.act(policy, *inputs, step_key) for step_key in step_keys(key, self.length)]

        calls.append((act_in_all_steps, (policy, key, inputs), {}))
        return collect(self, policy, key, steps_per_key)

    origins: dict[Key, Key] = {}  # of the keys that ACER makes for its replayed sequences

    def noted(key: Any, number: int) -> Any:
        made = numbered(key, number)
        origins[tuple(made.tolist())] = tuple(np.asarray(key).tolist())
        return made

    monkeypatch.setattr(acer, "numbered", noted)
    monkeypatch.setattr(Collector, "collect", collected)
    for _ in islice(algorithm.train(config), 3):
        pass
    found: dict[Key, Uses] = defaultdict(Uses)
    for function, arguments, options in calls:
        # A Count is left whole: its two words look like a key.
        leaves = jax.tree.leaves((arguments, options), is_leaf=lambda node: isinstance(node, Count))
        leaves = [np.asarray(leaf) for leaf in leaves if hasattr(leaf, "dtype")]
        roots = {tuple(leaf.ravel().tolist()) for leaf in leaves if leaf.dtype == np.uint32}
        if roots:  # else it is given no key, such as a function that adds to a replay
            (root,) = roots
            found[origins.get(root, root)] += keys_of(function, *arguments, **options)
    return found


@pytest.mark.parametrize(
    ("name", "changes"), CASES, ids=[" ".join([name, *map(str, changes.values())]) for name, changes in CASES]
)
def test_no_key_is_drawn_from_twice_and_none_that_is_drawn_from_has_children(name, changes, monkeypatch):
    cycles = uses_of_keys(name, config_of(name, changes), monkeypatch)
    assert len(cycles) == 3
    assert all(uses.drawn for uses in cycles.values())
    assert [uses.problems() for uses in cycles.values()] == [[]] * 3
    assert not set(cycles) & set().union(*[uses.drawn for uses in cycles.values()])
    # The functions that give the next key were watched, too.
    assert all(NEXT in uses.folded[root] for root, uses in cycles.items())
    next_keys = [tuple(np.asarray(stream(np.array(root, np.uint32), "next")).tolist()) for root in cycles]
    assert list(cycles)[1:] == next_keys[:-1]
