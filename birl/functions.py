"""Functions that a user passes in, by name: settings are data, and a function is not.

A function that other processes can import has the name "module:function". Any other, such as a
lambda or a function of the script itself, is kept in this process and has the name "local:name".
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from birl.errors import ConfigError, by_use

PASSED_AS = {"env.id": "make_env", "encoder": "make_encoder"}  # arguments, in Python, that take a function
LOCAL = "local"  # the module in the name of a function that only this process has

_local: dict[str, Callable[..., Any]] = {}


def name_of_function(function: Callable[..., Any]) -> str:
    """The name by which `function_named` finds this function again."""
    module, qualname = _place(function)
    if module in sys.modules and module != "__main__" and _attribute(sys.modules[module], qualname) is function:
        return f"{module}:{qualname}"
    return f"{LOCAL}:{_keep(function, qualname.rpartition('.')[2].strip('<>'))}"


def passed_encoder(make_encoder: Callable[..., Any] | None) -> dict[str, str]:
    """The setting that an encoder stands for which the user passes in; {} without one."""
    return {} if make_encoder is None else {"encoder": name_of_function(make_encoder)}


def function_named(name: str, setting: str) -> Callable[..., Any]:
    """The function or class that a setting names; ConfigError if there is none."""
    module, _, qualname = name.rpartition(":")
    if module == LOCAL:
        if qualname not in _local:
            wrong = f"{setting} {name!r} is a function that only the process has that it was passed to"
            again = f"pass it again as {PASSED_AS[setting]}=, or " if setting in PASSED_AS else ""
            named = " and name it: --env my_module:make_env" if setting == "env.id" else ""
            moved = "put it into a module that can be imported"
            raise ConfigError(f"{wrong}; {by_use(again + moved, moved + named)}")
        return _local[qualname]
    try:
        found = _attribute(importlib.import_module(module), qualname)
    except ModuleNotFoundError as problem:
        raise ConfigError(f"{setting} {name!r} cannot be imported: {problem}") from problem
    if not callable(found):
        raise ConfigError(f"{setting} {name!r}: module {module} has no function or class {qualname}")
    return found


def is_local(name: str) -> bool:
    """Whether a name is that of a function that only this process has."""
    return name.startswith(f"{LOCAL}:")


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and the name that a function says it has; a partial or an instance has neither."""
    is_named = isinstance(function, type) or "__qualname__" in dir(function)
    named: Any = function if is_named else type(function)
    return named.__module__, named.__qualname__


def _attribute(module: ModuleType, qualname: str) -> Any:
    """The attribute at this dotted path; None if there is none."""
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _keep(function: Callable[..., Any], name: str) -> str:
    """Keep a function in this process; its name, numbered if another function has it."""
    number = 1
    while _local.setdefault(numbered := name if number == 1 else f"{name}-{number}", function) is not function:
        number += 1
    return numbered
