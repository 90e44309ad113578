"""The kinds of Gaussian policy, in the algorithms that have them: learning, resuming, refusing."""

import dataclasses
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl import speed
from birl.accel.numpy_acting import take_apart
from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig, Wrapper, to_json
from birl.envs.compiled.classic import Pendulum
from birl.registry import algorithm_named
from birl.rollouts.source import HostSource
from birl.run import checkpoint, directory, policy_file
from birl.run.policy import make_policy
from birl.run.state_tensors import state_to_tensors, tensors_to_state
from birl.settings import places_of
from birl.types import Rollout, Update

NEW = "scale_actions"
SMALL: dict[str, Any] = {
    "rollout_length": 8,
    "epochs": 2,
    "minibatches": 2,
    "hidden_sizes": (8,),
    "pool": "serial",
    "actor_learners": 2,
    "report_every": 30,
}
PENDULUM = EnvConfig("Pendulum-v1", num_envs=4, max_episode_steps=9)  # episodes end inside the second rollout
STATE_DEPENDENT = ["a2c", "a3c", "acer", "ppo", "qac", "reinforce", "trpo"]


def config_of(name: str, **changes: Any) -> Any:
    Config = algorithm_named(name).Config
    fields = set(places_of(Config)) - ({"pool"} if name == "acer" else set())
    small = {key: value for key, value in SMALL.items() if key in fields}
    return Config(**{"env": PENDULUM, "run": RunConfig(total_steps=10_000)} | small | changes)


def updates_of(name: str, config: Any, count: int, state: Any = None, snapshot: Any = None) -> list[Update]:
    with closing(algorithm_named(name).train(config, None, state, snapshot)) as training:
        return list(islice(training, count))


def tensors_of(state: Any) -> dict[str, tuple[str, bytes]]:
    return {name: (str(array.dtype), array.tobytes()) for name, array in state_to_tensors(state).items()}


def assert_resumes_to_the_bit(name: str, config: Any) -> None:
    """Four updates are the same as two, a State from its tensors with a snapshot, and two more."""
    whole = updates_of(name, config, 4)[-1].state
    with closing(algorithm_named(name).train(config)) as training:
        *_, stopped = islice(training, 2)
        tensors, snapshot = state_to_tensors(stopped.state), stopped.snapshot()
    state = tensors_to_state(stopped.state, tensors)
    assert tensors_of(updates_of(name, config, 2, state, snapshot)[-1].state) == tensors_of(whole)


@pytest.mark.parametrize("name", STATE_DEPENDENT)
def test_a_state_dependent_std_is_learned_and_differs_between_states(name):
    config = config_of(name, state_dependent_std=True, log_std=-0.5)
    *_, update = updates_of(name, config, 3)
    network = update.state.network
    observations = np.random.default_rng(0).normal(size=(1, 4, 3)).astype(np.float32)
    distribution, _, _ = jax.jit(lambda network: network(observations, (), np.zeros((1, 4), bool), None))(network)
    assert np.all(np.isfinite(distribution.log_std))
    assert np.ptp(distribution.log_std) > 1e-5
    assert np.all(np.abs(distribution.log_std + 0.5) < 0.5)


@pytest.mark.parametrize("name", ["ppo", "trpo"])
def test_with_a_state_dependent_std_a_resumed_run_is_the_same_to_the_bit(name):
    assert_resumes_to_the_bit(name, config_of(name, state_dependent_std=True))


# gSDE

STILL = EnvConfig("tests.envs.still:Still-v0", num_envs=3)
STILL_LOW, STILL_HIGH = np.array([-2, 0]), np.array([3, 1])


def actions_of(name: str, config: Any, monkeypatch: Any, rollouts: int = 2) -> list[np.ndarray]:
    """The actions [T, B, A] of the first rollouts."""
    found: list[np.ndarray] = []
    collect = HostSource.collect

    def keeping(self: HostSource, *arguments: Any) -> Rollout:
        rollout = collect(self, *arguments)
        found.append(np.array(rollout.actions))
        return rollout

    monkeypatch.setattr(HostSource, "collect", keeping)
    updates_of(name, config, rollouts)
    monkeypatch.undo()
    return found


def distinct(actions: np.ndarray) -> list[int]:
    """[B] how many different actions each environment got."""
    return [len(np.unique(actions[:, env], axis=0)) for env in range(actions.shape[1])]


def choose_way(way: str, monkeypatch: Any) -> None:
    if way == "compiled":
        monkeypatch.setattr(speed, "accel_enabled", lambda: False)
    else:
        monkeypatch.setattr(speed, "compiled_acting", None)  # would be called if NumPy could not do it


@pytest.mark.parametrize("way", ["in NumPy", "compiled"])
@pytest.mark.parametrize(("name", "every", "count"), [("ppo", 3, 3), ("ppo", None, 1), ("a2c", 1, 8)])
def test_in_one_state_the_action_changes_only_with_the_matrix(name, every, count, way, monkeypatch):
    choose_way(way, monkeypatch)
    config = config_of(name, env=STILL, gsde=True, gsde_every=every, log_std=-2.0)
    first, second = actions_of(name, config, monkeypatch)
    assert distinct(first) == distinct(second) == [count] * 3
    blocks = [first[t : t + (every or 8)] for t in range(0, 8, every or 8)]
    assert all(distinct(block) == [1] * 3 for block in blocks)
    assert len(np.unique(first[0], axis=0)) == 3  # every environment has a matrix of its own
    assert np.all(first[0] != second[0])


def test_numpy_and_compiled_programs_draw_the_same_matrices(monkeypatch):
    config = config_of("ppo", gsde=True, gsde_every=3, squash_actions=True, log_std=-2.0)
    choose_way("in NumPy", monkeypatch)
    quick = actions_of("ppo", config, monkeypatch, rollouts=1)
    choose_way("compiled", monkeypatch)
    np.testing.assert_allclose(quick, actions_of("ppo", config, monkeypatch, rollouts=1), atol=1e-5)


def test_matrices_that_would_fill_the_memory_are_drawn_step_by_step():
    config = config_of("ppo", env=STILL, gsde=True, hidden_sizes=(64,))
    state = ppo.init(config, spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32))
    for num_envs, fits in ((1024, True), (1025, False)):
        inputs = np.zeros((num_envs, 3), np.float32), (), np.zeros(num_envs, bool), None
        act = partial(without_behaviour, ppo.act)
        assert (take_apart(act, ppo.policy(state), inputs, np.asarray(state.key), 8) is not None) == fits


def without_behaviour(act: Any, *inputs: Any) -> Any:
    return act(*inputs)._replace(behaviour=None)


def test_sac_keeps_a_matrix_for_a_rollout_but_its_random_actions_for_one_step(monkeypatch):
    config = config_of("sac", env=STILL, gsde=True, learning_starts=20, batch_size=8)
    random, learned = actions_of("sac", config, monkeypatch)
    assert distinct(random) == [8] * 3
    assert distinct(learned) == [1] * 3
    assert np.all((random >= STILL_LOW) & (random <= STILL_HIGH))
    assert np.all((learned >= STILL_LOW) & (learned <= STILL_HIGH))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ppo", {"gsde": True, "gsde_every": 3, "log_std": -2.0, "core": "lstm"}),
        ("a2c", {"gsde": True, "log_std": -2.0, "squash_actions": True}),
        ("sac", {"gsde": True, "gsde_every": 4, "learning_starts": 20, "batch_size": 8}),
        ("ppo", {"squash_actions": True, "objective": "kl"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else value,
)
def test_a_resumed_run_is_the_same_to_the_bit(name, changes):
    assert_resumes_to_the_bit(name, config_of(name, **changes))


def test_with_workers_gsde_gives_the_same_run():
    here, there = (
        updates_of("ppo", config_of("ppo", env=dataclasses.replace(PENDULUM, workers=workers), gsde=True), 2)
        for workers in (0, 2)
    )
    assert tensors_of(here[-1].state) == tensors_of(there[-1].state)


@pytest.mark.parametrize("name", ["ppo", "a2c", "sac"])
def test_gsde_is_refused_with_a_network_of_the_users_own(name):
    config = config_of(name, gsde=True)
    with pytest.raises(ConfigError, match=r"gsde True does not go with make_network .*; use gsde False"):
        next(algorithm_named(name).train(config, make_network=lambda *spaces: None))


@pytest.mark.parametrize("name", ["a2c", "sac"])
def test_a_gsde_every_that_would_do_nothing_is_refused(name):
    with pytest.raises(ConfigError, match="gsde_every 4 does nothing without gsde"):
        algorithm_named(name).validate(config_of(name, gsde_every=4))


# Squashed actions


@pytest.mark.parametrize("gsde", [False, True])
def test_squashed_actions_are_kept_as_the_environment_gets_them(gsde, monkeypatch):
    config = config_of("ppo", env=STILL, squash_actions=True, log_std=1.0, gsde=gsde, gsde_every=1 if gsde else None)
    (actions, _) = actions_of("ppo", config, monkeypatch)
    assert np.all((actions >= STILL_LOW) & (actions <= STILL_HIGH))
    assert np.ptp(actions[..., 0]) > 2


def test_squashed_actions_need_finite_bounds():
    env = dataclasses.replace(STILL, kwargs={"infinite": True})
    for name in ("ppo", "a2c"):
        with pytest.raises(ConfigError, match=r"squash_actions True: .*RescaleAction.*; or use squash_actions False"):
            next(algorithm_named(name).train(config_of(name, env=env, squash_actions=True)))


def test_a_loaded_policy_gives_the_scaled_tanh_of_the_mean(tmp_path):
    env = dataclasses.replace(STILL, id="Pendulum-v1")
    run = RunConfig(total_steps=50, run_dir=str(tmp_path / "run"), eval_episodes=1, eval_max_steps=5)
    config = config_of("ppo", env=env, run=run, squash_actions=True, minibatches=1)
    assert np.isfinite(birl.train(config)["evaluation"]["return_mean"])
    policy = birl.load(tmp_path / "run")
    *_, update = updates_of("ppo", config, 3)  # the same seed, so the same network
    observation = np.array([0.3, -1.0, 0.7], np.float32)
    inputs = observation[None, None], (), np.zeros((1, 1), bool), None
    distribution, _, _ = jax.jit(lambda network: network(*inputs))(update.state.network)
    action, _ = policy.act(observation)
    np.testing.assert_allclose(action, 2 * np.tanh(distribution.gaussian.mean[0, 0]), rtol=1e-5)
    sampled = [policy.act(observation, seed=seed)[0] for seed in range(20)]
    assert np.ptp(sampled) > 0.5
    assert np.max(np.abs(sampled)) <= 2


# Actions scaled to the bounds


def stretched(low: float, high: float) -> EnvConfig:
    wrapper = Wrapper("gymnasium.wrappers:RescaleAction", {"min_action": low, "max_action": high})
    return dataclasses.replace(PENDULUM, wrappers=(wrapper,))


@pytest.mark.parametrize("name", STATE_DEPENDENT)
def test_a_wide_box_is_learned_like_one_from_minus_1_to_1(name):
    wide, plain = (
        updates_of(name, config_of(name, env=stretched(*bounds)), 3)[-1].state for bounds in [(0.0, 500.0), (-1.0, 1.0)]
    )
    for one, other in zip(jax.tree.leaves(wide), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("gsde", [False, True])
def test_actions_in_a_wide_box_are_spread_over_it_unless_they_are_not_scaled(gsde, monkeypatch):
    env = stretched(0.0, 500.0)
    settings = {"gsde": gsde, "gsde_every": 1 if gsde else None, "env": env}
    scaled, raw = (
        actions_of("ppo", config_of("ppo", scale_actions=on, **settings), monkeypatch)[0] for on in (True, False)
    )
    assert 100 < np.std(scaled) < 400
    assert abs(np.mean(scaled) - 250) < 150
    assert np.std(raw) < 3


def test_a_run_and_a_policy_of_a_version_that_did_not_scale_actions_keep_theirs(tmp_path, monkeypatch):
    for module in (checkpoint, directory):
        monkeypatch.setattr(module, "to_json", lambda value: {k: v for k, v in to_json(value).items() if k != NEW})
    monkeypatch.setattr(policy_file, "NOT_NEEDED", policy_file.NOT_NEEDED | {NEW})
    run = RunConfig(total_steps=40, run_dir=str(tmp_path / "run"), eval_episodes=1, eval_max_steps=5)
    config = config_of("ppo", env=stretched(0.0, 500.0), run=run, minibatches=1, scale_actions=False)
    birl.train(config)
    birl.load(tmp_path / "run").save(tmp_path / "policy.birl")
    monkeypatch.undo()
    assert f'"{NEW}"' not in (tmp_path / "run" / "config.json").read_text()
    assert not birl.configure(like=tmp_path / "run").actions.scale_actions
    for path in (tmp_path / "run", tmp_path / "policy.birl"):
        action, _ = birl.load(path).act(np.array([0.3, -1.0, 0.7], np.float32))
        assert abs(action[0]) < 1
    birl.resume(tmp_path / "run", total_steps=80)
    assert not birl.load(tmp_path / "run").config.actions.scale_actions


def test_a_compiled_environment_gets_scaled_actions(monkeypatch):
    monkeypatch.setattr(Pendulum, "action_space", spaces.Box(0, 500, (1,)))
    config = config_of("ppo", env=dataclasses.replace(PENDULUM, backend="compiled"), minibatches=1)
    state = updates_of("ppo", config, 1)[-1].state
    policy = make_policy(config, state, Pendulum.observation_space, Pendulum.action_space)
    assert 200 < policy.act(np.array([0.3, -1.0, 0.7], np.float32))[0][0] < 300
    assert policy.distribution(np.zeros(3, np.float32)).mode()[0] > 200
