"""Pages of the repository as pages of the site.

Links in the repository are paths of files. In the site they lead to the page in the same language,
or to a page that shows the file. A link whose text is the name of a function leads to its line:

    [`clipped_surrogate`](../birl/maths/losses.py)

or, with words behind the name, to the one line of the function that has these words:

    [`clipped_surrogate`, Schulman et al. 2017, eq. 7](../birl/maths/losses.py)
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from docs.website.code import line_of
from docs.website.nav import CHINESE, site_path, twin_of
from tests.markdown import anchors_of

FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE_LINK = re.compile(r"\[`((?:\w+\.)*(?!py`)\w+)`(?:, ([^\]]+))?\]\(([^)\s#]+\.py)\)")  # name, words, path
ATTRIBUTE = re.compile(r'(<(?:img|video|source|a)\b[^>]*?\b(?:src|href|poster)=")([^"]+)(")')
BETWEEN_LANGUAGES = re.compile(r"^(English \| \[中文\]\(\S+\)|\[English\]\(\S+\) \| 中文)\n+", re.MULTILINE)
TO_TWIN = re.compile(r"[ \n]?\[(?:中文|English)\]\((\S+?)\)")  # within a sentence
NAMED_BLOCK = re.compile(r"^<!-- (?:file|quoted): (\S+) -->\n```(\w+)$", re.MULTILINE)
LIST_AFTER_TEXT = re.compile(r"^((?![-*] |\d+\. |[ |#]).+)\n(?=- )", re.MULTILINE)
MEDIA = (".png", ".gif", ".mp4", ".webm", ".jpg", ".svg")
DEMO = "docs/demo/"  # a page of its own, which is copied as it is
DEMO_FILES = ("cartpole.html", "cartpole.js", "cartpole_policy.js", "ort/onnxruntime-web.js")
ONLY_ENGLISH = '!!! note ""\n    这一页只有英文。\n'


class LinkError(Exception):
    """A link leads to nothing."""


class SitePage(NamedTuple):
    """The text of a page for the site, and the files of the repository that it needs."""

    text: str
    files: set[str]


def site_page(root: Path, page: str, pages: list[str], language: str) -> SitePage:
    """An English page, or its twin in Chinese, as a page of the site."""
    twin = twin_of(page)
    translated = language == "zh" and (root / twin).exists()
    source = twin if translated else page
    text = (root / source).read_text(encoding="utf-8")
    text = with_lines_of_code(root, source, rendered_as_on_code_hosts(without_language_links(text, source)))
    text, files = with_links(text, lambda target: link_in_site(root, source, target, pages, language))
    if language == "zh" and not translated:
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n{ONLY_ENGLISH}\n{rest}"
    return SitePage(text, files)


def without_language_links(text: str, source: str) -> str:
    """The text without links to its twin: the header of the site has one."""
    own = {posixpath.basename(source.replace(CHINESE, ".md")), posixpath.basename(twin_of(source))}
    text = BETWEEN_LANGUAGES.sub("", text, count=1)
    return TO_TWIN.sub(lambda found: "" if found[1] in own else found[0], text)


def rendered_as_on_code_hosts(text: str) -> str:
    """Markdown that Python-Markdown reads as code hosts do; a block shows the name of its file."""
    parts = FENCED.split(NAMED_BLOCK.sub(r'```\2 title="\1"', text))
    return "".join(part if number % 2 else LIST_AFTER_TEXT.sub(r"\1\n\n", part) for number, part in enumerate(parts))


def with_lines_of_code(root: Path, source: str, text: str) -> str:
    """The text with the line in each link to a function: what the link names is on that line."""

    def numbered(found: re.Match[str]) -> str:
        line = line_of((root / source).parent / found[3], found[1], found[2])
        return f"{found[0].removesuffix(')')}#L{line})"

    parts = FENCED.split(text)
    return "".join(part if number % 2 else CODE_LINK.sub(numbered, part) for number, part in enumerate(parts))


def with_links(text: str, target_of: Callable[[str], tuple[str, str | None]]) -> tuple[str, set[str]]:
    """The text with each link and image replaced, and the files that they need."""
    files: set[str] = set()

    def replaced(found: re.Match[str]) -> str:
        target, file = target_of(found[2])
        files.update({file} if file else ())
        if found[3] == '"' and not target.startswith("http"):  # of HTML, which the generator leaves as it is
            target = re.sub(r"\.md(?=#|$)", ".html", target)
        return f"{found[1]}{target}{found[3]}"

    parts = FENCED.split(text)
    for number in range(0, len(parts), 2):
        parts[number] = ATTRIBUTE.sub(replaced, LINK.sub(replaced, parts[number]))
    return "".join(parts), files


def link_in_site(root: Path, source: str, target: str, pages: list[str], language: str) -> tuple[str, str | None]:
    """Where a link leads in the site, and the file to show there, if it is no page."""
    if re.match(r"https?:|mailto:|#", target):
        return target, None
    path, mark, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = path.replace(CHINESE, ".md")
    page = f"{path}/README.md" if f"{path}/README.md" in pages else page
    own_page = site_path(source.replace(CHINESE, ".md"))
    if page in pages:
        if language == "zh" and anchor and not path.endswith(CHINESE):
            anchor = anchor_in_twin(root, page, anchor)
        return posixpath.relpath(site_path(page), posixpath.dirname(own_page)) + (mark + anchor if anchor else ""), None
    if not (root / path).is_file():
        raise LinkError(f"{source} links to {target}, which is no file: link to a page or a file")
    anchor = re.sub(r"^L(\d+)$", r"L-0-\1", anchor)  # the name of a line in the first block of a page
    copied = path.endswith(MEDIA) or is_demo(path)
    shown = path.removeprefix("docs/") if copied else source_page_path(path)
    return posixpath.relpath(shown, posixpath.dirname(own_page)) + mark + anchor, path


def is_demo(path: str) -> bool:
    """Whether this is the page of the demo."""
    return path.startswith(DEMO) and path.endswith(".html")


def anchor_in_twin(root: Path, page: str, anchor: str) -> str:
    """The anchor of the same heading in the Chinese twin; empty if the twin is too short."""
    twin = root / twin_of(page)
    if not twin.exists():
        return anchor
    return dict(zip(anchors_of(root / page), anchors_of(twin), strict=False)).get(anchor, "")


def source_page_path(path: str) -> str:
    """Where the page that shows a file is in the source tree of the site."""
    return f"source/{path}.md"


def source_page(root: Path, path: str) -> str:
    """A page that shows a file of the repository, with line numbers. Search leaves it out."""
    language = {".py": "python", ".toml": "toml", ".json": "json"}.get(Path(path).suffix, "text")
    text = (root / path).read_text(encoding="utf-8").rstrip("\n")
    fence = "`" * 8
    return (
        "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"
        f'# {path}\n\n{fence}{language} linenums="1"\n{text}\n{fence}\n'
    )
