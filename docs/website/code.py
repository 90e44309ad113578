"""Names, docstrings and lines of code, for the pages of the site. Code is read, not imported."""

import ast
import re
from functools import cache
from pathlib import Path

RECORDS = {"NamedTuple", "Protocol"}  # bases of classes that are shown with their fields
DECORATORS = {"dataclass", "settings", "part"}  # of such classes


class CodeError(Exception):
    """A name that is not in the code, or more than once, or that has no docstring."""


Definition = ast.FunctionDef | ast.ClassDef


@cache
def tree_of(root: Path, module: str) -> ast.Module:
    """A module of the repository, parsed."""
    return ast.parse(file_of(root, module).read_text(encoding="utf-8"))


def file_of(root: Path, module: str) -> Path:
    """The file of a module."""
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def definitions(root: Path, module: str) -> list[Definition]:
    """The public functions and classes that a module defines, in order."""
    return [node for node in tree_of(root, module).body if isinstance(node, Definition) and node.name[0] != "_"]


def imported(root: Path, module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports from others: each one's module, and its name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree_of(root, module))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def home_of(root: Path, module: str, name: str) -> tuple[str, Definition]:
    """The module that defines what is called `name` in this module, and the definition."""
    for node in definitions(root, module):
        if node.name == name:
            return module, node
    if name not in imported(root, module):
        raise CodeError(f"{module} has no function or class {name}; correct its name in docs/website/api.py")
    return home_of(root, *imported(root, module)[name])


def is_record(node: Definition) -> bool:
    """Whether the fields of a class say most about it: dataclass, Config, NamedTuple, Protocol."""
    if not isinstance(node, ast.ClassDef):
        return False
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    return bool(decorators & DECORATORS) or any(ast.unparse(base) in RECORDS for base in node.bases)


def fields_of(root: Path, module: str, node: Definition) -> str:
    """The lines of a class with its fields and their comments, without docstring and methods."""
    lines = file_of(root, module).read_text(encoding="utf-8").splitlines()
    docstring = node.body[0]
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    starts = [min([part.lineno, *(decorator.lineno for decorator in part.decorator_list)]) for part in methods]
    end = min([(node.end_lineno or node.lineno) + 1, *starts])
    fields = "\n".join(lines[docstring.end_lineno or docstring.lineno : end - 1]).strip("\n")
    return f"{lines[node.lineno - 1]}\n{fields}" if fields.strip() else ""


def methods_of(node: Definition) -> list[str]:
    """The names of the public methods of a class that have a docstring."""
    return [
        part.name
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name[0] != "_" and ast.get_docstring(part)
    ]


def summary_of(root: Path, module: str, name: str | None) -> str:
    """The first paragraph of the docstring of a name in a module; None: of the module."""
    node = home_of(root, module, name)[1] if name else tree_of(root, module)
    docstring = ast.get_docstring(node)
    if not docstring:
        raise CodeError(f"{module}.{name} has no docstring; write one")
    return docstring.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def line_of(file: Path, name: str, words: str | None = None) -> int:
    """The line number of a function or class in a file, or of the one line in it with these words.

    Lines count from 1. A method is named with its class: QNetwork.__call__.
    """
    text = file.read_text(encoding="utf-8")
    found = [node for qualified, node in named(ast.parse(text)) if qualified == name]
    if len(found) != 1:
        raise CodeError(f"{file} defines {name} {len(found)} times; name a function or class that it defines once")
    if words is None:
        return found[0].lineno
    lines = [number for number, line in enumerate(text.splitlines(), 1) if has_words(line, words)]
    if len(lines) != 1 or not found[0].lineno <= lines[0] <= (found[0].end_lineno or 0):
        raise CodeError(f"{file}: {words!r} is on lines {lines}; write it once in the file, within {name}")
    return lines[0]


def named(node: ast.AST, prefix: str = "") -> list[tuple[str, Definition]]:
    """The functions and classes below a node, with their qualified names."""
    return [
        pair
        for child in ast.iter_child_nodes(node)
        if isinstance(child, Definition)
        for pair in [(prefix + child.name, child), *named(child, f"{prefix}{child.name}.")]
    ]


def has_words(line: str, words: str) -> bool:
    """Whether a line has these words; those of eq. 14 are not those of eq. 1."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w|\.\d)", line) is not None
