"""Build the documentation site in English and Chinese.

    python -m docs.website.build site

Pages of the repository are copied to a source tree for each language; Zensical makes two sites of
them, site/ and site/zh/. Any warning ends the build.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.website.api import ApiError, api_pages
from docs.website.check_links import problems_of
from docs.website.code import CodeError
from docs.website.files import FILES, files_page
from docs.website.maths import copy_font, with_formulas, without_formulas
from docs.website.nav import NavigationError, navigation, pages_of, site_path
from docs.website.pages import DEMO, DEMO_FILES, MEDIA, LinkError, is_demo, site_page, source_page, source_page_path
from docs.website.settings import settings

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COLOUR = re.compile(r"\x1b\[[\d;]*m")  # the codes of a terminal
SEARCH_IN_CHINESE = {  # the texts of the generator's script that its translations leave out
    '"Search"': '"搜索"',
    '"Search results"': '"搜索结果"',
    '"result":"results"': '"条结果":"条结果"',
    '"No results"': '"没有找到结果"',
    '"Close search"': '"关闭搜索"',
    '"Filters"': '"筛选"',
    '"Loading search\\u2026"': '"正在加载搜索…"',
    '"Search is unavailable. Reload the page to try again."': '"搜索不可用，请重新加载页面。"',
}
LANGUAGES = {"en": ".", "zh": "zh"}  # and the folder of each in the site


class BuildError(Exception):
    """The site could not be built, or has a warning or a dead link."""


def build(site: Path) -> None:
    """Build both languages and check every link."""
    with tempfile.TemporaryDirectory(prefix="birl-site-") as folder:
        built = {language: build_language(Path(folder) / language, language) for language in LANGUAGES}
        shutil.rmtree(site, ignore_errors=True)
        for language, folder_in_site in LANGUAGES.items():
            shutil.copytree(built[language], site / folder_in_site, dirs_exist_ok=True)
    shutil.copy(HERE / "style.css", site)
    copy_font(site / "fonts")
    if problems := problems_of(site):
        raise BuildError("\n".join(["dead links:", *problems]))


def build_language(project: Path, language: str) -> Path:
    """Build the site of one language below `project`; the folder of its pages."""
    write_project(project, language)
    run_zensical(project)
    finish(project / "site")
    if language == "zh":
        translate_search(project / "site")
    return project / "site"


def write_project(project: Path, language: str) -> None:
    """The settings and the source tree that Zensical reads."""
    tree = project / "docs"
    pages = pages_of(ROOT)
    files: set[str] = set()
    for page in pages:
        text, needed = site_page(ROOT, page, pages, language)
        write(tree / site_path(page), text)
        files |= needed
    listing, listed = files_page(ROOT, language)
    write(tree / FILES, listing)
    for file in files | listed:
        if is_demo(file):
            for name in DEMO_FILES:
                copy(DEMO + name, tree)
        elif file.endswith(MEDIA):
            copy(file, tree)
        else:
            write(tree / source_page_path(file), source_page(ROOT, file))
    reference = api_pages(ROOT, language)
    for path, text in reference.items():
        write(tree / path, text)
    shutil.copytree(HERE / "theme", project / "theme")
    nav = navigation([*pages, FILES, *reference], language)
    write(project / "mkdocs.yml", json.dumps(settings(ROOT, nav, language), ensure_ascii=False, indent=1))


def copy(file: str, tree: Path) -> None:
    """Copy a file of docs/ to the source tree, if it is there."""
    target = tree / file.removeprefix("docs/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / file).exists():  # onnxruntime-web is fetched; the demo says so if it was not
        shutil.copy(ROOT / file, target)


def write(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run_zensical(project: Path) -> None:
    """Run the site generator; a warning ends the build."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(project / "mkdocs.yml")]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    said = COLOUR.sub("", done.stdout + done.stderr)
    if done.returncode or re.search(r"warning|error", said, re.IGNORECASE):
        raise BuildError(f"zensical ended with {done.returncode}:\n{said}")


def finish(site: Path) -> None:
    """Make MathML of TeX, leave TeX out of search, and remove the page for errors."""
    for page in site.rglob("*.html"):
        write(page, with_formulas(page.read_text(encoding="utf-8")))
    index = site / "search.json"
    write(index, without_formulas(index.read_text(encoding="utf-8")))
    (site / "404.html").unlink()  # its links begin at the root of a server


def translate_search(site: Path) -> None:
    """Replace the English texts of the search by Chinese ones."""
    [script] = (site / "assets" / "javascripts").glob("bundle.*.js")
    text = script.read_text(encoding="utf-8")
    for english, chinese in SEARCH_IN_CHINESE.items():
        if english not in text:
            raise BuildError(f"{script.name} has no text {english}; correct SEARCH_IN_CHINESE in docs/website/build.py")
        text = text.replace(english, chinese)
    write(script, text)


def main(site: str) -> int:
    """Build the site; the exit code."""
    try:
        build(Path(site).resolve())
    except (BuildError, NavigationError, LinkError, ApiError, CodeError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(f"{len(list(Path(site).rglob('*.html')))} pages in {site}, no warning, no dead link\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
