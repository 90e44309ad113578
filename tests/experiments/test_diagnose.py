"""`birl diagnose` on runs that were really trained, each with one fault."""

import json
import shutil

import pytest

import birl
from birl.cli import main
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
