"""Builds the wheel and the sdist, and tries them as users would: `make package`.

1. Both are built from the files that git knows; the wheel once more from the sdist.
2. Their metadata is checked by twine, their contents by this script.
3. The wheel is installed into an empty virtual environment of the oldest and of the newest Python
   that is here and that Birl supports, and scripts/smoke.py uses it away from the clone. The same
   with the sdist.

What has passed is in dist/. Nothing is uploaded.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SMOKE = ROOT / "scripts" / "smoke.py"
# Beside the package: what a build needs, and what a reader of the sources looks for. Tests are not
# there, because they check pages, benchmarks and scripts as well: they belong to a clone.
IN_SDIST = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md"}
IN_SDIST |= {"constraints.txt", "constraints-lowest.txt", "pyproject.toml", "setup.cfg"}


class Built(NamedTuple):
    """A wheel and an sdist of the same sources."""

    wheel: Path
    sdist: Path


class Refused(Exception):  # noqa: N818
    """The package is not fit for users; the message says why."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="birl-package-") as directory:
        place = Path(directory)
        try:
            built = build(place)
            check(built)
            try_everywhere(built, place)
        except Refused as problem:
            print(f"not fit for a release: {problem}", flush=True)
            return 1
        kept = keep(built)
    print(f"fit for a release: {kept.wheel.relative_to(ROOT)}, {kept.sdist.relative_to(ROOT)}", flush=True)
    return 0


# Building


def build(place: Path, options: Iterable[str] = ()) -> Built:
    """The sdist, and the wheel that is built from it; it is the one that the sources give."""
    source = copy_sources(place / "source")
    command = [sys.executable, "-m", "build", *options]
    run_quietly([*command, "--outdir", place / "from-sdist", source])
    run_quietly([*command, "--wheel", "--outdir", place / "from-source", source])
    [sdist] = (place / "from-sdist").glob("*.tar.gz")
    [wheel] = (place / "from-sdist").glob("*.whl")
    [other] = (place / "from-source").glob("*.whl")
    if different := set(contents(wheel).items()) ^ set(contents(other).items()):
        names = sorted({name for name, _ in different})
        raise Refused(f"the wheel of the sdist and that of the sources differ in {names}; correct MANIFEST.in")
    return Built(wheel, sdist)


def copy_sources(target: Path) -> Path:
    """A copy of the files that git knows: left-overs of earlier builds would get into a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def keep(built: Built) -> Built:
    """The same files in dist/, in place of those of an earlier build."""
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    for old in (*dist.glob("birl-*.whl"), *dist.glob("birl-*.tar.gz")):
        old.unlink()
    return Built(*(Path(shutil.copy2(path, dist)) for path in built))


# Checking


def check(built: Built) -> None:
    """Refuse metadata that PyPI would refuse, and files that are missing or too many."""
    run([sys.executable, "-m", "twine", "check", "--strict", *built])
    if problems := [*problems_of_wheel(built.wheel), *problems_of_sdist(built.sdist)]:
        raise Refused("; ".join(problems))


def problems_of_wheel(wheel: Path) -> Iterator[str]:
    """What is wrong with the files in a wheel."""
    names = set(contents(wheel))
    yield from (f"{wheel.name} lacks {name}" for name in sorted(package_files() - names))
    extra = {name for name in names - package_files() if not re.match(r"birl-[^/]+\.dist-info/", name)}
    yield from (f"{wheel.name} should not have {name}" for name in sorted(extra))
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        yield f"{wheel.name} lacks the licence"


def problems_of_sdist(sdist: Path) -> Iterator[str]:
    """What is wrong with the files in an sdist."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    wanted = package_files() | IN_SDIST
    yield from (f"{sdist.name} lacks {name}" for name in sorted(wanted - names))
    extra = {name for name in names - wanted if not name.startswith("birl.egg-info/")}
    yield from (f"{sdist.name} should not have {name}" for name in sorted(extra))


def contents(wheel: Path) -> dict[str, int]:
    """The CRC of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {item.filename: item.CRC for item in archive.infolist() if not item.is_dir()}


def package_files() -> set[str]:
    """The files of the package in this clone: code, py.typed, the frame of reports."""
    files = [path for path in (ROOT / "birl").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in files}


# Installing


def try_everywhere(built: Built, place: Path) -> None:
    """Install and use both files with the oldest and the newest Python that is here."""
    found = interpreters()
    if not found:
        raise Refused(f"there is no Python among {', '.join(supported())} here to install it with; install one")
    for version in sorted({min(found, key=as_numbers), max(found, key=as_numbers)}, key=as_numbers):
        venv = place / f"venv-{version}"
        say(f"Python {version}: the wheel in an empty virtual environment")
        run([found[version], "-m", "venv", venv])
        run([venv / "bin" / "pip", "install", "--quiet", built.wheel])
        use(venv, place / f"wheel-{version}")
        say(f"Python {version}: the sdist in its place")
        run([venv / "bin" / "pip", "install", "--quiet", "--force-reinstall", "--no-deps", built.sdist])
        use(venv, place / f"sdist-{version}")
        shutil.rmtree(venv)


def use(venv: Path, empty: Path) -> None:
    """Use the Birl that is installed in a virtual environment, in an empty directory."""
    empty.mkdir()
    run([venv / "bin" / "python", "-I", SMOKE], empty)


def interpreters() -> dict[str, str]:
    """The supported Pythons of this machine: those in PATH, and those of pyenv."""
    found = {}
    for version in supported():
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python3")))]
        if working := [path for path in candidates if path and is_python(path, version)]:
            found[version] = working[0]
        else:
            say(f"Python {version}: not found, not tried")
    return found


def is_python(path: str, version: str) -> bool:
    """Whether this program is a Python of this version. pyenv leaves scripts that are none."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    finished = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    return finished.returncode == 0 and finished.stdout.strip() == version


def supported() -> list[str]:
    """The versions of Python that pyproject.toml names, oldest first."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in classifiers]
    return sorted((match[1] for match in named if match), key=as_numbers)


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def run(command: Iterable[str | Path], directory: Path | None = None) -> None:
    """Run a command whose output is shown; Refused if it fails."""
    words = list(map(str, command))
    if code := subprocess.run(words, cwd=directory, env=plain_environment(), check=False).returncode:
        raise Refused(f"{' '.join(words)} ended with {code}")


def run_quietly(command: Iterable[str | Path]) -> None:
    """Run a command whose output is shown only if it fails; then it raises Refused."""
    words = list(map(str, command))
    finished = subprocess.run(words, env=plain_environment(), capture_output=True, text=True, check=False)
    if finished.returncode:
        raise Refused(f"{' '.join(words)} ended with {finished.returncode}:\n{finished.stdout}{finished.stderr}")


def plain_environment() -> dict[str, str]:
    """The environment without the variables that make Python look elsewhere for packages."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
