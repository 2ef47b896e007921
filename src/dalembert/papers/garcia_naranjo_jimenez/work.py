"""The work-precision diagrams that section 1.4 announces."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ...analysis.order import slopes
from ...integrators import Integrator, RungeKutta
from ...models.suslov import exact_momentum
from ...plotting.studies import draw_lines, draw_slope
from ...plotting.style import sheet, styled
from ..exhibit import Data
from ..running import simulate
from .setup import GENERIC, SCHEMES, gallery

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTS = tuple(64 * 2**k for k in range(9))
METHODS: dict[str, Integrator] = {**SCHEMES, "Runge-Kutta 4": RungeKutta()}
TIMED = 50_000


def run(method: str, steps: int):
    state = GENERIC.system.state(momentum=GENERIC.momentum)
    return simulate(GENERIC.system, METHODS[method], state, step=1 / steps, steps=steps, save_every=steps)


def error(method: str, steps: int) -> float:
    """|(M1, M2) - exact| at t = 1, relative to |M|; NaN where the run fails."""
    ended = run(method, steps)
    exact = exact_momentum(GENERIC.inertia, GENERIC.momentum, 1.0)[:2]
    if ended.status != "ok":
        return np.nan
    return float(np.linalg.norm(np.asarray(ended.momentum[-1][:2]) - exact) / np.linalg.norm(exact))


def seconds_per_step(method: str) -> float:
    """Processor time of a step in a long run, that of a short one taken off; the best of three."""

    def spent(steps: int) -> float:
        begin = time.process_time()
        run(method, steps)
        return time.process_time() - begin

    spent(64)
    return min(spent(TIMED) - spent(64) for _ in range(3)) / TIMED


@styled
def draw_work(data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(10.5, 4.4), sharey=True)
    draw_lines(axes[0], {name: (data["step"], data[f"{name} error"]) for name in METHODS})
    draw_slope(axes[0], (2.5e-4, 1e-3), 4e-6, 2)
    draw_lines(axes[1], {name: (data[f"{name} seconds"], data[f"{name} error"]) for name in METHODS})
    axes[0].set_ylabel("relative error of (M1, M2) at t = 1")
    axes[0].set_xlabel("ε")
    axes[1].set_xlabel("processor time of the run, s")
    axes[0].legend()
    return figure


@gallery(
    "work-precision",
    "Work and precision of both discretisations",
    draw=draw_work,
    printed="""
    Section 1.4 announces "a series of work-precision diagrams that illustrate the convergence of both discrete
    systems to the continuous one as ε → 0"; the paper has Figures 3 and 4 in their place.
    """,
    differs="""
    The diagrams of section 1.4, for the body of section 8.1, beside Runge-Kutta of order 4 (which is the more
    accurate method at short times, and keeps neither energy nor group). Compilation is not counted; the times are
    those of the machine that drew the picture.
    """,
)
def work_precision() -> Data:
    steps = 1.0 / np.array(COUNTS)
    arrays = {"step": steps}
    rows = []
    for name in METHODS:
        errors, cost = np.array([error(name, n) for n in COUNTS]), seconds_per_step(name)
        arrays |= {f"{name} error": errors, f"{name} seconds": cost * np.array(COUNTS)}
        rows.append((name, errors[0], errors[4], float(np.median(slopes(steps[3:6], errors[3:6]))), 1e9 * cost))
    return Data(("method", "error at ε = 1/64", "error at ε = 1/1024", "order", "ns a step"), rows, arrays)
