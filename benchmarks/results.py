"""RESULTS.md: each section between markers is written by the run that measured it."""

import json
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from birl.run.files import replacing

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
SCRIPTS = (
    "`speed.py`, `compiled.py`, `learning.py`, `evidence.py`, `off_policy.py`, `acer_replay.py`, "
    "`tuning.py`, `solving.py`, `migration.py` and `export_agreement.py`"
)
TITLE = f"# Results\n\nWritten by {SCRIPTS}, never by hand; README.md says what the rows mean.\n"


def read_section(path: Path, name: str) -> str:
    """What stands between the markers of a section; empty if there is no such section."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = _pattern(name).search(text)
    return found.group(1).strip() if found else ""


def write_section(path: Path, name: str, body: str) -> None:
    """Put the body between the markers of a section; a new section goes to the end of the file."""
    text = path.read_text(encoding="utf-8") if path.exists() else TITLE
    section = f"<!-- {name}:begin -->\n\n{body.strip()}\n\n<!-- {name}:end -->"
    text, found = _pattern(name).subn(lambda _: section, text)  # a function: the body may contain backslashes
    if not found:
        text = f"{text.rstrip()}\n\n{section}\n"
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def write_lines(path: Path, entries: Mapping[str, Any]) -> None:
    """Write a JSON object completely or not at all, with a line for each entry."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items()]
    with replacing(path) as file:
        file.write(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def table(header: list[str], rows: list[list[str]], text_columns: int = 1) -> str:
    """A Markdown table; all columns after the first `text_columns` are aligned to the right."""
    rule = ["---"] * text_columns + ["---:"] * (len(header) - text_columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def machine() -> str:
    """The machine in a few words: figures of one machine say little about another."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{_cpu_model()}, {os.cpu_count()} cores, {system}, load before {load}"


def today() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    models = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    return models[0] if models else platform.machine()


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {re.escape(name)}:begin -->(.*?)<!-- {re.escape(name)}:end -->", re.DOTALL)
