"""Every recurrent algorithm learns with a network whose memory has any shape, and resumes exactly.

Memory that is simpler is in test_own_memory.py.
"""

from contextlib import closing
from dataclasses import replace
from itertools import islice

import jax
import numpy as np
import pytest

from birl import ALGORITHMS
from birl.algos import ppo
from birl.config import from_json
from birl.registry import algorithm_named, supports
from birl.run import checkpoint as checkpoints
from birl.run.state_tensors import tensors_to_state
from tests.nets import nested_memory
from tests.test_contract import assert_same_bits, config_of, spaces_of
from tests.tiers import sooner

ACTOR_CRITIC = nested_memory.make_actor_critic
Q = nested_memory.make_q_network
CASES = {
    "reinforce": ("reinforce", {}, ACTOR_CRITIC),
    "qac, critic q": ("qac", {}, nested_memory.make_actor_q_critic),
    "qac, critic v": ("qac", {"critic": "v"}, ACTOR_CRITIC),
    "a2c": ("a2c", {}, ACTOR_CRITIC),
    "ppo": ("ppo", {}, ACTOR_CRITIC),
    "trpo": ("trpo", {}, ACTOR_CRITIC),
    "a3c": ("a3c", {}, ACTOR_CRITIC),
    "acer": ("acer", {}, nested_memory.make_actor_q),
    "acer, Box": ("acer", {"env": "Pendulum-v1"}, nested_memory.make_dueling_actor),
    "acer, pool": ("acer", {"pool": "serial", "actor_learners": 2, "report_every": 30}, nested_memory.make_actor_q),
    "dqn": ("dqn", {"burn_in": 2}, Q),
    "qr-dqn": ("qr-dqn", {"burn_in": 2}, nested_memory.make_quantiles),
    "c51": ("c51", {"burn_in": 2}, nested_memory.make_probabilities),
    "async-q": ("async-q", {}, Q),
    "async-sarsa": ("async-sarsa", {}, Q),
    "async-nstep-q": ("async-nstep-q", {}, Q),
}


def config_for(case):
    name, changes, _ = CASES[case]
    config = config_of(name)
    env = replace(config.env, id=changes.get("env", config.env.id))
    return replace(config, **changes | {"env": env})


def test_every_recurrent_algorithm_is_tried():
    assert {name for name, _, _ in CASES.values()} == {name for name in ALGORITHMS if supports(name).recurrent}


# At first one for each network and each way of learning; the others differ in their targets.
FIRST = ("qac, critic q", "ppo", "trpo", "a3c", "acer", "acer, Box", "dqn", "async-nstep-q")


@pytest.mark.parametrize("case", sooner(FIRST, CASES))
def test_it_learns_and_a_resumed_run_is_the_same_to_the_bit(case, tmp_path):
    name, _, make_network = CASES[case]
    algorithm, config = algorithm_named(name), config_for(case)
    spaces = spaces_of(config)
    start = algorithm.init(config, *spaces, make_network)
    updates = []
    with closing(algorithm.train(config, make_network=make_network)) as training:
        for update in islice(training, 5):
            updates.append(update)
            if len(updates) == 3:
                path = checkpoints.save_checkpoint(tmp_path, name, config, spaces, update.state, update.snapshot(), {})
    assert np.isfinite(updates[-1].metrics["loss/value"])
    learned = updates[-1].state.network.memory
    assert np.any(learned.layer.weight != start.network.memory.layer.weight)  # through the loop over time
    assert np.any(learned.start != start.network.memory.start)  # where an episode began inside a rollout
    saved = checkpoints.load_checkpoint(path)
    assert saved.manifest["exact"]
    seed_7 = replace(config, run=replace(config.run, seed=7))
    state = tensors_to_state(algorithm.init(seed_7, *spaces, make_network), saved.tensors)
    again = from_json(type(config), saved.config)
    with closing(algorithm.train(again, None, state, saved.snapshot, make_network)) as training:
        for left, right in zip(updates[3:], islice(training, 2), strict=True):
            assert_same_bits(left.state, right.state)


def test_what_learns_is_what_acted_whatever_the_memory_is():
    config = replace(config_of("ppo"), epochs=1, minibatches=1, learning_rate=0.0)
    training = ppo.train(config, make_network=ACTOR_CRITIC)
    assert [round(update.metrics["policy/approx_kl"], 6) for update in islice(training, 4)] == [0.0] * 4


def test_leaves_keep_their_types_from_step_to_step():
    space, actions = spaces_of(config_of("ppo"))
    network = ACTOR_CRITIC(np.random.default_rng(0), space, actions)
    before = network.initial_memory(3)
    _, _, after = network(np.zeros((2, 3, *space.shape), np.float32), before, np.zeros((2, 3), bool), None)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    types = [(np.shape(leaf), leaf.dtype) for leaf in jax.tree.leaves(before)]
    assert types == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)]
    assert {str(dtype) for _, dtype in types} == {"float32", "int32", "bool"}
