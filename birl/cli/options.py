"""Reading options with tyro: numbers as people write them, and errors in one line."""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import sys
import tokenize
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation, Overflow
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from birl.config import ConfigError, EnvConfig, Plain, Wrapper, require
from birl.errors import TERMINAL_CODES, suggest_setting
from birl.settings import Help, notes_of

Flag = tyro.conf.FlagCreatePairsOff[bool]  # without --no-...
Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]
EnvId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Backend = Literal["gymnasium", "envpool", "compiled"]
RunDir = Annotated[Path, tyro.conf.Positional]
RunDirs = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(one or more)"),
]
Result = TypeVar("Result")
UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
EXAMPLES = "100000, 100k, 1e5, 0.1M or 100_000"
MOST = 10**30  # larger numbers are surely a mistake, and 1e999999999 would fill the memory
FEWEST_WORDS = 3  # a shorter comment, such as γ, says too little on the command line


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its newest undamaged checkpoint, exactly as if it had not stopped.

    Of a group, every run that has not finished is continued.
    """

    run_dir: RunDir  # the run's directory, or a group's
    total_steps: int | None = None  # train to this many environment steps instead; schedules then end there
    workers: int | None = None  # step the environments in this many processes instead; the run stays the same
    jobs: int | None = None  # runs of a group that train at once; None: the CPU cores
    ray_address: str | None = None  # train the runs of a group as tasks of this Ray cluster; None: in processes here
    trust: bool = False  # let a run that was not made here import modules, start processes and reach other machines
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own


@dataclass(frozen=True)
class PolicyOptions:
    """Which policy to use, and for which episodes."""

    run_dir: RunDir  # a run's directory, one of its checkpoints, or a policy file; of eval also a group's
    episodes: int  # number of episodes
    seed: int = 0  # seed of the environments
    sample: bool = False  # sample actions instead of taking the most likely ones
    max_steps: int | None = None  # cut episodes after this many steps; None: as in the run's evaluations
    trust: bool = False  # let a run that was not made here import the module that its env.id names
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own
    kwargs: dict[str, Plain] = field(default_factory=dict)  # keyword arguments for the environment, instead of its own

    def arguments(self) -> dict[str, Any]:
        """The arguments of `birl.play` and `birl.record`."""
        others = {name: getattr(self, name) for name in ("episodes", "seed", "max_steps", "trust", "env")}
        return others | {"policy": self.run_dir, "deterministic": not self.sample, "kwargs": self.kwargs or None}


def policy_options(words: list[str], command: str, description: str, episodes: int) -> PolicyOptions:
    """The options of a command that plays episodes; `episodes` is the default."""
    default = PolicyOptions(tyro.MISSING, episodes)
    return parse(PolicyOptions, words, f"birl {command}", description=description, default=default)


def env_of_options(env_id: str, options: Mapping[str, Any]) -> EnvConfig:
    """The settings of an environment among these options; `wrapper` has the texts of wrappers."""
    names = ("backend", "max_episode_steps", "hide_velocities", "ignore_observations", "kwargs")
    settings = {name: options[name] for name in names if name in options}
    return EnvConfig(env_id, wrappers=tuple(map(Wrapper.from_text, options["wrapper"])), **settings)


def allow_modules_here(*names: str | None, trust: bool = False) -> None:
    """Let Python find modules in the current directory, if the user names one or trusts the run.

    Otherwise it does not: the current directory may be a run that somebody else made.
    """
    if trust or any(":" in (name or "") for name in names):
        sys.path.append(os.getcwd())


def parse(kind: Callable[..., Result], words: list[str], prog: str, **options: Any) -> Result:
    """The value that tyro reads from these words; ConfigError in one line if it cannot.

    `options` are tyro's. A nested dataclass has the names of its fields.
    """
    with reading_rules(), errors_in_one_line():
        found, unknown = tyro.cli(kind, args=words, prog=prog, return_unknown_args=True, **options)
    require_no_unknown(unknown, prog, prog, [f"--{name.replace('_', '-')}" for name in _names(kind)])
    return found


def read_known(kind: Callable[..., Result], words: list[str], prog: str) -> tuple[Result, list[str]]:
    """The options of this dataclass among the words, and the other words; else as `parse`."""
    with reading_rules(), errors_in_one_line():
        return tyro.cli(kind, args=words, prog=prog, return_unknown_args=True, add_help=False)


def require_no_unknown(words: list[str], owner: str, prog: str, known: Iterable[str]) -> None:
    """Raise ConfigError if words are left that are no options, with what the user may mean.

    `known` are the options of the owner, such as --total-steps.
    """
    remedy = f"{prog} --help shows the options"
    for word in words:
        name = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", name):
            meant = suggest_setting(name.replace("--no-", "--", 1), known)
            raise ConfigError(f"{owner} has no option {name}; {meant or remedy}")
        is_truth = word.casefold() in ("true", "false", "yes", "no", "0", "1")
        remedy = "a switch takes no value: write --name or --no-name" if is_truth else remedy
    require(not words, f"{prog} cannot use {' '.join(map(repr, words))}; {remedy}")


def reading_rules() -> ConstructorRegistry:
    """tyro's rules for numbers, texts, paths, choices, several of them, and keyword arguments.

    Any of them may be None where its type allows it; the text of the option says what that means.
    """
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def value_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        """One value, several, or None. tyro's own messages and words for types are long."""
        types = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else (info.type,)
        optional = NoneType in types
        kinds = [kind for kind in types if kind is not NoneType]
        several = len(kinds) == 1 and get_origin(kinds[0]) is tuple and get_args(kinds[0])[-1] is ...
        reader = _reader(get_args(kinds[0])[0] if several else kinds[0]) if len(kinds) == 1 else None
        if reader is None or (several and tyro.conf.UseAppendAction in info.markers):
            return None
        metavar, read, is_one = reader

        def from_words(given: list[str]) -> Any:
            if optional and given == ["None"]:
                return None
            return tuple(map(read, given)) if several else read(given[0])

        def to_words(value: Any) -> list[str]:
            return [str(one) for one in value] or ["none"] if isinstance(value, tuple) else [str(value)]

        return PrimitiveConstructorSpec(
            nargs="*" if several else 1,
            metavar=f"[{metavar} ...]" if several else metavar,
            instance_from_str=from_words,
            is_instance=lambda value: isinstance(value, tuple) if several else is_one(value),
            str_from_instance=to_words,
        )

    @registry.primitive_rule
    def arguments_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        """Keyword arguments as pairs. Their types are not known, so 100k stays a text."""
        if get_origin(info.type) is not dict:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="[NAME VALUE ...]",
            instance_from_str=_read_pairs,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [str(part) for pair in value.items() for part in pair] or ["none"],
        )

    return registry


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn the box in which tyro prints an error into a ConfigError."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as exit:
        if exit.code == 0:
            raise
        raise ConfigError(box_text(printed.getvalue())) from None


def box_text(box: str) -> str:
    """The message in a box that tyro prints, as one line.

    The box is drawn with lines, and the title is in the upper one; or it is drawn with dashes, and
    the title is above them.
    """
    lines = [line.strip("│ \t") for line in TERMINAL_CODES.sub("", box).splitlines()]
    rules = [number for number, line in enumerate(lines) if re.match(r"[╭╰─]|-{5}", line)]
    if not rules:
        return " ".join(box.split())
    end = next((number for number in rules if number > rules[0]), len(lines))
    text = " ".join(lines[rules[0] + 1 : end]).strip().removeprefix("Error parsing ").rstrip(".")
    return re.sub(r"^Missing value for argument '(\S+)'.*", r"\1 needs a value", text)


def text_of(kind: type, name: str) -> str:
    """One line about a field of a settings class; "" if there is none."""
    comment = comments_of(kind).get(name, "")
    if len(comment.split()) >= FEWEST_WORDS:
        return comment
    texts = [
        note.text for note in notes_of(typing.get_type_hints(kind, include_extras=True)[name]) if isinstance(note, Help)
    ]
    return texts[0] if texts else comment


@cache
def comments_of(kind: type) -> dict[str, str]:
    """The comments of a dataclass's fields, by name: behind the field, or else right above it."""
    source = inspect.cleandoc(inspect.getsource(kind))
    comments: dict[str, str] = {}
    above: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not line:
            above.append(token.string)
        elif token.type in (tokenize.NEWLINE, tokenize.NL) and (line or token.line.strip() == ""):
            _add_comment(comments, line, above)
            if token.type == tokenize.NEWLINE or not line:
                line, above = [], []
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            line.append(token)
    return comments


def whole_number(text: str) -> int:
    """The whole number that this text writes; ValueError if it writes none."""
    value = _decimal(text)
    if value is None or not value.is_finite():
        raise ValueError(f"{text!r} is not a whole number; write it like {EXAMPLES}")
    if abs(value) > MOST:
        raise ValueError(f"{text!r} is too large")
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number; use {value:.0f}")
    return int(value)


def real_number(text: str) -> float:
    """The number that this text writes; ValueError if it writes none."""
    value = _decimal(text)
    if value is None:
        raise ValueError(f"{text!r} is not a number; write it like 0.5, 3e-4 or 2.5k")
    return float(value)


def short_number(value: int) -> str:
    """A whole number as `whole_number` reads it, with a unit if that is exact: 500k, 1.5M."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= unit and value % (unit // 100) == 0:
            return f"{value / unit:g}{name}"
    return str(value)


def _decimal(text: str) -> Decimal | None:
    """The exact value of a number with or without a unit; None if the text is no number."""
    text = text.strip()
    unit = UNITS.get(text[-1:], 1)
    try:
        return Decimal(text[:-1] if unit > 1 else text) * unit
    except InvalidOperation:
        return None
    except Overflow:
        return Decimal("inf")


def _names(kind: Any) -> Iterator[str]:
    """The names of a function's or a dataclass's arguments, and those of their fields."""
    for parameter in inspect.signature(kind).parameters.values():
        yield parameter.name
        if dataclasses.is_dataclass(parameter.default):
            yield from _names(type(parameter.default))


READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    int: ("INT", whole_number), float: ("FLOAT", real_number), str: ("STR", str), Path: ("PATH", Path)
}  # fmt: skip


def _reader(kind: Any) -> tuple[str, Callable[[str], Any], Callable[[Any], bool]] | None:
    """A word for a type, what reads its values and tells them; None: tyro has a rule."""
    if get_origin(kind) is Literal:
        options = get_args(kind)
        return "{" + ",".join(options) + "}", partial(_one_of, options=options), options.__contains__
    return (*READERS[kind], lambda value: isinstance(value, kind)) if kind in READERS else None


def _one_of(text: str, options: tuple[str, ...]) -> str:
    if text not in options:
        raise ValueError(f"{text!r} is not one of {', '.join(options)}")
    return text


def _read_pairs(given: list[str]) -> dict[str, bool | int | float | str]:
    if len(given) % 2:
        raise ValueError(f"{' '.join(given)!r} must be pairs of a name and a value, for example: gravity 9.8")
    return {name: _plain_value(text) for name, text in zip(given[::2], given[1::2], strict=True)}


def _plain_value(text: str) -> bool | int | float | str:
    for read in (_truth, int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


def _truth(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"


def _add_comment(comments: dict[str, str], line: list[tokenize.TokenInfo], above: list[str]) -> None:
    """Add the comment of a line `name: type = value  # comment`, if it is one."""
    if len(line) < 2 or line[0].type != tokenize.NAME or line[1].string != ":":
        return
    behind = [token.string for token in line if token.type == tokenize.COMMENT]
    if found := behind or above:
        comments[line[0].string] = " ".join(comment.lstrip("# ") for comment in found)
