"""HTML as data, and the page around it: template, style and script in one file, and nothing else.

Its content security policy forbids every fetch, and every script and style but its own: even if a
text of a stranger got past the escaping, it could not run.
"""

import base64
import hashlib
import html
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import birl
from birl.config import require
from birl.run.files import replacing

COLOURS = 7  # of page.css: --c0 to --c6
LONGEST = 300  # characters of a text; a forged run may have a label of a megabyte
# Control characters, single surrogates, and marks that turn the direction of a line around.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Html:
    """Text that is HTML; any other text is escaped before it gets into a page."""

    code: str


Content = Html | str | int


@dataclass(frozen=True)
class Section:
    """A part of a page, under a heading of its own."""

    title: str
    body: Html


def code_of(content: Content, longest: int = LONGEST) -> str:
    """The HTML of this content; a text is cut and escaped."""
    if isinstance(content, Html):
        return content.code
    text = UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(content))
    return html.escape(text if len(text) <= longest else f"{text[:longest]}…")


def join(parts: Iterable[Content], between: str = "") -> Html:
    """These parts, one after another."""
    return Html(between.join(map(code_of, parts)))


def element(name: str, content: Content = "", **attributes: Content | None) -> Html:
    """An element with these attributes; class_ is class, data_x is data-x, None leaves one out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    words = "".join(f' {key}="{code_of(value)}"' for key, value in given.items())
    return Html(f"<{name}{words}>{code_of(content)}</{name}>")


def paragraph(*parts: Content) -> Html:
    return element("p", join(parts))


def sentences(text: str) -> Html:
    """A text that may be longer than a name."""
    return Html(code_of(text, 3000))


def small(text: str) -> Html:
    """An explanation below a table or a chart."""
    return element("p", sentences(text), class_="small")


def block(text: str) -> Html:
    """Text in a box of its own, such as a command; spaces and line breaks are kept."""
    return Html(f"<pre><code>{code_of(text, 20_000)}</code></pre>")


def folded(summary: Content, body: Html) -> Html:
    """A part that is folded until the reader opens it."""
    return element("details", join([element("summary", summary), body]))


def table(head: Sequence[Content], rows: Iterable[Sequence[Content]], texts: int = 1) -> Html:
    """A table; the first `texts` columns are texts, the others numbers. The first names the row."""

    def cell(name: str, number: int, content: Content, **more: str) -> Html:
        return element(name, content, class_=None if number < texts else "number", **more)

    top = join(cell("th", number, content, scope="col") for number, content in enumerate(head))
    body = [
        join(
            cell("td" if number else "th", number, content, **({} if number else {"scope": "row"}))
            for number, content in enumerate(row)
        )
        for row in rows
    ]
    inside = join([element("thead", element("tr", top)), element("tbody", join(element("tr", row) for row in body))])
    return element("div", element("table", inside), class_="scroll")


def named(label: str, number: int) -> Html:
    """A group's name with its colour in the curves."""
    return element("span", join([swatch(number), element("bdi", label)]), class_="named")


def swatch(number: int) -> Html:
    """A small line in the colour, and with the dashes, of the group with this number."""
    line = element("line", x1=0, y1=5, x2=22, y2=5)
    return element("svg", line, class_=f"swatch {style_of(number)}", width=22, height=10, aria_hidden="true")


def style_of(number: int) -> str:
    """The classes of a group's colour and dashes: new dashes once all colours are used."""
    return f"c{number % COLOURS} d{number // COLOURS % 4}"


def bars(rows: Iterable[tuple[Content, float, Content]]) -> Html:
    """Bars with a name and a text each; the values are shares from 0 to 1."""

    def line(name: Content, share: float, text: Content) -> Html:
        width = f"{100 * min(max(share, 0.0), 1.0):.2f}%"
        bar = element("svg", element("rect", width=width, height=14, rx=2), class_="bar c0", width="100%", height=14)
        return join([element("dt", name), element("dd", join([bar, element("span", text, class_="number")]))])

    return element("dl", join(line(*row) for row in rows), class_="bars")


def data(id: str, value: Any) -> Html:
    """JSON for a script of the page. It holds no character that HTML or JavaScript could end at."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # U+2028 and all others beyond ASCII are escaped by dumps
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{code_of(id)}">{text}</script>')


def write_report(path: Path, title: str, sections: Sequence[Section], about: Content = "") -> Path:
    """Write a page of these sections, completely or not at all; its path.

    `about` is the line below the title.
    """
    require(path.suffix in (".html", ".htm"), f"out {path} must end in .html")
    require(not path.is_dir(), f"out {path} is a directory; name a file in it, such as {path / 'report.html'}")
    content = page(title, sections, about)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode())
    return path


def page(title: str, sections: Sequence[Section], about: Content = "") -> str:
    """The HTML of the whole page."""
    style, script = _file("page.css"), _file("page.js")
    anchors = _anchors([section.title for section in sections])
    links = join(
        element("a", section.title, href=f"#{anchor}") for section, anchor in zip(sections, anchors, strict=True)
    )
    parts = zip(sections, anchors, strict=True)
    return Template(_file("page.html")).substitute(
        title=code_of(title),
        about=code_of(about),
        links=links.code,
        sections="\n".join(_section(section, anchor).code for section, anchor in parts),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=code_of(birl.__version__),
    )


def _section(section: Section, anchor: str) -> Html:
    heading = element("h2", section.title, id=f"{anchor}-title")
    return element("section", join([heading, section.body]), id=anchor, aria_labelledby=f"{anchor}-title")


def _anchors(titles: Sequence[str]) -> list[str]:
    """A name for each section, in its address: no two are the same."""
    found: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        found.append(next(name for name in names if name not in found))
    return found


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The hash by which the policy of the page allows this script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
