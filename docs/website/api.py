"""The pages of the API reference, for mkdocstrings: which names are on which page.

The text of a page is made from docstrings, which are read and not imported. A public name that is
on no page, or on two, is an error.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import birl

INDEX = {
    "en": (
        "# API\n\nEvery public name of `birl`. The text comes from the docstrings of version {version}.\n",
        "name",
        "is",
        "Algorithms",
    ),
    "zh": ("# API\n\n`birl` 的全部公开名称。说明取自 {version} 版的文档字符串，是英文。\n", "名称", "说明", "算法"),
}


class Group(NamedTuple):
    """A page about public names, and about names of modules that go with them."""

    file: str
    title: str
    title_zh: str
    intro: str
    intro_zh: str
    public: tuple[str, ...]  # of `birl`
    others: tuple[str, ...] = ()  # full names of further classes and modules


GROUPS = (
    Group(
        "train.md",
        "Train and resume",
        "训练与继续",
        "Guides: [usage](../usage.md), [callbacks](../callbacks.md), "
        "[runs and checkpoints](../runs-and-checkpoints.md).",
        "指南：[用法](../usage.md)、[回调](../callbacks.md)、[运行目录与检查点](../runs-and-checkpoints.md)。",
        ("train", "resume", "start", "reopen", "configure", "preset", "RunConfig", "ConfigError"),
        ("birl.run.loop.Run",),
    ),
    Group(
        "policies.md",
        "Policies",
        "策略",
        "Guide: [policies](../policies.md).",
        "指南：[策略](../policies.md)。",
        ("load", "Policy", "evaluate", "play", "record"),
    ),
    Group(
        "environments.md",
        "Environments",
        "环境",
        "Guides: [environments](../environments.md), [your own environment](../your-own-environment.md), "
        "[compiled environments](../compiled-environments.md).",
        "指南：[环境](../environments.md)、[自己的环境](../your-own-environment.md)、"
        "[编译环境](../compiled-environments.md)。",
        ("EnvConfig", "AtariConfig", "Wrapper", "check_env", "CompiledEnv"),
    ),
    Group(
        "experiments.md",
        "Experiments",
        "实验",
        "Guides: [fork](../fork.md), [compare](../compare.md), [report](../report.md), [diagnose](../diagnose.md), "
        "[tune](../tune.md), [solve](../solve.md).",
        "指南：[分叉](../fork.md)、[比较](../compare.md)、[报告](../report.md)、[诊断](../diagnose.md)、"
        "[搜索设置](../tune.md)、[求解](../solve.md)。",
        ("fork", "open_fork", "compare", "report", "diagnose", "prove", "tune", "solve"),
    ),
    Group(
        "schedules.md",
        "Schedules",
        "调度",
        "Guide: [schedules](../schedules.md).",
        "指南：[调度](../schedules.md)。",
        ("constant", "linear", "exponential", "piecewise", "schedule"),
        ("birl.maths.schedules.Schedule",),
    ),
    Group(
        "types.md",
        "Types",
        "类型",
        "What the parts of Birl pass to each other. [Architecture](../architecture.md) shows how.",
        "Birl 各部分之间传递的数据。[架构](../architecture.md)说明了怎样传递。",
        (),
        ("birl.types",),
    ),
    Group(
        "maths.md",
        "Maths",
        "数学",
        "Pure functions on arrays, each with the equation that it computes.",
        "数组上的纯函数，每个都写明了它计算的公式。",
        (),
        (
            *("birl.maths.returns", "birl.maths.losses", "birl.maths.distributions", "birl.maths.squashed"),
            *("birl.maths.state_dependent", "birl.maths.exploration", "birl.maths.trust_region"),
            *("birl.maths.truncated", "birl.maths.statistics", "birl.maths.comparisons"),
        ),
    ),
)


class ApiError(Exception):
    """A public name is on no page of the API reference, or on two."""


def api_pages(root: Path, language: str) -> dict[str, str]:
    """The text of each page by its path in the site."""
    require_every_name()
    pages = {"api/index.md": index_page(root, language)}
    pages |= {f"api/{group.file}": group_page(group, language) for group in GROUPS}
    return pages | {f"api/algorithms/{name}.md": algorithm_page(root, name, language) for name in birl.ALGORITHMS}


def require_every_name() -> None:
    """Refuse to build if a public name has no place in the reference, or has two."""
    algorithms = {name.replace("-", "_") for name in birl.ALGORITHMS}
    placed = [name for group in GROUPS for name in group.public]
    for name in set(birl.__all__) - algorithms - {"ALGORITHMS"}:
        if placed.count(name) != 1:
            raise ApiError(
                f"birl.{name} is on {placed.count(name)} pages of the API; "
                "name it once in GROUPS of docs/website/api.py"
            )


def index_page(root: Path, language: str) -> str:
    """The page with every public name and the first line of its docstring."""
    intro, name_title, is_title, algorithms = INDEX[language]
    header = f"| {name_title} | {is_title} |\n|---|---|"
    homes = homes_of(root)
    lines = [intro.format(version=birl.__version__)]
    for group in [group for group in GROUPS if group.public]:
        title = group.title_zh if language == "zh" else group.title
        lines.append(f"\n## {title}\n\n{header}")
        lines += [
            f"| [`birl.{name}`]({group.file}#birl.{name}) | {first_line(root, homes[name], name)} |"
            for name in group.public
        ]
    lines.append(f"\n## {algorithms}\n\n{header}")
    for name, module in birl.ALGORITHMS.items():
        lines.append(f"| [`birl.{name.replace('-', '_')}`](algorithms/{name}.md) | {first_line(root, module, None)} |")
    return "\n".join(lines) + "\n"


def homes_of(root: Path) -> dict[str, str]:
    """The module of each public name, from the imports of `birl/__init__.py` for type checkers."""
    tree = ast.parse((root / "birl" / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def first_line(root: Path, module: str, name: str | None) -> str:
    """The first line of the docstring of a name in a module, or of the module if it is None."""
    file = root / module.replace(".", "/")
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    if name and not found:  # imported there from somewhere else
        [home] = [
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]
        ]
        return first_line(root, home, name)
    docstring = ast.get_docstring(found[0] if found else tree)
    if not docstring:
        raise ApiError(f"{module}.{name} has no docstring; write one")
    return docstring.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def group_page(group: Group, language: str) -> str:
    """The page of a group of names."""
    title, intro = (group.title_zh, group.intro_zh) if language == "zh" else (group.title, group.intro)
    blocks = [block(f"birl.{name}", f"birl.{name}") for name in group.public]
    blocks += [block(name, name) for name in group.others]
    return "\n".join([f"# {title}\n", f"{intro}\n", *blocks])


def algorithm_page(root: Path, name: str, language: str) -> str:
    """The page of an algorithm: its file from top to bottom, and `act`, which it may import."""
    module = birl.ALGORITHMS[name]
    guide = f"../../{name}.md"
    intro = f"Its [page]({guide}) has equations, options and presets."
    if language == "zh":
        intro = f"公式、选项和预设在它的[页面]({guide})上。"
    blocks = [f"::: {module}\n    options:\n      heading_level: 1\n      show_root_heading: false\n"]
    if imports(root / (module.replace(".", "/") + ".py"), "act"):
        blocks.append(block(f"{module}.act", "act"))
    return "\n".join([f"# birl.{name.replace('-', '_')}\n", f"{intro}\n", *blocks])


def imports(file: Path, name: str) -> bool:
    """Whether a file imports something under this name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return any(
        (alias.asname or alias.name) == name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def block(name: str, heading: str) -> str:
    """What mkdocstrings replaces by the documentation of a name."""
    return f"::: {name}\n    options:\n      heading: {heading}\n"
