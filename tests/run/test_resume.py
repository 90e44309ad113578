"""A resumed run ends in the same bits as an uninterrupted one."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from birl.envs.check.trials import Trial
from birl.envs.serial import SerialEnvs
from birl.run.checkpoint import checkpoints_in
from tests.run.processes import ENVIRONMENT, SECONDS, assert_same_run, call, call_well, end_of, metric_rows, succeed

# Small, but with all that changes during a run: normalisers, schedules, long episodes.
SETTINGS = [
    "--rollout-length", 32, "--epochs", 2, "--minibatches", 2, "--hidden-sizes", 16, "--core-size", 8,
    "--normalize-observations", "--normalize-rewards", "--learning-rate", "linear:1e-3:0",
    "--clip-range", "linear:0.3:0.1", "--entropy-weight", 0.01, "--checkpoint-every", 1, "--keep-checkpoints", 100,
    "--eval-episodes", 2,
]  # fmt: skip

TASKS = [
    ("CartPole-v1", "feedforward", 8),  # Gymnasium's own vector environment: its state is copied
    ("CartPole-v1", "lstm", 4),  # stepped one by one: episodes are replayed
    ("Pendulum-v1", "feedforward", 2),
    ("Pendulum-v1", "lstm", 2),
    ("LunarLander-v3", "feedforward", 2),
    ("LunarLander-v3", "lstm", 2),
    ("tests.envs.hybrid:Hybrid-v0", "lstm", 2),  # a tree of actions with masks
]

# The replay is so small that it is full before the run is stopped.
WITH_REPLAY = {
    "dqn, prioritised": ("dqn", "CartPole-v1", ["--prioritized", "--n-step", 3, "--dueling"]),
    "dqn, sequences": ("dqn", "LunarLander-v3", ["--core", "lstm", "--core-size", 8, "--burn-in", 2]),
    "ddpg, ou": ("ddpg", "Pendulum-v1", ["--noise", "ou"]),
    "ddpg, parameter": ("ddpg", "Pendulum-v1", ["--noise", "parameter", "--layer-norm"]),
    "td3": ("td3", "Pendulum-v1", []),
    "sac": ("sac", "Pendulum-v1", []),
}
# Slow tests: tests/test_contract.py resumes these within one process.
ALSO = ("dqn, sequences", "ddpg, ou", "ddpg, parameter", "td3")
REPLAY_SETTINGS = [
    "--num-envs", 2, "--rollout-length", 8, "--update-ratio", 0.25, "--learning-starts", 40, "--batch-size", 8,
    "--replay-size", 48,
    "--hidden-sizes", 16, "--normalize-observations", "--normalize-rewards", "--total-steps", 161, "--log-every", 1,
    "--checkpoint-every", 1, "--keep-checkpoints", 100, "--eval-episodes", 2,
]  # fmt: skip


def train_words(env_id: str, core: str, num_envs: int, updates: int, run_dir: Path) -> list[object]:
    total_steps = 32 * num_envs * (updates - 1) + 1
    words = ["--core", core, "--num-envs", num_envs, "--total-steps", total_steps, "--run-dir", run_dir]
    return ["train", "ppo", env_id, *words, *SETTINGS]


def cut_back(run_dir: Path, kept: int, copy: Path) -> Path:
    """A copy of the run as if it was killed after it had written `kept` checkpoints."""
    shutil.copytree(run_dir, copy)
    for path in checkpoints_in(copy / "checkpoints")[kept:]:
        shutil.rmtree(path)
    (copy / "summary.json").unlink(missing_ok=True)
    return copy


def assert_it_goes_on_from_the_states_of_its_environments(tmp_path: Path, kept: int, package: str) -> None:
    """Resume the run in `whole` after `kept` checkpoints: it ends in the same bits."""
    resumed = cut_back(tmp_path / "whole", kept, tmp_path / "resumed")
    files = checkpoints_in(resumed / "checkpoints")[-1]
    snapshot, manifest = (json.loads((files / name).read_text()) for name in ("snapshot.json", "manifest.json"))
    assert (snapshot["envs"]["tier"], manifest["exact"]) == ("each", True)
    assert "not exact" not in succeed("resume", resumed, cwd=tmp_path)
    assert_same_run(resumed, tmp_path / "whole")
    assert metric_rows(resumed) == metric_rows(tmp_path / "whole")
    for written in (manifest, json.loads((resumed / "summary.json").read_text())):
        assert written["versions"][package] == importlib.metadata.version(package)


ON_PONG = {
    "ppo": [
        "--core", "lstm", "--core-size", 8, "--rollout-length", 8, "--epochs", 1, "--minibatches", 2,
        "--sticky-actions", 0.25,
    ],
    "dqn": [
        "--rollout-length", 8, "--update-ratio", 0.125, "--learning-starts", 16, "--batch-size", 4, "--replay-size", 48,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on CartPole with evaluations."""
    run_dir = tmp_path_factory.mktemp("resume") / "whole"
    call_well(*train_words("CartPole-v1", "feedforward", 8, 6, run_dir), "--eval-every", 512)
    return run_dir


def test_a_run_in_wrapped_environments_of_a_function_goes_on_exactly_in_workers_too(tmp_path):
    words = train_words("tests.envs.own:make_walk", "lstm", 4, 4, tmp_path / "whole")
    wrappers = ["--wrapper", "tests.envs.own:Scaled,factor=0.5", "--wrapper", "tests.envs.own:Remembering"]
    call_well(*words, *wrappers, "--kwargs", "length", 50)
    for workers in (0, 2):
        resumed = cut_back(tmp_path / "whole", 2, tmp_path / f"resumed-{workers}")
        assert "not exact" not in call_well("resume", resumed, "--workers", workers)
        assert_same_run(resumed, tmp_path / "whole")
    said = call_well("record", tmp_path / "whole", "--out", tmp_path / "walk.gif")
    assert "walk.gif" in said
    assert "over 2 episodes" in call_well("eval", tmp_path / "whole", "--episodes", 2)


# tests/envs has the environments of the others.
IN_MAKE_TEST = TASKS[0], TASKS[1], TASKS[-1], *(task for task in WITH_REPLAY if task not in ALSO)


def train_and_cut_back(task: Any, directory: Path) -> Path:
    """A copy of a run of this task as if it was killed in the middle; the run itself is `whole`."""
    if task in WITH_REPLAY:
        algorithm, env_id, switches = WITH_REPLAY[task]
        call_well("train", algorithm, env_id, "--run-dir", directory / "whole", *REPLAY_SETTINGS, *switches)
    else:
        call_well(*train_words(*task, 8, directory / "whole"))
    resumed = cut_back(directory / "whole", 7 if task in WITH_REPLAY else 4, directory / "resumed")
    assert end_of(resumed) != end_of(directory / "whole")
    return resumed


def assert_it_was_exact(directory: Path, said: str) -> None:
    assert_same_run(directory / "resumed", directory / "whole")
    assert metric_rows(directory / "resumed") == metric_rows(directory / "whole")
    assert "not exact" not in said


@pytest.fixture(scope="module")
def resumed_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, tuple[Path, str]]:
    """The directories of these tasks, and what was said: one new process has resumed all runs."""
    directories = {task: tmp_path_factory.mktemp("task") for task in IN_MAKE_TEST}
    runs = [str(train_and_cut_back(task, directory)) for task, directory in directories.items()]
    ends = "[call('resume', run) for run in sys.argv[1:]]"
    program = f"import json, sys; from tests.run.processes import call; print(json.dumps({ends}))"
    ended = subprocess.run(
        [sys.executable, "-c", program, *runs],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    ends = json.loads(ended.stdout.splitlines()[-1])
    assert [code for code, _ in ends] == [0] * len(runs), ends
    return {task: (directories[task], said) for task, (_, said) in zip(IN_MAKE_TEST, ends, strict=True)}


@pytest.mark.parametrize("task", IN_MAKE_TEST, ids=str)
def test_a_resumed_run_ends_in_the_same_bits(task, resumed_elsewhere):
    assert_it_was_exact(*resumed_elsewhere[task])


@pytest.mark.slow
@pytest.mark.parametrize("task", [task for task in (*TASKS, *WITH_REPLAY) if task not in IN_MAKE_TEST], ids=str)
def test_a_resumed_run_ends_in_the_same_bits_in_a_process_of_its_own(task, tmp_path):
    resumed = train_and_cut_back(task, tmp_path)
    assert_it_was_exact(tmp_path, succeed("resume", resumed, cwd=tmp_path))


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.slow)])
def test_a_resumed_run_on_pong_goes_on_from_its_state_to_the_same_bits(algorithm, tmp_path, monkeypatch):
    """Games are truncated after 25 steps, so the run stops inside a game that is not its first."""
    pytest.importorskip("ale_py")
    monkeypatch.delitem(ENVIRONMENT, "NPROC")  # as for users: with images, each CPU core is a device
    often = [
        "--total-steps",
        97,
        "--checkpoint-every",
        1,
        "--keep-checkpoints",
        100,
        "--log-every",
        1,
        "--eval-episodes",
        1,
    ]
    small = ["--num-envs", 2, "--encoder", "cnn_small", "--max-episode-steps", 25, "--run-dir", tmp_path / "whole"]
    succeed("train", algorithm, "ALE/Pong-v5", *small, *often, *ON_PONG[algorithm], cwd=tmp_path)
    assert_it_goes_on_from_the_states_of_its_environments(tmp_path, 5, "ale-py")


@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("td3", marks=pytest.mark.slow)])
def test_a_resumed_run_on_mujoco_goes_on_from_its_state_to_the_same_bits(algorithm, tmp_path):
    """Episodes have 25 steps, so the run stops inside an episode that is not its first."""
    pytest.importorskip("mujoco")
    words = {"ppo": train_words("HalfCheetah-v5", "feedforward", 2, 8, tmp_path / "whole")}
    words["td3"] = ["train", "td3", "HalfCheetah-v5", "--run-dir", tmp_path / "whole", *REPLAY_SETTINGS]
    succeed(*words[algorithm], "--max-episode-steps", 25, cwd=tmp_path)
    assert_it_goes_on_from_the_states_of_its_environments(tmp_path, 4, "mujoco")


def test_evaluations_do_not_change_the_run(whole, tmp_path):
    call_well(*train_words("CartPole-v1", "feedforward", 8, 6, tmp_path / "quiet"), "--eval-every", 0)
    assert_same_run(tmp_path / "quiet", whole)


def test_a_run_killed_in_the_middle_of_its_evaluations_has_the_same_ones_and_the_same_best(whole, tmp_path):
    resumed = cut_back(whole, 3, tmp_path / "resumed")
    call_well("resume", resumed)
    assert metric_rows(resumed) == metric_rows(whole)
    best = [json.loads((run / "checkpoints" / "best.json").read_text()) for run in (resumed, whole)]
    assert best[0] == best[1]


def test_a_run_killed_before_its_summary_is_evaluated_but_not_trained_again(whole, tmp_path):
    resumed = cut_back(whole, 100, tmp_path / "resumed")
    said = call_well("resume", resumed)
    assert "this run has reached its 1,281 steps" in said
    assert metric_rows(resumed) == metric_rows(whole), "the evaluation that was there is not logged twice"
    summaries = [json.loads((run / "summary.json").read_text()) for run in (resumed, whole)]
    assert summaries[0]["evaluation"] == summaries[1]["evaluation"]


def test_a_finished_run_says_so_and_stays_as_it_is(whole):
    files = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    said = call_well("resume", whole)
    assert "this run has reached its 1,281 steps; to train longer: birl resume" in said
    assert "evaluation return" in said
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == files, (
        "nothing is scaled or written twice"
    )


def test_more_total_steps_say_that_schedules_change_and_train_on(whole, tmp_path):
    longer = shutil.copytree(whole, tmp_path / "longer")
    said = call_well("resume", longer, "--total-steps", 2000)
    steps = int(end_of(whole)["number"])
    now = f"clip_range 0.1 -> {0.3 - 0.2 * steps / 2000:.4g}, learning_rate 0 -> {1e-3 * (1 - steps / 2000):.4g}"
    assert f"total_steps 1,281 -> 2,000: schedules now end there; at {steps:,} steps, {now}\n" in said
    assert 2000 <= int(end_of(longer)["number"]) < 2000 + 256
    rates = [row["optimizer/learning_rate"] for row in metric_rows(longer) if "optimizer/learning_rate" in row]
    steps = [row["env_steps"] for row in metric_rows(longer) if "optimizer/learning_rate" in row]
    done = [0, *steps[:-1]]
    total = [1281 if step < int(end_of(whole)["number"]) else 2000 for step in done]
    assert rates == pytest.approx([1e-3 * (1 - step / end) for step, end in zip(done, total, strict=True)], rel=1e-4)


def test_a_second_resume_scales_nothing_a_second_time(whole, tmp_path):
    """contrib #259: loading multiplied a setting by the number of environments, each time."""
    once = cut_back(whole, 3, tmp_path / "once")
    call_well("resume", once)
    twice = cut_back(once, 4, tmp_path / "twice")
    call_well("resume", twice)
    assert_same_run(twice, whole)
    configs = [json.loads((run / "config.json").read_text())["config"] for run in (twice, whole)]
    for config in configs:
        del config["run"]["run_dir"]
    assert configs[0] == configs[1]


def test_a_run_without_a_checkpoint_starts_from_the_beginning(whole, tmp_path):
    resumed = cut_back(whole, 0, tmp_path / "resumed")
    said = call_well("resume", resumed)
    assert "there is no checkpoint yet: starting from the beginning, with the same seed" in said
    assert_same_run(resumed, whole)
    assert metric_rows(resumed) == metric_rows(whole)


def test_a_run_that_reached_its_goal_stays_stopped_until_more_steps_are_asked_for(tmp_path):
    words = train_words("birl/ProbeTruncation-v0", "feedforward", 4, 9, tmp_path / "run")
    said = call_well(*words, "--eval-every", 200, "--stop-at-return", 5)
    assert "stop_at_return 5.0 reached" in said
    stopped_at = end_of(tmp_path / "run")["number"]
    resumed = cut_back(tmp_path / "run", 100, tmp_path / "resumed")
    assert "this run has reached stop_at_return 5.0" in call_well("resume", resumed)
    assert end_of(resumed)["number"] == stopped_at
    call_well("resume", resumed, "--total-steps", 2000)
    assert int(end_of(resumed)["number"]) >= 2000


def test_a_damaged_newest_checkpoint_is_named_and_the_run_still_ends_the_same(whole, tmp_path):
    resumed = cut_back(whole, 3, tmp_path / "resumed")
    damaged = checkpoints_in(resumed / "checkpoints")[-1]
    (damaged / "state.safetensors").write_bytes((damaged / "state.safetensors").read_bytes()[:-1])
    said = call_well("resume", resumed)
    before = checkpoints_in(whole / "checkpoints")[1].name
    assert (
        f"{damaged / 'state.safetensors'} is damaged: its SHA-256 is not the manifest's; using {before} instead" in said
    )
    assert_same_run(resumed, whole)


def test_envpool_resumes_with_new_episodes_and_says_that_it_is_not_exact(tmp_path):
    pytest.importorskip("envpool")
    call_well(*train_words("CartPole-v1", "lstm", 4, 4, tmp_path / "run"), "--backend", "envpool")
    resumed = cut_back(tmp_path / "run", 2, tmp_path / "resumed")
    manifest = json.loads((checkpoints_in(resumed / "checkpoints")[-1] / "manifest.json").read_text())
    assert manifest["exact"] is False
    assert "cannot save its state" in manifest["reason"]
    said = call_well("resume", resumed)
    assert said.count("this resume is not exact: 4 environments (0 is the first) began a new episode") == 1
    assert int(end_of(resumed)["number"]) >= 32 * 4 * 3 + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere holds no run: there is no config.json"),
        (["{run}", "--total-steps", "-5"], "total_steps -5 must be more than the"),
        (["{run}", "--total-steps", "100"], "total_steps 100 must be more than the"),
    ],
)
def test_what_cannot_be_resumed_is_refused_in_a_sentence(words, message, whole):
    config = (whole / "config.json").read_bytes()
    code, said = call("resume", *[word.format(run=whole) for word in words])
    assert code == 2
    assert message in said
    assert (whole / "config.json").read_bytes() == config


def test_without_a_checkpoint_a_config_that_cannot_be_read_is_reported_in_a_sentence(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    (run / "config.json").write_text("{")
    code, said = call("resume", run)
    assert code == 2
    assert f"{run / 'config.json'} is damaged" in said


def test_a_run_with_workers_that_has_ended_can_be_gone_on_with_exactly(tmp_path):
    """The last checkpoint must be written before the generator closes the environments."""
    settings = ["--num-envs", 2, "--workers", 2, "--hidden-sizes", 8, "--eval-episodes", 2, "--total-steps", 40]
    call_well("train", "a2c", "CartPole-v1", *settings, "--run-dir", tmp_path / "run")
    [last] = checkpoints_in(tmp_path / "run" / "checkpoints")
    manifest = json.loads((last / "manifest.json").read_text())
    assert (manifest["exact"], manifest["reason"]) == (True, "")


def manifest_of(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "manifest.json").read_text())


def test_a_run_that_cannot_be_resumed_exactly_says_so_at_once_and_all_its_later_checkpoints_know_of_the_resume(
    tmp_path,
):
    reason = "after a restore it stepped differently from the original: it keeps state from one episode to the next"
    words = train_words("tests.envs.troubled:Leaky-v0", "feedforward", 2, 4, tmp_path / "run")
    said = call_well(*words, "--kwargs", "limit", 9)
    assert said.count(f"a resume of this run will not be exact: {reason}") == 1
    for path in checkpoints_in(tmp_path / "run" / "checkpoints"):
        manifest = manifest_of(path)
        assert (manifest["exact"], manifest["reason"], manifest["progress"]["inexact_resumes"]) == (False, reason, [])
    resumed = cut_back(tmp_path / "run", 2, tmp_path / "resumed")
    assert call_well("resume", resumed).count("this resume is not exact") == 1
    *_, before, _, last = checkpoints_in(resumed / "checkpoints")
    [resume] = manifest_of(last)["progress"]["inexact_resumes"]
    assert resume["env_steps"] == int(before.name)
    assert manifest_of(before)["progress"]["inexact_resumes"] == []
    assert json.loads((resumed / "summary.json").read_text())["inexact_resumes"] == [resume]


def test_after_an_inexact_resume_the_next_can_be_exact_and_the_history_stays(tmp_path, monkeypatch):
    call_well(*train_words("CartPole-v1", "feedforward", 2, 5, tmp_path / "run"))
    resumed = cut_back(tmp_path / "run", 2, tmp_path / "resumed")
    start = checkpoints_in(resumed / "checkpoints")[-1]
    with monkeypatch.context() as patch:
        patch.setattr("birl.run.run.try_envs", lambda config: Trial("", masks=False))
        patch.setattr(SerialEnvs, "_restore_env", lambda *_: "it was another day")
        assert "this resume is not exact: 2 environments" in call_well("resume", resumed)
    for path in checkpoints_in(resumed / "checkpoints")[2:]:
        manifest = manifest_of(path)
        assert manifest["exact"] is True
        [resume] = manifest["progress"]["inexact_resumes"]
        assert resume["env_steps"] == int(start.name)
        assert "began a new episode; it was another day" in resume["reason"]
    again = cut_back(resumed, 4, tmp_path / "again")
    assert "not exact" not in call_well("resume", again)
    assert manifest_of(checkpoints_in(again / "checkpoints")[-1])["progress"]["inexact_resumes"] == [resume]


def test_an_environment_that_draws_from_a_random_state_is_saved_and_resumed_to_the_same_bits(tmp_path):
    words = train_words("tests.envs.troubled:OldRandomness-v0", "feedforward", 2, 3, tmp_path / "whole")
    call_well(*words, "--kwargs", "limit", 9)
    resumed = cut_back(tmp_path / "whole", 1, tmp_path / "resumed")
    assert "not exact" not in call_well("resume", resumed)
    assert_same_run(resumed, tmp_path / "whole")


def test_an_environment_that_has_no_generator_is_trained_and_resumed_in_new_episodes(tmp_path):
    words = train_words("tests.envs.troubled:NoRandomness-v0", "feedforward", 2, 3, tmp_path / "run")
    said = call_well(*words, "--kwargs", "limit", 9)
    assert "a resume of this run will not be exact: its state cannot be read: TypeError: np_random is None" in said
    said = call_well("resume", cut_back(tmp_path / "run", 1, tmp_path / "resumed"))
    assert (
        "this resume is not exact: 2 environments (0 is the first) began a new episode; its state cannot be read"
        in said
    )
