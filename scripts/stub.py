"""Writes birl/__init__.pyi, with which type checkers and editors know every setting.

A function that takes settings by name has an overload for each algorithm, with the settings of its
Config. All comes from the signatures and the Configs.
"""

import inspect
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any, Literal

import birl
from birl.config import AtariConfig, EnvConfig, ReadsText, RunConfig
from birl.registry import algorithm_named
from birl.settings import places_of, plain

STUB = Path(birl.__file__).with_suffix(".pyi")
MODULES = {name: name.replace("-", "_") for name in birl.ALGORITHMS}
APART = (("env",), ("run",), ("atari",))  # parts whose settings are the same for all algorithms
OPTIONS_OF = {"train": "start", "resume": "reopen", "fork": "open_fork"}  # whose keywords their `options` are
PER_ALGORITHM = ("configure", "preset", "start", "train", "tune")  # the first argument is an algorithm
TYPED = (*PER_ALGORITHM, "fork", "open_fork", "resume")
FUNCTION = Callable[..., Any]

BEGINNING = '''# Written by scripts/stub.py from the signatures and the Configs.
# ruff: noqa
# fmt: off
"""The types of Birl's public names, with the settings of each algorithm."""

{imports}

__version__: str
ALGORITHMS: dict[str, str]

class AnyConfig(Protocol):
    """The Config of an algorithm, which may be your own."""

    @property
    def env(self) -> EnvConfig: ...
    @property
    def run(self) -> RunConfig: ...
'''


class Types:
    """Types as they are written in the stub, and what it must import for them."""

    def __init__(self) -> None:
        self.imported = {("typing", name) for name in ("Protocol", "TypedDict", "Unpack", "overload")}

    def text(self, kind: Any) -> str:
        """A type."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in (None, type(None)):
            return "None"
        if origin in (typing.Union, types.UnionType):
            return _either(map(self.text, arguments))
        if origin is Literal:
            return f"{self._named('typing', 'Literal')}[{', '.join(map(repr, arguments))}]"
        if kind is Any:
            return self._named("typing", "Any")
        if kind is ...:
            return "..."
        name = self._named((origin or kind).__module__, (origin or kind).__name__)
        return f"{name}[{', '.join(map(self.text, arguments))}]" if arguments else name

    def given(self, kind: Any) -> str:
        """What may be given for a setting of this type, as `from_json` converts it."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is tuple:
            return f"list[{self.given(arguments[0])}] | tuple[{self.given(arguments[0])}, ...]"
        if origin is dict:
            return self.text(Mapping[arguments])
        if origin in (typing.Union, types.UnionType):
            is_name = str in arguments and type(None) not in arguments  # a function may take its place
            return _either(map(self.text, (*arguments, FUNCTION)) if is_name else map(self.given, arguments))
        if isinstance(kind, ReadsText):
            return f"{self.text(kind)} | str | {self.text(FUNCTION)}"
        return f"str | {self.text(os.PathLike)}[str]" if kind is str else self.text(kind)

    def _named(self, module: str, name: str) -> str:
        if module != "builtins":
            self.imported.add((module.partition("._")[0], name))
        return name


def stub() -> str:
    """The text of the stub."""
    found = Types()
    parts = [*settings_classes(found), *(function(found, name) for name in TYPED)]
    public = {name: home for name, home in birl._HOMES.items() if name not in TYPED}
    imports = [f"from {home} import {name} as {name}" for name, home in public.items()]
    for name, home in birl.ALGORITHMS.items():  # what a file offers under several names has the same types
        package, _, module = home.partition(":")[0].rpartition(".")
        imports.append(f"from {package} import {module} as {MODULES[name]}")
    imports += [f"from {module} import {name}" for module, name in found.imported if name not in public]
    return BEGINNING.format(imports="\n".join(sorted(imports))) + "".join(parts)


def settings_classes(found: Types) -> list[str]:
    """The settings that every algorithm has, those of each algorithm, and those of any."""
    own = {name: _settings(found, algorithm_named(name).Config) for name in birl.ALGORITHMS}
    shared = sorted(set.intersection(*(set(settings.items()) for settings in own.values())))
    names = sorted({name for settings in own.values() for name in settings})
    own["any"] = {name: _either(settings[name] for settings in own.values() if name in settings) for name in names}
    of_env, of_atari, of_run = (_settings(found, kind) for kind in (EnvConfig, AtariConfig, RunConfig))
    texts = [_typed_dict("Settings", "TypedDict", of_env | of_atari | of_run | dict(shared))]
    for name, settings in own.items():
        rest = {setting: text for setting, text in settings.items() if setting not in dict(shared)}
        texts.append(_typed_dict(_class_name(name), "Settings", rest))
    return texts


def function(found: Types, name: str) -> str:
    """A public function; if its first argument is an algorithm, with an overload for each."""
    called = getattr(birl, name)
    docstring = indent(f'"""{inspect.getdoc(called)}"""\n', "    ")
    if name not in PER_ALGORITHM:
        return f"\n{_definition(found, name, '', 'AnySettings', '')}\n{docstring}"
    plain = typing.get_type_hints(called)["algorithm"] is not Any  # a name, and no Config
    texts = []
    for algorithm, module in MODULES.items():
        kind = f"Literal[{algorithm!r}]" if plain else f"Literal[{algorithm!r}] | {module}.Config"
        texts.append(_definition(found, name, kind, _class_name(algorithm), f"{module}.Config"))
    texts.append(_definition(found, name, "str" if plain else "str | AnyConfig", "Settings", "Any"))
    if name == "configure":
        like = _definition(found, name, "str | None = None", "AnySettings", "Any")
        texts.append(like.replace("like: str | Path | None = None", "like: str | Path"))
    first, *others = texts
    return f"\n@overload\n{first}\n{docstring}" + "".join(f"@overload\n{text} ...\n" for text in others)


def _definition(found: Types, name: str, algorithm: str, settings: str, config: str) -> str:
    """The first line of a function: with this type of its algorithm, and these settings."""
    called = getattr(birl, name)
    parameters, hints = dict(inspect.signature(called).parameters), typing.get_type_hints(called)
    if name in OPTIONS_OF:
        options = getattr(birl, OPTIONS_OF[name])
        del parameters["options"]
        parameters |= {
            key: value for key, value in inspect.signature(options).parameters.items() if key not in parameters
        }
        hints = typing.get_type_hints(options) | hints
    texts = []
    for parameter in parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        if parameter.kind is parameter.VAR_KEYWORD:
            texts.append(f"**{parameter.name}: Unpack[{settings}]")
        elif parameter.name == "algorithm":
            texts.append(f"algorithm: {algorithm}")
        else:
            default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
            texts.append(f"{parameter.name}: {found.text(hints[parameter.name])}{default}")
    returned = config if hints["return"] is Any else found.text(hints["return"])
    return f"def {name}({', '.join(texts)}) -> {returned}:"


def _settings(found: Types, kind: type) -> dict[str, str]:
    """The flat names of a dataclass's settings, with the types of what may be given."""
    own = {name: place for name, place in places_of(kind).items() if place.path[:1] not in APART and name != "id"}
    return {name: found.given(plain(place.hint)) for name, place in own.items()}


def _typed_dict(name: str, base: str, settings: dict[str, str]) -> str:
    return f"\nclass {name}({base}, total=False):\n" + "".join(f"    {key}: {text}\n" for key, text in settings.items())


def _class_name(algorithm: str) -> str:
    return f"{algorithm.title().replace('-', '')}Settings"


def _either(texts: Iterable[str]) -> str:
    """A union without repetitions."""
    return " | ".join(dict.fromkeys(text for union in texts for text in union.split(" | ")))


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
