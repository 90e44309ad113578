"""Diagnose a run of each preset: healthy settings, so `birl diagnose` must find nothing.

python benchmarks/diagnose_presets.py --seconds 60 --out /tmp/preset-runs [--only CartPole]
Each preset trains for at most so many seconds. Runs that are there are only diagnosed again.
"""

import argparse
import time
import traceback
from pathlib import Path

import birl
from birl.lab.diagnosis.diagnosing import diagnose
from birl.presets import all_presets
from birl.presets.entry import Preset
from birl.run.directory import holds_run


def train_preset(preset: Preset, run_dir: Path, seconds: float) -> None:
    """Train until the preset's end, or for so many seconds after the first update."""
    begun = None
    with birl.start(preset.config, run_dir=str(run_dir), quiet=True, eval_episodes=5) as run:
        for _ in run:
            begun = begun or time.monotonic()
            if time.monotonic() - begun > seconds:
                break


def main() -> int:
    """Print one line for each preset; 1 if something was found in one, or diagnosing one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    alarms = left_out = failed = 0
    for preset in all_presets():
        name = "-".join([preset.algorithm, preset.config.env.id.replace("/", "-"), *preset.switches]).replace(" ", "-")
        if options.only not in name:
            continue
        run_dir = options.out / name
        try:
            if not holds_run(run_dir):
                train_preset(preset, run_dir, options.seconds)
        except Exception as problem:  # an environment that is not installed, for example
            left_out += 1
            print(f"{name}: left out: {str(problem)[:100]}", flush=True)
            continue
        try:
            (found,) = diagnose(run_dir)
        except Exception:
            failed += 1
            print(f"{name}: diagnosing failed:\n{traceback.format_exc()}", flush=True)
            continue
        alarms += bool(found.findings)
        state = "; ".join(f"{one.rule}: {one.evidence.sentence}" for one in found.findings) or "silent"
        share = f"{100 * found.env_steps / max(1, found.total_steps):.0f} %"
        print(f"{name}: {found.env_steps:,} steps ({share}), {found.verdict.learned}: {state}", flush=True)
    print(f"{alarms} presets with findings, {left_out} left out, diagnosing {failed} failed")
    return 1 if alarms or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
