"""Firefox, driven over its own Marionette protocol: Debian has no geckodriver, and Playwright drives only newer ones
than Debian's.

A message is `LENGTH:JSON`; a command [0, id, name, arguments] is answered by [1, id, error, result].
https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
SCREEN = shutil.which("xvfb-run")  # without a screen Firefox gives no WebGL
PREFERENCES = {"marionette.port": 0, "webgl.force-enabled": True, "ui.prefersReducedMotion": 0}
ERRORS = """
return Services.console.getMessageArray()
    .filter(entry => entry instanceof Ci.nsIScriptError && !(entry.flags & Ci.nsIScriptError.warningFlag))
    .filter(entry => entry.sourceName.startsWith(arguments[0]) || entry.errorMessage.includes(arguments[0]))
    .map(entry => entry.errorMessage)
"""


class Firefox:
    """A Firefox of our own with one tab, on a screen that nobody sees."""

    def __init__(self, profile: Path):
        assert PROGRAM is not None and SCREEN is not None
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items()]
        (profile / "user.js").write_text("\n".join(lines))
        command = [
            SCREEN,
            "-a",
            "-s",
            "-screen 0 1280x900x24",
            PROGRAM,
            "--marionette",
            "--remote-allow-system-access",
            "--no-remote",
            "--profile",
            str(profile),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = profile / "MarionetteActivePort"
        end = time.monotonic() + 60
        while not (port.exists() and port.read_text()):
            assert self.process.poll() is None and time.monotonic() < end, "Firefox did not start"
            time.sleep(0.1)
        self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=120)
        self.stream = self.socket.makefile("rb")
        self._receive()
        self.number = 0
        self.version = self.command("WebDriver:NewSession")["capabilities"]["browserVersion"]

    def _receive(self) -> Any:
        length = b""
        while (character := self.stream.read(1)) != b":":
            assert character, "Firefox closed the connection"
            length += character
        return json.loads(self.stream.read(int(length)))

    def command(self, name: str, **arguments: Any) -> Any:
        self.number += 1
        message = json.dumps([0, self.number, name, arguments]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._receive()
        assert error is None, f"{name}: {error}"
        return result

    def open(self, url: str) -> None:
        self.command("WebDriver:Navigate", url=url)

    def value(self, expression: str) -> Any:
        return self.command("WebDriver:ExecuteScript", script=f"return {expression}", args=[])["value"]

    def until(self, expression: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def element(self, selector: str) -> Any:
        found = self.command("WebDriver:FindElement", using="css selector", value=selector)["value"]
        return next(iter(found.values()))

    def click(self, selector: str) -> None:
        self.command("WebDriver:ElementClick", id=self.element(selector))

    def press(self, selector: str, keys: str) -> None:
        """Types on an element."""
        self.command("WebDriver:ElementSendKeys", id=self.element(selector), text=keys)

    def act(self, kind: str, actions: list[dict[str, Any]]) -> None:
        """Moves, presses and releases of a mouse or of keys, as a hand makes them."""
        mouse = {"parameters": {"pointerType": "mouse"}} if kind == "pointer" else {}
        self.command("WebDriver:PerformActions", actions=[{"type": kind, "id": kind, "actions": actions, **mouse}])

    def drag(self, selector: str, *places: tuple[int, int]) -> None:
        """Presses at the first place, counted from the middle of an element, and pulls along the others."""
        origin = {"element-6066-11e4-a52e-4f735466cecf": self.element(selector)}
        moves = [{"type": "pointerMove", "origin": origin, "x": x, "y": y, "duration": 60} for x, y in places]
        ends: list[dict[str, Any]] = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.act("pointer", [moves[0], ends[0], *moves[1:], ends[1]])

    def picture(self) -> bytes:
        return base64.b64decode(self.command("WebDriver:TakeScreenshot", full=False, hash=False)["value"])

    def complaints(self, url: str) -> list[str]:
        """What a page wrote to the console as errors, its policy's included."""
        self.command("Marionette:SetContext", value="chrome")
        found = self.command("WebDriver:ExecuteScript", script=ERRORS, args=[url])["value"]
        self.command("Marionette:SetContext", value="content")
        return found

    def quit(self) -> None:
        self.command("Marionette:Quit", flags=["eForceQuit"])
        self.socket.close()
        self.process.wait(20)
