"""Evidence about how a run learns: step sizes, values, units, entropy, evaluation, time."""

import math
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from birl.envs.spaces import far_from_one
from birl.lab.diagnosis.facts import Facts
from birl.lab.diagnosis.findings import Evidence, Outcome, Unseen
from birl.lab.diagnosis.verdict import AVERAGED
from birl.run.console import counted, number

Limits = Mapping[str, float]
NO_BIASES = "there is no checkpoint with biases that begin at 0"
CLIPPED_REWARD = 10.0  # normalised rewards are clipped to ±10
GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a Gaussian of standard deviation 1


def steps_too_large(facts: Facts, limits: Limits) -> Outcome:
    kls, clipped = facts.values("policy/approx_kl"), facts.values("policy/clip_fraction")
    if facts.setting("algorithm") != "ppo":
        return Unseen("only PPO logs the KL of an update")
    if reason := facts.missing("policy/approx_kl"):
        return Unseen(reason)
    count = int(limits["rows"])
    if len(kls) < count:
        return Unseen(_few_rows(len(kls), limits))
    kl, clip = _highest_mean(kls, count), _highest_mean(clipped, count)
    if kl <= limits["kl"] and (clip <= limits["clip_fraction"] or facts.learns):
        return None
    sentence = (
        f"over {count} logged rows in a row, the mean KL of an update was up to {number(kl)}, "
        f"and {100 * clip:.0f} % of the steps were clipped; about 0.01 and 10 % are usual"
    )
    confidence = 0.5 if facts.learns else 0.9
    lines = {"policy/approx_kl": limits["kl"], "policy/clip_fraction": limits["clip_fraction"]}
    return Evidence(sentence, {"kl": kl, "clip_fraction": clip}, confidence, lines)


def steps_too_small(facts: Facts, limits: Limits) -> Outcome:
    if reason := facts.too_early(limits["progress"]) or facts.missing("optimizer/grad_norm"):
        return Unseen(reason)
    if facts.saved is None or not facts.saved.moved:
        return Unseen(NO_BIASES)
    part, moved = min(facts.saved.moved.items(), key=lambda item: item[1])
    norm = float(np.median(facts.values("optimizer/grad_norm")))
    # A return that improves has improved by chance, if the weights have not moved at all.
    if moved > limits["moved"] * (0.01 if facts.learns else 1.0) or norm < limits["norm"]:
        return None  # gradients of 0 are another fault
    if _drowned(facts, limits):
        return None  # the gradients of another part are
    rate = facts.last("optimizer/learning_rate")
    with_rate = "" if rate is None else f", with a learning rate of {number(rate)}"
    sentence = f"no bias of the hidden layers of the {part}, which begin at 0, is above {number(moved)} yet{with_rate}"
    return Evidence(sentence, {"moved": moved}, 0.9)


def rewards_too_large(facts: Facts, limits: Limits) -> Outcome:
    if facts.learns:
        return None
    if reason := facts.missing("optimizer/grad_norm"):
        return Unseen(reason)
    if facts.saved is None or not facts.saved.moved:
        return Unseen(NO_BIASES)
    part, moved = min(facts.saved.moved.items(), key=lambda item: item[1])
    if moved > limits["moved"] or not _drowned(facts, limits):
        return None
    norm = float(np.median(facts.values("optimizer/grad_norm")))
    sentence = (
        f"gradients have a norm of {number(norm)} and are cut to {facts.number('max_grad_norm', 0):g}, mostly that of "
        f"the values; no bias of the hidden layers of the {part}, which begin at 0, is above {number(moved)} yet"
    )
    return Evidence(sentence, {"norm": norm, "moved": moved}, 0.9)


def _drowned(facts: Facts, limits: Limits) -> bool:
    """Whether one part of the network moves, and its gradients leave nothing to another.

    They are cut together, by their common norm, unless the actor's have a norm of their own.
    """
    if len(facts.values("optimizer/actor_grad_norm")):
        return False
    most = facts.number("max_grad_norm", 0.0)
    moves = facts.saved is not None and max(facts.saved.moved.values()) > limits["moved"]
    return moves and 0 < most * limits["times"] < float(np.median(facts.values("optimizer/grad_norm")))


def weights_too_large(facts: Facts, limits: Limits) -> Outcome:
    if facts.learns:
        return None
    if facts.saved is None or not facts.saved.moved:
        return Unseen(NO_BIASES)
    part, moved = max(facts.saved.moved.items(), key=lambda item: item[1])
    if moved <= limits["moved"]:
        return None
    sentence = f"a bias of the hidden layers of the {part}, which began at 0, is at {number(moved)}; below 1 is usual"
    return Evidence(sentence, {"moved": moved}, 0.8)


def target_frozen(facts: Facts, limits: Limits) -> Outcome:
    if facts.learns:
        return None
    if reason := facts.too_early(limits["progress"]):
        return Unseen(reason)
    saved = facts.saved
    if saved is None or not saved.moved or not saved.target_moved:
        return Unseen("there is no checkpoint with a target network and biases that begin at 0")
    moved = max(saved.target_moved.values())
    if moved > limits["moved"] or max(saved.moved.values()) <= limits["moved"]:
        return None
    sentence = (
        f"no bias of the target network's hidden layers, which begin at 0, is above {number(moved)} yet; "
        f"the network's own are up to {number(max(saved.moved.values()))}"
    )
    return Evidence(sentence, {"moved": moved}, 0.9)


def discount_too_small(facts: Facts, limits: Limits) -> Outcome:
    if facts.learns:
        return None
    if reason := facts.missing("episode/length"):
        return Unseen(reason)
    discount, length = facts.number("discount", 1.0), float(np.median(facts.values("episode/length")))
    sees = 1 / (1 - discount) if discount < 1 else math.inf
    if sees > limits["steps"] or length < limits["times"] * sees:
        return None
    ahead = counted(round(sees), "step")
    sentence = f"with a discount of {discount:g}, values look {ahead} ahead; episodes have {number(length)}"
    return Evidence(sentence, {"discount": discount, "length": length}, 0.85)


def values_too_large(facts: Facts, limits: Limits) -> Outcome:
    metric = "value/mean" if len(facts.values("value/mean")) else "loss/value"
    if reason := facts.missing(metric, "reward/min", "reward/max"):
        return Unseen(reason)
    bound = value_bound(facts, limits["episodes_long"])
    if bound is None:
        return Unseen("all rewards were 0, or nothing bounds the values")
    values = facts.values(metric)
    sizes = np.abs(values) if metric == "value/mean" else np.sqrt(np.maximum(values, 0.0))
    if len(sizes) < limits["rows"]:
        return Unseen(_few_rows(len(sizes), limits))
    size = float(np.median(sizes[len(sizes) // 2 :]))
    if size <= limits["times_bound"] * bound:
        return None
    what = "values have a mean of" if metric == "value/mean" else "values are wrong by"
    sentence = f"{what} {number(size)}; with these rewards and discount none can be larger than {number(bound)}"
    line = bound if metric == "value/mean" else bound**2
    return Evidence(sentence, {"value": size, "bound": bound}, 0.9, {metric: line})


def value_bound(facts: Facts, episodes_long: float) -> float | None:
    """The largest value that rewards and discount allow: max |r| / (1 - γ); None if it is 0.

    With a discount of 1 it is the reward of so many of the longest episodes.
    """
    low, high = facts.last("reward/min"), facts.last("reward/max")
    reward = max(abs(low or 0.0), abs(high or 0.0))
    if facts.setting("normalize_rewards"):
        reward = CLIPPED_REWARD
    elif facts.setting("clip_rewards"):
        reward = min(1.0, reward)
    temperatures, entropies = facts.values("exploration/temperature"), facts.values("policy/entropy")
    if len(temperatures) and len(entropies):  # SAC's values hold the entropy bonus
        reward += float(temperatures.max() * np.abs(entropies).max())
    discount = facts.number("discount", 0.99)
    lengths = facts.values("episode/length")
    longest = episodes_long * float(lengths.max()) if len(lengths) else math.inf
    horizon = 1 / (1 - discount) if discount < 1 else longest
    return reward * horizon if 0 < reward * horizon < math.inf else None


def dead_units(facts: Facts, limits: Limits) -> Outcome:
    if facts.saved is None or facts.saved.dead_share is None:
        return Unseen("there is no checkpoint with a plain MLP and ranges of observations")
    share = facts.saved.dead_share
    if share < limits["share"] or facts.learns:
        return None
    sentence = f"{100 * share:.0f} % of the units of a last hidden layer give the same for every observation"
    return Evidence(sentence, {"dead_share": share}, 0.85)


def policy_collapsed(facts: Facts, limits: Limits) -> Outcome:
    steps, entropies = facts.run.curve("policy/entropy")
    if reason := facts.missing("policy/entropy"):
        return Unseen(reason)
    if len(facts.values("exploration/temperature")):
        return Unseen("the entropy is kept at a target")  # by SAC
    if facts.saved is None:
        return Unseen("there is no checkpoint that says what the actions are")
    space = facts.saved.action_space
    if isinstance(space, spaces.Discrete):
        most = math.log(max(2, int(space.n)))
        floor, shown = limits["entropy_share"] * most, f"of at most {most:.2f}"
    elif isinstance(space, spaces.Box) and not facts.setting("squash_actions"):
        far = far_from_one(space) & bool(facts.setting("scale_actions"))  # their entropy is of actions in the bounds
        half = 0.5 * (space.high[far].astype(float) - space.low[far])
        floor = max(1, space.low.size) * (GAUSSIAN + math.log(limits["std"])) + float(np.log(half).sum())
        shown = f"a standard deviation below {limits['std']:g}"
    else:
        return Unseen("the usual entropy of such actions is not known")
    if len(entropies) < limits["rows"]:
        return Unseen(_few_rows(len(entropies), limits))
    at = _stays_below(steps, entropies, floor, int(limits["rows"]))
    if at is None or at > limits["progress"] * facts.number("run.total_steps", 0) or _had_learned(facts, at):
        return None
    now = float(np.median(entropies[steps >= at]))
    sentence = f"its entropy is {number(now)}, {shown}, since step {at:,.0f}, before the return had risen"
    return Evidence(sentence, {"entropy": now, "floor": floor, "since": at}, 0.8, {"policy/entropy": floor})


def _stays_below(steps: np.ndarray, values: np.ndarray, floor: float, rows: int) -> float | None:
    """The step after which nearly all values are below the floor; None if there is none."""
    below = values < floor
    rest = np.arange(len(values), 0, -1)  # values from each one on
    share = np.cumsum(below[::-1])[::-1] / rest  # of them, those below the floor
    found = np.flatnonzero(below & (rest >= rows) & (share > 0.9))
    return float(steps[found[0]]) if len(found) else None


def _had_learned(facts: Facts, at: float) -> bool:
    """Whether the return had clearly made half of its way from the first to the best by this step.

    It may have fallen later. The update before this row may have changed the policy already, for
    better or worse, so the row before must say it too.
    """
    verdict = facts.verdict
    if verdict.first is None or verdict.best is None or verdict.clear is None:
        return False
    steps, returns = facts.run.curve("episode/return")
    # The first rows are means of few episodes, which are high by chance.
    averaged = np.interp(steps, *facts.run.curve("episode/count")) >= AVERAGED
    last_two = returns[(steps <= at) & averaged][-2:]
    way = max(0.5 * (verdict.best - verdict.first), verdict.clear)
    return len(last_two) == 2 and bool(last_two.min() - verdict.first > way)


def dead_gradients(facts: Facts, limits: Limits) -> Outcome:
    if reason := facts.missing("optimizer/grad_norm"):
        return Unseen(reason)
    if len(facts.values("optimizer/grad_norm")) < 2 * limits["rows"]:
        return Unseen(_few_rows(len(facts.values("optimizer/grad_norm")), {"rows": 2 * limits["rows"]}))
    for metric in ("optimizer/grad_norm", "optimizer/actor_grad_norm"):
        norms = facts.values(metric)
        late = norms[len(norms) // 2 :]
        if len(late) >= limits["rows"] and np.mean(late < limits["norm"]) > limits["share"]:
            share = float(np.mean(late < limits["norm"]))
            sentence = f"{metric} is below {limits['norm']:g} in {100 * share:.0f} % of the rows of the second half"
            return Evidence(sentence, {"share": share}, 0.7, {metric: limits["norm"]})
    return None


def values_worse_than_constant(facts: Facts, limits: Limits) -> Outcome:
    values = facts.values("value/explained_variance")
    if reason := facts.missing("value/explained_variance") or facts.too_early(limits["progress"]):
        return Unseen(reason)
    if len(values) < limits["rows"]:
        return Unseen(_few_rows(len(values), limits))
    if facts.learns:
        return None
    late = float(np.median(values[len(values) // 2 :]))
    if late >= limits["explained_variance"]:
        return None
    sentence = f"explained variance is {number(late)} in the second half of the run; a constant has 0"
    lines = {"value/explained_variance": 0.0}
    return Evidence(sentence, {"explained_variance": late}, 0.6, lines)


def evaluation_below_training(facts: Facts, limits: Limits) -> Outcome:
    if reason := facts.missing("eval/return_mean", "episode/return"):
        return Unseen(reason)
    if not facts.setting("run.eval_deterministic", True):
        return Unseen("evaluation samples its actions, too")
    if reason := facts.too_early(limits["progress"]):
        return Unseen(reason)
    steps, scores = facts.run.curve("eval/return_mean")
    at, returns = facts.run.curve("episode/return")
    episodes = facts.last("eval/episodes") or 1
    near = returns[at <= steps[-1]]
    if not len(near):
        return Unseen("no return was logged before the last evaluation")
    if episodes < limits["episodes"]:
        return Unseen(f"the last evaluation has {episodes:.0f} episodes, of at least {limits['episodes']:.0f}")
    training, score = float(np.mean(near[-max(1, len(near) // 10) :])), float(scores[-1])
    error = (facts.last("eval/return_std") or 0.0) / math.sqrt(episodes)
    span = max(float(np.ptp(returns)), 0.5 * abs(training))
    if training - score <= max(limits["share"] * span, limits["errors"] * error):
        return None
    sentence = f"the last evaluation returned {number(score)}, training at the same time {number(training)}"
    return Evidence(sentence, {"evaluation": score, "training": training}, 0.85)


def time_in_environment(facts: Facts, limits: Limits) -> Outcome:
    seconds = [facts.values(f"time/{name}_seconds") for name in ("environment", "policy", "learning")]
    if facts.setting("env.workers") or facts.setting("env.ray_actors") or facts.setting("pool"):
        return None  # environments are stepped by other processes already
    if facts.number("env.num_envs", 1) < 2:
        return Unseen("one environment cannot be shared among workers")
    if not all(map(len, seconds)):
        compiled = facts.setting("env.backend") == "compiled"
        return Unseen("compiled environments have no times of their own" if compiled else "the run has no times yet")
    steps = facts.run.curve("time/environment_seconds")[0]
    parts = [float(values[-1] - values[0]) for values in seconds]  # without the first update, which is compiled
    share = parts[0] / max(sum(parts), 1e-9)
    each = 1000 * parts[0] / max(1.0, steps[-1] - steps[0])
    if share < limits["share"] or each < limits["milliseconds"] or parts[0] < limits["seconds"]:
        return None
    sentence = f"{100 * share:.0f} % of the time went into environments, {number(each)} ms for each step"
    return Evidence(sentence, {"share": share, "milliseconds": each}, 0.8, {"time/environment_share": limits["share"]})


def _highest_mean(values: np.ndarray, count: int) -> float:
    """The highest of the means of so many values in a row; 0 if there are fewer."""
    if len(values) < count:
        return 0.0
    return float(np.lib.stride_tricks.sliding_window_view(values, count).mean(axis=1).max())


def _few_rows(count: int, limits: Limits) -> str:
    return f"{count} rows of metrics say it, of at least {limits['rows']:.0f}"
