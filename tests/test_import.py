"""Importing Birl is cheap, gives every public name, and leaves optional packages alone."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import birl
from birl.registry import algorithm_named
from tests.run.processes import ENVIRONMENT

PACKAGE = Path(birl.__file__).parent
RAY_ACTORS = (
    "birl.workers.ray_actors",
    "birl.rollouts.ray_rollouts",
    "birl.asynchronous.ray_pool",
)  # import it at once
RAY = ("ray", *RAY_ACTORS)


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


def test_dir_and_so_tab_completion_has_the_public_names_and_no_others():
    assert dir(birl) == sorted([*birl.__all__, "__version__"])


def test_dir_imports_nothing_heavy():
    code = "import sys, birl; dir(birl); print([n for n in ('jax', 'numpy', 'gymnasium') if n in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'birl' has no attribute 'sarsa'"):
        _ = birl.sarsa


# What type checkers and editors see


def test_the_stub_is_that_of_the_signatures_and_the_configs():
    script = runpy.run_path(str(PACKAGE.parent / "scripts" / "stub.py"))
    assert script["stub"]() == (PACKAGE / "__init__.pyi").read_text(), "run python scripts/stub.py"


CALLS = """
birl.train("ppo", "CartPole-v1", learning_rate="linear:1e-3:0", epochs=3, seeds=2, sweep={"discount": [0.9]})
birl.start(birl.configure("a3c", "CartPole-v1", hidden_sizes=[64, 64]), total_steps=1, encoder="mine:Encoder")
birl.train("dqn", make_env=MyEnv, kwargs={"size": 3}, run_dir=Path("runs"), exploration=lambda progress: 1 - progress)
birl.tune("sac", "Pendulum-v1", minutes=3, actor_learning_rate=1e-3)
birl.fork("runs/mine", at=50, epochs=3, batch_size=32)
birl.configure(like="runs/mine", minibatches=2)
birl.preset("async-q", "CartPole-v1").learning_rate
birl.train(any_name, "CartPole-v1", total_steps=3, **any_settings)
"""
MISTAKES = """
birl.train("ppo", lerning_rate=3)
birl.train("ppo", total_steps="a lot")
birl.train("dqn", "CartPole-v1", epochs=3)
birl.train("a2c", sweeps={})
birl.train(birl.configure("ppo", "CartPole-v1"), batch_size=3)
birl.start("sac", lerning_rate=3)
birl.configure("ppo", "CartPole-v1", optimizer="adams")
birl.configure(like="runs/mine", lerning_rate=3)
birl.tune("ppo", "CartPole-v1", minuts=3)
birl.fork("runs/mine", lerning_rate=3)
birl.open_fork("runs/mine", total_steps="a lot")
birl.resume("runs/mine", total_step=3)
birl.preset("ppo", "CartPole-v1").lerning_rate
birl.importlib
"""
ANY_ALGORITHM = """
from ...config import EnvConfig, RunConfig
class Config:
    env: EnvConfig
    run: RunConfig
    learning_rate: float
"""


def write_what_the_stub_imports(folder: Path) -> None:
    """A package `birl` of the stub and of empty classes, so that JAX is not checked as well."""
    text = (PACKAGE / "__init__.pyi").read_text()
    (folder / "birl").mkdir()
    (folder / "birl" / "__init__.pyi").write_text(text)
    for home, name in re.findall(r"^from ((?:birl|gymnasium)\.[\w.]+) import (\w+)", text, re.MULTILINE):
        is_algorithm = home == "birl.algos"
        place = folder.joinpath(*home.split("."), *[name] * is_algorithm)
        place.mkdir(parents=True, exist_ok=True)
        with (place / "__init__.pyi").open("a") as stub:
            stub.write(ANY_ALGORITHM if is_algorithm else f"class {name}: ...\n")


def test_type_checkers_know_the_settings_of_each_algorithm(tmp_path, monkeypatch, pytestconfig):
    api = pytest.importorskip("mypy.api")
    write_what_the_stub_imports(tmp_path)
    beginning = "import birl\nfrom pathlib import Path\nfrom typing import Any\nfrom gymnasium.core import Env\n"
    beginning += "class MyEnv(Env): ...\nany_name: str\nany_settings: dict[str, Any]\n"
    (tmp_path / "calls.py").write_text(beginning + CALLS)
    (tmp_path / "mistakes.py").write_text(beginning + MISTAKES)
    monkeypatch.chdir(tmp_path)
    cache = pytestconfig.cache.mkdir("mypy")  # the types of the standard library take 10 seconds
    found, _, _ = api.run(["--config-file=", f"--cache-dir={cache}", "calls.py", "mistakes.py"])
    lines = {int(number) for number in re.findall(r"^mistakes.py:(\d+): error", found, re.MULTILINE)}
    first = beginning.count("\n") + 2
    assert lines == set(range(first, first + MISTAKES.count("\n") - 1)), found
    assert "calls.py" not in found


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
        ("brax", ["envs/compiled/robots.py"]),
        ("jumanji", ["envs/compiled/jumanji.py"]),
        ("mujoco_playground", ["envs/compiled/robots.py"]),
        ("tensorboard", ["run/trackers.py"]),
        ("wandb", ["run/trackers.py"]),
        ("trackio", ["run/trackers.py"]),
        ("minari", ["rollouts/transition_files.py"]),
        ("ray", ["workers/ray_actors.py"]),
        ("imageio_ffmpeg", ["run/record.py"]),
        ("matplotlib", ["lab/diagnosis/picture.py", "run/plot.py"]),
    ],
)
def test_a_heavy_package_is_imported_in_few_files_only(package, files):
    found = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if package in imports_of(path)]
    assert sorted(found) == files


def test_test_files_that_need_ray_skip_themselves_without_it():
    """Else no test runs: pytest stops if a file cannot be imported."""
    for path in (PACKAGE.parent / "tests").rglob("test_*.py"):
        needs_ray = [node.lineno for node in ast.parse(path.read_text()).body if imports_ray(node)]
        skips = re.search(r"^(\w+ = )?pytest\.importorskip\(\"ray", path.read_text(), re.MULTILINE)
        assert not needs_ray or (skips and path.read_text().count("\n", 0, skips.start()) < min(needs_ray) - 1), path


def imports_ray(node: ast.AST) -> bool:
    """Whether a statement imports Ray, or a module of Birl that does."""
    return (isinstance(node, ast.ImportFrom) and node.module in RAY) or (
        isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "ray" for alias in node.names)
    )


def test_no_file_imports_the_heavy_extras_when_it_is_itself_imported():
    """A missing extra must not matter until it is used."""
    code = """
import importlib, pkgutil, sys, birl
NAMES = ("envpool", "wandb", "trackio", "minari", "ray", "ale_py", "mujoco", "torch", "tensorboard",
         "gymnax", "brax", "jumanji", "mujoco_playground")
OWN = ("ray_actors", "ray_pool", "ray_rollouts", "gymnax", "jumanji")  # read only when used
for module in pkgutil.walk_packages(birl.__path__, "birl."):
    if module.name.rpartition(".")[2] not in OWN:
        importlib.import_module(module.name)
print([name for name in NAMES if name in sys.modules])
"""
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
