"""Runs whose replay has transitions from elsewhere: what they learn, resume, and are allowed."""

import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import birl
from birl.algos import dqn, td3
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.probes import right_action
from birl.run.checkpoint import checkpoints_in
from birl.run.run import Run
from tests.run.processes import assert_same_run, call, call_well, metric_rows

SMALL = [
    "--num-envs", 2, "--rollout-length", 4, "--learning-starts", 0, "--batch-size", 8, "--hidden-sizes", 8,
    "--total-steps", 120, "--checkpoint-every", 1, "--keep-checkpoints", 100, "--eval-episodes", 1,
    "--replay-size", 500,
]  # fmt: skip


def write_cartpole(path: Path, steps: int = 300) -> None:
    """Transitions of a policy that pushes towards the side to which the pole falls."""
    env = gym.make("CartPole-v1")
    rows = []
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        action = int(observation[2] + observation[3] > 0)
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((observation, action, reward, following, terminated, truncated))
        observation = env.reset()[0] if terminated or truncated else following
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    np.savez(path, **{name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})


def write_signs(path: Path, actions: np.ndarray, rewards: np.ndarray, signs: np.ndarray) -> None:
    seen = signs[:, None].astype(np.float32)
    ends = np.ones(len(signs), bool)
    np.savez(path, observations=seen, actions=actions, rewards=rewards, next_observations=0 * seen, terminated=ends)


@pytest.mark.parametrize("prioritized", [False, True])
def test_dqn_learns_the_values_that_a_file_tells(tmp_path, prioritized):
    """The rewards of the file are three times those of the few steps of the run itself."""
    signs = np.repeat([-1.0, 1.0], 100)
    actions = np.tile([0, 1], 100)
    rewards = np.array([right_action(*pair) for pair in zip(signs, actions, strict=True)])
    write_signs(tmp_path / "demo.npz", actions, 3 * rewards, signs)
    config = dqn.Config(
        env=EnvConfig("birl/ProbeObservationAction-v0", num_envs=1),
        run=RunConfig(total_steps=8),
        rollout_length=4,
        learning_starts=0,
        update_ratio=100,
        batch_size=32,
        prefill=str(tmp_path / "demo.npz"),
        prioritized=prioritized,
        learning_rate=1e-2,
        hidden_sizes=(16,),
        target_every=20,
    )
    (*_, last) = dqn.train(config)
    observations = np.array([-1.0, 1.0], np.float32)[None, :, None]
    values = last.state.network(observations, (), np.zeros((1, 2), bool))[0].mean()[0]
    np.testing.assert_allclose(values, [[3, -3], [-3, 3]], atol=0.5)


def test_td3_learns_the_best_of_actions_in_a_file(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "demo.npz"
    env = gym.make("birl/ProbeContinuous-v0")
    low, high = env.action_space.low[0], env.action_space.high[0]
    actions = rng.uniform(low, high, (500, 1)).astype(np.float32)
    signs = rng.choice([-1.0, 1.0], 500)
    goal = low + 0.7 * (high - low)
    write_signs(path, actions, -((actions[:, 0] - goal) ** 2), signs)
    config = td3.Config(
        env=EnvConfig("birl/ProbeContinuous-v0", num_envs=1),
        run=RunConfig(total_steps=8),
        rollout_length=4,
        learning_starts=0,
        update_ratio=100,
        batch_size=64,
        prefill=str(path),
        hidden_sizes=(32,),
        actor_learning_rate=3e-3,
        critic_learning_rate=3e-3,
    )
    (*_, last) = td3.train(config)
    chosen = td3.act(td3.policy(last.state), signs[:2, None].astype(np.float32), (), np.zeros(2, bool), None, None)
    np.testing.assert_allclose(chosen.actions[:, 0], goal, atol=0.15 * (high - low))


def test_a_prefilled_run_resumes_to_the_same_bits_without_its_file(tmp_path):
    path = tmp_path / "demo.npz"
    write_cartpole(path)
    switches = ["--prioritized", "--n-step", 3, "--prefill", path]
    call_well("train", "dqn", "CartPole-v1", "--run-dir", tmp_path / "whole", *SMALL, *switches)
    call_well("train", "dqn", "CartPole-v1", "--run-dir", tmp_path / "plain", *SMALL, *switches[:-2])
    assert metric_rows(tmp_path / "whole") != metric_rows(tmp_path / "plain")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for checkpoint in checkpoints_in(tmp_path / "resumed" / "checkpoints")[3:]:
        shutil.rmtree(checkpoint)
    path.unlink()
    call_well("resume", tmp_path / "resumed")
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")
    assert metric_rows(tmp_path / "resumed") == metric_rows(tmp_path / "whole")


def loop_config(run_dir: Path, total_steps: int) -> dqn.Config:
    run = RunConfig(total_steps=total_steps, run_dir=str(run_dir), eval_episodes=1)
    env = EnvConfig("CartPole-v1", num_envs=2)
    return dqn.Config(env, run, learning_starts=0, batch_size=8, hidden_sizes=(8,), replay_size=500)


def test_what_a_loop_adds_is_in_its_checkpoints(tmp_path):
    write_cartpole(tmp_path / "demo.npz", 40)
    with np.load(tmp_path / "demo.npz") as archive:
        demo = dict(archive)

    def add_at_the_third(run: Run) -> None:
        for update in run:
            if int(update.state.updates) == 3:
                before = len(run.replay)
                run.replay.add(**demo)
                assert len(run.replay) == before + 40
                if run.run_dir.name == "stopped":
                    break

    with birl.start(loop_config(tmp_path / "whole", 80), quiet=True) as run:
        add_at_the_third(run)
    with birl.start(loop_config(tmp_path / "stopped", 80), quiet=True) as run:
        add_at_the_third(run)
    birl.resume(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_only_some_algorithms_have_a_replay_to_add_to(tmp_path):
    with birl.start("a2c", "CartPole-v1", total_steps=40, run_dir=tmp_path / "run", quiet=True) as run:
        with pytest.raises(RuntimeError, match="no replay before the first update"):
            _ = run.replay
        for _ in run:
            with pytest.raises(ConfigError, match="a2c has no replay to add transitions to; use dqn, ddpg, td3, sac"):
                _ = run.replay
            break


def test_a_file_that_does_not_fit_leaves_no_run_behind(tmp_path):
    write_cartpole(tmp_path / "demo.npz")
    words = ["--run-dir", tmp_path / "run", "--total-steps", 2000, "--prefill", tmp_path / "demo.npz"]
    code, said = call("train", "dqn", "MountainCar-v0", *words)
    assert code != 0
    assert "observations has shape (300, 4)" in " ".join(said.split())
    assert not (tmp_path / "run").exists()


def test_algorithms_without_a_replay_have_no_such_option():
    code, said = call("train", "ppo", "CartPole-v1", "--prefill", "demo.npz")
    assert code != 0
    assert "--prefill" in said


def test_someone_elses_run_reads_no_file_without_consent(tmp_path, monkeypatch):
    write_cartpole(tmp_path / "demo.npz")
    call_well("train", "dqn", "CartPole-v1", "--run-dir", tmp_path / "run", *SMALL, "--prefill", tmp_path / "demo.npz")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "data-of-another"))
    with pytest.raises(ConfigError, match=r"was not made here.* prefill '.*demo\.npz' would read that file"):
        birl.resume(tmp_path / "run")
    birl.resume(tmp_path / "run", trust=True)
