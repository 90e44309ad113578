"""`birl doctor`: checks an installation in about ten seconds.

It reports versions and devices, then trains, resumes, renders and records a video.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from birl.algos import ppo
from birl.config import EnvConfig, RunConfig
from birl.envs.make import make_env
from birl.envs.registration import PACKAGES
from birl.errors import install_extra
from birl.parts import NormalizeConfig
from birl.run.checkpoint import checkpoints_in, load_checkpoint
from birl.run.directory import CHECKPOINTS
from birl.run.record import film, render_off_screen
from birl.run.start import resume, train
from birl.run.versions import versions
from birl.speed import cache_directory

# The package of each extra.
EXTRAS = {
    "atari": "ale-py", "mujoco": "mujoco", "envpool": "envpool", "minari": "minari", "wandb": "wandb",
    "trackio": "trackio", "ray": "ray", "hub": "huggingface_hub",
}  # fmt: skip
MODULES = {"ale-py": "ale_py"}  # modules that are not named like their package
LEAST_FREE = 1e9  # bytes of disk space: enough for checkpoints and videos of a few runs
REINSTALL = "reinstall Birl in an empty environment: pip install --force-reinstall . in a clone of Birl"


@dataclass(frozen=True)
class Check:
    """One part of the installation to check."""

    title: str
    run: Callable[[Path], str]  # returns what it found, or raises; all checks share this directory
    remedy: str


def examine(say: Callable[[str], None]) -> bool:
    """Report what was found, line by line; whether everything works."""
    installed = versions()
    say(f"birl {installed['birl']}, Python {installed['python']}, {platform.platform()}")
    say(", ".join(f"{name} {version}" for name, version in installed.items() if name not in ("birl", "python")))
    for extra, package in EXTRAS.items():
        say(_describe_extra(extra, package))
    for module, other in PACKAGES.items():
        if (conflict := other.conflict()) and importlib.util.find_spec(module) is not None:
            say(f"warning {conflict}")
    with tempfile.TemporaryDirectory(prefix="birl-doctor-") as directory:
        results = [_examine_one(check, Path(directory), say) for check in CHECKS]
    failed = results.count(False)
    say("everything works" if not failed else f"{failed} of {len(results)} checks failed")
    return not failed


def _describe_extra(extra: str, package: str) -> str:
    if importlib.util.find_spec(MODULES.get(package, package)) is None:
        return f"-       {extra}: not installed (optional): {install_extra(extra)}"
    return f"ok      {extra}: {package} {importlib.metadata.version(package)}"


def _examine_one(check: Check, directory: Path, say: Callable[[str], None]) -> bool:
    began = time.perf_counter()
    try:
        found = check.run(directory)
    except Exception as problem:  # of any kind: finding it is the purpose of the check
        say(f"failed  {check.title}: {type(problem).__name__}: {problem}. Remedy: {check.remedy}")
        return False
    say(f"ok      {check.title}: {found} ({time.perf_counter() - began:.1f} s)")
    return True


def find_devices(directory: Path) -> str:
    found = ", ".join(f"{device.platform} ({device.device_kind})" for device in jax.devices())
    unused_gpu = jax.default_backend() == "cpu" and shutil.which("nvidia-smi") is not None
    return found + (f"; an NVIDIA driver is installed: {install_extra('cuda')} to use the GPU" if unused_gpu else "")


def check_cache(directory: Path) -> str:
    cache = cache_directory()
    if cache is None:
        return "not used, because birl/accel is switched off"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache) as file:
        file.write(b"birl")
    sizes = [path.stat().st_size for path in cache.rglob("*") if path.is_file()]
    return f"{cache} is writable, {sum(sizes) / 1e6:,.0f} MB in {len(sizes)} files; you may delete it at any time"


def check_disk(directory: Path) -> str:
    free = shutil.disk_usage(Path.cwd()).free
    if free < LEAST_FREE:
        raise OSError(f"only {free / 1e9:.1f} GB free in {Path.cwd()}")
    return f"{free / 1e9:,.0f} GB free in {Path.cwd()}"


def train_a_little(directory: Path) -> str:
    """Train for four updates on CartPole, with a checkpoint after every second one."""
    run = RunConfig(
        total_steps=1000, checkpoint_every=500, keep_checkpoints=9, eval_episodes=2, run_dir=str(directory / "whole")
    )
    config = ppo.Config(
        EnvConfig("CartPole-v1"),
        run,
        normalize=NormalizeConfig(normalize_observations=True),
        rollout_length=32,
        epochs=2,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        summary = train(config)
    return f"PPO took {summary['env_steps']} steps on CartPole-v1"


def resume_exactly(directory: Path) -> str:
    """Resume the run from its first checkpoint, and compare the two results."""
    shutil.copytree(directory / "whole", directory / "resumed")
    first, *later = checkpoints_in(directory / "resumed" / CHECKPOINTS)
    for path in later:
        shutil.rmtree(path)
    with contextlib.redirect_stdout(io.StringIO()):
        resume(directory / "resumed")
    ends = [checkpoints_in(directory / name / CHECKPOINTS)[-1] for name in ("whole", "resumed")]
    whole, resumed = (load_checkpoint(path) for path in ends)
    different = [name for name, tensor in whole.tensors.items() if tensor.tobytes() != resumed.tensors[name].tobytes()]
    if different:
        raise RuntimeError(f"{different} differ after a resume from {first.name}")
    same = f"{len(whole.tensors)} tensors are the same, bit for bit"
    return f"resumed from step {int(first.name)}; at step {whole.env_steps} all {same}"


def render(directory: Path) -> str:
    render_off_screen()
    with make_env(EnvConfig("CartPole-v1"), "rgb_array") as env:
        env.reset(seed=0)
        frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.min() == frame.max():
        raise RuntimeError(f"CartPole-v1 was rendered as an empty image of shape {frame.shape}")
    return f"CartPole-v1 as an image of {frame.shape[1]} x {frame.shape[0]}"


def encode_video(directory: Path) -> str:
    path = film([np.full((64, 64, 3), 50 * i, np.uint8) for i in range(5)], directory / "film.mp4", fps=30)
    return f"5 frames to an mp4 of {path.stat().st_size:,} bytes"


CHECKS = [
    Check("devices", find_devices, "unset JAX_PLATFORMS, or pip install --force-reinstall jax jaxlib"),
    Check("cache", check_cache, "set BIRL_CACHE_DIR to a writable directory; without it every start compiles again"),
    Check("disk", check_disk, "free some space, or set --run-dir to another disk"),
    Check("training", train_a_little, REINSTALL),
    Check("resume", resume_exactly, "please report this, with the whole output"),
    Check("rendering", render, "pip install 'gymnasium[classic-control]'"),
    Check("video", encode_video, "pip install --force-reinstall imageio-ffmpeg"),
]
