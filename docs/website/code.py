"""What the pages of the API need to know about the code. It is read, and not imported."""

import ast
from functools import cache
from pathlib import Path

RECORDS = {"NamedTuple", "Protocol"}  # bases of classes that are shown with their fields
DECORATORS = {"dataclass", "settings", "part"}  # of such classes


class CodeError(Exception):
    """A name cannot be documented."""


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
