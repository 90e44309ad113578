"""A3C: one actor-learner is A2C with one environment; several must learn known values on probes."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from birl.algos import a2c, a3c
from birl.asynchronous.actor_learner import make_work, open_actor_learner, run_worker_step
from birl.asynchronous.parameters import state_to_shared
from birl.config import EnvConfig, RunConfig
from birl.envs.make import spaces_of
from birl.maths.schedules import linear
from birl.presets import preset
from birl.run.start import train
from birl.settings import flat_settings
from birl.speed import prepare_jax
from tests.algos.probing import answers, sign
from tests.algos.test_a2c import OwnNetwork, furthest, make_own

PROBE = a3c.Config(
    run=RunConfig(total_steps=6000),
    pool="serial",
    actor_learners=3,
    discount=0.9,
    hidden_sizes=(16,),
    core_size=8,
    learning_rate=linear(1e-2, 0.0),
)


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_on_disk() -> None:
    prepare_jax()


# A special case of A2C, and A2C of it

SETTINGS = {
    "CartPole": {"env": EnvConfig("CartPole-v1", num_envs=1)},
    "LSTM, truncated": {
        "env": EnvConfig("CartPole-v1", num_envs=1, max_episode_steps=30),
        "core": "lstm",
        "core_size": 16,
    },
    # As many updates in half the steps: a pendulum amplifies differences in the last bits.
    "continuous": {
        "env": EnvConfig("Pendulum-v1", num_envs=1),
        "entropy_weight": 0.0,
        "rollout_length": 10,
        "run": RunConfig(total_steps=1500),
    },
    "normalised": {
        "env": EnvConfig("CartPole-v1", num_envs=1),
        "normalize_observations": True,
        "normalize_rewards": True,
    },
    "several environments": {"env": EnvConfig("CartPole-v1", num_envs=4)},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_one_actor_learner_is_a2c(settings):
    settings = {"run": RunConfig(total_steps=3000), "hidden_sizes": (32,)} | settings
    *_, synchronous = a2c.train(a2c.Config(**settings))
    *_, asynchronous = a3c.train(a3c.Config(**settings, pool="serial", actor_learners=1))
    assert int(synchronous.state.env_steps) == int(asynchronous.state.env_steps)
    assert int(synchronous.state.updates) == int(asynchronous.state.gradient_steps) > 100
    assert furthest(synchronous.state, asynchronous.state) < 1e-6
    assert np.array_equal(synchronous.state.key, asynchronous.state.key[0])
    name = "optimizer/learning_rate"
    assert asynchronous.metrics[name] == pytest.approx(synchronous.metrics[name], rel=1e-5)


def test_two_actor_learners_are_not_a2c_with_two_environments():
    settings = {"run": RunConfig(total_steps=1000), "hidden_sizes": (32,)}
    *_, synchronous = a2c.train(a2c.Config(env=EnvConfig(num_envs=2), **settings))
    *_, asynchronous = a3c.train(a3c.Config(env=EnvConfig(num_envs=1), **settings, pool="serial", actor_learners=2))
    assert furthest(synchronous.state, asynchronous.state) > 1e-3


def test_the_settings_that_both_have_mean_the_same_by_default():
    one, other = flat_settings(a2c.Config()), flat_settings(a3c.Config())
    assert len(one.keys() & other.keys()) > 50
    assert {name for name in one.keys() & other.keys() if one[name] != other[name]} == {"num_envs"}


# What several have seen


def test_statistics_are_those_of_what_all_have_seen_together():
    config = replace(
        PROBE, env=EnvConfig("CartPole-v1", num_envs=2), normalize_observations=True, run=RunConfig(total_steps=600)
    )
    *_, last = a3c.train(config)
    rows = last.state.normalizer.observations
    _, merged = a3c.policy(last.state)
    assert merged.count == rows.count.sum() > 600
    assert np.allclose(merged.mean, np.average(rows.mean, axis=0, weights=rows.count), atol=1e-6)
    second = np.average(rows.variance + rows.mean**2, axis=0, weights=rows.count)
    assert np.allclose(merged.variance, second - merged.mean**2, atol=1e-5)
    assert np.ptp(rows.mean, axis=0).max() > 1e-3


def test_a_replaced_actor_learner_does_not_sum_on_the_returns_of_the_one_before():
    config = replace(PROBE, env=EnvConfig("CartPole-v1", num_envs=2), rollout_length=3, normalize_rewards=True)
    state = a3c.init(config, *spaces_of(config.env))
    state = state._replace(normalizer=state.normalizer._replace(running_returns=np.full((3, 2), 100.0, np.float32)))
    work = make_work(config, a3c.__name__, a3c.worker_step, a3c.apply_gradients, state)
    learner = open_actor_learner(work, 1, np.asarray(state.key[1]), seed=5)  # in new episodes
    result, _ = run_worker_step(learner, state_to_shared(state, work.layouts).read(), work)
    learner.envs.close()
    np.testing.assert_allclose(
        work.layouts.normalizer.tree(result.normalizer).running_returns, 1 + 0.9 + 0.81, rtol=1e-6
    )


# Probes: values and policies that are known


def learned(env_id: str, **changes):
    """The last update of a short run."""
    *_, last = a3c.train(replace(PROBE, env=EnvConfig(env_id, num_envs=1), **changes))
    return last


def test_probe_a_reward_one_step_later_is_discounted_once():
    (first, _), (second, _) = answers(learned("birl/ProbeDelayed-v0").state, sign(-1), sign(1))
    assert (first, second) == pytest.approx((0.9, 1.0), abs=0.03)


def test_probe_where_an_episode_is_cut_the_value_goes_on():
    ((value, _),) = answers(learned("birl/ProbeTruncation-v0").state, sign(0))
    assert value == pytest.approx(1 / (1 - 0.9), abs=0.4)  # without the bootstrap at the cut, below 4.1


def test_probe_the_better_action_follows_the_observation():
    (high, right), (low, left) = answers(learned("birl/ProbeObservationAction-v0").state, sign(1), sign(-1))
    assert (right, left) == (1, 0)
    assert (high, low) == pytest.approx((1.0, 1.0), abs=0.05)


def test_probe_what_was_seen_at_the_start_is_remembered():
    assert (
        learned("birl/ProbeMemory-v0", core="lstm", share_trunk=True, run=RunConfig(total_steps=10_000)).metrics[
            "episode/return"
        ]
        > 0.9
    )


def test_probe_the_best_action_of_a_box_with_bounds_that_are_not_symmetric():
    last = learned("birl/ProbeContinuous-v0", entropy_weight=0.0, run=RunConfig(total_steps=10_000))
    assert last.metrics["episode/return"] > -0.1


# In processes


def test_two_processes_learn_a_network_of_the_users_own_and_the_counts_are_right():
    config = replace(
        PROBE, env=EnvConfig("birl/ProbeObservationAction-v0", num_envs=1), pool="processes", actor_learners=2
    )
    updates = list(a3c.train(config, make_network=make_own))
    last = updates[-1].state
    assert isinstance(last.network, OwnNetwork)
    assert updates[-1].metrics["episode/return"] > 0.8
    assert 6000 <= int(last.env_steps) <= 6000 + 2 * 5
    assert [int(update.state.updates) for update in updates] == list(range(1, len(updates) + 1))
    assert not updates[-1].snapshot().exact
    again = next(a3c.train(replace(config, run=RunConfig(total_steps=7000)), None, last, updates[-1].snapshot()))
    assert int(again.state.env_steps) > 6000
    assert again.metrics["episode/count"] > updates[-1].metrics["episode/count"]


def actor_learner_pids() -> list[int]:
    """The processes that this one has started to learn in."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"process_main" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def steps_in(run_dir: Path) -> int:
    """The environment steps that a run has logged."""
    path = run_dir / "metrics.jsonl"
    rows = path.read_text().splitlines() if path.exists() else []
    complete = [row for row in rows if row.endswith("}")]
    return int(json.loads(complete[-1])["env_steps"]) if complete else 0


@pytest.mark.slow
def test_of_fifty_faults_each_is_named_and_the_score_is_still_reached(tmp_path, capfd):
    """Processes are killed and stopped in turn, and their environments sometimes raise."""
    tuned = preset("a3c", "CartPole-v1")
    env = replace(tuned.env, id="tests.envs.flaky:FlakyCartPole-v0", step_timeout=2.0)
    config = replace(
        tuned, env=env, run=replace(tuned.run, total_steps=1_200_000, run_dir=str(tmp_path / "run"), seed=3)
    )
    injected = []
    ended = threading.Event()

    def harm() -> None:
        learned = 0
        while not ended.wait(2.0) and len(injected) < 50:
            steps = steps_in(tmp_path / "run")
            pids = actor_learner_pids()
            if pids and steps >= learned + 2000:  # on a slow machine, starting a process takes longer
                learned = steps
                injected.append((min(pids), signal.SIGSTOP if len(injected) % 5 == 4 else signal.SIGKILL))
                os.kill(*injected[-1])

    culprit = threading.Thread(target=harm)
    culprit.start()
    try:
        summary = train(config)
    finally:
        ended.set()
        culprit.join()
    told = "".join(capfd.readouterr())
    assert len(injected) == 50
    assert all(f"process {pid} " in told or f"process {pid})" in told for pid, _ in injected)
    assert all(reason in told for reason in ("was ended by SIGKILL", "no heartbeat for 2 seconds", "the cart is stuck"))
    assert config.run.total_steps <= summary["env_steps"] <= config.run.total_steps + 100
    assert summary["evaluation"]["return_mean"] >= 475
    assert actor_learner_pids() == []
