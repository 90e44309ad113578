"""Compiled environments stepped from Python do what the same environments in NumPy do."""

import warnings
from dataclasses import replace

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from birl.config import CLASSIC, ConfigError, EnvConfig
from birl.envs.check.trials import check_resume, try_envs
from birl.envs.compiled.host import CompiledEnvs, CompiledGymEnv, new_programs, programs_of
from birl.envs.make import episode_limit, make_env, make_envs, spaces_of
from birl.envs.serial import SerialEnvs
from birl.envs.snapshot import same_tree
from birl.errors import InexactResume
from birl.types import Envs, Step
from tests.envs.compiled.counting import PAIRS, with_names

HOME = "tests.envs.compiled.counting"


def settings(name: str, num_envs: int = 3, **more) -> EnvConfig:
    return EnvConfig(f"{HOME}:{name}", num_envs, "compiled", **more)


def compiled(name: str, num_envs: int = 3, **more) -> CompiledEnvs:
    return CompiledEnvs(programs_of(settings(name, num_envs, **more)))


def play(envs: Envs, actions: np.ndarray, seed: int = 0) -> list[Step]:
    """The steps of these actions; the first one is the reset."""
    first, masks = envs.reset(seed)
    nothing = np.zeros(envs.num_envs)
    start = Step(first, nothing, nothing, nothing, nothing, masks)
    return [start, *(envs.step(row) for row in actions)]


def assert_same(left: list[Step], right: list[Step]) -> None:
    for t, (one, other) in enumerate(zip(left, right, strict=True)):
        flat, other_flat = jax.tree.leaves_with_path(one), jax.tree.leaves_with_path(other)
        for (path, array), (other_path, other_array) in zip(flat, other_flat, strict=True):
            assert path == other_path
            assert (array.dtype, array.shape) == (other_array.dtype, other_array.shape)
            np.testing.assert_array_equal(array, other_array, err_msg=f"step {t} {jax.tree_util.keystr(path)}")


def names_of(envs: CompiledEnvs, actions: np.ndarray, seed: int = 0) -> list[list[int]]:
    """The names of the episodes of each copy, in order."""
    envs.reset(seed)
    names = [[int(name)] for name in envs.snapshot().arrays["copies.states['name']"]]
    for row in actions:
        step = envs.step(row)
        for index in np.flatnonzero(~step.valid):
            names[index].append(int(envs.snapshot().arrays["copies.states['name']"][index]))
    return names


def random_actions(length: int, num_envs: int = 3) -> np.ndarray:
    return np.random.default_rng(4).integers(3, size=(length, num_envs))


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("name", PAIRS)
def test_copies_step_as_the_same_environments_in_numpy_do(name, limit):
    actions = random_actions(60)
    envs = compiled(name, max_episode_steps=limit)
    names = names_of(envs, actions)

    def in_numpy(index: int) -> gym.Env:
        env = with_names(PAIRS[name][1], iter(names[index]))
        return env if limit is None else gym.wrappers.TimeLimit(env, limit)

    serial = SerialEnvs([lambda index=index: in_numpy(index) for index in range(3)])
    steps = play(envs, actions)
    assert_same(steps, play(serial, actions))
    assert envs.observation_space == serial.observation_space
    ends = np.array([(step.terminated, step.truncated, ~step.valid) for step in steps[1:]])
    assert ends.any(axis=(0, 2)).all(), "there was an end of each kind, and a reset"


def test_they_are_envs_of_the_declared_spaces():
    envs = compiled("DictCounting", ignore_observations=("pair",))
    assert isinstance(envs, Envs)
    assert set(envs.observation_space.spaces) == {"count/steps", "count/total"}
    first, masks = envs.reset(0)
    assert set(first) == {"count/steps", "count/total"}
    assert masks.dtype == bool
    assert all(type(array) is np.ndarray for array in jax.tree.leaves(envs.step(np.zeros(3, int))))


def test_one_seed_gives_one_trajectory_and_copies_differ():
    actions = np.zeros((30, 3, 2), np.float32)
    first, again, other = (play(compiled("Pulled"), actions, seed) for seed in (5, 5, 6))
    assert_same(first, again)
    assert not np.array_equal(first[0].observations, other[0].observations)
    assert len(set(first[0].observations[:, 0])) == 3


def test_actions_beyond_the_bounds_are_those_at_the_bounds():
    wide = np.full((9, 3, 2), 7.0, np.float32)
    assert_same(play(compiled("Pulled"), wide), play(compiled("Pulled"), np.tile(np.float32([1.0, 0.5]), (9, 3, 1))))


@pytest.mark.parametrize("actions", [np.zeros(2, int), np.zeros((3, 1), int), np.zeros(3)])
def test_actions_of_another_shape_or_type_are_refused(actions):
    envs = compiled("Counting")
    envs.reset(0)
    with pytest.raises(ValueError, match=r"actions have (shape|dtype) .* need"):
        envs.step(actions)


def test_an_action_before_a_reset_is_refused():
    with pytest.raises(RuntimeError, match="call reset"):
        compiled("Counting").step(np.zeros(3, int))
    with pytest.raises(RuntimeError, match="call reset"):
        CompiledGymEnv(settings("Counting")).step(0)
    assert not compiled("Counting").snapshot().exact


@pytest.mark.parametrize("name", ["Pulled", "MaskedCounting", "DictCounting"])
@pytest.mark.parametrize("when", [0, 1, 7, 20])
def test_restored_copies_go_on_bit_for_bit(name, when):
    actions = np.zeros((40, 3, 2), np.float32) if name == "Pulled" else random_actions(40)
    envs, other = compiled(name), CompiledEnvs(new_programs(settings(name)))
    play(envs, actions[:when])
    snapshot = envs.snapshot()
    assert snapshot.exact
    assert all(type(array) is np.ndarray for array in snapshot.arrays.values())
    there = np.array(snapshot.arrays["copies.ended"])
    here = [envs.step(row) for row in actions[when:]]
    other.reset(99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored = other.restore(snapshot)
    np.testing.assert_array_equal(there, snapshot.arrays["copies.ended"], "a snapshot does not change any more")
    assert not other.fresh.any()
    assert other.restore_problem == ""
    jax.tree.map(np.testing.assert_array_equal, restored, envs.restore(snapshot))
    assert same_tree(other.snapshot().arrays, snapshot.arrays)
    other.restore(snapshot)
    assert_same(here, [other.step(row) for row in actions[when:]])


def test_a_snapshot_of_other_environments_begins_new_episodes_and_says_so():
    envs = compiled("Counting")
    with SerialEnvs([lambda: gym.make("CartPole-v1")] * 3) as serial:
        serial.reset(0)
        snapshot = serial.snapshot()
    with pytest.warns(InexactResume, match="another kind of environments"):
        envs.restore(snapshot)
    assert envs.fresh.all()
    assert "began a new episode" in envs.restore_problem
    envs.reset(0)
    assert not envs.fresh.any()


def test_a_snapshot_that_does_not_fit_is_refused():
    envs = compiled("Counting")
    envs.reset(0)
    with pytest.raises(ValueError, match="the snapshot has 3 environments, not 2"):
        compiled("Counting", 2).restore(envs.snapshot())
    with pytest.raises(ValueError, match="of another environment"):
        compiled("Pulled").restore(envs.snapshot())
    pulled = compiled("Pulled")
    pulled.reset(0)
    saved = pulled.snapshot()
    other = replace(saved, arrays=saved.arrays | {"copies.states": np.zeros((3, 1), np.float32)})
    with pytest.raises(ValueError, match=r"copies.states is float32\(3, 1\), not float32\(3, 2\)"):
        pulled.restore(other)


def test_a_program_is_compiled_once_in_a_process_and_anew_where_its_settings_differ():
    assert programs_of(settings("Pulled")) is programs_of(settings("Pulled"))
    kwargs = [{"noise": 1}, {"noise": True}, {"noise": 1.0}]  # equal, and yet different
    assert len({id(programs_of(settings("Pulled", kwargs=given))) for given in kwargs}) == 3


def test_compiled_environments_always_resume_exactly_so_nothing_is_tried(monkeypatch):
    monkeypatch.setattr("birl.envs.check.trials.make_envs", None)
    for config in (settings("Counting"), EnvConfig("CartPole-v1", backend="compiled")):
        assert try_envs(config).problem == ""
        assert [finding.level for finding in check_resume(config)] == ["ok"]


@pytest.mark.parametrize("env_id", CLASSIC)
@pytest.mark.parametrize("hidden", [False, True])
def test_where_gymnasium_has_the_same_environment_it_is_made_with_the_same_settings(env_id, hidden):
    twin = EnvConfig(env_id, num_envs=2, hide_velocities=hidden, max_episode_steps=7)
    config = replace(twin, backend="compiled")
    with make_envs(config, 0) as envs, make_envs(twin, 0) as others:
        assert type(envs) is type(others)
        assert (envs.observation_space, envs.action_space) == spaces_of(config) == spaces_of(twin)
    assert episode_limit(config) == 7
    assert episode_limit(EnvConfig(env_id, backend="compiled")) == episode_limit(EnvConfig(env_id))
    with make_env(config, "rgb_array") as env:
        env.reset(seed=0)
        assert env.render().shape[2] == 3
        assert env.spec.id == env_id


def test_spaces_and_the_limit_are_known_without_making_environments_of_the_host(monkeypatch):
    monkeypatch.setattr("birl.envs.make.make_envs", None)
    monkeypatch.setattr("birl.envs.make.find_spec", None)
    assert episode_limit(settings("Pulled")) == 20
    assert episode_limit(settings("Pulled", max_episode_steps=3)) == 3
    assert episode_limit(settings("Counting")) is None
    assert spaces_of(settings("ShiftedCounting"))[1] == gym.spaces.Discrete(3, start=1)
    assert spaces_of(EnvConfig("CartPole-v1", backend="compiled", hide_velocities=True))[0].shape == (2,)


@pytest.mark.parametrize("name", [*PAIRS, "Pulled"])
@pytest.mark.filterwarnings("ignore:.*(WARN|obs)")
def test_one_of_them_is_an_ordinary_gymnasium_environment(name):
    env = make_env(settings(name, kwargs={} if name == "Pulled" else {"shortest": 3}))
    assert type(env) is CompiledGymEnv
    gymnasium_check(env, skip_render_check=True)


@pytest.mark.parametrize("name", PAIRS)
def test_one_alone_steps_as_the_same_environment_in_numpy_does(name):
    env = make_env(settings(name))
    for seed in range(8):
        env.reset(seed=seed)
        other = with_names(PAIRS[name][1], iter([int(env._now.state["name"])]))
        (observation, info), (expected, other_info) = env.reset(seed=seed), other.reset(seed=seed)
        ended = False
        while not ended:
            assert env.observation_space.contains(observation)
            jax.tree.map(np.testing.assert_array_equal, observation, expected)
            jax.tree.map(np.testing.assert_array_equal, info, other_info)
            action = int(env.action_space.start) + seed % 3
            observation, *outcome, info = env.step(action)
            expected, *other_outcome, other_info = other.step(action)
            assert outcome == other_outcome
            ended = outcome[1] or outcome[2]


def test_one_alone_is_cut_by_the_limit_and_goes_on_with_other_randomness():
    env = make_env(settings("Pulled"))
    first, _ = env.reset(seed=3)
    flags = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(20)]
    assert flags == [(False, False)] * 19 + [(False, True)]
    second, _ = env.reset()
    again, _ = env.reset(seed=3)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)
    env = make_env(settings("Pulled", max_episode_steps=2))
    env.reset(seed=0)
    assert [env.step(np.zeros(2, np.float32))[3] for _ in range(2)] == [False, True]


def test_it_is_drawn_if_it_has_a_picture(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    with make_env(settings("Pulled"), "rgb_array") as env:
        env.reset(seed=0)
        assert env.render().shape == (32, 48, 3)
        assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 12.0}
    with make_env(settings("Pulled"), "human") as window:
        window.reset(seed=0)
        window.step(np.zeros(2, np.float32))
        assert window.render() is None
    for mode in ("rgb_array", "human"):
        with pytest.raises(ConfigError, match=r"cannot be drawn: it has no render\(state\); let it return an image"):
            make_env(settings("Counting"), mode)
