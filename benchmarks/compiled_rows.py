"""The rows of the benchmark of compiled environments: the work, the contenders, Birl's target."""

from dataclasses import replace

from speed_rows import CARTPOLE, PPO, SB3, Contender, Row, Settings, Wanted, each_wanted

COMPILED = {"backend": "compiled"}

# rejax clips values as much as ratios and has no schedules; so have the others.
ZOO = CARTPOLE | {"learning_rate": 0.001, "clip_range": 0.2, "value_clip": 0.2, "total_steps": 400_000}
MANY = ZOO | {"num_envs": 64, "epochs": 4, "minibatches": 4, "total_steps": 1_500_000}
LANES = MANY | COMPILED | {"lanes": 16, "short_steps": 20 * 64 * 32, "total_steps": 150 * 64 * 32}
DQN_LANES = (  # rejax's own settings of CartPole, but for the network and an earlier start
    PPO
    | COMPILED
    | {
        "algorithm": "dqn",
        "env": "CartPole-v1",
        "lanes": 16,
        "num_envs": 10,
        "rollout_length": 1,
        "update_ratio": 0.5,  # 5 gradient steps after every 10 steps
        "learning_starts": 1000,
        "batch_size": 100,
        "replay_size": 50_000,
        "discount": 0.99,
        "double": True,
        "learning_rate": 0.001,
        "max_grad_norm": 10.0,
        "activation": "tanh",
        "exploration": [1.0, 0.05, 0.5],
        "target_every": 5,  # gradient steps: once in each cycle
        "target_rate": 0.02,
        "n_step": 1,  # this and the next: not those of Birl's preset
        "normalize_observations": False,
        "short_steps": 5_000,
        "total_steps": 20_000,
    }
)
PRESET = PPO | {"preset": True, "num_envs": 0, "rollout_length": 0, "rate_from": 2000}

BIRL_COMPILED = Contender("Birl, compiled", "birl_run.py", settings=COMPILED)
BIRL_HOST = Contender("Birl, host", "birl_run.py", settings={"total_steps": 200_000})
HOST = Contender("Birl, host", "birl_run.py", rival=True)
BIRL_LANES = Contender("Birl, 16 seeds", "birl_group.py")
REJAX = Contender("rejax", "rejax_run.py", venv="rejax")
REJAX_LANES = Contender("rejax, 16 by vmap", "rejax_run.py", venv="rejax")
REJAX_CACHED = Contender("rejax, warm", "rejax_run.py", venv="rejax", settings={"compilation_cache": True})
REJAX_COLD = Contender("rejax, cold", "rejax_run.py", venv="rejax")
SB3_SHORT = Contender("SB3", SB3.script, venv=SB3.venv, settings={"total_steps": 40_000})
COMPILED_COLD = Contender("Birl, compiled, cold", "birl_run.py", settings=COMPILED, empty_cache=True)
COMPILED_WARM = Contender("Birl, compiled, warm", "birl_run.py", settings=COMPILED)
HOST_COLD = Contender("Birl, host, cold", "birl_run.py", empty_cache=True, rival=True)
HOST_WARM = Contender("Birl, host, warm", "birl_run.py", rival=True)


def preset_row(algorithm: str, env: str, total_steps: int) -> Row:
    """Birl's preset, compiled and on the host."""
    return Row(
        f"{algorithm.upper()} {env} with Birl's preset",
        PRESET | {"algorithm": algorithm, "env": env, "total_steps": total_steps},
        (HOST, BIRL_COMPILED),
        each_wanted(1.0, HOST, BIRL_COMPILED),
        quick_steps=3_000,
    )


QUICK_LANES = 2
ENVIRONMENTS = tuple(4**power for power in range(7))  # 1 to 4,096
LANE_COUNTS = tuple(2**power for power in range(7))  # 1 to 64


def with_environments(number: int) -> Contender:
    """Compiled PPO with this many environments, for about five seconds."""
    steps = 5 * min(10_000 * number, 250_000)
    return Contender(
        f"{number:,} environments", "birl_run.py", settings=COMPILED | {"num_envs": number, "total_steps": steps}
    )


def with_lanes(number: int) -> Contender:
    """A group of this many seeds, 64 environments each; the fewer lanes, the more steps of each."""
    updates = max(600 // number, 50)
    return Contender(f"{number} lanes", "birl_group.py", settings={"lanes": number, "total_steps": updates * 64 * 32})


def scaling_row(environments: tuple[int, ...], lane_counts: tuple[int, ...]) -> Row:
    """Compiled PPO with several numbers of environments and of lanes."""
    return Row(
        "Steps per second and memory by the number of environments, and of lanes with 64 environments: "
        "PPO CartPole-v1, T 32, 4 epochs of 4 minibatches",
        LANES,
        (*map(with_environments, environments), *map(with_lanes, lane_counts)),
        (),
        quick_steps=3 * 64 * 32,
    )


ROWS = {
    "ppo-zoo": Row(
        "PPO CartPole-v1: 8 environments, T 32, 20 epochs of one batch of 256",
        ZOO,
        (SB3_SHORT, REJAX, BIRL_HOST, BIRL_COMPILED),
        (*each_wanted(1.5, REJAX, BIRL_COMPILED), *each_wanted(10.0, SB3_SHORT, BIRL_COMPILED)),
        quick_steps=3 * 256,
    ),
    "ppo-64": Row(
        "PPO CartPole-v1: 64 environments, T 32, 4 epochs of 4 minibatches",
        MANY,
        (REJAX, BIRL_COMPILED),
        each_wanted(1.5, REJAX, BIRL_COMPILED),
        quick_steps=3 * 64 * 32,
    ),
    "ppo-lanes": Row(
        "16 seeds of PPO CartPole-v1: 64 environments each, T 32, 4 epochs of 4 minibatches",
        LANES,
        (REJAX_LANES, BIRL_LANES),
        each_wanted(2.2, REJAX_LANES, BIRL_LANES),
        quick_steps=3 * 64 * 32,
    ),
    "first-update": Row(
        "From process start to the first update: PPO CartPole-v1, 64 environments, T 32, 4 epochs of 4 minibatches",
        MANY | {"total_steps": 64 * 32},
        (REJAX_COLD, REJAX_CACHED, COMPILED_COLD, COMPILED_WARM),
        (
            Wanted(COMPILED_COLD.name, "seconds_to_first_update", 0.5, REJAX_COLD.name),
            Wanted(COMPILED_WARM.name, "seconds_to_first_update", 0.5, REJAX_COLD.name),
            Wanted(COMPILED_WARM.name, "seconds_to_first_update", 0.5, REJAX_CACHED.name),
        ),
        quick_steps=64 * 32,
        measured="seconds_to_first_update",
    ),
    "return": Row(
        "From process start to a mean return of 475 over 20 episodes: PPO CartPole-v1, SB3-zoo settings",
        CARTPOLE | {"wanted_return": 475.0},
        (HOST_COLD, HOST_WARM, COMPILED_COLD, COMPILED_WARM),
        (
            Wanted(COMPILED_WARM.name, "seconds_to_return", 0.6, HOST_WARM.name),
            Wanted(COMPILED_COLD.name, "seconds_to_return", 1.0, HOST_COLD.name),
        ),
        quick_steps=3 * 256,
        seeds_differ=True,
        measured="seconds_to_return",
    ),
    "dqn": preset_row("dqn", "CartPole-v1", 30_000),
    "sac": preset_row("sac", "Pendulum-v1", 15_000),
    "dqn-lanes": Row(
        "16 seeds of DQN CartPole-v1: 10 environments each, 5 gradient steps on batches of 100 after every 10 steps",
        DQN_LANES,
        (REJAX_LANES, BIRL_LANES),
        each_wanted(1.5, REJAX_LANES, BIRL_LANES),
        quick_steps=2_000,
    ),
}


def quick(row: Row) -> Row:
    """The same row with a few updates of each contender."""

    def shorter(own: Settings) -> Settings:
        every = row.settings | own
        updates = 1 if row.measured == "seconds_to_first_update" else 3
        steps = max(row.quick_steps, updates * every["num_envs"] * every["rollout_length"])
        return own | {"total_steps": steps, "lanes": min(every.get("lanes", 1), QUICK_LANES)}

    contenders = tuple(replace(one, settings=shorter(one.settings)) for one in row.contenders)
    return replace(row, contenders=contenders)
