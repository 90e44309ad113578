"""What SB3 and SBX share: a model's arguments, and a run that is measured once a rollout."""

import json
from typing import Any

import gymnasium as gym
import torch
from measure import EPISODES, Stopwatch, sb3_schedule
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack


class Watch(BaseCallback):
    """Marks every update, and ends the training once the wanted return is reached."""

    def __init__(self, stopwatch: Stopwatch):
        super().__init__()
        self.stopwatch = stopwatch

    def _on_rollout_start(self) -> None:
        self.stopwatch.mark(self.num_timesteps)

    def _on_rollout_end(self) -> None:
        # Before the update, which is to the peer's advantage: Birl is asked after it.
        returns = [episode["r"] for episode in self.model.ep_info_buffer][-EPISODES:]
        if len(returns) == EPISODES:
            self.stopwatch.see(sum(returns) / EPISODES, self.num_timesteps)

    def _on_step(self) -> bool:
        return self.stopwatch.reached is None


def make_envs(settings: dict[str, Any]) -> VecEnv:
    """The environments as the peer makes them; of Atari games, stacks of four frames."""
    env, num_envs, seed = settings["env"], settings["num_envs"], settings["seed"]
    if not env.startswith("ALE/"):
        return make_vec_env(env, num_envs, seed=seed)
    import ale_py  # only the rows of Atari games need it

    gym.register_envs(ale_py)
    # Its wrapper skips frames by itself; a lost life ends nothing in Birl by default.
    own, wrapper = {"frameskip": 1, "repeat_action_probability": 0.0}, {"terminal_on_life_loss": False}
    return VecFrameStack(make_atari_env(env, num_envs, seed=seed, env_kwargs=own, wrapper_kwargs=wrapper), n_stack=4)


def policy_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """Which network: dense layers, or for images the convolutions of Mnih et al. 2015.

    Those are the peer's own default, too.
    """
    policy = "CnnPolicy" if settings["env"].startswith("ALE/") else "MlpPolicy"
    return {"policy": policy, "policy_kwargs": {"net_arch": settings["hidden_sizes"]}}


def actor_critic_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that A2C, PPO and recurrent PPO have in common, as they want them."""
    # Before the model is made. SBX's rollouts are torch tensors, too.
    torch.set_num_threads(settings["threads"])
    return {
        "env": make_envs(settings),
        "n_steps": settings["rollout_length"],
        "gamma": settings["discount"],
        "gae_lambda": settings["gae_lambda"],
        "learning_rate": sb3_schedule(settings["learning_rate"]),
        "ent_coef": settings["entropy_weight"],
        "vf_coef": settings["value_weight"],
        "max_grad_norm": settings["max_grad_norm"],
        "seed": settings["seed"],
        "device": "cpu",
    }


def ppo_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of PPO: those of an actor-critic, and its own."""
    return actor_critic_arguments(settings) | {
        "batch_size": settings["rollout_length"] * settings["num_envs"] // settings["minibatches"],
        "n_epochs": settings["epochs"],
        "clip_range": sb3_schedule(settings["clip_range"]),
        "normalize_advantage": settings["normalize_advantages"],
    }


def learn_and_report(model: BaseAlgorithm, settings: dict[str, Any], packages: tuple[str, ...]) -> None:
    """Train to the end, or to the wanted return, and print the report."""
    stopwatch = Stopwatch(settings)
    model.learn(settings["total_steps"], callback=Watch(stopwatch), log_interval=None)
    stopwatch.mark(model.num_timesteps)
    print(json.dumps(stopwatch.report((*packages, "stable-baselines3", "gymnasium", "numpy"))))
