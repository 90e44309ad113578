"""The types that every part of Birl shares. Axes: T time, B environments, always [T, B, ...]."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

Array = Any  # a JAX or NumPy array: rollouts are filled in NumPy and learned from in JAX
PyTree = Any
Metrics = dict[str, Any]  # scalars by name: arrays inside `update`, floats outside
NEW_EPISODES = "new_episodes"  # in a Snapshot's values: a seed; the environments begin new episodes with it
NOT_SAID = -1  # in `successes`: the environment did not say, or no episode ended


class Rollout(NamedTuple):
    """T steps of B environments, in Gymnasium's NEXT_STEP order.

    The step after an episode's end is the environment's own reset. Its row has valid = 0, its
    action was ignored, and it leads from the last observation of one episode to the first of the
    next.
    """

    observations: PyTree  # [T+1, B, ...]; on a valid row, observations[t+1] is the true successor of observations[t]
    actions: PyTree  # [T, B, ...]
    rewards: Array  # [T, B]
    terminated: Array  # [T, B] the episode ended: nothing follows, the bootstrap is zero
    truncated: Array  # [T, B] the episode was cut: bootstrap from observations[t+1]
    valid: Array  # [T, B] 0 on the step in which the environment reset itself: not a transition
    memory: PyTree  # [B, ...] before step 0; () if feed-forward
    action_masks: Array | None = None  # [T+1, B, A] true where an action is allowed; None: all are
    behaviour: PyTree = None  # [T, B, ...] the distributions that actions were sampled from, if kept
    game_over: Array | None = None  # [T, B] as in Step; for episode statistics only
    resets: Array | None = None  # [B] true where row 0 begins an episode; None: nowhere
    extras: list[PyTree] | None = None  # T entries: the Action.extras of each step
    successes: Array | None = None  # [T, B] as in Step; for episode statistics only


class Transitions(NamedTuple):
    """Transitions sampled from a replay, each with up to n rewards; arrays of one leading shape."""

    observations: PyTree
    actions: PyTree
    rewards: Array  # r_t + γ r_{t+1} + ..., n of them, or up to the episode's end
    discounts: Array  # γᵏ after k rewards, the factor of the bootstrap; 0 if the episode terminated
    next_observations: PyTree  # the true successor of the last of those steps
    action_masks: Array | None = None  # true where an action is allowed; None: all are
    next_action_masks: Array | None = None  # the same of next_observations


class Action(NamedTuple):
    """The result of `act` for B observations."""

    actions: PyTree  # [B, ...]
    memory: PyTree
    behaviour: PyTree = None  # [B, ...] the distribution that the actions were sampled from
    extras: PyTree = None  # anything that `update` should get back in Rollout.extras


# policy, observations, memory, resets, action masks, key; without a key the most likely actions
Act = Callable[[PyTree, PyTree, PyTree, Array, Array | None, Array | None], Action]
# step of the rollout, observations, memory, resets, action masks
ActAt = Callable[[int, PyTree, PyTree, Array, Array | None], Action]


class StartActing(Protocol):
    """How to act in the next rollout, with a random key for every `steps_per_key` steps."""

    def __call__(self, policy: PyTree, key: Array, steps_per_key: int = 1) -> ActAt: ...


class Step(NamedTuple):
    """The result of one step of B environments."""

    observations: PyTree  # [B, ...] the true successors, also at an episode's end
    rewards: Array  # [B] float32
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool; false where terminated: if both are set, terminated wins
    valid: Array  # [B] bool; false where the environment used this step to reset itself
    action_masks: Array | None = None  # [B, A] bool, for the next action
    game_over: Array | None = None  # [B] bool, where an episode is one life: the whole game ended, or began
    successes: Array | None = None  # [B] int8 at an episode's end: 1, 0, or NOT_SAID; None: nobody said


@dataclass(frozen=True)
class Snapshot:
    """Everything outside State that a checkpoint needs: environments, memory, replay, counters."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # plain JSON: numbers, strings, lists, dicts
    exact: bool = True  # False: the environments cannot be restored and will be reset
    reason: str = ""  # why not exact

    def arrays_under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with this prefix, by the rest of their names."""
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}

    def array_like(self, name: str, template: np.ndarray) -> np.ndarray:
        """A copy of an array; ValueError unless it has the template's shape and type."""
        saved = self.arrays[name]
        if (saved.shape, saved.dtype) != (template.shape, template.dtype):
            raise ValueError(f"{name} is {saved.dtype}{saved.shape}, not {template.dtype}{template.shape}")
        return saved.copy()


@runtime_checkable
class Envs(Protocol):
    """B environments that step together, in the one episode convention (see Rollout)."""

    num_envs: int
    observation_space: Any  # of one environment
    action_space: Any  # of one environment, with its own start; `step` takes choices counted from 0
    has_lives: bool  # an episode may be one life of a game: steps have game_over
    fresh: np.ndarray  # [B] where the last restore had to begin a new episode
    restore_problem: str  # why it had to; "" if it did not

    def reset(self, seed: int) -> tuple[PyTree, np.ndarray | None]:
        """First observations [B, ...] and action masks [B, A] or None."""

    def step(self, actions: PyTree) -> Step: ...

    def snapshot(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot) -> tuple[PyTree, np.ndarray | None]:
        """Go back to the snapshot; the observations and action masks there."""

    def close(self) -> None: ...


SetEnvAttribute = Callable[[str, Any], None]  # name, value: plain JSON data


@runtime_checkable
class HasAttributes(Protocol):
    """Environments whose attributes can be set during training."""

    def set_attribute(self, name: str, value: Any) -> None:
        """Set an attribute of every environment; in Birl's own when its next episode begins."""


@runtime_checkable
class HasGoals(Protocol):
    """Environments with goals, which can say what another goal would have been worth."""

    def require_goals(self) -> None:
        """Raise ConfigError if the environments have no `compute_reward`."""

    def goal_outcomes(self, achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """[N] rewards and terminations for reaching these goals [N, ...] while others were desired.

        None in place of terminations: the goal does not end an episode.
        """


class Update(NamedTuple):
    """What `train` yields after each update: the moment at which checkpoints are taken."""

    state: Any  # the algorithm's State: networks, optimiser, counters, random key
    metrics: Metrics
    snapshot: Callable[[], Snapshot]  # call it before asking for the next update
    replay: Any = None  # a rollouts.user_replay.UserReplay, if the algorithm learns from a replay
    set_env_attribute: SetEnvAttribute | None = None  # ConfigError if the environments cannot be reached

    def __repr__(self) -> str:  # without the state, which has millions of numbers
        metrics = ", ".join(f"{name!r}: {value:.4g}" for name, value in self.metrics.items())
        counts = f"env_steps={int(self.state.env_steps)}, updates={int(self.state.updates)}"
        return f"Update({counts}, metrics={{{metrics}}})"


AnyState = TypeVar("AnyState")


class Source(Protocol):
    """Where a cycle gets its rollouts: environments on the host, or in the same program."""

    replay: Any  # past rollouts, a rollouts.replay.Replay; None if the algorithm does not keep them

    def collect(self, policy: PyTree, key: Array, steps_per_key: Any = 1) -> Rollout:
        """The next rollout, ready to learn from; a new random key every `steps_per_key` steps."""

    def learn(
        self, update: Callable[..., Any], state: AnyState, rollout: Rollout, config: Any
    ) -> tuple[AnyState, Metrics]:
        """Add the rollout to the replay, and update the state, with batches if steps are due.

        `update` takes state, rollout, batches or None, and the Config; see rollouts/learning.py.
        """


# One turn of an algorithm's loop: state, source, config -> state, metrics. Where the environments
# are compiled, it is compiled with them.
Cycle = Callable[[AnyState, Source, Any], tuple[AnyState, Metrics]]


class RolloutSource(Protocol):
    """What an algorithm's loop trains with: environments here, in workers, on Ray or compiled."""

    num_envs: int
    spaces: tuple[Any, Any]  # observation space, action space

    def start(
        self, state: AnyState, snapshot: Snapshot | None = None, memory: PyTree = None, behaviour: PyTree = None
    ) -> AnyState:
        """Reset the environments, or restore them; the state, ready to be learned with.

        `memory` is the first memory if it is not the network's own. `behaviour` are zeros like the
        distributions to keep with each step.
        """

    def add_replay(self, replay: Any, keep: Callable[[Rollout], Rollout] = ...) -> None:
        """Keep rollouts, or what `keep` leaves of them, in a replay of these settings.

        It is restored from the snapshot; without one, filled with the transitions of `prefill`.
        """

    def advance(self, cycle: Cycle[AnyState], state: AnyState) -> tuple[AnyState, Metrics]:
        """The state after one cycle or, where they are compiled, several; the newest metrics."""

    def report(self, state: Any, metrics: Metrics) -> Update:
        """The Update to yield: checked metrics, episode statistics, times, a way to snapshot."""


class Algorithm(Protocol):
    """What a module in birl/algos offers. Nothing inherits from this; modules satisfy it."""

    Config: type  # frozen dataclass with env: EnvConfig, run: RunConfig, core, and settings of its own
    State: type  # NamedTuple with network, key, env_steps, updates and what else changes; leaves are arrays
    SUPPORTS: Any  # registry.Supports: action spaces, masks, recurrence, Ray

    def validate(self, config: Any) -> None:
        """Raise ConfigError if these settings cannot work."""

    def init(self, config: Any, observation_space: Any, action_space: Any, make_network: Any = None) -> Any:
        """A fresh State, the same for the same seed."""

    def policy(self, state: Any) -> PyTree:
        """The part of the state that acts."""

    def act(
        self,
        policy: PyTree,
        observations: PyTree,
        memory: PyTree,
        resets: Array,
        action_masks: Array | None,
        key: Array | None,
    ) -> Action:
        """Actions for B observations; the most likely ones if there is no key."""

    def train(
        self,
        config: Any,
        envs: Any = None,
        state: Any = None,
        snapshot: Snapshot | None = None,
        make_network: Any = None,
    ) -> Iterator[Update]:
        """Learn, yielding after each update."""
