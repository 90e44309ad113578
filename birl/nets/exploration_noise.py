"""How a deterministic actor explores: noise on its actions, or on its weights.

Every environment has noise of its own. Ornstein-Uhlenbeck noise is correlated in time, Gaussian
noise is not. Parameter noise perturbs the actor's weights, by as much as moves its actions by a
given distance (Plappert et al. 2018).
"""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from birl.config import require
from birl.limits import lowest
from birl.maths.count import increment_wrapped
from birl.maths.exploration import action_distance, adapt_noise_scale, gaussian, ornstein_uhlenbeck, parameter_noise
from birl.nets.allowance import spend
from birl.nets.images import Conv
from birl.nets.layers import LayerNorm
from birl.nets.recurrent import reset_memory
from birl.parts import NoiseConfig, NoiseName
from birl.types import Array, Metrics, PyTree, Rollout

RUNNING, NEXT = 0, 1  # perturbations of the episodes that run when a rollout begins, and of those that begin in it


class Exploration(eqx.Module):
    """The noise of the next rollout."""

    noise: NoiseName = eqx.field(static=True)
    rate: float = eqx.field(static=True)  # θ of Ornstein-Uhlenbeck noise
    time_step: float = eqx.field(static=True)  # Δt of Ornstein-Uhlenbeck noise
    scale: Array  # σ
    rollout: Array  # the number of the next rollout, from 1; it wraps around before 32 bits are full
    perturbations: PyTree  # [2, B, ...] N(0, 1) for the actor's weights: RUNNING and NEXT; None: another noise


def validate_noise(config: NoiseConfig, layer_norm: bool) -> None:
    """Check that noise stays bounded, and that parameter noise can adapt."""
    wrong = f"noise_rate {config.noise_rate} times noise_time_step {config.noise_time_step} must be below 2"
    require(config.noise_rate * config.noise_time_step < 2, f"{wrong}, otherwise noise grows")
    require(config.noise_adaptation > 1, f"noise_adaptation {config.noise_adaptation} must be above 1; 1.01 is usual")
    if config.noise == "parameter":
        wrong = "noise parameter with layer_norm False: one σ cannot suit layers of all sizes"
        require(layer_norm, f"{wrong}; use layer_norm True")
        wrong = "exploration_noise reaches 0, and parameter noise cannot adapt to a distance of 0"
        require(lowest(config.exploration_noise) > 0, f"{wrong}; use noise gaussian to end without noise")


def initial_exploration(
    rng: np.random.Generator,
    actor: PyTree,
    num_envs: int,
    noise: NoiseName,
    scale: float,
    rate: float,
    time_step: float,
) -> Exploration:
    """Noise of this kind and scale for the first rollout."""
    perturbations = None
    if noise == "parameter":
        draw = partial(rng.standard_normal, dtype=np.float32)
        weights = perturbable(actor)
        spend(sum(2 * num_envs * leaf.size for leaf in jax.tree.leaves(weights)))
        perturbations = jax.tree.map(lambda leaf: draw((2, num_envs, *leaf.shape)), weights)
    return Exploration(noise, rate, time_step, np.float32(scale), np.int32(1), perturbations)


def initial_noise_memory(own: PyTree, noise: NoiseName, num_envs: int) -> PyTree:
    """What noise remembers between steps; `own` is the network's own memory.

    For parameter noise it is [B, 1], the rollout in which each environment's episode began, 0 for
    those that began before the first.
    """
    return np.zeros((num_envs, 1), np.int32) if noise == "parameter" else own


def noisy_actions(
    actor: PyTree, exploration: Exploration, observations: PyTree, memory: PyTree, resets: Array, key: Array
) -> tuple[Array, PyTree]:
    """The actor's actions [B, A] with noise, not clipped, and the noise's memory."""
    match exploration.noise:
        case "ou":
            memory = reset_memory(memory, resets, jnp.zeros_like(memory))
            memory = ornstein_uhlenbeck(key, memory, exploration.rate, exploration.scale, exploration.time_step)
            return actor(observations) + memory, memory
        case "gaussian":
            actions = actor(observations)
            return actions + gaussian(key, actions.shape, exploration.scale), memory
        case "parameter":
            began = resets
            if jax.tree.leaves(memory):  # evaluation has no memory: there is only one rollout
                began = resets | (memory[:, 0] == exploration.rollout)
                memory = jnp.where(began[:, None], exploration.rollout, memory)
            new = perturbed_weights(actor, exploration, NEXT, len(resets))
            running = perturbed_weights(actor, exploration, RUNNING, len(resets))
            weights = select_rows(began, new, running)
            return jax.vmap(lambda own, observation: eqx.combine(own, actor)(observation))(
                weights, observations
            ), memory


def perturbable(actor: PyTree) -> PyTree:
    """The actor with None for the layers that are not perturbed: layer norms and convolutions."""
    left_out = LayerNorm, Conv
    kept = jax.tree.map(
        lambda node: not isinstance(node, left_out), actor, is_leaf=lambda node: isinstance(node, left_out)
    )
    return eqx.filter(actor, kept)


def perturbed_weights(actor: PyTree, exploration: Exploration, which: int, num_envs: int) -> PyTree:
    """[B, ...] the actor's weights plus σ times each environment's perturbation."""
    own = jax.tree.leaves(exploration.perturbations)[0].shape[1]
    rows = np.arange(num_envs) % own  # an evaluation may have more environments than perturbations
    perturbations = jax.tree.map(lambda x: x[which] if num_envs == own else x[which][rows], exploration.perturbations)
    return jax.tree.map(lambda x, weight: weight + exploration.scale * x, perturbations, perturbable(actor))


def adapted_scale(
    actor: PyTree, exploration: Exploration, observations: PyTree, num_envs: int, target_distance: Array, factor: float
) -> tuple[Array, Metrics]:
    """σ of parameter noise, changed by `factor` towards the target distance of actions."""
    weights = perturbed_weights(actor, exploration, RUNNING, num_envs)
    perturbed = jax.vmap(lambda own: eqx.combine(own, actor)(observations))(weights)
    distance = action_distance(actor(observations), perturbed)
    scale = adapt_noise_scale(exploration.scale, distance, target_distance, factor)
    return scale, {"exploration/action_distance": distance}


def after_rollout(exploration: Exploration, rollout: Rollout, scale: Array, key: Array) -> Exploration:
    """Parameter noise after a rollout: where an episode began, its perturbation is now RUNNING."""
    # An episode that begins after the last step begins in the next rollout.
    began = rollout.resets | ~rollout.valid[:-1].all(axis=0)
    perturbations = jax.lax.cond(
        began.any(),
        lambda old: next_perturbations(old, began, key),
        lambda old: jax.tree.map(jnp.asarray, old),
        exploration.perturbations,
    )
    number = increment_wrapped(exploration.rollout)
    return dataclasses.replace(exploration, scale=scale, rollout=number, perturbations=perturbations)


def next_perturbations(perturbations: PyTree, began: Array, key: Array) -> PyTree:
    """Perturbations in which NEXT became RUNNING where an episode began, with new ones for NEXT."""
    drawn = parameter_noise(key, jax.tree.map(lambda x: x[RUNNING], perturbations))
    running = jax.tree.map(lambda x: x[RUNNING], perturbations)
    new = jax.tree.map(lambda x: x[NEXT], perturbations)
    both = select_rows(began, new, running), select_rows(began, drawn, new)
    return jax.tree.map(lambda *two: jnp.stack(two), *both)


def select_rows(which: Array, trees: PyTree, others: PyTree) -> PyTree:
    """[B, ...] leaves with the rows of one tree where [B] flags are set, otherwise of the other."""
    return jax.tree.map(
        lambda x, other: jnp.where(jax.lax.broadcast_in_dim(which, x.shape, (0,)), x, other), trees, others
    )


def without_noise(rollout: Rollout) -> Rollout:
    """The rollout without the noise's memory, from which nothing is learned."""
    return rollout._replace(memory=())
