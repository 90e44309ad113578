"""The state of environments, read and set, if the simulator and all wrappers are known here.

Known are single environments of MuJoCo and ALE, and Gymnasium's vector CartPole. A single
environment is a simulator inside a chain of wrappers. If every layer is known, the state of each
goes into the snapshot under the name of its class. If one is unknown it may keep anything, so there
is no native state. This is the only file that imports mujoco.
"""

from typing import Any, Protocol, TypeGuard, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from birl.envs.wrappers import HideVelocities, StepTimeout
from birl.types import Snapshot

State = tuple[dict[str, np.ndarray], dict[str, Any]]  # arrays, and plain JSON values
Generator = np.random.Generator | np.random.RandomState  # dm_control draws from a RandomState

STATELESS = (OrderEnforcing, PassiveEnvChecker, HideVelocities, StepTimeout)  # keep only whether they were reset
MUJOCO = "gymnasium.envs.mujoco."  # start of the modules of Gymnasium's MuJoCo environments
ATARI = "ale_py.env"  # module of ALE's environment
LOSES_SCORE = ("miniature_golf",)  # games whose score ALE 0.12.1 loses when it restores a state


@runtime_checkable
class Stateful(Protocol):
    """A wrapper that can read and set everything it keeps between steps."""

    def get_state(self) -> State: ...

    def set_state(self, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None: ...


def has_state(env: gym.Env) -> bool:
    """True if the whole state of the environment, besides np_random, can be read."""
    *wrappers, simulator = _layers(env)
    names = {type(wrapper).__name__ for wrapper in wrappers}
    return len(names) == len(wrappers) and all(map(_is_known, wrappers)) and _is_simulator(simulator)


def hidden_randomness(env: gym.Env) -> str:
    """The reason why an episode that began without a seed cannot be replayed; "" if it can.

    It cannot if the simulator draws random numbers from elsewhere than np_random.
    """
    simulator: Any = _layers(env)[-1]
    if type(simulator).__module__ != ATARI:
        return ""
    sticky = simulator.ale.getFloat("repeat_action_probability")
    reason = f"ALE repeats actions with probability {sticky:g} and does not save which one it repeats"
    return f"{reason}; use repeat_action_probability 0" if sticky else ""


def get_state(env: gym.Env) -> State:
    """The state of every layer, with names of the form LAYER/NAME."""
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {}
    for layer in _layers(env):
        name = type(layer).__name__
        own_arrays, own_values = _get_layer(layer)
        arrays |= {f"{name}/{key}": array for key, array in own_arrays.items()}
        values |= {f"{name}/{key}": value for key, value in own_values.items()}
    return arrays, values


def set_state(env: gym.Env, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
    """Put an environment, which has been reset, where `get_state` was called."""
    for layer in _layers(env):
        prefix = f"{type(layer).__name__}/"
        _set_layer(layer, _under(arrays, prefix), _under(values, prefix))


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


def is_native(vector_env: gym.vector.VectorEnv) -> TypeGuard[CartPoleVectorEnv]:
    """True if the state of this vector environment can be copied.

    A wrapper around it does not count: it may have state of its own.
    """
    return type(vector_env) is CartPoleVectorEnv


def save_native(env: CartPoleVectorEnv) -> Snapshot:
    """CartPole's arrays, and the one generator that all its environments share."""
    if env.state is None:
        return Snapshot(exact=False, reason="the environments have not been reset yet")
    arrays = {"state": env.state.copy(), "steps": env.steps.copy(), "prev_done": env.prev_done.copy()}
    return Snapshot(arrays, {"tier": "native", "generator": plain(generator_state(env.np_random))})


def load_native(env: CartPoleVectorEnv, snapshot: Snapshot) -> None:
    """Put the environments where they were when `save_native` was called."""
    env.reset(seed=0)  # sets up whatever is not part of the state
    env.state = snapshot.arrays["state"].copy()  # type: ignore[assignment]
    env.steps = snapshot.arrays["steps"].copy()
    env.prev_done = snapshot.arrays["prev_done"].copy()
    set_generator_state(env.np_random, snapshot.values["generator"])


def _layers(env: gym.Env) -> list[gym.Env]:
    """The wrappers from the outside in, then the simulator."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _is_known(wrapper: gym.Env) -> bool:
    return type(wrapper) in (TimeLimit, *STATELESS) or isinstance(wrapper, Stateful)


def _is_simulator(env: Any) -> bool:
    """True for Gymnasium's own MuJoCo environments, and for ALE's without sticky actions.

    A class derived from them may keep more. ALE's state lacks the action that sticky actions repeat
    (ale-py 0.12.1, ale_state.cpp).
    """
    module = type(env).__module__
    if module == ATARI:
        return env.ale.getFloat("repeat_action_probability") == 0 and env._game not in LOSES_SCORE
    return module.startswith(MUJOCO)


def _get_layer(layer: Any) -> State:
    module = type(layer).__module__
    if module.startswith(MUJOCO):
        return _get_mujoco(layer), {}
    if module == ATARI:
        return {"state": np.frombuffer(layer.ale.cloneState(include_rng=True).serialize(), np.uint8)}, {}
    if isinstance(layer, TimeLimit):
        return {}, {"elapsed": layer._elapsed_steps}
    return layer.get_state() if isinstance(layer, Stateful) else ({}, {})


def _set_layer(layer: Any, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
    module = type(layer).__module__
    if module.startswith(MUJOCO):
        _set_mujoco(layer, arrays)
    elif module == ATARI:
        _set_atari(layer, arrays["state"])
    elif isinstance(layer, TimeLimit):
        layer._elapsed_steps = values["elapsed"]
    elif isinstance(layer, Stateful):
        layer.set_state(arrays, values)


def _get_mujoco(env: Any) -> dict[str, np.ndarray]:
    """Everything that mj_step reads, and the body positions that rewards are computed from.

    mj_step computes those positions and then moves the joints. Computing them again here would put
    them one frame ahead.
    """
    import mujoco

    state = np.empty(mujoco.mj_stateSize(env.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(env.model, env.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return {"state": state, "xpos": env.data.xpos.copy(), "xipos": env.data.xipos.copy()}


def _set_mujoco(env: Any, arrays: dict[str, np.ndarray]) -> None:
    import mujoco

    mujoco.mj_setState(env.model, env.data, arrays["state"], mujoco.mjtState.mjSTATE_INTEGRATION)
    env.data.xpos[:] = arrays["xpos"]
    env.data.xipos[:] = arrays["xipos"]


def _set_atari(env: Any, serialized: np.ndarray) -> None:
    from ale_py import Action, ALEState

    try:
        state = ALEState(serialized.tobytes())
        env.ale.restoreState(state)
    except SystemError as problem:  # its own exception has no form in Python
        raise ValueError("ALE cannot read its saved state") from problem
    # A reset leaves something behind that only a frame clears: Q*bert went on differently without.
    env.ale.act(Action.NOOP)
    env.ale.restoreState(state)


def _under(entries: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names start with the prefix, without it."""
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}
