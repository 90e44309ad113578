"""The commands: each reads its words with tyro, calls the API, and prints the result."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.markup import escape

from birl import ALGORITHMS
from birl.cli import lab_commands
from birl.cli.options import (
    Backend,
    EnvId,
    Flag,
    PolicyOptions,
    Repeated,
    ResumeOptions,
    RunDirs,
    allow_modules_here,
    env_of_options,
    parse,
    policy_options,
    read_known,
    whole_number,
)
from birl.config import ConfigError, Plain, require, to_json
from birl.run.console import TextConsole, number, score_text
from birl.run.directory import is_group
from birl.run.signals import starting
from birl.run.trust import named_modules

Words = list[str]
ListedAlgorithm = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ALGORITHM]")]
ListedEnv = Annotated[str | None, tyro.conf.arg(metavar="TEXT")]
TRAIN_USAGE = f"""usage: birl train ALGORITHM ENV [options]

algorithms: {textwrap.fill(", ".join(ALGORITHMS), 68, subsequent_indent=" " * 12, break_on_hyphens=False)}

birl train ppo --help              shows the options of an algorithm
birl train ppo CartPole-v1 --help  shows them with the values of its preset
birl train --like runs/mine        takes the settings of another run
birl list                          shows algorithms, presets and their scores"""
FORK_USAGE = """usage: birl fork RUN [--at STEP] [options]

Train a new run that begins with a checkpoint of another run: the same networks, optimiser,
environments, replay and random keys, with other settings. The other run stays as it is.

birl fork runs/mine --learning-rate 1e-4              begins with the newest checkpoint
birl fork runs/mine --at 50000 --total-steps 200000   begins with that of 50,000 steps
birl fork runs/mine --seed 2                          continues with other random numbers
birl fork runs/mine --seeds 5                         a group of five continuations
birl fork runs/mine --help                            shows all options, with the values of the run"""
ONE_PROCESS = "tried in this process; only with --workers does training outlive a step that hangs, crashes or exits"


@dataclass(frozen=True)
class ForkOptions:
    """The options of `birl fork` that are no settings."""

    at: str | None = None  # begin with the checkpoint of these environment steps, or with the best; None: the newest
    overwrite: Flag = False  # move a run that is in run_dir aside, to run_dir.1
    trust: Flag = False  # let a run that was not made here import modules
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own
    seeds: int | None = None  # train a group of forks with this many seeds; the first one continues the run exactly
    sweep: Repeated = ()  # train a group, with each of these values; may be repeated
    jobs: int | None = None  # runs of a group that train at once, a process each; None: the CPU cores


@dataclass(frozen=True)
class PlotOptions:
    """Draw learning curves; runs that differ only in their seed become one line with a band."""

    run_dirs: RunDirs  # run directories; one that holds no run stands for all runs below it
    out: Path = Path("curves.png")  # the image to write
    x: Literal["env_steps", "seconds"] = "env_steps"  # the horizontal axis
    metric: str = "episode/return"  # the metric to draw; any name in metrics.jsonl
    smooth: float = 0.04  # width of the moving mean, as a fraction of the curve; 0 for none


@dataclass(frozen=True)
class ListOptions:
    """List algorithms and what they support, and presets with their measured scores."""

    algorithm: ListedAlgorithm = None  # only this algorithm
    env: ListedEnv = None  # only presets for environments with this in their id, for example Hopper


@dataclass(frozen=True)
class CheckEnvOptions:
    """Check whether an environment can be used for training: try it, and explain each problem."""

    env_id: EnvId  # a Gymnasium id, my_module:MyEnv-v0 or my_module:my_function
    backend: Backend = "gymnasium"  # what steps it; compiled: JAX
    hide_velocities: bool = False  # check it without velocities
    ignore_observations: tuple[str, ...] = ()  # parts of a Dict observation to leave out
    wrapper: Repeated = ()  # check it inside this wrapper, my_module:MyWrapper; may be repeated
    kwargs: dict[str, Plain] = field(default_factory=dict)  # keyword arguments for the environment: names and values


def train(words: Words) -> int:
    """birl train ALGORITHM ENV [options]: train with the preset's settings and these options."""
    wants_help = "-h" in words or "--help" in words
    if not words or (wants_help and len(words) == 1):
        print(TRAIN_USAGE)
        return 0 if words else 2
    with starting():
        from birl.cli.train_options import read_request, training_help
        from birl.run.start import train as run_training

        if wants_help:
            print(training_help(words, shutil.get_terminal_size().columns))
            return 0
        request = read_request(words)
    allow_modules_here(*named_modules(to_json(request.config)).values())
    if request.group is not None:
        from birl.run.groups.group import train_group

        summary = train_group(request.group, request.jobs, request.notices, request.overwrite)
        return 1 if summary["failed"] else 0
    run_training(request.config, notices=request.notices, overwrite=request.overwrite)
    return 0


def resume(words: Words) -> int:
    options = parse(ResumeOptions, words, "birl resume")
    with starting():
        from birl.lab.solution import is_solving
        from birl.lab.tuning.plan import is_search
        from birl.run.start import resume as run_resume

    allow_modules_here(options.env, trust=options.trust)
    if is_solving(options.run_dir):
        return lab_commands.resume_solving(options)
    if is_search(options.run_dir):
        return lab_commands.resume_search(options)
    summary = run_resume(**vars(options))
    return 1 if summary.get("failed") else 0


def fork(words: Words) -> int:
    """birl fork RUN [options]: train a new run that begins with a checkpoint of RUN."""
    wants_help = "-h" in words or "--help" in words
    if not words or words[0].startswith("-"):
        require(wants_help or not words, f"birl fork needs a run before its options: birl fork RUN {' '.join(words)}")
        print(FORK_USAGE)
        return 0 if wants_help else 2
    with starting():
        from birl.cli.train_options import with_options
        from birl.lab.branch import start_fork
        from birl.lab.forking import roots_of
        from birl.run.given import Given
        from birl.run.start import run_to_end

        run, *rest = words
        prog = f"birl fork {run}"
        options, rest = read_known(ForkOptions, [word for word in rest if word not in ("-h", "--help")], prog)
        allow_modules_here(options.env, trust=options.trust)
        at = _read_at(options.at)
        given = Given(options.env, trust=options.trust)
        several = is_group(Path(run))
        roots = roots_of(Path(run), at, given)
        config = with_options(roots[0].config, rest, prog)
        if wants_help:
            print(_fork_help(prog, config))
            return 0
        before, after = (named_modules(to_json(one)).items() for one in (roots[0].config, config))
        allow_modules_here(*(name for _, name in after - before))  # those that the user has just named
    if several or options.seeds is not None or options.sweep:
        return _train_forks(Path(run), roots, options, config, rest, prog)
    wrong = f"--jobs {options.jobs} is for a group of forks; add --seeds or --sweep, or leave it out"
    require(options.jobs is None, wrong)
    run_to_end(start_fork(roots[0].branch(), config, overwrite=options.overwrite))
    return 0


def evaluate(words: Words) -> int:
    description = (
        "Score the best policy of a run, or of one checkpoint, over whole episodes. Of a group, show the scores of the "
        "final evaluations, or with any option that of the best policy of each run."
    )
    options = policy_options(words, "eval", description, episodes=20)
    with starting():
        from birl.run.evaluating import evaluate_policy
        from birl.run.given import Given
        from birl.run.loading import load_to_play

    allow_modules_here(options.env, trust=options.trust)

    steps: dict[Path, int | None] = {}  # of the checkpoint of each policy

    def evaluate_run(run_dir: Path) -> Any:
        policy, env = load_to_play(run_dir, Given(options.env, trust=options.trust), options.kwargs or None)
        steps[run_dir] = policy.env_steps
        most = policy.config.run.eval_max_steps if options.max_steps is None else options.max_steps
        return evaluate_policy(policy, env, options.episodes, options.seed, not options.sample, most)

    if is_group(options.run_dir):
        has_options = any(word.startswith("--") and word != "--trust" for word in words)
        return _show_group_evaluation(options.run_dir, evaluate_run if has_options else None, steps)
    evaluation = evaluate_run(options.run_dir)
    print(_range_text(evaluation))
    if (at := steps[options.run_dir]) is not None:
        print(f"policy of the checkpoint at {at:,} steps")
    print(f"length {number(evaluation.lengths.mean())} steps")
    if len(evaluation.successes):
        print(f"success rate {100 * evaluation.metrics()['eval/success_mean']:.0f} %")
    _print_cuts(evaluation)
    return 0


def play(words: Words) -> int:
    options = policy_options(words, "play", "Watch a trained policy in a window.", episodes=3)
    with starting():
        from birl.run.record import play as run_play

    allow_modules_here(options.env, trust=options.trust)
    played = run_play(**options.arguments())
    print("returns: " + ", ".join(map(number, played.returns)))
    _print_cuts(played)
    return 0


def record(words: Words) -> int:
    def arguments(
        policy: tyro.conf.OmitArgPrefixes[PolicyOptions] = PolicyOptions(tyro.MISSING, episodes=1),  # noqa: B008
        out: Path | None = None,
    ) -> tuple[PolicyOptions, Path | None]:
        """Record a trained policy as a video: mp4, or GIF if --out ends in .gif.

        Args:
            policy: which policy to use, and for which episodes
            out: the video; None: in the run's videos/. An existing file is never overwritten
        """
        return policy, out

    options, out = parse(arguments, words, "birl record")
    with starting():
        from birl.run.record import record as run_record

    allow_modules_here(options.env, trust=options.trust)
    path, recorded = run_record(out=out, **options.arguments())
    print(f"{path}: returns {', '.join(map(number, recorded.returns))}")
    _print_cuts(recorded)
    return 0


def plot(words: Words) -> int:
    options = parse(PlotOptions, words, "birl plot")
    with starting():
        from birl.run.plot import plot_runs

    print(plot_runs(**vars(options)))
    return 0


def list_all(words: Words) -> int:
    options = parse(ListOptions, words, "birl list")
    with starting():
        from birl.cli.tables import COLUMNS, listed

        found = listed(options.algorithm, options.env)
    TextConsole(highlight=False, width=max(COLUMNS, TextConsole().width)).print(*found, sep="\n")
    return 0


def doctor(words: Words) -> int:
    about = "Check this installation: versions, devices, extras, and a ten-second test run."
    parse(_no_options, words, "birl doctor", description=about)
    with starting():
        from birl.run.doctor import examine

    return 0 if examine(print) else 1


def check_env(words: Words) -> int:
    options = parse(CheckEnvOptions, words, "birl check-env")
    config = env_of_options(options.env_id, vars(options))
    with starting():
        from birl.envs.check.checking import check_env as run_check

    if config.backend != "compiled":
        print(f"birl: {ONE_PROCESS}", file=sys.stderr)
    allow_modules_here(config.id, *(wrapper.path for wrapper in config.wrappers))
    findings = run_check(config)
    marks = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]", "error": "[red]error  [/]"}
    console = TextConsole(highlight=False)
    for finding in findings:
        text = escape(f"{finding.title}: {finding.explanation}")  # "[nan]" is not a style
        console.print(marks[finding.level], text, soft_wrap=True)
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _train_forks(run: Path, roots: Sequence[Any], options: ForkOptions, config: Any, words: Words, prog: str) -> int:
    """Train a group of forks; the exit code."""
    from birl.cli.train_options import read_sweep, with_options
    from birl.lab.forking import train_forks

    sweep, as_options = read_sweep(config, options.sweep, words)

    def change(parent_config: Any, point: dict[str, Any]) -> Any:
        return with_options(parent_config, [*words, *as_options(point)], prog)

    summary = train_forks(run, roots, change, sweep, options.seeds, options.jobs, options.overwrite)
    return 1 if summary["failed"] else 0


def _read_at(text: str | None) -> Any:
    if text is None or text == "best":
        return text
    try:
        return whole_number(text)
    except ValueError as problem:
        raise ConfigError(f"--at {text!r} is neither a number of steps nor best") from problem


def _fork_help(prog: str, config: Any) -> str:
    from birl.cli.settings_help import help_text
    from birl.cli.train_options import METAVARS, start_texts

    texts = start_texts(ForkOptions, METAVARS | {"at": "STEP", "env": "ID"})
    about = "Train a new run that begins with a checkpoint of this one. In brackets: the settings of the run."
    return help_text(prog, about, config, texts, shutil.get_terminal_size().columns)


def _show_group_evaluation(
    directory: Path,
    evaluate: Callable[[Path], Any] | None,
    steps: Mapping[Path, int | None],  # of the checkpoint that `evaluate` has used for a run
) -> int:
    """Evaluate each run of a group, say its score and the statistics over seeds; the exit code.

    Without `evaluate`, the scores are those of the final evaluations, as everywhere else. The code
    is 1 if a run has no score.
    """
    from birl.run.groups.group_results import evaluate_group, point_text, settings_text, stored_evaluation

    def report(name: str, found: Any) -> None:
        at = steps.get(directory / name)
        which = "" if at is None else f", policy at {at:,} steps"
        print(f"{name}: {found if isinstance(found, str) else _range_text(found) + which}")

    points = evaluate_group(directory, evaluate or stored_evaluation, report)
    for point in points:
        settings = settings_text(point["settings"])
        print(f"{settings}{': ' if settings else ''}{point_text(point)}")
    if evaluate is None:
        fresh = f"birl eval {directory} --episodes 20 plays the best checkpoint of each run again"
        print(f"these are the final evaluations, of the policies at the end of training; {fresh}")
    else:
        print(f"the scores of the final evaluations, which birl compare takes: birl eval {directory}")
    return 1 if any(lane["problem"] for point in points for lane in point["lanes"]) else 0


def _range_text(evaluation: Any) -> str:
    """The score of an evaluation, with the lowest and the highest return."""
    returns = evaluation.returns
    score = score_text(returns.mean(), returns.std(), len(returns))
    return f"{score} (min {number(returns.min())}, max {number(returns.max())})"


def _print_cuts(evaluation: Any) -> None:
    if notice := evaluation.cut_notice():
        print(f"{notice}; --max-steps sets the limit")


def _no_options() -> None:
    """Takes no options."""


COMMANDS: dict[str, Callable[[Words], int]] = {
    "train": train,
    "resume": resume,
    "fork": fork,
    "eval": evaluate,
    "play": play,
    "record": record,
    "export": lab_commands.export,
    "plot": plot,
    "compare": lab_commands.compare,
    "report": lab_commands.report,
    "list": list_all,
    "doctor": doctor,
    "check-env": check_env,
    "tune": lab_commands.tune,
    "diagnose": lab_commands.diagnose,
    "solve": lab_commands.solve,
    "card": lab_commands.card,
    "push": lab_commands.push,
    "pull": lab_commands.pull,
}
