"""Restored environments go on to the bit as the originals did, or say that they cannot."""

import json
import os
import re
import subprocess
import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from birl.config import EnvConfig
from birl.envs.check.trials import try_envs
from birl.envs.make import make_envs
from birl.envs.native import generator_state, plain, set_generator_state
from birl.envs.serial import SerialEnvs
from birl.envs.vector import VectorAdapter
from birl.errors import InexactResume
from birl.types import Snapshot
from tests.envs.counting import Counting, DictCounting, MaskedCounting, counting_functions
from tests.envs.troubled import NoRandomness, OldRandomness
from tests.run.processes import SECONDS

RESUMABLE = {
    "CartPole, native": EnvConfig("CartPole-v1", 8),
    "CartPole, native, cut": EnvConfig("CartPole-v1", 8, max_episode_steps=9),
    "CartPole, native, hidden velocities": EnvConfig("CartPole-v1", 8, hide_velocities=True),
    "CartPole, serial": EnvConfig("CartPole-v1", 3),
    "Pendulum": EnvConfig("Pendulum-v1", 3, max_episode_steps=30),
    "LunarLander": EnvConfig("LunarLander-v3", 3),
    "LunarLander with wind": EnvConfig("LunarLander-v3", 2, kwargs={"enable_wind": True}),
    "LunarLanderContinuous": EnvConfig("LunarLanderContinuous-v3", 2),
    "MountainCarContinuous": EnvConfig("MountainCarContinuous-v0", 3, max_episode_steps=40),
    "Acrobot": EnvConfig("Acrobot-v1", 3, max_episode_steps=40),
    "a masked probe": EnvConfig("birl/ProbeMask-v0", 3),
    "a Dict probe": EnvConfig("birl/ProbeDict-v0", 3),
}


def written(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is after being written as JSON and read again."""
    return Snapshot(snapshot.arrays, json.loads(json.dumps(snapshot.values)), snapshot.exact, snapshot.reason)


def random_actions(envs, count, seed=0):
    envs.action_space.seed(seed)
    return [np.array([envs.action_space.sample() for _ in range(envs.num_envs)]) for _ in range(count)]


def assert_same_steps(left, right):
    for one, other in zip(left, right, strict=True):
        for name, array in one._asdict().items():
            expected = array if isinstance(array, dict) else {"": array}
            found = getattr(other, name)
            for key, part in expected.items():
                np.testing.assert_array_equal(part, found[key] if isinstance(found, dict) else found, f"{name} {key}")


@pytest.mark.parametrize("steps", [0, 7, 250])
@pytest.mark.parametrize("config", RESUMABLE.values(), ids=RESUMABLE.keys())
def test_restored_environments_go_on_as_the_originals(config, steps):
    with make_envs(config, 0) as envs, make_envs(config, 1) as restored:
        observations, masks = envs.reset(0)
        for actions in random_actions(envs, steps):
            step = envs.step(actions)
            observations, masks = step.observations, step.action_masks
        snapshot = written(envs.snapshot())
        assert snapshot.exact
        restored.reset(1)  # a restore replaces whatever was before
        restored_observations, restored_masks = restored.restore(snapshot)
        assert restored.restore_problem == ""
        assert not restored.fresh.any()
        np.testing.assert_equal(restored_observations, observations)
        np.testing.assert_equal(restored_masks, masks)
        future = random_actions(envs, 120, seed=5)
        assert_same_steps([envs.step(actions) for actions in future], [restored.step(actions) for actions in future])


@pytest.mark.parametrize("kind", [Counting, MaskedCounting, DictCounting])
def test_every_single_moment_can_be_restored_also_right_after_an_end(kind):
    functions = counting_functions([(4, 3), (100, 1), (3, 5)], kind)
    envs = SerialEnvs(functions)
    envs.reset(0)
    actions = random_actions(envs, 30)
    saved, steps = [], []
    for row in actions:
        saved.append(written(envs.snapshot()))
        steps.append(envs.step(row))
    for t, snapshot in enumerate(saved[:20]):
        restored, twin = SerialEnvs(functions), SerialEnvs(functions)
        restored.restore(snapshot)
        twin.restore(written(restored.snapshot()))  # a snapshot of what was restored is as good
        assert_same_steps(steps[t : t + 9], [restored.step(row) for row in actions[t : t + 9]])
        assert_same_steps(steps[t : t + 9], [twin.step(row) for row in actions[t : t + 9]])


RESUME_IN_NEW_PROCESS = """
import json, sys, numpy as np
from birl.config import EnvConfig
from birl.envs.make import make_envs
from birl.types import Snapshot
folder = sys.argv[1]
snapshot = Snapshot(dict(np.load(folder + "/arrays.npz")), json.load(open(folder + "/values.json")))
with make_envs(EnvConfig("LunarLander-v3", 2), 9) as envs:
    envs.restore(snapshot)
    assert not envs.restore_problem, envs.restore_problem
    steps = [envs.step(actions) for actions in np.load(folder + "/future.npy")]
np.savez(folder + "/steps.npz", observations=[s.observations for s in steps], rewards=[s.rewards for s in steps])
"""


def test_a_new_process_goes_on_as_the_old_one_would_have_under_another_hash_seed(tmp_path):
    with make_envs(EnvConfig("LunarLander-v3", 2), 0) as envs:
        envs.reset(0)
        for actions in random_actions(envs, 230):
            envs.step(actions)
        snapshot = envs.snapshot()
        future = np.array(random_actions(envs, 60, seed=5))
        steps = [envs.step(actions) for actions in future]
    np.savez(tmp_path / "arrays.npz", **snapshot.arrays)
    (tmp_path / "values.json").write_text(json.dumps(snapshot.values))
    np.save(tmp_path / "future.npy", future)
    subprocess.run(
        [sys.executable, "-c", RESUME_IN_NEW_PROCESS, str(tmp_path)],
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "123"},
        timeout=SECONDS,
    )
    found = np.load(tmp_path / "steps.npz")
    np.testing.assert_array_equal(found["observations"], [step.observations for step in steps])
    np.testing.assert_array_equal(found["rewards"], [step.rewards for step in steps])


class PrivateRandomness(Counting):
    """Begins at a random number from a generator of its own."""

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.total = int(np.random.default_rng().integers(10**6))
        return self.observe(), answer[1]


class HiddenDraws(Counting):
    """Draws more numbers in each reset, which only its generator shows."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        answer = super().reset(seed=seed)
        self.episodes += 1
        self.np_random.random(self.episodes)
        return answer


@pytest.mark.parametrize("kind", [PrivateRandomness, HiddenDraws])
def test_an_environment_that_cannot_be_replayed_begins_a_new_episode_and_is_named(kind):
    functions = [*counting_functions([(10**9, 3)]), partial(kind, 1, 10**9, 3)]
    envs, restored = SerialEnvs(functions), SerialEnvs(functions)
    envs.reset(0)
    for _ in range(6):
        envs.step(np.ones(2, int))
    with pytest.warns(UserWarning, match="not exact: environment 1 began a new episode"):
        observations, _ = restored.restore(written(envs.snapshot()))
    assert restored.fresh.tolist() == [False, True]
    assert "environment 1" in restored.restore_problem
    assert observations[:, 1].tolist() == [2, 0]  # one goes on, the other begins a new episode
    step = restored.step(np.ones(2, int))
    assert step.observations[:, 1].tolist() == [3, 1]
    assert step.valid.all()
    assert restored.reset(0) is not None
    assert not restored.fresh.any()


def test_an_episode_too_long_to_log_is_not_exact_until_it_ends():
    functions = counting_functions([(10**9, 8), (10**9, 3)])
    envs = SerialEnvs(functions, action_limit=5)
    envs.reset(0)
    for t in range(9):
        assert envs.snapshot().exact == (t <= 5)
        envs.step(np.ones(2, int))
    assert envs.snapshot().exact  # the ninth step was a reset

    envs.reset(0)
    for _ in range(7):
        envs.step(np.ones(2, int))
    snapshot = envs.snapshot()
    assert "environments [0] are in an episode of more than 5 steps" in snapshot.reason
    restored = SerialEnvs(functions, action_limit=5)
    with pytest.warns(UserWarning, match="environment 0 began a new episode; its episode is longer than 5 steps"):
        restored.restore(written(snapshot))
    assert restored.fresh.tolist() == [True, False]


def test_the_log_keeps_only_actions_of_running_episodes():
    envs = SerialEnvs(counting_functions([(10**9, 3), (10**9, 4)]))
    envs.reset(0)
    for _ in range(200):
        envs.step(np.ones(2, int))
        assert len(envs.snapshot().arrays["actions"]) <= 4 + 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_envs(EnvConfig("CartPole-v1", 2, "envpool"), 0),
        lambda: VectorAdapter(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)),
    ],
    ids=["EnvPool", "a user's vector environment"],
)
def test_an_environment_that_cannot_save_its_state_begins_a_new_episode_and_says_so(make):
    with make() as envs, make() as restored:
        first, _ = envs.reset(0)
        for _ in range(12):
            envs.step(np.ones(2, int))
        snapshot = written(envs.snapshot())
        assert not snapshot.exact
        assert "cannot save its state" in snapshot.reason
        with pytest.warns(UserWarning, match="not exact"):
            observations, _ = restored.restore(snapshot)
        assert restored.fresh.all()
        assert (np.abs(observations) <= 0.05).all()
        assert not np.array_equal(observations, first)  # new episodes, not the first ones of the run again
        assert restored.step(np.ones(2, int)).valid.all()


def test_a_snapshot_of_another_kind_of_environments_begins_new_episodes():
    with (
        make_envs(EnvConfig("CartPole-v1", 8), 0) as native,
        make_envs(EnvConfig("CartPole-v1", 8, "envpool"), 0) as pool,
    ):
        native.reset(0)
        with pytest.warns(UserWarning, match="another kind"):
            pool.restore(native.snapshot())
        assert pool.fresh.all()


@pytest.mark.parametrize("num_envs", [2, 8])
def test_a_snapshot_with_another_number_of_environments_is_refused(num_envs):
    with (
        make_envs(EnvConfig("CartPole-v1", num_envs), 0) as envs,
        make_envs(EnvConfig("CartPole-v1", num_envs + 1), 0) as more,
    ):
        envs.reset(0)
        with pytest.raises(ValueError, match=f"snapshot has {num_envs} environments, not {num_envs + 1}"):
            more.restore(envs.snapshot())


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_every_bit_generator_survives_json(bits):
    generator = np.random.Generator(bits(3))
    generator.integers(0, 9, 5, np.int32)
    state = json.loads(json.dumps(plain(generator_state(generator))))
    expected = generator.random(4)
    other = np.random.Generator(bits(9))
    set_generator_state(other, state)
    np.testing.assert_array_equal(other.random(4), expected)


def test_a_snapshot_keeps_nothing_that_steps_change():
    with make_envs(EnvConfig("CartPole-v1", 8), 0) as envs:
        envs.reset(0)
        envs.step(np.zeros(8, int))
        snapshot = envs.snapshot()
        before = {name: array.copy() for name, array in snapshot.arrays.items()}
        for _ in range(20):
            envs.step(np.zeros(8, int))
        np.testing.assert_equal(snapshot.arrays, before)


@pytest.mark.parametrize("steps", [3, 20])
def test_an_environment_that_draws_from_a_random_state_is_restored_exactly(steps):
    functions = [partial(OldRandomness, limit=7)] * 2
    with SerialEnvs(functions) as envs, SerialEnvs(functions) as restored:
        envs.reset(0)
        for _ in range(steps):
            envs.step(np.ones(2, int))
        snapshot = written(envs.snapshot())
        assert snapshot.exact
        restored.restore(snapshot)
        assert not restored.restore_problem
        for _ in range(20):
            np.testing.assert_equal(tuple(restored.step(np.ones(2, int))), tuple(envs.step(np.ones(2, int))))


class Unreadable(Counting):
    @property
    def np_random(self):
        raise OSError("the simulator is on another machine")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(NoRandomness, "TypeError: np_random is None, not a Generator"), (Unreadable, "OSError: the simulator is on")],
)
def test_an_environment_whose_state_cannot_be_read_begins_a_new_episode_and_says_so(kind, reason):
    class Short(kind):
        def __init__(self):
            super().__init__(limit=5)

        def reset(self, *, seed=None, options=None):
            self.steps = self.total = 0
            self.needs_reset = False
            return self.observe(), {}

    with SerialEnvs([Short]) as envs, SerialEnvs([Short]) as restored:
        envs.reset(0)
        for _ in range(8):
            envs.step(np.ones(1, int))
        snapshot = written(envs.snapshot())
        assert not snapshot.exact
        assert f"its state cannot be read: {reason}" in snapshot.reason
        with pytest.warns(InexactResume, match="environment 0 began a new episode; its state cannot be read"):
            restored.restore(snapshot)
        assert restored.fresh.all()


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig("LunarLander-v3", 8),
        EnvConfig("LunarLander-v3", 16, ray_actors=8),
        EnvConfig("CartPole-v1", 1),
        EnvConfig("CartPole-v1", 2, workers=1),
    ],
)
def test_a_trial_finds_no_problem_in_environments_that_can_be_replayed(config):
    assert try_envs(config).problem == ""


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            EnvConfig("BipedalWalker-v3", 4),
            "stepped differently from the original|replaying its actions gave a different result",
        ),
        (EnvConfig("tests.envs.troubled:Leaky-v0", 4), "stepped differently from the original"),
        (EnvConfig("tests.envs.troubled:Leaky-v0", 2, workers=2), "stepped differently from the original"),
        (EnvConfig("tests.envs.troubled:NoRandomness-v0", 1), "np_random is None"),
        (
            EnvConfig("tests.envs.troubled:Buggy-v0", 2, kwargs={"bug_at": 30}),
            "in spare environments raised RuntimeError: .*mass is",
        ),
    ],
)
def test_a_trial_finds_environments_that_cannot_be_resumed_exactly(config, reason, monkeypatch):
    monkeypatch.setattr("birl.envs.check.trials.TRIAL_SECONDS", 600.0)  # on a busy machine, too
    assert re.search(reason, try_envs(config).problem)
