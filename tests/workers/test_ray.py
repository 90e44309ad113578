"""Ray without a cluster: what its errors mean, and what is said if it is not installed."""

import importlib
import sys

import pytest

from birl.config import ConfigError
from birl.workers.faults import Failure

exceptions = pytest.importorskip("ray.exceptions")


def test_ray_that_is_not_installed_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "birl.workers.ray_actors", raising=False)
    with pytest.raises(ConfigError, match=r"pip install '\.\[ray\]'"):
        importlib.import_module("birl.workers.ray_actors")


def test_the_cause_is_what_stands_after_because():
    from birl.workers.ray_actors import cause_of

    problem = RuntimeError("The actor died\n\tpid: 3\nThe actor is dead because its node has died. Node Id: 5")
    assert cause_of(problem) == "its node has died"
    assert cause_of(RuntimeError("lost\nmore")) == "lost"
    assert cause_of(RuntimeError("")) == "RuntimeError"


def test_an_actor_out_of_reach_says_nothing_against_its_environment():
    from birl.workers.ray_actors import OUT_OF_REACH, cause_of, machine_died

    cause = cause_of(exceptions.ActorUnavailableError("RpcError: Socket closed", b"0" * 16))
    assert cause == OUT_OF_REACH
    assert machine_died(Failure(cause))
    assert not machine_died(Failure("the worker process has died"))
