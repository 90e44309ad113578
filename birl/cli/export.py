"""birl export: a policy as a file that acts without Birl."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from birl.cli.modules import allow_modules_here
from birl.cli.parsing import parse
from birl.run.signals import starting


def export(words: list[str]) -> int:
    def arguments(
        run_dir: Annotated[Path, tyro.conf.Positional],
        /,
        format: Literal["onnx", "numpy"] = "onnx",
        out: Path | None = None,
        sample: tyro.conf.FlagCreatePairsOff[bool] = False,
        masks: tyro.conf.FlagCreatePairsOff[bool] = False,
        batch_size: int = 1,
        trust: tyro.conf.FlagCreatePairsOff[bool] = False,
    ) -> tuple[Path, Literal["onnx", "numpy"], Path | None, bool, bool, int, bool]:
        """Write a trained policy as a file that acts without Birl: ONNX, or a folder of NumPy code.

        Args:
            run_dir: a run's directory, one of its checkpoints, or a policy file
            format: onnx: one file for ONNX runtimes; numpy: a folder with Python code
            out: the file or folder; None: policy.onnx or policy_numpy. Replaces exported ones only
            sample: sample actions, from noise that is an input; else they are the most likely ones
            masks: which actions are allowed is an input; always so if the run had action masks
            batch_size: observations in a call
            trust: let a run that was not made here import the module of its encoder
        """
        return run_dir, format, out, sample, masks, batch_size, trust

    run_dir, format, out, sample, masks, batch_size, trust = parse(arguments, words, "birl export")
    with starting():
        from birl.lab.exporting.exporting import export as run_export
        from birl.lab.exporting.graph import description_text

    allow_modules_here(trust=trust)
    path, description = run_export(run_dir, out, format, sample, masks, batch_size, trust)
    print(f"{path}: {description['algorithm']}, {description['actions']} actions")
    print(description_text(description))
    return 0
