"""Settings to begin with instead of a preset's: those of another run, or those in a file."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from birl.config import ConfigError, Wrapper, require
from birl.errors import cut
from birl.maths import schedules
from birl.registry import import_algorithm
from birl.run.directory import StoredSettings, read_settings
from birl.run.evaluate import PASSED_IN
from birl.run.files import parse_json, read_bytes
from birl.run.trust import allowed_run, config_in, is_own
from birl.settings import PARTS, flat_settings


class Source(NamedTuple):
    """Settings from a run or a file. What it does not say is None or left out."""

    name: str  # for messages
    algorithm: str | None
    env_id: str | None
    settings: dict[str, Any]  # by flat name: num_envs, not env.num_envs
    notices: list[str]


def like_run(run_dir: str | Path, env_id: str | None = None, trust: bool = False) -> Source:
    """The settings of a run, without its run_dir; `env_id` replaces its environment.

    A run that was made elsewhere or by someone else may name a module or start processes only with
    `trust`, as when it is resumed.
    """
    return _of_run(read_settings(Path(run_dir)), str(run_dir), env_id, trust)


def from_file(path: str | Path, env_id: str | None = None, trust: bool = False) -> Source:
    """The settings in a JSON or TOML file.

    Names are flat, or nested as in a run's config.json. `algorithm` and `env` may be among them. A
    run's config.json itself is taken as that run, see `like_run`.
    """
    path = Path(path)
    found = _read(path)
    match found:
        case {"algorithm": str(algorithm), "config": dict(values)}:
            stored = StoredSettings(algorithm, values, found.get("signature"), path)
            return _of_run(stored, str(path), env_id, trust)
    settings = _flat(found)
    algorithm = settings.pop("algorithm", None)
    env = settings.pop("env", settings.pop("id", None))
    for name, value in {"algorithm": algorithm, "env": env}.items():
        require(value is None or isinstance(value, str), f"{path}: {name} must be a string, not {cut(value)}")
    if trust and algorithm is not None:
        algorithm = import_algorithm(algorithm)
    return Source(str(path), algorithm, env_id or env, settings, [])


def _of_run(stored: StoredSettings, name: str, env_id: str | None, trust: bool) -> Source:
    own = is_own(stored.algorithm, stored.values, stored.signature)
    config = config_in(stored.algorithm, stored.values, own, trust, stored.source)
    config, notices = allowed_run(config, own, trust, env_id, stored.source)
    wrong = f"{name} was trained on environments that were passed in, which Birl cannot make"
    require(config.env.id != PASSED_IN, f"{wrong}; name an environment")
    if stored.changes:
        after = f"after {stored.changes[-1].env_steps:,} steps"
        notices.append(f"{name} got its settings by a resume {after}: it did not begin with them")
    return Source(name, stored.algorithm, config.env.id, flat_settings(config), notices)


def value_text(value: Any) -> str:
    """A setting's value as it is written on the command line; "" for an empty tuple or dict."""
    match value:
        case schedules.Schedule():
            return schedules.shown(value)
        case Wrapper():
            return value.text()
        case tuple():
            return " ".join(map(value_text, value))
        case dict():
            return " ".join(f"{name} {value_text(item)}" for name, item in value.items())
        case float():
            short = f"{value:g}"
            return short if float(short) == value else str(value)
    return str(value)


def _read(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    if path.suffix == ".toml":
        try:
            return tomllib.loads(content.decode())
        except (ValueError, RecursionError) as problem:  # UnicodeDecodeError and TOMLDecodeError too
            raise ConfigError(f"{path} is not TOML: {problem}") from problem
    require(path.suffix == ".json", f"{path} must end in .json or .toml")
    found = parse_json(content, path)
    require(isinstance(found, dict), f"{path} must hold an object with settings")
    return found


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by their flat names; names may be written with dashes."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        name = name.replace("-", "_")
        found = _flat(value) if name in PARTS and isinstance(value, dict) else {name: value}
        twice = sorted(flat.keys() & found.keys())
        require(not twice, f"setting {', '.join(twice)} is given twice")
        flat |= found
    return flat
