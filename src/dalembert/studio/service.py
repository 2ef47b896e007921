"""What the studio's server has for those who answer: the page, what was opened, and turns, one simulation at a time."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .assets import page_files
from .catalogue import start
from .requests import Opened
from .show import Cancelled, show

MOST_WAITING = 8


class Refused(Exception):
    """A request that is answered with a status code and a message."""

    def __init__(self, code: int, message: str, place: str = ""):
        super().__init__(message)
        self.code, self.place = code, place


class Service(ThreadingHTTPServer):
    """The server, with what the command line opened; `handler` answers each connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, opened: Opened, handler: type[BaseHTTPRequestHandler]):
        self.opened = opened
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)
        self.host = host
        self.running, self.looking = threading.Lock(), threading.Lock()
        self.waiting = threading.BoundedSemaphore(MOST_WAITING)
        self._first: dict[str, Any] = {}
        self._future: Future[dict[str, Any]] | None = None

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_port}/"

    @cached_property
    def page(self) -> dict[str, bytes]:
        return page_files()

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: loopback, the host it was bound to, or on an open one any address in numbers."""
        name, _, port = host.rpartition(":")
        if port != str(self.server_port):
            return False
        if name in ("127.0.0.1", "localhost", "[::1]", self.host, f"[{self.host}]"):
            return True
        return not self.is_loopback and _is_number(name.strip("[]"))

    @cached_property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or (_is_number(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @contextmanager
    def turn(self, gone: Callable[[], bool]) -> Iterator[None]:
        """One simulation at a time: wait for a turn, unless too many wait already or the page has gone."""
        if not self.waiting.acquire(blocking=False):
            raise Refused(503, "too many simulations are waiting: try again in a second")
        try:
            while not self.running.acquire(timeout=0.1):
                if gone():
                    raise Cancelled
            try:
                yield
            finally:
                self.running.release()
        finally:
            self.waiting.release()

    def prepare(self) -> None:
        """Work out the first show while the browser loads the page."""
        self._first = start(self.opened)
        future: Future[dict[str, Any]] = Future()
        self._future = future

        def work() -> None:
            try:
                with self.turn(lambda: False):
                    future.set_result(show(self._first, self.opened))
            except Exception as fault:  # whoever asks is told
                future.set_exception(fault)

        threading.Thread(target=work, daemon=True).start()

    def prepared(self, request: Any) -> dict[str, Any] | None:
        """The first show, if that is what is asked for."""
        if self._future is None or not isinstance(request, dict):
            return None
        asked = {key: value for key, value in request.items() if key != "complete"}
        return self._future.result() if asked == self._first else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the page's business, not the terminal's."""


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
