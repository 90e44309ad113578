"""An algorithm under another name, with other defaults: QR-DQN is DQN that learns quantiles."""

import functools
import sys
from collections.abc import Callable
from dataclasses import fields
from types import ModuleType
from typing import Any

from birl.checks import require_config
from birl.traced import settings


def variant(module: str, name: str, **defaults: Any) -> ModuleType:
    """The algorithm of this module under another name, with other defaults (see types.Algorithm).

    Its Config has the same settings, and is a class of its own.
    """
    algorithm = vars(sys.modules[module])
    base = algorithm["Config"]
    own = {
        "__doc__": base.__doc__,
        "__module__": module,
        "__qualname__": f"{name}.Config",  # where other processes find it
        "__annotations__": base.__annotations__,
        "__wrapped__": base,  # whose source has the settings' help texts
    }
    start = base(**defaults)
    kind = settings(type("Config", (), own | {one.name: getattr(start, one.name) for one in fields(base)}))

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(config: Any, *inputs: Any, **options: Any) -> Any:
            require_config(config, kind)
            return function(config, *inputs, **options)

        return call

    found = ModuleType(f"birl.{name}", algorithm["__doc__"])
    vars(found).update({key: value for key, value in algorithm.items() if not key.startswith("__")})
    vars(found).update({"Config": kind} | {key: checked(algorithm[key]) for key in ("validate", "init", "train")})
    return found
