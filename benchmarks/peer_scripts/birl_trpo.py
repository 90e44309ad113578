"""Birl's TRPO, measured: see measure.py. Runs in Birl's venv."""

import json

from measure import EPISODES, Stopwatch, read_settings

import birl

settings = read_settings()
stopwatch = Stopwatch(settings["spawned_at"], settings["wanted_return"])
config = birl.trpo.Config(
    env=birl.EnvConfig(id=settings["env"], num_envs=settings["num_envs"], backend=settings["backend"], workers=settings["workers"]),
    run=birl.RunConfig(total_steps=settings["total_steps"], seed=settings["seed"]),
    rollout_length=settings["rollout_length"],
    minibatches=settings["minibatches"],
    epochs=settings["epochs"],
    discount=settings["discount"],
    gae_lambda=settings["gae_lambda"],
    learning_rate=settings["learning_rate"],
    max_kl=settings["max_kl"],
    cg_steps=settings["cg_steps"],
    cg_damping=settings["cg_damping"],
    backtrack_factor=settings["backtrack_factor"],
    backtrack_tries=settings["backtrack_tries"],
    fisher_every=1,  # this and the next two: what the peer does
    normalize_advantages=True,
    max_grad_norm=None,
    hidden_sizes=tuple(settings["hidden_sizes"]),
)
stopwatch.mark(0)
for update in birl.trpo.train(config):
    env_steps = int(update.state.env_steps)
    stopwatch.mark(env_steps)
    if update.metrics["episode/count"] >= EPISODES:
        stopwatch.see(update.metrics["episode/return"], env_steps)
    if stopwatch.reached is not None:
        break
print(json.dumps(stopwatch.report(("birl", "jax", "equinox", "optax", "gymnasium", "numpy"))))
