"""Write the support table of docs/algorithms.md and its Chinese twin.

    python docs/support_table.py

The table is made from SUPPORTS in each algorithm's file; tests/test_docs.py checks that it is up
to date.
"""

import re
from pathlib import Path

from birl import ALGORITHMS
from birl.registry import EVERY_ACTION, Supports, supports

DOCS = Path(__file__).resolve().parent
PAGES = {"algorithms.md": "", "algorithms.zh-CN.md": ".zh-CN"}  # a page, and the suffix of the pages it links to
SECTION = re.compile(r"(<!-- support:begin -->\n).*?(<!-- support:end -->)", re.DOTALL)
HEADERS = {
    "": "algorithm | actions | needs finite bounds | masks | recurrent | `envs=` | `prefill` | Ray rollouts | "
    "compiled environments | actor-learners",
    ".zh-CN": "算法 | 动作 | 要求边界有限 | 掩码 | 循环网络 | `envs=` | `prefill` | Ray rollout | 编译环境 | "
    "演员-学习者",
}
WORDS = {"": ("any", "yes", "-"), ".zh-CN": ("任意", "是", "-")}  # every action space, supported, not supported


def support_table(suffix: str) -> str:
    """The table in Markdown, one row for each algorithm, with links to pages of this suffix."""
    header = HEADERS[suffix]
    lines = [f"| {header} |", "|" + "---|" * len(header.split(" | "))]
    for name in ALGORITHMS:
        cells = [f"[`{name}`]({name}{suffix}.md)", *_cells(supports(name), *WORDS[suffix])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(text: str, suffix: str) -> str:
    """The text of a page with the table between its markers."""
    table = support_table(suffix)
    return SECTION.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)


def main() -> None:
    for page, suffix in PAGES.items():
        path = DOCS / page
        path.write_text(with_table(path.read_text(encoding="utf-8"), suffix), encoding="utf-8")


def _cells(declared: Supports, every: str, yes: str, no: str) -> list[str]:
    actions = every if declared.actions == EVERY_ACTION else ", ".join(declared.actions)
    claims = (
        declared.bounded,
        declared.masks,
        declared.recurrent,
        declared.passed_envs,
        declared.prefill,
        declared.ray_rollouts,
        declared.compiled,
        declared.actor_learners,
    )
    return [actions, *[yes if claim else no for claim in claims]]


if __name__ == "__main__":
    main()
