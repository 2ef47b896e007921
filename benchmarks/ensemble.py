"""Ensembles of 4096 trajectories on one core against `jax.vmap` on the same core, and two threads against one.

Two vmaps: of the scheme as a JAX user writes it (plain.py), and of dalembert's own step, which is leaner. Targets: at
least 80
times faster than vmap; two threads at least 1.8 times faster than one. Only the last states are saved.
"""

from __future__ import annotations

import argparse
import os

CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, CORES[:1])  # before JAX counts the cores: vmap gets one, like the kernel

import time  # noqa: E402
from collections.abc import Callable  # noqa: E402

from _cases import Case, body, body_map, disk, lanes, members, particle, sleigh, suslov  # noqa: E402
from _timing import interleaved, median, ratio, table, verdict  # noqa: E402
from plain import SCHEMES  # noqa: E402
from plain import runner as plain_runner  # noqa: E402

import dalembert as da  # noqa: E402
from dalembert.kernels.execute import open_session  # noqa: E402
from dalembert.mechanics import moser_veselov  # noqa: E402

MEMBERS, STEPS, LONG, SCANNED = 4096, 100, 1000, 20


def runner(case: Case, steps: int, backend: str, threads: int) -> Callable[[], object]:
    """A call that takes all members `steps` steps from their start."""
    start = da.ensemble(case.system, case.integrator, members(case, MEMBERS), step=case.step, steps=1, backend="llvm")
    session, _ = open_session(lanes(case, start), backend, threads=threads)  # type: ignore[arg-type]
    session.reserve(1)
    before = session.save_state()

    def run():
        session.restore_state(before)
        session.run(0, 1, steps, 0)

    return run


def measured(case: Case, repeats: int) -> list[str]:
    calls = {"kernel": (runner(case, STEPS, "llvm", 1), STEPS), "ours": (runner(case, SCANNED, "xla", 1), SCANNED)}
    if case.name in SCHEMES:
        plain = plain_runner(case, members(case, MEMBERS))
        calls["plain"] = (lambda: plain(SCANNED)), SCANNED
    for call, _ in calls.values():
        call()
    times = interleaved({name: call for name, (call, _) in calls.items()}, repeats)
    each = {name: [t / steps / MEMBERS for t in times[name]] for name, (_, steps) in calls.items()}
    row = [case.name, f"{1e9 * median(each['kernel']):.1f}"]
    for name in ("plain", "ours"):
        there = name in each
        row += (
            [f"{1e9 * median(each[name]):.0f}", verdict(ratio(each[name], each["kernel"]), 80, at_most=False)]
            if there
            else ["-", "-"]
        )
    if len(CORES) < 2:
        return [*row, "one core"]
    os.sched_setaffinity(0, CORES)
    shared = {f"{n}": runner(case, LONG, "llvm", n) for n in (1, 2)}  # calls as long as `ensemble` makes them
    for call in shared.values():
        call()
    walls = interleaved(shared, 3 * repeats, time.perf_counter)
    os.sched_setaffinity(0, CORES[:1])
    # Other processes only ever take time away: the best of many is what the machine does when left alone.
    return [*row, verdict(min(walls["1"]) / min(walls["2"]), 1.8, at_most=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="names that contain this")
    given = parser.parse_args()
    cases = [
        suslov(),
        suslov(moser_veselov),
        suslov("retraction"),
        sleigh(),
        particle(),
        disk(),
        body(),
        body_map("exact"),
    ]
    head = [
        f"{MEMBERS} members, per member and step",
        "kernel ns",
        "vmap of the plain step ns",
        "/kernel",
        "vmap of our step ns",
        "/kernel",
        "2 threads",
    ]
    table(head, [measured(case, given.repeats) for case in cases if given.only in case.name])
    print("! marks a missed target (80 x vmap, 1.8 x one thread)")
    print(f"load of the machine {os.getloadavg()[0]:.1f}: where others use the cores, the last column is a lower bound")


if __name__ == "__main__":
    main()
