"""The commands of the laboratory: each reads its words, calls the API, and prints the result."""

import dataclasses
import itertools
import json
import shutil
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from birl.cli.options import (
    Backend,
    EnvId,
    Flag,
    Repeated,
    ResumeOptions,
    RunDir,
    RunDirs,
    allow_modules_here,
    env_of_options,
    parse,
    read_known,
    require_no_unknown,
    text_of,
)
from birl.config import Plain, require
from birl.errors import printable
from birl.run.console import TextConsole
from birl.run.signals import say, starting

TUNE_USAGE = """usage: birl tune ALGORITHM ENV --minutes 30 [options]

Search for the settings with the highest return. Bad trials stop early, good ones go on from their
checkpoints, and the winner is trained again on seeds that the search has not seen.

birl tune ppo CartPole-v1 --help   shows what is searched, and the options
birl tune --join runs/tune-ppo-CartPole-v1   works on a search of another machine, or a stopped one

All settings of birl train are options too, such as --total-steps and --run-dir."""
JOINING = ("join", "jobs", "trust")  # options that go with --join
Repository = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
WIDTH = 110  # of the tables of a comparison where the output is no terminal


@dataclass(frozen=True)
class CompareOptions:
    """Compare groups of seeds: scores, learning curves, and which group is better."""

    run_dirs: RunDirs  # runs, groups, or directories with runs below
    target: float | None = None  # the training return whose first time is asked for; None: chosen from the curves
    at: int | None = None  # compare at this many environment steps; None: at the end of the runs
    all: bool = False  # compare each group with every other, not only with the first
    env: str | None = None  # only groups of this environment; None: all, which must be of one
    json: Path | None = None  # write everything to this file


@dataclass(frozen=True)
class ReportOptions:
    """Write one HTML page about runs: curves, scores, settings, times, how to reproduce them."""

    run_dirs: RunDirs  # run directories; one that holds no run stands for all runs below it
    out: Path = Path("report.html")  # the page to write; it replaces the one that is there
    title: str | None = None  # of the page; None: the algorithms and environments
    video: Flag = False  # record an episode of the best policy of each group, and put it into the page
    trust: Flag = False  # with --video, let runs that were not made here import modules


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
    search: Repeated = ()  # search NAME=LOW:HIGH, NAME=VALUE,VALUE or NAME
    fix: Repeated = ()  # do not search NAME, or fix it: NAME=VALUE
    preset: bool = True  # begin with the preset, if there is one; --no-preset: with the defaults
    search_seed: int = 0  # of the search: the same one chooses the same random trials
    jobs: int | None = None  # workers at once, a process each; None: the CPU cores
    join: Path | None = None  # work on the search in this directory
    trust: Flag = False  # let a search that was not made here import modules


@dataclass(frozen=True)
class SolveOptions:
    """Find an agent for an environment: try the algorithms that fit, for a given time.

    Ends with a policy, its score on fresh episodes beside that of random actions, and a video.
    """

    env_id: EnvId  # a Gymnasium id, my_module:MyEnv-v0 or my_module:my_function
    minutes: float | None = None  # time for everything; 10 if --trials is not given
    trials: int | None = None  # end the search after this many trials
    total_steps: int | None = None  # environment steps of each trial; None: as many as the time allows
    algorithms: tuple[str, ...] = ()  # try only these; none: those that fit the action space
    episodes: int = 100  # fresh episodes for the final score
    seed: int = 1  # of everything
    jobs: int | None = None  # trials at once, a process each; None: the CPU cores
    run_dir: Path | None = None  # where to write; None: runs/solve-ENV. A stopped search there goes on
    video: bool = True  # record an episode
    backend: Backend = "gymnasium"  # what steps the environment; compiled: JAX
    max_episode_steps: int | None = None  # truncate episodes after this many steps
    hide_velocities: bool = False  # remove velocities from the observation
    ignore_observations: tuple[str, ...] = ()  # parts of a Dict observation to leave out
    wrapper: Repeated = ()  # wrap the environment, my_module:MyWrapper; may be repeated
    kwargs: dict[str, Plain] = field(default_factory=dict)  # keyword arguments for the environment: names and values


@dataclass(frozen=True)
class ExportOptions:
    """Write a trained policy as a file that acts without Birl: ONNX, or a folder of NumPy code."""

    run_dir: RunDir  # a run's directory, one of its checkpoints, or a policy file
    format: Literal["onnx", "numpy"] = "onnx"  # onnx: one file for ONNX runtimes; numpy: a folder with Python code
    out: Path | None = None  # the file or folder; None: policy.onnx or policy_numpy. Replaces exported ones only
    sample: Flag = False  # sample actions, from noise that is an input; else they are the most likely ones
    masks: Flag = False  # which actions are allowed is an input; always so if the run had action masks
    batch_size: int = 1  # observations in a call
    trust: Flag = False  # let a run that was not made here import the module of its encoder


@dataclass(frozen=True)
class CardOptions:
    """Write a model card about a run or a group of seeds: README.md, and the policy beside it."""

    run_dir: RunDir  # the run's directory, or that of a group of seeds
    out: Path | None = None  # the page to write; None: README.md in that directory
    license: str | None = None  # an id of the Hugging Face Hub, such as mit; None: none is named


@dataclass(frozen=True)
class PushOptions:
    """Upload a run to a repository of the Hugging Face Hub: card, policy, settings and metrics."""

    run_dir: RunDir  # the run's directory, or that of a group of seeds
    repository: Repository  # the repository, which is made if it does not exist
    private: Flag = False  # make a repository that only its owner sees
    checkpoint: Literal["best", "last"] | None = None  # upload this checkpoint too, to be resumed and forked by others
    video: Path | None = None  # upload this video too, an .mp4 file
    license: str | None = None  # an id of the Hub, such as mit; None: that of the card
    dry_run: Flag = False  # only list what would be uploaded
    token_file: Path | None = None  # a file with an access token; None: the variable HF_TOKEN
    endpoint: str | None = None  # the address of the Hub; None: HF_ENDPOINT, or https://huggingface.co


@dataclass(frozen=True)
class PullOptions:
    """Download a run from a repository of the Hugging Face Hub. It is a stranger's run."""

    repository: Repository  # the repository
    out: Path | None = None  # a new directory for the run; None: runs/OWNER--NAME
    revision: str | None = None  # a branch, tag or commit; None: main
    token_file: Path | None = None  # a file with an access token; None: the variable HF_TOKEN
    endpoint: str | None = None  # the address of the Hub; None: HF_ENDPOINT, or https://huggingface.co


def compare(words: list[str]) -> int:
    options = parse(CompareOptions, words, "birl compare")
    with starting():
        from birl.cli.tables import comparison_lines
        from birl.lab.comparison import compare as run_compare
        from birl.run.files import write_json

    comparison = run_compare(
        *options.run_dirs, target=options.target, at=options.at, all_pairs=options.all, env=options.env
    )
    if options.json is not None:  # before anything is printed: `head` may have read enough
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.json, comparison.to_json())
    console = TextConsole(highlight=False, markup=False, emoji=False)
    console = console if console.is_terminal else TextConsole(highlight=False, markup=False, emoji=False, width=WIDTH)
    for part in comparison_lines(comparison):
        console.print(part)
    if options.json is not None:
        console.print(f"\n{printable(str(options.json))}")
    return 0


def report(words: list[str]) -> int:
    options = parse(ReportOptions, words, "birl report")
    with starting():
        from birl.lab.report.sections import report as make_report

    allow_modules_here(trust=options.trust)
    print(make_report(options.run_dirs, options.out, options.title, options.video, options.trust))
    return 0


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


def tune(words: list[str]) -> int:
    """birl tune ALGORITHM ENV [options]: search for settings."""
    task = list(itertools.takewhile(lambda word: not word.startswith("-"), words[:2]))
    wants_help = "-h" in words or "--help" in words
    if not words or (wants_help and len(task) < 2):
        print(TUNE_USAGE)
        if wants_help:
            print("\n" + _tune_options_text())
        return 0 if words else 2
    options, rest = read_known(
        TuneOptions, [word for word in words[len(task) :] if word not in ("-h", "--help")], "birl tune"
    )
    if options.join is not None:
        require(not task, "--join takes the search's algorithm and environment; leave them out")
        return _join_search(options, rest)
    require(len(task) == 2, "birl tune needs an algorithm and an environment: birl tune ppo CartPole-v1 --minutes 30")
    with starting():
        from birl.cli.train_options import training_config
        from birl.config import to_json
        from birl.lab.tuning.plan import Budget
        from birl.lab.tuning.tuning import plan_search, run_search
        from birl.run.groups.group import lane_address
        from birl.run.trust import named_modules

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
        print(f"{TUNE_USAGE}\n\n{_tune_options_text()}\n\n{_space_text(plan)}")
        return 0
    return _code(run_search(plan, config.run.run_dir, options.jobs, lane_address(config), [notice]))


def resume_search(options: ResumeOptions) -> int:
    """Go on with a search that was stopped."""
    require_for_search(options)
    with starting():
        from birl.lab.tuning.tuning import continue_search

    return _code(continue_search(options.run_dir, options.jobs, options.ray_address, options.trust))


def solve(words: list[str]) -> int:
    options = parse(SolveOptions, words, "birl solve")
    env = env_of_options(options.env_id, vars(options))
    with starting():
        from birl.lab.solving import solve as run_solve

    allow_modules_here(env.id, *(wrapper.path for wrapper in env.wrappers))
    own = ("minutes", "trials", "total_steps", "algorithms", "episodes", "seed", "jobs", "video")
    run_dir = None if options.run_dir is None else str(options.run_dir)
    found = run_solve(env, run_dir=run_dir, **{name: getattr(options, name) for name in own})
    return 0 if found["better"] else 1


def resume_solving(options: ResumeOptions) -> int:
    """Go on with a search for an agent that was stopped."""
    require_for_search(options)
    wrong = f"--ray-address {options.ray_address}: a search for an agent trains on this machine"
    require(options.ray_address is None, f"{wrong}; leave it out")
    with starting():
        from birl.lab.solving import continue_solving

    return 0 if continue_solving(options.run_dir, options.jobs, options.trust)["better"] else 1


def export(words: list[str]) -> int:
    options = parse(ExportOptions, words, "birl export")
    with starting():
        from birl.lab.exporting.exporting import export as run_export
        from birl.lab.exporting.graph import description_text

    allow_modules_here(trust=options.trust)
    arguments = vars(options).copy()
    path, description = run_export(arguments.pop("run_dir"), **arguments)
    print(f"{path}: {description['algorithm']}, {description['actions']} actions")
    print(description_text(description))
    return 0


def card(words: list[str]) -> int:
    options = parse(CardOptions, words, "birl card")
    with starting():
        from birl.lab.sharing.card import card as write_card

    print(write_card(options.run_dir, options.out, options.license))
    return 0


def push(words: list[str]) -> int:
    options = parse(PushOptions, words, "birl push")
    with starting():
        from birl.lab.sharing.push import push as upload

    arguments = vars(options).copy()
    url = upload(arguments.pop("run_dir"), arguments.pop("repository"), **arguments, report=say)
    print("nothing was uploaded (--dry-run)" if options.dry_run else url)
    return 0


def pull(words: list[str]) -> int:
    options = parse(PullOptions, words, "birl pull")
    with starting():
        from birl.lab.sharing.pull import pull as download

    print(download(**vars(options), report=say))
    return 0


def require_for_search(options: ResumeOptions) -> None:
    """Raise ConfigError for options of `birl resume` that only a run can take."""
    for name in ("total_steps", "workers", "env"):
        value = vars(options)[name]
        require(value is None, f"--{name.replace('_', '-')} {value} is for runs, and {options.run_dir} is a search")


def _code(result: dict[str, Any]) -> int:
    """The exit code of a search: 1 if nothing was found."""
    return 1 if result["winner"] is None else 0


def _join_search(options: TuneOptions, rest: list[str]) -> int:
    assert options.join is not None
    address, rest = read_known(_Address, rest, "birl tune")
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


def _tune_options_text() -> str:
    switches = [name for name, value in vars(TuneOptions()).items() if value is True]
    names = [field.name for field in dataclasses.fields(TuneOptions)]
    shown = {name: f"--{'[no-]' if name in switches else ''}{name.replace('_', '-')}" for name in names}
    lines = [f"{shown[name]:<16}{text_of(TuneOptions, name)}" for name in names]
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.fill(line, width, initial_indent="  ", subsequent_indent=" " * 18) for line in lines)


def _space_text(plan: Any) -> str:
    lines = [f"  {name:<24}{dimension.text()}" for one in plan.candidates for name, dimension in one.space.items()]
    return "\n".join(["searched:", *lines])
