"""`birl doctor` accepts a working installation, and explains what is wrong with a broken one."""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from birl.run import doctor
from birl.run.doctor import Check, examine
from tests.run.processes import call


def only(monkeypatch: pytest.MonkeyPatch, *titles: str) -> None:
    monkeypatch.setattr(doctor, "CHECKS", [check for check in doctor.CHECKS if check.title in titles])


def raising(error: Exception) -> Callable[..., Any]:
    def function(*args: object, **kwargs: object) -> None:
        raise error

    return function


def test_this_installation_works():
    lines: list[str] = []
    assert examine(lines.append), "\n".join(lines)
    said = "\n".join(lines)
    for title in ("devices", "cache", "disk", "training", "resume", "rendering", "video"):
        assert sum(line.startswith(f"ok      {title}: ") for line in lines) == 1, said
    assert "jax " in said
    assert "bit for bit" in said
    assert lines[-1] == "everything works"


@pytest.mark.parametrize("package", ["mujoco", "ale-py", "envpool"])
def test_the_version_of_an_installed_simulator_is_reported(package, monkeypatch):
    pytest.importorskip(package.replace("-", "_"))
    only(monkeypatch, "disk")
    lines: list[str] = []
    examine(lines.append)
    assert f"{package} {importlib.metadata.version(package)}" in "\n".join(lines)


def test_a_missing_extra_is_named_with_how_to_install_it_and_is_not_a_failure(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("ale_py", "ray") else find_spec(name)
    )
    only(monkeypatch, "devices")
    lines: list[str] = []
    assert examine(lines.append)
    assert any("atari: not installed" in line and "pip install '.[atari]'" in line for line in lines)
    assert any("ray: not installed" in line and "pip install '.[ray]'" in line for line in lines)


def test_packages_whose_versions_do_not_work_together_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.0.0")
    only(monkeypatch, "disk")
    lines: list[str] = []
    assert examine(lines.append)
    warnings = [line for line in lines if line.startswith("warning ")]
    assert [line.rpartition(": ")[2] for line in warnings] == [
        "pip install 'gymnasium-robotics' 'mujoco<3.9'",
        "pip install 'shimmy[dm-control]' 'mujoco<4'",
    ]


@pytest.mark.parametrize(
    ("title", "broken"),
    [
        ("training", "birl.run.doctor.train"),
        ("rendering", "birl.run.doctor.make_env"),
        ("video", "birl.run.doctor.film"),
        ("cache", "birl.run.doctor.cache_directory"),
        ("devices", "birl.run.doctor.jax.devices"),
    ],
)
def test_a_failure_is_reported_with_a_remedy_and_the_other_checks_still_run(title, broken, monkeypatch):
    only(monkeypatch, title, "disk")
    monkeypatch.setattr(broken, raising(RuntimeError("broken on purpose")))
    lines: list[str] = []
    assert not examine(lines.append)
    [failed] = [line for line in lines if line.startswith("failed")]
    assert failed.startswith(f"failed  {title}: ")
    assert "Remedy: " in failed
    assert any(line.startswith("ok      disk") for line in lines)
    assert lines[-1] == "1 of 2 checks failed"


def test_a_resume_that_is_not_exact_is_noticed(monkeypatch, tmp_path):
    """One tensor that differs is enough."""
    doctor.train_a_little(tmp_path)
    load = doctor.load

    def altered(path: Path) -> Any:
        saved = load(path)
        if "resumed" in path.parts:
            name = next(name for name in saved.tensors if name.startswith(".network"))
            saved.tensors[name] = saved.tensors[name] + 1e-7
        return saved

    monkeypatch.setattr(doctor, "load_checkpoint", altered)
    with pytest.raises(RuntimeError, match="differ after a resume"):
        doctor.resume_exactly(tmp_path)


def test_a_full_disk_is_a_failure(monkeypatch):
    only(monkeypatch, "disk")
    monkeypatch.setattr(doctor, "LEAST_FREE", float("inf"))
    lines: list[str] = []
    assert not examine(lines.append)
    assert "GB free in" in lines[-2]
    assert "Remedy: free some space" in lines[-2]


@pytest.mark.parametrize(("answer", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_everything_works(answer, code, monkeypatch):
    outcome = (lambda directory: "fine") if answer else raising(ValueError("broken"))
    monkeypatch.setattr(doctor, "CHECKS", [Check("test", outcome, "repair it")])
    assert call("doctor")[0] == code
