"""rejax's PPO or DQN, measured: see measure.py. Runs in rejax's venv.

rejax trains in one program. It is compiled, run once, and run again with another key; that second
run is timed. Its evaluation inside the program is removed. With `lanes`, so many seeds are trained
by `vmap`, as its documentation shows.
"""

import json
import os
from typing import Any

import jax
import rejax
from measure import Stopwatch, read_settings


def agent_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """What both algorithms have: the environment, the network, no evaluation before the end."""
    return {
        "env": settings["env"],
        "num_envs": settings["num_envs"],
        "total_timesteps": settings["total_steps"],
        "eval_freq": settings["total_steps"],
        "skip_initial_evaluation": True,
        "learning_rate": settings["learning_rate"],
        "max_grad_norm": settings["max_grad_norm"],
        "gamma": settings["discount"],
    }


def make_ppo(settings: dict[str, Any]) -> rejax.PPO:
    network = {"activation": "tanh", "hidden_layer_sizes": tuple(settings["hidden_sizes"])}
    return rejax.PPO.create(
        **agent_arguments(settings),
        agent_kwargs=network,
        num_steps=settings["rollout_length"],
        num_epochs=settings["epochs"],
        num_minibatches=settings["minibatches"],
        gae_lambda=settings["gae_lambda"],
        clip_eps=settings["clip_range"],  # of values, too
        vf_coef=settings["value_weight"],
        ent_coef=settings["entropy_weight"],
    )


def make_dqn(settings: dict[str, Any]) -> rejax.DQN:
    """rejax always has layers of 64 and 64, and one step of each environment in a cycle."""
    start, end, share = settings["exploration"]
    gradient_steps = round(settings["update_ratio"] * settings["num_envs"])
    return rejax.DQN.create(
        **agent_arguments(settings),
        agent_kwargs={"activation": settings["activation"]},
        buffer_size=settings["replay_size"],
        fill_buffer=settings["learning_starts"],
        batch_size=settings["batch_size"],
        num_epochs=gradient_steps,
        target_update_freq=settings["num_envs"] * settings["target_every"] // gradient_steps,
        polyak=1 - settings["target_rate"],
        eps_start=start,
        eps_end=end,
        exploration_fraction=share,
        ddqn=settings["double"],
    )


settings = read_settings()
stopwatch = Stopwatch(settings)
if settings.get("compilation_cache"):  # rejax keeps no programs by itself
    jax.config.update("jax_compilation_cache_dir", os.path.join(os.environ["BIRL_CACHE_DIR"], "rejax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
algorithm = {"ppo": make_ppo, "dqn": make_dqn}[settings["algorithm"]](settings)
algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())
lanes = settings.get("lanes", 1)


def keys(seed: int) -> jax.Array:
    key = jax.random.PRNGKey(seed)
    return key if lanes == 1 else jax.random.split(key, lanes)


def train(key: jax.Array) -> Any:
    """All of the final state, so that nothing of the training is removed as unused."""
    state, _ = algorithm.train(key)
    return state


stopwatch.mark(0)
program = jax.jit(train if lanes == 1 else jax.vmap(train)).lower(keys(0)).compile()
stopwatch.mark(0)  # compiled; the first update itself is a few milliseconds more
env_steps = 0
for run in range(2):
    state = jax.block_until_ready(program(keys(settings["seed"] + run)))
    env_steps += int(state.global_step.sum())
    stopwatch.mark(env_steps)
report = stopwatch.report(("rejax", "gymnax", "jax", "flax", "optax", "numpy"))
(begin, before), (end, after) = stopwatch.marks[-2:]
print(json.dumps(report | {"steps_per_second": (after - before) / (end - begin)}))
