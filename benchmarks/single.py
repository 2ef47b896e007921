"""One trajectory, every state saved: dalembert against hand-written C of the same scheme and against the XLA scan.

Targets: at most 1.2 times C (1.3 for a Lagrangian of one's own, 1.5 for the particle in explicit C), at least 30 times
faster than XLA. `kernel` is the machine code alone, on memory that is
already there, over the first 5000 steps (a call of C from Python takes 10 to 16 us beside them); `simulate` is what a
user calls, over 10^5 steps with its fixed cost subtracted, against C that asks for its memory too.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from _cases import Case, all_cases, suslov
from _timing import interleaved, median, ratio, table, verdict

import dalembert as da

TARGETS = {"Suslov, own Lagrangian": 1.3, "particle, C explicit": 1.5}
STEPS, LONG, SHORT, SCANNED, SMALL = 5000, 100_000, 1000, 400, 10**7
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
        verdict(ratio(kernel, c), TARGETS.get(case.name, 1.2), at_most=True),
        verdict(ratio(simulated, c_long), TARGETS.get(case.name, 1.2), at_most=True),
        verdict(ratio(xla, kernel), 30, at_most=False),
    ]


def measure_small_steps(repeats: int) -> str:
    """Ten million steps so small that one update is enough, a record for each hundred thousand.

    C ends its iteration there, too: `-DBOUNDED`.
    """
    case = replace(suslov(step=1e-5), defines=("-DBOUNDED",))
    given = (case.system, case.integrator, case.state)
    calls = {
        "c": case.by_hand(SMALL, every=SMALL // 100, fresh=True),
        "ours": lambda: da.simulate(*given, step=case.step, steps=SMALL, save_every=SMALL // 100),
    }
    off = np.max(np.abs(calls["c"]()[-1, 1:10] - np.ravel(calls["ours"]().g[-1])))
    if off > 1e-8:  # round-off of 10^7 steps
        raise SystemExit(f"after {SMALL} small steps C and dalembert differ by {off:.1e}")
    times = interleaved(calls, repeats)
    c, ours = (1e9 * median(times[name]) / SMALL for name in calls)
    against = verdict(ratio(times["ours"], times["c"]), 1.2, at_most=True)
    return f"{SMALL:.0e} Suslov steps at h = 1e-5: simulate {ours:.1f} ns a step, C {c:.1f}, ratio {against}"


def often(call):
    """These steps take too little time for the clock."""
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
    if given.only in "small steps":
        print(measure_small_steps(min(3, given.repeats)))
    print("processor time per step, medians of interleaved repeats; ! marks a missed target")


if __name__ == "__main__":
    main()
