"""What every algorithm in birl.ALGORITHMS owes its users. A new one is tested once it is listed."""

import dataclasses
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from contextlib import closing
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
import optax
import pytest
from gymnasium import spaces
from safetensors.numpy import load, save

import birl
from birl import ALGORITHMS
from birl.algos import ppo
from birl.cli import main
from birl.config import ConfigError, EnvConfig, RunConfig, from_json, to_json
from birl.envs.make import make_envs
from birl.envs.spaces import action_shape, mask_width
from birl.maths.schedules import linear
from birl.nets.normalize import Normalizer
from birl.registry import (
    MetricNames,
    Supports,
    algorithm_named,
    algorithms_for,
    algorithms_with_compiled_envs,
    algorithms_with_ray_rollouts,
    require_compiled_supported,
    supports,
    validate,
)
from birl.rollouts.learning import Batch
from birl.run import checkpoint as checkpoints
from birl.run.console import number
from birl.run.state_tensors import state_to_tensors, tensors_to_state
from birl.run.trackers import COMMON, aliases_of, rename
from birl.settings import flat_settings, places_of
from birl.types import Rollout, Transitions, Update
from tests.recording import home_of, recorded
from tests.run.processes import SECONDS

ROOT = Path(__file__).parents[1]
TASKS = ("CartPole-v1", "Pendulum-v1")  # an algorithm is tested on the first whose actions it can take
ENV = EnvConfig(num_envs=4, max_episode_steps=9)  # episodes end inside the second rollout
UPDATES = 4

# Small and quick; of these, each algorithm is given the settings that it has.
SMALL: dict[str, Any] = {
    "rollout_length": 8,
    "epochs": 2,
    "minibatches": 2,
    "hidden_sizes": (8,),
    "batch_size": 8,
    "replay_size": 500,
    "learning_starts": 20,
    "update_ratio": 0.25,
    "pool": "serial",
    "actor_learners": 2,
    "report_every": 30,
}
SWITCHED_ON: dict[str, Any] = {
    "core": "lstm",
    "core_size": 4,
    "normalize_observations": True,
    "normalize_rewards": True,
}

# Beyond what every algorithm reports.
Q_METRICS = {"loss/value", "value/td_error", "value/mean", "exploration/epsilon", "replay/steps", "replay/bytes"}
METRICS = {
    "async-q": {"loss/value", "value/td_error", "exploration/epsilon"},
    "async-sarsa": {"loss/value", "value/td_error", "exploration/epsilon"},
    "async-nstep-q": {"loss/value", "value/td_error", "exploration/epsilon"},
    "a3c": {"loss/policy", "loss/value", "policy/entropy", "value/explained_variance"},
    "a2c": {"loss/policy", "loss/value", "policy/entropy", "value/explained_variance"},
    "ppo": {
        "loss/policy",
        "loss/value",
        "policy/entropy",
        "policy/approx_kl",
        "policy/clip_fraction",
        "value/explained_variance",
    },
    "trpo": {
        "loss/policy",
        "loss/value",
        "policy/entropy",
        "policy/kl",
        "trust_region/accepted",
        "trust_region/backtracks",
        "trust_region/step_size",
        "value/explained_variance",
        "optimizer/value_grad_norm",
    },
    "reinforce": {"loss/policy", "loss/value", "policy/entropy", "value/explained_variance", "episode/finished_share"},
    "qac": {"loss/policy", "loss/value", "policy/entropy", "value/explained_variance"},
    "dqn": Q_METRICS,
    "qr-dqn": Q_METRICS,
    "c51": Q_METRICS,
    "dpg": {
        "loss/value",
        "value/td_error",
        "value/mean",
        "policy/saturation",
        "exploration/noise",
        "optimizer/actor_grad_norm",
    },
    "ddpg": {
        "loss/policy",
        "loss/value",
        "value/mean",
        "optimizer/actor_grad_norm",
        "exploration/noise",
        "replay/steps",
        "replay/bytes",
    },
    "td3": {
        "loss/policy",
        "loss/value",
        "value/mean",
        "optimizer/actor_grad_norm",
        "exploration/noise",
        "replay/steps",
        "replay/bytes",
    },
    "sac": {
        "loss/policy",
        "loss/value",
        "loss/temperature",
        "value/mean",
        "policy/entropy",
        "optimizer/actor_grad_norm",
        "exploration/temperature",
        "replay/steps",
        "replay/bytes",
    },
    "acer": {
        "loss/policy",
        "loss/value",
        "policy/entropy",
        "policy/average_kl",
        "policy/truncated_share",
        "trust_region/projected_share",
        "value/explained_variance",
        "replay/updates",
        "replay/steps",
        "replay/bytes",
    },
}
KINDS = "episode|reward|observation|loss|policy|value|optimizer|trust_region|replay|exploration|time"
COMMON_METRICS = {"episode/return", "episode/length", "optimizer/grad_norm", "optimizer/learning_rate"} | {
    f"time/{part}_seconds" for part in ("environment", "policy", "learning")
}

# What Stable-Baselines3 2.9, sb3-contrib's TRPO and CleanRL write of the things that Birl measures.
ON_POLICY = "train/entropy_loss train/value_loss train/explained_variance"
SB3_TAGS = {
    "ppo": f"{ON_POLICY} train/policy_gradient_loss train/approx_kl train/clip_fraction",
    "a2c": f"{ON_POLICY} train/policy_loss",
    "trpo": """train/policy_objective train/value_loss train/explained_variance train/kl_divergence_loss
               train/is_line_search_success""",
    "dqn": "train/loss rollout/exploration_rate",
    "qr-dqn": "train/loss rollout/exploration_rate",
    "ddpg": "train/actor_loss train/critic_loss",
    "td3": "train/actor_loss train/critic_loss",
    "sac": "train/actor_loss train/critic_loss train/ent_coef",
}
CLEANRL_TAGS = {
    "ppo": """charts/learning_rate losses/value_loss losses/policy_loss losses/entropy losses/approx_kl losses/clipfrac
              losses/explained_variance""",
    "dqn": "charts/epsilon losses/td_loss losses/q_values",
    "ddpg": "losses/actor_loss losses/qf1_loss losses/qf1_values",
    "td3": "losses/actor_loss losses/qf_loss losses/qf1_values",
    "sac": "losses/actor_loss losses/qf_loss losses/qf1_values losses/alpha losses/alpha_loss",
}
EVERY_SB3_TAG = "rollout/ep_rew_mean rollout/ep_len_mean time/episodes train/learning_rate"
EVERY_CLEANRL_TAG = "charts/episodic_return charts/episodic_length"
TAGS: dict[MetricNames, tuple[str, dict[str, str]]] = {
    "sb3": (EVERY_SB3_TAG, SB3_TAGS),
    "cleanrl": (EVERY_CLEANRL_TAG, CLEANRL_TAGS),
}
other_libraries = pytest.mark.parametrize("names", TAGS)

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
plain_and_switched_on = pytest.mark.parametrize("switches", [False, True], ids=["plain", "recurrent and normalised"])


class Run(NamedTuple):
    """The first updates of a training run, and copies of their states made at once."""

    updates: list[Update]
    copies: list[Any]


def settings_of(name: str, switches: bool = False) -> dict[str, Any]:
    known = set(places_of(algorithm_named(name).Config))
    known -= {"pool"} if name == "acer" else set()  # whose pools are tested in tests/algos/test_acer_pools.py
    return {field: value for field, value in (SMALL | (SWITCHED_ON if switches else {})).items() if field in known}


@cache
def config_of(name: str, switches: bool = False, seed: int = 1) -> Any:
    """A small Config of that algorithm on the first task that it takes."""
    algorithm = algorithm_named(name)
    settings = settings_of(name, switches)
    for task in TASKS:
        config = algorithm.Config(
            env=dataclasses.replace(ENV, id=task), run=RunConfig(total_steps=1000, seed=seed), **settings
        )
        try:
            fresh_state(name, config)
        except ConfigError:
            continue
        return config
    raise AssertionError(f"{name} can be trained on none of {TASKS}")


def spaces_of(config: Any) -> tuple[gym.Space, gym.Space]:
    with make_envs(config.env, config.run.seed) as envs:
        return envs.observation_space, envs.action_space


def fresh_state(name: str, config: Any) -> Any:
    return algorithm_named(name).init(config, *spaces_of(config))


def run(name: str, config: Any, state: Any = None, snapshot: Any = None, updates: int = UPDATES) -> Run:
    with closing(algorithm_named(name).train(config, None, state, snapshot)) as training:
        pairs = [(update, jax.tree.map(np.array, update.state)) for update in islice(training, updates)]
    return Run(*map(list, zip(*pairs, strict=True)))


@cache
def run_of(name: str, switches: bool = False, seed: int = 1) -> Run:
    return run(name, config_of(name, switches, seed))


def fingerprint(name: str) -> str:
    """A hash of everything that an algorithm has become after some updates."""
    tensors = state_to_tensors(run_of(name).updates[-1].state)
    return hashlib.sha256(b"".join(key.encode() + tensors[key].tobytes() for key in tensors)).hexdigest()


def assert_same_bits(left: Any, right: Any) -> None:
    left, right = state_to_tensors(left), state_to_tensors(right)
    assert {name: (a.dtype, a.tobytes()) for name, a in left.items()} == {
        name: (a.dtype, a.tobytes()) for name, a in right.items()
    }


def without_clock(update: Update) -> str:
    """The metrics that no clock measured, as text, in which NaN equals itself.

    The return is NaN until an episode has ended.
    """
    return repr({name: value for name, value in update.metrics.items() if not name.startswith("time/")})


def near(name: str, config: Any, env_steps: int, kind: type[np.signedinteger]) -> Any:
    """A fresh state whose counters will soon overflow, as from a checkpoint of this kind."""
    template = fresh_state(name, config)
    tensors = state_to_tensors(template)
    for counter in (".env_steps", ".updates", ".gradient_steps"):
        if counter in tensors:
            narrow = tensors[counter].dtype == np.int32  # a number of turns
            tensors[counter] = np.array(2**30 - 2, np.int32) if narrow else np.array(env_steps, kind)
    return tensors_to_state(template, tensors)


@every_algorithm
@pytest.mark.parametrize(
    ("edge", "kind"), [(2**31, np.int32), (2**32, np.int64)], ids=["31 bits, an old checkpoint", "32 bits"]
)
def test_steps_and_schedules_go_on_where_32_bits_end(name, edge, kind):
    config = config_of(name)
    total = 2**33
    rates = {name: linear(1e-3, 0.0) for name in flat_settings(config) if name.endswith("learning_rate")}
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=total), **rates)
    start = edge - 50
    updates = run(name, config, near(name, config, start, kind)).updates
    reached = [int(update.state.env_steps) for update in updates]
    assert start < reached[0] < edge < reached[-1] < edge + 200
    assert reached == sorted(set(reached))
    assert [int(update.state.updates) for update in updates] == [start + 1 + number for number in range(UPDATES)]
    for update in updates:
        # At first a replay has nothing to draw from.
        if update is updates[-1] or "optimizer/learning_rate" in update.metrics:
            assert update.metrics["optimizer/learning_rate"] == pytest.approx(1e-3 * (1 - edge / total), rel=1e-5)
        saved = state_to_tensors(update.state)[".env_steps"]
        assert (saved.dtype, int(saved)) == (np.int64, int(update.state.env_steps))


@every_algorithm
def test_it_offers_the_names_that_every_algorithm_has_and_its_defaults_work(name):
    algorithm = algorithm_named(name)
    learning = {"update"} if supports(name).passed_envs else set()
    learning |= {"worker_step", "apply_gradients"} if supports(name).actor_learners else set()
    assert learning
    for part in ("Config", "State", "init", "act", "policy", "loss", "train", "validate", *learning):
        assert callable(getattr(algorithm, part)), part
    algorithm.validate(algorithm.Config())
    assert re.search(r"\b(19|20)\d\d\b", algorithm.__doc__), "the header cites its source"


@every_algorithm
def test_its_config_is_checked_when_it_is_made(name):
    Config = algorithm_named(name).Config
    assert Config(env="Acrobot-v1", rollout_length=8.0).env == EnvConfig("Acrobot-v1")
    assert type(Config(rollout_length=8.0).rollout_length) is int
    with pytest.raises(ConfigError, match="discount must be a number, not 'high'"):
        Config(discount="high")


@every_algorithm
def test_the_config_of_another_algorithm_is_refused_by_name(name):
    other = "a2c" if name == "ppo" else "ppo"
    algorithm = algorithm_named(name)
    config = algorithm_named(other).Config()
    module = name.replace("-", "_")
    refused = pytest.raises(
        ConfigError, match=rf"this is the Config of birl\.{other}; {module} needs birl\.{module}\.Config"
    )
    with refused:
        algorithm.validate(config)
    with refused:
        next(algorithm.train(config))
    for one in set(ALGORITHMS) - {name, *variants_of(name)}:
        wrong = rf"this is the Config of birl\.{one.replace('-', '_')}; {module} needs birl\.{module}\.Config"
        with pytest.raises(ConfigError, match=wrong):
            algorithm.init(algorithm_named(one).Config(), spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    with pytest.raises(ConfigError, match=rf"'CartPole-v1' is not a Config; {module} needs birl\.{module}\.Config"):
        next(algorithm.train("CartPole-v1"))


def variants_of(name: str) -> list[str]:
    """The algorithms that differ from this one in their defaults alone."""
    Config = algorithm_named(name).Config
    return [other for other in ALGORITHMS if vars(algorithm_named(other).Config).get("__wrapped__") is Config]


def test_an_algorithm_takes_the_config_of_a_variant_and_does_what_the_variant_does():
    variants = {name: variants_of(name) for name in ALGORITHMS}
    assert {name: found for name, found in variants.items() if found} == {
        "dqn": ["qr-dqn", "c51"],
        "async-q": ["async-sarsa", "async-nstep-q"],
    }
    for name, others in variants.items():
        for other in others:
            config = config_of(other)
            assert_same_bits(run(name, config, updates=2).updates[-1].state, run_of(other).copies[1])


@every_algorithm
@plain_and_switched_on
def test_a_config_survives_json_and_is_hashable(name, switches):
    config = config_of(name, switches)
    again = from_json(type(config), json.loads(json.dumps(to_json(config), allow_nan=False)))
    assert again == config
    assert hash(again) == hash(config)


@every_algorithm
@plain_and_switched_on
def test_the_same_seed_gives_the_same_run_to_the_bit(name, switches):
    first = run_of(name, switches)
    again = run(name, config_of(name, switches))
    for left, right in zip(first.updates, again.updates, strict=True):
        assert_same_bits(left.state, right.state)
        assert without_clock(left) == without_clock(right)


@cache
def fingerprints_elsewhere() -> dict[str, str]:
    """The fingerprints of all algorithms in one process with another hash seed."""
    fingerprints = "json.dumps({name: fingerprint(name) for name in ALGORITHMS})"
    program = f"import json; from tests.test_contract import ALGORITHMS, fingerprint; print({fingerprints})"
    ours = os.environ.get("PYTHONHASHSEED", "random")
    environment = os.environ | {
        "PYTHONHASHSEED": "1" if ours != "1" else "2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@every_algorithm
def test_a_process_with_another_hash_seed_gives_the_same_run_to_the_bit(name):
    assert fingerprints_elsewhere()[name] == fingerprint(name)


@every_algorithm
def test_two_seeds_differ_and_seed_0_is_one_of_them(name):
    states = [run_of(name, seed=seed).updates[-1].state for seed in (0, 1)]
    zero, one = (state_to_tensors(algorithm_named(name).policy(state)) for state in states)
    weights = [key for key, tensor in zero.items() if tensor.ndim == 2]
    assert weights
    assert all(np.any(zero[key] != one[key]) for key in weights)
    initial = [fresh_state(name, config_of(name, seed=seed)) for seed in (0, 0, 1)]
    assert_same_bits(initial[0], initial[1])
    assert any(np.any(left != right) for left, right in zip(*map(jax.tree.leaves, initial[1:]), strict=True))


@every_algorithm
def test_every_update_draws_with_a_random_key_of_its_own(name):
    keys = [np.asarray(state.key).tobytes() for state in (fresh_state(name, config_of(name)), *run_of(name).copies)]
    assert len(set(keys)) == 1 + UPDATES


@every_algorithm
@plain_and_switched_on
def test_saved_loaded_and_continued_is_the_same_as_continued(name, switches, tmp_path):
    config = config_of(name, switches)
    whole = run_of(name, switches)
    with closing(algorithm_named(name).train(config)) as training:
        *_, stopped = islice(training, 2)
        path = checkpoints.save_checkpoint(
            tmp_path, name, config, spaces_of(config), stopped.state, stopped.snapshot(), {}
        )
    saved = checkpoints.load_checkpoint(path)
    assert saved.manifest["exact"]
    state = tensors_to_state(fresh_state(name, config_of(name, switches, seed=7)), saved.tensors)
    resumed = run(name, from_json(type(config), saved.config), state, saved.snapshot, UPDATES - 2)
    for left, right in zip(whole.updates[2:], resumed.updates, strict=True):
        assert_same_bits(left.state, right.state)
        assert without_clock(left) == without_clock(right)


@every_algorithm
@plain_and_switched_on
def test_a_state_survives_safetensors_leaf_by_leaf(name, switches):
    state = run_of(name, switches).updates[-1].state
    tensors = load(save(state_to_tensors(state)))
    assert len(tensors) == len(jax.tree.leaves(state))
    again = tensors_to_state(fresh_state(name, config_of(name, switches)), tensors)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert_same_bits(again, state)


@every_algorithm
@plain_and_switched_on
def test_a_state_that_was_kept_is_not_changed_by_later_updates(name, switches):
    updates, copies = run_of(name, switches)
    for update, copy in zip(updates, copies, strict=True):
        assert_same_bits(update.state, copy)
    assert any(np.any(left != right) for left, right in zip(*map(jax.tree.leaves, (copies[0], copies[1])), strict=True))


@every_algorithm
@plain_and_switched_on
def test_every_metric_is_a_finite_number_with_a_documented_kind_of_name(name, switches):
    for update in run_of(name, switches).updates:
        before_any_episode = {"episode/return", "episode/length"} if update.metrics["episode/count"] == 0 else set()
        numbers = [value for key, value in update.metrics.items() if key not in before_any_episode]
        assert all(type(value) in (int, float) and math.isfinite(value) for value in numbers), update.metrics
        assert all(re.fullmatch(rf"({KINDS})/[a-z_]+", key) for key in update.metrics)


@every_algorithm
@plain_and_switched_on
def test_the_documented_metrics_are_there(name, switches):
    metrics = run_of(name, switches).updates[-1].metrics
    assert COMMON_METRICS | METRICS[name] <= set(metrics)
    assert any(key.startswith("loss/") for key in metrics)


@every_algorithm
@other_libraries
def test_other_libraries_names_are_of_metrics_that_the_algorithm_reports(name, names):
    metrics = run_of(name).updates[-1].metrics
    assert supports(name).aliases.get(names, {}).keys() <= metrics.keys()
    renamed = rename(metrics, aliases_of(name, names))
    of_every_algorithm, of_one = TAGS[names]
    assert set(f"{of_every_algorithm} {of_one.get(name, '')}".split()) <= renamed.keys()
    # Stable-Baselines3's ent_coef_loss is another function of α.
    assert {key for key in renamed if key.startswith("loss/")} <= ({"loss/temperature"} if names == "sb3" else set())


def test_other_libraries_names_are_of_metrics_that_some_algorithm_reports(tmp_path):
    run = RunConfig(total_steps=8, run_dir=str(tmp_path / "run"), eval_episodes=1)
    config = ppo.Config(EnvConfig("tests.envs.succeeding:Succeeding-v0", 1), run, rollout_length=8, minibatches=1)
    birl.train(config)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reported = set().union(COMMON_METRICS, *METRICS.values(), *rows)  # METRICS: see the test of documented metrics
    for aliases in COMMON.values():
        assert aliases.keys() <= reported


@every_algorithm
def test_an_update_is_shown_by_its_counters_and_metrics_and_not_by_its_arrays(name):
    update = run_of(name).updates[-1]
    assert re.match(
        rf"Update\(env_steps={int(update.state.env_steps)}, updates={UPDATES}, metrics={{'[a-z_/]+': [^,]+, ",
        repr(update),
    )
    assert not re.search("array|Array|state=", repr(update))
    assert len(repr(update)) < 2000


@every_algorithm
def test_episode_metrics_are_those_of_episodes_cut_at_nine_steps(name):
    metrics = run_of(name).updates[-1].metrics
    assert 1 <= metrics["episode/length"] <= 9
    assert metrics["episode/count"] >= 4


@every_algorithm
def test_it_counts_updates_and_environment_steps_and_ends_at_total_steps(name):
    config = dataclasses.replace(config_of(name), run=RunConfig(total_steps=60))
    states = [update.state for update in run(name, config, updates=1000).updates]
    steps = [int(state.env_steps) for state in states]
    assert [int(state.updates) for state in states] == list(range(1, len(states) + 1))
    assert steps == sorted(set(steps))
    assert steps[-1] >= 60 > ([0, *steps])[-2]


@every_algorithm
def test_two_updates_through_the_command_line(name, tmp_path, capsys):
    config = config_of(name)
    run_dir = tmp_path / "run"
    words = ["train", name, config.env.id, "--run-dir", run_dir, "--num-envs", 4, "--max-episode-steps", 9]
    words += ["--total-steps", 8 * 4 * 2, "--eval-episodes", 2, "--seed", 0, "--log-every", 1]
    for field, value in settings_of(name).items():
        words += [f"--{field.replace('_', '-')}", *(value if isinstance(value, tuple) else [value])]
    assert main([str(word) for word in words]) == 0
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    training = [row for row in rows if "time/env_steps_per_second" in row]
    evaluations = rows[-1]
    assert len(training) >= 2
    assert "optimizer/grad_norm" in training[-1]
    assert all(math.isfinite(row["time/env_steps_per_second"]) for row in training)
    assert math.isfinite(evaluations["eval/return_mean"])
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["algorithm"], summary["seed"]) == (name, 0)
    assert summary["env_steps"] == training[-1]["env_steps"] > 32
    assert (
        checkpoints.load_checkpoint(checkpoints.checkpoints_in(run_dir / "checkpoints")[-1]).env_steps
        == summary["env_steps"]
    )
    assert f"evaluation return {number(summary['evaluation']['return_mean'])}" in capsys.readouterr().out


# What an update is given, and what it gives


# Actor-learners alone have no `update` of a state, see tests/algos/test_async_together.py.
UPDATES_BY_ROLLOUT = [name for name in ALGORITHMS if supports(name).passed_envs]
CASES = {name: (name, {}) for name in UPDATES_BY_ROLLOUT} | {"dqn, single steps": ("dqn", {"core": "feedforward"})}
every_update = pytest.mark.parametrize("case", CASES)


@cache
def last_call(case: str) -> tuple[Any, tuple[Any, ...]]:
    """An algorithm's update, and the arguments that `train` gave it last.

    By then normalisers have seen something, and replays are ready.
    """
    name, changes = CASES[case]
    algorithm = algorithm_named(name)
    config = dataclasses.replace(config_of(name, switches=True), **changes)
    with recorded(home_of(algorithm)) as calls:
        run(name, config)
    return algorithm.update, calls[-1]


def in_units(given: Any, observations: float, rewards: float) -> Any:
    """An argument of an update with its observations and rewards multiplied by these factors."""
    match given:
        case Normalizer():
            units = {"observations": observations, "returns": rewards}
            moments = {
                field: getattr(given, field)._replace(mean=getattr(given, field).mean * np.float32(unit))
                for field, unit in units.items()
            }
            moments = {
                field: found._replace(variance=found.variance * np.float32(units[field] ** 2))
                for field, found in moments.items()
            }
            return given._replace(**moments, running_returns=given.running_returns * np.float32(rewards))
        case Rollout() | Transitions():
            units = {"observations": observations, "next_observations": observations, "rewards": rewards}
            return given._replace(
                **{
                    field: getattr(given, field) * np.float32(unit)
                    for field, unit in units.items()
                    if field in given._fields
                }
            )
        case Batch():
            return given._replace(steps=in_units(given.steps, observations, rewards))
    return given


@every_update
@pytest.mark.parametrize(("observations", "rewards"), [(4.0, 1.0), (1.0, 8.0)], ids=["observations", "rewards"])
def test_what_is_normalised_may_be_measured_in_any_units(case, observations, rewards):
    update, (state, *others) = last_call(case)
    normalizer = in_units(state.normalizer, observations, rewards)
    before = update(state, *others)[0]
    others_before = [in_units(given, observations, rewards) for given in others]
    after = update(state._replace(normalizer=normalizer), *others_before)[0]
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, after.network, before.network)
    wrong = update(state._replace(normalizer=normalizer), *others)[0]
    assert not all(map(np.allclose, jax.tree.leaves(wrong.network), jax.tree.leaves(before.network))), "units matter"


# The others clip only on request; Huber's loss of an LSTM's outputs has no long gradients.
@pytest.mark.parametrize("case", ["reinforce", "qac", "a2c", "ppo", "acer", "dqn, single steps"])
def test_no_optimiser_is_given_a_gradient_longer_than_max_grad_norm(case):
    update, (state, *others) = last_call(case)
    limit = others[-1].gradient.max_grad_norm
    network = jax.tree.map(lambda x: x * 300 if np.ndim(x) == 2 else x, state.network)  # wrong by far: long gradients
    fresh = {
        field: jax.tree.map(lambda x: x * 0, getattr(state, field))
        for field in state._fields
        if field.endswith("optimizer")
    }
    after, metrics = update(state._replace(network=network, **fresh), *others)[:2]
    assert metrics["optimizer/grad_norm"] > 2 * limit
    for field in fresh:  # a mean of squares: together never more than the longest gradient's
        mean_squares = optax.tree_utils.tree_get(getattr(after, field), "nu")
        assert 0 < sum(float(leaf.sum()) for leaf in jax.tree.leaves(mean_squares)) <= 1.001 * limit**2


class Unsupported(gym.Env):
    """An environment with a space that no algorithm takes."""

    def __init__(self, kind: str) -> None:
        number = spaces.Box(-1, 1, (1,), np.float32)
        pair = spaces.Tuple((spaces.Discrete(2), spaces.Text(5)))
        self.observation_space = spaces.Text(5) if kind == "observation" else number
        self.action_space = pair if kind == "action" else spaces.Discrete(2)

    def step(self, action: Any) -> Any:
        raise AssertionError("stepped with a space that cannot be learned")


@every_algorithm
@pytest.mark.parametrize(
    ("kind", "message"), [("observation", "observation space Text"), ("action", "action space Text.* at 1")]
)
def test_a_space_that_cannot_be_learned_is_refused_by_name_before_the_first_step(name, kind, message):
    if "tests/Unsupported-v0" not in gym.registry:
        gym.register("tests/Unsupported-v0", entry_point=Unsupported)
    env = EnvConfig("tests/Unsupported-v0", num_envs=4, kwargs={"kind": kind})
    with pytest.raises(ConfigError, match=message):
        next(algorithm_named(name).train(dataclasses.replace(config_of(name), env=env)))


# What an algorithm supports


ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-2, 3, (2,), np.float32),
    "Box without bounds": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict({"how": spaces.Box(-2, 3, (2,), np.float32), "what": spaces.Discrete(3)}),
    "Tuple": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Dict({"bits": spaces.MultiBinary(3)}))),
}
MASKS = {  # one allowed action of the space, and its mask
    "Discrete": (1, [False, True, False]),
    "MultiDiscrete": ([1, 2], [False, True, False, False, True]),
}


def acts_on(name: str, state: Any, observation_space: gym.Space, masks: Any = None, seed: int = 0) -> tuple[Any, ...]:
    """Arguments of the algorithm's `act`, for four environments that were just reset."""
    observations = np.zeros((4, *observation_space.shape), np.float32)
    key = np.array([0, seed], np.uint32)
    memory = state.network.initial_memory(4)
    return algorithm_named(name).policy(state), observations, memory, np.zeros(4, bool), masks, key


@every_algorithm
def test_what_it_supports_is_declared_once_and_its_config_has_the_fields_for_it(name):
    algorithm = algorithm_named(name)
    declared = supports(name)
    fields = set(places_of(algorithm.Config))
    assert type(declared) is Supports
    assert declared is algorithm.SUPPORTS
    assert declared.actions
    assert ({"core", "core_size"} <= fields) == declared.recurrent == ("core" in fields)
    assert ({"pool", "actor_learners"} <= fields) == declared.actor_learners == ("pool" in fields)


@every_algorithm
@pytest.mark.parametrize("env", [EnvConfig("CartPole-v1", backend="compiled"), EnvConfig("birl/MemoryGrid-v0")])
def test_compiled_environments_are_taken_if_they_are_declared_and_refused_with_the_names_that_take_them(name, env):
    config = dataclasses.replace(config_of(name), env=env)
    names = algorithms_with_compiled_envs()
    assert names == [other for other in ALGORITHMS if supports(other).compiled]
    if supports(name).compiled:
        require_compiled_supported(config)
        return
    for refused in (lambda: validate(name, config), lambda: next(algorithm_named(name).train(config))):
        with pytest.raises(ConfigError, match=rf"^env\.\w+ .*: {name} steps environments on the host; ") as refusal:
            refused()
        assert f"algorithms with compiled environments: {', '.join(names)}" in str(refusal.value)


@every_algorithm
@pytest.mark.parametrize("kind", ACTIONS)
def test_an_action_space_is_taken_if_it_is_declared_and_refused_by_name_if_not(name, kind):
    algorithm = algorithm_named(name)
    space = ACTIONS[kind]
    observation_space, _ = spaces_of(config_of(name))
    declared = supports(name)
    taken = type(space).__name__ in declared.actions and not (declared.bounded and kind == "Box without bounds")
    assert (name in algorithms_for(space)) == taken
    if not taken:
        with pytest.raises(ConfigError, match=rf"{name} takes .*action space {type(space).__name__}\(") as refusal:
            algorithm.init(config_of(name), observation_space, space)
        assert str(refusal.value).endswith(f"algorithms that take it: {', '.join(algorithms_for(space))}")
        return
    state = algorithm.init(config_of(name), observation_space, space)
    action = jax.eval_shape(algorithm.act, *acts_on(name, state, observation_space))
    assert action.actions.shape == (4, *action_shape(space))


@every_algorithm
def test_it_obeys_masks_if_it_declares_them_and_else_takes_no_actions_that_can_be_masked(name):
    maskable = [kind for kind in MASKS if kind in supports(name).actions]
    assert supports(name).masks == bool(maskable)
    for kind in maskable:
        allowed, mask = MASKS[kind]
        assert mask_width(ACTIONS[kind]) == len(mask)
        observation_space, _ = spaces_of(config_of(name))
        state = algorithm_named(name).init(config_of(name), observation_space, ACTIONS[kind])
        masks = np.tile(mask, (4, 1))
        for seed in range(5):
            arguments = acts_on(name, state, observation_space, masks, seed)
            actions = np.asarray(algorithm_named(name).act(*arguments).actions)
            assert (actions == np.array(allowed)).all(), (kind, actions)


@every_algorithm
def test_environments_of_the_users_own_are_taken_or_refused_as_declared(name):
    config = config_of(name)
    with make_envs(config.env, config.run.seed) as envs:
        training = algorithm_named(name).train(config, envs)
        if supports(name).passed_envs:
            assert int(next(training).state.env_steps) > 0
            training.close()
        else:
            with pytest.raises(ConfigError, match="each actor-learner makes its own environments"):
                next(training)


@every_algorithm
def test_ray_actors_are_taken_or_refused_as_declared(name):
    config = config_of(name)
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, ray_actors=1))
    assert (name in algorithms_with_ray_rollouts()) == supports(name).ray_rollouts
    with make_envs(config_of(name).env, 0) as envs:
        if supports(name).ray_rollouts:  # it would go on, were it not for the environments
            message = "cannot go to env.ray_actors 1"
        elif supports(name).passed_envs:
            message = rf"env.ray_actors 1: only {', '.join(algorithms_with_ray_rollouts())} take rollouts from Ray"
        else:
            message = "env.ray_actors 1 does not go with actor-learners"
        with pytest.raises(ConfigError, match=message):
            next(algorithm_named(name).train(config, envs))


SYMBOLS = spaces.Box(0, 255, (7, 7, 3), np.uint8)  # MiniGrid's view: symbols from 0 to 10


@every_algorithm
def test_normalize_observations_counts_symbols_in_bytes_as_numbers_and_refuses_categories(name):
    config = dataclasses.replace(config_of(name), normalize_observations=True)
    _, action_space = spaces_of(config)
    state = algorithm_named(name).init(config, SYMBOLS, action_space)
    assert {x.shape[-3:] for x in jax.tree.leaves(state.normalizer.observations) if x.ndim >= 3} == {SYMBOLS.shape}
    with pytest.raises(
        ConfigError, match=r"normalize_observations.* no numbers to normalise: Discrete\(16\): categories are one-hot"
    ):
        algorithm_named(name).init(config, spaces.Discrete(16), action_space)


class Symbols(gym.Env):
    """A walk over numbers, seen in a type of choice."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype: str) -> None:
        self.observation_space = spaces.Box(0, 255, (2, 2, 3), np.dtype(dtype).type)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action: int) -> Any:
        observation = self.draw()
        return observation, float(observation.flat[0] > 5) * action, False, False, {}

    def draw(self) -> np.ndarray:
        return self.np_random.integers(11, size=(2, 2, 3)).astype(self.observation_space.dtype)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_bytes_and_wide_whole_numbers_are_learned_as_their_floats_are(name):
    if "tests/Symbols-v0" not in gym.registry:
        gym.register("tests/Symbols-v0", entry_point=Symbols)
    settings = settings_of(name) | {"normalize_observations": True}
    env = EnvConfig("tests/Symbols-v0", num_envs=4, max_episode_steps=9)
    configs = [
        algorithm_named(name).Config(
            env=dataclasses.replace(env, kwargs={"dtype": dtype}), run=RunConfig(total_steps=1000), **settings
        )
        for dtype in ("float32", "uint8", "int64")
    ]
    floats, *others = (run(name, config, updates=2).updates[-1] for config in configs)
    for update in others:
        assert_same_bits(update.state, floats.state)
    assert np.all(np.asarray(floats.state.normalizer.observations.mean) > 3)
