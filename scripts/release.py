"""Makes a release, or says why not: python scripts/release.py 0.7.0

It sets the version, dates the changelog, runs the tests and the checks of pages and package with
that, commits and tags. If anything is not in order, it says so and leaves everything as it was. It
uploads nothing: it prints the two commands that do.
"""

import argparse
import datetime
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "main"
VERSION_FILE = "birl/__init__.py"
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
CHANGELOG = "CHANGELOG.md"
UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CITATION = "CITATION.cff"


def main() -> int:
    options = parse()
    reasons = list(refusals(options.root, options.version))
    if reasons:
        return refuse(options.version, reasons)
    checks = options.test, options.pages, options.package
    if options.dry_run:
        print(f"{options.version} could be released, if these succeed: {'; '.join(checks)}")
        return 0
    before = {name: (options.root / name).read_text(encoding="utf-8") for name in (VERSION_FILE, CHANGELOG, CITATION)}
    committed = False
    try:
        write_version(options.root, options.version)
        for command in checks:
            if code := subprocess.run(shlex.split(command), cwd=options.root, check=False).returncode:
                return refuse(options.version, [f"{command} is not green: it ended with {code}; repair what it names"])
        git(options.root, "commit", "--quiet", "--message", f"Release {options.version}", *before)
        committed = True
    finally:  # also after ctrl-C
        if not committed:
            for name, text in before.items():
                (options.root / name).write_text(text, encoding="utf-8")
    git(options.root, "tag", "--annotate", "--message", f"Birl {options.version}", tag_of(options.version))
    print(f"{options.version} is committed and tagged as {tag_of(options.version)}. To publish it:")
    print(f"  git push origin {BRANCH} {tag_of(options.version)}")
    print(f"  twine upload dist/birl-{options.version}*")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="the new version, such as 0.7.0")
    parser.add_argument("--dry-run", action="store_true", help="only say whether anything is in the way; run no checks")
    parser.add_argument("--test", default="make test-all", help="the command that tests")
    parser.add_argument("--pages", default="make test-release", help="the command that compares what may lag behind")
    parser.add_argument("--package", default="make package", help="the command that builds and tries the package")
    parser.add_argument("--root", type=Path, default=ROOT, help="the clone to release from")
    return parser.parse_args()


def refuse(version: str, reasons: list[str]) -> int:
    print(f"{version} is not released, and nothing was changed:")
    for reason in reasons:
        print(f"- {reason}")
    return 1


def refusals(root: Path, version: str) -> Iterator[str]:
    """Each reason, as a sentence, why this version cannot be released from this clone."""
    yield from version_problem(root, version)
    if changed := git(root, "status", "--porcelain"):
        yield f"the tree has changes that are not committed: {', '.join(changed.splitlines())}; commit or stash them"
    if (branch := git(root, "branch", "--show-current")) != BRANCH:
        yield f"the branch is {branch or 'none'}; switch to {BRANCH}"
    if git(root, "tag", "--list", tag_of(version)):
        yield f"the tag {tag_of(version)} exists; choose a newer version"
    notes = UNRELEASED.search((root / CHANGELOG).read_text(encoding="utf-8"))
    if notes is None or not re.search(r"^- ", notes[1], re.MULTILINE):
        yield f"{CHANGELOG} has no entries under '## Unreleased'; write there what changes for users"


def version_problem(root: Path, version: str) -> Iterator[str]:
    current = current_version(root)
    try:
        new = Version(version)
    except InvalidVersion:
        yield f"{version!r} is not a version; write it like 0.7.0"
        return
    if str(new) != version:
        yield f"{version!r} is another way to write {new}; write it like that"
    if new <= Version(current):
        yield f"{version} is not newer than {current}, the version in {VERSION_FILE}; choose a newer one"


def current_version(root: Path) -> str:
    found = VERSION.search((root / VERSION_FILE).read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f'{root / VERSION_FILE} has no line __version__ = "..."; add it')
    return found[1]


def write_version(root: Path, version: str) -> None:
    """Set the version in the code and in CITATION.cff, and date the section of the changelog."""
    today = datetime.date.today().isoformat()
    replace(root / VERSION_FILE, VERSION, f'__version__ = "{version}"')
    replace(root / CHANGELOG, re.compile(r"^## Unreleased$", re.MULTILINE), f"## {version} ({today})")
    replace(root / CITATION, re.compile(r"^date-released: .*\n", re.MULTILINE), "")
    replace(root / CITATION, re.compile(r"^version: .*$", re.MULTILINE), f"version: {version}\ndate-released: {today}")


def replace(path: Path, pattern: re.Pattern[str], text: str) -> None:
    path.write_text(pattern.sub(text, path.read_text(encoding="utf-8"), count=1), encoding="utf-8")


def tag_of(version: str) -> str:
    return f"v{version}"


def git(root: Path, *words: str) -> str:
    """What git says, without the last line break; ends the script if it fails."""
    finished = subprocess.run(["git", *words], cwd=root, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise SystemExit(f"git {' '.join(words)} failed: {finished.stdout}{finished.stderr}")
    return finished.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
