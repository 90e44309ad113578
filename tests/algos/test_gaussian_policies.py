"""The kinds of Gaussian policy, in the algorithms that have them: learning, resuming, refusing."""

import dataclasses
from contextlib import closing
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest

from birl.config import EnvConfig, RunConfig
from birl.registry import algorithm_named
from birl.run.state_tensors import state_to_tensors, tensors_to_state
from birl.types import Update

SMALL: dict[str, Any] = {
    "rollout_length": 8,
    "epochs": 2,
    "minibatches": 2,
    "hidden_sizes": (8,),
    "pool": "serial",
    "actor_learners": 2,
    "report_every": 30,
}
PENDULUM = EnvConfig("Pendulum-v1", num_envs=4, max_episode_steps=9)  # episodes end inside the second rollout
STATE_DEPENDENT = ["a2c", "a3c", "acer", "ppo", "qac", "reinforce", "trpo"]


def config_of(name: str, **changes: Any) -> Any:
    Config = algorithm_named(name).Config
    fields = {field.name for field in dataclasses.fields(Config)} - ({"pool"} if name == "acer" else set())
    small = {key: value for key, value in SMALL.items() if key in fields}
    return Config(**{"env": PENDULUM, "run": RunConfig(total_steps=10_000)} | small | changes)


def updates_of(name: str, config: Any, count: int, state: Any = None, snapshot: Any = None) -> list[Update]:
    with closing(algorithm_named(name).train(config, None, state, snapshot)) as training:
        return list(islice(training, count))


def tensors_of(state: Any) -> dict[str, tuple[str, bytes]]:
    return {name: (str(array.dtype), array.tobytes()) for name, array in state_to_tensors(state).items()}


def assert_resumes_to_the_bit(name: str, config: Any) -> None:
    """Four updates are the same as two, a State from its tensors with a snapshot, and two more."""
    whole = updates_of(name, config, 4)[-1].state
    with closing(algorithm_named(name).train(config)) as training:
        *_, stopped = islice(training, 2)
        tensors, snapshot = state_to_tensors(stopped.state), stopped.snapshot()
    state = tensors_to_state(stopped.state, tensors)
    assert tensors_of(updates_of(name, config, 2, state, snapshot)[-1].state) == tensors_of(whole)


@pytest.mark.parametrize("name", STATE_DEPENDENT)
def test_a_state_dependent_std_is_learned_and_differs_between_states(name):
    config = config_of(name, state_dependent_std=True, log_std=-0.5)
    *_, update = updates_of(name, config, 3)
    network = update.state.network
    observations = np.random.default_rng(0).normal(size=(1, 4, 3)).astype(np.float32)
    distribution, _, _ = jax.jit(lambda network: network(observations, (), np.zeros((1, 4), bool), None))(network)
    assert np.all(np.isfinite(distribution.log_std))
    assert np.ptp(distribution.log_std) > 1e-5
    assert np.all(np.abs(distribution.log_std + 0.5) < 0.5)


@pytest.mark.parametrize("name", ["ppo", "trpo"])
def test_with_a_state_dependent_std_a_resumed_run_is_the_same_to_the_bit(name):
    assert_resumes_to_the_bit(name, config_of(name, state_dependent_std=True))
