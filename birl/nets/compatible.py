"""A linear actor and its compatible critic (Silver et al. 2014)."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import gymnasium as gym
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.nets.allowance import spend
from birl.nets.encoders import Encoder, make_encoder
from birl.nets.heads import ActionBounds, bounds_of
from birl.nets.layers import zeros
from birl.nets.models import Inside
from birl.nets.normalize import normalize_observations
from birl.types import PyTree

FeaturesName = Literal["linear", "quadratic", "fourier"]
Features = Callable[[PyTree], Float[Array, "*batch F"]]


class LinearFeatures(eqx.Module):
    """The observation as a vector x, and a constant 1."""

    encoder: Encoder

    def __call__(self, observations: PyTree) -> Float[Array, "*batch F"]:
        x = self.encoder(observations)
        return jnp.concatenate([x, jnp.ones_like(x[..., :1])], axis=-1)


class QuadraticFeatures(eqx.Module):
    """Every product x_i x_j once, every x_i, and a constant 1.

    With linear dynamics and quadratic costs, the value of a linear policy is linear in them.
    """

    encoder: Encoder

    def __call__(self, observations: PyTree) -> Float[Array, "*batch F"]:
        x = self.encoder(observations)
        first, second = np.triu_indices(x.shape[-1])
        return jnp.concatenate([x[..., first] * x[..., second], x, jnp.ones_like(x[..., :1])], axis=-1)


class FourierFeatures(eqx.Module):
    """√(2/F) cos(Ωx + b): random Fourier features (Rahimi and Recht 2007, algorithm 1).

    Their dot products approximate exp(-|x - y|² / 2ℓ²), so their total length is about 1.
    """

    encoder: Encoder
    frequencies: Float[Array, "N F"]  # Ω, normal with deviation 1/ℓ
    phases: Float[Array, " F"]  # b, uniform from 0 to 2π

    def __call__(self, observations: PyTree) -> Float[Array, "*batch F"]:
        x = self.encoder(observations)
        return np.float32(np.sqrt(2 / self.phases.size)) * jnp.cos(x @ self.frequencies + self.phases)


def make_features(
    rng: np.random.Generator, space: gym.Space, name: FeaturesName, count: int, scale: float
) -> tuple[Features, int]:
    """The features `name` for observations of this space, and their number.

    `count` and `scale` ℓ are for Fourier features only.
    """
    encoder, width = make_encoder(rng, space, "mlp", (), "tanh")  # no layers: the observation as a vector
    match name:
        case "linear":
            return LinearFeatures(encoder), width + 1
        case "quadratic":
            return QuadraticFeatures(encoder), width * (width + 1) // 2 + width + 1
        case "fourier":
            spend(width * count)
            frequencies = rng.standard_normal((width, count), np.float32) / np.float32(scale)
            phases = rng.uniform(0, 2 * np.pi, count).astype(np.float32)
            return FourierFeatures(encoder, jnp.asarray(frequencies), jnp.asarray(phases)), count


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


class CompatiblePolicy(NamedTuple):
    """DPG's linear actor with its compatible critic."""

    network: CompatibleActorCritic
    moments: PyTree
    noise: Array

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """V(s) = Q(s, μ(s))."""
        return Inside(None, self.network.values(normalize_observations(self.moments, observations)))
