"""How JAX is set up: called by whatever compiles, never at import."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# With more threads than one XLA shares out loops and products that take less time than the sharing:
# PPO's update of CartPole (256 rows, 64 × 64) takes 12 ms with two and 9 ms with one. DQN on
# CartPole (64 rows, 256 × 256) does 3,390 steps a second with one and 3,040 with two, on
# LunarLander (128 rows) 660 and 730, all in sequence: medians of three alternating rounds.
MOST_PRODUCTS_OF_ONE_THREAD = 6_000_000

# XLA orders a program's operations so that several could run at once, and hands them to other
# threads. Those of small networks take less time than that: it doubles the times that a thread
# waits for another (35 in PPO's update of CartPole, 19 without), and where other processes want the
# cores, each wait is long: a turn of A3C took 3.7 ms beside one busy process, 1.6 without. Large
# ones gain by it: a gradient step of SAC (256 × 256, batch 256) takes 7.9 ms so, and 9.1 in
# sequence: medians of four alternating rounds.
IN_SEQUENCE = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

MOST_CORES = 8  # among which images are shared out: a minibatch of 256 is then 32 for each

Tree = TypeVar("Tree")
Work = int | Literal["images"] | None  # multiplications of the largest matrix product to come; None: not known


def cache_directory() -> Path:
    """Where compiled programs are kept between runs: $BIRL_CACHE_DIR, or birl in the user's cache
    directory.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "birl"
    return Path(os.environ.get("BIRL_CACHE_DIR", default))


def prepare_jax(work: Work = None) -> None:
    """Keep compiled programs on disk, so that a second start does not compile, and wait for each
    call on CPU.

    If the products to come are small, XLA gets one thread; if they are large, it may run several
    operations at once; for images each core becomes a device with one thread (see `cores`). It
    reads this and its flags once, when JAX is first used.
    """
    small = isinstance(work, int) and work <= MOST_PRODUCTS_OF_ONE_THREAD
    flags = os.environ.get("XLA_FLAGS", "")
    if (small or work is None) and IN_SEQUENCE.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {IN_SEQUENCE}".lstrip()
    if work == "images" and "NPROC" not in os.environ:
        with suppress(RuntimeError):  # JAX has been used already, and has the devices that it has
            jax.config.update("jax_num_cpu_devices", _devices())
            os.environ["NPROC"] = "1"
    if small:
        os.environ.setdefault("NPROC", "1")
    # Handing a small call to another thread costs more than the call: 30 µs against 18.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def on_cpu() -> bool:
    """Whether XLA compiles for a CPU."""
    return jax.default_backend() == "cpu"


def cores() -> Mesh:
    """The devices among which images are shared out: of a CPU one for each core, or one in all.

    XLA's own threads share out each operation and wait for each other after each: with two of them
    the gradient of 256 images (Mnih et al. 2015) takes 171 ms, with two devices 104.
    """
    devices = jax.devices()
    return Mesh(np.array(devices[: _shares(len(devices)) if on_cpu() else 1]), ("cores",))


def replicate_unplaced(tree: Tree) -> Tree:
    """The same, with arrays that lie nowhere yet on all cores, if others lie on several of them.

    There a compiled update leaves them all. If it is first given some that lie elsewhere, it is
    compiled twice: for A2C on Pong the second time took 0.4 s with the program on disk.
    """
    leaves = jax.tree.leaves(tree)
    if not any(map(is_on_several, leaves)):
        return tree
    return jax.tree.map(lambda leaf: jax.device_put(leaf, place_of(leaf)), tree)


def place_of(array: Any) -> NamedSharding:
    """Where it lies, if that is on several devices; otherwise all cores."""
    return array.sharding if is_on_several(array) else replicated()


def replicated() -> NamedSharding:
    """All cores, with the whole of an array on each."""
    return NamedSharding(cores(), PartitionSpec())


def is_on_several(array: Any) -> bool:
    """Whether it lies on several devices, in parts or as a whole on each. What is being traced lies
    nowhere.
    """
    return (
        isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and len(array.sharding.device_set) > 1
    )


def _devices() -> int:
    """A device for each core that this process may use, as far as they can share."""
    return _shares(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1)


def _shares(cores: int) -> int:
    """Among how many of so many cores work is shared out: a power of two, which divides most
    batches and every dense layer.
    """
    return 1 << (min(cores, MOST_CORES).bit_length() - 1)
