"""Who asks which Hub: the address of a server, and an access token, which is never shown."""

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from birl.config import require
from birl.run.files import read_bytes

ENDPOINT, TOKEN = "HF_ENDPOINT", "HF_TOKEN"  # environment variables of Hugging Face's own tools
HUB = "https://huggingface.co"
TOKEN_BYTES = 4096
LOCAL = ("localhost", "127.0.0.1", "::1")


class Access(NamedTuple):
    """A server that speaks the Hub's API, and a token for it."""

    endpoint: str
    token: str | None

    def __repr__(self) -> str:  # a token must not get into a log
        return f"Access({self.endpoint!r}, token {'is not' if self.token is None else 'is'} given)"


def read_access(endpoint: str | None, token_file: str | Path | None) -> Access:
    """The server and the token that are given, or else those of the environment variables.

    ConfigError if the token would be sent without encryption.
    """
    address = (endpoint or os.environ.get(ENDPOINT) or HUB).rstrip("/")
    require(_is_address(address), f"endpoint {address!r} is not the address of a server; use one such as {HUB}")
    parts = urlsplit(address)
    token = _read_token(Path(token_file)) if token_file is not None else os.environ.get(TOKEN, "").strip() or None
    safe = token is None or parts.scheme == "https" or parts.hostname in LOCAL
    require(safe, f"endpoint {address!r} would receive the token without encryption; use https://")
    if token is not None:
        source = TOKEN if token_file is None else str(token_file)
        require(token.isascii() and token.isprintable() and " " not in token, f"{source} does not hold a token")
    return Access(address, token)


def require_token(access: Access) -> str:
    """The token; ConfigError if there is none."""
    remedy = f"make one with the right to write at {HUB}/settings/tokens, and set {TOKEN} or use --token-file"
    require(access.token is not None, f"to push, an access token is needed and none is given; {remedy}")
    assert access.token is not None
    return access.token


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        plain = (parts.query, parts.fragment, parts.username) == ("", "", None) and parts.port != 0
    except ValueError:  # of the port, too
        return False
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def _read_token(path: Path) -> str:
    token = read_bytes(path, TOKEN_BYTES).decode(errors="replace").strip()
    require(bool(token), f"token file {path} is empty; write an access token into it")
    return token
