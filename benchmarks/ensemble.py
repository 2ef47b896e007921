"""Ensembles of 4096 trajectories on one core against `jax.vmap` on the same core, and two threads against one.

Targets: at least 80 times faster than vmap; two threads at least 1.8 times faster than one. Only the last states are saved.
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

import dalembert as da  # noqa: E402
from dalembert.discretisation import moser_veselov  # noqa: E402
from dalembert.kernels.run import open_session  # noqa: E402

MEMBERS, STEPS, SCANNED = 4096, 100, 20


def runner(case: Case, steps: int, backend: str, threads: int) -> Callable[[], object]:
    """A call that takes all members `steps` steps from their start."""
    start = da.ensemble(case.system, case.integrator, members(case, MEMBERS), step=case.step, steps=1, backend="llvm")
    session, _ = open_session(lanes(case, start, steps), backend, threads=threads)  # type: ignore[arg-type]
    session.reserve(1)
    before = session.save_state()

    def run():
        session.restore_state(before)
        session.run(0, 1, steps, 0)

    return run


def measured(case: Case, repeats: int) -> list[str]:
    kernel, xla = runner(case, STEPS, "llvm", 1), runner(case, SCANNED, "xla", 1)
    kernel(), xla()
    times = interleaved({"kernel": kernel, "xla": xla}, repeats)
    one, vmapped = ([t / steps / MEMBERS for t in times[name]] for name, steps in (("kernel", STEPS), ("xla", SCANNED)))
    row = [case.name, f"{1e9 * median(one):.1f}", f"{1e9 * median(vmapped):.0f}", verdict(ratio(vmapped, one), 80, at_most=False)]
    if len(CORES) < 2:
        return [*row, "one core"]
    os.sched_setaffinity(0, CORES)
    shared = {f"{n}": runner(case, STEPS, "llvm", n) for n in (1, 2)}
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
    cases = [suslov(), suslov(moser_veselov), suslov("retraction"), sleigh(), particle(), disk(), body(), body_map("exact")]
    head = [f"{MEMBERS} members, per member and step", "one core ns", "vmap ns", "vmap/kernel", "2 threads"]
    table(head, [measured(case, given.repeats) for case in cases if given.only in case.name])
    print("! marks a missed target (80 x vmap, 1.8 x one thread)")
    print(f"load of the machine {os.getloadavg()[0]:.1f}: where others use the cores, the last column is a lower bound")


if __name__ == "__main__":
    main()
