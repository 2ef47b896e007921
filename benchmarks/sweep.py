"""A sweep of Suslov trajectories into a Zarr store against its bare kernel, its memory, and two Dask workers against
one.

Targets: at most 15 % over the bare kernel, less than 1 GiB, two workers at least 1.8 times as fast as one. The issue's
size is
`--members 1e6 --steps 1000`; the default is a tenth of the members, for blocks of the same 65536 lanes.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from _timing import interleaved, median, ratio, table, verdict

import dalembert as da
from dalembert.kernels import evaluate
from dalembert.kernels import make_problem as problem
from dalembert.kernels.execute import open_session
from dalembert.sweeps.execute import default_block_size
from dalembert.sweeps.plan import SweepMembers
from dalembert.sweeps.plan import make_plan as plan


def config(members: int, steps: int) -> dict:
    side = round(members**0.5)
    return {
        "system": {"name": "suslov", "inertia": [[3, 0, 1], [0, 4, 0.5], [1, 0.5, 5]]},
        "method": {"name": "euler-poincare-suslov", "lagrangian": "moser-veselov"},
        "initial": {"momentum": [3.0, 2.0]},
        "run": {"step": 0.05, "steps": steps},
        "sweep": {
            "run": {"step": {"linspace": [0.005, 0.05, side]}},
            "initial": {"energy": {"linspace": [0.5, 5.0, side]}},
        },
    }


def bare(given: dict, steps: int, clock) -> float:
    """Seconds inside the compiled loop alone, for all members in the same blocks."""
    members = SweepMembers(plan(given, chunk=default_block_size(given, "local")))
    made, spent = members.family(()).kernel, 0.0
    for number in range(members.plan.blocks):
        block = members.plan.block(number)
        numbers = members.plan.values(block)
        loop = evaluate(made.begin, numbers, (), lanes=block.size, axes=(0, None), backend="llvm")
        described = problem(made.advance, made.observe, numbers, loop, lanes=block.size, axes=(0, 0))
        session, _ = open_session(described, "llvm")
        session.reserve(1)
        begin = clock()
        session.run(0, 1, steps, 0)
        spent += clock() - begin
    return spent


def stored(given: dict):
    with tempfile.TemporaryDirectory(prefix="dalembert-sweep-") as folder:
        return da.sweep(given, out=Path(folder, "a.zarr"))


def overhead(given: dict, steps: int, repeats: int) -> None:
    """Processor seconds of the whole sweep, checks, tracing and writing included, against those of the loop."""
    stored(given), bare(given, steps, time.process_time)
    kernel: list[float] = []
    times = interleaved(
        {"sweep": lambda: stored(given), "bare": lambda: kernel.append(bare(given, steps, time.process_time))}, repeats
    )
    members = plan(given, chunk=1).members
    rows = [
        [
            f"{members} members x {steps} steps",
            f"{median(kernel):.2f}",
            f"{median(times['sweep']):.2f}",
            verdict(100 * (ratio(times["sweep"], kernel) - 1), 15, at_most=True),
            verdict(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 1, at_most=True),
        ]
    ]
    table(["processor time", "bare kernel s", "sweep s", "overhead %", "memory GiB"], rows)


def workers(given: dict) -> None:
    """Wall time of the same sweep on clusters of one and of two processes, each warm."""
    from distributed import Client, LocalCluster

    walls = {}
    for count in (1, 2):
        with (
            LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
            Client(cluster),
        ):
            call = lambda: da.sweep(
                given, out=lambda block, arrays: None, executor="dask", scheduler=cluster.scheduler_address
            )
            call()
            walls[count] = min(call().seconds for _ in range(3))
    table(
        ["Dask", "1 worker s", "2 workers s", "times"],
        [
            [
                f"{plan(given, chunk=1).members} members",
                f"{walls[1]:.2f}",
                f"{walls[2]:.2f}",
                verdict(walls[1] / walls[2], 1.8, at_most=False),
            ]
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=float, default=1e5)
    parser.add_argument("--steps", type=float, default=1e3)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    chosen = config(int(given.members), int(given.steps))
    overhead(chosen, int(given.steps), given.repeats)
    workers(chosen)
    print(
        f"load of the machine {os.getloadavg()[0]:.1f}: where others use the cores, two workers cannot be twice as fast"
    )


if __name__ == "__main__":
    main()
