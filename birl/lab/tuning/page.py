"""The page about a search: its result, its trials, which settings matter, and the final runs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.lab.report.elements import (
    Content,
    Section,
    bars,
    block,
    folded,
    join,
    paragraph,
    sentences,
    small,
    table,
)
from birl.lab.report.making import read_groups, run_sections
from birl.lab.report.page import write_report
from birl.lab.tuning.result import result_texts, trial_text
from birl.lab.tuning.state import FINAL, FINAL_DEFAULT
from birl.run.console import number
from birl.run.groups.group_results import json_text

REPORT = "report.html"
LABELS = {FINAL: "the winner", FINAL_DEFAULT: "the settings to begin with"}
SHOWN = 10  # trials that are not folded


def write_page(directory: Path, result: dict[str, Any], title: str, first: Sequence[Section] = ()) -> Path:
    """Write report.html about a search that is over, beginning with these sections; its path."""
    sections = [*first, _result_section(directory, result), _trials_section(result)]
    sections += [_importance_section(result)] if result["importance"] else []
    finals = {label: directory / name for name, label in LABELS.items() if (directory / name).is_dir()}
    if not finals and result["winner"] is not None:  # nothing was trained again
        finals = {LABELS[FINAL]: directory / result["trials"][result["winner"]]["directory"]}
    with suppress(ConfigError, CheckpointError):  # no final run has begun
        groups = [replace(group, label=label) for label, path in finals.items() for group in read_groups([path])]
        sections += run_sections(groups) if groups else []
    about = f"{len(result['trials'])} trials, {result['env_steps']:,} environment steps"
    return write_report(directory / REPORT, title, sections, about)


def _result_section(directory: Path, result: dict[str, Any]) -> Section:
    *texts, last = result_texts(directory, result)
    flattered = "The best of many trials is flattered by luck, so its score in the search is not its score."
    body = [*(paragraph(sentences(f"{text[:1].upper()}{text[1:]}")) for text in texts)]
    command = block(last.partition(": ")[2]) if result["winner"] is not None else paragraph(last)
    return Section("Result of the search", join([*body, command, small(flattered)]))


def _trials_section(result: dict[str, Any]) -> Section:
    """All trials, best first: a higher rung counts more than a higher score."""
    trials = sorted(enumerate(result["trials"]), key=lambda one: _rank(one[1]), reverse=True)
    several = len({trial["algorithm"] for _, trial in trials}) > 1  # each with its own steps
    rungs = [f"rung {rung}" if several else f"{steps:,} steps" for rung, steps in enumerate(result["rungs"], 1)]
    names = [] if several else list(dict.fromkeys(name for _, trial in trials for name in trial["settings"] or {}))
    head = ["trial", *([] if names else ["settings"]), *rungs, "environment steps", *names]
    rows = [_row(index, trial, names, several) for index, trial in trials]
    texts = 1 if names else 2
    parts = [table(head, rows[:SHOWN], texts)]
    if len(rows) > SHOWN:
        parts.append(folded(f"{len(rows) - SHOWN} more", table(head, rows[SHOWN:], texts)))
    about = "Scores are means over the seeds of a trial, at the steps of each rung."
    parts.append(small(f"{about} The trial called default has the settings to begin with."))
    return Section("Trials", join(parts))


def _row(index: int, trial: dict[str, Any], names: list[str], several: bool) -> list[Content]:
    """The cells of a trial: its settings in one cell, or in columns by these names."""
    scores: list[Content] = ["" if score is None else number(score) for score in trial["scores"]]
    results = [*scores, f"{trial['env_steps']:,}"]
    problem, own = trial["problem"], trial["settings"] or {}
    if names:
        about = "" if problem is None else f", failed: {problem}"
        values = [json_text(own[name]) if name in own else "" for name in names]
        return [f"{index} ({trial['how']}{about})", *results, *values]
    shown = f"failed: {problem}" if problem is not None else trial_text(trial["settings"])
    return [f"{index} ({trial['how']})", f"{trial['algorithm']}: {shown}" if several else shown, *results]


def _rank(trial: dict[str, Any]) -> tuple[int, float]:
    known = [(rung, score) for rung, score in enumerate(trial["scores"]) if score is not None]
    return max(known) if known and trial["problem"] is None else (-1, 0.0)


def _importance_section(result: dict[str, Any]) -> Section:
    rows = [(name, share, f"{share:.0%}") for name, share in result["importance"].items()]
    about = (
        "How much of what sets the best trials apart is due to each setting (PED-ANOVA, Watanabe et al. 2023), as far "
        "as these trials show. It is of the ranges that were searched, and with few trials it is a hint."
    )
    return Section("Importance of settings", join([bars(rows), small(about)]))
