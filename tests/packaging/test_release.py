"""scripts/release.py refuses what is not in order, and changes nothing then."""

import datetime
import subprocess
import sys
from pathlib import Path

import pytest

RELEASE = Path(__file__).parents[2] / "scripts" / "release.py"
CHANGELOG = """# Changelog

## Unreleased

### Added

- `birl sing`.

## 0.6.0 (2026-11-01)

- `birl dance`.
"""
TODAY = datetime.date.today().isoformat()


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """A git repository with the files that a release changes."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Someone")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "someone@example.org")
    root = tmp_path / "clone"
    (root / "birl").mkdir(parents=True)
    (root / "birl" / "__init__.py").write_text('"""Birl."""\n\n__version__ = "0.6.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / "CITATION.cff").write_text("title: Birl\nversion: 0.6.0\ndate-released: 2026-11-01\nlicense: MIT\n")
    git(root, "init", "--quiet", "--initial-branch", "main")
    save(root, "Everything")
    return root


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def save(root: Path, subject: str) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", subject)


def release(root: Path, *words: str, test: str = "true", pages: str = "true", package: str = "true") -> tuple[int, str]:
    """Exit code and output of the script, with quick commands in place of the slow checks."""
    commands = "--test", test, "--pages", pages, "--package", package
    command = [sys.executable, RELEASE, *words, "--root", root, *commands]
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return finished.returncode, finished.stdout + finished.stderr


def refused(root: Path, *words: str, **commands: str) -> str:
    """What is said of a release that must be refused and must change nothing."""
    before = state_of(root)
    code, said = release(root, *words, **commands)
    assert code == 1, said
    assert "is not released, and nothing was changed:" in said
    assert state_of(root) == before
    return said


def state_of(root: Path) -> list[str]:
    return [git(root, *words.split()) for words in ("rev-parse HEAD", "tag", "status --porcelain", "diff")]


def test_a_release_sets_the_version_dates_the_changelog_commits_and_tags(clone):
    code, said = release(clone, "0.7.0")
    assert code == 0, said
    assert '__version__ = "0.7.0"' in (clone / "birl" / "__init__.py").read_text()
    assert f"## 0.7.0 ({TODAY})\n\n### Added\n\n- `birl sing`.\n\n## 0.6.0" in (clone / "CHANGELOG.md").read_text()
    cited = (clone / "CITATION.cff").read_text()
    assert cited == f"title: Birl\nversion: 0.7.0\ndate-released: {TODAY}\nlicense: MIT\n"
    assert git(clone, "log", "-1", "--format=%s") == "Release 0.7.0"
    assert git(clone, "rev-parse", "v0.7.0^{commit}") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "status", "--porcelain") == ""
    assert [line.strip() for line in said.splitlines()[-2:]] == [
        "git push origin main v0.7.0",
        "twine upload dist/birl-0.7.0*",
    ]


def test_the_checks_see_the_new_version(clone):
    """So dist/ has the files of the release."""
    check = "grep -q 0.7.0 birl/__init__.py CITATION.cff CHANGELOG.md"
    assert release(clone, "0.7.0", package=check)[0] == 0


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ({"test": "sh -c 'exit 2'"}, "sh -c 'exit 2' is not green: it ended with 2"),
        ({"pages": "false"}, "false is not green: it ended with 1"),
        ({"package": "false"}, "false is not green: it ended with 1"),
    ],
)
def test_a_check_that_is_not_green_refuses(commands, reason, clone):
    assert reason in refused(clone, "0.7.0", **commands)


def test_changes_that_are_not_committed_refuse(clone):
    (clone / "new.py").touch()
    assert "changes that are not committed: ?? new.py" in refused(clone, "0.7.0")


def test_another_branch_refuses(clone):
    git(clone, "switch", "--quiet", "--create", "feature")
    assert "the branch is feature; switch to main" in refused(clone, "0.7.0")


def test_a_tag_that_exists_refuses(clone):
    git(clone, "tag", "v0.7.0")
    assert "the tag v0.7.0 exists" in refused(clone, "0.7.0")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.6.0", "0.6.0 is not newer than 0.6.0"),
        ("0.5.9", "0.5.9 is not newer than 0.6.0"),
        ("0.6.0rc1", "0.6.0rc1 is not newer than 0.6.0"),
        ("next", "'next' is not a version; write it like 0.7.0"),
        ("v0.7.0", "'v0.7.0' is another way to write 0.7.0"),
    ],
)
def test_a_version_that_is_not_newer_refuses(version, reason, clone):
    assert reason in refused(clone, version)


@pytest.mark.parametrize("notes", ["", "## Unreleased\n\n### Added\n\n"])
def test_a_changelog_without_entries_refuses(notes, clone):
    (clone / "CHANGELOG.md").write_text(f"# Changelog\n\n{notes}## 0.6.0 (2026-11-01)\n\n- `birl dance`.\n")
    save(clone, "Nothing is unreleased")
    assert "CHANGELOG.md has no entries under '## Unreleased'" in refused(clone, "0.7.0")


def test_every_reason_is_said_at_once(clone):
    git(clone, "switch", "--quiet", "--create", "feature")
    (clone / "new.py").touch()
    assert refused(clone, "0.6.0").count("\n- ") == 3


def test_a_dry_run_changes_nothing_and_runs_no_check(clone):
    before = state_of(clone)
    code, said = release(clone, "0.7.0", "--dry-run", test="false")
    assert code == 0
    assert said == "0.7.0 could be released, if these succeed: false; true; true\n"
    assert state_of(clone) == before


def test_a_commit_that_git_refuses_leaves_the_files_as_they_were(clone):
    hook = clone / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    before = state_of(clone)
    code, said = release(clone, "0.7.0")
    assert code == 1
    assert "git commit" in said
    assert '__version__ = "0.6.0"' in (clone / "birl" / "__init__.py").read_text()
    assert state_of(clone)[:2] == before[:2]
