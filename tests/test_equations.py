"""Every equation on the page of an algorithm links to the line of code that names and computes it.

docs/equation_links.py writes the line numbers and says what a link looks like.
"""

import re
import runpy
from itertools import chain, pairwise
from pathlib import Path

import pytest

import birl
from tests import markdown
from tests.equation_oracles import oracles_by_link
from tests.markdown import ROOT, twin_of

SCRIPT = runpy.run_path(str(ROOT / "docs" / "equation_links.py"))
ENGLISH = [ROOT / "docs" / f"{name}.md" for name in birl.ALGORITHMS]
WORDS = "Code: ", "代码："  # with which the line of links begins
BETWEEN = ", ", "、"  # two links

pages = pytest.mark.parametrize("page", [*ENGLISH, *map(twin_of, ENGLISH)], ids=markdown.name_of)
english = pytest.mark.parametrize("page", ENGLISH, ids=markdown.name_of)


def links_under_equations(page: Path) -> list[list[tuple[str, str, int]]]:
    """For each equation of a page: path, citation and line number of each link under it."""
    return [links_in(below) for _, below in equations_of(page)]


def equations_of(page: Path) -> list[tuple[str, str]]:
    """The display equations of a page, and the paragraph under each."""
    paragraphs = [*markdown.prose_of(page).split("\n\n"), ""]
    return [(above.strip(), below.strip()) for above, below in pairwise(paragraphs) if "$$" in above]


def links_in(text: str) -> list[tuple[str, str, int]]:
    return [(path, citation, int(number)) for path, citation, number in SCRIPT["LINK"].findall(text)]


@pages
def test_a_display_equation_is_a_paragraph_of_its_own(page):
    assert len(equations_of(page)) >= 2
    assert [above for above, _ in equations_of(page) if not re.fullmatch(r"\$\$[^$]+\$\$", above)] == []


@pages
def test_every_display_equation_has_a_line_of_links_under_it(page):
    for equation, below in equations_of(page):
        named = BETWEEN[page.name.endswith(markdown.CHINESE)].join(
            f"[{path}, {citation}](../birl/{path}#L{number})" for path, citation, number in links_in(below)
        )
        assert named, f"{equation} has no link under it"
        assert below == WORDS[page.name.endswith(markdown.CHINESE)] + named


@pages
def test_links_lead_to_a_line_with_the_words_that_the_page_gives(page):
    for path, citation, number in chain.from_iterable(links_under_equations(page)):
        line = (ROOT / "birl" / path).read_text(encoding="utf-8").splitlines()[number - 1]
        assert citation in line, f"{path}, line {number} is {line!r}; run python docs/equation_links.py"


@english
def test_twins_link_the_same_lines_under_each_equation(page):
    assert links_under_equations(page) == links_under_equations(twin_of(page))


def test_every_equation_that_is_linked_has_a_test_that_checks_it():
    linked = {
        f"{path}, {citation}"
        for page in ENGLISH
        for links in links_under_equations(page)
        for path, citation, _ in links
    }
    assert sorted(oracles_by_link()) == sorted(linked)
    for link, (path, name) in oracles_by_link().items():
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{link}: {path} has no {name}"


def test_the_script_knows_all_pages_and_has_nothing_to_change():
    assert sorted(SCRIPT["PAGES"]) == sorted([*ENGLISH, *map(twin_of, ENGLISH)])
    for page in SCRIPT["PAGES"]:
        text = page.read_text(encoding="utf-8")
        assert SCRIPT["with_line_numbers"](text, ROOT / "birl") == text, "run python docs/equation_links.py"


# The script


@pytest.fixture
def package(tmp_path) -> Path:
    (tmp_path / "maths").mkdir()
    (tmp_path / "maths" / "sums.py").write_text('"""Sums."""\n\n# Euler 1735, eq. 1\n# Euler 1735, eq. 14\n')
    return tmp_path


def test_the_number_of_a_line_that_moved_is_written_anew(package):
    page = "$$x$$\n\nCode: [maths/sums.py, Euler 1735, eq. 14](../birl/maths/sums.py#L{})\n"
    with_line_numbers = SCRIPT["with_line_numbers"]
    assert with_line_numbers(page.format(99), package) == page.format(4)
    source = package / "maths" / "sums.py"
    source.write_text("\n" + source.read_text())
    assert with_line_numbers(page.format(4), package) == page.format(5)


def test_the_words_of_equation_14_are_not_those_of_equation_1(package):
    assert SCRIPT["line_of"](package / "maths" / "sums.py", "Euler 1735, eq. 1") == 3


def test_words_that_no_line_has_are_refused(package):
    with pytest.raises(ValueError, match=r"no line of .*sums.py has the words 'Gauss 1801'; write them where"):
        SCRIPT["line_of"](package / "maths" / "sums.py", "Gauss 1801")


def test_words_that_two_lines_have_are_refused(package):
    with pytest.raises(ValueError, match=r"lines \[3, 4\] of .*sums.py have the words 'Euler 1735'; one of them"):
        SCRIPT["line_of"](package / "maths" / "sums.py", "Euler 1735")
