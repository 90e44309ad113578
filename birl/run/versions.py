"""Which software a number was produced with."""

import importlib.metadata
import platform

PACKAGES = ("birl", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "box2d", "envpool", "mujoco", "ale-py", "safetensors")


def versions() -> dict[str, str]:
    """Versions of Python and of what is installed of the packages that can change a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
