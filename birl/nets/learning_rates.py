"""The learning rates of an actor-critic network: one for all of it, or two."""

from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array, Float

from birl.config import require
from birl.limits import Rate
from birl.maths.schedules import value_at
from birl.nets.models import ActorCritic
from birl.types import Metrics, PyTree


def learning_rates(
    network: Any, learning_rate: Rate, value_learning_rate: Rate | None, progress: Float[Array, ""]
) -> tuple[PyTree, Metrics]:
    """The learning rate of the network, or a tree with that of each parameter; and the metrics."""
    rate = value_at(learning_rate, progress)
    metrics = {"optimizer/learning_rate": rate}
    if value_learning_rate is None:
        return rate, metrics
    value_rate = value_at(value_learning_rate, progress)
    rates = jax.tree.map(lambda _: rate, network)
    critic, value_head = jax.tree.map(lambda _: value_rate, (network.critic, network.value_head))
    return replace(rates, critic=critic, value_head=value_head), metrics | {"optimizer/value_learning_rate": value_rate}


def require_value_network(network: Any, value_learning_rate: Rate | None) -> None:
    """Raise ConfigError if there is a value_learning_rate, but no value network apart to use it."""
    if value_learning_rate is None:
        return
    wrong = f"value_learning_rate {value_learning_rate} needs a value network apart from the policy"
    unknown = f"which parameters of {type(network).__name__} are the value's is not known"
    remedy = "use None, or let make_network return birl.nets.models.ActorCritic"
    require(isinstance(network, ActorCritic), f"{wrong}, and {unknown}; {remedy}")
    require(network.critic is not None, f"{wrong}, and this ActorCritic has one trunk for both; use None")
