"""The plan of a search: its candidates, seeds, rungs and budget, saved in tune.json."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from birl.config import from_json, hints_of, require, to_json
from birl.errors import CheckpointError
from birl.registry import validate
from birl.run.files import read_json, write_json
from birl.run.trust import Consent, is_own, sign
from birl.search import Choices, Dimension, LogRange, Range, SearchSpace
from birl.settings import declared_search

PLAN = "tune.json"
FORMAT = 1
ETA = 3  # one trial of this many goes on to the next rung (Li et al. 2020)
FRESH = 1_000  # how far the seeds of the final runs are from those of the search
KINDS: dict[str, type] = {"range": Range, "log_range": LogRange}

SamplerName = Literal["tpe", "random"]
CommandName = Literal["tune", "solve"]


@dataclass(frozen=True)
class Candidate:
    """An algorithm with the settings to begin with, and what is searched around them."""

    algorithm: str
    config: Any  # its Config; trial 0 of a search over one candidate has exactly these settings
    space: SearchSpace


@dataclass(frozen=True)
class Budget:
    """The end of the search for settings. The final runs come after it."""

    minutes: float | None = None  # of wall clock for everything, the final runs too; None: no limit
    trials: int | None = None  # None: no limit

    def __post_init__(self) -> None:
        given = self.minutes is not None or self.trials is not None
        require(given, "the search has no end: give minutes, trials or both (--minutes 30, --trials 50)")
        require(self.minutes is None or self.minutes > 0, f"minutes {self.minutes} must be more than 0")
        require(self.trials is None or self.trials >= 1, f"trials {self.trials} must be at least 1")


@dataclass(frozen=True)
class TunePlan:
    """Everything that the workers of a search agree on."""

    candidates: tuple[Candidate, ...]
    seeds: tuple[int, ...]  # of each trial
    final_seeds: tuple[int, ...]  # of the winner and of the settings to begin with; none of them is in `seeds`
    rungs: tuple[int, ...]  # environment steps at which trials of the first candidate are compared
    sampler: SamplerName
    search_seed: int
    budget: Budget
    startup: int = 10  # trials before the sampler learns from them
    finalists: int = 3  # the best trials, which are trained to the end before one wins
    command: CommandName = "tune"  # that began the search

    @property
    def env_id(self) -> str:
        return str(self.candidates[0].config.env.id)

    def steps(self, candidate: int, rung: int) -> int:
        """The environment steps at which trials of a candidate are compared.

        Those of others may be more or fewer: a rung is the same part of a candidate's total steps.
        """
        return rung_steps(self.candidates[candidate].config.run.total_steps, len(self.rungs))[rung]

    @property
    def last_rung(self) -> int:
        return len(self.rungs) - 1

    def title(self) -> str:
        names = dict.fromkeys(candidate.algorithm for candidate in self.candidates)
        return f"{self.command} {', '.join(names)} {self.env_id}"


def rung_steps(total_steps: int, count: int) -> tuple[int, ...]:
    """The steps of each rung: the last is `total_steps`, and each has ETA times those before."""
    require(count >= 1, f"rungs {count} must be at least 1")
    first = total_steps // ETA ** (count - 1)
    most = 1 + int(math.log(max(total_steps, 1), ETA))
    require(first >= 1, f"rungs {count} are too many for {total_steps:,} steps; use at most {most}")
    return (*(first * ETA**rung for rung in range(count - 1)), total_steps)


def make_plan(
    candidates: tuple[Candidate, ...],
    budget: Budget,
    seeds: int = 2,
    final_seeds: int = 5,
    rungs: int = 3,
    sampler: SamplerName = "tpe",
    search_seed: int = 0,
    finalists: int = 3,
    command: CommandName = "tune",
) -> TunePlan:
    """The plan of a search around these candidates; with 0 final seeds, none is trained again."""
    require(1 <= seeds < FRESH, f"seeds {seeds} must lie between 1 and {FRESH - 1}")
    require(0 <= final_seeds < FRESH, f"final_seeds {final_seeds} must lie between 0 and {FRESH - 1}")
    require(search_seed >= 0, f"search_seed {search_seed} must be at least 0")
    run = candidates[0].config.run
    numbers = tuple(run.seed + number for number in range(seeds))
    fresh = tuple(run.seed + FRESH + number for number in range(final_seeds))
    ready = tuple(_ready(one, rungs) for one in candidates)
    steps = rung_steps(run.total_steps, rungs)
    return TunePlan(ready, numbers, fresh, steps, sampler, search_seed, budget, finalists=finalists, command=command)


def _ready(candidate: Candidate, rungs: int) -> Candidate:
    """The candidate without values with which nothing is learned before the first comparison.

    Values that the user named stay.
    """
    space, starts = candidate.space, candidate.space.get("learning_starts")
    if isinstance(starts, Choices) and starts == declared_search(type(candidate.config)).get("learning_starts"):
        half = rung_steps(candidate.config.run.total_steps, rungs)[0] // 2
        early = tuple(value for value in starts.values if value <= half) or (min(starts.values),)
        space = space | {"learning_starts": Choices(early)}
    return Candidate(candidate.algorithm, _for_trials(candidate.config), space)


def _for_trials(config: Any) -> Any:
    """The Config without what a trial does not need, or what would end it before its rung.

    Its evaluations are those at rungs and at its end. The checkpoint of the best one is kept.
    """
    end = config.run.total_steps
    run = dataclasses.replace(
        config.run, run_dir=None, stop_at_return=None, video_every=0, keep_checkpoints=1, keep_every=0, eval_every=end
    )
    return dataclasses.replace(config, run=run)


def write_plan(directory: Path, plan: TunePlan) -> None:
    """Write tune.json, signed: so that this user's workers need no consent for its settings."""
    content = plan_json(plan)
    signatures = [sign(one.algorithm, to_json(one.config)) for one in plan.candidates]
    write_json(directory / PLAN, content | {"signatures": signatures, "signature": sign("tune", content)})


def plan_json(plan: TunePlan) -> dict[str, Any]:
    """The content of tune.json, without signatures."""
    candidates = [
        {"algorithm": one.algorithm, "config": to_json(one.config), "space": space_json(one.space)}
        for one in plan.candidates
    ]
    rest = {name: to_json(value) for name, value in vars(plan).items() if name != "candidates"}
    return {"format": FORMAT, "candidates": candidates, **rest}


def read_plan(directory: Path, trust: bool = False) -> tuple[TunePlan, list[str]]:
    """The plan in tune.json, and notices; ConfigError if it needs consent, which `trust` gives.

    A search that was made elsewhere or by someone else may not import a module, as with runs.
    """
    path = directory / PLAN
    stored: Any = read_json(path)
    match stored:
        case {"format": 1, "candidates": [_, *_], "budget": dict()}:
            pass
        case _:
            raise CheckpointError(f"{path} is damaged: it must hold candidates and a budget")
    signatures, signature = stored.pop("signatures", None), stored.pop("signature", None)
    known = is_own("tune", stored, signature) and isinstance(signatures, list)
    found = stored.pop("candidates")
    listed = signatures if known and len(signatures) == len(found) else [None] * len(found)
    read = [_read_candidate(one, path, own, trust) for one, own in zip(found, listed, strict=True)]
    stored.pop("format")
    budget = from_json(Budget, stored.pop("budget"), f"{path}: budget")
    kinds = hints_of(TunePlan)
    try:
        values = {name: from_json(kinds.get(name, int), value, f"{path}: {name}") for name, value in stored.items()}
        plan = TunePlan(tuple(candidate for candidate, _ in read), budget=budget, **values)
    except TypeError as problem:
        raise CheckpointError(f"{path} is damaged: {problem}") from problem
    require(len(plan.rungs) > 0 and len(plan.seeds) > 0, f"{path} is damaged: it has no rungs or no seeds")
    return plan, [notice for _, notices in read for notice in notices]


def is_search(directory: Path) -> bool:
    """True if this directory holds a search."""
    return (directory / PLAN).is_file()


def _read_candidate(stored: Any, path: Path, signature: Any, trust: bool) -> tuple[Candidate, list[str]]:
    match stored:
        case {"algorithm": str(name), "config": dict(values), "space": dict(space)}:
            own = signature is not None and is_own(name, values, signature)
            consent = Consent(path, own, trust)
            config = consent.config(name, values)
            dimensions = {setting: _read_dimension(one, setting, path) for setting, one in space.items()}
            config, notices = consent.to_train(config, None)
            validate(name, config)
            if not consent.is_full:
                _require_usual(config, space, path)
            return Candidate(name, config, dimensions), notices
    raise CheckpointError(f"{path} is damaged: a candidate has an algorithm, a config and a space")


def _require_usual(config: Any, space: dict[str, Any], path: Path) -> None:
    """Raise ConfigError if someone else's search tries settings that the algorithm does not list.

    Its trials become runs of this user, and such settings might import modules or name addresses.
    """
    others = sorted(space.keys() - declared_search(type(config)).keys())
    wrong = f"{path} was not made here, or not by you, and searches {', '.join(others)}"
    require(not others, f"{wrong}; if you trust it, use --trust (trust=True in Python)")


def space_json(space: SearchSpace) -> dict[str, Any]:
    """A search space as JSON."""
    return {name: _dimension_json(dimension) for name, dimension in space.items()}


def _dimension_json(dimension: Dimension) -> dict[str, Any]:
    if isinstance(dimension, Choices):
        return {"choices": to_json(dimension.values)}
    kind = next(name for name, kind in KINDS.items() if type(dimension) is kind)
    return {kind: [dimension.low, dimension.high]}


def _read_dimension(stored: Any, name: str, path: Path) -> Dimension:
    match stored:
        case {"choices": list(values)}:
            return Choices(tuple(values))
        case {"range": [int() | float() as low, int() | float() as high]}:
            return Range(low, high)
        case {"log_range": [int() | float() as low, int() | float() as high]}:
            return LogRange(low, high)
    raise CheckpointError(f"{path} is damaged: {stored!r} is not a range or a choice for {name}")


def point_json(point: dict[str, Any]) -> dict[str, Any]:
    """A point of a search space as JSON."""
    return {name: to_json(value) for name, value in point.items()}


def is_in(space: SearchSpace, point: dict[str, Any]) -> bool:
    """True if this point, as JSON, has a value for each setting of the space, and none outside."""
    return point.keys() == space.keys() and all(_holds(space[name], value) for name, value in point.items())


def _holds(dimension: Dimension, value: Any) -> bool:
    if isinstance(dimension, Choices):
        return any(to_json(choice) == value and type(to_json(choice)) is type(value) for choice in dimension.values)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and dimension.low <= value <= dimension.high
