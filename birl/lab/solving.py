"""An agent for an environment: `solve` chooses algorithms, searches, and ends with a policy.

1. Check the environment, and score random actions.
2. Measure how fast each algorithm that fits learns here: it gets the steps that the time allows.
3. Search over algorithms and settings by halving, as `tune` does.
4. Score the best policy on fresh episodes, beside random actions; record it, and save it.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from birl.config import ConfigError, EnvConfig, name_of_function, require
from birl.envs.check.checking import check_env
from birl.envs.make import MakeEnv, require_importable
from birl.lab.candidates import Fitting, fitting, round_down, steps_in, training_speed
from birl.lab.random_policy import play_at_random
from birl.lab.solution import (
    LEAST_EPISODES,
    SOLUTION,
    TRIED,
    SolvePlan,
    SolveRequest,
    end_solving,
    is_solving,
    read_solve_plan,
    write_solve_plan,
)
from birl.lab.tuning.halving import UNCOUNTED
from birl.lab.tuning.journal import waiting_for
from birl.lab.tuning.plan import Budget, Candidate, SamplerName, make_plan, read_plan, write_plan
from birl.lab.tuning.search_output import SearchConsole
from birl.lab.tuning.search_space import repaired
from birl.lab.tuning.suggesting import load_optuna
from birl.lab.tuning.tuning import continue_search
from birl.run.configure import with_settings
from birl.run.console import number
from birl.run.directory import claim_named, staying_in_place, task_name
from birl.run.groups.group import require_jobs
from birl.run.start import with_run
from birl.workers.child import usable_cpus

SEEDS = 1  # of each trial: in little time, more settings find more than more seeds
RUNGS = 3
FINALISTS = 2
ENDING = 0.15  # of the time, at least, for choosing the policy, its final score and the video
MOST_ENDING = 0.3  # of the time, at most
RANDOM = 0.01  # of the time, for episodes with random actions
PROBE = 0.01  # of the time, to measure the speed of an algorithm
MOST_PROBE = 0.1  # of the time, at most, with compiling
EVALUATION = 0.02  # of the time, at most, for an evaluation
EVAL_EPISODES = 20
OTHER_EPISODES = 2 * TRIED  # to choose how the policy acts


def solve(
    env: str | EnvConfig | None = None,
    minutes: float | None = None,
    *,
    trials: int | None = None,
    total_steps: int | None = None,
    algorithms: Sequence[str] = (),
    episodes: int = 100,
    seed: int = 1,
    jobs: int | None = None,
    run_dir: str | None = None,
    make_env: MakeEnv | None = None,
    video: bool = True,
    quiet: bool = False,
) -> dict[str, Any]:
    """Search for an agent for this environment; the content of solution.json.

    `minutes` of wall clock, or a number of `trials`, end the search; 10 minutes if neither is
    given. Each trial trains for as many steps as the time allows, or for `total_steps`. The policy
    is scored on `episodes` episodes that no trial has seen. If nothing was better than random
    actions, `better` is False. A search in `run_dir` that was stopped is continued.
    """
    begin = time.monotonic()
    require_jobs(jobs)
    budget = Budget(10.0 if minutes is None and trials is None else minutes, trials)
    config = _env_config(env, make_env)
    request = SolveRequest(config, tuple(algorithms), total_steps, episodes, seed)
    if run_dir is not None and is_solving(Path(run_dir)):
        _go_on(Path(run_dir), request, budget)
        return continue_solving(run_dir, jobs, quiet=quiet)
    say = SearchConsole(sys.stdout, quiet).message
    _check(config, say)
    whole = 60 * (budget.minutes or 10.0)
    at_random, speed = play_at_random(config, seed, RANDOM * whole, max(20.0, 0.2 * whole))
    mean = number(float(at_random.returns.mean()))
    say(f"random actions: return {mean} over {len(at_random.returns)} episodes of {at_random.lengths.mean():.0f} steps")
    found = fitting(config, algorithms, seed, total_steps)
    seconds = float(at_random.lengths.mean()) / speed
    evaluated = max(LEAST_EPISODES, min(EVAL_EPISODES, int(EVALUATION * whole / max(seconds, 1e-9))))
    workers = jobs or usable_cpus()
    candidates = [_candidate(one, evaluated, total_steps, whole, workers, say) for one in found]
    played = episodes if budget.minutes is None else episodes_in(MOST_ENDING * whole, seconds, episodes)
    if played < episodes:
        say(f"the final score is that of {played} episodes: {episodes} would take {episodes * seconds:,.0f} seconds")
    ending = max(ENDING * whole, (played + OTHER_EPISODES) * seconds)
    returns = tuple(at_random.returns.tolist())
    end = SolvePlan(played, seed, video, returns, request, time.monotonic() - begin, ending)
    limits = _search_budget(budget, end)
    plan = make_plan(tuple(candidates), limits, SEEDS, 0, RUNGS, _sampler(), seed, FINALISTS, "solve")
    name = task_name("solve", candidates[0].config)
    directory, _, _ = claim_named(Path("runs") / name, run_dir, overwrite=False)
    write_plan(directory, plan)
    write_solve_plan(directory, end)
    return _search_and_end(directory, jobs, True, quiet)


def continue_solving(
    directory: str | Path, jobs: int | None = None, trust: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Go on with the search for an agent in this directory, to its end; its solution."""
    path = Path(directory)
    require(is_solving(path), f"{path} holds no search for an agent; begin one with birl solve ENV --minutes 10")
    return _search_and_end(path, jobs, trust, quiet)


def _search_and_end(directory: Path, jobs: int | None, trust: bool, quiet: bool) -> dict[str, Any]:
    result = continue_search(directory, jobs, None, trust, quiet)
    say = SearchConsole(sys.stdout, quiet).message
    end, budget = read_solve_plan(directory), read_plan(directory, trust)[0].budget
    with staying_in_place(directory):
        return end_solving(directory, result, end, ending_seconds(budget, end, result["seconds"]), trust, say)


def ending_seconds(budget: Budget, end: SolvePlan, searched: float) -> float:
    """Seconds that are left for the end of a search that took so many; infinite: no limit."""
    if budget.minutes is None:
        return float("inf")
    return max(0.0, (1 - UNCOUNTED) * 60 * budget.minutes + end.ending - searched)


def _env_config(env: str | EnvConfig | None, make_env: MakeEnv | None) -> EnvConfig:
    require((env is None) != (make_env is None), "an environment is needed: its id, an EnvConfig, or make_env=")
    if make_env is not None:
        env = name_of_function(make_env)
    config = EnvConfig(env) if isinstance(env, str) else env
    wrong = f"env {env!r} is not an environment's id"
    if not isinstance(config, EnvConfig):
        raise ConfigError(f"{wrong}; use for example 'CartPole-v1' or 'my_module:MyEnv-v0'")
    require_importable(config, "solve", "birl.train")
    return config


def episodes_in(seconds: float, each: float, wanted: int) -> int:
    """Episodes for the final score that can be played in this time, beside those before it."""
    return min(wanted, max(LEAST_EPISODES, int(seconds / max(each, 1e-9)) - OTHER_EPISODES))


def _search_budget(budget: Budget, end: SolvePlan) -> Budget:
    """The budget without what comes before and after the search.

    Even if measuring took all the time, one trial is trained: the search ends after it.
    """
    if budget.minutes is None:
        return budget
    return Budget(max(0.01, budget.minutes - (end.preparation + end.ending) / 60), budget.trials)


def _go_on(directory: Path, request: SolveRequest, budget: Budget) -> None:
    """Give the search in this directory this budget; ConfigError if it is over, or another one."""
    remedy = "use another run_dir"
    over = (directory / SOLUTION).exists()
    require(not over, f"the search in {directory} is over; see {SOLUTION} there, or {remedy}")
    stored = read_solve_plan(directory)
    again = f"go on with it as it is: birl resume {directory}"
    known = stored.request or request
    before, now = ({**vars(one.env), **vars(one), "env": None} for one in (known, request))
    other = [f"{name} {before[name]!r}, not {value!r}" for name, value in now.items() if before[name] != value]
    require(not other, f"{directory} holds another search: {'; '.join(other)}; {remedy}, or {again}")
    with waiting_for(directory):
        plan, _ = read_plan(directory)
        write_plan(directory, dataclasses.replace(plan, budget=_search_budget(budget, stored)))


def _check(env: EnvConfig, say: Any) -> None:
    """Say what is doubtful about the environment; ConfigError if something is wrong with it."""
    findings = check_env(env)
    for finding in findings:
        if finding.level == "warning":
            say(f"warning: {finding.title}: {finding.explanation}")
    wrong = [f"{finding.title}: {finding.explanation}" for finding in findings if finding.level == "error"]
    require(not wrong, f"{env.id} cannot be trained on yet: {'; '.join(wrong)}; birl check-env {env.id} shows more")


def _candidate(
    one: Fitting, evaluated: int, total_steps: int | None, seconds: float, workers: int, say: Any
) -> Candidate:
    """An algorithm with as many steps for each trial as the time allows."""
    config = with_settings(one.config, {"eval_episodes": evaluated, "eval_every": 0})
    if total_steps is None:
        speed = training_speed(config, PROBE * seconds, min(30.0, MOST_PROBE * seconds))
        config = with_run(config, total_steps=steps_in(seconds, speed, workers))
        rate = f"{round_down(int(speed)):,} steps/s" if speed >= 1 else "less than a step in a second"
        say(f"{one.algorithm}: {rate}, {config.run.total_steps:,} steps a trial")
    return Candidate(one.algorithm, repaired(config), one.space)


def _sampler() -> SamplerName:
    """TPE if Optuna is installed, else random settings."""
    try:
        load_optuna()
    except ConfigError:
        return "random"
    return "tpe"
