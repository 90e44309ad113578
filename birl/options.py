"""The options of the command line, read with tyro."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

RunDir = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its newest undamaged checkpoint, exactly as if it had not stopped."""

    run_dir: RunDir  # the run's directory
    total_steps: int | None = None  # train to this many environment steps instead; schedules then end there
    workers: int | None = None  # step the environments in this many processes instead; the run stays the same
    trust: bool = False  # let a run that was not made here import modules, start processes and reach other machines
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own


@dataclass(frozen=True)
class PolicyOptions:
    """Which policy to use, and for which episodes."""

    run_dir: RunDir  # a run's directory, or one of its checkpoints
    episodes: int  # number of episodes
    seed: int = 0  # seed of the environments
    sample: bool = False  # sample actions instead of taking the most likely ones
    max_steps: int | None = None  # cut episodes after this many steps; None: as in the run's evaluations
    trust: bool = False  # let a run that was not made here import the module that its env.id names
    env: str | None = None  # use this environment, e.g. my_module:MyEnv-v0, instead of the run's own


def policy_options(words: list[str], command: str, description: str, episodes: int) -> PolicyOptions:
    """The options of a command that plays episodes; `episodes` is the default."""
    default = PolicyOptions(tyro.MISSING, episodes)
    return tyro.cli(PolicyOptions, args=words, prog=f"birl {command}", description=description, default=default)


def training_config(name: str, env_id: str, words: list[str]) -> tuple[Any, str]:
    """The Config that these words ask for, and a sentence about where its defaults come from."""
    from birl.registry import algorithm_named
    from birl.run.configure import from_preset

    kind = algorithm_named(name).Config
    return from_preset(name, env_id, lambda default: parse_config(kind, default, words, name, env_id))


def parse_config(kind: Any, default: Any, words: list[str], name: str, env_id: str) -> Any:
    """A Config of this kind: the default's values, changed by the options in `words`."""
    from birl.maths import schedules

    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def schedule_rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
        """Read a schedule from one word, such as linear:1e-3:0."""
        optional = info.type == float | schedules.Schedule | None
        if info.type != float | schedules.Schedule and not optional:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="{None}|FLOAT|SCHEDULE" if optional else "FLOAT|SCHEDULE",
            instance_from_str=lambda given: None if optional and given[0] == "None" else schedules.parse(given[0]),
            is_instance=lambda value: isinstance(value, float | schedules.Schedule) or (optional and value is None),
            str_from_instance=lambda value: ["None" if value is None else schedules.shown(value)],
        )

    prog = f"birl train {name} {env_id}"
    with registry:
        return tyro.cli(kind, default=default, args=words, prog=prog, config=(tyro.conf.OmitArgPrefixes,))
