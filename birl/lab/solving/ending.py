"""The end of a search for an agent: the policy, its score on fresh episodes, a video, a verdict."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from birl.config import ConfigError
from birl.errors import EnvError
from birl.lab.report.elements import Section, element, join, paragraph, sentences, small
from birl.lab.report.videos import video_element
from birl.lab.solving.contenders import (
    CONTENDERS,
    LEAST_EPISODES,
    Found,
    Player,
    episodes_that_fit,
    found_policies,
    play_off,
    player_of,
)
from birl.lab.solving.plan_file import SolvePlan
from birl.lab.solving.verdict import Verdict, judge
from birl.lab.tuning.page import REPORT, write_page
from birl.registry import name_of, supports
from birl.run.console import counted, number
from birl.run.directory import POLICY
from birl.run.files import write_json
from birl.run.record import record

SOLUTION = "solution.json"
VIDEO = "video.mp4"
FRESH = 1_000_003  # added to the seed: episodes that no trial was evaluated on
CHOOSING = 0.4  # of the time of the ending, for choosing a policy and how it acts
SCORING = 0.45  # of the time of the ending, for the final score

Say = Callable[[str], None]


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
    verdict = judge(played, plan.at_random())
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


def ending_texts(solution: dict[str, Any], verdict: Verdict) -> list[str]:
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
