"""The files beside the package agree with it: versions, constraints, Dockerfile, hints, forms."""

import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import birl
from birl.errors import install_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOWEST_EXTRAS = {"atari", "envpool", "gymnax", "tune"}  # as constraints-lowest.txt and the Makefile say


def pins_of(name: str) -> dict[str, str]:
    """The version of each package in a constraints file."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}


def floors_of(requirements: list[str]) -> dict[str, str]:
    """The lowest version that each requirement allows."""
    found = {}
    for requirement in map(Requirement, requirements):
        [floor] = [part.version for part in requirement.specifier if part.operator == ">="]
        found[canonicalize_name(requirement.name)] = floor
    return found


# Versions


def test_the_version_is_written_in_the_package_and_nowhere_else_in_the_build():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    source = (ROOT / "birl" / "__init__.py").read_text()
    assert re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE) == [birl.__version__]


def test_the_citation_and_the_changelog_have_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == birl.__version__
    assert cited["license"] == PROJECT["license"]
    assert re.search(rf"^## {re.escape(birl.__version__)} \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_lowest_versions_are_those_that_the_project_allows():
    wanted = floors_of(PROJECT["dependencies"])
    for extra in LOWEST_EXTRAS:
        wanted |= floors_of(EXTRAS[extra])
    pins = pins_of("constraints-lowest.txt")
    assert pins.keys() == wanted.keys()
    assert [name for name in wanted if Version(pins[name]) != Version(wanted[name])] == []


def test_the_extras_with_lowest_versions_are_named_and_installed():
    text = (ROOT / "constraints-lowest.txt").read_text()
    assert f"the extras {', '.join(sorted(LOWEST_EXTRAS)[:-1])} and {max(LOWEST_EXTRAS)}." in text
    assert f"--editable '.[{','.join(sorted(LOWEST_EXTRAS))}]'" in (ROOT / "Makefile").read_text()


def test_the_tests_of_the_lowest_versions_are_there():
    [listed] = re.findall(r"^LOWEST := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    paths = listed.replace("\\\n", " ").split()
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / "tests" / path).exists()] == []


def test_the_versions_tested_with_are_allowed_and_complete():
    pins = pins_of("constraints.txt")
    requirements = [*map(Requirement, [*PROJECT["dependencies"], *EXTRAS["dev"]])]
    missing = {canonicalize_name(requirement.name) for requirement in requirements} - pins.keys()
    assert sorted(missing) == []
    too_low = [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    ]
    assert too_low == []


# Hints


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"dev"}))
def test_an_extra_is_installed_from_a_clone(extra):
    assert install_extra(extra) == f"pip install '.[{extra}]' in a clone of Birl"


def test_the_code_names_only_extras_that_exist():
    sources = "\n".join(path.read_text() for path in (ROOT / "birl").rglob("*.py"))
    named = set(re.findall(r"install_extra\(['\"](\w+)['\"]\)", sources))
    assert {"wandb", "ray", "minari", "tune"} <= named <= EXTRAS.keys()


def test_nobody_is_told_to_install_birl_from_pypi():
    """Birl is not on PyPI: `pip install` with its name would fail, or install something else."""
    wrong = re.compile(r"pip install (?:-\S+ )*['\"]?birl\b|['\"`]birl\[")
    kinds = {".py", ".md", ".txt", ".toml", ".yml", ".html", ".cff", ""}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name and name != Path(__file__).relative_to(ROOT).as_posix()]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.suffix in kinds and path.is_file()}
    assert len(texts) > 300
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if wrong.search(text)] == []


# Dockerfile


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments, in order."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def test_the_image_has_the_versions_tested_with_and_does_not_run_as_root():
    found = instructions()
    last_stage = found[max(number for number, (name, _) in enumerate(found) if name == "FROM") :]
    [user] = [words for name, words in last_stage if name == "USER"]
    assert user.isdigit()
    assert int(user) > 0
    [install] = [words for name, words in last_stage if "pip install" in words]
    assert "--constraint /wheels/constraints.txt" in install
    assert f"--uid {user} birl" in install
    assert ("ENTRYPOINT", '["birl"]') in last_stage
    assert [name for name, _ in last_stage].index("USER") > [name for name, _ in last_stage].index("RUN")


def test_the_python_of_the_image_is_supported():
    versions = {re.match(r"python:(3\.\d+)-slim", words)[1] for name, words in instructions() if name == "FROM"}
    classifiers = PROJECT["classifiers"]
    assert [version for version in versions if f"Programming Language :: Python :: {version}" not in classifiers] == []


def test_what_the_image_copies_is_there_and_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word
        for name, words in instructions()
        if name == "COPY" and "--from" not in words
        for word in words.split()[:-1]
    }
    assert copied == kept
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: it has no wheel for this machine")
    finished = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (finished.returncode, finished.stdout) == (0, "")


# Forms for issues, workflow


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_a_form_asks_for_the_output_of_birl_doctor(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = {part["id"]: part for part in form["body"] if part["type"] != "markdown"}
    assert "birl doctor" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"] is True


def test_every_issue_has_a_form():
    config = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert config["blank_issues_enabled"] is False


def test_the_workflow_runs_what_ci_runs_on_the_oldest_and_the_newest_python_tried():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    job = workflow["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == [named[0], named[-1]]
