"""The probes have the values that their docstrings promise."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from birl.config import EnvConfig
from birl.envs.make import make_env, make_envs
from birl.envs.probes import PROBES, register_probes
from tests import linear_quadratic


def episode(env_id, choose, **kwargs):
    """Rewards, and how the episode ended, for actions chosen from (observation, info)."""
    env = make_env(EnvConfig(env_id, kwargs=kwargs))
    observation, info = env.reset(seed=episode.seed)
    episode.seed += 1
    rewards = []
    ended = False
    truncated = False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(choose(observation, info))
        rewards.append(reward)
        ended = terminated or truncated
    return rewards, "truncated" if truncated else "terminated"


episode.seed = 0

BEST = {
    "birl/ProbeConstant-v0": (lambda o, i: 0, [1]),
    "birl/ProbeAction-v0": (lambda o, i: 1, [1]),
    "birl/ProbeObservationAction-v0": (lambda o, i: int(o[0] > 0), [1]),
    "birl/ProbeDelayed-v0": (lambda o, i: 0, [0, 1]),
    "birl/ProbeMask-v0": (lambda o, i: int(np.argmax(i["action_mask"])), [1, 1, 1, 1]),
    "birl/ProbeContinuous-v0": (lambda o, i: np.array([0.5], np.float32), [0]),
    "birl/ProbeMultiDiscrete-v0": (lambda o, i: np.array([1, 2]), [1]),
    "birl/ProbeMultiBinary-v0": (lambda o, i: np.full(3, int(o[0] > 0), np.int8), [1]),
    "birl/ProbeDictAction-v0": (lambda o, i: {"gear": int(o[0]), "throttle": o / 2}, [1]),
    "birl/ProbeTupleAction-v0": (
        lambda o, i: (
            np.array([1, 2]),
            {"aim": np.float32([[0.5], [-0.5]]), "bits": np.full(2, int(o[0] > 0), np.int8)},
        ),
        [1],
    ),
    "birl/ProbeDict-v0": (lambda o, i: 2 * int(o["vector"][0] > 0) + int(o["image"].mean() > 127), [1]),
}


@pytest.mark.parametrize("env_id", BEST)
def test_the_best_policy_gets_the_promised_rewards(env_id):
    choose, rewards = BEST[env_id]
    for _ in range(10):
        assert episode(env_id, choose) == (rewards, "terminated")


@pytest.mark.parametrize(
    ("env_id", "choose", "rewards"),
    [
        ("birl/ProbeAction-v0", lambda o, i: 0, [-1]),
        ("birl/ProbeObservationAction-v0", lambda o, i: int(o[0] < 0), [-1]),
        ("birl/ProbeMask-v0", lambda o, i: int(np.argmin(i["action_mask"])), [-1] * 4),
        ("birl/ProbeContinuous-v0", lambda o, i: np.array([3.0], np.float32), [-6.25]),
        ("birl/ProbeMultiDiscrete-v0", lambda o, i: np.array([1, 0]), [0.5]),
        ("birl/ProbeDictAction-v0", lambda o, i: {"gear": 0, "throttle": o / 2}, [0]),
        ("birl/ProbeDictAction-v0", lambda o, i: {"gear": int(o[0]), "throttle": o / 2 + 1}, [0]),
        ("birl/ProbeMaskedMemory-v0", lambda o, i: int(np.argmin(i["action_mask"])), [-10, -10, -11]),
    ],
)
def test_a_wrong_policy_gets_less(env_id, choose, rewards):
    assert episode(env_id, choose) == (rewards, "terminated")


def test_the_reward_of_the_observation_probe_is_its_observation():
    env = make_env(EnvConfig("birl/ProbeObservation-v0"))
    shown = [(float(env.reset(seed=seed)[0][0]), env.step(0)[1]) for seed in range(20)]
    assert all(observation == reward for observation, reward in shown)
    assert {reward for _, reward in shown} == {-1, 1}


def test_the_truncation_probe_shows_nothing_of_its_limit():
    seen = []
    assert episode("birl/ProbeTruncation-v0", lambda o, i: seen.append(tuple(o)) or 0, limit=7) == (
        [1.0] * 7,
        "truncated",
    )
    assert len(set(seen)) == 1


def test_the_memory_probe_is_solved_by_its_first_observation_only():
    remembered = []

    def remember(observation, _):
        remembered.append(float(observation[0]))
        return int(remembered[0] > 0)

    for _ in range(10):
        remembered.clear()
        assert episode("birl/ProbeMemory-v0", remember) == ([0, 0, 1], "terminated")
        assert remembered[1:] == [0, 0]
    blind = [episode("birl/ProbeMemory-v0", lambda o, i: 1)[0][-1] for _ in range(40)]
    assert {-1.0, 1.0} == set(blind)


@pytest.mark.parametrize("in_observation", [False, True])
def test_the_masked_memory_probe_needs_masks_and_memory(in_observation):
    first = []

    def mask_of(observation, info):
        return observation["action_mask"] if in_observation else info["action_mask"]

    def remember(observation, info):
        first.append(observation["seen"] if in_observation else observation)
        return 2 * int(first[0][0] > 0) + int(first[0][1] > 0)

    for _ in range(10):
        first.clear()
        assert episode("birl/ProbeMaskedMemory-v0", remember, mask_in_observation=in_observation) == (
            [0, 0, 1],
            "terminated",
        )
        assert not np.any(np.array(first)[1:, :2])
    guesses = [
        episode(
            "birl/ProbeMaskedMemory-v0", lambda o, i: int(np.argmax(mask_of(o, i))), mask_in_observation=in_observation
        )[0]
        for _ in range(40)
    ]
    # Without memory an allowed action may be right or wrong.
    assert {tuple(rewards) for rewards in guesses} == {(0, 0, 1), (0, 0, -1)}


def test_the_linear_quadratic_probe_returns_what_the_riccati_equation_says():
    start = []
    gains = iter(linear_quadratic.riccati(50)[1])

    def choose(observation, _):
        start.append(observation.astype(np.float64))
        return -next(gains) @ observation

    rewards, end = episode("birl/ProbeLinearQuadratic-v0", choose)
    assert (len(rewards), end) == (50, "truncated")
    assert sum(rewards) == pytest.approx(-start[0] @ linear_quadratic.riccati(50)[0] @ start[0], rel=1e-6)


def test_no_best_action_of_the_linear_quadratic_probe_reaches_the_bounds():
    _, gains = linear_quadratic.riccati(50)
    for corner in np.array([[1.0, 1.0], [1.0, -1.0]]):
        state = corner
        for gain in gains:
            assert abs((gain @ state).item()) < 2.5
            state = (linear_quadratic.A - linear_quadratic.B @ gain) @ state


@pytest.mark.parametrize(
    ("env_id", "array"),
    [("tests.envs.faulty:nan_observation", "observations"), ("tests.envs.faulty:infinite_reward", "rewards")],
)
def test_faulty_environments_fail_at_the_given_step(env_id, array):
    with make_envs(EnvConfig(env_id, 2, kwargs={"at": 2}), 0) as envs:
        envs.reset(0)
        finite = [bool(np.isfinite(getattr(envs.step(np.zeros(2, int)), array)).all()) for _ in range(3)]
    assert finite == [True, False, True]


def test_the_raising_environment_raises():
    with make_envs(EnvConfig("tests.envs.faulty:raising", 2, kwargs={"at": 1}), 0) as envs:
        envs.reset(0)
        with pytest.raises(RuntimeError, match="environment 0 raised in step: ValueError: the simulator diverged"):
            envs.step(np.zeros(2, int))


def test_registering_again_changes_nothing():
    register_probes()
    before = dict(gym.registry)
    register_probes()
    assert gym.registry == before


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("env_id", sorted(PROBES))
def test_probes_keep_gymnasiums_rules(env_id):
    gymnasium_check(make_env(EnvConfig(env_id)).unwrapped, skip_render_check=True)
