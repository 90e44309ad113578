"""The settings of a Config by flat name: num_envs for env.num_envs. They are flattened only here.

A field whose type is a dataclass is a part of the Config, such as `env` and `env.atari`. The
settings of all parts have names of their own, so that a name without its part is enough: on the
command line, in `birl.train` and in a search space.
"""

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

About = TypeVar("About")

PARTS = ("env", "atari", "run")  # the names of all parts, for files that do not name the algorithm
LEFT_OUT = ("id", "run_dir")  # named in other ways: the environment's id, and a directory for each run


class Place(NamedTuple):
    """Where a setting stands in a Config."""

    path: tuple[str, ...]  # the parts around it: ("env", "atari")
    kind: Any  # the dataclass that has the field
    field: dataclasses.Field[Any]
    hint: Any  # the annotation

    def dotted(self, name: str) -> str:
        """The setting's name with its parts: env.atari.frame_skip."""
        return ".".join((*self.path, name))

    @property
    def optional(self) -> bool:
        """Whether the setting may be None."""
        return type(None) in typing.get_args(plain(self.hint))

    def about(self, kind: type[About]) -> list[About]:
        """What the annotation says in objects of this type, such as its limits."""
        hints = typing.get_args(self.hint) if _is_union(self.hint) else (self.hint,)
        notes = [note for hint in hints if typing.get_origin(hint) is Annotated for note in hint.__metadata__]
        return [note for note in notes if isinstance(note, kind)]

    def part_of(self, config: Any) -> Any:
        """The part of this Config that has the setting."""
        for name in self.path:
            config = getattr(config, name)
        return config


@cache
def places_of(kind: Any) -> dict[str, Place]:
    """Every setting of this Config class, by flat name."""
    return _places(kind, ())


def _places(kind: Any, path: tuple[str, ...]) -> dict[str, Place]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    parts = {name: hint for name in fields if dataclasses.is_dataclass(hint := hints[name]) and isinstance(hint, type)}
    found = {name: Place(path, kind, field, hints[name]) for name, field in fields.items() if name not in parts}
    for name, part in parts.items():
        more = _places(part, (*path, name))
        if twice := found.keys() & more.keys():
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} has {', '.join(sorted(twice))} in two parts")
        found |= more
    return found


def plain(hint: Any) -> Any:
    """The annotation without what `Annotated` says."""
    if typing.get_origin(hint) is Annotated:
        return plain(typing.get_args(hint)[0])
    return functools.reduce(operator.or_, map(plain, typing.get_args(hint))) if _is_union(hint) else hint


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def flat_settings(config: Any) -> dict[str, Any]:
    """Every setting of a Config by its flat name, but not env.id and run_dir."""
    return {
        name: getattr(place.part_of(config), name)
        for name, place in places_of(config.__class__).items()
        if name not in LEFT_OUT
    }


def dotted_settings(config: Any) -> dict[str, Any]:
    """Every setting of a Config by its dotted name: learning_rate, env.num_envs, run.seed."""
    places = places_of(config.__class__)
    return {place.dotted(name): getattr(place.part_of(config), name) for name, place in places.items()}


def replaced(config: Any, settings: Mapping[str, Any]) -> Any:
    """The Config with these settings, by flat name; KeyError if one is unknown."""
    places = places_of(config.__class__)
    changes: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, value in settings.items():
        changes.setdefault(places[name].path, {})[name] = value
    return _replaced(config, (), changes)


def _replaced(part: Any, path: tuple[str, ...], changes: dict[tuple[str, ...], dict[str, Any]]) -> Any:
    """This part of a Config with the changes at and below its path."""
    inner = {below[len(path)] for below in changes if below[: len(path)] == path and len(below) > len(path)}
    parts = {name: _replaced(getattr(part, name), (*path, name), changes) for name in inner}
    return dataclasses.replace(part, **changes.get(path, {}), **parts)
