"""A loop of one's own: `with birl.start(...) as run: for update in run: ...`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import birl
from birl.config import ConfigError
from birl.run.checkpoint import checkpoints_in
from birl.run.run import Run
from tests.run.processes import ENVIRONMENT, SECONDS, assert_same_run, metric_rows

SMALL: dict[str, Any] = {
    "num_envs": 4, "rollout_length": 16, "epochs": 1, "minibatches": 1, "hidden_sizes": (8,), "eval_episodes": 2,
    "total_steps": 640, "checkpoint_every": 128, "keep_checkpoints": 100,
}  # fmt: skip


def start(tmp_path: Path, name: str = "run", **changes: Any) -> Run:
    return birl.start("ppo", "CartPole-v1", run_dir=tmp_path / name, quiet=True, **SMALL | changes)


def test_an_empty_body_is_the_same_run_as_train_to_the_bit(tmp_path):
    with start(tmp_path, "mine", eval_every=256) as run:
        steps = [int(update.state.env_steps) for update in run]
    summary = birl.train("ppo", "CartPole-v1", run_dir=tmp_path / "train", quiet=True, **SMALL | {"eval_every": 256})
    assert run.summary is not None
    assert (run.summary["env_steps"], run.summary["evaluation"]) == (summary["env_steps"], summary["evaluation"])
    assert steps == sorted(steps)
    assert steps[-1] >= 640
    assert_same_run(tmp_path / "mine", tmp_path / "train")


def test_a_break_ends_well_and_the_resumed_run_is_that_of_one_that_never_stopped(tmp_path):
    birl.train("ppo", "CartPole-v1", run_dir=tmp_path / "whole", quiet=True, **SMALL)
    with start(tmp_path) as run:
        for _ in run:
            if run.env_steps > 300:
                break
    assert run.summary is not None
    assert run.summary["env_steps"] == run.env_steps < 640
    assert run.summary["evaluation"]["episodes"] == 2
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == f"{run.env_steps:09d}"
    assert birl.resume(tmp_path / "run", quiet=True)["env_steps"] >= 640
    last = [checkpoints_in(tmp_path / name / "checkpoints")[-1] for name in ("whole", "run")]
    states = [{file.name: file.read_bytes() for file in path.glob("*.safetensors")} for path in last]
    assert states[0] == states[1]


def test_a_resumed_run_can_have_a_loop_of_its_own(tmp_path):
    with start(tmp_path) as run:
        next(iter(run))
    before = run.env_steps
    with birl.reopen(tmp_path / "run", 1000, quiet=True) as run:
        assert run.env_steps == before
        seen = [run.env_steps for _ in run]
    assert seen[0] > before
    assert seen[-1] >= 1000


def test_own_numbers_go_to_every_sink_at_the_steps_of_the_update(tmp_path):
    with start(tmp_path, tensorboard=True) as run:
        for update in run:
            run.log({"my/steps": run.env_steps, "my/square": np.float32(update.state.updates) ** 2})
    rows = [row for row in metric_rows(tmp_path / "run") if "my/steps" in row]
    assert [row["my/steps"] for row in rows] == [row["env_steps"] for row in rows]
    assert [row["my/square"] for row in rows] == [(i + 1) ** 2 for i in range(len(rows))]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("my/square")] == [row["my/square"] for row in rows]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [({"my/text": "high"}, "'my/text': 'high'; give a number"), ({"env_steps": 3}, "choose another name")],
)
def test_what_is_no_number_is_not_logged(tmp_path, metrics, said):
    with start(tmp_path) as run, pytest.raises(ValueError, match=said):
        run.log(metrics)


def test_evaluations_of_ones_own_are_logged_and_keep_the_best_policy(tmp_path):
    returns = {}
    with start(tmp_path, keep_checkpoints=1) as run:
        for _ in run:
            evaluation = run.evaluate()
            returns[run.env_steps] = evaluation.returns.mean()
            assert run.evaluation is evaluation
    best = max(returns.values())
    chosen = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert chosen == {"checkpoint": f"{next(n for n in returns if returns[n] == best):09d}", "return_mean": best}
    logged = {
        row["env_steps"]: row["eval/return_mean"] for row in metric_rows(tmp_path / "run") if "eval/episodes" in row
    }
    assert logged == returns


def test_a_policy_of_the_run_does_not_change_when_training_goes_on(tmp_path):
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    with start(tmp_path, learning_rate=0.1) as run:
        updates = iter(run)
        next(updates)
        policy = run.policy()
        before = policy.act(observations)[0]
        for _ in updates:
            pass
        assert np.array_equal(policy.act(observations)[0], before)
        now = run.policy().act(observations)[0]
        with pytest.raises(
            birl.ConfigError, match=r"this policy is a copy, .*make_network= begins with weights of your"
        ):
            policy.set_parameters(policy.parameters())
    assert not np.array_equal(now, before)
    assert np.array_equal(birl.load(checkpoints_in(run.run_dir / "checkpoints")[-1]).act(observations)[0], now)


def test_save_writes_a_checkpoint_that_loads(tmp_path):
    with start(tmp_path, checkpoint_every=0) as run:
        with pytest.raises(RuntimeError, match="nothing to save before the first update"):
            run.save()
        next(iter(run))
        path = run.save()
        assert run.save() == path
        assert birl.load(path).act(np.zeros(4, np.float32))[0] in (0, 1)
        assert path in checkpoints_in(tmp_path / "run" / "checkpoints")


def test_an_error_in_the_body_loses_nothing(tmp_path):
    def train_until_an_error(run: Run) -> None:
        with run:
            for _ in run:
                if run.env_steps > 300:
                    raise ZeroDivisionError

    run = start(tmp_path, checkpoint_every=0)
    with pytest.raises(ZeroDivisionError):
        train_until_an_error(run)
    [saved] = checkpoints_in(tmp_path / "run" / "checkpoints")
    assert int(saved.name) == run.env_steps
    assert not (tmp_path / "run" / "summary.json").exists()
    assert birl.resume(tmp_path / "run", quiet=True)["env_steps"] >= 640


def test_a_run_is_used_in_a_with_block(tmp_path):
    run = start(tmp_path)
    with pytest.raises(RuntimeError, match=r"with birl\.start"):
        next(iter(run))
    assert not (tmp_path / "run").exists()
    with run:
        next(iter(run))
    with pytest.raises(RuntimeError, match="not open"):
        run.log({"my/number": 1})


def test_quiet_prints_nothing_but_warnings(tmp_path):
    program = (
        "import birl; birl.train('ppo', 'CartPole-v1', total_steps=300, num_envs=4, rollout_length=16, minibatches=1,"
        " hidden_sizes=(8,), eval_episodes=1, quiet=True, run_dir='run')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=SECONDS, check=True
    )
    assert (ended.stdout, ended.stderr) == (b"", b"")


def test_an_environment_is_named_once(tmp_path):
    with pytest.raises(ConfigError, match="an environment is needed"):
        birl.start("ppo")
    with pytest.raises(ConfigError, match="env and make_env each name the environments"):
        birl.start("ppo", "CartPole-v1", make_env=gym.make)
    with pytest.raises(ConfigError, match="is not a function; pass the class, or a function that makes a new"):
        birl.start("ppo", make_env=gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="eval_envs are for envs="):
        birl.start("ppo", "CartPole-v1", eval_envs=gym.make_vec("CartPole-v1", 2))
    with pytest.raises(ConfigError, match="is not the Config of an algorithm"):
        birl.start(None, "CartPole-v1")


def test_a_config_takes_settings_by_flat_name_too(tmp_path):
    config = birl.configure("ppo", "CartPole-v1", **SMALL)
    summary = birl.train(config, run_dir=tmp_path / "run", seed=5, quiet=True)
    assert (summary["seed"], summary["run_dir"]) == (5, str(tmp_path / "run"))


def test_environments_passed_in_give_their_number(tmp_path):
    envs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    settings = {name: value for name, value in SMALL.items() if name != "num_envs"}
    with birl.start("ppo", envs=envs, run_dir=tmp_path / "run", quiet=True, **settings) as run:
        assert run.config.env.num_envs == 3
        next(iter(run))
        with pytest.raises(ConfigError, match="pass eval_envs= too"):
            run.evaluate()
    assert run.summary is not None
    assert run.summary["evaluation"] is None
    envs.close()


def make_short_cartpole(limit: int = 30, **rendering: Any) -> gym.Env:
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1", **rendering).unwrapped, limit)


def test_a_function_makes_the_environments_of_training_evaluation_and_a_resume(tmp_path):
    settings = SMALL | {"kwargs": {"limit": 12}, "workers": 2}
    with birl.start("ppo", make_env=make_short_cartpole, run_dir=tmp_path / "run", quiet=True, **settings) as run:
        next(iter(run))
    assert run.config.env.id == "tests.run.test_run:make_short_cartpole"
    assert run.summary is not None
    assert max(run.summary["evaluation"]["returns"]) <= 12
    assert birl.resume(tmp_path / "run", quiet=True)["env_steps"] >= 640
    assert birl.evaluate(tmp_path / "run", episodes=2).lengths.max() <= 12


def test_a_lambda_makes_environments_in_this_process_only(tmp_path):
    def make() -> gym.Env:
        return make_short_cartpole(7)

    with birl.start("ppo", make_env=make, run_dir=tmp_path / "run", quiet=True, **SMALL) as run:
        next(iter(run))
    assert run.config.env.id == "local:make"
    assert birl.resume(tmp_path / "run", make_env=make, quiet=True)["env_steps"] >= 640
    with pytest.raises(ConfigError, match="workers 2"):
        birl.train("ppo", make_env=make, run_dir=tmp_path / "other", quiet=True, **SMALL | {"workers": 2})
    program = "import birl; birl.resume('run', 1280)"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 1
    assert "'local:make' is a function that only the process has" in ended.stderr


def test_videos_are_recorded_during_training_and_do_not_change_it(tmp_path):
    with start(tmp_path, "filmed", video_every=256, max_episode_steps=20) as filmed:
        for _ in filmed:
            pass
    videos = sorted(path.name for path in (tmp_path / "filmed" / "videos").iterdir())
    assert len(videos) == 2
    assert all(re.fullmatch(r"step-\d{9}\.mp4", name) for name in videos)
    with start(tmp_path, "limited", max_episode_steps=20) as limited:
        for _ in limited:
            pass
    assert not (tmp_path / "limited" / "videos").exists()
    last = [checkpoints_in(tmp_path / name / "checkpoints")[-1] for name in ("limited", "filmed")]
    states = [{file.name: file.read_bytes() for file in path.glob("*.safetensors")} for path in last]
    assert states[0] == states[1]


def test_an_encoder_of_the_script_itself_is_passed_again(tmp_path):
    program = f"""
import birl, numpy as np
from tests.nets.own_encoders import make_squares

def make_encoder(rng, space):
    return make_squares(rng, space)

settings = {SMALL!r} | {{"total_steps": 64}}
summary = birl.train("ppo", "CartPole-v1", run_dir="run", quiet=True, make_encoder=make_encoder, **settings)
print(birl.load("run", make_encoder=make_encoder).act(np.zeros(4, np.float32))[0] in (0, 1))
print(birl.evaluate("run", episodes=2, make_encoder=make_encoder).returns.shape)
"""
    again = """
import birl
from tests.nets.own_encoders import make_squares
try:
    birl.load("run")
except RuntimeError as problem:
    print("local:make_encoder" in str(problem), "pass it again" in str(problem))
print(birl.resume("run", 128, make_encoder=make_squares, quiet=True)["env_steps"] >= 128)
"""
    said = [
        subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
        )
        for text in (program, again)
    ]
    assert [one.stdout.split("\n") for one in said] == [["True", "(2,)", ""], ["True True", "True", ""]], said


def test_an_interrupted_evaluation_is_not_repeated_without_environments_for_it(tmp_path):
    envs, eval_envs = (gym.make_vec("CartPole-v1", 4, vectorization_mode="sync") for _ in range(2))
    given = {"envs": envs, "eval_envs": eval_envs, "run_dir": tmp_path / "run", "quiet": True}
    with birl.start("ppo", **given, **SMALL) as run:
        next(iter(run))
        run._progress.evaluation_due = True  # as if a signal had come during an evaluation
        run.save()
    assert birl.resume(tmp_path / "run", envs=envs, quiet=True)["evaluation"] is None
    assert birl.resume(tmp_path / "run", 1000, envs=envs, eval_envs=eval_envs, quiet=True)["evaluation"] is not None


def test_a_run_says_that_its_functions_are_of_this_script_only(tmp_path, capsys):
    class Same(gym.Wrapper):
        pass

    settings = SMALL | {"total_steps": 64, "wrappers": [Same]}
    birl.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", **settings)
    assert "Same is of this script, so only this script can resume and evaluate the run" in capsys.readouterr().out
    birl.train("ppo", "CartPole-v1", run_dir=tmp_path / "other", **SMALL | {"total_steps": 64})
    assert "of this script" not in capsys.readouterr().out


def test_environments_themselves_are_refused_where_an_id_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="is not an environment's id; use 'my_module:MyEnv', an EnvConfig, or"):
        birl.check_env(gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="is not an environment's id; use make_env="):
        birl.evaluate(tmp_path, env=gym.Env)
