"""Make the gallery: a GIF, a learning curve and a line of a table for each algorithm.

    python docs/gallery.py                  train what is missing in runs/gallery, then draw all
    python docs/gallery.py --runs FOLDER    take the runs of another folder, such as FOLDER/ppo

Each algorithm is trained once (seed 1) with the preset of its environment, for the steps below. A
finished run is taken as it is, and one that was stopped is continued. The GIF is the beginning of
an episode of the final policy. The tables are between the markers of docs/gallery.md and its
Chinese twin; all their numbers are from the runs' summary.json.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import imageio_ffmpeg

import birl
from birl.run.plot import plot_runs

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images" / "gallery"
TASKS = {  # algorithm: environment and steps; fewer than the preset's where that takes long
    "reinforce": ("CartPole-v1", 200_000),
    "qac": ("CartPole-v1", 500_000),
    "a2c": ("LunarLander-v3", 1_000_000),
    "ppo": ("LunarLander-v3", 1_000_000),
    "trpo": ("LunarLander-v3", 500_000),
    "dqn": ("MountainCar-v0", 120_000),
    "dpg": ("Pendulum-v1", 300_000),
    "ddpg": ("Pendulum-v1", 20_000),
    "td3": ("Pendulum-v1", 20_000),
    "sac": ("Pendulum-v1", 20_000),
    "a3c": ("CartPole-v1", 500_000),
    "async-q": ("CartPole-v1", 100_000),
    "async-sarsa": ("CartPole-v1", 100_000),
    "async-nstep-q": ("CartPole-v1", 100_000),
    "acer": ("CartPole-v1", 50_000),
    "qr-dqn": ("Acrobot-v1", 100_000),
    "c51": ("CartPole-v1", 50_000),
}
SECTION = re.compile(r"(<!-- gallery:begin -->\n).*?(<!-- gallery:end -->)", re.DOTALL)
HEADERS = {  # of the numbers, and of the pictures
    "": (("algorithm", "environment", "steps", "seconds", "return"), ("algorithm", "the policy", "its curve")),
    ".zh-CN": (("算法", "环境", "步数", "秒", "回报"), ("算法", "策略", "曲线")),
}
ALTERNATIVES = {"": ("{} plays {}", "{} learns {}"), ".zh-CN": ("{} 在玩 {}", "{} 在 {} 上的学习曲线")}
GIF_WIDTH = 240
GIF_FPS = 12
GIF_BYTES = 300_000
GIF_SECONDS = (10, 8, 6, 5, 4, 3, 2)  # the longest whose file is small enough


def trained(algorithm: str, folder: Path) -> dict[str, Any]:
    """The summary of this algorithm's run in a folder; it is trained first if it has not ended."""
    env, steps = TASKS[algorithm]
    run_dir = folder / algorithm
    if not run_dir.exists():
        return birl.train(algorithm, env, total_steps=steps, seed=1, run_dir=str(run_dir))
    summary = run_dir / "summary.json"
    known = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    return known if known.get("env_steps", 0) >= steps else birl.resume(run_dir)


def write_gif(run_dir: Path, out: Path) -> None:
    """Record one episode, and write its beginning as a GIF of at most GIF_BYTES."""
    with tempfile.TemporaryDirectory() as scratch:
        video, _ = birl.record(run_dir, Path(scratch) / "episode.mp4")
        for seconds in GIF_SECONDS:
            _convert(video, out, seconds)
            if out.stat().st_size <= GIF_BYTES:
                return
    raise RuntimeError(f"{out} has {out.stat().st_size:,} bytes, more than {GIF_BYTES:,}; lower GIF_WIDTH or GIF_FPS")


def tables(summaries: dict[str, dict[str, Any]], suffix: str) -> str:
    """The gallery in Markdown: numbers, then pictures, with links to pages of this suffix."""
    numbers, pictures = HEADERS[suffix]
    lines = [f"| {' | '.join(numbers)} |", "|---|---|---:|---:|---:|"]
    lines += [_numbers(algorithm, summary, suffix) for algorithm, summary in summaries.items()]
    lines += ["", f"| {' | '.join(pictures)} |", "|---|---|---|"]
    lines += [_pictures(algorithm, suffix) for algorithm in summaries]
    return "\n".join(lines)


def with_tables(text: str, summaries: dict[str, dict[str, Any]], suffix: str) -> str:
    """The text of a page with the tables between its markers."""
    made = tables(summaries, suffix)
    return SECTION.sub(lambda found: f"{found[1]}\n{made}\n\n{found[2]}", text)


def make(folder: Path, algorithms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Train and draw these algorithms; their summaries."""
    summaries = {}
    IMAGES.mkdir(parents=True, exist_ok=True)
    for algorithm in algorithms:
        summaries[algorithm] = trained(algorithm, folder)
        write_gif(folder / algorithm, IMAGES / f"{algorithm}.gif")
        plot_runs([folder / algorithm], IMAGES / f"{algorithm}.png")
        sys.stdout.write(f"{algorithm}: {summaries[algorithm]['evaluation']['return_mean']:.1f}\n")
    return summaries


def main() -> None:
    parser = argparse.ArgumentParser(description="make the gallery", allow_abbrev=False)
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"), help="a run for each algorithm, by its name")
    summaries = make(parser.parse_args().runs, TASKS)
    for suffix in HEADERS:
        page = DOCS / f"gallery{suffix}.md"
        page.write_text(with_tables(page.read_text(encoding="utf-8"), summaries, suffix), encoding="utf-8")


def _convert(video: Path, out: Path, seconds: int) -> None:
    size = f"fps={GIF_FPS},scale={GIF_WIDTH}:-1:flags=lanczos"
    palette = f"{size},split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-t", str(seconds), "-i", str(video)]
    subprocess.run([*command, "-filter_complex", palette, str(out)], check=True)


def _numbers(algorithm: str, summary: dict[str, Any], suffix: str) -> str:
    steps, seconds, score = summary["env_steps"], summary["wall_seconds"], summary["evaluation"]["return_mean"]
    link = f"[{algorithm}]({algorithm}{suffix}.md)"
    return f"| {link} | {TASKS[algorithm][0]} | {steps:,} | {seconds:.0f} | {score:.1f} |"


def _pictures(algorithm: str, suffix: str) -> str:
    plays, learns = (words.format(algorithm, TASKS[algorithm][0]) for words in ALTERNATIVES[suffix])
    picture = f"images/gallery/{algorithm}"
    return f"| {algorithm} | ![{plays}]({picture}.gif) | ![{learns}]({picture}.png) |"


if __name__ == "__main__":
    main()
