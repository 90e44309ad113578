"""Environments stepped one after another: seeds, dtypes, copies, errors."""

import re
import sys
from collections import Counter
from functools import partial
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from birl.config import ConfigError
from birl.envs.serial import SerialEnvs
from birl.envs.spaces import action_reader, derived_seeds
from birl.errors import EnvError
from tests.envs.counting import Counting, DictCounting, counting_functions


class Echo(gym.Env):
    """Keeps its last action, and returns an observation array that it writes into again."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)

    def __init__(self, action_space, in_place=False):
        self.action_space, self.in_place = action_space, in_place
        self.array = np.zeros(2, np.float32)
        self.last = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = self.np_random.uniform(size=2)
        return self.array, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.last = np.copy(action)
        if self.in_place:
            action *= 0
        self.array += 1
        return self.array, 0.0, False, False, {}


class Random(gym.Env):
    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(3, np.float32), {}

    def step(self, action):
        return self.np_random.random(3, np.float32), 0.0, False, False, {}


def test_the_same_seed_gives_the_same_run_and_seed_0_is_a_seed():
    for seed in (0, 1):
        runs = []
        for _ in range(2):
            envs = SerialEnvs([Random] * 3)
            first, _ = envs.reset(seed)
            runs.append(np.stack([first] + [envs.step(np.zeros(3, int)).observations for _ in range(5)]))
        np.testing.assert_array_equal(*runs)


def test_environments_differ_and_neighbouring_seeds_share_none():
    envs = SerialEnvs([Random] * 8)
    rows = [tuple(row) for seed in range(4) for row in envs.reset(seed)[0]]
    assert len(set(rows)) == 32


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_derived_seeds_are_distinct_and_fit_in_31_bits(seed):
    seeds = derived_seeds(seed, 5000)
    assert len(set(seeds)) == 5000
    assert max(seeds) < 2**31


def test_reset_begins_new_episodes_everywhere():
    envs = SerialEnvs(counting_functions([(100, 2), (100, 5)]))
    envs.reset(0)
    for _ in range(2):
        step = envs.step(np.ones(2, int))
    assert step.truncated.tolist() == [True, False]
    first, _ = envs.reset(0)
    assert first.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert envs.step(np.ones(2, int)).valid.all()


def test_observations_are_float32_where_the_environment_has_float64():
    envs = SerialEnvs(counting_functions([(5, 5)]))
    assert envs.observation_space.dtype == np.float32
    assert envs.reset(0)[0].dtype == np.float32
    assert envs.step(np.zeros(1, int)).observations.dtype == np.float32


def test_rewards_are_float32_and_flags_are_bools():
    envs = SerialEnvs(counting_functions([(5, 5)]))
    envs.reset(0)
    step = envs.step(np.zeros(1, int))
    assert (step.rewards.dtype, step.terminated.dtype, step.truncated.dtype, step.valid.dtype) == (
        np.float32,
        bool,
        bool,
        bool,
    )


def test_nested_dicts_and_tuples_become_one_flat_dict_without_the_mask():
    envs = SerialEnvs(counting_functions([(9, 9)] * 2, DictCounting))
    assert set(envs.observation_space.spaces) == {"count/steps", "count/total", "pair/0", "pair/1"}
    envs.reset(0)
    step = envs.step(np.array([2, 1]))
    assert step.observations["count/steps"].tolist() == [1, 1]
    assert step.observations["count/total"].tolist() == [[2], [1]]
    assert step.observations["count/total"].dtype == np.float32
    assert step.observations["pair/0"].shape == (2, 2, 2, 1)
    assert all(array.dtype == envs.observation_space[name].dtype for name, array in step.observations.items())


def test_what_was_returned_never_changes_afterwards():
    envs = SerialEnvs([partial(Echo, spaces.Discrete(2))] * 2)
    returned = [envs.reset(0)[0]]
    copies = [returned[0].copy()]
    for _ in range(4):
        returned.append(envs.step(np.zeros(2, int)).observations)
        copies.append(returned[-1].copy())
    np.testing.assert_array_equal(returned, copies)
    assert not any(np.shares_memory(left, right) for left, right in pairwise(returned))


def test_an_environment_that_clips_its_action_in_place_does_not_change_the_callers():
    envs = SerialEnvs([partial(Echo, spaces.Box(-1, 1, (2,), np.float32), in_place=True)])
    envs.reset(0)
    actions = np.ones((1, 2), np.float32)
    envs.step(actions)
    assert actions.tolist() == [[1, 1]]
    assert envs.snapshot().arrays["actions"].tolist() == [[[1, 1]]]


@pytest.mark.parametrize(
    ("space", "given", "seen"),
    [
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([2, 3], start=[1, 10]), [[0, 0], [1, 2]], [[1, 10], [2, 12]]),
        (spaces.MultiDiscrete([2, 3]), [[0, 0], [1, 2]], [[0, 0], [1, 2]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        (spaces.Box(-1, 1, (1, 2), np.float64), [[[0.5, -1]], [[0, 1]]], [[[0.5, -1]], [[0, 1]]]),
    ],
)
def test_actions_reach_the_environment_as_its_space_has_them(space, given, seen):
    envs = SerialEnvs([partial(Echo, space)] * 2)
    envs.reset(0)
    envs.step(np.array(given, np.float32 if isinstance(space, spaces.Box) else np.int32))
    np.testing.assert_array_equal([env.last for env in envs.envs], seen)


def test_the_action_space_is_the_environments_own_wherever_it_starts():
    assert SerialEnvs([partial(Echo, spaces.Discrete(3, start=5))]).action_space == spaces.Discrete(3, start=5)


@pytest.mark.parametrize("actions", [np.zeros(1, int), np.zeros(3, int), np.zeros((2, 1), int), np.zeros(())])
def test_actions_of_the_wrong_shape_raise_with_both_shapes(actions):
    envs = SerialEnvs(counting_functions([(5, 5)] * 2))
    envs.reset(0)
    with pytest.raises(ValueError, match=r"actions have shape .*; 2 environments .* need \(2,\)"):
        envs.step(actions)


def test_floats_are_refused_as_discrete_actions():
    with pytest.raises(ValueError, match="float64"):
        action_reader(spaces.Discrete(2), 1)(np.array([0.5]))


def test_an_exception_names_its_environment():
    class Broken(Counting):
        def step(self, action):
            raise ZeroDivisionError("mass is zero")

    envs = SerialEnvs([*counting_functions([(5, 5)] * 3), Broken])
    envs.reset(0)
    with pytest.raises(RuntimeError, match="environment 3 raised in step: ZeroDivisionError: mass is zero") as raised:
        envs.step(np.zeros(4, int))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_observation_of_the_wrong_shape_is_not_broadcast():
    class Short(Counting):
        def observe(self):
            return np.zeros(1)

    with pytest.raises(ValueError, match=r"environment 0 returned an observation.*shape \(1,\); its space says \(3,\)"):
        SerialEnvs([Short]).reset(0)


def test_step_before_reset_says_so():
    with pytest.raises(RuntimeError, match="call reset"):
        SerialEnvs(counting_functions([(5, 5)])).step(np.zeros(1, int))


def test_a_mask_that_comes_only_in_step_is_refused():
    class Late(Counting):
        def mask(self):
            return {"action_mask": np.ones(3, bool)} if self.steps else {}

    envs = SerialEnvs([Late])
    envs.reset(0)
    with pytest.raises(EnvError, match="environment 0 gave an action_mask in step but none did in reset"):
        envs.step(np.zeros(1, int))


def test_a_mask_missing_now_and_then_allows_everything():
    class Sometimes(Counting):
        def mask(self):
            return {"action_mask": np.array([True, False, False])} if self.steps % 2 == 0 else {}

    envs = SerialEnvs([Sometimes] * 2)
    assert envs.reset(0)[1].tolist() == [[True, False, False]] * 2
    assert envs.step(np.zeros(2, int)).action_masks.all()


def test_masks_of_multi_discrete_actions_lie_side_by_side():
    class Multi(Counting):
        action_space = spaces.MultiDiscrete([2, 3])

        def mask(self):
            return {"action_mask": (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))}

    assert SerialEnvs([Multi]).reset(0)[1].tolist() == [[True, False, False, True, True]]


def test_unsupported_spaces_are_named():
    class Text(Counting):
        observation_space = spaces.Text(5)

    with pytest.raises(ConfigError, match="observation space Text"):
        SerialEnvs([Text])


def test_closing_closes_every_environment():
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    with SerialEnvs([Closing] * 3):
        pass
    assert len(closed) == 3


def test_stepping_makes_fewer_calls_than_gymnasiums_sync_vector_env():
    """Counted, not timed, so that a busy machine does not matter; benchmarks/speed.py measures."""
    functions = [partial(Echo, spaces.Discrete(2))] * 8
    ours = SerialEnvs(functions)
    theirs = gym.vector.SyncVectorEnv(functions)
    ours.reset(0)
    theirs.reset(seed=0)

    def calls_in(step):
        calls = Counter()
        sys.setprofile(lambda frame, event, argument: calls.update([event]))
        step(np.zeros(8, int))
        sys.setprofile(None)
        return calls["call"] + calls["c_call"]

    assert calls_in(ours.step) < calls_in(theirs.step)


def test_an_environment_that_calls_sys_exit_raises_an_error():
    class Exits(Counting):
        def step(self, action):
            sys.exit(0)

    class ExitsInReset(Counting):
        def reset(self, *, seed=None, options=None):
            sys.exit(0)

    envs = SerialEnvs([Exits])
    envs.reset(0)
    with pytest.raises(RuntimeError, match="environment 0 raised in step: SystemExit: 0"):
        envs.step(np.zeros(1, int))
    with pytest.raises(RuntimeError, match="environment 0 raised in reset: SystemExit: 0"):
        SerialEnvs([ExitsInReset]).reset(0)


def test_a_keyboard_interrupt_is_not_caught():
    class Interrupted(Counting):
        def step(self, action):
            raise KeyboardInterrupt

    envs = SerialEnvs([Interrupted])
    envs.reset(0)
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.zeros(1, int))


@pytest.mark.parametrize("late", [0, 5], ids=["in the first step", "later"])
@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        (0, np.zeros(1), r"environment 1 returned an observation of shape \(1,\); its space says \(3,\)"),
        (0, np.zeros((1, 3)), r"environment 1 returned an observation of shape \(1, 3\); its space says \(3,\)"),
        (0, 0.0, r"environment 1 returned an observation of shape \(\); its space says \(3,\)"),
        (
            0,
            np.zeros(3, complex),
            r"environment 1 returned the observation .*0.\+0.j.*; return an array of real numbers",
        ),
        (0, ["0", "1", "2"], r"environment 1 returned the observation \['0', '1', '2'\]; return an array of real"),
        (0, [[1, 2], 3, 4], r"environment 1 returned the observation \[\[1, 2\], 3, 4\]; return an array of real"),
        (1, "1.0", "environment 1 returned the reward '1.0', a str; return a float"),
        (1, None, "environment 1 returned the reward None, a NoneType; return a float"),
        (1, 1 + 2j, r"environment 1 returned the reward \(1\+2j\), a complex; return a float"),
        (1, np.ones(1), r"environment 1 returned the reward array\(\[1.\]\), a ndarray; return a float"),
        (4, None, "environment 1 breaks the rules of step: info is None, not a dict; return observation, reward"),
        (4, {"action_mask": np.ones(2, bool)}, "environment 1 gave a wrong mask: action_mask has 2 entries"),
        (2, None, r"environment 1 returned None as terminated; return True or False"),
        (2, np.nan, r"environment 1 returned nan as terminated; return True or False"),
        (3, np.nan, r"environment 1 returned nan as truncated; return True or False"),
        (3, "False", r"environment 1 returned 'False' as truncated; return True or False"),
        (2, np.zeros(2, bool), r"environment 1 returned array\(\[False, False\]\) as terminated; return True or False"),
    ],
)
def test_a_step_that_breaks_the_rules_is_named_at_any_time(part, given, message, late):
    class Wrong(Counting):
        def mask(self):
            return {"action_mask": np.ones(3, bool)}

        def step(self, action):
            answer = list(super().step(action))
            if self.steps > late:
                answer[part] = given
            return tuple(answer)

    envs = SerialEnvs([partial(Counting, limit=100), partial(Wrong, limit=100)])
    envs.reset(0)
    for _ in range(late):
        envs.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=message):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize("flags", [(np.True_, np.False_), (1, 0), (np.array(True), np.array(False)), (1.0, 0.0)])
def test_flags_that_mean_true_or_false_are_accepted(flags):
    class Numbers(Counting):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, flags[not terminated], flags[not truncated], info

    envs, plain = SerialEnvs([Numbers]), SerialEnvs([Counting])
    envs.reset(0), plain.reset(0)
    for action in (1, 2, 2, 1, 0, 0, 0, 0, 0):
        step = envs.step(np.array([action]))
        expected = plain.step(np.array([action]))
        np.testing.assert_equal(tuple(step), tuple(expected))


def test_later_resets_are_checked_too():
    class Shrinks(Counting):
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            observation, info = super().reset(seed=seed)
            return observation[: 3 if self.resets == 1 else 1], info

    envs = SerialEnvs([partial(Shrinks, limit=1)])
    envs.reset(0)
    envs.step(np.zeros(1, int))
    with pytest.raises(EnvError, match=r"environment 0 returned an observation of shape \(1,\); its space says \(3,\)"):
        envs.step(np.zeros(1, int))


def test_a_part_of_an_observation_that_is_missing_is_named():
    class Lacking(DictCounting):
        def step(self, action):
            observation, *rest = super().step(action)
            del observation["pair"]
            return observation, *rest

    envs = SerialEnvs([Lacking])
    envs.reset(0)
    with pytest.raises(EnvError, match="environment 0 returned an observation without pair/0; its space has it"):
        envs.step(np.zeros(1, int))


class OldStep(Counting):
    def step(self, action):
        return super().step(action)[:4]


def test_a_step_that_returns_something_else_is_refused_with_the_rules():
    envs = SerialEnvs(counting_functions([(5, 5)] * 2, OldStep))
    envs.reset(0)
    rules = re.escape("return observation, reward (a number), terminated, truncated, info")
    with pytest.raises(EnvError, match=rf"environment 0 breaks the rules of step: .*expected 5, got 4.*; {rules}"):
        envs.step(np.zeros(2, int))


def test_a_reset_of_the_old_kind_is_refused_with_the_rules():
    class OldReset(Counting):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    rules = re.escape("take reset(self, *, seed=None, options=None) and return (observation, info), with info a dict")
    with pytest.raises(EnvError, match=rf"environment 0 breaks the rules of reset: it returns ndarray .*; {rules}"):
        SerialEnvs([OldReset]).reset(0)


def test_an_environment_that_breaks_the_rules_is_named_with_its_file():
    envs = SerialEnvs([lambda: gym.wrappers.TimeLimit(OldStep(0, 5, 5), 9)])
    envs.reset(0)
    with pytest.raises(EnvError, match=rf"\(OldStep in {re.escape(__file__)}\)$"):
        envs.step(np.zeros(1, int))


def test_an_error_in_step_is_named_with_the_users_last_line():
    class Fails(Counting):
        def step(self, action):
            return np.zeros(3).reshape(2, 2)  # numpy may have frames of its own

    envs = SerialEnvs([Fails])
    envs.reset(0)
    line = Fails.step.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match=rf"ValueError: .* \({re.escape(__file__)}, line {line}\)$"):
        envs.step(np.zeros(1, int))


@pytest.mark.parametrize("reward", [1, 1.0, np.float32(1), np.int64(1), np.array(1.0), True])
def test_any_real_number_is_a_reward(reward):
    class Rewards(Counting):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, reward, *rest

    envs = SerialEnvs([Rewards])
    envs.reset(0)
    assert envs.step(np.zeros(1, int)).rewards == 1
