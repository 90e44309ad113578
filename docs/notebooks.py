"""Write the tutorials as notebooks. The Markdown pages in docs/tutorials are the source.

    python docs/notebooks.py                    beside the pages, as docs/tutorials/*.ipynb
    python docs/notebooks.py --out FOLDER       into another folder
    python docs/notebooks.py --steps 2000       with runs of at most 2,000 steps and one seed

A block of python becomes a cell of code, and one that is saved as a file a cell that writes it.
Commands (sh, console) become a cell of bash, which stops at the first that fails; the output that a
page shows for them is left out. Everything else is text. Needs nbformat (`pip install '.[dev]'`).
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat

TUTORIALS = Path(__file__).resolve().parent / "tutorials"
FENCE = re.compile(r"(?:^<!-- (file|quoted|not run): (.+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s]+)(\))")
STEPS = re.compile(r"((?:--total-steps |--steps |total_steps=|^STEPS = ))(\d[\d_]*)(k|M)?\b")
SEEDS = re.compile(r"((?:--seeds |seeds=|^SEEDS = ))(\d+)\b")
AT = re.compile(r" --at \d+[kM]?\b")  # steps that a short run does not have
FORK_STEPS = 5  # times the steps of other runs: a fork goes on after its parent, and an update may have many steps
UNITS = {None: 1, "k": 1_000, "M": 1_000_000}


def shortened(code: str, steps: int) -> str:
    """The code with every training cut to this many environment steps, and to one seed."""
    lines = [_short_line(line, steps * (FORK_STEPS if " fork " in line else 1)) for line in code.splitlines()]
    return "\n".join(lines) + "\n"


def _short_line(line: str, steps: int) -> str:
    line = STEPS.sub(lambda found: found[1] + str(min(int(found[2]) * UNITS[found[3]], steps)), line)
    line = SEEDS.sub(r"\g<1>1", line)
    return AT.sub("", line)


def notebook_of(page: Path, folder: Path, steps: int | None = None) -> nbformat.NotebookNode:
    """The notebook of a page, for this folder; with short runs if `steps` is given."""
    notebook = nbformat.v4.new_notebook(cells=list(_cells(page, folder, steps)))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # nbformat's own are random: a page would give another file each time
    return notebook


def write_notebooks(folder: Path, steps: int | None = None) -> list[Path]:
    """Write the notebook of every tutorial into a folder; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in sorted(TUTORIALS.glob("*.md")):
        written.append(folder / f"{page.stem}.ipynb")
        nbformat.write(notebook_of(page, folder, steps), written[-1])
    return written


def _cells(page: Path, folder: Path, steps: int | None) -> Iterator[nbformat.NotebookNode]:
    """The cells of a page, in order."""
    text = page.read_text(encoding="utf-8")
    end = 0
    prose = ""
    for block in FENCE.finditer(text):
        prose += text[end : block.start()]
        end = block.end()
        code = _code(block[1], block[2], block[3], block[4])
        if code is None:
            prose += f"```{block[3]}\n{block[4]}```"
            continue
        yield from _text_cells(prose, page, folder)
        prose = ""
        yield nbformat.v4.new_code_cell((code if steps is None else shortened(code, steps)).strip())
    yield from _text_cells(prose + text[end:], page, folder)


def _code(note: str | None, subject: str, language: str, code: str) -> str | None:
    """The content of a cell for this block; None if it is only shown."""
    if note == "file":
        return f"%%writefile {subject}\n{code}"
    if note == "quoted" or language not in ("python", "sh", "console"):
        return None
    if language == "python":
        return code
    commands = [line.removeprefix("$ ") for line in code.splitlines() if language == "sh" or line.startswith("$ ")]
    return "%%bash -e\n" + "\n".join(commands)


def _text_cells(text: str, page: Path, folder: Path) -> Iterator[nbformat.NotebookNode]:
    """A cell of text, unless it is empty, with links that start from the folder."""
    if text.strip():
        moved = LINK.sub(lambda found: found[1] + _moved(found[2], page, folder) + found[3], text)
        yield nbformat.v4.new_markdown_cell(moved.strip())


def _moved(target: str, page: Path, folder: Path) -> str:
    path, mark, anchor = target.partition("#")
    return Path(os.path.relpath(page.parent / path, folder)).as_posix() + mark + anchor


def main() -> None:
    parser = argparse.ArgumentParser(description="write the tutorials as notebooks", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=TUTORIALS, help="the folder; by default beside the pages")
    parser.add_argument("--steps", type=int, help="cut every training to this many environment steps")
    arguments = parser.parse_args()
    for path in write_notebooks(arguments.out.resolve(), arguments.steps):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
