"""One trajectory, every state saved: dalembert against hand-written C of the same scheme and against the XLA scan.

Targets: at most 1.5 times C, at least 30 times faster than XLA. `kernel` is the machine code alone, on memory that is
already
there, over the first 1000 steps; `simulate` is what a user calls, over 10^5 steps with its fixed cost subtracted,
against C that
asks for its memory too.
"""

from __future__ import annotations

import argparse

import numpy as np
from _cases import Case, all_cases
from _timing import interleaved, median, ratio, table, verdict

STEPS, LONG, SHORT, SCANNED = 1000, 100_000, 1000, 400
AGREEMENT = 1e-11


def measured(case: Case, repeats: int) -> list[str]:
    """The row of a case; C and dalembert must first agree after 1000 steps."""
    off = case.disagreement()
    if off > AGREEMENT:
        raise SystemExit(f"{case.name}: C and dalembert differ by {off:.1e} after 1000 steps")
    calls = {
        "c": often(case.by_hand(STEPS)),
        "kernel": often(case.kernel(STEPS)),
        "xla": case.kernel(SCANNED, "xla"),
        "long": lambda: case.simulate(LONG),
        "short": lambda: case.simulate(SHORT),
        "c long": case.by_hand(LONG, fresh=True),
    }
    for call in calls.values():
        call()
    times = interleaved(calls, repeats)
    c, kernel = ([t / (10 * STEPS) for t in times[name]] for name in ("c", "kernel"))
    xla = [t / SCANNED for t in times["xla"]]
    c_long = [t / LONG for t in times["c long"]]
    simulated = [(a - b) / (LONG - SHORT) for a, b in zip(times["long"], times["short"], strict=True)]
    iterations = np.mean(case.simulate(STEPS).iterations)
    return [
        case.name,
        f"{off:.0e}",
        f"{iterations:.2f}",
        f"{case.problem().lower().program.operations}",
        *(f"{1e9 * median(each):.0f}" for each in (c, kernel, c_long, simulated, xla)),
        verdict(ratio(kernel, c), 1.5, at_most=True),
        verdict(ratio(simulated, c_long), 1.5, at_most=True),
        verdict(ratio(xla, kernel), 30, at_most=False),
    ]


def often(call):
    """A thousand steps take too little time for the clock."""
    return lambda: [call() for _ in range(10)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="names that contain this")
    given = parser.parse_args()
    head = [
        "one trajectory",
        "off",
        "iterations",
        "operations",
        "C ns",
        "kernel ns",
        "C long",
        "simulate",
        "XLA ns",
        "kernel/C",
        "simulate/C",
        "XLA/kernel",
    ]
    table(head, [measured(case, given.repeats) for case in all_cases() if given.only in case.name])
    print("processor time per step, medians of interleaved repeats; ! marks a missed target (1.5 x C, 30 x XLA)")


if __name__ == "__main__":
    main()
