"""Faults of bad environments are found; good ones have none."""

from contextlib import suppress

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from birl import ALGORITHMS
from birl.config import ConfigError, EnvConfig
from birl.envs.check.checking import check_env
from birl.registry import algorithm_named, algorithms_for
from tests.envs.counting import Counting


class Good(Counting):
    observation_space = spaces.Box(0, 100, (3,), np.float32)

    def observe(self):
        return np.array([self.np_random.random(), self.steps, self.total], np.float32)


class OldReset(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class OldStep(Good):
    def step(self, action):
        return super().step(action)[:4]


class OldSeed(Good):
    def reset(self):
        return super().reset()


class RaisesLater(Good):
    def step(self, action):
        if self.steps == 3:
            raise ValueError("the simulator diverged")
        return super().step(action)


class RaisesAtOnce(Good):
    def reset(self, *, seed=None, options=None):
        raise ValueError("the simulator diverged")


class ComplexReward(Good):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, complex(reward), *rest


class OtherType(Good):
    def observe(self):
        return super().observe().astype(np.float64)


class OtherShape(Good):
    def observe(self):
        return np.zeros((3, 1), np.float32)


class OutOfBounds(Good):
    def observe(self):
        return -1 - super().observe()


class Irreproducible(Good):
    def observe(self):
        return np.random.default_rng().random(3, np.float32)


class Deterministic(Good):
    def observe(self):
        return np.array([0, self.steps, self.total], np.float32)


class Endless(Good):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        self.needs_reset = False
        return np.minimum(observation, 5), float(reward), False, False, info


class Large(Good):
    observation_space = spaces.Box(0, np.inf, (3,), np.float32)

    def observe(self):
        return super().observe() * 1000


class LargeCounts(Good):
    observation_space = spaces.Box(0, 255, (3,), np.uint8)

    def observe(self):
        return np.full(3, 200, np.uint8)


class InPlace(Good):
    array = None

    def observe(self):
        self.array = np.zeros(3, np.float32) if self.array is None else self.array
        self.array[:] = super().observe()
        return self.array


class ListReward(Good):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, reward]), *rest


class Unbounded(Good):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def step(self, action):
        return super().step(1)


class Lopsided(Unbounded):
    action_space = spaces.Box(-2, 3, (1,), np.float32)


class Wide(Unbounded):
    action_space = spaces.Box(0, 500, (1,), np.float32)


class Rich(Good):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 1e6, *rest


class Leaking(Good):
    """Keeps the number of its episodes, and shows it in its rewards."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + self.episodes, *rest


def check(kind, **kwargs):
    gym.register(f"check/{kind.__name__}-v0", entry_point=kind)
    try:
        return check_env(EnvConfig(f"check/{kind.__name__}-v0", **kwargs))
    finally:
        del gym.registry[f"check/{kind.__name__}-v0"]


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "birl/ProbeMask-v0", "birl/ProbeDict-v0", "birl/ProbeMultiDiscrete-v0", "FrozenLake-v1"]
)
def test_a_good_environment_gives_only_ok_findings(env_id):
    findings = check_env(EnvConfig(env_id, max_episode_steps=200 if env_id.startswith("birl/") else None))
    assert {finding.level for finding in findings} == {"ok"}
    titles = {finding.title for finding in findings}
    assert {"reproducible", "rewards", "episodes end", "speed", "exact resume", "actions"} <= titles


def test_environments_of_ray_actors_are_checked_in_this_process():
    assert {finding.level for finding in check_env(EnvConfig("CartPole-v1", 4, ray_actors=4))} == {"ok"}


def test_an_environment_without_a_time_limit_gives_a_warning():
    """Random actions in CliffWalking end an episode some time; a policy may never do so."""
    without = {finding.title: finding for finding in check_env(EnvConfig("CliffWalking-v1"))}
    assert without["no time limit"].level == "warning"
    assert "max_episode_steps" in without["no time limit"].explanation
    limited = check_env(EnvConfig("CliffWalking-v1", max_episode_steps=300))
    assert "no time limit" not in {finding.title for finding in limited}


@pytest.mark.parametrize("masks", ["info", "observation", "none"])
def test_a_dict_of_actions_gives_a_warning_only_for_its_bounds(masks):
    findings = check_env(EnvConfig("tests.envs.hybrid:Hybrid-v0", kwargs={"masks": masks}))
    assert [finding.title for finding in findings if finding.level != "ok"] == ["action bounds"]
    found = {finding.title: finding.explanation for finding in findings}
    assert found["actions"].startswith("hybrid, Dict('force': Box(")
    assert {"reproducible", "exact resume", "episodes end"} <= set(found)


def test_a_space_that_cannot_be_learned_is_one_error_with_the_remedy():
    class Speaking(Good):
        action_space = spaces.Dict({"say": spaces.Text(5)})

    (finding,) = check(Speaking)
    assert (finding.level, finding.title) == ("error", "cannot be made")
    assert "action space Text" in finding.explanation
    assert "at say is not supported; use Discrete" in finding.explanation


def test_the_good_environment_of_this_file_gives_only_ok_findings():
    assert {finding.level for finding in check(Good)} == {"ok"}


@pytest.mark.parametrize(
    ("kind", "level", "title", "words"),
    [
        (OldReset, "error", "reset", "(observation, info)"),
        (OldSeed, "error", "reset", "take reset(self, *, seed=None, options=None)"),
        (OldStep, "error", "step", "4 values"),
        (RaisesAtOnce, "error", "reset", f"raised in reset: ValueError: the simulator diverged ({__file__}, line "),
        (RaisesLater, "error", "reset and step", f"in step: ValueError: the simulator diverged ({__file__}, line "),
        (ComplexReward, "error", "reward type", "float"),
        (OtherType, "warning", "observation of reset", "float64"),
        (OtherShape, "error", "observation of reset", "(3, 1)"),
        (OutOfBounds, "warning", "observation of reset", "outside the bounds"),
        (Irreproducible, "error", "not reproducible", "np_random"),
        (Deterministic, "warning", "seed has no effect", "same trajectory"),
        (Large, "warning", "observation scale", "normalize_observations"),
        (LargeCounts, "warning", "observation scale", "values reach 200"),
        (InPlace, "warning", "observations share memory", "copy"),
        (ListReward, "error", "reward type", "float"),
        (Unbounded, "warning", "action bounds", "infinite"),
        (Lopsided, "warning", "action bounds", "not symmetric"),
        (Wide, "warning", "action bounds", "far from ±1, between 0 and 500. Birl scales"),
        (Rich, "warning", "reward scale", "rewards reach 1e+06"),
        (Leaking, "warning", "exact resume is not possible", "from one episode to the next"),
        (Endless, "warning", "episodes do not end", "max_episode_steps"),
    ],
)
def test_each_fault_is_found(kind, level, title, words):
    found = {finding.title: finding for finding in check(kind)}
    assert found[title].level == level, found
    assert words in found[title].explanation


@pytest.mark.parametrize(
    ("env_id", "title", "words"),
    [
        ("tests.envs.faulty:nan_observation", "observations", "after step 3 holds NaN"),
        ("tests.envs.faulty:infinite_reward", "rewards", "number 3 is inf"),
        ("tests.envs.faulty:raising", "reset and step", "the simulator diverged ("),
        ("NoSuchThing-v0", "cannot be made", "not registered"),
    ],
)
def test_a_broken_environment_gives_errors_and_no_exception(env_id, title, words):
    errors = {
        finding.title: finding.explanation for finding in check_env(EnvConfig(env_id)) if finding.level == "error"
    }
    assert words in errors[title]


def test_envpool_is_checked_too_and_cannot_resume_exactly():
    levels = {finding.title: finding.level for finding in check_env(EnvConfig("CartPole-v1", backend="envpool"))}
    assert levels.pop("exact resume is not possible") == "warning"
    assert set(levels.values()) == {"ok"}


def test_a_constructor_that_raises_is_a_finding():
    class Fails(Good):
        def __init__(self):
            raise OSError("no display")

    (finding,) = check(Fails)
    assert finding.level == "error"
    assert "no display" in finding.explanation


@pytest.mark.parametrize("kind", [OldReset, OldSeed, OldStep, RaisesAtOnce])
def test_a_fault_that_every_check_would_find_is_reported_once(kind):
    errors = [finding for finding in check(kind) if finding.level != "ok"]
    assert [finding.level for finding in errors] == ["error", "warning"]
    assert (errors[1].title, errors[1].explanation) == ("not checked further", "fix the error above, then check again")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Box(-1, 1, (2,), np.float32),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,), np.float32)}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_the_algorithms_that_are_named_for_an_action_space_are_those_that_take_it(space):
    taken = set()
    for name in ALGORITHMS:
        algorithm = algorithm_named(name)
        with suppress(ConfigError):
            algorithm.init(algorithm.Config(), spaces.Box(-1, 1, (2,), np.float32), space)
            taken.add(name)
    assert set(algorithms_for(space)) == taken


def test_an_old_version_is_a_warning_that_names_the_new_one():
    assert ("warning", "old version", "use CartPole-v1") in [
        (f.level, f.title, f.explanation) for f in check_env(EnvConfig("CartPole-v0"))
    ]


class Masked(Good):
    def mask(self):
        return {"action_mask": np.array([True, False, True])}


class WithMaskMethod(Good):
    def action_masks(self):
        return np.array([True, False, True])


class MisnamedMask(Good):
    def mask(self):
        return {"legal_mask": np.ones(3, bool)}


class NothingToMask(Lopsided):
    def action_masks(self):
        return np.ones(1, bool)


@pytest.mark.parametrize(
    ("kind", "level", "words"),
    [
        (Good, "ok", "none: every action is always allowed"),
        (Masked, "ok", "found: 2 of 3 choices are allowed at the first observation"),
        (WithMaskMethod, "ok", "found: 2 of 3 choices are allowed at the first observation"),
        (MisnamedMask, "warning", "legal_mask is not read as a mask: name it action_mask"),
        (NothingToMask, "warning", "has no choices to mask: action_masks is not read"),
    ],
)
def test_masks_that_were_found_or_are_not_read_are_named(kind, level, words):
    assert any(
        each.title == "action masks" and words in each.explanation and each.level == level for each in check(kind)
    )
