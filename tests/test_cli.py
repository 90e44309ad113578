"""The command line starts quickly, and explains what is wrong."""

import dataclasses
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import birl
from birl.cli import COMMANDS, commands, main
from birl.cli.commands import ONE_PROCESS
from birl.cli.options import short_number
from birl.cli.train_options import training_config
from birl.config import EnvConfig, RunConfig
from birl.envs.check import checking
from birl.presets import all_presets, find_preset
from birl.run.directory import claim_named, task_directory
from tests.run.processes import COMMAND, ENVIRONMENT, call, call_well

TINY = ["--total-steps", 100, "--num-envs", 4, "--rollout-length", 16, "--minibatches", 1, "--epochs", 1]
TINY += ["--hidden-sizes", 8, "--eval-episodes", 1]


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout


def seconds_of(*words: str) -> float:
    """The CPU seconds of a command: a busy machine makes it wait, but not work more."""
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, *words], env=ENVIRONMENT, capture_output=True, check=True)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def test_help_takes_less_than_600_ms():
    assert min(seconds_of("--help") for _ in range(3)) < 0.6


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["frobnicate"], []])
def test_what_needs_no_jax_does_not_import_it(words):
    heavy = ["jax", "gymnasium", "equinox", "optax", "numpy", "rich", "tyro", "matplotlib", "tensorboard", "wandb"]
    heavy += ["envpool"]
    code = f"""
import sys
from birl.cli import main
main({words!r})
print([name for name in {heavy!r} if name in sys.modules])
"""
    assert run_python(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["resume", "eval", "play", "record", "plot", "list", "doctor", "check-env"])
def test_the_help_of_a_command_does_not_import_jax(command):
    code = f"""
import sys
from birl.cli import main
try:
    main([{command!r}, "--help"])
except SystemExit as exit:
    print(exit.code, "jax" in sys.modules)
"""
    said = run_python(code)
    assert said.splitlines()[-1] == "0 False"
    assert f"usage: birl {command}" in said


def test_every_command_is_in_the_usage_with_a_summary(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"  {name:<9}  {summary}" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    code, said = call(command, "--help")
    assert code == 0
    assert f"birl {command}" in said
    unread = re.findall(r"\[\[.*|\{None.*|None\|.*|default: \).*", said)
    assert not unread, "types are in words that a user writes"


def test_the_help_of_commands_that_take_several_runs_says_so():
    for command in ("compare", "report", "plot"):
        assert "PATH [PATH ...]" in call(command, "--help")[1].splitlines()[0]


def test_a_switch_that_is_on_is_shown_with_both_its_words():
    """`--no-halving    stop bad trials early` said the opposite."""
    said = call("tune", "--help")[1]
    assert "  --[no-]halving  stop bad trials early; --no-halving: train all to the end" in said
    assert "  --[no-]preset " in said


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"birl {birl.__version__}\n"


def test_an_unknown_command_is_named_and_the_known_ones_shown():
    code, said = call("frobnicate")
    assert code == 2
    assert "birl: 'frobnicate' is not a command" in said
    assert "birl train ppo CartPole-v1" in said
    assert said.splitlines()[-1].startswith("birl: 'frobnicate'"), "the error is not pushed off the screen"


@pytest.mark.parametrize(
    ("word", "meant"), [("trian", "train"), ("evaluate", "eval"), ("ppo", "train ppo"), ("check", "check-env")]
)
def test_a_command_that_is_nearly_one_is_answered_in_one_line(word, meant):
    assert call(word, "CartPole-v1") == (2, f"birl: {word!r} is not a command; you may mean birl {meant}\n")


def test_train_alone_is_wrong_usage():
    assert call("train") == (2, call("train", "--help")[1])


def test_a_schedule_is_a_word(tmp_path):
    """birl train ppo CartPole-v1 --learning-rate linear:1e-3:0, for two updates."""
    said = call_well(
        "train", "ppo", "CartPole-v1", "--learning-rate", "linear:1e-3:0", *TINY, "--run-dir", tmp_path / "run"
    )
    assert "preset ppo CartPole-v1 feedforward" in said
    assert said.count("evaluation return ") == 1
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert stored["learning_rate"] == {"kind": "linear", "values": [0.001, 0.0], "points": [1.0]}
    rates = [
        json.loads(line).get("optimizer/learning_rate")
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[1] < rates[0]
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    "text", ["linar:1e-3:0", "linear:1e-3", "linear:a:b", "exponential:1:0", "piecewise:0.5", "nan", "fast"]
)
def test_a_bad_schedule_is_answered_with_examples(text):
    code, said = call("train", "ppo", "CartPole-v1", "--learning-rate", text)
    assert code == 2
    assert said.startswith(f"birl: --learning-rate: cannot read schedule '{text}'")
    assert "write it like one of 3e-4, linear:3e-4:0" in said


@pytest.mark.parametrize(("core", "words"), [("lstm", []), ("gru", []), ("lstm", ["--epochs", "3"])])
def test_hidden_velocities_and_a_core_choose_their_own_preset(core, words):
    config, notice = training_config("ppo", "CartPole-v1", ["--hide-velocities", "--core", core, *words])
    preset = find_preset("ppo", "CartPole-v1", True, core)
    assert preset is not None
    assert config == dataclasses.replace(preset.config, epochs=int(words[1]) if words else preset.config.epochs)
    assert notice.startswith(f"preset ppo CartPole-v1 hidden velocities {core}")


def test_the_plain_task_has_its_preset_and_switches_without_one_say_so():
    config, notice = training_config("ppo", "CartPole-v1", ["--seed", "7"])
    plain = find_preset("ppo", "CartPole-v1")
    assert plain is not None
    assert config == dataclasses.replace(plain.config, run=dataclasses.replace(plain.config.run, seed=7))
    assert notice.startswith("preset ppo CartPole-v1 feedforward")
    _, notice = training_config("ppo", "CartPole-v1", ["--core", "lnlstm"])
    assert notice == "no preset for ppo on CartPole-v1 with these options: using the preset of the plain task"
    config, notice = training_config("ppo", "birl/ProbeConstant-v0", [])
    assert config == birl.ppo.Config(EnvConfig("birl/ProbeConstant-v0"))
    assert notice.endswith("default settings")


def test_list_says_what_each_algorithm_supports_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = call_well("list")
    assert max(map(len, said.splitlines())) <= 80
    table = said.partition("Presets.")[0].splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in table if line}
    assert rows.keys() >= set(birl.ALGORITHMS)
    assert rows["ppo"] == "any yes yes rollouts yes"
    assert rows["dqn"] == "Discrete yes yes - yes"
    assert rows["sac"] == "Box with bounds - - - yes"
    assert rows["a3c"] == "any yes yes actor-learners -"


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_list_has_every_preset_below_its_algorithm_with_its_words(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    lines = [line.split() for line in call_well("list").partition("Presets.")[2].splitlines()]
    algorithm = ""
    found: dict[str, list[list[str]]] = {}
    for words in lines[3:]:
        if len(words) == 1:
            [algorithm] = words
        else:
            found.setdefault(algorithm, []).append(words)
    for preset in all_presets():
        task = [preset.config.env.id, *" ".join(preset.switches).split()]
        score = "-" if preset.measured is None else f"{preset.measured.score:.4g}"
        wanted = [*task, short_number(preset.config.run.total_steps), score]
        assert wanted in [row[: len(wanted)] for row in found[preset.algorithm]]


def test_the_words_of_each_preset_select_it():
    for preset in all_presets():
        words = " ".join(preset.switches).split()
        assert training_config(preset.algorithm, preset.config.env.id, words)[0] == preset.config


def test_list_shows_one_algorithm_or_some_environments():
    said = call_well("list", "sac")
    assert "Pendulum-v1" in said
    assert "ppo" not in said
    said = call_well("list", "--env", "hopper")
    assert "Algorithms" not in said
    rows = [line.split()[:2] for line in said.splitlines()[3:]]
    assert {env_id for _, env_id in rows} == {"Hopper-v5"}
    assert ["trpo", "Hopper-v5"] in rows
    both = call_well("list", "sac", "--env", "HOPPER").splitlines()[3:]
    assert [line.split() for line in both] == [["sac", "Hopper-v5", "1M", "-", "-"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["PPO"], "algorithm 'PPO' is unknown; you may mean ppo"),
        (["--env", "xyz"], "there is no preset for an environment with 'xyz' in its id"),
        (["qac", "--env", "hopper"], "qac has no preset for an environment with 'hopper' in its id"),
    ],
)
def test_list_says_what_there_is_not(words, said):
    code, found = call("list", *words)
    assert (code, said in found) == (2, True)


def test_default_run_directories_are_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        call_well("train", "ppo", "birl/ProbeConstant-v0", *TINY, "--seed", 5)
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == [f"ppo-birl-ProbeConstant-v0-5{number}" for number in ("", "-2", "-3")]


def test_two_runs_that_start_together_get_two_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = birl.ppo.Config(EnvConfig("CartPole-v1"), RunConfig(seed=1))
    plain = task_directory("ppo", config, "1")
    assert claim_named(plain, None, False)[0] != claim_named(plain, None, False)[0]


def test_an_existing_run_is_refused_with_what_to_do(tmp_path):
    words = ["train", "ppo", "birl/ProbeConstant-v0", *TINY, "--run-dir", tmp_path / "run"]
    call_well(*words)
    code, said = call(*words)
    assert code == 2
    assert (
        f"continue it with birl resume {tmp_path / 'run'}, choose another run_dir, or move it aside: --overwrite"
        in said
    )


def test_plot_writes_a_picture_and_says_where(tmp_path):
    for seed in (1, 2):
        call_well("train", "ppo", "birl/ProbeConstant-v0", *TINY, "--seed", seed, "--run-dir", tmp_path / str(seed))
    said = call_well("plot", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "curves.png")
    assert str(tmp_path / "curves.png") in said
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"), [(["plot"], "no runs to plot"), (["plot", "nowhere"], "nowhere holds no run")]
)
def test_plot_without_a_run_says_what_to_give(words, message):
    code, said = call(*words)
    assert (code, message in said) == (2, True)


def test_check_env_finds_cartpole_fit_and_nan_unfit():
    said = call_well("check-env", "CartPole-v1", "--kwargs", "sutton_barto_reward", "True")
    assert "ok      reproducible" in said
    assert "error" not in said
    code, said = call("check-env", "tests.envs.faulty:nan_observation")
    assert code == 1
    assert "error" in said
    assert "holds NaN or infinity" in said


def test_square_brackets_in_a_finding_are_text_and_not_a_style(monkeypatch):
    monkeypatch.setattr(
        checking, "check_env", lambda config: [checking.Finding("error", "observation", "it holds [nan] and [red]")]
    )
    assert call("check-env", "CartPole-v1") == (
        1,
        f"birl: {ONE_PROCESS}\nerror   observation: it holds [nan] and [red]\n",
    )


def test_an_interrupt_outside_training_is_no_traceback(monkeypatch):
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(commands.COMMANDS, "list", interrupted)
    assert call("list") == (130, "birl: interrupted\n")


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(words: list[str]) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(commands.COMMANDS, "list", broken)
    with pytest.raises(ZeroDivisionError):
        main(["list"])


def test_the_console_script_is_the_module():
    entry = Path(sys.executable).with_name("birl")
    if not entry.exists():
        pytest.skip("birl is not installed as a script here")
    assert (
        subprocess.run([entry, "--version"], capture_output=True, text=True, check=True).stdout
        == f"birl {birl.__version__}\n"
    )
