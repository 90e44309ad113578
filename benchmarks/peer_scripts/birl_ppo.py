"""Birl's PPO, measured: see measure.py. Runs in Birl's venv."""

import json
from functools import partial

from measure import EPISODES, Stopwatch, read_settings

import birl
from birl.envs.make import make_env
from birl.envs.serial import SerialEnvs


def birl_schedule(value: float | list[float]) -> object:
    """A schedule as Birl wants it: a number, or a line."""
    return value if isinstance(value, float) else birl.linear(*value)


settings = read_settings()
stopwatch = Stopwatch(settings["spawned_at"], settings["wanted_return"])
env = birl.EnvConfig(id=settings["env"], num_envs=settings["num_envs"], backend=settings["backend"], workers=settings["workers"])
config = birl.ppo.Config(
    env=env,
    run=birl.RunConfig(total_steps=settings["total_steps"], seed=settings["seed"]),
    rollout_length=settings["rollout_length"],
    minibatches=settings["minibatches"],
    epochs=settings["epochs"],
    discount=settings["discount"],
    gae_lambda=settings["gae_lambda"],
    learning_rate=birl_schedule(settings["learning_rate"]),
    clip_range=birl_schedule(settings["clip_range"]),
    entropy_weight=settings["entropy_weight"],
    value_weight=0.5,  # this and the next three: the peers' defaults
    max_grad_norm=0.5,
    value_clip=None,
    normalize_advantages=True,
    hidden_sizes=tuple(settings["hidden_sizes"]),
    core=settings["core"],
    core_size=settings["core_size"],
    share_trunk=settings["core"] != "feedforward",
)
envs = SerialEnvs([partial(make_env, env)] * env.num_envs) if settings["one_by_one"] else None  # None: whatever Birl chooses
stopwatch.mark(0)
for update in birl.ppo.train(config, envs):
    env_steps = int(update.state.env_steps)
    stopwatch.mark(env_steps)
    if update.metrics["episode/count"] >= EPISODES:
        stopwatch.see(update.metrics["episode/return"], env_steps)
    if stopwatch.reached is not None:
        break
print(json.dumps(stopwatch.report(("birl", "jax", "equinox", "optax", "gymnasium", "numpy"))))
