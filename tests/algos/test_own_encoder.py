"""Every algorithm with an encoder is trained with one of the user's own, and resumed exactly."""

from contextlib import closing
from dataclasses import replace
from itertools import islice, product

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl import ALGORITHMS
from birl.algos import a2c, ppo
from birl.config import ConfigError, EnvConfig, RunConfig, from_json
from birl.registry import algorithm_named
from birl.run import checkpoint as checkpoints
from birl.run.state_tensors import tensors_to_state
from birl.settings import places_of
from tests.algos.test_image_cache import CONFIGS, pictures
from tests.nets.own_encoders import make_frozen, make_parts, make_perceptron, make_pictures, make_squares
from tests.test_contract import assert_same_bits, config_of, fresh_state, run, spaces_of
from tests.tiers import sooner

WITHOUT = {"dpg"}  # whose features are fixed
EVERY = [name for name in ALGORITHMS if name not in WITHOUT]
# At first each algorithm once, and half of them with memory.
ONE_OF_EACH = [(name, number % 2 == 1) for number, name in enumerate(EVERY)]
# At first one for each way of learning: rollouts, replay, two networks, line search, workers.
LEARNERS = ("ppo", "dqn", "sac", "trpo", "acer", "a3c")


def own_layers(state):
    """The parameters of the user's own encoders in the network, by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(state.network)
    named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    return {path: leaf for path, leaf in named.items() if ".parts[0].parameters" in path}


def test_which_algorithms_have_an_encoder_is_known():
    fields = {name: set(places_of(algorithm_named(name).Config)) for name in ALGORITHMS}
    assert {name for name in ALGORITHMS if "encoder" not in fields[name]} == WITHOUT


@pytest.mark.parametrize(("name", "switches"), sooner(ONE_OF_EACH, product(EVERY, [False, True])))
def test_it_is_trained_and_a_resumed_run_is_the_same_to_the_bit(name, switches, tmp_path):
    config = replace(config_of(name, switches), encoder=make_squares)
    start = own_layers(fresh_state(name, config))
    assert start
    with closing(algorithm_named(name).train(config)) as training:
        updates = []
        for update in islice(training, 4):
            updates.append(update)
            if len(updates) == 2:
                saved = update.state, update.snapshot(), {}
                path = checkpoints.save_checkpoint(tmp_path, name, config, spaces_of(config), *saved)
    end = own_layers(updates[-1].state)
    assert all(np.any(end[key] != start[key]) for key in start if key.endswith("weight"))
    saved = checkpoints.load_checkpoint(path)
    assert saved.manifest["exact"]
    again = from_json(type(config), saved.config)
    assert again == config
    state = tensors_to_state(fresh_state(name, replace(again, run=replace(again.run, seed=7))), saved.tensors)
    for left, right in zip(updates[2:], run(name, again, state, saved.snapshot, 2).updates, strict=True):
        assert_same_bits(left.state, right.state)


@pytest.mark.parametrize("name", sooner(LEARNERS, EVERY))
def test_a_frozen_one_does_not_move(name):
    config = replace(config_of(name), encoder=make_frozen)
    start, end = (own_layers(state) for state in (fresh_state(name, config), run(name, config).updates[-1].state))
    for key in start:
        np.testing.assert_array_equal(start[key], end[key])


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "a3c"])
def test_equinoxs_own_layers_are_trained(name):
    config = replace(config_of(name), encoder=make_perceptron)
    start, end = (own_layers(state) for state in (fresh_state(name, config), run(name, config).updates[-1].state))
    assert all(np.any(end[key] != start[key]) for key in start if key.endswith("weight"))


def test_with_a_shared_trunk_there_is_one():
    config = replace(config_of("ppo"), encoder=make_squares, share_trunk=True)
    assert {key.split(".")[1] for key in own_layers(fresh_state("ppo", config))} == {"actor"}
    assert np.isfinite(run("ppo", config, updates=2).updates[-1].metrics["loss/value"])


class Two(gym.Env):
    """A walk with an observation of two parts."""

    observation_space = spaces.Dict({"number": spaces.Box(-9, 9, (2,), np.float32), "bits": spaces.MultiBinary(3)})

    def __init__(self, box: bool = False):
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        observation = self.observation_space.sample()
        return observation, float(observation["number"][0]) * float(np.sum(action)), False, False, {}


gym.register("tests/Two-v0", entry_point=Two, max_episode_steps=6)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppo", {"core": "gru", "normalize_observations": True}),
        ("a2c", {"share_trunk": True}),
        ("acer", {}),
        ("dqn", {"core": "lstm"}),
        ("sac", {}),
        ("a3c", {}),
    ],
)
def test_it_takes_dict_observations_with_and_without_memory(name, changes):
    env = EnvConfig("tests/Two-v0", num_envs=4, kwargs={"box": name == "sac"})
    config = replace(config_of(name), env=env, encoder=make_parts, **changes)
    last = run(name, config, updates=3).updates[-1]
    assert np.isfinite(last.metrics["loss/value"])


def test_processes_find_it_by_its_module():
    run_config = RunConfig(total_steps=40)
    config = replace(config_of("a3c"), pool="processes", actor_learners=1, report_every=20, run=run_config)
    *_, last = algorithm_named("a3c").train(replace(config, encoder=make_squares))
    assert last.state.env_steps >= 40
    with pytest.raises(ConfigError, match=r"cannot be sent to the processes of pool 'processes': .*keep functions out"):
        next(algorithm_named("a3c").train(replace(config, encoder=make_perceptron)))


@pytest.mark.parametrize("algorithm", [ppo, a2c])
def test_images_may_go_through_one_that_is_shared(algorithm):
    config = replace(CONFIGS[algorithm], encoder=make_pictures, hidden_sizes=(8,))
    with pictures(4) as envs:
        *_, last = islice(algorithm.train(config, envs), 3)
    assert np.isfinite(last.metrics["loss/value"])
    start = algorithm.init(config, envs.observation_space, envs.action_space)
    before, after = own_layers(start), own_layers(last.state)
    assert all(np.any(before[path] != after[path]) for path in before)
