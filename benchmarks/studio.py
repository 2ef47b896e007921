"""The studio: a slider that moves. 10^5 steps on one core, the simulation alone and from the request to the payload;
the first picture.

Time is processor time, but for the start of the command, which is measured by the clock on the wall. Every repeat has
another value of a
parameter, as a slider gives it: `compiled` counts what the machine had to compile for that, and must be 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from statistics import median

from startup import Counter

from dalembert.kernels.cache import persist_xla_cache
from dalembert.simulation import simulate
from dalembert.studio.catalogue import example
from dalembert.studio.presentation import show
from dalembert.studio.requests import StudioInput, frame_interval

STEPS, FRAMES, REPEATS, TARGET = 100_000, 600, 9, 50.0
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
    show(request(name, 0), opened)
    rows = []
    for k in range(1, REPEATS + 1):
        asked = request(name, k)
        job = opened.job(asked["config"])
        options = {"step": job.run["step"], "steps": STEPS, "save_every": frame_interval(job, FRAMES), "monitor": True}
        alone = milliseconds(lambda: simulate(job.system, job.integrator, job.state, **options))
        answer: list[dict] = []
        whole = milliseconds(lambda: answer.append(show(asked, opened)))
        rows.append((alone, whole, milliseconds(lambda: json.dumps(answer[0]))))
    return tuple(median(column) for column in zip(*rows, strict=True))  # type: ignore[return-value]


def first_picture() -> tuple[float, float]:
    """Seconds from the command to the catalogue and to the first show, with a warm disk cache."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "dalembert.cli", "studio", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split(" at ")[1].split()[0]
        start = json.load(urllib.request.urlopen(f"{address}api/catalogue"))["start"]
        known = time.perf_counter() - begin
        head = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{address}api/show", json.dumps(start).encode(), head)).read()
        shown = time.perf_counter() - begin
        server.terminate()
    return known, shown


def main() -> None:
    persist_xla_cache()
    opened, counter = StudioInput(), Counter()
    print(f"{STEPS} steps, {FRAMES} frames, processor time in ms (target of the simulation: {TARGET:g})")
    print(f"{'system':24}{'simulation':>12}{'show':>10}{'JSON':>8}{'compiled':>10}")
    for name in SYSTEMS:
        show(request(name, 0), opened)
        before = counter.compilations
        alone, whole, text = measure(name, opened)
        compiled = counter.compilations - before
        print(f"{name:24}{alone:>11.1f}{'!' if alone > TARGET else ' '}{whole:>10.1f}{text:>8.1f}{compiled:>10}")
    known, shown = first_picture()
    print(f"\nfrom the command to the catalogue {known:.2f} s, to the first show {shown:.2f} s (target: 3)")


if __name__ == "__main__":
    main()
