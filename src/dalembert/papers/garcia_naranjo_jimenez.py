"""Figures 3 and 4: both discretisations beside the exact momenta."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...analysis.integrals import constrained_energy
from ...analysis.thresholds import largest_step
from ...models.suslov import exact_momentum
from ...plotting.style import COLOURS, MARKERS, sheet, styled
from ..exhibit import Data
from ..running import simulate
from .setup import GENERIC, SCHEMES, SPECIAL, Case, gallery

if TYPE_CHECKING:
    from matplotlib.figure import Figure


EARLY = 12
"""Steps within which the Moser-Veselov branch is lost, if it is lost at all: the momentum then swings to the other side."""


def momenta(case: Case, scheme: str, step: float) -> tuple[np.ndarray, np.ndarray]:
    """(t_k, M_k) of round(1/ε) steps from the paper's initial momentum."""
    run = simulate(
        case.system, SCHEMES[scheme], case.system.state(momentum=case.momentum), step=step, steps=round(1 / step)
    )
    return np.asarray(run.check().t), np.asarray(run.momentum)


def lead(case: Case, t: np.ndarray, M: np.ndarray) -> float:
    """How much sooner than the flow a run reaches the state half way between its limits: positive for a run that is too fast."""
    fine = np.linspace(0, 1, 20001)
    exact = exact_momentum(case.inertia, case.momentum, fine)
    axis = np.argmax(np.abs(exact[-1, :2] - exact[0, :2]))
    crossing = lambda time, values: float(np.interp(0.0, *_increasing(values[:, axis], time)))
    return crossing(fine, exact) - crossing(t, M)


def _increasing(values: np.ndarray, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (values, time) if values[-1] > values[0] else (-values, time)


def compare(case: Case) -> Data:
    """Momenta, energy and distance from d* for both schemes and both steps."""
    fine = np.linspace(0, 1, 501)
    exact = exact_momentum(case.inertia, case.momentum, fine)
    arrays, rows = (
        {"t": fine, "exact": exact},
        [("exact", *exact_momentum(case.inertia, case.momentum, 1.0), 0.0, 0.0, 0.0, None)],
    )
    for scheme, integrator in SCHEMES.items():
        ends = largest_step(case.system, integrator, case.momentum, steps=EARLY) if scheme == "Moser-Veselov" else None
        for step in case.steps:
            t, M = momenta(case, scheme, step)
            energy, distance = constrained_energy(case.system, M), M @ case.normal
            key = f"{scheme}, ε = {step:g}"
            arrays |= {f"{key}, t": t, f"{key}, M": M, f"{key}, energy": energy, f"{key}, distance": distance}
            drift = float(np.abs(energy - energy[0]).max())
            rows.append((key, *M[-1], drift, float(np.abs(distance).max()), lead(case, t, M), ends))
    columns = (
        "run",
        "M1 at the end",
        "M2",
        "M3",
        "largest |E_c - E_c(0)|",
        "largest |ρ|",
        "ahead of the flow by",
        "fails from ε =",
    )
    return Data(columns, rows, arrays)


def _draw(case: Case, data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(11.5, 4.9))
    labels = [f"{scheme}, ε = {step:g}" for scheme in SCHEMES for step in case.steps]
    insets = []
    for i, (panel, place) in enumerate(zip(axes, INSETS[case], strict=True)):
        panel.plot(data["t"], data["exact"][:, i], color="black", label="exact")
        for k, label in enumerate(labels):
            style = {"color": COLOURS[k], "marker": MARKERS[k], "markersize": 3, "linewidth": 0.6}
            panel.plot(data[f"{label}, t"], data[f"{label}, M"][:, i], label=label, **style)
        panel.set_xlabel("t")
        panel.set_ylabel(f"$M_{i + 1}$")
        insets.append(panel.inset_axes(place))
    for inset, name, title in zip(insets, ("energy", "distance"), ("$E_c$", "ρ"), strict=True):
        for k, label in enumerate(labels):
            inset.plot(
                data[f"{label}, t"],
                data[f"{label}, {name}"],
                color=COLOURS[k],
                marker=MARKERS[k],
                markersize=1.6,
                linewidth=0.6,
            )
        inset.set_title(title, fontsize=8, loc="center", pad=2)
        inset.tick_params(labelsize=6)
        inset.patch.set_alpha(1.0)
    energies = np.concatenate([data[f"{label}, energy"] for label in labels])
    middle = (energies.max() + energies.min()) / 2
    half = max(0.6 * np.ptp(energies), 1e-3 * abs(middle))
    insets[0].set_ylim(middle - half, middle + half)
    insets[0].ticklabel_format(useOffset=False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


INSETS: dict[Case, tuple[tuple[float, ...], tuple[float, ...]]] = {
    GENERIC: ((0.60, 0.58, 0.38, 0.34), (0.60, 0.14, 0.38, 0.34)),
    SPECIAL: ((0.60, 0.60, 0.38, 0.34), (0.07, 0.56, 0.30, 0.36)),
}
CLOCK = """
The Moser-Veselov map runs ahead of the flow and the Cayley map behind it: Remark 8.1 has it the other way round.
"""


@styled
def draw_generic(data: Data) -> Figure:
    return _draw(GENERIC, data)


@styled
def draw_special(data: Data) -> Figure:
    return _draw(SPECIAL, data)


@gallery(
    "figure-3",
    "Both discretisations for a generic inertia tensor",
    draw=draw_generic,
    printed="""
    M1 with the energy E_c as inset (left) and M2 with the signed distance ρ to d* as inset (right), ε = 0.015 and
    0.030, over [0, 1]. The text says that the Moser-Veselov map works for ε ≤ 0.3 and fails for ε ≥ 0.4.
    """,
    differs=f"""
    The thresholds are 0.03 and 0.04: with this M(0) the first failure is at ε = 0.0327626 (step 6), and M(0) itself
    has no preimage above 0.0351714. {CLOCK} Over a run the error of E_c of the Cayley map is O(ε²), not O(ε³)
    (docs/errata.md). E_c has its factor 1/2 here.
    """,
)
def generic() -> Data:
    return compare(GENERIC)


@gallery(
    "figure-4",
    "Both discretisations for an inertia tensor with I11 = I22",
    draw=draw_special,
    printed="""
    As Figure 3, for I11 = I22 = 3, I13 = 0 and ε = 0.007, 0.014, where both schemes keep E_c. The text says that
    the Moser-Veselov map has problems from ε = 0.018 on.
    """,
    differs=f"""
    Failure starts at ε = 1/60 = 0.0166667 (docs/errata.md). {CLOCK}
    """,
)
def special() -> Data:
    return compare(SPECIAL)
