"""The words of `birl train`: help, options, other runs' settings and files."""

import dataclasses
import json
import re
import subprocess

import pytest

import birl
from birl.cli.options import box_text, comments_of
from birl.cli.settings_help import SECTIONS, settings_of
from birl.cli.train_options import read_request, training_config
from birl.config import AtariConfig, EnvConfig, RunConfig, Wrapper
from birl.registry import algorithm_named
from birl.run.directory import write_config
from birl.settings import places_of
from tests.run.processes import COMMAND, ENVIRONMENT, call, call_well

PENDULUM = birl.ppo.Config(
    EnvConfig("Pendulum-v1", num_envs=2), RunConfig(seed=7, run_dir="runs/old"), epochs=3, learning_rate="linear:1e-3:0"
)


def options_in(text: str) -> list[str]:
    """The options that a help lists, in its order."""
    return [name.replace("[no-]", "") for name in re.findall(r"^  (--[\w\[\]-]+)", text, re.MULTILINE)]


def sections_in(text: str) -> list[str]:
    return re.findall(r"^(\w+): ", text, re.MULTILINE)[1:-1]  # without the usage and the footer


@pytest.mark.parametrize("algorithm", birl.ALGORITHMS)
def test_the_help_of_an_algorithm_has_every_setting_with_a_text_and_its_value(algorithm):
    said = call_well("train", algorithm, "--help")
    config = algorithm_named(algorithm).Config()
    names = [name for name, place in places_of(type(config)).items() if "atari" not in place.path]
    wanted = {"--" + name.replace("_", "-") for name in names} - {"--id", "--wrappers"}
    assert wanted <= set(options_in(said))
    assert max(map(len, said.splitlines())) <= 80
    for setting in settings_of(config):
        assert len(setting.text.split()) >= 2, f"{setting.name} has no text: write a comment, or Help in its type"
        assert re.search(rf"^  {re.escape(setting.option)}|{setting.option[2:]}", said, re.MULTILINE)
    assert sections_in(said) == [name for name in SECTIONS if name != "Atari"]


def test_the_help_of_a_task_has_the_presets_values_and_says_so():
    said = call_well("train", "ppo", "CartPole-v1", "--help")
    assert "In brackets: preset ppo CartPole-v1 feedforward, measured at a return of 500." in said
    assert "--epochs INT              passes over each rollout [20]" in said, "the preset's, not the algorithm's 4"
    assert "[linear:0.001:0.0]" in said
    assert "--epochs INT              passes over each rollout [4]" in call_well("train", "ppo", "-h")


def test_options_before_help_are_shown_with_their_values():
    assert "passes over each rollout [7]" in call_well("train", "ppo", "CartPole-v1", "--epochs", 7, "--help")


def test_the_help_has_sections_and_ataris_only_for_an_atari_game():
    plain = call_well("train", "ppo", "CartPole-v1", "--help")
    assert sections_in(plain) == ["start", "algorithm", "network", "environment", "run"]
    game = call_well("train", "ppo", "ALE/Pong-v5", "--help")
    assert sections_in(game) == ["start", "algorithm", "network", "environment", "Atari", "run"]
    atari = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(AtariConfig)}
    assert set(options_in(game)) - set(options_in(plain)) == atari


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("hidden_sizes", "network"),
        ("log_std", "network"),
        ("batch_size", "algorithm"),
        ("learning_rate", "algorithm"),
        ("dueling", "network"),
        ("num_envs", "environment"),
        ("seed", "run"),
    ],
)
def test_a_setting_is_in_the_section_of_its_part_or_in_the_one_it_names(name, section):
    kind = birl.dqn.Config if name in places_of(birl.dqn.Config) else birl.ppo.Config
    assert places_of(kind)[name].section == section
    assert {setting.name: setting.section for setting in settings_of(kind())}[name] == section


def test_comments_are_read_behind_a_field_and_above_it():
    @dataclasses.dataclass
    class Settings:
        """Not a comment."""

        first: int = 1  # behind it
        # above it,
        # in two lines
        second: str = "# not this"

        third: dict[str, int] = dataclasses.field(  # of a field
            default_factory=dict
        )
        fourth: int = 4

    assert comments_of(Settings) == {"first": "behind it", "second": "above it, in two lines", "third": "of a field"}


@pytest.mark.parametrize("words", [["--id", "Acrobot-v1"], ["--env.id", "Acrobot-v1"], ["--env", "Acrobot-v1"]])
def test_the_environment_cannot_be_named_twice(words):
    code, said = call("train", "ppo", "CartPole-v1", *words)
    assert code == 2
    assert (
        said
        == f"birl: ppo has no option {words[0]}; the environment is the word after the algorithm: ppo CartPole-v1\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "ppo", "CartPole-v1", "--lr", "1e-3"], "ppo has no option --lr; you may mean --learning-rate"),
        (["train", "ppo", "CartPole-v1", "--gamma=1"], "ppo has no option --gamma; you may mean --discount"),
        (["train", "ppo", "CartPole-v1", "--no-epoch"], "ppo has no option --no-epoch; you may mean --epochs"),
        (["train", "PPO", "CartPole-v1"], "algorithm 'PPO' is unknown; you may mean ppo"),
        (["train", "PPO"], "algorithm 'PPO' is unknown; you may mean ppo"),
        (["train", "ppo", "CartPole-v1", "--frame-skip", "2"], "--frame-skip is for Atari games"),
        (["train", "ppo", "CartPole-v1", "--tensorboard", "True"], "a switch takes no value"),
        (["train", "ppo", "CartPole-v1", "--epochs"], "--epochs needs a value"),
        (["train", "ppo", "CartPole-v1", "stray"], "birl train ppo CartPole-v1 cannot use 'stray'"),
        (["train", "ppo", "CartPole-v1", "--hidden-sizes", "64", "x"], "--hidden-sizes: 'x' is not a whole number"),
        (["train", "ppo", "CartPole-v1", "--policy-hidden-sizes", "x"], "--policy-hidden-sizes: 'x' is not a whole"),
        (["train", "ppo", "CartPole-v1", "--max-episode-steps", "1.5"], "--max-episode-steps: '1.5' is not a whole"),
        (["train", "ppo", "CartPole-v1", "--kwargs", "a"], "must be pairs of a name and a value"),
        (["train", "--seed", "1"], "birl train needs an algorithm and an environment"),
        (
            ["resume", "runs/mine", "--timesteps", "5"],
            "birl resume has no option --timesteps; you may mean --total-steps",
        ),
        (["eval", "runs/mine", "--episodes", "1.5"], "--episodes: '1.5' is not a whole number; use 2"),
        (["plot", "runs/mine", "--smoth", "0"], "birl plot has no option --smoth; you may mean --smooth"),
        (["eval"], "Missing from birl eval: PATH a run's directory"),
    ],
)
def test_wrong_words_are_answered_in_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, found = call(*words)
    assert code == 2
    assert said in found
    assert found.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_the_error_is_one_line_on_every_terminal(encoding):
    words = [*COMMAND, "train", "ppo", "CartPole-v1", "--epochs"]
    plain = ENVIRONMENT | {"PYTHONIOENCODING": encoding, "COLUMNS": "40", "FORCE_COLOR": "1"}
    finished = subprocess.run([*words, "few"], env=plain, capture_output=True, text=True, check=False)
    message = "birl: --epochs: 'few' is not a whole number; write it like 100000, 100k, 1e5, 0.1M or 100_000\n"
    assert (finished.returncode, finished.stderr) == (2, message)


def test_a_box_with_colours_is_read():
    lines = [
        "╭─ \x1b[1mValue error\x1b[0m ─╮",
        "│ Error parsing \x1b[1m--x\x1b[0m: it │",
        "│ is wrong. │",
        "├",
        "╰────╯",
    ]
    assert box_text("\n".join(lines).replace("├", "│ ──── │")) == "--x: it is wrong"
    assert box_text("no box") == "no box"


def test_numbers_are_read_as_people_write_them():
    words = "--total-steps 2M --eval-every 1e5 --hidden-sizes 1k 64 --max-episode-steps 1_000 --step-timeout 0.1k"
    config, _ = training_config(
        "ppo", "CartPole-v1", [*words.split(), "--stop-at-return", "2k", "--eval-max-steps", "None"]
    )
    assert (config.run.total_steps, config.run.eval_every, config.network.hidden_sizes) == (
        2_000_000,
        100_000,
        (1000, 64),
    )
    assert (config.env.max_episode_steps, config.env.step_timeout) == (1000, 100.0)
    assert (config.run.stop_at_return, config.run.eval_max_steps) == (2000.0, None)
    config, _ = training_config("ppo", "CartPole-v1", ["--policy-hidden-sizes", "1k", "8"])
    assert config.network.policy_hidden_sizes == (1000, 8)
    assert (
        training_config("ppo", "CartPole-v1", ["--policy-hidden-sizes", "None"])[0].network.policy_hidden_sizes is None
    )


def test_each_wrapper_option_adds_one():
    words = ["--wrapper", "a:B", "--wrapper", "c:D,x=1", "--seed", "2"]
    config, _ = training_config("ppo", "CartPole-v1", words)
    assert config.env.wrappers == (Wrapper("a:B"), Wrapper("c:D", {"x": 1}))
    said = call_well("train", "ppo", "CartPole-v1", *words, "--help")
    assert "--wrapper MODULE:CLASS[,KEY=VALUE...]\n" in said
    assert "may be repeated [a:B c:D,x=1]" in " ".join(said.split())


def test_keyword_arguments_keep_texts_that_look_like_numbers_with_units():
    config, _ = training_config("ppo", "CartPole-v1", ["--kwargs", "a", "1", "b", "1.5", "c", "True", "d", "100k"])
    assert config.env.kwargs == {"a": 1, "b": 1.5, "c": True, "d": "100k"}
    assert [type(value) for value in config.env.kwargs.values()] == [int, float, bool, str]


def test_like_takes_the_settings_of_a_run_but_not_its_directory(tmp_path):
    write_config(tmp_path, "ppo", PENDULUM)
    request = read_request(["--like", str(tmp_path)])
    assert request.algorithm == "ppo"
    assert request.config == dataclasses.replace(PENDULUM, run=dataclasses.replace(PENDULUM.run, run_dir=None))
    assert request.notices == [f"settings of {tmp_path}"]


@pytest.mark.parametrize("task", [[], ["ppo"], ["Pendulum-v1"], ["ppo", "Pendulum-v1"]])
def test_the_task_may_be_named_or_taken_from_the_run(task, tmp_path):
    write_config(tmp_path, "ppo", PENDULUM)
    config = read_request([*task, "--like", str(tmp_path)]).config
    assert (config.env.id, config.epochs) == ("Pendulum-v1", 3)


@pytest.mark.parametrize("task", [["ppo"], ["Pendulum-v1"], ["ppo", "Pendulum-v1"]])
def test_the_task_may_follow_options_that_are_no_settings(task, tmp_path):
    write_config(tmp_path, "ppo", PENDULUM)
    request = read_request(["--like", str(tmp_path), "--seeds", "2", *task, "--epochs", "7"])
    assert (request.algorithm, request.config.env.id, request.config.epochs) == ("ppo", "Pendulum-v1", 7)
    assert len(request.group.lanes) == 2


def test_a_task_after_settings_is_refused_with_the_right_order():
    code, said = call("train", "--total-steps", "100", "ppo", "CartPole-v1")
    assert code == 2
    assert said == (
        "birl: birl train needs the algorithm and the environment before the settings: "
        "birl train ppo CartPole-v1 --seed 1\n"
    )


def test_options_change_the_settings_of_the_other_run(tmp_path):
    write_config(tmp_path, "ppo", PENDULUM)
    words = ["--like", str(tmp_path), "--seed", "8", "--epochs", "5", "--run-dir", "runs/new", "--overwrite"]
    request = read_request(["ppo", "CartPole-v1", *words])
    assert (request.config.env.id, request.config.env.num_envs) == ("CartPole-v1", 2)
    assert (request.config.run.seed, request.config.epochs, request.config.run.run_dir) == (8, 5, "runs/new")
    assert request.overwrite


def test_settings_of_another_algorithm_are_refused(tmp_path):
    write_config(tmp_path, "ppo", PENDULUM)
    code, said = call("train", "a2c", "CartPole-v1", "--like", tmp_path)
    assert code == 2
    assert said.startswith(f"birl: {tmp_path} has settings of ppo, not of a2c")


def test_like_without_a_run_says_so(tmp_path):
    code, said = call("train", "--like", tmp_path)
    assert code == 2
    assert f"{tmp_path} holds no run" in said


@pytest.mark.parametrize("flag", ["--like", "--config"])
def test_a_strangers_run_imports_no_module_unless_it_is_trusted(flag, tmp_path):
    marker = tmp_path / "imported"
    (tmp_path / "hostile_env.py").write_text(f"open({str(marker)!r}, 'w')")
    settings = birl.ppo.Config(EnvConfig("hostile_env:Bad-v0"))
    write_config(tmp_path, "ppo", settings)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"signature": "forged"}))
    code, said = call("train", flag, path if flag == "--config" else tmp_path)
    assert code == 2
    assert "hostile_env" in said
    assert "--trust" in said
    assert not marker.exists()
    words = [flag, str(path if flag == "--config" else tmp_path)]
    assert read_request([*words, "--trust"]).config.env.id == "hostile_env:Bad-v0"
    assert read_request(["CartPole-v1", *words]).config.env.id == "CartPole-v1"
    assert not marker.exists(), "reading settings imports nothing"


TOML = """
algorithm = "ppo"
env = "CartPole-v1"
total-steps = 1e5
learning_rate = "linear:1e-3:0"

[run]
seed = 3
"""
JSON = {
    "algorithm": "ppo",
    "env": {"id": "CartPole-v1"},
    "run": {"total_steps": 100_000, "seed": 3},
    "learning_rate": "linear:1e-3:0",
}


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_file_has_flat_or_nested_settings_over_the_preset(ending, tmp_path):
    path = tmp_path / f"mine.{ending}"
    path.write_text(TOML if ending == "toml" else json.dumps(JSON))
    config = read_request(["--config", str(path), "--seed", "4"]).config
    preset = birl.preset("ppo", "CartPole-v1")
    assert config == dataclasses.replace(
        preset,
        run=dataclasses.replace(preset.run, total_steps=100_000, seed=4),
        learning_rate=birl.linear(1e-3, 0.0),
    )


def test_the_file_comes_after_the_run_and_before_the_options(tmp_path):
    write_config(tmp_path, "ppo", PENDULUM)
    path = tmp_path / "mine.toml"
    path.write_text("epochs = 4\nseed = 9")
    words = ["--like", str(tmp_path), "--config", str(path), "--seed", "10"]
    config = read_request(words).config
    assert (config.epochs, config.run.seed, config.env.num_envs) == (4, 10, 2)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "lr = 1", "a.toml: ppo has no setting 'lr'; you may mean learning_rate"),
        ("a.toml", "[env]\nn_envs = 1", "a.toml: ppo has no setting 'n_envs'; you may mean num_envs"),
        ("a.toml", "seed = ", "a.toml is not TOML: Invalid value"),
        ("a.toml", "seed = 'x'", "seed must be a whole number, not 'x'"),
        ("a.toml", "seed = 1\n[run]\nseed = 2", "setting seed is given twice"),
        ("a.toml", "algorithm = 'sac'", "a.toml has settings of sac, not of ppo"),
        ("a.json", "[1]", "a.json must hold an object with settings"),
        ("a.json", "{", "a.json is damaged"),
        ("a.yaml", "seed: 1", "a.yaml must end in .json or .toml"),
        ("a.toml", "env = 3", "env must be a string, not 3"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(name, content, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    code, found = call("train", "ppo", "CartPole-v1", "--config", name)
    assert code == 2
    assert said in found
    assert found.count("\n") == 1


def test_a_missing_file_is_named(tmp_path):
    code, said = call("train", "ppo", "CartPole-v1", "--config", tmp_path / "none.toml")
    assert (code, "none.toml" in said) == (2, True)
