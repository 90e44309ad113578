"""The parts of solving: random actions, algorithms that fit, steps for the time, the verdict."""

import numpy as np
import pytest
from gymnasium import spaces

import birl
from birl.config import ConfigError, EnvConfig
from birl.lab.candidates import default_algorithms, first_settings, fitting, round_down, steps_in, training_speed
from birl.lab.random_policy import RandomPolicy, against_random, difference_interval, play_at_random
from birl.lab.solution import SolvePlan, episodes_that_fit, is_solving, play_off, read_solve_plan, write_solve_plan
from birl.lab.solving import ending_seconds, episodes_in
from birl.lab.tuning.plan import Budget
from birl.registry import validate
from birl.run.evaluating import Evaluation

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
PIXELS = spaces.Box(0, 255, (84, 84, 3), np.uint8)


def episodes(returns):
    return Evaluation(np.array(returns, float), np.ones(len(returns)))


def test_random_actions_are_allowed_spread_and_repeatable():
    masks = np.tile([False, True, True, False], (500, 1))
    first, second = (RandomPolicy(spaces.Discrete(4), seed=5) for _ in range(2))
    actions, _ = first.act_batch(None, (), np.zeros(500, bool), masks)
    assert set(actions) == {1, 2}
    assert np.mean(actions) == pytest.approx(1.5, abs=0.1)
    assert np.array_equal(second.act_batch(None, (), np.zeros(500, bool), masks)[0], actions)
    boxes, _ = RandomPolicy(spaces.Box(-2, 3, (2,)), 0).act_batch(None, (), np.zeros(400, bool))
    assert boxes.shape == (400, 2)
    assert np.mean(boxes) == pytest.approx(0.5, abs=0.2)


def test_random_episodes_of_a_known_environment_have_its_known_score():
    # From the start of FrozenLake random steps reach the goal in 1.4 % of the episodes.
    found, speed = play_at_random(EnvConfig("FrozenLake-v1"), seed=0, seconds=60.0, patience=600.0)
    assert len(found.returns) == 200
    assert found.returns.mean() < 0.06
    assert set(found.returns) <= {0.0, 1.0}
    assert speed > 0


def test_an_environment_that_is_too_slow_is_said_to_be():
    with pytest.raises(ConfigError, match=r"took more than 0 seconds, .* give more minutes, or shorter episodes"):
        play_at_random(EnvConfig("CartPole-v1"), seed=0, seconds=1.0, patience=0.0)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (spaces.Discrete(4), ["ppo", "dqn"]),
        (spaces.Box(-1, 1, (2,), np.float32), ["ppo", "sac", "td3"]),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), ["ppo", "a2c"]),
        (spaces.MultiDiscrete([3, 3]), ["ppo", "a2c"]),
        (spaces.MultiBinary(3), ["ppo", "a2c"]),
        (spaces.Dict({"a": spaces.Discrete(2), "b": VECTOR}), ["ppo", "a2c"]),
    ],
)
def test_the_algorithms_fit_the_actions(space, names):
    assert default_algorithms(space) == names


def test_the_first_settings_fit_the_observations():
    discrete, box = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
    assert first_settings("ppo", VECTOR, box)["normalize_observations"]
    assert first_settings("ppo", VECTOR, box)["normalize_rewards"]
    assert "normalize_observations" not in first_settings("ppo", discrete, discrete)
    assert not first_settings("ppo", discrete, discrete)["eval_deterministic"]
    assert "eval_deterministic" not in first_settings("ppo", VECTOR, box)
    assert "eval_deterministic" not in first_settings("dqn", discrete, discrete)
    assert "normalize_observations" not in first_settings("ppo", PIXELS, discrete)
    assert first_settings("ppo", PIXELS, discrete)["share_trunk"]
    assert first_settings("dqn", PIXELS, discrete)["replay_size"] == 20_000


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CartPole-v1", "Pendulum-v1"])
def test_every_candidate_can_be_trained(env_id):
    for one in fitting(EnvConfig(env_id), seed=3, total_steps=900):  # fewer than DQN's learning_starts
        validate(one.algorithm, one.config)
        assert one.space
        assert (one.config.run.seed, one.config.run.total_steps) == (3, 900)
        assert one.config.env.id == env_id


def test_a_preset_comes_before_the_first_settings():
    found = {one.algorithm: one for one in fitting(EnvConfig("CartPole-v1"))}
    assert found["ppo"].config.rollout_length == birl.preset("ppo", "CartPole-v1").rollout_length
    assert found["ppo"].config.env.num_envs == birl.preset("ppo", "CartPole-v1").env.num_envs
    assert "preset ppo CartPole-v1" in found["ppo"].source


def test_algorithms_that_do_not_fit_are_refused():
    for names in (["sac"], ["ppo", "sac"]):
        with pytest.raises(ConfigError, match=r"sac cannot take actions of Discrete\(2\); algorithms that can: .*ppo"):
            fitting(EnvConfig("CartPole-v1"), names)
    with pytest.raises(ConfigError, match="algorithm 'pppo' is unknown"):
        fitting(EnvConfig("CartPole-v1"), ["ppo", "pppo"])


def test_first_settings_on_images_are_settings_of_the_algorithm():
    for name in ("ppo", "a2c", "trpo", "dqn"):
        settings = first_settings(name, PIXELS, spaces.Discrete(4))
        birl.configure(name, "CartPole-v1", **(settings | {"encoder": "mlp"}))


def test_a_number_of_environments_that_was_named_stays():
    [one] = fitting(EnvConfig("CartPole-v1", num_envs=3), ["ppo"])
    assert one.config.env.num_envs == 3


@pytest.mark.parametrize(("each", "expected"), [(0.0, 100), (0.01, 100), (1.0, 20), (100.0, 5)])
def test_the_episodes_of_the_final_score_fit_into_the_time(each, expected):
    assert episodes_in(60.0, each, 100) == expected


class Played:
    """Policies with known returns, whose episodes take a known time."""

    def __init__(self, seconds):
        self.now, self.seconds, self.seen = 0.0, seconds, []

    def play(self, mean):
        def episodes_of(count, seed):
            self.now += count * self.seconds
            self.seen.append((count, seed))
            return episodes([mean] * count)

        return episodes_of


@pytest.mark.parametrize(("seconds", "more"), [(float("inf"), 15), (60.0, 15), (20.0, 5), (1.0, 0)])
def test_policies_play_the_same_episodes_in_the_time_that_there_is(seconds, more):
    known = Played(seconds=1.0)
    assert play_off([known.play(1.0), known.play(3.0)], 7, seconds, lambda: known.now) == (1, 1.0)
    assert known.seen == [(5, 7)] * 2 + ([(more, 8)] * 2 if more else [])


def test_the_final_score_has_as_many_episodes_as_fit_at_the_speed_of_the_policy():
    assert episodes_that_fit(60.0, 1.0, 100, 5) == 60
    assert episodes_that_fit(60.0, 100.0, 100, 5) == 5
    assert episodes_that_fit(float("inf"), 100.0, 100, 5) == 100


def test_the_end_has_the_time_that_the_search_has_left():
    end = SolvePlan(100, 1, True, (1.0,), preparation=20.0, ending=40.0)
    assert ending_seconds(Budget(3.0), end, 171.0) == pytest.approx(40.0)
    assert ending_seconds(Budget(3.0), end, 100.0) == pytest.approx(111.0)
    assert ending_seconds(Budget(3.0), end, 400.0) == 0.0
    assert ending_seconds(Budget(trials=2), end, 400.0) == float("inf")


def test_the_speed_of_training_is_that_of_updates_that_learn():
    config = next(one.config for one in fitting(EnvConfig("CartPole-v1")) if one.algorithm == "dqn")
    assert config.replay.learning_starts > 0
    assert training_speed(config, 0.05) > 0


def test_steps_fill_a_share_of_the_time():
    assert steps_in(600.0, 1000.0, workers=1) == 180_000
    assert steps_in(600.0, 1000.0, workers=2) == 140_000
    assert steps_in(1.0, 10.0, workers=1) == 3_000
    assert [round_down(steps) for steps in (7, 99, 101, 12_999, 1_999_999)] == [7, 99, 100, 12_000, 1_900_000]


def test_a_policy_that_is_clearly_better_is_called_better():
    verdict = against_random(episodes([5.0] * 20), episodes([1.0] * 50))
    assert verdict.better
    assert verdict.difference == (4.0, 4.0)
    assert verdict.interval == (5.0, 5.0)
    assert "return 5 (5 to 5) over 20 fresh episodes; at random 1 (1 to 1) over 50" in verdict.text()
    assert verdict.as_json()["better"] is True


def test_equal_and_worse_policies_are_not_called_better():
    rng = np.random.default_rng(0)
    same = [against_random(episodes(rng.normal(size=100)), episodes(rng.normal(size=100))).better for _ in range(200)]
    assert np.mean(same) < 0.06  # 2.5 % are wrong on purpose
    assert not against_random(episodes([1.0]), episodes([1.0])).better
    assert not against_random(episodes([0.0] * 9), episodes([1.0] * 9)).better


def test_the_interval_of_a_difference_has_the_width_of_the_normal_approximation():
    rng = np.random.default_rng(1)
    first, second = rng.normal(2.0, 1.0, 400), rng.normal(0.0, 3.0, 900)
    low, high = difference_interval(first, second)
    expected = 1.96 * np.sqrt(first.var() / 400 + second.var() / 900)
    assert (low + high) / 2 == pytest.approx(first.mean() - second.mean(), abs=0.02)
    assert (high - low) / 2 == pytest.approx(expected, rel=0.08)


def test_what_the_end_needs_survives_its_file_and_damage_is_named(tmp_path):
    plan = SolvePlan(30, 4, False, (0.0, 1.0))
    assert not is_solving(tmp_path)
    write_solve_plan(tmp_path, plan)
    assert is_solving(tmp_path)
    assert read_solve_plan(tmp_path) == plan
    assert plan.at_random().returns.tolist() == [0.0, 1.0]
    (tmp_path / "solve.json").write_text('{"episodes": 0, "seed": 1, "video": true, "random_returns": [1.0]}')
    with pytest.raises(ConfigError, match="episodes 0 must be at least 1"):
        read_solve_plan(tmp_path)
