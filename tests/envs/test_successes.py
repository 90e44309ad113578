"""Whether episodes succeeded: info["is_success"] at their end, wherever environments run."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import birl
from birl.algos import a2c, a3c, ppo
from birl.config import EnvConfig, RunConfig
from birl.envs.make import make_envs
from birl.envs.serial import SerialEnvs
from birl.envs.vector import VectorAdapter
from birl.errors import EnvError
from birl.registry import algorithm_named, name_of
from birl.rollouts.episode_stats import EpisodeStats
from birl.run.policy import make_policy
from birl.types import NOT_SAID, Rollout, Snapshot
from tests.envs.succeeding import Succeeding
from tests.run.processes import call, metric_rows

ID = "tests.envs.succeeding:Succeeding-v0"
ACTIONS = [[0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0]]
# Episodes end at steps 2 and 6; the row after an end is the reset.
EXPECTED = [None, None, [1, 0, 1], None, None, None, [1, 1, 1], None]


def said_by(envs) -> list[list[int] | None]:
    with envs:
        envs.reset(0)
        steps = [envs.step(np.array(actions)) for actions in ACTIONS]
    return [None if step.successes is None else step.successes.tolist() for step in steps]


def vector(mode: AutoresetMode) -> VectorAdapter:
    return VectorAdapter(SyncVectorEnv([Succeeding] * 3, autoreset_mode=mode))


WAYS = {
    "here": lambda: SerialEnvs([Succeeding] * 3),
    "two workers": lambda: make_envs(EnvConfig(ID, 3, workers=2), 0),
    "next step": lambda: vector(AutoresetMode.NEXT_STEP),
    "same step": lambda: vector(AutoresetMode.SAME_STEP),
    "disabled": lambda: vector(AutoresetMode.DISABLED),
}


@pytest.mark.parametrize("way", WAYS)
def test_only_what_is_said_at_the_end_of_an_episode_counts(way):
    assert said_by(WAYS[way]()) == EXPECTED


def test_some_may_say_and_others_not():
    mixed = [Succeeding, lambda: Succeeding(says=False), Succeeding]
    expected = [row and [row[0], NOT_SAID, row[2]] for row in EXPECTED]
    assert said_by(SerialEnvs(mixed)) == expected
    for mode in AutoresetMode:
        assert said_by(VectorAdapter(SyncVectorEnv(mixed, autoreset_mode=mode))) == expected


def test_none_says_nothing_and_what_is_neither_true_nor_false_is_refused():
    class Odd(Succeeding):
        given = None

        def step(self, action):
            *rest, info = super().step(action)
            return *rest, info | {"is_success": self.given}

    assert said_by(SerialEnvs([Odd] * 3)) == [None] * 8
    Odd.given = "yes"
    with pytest.raises(EnvError, match="environment 0 returned 'yes' as is_success; return True or False"):
        said_by(SerialEnvs([Odd] * 3))


# Statistics


def rollout_of(successes) -> Rollout:
    ended = np.ones((3, 2), bool)
    zeros = np.zeros((3, 2), np.float32)
    return Rollout(np.zeros((4, 2)), zeros, zeros, ended, ~ended, ended, (), successes=successes)


def test_statistics_are_over_the_episodes_that_say():
    stats = EpisodeStats(2)
    assert np.isnan(stats.metrics()["episode/success"])
    stats.count(rollout_of(np.array([[1, NOT_SAID], [0, NOT_SAID], [1, NOT_SAID]], np.int8)))
    assert stats.metrics()["episode/success"] == pytest.approx(2 / 3)
    assert stats.metrics()["episode/count"] == 6
    restored = EpisodeStats(2)
    restored.restore(Snapshot(stats.arrays(), stats.values()))
    assert restored.metrics() == stats.metrics()


def test_a_snapshot_of_an_older_version_has_no_successes():
    stats = EpisodeStats(2)
    stats.count(rollout_of(None))
    assert "successes" not in stats.values()
    restored = EpisodeStats(2)
    restored.restore(Snapshot(stats.arrays(), stats.values()))
    assert np.isnan(restored.metrics()["episode/success"])


def test_rollouts_of_actors_of_which_one_says_nothing_are_joined():
    pytest.importorskip("ray")
    from birl.rollouts.ray_rollouts import joined

    said = np.array([[1, 0]] * 3, np.int8)
    parts = [rollout_of(given)._replace(resets=np.zeros(2, bool)) for given in (said, None)]
    assert joined(parts).successes.tolist() == [[1, 0, NOT_SAID, NOT_SAID]] * 3
    assert joined([parts[1], parts[1]]).successes is None


# Whole runs

SMALL = {"rollout_length": 8, "hidden_sizes": (4,)}


def metrics_of(config) -> list[dict]:
    return [update.metrics for update in algorithm_named(name_of(config)).train(config)]


@pytest.mark.parametrize("workers", [0, 2])
def test_training_reports_the_share_of_successes_only_if_the_environment_says(workers):
    run = RunConfig(total_steps=60)
    says = metrics_of(a2c.Config(EnvConfig(ID, 2, workers=workers), run, **SMALL))
    assert all(0 <= row["episode/success"] <= 1 for row in says)
    silent = metrics_of(a2c.Config(EnvConfig(ID, 2, kwargs={"says": False}), run, **SMALL))
    assert not any("episode/success" in row for row in silent)
    assert {name: row for name, row in says[0].items() if "time" not in name and "success" not in name} == {
        name: row for name, row in silent[0].items() if "time" not in name
    }


@pytest.mark.parametrize("says", [True, False])
def test_actor_learners_report_it_too(says):
    env = EnvConfig(ID, 1, kwargs={"says": says})
    config = a3c.Config(env, RunConfig(total_steps=200), pool="serial", actor_learners=2, report_every=50, **SMALL)
    assert all(("episode/success" in row) == says for row in metrics_of(config))


def test_a_run_is_logged_evaluated_resumed_and_scored_with_its_successes(tmp_path):
    run = RunConfig(
        total_steps=96,
        run_dir=str(tmp_path / "whole"),
        eval_every=48,
        eval_episodes=4,
    )
    config = ppo.Config(EnvConfig(ID, 2), run, epochs=1, minibatches=1, **SMALL)
    summary = birl.train(config, quiet=True)
    assert summary["evaluation"]["success_mean"] in (0.0, 1.0)  # it acts the same in all episodes
    rows = metric_rows(tmp_path / "whole")
    assert any("episode/success" in row for row in rows)
    assert any("eval/success_mean" in row for row in rows)
    birl.train(config, quiet=True, run_dir=str(tmp_path / "parts"), total_steps=48)
    birl.resume(tmp_path / "parts", total_steps=96, quiet=True)
    last, same = (
        [row["episode/success"] for row in metric_rows(tmp_path / name) if "episode/success" in row][-1]
        for name in ("whole", "parts")
    )
    assert last == same
    code, said = call("eval", tmp_path / "whole", "--episodes", "4")
    assert code == 0, said
    assert "success rate" in said


def test_an_evaluation_has_the_success_of_each_episode():
    config = ppo.Config(EnvConfig(ID, 2), hidden_sizes=(4,))
    spaces = Succeeding.observation_space, Succeeding.action_space
    policy = make_policy(config, ppo.init(config, *spaces), *spaces)
    sampled = birl.evaluate(policy, 40, deterministic=False)
    assert sampled.successes.shape == (40,)
    assert set(sampled.successes) == {0.0, 1.0}
    assert sampled.metrics()["eval/success_mean"] == sampled.successes.mean()
    assert f"success {sampled.successes.mean():.4g}" in repr(sampled)
    both = birl.evaluate(policy, 3, seed=[1, 2], deterministic=False)
    assert both.successes.shape == (6,)
    silent = birl.evaluate(policy, 4, env=EnvConfig(ID, kwargs={"says": False}))
    assert len(silent.successes) == 0
    assert "eval/success_mean" not in silent.metrics()


def test_the_environment_is_registered():
    assert gym.make(ID).reset()[0].shape == (1,)
