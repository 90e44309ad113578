"""The shapes every part of Birl shares. Axes: T time, B environments, always [T, B, ...]."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

Array = Any  # JAX's or NumPy's: a rollout is filled by one and read by the other
PyTree = Any
Metrics = dict[str, Any]  # scalars by name: arrays while on the device, floats once they are out


class Rollout(NamedTuple):
    """T steps of B environments, in Gymnasium's NEXT_STEP order.

    The step after an episode's end is the environment's own reset: its row has valid = 0, its
    action was ignored, and it leads from the last observation of one episode to the first of the
    next.
    """

    observations: PyTree  # [T+1, B, ...]; observations[t+1] is always the true successor of observations[t]
    actions: PyTree  # [T, B, ...]
    rewards: Array  # [T, B]
    terminated: Array  # [T, B] the episode ended: nothing follows, the bootstrap is zero
    truncated: Array  # [T, B] the episode was cut: bootstrap from observations[t+1]
    valid: Array  # [T, B] 0 on the step in which the environment reset itself: not a transition
    memory: PyTree  # [B, ...] after the step before step 0; () if feed-forward
    action_masks: Array | None = (
        None  # [T+1, B, A] true where an action is allowed, at each observation; None if everything is
    )
    behaviour: PyTree = (
        None  # [T, B, ...] the distributions the actions were drawn from, where an algorithm has them kept
    )
    game_over: Array | None = None  # [T, B] as in Step; counts episodes, and is of no interest to who learns
    resets: Array | None = (
        None  # [B] true where row 0 begins an episode: memory and running returns start anew; None: nowhere
    )
    seen: list[PyTree] | None = (
        None  # T times [1, B, ...] what the policy's encoder made of the observations, where it is kept
    )


class Transitions(NamedTuple):
    """Steps drawn from a replay, each followed for up to n rewards; arrays of one leading shape."""

    observations: PyTree
    actions: PyTree
    rewards: Array  # r_t + γ r_{t+1} + ..., n of them, or up to the episode's end
    discounts: Array  # γᵏ after k rewards: what the value of the next observation counts; 0 if the episode terminated
    next_observations: PyTree  # the true successor of the last of those steps
    next_action_masks: Array | None = None  # true where an action is allowed there; None if everything is


class Action(NamedTuple):
    """What a policy answers to B observations."""

    actions: PyTree  # [B, ...]
    memory: PyTree
    behaviour: PyTree = None  # [B, ...] the distribution they were drawn from; None: of no interest
    seen: tuple[Array | None, ...] | None = (
        None  # [1, B, ...] the outputs of each layer of the encoder; None: of no interest
    )


class Step(NamedTuple):
    """What B environments answer to one step."""

    observations: PyTree  # [B, ...] the true successors, also at an episode's end
    rewards: np.ndarray  # [B] float32
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool; false where terminated: if both are set, terminated wins
    valid: np.ndarray  # [B] bool; false where the environment used this step to reset itself
    action_masks: np.ndarray | None = None  # [B, A] bool, for the next action
    # [B] bool, where an episode may be one life of a game: the whole game ended, or a new one was
    # begun; None: they are the same
    game_over: np.ndarray | None = None


@dataclass(frozen=True)
class Snapshot:
    """What lies outside an algorithm's State and changes: environments, current observations,
    episode counters.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # plain JSON: numbers, strings, lists, dicts
    exact: bool = True  # False: the environments cannot be restored and will start afresh
    reason: str = ""  # why not exact

    def arrays_under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin so, without it."""
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}

    def array_like(self, name: str, template: np.ndarray) -> np.ndarray:
        """A copy of the array of that name; ValueError unless it has the template's shape and
        type.
        """
        saved = self.arrays[name]
        if (saved.shape, saved.dtype) != (template.shape, template.dtype):
            raise ValueError(f"{name} is {saved.dtype}{saved.shape}, not {template.dtype}{template.shape}")
        return saved.copy()


@runtime_checkable
class Envs(Protocol):
    """B environments in step, in the one episode convention (see Rollout)."""

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
        """Put the environments where the snapshot was taken; their current observations and action
        masks.
        """

    def close(self) -> None: ...


class Update(NamedTuple):
    """What `train` yields after each update. Everything is consistent here: this is where
    checkpoints happen.
    """

    state: Any  # the algorithm's State: networks, optimiser, counters, random key
    metrics: Metrics
    snapshot: Callable[[], Snapshot]  # call before asking for the next update: the environments' side of a checkpoint

    def __repr__(self) -> str:  # a state has millions of numbers
        metrics = ", ".join(f"{name!r}: {value:.4g}" for name, value in self.metrics.items())
        return (
            f"Update(env_steps={int(self.state.env_steps)}, updates={int(self.state.updates)}, metrics={{{metrics}}})"
        )


class Algorithm(Protocol):
    """What a module in birl/algos offers. Nothing inherits from this; modules satisfy it."""

    Config: type  # frozen dataclass with env: EnvConfig, run: RunConfig, core, and settings of its own
    State: type  # NamedTuple with network, key, env_steps, updates, and whatever else changes; every leaf is an array

    def validate(self, config: Any) -> None:
        """Raise ConfigError if these settings cannot work."""

    def init(self, config: Any, observation_space: Any, action_space: Any, make_network: Any = None) -> Any:
        """A fresh State, the same for the same seed. The first to use JAX, so it sets JAX up (see
        birl.accel.devices).
        """

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
        """An Action for B observations; the most likely one if there is no key."""

    def train(
        self,
        config: Any,
        envs: Any = None,
        state: Any = None,
        snapshot: Snapshot | None = None,
        make_network: Any = None,
    ) -> Iterator[Update]:
        """Learn, yielding after each update."""
