"""The files that `birl export` writes, and when it writes none."""

import json
import subprocess
import sys
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import birl
from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.exporting.graph import KIND
from birl.maths.distributions import Categorical
from birl.run.policy import make_policy
from tests.envs.counting import MaskedCounting, counting_functions
from tests.run.processes import call, call_well

OBSERVATIONS = spaces.Box(-1, 1, (3,), np.float32)
BOX = spaces.Box(-2, 2, (2,), np.float32)


def policy_of(observations=OBSERVATIONS, actions=BOX, make_network=None, **settings):
    config = replace(birl.ppo.Config(), hidden_sizes=(8,), **settings)
    return make_policy(config, birl.ppo.init(config, observations, actions, make_network), observations, actions)


@pytest.fixture(scope="module")
def policy():
    return policy_of()


@pytest.fixture(scope="module")
def recurrent():
    return policy_of(actions=spaces.Discrete(3, start=5), core="lstm", core_size=4)


def run_policy_py(folder, code):
    """What code prints in a process in which neither Birl nor JAX can be imported."""
    blocked = "import sys; sys.modules |= dict.fromkeys(('birl', 'jax', 'gymnasium', 'onnx')); "
    finished = subprocess.run(
        [sys.executable, "-I", "-c", f"{blocked}sys.path.insert(0, {str(folder)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_command_writes_a_policy_file_as_onnx_and_prints_its_inputs_and_outputs(policy, tmp_path):
    policy.save(tmp_path / "policy.safetensors")
    said = call_well("export", tmp_path / "policy.safetensors", "--out", tmp_path / "new" / "policy.onnx")
    assert "input   observation  float32[1, 3]  Box(-1.0, 1.0, (3,), float32)" in said
    assert "output  action       float32[1, 2]  Box(-2.0, 2.0, (2,), float32)" in said
    session = onnxruntime.InferenceSession(tmp_path / "new" / "policy.onnx")
    observation = np.float32([0.1, -0.2, 0.3])
    (actions,) = session.run(["action"], {"observation": observation[None]})
    np.testing.assert_allclose(actions[0], policy.act(observation)[0], atol=1e-6)


def test_the_metadata_of_onnx_says_what_the_file_is(policy, tmp_path):
    written = birl.export(policy, tmp_path / "policy.onnx", sample=True, batch_size=4)
    model = onnx.load(written.path)
    (metadata,) = [json.loads(entry.value) for entry in model.metadata_props if entry.key == KIND]
    assert metadata == written.description
    assert metadata["algorithm"] == "ppo"
    assert metadata["birl"] == birl.__version__
    assert metadata["action_space"]["kind"] == "Box"
    observation, noise = metadata["inputs"]
    assert observation["shape"] == [4, 3]
    assert (noise["name"], noise["shape"], noise["distribution"]) == ("noise", [4, 2], "standard normal")
    assert 17 <= model.opset_import[0].version <= 21


def test_the_bounds_of_a_box_are_kept_for_any_noise(policy, tmp_path):
    session = onnxruntime.InferenceSession(birl.export(policy, tmp_path / "policy.onnx", sample=True).path)
    given = {"observation": np.zeros((1, 3), np.float32), "noise": np.float32([[100, -100]])}
    np.testing.assert_array_equal(session.run(["action"], given)[0], [[2, -2]])


def test_a_recurrent_policy_acts_with_the_memory_that_it_returned_until_an_episode_begins(recurrent, tmp_path):
    session = onnxruntime.InferenceSession(birl.export(recurrent, tmp_path / "policy.onnx").path)
    names = [port.name for port in session.get_inputs() if port.name.startswith("memory")]
    assert names == ["memory.0.0", "memory.0.1"]  # the actor's; the critic's is not needed to act
    given = dict.fromkeys(names, np.full((1, 4), 9, np.float32))  # not used: an episode begins
    memory, rng = None, np.random.default_rng(0)
    for step in range(6):
        begins = step in (0, 3)
        observation = rng.normal(size=3).astype(np.float32)
        action, memory = recurrent.act(observation, None if begins else memory)
        inputs = given | {"observation": observation[None], "resets": np.array([begins])}
        found, *new = session.run(["action", *(f"new_{name}" for name in names)], inputs)
        assert found.tolist() == [action]
        np.testing.assert_allclose(new, np.stack(memory[0]), atol=1e-6)
        given = dict(zip(names, new, strict=True))


def test_a_numpy_folder_acts_without_birl(recurrent, tmp_path):
    folder = birl.export(recurrent, tmp_path / "folder", format="numpy").path
    observations = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    code = f"""
import policy
memory = None
for row in {observations.tolist()}:
    action, memory = policy.act(row, memory)
    print(int(action))
"""
    said = run_policy_py(folder, code)
    expected, memory = [], None
    for row in observations:
        action, memory = recurrent.act(row, memory)
        expected.append(str(action))
    assert said.split() == expected
    finished = subprocess.run(
        [sys.executable, "-I", folder / "policy.py", "[0.1, 0.2, 0.3]"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(finished.stdout) == recurrent.act(np.float32([0.1, 0.2, 0.3]))[0]


def test_a_numpy_folder_draws_its_noise_from_a_generator_or_takes_it(policy, tmp_path):
    folder = birl.export(policy, tmp_path / "folder", format="numpy", sample=True).path
    code = """
import numpy as np, policy
rng = np.random.default_rng(1)
drawn = [policy.act([0, 0, 0], rng=rng)[0] for _ in range(2000)]
fixed = policy.act([[0, 0, 0]], noise={"noise": np.zeros((1, 2))})[0]
print(np.abs(np.mean(drawn, 0) - fixed).max(), np.std(drawn), fixed.shape)
"""
    difference, deviation, *shape = run_policy_py(folder, code).split(maxsplit=2)
    assert float(difference) < 0.1
    assert 0.8 < float(deviation) < 1.1  # exp(log_std) is 1, clipped at ±2
    assert shape == ["(1, 2)\n"]


def test_the_code_of_a_small_network_has_about_a_hundred_lines(policy, tmp_path):
    folder = birl.export(policy, tmp_path / "folder", format="numpy").path
    assert len((folder / "policy.py").read_text().splitlines()) <= 100
    with np.load(folder / "weights.npz", allow_pickle=False) as weights:
        assert "network.actor.encoder.mlp.layers[0].weight" in weights.files


def test_dict_observations_and_nested_actions_have_a_name_for_each_part(tmp_path):
    observations = spaces.Dict({"a": OBSERVATIONS, "b": spaces.Discrete(4)})
    actions = spaces.Dict({"go": spaces.Tuple((spaces.Discrete(3), BOX)), "stop": spaces.MultiBinary(2)})
    policy = policy_of(observations, actions)
    session = onnxruntime.InferenceSession(birl.export(policy, tmp_path / "policy.onnx").path)
    assert [port.name for port in session.get_inputs()] == ["observation.a", "observation.b"]
    assert [port.name for port in session.get_outputs()] == ["action.go/0", "action.go/1", "action.stop"]
    folder = birl.export(policy, tmp_path / "folder", format="numpy").path
    said = run_policy_py(folder, "import policy; print(policy.act({'a': [0, 0, 0], 'b': 2})[0])")
    assert said.startswith("{'go': (np.int64(")
    assert "'stop': array([" in said
    wrong = "import policy\ntry:\n    policy.act({'a': [0, 0, 0]})\nexcept KeyError as problem:\n    print(problem)"
    assert run_policy_py(folder, wrong) == "'observation.b'\n"


def test_no_name_in_a_strangers_spaces_becomes_code_in_a_numpy_folder(tmp_path):
    evil = tmp_path / "evil"
    names = [f'a"]\nopen({str(evil)!r}, "w")\n["', f'"""\nopen({str(evil)!r}, "w")\n"""', "b\\", "{x}'\ud800"]
    observations = spaces.Dict(dict.fromkeys(names, OBSERVATIONS))
    actions = spaces.Dict({name: spaces.Box(-1, 1, (2,), np.float32) for name in names})
    policy = policy_of(observations, actions)
    written = birl.export(policy, tmp_path / "folder", "numpy", sample=True)
    code = f"import policy; print(len(policy.act({{name: [0.1, 0.2, 0.3] for name in {names!r}}})[0]))"
    assert run_policy_py(written.path, code) == "4\n"
    assert not evil.exists()
    policy.save(tmp_path / "policy.safetensors")
    said = call_well("export", tmp_path / "policy.safetensors", "--format", "numpy", "--out", tmp_path / "again")
    assert all(line.isprintable() and line.isascii() for line in said.splitlines()), "no codes for the terminal"


def test_masked_choices_are_never_taken(tmp_path):
    policy = policy_of(actions=spaces.MultiDiscrete([2, 3]))
    session = onnxruntime.InferenceSession(birl.export(policy, tmp_path / "policy.onnx", sample=True, masks=True).path)
    rng = np.random.default_rng(0)
    given = {"observation": np.zeros((1, 3), np.float32), "action_mask": np.array([[True, False, False, False, True]])}
    for _ in range(20):
        noise = {f"noise.{n}": rng.gumbel(size=(1, size)).astype(np.float32) for n, size in enumerate((2, 3))}
        assert session.run(["action"], given | noise)[0].tolist() == [[0, 2]]


@pytest.mark.parametrize("passed", [False, True])
def test_a_run_with_action_masks_is_exported_with_them(tmp_path, passed):
    """The policy of a run knows that it had masks, and so does a file of it."""
    envs = SyncVectorEnv(counting_functions([(9, 4)], MaskedCounting)) if passed else None
    env = birl.EnvConfig("tests.envs.counting:MethodCounting", 1)
    run = birl.RunConfig(total_steps=8, run_dir=str(tmp_path / "run"), eval_episodes=1)
    with birl.start(birl.a2c.Config(env, run, rollout_length=4, hidden_sizes=(16,)), envs=envs, quiet=True) as training:
        for _ in training:
            pass
        assert training.policy().masks
    policy = birl.load(tmp_path / "run")
    policy.save(tmp_path / "policy.safetensors")
    for source in (tmp_path / "run", tmp_path / "policy.safetensors"):
        inputs = birl.export(source, tmp_path / "folder", "numpy").description["inputs"]
        assert [port["name"] for port in inputs] == ["observation", "action_mask"]
    with pytest.warns(UserWarning, match="learned with action masks; pass action_mask"):
        policy.act(np.zeros(3))


@pytest.mark.parametrize("format", ["onnx", "numpy"])
def test_only_what_was_exported_is_replaced(policy, tmp_path, format):
    path = tmp_path / "policy"
    birl.export(policy, path, format)
    birl.export(policy, path, format, batch_size=2)
    other = tmp_path / "other"
    other.mkdir() if format == "numpy" else other.write_text("mine")
    (other / "notes.txt").write_text("mine") if format == "numpy" else None
    with pytest.raises(CheckpointError, match="was not exported by Birl; move it away, or use another name"):
        birl.export(policy, other, format)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["other", "policy"]


class Sorting(eqx.Module):
    """A network of a user's own."""

    sorts: bool = eqx.field(static=True)

    def initial_memory(self, num_envs):
        return ()

    def __call__(self, observations, memory, resets, action_masks=None):
        logits = jnp.sort(observations, axis=-1) if self.sorts else jnp.flip(observations, -1) * 2
        return Categorical(logits), observations.sum(-1), memory


def test_a_network_of_ones_own_is_exported_if_its_operations_are_known(tmp_path):
    policy = policy_of(actions=spaces.Discrete(3), make_network=lambda *_: Sorting(False))
    session = onnxruntime.InferenceSession(birl.export(policy, tmp_path / "policy.onnx").path)
    assert session.run(["action"], {"observation": np.float32([[3, 2, 1]])})[0].tolist() == [2]
    with pytest.raises(ConfigError, match="the network has the operation 'sort' of JAX"):
        birl.export(policy_of(actions=spaces.Discrete(3), make_network=lambda *_: Sorting(True)), tmp_path / "no.onnx")
    assert not (tmp_path / "no.onnx").exists()


def test_a_strangers_policy_file_may_import_its_encoder_only_with_trust(tmp_path, monkeypatch):
    saved = tmp_path / "policy.safetensors"
    policy_of(encoder="tests.nets.own_encoders:make_squares").save(saved)
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "another-user"))
    code, said = call("export", saved, "--out", tmp_path / "policy.onnx")
    assert code == 2
    assert "if you trust it, use --trust" in said
    call_well("export", saved, "--out", tmp_path / "policy.onnx", "--trust")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"masks": True}, r"masks True \(--masks\): action space .* has no choices to mask; leave it out"),
        ({"batch_size": 0}, "batch_size 0 must be at least 1"),
        ({"format": "torch"}, "format 'torch' is unknown; use onnx or numpy"),
    ],
)
def test_wrong_settings_are_refused(policy, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        birl.export(policy, tmp_path / "policy", **settings)


def test_onnx_that_is_not_installed_is_named_with_the_remedy(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="format 'onnx' needs the package onnx; pip install"):
        birl.export(policy, tmp_path / "policy.onnx")
