"""The presets can be trained with, and loading one imports its algorithm only."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import birl
from birl.presets import all_presets, atari, find_preset, mujoco, preset, presets_of
from birl.registry import algorithm_named, validate
from tests.run.processes import ENVIRONMENT


def test_every_preset_is_valid_and_the_only_one_for_its_task():
    for entry in all_presets():
        validate(entry.algorithm, entry.config)
        if entry.measured is not None:
            assert (entry.measured.interval is not None) == (entry.measured.seeds > 1), entry.task
    assert len({entry.task for entry in all_presets()}) == len(all_presets())


def test_every_preset_is_found_by_its_algorithm_and_its_task():
    assert sum(len(presets_of(algorithm)) for algorithm in birl.ALGORITHMS) == len(all_presets())
    for algorithm in birl.ALGORITHMS:
        assert all(find_preset(*entry.task) == entry for entry in presets_of(algorithm))


@pytest.mark.parametrize(
    ("algorithm", "env_id"), [("ppo", "CartPole-v1"), ("sac", "HalfCheetah-v5"), ("async-q", "CartPole-v1")]
)
def test_finding_a_preset_imports_no_other_algorithm(algorithm, env_id):
    code = f"""
import sys
from birl.presets import find_preset
assert find_preset({algorithm!r}, {env_id!r}) is not None
print([name for name in sys.modules if name.startswith("birl.algos.")])
"""
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert finished.stdout == f"['birl.algos.{algorithm.replace('-', '_')}']\n"


def test_a_task_without_a_preset_is_an_error_that_names_those_with_one():
    with pytest.raises(birl.ConfigError, match=r"no preset for qac on Pong with core feedforward; .*: CartPole-v1$"):
        preset("qac", "Pong")
    with pytest.raises(birl.ConfigError, match="environments with one: none"):
        preset("vpg", "CartPole-v1")


TRAINED = [(algorithm, "ALE/Breakout-v5", "ale_py") for algorithm in atari.SETTINGS]
TRAINED += [(algorithm, "Hopper-v5", "mujoco") for algorithm in mujoco.SETTINGS]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env_id", "package"), TRAINED)
def test_a_preset_of_an_extra_trains(algorithm, env_id, package):
    """A few updates, with a small replay."""
    pytest.importorskip(package)
    config = preset(algorithm, env_id)
    small = {"learning_starts": 8, "replay_size": 512} if hasattr(config, "replay_size") else {}
    small |= {"pool": "serial", "actor_learners": 2} if algorithm == "a3c" else {}
    length = min(config.rollout_length, 16)
    steps = max(2 * length * config.env.num_envs, 32)  # more than learning_starts
    config = replace(config, run=replace(config.run, total_steps=steps), rollout_length=length, **small)
    *_, last = algorithm_named(algorithm).train(config)
    assert int(last.state.env_steps) >= steps
    assert np.isfinite(last.metrics["optimizer/grad_norm"])
