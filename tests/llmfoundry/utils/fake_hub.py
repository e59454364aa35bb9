"""A hub on loopback that keeps what it is sent: repositories, large files, pull requests."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub.constants
import pytest

from tests.composer.utils.object_store.faults import serving

TOKEN = "hf_ofthetest"


@dataclass
class Repo:
    """A model's repository; a revision is a branch's name or a commit's."""

    visibility: str = "public"
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by commit."""
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits.get(self.branches.get(revision, revision), {})

    def commit(self, branch: str, files: dict[str, bytes], message: str) -> str:
        oid = hashlib.sha1(f"{len(self.commits)}{message}".encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        self.messages.append(message)
        return oid


@dataclass
class Hub:
    """What the hub holds, what it was asked, and what it is to refuse."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Large files by their SHA-256."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str, int]] = field(default_factory=list)
    """(method, part of the path, status): such requests are answered with the status."""


ROUTES: dict[str, str] = {
    r"POST /api/repos/create": "create",
    r"POST /api/validate-yaml": "validate",
    r"POST /api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<rev>[^/]+)": "preupload",
    r"POST /api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<rev>[^/]+)": "commit",
    r"POST /api/models/(?P<repo>[^/]+/[^/]+)/branch/(?P<rev>[^/]+)": "branch",
    r"POST /(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch": "batch",
    r"PUT /lfs/(?P<oid>\w+)": "store",
    r"GET /api/models/(?P<repo>[^/]+/[^/]+)(/revision/(?P<rev>[^/]+))?": "info",
    r"GET /api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<rev>[^/]+)(/.*)?": "tree",
    r"(HEAD|GET) /(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<file>.+)": "resolve",
}


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            del format, args

        def any_method(self) -> None:
            length = self.headers.get("Content-Length")
            self.body = self.rfile.read(int(length)) if length else self.chunks()
            parts = urlsplit(self.path)
            self.query = parse_qs(parts.query)
            hub.seen.append((self.command, parts.path))
            for method, part, status in hub.refused:
                if method == self.command and part in parts.path:
                    return self.answer({"error": "refused by the test"}, status)
            is_write = self.command == "POST"
            if is_write and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer({"error": "no token"}, 401)
            for route, name in ROUTES.items():
                match = re.fullmatch(route, f"{self.command} {parts.path}")
                if match:
                    found = {
                        key: unquote(value or "main") for key, value in match.groupdict().items()
                    }
                    return getattr(self, name)(**found)
            return self.answer({"error": f"no route for {self.command} {self.path}"}, 404)

        do_GET = do_PUT = do_POST = do_HEAD = any_method

        def chunks(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return b""
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def answer(self, content: Any, status: int = 200, **headers: str) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for key, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def create(self) -> None:
            asked = json.loads(self.body)
            name = f"{asked['organization']}/{asked['name']}"
            url = {"url": f"{hub.url}/{name}"}
            if name in hub.repos:
                return self.answer(url, 409)
            hub.repos[name] = repo = Repo(asked.get("visibility", "public"))
            repo.commit("main", {}, "initial commit")
            self.answer(url)

        def validate(self) -> None:
            self.answer({"warnings": [], "errors": []})

        def known(self, repo: str) -> Repo | None:
            found = hub.repos.get(repo)  # once: the test may add it while the answer is written
            if found is None:
                self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            return found

        def preupload(self, repo: str, rev: str) -> None:
            if self.known(repo) is None:
                return
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(self.body)["files"]
            ]
            self.answer({"files": files})

        def branch(self, repo: str, rev: str) -> None:
            if (found := self.known(repo)) is None:
                return
            if rev in found.branches:
                return self.answer({"error": "Reference already exists"}, 409)
            found.branches[rev] = found.branches["main"]
            self.answer({})

        def batch(self, repo: str) -> None:
            objects = []
            for each in json.loads(self.body)["objects"]:
                if each["oid"] not in hub.blobs:
                    action = {"href": f"{hub.url}/lfs/{each['oid']}"}
                    each = {**each, "actions": {"upload": action}}
                objects.append(each)
            self.answer({"objects": objects, "transfer": "basic"})

        def store(self, oid: str) -> None:
            if hashlib.sha256(self.body).hexdigest() != oid:
                return self.answer({"error": "not what was announced"}, 400)
            hub.blobs[oid] = self.body
            self.answer({})

        def commit(self, repo: str, rev: str) -> None:
            if (found := self.known(repo)) is None:
                return
            files, message = dict(found.files(rev)), ""
            for line in self.body.splitlines():
                item = json.loads(line)
                value = item["value"]
                if item["key"] == "header":
                    message = value["summary"]
                elif item["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif item["key"] == "lfsFile":
                    files[value["path"]] = hub.blobs[value["oid"]]
                elif item["key"] == "deletedFile":
                    del files[value["path"]]
                else:
                    return self.answer({"error": f"unknown {item['key']}"}, 400)
            is_request = "create_pr" in self.query
            number = sum(name.startswith("refs/pr/") for name in found.branches) + 1
            oid = found.commit(f"refs/pr/{number}" if is_request else rev, files, message)
            told = {"commitUrl": f"{hub.url}/{repo}/commit/{oid}", "commitOid": oid}
            if is_request:
                told["pullRequestUrl"] = f"{hub.url}/{repo}/discussions/{number}"
            self.answer(told)

        def info(self, repo: str, rev: str) -> None:
            if (found := self.known(repo)) is None:
                return
            sha = found.branches.get(rev, rev)
            names = [{"rfilename": name} for name in found.files(rev)]
            self.answer({"id": repo, "sha": sha, "siblings": names, "private": True})

        def tree(self, repo: str, rev: str) -> None:
            if (found := self.known(repo)) is None:
                return
            rows = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in found.files(rev).items()
            ]
            self.answer(rows)

        def resolve(self, repo: str, rev: str, file: str) -> None:
            if (found := self.known(repo)) is None:
                return
            commit = found.branches.get(rev, rev)
            data = found.files(rev).get(file)
            if data is None:
                return self.answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            self.answer(data, X_Repo_Commit=commit, ETag=f'"{_etag(data)}"')

    return Handler


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Runs a hub, and makes this process take it for the hub."""
    hub = Hub()
    with serving(_handler(hub)) as hub.url:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # Its protocol is not public; what is sent and committed is the same.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
