"""A linear actor and its compatible critic (Silver et al. 2014)."""

from collections.abc import Callable

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
    """μ(s) = x(s)ᵀΘ and Q(s, a) = (a - μ(s))ᵀ∇μ(s)ᵀw + vᵀφ(s), for actions in [-1, 1].

    As μ is linear, ∇μ(s)ᵀw is x(s)ᵀW, with w written as a matrix W of Θ's shape: the slope of Q in
    each action dimension. In Q, μ(s) is clipped to the bounds, as the action itself is.
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
        """x(s)ᵀΘ: the action before it is clipped to the bounds."""
        return self.actor_features(observations) @ self.theta

    def slopes(self, observations: PyTree) -> Float[Array, "*batch A"]:
        """∇_a Q(s, a), which does not depend on a (Silver et al. 2014, theorem 3, condition 1)."""
        return self.actor_features(observations) @ self.w

    def values(self, observations: PyTree) -> Float[Array, "*batch"]:
        """V(s) = Q(s, μ(s))."""
        return self.critic_features(observations) @ self.v

    def action_values(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch"]:
        """Q(s, a) = (a - μ(s))ᵀ∇μ(s)ᵀw + vᵀφ(s) (Silver et al. 2014, section 4.3)."""
        advantages = jnp.sum(self.deviations(observations, actions) * self.slopes(observations), axis=-1)
        return advantages + self.values(observations)

    def deviations(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Float[Array, "*batch A"]:
        """a - μ(s), with μ(s) clipped to the bounds."""
        return actions - jnp.clip(self.preferred(observations), -1.0, 1.0)

    def feature_lengths(
        self, observations: PyTree, actions: Float[Array, "*batch A"]
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        """|φ(s, a)|² and |φ(s)|²: the squared lengths of the gradients of Q(s, a) in w and in v.

        The gradient in w is φ(s, a) = ∇μ(s)(a - μ(s)).
        """
        deviations = jnp.sum(jnp.square(self.deviations(observations, actions)), axis=-1)
        actor_features = jnp.sum(jnp.square(self.actor_features(observations)), axis=-1)
        return deviations * actor_features, jnp.sum(jnp.square(self.critic_features(observations)), axis=-1)


MakeCompatible = Callable[[np.random.Generator, gym.Space, gym.Space], CompatibleActorCritic]


def make_compatible(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    actor_features: FeaturesName,
    critic_features: FeaturesName,
    num_features: int,
    feature_scale: float,
) -> CompatibleActorCritic:
    """A CompatibleActorCritic for these spaces, with weights of 0.

    At first every action is the middle of its bounds, and every value is 0.
    """
    bounds = bounds_of(action_space)
    features, width = make_features(rng, observation_space, actor_features, num_features, feature_scale)
    value_features, value_width = make_features(rng, observation_space, critic_features, num_features, feature_scale)
    theta, w = zeros(width, bounds.size), zeros(width, bounds.size)
    return CompatibleActorCritic(features, value_features, theta, w, zeros(value_width), bounds)
