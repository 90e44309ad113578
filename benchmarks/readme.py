"""Write the figures of RESULTS.md into the READMEs, some pages in docs/, and their twins.

    python benchmarks/readme.py

The figures go between markers; the text around them is not changed. The READMEs show a few rows,
the pages in docs/ show all of them. The measured scores go to the presets, too.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from compiled_rows import ROWS as COMPILED_ROWS
from readme_zh import COMPILED_TITLES, TITLES, WORDS
from results import RESULTS, read_section, table, write_lines, write_section
from speed_rows import ROWS

from birl.cli.options import short_number
from birl.presets import all_presets
from birl.presets.entry import SCORES
from birl.presets.published import SOURCES, Published, best_published

ROOT = Path(__file__).resolve().parent.parent
CHINESE = ".zh-CN"
SB3 = ("times SB3", "times SB3, 1 thread", "times SB3, 2 threads", "times sb3-contrib")
RIVALS = (*SB3, "times SBX", "times AsyncVectorEnv", "times SyncVectorEnv", "of SB3's time")
SPEED_COLUMNS = ("contender", "steps per second", "seconds", *RIVALS, "peak MB")
DETAILS = ("first update, s", "process, s", "each round, s", "each seed, s", "steps")  # only RESULTS.md has them
SCORE_COLUMNS = ("algorithm", "environment", "variant", "IQM", "95 % interval", "seeds", "env steps", "wall s a seed")
PUBLISHED_COLUMNS = ("published", "published where")  # only in docs/scores.md
TEXT_COLUMNS = ("contender", "algorithm", "environment", "variant", "source", "scores are")
ENGLISH_WORDS = {"wall s a seed": "seconds per seed"}  # columns that the pages name differently than RESULTS.md
COUNTS = "{presets} tasks. {scores} of them have a measured score, {intervals} with"
LOWER = "Of the {count} rows with a published score, ours is lower in {lower}: {rows}."


class Shown(NamedTuple):
    """A row of the READMEs' speed table.

    The last two are ratios that were measured separately, with the same settings on a machine
    without other load. RESULTS.md does not have them; its rows say how loaded the machine was.
    """

    row: str
    contender: str
    work: str
    quiet_sb3: str = ""
    quiet_sbx: str = ""


SHOWN_SPEED = (
    Shown("cartpole", "Birl", "PPO, CartPole-v1", "5.3", "3.4"),
    Shown("lunarlander", "Birl", "PPO, LunarLander-v3", "5.6", "5.0"),
    Shown("lunarlander", "Birl, EnvPool", "PPO, LunarLander-v3, EnvPool", "9.9"),
    Shown("recurrent", "Birl", "PPO with an LSTM, LunarLander-v3"),
    Shown("trpo", "Birl", "TRPO, LunarLander-v3"),
    Shown("a2c", "Birl", "A2C, CartPole-v1", "3.7"),
    Shown("dqn-lunarlander", "Birl", "DQN, LunarLander-v3"),
    Shown("sac", "Birl", "SAC, Pendulum-v1", "2.3", "1.0"),
    Shown("atari-ppo", "Birl", "PPO, Pong", "1.4–1.5"),
)
SHOWN_SCORES = (  # algorithm, environment, variant
    ("ppo", "CartPole-v1", ""),
    ("ppo", "CartPole-v1", "--hide-velocities --core lstm"),
    ("ppo", "LunarLander-v3", ""),
    ("ppo", "ALE/Pong-v5", ""),
    ("trpo", "Hopper-v5", ""),
    ("a2c", "CartPole-v1", ""),
    ("a3c", "CartPole-v1", ""),
    ("dqn", "LunarLander-v3", ""),
    ("acer", "LunarLander-v3", ""),
    ("sac", "Pendulum-v1", ""),
    ("td3", "HalfCheetah-v5", ""),
)

Rows = list[dict[str, str]]  # of a table, by column


def read_table(text: str) -> Rows:
    """The rows of the first Markdown table in a text, by column."""
    lines = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def sections(language: str) -> dict[str, dict[str, str]]:
    """For each page in this language, the text of each of its sections; "" is English."""
    scores = learning_rows()
    return {
        f"README{language}.md": {"speed": short_speed(language), "scores": short_scores(scores, language)},
        f"docs/speed{language}.md": {"speed": all_speed(language)},
        f"docs/scores{language}.md": {
            "scores": score_table(with_published(scores), language, SCORE_COLUMNS + PUBLISHED_COLUMNS),
            "published": published_sources(scores, language),
        },
        f"docs/compiled-or-host{language}.md": {"compiled": compiled_speed(language)},
    }


def short_speed(language: str) -> str:
    """The speed table of a README: each ratio with its range, and on a quiet machine."""
    header = ["work", "steps per second", "times SB3", "SB3, quiet machine", "times SBX", "SBX, quiet machine"]
    rows = []
    for shown in SHOWN_SPEED:
        [found] = [row for row in speed_rows(shown.row) if row["contender"] == shown.contender]
        ratios = [found[column] for column in SB3 if column in found]
        against_sb3 = min(ratios, key=lambda ratio: float(ratio.split()[0]))  # SB3's faster number of threads
        against_sbx = found.get("times SBX", "")
        measured = [_rounded(against_sb3), shown.quiet_sb3, _rounded(against_sbx), shown.quiet_sbx]
        rows.append([_word(shown.work, language), found["steps per second"], *measured])
    return table([_word(column, language) for column in header], rows)


def all_speed(language: str) -> str:
    """Every row of the speed benchmark, under a heading of its own."""
    parts = []
    for name, row in ROWS.items():
        section = read_section(RESULTS, f"speed/{name}")
        if section:
            title = TITLES[name] if language else row.title
            figures = chosen(read_table(section), SPEED_COLUMNS, language)
            parts.append(f"### {title}\n\n{figures}\n\n{when_measured(section, language)}")
    return "\n\n".join(parts)


def compiled_speed(language: str) -> str:
    """Every row of the benchmark of compiled environments, under a heading of its own."""
    parts = []
    for name, row in COMPILED_ROWS.items():
        section = read_section(RESULTS, f"compiled/{name}")
        if section:
            rows = read_table(section)
            columns = tuple(column for column in rows[0] if column not in DETAILS)
            title = COMPILED_TITLES[name] if language else row.title
            parts.append(f"### {title}\n\n{chosen(rows, columns, language)}\n\n{when_measured(section, language)}")
    return "\n\n".join(parts)


def when_measured(section: str, language: str) -> str:
    """The day, the number of rounds and Birl's version of a section of RESULTS.md."""
    [(day, rounds)] = re.findall(r"^(\d{4}-\d\d-\d\d) .*medians of (\d+) alternating rounds", section, re.MULTILINE)
    [version] = re.findall(r"birl ([\d.]+\d)", section)
    return _word("{day}, {rounds} rounds, Birl {version}.", language).format(day=day, rounds=rounds, version=version)


def speed_rows(name: str) -> Rows:
    """The measured rows of one piece of work of the speed benchmark."""
    return read_table(read_section(RESULTS, f"speed/{name}"))


def learning_rows() -> Rows:
    """The measured scores of all presets."""
    return read_table(read_section(RESULTS, "learning"))


def short_scores(rows: Rows, language: str) -> str:
    """The score table of a README."""
    measured = {_key(row): row for row in rows}
    return score_table([measured[key] for key in SHOWN_SCORES], language)


def score_table(rows: Rows, language: str, columns: tuple[str, ...] = SCORE_COLUMNS) -> str:
    """The scores in these rows. One seed has no interval."""
    shown = []
    for row in rows:
        interval = interval_of(row).replace(" to ", _word(" to ", language))
        shown.append(row | {"seeds": str(seeds_of(row)), "95 % interval": interval})
    return chosen(shown, columns, language)


def published_for(row: dict[str, str]) -> Published | None:
    """The highest published score of a row's task; only options that make it another task count."""
    words = row["variant"].split()
    core = words[words.index("--core") + 1] if "--core" in words else "feedforward"
    return best_published(row["algorithm"], row["environment"], "--hide-velocities" in words, core)


def with_published(rows: Rows) -> Rows:
    """The rows with the highest published score of each, and where it was measured."""

    def cells(found: Published | None) -> tuple[str, str]:
        if found is None:
            return "", ""
        steps = [] if found.env_steps is None else [short_number(found.env_steps)]
        return f"{found.score:g}", ", ".join(filter(None, [found.source, found.env_id, *steps, found.note]))

    return [row | dict(zip(PUBLISHED_COLUMNS, cells(published_for(row)), strict=True)) for row in rows]


def published_sources(rows: Rows, language: str) -> str:
    """Which rows are below a published score, and how each source measured its scores."""
    compared = [(row, found) for row in rows if (found := published_for(row)) is not None]
    names = [
        "`" + " ".join(filter(None, _key(row))) + "`" for row, found in compared if float(row["IQM"]) < found.score
    ]
    text = _word(LOWER, language).format(count=len(compared), lower=len(names), rows=", ".join(names))
    used = {found.source for _, found in compared}
    lines = [
        {"source": f"[{name}]({source.url})", "scores are": source.measured}
        for name, source in SOURCES.items()
        if name in used
    ]
    return f"{text}\n\n{chosen(lines, ('source', 'scores are'), language)}"


def chosen(rows: Rows, columns: tuple[str, ...], language: str) -> str:
    """A table with these columns, as far as the rows have them."""
    present = [column for column in columns if column in rows[0]]
    cells = [[_word(row[column], language) for column in present] for row in rows]
    text_columns = sum(column in TEXT_COLUMNS for column in present)
    return table([_word(column, language) for column in present], cells, text_columns)


def seeds_of(row: dict[str, str]) -> int:
    """How many seeds a score was measured with."""
    return len(row["each seed"].split(","))


def interval_of(row: dict[str, str]) -> str:
    """The interval of a measured score; empty if there was only one seed."""
    return row["95 % interval"] if seeds_of(row) > 1 else ""


def preset_scores(rows: Rows) -> dict[str, dict[str, Any]]:
    """The measured score of each preset that has one, by algorithm, environment and switches."""
    tasks = {" ".join([preset.algorithm, preset.config.env.id, *preset.switches]) for preset in all_presets()}
    measured = {" ".join(filter(None, _key(row))): row for row in rows}
    return {task: _score_of(measured[task]) for task in sorted(tasks & measured.keys())}


def counts(language: str) -> str:
    """How many presets there are, how many state a score, and how many an interval."""
    scores = preset_scores(learning_rows()).values()
    intervals = sum(score["interval"] is not None for score in scores)
    return _word(COUNTS, language).format(presets=len(all_presets()), scores=len(scores), intervals=intervals)


def write_counts(page: Path, language: str) -> None:
    """Write the counts where the page has them; the numbers there are those of an earlier day."""
    text = page.read_text(encoding="utf-8")
    before = re.sub(r"\{\w+\}", r"\\d+", _word(COUNTS, language))
    text, found = re.subn(before, lambda _: counts(language), text)
    if found != 1:
        raise SystemExit(f"{page.name} does not say: {counts(language)}")
    page.write_text(text, encoding="utf-8")


def main() -> None:
    write_lines(SCORES, preset_scores(learning_rows()))
    for language in ("", CHINESE):
        write_counts(ROOT / f"README{language}.md", language)
        for page, texts in sections(language).items():
            for name, text in texts.items():
                write_section(ROOT / page, name, text)
    print("the pages and the presets state the measured scores")


def _score_of(row: dict[str, str]) -> dict[str, Any]:
    interval = interval_of(row)
    numbers = [float(number) for number in interval.split(" to ")] if interval else None
    return {"score": float(row["IQM"]), "interval": numbers, "seeds": seeds_of(row)}


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["algorithm"], row["environment"], row["variant"]


def _rounded(ratio: str) -> str:
    """A ratio and its range with one decimal each."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", ratio)


def _word(text: str, language: str) -> str:
    """A header or a name in this language; a text that is not in the dictionary stays as it is."""
    return (WORDS if language else ENGLISH_WORDS).get(text, text)


if __name__ == "__main__":
    main()
