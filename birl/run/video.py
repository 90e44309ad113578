"""Writing frames to an mp4 or a GIF that every browser plays, with one frame in memory at a
time.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np

from birl.run.lock import own_partial, remove_abandoned

# Quality 6 of 10 is x264's crf 20, where flat colours show no blocks. The index comes first, so
# that a browser plays before it has everything.
MP4_OPTIONS: dict[str, Any] = {"codec": "libx264", "quality": 6, "output_params": ["-movflags", "+faststart"]}


ENDINGS = (".mp4", ".gif")
GIF_FPS = 25  # at most: viewers slow down GIFs with more
GIF_WIDTH = 480  # at most, so that a page with a GIF loads quickly


def write_video(frames: Iterable[np.ndarray], path: Path, fps: float) -> Path:
    """Write these [H, W, 3] uint8 frames to a new mp4 (H.264, yuv420p) or GIF; its path.

    An existing file is never overwritten: the new one is then NAME-2.mp4, NAME-3.mp4, ... (SB3
    #2063). It gets its name only once it is complete. A GIF is small: at most 480 pixels wide, with
    at most 25 frames a second.
    """
    if path.suffix not in ENDINGS:
        raise ValueError(f"video path {str(path)!r} must end in {' or '.join(ENDINGS)}")
    if not fps > 0:
        raise ValueError(f"fps {fps} must be above 0; use the environment's metadata['render_fps']")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, *ENDINGS)
    with own_partial(path) as partial:  # with the same ending: ffmpeg needs it to know the format
        _encode(_checked(frames), partial, fps)
        return partial.replace(_claim_free_name(path))


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The frames with even height and width, as yuv420p needs: an edge may be repeated."""
    shape = None
    for number, frame in enumerate(frames):
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ValueError(f"frame {number} is {frame.dtype} {frame.shape}; frames must be uint8 (height, width, 3)")
        shape = shape or frame.shape
        if frame.shape != shape:
            raise ValueError(f"frame {number} is {frame.shape}, the first was {shape}; all frames must have one size")
        height, width = shape[:2]
        yield np.ascontiguousarray(np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge"))


def _encode(frames: Iterator[np.ndarray], path: Path, fps: float) -> None:
    first = next(frames, None)
    if first is None:
        raise ValueError("a video needs at least one frame; was the environment made with render_mode='rgb_array'?")
    height, width = first.shape[:2]
    options = _gif_options(width, fps) if path.suffix == ".gif" else MP4_OPTIONS
    writer = imageio_ffmpeg.write_frames(path, (width, height), fps=fps, macro_block_size=1, **options)
    writer.send(None)
    try:
        for frame in itertools.chain([first], frames):
            writer.send(frame)
    finally:
        writer.close()
    # imageio-ffmpeg ignores ffmpeg's exit code; a truncated file (disk full) cannot be opened.
    try:
        next(reader := imageio_ffmpeg.read_frames(path))
        reader.close()
    except (OSError, RuntimeError) as problem:
        raise OSError(f"ffmpeg could not write {path}; is the disk full?") from problem


def _gif_options(width: int, fps: float) -> dict[str, Any]:
    """ffmpeg's options for a GIF with a palette of its own colours."""
    size = f"fps={min(fps, GIF_FPS):g},scale={min(width, GIF_WIDTH)}:-1:flags=lanczos"
    palette = f"{size},split[a][b];[a]palettegen[p];[b][p]paletteuse=dither=bayer"
    return {"codec": "gif", "pix_fmt_out": "pal8", "output_params": ["-filter_complex", palette]}


def _claim_free_name(path: Path) -> Path:
    free = path
    number = 1
    while True:
        try:
            free.touch(exist_ok=False)  # claims the name, even if another process looks for one too
            return free
        except FileExistsError:
            number += 1
            free = path.with_stem(f"{path.stem}-{number}")
