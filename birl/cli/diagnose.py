"""birl diagnose RUN: what is probably wrong with it, and what to try."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from birl.cli.modules import allow_modules_here
from birl.cli.options import RunDir
from birl.cli.parsing import parse
from birl.run.signals import starting


@dataclass(frozen=True)
class DiagnoseOptions:
    """Say what is probably wrong with a run, with the numbers that show it and what to try."""

    run_dir: RunDir  # a run's directory; a group's, or any other with runs below it, stands for those
    out: Path | None = None  # an image to write, with the curves that show it
    json: bool = False  # print the diagnosis as JSON
    prove: bool = False  # try what is suggested: short runs with and without it, compared over seeds
    minutes: float = 5.0  # that all runs of --prove may take together; what has not ended by then does not count
    steps: int | None = None  # environment steps of each run of --prove; None: as many as the run has made
    seeds: int = 5  # runs of --prove with the change, and as many without
    trust: bool = False  # let a run that was not made here import modules, start processes and reach other machines


def diagnose(words: list[str]) -> int:
    """birl diagnose RUN; exit code 0 whether something was found or not."""
    options = parse(DiagnoseOptions, words, "birl diagnose")
    with starting():
        from birl.lab.diagnosis.diagnoses import diagnosis_text
        from birl.lab.diagnosis.diagnosing import diagnose_groups
        from birl.run.history import by_settings, read_histories

    allow_modules_here(None, trust=options.trust)
    groups = by_settings(read_histories(options.run_dir))
    found = diagnose_groups(groups, options.run_dir, options.trust)
    drawn: list[Path] = []
    if options.out is not None:  # before anything is printed: `head` may have read enough
        from birl.lab.diagnosis.picture import draw_diagnoses

        drawn = draw_diagnoses(found, groups, options.out)
    if not options.json:
        print("\n\n".join([*map(diagnosis_text, found), *map(str, drawn)]), flush=True)
    rows = [one.to_json() for one in found]
    if options.prove:
        from birl.lab.diagnosis.proof import Bounds, proof_text, prove
        from birl.run.files import strict_json

        for one, row in zip(found, rows, strict=True):
            proof = prove(one, Bounds(options.minutes, options.steps, options.seeds), options.trust)
            row["proof"] = None if proof is None else strict_json(dataclasses.asdict(proof))
            if not options.json:
                print(f"\n{proof_text(proof)}", flush=True)
    if options.json:
        print(json.dumps(rows, indent=2, allow_nan=False))
    return 0
