"""The benchmark's settings as Birl takes them: a Config, or words for its command line."""

import dataclasses
from typing import Any

import birl
from birl.presets import preset
from birl.registry import algorithm_named
from birl.settings import places_of

SCHEDULES = ("learning_rate", "clip_range", "exploration")
APART = (("env",), ("run",))  # the parts whose settings are given here


def config_of(settings: dict[str, Any]) -> Any:
    """The Config. With `preset`, Birl's own for this algorithm and environment, on this backend."""
    algorithm, backend = settings["algorithm"], settings["backend"]
    run = birl.RunConfig(total_steps=settings["total_steps"], seed=settings["seed"])
    if settings.get("preset"):
        tuned = preset(algorithm, settings["env"])
        return dataclasses.replace(tuned, env=dataclasses.replace(tuned.env, backend=backend), run=run)
    env = birl.EnvConfig(
        id=settings["env"], num_envs=settings["num_envs"], backend=backend, workers=settings["workers"]
    )
    return algorithm_named(algorithm).Config(
        env=env, run=run, **{name: _value(name, value) for name, value in _own(settings).items()}
    )


def words_of(settings: dict[str, Any], total_steps: int) -> list[str]:
    """What follows `birl train` for these settings, without a run directory."""
    words = [settings["algorithm"], settings["env"]]
    others = {name: settings[name] for name in ("num_envs", "backend", "seed")}
    for name, value in (_own(settings) | others | {"total_steps": total_steps}).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", *_texts(name, value)]
    return words


def _own(settings: dict[str, Any]) -> dict[str, Any]:
    """Those that the algorithm's Config has itself."""
    places = places_of(algorithm_named(settings["algorithm"]).Config)
    return {name: value for name, value in settings.items() if name in places and places[name].path[:1] not in APART}


def _value(name: str, value: Any) -> Any:
    """A list for a schedule is a line, any other list is a tuple."""
    if not isinstance(value, list):
        return value
    return birl.linear(*value) if name in SCHEDULES else tuple(value)


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        return [str(value)]
    texts = [str(part) for part in value]
    return [":".join(["linear", *texts])] if name in SCHEDULES else texts
