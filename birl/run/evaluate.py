"""Evaluation of a policy: whole episodes, or whole games where an episode is one life."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from birl.config import EnvConfig, Plain, require
from birl.envs.make import episode_limit, make_envs, spare
from birl.envs.spaces import derived_seeds
from birl.errors import NonFiniteError, by_use
from birl.run.loading import load_to_play
from birl.run.policy import Policy
from birl.types import NOT_SAID, Envs, Metrics, PyTree

PASSED_IN = "handed-in"  # the env.id of a run on environments that were passed to `train`
MOST_ENVS = 20  # environments stepped together
MOST_STEPS = 10_000  # in an episode, where neither the environment nor the settings have a limit

# Called after each step with the number of finished episodes and the length of the longest other.
Watch = Callable[[int, int], None]


class Player(Protocol):
    """What plays episodes: a Policy, or something else that gives actions for observations."""

    @property
    def initial_memory(self) -> Callable[[int], PyTree]: ...

    def act_batch(
        self,
        observations: PyTree,
        memory: PyTree,
        resets: np.ndarray,
        action_masks: np.ndarray | None = None,
        key: np.ndarray | None = None,
    ) -> tuple[np.ndarray, PyTree]:
        """Actions [B, ...] for `Envs.step`, and the new memory."""


class Evaluation(NamedTuple):
    """Returns and lengths of episodes, complete unless the evaluation's limit cut them."""

    returns: np.ndarray
    lengths: np.ndarray
    cut: np.ndarray | tuple[()] = ()  # true where the evaluation's step limit ended the episode
    successes: np.ndarray | tuple[()] = ()  # info["is_success"] at the end: 1, 0, NaN if not said; () if never said

    def __repr__(self) -> str:
        metrics = self.metrics()
        mean, deviation = metrics["eval/return_mean"], metrics["eval/return_std"]
        length = metrics["eval/length_mean"]
        success = f", success {metrics['eval/success_mean']:.4g}" if len(self.successes) else ""
        counts = f"length {length:.4g}{success}, {len(self.returns)} episodes"
        return f"Evaluation(return {mean:.4g} +/- {deviation:.4g}, {counts})"

    def cut_notice(self) -> str:
        """A sentence about the episodes that were cut; "" if none was."""
        count = int(np.count_nonzero(self.cut))
        if count == 0:
            return ""
        longest = self.lengths[self.cut].max()
        return f"{count} of {len(self.returns)} episodes did not end, and were cut after {longest:,} steps"

    def metrics(self) -> Metrics:
        successes = {"eval/success_mean": float(np.nanmean(self.successes))} if len(self.successes) else {}
        return successes | {
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
    policy: Policy | str | Path,
    episodes: int = 20,
    seed: int | Iterable[int] = 0,
    deterministic: bool = True,
    make_network: Any = None,
    max_steps: int | None = None,  # None: the run's eval_max_steps
    trust: bool = False,
    env: str | EnvConfig | None = None,
    make_env: Any = None,
    make_encoder: Any = None,
    kwargs: dict[str, Plain] | None = None,
) -> Evaluation:
    """Play whole episodes with a policy, or with that of a policy file, a run or a checkpoint.

    `env` is another environment with the same spaces; an id takes the place of the run's, and
    `make_env` is a function that makes it. `kwargs` take the place of the run's. Functions of your
    script that the policy was trained with (`make_network`, `make_encoder`) must be passed again.
    With several seeds, this many episodes are played with each. A run that was made elsewhere or by
    someone else may import the module of its env.id only with `trust`, or if you name it as `env`.
    """
    player, env = load_to_play(policy, env, trust, make_network, make_encoder, kwargs, make_env)
    most = player.config.run.eval_max_steps if max_steps is None else max_steps
    seeds = list(seed) if isinstance(seed, Iterable) else [seed]
    require(len(seeds) > 0, "seed must be a number or several, not none")
    return merged([evaluate_policy(player, env, episodes, each, deterministic, most) for each in seeds])


def merged(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The episodes of all these evaluations."""
    returns, lengths, cut, _ = (np.concatenate(arrays) for arrays in zip(*evaluations, strict=True))
    return Evaluation(returns, lengths, cut, _known(np.concatenate([_successes(one) for one in evaluations])))


def _successes(evaluation: Evaluation) -> np.ndarray:
    return np.asarray(evaluation.successes if len(evaluation.successes) else np.full(len(evaluation.returns), np.nan))


def _known(successes: np.ndarray) -> np.ndarray | tuple[()]:
    """The successes of all episodes; () if none of them says."""
    return () if np.isnan(successes).all() else successes


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
    policy: Player,
    env: EnvConfig,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    max_steps: int | None = None,  # see with_limit
    watch: Watch = lambda ended, steps: None,
    envs: Envs | None = None,
) -> Evaluation:
    """The returns of this many episodes, divided equally among the environments.

    Taking the first episodes to end would favour short ones. They are played on environments that
    are made for them, or on `envs`, which stay open.
    """
    wrong = f"env.id {env.id!r}: this run was trained on environments that were passed in, so Birl cannot make them"
    instead = "pass env=, make_env= or eval_envs=, or step them yourself with birl.load(...).act"
    remedy = by_use(instead, "name one with the same spaces: --env")
    require(envs is not None or env.id != PASSED_IN, f"{wrong}; {remedy}")
    require(episodes > 0, f"episodes {episodes} must be at least 1")
    require(seed >= 0, f"seed {seed} must be 0 or more")
    env_seed, key_seed = derived_seeds([seed, 0xE7A1], 2)  # training uses other seeds
    key_seed_or_none = None if deterministic else key_seed
    if envs is not None:
        require(max_steps is None or max_steps > 0, f"max_steps {max_steps} must be at least 1")
        return _play(policy, envs, episodes, env_seed, key_seed_or_none, max_steps or MOST_STEPS, watch, True)
    num_envs = min(episodes, MOST_ENVS)
    env, limit = with_limit(env, max_steps)
    with make_envs(spare(env, num_envs, workers=num_envs), env_seed) as made:
        return _play(policy, made, episodes, env_seed, key_seed_or_none, limit, watch, False)


def _play(
    policy: Player,
    envs: Envs,
    episodes: int,
    env_seed: int,
    key_seed: int | None,  # None: the policy's most likely actions
    limit: int | None,
    watch: Watch,
    cut_here: bool,  # the environments do not know the limit: it is counted here
) -> Evaluation:
    num_envs = envs.num_envs
    shares = episodes // num_envs + (np.arange(num_envs) < episodes % num_envs)
    observations, masks = envs.reset(env_seed)
    memory = policy.initial_memory(num_envs)
    resets = np.ones(num_envs, bool)
    totals = np.zeros(num_envs)
    steps = np.zeros(num_envs, np.int64)
    ended = np.zeros(num_envs, bool)
    over = np.zeros(num_envs, bool)  # its episode was cut and goes on: nothing of it counts any more
    finished: list[list[tuple[float, int, bool, float]]] = [[] for _ in range(num_envs)]
    time = played = 0
    while played < episodes:
        key = None if key_seed is None else np.array([key_seed, time], np.uint32)
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
        ends = ended if step.game_over is None else step.game_over & (steps > 0)
        cuts = ~ends & (steps == limit) if cut_here else np.zeros(num_envs, bool)
        for i in np.flatnonzero((ends | cuts) & ~over):
            is_cut = bool(cuts[i] or (step.truncated[i] and steps[i] == limit and not cut_here))
            says = step.successes is not None and step.successes[i] != NOT_SAID
            success = float(step.successes[i]) if says else np.nan  # type: ignore[index]
            finished[i].append((float(totals[i]), int(steps[i]), is_cut, success))
        over = (over & ~ends) | cuts
        totals[ends] = steps[ends] = 0
        left = shares - [min(len(own), share) for own, share in zip(finished, shares, strict=True)]
        played = episodes - int(left.sum())
        watch(played, int(steps.max()))
        if cut_here and played < episodes and over[left > 0].all():
            # No episode that counts is under way, and those that were cut may never end.
            observations, masks = envs.reset(derived_seeds([env_seed, time], 1)[0])
            resets = np.ones(num_envs, bool)
            ended = over = np.zeros(num_envs, bool)
            totals[:] = steps[:] = 0
    chosen = [end for own, share in zip(finished, shares, strict=True) for end in own[:share]]
    returns, lengths, cut, successes = map(np.array, zip(*chosen, strict=True))
    return Evaluation(returns, lengths, cut, _known(successes))
