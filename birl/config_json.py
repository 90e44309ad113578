"""Settings from JSON or Python values, and back to JSON.

Every Config checks its fields with `check_fields` when it is made, by the same rules as
`from_json`. So a wrong value is refused with the same message from Python, from the command line
and from a file.
"""

import dataclasses
import os
import re
import sys
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, dataclass_transform, runtime_checkable

from birl.errors import ConfigError, by_use, cut, require
from birl.functions import name_of_function
from birl.settings import FLAT_PARTS, hints_in_files

Kind = TypeVar("Kind", bound=type)

FUNCTION_NAME = re.compile(r"\w[\w.]*:\w[\w.-]*")  # module:function, or local:name
BEFORE = {"scale_actions": False}  # what a stored config means that has no such field yet, if it is not the default
NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}


@runtime_checkable
class HasToList(Protocol):
    """A NumPy or JAX array or scalar."""

    def tolist(self) -> Any: ...


@runtime_checkable
class ReadsText(Protocol):
    """A settings type that may be written as one string."""

    TEXTS: ClassVar[str]  # examples, for error messages

    def from_text(self, text: str) -> Any:
        """The settings that this string stands for; ValueError if there are none."""


@runtime_checkable
class ReadsFunction(Protocol):
    """A settings type that may be given as a function, which is sampled: settings are data."""

    def from_function(self, function: Any) -> Any:
        """The settings that this function stands for; ValueError if there are none."""


class RemovedField(NamedTuple):
    """A field of an older version, which a stored config may still have."""

    default: Any  # a stored field with this value is ignored; with ... any value
    remedy: str = ""  # what to do about any other value


@runtime_checkable
class HasRemovedFields(Protocol):
    """A settings type of which an older version had more fields."""

    REMOVED_FIELDS: ClassVar[dict[str, RemovedField]]


def to_json(config: Any) -> Any:
    """A dataclass as JSON values: nested dataclasses become objects, tuples become lists.

    The settings of a Config's parts are flat, but for those of the environment and of the run.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values: dict[str, Any] = {}
        for known in dataclasses.fields(config):
            value = getattr(config, known.name)
            values |= to_json(value) if type(value) in FLAT_PARTS else {known.name: to_json(value)}
        names = hints_in_files(type(config))
        return {name: value for name, value in values.items() if name in names}
    if isinstance(config, dict):
        return {key: to_json(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return [to_json(value) for value in config]
    return str(config) if isinstance(config, Path) else config


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def part(kind: Kind) -> Kind:
    """The class as a part of Configs: a frozen dataclass that checks its values when it is made."""
    made = checked(kind)
    FLAT_PARTS.add(made)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def checked(kind: Kind) -> Kind:
    """The class as a frozen dataclass that checks its values when it is made."""
    kind.__post_init__ = check_fields  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(kind)  # type: ignore[return-value]


def check_fields(config: Any) -> None:
    """Convert each field of a new Config to its annotated type; ConfigError if one does not fit.

    Every Config calls this in its `__post_init__`.
    """
    hints = _hints_of_fields(config.__class__)
    for known in dataclasses.fields(config):
        object.__setattr__(config, known.name, from_json(hints[known.name], getattr(config, known.name), known.name))


def from_json(kind: Any, value: Any, where: str = "config") -> Any:
    """The value converted to this type; ConfigError with its path if it does not fit.

    Whole floats become ints, lists and arrays become tuples, NumPy and JAX numbers become Python's,
    and a string becomes what the type reads from it.
    """
    if kind is Any:
        return value
    origin = typing.get_origin(kind)
    value = value.tolist() if isinstance(value, HasToList) else value
    if origin in (typing.Union, types.UnionType):
        return _first_match(kind, value, where)
    if origin is Literal:
        options = typing.get_args(kind)
        require(type(value) is str and value in options, f"{where} {cut(value)} is not one of {', '.join(options)}")
        return value
    if origin is tuple:
        require(isinstance(value, list | tuple), f"{where} must be a list, not {cut(value)}")
        return tuple(from_json(typing.get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        require(isinstance(value, dict), f"{where} must be an object, not {cut(value)}")
        for key in value:
            require(isinstance(key, str), f"{where} has the key {cut(key)}; use strings")
        return {key: from_json(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    return _read_plain(kind, value, where)


def from_stored(kind: Any, values: Any, where: str = "config") -> Any:
    """The Config of a run, a search or a policy file, which an older version may have written."""
    if isinstance(values, dict):
        names = hints_of(kind)
        values = {name: before for name, before in BEFORE.items() if name in names} | values
    return from_json(kind, values, where)


def _read_plain(kind: type, value: Any, where: str) -> Any:
    """A number, boolean or string. Nothing is rounded: a float given for an int must be whole."""
    if kind is float and type(value) in (int, float):
        require(-sys.float_info.max <= value <= sys.float_info.max, f"{where} {cut(value)} must be a finite number")
        return float(value)
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    require(type(value) is kind, f"{where} must be {_noun(kind)}, not {_describe(kind, value)}")
    return value


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if type(value) is kind:
        return value
    if isinstance(kind, ReadsText) and isinstance(value, str):
        try:
            return kind.from_text(value)
        except ValueError as problem:
            raise ConfigError(f"{where}: {problem}") from problem
    if isinstance(kind, ReadsFunction) and _is_function(value):
        try:
            return kind.from_function(value)
        except ValueError as problem:
            raise ConfigError(f"{where}: {problem}") from problem
    require(isinstance(value, dict), f"{where} must be {_noun(kind)}, not {_describe(kind, value)}")
    value = _without_removed(kind, value, where)
    names = hints = hints_of(kind)
    unknown = sorted(value.keys() - names.keys())
    require(not unknown, f"{where} has no field {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    given = {name: from_json(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**given)
    except (TypeError, ValueError) as problem:  # a field without a default is missing, or two fields contradict
        raise ConfigError(f"{where} {cut(value)} does not fit: {problem}") from problem


def _without_removed(kind: Any, value: dict[str, Any], where: str) -> dict[str, Any]:
    """The value without fields of older versions; ConfigError if one of them was in use."""
    removed = kind.REMOVED_FIELDS if isinstance(kind, HasRemovedFields) else {}
    for name in removed.keys() & value.keys():
        default, remedy = removed[name]
        ignored = default is ... or value[name] == default
        require(ignored, f"{where}.{name} is {cut(value[name])}: this option was removed; {remedy}")
    return {name: item for name, item in value.items() if name not in removed}


def _first_match(kind: Any, value: Any, where: str) -> Any:
    """The value as the first type of a union that it fits."""
    if value is None and type(None) in typing.get_args(kind):
        return None
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    names = [name for option in options if typing.get_origin(option) is Literal for name in typing.get_args(option)]
    if names and str in options:
        return _read_name(names, value, where)
    exact = [option for option in options if type(value) is option]
    problem = None
    for option in exact or options:
        try:
            return from_json(option, value, where)
        except ConfigError as error:
            reads = dataclasses.is_dataclass(option) and (isinstance(value, str | dict) or _is_function(value))
            problem = error if reads or exact else problem  # says more than a list of types
    raise problem or ConfigError(f"{where} must be {_noun(kind)}, not {_describe(kind, value)}{_instead(where)}")


def _read_name(names: list[str], value: Any, where: str) -> str:
    """One of these names, or module:function; a function itself becomes that."""
    value = name_of_function(value) if callable(value) else value
    is_name = isinstance(value, str) and (value in names or FUNCTION_NAME.fullmatch(value) is not None)
    require(is_name, f"{where} {cut(value)} is not one of {', '.join(names)}, or module:function")
    return value


def _noun(kind: Any) -> str:
    """The name of a type in an error message."""
    if typing.get_origin(kind) is tuple:
        return f"a list (each {_noun(typing.get_args(kind)[0])})"
    if options := [_noun(option) for option in typing.get_args(kind)]:
        return " or ".join([", ".join(options[:-1]), options[-1]] if len(options) > 1 else options)
    return NOUNS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _describe(kind: Any, value: Any) -> str:
    """The value in an error message, with examples of how to write one that fits."""
    texts = [option.TEXTS for option in (typing.get_args(kind) or (kind,)) if isinstance(option, ReadsText)]
    function = ", a function, which can be neither saved nor compiled" if _is_function(value) else ""
    return f"{cut(value)}{function}" + "".join(f"; write it like {text}" for text in texts)


def _instead(where: str) -> str:
    """What to do with a keyword argument that settings cannot hold; "" for other settings."""
    argument = re.search(r"\bkwargs\.(\w+)$", where)
    if argument is None:
        return ""
    function = by_use(f"make_env=lambda: MyEnv({argument[1]}=...)", "a function of yours as the id, my_module:make_env")
    return f"; use {function}, or give the name of a file that the environment reads"


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The annotations of what a file has for a settings class, without what Annotated adds."""
    hints = hints_in_files(kind)
    return typing.get_type_hints(type("Fields", (), {"__annotations__": hints}))


@cache
def _hints_of_fields(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
