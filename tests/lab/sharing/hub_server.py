"""A server on this machine that speaks the part of the Hugging Face Hub's API that is used.

It keeps repositories in memory: commits of files, small ones in the commit (NDJSON, base64), large
ones by Git LFS. Tests read them, put files into them, and let it give wrong answers.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_secretOfTheOwner"
OWNER = "owner"
LARGE = (".safetensors", ".mp4")  # as in the .gitattributes of a new repository


@dataclass
class Repo:
    """A repository: its newest commit."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.safetensors filter=lfs\n"})
    messages: list[str] = field(default_factory=list)

    @property
    def commit(self) -> str:
        content = json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()})
        return hashlib.sha1(f"{content}{self.messages}".encode()).hexdigest()

    @property
    def metadata(self) -> dict[str, Any]:
        card = self.files.get("README.md", b"").decode()
        found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
        return yaml.safe_load(found[1]) if found else {}

    def siblings(self) -> list[dict[str, Any]]:
        return [sibling(name, content) for name, content in self.files.items()]


def sibling(name: str, content: bytes) -> dict[str, Any]:
    """A file as the list of a repository has it."""
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    large = {"lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}}
    return {"rfilename": name, "size": len(content), "blobId": blob} | (large if name.endswith(LARGE) else {})


class Hub:
    """The state of the server, and the requests that it got."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}  # by SHA-256: uploaded, but perhaps in no commit
        self.requests: list[str] = []  # method and path
        self.tokens: dict[str, str | None] = {}  # what each request had in its Authorization header
        self.wrong: dict[str, Callable[[Any], None]] = {}  # a request's method and path: answers in its place
        self.address = ""
        self.storage = ""  # the same server by another name: the Hub has large files on another one


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        asked = f"{self.command} {path}"
        self.hub.requests.append(asked)
        self.hub.tokens[asked] = self.headers.get("authorization")
        wrong = next((answer for start, answer in self.hub.wrong.items() if asked.startswith(start)), None)
        if wrong is not None:
            wrong(self)
            return
        self.body = self.read_body()
        for pattern, route in ROUTES:
            found = re.fullmatch(pattern, asked)
            if found:
                route(self, **found.groupdict())
                return
        self.send(404, {"error": f"the test server does not know {asked}"})

    def read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        """Answer with JSON, or with bytes."""
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def is_owner(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    def may_write(self) -> bool:
        """Whether the token is right; else the answer is given."""
        if not self.is_owner():
            invalid = "Invalid credentials in Authorization header"
            self.send(401, {"error": invalid}, {"X-Error-Message": invalid})
        return self.is_owner()

    def repo(self, name: str) -> Repo | None:
        """The repository; None if it is not shown, and then the answer is given."""
        if self.headers.get("authorization") not in (None, f"Bearer {TOKEN}"):
            self.may_write()
            return None
        found = self.hub.repos.get(name)
        if found is None or (found.private and not self.is_owner()):
            status = 404 if self.is_owner() else 401
            self.send(status, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        return found

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if not self.may_write():
            return
        if asked["organization"] != OWNER:
            self.send(403, {"error": "You don't have the rights to create a model under this namespace"})
        elif name in self.hub.repos:
            self.send(409, {"error": "You already created this model repo"})
        else:
            self.hub.repos[name] = Repo(asked.get("visibility") == "private" or asked.get("private") is True)
            self.send(200, {"url": f"{self.hub.address}/{name}", "name": name, "id": "0"})

    def info(self, name: str, revision: str | None = None) -> None:
        repo = self.repo(name)
        if repo is None:
            return
        if revision not in (None, "main", repo.commit):
            self.send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
            return
        listed = {"id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "tags": []}
        listed |= {"library_name": repo.metadata["library_name"]} if "library_name" in repo.metadata else {}
        self.send(200, listed | {"siblings": repo.siblings(), "cardData": repo.metadata})

    def validate_yaml(self) -> None:
        card = json.loads(self.body)["content"]
        try:
            Repo(files={"README.md": card.encode()}).metadata.get("tags")
        except (yaml.YAMLError, AttributeError) as problem:
            self.send(400, {"errors": [{"message": str(problem)}], "warnings": []})
            return
        self.send(200, {"errors": [], "warnings": []})

    def preupload(self, name: str) -> None:
        if self.repo(name) is None or not self.may_write():
            return
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        modes = [
            {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular", "shouldIgnore": False}
            for path in paths
        ]
        self.send(200, {"files": modes})

    def batch(self, name: str) -> None:
        if self.repo(name) is None or not self.may_write():
            return
        objects = []
        for one in json.loads(self.body)["objects"]:
            url = f"{self.hub.address}/lfs/{one['oid']}"
            actions = {"upload": {"href": url}, "verify": {"href": f"{self.hub.address}/verify"}}
            objects.append(one | ({} if one["oid"] in self.hub.large else {"actions": actions}))
        self.send(200, {"transfer": "basic", "objects": objects})

    def put_large(self, oid: str) -> None:
        right = hashlib.sha256(self.body).hexdigest() == oid
        if right:
            self.hub.large[oid] = self.body
        self.send(200 if right else 400, {})

    def verify(self) -> None:
        asked = json.loads(self.body)
        self.send(200 if len(self.hub.large.get(asked["oid"], b"")) == asked["size"] else 404, {})

    def commit(self, name: str) -> None:
        repo = self.repo(name)
        if repo is None or not self.may_write():
            return
        header, *changes = [json.loads(line) for line in self.body.splitlines()]
        if header["value"].get("parentCommit", repo.commit) != repo.commit:
            self.send(412, {"error": "A commit has happened since"})
            return
        files = dict(repo.files)
        for change in changes:
            value = change["value"]
            match change["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        repo.files = files
        repo.messages.append(header["value"]["summary"])
        self.send(200, {"commitUrl": f"{self.hub.address}/{name}/commit/{repo.commit}", "commitOid": repo.commit})

    def resolve(self, name: str, revision: str, path: str) -> None:
        repo = self.repo(name)
        if repo is None:
            return
        if revision not in ("main", repo.commit) or path not in repo.files:
            self.send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        content = repo.files[path]
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{digest}"'}
        if not path.endswith(LARGE):
            self.send(200, content, headers)
            return
        self.hub.large[digest] = content
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        self.send(302, b"", headers | linked | {"Location": f"{self.hub.storage}/lfs/{digest}"})

    def get_large(self, oid: str) -> None:
        self.send(200, self.hub.large[oid], {"ETag": f'"{oid}"'})


REPO = r"(?P<name>[^/]+/[^/]+)"
ROUTES: list[tuple[str, Callable[..., None]]] = [
    (r"POST /api/repos/create", Handler.create),
    (r"POST /api/validate-yaml", Handler.validate_yaml),
    (rf"GET /api/models/{REPO}", Handler.info),
    (rf"GET /api/models/{REPO}/revision/(?P<revision>.+)", Handler.info),
    (rf"POST /api/models/{REPO}/preupload/main", Handler.preupload),
    (rf"POST /api/models/{REPO}/commit/main", Handler.commit),
    (rf"POST /{REPO}\.git/info/lfs/objects/batch", Handler.batch),
    (r"PUT /lfs/(?P<oid>\w+)", Handler.put_large),
    (r"(?:GET|HEAD) /lfs/(?P<oid>\w+)", Handler.get_large),
    (r"POST /verify", Handler.verify),
    (rf"(?:GET|HEAD) /{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """The server, on a free port of this machine."""
    hub = Hub()
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address, hub.storage = (f"http://{host}:{server.server_port}" for host in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
