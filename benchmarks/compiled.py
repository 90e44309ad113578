"""Birl with compiled environments beside rejax, SB3 and Birl on the host, alternating in one run.

    python benchmarks/compiled.py                                everything
    python benchmarks/compiled.py --rows ppo-64 --rounds 5
    python benchmarks/compiled.py --quick                        does it run? writes nothing

The rows are in compiled_rows.py, and measured as those of speed.py. `scaling` also draws a
picture; `bands` draws the learning curves of compiled and host runs with 10 seeds each.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from compiled_rows import ENVIRONMENTS, LANE_COUNTS, ROWS, quick, scaling_row, with_environments, with_lanes
from results import table, today
from speed import Rounds, Section, describe, make_parser, measure_rows, median, number, read_arguments, run_row
from speed_rows import Contender

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SECTION = Section("compiled", "## Compiled environments", (*ROWS, "scaling", "bands"))
FORMS = (
    "`Birl, compiled` and rejax step CartPole in JAX, `Birl, host` Gymnasium's vector CartPole, SB3 single ones. "
    "rejax does not evaluate, and is timed in its second call."
)


def figures(
    rounds: Rounds, counts: tuple[int, ...], contender: Callable[[int], Contender]
) -> list[tuple[int, float, float]]:
    """For each count: steps per second, peak MB."""
    names = [contender(count).name for count in counts]
    return [
        (count, median(rounds, name, "steps_per_second"), median(rounds, name, "peak_rss_mb"))
        for count, name in zip(counts, names, strict=True)
    ]


def scaling(rounds: int, where: str, scratch: Path, is_quick: bool) -> str:
    """Steps per second and memory by the number of environments and of lanes; draws them, too."""
    environments, lane_counts = ((1, 16), (1, 2)) if is_quick else (ENVIRONMENTS, LANE_COUNTS)
    row = scaling_row(environments, lane_counts)
    reports = run_row(quick(row) if is_quick else row, rounds, scratch)
    lines = {
        "environments": figures(reports, environments, with_environments),
        "lanes of 64 environments": figures(reports, lane_counts, with_lanes),
    }
    from compiled_pictures import draw_scaling  # late: a contender's memory begins at this process's

    picture = draw_scaling(lines, (ROOT / "runs" if is_quick else IMAGES) / "compiled-scaling.png")
    tables = [
        table([name, "steps per second", "peak MB"], [[f"{n:,}", number(rate), number(mb)] for n, rate, mb in line])
        for name, line in lines.items()
    ]
    about = f"{today()}; {where}; medians of {rounds} alternating rounds. Memory of lanes: all processes together"
    print(picture, file=sys.stderr)
    return f"### {row.title}\n\n" + "\n\n".join(tables) + f"\n\n{about}. `docs/images/compiled-scaling.png`"


def bands(where: str, scratch: Path, is_quick: bool) -> str:
    """Final returns of compiled and host runs, and how far the bands of their curves overlap."""
    from compiled_pictures import SEEDS, draw_bands, train_groups

    folder = scratch if is_quick else ROOT / "runs" / "compiled-bands"
    groups = train_groups(folder, is_quick)
    lines = draw_bands(groups, (ROOT / "runs" if is_quick else IMAGES) / "compiled-bands.png")
    header = ["task", "host, last tenth", "compiled, last tenth", "bands overlap in"]
    seeds = 2 if is_quick else SEEDS
    about = f"{today()}; {where}; {seeds} seeds each, means of training returns with 95 % bootstrap intervals"
    title = "### Learning curves of compiled and host runs with Birl's presets"
    return f"{title}\n\n{table(header, lines)}\n\n{about}. `docs/images/compiled-bands.png`"


def main() -> int:
    arguments = read_arguments(make_parser("compiled environments, timed side by side", SECTION))

    def measure(name: str, rounds: int, where: str, scratch: Path) -> str:
        if name == "scaling":
            return scaling(rounds, where, scratch, arguments.quick)
        if name == "bands":
            return bands(where, scratch, arguments.quick)
        row = quick(ROWS[name]) if arguments.quick else ROWS[name]
        return describe(row, run_row(row, rounds, scratch), where, FORMS)

    return measure_rows(arguments, SECTION, measure)


if __name__ == "__main__":
    sys.exit(main())
