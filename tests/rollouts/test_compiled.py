"""Rollouts of compiled environments, and training in chunks."""

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.algos import a2c, dpg, ppo, qac, reinforce, trpo
from birl.config import ConfigError, EnvConfig, RunConfig, name_of_function
from birl.envs.compiled.copies import CompiledCopies
from birl.envs.outputs import layout_of
from birl.errors import NonFiniteError
from birl.rollouts.chunks import Pace, chunk_program, collector_of
from birl.rollouts.compiled import CompiledCollector, ring_metrics
from birl.rollouts.episode_stats import EpisodeStats
from birl.settings import places_of
from birl.types import Action, Rollout, Update

ON_POLICY = {"reinforce": reinforce, "qac": qac, "a2c": a2c, "ppo": ppo, "trpo": trpo}


@dataclass(frozen=True)
class Count:
    """Counts its steps from a random tenth; ends after 3 to 6 steps, with the number as reward."""

    bad_after: int = 1_000_000  # steps of an episode after which the reward is NaN

    observation_space: ClassVar[gym.Space] = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space: ClassVar[gym.Space] = gym.spaces.Discrete(3, start=1)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = {"last": jax.random.randint(key, (), 3, 7), "number": jnp.int32(0)}
        return state, self._observation(state)

    def step(self, state: Any, action: Any, key: jax.Array) -> tuple[Any, ...]:
        state = {"last": state["last"], "number": state["number"] + 1}
        reward = jnp.where(state["number"] > self.bad_after, jnp.nan, state["number"] + 10 * (action - 1))
        over = state["number"] == state["last"]
        return state, self._observation(state), reward, over & (state["last"] < 5), over & (state["last"] >= 5)

    def action_mask(self, state: Any) -> Any:
        return jnp.array([True, True, False])

    def _observation(self, state: Any) -> Any:
        return jnp.stack([state["number"], state["last"]]).astype(jnp.float32)


def act(policy: Any, observations: Any, memory: Any, resets: Any, masks: Any, key: Any) -> Action:
    """Choice 0 or 1 at random; the memory counts the steps since the last reset."""
    memory = jnp.where(resets, 0, memory) + 1
    return Action(jax.random.randint(key, (len(observations),), 0, 2), memory)


def collected(rollouts: int, num_envs: int = 5, length: int = 16, steps_per_key: int = 1) -> tuple[list[Rollout], Any]:
    env = Count()
    copies = CompiledCopies(env, num_envs, None, layout_of(env.observation_space, env.action_space))
    collector = CompiledCollector(copies, act, length)
    position = collector.start(np.array([0, 1], np.uint32), np.zeros(num_envs, np.int32))
    collect = jax.jit(partial(collector.collect, steps_per_key=steps_per_key))
    found = []
    for number in range(rollouts):
        position, rollout = collect(position, None, np.array([7, number], np.uint32))
        found.append(jax.tree.map(np.asarray, rollout))
    return found, position


def test_a_row_leads_to_its_true_successor_and_a_reset_row_to_a_new_episode() -> None:
    rollouts, _ = collected(3)
    numbers = np.concatenate([rollout.observations[:-1, :, 0] for rollout in rollouts])
    following = np.concatenate([rollout.observations[1:, :, 0] for rollout in rollouts])
    valid = np.concatenate([rollout.valid for rollout in rollouts])
    ended = np.concatenate([rollout.terminated | rollout.truncated for rollout in rollouts])
    assert np.array_equal(following[valid], numbers[valid] + 1)
    assert np.all(following[~valid] == 0)
    assert np.array_equal(~valid[1:], ended[:-1])  # the step after an end, and no other, is a reset
    assert np.all(np.concatenate([rollout.rewards for rollout in rollouts])[~valid] == 0)
    assert (~valid).sum() > 10


def test_an_episode_is_terminated_or_truncated_as_the_environment_says() -> None:
    (rollout,), _ = collected(1, length=40)
    last = rollout.observations[1:, :, 1]
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    assert np.all(last[rollout.terminated] < 5)
    assert np.all(last[rollout.truncated] >= 5)


def test_rollouts_follow_each_other_without_a_gap() -> None:
    rollouts, _ = collected(2)
    first, second = rollouts
    assert np.array_equal(first.observations[-1], second.observations[0])
    assert np.array_equal(second.resets, ~first.valid[-1])
    assert first.resets is not None
    assert first.resets.all()


def test_memory_starts_anew_with_each_episode() -> None:
    rollouts, _ = collected(2)
    before = rollouts[1].observations[0, :, 0]  # a step that was taken in this episode, or the last one's end
    assert np.array_equal(np.where(rollouts[1].resets, rollouts[1].memory, before), rollouts[1].memory)


def test_actions_count_from_0_in_a_rollout_and_from_the_start_in_the_environment() -> None:
    (rollout,), _ = collected(1)
    number = rollout.observations[1:, :, 0]
    assert np.array_equal((rollout.rewards - number)[rollout.valid], 10 * rollout.actions[rollout.valid])
    assert set(np.unique(rollout.actions)) == {0, 1}


def test_masks_are_those_of_the_environment_and_allow_all_after_a_termination() -> None:
    (rollout,), _ = collected(1, length=40)
    assert rollout.action_masks is not None
    after = rollout.action_masks[1:]
    assert after[rollout.terminated].all()
    assert not after[~rollout.terminated][:, 2].any()


def test_one_key_serves_several_steps_if_that_is_asked_for() -> None:
    (rollout,), _ = collected(1, length=12, steps_per_key=4)
    grouped = rollout.actions.reshape(3, 4, -1)
    assert np.all(grouped == grouped[:, :1])
    (each,), _ = collected(1, length=12)
    assert not np.all(each.actions.reshape(3, 4, -1) == each.actions.reshape(3, 4, -1)[:, :1])


@pytest.mark.parametrize(("rollouts", "num_envs"), [(1, 2), (4, 5), (3, 40)])
def test_episode_statistics_are_those_that_the_host_counts(rollouts: int, num_envs: int) -> None:
    found, position = collected(rollouts, num_envs)
    stats = EpisodeStats(num_envs)
    for rollout in found:
        stats.count(rollout)
    expected = {name: value for name, value in stats.metrics().items() if name in ring_metrics(position.episodes)}
    assert ring_metrics(position.episodes) == pytest.approx(expected)
    assert np.allclose(position.episodes.returns, stats.returns)


def small(module: Any, **changes: Any) -> Any:
    names = {"env", *places_of(module.Config)}
    settings: dict[str, Any] = {
        "rollout_length": 12, "hidden_sizes": (8,), "minibatches": 2, "epochs": 2, "num_features": 8,
    } | changes  # fmt: skip
    run = {"total_steps": 400} | settings.pop("run", {})
    env = EnvConfig("CartPole-v1", num_envs=4, max_episode_steps=9, backend="compiled")
    own = {name: value for name, value in settings.items() if name in names}
    return module.Config(**({"env": env} | own), run=RunConfig(**run))


def updates(module: Any, config: Any, **options: Any) -> list[Update]:
    with closing(module.train(config, **options)) as training:
        return list(training)


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize("name", ON_POLICY)
def test_each_on_policy_algorithm_trains_and_counts_its_steps(name: str) -> None:
    found = updates(ON_POLICY[name], small(ON_POLICY[name]))
    steps = [int(update.state.env_steps) for update in found]
    assert steps[-2] < 400 <= steps[-1]
    assert all(0 < after - before <= 48 for before, after in zip([0, *steps], steps, strict=False))
    assert found[-1].metrics["episode/length"] <= 9
    assert np.isfinite(found[-1].metrics["optimizer/grad_norm"])


def test_dpg_trains_on_the_compiled_pendulum() -> None:
    env = EnvConfig("Pendulum-v1", num_envs=2, max_episode_steps=9, backend="compiled")
    found = updates(dpg, small(dpg, env=env))
    assert int(found[-1].state.env_steps) >= 400


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("core", ["feedforward", "lstm"])
def test_how_many_cycles_a_chunk_has_does_not_change_what_is_learned(name: str, core: str) -> None:
    module = ON_POLICY[name]
    one_by_one = updates(module, small(module, core=core, core_size=4))
    chunked = updates(module, small(module, core=core, core_size=4, run={"log_every": 10**6}))
    assert len(chunked) < len(one_by_one)
    assert same(one_by_one[-1].state, chunked[-1].state)


def test_a_chunk_ends_where_the_host_has_something_to_do() -> None:
    run = {"log_every": 10**6, "eval_every": 100, "checkpoint_every": 150, "total_steps": 600}
    steps = [int(update.state.env_steps) for update in updates(ppo, small(ppo, run=run))]
    every = [int(update.state.env_steps) for update in updates(ppo, small(ppo, run={"total_steps": 600}))]
    for due in (100, 150, 200, 300, 400, 450, 500, 600):
        assert next(step for step in every if step >= due) in steps


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_run_continued_from_a_snapshot_ends_in_the_same_state(name: str) -> None:
    module = ON_POLICY[name]
    config = small(module, core="lstm", core_size=4, normalize_observations=True, normalize_rewards=True)
    whole = updates(module, config)
    with closing(module.train(config)) as training:
        update = list(islice(training, 3))[-1]
        saved = update.snapshot()
    assert saved.exact
    rest = updates(module, config, state=update.state, snapshot=saved)
    assert same(whole[-1].state, rest[-1].state)
    times = {"time/program_seconds"}
    assert {k: v for k, v in whole[-1].metrics.items() if k not in times} == {
        k: v for k, v in rest[-1].metrics.items() if k not in times
    }


def test_a_snapshot_has_the_ranges_of_the_observations_between_chunks() -> None:
    config = small(a2c)
    with closing(a2c.train(config)) as training:
        seen = list(islice(training, 4))
        saved = seen[-1].snapshot()
    largest = max(update.metrics["observation/largest"] for update in seen)
    assert np.abs(saved.arrays["ranges/observations/0"]).max() == pytest.approx(largest)
    with closing(a2c.train(config, state=seen[-1].state, snapshot=saved)) as training:
        later = next(iter(training)).snapshot().arrays["ranges/observations/0"]
    assert (later[0] <= saved.arrays["ranges/observations/0"][0]).all()
    assert (later[1] >= saved.arrays["ranges/observations/0"][1]).all()


def test_two_seeds_differ_and_one_seed_does_not() -> None:
    runs = [updates(ppo, small(ppo, run={"seed": seed}))[-1].state for seed in (1, 1, 2)]
    assert same(runs[0], runs[1])
    assert not same(runs[0].network, runs[2].network)


def test_a_reward_that_is_no_number_stops_the_run_and_is_named() -> None:
    def broken() -> Count:
        return Count(bad_after=4)

    env = EnvConfig(name_of_function(broken), num_envs=4, backend="compiled")
    with pytest.raises(NonFiniteError, match=r"reward of environment \d is nan at step \d+ of the rollout"):
        updates(ppo, small(ppo, env=env, run={"log_every": 10**6}))


def test_an_attribute_cannot_be_set_in_a_program() -> None:
    with closing(ppo.train(small(ppo))) as training:
        update = next(training)
        assert update.set_env_attribute is not None
        with pytest.raises(ConfigError, match="attribute 'gravity' cannot be set"):
            update.set_env_attribute("gravity", 1.0)


def test_ppo_learns_cartpole_in_one_program() -> None:
    env = EnvConfig("CartPole-v1", num_envs=8, backend="compiled")
    config = ppo.Config(
        env=env, run=RunConfig(total_steps=60_000), rollout_length=32, epochs=20, minibatches=1,
        gae_lambda=0.8, discount=0.98, learning_rate=1e-3,
    )  # fmt: skip
    assert updates(ppo, config)[-1].metrics["episode/return"] > 400


def test_runs_with_other_seeds_and_float_settings_share_one_program() -> None:
    configs = [small(ppo, run={"seed": seed}, learning_rate=rate) for seed, rate in ((1, 1e-3), (2, 1e-3), (3, 3e-4))]
    updates(ppo, configs[0])
    program = chunk_program(ppo.cycle, collector_of(configs[0].env, ppo.act, 12), False)
    known = program._cache_size()
    for config in configs[1:]:
        updates(ppo, config)
    assert program._cache_size() == known
    updates(ppo, small(ppo, learning_rate=1e-3, epochs=3))
    assert program._cache_size() > known  # so another program would be noticed


def test_a_class_that_was_defined_anew_is_not_taken_for_the_old_one() -> None:
    def make(reward: float) -> Any:
        def Own() -> Count:  # noqa: N802
            return dataclasses.replace(Count(), bad_after=int(reward))

        return Own

    collectors = []
    for reward in (5, 6):
        env = EnvConfig(name_of_function(make(reward)), num_envs=2, backend="compiled")
        collectors.append(collector_of(env, ppo.act, 12))
    assert collectors[0].copies.env != collectors[1].copies.env


def test_a_chunk_gets_as_many_cycles_as_fit_into_its_seconds() -> None:
    pace = Pace(RunConfig(total_steps=10**9, checkpoint_every=0))
    found = []
    for _ in range(8):
        found.append(int(pace.next_chunk(0)[1]))
        pace.took(1e-3 * found[-1], found[-1])  # a cycle takes a millisecond
    assert found == [1, 1, 8, 64, 100, 100, 100, 100]


def test_the_cycles_of_a_chunk_are_found_anew_where_learning_starts() -> None:
    pace = Pace(RunConfig(total_steps=10**9, checkpoint_every=0), learning_starts=1000)
    assert int(pace.next_chunk(0)[0]) == 1000
    for _ in range(6):
        pace.took(1e-5 * int(pace.next_chunk(0)[1]), int(pace.next_chunk(0)[1]))
    assert int(pace.next_chunk(999)[1]) > 1000
    assert [int(number) for number in pace.next_chunk(1000)] == [500_000, 1], "the next row of the log"


def test_arguments_that_are_equal_but_not_the_same_make_two_environments() -> None:
    envs = [
        EnvConfig("CartPole-v1", num_envs=2, backend="compiled", kwargs={"sutton_barto_reward": value})
        for value in (True, 1)
    ]
    assert envs[0] == envs[1]
    assert collector_of(envs[0], ppo.act, 12) is not collector_of(envs[1], ppo.act, 12)
    assert collector_of(envs[0], ppo.act, 12) is collector_of(envs[0], ppo.act, 12)
