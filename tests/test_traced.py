"""Float settings are traced: another value compiles nothing, and computes what a constant does."""

import gc
import importlib
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import fields, replace
from functools import cache, partial
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from birl import ALGORITHMS, traced
from birl.algos import a2c, async_q, ddpg, dqn, ppo, sac
from birl.asynchronous import replay_learner
from birl.config import EnvConfig, RunConfig, from_json, to_json
from birl.maths.count import Count, count_of
from birl.maths.schedules import Schedule, exponential, linear, piecewise, value_at
from birl.registry import algorithm_named
from birl.settings import flat_settings, places_of
from birl.traced import scheduled, traced_settings
from tests.recording import home_of, recorded
from tests.run.processes import ENVIRONMENT, SECONDS
from tests.test_contract import config_of

# Settings that change what is compiled, and so which settings are read.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ALGORITHMS),
    ("ppo", {"objective": "kl", "target_kl": 0.01, "value_clip": 0.2, "value_learning_rate": 1e-3}),
    ("ppo", {"core": "lstm", "core_size": 4, "normalize_observations": True, "normalize_rewards": True}),
    ("ppo", {"learning_rate": linear(1e-3, 0.0), "clip_range": exponential(0.2, 0.1), "max_grad_norm": None}),
    ("a2c", {"optimizer": "rmsprop-tf", "entropy_weight": piecewise((0.0, 0.5), (0.1, 0.01))}),
    ("a2c", {"optimizer": "adam", "gae_lambda": 0.9, "value_learning_rate": linear(1e-3, 0.0)}),
    ("dqn", {"prioritized": True, "n_step": 3, "double": False, "dueling": True, "target_rate": 0.5}),
    ("dqn", {"core": "lstm", "core_size": 4, "burn_in": 2, "normalize_rewards": True}),
    ("ddpg", {"noise": "parameter", "layer_norm": True, "max_grad_norm": 1.0}),
    ("ddpg", {"noise": "gaussian", "normalize_observations": True}),
    ("td3", {"target_noise": linear(0.2, 0.1), "policy_delay": 1, "max_grad_norm": 1.0}),
    ("sac", {"target_entropy": -0.5, "max_grad_norm": 1.0, "normalize_rewards": True}),
    ("sac", {"gsde": True, "temperature_learning_rate": linear(1e-3, 0.0)}),
    ("acer", {"trust_region": None, "max_grad_norm": None}),
    ("acer", {"pool": "serial"}),
    ("qac", {"critic": "v", "max_grad_norm": None}),
    ("qac", {"baseline": True}),
    ("reinforce", {"baseline": False, "rollout_length": 10}),
    ("trpo", {"core": "gru", "core_size": 4, "normalize_rewards": True}),
]
every_variant = pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=[f"{n} {[*s]}" for n, s in VARIANTS])


class Call(NamedTuple):
    """A call of an algorithm's compiled update during training; its last argument is the Config."""

    update: Any
    arguments: tuple[Any, ...]
    static: tuple[int, ...]  # which of them are static

    def __call__(self, config: Any) -> Any:
        return self.update(*self.arguments, config)

    def with_constants(self, config: Any) -> Any:
        """The same with a program in which all settings are constants."""

        def constant(*arrays: Any) -> Any:
            given = iter(arrays)
            arguments = [a if i in self.static else next(given) for i, a in enumerate(self.arguments)]
            return self.update.__wrapped__(*arguments, config)

        return jax.jit(constant)(*[a for i, a in enumerate(self.arguments) if i not in self.static])


def update_of(name: str, config: Any) -> tuple[ModuleType, str, tuple[int, ...]]:
    """Where the compiled update of an algorithm is: module, name, static arguments."""
    if name.startswith("async"):
        return async_q, "gradients", (5,)
    if name == "a3c":
        return importlib.import_module("birl.algos.a3c"), "gradients", (4,)
    if name == "acer" and config.learners.pool != "none":
        return replay_learner, "flat_gradients", (3, 4)
    return home_of(algorithm_named(name)), "update", ()


def with_settings(name: str, settings: dict[str, Any]) -> Any:
    return replace(config_of(name), **settings)


@cache
def _recorded(name: str, settings: tuple[tuple[str, Any], ...]) -> Call:
    config = with_settings(name, dict(settings))
    module, function, static = update_of(name, config)
    update = getattr(module, function)
    with recorded(module, function) as calls, closing(algorithm_named(name).train(config)) as training:
        list(islice(training, 4))
    arguments = tuple(a if i in static else jax.tree.map(jnp.asarray, a) for i, a in enumerate(calls[-1][:-1]))
    return Call(update, arguments, static)


def call_of(name: str, settings: dict[str, Any]) -> Call:
    """The last call of update in a short run, to be made again."""
    return _recorded(name, tuple(settings.items()))


def another(value: Any) -> Any:
    """Another value of a setting, of the same structure."""
    if isinstance(value, Schedule):
        points = tuple(0.9 * point for point in value.points)
        return replace(value, values=tuple(0.9 * v for v in value.values), points=points)
    return 0.9 * value


def changes_of(config: Any) -> dict[str, Any]:
    """Another value for each traced setting that is set."""
    flat = flat_settings(config)
    values = {name: flat[name] for name in traced_settings(type(config))}
    return {name: another(value) for name, value in values.items() if value is not None}


def assert_close(left: Any, right: Any, tolerance: float) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * tolerance, atol=tolerance)


@every_variant
def test_another_value_of_a_float_setting_compiles_nothing(name, settings):
    config = with_settings(name, settings)
    call = call_of(name, settings)
    call(config)
    programs = call.update._cache_size()
    changes = changes_of(config)
    assert {"discount"} < set(changes)
    for setting, value in changes.items():
        call(replace(config, **{setting: value}))
        assert call.update._cache_size() == programs, setting
    run = RunConfig(total_steps=5000, seed=9, run_dir="elsewhere", eval_every=10, log_every=7)
    call(replace(config, run=run, env=replace(config.env, id="Acrobot-v1", kwargs={"a": 1})))
    assert call.update._cache_size() == programs
    before = config.normalize.normalize_observations
    call(replace(config, normalize_observations=not before))  # a constant: this is counted
    assert call.update._cache_size() == programs + 1


@every_variant
def test_a_traced_setting_computes_what_a_constant_computes(name, settings):
    config = with_settings(name, settings)
    call = call_of(name, settings)
    assert_close(call(config), call.with_constants(config), 1e-6)
    config = replace(config, **changes_of(config), run=replace(config.run, total_steps=300))
    assert_close(call(config), call.with_constants(config), 1e-6)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        (ppo, {"learning_rate": 1e-2, "discount": 0.9, "clip_range": 0.05, "entropy_weight": 0.1}),
        (a2c, {"learning_rate": linear(1e-2, 1e-3), "discount": 0.9, "entropy_weight": 0.1}),
        (dqn, {"learning_rate": 1e-2, "discount": 0.9, "exploration": linear(0.5, 0.1, 0.3), "max_grad_norm": 1e-3}),
        (sac, {"actor_learning_rate": 1e-2, "critic_learning_rate": 1e-2, "discount": 0.9, "target_entropy": -3.0}),
    ],
    ids=["ppo", "a2c", "dqn", "sac"],
)
def test_vmap_over_stacked_configs_gives_the_result_of_each(algorithm, changes):
    name = algorithm.__name__.rpartition(".")[2]
    settings = {"target_entropy": -1.0} if algorithm is sac else {}
    call = call_of(name, settings)
    first = with_settings(name, settings)
    second = replace(first, run=replace(first.run, total_steps=500), **changes)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, second)
    together = jax.vmap(call)(stacked)
    assert any(not np.array_equal(leaf[0], leaf[1]) for leaf in jax.tree.leaves(together))
    for lane, config in enumerate((first, second)):
        assert_close(jax.tree.map(lambda x, lane=lane: x[lane], together), call(config), 1e-5)


def test_the_settings_that_people_sweep_are_traced():
    swept = {"learning_rate", "discount", "gae_lambda", "entropy_weight", "clip_range", "value_weight"}
    assert swept | {"max_grad_norm", "target_kl", "value_clip"} <= set(traced_settings(ppo.Config))
    constant = {"update_ratio", "noise_rate", "noise_time_step"}
    assert constant < places_of(ddpg.Config).keys()
    assert not constant & {*traced_settings(dqn.Config), *traced_settings(ddpg.Config)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_is_as_before_after_it_was_passed_to_a_compiled_function(name):
    Config = algorithm_named(name).Config
    config, fresh = Config(env=EnvConfig(kwargs={"a": 1})), Config(env=EnvConfig(kwargs={"a": 1}))
    before = repr(config), hash(config), json.dumps(to_json(config))
    assert jax.tree.leaves(config)
    assert (repr(config), hash(config), json.dumps(to_json(config))) == before
    assert config == fresh == from_json(Config, json.loads(before[2]))
    assert replace(config, discount=0.5) == replace(fresh, discount=0.5) != config
    assert [type(getattr(config, field.name)) for field in fields(Config)] == [
        type(getattr(fresh, field.name)) for field in fields(Config)
    ]


def test_a_compiled_function_sees_the_constants_and_the_total():
    config = ppo.Config(env=EnvConfig(num_envs=3), run=RunConfig(total_steps=2**40 + 1), epochs=7)
    seen = []

    @jax.jit
    def read(config):
        seen.append((config.epochs, config.env.num_envs, config.gradient.optimizer))
        return config.run.total_steps, config.discount

    total, discount = read(config)
    assert seen == [(7, 3, "adam")]
    assert int(total) == 2**40 + 1
    assert (discount.dtype, float(discount)) == (jnp.float32, pytest.approx(0.99))


@pytest.mark.parametrize("read", [lambda config: config.run.seed, lambda config: config.env.id])
def test_what_programs_are_reused_for_cannot_be_read_in_them(read):
    with pytest.raises(AttributeError, match=r"has no attribute '(seed|id)'"):
        jax.jit(read)(ppo.Config())


def test_a_config_that_is_first_seen_in_a_program_can_be_used_outside():
    config = ppo.Config(learning_rate=linear(1.0, 0.0))

    @jax.jit
    def inner(config, progress):
        return value_at(config.learning_rate, progress)

    assert float(jax.jit(lambda progress: inner(config, progress))(0.25)) == 0.75
    assert float(inner(config, 0.5)) == 0.5
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(config))


def test_what_was_worked_out_for_a_config_goes_with_it():
    config = ppo.Config()
    number = id(config)
    jax.tree.leaves(config)
    assert number in traced._flattened
    del config
    gc.collect()
    assert number not in traced._flattened


@pytest.mark.parametrize(
    ("schedule", "progress"),
    [
        (exponential(1.0, 0.01), 0.5),
        (linear(1.0, 0.05, 0.2), 0.1),
        (piecewise((0.2, 0.6), (1.0, 3.0)), 0.3),
        (Schedule("constant", (2.0,)), 0.5),
    ],
)
def test_a_traced_schedule_has_the_values_of_the_schedule(schedule, progress):
    assert float(jax.jit(value_at)(schedule, progress)) == pytest.approx(float(value_at(schedule, progress)), rel=1e-6)
    two = jax.tree.map(lambda *leaves: np.stack(leaves), schedule, another(schedule))
    both = jax.vmap(partial(value_at, progress=progress))(two)
    np.testing.assert_allclose(both, [value_at(each, progress) for each in (schedule, another(schedule))], rtol=1e-6)


@pytest.mark.parametrize("number", [0, 7, 2**24 + 1, 2**32 - 1, 2**32, 2**40 + 3])
def test_a_count_is_compared_with_a_traced_total_exactly(number):
    for total in (max(number - 1, 1), max(number, 1), number + 1):
        less, share = jax.jit(lambda count, total: (count < total, count / total))(count_of(number), count_of(total))
        assert bool(less) == (number < total)
        assert float(share) == np.float32(number) / np.float32(total)


TRAIN = """
import sys, jax
missed = []
jax.monitoring.register_event_listener(lambda event, **_: missed.append(event) if "cache_miss" in event else None)
from birl.cli import main
code = main(["train", *sys.argv[1:], "--eval-episodes", "1", "--checkpoint-every", "0"])
print("misses", sum("compilation_cache" in event for event in missed))
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (
            ["ppo", "CartPole-v1", "--num-envs", "2", "--rollout-length", "16", "--minibatches", "2"],
            ["--learning-rate", "0.002", "--discount", "0.9", "--clip-range", "0.1", "--entropy-weight", "0.02"],
        ),
        (
            ["a2c", "CartPole-v1", "--num-envs", "2", "--backend", "compiled"],
            ["--learning-rate", "0.002", "--discount", "0.9", "--optimizer-epsilon", "0.0001"],
        ),
        (
            ["dqn", "CartPole-v1", "--learning-starts", "100", "--batch-size", "8"],
            ["--learning-rate", "0.002", "--target-rate", "0.5", "--max-grad-norm", "1"],
        ),
    ],
    ids=["ppo", "compiled environments", "dqn"],
)
def test_a_second_process_with_other_float_settings_compiles_nothing(words, others, tmp_path):
    def misses(*more: str) -> int:
        command = [sys.executable, "-c", TRAIN, *words, *more]
        environment = ENVIRONMENT | {"BIRL_CACHE_DIR": str(tmp_path / "programs")}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return int(ended.stdout.rpartition("misses ")[2])

    assert misses("--total-steps", "200", "--seed", "1", *[word if "--" in word else "0.5" for word in others]) > 0
    kept = sorted(os.listdir(tmp_path / "programs"))
    assert misses("--total-steps", "300", "--seed", "2", *others) == 0
    assert sorted(name for name in os.listdir(tmp_path / "programs") if not name.endswith("-atime")) == [
        name for name in kept if not name.endswith("-atime")
    ]


def test_scheduled_replaces_each_schedule_by_its_value_and_leaves_numbers_as_they_are():
    config = dqn.Config(
        run=RunConfig(total_steps=1000),
        learning_rate=linear(1.0, 0.0),
        priority_correction=linear(0.4, 1.0),
        discount=0.9,
    )

    @jax.jit
    def values(config: dqn.Config, env_steps: Count) -> tuple[Any, ...]:
        now = scheduled(config, env_steps)
        assert not isinstance(now.learning_rate, Schedule)
        assert isinstance(config.learning_rate, Schedule), "the Config itself stays as it is"
        return now.learning_rate, now.replay.priority_correction, now.discount, now.replay.n_step

    assert np.allclose(values(config, count_of(250)), (0.75, 0.55, 0.9, 1))
    assert float(values(config, count_of(1000))[0]) == 0.0
