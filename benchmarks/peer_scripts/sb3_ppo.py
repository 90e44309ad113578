"""Stable-Baselines3's PPO, measured: see measure.py."""

from measure import read_settings
from sb3_run import learn_and_report, ppo_arguments
from stable_baselines3 import PPO

settings = read_settings()
model = PPO("MlpPolicy", **ppo_arguments(settings), policy_kwargs={"net_arch": settings["hidden_sizes"]})
learn_and_report(model, settings, ("torch",))
