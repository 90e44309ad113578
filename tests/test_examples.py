"""Every script in examples/ runs as a user would run it, with fewer steps."""

import json
import re
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import pytest

import birl
from tests import markdown
from tests.markdown import ROOT
from tests.run.processes import ENVIRONMENT, SECONDS

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STEPS = 600  # two or three updates of the longest rollout


def run(name: str, directory: Path, steps: int = STEPS) -> str:
    """Run an example in this directory; what it printed."""
    command = [sys.executable, str(ROOT / "examples" / name), "--steps", str(steps)]
    finished = subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_every_example_has_a_test_and_a_line_in_the_readme():
    tests = Path(__file__).read_text()
    readme = (ROOT / "examples" / "README.md").read_text()
    for example in EXAMPLES:
        assert f'run("{example.name}"' in tests
        assert f"]({example.name})" in readme


def test_links_of_the_readme_lead_somewhere():
    readme = ROOT / "examples" / "README.md"
    assert [link for link in markdown.links_of(readme) if not (readme.parent / link).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(example):
    lines = example.read_text().splitlines()
    assert len(lines) <= 120
    assert f"python examples/{example.name}" in lines


def test_train_and_watch_plays_the_trained_policy_and_records_it(tmp_path):
    said = run("train_and_watch.py", tmp_path)
    returns = [float(number) for number in re.findall(r"episode with seed \d: (\d+)", said)]
    assert len(returns) == 3
    assert all(1 <= value <= 500 for value in returns)
    frames = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "cartpole.mp4"))[0]
    assert frames == returns[0]  # a frame for each step of the episode with seed 0


def test_minigrid_is_trained_on_without_its_text_and_in_wrappers(tmp_path):
    said = run("minigrid_wrappers.py", tmp_path)
    assert "without the text: observation {'direction': (), 'image': (7, 7, 3)}, return" in said
    assert "ImgObsWrapper: observation (7, 7, 3), return" in said
    assert "FlatObsWrapper, and one of mine: observation (1043,), return" in said


def test_own_environment_is_checked_and_trained_on_by_id_and_as_a_vector_env(tmp_path):
    said = run("own_environment.py", tmp_path)
    levels = re.findall(r"^(ok|warning|error) ", said, re.MULTILINE)
    assert len(levels) >= 8
    assert set(levels) == {"ok"}
    assert "return with module:Id: -" in said
    assert "return with envs=: -" in said


def test_own_encoder_is_compared_with_dense_layers(tmp_path):
    said = run("own_encoder.py", tmp_path)
    assert re.findall(r"^([\w ]+): Evaluation\(return", said, re.MULTILINE) == ["dense layers alone", "attention"]
    configs = [json.loads(path.read_text())["config"] for path in sorted(tmp_path.glob("runs/*/config.json"))]
    assert {config["encoder"] for config in configs} == {"mlp", "local:make_encoder"}


def test_own_network_learns_without_memory_and_with_it(tmp_path):
    said = run("own_network.py", tmp_path)
    assert re.findall(r"(\w+) memory: Evaluation\(return \d", said) == ["without", "with"]


def test_callback_logs_its_metric_and_keeps_the_best_policy(tmp_path):
    said = run("callback.py", tmp_path)
    [run_dir] = (tmp_path / "runs").iterdir()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert sum("my/weight_norm" in row for row in rows) >= 2
    assert any("eval/return_mean" in row for row in rows)
    assert "best return" in said
    assert (run_dir / "checkpoints" / "best.json").exists()
    action, _ = birl.load(run_dir).act([0.0, 0.0, 0.0, 0.0])
    assert action in (0, 1)


def test_sweep_compares_three_settings_and_repeats_no_finished_run(tmp_path):
    said = run("sweep.py", tmp_path, steps=256)
    table = re.findall(r"^ +(0\.\d+) +([\d.]+) +([\d.]+) to ([\d.]+)$", said, re.MULTILINE)
    assert [row[0] for row in table] == ["0.0001", "0.001", "0.01"]
    for _, mean, low, high in table:
        assert float(low) <= float(mean) <= float(high)
    assert len(list((tmp_path / "runs" / "sweep").glob("*/seed-*"))) == 6
    again = run("sweep.py", tmp_path, steps=256)
    assert again[again.index("learning rate") :] == said[said.index("learning rate") :]


def test_an_agent_is_found_for_an_environment_with_dict_observations(tmp_path):
    said = run("dict_environment.py", tmp_path, 900)
    [line] = re.findall(r"^(?:ppo|dqn): return (\S+), at random (\S+)$", said, re.MULTILINE)
    assert all(-2.5 < float(number) < 1 for number in line)
    found = json.loads((tmp_path / "runs" / "solve-dict_environment-Dock-v0" / "solution.json").read_text())
    assert found["trials"] == 3
    assert (tmp_path / found["video"]).exists()
