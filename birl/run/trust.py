"""Whether a run is the user's own, and what the settings of other people's runs may do.

The settings of a run can name modules, which run code when they are imported: in env.id, in
env.wrappers and in `encoder`. They can pass text to an environment or a wrapper, which may use it
as a file, a class or an address. They can start processes, and
connect to Weights & Biases or to a Ray cluster. A run that this user made on this machine may do
all of that. In any other run, settings that are not needed are left out with a notice, and the
others need the user's consent.

A user's own runs are recognised by an HMAC-SHA256 of their settings. Its key is a random secret in
the user's data directory that only this user can read. The signature covers the algorithm, all
settings of the file that is used, and the directories of the modules that they name. So nobody can
send a run back with a different module of the same name beside it.
"""

import dataclasses
import hashlib
import hmac
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

from birl import ALGORITHMS
from birl.config import EnvConfig, from_stored, passed_encoder, require, to_json
from birl.envs.registration import with_id
from birl.envs.snapshot import ATTRIBUTES, BEGUN_WITH
from birl.errors import cut
from birl.registry import algorithm_named, import_algorithm
from birl.run.files import NO_FOLLOW, NO_WAIT
from birl.run.modules import ENV_ID, home_of, make_findable, named_modules
from birl.settings import flat_settings, replaced

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


def import_stored_algorithm(algorithm: str, own: bool, trust: bool, source: Path) -> None:
    """Import the module of a stored name module:algorithm; ConfigError if that is not allowed."""
    if ":" not in algorithm or algorithm in ALGORITHMS:
        return
    if own:
        make_findable(algorithm)
    elif not trust:
        _require_none(_imports({"algorithm": algorithm}), source, None)
    import_algorithm(algorithm)


def config_in(algorithm: str, settings: dict[str, Any], own: bool, trust: bool, source: Path) -> Any:
    """The Config in stored settings; ConfigError if its algorithm may not be imported."""
    import_stored_algorithm(algorithm, own, trust, source)
    return from_stored(algorithm_named(algorithm).Config, settings)


def allowed_env(env: EnvConfig, own: bool, trust: bool, given: str | None, source: Path) -> tuple[EnvConfig, list[str]]:
    """The environment to evaluate in, and notices for the user; ConfigError if it may not be made.

    `given` is an id that the user named instead of the run's. `source` is the file or directory
    with the settings.
    """
    named = env if given is None else with_id(env, given)
    names = named_modules({"env": to_json(env)})
    if given is not None:
        names.pop(ENV_ID, None)
    if own:
        for name in names.values():
            make_findable(name)
    if own or trust:
        return named, []
    can_be_named = ENV_ID in names and len(names) == 1
    _require_none([*_imports(names), *_texts(env)], source, env.id if can_be_named else None)
    return _without_workers(named)


def require_allowed_network(config: Any, own: bool, trust: bool, source: Path) -> None:
    """Raise ConfigError if the network of these settings would import a module without consent."""
    names = named_modules({"encoder": to_json(config).get("encoder")})
    if own:
        for name in names.values():
            make_findable(name)
    elif not trust:
        _require_none(_imports(names), source, None)


def with_allowed_encoder(config: Any, make_encoder: Any, own: bool, trust: bool, source: Path) -> Any:
    """The Config with the encoder that the user passed in, or its own if that may be imported."""
    if make_encoder is None:
        require_allowed_network(config, own, trust, source)
        return config
    wrong = f"make_encoder= is for networks with an encoder, and those of {source} have none"
    require("encoder" in flat_settings(config), f"{wrong}; leave it out")
    return replaced(config, passed_encoder(make_encoder))


def allowed_run(
    config: Any,
    own: bool,
    trust: bool,
    given: str | None,
    source: Path,
    make_encoder: Any = None,
    snapshot: dict[str, Any] | None = None,
) -> tuple[Any, list[str]]:
    """The settings to resume with, and notices for the user; ConfigError if not allowed.

    `given` and `make_encoder` are an environment's id and an encoder of the user's own. `snapshot`
    has the values of the snapshot that the run goes on from.
    """
    stranger = not own and not trust
    risks = [*_processes(config), *_prefill(config), *_attributes(snapshot)]
    _require_none(risks if stranger else [], source, None)
    config = with_allowed_encoder(config, make_encoder, own, trust, source)
    env, notices = allowed_env(config.env, own, trust, given, source)
    run = config.run
    if stranger and run.wandb is not None:
        run = dataclasses.replace(run, wandb=None)
        notices.append(_left_out("run.wandb", config.run.wandb, "nothing is sent to Weights & Biases"))
    if stranger and run.trackio is not None:
        run = dataclasses.replace(run, trackio=None)
        notices.append(_left_out("run.trackio", config.run.trackio, "nothing is logged to that project"))
    return dataclasses.replace(config, env=env, run=run), notices


def unsigned_notice(config: Any) -> list[str]:
    """A notice for a run that cannot be signed, and will need --trust later."""
    risks = [*_imports(named_modules(to_json(config))), *_texts(config.env), *_processes(config), *_prefill(config)]
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


def _imports(names: dict[str, str]) -> list[str]:
    """The risks of settings that name modules."""
    homes = {setting: home_of(name) for setting, name in names.items()}
    places = {setting: f" in {home}" if home else "" for setting, home in homes.items()}
    return [
        f"{setting} {name!r} would import the module {name.rpartition(':')[0]}{places[setting]}, and so run its code"
        for setting, name in names.items()
    ]


def _texts(env: EnvConfig) -> list[str]:
    """The risks of text in keyword arguments. Numbers and booleans are harmless."""
    given = {"env.kwargs": (env.kwargs, env.id)}
    given |= {
        f"env.wrappers[{number}].kwargs": (wrapper.kwargs, wrapper.path) for number, wrapper in enumerate(env.wrappers)
    }
    found = [
        (setting, {name: value for name, value in kwargs.items() if isinstance(value, str)}, receiver)
        for setting, (kwargs, receiver) in given.items()
    ]
    return [
        f"{setting} {texts} would pass text to {receiver}, which may use it as a file, a class or an address"
        for setting, texts, receiver in found
        if texts
    ]


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
        return [f"actor_learners {config.learners.actor_learners} would start that many processes"]
    return []


def _prefill(config: Any) -> list[str]:
    """The risk of a prefill, which names a file of this machine: a checkpoint would keep it."""
    prefill = to_json(config).get("prefill")
    return [f"prefill {prefill!r} would read that file or dataset of yours"] if prefill is not None else []


def _attributes(snapshot: Any) -> list[str]:
    """The risks of text among the attributes that a snapshot would set in environments."""
    if isinstance(snapshot, list):
        return [risk for part in snapshot for risk in _attributes(part)]
    if not isinstance(snapshot, dict):
        return []
    risky = {name: value for name, value in snapshot.items() if name in (ATTRIBUTES, BEGUN_WITH) and _has_text(value)}
    own = [f"its snapshot's {cut(risky)} would set text in environments, which may use it as a file"] if risky else []
    return [*own, *(risk for value in snapshot.values() for risk in _attributes(value))]


def _has_text(value: Any) -> bool:
    """Whether there is text among these JSON values; names are not counted."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, str) or any(map(_has_text, parts))


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
    names = named_modules(settings) | ({"algorithm": algorithm} if ":" in algorithm else {})
    homes = {setting: home_of(name) for setting, name in names.items()}
    # The directory of env.id's module has a place of its own, as in runs that name no other module.
    signed = {"algorithm": algorithm, "config": settings, "home": homes.pop(ENV_ID, None)}
    signed |= {"homes": homes} if homes else {}
    canonical = json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(secret, PURPOSE + canonical, hashlib.sha256).hexdigest()


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
