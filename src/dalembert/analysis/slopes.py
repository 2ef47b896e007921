"""Errors at several steps, and the orders that their slopes say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FLOOR = 1e-11
"""Relative: below it an error is that of the comparison."""


def slopes(steps: Sequence[float] | np.ndarray, errors: Sequence[float] | np.ndarray) -> np.ndarray:
    """The local orders d log(error)/d log(step)."""
    return np.diff(np.log(errors)) / np.diff(np.log(np.abs(steps)))


@dataclass(frozen=True)
class Convergence:
    """Errors of one method at several steps h, from large to small, by quantity: "configuration", "velocity", "multipliers", "energy".

    Global errors belong to t0 + duration, local ones to t0 + h after one step. `errors` (k, d) are signed: left-trivialised
    log(g_exact^-1 g) for configurations; `norms` (k,) are the largest entries over all compared times, NaN where the run failed.
    """

    local: bool
    steps: np.ndarray
    errors: dict[str, np.ndarray]
    norms: dict[str, np.ndarray]
    sizes: dict[str, float]
    failures: tuple[str, ...]
    finer: np.ndarray  # the steps of the runs that are compared with; 0 for the exact motion

    def slopes(self, quantity: str) -> np.ndarray:
        """The local orders d log(error)/d log(h) between neighbouring steps, NaN where one of them says nothing."""
        norms = np.where(self._telling(quantity), self.norms[quantity], np.nan)
        return slopes(self.steps, norms)

    def order(self, quantity: str) -> float | None:
        """The slope over the two smallest steps whose errors are above round-off; None where there are none: the method is exact there."""
        told = np.flatnonzero(self._telling(quantity))
        return float(slopes(self.steps[told], self.norms[quantity][told])[-1]) if len(told) > 1 else None

    def coefficient(self, quantity: str) -> np.ndarray | None:
        """c of error = c h^p + ... with p the order rounded to a whole number, extrapolated from the same two steps."""
        order, told = self.order(quantity), np.flatnonzero(self._telling(quantity))
        if order is None:
            return None
        p, (i, j) = round(order), told[-2:]
        scaled = [self.errors[quantity][k] / (self.steps[k] ** p - self.finer[k] ** p) for k in (i, j)]
        return scaled[1] + (scaled[1] - scaled[0]) * self.steps[j] / (self.steps[i] - self.steps[j])

    def _telling(self, quantity: str) -> np.ndarray:
        return np.nan_to_num(self.norms[quantity]) > FLOOR * max(1.0, self.sizes[quantity])
