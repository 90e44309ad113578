"""`birl compare`: tables and sentences, a file with everything, and errors in one line."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import birl
from birl.cli import main
from birl.lab.comparison import compare
from birl.maths.statistics import bootstrap_interval
from birl.run.history import read_history
from tests.lab.test_compare import make_ended, make_group


@pytest.fixture
def groups(tmp_path: Path) -> list[str]:
    for name, scores, rate in (("a", (10, 11, 12, 13, 14), 0.1), ("b", (1, 2, 3, 4, 5), 0.2), ("c", (1, 2, 3), 0.3)):
        make_group(tmp_path / name, list(map(float, scores)), learning_rate=rate)
    return [str(tmp_path / name) for name in ("a", "b", "c")]


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_the_command_prints_groups_pairs_verdicts_settings_and_notices(groups, capsys):
    assert main(["compare", *groups, "--target", "90"]) == 0
    lines = lines_of(capsys)
    assert lines[:4] == [
        "CartPole-v1: return of the final evaluation",
        "A: ppo, learning_rate=0.1",
        "B: ppo, learning_rate=0.2",
        "C: ppo, learning_rate=0.3",
    ]
    assert "seeds IQM (95 %) area (95 %) reached 90 steps CPU s wall s" in lines
    low, high = bootstrap_interval(np.arange(10.0, 15.0)[:, None])
    assert any(line.startswith(f"A 5 12 ({low:.4g} to {high:.4g}) 58 (") and " 5 of 5 " in line for line in lines)
    assert "first wins (95 %) difference of IQMs (95 %) p (Holm)" in lines
    assert any(line.startswith("A over B 1.00 (0.64 to 1.00) 9 (") and line.endswith(" 0.016") for line in lines)
    assert "A is better than B: a seed of it wins with probability 1.00 (p = 0.016)." in lines
    correction = (
        "p is adjusted by Holm's method for 2 pairs, each group with the first; --all counts all pairs, as birl"
    )
    assert any(line.startswith(correction) for line in lines)
    assert "score: of the policy at the end of training, 20 episodes for each run" in lines
    assert not any(line.startswith("B over C") for line in lines)
    assert "settings of A and of B:" in lines
    assert "learning_rate: 0.1, 0.2" in lines
    assert any(line.startswith("note: ppo, learning_rate=0.3 has 3 seeds") for line in lines)


def test_all_compares_every_pair(groups, capsys):
    assert main(["compare", *groups, "--all"]) == 0
    lines = lines_of(capsys)
    assert any(line.startswith("B over C") for line in lines)
    assert "p is adjusted by Holm's method for 3 pairs, each group with every other" in lines


def test_json_has_everything_that_python_gives(groups, tmp_path, capsys):
    out = tmp_path / "new" / "comparison.json"
    assert main(["compare", *groups, "--at", "0.5k", "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == compare(*groups, at=500).to_json()
    assert lines_of(capsys)[-1].endswith("comparison.json")


def test_json_is_written_for_a_reader_who_has_left(groups, tmp_path, monkeypatch):
    """birl compare a b --json FILE | head."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert main(["compare", *groups, "--json", str(tmp_path / "comparison.json")]) == 0
    assert json.loads((tmp_path / "comparison.json").read_text()) == compare(*groups).to_json()


def test_failed_and_short_runs_are_counted_beside_the_seeds(groups, tmp_path, capsys):
    make_ended(tmp_path / "a" / "seed-6", 6, 1.0, learning_rate=0.1)
    (tmp_path / "a" / "seed-6" / "summary.json").unlink()
    (tmp_path / "a" / "group.json").write_text("{}")
    (tmp_path / "a" / "summary.json").write_text(json.dumps({"failed": {"seed-6": "NaN"}}))
    (tmp_path / "b" / "seed-2" / "metrics.jsonl").write_text('{"env_steps": 10, "episode/return": 1.0}\n')
    (tmp_path / "b" / "seed-2" / "summary.json").unlink()
    assert main(["compare", *groups, "--at", "1000"]) == 0
    lines = lines_of(capsys)
    assert any(line.startswith("A 5, 1 failed") for line in lines)
    assert any(line.startswith("B 4, 1 left out") for line in lines)


def test_of_many_different_settings_the_first_are_printed(tmp_path, capsys):
    a = make_group(tmp_path / "a", [1.0, 2.0], **{f"setting_{i:02}": "x" * 100 for i in range(15)})
    assert main(["compare", str(a), str(make_group(tmp_path / "b", [1.0, 2.0]))]) == 0
    printed = "\n".join(lines_of(capsys))
    assert f"setting_11: {'x' * 37}..., unset\nand 3 more; --json FILE has all" in printed
    assert "setting_12" not in printed.split("settings of A")[1]


def test_settings_of_a_stranger_cannot_control_the_terminal(tmp_path, capsys):
    a = make_group(tmp_path / "a", [1.0, 2.0], core="\x1b]0;title\x07[bold]red[/bold]")
    assert main(["compare", str(a), str(make_group(tmp_path / "b", [1.0, 2.0], core="lstm"))]) == 0
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(printed)
    assert "core=?]0;title?[bold]red[/bold]" in printed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], "nowhere holds no run"),
        ([], "no runs to compare"),
        (["a", "--env", "Pong"], "none of these runs is of the environment Pong"),
        (["a", "--target"], "--target"),
        (["a", "b", "--at", "-3"], "at is -3; give a positive number"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(groups, tmp_path, monkeypatch, capsys, words, problem):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert problem in line


def test_two_trained_groups_are_compared_with_the_seconds_that_they_logged(tmp_path):
    for epochs in (1, 4):
        for seed in (1, 2):
            run_dir = str(tmp_path / str(epochs) / f"seed-{seed}")
            birl.train(
                "ppo",
                "CartPole-v1",
                total_steps=3000,
                epochs=epochs,
                seed=seed,
                eval_episodes=2,
                run_dir=run_dir,
                quiet=True,
            )
    comparison = birl.compare(tmp_path / "1", tmp_path / "4", target=15.0)
    assert [group.label for group in comparison.groups] == ["ppo, epochs=1", "ppo, epochs=4"]
    run = read_history(tmp_path / "4" / "seed-1")
    steps, seconds = run.curve("time/cpu_seconds")
    assert len(steps) > 3
    assert (seconds[1:] >= seconds[:-1]).all()
    assert run.summary is not None
    assert seconds[-1] <= run.summary["cpu_seconds"] + 0.01
    for group in comparison.groups:
        assert len(group.score.values) == 2
        assert group.area.iqm is not None
        assert group.reached is not None
        assert group.reached.seeds == 2
        assert group.reached.cpu_seconds is not None
        assert group.reached.cpu_seconds > 0
    assert comparison.pairs[0].differing == {"epochs": (1, 4)}
