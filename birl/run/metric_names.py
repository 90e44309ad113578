"""The names, signs and scales that other libraries give metrics, so that existing dashboards work.

They are those of Stable-Baselines3 and sb3-contrib 2.9, and of CleanRL's ppo.py, dqn.py and
{ddpg,td3,sac}_continuous_action.py. An algorithm that a library does not have gets the names of
the closest one that it has.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

MetricNames = Literal["birl", "sb3", "cleanrl"]


class Alias(NamedTuple):
    """A metric's name in another library, and what its value is multiplied by there."""

    name: str
    factor: float = 1.0


Aliases = Mapping[str, Alias]  # by Birl's name

# Of every algorithm, unless OWN has one for it.
COMMON: dict[MetricNames, Aliases] = {
    "birl": {},
    "sb3": {
        "episode/return": Alias("rollout/ep_rew_mean"),
        "episode/length": Alias("rollout/ep_len_mean"),
        "episode/count": Alias("time/episodes"),
        "episode/success": Alias("rollout/success_rate"),
        "eval/return_mean": Alias("eval/mean_reward"),
        "eval/length_mean": Alias("eval/mean_ep_length"),
        "eval/success_mean": Alias("eval/success_rate"),
        "loss/policy": Alias("train/policy_loss"),
        "loss/value": Alias("train/value_loss"),
        "policy/entropy": Alias("train/entropy_loss", -1.0),
        "policy/approx_kl": Alias("train/approx_kl"),
        "policy/kl": Alias("train/kl_divergence_loss"),
        "policy/clip_fraction": Alias("train/clip_fraction"),
        "trust_region/accepted": Alias("train/is_line_search_success"),
        "value/explained_variance": Alias("train/explained_variance"),
        "optimizer/learning_rate": Alias("train/learning_rate"),
        "exploration/epsilon": Alias("rollout/exploration_rate"),
        "exploration/temperature": Alias("train/ent_coef"),
        "time/env_steps_per_second": Alias("time/fps"),
    },
    "cleanrl": {
        "episode/return": Alias("charts/episodic_return"),
        "episode/length": Alias("charts/episodic_length"),
        "eval/return_mean": Alias("eval/episodic_return"),
        "loss/policy": Alias("losses/policy_loss"),
        "loss/value": Alias("losses/value_loss", 0.5),
        "loss/temperature": Alias("losses/alpha_loss"),
        "policy/entropy": Alias("losses/entropy"),
        "policy/approx_kl": Alias("losses/approx_kl"),
        "policy/clip_fraction": Alias("losses/clipfrac"),
        "value/explained_variance": Alias("losses/explained_variance"),
        "value/mean": Alias("losses/qf1_values"),
        "optimizer/learning_rate": Alias("charts/learning_rate"),
        "exploration/epsilon": Alias("charts/epsilon"),
        "exploration/temperature": Alias("losses/alpha"),
        "time/env_steps_per_second": Alias("charts/SPS"),
    },
}

# Of one algorithm. DPG's `loss/value` is half a mean squared error, TD3's and SAC's a sum of two.
OWN: dict[MetricNames, dict[str, Aliases]] = {
    "birl": {},
    "sb3": {
        "ppo": {"loss/policy": Alias("train/policy_gradient_loss")},
        "trpo": {"loss/policy": Alias("train/policy_objective", -1.0)},
        "dqn": {"loss/value": Alias("train/loss")},
        "async-q": {"loss/value": Alias("train/loss")},
        "async-sarsa": {"loss/value": Alias("train/loss")},
        "async-nstep-q": {"loss/value": Alias("train/loss")},
        "dpg": {"loss/value": Alias("train/critic_loss", 2.0)},
        "ddpg": {"loss/policy": Alias("train/actor_loss"), "loss/value": Alias("train/critic_loss")},
        "td3": {"loss/policy": Alias("train/actor_loss"), "loss/value": Alias("train/critic_loss")},
        "sac": {"loss/policy": Alias("train/actor_loss"), "loss/value": Alias("train/critic_loss", 0.5)},
    },
    "cleanrl": {
        "dqn": {"loss/value": Alias("losses/td_loss"), "value/mean": Alias("losses/q_values")},
        "async-q": {"loss/value": Alias("losses/td_loss")},
        "async-sarsa": {"loss/value": Alias("losses/td_loss")},
        "async-nstep-q": {"loss/value": Alias("losses/td_loss")},
        "dpg": {"loss/value": Alias("losses/qf1_loss", 2.0)},
        "ddpg": {"loss/policy": Alias("losses/actor_loss"), "loss/value": Alias("losses/qf1_loss")},
        "td3": {"loss/policy": Alias("losses/actor_loss"), "loss/value": Alias("losses/qf_loss", 0.5)},
        "sac": {"loss/policy": Alias("losses/actor_loss"), "loss/value": Alias("losses/qf_loss", 0.5)},
    },
}


def aliases_of(algorithm: str, names: MetricNames) -> Aliases:
    """What another library calls the metrics of this algorithm."""
    return {**COMMON[names], **OWN[names].get(algorithm, {})}


def rename(metrics: Mapping[str, float], aliases: Aliases) -> dict[str, float]:
    """The metrics with another library's names, signs and scales; others stay as they are."""
    renamed = [(aliases.get(name, Alias(name)), value) for name, value in metrics.items()]
    return {alias.name: value * alias.factor for alias, value in renamed}
