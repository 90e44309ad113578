"""Where rollouts come from: spaces, start, collect, report, snapshots, and who closes what."""

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from birl.algos import dqn, ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.serial import SerialEnvs
from birl.errors import NonFiniteError
from birl.parts import ReplayConfig
from birl.rollouts.episode_stats import EpisodeStats
from birl.rollouts.replay import Replay
from birl.rollouts.source import HostSource, open_rollouts
from birl.types import Action, Rollout, RolloutSource, Snapshot
from tests.envs.counting import Counting, counting_functions

SHAPES = [(100, 4), (5, 100), (3, 3)]  # (goal, limit) of each environment
CONFIG = ppo.Config(env=EnvConfig(num_envs=3), run=RunConfig(seed=5), rollout_length=6)
NO_POLICY = None


class Network(NamedTuple):
    """Weights, and a memory that counts."""

    weights: Any

    def initial_memory(self, num_envs: int) -> np.ndarray:
        return np.full((num_envs, 1), 7.0, np.float32)


class State(NamedTuple):
    network: Network
    env_steps: Any
    updates: Any


STATE = State(Network(np.arange(3.0)), np.int32(0), np.int32(0))


@jax.jit
def draw_and_count(policy, observations, memory, resets, masks, key):
    """Random actions from 0 to 2; the memory is larger by 1 after each step."""
    actions = jax.random.randint(key, resets.shape, 0, 3)
    return Action(actions, memory + 1.0, behaviour=actions.astype(jnp.float32))


class Closing(gym.Env):
    """Counts how many environments of this kind were closed."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)
    closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        Closing.closed += 1


gym.register("tests/Closing-v0", entry_point=Closing)


class GivenRollout:
    """A collector that always returns the same rollout."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.episode_stats = EpisodeStats(rollout.rewards.shape[1])

    def start(self, seed: int, snapshot: Snapshot | None = None) -> None: ...

    def collect(self, policy: Any, key: Any, steps_per_key: int = 1) -> Rollout:
        return self.rollout

    def snapshot(self) -> Snapshot:
        return Snapshot()


def key(number: int) -> np.ndarray:
    return np.array([0, number], np.uint32)


def counting() -> SerialEnvs:
    return SerialEnvs(counting_functions(SHAPES))


def open_counting(stack: ExitStack, config: Any = CONFIG, clip_rewards: bool = False) -> RolloutSource:
    config = replace(config, clip_rewards=clip_rewards)
    return stack.enter_context(open_rollouts(config, draw_and_count, counting()))


def with_replay(source: RolloutSource) -> Replay:
    """The source's own replay, new."""
    source.add_replay(ReplayConfig(replay_size=100))
    return source.replay


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def test_the_spaces_and_the_number_of_environments_are_known_before_the_start(stack):
    source = open_counting(stack)
    assert source.spaces == (spaces.Box(0, np.inf, (3,), np.float32), Counting.action_space)
    assert source.num_envs == 3


def test_start_returns_the_state_and_gives_the_networks_memory_to_the_first_rollout(stack):
    source = open_counting(stack)
    started = source.start(STATE)
    assert type(started) is State
    jax.tree.map(np.testing.assert_array_equal, started, STATE)
    assert source.collect(NO_POLICY, key(0)).memory.tolist() == [[7.0]] * 3
    assert source.collect(NO_POLICY, key(1)).memory.tolist() == [[13.0]] * 3  # 6 steps later


def test_start_takes_another_first_memory_and_a_template_of_distributions(stack):
    source = open_counting(stack)
    source.start(STATE, memory=np.zeros((3, 1), np.float32), behaviour=np.zeros(3, np.float32))
    rollout = source.collect(NO_POLICY, key(0))
    assert rollout.memory.tolist() == [[0.0]] * 3
    np.testing.assert_array_equal(rollout.behaviour, rollout.actions)
    source.start(STATE)
    assert source.collect(NO_POLICY, key(0)).behaviour is None


def test_the_environments_are_reset_with_the_runs_seed(stack):
    config = ppo.Config(env=EnvConfig("CartPole-v1", num_envs=2), run=RunConfig(seed=5), rollout_length=3)
    sources = [stack.enter_context(open_rollouts(config, draw_and_count)) for _ in range(2)]
    first, again = (source.start(STATE) and source.collector.observations for source in sources)
    np.testing.assert_array_equal(first, again)
    with open_rollouts(ppo.Config(env=config.env, run=RunConfig(seed=6), rollout_length=3), draw_and_count) as other:
        other.start(STATE)
        assert (other.collector.observations != first).any()


@pytest.mark.parametrize("clip_rewards", [False, True])
def test_rewards_are_clipped_if_asked_for_and_returns_are_reported_as_they_are(stack, clip_rewards):
    source = open_counting(stack, clip_rewards=clip_rewards)
    source.start(STATE)
    rollout = source.collect(NO_POLICY, key(0))
    steps = rollout.observations[1:, :, 1]
    rewards = np.where(rollout.valid, 10 * steps + rollout.actions, 0)
    np.testing.assert_array_equal(rollout.rewards, np.sign(rewards) if clip_rewards else rewards)
    assert rewards.max() > 1
    metrics = source.report(STATE, {}).metrics
    assert metrics["episode/return"] > 50  # at least 10 + 20 + 30 in an episode of 3 steps


@pytest.mark.parametrize("clip_rewards", [False, True])
def test_what_serves_only_to_count_games_is_dropped_before_learning(clip_rewards):
    flags = np.zeros((2, 1), bool)
    rewards = np.array([[-3.0], [0.5]], np.float32)
    said = np.zeros((2, 1), np.int8)
    rollout = Rollout(np.zeros((3, 1, 1)), flags, rewards, flags, flags, ~flags, (), game_over=~flags, successes=said)
    config = replace(CONFIG, clip_rewards=clip_rewards)
    source = HostSource(config, 1, (None, None), lambda length, memory: GivenRollout(rollout))
    source.start(STATE)
    learned_from = source.collect(NO_POLICY, key(0))
    assert learned_from.game_over is None
    assert learned_from.successes is None
    assert learned_from.rewards.tolist() == ([[-1.0], [1.0]] if clip_rewards else rewards.tolist())
    assert learned_from.valid is rollout.valid


def test_a_report_adds_the_statistics_of_episodes_and_the_times(stack):
    source = open_counting(stack)
    source.start(STATE)
    rollout = source.collect(NO_POLICY, key(0))
    time.sleep(0.05)  # learning
    state = STATE._replace(updates=np.int32(1))
    update = source.report(state, {"loss/value": jnp.float32(0.5), "optimizer/grad_norm": np.float32(2)})
    assert update.state is state
    assert update.metrics["loss/value"] == 0.5
    assert type(update.metrics["loss/value"]) is float
    assert update.metrics["episode/count"] == (rollout.terminated | rollout.truncated).sum() > 0
    assert set(update.metrics) == {
        "loss/value",
        "optimizer/grad_norm",
        "episode/return",
        "episode/length",
        "episode/count",
        "episode/truncated_share",
        "reward/min",
        "reward/max",
        "observation/largest",
        "observation/widest",
        "observation/constant_share",
        "time/environment_seconds",
        "time/policy_seconds",
        "time/learning_seconds",
    }
    assert update.metrics["time/environment_seconds"] > 0
    assert update.metrics["time/policy_seconds"] > 0
    first = update.metrics["time/learning_seconds"]
    assert first >= 0.05
    source.collect(NO_POLICY, key(1))
    time.sleep(0.05)
    assert source.report(STATE, {}).metrics["time/learning_seconds"] >= first + 0.05


@pytest.mark.parametrize("norm", [np.nan, np.inf])
def test_a_report_with_a_gradient_norm_that_is_not_finite_is_refused(stack, norm):
    source = open_counting(stack)
    source.start(STATE)
    source.collect(NO_POLICY, key(0))
    with pytest.raises(NonFiniteError, match=rf"the gradient's norm is {norm}; .* Lower learning_rate"):
        source.report(STATE, {"optimizer/actor_grad_norm": jnp.float32(norm)})


def test_a_report_tells_the_size_of_the_replay_once_there_is_one(stack):
    source = open_counting(stack)
    source.start(STATE)
    assert source.replay is None
    replay = with_replay(source)
    replay.add(source.collect(NO_POLICY, key(0)))
    metrics = source.report(STATE, {}).metrics
    assert metrics["replay/steps"] == 18  # 6 steps of 3 environments
    assert metrics["replay/bytes"] == replay.bytes > 0


def test_a_source_started_from_a_snapshot_goes_on_exactly_with_its_replay(stack):
    source = open_counting(stack)
    source.start(STATE)
    replay = with_replay(source)
    for number in range(3):
        replay.add(source.collect(NO_POLICY, key(number)))
    snapshot = source.report(STATE, {}).snapshot()
    assert snapshot.exact
    arrays = {name: array.copy() for name, array in snapshot.arrays.items()}
    resumed = open_counting(stack)
    resumed.start(STATE, Snapshot(arrays, snapshot.values))
    restored = with_replay(resumed)
    assert len(restored) == len(replay) == 54
    jax.tree.map(np.testing.assert_array_equal, restored.arrays, replay.arrays)
    assert resumed.report(STATE, {}).metrics["episode/count"] == source.report(STATE, {}).metrics["episode/count"] > 0
    ahead = source.collect(NO_POLICY, key(3))
    again = resumed.collect(NO_POLICY, key(3))
    jax.tree.map(np.testing.assert_array_equal, again, ahead)


def test_a_snapshot_without_a_replay_has_no_part_for_it(stack):
    source = open_counting(stack)
    source.start(STATE)
    assert "replay" not in source.snapshot().values
    assert not source.snapshot().arrays_under("replay/")


def test_where_an_environment_could_not_be_restored_the_last_step_in_the_replay_is_left_out(stack):
    source = open_counting(stack)
    source.start(STATE)
    replay = with_replay(source)
    replay.add(source.collect(NO_POLICY, key(0)))
    snapshot = source.snapshot()
    resumed = open_counting(stack)
    resumed.start(STATE, snapshot)
    before = np.asarray(replay.arrays.columns.valid[5])
    resumed.collector.fresh = np.array([True, False, False])
    after = with_replay(resumed).arrays.columns.valid[5]
    assert before[0]
    assert after.tolist() == [False, *before[1:]]


def test_environments_of_its_own_are_closed_at_the_end_and_after_an_error(monkeypatch):
    monkeypatch.setattr(Closing, "closed", 0)
    config = ppo.Config(env=EnvConfig("tests/Closing-v0", num_envs=2), rollout_length=2)
    with open_rollouts(config, draw_and_count) as source:
        source.start(STATE)
        source.collect(NO_POLICY, key(0))
        assert Closing.closed == 0
    assert Closing.closed == 2
    with pytest.raises(RuntimeError, match="in the loop"), open_rollouts(config, draw_and_count):
        raise RuntimeError("in the loop")
    assert Closing.closed == 4


def test_environments_that_were_passed_in_are_left_open(monkeypatch):
    monkeypatch.setattr(Closing, "closed", 0)
    config = ppo.Config(env=EnvConfig(num_envs=2), rollout_length=2)
    mine = gym.vector.SyncVectorEnv([Closing, Closing])
    with open_rollouts(config, draw_and_count, mine) as source:
        source.start(STATE)
        source.collect(NO_POLICY, key(0))
    assert Closing.closed == 0
    mine.close()
    assert Closing.closed == 2


def test_ray_actors_are_refused_before_anything_is_made_by_algorithms_without_them(monkeypatch):
    monkeypatch.setattr(Closing, "closed", 0)
    env = EnvConfig("tests/Closing-v0", num_envs=2, ray_actors=2)
    with (
        pytest.raises(ConfigError, match=r"^env\.ray_actors 2: only .*ppo.* take rollouts from Ray actors; use 0$"),
        open_rollouts(dqn.Config(env=env), draw_and_count),
    ):
        pass
    assert Closing.closed == 0


def test_environments_that_were_passed_in_cannot_go_to_ray():
    config = ppo.Config(env=EnvConfig(num_envs=3, ray_actors=1))
    with (
        pytest.raises(ConfigError, match=r"cannot go to env\.ray_actors 1, .*; name them by env\.id"),
        open_rollouts(config, draw_and_count, counting()),
    ):
        pass
