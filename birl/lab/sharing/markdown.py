"""Text for a model card: values from a run's files are shown as they are, and do nothing else.

A run may be a stranger's. In a code span nothing is interpreted: neither Markdown nor HTML. What
could end the span, or the cell of a table around it, is shown as "?".
"""

import json
import re
from collections.abc import Sequence

from birl.errors import printable

LONGEST = 200  # characters of a value; a schedule may have a thousand points


def code(text: object) -> str:
    """A value as a code span, on one line; a dash for an empty one."""
    plain = re.sub(r"[`|]", "?", printable(" ".join(str(text).split())))
    short = plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}…"
    return f"`{short}`" if short else "–"


def block(lines: Sequence[str], language: str) -> str:
    """Lines as a block of code, which nothing in them can end."""
    plain = [printable(line) for line in lines]
    ticks = max((len(run) for line in plain for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return "\n".join([f"{fence}{language}", *plain, fence])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def quoted(text: str) -> str:
    """A text as a string of YAML, on one line. A string of JSON is one."""
    return json.dumps(printable(text[:LONGEST]), ensure_ascii=False)
