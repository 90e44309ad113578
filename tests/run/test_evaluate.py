"""An evaluation plays whole episodes, divides them equally, and is reproducible."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

import birl
from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import make_env, make_envs
from birl.envs.spaces import GAME_OVER, HAS_LIVES, derived_seeds
from birl.run import checkpoint
from birl.run.console import number
from birl.run.evaluating import Evaluation, evaluate_policy, with_limit
from birl.run.loading import find_checkpoint
from birl.run.policy import Policy, make_policy
from birl.run.record import _episode
from birl.run.start import train
from birl.types import Step
from tests.run.processes import assert_same_run, call, call_well, metric_rows

ENDLESS = "tests.run.test_evaluate:Endless-v0"
LENGTHS = (1, 50)  # of an episode of Lottery


class Lottery(gym.Env):
    """Each episode is short or long at random, with reward 1 per step."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.choice(LENGTHS))
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


class Choice(Lottery):
    """One step; the reward is the action."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), float(action), True, False, {}


class Lives(Choice):
    """A game of three lives of one step each; the reward is the action."""

    metadata: ClassVar[dict[str, Any]] = {HAS_LIVES: True}
    lives = 3

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        begins = self.lives == 0 or seed is not None
        self.lives = 3 if begins else self.lives
        return super().reset(seed=seed)[0], {GAME_OVER: begins}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.lives -= 1
        return *super().step(action)[:4], {GAME_OVER: self.lives == 0}


class Fragile(Lottery):
    """Ten steps, reward 1 each; its process is killed at its 16th step, in its second episode."""

    steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        start = super().reset(seed=seed)
        self.left = 10
        return start

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 16:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Scripted:
    """One environment with CartPole's spaces that follows a script.

    "s" is a step of reward 10, "l" also loses a life and "g" the game; "r" is a reset to the next
    life, "n" one to a new game.
    """

    num_envs = 1

    def __init__(self, script: str) -> None:
        self.script = iter(script)

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def reset(self, seed: int) -> tuple[np.ndarray, None]:
        return np.zeros((1, 4), np.float32), None

    def step(self, actions: np.ndarray) -> Step:
        happened = next(self.script)
        observations, valid = self.reset(0)[0], np.array([happened in "slg"])
        ended, over = np.array([happened in "lg"]), np.array([happened in "gn"])
        return Step(observations, 10.0 * valid, ended, np.zeros(1, bool), valid, None, over)


class Endless(Lottery):
    """Never ends; reward 1 per step."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


gym.register("Endless-v0", entry_point=Endless)
gym.register("Fragile-v0", entry_point=Fragile)
gym.register("Lives-v0", entry_point=Lives)
gym.register("Lottery-v0", entry_point=Lottery)
gym.register("Choice-v0", entry_point=Choice)


@contextlib.contextmanager
def sent_in_an_evaluation(number: int) -> Iterator[None]:
    """Send a signal at the 80th action of the next evaluation."""
    act_batch, calls = Policy.act_batch, itertools.count(1)

    def acting(*inputs: Any) -> Any:
        if next(calls) == 80:
            os.kill(os.getpid(), number)
        return act_batch(*inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "act_batch", acting)
        yield


def untrained(env_id: str, **settings: Any) -> Policy:
    with make_envs(EnvConfig(env_id, num_envs=1), 0) as envs:
        spaces = envs.observation_space, envs.action_space
    config = ppo.Config(EnvConfig(env_id), hidden_sizes=(8,), **settings)
    return make_policy(config, ppo.init(config, *spaces), *spaces)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on CartPole in which evaluations chose a best checkpoint."""
    path = tmp_path_factory.mktemp("evaluate") / "run"
    settings = RunConfig(
        total_steps=6000,
        eval_every=1000,
        eval_episodes=5,
        checkpoint_every=500,
        keep_checkpoints=100,
        run_dir=str(path),
        seed=3,
    )
    train(
        ppo.Config(
            EnvConfig("CartPole-v1"), settings, rollout_length=32, epochs=4, learning_rate=3e-3, hidden_sizes=(32,)
        )
    )
    return path


@pytest.mark.parametrize("episodes", [1, 3, 20, 47])
def test_an_environment_that_pays_5_each_time_is_scored_5(episodes):
    """ProbeTruncation has 5 steps of reward 1; the step that resets it does not count."""
    evaluation = evaluate_policy(
        untrained("birl/ProbeTruncation-v0"), EnvConfig("birl/ProbeTruncation-v0"), episodes, 0
    )
    assert evaluation.returns.tolist() == [5.0] * episodes
    assert evaluation.lengths.tolist() == [5] * episodes


def test_each_environment_plays_its_share_so_that_short_episodes_are_not_favoured():
    """Of 20 environments, the first 30 episodes to end would nearly all be short ones."""
    evaluation = evaluate_policy(untrained("Lottery-v0"), EnvConfig("Lottery-v0"), 30, seed=7)
    expected = []
    for index, seed in enumerate(derived_seeds(derived_seeds([7, 0xE7A1], 2)[0], 20)):
        env = Lottery()
        env.reset(seed=seed)
        expected.append(env.left)
        if index < 10:
            env.reset()
            expected.append(env.left)
    assert evaluation.lengths.tolist() == expected
    assert evaluation.returns.tolist() == expected
    assert 15 < evaluation.returns.mean() < 36, "a coin's mean is 25.5; the first to finish have less than 10"


def test_where_an_episode_is_a_life_whole_games_are_scored_and_filmed():
    policy = untrained("Lives-v0")
    evaluation = evaluate_policy(policy, EnvConfig("Lives-v0"), 45, seed=0)
    assert evaluation.lengths.tolist() == [3] * 45
    assert set(evaluation.returns.tolist()) <= {0.0, 3.0}  # the most likely action three times
    with make_env(EnvConfig("Lives-v0")) as env:
        assert len(list(_episode(env, policy, seed=0, deterministic=True))) == 3


def test_an_episode_that_was_lost_with_its_worker_counts_for_nothing():
    """Each environment's second episode is dropped after five steps, which count nowhere."""
    name = "tests.run.test_evaluate:Fragile-v0"
    with pytest.warns(UserWarning, match="new process"):
        evaluation = evaluate_policy(untrained(name), EnvConfig(name, workers=1), 40, seed=0)
    assert evaluation.returns.tolist() == [10.0] * 40
    assert evaluation.lengths.tolist() == [10] * 40


@pytest.mark.parametrize(("script", "length"), [("slrsslrsg", 7), ("slrsnslrsg", 4), ("snsg", 2), ("slrslnsg", 4)])
def test_a_game_ends_with_its_last_life_or_while_the_next_is_waited_for_but_not_with_its_worker(
    script, length, monkeypatch
):
    monkeypatch.setattr("birl.run.evaluating.make_envs", lambda config, seed: Scripted(script))
    evaluation = evaluate_policy(untrained("CartPole-v1"), EnvConfig("CartPole-v1"), 1, seed=0)
    assert (evaluation.returns.tolist(), evaluation.lengths.tolist()) == ([10.0 * length], [length])


def test_the_same_seed_gives_the_same_episodes_and_another_gives_others():
    policy = untrained("CartPole-v1")  # a trained one may reach the end of every episode
    first, again, other = (
        evaluate_policy(policy, EnvConfig("CartPole-v1"), 20, seed, deterministic=True) for seed in (1, 1, 2)
    )
    assert first.returns.tolist() == again.returns.tolist()
    assert first.returns.tolist() != other.returns.tolist()


def test_the_most_likely_action_is_taken_always_and_a_sample_only_sometimes():
    policy = untrained("Choice-v0")
    best = evaluate_policy(policy, EnvConfig("Choice-v0"), 200, 0, deterministic=True).returns
    sampled = [
        evaluate_policy(policy, EnvConfig("Choice-v0"), 200, seed, deterministic=False).returns for seed in (0, 0, 1)
    ]
    assert len(set(best.tolist())) == 1
    assert 60 < sampled[0].sum() < 140, "an untrained policy tosses a coin, 200 times"
    assert sampled[0].tolist() == sampled[1].tolist()
    assert sampled[0].tolist() != sampled[2].tolist()


def test_metrics_are_those_of_the_returns():
    metrics = Evaluation(np.array([1.0, 3.0]), np.array([10, 20])).metrics()
    assert metrics == {"eval/return_mean": 2.0, "eval/return_std": 1.0, "eval/length_mean": 15.0, "eval/episodes": 2}


def test_the_best_checkpoint_is_the_one_that_is_loaded_and_it_scores_what_it_is_said_to(run):
    best = checkpoint.read_best(run / "checkpoints")
    assert best is not None
    assert find_checkpoint(run).path.name == best["checkpoint"]
    assert birl.evaluate(run, episodes=5, seed=3).returns.mean() == best["return_mean"]


def test_another_checkpoint_can_be_named(run):
    first = checkpoint.checkpoints_in(run / "checkpoints")[0]
    assert find_checkpoint(first).path == first
    assert (
        birl.evaluate(first, episodes=5, seed=3).returns.mean() < birl.evaluate(run, episodes=5, seed=3).returns.mean()
    )


def test_without_a_best_the_newest_is_loaded_and_damage_is_warned_of(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "checkpoints" / "best.json").unlink()
    *_, before, newest = checkpoint.checkpoints_in(copy / "checkpoints")
    assert find_checkpoint(copy).path == newest
    (newest / "spaces.json").write_text("{}")
    with pytest.warns(UserWarning, match="spaces.json is damaged"):
        assert find_checkpoint(copy).path == before


def test_the_command_prints_the_score(run):
    said = call_well("eval", run, "--episodes", 5, "--seed", 3)
    returns = birl.evaluate(run, episodes=5, seed=3).returns
    mean, deviation, least, most = (
        number(float(value)) for value in (returns.mean(), returns.std(), returns.min(), returns.max())
    )
    assert f"return {mean} +/- {deviation} over 5 episodes (min {least}, max {most})" in said


def test_an_environment_can_be_given_other_keyword_arguments(run, tmp_path):
    words = ("--episodes", 2, "--kwargs", "sutton_barto_reward", "True")  # -1 when the pole falls, else 0
    assert re.search(r"max (0|-1)\)", call_well("eval", run, *words))
    birl.load(run).save(tmp_path / "policy.birl")
    said = call_well("eval", tmp_path / "policy.birl", "--env", "CartPole-v1", *words)
    assert re.search(r"max (0|-1)\)", said)
    code, said = call("eval", run, "--kwargs", "gravitation", "9.8")
    assert (code, "env.kwargs {'gravitation': 9.8} do not fit env.id 'CartPole-v1'" in said) == (2, True)


@pytest.mark.parametrize(("settings", "message"), [({"episodes": 0}, "episodes 0"), ({"seed": -1}, "seed -1")])
def test_what_cannot_be_played_is_refused(settings, message, run):
    with pytest.raises(ConfigError, match=message):
        birl.evaluate(run, **settings)


@pytest.mark.parametrize("elsewhere", [{"workers": 2}, {"ray_actors": 2}])
def test_a_few_episodes_need_no_more_workers_or_actors_than_environments(elsewhere):
    config = EnvConfig("birl/ProbeTruncation-v0", num_envs=4, **elsewhere)
    assert evaluate_policy(untrained("birl/ProbeTruncation-v0"), config, 1, 0).returns.tolist() == [5.0]


@pytest.mark.parametrize(
    ("env", "max_steps", "limit"),
    [
        (EnvConfig("CliffWalking-v1"), None, 10_000),
        (EnvConfig("CliffWalking-v1"), 50, 50),
        (EnvConfig("CliffWalking-v1", max_episode_steps=100), None, None),
        (EnvConfig("CartPole-v1"), None, None),
        (EnvConfig("CartPole-v1"), 1000, None),
        (EnvConfig("CartPole-v1"), 20, 20),
        (EnvConfig("ALE/Pong-v5"), None, None),
        (EnvConfig("ALE/Pong-v5"), 20, 20),
        (EnvConfig("CartPole-v1", backend="envpool"), None, None),
        (EnvConfig("CartPole-v1", backend="envpool"), 20, 20),
        (EnvConfig("TicTacToe-v1", backend="envpool"), None, 10_000),
    ],
)
def test_an_environments_own_limit_stands_unless_a_shorter_one_is_asked_for(env, max_steps, limit):
    limited, said = with_limit(env, max_steps)
    assert said == limit
    assert limited == (env if limit is None else dataclasses.replace(env, max_episode_steps=limit))


@pytest.mark.parametrize("workers", [0, 1])
def test_episodes_that_do_not_end_are_cut_and_counted(workers):
    evaluation = evaluate_policy(untrained(ENDLESS), EnvConfig(ENDLESS, workers=workers), 30, seed=0, max_steps=12)
    assert evaluation.lengths.tolist() == [12] * 30
    assert evaluation.cut_notice() == "30 of 30 episodes did not end, and were cut after 12 steps"
    assert evaluation.summary(deterministic=True)["cut"] == 30


def test_an_episode_that_the_environment_ends_is_not_said_to_be_cut():
    evaluation = evaluate_policy(
        untrained("birl/ProbeTruncation-v0"), EnvConfig("birl/ProbeTruncation-v0"), 3, 0, max_steps=6
    )
    assert evaluation.cut_notice() == ""
    evaluation = evaluate_policy(untrained("Lottery-v0"), EnvConfig("Lottery-v0"), 40, 7, max_steps=30)
    assert sorted(set(evaluation.lengths.tolist())) == [1, 30]
    assert evaluation.cut.tolist() == [length == 30 for length in evaluation.lengths]


def test_training_says_how_many_episodes_of_an_evaluation_were_cut(tmp_path):
    settings = [
        "--total-steps",
        64,
        "--rollout-length",
        32,
        "--num-envs",
        1,
        "--eval-episodes",
        3,
        "--eval-max-steps",
        40,
    ]
    said = call_well("train", "ppo", ENDLESS, *settings, "--run-dir", tmp_path / "run")
    assert "3 of 3 episodes did not end, and were cut after 40 steps; eval_max_steps sets the limit" in said
    said = call_well("eval", tmp_path / "run", "--episodes", 2)
    assert "2 of 2 episodes did not end, and were cut after 40 steps" in said, "the run's own limit"
    assert "cut after 7 steps; --max-steps sets" in call_well(
        "eval", tmp_path / "run", "--episodes", 2, "--max-steps", 7
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_an_evaluation_saves_and_the_resumed_run_evaluates_there_again(number, tmp_path):
    settings = [
        "--total-steps",
        96,
        "--rollout-length",
        32,
        "--num-envs",
        1,
        "--eval-episodes",
        3,
        "--eval-max-steps",
        200,
    ]
    train_words = [
        "train",
        "ppo",
        ENDLESS,
        *settings,
        "--minibatches",
        1,
        "--eval-every",
        64,
        "--max-episode-steps",
        90,
    ]
    call_well(*train_words, "--run-dir", tmp_path / "whole")
    with sent_in_an_evaluation(number):
        code, said = call(*train_words, "--run-dir", tmp_path / "run")
    assert code == 128 + number
    assert f"{signal.Signals(number).name}: saved at 64 steps; continue with: birl resume {tmp_path / 'run'}" in said
    call_well("resume", tmp_path / "run")
    assert metric_rows(tmp_path / "run") == metric_rows(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert checkpoint.read_best(tmp_path / "run" / "checkpoints") == checkpoint.read_best(
        tmp_path / "whole" / "checkpoints"
    )


def test_a_signal_in_the_last_evaluation_leaves_a_run_that_is_resumed_to_its_score(tmp_path):
    settings = [
        "--total-steps",
        64,
        "--rollout-length",
        32,
        "--num-envs",
        1,
        "--minibatches",
        1,
        "--eval-max-steps",
        200,
    ]
    with sent_in_an_evaluation(signal.SIGINT):
        code, said = call("train", "ppo", ENDLESS, *settings, "--run-dir", tmp_path / "run")
    assert (code, "SIGINT: saved at 64 steps" in said) == (130, True)
    with sent_in_an_evaluation(signal.SIGINT):
        code, said = call("resume", tmp_path / "run")
    assert (code, "SIGINT: saved at 64 steps" in said) == (130, True), "and again, from its only checkpoint"
    call_well("resume", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]["return_mean"] == 200.0


def test_an_evaluation_is_shown_by_its_mean_and_spread():
    assert (
        repr(Evaluation(np.array([1.0, 0.91]), np.array([10, 20])))
        == "Evaluation(return 0.955 +/- 0.045, length 15, 2 episodes)"
    )


def test_any_number_of_episodes_may_be_asked_for_and_takes_no_memory_before_they_are_played():
    """A stranger's run may ask for as many in its settings."""

    def stop(*_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        evaluate_policy(untrained("CartPole-v1"), EnvConfig("CartPole-v1"), 1 << 50, 0, watch=stop)
