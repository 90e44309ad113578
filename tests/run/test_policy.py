"""A loaded policy acts like the trained one, for one observation or a batch."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

import birl
from birl.algos import ppo
from birl.config import EnvConfig
from birl.errors import CheckpointError
from birl.run.loading import find_checkpoint
from birl.run.policy import read_observations
from birl.run.record import record
from tests.envs.hybrid import ACTIONS
from tests.envs.shifted import SPACES
from tests.run.processes import ENVIRONMENT, ROOT, write_untrained

TASKS = {
    "feedforward": ("Pendulum-v1", "feedforward"),
    "lstm": ("Pendulum-v1", "lstm"),
    "gru": ("CartPole-v1", "gru"),
    "mask": ("birl/ProbeMask-v0", "feedforward"),
    "dict": ("birl/ProbeDict-v0", "feedforward"),
    "tree of actions": ("tests.envs.hybrid:Hybrid-v0", "lstm"),
    "shifted tree": ("birl/ProbeDictAction-v0", "feedforward"),
    "shifted discrete": ("tests.envs.shifted:Shifted-discrete-v0", "feedforward"),
    "shifted multi": ("tests.envs.shifted:Shifted-multi-v0", "feedforward"),
}


def config_of(name: str) -> ppo.Config:
    env_id, core = TASKS[name]
    return ppo.Config(
        EnvConfig(env_id, num_envs=2), core=core, core_size=8, hidden_sizes=(8,), normalize_observations=True
    )


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, ppo.State]:
    """A run of each task, and the state in its checkpoint."""
    directory = tmp_path_factory.mktemp("policy")
    return {directory / name: write_untrained(directory / name, config_of(name)) for name in TASKS}


@pytest.fixture(scope="module")
def runs(states: dict[Path, ppo.State]) -> dict[str, Path]:
    return {path.name: path for path in states}


def observations_of(run: Path, length: int) -> np.ndarray:
    space = find_checkpoint(run).observation_space
    return np.random.default_rng(0).normal(size=(length, *(space.shape or ()))).astype(np.float32)


@pytest.mark.parametrize("name", ["feedforward", "lstm", "gru"])
@pytest.mark.parametrize("seeded", [False, True])
def test_one_observation_at_a_time_gives_the_actions_of_a_batch(name, seeded, runs):
    """Two episodes in one batch act like the two one after the other."""
    policy = birl.load(runs[name])
    episodes = [observations_of(runs[name], 12)[:6], observations_of(runs[name], 12)[6:]]
    alone: list[list[Any]] = []
    for episode in episodes:
        memory, actions = None, []
        for observation in episode:
            action, memory = policy.act(observation, memory)
            actions.append(action)
        alone.append(actions)
    memory, together = policy.initial_memory(2), []
    for pair in zip(*episodes, strict=True):
        actions, memory = policy.act_batch(np.stack(pair), memory, np.zeros(2, bool))
        together.append(actions)
    np.testing.assert_allclose(np.array(together), np.swapaxes(np.array(alone), 0, 1), rtol=1e-5, atol=1e-6)
    if seeded:
        first, again, other = (policy.act(episodes[0][0], seed=seed)[0] for seed in (5, 5, 6))
        assert np.array_equal(first, again)
        assert name == "gru" or not np.array_equal(first, other)


def test_a_reset_within_a_batch_empties_the_memory_of_that_row_only(runs):
    policy = birl.load(runs["lstm"])
    observations = observations_of(runs["lstm"], 2)
    _, memory = policy.act_batch(observations, policy.initial_memory(2), np.zeros(2, bool))
    kept, _ = policy.act_batch(observations, memory, np.array([False, False]))
    reset, _ = policy.act_batch(observations, memory, np.array([True, False]))
    fresh, _ = policy.act_batch(observations, policy.initial_memory(2), np.zeros(2, bool))
    assert np.array_equal(reset[0], fresh[0])
    assert np.array_equal(reset[1], kept[1])
    assert not np.array_equal(kept, fresh), "memory matters"


def test_the_environment_is_not_made(runs, monkeypatch):
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the environment was made")

    for function in ("make", "make_vec", "spec"):
        monkeypatch.setattr(gym, function, refuse)
    action, _ = birl.load(runs["feedforward"]).act(np.zeros(3, np.float32))
    assert action.shape == (1,)


def test_the_normaliser_of_the_run_is_part_of_the_policy(runs, states):
    """The network gets (observation - mean) / deviation; without that, the action differs."""
    state = states[runs["feedforward"]]
    policy, observation = birl.load(runs["feedforward"]), np.array([0.5, -0.5, 3.0], np.float32)
    action, _ = policy.act(observation)
    moments = state.normalizer.observations
    normalized = (observation - moments.mean) / np.sqrt(moments.variance)
    for given, same in ((normalized, True), (observation, False)):
        memory = state.network.initial_memory(1)
        distribution, _, _ = state.network(given[None, None].astype(np.float32), memory, np.zeros((1, 1), bool), None)
        by_hand = np.clip(np.asarray(distribution.mode())[0, 0], policy.action_space.low, policy.action_space.high)
        assert np.allclose(action, by_hand, rtol=1e-4, atol=1e-6) == same


def test_a_forbidden_action_is_never_taken(runs):
    policy = birl.load(runs["mask"])
    for allowed in ([True, False, False], [False, True, False], [False, True, True], [True, False, True]):
        actions = [
            policy.act(np.zeros(1, np.float32), action_mask=np.array(allowed), seed=seed)[0] for seed in range(30)
        ]
        actions.append(policy.act(np.zeros(1, np.float32), action_mask=np.array(allowed))[0])
        assert {index for index in range(3) if allowed[index]} == set(actions)


def test_discrete_actions_are_ints_and_continuous_ones_arrays_within_their_bounds(runs):
    assert type(birl.load(runs["gru"]).act(np.zeros(4, np.float32))[0]) is int
    actions = [birl.load(runs["feedforward"]).act(np.zeros(3, np.float32), seed=seed)[0] for seed in range(3)]
    assert all(action.dtype == np.float32 and abs(action[0]) <= 2.0 for action in actions)


def test_dict_observations_are_given_as_dicts(runs):
    policy = birl.load(runs["dict"])
    action, _ = policy.act({"vector": np.ones(1, np.float32), "image": np.zeros((36, 36, 1), np.uint8)})
    assert action in range(4)


def test_the_action_of_a_tree_is_the_environments_own(runs):
    policy, memory = birl.load(runs["tree of actions"]), None
    observation = {"state": np.zeros(3, np.float32), "picture": np.zeros((8, 8, 1), np.uint8)}
    mask = {"move": [False, True, False], "switches": (None, ([1, 0], [0, 0, 1]))}
    for seed in (None, *range(20)):
        action, memory = policy.act(observation, memory, mask, seed)
        assert ACTIONS.contains(action)
        assert action["move"] == 2
        assert action["switches"][1].tolist() == [0, 7]
    free = [policy.act(observation, seed=seed)[0]["move"] for seed in range(30)]
    assert set(free) == {1, 2, 3}


def test_a_tree_whose_choices_start_elsewhere_is_loaded_with_its_starts(runs):
    policy = birl.load(runs["shifted tree"])
    gears = [policy.act(np.ones(1, np.float32), seed=seed)[0]["gear"] for seed in range(30)]
    assert set(gears) == {-1, 0, 1}
    assert all(type(gear) is int for gear in gears)


def test_a_batch_of_trees_is_flat_for_the_environments_that_birl_steps(runs):
    policy = birl.load(runs["shifted tree"])
    actions, _ = policy.act_batch(np.ones((5, 1), np.float32), policy.initial_memory(5), np.zeros(5, bool))
    assert (actions.shape, actions.dtype) == ((5, 2), np.float32)


@pytest.mark.parametrize("name", ["feedforward", "lstm", "gru", "tree of actions", "shifted discrete", "shifted multi"])
def test_a_batch_has_the_actions_and_the_memory_of_each_of_its_observations(name, runs):
    policy = birl.load(runs[name])
    policy.observation_space.seed(0)
    rows = [policy.observation_space.sample() for _ in range(6)]
    alone, memories = [], []
    for pair in zip(rows[:3], rows[3:], strict=True):  # three episodes of two steps
        memory, actions = None, []
        for observation in pair:
            action, memory = policy.act(observation, memory)
            actions.append(action)
        alone.append(actions)
        memories.append(memory)
    memory = None
    for step in range(2):
        observations = jax.tree.map(lambda *parts: np.stack(parts), *rows[3 * step : 3 * step + 3])
        actions, memory = policy.act(observations, memory)
        assert batch_space(policy.action_space, 3).contains(actions)
        for index, action in enumerate(iterate(batch_space(policy.action_space, 3), actions)):
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), action, alone[index][step])
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
        memory,
        jax.tree.map(lambda *m: np.concatenate(m), *memories),
    )


def test_masks_of_a_batch_are_each_observations_own(runs):
    policy, masks = birl.load(runs["mask"]), np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]], bool)
    for seed in range(10):
        actions, _ = policy.act(np.zeros((3, 1), np.float32), action_mask=masks, seed=seed)
        assert masks[np.arange(3), actions].all()
    with pytest.raises(ValueError, match=r"action_mask has 1 entries; action space .* has 3 choices"):
        policy.act(np.zeros((3, 1), np.float32), action_mask=masks[0])


@pytest.mark.parametrize("name", ["shifted discrete", "shifted multi"])
def test_choices_that_start_elsewhere_are_the_environments_own_when_acting_evaluating_and_filming(name, runs, tmp_path):
    """The environment raises an error for any other action."""
    policy = birl.load(runs[name])
    space = SPACES[name.removeprefix("shifted ")]
    assert policy.action_space == space
    assert all(space.contains(policy.act(np.zeros(2), seed=seed)[0]) for seed in range(20))
    returns = birl.evaluate(runs[name], episodes=2).returns
    expected = 3.0 * np.all(policy.act(np.zeros(2))[0] == space.start)
    assert returns.tolist() == [expected] * 2
    _, filmed = record(runs[name], tmp_path / "film.mp4", 1, seed=0, deterministic=True)
    assert filmed.returns.tolist() == [expected]
    _, filmed = record(runs[name], tmp_path / "film.mp4", 1, seed=0, deterministic=False)


def test_lists_and_other_types_are_taken_as_the_numbers_they_are(runs):
    policy, numbers = birl.load(runs["feedforward"]), [1, 0, -2]
    action, _ = policy.act(np.array(numbers, np.float32))
    for given in (
        numbers,
        tuple(numbers),
        np.array(numbers, np.int8),
        np.array(numbers, np.float64),
        jnp.array(numbers),
    ):
        assert np.array_equal(policy.act(given)[0], action)
        assert np.array_equal(policy.act([given, given])[0], [action, action])


def test_a_nested_observation_is_taken_as_the_environment_has_it():
    flat = spaces.Dict(
        {"a/0": spaces.Box(-1, 1, (2,), np.float32), "a/1": spaces.Discrete(3), "b": spaces.MultiBinary(2)}
    )
    arrays, size = read_observations(flat, {"a": ([0.5, 1], 2), "b": [0, 1], "action_mask": [1, 1]})
    assert size is None
    assert {name: array.tolist() for name, array in arrays.items()} == {"a/0": [[0.5, 1.0]], "a/1": [2], "b": [[0, 1]]}
    arrays, size = read_observations(flat, {"a/0": np.ones((2, 2)), "a/1": [0, 1], "b": np.ones((2, 2), bool)})
    assert (size, arrays["a/1"].tolist(), arrays["b"].dtype) == (2, [0, 1], np.int8)


BOX, IMAGE = spaces.Box(-1, 1, (4,), np.float32), spaces.Box(0, 255, (8, 8, 3), np.uint8)
PAIR = spaces.Dict({"kind": spaces.Discrete(3), "where": spaces.Box(-1, 1, (2,), np.float32)})


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (
            BOX,
            np.zeros(3),
            r"observation has shape (3,); Box(-1.0, 1.0, (4,), float32) needs (4,), or (B, 4) for a batch",
        ),
        (
            BOX,
            np.zeros((2, 3, 4)),
            r"observation has shape (2, 3, 4); Box(-1.0, 1.0, (4,), float32) needs (4,), or (B, 4) for a batch",
        ),
        (BOX, np.zeros((4, 1)), "observation has shape (4, 1)"),
        (BOX, 0.5, "observation has shape ()"),
        (BOX, np.zeros((0, 4)), "observation has shape (0, 4), an empty batch"),
        (BOX, [[0, 0, 0, 0], [0, 0]], "observation is not an array"),
        (BOX, None, "observation None holds no numbers"),
        (BOX, ({"x": 1}, {}), "observation ({'x': 1}, {}) holds no numbers"),
        (BOX, [0, float("nan"), 0, 0], "observation is nan at [1]; a policy needs finite numbers"),
        (BOX, [[0, 0, 0, 0], [0, 0, np.inf, 0]], "observation is inf at [1, 2]"),
        (
            IMAGE,
            np.full((8, 8, 3), 0.5),
            "observation holds 0.5; Box(0, 255, (8, 8, 3), uint8) needs whole numbers from 0 to 255",
        ),
        (IMAGE, np.full((8, 8, 3), 300), "observation holds 300;"),
        (IMAGE, np.zeros((3, 8, 8), np.uint8), "observation has shape (3, 8, 8)"),
        (spaces.Discrete(3), 3, "observation holds 3; Discrete(3) needs whole numbers from 0 to 2"),
        (spaces.Discrete(3), 1.5, "observation holds 1.5; Discrete(3) needs whole numbers from 0 to 2"),
        (spaces.Discrete(3), [[1]], "observation has shape (1, 1); Discrete(3) needs a number, or (B,) for a batch"),
        (spaces.MultiDiscrete([2, 3]), [2, 0], "observation holds 2;"),
        (spaces.MultiBinary(2), [0, 2], "observation holds 2; MultiBinary(2) needs whole numbers from 0 to 1"),
        (PAIR, {"kind": 1}, "the observation has no part 'where'; it needs 'kind', 'where'"),
        (PAIR, [1, 2], "the observation has no part 'kind'"),
        (PAIR, {"kind": 1, "where": [0, 0], "when": 3}, "the observation has a part 'when'; it needs 'kind', 'where'"),
        (
            PAIR,
            {"kind": [1, 2], "where": [0, 0]},
            "the parts of the observation do not agree: 'kind' a batch of 2, 'where' one",
        ),
        (PAIR, {"kind": 1, "where": [0, np.nan]}, "observation 'where' is nan at [1]"),
    ],
)
def test_what_is_no_observation_of_the_space_is_refused_in_words(space, given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_observations(space, given)


def test_memory_of_another_number_of_observations_is_refused(runs):
    policy = birl.load(runs["lstm"])
    _, memory = policy.act(np.zeros(3))
    with pytest.raises(
        ValueError,
        match=r"memory has shapes .*; a batch of 2 needs .*: pass what the last call of act returned, or None",
    ):
        policy.act(np.zeros((2, 3)), memory)


@pytest.mark.parametrize(
    ("name", "expected"), [("feedforward", r"parameters\)$"), ("lstm", r"parameters, with memory\)$")]
)
def test_a_policy_says_what_it_takes_and_gives_in_one_line(name, expected, runs):
    text = repr(birl.load(runs[name]))
    assert text.startswith("Policy(Box([-1. -1. -8.], [1. 1. 8.], (3,), float32) -> Box(-2.0, 2.0, (1,), float32), ")
    assert re.search(rf"\d {expected}", text)


@pytest.mark.parametrize("masks", ["info", "observation", "none"])
def test_evaluation_gives_a_tree_only_actions_that_it_has_and_allows(masks, tmp_path):
    """The environment raises an error for any other action."""
    config = replace(
        config_of("tree of actions"), env=EnvConfig("tests.envs.hybrid:Hybrid-v0", 2, kwargs={"masks": masks})
    )
    write_untrained(tmp_path, config)
    for deterministic in (False, True):
        assert len(birl.evaluate(tmp_path, episodes=3, deterministic=deterministic).returns) == 3


def test_seeds_of_any_size_work_and_differ(runs):
    policy = birl.load(runs["feedforward"])
    actions = [float(policy.act(np.zeros(3, np.float32), seed=seed)[0][0]) for seed in (0, 1, 2**32, 2**32 + 1, 2**40)]
    assert len(set(actions)) == len(actions)


def test_a_loop_that_is_not_deterministic_has_new_noise_in_each_call_and_the_same_after_seeding(runs):
    policy = birl.load(runs["feedforward"])
    observation = np.zeros(3, np.float32)
    first = [float(policy.act(observation, deterministic=False)[0][0]) for _ in range(5)]
    assert len(set(first)) == 5
    policy.seed(policy.config.run.seed)
    assert [float(policy.act(observation, deterministic=False)[0][0]) for _ in range(5)] == first
    again = birl.load(runs["feedforward"])
    assert float(again.act(observation, deterministic=False)[0][0]) == first[0]
    assert again.act(observation, seed=1) == again.act(observation, seed=1)


def test_parameters_are_set_by_name_in_any_order_and_those_of_another_network_are_refused(runs):
    policy, other = birl.load(runs["feedforward"]), birl.load(runs["lstm"])
    observations = observations_of(runs["feedforward"], 8)
    before = policy.act(observations)[0]
    parameters = policy.parameters()
    policy.set_parameters({name: 2 * array for name, array in parameters.items()})
    assert not np.array_equal(policy.act(observations)[0], before)
    policy.set_parameters(dict(reversed(parameters.items())))
    assert np.array_equal(policy.act(observations)[0], before)
    name = next(name for name, array in parameters.items() if array.ndim == 2)
    for wrong, match in (
        (parameters | {name: np.zeros((2, 2))}, rf"{re.escape(name)} \(2, 2\) for"),
        (parameters | {"scale": 1.0}, "of another network: scale"),
        (other.parameters(), "of another network: "),
        (list(parameters.values())[1:], "arrays for"),
    ):
        with pytest.raises(birl.ConfigError, match=match):
            policy.set_parameters(wrong)
    assert np.array_equal(policy.act(observations)[0], before)


def test_a_path_without_a_checkpoint_says_what_to_give(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint; give a run directory such as runs/mine"):
        birl.load(tmp_path)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_loading_100_times_does_not_grow_the_process(runs):
    """SB3 #1908."""
    script = f"""
import numpy as np, birl
def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
def use():
    birl.load({str(runs["feedforward"])!r}).act(np.zeros(3, np.float32))
for _ in range(10):
    use()
before = megabytes()
for _ in range(100):
    use()
print(megabytes() - before)
"""
    finished = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert float(finished.stdout) < 20, (
        "a hundred policies of 100 kB, were they kept with their programs, would be 100 MB"
    )
