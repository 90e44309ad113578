"""A loaded policy acts as the one that was trained, one observation at a time or many, without its environment."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import birl
from birl.algos import ppo
from birl.config import EnvConfig
from birl.errors import CheckpointError
from birl.run.policy import find_checkpoint
from tests.envs.hybrid import ACTIONS
from tests.run.processes import ENVIRONMENT, ROOT, write_untrained

TASKS = {
    "feedforward": ("Pendulum-v1", "feedforward"),
    "lstm": ("Pendulum-v1", "lstm"),
    "gru": ("CartPole-v1", "gru"),
    "mask": ("birl/ProbeMask-v0", "feedforward"),
    "dict": ("birl/ProbeDict-v0", "feedforward"),
    "tree of actions": ("tests.envs.hybrid:Hybrid-v0", "lstm"),
    "shifted tree": ("birl/ProbeDictAction-v0", "feedforward"),
}


def config_of(name: str) -> ppo.Config:
    env_id, core = TASKS[name]
    return ppo.Config(EnvConfig(env_id, num_envs=2), core=core, core_size=8, hidden_sizes=(8,), normalize_observations=True)


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
    """Two episodes at once, with their memory side by side, or one after the other."""
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
    """The action is that of the network for (observation - mean) / deviation, and another one without it."""
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
        actions = [policy.act(np.zeros(1, np.float32), action_mask=np.array(allowed), seed=seed)[0] for seed in range(30)]
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


@pytest.mark.parametrize("masks", ["info", "observation", "none"])
def test_evaluation_gives_a_tree_only_actions_that_it_has_and_allows(masks, tmp_path):
    """The environment raises at any other."""
    config = replace(config_of("tree of actions"), env=EnvConfig("tests.envs.hybrid:Hybrid-v0", 2, kwargs={"masks": masks}))
    write_untrained(tmp_path, config)
    for deterministic in (False, True):
        assert len(birl.evaluate(tmp_path, episodes=3, deterministic=deterministic).returns) == 3


def test_seeds_of_any_size_work_and_differ(runs):
    policy = birl.load(runs["feedforward"])
    actions = [float(policy.act(np.zeros(3, np.float32), seed=seed)[0][0]) for seed in (0, 1, 2**32, 2**32 + 1, 2**40)]
    assert len(set(actions)) == len(actions)


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
    finished = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert float(finished.stdout) < 20, "a hundred policies of 100 kB, were they kept with their programs, would be 100 MB"
