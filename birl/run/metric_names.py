"""The names, signs and scales that other libraries give metrics, so that existing dashboards work.

They are those of Stable-Baselines3 and sb3-contrib 2.9, and of CleanRL's ppo.py, dqn.py and
{ddpg,td3,sac}_continuous_action.py. An algorithm that a library does not have gets the names of
the closest one that it has.
"""

from collections.abc import Mapping

from birl import ALGORITHMS
from birl.registry import Alias, Aliases, MetricNames, supports

# Of every algorithm, unless its SUPPORTS has another one.
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


def aliases_of(algorithm: str, names: MetricNames) -> Aliases:
    """What another library calls the metrics of this algorithm."""
    own = supports(algorithm).aliases if algorithm in ALGORITHMS else {}
    return {**COMMON[names], **own.get(names, {})}


def rename(metrics: Mapping[str, float], aliases: Aliases) -> dict[str, float]:
    """The metrics with another library's names, signs and scales; others stay as they are."""
    renamed = [(aliases.get(name, Alias(name)), value) for name, value in metrics.items()]
    return {alias.name: value * alias.factor for alias, value in renamed}
