"""Environments to a Snapshot and back, for exact resume.

Nothing is pickled: MuJoCo, ALE and LunarLander cannot be. There are three tiers:

- native: the state itself is copied. Either a whole vector environment, or each single
  environment (EACH), if native.py knows it.
- replay (REPLAY): the generator is set to where it was before the reset, the logged actions are
  stepped again, and the result is compared with what was saved.
- fresh: new episodes begin, and a warning says so.
"""

import json
import warnings
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from birl.envs import native
from birl.envs.attributes import Attributes, apply_attributes
from birl.envs.native import generator_of, generator_state, plain, set_generator_state
from birl.envs.spaces import action_dtype, action_shape, derived_seeds
from birl.errors import InexactResume
from birl.types import Envs, PyTree, Snapshot

REPLAY = "replay"  # tier of environments stepped one by one whose running episodes are stepped again
EACH = "each"  # tier of environments stepped one by one whose states are all copied
ATTRIBUTES = "attributes"  # what was set in the environments: in values for the next episodes, in an origin for its own
BEGUN_WITH = "begun_with"  # in values of tier EACH: the attributes that each episode began with
ACTION_LIMIT = 100_000  # logged actions; a longer episode cannot be replayed, so its resume is not exact


class SavedEnv(NamedTuple):
    """Everything needed to restore one environment, as arrays and plain JSON values."""

    origin: dict[str, Any]  # what its episode began from, as `origin_of` returns it
    generator: dict[str, Any]  # the state of its np_random now
    state: native.State | None  # everything else, if it can be read: then no actions are needed


class ActionLog:
    """Everything needed to replay the running episodes: how each began, and the actions since."""

    def __init__(self, num_envs: int, limit: int = ACTION_LIMIT) -> None:
        self.limit = limit
        self.clock = 0  # steps taken so far
        self.starts = [0] * num_envs  # the clock at each episode's first action
        self.origins: list[dict[str, Any]] = [{}] * num_envs
        self.actions: deque[np.ndarray] = deque(maxlen=limit)  # since the start of the longest running episode

    def append(self, actions: np.ndarray) -> None:
        """Log the actions of one step of all environments."""
        self.actions.append(actions)
        self.clock += 1

    def begin(self, index: int, origin: dict[str, Any]) -> None:
        """Note that environment `index` starts an episode now, from what `origin_of` returned."""
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
        """The log as arrays and as plain JSON values.

        `blank` has the shape and dtype of one step's actions.
        """
        actions = np.stack(self.actions) if self.actions else np.empty((0, *blank.shape), blank.dtype)
        arrays = {"actions": actions, "starts": np.array(self.starts, np.int64)}
        return arrays, {"clock": self.clock}

    @classmethod
    def load(cls, snapshot: Snapshot, limit: int = ACTION_LIMIT) -> "ActionLog":
        """The log as it was when the snapshot was taken."""
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
    saved: list[SavedEnv],
    observations: dict[str, np.ndarray],
    ended: np.ndarray,
    masks: np.ndarray | None,
    attributes: Attributes,
) -> Snapshot:
    """The snapshot of environments stepped one by one: their states, or else the log to replay."""
    states = [env.state for env in saved if env.state is not None]
    reason = ""
    if len(states) == len(saved):
        arrays = {
            f"states/{index}/{name}": array for index, (own, _) in enumerate(states) for name, array in own.items()
        }
        values: dict[str, Any] = {"tier": EACH, "clock": log.clock, "states": [own for _, own in states]}
        begun_with = [env.origin.get(ATTRIBUTES, {}) for env in saved]
        values |= {BEGUN_WITH: begun_with} if any(begun_with) else {}
    else:
        blank = np.zeros((len(ended), *action_shape(action_space)), action_dtype(action_space))
        arrays, values = log.save(blank)
        values |= {"tier": REPLAY, "origins": [env.origin for env in saved]}
        too_long = log.too_long()
        reasons = [f"environments {too_long} are in an episode of more than {log.limit} steps"] if too_long else []
        reason = "; ".join([*reasons, *dict.fromkeys(env.origin["lost"] for env in saved if "lost" in env.origin)])
    arrays |= {f"observations/{name}": array.copy() for name, array in observations.items()} | {"ended": ended.copy()}
    if masks is not None:
        arrays["masks"] = masks.copy()
    values |= {"seed": seed, "generators": [env.generator for env in saved]}
    values |= {ATTRIBUTES: attributes} if attributes else {}
    return Snapshot(arrays, values, exact=not reason, reason=reason)


def part_of(snapshot: Snapshot, rows: slice) -> Snapshot:
    """The snapshot of only the environments in these rows."""
    shared = {name: array for name, array in snapshot.arrays.items() if not name.startswith("states/")}
    arrays = {name: array[:, rows] if name == "actions" else array[rows] for name, array in shared.items()}
    per_env = {
        name: snapshot.values[name][rows]
        for name in ("origins", "generators", "states", BEGUN_WITH)
        if name in snapshot.values
    }
    for number, index in enumerate(range(*rows.indices(len(snapshot.arrays["ended"])))):
        own = snapshot.arrays_under(f"states/{index}/")
        arrays |= {f"states/{number}/{name}": array for name, array in own.items()}
    return Snapshot(arrays, snapshot.values | per_env, snapshot.exact, snapshot.reason)


def origin_of(env: gym.Env, seed: int | None, attributes: Attributes) -> dict[str, Any]:
    """The origin of the next episode: {"seed": n} or {"generator": its state}, and attributes.

    {"lost": why} if the episode cannot be replayed.
    """
    set_before = {ATTRIBUTES: attributes} if attributes else {}
    if seed is not None:
        return {"seed": seed} | set_before
    try:
        hidden = native.hidden_randomness(env)
        return ({"lost": hidden} if hidden else {"generator": generator_state(generator_of(env))}) | set_before
    except Exception as error:
        return {"lost": unreadable(error)}


def save_env(env: gym.Env, origin: dict[str, Any]) -> SavedEnv:
    """Everything needed to restore this environment.

    If that raises, the run continues, and this checkpoint is not exact.
    """
    try:
        state = native.get_state(env) if native.has_state(env) else None
        json.dumps(plain(state[1]) if state else {}, allow_nan=False)
        return SavedEnv(plain(origin), plain(generator_state(generator_of(env))), state)
    except Exception as error:
        return SavedEnv({"lost": unreadable(error)}, {}, None)


def unreadable(error: Exception) -> str:
    """The reason why an environment cannot be restored: the error when its state was read."""
    return f"its state cannot be read: {type(error).__name__}: {error}"


def replay(env: gym.Env, origin: dict[str, Any], actions: list[Any]) -> tuple[Any, bool]:
    """The last observation, and whether the episode ended, after these actions from the origin."""
    apply_attributes(env, origin.get(ATTRIBUTES, {}))
    if "seed" in origin:
        observation, _ = env.reset(seed=origin["seed"])
    else:
        try:
            set_generator_state(generator_of(env), origin["generator"])
        except (TypeError, ValueError):  # some environments make their own kind of generator in their first reset
            env.reset(seed=0)
            set_generator_state(generator_of(env), origin["generator"])
        observation, _ = env.reset()
    ended = False
    for action in actions:
        observation, _, terminated, truncated, _ = env.step(action)
        ended = bool(terminated or truncated)
    return observation, ended


def load_single(env: gym.Env, snapshot: Snapshot, index: int) -> str:
    """Set environment `index` to its saved state; returns what went wrong, or ""."""
    arrays = snapshot.arrays_under(f"states/{index}/")
    values = snapshot.values["states"][index]
    if BEGUN_WITH in snapshot.values:
        apply_attributes(env, snapshot.values[BEGUN_WITH][index])
    env.reset(seed=0)  # sets up whatever is not part of the state
    native.set_state(env, arrays, values)
    set_generator_state(generator_of(env), snapshot.values["generators"][index])
    found, found_values = native.get_state(env)
    same = found.keys() == arrays.keys() and all(
        array.tobytes() == arrays[name].tobytes() for name, array in found.items()
    )
    return "" if same and plain(found_values) == values else "its state was set, and a different one was read back"


def same_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray], rows: Any) -> bool:
    """True if these rows are equal bit for bit: NaN equals NaN, 0.0 differs from -0.0."""
    return all(array[rows].tobytes() == right[name][rows].tobytes() for name, array in left.items())


def same_tree(left: Any, right: Any) -> bool:
    """True if two trees of arrays are equal bit for bit."""
    if isinstance(left, dict):
        return all(same_tree(left[name], right[name]) for name in left)
    if isinstance(left, tuple):
        return all(map(same_tree, left, right))
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()


def require_same_number(saved: int, envs: Envs) -> None:
    """Raise ValueError unless a snapshot has as many environments as there are."""
    if saved != envs.num_envs:
        raise ValueError(f"the snapshot has {saved} environments, not {envs.num_envs}; use its num_envs")


def begin_new_episodes(envs: Envs, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
    """Reset environments that a snapshot cannot restore, with a seed that the run has not had."""
    seed = derived_seeds([snapshot.values.get("seed", 0), snapshot.values.get("clock", 0)], 1)[0]
    start = envs.reset(seed)
    note_problems(envs, [snapshot.reason or "the snapshot is of another kind of environments"] * envs.num_envs)
    return start


def note_problems(envs: Envs, problems: list[str]) -> None:
    """Note which environments began a new episode and why ("" if one did not), and warn of it."""
    envs.fresh = np.array([bool(problem) for problem in problems])
    envs.restore_problem = ""
    if envs.fresh.any():
        index = int(np.argmax(envs.fresh))
        count = envs.fresh.sum()
        which = f"environment {index}" if count == 1 else f"{count} environments ({index} is the first)"
        envs.restore_problem = f"this resume is not exact: {which} began a new episode; {problems[index]}"
        warnings.warn(envs.restore_problem, InexactResume, stacklevel=3)
