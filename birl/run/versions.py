"""The versions of the software that a result was produced with, and the kind of machine."""

import functools
import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = (
    "birl",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "gymnasium",
    "box2d",
    "envpool",
    "mujoco",
    "ale-py",
    "safetensors",
)


@functools.cache  # each checkpoint needs them, and looking them up reads the disk
def versions() -> dict[str, str]:
    """The versions of Python and of the installed packages that can change a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def machine() -> dict[str, str | int]:
    """The kind of machine: system, processor, cores; not its name."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
    }


def _processor() -> str:
    """The model of the processor; on Linux, Python does not know it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def changed_versions(then: dict[str, str]) -> list[str]:
    """The packages whose version has changed, as "jax 0.10.1 -> 0.10.2"."""
    now = versions()
    changed = [name for name in then | now if then.get(name) != now.get(name)]
    return [f"{name} {then.get(name, 'missing')} -> {now.get(name, 'missing')}" for name in changed]
