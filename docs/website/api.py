"""The pages of the API reference, for mkdocstrings: which names are on which page.

The text of a page is made from docstrings, which are read and not imported. A public name that is
on no page, or on two, is an error.
"""

from pathlib import Path
from typing import NamedTuple

import birl
from docs.website.code import definitions, fields_of, home_of, imported, is_record, methods_of, summary_of

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
        "训练与恢复训练",
        "Guides: [usage](../usage.md), [callbacks](../callbacks.md), "
        "[runs and checkpoints](../runs-and-checkpoints.md).",
        "指南：[使用](../usage.md)、[回调](../callbacks.md)、[运行目录与检查点](../runs-and-checkpoints.md)。",
        ("train", "resume", "start", "reopen", "configure", "preset", "RunConfig", "ConfigError"),
        ("birl.run.run.Run",),
    ),
    Group(
        "policies.md",
        "Policies",
        "策略",
        "Guides: [policies](../policies.md), [export](../export.md), [sharing](../sharing.md).",
        "指南：[策略](../policies.md)、[导出](../export.md)、[分享](../sharing.md)。",
        ("load", "Policy", "evaluate", "play", "record", "export", "card", "push", "pull"),
    ),
    Group(
        "environments.md",
        "Environments",
        "环境",
        "Guides: [environments](../environments.md), [your own environment](../your-own-environment.md), "
        "[compiled environments](../compiled-environments.md).",
        "指南：[环境](../environments.md)、[自定义环境](../your-own-environment.md)、"
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
        "[搜索超参数](../tune.md)、[求解](../solve.md)。",
        ("fork", "open_fork", "compare", "report", "diagnose", "prove", "tune", "solve"),
    ),
    Group(
        "parts.md",
        "Parts of settings",
        "设置的部分",
        "The Config of each [algorithm](../algorithms.md) has those that it needs: `ppo.Config().network`.",
        "每个[算法](../algorithms.md)的 Config 有它需要的部分：`ppo.Config().network`。",
        (),
        ("birl.parts",),
    ),
    Group(
        "own-algorithms.md",
        "Algorithms of your own",
        "自己的算法",
        "Guide: [adding an algorithm](../adding-an-algorithm.md).",
        "指南：[添加算法](../adding-an-algorithm.md)（英文）。",
        ("register",),
        ("birl.registry.Supports",),
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
            *("birl.maths.returns", "birl.maths.losses", "birl.maths.distributions", "birl.maths.gaussians"),
            *("birl.maths.gaussians", "birl.maths.exploration", "birl.maths.trust_region"),
            "birl.maths.value_distributions",
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
    pages |= {f"api/{group.file}": group_page(root, group, language) for group in GROUPS}
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


def module_of(name: str) -> str:
    """The module that defines a public name of `birl`."""
    return birl._HOMES[name]


def index_page(root: Path, language: str) -> str:
    """The page with every public name and the first line of its docstring."""
    intro, name_title, is_title, algorithms = INDEX[language]
    header = f"| {name_title} | {is_title} |\n|---|---|"
    lines = [intro.format(version=birl.__version__)]
    for group in [group for group in GROUPS if group.public]:
        lines.append(f"\n## {group.title_zh if language == 'zh' else group.title}\n\n{header}")
        lines += [
            f"| [`birl.{name}`]({group.file}#birl.{name}) | {summary_of(root, module_of(name), name)} |"
            for name in group.public
        ]
    lines.append(f"\n## {algorithms}\n\n{header}")
    for name, home in birl.ALGORITHMS.items():
        module = home.partition(":")[0]
        lines.append(f"| [`birl.{name.replace('-', '_')}`](algorithms/{name}.md) | {summary_of(root, module, None)} |")
    return "\n".join(lines) + "\n"


def group_page(root: Path, group: Group, language: str) -> str:
    """The page of a group of names."""
    title, intro = (group.title_zh, group.intro_zh) if language == "zh" else (group.title, group.intro)
    blocks = [
        f'<a id="birl.{name}"></a>\n\n{entry(root, module_of(name), name, f"birl.{name}")}' for name in group.public
    ]
    for other in group.others:
        module, _, name = other.rpartition(".")
        blocks += module_entries(root, other) if name[0].islower() else [entry(root, module, name, other)]
    return "\n".join([f"# {title}\n", f"{intro}\n", *blocks])


def module_entries(root: Path, module: str) -> list[str]:
    """A section about a module: its docstring, then what it defines."""
    about = block(module, module, 2, "members: false", "show_source: false")
    return [about, *(entry(root, module, node.name, node.name, 3) for node in definitions(root, module))]


def algorithm_page(root: Path, name: str, language: str) -> str:
    """The page of an algorithm: its file, and what it imports as `act` and `State`."""
    module, _, part = birl.ALGORITHMS[name].partition(":")
    guide = f"../../{name}.md"
    intro = f"Its [page]({guide}) has equations, options and presets."
    if language == "zh":
        intro = f"公式、选项和预设在它的[页面]({guide})上。"
    if part:  # the file is on the page of the name that it has itself
        first = next(other for other, home in birl.ALGORITHMS.items() if home == module)
        return f"# birl.{part}\n\n{intro} [birl.{first}]({first}.md)\n"
    hidden = ("show_root_heading: false", "show_root_toc_entry: false")
    about = block(module, module, 2, "members: false", "show_source: false", *hidden)
    names = [node.name for node in definitions(root, module)]
    names += [name for name in ("State", "act") if name not in names and name in imported(root, module)]
    entries = [entry(root, module, defined, defined) for defined in names]
    return "\n".join([f"# birl.{name.replace('-', '_')}\n", f"{intro}\n", about, *entries])


def entry(root: Path, module: str, name: str, heading: str, level: int = 2) -> str:
    """The documentation of a name. Classes that are records are shown with their fields."""
    home, node = home_of(root, module, name)
    path = f"{module}.{name}"
    if not is_record(node):
        return block(path, heading, level)
    parts = [block(path, heading, level, "members: false", "show_source: false")]
    if fields := fields_of(root, home, node):
        parts.append(f"```python\n{fields}\n```\n")
    parts += [block(f"{path}.{method}", f"{name}.{method}", level + 1) for method in methods_of(node)]
    return "\n".join(parts)


def block(path: str, heading: str, level: int = 2, *options: str) -> str:
    """What mkdocstrings replaces by the documentation of a name."""
    lines = [f"heading: {heading}", f"toc_label: {heading}", f"heading_level: {level}", *options]
    return "\n".join([f"::: {path}", "    options:", *(f"      {line}" for line in lines), ""])
