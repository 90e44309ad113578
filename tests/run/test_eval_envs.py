"""Evaluations on environments that were passed in as eval_envs=."""

import shutil
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import birl
from birl.config import ConfigError, EnvConfig
from birl.envs.make import as_envs, make_envs
from birl.envs.serial import SerialEnvs
from birl.run.checkpoint import checkpoints_in
from birl.run.evaluating import Evaluation, evaluate_policy
from tests.envs.counting import Counting
from tests.run.test_evaluate import untrained

SETTINGS = {"rollout_length": 16, "minibatches": 1, "epochs": 1, "hidden_sizes": (8,), "eval_episodes": 5}


class Idle(Counting):
    """Ignores actions, and ends after `limit` steps; never if that is 0."""

    def step(self, action):
        observation, _, _, _, info = super().step(0)
        self.needs_reset = self.steps == self.limit
        return observation, 1.0 + 100 * self.name, self.needs_reset, False, info


def idle(*limits: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Idle, index, limit=limit) for index, limit in enumerate(limits)])


def evaluate(vector_env: gym.vector.VectorEnv, episodes: int, max_steps: int | None = None) -> Evaluation:
    env = EnvConfig("handed-in")
    policy = untrained("tests.envs.own:OwnCounting-v0")
    return evaluate_policy(policy, env, episodes, 0, max_steps=max_steps, envs=as_envs(vector_env, env))


@pytest.mark.parametrize(
    ("limits", "episodes", "lengths"),
    [
        ((3,), 2, [3, 3]),
        ((3, 9), 5, [3, 3, 3, 9, 9]),
        ((3, 4, 5), 2, [3, 4]),  # more environments than episodes
    ],
)
def test_episodes_are_shared_out_among_any_number_of_environments(limits, episodes, lengths):
    evaluation = evaluate(idle(*limits), episodes)
    assert evaluation.lengths.tolist() == lengths
    assert not evaluation.cut.any()


@pytest.mark.parametrize(
    ("limits", "episodes", "lengths", "cut"),
    [
        ((0,), 3, [4, 4, 4], [1, 1, 1]),  # never ends
        ((3, 0), 4, [3, 3, 4, 4], [0, 0, 1, 1]),
        ((6, 4), 4, [4, 4, 4, 4], [1, 1, 0, 0]),  # an episode that ends in its last allowed step is whole
    ],
)
def test_an_episode_is_cut_by_counting_and_its_rest_does_not_count(limits, episodes, lengths, cut):
    evaluation = evaluate(idle(*limits), episodes, max_steps=4)
    assert evaluation.lengths.tolist() == lengths
    assert evaluation.cut.tolist() == [bool(each) for each in cut]
    assert evaluation.returns.tolist()[0] == lengths[0]


def test_the_same_policy_has_the_score_that_it_has_on_environments_of_its_own():
    policy = untrained("CartPole-v1")
    with make_envs(EnvConfig("CartPole-v1", 3, wrappers=("tests.envs.own:Scaled",)), 0) as envs:  # type: ignore[arg-type]
        passed_in = evaluate_policy(policy, EnvConfig("handed-in"), 3, seed=4, envs=envs)
    made = evaluate_policy(policy, EnvConfig("CartPole-v1"), 3, seed=4)
    assert passed_in.lengths.tolist() == made.lengths.tolist()


def vector_env(num_envs: int = 2) -> gym.vector.VectorEnv:
    return gym.make_vec("CartPole-v1", num_envs, "sync")


def test_a_run_on_envs_that_were_passed_in_is_evaluated_has_a_best_checkpoint_and_is_resumed(tmp_path: Path):
    words = SETTINGS | {"total_steps": 160, "eval_every": 64, "checkpoint_every": 32, "run_dir": str(tmp_path / "run")}
    envs, eval_envs = vector_env(), vector_env(3)
    summary = birl.train("ppo", envs=envs, eval_envs=eval_envs, quiet=True, **words)
    assert summary["evaluation"]["episodes"] == 5
    assert (tmp_path / "run" / "checkpoints" / "best.json").exists()
    policy = birl.load(tmp_path / "run")
    assert policy.act(eval_envs.reset(seed=0)[0])[0].shape == (3,)  # they were left open
    shutil.rmtree(checkpoints_in(tmp_path / "run" / "checkpoints")[-1])
    again = birl.resume(tmp_path / "run", envs=vector_env(), eval_envs=vector_env(3), quiet=True)
    assert again["evaluation"]["episodes"] == 5
    with pytest.raises(ConfigError, match=r"env.id 'handed-in': this run was trained on environments that were passed"):
        birl.evaluate(tmp_path / "run")


def test_eval_envs_that_cannot_be_used_are_refused_before_training(tmp_path: Path):
    envs = vector_env()
    train = partial(birl.train, "ppo", envs=envs, total_steps=32, run_dir=str(tmp_path / "run"), quiet=True, **SETTINGS)
    with pytest.raises(ConfigError, match="eval_envs are the same as envs; make others"):
        train(eval_envs=envs)
    with pytest.raises(ConfigError, match=r"eval_envs .* have spaces .*Discrete\(3\).*, and the policy is for .*"):
        train(eval_envs=idle(3))
    with pytest.raises(ConfigError, match=r"is a single environment; pass one, such as gymnasium.vector.SyncVectorEnv"):
        train(eval_envs=gym.make("CartPole-v1"))
    summary = train(eval_envs=SerialEnvs([partial(gym.make, "CartPole-v1")]))
    assert np.isfinite(summary["evaluation"]["return_mean"])
