"""DQN, DDPG, TD3 and SAC in compiled environments: the cycle with its replay is one program."""

import dataclasses
from contextlib import closing
from functools import cache
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest

from birl.algos import ddpg, dqn, sac, td3
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.rollouts import chunks
from birl.rollouts.chunks import chunk_program, collector_of
from birl.rollouts.learning import steps_per_update
from birl.types import Snapshot, Update

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "dqn": (dqn, {}),
    "dqn, prioritized": (dqn, {"prioritized": True, "n_step": 3}),
    "dqn, recurrent": (dqn, {"core": "lstm", "core_size": 4, "burn_in": 2}),
    "ddpg": (ddpg, {}),
    "ddpg, parameter noise": (ddpg, {"noise": "parameter", "layer_norm": True}),
    "td3": (td3, {"n_step": 2}),
    "sac": (sac, {}),
    "sac, gsde": (sac, {"gsde": True, "gsde_every": 3}),
}
every_case = pytest.mark.parametrize("case", CASES)
STEPS = 500


def config_of(case: str, seed: int = 0, log_every: int = 0, total_steps: int = STEPS, **changes: Any) -> Any:
    """Small settings; with log_every 0 each chunk is one cycle."""
    module, own = CASES[case]
    env_id = "CartPole-v1" if module is dqn else "Pendulum-v1"
    env = EnvConfig(env_id, num_envs=3, max_episode_steps=9, backend="compiled")
    settings: dict[str, Any] = {
        "rollout_length": 6, "update_ratio": 0.3, "learning_starts": 100, "batch_size": 8, "replay_size": 300,
        "hidden_sizes": (8,),
    } | own | changes  # fmt: skip
    run = RunConfig(seed=seed, total_steps=total_steps, log_every=log_every)
    return module.Config(env=env, run=run, **settings)


def updates_of(case: str, config: Any, **options: Any) -> list[tuple[Update, Snapshot]]:
    """All updates of a run, each with a copy of what a checkpoint would hold."""
    with closing(CASES[case][0].train(config, **options)) as training:
        return [(update, copied(update.snapshot())) for update in training]


def copied(snapshot: Snapshot) -> Snapshot:
    arrays = {name: np.array(array) for name, array in snapshot.arrays.items()}
    return dataclasses.replace(snapshot, arrays=arrays)


@cache
def one_by_one(case: str, log_every: int = 0) -> list[tuple[Update, Snapshot]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_SECONDS", 0.0)
        return updates_of(case, config_of(case, log_every=log_every))


def assert_same(one: tuple[Update, Snapshot], other: tuple[Update, Snapshot]) -> None:
    jax.tree.map(np.testing.assert_array_equal, one[0].state, other[0].state)
    assert one[1].arrays.keys() == other[1].arrays.keys()
    for name, array in one[1].arrays.items():
        np.testing.assert_array_equal(array, other[1].arrays[name], err_msg=name)
    assert one[1].values["replay"] == other[1].values["replay"]


@every_case
def test_the_same_seed_gives_the_same_run_and_replay_however_many_cycles_a_chunk_has(case):
    chunked = updates_of(case, config_of(case, log_every=10**6))
    assert len(chunked) < len(one_by_one(case, 10**6))
    assert_same(chunked[-1], one_by_one(case, 10**6)[-1])


@every_case
def test_two_seeds_differ(case):
    other = updates_of(case, config_of(case, seed=1, log_every=10**6))[-1][0]
    leaves = [jax.tree.leaves(update.state.network) for update in (other, one_by_one(case)[-1][0])]
    assert not all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


@every_case
@pytest.mark.parametrize("stop", [3, 15])  # before anything is learned, and after the ring is full
def test_a_run_that_was_saved_and_loaded_ends_as_one_that_never_stopped(case, stop):
    update, snapshot = one_by_one(case, 10**6)[stop]
    state = jax.tree.map(np.array, update.state)
    again = updates_of(case, config_of(case, log_every=10**6), state=state, snapshot=snapshot)
    assert_same(again[-1], one_by_one(case, 10**6)[-1])


@every_case
def test_steps_are_counted_and_gradient_steps_are_due_as_on_the_host(case):
    config = config_of(case)
    steps = taken = 0
    owed, whole = 0.0, steps_per_update(config)
    for update, _ in one_by_one(case):
        before, steps = steps, int(update.state.env_steps)
        assert 0 < steps - before <= 18
        if before >= config.replay.learning_starts:
            owed += 0.3 * (steps - before)
            if owed > whole - 1e-3:
                taken, owed = taken + whole, owed - whole
        assert int(update.state.gradient_steps) == taken
        assert float(update.state.owed) == pytest.approx(owed, abs=1e-4)
    assert steps >= STEPS > before
    assert [int(update.state.updates) for update, _ in one_by_one(case)] == list(range(1, len(one_by_one(case)) + 1))
    assert taken > 50


@every_case
def test_metrics_of_gradient_steps_are_reported_where_there_were_some_and_are_finite(case):
    gradients = 0
    learned = []
    for update, _ in one_by_one(case):
        learned.append(int(update.state.gradient_steps) > gradients)
        gradients = int(update.state.gradient_steps)
        assert ("loss/value" in update.metrics) == learned[-1]
        assert any(name.startswith("exploration/") for name in update.metrics)
        known = {name: value for name, value in update.metrics.items() if not name.startswith("episode/")}
        assert all(np.isfinite(value) for value in known.values()), known
        assert "learned" not in update.metrics
    assert learned[0] is False
    assert learned[-3:] != [False] * 3
    assert not all(learned[learned.index(True) :]), "resets delay some gradient steps"
    chunked = updates_of(case, config_of(case, log_every=10**6))[-1][0]
    newest = len(learned) - 1 - learned[::-1].index(True)
    assert chunked.metrics["loss/value"] == one_by_one(case)[newest][0].metrics["loss/value"]


def test_another_discount_or_seed_compiles_nothing_and_is_another_run():
    config = config_of("dqn", log_every=10**6)
    program = chunk_program(dqn.cycle, collector_of(config.env, dqn.act, config.rollout_length), False)
    first = updates_of("dqn", config)[-1][0]
    compiled = program._cache_size()
    other = updates_of("dqn", dataclasses.replace(config, discount=0.5))[-1][0]
    assert program._cache_size() == compiled
    leaves = [jax.tree.leaves(update.state.network) for update in (first, other)]
    assert not all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


def test_the_replay_is_reported_with_its_steps_and_bytes():
    metrics = one_by_one("dqn")[-1][0].metrics
    assert 300 <= metrics["replay/steps"] <= 300 + 3 * (1 + 2 * 6)
    assert metrics["replay/bytes"] == sum(
        array.nbytes for name, array in one_by_one("dqn")[-1][1].arrays.items() if name.startswith("replay/")
    )


# The replay in its user's hands


def test_transitions_can_be_saved_and_another_run_prefilled_with_them(tmp_path):
    path = tmp_path / "some.npz"
    with closing(td3.train(config_of("td3"))) as training:
        update = list(islice(training, 8))[-1]
        update.replay.save(path)
        saved = len(np.load(path)["rewards"])
        assert saved <= len(update.replay) <= saved + 3  # the newest steps have no successor yet
    with closing(td3.train(config_of("td3", prefill=str(path)))) as training:
        update = next(training)
        assert len(update.replay) == saved + int(update.state.env_steps)
        assert update.metrics["replay/steps"] > saved
        assert int(list(training)[-1].state.gradient_steps) > 0


def test_transitions_that_a_user_adds_are_sampled_and_saved():
    with closing(td3.train(config_of("td3"))) as training:
        update = list(islice(training, 8))[-1]
        before = len(update.replay)
        observations = np.tile(np.float32([1, 0, 7]), (20, 1))
        update.replay.add(
            observations, np.zeros((20, 1), np.float32), np.full(20, 50.0), observations, np.ones(20, bool)
        )
        assert len(update.replay) == before + 20
        after = list(islice(training, 2))[-1]
        assert before + 20 < len(after.replay) <= before + 20 + 36
        snapshot = copied(after.snapshot())
        state = jax.tree.map(np.array, after.state)
        last = list(training)[-1].state
    again = updates_of("td3", config_of("td3"), state=state, snapshot=snapshot)[-1][0].state
    jax.tree.map(np.testing.assert_array_equal, again, last)


def test_stacked_frames_are_refused_before_the_first_step():
    with pytest.raises(ConfigError, match=r"frame_stack 4.*use .*1"):
        next(dqn.train(config_of("dqn", frame_stack=4)))
