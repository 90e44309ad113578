"""The rows of the speed benchmark: the work, the contenders, their settings, Birl's target."""

from dataclasses import dataclass, field
from typing import Any, Literal

Settings = dict[str, Any]  # in Birl's vocabulary; peer_scripts translate it
VenvName = Literal["birl", "peers", "rejax"]
BIRL_SCRIPTS = ("birl_run.py", "birl_group.py")


@dataclass(frozen=True)
class Contender:
    """One line of a table."""

    name: str
    script: str
    venv: VenvName = "birl"
    rival: bool = False  # the others are compared with it, as with everything in another venv
    settings: Settings = field(default_factory=dict)  # over the row's
    empty_cache: bool = False  # Birl without the compilations of earlier runs
    ceiling: str | None = None  # the contender that steps the same environments and does nothing else

    @property
    def is_rival(self) -> bool:
        """Whether the others are compared with it."""
        return self.rival or self.venv != "birl"

    @property
    def needs_warm_up(self) -> bool:
        """Whether an unmeasured run fills its compilation cache first."""
        keeps_cache = self.script in BIRL_SCRIPTS or self.settings.get("compilation_cache", False)
        return keeps_cache and not self.empty_cache


@dataclass(frozen=True)
class Wanted:
    """What Birl should reach in a row."""

    contender: str
    quantity: str
    limit: float
    against: str | None = None  # the limit is on the ratio to this contender


@dataclass(frozen=True)
class Row:
    """Contenders on the same work."""

    title: str
    settings: Settings
    contenders: tuple[Contender, ...]
    wanted: tuple[Wanted, ...]
    quick_steps: int
    seeds_differ: bool = False  # a new seed each round
    measured: str = "steps_per_second"  # or seconds from process start: seconds_to_return, seconds_to_first_update


COMMON: Settings = {
    "threads": 1,  # of PyTorch: its best for networks this small
    "backend": "gymnasium",
    "workers": 0,
    "one_by_one": False,  # Birl: single environments even where Gymnasium has a vector one
    "core": "feedforward",
    "core_size": 64,
    "hidden_sizes": [64, 64],
    "share_trunk": False,
    "value_weight": 0.5,  # this and the next: the peers' defaults
    "max_grad_norm": 0.5,
    "wanted_return": None,
    "rate_from": 0,
    "seed": 1,
}
PPO = COMMON | {"algorithm": "ppo", "normalize_advantages": True, "value_clip": None}  # the peers' defaults
CARTPOLE = PPO | {  # SB3 zoo
    "env": "CartPole-v1",
    "num_envs": 8,
    "rollout_length": 32,
    "minibatches": 1,
    "epochs": 20,
    "discount": 0.98,
    "gae_lambda": 0.8,
    "learning_rate": [0.001, 0.0],
    "clip_range": [0.2, 0.0],
    "entropy_weight": 0.0,
    "total_steps": 100_000,
}
LUNARLANDER = PPO | {  # SB3 zoo; its run is a million steps, of which these are the first
    "env": "LunarLander-v3",
    "num_envs": 16,
    "rollout_length": 1024,
    "minibatches": 256,  # of 64
    "epochs": 4,
    "discount": 0.999,
    "gae_lambda": 0.98,
    "learning_rate": 0.0003,
    "clip_range": 0.2,
    "entropy_weight": 0.01,
    "total_steps": 5 * 16 * 1024,
}
RECURRENT = LUNARLANDER | {
    "num_envs": 8,
    "rollout_length": 128,
    "minibatches": 8,  # of 128, the zoo's: in Birl one environment's sequence each
    "hidden_sizes": [64],
    "core": "lstm",
    "share_trunk": True,
    "total_steps": 20 * 8 * 128,
}
A2C_CARTPOLE = COMMON | {  # OpenAI Baselines' settings, which are the defaults of both
    "algorithm": "a2c",
    "env": "CartPole-v1",
    "num_envs": 8,
    "rollout_length": 5,
    "discount": 0.99,
    "gae_lambda": 1.0,
    "learning_rate": [0.0007, 0.0],
    "entropy_weight": 0.01,
    "optimizer": "rmsprop",
    "total_steps": 100_000,
}
A3C_CARTPOLE = COMMON | {  # the pattern's own settings
    "algorithm": "a3c",
    "env": "CartPole-v1",
    "num_envs": 1,  # of each actor-learner
    "pool": "processes",
    "actor_learners": 2,
    "report_every": 2000,
    "rollout_length": 5,
    "discount": 0.98,
    "learning_rate": 2e-4,
    "entropy_weight": 0.0,
    "hidden_sizes": [256],
    "activation": "relu",
    "share_trunk": True,
    "rate_from": 10_000,
    "total_steps": 60_000,
}
A3C_LUNARLANDER = A3C_CARTPOLE | {
    "env": "LunarLander-v3",
    "rollout_length": 20,
    "discount": 0.99,
    "hidden_sizes": [64, 64],
    "activation": "tanh",
    "share_trunk": False,
}
ACER_CARTPOLE = COMMON | {  # the pattern's own settings
    "algorithm": "acer",
    "env": "CartPole-v1",
    "num_envs": 1,
    "rollout_length": 10,
    "discount": 0.98,
    "learning_rate": 2e-4,
    "entropy_weight": 0.0,
    "optimizer": "adam",
    "hidden_sizes": [256],
    "activation": "relu",
    "share_trunk": True,
    "importance_truncation": 1.0,
    "replay_size": 60_000,
    "replay_ratio": 1.0,
    "batch_size": 4,
    "learning_starts": 500,
    "rate_from": 2_000,
    "total_steps": 12_000,
}
TRPO = LUNARLANDER | {
    "algorithm": "trpo",
    "max_grad_norm": None,  # this and the next: as the peer's
    "fisher_every": 1,
    "num_envs": 8,
    "rollout_length": 256,
    "minibatches": 16,  # of 128
    "epochs": 10,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 0.001,
    "max_kl": 0.01,
    "cg_steps": 15,
    "cg_damping": 0.1,
    "backtrack_factor": 0.8,
    "backtrack_tries": 10,
    "total_steps": 20 * 8 * 256,
}
DQN_CARTPOLE = COMMON | {  # SB3 zoo
    "algorithm": "dqn",
    "env": "CartPole-v1",
    "num_envs": 1,
    "rollout_length": 256,
    "update_ratio": 0.5,
    "learning_starts": 1000,
    "batch_size": 64,
    "replay_size": 100_000,
    "discount": 0.99,
    "double": False,  # the peers have no other
    "learning_rate": 2.3e-3,
    "max_grad_norm": 10.0,  # the peers' default
    "hidden_sizes": [256, 256],
    "exploration": [1.0, 0.04, 0.16],
    "target_every": 128,  # the zoo's 10 environment steps fall between updates: it is moved once in each cycle
    "peer_target_interval": 10,
    "rate_from": 2000,
    "total_steps": 12_000,
}
DQN_LUNARLANDER = DQN_CARTPOLE | {  # SB3 zoo; the first steps of its hundred thousand
    "env": "LunarLander-v3",
    "rollout_length": 4,
    "update_ratio": 1.0,
    "learning_starts": 100,
    "batch_size": 128,
    "replay_size": 50_000,
    "learning_rate": 6.3e-4,
    "exploration": [1.0, 0.1, 0.12],
    "target_every": 250,
    "peer_target_interval": 250,
    "rate_from": 500,
    "total_steps": 4_000,
}
PENDULUM = COMMON | {
    "env": "Pendulum-v1",
    "num_envs": 1,
    "rollout_length": 8,
    "update_ratio": 1.0,
    "learning_starts": 200,
    "batch_size": 256,
    "replay_size": 100_000,
    "discount": 0.99,
    "learning_rate": 1e-3,
    "actor_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "max_grad_norm": None,
    "hidden_sizes": [256, 256],
    "target_rate": 0.005,
    "noise": "gaussian",
    "exploration_noise": 0.1,
    "rate_from": 500,
    "total_steps": 2_500,
}
HALFCHEETAH_PPO = PPO | {  # SB3's defaults
    "env": "HalfCheetah-v5",
    "num_envs": 1,
    "rollout_length": 2048,
    "minibatches": 32,  # of 64
    "epochs": 10,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 0.0003,
    "clip_range": 0.2,
    "entropy_weight": 0.0,
    "total_steps": 5 * 2048,
}
HALFCHEETAH = PENDULUM | {
    "env": "HalfCheetah-v5",
    "learning_rate": 3e-4,
    "actor_learning_rate": 3e-4,
    "critic_learning_rate": 3e-4,
}
PONG = {  # the network of Mnih et al. 2015, under policy and value alike; rewards clipped to their signs
    "env": "ALE/Pong-v5",
    "encoder": "cnn",
    "activation": "relu",
    "share_trunk": True,
    "hidden_sizes": [],  # none after the convolutions' own
    "clip_rewards": True,
}
PONG_PPO = (  # SB3 zoo
    PPO
    | PONG
    | {
        "num_envs": 8,
        "rollout_length": 128,
        "minibatches": 4,  # of 256
        "epochs": 4,
        "discount": 0.99,
        "gae_lambda": 0.95,
        "learning_rate": [0.00025, 0.0],
        "clip_range": [0.1, 0.0],
        "entropy_weight": 0.01,
        "total_steps": 6 * 8 * 128,
    }
)
PONG_A2C = A2C_CARTPOLE | PONG | {"num_envs": 16, "value_weight": 0.25, "total_steps": 80 * 16 * 5}  # SB3 zoo
PONG_DQN = (  # SB3 zoo, but for a replay that fits into the peer's memory, and an earlier start
    DQN_CARTPOLE
    | PONG
    | {
        "rollout_length": 4,
        "update_ratio": 0.25,
        "learning_starts": 500,
        "batch_size": 32,
        "replay_size": 10_000,
        "frame_stack": 4,
        "learning_rate": 1e-4,
        "exploration": [1.0, 0.01, 0.1],
        "target_every": 250,
        "peer_target_interval": 1000,
        "rate_from": 700,
        "total_steps": 3_000,
    }
)
ENVPOOL = {"backend": "envpool"}

SB3 = Contender("SB3", "sb3_ppo.py", venv="peers")
SB3_A2C = Contender("SB3", "sb3_a2c.py", venv="peers")
SBX = Contender("SBX", "sbx_ppo.py", venv="peers")
CONTRIB = Contender("sb3-contrib", "sb3_recurrent_ppo.py", venv="peers")
CONTRIB_TRPO = Contender("sb3-contrib", "contrib_trpo.py", venv="peers")
OFF_POLICY = (  # SBX computes by XLA, which chooses its own number of threads
    Contender("SB3, 1 thread", "off_policy.py", venv="peers", settings={"library": "sb3"}),
    Contender("SB3, 2 threads", "off_policy.py", venv="peers", settings={"library": "sb3", "threads": 2}),
    Contender("SBX", "off_policy.py", venv="peers", settings={"library": "sbx"}),
)
SB3_OFF_POLICY = OFF_POLICY[:2]
TWO_THREADS = {"threads": 2}  # PyTorch's best for convolutions
SB3_PONG_PPO = Contender("SB3, 2 threads", "sb3_ppo.py", venv="peers", settings=TWO_THREADS)
SB3_PONG_A2C = Contender("SB3, 2 threads", "sb3_a2c.py", venv="peers", settings=TWO_THREADS)
SB3_PONG_DQN = Contender("SB3, 2 threads", "off_policy.py", venv="peers", settings=TWO_THREADS | {"library": "sb3"})
GYMNASIUM_ASYNC = Contender("AsyncVectorEnv", "gymnasium_envs.py", settings={"vectorization": "async"}, rival=True)
GYMNASIUM_SYNC = Contender("SyncVectorEnv", "gymnasium_envs.py", settings={"vectorization": "sync"}, rival=True)
WORKERS = Contender("2 workers", "birl_envs.py", settings={"workers": 2})
CEILING = Contender("environments alone", "birl_envs.py")
CEILING_ENVPOOL = Contender("EnvPool's environments alone", "birl_envs.py", settings=ENVPOOL)
BIRL = Contender("Birl", "birl_run.py", ceiling=CEILING.name)
BIRL_ALONE = Contender("Birl", "birl_run.py")  # where learning takes so long that the environments do not matter
BIRL_WORKERS = Contender("Birl, 2 workers", "birl_run.py", settings={"workers": 2}, ceiling=CEILING.name)
BIRL_FOUR_EACH = Contender("Birl, 4 environments each", "birl_run.py", settings={"num_envs": 4})
TORCH_A3C = Contender("PyTorch, a process for each worker", "torch_a3c.py", venv="peers")
TORCH_ACER = Contender("PyTorch, one environment", "torch_acer.py", venv="peers")
BIRL_EIGHT = Contender("Birl, 8 environments", "birl_run.py", settings={"num_envs": 8, "total_steps": 60_000})
ONE_PROCESS = Contender("Birl, 1 process", "birl_run.py", settings={"actor_learners": 1}, rival=True)
TWO_PROCESSES = Contender("Birl, 2 processes", "birl_run.py")
BIRL_ENVPOOL = Contender("Birl, EnvPool", "birl_run.py", settings=ENVPOOL, ceiling=CEILING_ENVPOOL.name)
# As the peers step them.
BIRL_ONE_BY_ONE = Contender("Birl, single CartPoles", "birl_run.py", settings={"one_by_one": True})
BIRL_COLD = Contender("Birl, cold", "birl_run.py", empty_cache=True)
BIRL_WARM = Contender("Birl, warm", "birl_run.py")


def off_policy_wanted(of_sb3: float, of_sbx: float) -> tuple[Wanted, ...]:
    """Limits against both peers; of SB3's two ways to run, the faster one counts."""
    limits = {"SB3": of_sb3, "SBX": of_sbx}
    return tuple(Wanted("Birl", "steps_per_second", limits[c.name.split(",")[0]], c.name) for c in OFF_POLICY)


def each_wanted(times: float, peer: Contender, *contenders: Contender) -> tuple[Wanted, ...]:
    """One limit for each of these contenders against the peer."""
    return tuple(Wanted(contender.name, "steps_per_second", times, peer.name) for contender in contenders)


def halfcheetah(algorithm: str) -> Row:
    """The work of the Pendulum rows, with 17 observations and 6 actions."""
    return Row(
        f"{algorithm.upper()} HalfCheetah-v5: 256-256, batches of 256, 8 gradient steps after every 8 steps",
        HALFCHEETAH | {"algorithm": algorithm},
        (*SB3_OFF_POLICY, BIRL_ALONE),
        tuple(Wanted("Birl", "steps_per_second", 2.5, peer.name) for peer in SB3_OFF_POLICY),
        quick_steps=1_000,
    )


ROWS = {
    "cartpole": Row(
        "PPO CartPole-v1, SB3-zoo settings: 8 environments, T 32, 20 epochs of one batch of 256",
        CARTPOLE,
        (SB3, SBX, BIRL, BIRL_ONE_BY_ONE, CEILING),
        (
            Wanted("Birl", "steps_per_second", 6.0, "SB3"),
            Wanted("Birl", "steps_per_second", 4.0, "SBX"),
            Wanted("Birl, single CartPoles", "steps_per_second", 6.0, "SB3"),
            Wanted("Birl, single CartPoles", "steps_per_second", 4.0, "SBX"),
        ),
        quick_steps=3 * 256,
    ),
    "lunarlander": Row(
        "PPO LunarLander-v3, SB3-zoo settings: 16 environments, T 1024, 4 epochs of batches of 64",
        LUNARLANDER,
        (SB3, SBX, BIRL, BIRL_WORKERS, BIRL_ENVPOOL, CEILING, CEILING_ENVPOOL),
        (
            Wanted("Birl", "steps_per_second", 6.0, "SB3"),
            Wanted("Birl, EnvPool", "steps_per_second", 8.0, "SB3"),
            Wanted("Birl", "peak_rss_mb", 700.0),
            Wanted("Birl, EnvPool", "peak_rss_mb", 700.0),
        ),
        quick_steps=2 * 16 * 1024,
    ),
    "recurrent": Row(
        "Recurrent PPO LunarLander-v3: LSTM 64, 8 environments, T 128, 4 epochs of 8 minibatches",
        RECURRENT,
        (CONTRIB, BIRL, CEILING),
        (Wanted("Birl", "steps_per_second", 8.0, "sb3-contrib"),),
        quick_steps=3 * 8 * 128,
    ),
    "trpo": Row(
        "TRPO LunarLander-v3: 8 environments, T 256, 15 steps of conjugate gradients, "
        "10 critic epochs of batches of 128",
        TRPO,
        (CONTRIB_TRPO, BIRL, BIRL_ENVPOOL, CEILING, CEILING_ENVPOOL),
        each_wanted(8.0, CONTRIB_TRPO, BIRL, BIRL_ENVPOOL),
        quick_steps=3 * 8 * 256,
    ),
    "workers-8": Row(
        "8 LunarLanders, stepped with random actions and nothing else",
        LUNARLANDER | {"num_envs": 8, "total_steps": 10 * 8 * 1024},
        (GYMNASIUM_ASYNC, GYMNASIUM_SYNC, CEILING, WORKERS),
        (Wanted("2 workers", "steps_per_second", 5.0, "AsyncVectorEnv"),),
        quick_steps=8 * 1024,
    ),
    "workers-16": Row(
        "16 LunarLanders, stepped with random actions and nothing else",
        LUNARLANDER | {"total_steps": 10 * 16 * 1024},
        (GYMNASIUM_SYNC, CEILING, WORKERS),
        (Wanted("2 workers", "steps_per_second", 1.5, "SyncVectorEnv"),),
        quick_steps=16 * 1024,
    ),
    "start": Row(
        "From process start to a mean return of 475 over 20 episodes: PPO CartPole-v1, SB3-zoo settings",
        CARTPOLE | {"wanted_return": 475.0},
        (SB3, SBX, BIRL_COLD, BIRL_WARM),
        (Wanted("Birl, cold", "seconds_to_return", 0.7, "SB3"), Wanted("Birl, warm", "seconds_to_return", 0.4, "SB3")),
        quick_steps=3 * 256,
        seeds_differ=True,
        measured="seconds_to_return",
    ),
    "a2c": Row(
        "A2C CartPole-v1, OpenAI Baselines' settings: 8 environments, n 5",
        A2C_CARTPOLE,
        (SB3_A2C, BIRL, BIRL_ONE_BY_ONE, CEILING),
        (Wanted("Birl", "steps_per_second", 5.0, "SB3"),),
        quick_steps=20 * 40,
    ),
    "a3c": Row(
        "A3C CartPole-v1: 2 processes, 5 steps between updates, one layer of 256",
        A3C_CARTPOLE,
        (TORCH_A3C, BIRL_ALONE, BIRL_FOUR_EACH),
        (
            Wanted("Birl", "steps_per_second", 6.0, TORCH_A3C.name),
            Wanted("Birl, 4 environments each", "steps_per_second", 6.0, TORCH_A3C.name),
        ),
        quick_steps=20_000,
    ),
    "a3c-lunarlander": Row(
        "A3C LunarLander-v3: 20 steps between updates, 64-64, with one process and with two",
        A3C_LUNARLANDER,
        (ONE_PROCESS, TWO_PROCESSES),
        (Wanted("Birl, 2 processes", "steps_per_second", 1.7, "Birl, 1 process"),),
        quick_steps=20_000,
    ),
    "acer": Row(
        "ACER CartPole-v1: 10 steps between updates, as many updates from 4 kept sequences, one layer of 256",
        ACER_CARTPOLE,
        (TORCH_ACER, BIRL_ALONE, BIRL_EIGHT),
        (
            Wanted("Birl", "steps_per_second", 10.0, TORCH_ACER.name),
            Wanted("Birl, 8 environments", "steps_per_second", 10.0, TORCH_ACER.name),
        ),
        quick_steps=3_000,
    ),
    "dqn-cartpole": Row(
        "DQN CartPole-v1, SB3-zoo settings: 256-256, 128 gradient steps on batches of 64 after every 256 steps",
        DQN_CARTPOLE,
        (*OFF_POLICY, BIRL_ALONE),
        off_policy_wanted(4.0, 1.5),
        quick_steps=3_000,
    ),
    "dqn-lunarlander": Row(
        "DQN LunarLander-v3, SB3-zoo settings: 256-256, 4 gradient steps on batches of 128 after every 4 steps",
        DQN_LUNARLANDER,
        (*OFF_POLICY, BIRL_ALONE),
        off_policy_wanted(4.5, 3.0),
        quick_steps=1_000,
    ),
    "atari-ppo": Row(
        "PPO Pong, SB3-zoo settings: 8 environments, T 128, 4 epochs of batches of 256, "
        "convolutions of Mnih et al. 2015",
        PONG_PPO,
        (SB3_PONG_PPO, BIRL, BIRL_WORKERS, BIRL_ENVPOOL, CEILING, CEILING_ENVPOOL),
        each_wanted(1.3, SB3_PONG_PPO, BIRL, BIRL_ENVPOOL),
        quick_steps=3 * 8 * 128,
    ),
    "atari-a2c": Row(
        "A2C Pong, SB3-zoo settings: 16 environments, n 5, convolutions of Mnih et al. 2015",
        PONG_A2C,
        (SB3_PONG_A2C, BIRL, BIRL_WORKERS, BIRL_ENVPOOL, CEILING, CEILING_ENVPOOL),
        each_wanted(1.8, SB3_PONG_A2C, BIRL, BIRL_ENVPOOL),
        quick_steps=10 * 16 * 5,
    ),
    "atari-dqn": Row(
        "DQN Pong, SB3-zoo settings: a gradient step on a batch of 32 after every 4 steps, "
        "convolutions of Mnih et al. 2015",
        PONG_DQN,
        (SB3_PONG_DQN, BIRL_ALONE, BIRL_ENVPOOL, CEILING_ENVPOOL),
        each_wanted(1.8, SB3_PONG_DQN, BIRL_ALONE, BIRL_ENVPOOL),
        quick_steps=1_000,
    ),
    "mujoco-ppo": Row(
        "PPO HalfCheetah-v5, SB3's defaults: 1 environment, T 2048, 10 epochs of batches of 64",
        HALFCHEETAH_PPO,
        (SB3, BIRL, CEILING),
        (Wanted("Birl", "steps_per_second", 6.0, "SB3"),),
        quick_steps=3 * 2048,
    ),
    "mujoco-td3": halfcheetah("td3"),
    "mujoco-sac": halfcheetah("sac"),
} | {
    algorithm: Row(
        f"{algorithm.upper()} Pendulum-v1: 256-256, batches of 256, 8 gradient steps after every 8 steps",
        PENDULUM | {"algorithm": algorithm},
        (*OFF_POLICY, BIRL_ALONE),
        off_policy_wanted(2.5, limit),
        quick_steps=1_000,
    )
    for algorithm, limit in (("ddpg", 1.5), ("td3", 1.5), ("sac", 1.4))
}
