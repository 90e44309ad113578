"""What a finding suggests: settings with new values, and the command that tries them."""

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from birl.lab.diagnosis.findings import Change, Rule


def changed_settings(rule: Rule, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a rule would change, as far as this run has them, with new values.

    A schedule is text, as in the history of a run; each of its values is changed.
    """
    found: dict[str, Any] = {}
    for change in rule.changes:
        now = settings.get(change.setting)
        if now is None or settings.get(change.unless) is not None:
            continue
        new = _changed(now, change, settings)
        if new is not None and new != now:
            found[change.setting] = new
    return found


def command_for(rule: Rule, changes: Mapping[str, Any], run_dir: Path, forks: bool) -> str:
    """The command that tries these settings; "" if there are none."""
    if rule.proof == "evaluation":
        return shlex.join(["birl", "eval", str(run_dir), "--sample"])
    if not changes:
        return ""
    words = ["birl", *(["fork"] if forks else ["train", "--like"]), str(run_dir)]
    for name, new in changes.items():
        words.append(f"--{name.rpartition('.')[2].replace('_', '-')}")
        words += [] if new is True else [option_text(new)]
    return shlex.join(words)


def option_text(value: Any) -> str:
    """A value as an option of the command line takes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _changed(now: Any, change: Change, settings: Mapping[str, Any]) -> Any:
    """The new value of a setting; None if it is no number and no schedule, as in a damaged file."""
    bound = change.value
    match change.how:
        case "times" if type(now) is int:
            return _whole(now, change, settings.get(change.multiple_of))
        case "times":
            return _each(now, lambda value: _few_digits(min(value * bound, change.most)))
        case "at least":
            return _each(now, lambda value: value if value >= bound else bound)
        case "at most":
            return _each(now, lambda value: value if value <= bound else bound)
    return bound


def _whole(now: int, change: Change, unit: Any) -> int | None:
    """A whole number times a factor: whole, at least 1; None if that makes it no smaller."""
    unit = unit if type(unit) is int and unit > 0 else 1
    new = unit * max(1, round(min(now * change.value, change.most) / unit))
    return None if change.value < 1 and new >= now else new


def _each(now: Any, change: Callable[[float], float]) -> Any:
    """A number, or a schedule as text, with each value changed."""
    from birl.maths.schedules import Schedule, format, parse  # imports JAX

    if type(now) in (int, float):
        return change(now)
    try:
        schedule = parse(now)
    except (AttributeError, ValueError):
        return None
    if not isinstance(schedule, Schedule):
        return None
    return format(Schedule(schedule.kind, tuple(map(change, schedule.values)), schedule.points))


def _few_digits(value: float) -> float:
    return value if value == 0 or not math.isfinite(value) else round(value, 3 - math.floor(math.log10(abs(value))))
