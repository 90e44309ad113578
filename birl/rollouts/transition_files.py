"""Files of transitions: .npz archives of arrays by name. Nothing in them is unpickled."""

import io
import secrets
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from birl.config import ConfigError, require
from birl.errors import install_extra
from birl.rollouts.transitions import CHUNK, Arrays, named_arrays

Headers = dict[str, tuple[tuple[int, ...], np.dtype]]  # shapes and types by name
ENDING = ".npy"
HEADER_BYTES = 1 << 16  # of an array; NumPy refuses headers of more than 10,000 characters
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_transitions(path: Path, label: str, require_fits: Callable[[Headers], None]) -> Arrays:
    """The arrays of a file; `require_fits` is asked before any of them is read."""
    require(path.is_file(), f"{label}: there is no such file; numpy.savez writes one")
    try:
        require_fits(_headers(path))
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as problem:
        raise ConfigError(f"{label} cannot be read: {problem}; numpy.savez writes such files") from problem


def write_transitions(path: Path, count: int, names: list[str], part: Callable[[str, slice], np.ndarray]) -> Path:
    """Write an .npz of `count` transitions, completely or not at all; the file.

    As numpy.savez does, it adds .npz to a name without it: what was collected is not lost by that.
    `part` gives some rows of an array, so that only a few of them are in memory at a time.
    """
    path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".partial-{secrets.token_hex(8)}.npz")
    try:
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in names:
                with archive.open(f"{name}{ENDING}", "w", force_zip64=True) as file:
                    for start in range(0, count, CHUNK):
                        rows = np.ascontiguousarray(part(name, slice(start, start + CHUNK)))
                        if start == 0:
                            descr = npy.dtype_to_descr(rows.dtype)
                            header = {"descr": descr, "fortran_order": False, "shape": (count, *rows.shape[1:])}
                            npy.write_array_header_1_0(file, header)
                        file.write(rows.tobytes())
        return partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _headers(path: Path) -> Headers:
    """The shapes and types of a file's arrays, without reading them."""
    headers: Headers = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                start = io.BytesIO(file.read(HEADER_BYTES))  # packed, a header of 4 GB takes a few MB
            version = npy.read_magic(start)
            if version not in READERS:
                raise ValueError(f"{entry.filename} has format {version}")
            shape, _, dtype = READERS[version](start)
            name = entry.filename.removesuffix(ENDING)
            if name in headers:  # NumPy might read the other one
                raise ValueError(f"it has two arrays {name!r}")
            headers[name] = shape, dtype
    return headers


def read_dataset(dataset_id: str, most: int) -> Arrays:
    """The newest episodes of a dataset on this machine, with at least `most` transitions if it has.

    Nothing is downloaded: `minari download` does that.
    """
    try:
        import minari
    except ImportError as problem:
        wrong = f"prefill minari:{dataset_id} needs the minari package"
        raise ConfigError(f"{wrong}: {install_extra('minari')}") from problem
    try:
        dataset = minari.load_dataset(dataset_id, download=False)
    except (OSError, ValueError, ImportError) as problem:
        remedy = "minari list local shows those on this machine, and minari download gets others"
        raise ConfigError(f"prefill minari:{dataset_id} cannot be read: {problem}; {remedy}") from problem
    parts: list[Arrays] = []
    steps = 0
    for index in reversed(dataset.episode_indices.tolist()):
        if steps >= most:
            break
        episode = next(iter(dataset.iterate_episodes([index])))
        parts.append(_arrays_of(episode))
        steps += len(episode.rewards)
    require(steps > 0, f"prefill minari:{dataset_id} holds no transitions")
    return {name: np.concatenate([part[name] for part in reversed(parts)]) for name in parts[0]}


def _arrays_of(episode: Any) -> Arrays:
    """The transitions of one episode, whose last observation has no action."""
    arrays = {
        "rewards": np.asarray(episode.rewards),
        "terminated": np.asarray(episode.terminations),
        "truncated": np.asarray(episode.truncations),
    }
    arrays |= named_arrays("actions", episode.actions)
    for name, observations in named_arrays("observations", episode.observations).items():
        arrays |= {name: observations[:-1], f"next_{name}": observations[1:]}
    return arrays
