"""What a Q network returns: for each action the value's mean, its quantiles or its probabilities.

All kinds have the same methods, so that a loss is written once for all of them:

    best = greedy(network(next_observations).mean())
    targets = stop_gradient(target(next_observations).of(best).backup(rewards, discounts))
    losses, priorities = network(observations).of(actions).loss(targets)

`of` drops the action axis; `backup` and `loss` need it dropped. No method stops gradients: that is
for the caller to do with targets. A priority says how wrong a prediction was, for a replay to raise
to its exponent (Schaul et al. 2016, eq. 1).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr
from jaxtyping import Array, Float, Int

from birl.maths.losses import huber

Number = float | Float[Array, ""]
Rows = int | slice | Array | tuple[Array, Array]


class ValueDistribution(Protocol):
    """The values of actions in a batch of states: means, quantiles or probabilities."""

    def mean(self) -> Array: ...
    def rows(self, index: Rows) -> Any: ...
    def of(self, actions: Array) -> Any: ...
    def backup(self, rewards: Array, discounts: Array) -> Any: ...
    def loss(self, targets: Any) -> tuple[Array, Array]: ...


# Fields are typed Any, for JAX also builds these classes with shapes and axes as leaves.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ScalarValues:
    """Expected values alone (Mnih et al. 2015)."""

    values: Any  # [..., A]

    def mean(self) -> Float[Array, "*batch"]:
        """The values."""
        return self.values

    def rows(self, index: Rows) -> "ScalarValues":
        """The part at this index of the first axes."""
        return ScalarValues(self.values[index])

    def of(self, actions: Int[Array, "*batch"]) -> "ScalarValues":
        """[...] the values of these actions."""
        return ScalarValues(jnp.take_along_axis(self.values, actions[..., None], axis=-1)[..., 0])

    def backup(self, rewards: Float[Array, "*batch"], discounts: Float[Array, "*batch"]) -> "ScalarValues":
        """r + γ v."""
        _require_one_shape(self.values.shape, rewards.shape, discounts.shape)
        return ScalarValues(rewards + discounts * self.values)

    def loss(self, targets: "ScalarValues") -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        """The Huber loss of each error δ, and |δ| as its priority."""
        _require_one_shape(self.values.shape, targets.values.shape)
        errors = targets.values - self.values
        return huber(errors), jnp.abs(errors)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantileValues:
    """K quantiles of each value: at fixed fractions (QR-DQN: Dabney et al. 2018, arXiv 1710.10044).

    Or at sampled ones (IQN: Dabney et al. 2018, arXiv 1806.06923).
    """

    values: Any  # [..., A, K]
    fractions: Any  # [K] or [..., K] τ, the same for all actions

    def mean(self) -> Float[Array, "*batch"]:
        """The mean of the quantiles, which estimates the expected value."""
        return self.values.mean(-1)

    def rows(self, index: Rows) -> "QuantileValues":
        """The part at this index of the first axes."""
        return QuantileValues(self.values[index], self.fractions if self.fractions.ndim == 1 else self.fractions[index])

    def of(self, actions: Int[Array, "*batch"]) -> "QuantileValues":
        """[..., K] the quantiles of these actions."""
        return QuantileValues(_of(self.values, actions), self.fractions)

    def backup(self, rewards: Float[Array, "*batch"], discounts: Float[Array, "*batch"]) -> "QuantileValues":
        """r + γ z of every quantile z (Dabney et al. 2018, algorithm 1)."""
        _require_one_shape(self.values.shape[:-1], rewards.shape, discounts.shape)
        return QuantileValues(rewards[..., None] + discounts[..., None] * self.values, self.fractions)

    def loss(self, targets: "QuantileValues") -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        """The quantile Huber loss with κ = 1, which is also the priority.

        The targets may be of another number and at other fractions.
        """
        _require_one_shape(self.values.shape[:-1], targets.values.shape[:-1])
        losses = quantile_huber(self.values, self.fractions, targets.values)
        # As Dopamine does. The difference of the means would be 0 where only the shape is wrong.
        return losses, losses


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CategoricalValues:
    """Probabilities softmax(logits) of K fixed values, the atoms (C51: Bellemare et al. 2017)."""

    logits: Any  # [..., A, K]
    support: Any  # [K] the atoms, evenly spaced and rising

    def mean(self) -> Float[Array, "*batch"]:
        """Σ p z."""
        return jnp.sum(jax.nn.softmax(self.logits) * self.support, axis=-1)

    def rows(self, index: Rows) -> "CategoricalValues":
        """The part at this index of the first axes."""
        return CategoricalValues(self.logits[index], self.support)

    def of(self, actions: Int[Array, "*batch"]) -> "CategoricalValues":
        """[..., K] the logits of these actions."""
        return CategoricalValues(_of(self.logits, actions), self.support)

    def backup(self, rewards: Float[Array, "*batch"], discounts: Float[Array, "*batch"]) -> "Projected":
        """The distribution of r + γ Z, projected on the same atoms."""
        _require_one_shape(self.logits.shape[:-1], rewards.shape, discounts.shape)
        return Projected(project(jax.nn.softmax(self.logits), self.support, rewards, discounts), self.support)

    def loss(self, targets: "Projected") -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
        """The cross-entropy -Σ m log p, and KL(m‖p) as its priority.

        The loss of Bellemare et al. 2017, algorithm 1.
        """
        _require_one_shape(self.logits.shape, targets.probabilities.shape)
        losses = -jnp.sum(targets.probabilities * jax.nn.log_softmax(self.logits), axis=-1)
        # As Hessel et al. 2018. The cross-entropy would add the entropy of m, which stays.
        return losses, jnp.maximum(losses - jnp.sum(entr(targets.probabilities), axis=-1), 0.0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Projected:
    """What CategoricalValues learn to predict: probabilities of the atoms, many of them 0."""

    probabilities: Any  # [..., K]
    support: Any  # [K]

    def mean(self) -> Float[Array, "*batch"]:
        """Σ m z."""
        return jnp.sum(self.probabilities * self.support, axis=-1)

    def rows(self, index: Rows) -> "Projected":
        """The part at this index of the first axes."""
        return Projected(self.probabilities[index], self.support)


def midpoints(count: int) -> Float[Array, " K"]:
    """(i + ½) / K, the fractions of QR-DQN (Dabney et al. 2018, lemma 2)."""
    return jnp.asarray((np.arange(count) + 0.5) / count, jnp.float32)


def atoms(low: Number, high: Number, count: int) -> Float[Array, " K"]:
    """Evenly spaced values from low to high (Bellemare et al. 2017, section 4.1)."""
    if count < 2:
        raise ValueError(f"{count} atoms have no distance to each other; use at least 2, 51 is usual")
    return jnp.linspace(low, high, count, dtype=jnp.float32)


def quantile_huber(
    values: Float[Array, "*batch K"],
    fractions: Float[Array, "*#batch K"],  # τ
    targets: Float[Array, "*batch M"],
    kappa: Number = 1.0,  # κ
) -> Float[Array, "*batch"]:
    """Σ_i E_j |τ_i - 1{u < 0}| L_κ(u) with u = target_j - θ_i (Dabney et al. 2018, eq. 10)."""
    errors = targets[..., None, :] - values[..., :, None]
    weights = jnp.abs(fractions[..., :, None] - (errors < 0))
    return jnp.sum(jnp.mean(weights * huber(errors, kappa), axis=-1), axis=-1)


def project(
    probabilities: Float[Array, "*batch K"],
    support: Float[Array, " K"],  # z
    rewards: Float[Array, "*batch"],
    discounts: Float[Array, "*batch"],  # γ
) -> Float[Array, "*batch K"]:
    """m_i = Σ_j [1 - |clip(r + γ z_j) - z_i| / Δz]₀¹ p_j (Bellemare et al. 2017, eq. 7)."""
    low, numbers = support[0], jnp.arange(support.size)
    spacing = (support[-1] - low) / (support.size - 1)
    # In units of Δz from the lowest atom, where z_j is j: so shares add up to 1 within 1e-7. In the
    # equation's own units it is 2e-6, and 5e-5 for atoms from 100 to 110.
    shifts = (rewards - (1.0 - discounts) * low) / spacing
    places = jnp.clip(shifts[..., None] + discounts[..., None] * numbers, 0.0, support.size - 1.0)
    shares = jnp.maximum(1.0 - jnp.abs(places[..., None, :] - numbers[:, None]), 0.0)
    # Not a matrix product: on a GPU it may round to fewer digits and lose mass.
    return jnp.sum(shares * probabilities[..., None, :], axis=-1)


def drop_largest(quantiles: Float[Array, "C *batch K"], dropped_per_critic: int) -> Float[Array, "*batch kept"]:
    """The quantiles of C critics, pooled and sorted, without the C · dropped largest.

    TQC makes its targets of these (Kuznetsov et al. 2020, eq. 11).
    """
    critics, each = quantiles.shape[0], quantiles.shape[-1]
    if not 0 <= dropped_per_critic < each:
        raise ValueError(f"{dropped_per_critic} of {each} quantiles cannot be dropped; use 0 to {each - 1}")
    pooled = jnp.moveaxis(quantiles, 0, -2).reshape(*quantiles.shape[1:-1], critics * each)
    return jnp.sort(pooled, axis=-1)[..., : critics * (each - dropped_per_critic)]


def _of(values: Array, actions: Array) -> Array:
    """[..., K] the rows of these actions of [..., A, K]."""
    # Not a sum with one_hot: that is 1.6 times slower on a CPU (256 × 6 × 51).
    return jnp.take_along_axis(values, actions[..., None, None], axis=-2)[..., 0, :]


def _require_one_shape(*shapes: tuple[int, ...]) -> None:
    """Raise ValueError for shapes that differ: [B] and [B, 1] would broadcast to [B, B]."""
    if len(set(shapes)) > 1:
        shown = ", ".join(map(str, shapes))
        raise ValueError(f"shapes {shown} differ; values without an action axis and their batch must have one shape")
