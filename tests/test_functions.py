"""Functions that a user passes in are found again by name."""

import functools
import subprocess
import sys

import pytest

from birl.config import function_named, is_local, name_of_function
from birl.errors import ConfigError


def own() -> int:
    return 7


def test_a_function_of_a_module_is_named_by_where_it_is():
    assert name_of_function(own) == "tests.test_functions:own"
    assert function_named("tests.test_functions:own", "make_env") is own
    assert name_of_function(ConfigError) == "birl.errors:ConfigError"


def test_lambdas_and_partials_are_kept_in_this_process_under_names_of_their_own():
    first, second, third = (lambda: 1), (lambda: 2), functools.partial(int, "3")
    names = [name_of_function(function) for function in (first, second, third)]
    assert len(set(names)) == 3
    assert all(map(is_local, names))
    assert [function_named(name, "make_env")() for name in names] == [1, 2, 3]
    assert name_of_function(first) == names[0]  # again the same


def test_a_function_of_the_script_itself_is_local():
    program = "from birl.config import name_of_function\ndef own(): ...\nprint(name_of_function(own))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "local:own"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("local:gone", "only the process has"),
        ("no_such_module_of_ours:make", "cannot be imported"),
        ("birl.errors:missing", "no function or class missing"),
        ("birl.errors:__doc__", "no function or class"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_the_setting(name, said):
    with pytest.raises(ConfigError, match=f"make_env '{name}'.*{said}"):
        function_named(name, "make_env")
