"""The options of the command line, read with tyro."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from birl.cli.parsing import parse
from birl.config import Plain

RunDir = Annotated[Path, tyro.conf.Positional]
RunDirs = Annotated[
    tuple[Path, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(one or more)"),
]


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its newest undamaged checkpoint, exactly as if it had not stopped.

    Of a group, every run that has not finished is continued.
    """

    run_dir: RunDir  # the run's directory, or a group's
    total_steps: int | None = None  # train to this many environment steps instead; schedules then end there
    workers: int | None = None  # step the environments in this many processes instead; the run stays the same
    jobs: int | None = None  # runs of a group that train at once; None: the CPU cores
    ray_address: str | None = None  # train the runs of a group as tasks of this Ray cluster; None: in processes here
    trust: bool = False  # let a run that was not made here import modules, start processes and reach other machines
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own


@dataclass(frozen=True)
class PolicyOptions:
    """Which policy to use, and for which episodes."""

    run_dir: RunDir  # a run's directory, one of its checkpoints, or a policy file; of eval also a group's
    episodes: int  # number of episodes
    seed: int = 0  # seed of the environments
    sample: bool = False  # sample actions instead of taking the most likely ones
    max_steps: int | None = None  # cut episodes after this many steps; None: as in the run's evaluations
    trust: bool = False  # let a run that was not made here import the module that its env.id names
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own
    kwargs: dict[str, Plain] = field(default_factory=dict)  # keyword arguments for the environment, instead of its own


def policy_options(words: list[str], command: str, description: str, episodes: int) -> PolicyOptions:
    """The options of a command that plays episodes; `episodes` is the default."""
    default = PolicyOptions(tyro.MISSING, episodes)
    return parse(PolicyOptions, words, f"birl {command}", description=description, default=default)
