"""How much code a reader follows from `birl train` to new weights, with PPO, DQN and SAC.

    python docs/reading_path.py                    print the counts of all three
    python docs/reading_path.py --algorithm dqn    of one of them
    python docs/reading_path.py --verbose          with every function and every switch
    python docs/reading_path.py --write            write them into the READMEs and architecture.md

The command is run until the first update with gradient steps was followed by one more, and every
function of Birl that it calls is recorded. The count is the lines of code of these functions: whole
functions with all their branches, without blank lines, comments, docstrings and imports. A class
adds its fields if it is constructed or one of its methods is called. Building the networks, acting,
collecting, the replay, the update, the optimiser and the normaliser are all in it.

The count has two parts. "Training" is `birl.ppo.train`; the calls `PPO(...).learn()` of
Stable-Baselines3 and `python ppo.py` of CleanRL do the same work and are counted by the same rule.
"Command" is what comes before it: the command line, settings, and the loop of the driver. SB3 has
no command line.

A switch is a call from a function in one file to a function in another, both of the training part,
by itself or through JAX. Each pair of functions counts once. A function inside another, such as the
wrapper of a decorator, belongs to the outer one, and a generated constructor is no function. A call
that a cache answers is not seen.

birl/accel is switched off: without it results differ by rounding only, and the plain forms in
birl/speed.py are counted. Left out, together with what only they call: environments; logging,
evaluation and checkpoints; functions that only check settings. Their lines are printed too. SB3's
functions are the lists in reading_path_sb3.py, read from its source, not recorded. `--peers FOLDER`
counts SB3 and CleanRL again in a folder that holds both packages; otherwise the figures of these
versions are printed.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import sys
import tempfile
import tokenize
from collections.abc import Collection
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from reading_path_sb3 import SB3, SB3_COUNTS, Listed

PACKAGE = Path(__file__).resolve().parent.parent / "birl"
FOLDER = f"{PACKAGE}{os.sep}"
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
RUNS = {  # what is recorded: the task, and settings with which gradient steps come soon
    "ppo": ("CartPole-v1", "--total-steps", "400"),
    "dqn": ("CartPole-v1", "--total-steps", "400", "--learning-starts", "64"),
    "sac": ("Pendulum-v1", "--total-steps", "400", "--learning-starts", "64"),
}
COMMAND = ("__init__.py", "cli/", "config.py", "settings.py", "registry.py", "presets/")
COMMAND += ("run/configure.py", "run/start.py", "run/given.py", "run/run.py")
LEFT_OUT = {
    "environments": ("envs/", "workers/"),
    "checks of settings": ("checks.py", "errors.py"),
    "logging, evaluation, checkpoints": ("run/", "rollouts/episode_stats.py"),
}
CLEANRL_PPO = 226  # lines of ppo.py of version 1.2.0
SECTION = re.compile(r"(<!-- reading-path:begin -->\n).*?(<!-- reading-path:end -->)", re.DOTALL)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
NUMBER = re.compile(r"`[^`]*`|\]\([^)]*\)|(?<![A-Za-z\d.,])(\d(?:[\d,.]*\d)?)")  # or code, or a link's target
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)

Definitions = dict[str, set[int]]  # lines by name; those of a class are without its methods
Files = dict[str, dict[str, int]]  # the number of lines of each definition, by file
Call = tuple[CodeType | None, CodeType]  # the function of Birl that called, if any, and the called one
Switch = tuple[tuple[str, str], tuple[str, str]]  # file and definition of the caller, and of what it calls


class ReadingPath(NamedTuple):
    """What is read to follow one algorithm, and what is left out."""

    command: Files
    training: Files
    left_out: Files
    switches: list[Switch]


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def definitions(path: Path) -> Definitions:
    """The lines of code of each function, class and method in a file."""
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    found: Definitions = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = lines & _span(node)
        if isinstance(node, ast.ClassDef):
            methods = {method.name: _span(method) for method in node.body if isinstance(method, ast.FunctionDef)}
            found |= {f"{node.name}.{name}": lines & span for name, span in methods.items()}
            found[node.name] -= set().union(*methods.values())
    return found


class Recorder:
    """A profile function: records which functions of Birl run until an algorithm has learned."""

    def __init__(self, algorithm: str) -> None:
        self.train = f"algos/{algorithm}.py", "train"
        self.codes: set[CodeType] = set()
        self.left_out: set[CodeType] = set()
        self.classes: set[type] = set()
        self.calls: set[Call] = set()
        self.depth = 0  # of calls that are left out
        self.took_steps: list[bool] = []  # whether each update took gradient steps

    def __call__(self, frame: FrameType, event: str, returned: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return"):
            return
        if code.co_filename == "<string>" and event == "call" and not self.depth:  # a generated constructor
            self.classes.add(frame.f_locals.get("_cls") or type(frame.f_locals.get("self")))
        if not code.co_filename.startswith(FOLDER):
            return
        name = _name_in_package(code)
        outside = code.co_name == "<module>" or area_left_out(name) is not None
        if event == "call":
            if outside and code.co_name != "<module>":
                self.left_out.add(code)
            elif not self.depth and not outside:
                self.codes.add(code)
                self.calls.add((_caller(frame), code))
        self.depth += outside if event == "call" else -outside
        if event == "return" and (name, code.co_name) == self.train and returned is not None:
            self.took_steps.append("optimizer/grad_norm" in returned.metrics)
        if self.finished:
            sys.setprofile(None)

    @property
    def finished(self) -> bool:
        """Whether an update with gradient steps was followed by one more."""
        return any(self.took_steps[:-1])


def area_left_out(name: str) -> str | None:
    """The area that a file belongs to, if that area is left out."""
    if name.startswith(COMMAND):
        return None
    return next((area for area, paths in LEFT_OUT.items() if name.startswith(paths)), None)


def record(algorithm: str) -> ReadingPath:
    """What the command runs until the algorithm has learned, with birl/accel switched off."""
    os.environ["BIRL_ACCEL"] = "0"
    sys.path.insert(0, str(PACKAGE.parent))
    from birl.cli import main

    recorder = Recorder(algorithm)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        options = ["--eval-episodes", "1", "--run-dir", f"{folder}/run"]
        sys.setprofile(recorder)
        try:
            code = main(["train", algorithm, *RUNS[algorithm], *options])
        finally:
            sys.setprofile(None)
    assert code == 0
    assert recorder.finished
    files = lines_of(recorder.codes, recorder.classes)
    command = {name: counts for name, counts in files.items() if name.startswith(COMMAND)}
    training = {n: c for n, c in files.items() if n not in command and area_left_out(n) is None}
    return ReadingPath(command, training, lines_of(recorder.left_out), switches_of(recorder.calls, training))


def record_each(algorithms: Collection[str]) -> dict[str, ReadingPath]:
    """The path of each algorithm, from a process of its own: caches hide calls in a second run."""
    with get_context("spawn").Pool(len(algorithms), maxtasksperchild=1) as pool:
        return dict(zip(algorithms, pool.map(record, algorithms, chunksize=1), strict=True))


def lines_of(codes: set[CodeType], classes: Collection[type] = ()) -> Files:
    """The number of lines of these functions and classes, by file and name."""
    found: Files = {}
    for name in sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")):
        starts = {code.co_firstlineno for code in codes if _name_in_package(code) == name}
        here = definitions(PACKAGE / name)
        module = "birl." + name.removesuffix(".py").replace("/", ".")
        read = {made.__qualname__ for made in classes if made.__module__ == module}
        for definition, span in here.items():
            if span & starts:
                read |= {definition, definition.rpartition(".")[0]}
        counts = {definition: len(span) for definition, span in here.items() if definition in read and span}
        if counts:
            found[name] = counts
    return found


def switches_of(calls: Collection[Call], files: Collection[str]) -> list[Switch]:
    """The pairs of a caller in one of these files and what it calls in another."""
    definition_at = {
        (name, line): (name, definition)
        for name in files
        for definition, span in definitions(PACKAGE / name).items()
        for line in span
    }
    found = set()
    for call in calls:
        caller, called = (code and definition_at.get((_name_in_package(code), code.co_firstlineno)) for code in call)
        if caller and called and caller[0] != called[0]:
            found.add((caller, called))
    return sorted(found)


def count_listed(folder: Path, parts: Collection[Listed]) -> tuple[int, int]:
    """The lines of code of the definitions in lists, and the number of their files."""
    names: dict[str, set[str]] = {}
    for file, text in (item for listed in parts for item in listed.items()):
        for entry in text.split(";"):
            owner, _, methods = entry.strip().partition(":")
            names.setdefault(file, set()).update({owner}, {f"{owner}.{method}" for method in methods.split()})
    found = {file: definitions(folder / file) for file in names}
    return sum(len(found[file][name]) for file in names for name in names[file]), len(names)


def count_script(path: Path, left_out: tuple[str, ...]) -> int:
    """The lines of code of a script, without its imports and the functions that are left out."""
    text = path.read_text(encoding="utf-8")
    lines = code_lines(text)
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", None) in left_out:
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def count_peers(folder: Path) -> tuple[dict[str, tuple[int, int]], int]:
    """SB3's lines and files, and CleanRL's lines, counted in the folder that holds the packages."""
    sb3 = {algorithm: count_listed(folder / "stable_baselines3", parts) for algorithm, parts in SB3.items()}
    return sb3, count_script(folder / "cleanrl" / "ppo.py", ("make_env",))


def table_of(paths: dict[str, ReadingPath], sb3: dict[str, tuple[int, int]]) -> str:
    """The counts of the training part of each algorithm in Markdown, beside those of SB3."""
    header = "| algorithm | lines | files | switches | SB3 lines | SB3 files |"
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    for algorithm, path in paths.items():
        counts = _total(path.training), len(path.training), len(path.switches), *sb3[algorithm]
        lines.append(f"| {algorithm} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)


def write_table(page: Path, table: str) -> None:
    """Write the table between its markers."""
    text = SECTION.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")


def write_counts(path: Path, bullet: list[str], paragraph: list[str]) -> None:
    """Write numbers, in order, into the two passages of a README that state the count."""
    text = path.read_text(encoding="utf-8")
    for start, end, numbers in ((r"^- \*\*(?:Readable|好读)", r"^- ", bullet), ("^`python docs", r"^\n", paragraph)):
        passage = re.compile(f"{start}.*?(?={end})", re.MULTILINE | re.DOTALL)
        left = iter(numbers)
        text = passage.sub(
            lambda found, left=left: NUMBER.sub(lambda n: n[0] if n[1] is None else next(left), found[0]), text
        )
    path.write_text(text, encoding="utf-8")


def show_files(files: Files) -> None:
    """Print the definitions of a part, file by file."""
    for name, counts in files.items():
        shown = ", ".join(f"{definition} {lines}" for definition, lines in counts.items())
        _print(f"{sum(counts.values()):5} birl/{name}: {shown}")


def show(algorithm: str, path: ReadingPath, verbose: bool) -> None:
    """Print the sums of an algorithm's path; if verbose, every definition and every switch, too."""
    for part, files in (("command", path.command), ("training", path.training)):
        if verbose:
            show_files(files)
        _print(f"{algorithm}, {part}: {_total(files):,} lines in {len(files)} files")
    if verbose:
        for (file, caller), (other_file, called) in path.switches:
            _print(f"      birl/{file} {caller} -> birl/{other_file} {called}")
    _print(f"{algorithm}, training: {len(path.switches)} switches between files")
    for area in LEFT_OUT:
        lines = _total({n: c for n, c in path.left_out.items() if area_left_out(n) == area})
        _print(f"{algorithm}, left out, {area}: {lines:,} lines")
    _print("")


def main() -> None:
    parser = argparse.ArgumentParser(description="lines of code from the command to new weights", allow_abbrev=False)
    parser.add_argument("--algorithm", choices=RUNS, help="record only this one")
    parser.add_argument("--verbose", action="store_true", help="print every function and every switch")
    parser.add_argument("--peers", type=Path, help="a folder that holds stable_baselines3/ and cleanrl/")
    parser.add_argument("--write", action="store_true", help="write the counts into the READMEs and architecture.md")
    arguments = parser.parse_args()
    if arguments.write and arguments.algorithm:
        parser.error("--write needs all algorithms; leave out --algorithm")
    paths = record_each([arguments.algorithm] if arguments.algorithm else list(RUNS))
    for algorithm, path in paths.items():
        show(algorithm, path, arguments.verbose)
    sb3, cleanrl = count_peers(arguments.peers) if arguments.peers else (SB3_COUNTS, CLEANRL_PPO)
    table = table_of(paths, sb3)
    _print(f"{table}\n\nSB3 is Stable-Baselines3 2.9.2. CleanRL 1.2.0, ppo.py: {cleanrl:,} lines in 1 file\n")
    own = len(code_lines((PACKAGE / "algos" / "ppo.py").read_text(encoding="utf-8")))
    _print(f"{own:5} lines in all of birl/algos/ppo.py")
    if arguments.write:
        write_table(ARCHITECTURE, table)
        ppo = paths["ppo"]
        lines = _total(ppo.training)
        bullet = own, lines
        paragraph = lines, len(ppo.training), _total(ppo.command), *sb3["ppo"], cleanrl
        for readme in PACKAGE.parent.glob("README*.md"):
            write_counts(readme, [f"{n:,}" for n in bullet], [f"{n:,}" for n in paragraph])


def _caller(frame: FrameType) -> CodeType | None:
    """The nearest function of Birl below this one on the stack."""
    below = frame.f_back
    while below is not None and not below.f_code.co_filename.startswith(FOLDER):
        below = below.f_back
    return below and below.f_code


def _name_in_package(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(PACKAGE).as_posix()


def _span(node: ast.FunctionDef | ast.ClassDef) -> set[int]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return set(range(first, (node.end_lineno or 0) + 1))


def _total(files: Files) -> int:
    return sum(sum(counts.values()) for counts in files.values())


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
