"""How good a policy is: whole episodes, and whole games where an episode is one life, in environments of their own."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birl.config import EnvConfig, from_json, require
from birl.envs.make import make_envs
from birl.envs.spaces import derived_seeds
from birl.errors import NonFiniteError
from birl.run.algorithms import algorithm_named
from birl.run.policy import Policy, find_checkpoint, policy_of
from birl.types import Metrics

HANDED_IN = "handed-in"  # the env.id of a run on environments that were not made from a config
MOST_ENVS = 20  # stepped together


class Evaluation(NamedTuple):
    """Returns and lengths of whole episodes."""

    returns: np.ndarray
    lengths: np.ndarray

    def metrics(self) -> Metrics:
        return {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/length_mean": float(self.lengths.mean()),
            "eval/episodes": len(self.returns),
        }

    def summary(self, deterministic: bool) -> dict[str, Any]:
        """For summary.json."""
        metrics = {name.removeprefix("eval/"): value for name, value in self.metrics().items()}
        return metrics | {"deterministic": deterministic, "returns": self.returns.tolist()}


def evaluate(path: str | Path, episodes: int = 20, seed: int = 0, deterministic: bool = True, make_network: Any = None) -> Evaluation:
    """Play whole episodes with the policy of a run or of a checkpoint."""
    saved = find_checkpoint(Path(path))
    config = from_json(algorithm_named(saved.manifest["algorithm"]).Config, saved.config)
    return evaluate_policy(policy_of(saved, make_network), config.env, episodes, seed, deterministic)


def evaluate_policy(policy: Policy, env: EnvConfig, episodes: int, seed: int, deterministic: bool = True) -> Evaluation:
    """Each environment plays its share of the episodes: taking the first to finish would favour short ones."""
    remedy = "step them yourself with birl.load(...).act"
    require(env.id != HANDED_IN, f"env.id {env.id!r}: this run was trained on environments that cannot be made again; {remedy}")
    require(episodes > 0, f"episodes {episodes} must be at least 1")
    require(seed >= 0, f"seed {seed} must be 0 or more")
    num_envs = min(episodes, MOST_ENVS)
    shares = np.array([len(part) for part in np.array_split(np.arange(episodes), num_envs)])
    env_seed, key_seed = derived_seeds([seed, 0xE7A1], 2)  # apart from every seed of training
    with make_envs(dataclasses.replace(env, num_envs=num_envs, workers=min(env.workers, num_envs)), env_seed) as envs:
        observations, masks = envs.reset(env_seed)
        memory, resets = policy.initial_memory(num_envs), np.zeros(num_envs, bool)
        totals, steps, ended = np.zeros(num_envs), np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
        finished: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]
        time = 0
        while any(len(done) < share for done, share in zip(finished, shares, strict=True)):
            key = None if deterministic else np.array([key_seed, time], np.uint32)
            actions, memory = policy.act_batch(observations, memory, resets, masks, key)
            step = envs.step(actions)
            observations, masks, resets = step.observations, step.action_masks, ~step.valid
            totals, steps, time = totals + step.rewards, steps + step.valid, time + 1
            for i in np.flatnonzero(~np.isfinite(totals)):
                raise NonFiniteError(f"reward of environment {i} is {step.rewards[i]} at step {steps[i]} of an evaluation episode")
            lost = resets & ~ended  # a reset without an end: the episode was lost, see envs/workers
            totals[lost] = steps[lost] = 0
            ended = step.terminated | step.truncated
            # A game may also end while its next life is waited for; where it begins there are no steps of it.
            for i in np.flatnonzero(ended if step.game_over is None else step.game_over & (steps > 0)):
                finished[i].append((float(totals[i]), int(steps[i])))
                totals[i] = steps[i] = 0
    chosen = [episode for episodes, share in zip(finished, shares, strict=True) for episode in episodes[:share]]
    returns, lengths = zip(*chosen, strict=True)
    return Evaluation(np.array(returns), np.array(lengths))
