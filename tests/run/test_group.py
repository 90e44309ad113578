"""A group of runs: each lane is an ordinary run, however the group is stopped and continued."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import birl
from birl.config import ConfigError
from birl.errors import CheckpointError, RunDirectoryError
from birl.lab.comparison import compare_groups
from birl.lab.sharing.card import card_text, read_subject
from birl.run.checkpoint import checkpoints_in
from birl.run.groups.group_plan import read_group
from birl.run.groups.lane import LaneEnd, LaneOptions, is_finished
from birl.run.groups.lane_training import lane_end, next_turn, run_processes
from birl.run.history import by_settings, read_histories
from birl.run.lock import locked
from birl.run.plot import read_runs, series_of
from tests.envs.counting import Counting
from tests.run.processes import SECONDS, assert_same_run, call, call_well, metric_rows, start, succeed, wait_until
from tests.run.processes import birl as run_birl

TOTAL_STEPS = 8_000
# A checkpoint after each update, so that a kill loses little.
SETTINGS = [
    "--num-envs", 4, "--rollout-length", 16, "--epochs", 4, "--minibatches", 4, "--hidden-sizes", 16,
    "--checkpoint-every", 1, "--eval-episodes", 2, "--total-steps", TOTAL_STEPS,
]  # fmt: skip
TRAIN = ["train", "ppo", "CartPole-v1", *SETTINGS]
FEW = {"num_envs": 2, "rollout_length": 8, "minibatches": 1, "hidden_sizes": (8,), "total_steps": 32}


class Spoilt(Counting):
    """Counts, and gives a reward that is not a number if it is `spoilt`."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, spoilt: bool = False) -> None:
        super().__init__(0, goal=20)
        self.spoilt = spoilt

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, np.nan if self.spoilt else reward, *rest  # type: ignore[return-value]


gym.register("Spoilt-v0", entry_point=Spoilt)


def make_cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, trained at once."""
    directory = tmp_path_factory.mktemp("group")
    said = succeed(*TRAIN, "--seeds", 2, "--seed", 3, "--jobs", 2, "--run-dir", "group", cwd=directory)
    (directory / "output").write_text(said)
    return directory / "group"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the second seed, trained alone."""
    directory = tmp_path_factory.mktemp("single")
    with chdir(directory):
        call_well(*TRAIN, "--seed", 4, "--run-dir", "run")
    return directory / "run"


def content_of(directory: Path) -> dict[str, bytes]:
    """The files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def is_free(run_dir: Path) -> bool:
    """Whether no process trains there."""
    try:
        with locked(run_dir):
            return True
    except ConfigError:
        return False


def wait_until_free(run_dir: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_free(run_dir):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_checkpoint(run_dir: Path) -> bool:
    return len(checkpoints_in(run_dir / "checkpoints")) > 0


def newest_steps(run_dir: Path) -> int:
    return int(checkpoints_in(run_dir / "checkpoints")[-1].name)


def test_a_lane_is_the_run_with_its_seed_bit_for_bit(group, single):
    assert_same_run(group / "seed-4", single)
    assert metric_rows(group / "seed-4") == metric_rows(single)
    settings = [json.loads((run / "config.json").read_text())["config"] for run in (group / "seed-4", single)]
    assert [one["run"].pop("run_dir") for one in settings] == ["group/seed-4", "run"]
    assert settings[0] == settings[1]


def test_a_group_says_what_it_is_and_what_came_of_it(group):
    stored = json.loads((group / "group.json").read_text())
    assert (stored["algorithm"], stored["env"], stored["seeds"], stored["sweep"]) == ("ppo", "CartPole-v1", [3, 4], {})
    assert [lane["directory"] for lane in stored["lanes"]] == ["seed-3", "seed-4"]
    assert stored["config"]["run"]["total_steps"] == TOTAL_STEPS
    (point,) = json.loads((group / "summary.json").read_text())["points"]
    scores = [json.loads((group / name / "summary.json").read_text())["evaluation"]["return_mean"] for name in
              ("seed-3", "seed-4")]  # fmt: skip
    assert [lane["return_mean"] for lane in point["lanes"]] == scores
    assert point["mean"] == point["iqm"] == np.mean(scores), "of two scores the middle half is both"
    assert point["interval"] == [min(scores), max(scores)]
    assert point["worst"]["return_mean"] == min(scores)
    assert "evaluation return" in (group / "seed-3" / "console.log").read_text()


def test_the_console_names_each_lane_and_the_result(group):
    said = (group.parent / "output").read_text()
    assert "group directory group\n2 of 2 lanes to train, 2 at a time\n" in said
    assert re.search(r"^seed-3: 8,\d+ steps, evaluation return", said, re.MULTILINE)
    assert re.search(r"^ppo CartPole-v1: IQM .* over 2 seeds, mean .*, worst .* \(seed-[34]\)$", said, re.MULTILINE)


def test_resuming_a_finished_group_changes_nothing(group):
    before = content_of(group)
    assert "all 2 lanes have finished" in call_well("resume", group)
    assert content_of(group) | {"summary.json": b""} == before | {"summary.json": b""}
    assert json.loads((group / "summary.json").read_text())["points"] == json.loads(before["summary.json"])["points"]


def test_a_group_is_plotted_as_one_line_with_a_band(group):
    (series,) = series_of(read_runs(group, "env_steps", "episode/return"))
    assert len(series.curves) == 2


def test_eval_scores_each_lane_and_the_group(group):
    said = call_well("eval", group, "--episodes", 2).splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == ["seed-3", "seed-4"]
    assert said[2].startswith("IQM ")
    assert "over 2 seeds" in said[2]
    assert call_well("eval", group / "seed-3", "--episodes", 2).startswith("return ")


def test_a_group_has_the_same_score_wherever_it_is_asked_for(group, tmp_path):
    """It is that of the final evaluations, which need not be that of the best checkpoints."""
    copy = shutil.copytree(group, tmp_path / "group")
    for seed, returns in ((3, [400.0, 500.0]), (4, [100.0, 102.0])):
        path = copy / f"seed-{seed}" / "summary.json"
        summary = json.loads(path.read_text())
        summary["evaluation"] |= {"returns": returns, "return_mean": float(np.mean(returns))}
        path.write_text(json.dumps(summary))
    first, second, point, note = call_well("eval", copy).splitlines()
    assert first.startswith("seed-3: return 450 +/- 50 over 2 episodes")
    assert second.startswith("seed-4: return 101 +/- 1 over 2 episodes")
    assert point.startswith("IQM 275.5 (95 % interval 101 to 450) over 2 seeds")
    assert note == (
        "these are the final evaluations, of the policies at the end of training; "
        f"birl eval {copy} --episodes 20 plays the best checkpoint of each run again"
    )
    subject = read_subject(copy)
    assert subject.score.iqm == compare_groups(by_settings(read_histories(copy))).groups[0].score.iqm == 275.5
    card = card_text(subject, None)
    assert "**275.5 (95 % interval 101 to 450)**" in card
    policy = "the policy at the end of training, 2 episodes for each run"
    assert f"The score of a seed is the return of the final evaluation ({policy}). The mean over seeds" in card
    assert "is 275.50 +/- 174.50: `mean_reward` on the Hub." in card


def test_fresh_episodes_of_a_group_say_which_policy_played_them(group):
    first, *_, note = call_well("eval", group, "--episodes", 1).splitlines()
    assert first.endswith(f", policy at {newest_steps(group / 'seed-3'):,} steps")
    assert note == f"the scores of the final evaluations, which birl compare takes: birl eval {group}"
    run = call_well("eval", group / "seed-3", "--episodes", 1)
    assert f"policy of the checkpoint at {newest_steps(group / 'seed-3'):,} steps" in run


def test_a_run_without_a_final_evaluation_has_no_score_in_its_group(group, tmp_path):
    copy = shutil.copytree(group, tmp_path / "group")
    (copy / "seed-3" / "summary.json").unlink()
    code, said = call("eval", copy)
    assert code == 1
    missing = f"seed-3: it has no final evaluation; birl eval {copy / 'seed-3'} plays episodes with its newest policy"
    assert said.splitlines()[0] == missing
    assert "over 1 of 2 seeds" in said


def test_a_lane_is_continued_alone(group, tmp_path):
    words = [*TRAIN[:3], *SETTINGS[:-1], 400, "--run-dir", tmp_path / "group"]
    call_well(*words, "--seeds", 1)
    call_well("resume", tmp_path / "group" / "seed-1", "--total-steps", 800)
    assert json.loads((tmp_path / "group" / "seed-1" / "summary.json").read_text())["env_steps"] >= 800
    assert "all 1 lanes have finished" in call_well("resume", tmp_path / "group"), "it has what its settings ask for"
    said = call_well("resume", tmp_path / "group", "--total-steps", 1200, "--jobs", 1)
    assert "1 of 1 lanes to train" in said, "a group is trained longer as a run is"
    (point,) = json.loads((tmp_path / "group" / "summary.json").read_text())["points"]
    assert point["lanes"][0]["env_steps"] >= 1200


def test_lanes_that_have_passed_a_new_end_are_done(tmp_path):
    """Its processes were killed when one of them had passed the end that it is resumed with."""
    steps = {"seed-1": 160, "seed-2": 32}
    lanes = [{"directory": name, "seed": seed, "settings": {}} for seed, name in enumerate(steps, 1)]
    (tmp_path / "group.json").write_text(json.dumps({"algorithm": "ppo", "env": "CartPole-v1", "lanes": lanes}))
    for seed, (name, total_steps) in enumerate(steps.items(), 1):
        run, options = tmp_path / name, FEW | {"total_steps": 1_000, "eval_episodes": 1}
        with birl.start("ppo", "CartPole-v1", seed=seed, run_dir=run, quiet=True, **options) as training:
            for _ in training:
                if training.env_steps >= total_steps:
                    training.save()
                    break
        (run / "summary.json").unlink()
    ends = {name: newest_steps(tmp_path / name) for name in steps}
    call_well("resume", tmp_path, "--total-steps", 100)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failed"] == {}
    first, second = summary["points"][0]["lanes"]
    assert first["env_steps"] == ends["seed-1"] > 100 <= second["env_steps"] > ends["seed-2"]
    assert first["return_mean"] is not None, "its policy at its end is evaluated"
    assert "all 2 lanes have finished" in call_well("resume", tmp_path), "their settings have the new end"


def test_other_commands_ask_for_one_of_the_runs(group):
    for words in (["play", group], ["record", group], ["train", "--like", group]):
        code, said = call(*words)
        assert code == 2
        assert f"{group} is a group of runs; name one of them, such as {group / 'seed-3'}" in said


def test_however_a_group_is_stopped_its_runs_end_in_the_same_bits(group, tmp_path):
    """First ctrl-C while the first lane runs, then kill -9 of the group's process alone."""
    runs = [tmp_path / "group" / name for name in ("seed-3", "seed-4")]
    words = [*TRAIN, "--seeds", 2, "--seed", 3, "--jobs", 1, "--run-dir", tmp_path / "group"]
    process = start(*words, cwd=tmp_path)
    wait_until(lambda: has_checkpoint(runs[0]), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    said = (tmp_path / "output").read_text()
    assert f"SIGINT: seed-3, seed-4 not finished; continue with: birl resume {tmp_path / 'group'}" in said
    assert "SIGINT: saved at" in (runs[0] / "console.log").read_text(), "the lane had its signal"
    assert not has_checkpoint(runs[1]), "no lane is started after a signal"
    assert not (tmp_path / "group" / "summary.json").exists()
    assert is_free(runs[0]), "the group waits for its lanes"
    saved = checkpoints_in(runs[0] / "checkpoints")[-1]
    assert metric_rows(runs[0])[-1]["env_steps"] == int(saved.name)

    process = start("resume", tmp_path / "group", "--jobs", 2, cwd=tmp_path)
    wait_until(lambda: checkpoints_in(runs[0] / "checkpoints")[-1] > saved and has_checkpoint(runs[1]), process)
    process.kill()
    process.wait()
    for run in runs:
        wait_until_free(run)
    assert not is_finished(runs[1])

    succeed("resume", tmp_path / "group", cwd=tmp_path)
    for name, run in zip(("seed-3", "seed-4"), runs, strict=True):
        assert_same_run(run, group / name)
        assert metric_rows(run) == metric_rows(group / name)
    assert json.loads((tmp_path / "group" / "summary.json").read_text())["failed"] == {}


def test_a_second_signal_ends_the_lanes_at_once(tmp_path):
    words = ["--num-envs", 1, "--rollout-length", 1000, "--minibatches", 1, "--max-episode-steps", 100]
    run = tmp_path / "group" / "seed-1"
    process = start(
        "train", "ppo", "tests.run.test_signals:Slow-v0", *words, "--seeds", 1, "--run-dir", tmp_path / "group",
        cwd=tmp_path,
    )  # fmt: skip
    log = run / "console.log"
    wait_until(lambda: log.exists() and "compiling" in log.read_text(), process)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None, "the first signal waits for the end of the update"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 143
    assert is_free(run)
    assert not has_checkpoint(run), "it did not wait for the end of the update, which takes 50 s and is saved"
    assert "Traceback" not in (tmp_path / "output").read_text()


def test_a_lane_that_fails_is_named_and_the_others_go_on(tmp_path):
    words = ["--num-envs", 2, "--rollout-length", 8, "--minibatches", 1, "--total-steps", 32, "--eval-episodes", 1]
    env = "tests.run.test_group:Spoilt-v0"
    done = run_birl(
        "train", "ppo", env, *words, "--sweep", "kwargs=spoilt True,spoilt False", "--jobs", 1, "--run-dir", "group",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    (failure,) = [line for line in lines if "kwargs=spoilt-True/seed-1 failed: " in line and "reward" in line]
    (finished,) = [line for line in lines if line.startswith("kwargs=spoilt-False/seed-1: ")]
    assert lines.index(failure) < lines.index(finished), "it is named at once"
    assert "see group/kwargs=spoilt-True/seed-1/console.log" in failure
    assert "1 of 2 lanes failed: kwargs=spoilt-True/seed-1; to try again: birl resume group" in lines[-1]
    summary = json.loads((tmp_path / "group" / "summary.json").read_text())
    assert list(summary["failed"]) == ["kwargs=spoilt-True/seed-1"]
    assert "nan" in summary["failed"]["kwargs=spoilt-True/seed-1"]
    assert [point["iqm"] is None for point in summary["points"]] == [True, False]

    done = run_birl("resume", "group", cwd=tmp_path)
    assert done.returncode == 1, "it fails again"
    assert "1 of 2 lanes to train" in done.stdout


def test_birl_train_with_seeds_returns_the_summary(tmp_path, capsys):
    options = FEW | {"eval_episodes": 1, "run_dir": tmp_path / "group", "quiet": True}
    summary = birl.train("ppo", make_env=make_cartpole, sweep={"discount": [0.9]}, jobs=1, **options)
    assert [point["settings"] for point in summary["points"]] == [{"discount": 0.9}]
    assert json.loads((tmp_path / "group" / "summary.json").read_text()) == summary
    assert capsys.readouterr().out == ""
    assert birl.resume(tmp_path / "group", quiet=True)["points"] == summary["points"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"make_env": lambda: make_cartpole(), "seeds": 2}, "is a function that only this process has"),
        ({"make_encoder": lambda *_: None, "env": "CartPole-v1", "seeds": 2}, "encoder 'local:lambda"),
        ({"make_network": make_cartpole, "env": "CartPole-v1", "seeds": 2}, "make_network= is only in this process"),
        ({"env": "CartPole-v1", "seeds": 0}, "seeds 0"),
        ({"env": "CartPole-v1", "seeds": 2, "jobs": 0}, "jobs 0 must be at least 1"),
        ({"env": "CartPole-v1", "jobs": 2}, "jobs 2 is for a group of runs"),
        ({"env": "CartPole-v1", "sweep": ["discount"]}, "must be a dict of lists"),
        ({"env": "CartPole-v1", "sweep": {"discount": [0.9, 1.5]}}, "discount 1.5"),
        ({"env": "CartPole-v1", "sweep": {"discount": [0.9]}, "discount": 0.5}, "discount is swept and set at once"),
        ({"env": "CartPol-v1", "seeds": 2}, "CartPole-v1"),
        ({"env": "CartPole-v1", "seeds": 2, "algorithm": "sac"}, "sac takes Box actions"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(said)):
        birl.train(**{"algorithm": "ppo"} | options)
    assert os.listdir(tmp_path) == []


def test_a_group_is_not_overwritten_but_moved_aside(group, tmp_path):
    with pytest.raises(ConfigError, match="already holds a group"):
        birl.train("ppo", "CartPole-v1", seeds=1, run_dir=group, **FEW)
    with pytest.raises(ConfigError, match="already holds a group"):
        birl.train("ppo", "CartPole-v1", run_dir=group, **FEW)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "group.json").write_text("{}")
    with pytest.raises(ConfigError, match="discount 2"):
        birl.train("ppo", "CartPole-v1", seeds=1, run_dir=tmp_path / "mine", overwrite=True, discount=2.0)
    assert (tmp_path / "mine" / "group.json").exists(), "wrong settings move nothing"


@pytest.mark.parametrize("name", ["../seed-1", "/tmp/seed-1", "", "a/../../b"])
def test_lanes_outside_of_the_group_are_refused(name, tmp_path):
    lanes = [{"directory": name, "seed": 1, "settings": {}}]
    (tmp_path / "group.json").write_text(json.dumps({"algorithm": "ppo", "env": "CartPole-v1", "lanes": lanes}))
    with pytest.raises(CheckpointError, match="is not a lane with a directory below"):
        read_group(tmp_path)


def test_lanes_behind_links_are_refused(tmp_path):
    lanes = [{"directory": "a/seed-1", "seed": 1, "settings": {}}]
    (tmp_path / "group.json").write_text(json.dumps({"algorithm": "ppo", "env": "CartPole-v1", "lanes": lanes}))
    (tmp_path / "elsewhere" / "seed-1").mkdir(parents=True)
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        read_group(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"algorithm": "ppo", "env": "x", "lanes": []}'])
def test_a_damaged_group_is_named_in_one_line(content, tmp_path):
    (tmp_path / "group.json").write_text(content)
    code, said = call("resume", tmp_path)
    assert code == 2
    assert f"{tmp_path / 'group.json'} is damaged" in said
    assert said.count("\n") == 1


def test_the_log_of_a_lane_is_not_written_through_a_link(tmp_path):
    """A group may come from somebody else."""
    (tmp_path / "mine").write_text("")
    (tmp_path / "console.log").symlink_to(tmp_path / "mine")
    ends = [end for end in run_processes([tmp_path], LaneOptions(), 1, []) if end is not None]
    assert [end.problem for end in ends] == [f"{tmp_path / 'console.log'} is not a regular file; remove it"]


@pytest.mark.parametrize("how", ["noticed", "an error", "replaced"])
def test_a_group_whose_directory_is_gone_ends_with_a_sentence(how, tmp_path, monkeypatch):
    directory = tmp_path / "group"

    def lose(run_dirs: list[Path], *_: Any) -> Iterator[LaneEnd | None]:
        yield LaneEnd(run_dirs[0])
        directory.rename(tmp_path / "moved")
        if how == "replaced":
            directory.mkdir()
        if how == "an error":
            (run_dirs[1] / "config.json").read_text()
        yield None

    monkeypatch.setattr("birl.run.groups.group.run_lanes", lose)
    said = f"{directory} was removed, moved or replaced while its runs were training; what they learned is not there. "
    with pytest.raises(RunDirectoryError, match=re.escape(f"{said}Train again, in a directory that stays in place")):
        birl.train("ppo", "CartPole-v1", seeds=2, run_dir=directory, quiet=True, **FEW)
    assert how == "replaced" or not directory.exists()


def test_a_lane_whose_directory_is_gone_fails_and_the_others_go_on(tmp_path):
    assert lane_end(tmp_path / "seed-1", 1, 0, False) == LaneEnd(
        tmp_path / "seed-1", f"{tmp_path / 'seed-1'} was removed or moved while it was training there"
    )

    def lose() -> Iterator[None]:
        yield
        (tmp_path / "seed-1" / "metrics.jsonl").read_text()

    lane = lose()
    assert next_turn(tmp_path / "seed-1", lane) is None
    end = next_turn(tmp_path / "seed-1", lane)
    assert end is not None
    assert "FileNotFoundError" in str(end.problem)
