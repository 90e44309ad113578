"""The wheel and the sdist are complete, and an installed Birl works away from the clone."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import birl
from scripts import package
from scripts.package import Built, Refused

NO_NETWORK = ["--no-isolation", "--skip-dependency-check"]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    pytest.importorskip("build")
    return package.build(tmp_path_factory.mktemp("build"), NO_NETWORK)


def test_both_files_pass_twine_and_have_the_files_they_should(built):
    package.check(built)


def test_both_files_are_named_after_the_one_version(built):
    assert built.wheel.name == f"birl-{birl.__version__}-py3-none-any.whl"
    assert built.sdist.name == f"birl-{birl.__version__}.tar.gz"


def test_the_metadata_have_the_version_and_the_lowest_versions_of_dependencies(built):
    with zipfile.ZipFile(built.wheel) as archive:
        metadata = archive.read(f"birl-{birl.__version__}.dist-info/METADATA").decode().splitlines()
    assert f"Version: {birl.__version__}" in metadata
    assert "Requires-Dist: jax>=0.7.2" in metadata


def test_a_wheel_that_lacks_a_file_or_has_tests_is_refused(built, tmp_path):
    wrong = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as old, zipfile.ZipFile(wrong, "w") as new:
        for name in old.namelist():
            if name != "birl/lab/report/page.css":
                new.writestr(name, old.read(name))
        new.writestr("tests/test_cli.py", "")
    assert list(package.problems_of_wheel(wrong)) == [
        f"{wrong.name} lacks birl/lab/report/page.css",
        f"{wrong.name} should not have tests/test_cli.py",
    ]


def test_an_sdist_that_lacks_a_file_is_refused(built, tmp_path):
    wrong = tmp_path / built.sdist.name
    with tarfile.open(built.sdist) as old, tarfile.open(wrong, "w:gz") as new:
        for member in old.getmembers():
            if not member.name.endswith("/birl/py.typed"):
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
    assert list(package.problems_of_sdist(wrong)) == [f"{wrong.name} lacks birl/py.typed"]


def test_what_is_installed_from_the_wheel_works_away_from_the_clone(built, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    [packages] = venv.glob("lib/python*/site-packages")
    # The dependencies of this Python, without its .pth files: one may lead to an editable Birl.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "--disable-pip-version-check"]
    words = [*pip, "install", "--quiet", "--no-deps", "--no-index", built.wheel]
    subprocess.run(words, check=True, env=package.plain_environment())
    empty = tmp_path / "empty"
    empty.mkdir()
    command = [venv / "bin" / "python", "-I", package.SMOKE]
    finished = subprocess.run(command, cwd=empty, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("ok      ") == 6
    assert str(packages) in finished.stdout


def test_an_installation_that_does_not_work_fails_the_smoke_test(tmp_path):
    """This Python has Birl, if at all, from the clone: not from site-packages."""
    finished = subprocess.run(
        [sys.executable, package.SMOKE],
        cwd=tmp_path,
        env={"PYTHONPATH": str(package.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert "failed  find_the_package: RuntimeError: birl was imported from" in finished.stdout


def test_the_smoke_test_asks_for_an_empty_directory(tmp_path):
    (tmp_path / "birl.py").touch()
    command = [sys.executable, "-I", package.SMOKE]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "is not empty" in finished.stderr


def test_a_command_that_fails_refuses_the_package():
    with pytest.raises(Refused, match="ended with 3"):
        package.run([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(Refused, match=r"ended with 1:(.|\n)*what went wrong"):
        package.run_quietly([sys.executable, "-c", "raise ValueError('what went wrong')"])


def test_this_python_is_recognised_and_another_program_is_not(tmp_path):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert package.is_python(sys.executable, version)
    assert not package.is_python(sys.executable, "3.99")
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert not package.is_python(str(shim), version)


def test_pythons_of_pyenv_are_found(tmp_path, monkeypatch):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = tmp_path / "versions" / f"{version}.99" / "bin"
    home.mkdir(parents=True)
    (home / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(package, "supported", lambda: [version, "3.99"])
    assert package.interpreters() == {version: str(home / "python3")}


def test_versions_of_python_are_ordered_as_numbers():
    assert package.supported() == sorted(package.supported(), key=lambda version: int(version[2:]))
    assert package.supported()[0] == "3.11"


def test_left_overs_of_earlier_builds_are_not_copied(tmp_path):
    copied = package.copy_sources(tmp_path / "source")
    files = {path.relative_to(copied) for path in copied.rglob("*") if path.is_file()}
    assert Path("birl/__init__.py") in files
    assert not [path for path in files if "__pycache__" in path.parts or path.parts[0] in ("build", "dist")]


def test_an_editable_install_is_a_path_that_type_checkers_follow(tmp_path):
    source = package.copy_sources(tmp_path / "source")
    code = "import setuptools.build_meta as build, sys; print(build.build_editable(sys.argv[1]))"
    finished = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=source, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / finished.stdout.splitlines()[-1]) as archive:
        [path] = [name for name in archive.namelist() if "/" not in name]
        assert path.endswith(".pth")
        assert archive.read(path).decode().strip() == str(source)
