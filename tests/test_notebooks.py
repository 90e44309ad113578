"""The tutorials are notebooks that run from top to bottom."""

import os
import re
import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.markdown import CHINESE, ROOT, blocks_of

TUTORIALS = ROOT / "docs" / "tutorials"
SHORT = 4_000  # environment steps of each run
script = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))
english = [page for page in sorted(TUTORIALS.glob("*.md")) if not page.name.endswith(CHINESE)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", english, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_a_notebook_with_short_runs(page, tmp_path, monkeypatch):
    execute(script["notebook_of"](page, tmp_path, SHORT), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", english, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_a_notebook(page, tmp_path, monkeypatch):
    execute(script["notebook_of"](page, tmp_path), tmp_path, monkeypatch)


def execute(notebook: nbformat.NotebookNode, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all cells in a folder, with this Python and its birl; the first error is raised."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    NotebookClient(
        notebook, timeout=3000, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_notebook_has_all_code_of_its_page(page, tmp_path):
    notebook = script["notebook_of"](page, tmp_path)
    nbformat.validate(notebook)
    cells = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    blocks = [block for block in blocks_of(page) if block.language == "python" and "quoted" not in block.notes]
    assert blocks
    assert [block.where for block in blocks if block.code.strip() not in cells] == []


def test_links_of_a_notebook_lead_from_its_folder_to_the_same_files(tmp_path):
    for page in sorted(TUTORIALS.glob("*.md")):
        cells = script["notebook_of"](page, tmp_path).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https?:|#", t)]
        assert targets
        assert [target for target in targets if not (tmp_path / target.partition("#")[0]).exists()] == []


def test_a_short_notebook_has_fewer_steps_and_one_seed_and_nothing_else_changed():
    code = "birl train ppo CartPole-v1 --total-steps 300k --seeds 5\ntrain(total_steps=500, seeds=3)\nSTEPS = 100_000\n"
    short = "birl train ppo CartPole-v1 --total-steps 1000 --seeds 1\ntrain(total_steps=500, seeds=1)\nSTEPS = 1000\n"
    assert script["shortened"](code, 1_000) == short


def test_a_fork_in_a_short_notebook_has_more_steps_than_its_parent():
    assert (
        script["shortened"]("birl fork runs/a --total-steps 300k\n", 1_000) == "birl fork runs/a --total-steps 5000\n"
    )


def test_a_short_notebook_compares_where_its_runs_end():
    assert script["shortened"]("birl compare runs/a runs/b --at 150k\n", 1_000) == "birl compare runs/a runs/b\n"


def test_lines_of_a_diff_stand_in_the_code_before_and_after_it():
    for page in english:
        blocks = blocks_of(page)
        for number, block in enumerate(blocks):
            if block.language != "diff":
                continue
            before = {line for one in blocks[:number] if one.language == "python" for line in one.code.splitlines()}
            after = {line for one in blocks[number:] if one.language == "python" for line in one.code.splitlines()}
            removed = [line[1:] for line in block.code.splitlines() if line.startswith("-")]
            added = [line[1:] for line in block.code.splitlines() if line.startswith("+")]
            assert [line for line in removed if line not in before] == [], block.where
            assert [line for line in added if line not in after] == [], block.where
