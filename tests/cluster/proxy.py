"""An HTTP proxy before an object store, which counts requests and, when told to, answers them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

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
