"""Wrappers and environment functions that are named as module:Class and module:function."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from birl.algos import a3c, ppo
from birl.config import ConfigError, EnvConfig, RunConfig, Wrapper, from_json, name_of_function, to_json
from birl.envs import registration as explain
from birl.envs.atari import Atari
from birl.envs.check.checking import check_env
from birl.envs.check.trials import try_envs
from birl.envs.make import episode_limit, make_env, make_envs, make_share
from birl.envs.serial import SerialEnvs
from birl.envs.wrappers import HideVelocities
from birl.registry import validate
from tests.envs.own import Remembering, Scaled, Walk, make_walk
from tests.run.processes import ENVIRONMENT

OWN = "tests.envs.own"
SCALED = Wrapper(f"{OWN}:Scaled", {"factor": 2.0})


def layers(env: gym.Env) -> list[type]:
    found = [type(env)]
    while isinstance(env, gym.Wrapper):
        env = env.env
        found.append(type(env))
    return found


def test_a_wrapper_is_read_from_one_text_and_written_as_it():
    text = f'{OWN}:Scaled,factor=2.5,flag=true,count=3,name=a,b,quoted="8"'
    wrapper = Wrapper.from_text(text)
    assert wrapper.path == f"{OWN}:Scaled"
    assert wrapper.kwargs == {"factor": 2.5, "flag": True, "count": 3, "name": "a,b", "quoted": "8"}
    assert wrapper.text() == text
    assert Wrapper.from_text("m:C,flag=False").kwargs == {"flag": False}
    config = EnvConfig(wrappers=[text, "m:D"])  # type: ignore[arg-type]
    assert config.wrappers == (wrapper, Wrapper("m:D"))
    assert from_json(EnvConfig, to_json(config)) == config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Scaled", r"wrappers\[0\]: wrapper 'Scaled' names no class; write it like 'my_module:MyWrapper'"),
        ("m:C,8", r"wrapper 'm:C,8' names no class"),
        ("m:C,a=null", r"kwargs.a must be True or False, .* not None"),
        ("m:C,a=NaN", r"kwargs.a nan must be a finite number"),
        (3, r"wrappers\[0\] must be a Wrapper, not 3; write it like 'my_module:MyWrapper'"),
    ],
)
def test_a_text_that_is_no_wrapper_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        EnvConfig(wrappers=(given,))


def test_wrappers_lie_around_the_environment_in_their_order_with_their_arguments():
    wrappers = (SCALED, Wrapper(f"{OWN}:Remembering"), Wrapper(f"{OWN}:Scaled", {"offset": 100.0}))
    env = make_env(EnvConfig("CartPole-v1", hide_velocities=True, wrappers=wrappers))
    assert layers(env)[:5] == [Scaled, Remembering, Scaled, HideVelocities, TimeLimit]
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(2)] == [104.0, 106.0]  # 2 + 2 + 100, then 2 + 4 + 100


def test_a_class_is_accepted_and_kept_by_its_name():
    assert EnvConfig(wrappers=(Scaled, Wrapper(Scaled, {"factor": 2.0}))).wrappers == (  # type: ignore[arg-type]
        Wrapper(f"{OWN}:Scaled"),
        SCALED,
    )


def test_atari_has_wrappers_around_its_own():
    pytest.importorskip("ale_py")
    env = make_env(EnvConfig("ALE/Pong-v5", wrappers=(SCALED,)))
    assert layers(env)[:2] == [Scaled, Atari]
    env.close()


def test_cartpoles_own_vector_environment_is_not_used_inside_wrappers():
    with make_envs(EnvConfig("CartPole-v1", 8, wrappers=(SCALED,)), 0) as envs:
        assert type(envs) is SerialEnvs
        envs.reset(0)
        assert envs.step(np.zeros(8, int)).rewards.tolist() == [2.0] * 8


@pytest.mark.parametrize("env_id", ["CartPole-v1", f"{OWN}:make_walk"])
def test_workers_and_ray_actors_wrap_as_this_process_does(env_id):
    config = EnvConfig(env_id, 3, wrappers=(SCALED, Wrapper(f"{OWN}:Remembering")))
    actions = np.random.default_rng(0).integers(0, 2, (30, 3))
    with make_envs(config, 0) as here, make_envs(EnvConfig(**vars(config) | {"workers": 2}), 0) as there:
        np.testing.assert_array_equal(here.reset(4)[0], there.reset(4)[0])
        rewards = np.array([here.step(action).rewards for action in actions])
        np.testing.assert_array_equal(rewards, [there.step(action).rewards for action in actions])
    with make_share(config, range(1, 3)) as share:  # what a Ray actor has
        share.reset(4)
        np.testing.assert_array_equal(rewards[:, 1:], [share.step(action[1:]).rewards for action in actions])


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        (f"{OWN}:Scaled,size=3", r"env.wrappers\[0\] '.*Scaled,size=3' has wrong arguments: .*'size'; it takes \(env"),
        (f"{OWN}:no_wrapper", r"'tests.envs.own:no_wrapper' gave 'no environment', no environment; use a gymnasium"),
        (f"{OWN}:needs_dict", r"'tests.envs.own:needs_dict' does not fit .*AssertionError: it needs a Dict"),
        (f"{OWN}:Missing", r"env.wrappers\[0\] '.*Missing': module tests.envs.own has no function or class Missing"),
        ("not_a_module:C", r"env.wrappers\[0\] 'not_a_module:C' cannot be imported: No module"),
        ("local:gone", r"env.wrappers\[0\] 'local:gone' is a function that only the process has"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_explained(wrapper, said):
    with pytest.raises(ConfigError, match=said):
        make_envs(EnvConfig("CartPole-v1", wrappers=(wrapper,)), 0)


def test_envpool_has_no_wrappers():
    with pytest.raises(ConfigError, match=r"env.wrappers \('tests.envs.own:Scaled',\) do not go with .*'envpool'"):
        make_envs(EnvConfig("CartPole-v1", backend="envpool", wrappers=(SCALED,)), 0)


def test_what_only_this_process_has_is_refused_where_others_would_need_it():
    class Mine(Scaled):
        pass

    local = {"a wrapper": EnvConfig(wrappers=(Mine,)), "an environment": EnvConfig(name_of_function(lambda: Walk()))}  # type: ignore[arg-type]
    for config in local.values():
        make_envs(config, 0).close()
        for where in ({"workers": 2}, {"ray_actors": 2}):
            with pytest.raises(
                ConfigError, match=r"only this process has, and env.* uses other processes; put it into"
            ):
                validate("ppo", ppo.Config(EnvConfig(**vars(config) | where)))
        with pytest.raises(ConfigError, match=r"only this process has, and pool 'processes' uses .*or use pool serial"):
            validate("a3c", a3c.Config(config, pool="processes"))
        validate("a3c", a3c.Config(config, pool="serial"))


def test_state_within_an_episode_is_replayed_and_state_across_episodes_is_noticed():
    for name, problem in (("Remembering", ""), ("Hoarding", "it keeps state from one episode to the next")):
        config = EnvConfig(f"{OWN}:make_walk", 2, wrappers=(Wrapper(f"{OWN}:{name}"),))
        assert try_envs(config).problem.endswith(problem)
        assert bool(try_envs(config).problem) == bool(problem)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Scaled", ""),  # unknown to native.py: the episode is replayed
        ("Remembering", ""),
        ("Hoarding", "it keeps state from one episode to the next"),
        ("Forgetful", "its state was set, and a different one was read back"),
        ("Lying", "it keeps state from one episode to the next"),
    ],
)
def test_a_wrapper_with_state_around_mujoco_is_restored_or_noticed(name, problem):
    pytest.importorskip("mujoco")
    found = try_envs(EnvConfig("InvertedPendulum-v5", 2, wrappers=(Wrapper(f"{OWN}:{name}"),))).problem
    assert found.endswith(problem)
    assert bool(found) == bool(problem)


def test_a_function_makes_the_environments():
    config = EnvConfig(f"{OWN}:make_walk", 2, kwargs={"length": 5, "drift": 0.5})
    with make_envs(config, 0) as envs:
        assert envs.reset(0)[0][:, 1].tolist() == [0.5, 0.5]
        ends = [envs.step(np.ones(2, int)).terminated.tolist() for _ in range(5)]
        assert ends == [[False, False]] * 4 + [[True, True]]
    assert episode_limit(config) is None
    with make_envs(EnvConfig(f"{OWN}:Walk", 2, max_episode_steps=3), 0) as envs:  # a class does too
        envs.reset(0)
        assert [envs.step(np.ones(2, int)).truncated.all() for _ in range(3)] == [False, False, True]


def test_a_registered_id_of_the_module_comes_first():
    assert make_env(EnvConfig(f"{OWN}:OwnCounting-v0")).spec.id == "OwnCounting-v0"  # type: ignore[union-attr]


def test_a_function_that_takes_render_mode_gets_it():
    assert make_env(EnvConfig(f"{OWN}:make_walk"), "rgb_array").render_mode == "rgb_array"
    assert make_env(EnvConfig(f"{OWN}:make_walk")).render_mode is None
    assert make_env(EnvConfig(f"{OWN}:make_drawn"), "rgb_array").render_mode == "rgb_array"
    with pytest.raises(ConfigError, match=r"cannot be drawn: its render_mode is 'rgb_array', not 'human'; let"):
        make_env(EnvConfig(f"{OWN}:make_drawn"), "human")


def test_a_function_of_this_process_alone_works_here():
    first = Walk()
    with make_envs(EnvConfig(name_of_function(lambda: Walk(length=2)), 2), 0) as envs:
        envs.reset(0)
        assert [envs.step(np.ones(2, int)).terminated.all() for _ in range(2)] == [False, True]
    with pytest.raises(ConfigError, match=r"returned the same environment twice; make a new one at each call"):
        make_envs(EnvConfig(name_of_function(lambda: first), 2), 0)


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        (
            EnvConfig(f"{OWN}:make_wolk"),
            ConfigError,
            r"env.id 'tests.envs.own:make_wolk': module tests.envs.own has no function or class make_wolk, and "
            r"registers no make_wolk; ids that it registers: .*OwnCounting-v0",
        ),
        (EnvConfig(f"{OWN}:make_walk", kwargs={"size": 3}), ConfigError, r"env.kwargs \{'size': 3\} do not fit env.id"),
        (EnvConfig(f"{OWN}:make_broken"), ConfigError, r"returned 'an environment'; return one gymnasium.Env"),
        (EnvConfig("not_a_module:make"), ConfigError, r"needs the module not_a_module"),
        (EnvConfig("local:gone"), ConfigError, r"env.id 'local:gone' is a function that only the process has"),
        (EnvConfig(f"{OWN}:make_raising"), KeyError, "own fault"),
    ],
)
def test_a_function_that_cannot_be_used_is_explained(config, error, said):
    with pytest.raises(error, match=said):
        make_envs(config, 0)


def test_the_check_of_an_environment_knows_functions_and_wrappers():
    findings = check_env(EnvConfig(name_of_function(make_walk), wrappers=(SCALED,)))
    assert "error" not in {finding.level for finding in findings}
    assert ("ok", "exact resume") in [(finding.level, finding.title) for finding in findings]


def test_a_run_in_wrapped_environments_of_a_function_learns_from_them():
    config = ppo.Config(
        EnvConfig(f"{OWN}:make_walk", 2, wrappers=(Wrapper(f"{OWN}:Scaled", {"factor": 0.0, "offset": 3.0}),)),
        RunConfig(total_steps=100),
        rollout_length=16,
        minibatches=1,
        epochs=1,
        hidden_sizes=(8,),
    )
    update = list(ppo.train(config))[-1]
    assert update.metrics["episode/return"] == 12 * 3.0


def test_an_id_of_a_known_package_needs_no_module_in_front():
    pytest.importorskip("minigrid")
    code = (
        "import gymnasium as gym; from birl.config import EnvConfig; from birl.envs.make import make_env; "
        "before = 'MiniGrid-Empty-5x5-v0' in gym.registry; "
        "print(before, make_env(EnvConfig('MiniGrid-Empty-5x5-v0')).spec.id)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env=ENVIRONMENT)
    assert said.split() == ["False", "MiniGrid-Empty-5x5-v0"]


@pytest.mark.parametrize(
    ("env_id", "module", "package"),
    [
        ("BabyAI-GoToRedBall-v0", "minigrid", "minigrid'$"),
        ("FetchReach-v4", "gymnasium_robotics", "gymnasium-robotics' 'mujoco<3.9'$"),
        ("FetchReach-v1", "gymnasium_robotics", "gymnasium-robotics' 'mujoco<3.9', and use FetchReach-v4$"),
        ("dm_control/cheetah-run-v0", "shimmy", r"shimmy\[dm-control\]' 'mujoco<4'$"),
        ("parking-v0", "highway_env", "highway-env'$"),
        ("popgym-RepeatPreviousEasy-v0", "popgym", "popgym'$"),
        ("pybullet_envs:HopperBulletEnv-v0", "pybullet_envs", None),
    ],
)
def test_a_known_package_that_is_missing_is_named(env_id, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    monkeypatch.delitem(gym.registry, env_id, raising=False)
    remedy = "; you may mean Hopper-v5$" if package is None else f": pip install '{package}"
    with pytest.raises(ConfigError, match=rf"the module {module}, which is not installed{remedy}"):
        make_env(EnvConfig(env_id))


OLD = "No module named 'mujoco_py'. (HINT: you need to install mujoco_py: https://github.com/openai/mujoco-py/.)"


@pytest.mark.parametrize(
    ("env_id", "error", "installed", "message"),
    [
        (
            "FetchReach-v4",
            AssertionError(),
            "4.0.0",
            "cannot be made (AssertionError); gymnasium-robotics works with mujoco<3.9, and mujoco 4.0.0 is installed: "
            "pip install 'gymnasium-robotics' 'mujoco<3.9'",
        ),
        (
            "dm_control/cheetah-run-v0",
            AttributeError("no flex_vertedge"),
            "4.0.0",
            "cannot be made (AttributeError: no flex_vertedge); shimmy[dm-control] works with mujoco<4, and mujoco "
            "4.0.0 is installed: pip install 'shimmy[dm-control]' 'mujoco<4'",
        ),
        (
            "FetchReach-v1",
            gym.error.DependencyNotInstalled(OLD),
            "3.17.0",
            "needs mujoco_py, which is no longer maintained; use FetchReach-v4. gymnasium-robotics works with "
            "mujoco<3.9, and mujoco 3.17.0 is installed: pip install 'gymnasium-robotics' 'mujoco<3.9'",
        ),
        (
            "FetchReach-v1",
            gym.error.DependencyNotInstalled(OLD),
            "3.8.1",
            "needs mujoco_py, which is no longer maintained; use FetchReach-v4",
        ),
        (
            "Ant-v3",
            gym.error.DependencyNotInstalled(OLD),
            "4.0.0",
            "needs mujoco_py, which is no longer maintained; use Ant-v5",
        ),
    ],
)
def test_versions_that_do_not_work_together_are_named_with_those_that_do(
    env_id, error, installed, message, monkeypatch
):
    monkeypatch.setattr(explain.importlib.metadata, "version", lambda name: installed)
    monkeypatch.setattr(explain.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ConfigError) as raised, explain.errors_explained(EnvConfig(env_id)):
        raise error
    assert str(raised.value) == f"env.id {env_id!r} {message}"


def test_an_error_with_versions_that_work_together_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(explain.importlib.metadata, "version", lambda name: "3.8.1")
    with pytest.raises(AssertionError), explain.errors_explained(EnvConfig("FetchReach-v4")):
        raise AssertionError
