"""Figures 6.1 to 6.4: the momentum surface of the discrete Suslov problem, its invariant curves and its dynamics on RP^2."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...analysis.algebraic import legendre_map
from ...analysis.integrals import CriticalPoint, constrained_energy, critical_points, equilibrium_line, projective
from ...plotting.studies import arrow, equilibria
from ...plotting.style import COLOURS, GREY, sheet, space, styled
from ...plotting.surfaces import Patch, draw_surfaces, momentum_surface
from ..exhibit import Data
from .setup import NUMBERS, SCHEME, body, gallery

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = ("$M_1$", "$M_2$", "$M_3$")
HERE = f"{NUMBERS}; here it is that of Figure 4.1, and momenta are h M, as in the paper"


def momenta(q: np.ndarray) -> np.ndarray:
    """h M at points (..., 2) = (q1, q2) of the upper hemisphere: rotations with Cayley coordinates x = 2 q/q0."""
    q0 = np.sqrt(np.maximum(1 - np.sum(q**2, axis=-1, keepdims=True), 1e-16))
    return momentum_surface(body(), SCHEME, 1.0, 2 * q / q0)


def ring(low: float, high: float, radii: int = 61, angles: int = 181) -> np.ndarray:
    """(q1, q2) with q0 between `low` and `high`, polar; shape (radii, angles, 2)."""
    half = np.linspace(np.arccos(high), np.arccos(low), radii)
    around = np.linspace(0, 2 * np.pi, angles)
    return np.sin(half)[:, None, None] * np.stack([np.cos(around), np.sin(around)], -1)


def _draw(data: Data, view: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = space(figure, labels=LABELS, elev=view[0], azim=view[1])
    draw_surfaces(axes, [Patch(data["surface"], alpha=0.85)], lines=24)
    return figure


@styled
def draw_surface(data: Data) -> Figure:
    return _draw(data, (12, -120))


@gallery(
    "figure-6.1",
    "The momentum surface U",
    draw=draw_surface,
    printed="""
    The surface U in R^3 = (M1, M2, M3) on which discrete momenta lie, for an unbalanced inertia tensor: a Steiner
    surface with pinch points and self-intersections.
    """,
    differs=f"""
    {HERE}. The surface is F l_d at all rotations about axes in d, from the definition; (6.12) agrees with it.
    """,
)
def surface() -> Data:
    points = momenta(ring(0.0, 1.0, 91, 181))
    rows = [(f"largest |h M{i + 1}|", float(np.abs(points[..., i]).max())) for i in range(3)]
    return Data(("", "value"), rows, {"surface": points})


@styled
def draw_section(data: Data) -> Figure:
    return _draw(data, (14, -112))


@gallery(
    "figure-6.2",
    "A circular section of the momentum surface",
    draw=draw_section,
    printed="""
    The part of U with 0.4 ≤ q0 ≤ 0.8.
    """,
    differs=f"""
    {HERE}. q0 is the cosine of half the angle of rotation.
    """,
)
def section() -> Data:
    points = momenta(ring(0.4, 0.8))
    rows = [(f"largest |h M{i + 1}|", float(np.abs(points[..., i]).max())) for i in range(3)]
    return Data(("", "value"), rows, {"surface": points})


# -- invariant curves -----------------------------------------------------------------------------------------------------------
@lru_cache
def critical() -> tuple[CriticalPoint, ...]:
    return tuple(point for point in critical_points(body(), SCHEME, starts=30) if point.value > 1e-12)


def separatrix() -> float:
    """h*: the energy at the saddles between the ovals about the origin and those near the equator."""
    inner = [point.value for point in critical() if point.index == 1 and projective(point.coordinates)[2] > 0.01]
    return min(inner)


def line_of_equilibria() -> np.ndarray:
    """The unit vector (q1, q2) of the stable half of P."""
    return equilibrium_line(body(), SCHEME)[:2]


@styled
def draw_curves(data: Data) -> Figure:
    figure, axes = sheet(size=(6.0, 5.6))
    _disc(axes)
    axes.contour(
        data["q1"], data["q2"], data["energy"], levels=np.sort(data["levels"]), colors=COLOURS[0], linewidths=0.8
    )
    axes.contour(data["q1"], data["q2"], data["energy"], levels=data["separatrix"], colors=COLOURS[1], linewidths=1.5)
    along = data["line"]
    axes.plot(*np.stack([-along, along]).T, color="black", linewidth=1.2, label="equilibria P")
    axes.plot([], [], color=COLOURS[1], linewidth=1.5, label="separatrix $h^*$")
    axes.plot(*data["saddles"].T, "x", color=COLOURS[1], label="saddles")
    axes.plot(*data["centres"].T, "+", color=COLOURS[2], markersize=7, label="centres")
    axes.legend(loc="upper left", bbox_to_anchor=(0.98, 1.0))
    return figure


def _disc(axes: Axes) -> None:
    """RP^2 as the upper hemisphere seen from above."""
    around = np.linspace(0, 2 * np.pi, 361)
    axes.plot(np.cos(around), np.sin(around), color=GREY, linewidth=0.8, linestyle="--")
    axes.set_aspect("equal")
    axes.set_xlabel("$q_1$")
    axes.set_ylabel("$q_2$")


@gallery(
    "figure-6.3",
    "Invariant curves and the line of equilibria on RP²",
    draw=draw_curves,
    printed="""
    The hemisphere q0 ≥ 0 seen from above: ovals about the origin, ovals near the equator, the separatrix h = h*
    with two saddles between them, two centres at h**, and the segment of equilibria.
    """,
    differs=f"""
    {HERE}. Curves are the levels of the energy of F l_d, which is (6.18) up to a factor. The dashed circle is the
    equator, opposite points of which are one. "Saddles are never stationary" fails only when I11 = I22 (docs/errata.md).
    """,
)
def invariant_curves() -> Data:
    side = np.linspace(-1, 1, 401)
    q1, q2 = np.meshgrid(side, side)
    inside = np.hypot(q1, q2) < 1
    q = np.stack([q1, q2], -1) * np.where(inside, 1.0, 0.0)[..., None]
    energy = np.where(inside, constrained_energy(body(), momenta(q)), np.nan)
    star = separatrix()
    where = [(point.index, projective(point.coordinates)) for point in critical()]
    places = {index: np.array([q[:2] for kind, q in where if kind == index and q[2] > 0.01]) for index in (1, 2)}
    top = max(point.value for point in critical())
    levels = np.concatenate(
        [np.array([0.02, 0.1, 0.25, 0.45, 0.7, 0.9]) * star, star + np.array([0.25, 0.6, 0.9]) * (top - star)]
    )
    rows = [
        ("h*, energy h² E_c of the separatrix", star),
        ("h**, of the centres", top),
        ("slope q2/q1 of the line of equilibria", float(line_of_equilibria()[1] / line_of_equilibria()[0])),
    ]
    arrays = {"q1": side, "q2": side, "energy": energy, "levels": levels, "separatrix": np.array([star])}
    arrays |= {"line": line_of_equilibria(), "saddles": places[1], "centres": places[2]}
    return Data(("", "value"), rows, arrays)


# -- the map near the origin ---------------------------------------------------------------------------------------------------
@styled
def draw_dynamics(data: Data) -> Figure:
    figure, axes = sheet(size=(6.2, 5.6))
    reach = 1.12 * np.nanmax(np.abs(np.concatenate([data[name] for name in data.arrays if name.startswith("orbit")])))
    along = data["line"]
    axes.plot(*(1.2 * reach * np.stack([-along, along])).T, color=GREY, linewidth=0.8)
    axes.contour(
        data["q1"], data["q2"], data["energy"], levels=np.sort(data["levels"]), colors=COLOURS[5], linewidths=0.6
    )
    for name in (name for name in data.arrays if name.startswith("orbit")):
        orbit = data[name]
        axes.plot(*orbit.T, ".", color=COLOURS[0], markersize=4)
        middle = len(orbit) // 2
        arrow(axes, orbit[middle - 2 : middle + 3], COLOURS[0])
    equilibria(axes, data["stable"], stable=True, label="stable")
    equilibria(axes, -data["stable"], stable=False, label="unstable")
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_aspect("equal")
    axes.set_xlabel("$q_1$")
    axes.set_ylabel("$q_2$")
    axes.legend(loc="upper right")
    return figure


@gallery(
    "figure-6.4",
    "Discrete dynamics near the origin of RP²",
    draw=draw_dynamics,
    printed="""
    Points of the map on the ovals about the origin of Figure 6.3: from unstable equilibria (circles) to stable ones
    (dots) on the line P, in one half plane each.
    """,
    differs=f"""
    {HERE}. The stable half of P is the one in Θ+, not in Θ- as Theorem 6.3 has it (docs/errata.md); opposite limits are
    mutually inverse rotations.
    """,
)
def dynamics() -> Data:
    system, f = body(), legendre_map(body(), SCHEME)
    direction, star = line_of_equilibria(), separatrix()
    across = np.array([-direction[1], direction[0]])
    levels = np.array([0.05, 0.2, 0.45]) * star
    arrays: dict[str, Any] = {"line": direction, "levels": levels}
    stable, mismatch = [], []
    for k, level in enumerate(levels):
        for side in (-1.0, 1.0):
            x = _on_level(f, side * across, level)
            both = np.concatenate([f.orbit(x, -60)[:0:-1], f.orbit(x, 60)])
            q = both / 2 / np.sqrt(1 + np.sum(both**2, axis=1, keepdims=True) / 4)
            arrays[f"orbit {2 * k + (side > 0)}"] = q
            mismatch.append(float(np.ptp(constrained_energy(system, f.restricted(both))) / level))
        end = _on_level(f, direction, level)
        stable.append(end / 2 / np.sqrt(1 + end @ end / 4))
    side = np.linspace(-1, 1, 301) * 1.5 * np.max(np.abs(stable))
    q1, q2 = np.meshgrid(side, side)
    energy = constrained_energy(system, momenta(np.stack([q1, q2], -1)))
    arrays |= {"q1": side, "q2": side, "energy": energy, "stable": np.array(stable)}
    last = [float(np.linalg.norm(arrays[f"orbit {i}"][-1] - stable[i // 2])) for i in range(2 * len(levels))]
    rows = [
        ("largest relative change of the energy along an orbit", max(mismatch)),
        ("largest distance of an orbit's end from its equilibrium", max(last)),
        ("(q1, q2) of the stable half line", "(" + ", ".join(f"{v:.6g}" for v in direction) + ")"),
    ]
    return Data(("", "value"), rows, arrays)


def _on_level(f, direction: np.ndarray, level: float) -> np.ndarray:
    """The point x = s direction nearest to 0 with this energy."""
    from scipy.optimize import brentq

    energy = lambda s: float(constrained_energy(f.system, f.restricted(s * direction))) - level
    top = 0.05
    while energy(top) < 0:
        top *= 1.2
    return brentq(energy, 0.0, top, xtol=1e-14) * direction
