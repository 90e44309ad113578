"""A rollout without a valid step changes no weight, not even by an optimiser's momentum."""

import importlib
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest

from birl.config import EnvConfig, RunConfig
from birl.types import Rollout
from tests.recording import recorded

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a2c": ("a2c", {"optimizer": "adam"}),
    "a2c, rmsprop": ("a2c", {"optimizer": "rmsprop"}),
    "ppo": ("ppo", {"optimizer": "adam", "minibatches": 2}),
    "ppo, lstm": ("ppo", {"optimizer": "adam", "minibatches": 2, "core": "lstm"}),
    "trpo": ("trpo", {"minibatches": 2}),
    "qac": ("qac", {"optimizer": "adam"}),
    "qac, values of states": ("qac", {"optimizer": "adam", "critic": "v"}),
    "reinforce": ("reinforce", {"optimizer": "adam"}),
    "reinforce, no baseline": ("reinforce", {"optimizer": "adam", "baseline": False}),
    "acer": ("acer", {"optimizer": "adam"}),
    "dqn, sequences": ("dqn", {"core": "lstm", "learning_starts": 0, "batch_size": 4}),
}


def without_a_valid_step(argument: Any) -> Any:
    """The argument, with no step valid in the rollouts that it is or has."""

    def emptied(node: Any) -> Any:
        return node._replace(valid=np.zeros_like(node.valid)) if isinstance(node, Rollout) else node

    return jax.tree.map(emptied, argument, is_leaf=lambda node: isinstance(node, Rollout))


@pytest.mark.parametrize("name", CASES)
def test_an_update_without_a_valid_step_moves_nothing(name):
    algorithm_name, settings = CASES[name]
    algorithm = importlib.import_module(f"birl.algos.{algorithm_name}")
    env = EnvConfig("CartPole-v1", num_envs=4, max_episode_steps=3)
    config = algorithm.Config(env=env, run=RunConfig(total_steps=1000), rollout_length=8, hidden_sizes=(4,), **settings)
    with recorded(algorithm) as calls:
        *_, last = islice(algorithm.train(config), 3)  # by now there is momentum
    before = last.state
    _, *learned_from = calls[-1]
    after, *_ = algorithm.update(before, *map(without_a_valid_step, learned_from))
    moved, *_ = algorithm.update(before, *learned_from)

    def weights_of(state: Any) -> list[np.ndarray]:
        parts = {part: value for part, value in state._asdict().items() if part == "network" or "optimizer" in part}
        return [np.asarray(leaf) for leaf in jax.tree.leaves(parts)]

    for left, right in zip(weights_of(before), weights_of(after), strict=True):
        np.testing.assert_array_equal(left, right)
    assert any(np.any(left != right) for left, right in zip(weights_of(before), weights_of(moved), strict=True))
    # ACER's update is one gradient step; it counts rollouts elsewhere.
    assert int(after.updates) == int(before.updates) + (algorithm_name != "acer")
