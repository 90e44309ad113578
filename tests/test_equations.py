"""Each equation on the page of an algorithm links to the function that computes it, and has a test.

docs/website/pages.py says what such a link looks like.
"""

import re
from itertools import chain, pairwise
from pathlib import Path

import pytest

import birl
from docs.website.code import CodeError, line_of
from docs.website.pages import CODE_LINK
from tests import markdown
from tests.equation_oracles import oracles_by_link
from tests.markdown import ROOT, twin_of

ENGLISH = [ROOT / "docs" / f"{name}.md" for name in birl.ALGORITHMS]
WORDS = "Code: ", "代码："  # with which the line of links begins
BETWEEN = ", ", "、"  # two links

pages = pytest.mark.parametrize("page", [*ENGLISH, *map(twin_of, ENGLISH)], ids=markdown.name_of)


def links_under_equations(page: Path) -> list[list[tuple[str, str, str]]]:
    """For each equation of a page: function, citation and file of each link under it."""
    return [CODE_LINK.findall(below) for _, below in equations_of(page)]


def equations_of(page: Path) -> list[tuple[str, str]]:
    """The display equations of a page, and the paragraph under each."""
    paragraphs = [*markdown.prose_of(page).split("\n\n"), ""]
    return [(above.strip(), below.strip()) for above, below in pairwise(paragraphs) if "$$" in above]


@pages
def test_a_display_equation_is_a_paragraph_of_its_own(page):
    assert len(equations_of(page)) >= 2
    assert [above for above, _ in equations_of(page) if not re.fullmatch(r"\$\$[^$]+\$\$", above)] == []


@pages
def test_every_display_equation_has_a_line_of_links_under_it(page):
    chinese = page.name.endswith(markdown.CHINESE)
    for equation, below in equations_of(page):
        links = [link[0] for link in CODE_LINK.finditer(below)]
        assert links, f"{equation} has no link under it"
        assert below == WORDS[chinese] + BETWEEN[chinese].join(links)


@pages
def test_links_name_a_function_of_their_file_and_words_that_one_of_its_lines_has(page):
    for function, citation, file in chain.from_iterable(links_under_equations(page)):
        assert file.startswith("../birl/")
        assert line_of(page.parent / file, function, citation or None)


@pytest.mark.release
@pytest.mark.parametrize("page", ENGLISH, ids=markdown.name_of)
def test_twins_link_the_same_functions_under_each_equation(page):
    assert links_under_equations(page) == links_under_equations(twin_of(page))


def test_every_equation_that_is_linked_has_a_test_that_checks_it():
    linked = {
        f"{file.removeprefix('../birl/')}: {function}" + (f", {citation}" if citation else "")
        for page in ENGLISH
        for links in links_under_equations(page)
        for function, citation, file in links
    }
    assert sorted(oracles_by_link()) == sorted(linked)
    for link, (path, name) in oracles_by_link().items():
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{link}: {path} has no {name}"


# The line of a function


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "sums.py"
    path.write_text(
        "class Sum:\n"
        "    def __call__(self):\n"
        "        return 0\n\n"
        "def basel():\n"
        '    """The sum of 1/n² (Euler 1735, eq. 1)."""\n'
        "    return zeta(2)  # Euler 1735, eq. 14\n"
    )
    return path


def test_the_line_of_a_method_and_of_a_function(file):
    assert line_of(file, "Sum.__call__") == 2
    assert line_of(file, "basel") == 5


def test_the_words_of_equation_14_are_not_those_of_equation_1(file):
    assert line_of(file, "basel", "Euler 1735, eq. 1") == 6
    assert line_of(file, "basel", "Euler 1735, eq. 14") == 7


@pytest.mark.parametrize("name", ["zeta", "__call__"])
def test_a_name_that_the_file_does_not_define_is_refused(file, name):
    with pytest.raises(CodeError, match=rf"sums\.py defines {name} 0 times"):
        line_of(file, name)


def test_a_name_that_the_file_defines_twice_is_refused(file):
    file.write_text(file.read_text() + "\n\ndef basel():\n    return 1\n")
    with pytest.raises(CodeError, match=r"sums\.py defines basel 2 times"):
        line_of(file, "basel")


@pytest.mark.parametrize(("words", "lines"), [("Gauss 1801", r"\[\]"), ("Euler 1735", r"\[6, 7\]")])
def test_words_that_no_line_has_or_two_are_refused(file, words, lines):
    with pytest.raises(CodeError, match=rf"'{words}' is on lines {lines}; write it once in the file, within basel"):
        line_of(file, "basel", words)


def test_words_outside_of_the_function_are_refused(file):
    with pytest.raises(CodeError, match=r"'return 0' is on lines \[3\]; write it once in the file, within basel"):
        line_of(file, "basel", "return 0")
