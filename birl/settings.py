"""The settings of a Config by flat name: num_envs for env.num_envs. They are flattened only here.

A field whose type is a dataclass is a part of the Config, such as `env` and `env.atari`. The
settings of all parts have names of their own, so that a name without its part is enough: on the
command line, in `birl.train`, in a search space, and to make a Config:

    sac.Config(layer_norm=True)  # SAC's network, with one change

What a setting means is in its field: its type with its limits (limits.py), the comment that is its
help, the values to search (search.py).
"""

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from birl.search import Choices, Dimension, LogRange, Range, SearchSpace

About = TypeVar("About")
Kind = TypeVar("Kind", bound=type)

PARTS = ("env", "atari", "run")  # the parts that are objects in files
FLAT_PARTS: set[type] = set()  # the classes of other parts, whose settings are flat in files, too; see `part`
LEFT_OUT = ("id", "run_dir")  # named in other ways: the environment's id, and a directory for each run
SECTIONS = {"env": "environment", "atari": "Atari", "run": "run"} | dict.fromkeys(
    ("network", "actions", "value"), "network"
)


class Without(tuple[str, ...]):
    """The settings of a part that an algorithm has not, as an annotation of that part."""


class Search(dict[str, Dimension | None]):
    """What an algorithm searches of a part's settings instead of the part's own; None: nothing."""


class Help(NamedTuple):
    """One line for the command line, where the comment behind a field is only its symbol."""

    text: str


class Section(NamedTuple):
    """Where the help shows a setting, if not in the section of its part."""

    name: Literal["network"]


class Constant(NamedTuple):
    """A float that changes the compiled program itself, such as the number of gradient steps."""


CONSTANT = Constant()
IN_NETWORK = Section("network")


class Place(NamedTuple):
    """Where a setting stands in a Config."""

    path: tuple[str, ...]  # the parts around it: ("env", "atari")
    kind: Any  # the dataclass that has the field
    field: dataclasses.Field[Any]
    hint: Any  # the annotation
    search: Dimension | None = None  # the values to search

    def dotted(self, name: str) -> str:
        """The setting's name as files have it: env.atari.frame_skip, learning_rate."""
        return ".".join((*(part for part in self.path if part in PARTS), name))

    @property
    def optional(self) -> bool:
        """Whether the setting may be None."""
        return type(None) in typing.get_args(plain(self.hint))

    @property
    def section(self) -> str:
        """Where the help shows the setting."""
        own = self.about(Section)
        return own[0].name if own else SECTIONS.get(self.path[-1] if self.path else "", "algorithm")

    def about(self, kind: type[About]) -> list[About]:
        """What the annotation says in objects of this type, such as its limits."""
        return [note for note in notes_of(self.hint) if isinstance(note, kind)]

    def part_of(self, config: Any) -> Any:
        """The part of this Config that has the setting."""
        for name in self.path:
            config = getattr(config, name)
        return config

    def default_in(self, kind: type) -> Any:
        """The setting's default in this Config class."""
        if not self.path:
            return _default(self.field)
        outer = next(field for field in dataclasses.fields(kind) if field.name == self.path[0])
        part = _default(outer)
        for name in self.path[1:]:
            part = getattr(part, name)
        return getattr(part, self.field.name)


def accept_flat_names(kind: Kind) -> Kind:
    """The Config class, which also takes the settings of its parts by their flat names."""
    from_fields = kind.__init__  # type: ignore[misc]
    of_parts = {name for name, place in places_of(kind).items() if place.path}

    @functools.wraps(from_fields)
    def initialize(self: Any, *values: Any, **given: Any) -> None:
        flat = {name: given.pop(name) for name in of_parts & given.keys()}
        from_fields(self, *values, **given)
        if flat:
            vars(self).update(vars(replaced(self, flat)))

    kind.__init__ = initialize  # type: ignore[misc]
    return kind


def made(kind: type[About], **settings: Any) -> About:
    """A Config with these settings by flat name, for type checkers that only know its fields."""
    return kind(**settings)


def changed(config: About, **settings: Any) -> About:
    """The Config with these settings by flat name, or parts, for type checkers."""
    return dataclasses.replace(config, **settings)  # type: ignore[type-var]


@cache
def places_of(kind: Any) -> dict[str, Place]:
    """Every setting of this Config class, by flat name."""
    return _places(kind, (), Without(), Search())


def _places(kind: Any, path: tuple[str, ...], without: Without, search: Search) -> dict[str, Place]:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in without}
    parts = {name: hint for name in fields if is_part(hint := hints[name])}
    found = {
        name: Place(path, kind, field, hints[name], search.get(name, _own_search(hints[name])))
        for name, field in fields.items()
        if name not in parts
    }
    for name, hint in parts.items():
        notes = notes_of(hint)
        left_out = Without(one for note in notes if isinstance(note, Without) for one in note)
        changed = Search({one: to for note in notes if isinstance(note, Search) for one, to in note.items()})
        more = _places(plain(hint), (*path, name), left_out, changed)
        if twice := (found.keys() | parts.keys()) & more.keys():
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} has {', '.join(sorted(twice))} in two places")
        found |= more
    return found


@cache
def left_out_settings(kind: Any) -> dict[str, str]:
    """The settings of its parts that this Config class has not, and the part of each."""
    hints = typing.get_type_hints(kind, include_extras=True)
    notes = [(field.name, note) for field in dataclasses.fields(kind) for note in notes_of(hints[field.name])]
    return {name: part for part, note in notes if isinstance(note, Without) for name in note}


def is_part(hint: Any) -> bool:
    """Whether a field with this annotation is a part of a Config: another dataclass."""
    kind = plain(hint)
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def plain(hint: Any) -> Any:
    """The annotation without what `Annotated` says."""
    if typing.get_origin(hint) is Annotated:
        return plain(typing.get_args(hint)[0])
    return functools.reduce(operator.or_, map(plain, typing.get_args(hint))) if _is_union(hint) else hint


def notes_of(hint: Any) -> list[Any]:
    """What `Annotated` says, also within a union."""
    hints = typing.get_args(hint) if _is_union(hint) else (hint,)
    return [note for one in hints if typing.get_origin(one) is Annotated for note in one.__metadata__]


def _own_search(hint: Any) -> Dimension | None:
    return next((note for note in notes_of(hint) if isinstance(note, Range | LogRange | Choices)), None)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def declared_search(kind: Any) -> SearchSpace:
    """What to search of this Config class's settings, by flat name."""
    return {name: place.search for name, place in places_of(kind).items() if place.search is not None}


def hints_in_files(kind: Any) -> dict[str, Any]:
    """The annotations of the fields that a file has for this dataclass, with all of `Annotated`."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    flat = {name for name, hint in found.items() if plain(hint) in FLAT_PARTS}
    places = places_of(kind).items() if flat else ()
    own = {name: hint for name, hint in found.items() if name not in flat}
    return own | {name: place.hint for name, place in places if place.path and place.path[0] in flat}


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


def home_of(kind: type) -> str:
    """Where the algorithm of this Config class is, as in ALGORITHMS: `module`, or `module:name`."""
    name = kind.__qualname__.rpartition(".")[0]
    return f"{kind.__module__}:{name}" if name else kind.__module__


def own_name(kind: type) -> str:
    """The last part of where it is, which is its name in Python."""
    return home_of(kind).replace(":", ".").rpartition(".")[2]
