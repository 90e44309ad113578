"""Environments in two halves: by turns or at once the same, through accidents and resumes too."""

import json
from dataclasses import replace
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig
from birl.data.collect import Collector
from birl.envs.halves import joined_masks
from birl.envs.make import make_envs
from birl.nets.acting import act, but_last, evaluate_rollout
from birl.types import World
from tests.algos.probing import telling, told_log_probs
from tests.envs.troubled import RAISE

HALVES = EnvConfig("LunarLander-v3", 5, workers=2, overlap=True, max_episode_steps=30)
POOL = EnvConfig("LunarLander-v3", 5, "envpool", overlap=True, max_episode_steps=30)
TROUBLED = EnvConfig("tests.envs.troubled:Troubled-v0", 4, workers=2, overlap=True, step_timeout=1.0)
CONFIG = ppo.Config(env=HALVES, run=RunConfig(total_steps=1000), rollout_length=20, minibatches=1, epochs=1, hidden_sizes=(8,))


def run(config, updates):
    return [(update.state, update.world()) for update in islice(ppo.train(config), updates)]


def assert_same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("config", [HALVES, POOL], ids=["workers", "envpool"])
def test_a_collector_sends_to_one_half_before_it_waits_for_the_other(config):
    with make_envs(config, 0) as envs:
        calls = []
        for number, half in enumerate(envs.halves):
            half.send, half.receive = (
                (lambda actions, number=number, send=half.send: (calls.append(f"send {number}"), send(actions))[1]),
                (lambda number=number, receive=half.receive: (calls.append(f"receive {number}"), receive())[1]),
            )
        state = ppo.init(CONFIG, envs.observation_space, envs.action_space)
        collect = Collector(envs, act, 3, ())
        collect.start(0)
        collect(ppo.policy(state), state.key)
    turn = ["receive 0", "send 0", "receive 1", "send 1"]
    assert calls == ["send 0", "send 1", *turn, *turn, "receive 0", "receive 1"]


@pytest.mark.parametrize("config", [HALVES, POOL], ids=["workers", "envpool"])
def test_what_is_collected_by_turns_is_what_the_environments_do_when_stepped_at_once(config):
    with make_envs(config, 0) as envs:
        state = ppo.init(CONFIG, envs.observation_space, envs.action_space)
        collect = Collector(envs, act, 40, ())
        collect.start(7)
        rollout = collect(ppo.policy(state), state.key)
    assert (~rollout.valid).any()
    with make_envs(config, 0) as again:
        observations, _ = again.reset(7)
        for t, actions in enumerate(rollout.actions):
            np.testing.assert_array_equal(observations, rollout.observations[t])
            step = again.step(actions)
            for name in ("rewards", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(step, name), getattr(rollout, name)[t])
            observations = step.observations
        np.testing.assert_array_equal(observations, rollout.observations[-1])
    assert len({row.tobytes() for row in rollout.observations[0]}) == 5  # no two environments are alike


def test_recomputed_log_probs_are_the_collected_ones():
    for core in ("feedforward", "gru"):
        config = replace(CONFIG, core=core, core_size=8)
        with make_envs(HALVES, 0) as envs:
            state = ppo.init(config, envs.observation_space, envs.action_space)
            collect = telling(envs, ppo, state, 40)
            collect.start(3)
            for _ in range(2):  # the second begins with memories and with episodes under way
                rollout = collect(ppo.policy(state), state.key)
            rollout = jax.tree.map(jnp.asarray, rollout)
            distributions = but_last(evaluate_rollout(ppo.policy(state), rollout).distributions)
            np.testing.assert_allclose(distributions.log_prob(rollout.actions), told_log_probs(rollout), atol=1e-6)


def test_the_same_run_with_two_workers_and_with_four():
    (state, _), (other, _) = (run(replace(CONFIG, env=replace(HALVES, workers=workers)), 3)[-1] for workers in (2, 4))
    assert_same(state, other)


def test_a_run_goes_on_exactly_where_it_was():
    (_, _), (state, world), (_, _), (end, _) = run(CONFIG, 4)
    assert world.exact
    written = World(world.arrays, json.loads(json.dumps(world.values)), world.exact, world.reason)
    *_, resumed = islice(ppo.train(CONFIG, state=state, world=written), 2)
    assert_same(end, resumed.state)


def test_a_snapshot_of_other_environments_is_a_fresh_start_and_says_so():
    with make_envs(replace(HALVES, overlap=False), 0) as whole:
        whole.reset(0)
        world = whole.snapshot()
    with make_envs(HALVES, 0) as envs:
        with pytest.warns(UserWarning, match="not exact: 5 environments, .* began a new episode; the snapshot is of another kind"):
            envs.restore(world)
        assert envs.fresh.all()


def test_envpools_halves_begin_anew_after_a_restore_and_say_it_once_for_all():
    with make_envs(POOL, 0) as envs:
        envs.reset(0)
        world = envs.snapshot()
        assert not world.exact
        with pytest.warns(
            UserWarning, match=r"not exact: 5 environments, 0 the first of them, began a new episode; \w+ cannot save its state$"
        ):
            envs.restore(world)
        assert envs.fresh.all()


def test_an_accident_in_the_second_half_is_named_by_its_index_among_all():
    with make_envs(TROUBLED, 0) as envs:
        envs.reset(0)
        with pytest.warns(UserWarning, match=r"environments 2 to 3 began new episodes .* environment 3 raised in step"):
            step = envs.step(np.array([1, 1, 1, RAISE]))
        assert step.valid.tolist() == [True, True, False, False]
        assert envs.step(np.ones(4, int)).valid.all()


def test_overlap_without_two_workers_is_refused():
    with pytest.raises(ConfigError, match=r"env.overlap does not go with env.workers 1: .* use workers 2 or more"):
        make_envs(replace(HALVES, workers=1), 0)


def test_one_environment_cannot_be_halved():
    with pytest.raises(ConfigError, match=r"env.overlap needs two environments to halve, and env.num_envs is 1; use 2 or more"):
        make_envs(replace(POOL, num_envs=1), 0)


def test_envpools_environments_step_while_nobody_waits_for_them():
    with make_envs(POOL, 0) as envs:
        envs.reset(0)
        first, _ = envs.halves
        steps = []
        first.vector_env.step = lambda *_: pytest.fail("it was stepped when it was waited for")
        first.vector_env.send = lambda actions, send=first.vector_env.send: (steps.append(actions), send(actions))[1]
        first.send(np.zeros(first.num_envs, int))
        assert len(steps) == 1
        assert first.receive().valid.all()


def test_where_one_half_gives_no_masks_they_forbid_nothing():
    mask = np.array([[True, False]])
    assert joined_masks([mask, None], [1, 2]).tolist() == [[True, False], [True, True], [True, True]]
    assert joined_masks([None, None], [1, 2]) is None


def test_no_worker_is_left_when_the_second_half_cannot_start(monkeypatch):
    from birl.envs import make

    started, original = [], make.WorkerEnvs

    def second_fails(config, first=0):
        if first:
            raise RuntimeError("no second half")
        started.append(original(config))
        return started[0]

    monkeypatch.setattr(make, "WorkerEnvs", second_fails)
    with pytest.raises(RuntimeError, match="no second half"):
        make_envs(TROUBLED, 0)
    with pytest.raises(RuntimeError, match="closed"):
        started[0].reset(0)
