"""The settings that are shipped can be trained with."""

from dataclasses import replace

import numpy as np
import pytest

from birl.presets import PRESETS, atari, mujoco, preset
from birl.registry import algorithm_named, validate


def test_every_preset_is_valid_and_the_only_one_for_its_task():
    for entry in PRESETS:
        validate(entry.algorithm, entry.config)
        assert (entry.score is None) == (entry.interval is None), entry.task
    assert len({entry.task for entry in PRESETS}) == len(PRESETS)


TRAINED = [(algorithm, "ALE/Breakout-v5", "ale_py") for algorithm in atari.BASES]
TRAINED += [(algorithm, "Hopper-v5", "mujoco") for algorithm in mujoco.BASES]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env_id", "package"), TRAINED)
def test_a_preset_of_an_extra_trains(algorithm, env_id, package):
    """A few updates of it, the replay as small as may be."""
    pytest.importorskip(package)
    config = preset(algorithm, env_id)
    small = {"learning_starts": 8, "replay_size": 512} if hasattr(config, "replay_size") else {}
    small |= {"pool": "serial", "actor_learners": 2} if algorithm == "a3c" else {}
    length = min(config.rollout_length, 16)
    steps = 2 * length * config.env.num_envs
    config = replace(config, run=replace(config.run, total_steps=steps), rollout_length=length, **small)
    *_, last = algorithm_named(algorithm).train(config)
    assert int(last.state.env_steps) >= steps
    assert np.isfinite(last.metrics["optimizer/grad_norm"])
