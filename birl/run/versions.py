"""The versions of the software that a result was produced with."""

import functools
import importlib.metadata
import platform

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


def changed_versions(then: dict[str, str]) -> list[str]:
    """The packages whose version has changed, as "jax 0.10.1 -> 0.10.2"."""
    now = versions()
    changed = [name for name in then | now if then.get(name) != now.get(name)]
    return [f"{name} {then.get(name, 'missing')} -> {now.get(name, 'missing')}" for name in changed]
