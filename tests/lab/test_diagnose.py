"""`birl diagnose` on runs that were really trained, each with one fault."""

import json
import os
import shutil
from dataclasses import replace

import pytest

import birl
from birl.cli import main
from birl.lab.diagnosis import proof as proof_module
from birl.lab.diagnosis.picture import draw_diagnosis
from birl.lab.diagnosis.proof import Bounds, judge, proof_text
from birl.run import checkpoint
from birl.run.directory import read_fork
from birl.run.evaluating import evaluate
from birl.run.history import read_histories
from tests.lab.broken_runs import BROKEN_RUNS, make_run

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
    settings = {"eval_episodes": 5, "quiet": True, "run_dir": str(run_dir)}
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


def test_the_picture_is_drawn_for_a_reader_who_has_left(healthy, tmp_path, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:  # birl diagnose RUN --out FILE | head
        monkeypatch.setattr("sys.stdout", stream)
        assert main(["diagnose", str(healthy), "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").exists()


def test_a_dollar_in_the_name_of_an_environment_is_drawn_as_one(healthy, tmp_path):
    (found,) = birl.diagnose(healthy)
    named = replace(found, label=r"ppo, a$\nothing$b")  # matplotlib refuses it as a formula
    assert draw_diagnosis(named, read_histories(healthy), tmp_path / "a.png").stat().st_size > 1000


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


WOBBLY = {"learning_rate": 0.1, "eval_episodes": 5, "quiet": True}


@pytest.fixture(scope="module")
def wobbly(tmp_path_factory):
    """PPO on CartPole with a learning rate of 0.1, and its diagnosis."""
    run_dir = tmp_path_factory.mktemp("runs") / "wobbly"
    birl.train("ppo", "CartPole-v1", total_steps=8_000, run_dir=str(run_dir), **WOBBLY)
    (found,) = birl.diagnose(run_dir)
    assert found.findings[0].rule == "steps-too-large"
    return found


def test_a_proof_by_forks_trains_equal_steps_with_and_without_the_change(wobbly):
    alone = replace(wobbly, findings=[replace(wobbly.findings[0], lasting=None)])
    proof = birl.prove(alone, Bounds(minutes=10, steps=600, seeds=2))
    assert proof is not None
    assert proof.rule == "steps-too-large"
    assert proof.directory == wobbly.run_dir.with_name("wobbly-proof") / "steps-too-large"
    control, changed = (read_histories(proof.directory / name) for name in ("control", "changed"))
    assert [run.seed for run in control] == [run.seed for run in changed] == [2, 3]
    assert {run.settings["learning_rate"] for run in control} == {0.1}
    assert {run.settings["learning_rate"] for run in changed} == {0.001}
    assert all(read_fork(run.run_dir).env_steps == wobbly.env_steps for run in [*control, *changed])
    ends = [run.rows[-1]["env_steps"] for run in [*control, *changed]]
    assert max(ends) - min(ends) <= 8 * 32  # a rollout
    assert proof.helped is None  # two seeds say nothing
    assert "cannot be told apart" in proof_text(proof)


def test_what_a_fork_would_inherit_is_proved_by_new_runs(wobbly):
    assert wobbly.findings[0].lasting == "policy-collapsed"
    assert wobbly.findings[0].command.startswith("birl train --like")
    proof = birl.prove(wobbly, Bounds(minutes=10, steps=600, seeds=2))
    assert "forks would inherit policy-collapsed" in proof.how
    again = birl.prove(wobbly, Bounds(minutes=10, steps=600, seeds=2))
    assert again.directory != proof.directory


def test_what_a_fork_cannot_change_is_proved_by_new_runs(tmp_path):
    run_dir = tmp_path / "unrewarded"
    broken = BROKEN_RUNS["PPO without rewards"]
    (found,) = birl.diagnose(make_run(broken, run_dir))
    proof = birl.prove(found, Bounds(minutes=10, steps=2_000, seeds=2))
    assert "new runs" in proof.how
    changed = read_histories(proof.directory / "changed")
    assert all(read_fork(run.run_dir) is None for run in changed)
    assert {run.settings["entropy_weight"] for run in changed} == {0.01}


def test_an_evaluation_below_training_is_proved_by_sampling(tmp_path):
    broken = BROKEN_RUNS["PPO with a policy that only works by chance"]
    (found,) = birl.diagnose(make_run(broken, tmp_path / "run"))
    proof = birl.prove(found)
    assert proof.helped
    assert "sampled actions return" in proof.sentence


def test_there_is_nothing_to_prove_of_a_healthy_run(healthy, capsys):
    assert birl.prove(birl.diagnose(healthy)[0]) is None
    assert main(["diagnose", str(healthy), "--prove"]) == 0
    assert "nothing to try" in capsys.readouterr().out


@pytest.fixture
def groups(wobbly, tmp_path):
    """Copies of a run as two groups of two seeds, with learning rates of 0.1 and 0.2."""
    for place, rate in enumerate((0.1, 0.2)):
        for seed in (3 * place + 1, 3 * place + 2):
            run_dir = tmp_path / "group" / f"rate-{rate}" / f"seed-{seed}"
            shutil.copytree(wobbly.run_dir, run_dir)
            stored = json.loads((run_dir / "config.json").read_text())
            stored["config"]["learning_rate"] = rate
            stored["config"]["run"]["seed"] = seed
            (run_dir / "config.json").write_text(json.dumps(stored))
    (tmp_path / "group" / "group.json").write_text("{}")
    return tmp_path / "group"


def test_a_proof_of_a_group_tries_its_own_run_beside_it_with_new_seeds(groups):
    _, second = birl.diagnose(groups)
    assert [path.parent.name for path in second.runs] == ["rate-0.2", "rate-0.2"]
    proof = birl.prove(second, Bounds(minutes=10, steps=300, seeds=2), trust=True)
    assert proof.directory == groups.with_name("group-proof") / second.findings[0].rule
    control = read_histories(proof.directory / "control")
    assert {run.settings["learning_rate"] for run in control} == {0.2}
    assert [run.seed for run in control] == [6, 7]


def test_a_run_in_the_current_directory_can_be_proved(wobbly, tmp_path, monkeypatch):
    shutil.copytree(wobbly.run_dir, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    (found,) = birl.diagnose(".")
    proof = birl.prove(found, Bounds(minutes=10, steps=300, seeds=2), trust=True)
    assert proof.directory.resolve() == tmp_path / "here-proof" / "steps-too-large"


def test_a_proof_without_time_for_two_seeds_says_so(wobbly):
    proof = birl.prove(wobbly, Bounds(minutes=1e-6, steps=100_000, seeds=2))
    assert proof.helped is None
    assert "too short for two seeds" in proof.sentence


class Slow:
    """A run that makes 10 steps in each update of so many seconds of a clock that tests turn."""

    def __init__(self, clock, seconds, run_dir):
        self.clock, self.seconds, self.env_steps = clock, seconds, 0
        run_dir.mkdir(parents=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __iter__(self):
        while self.env_steps < 1000:
            self.env_steps += 10
            self.clock[0] += self.seconds
            yield


def test_the_slower_side_sets_the_steps_of_all_runs_within_the_time(tmp_path, monkeypatch):
    clock, made = [0.0], {}
    monkeypatch.setattr(proof_module.time, "monotonic", lambda: clock[0])

    def open_run(seed, run_dir, settings):
        made[run_dir] = Slow(clock, 10.0 if settings else 1.0, run_dir)
        return made[run_dir]

    trained = proof_module.train_both(open_run, tmp_path, {"slow": True}, range(1, 4), 600.0)
    assert clock[0] <= 600.0
    assert trained == (3, 70, [])
    assert {run.env_steps for run in made.values()} == {70}


@pytest.mark.parametrize(("control", "changed", "helped"), [(5, 0, True), (0, 5, False), (1, 0, None), (2, 1, None)])
def test_runs_that_end_by_a_nan_have_the_worst_score(control, changed, helped, wobbly, tmp_path):
    failed = []
    for name, count in (("control", control), ("changed", changed)):
        for seed in range(1, 6):
            run_dir = tmp_path / name / f"seed-{seed}"
            run_dir.mkdir(parents=True)
            stored = json.loads((wobbly.run_dir / "config.json").read_text())
            stored["config"]["run"]["seed"] = seed
            (run_dir / "config.json").write_text(json.dumps(stored))
            rows = [{"env_steps": 100 * n, "episode/return": 10.0 + seed, "episode/count": n} for n in range(1, 50)]
            (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            failed += [run_dir] if seed <= count else []
    proof = judge(wobbly.findings[0], "so", tmp_path, proof_module.Trained(5, 4_900, failed))
    assert proof.helped is helped
    assert f"{changed} runs with the change and {control} without ended by a NaN" in proof.sentence


def test_the_newest_policy_is_evaluated_and_not_the_best(tmp_path, monkeypatch):
    broken = BROKEN_RUNS["PPO with a policy that only works by chance"]
    (found,) = birl.diagnose(make_run(broken, tmp_path / "run"))
    given = []

    def watched(policy, *rest, **options):
        given.append(policy)
        return evaluate(policy, *rest, **options)

    monkeypatch.setattr(proof_module, "evaluate", watched)
    birl.prove(found)
    newest = checkpoint.checkpoints_in(tmp_path / "run" / "checkpoints")[-1]
    assert given == [newest, newest]


@pytest.mark.slow
def test_a_smaller_learning_rate_is_proved_to_help(wobbly):
    proof = birl.prove(wobbly, Bounds(minutes=5, steps=20_000, seeds=5))
    assert proof.helped
