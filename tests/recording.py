"""For tests of what an algorithm's update is given: its arguments while it trains, as arrays."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

Arguments = tuple[Any, ...]


def home_of(algorithm: Any) -> ModuleType:
    """The module with the functions of an algorithm, which may be a variant of another one."""
    return sys.modules[algorithm.update.__module__]


@contextmanager
def recorded(home: ModuleType, function: str = "update") -> Iterator[list[Arguments]]:
    """The arguments of each call of a compiled function of this module, in turn."""
    calls: list[Arguments] = []
    compiled = getattr(home, function)

    def recording(*given: Any) -> Any:
        calls.append(given)
        return compiled(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, function, recording)
        # With a state on several devices an update is a program of its own, not part of one with
        # the replay, and is given arrays.
        patch.setattr("birl.speed.has_several_devices", lambda state: True)
        yield calls
