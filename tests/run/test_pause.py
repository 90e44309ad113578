"""A run that is paused and continued ends in the same bits as one that was not."""

import io
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.run.checkpoint import checkpoints_in, load_checkpoint
from birl.run.history import read_history
from birl.run.signals import Interrupted
from tests.run.processes import assert_same_run, metric_rows

PPO: dict[str, Any] = {
    "num_envs": 4, "rollout_length": 16, "minibatches": 2, "epochs": 2, "hidden_sizes": (8,),
    "learning_rate": "linear:1e-3:0", "normalize_observations": True,
}  # fmt: skip
DQN: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 8, "learning_starts": 40, "batch_size": 8, "replay_size": 200,
    "update_ratio": 0.25, "hidden_sizes": (8,),
}  # fmt: skip
RUN: dict[str, Any] = {"total_steps": 900, "eval_episodes": 2, "checkpoint_every": 0}
CASES = {
    "ppo": ("ppo", PPO),
    "ppo, compiled": ("ppo", PPO | {"backend": "compiled"}),
    "dqn": ("dqn", DQN),
}


def train_to(run_dir: Path, pause_at: int | None = None) -> Any:
    run = birl.reopen(run_dir, pause_at=pause_at, quiet=True)
    with run:
        for _ in run:
            pass
    return run


@pytest.mark.parametrize("case", CASES)
def test_a_paused_run_ends_in_the_same_bits(case: str, tmp_path: Path) -> None:
    algorithm, settings = CASES[case]
    for name in ("whole", "paused"):
        birl.train(algorithm, "CartPole-v1", **settings, **RUN, seeds=1, run_dir=tmp_path / name, quiet=True)
    whole, paused = (tmp_path / name / "seed-1" for name in ("whole", "paused"))
    back_to_its_start(paused)
    for steps in (100, 300):
        run = train_to(paused, steps)
        assert run.summary is None
        assert steps <= run.env_steps < steps + 100 or "compiled" in case
        assert not (paused / "summary.json").exists()
        assert int(checkpoints_in(paused / "checkpoints")[-1].name) == run.env_steps
        assert read_history(paused).curve("eval/return_mean")[0][-1] == run.env_steps
    assert train_to(paused).summary["env_steps"] >= 900
    assert_same_run(paused, whole)


def test_a_run_that_is_at_its_pause_is_neither_trained_nor_evaluated_again(tmp_path: Path) -> None:
    birl.train("ppo", "CartPole-v1", **PPO, **RUN, run_dir=tmp_path / "run", quiet=True)
    back_to_its_start(tmp_path / "run")
    train_to(tmp_path / "run", 300)
    before = metric_rows(tmp_path / "run")
    run = train_to(tmp_path / "run", 300)
    assert run.update is None
    assert run.evaluation is None
    assert metric_rows(tmp_path / "run") == before


def test_an_evaluation_that_was_interrupted_at_a_pause_is_repeated_once(tmp_path: Path) -> None:
    birl.train("ppo", "CartPole-v1", **PPO, **RUN, run_dir=tmp_path / "whole", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    back_to_its_start(tmp_path / "run")
    with pytest.raises(Interrupted):
        stop_in_the_evaluation_of_a_pause(tmp_path / "run", 300)
    assert load_checkpoint(checkpoints_in(tmp_path / "run" / "checkpoints")[-1]).manifest["progress"]["evaluation_due"]
    assert train_to(tmp_path / "run", 300).evaluation is not None
    with birl.reopen(tmp_path / "run", pause_at=600, quiet=True) as run:
        next(iter(run))
        assert run.evaluation is None
        assert not load_checkpoint(run.save()).manifest["progress"]["evaluation_due"]
        for _ in run:
            pass
    train_to(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_pause_beyond_the_end_is_the_end(tmp_path: Path) -> None:
    birl.train("ppo", "CartPole-v1", **PPO, **RUN, run_dir=tmp_path / "run", quiet=True)
    back_to_its_start(tmp_path / "run")
    assert train_to(tmp_path / "run", 900).summary["evaluation"] is not None


def back_to_its_start(run_dir: Path) -> None:
    """Leave of a run what it has before it is trained: its settings."""
    shutil.rmtree(run_dir / "checkpoints")
    for name in ("metrics.jsonl", "summary.json"):
        (run_dir / name).unlink()


def stop_in_the_evaluation_of_a_pause(run_dir: Path, steps: int) -> None:
    signals: list[int] = []
    run = birl.reopen(run_dir, pause_at=steps, quiet=True).as_lane(signals, io.StringIO())
    with run:
        for _ in run:
            pass
        signals.append(signal.SIGTERM)
