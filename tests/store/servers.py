"""Servers in this process: a web server, and a Hugging Face Hub of one dataset, as much of it as reading takes."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

DATASET = "org/corpus"
commits: list[dict[str, bytes]] = []
"""Files by path of the commits of the Hub; the last one is that of `main`."""


@contextlib.contextmanager
def serving(answer: Callable[[str], tuple[bytes | None, dict[str, str]]]) -> Iterator[tuple[str, list[str]]]:
    """The URL of a web server, and the methods of its requests. answer: data (None: 404) and headers, by path."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one packet

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            requests.append(self.command)
            data, headers = answer(self.path.partition("?")[0])
            self.send_response(404 if data is None else 200)
            for name, value in {**headers, "Content-Length": str(len(data or b""))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data or b"")

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def commit_name(number: int) -> str:
    return hashlib.sha1(str(number).encode()).hexdigest()


def _tree(files: dict[str, bytes], folder: str) -> list[dict[str, Any]]:
    begins, listed = f"{folder}/" if folder else "", {}
    for path, data in files.items():
        if path.startswith(begins):
            name, is_folder, _ = path.removeprefix(begins).partition("/")
            entry = {"type": "directory" if is_folder else "file", "path": begins + name, "size": len(data)}
            listed[name] = {**entry, "oid": hashlib.sha1(data).hexdigest()}
    return list(listed.values())


def _answer(path: str) -> tuple[bytes | None, dict[str, str]]:
    revisions = {"main": len(commits) - 1, **{commit_name(number): number for number in range(len(commits))}}
    match = re.fullmatch(
        rf"(?:/api)?/datasets/{DATASET}/(revision|tree|resolve)/([^/]+)/?(.*)", path.replace("%2F", "/")
    )
    if not match:
        return None, {"X-Error-Code": "RepoNotFound"}
    kind, revision, below = match.groups()
    if revision not in revisions:
        return None, {"X-Error-Code": "RevisionNotFound"}
    number = revisions[revision]
    files, missing = commits[number], (None, {"X-Error-Code": "EntryNotFound"})
    if kind == "revision":
        return orjson.dumps({"id": DATASET, "sha": commit_name(number)}), {}
    if kind == "tree":
        tree = _tree(files, below)
        return (orjson.dumps(tree), {}) if tree or not below else missing
    if below not in files:
        return missing
    tag = hashlib.sha1(files[below]).hexdigest()
    return files[below], {"ETag": f'"{tag}"', "X-Repo-Commit": commit_name(number)}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty dataset."""
    from huggingface_hub import constants

    commits[:] = [{}]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Its own protocol wants servers of its own.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with serving(_answer) as (endpoint, _):
        url = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        yield f"hf://datasets/{DATASET}"
