"""The control loop in C++ does what Birl's policy does, and its plants move as Gymnasium's do."""

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import birl

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "examples" / "cpp"
FETCHED = ROOT / "build" / "onnxruntime"
MISSING = [program for program in ("cmake", "c++") if shutil.which(program) is None]
MISSING += [package for package in ("onnx",) if importlib.util.find_spec(package) is None]
SMALL = {"rollout_length": 16, "minibatches": 1, "epochs": 1, "total_steps": 128, "quiet": True}

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)}")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The compiled control loop."""
    build = tmp_path_factory.mktemp("cpp")
    places = os.pathsep.join(filter(None, [str(FETCHED), os.environ.get("CMAKE_PREFIX_PATH")]))
    made = run("cmake", "-S", SOURCE, "-B", build, f"-DCMAKE_PREFIX_PATH={places.replace(os.pathsep, ';')}")
    if "onnxruntime's C++ files were not found" in made.stderr:
        pytest.skip("onnxruntime's C++ files are missing: python examples/cpp/fetch.py")
    assert made.returncode == 0, made.stderr
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "warning" not in built.stdout + built.stderr
    return build / "control_loop"


CASES = {
    "cartpole": ("ppo", "CartPole-v1", SMALL),
    "recurrent cartpole": ("ppo", "CartPole-v1", SMALL | {"core": "gru"}),
    "recurrent pendulum": ("ppo", "Pendulum-v1", SMALL | {"core": "lstm"}),
}
ENV_IDS = {"cartpole": "CartPole-v1", "recurrent pendulum": "Pendulum-v1"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Callable[[str], tuple[birl.Policy, Path]]:
    """The policy of a case after a few updates, and its ONNX file."""

    @cache
    def make(case: str) -> tuple[birl.Policy, Path]:
        algorithm, env_id, settings = CASES[case]
        folder = tmp_path_factory.mktemp("policy")
        birl.train(algorithm, env_id, run_dir=folder / "run", eval_episodes=1, **settings)
        policy = birl.load(folder / "run")
        return policy, birl.export(policy, folder / "policy.onnx").path

    return make


@pytest.mark.parametrize("case", CASES)
def test_the_loop_acts_as_the_policy_does_in_birl(program, exported, tmp_path, case):
    policy, path = exported(case)
    said = run(program, path, "--rate", "0", "--steps", "450", "--log", tmp_path / "log.csv")
    assert said.returncode == 0, said.stderr
    rows = np.loadtxt(tmp_path / "log.csv", delimiter=",", dtype=np.float64)
    assert len(rows) == 450
    assert rows[:, 0].sum() >= 3  # episodes begin, so that the memory is emptied
    observations = rows[:, 1:-2].astype(np.float32)
    memory = None
    for (episode_begins, *_, action, _), observation in zip(rows, observations, strict=True):
        expected, memory = policy.act(observation, None if episode_begins else memory)
        assert action == pytest.approx(float(np.squeeze(expected)), abs=1e-4)


@pytest.mark.parametrize("case", ENV_IDS)
def test_the_plants_move_as_gymnasium_says(program, exported, tmp_path, case):
    env_id, (_, path) = ENV_IDS[case], exported(case)
    run(program, path, "--rate", "0", "--steps", "450", "--seed", "3", "--log", tmp_path / "log.csv")
    rows = np.loadtxt(tmp_path / "log.csv", delimiter=",", dtype=np.float64)
    env = gym.make(env_id).unwrapped
    for now, later in pairwise(rows):
        env.reset(seed=0)
        observation, (action, reward) = now[1:-2], now[-2:]
        angle = [np.arctan2(observation[1], observation[0]), observation[2]]
        env.state = np.array(angle if env_id == "Pendulum-v1" else observation)
        expected, expected_reward, terminated, *_ = env.step(
            np.array([action], np.float32) if env_id == "Pendulum-v1" else int(action)
        )
        assert reward == pytest.approx(expected_reward, abs=1e-4)
        if later[0]:
            assert terminated or env_id == "Pendulum-v1"
        else:
            assert not terminated
            np.testing.assert_allclose(later[1:-2], expected, atol=1e-5)


def test_the_loop_keeps_its_rate_and_prints_ports_return_and_latency(program, exported):
    _, path = exported("recurrent cartpole")
    started = time.monotonic()
    said = run(program, path, "--steps", "20")
    assert time.monotonic() - started > 20 / 50  # it waited
    assert said.returncode == 0, said.stderr
    assert "input   observation      float32[1, 4]\n" in said.stdout
    assert "output  action           int64[1]\n" in said.stdout
    assert "input   resets           bool[1]\n" in said.stdout
    assert "20 steps, whole episodes: " in said.stdout
    assert "policy: mean " in said.stdout
    assert "50 Hz, late steps: " in said.stdout


def test_files_that_do_not_fit_are_refused_in_one_line(program, exported, tmp_path):
    policy, path = exported("cartpole")
    batch = birl.export(policy, tmp_path / "batch.onnx", batch_size=3).path
    sampled = birl.export(policy, tmp_path / "sampled.onnx", sample=True).path
    for words, problem in {
        (batch,): "takes 3 observations in a call; export it with --batch-size 1",
        (sampled,): "has the input noise; this example fills observation, memory and resets only",
        (path, "--speed", "1"): "--speed is unknown; use --steps, --rate, --seed or --log",
        (tmp_path / "none.onnx",): "File doesn't exist",
    }.items():
        said = run(program, *words)
        assert said.returncode == 1
        assert said.stderr.startswith("error: ")
        assert problem in said.stderr
        assert len(said.stderr.splitlines()) == 1
