"""Environments whose state can be read are restored to the bit, however long the episode is."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import ClipAction, RescaleAction, TimeLimit

from birl.config import AtariConfig, EnvConfig
from birl.envs import native
from birl.envs import snapshot as snapshots
from birl.envs.make import make_env, make_envs
from birl.envs.serial import SerialEnvs
from birl.envs.wrappers import StepTimeout
from birl.types import Snapshot
from tests.envs.test_snapshot import assert_same_steps, random_actions, written

MUJOCO = [
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Ant-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Humanoid-v5",
    "Pusher-v5",
]
GAMES = ["Pong", "Breakout", "Qbert", "SpaceInvaders", "Seaquest"]
SOME_GAMES = [pytest.param(name, marks=() if name in ("Breakout", "Qbert") else pytest.mark.slow) for name in GAMES]


def assert_goes_on(functions, tier, before=60, after=60):
    """Restore a snapshot in other environments and check that both go on equally."""
    envs, restored = SerialEnvs(functions), SerialEnvs(functions)
    observations, _ = envs.reset(0)
    for actions in random_actions(envs, before):
        observations, *_ = envs.step(actions)
    snapshot = written(envs.snapshot())
    assert snapshot.exact
    assert snapshot.values["tier"] == tier
    restored.reset(1)
    restored_observations, _ = restored.restore(snapshot)
    assert restored.restore_problem == ""
    np.testing.assert_array_equal(restored_observations, observations)
    future = random_actions(envs, after, seed=5)
    steps = [envs.step(actions) for actions in future]
    assert_same_steps(steps, [restored.step(actions) for actions in future])
    for one in (envs, restored):
        one.close()
    return steps


@pytest.mark.parametrize("env_id", MUJOCO)
def test_mujoco_goes_on_from_its_state_also_across_resets(env_id):
    pytest.importorskip("mujoco")
    # Three different limits: the snapshot is at a start, at an end and in the middle of an episode.
    functions = [partial(make_env, EnvConfig(env_id, max_episode_steps=limit)) for limit in (59, 60, 1000)]
    steps = assert_goes_on(functions, snapshots.EACH)
    assert not all(step.valid.all() for step in steps)


def game(name, limit, **kwargs):
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    return partial(gym.make, f"ALE/{name}-v5", obs_type="grayscale", max_episode_steps=limit, **kwargs)


@pytest.mark.parametrize("name", SOME_GAMES)
def test_ale_goes_on_from_its_state_also_across_resets(name):
    frame_skips = {"frameskip": (2, 5)}  # drawn from np_random
    functions = [game(name, limit, repeat_action_probability=0.0, **frame_skips) for limit in (60, 80)]
    steps = assert_goes_on(functions, snapshots.EACH)
    assert not all(step.valid.all() for step in steps)


@pytest.mark.parametrize("name", SOME_GAMES)
def test_atari_with_sticky_actions_and_lives_goes_on_from_its_state(name):
    pytest.importorskip("ale_py")
    atari = AtariConfig(sticky_actions=0.9, episodic_life=True)  # so that the held action nearly always matters
    config = EnvConfig(f"ALE/{name}-v5", atari=atari)
    assert_goes_on([partial(make_env, config)] * 2, snapshots.EACH)


def test_a_state_that_ale_cannot_read_is_a_value_error():
    """ALE's own exception would end a resume with a traceback."""
    env = game("Pong", 10, repeat_action_probability=0.0)()
    with pytest.raises(ValueError, match="ALE cannot read its saved state"):
        native._set_atari(env.unwrapped, np.zeros(0, np.uint8))


def test_ale_with_sticky_actions_is_replayed_because_its_state_lacks_the_repeated_action():
    assert_goes_on([game("Breakout", 80, repeat_action_probability=0.25)], snapshots.REPLAY)


def test_ale_with_sticky_actions_cannot_replay_a_later_episode_and_says_so():
    """ALE's random numbers are known only from a seed on, and the screen does not show them."""
    functions = [game("Breakout", 20, repeat_action_probability=0.25)]
    envs, restored = SerialEnvs(functions), SerialEnvs(functions)
    envs.reset(0)
    for actions in random_actions(envs, 25):
        envs.step(actions)
    snapshot = written(envs.snapshot())
    assert not snapshot.exact
    reason = "ALE repeats actions with probability 0.25 and does not save which one it repeats"
    assert snapshot.reason == f"{reason}; use repeat_action_probability 0"
    with pytest.warns(UserWarning, match=f"not exact: environment 0 began a new episode; {reason}"):
        restored.restore(snapshot)
    assert restored.fresh.all()


def test_a_snapshot_does_not_grow_with_the_episode():
    pytest.importorskip("mujoco")
    with make_envs(EnvConfig("HalfCheetah-v5", 2), 0) as envs:
        envs.reset(0)
        sizes = []
        for actions in random_actions(envs, 40):
            sizes.append(sum(array.nbytes for array in envs.snapshot().arrays.values()))
            envs.step(actions)
    assert len(set(sizes)) == 1


def test_a_snapshot_keeps_nothing_that_steps_change_and_changes_nothing():
    pytest.importorskip("mujoco")
    with make_envs(EnvConfig("Ant-v5", 1), 0) as envs, make_envs(EnvConfig("Ant-v5", 1), 0) as watched:
        envs.reset(0), watched.reset(0)
        for actions in random_actions(envs, 20):
            snapshot = watched.snapshot()
            before = {name: array.copy() for name, array in snapshot.arrays.items()}
            assert_same_steps([envs.step(actions)], [watched.step(actions)])
            np.testing.assert_equal(snapshot.arrays, before)


def test_a_checkpoint_of_the_replay_tier_is_still_replayed():
    """Checkpoints of versions that could not read states are of this tier."""
    pytest.importorskip("mujoco")
    with make_envs(EnvConfig("Hopper-v5", 2), 0) as envs, make_envs(EnvConfig("Hopper-v5", 2), 0) as restored:
        envs.reset(0)
        for actions in random_actions(envs, 50):
            envs.step(actions)
        saved = [env._replace(state=None) for env in envs.saved_envs()]
        observations = envs._arrays
        ended = np.array(envs._ended)
        snapshot = snapshots.save_single(envs._log, envs.action_space, 0, saved, observations, ended, None, {})
        assert snapshot.values["tier"] == snapshots.REPLAY
        restored.restore(written(snapshot))
        assert restored.restore_problem == ""
        future = random_actions(envs, 30, seed=5)
        assert_same_steps([envs.step(actions) for actions in future], [restored.step(actions) for actions in future])
        assert restored.snapshot().values["tier"] == snapshots.EACH


def test_a_state_that_does_not_fit_begins_a_new_episode_and_says_so():
    pytest.importorskip("mujoco")
    with make_envs(EnvConfig("Hopper-v5", 1), 0) as envs, make_envs(EnvConfig("Hopper-v5", 1), 0) as restored:
        envs.reset(0)
        snapshot = written(envs.snapshot())
        cut = {name: array[:-1] if name.endswith("/state") else array for name, array in snapshot.arrays.items()}
        with pytest.warns(UserWarning, match="not exact: environment 0 began a new episode; it raised"):
            restored.restore(Snapshot(cut, snapshot.values))
        assert restored.fresh.all()
        assert restored.step(random_actions(envs, 1)[0]).valid.all()


@pytest.mark.parametrize(("workers", "others"), [(2, 0), (0, 2)])
def test_states_can_be_restored_with_and_without_workers(workers, others):
    pytest.importorskip("mujoco")
    config = partial(EnvConfig, "Hopper-v5", 3)
    with make_envs(config(workers=workers), 0) as envs, make_envs(config(workers=others), 0) as restored:
        envs.reset(0)
        for actions in random_actions(envs, 30):
            envs.step(actions)
        snapshot = written(envs.snapshot())
        assert snapshot.values["tier"] == snapshots.EACH
        restored.restore(snapshot)
        assert restored.restore_problem == ""
        future = random_actions(envs, 30, seed=5)
        assert_same_steps([envs.step(actions) for actions in future], [restored.step(actions) for actions in future])


class Sum(gym.Wrapper):
    """Adds up rewards, and can read and set its sum."""

    total = 0.0

    def reset(self, **kwargs):
        self.total = 0.0
        return self.env.reset(**kwargs)

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.total += float(reward)
        return observation, self.total, *rest

    def get_state(self):
        return {"total": np.array([self.total])}, {"doubled": 2 * self.total}

    def set_state(self, arrays, values):
        assert values["doubled"] == 2 * arrays["total"][0]
        self.total = float(arrays["total"][0])


def test_a_wrapper_with_get_state_and_set_state_is_restored():
    pytest.importorskip("mujoco")
    assert_goes_on([lambda: StepTimeout(Sum(gym.make("Hopper-v5")), 60.0)], snapshots.EACH)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gym.make("CartPole-v1"),
        lambda: ClipAction(gym.make("Hopper-v5")),
        lambda: RescaleAction(gym.make("Hopper-v5"), -1, 1),
        lambda: TimeLimit(gym.make("Hopper-v5"), 50),
        lambda: type("Derived", (gym.make("Hopper-v5").unwrapped.__class__,), {"__module__": "elsewhere"})(),
    ],
    ids=["another simulator", "an unknown wrapper", "another", "one wrapper twice", "derived from a known one"],
)
def test_an_environment_with_an_unknown_layer_has_no_native_state(make):
    pytest.importorskip("mujoco")
    env = make()
    assert not native.has_state(env)
    env.close()
