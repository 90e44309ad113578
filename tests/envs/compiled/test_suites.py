"""Suites of environments as extras of Birl."""

import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from birl.config import SUITES, ConfigError, EnvConfig
from birl.envs.compiled.host import programs_of
from birl.envs.registration import EXTRAS, make_compiled

ROOT = Path(__file__).parents[3]
MODULES = {suite: "mujoco_playground" if suite == "playground" else suite for suite in SUITES}
MISSING = [suite for suite, module in MODULES.items() if find_spec(module) is None]


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_is_an_extra(suite: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert suite in extras
    assert EXTRAS[MODULES[suite]] == suite


@pytest.mark.parametrize("make", [make_compiled, programs_of])
@pytest.mark.parametrize("suite", MISSING)
def test_a_missing_suite_is_named_with_its_extra(suite: str, make: Callable[[EnvConfig], Any]) -> None:
    remedy = rf"needs the module {MODULES[suite]}, which is not installed: pip install '\.\[{suite}\]'"
    with pytest.raises(ConfigError, match=remedy):
        make(EnvConfig(f"{suite}/anything"))
