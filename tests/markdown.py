"""The documentation as data: pages, their code blocks, headings, tables and links.

A comment on the line above a block says what the tests do with it. The page does not show it.

    <!-- file: corridor.py -->                save it under this name for the commands that follow
    <!-- quoted: birl/algos/ppo.py -->        do not run it: its lines are in this file
    <!-- not run: play needs a screen -->     only check commands with the word `play`, and why
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CHINESE = ".zh-CN.md"
NOTE = re.compile(r"<!-- (file|quoted|not run): (.+) -->")
PATTERNS = ("*.md", "docs/*.md", "docs/tutorials/*.md", "benchmarks/*.md", "examples/*.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
ENGLISH = [page for page in PAGES if not page.name.endswith(CHINESE)]


class Block(NamedTuple):
    """A fenced block of code."""

    page: Path
    line: int  # of its fence, from 1
    language: str
    code: str
    notes: dict[str, str]  # by kind: file, quoted, not run

    @property
    def where(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def not_run(self) -> dict[str, str]:
        """Words of commands that are only checked, and why."""
        reasons = self.notes["not run"].split(";") if "not run" in self.notes else []
        return dict(reason.strip().split(" ", 1) for reason in reasons)


class Command(NamedTuple):
    """A line of a shell block, and the output that the page shows for it, if any."""

    block: Block
    line: str
    output: str | None


def name_of(page: Path) -> str:
    """The path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def twin_of(page: Path) -> Path:
    """The path of the Chinese twin of an English page; it may not exist."""
    return page.with_name(page.stem + CHINESE)


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
        else:
            above = NOTE.fullmatch(lines[start - 1].strip()) if start else None
            notes = {above[1]: above[2]} if above else {}
            code = "\n".join(lines[start + 1 : number]) + "\n"
            found.append(Block(page, start + 1, lines[start].strip()[3:], code, notes))
            start = None
    assert start is None, f"{name_of(page)}:{start} begins a block that does not end"
    return found


def commands_of(block: Block) -> list[Command]:
    """The commands of a block of sh or console; none for other blocks."""
    if block.language == "sh":
        return [Command(block, line, None) for line in block.code.splitlines() if line.strip()]
    if block.language != "console":
        return []
    parts = re.split(r"^\$ ", block.code, flags=re.MULTILINE)
    assert not parts[0], f"{block.where}: a console block begins with '$ ' and a command"
    return [Command(block, *part.split("\n", 1)) for part in parts[1:]]


def prose_of(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def spans_of(page: Path) -> list[str]:
    """The code spans in the sentences and tables of a page."""
    return spans_in(prose_of(page))


def spans_in(text: str) -> list[str]:
    """The code spans of a text: what is between backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def sections_of(page: Path) -> list[str]:
    """The text under each heading of a page, without code blocks."""
    return re.split(r"^#+ .+$", prose_of(page), flags=re.MULTILINE)


def headings_of(page: Path) -> list[tuple[int, str]]:
    """Level and text of each heading of a page."""
    return [(len(marks), text.strip()) for marks, text in re.findall(r"^(#+) (.+)$", prose_of(page), re.MULTILINE)]


def anchors_of(page: Path) -> list[str]:
    """The anchors that GitHub makes from the headings of a page; a source file has none."""
    if page.suffix == ".py":
        return []
    found: list[str] = []
    for _, text in headings_of(page):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return found


def links_of(page: Path) -> list[str]:
    """The targets of a page's links and images, without web addresses."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
    return [target for target in targets if not re.match(r"https?:|mailto:", target)]


def tables_of(page: Path) -> list[list[list[str]]]:
    """The cells of a page's tables, row by row; the first row is the header."""
    tables = re.findall(r"(?:^\|.*\|\n)+", prose_of(page) + "\n", re.MULTILINE)
    return [
        [
            [cell.strip() for cell in row[1:-1].split("|")]
            for row in table.splitlines()
            if not re.match(r"\|[\s:|-]+\|$", row)
        ]
        for table in tables
    ]
