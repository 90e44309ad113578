"""Tables that say what the settings of another library are called here: their rows as data.

Columns: the other library's name, its default, Birl's names, their default, notes.
"""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

from birl.maths import schedules
from birl.registry import algorithm_named
from birl.settings import flat_settings

Row = list[str]


def signature(text: str) -> dict[str, str]:
    """The arguments and their defaults; "" for an argument without one."""
    return {name: default for name, _, default in (word.partition("=") for word in text.split())}


@cache
def table_after(page: Path, line: str) -> list[Row]:
    """The rows of the first table after this line, without the header."""
    _, _, rest = page.read_text().partition(f"\n{line}")
    assert rest, line
    [table] = re.findall(r"((?:^\|.*\|\n)+)", rest, re.MULTILINE)[:1]
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in table.splitlines()[2:]]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def value_for(cell: str, algorithm: str) -> str:
    """The default of this algorithm in a cell like 0.1, or DDPG 1e-3, TD3 3e-4."""
    return _by_algorithm(cell).get(algorithm, "") if _by_algorithm(cell) else cell


def concerns(cell: str, algorithm: str) -> bool:
    """Whether a cell of defaults is about this algorithm."""
    return not _by_algorithm(cell) or algorithm in _by_algorithm(cell)


def _by_algorithm(cell: str) -> dict[str, str]:
    return dict(re.findall(r"([A-Z]\w+) (\S+?)(?:,|$)", cell))


def same(cell: str, value: object) -> bool:
    """Whether a cell says this value."""
    try:
        said = schedules.parse(cell) if ":" in cell else ast.literal_eval(cell)
    except (ValueError, SyntaxError):
        said = cell
    return said == value


def settings_of(algorithm: str) -> dict[str, Any]:
    """Every setting of an algorithm, of its environment and of its run, by flat name."""
    config = algorithm_named(algorithm.lower()).Config()
    return vars(config.env) | vars(config.run) | flat_settings(config)


def wrong_defaults(rows: list[Row], algorithm: str) -> list[str]:
    """The settings in these rows that do not exist, or have another default than the row says."""
    known = settings_of(algorithm)
    rows = [row for row in rows if concerns(row[3], algorithm)]
    names = [(name, value_for(row[3], algorithm)) for row in rows for name in spans(row[2])]
    unknown = [name for name, _ in names if name not in known]
    wrong = [(name, said) for name, said in names if name in known and said and not same(said, known[name])]
    return unknown + [f"{name} is {known[name]!r}, not {said}" for name, said in wrong]
