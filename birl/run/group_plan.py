"""Which runs a group has: every combination of swept settings, with every seed. Pure data."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from birl.config import ConfigError, Wrapper, require
from birl.errors import suggest_setting
from birl.maths import schedules
from birl.registry import name_of
from birl.settings import flat_settings

MOST_SEEDS = 10_000  # more is surely a mistake
NAME_LENGTH = 60  # of the text of a value in a directory's name

Configure = Callable[[dict[str, Any]], Any]  # from swept settings, by flat name, to a Config


class Lane(NamedTuple):
    """One run of a group."""

    name: str  # its directory within the group's: seed-1, or learning_rate=0.0003/seed-1
    seed: int
    settings: dict[str, Any]  # the swept settings by flat name; {} without a sweep
    config: Any


class GroupPlan(NamedTuple):
    """What a group trains."""

    algorithm: str
    config: Any  # the Config without the swept settings
    seeds: tuple[int, ...]
    sweep: dict[str, tuple[Any, ...]]  # the values of each swept setting
    lanes: tuple[Lane, ...]  # in the order in which they start


def plan_group(configure: Configure, sweep: Mapping[str, Iterable[Any]], seeds: int) -> GroupPlan:
    """The lanes of a sweep with this many seeds each; ConfigError if a setting cannot be swept.

    `configure` gives the Config of swept settings, as if they were options. The first seed is that
    of the Config. The first seed of every combination comes first, for an early comparison.
    """
    base = configure({})
    require(1 <= seeds <= MOST_SEEDS, f"seeds {seeds} must lie between 1 and {MOST_SEEDS:,}")
    given = {name: _values(name, values, base) for name, values in sweep.items()}
    points = [_configured(configure, point) for point in crossed_values(given)]
    names = _point_names([settings for settings, _ in points])
    numbers = tuple(base.run.seed + index for index in range(seeds))
    lanes = [
        Lane(f"{name}/seed-{seed}" if name else f"seed-{seed}", seed, settings, _with_seed(config, seed))
        for seed in numbers
        for name, (settings, config) in zip(names, points, strict=True)
    ]
    used = {name: tuple(_distinct(settings[name] for settings, _ in points)) for name in given}
    return GroupPlan(name_of(base), base, numbers, used, tuple(lanes))


def crossed_values(sweep: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values, by name; [{}] if nothing is swept."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def value_name(value: Any) -> str:
    """A value as part of a directory's name: letters, digits and . + = - _ only."""
    match value:
        case schedules.Schedule():
            text = schedules.shown(value)
        case Wrapper():
            text = value.text()
        case tuple():
            text = "x".join(map(value_name, value)) or "none"
        case dict():
            text = "-".join(f"{name}-{value_name(item)}" for name, item in value.items()) or "none"
        case _:
            text = str(value)
    return re.sub(r"[^\w.+=-]+", "-", text)[:NAME_LENGTH]


def _values(name: str, values: Iterable[Any], base: Any) -> list[Any]:
    """The values of a swept setting; ConfigError if the setting is unknown or has none."""
    known = flat_settings(base)
    require(name != "seed", "sweep seed: seeds are not swept; use --seeds 5 (seeds=5 in Python), which crosses with it")
    require(name != "run_dir", "sweep run_dir: each run of a group has a directory of its own below run_dir")
    algorithm = name_of(base)
    if name not in known:
        remedy = suggest_setting(name, known) or f"birl train {algorithm} --help lists them"
        raise ConfigError(f"sweep {name}: {algorithm} has no such setting; {remedy}")
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    require(is_list, f"sweep {name} {values!r} is not a list of values; write [{values!r}]")
    found = list(values)
    require(len(found) > 0, f"sweep {name} has no values; give at least one")
    return found


def _configured(configure: Configure, point: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The swept settings as their types, and the Config that has them."""
    try:
        config = configure(point)
    except ConfigError as problem:
        given = ", ".join(f"{name}={value}" for name, value in point.items())
        raise ConfigError(f"sweep {given}: {problem}" if given else str(problem)) from problem
    found = flat_settings(config)
    return {name: found[name] for name in point}, config


def _point_names(points: Sequence[dict[str, Any]]) -> list[str]:
    """A directory's name for each combination; ConfigError if two are equal."""
    names: list[str] = []
    for index, point in enumerate(points):
        same = ", ".join(f"{name}={value_name(value)}" for name, value in point.items())
        require(point not in points[:index], f"sweep {same} is given twice; leave one out")
        plain = ",".join(f"{name}={value_name(value)}" for name, value in point.items())
        others = (f"{plain},{number}" for number in itertools.count(2))
        names.append(plain if plain not in names else next(name for name in others if name not in names))
    return names


def _with_seed(config: Any, seed: int) -> Any:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions; some, such as dicts, have no hash."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
