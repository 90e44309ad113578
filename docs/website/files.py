"""The page of the site that lists the files of the package, each with its first line."""

import ast
from pathlib import Path

from docs.website.pages import SitePage, source_page_path

FILES = "files.md"  # the page in the source tree of the site
INTRO = {
    "en": "# Files\n\nEvery file of `birl`, and the line with which it begins. [Architecture](architecture.md#folders) "
    "says what each folder is for.\n",
    "zh": "# 文件\n\n`birl` 的全部文件，以及各文件开头的一行说明（英文）。"
    "各文件夹的职责见[架构](architecture.md#folders)。\n",
}
HEADER = {"en": "| file | is |\n|---|---|\n", "zh": "| 文件 | 说明 |\n|---|---|\n"}


def files_page(root: Path, language: str) -> SitePage:
    """The page, with a table for each folder; files without a docstring are empty and left out."""
    tables: dict[str, list[str]] = {}
    files = set()
    for file in sorted((root / "birl").rglob("*.py"), key=lambda file: (file.parent, file.name)):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if docstring is not None:
            path = file.relative_to(root).as_posix()
            summary = docstring.partition("\n")[0].replace("|", "\\|")
            tables.setdefault(file.parent.relative_to(root).as_posix(), []).append(
                f"| [`{file.name}`]({source_page_path(path)}) | {summary} |\n"
            )
            files.add(path)
    sections = [f"\n## {folder}\n\n{HEADER[language]}{''.join(rows)}" for folder, rows in tables.items()]
    return SitePage(INTRO[language] + "".join(sections), files)
