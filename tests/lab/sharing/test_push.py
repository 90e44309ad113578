"""Pushing: what is uploaded and what is not, and what is said if it cannot be."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_download

import birl
from birl.config import ConfigError
from birl.run.checkpoint import load_checkpoint
from birl.run.policy_file import read_policy
from tests.lab.sharing.conftest import make_seeds
from tests.lab.sharing.hub_server import TOKEN, Handler, Hub, Repo
from tests.run.processes import call, call_well

ALWAYS = {"README.md", "policy.safetensors", "config.json", "summary.json", "metrics.jsonl"}


def files_of(hub: Hub, name: str = "owner/mine") -> dict[str, bytes]:
    """The files of a repository, without the one that the Hub itself makes."""
    return {path: content for path, content in hub.repos[name].files.items() if path != ".gitattributes"}


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, with files in it that nobody else is to see."""
    path = Path(shutil.copytree(tiny_run, tmp_path / "mine"))
    for name in ("secret", "wandb_id.txt", "notes.py", ".lock"):
        (path / name).write_text("private")
    return path


def test_card_policy_settings_summary_and_metrics_are_uploaded_and_nothing_else(run, hub):
    said = call_well("push", run, "owner/mine")
    assert files_of(hub).keys() == ALWAYS
    assert hub.repos["owner/mine"].private is False
    assert all(name in said for name in ALWAYS)
    assert said.splitlines()[-1] == f"{hub.address}/owner/mine"
    assert "birl pull owner/mine" in files_of(hub)["README.md"].decode()
    assert files_of(hub)["metrics.jsonl"] == (run / "metrics.jsonl").read_bytes()


def test_nothing_that_is_uploaded_names_this_machine_or_is_signed_and_the_token_is_nowhere(run, hub):
    said = call_well("push", run, "owner/mine", "--checkpoint", "last")
    uploaded = files_of(hub)
    for name, content in uploaded.items():
        assert str(run.parent).encode() not in content, name
        assert TOKEN.encode() not in content
    assert TOKEN not in said
    assert json.loads(uploaded["config.json"])["signature"] is None
    assert json.loads(uploaded["config.json"])["config"]["run"]["run_dir"] is None
    assert "run_dir" not in json.loads(uploaded["summary.json"])
    [manifest] = [content for name, content in uploaded.items() if name.endswith("manifest.json")]
    assert json.loads(manifest)["signature"] is None
    assert not any(TOKEN in path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())


def test_the_settings_that_name_files_or_accounts_are_uploaded_without_them_and_this_is_said(run, hub):
    stored = json.loads((run / "config.json").read_text())
    stored["config"]["env"]["kwargs"] = {"sutton_barto_reward": True, "file": "/home/someone/ant.xml"}
    stored["config"]["run"]["wandb"] = "our-account/secret-project"
    (run / "config.json").write_text(json.dumps(stored))
    said = call_well("push", run, "owner/mine", "--dry-run")
    assert "env.kwargs.file '/home/someone/ant.xml' is uploaded as 'ant.xml'" in said
    assert "run.wandb 'our-account/secret-project' is uploaded as None" in said
    birl.push(run, "owner/mine")
    config = json.loads(files_of(hub)["config.json"])["config"]
    assert config["env"]["kwargs"] == {"sutton_barto_reward": True, "file": "ant.xml"}
    assert config["run"]["wandb"] is None


def test_a_dry_run_lists_the_files_with_their_sizes_and_asks_nobody(run, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    said = call_well("push", run, "owner/mine", "--dry-run")
    assert all(name in said for name in ALWAYS)
    assert "policy.safetensors  2." in said
    assert "nothing was uploaded (--dry-run)" in said
    assert hub.requests == []


def test_a_checkpoint_and_a_video_are_uploaded_on_request_and_the_copy_is_sound(run, hub, tmp_path):
    video = tmp_path / "episode.mp4"
    video.write_bytes(b"\0\0\0\x20ftypisom" + bytes(100))
    birl.push(run, "owner/mine", checkpoint="last", video=video)
    uploaded = files_of(hub)
    assert uploaded["replay.mp4"] == video.read_bytes()
    [folder] = {Path(name).parent for name in uploaded if name.startswith("checkpoints/")}
    for name, content in uploaded.items():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    ours, theirs = load_checkpoint(run / folder), load_checkpoint(tmp_path / "copy" / folder)
    assert theirs.tensors.keys() == ours.tensors.keys()
    assert all((theirs.tensors[name] == ours.tensors[name]).all() for name in ours.tensors)
    assert read_policy(tmp_path / "copy" / "policy.safetensors").signature is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint", "best"], "no evaluation chose a best checkpoint"),
        (["--video", "README"], "is not an mp4 file"),
        (["--endpoint", "ftp://127.0.0.1"], "is not the address of a server"),
        (["--endpoint", "http://hub.example"], "would receive the token without encryption"),
        (["--token-file", "empty"], "token file empty is empty"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_in_one_sentence(words, said, run, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("README").write_text("no video")
    Path("empty").write_text("\n")
    for path in run.glob("checkpoints/best.json"):
        path.unlink()
    code, found = call("push", run, "owner/mine", *words)
    assert code == 2
    assert said in found
    assert len(found.splitlines()) <= 1 + len(ALWAYS)
    assert hub.requests == []


@pytest.mark.parametrize(
    "name", ["mine", "a/b/c", "../x", "owner/a..b", "owner/.", "own er/x", "owner/x?y", "owner/a--b"]
)
def test_a_name_that_no_repository_has_is_refused(name, run, hub):
    with pytest.raises(ConfigError, match="is not one of the Hub; write OWNER/NAME"):
        birl.push(run, name)
    with pytest.raises(ConfigError, match="is not one of the Hub; write OWNER/NAME"):
        birl.pull(name)
    assert hub.requests == []


def test_a_second_push_replaces_the_files_of_the_first_in_one_commit(run, hub):
    birl.push(run, "owner/mine", checkpoint="last")
    birl.push(run, "owner/mine", license="mit")
    assert files_of(hub).keys() == ALWAYS
    assert len(hub.repos["owner/mine"].messages) == 2
    assert hub.repos["owner/mine"].metadata["license"] == "mit"


def test_of_a_group_the_best_seed_is_uploaded_with_a_card_about_all(run, hub, tmp_path):
    birl.push(make_seeds(run, tmp_path / "group", {1: 10.0, 2: 50.0, 3: 30.0}), "owner/mine")
    uploaded = files_of(hub)
    assert uploaded.keys() == ALWAYS
    assert json.loads(uploaded["config.json"])["config"]["run"]["seed"] == 2
    assert json.loads(uploaded["summary.json"])["evaluation"]["return_mean"] == 50.0
    assert "interquartile mean over 3 seeds" in uploaded["README.md"].decode()


def test_a_page_that_the_user_has_written_is_uploaded_as_it_is(run, hub):
    (run / "README.md").write_text("---\nlibrary_name: birl\n---\n# My own words about OWNER/NAME\n")
    birl.push(run, "owner/mine")
    assert files_of(hub)["README.md"].decode().endswith("# My own words about owner/mine\n")


def test_a_repository_of_something_else_is_left_alone(run, hub):
    hub.repos["owner/mine"] = Repo(files={"pytorch_model.bin": b"weights"})
    with pytest.raises(ConfigError, match=r"holds something else \(pytorch_model.bin\); choose another name"):
        birl.push(run, "owner/mine")
    assert hub.repos["owner/mine"].files == {"pytorch_model.bin": b"weights"}


def test_private_is_for_a_new_repository_and_a_public_one_is_not_taken_for_private(run, hub):
    birl.push(run, "owner/hidden", private=True)
    assert hub.repos["owner/hidden"].private
    birl.push(run, "owner/mine")
    with pytest.raises(ConfigError, match="exists already and is public"):
        birl.push(run, "owner/mine", private=True)


def test_without_a_token_it_says_how_to_get_one(run, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    code, said = call("push", run, "owner/mine")
    assert code == 2
    assert "an access token is needed and none is given; make one" in said
    assert hub.repos == {}


def test_a_token_comes_from_a_file_and_a_wrong_one_is_refused_without_being_shown(run, hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    call_well("push", run, "owner/mine", "--token-file", tmp_path / "token")
    (tmp_path / "token").write_text("hf_wrongToken\n")
    code, said = call("push", run, "owner/other", "--token-file", tmp_path / "token")
    assert code == 2
    assert said.splitlines()[-1].endswith("does not accept the token for owner/other (401); make a new one")
    assert "hf_wrongToken" not in said


def test_another_owners_name_is_refused_in_one_sentence(run, hub):
    code, said = call("push", run, "somebody/mine")
    assert code == 2
    assert "does not allow access to somebody/mine with this token (403); use a token with the right" in said


def test_without_a_network_it_says_so(run, hub, monkeypatch):
    code, said = call("push", run, "owner/mine", "--endpoint", "http://127.0.0.1:9")
    assert code == 1
    assert "birl: http://127.0.0.1:9 cannot be reached, or the connection broke" in said.splitlines()[-1]


def break_off(handler: Handler) -> None:
    """Close the connection in the middle of a request."""
    handler.close_connection = True
    handler.connection.close()


@pytest.mark.parametrize("where", ["PUT /lfs", "POST /api/models/owner/mine/commit"])
def test_an_interrupted_upload_leaves_nothing_in_the_repository_and_can_be_repeated(where, run, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its attempts
    hub.wrong[where] = break_off
    code, said = call("push", run, "owner/mine")
    assert code == 1
    assert "cannot be reached, or the connection broke" in said.splitlines()[-1]
    assert files_of(hub) == {}
    hub.wrong.clear()
    call_well("push", run, "owner/mine")
    assert files_of(hub).keys() == ALWAYS


@pytest.mark.parametrize(
    ("status", "code", "words"), [(409, 2, "by someone else"), (412, 2, "push again"), (500, 1, "500")]
)
def test_what_the_hub_refuses_at_the_end_is_said_in_one_sentence(status, code, words, run, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)

    def refuse(handler: Handler) -> None:
        handler.read_body()
        handler.send(status, b"<html>no</html>")

    hub.wrong["POST /api/models/owner/mine/commit"] = refuse
    found, said = call("push", run, "owner/mine")
    assert found == code
    assert words in said.splitlines()[-1]
    assert "html" not in said


def test_without_the_extra_it_says_how_to_install_it(run, hub, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for words in (["push", run, "owner/mine"], ["pull", "owner/mine", "--out", tmp_path / "out"]):
        code, said = call(*words)
        assert code == 2
        assert said.splitlines()[-1].endswith(
            "need the huggingface_hub package: pip install '.[hub]' in a clone of Birl"
        )


def test_the_server_of_these_tests_speaks_with_huggingface_hub_itself(run, hub, tmp_path):
    birl.push(run, "owner/mine")
    api = HfApi(hub.address, TOKEN)
    info = api.model_info("owner/mine", files_metadata=True)
    assert {one.rfilename for one in info.siblings} == ALWAYS | {".gitattributes"}
    assert info.library_name == "birl"
    for name in ("policy.safetensors", "config.json"):
        path = hf_hub_download("owner/mine", name, endpoint=hub.address, token=TOKEN, local_dir=tmp_path / "local")
        assert Path(path).read_bytes() == files_of(hub)[name]
