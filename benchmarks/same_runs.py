"""Whether this version of Birl trains to the same bits as an earlier one, for every algorithm.

    python benchmarks/same_runs.py f15d23b

Each case is a short run with a fixed seed. Its digest covers every array of the final state and
every metric but the times. The earlier version is checked out beside this one and runs in this
one's venv. Exit code 1 if a digest differs, or a run fails.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = "BirlImages-v0"
CNN = {"encoder": "cnn_small"}
# A process sets JAX up in its first run: without this, bits would depend on the order of cases.
ONE_THREAD = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=false"}
SMALL = {"replay_size": 2000, "learning_starts": 64}
SERIAL = {"pool": "serial", "actor_learners": 2, "report_every": 100}

# name: (algorithm, environment, environment settings, settings, environment steps)
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], int]] = {
    "reinforce": ("reinforce", "CartPole-v1", {}, {"rollout_length": 64}, 2000),
    "reinforce, lstm": ("reinforce", "CartPole-v1", {"num_envs": 4}, {"rollout_length": 64, "core": "lstm"}, 1000),
    "reinforce, images": ("reinforce", IMAGES, {"num_envs": 2}, {"rollout_length": 16} | CNN, 100),
    "qac": ("qac", "CartPole-v1", {}, {}, 2000),
    "qac, v, gru": ("qac", "CartPole-v1", {"num_envs": 4}, {"critic": "v", "core": "gru"}, 1000),
    "qac, images": ("qac", IMAGES, {"num_envs": 2}, CNN, 100),
    "a2c": ("a2c", "CartPole-v1", {}, {}, 2000),
    "a2c, Box": (
        "a2c",
        "Pendulum-v1",
        {"num_envs": 4},
        {"normalize_observations": True, "normalize_rewards": True},
        1000,
    ),
    "a2c, lstm": ("a2c", "CartPole-v1", {"num_envs": 4}, {"core": "lstm"}, 1000),
    "a2c, images": ("a2c", IMAGES, {"num_envs": 4}, {"share_trunk": True, "clip_rewards": True} | CNN, 200),
    "a2c, images, lstm": ("a2c", IMAGES, {"num_envs": 2}, {"share_trunk": True, "core": "lstm"} | CNN, 100),
    "ppo": ("ppo", "CartPole-v1", {}, {"rollout_length": 32}, 2000),
    "ppo, workers": ("ppo", "CartPole-v1", {"num_envs": 4, "workers": 2}, {"rollout_length": 32}, 1000),
    "ppo, kl, Box": (
        "ppo",
        "Pendulum-v1",
        {"num_envs": 4},
        {"rollout_length": 32, "objective": "kl", "target_kl": 0.02},
        1000,
    ),
    "ppo, lnlstm": ("ppo", "CartPole-v1", {"num_envs": 4}, {"rollout_length": 32, "core": "lnlstm"}, 1000),
    "ppo, gru": ("ppo", "CartPole-v1", {"num_envs": 4}, {"rollout_length": 32, "core": "gru", "value_clip": 0.2}, 1000),
    "ppo, images": (
        "ppo",
        IMAGES,
        {"num_envs": 4},
        {"rollout_length": 16, "share_trunk": True, "clip_rewards": True} | CNN,
        200,
    ),
    "ppo, images, apart": ("ppo", IMAGES, {"num_envs": 2}, {"rollout_length": 16, "minibatches": 2} | CNN, 100),
    "trpo": ("trpo", "CartPole-v1", {}, {"rollout_length": 64}, 1500),
    "trpo, Box, lstm": (
        "trpo",
        "Pendulum-v1",
        {"num_envs": 4},
        {"rollout_length": 64, "core": "lstm", "minibatches": 2},
        800,
    ),
    "trpo, images": ("trpo", IMAGES, {"num_envs": 2}, {"rollout_length": 32, "minibatches": 2} | CNN, 128),
    "dqn": ("dqn", "CartPole-v1", {"num_envs": 2}, SMALL, 600),
    "dqn, all": ("dqn", "CartPole-v1", {}, SMALL | {"dueling": True, "prioritized": True, "n_step": 3}, 600),
    "dqn, lstm": (
        "dqn",
        "CartPole-v1",
        {"num_envs": 2},
        SMALL | {"core": "lstm", "rollout_length": 8, "burn_in": 2},
        400,
    ),
    "dqn, images": ("dqn", IMAGES, {}, SMALL | {"batch_size": 8, "clip_rewards": True} | CNN, 200),
    "dpg": ("dpg", "Pendulum-v1", {}, {}, 600),
    "ddpg, ou": ("ddpg", "Pendulum-v1", {"num_envs": 2}, SMALL | {"noise": "ou"}, 400),
    "ddpg, gaussian": ("ddpg", "Pendulum-v1", {}, SMALL | {"noise": "gaussian"}, 400),
    "ddpg, parameter": (
        "ddpg",
        "Pendulum-v1",
        {"num_envs": 2},
        SMALL | {"noise": "parameter", "layer_norm": True},
        400,
    ),
    "td3": ("td3", "Pendulum-v1", {}, SMALL, 400),
    "sac": ("sac", "Pendulum-v1", {"num_envs": 2}, SMALL, 400),
    "a3c": ("a3c", "CartPole-v1", {"num_envs": 2}, SERIAL, 800),
    "a3c, Box, lstm": ("a3c", "Pendulum-v1", {}, SERIAL | {"core": "lstm", "normalize_rewards": True}, 400),
    "a3c, images": ("a3c", IMAGES, {}, SERIAL | CNN, 100),
    "async-q": ("async-q", "CartPole-v1", {}, SERIAL | {"normalize_observations": True}, 800),
    "async-q, gru": ("async-q", "CartPole-v1", {"num_envs": 2}, SERIAL | {"core": "gru"}, 400),
    "async-sarsa": ("async-sarsa", "CartPole-v1", {"num_envs": 2}, SERIAL, 800),
    "async-nstep-q": ("async-nstep-q", "CartPole-v1", {}, SERIAL | {"normalize_rewards": True}, 800),
    "async-nstep-q, images": ("async-nstep-q", IMAGES, {}, SERIAL | CNN, 100),
    "acer": ("acer", "CartPole-v1", {"num_envs": 4}, SMALL, 800),
    "acer, Box": ("acer", "Pendulum-v1", {"num_envs": 2}, SMALL, 400),
    "acer, lstm": ("acer", "CartPole-v1", {"num_envs": 2}, SMALL | {"core": "lstm"}, 400),
    "acer, images": ("acer", IMAGES, {"num_envs": 2}, SMALL | CNN, 200),
    "acer, serial": ("acer", "CartPole-v1", {"num_envs": 2}, SMALL | SERIAL, 800),
}


def register_images() -> None:
    """An environment of 48 x 48 x 3 bytes, two actions and episodes of 7 or more steps."""
    import gymnasium as gym
    import numpy as np

    class Images(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (48, 48, 3), np.uint8)
        action_space = gym.spaces.Discrete(2)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return self._picture(), {}

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self._picture(), float(action) * 2 - 0.5, bool(self.np_random.random() < 0.1), False, {}

        def _picture(self) -> Any:
            return self.np_random.integers(0, 256, (48, 48, 3), np.uint8)

    gym.register(IMAGES, lambda **_: Images(), max_episode_steps=20)


def digest(name: str) -> str:
    """The digest of one case, run by whichever Birl is imported."""
    import jax
    import numpy as np

    import birl

    algorithm_name, env_id, env_settings, settings, total_steps = CASES[name]
    algorithm = getattr(birl, algorithm_name.replace("-", "_"))
    config = algorithm.Config(run=birl.RunConfig(total_steps=total_steps, seed=3), **settings)
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, id=env_id, **env_settings))
    found = hashlib.sha256()
    update = None
    for update in algorithm.train(config):
        for metric, value in sorted(update.metrics.items()):
            if not metric.startswith("time/"):
                found.update(f"{metric}={float(value)!r};".encode())
    assert update is not None
    for leaf in jax.tree.leaves(update.state):
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def print_digests(names: list[str]) -> None:
    register_images()
    for name in names:
        try:
            found = digest(name)
        except Exception as problem:
            found = f"{type(problem).__name__}: {str(problem)[:200]}"
        print(json.dumps([name, found]), flush=True)


def digests(checkout: Path, names: list[str]) -> dict[str, str]:
    """The digests of these cases by a checkout's Birl; one process for each kind of observation."""
    found: dict[str, str] = {}
    for images in (False, True):
        some = [name for name in names if ("images" in name) == images]
        if some:
            environment = os.environ | {"PYTHONPATH": str(checkout)} | ({} if images else ONE_THREAD)
            command = [sys.executable, __file__, "--print", *some]
            lines = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            ).stdout.splitlines()
            found |= dict(json.loads(line) for line in lines)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="same seeds, same bits as an earlier version", allow_abbrev=False)
    parser.add_argument("revision", nargs="?", help="the earlier version, as git knows it")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--print", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help="write this version's digests to a file and compare nothing")
    parser.add_argument("--against", type=Path, help="compare with such a file instead of a revision")
    arguments = parser.parse_args()
    if arguments.print:
        print_digests(arguments.print)
        return 0
    after = digests(ROOT, arguments.cases)
    if arguments.save:
        arguments.save.write_text(json.dumps(after, indent=1))
        return 0
    if arguments.against:
        before = json.loads(arguments.against.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="birl-same-") as scratch:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), scratch], check=True)
            subprocess.run(["git", "checkout", "--quiet", arguments.revision], cwd=scratch, check=True)
            before = digests(Path(scratch), arguments.cases)
    # A run that fails has an error in place of its digest, maybe the same one in both versions.
    different = [name for name in arguments.cases if before[name] != after[name] or ": " in after[name]]
    for name in arguments.cases:
        print(f"{'DIFFERENT' if name in different else 'same':10} {name:24} {before[name]} {after[name]}")
    print(f"{len(arguments.cases) - len(different)} of {len(arguments.cases)} runs are the same bit for bit")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
