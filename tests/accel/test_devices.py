"""How JAX is set up. Each test has processes of its own: in one it is set up once."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from birl.accel.setup import work_size
from birl.algos import a2c, acer, dpg, dqn, ppo

SHARED = """
import json, jax, jax.numpy as jnp, numpy as np
from gymnasium import spaces
from birl.accel.devices import cpu_devices
from birl.accel.image_encoder import CachedImages
from birl.accel.setup import set_up
from birl.nets.encoders import make_encoder

set_up("images")
encoder, _ = make_encoder(np.random.default_rng(0), spaces.Box(0, 255, (2, 24, 20), np.uint8), "cnn_small", (), "relu")
images = np.random.default_rng(1).integers(0, 255, (3, 8, 2, 24, 20), dtype=np.uint8)
loss = jax.jit(lambda encoder, images: jnp.sum(jnp.sin(encoder(images))))
gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(encoder, images))
tangent = jax.jit(lambda encoder: jax.jvp(lambda encoder: loss(encoder, images), (encoder,), (encoder,))[1])(encoder)
odd = images[:1, :1]  # as many cores cannot share it out
found = [*gradients, tangent, loss(encoder, images), loss(encoder, odd)]
found += jax.tree.leaves(jax.jit(jax.grad(loss))(encoder, odd))
outputs = jax.jit(lambda encoder, images: encoder.outputs(images))(encoder.parts[0], images)
found += jax.tree.leaves(jax.jit(jax.grad(loss))(encoder, CachedImages(images, outputs)))
odd_outputs = jax.jit(lambda encoder, images: encoder.outputs(images))(encoder.parts[0], odd)
found += jax.tree.leaves(jax.jit(jax.grad(loss))(encoder, CachedImages(odd, odd_outputs)))
here = [array.addressable_shards[0].data.shape for array in [*jax.tree.leaves(encoder), *gradients]]
places = len(gradients[0].devices())
found = [np.asarray(x).tolist() for x in found]
print(json.dumps({"devices": cpu_devices().size, "places": places, "here": here, "found": found}))
"""

INITIALISED = """
import json, sys, jax, numpy as np
from gymnasium import spaces
from birl.algos import ppo
from birl.speed import prepare_jax
config = ppo.Config(encoder=sys.argv[1])
prepare_jax(config)
ppo.init(config, spaces.Box(0, 255, (2, 24, 20), np.uint8), spaces.Discrete(2))
print(json.dumps({"devices": jax.local_device_count()}))
"""


SETTINGS = """
import json, jax, numpy as np
from gymnasium import spaces
from birl.algos import a2c
from birl.speed import prepare_jax, replicate_unplaced
from birl.traced import place_together
config = a2c.Config(encoder="cnn_small")
prepare_jax(config)
state = a2c.init(config, spaces.Box(0, 255, (2, 24, 20), np.uint8), spaces.Discrete(2))
kept = []
for _ in range(2):
    state = place_together(replicate_unplaced, state, config)
    kept.append([len(leaf.devices()) for leaf in jax.tree.leaves(config)])
print(json.dumps(kept))
"""


def outcome(program, *words, **variables):
    """What a program prints with these environment variables; NPROC is set only if it is one."""
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"} | variables
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def expected_devices():
    cores = min(8, len(os.sched_getaffinity(0)))
    return max(power for power in (1, 2, 4, 8) if power <= cores)


def test_shared_out_among_the_cores_images_have_the_features_gradients_and_tangents_that_one_device_gives_them():
    alone, shared = outcome(SHARED, NPROC="1"), outcome(SHARED)
    assert (alone["devices"], shared["devices"]) == (1, expected_devices())
    assert shared["places"] == expected_devices()  # the gradient is on each of them
    dense = next(shape for shape in alone["here"] if len(shape) == 2)
    of_core = [dense[0], dense[1] // expected_devices()]
    # Gradients are where their weights are.
    assert shared["here"] == [of_core if shape == dense else shape for shape in alone["here"]]
    for mine, theirs in zip(shared["found"], alone["found"], strict=True):
        assert np.abs(theirs).max() > 0
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


def test_of_three_devices_that_the_user_has_made_two_share():
    found = outcome(SHARED, XLA_FLAGS="--xla_force_host_platform_device_count=3", NPROC="1")
    assert found["devices"] == 2


def test_jax_is_set_up_for_images_with_a_device_for_each_core():
    assert outcome(INITIALISED, "cnn_small")["devices"] == expected_devices()
    assert outcome(INITIALISED, "mlp")["devices"] == 1


COMPILED_ONCE = """
import json, sys
import gymnasium as gym, jax, numpy as np
from gymnasium import spaces
from birl.config import EnvConfig, RunConfig
from birl.envs.serial import SerialEnvs
from birl.registry import algorithm_named
from birl.speed import prepare_jax

class Pictures(gym.Env):
    observation_space, action_space = spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(2)
    if sys.argv[1] == "sac":
        action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, **_):
        return np.zeros((2, 84, 84), np.uint8), {}

    def step(self, _):
        return np.ones((2, 84, 84), np.uint8), 1.0, False, False, {}

algorithm, settings = algorithm_named(sys.argv[1]), json.loads(sys.argv[2])
settings |= {"rollout_length": 4, "encoder": "cnn_small"}
config = algorithm.Config(env=EnvConfig(num_envs=2), run=RunConfig(total_steps=32), **settings)
prepare_jax(config)
fresh = algorithm.init(config, Pictures.observation_space, Pictures.action_space)
for state in (None, jax.tree.map(np.asarray, fresh)):
    *_, last = algorithm.train(config, SerialEnvs([Pictures] * 2), state)
    if state is None:
        fresh = algorithm.update._cache_size()
here = [leaf.shape for leaf in jax.tree.leaves(last.state) if leaf.addressable_shards[0].data.shape != leaf.shape]
print(json.dumps({"devices": jax.local_device_count(), "fresh": fresh, "divided": here}))
"""
REPLAYED = {"learning_starts": 0, "batch_size": 4, "update_ratio": 0.25}


@pytest.mark.parametrize(
    ("algorithm", "settings", "programs", "divided"),
    [
        ("a2c", {"share_trunk": True}, 1, 2),  # weights, and RMSProp's squares
        ("ppo", {"share_trunk": True, "epochs": 1, "minibatches": 1}, 1, 3),  # weights, and two moments of Adam's
        ("dqn", REPLAYED, 2, 4),  # a target, too; another program until there is something to replay
        ("sac", REPLAYED, 2, 11),  # of an actor and two critics, and two targets
    ],
)
def test_an_update_that_learns_from_images_is_compiled_once_and_its_arrays_lie_where_their_weights_do(
    algorithm, settings, programs, divided
):
    found = outcome(COMPILED_ONCE, algorithm, json.dumps(settings))
    assert found == {
        "devices": expected_devices(),
        "fresh": programs,
        "divided": [[1296, 128]] * (divided if expected_devices() > 1 else 0),
    }


def test_settings_are_kept_on_the_devices_of_the_state():
    for devices, variables in ((expected_devices(), {}), (1, {"NPROC": "1"})):
        first, again = outcome(SETTINGS, **variables)
        assert len(first) > 5
        assert {*first, *again} == {devices}


@pytest.mark.parametrize(
    ("config", "products"),
    [
        (ppo.Config(rollout_length=16, minibatches=4, hidden_sizes=(32,)), 8 * 16 // 4 * 32 * 32),
        (a2c.Config(rollout_length=5, hidden_sizes=(16, 64)), 8 * 5 * 64 * 64),
        (a2c.Config(rollout_length=5, hidden_sizes=(16,), core="lstm", core_size=32), 8 * 5 * 4 * 32 * 16),
        (dqn.Config(batch_size=32, hidden_sizes=(64,)), 32 * 64 * 64),
        (acer.Config(rollout_length=4, batch_size=16, hidden_sizes=(8,)), 4 * 16 * 8 * 8),
        (dpg.Config(num_features=100), 8 * 100),
    ],
    ids=lambda value: type(value).__module__,
)
def test_the_work_of_a_gradient_step_follows_from_its_rows_and_its_layers(config, products):
    assert work_size(config) == products
