"""Environment state to a World and back, for exact resume. Nothing is pickled: MuJoCo, ALE and
LunarLander do not survive it.

Three tiers: native (copy the state: Gymnasium's vector CartPole as one, or each of the environments
that native.py knows), replay (put the generator where it was before reset, step the logged actions
again, compare), fresh (begin new episodes and say so).
"""

import json
from collections import deque
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from birl.envs import native
from birl.envs.spaces import action_dtype, action_shape, derived_seeds
from birl.types import Snapshot

Generator = np.random.Generator | np.random.RandomState  # the latter is what dm_control draws from
REPLAY, EACH = (
    "replay",
    "each",
)  # the tiers of environments stepped one by one: lived again, or the native state of each of them
ACTION_LIMIT = 100_000  # actions kept for replay; an episode longer than this is not resumed exactly


class Root(NamedTuple):
    """What it takes to bring one environment to where it is now, as arrays and plain JSON
    values.
    """

    origin: dict[str, Any]  # what its episode began from
    generator: dict[str, Any]  # where its np_random stands now
    state: native.State | None  # all else, if that can be read: then its actions need not be known


class ActionLog:
    """What it takes to live the running episodes again: where each generator stood before reset,
    and the actions since.
    """

    def __init__(self, num_envs: int, limit: int = ACTION_LIMIT) -> None:
        self.limit = limit
        self.clock = 0  # steps taken so far
        self.starts = [0] * num_envs  # the clock at each episode's first action
        self.origins: list[dict[str, Any]] = [{}] * num_envs
        self.actions: deque[np.ndarray] = deque(
            maxlen=limit
        )  # of the last steps, back to the start of the longest episode

    def append(self, actions: np.ndarray) -> None:
        self.actions.append(actions)
        self.clock += 1

    def begin(self, index: int, origin: dict[str, Any]) -> None:
        """Environment `index` starts an episode here. Origin: what `origin_of` gives."""
        self.origins[index] = origin
        self.starts[index] = self.clock
        oldest = min(self.starts)
        while self.actions and self.clock - len(self.actions) < oldest:
            self.actions.popleft()

    def too_long(self) -> list[int]:
        """The environments whose episode no longer fits in the log."""
        first = self.clock - len(self.actions)
        return [index for index, start in enumerate(self.starts) if start < first]

    def episode(self, index: int) -> np.ndarray:
        """[L, ...] the actions of one environment since its episode began."""
        first = len(self.actions) - (self.clock - self.starts[index])
        return np.array([actions[index] for actions in islice(self.actions, first, None)])

    def save(self, blank: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The log as arrays and as plain JSON values. Blank: one step's actions, for their shape
        and type.
        """
        actions = np.stack(self.actions) if self.actions else np.empty((0, *blank.shape), blank.dtype)
        arrays = {"actions": actions, "starts": np.array(self.starts, np.int64)}
        return arrays, {"clock": self.clock}

    @classmethod
    def load(cls, snapshot: Snapshot, limit: int = ACTION_LIMIT) -> "ActionLog":
        log = cls(len(snapshot.arrays["ended"]), limit)
        log.clock = int(snapshot.values["clock"])
        if snapshot.values["tier"] == REPLAY:
            log.starts = snapshot.arrays["starts"].tolist()
            log.origins = list(snapshot.values["origins"])
            log.actions.extend(snapshot.arrays["actions"])
        return log


def save_single(
    log: ActionLog,
    action_space: gym.Space,
    seed: int,
    roots: list[Root],
    observations: dict[str, np.ndarray],
    ended: np.ndarray,
    masks: np.ndarray | None,
) -> Snapshot:
    """The world of environments stepped one by one: their states, or else what it takes to live the
    running episodes again.
    """
    states = [root.state for root in roots if root.state is not None]
    reason = ""
    if len(states) == len(roots):
        arrays = {
            f"states/{index}/{name}": array for index, (own, _) in enumerate(states) for name, array in own.items()
        }
        values: dict[str, Any] = {"tier": EACH, "clock": log.clock, "states": [own for _, own in states]}
    else:
        blank = np.zeros((len(ended), *action_shape(action_space)), action_dtype(action_space))
        arrays, values = log.save(blank)
        values |= {"tier": REPLAY, "origins": [root.origin for root in roots]}
        too_long = log.too_long()
        reasons = [f"environments {too_long} are in an episode of more than {log.limit} steps"] if too_long else []
        reason = "; ".join([*reasons, *dict.fromkeys(root.origin["lost"] for root in roots if "lost" in root.origin)])
    arrays |= {f"observations/{name}": array.copy() for name, array in observations.items()} | {"ended": ended.copy()}
    if masks is not None:
        arrays["masks"] = masks.copy()
    return Snapshot(
        arrays, values | {"seed": seed, "generators": [root.generator for root in roots]}, not reason, reason
    )


def part_of(snapshot: Snapshot, rows: slice) -> Snapshot:
    """The same of some of the environments."""
    shared = {name: array for name, array in snapshot.arrays.items() if not name.startswith("states/")}
    arrays = {name: array[:, rows] if name == "actions" else array[rows] for name, array in shared.items()}
    per_env = {
        name: snapshot.values[name][rows] for name in ("origins", "generators", "states") if name in snapshot.values
    }
    for number, index in enumerate(range(*rows.indices(len(snapshot.arrays["ended"])))):
        arrays |= {
            f"states/{number}/{name}": array for name, array in snapshot.arrays_under(f"states/{index}/").items()
        }
    return Snapshot(arrays, snapshot.values | per_env, snapshot.exact, snapshot.reason)


def origin_of(env: gym.Env, seed: int | None) -> dict[str, Any]:
    """What the episode of the next reset begins from: {"seed": n}, {"generator": its state}, or
    {"lost": why nobody can tell}.
    """
    if seed is not None:
        return {"seed": seed}
    try:
        hidden = native.hidden_randomness(env)
        return {"lost": hidden} if hidden else {"generator": generator_state(generator_of(env))}
    except Exception as error:
        return {"lost": unreadable(error)}


def root_of(env: gym.Env, origin: dict[str, Any]) -> Root:
    """Where this environment is. Whatever it raises when it is asked, a run goes on: this
    checkpoint is not exact then.
    """
    try:
        state = native.get_state(env) if native.has_state(env) else None
        json.dumps(plain(state[1]) if state else {}, allow_nan=False)
        return Root(plain(origin), plain(generator_state(generator_of(env))), state)
    except Exception as error:
        return Root({"lost": unreadable(error)}, {}, None)


def unreadable(error: Exception) -> str:
    """Why an environment cannot be brought back, given what it raised when it was asked."""
    return f"its state cannot be read: {type(error).__name__}: {error}"


def replay(env: gym.Env, origin: dict[str, Any], actions: list[Any]) -> tuple[Any, bool]:
    """The observation, and whether the episode has ended, after stepping these actions from that
    origin.
    """
    if "seed" in origin:
        observation, _ = env.reset(seed=origin["seed"])
    else:
        try:
            set_generator_state(generator_of(env), origin["generator"])
        except (TypeError, ValueError):  # of another kind: some environments make their own in their first reset
            env.reset(seed=0)
            set_generator_state(generator_of(env), origin["generator"])
        observation, _ = env.reset()
    ended = False
    for action in actions:
        observation, _, terminated, truncated, _ = env.step(action)
        ended = bool(terminated or truncated)
    return observation, ended


def load_single(env: gym.Env, snapshot: Snapshot, index: int) -> str:
    """Put one environment where it was by its native state; what went wrong, if anything."""
    arrays, values = snapshot.arrays_under(f"states/{index}/"), snapshot.values["states"][index]
    env.reset(seed=0)  # whatever reset initialises besides the state
    native.set_state(env, arrays, values)
    set_generator_state(generator_of(env), snapshot.values["generators"][index])
    found, found_values = native.get_state(env)
    same = found.keys() == arrays.keys() and all(
        array.tobytes() == arrays[name].tobytes() for name, array in found.items()
    )
    return "" if same and plain(found_values) == values else "its state was set and read again, and is another"


def generator_of(env: gym.Env) -> Generator:
    """What the environment draws from; TypeError if it is no generator of NumPy's."""
    generator: Any = env.unwrapped.np_random
    if not isinstance(generator, Generator):
        raise TypeError(f"np_random is {generator!r}, not a Generator or RandomState of NumPy's")
    return generator


def generator_state(generator: Generator) -> dict[str, Any]:
    """A generator's state, to be made plain before it is written."""
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state  # type: ignore[return-value]


def set_generator_state(generator: Generator, state: dict[str, Any]) -> None:
    if isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def plain(value: Any) -> Any:
    """The value with arrays as lists and NumPy numbers as Python's: JSON, whose integers have no
    limit in Python.
    """
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def is_native(vector_env: gym.vector.VectorEnv) -> TypeGuard[CartPoleVectorEnv]:
    """Whether the state of this vector environment can be copied. A wrapper around it may have
    state of its own.
    """
    return type(vector_env) is CartPoleVectorEnv


def save_native(env: CartPoleVectorEnv) -> Snapshot:
    """CartPole's arrays and its one generator for all environments."""
    if env.state is None:
        return Snapshot(exact=False, reason="the environments have not been reset yet")
    arrays = {"state": env.state.copy(), "steps": env.steps.copy(), "prev_done": env.prev_done.copy()}
    return Snapshot(arrays, {"tier": "native", "generator": plain(generator_state(env.np_random))})


def load_native(env: CartPoleVectorEnv, snapshot: Snapshot) -> None:
    env.reset(seed=0)  # whatever reset initialises besides the state
    env.state = snapshot.arrays["state"].copy()  # type: ignore[assignment]
    env.steps = snapshot.arrays["steps"].copy()
    env.prev_done = snapshot.arrays["prev_done"].copy()
    set_generator_state(env.np_random, snapshot.values["generator"])


def same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray], rows: Any) -> bool:
    """Whether these rows of the arrays are the same to the bit: NaN equals itself, 0.0 is not
    -0.0.
    """
    return all(array[rows].tobytes() == right[name][rows].tobytes() for name, array in left.items())


def fresh_start(snapshot: Snapshot) -> tuple[int, str]:
    """For environments that cannot get back to the snapshot: a seed whose episodes the run has not
    seen, and why it is needed.
    """
    seed = derived_seeds([snapshot.values.get("seed", 0), snapshot.values.get("clock", 0)], 1)[0]
    return seed, snapshot.reason or "the snapshot is of another kind of environments"


def describe(problems: list[str]) -> tuple[np.ndarray, str]:
    """[B] which environments began a new episode, and one sentence for people; "" if none did."""
    fresh = np.array([bool(problem) for problem in problems])
    if not fresh.any():
        return fresh, ""
    index = int(np.argmax(fresh))
    which = f"environment {index}" if fresh.sum() == 1 else f"{fresh.sum()} environments, {index} the first of them,"
    return fresh, f"this resume is not exact: {which} began a new episode; {problems[index]}"
