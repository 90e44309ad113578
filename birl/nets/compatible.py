"""An actor that is linear in features, and the critic that is compatible with it (Silver et al.
2014, section 4.3).
"""

from collections.abc import Callable
from typing import Protocol

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.nets.continuous import ActionBounds, bounds_of
from birl.nets.features import Features, FeaturesName, make_features
from birl.nets.layers import zeros
from birl.types import PyTree


class CompatibleActorCritic(eqx.Module):
    """μ(s) = x(s)ᵀΘ and Q(s, a) = (a - μ(s))ᵀ∇μ(s)ᵀw + vᵀφ(s), of actions on [-1, 1].

    As μ is linear, ∇μ(s)ᵀw is x(s)ᵀW with w written as a matrix W of Θ's shape: the slope of Q in
    each number of the action. Beyond the bounds μ counts as the bound, which is what is done there.
    """

    actor_features: Features  # x(s)
    critic_features: Features  # φ(s)
    theta: Float[Array, "F A"]  # Θ
    w: Float[Array, "F A"]
    v: Float[Array, " K"]
    bounds: ActionBounds

    def initial_memory(self, num_envs: int) -> PyTree:
        return ()

    def preferred(self, observations: PyTree) -> Float[Array, "*batch A"]:
        """x(s)ᵀΘ, which may lie beyond the bounds."""
        return self.actor_features(observations) @ self.theta

    def slopes(self, observations: PyTree) -> Float[Array, "*batch A"]:
        """∇_a Q(s, a), the same for every action (Silver et al. 2014, theorem 3, condition 1)."""
        return self.actor_features(observations) @ self.w

    def values(self, observations: PyTree) -> Float[Array, "*batch"]:
        """V(s), which is Q(s, μ(s))."""
        return self.critic_features(observations) @ self.v

    def action_values(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """Q(s, a)."""
        return jnp.sum(self.away(observations, actions) * self.slopes(observations), axis=-1) + self.values(
            observations
        )

    def away(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """a - μ(s)."""
        return actions - jnp.clip(self.preferred(observations), -1.0, 1.0)

    def feature_lengths(
        self, observations: PyTree, actions: Float[Array, "*batch A"]
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        """|φ(s, a)|², of the gradient ∇μ(s)(a - μ(s)) of Q(s, a) in w, and |φ(s)|², of that in v."""
        lengths = [
            jnp.sum(jnp.square(f), axis=-1)
            for f in (self.away(observations, actions), self.actor_features(observations))
        ]
        return lengths[0] * lengths[1], jnp.sum(jnp.square(self.critic_features(observations)), axis=-1)


MakeCompatible = Callable[[np.random.Generator, gym.Space, gym.Space], CompatibleActorCritic]


class CompatibleSettings(Protocol):
    """The settings of an algorithm's Config that say which features its actor and critic have."""

    @property
    def actor_features(self) -> FeaturesName: ...
    @property
    def critic_features(self) -> FeaturesName: ...
    @property
    def num_features(self) -> int: ...
    @property
    def feature_scale(self) -> float: ...


def make_compatible(
    rng: np.random.Generator, observation_space: gym.Space, action_space: gym.Space, settings: CompatibleSettings
) -> CompatibleActorCritic:
    """A CompatibleActorCritic for these spaces that knows nothing: every action is the middle of
    its bounds, every value 0.
    """
    bounds = bounds_of(action_space)
    shape = settings.num_features, settings.feature_scale
    actor_features, width = make_features(rng, observation_space, settings.actor_features, *shape)
    critic_features, values = make_features(rng, observation_space, settings.critic_features, *shape)
    return CompatibleActorCritic(
        actor_features, critic_features, zeros(width, bounds.size), zeros(width, bounds.size), zeros(values), bounds
    )
