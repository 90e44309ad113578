"""Q networks for Discrete actions, with ε-greedy acting and the values of actions."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from birl.config import ConfigError
from birl.envs.spaces import shown
from birl.maths.exploration import epsilon_greedy, greedy_actions
from birl.maths.value_distributions import (
    CategoricalValues,
    QuantileValues,
    ScalarValues,
    ValueDistribution,
    atoms,
    midpoints,
)
from birl.nets.layers import Linear, make_linear
from birl.nets.models import Inside, Trunk, make_trunk
from birl.nets.normalize import normalize_observations
from birl.nets.recurrent import rollout_resets
from birl.parts import NetworkConfig, ValueConfig
from birl.types import Action, PyTree, Rollout


class QNetworkLike(Protocol):
    """The interface of a Q network; you can write your own as an Equinox module.

    It returns Q(s, ·) [T, B, A], or a distribution of it, and the new memory.
    """

    def initial_memory(self, num_envs: int) -> PyTree: ...

    def __call__(self, observations: PyTree, memory: PyTree, resets: Array) -> tuple[Any, PyTree]: ...


MakeQNetwork = Callable[[np.random.Generator, gym.Space, gym.Space], QNetworkLike]


class QNetwork(eqx.Module):
    """The values of all actions: their means, quantiles or probabilities.

    Dueling: V(s) + A(s, ·) - mean A(s, ·), of each quantile or logit.
    """

    trunk: Trunk
    head: Linear
    value_head: Linear | None  # None: not dueling
    kind: ValueConfig = eqx.field(static=True, default=ValueConfig())

    def initial_memory(self, num_envs: int) -> PyTree:
        return self.trunk.core.initial_memory(num_envs)

    def __call__(
        self, observations: PyTree, memory: PyTree, resets: Bool[Array, "T B"]
    ) -> tuple[ValueDistribution, PyTree]:
        features, memory = self.trunk(observations, memory, resets)
        each = outputs_each(self.kind)
        outputs = self.head(features).reshape(*resets.shape, -1, each)  # [T, B, A, K]
        if self.value_head is not None:
            values = self.value_head(features)[..., None, :]
            outputs = outputs - outputs.mean(-2, keepdims=True) + values  # Wang et al. 2016, eq. 9
        return distribution_of(outputs, self.kind), memory


def outputs_each(kind: ValueConfig) -> int:
    """K: outputs for each action."""
    return {"mean": 1, "quantiles": kind.num_quantiles, "categorical": kind.num_atoms}[kind.values]


def distribution_of(outputs: Float[Array, "*batch A K"], kind: ValueConfig) -> ValueDistribution:
    """A network's outputs as what they stand for."""
    match kind.values:
        case "quantiles":
            return QuantileValues(outputs, midpoints(kind.num_quantiles))
        case "categorical":
            return CategoricalValues(outputs, atoms(kind.value_min, kind.value_max, kind.num_atoms))
        case _:
            return ScalarValues(outputs[..., 0])


def make_q_network(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    network: NetworkConfig,
    kind: ValueConfig = ValueConfig(),  # noqa: B008  # frozen
) -> QNetwork:
    """A QNetwork for these spaces; orthogonal weights, scale √2 in hidden layers, 1 in heads."""
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(f"action space {shown(action_space)} is not Discrete; a Q network needs Discrete actions")
    trunk = make_trunk(rng, observation_space, network)
    each = outputs_each(kind)
    head = make_linear(rng, trunk.core.size, int(action_space.n) * each, scale=1.0)
    return QNetwork(trunk, head, make_linear(rng, trunk.core.size, each, scale=1.0) if kind.dueling else None, kind)


def values_of(
    network: QNetworkLike, observations: PyTree, memory: PyTree, resets: Array
) -> tuple[ValueDistribution, PyTree]:
    """The values of all actions, and the new memory; a network of your own may return means."""
    values, memory = network(observations, memory, resets)
    return (ScalarValues(values) if isinstance(values, jax.Array | np.ndarray) else values), memory


def values_here(network: QNetworkLike, observations: PyTree, memory: PyTree, resets: Array) -> tuple[Any, PyTree]:
    """The same for B observations instead of [T, B]."""
    one_step = jax.tree.map(lambda x: x[None], observations)
    values, memory = values_of(network, one_step, memory, resets[None])
    return values.rows(0), memory


@jax.jit
def act(
    policy: PyTree, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None, key: Array | None
) -> Action:
    """ε-greedy actions for B observations; greedy actions if there is no key."""
    network, moments, epsilon = policy
    values, memory = values_here(network, normalize_observations(moments, observations), memory, resets)
    # Without a key ε is 0: for ε = 1 the mode would not be the greedy action.
    behaviour = epsilon_greedy(values.mean(), 0.0 if key is None else epsilon, action_masks)
    actions = behaviour.mode() if key is None else behaviour.sample(key)
    return Action(actions, memory)


def rollout_values(network: QNetworkLike, moments: PyTree, rollout: Rollout) -> Float[Array, "T+1 B A"]:
    """Q(s, ·) at every observation of a rollout, starting from its memory."""
    observations = normalize_observations(moments, rollout.observations)
    return values_of(network, observations, rollout.memory, rollout_resets(rollout))[0].mean()


def q_of_actions(action_values: Float[Array, "*batch A"], actions: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Q(s, a) of the given actions."""
    return jnp.take_along_axis(action_values, actions[..., None], axis=-1)[..., 0]


def double_q_values(
    selector_values: Float[Array, "*batch A"],
    target_values: Float[Array, "*batch A"],
    action_masks: Bool[Array, "*batch A"] | None,
) -> Float[Array, "*batch"]:
    """The target network's values of the best actions by `selector_values`.

    Double DQN selects by the online network's values (van Hasselt et al. 2016). With
    `target_values` as `selector_values` this is the maximum of plain DQN.
    """
    return q_of_actions(target_values, greedy_actions(selector_values, action_masks))


def max_q_values(
    action_values: Float[Array, "*batch A"], action_masks: Bool[Array, "*batch A"] | None
) -> Float[Array, "*batch"]:
    """max Q(s, ·) over the allowed actions."""
    return double_q_values(action_values, action_values, action_masks)


def values_after_burn_in(
    network: QNetworkLike, observations: PyTree, memory: PyTree, resets: Array, burn_in: int
) -> ValueDistribution:
    """Action values after the burn-in, which only computes the memory that they start from."""
    if burn_in:
        _, memory = jax.lax.stop_gradient(
            network(jax.tree.map(lambda x: x[:burn_in], observations), memory, resets[:burn_in])
        )
    return values_of(network, jax.tree.map(lambda x: x[burn_in:], observations), memory, resets[burn_in:])[0]


class QPolicy(NamedTuple):
    """A Q network, of which the actions are ε-greedy."""

    network: QNetworkLike
    moments: PyTree
    epsilon: ArrayLike

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """Q(s, ·), of forbidden actions too."""
        observations = normalize_observations(self.moments, observations)
        return Inside(None, values_here(self.network, observations, memory, resets)[0].mean())
