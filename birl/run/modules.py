"""The modules that settings name, which run code when they are imported: where each is found."""

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

from birl.config import is_local
from birl.settings import flat_settings

ENV_ID = "env.id"


def named_modules(settings: dict[str, Any]) -> dict[str, str]:
    """The names module:something in settings, given as JSON, by the setting that has them."""
    env = settings.get("env")
    env = env if isinstance(env, dict) else {}
    wrappers = env.get("wrappers")
    listed = wrappers if isinstance(wrappers, list) else []
    paths = [wrapper.get("path") if isinstance(wrapper, dict) else wrapper for wrapper in listed]
    names = {ENV_ID: env.get("id"), "encoder": settings.get("encoder")}
    names |= {f"env.wrappers[{number}]": path for number, path in enumerate(paths)}
    return {
        setting: name
        for setting, name in names.items()
        if isinstance(name, str) and name.rpartition(":")[0] and not is_local(name)
    }


def local_notice(config: Any) -> list[str]:
    """A notice for a run that uses functions or classes that only this process has."""
    encoder = str(flat_settings(config).get("encoder"))
    names = [config.env.id, *(wrapper.path for wrapper in config.env.wrappers), encoder]
    own = ", ".join(name.rpartition(":")[2] for name in names if is_local(name))
    remedy = "put it into a module, and birl eval, birl resume and workers find it"
    return [f"{own} is of this script, so only this script can resume and evaluate the run; {remedy}"] if own else []


def home_of(name: str) -> str | None:
    """The directory of the module in module:something; None if it is not found.

    Nothing is imported. For a module inside packages it is the directory of the outermost package,
    because looking into a package imports it. The current directory is searched last, as the
    command line does.
    """
    package = _package(name)
    if not package:
        return None
    spec = _spec_of(package) or importlib.machinery.PathFinder.find_spec(package, [os.getcwd()])
    if spec is None:
        return None
    if spec.submodule_search_locations:  # a package, with or without __init__.py
        return os.path.realpath(os.path.dirname(next(iter(spec.submodule_search_locations))))
    return os.path.realpath(os.path.dirname(spec.origin)) if spec.has_location and spec.origin else None


def make_findable(name: str) -> None:
    """Let the module of the user's own run be imported from the directory that was signed."""
    home = home_of(name)
    if home is not None and _spec_of(_package(name)) is None:
        sys.path.append(home)


def _package(name: str) -> str:
    return name.rpartition(":")[0].partition(".")[0]


def _spec_of(package: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(package)
    except (ValueError, ImportError):  # __main__, and strings that are not module names
        return None
