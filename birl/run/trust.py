"""Whose run this is, and what its settings may do without the person saying so.

The settings of a run can name a module, which runs code when it is imported; give text to an
environment, which may take it for a file, a class or an address; start processes; and reach out to
Weights & Biases or a Ray cluster. A run that this person made on this machine may do all that. Of a
run from anywhere else, what an evaluation does not need is left out with a notice, and the rest is
asked about.

A run is recognised by an HMAC-SHA256 of its settings under a random secret, which lies in the
person's data directory and which only that person can read. Signed are the algorithm, all settings
as they are in the file that is used, and the directory in which the module of env.id is found: a
stranger who sends a run back, and a module of the same name beside it, has changed where that
module is.
"""

import dataclasses
import hashlib
import hmac
import importlib.machinery
import importlib.util
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

from birl.config import EnvConfig, require, to_json
from birl.run.files import NO_FOLLOW, NO_WAIT

DATA_DIRECTORY = "BIRL_DATA_DIR"  # the environment variable that says where the secret is, instead of the usual place
SECRET = "secret"
SECRET_BYTES = 32
PURPOSE = b"birl settings 1\n"  # so that no signature of anything else is one of settings


def sign(algorithm: str, settings: dict[str, Any]) -> str | None:
    """The signature of a run's settings, to be kept beside them. None if there is no place for a
    secret: then nobody owns the run.
    """
    secret = _read_secret() or _create_secret()
    return None if secret is None else _signature(secret, algorithm, settings)


def is_own(algorithm: str, settings: dict[str, Any], signature: str | None) -> bool:
    """Whether this person signed these settings, and the module they name is where it was then."""
    secret = _read_secret()
    if secret is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(_signature(secret, algorithm, settings).encode(), signature.encode(errors="replace"))


def allowed_env(env: EnvConfig, own: bool, trust: bool, given: str | None, source: Path) -> tuple[EnvConfig, list[str]]:
    """The environment to evaluate, play or film in, and what to tell the person; ConfigError if it
    may not be made.

    `given` is the id that the person named instead of the run's, `source` where the settings come
    from.
    """
    named = env if given is None else dataclasses.replace(env, id=given)
    if own and given is None:
        _make_findable(env.id)
    if own or trust:
        return named, []
    asked = _texts(env) if given is not None else [*_module(env), *_texts(env)]
    _require_nothing(asked, source, None if given is not None else env.id)
    return _alone(named)


def allowed_run(config: Any, own: bool, trust: bool, given: str | None, source: Path) -> tuple[Any, list[str]]:
    """The settings to go on training with, and what to tell the person; ConfigError if they may not
    be used.
    """
    stranger = not own and not trust
    _require_nothing(_processes(config) if stranger else [], source, None)
    env, notices = allowed_env(config.env, own, trust, given, source)
    run = config.run
    if stranger and run.wandb is not None:
        run = dataclasses.replace(run, wandb=None)
        notices.append(_left_out("run.wandb", config.run.wandb, "nothing is sent to Weights & Biases"))
    return dataclasses.replace(config, env=env, run=run), notices


def unsigned_notice(config: Any) -> list[str]:
    """What to tell of a run that asks for something and cannot be signed."""
    asked = [*_module(config.env), *_texts(config.env), *_processes(config)]
    if not asked or _read_secret() or _create_secret():
        return []
    place = data_directory() or f"the home directory, which is not known here; set {DATA_DIRECTORY}"
    return [f"this run is not signed, so that birl eval and resume will need --trust: no secret can be kept in {place}"]


def data_directory() -> Path | None:
    """Where this person's secret is kept; None if there is no home directory."""
    if os.path.isabs(own := os.environ.get(DATA_DIRECTORY, "")):
        return Path(own)
    if os.path.isabs(
        shared := os.environ.get("XDG_DATA_HOME", "")
    ):  # a relative one is to be ignored, says the specification
        return Path(shared) / "birl"
    home = os.path.expanduser("~")
    return Path(home) / ".local" / "share" / "birl" if os.path.isabs(home) else None


def _module(env: EnvConfig) -> list[str]:
    module, home = env.id.rpartition(":")[0], _home_of(env.id)
    where = f" in {home}" if home else ""
    return [f"env.id {env.id!r} would import the module {module}{where}, and so run its code"] if module else []


def _texts(env: EnvConfig) -> list[str]:
    """Numbers and booleans are harmless. Text is whatever an environment takes it for."""
    texts = {name: value for name, value in env.kwargs.items() if isinstance(value, str)}
    return (
        [f"env.kwargs {texts} would hand text to {env.id}, which may take it for a file, a class or an address"]
        if texts
        else []
    )


def _processes(config: Any) -> list[str]:
    """What starts processes or reaches other machines, and cannot be left out: the run would go on
    differently.
    """
    env, pool = config.env, to_json(config).get("pool")
    asked = []
    if env.ray_actors or pool == "ray":
        asked.append(
            f"env.ray_address {env.ray_address!r} would connect to a Ray cluster, whose machines can run code here"
        )
    elif pool == "processes":
        asked.append(f"actor_learners {config.actor_learners} would start so many processes")
    return asked


def _alone(env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """The environment stepped in this process, which changes nothing else."""
    notices = (
        [_left_out("env.workers", env.workers, "this process steps the environments, with the same result")]
        if env.workers
        else []
    )
    return dataclasses.replace(env, workers=0, ray_actors=0, ray_address=None), notices


def _left_out(name: str, value: object, instead: str) -> str:
    return f"{name} {value!r} is left out, for this run was not made here: {instead}; --trust allows it"


def _require_nothing(asked: list[str], source: Path, env_id: str | None) -> None:
    """Raise ConfigError if a stranger's settings ask for something."""
    other = (
        f", or name the environment yourself: --env {env_id} (env= in Python)"
        if env_id is not None and ":" in env_id
        else ""
    )
    remedy = f"if you trust it, say --trust (trust=True in Python){other}"
    require(not asked, f"{source} was not made here, or not by you: {'; '.join(asked)}; {remedy}")


def _signature(secret: bytes, algorithm: str, settings: dict[str, Any]) -> str:
    env = settings.get("env")
    env_id = env.get("id") if isinstance(env, dict) else None
    signed = {"algorithm": algorithm, "config": settings, "home": _home_of(env_id) if isinstance(env_id, str) else None}
    canonical = json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(secret, PURPOSE + canonical, hashlib.sha256).hexdigest()


def _home_of(env_id: str) -> str | None:
    """The directory in which the module of module:Id would be found, without importing anything;
    None if there is none.

    That is the place of its first package, for to look into a package imports it. Last comes the
    current directory, where the command line looks for modules that the person names.
    """
    name = env_id.rpartition(":")[0].partition(".")[0]
    if not name:
        return None
    spec = _spec_of(name) or importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
    if spec is None:
        return None
    if spec.submodule_search_locations:  # a package, with or without __init__.py
        return os.path.realpath(os.path.dirname(next(iter(spec.submodule_search_locations))))
    return os.path.realpath(os.path.dirname(spec.origin)) if spec.has_location and spec.origin else None


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ValueError, ImportError):  # __main__, and names that are none
        return None


def _make_findable(env_id: str) -> None:
    """Let the module of one's own run be imported from the directory in which it was found to be
    the same.
    """
    home, name = _home_of(env_id), env_id.rpartition(":")[0].partition(".")[0]
    if home is not None and _spec_of(name) is None:
        sys.path.append(home)


def _read_secret() -> bytes | None:
    """The secret, if there is one that nobody but this person can have written or read."""
    directory = data_directory()
    if directory is None:
        return None
    try:
        descriptor = os.open(directory / SECRET, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        usable = stat.S_ISREG(found.st_mode) and _is_private(found)
        secret = os.read(descriptor, SECRET_BYTES + 1) if usable else b""
    finally:
        os.close(descriptor)
    return secret if len(secret) == SECRET_BYTES else None


def _is_private(found: os.stat_result) -> bool:
    return sys.platform == "win32" or (found.st_uid == os.geteuid() and not found.st_mode & 0o077)


def _create_secret() -> bytes | None:
    """A new secret, or that of a process that was quicker. It is linked into place whole: nobody
    can read half of one.
    """
    directory = data_directory()
    if directory is None:
        return None
    partial = directory / f".{SECRET}-{secrets.token_hex(8)}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, directory / SECRET)
        finally:
            partial.unlink()
    except OSError:  # read only, full, not ours, or there by now
        pass
    return _read_secret()
