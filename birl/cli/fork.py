"""birl fork: a new run that begins with a checkpoint of another."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from birl.cli.modules import allow_modules_here
from birl.cli.numbers import whole_number
from birl.config import ConfigError, require, to_json
from birl.run.directory import is_group
from birl.run.modules import named_modules
from birl.run.signals import starting

USAGE = """usage: birl fork RUN [--at STEP] [options]

Train a new run that begins with a checkpoint of another run: the same networks, optimiser,
environments, replay and random keys, with other settings. The other run stays as it is.

birl fork runs/mine --learning-rate 1e-4              begins with the newest checkpoint
birl fork runs/mine --at 50000 --total-steps 200000   begins with that of 50,000 steps
birl fork runs/mine --seed 2                          continues with other random numbers
birl fork runs/mine --seeds 5                         a group of five continuations
birl fork runs/mine --help                            shows all options, with the values of the run"""


@dataclass(frozen=True)
class ForkOptions:
    """The options of `birl fork` that are no settings."""

    at: str | None = None  # begin with the checkpoint of these environment steps, or with the best; None: the newest
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False  # move a run that is in run_dir aside, to run_dir.1
    trust: tyro.conf.FlagCreatePairsOff[bool] = False  # let a run that was not made here import modules
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own
    seeds: int | None = None  # train a group of forks with this many seeds; the first one continues the run exactly
    sweep: tyro.conf.UseAppendAction[tuple[str, ...]] = ()  # train a group, with each of these values; may be repeated
    jobs: int | None = None  # runs of a group that train at once, a process each; None: the CPU cores


def fork(words: list[str]) -> int:
    """birl fork RUN [options]: train a new run that begins with a checkpoint of RUN."""
    wants_help = "-h" in words or "--help" in words
    if not words or words[0].startswith("-"):
        require(wants_help or not words, f"birl fork needs a run before its options: birl fork RUN {' '.join(words)}")
        print(USAGE)
        return 0 if wants_help else 2
    with starting():
        from birl.cli.train_options import with_options
        from birl.lab.branch import start_fork
        from birl.lab.forking import roots_of
        from birl.run.driver import run_to_end

        run, *rest = words
        prog = f"birl fork {run}"
        options, rest = _own_options([word for word in rest if word not in ("-h", "--help")], prog)
        allow_modules_here(options.env, trust=options.trust)
        at = _at(options.at)
        several = is_group(Path(run))
        roots = roots_of(Path(run), at, options.trust, options.env)
        config = with_options(roots[0].config, rest, prog)
        if wants_help:
            print(_help(prog, config))
            return 0
        _allow_new_modules(config, roots[0].config)
    if several or options.seeds is not None or options.sweep:
        return _train_group(Path(run), roots, options, config, rest, prog)
    wrong = f"--jobs {options.jobs} is for a group of forks; add --seeds or --sweep, or leave it out"
    require(options.jobs is None, wrong)
    run_to_end(start_fork(roots[0].branch(), config, overwrite=options.overwrite))
    return 0


def _train_group(
    run: Path, roots: Sequence[Any], options: ForkOptions, config: Any, words: list[str], prog: str
) -> int:
    """Train a group of forks; the exit code."""
    from birl.cli.train_options import read_sweep, with_options
    from birl.lab.forking import train_forks

    sweep, as_options = read_sweep(config, options.sweep, words)

    def change(parent_config: Any, point: dict[str, Any]) -> Any:
        return with_options(parent_config, [*words, *as_options(point)], prog)

    summary = train_forks(run, roots, change, sweep, options.seeds, options.jobs, options.overwrite)
    return 1 if summary["failed"] else 0


def _allow_new_modules(config: Any, before: Any) -> None:
    """Let modules be found that the user has just named."""
    new = named_modules(to_json(config)).items() - named_modules(to_json(before)).items()
    allow_modules_here(*(name for _, name in new))


def _own_options(words: list[str], prog: str) -> tuple[ForkOptions, list[str]]:
    """The options that are no settings, and the other words."""
    from birl.cli.parsing import errors_in_one_line, reading_rules

    with reading_rules(), errors_in_one_line():
        return tyro.cli(ForkOptions, args=words, prog=prog, return_unknown_args=True, add_help=False)


def _at(text: str | None) -> Any:
    if text is None or text == "best":
        return text
    try:
        return whole_number(text)
    except ValueError as problem:
        raise ConfigError(f"--at {text!r} is neither a number of steps nor best") from problem


def _help(prog: str, config: Any) -> str:
    from birl.cli.settings_help import help_text
    from birl.cli.train_options import METAVARS, start_texts

    texts = start_texts(ForkOptions, METAVARS | {"at": "STEP", "env": "ID"})
    about = "Train a new run that begins with a checkpoint of this one. In brackets: the settings of the run."
    return help_text(prog, about, config, texts, shutil.get_terminal_size().columns)
