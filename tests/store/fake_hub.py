"""A Hugging Face Hub of one dataset, in this process: as much of its interface as reading takes."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

import orjson
import pytest

from tests.store.remote import commits, serving

REPOSITORY = "org/corpus"


class Hub:
    """`commits`, the last one being that of `main`: files by path."""

    def __init__(self) -> None:
        commits[:] = [{}]
        self.commits = commits
        self.url = f"hf://datasets/{REPOSITORY}"
        self.endpoint = ""

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1]

    def name(self, number: int) -> str:
        return hashlib.sha1(str(number).encode()).hexdigest()

    def at(self, revision: str) -> dict[str, bytes] | None:
        names = {self.name(number): files for number, files in enumerate(self.commits)}
        return {**names, "main": self.files}.get(revision)


def _about(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "oid": "0" * 40}


def _tree(files: dict[str, bytes], folder: str) -> list[dict[str, Any]] | None:
    beginning = f"{folder}/" if folder else ""
    inside = {
        path.removeprefix(beginning): data for path, data in files.items() if path.startswith(beginning)
    }
    folders = {rest.partition("/")[0] for rest in inside if "/" in rest}
    listed = [_folder(beginning + name) for name in sorted(folders)]
    listed += [_about(beginning + name, data) for name, data in inside.items() if "/" not in name]
    return listed if listed or not folder else None


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one packet

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self, status: int, body: Any = b"", **headers: str) -> None:
            data = body if isinstance(body, bytes) else orjson.dumps(body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            api = f"/api/datasets/{REPOSITORY}"
            if match := re.fullmatch(rf"{api}/revision/([^/]+)", path):
                files = hub.at(match[1])
                if files is None:
                    self._answer(404, {}, X_Error_Code="RevisionNotFound")
                else:
                    number = next(n for n, commit in enumerate(hub.commits) if commit is files)
                    self._answer(200, {"id": REPOSITORY, "sha": hub.name(number)})
            elif match := re.fullmatch(rf"{api}/tree/([^/]+)/?(.*)", path):
                tree = _tree(hub.at(match[1]) or {}, match[2])
                self._answer(404, {}, X_Error_Code="EntryNotFound") if tree is None else self._answer(
                    200, tree
                )
            elif match := re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.*)", path):
                data = (hub.at(match[1]) or {}).get(match[2])
                if data is None:
                    self._answer(404, {}, X_Error_Code="EntryNotFound")
                else:
                    tag = hashlib.sha1(data).hexdigest()
                    self._answer(200, data, ETag=f'"{tag}"', X_Repo_Commit=match[1])
            else:
                self._answer(404, {}, X_Error_Code="RepoNotFound")

    return Handler


@contextlib.contextmanager
def _served() -> Iterator[Hub]:
    hub = Hub()
    with serving(_handler(hub)) as hub.endpoint:
        yield hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Its own protocol wants servers of its own.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with _served() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        yield served
