"""Thousands of damaged and forged run directories: each ends in success or in one sentence.

Every case has a number, which is its seed: `ALGORITHM=dqn CASE=123 pytest tests/run/test_fuzz.py`
runs that one again.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from birl.algos import a3c, dqn
from birl.config import ConfigError, EnvConfig
from birl.run import evaluating
from birl.run.checkpoint import checkpoints_in
from birl.run.evaluating import Evaluation
from birl.run.start import train
from tests.run.processes import call
from tests.run.test_hostile import small_config

IN_MAKE_TEST = 60  # cases of one algorithm
IN_MAKE_TEST_FAULTS = 1400  # cases of each algorithm
BLOCK = 200  # cases of one test
CASE_SECONDS = 60  # a case takes a tenth of a second; one that waits for a pipe would never end
CHECKPOINT_FILES = [
    "manifest.json",
    "config.json",
    "spaces.json",
    "state.safetensors",
    "snapshot.safetensors",
    "snapshot.json",
]
HOSTILE_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, -(2**63), 10**39, 0.5, 1e308, 5e-324, [], [[]], [None],
    [1, 2, 3], ["x"] * 10, "", "0", "nan", "inf", "ppo", "../../..", "/etc/passwd", "1²", "\x00", "\ud800", "\x1b[2J",
    "a" * 5000, "CartPole-v1", "CartPole-v999", "os:system", {}, {"": {}}, {"kind": "Box"},
    {"checkpoint": "000000001", "return_mean": 1.0}, [[[[[[[[[[]]]]]]]]]],
]  # fmt: skip
HOSTILE_TEXTS = [
    b"",
    b"{",
    b"[" * 100_000,
    b"\x00" * 100,
    b"\xff\xfe",
    b"NaN",
    b"[1e999]",
    b"9" * 5000,
    b"null",
    b"{}\n{}",
    b'{"a":' * 5000,
]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it still waits after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Kinds of damage. Each function gets a random generator, the run directory and the file.
def flip_bits(rng: random.Random, path: Path, outside: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 10, 100]) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(rng: random.Random, path: Path, outside: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def overwrite_part(rng: random.Random, path: Path, outside: Path) -> None:
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content) + 1)
    content[start : start + rng.choice([0, 1, 100])] = rng.randbytes(rng.choice([1, 8, 1000]))
    path.write_bytes(content)


def overwrite(rng: random.Random, path: Path, outside: Path) -> None:
    path.write_bytes(rng.choice([*HOSTILE_TEXTS, rng.randbytes(100)]))


def remove(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()


def put_a_pipe(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_a_link(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(
        rng.choice([outside / "file.json", outside, "/dev/zero", "/dev/stdin", "/etc/passwd", "nowhere", path])
    )


def put_a_directory(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def put_a_giant(rng: random.Random, path: Path, outside: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


def change_json(rng: random.Random, path: Path, outside: Path) -> None:
    """Change, remove or add a value somewhere in the file's JSON."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    value = json.loads(lines[number])
    spots = list(places(value))
    owner, key = rng.choice(spots)
    match rng.randrange(4):
        case 0:
            del owner[key]
        case 1 if isinstance(owner, dict):
            owner[rng.choice(["", "more", "../x", "\ud800", "seal", "checkpoint"])] = rng.choice(HOSTILE_VALUES)
        case _:
            owner[key] = rng.choice(HOSTILE_VALUES)
    lines[number] = json.dumps(value, indent=None if path.suffix == ".jsonl" else 1)
    path.write_text("\n".join(lines) + "\n")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in this JSON value, with each of its keys."""
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(part, dict | list):
            yield from places(part)


def change_tensors(rng: random.Random, path: Path, outside: Path) -> None:
    """Spoil, reshape, convert, rename, remove or add an array."""
    tensors = load_tensors(path.read_bytes())
    name = rng.choice(sorted(tensors))
    array = tensors[name]
    match rng.randrange(6):
        case 0:
            tensors[name] = np.full_like(array, rng.choice([np.nan, np.inf]) if array.dtype.kind == "f" else 1)
        case 1:
            tensors[name] = array.reshape(-1)[: rng.randrange(array.size + 1)].copy()
        case 2:
            tensors[name] = array.astype(rng.choice([np.float16, np.float64, np.int8, np.bool_, np.uint64]))
        case 3:
            tensors[rng.choice(["", "../x", f"{name}x"])] = tensors.pop(name)
        case 4:
            del tensors[name]
        case 5:
            tensors["more"] = np.zeros((0, 3), np.float32)
    path.write_bytes(save_tensors(tensors))


DAMAGES: list[Callable[[random.Random, Path, Path], None]] = [
    flip_bits, cut, overwrite_part, overwrite, remove, put_a_pipe, put_a_link, put_a_directory, put_a_giant,
]  # fmt: skip


def damage_files(rng: random.Random, run: Path, outside: Path) -> str:
    """Damage files of the run, of one checkpoint or of all; a description."""
    own = [run / name for name in ("config.json", "metrics.jsonl", "summary.json", "checkpoints/best.json")]
    saved = [checkpoint / name for checkpoint in checkpoints_in(run / "checkpoints") for name in CHECKPOINT_FILES]
    done = []
    for path in rng.sample(own + saved, rng.choice([1, 1, 1, 2, 5])):
        structured = change_tensors if path.suffix == ".safetensors" else change_json
        damage = rng.choice([*DAMAGES, *[structured] * 6])
        damage(rng, path, outside)
        done.append(f"{damage.__name__} {path.relative_to(run)}")
        if damage is structured and path in saved and rng.random() < 0.8:
            seal(path)
            done.append("sealed again")
    return ", ".join(done)


def seal(path: Path) -> None:
    """Update the hashes of a checkpoint after a change, as a forger would, if that is possible."""
    sealed = path.with_name("manifest.json")
    try:
        manifest = json.loads(sealed.read_text() if sealed.is_file() and sealed.stat().st_size < 1 << 20 else "")
        manifest.pop("seal", None)
        if path != sealed:
            manifest["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    except (ValueError, TypeError, LookupError, AttributeError):
        return
    digest = hashlib.sha256((json.dumps(manifest, indent=1) + "\n").encode()).hexdigest()
    sealed.write_text(json.dumps(manifest | {"seal": digest}, indent=1) + "\n")


def damage_directories(rng: random.Random, run: Path, outside: Path) -> str:
    """Damage the names and kinds of directories; a description."""
    directory = run / "checkpoints"
    one = rng.choice(checkpoints_in(directory))
    choice = rng.randrange(6)
    match choice:
        case 0:
            one.rename(
                directory / rng.choice(["1²", "-00000001", "9" * 40, "000000007", "9223372036854775808", "latest"])
            )
        case 1:
            shutil.rmtree(directory)
            directory.symlink_to(rng.choice([outside, outside / "file.json", "nowhere", directory]))
        case 2:
            shutil.rmtree(directory)
            directory.write_text("")
        case 3:
            (directory / "999999999").symlink_to(rng.choice([outside, one, "/dev"]))
        case 4:
            shutil.rmtree(one)
            os.mkfifo(one)
        case 5:
            for name in (
                ".config.json.partial",
                ".metrics.jsonl.partial",
                ".partial-x",
                "checkpoints/.partial-x",
                "checkpoints/.best.json.partial",
            ):
                (run / name).symlink_to(rng.choice([outside, outside / "file.json"]))
    return f"directory damage {choice}"


def configs(run_dir: Path) -> dict[str, Any]:
    """Settings of a plain run, one with a replay, one with actor-learners."""
    plain = small_config(run_dir)
    env = EnvConfig("CartPole-v1", num_envs=2)
    replay = {
        "rollout_length": 8,
        "learning_starts": 32,
        "batch_size": 8,
        "replay_size": 100,
        "update_ratio": 0.125,
        "prioritized": True,
    }
    return {
        "ppo": plain,
        "dqn": dqn.Config(env, plain.run, hidden_sizes=(8,), **replay),
        "a3c": a3c.Config(replace(env, num_envs=1), plain.run, hidden_sizes=(8,), actor_learners=2, pool="serial"),
    }


@pytest.fixture(scope="module")
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with several checkpoints; the second is the best."""
    run_dir = tmp_path_factory.mktemp("sound") / "run"
    scores = iter([1.0, 5.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            evaluating, "evaluate_policy", lambda *_, **__: Evaluation(np.array([next(scores, 1.0)]), np.array([1]))
        )
        train(configs(run_dir)[request.param])
    return run_dir


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def no_picture(*_: Any, **__: Any) -> None:
    raise ConfigError("a picture takes long")


def use(rng: random.Random, run: Path, outside: Path, score: Evaluation) -> tuple[str, int, str]:
    """Use the run, without slow evaluations: the words, the exit code and the output."""
    one = min((run / "checkpoints").glob("0*"), default=run)
    words = rng.choice([
        ["eval", run], ["eval", run], ["eval", one], ["plot", run, "--out", outside.parent / "curves.png"],
        ["resume", run], ["resume", run], ["resume", run, "--total-steps", 250], ["play", run],
        ["record", run, "--out", outside.parent / "a.mp4"],
    ])  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("birl.run.plot.plot_curves", lambda series, out, *_: out)
        patch.setattr("birl.run.record._rendered", no_picture)
        patch.setenv("SDL_VIDEODRIVER", "dummy")
        patch.setattr("birl.run.evaluating.evaluate_policy", lambda *_, **__: score)
        patch.setattr(evaluating, "evaluate_policy", lambda *_, **__: score)
        code, said = call(*words)
    return " ".join(map(str, words)), code, said


def run_case(number: int, sound: Path, place: Path) -> str:
    """Damage a copy of the run and use it; what was done, and the output."""
    rng = random.Random(number)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    run, outside = shutil.copytree(sound, place / "run"), place / "outside"
    outside.mkdir()
    (outside / "file.json").write_text("{}")
    damage = damage_directories if rng.random() < 0.15 else damage_files
    done = damage(rng, run, outside)
    before = contents(outside)
    with warnings.catch_warnings(), time_limit(CASE_SECONDS):
        warnings.simplefilter("ignore")
        words, code, said = use(rng, run, outside, Evaluation(np.array([1.0]), np.array([1])))
    story = f"case {number}: {done}; {words}: {code} {said}"
    assert code in (0, 1, 2, 3), story
    assert code == 0 or "birl: " in said, story
    assert "Traceback" not in said, story
    assert contents(outside) == before, story
    return story


def run_cases(numbers: range, sound: Path, tmp_path: Path) -> None:
    for number in numbers:
        try:
            run_case(
                number, sound, tmp_path / "case"
            )  # always there: another run_dir is another config, to be compiled for
        except Exception as problem:
            problem.add_note(f"run it again with CASE={number}")
            raise


@pytest.mark.parametrize("sound", [os.environ.get("ALGORITHM", "ppo")], indirect=True)
def test_damaged_and_forged_runs_end_in_success_or_a_sentence(sound, tmp_path):
    case = os.environ.get("CASE")
    run_cases(range(int(case), int(case) + 1) if case else range(IN_MAKE_TEST), sound, tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("start", range(0, IN_MAKE_TEST_FAULTS, BLOCK))
@pytest.mark.parametrize("sound", ["ppo", "dqn", "a3c"], indirect=True)
def test_thousands_of_damaged_and_forged_runs_end_in_success_or_a_sentence(start, sound, tmp_path):
    run_cases(range(start, start + BLOCK), sound, tmp_path)
