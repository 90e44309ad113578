"""The Hugging Face Hub. Only this file imports huggingface_hub, and only to push or to pull.

Downloads do not use its cache, whose files have no limits: each file is read as a stream, and no
more of it than the list of files says.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from birl import __version__
from birl.config import ConfigError, require
from birl.errors import CheckpointError, install_extra, printable
from birl.run.files import parse_json, read_bytes

ENDPOINT, TOKEN = "HF_ENDPOINT", "HF_TOKEN"  # environment variables of Hugging Face's own tools
HUB = "https://huggingface.co"
TOKEN_BYTES = 4096
LOCAL = ("localhost", "127.0.0.1", "::1")
LISTING_BYTES = 1 << 24  # the largest list of files that is read
MOST_FILES = 10_000
SECONDS = 30  # without an answer
LONGEST = 60  # seconds for the list of files; and for all files, besides those for their bytes
SLOWEST = 10_000  # bytes in a second
LIBRARY = {"library_name": "birl", "library_version": __version__}
Result = TypeVar("Result")


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


class RemoteFile(NamedTuple):
    """A file as the list of a repository has it."""

    name: str
    size: int
    sha256: str | None  # of a large file
    blob: str | None  # SHA-1 of a small file, as git has it


class Repository(NamedTuple):
    """A repository at one commit."""

    name: str
    commit: str
    private: bool
    library: str | None  # of its card
    files: list[RemoteFile]


def find_repository(access: Access, name: str, revision: str | None = None) -> Repository | None:
    """The repository with its list of files; None if the Hub has none, or does not show it.

    ConnectionError if there is no answer, or one that is not the Hub's.
    """
    place = f"/revision/{quote(revision, safe='')}" if revision is not None else ""
    url = f"{access.endpoint}/api/models/{name}{place}?blobs=true"
    return _within(LONGEST, f"the list of files of {name}", lambda: _ask(access, name, revision, url))


def _ask(access: Access, name: str, revision: str | None, url: str) -> Repository | None:
    with _sentences(access, name), _stream(access, url) as response:
        code = response.headers.get("x-error-code", "")
        if code == "RevisionNotFound":
            raise ConfigError(f"{name} has no revision {revision!r}; leave --revision out, or name another")
        refused = response.headers.get("x-error-message", "").startswith("Invalid credentials")
        if response.status_code == 404 or (response.status_code == 401 and not refused):
            return None
        _require_success(access, name, response)
        content = b"".join(_limited(response, LISTING_BYTES, f"the list of files of {name}"))
    try:
        return _repository(name, parse_json(content, Path(url)))
    except (CheckpointError, LookupError, TypeError, ValueError) as problem:
        raise ConnectionError(f"{access.endpoint} does not answer as the Hugging Face Hub does for {name}") from problem


def seconds_for(files: Sequence[RemoteFile]) -> float:
    """The time limit for the download of these files."""
    return LONGEST + sum(file.size for file in files) / SLOWEST


def download(access: Access, repository: Repository, file: RemoteFile, out: Path, seconds: float) -> None:
    """Write a file of a repository to a new file, and check its size and its hash.

    CheckpointError if it is not what the list of files says, ConnectionError if it takes longer.
    """
    _within(seconds, file.name, lambda: _fetch(access, repository, file, out))


def _fetch(access: Access, repository: Repository, file: RemoteFile, out: Path) -> None:
    url = f"{access.endpoint}/{repository.name}/resolve/{repository.commit}/{quote(file.name)}"
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    size = 0
    with _sentences(access, repository.name), _stream(access, url) as response, out.open("xb") as written:
        _require_success(access, f"{file.name} of {repository.name}", response)
        announced = response.headers.get("content-length", str(file.size))
        _require(announced == str(file.size), file, f"{announced} bytes are announced")
        for part in _limited(response, file.size, file.name):
            size += len(part)
            digest.update(part)
            written.write(part)
    _require(size == file.size, file, f"{size:,} bytes came")
    expected = file.sha256 or file.blob
    _require(expected in (None, digest.hexdigest()), file, "its hash is another")


def upload(
    access: Access, name: str, before: Repository | None, private: bool, files: dict[str, Path], stale: Sequence[str]
) -> str:
    """Upload files as one commit, in which the `stale` ones are removed; the repository's address.

    Either all of it is in the repository afterwards, or nothing.
    """
    library = hub_library()
    api = library.HfApi(access.endpoint, access.token, **LIBRARY)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sentences(access, name))
        stack.enter_context(_quiet(library))
        if before is None:
            api.create_repo(name, private=private, exist_ok=False)
        # Open files are uploaded by plain HTTP; of paths, another program (Xet) would read them.
        additions = [
            library.CommitOperationAdd(path, stack.enter_context(source.open("rb"))) for path, source in files.items()
        ]
        deletions = [library.CommitOperationDelete(path) for path in stale]
        parent = None if before is None else before.commit
        api.create_commit(name, [*additions, *deletions], commit_message="Upload by birl push", parent_commit=parent)
    return f"{access.endpoint}/{name}"


def hub_library() -> Any:
    """The package huggingface_hub; ConfigError if it is not installed."""
    # Without it, huggingface_hub asks huggingface.co for a list of programs at any endpoint.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as problem:
        raise ConfigError(f"push and pull need the huggingface_hub package: {install_extra('hub')}") from problem
    return huggingface_hub


def _repository(name: str, listed: Any) -> Repository:
    """The repository that an answer of the Hub describes; an exception if it describes none."""
    siblings = listed["siblings"]
    commit = listed["sha"]
    if not isinstance(commit, str) or not commit.isalnum() or len(siblings) > MOST_FILES:
        raise ValueError("no commit, or too many files")
    library = listed.get("library_name")
    files = [_remote_file(one) for one in siblings]
    return Repository(name, commit, bool(listed.get("private")), library if isinstance(library, str) else None, files)


def _remote_file(listed: Any) -> RemoteFile:
    match listed:
        case {"rfilename": str(name), "size": int(size)} if size >= 0:
            large = listed.get("lfs") or {}
            return RemoteFile(name, size, _text(large.get("sha256")), _text(listed.get("blobId")))
    raise ValueError("a file without a name or a size")


def _text(value: Any) -> str | None:
    return value.lower() if isinstance(value, str) else None


def _within(seconds: float, what: str, work: Callable[[], Result]) -> Result:
    """The result of `work`; ConnectionError if it takes longer than so many seconds.

    A server that sends a byte now and then never exceeds the limit on one answer. Then the thread
    is left behind: nothing can interrupt it, and it ends with this process.
    """
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as problem:  # raised again in the caller's thread
            result.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    if not wait([result], max(seconds, 0)).done:
        wrong = f"{printable(what)} did not come in time, at {SLOWEST:,} bytes a second"
        raise ConnectionError(f"{wrong}: the server or the connection is too slow; try again later")
    return result.result()


@contextlib.contextmanager
def _stream(access: Access, url: str) -> Iterator[Any]:
    """The answer to a request, whose content has not been read yet."""
    library = hub_library()
    headers = library.utils.build_hf_headers(token=access.token or False, **LIBRARY)
    headers["accept-encoding"] = "identity"  # what is packed could become any number of bytes
    session = library.utils.get_session()
    with session.stream("GET", url, headers=headers, timeout=SECONDS, follow_redirects=True) as response:
        yield response


def _limited(response: Any, limit: int, what: str) -> Iterator[bytes]:
    """The content of an answer; CheckpointError as soon as it is more than `limit` bytes."""
    size = 0
    for part in response.iter_raw():
        size += len(part)
        if size > limit:
            raise CheckpointError(f"{printable(what)} has more than the {limit:,} bytes that it may have")
        yield part


def _require(condition: bool, file: RemoteFile, found: str) -> None:
    if not condition:
        remedy = "pull it again; if that does not help, the repository is damaged"
        raise CheckpointError(f"{file.name} is not the file of {file.size:,} bytes in the list: {found}; {remedy}")


def _require_success(access: Access, what: str, response: Any) -> None:
    if response.status_code != 200:
        raise _refusal(access, what, response.status_code)


def _refusal(access: Access, what: str, status: int) -> Exception:
    """The error that says what an HTTP status means."""
    given = "without a token" if access.token is None else "with this token"
    match status:
        case 401 if access.token is not None:
            return ConfigError(f"{access.endpoint} does not accept the token for {what} (401); make a new one")
        case 401 | 403:
            remedy = "use a token with the right to it, or another OWNER"
            return ConfigError(f"{access.endpoint} does not allow access to {what} {given} ({status}); {remedy}")
        case 404:
            return ConfigError(f"{access.endpoint} has no {what} (404), or does not show it {given}")
        case 409 | 412:
            remedy = "choose another name, or push again"
            return ConfigError(f"{what} exists, or was changed by someone else at this moment ({status}); {remedy}")
    return ConnectionError(f"{access.endpoint} answers {status} to the request for {what}; try again later")


@contextlib.contextmanager
def _sentences(access: Access, name: str) -> Iterator[None]:
    """Turn what huggingface_hub and its HTTP library raise into errors that say what to do."""
    library = hub_library()
    import httpx2  # the HTTP library of huggingface_hub

    def translated(problem: BaseException) -> Exception:
        if isinstance(problem, library.errors.HfHubHTTPError):
            return _refusal(access, name, problem.response.status_code)
        if isinstance(problem, library.errors.OfflineModeIsEnabled):
            return ConnectionError("HF_HUB_OFFLINE is set, so nothing is sent; unset it")
        if isinstance(problem, httpx2.HTTPError):
            why = f"{type(problem).__name__}: {problem}".removesuffix(": ")
            return ConnectionError(f"{access.endpoint} cannot be reached, or the connection broke: {why}; try again")
        return ConnectionError(f"{access.endpoint} refused {name}: {' '.join(str(problem).split())}")

    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, library.errors.OfflineModeIsEnabled) as problem:
        raise translated(problem) from problem
    except (ConfigError, CheckpointError, ConnectionError):
        raise
    except RuntimeError as problem:  # raised around what went wrong with one large file
        raise translated(problem.__cause__ or problem) from problem
    except (ValueError, LookupError, TypeError) as problem:  # of an answer that is not the Hub's
        raise translated(problem) from problem


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without the progress bars and the log of huggingface_hub."""
    bars, log = library.utils, library.utils.logging
    were_off, level = bars.are_progress_bars_disabled(), log.get_verbosity()
    bars.disable_progress_bars()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if not were_off:
            bars.enable_progress_bars()
