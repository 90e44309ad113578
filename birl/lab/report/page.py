"""The page around the sections: template, style and script in one file, and nothing else.

Its content security policy forbids every fetch, and every script and style but its own: even if a
text of a stranger got past the escaping, it could not run.
"""

import base64
import hashlib
import itertools
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template

import birl
from birl.config import require
from birl.lab.report.elements import Content, Html, Section, code_of, element, join
from birl.run.files import replacing


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
