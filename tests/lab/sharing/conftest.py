"""A tiny run, and a Hub on this machine; nothing is sent anywhere else."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # before huggingface_hub is imported

import numpy as np
import pytest

import birl
from birl.algos import ppo
from birl.config import EnvConfig, RunConfig
from tests.lab.sharing.hub_server import TOKEN, Hub, running_hub

OBSERVATIONS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


def logits(policy: Any) -> list[Any]:
    """What a policy for CartPole computes for some observations."""
    return policy.distribution(OBSERVATIONS).logits.tolist()


def make_seeds(run: Path, directory: Path, scores: dict[int, float]) -> Path:
    """A directory with copies of a run, which have these seeds and final scores."""
    for seed, score in scores.items():
        lane = shutil.copytree(run, directory / f"seed-{seed}")
        config, summary = (json.loads((lane / name).read_text()) for name in ("config.json", "summary.json"))
        config["config"]["run"]["seed"] = summary["seed"] = seed
        summary["evaluation"]["return_mean"] = score
        (lane / "config.json").write_text(json.dumps(config))
        (lane / "summary.json").write_text(json.dumps(summary))
    return directory


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PPO on CartPole, which tests copy if they change it."""
    path = tmp_path_factory.mktemp("sharing") / "run"
    run = RunConfig(total_steps=16, eval_episodes=3, run_dir=str(path))
    birl.train(ppo.Config(EnvConfig("CartPole-v1", num_envs=2), run, rollout_length=8, hidden_sizes=(8,)))
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that the environment variables name, with a token that may write."""
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
