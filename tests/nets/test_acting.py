"""Memory of any shape and initial value; the network counts the steps of each episode."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl import speed
from birl.envs.serial import SerialEnvs
from birl.maths.distributions import Categorical
from birl.nets import values
from birl.nets.models import act, evaluate_rollout
from birl.rollouts.replay import Replay
from birl.rollouts.source import Collector
from tests.envs.counting import Counting, counting_functions
from tests.nets.remembering import make_remembering, make_remembering_values

LENGTH = 5
AT_EVERY_ROLLOUTS_END = [(100, 4)] * 3  # four steps and a reset
NOW_AND_THEN = [(100, 4), (100, 2), (100, 7)]
KEY = np.array([0, 1], np.uint32)


def make_collector(envs, network):
    behaviour = Categorical(np.zeros((envs.num_envs, 3), np.float32))
    return Collector(envs, act, LENGTH, network.initial_memory(envs.num_envs), behaviour=behaviour)


def steps_of(rollout):
    """[T, B, 1] of its episode before each step, as the environments count them."""
    return rollout.observations[:-1, :, 1, None]


def assert_counted(rollout, policy):
    """Every leaf of the memory has counted the steps, in acting and in the update's pass."""
    valid = rollout.valid
    assert (~valid).any()
    np.testing.assert_array_equal(
        rollout.behaviour.logits[valid], np.broadcast_to(steps_of(rollout), (*valid.shape, 3))[valid]
    )
    again = jax.jit(evaluate_rollout)(policy, rollout).distributions.logits[:-1]
    np.testing.assert_array_equal(again[valid], rollout.behaviour.logits[valid])


@pytest.mark.parametrize("way", ["in NumPy", "compiled"])
@pytest.mark.parametrize(
    "shapes", [AT_EVERY_ROLLOUTS_END, NOW_AND_THEN], ids=["at every rollout's end", "now and then"]
)
def test_an_episode_begins_with_the_networks_own_initial_memory(shapes, way, monkeypatch):
    if way == "compiled":
        monkeypatch.setattr(speed, "accel_enabled", lambda: False)
    else:
        monkeypatch.setattr(speed, "compiled_acting", None)  # would be called if NumPy could not do it
    network = make_remembering(None, None, Counting.action_space)
    collector = make_collector(SerialEnvs(counting_functions(shapes)), network)
    collector.start(0)
    for _ in range(4):
        assert_counted(collector.collect((network, None), KEY), (network, None))


def test_the_initial_memory_is_that_of_the_network_as_it_is_now():
    network = make_remembering(None, None, Counting.action_space)
    collector = make_collector(SerialEnvs(counting_functions(AT_EVERY_ROLLOUTS_END)), network)
    collector.start(0)
    for start in (1.0, 2.0, 3.0):  # learned: another one in each rollout
        policy = replace(network, start=jnp.float32(start)), None
        assert_counted(collector.collect(policy, KEY), policy)


def test_sequences_from_a_replay_begin_with_the_networks_own_initial_memory():
    network = make_remembering(None, None, Counting.action_space)
    collector = make_collector(SerialEnvs(counting_functions(NOW_AND_THEN)), network)
    collector.start(0)
    replay = Replay(200, collector.empty_rollout(), 0.9)
    for _ in range(8):
        replay.add(collector.collect((network, None), KEY)._replace(game_over=None))
    assert_counted(jax.tree.map(np.asarray, replay.sample_sequences(KEY, (40,))), (network, None))


def test_a_value_networks_pass_over_a_rollout_begins_episodes_in_the_same_way():
    network = make_remembering_values(None, None, Counting.action_space)
    envs = SerialEnvs(counting_functions(AT_EVERY_ROLLOUTS_END))
    collector = Collector(envs, values.act, LENGTH, network.initial_memory(3))
    collector.start(0)
    for _ in range(3):
        rollout = collector.collect((network, None, np.float32(0.5)), KEY)
        found = jax.jit(values.rollout_values)(network, None, rollout)[:-1]
        np.testing.assert_array_equal(
            found[rollout.valid], np.broadcast_to(steps_of(rollout), found.shape)[rollout.valid]
        )
