"""The pages of the documentation are right.

Every block of code is run; every command, option, default, path and link is checked. Training is
cut to its first updates, with the settings that are on the page. Commands that cannot be run here
are marked on the page, with a reason.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from functools import cache, wraps
from io import StringIO
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import birl
from birl.cli import COMMANDS
from birl.config import AtariConfig, EnvConfig, RunConfig
from birl.envs.check.checking import check_env
from birl.envs.make import spaces_of
from birl.envs.spaces import is_image
from birl.maths import schedules
from birl.presets import mujoco, presets_of
from birl.registry import algorithm_named, name_of, validate
from birl.run.groups import group
from birl.run.groups.lane_training import take_turns
from birl.settings import places_of
from tests import markdown
from tests.markdown import ENGLISH, PAGES, ROOT, Block, Command, blocks_of, commands_of, spans_of, twin_of
from tests.run.processes import call, call_well, succeed
from tests.test_contract import COMMON_METRICS

FIRST_UPDATES = 2
TESTED_ELSEWHERE = {"doctor", "solve", "tune"}  # they take long; so does `train`, which is run for the README only
LANGUAGES = {"python", "toml", "sh", "console", "text", "json", "diff"}
ONLY_ENGLISH = {"CHANGELOG.md", "CONTRIBUTING.md", "docs/adding-an-algorithm.md", "docs/architecture.md"}
ONLY_ENGLISH |= {"benchmarks/README.md", "benchmarks/RESULTS.md", "examples/README.md", "ROADMAP.md", "SECURITY.md"}
NOT_RUN = {  # page: words of commands that are only checked there
    "README.md": {"--ray-address", "push", "pull"},
    "docs/atari.md": {"--replay-size"},
    "docs/fork.md": {"--at"},
    "docs/many-seeds.md": {"--ray-address"},
    "docs/mujoco.md": {"play"},
    "docs/ray.md": {"ray", "--ray-address"},
    "docs/sharing.md": {"push", "pull"},
    "docs/tune.md": {"--join", "--ray-address"},
    "docs/tutorials/2-lunarlander.md": {"--at"},
}
TAKE_RUNS = {"eval", "play", "record", "export", "resume", "fork", "plot", "compare", "report", "diagnose"}  # commands
TAKE_RUNS |= {"card", "push"}
PREPARED = {  # files that a page assumes to exist
    "docs/environments.md": {
        "my_module.py": """
import gymnasium as gym
from gymnasium import spaces

class Chat(gym.Env):
    observation_space = spaces.Dict({"message": spaces.Text(20, charset="ab")})
    action_space = spaces.Discrete(2)

gym.register("Chat-v0", entry_point=Chat)
"""
    }
}
THE_EXAMPLE = ROOT / "docs" / "adding-an-algorithm.md"  # of an algorithm in a module of the user's own
PLACEHOLDERS = {
    "ENV": "CartPole-v1",
    "ID": "CartPole-v1",
    "ALGORITHM": "ppo",
    "NAME": "episode/return",
    "N": "1",
    "RUN": "runs/mine",
}
CONTINUOUS = {"dpg", "ddpg", "td3", "sac"}
IMAGINED = {"birl.vpg"}  # of docs/adding-an-algorithm.md

pages = pytest.mark.parametrize("page", PAGES, ids=markdown.name_of)
english = pytest.mark.parametrize("page", ENGLISH, ids=markdown.name_of)
# The tutorials are run as notebooks: tests/test_notebooks.py.
run_here = pytest.mark.parametrize(
    "page", [page for page in ENGLISH if page.parent.name != "tutorials"], ids=markdown.name_of
)
twins = pytest.mark.parametrize("page", [page for page in ENGLISH if twin_of(page).exists()], ids=markdown.name_of)


class OnlyChecked(Exception):  # noqa: N818
    """The command was parsed and its settings are valid."""


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty working directory. Modules and environments that come from it are removed later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(gym.registry)
    modules = set(sys.modules)
    algorithms = birl.ALGORITHMS.copy()
    yield tmp_path
    for name in birl.ALGORITHMS.keys() - algorithms:
        del birl.ALGORITHMS[name]
    for id in new_environments(known):
        del gym.registry[id]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def new_environments(known: set[str]) -> set[str]:
    """The ids that a page registered. An id with a namespace was registered by a package."""
    return {id for id in gym.registry if id not in known and "/" not in id}


@pytest.fixture
def first_updates(monkeypatch) -> None:
    """Every algorithm's `train` ends after its first updates."""
    for name in birl.ALGORITHMS:
        cut_short(algorithm_named(name), monkeypatch)
    # Lanes take turns in this process: in others they would not end after their first updates.
    monkeypatch.setattr(
        group, "run_lanes", lambda run_dirs, options, _, __, signals: take_turns(run_dirs, options, signals)
    )


def write_the_example(folder: Path) -> Any:
    """The module of the example of an algorithm, as it stands on its page."""
    [block] = [block for block in blocks_of(THE_EXAMPLE) if "file" in block.notes]
    (folder / block.notes["file"]).write_text(block.code)
    sys.path.insert(0, str(folder))
    return importlib.import_module(block.notes["file"].removesuffix(".py"))


def cut_short(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the `train` of this algorithm end after its first updates."""
    whole = algorithm.train

    @wraps(whole)
    def train(*given: Any, **named: Any) -> Iterator[Any]:
        with closing(whole(*given, **named)) as updates:
            yield from islice(updates, FIRST_UPDATES)

    monkeypatch.setattr(algorithm, "train", train)


# The form of the pages


@pages
def test_every_block_says_what_it_is(page):
    assert [block.where for block in blocks_of(page) if block.language not in LANGUAGES] == []


@pages
def test_links_lead_somewhere(page):
    broken = []
    for link in markdown.links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in markdown.anchors_of(target)):
            broken.append(link)
    assert broken == []


@pages
def test_files_that_are_named_are_there(page):
    named = [
        span
        for span in spans_of(page)
        if re.fullmatch(r"(birl|tests|docs|benchmarks|examples|scripts)/[\w/.-]+\.(py|md|png|json)", span)
    ]
    assert [path for path in named if not (ROOT / path).exists()] == []


@pages
def test_short_paths_are_files_of_the_package(page):
    short = {span for span in spans_of(page) if re.fullmatch(r"[a-z]+/[a-z0-9_]+\.py", span)}
    roots = (ROOT / "birl", ROOT)
    assert [path for path in sorted(short) if not any((root / path).exists() for root in roots)] == []


@pages
def test_python_names_that_are_named_are_there(page):
    named = {span for span in spans_of(page) if re.fullmatch(r"birl(\.\w+)+", span)} - IMAGINED
    assert [name for name in sorted(named) if not is_there(name)] == []


@pages
def test_calls_within_sentences_could_be_made(page, workplace, first_updates):
    for span in {span for span in spans_of(page) if re.fullmatch(r"birl\.[\w.]+\([^.].*\)", span)}:
        call = ast.parse(span, mode="eval").body
        assert isinstance(call, ast.Call)
        assert is_there(ast.unparse(call.func)), span
        if not any(isinstance(node, ast.Name) and node.id != "birl" for node in ast.walk(call)) and "runs/" not in span:
            exec(span, {"birl": birl})  # a setting, a schedule, a preset
        elif call.keywords:
            name = ast.unparse(call.func)
            passed_on = {"birl.train": [birl.start], "birl.resume": [birl.reopen]}  # to these, what is not their own
            functions = [pkgutil.resolve_name(name), *passed_on.get(name, [])]
            known = {option for function in functions for option in inspect.signature(function).parameters}
            assert {keyword.arg for keyword in call.keywords} <= known, span


def is_there(name: str) -> bool:
    try:
        return pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


@pages
def test_names_of_the_code_that_are_named_are_there(page):
    named = {span for span in spans_of(page) if re.fullmatch(r"\.?[A-Za-z_][\w.]*_[\w.]*(\(\))?", span)}
    missing = {span for span in named if not set(re.findall(r"\w+", span)) <= words_of_the_code()}
    assert sorted(missing - IMAGINED) == []


@pages
def test_what_is_said_to_be_in_a_file_is_there(page):
    pairs = re.findall(r"`([\w.]+)` in \[?`([\w/]+\.py)`", markdown.prose_of(page))
    pairs += [
        (name, path)
        for path, name in re.findall(r"`([\w/]+\.py)`(?:\]\([^)]*\))? ?[里中]?的 ?`([\w.]+)`", markdown.prose_of(page))
    ]
    for name, path in pairs:
        source = next(file for file in (ROOT / "birl" / path, ROOT / path) if file.exists()).read_text()
        assert set(name.split(".")) <= set(re.findall(r"\w+", source)), f"{name} is not in {path}"


def test_the_page_on_metrics_has_every_metric_of_the_algorithms():
    kinds = "episode|eval|exploration|loss|optimizer|policy|replay|trust_region|value"
    folders = ("algos", "asynchronous", "nets", "rollouts")
    sources = [path.read_text() for folder in folders for path in (ROOT / "birl" / folder).glob("*.py")]
    reported = {name for source in sources for name in re.findall(rf'"((?:{kinds})/[a-z_]+)"', source)}
    assert sorted(reported - set(spans_of(ROOT / "docs" / "runs-and-checkpoints.md"))) == []


@pages
def test_metrics_that_are_named_are_reported(page):
    ours = {
        span
        for span in spans_of(page)
        if re.fullmatch(r"(episode|exploration|loss|optimizer|policy|replay|trust_region|value)/[a-z_]+", span)
    }
    assert sorted(name for name in ours if f'"{name}"' not in source_of_the_package()) == []


@cache
def source_of_the_package() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "birl").rglob("*.py"))


@cache
def words_of_the_code() -> set[str]:
    folders = ("birl", "tests", "benchmarks", "docs", "scripts")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {word for path in paths for word in re.findall(r"\w+", path.read_text())}


def test_the_architecture_has_a_row_for_each_folder_of_the_package():
    table, *_ = markdown.tables_of(ROOT / "docs" / "architecture.md")
    folders = {path.parent.name for path in (ROOT / "birl").glob("*/__init__.py")}
    assert sorted(cell.strip("`/") for cell, *_ in table[1:]) == sorted(folders)


@pytest.mark.parametrize(("page", "suffix"), [("algorithms.md", ""), ("algorithms.zh-CN.md", ".zh-CN")])
def test_the_support_table_is_that_of_the_algorithms(page, suffix):
    script = runpy.run_path(str(ROOT / "docs" / "support_table.py"))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert script["with_table"](text, suffix) == text, "run python docs/support_table.py"
    assert script["support_table"](suffix) in text


@pytest.mark.parametrize("page", ["gallery.md", "gallery.zh-CN.md"])
def test_the_gallery_has_a_small_gif_and_a_curve_of_every_algorithm(page):
    script = runpy.run_path(str(ROOT / "docs" / "gallery.py"))
    numbers, pictures = markdown.tables_of(ROOT / "docs" / page)
    tasks = {row[0].split("]")[0].strip("["): row[1] for row in numbers[1:]}
    assert tasks == {algorithm: env for algorithm, (env, _) in script["TASKS"].items()}
    assert list(tasks) == list(birl.ALGORITHMS) == [row[0] for row in pictures[1:]]
    for name in tasks:
        assert (script["IMAGES"] / f"{name}.gif").stat().st_size <= script["GIF_BYTES"]
        assert f"](images/gallery/{name}.png)" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_every_algorithm_has_a_page():
    assert [name for name in birl.ALGORITHMS if not (ROOT / "docs" / f"{name}.md").exists()] == []


@pages
def test_the_page_of_an_algorithm_names_its_presets(page):
    if config_of(page) is not None:
        algorithm = page.name.removesuffix(".md").removesuffix(".zh-CN")
        [text] = re.findall(
            r"^## (?:Presets|预设)\n(.*?)^## ", page.read_text(encoding="utf-8") + "\n## ", re.MULTILINE | re.DOTALL
        )
        ids = {preset.config.env.id for preset in presets_of(algorithm)}
        games = {id for id in ids if id.startswith("ALE/") and "](atari" in text}
        robots = {id for id in ids if id in mujoco.ROBOTS and "](mujoco" in text}
        assert sorted(id for id in ids - games - robots if id not in text) == []


def test_which_pages_have_no_twin_is_known():
    assert {markdown.name_of(page) for page in ENGLISH if not twin_of(page).exists()} == ONLY_ENGLISH


@pytest.mark.release
@twins
def test_twins_name_the_same_code_under_each_heading(page):
    for ours, theirs in zip(markdown.sections_of(page), markdown.sections_of(twin_of(page)), strict=True):
        named, other = (
            {span for span in markdown.spans_in(section) if not is_prose(span)} for section in (ours, theirs)
        )
        assert named == other


def is_prose(span: str) -> bool:
    """Whether this span has words that are translated."""
    return not span.isascii() or (" " in span and not re.match(r"birl |--|make |pip |python ", span))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name.endswith(markdown.CHINESE)], ids=markdown.name_of)
def test_chinese_pages_lead_to_chinese_pages(page):
    targets = {
        (page.parent / link.partition("#")[0]).resolve() for link in markdown.links_of(page) if not link.startswith("#")
    }
    others = {
        target for target in targets if target in ENGLISH and twin_of(target).exists() and twin_of(target) != page
    }
    assert sorted(map(markdown.name_of, others)) == []


@pytest.mark.release
@twins
def test_twins_have_the_same_code_and_headings(page):
    twin = twin_of(page)
    assert [level for level, _ in markdown.headings_of(page)] == [level for level, _ in markdown.headings_of(twin)]
    ours, theirs = blocks_of(page), blocks_of(twin)
    assert [(block.language, block.notes) for block in ours] == [(block.language, block.notes) for block in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert without_words(mine) == without_words(other), other.where
    assert len(markdown.tables_of(page)) == len(markdown.tables_of(twin))
    for mine, other in zip(markdown.tables_of(page), markdown.tables_of(twin), strict=True):
        assert [len(row) for row in mine] == [len(row) for row in other], other[0]


def without_words(block: Block) -> Any:
    """The code without its translated parts: comments and docstrings."""
    if block.language == "sh":
        return [shlex.split(command.line, comments=True) for command in commands_of(block)]
    if block.language == "toml":
        return tomllib.loads(block.code)
    if block.language != "python":
        return block.code
    tree = ast.parse(block.code if "quoted" not in block.notes else f"def quoted():\n{indent(block.code, '    ')}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


# Options and defaults


def options_of(kind: Any) -> dict[str, Any]:
    """The settings of a Config or a part, and their defaults, without its environment and run."""
    apart = ("env",), ("run",), ("atari",)
    places = {name: place for name, place in places_of(kind).items() if place.path[:1] not in apart}
    return {name: place.default_in(kind) for name, place in places.items()}


def config_of(page: Path) -> Any:
    """The Config of the algorithm that this page describes; None for other pages."""
    stem = page.name.removesuffix(".md").removesuffix(".zh-CN")
    return algorithm_named(stem).Config if stem in birl.ALGORITHMS else None


def option_tables(page: Path) -> list[list[list[str]]]:
    return [table[1:] for table in markdown.tables_of(page) if table[0][0] in ("option", "选项")]


def meant(cell: str) -> Any:
    """The Python value of a default in a table."""
    try:
        return (
            schedules.parse(cell)
            if ":" in cell
            else ast.literal_eval(cell.replace(",", "") if "(" not in cell else cell)
        )
    except (ValueError, SyntaxError):
        return cell


@pages
def test_defaults_are_those_of_the_code(page):
    config = config_of(page)
    known = (
        options_of(AtariConfig) | options_of(RunConfig) | options_of(EnvConfig) | (options_of(config) if config else {})
    ) | {"atari": AtariConfig()}
    known |= {
        f"env.{name}": default
        for name, default in (options_of(EnvConfig) | (vars(config().env) if config else {})).items()
    }
    wrong = []
    for table in option_tables(page):
        for row in table:
            names = re.findall(r"`([^`]+)`", row[0])
            cells = [cell.strip(" `") for cell in row[1].split(", ")]
            cells = cells if len(cells) == len(names) else [row[1].strip("`")]
            wrong += [name for name in names if name not in known]
            if len(cells) == len(names) and row[1]:
                wrong += [
                    f"{name}: {cell}"
                    for name, cell in zip(names, cells, strict=True)
                    if name in known and meant(cell) != known[name]
                ]
    assert wrong == []


@pages
def test_the_page_of_an_algorithm_has_all_its_options(page):
    if config_of(page) is not None:
        named = {name for table in option_tables(page) for row in table for name in re.findall(r"`([^`]+)`", row[0])}
        assert sorted(options_of(config_of(page)).keys() - named - {"env", "run"}) == []


@pages
def test_options_that_are_named_exist(page):
    named = [
        option
        for span in spans_of(page)
        if re.match(r"--|birl ", span)
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", span)
    ]
    assert sorted(set(named) - known_options()) == []


@cache
def known_options() -> set[str]:
    """Every option of every command, and of the scripts in benchmarks/, docs/ and scripts/."""
    known = {"--help"}
    for kind in (AtariConfig, EnvConfig, RunConfig, *(algorithm_named(name).Config for name in birl.ALGORITHMS)):
        known |= {f"--{name.replace('_', '-')}" for name in options_of(kind)}
        known |= {
            f"--no-{name.replace('_', '-')}" for name, default in options_of(kind).items() if isinstance(default, bool)
        }
    for command in (*COMMANDS, "train ppo"):
        known |= set(re.findall(r"--[a-z][\w-]*", call_well(*command.split(), "--help")))
    for script in (path for folder in ("benchmarks", "docs", "scripts") for path in ROOT.glob(f"{folder}/*.py")):
        known |= set(re.findall(r'"(--[a-z][\w-]*)"', script.read_text()))
    return known


# Commands and code


def test_what_is_not_run_is_known():
    marked: dict[str, set[str]] = {}
    for page in ENGLISH:
        for block in blocks_of(page):
            if block.not_run:
                marked.setdefault(markdown.name_of(page), set()).update(block.not_run)
    assert marked == NOT_RUN


@english
def test_quoted_lines_stand_in_their_file(page):
    for block in blocks_of(page):
        if "quoted" in block.notes:
            source = [line.strip() for line in (ROOT / block.notes["quoted"]).read_text().splitlines()]
            assert [line for line in block.code.splitlines() if line.strip() not in source] == [], block.where


@run_here
def test_code_and_commands_run(page, workplace, first_updates, types_unchecked, monkeypatch):
    if page == THE_EXAMPLE:  # its commands stand before the module, and a run of it is resumed and exported
        cut_short(write_the_example(workplace), monkeypatch)
    run_page(page, workplace, TESTED_ELSEWHERE | (set() if page in (ROOT / "README.md", THE_EXAMPLE) else {"train"}))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@run_here
def test_code_and_every_training_run(page, workplace, first_updates, types_unchecked):
    if page == THE_EXAMPLE:
        write_the_example(workplace)
    run_page(page, workplace, set())


def run_page(page: Path, workplace: Path, only_checked: set[str]) -> None:
    """Run all code of a page in order. The commands in `only_checked` are checked but not run."""
    for name, text in PREPARED.get(markdown.name_of(page), {}).items():
        (workplace / name).write_text(text)
    for block in blocks_of(page):
        if "file" in block.notes:
            (workplace / block.notes["file"]).write_text(block.code)
        elif block.language == "python" and "quoted" not in block.notes:
            if "run_dir=" not in block.code:
                prepare_runs(re.findall(r"runs/\w+", block.code))
            run_python(block)
        for command in commands_of(block):
            run_command(command, only_checked)


def run_python(block: Block) -> dict[str, Any]:
    """Run a block as a script; the names it defines.

    An environment that it registers must be fit for training.
    """
    known = set(gym.registry)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
            patch.syspath_prepend(str(Path.cwd()))  # as for a script in this directory
            exec(compile(block.code, block.where, "exec"), names)
    except Exception as problem:
        raise AssertionError(f"the code at {block.where} does not run") from problem
    for id in new_environments(known):
        assert [finding for finding in check_env(EnvConfig(id)) if finding.level == "error"] == [], id
    return names


def run_command(command: Command, only_checked: set[str]) -> None:
    """Run a command, or check that it could be run."""
    words = shlex.split(command.line, comments=True)
    where = f"{command.block.where}: {command.line}"
    prepare_runs(words if "--like" in words else [])
    if set(words) & set(command.block.not_run) or (
        command.output is None and words[0] == "birl" and words[1] in only_checked
    ):
        check_command(words, where)
    elif words[0] == "birl" or (words[0] == "python" and Path(words[1]).exists()):
        prepare_runs(words[2:] if words[1] in TAKE_RUNS else [])
        code, said = call(*cut(words[1:])) if words[0] == "birl" else run_script(words[1:])
        if command.output is None:
            assert code == 0, f"{where}\n{said}"
        else:
            assert shape(said) == shape(command.output), where
    else:
        check_command(words, where)


def cut(words: list[str]) -> list[str]:
    """The command with one episode in the last evaluation."""
    return [*words, "--eval-episodes", "1"] if words[0] == "train" and "--help" not in words else words


def prepare_runs(words: list[str]) -> None:
    """Make the runs that the code assumes to exist."""
    for path in words:
        if path.startswith("runs/") and not Path(path).exists():
            call_well("train", "ppo", "CartPole-v1", "--run-dir", path, "--eval-episodes", "1")


def run_script(words: list[str]) -> tuple[int, str]:
    """Run a script that a block has made, in this process and for a few steps."""
    fewer = [
        str(min(int(word), 1000)) if before == "--total-steps" else word
        for before, word in zip(["", *words], words, strict=False)
    ]
    said = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr(sys, "argv", fewer)
        patch.syspath_prepend(".")
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
    return 0, said.getvalue()


def shape(said: str) -> list[str]:
    """The lines of an output, with 0 in place of each number: those depend on the machine."""
    return [re.sub(r"\d([\d,.]*\d)?(e[+-]\d+)?", "0", line).strip() for line in said.strip().splitlines()]


def check_command(words: list[str], where: str) -> None:
    """Check that a command could be run: its program, its options, its settings."""
    match words:
        case ["birl", _, *_]:
            code, said = checked(*words[1:])
            assert code == 0, f"{where}\n{said}"
        case ["make", target]:
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), where
        case ["pip", "install", "."]:
            pass
        case ["pip", "install", package]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            named = re.fullmatch(r"\.\[([\w,]+)\]", package)
            assert named, f"{where}: install the clone, as '.[extra]'"
            assert set(named[1].split(",")) <= set(extras), where
        case ["python", script, *options]:
            assert (ROOT / script).exists(), where
            assert {option for option in options if option.startswith("--")} <= known_options(), where
        case ["ray", "start", *_]:
            pass
        case ["docker", "build", *_, "."]:
            assert (ROOT / "Dockerfile").exists(), where
        case ["docker", "run", *options] if "birl" in options:  # the image, and then what its birl is asked to do
            check_command(options[options.index("birl") :], where)
        case _:
            raise AssertionError(f"{where}: the tests do not know this program")


@cache
def checked(*words: str) -> tuple[int, str]:
    """Exit code and output of a command of Birl that stops after its settings were checked."""
    functions = [
        (importlib.import_module(module), name)
        for module, names in {
            "birl.run.start": ("train", "resume"),
            "birl.run.groups.group": ("train_group",),
            "birl.run.loading": ("load_to_play",),
            "birl.run.record": ("play", "record"),
            "birl.run.plot": ("plot_runs",),
            "birl.lab.report.sections": ("report",),
            "birl.lab.exporting.exporting": ("export",),
            "birl.lab.comparison": ("compare",),
            "birl.run.doctor": ("examine",),
            "birl.lab.forking": ("roots_of",),
            "birl.envs.check.checking": ("check_env",),
            "birl.lab.solving": ("solve", "continue_solving"),
            "birl.lab.tuning.tuning": ("run_search", "continue_search"),
            "birl.lab.sharing.card": ("card",),
            "birl.lab.sharing.push": ("push",),
            "birl.lab.sharing.pull": ("pull",),
        }.items()
        for name in names
    ]  # all are imported first, or one would import another's stand-in and keep it
    with pytest.MonkeyPatch.context() as patch:
        for module, name in functions:
            patch.setattr(module, name, stand_in(getattr(module, name)))
        try:
            return call(*words)
        except OnlyChecked:
            return 0, ""


def stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that checks its arguments like this one, and then raises OnlyChecked."""

    def check(*given: Any, **named: Any) -> None:
        inspect.signature(function).bind(*given, **named)
        if function.__name__ == "train_group":
            group.require_trainable(given[0])
        if function.__name__ == "train":
            config = given[0]
            validate(name_of(config), config)
            spaces = spaces_of(config.env)
            if not is_image(spaces[0]):  # a network for images takes seconds to make
                algorithm_named(name_of(config)).init(config, *spaces)
        raise OnlyChecked

    return check


def test_the_readmes_show_training_as_it_looks(workplace):
    said = call_well("train", "ppo", "CartPole-v1", "--total-steps", "400", "--eval-episodes", "2")
    seen = set(map(without_numbers, said.splitlines()))
    for page in (ROOT / "README.md", ROOT / "README.zh-CN.md"):
        [sample] = [block.code for block in blocks_of(page) if "run directory" in block.code]
        assert set(map(without_numbers, sample.splitlines())) <= seen


def without_numbers(line: str) -> str:
    """A line of training without numbers, and without the parts that come only later in a run."""
    [plain] = shape(re.sub(r", \S+ s left|, environment .*", "", line))
    return re.sub(" +", " ", plain)


@pages
def test_commands_within_sentences_could_be_run(page):
    for span in sorted(set(spans_of(page))):
        words = shlex.split(span) if re.match(r"(birl|make|pip|python) ", span) else []
        if words[:1] == ["birl"] and len(words) == 2:  # the name of a command alone
            assert words[1] in COMMANDS or words[1].startswith("-"), span
        elif words and words[2:3] != ["vpg"]:  # of docs/adding-an-algorithm.md
            environment = {"ENV": "Pendulum-v1"} if words[2:3] and words[2] in CONTINUOUS else {}
            check_command(
                [(PLACEHOLDERS | environment).get(word, word) for word in words], f"{markdown.name_of(page)}: {span}"
            )


def test_the_example_of_an_algorithm_reports_what_the_contract_asks_for(workplace, types_unchecked):
    vpg = write_the_example(workplace)
    config = vpg.Config(env=EnvConfig(num_envs=2, max_episode_steps=9), run=RunConfig(total_steps=8), rollout_length=20)
    [update] = vpg.train(config)
    assert set(update.metrics) >= COMMON_METRICS
    assert any(name.startswith("loss/") for name in update.metrics)


def test_the_example_of_an_algorithm_trains_resumes_to_the_bit_is_exported_and_tuned(workplace, types_unchecked):
    write_the_example(workplace)
    train = "train", "vpg:vpg", "CartPole-v1", "--num-envs", 4, "--rollout-length", 16, "--eval-episodes", 1
    call_well(*train, "--total-steps", 1000, "--run-dir", "whole")
    call_well(*train, "--total-steps", 500, "--run-dir", "stopped")
    succeed("resume", "stopped", "--total-steps", 1000, cwd=workplace)  # in a process that does not know it
    whole, resumed = (max(Path(run, "checkpoints").glob("[0-9]*")) for run in ("whole", "stopped"))
    assert whole.name == resumed.name
    assert (whole / "state.safetensors").read_bytes() == (resumed / "state.safetensors").read_bytes()
    succeed("export", "stopped", "--out", "vpg.onnx", cwd=workplace)
    assert "over 1 episodes" in succeed("eval", "stopped", "--episodes", 1, cwd=workplace)
    short = "--trials", 2, "--seeds", 1, "--final-seeds", 1, "--total-steps", 600, "--jobs", 1
    said = succeed("tune", "vpg:vpg", "CartPole-v1", *short, "--run-dir", "tuned", cwd=workplace)
    assert Path("tuned", "best.json").exists(), said


@pytest.mark.parametrize(
    "words",
    [
        "ppo CartPole-v1 --normalize-observations",
        "ppo Pendulum-v1",
        "dqn CartPole-v1 --dueling",
        "sac Pendulum-v1 --normalize-observations --hidden-sizes 16",
    ],
)
def test_a_policy_rebuilt_in_numpy_as_the_page_says_acts_as_birl_does(words, workplace, first_updates):
    [block] = [
        block for block in blocks_of(ROOT / "docs" / "runs-and-checkpoints.md") if "def load_policy" in block.code
    ]
    prepare_runs(["runs/mine"])
    load_policy = run_python(block)["load_policy"]
    call_well("train", *words.split(), "--run-dir", "run", "--eval-episodes", "1")
    [checkpoint] = Path("run", "checkpoints").glob("[0-9]*")
    policy, shape = birl.load(checkpoint), gym.make(words.split()[1]).observation_space.shape
    observations = np.random.default_rng(0).normal(size=(300, *shape)).astype(np.float32)
    actions = np.array([policy.act(observation)[0] for observation in observations])
    assert len(np.unique(actions)) > 1
    np.testing.assert_allclose(load_policy(checkpoint)(observations), actions, rtol=1e-3, atol=1e-6)
