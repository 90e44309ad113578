"""How JAX is set up: called by whatever compiles, never at import."""

import os
from pathlib import Path

import jax


def cache_directory() -> Path:
    """Where compiled programs are kept between runs: $BIRL_CACHE_DIR, or birl in the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "birl"
    return Path(os.environ.get("BIRL_CACHE_DIR", default))


def prepare_jax() -> None:
    """Keep compiled programs on disk, so that a second start does not compile, and wait for each call on CPU."""
    # Handing a small call to another thread costs more than the call: 30 µs against 18.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
