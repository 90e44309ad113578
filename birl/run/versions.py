"""Which software a number was produced with."""

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


@functools.cache  # asked for at each checkpoint, and looked up on disk
def versions() -> dict[str, str]:
    """Versions of Python and of what is installed of the packages that can change a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def changed_versions(then: dict[str, str]) -> list[str]:
    """What is installed in another version than it was, as "jax 0.10.1 -> 0.10.2"."""
    now = versions()
    changed = [name for name in then | now if then.get(name) != now.get(name)]
    return [f"{name} {then.get(name, 'missing')} -> {now.get(name, 'missing')}" for name in changed]
