"""A local stand-in of the Hugging Face Hub: the HTTP interface that huggingface_hub uses.

It stores repositories with their commits in memory: regular and large files (LFS), with a token for
writes and private repositories. `hub_server` starts it, and points the library at it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_planted0123456789abcdefghijklmnop"
"""The only token that the server accepts."""
_LARGE = (".safetensors", ".png")


class HubServer(ThreadingHTTPServer):
    """The server, with its repositories.

    Attributes:
        commits: files of each commit, oldest first, by repository.
        private: names of private repositories.
        requests: method and path of each request.
        blobs: contents of large files by SHA-256.
        fake_sizes: sizes to report instead of the true ones, by file.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.requests: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.fake_sizes: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Return the address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, repo: str) -> dict[str, bytes]:
        """Return the newest files of a repository, to read or to change."""
        return self.commits.setdefault(repo, [{}])[-1]

    def commit(self, repo: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        """Return the name and the files of a revision, or None."""
        commits = self.commits[repo]
        names = [hashlib.sha1(f"{repo} {k}".encode()).hexdigest() for k in range(len(commits))]
        if revision in (None, "main"):
            return names[-1], commits[-1]
        return next(((x, y) for x, y in zip(names, commits, strict=True) if x == revision), None)


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Serve the list of a repository, or a file."""
        self._answer()

    def do_HEAD(self) -> None:
        """Serve the headers of a file."""
        self._answer()

    def do_POST(self) -> None:
        """Create a repository, prepare an upload, or commit."""
        self._answer()

    def do_PUT(self) -> None:
        """Store a large file."""
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for pattern, name in _ROUTES:
            match = re.fullmatch(pattern, f"{self.command} {path}")
            if match:
                getattr(self, name)(*match.groups(), body)
                return
        self._send(404, {"error": "no such page"})

    def _send(self, status: int, value: Any = None, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for key, text in headers.items():
            self.send_header(key.replace("_", "-"), text)
        self.send_header("Content-Length", headers.get("size", str(len(content))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @property
    def _is_authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _find(self, repo: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        """Return a commit, or send an error."""
        if repo not in self.server.commits or (
            repo in self.server.private and not self._is_authorized
        ):
            self._send(401, {"error": "not found"}, X_Error_Code="RepoNotFound")
            return None
        commit = self.server.commit(repo, revision)
        if commit is None:
            self._send(404, {"error": "no revision"}, X_Error_Code="RevisionNotFound")
        return commit

    def create(self, body: bytes) -> None:
        options = json.loads(body)
        repo = f"{options['organization']}/{options['name']}"
        if not self._is_authorized:
            self._send(401, {"error": "Invalid username or password."})
            return
        is_new = repo not in self.server.commits
        if is_new:
            self.server.commits[repo] = [{".gitattributes": b"*.safetensors filter=lfs"}]
            if options.get("private") or options.get("visibility") == "private":
                self.server.private.add(repo)
        self._send(200 if is_new else 409, {"url": f"{self.server.url}/{repo}"})

    def validate(self, body: bytes) -> None:
        import yaml

        header = json.loads(body)["content"].split("---\n")[1]
        errors = [] if isinstance(yaml.safe_load(header), dict) else [{"message": "no metadata"}]
        self._send(200, {"errors": errors, "warnings": []})

    def info(self, repo: str, revision: str | None, body: bytes) -> None:
        commit = self._find(repo, revision)
        if commit is not None:
            sizes = {name: len(x) for name, x in commit[1].items()} | self.server.fake_sizes
            siblings = [{"rfilename": name, "size": sizes[name]} for name in commit[1]]
            is_private = repo in self.server.private
            result = {"id": repo, "sha": commit[0], "siblings": siblings, "private": is_private}
            self._send(200, result)

    def preupload(self, repo: str, revision: str, body: bytes) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(_LARGE) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._send(200, {"files": files})

    def batch(self, repo: str, body: bytes) -> None:
        objects = [
            {**x, "actions": {"upload": {"href": f"{self.server.url}/lfs/{x['oid']}"}}}
            for x in json.loads(body)["objects"]
        ]
        self._send(200, {"transfer": "basic", "objects": objects})

    def put(self, oid: str, body: bytes) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.blobs[oid] = body
        self._send(200)

    def commit(self, repo: str, revision: str, body: bytes) -> None:
        if not self._is_authorized:
            self._send(403, {"error": "forbidden"})
            return
        files = dict(self.server.files(repo))
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        self.server.commits[repo].append(files)
        name = self.server.commit(repo, "main")[0]  # pyright: ignore[reportOptionalSubscript]
        url = f"{self.server.url}/{repo}/commit/{name}"
        self._send(200, {"commitOid": name, "commitUrl": url})

    def resolve(self, repo: str, revision: str, path: str, body: bytes) -> None:
        commit = self._find(repo, revision)
        if commit is None:
            return
        content = commit[1].get(path)
        if content is None:
            self._send(404, {"error": "no file"}, X_Error_Code="EntryNotFound")
            return
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X_Repo_Commit": commit[0]}
        if path.endswith(_LARGE):  # served by another address, as the hub's content network does
            self.server.blobs[digest] = content
            headers |= {"X_Linked_Size": str(len(content)), "X_Linked_Etag": f'"{digest}"'}
            host = self.server.url.replace("127.0.0.1", "localhost")
            self._send(302, b"", Location=f"{host}/lfs/{digest}", **headers)
        else:
            self._send(200, content, ETag=f'"{digest[:40]}"', **headers)

    def blob(self, oid: str, body: bytes) -> None:
        if "Authorization" in self.headers:  # the token belongs to the hub only
            self._send(400, {"error": "a token"})
            return
        self._send(200, self.server.blobs[oid], ETag=f'"{oid}"')


_REPO = r"([\w.-]+/[\w.-]+)"
_ROUTES = (
    (r"POST /api/repos/create", "create"),
    (r"POST /api/validate-yaml", "validate"),
    (rf"POST /api/models/{_REPO}/preupload/(.+)", "preupload"),
    (rf"POST /api/models/{_REPO}/commit/(.+)", "commit"),
    (rf"GET /api/models/{_REPO}(?:/revision/(.+))?", "info"),
    (rf"POST /{_REPO}\.git/info/lfs/objects/batch", "batch"),
    (r"PUT /lfs/(\w+)", "put"),
    (r"(?:GET|HEAD) /lfs/(\w+)", "blob"),
    (rf"(?:GET|HEAD) /{_REPO}/resolve/([^/]+)/(.+)", "resolve"),
)


@contextlib.contextmanager
def hub_server(monkeypatch: pytest.MonkeyPatch, cache: Any) -> Iterator[HubServer]:
    """Yield a server that huggingface_hub talks to, with an empty cache and no token."""
    from huggingface_hub import constants

    server = HubServer()
    pages = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + pages)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
