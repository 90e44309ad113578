"""The state of one environment itself, read and written, for the simulators and wrappers whose
whole state is known here.

An environment is a chain of wrappers over a simulator. If each link is known, the state of each
goes into a snapshot under the name of its class; if one is not, there is no native state, for
nobody can say what an unknown link keeps. The only file that imports mujoco.
"""

from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from birl.envs.wrappers import HideVelocities, StepTimeout

State = tuple[dict[str, np.ndarray], dict[str, Any]]  # arrays, and plain JSON values

KEEP_NOTHING = (OrderEnforcing, PassiveEnvChecker, HideVelocities, StepTimeout)  # beyond whether they have been reset
MUJOCO, ATARI = "gymnasium.envs.mujoco.", "ale_py.env"  # the modules of the simulators
FORGETFUL = ("miniature_golf",)  # games whose score is lost when ALE 0.12.1 restores a state


@runtime_checkable
class Stateful(Protocol):
    """A wrapper that gives all it keeps between steps, apart from what lies below it."""

    def get_state(self) -> State: ...

    def set_state(self, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None: ...


def has_state(env: gym.Env) -> bool:
    """Whether everything that decides how this environment goes on, but its np_random, can be
    read.
    """
    *wrappers, simulator = _links(env)
    names = {type(link).__name__ for link in wrappers}
    return len(names) == len(wrappers) and all(map(_is_known, wrappers)) and _is_simulator(simulator)


def hidden_randomness(env: gym.Env) -> str:
    """What is drawn in this environment from elsewhere than np_random, so that an episode without a
    seed cannot be lived again; or "".
    """
    simulator: Any = _links(env)[-1]
    sticky = simulator.ale.getFloat("repeat_action_probability") if type(simulator).__module__ == ATARI else 0
    return (
        f"actions stick with a chance of {sticky:g}, drawn by ALE, whose state does not say which one; use 0"
        if sticky
        else ""
    )


def get_state(env: gym.Env) -> State:
    """The state of every link of the chain, named LINK/NAME."""
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {}
    for link in _links(env):
        name = type(link).__name__
        own_arrays, own_values = _get_link(link)
        arrays |= {f"{name}/{key}": array for key, array in own_arrays.items()}
        values |= {f"{name}/{key}": value for key, value in own_values.items()}
    return arrays, values


def set_state(env: gym.Env, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
    """Put an environment, after a reset, where `get_state` was called."""
    for link in _links(env):
        prefix = f"{type(link).__name__}/"
        _set_link(link, _under(arrays, prefix), _under(values, prefix))


def _links(env: gym.Env) -> list[gym.Env]:
    links = [env]
    while isinstance(links[-1], gym.Wrapper):
        links.append(links[-1].env)
    return links


def _is_known(wrapper: gym.Env) -> bool:
    return type(wrapper) in (TimeLimit, *KEEP_NOTHING) or isinstance(wrapper, Stateful)


def _is_simulator(env: Any) -> bool:
    """Gymnasium's own MuJoCo environments, for one derived from them may keep more; ALE's, unless
    actions stick.

    Which action ALE repeats when it sticks to one is not in its state (ale-py 0.12.1,
    ale_state.cpp).
    """
    module = type(env).__module__
    if module == ATARI:
        return env.ale.getFloat("repeat_action_probability") == 0 and env._game not in FORGETFUL
    return module.startswith(MUJOCO)


def _get_link(link: Any) -> State:
    module = type(link).__module__
    if module.startswith(MUJOCO):
        return _get_mujoco(link), {}
    if module == ATARI:
        return {"state": np.frombuffer(link.ale.cloneState(include_rng=True).serialize(), np.uint8)}, {}
    if isinstance(link, TimeLimit):
        return {}, {"elapsed": link._elapsed_steps}
    return link.get_state() if isinstance(link, Stateful) else ({}, {})


def _set_link(link: Any, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
    module = type(link).__module__
    if module.startswith(MUJOCO):
        _set_mujoco(link, arrays)
    elif module == ATARI:
        _set_atari(link, arrays["state"])
    elif isinstance(link, TimeLimit):
        link._elapsed_steps = values["elapsed"]
    elif isinstance(link, Stateful):
        link.set_state(arrays, values)


def _get_mujoco(env: Any) -> dict[str, np.ndarray]:
    """What mj_step reads, the solver's first guess among it, and the positions that rewards are
    differences to.

    Those are of the last frame but one: mj_step finds them, then moves the joints. Found anew they
    would be a frame ahead.
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

    state = ALEState(serialized.tobytes())
    env.ale.restoreState(state)
    env.ale.act(
        Action.NOOP
    )  # right after a reset something is left that a state does not replace: Q*bert went on differently
    env.ale.restoreState(state)


def _under(parts: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)}
