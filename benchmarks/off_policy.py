"""What a replay costs in memory and time, and how near an update is to the arithmetic it does.

    python benchmarks/off_policy.py                   everything; ten minutes, 7 GB of memory
    python benchmarks/off_policy.py --parts memory    or flat, images, ratio, limit

Each part runs in a process of its own, so that one's memory is not another's.
"""

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from results import RESULTS, machine, table, today, write_section

import birl
from birl.algos import ddpg, dqn
from birl.presets.atari import IMAGES
from birl.rollouts.replay import Replay
from birl.types import Rollout, Transitions

Figures = list[list[str]]  # what, measured, wanted
FRAMES, SIDE = 4, 84
TRANSITIONS = 1_000_000
WINDOW, WINDOWS = 5_000, 5  # steps, and of how many such stretches a median is taken


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # Linux counts in KiB


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def frames_of_games(length: int, num_envs: int) -> Iterator[Rollout]:
    """Rollouts of random stacked frames in one endless episode.

    Every byte is written, so that the memory is resident.
    """
    rng = np.random.default_rng(0)
    newest = np.zeros((1, num_envs, SIDE, SIDE), np.uint8)
    history = np.repeat(newest, FRAMES, axis=0)
    nothing, always = np.zeros((length, num_envs), np.float32), np.ones((length, num_envs), bool)
    while True:
        frames = np.concatenate([history, rng.integers(256, size=(length, num_envs, SIDE, SIDE), dtype=np.uint8)])
        stacks = np.stack([frames[i : i + length + 1] for i in range(FRAMES)], axis=2)
        yield Rollout(stacks, nothing.astype(np.int32), nothing, ~always, ~always, always, ())
        history = frames[-FRAMES:]


def measure_memory() -> Figures:
    """A million Atari-sized transitions, and the time to draw 32 of them."""
    length, num_envs = 64, 8
    rollouts = frames_of_games(length, num_envs)
    first = next(rollouts)
    replay = Replay(TRANSITIONS, first, 0.99, frame_stack=FRAMES)
    replay.add(first)
    while len(replay) < TRANSITIONS:
        replay.add(next(rollouts))
    rng = np.random.default_rng(0)
    seconds = best_of(20, lambda: replay.gather(replay.sample_indices(rng, (32,))))
    size = f"{TRANSITIONS:,} transitions of {FRAMES} x {SIDE} x {SIDE}"
    return [
        [
            f"resident memory with {size}, GB",
            f"{peak_gigabytes():.2f} (replay alone {replay.bytes / 1e9:.2f})",
            "at most 7.5",
        ],
        ["drawing 32 of them with their successors, ms", f"{1e3 * seconds:.2f}", "under 1"],
    ]


def measure_flat() -> Figures:
    """Steps per second and memory, early and late in a run, its replay full before both."""
    config = dqn.Config(
        env=birl.EnvConfig("CartPole-v1", num_envs=8),
        run=birl.RunConfig(total_steps=230_000),
        rollout_length=8,
        update_ratio=1 / 16,
        replay_size=10_000,
        exploration=1.0,  # so that episodes are as long in the end as in the beginning
    )
    return flatness(config, early=20_000, late=200_000)


def measure_images() -> Figures:
    """Images: Pong with the network and batch of Mnih et al. 2015, and a replay that is full."""
    config = dqn.Config(
        env=birl.EnvConfig("ALE/Pong-v5", num_envs=8),
        run=birl.RunConfig(total_steps=125_000),
        rollout_length=16,
        update_ratio=1 / 32,
        replay_size=20_000,
        learning_starts=2_000,
        batch_size=32,
        exploration=1.0,
        **IMAGES,
    )
    return flatness(config, early=30_000, late=95_000)


def flatness(config: dqn.Config, early: int, late: int) -> Figures:
    """Steps per second late in a run beside those early in one, and memory.

    The two runs take turns, because the machine's own speed drifts.
    """
    old, young, env = windows(config), windows(config), config.env.id
    memory = []
    for steps in (early, late - early):
        skip(old, steps)
        memory.append(resident_megabytes())
    skip(young, early)
    rates = [(next(old), next(young)) for _ in range(WINDOWS)]
    ratio = statistics.median(mine / other for mine, other in rates)
    now, then = (statistics.median(each) for each in zip(*rates, strict=True))
    return [
        [
            f"{env}: steps per second after {late:,} steps over those of a second run after {early:,}, by turns",
            f"{ratio:.3f} ({now:,.0f} / {then:,.0f})",
            "at least 0.95",
        ],
        [
            f"{env}: memory grown between {early:,} and {late:,} steps, MB",
            f"{memory[1] - memory[0]:.1f} of {memory[0]:.0f}",
            "none",
        ],
    ]


def windows(config: dqn.Config) -> Iterator[float]:
    """Steps per second of each stretch of a run; the clock stops between stretches."""
    steps, began = 0, time.perf_counter()
    for update in dqn.train(config):
        now = int(update.state.env_steps)
        if now >= steps + WINDOW:
            yield (now - steps) / (time.perf_counter() - began)
            steps, began = now, time.perf_counter()


def skip(run: Iterator[float], steps: int) -> None:
    for _ in range(steps // WINDOW):
        next(run)


def ddpg_config(rollout_length: int, update_ratio: float, total_steps: int) -> ddpg.Config:
    env, run = birl.EnvConfig("Pendulum-v1", num_envs=1), birl.RunConfig(total_steps=total_steps)
    return ddpg.Config(
        env=env,
        run=run,
        rollout_length=rollout_length,
        update_ratio=update_ratio,
        learning_starts=200,
        noise="gaussian",
    )


def ddpg_rate(rollout_length: int, update_ratio: float, total_steps: int) -> float:
    """Environment steps per second of DDPG with 256-256 and batches of 256, once compiled."""
    began, steps = 0.0, 0
    for update in ddpg.train(ddpg_config(rollout_length, update_ratio, total_steps)):
        if began == 0.0 and int(update.state.env_steps) >= 400:
            began, steps = time.perf_counter(), int(update.state.env_steps)
    return (int(update.state.env_steps) - steps) / (time.perf_counter() - began)


def measure_ratio() -> Figures:
    """How steps per second grow with fewer gradient steps, in the default and a longer rollout."""
    figures = []
    for length in (8, 64):
        every, eighth = ddpg_rate(length, 1.0, 6_000), ddpg_rate(length, 0.125, 20_000)
        what = f"DDPG Pendulum, cycles of {length} steps: one gradient step in 8 steps over one in each"
        figures.append([what, f"{eighth / every:.2f} ({eighth:,.0f} / {every:,.0f})", "at least 5"])
    return figures


def measure_limit() -> Figures:
    """The arithmetic of a DDPG update against what matrix products alone reach here."""
    config = ddpg_config(64, 1.0, 10_000)
    size, width = config.replay.batch_size, config.network.hidden_sizes[0]
    with birl.envs.make.open_envs(config.env, 1, None) as envs:
        state = ddpg.init(config, envs.observation_space, envs.action_space)
    inputs, actions = 3, 1
    actor, critic = width * (inputs + width + actions), width * (inputs + actions + width + 1)
    # Forward is one product, backward two; the first layer's missing one is small.
    products = 2 * size * (actor + critic + 3 * critic + 3 * actor + 2 * critic)
    rng = np.random.default_rng(0)
    shape = (64, size)
    batches = Transitions(
        rng.normal(size=(*shape, inputs)).astype(np.float32),
        rng.normal(size=(*shape, actions)).astype(np.float32),
        rng.normal(size=shape).astype(np.float32),
        np.full(shape, 0.99, np.float32),
        rng.normal(size=(*shape, inputs)).astype(np.float32),
    )
    learn = jax.jit(
        lambda state, batches: jax.lax.scan(lambda s, b: ddpg.learn(s, b, 1e-3, 1e-3, config), state, batches)[0]
    )
    seconds = best_of(5, lambda: jax.block_until_ready(learn(state, batches))) / shape[0]
    square = (
        jnp.asarray(rng.normal(size=(size, width)).astype(np.float32)),
        jnp.asarray(rng.normal(size=(width, width)).astype(np.float32)),
    )
    chain = jax.jit(lambda x, w: jax.lax.fori_loop(0, 200, lambda _, x: x @ w * 0.06, x))
    alone = best_of(5, lambda: jax.block_until_ready(chain(*square))) / 200
    reached, limit = products / seconds / 1e9, 2 * size * width * width / alone / 1e9
    return [
        [
            "DDPG's update (256-256, batch 256): share of the rate of matrix products alone",
            f"{reached / limit:.2f} ({reached:.0f} / {limit:.0f} GFLOP/s; "
            f"{products / 1e6:.0f} MFLOP in {1e3 * seconds:.2f} ms)",
            "at least 0.7",
        ],
        ["of that update, not matrix products, ms", f"{1e3 * (seconds - products / limit / 1e9):.2f}", ""],
    ]


def best_of(times: int, work: Callable[[], Any]) -> float:
    """Seconds of the quickest of so many, after one that is not counted."""
    work()
    best = math.inf
    for _ in range(times):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


PARTS: dict[str, Callable[[], Figures]] = {
    "memory": measure_memory,
    "flat": measure_flat,
    "images": measure_images,
    "ratio": measure_ratio,
    "limit": measure_limit,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--in-this-process", action="store_true", help="measure the one part here and print it as JSON")
    arguments = parser.parse_args()
    if arguments.in_this_process:
        print(json.dumps(PARTS[arguments.parts[0]]()))
        return 0
    where, rows = machine(), []
    for part in arguments.parts:
        command = [sys.executable, __file__, "--in-this-process", "--parts", part]
        figures = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
        rows += [[part, *figure] for figure in figures]
        print(table(["part", "figure", "measured", "wanted"], rows[-len(figures) :]), flush=True)
    if set(arguments.parts) == set(PARTS):
        body = table(["part", "figure", "measured", "wanted"], rows)
        write_section(
            RESULTS,
            "off-policy",
            f"## Replay and updates\n\n{body}\n\n{today()}; {where}. `python benchmarks/off_policy.py`",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
