"""Transitions from elsewhere in a replay: files, one's own loop, saving; known by counting."""

import json
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from birl.algos import acer, ddpg, dqn, sac, td3
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.serial import SerialEnvs
from birl.parts import NormalizeConfig, ReplayConfig
from birl.rollouts import user_replay
from birl.rollouts.replay import Replay
from birl.rollouts.source import open_rollouts
from birl.rollouts.transition_files import read_transitions
from birl.types import Action, RolloutSource, Snapshot
from tests.envs.counting import Counting, DictCounting, MaskedCounting, counting_functions
from tests.rollouts.test_replay import every_index, gathered, key, places, rows_written, weights_by_row

DISCOUNT = 0.5
SHAPES = [(100, 4), (5, 100), (100, 7)]  # (goal, limit) of each environment
Transition = tuple[Any, ...]  # numbers that tell one transition from all others


class Memoryless:
    """A network without a memory."""

    def initial_memory(self, num_envs: int) -> tuple[()]:
        return ()


class State:
    network = Memoryless()
    env_steps = updates = np.int32(0)


@jax.jit
def draw(policy, observations, memory, resets, masks, key):
    """Random actions from 0 to 2."""
    return Action(jax.random.randint(key, resets.shape, 0, 3), memory)


def played(env: gym.Env, steps: int, seed: int = 0) -> dict[str, Any]:
    """Transitions of random actions, as lists by name."""
    rng = np.random.default_rng(seed)
    names = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
    found: dict[str, Any] = {name: [] for name in names}
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = int(rng.integers(3))
        following, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(names, (observation, action, reward, following, terminated, truncated), strict=True):
            found[name].append(value)
        observation = env.reset()[0] if terminated or truncated else following
    return {name: np.array(values) for name, values in found.items()}


def other_counting() -> Counting:
    """An environment that no rollout has steps of."""
    return Counting(9, goal=8, limit=6)


def stacked(frames: int, make: Callable[[], gym.Env] = other_counting) -> gym.Env:
    return make() if frames == 1 else FrameStackObservation(make(), frames)


class Opened:
    """A source of rollouts of counting environments with a replay."""

    def __init__(
        self,
        stack: ExitStack,
        num_envs=3,
        length=4,
        frames=1,
        kind=Counting,
        prefill=None,
        snapshot=None,
        size=400,
        **switches,
    ):
        normalize = NormalizeConfig(clip_rewards=switches.pop("clip_rewards", False))
        config = dqn.Config(
            EnvConfig(num_envs=num_envs), RunConfig(seed=3), normalize=normalize, rollout_length=length,
            discount=DISCOUNT,
        )  # fmt: skip
        functions = counting_functions(SHAPES[:num_envs], kind)
        envs = SerialEnvs([lambda make=make: stacked(frames, make) for make in functions])
        self.source: RolloutSource = stack.enter_context(open_rollouts(config, draw, envs))
        self.source.start(State(), snapshot)
        self.source.add_replay(ReplayConfig(replay_size=size, frame_stack=frames, prefill=prefill, **switches))
        self.replay: Replay = self.source.replay
        self.user = self.source.report(State(), {}).replay
        self.rollouts = 0

    def collect(self, count: int) -> None:
        for _ in range(count):
            rollout = self.source.collect(None, key(self.rollouts))
            self.replay.require_fits(rollout)
            self.replay.add(rollout)
            self.rollouts += 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def held(replay: Replay) -> list[Transition]:
    """Every transition that can be sampled."""
    found = gathered(replay, every_index(replay))
    leaves = jax.tree.leaves(found._replace(next_action_masks=None))
    return sorted(
        tuple(np.concatenate([np.ravel(leaf[i]) for leaf in leaves]).tolist()) for i in range(len(found.rewards))
    )


def expected(given: dict[str, Any], n_step: int = 1) -> list[Transition]:
    """The n-step transitions of what was played, by the definition."""
    found = []
    ends = given["terminated"] | given["truncated"]
    for first in range(len(ends)):
        last = first
        while last < first + n_step - 1 and last < len(ends) - 1 and not ends[last]:
            last += 1
        reward = sum(DISCOUNT**k * given["rewards"][first + k] for k in range(last - first + 1))
        discount = 0.0 if given["terminated"][last] else DISCOUNT ** (last - first + 1)
        parts = (
            given["observations"][first],
            given["actions"][first],
            reward,
            discount,
            given["next_observations"][last],
        )
        found.append(tuple(np.concatenate([np.ravel(part) for part in parts]).astype(np.float32).tolist()))
    return sorted(found)


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize(("num_envs", "length"), [(1, 1), (1, 8), (3, 4)])
def test_every_transition_of_a_file_can_be_sampled_as_it_was(stack, tmp_path, num_envs, length, frames):
    given = played(stacked(frames), 50)
    np.savez(tmp_path / "demo.npz", **given)
    opened = Opened(stack, num_envs, length, frames, prefill=str(tmp_path / "demo.npz"))
    opened.collect(1)
    assert len(opened.user) >= 50
    assert [one for one in held(opened.replay) if one[0] == 9] == expected(given)


@pytest.mark.parametrize("frames", [1, 3])
def test_transitions_in_random_order_stand_alone(stack, tmp_path, frames):
    given = played(stacked(frames), 30)
    order = np.random.default_rng(1).permutation(30)
    np.savez(tmp_path / "demo.npz", **{name: array[order] for name, array in given.items()})
    opened = Opened(stack, frames=frames, prefill=str(tmp_path / "demo.npz"), n_step=3)
    opened.collect(1)
    together = {name: array[order] for name, array in given.items()} | {"truncated": np.ones(30, bool)}
    by_chance = sum((given["observations"][order[1:]] == given["next_observations"][order[:-1]]).reshape(29, -1).all(1))
    mine = [one for one in held(opened.replay) if one[0] == 9]
    assert len(mine) == 30
    assert len(set(mine) & set(expected(together))) >= 30 - 3 * by_chance


def test_n_step_returns_go_along_an_episode_and_stop_at_its_end(stack, tmp_path):
    given = played(other_counting(), 60)
    np.savez(tmp_path / "demo.npz", **given)
    opened = Opened(stack, num_envs=1, prefill=str(tmp_path / "demo.npz"), n_step=3)
    opened.collect(1)
    assert [one for one in held(opened.replay) if one[0] == 9] == expected(given, n_step=3)


def test_an_episode_that_is_cut_between_columns_has_shorter_returns_and_right_bootstraps(stack, tmp_path):
    given = played(Counting(9, 1000, 1000), 60)
    np.savez(tmp_path / "demo.npz", **given)
    opened = Opened(stack, prefill=str(tmp_path / "demo.npz"), n_step=4)
    opened.collect(1)
    mine = {one for one in held(opened.replay) if one[0] == 9}
    assert len(mine) == 60
    assert len(mine & set(expected(given, 4))) >= 60 - 2 * 3
    assert mine <= {one for n in range(1, 5) for one in expected(given, n)}


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize(("num_envs", "length", "size"), [(1, 2, 400), (3, 4, 400), (3, 4, 60), (3, 2, 40)])
def test_what_is_added_between_rollouts_harms_neither_them_nor_itself(stack, num_envs, length, size, frames):
    opened = Opened(stack, num_envs, length, frames, size=size)
    plain = Opened(stack, num_envs, length, frames)
    given = played(stacked(frames), 12)
    for number in range(6):
        opened.collect(3)
        plain.collect(3)
        if number in (1, 3, 4):
            opened.user.add(**given)
            if number == 3:
                opened.user.add(**{name: array[-1] for name, array in given.items()})
    mine = [one for one in held(opened.replay) if one[0] == 9]
    theirs = [one for one in held(opened.replay) if one[0] != 9]
    assert set(mine) <= set(expected(given))
    assert set(theirs) <= set(held(plain.replay))
    if size == 400:
        assert len(mine) == 37
        assert theirs == held(plain.replay)  # none is lost, also where an addition came between two steps


def test_added_transitions_have_the_largest_priority_and_their_successors_none(stack):
    opened = Opened(stack, prioritized=True)
    opened.collect(2)
    opened.user.add(**played(other_counting(), 20))
    opened.collect(1)
    weights = weights_by_row(opened.replay)
    indices = every_index(opened.replay)
    sampleable = np.zeros_like(weights, bool)
    sampleable[indices.rows, indices.envs] = True
    np.testing.assert_array_equal(weights, np.where(sampleable, opened.replay.arrays.largest, 0))
    assert places(opened.replay.sample_indices(key(0), (2000,))) == places(indices)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_resumed_replay_goes_on_exactly_after_an_addition(stack, frames):
    opened = Opened(stack, frames=frames)
    opened.collect(3)
    opened.user.add(**played(stacked(frames), 10))
    taken = opened.source.snapshot()
    snapshot = Snapshot(
        {name: array.copy() for name, array in taken.arrays.items()}, json.loads(json.dumps(taken.values))
    )
    # The file is not read again: it need not exist any more.
    resumed = Opened(stack, frames=frames, snapshot=snapshot, prefill="gone.npz")
    resumed.rollouts = 3
    for one in (opened, resumed):
        one.collect(2)
    jax.tree.map(np.testing.assert_array_equal, resumed.replay.arrays, opened.replay.arrays)
    assert held(resumed.replay) == held(opened.replay)


def test_where_an_environment_could_not_be_restored_its_frames_begin_anew(stack):
    opened = Opened(stack, frames=3)
    opened.collect(3)
    opened.user.add(**played(stacked(3), 10))
    snapshot = opened.source.snapshot()
    restored = Opened(stack, frames=3).replay
    restored.restore(snapshot, np.array([True, False, False]))
    assert restored.arrays.follows.tolist() == [False, True, True]


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("size", [400, 60])
def test_a_saved_replay_prefills_another_with_the_same_transitions(stack, tmp_path, frames, size):
    opened = Opened(stack, frames=frames, size=size)
    opened.collect(12)
    opened.user.save(tmp_path / "saved.npz")
    other = Opened(stack, frames=frames, prefill=str(tmp_path / "saved.npz"))
    assert len(other.user) == len(held(opened.replay))
    other.collect(1)
    assert set(held(opened.replay)) <= set(held(other.replay))
    assert list(tmp_path.iterdir()) == [tmp_path / "saved.npz"]


def test_a_name_without_npz_gets_it_as_from_numpy(stack, tmp_path):
    opened = Opened(stack)
    opened.collect(12)
    assert opened.user.save(tmp_path / "steps") == tmp_path / "steps.npz"
    assert opened.user.save(str(tmp_path / "steps.v2")) == tmp_path / "steps.v2.npz"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps.npz", "steps.v2.npz"]


def test_dict_observations_and_masks_are_saved_and_read_by_name(stack, tmp_path):
    opened = Opened(stack, kind=DictCounting)
    opened.collect(5)
    opened.user.save(tmp_path / "saved.npz")
    with np.load(tmp_path / "saved.npz") as saved:
        assert sorted(saved.files) == sorted(
            [
                f"{when}/{part}"
                for when in ("observations", "next_observations")
                for part in ("count/steps", "count/total", "pair/0", "pair/1")
            ]
            + ["actions", "rewards", "terminated", "truncated", "action_masks", "next_action_masks"]
        )
        steps, masks = saved["next_observations/count/steps"], saved["next_action_masks"]
        assert saved["observations/pair/0"].dtype == np.uint8
        ended = saved["terminated"]
        np.testing.assert_array_equal(masks[~ended], np.arange(3) != steps[~ended, None] % 3)
    other = Opened(stack, kind=DictCounting, prefill=str(tmp_path / "saved.npz"))
    other.collect(1)
    indices = every_index(other.replay)
    found = gathered(other.replay, indices)
    goes_on = found.discounts > 0
    np.testing.assert_array_equal(
        found.next_action_masks[goes_on], np.arange(3) != found.next_observations["count/steps"][goes_on, None] % 3
    )
    assert set(held(opened.replay)) <= set(held(other.replay))


def test_nested_observations_with_their_mask_can_be_added_as_the_environment_gives_them(stack):
    opened = Opened(stack, kind=DictCounting)
    opened.collect(1)
    env = DictCounting(0, 100, 4)
    first, _ = env.reset()
    following, reward, terminated, truncated, _ = env.step(1)
    before = len(opened.user)
    opened.user.add(first, 1, reward, following, terminated, truncated)
    assert len(opened.user) == before + 1
    row, column = np.argwhere(opened.replay.arrays.columns.valid)[-1]
    assert opened.replay.arrays.columns.action_masks[row, column].tolist() == [False, True, True]
    assert opened.replay.arrays.columns.action_masks[row + 1, column].tolist() == [True, False, True]


def test_without_masks_every_action_is_allowed(stack, tmp_path):
    np.savez(tmp_path / "demo.npz", **played(other_counting(), 10))
    opened = Opened(stack, kind=MaskedCounting, prefill=str(tmp_path / "demo.npz"))
    assert opened.replay.arrays.columns.action_masks[:4].all()


def test_rewards_are_clipped_where_the_algorithm_clips_them(stack, tmp_path):
    np.savez(tmp_path / "demo.npz", **played(other_counting(), 10))
    opened = Opened(stack, prefill=str(tmp_path / "demo.npz"), clip_rewards=True)
    assert set(np.unique(opened.replay.arrays.columns.rewards)) == {0.0, 1.0}


def test_of_too_many_transitions_the_newest_are_kept_and_it_is_said(stack, tmp_path):
    given = played(Counting(9, 10_000, 10_000), 200)
    np.savez(tmp_path / "demo.npz", **given)
    with pytest.warns(UserWarning, match=r"demo\.npz: of 200 transitions the newest (\d+) fit") as warned:
        opened = Opened(stack, size=60, prefill=str(tmp_path / "demo.npz"))
    kept = int(re.search(r"newest (\d+) fit", str(warned[0].message))[1])
    assert 60 <= kept == len(opened.user) < 100
    steps = opened.replay.arrays.columns.observations[opened.replay.arrays.columns.valid][:, 1]
    assert sorted(steps.tolist()) == list(range(200 - kept, 200))


def test_as_many_transitions_as_replay_size_fit_if_they_are_one_episode(stack, tmp_path):
    np.savez(tmp_path / "demo.npz", **played(Counting(9, 10_000, 10_000), 60))
    assert len(Opened(stack, size=60, prefill=str(tmp_path / "demo.npz")).user) == 60
    np.savez(tmp_path / "demo.npz", **played(stacked(3, lambda: Counting(9, 10_000, 10_000)), 60))
    assert len(Opened(stack, size=60, frames=3, prefill=str(tmp_path / "demo.npz")).user) == 60


def wrong(name: str, place: Any, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        array = given[name].astype(np.float64) if isinstance(value, float) else given[name].copy()
        array[place] = value
        return given | {name: array}

    return change


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {key: array for key, array in given.items() if key != name}


def with_array(name: str, make: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: given | {name: make(given)}


PROBLEMS = {
    "rewards[3] is nan; it must be a finite float32": wrong("rewards", 3, np.nan),
    "next_observations[4, 1] is inf; it must be a finite float32": wrong("next_observations", (4, 1), np.inf),
    "observations[2, 0] is 1e+300; it must be a finite float32": wrong("observations", (2, 0), 1e300),
    "actions[7] is 3; Discrete(3) needs 0 to 2": wrong("actions", 7, 3),
    "actions[0] is -1; Discrete(3) needs 0 to 2": wrong("actions", 0, -1),
    "terminated[5] is 0.5; use True or False": wrong("terminated", 5, 0.5),
    "actions is float64; action space Discrete(3) needs whole numbers": with_array(
        "actions", lambda given: given["actions"] * 1.0
    ),
    "rewards has shape (10, 1); a number for each transition needs (10,)": with_array(
        "rewards", lambda given: given["rewards"][:, None]
    ),
    "observations has shape (9, 3); observation space Box(0.0, inf, (3,), float32) needs (10, 3)": with_array(
        "observations", lambda given: given["observations"][1:]
    ),
    "has no array 'terminated'; it needs observations, next_observations, actions, rewards": without("terminated"),
    "has an array 'dones'; use observations, next_observations, actions": with_array(
        "dones", lambda given: given["terminated"]
    ),
    "has an array 'action_masks'; this environment gives no action masks": with_array(
        "action_masks", lambda given: np.ones((10, 3), bool)
    ),
    "rewards is object; a number for each transition needs numbers": with_array(
        "rewards", lambda given: np.array([None] * 10)
    ),
    "holds no transitions": lambda given: {name: array[:0] for name, array in given.items()},
}


@pytest.mark.parametrize(("message", "change"), PROBLEMS.items(), ids=PROBLEMS)
def test_a_file_that_does_not_fit_is_refused_with_the_array_and_the_row(stack, tmp_path, message, change):
    path = tmp_path / "demo.npz"
    np.savez(path, **change(played(other_counting(), 10)))
    with pytest.raises(ConfigError, match=f"^prefill {re.escape(str(path))}:? {re.escape(message)}"):
        Opened(stack, prefill=str(path))


def test_stacks_that_are_none_and_masks_that_allow_nothing_are_refused(stack, tmp_path):
    path = tmp_path / "demo.npz"
    given = played(stacked(3), 10)
    given["next_observations"][6] = 0
    np.savez(path, **given)
    with pytest.raises(ConfigError, match=r"next_observations\[6\] is not its observation with one frame more"):
        Opened(stack, frames=3, prefill=str(path))
    masks = {"action_masks": np.ones((10, 3), bool), "next_action_masks": np.ones((10, 3), bool)}
    masks["action_masks"][2] = False
    np.savez(path, **played(other_counting(), 10), **masks)
    with pytest.raises(ConfigError, match=r"action_masks\[2\] allows no action"):
        Opened(stack, kind=MaskedCounting, prefill=str(path))
    np.savez(path, **played(other_counting(), 10), action_masks=masks["next_action_masks"])
    with pytest.raises(ConfigError, match="has no array 'next_action_masks'"):
        Opened(stack, kind=MaskedCounting, prefill=str(path))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 and then nothing"])
def test_a_damaged_file_is_refused(stack, tmp_path, content):
    path = tmp_path / "demo.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"demo\.npz cannot be read: .*; numpy\.savez writes such files"):
        Opened(stack, prefill=str(path))
    np.savez_compressed(path, **played(other_counting(), 10))
    whole = bytearray(path.read_bytes())
    whole[300:340] = bytes(40)
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match=r"demo\.npz"):
        Opened(stack, prefill=str(path))
    with pytest.raises(ConfigError, match=r"gone\.npz: there is no such file"):
        Opened(stack, prefill=str(tmp_path / "gone.npz"))


def test_a_file_that_needs_more_memory_than_is_free_is_refused_before_it_is_read(stack, tmp_path, monkeypatch):
    path = tmp_path / "demo.npz"
    np.savez(path, **played(other_counting(), 10))
    monkeypatch.setattr(user_replay, "free_memory", lambda: 900)
    with pytest.raises(ConfigError, match=r"needs 0\.0 GB to be read and 0\.0 GB are free; use fewer transitions"):
        Opened(stack, prefill=str(path))


def test_a_wrong_addition_changes_nothing(stack):
    opened = Opened(stack)
    opened.collect(2)
    given = played(other_counting(), 10)
    with pytest.raises(ConfigError, match=r"^replay\.add: actions\[1\] is 7; Discrete\(3\) needs 0 to 2"):
        opened.user.add(**wrong("actions", 1, 7)(given))
    assert rows_written(opened.replay) == 8


class Plane(gym.Env):
    """Actions of two axes and uint8 beside them in the observation."""

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "speed": spaces.Box(-1, 1, (2,), np.float64)}
    )
    action_space = spaces.Box(-2, 2, (2, 1), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> Any:
        return self._observe(), float(action.sum()), False, bool(self.np_random.random() < 0.1), {}

    def _observe(self) -> Any:
        return {
            "camera": self.np_random.integers(0, 256, (8, 8, 1), np.uint8),
            "speed": self.np_random.uniform(-1, 1, 2),
        }


gym.register("tests/Plane-v0", entry_point=Plane)


@pytest.mark.parametrize("algorithm", [ddpg, td3, sac], ids=["ddpg", "td3", "sac"])
def test_continuous_actions_and_images_in_a_dict_are_saved_prefilled_and_added(tmp_path, algorithm):
    path = tmp_path / "demo.npz"
    config = algorithm.Config(
        env=EnvConfig("tests/Plane-v0", num_envs=2), run=RunConfig(total_steps=48), learning_starts=0, batch_size=8,
        replay_size=200, hidden_sizes=(8,), update_ratio=0.125, rollout_length=4,
    )  # fmt: skip
    updates = algorithm.train(config)
    for _ in range(3):
        update = next(updates)
    update.replay.save(path)
    with np.load(path) as saved:
        given = dict(saved)
    assert given["actions"].shape[1:] == (2, 1)
    assert given["observations/camera"].dtype == np.uint8
    (first, *_) = algorithm.train(replace(config, prefill=str(path)))
    assert len(first.replay) > len(given["rewards"])
    assert np.isfinite(first.metrics["loss/value"])
    speeds = {"camera": given["observations/camera"], "speed": given["observations/speed"]}
    following = {"camera": given["next_observations/camera"], "speed": given["next_observations/speed"]}
    before = len(update.replay)
    update.replay.add(speeds, given["actions"], given["rewards"], following, given["terminated"])
    assert len(update.replay) == before + len(given["rewards"])
    with pytest.raises(ConfigError, match=r"replay\.add: actions\[0, 1, 0\] is 2\.5; Box\(.*\) needs -2\.0 to 2\.0"):
        update.replay.add(
            speeds, given["actions"] * 0 + np.array([[1], [2.5]]), given["rewards"], following, given["terminated"]
        )
    next(updates)


@pytest.mark.parametrize("prioritized", [False, True])
def test_what_is_added_between_updates_is_learned_from_in_the_next_and_saved_and_prefilled(tmp_path, prioritized):
    config = dqn.Config(
        env=EnvConfig("CartPole-v1", num_envs=1), run=RunConfig(total_steps=60), learning_starts=0, batch_size=32,
        replay_size=200, hidden_sizes=(4,), update_ratio=0.25, rollout_length=4, prioritized=prioritized,
    )  # fmt: skip
    updates = dqn.train(config)
    for _ in range(6):
        update = next(updates)
    assert abs(update.metrics["value/mean"]) < 10
    seen = np.zeros((40, 4), np.float32)
    before = len(update.replay)
    update.replay.add(seen, np.zeros(40, int), np.full(40, 1000.0), seen, np.ones(40, bool))
    assert len(update.replay) == before + 40
    update = next(updates)
    assert update.metrics["value/mean"] > 300  # of targets, of which about 2 in 3 are 1000
    assert before + 40 < len(update.replay) <= before + 44
    with np.load(update.replay.save(tmp_path / "saved.npz")) as saved:
        assert np.count_nonzero(saved["rewards"] == 1000) == 40
    assert np.isfinite(list(updates)[-1].metrics["loss/value"])
    *_, last = dqn.train(replace(config, prefill=str(tmp_path / "saved.npz"), run=RunConfig(total_steps=12)))
    assert last.metrics["value/mean"] > 300


def test_a_replay_of_sequences_refuses_transitions_and_names_who_takes_them():
    config = acer.Config(env=EnvConfig("CartPole-v1", num_envs=2), run=RunConfig(total_steps=100), hidden_sizes=(8,))
    update = next(acer.train(config))
    with pytest.raises(ConfigError, match="sequences with the probabilities of their actions; use dqn, ddpg, td3, sac"):
        update.replay.add(np.zeros((1, 4)), [0], [0.0], np.zeros((1, 4)), [False])
    recurrent = dqn.Config(env=EnvConfig("CartPole-v1"), core="lstm", prefill="demo.npz", replay_size=1000)
    with pytest.raises(ConfigError, match="memory of a recurrent network; use core feedforward"):
        next(dqn.train(recurrent))


@pytest.mark.parametrize("name", ["demo.csv", "minari:", ""])
def test_a_prefill_that_is_no_file_of_transitions_is_refused_at_once(name):
    with pytest.raises(ConfigError, match=r"must name an \.npz file, or a Minari dataset as minari:DATASET-ID"):
        dqn.validate(dqn.Config(prefill=name))


def test_only_algorithms_with_a_replay_of_steps_have_the_setting(tmp_path: Path):
    from birl.registry import algorithms_with_prefill

    assert set(algorithms_with_prefill()) == {"dqn", "ddpg", "td3", "sac", "qr-dqn", "c51"}


def test_a_packed_header_of_many_megabytes_is_not_read(tmp_path):
    path = tmp_path / "demo.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        length = 1 << 25
        archive.writestr("rewards.npy", b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little") + b" " * length)
    assert path.stat().st_size < 50_000
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="demo cannot be read: EOF: reading array header"):
            read_transitions(path, "demo", lambda headers: None)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_of_two_arrays_of_one_name_neither_is_read(tmp_path):
    """NumPy reads `rewards`, whatever `rewards.npy` says of its size."""
    path = tmp_path / "demo.npz"
    np.savez(path, rewards=np.zeros(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("rewards", archive.read("rewards.npy"))
    with pytest.raises(ConfigError, match="it has two arrays 'rewards'"):
        read_transitions(path, "demo", lambda headers: None)
