"""The rules of `birl diagnose`, as data: each fault, its limits, and what to try.

The order is that of causes: if two rules fire and neither causes the other, the earlier one comes
first. Limits were set so that healthy presets are not reported: benchmarks/diagnose_presets.py.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from birl.envs.spaces import NEAR

Proof = Literal["fork", "new runs", "evaluation", "none"]  # how a suggestion can be tried
RATES = ("learning_rate", "actor_learning_rate", "critic_learning_rate", "value_learning_rate")
# What may follow: hardly anything is learned, nothing is, or what was learned is lost.
LITTLE = ("values-worse-than-constant", "evaluation-below-training", "time-limit-only")
NOTHING = ("rewards-not-seen", *LITTLE)
RUIN = (
    "dead-gradients",
    "policy-collapsed",
    "values-worse-than-constant",
    "evaluation-below-training",
    "rewards-not-seen",
)


@dataclass(frozen=True)
class Change:
    """A setting to try: its value becomes `value`, or so many times as large and at most `most`."""

    setting: str
    value: Any
    how: Literal["set", "times", "at least", "at most"] = "set"
    most: float = math.inf
    unless: str = ""  # not for algorithms that have this setting
    multiple_of: str = ""  # the new value is a multiple of this setting, if the algorithm has it


@dataclass(frozen=True)
class Rule:
    """A fault, how it shows, and what to try."""

    name: str
    title: str  # what is wrong, as a sentence
    sees: str  # which metrics, settings or files show it
    limits: dict[str, float]  # by name; the rule's evidence compares with these
    why: str  # why it is bad
    advice: str  # what to try, in words
    changes: tuple[Change, ...] = ()  # the same as settings; those that the algorithm lacks are left out
    draw: tuple[str, ...] = ()  # metrics whose curves show it
    causes: tuple[str, ...] = ()  # rules that may fire only because this one does
    proof: Proof = "fork"
    only_speed: bool = False  # the run learns as it should, but takes too long


SLOWER = tuple(Change(name, 0.1, "times", most=1e-3) for name in RATES)
EXPLORE = (Change("exploration", "linear:1.0:0.05:0.4"), Change("entropy_weight", 0.01, "at least"))


INPUTS = (
    Rule(
        name="observations-constant",
        title="the policy always sees the same observation",
        sees="`observation/constant_share`; not pixels or categories",
        limits={"share": 0.99, "env_steps": 500},
        why="Nothing in the observation changes, so the best that can be learned is one action for all states.",
        advice="print what the environment's `step` returns; a wrapper or `ignore_observations` may remove too much",
        draw=("observation/constant_share", "episode/return"),
        causes=(
            "observations-badly-scaled",
            "too-few-updates",
            "dead-units",
            "policy-collapsed",
            "dead-gradients",
            *LITTLE,
        ),
        proof="none",
    ),
    Rule(
        name="observations-badly-scaled",
        title="observations are badly scaled",
        sees="`observation/largest`, `observation/widest`, `normalize_observations`; not pixels or categories",
        limits={"largest": 1000.0, "widest": 1e-3, "env_steps": 500},
        why="Networks expect numbers of about 1: larger ones saturate their units, and smaller ones change nothing.",
        advice="let Birl normalise them, or scale them in the environment",
        changes=(Change("normalize_observations", True),),
        draw=("observation/largest", "observation/widest", "episode/return"),
        causes=("steps-too-large", "values-too-large", "dead-units", "policy-collapsed", "dead-gradients", *LITTLE),
        proof="new runs",
    ),
    Rule(
        name="actions-not-scaled",
        title="the policy's actions are not of the environment's size",
        sees="the action space in the newest checkpoint, `scale_actions`, `squash_actions`",
        limits={"near": NEAR},
        why="A Gaussian begins with actions of about 1 and learns in small steps, so it tries few of the actions.",
        advice="scale actions to the bounds",
        changes=(Change("scale_actions", True),),
        draw=("episode/return",),
        causes=("too-few-updates", "policy-collapsed", "dead-gradients", *NOTHING),
        proof="new runs",
    ),
    Rule(
        name="rewards-not-seen",
        title="every episode has the same return",
        sees="`episode/return`, `reward/min`, `reward/max`",
        limits={"episodes": 50, "progress": 0.3, "epsilon": 0.1},
        why="No action has ever been better than another, so there is nothing to learn from.",
        advice="check the reward with `birl check-env`; if it is rare, explore more or reward partial success",
        changes=EXPLORE,
        draw=("episode/return", "reward/min", "reward/max"),
        causes=("too-few-updates", "values-too-large", "dead-units", "policy-collapsed", "dead-gradients", *LITTLE),
        proof="new runs",
    ),
    Rule(
        name="time-limit-only",
        title="episodes are only ever cut by the time limit",
        sees="`episode/truncated_share`, `episode/count`, `episode/length`",
        limits={"episodes": 50, "progress": 0.3, "epsilon": 0.1, "steps_per_env": 20_000},
        why="The agent has never seen how an episode ends: a goal is too far away, or the limit is too short.",
        advice="give episodes more time, begin them nearer to the goal, or reward the way there",
        changes=(Change("env.max_episode_steps", 4, "times"),),
        draw=("episode/truncated_share", "episode/length", "episode/return"),
        causes=("rewards-not-seen", "too-few-updates", "policy-collapsed", "values-worse-than-constant"),
        proof="new runs",
    ),
)

EXPERIENCE = (
    Rule(
        name="exploration-ended",
        title="exploration ended before learning began",
        sees="`exploration/epsilon`, `learning_starts`, `total_steps`",
        limits={"epsilon": 0.1, "updates": 100, "progress": 0.05},
        why="What was collected is nearly one course of actions, and the network cannot learn what others lead to.",
        advice="let exploration fall slowly, over a third of the run or more",
        changes=EXPLORE[:1],
        draw=("exploration/epsilon", "episode/return"),
        causes=NOTHING,
        proof="new runs",
    ),
    Rule(
        name="replay-forgets",
        title="the replay forgets too fast",
        sees="`replay/steps`, `episode/length`, `replay_size`, `batch_size`",
        limits={"episodes": 3.0, "batches": 10.0, "share": 0.05},
        why="Batches are nearly the same steps again and again, and what was learned from older ones is lost.",
        advice="keep more transitions",
        changes=(Change("replay_size", 50_000, "at least"),),
        draw=("replay/steps", "loss/value", "episode/return"),
        causes=("values-too-large", "dead-units", "values-worse-than-constant", "evaluation-below-training"),
        proof="new runs",
    ),
    Rule(
        name="too-few-updates",
        title="there are too few gradient steps",
        sees="`update_ratio`, `rollout_length`, `epochs`, `minibatches`, `total_steps`",
        limits={"ratio": 0.01, "gradient_steps": 100, "progress": 0.2},
        why="Most of what was collected is hardly learned from.",
        advice="take more gradient steps for each environment step",
        changes=(
            Change("update_ratio", 0.25, "at least"),
            Change("epochs", 10, "at least"),
            Change("rollout_length", 0.25, "times", unless="update_ratio", multiple_of="minibatches"),
        ),
        draw=("loss/value", "episode/return"),
        causes=("steps-too-small", "values-worse-than-constant", "evaluation-below-training"),
    ),
)

OPTIMISATION = (
    Rule(
        name="steps-too-small",
        title="the steps of the optimiser are far too small",
        sees="the newest checkpoint: biases of hidden layers, which begin at 0; `optimizer/grad_norm`",
        limits={"moved": 1e-3, "norm": 1e-7, "times": 100.0, "progress": 0.2},
        why="Weights have hardly moved, so what the network says is still what it said at the beginning.",
        advice="raise the learning rate; a tiny `max_grad_norm` or a large `optimizer_epsilon` makes steps small, too",
        changes=(
            *(Change(name, 3e-4, "at least") for name in RATES),
            Change("max_grad_norm", 0.5, "at least"),
            Change("optimizer_epsilon", 1e-5, "at most"),
        ),
        draw=("policy/approx_kl", "policy/entropy", "episode/return"),
        causes=NOTHING,
    ),
    Rule(
        name="rewards-too-large",
        title="rewards are so large that the policy hardly moves",
        sees="`optimizer/grad_norm`, `max_grad_norm`; the newest checkpoint: biases of hidden layers, which begin at 0",
        limits={"moved": 1e-3, "times": 100.0},
        why="The gradients of policy and values are cut together, and those of the values leave nothing to the policy.",
        advice="normalise rewards, or scale them in the environment to about 1",
        changes=(Change("normalize_rewards", True),),
        draw=("optimizer/grad_norm", "loss/value", "episode/return"),
        causes=LITTLE,
        proof="new runs",
    ),
    Rule(
        name="target-frozen",
        title="the target network is still that of the beginning",
        sees="the newest checkpoint: biases of hidden layers of both networks, which begin at 0",
        limits={"moved": 1e-3, "progress": 0.2},
        why="Values are learned from those of a network that knows nothing, so they look one step ahead.",
        advice="let the target network follow",
        changes=(Change("target_every", 250, "at most"), Change("target_rate", 0.005, "at least")),
        draw=("value/mean", "loss/value", "episode/return"),
        causes=LITTLE,
    ),
    Rule(
        name="discount-too-small",
        title="the discount is too small to see what actions lead to",
        sees="`discount`, `episode/length`",
        limits={"steps": 5.0, "times": 3.0},
        why="What an action brings later does not count, so it is chosen for its next few rewards.",
        advice="raise the discount; 0.99 looks 100 steps ahead",
        changes=(Change("discount", 0.99, "at least"),),
        draw=("value/explained_variance", "value/mean", "episode/return"),
        causes=NOTHING,
        proof="new runs",
    ),
    Rule(
        name="steps-too-large",
        title="the steps of the optimiser are too large",
        sees="`policy/approx_kl`, `policy/clip_fraction` (PPO)",
        limits={"kl": 0.2, "clip_fraction": 0.5, "rows": 5},
        why="Each update moves the policy far from the one that collected the rollout, where the estimates are wrong.",
        advice="lower the learning rate, or stop an update's epochs early with `target_kl`",
        changes=SLOWER,
        draw=("policy/approx_kl", "policy/clip_fraction", "episode/return"),
        causes=("weights-too-large", "values-too-large", "dead-units", *RUIN),
    ),
    Rule(
        name="weights-too-large",
        title="the network's weights have become far too large",
        sees="the newest checkpoint: biases of hidden layers, which begin at 0",
        limits={"moved": 5.0},
        why="Steps so large throw away what was learned before, and saturate the network's units.",
        advice="lower the learning rate and begin again",
        changes=SLOWER,
        draw=("loss/value", "optimizer/grad_norm", "episode/return"),
        causes=("values-too-large", *RUIN),
        proof="new runs",
    ),
    Rule(
        name="values-too-large",
        title="values grow beyond what rewards allow",
        sees="`value/mean` or `loss/value`, `reward/min`, `reward/max`, `discount`; not in compiled environments",
        limits={"times_bound": 1.5, "episodes_long": 2.0, "rows": 5},
        why="Values feed their own targets: each update makes them larger, and the policy follows noise.",
        advice="lower the learning rate and the discount, and let the target network move more slowly",
        changes=(*SLOWER, Change("target_every", 250, "at least"), Change("discount", 0.995, "at most")),
        draw=("value/mean", "loss/value", "episode/return"),
        causes=("steps-too-large", "dead-units", *RUIN),
        proof="new runs",
    ),
    Rule(
        name="dead-units",
        title="the network's units are dead",
        sees="the newest checkpoint: hidden layers of an MLP, over the range of the observations",
        limits={"share": 0.9},
        why="A unit that never changes has no gradient: the network gives the same for all observations, and stays so.",
        advice="lower the learning rate and begin again; tanh units do not die as relu units do",
        changes=SLOWER,
        draw=("optimizer/grad_norm", "loss/value", "episode/return"),
        causes=("weights-too-large", *RUIN),
        proof="new runs",
    ),
    Rule(
        name="policy-collapsed",
        title="the policy became certain too early",
        sees="`policy/entropy`, and the action space in the newest checkpoint",
        limits={"entropy_share": 0.03, "std": 0.02, "progress": 0.3, "rows": 5},
        why="It takes the same actions whatever they bring, so it cannot find better ones.",
        advice="add an entropy bonus, or lower the learning rate",
        changes=(Change("entropy_weight", 0.01, "at least"), *SLOWER),
        draw=("policy/entropy", "episode/return"),
        causes=("rewards-not-seen", "dead-gradients", "values-worse-than-constant"),
        proof="new runs",
    ),
    Rule(
        name="dead-gradients",
        title="gradients are zero",
        sees="`optimizer/grad_norm`, `optimizer/actor_grad_norm`",
        limits={"norm": 1e-7, "share": 0.5, "rows": 10},
        why="Nothing is learned from now on.",
        advice="look for a constant loss: dead units, a policy without randomness, or constant rewards",
        changes=SLOWER,
        draw=("optimizer/grad_norm", "optimizer/actor_grad_norm", "episode/return"),
        proof="new runs",
    ),
    Rule(
        name="values-worse-than-constant",
        title="values are worse than a constant",
        sees="`value/explained_variance`",
        limits={"explained_variance": -0.1, "rows": 20, "progress": 0.3},
        why="Advantages are computed from these values, so they are mostly noise.",
        advice="normalise rewards, or give the value network more or smaller steps",
        changes=(Change("normalize_rewards", True),),
        draw=("value/explained_variance", "loss/value", "episode/return"),
        proof="new runs",
    ),
)

RESULTS = (
    Rule(
        name="evaluation-below-training",
        title="the evaluation is far below training",
        sees="`eval/return_mean`, `eval/return_std`, `episode/return`, `eval_deterministic`",
        limits={"share": 0.5, "errors": 4.0, "episodes": 5, "progress": 0.5},
        why="Evaluation takes the most likely action each time; the policy is only good with its randomness.",
        advice="score it with sampled actions; if that is good, the task may need memory (`--core lstm`) or randomness",
        changes=(Change("run.eval_deterministic", False),),
        draw=("episode/return",),
        proof="evaluation",
    ),
    Rule(
        name="time-in-environment",
        title="most of the time is spent waiting for environments",
        sees="`time/environment_seconds`, `time/policy_seconds`, `time/learning_seconds`, `workers`",
        limits={"share": 0.7, "milliseconds": 4.0, "seconds": 2.0},
        why="Environments are stepped one after the other in the process that learns, while other CPU cores are idle.",
        advice="step them in worker processes; the run learns the same",
        changes=(Change("env.workers", 2),),
        draw=("time/environment_share", "time/env_steps_per_second"),
        proof="fork",
        only_speed=True,
    ),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.name: rule for rule in (*INPUTS, *EXPERIENCE, *OPTIMISATION, *RESULTS)}
