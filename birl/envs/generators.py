"""The state of NumPy's random generators, read and set, in a form that can be written as JSON."""

from typing import Any

import gymnasium as gym
import numpy as np

Generator = np.random.Generator | np.random.RandomState  # dm_control draws from a RandomState


def generator_of(env: gym.Env) -> Generator:
    """The environment's np_random; raises TypeError if it is not one of NumPy's generators."""
    generator: Any = env.unwrapped.np_random
    if not isinstance(generator, Generator):
        raise TypeError(f"np_random is {generator!r}, not a Generator or RandomState of NumPy's")
    return generator


def generator_state(generator: Generator) -> dict[str, Any]:
    """The state of a generator. `plain` makes it JSON."""
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state  # type: ignore[return-value]


def set_generator_state(generator: Generator, state: dict[str, Any]) -> None:
    """Put a generator into a state that `generator_state` returned."""
    if isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def plain(value: Any) -> Any:
    """The value as JSON can hold it: arrays as lists, NumPy numbers as Python's."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
