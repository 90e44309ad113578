"""An unknown name is answered with what the user may have meant."""

import pytest

import birl
from birl.envs.registration import suggest_compiled, suggest_env
from birl.errors import ELSEWHERE, VARIANTS, suggest_algorithm, suggest_setting
from birl.registry import algorithm_named
from birl.settings import places_of

PLANNED = {"wrapper"}  # options that are not fields of a Config


def settings_of(algorithm: str) -> list[str]:
    return list(places_of(algorithm_named(algorithm).Config))


@pytest.mark.parametrize(
    ("algorithm", "name", "said"),
    [
        ("ppo", "lr", "you may mean learning_rate"),
        ("sac", "lr", "you may mean actor_learning_rate and critic_learning_rate"),
        ("sac", "learning_rate", "you may mean actor_learning_rate and critic_learning_rate"),
        ("ppo", "gamma", "you may mean discount"),
        ("ppo", "n_steps", "you may mean rollout_length: steps of each environment between updates"),
        ("dqn", "n_steps", "you may mean n_step"),
        ("ppo", "ent_coef", "you may mean entropy_weight"),
        ("sac", "ent_coef", "you may mean temperature"),
        (
            "ppo",
            "batch_size",
            "you may mean minibatches: a minibatch has rollout_length x num_envs / minibatches steps",
        ),
        ("a2c", "batch_size", "you may mean rollout_length: steps of each environment between updates"),
        ("ppo", "n_envs", "you may mean num_envs"),
        ("ppo", "timesteps", "you may mean total_steps"),
        ("ppo", "total_timesteps", "you may mean total_steps"),
        ("ppo", "clip_range_vf", "you may mean value_clip"),
        ("ppo", "vf_coef", "you may mean value_weight"),
        ("sac", "tau", "you may mean target_rate"),
        ("dqn", "buffer_size", "you may mean replay_size"),
        ("dqn", "train_freq", "you may mean rollout_length: steps of each environment between updates"),
        ("td3", "gradient_steps", "you may mean update_ratio: gradient steps for each environment step"),
        ("ppo", "policy_kwargs", "you may mean hidden_sizes and activation"),
        ("trpo", "target_kl", "you may mean max_kl"),
        ("ppo", "--N-Steps", "you may mean rollout_length: steps of each environment between updates"),
        ("ppo", "env.n_envs", "you may mean num_envs"),
        ("ppo", "learnin_rate", "you may mean learning_rate"),
        ("ppo", "total_step", "you may mean total_steps"),
        ("ppo", "device", "JAX chooses the device; JAX_PLATFORMS=cpu in the environment forces the CPU"),
        ("ppo", "wrapper_class", "you may mean wrappers"),
        ("ppo", "wrapper_kwargs", "you may mean wrappers"),
        ("ppo", "verbose", "a run shows its progress; quiet=True in Python silences it"),
        ("dqn", "ent_coef", ""),
        ("ppo", "xyzzy", ""),
    ],
)
def test_a_setting_of_another_library_or_with_a_typing_error_is_recognised(algorithm, name, said):
    assert suggest_setting(name, settings_of(algorithm)) == said


def test_what_is_suggested_is_written_as_the_known_names_are():
    assert suggest_setting("lr", ["--learning-rate"]) == "you may mean --learning-rate"


def test_every_setting_that_can_be_suggested_exists():
    there = {name for algorithm in birl.ALGORITHMS for name in settings_of(algorithm)} | PLANNED
    suggested = {name for groups in ELSEWHERE.values() for group in groups for name in group.split()}
    assert suggested - there == set()


def test_no_name_is_in_the_table_twice():
    names = " ".join(ELSEWHERE).split()
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PPO", "you may mean ppo"),
        ("async_q", "you may mean async-q"),
        ("RecurrentPPO", "you may mean ppo with core lstm"),
        ("DDQN", "you may mean dqn with double"),
        ("reinfroce", "you may mean reinforce"),
        ("muzero", ""),
    ],
)
def test_an_algorithm_is_recognised_by_its_letters(name, said):
    assert suggest_algorithm(name, birl.ALGORITHMS) == said


def test_every_variant_begins_with_an_algorithm():
    assert {said.replace(",", " ").split()[0] for said in VARIANTS.values()} <= set(birl.ALGORITHMS)


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("PongNoFrameskip-v4", "ALE/Pong-v5"),
        ("Breakout-ramDeterministic-v0", "ALE/Breakout-v5"),
        ("Pong-v5", "ALE/Pong-v5"),
        ("pong", "ALE/Pong-v5"),
        ("ALE/Pog-v5", "ALE/Pong-v5"),
        ("ALE/Pong", "ALE/Pong-v5"),
        ("CartPole", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("Hoper-v5", "Hopper-v5"),
        ("HalfCheetah", "HalfCheetah-v5"),
        ("HalfCheetahBulletEnv-v0", "HalfCheetah-v5"),
        ("pybullet_envs:Walker2DBulletEnv-v0", "Walker2d-v5"),
        ("HopperPyBulletEnv-v0", "Hopper-v5"),
        ("CartPoleBulletEnv-v1", "CartPole-v1"),
        ("CartPoleContinuousBulletEnv-v0", "InvertedPendulum-v5"),
        ("InvertedPendulumSwingupBulletEnv-v0", "dm_control/cartpole-swingup-v0"),
        ("KukaBulletEnv-v0", "FetchPickAndPlace-v4"),
        ("MinitaurBulletEnv-v0", "Ant-v5"),
        ("RoboschoolHopper-v1", "Hopper-v5"),
        ("RoboschoolHumanoidFlagrunHarder-v1", "Humanoid-v5"),
        ("RoboschoolPong-v1", "ALE/Pong-v5"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("my_module:Acrobot-v7", "my_module:Acrobot-v1"),
        ("MemoryGrid-v0", "birl/MemoryGrid-v0"),
    ],
)
def test_an_environment_is_recognised_by_its_name(env_id, meant):
    assert suggest_env(env_id) == f"you may mean {meant}"


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("cartpole", "CartPole-v1"),
        ("CartPole-v0", "CartPole-v1"),
        ("birl/MemoryGrid", "birl/MemoryGrid-v0"),
        ("MemoryGrd-v0", "birl/MemoryGrid-v0"),
        ("gymnx/Breakout-MinAtar", "gymnax/Breakout-MinAtar"),
        ("Brax/ant", "brax/ant"),
    ],
)
def test_a_compiled_environment_is_recognised_by_its_name(env_id, meant):
    assert suggest_compiled(env_id) == f"you may mean {meant}"
    assert suggest_compiled("Hopper-v5") == suggest_compiled("my/Own-v0") == ""


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MyOwn-v0"])
def test_what_is_right_or_unlike_anything_gets_no_suggestion(env_id):
    assert suggest_env(env_id) == ""
