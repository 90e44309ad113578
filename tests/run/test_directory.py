"""A failed start leaves nothing behind, and a resume uses the verified settings."""

import json
import shutil
from pathlib import Path

import pytest

import birl as api
from birl.algos import a2c, dqn
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.run.checkpoint import checkpoints_in
from birl.run.directory import move_aside
from birl.run.lock import LOCK, locked
from tests.run.processes import call, call_well

DQN = [
    "train",
    "dqn",
    "CartPole-v1",
    "--num-envs",
    2,
    "--learning-starts",
    16,
    "--hidden-sizes",
    8,
    "--eval-episodes",
    1,
]
DQN += ["--total-steps", 40, "--batch-size", 4, "--tensorboard"]


@pytest.fixture
def a_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("birl.rollouts.replay.free_memory", lambda: 100_000)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("directory") / "run"
    run = RunConfig(total_steps=16, eval_episodes=1, run_dir=str(path))
    api.train(a2c.Config(EnvConfig("CartPole-v1", num_envs=2), run, rollout_length=4, hidden_sizes=(8,), discount=0.9))
    return path


def test_a_replay_that_cannot_fit_leaves_nothing_behind_so_that_the_mended_command_works(tmp_path, a_little_memory):
    words = [*DQN, "--run-dir", tmp_path / "runs" / "deep" / "mine"]
    code, said = call(*words, "--replay-size", 10**6)
    assert code == 2
    assert "replay_size 1,000,000 needs" in said
    assert list(tmp_path.iterdir()) == []
    call_well(*words, "--replay-size", 1000)


def test_a_refused_run_takes_nothing_away_that_was_there_before(tmp_path, a_little_memory):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "of another").touch()
    (tmp_path / "notes.txt").write_text("mine")
    code, _ = call(*DQN, "--run-dir", tmp_path, "--replay-size", 10**6)
    assert code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "tensorboard"]
    assert (tmp_path / "tensorboard" / "of another").exists()


def test_a_refused_run_in_a_directory_of_its_own_name_is_not_numbered_the_next_time(
    tmp_path, a_little_memory, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert call(*DQN, "--replay-size", 10**6)[0] == 2
    assert not (tmp_path / "runs").exists()


def test_a_network_that_cannot_be_made_leaves_nothing_behind(tmp_path):
    config = a2c.Config(
        EnvConfig("CartPole-v1", num_envs=2),
        RunConfig(total_steps=16, run_dir=str(tmp_path / "run")),
        hidden_sizes=(8,),
    )

    def broken(*_: object) -> None:
        raise ZeroDivisionError("no layers")

    with pytest.raises(ZeroDivisionError):
        api.train(config, make_network=broken)
    assert list(tmp_path.iterdir()) == []


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    run = RunConfig(total_steps=40, eval_episodes=1, run_dir=str(tmp_path / "run"))
    api.train(
        dqn.Config(
            EnvConfig("CartPole-v1", num_envs=2),
            run,
            replay_size=1000,
            learning_starts=16,
            batch_size=4,
            hidden_sizes=(8,),
        )
    )
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr("birl.rollouts.replay.free_memory", lambda: 10)
    with pytest.raises(ConfigError, match="replay_size 1,000 needs"):
        api.resume(tmp_path / "run", total_steps=80)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_settings_that_differ_from_the_verified_ones_are_named_and_not_used(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    text = (run / "config.json").read_text()
    assert '"discount": 0.9' in text
    (run / "config.json").write_text(
        text.replace('"discount": 0.9', '"discount": 0.8').replace('"log_every": 0', '"log_evert": 3')
    )
    said = call_well("resume", run, "--total-steps", 32)
    newest = checkpoints_in(whole / "checkpoints")[-1].name
    assert f"{run / 'config.json'} differs from checkpoint {newest}, which was verified and is used: " in said
    for difference in (
        "discount is 0.8, verified 0.9",
        "run.log_evert is 3, verified nothing",
        "run.log_every is nothing, verified 0",
    ):
        assert difference in said
    assert "birl resume --help shows what can be changed" in said
    for path in (run / "config.json", checkpoints_in(run / "checkpoints")[-1] / "config.json"):
        stored = json.loads(path.read_text())
        stored = stored.get("config", stored)
        assert (stored["discount"], stored["run"]["log_every"], stored["run"]["total_steps"]) == (0.9, 0, 32)


def test_another_algorithms_name_in_config_json_is_a_difference(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "config.json").write_text((run / "config.json").read_text().replace('"a2c"', '"ppo"'))
    assert 'algorithm is "ppo", verified "a2c"' in call_well("resume", run, "--total-steps", 32)


def test_a_run_that_was_moved_does_not_differ(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "moved")
    assert "differs" not in call_well("resume", run, "--total-steps", 32)
    assert json.loads((run / "config.json").read_text())["config"]["run"]["run_dir"] == str(run)


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"[]", b'{"algorithm": 3, "config": {}}', None])
def test_a_run_whose_config_json_cannot_be_read_goes_on_by_its_checkpoint(damage, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "config.json").unlink() if damage is None else (run / "config.json").write_bytes(damage)
    said = call_well("resume", run, "--total-steps", 32)
    assert f"{run / 'config.json'} is {'missing' if damage is None else 'damaged'}" in said
    assert "; the settings in checkpoint" in said
    assert json.loads((run / "config.json").read_text())["config"]["discount"] == 0.9


def test_overwrite_moves_the_old_run_aside_and_deletes_nothing(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = files_of(run)
    words = ["train", "a2c", "CartPole-v1", "--total-steps", 16, "--num-envs", 2, "--rollout-length", 4]
    words += ["--hidden-sizes", 8, "--eval-episodes", 1, "--run-dir", run, "--overwrite"]
    said = call_well(*words)
    assert f"the run that was in {run} is in {run}.1 now" in said
    assert files_of(tmp_path / "run.1") == before
    first = files_of(run)
    assert first.keys() >= {"config.json", "summary.json"}
    call_well(*words)
    assert files_of(tmp_path / "run.1") == before
    assert files_of(tmp_path / "run.2") == first
    assert not (tmp_path / "run.3").exists()


def test_overwrite_in_python_and_without_a_run_to_move(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    settings = {"total_steps": 16, "num_envs": 2, "hidden_sizes": (8,), "eval_episodes": 1, "quiet": True}
    for name in ("run", "new"):
        api.train("a2c", "CartPole-v1", run_dir=tmp_path / name, overwrite=True, **settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "run", "run.1"]


def test_overwrite_without_run_dir_keeps_the_plain_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "a2c", "CartPole-v1", "--total-steps", 16, "--num-envs", 2, "--hidden-sizes", 8]
    for _ in range(2):
        call_well(*words, "--eval-episodes", 1, "--overwrite")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a2c-CartPole-v1-1", "a2c-CartPole-v1-1.1"]


def test_a_run_that_another_process_uses_is_not_moved(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    with locked(run):
        code, said = call("train", "a2c", "CartPole-v1", "--run-dir", run, "--overwrite")
    assert code == 2
    assert f"{run} is in use by process" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_old_run_moves_back_if_the_new_one_cannot_begin(whole, tmp_path, a_little_memory):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = files_of(run)
    code, _ = call(*DQN, "--run-dir", run, "--replay-size", 10**6, "--overwrite")
    assert code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert files_of(run) == before


def test_a_moved_run_has_no_lock_and_can_be_resumed(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    moved = move_aside(tmp_path / "run")
    assert moved == tmp_path / "run.1"
    assert not (moved / LOCK).exists()
    assert "this run has reached its 16 steps" in call_well("resume", moved)


def test_the_current_directory_is_not_moved(whole, tmp_path, monkeypatch):
    shutil.copytree(whole, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot be moved aside"):
        move_aside(Path())


def files_of(directory: Path) -> dict[str, bytes]:
    """The content of every file below this directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
