"""Tests run on the CPU, and check the shapes and types that birl.maths declares."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported

from hypothesis import settings
from jaxtyping import install_import_hook

# An int may stand for a float, as type checkers have it.
install_import_hook("birl.maths", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# Compiling makes the first example slow; the same examples each time make a failure repeatable.
settings.register_profile("birl", deadline=None, derandomize=True)
settings.load_profile("birl")
