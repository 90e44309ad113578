"""Metrics have the right names, and a resumed run continues them without gaps or duplicates."""

import json
import math
import os
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from birl import ALGORITHMS
from birl.algos import ppo
from birl.config import ConfigError, EnvConfig, RunConfig, to_json
from birl.maths.schedules import linear
from birl.run.logging import JsonlSink, open_sinks, read_metrics
from birl.run.trackers import COMMON, Alias, TensorBoardSink, WandbSink, aliases_of, rename, tracker_id
from tests import markdown
from tests.run.processes import SECONDS
from tests.setting_tables import spans, table_after

PAGE = markdown.ROOT / "docs" / "runs-and-checkpoints.md"


def write_steps(path: Path, steps: list[int], resume_at: int | None = None) -> None:
    sink = JsonlSink(path, resume_at)
    for env_steps in steps:
        sink.write(env_steps, env_steps / 100, {"episode/return": env_steps * 2.0})
    sink.close()


def steps_in(path: Path) -> list[float | None]:
    return [row["env_steps"] for row in read_metrics(path)]


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_row_holds_env_steps_seconds_and_the_metrics(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(256, 1.5, {"episode/return": 20.25})
    sink.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_steps": 256, "seconds": 1.5, "episode/return": 20.25}\n'


def test_a_row_can_be_read_before_the_sink_is_closed(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(256, 1.5, {})
    assert steps_in(tmp_path / "metrics.jsonl") == [256]
    sink.close()


def test_what_is_not_finite_is_null_so_that_every_line_is_strict_json(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(1, 0.0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32(0.5)})
    sink.close()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert row == {"env_steps": 1, "seconds": 0.0, "a": None, "b": None, "c": None, "d": 0.5}


def test_resuming_at_300_drops_later_rows_so_that_nothing_is_there_twice(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [100, 200, 300, 400, 500])
    write_steps(path, [400, 500, 600], resume_at=300)
    assert steps_in(path) == [100, 200, 300, 400, 500, 600]


def test_resuming_drops_a_line_that_kill_9_cut_in_two(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [100, 200])
    with path.open("a") as file:
        file.write('{"env_steps": 300, "sec')
    write_steps(path, [300], resume_at=300)
    assert steps_in(path) == [100, 200, 300]


def test_resuming_keeps_a_last_row_that_only_lacks_its_newline(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 100, "seconds": 1.0}')
    write_steps(path, [200], resume_at=100)
    assert steps_in(path) == [100, 200]


def test_resuming_keeps_nulls(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 100, "seconds": 1.0, "a": null}\n')
    JsonlSink(path, resume_at=100).close()
    assert list(read_metrics(path)) == [{"env_steps": 100, "seconds": 1.0, "a": None}]


def test_a_resume_that_dies_while_rewriting_loses_no_row(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [100, 200, 300])

    def die(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(OSError, match="disk full"):
        JsonlSink(path, resume_at=100)
    assert steps_in(path) == [100, 200, 300]


def test_resuming_puts_a_new_file_in_the_old_ones_place_and_never_writes_into_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [100, 200, 300])
    os.link(path, tmp_path / "old")
    JsonlSink(path, resume_at=100).close()
    assert steps_in(tmp_path / "old") == [100, 200, 300]
    assert steps_in(path) == [100]


def test_a_new_run_does_not_write_over_an_old_ones_metrics(tmp_path):
    write_steps(tmp_path / "metrics.jsonl", [100])
    with pytest.raises(ConfigError, match="resume that run or choose another run_dir"):
        JsonlSink(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("torn", [b'{"env_steps": 20', b'{"env_steps": 200, "caf\xc3', b"\x00\x00\x00\x00"])
def test_reading_skips_a_torn_last_line(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"env_steps": 100, "seconds": 1.0}\n' + torn)
    assert steps_in(path) == [100]


DAMAGED_LINES = [
    '{"env_st', "[1]", '{"seconds": 1.0}', '{"env_steps": -1}', '{"env_steps": 1e999}', '{"env_steps": true}',
    '{"env_steps": 1, "a": NaN}', '{"env_steps": 1, "a": "x"}', f'{{"env_steps": {"9" * 400}}}',
    "[" * 100_000, "\x00" * (3 << 20),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED_LINES, ids=[line[:30].strip("\x00") for line in DAMAGED_LINES])
def test_damage_before_the_last_line_is_left_out_and_warned_of_with_the_line(damage, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"env_steps": 100}}\n{damage}\n{{"env_steps": 300}}\n{damage}')
    with pytest.warns(
        UserWarning, match=r"metrics.jsonl: 1 lines are not rows of metrics and are skipped; the first is line 2"
    ):
        assert steps_in(path) == [100, 300]
    with pytest.warns(UserWarning, match="the first is line 2"):
        write_steps(path, [400], resume_at=300)
    assert steps_in(path) == [100, 300, 400]


def test_metrics_are_read_one_row_at_a_time(tmp_path):
    """Reading stops where the reader stops, before the damaged line."""
    path = tmp_path / "metrics.jsonl"
    write_steps(path, list(range(1000)))
    with path.open("a") as file:
        file.write("damage\n" * 2)
    rows = read_metrics(path)
    tracemalloc.start()
    assert next(rows)["env_steps"] == 0
    for _ in rows:
        if _["env_steps"] == 900:
            break
    assert tracemalloc.get_traced_memory()[1] < path.stat().st_size, "less than the file"
    tracemalloc.stop()


def test_stable_baselines3_names():
    metrics = {
        "episode/return": 195.0,
        "loss/policy": -0.01,
        "eval/return_mean": 480.0,
        "time/env_steps_per_second": 9000.0,
    }
    expected = {
        "rollout/ep_rew_mean": 195.0,
        "train/policy_gradient_loss": -0.01,
        "eval/mean_reward": 480.0,
        "time/fps": 9000.0,
    }
    assert rename(metrics, aliases_of("ppo", "sb3")) == expected


def test_stable_baselines3_logs_the_negative_entropy():
    assert rename({"policy/entropy": 0.6, "loss/value": 2.0}, aliases_of("ppo", "sb3")) == {
        "train/entropy_loss": -0.6,
        "train/value_loss": 2.0,
    }


def test_stable_baselines3_logs_trpos_objective_and_half_the_sum_of_sacs_critics():
    assert rename({"loss/policy": -0.25}, aliases_of("trpo", "sb3")) == {"train/policy_objective": 0.25}
    assert rename({"loss/value": 2.0}, aliases_of("sac", "sb3")) == {"train/critic_loss": 1.0}
    assert rename({"loss/value": 2.0}, aliases_of("td3", "sb3")) == {"train/critic_loss": 2.0}


def test_cleanrl_logs_half_the_squared_error_and_the_mean_over_two_critics():
    assert rename({"loss/value": 2.0}, aliases_of("ppo", "cleanrl")) == {"losses/value_loss": 1.0}
    assert rename({"loss/value": 2.0}, aliases_of("ddpg", "cleanrl")) == {"losses/qf1_loss": 2.0}
    for algorithm in ("td3", "sac"):
        assert rename({"loss/value": 2.0}, aliases_of(algorithm, "cleanrl")) == {"losses/qf_loss": 1.0}


def test_cleanrl_names_with_the_entropys_own_sign():
    metrics = {
        "episode/return": 195.0,
        "policy/entropy": 0.6,
        "policy/clip_fraction": 0.1,
        "time/env_steps_per_second": 9000.0,
    }
    expected = {"charts/episodic_return": 195.0, "losses/entropy": 0.6, "losses/clipfrac": 0.1, "charts/SPS": 9000.0}
    assert rename(metrics, aliases_of("ppo", "cleanrl")) == expected


@pytest.mark.parametrize("names", ["birl", "sb3", "cleanrl"])
def test_a_metric_without_an_alias_keeps_its_name_and_value(names):
    assert rename({"time/environment_share": 0.3}, aliases_of("ppo", names)) == {"time/environment_share": 0.3}


def test_birls_own_names_change_nothing():
    metrics = {"policy/entropy": 0.6, "loss/value": 2.0}
    assert rename(metrics, aliases_of("ppo", "birl")) == metrics


@pytest.mark.parametrize("names", ["sb3", "cleanrl"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_two_metrics_share_an_alias(algorithm, names):
    aliases = aliases_of(algorithm, names)
    assert len({alias.name for alias in aliases.values()}) == len(aliases)


def test_the_documentation_has_every_name_and_factor():
    factors = {"": 1.0, "(negative)": -1.0, "(half)": 0.5, "(twice)": 2.0}

    def alias(cell: str) -> Alias | None:
        return Alias(spans(cell)[0], factors[cell.rpartition("`")[2].strip()]) if spans(cell) else None

    for row in table_after(PAGE, "With `--metric-names sb3`"):
        [metric], cells = spans(row[0]), [cell.partition(";")[0] for cell in row[1:]]
        assert list(map(alias, cells)) == [COMMON[names].get(metric) for names in ("sb3", "cleanrl")], row
    rows = table_after(PAGE, "The names of the losses")
    losses = {name: list(map(alias, row[1:])) for row in rows for name in spans(row[0]) or ["others"]}
    every = [(names, metric) for names in ("sb3", "cleanrl") for metric in ("loss/policy", "loss/value")]
    for algorithm in ALGORITHMS:
        for (names, metric), said in zip(every, losses.get(algorithm, losses["others"]), strict=True):
            assert said in (aliases_of(algorithm, names)[metric], None), (algorithm, metric)


def test_tensorboard_reads_back_what_was_written(tmp_path):
    sink = TensorBoardSink(tmp_path, {})
    sink.write(100, 1.0, {"episode/return": 20.5, "loss/value": 0.25})
    sink.write(200, 2.0, {"episode/return": 40.5})
    sink.close()
    assert scalars(tmp_path, "episode/return") == [(100, 20.5), (200, 40.5)]
    assert scalars(tmp_path, "loss/value") == [(100, 0.25)]


def test_tensorboard_drops_the_points_beyond_a_resume_and_keeps_the_one_at_it(tmp_path):
    sink = TensorBoardSink(tmp_path, {})
    for env_steps in (100, 200, 300):
        sink.write(env_steps, 1.0, {"episode/return": 1.0})
    sink.close()
    resumed = TensorBoardSink(tmp_path, {}, resume_at=200)
    resumed.write(300, 1.0, {"episode/return": 2.0})
    resumed.close()
    assert scalars(tmp_path, "episode/return") == [(100, 1.0), (200, 1.0), (300, 2.0)]


def written_settings(directory: Path) -> tuple[dict[str, Any], list[tuple[int, Any]]]:
    """The hyperparameters that TensorBoard shows, and each text of the config with its step."""
    events = EventAccumulator(str(directory)).Reload()
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    hyperparameters = {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()}
    texts = [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors("config")]
    plain = [(step, json.loads(text.removeprefix("```json\n").removesuffix("\n```"))) for step, text in texts]
    return hyperparameters, plain


def test_tensorboard_gets_the_settings_as_hyperparameters_and_as_text(tmp_path):
    config = ppo.Config(env=EnvConfig("CartPole-v1"), run=RunConfig(seed=7, wandb="mine"), hidden_sizes=(32, 16))
    config = replace(config, learning_rate=linear(1e-3, 0.0), target_kl=None, gae_lambda=0.9)
    settings = {"algorithm": "ppo"} | to_json(config)
    sink = TensorBoardSink(tmp_path, settings)
    sink.write(100, 1.0, {"eval/return_mean": 480.0, "episode/return": 450.0})
    sink.close()
    hyperparameters, texts = written_settings(tmp_path)
    assert texts == [(0, settings)]
    expected = {
        "algorithm": "ppo",
        "env.id": "CartPole-v1",
        "env.num_envs": 8,
        "run.seed": 7,
        "gae_lambda": 0.9,
        "normalize_advantages": True,
        "hidden_sizes": "[32, 16]",
        "learning_rate": "linear:0.001:0.0",
    }
    assert {name: hyperparameters[name] for name in expected} == expected
    left_out = {"target_kl", "run.wandb", "run.run_dir", "run.eval_every", "env.atari.frame_skip"}
    assert not left_out & hyperparameters.keys()
    assert scalars(tmp_path, "eval/return_mean") == [(100, 480.0)]


def test_atari_settings_are_hyperparameters_of_atari_games_only(tmp_path):
    TensorBoardSink(tmp_path, to_json(ppo.Config(env=EnvConfig("ALE/Pong-v5")))).close()
    assert written_settings(tmp_path)[0]["env.atari.frame_skip"] == 4


def test_a_resumed_run_keeps_its_hyperparameters_and_shows_both_texts(tmp_path):
    settings = to_json(ppo.Config(run=RunConfig(total_steps=300)))
    longer = to_json(ppo.Config(run=RunConfig(total_steps=500)))
    for resume_at, given in ((None, settings), (200, longer)):
        sink = TensorBoardSink(tmp_path, given, resume_at)
        for env_steps in (100, 200, 300):
            sink.write(env_steps + (resume_at or 0), 1.0, {"episode/return": 1.0})
        sink.close()
    hyperparameters, texts = written_settings(tmp_path)
    assert hyperparameters["run.total_steps"] == 300
    assert texts == [(0, settings), (200, longer)]
    assert [step for step, _ in scalars(tmp_path, "episode/return")] == [100, 200, 300, 400, 500]


def test_by_default_a_run_writes_metrics_jsonl_alone(tmp_path):
    for sink in open_sinks(RunConfig(), tmp_path, {}):
        sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_other_metric_names_go_to_tensorboard_and_metrics_jsonl_keeps_birls(tmp_path):
    sinks = open_sinks(RunConfig(tensorboard=True, metric_names="sb3"), tmp_path, {})
    for sink in sinks:
        sink.write(100, 1.0, {"policy/entropy": 0.5})
        sink.close()
    assert scalars(tmp_path / "tensorboard", "train/entropy_loss") == [(100, -0.5)]
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == [{"env_steps": 100, "seconds": 1.0, "policy/entropy": 0.5}]


def test_every_file_of_a_resumed_run_goes_on_from_where_it_resumes(tmp_path):
    for resume_at, steps in ((None, (100, 200)), (100, (200, 300))):
        for sink in open_sinks(RunConfig(tensorboard=True), tmp_path, {}, resume_at):
            for env_steps in steps:
                sink.write(env_steps, 1.0, {"episode/return": 1.0})
            sink.close()
    assert steps_in(tmp_path / "metrics.jsonl") == [100, 200, 300]
    assert scalars(tmp_path / "tensorboard", "episode/return") == [(100, 1.0), (200, 1.0), (300, 1.0)]


def test_trackers_are_not_imported_until_a_run_asks_for_them():
    names = ("tensorboard", "wandb", "trackio")
    code = f"import sys, birl, birl.run.logging; print([name for name in {names} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_the_extra_wandb_says_how_to_install_it_and_leaves_no_metrics_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[wandb\]'"):
        open_sinks(RunConfig(wandb="project"), tmp_path, {})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_run_directory_keeps_its_wandb_id_and_two_of_the_same_name_differ(tmp_path):
    first, second = tmp_path / "a" / "ppo-1", tmp_path / "b" / "ppo-1"
    for run_dir in (first, second):
        run_dir.mkdir(parents=True)
    ids = [tracker_id(run_dir / "wandb_id.txt") for run_dir in (first, first, second)]
    assert ids[0] == ids[1] != ids[2]


def test_wandb_offline_gets_the_config_and_the_metrics_over_env_steps(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for place in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{place}_DIR", str(tmp_path / place))
    run_dir = tmp_path / "ppo-1"
    run_dir.mkdir()
    sink = WandbSink("project", run_dir, {"config": {"clip_range": 0.1875}})
    sink.write(98304, 1.0, {"episode/return": 312.5})
    sink.close()
    name = tracker_id(run_dir / "wandb_id.txt")
    [written] = run_dir.glob(f"wandb/offline-run-*/run-{name}.wandb")
    expected = {b"clip_range", b"0.1875", b"episode/return", b"312.5", b"98304"}
    given_up = time.monotonic() + SECONDS  # another process of wandb writes, even after `finish`
    while not all(part in written.read_bytes() for part in expected) and time.monotonic() < given_up:
        time.sleep(0.1)
    assert {part for part in expected if part in written.read_bytes()} == expected


def test_event_files_are_read_in_the_order_of_their_making(tmp_path):
    """Their names begin with the second; a counter follows, whose 10 comes before its 9."""
    for step in range(3):
        sink = TensorBoardSink(tmp_path, {}, resume_at=step or None)
        sink.write(step + 1, 1.0, {"episode/return": float(step)})
        sink.close()
    names = [path.name.split(".") for path in sorted(tmp_path.glob("events.*"))]
    assert len({name[3] for name in names}) == 3  # no two of one second
    assert scalars(tmp_path, "episode/return") == [(step + 1, float(step)) for step in range(3)]
