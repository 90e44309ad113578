"""The command of a report gives the Config of the run that it is about."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.algos import a2c, dqn, ppo, sac
from birl.cli.train_options import read_request, with_options
from birl.config import EnvConfig, RunConfig, Wrapper, to_json
from birl.errors import CheckpointError
from birl.lab.reproduce import commands_for, limits_of, option_words
from birl.maths.schedules import exponential, linear, piecewise, schedule
from birl.presets import preset, presets_of
from birl.registry import name_of
from birl.run.checkpoint import checkpoints_in
from birl.run.configure import like_run
from birl.run.directory import Fork, SettingsChange, write_config, write_fork
from birl.run.history import RunHistory, by_settings, read_history
from tests.run.processes import call_well

CARTPOLE = preset("ppo", "CartPole-v1")


def write_run(run_dir: Path, config: Any) -> RunHistory:
    """The history of a run with these settings that has only begun."""
    run_dir.mkdir(parents=True)
    config = replace(config, run=replace(config.run, run_dir=str(run_dir)))
    (run_dir / "config.json").write_text(json.dumps({"algorithm": name_of(config), "config": to_json(config)}))
    return read_history(run_dir)


def read(command: str) -> Any:
    """What the command line reads from this command."""
    words = shlex.split(command)
    assert words[:2] == ["birl", "train"]
    return read_request(words[2:])


def reproduced(tmp_path: Path, config: Any) -> Any:
    """The Config that the command for a run with this Config gives, with the run's run_dir."""
    run = write_run(tmp_path / "run", config)
    [command] = commands_for([run])
    found = read(command).config
    return replace(found, run=replace(found.run, run_dir=config.run.run_dir))


@pytest.mark.parametrize(
    "config",
    [
        CARTPOLE,
        replace(CARTPOLE, run=RunConfig(total_steps=12_345, seed=7, stop_at_return=450.5, eval_every=1000)),
        replace(CARTPOLE, learning_rate=0.1 + 0.2, clip_range=linear(0.3, 0.1, 0.5)),
        replace(CARTPOLE, learning_rate=exponential(1e-3, 1e-5), entropy_weight=piecewise((0.0, 0.5), (0.1, 1e-7))),
        replace(CARTPOLE, hidden_sizes=(32, 16, 8), normalize_observations=True, normalize_advantages=False),
        replace(CARTPOLE, hidden_sizes=(), log_std=-1.5, target_kl=0.02, max_grad_norm=None),
        replace(CARTPOLE, env=EnvConfig("CartPole-v1", num_envs=3, kwargs={"sutton_barto_reward": True, "x": -2.5})),
        replace(
            CARTPOLE, env=replace(CARTPOLE.env, wrappers=(Wrapper("a:B", {"size": 8, "name": "x y"}), Wrapper("c:D")))
        ),
        replace(CARTPOLE, env=replace(CARTPOLE.env, hide_velocities=True), core="lstm"),
        replace(CARTPOLE, env=replace(CARTPOLE.env, hide_velocities=True)),
        preset("ppo", "CartPole-v1", True, "gru"),
        replace(preset("ppo", "CartPole-v1", True, "lstm"), core_size=32, epochs=3),
        ppo.Config(env=EnvConfig("MountainCar-v0", num_envs=2)),
        a2c.Config(env=EnvConfig("CartPole-v1")),
        dqn.Config(env=EnvConfig("LunarLander-v3", num_envs=1), n_step=3),
        sac.Config(env=EnvConfig("Pendulum-v1")),
        ppo.Config(env=EnvConfig("ALE/Pong-v5", backend="envpool")),
    ],
)
def test_the_command_gives_the_config_of_the_run(tmp_path, config):
    assert reproduced(tmp_path, config) == config


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "ddpg"])
def test_a_preset_needs_no_option_but_those_that_select_it(algorithm):
    for found in presets_of(algorithm):
        words = option_words(found.config)
        assert sorted(words) == sorted(" ".join(found.switches).split()), found.task


@pytest.mark.parametrize(
    "config",
    [
        replace(CARTPOLE, learning_rate=schedule(lambda progress: 1e-3 * (1 - progress) ** 2)),  # 1,001 points
        replace(CARTPOLE, env=EnvConfig("CartPole-v1", kwargs={"version": "1"})),  # would be read as a number
    ],
)
def test_settings_that_no_option_can_write_come_from_the_run_itself(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(Path("run"), config)
    [command] = commands_for([run])
    assert command == "birl train --like run --seed 1"


def test_seeds_in_a_row_are_one_command_and_others_their_own(tmp_path):
    def run(seed: int, **changes: Any) -> RunHistory:
        settings = RunConfig(total_steps=50_000, seed=seed, **changes)
        return write_run(tmp_path / f"{seed}-{len(changes)}", replace(CARTPOLE, run=settings))

    runs = [run(seed) for seed in (3, 1, 2, 9)]
    start = "birl train ppo CartPole-v1"
    assert commands_for(runs) == [f"{start} --seeds 3 --seed 1", f"{start} --seed 9"]
    assert [lane.seed for lane in read(commands_for(runs)[0]).group.lanes] == [1, 2, 3]
    # An evaluation more often is another command, although it is the same group.
    assert commands_for([run(4), run(5, eval_every=500)]) == [f"{start} --seed 4", f"{start} --eval-every 500 --seed 5"]


def test_what_a_stranger_wrote_is_one_quoted_word(tmp_path):
    hostile = "x; rm -rf ~ $(reboot) `id` '\n"
    run = write_run(tmp_path / "run", replace(CARTPOLE, env=EnvConfig(hostile)))
    [command] = commands_for([run])
    assert shlex.split(command)[3] == hostile


def test_settings_of_another_version_are_taken_from_the_run(tmp_path):
    run = write_run(tmp_path / "run", CARTPOLE)
    path = run.run_dir / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"config": stored["config"] | {"no_longer": 1}}))
    assert commands_for([read_history(run.run_dir)]) == [f"birl train --like {run.run_dir} --seed 1"]


def test_the_command_of_a_fork_changes_what_the_fork_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parent = write_run(Path("runs/parent"), CARTPOLE)
    changes: dict[str, Any] = {"learning_rate": linear(1e-4, 1e-5), "hidden_sizes": (8, 8)}
    config = replace(CARTPOLE, **changes, run=replace(CARTPOLE.run, seed=4, total_steps=70_000))
    fork = write_run(Path("runs/fork"), config)
    names = [*changes, "run.seed", "run.total_steps"]
    write_fork(fork.run_dir, Fork(parent.run_dir, "000050000", 50_000, dict.fromkeys(names, (None, None))))
    train, command = commands_for([parent, read_history(fork.run_dir)])
    assert train == "birl train ppo CartPole-v1 --seed 1"
    words = shlex.split(command)
    assert words[:5] == ["birl", "fork", "runs/parent", "--at", "50000"]
    assert with_options(CARTPOLE, words[5:], "birl fork") == config


def test_the_command_of_a_fork_says_what_it_cannot_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fork = write_run(Path("fork"), CARTPOLE)
    write_fork(fork.run_dir, Fork(Path("parent"), "000000100", 100, {"a\nb": (1, 2), "run.seed": (2, 1)}))
    assert commands_for([read_history(fork.run_dir)]) == ["birl fork parent --at 100 --seed 1  # and a b as in fork"]


def test_runs_on_environments_that_were_passed_in_have_no_command(tmp_path):
    assert commands_for([write_run(tmp_path / "run", replace(CARTPOLE, env=EnvConfig("handed-in")))]) == []


TINY: dict[str, Any] = {
    "num_envs": 4, "rollout_length": 16, "hidden_sizes": (8,), "learning_rate": "linear:0.01:0", "minibatches": 1,
    "epochs": 1, "eval_episodes": 1, "quiet": True,
}  # fmt: skip


def test_a_run_that_was_trained_longer_is_reproduced_by_two_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        birl.train("ppo", "CartPole-v1", **TINY, total_steps=150, seed=seed, run_dir=f"runs/seed-{seed}")
        birl.resume(f"runs/seed-{seed}", total_steps=300, quiet=True)
        birl.resume(f"runs/seed-{seed}", total_steps=400, quiet=True)
    birl.train("ppo", "CartPole-v1", **TINY, total_steps=400, run_dir="straight")
    histories = [read_history(Path(f"runs/seed-{seed}")) for seed in (1, 2)]
    totals = [change.changed["run.total_steps"] for change in histories[0].changes]
    assert totals == [(150, 300), (300, 400)]
    commands = commands_for(histories)
    assert [shlex.split(command)[1] for command in commands] == ["train", "resume", "resume"]
    for command in commands:
        call_well(*shlex.split(command)[1:])
    for seed in (1, 2):
        weights = [checkpoints_in(Path(f"{place}/seed-{seed}/checkpoints"))[-1] for place in ("runs", "again/runs")]
        assert same_state(*weights)
    assert not same_state(
        checkpoints_in(Path("straight/checkpoints"))[-1], checkpoints_in(Path("runs/seed-1/checkpoints"))[-1]
    )
    assert limits_of(histories) == []
    assert "got its settings by a resume after 3" in like_run("runs/seed-1").notices[0]


def same_state(*checkpoints: Path) -> bool:
    first, second = ((path / "state.safetensors").read_bytes() for path in checkpoints)
    return first == second


def test_groups_tell_apart_what_was_trained_longer_and_what_had_these_settings_all_along(tmp_path):
    config = replace(CARTPOLE, run=RunConfig(total_steps=70_000))
    straight = write_run(tmp_path / "straight", config)
    longer = [
        with_changes(tmp_path / str(seed), config, SettingsChange(steps, {"run.total_steps": (50_000, 70_000)}))
        for seed, steps in ((1, 50_016), (2, 50_003))
    ]
    groups = by_settings([straight, *longer])
    assert [len(group.runs) for group in groups] == [1, 2]
    assert groups[1].label == "ppo, total_steps=50000 until 50,000 steps"
    # Workers and evaluations do not change what is learned.
    changed = {"env.workers": (0, 2), "run.eval_every": (0, 500)}
    other = with_changes(tmp_path / "workers", config, SettingsChange(9, changed))
    assert len(by_settings([straight, other])) == 1
    assert commands_for([other]) == commands_for([straight])


def test_what_no_command_does_again_is_said(tmp_path):
    config = replace(CARTPOLE, run=RunConfig(total_steps=70_000))
    stopped = with_changes(tmp_path / "stopped", config, SettingsChange(30_016, {"run.total_steps": (50_000, 70_000)}))
    assert commands_for([stopped]) == []
    assert limits_of([stopped]) == [
        "Seed 1: it was stopped at 30,016 steps and resumed with other settings; no command trains it again."
    ]
    for name, env_id in (("envs=", "handed-in"), ("make_env=", "local:make_mine")):
        run = write_run(tmp_path / env_id.replace(":", "-"), replace(CARTPOLE, env=EnvConfig(env_id)))
        assert commands_for([run]) == []
        [text] = limits_of([run])
        assert name in text
        assert "no command trains it again" in text
    free = replace(write_run(tmp_path / "free", CARTPOLE), summary={"inexact_resumes": [{"env_steps": 9}]})
    assert len(commands_for([free])) == 1
    assert "resumed in new episodes" in limits_of([free])[0]


def test_a_fork_that_was_trained_longer_is_forked_with_what_it_had_and_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [
        SettingsChange(9_000, {"run.total_steps": (9_000, 50_000)}),
        SettingsChange(60_010, {"run.total_steps": (60_000, 70_000)}),
    ]
    config = replace(CARTPOLE, run=RunConfig(total_steps=70_000))
    fork = with_changes(Path("fork"), config, *changes)
    write_fork(fork.run_dir, Fork(Path("parent"), "000050000", 50_000, {"run.total_steps": (50_000, 60_000)}))
    assert commands_for([read_history(fork.run_dir)]) == [
        "birl fork parent --at 50000 --total-steps 60000 --run-dir again/fork",
        "birl resume again/fork --total-steps 70000",
    ]


def test_changes_that_are_not_of_these_settings_are_damage(tmp_path):
    with pytest.raises(CheckpointError, match=r"config.json is damaged: changes: 'run.nothing' is no setting"):
        with_changes(tmp_path / "run", CARTPOLE, SettingsChange(1, {"run.nothing": (1, 2)}))


def with_changes(run_dir: Path, config: Any, *changes: SettingsChange) -> RunHistory:
    """The history of a run that resumes changed."""
    run_dir.mkdir()
    write_config(run_dir, name_of(config), config, to_json(changes))
    return read_history(run_dir)
