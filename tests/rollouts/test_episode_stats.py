"""Episodes are counted as they end; where an episode is one life of a game, whole games are."""

import numpy as np

from birl.rollouts.episode_stats import EpisodeStats
from birl.types import Rollout, Snapshot

LIFE, NEXT_LIFE, GAME, NEXT_GAME, ON = "life", "next life", "game", "next game", "on"


def rollout_of(rows, has_lives=True):
    """One environment's steps, each with reward 10 but the resets."""
    valid = np.array([[row not in (NEXT_LIFE, NEXT_GAME)] for row in rows])
    terminated = np.array([[row in (LIFE, GAME)] for row in rows])
    game_over = np.array([[row in (GAME, NEXT_GAME)] for row in rows]) if has_lives else None
    return Rollout(None, None, 10.0 * valid, terminated, np.zeros_like(valid), valid, None, (), game_over=game_over)


TWO_LIVES = [ON, LIFE, NEXT_LIFE, ON, ON, GAME, NEXT_GAME, ON]


def test_a_games_return_and_length_are_those_of_all_its_lives():
    episode_stats = EpisodeStats(1)
    episode_stats.count(rollout_of(TWO_LIVES))
    assert list(episode_stats.recent) == [(50.0, 5)]
    assert episode_stats.episodes == 1
    assert (episode_stats.returns.tolist(), episode_stats.lengths.tolist()) == ([10.0], [1])


def test_without_lives_each_episode_counts():
    episode_stats = EpisodeStats(1)
    episode_stats.count(rollout_of(TWO_LIVES, has_lives=False))
    assert list(episode_stats.recent) == [(20.0, 2), (30.0, 3)]


def test_a_game_goes_on_over_rollouts_and_over_a_snapshot_wherever_they_are_cut():
    for cut in range(1, len(TWO_LIVES)):
        before, after = EpisodeStats(1), EpisodeStats(1)
        before.count(rollout_of(TWO_LIVES[:cut]))
        after.restore(Snapshot(before.arrays(), before.values()))
        after.count(rollout_of(TWO_LIVES[cut:]))
        assert list(after.recent) == [(50.0, 5)], cut
        assert after.lengths.tolist() == [1], cut


def test_a_game_that_was_lost_with_its_worker_counts_for_nothing():
    episode_stats = EpisodeStats(1)
    episode_stats.count(rollout_of([ON, LIFE, NEXT_LIFE, ON, NEXT_GAME, ON, GAME]))
    assert list(episode_stats.recent) == [(20.0, 2)]
