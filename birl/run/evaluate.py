"""Evaluation of a policy: whole episodes, or whole games where an episode is one life."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birl.config import EnvConfig, require
from birl.envs.make import episode_limit, make_envs
from birl.envs.spaces import derived_seeds
from birl.errors import NonFiniteError
from birl.run.policy import Policy, config_of, find_checkpoint, policy_of
from birl.types import Metrics

PASSED_IN = "handed-in"  # the env.id of a run on environments that were passed to `train`
MOST_ENVS = 20  # environments stepped together
MOST_STEPS = 10_000  # in an episode, where neither the environment nor the settings have a limit

# Called after each step with the number of finished episodes and the length of the longest other.
Watch = Callable[[int, int], None]


class Evaluation(NamedTuple):
    """Returns and lengths of episodes, complete unless the evaluation's limit cut them."""

    returns: np.ndarray
    lengths: np.ndarray
    cut: np.ndarray | tuple[()] = ()  # true where the evaluation's step limit ended the episode

    def __repr__(self) -> str:
        metrics = self.metrics()
        mean, deviation = metrics["eval/return_mean"], metrics["eval/return_std"]
        length = metrics["eval/length_mean"]
        return f"Evaluation(return {mean:.4g} +/- {deviation:.4g}, length {length:.4g}, {len(self.returns)} episodes)"

    def cut_notice(self) -> str:
        """A sentence about the episodes that were cut; "" if none was."""
        count = int(np.count_nonzero(self.cut))
        if count == 0:
            return ""
        longest = self.lengths[self.cut].max()
        return f"{count} of {len(self.returns)} episodes did not end, and were cut after {longest:,} steps"

    def metrics(self) -> Metrics:
        return {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/length_mean": float(self.lengths.mean()),
            "eval/episodes": len(self.returns),
        }

    def summary(self, deterministic: bool) -> dict[str, Any]:
        """The evaluation's part of summary.json."""
        metrics = {name.removeprefix("eval/"): value for name, value in self.metrics().items()}
        return metrics | {
            "cut": int(np.count_nonzero(self.cut)),
            "deterministic": deterministic,
            "returns": self.returns.tolist(),
        }


def evaluate(
    path: str | Path,
    episodes: int = 20,
    seed: int = 0,
    deterministic: bool = True,
    make_network: Any = None,
    max_steps: int | None = None,  # None: the run's eval_max_steps
    trust: bool = False,
    env: str | None = None,
) -> Evaluation:
    """Play whole episodes with the policy of a run or of one checkpoint.

    A run that was made elsewhere or by someone else may import the module of its env.id only with
    `trust`. Or name the environment yourself: `env` replaces the run's id.
    """
    saved = find_checkpoint(Path(path))
    config = config_of(saved, trust, env)
    most = config.run.eval_max_steps if max_steps is None else max_steps
    return evaluate_policy(policy_of(saved, make_network, trust), config.env, episodes, seed, deterministic, most)


def with_limit(env: EnvConfig, max_steps: int | None) -> tuple[EnvConfig, int | None]:
    """Settings whose episodes are cut after `max_steps`, and that limit; None if theirs is lower.

    Without `max_steps`, environments keep their own limit. If they have none it is MOST_STEPS, so
    that every evaluation ends.
    """
    require(max_steps is None or max_steps > 0, f"max_steps {max_steps} must be at least 1")
    own = episode_limit(env)
    limit = max_steps or MOST_STEPS
    if own is not None and (max_steps is None or own <= limit):
        return env, None
    return dataclasses.replace(env, max_episode_steps=limit), limit


def evaluate_policy(
    policy: Policy,
    env: EnvConfig,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    max_steps: int | None = None,  # see with_limit
    watch: Watch = lambda ended, steps: None,
) -> Evaluation:
    """The returns of this many episodes, divided equally among the environments.

    Taking the first episodes to end would favour short ones.
    """
    wrong = f"env.id {env.id!r}: this run was trained on environments that were passed in, so Birl cannot make them"
    require(env.id != PASSED_IN, f"{wrong}; step them yourself with birl.load(...).act")
    require(episodes > 0, f"episodes {episodes} must be at least 1")
    require(seed >= 0, f"seed {seed} must be 0 or more")
    num_envs = min(episodes, MOST_ENVS)
    shares = np.array([len(part) for part in np.array_split(np.arange(episodes), num_envs)])
    env_seed, key_seed = derived_seeds([seed, 0xE7A1], 2)  # training uses other seeds
    env, limit = with_limit(env, max_steps)
    with make_envs(dataclasses.replace(env, num_envs=num_envs, workers=min(env.workers, num_envs)), env_seed) as envs:
        observations, masks = envs.reset(env_seed)
        memory = policy.initial_memory(num_envs)
        resets = np.ones(num_envs, bool)
        totals = np.zeros(num_envs)
        steps = np.zeros(num_envs, np.int64)
        ended = np.zeros(num_envs, bool)
        finished: list[list[tuple[float, int, bool]]] = [[] for _ in range(num_envs)]
        time = played = 0
        while played < episodes:
            key = None if deterministic else np.array([key_seed, time], np.uint32)
            actions, memory = policy.act_batch(observations, memory, resets, masks, key)
            step = envs.step(actions)
            observations, masks, resets = step.observations, step.action_masks, ~step.valid
            totals = totals + step.rewards
            steps = steps + step.valid
            time += 1
            for i in np.flatnonzero(~np.isfinite(totals)):
                raise NonFiniteError(
                    f"reward of environment {i} is {step.rewards[i]} at step {steps[i]} of an evaluation episode"
                )
            lost = resets & ~ended  # a reset without an end: the worker failed, and the episode is dropped
            totals[lost] = steps[lost] = 0
            ended = step.terminated | step.truncated
            # A game may also end during a reset between two lives; a new game has no steps yet.
            for i in np.flatnonzero(ended if step.game_over is None else step.game_over & (steps > 0)):
                finished[i].append((float(totals[i]), int(steps[i]), bool(step.truncated[i] and steps[i] == limit)))
                totals[i] = steps[i] = 0
            played = sum(min(len(ends), share) for ends, share in zip(finished, shares, strict=True))
            watch(played, int(steps.max()))
    chosen = [end for ends, share in zip(finished, shares, strict=True) for end in ends[:share]]
    returns, lengths, cut = map(np.array, zip(*chosen, strict=True))
    return Evaluation(returns, lengths, cut)
