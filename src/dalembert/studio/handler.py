"""What the server answers. It knows only its own page: the Host must be this machine's (no DNS rebinding), an Origin must be its own, a
POST must be JSON of at most 1 MB, and the page may load nothing from elsewhere.
"""

from __future__ import annotations

import json
import re
import select
import socket
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .._version import __version__
from ..errors import InvalidInput
from .assets import TYPES
from .catalogue import catalogue, entry
from .service import Refused, Service
from .show import Cancelled, show
from .takeaway import take_away

MOST_BYTES = 1_000_000
UNREAD = (403, 411, 413, 415)
"""Answers before the body of a request was read."""
SAFE = re.compile(r"[^\w.-]+", re.ASCII)
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
)


class Handler(BaseHTTPRequestHandler):
    """One connection of a page."""

    server: Service
    protocol_version = "HTTP/1.1"
    server_version = "dalembert"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, work: Callable[[], None]) -> None:
        try:
            self._require_own_page()
            work()
        except Refused as fault:
            self._fail(fault.code, str(fault), fault.place)
        except InvalidInput as fault:
            self._fail(400, str(fault), fault.place)
        except (Cancelled, BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True
        except Exception as fault:
            traceback.print_exc()
            self._fail(500, f"the server failed: {type(fault).__name__}: {fault}")

    def _require_own_page(self) -> None:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not self.server.knows(host):
            raise Refused(403, f"this server does not answer to the name {host!r}")
        if origin is not None and origin != f"http://{host}":
            raise Refused(403, f"this server does not answer pages of {origin!r}")

    # -- GET ------------------------------------------------------------------------------------------------------------------
    def _get(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/":
            self._send_file("index.html")
        elif address.path.startswith("/page/"):
            self._send_file(address.path.removeprefix("/page/"))
        elif address.path == "/api/ping":
            self._send_json({"alive": True, "version": __version__})
        elif address.path == "/api/catalogue":
            self._send_json(catalogue(self.server.opened))
        elif address.path == "/api/system":
            name = parse_qs(address.query).get("name", [""])[0]
            with self.server.looking:
                found = entry(name, self.server.opened)
            self._send_json(found)
        else:
            raise Refused(404, f"there is nothing at {address.path}")

    def _send_file(self, name: str) -> None:
        if name not in self.server.page:
            raise Refused(404, f"the page has no file {name}")
        kind = TYPES["." + name.rpartition(".")[2]]
        self._send(200, f"{kind}; charset=utf-8", self.server.page[name])

    # -- POST -----------------------------------------------------------------------------------------------------------------
    def _post(self) -> None:
        request = self._body()
        if self.path == "/api/show":
            self._send_json(self.server.prepared(request) or self._show(request))
        elif self.path == "/api/save":
            with self.server.turn(self._gone):
                name, kind, content = take_away(request, self.server.opened, self._gone)
            self._send(200, kind, content, Content_Disposition=f'attachment; filename="{SAFE.sub("-", name)}"')
        else:
            raise Refused(404, f"there is nothing at {self.path}")

    def _show(self, request: Any) -> dict[str, Any]:
        with self.server.turn(self._gone):
            return show(request, self.server.opened, self._gone)

    def _body(self) -> Any:
        """The JSON that the page posted."""
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= MOST_BYTES or kind != "application/json":
            if kind != "application/json":
                raise Refused(415, "a POST must be application/json")
            raise Refused(413 if length > 0 else 411, f"a POST needs its length, at most {MOST_BYTES} bytes")
        try:
            return json.loads(self.rfile.read(length), parse_constant=_no_constant)
        except (ValueError, RecursionError) as fault:
            raise Refused(400, f"this is not JSON: {fault}") from None

    def _gone(self) -> bool:
        """Whether the page has closed the connection on which it waits."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    # -- answers --------------------------------------------------------------------------------------------------------------
    def _send_json(self, value: Any, code: int = 200) -> None:
        self._send(code, "application/json", json.dumps(value, allow_nan=False).encode())

    def _fail(self, code: int, message: str, place: str = "") -> None:
        if code in UNREAD:
            self.close_connection = True  # the body of the request was not read, and is not the next one
        try:
            self._send_json({"error": {"message": message, "place": place}}, code)
        except OSError:
            self.close_connection = True

    def _send(self, code: int, kind: str, content: bytes, **headers: str) -> None:
        self.send_response(code)
        common = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        if self.close_connection:
            common["Connection"] = "close"
        for name, value in {**common, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the terminal is the user's."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
