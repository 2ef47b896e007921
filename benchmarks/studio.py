"""The studio: a slider that moves. 10^5 steps on one core, the simulation alone and from the request to the payload;
the first picture, changes of system, those who follow, plans while a goal is dragged, pictures a second.

Time of simulations is processor time, the rest is measured by the clock on the wall. Every repeat has another value of
a parameter, as a slider gives it: `compiled` counts what the machine had to compile for that, and must be 0.
`--pictures docs` draws the pictures of docs/studio.md, and nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from startup import Counter

from dalembert.kernels.cache import persist_xla_cache
from dalembert.simulation import simulate
from dalembert.studio.catalogue import example
from dalembert.studio.presentation import present
from dalembert.studio.requests import StudioInput, frame_interval

STEPS, FRAMES, REPEATS, TARGET = 100_000, 600, 9, 50.0
VIEWERS, LOOKED = 30, 6.0  # seconds that somebody looks at a new system, while its code is compiled with effort
CHANGES = ("rigid-body", "car", "rolling-disk", "snakeboard", "suslov", "rattleback", "bicycle", "tractor")
CHANGES += ("ackermann-car",)  # the last three are compiled longest
SYSTEMS = {
    "chaplygin-sleigh": ("a", 0.3),
    "suslov": None,
    "rigid-body": None,
    "nonholonomic-particle": None,
    "vertical-disk": ("mass", 1.0),
    "rolling-disk": ("mass", 1.0),
    "snakeboard": ("mass", 6.0),
    "rattleback": ("gravity", 9.81),
    "rolling-ball": ("gravity", 9.81),
    "hinged-sleighs": ("mass", 1.0),
    "rigid-body-n": None,
    "skate-on-ellipsoid": ("gravity", 9.81),
}


def request(name: str, k: int) -> dict:
    """The k-th position of a slider: a parameter, or the step where the example has no number to change."""
    config = example(name)
    config["run"] = {"step": config["run"]["step"] / 10, "steps": STEPS}
    moved = SYSTEMS[name]
    if moved:
        config["system"][moved[0]] = moved[1] * (1 + 0.001 * k)
    else:
        config["run"]["step"] *= 1 + 0.001 * k
    return {"config": config, "against": None, "frames": FRAMES}


def milliseconds(work) -> float:
    begin = time.process_time()
    work()
    return 1e3 * (time.process_time() - begin)


def measure(name: str, opened: StudioInput) -> tuple[float, float, float]:
    """Milliseconds of the simulation, of a whole show, and of its JSON."""
    present(request(name, 0), opened)
    rows = []
    for k in range(1, REPEATS + 1):
        asked = request(name, k)
        job = opened.job(asked["config"])
        options = {"step": job.run["step"], "steps": STEPS, "save_every": frame_interval(job, FRAMES), "monitor": True}
        alone = milliseconds(lambda: simulate(job.system, job.integrator, job.state, **options))
        answer: list[dict] = []
        whole = milliseconds(lambda: answer.append(present(asked, opened)))
        rows.append((alone, whole, milliseconds(lambda: json.dumps(answer[0]))))
    return tuple(median(column) for column in zip(*rows, strict=True))  # type: ignore[return-value]


def ask(address: str, path: str, body: dict | None = None) -> bytes:
    head = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(address + path, data, head), timeout=300).read()


@contextmanager
def serving(cache: str | None = None):
    """The address of a studio of our own, and when the command was given; an empty `cache` makes it cold."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "dalembert.cli", "studio", "--no-browser"]
    environment = os.environ | ({} if cache is None else {"DALEMBERT_CACHE": cache})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split(" at ")[1].split()[0], begin
        finally:
            server.terminate()


def first_picture() -> tuple[float, float]:
    """Seconds from the command to the catalogue and to the first show, with a warm disk cache."""
    with serving() as (address, begin):
        start = json.loads(ask(address, "api/catalogue"))["start"]
        known = time.perf_counter() - begin
        ask(address, "api/show", start)
        return known, time.perf_counter() - begin


def change_systems(address: str, pause: float = 0.0) -> dict[str, float]:
    """Seconds from the choice of a system to its show, for each of some."""
    found = {}
    for name in CHANGES:
        time.sleep(pause)
        begin = time.perf_counter()
        ask(address, "api/show", {"config": example(name), "against": None, "frames": FRAMES})
        found[name] = time.perf_counter() - begin
    return found


def watch(address: str, viewers: int = VIEWERS) -> list[float]:
    """Seconds in which viewers at once get the page with its first show, and then a slider's next position, each."""

    def one(k: int) -> tuple[float, float]:
        begin = time.perf_counter()
        for path in ("", "page/main.js", "page/vendor/three.js", "api/catalogue"):
            ask(address, path)
        ask(address, "api/show", json.loads(ask(address, "api/catalogue"))["start"])
        middle = time.perf_counter()
        ask(
            address,
            "api/show",
            {
                **request("chaplygin-sleigh", 1),
                "config": example("chaplygin-sleigh") | {"run": {"step": 0.05 + 1e-4 * k, "steps": 400}},
            },
        )
        return middle - begin, time.perf_counter() - middle

    with ThreadPoolExecutor(viewers) as pool:
        opened, moved = zip(*pool.map(one, range(viewers)), strict=True)
    return [median(opened), max(opened), median(moved), max(moved)]


@contextmanager
def chromium_page():
    """An empty page in Chromium without a graphics processor."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    flags = ["--disable-gpu", "--enable-unsafe-swiftshader", "--no-sandbox"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page()
        page.set_viewport_size({"width": 1280, "height": 800})
        yield page
        browser.close()


def first_picture_in_chromium(repeats: int = 7) -> list[float]:
    """Seconds from the command until an open browser has drawn the first picture, with a warm disk cache."""
    found = []
    for _ in range(repeats):
        with chromium_page() as page, serving() as (address, begin):
            page.goto(address)
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            found.append(time.perf_counter() - begin)
    return found


def park(address: str, moves: int = 60) -> tuple[float, dict[str, list[float]]]:
    """A goal is dragged: seconds to the first plan of a session, and the milliseconds of the others.

    They are those in which the server plans, those that the page waits for the answer, and those from a goal until it
    is seen with its plan.
    """
    record = (
        "{ const ask = driver.ask.bind(driver); globalThis.waited = { planned: [], answered: [], seen: [] };"
        " driver.ask = async (body, options) => {"
        " const begin = performance.now(); const told = await ask(body, options); if (body.goal) {"
        " waited.planned.push(1000 * told.seconds); waited.answered.push(performance.now() - begin);"
        " requestAnimationFrame(() => requestAnimationFrame(() => waited.seen.push(performance.now() - begin))) }"
        " return told }; 0 }"
    )
    with chromium_page() as page:
        page.goto(f"{address}")
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        page.locator("select[aria-label='System']").select_option('"car"')
        page.wait_for_selector("#park:not([hidden])", timeout=60_000)
        page.wait_for_timeout(2000)
        page.evaluate(record)
        begin = time.perf_counter()
        page.locator("#park").click()
        page.wait_for_selector("#park-go:not([disabled])", timeout=200_000)
        first = time.perf_counter() - begin
        page.evaluate("{ Object.values(waited).forEach((each) => (each.length = 0)) }")
        box = page.locator("#scene").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        for k in range(moves):
            page.mouse.move(x + 2 * k, y - k)
            page.wait_for_timeout(40)
        page.mouse.up()
        page.wait_for_timeout(500)
        return first, page.evaluate("waited")


def frame_rates(address: str) -> list[tuple[str, float]]:
    """Pictures a second in Chromium without a graphics processor: the first scene plays, and a car is driven."""
    found = []
    with chromium_page() as page:
        page.goto(address)
        page.wait_for_selector("html[data-ready]", timeout=60_000)

        def count(what: str) -> None:
            page.wait_for_timeout(3000)  # it finds its level
            before, begin = page.evaluate("studio.scene.drawn"), time.perf_counter()
            page.wait_for_timeout(4000)
            found.append((what, (page.evaluate("studio.scene.drawn") - before) / (time.perf_counter() - begin)))

        count("the sleigh plays")
        page.locator("select[aria-label='System']").select_option('"car"')
        page.wait_for_selector("#drive:not([hidden])", timeout=60_000)
        page.wait_for_timeout(2000)
        page.locator("#drive").click()
        page.wait_for_selector("html[data-driving=yes]", timeout=60_000)
        page.keyboard.down("ArrowUp")
        count("a car is driven")
    return found


def follow(address: str, viewers: int = VIEWERS) -> tuple[float, float]:
    """Seconds from a teacher's change until the last of many viewers has its show: median and longest of some."""
    state = {"request": {"config": example("chaplygin-sleigh"), "frames": FRAMES}, "playing": True}
    room = json.loads(ask(address, "api/lead", {"state": state}))
    times = []
    with ThreadPoolExecutor(viewers) as pool:
        for k in range(1, 9):

            def one(number: int) -> float:
                news = json.loads(ask(address, f"api/follow?room={room['room']}&after={number}"))
                ask(address, "api/show", news["state"]["request"])
                return time.perf_counter()

            waiting = [pool.submit(one, k) for _ in range(viewers)]
            time.sleep(0.3)
            config = example("chaplygin-sleigh")
            config["system"]["a"] = 0.3 + 0.01 * k
            begin = time.perf_counter()
            ask(address, "api/lead", {**room, "state": {**state, "request": {"config": config, "frames": FRAMES}}})
            times.append(max(each.result() for each in waiting) - begin)
    return median(times), max(times)


def watch_drive(address: str, viewers: int = VIEWERS, requests: int = 60) -> tuple[float, float]:
    """Milliseconds that a teacher who drives waits for two steps while many watch, ten times a second: median, most."""
    request = {"config": example("car"), "frames": FRAMES}
    room = json.loads(ask(address, "api/lead", {"state": {"request": request}}))
    lead = {"room": room["room"], "key": room["key"]}
    session = json.loads(ask(address, "api/drive", {"request": request, **lead}))["session"]
    over = threading.Event()

    def one(_: int) -> int:
        number = seen = 0
        while not over.is_set():
            news = json.loads(ask(address, f"api/follow?room={room['room']}&after={number}"))
            number, seen = news["number"], seen + ("pose" in news.get("live", {}))
            time.sleep(0.1)
        return seen

    times = []
    with ThreadPoolExecutor(viewers) as pool:
        watching = [pool.submit(one, k) for k in range(viewers)]
        for _ in range(requests):
            begin = time.perf_counter()
            ask(address, "api/drive", {"session": session, "stick": [0.3, 1.0], "steps": 2, **lead})
            times.append(1e3 * (time.perf_counter() - begin))
            time.sleep(max(0.0, 0.1 - times[-1] / 1e3))
        over.set()
        ask(address, "api/drive", {"session": session, "end": True, **lead})
        assert min(each.result() for each in watching) > requests / 4, "everybody saw it move"
    return median(times), max(times)


def draw_pictures(address: str, folder: Path) -> None:
    """The pictures of docs/studio.md; some show how long a plan takes: draw them on a machine without load."""
    with chromium_page() as page:
        for name, aim, picture in (
            ("car", "driver.aim([4, 0.5 + {} / 100, 0])", "studio-park"),
            ("satellite", "driver.aim([0, Math.SQRT1_2, {} / 100, Math.SQRT1_2])", "studio-turn"),
        ):
            page.goto(address)
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            page.locator("select[aria-label='System']").select_option(f'"{name}"')
            page.wait_for_selector("#park:not([hidden])", timeout=60_000)
            page.wait_for_timeout(2000)
            page.locator("#park").click()
            page.wait_for_selector("#park-go:not([disabled])", timeout=200_000)
            for k in range(5):
                page.evaluate(f"{{ {aim.format(k)} }}")
                page.wait_for_timeout(1000)
            if name == "car":
                page.locator("#park-disc").click()
                page.wait_for_timeout(3000)
            page.wait_for_timeout(1500)  # it is drawn in full
            page.screenshot(path=str(folder / f"{picture}.png"))
            print(picture, page.locator("#park-text").inner_text())
        for link, frame, scheme, picture in (
            ("", 62, "light", "studio"),
            ("#story=tumbling&step=4", 12, "dark", "studio-compare"),
        ):
            page.emulate_media(color_scheme=scheme)
            page.goto("about:blank")
            page.goto(address + link)
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            page.wait_for_timeout(1500)  # the momentum and the initial state have come too
            page.evaluate(f"studio.player.seek({frame})")
            page.wait_for_timeout(1500)
            page.screenshot(path=str(folder / f"{picture}.png"))


def told(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())


def main() -> None:
    if sys.argv[1:2] == ["--pictures"]:
        with serving() as (address, _):
            return draw_pictures(address, Path(sys.argv[2]))
    persist_xla_cache()
    opened, counter = StudioInput(), Counter()
    print(f"{STEPS} steps, {FRAMES} frames, processor time in ms (target of the simulation: {TARGET:g})")
    print(f"{'system':24}{'simulation':>12}{'show':>10}{'JSON':>8}{'compiled':>10}")
    for name in SYSTEMS:
        present(request(name, 0), opened)
        before = counter.compilations
        alone, whole, text = measure(name, opened)
        compiled = counter.compilations - before
        print(f"{name:24}{alone:>11.1f}{'!' if alone > TARGET else ' '}{whole:>10.1f}{text:>8.1f}{compiled:>10}")
    known, shown = first_picture()
    print(f"\nfrom the command to the catalogue {known:.2f} s, to the first show {shown:.2f} s")
    pictures = first_picture_in_chromium()
    each = ", ".join(f"{seconds:.2f}" for seconds in sorted(pictures))
    print(f"from the command to the first picture in Chromium {median(pictures):.2f} s ({each}; target: 3)")
    with serving() as (address, _):
        change_systems(address, LOOKED)  # the disk has them now
    with serving() as (address, _):
        warm = change_systems(address)
        print(f"another system, from the disk: {max(warm.values()):.2f} s at most (target: 1): {told(warm)}")
        warm = change_systems(address)
        print(f"the same once more: {max(warm.values()):.2f} s at most: {told(warm)}")
        page, last, slider, slowest = watch(address)
        print(f"{VIEWERS} viewers at once: page and show in {page:.2f} s ({last:.2f} the last)", end=", ")
        print(f"then a slider {slider:.2f} ({slowest:.2f})")
        print(
            f"{VIEWERS} viewers follow a teacher: the last has the show %.2f s after a change (%.2f)" % follow(address)
        )
        print(f"a teacher drives, {VIEWERS} watch: %.0f ms for the next steps (%.0f at most)" % watch_drive(address))
        for session in ("first", "second"):
            first, waits = park(address)
            each = ", ".join(f"{what} in {median(ms):.0f} ms ({max(ms):.0f} at most)" for what, ms in waits.items())
            print(f"parking, {session} session: first plan {first:.2f} s, then while a goal is dragged", end=" ")
            print(f"{each} of {len(waits['seen'])} (target: 50)")
        for what, rate in frame_rates(address):
            print(f"{what}: {rate:.0f} pictures a second without a graphics processor (targets: 30, driven 60)")
    with TemporaryDirectory() as folder, serving(folder) as (address, _):
        cold = change_systems(address, LOOKED)
        print(f"another system, empty cache: {max(cold.values()):.2f} s at most (target: 4): {told(cold)}")


if __name__ == "__main__":
    main()
