"""Where results come from: commands to reproduce them, runs, branches, versions, the machine."""

from collections.abc import Sequence
from typing import Any

from birl.config import ConfigError, from_json
from birl.lab.report.elements import (
    Content,
    Html,
    Section,
    block,
    element,
    folded,
    join,
    named,
    paragraph,
    sentences,
    small,
    table,
)
from birl.lab.report.results import shown
from birl.lab.report.times import summary_number
from birl.lab.reproduce import SAME_BITS, commands_for, limits_of, near
from birl.lab.scores import final_evaluation, trained_steps
from birl.maths import schedules
from birl.run.directory import Fork
from birl.run.history import RunHistory, SeedGroup

MOST_RUNS = 500  # rows of the table of runs


def reproduce_section(groups: Sequence[SeedGroup]) -> Section:
    """The commands that train these runs again."""
    parts: list[Content] = []
    for place, group in enumerate(groups):
        commands = commands_for(group.runs)
        limits = limits_of(group.runs)
        parts.append(element("h3", named(group.label, place)))
        parts += [block("\n".join(commands))] if commands else []
        parts += [paragraph(limit) for limit in limits] or [small(SAME_BITS)]
    return Section("How to reproduce it", join(parts))


def branches_section(groups: Sequence[SeedGroup]) -> Section | None:
    """Which runs are forks, where they branched off, and what they changed; None if none is."""
    rows: list[list[Content]] = [
        [element("code", near(run.run_dir)), named(group.label, place), element("code", near(fork.parent)),
         _changes(fork), f"{fork.env_steps:,}"]
        for place, group in enumerate(groups)
        for run in group.runs
        if (fork := run.fork) is not None
    ]  # fmt: skip
    if not rows:
        return None
    about = "A fork begins with a checkpoint of its parent: the same networks, optimiser, environments and replay."
    head = ["fork", "group", "parent", "changed", "at step"]
    return Section("Branches", join([table(head, rows[:MOST_RUNS], texts=4), small(about)]))


def runs_section(groups: Sequence[SeedGroup]) -> Section:
    """Each run with its directory, state and score; and the software and machines they had."""
    rows: list[list[Content]] = [
        [element("code", str(run.run_dir)), named(group.label, place), run.seed, _state(run), f"{trained_steps(run):,}",
         shown(final_evaluation(run)), shown(summary_number(run, "wall_seconds"))]
        for place, group in enumerate(groups)
        for run in group.runs
    ]  # fmt: skip
    head = ["directory", "group", "seed", "state", "steps", "evaluation", "wall s"]
    cut = [] if len(rows) <= MOST_RUNS else [paragraph(f"{len(rows) - MOST_RUNS} more runs are not listed.")]
    runs = [run for group in groups for run in group.runs]
    parts = [
        folded(f"{len(rows)} runs", join([table(head, rows[:MOST_RUNS], texts=2), *cut])),
        _facts("Versions", [summary_texts(run, "versions") for run in runs]),
        _facts("Machine", [summary_texts(run, "machine") for run in runs]),
    ]
    return Section("Runs and versions", join(parts))


def _changes(fork: Fork) -> Html:
    """The settings that a fork changed, each with both values."""
    if not fork.changed:
        return sentences("nothing")
    names = {name: (name.rpartition(".")[2], *pair) for name, pair in fork.changed.items()}
    return sentences("; ".join(f"{name} {_value(old)} → {_value(new)}" for name, old, new in names.values()))


def _value(value: Any) -> str:
    """A setting as fork.json has it; a schedule as its text."""
    match value:
        case {"kind": str(), "values": list(), "points": list()}:
            try:
                return schedules.shown(from_json(schedules.Schedule, value))
            except ConfigError:
                return str(value)
        case list():
            return " ".join(map(str, value)) or "none"
    return str(value)


def _state(run: RunHistory) -> str:
    if run.problem is not None:
        return f"failed: {run.problem}"
    if run.summary is not None:
        return "ended"
    total = run.settings.get("run.total_steps")
    return f"at {trained_steps(run) / total:.0%}" if type(total) is int and total > 0 else "not ended"


def summary_texts(run: RunHistory, name: str) -> dict[str, str]:
    """A part of the summary that has texts by name; empty if there is none."""
    found: Any = (run.summary or {}).get(name)
    if not isinstance(found, dict):
        return {}
    return {key: str(value) for key, value in found.items() if isinstance(value, str | int)}


def _facts(title: str, found: Sequence[dict[str, str]]) -> Content:
    """What the runs say of something, one line for each name; several values if they disagree."""
    names = list(dict.fromkeys(name for one in found for name in one))
    lines = [f"{name} {', '.join(sorted({one[name] for one in found if name in one}))}" for name in names[:50]]
    if not lines:
        return paragraph(f"{title}: not known before a run has ended.") if title == "Versions" else ""
    return join([element("h3", title), paragraph(", ".join(lines))])
