"""What the tests of all suites' adapters do: play through copies, as training does."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from birl.config import EnvConfig
from birl.envs.compiled.copies import CompiledCopies, copies_of
from birl.types import Step


class Played(NamedTuple):
    """T steps of B copies."""

    steps: Step  # [T, B, ...]
    states: Any  # [T, B, ...] after each step
    begun: Any  # [B, ...] observations at the beginning


def play(copies: CompiledCopies, action: Any, steps: int, seed: int = 0) -> Played:
    """The same action again and again, in one compiled program."""
    shape = copies.env.action_space.shape or ()
    actions = jnp.broadcast_to(jnp.asarray(action), (copies.num_envs, *shape))

    def one(now: Any, _: None) -> tuple[Any, Any]:
        now, step = copies.step(now, actions)
        return now, (step, now.states)

    def run(key: Any) -> Any:
        first = copies.reset(key)
        return first.observations, jax.lax.scan(one, first, length=steps)[1]

    begun, (played, states) = jax.jit(run)(jax.random.PRNGKey(seed))
    return jax.tree.map(np.asarray, Played(played, states, begun))


def play_id(env_id: str, action: Any, steps: int, seed: int = 0, num_envs: int = 4, **settings: Any) -> Played:
    return play(copies_of(EnvConfig(env_id, num_envs=num_envs, **settings)), action, steps, seed)


def first_end(ends: np.ndarray) -> int:
    """The index of the first step at which copy 0's episode is over."""
    assert ends[:, 0].any()
    return int(ends[:, 0].argmax())


def require_same_for_same_key(env_id: str, action: Any, **settings: Any) -> None:
    """Same key, same trajectory; another key, another one."""
    first, again, other = (play_id(env_id, action, 12, seed, **settings) for seed in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    pairs = zip(jax.tree.leaves(first.states), jax.tree.leaves(other.states), strict=True)
    assert any(not np.array_equal(ours, theirs) for ours, theirs in pairs)
