"""Places of every kind, and what lies there; servers in this process: object stores in memory, a web server."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from dagster_divorder.settings.places import Place, Url, as_place
from dagster_divorder.store import sources
from dagster_divorder.store.manifests import NEIGHBOUR, neighbour
from dagster_divorder.store.sources import bucket


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, MemoryStore]:
    """Every bucket is in memory, made when it is first named."""
    stores: dict[str, MemoryStore] = {}
    monkeypatch.setattr(sources, "_connected", lambda origin, *_: stores.setdefault(origin, MemoryStore()))
    return stores


SERVER = pytest.param("server", marks=[pytest.mark.cluster, pytest.mark.slow])
OBJECTS = ["memory", SERVER]
"""Object stores: in this process, and an S3 server."""


@pytest.fixture(params=["folder", *OBJECTS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place of each kind where nothing lies yet."""
    if request.param == "folder":
        return tmp_path / "place"
    if request.param == "server":
        return Url(request.getfixturevalue("new_place")())
    request.getfixturevalue(request.param)
    return Url("s3://bucket/place")


def put(at: str | Path, data: bytes) -> None:
    """Write a file, of whatever place."""
    target = as_place(str(at))
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    else:
        store, key = bucket(target)
        obstore.put(store, key, data)


def objects(place: str | Path) -> dict[str, bytes]:
    """Content of all files below a place, by the rest of their names, and below its neighbour, as `_/...`."""
    target = as_place(str(place))
    return _below(target, "") | _below(neighbour(target), NEIGHBOUR)


def _below(place: Place, prefix: str) -> dict[str, bytes]:
    if isinstance(place, Path):
        files = [path for path in place.rglob("*") if path.is_file()]
        return {prefix + path.relative_to(place).as_posix(): path.read_bytes() for path in files}
    store, key = bucket(place)
    paths = [meta["path"] for chunk in obstore.list(store, key) for meta in chunk]
    return {prefix + path.removeprefix(f"{key}/"): bytes(obstore.get(store, path).bytes()) for path in paths}


class Served:
    """Files of a web server by path, and the requests that it had."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.url = ""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a web server of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def served(*, tags: bool = True) -> Iterator[Served]:
    """A web server, with or without ETags."""
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in one packet

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            served.requests.append((self.command, self.path))
            data = served.files.get(self.path)
            if data is None:
                self._send(404, b"", {})
                return
            tag = f'"{hashlib.md5(data).hexdigest()}"'
            headers = {"Last-Modified": "Mon, 23 Nov 2026 06:40:00 GMT", **({"ETag": tag} if tags else {})}
            if tags and self.headers.get("If-Match", tag) != tag:
                self._send(412, b"", {})
                return
            self._send(200, data, headers)

        def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

    with serving(Handler) as served.url:
        yield served
