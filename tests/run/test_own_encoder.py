"""A run with an encoder of the user's own: on the command line, loaded, evaluated and resumed."""

import json
import sys
import textwrap

import numpy as np
import pytest

import birl
from birl.config import ConfigError
from birl.errors import CheckpointError
from tests.nets.own_encoders import make_squares
from tests.run.processes import birl as run_birl
from tests.run.processes import succeed

MODULE = """
import equinox as eqx
import jax.numpy as jnp

from birl.nets.layers import Linear, make_linear


class Doubled(eqx.Module):
    layer: Linear

    def __call__(self, observations):
        return jnp.tanh(2 * self.layer(observations))


def make_encoder(rng, observation_space):
    return Doubled(make_linear(rng, observation_space.shape[0], 6)), 6


def make_wrong(rng, observation_space):
    return make_encoder(rng, observation_space)[0], 7
"""
SMALL = ["--num-envs", "4", "--rollout-length", "16", "--hidden-sizes", "8", "--total-steps", "256"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with the user's module, which is the current one."""
    (tmp_path / "my_encoders.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_finds_it_in_the_current_directory_for_every_command(place):
    words = ["train", "ppo", "CartPole-v1", "--encoder", "my_encoders:make_encoder", "--run-dir", "run", *SMALL]
    succeed(*words, cwd=place)
    assert json.loads((place / "run" / "config.json").read_text())["config"]["encoder"] == "my_encoders:make_encoder"
    assert "return" in succeed("eval", "run", "--episodes", "2", cwd=place)
    succeed("resume", "run", "--total-steps", "512", cwd=place)
    steps = json.loads((place / "run" / "summary.json").read_text())["env_steps"]
    assert steps >= 512


NAMES = "auto", "mlp", "cnn", "cnn_2013", "cnn_small", "cnn_tiny", "conv_only"


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("my_encoders:make_wrong", "for width 7 it must be (3, 7): [*batch, width]"),
        ("my_encoders:nothing", "module my_encoders has no function or class nothing"),
        ("no_such:make", "encoder 'no_such:make' cannot be imported"),
        ("resnet", f"encoder 'resnet' is not one of {', '.join(NAMES)}, or module:function"),
    ],
)
def test_a_wrong_one_is_one_line_and_leaves_no_traceback(place, encoder, message):
    ended = run_birl("train", "ppo", "CartPole-v1", "--encoder", encoder, "--run-dir", "run", *SMALL, cwd=place)
    assert ended.returncode != 0
    assert message in " ".join(ended.stderr.replace("│", " ").split())
    assert "Traceback" not in ended.stderr


def small(**changes):
    settings = {"num_envs": 4, "rollout_length": 16, "hidden_sizes": (8,), "total_steps": 128, "quiet": True}
    return settings | changes


def test_in_python_it_is_a_function_and_the_policy_loads_again(tmp_path):
    birl.train("ppo", "CartPole-v1", make_encoder=make_squares, run_dir=tmp_path / "run", **small())
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["encoder"] == "tests.nets.own_encoders:make_squares"
    action, _ = birl.load(tmp_path / "run").act(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert len(birl.evaluate(tmp_path / "run", episodes=2).returns) == 2
    assert birl.resume(tmp_path / "run", 256, quiet=True)["env_steps"] >= 256


def test_a_function_of_the_script_itself_works_in_this_process(tmp_path):
    birl.train(
        "ppo", "CartPole-v1", make_encoder=lambda *given: make_squares(*given), run_dir=tmp_path / "run", **small()
    )
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["encoder"].startswith("local:lambda")
    assert birl.resume(tmp_path / "run", 256, quiet=True)["env_steps"] >= 256
    renamed = (tmp_path / "run" / "config.json").read_text().replace("local:lambda", "local:of_another_process")
    with pytest.raises(ConfigError, match="is a function that only the process has that it was passed to"):
        birl.train(birl.ppo.Config(encoder=json.loads(renamed)["config"]["encoder"]))


def test_other_weights_than_those_of_the_module_are_refused_by_name(place, monkeypatch):
    monkeypatch.syspath_prepend(place)
    birl.train("ppo", "CartPole-v1", encoder="my_encoders:make_encoder", run_dir="run", **small())
    import my_encoders  # of this directory

    monkeypatch.setattr(
        my_encoders,
        "make_encoder",
        lambda rng, space: (my_encoders.Doubled(my_encoders.make_linear(rng, 4, 5)), 5),
    )
    with pytest.raises(CheckpointError, match=r"encoder\.parts\[0\]\.parameters\.layer"):
        birl.load("run")


def test_the_module_of_somebody_elses_encoder_is_imported_only_with_trust(place, monkeypatch):
    monkeypatch.syspath_prepend(place)
    birl.train("ppo", "CartPole-v1", encoder="my_encoders:make_encoder", run_dir="run", **small())
    monkeypatch.setenv("BIRL_DATA_DIR", str(place / "another-user"))
    del sys.modules["my_encoders"]
    for use in (birl.load, birl.evaluate, birl.resume):
        with pytest.raises(ConfigError, match="encoder 'my_encoders:make_encoder' would import the module my_encoders"):
            use("run")
        assert "my_encoders" not in sys.modules
    assert birl.load("run", trust=True).act(np.zeros(4, np.float32))[0] in (0, 1)


def test_an_encoder_for_an_algorithm_that_has_none_is_refused(tmp_path):
    birl.train("dpg", "Pendulum-v1", run_dir=tmp_path / "run", total_steps=64, eval_episodes=1)
    for use in (birl.load, birl.resume):
        with pytest.raises(ConfigError, match="make_encoder= is for networks with an encoder"):
            use(tmp_path / "run", make_encoder=make_squares)
    with pytest.raises(ConfigError, match="dpg has no setting 'encoder'"):
        birl.train("dpg", "Pendulum-v1", make_encoder=make_squares, run_dir=tmp_path / "other")
