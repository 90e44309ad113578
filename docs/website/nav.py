"""The order of the site: its sections, and which page is in which.

A pattern that matches no page is left out. A page that is in no section, or in two, is an error.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

CHINESE = ".zh-CN.md"
FOLDERS = (".", "docs", "docs/tutorials", "benchmarks", "examples")  # where pages are
MOVED = {  # paths in the site of pages that are not at their path below docs/
    "docs/start.md": "index.md",
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "ROADMAP.md": "roadmap.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/RESULTS.md": "measurements.md",
    "examples/README.md": "examples.md",
}
TITLES = {"README.md": {"en": "What Birl is", "zh": "Birl 是什么"}}  # where the heading of a page is no title


class Section(NamedTuple):
    """A section of the navigation: its title in both languages, and its pages and sections."""

    english: str
    chinese: str
    parts: tuple["str | Section", ...]


def docs(*names: str) -> tuple[str, ...]:
    """The paths of pages of docs/, by their names."""
    return tuple(f"docs/{name}.md" for name in names)


API = Section("API", "API", ("api/*.md", Section("Algorithms", "算法", ("api/algorithms/*.md",))))
SECTIONS = (
    Section("Start here", "从这里开始", ("docs/start.md", "README.md")),
    Section("Tutorials", "教程", docs("tutorials/*", "gallery")),
    Section(
        "Guides",
        "指南",
        (
            Section(
                "Running",
                "运行",
                docs(
                    *("usage", "runs-and-checkpoints", "policies", "export", "in-the-browser", "robot"),
                    *("sharing", "schedules", "ray"),
                ),
            ),
            Section(
                "Environments",
                "环境",
                docs(
                    *("environments", "your-own-environment", "compiled-environments", "compiled-or-host"),
                    *("atari", "mujoco", "other-packages"),
                ),
            ),
            Section(
                "Your own code", "自己的代码", (*docs("your-own-network", "callbacks", "replay"), "examples/README.md")
            ),
            Section(
                "Experiments",
                "实验",
                docs("many-seeds", "fork", "compare", "report", "diagnose", "tune", "solve"),
            ),
            Section(
                "Coming from elsewhere",
                "从别处来",
                docs("migrating-from-sb3", "migrating-from-cleanrl", "comparison"),
            ),
        ),
    ),
    Section(
        "Algorithms",
        "算法",
        (
            *docs("algorithms"),
            Section(
                "Policy gradients",
                "策略梯度",
                docs("policy-gradients", "reinforce", "qac", "a2c", "ppo", "trpo"),
            ),
            Section("Q-learning", "Q 学习", docs("dqn", "qr-dqn", "c51")),
            Section("Continuous actions", "连续动作", docs("dpg", "ddpg", "td3", "sac")),
            Section(
                "Actor-learners",
                "演员-学习者",
                docs("asynchronous", "a3c", "acer", "async-q", "async-sarsa", "async-nstep-q"),
            ),
        ),
    ),
    API,
    Section(
        "How it works",
        "内部原理",
        (
            *("docs/architecture.md", "files.md"),
            *docs("decisions", "glossary", "adding-an-algorithm"),
            "CONTRIBUTING.md",
            "SECURITY.md",
            "ROADMAP.md",
            "CHANGELOG.md",
        ),
    ),
    Section("Results", "结果", (*docs("scores", "speed"), "benchmarks/README.md", "benchmarks/RESULTS.md")),
)


class NavigationError(Exception):
    """A page is in no section, or in more than one."""


def pages_of(root: Path) -> list[str]:
    """The paths of all English pages of a repository."""
    found = [page for folder in FOLDERS for page in (root / folder).glob("*.md")]
    return sorted(page.relative_to(root).as_posix() for page in found if not page.name.endswith(CHINESE))


def twin_of(page: str) -> str:
    """The path of the Chinese twin of a page; it may not exist."""
    return page.removesuffix(".md") + CHINESE


def site_path(page: str) -> str:
    """Where a page is in the source tree of the site."""
    return MOVED.get(page, page.removeprefix("docs/"))


def navigation(pages: Iterable[str], language: str) -> list[dict[str, object]]:
    """The navigation in the form of mkdocs.yml, with these pages of the repository and the API."""
    pages = list(pages)
    listed = [page for section in SECTIONS for page in listed_in(section, pages)]
    for page in pages:
        if listed.count(page) != 1:
            raise NavigationError(
                f"{page} is in {listed.count(page)} sections of the site; "
                "name it once in SECTIONS of docs/website/nav.py"
            )
    return [entry for section in SECTIONS for entry in entries_of(section, pages, language)]


def listed_in(section: Section, pages: list[str]) -> Iterator[str]:
    """The pages of a section and of the sections in it."""
    for part in section.parts:
        yield from listed_in(part, pages) if isinstance(part, Section) else matches(part, pages)


def matches(pattern: str, pages: list[str]) -> list[str]:
    """The pages that a pattern names, in order. A `*` stops at a slash."""
    return [page for page in pages if fnmatch(page, pattern) and page.count("/") == pattern.count("/")]


def entries_of(section: Section, pages: list[str], language: str) -> list[dict[str, object]]:
    """The section in the form of mkdocs.yml; nothing if it has no page."""
    inside: list[object] = []
    for part in section.parts:
        if isinstance(part, Section):
            inside += entries_of(part, pages, language)
        else:
            inside += [entry_of(page, language) for page in matches(part, pages)]
    title = section.chinese if language == "zh" else section.english
    return [{title: inside}] if inside else []


def entry_of(page: str, language: str) -> object:
    """A page in the form of mkdocs.yml: its path, or its title and path."""
    return {TITLES[page][language]: site_path(page)} if page in TITLES else site_path(page)
