"""Whether a run is the user's own, and what the settings of other people's runs may do.

The settings of a run can name a module, which runs code when it is imported. They can pass text to
an environment, which may use it as a file, a class or an address. They can start processes, and
connect to Weights & Biases or to a Ray cluster. A run that this user made on this machine may do
all of that. In any other run, settings that are not needed are left out with a notice, and the
others need the user's consent.

A user's own runs are recognised by an HMAC-SHA256 of their settings. Its key is a random secret in
the user's data directory that only this user can read. The signature covers the algorithm, all
settings of the file that is used, and the directory of the module that env.id names. So nobody can
send a run back with a different module of the same name beside it.
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

from birl.config import EnvConfig, require
from birl.config_json import to_json
from birl.run.files import NO_FOLLOW, NO_WAIT

DATA_DIRECTORY = "BIRL_DATA_DIR"  # the environment variable that names another directory for the secret
SECRET = "secret"
SECRET_BYTES = 32
PURPOSE = b"birl settings 1\n"  # signed too, so that a signature of other data is never valid here


def sign(algorithm: str, settings: dict[str, Any]) -> str | None:
    """The signature of a run's settings; None if no secret can be stored."""
    secret = _read_secret() or _create_secret()
    return None if secret is None else _signature(secret, algorithm, settings)


def is_own(algorithm: str, settings: dict[str, Any], signature: str | None) -> bool:
    """Whether this user signed these settings, and their module is still in the same directory."""
    secret = _read_secret()
    if secret is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(_signature(secret, algorithm, settings).encode(), signature.encode(errors="replace"))


def allowed_env(env: EnvConfig, own: bool, trust: bool, given: str | None, source: Path) -> tuple[EnvConfig, list[str]]:
    """The environment to evaluate in, and notices for the user; ConfigError if it may not be made.

    `given` is an id that the user named instead of the run's. `source` is the file or directory
    with the settings.
    """
    named = env if given is None else dataclasses.replace(env, id=given)
    if own and given is None:
        _make_findable(env.id)
    if own or trust:
        return named, []
    risks = _texts(env) if given is not None else [*_module(env), *_texts(env)]
    _require_none(risks, source, None if given is not None else env.id)
    return _without_workers(named)


def allowed_run(config: Any, own: bool, trust: bool, given: str | None, source: Path) -> tuple[Any, list[str]]:
    """The settings to resume with, and notices for the user; ConfigError if not allowed."""
    stranger = not own and not trust
    _require_none(_processes(config) if stranger else [], source, None)
    env, notices = allowed_env(config.env, own, trust, given, source)
    run = config.run
    if stranger and run.wandb is not None:
        run = dataclasses.replace(run, wandb=None)
        notices.append(_left_out("run.wandb", config.run.wandb, "nothing is sent to Weights & Biases"))
    return dataclasses.replace(config, env=env, run=run), notices


def unsigned_notice(config: Any) -> list[str]:
    """A notice for a run that cannot be signed, and will need --trust later."""
    risks = [*_module(config.env), *_texts(config.env), *_processes(config)]
    if not risks or _read_secret() or _create_secret():
        return []
    place = data_directory() or f"the home directory, which is unknown; set {DATA_DIRECTORY}"
    return [f"this run is not signed, so birl eval and resume will need --trust: no secret can be stored in {place}"]


def data_directory() -> Path | None:
    """The directory of this user's secret; None if there is no home directory."""
    if os.path.isabs(own := os.environ.get(DATA_DIRECTORY, "")):
        return Path(own)
    shared = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(shared):  # the specification says that a relative path is ignored
        return Path(shared) / "birl"
    home = os.path.expanduser("~")
    return Path(home) / ".local" / "share" / "birl" if os.path.isabs(home) else None


def _module(env: EnvConfig) -> list[str]:
    """The risk of an env.id that names a module."""
    module = env.id.rpartition(":")[0]
    home = _home_of(env.id)
    where = f" in {home}" if home else ""
    return [f"env.id {env.id!r} would import the module {module}{where}, and so run its code"] if module else []


def _texts(env: EnvConfig) -> list[str]:
    """The risk of text in env.kwargs. Numbers and booleans are harmless."""
    texts = {name: value for name, value in env.kwargs.items() if isinstance(value, str)}
    risk = f"env.kwargs {texts} would pass text to {env.id}, which may use it as a file, a class or an address"
    return [risk] if texts else []


def _processes(config: Any) -> list[str]:
    """The risk of settings that start processes or connect to other machines.

    They cannot be left out: without them the run would continue differently.
    """
    env = config.env
    pool = to_json(config).get("pool")
    if env.ray_actors or pool == "ray":
        address = f"env.ray_address {env.ray_address!r}"
        return [f"{address} would connect to a Ray cluster, whose machines can run code here"]
    if pool == "processes":
        return [f"actor_learners {config.actor_learners} would start that many processes"]
    return []


def _without_workers(env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """The environment stepped in this process, which gives the same result; and a notice."""
    instead = "this process steps the environments, with the same result"
    notices = [_left_out("env.workers", env.workers, instead)] if env.workers else []
    return dataclasses.replace(env, workers=0, ray_actors=0, ray_address=None), notices


def _left_out(name: str, value: object, instead: str) -> str:
    return f"{name} {value!r} is left out, because this run was not made here: {instead}; --trust allows it"


def _require_none(risks: list[str], source: Path, env_id: str | None) -> None:
    """Raise ConfigError if settings of someone else's run need the user's consent."""
    names_module = env_id is not None and ":" in env_id
    other = f", or name the environment yourself: --env {env_id} (env= in Python)" if names_module else ""
    remedy = f"if you trust it, use --trust (trust=True in Python){other}"
    require(not risks, f"{source} was not made here, or not by you: {'; '.join(risks)}; {remedy}")


def _signature(secret: bytes, algorithm: str, settings: dict[str, Any]) -> str:
    env = settings.get("env")
    env_id = env.get("id") if isinstance(env, dict) else None
    signed = {"algorithm": algorithm, "config": settings, "home": _home_of(env_id) if isinstance(env_id, str) else None}
    canonical = json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(secret, PURPOSE + canonical, hashlib.sha256).hexdigest()


def _home_of(env_id: str) -> str | None:
    """The directory of the module that module:Id names; None if it is not found.

    Nothing is imported. For a module inside packages it is the directory of the outermost package,
    because looking into a package imports it. The current directory is searched last, as the
    command line does.
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
    except (ValueError, ImportError):  # __main__, and strings that are not module names
        return None


def _make_findable(env_id: str) -> None:
    """Let the module of the user's own run be imported from the directory that was signed."""
    home = _home_of(env_id)
    name = env_id.rpartition(":")[0].partition(".")[0]
    if home is not None and _spec_of(name) is None:
        sys.path.append(home)


def _read_secret() -> bytes | None:
    """The secret; None if there is none, or if another user could have read or written it."""
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
    """A new secret, or the one that another process made meanwhile; None if it cannot be stored.

    It is linked into place when it is complete, so that no process reads half of it.
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
    except OSError:  # the disk is full or read-only, or the secret exists by now
        pass
    return _read_secret()
