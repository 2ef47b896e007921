"""Timing on a noisy machine: processor time, interleaved repeats, medians of ratios inside one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Clock = Callable[[], float]


def interleaved(
    functions: Mapping[str, Callable[[], object]], repeats: int = 9, clock: Clock = time.process_time
) -> dict[str, list[float]]:
    """Seconds of every function in every repeat; each repeat runs all of them, so that they share its disturbances.

    The processor time of the process does not count what other processes take; give `time.perf_counter` where threads
    are to help each other.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            begin = clock()
            function()
            times[name].append(clock() - begin)
    return times


def once(call: Callable[[], object], repeats: int = 5, least: float = 0.003) -> float:
    """Processor seconds of one call: the median over batches that are long enough for the clock."""
    size = 1
    while (spent := interleaved({"": lambda: [call() for _ in range(size)]}, 1)[""][0]) < least:
        size = max(2 * size, int(size * least / max(spent, 1e-6)))
    return median(interleaved({"": lambda: [call() for _ in range(size)]}, repeats)[""]) / size


def ratio(first: list[float], second: list[float]) -> float:
    """The median over repeats of first/second."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def median(times: list[float]) -> float:
    return statistics.median(times)


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]), flush=True)


def verdict(value: float, target: float, *, at_most: bool) -> str:
    """The value with its target, marked where it is missed."""
    met = value <= target if at_most else value >= target
    return f"{value:.3g}{'' if met else ' !'}"
