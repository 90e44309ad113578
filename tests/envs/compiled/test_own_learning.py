"""Birl's own compiled environments are learned within seconds, and MemoryGrid only with memory."""

from typing import Any

import pytest

import birl
from birl.algos import ppo
from birl.nets.recurrent import CoreName

pytestmark = pytest.mark.slow


def score(config: ppo.Config) -> Any:
    return birl.train(config, quiet=True)["evaluation"]["return_mean"]


def memory_grid(core: CoreName, run_dir: str) -> ppo.Config:
    return ppo.Config(
        env=birl.EnvConfig("birl/MemoryGrid-v0", backend="compiled", num_envs=32),
        run=birl.RunConfig(total_steps=250_000, seed=1, run_dir=run_dir, eval_episodes=200),
        core=core,
        share_trunk=True,  # the value learns first what the lamp means
        rollout_length=64,
        learning_rate=birl.linear(1e-3, 0.0),
        entropy_weight=0.02,
    )


def test_ppo_with_memory_finds_the_right_door(tmp_path):
    assert score(memory_grid("lstm", str(tmp_path / "run"))) >= 0.95


def test_ppo_without_memory_finds_it_by_chance_only(tmp_path):
    assert 0.35 <= score(memory_grid("feedforward", str(tmp_path / "run"))) <= 0.65


def test_ppo_learns_to_crawl(tmp_path):
    config = ppo.Config(
        env=birl.EnvConfig("birl/Crawler-v0", backend="compiled", num_envs=32),
        run=birl.RunConfig(total_steps=500_000, seed=1, run_dir=str(tmp_path / "run")),
        rollout_length=128,
        epochs=5,
        minibatches=8,
        learning_rate=1e-3,
        normalize_observations=True,
    )
    assert score(config) >= 45  # the best constant action has less than 8; seed 1 had 64
