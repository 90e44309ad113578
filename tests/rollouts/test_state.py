"""How a State begins, and how it counts a rollout."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import dqn, ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.maths.count import count_of
from birl.maths.keys import stream
from birl.nets.normalize import Normalizer, initial_normalizer
from birl.parts import NormalizeConfig
from birl.rollouts.state import begin, count_rollout
from birl.types import Rollout

NUMBERS = spaces.Box(-1, 1, (2,), np.float32)
CHOICES = spaces.Discrete(3)
CONFIG = ppo.Config(env=EnvConfig(num_envs=4), run=RunConfig(seed=3))


class State(NamedTuple):
    normalizer: Normalizer
    key: Any
    env_steps: Any
    updates: Any


def draw_weights(rng: np.random.Generator, *given: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Random weights, and the spaces that they were made for."""
    return rng.normal(size=3), given


def rollout_of(observations: Any, rewards: Any, valid: Any) -> Rollout:
    valid = jnp.array(valid)
    ended = jnp.zeros_like(valid)
    return Rollout(jnp.float32(observations), ended, jnp.float32(rewards), ended, ended, valid, ())


def test_the_same_seed_begins_with_the_same_network_and_key_and_another_with_others():
    first, again = (begin(CONFIG, ppo.Config, NUMBERS, CHOICES, draw_weights) for _ in range(2))
    np.testing.assert_array_equal(first.network[0], again.network[0])
    np.testing.assert_array_equal(first.key, again.key)
    assert (first.key.shape, first.key.dtype) == ((2,), np.uint32)
    other = begin(ppo.Config(run=RunConfig(seed=4)), ppo.Config, NUMBERS, CHOICES, draw_weights)
    assert (other.network[0] != first.network[0]).all()
    assert (other.key != first.key).any()


def test_the_network_is_made_for_the_two_spaces():
    assert begin(CONFIG, ppo.Config, NUMBERS, CHOICES, draw_weights).network[1] == (NUMBERS, CHOICES)


@pytest.mark.parametrize("observations", [False, True])
@pytest.mark.parametrize("rewards", [False, True])
def test_the_normalizer_has_the_parts_that_the_config_switches_on(observations, rewards):
    config = ppo.Config(EnvConfig(num_envs=4), normalize_observations=observations, normalize_rewards=rewards)
    normalizer = begin(config, ppo.Config, NUMBERS, CHOICES, draw_weights).normalizer
    assert (normalizer.observations is not None) == observations
    assert (normalizer.returns is not None) == rewards
    if observations:
        assert normalizer.observations.mean.shape == (2,)
    if rewards:
        assert normalizer.running_returns.tolist() == [0.0] * 4


def test_nothing_is_made_for_a_config_or_an_action_space_of_another_algorithm():
    def made(*given: Any) -> None:
        raise AssertionError("a network was made")

    with pytest.raises(ConfigError, match=r"^this is the Config of birl\.ppo; dqn needs birl\.dqn\.Config$"):
        begin(CONFIG, dqn.Config, NUMBERS, CHOICES, made)
    with pytest.raises(ConfigError, match=r"^dqn takes Discrete actions, and action space Box"):
        begin(dqn.Config(), dqn.Config, NUMBERS, NUMBERS, made)


def test_a_rollouts_valid_steps_are_counted_and_the_key_is_the_next_one():
    state = State(
        initial_normalizer(NUMBERS, 2, NormalizeConfig()), np.array([3, 4], np.uint32), count_of(10), count_of(1)
    )
    valid = [[True, True], [True, False], [True, True]]
    after = count_rollout(state, rollout_of(jnp.zeros((4, 2, 2)), jnp.zeros((3, 2)), valid), discount=0.9)
    assert (int(after.env_steps), int(after.updates)) == (15, 2)
    np.testing.assert_array_equal(after.key, stream(state.key, "next"))
    assert after.normalizer == state.normalizer


def test_the_moments_are_those_of_all_observations_but_the_last_and_of_discounted_returns():
    normalizer = initial_normalizer(
        spaces.Box(-9, 9, (1,), np.float32), 1, NormalizeConfig(normalize_observations=True, normalize_rewards=True)
    )
    state = State(normalizer, np.array([3, 4], np.uint32), count_of(0), count_of(0))
    observations = [[[1.0]], [[3.0]], [[100.0]]]
    after = count_rollout(state, rollout_of(observations, [[2.0], [4.0]], [[True], [True]]), discount=0.5)
    moments = after.normalizer
    np.testing.assert_allclose(moments.observations.mean, [2.0], rtol=1e-3)  # of 1 and 3; the last comes again
    np.testing.assert_allclose(moments.returns.mean, 3.5, rtol=1e-3)  # of 2 and 4 + 0.5 x 2
    assert jnp.asarray(moments.running_returns).tolist() == [5.0]
