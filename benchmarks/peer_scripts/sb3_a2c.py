"""Stable-Baselines3's A2C, measured (see measure.py); its RMSProp has ε 1e-5 and decay 0.99."""

from measure import read_settings
from sb3_run import actor_critic_arguments, learn_and_report, policy_arguments
from stable_baselines3 import A2C

settings = read_settings()
model = A2C(**policy_arguments(settings), **actor_critic_arguments(settings))
learn_and_report(model, settings, ("torch",))
