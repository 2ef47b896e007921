"""The studio's server: the page, its shows and downloads, on loopback, with Python's own HTTP server.

The server knows only its own page. The Host must be this machine's (no DNS rebinding), an Origin must be its own, a
POST must be JSON of at most 1 MB, and the page may load nothing from elsewhere. It has no state but the sessions of
those who drive and what teachers show, so that several tabs and lost connections cost nothing. `workers` simulate, each
request within its budget, and stop if its page has gone.
"""

from __future__ import annotations

import base64
import errno
import ipaddress
import json
import os
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
import traceback
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np

from ..errors import InvalidInput, NumericalFailure, UnknownName, __version__
from ..io.atomic import atomic_path
from ..io.config import to_toml
from ..io.dataset import save_run
from ..kernels import in_haste, make_up
from ..kernels.cache import persist_xla_cache
from ..plotting.runs import plot_comparison
from ..simulation import Run
from . import requests
from .catalogue import entry, input_of_system, make_catalogue, start
from .film import animate
from .presentation import Drive, present, show_run
from .requests import StudioInput
from .workers import Busy, Cancelled, OverBudget, Sessions, Workers

DEFAULT_PORT, PORT_ATTEMPTS = 8314, 20
HTTP_PORT, HAS_PORT = 80, re.compile(r":\d+$")
"""Browsers leave the port of http out of the names of hosts and origins."""
MAX_CONNECTIONS, RESERVED_FILES, IDLE_SECONDS = 2048, 64, 60
MAX_BYTES = 1_000_000
STATE_KEYS = ("request", "story", "playing", "speed", "follow", "camera", "frame")
SESSION_KEYS = ("stick", "steps", "goal", "push", "discs", "patient")
DRIVE_KEYS = ("request", "session", *SESSION_KEYS, "alive", "end", "room", "key")
MAX_ROOMS, MAX_STATE, ROOM_SECONDS, FOLLOW_SECONDS = 8, 2000, 20.0, 15.0
"""Teachers' sessions at once, how long their states may be, how long a teacher may be silent and a follower waits."""
UNREAD_BODY_CODES = (403, 411, 413, 415)
"""Answers that are given before the body of a request was read."""
BESIDE = 10
"""The niceness of work that nobody waits for."""
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
    folder = Path(__file__).with_name("page")
    kept = (path for path in sorted(folder.rglob("*")) if path.suffix in PAGE_TYPES)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


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
        raise InvalidInput("the page has no module to start from: this installation is incomplete")
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


def player(run: Run) -> str:
    """One page that plays a run offline."""
    return page_with(show_run(run))


def film_of(run: Run, path: Path, seconds: float) -> None:
    """Write a film of a run: .mp4 (needs ffmpeg) or .gif."""
    animate(requests.frames_of_run(run), path, seconds=seconds)


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


def check_download(asked: Any, opened: StudioInput) -> tuple[str, Mapping[str, Any]]:
    """The kind of file and the request, counted, of which the page wants it."""
    if not isinstance(asked, Mapping):
        raise InvalidInput("to save something the page sends its request and a kind")
    kind, request = asked.get("kind"), asked.get("request")
    if not isinstance(kind, str) or kind not in DOWNLOAD_TYPES:
        raise UnknownName("kind of file", kind, DOWNLOAD_TYPES)
    requests.check_request(request, opened)
    assert isinstance(request, Mapping)
    return kind, request


def make_download(
    asked: Any, opened: StudioInput, cancelled: Callable[[], bool] = lambda: False
) -> tuple[str, str, bytes]:
    """The name, type and content of the file that the page asks for; nothing is written where the server runs."""
    kind, request = check_download(asked, opened)
    path = opened.saved if request.get("saved") else None
    jobs = [] if path is not None else requests.jobs_of(request, opened)[0]
    system = jobs[0].names["system"] if path is None else path.stem
    with tempfile.TemporaryDirectory(prefix="dalembert-studio-") as folder:
        file = Path(folder) / f"file.{kind}"
        if kind == "html":
            file.write_bytes(page_with(present(request, opened, cancelled)).encode())
        elif path is None and kind == "toml" and opened.make is not None:
            raise InvalidInput("this system lives in Python or in a URDF file, which no configuration names: save data")
        elif path is None and kind == "toml":
            file.write_bytes(jobs[0].text.encode())
        elif path is None:
            runs: dict[str, Run] = {}
            for job in jobs:
                every, controls = requests.frame_interval(job, MAX_FILE_STATES), requests.controls_of(request, job)
                run = requests.integrate(job, every, cancelled, opened, controls)[0]
                runs[job.names["method"] + (" (beside)" if runs else "")] = run
            first = next(iter(runs.values()))
            if kind == "nc":
                save_run(first, file, attributes={"config": jobs[0].text, "system": system})
            elif kind == "png":
                plot_comparison(runs, title=system, path=file)
            else:
                animate(requests.frames_of_run(first, jobs[0]), file, **FILM)
        elif kind == "toml" and (config := requests.config_of_file(path)) is not None:
            file.write_bytes(to_toml(config).encode())
        elif kind == path.suffix[1:] == "nc":
            file = path
        elif kind in ("gif", "mp4"):
            animate(requests.frames_of_file(path), file, **FILM)
        else:
            raise InvalidInput(f"a {kind} cannot be made of {path.name}; run its configuration again for one")
        return f"{system.partition('.py:')[0]}.{kind}", DOWNLOAD_TYPES[kind], file.read_bytes()


class Answer(NamedTuple):
    """What is sent back to a page."""

    code: int
    kind: str
    content: bytes
    headers: Mapping[str, str] = {}


def answer_json(value: Any, code: int = 200) -> Answer:
    return Answer(code, "application/json", json.dumps(value, allow_nan=False).encode())


def answer_fault(code: int, message: str, place: str = "") -> Answer:
    return answer_json({"error": {"message": message, "place": place}}, code)


def answer_exception(fault: Exception) -> Answer:
    """What a page is told of a request that failed."""
    if isinstance(fault, InvalidInput):
        return answer_fault(400, str(fault), fault.place)
    if isinstance(fault, ArithmeticError | MemoryError | NumericalFailure | np.linalg.LinAlgError):
        return answer_fault(400, f"the numbers of this request are too much for it: {fault or type(fault).__name__}")
    traceback.print_exception(fault)
    return answer_fault(500, f"the server failed: {type(fault).__name__}: {fault}")


def answer_request(asked: tuple[str, Any], cancelled: Callable[[], bool], opened: StudioInput) -> Answer:
    """Work out what a page asks for: this is what a worker does."""
    task, given = asked
    persist_xla_cache()
    try:
        if task == "system":
            return answer_json(entry(given, opened))
        if task == "steps":
            with in_haste():
                requests.compile_steps(given, opened)
            return answer_json({})
        if task == "show":
            with in_haste():
                return answer_json(present(given, opened, cancelled))
        name, kind, content = make_download(given, opened, cancelled)
        safe = UNSAFE_CHARACTERS.sub("-", name)
        return Answer(200, kind, content, {"Content-Disposition": f'attachment; filename="{safe}"'})
    except Cancelled:
        raise
    except Exception as fault:
        return answer_exception(fault)
    finally:
        threading.Thread(target=_make_up_beside, daemon=True).start()


def _make_up_beside() -> None:
    """Compile with effort what was compiled in haste, after what somebody waits for."""
    if sys.platform == "linux":  # elsewhere threads have no priority that Python could set
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BESIDE)
    make_up()


_DRIVES: dict[int, Drive] = {}  # of the threads that belong to a page that drives: of a process it is one


def answer_drive(asked: Mapping[str, Any], cancelled: Callable[[], bool], opened: StudioInput) -> Answer:
    """Begin a drive, or go on with it: this is what the process of a session does."""
    persist_xla_cache()
    here = threading.get_ident()
    try:
        if "request" in asked:
            with in_haste():
                _DRIVES[here] = Drive(asked["request"], opened)
                begun = answer_json(_DRIVES[here].begin(asked["request"], opened))
            threading.Thread(target=_make_up_beside, daemon=True).start()
            return begun
        if "goal" in asked:
            return answer_json(_DRIVES[here].plan(asked["goal"], asked.get("discs", []), asked.get("patient") is True))
        if "push" in asked:
            return answer_json(_DRIVES[here].park(asked.get("steps"), asked["push"]))
        return answer_json(_DRIVES[here].go(asked.get("stick"), asked.get("steps")))
    except Exception as fault:
        return answer_exception(fault)


class Room:
    """A teacher's session: the last state of the page that leads, what it drives, the show of its request, made once.

    What is new has the next number, so that a page which knows a number gets what came after it.
    """

    def __init__(self) -> None:
        self.key, self.number, self.heard = secrets.token_urlsafe(16), 0, time.monotonic()
        self.state: Mapping[str, Any] = {}
        self.stated = 0
        self.news, self.making = threading.Condition(), threading.Lock()
        self.show: tuple[Any, Answer] | None = None  # of a request
        self.begun: Answer | None = None  # the show from which a drive begins
        self.live: dict[str, tuple[int, Any]] = {}  # of a drive: what followers draw, each with its number

    def lead(self, state: Mapping[str, Any]) -> None:
        """Take the next state, and wake those who wait for it."""
        with self.news:
            self.number += 1
            self.state, self.stated, self.heard = state, self.number, time.monotonic()
            self.news.notify_all()

    def drive(self, asked: Mapping[str, Any], told: Mapping[str, Any], ended: bool) -> None:
        """Take what the page that leads has asked of its drive and was told, for those who watch."""
        with self.news:
            self.number += 1
            new = {key: asked[key] for key in ("goal", "discs") if key in asked}
            new |= {key: told[key] for key in ("pose", "time", "path") if key in told}
            if ended:
                self.live = {"drive": (self.number, None)}
            elif "show" in told:
                self.live, self.begun = {"drive": (self.number, self.number)}, answer_json(told["show"])
            elif self.live:
                self.live |= {key: (self.number, value) for key, value in new.items()}
            self.news.notify_all()

    def follow(self, after: int, gone: Callable[[], bool]) -> dict[str, Any]:
        """The state once it is another than number `after`; after a while the number alone."""
        end = time.monotonic() + FOLLOW_SECONDS
        with self.news:
            while self.number == after and time.monotonic() < end:
                self.news.wait(1.0)
                if gone():
                    raise Cancelled
            live = {key: value for key, (number, value) in self.live.items() if number > after}
            new = ({"state": self.state} if self.stated > after else {}) | ({"live": live} if live else {})
            return {"number": self.number} | new


class Refused(Exception):
    """Refused(code, message): a request that is answered with a status code and a message."""


class Studio(ThreadingHTTPServer):
    """The server, with what the command line opened; a `Handler` answers each connection."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, opened: StudioInput):
        self.opened = opened
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        here = opened.make is not None and getattr(opened.make, "file", None) is None  # it cannot go to another process
        count: dict[str, int] = {"count": 1} if here else {}
        module = "" if here else __name__
        self.workers = Workers(partial(answer_request, opened=opened), module, opened.max_seconds, **count)
        self.sessions = Sessions(partial(answer_drive, opened=opened), self.workers.context, opened.max_seconds)
        super().__init__((host, port), Handler)
        self.host = host
        self.places = threading.BoundedSemaphore(_allow_connections(MAX_CONNECTIONS))
        self.page, self.systems = page_files(), dict[str, Answer]()
        self.rooms: dict[str, Room] = {}
        self.kinds: set[str] = set()  # of runs that were asked for
        self._first: dict[str, Any] = {}  # what `prepare` works out
        self._prepared: list[Answer] = []

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_port}/"

    @cached_property
    def catalogue(self) -> Answer:
        return answer_json(make_catalogue(self.opened))

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: loopback, its host, or on an open one any address in numbers."""
        name, _, port = host.rpartition(":") if HAS_PORT.search(host) else (host, "", str(HTTP_PORT))
        if port != str(self.server_port):
            return False
        if name in ("127.0.0.1", "localhost", "[::1]", self.host, f"[{self.host}]"):
            return True
        return not self.is_loopback and _is_address(name.strip("[]"))

    @cached_property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or (_is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    def ask(self, task: str, given: Any, gone: Callable[[], bool] = lambda: False) -> Answer:
        """What a worker answers, or why none does. A second worker compiles the steps of a new kind of run."""
        answered = threading.Event()
        if task == "show" and not given.get("saved") and (kind := requests.kind_of(given)) not in self.kinds:
            self.kinds.add(kind)
            first = given == self._first and self.opened.own is None  # it is quick, and the browser starts beside it
            if not first and not given.get("controls") and self.workers.context is not None and self.workers.has_room:
                help_out = ("steps", given, answered.is_set)
                threading.Thread(target=self.ask, args=help_out, daemon=True).start()
        try:
            return Answer(*self.workers.ask((task, given), gone))
        except Busy:
            told = answer_fault(503, "too many requests wait: try again in a second")
            return told._replace(headers={"Retry-After": "1"})
        except OverBudget as fault:
            return answer_fault(400, f"{fault}: take fewer steps, or a smaller system")
        except Cancelled:
            if task == "steps":  # nobody waits for it any more
                return answer_json({})
            raise
        finally:
            answered.set()

    def drive(self, asked: Any, gone: Callable[[], bool]) -> Answer:
        """Begin a session for a request, go on with one, or end it; those who follow the page watch."""
        if not isinstance(asked, Mapping):
            raise InvalidInput("to drive, the page sends a request, or a session with stick and steps")
        for key in asked:
            if key not in DRIVE_KEYS:
                raise UnknownName("key of a drive", key, DRIVE_KEYS)
        room = self.rooms.get(str(asked.get("room")))
        if room is not None and asked.get("key") != room.key:
            return answer_fault(403, "only the page that opened this session leads it")
        answer = self._drive(asked, gone)
        if room is not None:
            told = json.loads(answer.content) if answer.code == 200 else {}
            room.drive(asked, told, "session" not in told and str(asked.get("session")) not in self.sessions.all)
        return answer

    def _drive(self, asked: Mapping[str, Any], gone: Callable[[], bool]) -> Answer:
        name = asked.get("session")
        try:
            if name is None:
                requests.check_request(asked.get("request"), self.opened)
                name = self.sessions.open()
                answer = Answer(*self.sessions.ask(name, {"request": asked["request"]}, gone))
                if answer.code != 200:
                    self.sessions.close(name)
                    return answer
                return answer_json({"session": name, **json.loads(answer.content)})
            if not isinstance(name, str) or name not in self.sessions.all:
                return answer_fault(404, "this drive has ended: begin another")
            if asked.get("end"):
                self.sessions.close(name)
                return answer_json({"ended": True})
            if asked.get("alive"):
                self.sessions.hear(name)
                return answer_json({"alive": True})
            wanted = {key: asked[key] for key in SESSION_KEYS if key in asked}
            return Answer(*self.sessions.ask(name, wanted, gone))
        except Busy:
            told = answer_fault(503, "too many people drive already: try again in a while")
            return told._replace(headers={"Retry-After": "10"})
        except (OverBudget, KeyError) as fault:
            return answer_fault(400, f"the drive has ended: {fault}")

    def lead(self, asked: Any) -> Answer:
        """Open a room for a page that leads, or take its next state; who follows knows no key, and cannot."""
        state = asked.get("state") if isinstance(asked, Mapping) else None
        if not isinstance(state, Mapping) or not set(state) <= set(STATE_KEYS):
            raise InvalidInput(f"to lead, the page sends a state with {', '.join(STATE_KEYS)}")
        requests.check_request(state.get("request"), self.opened)
        if len(json.dumps({**state, "request": None})) > MAX_STATE:
            raise InvalidInput(f"a state has at most {MAX_STATE} characters beside its request")
        name, now = asked.get("room"), time.monotonic()
        if name is None:
            for old in [key for key, room in [*self.rooms.items()] if now - room.heard > ROOM_SECONDS]:
                self.rooms.pop(old, None)
            if len(self.rooms) >= MAX_ROOMS:
                return answer_fault(503, "too many people lead already: try again in a while")
            name = secrets.token_urlsafe(16)
            self.rooms[name] = Room()
        elif not isinstance(name, str) or name not in self.rooms:
            return answer_fault(404, "this session has ended: share another")
        elif asked.get("key") != self.rooms[name].key:
            return answer_fault(403, "only the page that opened this session leads it")
        room = self.rooms[name]
        room.lead(state)
        return answer_json({"room": name, "key": room.key, "number": room.number})

    def follow(self, query: Mapping[str, list[str]], gone: Callable[[], bool]) -> Answer:
        """What the teacher shows, once that is new to this page."""
        name, after = query.get("room", [""])[0], query.get("after", ["0"])[0]
        room = self.rooms.get(name)
        if room is None or time.monotonic() - room.heard > ROOM_SECONDS:
            return answer_fault(404, "there is no such session any more")
        if "show" in query:
            return room.begun or answer_fault(404, "nothing is driven in this session")
        return answer_json(room.follow(int(after[:18]) if after.isdecimal() else 0, gone))

    def shared_show(self, request: Any, gone: Callable[[], bool]) -> Answer:
        """The show of a request: one that a teacher shows is made once for all who follow."""
        room = next((room for room in [*self.rooms.values()] if room.state.get("request") == request), None)
        if room is None:
            return self.ask("show", request, gone)
        with room.making:
            if room.show is None or room.show[0] != request:
                answer = self.ask("show", request, gone)
                if answer.code != 200:
                    return answer
                room.show = request, answer
            return room.show[1]

    def prepare(self) -> None:
        """Work out the first show while the browser loads the page."""
        self._first = start(self.opened)
        work = lambda: self._prepared.append(self.ask("show", self._first))
        self._preparing = threading.Thread(target=work, daemon=True)
        self._preparing.start()

    def first_show(self, request: Any) -> Answer | None:
        """The show that was prepared, if that is what is asked for."""
        if {key: value for key, value in request.items() if key != "complete"} != self._first:
            return None
        self._preparing.join()
        return next((answer for answer in self._prepared if answer.code == 200), None)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread, unless there are too many."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        message = b"the studio has too many connections: close some of its tabs"
        head = f"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: {len(message)}\r\nConnection: close\r\n\r\n"
        with suppress(OSError):
            request.send(head.encode() + message, socket.MSG_DONTWAIT)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def close(self) -> None:
        """End it, where it serves in a thread of its own (see `open_system`)."""
        self.shutdown()
        self.server_close()

    def _repr_html_(self) -> str:
        return (
            f'The studio serves at <a href="{self.url}" target="_blank">{self.url}</a>; <code>.close()</code> ends it.'
        )

    def __repr__(self) -> str:
        return f"<dalembert studio at {self.url}>"

    def server_close(self) -> None:
        super().server_close()
        self.workers.close()
        self.sessions.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the page's business, not the terminal's."""


def _allow_connections(wanted: int) -> int:
    """How many connections there may be: each needs an open file, of which a process may have only so many."""
    try:
        import resource
    except ImportError:  # this system has no such limit
        return wanted
    soft, hard = (limit % 2**63 for limit in resource.getrlimit(resource.RLIMIT_NOFILE))  # -1 is no limit
    files = min(hard, wanted + RESERVED_FILES)
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return max(1, min(wanted, max(soft, files) - RESERVED_FILES))


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
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True  # the content, sent after its headers, would wait for their receipt: 40 ms

    def do_GET(self) -> None:
        try:
            host, origin, port = self.headers.get("Host", ""), self.headers.get("Origin"), f":{HTTP_PORT}"
            if not self.server.knows(host):
                raise Refused(403, f"this server does not answer to the name {host!r}")
            if origin is not None and origin.removesuffix(port) != f"http://{host}".removesuffix(port):
                raise Refused(403, f"this server does not answer pages of {origin!r}")
            answer = self._get() if self.command == "GET" else self._post()
        except Refused as fault:
            self.close_connection |= fault.args[0] in UNREAD_BODY_CODES  # its body, which was not read, is no request
            answer = answer_fault(*fault.args)
        except (Cancelled, OSError):
            self.close_connection = True
            return
        except Exception as fault:
            answer = answer_exception(fault)
        closing = {"Connection": "close"} if self.close_connection else {}
        about = {"Content-Type": answer.kind, "Content-Length": str(len(answer.content))}
        try:
            self.send_response(answer.code)
            for name, value in {**about, **HEADERS, **closing, **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)
        except OSError:
            self.close_connection = True

    do_POST = do_GET

    def _get(self) -> Answer:
        address = urlsplit(self.path)
        if address.path == "/" or address.path.startswith("/page/"):
            name = address.path.removeprefix("/page/") if address.path != "/" else "index.html"
            if name not in self.server.page:
                raise Refused(404, f"the page has no file {name}")
            return Answer(200, f"{PAGE_TYPES[Path(name).suffix]}; charset=utf-8", self.server.page[name])
        if address.path == "/api/ping":
            return answer_json({"alive": True, "version": __version__})
        if address.path == "/api/catalogue":
            return self.server.catalogue
        if address.path == "/api/system":
            name, known = parse_qs(address.query).get("name", [""])[0], self.server.systems
            answer = known.get(name) or self.server.ask("system", name, self._is_gone)
            if answer.code == 200:
                known[name] = answer
            return answer
        if address.path == "/api/follow":
            return self.server.follow(parse_qs(address.query), self._is_gone)
        raise Refused(404, f"there is nothing at {address.path}")

    def _post(self) -> Answer:
        request = self._read_json()
        if self.path == "/api/show":
            requests.check_request(request, self.server.opened)
            return self.server.first_show(request) or self.server.shared_show(request, self._is_gone)
        if self.path == "/api/lead":
            return self.server.lead(request)
        if self.path == "/api/drive":
            return self.server.drive(request, self._is_gone)
        if self.path == "/api/save":
            check_download(request, self.server.opened)
            return self.server.ask("save", request, self._is_gone)
        raise Refused(404, f"there is nothing at {self.path}")

    def _read_json(self) -> Any:
        """The JSON that the page posted."""

        def refuse_constant(name: str) -> Any:
            raise ValueError(f"{name} is not allowed")

        given = self.headers.get("Content-Length", "")
        length = int(given) if given.isdecimal() else -1
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
        self.connection.settimeout(0)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.settimeout(self.timeout)

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


def open_system(
    system: Any,
    *,
    initial: Mapping[str, Any] | None = None,
    method: Any = "lagrange-dalembert",
    step: float = 0.02,
    steps: int = 400,
    units: Mapping[str, str] | None = None,
    ranges: Mapping[str, Any] | None = None,
    port: int | None = None,
    browser: bool = True,
    wait: bool | None = None,
) -> Studio:
    """Open the studio with a system of your own; `da.studio(system)` is this function.

    system   a system, a `Mechanism`, or a function of parameters that makes one
    initial  as the section [initial] of a configuration: {"speed": 1.0}, {"velocity": [...]}
    method   the name of a method, or {"name": ..., options}
    units    {name: unit} and `ranges` {name: (low, high)} of the numbers of a system, which are sliders; a function
             says them itself, as in `mass: Annotated[float, "kg", (0.5, 3.0)] = 1.0`
    wait     serve until Ctrl-C (default in a script), or return at once (in a notebook or prompt; `.close()` ends it)
    """
    about = {"initial": initial, "method": method, "step": step, "steps": steps}
    server = open_studio("127.0.0.1", port, input_of_system(system, units, ranges, **about))
    server.prepare()
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    serving.start()
    print(f"dalembert studio at {server.url}", flush=True)
    if browser:
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
    if wait or (wait is None and not interactive):
        with suppress(KeyboardInterrupt):
            serving.join()
        server.close()
    return server
