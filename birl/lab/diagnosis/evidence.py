"""Evidence for each rule: a function of its name, of the facts of a run and the limits.

It returns None where nothing is wrong, and raises Unseen where the rule cannot be checked.
"""

import math
from collections.abc import Mapping

import numpy as np
from gymnasium import spaces

from birl.envs.spaces import far_from_one, leaves_of
from birl.lab.diagnosis.diagnoses import Evidence, Unseen
from birl.lab.diagnosis.facts import AVERAGED, Facts, SavedFacts
from birl.run.console import counted, number

Limits = Mapping[str, float]
NO_ACTIONS = "there is no checkpoint that says what the actions are"
CLIPPED_REWARD = 10.0  # normalised rewards are clipped to ±10
GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a Gaussian of standard deviation 1


def observations_constant(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need("observation/constant_share")
    # With compiled environments a row is about one moment, in which all may look the same.
    share = facts.values("observation/constant_share").min()
    largest = facts.values("observation/largest")
    _need_steps(facts, limits)
    if share < limits["share"] or (len(largest) > 0 and np.ptp(largest) > 0):
        return None
    sentence = f"{100 * share:.0f} % of the numbers in an observation never changed in {facts.env_steps:,} steps"
    return Evidence(sentence, {"constant_share": share}, 0.95, {"observation/constant_share": limits["share"]})


def observations_badly_scaled(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.setting("normalize_observations"):
        return None
    facts.need("observation/largest", "observation/widest")
    largest, widest = facts.values("observation/largest").max(), facts.values("observation/widest").max()
    _need_steps(facts, limits)
    off = "and normalize_observations is off"
    if largest > limits["largest"]:
        # A learner that copes with them is not to be told that it cannot.
        confidence = 0.5 if facts.learns else min(0.95, 0.6 + 0.1 * math.log10(largest / limits["largest"]))
        sentence = f"observations hold numbers up to {number(largest)}, {off}"
        return Evidence(sentence, {"largest": largest}, confidence, {"observation/largest": limits["largest"]})
    if 0 < widest < limits["widest"]:
        sentence = f"no number of an observation varies by more than {number(widest)}, {off}"
        return Evidence(sentence, {"widest": widest}, 0.4 if facts.learns else 0.8)
    return None


def actions_not_scaled(facts: Facts, limits: Limits) -> Evidence | None:
    _need_setting(facts, "state_dependent_std")  # a setting of all Gaussian policies, also of old runs
    if facts.setting("scale_actions") or facts.setting("squash_actions") or facts.learns:
        return None
    boxes = [leaf for leaf in leaves_of(_saved(facts, NO_ACTIONS).action_space) if isinstance(leaf, spaces.Box)]
    far = [(box.low[far_from_one(box)], box.high[far_from_one(box)]) for box in boxes if far_from_one(box).any()]
    if not far:
        return None
    low, high = min(float(low.min()) for low, _ in far), max(float(high.max()) for _, high in far)
    sentence = f"actions lie between {number(low)} and {number(high)}, and scale_actions is off"
    return Evidence(sentence, {"low": low, "high": high}, 0.85)


def rewards_not_seen(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need("episode/return", "episode/count")
    returns, episodes = facts.values("episode/return"), facts.values("episode/count")[-1]
    if np.ptp(returns) > 0:
        return None
    _need_exploited(facts, limits)
    _need_episodes(episodes, limits)
    low, high = facts.last("reward/min"), facts.last("reward/max")
    same = low is not None and low == high
    what = f", and every reward was {number(low)}" if same and low is not None else ""
    sentence = f"all of {episodes:,.0f} episodes returned {number(returns[-1])}{what}"
    # A reward that is never 0 and never changes is about when an episode ends.
    confidence = 0.95 if same and low == 0 else 0.75
    return Evidence(sentence, {"return": returns[-1], "episodes": episodes}, confidence)


def time_limit_only(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.learns:
        return None
    facts.need("episode/count")
    _need_exploited(facts, limits)
    episodes = facts.values("episode/count")[-1]
    # Each actor-learner has environments of its own.
    envs = facts.number("env.num_envs", 1) * facts.number("actor_learners", 1)
    per_env = facts.env_steps / max(1.0, envs)
    none = f"no episode has ended in {per_env:,.0f} steps of each environment"
    if episodes == 0 and per_env >= limits["steps_per_env"]:
        return Evidence(none, {"steps_per_env": per_env}, 0.7)
    if not len(facts.values("episode/truncated_share")) and not episodes:
        raise Unseen(f"{none} yet")
    facts.need("episode/truncated_share")
    shares, lengths = facts.values("episode/truncated_share"), facts.values("episode/length")
    rewards = facts.last("reward/min"), facts.last("reward/max")
    # A reward that is never 0 and never changes says only when an episode ends, and here none does.
    ends_matter = rewards[0] is not None and rewards[0] == rewards[1] != 0
    if shares.min() < 1 or not (ends_matter or facts.setting("env.max_episode_steps")):
        return None
    _need_episodes(episodes, limits)
    sentence = f"all of {episodes:,.0f} episodes were cut after {number(lengths[-1])} steps; none has terminated"
    numbers = {"episodes": episodes, "length": float(lengths[-1])}
    return Evidence(sentence, numbers, 0.9 if ends_matter else 0.6, {"episode/truncated_share": 1.0})


def exploration_ended(facts: Facts, limits: Limits) -> Evidence | None:
    steps, epsilons = facts.run.curve("exploration/epsilon")
    if not len(epsilons):
        _need_setting(facts, "exploration")
    facts.need("exploration/epsilon")
    starts = int(facts.number("learning_starts", 0))
    ratio = facts.number("update_ratio", 1.0)
    total = max(1.0, facts.number("run.total_steps", 1))
    low = steps[epsilons <= limits["epsilon"]]
    if not len(low) or epsilons.min() < 0:
        return None
    ended = int(low[0])
    learned = max(0.0, ended - starts) * ratio  # gradient steps until then
    early = ended / total
    if learned >= limits["updates"] or facts.learns or (ended > starts and early > limits["progress"]):
        return None
    sentence = (
        f"ε was {number(epsilons[steps >= ended][0])} after {ended:,} steps, {100 * early:.1f} % of the run; "
        f"{learned:,.0f} gradient steps were taken before"
    )
    numbers = {"ended_at": ended, "learning_starts": starts, "gradient_steps_before": learned}
    return Evidence(sentence, numbers, 0.9 if ended <= starts else 0.7, {"exploration/epsilon": limits["epsilon"]})


def replay_forgets(facts: Facts, limits: Limits) -> Evidence | None:
    _need_setting(facts, "replay_size")
    facts.need("replay/steps", "episode/length")
    held, length = facts.values("replay/steps")[-1], float(np.median(facts.values("episode/length")))
    episodes, batches = held / max(1.0, length), held / max(1.0, facts.number("batch_size", 1))
    forgets = held < limits["share"] * facts.env_steps
    if not forgets or (episodes >= limits["episodes"] and batches >= limits["batches"]):
        return None
    sentence = (
        f"the replay holds {held:,.0f} transitions: {episodes:.1f} episodes, {batches:.1f} batches, "
        f"{100 * held / facts.env_steps:.1f} % of the steps so far"
    )
    return Evidence(sentence, {"held": held, "episodes": episodes, "batches": batches}, 0.7 if facts.learns else 0.9)


def too_few_updates(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.learns:
        return None
    facts.need_progress(limits["progress"])
    _need(facts.verdict.learned != "too short", facts.verdict.sentence)
    if facts.setting("update_ratio") is not None:
        ratio = facts.number("update_ratio", 1.0)
        if ratio >= limits["ratio"]:
            return None
        steps = ratio * max(0.0, facts.env_steps - facts.number("learning_starts", 0))
        sentence = f"update_ratio {ratio:g}: {steps:,.0f} gradient steps in {facts.env_steps:,} environment steps"
        return Evidence(sentence, {"update_ratio": ratio, "gradient_steps": steps}, 0.85)
    _need_setting(facts, "rollout_length")
    one_learner = facts.setting("actor_learners") is None and facts.setting("pool") is None
    _need(one_learner, "how many updates actor-learners make is not known from the settings")
    rollout = facts.number("rollout_length", 1) * facts.number("env.num_envs", 1)
    updates = facts.number("run.total_steps", 0) / max(1.0, rollout)
    each = facts.number("epochs", 1) * facts.number("minibatches", 1)
    if updates * each >= limits["gradient_steps"]:
        return None
    sentence = f"the whole run has {updates:,.0f} updates of {each:.0f} gradient steps"
    return Evidence(sentence, {"updates": updates, "gradient_steps": updates * each}, 0.8)


def steps_too_large(facts: Facts, limits: Limits) -> Evidence | None:
    _need(facts.setting("algorithm") == "ppo", "only PPO logs the KL of an update")
    facts.need("policy/approx_kl")
    kls, clipped = facts.values("policy/approx_kl"), facts.values("policy/clip_fraction")
    _need_rows(len(kls), limits["rows"])
    count = int(limits["rows"])
    kl, clip = _highest_mean(kls, count), _highest_mean(clipped, count)
    if kl <= limits["kl"] and (clip <= limits["clip_fraction"] or facts.learns):
        return None
    sentence = (
        f"over {count} logged rows in a row, the mean KL of an update was up to {number(kl)}, "
        f"and {100 * clip:.0f} % of the steps were clipped; about 0.01 and 10 % are usual"
    )
    lines = {"policy/approx_kl": limits["kl"], "policy/clip_fraction": limits["clip_fraction"]}
    return Evidence(sentence, {"kl": kl, "clip_fraction": clip}, 0.5 if facts.learns else 0.9, lines)


def steps_too_small(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need_progress(limits["progress"])
    facts.need("optimizer/grad_norm")
    part, moved = min(_moved(facts).items(), key=lambda item: item[1])
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


def rewards_too_large(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.learns:
        return None
    facts.need("optimizer/grad_norm")
    part, moved = min(_moved(facts).items(), key=lambda item: item[1])
    if moved > limits["moved"] or not _drowned(facts, limits):
        return None
    norm = float(np.median(facts.values("optimizer/grad_norm")))
    sentence = (
        f"gradients have a norm of {number(norm)} and are cut to {facts.number('max_grad_norm', 0):g}, mostly that of "
        f"the values; no bias of the hidden layers of the {part}, which begin at 0, is above {number(moved)} yet"
    )
    return Evidence(sentence, {"norm": norm, "moved": moved}, 0.9)


def _drowned(facts: Facts, limits: Limits) -> bool:
    """True if one part of the network moves, and its gradients leave nothing to another.

    They are cut together, by their common norm, unless the actor's have a norm of their own.
    """
    if len(facts.values("optimizer/actor_grad_norm")):
        return False
    most = facts.number("max_grad_norm", 0.0)
    moves = facts.saved is not None and max(facts.saved.moved.values()) > limits["moved"]
    return moves and 0 < most * limits["times"] < float(np.median(facts.values("optimizer/grad_norm")))


def weights_too_large(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.learns:
        return None
    part, moved = max(_moved(facts).items(), key=lambda item: item[1])
    if moved <= limits["moved"]:
        return None
    sentence = f"a bias of the hidden layers of the {part}, which began at 0, is at {number(moved)}; below 1 is usual"
    return Evidence(sentence, {"moved": moved}, 0.8)


def target_frozen(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.learns:
        return None
    facts.need_progress(limits["progress"])
    none = "there is no checkpoint with a target network and biases that begin at 0"
    saved = _saved(facts, none)
    _need(bool(saved.moved and saved.target_moved), none)
    own, moved = max(saved.moved.values()), max(saved.target_moved.values())
    if moved > limits["moved"] or own <= limits["moved"]:
        return None
    sentence = (
        f"no bias of the target network's hidden layers, which begin at 0, is above {number(moved)} yet; "
        f"the network's own are up to {number(own)}"
    )
    return Evidence(sentence, {"moved": moved}, 0.9)


def discount_too_small(facts: Facts, limits: Limits) -> Evidence | None:
    if facts.learns:
        return None
    facts.need("episode/length")
    discount, length = facts.number("discount", 1.0), float(np.median(facts.values("episode/length")))
    sees = 1 / (1 - discount) if discount < 1 else math.inf
    if sees > limits["steps"] or length < limits["times"] * sees:
        return None
    ahead = counted(round(sees), "step")
    sentence = f"with a discount of {discount:g}, values look {ahead} ahead; episodes have {number(length)}"
    return Evidence(sentence, {"discount": discount, "length": length}, 0.85)


def values_too_large(facts: Facts, limits: Limits) -> Evidence | None:
    has_mean = len(facts.values("value/mean")) > 0
    metric = "value/mean" if has_mean else "loss/value"
    facts.need(metric, "reward/min", "reward/max")
    bound = value_bound(facts, limits["episodes_long"])
    if bound is None:
        raise Unseen("all rewards were 0, or nothing bounds the values")
    values = facts.values(metric)
    _need_rows(len(values), limits["rows"])
    sizes = np.abs(values) if has_mean else np.sqrt(np.maximum(values, 0.0))
    size = float(np.median(sizes[len(sizes) // 2 :]))
    if size <= limits["times_bound"] * bound:
        return None
    what = "values have a mean of" if has_mean else "values are wrong by"
    sentence = f"{what} {number(size)}; with these rewards and discount none can be larger than {number(bound)}"
    return Evidence(sentence, {"value": size, "bound": bound}, 0.9, {metric: bound if has_mean else bound**2})


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


def dead_units(facts: Facts, limits: Limits) -> Evidence | None:
    share = None if facts.saved is None else facts.saved.dead_share
    if share is None:
        raise Unseen("there is no checkpoint with a plain MLP and ranges of observations")
    if share < limits["share"] or facts.learns:
        return None
    sentence = f"{100 * share:.0f} % of the units of a last hidden layer give the same for every observation"
    return Evidence(sentence, {"dead_share": share}, 0.85)


def policy_collapsed(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need("policy/entropy")
    steps, entropies = facts.run.curve("policy/entropy")
    _need(not len(facts.values("exploration/temperature")), "the entropy is kept at a target")  # by SAC
    space = _saved(facts, NO_ACTIONS).action_space
    if isinstance(space, spaces.Discrete):
        most = math.log(max(2, int(space.n)))
        floor, shown = limits["entropy_share"] * most, f"of at most {most:.2f}"
    elif isinstance(space, spaces.Box) and not facts.setting("squash_actions"):
        far = far_from_one(space) & bool(facts.setting("scale_actions"))  # their entropy is of actions in the bounds
        half = 0.5 * (space.high[far].astype(float) - space.low[far])
        floor = max(1, space.low.size) * (GAUSSIAN + math.log(limits["std"])) + float(np.log(half).sum())
        shown = f"a standard deviation below {limits['std']:g}"
    else:
        raise Unseen("the usual entropy of such actions is not known")
    _need_rows(len(entropies), limits["rows"])
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
    """True if the return had clearly made half of its way from the first to the best by this step.

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


def dead_gradients(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need("optimizer/grad_norm")
    _need_rows(len(facts.values("optimizer/grad_norm")), 2 * limits["rows"])
    for metric in ("optimizer/grad_norm", "optimizer/actor_grad_norm"):
        norms = facts.values(metric)
        late = norms[len(norms) // 2 :]
        if len(late) >= limits["rows"] and (share := float(np.mean(late < limits["norm"]))) > limits["share"]:
            sentence = f"{metric} is below {limits['norm']:g} in {100 * share:.0f} % of the rows of the second half"
            return Evidence(sentence, {"share": share}, 0.7, {metric: limits["norm"]})
    return None


def values_worse_than_constant(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need("value/explained_variance")
    facts.need_progress(limits["progress"])
    values = facts.values("value/explained_variance")
    _need_rows(len(values), limits["rows"])
    late = float(np.median(values[len(values) // 2 :]))
    if facts.learns or late >= limits["explained_variance"]:
        return None
    sentence = f"explained variance is {number(late)} in the second half of the run; a constant has 0"
    return Evidence(sentence, {"explained_variance": late}, 0.6, {"value/explained_variance": 0.0})


def evaluation_below_training(facts: Facts, limits: Limits) -> Evidence | None:
    facts.need("eval/return_mean", "episode/return")
    _need(facts.setting("run.eval_deterministic", True), "evaluation samples its actions, too")
    facts.need_progress(limits["progress"])
    steps, scores = facts.run.curve("eval/return_mean")
    at, returns = facts.run.curve("episode/return")
    episodes = facts.last("eval/episodes") or 1
    near = returns[at <= steps[-1]]
    _need(len(near) > 0, "no return was logged before the last evaluation")
    enough = f"of at least {limits['episodes']:.0f}"
    _need(episodes >= limits["episodes"], f"the last evaluation has {episodes:.0f} episodes, {enough}")
    training, score = float(np.mean(near[-max(1, len(near) // 10) :])), float(scores[-1])
    error = (facts.last("eval/return_std") or 0.0) / math.sqrt(episodes)
    span = max(float(np.ptp(returns)), 0.5 * abs(training))
    if training - score <= max(limits["share"] * span, limits["errors"] * error):
        return None
    sentence = f"the last evaluation returned {number(score)}, training at the same time {number(training)}"
    return Evidence(sentence, {"evaluation": score, "training": training}, 0.85)


def time_in_environment(facts: Facts, limits: Limits) -> Evidence | None:
    seconds = [facts.values(f"time/{name}_seconds") for name in ("environment", "policy", "learning")]
    if facts.setting("env.workers") or facts.setting("env.ray_actors") or facts.setting("pool"):
        return None  # environments are stepped by other processes already
    _need(facts.number("env.num_envs", 1) >= 2, "one environment cannot be shared among workers")
    compiled = facts.setting("env.backend") == "compiled"
    none = "compiled environments have no times of their own" if compiled else "the run has no times yet"
    _need(all(map(len, seconds)), none)
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


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise Unseen(reason)


def _need_setting(facts: Facts, setting: str) -> None:
    _need(facts.setting(setting) is not None, f"{facts.setting('algorithm')} has no {setting}")


def _need_steps(facts: Facts, limits: Limits) -> None:
    enough = f"of at least {limits['env_steps']:.0f}"
    _need(facts.env_steps >= limits["env_steps"], f"{facts.env_steps:,} steps are done, {enough}")


def _need_rows(count: int, least: float) -> None:
    _need(count >= least, f"{count} rows of metrics say it, of at least {least:.0f}")


def _need_episodes(episodes: float, limits: Limits) -> None:
    enough = f"of at least {limits['episodes']:.0f}"
    _need(episodes >= limits["episodes"], f"{episodes:,.0f} episodes have ended, {enough}")


def _need_exploited(facts: Facts, limits: Limits) -> None:
    """Raise Unseen while it is too early for a rule about what is never seen."""
    facts.need_progress(limits["progress"])
    explores = (facts.last("exploration/epsilon") or 0.0) > limits["epsilon"]
    _need(not explores, f"ε is still above {limits['epsilon']:g}")


def _saved(facts: Facts, reason: str) -> SavedFacts:
    if facts.saved is None:
        raise Unseen(reason)
    return facts.saved


def _moved(facts: Facts) -> dict[str, float]:
    """The distance that the biases of each part of the network have moved."""
    reason = "there is no checkpoint with biases that begin at 0"
    moved = _saved(facts, reason).moved
    _need(bool(moved), reason)
    return moved
