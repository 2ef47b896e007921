"""Figures 3.1 and 3.2: the modified vector field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...analysis.modified import taus
from ...models.rigid_body import exact
from ...plotting.style import COLOURS, sheet, styled
from ..exhibit import Data
from .setup import INERTIA, INPUTS, START, energy, gallery, momenta

if TYPE_CHECKING:
    from matplotlib.figure import Figure

H3 = 0.8
UNTIL = 50.0


@styled
def draw_components(data: Data) -> Figure:
    figure, axes = sheet(3, 1, size=(7.2, 6.2), sharex=True)
    curves = (
        ("exact, f", "exact", "-", COLOURS[6]),
        ("f + h² f₃", "order 4", "-.", COLOURS[2]),
        ("f + h² f₃ + h⁴ f₅", "order 6", "--", COLOURS[1]),
    )
    for i, panel in enumerate(axes):
        for label, name, dash, colour in curves:
            panel.plot(data["t"], data[name][:, i], linestyle=dash, color=colour, label=label)
        panel.plot(
            data["nodes"], data["DMV"][:, i], ":o", color=COLOURS[0], markersize=3, linewidth=0.8, label="DMV, h = 0.8"
        )
        panel.set_ylabel(f"$m_{i + 1}$")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    axes[-1].set_xlabel("t")
    return figure


@gallery(
    "figure-3.1",
    "DMV, the exact motion and the modified vector fields, h = 8/10",
    draw=draw_components,
    printed="""
    The components m1, m2, m3 over [0, 50]: DMV with h = 8/10 (dotted), the exact solution (solid), the solutions of
    f + h² f3 (dash-dotted) and f + h² f3 + h⁴ f5 (dashed), by ode45. DMV keeps the shape of the motion and
    oscillates too rapidly.
    """,
    differs=f"""
    The same picture. On SO(3) f3 = tau3 f and f5 = tau5 f, so the modified motions are the exact one at rescaled
    times: no ode45 is needed. {INPUTS}
    """,
)
def modified_motions() -> Data:
    tau3, tau5 = taus(INERTIA, START, 2)
    rates = {"exact": 1.0, "order 4": 1 + tau3 * H3**2, "order 6": 1 + tau3 * H3**2 + tau5 * H3**4}
    t, nodes = np.linspace(0, UNTIL, 1001), H3 * np.arange(int(UNTIL / H3) + 1)
    found = momenta("DMV", H3, len(nodes) - 1)
    motion = {name: exact(INERTIA, START, rate * t).momentum for name, rate in rates.items()}
    rows = [
        (label, rates[name], float(np.abs(found - exact(INERTIA, START, rates[name] * nodes).momentum).max()))
        for label, name in (("f", "exact"), ("f + h² f3", "order 4"), ("f + h² f3 + h⁴ f5", "order 6"))
    ]
    return Data(
        ("vector field", "its speed", "largest distance of DMV from its solution"),
        rows,
        {"t": t, "nodes": nodes, "DMV": found, **motion},
    )


@styled
def draw_conservation(data: Data) -> Figure:
    figure, axes = sheet(2, 1, size=(7.2, 4.6), sharex=True)
    for panel, name, label in zip(axes, ("energy", "norm"), ("$H - H_0$", "$|m| - |m_0|$"), strict=True):
        panel.plot(data["nodes"], data[name], "o-", color=COLOURS[0], markersize=2.5)
        panel.set_ylabel(label)
    axes[-1].set_xlabel("t")
    return figure


@gallery(
    "figure-3.2",
    "Errors of the Hamiltonian and of the Casimir for DMV, h = 8/10",
    draw=draw_conservation,
    printed="""
    Error on the Hamiltonian (top) and on the Casimir, the 2-norm of the solution (bottom), for DMV with h = 8/10.
    """,
    differs="""
    Both stay at round-off here; the roots of the characteristic polynomial are refreshed at every step. Computed
    'once and for all', as the paper says in section 1.2, the map is unstable: H is off by 0.25 after 3000 steps at
    h = 0.5 (docs/errata.md).
    """,
)
def conservation() -> Data:
    nodes = H3 * np.arange(int(UNTIL / H3) + 1)
    found = momenta("DMV", H3, len(nodes) - 1)
    drift = energy(found) - energy(START)
    norm = np.linalg.norm(found, axis=1) - 1.0
    rows = [("H", float(np.abs(drift).max())), ("|m|", float(np.abs(norm).max()))]
    return Data(("invariant", "largest error"), rows, {"nodes": nodes, "energy": drift, "norm": norm})
