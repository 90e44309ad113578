"""Stable-Baselines3's PPO, measured: see measure.py."""

from measure import read_settings
from sb3_run import learn_and_report, policy_arguments, ppo_arguments
from stable_baselines3 import PPO

settings = read_settings()
model = PPO(**policy_arguments(settings), **ppo_arguments(settings))
learn_and_report(model, settings, ("torch",))
