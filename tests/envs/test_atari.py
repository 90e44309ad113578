"""Atari games: preprocessing, equal through ale-py and EnvPool, and their state."""

import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ale_py", reason="pip install '.[atari]'")

from birl.algos import dqn
from birl.config import AtariConfig, ConfigError, EnvConfig, RunConfig
from birl.envs.atari import AreaScale
from birl.envs.make import episode_limit, make_env, make_envs, spaces_of

FIVE = ["Pong", "Breakout", "Qbert", "SpaceInvaders", "Seaquest"]
SAME_START = AtariConfig(noop_max=1)  # then, without sticky actions, games do not depend on the seed


def game(name, atari=SAME_START, **fields):
    return EnvConfig(f"ALE/{name}-v5", 1, atari=atari, **fields)


def actions_for(env, count, seed=0):
    return np.random.default_rng(seed).integers(0, env.action_space.n, count).tolist()


@pytest.mark.parametrize("name", FIVE)
def test_ale_and_envpool_show_the_same_frames_to_the_bit_and_the_same_rewards_and_ends(name):
    pytest.importorskip("envpool")
    config = game(name, replace(SAME_START, episodic_life=True), max_episode_steps=240)
    with make_envs(config, 0) as ours, make_envs(replace(config, backend="envpool"), 1) as pool:
        assert ours.observation_space == pool.observation_space
        assert ours.action_space == pool.action_space
        np.testing.assert_array_equal(ours.reset(0)[0], pool.reset(1)[0])
        for time, action in enumerate(actions_for(ours, 250)):
            for mine, theirs in zip(ours.step([action]), pool.step([action]), strict=True):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"step {time}")
        if name == "Breakout":  # in the middle of a game, where EnvPool alone would go on with the next life
            np.testing.assert_array_equal(ours.reset(0)[0], pool.reset(1)[0])


def test_an_area_is_averaged_and_a_flat_picture_stays_as_it_is():
    scale = AreaScale((210, 160), (84, 84))
    np.testing.assert_array_equal(scale(np.full((210, 160), 77, np.uint8)), np.full((84, 84), 77))
    ramp = np.broadcast_to(np.arange(210, dtype=np.uint8)[:, None], (210, 160))
    # Means over two and a half lines: 0.8, 3.2, 5.8, 8.2.
    np.testing.assert_array_equal(scale(ramp)[:4, 0], [1, 3, 6, 8])
    halved = AreaScale((4, 4), (2, 2))(np.array([[0, 2, 10, 10], [4, 6, 10, 10], [0, 0, 1, 2], [0, 0, 2, 3]], np.uint8))
    np.testing.assert_array_equal(halved, [[3, 10], [0, 2]])


def test_an_episode_begins_with_one_frame_repeated_and_each_step_adds_one_at_the_end():
    with make_env(game("Breakout")) as env:
        first, _ = env.reset()
        assert first.shape == (4, 84, 84)
        assert first.dtype == np.uint8
        assert (first == first[-1]).all()
        before = first.copy()
        after = env.step(2)[0]
        np.testing.assert_array_equal(after[:-1], before[1:])
        np.testing.assert_array_equal(first, before)  # what was returned does not change


def test_an_action_is_held_and_the_image_is_the_maximum_of_the_last_two_frames():
    with (
        make_env(game("SpaceInvaders")) as skipping,
        make_env(game("SpaceInvaders", replace(SAME_START, frame_skip=1))) as single,
    ):
        skipping.reset()
        single.reset()
        rewards = []
        flickered = False
        for action in actions_for(skipping, 80):
            held, screens = [], []
            for _ in range(4):
                held.append(single.step(action)[1])
                screens.append(single.ale.getScreenGrayscale())
            picture, reward, *_ = skipping.step(action)
            assert reward == sum(held)
            np.testing.assert_array_equal(picture[-1], single.scale(np.maximum(screens[2], screens[3])))
            rewards.append(reward)
            flickered |= bool(np.any(screens[2] > screens[3]))
        assert flickered
        assert max(rewards) >= 5  # not clipped


@pytest.mark.parametrize("fire_reset", [True, False])
def test_a_game_begins_with_one_to_noop_max_frames_from_the_environments_own_generator(fire_reset):
    with make_env(game("Breakout", AtariConfig(noop_max=3, fire_reset=fire_reset))) as env:
        env.reset(seed=0)
        frames = [env.reset()[1] and env.ale.getEpisodeFrameNumber() for _ in range(30)]
        assert set(frames) == {1, 2, 3}
        state = env.unwrapped.np_random.bit_generator.state
        once = [env.reset()[0] for _ in range(5)]
        env.unwrapped.np_random.bit_generator.state = state
        np.testing.assert_array_equal(once, [env.reset()[0] for _ in range(5)])


@pytest.mark.parametrize("seed", [0, 7])  # ALE issue 603: 0 was no seed
def test_the_same_seed_plays_the_same_game_also_with_sticky_actions(seed):
    with make_env(game("Breakout", AtariConfig(sticky_actions=0.25))) as env:

        def play(seed):
            first, _ = env.reset(seed=seed)
            return [first] + [env.step(action)[0] for action in actions_for(env, 60)]

        once = play(seed)
        np.testing.assert_array_equal(once, play(seed))
        assert np.any(np.array(once) != np.array(play(seed + 1)))


def lose_a_life(env, patience=400):
    """Do nothing until an episode ends; returns the last step."""
    for _ in range(patience):
        outcome = env.step(0)
        if outcome[2] or outcome[3]:
            return outcome
    raise AssertionError("nothing ended")


def test_a_lost_life_ends_the_episode_and_reset_goes_on_with_the_game():
    with make_env(game("Breakout", replace(SAME_START, episodic_life=True))) as env:
        _, start = env.reset()
        assert start == {"game_over": True, "lives": 5}
        for lives in (4, 3, 2, 1):
            *_, terminated, truncated, info = lose_a_life(env)
            assert (terminated, truncated, info) == (True, False, {"game_over": False, "lives": lives})
            frames = env.ale.getEpisodeFrameNumber()
            observation, info = env.reset()
            assert info == {"game_over": False, "lives": lives}
            assert env.ale.getEpisodeFrameNumber() == frames + 1
            assert (observation == observation[-1]).all()
        *_, terminated, truncated, info = lose_a_life(env)
        assert (terminated, truncated, info) == (True, False, {"game_over": True, "lives": 0})
        assert env.reset()[1] == start


def test_steps_tell_lives_from_games_in_workers_too_and_a_lost_worker_begins_new_games():
    config = EnvConfig("ALE/Breakout-v5", 2, atari=replace(SAME_START, episodic_life=True), max_episode_steps=60)
    with make_envs(config, 0) as serial, make_envs(replace(config, workers=2), 0) as workers:
        serial.reset(0)
        workers.reset(0)
        ends = []
        for _ in range(130):
            mine = serial.step([0, 0])
            theirs = workers.step([0, 0])
            for array, other in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(array, other)
            ends.append((mine.terminated[0], mine.truncated[0], mine.game_over[0], mine.valid[0]))
        assert set(ends) == {  # goes on; a life ends; the next life; the game ends; the next game
            (False, False, False, True),
            (True, False, False, True),
            (False, False, False, False),
            (False, True, True, True),
            (False, False, True, False),
        }
        os.kill(workers.pids[1], signal.SIGKILL)
        with pytest.warns(UserWarning, match="began new episodes"):
            step = workers.step([0, 0])
        assert step.valid.tolist() == [True, False]
        assert step.game_over.tolist() == [False, True]


def test_reset_in_the_middle_of_a_life_or_with_a_seed_is_a_new_game():
    with make_env(game("Breakout", replace(SAME_START, episodic_life=True))) as env:
        env.reset()
        lose_a_life(env)
        assert env.reset(seed=0)[1] == {"game_over": True, "lives": 5}
        lose_a_life(env)
        env.reset()
        env.step(0)
        assert env.reset()[1] == {"game_over": True, "lives": 5}
        assert env.elapsed == 0


def test_without_episodic_life_a_lost_life_does_not_end_the_episode():
    with make_env(game("Breakout")) as env:
        env.reset()
        lives = []
        while not lives or lives[-1] > 0:
            _, _, terminated, truncated, info = env.step(1)
            lives.append(info["lives"])
            assert (terminated, truncated) == (lives[-1] == 0, False)
        assert set(lives) == {5, 4, 3, 2, 1, 0}


def test_the_limit_truncates_the_whole_game_and_not_each_life():
    with make_env(game("Breakout", replace(SAME_START, episodic_life=True), max_episode_steps=50)) as env:
        env.reset()
        steps = 0
        while True:
            _, _, terminated, truncated, info = env.step(0)
            steps += 1
            if truncated:
                break
            if terminated:
                assert not info["game_over"]
                env.reset()
        assert steps == 50
        assert info["game_over"]
        assert env.reset()[1]["lives"] == 5


def test_a_game_is_truncated_after_108000_frames():
    assert episode_limit(game("Pong")) == 27_000
    assert episode_limit(game("Pong", AtariConfig(frame_skip=3))) == 36_000
    assert episode_limit(game("Pong", max_episode_steps=9)) == 9


class LosesByWaiting:
    """In place of ALE: its first games are over after a few frames."""

    def __init__(self, ale, games):
        self.real = ale
        self.left = list(games)
        self.resets = 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def act(self, action):
        self.left[0] -= 1
        return self.real.act(action)

    def game_over(self):
        return self.left[0] <= 0

    def reset_game(self):
        self.left.pop(0)
        self.resets += 1
        self.real.reset_game()


@pytest.mark.parametrize("games", [[2, 100], [5, 100], [1, 2, 100]])  # lost during the no-ops, by fire, and twice
def test_a_game_that_is_lost_while_it_begins_is_begun_again(games):
    with make_env(game("Breakout", AtariConfig(noop_max=5, episodic_life=True))) as env:
        env.reset(seed=0)
        while env.np_random.integers(1, 6) != 5:
            state = env.np_random.bit_generator.state
        env.unwrapped.np_random.bit_generator.state = state
        env.life_lost = True
        env.elapsed = 7
        env.ale = LosesByWaiting(env.ale, games)
        assert env.reset()[1]["game_over"]
        assert env.ale.resets == len(games) - 1
        assert env.elapsed == 0
        assert not env.step(0)[2]


@pytest.mark.parametrize("name", FIVE)
def test_with_ales_own_state_a_game_goes_on_identically(name):
    config = game(name, AtariConfig(episodic_life=True, sticky_actions=0.25))
    with make_env(config) as env, make_env(config) as other:
        env.reset(seed=3)
        for action in actions_for(env, 60):
            if env.step(action)[2]:
                env.reset()
        arrays, values = env.get_state()
        clone = env.ale.cloneState(include_rng=True)
        generator = env.np_random.bit_generator.state
        other.reset()
        other.set_state(arrays, values)
        other.ale.restoreState(clone)
        other.unwrapped.np_random.bit_generator.state = generator
        for action in actions_for(env, 100, seed=1):
            left = env.step(action)
            right = other.step(action)
            np.testing.assert_array_equal(left[0], right[0])
            assert left[1:] == right[1:]
            if left[2]:
                np.testing.assert_array_equal(env.reset()[0], other.reset()[0])


def test_a_game_saved_between_two_lives_goes_on_with_the_next():
    config = game("Breakout", replace(SAME_START, episodic_life=True))
    with make_env(config) as env, make_env(config) as other:
        env.reset()
        other.reset()
        lose_a_life(env)
        other.set_state(*env.get_state())
        other.ale.restoreState(env.ale.cloneState(include_rng=True))
        assert env.reset()[1] == other.reset()[1] == {"game_over": False, "lives": 4}


def test_the_state_is_a_copy():
    with make_env(game("Pong")) as env:
        env.reset()
        arrays, values = env.get_state()
        before = arrays["frames"].copy()
        for _ in range(20):
            env.step(0)
        np.testing.assert_array_equal(arrays["frames"], before)
        env.set_state(arrays, values)
        assert env.elapsed == 0
        arrays["frames"][:] = 0
        np.testing.assert_array_equal(env.frames, before)


BAD = {
    "no frames to wait": (game("Pong", AtariConfig(noop_max=0)), r"env.atari.noop_max 0 .*use 30"),
    "no frames to skip": (game("Pong", AtariConfig(frame_skip=0)), r"env.atari.frame_skip 0 .*use 4"),
    "a screen without pixels": (game("Pong", AtariConfig(screen_size=0)), r"env.atari.screen_size 0 .*use 84"),
    "a screen larger than the game's": (
        game("Pong", AtariConfig(screen_size=161)),
        r"env.atari.screen_size 161 .*160",
    ),
    "no frames to see": (game("Pong", AtariConfig(stacked_frames=0)), r"env.atari.stacked_frames 0 .*use 4"),
    "an action that is never taken": (
        game("Pong", AtariConfig(sticky_actions=1.0)),
        r"env.atari.sticky_actions 1.0 .*0.25",
    ),
    "ALE's own frame skip": (game("Pong", kwargs={"frameskip": 4}), r"env.kwargs 'frameskip' .*env.atari.frame_skip"),
    "a game that ALE does not have": (game("Pongg"), r"env.id 'ALE/Pongg-v5' is not registered"),
    "a game that EnvPool does not have": (game("Pongg", backend="envpool"), r"env.id 'ALE/Pongg-v5' is not in EnvPool"),
    "velocities to hide": (game("Pong", hide_velocities=True), r"env.hide_velocities True is not known"),
}


@pytest.mark.parametrize(("config", "message"), BAD.values(), ids=BAD.keys())
def test_settings_that_cannot_work_are_explained(config, message):
    with pytest.raises(ConfigError, match=message):
        spaces_of(config)


@pytest.mark.parametrize("backend", ["gymnasium", "envpool"])
def test_without_ale_py_the_extra_is_named_and_envpool_needs_none(backend, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    if backend == "envpool":
        pytest.importorskip("envpool")
        assert spaces_of(game("Pong", backend="envpool"))[1].n == 6
        return
    with pytest.raises(ConfigError, match=r"env.id 'ALE/Pong-v5' needs the module ale_py, .*pip install '\.\[atari\]'"):
        spaces_of(game("Pong"))


def test_dqn_keeps_each_frame_once_and_reports_unclipped_scores_of_whole_games():
    """Episodes are lives; scores are of whole games and not clipped: they are multiples of 5."""
    env = EnvConfig("ALE/SpaceInvaders-v5", 2, atari=AtariConfig(episodic_life=True), max_episode_steps=60)
    settings = {
        "encoder": "cnn_small",
        "clip_rewards": True,
        "frame_stack": 4,
        "rollout_length": 16,
        "update_ratio": 1 / 32,
    }
    config = dqn.Config(
        env, RunConfig(total_steps=288), replay_size=1000, learning_starts=200, batch_size=4, **settings
    )
    *_, last = dqn.train(config)
    snapshot = last.snapshot()
    frames = next(array for array in snapshot.arrays_under("replay/").values() if array.dtype == np.uint8)
    assert frames.shape[1:] == (2, 84, 84)
    assert last.metrics["replay/bytes"] < 1.1 * 7056 * 1100
    assert np.isfinite(last.metrics["loss/value"])
    assert last.metrics["episode/count"] == 4
    assert last.metrics["episode/length"] == 60
    scores = [score for score, _ in snapshot.values["recent"]]
    assert max(scores) >= 5
    assert all(score % 5 == 0 for score in scores)
