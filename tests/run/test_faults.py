"""Mistakes are reported early, with their place and a remedy."""

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import birl as api
from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.errors import NonFiniteError
from birl.nets.models import make_actor_critic
from birl.parts import ActionConfig, NetworkConfig
from birl.run import start
from birl.run.checkpoint import checkpoints_in, load_checkpoint
from birl.run.evaluating import evaluate_policy
from birl.run.policy import make_policy
from birl.settings import places_of
from birl.workers import faults
from tests.envs.faulty import Faulty
from tests.envs.troubled import RAISED_AT
from tests.run.processes import birl, call, call_well, metric_rows

SMALL = [
    "--num-envs",
    4,
    "--rollout-length",
    16,
    "--epochs",
    1,
    "--minibatches",
    1,
    "--hidden-sizes",
    8,
    "--eval-episodes",
    1,
]
SMALL += ["--total-steps", 2000, "--checkpoint-every", 64]


class Recording(gym.Env):
    """Counts its steps."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)
    steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Recording.steps += 1
        return np.zeros(1, np.float32), 1.0, True, False, {}


gym.register("Recording-v0", entry_point=Recording)


def small_config(env_id: str, run_dir: Path, **settings: Any) -> ppo.Config:
    run = RunConfig(total_steps=2000, checkpoint_every=64, eval_episodes=1, run_dir=str(run_dir))
    return ppo.Config(
        EnvConfig(env_id, num_envs=4), run, rollout_length=16, epochs=1, minibatches=1, hidden_sizes=(8,), **settings
    )


def assert_last_checkpoint_is_kept(run: Path, said: str) -> None:
    last = checkpoints_in(run / "checkpoints")[-1]
    assert f"Last checkpoint: {last} is kept" in said
    assert all(np.isfinite(tensor).all() for tensor in load_checkpoint(last).tensors.values())
    assert metric_rows(run)[-1]["env_steps"] == int(last.name), "nothing after it was logged as if it had happened"
    api.load(run).act(np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("env_id", "report"),
    [
        ("tests.envs.faulty:nan_observation", "observation of environment 0 is nan at step"),
        ("tests.envs.faulty:infinite_reward", "reward of environment 0 is inf at step"),
    ],
)
def test_a_nan_from_the_environment_stops_the_run_with_a_report_and_keeps_the_last_checkpoint(env_id, report, tmp_path):
    run = tmp_path / "run"
    code, said = call("train", "ppo", env_id, *SMALL, "--kwargs", "at", 100, "--run-dir", run)
    assert code == 3
    assert (
        f"birl: training stopped: {env_id} after {int(checkpoints_in(run / 'checkpoints')[-1].name):,} steps: {report}"
        in said
    )
    assert_last_checkpoint_is_kept(run, said)
    assert not (run / "summary.json").exists()


def test_a_nan_in_an_evaluation_stops_the_run_too(tmp_path):
    """The fault comes after the steps of training, but within those of the evaluation."""
    config = small_config("birl/ProbeConstant-v0", tmp_path)
    state = ppo.init(config, Faulty.observation_space, Faulty.action_space)
    policy = make_policy(config, state, Faulty.observation_space, Faulty.action_space)
    with pytest.raises(NonFiniteError, match="reward of environment 0 is inf at step 2 of an evaluation episode"):
        evaluate_policy(policy, EnvConfig("tests.envs.faulty:infinite_reward", kwargs={"at": 2}), episodes=3, seed=0)


def test_a_gradient_that_is_not_finite_stops_the_run_and_its_update_is_thrown_away(tmp_path):
    run = tmp_path / "run"
    words = [
        "train",
        "ppo",
        "CartPole-v1",
        *SMALL,
        "--learning-rate",
        "piecewise:0=1e-3,0.3=1e-3,0.31=3e38,1=3e38",
        "--run-dir",
        run,
    ]
    code, said = call(*words, "--epochs", 4, "--max-grad-norm", "None")
    assert code == 3
    assert "birl: training stopped: CartPole-v1 after" in said
    assert "the gradient's norm is nan; the update was thrown away. Lower learning_rate" in said
    last = checkpoints_in(run / "checkpoints")[-1]
    assert f"Last checkpoint: {last} is kept" in said
    assert all(np.isfinite(tensor).all() for tensor in load_checkpoint(last).tensors.values())
    assert api.evaluate(run, episodes=1).returns[0] > 0


def test_weights_that_overflow_in_a_single_step_are_not_saved_over_good_ones(tmp_path):
    """The gradient is finite, the step is not; with one minibatch there is no second gradient."""
    run = tmp_path / "run"
    words = [
        "train",
        "ppo",
        "CartPole-v1",
        *SMALL,
        "--learning-rate",
        "piecewise:0=1e-3,0.3=1e-3,0.31=3e38,1=3e38",
        "--run-dir",
        run,
    ]
    code, said = call(*words, "--optimizer", "adam", "--keep-checkpoints", 1)
    assert code == 3, said
    last = checkpoints_in(run / "checkpoints")[-1]
    assert f"Last checkpoint: {last} is kept" in said
    assert all(np.isfinite(tensor).all() for tensor in load_checkpoint(last).tensors.values())


def test_a_network_of_ones_own_that_gives_nan_is_reported(tmp_path):
    def make_broken(rng: np.random.Generator, *spaces: gym.Space) -> Any:
        network = make_actor_critic(rng, *spaces, NetworkConfig(hidden_sizes=(8,)), ActionConfig())
        return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), network)

    with pytest.raises(
        NonFiniteError, match=r"CartPole-v1 after 0 steps: the gradient's norm is nan.*none had been written yet"
    ):
        start.train(small_config("CartPole-v1", tmp_path / "run"), make_network=make_broken)


def test_a_run_stopped_by_a_nan_goes_on_from_its_last_checkpoint(tmp_path):
    """The environments count to the fault again, so the run gets further and stops again."""
    run = tmp_path / "run"
    call("train", "ppo", "tests.envs.faulty:nan_observation", *SMALL, "--kwargs", "at", 100, "--run-dir", run)
    first = metric_rows(run)
    code, said = call("resume", run)
    assert code == 3
    assert metric_rows(run)[: len(first)] == first
    assert len(metric_rows(run)) > len(first)
    assert_last_checkpoint_is_kept(run, said)


def test_an_environment_that_raises_is_named_and_keeps_its_own_traceback(tmp_path):
    finished = birl(
        "train", "ppo", "tests.envs.faulty:raising", *SMALL, "--kwargs", "at", 100, "--run-dir", "run", cwd=tmp_path
    )
    assert finished.returncode == 1
    assert "RuntimeError: environment 0 raised in step: ValueError: the simulator diverged" in finished.stderr
    assert 'raise ValueError("the simulator diverged")' in finished.stderr
    assert load_checkpoint(checkpoints_in(tmp_path / "run" / "checkpoints")[-1]).env_steps > 0


UNRULY = (
    r"environment \d returned None as terminated; return True or False \(Unruly in .*/troubled.py\). Last checkpoint"
)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_breaks_the_rules_ends_the_run_with_one_line_that_names_its_file(workers, tmp_path):
    words = [*SMALL, "--workers", workers, "--kwargs", "flag", "none", "--run-dir", tmp_path / "run"]
    code, said = call("train", "ppo", "tests.envs.troubled:Unruly-v0", *words)
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("birl: tests.envs.troubled:Unruly-v0 after 0 steps: environment")
    assert re.search(UNRULY, last)


BUGGY = "tests.envs.troubled:Buggy-v0"


def test_an_environment_that_exits_in_peace_ends_the_run_as_an_error(tmp_path):
    finished = birl(
        "train", "ppo", BUGGY, *SMALL, "--kwargs", "bug_at", 30, "quits", True, "--run-dir", "run", cwd=tmp_path
    )
    assert finished.returncode == 1
    assert "RuntimeError: environment 0 raised in step: SystemExit: 0" in finished.stderr


@pytest.mark.parametrize("bug_at", [30, 550], ids=["in training", "in the evaluation alone"])
@pytest.mark.filterwarnings("ignore")
def test_an_error_that_every_episode_hits_in_a_worker_ends_the_run(bug_at, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "FAULTS_IN_A_ROW", 1)
    row = r"failed 2 times in a row: environment \d raised in step: ZeroDivisionError: "
    bug = rf"{row}mass is zero \({RAISED_AT}\)\nTraceback"
    with pytest.raises(RuntimeError, match=bug):
        call("train", "ppo", BUGGY, *SMALL, "--workers", 1, "--kwargs", "bug_at", bug_at, "--run-dir", tmp_path / "run")


BAD = [
    # Options, and what the message must contain: the field, the value, what to do.
    (["--num-envs", "0"], ["num_envs 0", "use 8"]),
    (["--num-envs", "-3"], ["num_envs -3", "use 8"]),
    (["--minibatches", "3"], ["does not divide into 3 minibatches", "use one of 1, 2, 4, 8"]),
    (["--minibatches", "0"], ["minibatches 0", "at least 1"]),
    (
        ["--core", "lstm", "--num-envs", "4", "--minibatches", "8"],
        ["num_envs 4 does not divide into 8 minibatches", "use one of 1, 2, 4"],
    ),
    (["--rollout-length", "0"], ["rollout_length 0", "at least 1"]),
    (["--epochs", "0"], ["epochs 0", "at least 1"]),
    (["--discount", "1.5"], ["discount 1.5", "[0, 1]"]),
    (["--discount", "nan"], ["discount nan", "finite"]),
    (["--gae-lambda", "-0.1"], ["gae_lambda -0.1", "[0, 1]"]),
    (["--target-kl", "0"], ["target_kl 0", "None"]),
    (["--value-clip", "-1"], ["value_clip -1", "None"]),
    (["--value-weight", "nan"], ["value_weight nan", "finite"]),
    (["--log-std", "inf"], ["log_std inf", "finite"]),
    (["--max-grad-norm", "-1"], ["max_grad_norm -1", "None"]),
    (["--core-size", "0"], ["core_size 0", "at least 1"]),
    (["--hidden-sizes", "64", "0"], ["hidden_sizes (64, 0)", "at least 1"]),
    (["--learning-rate", "-1e-3"], ["learning_rate -0.001", "negative"]),
    (["--learning-rate", "linear:1e-3:-1e-3"], ["learning_rate -0.001", "negative"]),
    (["--learning-rate", "linar:1e-3:0"], ["cannot read schedule 'linar:1e-3:0'", "linear:3e-4:0"]),
    (["--learning-rate", "inf"], ["'inf' is not finite", "linear:3e-4:0"]),
    (["--clip-range", "-0.2"], ["clip_range -0.2", "negative"]),
    (["--total-steps", "0"], ["total_steps 0", "between 1 and"]),
    (["--total-steps", "9999999999999999"], ["total_steps 9999999999999999", "9,007,199,254,740,992"]),
    (["--seed", "-1"], ["seed -1", "between 0 and"]),
    (["--eval-every", "-1"], ["eval_every -1", "0 (only at the end)"]),
    (["--eval-episodes", "0"], ["eval_episodes 0", "at least 1"]),
    (["--checkpoint-every", "-1"], ["checkpoint_every -1", "0 (only at the end)"]),
    (["--keep-checkpoints", "0"], ["keep_checkpoints 0", "at least 1"]),
    (["--log-every", "-1"], ["log_every -1", "0 (every update"]),
    (["--stop-at-return", "5"], ["stop_at_return 5", "set eval_every"]),
    (["--max-episode-steps", "0"], ["max_episode_steps 0", "None"]),
    (["--hide-velocities"], ["hide_velocities", "Recording-v0", "CartPole"]),
    (["--kwargs", "gravity", "9"], ["env.kwargs {'gravity': 9}", "use what its constructor takes"]),
    (["--backend", "gymnaisum"], ["--backend: 'gymnaisum' is not one of gymnasium, envpool"]),
    (["--core", "rnn"], ["--core", "lstm"]),
    (["--epochs", "few"], ["--epochs: 'few' is not a whole number", "100k"]),
    (["--total-steps", "1.5"], ["--total-steps: '1.5' is not a whole number"]),
    (["--nonsense", "1"], ["ppo has no option --nonsense", "--help shows the options"]),
    (["--gamma", "1"], ["ppo has no option --gamma; you may mean --discount"]),
]


@pytest.mark.parametrize(("words", "parts"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_settings_fail_before_the_first_step_with_field_value_and_remedy(words, parts, tmp_path):
    Recording.steps = 0
    code, said = call(
        "train", "ppo", "tests.run.test_faults:Recording-v0", "--run-dir", tmp_path / "runs" / "mine", *words
    )
    assert code == 2, said
    assert [part for part in parts if part not in said] == [], said
    assert len(said.splitlines()) == 1, said
    assert "Traceback" not in said
    assert Recording.steps == 0
    assert not (tmp_path / "runs" / "mine").exists(), "nothing is left that would refuse the next try"


BAD_TASKS = [
    (["train", "nosuch", "CartPole-v1"], ["algorithm 'nosuch' is unknown", "ppo"]),
    (["train", "ppo", "CartPol-v1"], ["env.id 'CartPol-v1' is not registered", "CartPole", "my_module:CartPol-v1"]),
    (["train", "ppo", "CartPole-v7"], ["env.id 'CartPole-v7'", "you may mean CartPole-v1"]),
    (["train", "ppo", "CartPole"], ["env.id 'CartPole'", "you may mean CartPole-v1"]),
    (["train", "ppo", "no_such_module:My-v0"], ["no_such_module", "correct the module before the colon"]),
    (["train", "ppo"], ["needs an environment: birl train ppo CartPole-v1"]),
    (
        ["train", "CartPole-v1"],
        ["needs an algorithm before the environment: birl train ppo CartPole-v1; algorithms: reinforce,"],
    ),
    (
        ["train", "CartPole-v1", "--seed", "1"],
        ["needs an algorithm before the environment: birl train ppo CartPole-v1"],
    ),
    (["train", "CartPole-v1", "dqn"], ["needs an algorithm before the environment: birl train dqn CartPole-v1"]),
    (["train", "ppo", "Ant-v2"], ["birl: env.id 'Ant-v2' cannot be made: ", "gymnasium-robotics", "; use Ant-v5"]),
    (
        ["train", "ppo", "LunarLander-v2"],
        ["birl: env.id 'LunarLander-v2' is too old: ", "use `LunarLander-v3` instead"],
    ),
    (["record", "runs/none"], ["birl: runs/none holds no checkpoint; give a run directory"]),
]


@pytest.mark.parametrize(("words", "parts"), BAD_TASKS, ids=[" ".join(words) for words, _ in BAD_TASKS])
def test_bad_tasks_fail_with_what_to_use_instead(words, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = call(*words)
    assert code == 2
    assert [part for part in parts if part not in said] == [], said
    assert not list((tmp_path / "runs").glob("*"))


def test_after_a_bad_setting_the_same_directory_can_be_used(tmp_path):
    run = tmp_path / "run"
    assert call("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--minibatches", 3, "--run-dir", run)[0] == 2
    call_well("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--run-dir", run)


def test_a_failure_after_the_directory_was_made_gives_it_back(tmp_path, monkeypatch):
    """wandb is opened when config.json exists already."""

    def refuse(*_: object) -> None:
        raise ConfigError("run.wandb 'x' needs the wandb package")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("birl.run.run.open_sinks", refuse)
        code, said = call("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--run-dir", tmp_path / "run")
    assert code == 2
    assert "needs the wandb package" in said
    assert not (tmp_path / "run").exists()
    call_well("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--run-dir", tmp_path / "run")


@pytest.mark.parametrize("held", ["config.json", "metrics.jsonl", "checkpoints"])
def test_a_directory_that_holds_a_run_or_what_is_left_of_one_is_refused(held, tmp_path):
    (tmp_path / held / "000000064").mkdir(parents=True) if held == "checkpoints" else (tmp_path / held).write_text("{}")
    code, said = call("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--run-dir", tmp_path)
    assert code == 2
    remedy = f"continue it with birl resume {tmp_path}, choose another run_dir, or move it aside: --overwrite"
    assert f"run_dir {tmp_path} already holds a run ({held}); {remedy}" in said
    assert (tmp_path / held).exists()


def test_a_run_directory_that_cannot_be_made_is_said_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    code, said = call("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--run-dir", tmp_path / "file")
    assert (code, "is a file; name a directory" in said) == (2, True)
    code, said = call("train", "ppo", "birl/ProbeConstant-v0", *SMALL, "--run-dir", tmp_path / "file" / "run")
    assert code == 1
    assert "Not a directory" in said


def test_the_config_of_a_run_is_strict_json_with_every_setting(tmp_path):
    call_well(
        "train",
        "ppo",
        "birl/ProbeConstant-v0",
        *SMALL,
        "--learning-rate",
        "linear:1e-3:0",
        "--run-dir",
        tmp_path / "run",
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    stored = json.loads((tmp_path / "run" / "config.json").read_text(), parse_constant=refuse)
    assert stored["algorithm"] == "ppo"
    assert stored["config"]["learning_rate"] == {"kind": "linear", "values": [1e-3, 0.0], "points": [1.0]}
    own = {name for name, place in places_of(ppo.Config).items() if place.path[:1] not in (("env",), ("run",))}
    assert set(stored["config"]) == own | {"env", "run"}


def test_an_old_version_is_said_once_in_one_plain_line(tmp_path):
    """In a new process, because a warning is shown only once per process."""
    training = [
        "--total-steps",
        32,
        "--rollout-length",
        16,
        "--minibatches",
        1,
        "--eval-episodes",
        1,
        "--run-dir",
        "run",
    ]
    ended = birl("train", "ppo", "CartPole-v0", *training, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout + ended.stderr
    assert said.count("birl: warning: env.id 'CartPole-v0' is an old version; use CartPole-v1\n") == 1
    assert said.count("CartPole-v1") == 1
    assert "\x1b" not in said


def test_gymnasiums_own_warnings_lose_their_colours_and_their_place_in_the_source(tmp_path):
    (tmp_path / "coloured.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "def make(**kwargs):\n"
        "    gym.logger.warn('the pole is short')\n"
        "    return CartPoleEnv(**kwargs)\n"
        "gym.register('Coloured-v0', entry_point=make, max_episode_steps=10)\n"
    )
    training = [
        "--num-envs",
        2,
        "--total-steps",
        32,
        "--rollout-length",
        16,
        "--minibatches",
        1,
        "--eval-episodes",
        1,
        "--run-dir",
        "run",
    ]
    for words in (["check-env", "coloured:Coloured-v0"], ["train", "ppo", "coloured:Coloured-v0", *training]):
        ended = birl(*words, cwd=tmp_path)
        said = ended.stdout + ended.stderr
        assert "warning: the pole is short\n" in said
        assert "\x1b" not in said
        assert "coloured.py" not in said
