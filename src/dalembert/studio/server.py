"""The studio's server: the page, its shows and downloads, on loopback, with Python's own HTTP server.

The server knows only its own page. The Host must be this machine's (no DNS rebinding), an Origin must be its own, a
POST must be JSON of at most 1 MB, and the page may load nothing from elsewhere. It has no state, so that several tabs
and lost connections cost nothing. Simulations run one at a time; few may wait, and a page that has gone is not served.
"""

from __future__ import annotations

import base64
import errno
import ipaddress
import json
import re
import select
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..errors import InvalidInput, UnknownName, __version__
from ..io.atomic import atomic_path
from ..io.config import to_toml
from ..io.dataset import save_run
from ..plotting.runs import plot_comparison
from . import requests
from .catalogue import entry, make_catalogue, start
from .film import animate
from .presentation import show
from .requests import Cancelled, StudioInput

DEFAULT_PORT, PORT_ATTEMPTS = 8314, 20
MAX_WAITING = 8
MAX_BYTES = 1_000_000
UNREAD_BODY_CODES = (403, 411, 413, 415)
"""Answers that are given before the body of a request was read."""
MAX_FILE_STATES = 20_000
"""The most states in a data file; a longer run saves fewer of them."""
FILM: dict[str, Any] = {"seconds": 6.0, "frames_per_second": 15}
PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGE_TYPES |= {".svg": "image/svg+xml", ".txt": "text/plain"}
DOWNLOAD_TYPES = {"toml": "application/toml", "nc": "application/x-netcdf", "png": "image/png", "gif": "image/gif"}
DOWNLOAD_TYPES |= {"mp4": "video/mp4", "html": "text/html; charset=utf-8"}
UNSAFE_CHARACTERS = re.compile(r"[^\w.-]+", re.ASCII)
SERVER_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
)
EXPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": SERVER_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
IMPORT = re.compile(r'^((?:import|export)\b[^"\n]*)"\./([\w./-]+\.js)"', re.MULTILINE)
MODULE = re.compile(r'<script type="module" src="/?page/([\w./-]+)"></script>')
SCRIPT = re.compile(r'<script src="/?page/([\w./-]+)"></script>')
STYLE = re.compile(r'<link rel="stylesheet" href="/?page/([\w./-]+)">')
ICON = re.compile(r'<link rel="icon" href="/?page/([\w./-]+)">\n?')


def page_files() -> dict[str, bytes]:
    """The files of the page by their path under /page/: nothing else is ever served."""

    def walk(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
        for item in folder.iterdir():
            if item.is_dir():
                yield from walk(item, f"{prefix}{item.name}/")
            elif any(item.name.endswith(suffix) for suffix in PAGE_TYPES):
                yield prefix + item.name, item.read_bytes()

    return dict(walk(files(__package__) / "page", ""))


def page_with(show: dict[str, Any]) -> str:
    """The page as one text that plays a show offline, with style, scripts and the show inside.

    Modules cannot import each other from a file, so each becomes a data: address in an import map.
    """
    texts = {name: content.decode("utf-8") for name, content in page_files().items() if not name.endswith(".svg")}

    def inline_script(found: re.Match[str]) -> str:
        """A script in the page: nothing in it may end the element."""
        return "<script>\n" + texts[found[1]].replace("</", "<\\/").replace("<!--", "<\\!--") + "</script>"

    html = ICON.sub("", texts["index.html"])
    html = STYLE.sub(lambda found: f"<style>\n{texts[found[1]]}</style>", html)
    html = SCRIPT.sub(inline_script, html)
    main = MODULE.search(html)
    if main is None:
        raise InvalidInput("the page has no module to start from: this installation is not whole")
    imports: dict[str, str] = {}
    waiting = [main[1]]
    while waiting:
        name = waiting.pop()
        if f"studio/{name}" not in imports:
            module = IMPORT.sub(r'\1"studio/\2"', texts[name])  # imports by the names of the import map
            address = "data:text/javascript;base64," + base64.b64encode(module.encode()).decode("ascii")
            imports[f"studio/{name}"] = address
            waiting += [found[2] for found in IMPORT.finditer(texts[name])]
    data = json.dumps(show, allow_nan=False).replace("<", "\\u003c")
    inside = [
        f'<script type="application/json" id="show">{data}</script>',
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>',
        f'<script type="module">import "studio/{main[1]}";</script>',
    ]
    charset = '<meta charset="utf-8">'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{EXPORT_POLICY}">'
    return html.replace(main[0], "\n".join(inside)).replace(charset, f"{charset}\n{policy}")


def export(show: dict[str, Any], folder: Path) -> Path:
    """Write folder/index.html, whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidInput(f"--export is {folder}, which cannot be made a folder: {fault}") from fault
    path = folder / "index.html"
    with atomic_path(path) as temporary:
        Path(temporary).write_text(page_with(show), encoding="utf-8")
    return path


def make_download(
    asked: Any, opened: StudioInput, cancelled: Callable[[], bool] = lambda: False
) -> tuple[str, str, bytes]:
    """The name, type and content of the file that the page asks for; nothing is written where the server runs."""
    if not isinstance(asked, Mapping) or not isinstance(asked.get("request"), Mapping):
        raise InvalidInput("to save something the page sends its request and a kind")
    kind, request = asked.get("kind"), asked["request"]
    if not isinstance(kind, str) or kind not in DOWNLOAD_TYPES:
        raise UnknownName("kind of file", kind, DOWNLOAD_TYPES)
    if request.get("saved"):
        name, content = _download_of_file(request, kind, opened)
    else:
        name, content = _download_of_run(request, kind, opened, cancelled)
    return f"{name}.{kind}", DOWNLOAD_TYPES[kind], content


def _download_of_run(
    request: Mapping[str, Any], kind: str, opened: StudioInput, cancelled: Callable[[], bool]
) -> tuple[str, bytes]:
    if request.get("complete"):
        request, _ = requests.complete_velocity(request, opened)
    jobs = requests.jobs_of(request, opened)
    job, system = jobs[0], jobs[0].names["system"]
    name = system.partition(".py:")[0]
    if kind == "toml":
        return name, job.text.encode()
    if kind == "html":
        return name, page_with(show(request, opened, cancelled)).encode()
    runs = [requests.integrate(job, requests.frame_interval(job, MAX_FILE_STATES), cancelled)[0] for job in jobs]

    def write(path: Path) -> None:
        if kind == "nc":
            save_run(runs[0], path, {"config": job.text, "system": system})
        elif kind == "png":
            labels = [job.names["method"] + (" (beside)" if k else "") for k, job in enumerate(jobs)]
            plot_comparison(dict(zip(labels, runs, strict=True)), title=system, path=path)
        else:
            animate(requests.frames_of_run(runs[0], job), path, **FILM)

    return name, _content_of(kind, write)


def _download_of_file(request: Mapping[str, Any], kind: str, opened: StudioInput) -> tuple[str, bytes]:
    """What can be made of a saved run without running anything."""
    answer = show(request, opened)  # checks the request
    path = opened.saved
    assert path is not None
    if kind == "html":
        return path.stem, page_with(answer).encode()
    if kind == "nc" and path.suffix == ".nc":
        return path.stem, path.read_bytes()
    if kind == "toml" and (config := requests.config_of_file(path)) is not None:
        return path.stem, to_toml(config).encode()
    if kind in ("gif", "mp4"):
        frames = requests.frames_of_file(path)
        return path.stem, _content_of(kind, lambda file: animate(frames, file, **FILM))
    raise InvalidInput(f"a {kind} cannot be made of {path.name}; run its configuration again for one")


def _content_of(kind: str, write: Callable[[Path], Any]) -> bytes:
    """What `write` writes into a file, which lies in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dalembert-studio-") as folder:
        path = Path(folder) / f"file.{kind}"
        write(path)
        return path.read_bytes()


class Refused(Exception):
    """A request that is answered with a status code and a message."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Studio(ThreadingHTTPServer):
    """The server, with what the command line opened; a `Handler` answers each connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, opened: StudioInput):
        self.opened = opened
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)
        self.host = host
        self.running, self.looking = threading.Lock(), threading.Lock()
        self.waiting = threading.BoundedSemaphore(MAX_WAITING)
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
        """Whether a Host header names this server: loopback, its host, or on an open one any address in numbers."""
        name, _, port = host.rpartition(":")
        if port != str(self.server_port):
            return False
        if name in ("127.0.0.1", "localhost", "[::1]", self.host, f"[{self.host}]"):
            return True
        return not self.is_loopback and _is_address(name.strip("[]"))

    @cached_property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

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

    def first_show(self, request: Any) -> dict[str, Any] | None:
        """The show that was prepared, if that is what is asked for."""
        if self._future is None or not isinstance(request, dict):
            return None
        asked = {key: value for key, value in request.items() if key != "complete"}
        return self._future.result() if asked == self._first else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the page's business, not the terminal's."""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Handler(BaseHTTPRequestHandler):
    """One connection of a page."""

    server: Studio
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
            self._fail(fault.code, str(fault))
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

    def _get(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/":
            self._send_file("index.html")
        elif address.path.startswith("/page/"):
            self._send_file(address.path.removeprefix("/page/"))
        elif address.path == "/api/ping":
            self._send_json({"alive": True, "version": __version__})
        elif address.path == "/api/catalogue":
            self._send_json(make_catalogue(self.server.opened))
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
        kind = PAGE_TYPES["." + name.rpartition(".")[2]]
        self._send(200, f"{kind}; charset=utf-8", self.server.page[name])

    def _post(self) -> None:
        request = self._read_json()
        if self.path == "/api/show":
            answer = self.server.first_show(request)
            if answer is None:
                with self.server.turn(self._is_gone):
                    answer = show(request, self.server.opened, self._is_gone)
            self._send_json(answer)
        elif self.path == "/api/save":
            with self.server.turn(self._is_gone):
                name, kind, content = make_download(request, self.server.opened, self._is_gone)
            safe = UNSAFE_CHARACTERS.sub("-", name)
            self._send(200, kind, content, {"Content-Disposition": f'attachment; filename="{safe}"'})
        else:
            raise Refused(404, f"there is nothing at {self.path}")

    def _read_json(self) -> Any:
        """The JSON that the page posted."""

        def refuse_constant(name: str) -> Any:
            raise ValueError(f"{name} is not allowed")

        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if self.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "a POST must be application/json")
        if not 0 <= length <= MAX_BYTES:
            raise Refused(413 if length > 0 else 411, f"a POST needs its length, at most {MAX_BYTES} bytes")
        try:
            return json.loads(self.rfile.read(length), parse_constant=refuse_constant)
        except (ValueError, RecursionError) as fault:
            raise Refused(400, f"this is not JSON: {fault}") from None

    def _is_gone(self) -> bool:
        """Whether the page has closed the connection on which it waits."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if not readable:
            return False
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send_json(self, value: Any, code: int = 200) -> None:
        self._send(code, "application/json", json.dumps(value, allow_nan=False).encode())

    def _fail(self, code: int, message: str, place: str = "") -> None:
        if code in UNREAD_BODY_CODES:
            self.close_connection = True  # the body of the request was not read, and is not the next one
        try:
            self._send_json({"error": {"message": message, "place": place}}, code)
        except OSError:
            self.close_connection = True

    def _send(self, code: int, kind: str, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        closing = {"Connection": "close"} if self.close_connection else {}
        about = {"Content-Type": kind, "Content-Length": str(len(content))}
        for name, value in {**about, **HEADERS, **closing, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the terminal is the user's."""


def open_studio(host: str, port: int | None, opened: StudioInput) -> Studio:
    """A server on this port; without one, on 8314 or the next that is free."""
    for number in [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORT_ATTEMPTS), 0]:
        try:
            return Studio(host, number, opened)
        except OverflowError as fault:
            raise InvalidInput(f"--port is {port}; allowed: 0 to 65535") from fault
        except OSError as fault:
            taken = fault.errno == errno.EADDRINUSE
            if port is not None or not taken:
                hint = "; another program has it: leave --port out for a free one" if taken else ""
                raise InvalidInput(f"cannot serve on {host} port {number}: {fault.strerror}{hint}") from fault
    raise InvalidInput(f"no port of {host} is free")
