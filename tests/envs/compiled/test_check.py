"""Faults of compiled environments are found; good ones have none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.config import EnvConfig
from birl.envs.check.checking import check_env
from tests.envs.compiled.counting import DictCounting, Pulled
from tests.envs.own import Walk
from tests.run.processes import call, call_well


class Good:
    """Draws a number at each step, and ends when it is small."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)
    max_episode_steps = 50

    def reset(self, key):
        state = jax.random.uniform(key, (2,))
        return state, state

    def step(self, state, action, key):
        state = jax.random.uniform(key, (2,)) + 0 * state
        return state, state, state[0] * action, state[1] < 0.1, False


class Branching(Good):
    def step(self, state, action, key):
        if state[0] > 0.5:
            return super().step(state, 0, key)
        return super().step(state, action, key)


class Growing(Good):
    def step(self, state, action, key):
        state, *others = super().step(state, action, key)
        return jnp.append(state, 1.0), *others


class OtherType(Good):
    def reset(self, key):
        state, observation = super().reset(key)
        return state.astype(int), observation


class OtherShape(Good):
    observation_space = spaces.Box(0, 1, (3,), np.float32)


class ManyRewards(Good):
    def step(self, state, action, key):
        state, observation, reward, *flags = super().step(state, action, key)
        return state, observation, jnp.stack([reward, reward]), *flags


class FourValues(Good):
    def step(self, state, action, key):
        return super().step(state, action, key)[:4]


class ShortMask(Good):
    def action_mask(self, state):
        return jnp.ones(2, bool)


class TypedKey(Good):
    def reset(self, key):
        state, observation = super().reset(key)
        return (state, jax.random.wrap_key_data(key)), observation

    def step(self, state, action, key):
        after, *others = super().step(state[0], action, key)
        return (after, state[1]), *others


class NoStep:
    observation_space = Good.observation_space
    action_space = Good.action_space

    def reset(self, key):
        return key, key


class Raising(Good):
    def reset(self, key):
        raise KeyError("no such track")


class IntegerBox(Good):
    action_space = spaces.Box(0, 3, (1,), np.int32)


class Impure(Good):
    def reset(self, key):
        state = jax.random.uniform(key, (2,)) * np.random.default_rng().random()
        return state, state


class IgnoresKey(Good):
    def reset(self, key):
        return super().reset(jnp.zeros_like(key))

    def step(self, state, action, key):
        return state, state, 1.0, True, False


class OutOfBounds(Good):
    observation_space = spaces.Box(0.2, 0.3, (2,), np.float32)


class Fractions(Good):
    observation_space = spaces.MultiDiscrete([2, 2])


class FloatFlags(Good):
    def step(self, state, action, key):
        *others, terminated, _ = super().step(state, action, key)
        return *others, terminated.astype(jnp.float32), False


class NaNReward(Good):
    def step(self, state, action, key):
        state, observation, reward, *flags = super().step(state, action, key)
        return state, observation, jnp.where(reward > 0.5, jnp.nan, reward), *flags


class Infinite(Good):
    def step(self, state, action, key):
        state, observation, *others = super().step(state, action, key)
        return state, jnp.where(observation > 0.9, jnp.inf, observation), *others


class NoLimit(Good):
    max_episode_steps = None


class Endless(NoLimit):
    def step(self, state, action, key):
        *others, _, truncated = super().step(state, action, key)
        return *others, False, truncated


@pytest.mark.parametrize("kind", [Good, DictCounting])
def test_a_good_environment_gives_only_ok_findings(kind):
    findings = check_env(kind)
    assert {finding.level for finding in findings} == {"ok"}, findings
    titles = {finding.title for finding in findings}
    expected = {"compiles", "observation bounds", "reproducible", "rewards", "episodes end", "exact resume", "actions"}
    assert expected <= titles


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Branching, "step cannot be compiled (TracerBoolConversionError"),
        (Growing, "reset returned a state with an array float32[2], and step one with float32[3]; keep shapes"),
        (OtherType, "reset returned a state with an array int32[2], and step one with float32[2]; keep shapes"),
        (OtherShape, "reset returned observation of shape (2,); its space Box(0.0, 1.0, (3,), float32) says (3,)"),
        (ManyRewards, "step returned reward float32[2]; return one number"),
        (FourValues, "step must return (state, observation, reward, terminated, truncated), not 4 values"),
        (ShortMask, "action_mask returned bool[2]; action space Discrete(3): return an array of shape (3,)"),
        (TypedKey, "its state holds a random key of type key<fry>, which is no array; keep jax.random.key_data"),
        (Raising, "it raised KeyError: 'no such track'"),
        (IntegerBox, "is a Box of integers; use MultiDiscrete, or a Box of float32"),
    ],
)
def test_what_cannot_be_trained_in_is_one_error_that_says_why(kind, words):
    (finding,) = check_env(kind)
    assert (finding.level, finding.title) == ("error", "cannot be made")
    assert words in finding.explanation


@pytest.mark.parametrize(
    ("kind", "level", "title", "words"),
    [
        (Impure, "error", "not reproducible", "Draw all random numbers from the key"),
        (IgnoresKey, "warning", "seed has no effect", "reset ignores its key"),
        (OutOfBounds, "warning", "observation bounds", "the observation of reset lies outside the bounds"),
        (Fractions, "warning", "observation", "its type is float32, and MultiDiscrete([2 2]) holds whole numbers"),
        (FloatFlags, "warning", "flags", "terminated is float32; return bools"),
        (NaNReward, "error", "rewards", "is nan; training would stop there"),
        (Infinite, "error", "observations", "holds NaN or infinity"),
        (NoLimit, "warning", "no time limit", "give the environment a number max_episode_steps"),
        (Endless, "warning", "episodes do not end", "set max_episode_steps"),
    ],
)
def test_each_fault_is_found(kind, level, title, words):
    found = {finding.title: finding for finding in check_env(kind)}
    assert found[title].level == level, found
    assert words in found[title].explanation


def test_what_is_no_compiled_environment_is_told_what_it_lacks():
    (finding,) = check_env(EnvConfig("tests.envs.compiled.test_check:NoStep", backend="compiled"))
    assert "which has no spaces, reset and step as birl.CompiledEnv has them" in finding.explanation
    (finding,) = check_env(EnvConfig("tests.envs.own:Walk", backend="compiled"))
    assert "is a Gymnasium environment and not a compiled one; use backend gymnasium" in finding.explanation
    (finding,) = check_env("tests.envs.compiled.counting:Pulled")
    assert finding.explanation.endswith("is a compiled environment; use backend compiled (--backend compiled)")


def test_a_class_of_either_kind_can_be_checked_and_only_algorithms_that_can_learn_there_are_named():
    found = {finding.title: finding for finding in birl.check_env(Pulled)}
    assert (
        "algorithms that take it: reinforce, qac, a2c, ppo, trpo, dpg, ddpg, td3, sac" in found["actions"].explanation
    )
    found = {finding.title: finding for finding in birl.check_env(Walk)}
    assert "compiles" not in found
    assert "acer" in found["actions"].explanation


def test_the_command_checks_the_compiled_environment_and_not_its_twin():
    assert "reset and step can be traced by JAX" in call_well("check-env", "CartPole-v1", "--backend", "compiled")
    assert "traced" not in call_well("check-env", "CartPole-v1")
    code, said = call("check-env", "Cartpol-v1", "--backend", "compiled")
    assert code == 1
    assert "is not among the compiled environments; you may mean CartPole-v1. Or use one of CartPole-v1, " in said
