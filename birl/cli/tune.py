"""`birl tune ALGORITHM ENV`: search for settings."""

import dataclasses
import itertools
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from birl.cli.modules import allow_modules_here
from birl.cli.options import ResumeOptions
from birl.cli.parsing import errors_in_one_line, reading_rules, require_no_unknown
from birl.config import require
from birl.run.signals import starting

USAGE = """usage: birl tune ALGORITHM ENV --minutes 30 [options]

Search for the settings with the highest return. Bad trials stop early, good ones go on from their
checkpoints, and the winner is trained again on seeds that the search has not seen.

birl tune ppo CartPole-v1 --help   shows what is searched, and the options
birl tune --join runs/tune-ppo-CartPole-v1   works on a search of another machine, or a stopped one

All settings of birl train are options too, such as --total-steps and --run-dir."""


JOINING = ("join", "jobs", "trust")  # options that go with --join


@dataclass(frozen=True)
class TuneOptions:
    """The options of `birl tune` that are no settings."""

    minutes: float | None = None  # of wall clock for the search and the final runs
    trials: int | None = None  # end the search after this many trials
    seeds: int = 2  # seeds of each trial
    final_seeds: int = 5  # seeds that the winner is trained on again; the search has not seen them
    rungs: int = 3  # trials are compared at this many numbers of steps, each three times the one before
    halving: bool = True  # stop bad trials early; --no-halving: train all to the end
    sampler: Literal["tpe", "random"] = "tpe"  # who chooses settings: Optuna's TPE, or chance
    search: tyro.conf.UseAppendAction[tuple[str, ...]] = ()  # search NAME=LOW:HIGH, NAME=VALUE,VALUE or NAME
    fix: tyro.conf.UseAppendAction[tuple[str, ...]] = ()  # do not search NAME, or fix it: NAME=VALUE
    preset: bool = True  # begin with the preset, if there is one; --no-preset: with the defaults
    search_seed: int = 0  # of the search: the same one chooses the same random trials
    jobs: int | None = None  # workers at once, a process each; None: the CPU cores
    join: Path | None = None  # work on the search in this directory
    trust: tyro.conf.FlagCreatePairsOff[bool] = False  # let a search that was not made here import modules


def tune(words: list[str]) -> int:
    """birl tune ALGORITHM ENV [options]: search for settings."""
    task = list(itertools.takewhile(lambda word: not word.startswith("-"), words[:2]))
    wants_help = "-h" in words or "--help" in words
    if not words or (wants_help and len(task) < 2):
        print(USAGE)
        if wants_help:
            print("\n" + _options_text())
        return 0 if words else 2
    options, rest = _read([word for word in words[len(task) :] if word not in ("-h", "--help")])
    if options.join is not None:
        require(not task, "--join takes the search's algorithm and environment; leave them out")
        return _join(options, rest)
    require(len(task) == 2, "birl tune needs an algorithm and an environment: birl tune ppo CartPole-v1 --minutes 30")
    with starting():
        from birl.cli.train_options import training_config
        from birl.config import to_json
        from birl.lab.tuning.plan import Budget
        from birl.lab.tuning.tuning import plan_search, run_search
        from birl.run.group import lane_address
        from birl.run.modules import named_modules

        algorithm, env_id = task
        allow_modules_here(algorithm)
        config, notice = training_config(algorithm, env_id, rest, preset=options.preset)
    allow_modules_here(*named_modules(to_json(config)).values())
    given = options.minutes is not None or options.trials is not None
    plan = plan_search(
        config,
        Budget(options.minutes, options.trials) if given or not wants_help else Budget(trials=1),
        options.seeds,
        options.final_seeds,
        options.rungs if options.halving else 1,
        options.sampler,
        options.search,
        options.fix,
        options.search_seed,
    )
    if wants_help:
        print(f"{USAGE}\n\n{_options_text()}\n\n{_space_text(plan)}")
        return 0
    return _code(run_search(plan, config.run.run_dir, options.jobs, lane_address(config), [notice]))


def require_for_search(options: ResumeOptions) -> None:
    """Raise ConfigError for options of `birl resume` that only a run can take."""
    for name in ("total_steps", "workers", "env"):
        value = vars(options)[name]
        require(value is None, f"--{name.replace('_', '-')} {value} is for runs, and {options.run_dir} is a search")


def resume_search(options: ResumeOptions) -> int:
    """Go on with a search that was stopped."""
    require_for_search(options)
    with starting():
        from birl.lab.tuning.tuning import continue_search

    return _code(continue_search(options.run_dir, options.jobs, options.ray_address, options.trust))


def _code(result: dict[str, Any]) -> int:
    """The exit code of a search: 1 if nothing was found."""
    return 1 if result["winner"] is None else 0


def _read(words: list[str]) -> tuple[TuneOptions, list[str]]:
    """The options of the search, and the other words, which are settings."""
    with reading_rules(), errors_in_one_line():
        return tyro.cli(TuneOptions, args=words, prog="birl tune", return_unknown_args=True, add_help=False)


def _join(options: TuneOptions, rest: list[str]) -> int:
    assert options.join is not None
    with reading_rules(), errors_in_one_line():
        address, rest = tyro.cli(_Address, args=rest, prog="birl tune", return_unknown_args=True, add_help=False)
    require_no_unknown(rest, "--join", "birl tune", ["--jobs", "--ray-address", "--trust"])
    plain = vars(TuneOptions())
    others = [name for name, value in vars(options).items() if value != plain[name] and name not in JOINING]
    shown = ", ".join(f"--{name.replace('_', '-')}" for name in others)
    require(not others, f"--join takes the search as it is, without {shown}; leave {shown} out")
    with starting():
        from birl.lab.tuning.tuning import continue_search

    allow_modules_here(trust=options.trust)
    return _code(continue_search(options.join, options.jobs, address.ray_address, options.trust))


@dataclass(frozen=True)
class _Address:
    ray_address: str | None = None


def _options_text() -> str:
    from birl.cli.setting_texts import text_of

    switches = [name for name, value in vars(TuneOptions()).items() if value is True]
    names = [field.name for field in dataclasses.fields(TuneOptions)]
    shown = {name: f"--{'[no-]' if name in switches else ''}{name.replace('_', '-')}" for name in names}
    lines = [f"{shown[name]:<16}{text_of(TuneOptions, name)}" for name in names]
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.fill(line, width, initial_indent="  ", subsequent_indent=" " * 18) for line in lines)


def _space_text(plan: Any) -> str:
    lines = [f"  {name:<24}{dimension.text()}" for one in plan.candidates for name, dimension in one.space.items()]
    return "\n".join(["searched:", *lines])
