"""What each command does: reads its words with tyro, calls the API, prints."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from birl import ALGORITHMS
from birl.config import EnvConfig, require
from birl.run.console import number, score_text
from birl.run.signals import starting

Words = list[str]
RunDir = Annotated[Path, tyro.conf.Positional]
TRAIN_USAGE = f"""usage: birl train ALGORITHM ENV [options]

algorithms: {", ".join(ALGORITHMS)}

birl train ppo CartPole-v1 --help shows the options and the preset's values."""


def train(words: Words) -> int:
    """birl train ALGORITHM ENV [options]: the preset's settings where there is one, with the options given."""
    named = [word for word in words[:2] if not word.startswith("-")]
    if not named or (len(named) == 1 and words[1:2] in (["-h"], ["--help"])):
        print(TRAIN_USAGE)
        return 0 if words else 2
    env_id = next((word for word in named if word not in ALGORITHMS), "")
    forgotten = env_id and (len(named) == 1 or named[1] in ALGORITHMS)
    example = f"birl train {named[-1] if len(named) == 2 else 'ppo'} {env_id}"
    require(
        not forgotten,
        f"birl train needs an algorithm before the environment: {example}; algorithms: {', '.join(ALGORITHMS)}",
    )
    require(len(named) == 2, f"birl train {named[0]} needs an environment: birl train {named[0]} CartPole-v1")
    with starting():
        from birl.run.driver import train as run_training

        config, notice = training_config(named[0], named[1], words[2:])
    _find_modules_here(named[1])
    run_training(config, notices=[notice])
    return 0


def training_config(name: str, env_id: str, words: Words) -> tuple[Any, str]:
    """The Config that the words ask for, and a sentence on where its defaults come from."""
    from birl.presets import find_preset
    from birl.presets.entry import core_of
    from birl.registry import algorithm_named

    algorithm = algorithm_named(name)
    plain = find_preset(name, env_id)
    default = plain.config if plain else algorithm.Config(env=EnvConfig(env_id))
    config = _parse_config(algorithm.Config, default, words, f"birl train {name} {env_id}")
    # Hidden velocities and a core choose another preset; then the words are read again on top of
    # it.
    preset = find_preset(name, env_id, config.env.hide_velocities, core_of(config))
    if preset is None:
        return config, f"no preset for {name} on {env_id} with these switches: " + (
            "the preset of the plain task" if plain else "default settings"
        )
    if preset is not plain:
        config = _parse_config(algorithm.Config, preset.config, words, f"birl train {name} {env_id}")
    score = (
        ": published settings, not measured here"
        if preset.score is None
        else f", measured at a return of {preset.score:g}"
    )
    return (
        config,
        f"preset {name} {env_id}{' hidden velocities' if config.env.hide_velocities else ''} {core_of(config)}{score}",
    )


def resume(words: Words) -> int:
    def options(
        run_dir: RunDir,
        /,
        total_steps: int | None = None,
        workers: int | None = None,
        trust: bool = False,
        env: str | None = None,
    ) -> tuple[Path, int | None, int | None, bool, str | None]:
        """Go on with a run from its newest whole checkpoint, exactly as if it had not stopped.

        Args:
            run_dir: the run's directory
            total_steps: train to this many environment steps instead; schedules then run to the new end
            workers: step the environments in this many processes instead; the run stays the same
            trust: let a run that was not made here import modules, start processes and reach other machines
            env: use this environment, my_module:MyEnv-v0 say, instead of the one that the run names
        """
        return run_dir, total_steps, workers, trust, env

    run_dir, total_steps, workers, trust, env = tyro.cli(options, args=words, prog="birl resume")
    with starting():
        from birl.run.driver import resume as run_resume

    _find_modules_here(env, trust)
    run_resume(run_dir, total_steps, workers, trust=trust, env=env)
    return 0


def evaluate(words: Words) -> int:
    def options(
        run_dir: RunDir,
        /,
        episodes: int = 20,
        seed: int = 0,
        sample: bool = False,
        max_steps: int | None = None,
        trust: bool = False,
        env: str | None = None,
    ) -> tuple[Path, int, int, bool, int | None, bool, str | None]:
        """Score the best policy of a run, or of one checkpoint directory, over whole episodes.

        Args:
            run_dir: a run's directory, or one of its checkpoints
            episodes: how many
            seed: of the environments
            sample: sample actions instead of taking the most likely ones
            max_steps: cut episodes after so many steps; None: as the run's evaluations do
            trust: let a run that was not made here import the module that its environment's id names
            env: use this environment, my_module:MyEnv-v0 say, instead of the one that the run names
        """
        return run_dir, episodes, seed, sample, max_steps, trust, env

    run_dir, episodes, seed, sample, max_steps, trust, env = tyro.cli(options, args=words, prog="birl eval")
    with starting():
        from birl.run.evaluate import evaluate as run_evaluation

    _find_modules_here(env, trust)
    evaluation = run_evaluation(run_dir, episodes, seed, not sample, max_steps=max_steps, trust=trust, env=env)
    returns = evaluation.returns
    print(
        f"{score_text(returns.mean(), returns.std(), episodes)} (min {number(returns.min())}, max {number(returns.max())})"
    )
    print(f"length {number(evaluation.lengths.mean())} steps")
    _print_cuts(evaluation)
    return 0


def play(words: Words) -> int:
    def options(
        run_dir: RunDir,
        /,
        episodes: int = 3,
        seed: int = 0,
        sample: bool = False,
        max_steps: int | None = None,
        trust: bool = False,
        env: str | None = None,
    ) -> tuple[Path, int, int, bool, int | None, bool, str | None]:
        """Watch a trained policy in a window.

        Args:
            run_dir: a run's directory, or one of its checkpoints
            episodes: how many
            seed: of the first episode; the next has the next
            sample: sample actions instead of taking the most likely ones
            max_steps: cut episodes after so many steps; None: as the run's evaluations do
            trust: let a run that was not made here import the module that its environment's id names
            env: use this environment, my_module:MyEnv-v0 say, instead of the one that the run names
        """
        return run_dir, episodes, seed, sample, max_steps, trust, env

    run_dir, episodes, seed, sample, max_steps, trust, env = tyro.cli(options, args=words, prog="birl play")
    with starting():
        from birl.run.record import play as run_play

    _find_modules_here(env, trust)
    played = run_play(run_dir, episodes, seed, not sample, max_steps, trust, env)
    print("returns: " + ", ".join(map(number, played.returns)))
    _print_cuts(played)
    return 0


def record(words: Words) -> int:
    def options(
        run_dir: RunDir,
        /,
        out: Path | None = None,
        episodes: int = 1,
        seed: int = 0,
        sample: bool = False,
        max_steps: int | None = None,
        trust: bool = False,
        env: str | None = None,
    ) -> tuple[Path, Path | None, int, int, bool, int | None, bool, str | None]:
        """Film a trained policy as mp4.

        Args:
            run_dir: a run's directory, or one of its checkpoints
            out: the video; by default in the run's videos/. An existing file is never overwritten
            episodes: how many, one after another
            seed: of the first episode; the next has the next
            sample: sample actions instead of taking the most likely ones
            max_steps: cut episodes after so many steps; None: as the run's evaluations do
            trust: let a run that was not made here import the module that its environment's id names
            env: use this environment, my_module:MyEnv-v0 say, instead of the one that the run names
        """
        return run_dir, out, episodes, seed, sample, max_steps, trust, env

    run_dir, out, episodes, seed, sample, max_steps, trust, env = tyro.cli(options, args=words, prog="birl record")
    with starting():
        from birl.run.record import record as run_record

    _find_modules_here(env, trust)
    path, filmed = run_record(run_dir, out, episodes, seed, not sample, max_steps, trust, env)
    print(f"{path}: returns {', '.join(map(number, filmed.returns))}")
    _print_cuts(filmed)
    return 0


def plot(words: Words) -> int:
    def options(
        run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional],
        /,
        out: Path = Path("curves.png"),
        x: Literal["env_steps", "seconds"] = "env_steps",
        metric: str = "episode/return",
        smooth: float = 0.04,
    ) -> tuple[tuple[Path, ...], Path, Literal["env_steps", "seconds"], str, float]:
        """Draw learning curves; runs that differ only in their seed become one line with a band.

        Args:
            run_dirs: run directories
            out: the picture
            x: what to draw over
            metric: what to draw; any name in metrics.jsonl
            smooth: width of the moving mean as a share of the curve; 0 for none
        """
        return run_dirs, out, x, metric, smooth

    run_dirs, out, x, metric, smooth = tyro.cli(options, args=words, prog="birl plot")
    with starting():
        from birl.run.plot import plot_runs

    print(plot_runs(run_dirs, out, x, metric, smooth))
    return 0


def list_all(words: Words) -> int:
    tyro.cli(_no_options, args=words, prog="birl list", description="Algorithms, presets and their measured scores.")
    with starting():
        from birl.presets import PRESETS

    about = "Presets. Score: interquartile mean of 5 seeds, or of as many as are named; -: published settings, not measured here"
    table = Table(title=about, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    table.add_column("birl train", no_wrap=True)  # to be copied: never cut off
    for column in ("steps", "score", "95 % interval"):
        table.add_column(
            column, justify="right", no_wrap=column != "95 % interval"
        )  # the one that may break on a narrow screen
    for preset in PRESETS:
        config = preset.config
        score = "-" if preset.score is None else f"{preset.score:g}"
        interval = "-" if preset.interval is None else f"{preset.interval[0]:g} to {preset.interval[1]:g}"
        if preset.score is not None and preset.seeds != 5:
            interval = f"{interval}, {preset.seeds} seeds" if preset.seeds > 1 else "1 seed"
        table.add_row(
            " ".join([preset.algorithm, config.env.id, *preset.switches]),
            f"{config.run.total_steps:,}",
            score,
            interval,
        )
    Console().print(f"algorithms: {', '.join(ALGORITHMS)}\n", table)
    return 0


def doctor(words: Words) -> int:
    tyro.cli(
        _no_options,
        args=words,
        prog="birl doctor",
        description="Versions, devices, extras and a ten-second self-check.",
    )
    with starting():
        from birl.run.doctor import examine

    return 0 if examine(print) else 1


def check_env(words: Words) -> int:
    def options(env_id: Annotated[str, tyro.conf.Positional], /, hide_velocities: bool = False) -> EnvConfig:
        """Is this environment fit for training? Tries it out and says in plain words what it found.

        Args:
            env_id: a Gymnasium id, or my_module:MyEnv-v0
            hide_velocities: check it without velocities
        """
        return EnvConfig(env_id, hide_velocities=hide_velocities)

    config = tyro.cli(options, args=words, prog="birl check-env")
    with starting():
        from birl.envs.check import check_env as run_check

    _find_modules_here(config.id)
    findings = run_check(config)
    marks = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]", "error": "[red]error  [/]"}
    console = Console(highlight=False)
    for finding in findings:
        console.print(
            marks[finding.level], escape(f"{finding.title}: {finding.explanation}"), soft_wrap=True
        )  # "[nan]" is no style
    return 1 if any(finding.level == "error" for finding in findings) else 0


COMMANDS: dict[str, Callable[[Words], int]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "play": play,
    "record": record,
    "plot": plot,
    "list": list_all,
    "doctor": doctor,
    "check-env": check_env,
}


def _find_modules_here(env_id: str | None, trust: bool = False) -> None:
    """Let a module that the person names, or trusts, be found beside them. Otherwise nothing is:
    they may stand in a stranger's run.
    """
    if trust or ":" in (env_id or ""):
        sys.path.append(os.getcwd())


def _no_options() -> None:
    """Takes no options."""


def _parse_config(kind: Any, default: Any, words: Words, prog: str) -> Any:
    from birl.maths import schedules

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def schedule_rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type != float | schedules.Schedule:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="FLOAT|SCHEDULE",
            instance_from_str=lambda given: schedules.parse(given[0]),
            is_instance=lambda value: isinstance(value, float | schedules.Schedule),
            str_from_instance=lambda value: [schedules.format(value)],
        )

    with registry:
        return tyro.cli(kind, default=default, args=words, prog=prog, config=(tyro.conf.OmitArgPrefixes,))


def _print_cuts(evaluation: Any) -> None:
    if cuts := evaluation.cuts():
        print(f"{cuts}; --max-steps sets how many are played")
