"""Consent to what the settings of a run name, and signatures of a user's own runs.

The settings of a run can name modules, which run code when they are imported: in env.id, in
env.wrappers, in `encoder` and in the algorithm's name. They can pass text to an environment or a
wrapper, which may use it as a file, a class or an address. They can start processes, and connect to
Weights & Biases or to a Ray cluster. A run that this user made on this machine may do all of that.
In any other run, settings that are not needed are left out with a notice, and the others need the
user's consent. A `Consent` is the answer for one run. It is decided where the run is opened.

A user's own runs are recognised by an HMAC-SHA256 of their settings. Its key is a random secret in
the user's data directory that only this user can read. The signature covers the algorithm, all
settings of the file that is used, and the directories of the modules that they name. So nobody can
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from birl import ALGORITHMS
from birl.config import EnvConfig, from_stored, is_local, passed_encoder, require, to_json
from birl.envs.registration import with_id
from birl.envs.snapshot import ATTRIBUTES, BEGUN_WITH
from birl.errors import cut
from birl.registry import algorithm_named, import_algorithm
from birl.run.files import NO_FOLLOW, NO_WAIT
from birl.settings import flat_settings, replaced

DATA_DIRECTORY = "BIRL_DATA_DIR"  # the environment variable that names another directory for the secret
SECRET = "secret"
SECRET_BYTES = 32
PURPOSE = b"birl settings 1\n"  # signed too, so that a signature of other data is never valid here
ENV_ID = "env.id"


@dataclass(frozen=True)
class Consent:
    """Permissions of the settings in one file. `consent_to` decides them where it is opened."""

    source: Path  # the file or directory with the settings, for messages
    own: bool  # this user signed the settings, and their modules are still in the same directories
    trust: bool = False  # the user consents to whatever the settings name

    @property
    def is_full(self) -> bool:
        """True if the settings may do everything."""
        return self.own or self.trust

    def import_algorithm(self, algorithm: str) -> None:
        """Import the module of a name module:algorithm; ConfigError if that is not allowed."""
        if ":" in algorithm and algorithm not in ALGORITHMS:
            self._require_imports({"algorithm": algorithm})
            import_algorithm(algorithm)

    def config(self, algorithm: str, settings: dict[str, Any]) -> Any:
        """The Config in stored settings; ConfigError if its algorithm may not be imported."""
        self.import_algorithm(algorithm)
        return from_stored(algorithm_named(algorithm).Config, settings)

    def env(self, env: EnvConfig, given: str | None = None) -> tuple[EnvConfig, list[str]]:
        """The environment to evaluate in, and notices; ConfigError if it may not be made.

        `given` is an id that the user named instead of the run's.
        """
        named = env if given is None else with_id(env, given)
        names = named_modules({"env": to_json(env)})
        if given is not None:
            names.pop(ENV_ID, None)
        can_be_named = ENV_ID in names and len(names) == 1
        self._require_imports(names, _texts(env), env.id if can_be_named else None)
        if self.is_full:
            return named, []
        instead = "this process steps the environments, with the same result"
        notices = [_left_out("env.workers", named.workers, instead)] if named.workers else []
        return dataclasses.replace(named, workers=0, ray_actors=0, ray_address=None), notices

    def with_encoder(self, config: Any, make_encoder: Any) -> Any:
        """The Config with the encoder that was passed in, or its own if that may be imported."""
        if make_encoder is None:
            self._require_imports(named_modules({"encoder": to_json(config).get("encoder")}))
            return config
        wrong = f"make_encoder= is for networks with an encoder, and those of {self.source} have none"
        require("encoder" in flat_settings(config), f"{wrong}; leave it out")
        return replaced(config, passed_encoder(make_encoder))

    def to_train(
        self, config: Any, given: str | None, make_encoder: Any = None, snapshot: dict[str, Any] | None = None
    ) -> tuple[Any, list[str]]:
        """The settings to train with, and notices for the user; ConfigError if not allowed.

        `given` and `make_encoder` are an environment's id and an encoder of the user's own.
        `snapshot` has the values of the snapshot that training continues from.
        """
        if not self.is_full:
            self._require_none([*_processes(config), *_prefill(config), *_attributes(snapshot)], None)
        config = self.with_encoder(config, make_encoder)
        env, notices = self.env(config.env, given)
        run = config.run
        if not self.is_full and run.wandb is not None:
            run = dataclasses.replace(run, wandb=None)
            notices.append(_left_out("run.wandb", config.run.wandb, "nothing is sent to Weights & Biases"))
        if not self.is_full and run.trackio is not None:
            run = dataclasses.replace(run, trackio=None)
            notices.append(_left_out("run.trackio", config.run.trackio, "nothing is logged to that project"))
        return dataclasses.replace(config, env=env, run=run), notices

    def _require_imports(self, names: dict[str, str], risks: Sequence[str] = (), env_id: str | None = None) -> None:
        """Make modules of the user's own run findable; refuse those of other runs, and risks."""
        if self.own:
            for name in names.values():
                _make_findable(name)
        elif not self.trust:
            self._require_none([*_imports(names), *risks], env_id)

    def _require_none(self, risks: list[str], env_id: str | None) -> None:
        """Raise ConfigError if there are risks. With another `env_id` they may be avoided."""
        names_module = env_id is not None and ":" in env_id
        other = f", or name the environment yourself: --env {env_id} (env= in Python)" if names_module else ""
        remedy = f"if you trust it, use --trust (trust=True in Python){other}"
        require(not risks, f"{self.source} was not made here, or not by you: {'; '.join(risks)}; {remedy}")


def consent_to(algorithm: str, settings: dict[str, Any], signature: str | None, source: Path, trust: bool) -> Consent:
    """The permissions of these settings, which are in the file or directory `source`."""
    return Consent(source, is_own(algorithm, settings, signature), trust)


def is_own(algorithm: str, settings: dict[str, Any], signature: str | None) -> bool:
    """True if this user signed these settings, and their module is still in the same directory."""
    secret = _read_secret()
    if secret is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(_signature(secret, algorithm, settings).encode(), signature.encode(errors="replace"))


def sign(algorithm: str, settings: dict[str, Any]) -> str | None:
    """The signature of a run's settings; None if no secret can be stored."""
    secret = _read_secret() or _create_secret()
    return None if secret is None else _signature(secret, algorithm, settings)


def own_notices(config: Any) -> list[str]:
    """Notices about functions that only this process has, and about a run that cannot be signed."""
    return [*_local_notice(config), *_unsigned_notice(config)]


def named_modules(settings: dict[str, Any]) -> dict[str, str]:
    """The names module:something in settings, given as JSON, by the setting that has them."""
    env = settings.get("env")
    env = env if isinstance(env, dict) else {}
    wrappers = env.get("wrappers")
    listed = wrappers if isinstance(wrappers, list) else []
    paths = [wrapper.get("path") if isinstance(wrapper, dict) else wrapper for wrapper in listed]
    names = {ENV_ID: env.get("id"), "encoder": settings.get("encoder")}
    names |= {f"env.wrappers[{number}]": path for number, path in enumerate(paths)}
    return {
        setting: name
        for setting, name in names.items()
        if isinstance(name, str) and name.rpartition(":")[0] and not is_local(name)
    }


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
    homes = {setting: _home_of(name) for setting, name in names.items()}
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
    """True if there is text among these JSON values; names are not counted."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, str) or any(map(_has_text, parts))


def _left_out(name: str, value: object, instead: str) -> str:
    return f"{name} {value!r} is left out, because this run was not made here: {instead}; --trust allows it"


def _local_notice(config: Any) -> list[str]:
    """A notice for a run that uses functions or classes that only this process has."""
    encoder = str(flat_settings(config).get("encoder"))
    names = [config.env.id, *(wrapper.path for wrapper in config.env.wrappers), encoder]
    own = ", ".join(name.rpartition(":")[2] for name in names if is_local(name))
    remedy = "put it into a module, and birl eval, birl resume and workers find it"
    return [f"{own} is of this script, so only this script can resume and evaluate the run; {remedy}"] if own else []


def _unsigned_notice(config: Any) -> list[str]:
    """A notice for a run that cannot be signed, and will need --trust later."""
    risks = [*_imports(named_modules(to_json(config))), *_texts(config.env), *_processes(config), *_prefill(config)]
    if not risks or _read_secret() or _create_secret():
        return []
    place = data_directory() or f"the home directory, which is unknown; set {DATA_DIRECTORY}"
    return [f"this run is not signed, so birl eval and resume will need --trust: no secret can be stored in {place}"]


def _make_findable(name: str) -> None:
    """Let the module of a user's own run be imported from the directory that was signed."""
    home = _home_of(name)
    if home is not None and _spec_of(_package(name)) is None:
        sys.path.append(home)


def _home_of(name: str) -> str | None:
    """The directory of the module in module:something; None if it is not found.

    Nothing is imported. For a module inside packages it is the directory of the outermost package,
    because looking into a package imports it. The current directory is searched last, as the
    command line does.
    """
    package = _package(name)
    if not package:
        return None
    spec = _spec_of(package) or importlib.machinery.PathFinder.find_spec(package, [os.getcwd()])
    if spec is None:
        return None
    if spec.submodule_search_locations:  # a package, with or without __init__.py
        return os.path.realpath(os.path.dirname(next(iter(spec.submodule_search_locations))))
    return os.path.realpath(os.path.dirname(spec.origin)) if spec.has_location and spec.origin else None


def _package(name: str) -> str:
    return name.rpartition(":")[0].partition(".")[0]


def _spec_of(package: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(package)
    except (ValueError, ImportError):  # __main__, and strings that are not module names
        return None


def _signature(secret: bytes, algorithm: str, settings: dict[str, Any]) -> str:
    names = named_modules(settings) | ({"algorithm": algorithm} if ":" in algorithm else {})
    homes = {setting: _home_of(name) for setting, name in names.items()}
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
