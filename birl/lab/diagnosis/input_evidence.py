"""Evidence about what a run learns from: observations, rewards, episodes, exploration, replay."""

import math
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from birl.envs.spaces import far_from_one, leaves_of
from birl.lab.diagnosis.facts import Facts
from birl.lab.diagnosis.findings import Evidence, Outcome, Unseen
from birl.run.console import number

Limits = Mapping[str, float]


def observations_constant(facts: Facts, limits: Limits) -> Outcome:
    if reason := facts.missing("observation/constant_share"):
        return Unseen(reason)
    # With compiled environments a row is about one moment, in which all may look the same.
    share = facts.values("observation/constant_share").min()
    changes = (
        np.ptp(facts.values("observation/largest")) > 0 if facts.last("observation/largest") is not None else False
    )
    if facts.env_steps < limits["env_steps"]:
        return Unseen(_few_steps(facts, limits))
    if share < limits["share"] or changes:
        return None
    sentence = f"{100 * share:.0f} % of the numbers in an observation never changed in {facts.env_steps:,} steps"
    return Evidence(sentence, {"constant_share": share}, 0.95, {"observation/constant_share": limits["share"]})


def observations_badly_scaled(facts: Facts, limits: Limits) -> Outcome:
    if facts.setting("normalize_observations"):
        return None
    if reason := facts.missing("observation/largest", "observation/widest"):
        return Unseen(reason)
    largest, widest = facts.values("observation/largest").max(), facts.values("observation/widest").max()
    if facts.env_steps < limits["env_steps"]:
        return Unseen(_few_steps(facts, limits))
    if largest > limits["largest"]:
        # A learner that copes with them is not to be told that it cannot.
        confidence = 0.5 if facts.learns else min(0.95, 0.6 + 0.1 * math.log10(largest / limits["largest"]))
        sentence = f"observations hold numbers up to {number(largest)}, and normalize_observations is off"
        return Evidence(sentence, {"largest": largest}, confidence, {"observation/largest": limits["largest"]})
    if 0 < widest < limits["widest"]:
        sentence = (
            f"no number of an observation varies by more than {number(widest)}, and normalize_observations is off"
        )
        return Evidence(sentence, {"widest": widest}, 0.4 if facts.learns else 0.8)
    return None


def actions_not_scaled(facts: Facts, limits: Limits) -> Outcome:
    if reason := _lacks(facts, "state_dependent_std"):  # a setting of all Gaussian policies, also of old runs
        return Unseen(reason)
    if facts.setting("scale_actions") or facts.setting("squash_actions") or facts.learns:
        return None
    if facts.saved is None:
        return Unseen("there is no checkpoint that says what the actions are")
    boxes = [leaf for leaf in leaves_of(facts.saved.action_space) if isinstance(leaf, spaces.Box)]
    far = [(box.low[far_from_one(box)], box.high[far_from_one(box)]) for box in boxes if far_from_one(box).any()]
    if not far:
        return None
    low, high = min(float(low.min()) for low, _ in far), max(float(high.max()) for _, high in far)
    sentence = f"actions lie between {number(low)} and {number(high)}, and scale_actions is off"
    return Evidence(sentence, {"low": low, "high": high}, 0.85)


def rewards_not_seen(facts: Facts, limits: Limits) -> Outcome:
    if reason := facts.missing("episode/return", "episode/count"):
        return Unseen(reason)
    returns, episodes = facts.values("episode/return"), facts.values("episode/count")[-1]
    if np.ptp(returns) > 0:
        return None
    if reason := _too_early(facts, limits) or _few_episodes(episodes, limits):
        return Unseen(reason)
    low, high = facts.last("reward/min"), facts.last("reward/max")
    same = low is not None and low == high
    what = f", and every reward was {number(low)}" if same and low is not None else ""
    sentence = f"all of {episodes:,.0f} episodes returned {number(returns[-1])}{what}"
    # A reward that is never 0 and never changes is about when an episode ends.
    confidence = 0.95 if same and low == 0 else 0.75
    return Evidence(sentence, {"return": returns[-1], "episodes": episodes}, confidence)


def time_limit_only(facts: Facts, limits: Limits) -> Outcome:
    if facts.learns:
        return None
    if reason := facts.missing("episode/count") or _too_early(facts, limits):
        return Unseen(reason)
    episodes = facts.values("episode/count")[-1]
    # Each actor-learner has environments of its own.
    envs = facts.number("env.num_envs", 1) * facts.number("actor_learners", 1)
    per_env = facts.env_steps / max(1.0, envs)
    if episodes == 0 and per_env >= limits["steps_per_env"]:
        sentence = f"no episode has ended in {per_env:,.0f} steps of each environment"
        return Evidence(sentence, {"steps_per_env": per_env}, 0.7)
    if reason := facts.missing("episode/truncated_share"):
        return Unseen(reason if episodes else f"no episode has ended in {per_env:,.0f} steps of each environment yet")
    shares, lengths = facts.values("episode/truncated_share"), facts.values("episode/length")
    rewards = facts.last("reward/min"), facts.last("reward/max")
    # A reward that is never 0 and never changes says only when an episode ends, and here none does.
    ends_matter = rewards[0] is not None and rewards[0] == rewards[1] != 0
    if shares.min() < 1 or not (ends_matter or facts.setting("env.max_episode_steps")):
        return None
    if reason := _few_episodes(episodes, limits):
        return Unseen(reason)
    sentence = f"all of {episodes:,.0f} episodes were cut after {number(lengths[-1])} steps; none has terminated"
    numbers = {"episodes": episodes, "length": float(lengths[-1])}
    return Evidence(sentence, numbers, 0.9 if ends_matter else 0.6, {"episode/truncated_share": 1.0})


def exploration_ended(facts: Facts, limits: Limits) -> Outcome:
    if reason := facts.missing("exploration/epsilon"):
        return Unseen(_lacks(facts, "exploration") or reason)
    steps, epsilons = facts.run.curve("exploration/epsilon")
    starts = int(facts.number("learning_starts", 0))
    ratio = facts.number("update_ratio", 1.0)
    total = max(1.0, facts.number("run.total_steps", 1))
    low = steps[epsilons <= limits["epsilon"]]
    if not len(low) or epsilons.min() < 0:
        return None
    ended = int(low[0])
    learned = max(0.0, ended - starts) * ratio  # gradient steps until then
    if learned >= limits["updates"] or facts.learns:
        return None
    early = ended / total
    if ended > starts and early > limits["progress"]:
        return None
    sentence = (
        f"ε was {number(epsilons[steps >= ended][0])} after {ended:,} steps, {100 * early:.1f} % of the run; "
        f"{learned:,.0f} gradient steps were taken before"
    )
    numbers = {"ended_at": ended, "learning_starts": starts, "gradient_steps_before": learned}
    return Evidence(sentence, numbers, 0.9 if ended <= starts else 0.7, {"exploration/epsilon": limits["epsilon"]})


def replay_forgets(facts: Facts, limits: Limits) -> Outcome:
    if reason := _lacks(facts, "replay_size") or facts.missing("replay/steps", "episode/length"):
        return Unseen(reason)
    held, length = facts.values("replay/steps")[-1], float(np.median(facts.values("episode/length")))
    batch = max(1.0, facts.number("batch_size", 1))
    forgets = held < limits["share"] * facts.env_steps
    episodes, batches = held / max(1.0, length), held / batch
    if not forgets or (episodes >= limits["episodes"] and batches >= limits["batches"]):
        return None
    sentence = (
        f"the replay holds {held:,.0f} transitions: {episodes:.1f} episodes, {batches:.1f} batches, "
        f"{100 * held / facts.env_steps:.1f} % of the steps so far"
    )
    return Evidence(sentence, {"held": held, "episodes": episodes, "batches": batches}, 0.7 if facts.learns else 0.9)


def too_few_updates(facts: Facts, limits: Limits) -> Outcome:
    if facts.learns:
        return None
    if reason := facts.too_early(limits["progress"]):
        return Unseen(reason)
    if facts.verdict.learned == "too short":
        return Unseen(facts.verdict.sentence)
    if facts.setting("update_ratio") is not None:
        ratio = facts.number("update_ratio", 1.0)
        if ratio >= limits["ratio"]:
            return None
        steps = ratio * max(0.0, facts.env_steps - facts.number("learning_starts", 0))
        sentence = f"update_ratio {ratio:g}: {steps:,.0f} gradient steps in {facts.env_steps:,} environment steps"
        return Evidence(sentence, {"update_ratio": ratio, "gradient_steps": steps}, 0.85)
    if reason := _lacks(facts, "rollout_length"):
        return Unseen(reason)
    if facts.setting("actor_learners") is not None or facts.setting("pool") is not None:
        return Unseen("how many updates actor-learners make is not known from the settings")
    rollout = facts.number("rollout_length", 1) * facts.number("env.num_envs", 1)
    updates = facts.number("run.total_steps", 0) / max(1.0, rollout)
    each = facts.number("epochs", 1) * facts.number("minibatches", 1)
    if updates * each >= limits["gradient_steps"]:
        return None
    sentence = f"the whole run has {updates:,.0f} updates of {each:.0f} gradient steps"
    return Evidence(sentence, {"updates": updates, "gradient_steps": updates * each}, 0.8)


def _too_early(facts: Facts, limits: Limits) -> str | None:
    """Why a rule about what is never seen cannot be checked yet; None if it can."""
    explores = f"ε is still above {limits['epsilon']:g}" if facts.explores(limits["epsilon"]) else None
    return facts.too_early(limits["progress"]) or explores


def _few_episodes(episodes: float, limits: Limits) -> str | None:
    few = f"{episodes:,.0f} episodes have ended, of at least {limits['episodes']:.0f}"
    return few if episodes < limits["episodes"] else None


def _few_steps(facts: Facts, limits: Limits) -> str:
    return f"{facts.env_steps:,} steps are done, of at least {limits['env_steps']:.0f}"


def _lacks(facts: Facts, setting: str) -> str | None:
    """Why a rule about this setting does not apply; None if the run has it."""
    return f"{facts.setting('algorithm')} has no {setting}" if facts.setting(setting) is None else None
