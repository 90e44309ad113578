"""What a resume changed of a run's settings, and after how many steps: the history of settings.

It is in the manifest of every checkpoint, and for plots and reports in config.json.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from birl.config import ConfigError, to_json
from birl.settings import dotted_settings

NOT_KEPT = ("run.run_dir", "run.wandb", "run.trackio", "env.ray_address")  # they are about this machine, not the run


@dataclass(frozen=True)
class Change:
    """The settings that a resume changed."""

    env_steps: int  # where the run was resumed
    changed: dict[str, tuple[Any, ...]]  # by dotted name: the values before and after, as JSON


def changed_settings(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """The settings in which two Configs of an algorithm differ: both values, as JSON."""
    old, new = dotted_settings(before), dotted_settings(after)
    return {
        name: (to_json(old[name]), to_json(new[name]))
        for name in old
        if old[name] != new[name] and name != "run.run_dir"
    }


def settings_before(settings: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """The settings, nested as in config.json, as they were before these changes.

    ConfigError if the changes are not of such settings.
    """
    before = copy.deepcopy(settings)
    for change in reversed(changes):
        for name, pair in change.changed.items():
            *parts, last = name.split(".")
            try:
                part = before
                for one in parts:
                    part = part[one]
                part[last]  # it is a setting
                part[last], _ = pair
            except (KeyError, TypeError, ValueError) as problem:
                raise ConfigError(f"{name!r} is no setting that was changed") from problem
    return before
