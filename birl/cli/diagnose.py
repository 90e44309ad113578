"""birl diagnose RUN: what is probably wrong with it, and what to try."""

import json
from pathlib import Path
from typing import Annotated

import tyro

from birl.cli.parsing import parse
from birl.run.signals import starting


def diagnose(words: list[str]) -> int:
    """birl diagnose RUN; exit code 0 whether something was found or not."""

    def arguments(
        run_dir: Annotated[Path, tyro.conf.Positional],
        /,
        out: Path | None = None,
        json: bool = False,
    ) -> tuple[Path, Path | None, bool]:
        """Say what is probably wrong with a run, with the numbers that show it and what to try.

        Args:
            run_dir: a run's directory; a group's, or any other with runs below it, stands for those
            out: an image to write, with the curves that show it
            json: print the diagnosis as JSON
        """
        return run_dir, out, json

    run_dir, out, as_json = parse(arguments, words, "birl diagnose")
    with starting():
        from birl.experiments.diagnose import diagnose as find_faults
        from birl.experiments.diagnosis.text import diagnosis_text

    found = find_faults(run_dir)
    if as_json:
        print(json.dumps([one.to_json() for one in found], indent=2, allow_nan=False))
    else:
        print("\n\n".join(map(diagnosis_text, found)))
    if out is not None:
        from birl.experiments.diagnosis.plot import draw_diagnosis
        from birl.run.history import by_settings, read_histories

        groups = by_settings(read_histories(run_dir))
        for number, (one, group) in enumerate(zip(found, groups, strict=True)):
            path = out if number == 0 else out.with_stem(f"{out.stem}-{number + 1}")
            drawn = draw_diagnosis(one, group.runs, path)
            if not as_json:
                print(f"\n{drawn}")
    return 0
