"""SeaweedFS as an S3 server of this machine, and an HTTP proxy before it, which counts requests and may answer them."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.conftest import variables_without

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}


@dataclass(slots=True)
class Request:
    """A request as it came in; a fault may change its headers, whose names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def verb(self) -> str:
        """GET, HEAD, PUT, DELETE, POST, or LIST."""
        return "LIST" if self.method == "GET" and "list-type=" in self.path else self.method


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of a request: the proxy itself answers it with a `status` and S3's `code`, or forwards it."""

    status: int = 0
    code: str = ""


@dataclass
class Proxy:
    """A proxy before `target`, http://host:port, from `start` to `stop`. `fault` says what becomes of each request."""

    target: str
    fault: Callable[[Request], Fault | None] = lambda request: None
    requests: list[Request] = field(default_factory=list)

    def start(self) -> Proxy:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def answer(self) -> None:
                proxy._answer(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def counts(self) -> dict[str, int]:
        """Requests so far by verb."""
        verbs = [request.verb for request in self.requests]
        return {verb: verbs.count(verb) for verb in sorted(set(verbs))}

    def _answer(self, client: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in client.headers.items()}
        body = client.rfile.read(int(headers.get("content-length", 0)))
        request = Request(client.command, client.path, headers, body)
        self.requests.append(request)
        fault = self.fault(request) or Fault()
        if fault.status:
            answer = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
            self._send(client, fault.status, {"content-type": "application/xml"}, answer)
            return
        address = urlsplit(self.target)
        server = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            # As it is: the host that the client signed for is the proxy's.
            server.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name not in HOP_BY_HOP:
                    server.putheader(name, value)
            server.endheaders(request.body or None)
            found = server.getresponse()
            data = found.read()
        except OSError:
            client.close_connection = True  # as the server itself does that is gone
            return
        finally:
            server.close()
        self._send(client, found.status, dict(found.getheaders()), data)

    def _send(
        self, client: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
    ) -> None:
        client.send_response_only(status)
        length = headers.get("Content-Length", "0") if client.command == "HEAD" else str(len(body))
        for name, value in headers.items():
            if name.lower() not in {*HOP_BY_HOP, "content-length"}:
                client.send_header(name, value)
        client.send_header("Content-Length", length)
        client.end_headers()
        client.wfile.write(body)
        client.wfile.flush()


BUCKET = "divorder"
KEY, SECRET = "key-of-the-tests", "secret-of-the-tests"
_READY_SECONDS = 60
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens at, nor at 10,000 more, which the object store takes too."""
    found: set[int] = set()
    while len(found) < number:
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError, OverflowError):
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", one.getsockname()[1] + 10_000))
            found.add(one.getsockname()[1])
    return sorted(found)


def die_with_parent() -> None:
    """`preexec_fn` of a process that is killed as soon as the process that starts it ends, however that one ends."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Weed:
    """A server with one bucket, on ports of its own, for those who have KEY and SECRET."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("s3", "master", "filer", "volume", "admin")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"http://127.0.0.1:{self.ports['s3']}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Weed:
        command = [
            *(str(Path(sys.executable).parent / "weed"), "mini", f"-dir={self.folder}", f"-bucket={BUCKET}"),
            *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
            *(f"-{name}.port={port}" for name, port in self.ports.items()),
        ]
        environment = variables_without("AWS_")
        environment |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        with open(self.folder.parent / "weed.log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        end = time.monotonic() + _READY_SECONDS
        while not self._has_bucket():
            assert self._process.poll() is None and time.monotonic() < end, "weed has not started"
            time.sleep(0.1)
        return self

    def _has_bucket(self) -> bool:
        there = S3Store(
            BUCKET,
            endpoint=self.url,
            region="us-east-1",
            access_key_id=KEY,
            secret_access_key=SECRET,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        with contextlib.suppress(BaseError):
            obstore.list_with_delimiter(there)
            return True
        return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it at once, without any clean-up."""
        os.killpg(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()


_numbers = itertools.count()


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """An S3 server."""
    folder = tmp_path_factory.mktemp("weed") / "data"
    folder.mkdir()
    server = Weed(folder).start()
    yield server
    server.kill()


@pytest.fixture
def proxy(
    weed: Weed, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """A proxy before it, to which the environment leads with sound credentials."""
    proxy = Proxy(weed.url).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield proxy
    proxy.stop()


@pytest.fixture
def new_place(proxy: Proxy) -> Callable[[], str]:
    """A URL below which nothing lies, another one a call."""
    return lambda: f"s3://{BUCKET}/{next(_numbers)}/store"
