"""Long runs of the command line: its ratio to C with the start-up subtracted, constant memory, and the growth of
round-off.

Targets: the ratio of one trajectory (1.5) also for 10^7 steps of `dalembert run`, which keeps extremes of energy,
constraint and group over all steps; memory that does not grow; an energy error that grows no faster than the square
root of the steps. `--champions 1e9` measures nothing but three runs of so many steps: their energy and memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _cases import compiled, suslov
from _timing import median, ratio, table, verdict

SUSLOV = """
[system]
name = "suslov"
inertia = [[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]]
[method]
name = "euler-poincare-suslov"
[initial]
momentum = [3.0, 2.0]
[run]
step = 0.05
steps = {steps}
"""
BODY = """
[system]
name = "rigid-body"
inertia = [[1.1, 0.1, 0.0], [0.1, 1.6, 0.2], [0.0, 0.2, 2.0]]
[method]
name = "{method}"
[initial]
momentum = [1.8, 0.4, -0.9]
[run]
step = 0.1
steps = {steps}
"""
PARTICLE = """
[system]
name = "nonholonomic-particle"
potential = "harmonic"
[method]
name = "lagrange-dalembert"
[initial]
configuration = [0.3, 0.5, -0.2]
velocity = [1.1, 0.7, 0.55]
[run]
step = 0.1
steps = {steps}
"""


def command_line(text: str) -> tuple[float, int, dict]:
    """(processor seconds, peak memory in bytes, result) of `dalembert run` in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder, "long.toml"), Path(folder, "out.json")
        config.write_text(text)
        command = [sys.executable, "-c", "from dalembert.cli import main; main()", "run", str(config), "--json"]
        with open(out, "w") as file:
            process = subprocess.Popen(command, stdout=file)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"dalembert run failed:\n{text}")
        return usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss, json.loads(out.read_text())


def by_hand(steps: int) -> float:
    """Seconds that C takes for the same Suslov run with the same extremes."""
    case = suslov()
    run = compiled("suslov").monitored
    run.restype = ctypes.c_int64
    inertia = [ctypes.c_double(x) for x in case.parameters(case.system)]
    parameters, state = (ctypes.c_double * 6)(*inertia), case.initial
    peaks = (ctypes.c_double * 3)()
    begin = time.process_time()
    run(parameters, ctypes.c_double(case.step), ctypes.c_int64(steps), ctypes.c_void_p(state.ctypes.data), peaks)
    return time.process_time() - begin


def run_champions(steps: int) -> None:
    """Print the energy error and the memory of the three methods that one takes for long runs."""
    exact = BODY.replace("{method}", "discrete-moser-veselov")
    rows = []
    for name, text in {"Suslov, Moser-Veselov": SUSLOV, "rigid body, exact": exact, "particle": PARTICLE}.items():
        row = [name]
        before = command_line(text.format(steps=10**5))
        seconds, memory, result = command_line(text.format(steps=steps))
        energy = result["energy"]
        row += [f"{energy['max_error'] / abs(energy['initial']):.1e}", f"{1e9 * (seconds - before[0]) / steps:.0f}"]
        rows.append([*row, f"{before[1] / 2**20:.0f}", f"{(memory - before[1]) / 2**20:+.1f}"])
        table([f"{steps:.0e} steps", "relative energy error", "ns a step", "MiB for 1e5", "more"], rows[-1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=float, default=1e7)
    parser.add_argument(
        "--longest", type=float, default=1e8, help="steps of the run that measures memory; 1e9 takes two minutes"
    )
    parser.add_argument("--champions", type=float, default=0, help="only these: steps of the three long runs")
    given = parser.parse_args()
    if given.champions:
        return run_champions(int(given.champions))
    steps, longest = int(given.steps), int(given.longest)

    ours, theirs = [], []
    command_line(SUSLOV.format(steps=10))  # fills the cache
    for _ in range(given.repeats):
        whole, start = (command_line(SUSLOV.format(steps=count))[0] for count in (steps, 1000))
        ours.append((whole - start) / steps)
        theirs.append(by_hand(steps) / steps)
    print(
        f"dalembert run, {steps:.0e} Suslov steps: {1e9 * median(ours):.0f} ns a step, C "
        f"{1e9 * median(theirs):.0f} ns, "
        f"ratio {verdict(ratio(ours, theirs), 1.5, at_most=True)}"
    )

    memory = {count: command_line(SUSLOV.format(steps=count))[1] for count in (10**5, longest)}
    grown = (memory[longest] - memory[10**5]) / 2**20
    print(
        f"peak memory: {memory[10**5] / 2**20:.0f} MiB for 1e5 steps, {grown:+.1f} MiB for "
        f"{longest:.0e}{' !' if grown > 16 else ''}"
    )

    rows = []
    texts = {
        "suslov": SUSLOV,
        "rigid body, Newton": BODY.replace("{method}", "euler-poincare-suslov"),
        "rigid body, exact": BODY.replace("{method}", "discrete-moser-veselov"),
        "particle": PARTICLE,
    }
    counts = [10**5, 10**6, 10**7]
    for name, text in texts.items():
        errors = []
        for count in counts:
            energy = command_line(text.format(steps=count))[2]["energy"]
            errors.append(energy["max_error"] / abs(energy["initial"]))
        slope = math.log10(max(errors[-1], 1e-16) / max(errors[0], 1e-16)) / 2
        rows.append([name, *(f"{error:.1e}" for error in errors), verdict(slope, 0.6, at_most=True)])
    table(["relative energy error after", *(f"{count:.0e}" for count in counts), "growth"], rows)
    print(
        "growth: error ~ steps^growth; 0.5 is the random walk of round-off, 0 a bounded error; ! marks a missed target"
    )


if __name__ == "__main__":
    main()
