"""`birl solve` from the environment to the policy, its verdict, and after a signal."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import birl
from birl.config import ConfigError, EnvConfig
from birl.errors import RunDirectoryError
from birl.lab.candidates import fitting
from birl.lab.solution import SolvePlan, SolveRequest, write_solve_plan
from birl.lab.solving import _go_on, continue_solving
from birl.lab.tuning.plan import Budget, Candidate, make_plan, read_plan, write_plan
from tests.markdown import ROOT
from tests.run.processes import ENVIRONMENT, SECONDS

NOISE = '''
import gymnasium as gym
import numpy as np


class Noise(gym.Env):
    """Rewards that no action changes."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.left -= 1
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, float(self.np_random.normal()), self.left == 0, False, {}
'''


def command(*words, directory):
    """The result of a command that ran to its end."""
    return subprocess.run(
        [sys.executable, "-m", "birl", *map(str, words)],
        cwd=directory,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_an_environment_of_discrete_numbers_ends_with_a_policy_its_score_a_video_and_a_page(tmp_path):
    env = birl.EnvConfig("FrozenLake-v1", kwargs={"is_slippery": False})
    found = birl.solve(env, trials=2, total_steps=1500, episodes=20, run_dir=str(tmp_path / "lake"), quiet=True)
    assert found["algorithm"] in ("ppo", "dqn")
    assert (found["episodes"], found["trials"], found["env"]) == (20, 2, "FrozenLake-v1")
    assert found == json.loads((tmp_path / "lake" / "solution.json").read_text())
    low, high = found["difference"]
    assert low <= found["score"] - found["random_score"] <= high
    assert found["better"] == (low > 0)
    assert os.path.getsize(found["video"]) > 1000
    page = (tmp_path / "lake" / "report.html").read_text()
    titles = ("The agent", "Result of the search", "Trials")
    places = [page.index(f">{title}</h2>") for title in titles]
    assert places == sorted(places)  # what a reader wants to know comes first
    assert f"over {found['episodes']} fresh episodes; at random" in page
    assert page.count("data:video/mp4;base64,") == 1
    assert all(text in page for text in ("dqn: ", "ppo: ", "rung 3"))
    policy = birl.load(found["policy"])
    assert policy.act(0)[0] in range(4)
    assert birl.evaluate(found["run_dir"], 20, 1_000_004, found["deterministic"]).returns.mean() == found["score"]
    with pytest.raises(ConfigError, match=r"is over; see solution\.json there, or use another run_dir"):
        birl.solve(env, trials=2, run_dir=str(tmp_path / "lake"))
    (tmp_path / "lake" / "solution.json").unlink()
    with pytest.raises(ConfigError, match="holds another search: id 'FrozenLake-v1', not 'CartPole-v1'"):
        birl.solve("CartPole-v1", trials=2, run_dir=str(tmp_path / "lake"))


@pytest.mark.slow
def test_a_dict_environment_of_this_directory_is_solved_from_the_command_line(tmp_path):
    shutil.copy(ROOT / "examples" / "dict_environment.py", tmp_path)
    words = [
        "solve",
        "dict_environment:Dock-v0",
        "--trials",
        "2",
        "--total-steps",
        "2000",
        "--episodes",
        "10",
        "--run-dir",
        "dock",
    ]
    ended = command(*words, directory=tmp_path)
    assert ended.returncode in (0, 1), ended.stderr
    found = json.loads((tmp_path / "dock" / "solution.json").read_text())
    assert ended.returncode == (0 if found["better"] else 1)
    assert "random actions: return -" in ended.stdout
    assert f"best: {found['algorithm']} (2 trials" in ended.stdout
    assert (tmp_path / found["video"]).exists()
    again = command("resume", "dock", directory=tmp_path)  # the end alone: nothing is trained again
    assert again.returncode == ended.returncode, again.stderr
    assert json.loads((tmp_path / "dock" / "solution.json").read_text())["score"] == found["score"]


@pytest.mark.slow
def test_rewards_that_no_action_changes_give_nothing_better_than_random(tmp_path):
    (tmp_path / "noise.py").write_text(NOISE)
    words = ["solve", "noise:Noise", "--trials", "2", "--total-steps", "1200", "--no-video", "--run-dir", "noise"]
    ended = command(*words, directory=tmp_path)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "nothing better than random actions was found: the difference lies between -" in ended.stdout
    assert "what to try: more --minutes; birl diagnose noise/trials/" in ended.stdout
    found = json.loads((tmp_path / "noise" / "solution.json").read_text())
    assert not found["better"]
    assert found["difference"][0] <= 0 <= found["difference"][1]
    assert found["video"] is None


@pytest.mark.slow
def test_a_search_that_was_stopped_goes_on_to_the_same_end(tmp_path):
    words = [sys.executable, "-m", "birl", "solve", "CartPole-v1", "--trials", "3", "--total-steps", "3000"]
    words += ["--jobs", "1", "--no-video", "--run-dir"]
    whole = subprocess.run([*words, "whole"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, check=False)
    process = subprocess.Popen([*words, "cut"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    journal = tmp_path / "cut" / "journal.jsonl"
    last = time.monotonic() + SECONDS
    while time.monotonic() < last and not (journal.exists() and '"done"' in journal.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, said
    assert "continue with: birl resume cut" in said
    assert not (tmp_path / "cut" / "solution.json").exists()
    again = command("resume", "cut", directory=tmp_path)
    assert again.returncode == whole.returncode, again.stdout + again.stderr
    ends = [json.loads((tmp_path / name / "solution.json").read_text()) for name in ("whole", "cut")]
    for name in ("algorithm", "settings", "score", "env_steps", "trials"):
        assert ends[0][name] == ends[1][name]


def test_an_environment_that_cannot_be_trained_on_is_refused_with_the_finding(tmp_path):
    (tmp_path / "broken.py").write_text(NOISE.replace("(-1, 1, 2).astype(np.float32), {}", "(-1, 1, 3), {}"))
    ended = command("solve", "broken:Noise", "--trials", "1", directory=tmp_path)
    assert ended.returncode == 2
    assert "broken:Noise cannot be trained on yet: " in ended.stderr
    assert "birl check-env broken:Noise shows more" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="an environment is needed"):
        birl.solve()
    with pytest.raises(ConfigError, match="only this process has"):
        birl.solve(make_env=lambda: None)
    with pytest.raises(ConfigError, match="holds no search for an agent"):
        continue_solving(tmp_path)
    with pytest.raises(ConfigError, match="minutes -1 must be more than 0"):
        birl.solve("CartPole-v1", minutes=-1)


def stopped(directory):
    """A search for an agent on CartPole that was stopped before its first trial."""
    env = EnvConfig("CartPole-v1")
    [one] = fitting(env, ["ppo"], total_steps=3000)
    candidate = Candidate("ppo", one.config, one.space)
    directory.mkdir()
    write_plan(directory, make_plan((candidate,), Budget(5.0), 1, 0, command="solve"))
    request = SolveRequest(env, ("ppo",), 3000, 20, 1)
    write_solve_plan(directory, SolvePlan(20, 1, False, (1.0,), request, preparation=30.0, ending=30.0))
    return directory, request


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"env": EnvConfig("CartPole-v1", max_episode_steps=9)}, "max_episode_steps None, not 9"),
        ({"algorithms": ()}, r"algorithms \('ppo',\), not \(\)"),
        ({"total_steps": 4000}, "total_steps 3000, not 4000"),
        ({"episodes": 21}, "episodes 20, not 21"),
        ({"seed": 2}, "seed 1, not 2"),
    ],
)
def test_a_search_does_not_go_on_with_other_options(tmp_path, changes, difference):
    directory, request = stopped(tmp_path / "search")
    words = vars(request) | changes
    before = (directory / "tune.json").read_bytes()
    with pytest.raises(ConfigError, match=f"holds another search: {difference}; use another run_dir"):
        birl.solve(words.pop("env"), minutes=3, run_dir=str(directory), quiet=True, **words)
    assert (directory / "tune.json").read_bytes() == before


def test_a_search_goes_on_with_a_new_budget(tmp_path):
    directory, request = stopped(tmp_path / "search")
    _go_on(directory, request, Budget(3.0, 7))
    plan, _ = read_plan(directory)
    assert plan.budget == Budget(2.0, 7)
    assert plan.title() == "solve ppo CartPole-v1"


def test_a_search_for_an_agent_whose_directory_is_gone_ends_with_a_sentence(tmp_path, monkeypatch):
    directory, _ = stopped(tmp_path / "search")

    def lose(*_):
        shutil.rmtree(directory)
        return {}["winner"]

    monkeypatch.setattr("birl.lab.solving.continue_search", lambda *_: {"seconds": 0.0})
    monkeypatch.setattr("birl.lab.solving.end_solving", lose)
    with pytest.raises(RunDirectoryError, match="was removed, moved or replaced while its runs were training"):
        continue_solving(directory, quiet=True)


def test_a_search_for_an_agent_does_not_go_to_a_cluster(tmp_path):
    directory, _ = stopped(tmp_path / "search")
    ended = command("resume", directory, "--ray-address", "127.0.0.1:1", directory=tmp_path)
    assert ended.returncode == 2
    assert "--ray-address 127.0.0.1:1: a search for an agent trains on this machine" in ended.stderr
