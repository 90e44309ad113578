"""The interface of compiled environments: spaces and two pure functions, for JAX to compile.

Birl makes many copies of it, resets them, counts their steps, gives them random keys, and keeps the
statistics. So an environment defines only how one copy begins and steps.
"""

from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from birl.types import Array, PyTree


@runtime_checkable
class CompiledEnv(Protocol):
    """One environment in JAX. Nothing inherits from this; classes satisfy it.

    Its state is any pytree of arrays, always of the same shapes and types. Observations have the
    shape and the type of `observation_space`. An action is an array of `action_space`: a whole
    number for Discrete, numbers within the bounds for Box. A random key is a JAX array [2] of
    uint32; an environment without randomness ignores it.
    """

    observation_space: gym.Space
    action_space: gym.Space

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        """The state at the beginning of an episode, and its observation."""

    def step(self, state: PyTree, action: PyTree, key: Array) -> tuple[PyTree, PyTree, Array, Array, Array]:
        """The next state, its observation, the reward, `terminated` and `truncated`."""


@runtime_checkable
class HasActionMask(Protocol):
    """An environment in which some actions are not allowed in some states."""

    def action_mask(self, state: PyTree) -> Array:
        """[A] true where a choice is allowed in this state."""


@runtime_checkable
class HasEpisodeLimit(Protocol):
    """An environment whose episodes Birl truncates after a number of steps."""

    max_episode_steps: int | None


@runtime_checkable
class HasRender(Protocol):
    """An environment that can be watched and recorded."""

    def render(self, state: Any) -> np.ndarray:
        """A picture of the state, [height, width, 3] uint8. It is called outside of JAX."""


@runtime_checkable
class HasFrameRate(Protocol):
    """An environment that says how fast its pictures are shown."""

    render_fps: float  # pictures per second, one for each step
