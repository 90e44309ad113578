"""Networks of an actor and any number of critics, such as TD3's and SAC's; and SAC's actor."""

import dataclasses
from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from birl.config import require
from birl.limits import lowest
from birl.maths import losses
from birl.maths.count import increment_wrapped
from birl.maths.exploration import action_distance, adapt_noise_scale, gaussian, ornstein_uhlenbeck, parameter_noise
from birl.maths.gaussians import BoundedGaussian, SquashedGaussian, state_dependent_gaussian
from birl.nets.allowance import spend
from birl.nets.encoders import MLP, Encoder, make_encoder, make_mlp
from birl.nets.heads import ActionBounds, bounds_of
from birl.nets.images import Conv
from birl.nets.layers import LayerNorm, Linear, full, make_linear
from birl.nets.models import Inside
from birl.nets.normalize import Normalizer, normalize_observations, reward_scale
from birl.nets.recurrent import reset_memory
from birl.parts import ActionConfig, NetworkConfig, NoiseConfig, NoiseName
from birl.types import Metrics, PyTree, Rollout, Transitions


class DeterministicActor(eqx.Module):
    """μ(s): one action in [-1, 1] for each observation."""

    encoder: Encoder
    head: Linear

    def __call__(self, observations: PyTree) -> Float[Array, "*batch A"]:
        return jnp.tanh(self.head(self.encoder(observations)))


class ActionCritic(eqx.Module):
    """Q(s, a) of actions in [-1, 1], which are concatenated with the observation's features.

    With K > 1 outputs a call returns [..., K], for example quantiles.
    """

    encoder: Encoder  # of the observation; without dense layers
    mlp: MLP
    head: Linear

    def __call__(self, observations: PyTree, actions: Float[Array, "*batch A"]) -> Array:
        together = jnp.concatenate([self.encoder(observations), actions], axis=-1)
        outputs = self.head(self.mlp(together))
        return outputs[..., 0] if outputs.shape[-1] == 1 else outputs


def make_deterministic_actor(
    rng: np.random.Generator, space: gym.Space, actions: int, network: NetworkConfig
) -> DeterministicActor:
    """An actor for observations of this space.

    Weights are orthogonal, with scale √2 in hidden layers and 0.01 in the head, so that the first
    actions are near 0.
    """
    encoder, width = make_actor_encoder(rng, space, network)
    return DeterministicActor(encoder, make_linear(rng, width, actions, scale=0.01))


def make_actor_encoder(rng: np.random.Generator, space: gym.Space, network: NetworkConfig) -> tuple[Encoder, int]:
    """The encoder of an actor, with its dense layers, and its number of features."""
    sizes = network.hidden_sizes if network.policy_hidden_sizes is None else network.policy_hidden_sizes
    return make_encoder(rng, space, network.encoder, sizes, network.activation, network.layer_norm)


def make_action_critic(
    rng: np.random.Generator, space: gym.Space, actions: int, network: NetworkConfig, outputs: int = 1
) -> ActionCritic:
    """A critic for observations of this space; orthogonal weights, scale √2, and 1 in the head."""
    encoder, width = make_encoder(rng, space, network.encoder, (), network.activation, network.layer_norm)
    hidden_sizes = network.hidden_sizes if network.value_hidden_sizes is None else network.value_hidden_sizes
    sizes = (width + actions, *hidden_sizes)
    mlp = make_mlp(rng, sizes, network.activation, network.layer_norm)
    return ActionCritic(encoder, mlp, make_linear(rng, sizes[-1], outputs, scale=1.0))


class DeterministicActorCriticLike(Protocol):
    """The interface of DDPG's network; you can write your own as an Equinox module."""

    @property
    def actor(self) -> Callable[[PyTree], Float[Array, "*batch A"]]: ...
    @property
    def critic(self) -> Callable[[PyTree, Float[Array, "*batch A"]], Float[Array, "*batch"]]: ...
    @property
    def bounds(self) -> ActionBounds: ...

    def initial_memory(self, num_envs: int) -> PyTree: ...


MakeDeterministicActorCritic = Callable[[np.random.Generator, gym.Space, gym.Space], DeterministicActorCriticLike]


class DeterministicActorCritic(eqx.Module):
    """An actor μ(s) and a critic Q(s, a), which share no parameters."""

    actor: DeterministicActor
    critic: ActionCritic
    bounds: ActionBounds
    remembers_noise: bool = eqx.field(static=True)

    def initial_memory(self, num_envs: int) -> PyTree:
        """Zero noise for each environment; () if noise does not depend on earlier noise."""
        return np.zeros((num_envs, self.bounds.size), np.float32) if self.remembers_noise else ()


def make_deterministic_actor_critic(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    network: NetworkConfig,
    remembers_noise: bool = False,
) -> DeterministicActorCritic:
    """A DeterministicActorCritic for these spaces."""
    bounds = bounds_of(action_space)
    actor = make_deterministic_actor(rng, observation_space, bounds.size, network)
    return DeterministicActorCritic(
        actor, make_action_critic(rng, observation_space, bounds.size, network), bounds, remembers_noise
    )


def random_in_warmup(actions: Float[Array, "B A"], in_warmup: Array, key: Array) -> Float[Array, "B A"]:
    """Uniform random actions in [-1, 1] while in warmup, otherwise these."""
    return jnp.where(in_warmup, jax.random.uniform(key, actions.shape, minval=-1.0, maxval=1.0), actions)


LOG_STD_RANGE = (-20.0, 2.0)  # from the code of Haarnoja et al. 2018

Actor = TypeVar("Actor")


class GaussianActor(eqx.Module):
    """π(·|s): a squashed Gaussian whose mean and standard deviation depend on the observation."""

    encoder: Encoder
    head: Linear  # A means, then A log standard deviations

    def __call__(self, observations: PyTree) -> SquashedGaussian:
        means, log_stds = jnp.split(self.head(self.encoder(observations)), 2, axis=-1)
        return SquashedGaussian(means, jnp.clip(log_stds, *LOG_STD_RANGE))


class ActorCritics(eqx.Module, Generic[Actor]):
    """An actor and critics, which share no parameters; you can use your own Equinox modules."""

    actor: Actor
    critics: tuple[ActionCritic, ...]
    bounds: ActionBounds

    def initial_memory(self, num_envs: int) -> PyTree:
        return ()


MakeActorCritics = Callable[[np.random.Generator, gym.Space, gym.Space], ActorCritics[Actor]]


def critic_values(
    critics: tuple[ActionCritic, ...], observations: PyTree, actions: Float[Array, "*batch A"]
) -> Float[Array, "C *batch"]:
    """Q_1(s, a) to Q_C(s, a), stacked; with K outputs each [C, ..., K]."""
    return jnp.stack([critic(observations, actions) for critic in critics])


def make_gaussian_actor(
    rng: np.random.Generator, space: gym.Space, actions: int, network: NetworkConfig
) -> GaussianActor:
    """An actor for observations of this space.

    Weights are orthogonal, with scale √2 in hidden layers and 0.01 in the head, so that u starts
    as a standard normal.
    """
    encoder, width = make_actor_encoder(rng, space, network)
    return GaussianActor(encoder, make_linear(rng, width, 2 * actions, scale=0.01))


def make_actor_critics(
    rng: np.random.Generator,
    observation_space: gym.Space,
    action_space: gym.Space,
    make_actor: Callable[[np.random.Generator, gym.Space, int, NetworkConfig], Actor],
    network: NetworkConfig,
    critics: int = 2,
    outputs: int = 1,  # of each critic
) -> ActorCritics[Actor]:
    """An actor made by `make_actor`, and critics; ConfigError unless the Box is bounded."""
    bounds = bounds_of(action_space)
    actor = make_actor(rng, observation_space, bounds.size, network)
    made = (make_action_critic(rng, observation_space, bounds.size, network, outputs) for _ in range(critics))
    return ActorCritics(actor, tuple(made), bounds)


def normalize_batch(batch: Transitions, bounds: ActionBounds, normalizer: Normalizer) -> Transitions:
    """The batch with normalised observations and rewards, and actions in [-1, 1]."""
    return batch._replace(
        observations=normalize_observations(normalizer.observations, batch.observations),
        next_observations=normalize_observations(normalizer.observations, batch.next_observations),
        actions=bounds.to_unit(batch.actions),
        rewards=batch.rewards * reward_scale(normalizer),
    )


def critic_loss(
    critics: tuple[ActionCritic, ...], targets: Float[Array, " N"], batch: Transitions
) -> tuple[Array, Metrics]:
    """Σᵢ E[(Qᵢ(s, a) - y)²] (Fujimoto et al. 2018, algorithm 1), and metrics."""
    values = critic_values(critics, batch.observations, batch.actions)
    value = reduce(add, (losses.value_loss(each, targets, jnp.ones_like(targets)) for each in values))
    return value, {"loss/value": value, "value/mean": values.mean()}


MEAN_RANGE = (-2.0, 2.0)  # of SAC's u, before tanh


class StateDependentActor(eqx.Module):
    """SAC's π(·|s) with gSDE: a squashed Gaussian of actions in [-1, 1]."""

    encoder: Encoder
    head: Linear
    log_std: Float[Array, "F A"]

    def __call__(self, observations: PyTree) -> BoundedGaussian:
        features = self.encoder(observations)
        means = jnp.clip(self.head(features), *MEAN_RANGE)
        ones = (1.0,) * means.shape[-1]
        return BoundedGaussian(
            state_dependent_gaussian(means, features, self.log_std), tuple(-one for one in ones), ones
        )


def make_sac_actor(
    rng: np.random.Generator, space: gym.Space, numbers: int, network: NetworkConfig, actions: ActionConfig
) -> GaussianActor | StateDependentActor:
    """SAC's actor for observations of this space, with or without gSDE."""
    if not actions.gsde:
        return make_gaussian_actor(rng, space, numbers, network)
    encoder, width = make_actor_encoder(rng, space, network)
    head = make_linear(rng, width, numbers, scale=0.01)
    return StateDependentActor(encoder, head, full((width, numbers), actions.log_std))


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
    sigma, first = jax.device_put((np.float32(scale), np.int32(1)))
    return Exploration(noise, rate, time_step, sigma, first, perturbations)


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


class DeterministicPolicy(NamedTuple):
    """μ(s), with noise of DDPG and TD3."""

    actor: Any
    bounds: ActionBounds
    moments: PyTree
    exploration: PyTree
    in_warmup: Array


class SquashedPolicy(NamedTuple):
    """SAC's actor."""

    actor: Any
    bounds: ActionBounds
    moments: PyTree
    in_warmup: Array

    def inside(self, observations: PyTree, memory: PyTree, resets: Array, action_masks: Array | None) -> Inside:
        """π(·|s) of actions scaled to [-1, 1]."""
        return Inside(self.actor(normalize_observations(self.moments, observations)), None)
