"""The server of the studio answers its own page and nobody else, runs no code of the page, and outlives what pages do
to it.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from dalembert.cli.app import app
from dalembert.errors import InvalidInput
from dalembert.studio.catalogue import example
from dalembert.studio.requests import StudioInput
from dalembert.studio.server import MAX_BYTES, MAX_WAITING, Studio, open_studio

JSON = {"Content-Type": "application/json"}
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
    with serving(StudioInput(max_steps=1000)) as server:
        yield server


def ask(server, method: str, path: str, body=None, headers=()):
    """Status, headers and content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
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
    status, answer = post(studio, "/api/show", {"config": {**SLEIGH, "run": {"step": 0.1, "steps": 1001}}})
    assert status == 400 and answer["error"]["place"] == "run.steps" and "1000" in answer["error"]["message"]
    status, answer = post(studio, "/api/show", {"config": {**SLEIGH, "system": {"python": "x.py:make"}}})
    assert status == 400 and answer["error"]["place"] == "system"


def test_a_file_comes_as_an_attachment(studio):
    body = {"request": {"config": SLEIGH}, "kind": "toml"}
    status, headers, content = ask(studio, "POST", "/api/save", body, JSON)
    assert status == 200 and headers["Content-Disposition"] == 'attachment; filename="chaplygin-sleigh.toml"'
    assert content.startswith(b"[system]")
    assert post(studio, "/api/save", {"request": {"config": SLEIGH}, "kind": "../x"})[0] == 400


def test_lost_connections_and_waiting_ones(studio):
    body = json.dumps({"config": SLEIGH}).encode()
    head = f"POST /api/show HTTP/1.1\r\nHost: 127.0.0.1:{studio.server_port}\r\nContent-Type: application/json\r\n"
    with studio.running:  # somebody simulates; the next one waits, and goes
        with socket.create_connection(("127.0.0.1", studio.server_port)) as page:
            page.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        for _ in range(MAX_WAITING):
            assert studio.waiting.acquire(timeout=5)  # the place of the one that went is free again
        assert post(studio, "/api/show", {"config": SLEIGH})[0] == 503
        for _ in range(MAX_WAITING):
            studio.waiting.release()
    with socket.create_connection(("127.0.0.1", studio.server_port)) as page:
        page.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode())  # and no body
    assert post(studio, "/api/show", {"config": SLEIGH, "frames": 10})[0] == 200


def test_several_tabs_at_once(studio):
    codes: list[int] = []
    tabs = [
        threading.Thread(target=lambda: codes.append(post(studio, "/api/show", {"config": SLEIGH, "frames": 5})[0]))
        for _ in range(MAX_WAITING)
    ]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join()
    assert codes == [200] * MAX_WAITING


def test_the_first_show_is_prepared():
    with serving(StudioInput(SLEIGH)) as server:
        server.prepare()
        start = json.loads(ask(server, "GET", "/api/catalogue")[2])["start"]
        assert server.first_show({**start, "complete": True}) is not None
        assert server.first_show({**start, "frames": 7}) is None
        assert post(server, "/api/show", start)[1] == server.first_show(start)


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
