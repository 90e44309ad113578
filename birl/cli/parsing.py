"""Reading options with tyro: numbers as people write them, and errors in one line."""

import contextlib
import dataclasses
import inspect
import io
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from birl.cli.numbers import real_number, whole_number
from birl.config import ConfigError, require
from birl.errors import TERMINAL_CODES, suggest_setting

Result = TypeVar("Result")
READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("INT", whole_number), float: ("FLOAT", real_number), str: ("STR", str), Path: ("PATH", Path)
}  # fmt: skip


def parse(kind: Callable[..., Result], words: list[str], prog: str, **options: Any) -> Result:
    """What tyro reads from these words; ConfigError in one line if it cannot.

    `options` are tyro's. A nested dataclass has the names of its fields.
    """
    with reading_rules(), errors_in_one_line():
        found, unknown = tyro.cli(kind, args=words, prog=prog, return_unknown_args=True, **options)
    require_no_unknown(unknown, prog, prog, [f"--{name.replace('_', '-')}" for name in _names(kind)])
    return found


def require_no_unknown(words: list[str], owner: str, prog: str, known: Iterable[str]) -> None:
    """Raise ConfigError if words are left that are no options, with what the user may mean.

    `known` are the options of the owner, such as --total-steps.
    """
    remedy = f"{prog} --help shows the options"
    for word in words:
        name = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", name):
            meant = suggest_setting(name.replace("--no-", "--", 1), known)
            raise ConfigError(f"{owner} has no option {name}; {meant or remedy}")
        is_truth = word.casefold() in ("true", "false", "yes", "no", "0", "1")
        remedy = "a switch takes no value: write --name or --no-name" if is_truth else remedy
    require(not words, f"{prog} cannot use {' '.join(map(repr, words))}; {remedy}")


def reading_rules() -> ConstructorRegistry:
    """tyro's rules for numbers, texts, paths, choices, several of them, and keyword arguments.

    Any of them may be None where its type allows it; the text of the option says what that means.
    """
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def value_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        """One value, several, or None. tyro's own messages and words for types are long."""
        types = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else (info.type,)
        optional = NoneType in types
        kinds = [kind for kind in types if kind is not NoneType]
        several = len(kinds) == 1 and get_origin(kinds[0]) is tuple and get_args(kinds[0])[-1] is ...
        reader = _reader(get_args(kinds[0])[0] if several else kinds[0]) if len(kinds) == 1 else None
        if reader is None or (several and tyro.conf.UseAppendAction in info.markers):
            return None
        metavar, read, is_one = reader

        def from_words(given: list[str]) -> Any:
            if optional and given == ["None"]:
                return None
            return tuple(map(read, given)) if several else read(given[0])

        def to_words(value: Any) -> list[str]:
            return [str(one) for one in value] or ["none"] if isinstance(value, tuple) else [str(value)]

        return PrimitiveConstructorSpec(
            nargs="*" if several else 1,
            metavar=f"[{metavar} ...]" if several else metavar,
            instance_from_str=from_words,
            is_instance=lambda value: isinstance(value, tuple) if several else is_one(value),
            str_from_instance=to_words,
        )

    @registry.primitive_rule
    def arguments_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        """Keyword arguments as pairs. Their types are not known, so 100k stays a text."""
        if get_origin(info.type) is not dict:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME VALUE ...]",
            instance_from_str=_read_pairs,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [str(part) for pair in value.items() for part in pair] or ["none"],
        )

    return registry


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn the box in which tyro prints an error into a ConfigError."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as exit:
        if exit.code == 0:
            raise
        raise ConfigError(box_text(printed.getvalue())) from None


def box_text(box: str) -> str:
    """The message in a box that tyro prints, as one line.

    The box is drawn with lines, and the title is in the upper one; or it is drawn with dashes, and
    the title is above them.
    """
    lines = [line.strip("│ \t") for line in TERMINAL_CODES.sub("", box).splitlines()]
    rules = [number for number, line in enumerate(lines) if re.match(r"[╭╰─]|-{5}", line)]
    if not rules:
        return " ".join(box.split())
    end = next((number for number in rules if number > rules[0]), len(lines))
    text = " ".join(lines[rules[0] + 1 : end]).strip().removeprefix("Error parsing ").rstrip(".")
    return re.sub(r"^Missing value for argument '(\S+)'.*", r"\1 needs a value", text)


def _names(kind: Any) -> Iterator[str]:
    """The names of a function's or a dataclass's arguments, and those of their fields."""
    for parameter in inspect.signature(kind).parameters.values():
        yield parameter.name
        if dataclasses.is_dataclass(parameter.default):
            yield from _names(type(parameter.default))


def _reader(kind: Any) -> tuple[str, Callable[[str], Any], Callable[[Any], bool]] | None:
    """A word for a type, what reads its values and tells them; None: tyro has a rule."""
    if get_origin(kind) is Literal:
        options = get_args(kind)
        return "{" + ",".join(options) + "}", partial(_one_of, options=options), options.__contains__
    return (*READERS[kind], lambda value: isinstance(value, kind)) if kind in READERS else None


def _one_of(text: str, options: tuple[str, ...]) -> str:
    if text not in options:
        raise ValueError(f"{text!r} is not one of {', '.join(options)}")
    return text


def _read_pairs(given: list[str]) -> dict[str, bool | int | float | str]:
    if len(given) % 2:
        raise ValueError(f"{' '.join(given)!r} must be pairs of a name and a value, for example: gravity 9.8")
    return {name: _plain_value(text) for name, text in zip(given[::2], given[1::2], strict=True)}


def _plain_value(text: str) -> bool | int | float | str:
    for read in (_truth, int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


def _truth(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"
