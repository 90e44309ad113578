"""Algorithms by name, and whether their settings can work."""

import importlib
from typing import Any

from birl import ALGORITHMS
from birl.config import require, validate_run


def algorithm_named(name: str) -> Any:
    """The module of that algorithm (see types.Algorithm)."""
    require(name in ALGORITHMS, f"algorithm {name!r} is unknown; use one of {', '.join(ALGORITHMS)}")
    return importlib.import_module(ALGORITHMS[name])


def name_of(config: Any) -> str:
    """The algorithm whose Config this is."""
    names = {module: name for name, module in ALGORITHMS.items()}
    home = type(config).__module__
    require(home in names, f"{config!r} is not the Config of an algorithm; use birl.ppo.Config or one of its siblings")
    return names[home]


def validate(name: str, config: Any) -> None:
    """Raise ConfigError if these settings cannot work."""
    validate_run(config.run)
    algorithm_named(name).validate(config)
