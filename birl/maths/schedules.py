"""Schedules: numbers that change during a run.

They are data, so that they can be written as JSON or on the command line and used inside jit. A
function of progress is sampled, and so becomes data too.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

EXAMPLES = "3e-4, linear:3e-4:0, linear:1:0.05:0.2, exponential:1:0.01, piecewise:0=1,0.5=0.1"
SAMPLES = 1001  # of a function, at equal distances of progress
MOST_SHOWN = 10  # points of a schedule in a message


@dataclass(frozen=True)
class Schedule:
    """A number as a function of progress, the fraction of total_steps done.

    Use the functions below to build one. In a compiled function that takes a schedule, values and
    points are traced: another one of the same kind and length compiles nothing.
    """

    kind: Literal["constant", "linear", "exponential", "piecewise"]
    values: tuple[float, ...]
    points: tuple[float, ...] = ()  # progress at the end of a linear schedule, or at each value of a piecewise one

    TEXTS: ClassVar[str] = f"one of {EXAMPLES}"

    def __post_init__(self) -> None:
        # Tuples of Python's floats, so that a schedule can be hashed and saved.
        object.__setattr__(self, "values", _numbers("values", self.values))
        object.__setattr__(self, "points", _numbers("points", self.points))
        sizes = {
            "constant": (1, 0),
            "linear": (2, 1),
            "exponential": (2, 0),
            "piecewise": (len(self.points), len(self.points)),
        }
        _require(self.kind in sizes, f"schedule kind {self.kind!r} is not one of {', '.join(sizes)}")
        values, points = sizes[self.kind]
        _require(
            (len(self.values), len(self.points)) == (values, points),
            f"a {self.kind} schedule has {values} values and {points} points, "
            f"not {len(self.values)} and {len(self.points)}",
        )
        _require(len(self.values) > 0, "a piecewise schedule needs at least one point")
        _require(all(map(math.isfinite, self.values)), f"schedule values {_short(str(self.values))} must be finite")
        _require(
            all(0.0 <= point <= 1.0 for point in self.points),
            f"schedule points {_short(str(self.points))} must be fractions of the run, from 0 to 1",
        )
        _require(
            all(a < b for a, b in pairwise(self.points)), f"schedule points {_short(str(self.points))} must increase"
        )
        if self.kind == "linear":
            _require(
                self.points[0] > 0.0, "a linear schedule cannot end at progress 0, where it starts; use a constant"
            )
        if self.kind == "exponential":
            _require(
                min(self.values) > 0.0,
                f"an exponential schedule needs values above 0, not {self.values}; use linear to reach 0",
            )

    def __repr__(self) -> str:  # short: a sampled function has 1,001 points
        if len(self.values) > MOST_SHOWN:
            return f"Schedule({shown(self)})"
        return f"Schedule(kind={self.kind!r}, values={self.values}, points={self.points})"

    @classmethod
    def from_text(cls, text: str) -> "float | Schedule":
        """The number or schedule that `text` describes."""
        return parse(text)

    @classmethod
    def from_function(cls, function: Callable[[float], Any]) -> "Schedule":
        """The schedule of a function of progress."""
        return schedule(function)


def _flatten(schedule: Schedule) -> tuple[tuple[Any, Any], str]:
    return (_as_array(schedule.values), _as_array(schedule.points)), schedule.kind


def _unflatten(kind: str, arrays: tuple[Any, Any]) -> Schedule:
    schedule = object.__new__(Schedule)  # no checks: these may be tracers
    vars(schedule).update(kind=kind, values=arrays[0], points=arrays[1])
    return schedule


def _as_array(numbers: Any) -> Any:
    return np.array(numbers, np.float32) if isinstance(numbers, tuple) else numbers


jax.tree_util.register_pytree_node(Schedule, _flatten, _unflatten)


def constant(value: float) -> Schedule:
    """One value throughout the run."""
    return Schedule("constant", (value,))


def linear(start: float, end: float, until: float = 1.0) -> Schedule:
    """A straight line from start to end, which is reached at progress `until` and kept."""
    return Schedule("linear", (start, end), (until,))


def exponential(start: float, end: float) -> Schedule:
    """start (end / start)^progress: each step multiplies by the same factor."""
    return Schedule("exponential", (start, end))


def piecewise(points: tuple[float, ...], values: tuple[float, ...]) -> Schedule:
    """Straight lines through values[i] at progress points[i], constant before and after them."""
    return Schedule("piecewise", tuple(values), tuple(points))


def schedule(function: Callable[[float], Any]) -> Schedule:
    """A function of progress, 0 at the start and 1 at the end, sampled at 1,001 equal points.

    Between two points it is a straight line. ValueError, with the point, if the function raises
    there or does not give a finite number. A function that looks as if it counted backwards is
    warned of.
    """
    _require_progress_done(function)
    points = tuple(index / (SAMPLES - 1) for index in range(SAMPLES))
    values = tuple(_sample(function, point) for point in points)
    if values[0] == 0.0 and values[-1] == max(values) > 0.0 and _argument(function) != "progress":
        wrong = f"{_name(function)} rises from 0 to {values[-1]:g}: progress goes from 0 to 1, and not back as in SB3"
        warnings.warn(f"{wrong}; if this is meant, call its argument progress", stacklevel=2)
    return piecewise(points, values)


def value_at(schedule: float | Float[Array, ""] | Schedule, progress: float | Float[Array, ""]) -> Float[Array, ""]:
    """The value of a schedule at a progress from 0 to 1; a plain number is constant."""
    if not isinstance(schedule, Schedule):
        return jnp.asarray(schedule, jnp.float32)
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    match schedule.kind:
        case "constant":
            return jnp.asarray(schedule.values[0], jnp.float32)
        case "linear":
            return jnp.interp(progress, jnp.array([0.0, *schedule.points]), jnp.asarray(schedule.values))
        case "exponential":
            start, end = schedule.values
            return start * jnp.exp(progress * jnp.log(end / start))
        case "piecewise":
            return jnp.interp(progress, jnp.asarray(schedule.points), jnp.asarray(schedule.values))


def number_at(schedule: float | Schedule, progress: float) -> float:
    """As `value_at`, without JAX: for whoever needs one number outside of jit."""
    if not isinstance(schedule, Schedule):
        return schedule
    progress = min(max(progress, 0.0), 1.0)
    match schedule.kind:
        case "constant":
            return schedule.values[0]
        case "linear":
            return float(np.interp(progress, (0.0, *schedule.points), schedule.values))
        case "exponential":
            start, end = schedule.values
            return start * (end / start) ** progress
        case "piecewise":
            return float(np.interp(progress, schedule.points, schedule.values))


def parse(text: str) -> float | Schedule:
    """The number or schedule that `text` describes; ValueError if it cannot be read."""
    kind, *rest = text.strip().split(":")
    try:
        match kind, rest:
            case _, []:
                return _finite(kind)
            case "constant", [value]:
                return constant(_finite(value))
            case "linear", [start, end]:
                return linear(_finite(start), _finite(end))
            case "linear", [start, end, until]:
                return linear(_finite(start), _finite(end), _finite(until))
            case "exponential", [start, end]:
                return exponential(_finite(start), _finite(end))
            case "piecewise", [pairs]:
                points, values = zip(*(_pair(pair) for pair in pairs.split(",")), strict=True)
                return piecewise(points, values)
        raise ValueError(f"there is no schedule {kind!r} with {len(rest)} parts")
    except ValueError as problem:
        raise ValueError(f"cannot read schedule {text!r}: {problem}; write it like one of {EXAMPLES}") from None


def format(schedule: float | Schedule) -> str:
    """The text that `parse` reads as this schedule."""
    if not isinstance(schedule, Schedule):
        return repr(float(schedule))
    if schedule.kind == "piecewise":
        pairs = zip(schedule.points, schedule.values, strict=True)
        return "piecewise:" + ",".join(f"{point!r}={value!r}" for point, value in pairs)
    numbers = schedule.values if schedule.points == (1.0,) else schedule.values + schedule.points
    return ":".join([schedule.kind, *map(repr, numbers)])


def shown(schedule: float | Schedule) -> str:
    """The text of a schedule for people: that of `format`, or a short one for many points."""
    if not isinstance(schedule, Schedule) or len(schedule.values) <= MOST_SHOWN:
        return format(schedule)
    first, last = schedule.values[0], schedule.values[-1]
    return f"{len(schedule.values):,} points from {first:g} to {last:g}"


def _require_progress_done(function: Callable[[float], Any]) -> None:
    """Raise ValueError for a function of Stable-Baselines3, which counts progress backwards."""
    wrong = f"{_name(function)} takes progress_remaining, which falls from 1 to 0; here progress goes from 0 to 1"
    turned = f"lambda progress: {_name(function)}(1 - progress)"
    _require(_argument(function) != "progress_remaining", f"{wrong}: use {turned}")


def _argument(function: Callable[[float], Any]) -> str | None:
    """What a function calls its argument; None if that is not known."""
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):  # some functions of C have no signature
        return None


def _sample(function: Callable[[float], Any], progress: float) -> float:
    where = f"at progress {progress:g}; it must give a finite number for every progress from 0 to 1"
    try:
        value = function(progress)
        array = np.asarray(value)
    except Exception as problem:
        reason = f"{type(problem).__name__} ({problem})"
        raise ValueError(f"{_name(function)} raised {reason} {where}") from problem
    is_number = array.shape == () and array.dtype.kind in "iuf" and bool(np.isfinite(array))
    _require(is_number, f"{_name(function)} gives {_short(repr(value))} {where}")
    return float(array)


def _name(function: Callable[[float], Any]) -> str:
    """What to call a function in a message."""
    return function.__name__ if inspect.isroutine(function) else _short(repr(function))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:60]}..."


def _numbers(name: str, given: Iterable[float]) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in given)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"schedule {name} {given!r} must be numbers") from None


def _pair(text: str) -> tuple[float, float]:
    point, equals, value = text.partition("=")
    _require(bool(equals), f"{text!r} is not progress=value")
    return _finite(point), _finite(value)


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    _require(math.isfinite(number), f"{text!r} is not finite")
    return number


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
