"""`birl diagnose` on runs that were really trained, each with one fault."""

import json
import shutil
from dataclasses import replace

import pytest

import birl
from birl.cli import main
from birl.experiments.diagnosis.plot import draw_diagnosis
from birl.experiments.diagnosis.proof import Bounds, proof_text
from birl.run.fork_file import read_fork
from birl.run.history import read_histories
from tests.experiments.broken_runs import BROKEN_RUNS, make_run

QUICK = [name for name, broken in BROKEN_RUNS.items() if broken.quick]
SLOW = [name for name, broken in BROKEN_RUNS.items() if not broken.quick]


def first_cause(name: str, run_dir) -> str:
    (found,) = birl.diagnose(make_run(BROKEN_RUNS[name], run_dir))
    return found.findings[0].rule if found.findings else "nothing"


@pytest.mark.parametrize("name", QUICK)
def test_the_cause_of_a_broken_run_is_named_first(name, tmp_path):
    assert first_cause(name, tmp_path / "run") == BROKEN_RUNS[name].cause


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_cause_of_a_broken_run_that_takes_longer_is_named_first(name, tmp_path):
    assert first_cause(name, tmp_path / "run") == BROKEN_RUNS[name].cause


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """PPO's preset of CartPole, a third of it: early in training, and nothing is wrong."""
    run_dir = tmp_path_factory.mktemp("runs") / "healthy"
    settings = {"log_seconds": 0.0, "eval_episodes": 5, "quiet": True, "run_dir": str(run_dir)}
    with birl.start("ppo", "CartPole-v1", **settings) as run:
        for _ in run:
            if run.env_steps > 16_000:
                break
    return run_dir


def test_a_healthy_run_in_the_middle_of_its_training_has_no_findings(healthy, capsys):
    (found,) = birl.diagnose(healthy)
    assert found.findings == []
    assert found.verdict.learned == "improved"
    assert main(["diagnose", str(healthy)]) == 0
    assert "nothing wrong was found" in capsys.readouterr().out


def test_no_prefix_of_a_healthy_run_raises_an_alarm(healthy, tmp_path):
    lines = (healthy / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(healthy, tmp_path / "run")
    for count in range(1, len(lines), 7):
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:count]))
        (found,) = birl.diagnose(tmp_path / "run")
        assert found.findings == [], count


def test_the_command_prints_json_and_draws_a_picture(healthy, tmp_path, capsys):
    out = tmp_path / "diagnosis.png"
    assert main(["diagnose", str(healthy), "--json", "--out", str(out)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    assert found["verdict"]["learned"] == "improved"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_dollar_in_the_name_of_an_environment_is_drawn_as_one(healthy, tmp_path):
    (found,) = birl.diagnose(healthy)
    named = replace(found, label=r"ppo, a$\nothing$b")  # matplotlib refuses it as a formula
    assert draw_diagnosis(named, read_histories(healthy), tmp_path / "a.png").stat().st_size > 1000


def test_a_directory_without_a_run_is_said(tmp_path, capsys):
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_run_without_its_checkpoints_is_diagnosed_from_its_metrics(healthy, tmp_path):
    shutil.copytree(healthy, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (found,) = birl.diagnose(tmp_path / "run")
    assert {"dead-units", "policy-collapsed"} <= set(found.unseen)


def test_a_damaged_checkpoint_is_left_out(healthy, tmp_path):
    shutil.copytree(healthy, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*/state.safetensors"):
        file.write_bytes(b"damaged")
    (found,) = birl.diagnose(tmp_path / "run")
    assert "dead-units" in found.unseen


WOBBLY = {"learning_rate": 0.1, "log_seconds": 0.0, "eval_episodes": 5, "quiet": True}


@pytest.fixture(scope="module")
def wobbly(tmp_path_factory):
    """PPO on CartPole with a learning rate of 0.1, and its diagnosis."""
    run_dir = tmp_path_factory.mktemp("runs") / "wobbly"
    birl.train("ppo", "CartPole-v1", total_steps=8_000, run_dir=str(run_dir), **WOBBLY)
    (found,) = birl.diagnose(run_dir)
    assert found.findings[0].rule == "steps-too-large"
    return found


def test_a_proof_by_forks_trains_equal_steps_with_and_without_the_change(wobbly):
    alone = replace(wobbly, findings=[replace(wobbly.findings[0], lasting=None)])
    proof = birl.prove(alone, Bounds(minutes=1, steps=600, seeds=2))
    assert proof is not None
    assert proof.rule == "steps-too-large"
    assert proof.directory == wobbly.run_dir.with_name("wobbly-proof") / "steps-too-large"
    control, changed = (read_histories(proof.directory / name) for name in ("control", "changed"))
    assert [run.seed for run in control] == [run.seed for run in changed] == [2, 3]
    assert {run.settings["learning_rate"] for run in control} == {0.1}
    assert {run.settings["learning_rate"] for run in changed} == {0.001}
    assert all(read_fork(run.run_dir).env_steps == wobbly.env_steps for run in [*control, *changed])
    ends = [run.rows[-1]["env_steps"] for run in [*control, *changed]]
    assert max(ends) - min(ends) <= 8 * 32  # a rollout
    assert proof.helped is None  # two seeds say nothing
    assert "cannot be told apart" in proof_text(proof)


def test_what_a_fork_would_inherit_is_proved_by_new_runs(wobbly):
    assert wobbly.findings[0].lasting == "policy-collapsed"
    assert wobbly.findings[0].command.startswith("birl train --like")
    proof = birl.prove(wobbly, Bounds(minutes=1, steps=600, seeds=2))
    assert "forks would inherit policy-collapsed" in proof.how
    again = birl.prove(wobbly, Bounds(minutes=1, steps=600, seeds=2))
    assert again.directory != proof.directory


def test_what_a_fork_cannot_change_is_proved_by_new_runs(tmp_path):
    run_dir = tmp_path / "unrewarded"
    broken = BROKEN_RUNS["PPO without rewards"]
    (found,) = birl.diagnose(make_run(broken, run_dir))
    proof = birl.prove(found, Bounds(minutes=1, steps=2_000, seeds=2))
    assert "new runs" in proof.how
    changed = read_histories(proof.directory / "changed")
    assert all(read_fork(run.run_dir) is None for run in changed)
    assert {run.settings["entropy_weight"] for run in changed} == {0.01}


def test_an_evaluation_below_training_is_proved_by_sampling(tmp_path):
    broken = BROKEN_RUNS["PPO with a policy that only works by chance"]
    (found,) = birl.diagnose(make_run(broken, tmp_path / "run"))
    proof = birl.prove(found)
    assert proof.helped
    assert "sampled actions return" in proof.sentence


def test_there_is_nothing_to_prove_of_a_healthy_run(healthy, capsys):
    assert birl.prove(birl.diagnose(healthy)[0]) is None
    assert main(["diagnose", str(healthy), "--prove"]) == 0
    assert "nothing to try" in capsys.readouterr().out


@pytest.mark.slow
def test_a_smaller_learning_rate_is_proved_to_help(wobbly):
    proof = birl.prove(wobbly, Bounds(minutes=5, steps=20_000, seeds=5))
    assert proof.helped
