"""The checks of settings: which values each field may have, and what the errors say."""

import dataclasses
import os
import re
import typing
from typing import Any

import pytest

from birl import ALGORITHMS
from birl.algos import a3c, dqn, ppo
from birl.checks import (
    require_config,
    require_minibatches,
    require_own_envs,
    validate_actor_learners,
    validate_replay,
    validate_settings,
)
from birl.config import AtariConfig, ConfigError, EnvConfig, RunConfig, Wrapper, is_atari, is_compiled, validate_run
from birl.envs.make import ATARI_OPTIONS, MOST_ENVS, validate_env
from birl.limits import MOST_UNITS, Limit, highest, lowest
from birl.maths.schedules import linear, piecewise
from birl.parts import ActorLearnerConfig, ReplayConfig
from birl.registry import algorithm_named, supports
from birl.settings import places_of, plain

# Which range a setting has, in every algorithm that has it.
AT_LEAST_ONE = {
    "rollout_length", "epochs", "minibatches", "batch_size", "frame_stack", "n_step", "target_every", "policy_delay",
    "cg_steps", "fisher_every", "backtrack_tries", "num_features", "advantage_samples", "actor_learners",
    "report_every", "gsde_every", "num_quantiles", "num_atoms",
}  # fmt: skip
FRACTIONS = {"discount", "gae_lambda", "target_rate", "priority_exponent", "average_decay"}
POSITIVE = {
    "max_grad_norm", "optimizer_epsilon", "target_kl", "value_clip", "penalty_target_kl", "penalty_weight", "max_kl",
    "update_ratio", "temperature", "noise_rate", "noise_time_step", "feature_scale", "importance_truncation",
    "trust_region", "target_rate",
}  # fmt: skip
NOT_NEGATIVE = {
    "learning_rate", "actor_learning_rate", "critic_learning_rate", "value_learning_rate", "temperature_learning_rate",
    "clip_range", "exploration_noise", "target_noise", "target_noise_clip", "priority_correction", "replay_size",
    "replay_ratio", "learning_starts", "cg_damping", "burn_in", "hindsight",
}  # fmt: skip
SIZES = {"core_size", "hidden_sizes", "policy_hidden_sizes", "value_hidden_sizes"}  # of layers
PROBABILITIES = {"exploration"}
LIMITED = AT_LEAST_ONE | FRACTIONS | POSITIVE | NOT_NEGATIVE | PROBABILITIES | SIZES | {"rmsprop_decay", "prefill"}
RULES = AT_LEAST_ONE | FRACTIONS | POSITIVE | NOT_NEGATIVE | {"rmsprop_decay"} | SIZES
# Numbers that an algorithm's own `validate` checks, and numbers that may have any value.
OWN_RULES = {"backtrack_factor", "exploration", "noise_adaptation", "value_min", "value_max"}
OWN_RULES |= {"final_explorations", "exploration_chances", "exploration_fraction"}
WITHOUT_RULES = {"entropy_weight", "value_weight", "log_std", "target_entropy"}


def configs_with(field: str) -> list[Any]:
    """The default Config of each algorithm that has this field."""
    configs = [algorithm_named(name).Config() for name in ALGORITHMS]
    return [config for config in configs if field in field_types(config)]


def field_types(config: Any) -> dict[str, Any]:
    apart = ("env",), ("run",)  # whose numbers have checks of their own
    return {name: plain(place.hint) for name, place in places_of(type(config)).items() if place.path[:1] not in apart}


def holds_numbers(kind: Any) -> bool:
    """Whether a field of this type is a number, several of them, or a number that may be None."""
    return kind in (int, float) or any(map(holds_numbers, typing.get_args(kind)))


def is_optional(config: Any, field: str) -> bool:
    return type(None) in typing.get_args(field_types(config)[field])


def check(config: Any, **changes: Any) -> None:
    validate_settings(dataclasses.replace(config, **changes), type(config))


def test_a_setting_has_the_same_range_in_every_algorithm():
    limits: dict[str, set[tuple[str, ...]]] = {}
    for algorithm in ALGORITHMS:
        for name, place in places_of(algorithm_named(algorithm).Config).items():
            limits.setdefault(name, set()).add(tuple(limit.text for limit in place.about(Limit)))
    assert {name for name, found in limits.items() if found != {()}} == LIMITED
    assert {name: found for name, found in limits.items() if len(found) > 1} == {}


def test_every_rule_is_about_a_field_that_some_algorithm_has():
    assert [field for field in sorted(RULES) if not configs_with(field)] == []


def test_every_number_in_a_config_has_a_rule_or_is_listed_as_having_none():
    configs = [algorithm_named(name).Config() for name in ALGORITHMS]
    numbers = {field for config in configs for field, kind in field_types(config).items() if holds_numbers(kind)}
    assert numbers == RULES | OWN_RULES | WITHOUT_RULES
    assert not RULES & (OWN_RULES | WITHOUT_RULES)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_defaults_of_every_algorithm_are_allowed(name):
    config = algorithm_named(name).Config()
    validate_settings(config, type(config))


@pytest.mark.parametrize("field", sorted(AT_LEAST_ONE))
def test_a_count_must_be_at_least_1(field):
    for config in configs_with(field):
        check(config, **{field: 1})
        for wrong in (0, -3):
            with pytest.raises(ConfigError, match=rf"^{field} {wrong} must be at least 1$"):
                check(config, **{field: wrong})


def test_a_count_must_fit_into_32_bits():
    with pytest.raises(ConfigError, match=r"^epochs 1,099,511,627,776 must be below 2,147,483,648$"):
        validate_settings(ppo.Config(epochs=1 << 40), ppo.Config)


@pytest.mark.parametrize("field", sorted(FRACTIONS))
def test_a_fraction_must_lie_between_0_and_1(field):
    for config in configs_with(field):
        for right in (1e-6, 0.5, 1.0) if field in POSITIVE else (0.0, 0.5, 1.0):
            check(config, **{field: right})
        for wrong in (-0.5, 1.5):
            with pytest.raises(ConfigError, match=rf"^{field} {wrong} must lie in \[0, 1\]$"):
                check(config, **{field: wrong})


@pytest.mark.parametrize("field", sorted(POSITIVE))
def test_what_must_be_positive_may_not_be_0_and_the_error_names_a_usual_value_or_none(field):
    for config in configs_with(field):
        default = places_of(type(config))[field].default_in(type(config))
        remedy = ", or None to switch it off" if is_optional(config, field) else f"; {default:g} is usual"
        check(config, **{field: 1e-9})
        with pytest.raises(ConfigError, match=f"^{field} 0.0 must be positive{remedy}$"):
            check(config, **{field: 0.0})
        if field not in FRACTIONS:
            with pytest.raises(ConfigError, match=f"^{field} -1.0 must be positive{remedy}$"):
                check(config, **{field: -1.0})


@pytest.mark.parametrize("field", sorted(NOT_NEGATIVE))
def test_what_must_not_be_negative_may_be_0(field):
    for config in configs_with(field):
        check(config, **{field: 0})
        with pytest.raises(ConfigError, match=f"^{field} -1.* must not be negative$"):
            check(config, **{field: -1})


def test_none_is_allowed_in_every_field_that_may_be_none():
    optional = [
        (config, field) for field in sorted(RULES) for config in configs_with(field) if is_optional(config, field)
    ]
    assert {field for _, field in optional} >= {"batch_size", "max_grad_norm", "target_kl", "trust_region"}
    for config, field in optional:
        check(config, **{field: None})


def test_a_schedule_is_checked_over_the_whole_run():
    check(ppo.Config(), learning_rate=linear(1e-3, 0.0))
    with pytest.raises(ConfigError, match=r"^learning_rate -0\.1 must not be negative$"):
        check(ppo.Config(), learning_rate=piecewise((0.0, 0.5, 1.0), (1e-3, -0.1, 0.0)))


def test_the_lowest_and_highest_value_of_a_number_is_itself_and_of_a_schedule_any_of_its_values():
    schedule = piecewise((0.0, 0.5, 1.0), (0.3, 0.1, 0.7))
    assert (lowest(0.2), highest(0.2)) == (0.2, 0.2)
    assert (lowest(schedule), highest(schedule)) == (0.1, 0.7)


def test_the_decay_of_rmsprop_is_below_1():
    for config in configs_with("rmsprop_decay"):
        check(config, rmsprop_decay=0.0)
        for wrong in (1.0, -0.1):
            with pytest.raises(ConfigError, match=rf"^rmsprop_decay {wrong} must lie in \[0, 1\); 0.99 is usual$"):
                check(config, rmsprop_decay=wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"core_size": 0}, f"core_size 0 must be at least 1, and below {MOST_UNITS:,}"),
        ({"core_size": MOST_UNITS}, f"core_size {MOST_UNITS} must be at least 1, and below {MOST_UNITS:,}"),
        ({"hidden_sizes": (64, 0)}, f"hidden_sizes (64, 0) must each be at least 1, and below {MOST_UNITS:,}"),
        ({"hidden_sizes": (MOST_UNITS,)}, f"hidden_sizes ({MOST_UNITS},) must each be at least 1"),
    ],
    ids=str,
)
def test_layers_have_at_least_1_unit_and_not_absurdly_many(changes, message):
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        check(ppo.Config(), **changes)
    check(ppo.Config(), core_size=MOST_UNITS - 1, hidden_sizes=())


def test_the_environments_are_checked_with_the_settings():
    with pytest.raises(ConfigError, match=r"^env\.num_envs 0 is less than 1"):
        check(ppo.Config(), env=EnvConfig(num_envs=0))


def test_only_the_config_of_the_algorithm_itself_will_do():
    class Mine(ppo.Config):
        pass

    require_config(ppo.Config(), ppo.Config)
    with pytest.raises(ConfigError, match=r"^this is the Config of birl\.dqn; ppo needs birl\.ppo\.Config$"):
        require_config(dqn.Config(), ppo.Config)
    for wrong in (Mine(), None, {"epochs": 3}):
        with pytest.raises(ConfigError, match=r" is not a Config; ppo needs birl\.ppo\.Config$"):
            require_config(wrong, ppo.Config)


@pytest.mark.parametrize(
    ("value", "wrong"),
    [(0.0, ""), (1.0, ""), (linear(1.0, 0.0), ""), (1.5, "1.5 to 1.5"), (linear(0.5, -0.5), "-0.5 to 0.5")],
    ids=str,
)
def test_a_probability_lies_between_0_and_1_over_the_whole_run(value, wrong):
    config = dqn.Config(exploration=value)
    if not wrong:
        dqn.validate(config)
        return
    message = rf"^exploration from {wrong} must lie in \[0, 1\]: it is a probability$"
    with pytest.raises(ConfigError, match=message):
        dqn.validate(config)


@pytest.mark.parametrize(
    ("count", "length", "num_envs", "recurrent"),
    [(1, 5, 3, False), (15, 5, 3, False), (3, 5, 3, True), (1, 1, 1, True), (65, 65, 1, False), (128, 128, 8, False)],
)
def test_a_rollout_that_divides_into_equal_minibatches_is_allowed(count, length, num_envs, recurrent):
    require_minibatches(count, length, num_envs, recurrent)


@pytest.mark.parametrize(
    ("count", "length", "num_envs", "recurrent", "message"),
    [
        (2, 5, 3, False, "rollout_length x num_envs 15 does not divide into 2 minibatches; use one of 1, 3, 5, 15"),
        (5, 5, 3, True, "num_envs 3 does not divide into 5 minibatches; use one of 1, 3"),
        (30, 5, 3, False, "rollout_length x num_envs 15 does not divide into 30 minibatches; use one of 1, 3, 5, 15"),
        (100, 64, 2, False, "128 does not divide into 100 minibatches; use one of 1, 2, 4, 8, 16, 32, 64"),
        (0, 4, 1, False, "4 does not divide into 0 minibatches; use one of 1, 2, 4"),
    ],
)
def test_a_rollout_that_does_not_divide_is_refused_with_the_counts_that_fit(
    count, length, num_envs, recurrent, message
):
    with pytest.raises(ConfigError, match=re.escape(message) + "$"):
        require_minibatches(count, length, num_envs, recurrent)


def test_actor_learners_refuse_environments_that_are_passed_in():
    require_own_envs(None)
    with pytest.raises(ConfigError, match=r"^envs 'mine' cannot be used: .*; set env\.id instead; module:Id-v0"):
        require_own_envs("mine")


def test_actor_learners_step_their_own_environments():
    config = a3c.Config()
    validate_actor_learners(config.env, config.learners)
    with pytest.raises(ConfigError, match=r"^env\.workers 1 does not go with actor-learners: .* use workers 0"):
        validate_actor_learners(EnvConfig(workers=1), config.learners)
    with pytest.raises(ConfigError, match=r"^pool none: there are no actor-learners; use serial, processes or ray$"):
        validate_actor_learners(config.env, ActorLearnerConfig(pool="none"))
    with pytest.raises(ConfigError, match=r"^env\.ray_actors 1 does not go with actor-learners: .* pool ray$"):
        validate_actor_learners(EnvConfig(ray_actors=1), config.learners)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if supports(name).actor_learners])
def test_actor_learners_share_an_rmsprop_and_no_adam(algorithm):
    module = algorithm_named(algorithm)
    module.validate(module.Config(pool="serial", optimizer="rmsprop-tf"))
    message = r"^optimizer 'adam' does not go with pool 'serial': .*; use optimizer rmsprop or rmsprop-tf"
    with pytest.raises(ConfigError, match=message):
        module.validate(module.Config(pool="serial", optimizer="adam"))


def test_learning_from_a_replay_begins_before_the_run_ends():
    replay = ReplayConfig(learning_starts=1000)
    validate_replay(replay, RunConfig(total_steps=1001))
    with pytest.raises(ConfigError, match=r"^learning_starts 1000 lies beyond the run's 1000 .* for example 100$"):
        validate_replay(replay, RunConfig(total_steps=1000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": 0}, "total_steps 0 must lie between 1 and 9,007,199,254,740,992"),
        ({"total_steps": 2**53 + 1}, "total_steps 9007199254740993 must lie between 1 and 9,007,199,254,740,992"),
        ({"seed": -1}, "seed -1 must lie between 0 and 2,147,483,647"),
        ({"seed": 2**31}, "seed 2147483648 must lie between 0 and 2,147,483,647"),
        ({"eval_every": -1}, "eval_every -1 must be 0 (only at the end) or more"),
        ({"eval_episodes": 0}, "eval_episodes 0 must be at least 1"),
        ({"eval_max_steps": 0}, "eval_max_steps 0 must be at least 1; use None for the environment's own limit"),
        ({"checkpoint_every": -5}, "checkpoint_every -5 must be 0 (only at the end) or more"),
        ({"keep_checkpoints": 0}, "keep_checkpoints 0 must be at least 1"),
        ({"keep_every": -1}, "keep_every -1 must be 0 (none is kept for good) or more"),
        ({"log_every": -1}, "log_every -1 must be 0 (every update, of many about 2,000) or more"),
        ({"stop_at_return": 475.0}, "stop_at_return 475.0 needs evaluations; set eval_every"),
    ],
    ids=str,
)
def test_run_settings_that_cannot_work_are_named_with_their_value_and_a_remedy(changes, message):
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        validate_run(RunConfig(**changes))


def test_run_settings_that_work_pass_and_seed_0_is_one():
    validate_run(RunConfig(seed=0, total_steps=2**53, eval_every=1000, stop_at_return=475.0, checkpoint_every=0))
    validate_run(RunConfig(seed=2**31 - 1, total_steps=1, eval_max_steps=1, eval_episodes=1))


# Others are tested where they have an effect: tests/envs/test_make.py, tests/envs/test_atari.py,
# tests/workers/test_envs.py and tests/asynchronous/test_ray.py.
@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvConfig(num_envs=MOST_ENVS + 1), "env.num_envs 1048577 is more than 1,048,576; use as many as memory holds"),
        (EnvConfig(step_timeout=0), "env.step_timeout 0.0 is not more than 0 seconds; use 60"),
        (EnvConfig(max_episode_steps=-1), "env.max_episode_steps -1 is less than 1; use None"),
        (
            EnvConfig("ALE/Pong-v5", atari=AtariConfig(frame_skip=108_001)),
            "env.atari.frame_skip 108001 must lie between 1 and 108,000; use 4",
        ),
        (
            EnvConfig("ALE/Pong-v5", atari=AtariConfig(sticky_actions=-0.1)),
            "env.atari.sticky_actions -0.1 must lie in [0, 1): it is a probability; use 0.25",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_environments_that_cannot_work_are_named_with_their_value_and_a_remedy(env, message):
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        validate_env(env)


COMPILED = "env.id 'birl/MemoryGrid-v0', which is a compiled environment"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            EnvConfig(backend="compiled", workers=2),
            "env.workers 2 does not go with env.backend 'compiled': JAX steps it in this process; use workers 0, or "
            "backend gymnasium",
        ),
        (
            EnvConfig("birl/MemoryGrid-v0", workers=2),
            f"env.workers 2 does not go with {COMPILED}: JAX steps it in this process; use workers 0",
        ),
        (
            EnvConfig(backend="compiled", ray_actors=2),
            "env.ray_actors 2 does not go with env.backend 'compiled': JAX steps it in this process; use ray_actors 0, "
            "or backend gymnasium",
        ),
        (
            EnvConfig("gymnax/Breakout-MinAtar", ray_actors=1),
            "env.ray_actors 1 does not go with env.id 'gymnax/Breakout-MinAtar', which is a compiled environment",
        ),
        (
            EnvConfig(backend="compiled", wrappers=(Wrapper("a:B"),)),
            "env.wrappers ('a:B',) do not go with env.backend 'compiled': they wrap Gymnasium's environments; leave "
            "them out and change the environment itself, in a class of your own, or backend gymnasium",
        ),
        (
            EnvConfig("birl/MemoryGrid-v0", backend="envpool"),
            f"env.backend 'envpool' does not go with {COMPILED}; use backend compiled",
        ),
        (
            EnvConfig("ALE/Pong-v5", backend="compiled"),
            "env.id 'ALE/Pong-v5' does not go with env.backend 'compiled': Atari games are not written in JAX; use "
            "backend gymnasium or envpool",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_with_compiled_environments_is_refused_with_a_remedy(env, message):
    with pytest.raises(ConfigError, match="^" + re.escape(message) + ("$" if "gymnax" not in message else "")):
        validate_env(env)


def test_compiled_environments_are_known_by_their_backend_or_by_an_id_that_only_jax_has():
    validate_env(EnvConfig(backend="compiled"))
    assert is_compiled(EnvConfig(backend="compiled"))
    assert all(is_compiled(EnvConfig(env_id)) for env_id in ("birl/MemoryGrid-v0", "gymnax/x", "brax/ant"))
    others = ("CartPole-v1", "birl/ProbeMask-v0", "gymnax", "gymnax:Thing-v0", "my.brax:Ant-v0", "ALE/Pong-v5")
    assert not any(is_compiled(EnvConfig(env_id)) for env_id in others)


@pytest.mark.parametrize("option", ATARI_OPTIONS)
def test_an_option_of_ale_that_birl_sets_itself_is_refused_for_atari_games_only(option):
    message = rf"^env\.kwargs '{option}' does not go with ALE/Pong-v5: use {re.escape(ATARI_OPTIONS[option])}$"
    with pytest.raises(ConfigError, match=message):
        validate_env(EnvConfig("ALE/Pong-v5", kwargs={option: 1}))
    validate_env(EnvConfig("CartPole-v1", kwargs={option: 1}))
    validate_env(EnvConfig("ALE/Pong-v5", kwargs={"mode": 1}))


def test_the_settings_of_atari_are_checked_for_atari_games_only():
    wrong = AtariConfig(frame_skip=0)
    validate_env(EnvConfig("CartPole-v1", atari=wrong))
    with pytest.raises(ConfigError, match=r"env\.atari\.frame_skip 0"):
        validate_env(EnvConfig("ale_py:ALE/Pong-v5", atari=wrong))
    assert [is_atari(name) for name in ("ALE/Pong-v5", "ale_py:ALE/Pong-v5", "mine:Pong-v5", "Pong-v5")] == [
        True,
        True,
        False,
        False,
    ]


def test_workers_need_linux_or_macos(monkeypatch):
    validate_env(EnvConfig(workers=2))
    monkeypatch.setattr(os, "name", "nt")
    validate_env(EnvConfig(workers=0))
    with pytest.raises(ConfigError, match=r"^env\.workers 2 needs Linux or macOS; use workers 0$"):
        validate_env(EnvConfig(workers=2))
