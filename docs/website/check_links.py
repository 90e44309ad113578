"""Check every link, anchor, image and script of a built site. Nothing is fetched.

    python -m docs.website.check_links site

A web address is only checked for its form, and may be no script, style sheet, font or image: the
site must be readable without a network.
"""

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("img", "src"), ("script", "src"), ("video", "src"), ("source", "src"), ("iframe", "src")}
LINKS = LOADED | {("a", "href"), ("link", "href")}
LOADED_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload"}
FETCHED = "ort/onnxruntime-web.js"  # of the demo, which says how to get it where it is missing
WEB_ADDRESS = re.compile(r"https?://[\w.-]+\.[a-z]{2,}(:\d+)?(/\S*)?")


class Page(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[tuple[str, bool]] = []  # address, and whether the browser loads it with the page
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        relation = set(given.get("rel", "").split()) if tag == "link" else set()
        self.references += [
            (address, (tag, name) in LOADED or bool(relation & LOADED_RELATIONS))
            for name, address in given.items()
            if (tag, name) in LINKS
        ]


@cache
def page_at(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def problems_of(site: Path) -> list[str]:
    """A line for each reference of the site that leads nowhere."""
    pages = sorted(site.rglob("*.html"))
    found = [] if pages else [f"{site} has no page"]
    for path in pages:
        for address, loaded in page_at(path).references:
            problem = problem_with(site, path, address, loaded)
            found += [f"{path.relative_to(site)}: {address or 'an empty address'} {problem}"] if problem else []
    for sheet in sorted(site.rglob("*.css")):
        for address in re.findall(r"url\(['\"]?([^'\")]+)", sheet.read_text(encoding="utf-8")):
            if not address.startswith(("data:", "#")) and not (sheet.parent / address.split("?")[0]).is_file():
                found.append(f"{sheet.relative_to(site)}: {address} is not in the site")
    return found


def problem_with(site: Path, path: Path, address: str, loaded: bool) -> str | None:
    """What is wrong with an address on a page; None if nothing is."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") or address.startswith("//"):
        if loaded:
            return "is loaded from the network"
        return None if WEB_ADDRESS.fullmatch(address) else "is no web address"
    if parts.scheme in ("mailto", "data"):
        return None
    if parts.scheme or parts.path.startswith("/"):
        return "is no relative address"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site.resolve()):
        return "leads out of the site"
    if target.is_dir():
        return "leads to a folder: a file on disk has no index"
    if not target.is_file():
        return None if address == FETCHED else "is not in the site"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page_at(target).anchors:
        return "has an anchor that is not on the page"
    return None


def main(site: str) -> int:
    """Print what is wrong; the exit code."""
    problems = problems_of(Path(site).resolve())
    count = len(list(Path(site).rglob("*.html")))
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    sys.stdout.write(f"{count} pages, {len(problems)} dead links\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
