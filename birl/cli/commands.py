"""The commands: each reads its words with tyro, calls the API, and prints the result."""

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from birl import ALGORITHMS
from birl.cli.check_env import check_env
from birl.cli.compare import compare
from birl.cli.diagnose import diagnose
from birl.cli.export import export
from birl.cli.fork import fork
from birl.cli.group_output import range_text, show_group_evaluation
from birl.cli.modules import allow_modules_here
from birl.cli.options import PolicyOptions, ResumeOptions, RunDirs, policy_options
from birl.cli.parsing import parse
from birl.cli.report import report
from birl.cli.sharing import card, pull, push
from birl.cli.solve import resume_solving, solve
from birl.cli.tune import resume_search, tune
from birl.config import to_json
from birl.run.directory import is_group
from birl.run.display import TextConsole, number
from birl.run.modules import named_modules
from birl.run.signals import starting

Words = list[str]
TRAIN_USAGE = f"""usage: birl train ALGORITHM ENV [options]

algorithms: {textwrap.fill(", ".join(ALGORITHMS), 68, subsequent_indent=" " * 12, break_on_hyphens=False)}

birl train ppo --help              shows the options of an algorithm
birl train ppo CartPole-v1 --help  shows them with the values of its preset
birl train --like runs/mine        takes the settings of another run
birl list                          shows algorithms, presets and their scores"""


def train(words: Words) -> int:
    """birl train ALGORITHM ENV [options]: train with the preset's settings and these options."""
    wants_help = "-h" in words or "--help" in words
    if not words or (wants_help and len(words) == 1):
        print(TRAIN_USAGE)
        return 0 if words else 2
    with starting():
        from birl.cli.train_options import read_request, training_help
        from birl.run.driver import train as run_training

        if wants_help:
            print(training_help(words, shutil.get_terminal_size().columns))
            return 0
        request = read_request(words)
    allow_modules_here(*named_modules(to_json(request.config)).values())
    if request.group is not None:
        from birl.run.group import train_group

        summary = train_group(request.group, request.jobs, request.notices, request.overwrite)
        return 1 if summary["failed"] else 0
    run_training(request.config, notices=request.notices, overwrite=request.overwrite)
    return 0


def resume(words: Words) -> int:
    options = parse(ResumeOptions, words, "birl resume")
    with starting():
        from birl.lab.solution import is_solving
        from birl.lab.tuning.plan import is_search
        from birl.run.driver import resume as run_resume

    allow_modules_here(options.env, trust=options.trust)
    if is_solving(options.run_dir):
        return resume_solving(options)
    if is_search(options.run_dir):
        return resume_search(options)
    summary = run_resume(
        options.run_dir,
        options.total_steps,
        jobs=options.jobs,
        ray_address=options.ray_address,
        workers=options.workers,
        trust=options.trust,
        env=options.env,
    )
    return 1 if summary.get("failed") else 0


def evaluate(words: Words) -> int:
    description = (
        "Score the best policy of a run, or of one checkpoint, over whole episodes. Of a group, show the scores of the "
        "final evaluations, or with any option that of the best policy of each run."
    )
    options = policy_options(words, "eval", description, episodes=20)
    with starting():
        from birl.run.evaluate import evaluate_policy
        from birl.run.loading import load_to_play

    allow_modules_here(options.env, trust=options.trust)

    steps: dict[Path, int | None] = {}  # of the checkpoint of each policy

    def evaluate_run(run_dir: Path) -> Any:
        policy, env = load_to_play(run_dir, options.env, options.trust, kwargs=options.kwargs or None)
        steps[run_dir] = policy.env_steps
        most = policy.config.run.eval_max_steps if options.max_steps is None else options.max_steps
        return evaluate_policy(policy, env, options.episodes, options.seed, not options.sample, most)

    if is_group(options.run_dir):
        has_options = any(word.startswith("--") and word != "--trust" for word in words)
        return show_group_evaluation(options.run_dir, evaluate_run if has_options else None, print, steps)
    evaluation = evaluate_run(options.run_dir)
    print(range_text(evaluation))
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
    played = run_play(
        options.run_dir,
        options.episodes,
        options.seed,
        not options.sample,
        options.max_steps,
        options.trust,
        options.env,
        options.kwargs or None,
    )
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
    path, recorded = run_record(
        options.run_dir,
        out,
        options.episodes,
        options.seed,
        not options.sample,
        options.max_steps,
        options.trust,
        options.env,
        options.kwargs or None,
    )
    print(f"{path}: returns {', '.join(map(number, recorded.returns))}")
    _print_cuts(recorded)
    return 0


def plot(words: Words) -> int:
    def arguments(
        run_dirs: RunDirs,
        /,
        out: Path = Path("curves.png"),
        x: Literal["env_steps", "seconds"] = "env_steps",
        metric: str = "episode/return",
        smooth: float = 0.04,
    ) -> tuple[tuple[Path, ...], Path, Literal["env_steps", "seconds"], str, float]:
        """Draw learning curves; runs that differ only in their seed become one line with a band.

        Args:
            run_dirs: run directories; one that holds no run stands for all runs below it
            out: the image to write
            x: the horizontal axis
            metric: the metric to draw; any name in metrics.jsonl
            smooth: width of the moving mean, as a fraction of the curve; 0 for none
        """
        return run_dirs, out, x, metric, smooth

    run_dirs, out, x, metric, smooth = parse(arguments, words, "birl plot")
    with starting():
        from birl.run.plot import plot_runs

    print(plot_runs(run_dirs, out, x, metric, smooth))
    return 0


def list_all(words: Words) -> int:
    def arguments(
        algorithm: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ALGORITHM]")] = None,
        /,
        env: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    ) -> tuple[str | None, str | None]:
        """List algorithms and what they support, and presets with their measured scores.

        Args:
            algorithm: only this algorithm
            env: only presets for environments with this in their id, for example Hopper
        """
        return algorithm, env

    algorithm, env = parse(arguments, words, "birl list")
    with starting():
        from birl.cli.listing import COLUMNS, listed

        found = listed(algorithm, env)
    TextConsole(highlight=False, width=max(COLUMNS, TextConsole().width)).print(*found, sep="\n")
    return 0


def doctor(words: Words) -> int:
    about = "Check this installation: versions, devices, extras, and a ten-second test run."
    parse(_no_options, words, "birl doctor", description=about)
    with starting():
        from birl.run.doctor import examine

    return 0 if examine(print) else 1


COMMANDS: dict[str, Callable[[Words], int]] = {
    "train": train,
    "resume": resume,
    "fork": fork,
    "eval": evaluate,
    "play": play,
    "record": record,
    "export": export,
    "plot": plot,
    "compare": compare,
    "report": report,
    "list": list_all,
    "doctor": doctor,
    "check-env": check_env,
    "tune": tune,
    "diagnose": diagnose,
    "solve": solve,
    "card": card,
    "push": push,
    "pull": pull,
}


def _no_options() -> None:
    """Takes no options."""


def _print_cuts(evaluation: Any) -> None:
    if notice := evaluation.cut_notice():
        print(f"{notice}; --max-steps sets the limit")
