"""No random number is used twice: over all algorithms, what becomes of the key of one cycle, from
the first action to the next key.
"""

import dataclasses
from collections import defaultdict
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest

from birl import ALGORITHMS
from birl.accel.numpy_acting import step_keys
from birl.config import EnvConfig, RunConfig
from birl.maths.count import Count
from birl.registry import algorithm_named
from birl.rollouts.collector import Collector
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
CONTINUOUS = {"ddpg", "td3", "sac", "dpg"}
# With short rollouts the number of a step, of an epoch and of a split may be the same.
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, {"rollout_length": 2 if name in ("qac", "ppo") else 1}) for name in ALGORITHMS
]
CASES += [("ppo", {"core": "lstm"}), ("ppo", {"core": "lstm", "rollout_length": 2})]
CASES += [("ddpg", {"noise": "parameter", "layer_norm": True})]
CASES += [("acer", {"env": "Pendulum-v1"}), ("acer", {"env": "Pendulum-v1"} | POOL)]


class Watched:
    """A function of an algorithm that is told of its calls, and does as before."""

    def __init__(self, function: Any, calls: list[tuple[Any, Any, Any]]) -> None:
        self.function, self.calls = function, calls

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls.append((self.function, arguments, options))
        return self.function(*arguments, **options)


def config_of(name: str, changes: dict[str, Any]) -> Any:
    algorithm = algorithm_named(name)
    fields = {field.name for field in dataclasses.fields(algorithm.Config)} - ({"pool"} if name == "acer" else set())
    settings = {key: value for key, value in ({"rollout_length": 1} | SMALL | POOL).items() if key in fields} | changes
    task = settings.pop("env", "Pendulum-v1" if name in CONTINUOUS else "CartPole-v1")
    return algorithm.Config(env=EnvConfig(task, num_envs=2), run=RunConfig(total_steps=100), **settings)


def uses_of_keys(name: str, config: Any, monkeypatch: Any) -> dict[Key, Uses]:
    """By the key with which a cycle began, what was done with it and those derived from it."""
    algorithm = algorithm_named(name)
    calls: list[tuple[Any, Any, Any]] = []
    for learning in ("update", "count", "gradients", "shared_gradients", "counted"):
        function = vars(algorithm).get(learning)
        if hasattr(function, "lower"):  # it is compiled: others are part of one that is, or move no key
            monkeypatch.setattr(algorithm, learning, Watched(function, calls))
    collect = Collector.collect

    def collected(self: Collector, policy: Any, key: Any) -> Any:
        inputs = self.observations, self.memory, self.resets, self.masks

        def act_in_all_steps(policy: Any, key: Any, inputs: Any) -> Any:
            return [self.act(policy, *inputs, step_key) for step_key in step_keys(key, self.length)]

        calls.append((act_in_all_steps, (policy, key, inputs), {}))
        return collect(self, policy, key)

    monkeypatch.setattr(Collector, "collect", collected)
    for _ in islice(algorithm.train(config), 3):
        pass
    found: dict[Key, Uses] = defaultdict(Uses)
    for function, arguments, options in calls:
        leaves = jax.tree.leaves(
            (arguments, options), is_leaf=lambda node: isinstance(node, Count)
        )  # whose words look like a key
        leaves = [np.asarray(leaf) for leaf in leaves if hasattr(leaf, "dtype")]
        (root,) = {tuple(leaf.ravel().tolist()) for leaf in leaves if leaf.dtype == np.uint32}
        found[root] += keys_of(function, *arguments, **options)
    return found


@pytest.mark.parametrize(
    ("name", "changes"), CASES, ids=[" ".join([name, *map(str, changes.values())]) for name, changes in CASES]
)
def test_no_key_is_drawn_from_twice_and_none_that_is_drawn_from_has_children(name, changes, monkeypatch):
    cycles = uses_of_keys(name, config_of(name, changes), monkeypatch)
    assert len(cycles) == 3
    assert all(uses.drawn for uses in cycles.values())
    assert [uses.problems() for uses in cycles.values()] == [[]] * 3
    roots, drawn = set(cycles), set().union(*[uses.drawn for uses in cycles.values()])
    assert not roots & drawn
