"""The tiers of tests leave out none, and the mutants are lines that are there."""

import re
import runpy
from pathlib import Path

import pytest

from tests.tiers import AT_ONCE, LATER, ROOT, is_later, sooner


@pytest.mark.parametrize("place", [*LATER, *AT_ONCE])
def test_what_is_named_is_there(place):
    path, _, function = place.partition("::")
    assert (ROOT / path).exists()
    assert not function or re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_folders_files_and_functions_are_left_to_the_second_tier_but_for_what_is_quick():
    assert is_later(ROOT / "tests" / "packaging" / "test_new.py", "test_one")
    assert not is_later(ROOT / "tests" / "packaging_new.py", "test_one")
    assert not is_later(ROOT / AT_ONCE[0], "test_one")
    place = next(place for place in LATER if "::" in place)
    path, _, function = place.partition("::")
    assert is_later(ROOT / path, function)
    assert not is_later(ROOT / path, f"{function}_too")


def test_parameters_that_are_not_chosen_are_marked():
    few = sooner([("a", 1)], [("a", 1), ("a", 2)])
    assert [(one.values, [mark.name for mark in one.marks]) for one in few] == [(("a", 1), []), (("a", 2), ["later"])]
    with pytest.raises(AssertionError):
        sooner(["c"], ["a", "b"])


def test_both_tiers_together_are_all_tests_and_no_test_is_in_two():
    makefile = Path(ROOT, "Makefile").read_text()
    assert re.findall(r'-m "(.*later.*)"', makefile) == ["later and $(COMMON)", "not later and $(COMMON)"]
    assert re.search(r"^test-all: test ", makefile, re.MULTILINE)


def test_the_line_of_each_mutant_is_there_once():
    script = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))
    assert len(script["MUTANTS"]) >= 40
    assert [problem for mutant in script["MUTANTS"] if (problem := script["misplaced"](mutant))] == []
