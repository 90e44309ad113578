"""sb3-contrib's TRPO, measured: see measure.py."""

from measure import read_settings
from sb3_contrib import TRPO
from sb3_run import actor_critic_arguments, learn_and_report

settings = read_settings()
shared = actor_critic_arguments(settings)
for unknown in ("ent_coef", "vf_coef", "max_grad_norm"):  # TRPO has no such thing
    del shared[unknown]
model = TRPO(
    "MlpPolicy",
    **shared,
    batch_size=settings["rollout_length"] * settings["num_envs"] // settings["minibatches"],
    n_critic_updates=settings["epochs"],
    target_kl=settings["max_kl"],
    cg_max_steps=settings["cg_steps"],
    cg_damping=settings["cg_damping"],
    line_search_shrinking_factor=settings["backtrack_factor"],
    line_search_max_iter=settings["backtrack_tries"],
    normalize_advantage=settings["normalize_advantages"],
    policy_kwargs={"net_arch": settings["hidden_sizes"]},
)
learn_and_report(model, settings, ("sb3-contrib", "torch"))
