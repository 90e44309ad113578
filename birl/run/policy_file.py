"""A policy alone, in one file: safetensors with JSON in its header.

The tensors are the part of a State that acts, named by their paths: network.actor.head.weight. The
JSON has what is needed to make their network: the algorithm, its settings and the spaces. Nothing
in the file can run code. A SHA-256 of all of it shows damage.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from birl import __version__
from birl.config import from_json, from_stored, require, to_json
from birl.envs.spaces import space_from_json, space_to_json
from birl.errors import CheckpointError, NonFiniteError, UnreadableError
from birl.maths.schedules import Schedule
from birl.nets.allowance import allowed_numbers
from birl.registry import algorithm_named, name_of
from birl.run import files
from birl.run.checkpoint import DAMAGE, memory_limit
from birl.run.trust import sign
from birl.settings import flat_settings, places_of

FORMAT = 1
KEY = "birl policy"  # of the JSON in the header
NOT_NEEDED = {"env", "run", "actor_learners", "prefill"}  # settings that no network depends on; nor on schedules
IGNORED: dict[str, Any] = {"ignore_observations": []}  # the only setting of `env` in a file, if it is not empty
LENGTH_BYTES = 8  # safetensors: the length of the header, then the header, then the tensors


class PolicyFile(NamedTuple):
    """The verified content of a policy file."""

    path: Path
    algorithm: str
    settings: dict[str, Any]
    observation_space: gym.Space
    action_space: gym.Space
    tensors: dict[str, np.ndarray]
    signature: str | None  # of algorithm and settings; see trust.py
    masks: bool  # it learned with action masks
    description: dict[str, Any]  # all of the JSON, without its SHA-256

    def config(self) -> Any:
        """The settings as a Config; those that are not in the file have their defaults."""
        return from_stored(algorithm_named(self.algorithm).Config, self.settings, "settings")


def write_policy(
    path: Path,
    config: Any,
    observation_space: gym.Space,
    action_space: gym.Space,
    tensors: dict[str, np.ndarray],
    masks: bool = False,
) -> None:
    """Write a policy file, completely or not at all; only another policy file is replaced.

    CheckpointError if something else is there.
    """
    if problem := _non_finite(tensors):
        raise NonFiniteError(f"{problem}, so this policy was not saved")
    algorithm = name_of(config)
    stored = to_json(config)
    settings = {name: stored[name] for name, value in flat_settings(config).items() if _is_needed(config, name, value)}
    if ignored := config.env.ignore_observations:  # which `act` accepts in an observation
        settings["env"] = IGNORED | {"ignore_observations": list(ignored)}
    description = {
        "format": FORMAT,
        "birl": __version__,
        "algorithm": algorithm,
        "settings": settings,
        "observation_space": space_to_json(observation_space),
        "action_space": space_to_json(action_space),
        "signature": sign(algorithm, settings),
    }
    if masks:
        description["masks"] = True
    content = _sealed(description, tensors)
    if os.path.lexists(path) and not is_policy_file(path):
        raise CheckpointError(f"{path} is there already and is not a policy file; move it away, or use another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as file:
        file.write(content)


def read_policy(path: Path) -> PolicyFile:
    """The content of a policy file, checked against its SHA-256.

    CheckpointError if it is damaged, UnreadableError if it cannot be read at the moment.
    """
    try:
        return _read(path)
    except (OSError, MemoryError) as problem:
        raise UnreadableError(f"{path} cannot be read: {str(problem) or 'not enough memory'}") from problem
    except DAMAGE as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem


def unsigned_policy(path: Path) -> bytes:
    """The content of a policy file without its signature, so that it is nobody's own.

    CheckpointError if it is damaged, as in `read_policy`.
    """
    saved = read_policy(path)
    return _sealed(saved.description | {"signature": None}, saved.tensors)


def is_policy_file(path: Path) -> bool:
    """True if this is a file that `write_policy` wrote, damaged or not."""
    try:
        with files.open_to_read(path) as file:
            return KEY in _metadata(file.read(LENGTH_BYTES + files.JSON_BYTES), path)
    except (CheckpointError, OSError):
        return False


def _read(path: Path) -> PolicyFile:
    content = files.read_bytes(path, memory_limit(path))
    metadata = _metadata(content, path)
    if KEY not in metadata:
        remedy = "give a file that policy.save wrote, a run directory or a checkpoint directory"
        raise CheckpointError(f"{path} is not a policy file of Birl, or its header is damaged; {remedy}")
    description = files.parse_json(metadata[KEY].encode(), path)
    format = description["format"]
    if format != FORMAT:
        remedy = "install the version that wrote it"
        raise UnreadableError(f"{path} has format {format!r}; this version of Birl reads {FORMAT}: {remedy}")
    tensors = load_tensors(content)
    sealed = description.pop("sha256")
    if sealed != _sha256(description, tensors):
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not that of its content")
    if problem := _non_finite(tensors):
        raise CheckpointError(f"{path} is damaged: {problem}; it cannot act")
    settings, signature = description["settings"], description["signature"]
    require(_is_of_a_network(settings), "its settings are not those of a network")
    require(isinstance(signature, str | None), f"its signature {signature!r} must be a string")
    most = allowed_numbers(tensors)
    return PolicyFile(
        path=path,
        algorithm=from_json(str, description["algorithm"], "algorithm"),
        settings=settings,
        observation_space=space_from_json(description["observation_space"], most),
        action_space=space_from_json(description["action_space"], most),
        tensors=tensors,
        signature=signature,
        masks=from_json(bool, description.get("masks", False), "masks"),
        description=description,
    )


def _metadata(content: bytes, path: Path) -> dict[str, str]:
    """The metadata in a safetensors header, strings by name; none if there is no such header."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if not 0 < length <= files.JSON_BYTES:
        return {}
    try:
        header = files.parse_json(content[LENGTH_BYTES : LENGTH_BYTES + length], path)
        return from_json(dict[str, str], header["__metadata__"], "metadata")
    except (CheckpointError, *DAMAGE):
        return {}


def _sealed(description: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """The content of a policy file, with its SHA-256."""
    sealed = description | {"sha256": _sha256(description, tensors)}
    return save_tensors(tensors, {KEY: files.to_json_bytes(sealed).decode()})


def _sha256(description: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(files.to_json_bytes(description))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _is_of_a_network(settings: Any) -> bool:
    """True if these are settings that a network depends on, or parts of observations to ignore."""
    if not isinstance(settings, dict):
        return False
    env = settings.get("env", IGNORED)
    return not (NOT_NEEDED - {"env"}) & settings.keys() and isinstance(env, dict) and env.keys() == IGNORED.keys()


def _is_needed(config: Any, name: str, value: Any) -> bool:
    parts = {*places_of(config.__class__)[name].path, name}
    return not parts & NOT_NEEDED and not isinstance(value, Schedule)


def _non_finite(tensors: dict[str, np.ndarray]) -> str:
    """A sentence about the first tensor that is not finite; "" if all are.

    Moments that have seen nothing may be infinite.
    """
    for name, tensor in tensors.items():
        wrong = np.isnan(tensor) if name.startswith("moments") else ~np.isfinite(tensor)
        if wrong.any():
            return f"{name} holds NaN or infinity"
    return ""
