"""Copies the figures of RESULTS.md into both READMEs, between their markers, and checks the
presets' scores against them.

python benchmarks/readme.py
"""

import sys
from pathlib import Path

from results import RESULTS, read_section, table, write_section
from speed_rows import ROWS

from birl.presets import all_presets

ROOT = Path(__file__).resolve().parent.parent
READMES = ("README.md", "README.zh-CN.md")
RIVALS = (
    "times SB3",
    "times SB3, 1 thread",
    "times SB3, 2 threads",
    "times SBX",
    "times sb3-contrib",
    "times AsyncVectorEnv",
    "times SyncVectorEnv",
    "of SB3's time",
)
SPEED_COLUMNS = ("contender", "steps per second", "seconds", *RIVALS, "peak MB")
SCORE_COLUMNS = ("algorithm", "environment", "variant", "IQM", "95 % interval", "seeds", "env steps", "wall s a seed")


def read_table(text: str) -> list[dict[str, str]]:
    """The rows of the first Markdown table in a text, by column."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def chosen(rows: list[dict[str, str]], columns: tuple[str, ...]) -> str:
    """The table with only these columns, those that it has."""
    present = [column for column in columns if column in rows[0]]
    return table(present, [[row[column] for column in present] for row in rows])


def speed_figures() -> str:
    parts = []
    for name, row in ROWS.items():
        section = read_section(RESULTS, f"speed/{name}")
        if section:
            parts.append(f"{row.title}:\n\n{chosen(read_table(section), SPEED_COLUMNS)}")
    return "\n\n".join(parts)


def score_figures(rows: list[dict[str, str]]) -> str:
    return chosen([row | {"seeds": str(seeds_of(row))} for row in rows], SCORE_COLUMNS)


def seeds_of(row: dict[str, str]) -> int:
    return len(row["each seed"].split(","))


def wrong_scores(rows: list[dict[str, str]]) -> list[str]:
    """The presets whose score, interval or number of seeds is not the measured one; one that was
    never measured must state none.
    """
    measured = {
        (row["algorithm"], row["environment"], row["variant"]): (row["IQM"], row["95 % interval"], seeds_of(row))
        for row in rows
    }
    problems = []
    for preset in all_presets():
        key = (preset.algorithm, preset.config.env.id, " ".join(preset.switches))
        stated = None
        if preset.score is not None and preset.interval is not None:
            stated = (f"{preset.score:.1f}", f"{preset.interval[0]:.1f} to {preset.interval[1]:.1f}", preset.seeds)
        if measured.get(key) != stated:
            problems.append(f"{' '.join(key)}: the preset says {stated}, RESULTS.md {measured.get(key)}")
    return problems


def main() -> int:
    learning = read_table(read_section(RESULTS, "learning"))
    for name in READMES:
        write_section(ROOT / name, "speed", speed_figures())
        write_section(ROOT / name, "scores", score_figures(learning))
    problems = wrong_scores(learning)
    print("\n".join(problems) or "READMEs written; the presets' scores are the measured ones")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
