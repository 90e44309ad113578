"""Searching for settings: `tune` begins a search, `continue_search` goes on with one."""

import dataclasses
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from birl.config import ConfigError, EnvConfig, require
from birl.envs.make import MakeEnv, require_importable, spaces_of
from birl.lab.tuning.halving import Over, next_step
from birl.lab.tuning.journal import Journal, SearchState, waiting_for
from birl.lab.tuning.plan import (
    Budget,
    Candidate,
    SamplerName,
    TunePlan,
    is_search,
    make_plan,
    plan_json,
    read_plan,
    write_plan,
)
from birl.lab.tuning.result import RESULT, result_texts, write_result
from birl.lab.tuning.search_output import SearchConsole, write_page
from birl.lab.tuning.search_space import search_space
from birl.lab.tuning.suggesting import load_optuna
from birl.lab.tuning.supervise import run_here, run_on_ray
from birl.registry import name_of
from birl.run.configure import called_config, called_env, with_settings
from birl.run.console import counted
from birl.run.directory import SUMMARY, claim_named, staying_in_place, task_name
from birl.run.files import require_real_directory, write_json
from birl.run.given import Given
from birl.run.groups.group import lane_address, require_jobs, require_trainable
from birl.run.groups.group_plan import plan_group, read_group
from birl.run.groups.group_results import make_group_summary
from birl.run.signals import Interrupted, caught_signals
from birl.workers.child import usable_cpus


def tune(
    algorithm: Any,
    env: str | EnvConfig | None = None,
    *,
    minutes: float | None = None,
    trials: int | None = None,
    seeds: int = 2,
    final_seeds: int = 5,
    rungs: int = 3,
    sampler: SamplerName = "tpe",
    search: Iterable[str] = (),
    fix: Iterable[str] = (),
    preset: bool = True,
    search_seed: int = 0,
    jobs: int | None = None,
    make_env: MakeEnv | None = None,
    quiet: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Search for the settings with the highest return; the content of result.json.

    `minutes` of wall clock or a number of `trials` end the search. Trials are trained on `seeds`
    seeds each and compared at `rungs` numbers of steps; 1: every trial is trained to the end. The
    winner is trained again on `final_seeds` other seeds (0: not at all), beside the settings to
    begin with, which are the preset's, or the defaults without `preset`. `search` and `fix` change
    what is searched, as on the command line: `search=["learning_rate=1e-4:1e-2"]`. The others are
    the settings of `birl.train`. A search in the same directory that was stopped is continued.
    """
    budget = Budget(minutes, trials)
    given = Given(env, make_env=make_env)
    config, notices = called_config(algorithm, called_env(algorithm, given), given, settings, preset)
    plan = plan_search(config, budget, seeds, final_seeds, rungs, sampler, search, fix, search_seed)
    return run_search(plan, config.run.run_dir, jobs, lane_address(config), notices, quiet)


def plan_search(
    config: Any,
    budget: Budget,
    seeds: int,
    final_seeds: int,
    rungs: int,
    sampler: SamplerName,
    search: Iterable[str],
    fix: Iterable[str],
    search_seed: int,
) -> TunePlan:
    """The plan of a search around one Config; ConfigError if it cannot be trained."""
    if lane_address(config) is not None:  # of the workers, not of the runs
        config = with_settings(config, {"ray_address": None})
    require_importable(config.env, "a search", "birl.train")
    require_trainable(plan_group(lambda _: config, {}, 1))
    space, config = search_space(config, *spaces_of(config.env), search, fix)
    candidate = Candidate(name_of(config), config, space)
    return make_plan((candidate,), budget, seeds, final_seeds, rungs, sampler, search_seed)


def run_search(
    plan: TunePlan,
    run_dir: str | None = None,
    jobs: int | None = None,
    ray_address: str | None = None,
    notices: Sequence[str] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Search by this plan in a new directory, or go on with the same search; its result."""
    require_jobs(jobs)
    if plan.sampler == "tpe":
        load_optuna()  # so that a missing extra is named at once
    directory, is_new = _open_directory(plan, run_dir)
    said = [] if is_new else ["going on with the search that is there"]
    # The user has just asked for these settings, whether or not they could be signed. But the runs
    # of a search that was there may be someone else's.
    return _work(directory, plan, jobs, ray_address, is_new, [*notices, *said], quiet)


def continue_search(
    directory: str | Path,
    jobs: int | None = None,
    ray_address: str | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Work on the search in this directory until it is over; its result.

    The search may be at work on other machines, or may have been stopped. One that was made
    elsewhere or by someone else may import a module only with `trust`.
    """
    require_jobs(jobs)
    path = Path(directory)
    require(is_search(path), f"{path} holds no search; begin one with birl tune ALGORITHM ENV --minutes 30")
    plan, notices = read_plan(path, trust)
    return _work(path, plan, jobs, ray_address, trust, notices, quiet)


def _open_directory(plan: TunePlan, run_dir: str | None) -> tuple[Path, bool]:
    """The directory of a search with its tune.json, and whether it is new."""
    first = plan.candidates[0]
    plain = Path("runs") / f"tune-{task_name(first.algorithm, first.config)}"
    path = plain if run_dir is None else Path(run_dir)
    if is_search(path):
        same = False
        with suppress(ConfigError):  # of a plan that is damaged, or needs consent
            same = plan_json(dataclasses.replace(read_plan(path)[0], budget=plan.budget)) == plan_json(plan)
        if same and not (path / RESULT).exists():
            with waiting_for(path):
                write_plan(path, plan)
            return path, False
        other = "it is over" if same else "it has other settings"
        remedy = f"use another run_dir, or remove {path}"
        require(run_dir is None, f"{path} holds a search already, and {other}; {remedy}")
    path, _, _ = claim_named(plain, run_dir, overwrite=False)
    write_plan(path, plan)
    return path, True


def _work(
    directory: Path,
    plan: TunePlan,
    jobs: int | None,
    ray_address: str | None,
    trust: bool,
    notices: Sequence[str],
    quiet: bool,
) -> dict[str, Any]:
    """Keep workers at work until the search is over, and write its result."""
    count = jobs or usable_cpus()
    journal, state = Journal(directory), SearchState(plan)
    console = SearchConsole(sys.stdout, quiet)
    with staying_in_place(directory) as require_in_place, caught_signals() as signals, closing(console):
        where = "" if ray_address is None else f", tasks of the Ray cluster at {ray_address}"
        for text in [*notices, f"search directory {directory}", f"{counted(count, 'worker')}{where}", _plan_text(plan)]:
            console.message(text)
        run = run_here if ray_address is None else partial(run_on_ray, ray_address)
        with closing(run(directory, count, trust, signals, partial(_progress, state))) as workers:  # type: ignore[type-var]
            for _ in workers:
                require_in_place()
                before = state.finalists, state.winner, {trial.number for trial in state.trials if trial.problem}
                state.add(journal.read())
                _announce(console, state, *before)
                console.show(state, count)
        state.add(journal.read())
        if signals:
            console.message(f"{signal.Signals(signals[0]).name}: saved; continue with: birl resume {directory}")
            raise Interrupted(128 + signals[0])
        require(isinstance(next_step(state, time.time(), count), Over), f"the workers of {directory} ended too early")
        for group in state.finals:
            require_real_directory(directory / group)
            lanes = state.finals[group].items()
            problems = {f"seed-{seed}": lane.problem for seed, lane in lanes if lane.problem is not None}
            write_json(directory / group / SUMMARY, make_group_summary(read_group(directory / group), problems))
        result = write_result(directory, state, time.time())
        page = write_page(directory, result, f"Settings of {', '.join(_algorithms(plan))} on {plan.env_id}")
        for text in [*result_texts(directory, result), f"page: {page}"]:
            console.message(text)
    return result


def _progress(state: SearchState) -> int:
    """A number that grows with what the workers get done."""
    lanes = [lane for _, lanes in state.groups() for lane in lanes.values()]
    return sum(len(lane.scores) + (lane.problem is not None) for lane in lanes)


def _announce(
    console: SearchConsole, state: SearchState, finalists: list[int] | None, winner: int | None, failed: set[int]
) -> None:
    """Say what is new."""
    for trial in state.trials:
        if trial.problem is not None and trial.number not in failed:
            console.message(f"trial {trial.number} failed: {trial.problem}")
    if state.finalists is not None and finalists is None:
        chosen = ", ".join(map(str, state.finalists))
        console.message(
            f"the search is over after {counted(len(state.trials), 'trial')}; the best are trained to the end: {chosen}"
        )
    if state.winner is not None and winner is None:
        seeds = ", ".join(map(str, state.plan.final_seeds))
        again = f"; it is trained again on seeds {seeds}" if seeds else ""
        console.message(f"trial {state.winner} wins{again}")


def _algorithms(plan: TunePlan) -> list[str]:
    return list(dict.fromkeys(candidate.algorithm for candidate in plan.candidates))


def _plan_text(plan: TunePlan) -> str:
    names = dict.fromkeys(name for candidate in plan.candidates for name in candidate.space)
    searched = ", ".join(names) if len(plan.candidates) == 1 else f"{len(names)} settings"
    numbers = range(len(plan.rungs))
    steps = [", ".join(f"{plan.steps(one, rung):,}" for rung in numbers) for one in range(len(plan.candidates))]
    each = [f"{candidate.algorithm} {at}" for candidate, at in zip(plan.candidates, steps, strict=True)]
    compared = steps[0] if len(set(steps)) == 1 else "; ".join(each)
    return f"{counted(len(plan.seeds), 'seed')} a trial, compared at steps {compared}; searched: {searched}"
