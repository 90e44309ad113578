"""The console reports the size of the replay once."""

import re

import pytest

from birl.algos import dqn, ppo
from birl.config import EnvConfig, RunConfig
from birl.run.console import memory_size
from birl.run.start import resume, train

ENV = EnvConfig("CartPole-v1", num_envs=2)


def config(run_dir, total_steps: int) -> dqn.Config:
    run = RunConfig(total_steps=total_steps, run_dir=str(run_dir), eval_episodes=1, log_every=1000)
    return dqn.Config(ENV, run, replay_size=20_000, learning_starts=16, batch_size=4, hidden_sizes=(8,))


def test_a_run_with_a_replay_says_once_how_large_it_is_and_a_resumed_one_again(tmp_path, capsys):
    train(config(tmp_path / "run", 60))
    # 2,502 rollouts of 8 steps of 28 bytes: observation 16, action and reward 4 each, four flags.
    assert re.findall(r"^replay: .*", capsys.readouterr().out, re.MULTILINE) == ["replay: 20,000 transitions, 560.4 kB"]
    resume(tmp_path / "run", total_steps=80)
    assert capsys.readouterr().out.count("replay: 20,000 transitions, 560.4 kB") == 1


def test_a_run_without_a_replay_does_not_speak_of_one(tmp_path, capsys):
    run = RunConfig(total_steps=16, run_dir=str(tmp_path / "run"), eval_episodes=1)
    train(ppo.Config(ENV, run, rollout_length=8, minibatches=1, epochs=1, hidden_sizes=(8,)))
    assert "replay:" not in capsys.readouterr().out


SIZES = {"40.0 kB": 40_000, "3.4 MB": 3_400_000, "999.0 MB": 999_000_000, "28.2 GB": 28_240_000_000}


@pytest.mark.parametrize(("text", "size"), SIZES.items(), ids=SIZES)
def test_bytes_are_told_in_a_unit_that_is_easy_to_read(text, size):
    assert memory_size(size) == text
