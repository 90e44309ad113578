"""The classic environments in JAX against Gymnasium's, which are the oracle."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl.config import CLASSIC, EnvConfig
from birl.envs.compiled.copies import require_compiles
from birl.envs.registration import make_compiled

NEAR = 1e-5
KEY = jax.random.PRNGKey(0)


def cartpole_excess(state: np.ndarray) -> float:
    return max(abs(state[0]) - 2.4, abs(state[2]) - 12 * np.pi / 180)


def acrobot_excess(state: np.ndarray) -> float:
    return -np.cos(state[0]) - np.cos(state[0] + state[1]) - 1.0


def never(state: np.ndarray) -> float:
    return -np.inf


@dataclass(frozen=True)
class Case:
    """Where random states are drawn, and how far a state is beyond the end of the episode."""

    id: str
    low: list[float]
    high: list[float]
    excess: Callable[[np.ndarray], float]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.id, *(f"{name}={value}" for name, value in self.kwargs.items())])


def car(env_id: str, goal: float, goal_velocity: float = 0.0) -> Case:
    kwargs = {"goal_velocity": goal_velocity} if goal_velocity else {}
    return Case(
        env_id, [-1.2, -0.07], [0.6, 0.07], lambda state: min(state[0] - goal, state[1] - goal_velocity), kwargs
    )


CARTPOLE = [-2.6, -4, -0.25, -4], [2.6, 4, 0.25, 4]
CASES = [
    Case("CartPole-v1", *CARTPOLE, cartpole_excess),
    Case("CartPole-v1", *CARTPOLE, cartpole_excess, {"sutton_barto_reward": True}),
    # Half of the greatest speeds: beyond, a step multiplies any difference by hundreds (see below).
    Case(
        "Acrobot-v1", [-np.pi, -np.pi, -2 * np.pi, -4.5 * np.pi], [np.pi, np.pi, 2 * np.pi, 4.5 * np.pi], acrobot_excess
    ),
    car("MountainCar-v0", 0.5),
    car("MountainCar-v0", 0.5, 0.03),
    car("MountainCarContinuous-v0", 0.45),
    car("MountainCarContinuous-v0", 0.45, 0.03),
    Case("Pendulum-v1", [-3 * np.pi, -8], [3 * np.pi, 8], never),
    Case("Pendulum-v1", [-np.pi, -8], [np.pi, 8], never, {"g": 3.7}),
]
EACH = [case for case in CASES if not case.kwargs]


class Outcomes(NamedTuple):
    states: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray


def gymnasium_steps(case: Case, states: np.ndarray, actions: np.ndarray) -> Outcomes:
    """One step of Gymnasium's environment from each state."""
    env: Any = gym.make(case.id, **case.kwargs).unwrapped
    env.reset(seed=0)
    rows = []
    for state, action in zip(states, actions, strict=True):
        env.state = state.astype(np.float64)
        env.steps_beyond_terminated = None  # CartPole: no state here is after an end
        observation, reward, terminated, _, _ = env.step(action)
        rows.append((np.array(env.state, np.float64), observation, reward, terminated))
    return Outcomes(*(np.array(column) for column in zip(*rows, strict=True)))


def random_states(case: Case, count: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """States that float32 holds exactly, and actions."""
    states = np.random.default_rng(1).uniform(case.low, case.high, (count, len(case.low))).astype(np.float32)
    space = gym.make(case.id).action_space
    space.seed(2)
    return states, np.stack([space.sample() for _ in range(count)])


def compiled_steps(case: Case, states: np.ndarray, actions: np.ndarray) -> Outcomes:
    """One step of the compiled environment from each state."""
    env = make_compiled(EnvConfig(case.id, kwargs=case.kwargs))
    step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, None)))
    after, observations, rewards, terminated, truncated = jax.tree.map(np.asarray, step(states, actions, KEY))
    assert not truncated.any()  # the limit is Birl's
    return Outcomes(after, observations, rewards, terminated)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_is_gymnasiums(case: Case) -> None:
    states, actions = random_states(case)
    theirs, ours = gymnasium_steps(case, states, actions), compiled_steps(case, states, actions)
    assert ours.observations.dtype == np.float32
    np.testing.assert_allclose(ours.observations, theirs.observations, rtol=0, atol=NEAR)
    clear = np.array([abs(case.excess(state)) > NEAR for state in theirs.states])
    assert clear.sum() >= 9_980
    np.testing.assert_array_equal(ours.terminated[clear], theirs.terminated[clear])
    np.testing.assert_allclose(ours.rewards[clear], theirs.rewards[clear], rtol=0, atol=NEAR)
    if case.excess is not never:
        assert 100 < theirs.terminated.sum() < 9_900  # both happen


def test_acrobots_equations_are_gymnasiums_up_to_the_greatest_speeds() -> None:
    """In double precision, where a step that multiplies differences by 1,000 shows nothing else."""
    most = [np.pi, np.pi, 4 * np.pi, 9 * np.pi]
    case = Case("Acrobot-v1", [-each for each in most], most, acrobot_excess)
    states, actions = random_states(case)
    theirs = gymnasium_steps(case, states, actions)
    with jax.enable_x64(True):
        exact = compiled_steps(case, states.astype(np.float64), actions)
    assert exact.states.dtype == np.float64
    turns = (exact.states[:, :2] - theirs.states[:, :2]) / (2 * np.pi)
    np.testing.assert_allclose(turns, np.round(turns), atol=1e-9)
    np.testing.assert_allclose(exact.states[:, 2:], theirs.states[:, 2:], rtol=0, atol=1e-9)
    single = compiled_steps(case, states, actions)
    differences = np.abs(single.observations - theirs.observations).max(axis=1)
    assert np.quantile(differences, 0.95) < NEAR
    assert differences.max() < 1e-2


def test_forces_beyond_the_bounds_are_clipped_as_gymnasium_does() -> None:
    for case in EACH:
        if not isinstance(gym.make(case.id).action_space, gym.spaces.Box):
            continue
        states, actions = random_states(case, 200)
        theirs, ours = (steps(case, states, 5 * actions) for steps in (gymnasium_steps, compiled_steps))
        np.testing.assert_allclose(ours.observations, theirs.observations, rtol=0, atol=NEAR)
        np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=1e-6, atol=NEAR)


@pytest.mark.parametrize("env_id", CLASSIC)
def test_spaces_and_limit_are_gymnasiums(env_id: str) -> None:
    twin, env = gym.make(env_id), make_compiled(EnvConfig(env_id))
    require_compiles(env, env_id)
    assert env.observation_space == twin.observation_space
    assert env.action_space == twin.action_space
    assert twin.spec is not None
    assert env.max_episode_steps == twin.spec.max_episode_steps  # type: ignore[attr-defined]


@pytest.mark.parametrize("env_id", CLASSIC)
def test_keyword_arguments_are_gymnasiums(env_id: str) -> None:
    twin, env = gym.make(env_id).unwrapped, make_compiled(EnvConfig(env_id))
    theirs = inspect.signature(type(twin)).parameters
    ours = inspect.signature(type(env)).parameters
    assert {name: each.default for name, each in ours.items()} == {
        name: each.default for name, each in theirs.items() if name != "render_mode"
    }


@pytest.mark.parametrize("env_id", CLASSIC)
def test_first_states_are_distributed_as_gymnasiums(env_id: str) -> None:
    twin: Any = gym.make(env_id).unwrapped
    twin.reset(seed=3)
    count = 4_000
    theirs = np.array([(twin.reset(), twin.state)[1] for _ in range(count)])
    env = make_compiled(EnvConfig(env_id))
    states, observations = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(4), count))
    ours = np.asarray(states, np.float64)
    assert all(env.observation_space.contains(each) for each in np.asarray(observations)[:100])
    widths = np.ptp(theirs, axis=0)
    # The extremes of 4,000 uniform numbers are within 1 % of the bounds, but for a chance of e^-40.
    np.testing.assert_array_less(np.abs(ours.min(axis=0) - theirs.min(axis=0)), 0.01 * widths + 1e-9)
    np.testing.assert_array_less(np.abs(ours.max(axis=0) - theirs.max(axis=0)), 0.01 * widths + 1e-9)
    # Standard errors in widths: 0.29/√n of the mean, 0.075/√n of the variance; two samples, 5 σ.
    error = 5 * np.sqrt(2 / count)
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.29 * error * widths.max())
    np.testing.assert_allclose(ours.var(axis=0), theirs.var(axis=0), atol=0.075 * error * widths.max() ** 2)
    correlations = np.corrcoef(ours[:, ours.std(axis=0) > 0].T) - np.eye(int((ours.std(axis=0) > 0).sum()))
    assert np.abs(correlations).max() < error


POLICIES: dict[str, Callable[[np.ndarray, np.random.Generator], Any]] = {
    "CartPole-v1": lambda seen, _: int(seen[2] + 0.3 * seen[3] + 0.05 * seen[0] + 0.1 * seen[1] > 0),
    "Acrobot-v1": lambda seen, rng: int(rng.integers(3)),
    "MountainCar-v0": lambda seen, _: 2 if seen[1] >= 0 else 0,
    "MountainCarContinuous-v0": lambda seen, rng: np.float32([0.9 if seen[1] >= 0 else -0.9]),
    "Pendulum-v1": lambda seen, rng: rng.uniform(-2, 2, 1).astype(np.float32),
}


@pytest.mark.parametrize("env_id", CLASSIC)
def test_a_whole_episode_stays_close_and_ends_at_the_same_step(env_id: str) -> None:
    twin = gym.make(env_id)
    seen, _ = twin.reset(seed=5)
    env, rng = make_compiled(EnvConfig(env_id)), np.random.default_rng(6)
    step, steps, over = jax.jit(env.step), 0, False
    while not over:
        if steps % 100 == 0:  # an upright pole is unstable: after 150 steps 1e-7 has become 1e-3
            state = jnp.asarray(np.array(twin.unwrapped.state, np.float32))  # type: ignore[attr-defined]
        action = POLICIES[env_id](seen, rng)
        seen, reward, terminated, truncated, _ = twin.step(action)
        state, observation, our_reward, our_terminated, _ = step(state, action, KEY)
        steps, over = steps + 1, terminated or truncated
        np.testing.assert_allclose(observation, seen, atol=2e-3, err_msg=f"step {steps}")
        np.testing.assert_allclose(our_reward, reward, atol=2e-2)
        assert bool(our_terminated) == terminated
    assert steps >= 90
