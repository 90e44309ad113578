"""How JAX is set up for speed. It is called before a network is made, never at import."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import jax

from birl.settings import flat_settings

# With several threads, XLA divides loops and products that take less time than dividing them. PPO's
# update of CartPole (256 rows, 64 x 64) takes 12 ms with two threads and 9 ms with one. DQN on
# CartPole (64 rows, 256 x 256) does 3,390 steps a second with one and 3,040 with two, on
# LunarLander (128 rows) 660 and 730: medians of three alternating rounds.
MOST_PRODUCTS_OF_ONE_THREAD = 6_000_000

# By default XLA orders a program so that several operations can run at once, on several threads. In
# small networks an operation is shorter than handing it over: PPO's update of CartPole then waits
# 35 times for another thread, 19 times without. On a busy machine each wait is long: a worker step
# of A3C took 3.7 ms beside one busy process, 1.6 in sequence. Large networks gain by it: a gradient
# step of SAC (256 x 256, batch 256) takes 7.9 ms, and 9.1 in sequence: medians of four alternating
# rounds.
IN_SEQUENCE = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

MOST_DEVICES = 8  # that images are divided among: of a minibatch of 256 each then has 32

# Multiplications of the largest matrix product in an update, "images" for convolutions, None if
# unknown.
WorkSize = int | Literal["images"] | None


def cache_directory() -> Path:
    """Where compiled programs are kept: $BIRL_CACHE_DIR, or birl in the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "birl"
    return Path(os.environ.get("BIRL_CACHE_DIR", default))


def prepare_jax(config: Any = None, images: bool = False) -> None:
    """Set JAX up for an algorithm's Config; without one, for child processes with small
    networks.
    """
    set_up(None if config is None else work_size(config, images))


def set_up(work: WorkSize) -> None:
    """Choose XLA's threads and devices, and keep compiled programs on disk for the next start.

    Small products get one thread. Images get one device with one thread for each CPU core. XLA
    reads all of this once, when JAX is first used.
    """
    small = isinstance(work, int) and work <= MOST_PRODUCTS_OF_ONE_THREAD
    flags = os.environ.get("XLA_FLAGS", "")
    if (small or work is None) and IN_SEQUENCE.partition("=")[0] not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {IN_SEQUENCE}".lstrip()
    if work == "images" and "NPROC" not in os.environ:
        with suppress(RuntimeError):  # JAX was used before: its devices are fixed
            jax.config.update("jax_num_cpu_devices", largest_power_of_two(_cpu_count()))
            os.environ["NPROC"] = "1"
    if small:
        os.environ.setdefault("NPROC", "1")
    # To hand a small call to another thread takes longer than the call: 30 µs against 18.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def work_size(config: Any, images: bool = False) -> WorkSize:
    """The arithmetic of a gradient step of this Config, by its rows and the widths of its layers.

    `images`: observations hold some, so that encoder auto has convolutions.
    """
    settings = flat_settings(config)
    encoder = settings.get("encoder", "mlp")
    if ":" in encoder:  # the user's own: any size, and not divided among devices as our convolutions are
        return MOST_PRODUCTS_OF_ONE_THREAD + 1
    if encoder not in ("auto", "mlp") or (encoder == "auto" and images):
        return "images"
    rows = sys.modules[type(config).__module__].SUPPORTS.rows(config)
    named = (settings.get(name) or () for name in ("hidden_sizes", "policy_hidden_sizes", "value_hidden_sizes"))
    hidden_sizes = [size for sizes in named for size in sizes]
    gates = 4 * settings["core_size"] if settings.get("core", "feedforward") != "feedforward" else 0
    return rows * max([gates, 1, *hidden_sizes]) * max(hidden_sizes, default=1)


def largest_power_of_two(cpus: int) -> int:
    """The largest power of two up to `cpus` CPU cores: it divides most batches and dense layers."""
    return 1 << (min(cpus, MOST_DEVICES).bit_length() - 1)


def _cpu_count() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
