"""A policy in a file of its own: it acts as before, and damage or forgery gives one line."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import birl
from birl import ALGORITHMS
from birl.config import ConfigError, EnvConfig
from birl.errors import CheckpointError, NonFiniteError
from birl.registry import algorithm_named, supports
from birl.run import checkpoint as checkpoints
from birl.run import policy_file
from birl.run.policy import Policy, make_policy
from birl.settings import places_of
from tests import markdown
from tests.run.processes import call, write_untrained

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE, BOX = spaces.Discrete(4), spaces.Box(-2.0, 2.0, (2,), np.float32)
BATCH = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)


def policy_of(name: str, actions: gym.Space | None = None, **settings: Any) -> Policy:
    """An untrained policy of this algorithm."""
    algorithm = algorithm_named(name)
    names = set(places_of(algorithm.Config))
    small = {"hidden_sizes": (8,), "normalize_observations": True, "actor_learners": 2, "core_size": 4}
    config = algorithm.Config(**{field: value for field, value in (small | settings).items() if field in names})
    space = actions or (BOX if "Discrete" not in supports(name).actions else DISCRETE)
    return make_policy(config, algorithm.init(config, OBSERVATIONS, space), OBSERVATIONS, space)


def assert_same(ours: Policy, theirs: Policy) -> None:
    for seed in (None, 3):
        np.testing.assert_array_equal(ours.act(BATCH, seed=seed)[0], theirs.act(BATCH, seed=seed)[0])
    mine, others = ours.parameters(), theirs.parameters()
    assert mine.keys() == others.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, others[name], name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_policy_of_every_algorithm_acts_the_same_after_saving_and_loading(name, tmp_path):
    policy = policy_of(name)
    changed = {path: array + 0.25 for path, array in policy.parameters().items() if "weight" in path}
    policy = with_parameters(policy, changed)
    policy.save(tmp_path / "policy.safetensors")
    assert_same(policy, birl.load(tmp_path / "policy.safetensors"))


def with_parameters(policy: Policy, changed: dict[str, np.ndarray]) -> Policy:
    policy.set_parameters(list((policy.parameters() | changed).values()))
    return policy


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_recurrent_policy_keeps_its_memory_in_step(core, tmp_path):
    policy = policy_of("ppo", core=core)
    policy.save(tmp_path / "policy")
    loaded = birl.load(str(tmp_path / "policy"))
    memory = other = None
    for observation in BATCH:
        action, memory = policy.act(observation, memory)
        same, other = loaded.act(observation, other)
        assert action == same
    assert policy.values(BATCH[0], memory) == loaded.values(BATCH[0], other) != policy.values(BATCH[0])


def test_a_small_policy_is_a_few_kilobytes_and_holds_nothing_of_the_run(tmp_path):
    config = birl.ppo.Config(
        env=EnvConfig("secret-id", kwargs={"password": "secret"}),
        run=birl.RunConfig(run_dir="secret", wandb="secret"),
        hidden_sizes=(8,),
        learning_rate=lambda progress: 1e-3 * (1 - progress),
    )
    state = birl.ppo.init(config, OBSERVATIONS, DISCRETE)
    make_policy(config, state, OBSERVATIONS, DISCRETE).save(tmp_path / "policy")
    content = (tmp_path / "policy").read_bytes()
    assert len(content) < 6_000
    assert b"secret" not in content


def test_a_network_of_ones_own_is_given_again(tmp_path):
    from birl.nets.models import make_actor_critic

    def make_network(rng: Any, observation_space: gym.Space, action_space: gym.Space) -> Any:
        config = birl.ppo.Config(hidden_sizes=(5, 5))
        return make_actor_critic(rng, observation_space, action_space, config.network, config.actions)

    config = birl.ppo.Config(hidden_sizes=(3,))
    policy = make_policy(config, birl.ppo.init(config, OBSERVATIONS, DISCRETE, make_network), OBSERVATIONS, DISCRETE)
    policy.save(tmp_path / "policy")
    assert_same(policy, birl.load(tmp_path / "policy", make_network))
    with pytest.raises(CheckpointError, match="if it has a network of your own, pass make_network="):
        birl.load(tmp_path / "policy")


def test_the_module_of_an_encoder_is_imported_from_ones_own_file_or_with_trust(tmp_path, monkeypatch):
    policy = policy_of("ppo", encoder="tests.nets.own_encoders:make_squares")
    policy.save(tmp_path / "policy")
    assert_same(policy, birl.load(tmp_path / "policy"))
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "another-user"))
    with pytest.raises(ConfigError, match=r"would import the module tests\.nets\.own_encoders"):
        birl.load(tmp_path / "policy")
    assert_same(policy, birl.load(tmp_path / "policy", trust=True))


# Telling files, runs and checkpoints apart; what may be replaced


def test_a_run_a_checkpoint_and_a_file_are_told_apart(tmp_path):
    write_untrained(tmp_path / "run", birl.ppo.Config(EnvConfig("CartPole-v1", 2), hidden_sizes=(8,)))
    [checkpoint] = (tmp_path / "run" / "checkpoints").glob("0*")
    birl.load(tmp_path / "run").save(tmp_path / "alone")
    (tmp_path / "link").symlink_to(tmp_path / "alone")
    observation = np.zeros(4, np.float32)
    found = [
        birl.load(path).distribution(observation).logits
        for path in (tmp_path / "run", checkpoint, tmp_path / "alone", tmp_path / "link")
    ]
    for logits in found[1:]:
        np.testing.assert_array_equal(found[0], logits)


@pytest.mark.parametrize("name", ["notes.txt", "folder", "state.safetensors", "empty"])
def test_nothing_but_a_policy_file_is_replaced(name, tmp_path):
    (tmp_path / "notes.txt").write_text("do not lose this")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "state.safetensors").write_bytes(save_tensors({"x": np.ones(3)}, {"format": "np"}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="is there already and is not a policy file"):
        policy_of("ppo").save(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "notes.txt").read_text() == "do not lose this"


def test_a_policy_file_is_replaced_and_directories_are_made(tmp_path):
    path = tmp_path / "new" / "folder" / "policy"
    policy_of("dqn").save(path)
    policy_of("ppo").save(path)
    assert "policy_head" in str(list(birl.load(path).parameters()))
    assert [file.name for file in path.parent.iterdir()] == ["policy"]


def test_a_policy_with_nan_is_not_saved(tmp_path):
    policy = policy_of("ppo")
    name, array = next((n, a) for n, a in policy.parameters().items() if n.startswith("network"))
    with pytest.raises(NonFiniteError, match="so this policy was not saved"):
        with_parameters(policy, {name: np.full_like(array, np.nan)}).save(tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


# Damage and forgery


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "policy"
    policy_of("ppo").save(path)
    return path.read_bytes()


def test_damage_at_any_place_is_noticed(good, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "policy"
    cuts = [0, 1, 7, 8, 9, len(good) // 2, len(good) - 1]
    places = [*range(0, 200, 7), *rng.integers(0, len(good), 150).tolist(), len(good) - 1]
    damaged = [good[:cut] for cut in cuts] + [good + b"\0"]
    damaged += [good[:at] + bytes([good[at] ^ (1 << rng.integers(8))]) + good[at + 1 :] for at in places]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises((CheckpointError, ConfigError)) as caught:
            birl.load(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


def forged(good: bytes, path: Path, tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
    """A file with changed content and a valid SHA-256, as a forger would write it."""
    length = int.from_bytes(good[:8], "little")
    description = json.loads(json.loads(good[8 : 8 + length])["__metadata__"][policy_file.KEY])
    description = {name: value for name, value in (description | changes).items() if name != "sha256"}
    arrays = load_tensors(good) | (tensors or {})
    description["sha256"] = policy_file._sha256(description, arrays)
    path.write_bytes(save_tensors(arrays, {policy_file.KEY: json.dumps(description)}))
    return path


UNIT = {"kind": "Box", "shape": [1], "dtype": "float32", "low": 0.0, "high": 1.0}
VAST = UNIT | {"shape": [1_000_000]}
DICT = {"kind": "Dict"}
SETTINGS = {"hidden_sizes": [8], "normalize_observations": True}
FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, ""),
    "another format": ({"format": 2}, "has format 2; this version of Birl reads 1"),
    "another algorithm": ({"algorithm": "dqn"}, "dqn|no field"),
    "an unknown algorithm": ({"algorithm": "os"}, "algorithm 'os' is unknown"),
    "a module": ({"algorithm": "os:system"}, "algorithm 'os:system' would import the module os"),
    "no algorithm": ({"algorithm": None}, "algorithm must be a string"),
    "a vast network": ({"settings": {"hidden_sizes": [100_000, 100_000]}}, "asks for 10,000,000,000 numbers"),
    "a vast core": ({"settings": {"core": "lstm", "core_size": 2**30}}, "asks for [0-9,]+ numbers"),
    "a thousand layers": ({"settings": {"hidden_sizes": [8] * 1000}}, "asks for 10,000 numbers"),
    "many features": ({"algorithm": "dpg", "settings": {"num_features": 2**40}, "action_space": UNIT}, "asks for"),
    "many actor-learners": ({"settings": {"actor_learners": 10**9}}, "not those of a network"),
    "an environment": ({"settings": {"env": {"id": "os:Evil-v0"}}}, "not those of a network"),
    "a run": ({"settings": {"run": {"wandb": "mine"}}}, "not those of a network"),
    "settings of another kind": ({"settings": [1, 2]}, "not those of a network"),
    "an unknown setting": ({"settings": {"evil": 1}}, "has no field evil"),
    "a setting of a wrong type": ({"settings": {"hidden_sizes": "8"}}, "hidden_sizes must be a list"),
    "a negative size": ({"settings": SETTINGS | {"hidden_sizes": [-3]}}, "no network can be made"),
    "a module": ({"settings": SETTINGS | {"encoder": "antigravity:open"}}, "would import the module antigravity"),
    "a function": ({"settings": {"learning_rate": "local:f"}}, "cannot read schedule"),
    "a vast space": ({"observation_space": {"kind": "Box", "shape": [2**40]}}, "is not a space"),
    "a large observation": ({"observation_space": UNIT | {"shape": [2**24]}}, "asks for 16,777,216 numbers"),
    "a first layer": ({"observation_space": UNIT | {"shape": [2**21]}}, "asks for 16,777,216 numbers"),
    "many choices": ({"action_space": {"kind": "Discrete", "n": 2**24}}, "asks for 16,777,216 numbers"),
    "a vast image": ({"observation_space": UNIT | {"shape": [2**12, 2**12, 4]}}, "asks for 67,108,864 numbers"),
    "many parts": ({"observation_space": DICT | {"spaces": {str(i): UNIT for i in range(3000)}}}, "30,000,000 numb"),
    "many large parts": ({"observation_space": DICT | {"spaces": dict.fromkeys("abcde", VAST)}}, "asks for 5,000,000"),
    "many components": ({"observation_space": {"kind": "MultiDiscrete", "nvec": [1] * 9000}}, "asks for 9,009,000"),
    "long strings": ({"observation_space": UNIT | {"shape": [99], "dtype": "S999999999"}}, "cannot be of type S99"),
    "other spaces": ({"action_space": {"kind": "Discrete", "n": 3}}, "but float32\\(8, 3\\) in this network"),
    "no space": ({"action_space": None}, "None is not a space"),
    "a signature that is none": ({"signature": [1]}, "its signature"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_file_gives_one_line_and_makes_nothing_large(case, good, tmp_path):
    changes, message = FORGED[case]
    path = forged(good, tmp_path / "policy", **changes)
    if not message:
        birl.load(path)
        return
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        birl.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "antigravity" not in sys.modules


def test_nothing_is_allocated_for_a_space_that_is_larger_than_the_file_and_a_person_may_raise_that(
    good, tmp_path, monkeypatch
):
    def refuse(*_: Any) -> None:
        raise AssertionError("allocated")

    path = forged(good, tmp_path / "policy", observation_space=UNIT | {"shape": [2**23]})
    with monkeypatch.context() as patch:
        patch.setattr(np, "broadcast_to", refuse)
        with pytest.raises(CheckpointError, match="set the environment variable BIRL_MOST_NUMBERS to a larger number"):
            birl.load(path)
        monkeypatch.setenv("BIRL_MOST_NUMBERS", "10000000")
        with pytest.raises(AssertionError, match="allocated"):
            birl.load(path)
    with pytest.raises(CheckpointError, match=r"no network can be made .*: it asks for 67,108,864 numbers"):
        birl.load(path)
    monkeypatch.setenv("BIRL_MOST_NUMBERS", "many")
    with pytest.raises(CheckpointError, match="BIRL_MOST_NUMBERS 'many' must be a whole number"):
        birl.load(path)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sac", {"policy_hidden_sizes": (8,), "value_hidden_sizes": (64, 64)}),
        ("ppo", {"hidden_sizes": (512, 512), "policy_hidden_sizes": (8,), "value_hidden_sizes": (8,)}),
        ("async-q", {"hidden_sizes": (), "core_size": 64, "normalize_observations": False}),
    ],
)
def test_a_policy_whose_settings_name_sizes_that_its_file_has_no_weights_of_is_loaded(name, settings, tmp_path):
    policy = policy_of(name, **settings)
    policy.save(tmp_path / "policy")
    assert_same(policy, birl.load(tmp_path / "policy"))


def test_weights_that_are_not_finite_or_do_not_fit_are_refused(good, tmp_path):
    name = next(name for name in load_tensors(good) if name.startswith("network"))
    array = load_tensors(good)[name]
    cases = {
        "holds NaN or infinity": {name: np.full_like(array, np.inf)},
        "is float64": {name: array.astype(np.float64)},
        "not expected": {"network.more": array},
    }
    for message, tensors in cases.items():
        with pytest.raises(CheckpointError, match=message):
            birl.load(forged(good, tmp_path / "policy", tensors))


def test_other_files_are_not_policy_files(tmp_path, good, monkeypatch):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "tensors").write_bytes(save_tensors({"x": np.ones(3)}))
    for name in ("text", "tensors"):
        with pytest.raises(CheckpointError, match="is not a policy file of Birl"):
            birl.load(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "is not a regular file"), ("missing", "holds no checkpoint")):
        with pytest.raises(CheckpointError, match=message):
            birl.load(tmp_path / name)
    (tmp_path / "large").write_bytes(good)
    monkeypatch.setattr(checkpoints, "free_memory", lambda: 10)
    with pytest.raises(CheckpointError, match="of memory are free"):
        birl.load(tmp_path / "large")


# Looking inside


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_can_be_seen_inside_is_what_the_algorithm_says(name):
    policy = policy_of(name)
    declared = supports(name)
    if declared.values:
        values = policy.values(BATCH)
        assert values.shape == ((5, 4) if "Q" in declared.values and policy.action_space == DISCRETE else (5,))
        np.testing.assert_allclose(policy.values(BATCH[2]), values[2], rtol=1e-5, atol=1e-6)
        assert len(np.unique(values)) > 1 or name == "dpg"  # whose weights begin at 0
    else:
        with pytest.raises(ConfigError, match=f"the part of {name} that acts has no values; .*: .*ppo.*dqn"):
            policy.values(BATCH)
    if declared.distribution:
        both, one = policy.distribution(BATCH), policy.distribution(BATCH[2])
        mode = np.asarray(both.mode())
        scaled = mode * 2 if name == "sac" else mode
        np.testing.assert_allclose(np.clip(scaled, -2, 2) if mode.ndim > 1 else mode, policy.act(BATCH)[0], 1e-4, 1e-6)
        np.testing.assert_allclose(np.asarray(one.mode()), mode[2], rtol=1e-4, atol=1e-6)
        assert np.asarray(both.log_prob(both.mode())).shape == (5,)
    else:
        with pytest.raises(ConfigError, match=f"the part of {name} that acts has no distribution; .*sac"):
            policy.distribution(BATCH)


def test_greedy_actions_are_those_of_the_highest_values():
    policy = policy_of("dqn")
    np.testing.assert_array_equal(policy.act(BATCH)[0], policy.values(BATCH).argmax(axis=1))


@pytest.mark.parametrize("name", ["qac", "acer"])
def test_for_box_actions_there_is_one_value(name):
    assert policy_of(name, BOX).values(BATCH).shape == (5,)


def test_a_mask_is_seen_in_the_distribution():
    policy = policy_of("ppo")
    mask = np.array([True, False, True, False])
    probabilities = np.exp(np.asarray(policy.distribution(BATCH[0], action_mask=mask).logits))
    np.testing.assert_array_equal(probabilities > 0, mask)


def test_values_that_were_never_learned_are_refused():
    with pytest.raises(ConfigError, match="reinforce with baseline False learns no values"):
        policy_of("reinforce", baseline=False).values(BATCH)


def test_parameters_are_copies_with_readable_names():
    policy = policy_of("ppo")
    parameters = policy.parameters()
    assert "network.policy_head.linear.weight" in parameters
    assert "moments.mean" in parameters
    before = policy.act(BATCH)[0]
    for array in parameters.values():
        array += 1
    np.testing.assert_array_equal(policy.act(BATCH)[0], before)


# Evaluating


def test_a_policy_a_file_and_a_run_are_evaluated_alike(tmp_path):
    config = birl.ppo.Config(EnvConfig("CartPole-v1", 2), hidden_sizes=(8,))
    write_untrained(tmp_path / "run", config)
    policy = birl.load(tmp_path / "run")
    policy.save(tmp_path / "policy")
    found = [
        birl.evaluate(policy, 3),
        birl.evaluate(policy, 3, env="CartPole-v1"),
        birl.evaluate(tmp_path / "run", 3, env=EnvConfig("CartPole-v1")),
        birl.evaluate(tmp_path / "policy", 3, env="CartPole-v1"),
        birl.evaluate(birl.load(tmp_path / "policy"), 3, env=EnvConfig("CartPole-v1")),
    ]
    known = birl.evaluate(tmp_path / "run", 3)
    for evaluation in found:
        np.testing.assert_array_equal(evaluation.returns, known.returns)
    shorter = birl.evaluate(policy, 3, env=EnvConfig("CartPole-v1", max_episode_steps=5))
    assert shorter.lengths.tolist() == [5, 5, 5]
    with pytest.raises(ConfigError, match="does not say which environment to play; name it"):
        birl.evaluate(tmp_path / "policy", 3)
    with pytest.raises(ConfigError, match="env 'Acrobot-v1' has spaces"):
        birl.evaluate(policy, 3, env="Acrobot-v1")


def test_several_seeds_are_the_episodes_of_each(tmp_path):
    write_untrained(tmp_path / "run", birl.ppo.Config(EnvConfig("CartPole-v1", 2), hidden_sizes=(8,)))
    policy = birl.load(tmp_path / "run")
    together = birl.evaluate(policy, 2, seed=[4, 9])
    apart = [birl.evaluate(policy, 2, seed=seed).returns for seed in (4, 9)]
    np.testing.assert_array_equal(together.returns, np.concatenate(apart))
    with pytest.raises(ConfigError, match="seed must be a number or several"):
        birl.evaluate(policy, 2, seed=[])


def test_someone_elses_run_needs_consent_also_by_its_policy(tmp_path, monkeypatch):
    config = birl.ppo.Config(EnvConfig("tests.envs.shifted:Shifted-discrete-v0", 2), hidden_sizes=(8,))
    write_untrained(tmp_path / "run", config)
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "elsewhere"))  # another user's secret
    policy = birl.load(tmp_path / "run")
    assert policy.env is None
    with pytest.raises(ConfigError, match="does not say which environment to play"):
        birl.evaluate(policy, 1)


def test_the_command_line_plays_a_policy_file(tmp_path):
    config = birl.ppo.Config(EnvConfig("CartPole-v1", 2), hidden_sizes=(8,))
    write_untrained(tmp_path / "run", replace(config))
    birl.load(tmp_path / "run").save(tmp_path / "policy")
    code, said = call("eval", tmp_path / "policy", "--env", "CartPole-v1", "--episodes", "2")
    assert code == 0, said
    assert "return" in said
    code, said = call("eval", tmp_path / "policy")
    assert code == 2
    assert "--env CartPole-v1" in said


# The page


@pytest.mark.parametrize(("page", "both"), [("policies.md", " or "), ("policies.zh-CN.md", " 或 ")])
def test_the_page_says_which_policies_can_be_looked_into(page, both):
    [table] = markdown.tables_of(markdown.ROOT / "docs" / page)
    said = {}
    for names, values, distribution in table[1:]:
        for name in re.split(", |、", names):
            said[name] = (values.replace(both, " or "), distribution != "-")
    for name in ALGORITHMS:
        declared = supports(name)
        values, distribution = said.pop(name)
        assert values.startswith(declared.values or "-"), name
        assert (declared.values_need or "-") in values or not declared.values_need
        assert distribution == declared.distribution
    assert said == {}
