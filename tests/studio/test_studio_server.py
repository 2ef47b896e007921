"""The server of the studio answers its own page and nobody else, runs no code of the page, and outlives what pages do
to it.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from dalembert.cli import app
from dalembert.errors import InvalidInput
from dalembert.studio import workers
from dalembert.studio.catalogue import example
from dalembert.studio.requests import StudioInput, kind_of
from dalembert.studio.server import MAX_BYTES, Handler, Studio, open_studio
from dalembert.studio.workers import WORKERS

JSON = {"Content-Type": "application/json"}
MAX_STEPS = 9_999_999
SLEIGH = {**example("chaplygin-sleigh"), "run": {"step": 0.1, "steps": 10}}


@contextmanager
def serving(opened: StudioInput, host: str = "127.0.0.1"):
    with Studio(host, 0, opened) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def studio():
    with serving(StudioInput(max_steps=MAX_STEPS)) as server:
        yield server


def ask(server, method: str, path: str, body=None, headers=()):
    """Status, headers and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=90)
    try:
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request(method, path, text, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def post(server, path: str, body, headers=()):
    status, _, content = ask(server, "POST", path, body, JSON | dict(headers))
    return status, json.loads(content)


def test_the_page_is_served_with_a_strict_policy(studio):
    status, headers, content = ask(studio, "GET", "/")
    assert status == 200 and b"<canvas" in content
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and "Set-Cookie" not in headers
    for line in content.decode().splitlines():  # the policy allows no script or style in the page itself
        assert "<script>" not in line and "<style" not in line and "style=" not in line and " onclick" not in line
    status, headers, _ = ask(studio, "GET", "/page/main.js")
    assert status == 200 and headers["Content-Type"].startswith("text/javascript")
    assert json.loads(ask(studio, "GET", "/api/ping")[2])["alive"] is True


@pytest.mark.parametrize(
    "path",
    [
        "/page/../server.py",
        "/page/%2e%2e/server.py",
        "/page//etc/passwd",
        "/page/vendor",
        "/server.py",
        "/api",
        "//etc/passwd",
    ],
)
def test_nothing_but_the_files_of_the_page_is_served(studio, path):
    status, _, content = ask(studio, "GET", path)
    assert status == 404 and "message" in json.loads(content)["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "10.0.0.1:{port}", ""]
)
def test_another_name_is_refused(studio, host):
    for method, path in (("GET", "/"), ("GET", "/api/catalogue"), ("POST", "/api/show")):
        status, _, content = ask(studio, method, path, "{}", JSON | {"Host": host.format(port=studio.server_port)})
        assert status == 403 and b"canvas" not in content


def test_another_origin_is_refused(studio):
    own = f"http://127.0.0.1:{studio.server_port}"
    assert ask(studio, "GET", "/api/ping", headers={"Origin": own})[0] == 200
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{studio.server_port}", "http://127.0.0.1:1"):
        assert post(studio, "/api/show", {"config": SLEIGH}, {"Origin": origin})[0] == 403
    assert ask(studio, "OPTIONS", "/api/show", headers={"Origin": "http://evil.example"})[0] == 501


def test_a_server_on_an_open_address_answers_to_numbers_alone():
    with serving(StudioInput(), "0.0.0.0") as server:
        assert server.knows(f"192.168.1.7:{server.server_port}") and server.knows(f"localhost:{server.server_port}")
        assert not server.knows(f"evil.example:{server.server_port}") and not server.is_loopback


def test_a_post_must_be_json_of_a_reasonable_size(studio):
    assert ask(studio, "POST", "/api/show", "{}", {"Content-Type": "text/plain"})[0] == 415
    assert ask(studio, "POST", "/api/show", "{}")[0] == 415
    assert ask(studio, "POST", "/api/show", "{}", JSON | {"Content-Length": str(MAX_BYTES + 1)})[0] == 413
    assert ask(studio, "POST", "/api/show", "{}", JSON | {"Content-Length": "-5"})[0] == 411
    for text in ("{", '{"config": NaN}', "[" * 100_000, "\xff"):
        status, answer = post(studio, "/api/show", text)
        assert status == 400 and answer["error"]["message"]
    assert post(studio, "/api/other", {})[0] == 404


def test_a_show_and_what_is_wrong_with_one(studio):
    status, answer = post(studio, "/api/show", {"config": SLEIGH, "frames": 10})
    assert status == 200 and answer["runs"][0]["status"] == "ok"
    status, answer = post(studio, "/api/show", {"config": {**SLEIGH, "run": {"step": 0.1, "steps": MAX_STEPS + 1}}})
    assert status == 400 and answer["error"]["place"] == "run.steps" and str(MAX_STEPS) in answer["error"]["message"]
    status, answer = post(studio, "/api/show", {"config": {**SLEIGH, "system": {"python": "x.py:make"}}})
    assert status == 400 and answer["error"]["place"] == "system"


def test_a_file_comes_as_an_attachment(studio):
    body = {"request": {"config": SLEIGH}, "kind": "toml"}
    status, headers, content = ask(studio, "POST", "/api/save", body, JSON)
    assert status == 200 and headers["Content-Disposition"] == 'attachment; filename="chaplygin-sleigh.toml"'
    assert content.startswith(b"[system]")
    assert post(studio, "/api/save", {"request": {"config": SLEIGH}, "kind": "../x"})[0] == 400


def open_post(server, body) -> socket.socket:
    """A connection on which a show is asked for, and on which nobody reads."""
    text = json.dumps(body).encode()
    head = f"POST /api/show HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Type: application/json\r\n"
    page = socket.create_connection(("127.0.0.1", server.server_port))
    page.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return page


def until(condition, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_a_page_that_leaves_gives_back_its_worker(studio):
    endless = {**SLEIGH, "method": {"name": "adaptive"}, "run": {"step": 1e3, "t_end": 1e5}}  # its steps are smaller
    page = open_post(studio, {"config": endless})
    assert until(lambda: studio.workers.turns._value == WORKERS - 1)
    page.close()
    assert until(lambda: studio.workers.turns._value == WORKERS)
    assert post(studio, "/api/show", {"config": SLEIGH, "frames": 10})[0] == 200


def test_half_a_request_holds_nobody_up(studio):
    with socket.create_connection(("127.0.0.1", studio.server_port)) as page:
        page.sendall(f"POST /api/show HTTP/1.1\r\nHost: 127.0.0.1:{studio.server_port}\r\nContent-Le".encode())
        assert post(studio, "/api/show", {"config": SLEIGH, "frames": 10})[0] == 200


@pytest.mark.heavy
def test_fifty_clients_at_once(studio):
    def show_run(number: int) -> int:
        body = {"config": {**SLEIGH, "run": {"step": 0.1, "steps": 10 + number}}, "frames": 5}
        return post(studio, "/api/show", body)[0]

    with ThreadPoolExecutor(50) as clients:
        assert list(clients.map(show_run, range(50))) == [200] * 50


CHAIN = {"system": {"name": "pendulum-chain", "masses": [1.0] * 400, "lengths": [1.0] * 400}}
CHAIN |= {"initial": {"velocity": [0.0] * 800}, "method": {"name": "lagrange-dalembert"}, "run": SLEIGH["run"]}
WEDGES = [
    ({**SLEIGH, "method": {"name": "adaptive"}, "run": {"step": 0.05, "t_end": 1e12}}, "run.t_end"),
    ({**SLEIGH, "run": {"step": 1e-9, "t_end": 10}}, "run.t_end"),
    ({**SLEIGH, "run": {"step": 0.1, "steps": 10**7}}, "run.steps"),
    ({**SLEIGH, "run": {"step": 0.1, "steps": 1e300}}, "run.steps"),
    (CHAIN, "initial.velocity"),
    ({**CHAIN, "initial": {"momentum": [0.0] * 65}}, "initial.momentum"),
    ({**SLEIGH, "system": {"name": "suslov", "inertia": [[1.0] * 100] * 100}}, "system.inertia"),
]


@pytest.mark.parametrize(("config", "place"), WEDGES)
def test_what_is_too_much_is_counted_before_any_work(studio, config, place, monkeypatch):
    monkeypatch.setattr(studio, "ask", None)
    for path, body in (("/api/show", {"config": config}), ("/api/save", {"kind": "nc", "request": {"config": config}})):
        status, answer = post(studio, path, body)
        assert status == 400 and answer["error"]["place"] == place and "at most" in answer["error"]["message"]


def test_what_cannot_be_counted_is_stopped_and_others_go_on(studio, monkeypatch):
    """A run whose steps shrink, and a system that compiles for minutes."""
    chain = {**CHAIN, "system": {"name": "pendulum-chain", "masses": [1.0] * 16, "lengths": [1.0] * 16}}
    chain["initial"] = {"velocity": [0.0, 0.1] * 16, "configuration": [x for k in range(16) for x in (k + 1.0, 0.0)]}
    slow = {**SLEIGH, "method": {"name": "adaptive"}, "run": {"step": 1e3, "t_end": 1e9}}
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0.2)
    studio.kinds |= {kind_of({"config": config}) for config in (slow, chain)}  # no second worker helps with them
    with ThreadPoolExecutor(3) as clients:
        show = lambda config: clients.submit(post, studio, "/api/show", {"config": config, "frames": 10})
        assert [future.result()[0] for future in [show(SLEIGH) for _ in range(3)]] == [200] * 3  # three that are warm
        monkeypatch.setattr(studio.workers, "seconds", 1.0)
        asked = [show(slow), show(chain)]
        assert until(lambda: studio.workers.turns._value == WORKERS - 2)
        assert show(SLEIGH).result()[0] == 200
        assert not asked[1].done()
        for status, answer in (future.result() for future in asked):
            assert status == 400 and re.search("longer than 1 s|more than 9999999 steps", answer["error"]["message"])
    assert studio.workers.turns._value == WORKERS


NAMES = ["x" * 3000, ["a"], {"a": 1}, 7, None, True]
NUMBERS = [
    10**400,
    -(10**30),
    1e400,
    -1e301,
    "1e400",
    [[[[[[[[[[1]]]]]]]]]],
    {"0": 1},
    [],
    [None],
    {},
    True,
    "",
    1e-320,
]


@pytest.mark.parametrize("place", ["system.name", "method.name", "system.a", "run.step", "run.steps", "run.t_end"])
def test_every_bad_value_is_answered_with_a_sentence(studio, place):
    check_bad_values(studio, place)


@pytest.mark.parametrize("place", ["run.t0", "run.backend", "run.save_every", "initial.velocity", "method.retraction"])
def test_every_other_bad_value_is_answered_with_a_sentence(studio, place):
    check_bad_values(studio, place)
    check_bad_values(studio, "initial.configuration")


def check_bad_values(studio, place: str) -> None:
    section, key = place.split(".")
    for value in NAMES + NUMBERS:
        config = {**SLEIGH, section: {**SLEIGH[section], key: value}}
        text = json.dumps({"config": config, "frames": 5}).replace("Infinity", "1e400")
        status, answer = post(studio, "/api/show", text)
        assert status in (200, 400), (place, value, answer)
        assert status == 200 or 10 < len(answer["error"]["message"]) < 2000


@pytest.mark.parametrize(
    "body", [[], 3, {}, {"config": []}, {"config": {"system": 3}}, {"against": 3, "config": SLEIGH}]
)
def test_every_other_shape_is_answered_with_a_sentence(studio, body):
    for path, sent in (("/api/show", body), ("/api/save", {"kind": "nc", "request": body}), ("/api/save", body)):
        status, answer = post(studio, path, sent)
        assert status == 400 and answer["error"]["message"]
    for extra in ({"frames": 10**400}, {"frames": [2]}, {"saved": True}, {"x" * 3000: 1}):
        assert post(studio, "/api/show", {"config": SLEIGH, **extra})[0] == 400
    assert ask(studio, "GET", f"/api/system?name={'x' * 3000}")[0] == 400


@pytest.mark.heavy
def test_more_idle_connections_than_select_can_watch(studio):
    """The server is in this process, so that both ends of a connection count."""
    pages = []
    try:
        for _ in range(600):
            pages.append(socket.create_connection(("127.0.0.1", studio.server_port)))
        assert pages[-1].fileno() > 1024
        assert post(studio, "/api/show", {"config": SLEIGH, "frames": 10})[0] == 200
    finally:
        for page in pages:
            page.close()


def test_too_many_connections_are_told():
    with serving(StudioInput()) as server:
        server.places = threading.BoundedSemaphore(1)
        with socket.create_connection(("127.0.0.1", server.server_port)):
            assert until(lambda: server.places._value == 0)
            status, headers, content = ask(server, "GET", "/")
            assert status == 503 and b"too many connections" in content and headers["Retry-After"] == "1"
        assert until(lambda: server.places._value == 1) and ask(server, "GET", "/")[0] == 200


def test_an_idle_connection_is_closed(studio, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", studio.server_port), timeout=5) as page:
        assert page.recv(1) == b""


def test_the_default_port_is_left_out_of_names(studio, monkeypatch):
    monkeypatch.setattr(studio, "server_port", 80)
    port = http.client.HTTPConnection("127.0.0.1", studio.socket.getsockname()[1], timeout=30)
    for host, origin, wanted in [
        ("127.0.0.1", "http://127.0.0.1", 200),
        ("localhost:80", "http://localhost", 200),
        ("[::1]", None, 200),
        ("127.0.0.1", "http://127.0.0.1:8314", 403),
        ("evil.example", "http://evil.example", 403),
        ("127.0.0.1:8314", None, 403),
    ]:
        port.request("GET", "/", headers={"Host": host} | ({} if origin is None else {"Origin": origin}))
        answer = port.getresponse()
        answer.read()
        assert answer.status == wanted, (host, origin)
    port.close()


def test_the_first_show_is_prepared(studio):
    studio.prepare()
    start = json.loads(ask(studio, "GET", "/api/catalogue")[2])["start"]
    assert studio.first_show({**start, "complete": True}).code == 200
    assert studio.first_show({**start, "frames": 7}) is None
    assert post(studio, "/api/show", start)[1] == json.loads(studio.first_show(start).content)


def test_a_port_in_use(studio):
    with pytest.raises(InvalidInput, match="another program has it"):
        open_studio("127.0.0.1", studio.server_port, StudioInput())
    with pytest.raises(InvalidInput, match="65535"):
        open_studio("127.0.0.1", 70_000, StudioInput())
    with (
        open_studio("127.0.0.1", None, StudioInput()) as first,
        open_studio("127.0.0.1", None, StudioInput()) as second,
    ):
        assert first.server_port != second.server_port


def test_the_command(tmp_path):
    run = CliRunner()
    (tmp_path / "x.txt").write_text("")
    for words in (
        ["--max-steps", "0"],
        [str(tmp_path / "x.txt")],
        [str(tmp_path / "absent.toml")],
        ["--port", "70000"],
    ):
        assert isinstance(run.invoke(app, ["studio", "--no-browser", *words]).exception, InvalidInput)
    done = run.invoke(app, ["studio", "--export", str(tmp_path / "page")])
    assert done.exit_code == 0 and "offline" in done.output
    text = (tmp_path / "page" / "index.html").read_text()
    assert 'id="show"' in text and "Chaplygin" in text


def test_a_teacher_is_followed_by_many_and_led_by_nobody_else(studio):
    """Thirty who wait get the next state at once; their show is made once; only the page with the key leads."""
    state = {"request": {"config": example("chaplygin-sleigh"), "frames": 60}, "playing": True, "frame": 3.5}
    status, room = post(studio, "/api/lead", {"state": state})
    assert status == 200 and room["number"] == 1
    first = json.loads(ask(studio, "GET", f"/api/follow?room={room['room']}&after=0")[2])
    assert first == {"number": 1, "state": state} and room["key"] not in json.dumps(first)
    later = state | {"frame": 9.0, "story": {"name": "cusp", "step": 1}}
    with ThreadPoolExecutor(30) as pool:
        path = f"/api/follow?room={room['room']}&after=1"
        waiting = [pool.submit(ask, studio, "GET", path) for _ in range(30)]
        time.sleep(0.3)
        assert not any(each.done() for each in waiting)
        led = {"room": room["room"], "key": room["key"], "state": later}
        assert post(studio, "/api/lead", led)[1]["number"] == 2
        assert all(json.loads(each.result(10)[2]) == {"number": 2, "state": later} for each in waiting)
        shows = {
            content
            for _, _, content in pool.map(lambda _: ask(studio, "POST", "/api/show", state["request"], JSON), range(30))
        }
    assert len(shows) == 1, "the seconds that a run took are those of one run"
    assert post(studio, "/api/lead", led | {"key": "guess"})[0] == 403
    assert post(studio, "/api/lead", led | {"room": "none"})[0] == 404
    assert ask(studio, "GET", "/api/follow?room=none&after=0")[0] == 404
    assert ask(studio, "GET", f"/api/follow?room={room['room']}&after={'9' * 5000}")[0] == 200, "no number of Python's"
    assert ask(studio, "GET", f"/api/follow?room={room['room']}", headers={"Origin": "http://evil"})[0] == 403
    for bad in (
        3,
        {},
        {"state": 3},
        {"state": {"request": 3}},
        {"state": state | {"code": 1}},
        {"state": state | {"story": "x" * 5000}},
    ):
        assert post(studio, "/api/lead", bad)[0] == 400, bad


def test_who_follows_watches_the_teacher_drive(studio):
    """The show of the start, then where everything is, as it is driven; nothing of it lets a follower drive."""
    request = {"config": example("unicycle"), "frames": 60}
    _, room = post(studio, "/api/lead", {"state": {"request": request}})
    lead = {"room": room["room"], "key": room["key"]}

    def news(after: int) -> dict:
        return json.loads(ask(studio, "GET", f"/api/follow?room={room['room']}&after={after}")[2])

    assert ask(studio, "GET", f"/api/follow?room={room['room']}&show=1")[0] == 404, "nothing is driven yet"
    _, begun = post(studio, "/api/drive", {"request": request, **lead})
    drive = {"session": begun["session"], **lead}
    seen = news(1)
    assert set(seen) == {"number", "live"} and list(seen["live"]) == ["drive"]
    assert json.loads(ask(studio, "GET", f"/api/follow?room={room['room']}&show=1")[2]) == begun["show"]
    _, moved = post(studio, "/api/drive", drive | {"stick": [0.0, 1.0], "steps": 5})
    watched = news(seen["number"])
    assert watched["live"] == {"pose": moved["pose"], "time": moved["time"]} and moved["pose"]
    late = news(0)  # who comes late gets all of it
    assert late["state"]["request"] == request and late["live"] == seen["live"] | watched["live"]
    assert begun["session"] not in json.dumps(late) and room["key"] not in json.dumps(late)
    assert post(studio, "/api/drive", drive | {"key": "guess", "stick": [0.0, 1.0], "steps": 5})[0] == 403
    assert post(studio, "/api/drive", drive | {"end": True})[0] == 200
    assert news(watched["number"])["live"] == {"drive": None}


def test_rooms_are_few_and_end_with_their_teacher(studio, monkeypatch):
    state = {"request": {"config": example("chaplygin-sleigh"), "frames": 60}}
    monkeypatch.setattr("dalembert.studio.server.ROOM_SECONDS", 0.0)
    _, room = post(studio, "/api/lead", {"state": state})
    assert ask(studio, "GET", f"/api/follow?room={room['room']}&after=0")[0] == 404, "a teacher who is silent has gone"
    monkeypatch.setattr("dalembert.studio.server.MAX_ROOMS", 0)
    assert post(studio, "/api/lead", {"state": state})[0] == 503
