"""Actor-learners in turn in this process: which weights each reads, and what they report."""

from dataclasses import replace

import numpy as np
import pytest

from birl.algos import a3c
from birl.asynchronous.parameters import combine_metrics
from birl.asynchronous.pool import SerialPool, open_pool
from birl.config import ConfigError, EnvConfig
from birl.errors import NonFiniteError
from tests.asynchronous.adding import make_adding, make_config

CARTS = EnvConfig("CartPole-v1", num_envs=1)


def versions_read(actor_learners: int, steps: int) -> list[int]:
    """For each worker step, after how many updates its weights were read."""
    work, shared = make_adding(make_config("serial", CARTS, actor_learners))
    found = []
    with SerialPool(work, shared, None) as pool:
        for _ in range(steps):
            number = pool.next_learner
            pool.run(int(pool.shared.env_steps.sum()) + 1)
            found.append(int(pool.shared.metrics[number, 0]))
    return found


def test_one_actor_learner_acts_with_the_newest_weights():
    assert versions_read(1, 5) == [0, 1, 2, 3, 4]


def test_each_of_three_acts_with_weights_that_two_others_have_updated_since():
    assert versions_read(3, 9) == [0, 0, 0, 1, 2, 3, 4, 5, 6]


def test_they_take_turns_with_their_own_environments_keys_and_statistics():
    work, shared = make_adding(make_config("serial", CARTS, 3))
    with SerialPool(work, shared, None) as pool:
        seen = pool.run(40)
        first = [learner.collector.observations.tolist() for learner in pool.learners]
    assert seen.gradient_steps.max() - seen.gradient_steps.min() <= 1
    assert seen.gradient_steps.tolist() == seen.normalizers[:, 0].tolist()
    assert np.array_equal(seen.keys[:, 0], np.arange(0, 6, 2) + seen.gradient_steps)
    assert len({str(observations) for observations in first}) == 3
    assert seen.weights[-1] == seen.gradient_steps.sum()


def test_parameters_that_were_returned_do_not_change_any_more():
    work, shared = make_adding(make_config("serial", CARTS, 2))
    with SerialPool(work, shared, None) as pool:
        first = pool.run(10)
        kept = first.copy()
        second = pool.run(30)
    assert all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(vars(first).values(), vars(kept).values(), strict=True)
    )
    assert second.env_steps.sum() >= 30 > first.env_steps.sum()


def test_an_actor_learner_that_counted_late_does_not_copy_the_target_network_again():
    _, shared = make_adding(make_config("serial", CARTS, 2))
    target = np.zeros_like(shared.weights)
    shared = replace(shared, target_weights=target, env_steps=np.array([995, 0]))
    shared.copy_weights_every(1000, more=6)  # at 1001
    np.testing.assert_array_equal(shared.target_weights, shared.weights)
    shared.weights[:] += 1
    shared.copy_weights_every(1000, more=4)  # another one, which added up the steps before: 999
    shared.copy_weights_every(1000, more=7)
    np.testing.assert_array_equal(shared.target_weights, shared.weights - 1)
    shared.copy_weights_every(1000, more=1005)  # at 2000
    np.testing.assert_array_equal(shared.target_weights, shared.weights)


def test_metrics_are_means_over_who_has_a_number_and_sums_of_counts():
    rows = np.array([[1.0, 2.0, np.nan], [3.0, 5.0, np.nan], [np.nan] * 3])
    found = combine_metrics(rows, ("loss/value", "episode/count", "episode/return"))
    assert (found["loss/value"], found["episode/count"]) == (2.0, 7)
    assert np.isnan(found["episode/return"])


def test_ranges_of_actor_learners_are_joined():
    names = ("reward/min", "reward/max", "observation/largest", "observation/widest", "observation/constant_share")
    found = combine_metrics(np.array([[-1.0, 1.0, 5.0, 2.0, 1.0], [-3.0, 0.0, 9.0, 1.0, 0.5]]), names)
    assert list(found.values()) == [-3.0, 1.0, 9.0, 2.0, 0.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_learners": 0}, "actor_learners 0 must be at least 1"),
        ({"report_every": 0}, "report_every 0 must be at least 1"),
        ({"pool": "threads"}, "pool 'threads' is not one of none, serial, processes, ray"),
        ({"env": EnvConfig(num_envs=4, workers=2)}, "env.workers 2 does not go with actor-learners: .* use workers 0"),
    ],
)
def test_settings_that_cannot_work_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        next(a3c.train(a3c.Config(**changes)))


def test_environments_that_are_passed_in_are_refused_with_what_to_do_instead():
    with pytest.raises(ConfigError, match=r"each actor-learner makes its own environments; set env.id instead"):
        next(a3c.train(a3c.Config(), envs=object()))


def test_a_nan_is_reported_with_its_actor_learner():
    work, shared = make_adding(make_config("serial", EnvConfig("tests.envs.faulty:nan_observation", num_envs=1), 2))
    with (
        pytest.raises(NonFiniteError, match=r"actor-learner 0: observation of environment 0 is"),
        open_pool(work, shared, None) as pool,
    ):
        pool.run(100)
