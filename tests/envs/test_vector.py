"""Vector environments that break a rule are refused with a remedy; good ones are not changed."""

import sys
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from birl.config import ConfigError
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import derived_seeds
from birl.envs.vector import VectorAdapter
from birl.errors import EnvError
from tests.envs.counting import MODES, MaskedCounting, MethodCounting, counting_functions
from tests.envs.hybrid import Hybrid


class Wrapped(gym.vector.VectorWrapper):
    """A vector environment with other metadata."""

    def __init__(self, env, metadata):
        super().__init__(env)
        self.metadata = metadata


class IgnoresResetMask(gym.vector.VectorWrapper):
    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed)


class DropsFinalObservations(gym.vector.VectorWrapper):
    def step(self, actions):
        return *self.env.step(actions)[:4], {}


class MaskedFloat32(MaskedCounting):
    """Needs no cast, so that only an explicit copy protects earlier observations."""

    observation_space = spaces.Box(0, np.inf, (3,), np.float32)

    def observe(self):
        return super().observe().astype(np.float32)


def sync(mode, limits=(2, 3), kind=MaskedCounting, **kwargs):
    return SyncVectorEnv(counting_functions([(100, limit) for limit in limits], kind), autoreset_mode=mode, **kwargs)


def run(envs, steps):
    envs.reset(0)
    return [envs.step(np.ones(envs.num_envs, int)) for _ in range(steps)]


@pytest.mark.parametrize("mode", MODES)
def test_the_method_action_masks_gives_the_masks_that_infos_would_give(mode):
    """Nobody knows that of an episode's last observation if the same step resets."""
    expected, given = (VectorAdapter(sync(mode, kind=kind)) for kind in (MaskedCounting, MethodCounting))
    assert np.array_equal(expected.reset(0)[1], given.reset(0)[1])
    for _ in range(12):
        left, right = (envs.step(np.ones(2, int)) for envs in (expected, given))
        known = ~right.truncated if mode is AutoresetMode.SAME_STEP else np.ones(2, bool)
        assert np.array_equal(left.action_masks[known], right.action_masks[known])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_an_environment_that_ignores_reset_mask_is_told_to_use_next_step(mode):
    with pytest.raises(RuntimeError, match=r"ignores options\['reset_mask'\].*AutoresetMode.NEXT_STEP"):
        run(VectorAdapter(IgnoresResetMask(sync(mode))), 5)


def test_same_step_without_final_observations_is_refused():
    with pytest.raises(RuntimeError, match="final_obs"):
        run(VectorAdapter(DropsFinalObservations(sync(AutoresetMode.SAME_STEP))), 5)


@pytest.mark.parametrize(
    ("declared", "said"),
    [({}, "does not declare its autoreset mode"), ({"autoreset_mode": "next"}, "declares autoreset mode 'next'")],
)
def test_an_environment_without_a_known_autoreset_mode_is_refused_before_the_first_step(declared, said):
    modes = "AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED"
    remedy = rf"set its metadata\['autoreset_mode'\] to one of {modes}"
    with pytest.raises(ConfigError, match=f"{said}; {remedy}"):
        VectorAdapter(Wrapped(sync(AutoresetMode.NEXT_STEP), declared))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_returned_never_changes_afterwards(mode):
    envs = VectorAdapter(sync(mode, kind=MaskedFloat32, copy=False))
    observations, masks = envs.reset(0)
    returned = [(observations, masks)]
    copies = [(observations.copy(), masks.copy())]
    for _ in range(8):
        step = envs.step(np.ones(2, int))
        returned.append(
            (step.observations, step.rewards, step.terminated, step.truncated, step.valid, step.action_masks)
        )
        copies.append(tuple(array.copy() for array in returned[-1]))
    for arrays, kept in zip(returned, copies, strict=True):
        for array, copy in zip(arrays, kept, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("mode", MODES)
def test_reset_forgets_that_an_episode_had_ended(mode):
    envs = VectorAdapter(sync(mode))
    assert run(envs, 2)[-1].truncated.tolist() == [True, False]
    assert envs.reset(0)[0][:, 1].tolist() == [0, 0]
    assert envs.step(np.ones(2, int)).valid.all()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_first_observations_and_another_seed_others(seed):
    envs = VectorAdapter(gym.make_vec("Pendulum-v1", 3, "sync"))
    first, again, other = envs.reset(seed)[0], envs.reset(seed)[0], envs.reset(seed + 1)[0]
    np.testing.assert_array_equal(first, again)
    assert not set(first[:, 0]) & set(other[:, 0])


def test_actions_count_from_0_wherever_the_environment_starts():
    class Shifted(gym.Env):
        observation_space = spaces.Box(0, 9, (1,), np.float32)
        action_space = spaces.Discrete(2, start=7)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.array([action], np.float32), 0.0, False, False, {}

    envs = VectorAdapter(SyncVectorEnv([Shifted] * 2))
    envs.reset(0)
    assert envs.step(np.array([0, 1])).observations.tolist() == [[7], [8]]


@pytest.mark.parametrize("masks", ["info", "observation", "none"])
def test_dict_actions_and_masks_give_the_same_steps_as_one_by_one(masks):
    vector = SyncVectorEnv([partial(Hybrid, masks)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    ours = SerialEnvs([partial(Hybrid, masks)] * 3)
    theirs = VectorAdapter(vector)
    assert ours.action_space == theirs.action_space
    start = ours.begin([derived_seeds(0, 1)[0] + i for i in range(3)])
    other = theirs.reset(0)
    np.testing.assert_equal(start, other)
    current = start[1]
    resets = 0
    for _ in range(150):
        actions = allowed_rows(ours, current)
        step = ours.step(actions)
        other = theirs.step(actions)
        np.testing.assert_equal(tuple(step), tuple(other))
        current = step.action_masks
        resets = resets + (~step.valid).sum()
    assert resets > 3
    assert (current is None) == (masks == "none")


def allowed_rows(envs, masks):
    """[B, K] flat actions: the first allowed choices, and numbers far beyond the bounds."""
    rows = np.zeros((envs.num_envs, 7), np.float32)
    rows[:, :2] = np.random.default_rng(0).normal(scale=5, size=(envs.num_envs, 2))
    if masks is not None:
        rows[:, 2] = masks[:, :3].argmax(1)
        rows[:, 5] = masks[:, 3:5].argmax(1)
        rows[:, 6] = masks[:, 5:].argmax(1)
    return rows


def test_actions_of_the_wrong_length_raise():
    envs = VectorAdapter(sync(AutoresetMode.NEXT_STEP))
    envs.reset(0)
    with pytest.raises(ValueError, match=r"shape \(3,\); 2 environments"):
        envs.step(np.zeros(3, int))


@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_float32_and_flags_are_bools(mode):
    step = run(VectorAdapter(sync(mode)), 1)[0]
    assert (step.rewards.dtype, step.terminated.dtype, step.truncated.dtype, step.valid.dtype) == (
        np.float32,
        bool,
        bool,
        bool,
    )


def test_a_mask_that_comes_only_in_step_is_refused():
    class Late(MaskedCounting):
        def mask(self):
            return super().mask() if self.steps else {}

    with pytest.raises(EnvError, match="gave an action_mask in step but none in reset"):
        run(VectorAdapter(sync(AutoresetMode.NEXT_STEP, kind=Late)), 1)


def test_a_users_vector_environment_is_stepped_by_step_and_not_by_send():
    """A wrapper of an EnvPool may have its send and recv, which bypass what it does in step."""

    class Sending(SyncVectorEnv):
        def send(self, actions):
            pytest.fail("stepped by send")

        recv = send

    with VectorAdapter(Sending([partial(gym.make, "CartPole-v1")] * 2)) as envs:
        envs.reset(0)
        assert envs.step(np.zeros(2, int)).rewards.tolist() == [1.0, 1.0]


class Answers(gym.vector.VectorWrapper):
    """A vector environment with one part of each step replaced."""

    def __init__(self, env, part, given):
        super().__init__(env)
        self.part, self.given = part, given

    def step(self, actions):
        answer = list(self.env.step(actions))
        answer[self.part] = self.given
        return tuple(answer)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        (0, np.zeros((2, 1)), r"returned an observation of shape \(2, 1\); its space says \(2, 3\)"),
        (0, np.zeros(3), r"returned an observation of shape \(3,\); its space says \(2, 3\)"),
        (1, np.zeros(1), r"returned rewards of shape \(1,\); return \(2,\)"),
        (1, 0.0, r"returned rewards of shape \(\); return \(2,\)"),
        (1, ["1.0", "1.0"], r"returned the rewards \['1.0', '1.0'\]; return \(2,\) floats"),
        (1, np.ones(2, complex), r"returned the rewards .*1.\+0.j.*; return \(2,\) floats"),
        (0, np.zeros((2, 3), complex), r"returned the observation .*0.\+0.j.*; return an array of real numbers"),
        (2, None, r"returned terminated of shape \(\); return \(2,\), a bool for each environment"),
        (2, [False, None], r"environment 1 returned None as terminated; return True or False"),
        (3, np.array([0.0, np.nan]), r"environment 1 returned .*nan.* as truncated; return True or False"),
        (3, False, r"returned truncated of shape \(\); return \(2,\)"),
    ],
)
def test_a_step_that_breaks_the_rules_is_named(part, given, message, mode):
    with pytest.raises(EnvError, match=message):
        run(VectorAdapter(Answers(sync(mode), part, given)), 1)


def test_flags_that_are_0_and_1_are_accepted():
    step = run(VectorAdapter(Answers(sync(AutoresetMode.NEXT_STEP), 2, np.array([0, 1]))), 1)[0]
    assert (step.terminated.tolist(), step.terminated.dtype) == ([False, True], bool)


def test_a_vector_environment_that_calls_sys_exit_raises_an_error():
    class Exits(gym.vector.VectorWrapper):
        def step(self, actions):
            sys.exit(0)

    with pytest.raises(RuntimeError, match="raised in step: SystemExit: 0"):
        run(VectorAdapter(Exits(sync(AutoresetMode.NEXT_STEP))), 1)
