"""Importing Birl is cheap, gives every public name, and leaves optional packages alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import birl
from birl.registry import algorithm_named
from tests.run.processes import ENVIRONMENT

PACKAGE = Path(birl.__file__).parent


def imports_of(path: Path) -> set[str]:
    """The top-level packages that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_import_birl_imports_nothing_heavy():
    heavy = ("jax", "numpy", "gymnasium", "equinox", "optax", "tyro", "rich")
    code = f"import sys, birl; print([name for name in {heavy} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize("name", birl.__all__)
def test_every_public_name_resolves(name):
    assert getattr(birl, name) is not None


def test_public_names_are_sorted_and_complete():
    assert birl.__all__ == sorted(birl.__all__)
    assert set(birl._HOMES) | {name.replace("-", "_") for name in birl.ALGORITHMS} | {"ALGORITHMS"} == set(birl.__all__)


def test_dir_and_so_tab_completion_knows_the_public_names():
    assert set(birl.__all__) | {"__version__"} <= set(dir(birl))
    assert dir(birl) == sorted(dir(birl))


def test_dir_imports_nothing_heavy():
    code = "import sys, birl; dir(birl); print([n for n in ('jax', 'numpy', 'gymnasium') if n in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'birl' has no attribute 'sarsa'"):
        _ = birl.sarsa


@pytest.mark.parametrize("name", birl.ALGORITHMS)
def test_every_algorithm_has_the_names_of_the_protocol(name):
    module = algorithm_named(name)
    assert getattr(birl, name.replace("-", "_")) is module
    assert [
        part for part in ("Config", "State", "validate", "init", "policy", "act", "train") if part not in vars(module)
    ] == []


@pytest.mark.parametrize(
    ("package", "files"),
    [
        ("envpool", ["envs/envpool.py"]),
        ("gymnax", ["envs/compiled/gymnax.py"]),
        ("brax", ["envs/compiled/brax.py"]),
        ("jumanji", ["envs/compiled/jumanji.py"]),
        ("mujoco_playground", ["envs/compiled/playground.py"]),
        ("tensorboard", ["run/tensorboard.py"]),
        ("wandb", ["run/wandb.py"]),
        ("trackio", ["run/trackio.py"]),
        ("minari", ["rollouts/minari.py"]),
        ("ray", ["workers/ray.py"]),
        ("imageio_ffmpeg", ["run/video.py"]),
        ("matplotlib", ["experiments/diagnosis/plot.py", "run/plot.py"]),
    ],
)
def test_a_heavy_package_is_imported_in_few_files_only(package, files):
    found = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if package in imports_of(path)]
    assert sorted(found) == files


def test_no_file_imports_the_heavy_extras_when_it_is_itself_imported():
    """A missing extra must not matter until it is used."""
    code = """
import importlib, pkgutil, sys, birl
NAMES = ("envpool", "wandb", "trackio", "minari", "ray", "ale_py", "mujoco", "torch", "tensorboard",
         "gymnax", "brax", "jumanji", "mujoco_playground")
OWN = ("wandb", "tensorboard", "ray", "gymnax", "brax", "jumanji", "playground")  # read only when used
for module in pkgutil.walk_packages(birl.__path__, "birl."):
    if module.name.rpartition(".")[2] not in OWN:
        importlib.import_module(module.name)
print([name for name in NAMES if name in sys.modules])
"""
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
