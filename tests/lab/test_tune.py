"""A search for settings: its runs are ordinary ones, and it survives the death of any process."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import birl
from birl.algos import ppo
from birl.config import ConfigError
from birl.lab.solution import Found, found_policies
from birl.lab.tuning.journal import Journal, SearchState, Trial
from birl.lab.tuning.plan import read_plan, write_plan
from birl.lab.tuning.result import result_texts
from birl.lab.tuning.worker import TIME_IS_OVER, Stops, make_runs, run_dir_of, train_run
from birl.run.checkpoint import read_best
from birl.run.directory import read_settings
from birl.run.evaluating import Evaluation
from birl.run.history import read_history
from birl.run.loading import find_checkpoint
from birl.settings import declared_search
from tests.run.processes import COMMAND, ENVIRONMENT, assert_same_run, call, call_well, end_of, wait_until

# One program serves all trials: only numbers that are traced are searched.
FIXED = sorted(set(declared_search(ppo.Config)) - {"learning_rate", "entropy_weight"})
SETTINGS: dict[str, Any] = {
    "num_envs": 4, "rollout_length": 16, "epochs": 1, "minibatches": 1, "hidden_sizes": (8,), "eval_episodes": 2,
    "checkpoint_every": 64, "total_steps": 900,
}  # fmt: skip
SEARCH: dict[str, Any] = {"seeds": 2, "final_seeds": 2, "sampler": "random", "fix": FIXED, "preset": False}
WORDS = [
    "tune", "ppo", "CartPole-v1", "--no-preset", "--sampler", "random", "--seeds", 2, "--final-seeds", 2, "--jobs", 2,
    "--num-envs", 4, "--rollout-length", 16, "--epochs", 1, "--minibatches", 1, "--hidden-sizes", 8,
    "--eval-episodes", 2, "--checkpoint-every", 64, *(w for n in FIXED for w in ("--fix", n)),
]  # fmt: skip


def search(run_dir: Path, **options: Any) -> dict[str, Any]:
    return birl.tune("ppo", "CartPole-v1", run_dir=run_dir, quiet=True, jobs=1, **SEARCH, **SETTINGS, **options)


def state_of(directory: Path) -> SearchState:
    state = SearchState(read_plan(directory)[0])
    state.add(Journal(directory).read())
    return state


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tune") / "search"
    search(directory, trials=4)
    return directory


def test_the_winner_is_trained_again_on_seeds_that_the_search_has_not_seen(searched: Path) -> None:
    result = json.loads((searched / "result.json").read_text())
    state = state_of(searched)
    assert len(state.trials) == 4
    assert result["winner"] in range(4)
    assert set(result["fresh"]["returns"]) == {"seed-1001", "seed-1002"}
    assert not {1001, 1002} & set(state.plan.seeds)
    assert json.loads((searched / "final" / "summary.json").read_text())["points"][0]["iqm"] == result["fresh"]["iqm"]
    if result["winner"] != 0:
        assert set(result["default"]["returns"]) == {"seed-1001", "seed-1002"}


def test_the_page_has_the_trials_and_the_final_runs(searched: Path) -> None:
    page = (searched / "report.html").read_text()
    for text in ("Result of the search", "Trials", "settings to begin with", "learning_rate=", "birl train --config"):
        assert text in page
    assert "seed-1001" in page


def test_the_first_trial_has_the_settings_to_begin_with(searched: Path) -> None:
    first, second = (read_settings(searched / f"trials/000{n}/seed-1").values for n in (0, 1))
    assert first["learning_rate"] == ppo.Config().learning_rate
    assert second["learning_rate"] != first["learning_rate"]
    assert second["run"]["total_steps"] == 900


def test_only_some_trials_are_trained_to_the_end_and_each_rung_has_an_evaluation(searched: Path) -> None:
    state = state_of(searched)
    for trial in state.trials:
        for seed, lane in trial.lanes.items():
            steps, scores = read_history(searched / trial.name / f"seed-{seed}").curve("eval/return_mean")
            assert len(steps) == lane.rung + 1 or trial.number in (state.finalists or [])
            assert scores[0] == lane.scores[0]
            assert 100 <= steps[0] < 200
    assert any(trial.rung < 2 for trial in state.trials)


def test_a_trial_that_was_paused_at_each_rung_ends_in_the_same_bits_as_a_whole_run(
    searched: Path, tmp_path: Path
) -> None:
    winner = state_of(searched).trials[json.loads((searched / "result.json").read_text())["winner"]]
    paused = searched / winner.name / "seed-1"
    assert len(winner.lanes[1].scores) >= 2
    assert_same_run(paused, trained_again(paused, tmp_path))


def test_best_json_is_a_file_that_train_takes(searched: Path, tmp_path: Path) -> None:
    settings = read_settings(searched / "final" / "seed-1001").values
    call_well("train", "--config", searched / "best.json", "--seed", 1001, "--run-dir", tmp_path / "again")
    again = read_settings(tmp_path / "again").values
    assert again | {"run": 0} == settings | {"run": 0}
    assert again["run"]["total_steps"] == settings["run"]["total_steps"]
    assert end_of(tmp_path / "again") == end_of(searched / "final" / "seed-1001")


def test_random_trials_are_the_same_without_halving(searched: Path, tmp_path: Path) -> None:
    search(tmp_path / "whole", trials=2, rungs=1)
    ours, theirs = state_of(tmp_path / "whole"), state_of(searched)
    assert [trial.point for trial in ours.trials] == [trial.point for trial in theirs.trials[:2]]
    assert all(trial.rung == 0 and trial.lanes[1].env_steps >= 900 for trial in ours.trials)


def test_a_search_that_is_over_is_not_begun_again(searched: Path) -> None:
    before = (searched / "journal.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds a search already, and it is over"):
        search(searched, trials=4)
    with pytest.raises(ConfigError, match="it has other settings"):
        search(searched, trials=4, rungs=1)
    assert (searched / "journal.jsonl").read_bytes() == before


def test_a_search_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the search has no end: give minutes, trials or both"):
        search(tmp_path / "search")


def test_a_search_of_a_stranger_may_not_import_a_module(searched: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(searched, copy)
    plan = read_plan(copy)[0]
    config = plan.candidates[0].config
    evil = dataclasses.replace(config, env=dataclasses.replace(config.env, id="tests.envs.hybrid:Hybrid-v0"))
    write_plan(copy, dataclasses.replace(plan, candidates=(dataclasses.replace(plan.candidates[0], config=evil),)))
    read_plan(copy)  # signed by this user
    stored = json.loads((copy / "tune.json").read_text())
    (copy / "tune.json").write_text(json.dumps(stored | {"search_seed": 5}))
    with pytest.raises(ConfigError, match="was not made here, or not by you"):
        read_plan(copy)
    read_plan(copy, trust=True)


def strangers(searched: Path, directory: Path, **changes: Any) -> Path:
    """The plan of a search that this user has not signed."""
    stored = json.loads((searched / "tune.json").read_text())
    del stored["signatures"], stored["signature"]
    stored["candidates"][0] |= changes
    directory.mkdir()
    (directory / "tune.json").write_text(json.dumps(stored))
    return directory


@pytest.mark.parametrize("name", ["ray_address", "workers", "encoder", "kwargs"])
def test_a_search_of_a_stranger_tries_only_settings_that_the_algorithm_lists(
    searched: Path, tmp_path: Path, name: str
) -> None:
    usual = {"epochs": {"choices": [1, 2]}}
    assert read_plan(strangers(searched, tmp_path / "usual", space=usual))[0].candidates[0].space
    evil = strangers(searched, tmp_path / "evil", space=usual | {name: {"choices": [2]}})
    with pytest.raises(ConfigError, match=f"not made here, or not by you, and searches {name}"):
        read_plan(evil)
    read_plan(evil, trust=True)


def test_runs_of_a_stranger_are_not_trusted_because_the_search_was_asked_for(searched: Path, tmp_path: Path) -> None:
    directory = strangers(searched, tmp_path / "search")
    event = {"event": "trial", "trial": 0, "candidate": 0, "point": None, "how": "default", "at": 1.0}
    (directory / "journal.jsonl").write_text(json.dumps(event) + "\n")
    for seed in (1, 2):
        run = shutil.copytree(searched / f"trials/0000/seed-{seed}", directory / f"trials/0000/seed-{seed}")
        shutil.rmtree(run / "checkpoints")
        stored = json.loads((run / "config.json").read_text())
        stored["config"]["env"]["id"] = "tests.envs.hybrid:Hybrid-v0"
        (run / "config.json").write_text(json.dumps(stored))
    result = search(directory, trials=1)
    assert "was not made here, or not by you" in result["trials"][0]["problem"]


def test_a_search_of_a_stranger_does_not_lead_out_of_its_directory(searched: Path, tmp_path: Path) -> None:
    victim = shutil.copytree(searched / "trials/0000", tmp_path / "victim")
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    directory = strangers(searched, tmp_path / "search")
    event = {"event": "trial", "trial": 0, "candidate": 0, "point": None, "how": "default", "at": 1.0}
    (directory / "journal.jsonl").write_text(json.dumps(event) + "\n")
    (directory / "trials").mkdir()
    (directory / "trials" / "0000").symlink_to(victim)
    result = search(directory, trials=1)
    assert "is a symbolic link" in result["trials"][0]["problem"]
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before


def test_nothing_else_begins_in_the_directory_of_a_search(searched: Path) -> None:
    before = (searched / "tune.json").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"already holds a search \(tune.json, journal.jsonl\)"):
            birl.train("ppo", "CartPole-v1", run_dir=searched, overwrite=overwrite, total_steps=64, quiet=True)
    with pytest.raises(ConfigError, match="already holds a search"):
        birl.solve("CartPole-v1", trials=1, total_steps=64, run_dir=str(searched), quiet=True)
    assert (searched / "tune.json").read_bytes() == before


def test_a_function_of_this_process_is_refused_at_once(tmp_path: Path) -> None:
    from birl.envs.compiled.classic import CartPole

    with pytest.raises(ConfigError, match="a function that only this process has, and a search uses other processes"):
        birl.tune("ppo", make_env=lambda: CartPole(), backend="compiled", trials=1, run_dir=tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_the_end_of_the_time_is_no_signal() -> None:
    received: list[int] = []
    stops = Stops(received)
    assert not stops
    stops.time_is_over = True
    assert (list(stops), received) == ([TIME_IS_OVER], [])
    received.append(signal.SIGINT)  # the first signal, which lets a run save
    assert stops[0] == signal.SIGINT


def test_an_environment_that_fails_makes_a_trial_fail_and_not_the_search(tmp_path: Path) -> None:
    result = birl.tune(
        "ppo", "tests.lab.brittle:Brittle-v0", run_dir=tmp_path / "search", quiet=True, jobs=1, trials=6,
        rungs=1, max_episode_steps=50, search=["max_episode_steps=40,1000"],
        **(SEARCH | {"seeds": 1, "final_seeds": 1}), **(SETTINGS | {"total_steps": 300}),
    )  # fmt: skip
    settings = [trial["settings"]["max_episode_steps"] for trial in result["trials"][1:]]
    problems = [trial["problem"] for trial in result["trials"]]
    assert set(settings) == {40, 1000}
    assert [problem is not None for problem in problems] == [False, *(longest == 1000 for longest in settings)]
    assert all("it broke" in problem for problem in problems if problem is not None)
    assert result["fresh"]["iqm"] is not None


def test_the_time_of_a_search_ends_it_with_a_winner_and_says_which_final_runs_had_no_time(tmp_path: Path) -> None:
    result = search(tmp_path / "search", minutes=0.1, trials=500)
    assert 1 <= len(result["trials"]) < 500
    assert result["winner"] is not None
    fresh = result["fresh"]
    assert len(fresh["returns"]) + fresh["no_time"] == 2
    late = {0: "", 1: "there was no time for 1 other run", 2: "there was no time for 2 other runs"}[fresh["no_time"]]
    assert late in " ".join(result_texts(tmp_path, result))


def test_a_run_that_is_evaluated_where_it_is_goes_on_from_there(searched: Path, tmp_path: Path) -> None:
    plan = read_plan(searched)[0]
    make_runs(tmp_path, "trials/0000", plan, Trial(0, 0, None, "default", {}))
    run_dir = run_dir_of(tmp_path, "trials/0000", 1)
    cut = train_run(run_dir, 900, True, [], lambda: True)
    assert cut.env_steps < 100
    assert cut.score == read_best(run_dir / "checkpoints")["return_mean"]
    more = train_run(run_dir, 200, True, [], lambda: False)
    assert more.env_steps >= 200
    assert more.score is not None


def test_the_best_checkpoint_of_a_trial_takes_part_and_not_only_its_end(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([5.0, 1.0])
    monkeypatch.setattr(
        "birl.run.evaluating.evaluate_policy", lambda *_: Evaluation(np.array([next(scores)]), np.array([1]))
    )
    make_runs(tmp_path, "trials/0000", read_plan(searched)[0], Trial(0, 0, None, "default", {}))
    run_dir = run_dir_of(tmp_path, "trials/0000", 1)
    first, second = (train_run(run_dir, steps, True, [], lambda: False) for steps in (100, 200))
    assert (first.score, second.score) == (5.0, 1.0)
    trial = {"directory": "trials/0000", "scores": [5.0, 1.0, None], "problem": None}
    found = found_policies(tmp_path, {"trials": [trial]}, 1)
    assert found == [Found(0, run_dir, first.env_steps, 5.0)]
    assert find_checkpoint(run_dir).env_steps == first.env_steps, "its policy is that of the run"


def test_a_search_whose_directory_is_gone_ends_with_a_sentence(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = strangers(searched, tmp_path / "search")

    def lose(*_: Any) -> Iterator[int]:
        shutil.rmtree(directory)
        yield 1

    monkeypatch.setattr("birl.lab.tuning.tuning.run_here", lose)
    code, output = call("tune", "--join", directory, "--jobs", 1)
    assert code == 1
    assert f"birl: training stopped: {directory} was removed, moved or replaced while its runs were training" in output
    assert not directory.exists()


def test_compiled_environments_are_searched(tmp_path: Path) -> None:
    result = search(tmp_path / "search", trials=2, rungs=2, backend="compiled")
    state = state_of(tmp_path / "search")
    steps = {lane.env_steps for trial in state.trials for lane in trial.lanes.values() if lane.rung == 0}
    assert all(300 <= one < 400 for one in steps)  # where the rung is, and not where a chunk would have ended
    assert result["fresh"]["iqm"] is not None


def test_another_process_joins_a_search(tmp_path: Path) -> None:
    directory = tmp_path / "search"
    process = start_search(directory, "--trials", 3, "--total-steps", 9_000, "--jobs", 1)
    wait_until(lambda: (directory / "journal.jsonl").exists(), process)
    output = call_well("tune", "--join", directory, "--jobs", 1)
    assert process.wait(timeout=300) == 0
    assert "on 2 seeds that the search has not seen" in output
    assert sum(event["event"] == "worker" for event in Journal(directory).read()) == 2
    assert_nothing_was_lost_or_done_twice(directory)


def test_options_of_a_new_search_do_not_go_with_join(searched: Path) -> None:
    code, output = call("tune", "--join", searched, "--minutes", 5, "--seeds", 3)
    assert code == 2
    assert "--join takes the search as it is, without --minutes, --seeds; leave" in output


def test_a_search_that_finds_nothing_says_why_and_ends_with_1(searched: Path, tmp_path: Path) -> None:
    directory = strangers(searched, tmp_path / "search")
    stored = json.loads((directory / "tune.json").read_text()) | {"budget": {"minutes": None, "trials": 1}}
    (directory / "tune.json").write_text(json.dumps(stored))
    events: list[dict[str, Any]] = [
        {"event": "trial", "trial": 0, "candidate": 0, "point": None, "how": "default", "at": 1.0},
        {"event": "failed", "group": "trials/0000", "seed": 1, "problem": "it broke", "at": 1.0},
    ]
    (directory / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    code, output = call("tune", "--join", directory, "--jobs", 1)
    assert code == 1, output
    assert "nothing was found: 1 of 1 trial failed, the last: it broke" in output
    assert "1 worker\n" in output


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "birl.lab.tuning.suggesting", raising=False)
    remedy = r"pip install '\.\[tune\]' in a clone of Birl, or search at random"
    with pytest.raises(ConfigError, match=f"Optuna is not installed: {remedy}"):
        birl.tune("ppo", "CartPole-v1", trials=2, run_dir=tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_options_that_cannot_be_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    for words, message in {
        ("--trials", 3, "--search", "gamma=0.9,0.99"): "no setting 'gamma'",
        ("--trials", 3, "--rungs", 20): "rungs 20 are too many",
        ("--trials", 0): "trials 0 must be at least 1",
        (): "the search has no end",
        ("--minutes", 1, "--horizon", 5): "no option --horizon",
    }.items():
        code, output = call("tune", "ppo", "CartPole-v1", "--run-dir", tmp_path / "search", *words)
        assert code == 2, output
        assert message in output
    assert not (tmp_path / "search").exists()


def test_the_help_shows_what_is_searched() -> None:
    output = call_well("tune", "ppo", "CartPole-v1", "--help", "--fix", "clip_range", "--search", "epochs=1:9")
    assert "learning_rate" in output
    assert "clip_range" not in output.partition("searched:")[2]
    assert "1:9" in output


def start_search(directory: Path, *more: Any) -> subprocess.Popen[bytes]:
    words = [*WORDS, "--run-dir", directory, *more]
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def assert_nothing_was_lost_or_done_twice(directory: Path) -> None:
    """Every job is reported once, and every run is the one that no process disturbed."""
    events = Journal(directory).read()
    done = [(event["group"], event["seed"], event["rung"]) for event in events if event["event"] == "done"]
    assert len(done) == len(set(done))
    trials = [event["trial"] for event in events if event["event"] == "trial"]
    assert trials == list(range(len(trials)))
    state = state_of(directory)
    assert all(trial.problem is None and trial.rung >= 0 for trial in state.trials)
    for group, lanes in state.groups():
        for seed in lanes:
            rows = read_history(directory / group / f"seed-{seed}").rows
            steps = [row["env_steps"] for row in rows if "eval/return_mean" not in row]
            assert steps == sorted(set(steps))
    assert state.winner is not None
    for run in (directory / state.trials[state.winner].name / "seed-1", directory / "final" / "seed-1001"):
        assert end_of(run) == end_of(trained_again(run, directory.parent))


def trained_again(run_dir: Path, place: Path) -> Path:
    """The same run from its beginning to its end in this process."""
    again = place / f"again-{run_dir.parent.name}"
    again.mkdir()
    shutil.copy(run_dir / "config.json", again)
    birl.resume(again, quiet=True)
    return again


def test_ctrl_c_stops_a_search_and_the_same_command_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "search"
    process = start_search(directory, "--trials", 3, "--total-steps", 9_000, "--checkpoint-every", 500)
    wait_until(lambda: any(directory.glob("trials/0001/*/checkpoints/*")), process)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 130, output
    assert "continue with: birl resume" in output
    assert not (directory / "result.json").exists()
    output = call_well("resume", directory, "--jobs", 1)
    assert "on 2 seeds that the search has not seen" in output
    assert_nothing_was_lost_or_done_twice(directory)


def kill_something(directory: Path, process: subprocess.Popen[bytes], rng: random.Random) -> bool:
    """Kill a worker of the search, or the command itself; False if there is no worker yet."""
    pids = [int(path.name.split("-")[-2]) for path in directory.glob("workers/*") if path.is_dir()]
    alive = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    if alive and process.poll() is None:
        os.kill(rng.choice([process.pid, *alive]), signal.SIGKILL)
    return bool(alive)


def checkpoints(directory: Path) -> set[Path]:
    return set(directory.glob("*/**/checkpoints/[0-9]*"))


def survive(directory: Path, kills: int, seconds: float, *more: Any) -> int:
    """Search while something is killed now and then; how often it was.

    Between two kills something is saved: a run that dies again and again at one step has failed.
    """
    rng = random.Random(3)
    killed = 0
    before: set[Path] = set()
    process = start_search(directory, *more)
    last = time.monotonic() + 1500
    while not (directory / "result.json").exists():
        assert time.monotonic() < last
        if process.poll() is not None:
            assert process.returncode in (0, -signal.SIGKILL), process.communicate()[0].decode()
            process = start_search(directory, *more)
        time.sleep(rng.uniform(0.0, 1.0) * seconds)
        if killed < kills and checkpoints(directory) - before and kill_something(directory, process, rng):
            killed += 1
            before = checkpoints(directory)
    process.wait(timeout=60)
    return killed


def test_a_search_survives_the_death_of_its_workers(tmp_path: Path) -> None:
    assert survive(tmp_path / "search", 2, 3.0, "--trials", 3, "--total-steps", 9_000) >= 1
    assert_nothing_was_lost_or_done_twice(tmp_path / "search")


@pytest.mark.faults
def test_a_search_survives_twenty_kills(tmp_path: Path) -> None:
    long = ["--trials", 27, "--total-steps", 60_000, "--checkpoint-every", 1_000]  # so that it is not over before
    assert survive(tmp_path / "search", 20, 3.0, *long) == 20
    assert_nothing_was_lost_or_done_twice(tmp_path / "search")
