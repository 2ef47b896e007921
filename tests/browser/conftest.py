"""A real browser and a real server for the tests of the studio; skipped with the reason where there is no chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

SOFTWARE_GL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-sandbox")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium with WebGL in software. Of the module only: while Playwright runs, its thread has an event loop."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install -e '.[dev]'")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: `sh tests/browser/install.sh` as root on Debian installs it")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(SOFTWARE_GL))
        yield running
        running.close()


@dataclass
class Served:
    """A `dalembert studio` of our own."""

    process: subprocess.Popen
    url: str
    began: float  # when the command was given
    announced: float  # when it printed its address


def serve(*arguments: str, port: int = 0) -> Served:
    """Starts a studio, on a free port unless one is given."""
    command = [sys.executable, "-m", "dalembert.cli", "studio", "--no-browser", "--port", str(port), *arguments]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://" in line, f"the studio did not start: {line!r}"
    url = next(word for word in line.split() if word.startswith("http://"))
    return Served(process, url, began, time.perf_counter())


@pytest.fixture
def start() -> Callable[..., Served]:
    return serve


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    studio = serve()
    yield studio
    studio.process.terminate()
    studio.process.wait(10)


@dataclass
class Tab:
    """A page in a context of its own, with what it wrote to the console."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, url: str) -> Tab:
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", timeout=60_000)
        return self

    def restart(self, url: str) -> Tab:
        """The page as it starts; where it is open already, without loading it again: an address that says nothing."""
        if not self.page.url.startswith(url):
            return self.open(url)
        return self.after(lambda: self.value("{ location.hash = performance.now() }"))

    def shows(self) -> int:
        """How many answers the page has drawn."""
        return int(self.page.get_attribute("html", "data-ready") or 0)

    def after(self, action: Any) -> Tab:
        """Does something that makes the page simulate, and waits until its answer is drawn and nothing is under way."""
        before = self.shows()
        action()
        self.page.wait_for_selector(f"html:not([data-ready='{before}'])", timeout=90_000)
        self.page.wait_for_selector("#view:not(.busy)", timeout=90_000)
        return self

    def value(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, expression: str, seconds: float = 30.0) -> None:
        """Waits until an expression is true; the page's policy forbids Playwright's own way, which evaluates text in
        the page.
        """
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            self.page.wait_for_timeout(50)

    def number(self, label: str) -> Any:
        """The text field of a number."""
        return self.page.locator(f"input.number[aria-label='{label}']")

    def choose(self, label: str, name: str) -> None:
        self.page.locator(f"select[aria-label='{label}']").select_option(f'"{name}"')

    def settle_plots(self) -> bytes:
        return self.page.locator("#plots .plot-area").first.screenshot()


@contextmanager
def opened_tab(browser: Any, motion: str) -> Iterator[Tab]:
    """A tab that must end without an error on its console."""
    context = browser.new_context(viewport={"width": 1100, "height": 640}, reduced_motion=motion)
    opened = Tab(context.new_page())
    yield opened
    context.close()
    assert opened.complaints == []


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A tab of somebody who asked for less motion: the page does not play by itself, which costs much in software."""
    with opened_tab(browser, "reduce") as opened:
        yield opened


@pytest.fixture(scope="module")
def opened_once(browser: Any, served: Served) -> Iterator[Tab]:
    """A tab that is closed before its server ends."""
    with opened_tab(browser, "reduce") as opened:
        yield opened


@pytest.fixture
def shared_tab(opened_once: Tab, served: Served) -> Iterator[Tab]:
    """One tab for all tests that leave it as usable as they found it: to load the page takes most of their time."""
    size = opened_once.page.viewport_size
    yield opened_once.restart(served.url)
    opened_once.page.context.set_offline(False)
    opened_once.page.set_viewport_size(size)
    opened_once.value("studio.player.pause()")
    assert opened_once.complaints == []


@pytest.fixture
def playing_tab(browser: Any) -> Iterator[Tab]:
    with opened_tab(browser, "no-preference") as opened:
        yield opened
