"""Settings that every algorithm shares: the environment, Atari preprocessing, the run."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from birl.config_json import RemovedField, check_fields
from birl.errors import ConfigError, require
from birl.functions import name_of_function

__all__ = ["AtariConfig", "ConfigError", "EnvConfig", "RunConfig", "Wrapper", "check_fields", "require"]

USUAL_ROWS = 2_000  # lines of updates that a run logs if it has more updates and `log_every` is 0
MOST_ROWS = 50_000  # ... whatever it is; each is about 1 kB
Plain = bool | int | float | str  # what a keyword argument may be, so that settings stay data


@dataclass(frozen=True)
class AtariConfig:
    """Preprocessing of Atari games: ids that begin with ALE/ (Mnih et al. 2015, Machado 2018)."""

    noop_max: int = 30  # a game starts with 1 to this many no-op frames
    frame_skip: int = 4  # frames per action; the observation is the pixelwise maximum of the last two
    screen_size: int = 84  # height and width of a frame in pixels
    stacked_frames: int = 4  # frames per observation: the latest ones
    episodic_life: bool = False  # a lost life ends the episode, not the game; returns are still of whole games
    fire_reset: bool = True  # press FIRE when an episode starts, in games that have it: some wait for it
    sticky_actions: float = 0.0  # probability that a frame repeats the previous action; 0.25 in Machado et al.

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Wrapper:
    """A wrapper around each environment, by name: settings are data, and a class is not."""

    path: str  # module:Class, called with the environment and `kwargs`; the class itself becomes its name
    kwargs: dict[str, Plain] = field(default_factory=dict, hash=False)

    TEXTS: ClassVar[str] = "'my_module:MyWrapper' or 'my_module:MyWrapper,tile_size=8,flag=true'"

    def __post_init__(self) -> None:
        if callable(self.path):
            object.__setattr__(self, "path", name_of_function(self.path))
        check_fields(self)
        is_name = re.fullmatch(r"[\w.]+:[\w.-]+", self.path) is not None
        require(is_name, f"wrapper {self.path!r} names no class; write it like {self.TEXTS}")

    @classmethod
    def from_text(cls, text: str) -> "Wrapper":
        """The wrapper that module:Class,key=value,... stands for.

        A value is read as JSON if it is JSON, else it is text.
        """
        path, *pairs = re.split(r",(?=\s*\w+=)", text)
        named = [pair.strip().partition("=") for pair in pairs]
        return cls(path.strip(), {name: _read_value(value) for name, _, value in named})

    def text(self) -> str:
        """The text that `from_text` reads as this wrapper."""
        return ",".join([self.path, *(f"{name}={_write_value(value)}" for name, value in self.kwargs.items())])


def _read_value(text: str) -> Any:
    """The JSON value in this text; the text itself if it is none."""
    words = {"True": True, "False": False}  # as Python writes them
    try:
        return words[text] if text in words else json.loads(text)
    except ValueError:
        return text


def _write_value(value: Plain) -> str:
    return value if isinstance(value, str) and _read_value(value) == value else json.dumps(value)


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it, and where they run."""

    # A Gymnasium id; module:Id-v0 imports the module first, module:function calls your function.
    id: str = "CartPole-v1"
    num_envs: int = 8  # environments stepped together
    backend: Literal["gymnasium", "envpool", "compiled"] = "gymnasium"  # what steps them; compiled: JAX
    workers: int = 0  # processes that step the environments; 0: this process
    ray_actors: int = 0  # Ray actors that collect rollouts, each with its share of the environments; 0: this process
    ray_address: str | None = None  # of a Ray cluster, for ray_actors or the runs of a group; None: one on this machine
    step_timeout: float = 60.0  # seconds a worker may take for a step before it is replaced
    hide_velocities: bool = False  # remove velocities from the observation, so that the policy needs memory
    max_episode_steps: int | None = None  # truncate episodes after this many steps; None: the environment's own limit
    kwargs: dict[str, Plain] = field(default_factory=dict, hash=False)  # for gymnasium.make, or the function in `id`
    ignore_observations: tuple[str, ...] = ()  # parts of a Dict observation to leave out: mission, camera/depth
    wrappers: tuple[Wrapper, ...] = ()  # wrappers around each environment, the first one innermost
    atari: AtariConfig = field(default_factory=AtariConfig)

    TEXTS: ClassVar[str] = "'CartPole-v1'"
    REMOVED_FIELDS: ClassVar[dict[str, RemovedField]] = {
        "overlap": RemovedField(False, "load the run with the version of Birl that wrote it, or train again without it")
    }

    def __post_init__(self) -> None:
        if isinstance(self.wrappers, list | tuple):
            given: tuple[Any, ...] = tuple(self.wrappers)
            named = tuple(Wrapper(wrapper) if callable(wrapper) else wrapper for wrapper in given)
            object.__setattr__(self, "wrappers", named)
        check_fields(self)

    @classmethod
    def from_text(cls, text: str) -> "EnvConfig":
        """The environment with this id, and default settings."""
        return cls(text)


@dataclass(frozen=True)
class RunConfig:
    """How long to train, what to write, and when to evaluate."""

    total_steps: int = 100_000  # environment steps to train for; schedules run from 0 to here
    seed: int = 1  # of environments, weights and actions; the same seed gives the same run
    run_dir: str | None = None  # None: runs/ALGORITHM-ENV-SEED, numbered if it exists
    eval_every: int = 0  # environment steps between evaluations; 0: only at the end
    eval_episodes: int = 20  # episodes per evaluation
    eval_max_steps: int | None = None  # step limit of evaluation episodes; None: the environment's own, or 10,000
    eval_deterministic: bool = True  # evaluate the policy's most likely actions, not samples
    stop_at_return: float | None = None  # stop once an evaluation reaches this mean return
    checkpoint_every: int = 50_000  # environment steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 3  # how many of the newest to keep; the best one is kept too
    keep_every: int = 0  # also write and keep a checkpoint after every so many environment steps, to fork it; 0: none
    log_every: int = 0  # environment steps between log lines; 0: every update, or about 2,000 lines if there are more
    video_every: int = 0  # environment steps between videos of an episode of the current policy; 0: none
    tensorboard: bool = False  # write TensorBoard event files
    wandb: str | None = None  # name of a Weights & Biases project to log to
    trackio: str | None = None  # name of a Trackio project to log to, on this machine
    metric_names: Literal["birl", "sb3", "cleanrl"] = "birl"  # whose names TensorBoard and the other trackers get

    REMOVED_FIELDS: ClassVar[dict[str, RemovedField]] = {"log_seconds": RemovedField(...)}

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def steps_between_rows(self) -> int:
        """Environment steps between logged updates. No clock: the same run has the same rows."""
        return max(self.log_every or self.total_steps // USUAL_ROWS, self.total_steps // MOST_ROWS, 1)
