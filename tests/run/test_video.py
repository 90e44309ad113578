"""A video has the given frames, plays anywhere, and never replaces another."""

import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from birl.run.record import VIDEOS, write_video
from birl.run.run import tidy_directory
from birl.run.saving import RunProgress
from tests.run.processes import ENVIRONMENT

RED = (220, 30, 40)


def frames(number: int, height: int = 64, width: int = 96, colour: tuple[int, int, int] = RED) -> Iterator[np.ndarray]:
    for _ in range(number):
        yield np.full((height, width, 3), colour, np.uint8)


def decode(path: Path) -> tuple[dict, list[np.ndarray]]:
    reader = imageio_ffmpeg.read_frames(path)
    metadata = next(reader)
    width, height = metadata["size"]
    return metadata, [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]


def test_every_frame_comes_back_in_its_size_rate_and_colour(tmp_path):
    metadata, decoded = decode(write_video(frames(12), tmp_path / "a.mp4", fps=25))
    assert (metadata["codec"], metadata["pix_fmt"].split("(")[0], metadata["fps"]) == ("h264", "yuv420p", 25.0)
    assert [frame.shape for frame in decoded] == [(64, 96, 3)] * 12
    assert np.abs(np.stack(decoded).astype(int) - RED).max() <= 6  # the conversion to yuv rounds


def test_a_gif_has_the_colours_at_most_25_frames_a_second_and_480_columns(tmp_path):
    path = write_video(frames(20, height=100, width=640), tmp_path / "a.gif", fps=50)
    assert path.read_bytes()[:6] == b"GIF89a"
    metadata, decoded = decode(path)
    assert (metadata["codec"].strip(","), metadata["fps"], metadata["size"]) == ("gif", 25.0, (480, 75))
    assert 9 <= len(decoded) <= 11  # half of the frames, in half the frame rate
    assert np.abs(np.stack(decoded).astype(int) - RED).max() <= 8
    small = decode(write_video(frames(3), tmp_path / "b.gif", fps=10))[1]
    assert [frame.shape for frame in small] == [(64, 96, 3)] * 3


def test_frames_keep_their_order(tmp_path):
    grey = [np.full((32, 32, 3), 20 * i, np.uint8) for i in range(12)]
    _, decoded = decode(write_video(grey, tmp_path / "a.mp4", fps=30))
    np.testing.assert_allclose([frame.mean() for frame in decoded], [20 * i for i in range(12)], atol=4)


def test_odd_sizes_are_padded_by_one_row_and_column_of_the_same_colour(tmp_path):
    _, decoded = decode(write_video(frames(2, height=33, width=51), tmp_path / "a.mp4", fps=30))
    assert decoded[0].shape == (34, 52, 3)
    assert np.abs(decoded[0][-1, -1].astype(int) - RED).max() <= 6


def test_a_second_video_of_the_same_name_is_numbered_and_the_first_is_kept(tmp_path):
    first = write_video(frames(1), tmp_path / "a.mp4", fps=30)
    before = first.read_bytes()
    assert write_video(frames(2), tmp_path / "a.mp4", fps=30) == tmp_path / "a-2.mp4"
    assert write_video(frames(3), tmp_path / "a.mp4", fps=30) == tmp_path / "a-3.mp4"
    assert first.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2.mp4", "a-3.mp4", "a.mp4"]


def test_forty_frames_take_the_memory_of_a_few(tmp_path):
    frame_bytes = 256 * 256 * 3
    tracemalloc.start()
    write_video(frames(40, 256, 256), tmp_path / "a.mp4", fps=30)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 * frame_bytes


def test_an_environment_that_fails_half_way_leaves_no_file(tmp_path):
    def failing() -> Iterator[np.ndarray]:
        yield from frames(3)
        raise RuntimeError("the environment died")

    with pytest.raises(RuntimeError, match="the environment died"):
        write_video(failing(), tmp_path / "a.mp4", fps=30)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from birl.run.record import write_video

def frames():
    yield np.zeros((32, 32, 3), np.uint8)
    os.kill(os.getpid(), signal.SIGKILL)

write_video(frames(), Path(sys.argv[1]), fps=30)
"""


def test_what_a_killed_recording_left_is_removed_by_the_next_one_and_by_a_resume(tmp_path):
    """What another recording is writing is left alone."""
    (tmp_path / "checkpoints").mkdir()

    def leave(name: str) -> None:
        command = [sys.executable, "-c", KILLED, str(tmp_path / VIDEOS / name)]
        assert subprocess.run(command, env=ENVIRONMENT, check=False).returncode == -signal.SIGKILL
        assert left()

    def left() -> list[Path]:
        return list((tmp_path / VIDEOS).glob(".partial-*"))

    def frames_beside_others() -> Iterator[np.ndarray]:
        yield from frames(1)
        write_video(frames(1), tmp_path / VIDEOS / "b.mp4", fps=30)
        tidy_directory(tmp_path, RunProgress(None))
        assert len(left()) == 1
        yield from frames(1)

    leave("a.gif")
    write_video(frames_beside_others(), tmp_path / VIDEOS / "c.mp4", fps=30)
    assert sorted(path.name for path in (tmp_path / VIDEOS).iterdir()) == ["b.mp4", "c.mp4"]
    leave("a.mp4")
    tidy_directory(tmp_path, RunProgress(None))
    assert left() == []


CUT_SHORT = """#!/bin/sh
case "$*" in
*"-i - "*) cat > /dev/null; for out; do :; done; printf 'ftyp' > "$out"; exit 1 ;;
*) exec FFMPEG "$@" ;;
esac
"""


def test_a_video_that_ffmpeg_cut_short_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text(CUT_SHORT.replace("FFMPEG", imageio_ffmpeg.get_ffmpeg_exe()))
    ffmpeg.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: str(ffmpeg))
    with pytest.raises(OSError, match="ffmpeg could not write"):
        write_video(frames(3), tmp_path / "videos" / "a.mp4", fps=30)
    assert list((tmp_path / "videos").iterdir()) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "at least one frame"),
        ([np.zeros((32, 32), np.uint8)], r"frame 0 is uint8 \(32, 32\)"),
        ([np.zeros((32, 32, 3), np.float32)], "frame 0 is float32"),
        (
            [np.zeros((32, 32, 3), np.uint8), np.zeros((32, 30, 3), np.uint8)],
            r"frame 1 is \(32, 30, 3\), the first was \(32, 32, 3\)",
        ),
    ],
)
def test_frames_that_cannot_be_a_video_are_named(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        write_video(bad, tmp_path / "a.mp4", fps=30)
    assert list(tmp_path.iterdir()) == []


def test_the_path_and_the_rate_are_checked_before_any_frame_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .mp4"):
        write_video(frames(1), tmp_path / "a.avi", fps=30)
    with pytest.raises(ValueError, match="fps 0 must be above 0"):
        write_video(frames(1), tmp_path / "a.mp4", fps=0)
