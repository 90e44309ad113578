"""The end of a search for an agent: the best policy, its score on fresh episodes, a video.

Kept in solve.json, before the search, is what its end needs; in solution.json the result.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from birl.config import ConfigError, EnvConfig, check_fields, from_json, require, to_json
from birl.errors import CheckpointError, EnvError
from birl.lab.random_policy import AgainstRandom, against_random
from birl.lab.report.page import Section, element, join, paragraph, sentences, small
from birl.lab.report.sections import video_element
from birl.lab.tuning.search_output import REPORT, write_page
from birl.lab.tuning.worker import run_dir_of, saved_steps
from birl.registry import name_of, supports
from birl.run import checkpoint
from birl.run.console import counted, number
from birl.run.directory import CHECKPOINTS, POLICY
from birl.run.evaluating import Evaluation, evaluate_policy
from birl.run.files import read_json, write_json
from birl.run.given import Given
from birl.run.loading import load_to_play
from birl.run.policy import Policy
from birl.run.record import record

CONTENDERS = 3  # policies that play against each other
TRIED = 20  # episodes with each
LEAST_EPISODES = 5

Play = Callable[[int, int], Evaluation]  # so many episodes with this seed
Clock = Callable[[], float]
PLAN = "solve.json"  # what the end of a search needs
SOLUTION = "solution.json"
VIDEO = "video.mp4"
FRESH = 1_000_003  # added to the seed: episodes that no trial was evaluated on
CHOOSING = 0.4  # of the time of the ending, for choosing a policy and how it acts
SCORING = 0.45  # of the time of the ending, for the final score
Say = Callable[[str], None]


@dataclass(frozen=True)
class SolveRequest:
    """The user's request, without the time; a search is continued only with the same one."""

    env: EnvConfig
    algorithms: tuple[str, ...]
    total_steps: int | None
    episodes: int
    seed: int


@dataclass(frozen=True)
class SolvePlan:
    """The settings of the final score, and the returns of random actions."""

    episodes: int  # fresh ones, for the final score
    seed: int
    video: bool  # record an episode
    random_returns: tuple[float, ...]
    request: SolveRequest | None = None
    preparation: float = 0.0  # seconds before the search began
    ending: float = 0.0  # seconds that are kept for its end

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.episodes >= 1, f"episodes {self.episodes} must be at least 1")
        require(len(self.random_returns) > 0, "random_returns are missing")

    def at_random(self) -> Evaluation:
        """The episodes of the random policy."""
        returns = np.array(self.random_returns)
        return Evaluation(returns, np.zeros(len(returns)))


def is_solving(directory: Path) -> bool:
    """True if this directory holds a search for an agent."""
    return (directory / PLAN).is_file()


def write_solve_plan(directory: Path, plan: SolvePlan) -> None:
    """Write solve.json."""
    write_json(directory / PLAN, to_json(plan))


def read_solve_plan(directory: Path) -> SolvePlan:
    """The plan in solve.json; ConfigError if it is damaged."""
    path = directory / PLAN
    return from_json(SolvePlan, read_json(path), str(path))


class Found(NamedTuple):
    """The best checkpoint of a trial, by the trial's own evaluations."""

    trial: int
    run_dir: Path
    env_steps: int  # after which it was saved
    score: float


class Player(NamedTuple):
    """A policy that was found, and how it acts."""

    found: Found
    policy: Policy
    env: Any
    deterministic: bool

    def play(self, episodes: int, seed: int) -> Evaluation:
        """Whole episodes."""
        limit = self.policy.config.run.eval_max_steps
        return evaluate_policy(self.policy, self.env, episodes, seed, self.deterministic, limit)


def end_solving(
    directory: Path, result: dict[str, Any], plan: SolvePlan, seconds: float, trust: bool, say: Say
) -> dict[str, Any]:
    """Score and keep the best policy of a search, in so many seconds; the content of solution.json.

    The best checkpoint of each trial takes part, not only the end of the winner: training may have
    made a policy worse.
    """
    found = found_policies(directory, result, plan.seed)
    if not found:
        raise ConfigError(f"no trial in {directory} has finished: {_problems(result)}")
    player, each = best_player(found, plan.seed, seconds * CHOOSING, trust)
    number, run_dir, env_steps, _ = player.found
    trial, deterministic = result["trials"][number], player.deterministic
    episodes = episodes_that_fit(seconds * SCORING, each, plan.episodes, LEAST_EPISODES)
    if episodes < plan.episodes:
        say(f"the final score is that of {episodes} episodes: there is no time for {plan.episodes}")
    played = player.play(episodes, plan.seed + FRESH)
    verdict = against_random(played, plan.at_random())
    policy = directory / POLICY
    player.policy.save(policy)
    video = _record(run_dir, directory / VIDEO, plan.seed, deterministic, trust, say) if plan.video else None
    solution = {
        "directory": str(directory),
        "algorithm": trial["algorithm"],
        "env": result["env"],
        "settings": trial["settings"] or {},
        "run_dir": str(run_dir),
        "policy_steps": env_steps,
        "trial_steps": trial["env_steps"],
        "policy": str(policy),
        "deterministic": deterministic,
        "video": None if video is None else str(video),
        "report": str(directory / REPORT),
        "trials": len(result["trials"]),
        "env_steps": result["env_steps"],
        "seconds": result["seconds"],
        **verdict.as_json(),
    }
    texts = ending_texts(solution, verdict)
    write_page(directory, result, f"An agent for {result['env']}", [agent_section(texts, video)])
    write_json(directory / SOLUTION, solution)  # last: with it the search is over
    for text in texts:
        say(text)
    return solution


def best_player(found: Sequence[Found], seed: int, seconds: float, trust: bool) -> tuple[Player, float]:
    """The policy that scores highest, the way that it acts best, and the seconds of an episode.

    Its most likely actions may be worse than samples: in a state that looks like another, as in a
    grid of which only a part is seen. The episodes are others than those of the final score.
    """
    players = [player_of(one, trust) for one in found[:CONTENDERS]]
    first, each = 0, 0.0
    if len(players) > 1:
        first, each = play_off([player.play for player in players], seed + FRESH - 2, seconds / 2)
    modes = [players[first]._replace(deterministic=True)]
    if supports(name_of(players[first].policy.config)).distribution:
        modes.append(modes[0]._replace(deterministic=False))
    way, each = play_off([mode.play for mode in modes], seed + FRESH - 4, seconds / 2)
    return modes[way], each


def found_policies(directory: Path, result: dict[str, Any], seed: int) -> list[Found]:
    """The best checkpoint of each trial that has a score, highest first."""
    found = []
    for index, trial in enumerate(result["trials"]):
        scores = [score for score in trial["scores"] if score is not None]
        if not scores or trial["problem"] is not None:
            continue
        try:
            run_dir = run_dir_of(directory, trial["directory"], seed)
            best = checkpoint.read_best(run_dir / CHECKPOINTS)
        except CheckpointError:  # a link instead of a directory
            continue
        if best is None:
            found.append(Found(index, run_dir, saved_steps(run_dir), scores[-1]))
        else:
            found.append(Found(index, run_dir, int(best["checkpoint"]), best["return_mean"]))
    return sorted(found, key=lambda one: one.score, reverse=True)


def player_of(found: Found, trust: bool) -> Player:
    """The policy of a checkpoint, acting as in its evaluations."""
    policy, env = load_to_play(found.run_dir, Given(trust=trust))
    return Player(found, policy, env, policy.config.run.eval_deterministic)


def play_off(plays: Sequence[Play], seed: int, seconds: float, clock: Clock = time.monotonic) -> tuple[int, float]:
    """The index of the highest mean return, and the seconds of one of its episodes.

    All play the same episodes: a few, and as many more as fit into the time at that speed.
    """
    begin = clock()
    returns: list[np.ndarray] = []
    each: list[float] = []
    for play in plays:
        before = clock()
        returns.append(play(LEAST_EPISODES, seed).returns)
        each.append((clock() - before) / LEAST_EPISODES)
    more = episodes_that_fit(seconds - (clock() - begin), sum(each), TRIED - LEAST_EPISODES)
    if more > 0 and len(plays) > 1:
        returns = [np.append(own, play(more, seed + 1).returns) for own, play in zip(returns, plays, strict=True)]
    best = int(np.argmax([own.mean() for own in returns]))
    return best, each[best]


def episodes_that_fit(seconds: float, each: float, wanted: int, least: int = 0) -> int:
    """The episodes that can be played in this time; `wanted` at most, and `least` in any case."""
    if seconds == float("inf"):
        return wanted
    return min(wanted, max(least, int(seconds / max(each, 1e-9))))


def ending_texts(solution: dict[str, Any], verdict: AgainstRandom) -> list[str]:
    """The solution in a few sentences."""
    run_dir, policy = solution["run_dir"], solution["policy"]
    steps = f"{counted(solution['trials'], 'trial')}, {solution['env_steps']:,} steps"
    texts = [f"best: {solution['algorithm']} ({steps}); {verdict.text()}"]
    low, high = (number(end) for end in verdict.difference)
    if not verdict.better:
        return [
            *texts,
            f"nothing better than random actions was found: the difference lies between {low} and {high} (95 %)",
            f"what to try: more --minutes; birl diagnose {run_dir}; a reward that more actions can reach",
        ]
    texts.append(f"better than random actions by {low} to {high} (95 %)")
    sample = "" if solution["deterministic"] else " --sample"
    if solution["policy_steps"] < solution["trial_steps"]:
        texts.append(f"its best policy was that of {solution['policy_steps']:,} of {solution['trial_steps']:,} steps")
    texts.append(f'policy {policy}: birl.load("{policy}"), or birl play {run_dir}{sample}')
    if sample:
        texts.append(
            "it acts better by chance than by its most likely actions: policy.act(observation, deterministic=False)"
        )
    if solution["video"] is not None:
        texts.append(f"video {solution['video']}")
    texts.append(f"report {solution['report']}")
    texts.append(f"train longer with these settings: birl train --like {run_dir} --total-steps N")
    return texts


def agent_section(texts: list[str], video: Path | None) -> Section:
    """The solution in the search's page: what the console says, and the video."""
    parts = [paragraph(sentences(f"{text[:1].upper()}{text[1:]}")) for text in texts]
    if video is not None:
        try:
            film = video_element(video, "open it with a player of your own")
            parts.append(element("div", element("figure", film), class_="videos"))
        except ConfigError as problem:
            parts.append(small(f"The video is not here: {problem}."))
    return Section("The agent", join(parts))


def _record(run_dir: Path, path: Path, seed: int, deterministic: bool, trust: bool, say: Say) -> Path | None:
    """The video of an episode; None if the environment cannot be rendered."""
    path.unlink(missing_ok=True)  # of an ending that was interrupted
    try:
        return record(run_dir, path, 1, (seed + FRESH) % 2**31, deterministic, trust=trust)[0]
    except (ConfigError, EnvError) as problem:
        say(f"no video: {problem}")
    except Exception as problem:  # of the environment's own rendering
        say(f"no video: {''.join(traceback.format_exception_only(problem)).strip()}")
    return None


def _problems(result: dict[str, Any]) -> str:
    found = [trial["problem"] for trial in result["trials"] if trial["problem"] is not None]
    return found[-1] if found else "the time was too short; give more minutes"
