"""Tests run on the CPU, and check the shapes and types that birl.maths declares."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported
# For the key that signs runs, instead of the home directory.
os.environ["BIRL_DATA_DIR"] = tempfile.mkdtemp(prefix="birl-tests-")
# Compiled programs of all tests and their child processes are kept for the next run of the tests.
os.environ["BIRL_CACHE_DIR"] = str(Path(__file__).parents[1] / "build" / "test-cache")
os.environ.setdefault("NPROC", "1")  # one thread of XLA's own: two test processes share two cores
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    # Compiling takes most of the time; like this, a third. make test-learning does it as users do.
    quickly = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    quickly += " --xla_cpu_parallel_codegen_split_count=1"  # modules for other threads take a quarter longer
    # prepare_jax sets this for users; here it may come too late for XLA.
    as_users_do = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quickly} {as_users_do}".lstrip()

from collections.abc import Iterator
from typing import Any

import jax
import jaxtyping
import pytest
from hypothesis import settings

from tests.tiers import is_later

jax.config.update("jax_compilation_cache_dir", os.environ["BIRL_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

atexit.register(shutil.rmtree, os.environ["BIRL_DATA_DIR"], ignore_errors=True)

# What is started in the background of a shell ignores ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does what nohup starts with the end of a terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# An int may stand for a float, as type checkers have it.
jaxtyping.install_import_hook("birl.maths", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# Compiling makes the first example slow; the same examples each time make a failure repeatable.
settings.register_profile("birl", deadline=None, derandomize=True)
settings.load_profile("birl")


SLOWEST_FIRST = ("lab", "asynchronous", "run", "workers", "algos")  # folders


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make test-all` runs, and sort.

    The contract and the slowest folders come first, so that two test processes end at about the
    same time.
    """
    for item in items:
        if is_later(item.path, getattr(item, "originalname", item.name)):
            item.add_marker("later")
    folders = {name: place for place, name in enumerate(("test_contract.py", *SLOWEST_FIRST))}
    items.sort(key=lambda item: min(folders.get(part, len(folders)) for part in item.path.parts[-3:]))


@pytest.fixture
def types_unchecked() -> Iterator[None]:
    """Switch the checking of shapes and types off again, to see the errors that users see."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two CPUs."""
    utils = pytest.importorskip("ray.cluster_utils")
    cluster = utils.Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_are_let_go() -> Iterator[None]:
    """Free compiled programs: each holds memory maps, and a process may have only 65,530."""
    yield
    jax.clear_caches()
