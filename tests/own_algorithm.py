"""An algorithm of a user's own, in a module that leaves a mark when it is imported."""

from pathlib import Path

from tests import markdown

PAGE = markdown.ROOT / "docs" / "adding-an-algorithm.md"


def put_algorithm(directory: Path, module: str) -> Path:
    """Write the page's complete example, vpg, as a module; where its mark will be."""
    [code] = [block.code for block in markdown.blocks_of(PAGE) if block.notes.get("file") == "vpg.py"]
    mark = directory / f"{module}-was-imported"
    (directory / f"{module}.py").write_text(f"{code}\nimport pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    return mark
