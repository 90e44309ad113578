"""Files of a run are read without blocking, and written without following links."""

import os
import socket
from pathlib import Path

import pytest

from birl.errors import CheckpointError
from birl.run import files


def make(kind: str, path: Path) -> None:
    """Put something else in the place of a file."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            (path.parent / "target").write_text("{}")
            path.symlink_to(path.parent / "target")
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(os.path.relpath(path))  # an absolute path is too long for a socket


KINDS = ["pipe", "link", "device", "directory", "socket"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(600)
def test_what_is_not_a_regular_file_is_refused_and_nobody_waits_for_it(kind, tmp_path):
    make(kind, tmp_path / "config.json")
    with pytest.raises(
        CheckpointError, match=r"config\.json is (a symbolic link|not a regular file|a socket or a device); put"
    ):
        files.read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"NaN",
        b"[1e999]",
        b"9" * 41,
        b"9" * 5000,
        b"[" * 101 + b"]" * 101,
        b"[" * 1_000_000,
        b'"\xed\xa0\x80"',
        b"1 2",
    ],
)
def test_what_is_not_strict_json_of_a_sensible_size_is_damaged(content, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.json is damaged: "):
        files.read_json(tmp_path / "a.json")


def test_the_state_of_a_generator_is_json_that_is_read_as_it_was_written(tmp_path):
    value = {"state": 2**128 - 1, "inc": -(2**127), "seconds": 0.1 + 0.2, "deep": [[[[[[None]]]]]]}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value


def test_a_file_that_would_fill_the_memory_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"config\.json has 1,099,511,627,776 bytes; at most 1,048,576 are read"):
        files.read_json(tmp_path / "config.json")


def test_a_link_in_a_files_place_is_replaced_and_its_target_is_left_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "config.json").symlink_to(victim)
    files.write_json(tmp_path / "config.json", {})
    assert victim.read_text() == "mine"
    assert not (tmp_path / "config.json").is_symlink()
    assert files.read_json(tmp_path / "config.json") == {}


def test_two_temporary_names_are_never_the_same():
    names = {files.partial_beside(Path("runs/mine/config.json")) for _ in range(100)}
    assert len(names) == 100
    assert all(path.name.startswith(files.PARTIAL) and path.suffix == ".json" for path in names)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    files.write_json(tmp_path / "a.json", 1)

    def fail_half_way() -> None:
        with files.replacing(tmp_path / "a.json") as file:
            file.write(b"half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert files.read_json(tmp_path / "a.json") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_is_never_written_over_another_or_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for name in ("victim", "link"):
        with pytest.raises(FileExistsError):
            files.write_new(tmp_path / name, b"theirs")
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_directory_that_is_a_link_or_no_directory_is_refused(kind, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to("elsewhere") if kind == "link" else os.mkfifo(tmp_path / "checkpoints")
    with pytest.raises(
        CheckpointError, match=r"is a symbolic link; put the directory itself there|is not a directory; move it away"
    ):
        files.make_directory(tmp_path / "checkpoints")


def test_a_directory_is_made_but_never_the_one_it_lies_in(tmp_path):
    assert files.make_directory(tmp_path / "new").is_dir()
    assert files.make_directory(tmp_path / "new").is_dir()
    with pytest.raises(FileNotFoundError):
        files.make_directory(tmp_path / "gone" / "new")


def test_what_is_removed_is_out_of_sight_before_its_first_file_is_gone(tmp_path, monkeypatch):
    (tmp_path / "000000001").mkdir()
    (tmp_path / "000000001" / "a").write_text("")
    monkeypatch.setattr(files, "delete", lambda path: None)  # killed before it could delete
    files.remove(tmp_path / "000000001")
    [left] = tmp_path.iterdir()
    assert left.name.startswith(files.PARTIAL)
    assert (left / "a").exists()
    monkeypatch.undo()
    files.remove_partial(tmp_path)
    assert not list(tmp_path.iterdir())


def test_removing_what_was_left_does_not_follow_links(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("")
    run = tmp_path / "run"
    run.mkdir()
    (run / f"{files.PARTIAL}1").symlink_to(tmp_path / "mine")
    (run / f"{files.PARTIAL}2").mkdir()
    (run / f"{files.PARTIAL}2" / "link").symlink_to(tmp_path / "mine")
    files.remove_partial(run)
    assert not list(run.iterdir())
    assert (tmp_path / "mine" / "a").exists()
