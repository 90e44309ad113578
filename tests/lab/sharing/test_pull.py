"""Pulling: a run comes back the same, and nothing that a repository holds is trusted."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.errors import CheckpointError
from birl.lab.sharing import hub as hub_client
from birl.run.checkpoint import checkpoints_in
from birl.run.lock import own_partial
from tests.lab.sharing.conftest import logits
from tests.lab.sharing.hub_server import TOKEN, Handler, Hub, Repo, sibling
from tests.run.processes import call, call_well
from tests.run.test_policy_file import forged


@pytest.fixture
def shared(tiny_run: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A Hub with the run in owner/mine, and an empty working directory."""
    birl.push(tiny_run, "owner/mine")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return hub


def test_a_run_that_was_pushed_and_pulled_acts_the_same_to_the_bit(shared, tiny_run):
    said = call_well("pull", "owner/mine")
    path = Path("runs/owner--mine")
    assert said.splitlines()[-1] == str(path)
    policy, ours = birl.load(path), birl.load(tiny_run)
    assert logits(policy) == logits(ours)
    assert all((policy.parameters()[name] == array).all() for name, array in ours.parameters().items())
    assert birl.evaluate(path, episodes=3).returns.tolist() == birl.evaluate(tiny_run, episodes=3).returns.tolist()
    assert (path / "metrics.jsonl").read_bytes() == (tiny_run / "metrics.jsonl").read_bytes()
    assert "return" in call_well("eval", path, "--episodes", 1)
    assert "`ppo` on `CartPole-v1`" in (path / "README.md").read_text()


def test_a_run_that_was_pulled_with_its_checkpoint_is_resumed_and_forked(shared, tiny_run):
    birl.push(tiny_run, "owner/mine", checkpoint="last")
    birl.pull("owner/mine")
    call_well("fork", "runs/owner--mine", "--total-steps", 32, "--run-dir", "forked")
    call_well("resume", "runs/owner--mine", "--total-steps", 32)
    [theirs, ours] = [checkpoints_in(Path(run) / "checkpoints")[-1] for run in ("runs/owner--mine", "forked")]
    assert logits(birl.load(theirs)) == logits(birl.load(ours))


def test_a_run_that_was_pulled_without_a_checkpoint_is_not_trained_over(shared):
    birl.pull("owner/mine")
    before = Path("runs/owner--mine/metrics.jsonl").read_bytes()
    code, said = call("resume", "runs/owner--mine", "--total-steps", 32)
    assert code == 2
    assert "holds a policy (policy.safetensors) and no checkpoint, so it cannot be continued; birl train --like" in said
    assert call("fork", "runs/owner--mine")[0] == 2
    assert Path("runs/owner--mine/metrics.jsonl").read_bytes() == before


def test_what_a_killed_pull_left_is_removed_by_the_next_one_but_not_what_another_one_is_pulling(shared):
    abandoned = Path("runs/.partial-1.pull")
    abandoned.mkdir(parents=True)
    (abandoned / "config.json").touch()
    with own_partial(Path("runs/run.pull"), Path.mkdir) as pulling:
        birl.pull("owner/mine")
        assert sorted(Path("runs").iterdir()) == [pulling, Path("runs/owner--mine")]


def test_the_token_is_not_sent_to_the_server_that_stores_large_files(shared):
    shared.tokens.clear()
    birl.pull("owner/mine")
    sent = {asked.startswith("GET /lfs/"): token for asked, token in shared.tokens.items()}
    assert sent == {False: f"Bearer {TOKEN}", True: None}


def test_a_directory_that_is_there_is_not_touched(shared):
    Path("runs/owner--mine").mkdir(parents=True)
    code, said = call("pull", "owner/mine")
    assert code == 2
    assert "runs/owner--mine is there already; choose another directory: --out" in said
    Path("link").symlink_to("nowhere")
    assert call("pull", "owner/mine", "--out", "link")[0] == 2
    call_well("pull", "owner/mine", "--out", "other")
    assert sorted(path.name for path in Path("other").iterdir()) == [
        "README.md", "config.json", "metrics.jsonl", "policy.safetensors", "summary.json",
    ]  # fmt: skip


def test_a_revision_is_pulled_by_its_name_and_an_unknown_one_is_refused(shared):
    call_well("pull", "owner/mine", "--revision", shared.repos["owner/mine"].commit)
    code, said = call("pull", "owner/mine", "--out", "x", "--revision", "v9/../..")
    assert code == 2
    assert "owner/mine has no revision 'v9/../..'" in said


def test_a_private_run_is_pulled_with_its_token_only(shared, monkeypatch):
    shared.repos["owner/mine"].private = True
    call_well("pull", "owner/mine", "--out", "with")
    monkeypatch.delenv("HF_TOKEN")
    code, said = call("pull", "owner/mine", "--out", "without")
    assert code == 2
    assert "has no repository owner/mine, or does not show it; check its name; if it is private" in said
    assert list(Path().iterdir()) == [Path("with")]


def test_other_files_are_named_and_left_in_the_repository(shared):
    shared.repos["owner/mine"].files |= {
        "model.pkl": b"\x80\x04evil",
        "setup.py": b"evil",
        "checkpoints/000000016/state.pkl": b"evil",
        "Config.json": b"{}",
        "runs -> /etc": b"evil",
        ".git/hooks/post-checkout": b"evil",
        "esc\x1b[31m": b"",
    }
    said = call_well("pull", "owner/mine")
    line = said.splitlines()[0]
    assert "left in the repository, because no run has such files: model.pkl, setup.py" in line
    assert "runs -> /etc" in line
    assert "\x1b" not in said
    found = {path.relative_to("runs/owner--mine").as_posix() for path in Path("runs/owner--mine").rglob("*")}
    assert found == {"README.md", "config.json", "metrics.jsonl", "policy.safetensors", "summary.json"}


def listing(change: Callable[[dict[str, Any]], Any]) -> Callable[[Hub], None]:
    """A Hub whose list of files is changed."""

    def apply(hub: Hub) -> None:
        repo = hub.repos["owner/mine"]
        listed: dict[str, Any] = {"sha": repo.commit, "siblings": repo.siblings()}
        changed = change(listed)
        hub.wrong["GET /api/models"] = lambda handler: handler.send(200, listed if changed is None else changed)

    return apply


def file_answer(answer: Callable[[Handler, bytes], None]) -> Callable[[Hub], None]:
    """A Hub that answers wrongly when config.json is asked for."""

    def apply(hub: Hub) -> None:
        content = hub.repos["owner/mine"].files["config.json"]
        path = f"GET /owner/mine/resolve/{hub.repos['owner/mine'].commit}/config.json"
        hub.wrong[path] = lambda handler: answer(handler, content)

    return apply


def content(name: str, value: bytes) -> Callable[[Hub], None]:
    """A Hub with another file of this name."""

    def apply(hub: Hub) -> None:
        hub.repos["owner/mine"].files[name] = value

    return apply


def cut_off(handler: Handler, content: bytes) -> None:
    handler.close_connection = True
    handler.send(200, content[:100], {"Content-Length": str(len(content))})


def too_much(handler: Handler, content: bytes) -> None:
    """More than was announced, in chunks, whose number is not known before."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    try:
        for _ in range(1000):
            handler.wfile.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
    except OSError:
        handler.close_connection = True


def larger(listed: dict[str, Any]) -> None:
    for file in listed["siblings"]:
        file["size"] = 1 << 60 if file["rfilename"] == "policy.safetensors" else file["size"]


def vast_policy(hub: Hub) -> None:
    """A Hub with a policy of a few kB for observations of 16 million numbers."""
    files = hub.repos["owner/mine"].files
    vast = {"kind": "Box", "shape": [1 << 24], "dtype": "float32", "low": 0.0, "high": 1.0}
    path = forged(files["policy.safetensors"], Path("../forged"), observation_space=vast)
    files["policy.safetensors"] = path.read_bytes()


HTML = b"<html><body>503 Service Unavailable</body></html>"
WRONG = {
    "a path that leaves the directory": (
        listing(lambda listed: listed["siblings"].append(sibling("../evil", b"evil"))),
        r"has a file '../evil', whose path leaves its directory; nothing is pulled",
    ),
    "an absolute path": (content("/etc/cron.d/evil", b"evil"), "whose path leaves its directory"),
    "a path of Windows": (content("..\\evil", b"evil"), "whose path leaves its directory"),
    "two files of one name": (
        listing(lambda listed: listed["siblings"].append(listed["siblings"][-1])),
        "has two files of one name",
    ),
    "a huge file in the list": (listing(larger), "and at most 4.0 GB are read; nothing is pulled"),
    "a list of files that is none": (listing(lambda listed: [1, 2]), "does not answer as the Hugging Face Hub does"),
    "a list with a commit that is a path": (
        listing(lambda listed: listed | {"sha": "../../x"}),
        "does not answer as the Hugging Face Hub does",
    ),
    "a list without sizes": (
        listing(lambda listed: {"sha": "a" * 40, "siblings": [{"rfilename": "config.json"}]}),
        "does not answer as the Hugging Face Hub does",
    ),
    "a page of HTML instead of the list": (
        listing(lambda listed: HTML),
        "does not answer as the Hugging Face Hub does",
    ),
    "an endless list": (listing(lambda listed: bytes((1 << 24) + 1)), "has more than the 16,777,216 bytes"),
    "a huge length of a file": (
        file_answer(lambda handler, content: handler.send(200, content, {"Content-Length": str(1 << 60)})),
        r"config.json is not the file of [\d,]+ bytes in the list: 1152921504606846976 bytes are announced",
    ),
    "more content than is in the list": (file_answer(too_much), r"config.json has more than the [\d,]+ bytes"),
    "content that ends early": (file_answer(cut_off), "cannot be reached, or the connection broke"),
    "other content of the same length": (
        file_answer(lambda handler, content: handler.send(200, content.replace(b"ppo", b"dqn"))),
        "its hash is another",
    ),
    "a page of HTML instead of a file": (
        file_answer(lambda handler, content: handler.send(200, HTML)),
        "config.json is not the file of",
    ),
    "an error of the server": (
        file_answer(lambda handler, content: handler.send(503, HTML)),
        "answers 503 to the request for config.json of owner/mine; try again later",
    ),
    "the text of a link": (
        content("policy.safetensors", b"../../../../etc/passwd"),
        "what was pulled is not used: policy.safetensors is not a policy file of Birl",
    ),
    "a policy for a vast space": (
        vast_policy,
        "what was pulled is not used: policy.safetensors is damaged: .*asks for 16,777,216 numbers",
    ),
    "settings that are not JSON": (content("config.json", HTML), "what was pulled is not used: config.json is damaged"),
    "a checkpoint without its manifest": (
        content("checkpoints/000000016/config.json", b"{}"),
        "what was pulled is not used: .*checkpoints/000000016 is damaged",
    ),
    "half a checkpoint": (
        content("checkpoints/000000016/manifest.json", b"{}"),
        "what was pulled is not used: .*checkpoints/000000016 is damaged",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_gives_one_sentence_and_leaves_nothing_behind(name, shared):
    apply, message = WRONG[name]
    apply(shared)
    code, said = call("pull", "owner/mine")
    assert code in (1, 2)
    last = said.splitlines()[-1]
    assert last.startswith("birl: ")
    assert re.search(message, last)
    assert list(Path().iterdir()) == []
    assert not Path("../evil").exists()


def in_drops(start: bytes, drop: bytes) -> Callable[[Handler], None]:
    """An answer that begins like this and goes on with a few bytes now and then, for 10 s."""

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        with suppress(OSError):  # the client has left
            handler.wfile.write(start)
            for _ in range(200):
                handler.wfile.write(drop)
                time.sleep(0.05)

    return answer


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1"


@pytest.mark.parametrize("asked", ["GET /api/models", "GET /owner/mine/resolve", "GET /lfs"])
@pytest.mark.parametrize(
    ("start", "drop"),
    [(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), (b"HTTP/1.1 200 OK\r\n\r\n", b" "), (CHUNKED, b"; x")],
    ids=["headers", "content", "chunks"],
)
def test_a_server_that_sends_a_byte_now_and_then_is_left(asked, start, drop, shared, monkeypatch):
    monkeypatch.setattr(hub_client, "LONGEST", 0.5)
    monkeypatch.setattr(hub_client, "SLOWEST", 1_000_000)
    shared.wrong[asked] = in_drops(start, drop)
    begin = time.monotonic()
    code, said = call("pull", "owner/mine")
    assert (code, "did not come in time, at 1,000,000 bytes a second" in said) == (1, True), said
    assert time.monotonic() - begin < 9
    assert list(Path().iterdir()) == []


def test_a_transfer_has_a_minute_and_the_time_for_its_bytes_however_many_files_it_has():
    files = [hub_client.RemoteFile("x", 5_000_000, None, None)] * 2
    assert hub_client.seconds_for(files) == 60 + 1000


def test_a_damaged_policy_is_refused_by_its_own_sha256(shared):
    files = shared.repos["owner/mine"].files
    files["policy.safetensors"] = files["policy.safetensors"][:-1] + bytes([files["policy.safetensors"][-1] ^ 1])
    with pytest.raises(
        CheckpointError, match=r"policy\.safetensors is damaged: its SHA-256 is not that of its content"
    ):
        birl.pull("owner/mine")
    assert list(Path().iterdir()) == []


def test_a_repository_without_a_run_and_one_that_is_not_there_are_refused(shared):
    shared.repos["owner/text"] = Repo()
    for name, words in (("text", "holds no run of Birl: there is no config.json"), ("none", "has no repository")):
        code, said = call("pull", f"owner/{name}")
        assert code == 2
        assert words in said
