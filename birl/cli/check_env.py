"""`birl check-env`: try an environment, and print what was found."""

import sys
from typing import Annotated, Literal

import tyro
from rich.markup import escape

from birl.cli.modules import allow_modules_here
from birl.cli.parsing import parse
from birl.config import EnvConfig, Plain, Wrapper
from birl.run.display import TextConsole
from birl.run.signals import starting

ONE_PROCESS = "tried in this process; only with --workers does training outlive a step that hangs, crashes or exits"


def check_env(words: list[str]) -> int:
    def arguments(
        env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")],
        /,
        backend: Literal["gymnasium", "envpool", "compiled"] = "gymnasium",
        hide_velocities: bool = False,
        ignore_observations: tuple[str, ...] = (),
        wrapper: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
        kwargs: dict[str, Plain] = {},  # noqa: B006
    ) -> EnvConfig:
        """Check whether an environment can be used for training: try it, and explain each problem.

        Args:
            env_id: a Gymnasium id, my_module:MyEnv-v0 or my_module:my_function
            backend: what steps it; compiled: JAX
            hide_velocities: check it without velocities
            ignore_observations: parts of a Dict observation to leave out
            wrapper: check it inside this wrapper, my_module:MyWrapper; may be repeated
            kwargs: keyword arguments for the environment: names and values
        """
        return EnvConfig(
            env_id,
            backend=backend,
            hide_velocities=hide_velocities,
            ignore_observations=ignore_observations,
            wrappers=tuple(map(Wrapper.from_text, wrapper)),
            kwargs=kwargs,
        )

    config = parse(arguments, words, "birl check-env")
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
