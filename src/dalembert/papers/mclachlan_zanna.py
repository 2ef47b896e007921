"""Figures 5.3 and 5.4: the spectrum that decides whether there is a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...analysis.modified import scaled_taus
from ...analysis.moser_veselov import failing_steps, spectrum
from ...plotting.style import COLOURS, sheet, styled
from ..exhibit import Data
from .setup import INERTIA, MASS, START, gallery

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {"DMV": ("o", ":", COLOURS[0], 6), "DMV4": ("*", "-.", COLOURS[1], 6), "DMV6": ("h", "--", COLOURS[2], 4)}


def roots(steps: np.ndarray) -> dict[str, np.ndarray]:
    """The six roots of P(l) for each method at each step, (k, 6): h m scaled by 1, 1 + tau3 h² and 1 + tau3 h² + tau5~ h⁴."""
    tau3, tau5 = scaled_taus(INERTIA, START, 2)
    hat = np.cross(np.eye(3), START)
    scales = {"DMV": 0 * steps + 1, "DMV4": 1 + tau3 * steps**2, "DMV6": 1 + tau3 * steps**2 + tau5 * steps**4}
    return {
        name: np.array([spectrum(MASS, h / s * hat) for h, s in zip(steps, scale, strict=True)])
        for name, scale in scales.items()
    }


def spectra(steps: np.ndarray) -> Data:
    """The roots at some steps, and the steps at which they are imaginary so that there is no map."""
    found = roots(steps)
    arrays = {"h": steps}
    for name, values in found.items():
        arrays |= {f"{name} real": np.sort(values.real), f"{name} imaginary": np.sort(values.imag)}
    printed = {"DMV": "from about 1.2", "DMV4": "never", "DMV6": "at about 2.2"}
    rows = []
    for name, order in (("DMV", 2), ("DMV4", 4), ("DMV6", 6)):
        intervals = failing_steps(INERTIA, START, order, up_to=1000.0)
        ours = ", ".join(f"[{low:.8g}, {'∞' if high >= 1000 else f'{high:.8g}'}]" for low, high in intervals) or "never"
        rows.append((name, ours, printed[name]))
    return Data(("method", "no map for h in", "printed"), rows, arrays)


def _draw_spectrum(data: Data, scale: str, limit: float, every: int) -> Figure:
    figure, axes = sheet(2, 1, size=(7.2, 6.0), sharex=True)
    for panel, part in zip(axes, ("real", "imaginary"), strict=True):
        for name, (marker, dash, colour, size) in LOOKS.items():
            for k, column in enumerate(data[f"{name} {part}"].T):
                style = {"marker": marker, "linestyle": dash, "color": colour, "markersize": size, "linewidth": 0.8}
                panel.plot(
                    data["h"],
                    column,
                    label=None if k else name,
                    markerfacecolor="none",
                    markeredgewidth=0.7,
                    markevery=every,
                    **style,
                )
        panel.set_ylabel(f"{part} part of λ")
        panel.set_ylim(*(np.array([-1, 1]) * (1.1 if part == "real" else limit)))
        panel.set_xscale(scale)
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes[-1].set_xlabel("h")
    return figure


@styled
def draw_spectrum(data: Data) -> Figure:
    return _draw_spectrum(data, "linear", 1.6, 5)


@styled
def draw_limit(data: Data) -> Figure:
    return _draw_spectrum(data, "log", 2.2, 6)


THRESHOLDS = (
    "The thresholds are edges of intervals here, not points of a grid: DMV has no map from h = 1.0602 on ('1.2' is a grid "
    "point), DMV6 has none on two intervals, the second of which the paper does not mention (docs/errata.md). The roots at "
    "h = 0 are ±J_i, not squares."
)


@gallery(
    "figure-5.3",
    "Eigenvalues against the step",
    draw=draw_spectrum,
    printed="""
    Real (top) and imaginary (bottom) part of the eigenvalues against h: DMV circles and dots, DMV4 pentagrams and
    dash-dots, DMV6 hexagons and dashes. DMV is said to fail at h ≈ 1.2 and DMV6 at h ≈ 2.2, to recover afterwards;
    DMV4 never fails.
    """,
    differs=THRESHOLDS,
)
def eigenvalues() -> Data:
    return spectra(np.linspace(0.0, 3.0, 301))


@gallery(
    "figure-5.4",
    "Eigenvalues for large steps",
    draw=draw_limit,
    printed="""
    The same as Figure 5.3 for h → ∞: the roots of DMV4 and DMV6 return to those of h = 0 (no motion), those of DMV
    do not.
    """,
    differs=f"""
    {THRESHOLDS} The step is on a logarithmic axis, so that both intervals of DMV6 are seen.
    """,
)
def eigenvalues_at_infinity() -> Data:
    return spectra(np.geomspace(0.1, 1000.0, 481))
