"""Evaluating a policy: whole episodes, by themselves or during a run."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from birl.config import EnvConfig, Plain, require
from birl.envs.make import as_envs, episode_limit, make_envs, spare
from birl.envs.spaces import derived_seeds
from birl.errors import NonFiniteError, by_use
from birl.registry import algorithm_named, name_of
from birl.run.console import number, score_text
from birl.run.directory import METRICS
from birl.run.given import PASSED_IN, Given
from birl.run.loading import load_to_play
from birl.run.logging import RunLog, read_metrics
from birl.run.policy import Policy, make_policy
from birl.run.saving import OpenRun, Saver
from birl.types import NOT_SAID, Envs, Metrics, PyTree, Update

MOST_ENVS = 20  # environments stepped together
MOST_STEPS = 10_000  # in an episode, where neither the environment nor the settings have a limit
# Called after each step with the number of finished episodes and the length of the longest other.
Watch = Callable[[int, int], None]
STANDARD_ERRORS = 3.0  # a score is far below the training return if it is lower by this many standard errors
SHARE = 0.2  # and by this share of the scale of the returns
FEWEST_EPISODES = 5  # with fewer, the standard error says little


class Player(Protocol):
    """A player of episodes: a Policy, or anything else that gives actions for observations."""

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
    given = Given(env, make_env=make_env, make_network=make_network, make_encoder=make_encoder, trust=trust)
    player, own_env = load_to_play(policy, given, kwargs)
    most = player.config.run.eval_max_steps if max_steps is None else max_steps
    seeds = list(seed) if isinstance(seed, Iterable) else [seed]
    require(len(seeds) > 0, "seed must be a number or several, not none")
    return merged([evaluate_policy(player, own_env, episodes, each, deterministic, most) for each in seeds])


def merged(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The episodes of all these evaluations."""
    returns, lengths, cut, _ = (np.concatenate(arrays) for arrays in zip(*evaluations, strict=True))
    return Evaluation(returns, lengths, cut, _known(np.concatenate([_successes(one) for one in evaluations])))


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


class Evaluator:
    """Evaluates a run's policy on environments of its own."""

    def __init__(self, run: OpenRun, log: RunLog, saver: Saver, eval_envs: Any = None) -> None:
        self._config = run.config
        self._spaces = run.spaces
        self._metrics_path = run.directory.path / METRICS
        self._progress = run.progress
        self._console = run.console
        self._log = log
        self._saver = saver
        self._eval_envs = None if eval_envs is None else usable_eval_envs(eval_envs, run.config.env, run.spaces)
        self._policy: Policy | None = None
        self.latest: Evaluation | None = None
        self.latest_steps = -1  # environment steps of the latest evaluation

    def evaluate(
        self, state: Any, update: Update | None, check_signals: Callable[[], None], keep_best: bool
    ) -> Evaluation:
        """Score the policy of this State; with `keep_best`, keep its update if it is the best.

        `check_signals` is called after each step; what it raises ends the evaluation, which is then
        due when the run is resumed. Without an update, the State is that of the newest checkpoint.
        """
        run = self._config.run
        policy = self.policy_of(state)

        def watch(ended: int, longest: int) -> None:
            check_signals()
            self._console.evaluating(ended, run.eval_episodes, longest)

        self._progress.evaluation_due = True
        self._console.evaluating(0, run.eval_episodes, 0)
        settings = run.eval_episodes, run.seed, run.eval_deterministic, run.eval_max_steps
        self.latest = evaluate_policy(policy, self._config.env, *settings, watch, self._eval_envs)
        self.latest_steps = int(state.env_steps)
        self._progress.evaluation_due = False
        self._write(self.latest, update, keep_best)
        return self.latest

    def policy_of(self, state: Any) -> Policy:
        """The policy of this State. All policies of a run share one compiled program."""
        if self._policy is None:
            self._policy = make_policy(self._config, state, *self._spaces)
        policy = copy.copy(self._policy)
        policy.set_parameters(algorithm_named(name_of(self._config)).policy(state))
        policy.seed(self._config.run.seed)
        policy.masks = self._progress.masks
        return policy

    def _write(self, evaluation: Evaluation, update: Update | None, keep_best: bool) -> None:
        run = self._config.run
        metrics = evaluation.metrics()
        score = float(metrics["eval/return_mean"])
        best = self._progress.best
        is_best = keep_best and (best is None or score > best["return_mean"])
        if is_best and update is None:  # before its row, which says that nothing is left to do
            self._saver.keep_best(score, self.latest_steps, None)
        self._log_once(metrics)
        if notice := evaluation.cut_notice():
            self._console.message(f"{notice}; eval_max_steps sets the limit")
        if is_best and update is not None:
            self._saver.keep_best(score, self.latest_steps, update)
        # The console's last line has the score of a run that ends here.
        if self.latest_steps < run.total_steps and not self._progress.reached_goal(run):
            found = score_text(score, metrics["eval/return_std"], run.eval_episodes)
            self._console.message(f"evaluation at {self.latest_steps:,} steps: {found}")
        else:
            self._explain_low_score(evaluation)

    def _explain_low_score(self, evaluation: Evaluation) -> None:
        """Say if the last score is far below the training return, and that sampling may be why."""
        if self._config.run.eval_deterministic and not np.any(evaluation.cut):
            returns = self._console.training_returns
            if notice := sampling_notice(evaluation.returns, *returns, self._metrics_path.parent):
                self._console.message(notice)

    def is_due(self) -> bool:
        """True if a process was stopped in the middle of an evaluation, and none has repeated it.

        A checkpoint that says so is not written again: the row of the evaluation tells.
        """
        return self._progress.evaluation_due and not self.has_scored(self._progress.steps)

    def has_scored(self, steps: int) -> bool:
        """True if the policy of these steps is evaluated: in this process, or before it started."""
        return steps == self.latest_steps or (steps == self._progress.start_steps and self._was_logged(steps))

    def _was_logged(self, steps: int) -> bool:
        rows = read_metrics(self._metrics_path)
        return any(row["env_steps"] == steps and "eval/return_mean" in row for row in rows)

    def _log_once(self, metrics: Metrics) -> None:
        """Log the evaluation, unless a process that died before its end has done so."""
        steps = self.latest_steps
        if steps == self._progress.start_steps and self._was_logged(steps):
            self._log.show(steps, metrics)
        else:
            self._log.write(steps, metrics)


def usable_eval_envs(eval_envs: object, env: EnvConfig, spaces: tuple[gym.Space, gym.Space]) -> Envs:
    """Environments passed in to evaluate on; ConfigError unless they have these spaces."""
    envs = as_envs(eval_envs, env)
    found = envs.observation_space, envs.action_space
    require(found == spaces, f"eval_envs {eval_envs!r} have spaces {found}, and the policy is for {spaces}")
    return envs


def sampling_notice(returns: np.ndarray, training_return: float, lowest_return: float, run_dir: object) -> str:
    """A sentence about a score that is far below the training return; "" if it is not.

    An evaluation takes the policy's most likely actions, and training samples them. A policy that
    has not settled, or that must be random, can be much worse without sampling.
    """
    if not is_far_below(returns, training_return, lowest_return):
        return ""
    score = f"the score {number(float(returns.mean()))} is far below the training return {number(training_return)}"
    reason = "the policy was evaluated without sampling, and training samples its actions"
    return f"{score}: {reason}. To sample: birl eval {run_dir} --sample, or train with --no-eval-deterministic"


def is_far_below(returns: np.ndarray, training_return: float, lowest_return: float) -> bool:
    """True if these returns are far below the training return.

    The mean must be below it by 3 standard errors, so that it is no chance, and by 20 % of the
    scale of the returns, so that it matters. The scale is the size of the training return or what
    training has gained since its lowest value, whichever is larger.
    """
    if len(returns) < FEWEST_EPISODES or not math.isfinite(training_return):
        return False
    gap = training_return - float(returns.mean())
    error = float(returns.std(ddof=1)) / math.sqrt(len(returns))
    scale = max(abs(training_return), training_return - lowest_return)
    return gap > STANDARD_ERRORS * error and gap > SHARE * scale


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


def _successes(evaluation: Evaluation) -> np.ndarray:
    return np.asarray(evaluation.successes if len(evaluation.successes) else np.full(len(evaluation.returns), np.nan))


def _known(successes: np.ndarray) -> np.ndarray | tuple[()]:
    """The successes of all episodes; () if none of them says."""
    return () if np.isnan(successes).all() else successes
