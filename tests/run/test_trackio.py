"""What Birl asks of Trackio, whose place a small module takes: it needs an older Pillow than Birl.

The module has Trackio's own signatures (0.43) and keeps what it is told in a file.
"""

import json
import sys
from pathlib import Path

import pytest

import birl
from birl.algos import a2c
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.run.checkpoint import checkpoints_in
from birl.run.files import remove
from birl.run.logging import open_sinks

MODULE = """
import json

calls = open({path!r}, "a", buffering=1)
current = None


def tell(*call):
    if call[0] != "log":
        print("* what Trackio prints")
    calls.write(json.dumps(call) + chr(10))


class Run:
    def log(self, metrics, step=None):
        tell("log", step, metrics)


def init(project, name=None, group=None, space_id=None, config=None, resume="never", embed=True,
         auto_log_gpu=None, auto_log_cpu=None):
    global current
    if " " in project:
        raise ValueError("Invalid project name")
    tell("init", project, name, config, resume, space_id, embed, auto_log_gpu, auto_log_cpu)
    current = Run()
    return current


def finish():
    global current
    if current is None:
        raise RuntimeError("Call trackio.init() before trackio.finish().")
    tell("finish")
    current = None
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A function that gives the calls so far."""
    path = tmp_path / "calls.jsonl"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "trackio.py").write_text(MODULE.format(path=str(path)))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    yield lambda: [json.loads(line) for line in path.read_text().splitlines()]
    sys.modules.pop("trackio", None)


def config(run_dir: Path, total_steps: int, **run) -> a2c.Config:
    settings = RunConfig(total_steps=total_steps, run_dir=str(run_dir), eval_episodes=1, checkpoint_every=40, **run)
    return a2c.Config(EnvConfig("CartPole-v1", num_envs=2), settings, rollout_length=10, hidden_sizes=(8,))


def test_a_run_is_logged_to_the_project_with_its_settings_and_ends_well(tmp_path, told, capsys):
    birl.train(config(tmp_path / "run", 60, trackio="mine"))
    (init, *logs, finish) = told()
    kind, project, name, settings, resume, space_id, embed, gpu, cpu = init
    assert (kind, project, resume, finish) == ("init", "mine", "allow", ["finish"])
    assert (space_id, embed, gpu, cpu) == (None, False, False, False)
    assert name == f"run-{(tmp_path / 'run' / 'trackio_id.txt').read_text().strip()}"
    assert settings["algorithm"] == "a2c"
    assert settings["env.id"] == "CartPole-v1"
    assert [step for _, step, _ in logs] == sorted(step for _, step, _ in logs)
    assert "eval/return_mean" in logs[-1][2]
    assert {"episode/return", "loss/policy", "seconds"} <= logs[0][2].keys()
    assert "Trackio" not in capsys.readouterr().out


def test_a_resumed_run_goes_on_under_its_name_and_repeats_nothing(tmp_path, told):
    birl.train(config(tmp_path / "run", 100, trackio="mine"))
    before = told()
    for checkpoint in checkpoints_in(tmp_path / "run" / "checkpoints")[1:]:
        remove(checkpoint)
    birl.resume(tmp_path / "run", total_steps=160)
    after = told()[len(before) :]
    assert after[0][:3] == before[0][:3]
    last = max(call[1] for call in before if call[0] == "log")
    repeated = [call for call in after if call[0] == "log" and call[1] <= last]
    assert {call[1] for call in repeated} <= {last}
    assert max(call[1] for call in after if call[0] == "log") >= 160


def test_other_metric_names_go_to_trackio_too(tmp_path, told):
    birl.train(config(tmp_path / "run", 40, trackio="mine", metric_names="sb3"))
    assert {"rollout/ep_rew_mean", "train/policy_loss"} <= told()[1][2].keys()


def test_a_name_that_trackio_cannot_use_is_refused_as_a_setting(tmp_path, told):
    with pytest.raises(ConfigError, match=r"run\.trackio 'my project': Invalid project name"):
        birl.train(config(tmp_path / "run", 40, trackio="my project"))
    assert not (tmp_path / "run").exists()


def test_without_the_extra_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match=r"'mine' needs the trackio package: pip install '\.\[trackio\]'"):
        open_sinks(RunConfig(trackio="mine"), tmp_path, {})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_someone_elses_run_is_not_logged(tmp_path, told, monkeypatch, capsys):
    birl.train(config(tmp_path / "run", 40, trackio="theirs"))
    before = len(told())
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "data-of-another"))
    birl.resume(tmp_path / "run", total_steps=80)
    assert len(told()) == before
    assert "run.trackio 'theirs' is left out, because this run was not made here" in capsys.readouterr().out
