"""Settings by flat name: each stands in one place of a Config, and is found and changed there."""

import dataclasses
import types
import typing
from dataclasses import dataclass, field

import pytest

import birl
from birl.config import AtariConfig, EnvConfig
from birl.registry import algorithm_named
from birl.settings import PARTS, dotted_settings, flat_settings, places_of, replaced


@dataclass(frozen=True)
class Inner:
    depth: int = 3


@dataclass(frozen=True)
class Part:
    width: int = 2
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Config:
    id: str = "none"
    part: Part = field(default_factory=Part)
    rate: float = 0.5


@dataclass(frozen=True)
class Ambiguous:
    width: int = 1
    part: Part = field(default_factory=Part)


def test_every_setting_has_a_flat_and_a_dotted_name():
    assert flat_settings(Config()) == {"rate": 0.5, "width": 2, "depth": 3}
    assert dotted_settings(Config()) == {"id": "none", "rate": 0.5, "part.width": 2, "part.inner.depth": 3}
    assert places_of(Config)["depth"].kind is Inner


def test_settings_are_replaced_where_they_stand_and_nothing_else_is():
    changed = replaced(Config(), {"depth": 7, "rate": 0.25})
    assert changed == Config(part=Part(inner=Inner(7)), rate=0.25)
    assert replaced(Config(), {}) == Config()
    with pytest.raises(KeyError, match="height"):
        replaced(Config(), {"height": 1})


def test_a_name_in_two_parts_is_a_mistake_in_the_config():
    with pytest.raises(TypeError, match="Ambiguous has width in two parts"):
        places_of(Ambiguous)


@pytest.mark.parametrize("algorithm", birl.ALGORITHMS)
def test_flat_names_of_an_algorithm_are_unambiguous_and_its_parts_are_known(algorithm):
    config = algorithm_named(algorithm).Config(env=EnvConfig("ALE/Pong-v5", atari=AtariConfig(frame_skip=7)))
    assert flat_settings(config)["frame_skip"] == 7
    assert {name for place in places_of(type(config)).values() for name in place.path} <= set(PARTS)
    assert {name for name, place in places_of(type(config)).items() if not place.path} == {
        one.name for one in dataclasses.fields(config)
    } - {"env", "run"}


def kinds_of(hint: object) -> frozenset[object]:
    """The types of a setting, but None; a choice of names is a choice in all algorithms."""
    several = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if several else (hint,)
    return frozenset(typing.get_origin(kind) or kind for kind in kinds) - {types.NoneType}


def test_a_name_has_one_type_in_all_algorithms():
    found: dict[str, set[frozenset[object]]] = {}
    for algorithm in birl.ALGORITHMS:
        for name, place in places_of(algorithm_named(algorithm).Config).items():
            found.setdefault(name, set()).add(kinds_of(place.hint))
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}
