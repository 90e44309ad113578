"""Learning from cached activations of images gives what learning from the images gives."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium import spaces

from birl import speed
from birl.algos import a2c, ppo, qac, reinforce, trpo
from birl.config import EnvConfig, RunConfig
from birl.envs.probes import MaskedMemory
from birl.envs.serial import SerialEnvs
from birl.nets import values
from birl.nets.models import act, shared_encoder
from birl.speed import prepare_jax
from birl.types import Rollout
from tests.tiers import sooner


class Picture(gym.ObservationWrapper):
    """Short episodes with action masks, with each observation as an image."""

    observation_space = spaces.Box(0, 255, (2, 24, 20), np.uint8)

    def observation(self, observation):
        rng = np.random.default_rng([int(100 * number + 500) for number in np.ravel(observation)])
        return rng.integers(0, 255, self.observation_space.shape, dtype=np.uint8)


def pictures(count: int) -> SerialEnvs:
    return SerialEnvs([lambda: Picture(MaskedMemory())] * count)


SETTINGS = {
    "env": EnvConfig(num_envs=4),
    "run": RunConfig(total_steps=100),
    "rollout_length": 8,
    "encoder": "cnn_small",
    "activation": "relu",
    "core_size": 8,
}
SHARED = SETTINGS | {"share_trunk": True}
CONFIGS = {a2c: a2c.Config(**SHARED), ppo: ppo.Config(**SHARED, epochs=2, minibatches=2)}


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


def rollouts_of(algorithm, config, monkeypatch) -> Sequence[tuple[object, Rollout]]:
    """The states and rollouts of which a run learns."""
    update = algorithm.update
    learned_from = []

    def watched(state, rollout, config):
        learned_from.append((state, rollout))
        return update(state, rollout, config)

    monkeypatch.setattr(algorithm, "update", watched)
    list(algorithm.train(config, pictures(config.env.num_envs)))
    monkeypatch.undo()
    return learned_from


@pytest.mark.parametrize(
    ("algorithm", "core"), sooner([(a2c, "feedforward"), (ppo, "lstm")], product([a2c, ppo], ["feedforward", "lstm"]))
)
def test_learning_from_what_was_seen_is_learning_from_the_images(algorithm, core, monkeypatch):
    config = replace(CONFIGS[algorithm], core=core)
    update = jax.jit(
        algorithm.update.__wrapped__, static_argnames="config", compiler_options={"xla_backend_optimization_level": 0}
    )
    state, rollout = rollouts_of(algorithm, config, monkeypatch)[-1]
    assert not rollout.valid.all()  # episodes end in it
    (mine, my_metrics), (theirs, their_metrics) = (
        update(state, each, config) for each in (rollout, rollout._replace(extras=None))
    )
    for name, metric in their_metrics.items():
        np.testing.assert_allclose(my_metrics[name], metric, rtol=2e-3, atol=1e-5, err_msg=name)
    for left, right, before in zip(*map(jax.tree.leaves, (mine.network, theirs.network, state.network)), strict=True):
        moved = np.abs(np.asarray(right) - before).max()
        np.testing.assert_allclose(left, right, atol=1e-2 * moved)
        assert moved > 0


@pytest.mark.parametrize(("algorithm", "kept"), [(a2c, [True, True, True]), (ppo, [False, False, True])])
def test_as_much_is_kept_as_learning_needs(algorithm, kept, monkeypatch):
    for _, rollout in rollouts_of(algorithm, CONFIGS[algorithm], monkeypatch):
        assert [[output is not None for output in outputs] for outputs in rollout.extras] == [kept] * len(rollout.valid)


@pytest.mark.parametrize(
    "config", [a2c.Config(**SETTINGS), a2c.Config(**SHARED | {"encoder": "mlp", "hidden_sizes": (8,)})]
)
def test_nothing_is_kept_of_two_encoders_or_of_none(config, monkeypatch):
    assert all(rollout.extras is None for _, rollout in rollouts_of(a2c, config, monkeypatch))


@pytest.mark.parametrize("algorithm", [a2c, ppo])
def test_with_accel_off_nothing_is_kept(algorithm, monkeypatch):
    monkeypatch.setattr(speed, "accel_enabled", lambda: False)
    learned_from = rollouts_of(algorithm, CONFIGS[algorithm], monkeypatch)
    assert len(learned_from) > 1
    assert all(rollout.extras is None for _, rollout in learned_from)


def test_collecting_keeps_images_for_the_two_algorithms_that_use_them_and_only_with_accel(monkeypatch):
    for config in CONFIGS.values():
        assert speed.act_in_rollouts(act, config, shared_encoder) is not act
        assert speed.act_in_rollouts(act, config, shared_encoder) is speed.act_in_rollouts(
            act, replace(config, discount=0.5), shared_encoder
        ), "compiled once"
        assert speed.act_in_rollouts(values.act, config, shared_encoder) is values.act, "one of the user's own"
    for other in (reinforce, qac, trpo):
        assert speed.act_in_rollouts(act, other.Config(), shared_encoder) is act
    monkeypatch.setattr(speed, "accel_enabled", lambda: False)
    assert all(speed.act_in_rollouts(act, config, shared_encoder) is act for config in CONFIGS.values())
