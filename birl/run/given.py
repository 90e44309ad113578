"""Arguments that are no settings: environments and functions of this process, and consent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from birl.config import EnvConfig, require
from birl.envs.make import MakeEnv, name_of_make_env

PASSED_IN = "handed-in"  # the env.id of a run on environments that were passed to `train`
OBJECTS = ("envs", "eval_envs", "make_env", "make_network", "make_encoder")


@dataclass(frozen=True)
class Given:
    """The arguments of `birl.train`, `birl.resume`, `birl.evaluate`, ... that are no settings."""

    env: str | EnvConfig | None = None  # an id or settings, instead of the environment of the run or the preset
    envs: Any = None  # a vector environment to train on
    eval_envs: Any = None  # another one to evaluate on
    make_env: MakeEnv | None = None  # makes one environment
    make_network: Any = None
    make_encoder: Any = None
    trust: bool = False  # consent to all that a run's settings name, whoever made it

    def __post_init__(self) -> None:
        has_envs = self.eval_envs is None or self.envs is not None
        require(has_envs, "eval_envs are for envs=; without envs= Birl makes its own")
        same = self.eval_envs is not None and self.eval_envs is self.envs
        remedy = "make others: an evaluation would disturb the training episodes"
        require(not same, f"eval_envs are the same as envs; {remedy}")

    @property
    def named_env(self) -> Any:
        """The environment's id or settings; None: that of the run or the Config."""
        if self.envs is not None:
            return PASSED_IN
        return self.env if self.make_env is None else name_of_make_env(self.make_env)


def divided(options: Mapping[str, Any], *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options with these names or those of `OBJECTS`, and the others, which are settings."""
    own = {name: value for name, value in options.items() if name in names or name in OBJECTS}
    return own, {name: value for name, value in options.items() if name not in own}


def require_data(**given: Any) -> None:
    """Raise ConfigError for what cannot be passed to the processes of a group."""
    for name, value in given.items():
        wrong = f"{name}= is only in this process, and a group of runs uses other processes"
        require(value is None, f"{wrong}; use settings, or functions of a module that can be imported")
