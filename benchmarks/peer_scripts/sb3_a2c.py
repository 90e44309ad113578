"""Stable-Baselines3's A2C, measured: see measure.py. Its RMSProp has ε 1e-5 and decay 0.99 by default."""

from measure import read_settings
from sb3_run import actor_critic_arguments, learn_and_report
from stable_baselines3 import A2C

settings = read_settings()
model = A2C("MlpPolicy", **actor_critic_arguments(settings), policy_kwargs={"net_arch": settings["hidden_sizes"]})
learn_and_report(model, settings, ("torch",))
