"""Write the line numbers of the links under the equations of the algorithms' pages.

    python docs/equation_links.py

Under each equation of a page is a line with links to the code that computes it:

    Code: [maths/losses.py, Schulman et al. 2017, eq. 7](../birl/maths/losses.py#L54)

The words after the path are what one line of that file says: there the link leads. So a link is
found by its words, and its number is written here. tests/test_equations.py checks all of it.
"""

import re
from pathlib import Path

from birl import ALGORITHMS

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS / f"{name}{suffix}" for name in ALGORITHMS for suffix in (".md", ".zh-CN.md")]
LINK = re.compile(r"\[([a-z0-9_/]+\.py), ([^\]]+)\]\(\.\./birl/\1#L(\d+)\)")  # path, citation, line


def cites(line: str, citation: str) -> bool:
    """Whether a line of code has these words; those of eq. 14 are not those of eq. 1."""
    return re.search(rf"(?<!\w){re.escape(citation)}(?!\w|\.\d)", line) is not None


def line_of(source: Path, citation: str) -> int:
    """The number, from 1, of the only line of a file with these words; ValueError otherwise."""
    lines = source.read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if cites(line, citation)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(f"no line of {source} has the words {citation!r}; write them where the equation is computed")
    raise ValueError(f"lines {found} of {source} have the words {citation!r}; one of them needs words of its own")


def with_line_numbers(text: str, package: Path) -> str:
    """The text of a page whose links lead to the lines of this package that have their words."""

    def renumbered(link: re.Match[str]) -> str:
        path, citation = link[1], link[2]
        return f"[{path}, {citation}](../birl/{path}#L{line_of(package / path, citation)})"

    return LINK.sub(renumbered, text)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(with_line_numbers(text, DOCS.parent / "birl"), encoding="utf-8")


if __name__ == "__main__":
    main()
