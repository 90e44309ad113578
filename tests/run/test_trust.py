"""Settings are signed with a secret that only this user has."""

import hashlib
import hmac
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import birl
from birl.run.trust import data_directory, is_own, sign
from tests.run.processes import ENVIRONMENT

SETTINGS: dict[str, Any] = {"env": {"id": "CartPole-v1", "workers": 2}, "epochs": 20, "learning_rate": 0.1}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that does not exist yet."""
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "share" / "birl"))
    return tmp_path / "share" / "birl"


def test_what_was_signed_is_ones_own_and_anything_else_is_not(data):
    signature = sign("ppo", SETTINGS)
    assert is_own("ppo", dict(reversed(SETTINGS.items())), signature), "the order of names says nothing"
    assert not is_own("a2c", SETTINGS, signature)
    assert not is_own("ppo", SETTINGS | {"epochs": 22}, signature)
    assert not is_own("ppo", SETTINGS | {"env": {"id": "os:CartPole-v1", "workers": 2}}, signature)
    for other in (None, "", "0" * 64, "ü\ud800", 5, signature.upper() if signature else None):
        assert not is_own("ppo", SETTINGS, other)


def test_settings_that_name_no_module_beside_the_environments_are_signed_as_they_always_were(data):
    sign("ppo", SETTINGS)
    secret = (data / "secret").read_bytes()
    for env_id, home in (("CartPole-v1", None), ("birl.envs.probes:Probe-v0", str(Path(birl.__file__).parents[1]))):
        settings = SETTINGS | {"env": {"id": env_id}, "encoder": "cnn"}
        signed = {"algorithm": "ppo", "config": settings, "home": home}
        text = b"birl settings 1\n" + json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()
        assert sign("ppo", settings) == hmac.new(secret, text, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    "named", [{"encoder": "own_code:make"}, {"env": {"wrappers": [{"path": "own_code:Wrapper", "kwargs": {}}]}}]
)
def test_the_directory_of_every_named_module_is_signed(named, data, tmp_path, monkeypatch):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "own_code.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    signature = sign("ppo", named)
    assert is_own("ppo", named, signature)
    monkeypatch.chdir(tmp_path / "there")
    assert not is_own("ppo", named, signature)


def test_another_secret_makes_another_signature(data, tmp_path, monkeypatch):
    signature = sign("ppo", SETTINGS)
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "other"))
    assert not is_own("ppo", SETTINGS, signature), "and looking makes no secret"
    assert not (tmp_path / "other").exists()
    assert sign("ppo", SETTINGS) != signature


def test_the_secret_is_readable_by_its_owner_alone(data):
    sign("ppo", SETTINGS)
    [secret] = data.iterdir()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert len(secret.read_bytes()) == 32


@pytest.mark.parametrize("harm", ["readable by all", "cut short", "too long", "a link", "a directory", "a pipe"])
def test_a_secret_that_may_not_be_one_is_not_used_and_not_written_over(harm, data, tmp_path):
    signature = sign("ppo", SETTINGS)
    secret = data / "secret"
    content = secret.read_bytes()
    match harm:
        case "readable by all":
            secret.chmod(0o644)
        case "cut short":
            secret.write_bytes(content[:16])
        case "too long":
            secret.write_bytes(content * 2)
        case "a link":
            secret.rename(tmp_path / "elsewhere")
            secret.symlink_to(tmp_path / "elsewhere")
        case "a directory":
            secret.unlink()
            secret.mkdir()
        case "a pipe":
            secret.unlink()
            os.mkfifo(secret, 0o600)
    before = secret.lstat()
    assert not is_own("ppo", SETTINGS, signature)
    assert sign("ppo", SETTINGS) is None
    assert (secret.lstat().st_ino, secret.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(data.iterdir()) == [secret], "nothing half made is left"


def test_without_a_place_for_a_secret_nothing_is_signed_and_nobody_owns_anything(tmp_path, monkeypatch):
    signature = sign("ppo", SETTINGS)
    (tmp_path / "file").touch()
    monkeypatch.setenv("BIRL_DATA_DIR", str(tmp_path / "file" / "birl"))
    assert sign("ppo", SETTINGS) is None
    assert not is_own("ppo", SETTINGS, signature)


def test_the_secret_lies_where_data_belongs(monkeypatch):
    monkeypatch.setenv("BIRL_DATA_DIR", "relative/to/a/strangers/run")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert data_directory() == Path("/data/birl")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert data_directory() == Path("/home/me/.local/share/birl")
    monkeypatch.setenv("HOME", "relative")
    assert data_directory() is None


def test_processes_that_start_together_agree_on_one_secret(data):
    script = "from birl.run.trust import sign; print(sign('ppo', {}))"
    command = [sys.executable, "-c", script]
    both = [
        subprocess.Popen(command, env=ENVIRONMENT | {"BIRL_DATA_DIR": str(data)}, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {process.communicate()[0] for process in both}
    assert said == {f"{sign('ppo', {})}\n"}


def test_a_module_elsewhere_is_another_module(data, tmp_path, monkeypatch):
    """Only the outermost package is looked up, and nothing is imported."""
    settings = {"env": {"id": "my_package.inner:MyEnv-v0"}}
    for place in ("here", "there"):
        (tmp_path / place / "my_package").mkdir(parents=True)
        (tmp_path / place / "my_package" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path / "here")
    signature = sign("ppo", settings)
    assert is_own("ppo", settings, signature)
    monkeypatch.syspath_prepend(tmp_path / "there")
    assert not is_own("ppo", settings, signature)
    assert "my_package" not in sys.modules


@pytest.mark.parametrize(
    "env", [{"id": ":X-v0"}, {"id": ".x:X-v0"}, {"id": "__main__:X-v0"}, {"id": "a b:X-v0"}, {"id": 3}, {}, None, []]
)
def test_settings_of_any_kind_can_be_looked_at(env, data):
    assert is_own("ppo", {"env": env}, sign("ppo", {"env": env}))
    assert not is_own("ppo", {"env": env}, "0" * 64)
