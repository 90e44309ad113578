"""Where an environment's errors come from: its number, its class, and the user's file."""

import inspect
import sysconfig
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import gymnasium as gym

from birl.errors import EnvError

LIBRARIES = "gymnasium", "birl"  # their wrappers are not to blame
BIRL = Path(__file__).parents[1]
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
RULES = {
    "reset": "take reset(self, *, seed=None, options=None) and return (observation, info), with info a dict",
    "step": "return observation, reward (a number), terminated, truncated, info",
}
OF_A_CALL = "unpack", "argument"  # in what Python says of a wrong signature or answer


@dataclass(frozen=True)
class ErrorSource:
    """What returned an observation, a reward or a flag."""

    name: str  # "environment 3"
    env: gym.Env | gym.vector.VectorEnv

    def single(self, index: int) -> Self:
        """One of a vector environment's environments."""
        return replace(self, name=f"environment {index}")

    def error(self, wrong: str) -> EnvError:
        """The error that it did something wrong; names its class and file."""
        return EnvError(f"{self.name} {wrong} ({place_of(self.env)})")

    def breaks_rules(self, function: str, wrong: str) -> EnvError:
        """The error that `reset` or `step` cannot be called, or returned something else."""
        return self.error(f"breaks the rules of {function}: {wrong}; {RULES[function]}")

    def raised(self, function: str, error: BaseException) -> Exception:
        """What to raise for an error in `reset` or `step`: it names the user's line."""
        if _is_of_call(error):
            return self.breaks_rules(function, str(error))
        reason = f"{type(error).__name__}: {error}"
        return RuntimeError(f"{self.name} raised in {function}: {reason} ({raised_at(error)})")


def place_of(env: gym.Env | gym.vector.VectorEnv) -> str:
    """The classes of an environment that are the user's, and their files: "MyEnv in my_env.py"."""
    kinds: list[type] = [type(env)]
    while isinstance(env, gym.Wrapper | gym.vector.VectorWrapper):
        env = env.env
        kinds.append(type(env))
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in LIBRARIES]
    return ", ".join(f"{kind.__name__} in {_file_of(kind)}" for kind in own or kinds[-1:])


def raised_at(error: BaseException) -> str:
    """The user's last line on the way to an error: "my_env.py, line 12"."""
    lines = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    foreign = [(path, line) for path, line in lines if not path.is_relative_to(BIRL)]
    own = [(path, line) for path, line in foreign if not any(map(path.is_relative_to, INSTALLED))]
    path, line = (own or foreign or lines)[-1]
    return f"{path}, line {line}"


def _is_of_call(error: BaseException) -> bool:
    """Whether Birl or a wrapper of Gymnasium failed to call a function, or to unpack its answer."""
    if not isinstance(error, TypeError | ValueError) or not any(words in str(error) for words in OF_A_CALL):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in LIBRARIES


def _file_of(kind: type) -> str:
    try:
        return inspect.getsourcefile(kind) or kind.__module__
    except (OSError, TypeError):  # typed into an interpreter, or in C
        return kind.__module__
