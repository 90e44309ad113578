"""Attributes of environments that change during training."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from birl.algos import a3c, ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.envs.make import as_envs, make_envs
from birl.envs.snapshot import same_tree
from birl.types import Envs
from tests.envs.own import Walk

WALK = EnvConfig("tests.envs.own:make_walk", 2, kwargs={"length": 4}, wrappers=("tests.envs.own:Goal",))  # type: ignore[arg-type]
WAYS = {"here": WALK, "in workers": replace(WALK, workers=2)}


def drifts(envs: Envs, steps: int) -> list[float]:
    """What environment 0 observes as its drift, at each step."""
    return [float(envs.step(np.ones(2, int)).observations[0, 1]) for _ in range(steps)]


@pytest.mark.parametrize("way", WAYS)
def test_a_value_takes_effect_when_the_next_episode_begins(way):
    with make_envs(WAYS[way], 0) as envs:
        envs.reset(0)
        envs.step(np.ones(2, int))
        envs.set_attribute("drift", 0.5)  # type: ignore[union-attr]
        assert drifts(envs, 5) == [0.0, 0.0, 0.0, 0.5, 0.5]  # the fourth is the reset
        envs.set_attribute("length", 2)  # type: ignore[union-attr]
        ends = [bool(envs.step(np.ones(2, int)).terminated[0]) for _ in range(6)]
        assert ends == [False, False, True, False, False, True]  # 4 steps, a reset, 2 steps


@pytest.mark.parametrize("way", WAYS)
def test_wrappers_have_attributes_too_and_lists_are_plain_data(way):
    with make_envs(WAYS[way], 0) as envs:
        envs.set_attribute("bonus", np.float32(1000.0))  # type: ignore[union-attr]
        envs.reset(0)
        assert (envs.step(np.ones(2, int)).rewards > 900).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("drifft", 1.0, r"has no attribute 'drifft' to set; define it in the constructor of the environment or of one"),
        ("step", 1.0, r"attribute 'step' of .* is a method"),
        ("drift", {1, 2}, r"environment attribute 'drift' cannot be \{1, 2\}: .*; use numbers, strings"),
        ("drift", float("nan"), r"environment attribute 'drift' cannot be nan"),
    ],
)
def test_an_attribute_that_cannot_be_set_is_refused_and_nothing_changes(way, name, value, said):
    with make_envs(WAYS[way], 0) as envs:
        envs.reset(0)
        with pytest.raises(ConfigError, match=said):
            envs.set_attribute(name, value)  # type: ignore[union-attr]
        assert drifts(envs, 6) == [0.0] * 6
        assert "attributes" not in envs.snapshot().values


@pytest.mark.parametrize("start", WAYS)
@pytest.mark.parametrize("end", WAYS)
def test_a_snapshot_keeps_what_episodes_began_with_and_what_is_pending(start, end):
    with make_envs(WAYS[start], 0) as envs, make_envs(WAYS[end], 1) as others:
        envs.reset(0)
        envs.set_attribute("drift", 0.25)  # type: ignore[union-attr]
        drifts(envs, 6)  # episodes with a drift of 0.25
        envs.set_attribute("drift", 0.75)  # type: ignore[union-attr]
        envs.set_attribute("length", 3)  # type: ignore[union-attr]
        others.restore(envs.snapshot())
        assert others.restore_problem == ""
        assert others.snapshot().values == envs.snapshot().values
        for _ in range(12):
            assert same_tree(envs.step(np.ones(2, int)), others.step(np.ones(2, int)))
        assert drifts(others, 1) == [0.75]


def test_mujocos_own_state_is_restored_with_attributes():
    pytest.importorskip("mujoco")
    config = EnvConfig("InvertedPendulum-v5", 2, max_episode_steps=6)
    with make_envs(config, 0) as envs, make_envs(config, 1) as others:
        envs.reset(0)
        envs.set_attribute("_reset_noise_scale", 0.4)  # type: ignore[union-attr]
        for _ in range(8):
            envs.step(np.zeros((2, 1), np.float32))
        snapshot = envs.snapshot()
        assert snapshot.values["tier"] == "each"
        others.restore(snapshot)
        for _ in range(20):
            action = np.zeros((2, 1), np.float32)
            assert same_tree(envs.step(action), others.step(action))


def test_a_worker_that_is_replaced_has_the_attributes():
    with make_envs(WAYS["in workers"], 0) as envs:
        envs.reset(0)
        envs.set_attribute("drift", 0.5)  # type: ignore[union-attr]
        envs._supervisor.workers[0].program.kill()  # type: ignore[union-attr]
        with pytest.warns(UserWarning, match="began new episodes in a new process"):
            assert drifts(envs, 2) == [0.5, 0.5]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_vector_environment_that_is_passed_in_is_set_at_once(kind):
    envs: Any = as_envs(kind([partial(Walk, 4)] * 2), EnvConfig())
    envs.reset(0)
    envs.set_attribute("drift", 0.5)
    assert drifts(envs, 2) == [0.5, 0.5]
    with pytest.raises(ConfigError, match="have no attribute 'drifft' to set"):
        envs.set_attribute("drifft", 0.5)
    envs.close()


def test_eight_cartpoles_are_set_at_once_and_restored():
    config = EnvConfig("CartPole-v1", 8)
    with make_envs(config, 0) as envs, make_envs(config, 1) as others:
        envs.reset(0)
        envs.set_attribute("force_mag", 30.0)  # type: ignore[union-attr]
        others.restore(envs.snapshot())
        same, plain = envs.step(np.ones(8, int)), others.step(np.ones(8, int))
        assert same_tree(same, plain)
        assert (same.observations[:, 1] > 0.5).all()  # three times the usual velocity
        with pytest.raises(ConfigError, match="has no attribute 'wind' to set"):
            envs.set_attribute("wind", 1.0)  # type: ignore[union-attr]


def test_envpool_ray_and_actor_learners_refuse():
    pytest.importorskip("ray")
    from birl.rollouts.ray_rollouts import RayCollector

    refused = pytest.raises(
        ConfigError, match=r"the attributes \['gravity'\] cannot be set in .*; use backend gymnasium"
    )
    with make_envs(EnvConfig("CartPole-v1", 2, "envpool"), 0) as envs, refused:
        envs.set_attribute("gravity", 1.0)  # type: ignore[union-attr]
    ray = RayCollector(EnvConfig(num_envs=2, ray_actors=2), None, ppo.act, 4, ())  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"'gravity' cannot be set: env.ray_actors 2 have environments of their own; use"
    ):
        ray.set_env_attribute("gravity", 1.0)
    config = a3c.Config(EnvConfig("CartPole-v1", 1), RunConfig(total_steps=20), pool="serial", actor_learners=1)
    update = next(a3c.train(config))
    assert update.set_env_attribute is not None
    with pytest.raises(ConfigError, match="actor-learners have environments of their own"):
        update.set_env_attribute("gravity", 1.0)


def curriculum(total_steps: int, **continued: Any) -> list[Any]:
    """The updates of a run in which the walk gets longer."""
    config = ppo.Config(
        replace(WALK, workers=0),
        RunConfig(total_steps=total_steps),
        rollout_length=8,
        epochs=1,
        minibatches=1,
        hidden_sizes=(8,),
    )
    updates = []
    for update in ppo.train(config, **continued):
        update.set_env_attribute("length", 3 + int(update.state.updates) % 4)  # type: ignore[misc]
        updates.append((update.state, update.snapshot(), update.metrics))
    return updates


def test_a_curriculum_goes_on_exactly_from_a_checkpoint():
    whole = curriculum(120)
    state, snapshot, _ = whole[2]
    rest = curriculum(120, state=state, snapshot=snapshot)
    assert len(rest) == len(whole) - 3
    assert same_tree(tuple(jax.tree.leaves(rest[-1][0])), tuple(jax.tree.leaves(whole[-1][0])))
    assert {metrics["episode/length"] for _, _, metrics in whole} - {4.0}, "the lengths changed"
