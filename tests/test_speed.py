"""birl/accel may be switched off or deleted: everything still trains."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from birl import speed
from birl.accel.image_encoder import FastImageEncoder
from birl.nets.encoders import make_encoder
from birl.nets.images import ImageEncoder, make_conv
from tests.run.processes import SECONDS

BIRL = Path(speed.__file__).parent
IMAGES = spaces.Box(0, 255, (2, 24, 20), np.uint8)

PROGRAM = """
import gymnasium as gym, numpy as np
import birl
from birl.speed import accel_enabled

class Pictures(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (2, 24, 20), np.uint8), gym.spaces.Discrete(2)

    def reset(self, **_):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), False, False, {}

gym.register("Pictures-v0", Pictures, max_episode_steps=5)
run = birl.RunConfig(total_steps=64)
images = {"env": birl.EnvConfig("Pictures-v0", num_envs=2), "encoder": "cnn_small", "rollout_length": 8, "run": run}
shared = images | {"share_trunk": True}
for algorithm, config in (
    (birl.ppo, birl.ppo.Config(run=run, rollout_length=8)),
    (birl.ppo, birl.ppo.Config(**shared, minibatches=2)),
    (birl.a2c, birl.a2c.Config(**shared, core="lstm")),
    (birl.dqn, birl.dqn.Config(**images, learning_starts=8, batch_size=4)),
    (birl.a3c, birl.a3c.Config(run=run, pool="serial", actor_learners=2)),
):
    *_, last = algorithm.train(config)
    assert np.isfinite(list(last.metrics.values())[0])
print("trained without accel" if not accel_enabled() else "accel is on")
"""


def trained(folder: Path, **variables: str) -> str:
    """What the program prints in a process of this folder with these environment variables."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],  # -S: an editable install would find this checkout's birl/accel
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), sysconfig.get_path("purelib")])} | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_with_the_folder_deleted_algorithms_still_train(tmp_path):
    shutil.copytree(BIRL, tmp_path / "birl", ignore=shutil.ignore_patterns("accel", "__pycache__"))
    assert trained(tmp_path) == "trained without accel"


def test_switched_off_algorithms_still_train():
    assert trained(BIRL.parent, BIRL_ACCEL="0") == "trained without accel"


@pytest.mark.parametrize(("value", "enabled"), [("0", False), ("1", True), (None, True)])
def test_birl_accel_0_switches_it_off(value, enabled, monkeypatch):
    monkeypatch.delenv("BIRL_ACCEL", raising=False)
    if value is not None:
        monkeypatch.setenv("BIRL_ACCEL", value)
    assert speed.accel_enabled.__wrapped__() == enabled


@pytest.mark.parametrize("enabled", [False, True])
def test_an_image_encoder_is_fast_only_if_accel_is_on(enabled, monkeypatch):
    monkeypatch.setattr(speed, "accel_enabled", lambda: enabled)
    encoder, _ = make_encoder(np.random.default_rng(0), IMAGES, "cnn_small", (), "relu")
    assert isinstance(encoder.parts[0], FastImageEncoder if enabled else ImageEncoder)


def test_a_convolution_is_the_same_with_accel_and_without(monkeypatch):
    layer = make_conv(np.random.default_rng(0), 4, 3, 5, stride=2)
    images = np.random.default_rng(1).standard_normal((2, 13, 10, 3)).astype(np.float32)
    fast = layer(images)
    monkeypatch.setattr(speed, "accel_enabled", lambda: False)
    np.testing.assert_allclose(fast, layer(images), rtol=1e-4, atol=1e-5)
    assert fast.shape == (2, 5, 4, 5)
