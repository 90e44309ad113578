"""The ε of actor-learners: drawn for each of them, falling with the run."""

from collections import Counter
from dataclasses import replace

import pytest

from birl.algos import async_q
from birl.algos.async_q import exploration_at
from birl.asynchronous.actor_learner import final_exploration
from birl.config import ConfigError, RunConfig
from birl.maths.schedules import linear

CONFIG = async_q.Config(run=RunConfig(total_steps=1000, seed=3))


def final_of(config: async_q.Config, number: int) -> float:
    return final_exploration(config.final_explorations, config.exploration_chances, config.run.seed, number)


def test_final_explorations_are_drawn_with_their_chances():
    """(Mnih et al. 2016, section 5.1.)"""
    counts = Counter(final_of(CONFIG, number) for number in range(5000))
    assert set(counts) == {0.1, 0.01, 0.5}
    shares = [counts[epsilon] / 5000 for epsilon in (0.1, 0.01, 0.5)]
    assert shares == pytest.approx([0.4, 0.3, 0.3], abs=0.03)  # four deviations


def test_an_actor_learner_that_begins_anew_has_the_same_and_another_seed_gives_others():
    first, again, other = (
        [final_of(replace(CONFIG, run=RunConfig(total_steps=steps, seed=seed)), number) for number in range(50)]
        for steps, seed in ((1000, 3), (9000, 3), (1000, 4))
    )
    assert first == again != other


def test_what_has_no_chance_is_never_drawn():
    config = replace(CONFIG, final_explorations=(0.2, 0.3, 0.4), exploration_chances=(0.0, 1.0, 0.0))
    assert {final_of(config, number) for number in range(200)} == {0.3}


@pytest.mark.parametrize("number", range(6))
def test_epsilon_falls_from_1_to_the_final_one_in_a_straight_line_and_stays(number):
    config = replace(CONFIG, exploration_fraction=0.4)
    final = final_of(config, number)
    found = [float(exploration_at(config, number, steps)) for steps in (0, 100, 200, 300, 400, 700, 1100)]
    assert found == pytest.approx(
        [1.0, *((1 - share) + share * final for share in (0.25, 0.5, 0.75)), final, final, final], rel=1e-6
    )


def test_a_schedule_of_all_actor_learners_takes_the_place_of_their_own():
    config = replace(CONFIG, exploration=lambda progress: 0.5 * (1 - progress) ** 2)
    found = [float(exploration_at(config, number, steps)) for number in range(3) for steps in (0, 500, 1100)]
    assert found == pytest.approx(3 * [0.5, 0.125, 0.0])


WRONG = {
    r"exploration from 0.1 to 1.5 must lie in \[0, 1\]": {"exploration": linear(1.5, 0.1)},
    r"final_explorations \(0.1, 1.5\) must each lie in \[0, 1\]": {
        "final_explorations": (0.1, 1.5),
        "exploration_chances": (0.5, 0.5),
    },
    r"exploration_chances \(0.4, 0.3, 0.3\) must be as many as final_explorations \(0.1,\)": {
        "final_explorations": (0.1,)
    },
    r"exploration_chances \(0.4, 0.3, 0.2\) must not be negative and add up to 1, not 0.9": {
        "exploration_chances": (0.4, 0.3, 0.2)
    },
    r"exploration_chances \(0.8, 0.7, -0.5\) must not be negative": {"exploration_chances": (0.8, 0.7, -0.5)},
    r"exploration_chances \(\) must not be negative and add up to 1, not 0": {
        "final_explorations": (),
        "exploration_chances": (),
    },
    r"exploration_fraction 0.0 must lie in \(0, 1\]; 0.5 is usual": {"exploration_fraction": 0.0},
    r"exploration_fraction 1.5 must lie in \(0, 1\]": {"exploration_fraction": 1.5},
}


@pytest.mark.parametrize(("message", "changes"), WRONG.items(), ids=WRONG)
def test_settings_that_cannot_work_are_named(message, changes):
    with pytest.raises(ConfigError, match=message):
        async_q.validate(replace(CONFIG, **changes))
