"""The page about a search: its result, its trials, which settings matter, and the final runs."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from birl.config import ConfigError
from birl.errors import CheckpointError
from birl.experiments.report.elements import (
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
from birl.experiments.report.making import read_groups, run_sections
from birl.experiments.report.page import write_report
from birl.experiments.tuning.result import result_texts, trial_text
from birl.experiments.tuning.state import FINAL, FINAL_DEFAULT
from birl.run.display import number

REPORT = "report.html"
SHOWN = 20  # trials that are not folded


def write_page(directory: Path, result: dict[str, Any], title: str) -> Path:
    """Write report.html about a search that is over; its path."""
    sections = [_result_section(directory, result), _trials_section(result)]
    sections += [_importance_section(result)] if result["importance"] else []
    finals = [directory / name for name in (FINAL, FINAL_DEFAULT) if (directory / name).is_dir()]
    if not finals and result["winner"] is not None:  # nothing was trained again
        finals = [directory / result["trials"][result["winner"]]["directory"]]
    with suppress(ConfigError, CheckpointError):  # no final run has begun
        sections += run_sections(read_groups(finals)) if finals else []
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
    head = ["trial", "settings", "chosen by", *rungs, "environment steps"]
    rows = [_row(index, trial, several) for index, trial in trials]
    parts = [table(head, rows[:SHOWN], 3)]
    if len(rows) > SHOWN:
        parts.append(folded(f"{len(rows) - SHOWN} more", table(head, rows[SHOWN:], 3)))
    parts.append(small("Scores are means over the seeds of a trial, at the steps of each rung."))
    return Section("Trials", join(parts))


def _row(index: int, trial: dict[str, Any], several: bool) -> list[Content]:
    scores: list[Content] = ["" if score is None else number(score) for score in trial["scores"]]
    failed = f"failed: {trial['problem']}" if trial["problem"] is not None else trial_text(trial["settings"])
    shown = f"{trial['algorithm']}: {failed}" if several else failed
    return [str(index), shown, trial["how"], *scores, f"{trial['env_steps']:,}"]


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
