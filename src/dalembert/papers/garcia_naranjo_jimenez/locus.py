"""Figures 1 and 2: the momentum loci in so(3)* = R^3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...plotting.style import COLOURS, space, styled
from ...plotting.surfaces import Patch, draw_surfaces, momentum_surface
from ..exhibit import Data
from .setup import GENERIC, SCHEMES, gallery

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP = 0.015
CUT = 1.2
LABELS = ("$M_1$", "$M_2$", "$M_3$")


def polar(largest: float, angles: int = 121, radii: int = 61) -> np.ndarray:
    """Increments (u, v) of rotations by 0 .. `largest` about all axes in d: eps |(u, v)| = 2 tan(angle/2); shape (radii, angles, 2)."""
    turn, around = np.meshgrid(np.linspace(0, largest, radii), np.linspace(0, 2 * np.pi, angles), indexing="ij")
    return (2 / STEP * np.tan(turn / 2))[..., None] * np.stack([np.cos(around), np.sin(around)], -1)


def plane(reach: tuple[float, float]) -> np.ndarray:
    """A patch (31, 31, 3) of d*: M3 = (I13/I11) M1 + (I23/I22) M2."""
    (a, _, p), (_, b, q), _ = GENERIC.inertia
    x, y = np.meshgrid(*(np.linspace(-r, r, 31) for r in reach), indexing="ij")
    return np.stack([x, y, p / a * x + q / b * y], -1)


def tangent_gap(scheme: str) -> float:
    """The largest slope between the locus and d* at the origin: 0 when they are tangent there."""
    small = momentum_surface(GENERIC.system, SCHEMES[scheme], STEP, 1e-5 * polar(np.pi / 2)[-1])
    return float(np.abs(small @ GENERIC.normal / np.linalg.norm(small, axis=-1)).max())


@styled
def draw_bounded(data: Data) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    axes = space(figure, labels=LABELS, elev=10, azim=-120)
    draw_surfaces(axes, [Patch(data["surface"], alpha=0.9), Patch(data["plane"], COLOURS[4], 0.45)])
    axes.plot([0], [0], [0], "o", color="black", markersize=3)
    return figure


@gallery(
    "figure-1",
    "The momentum locus of the Moser-Veselov discretisation and the plane d*",
    draw=draw_bounded,
    printed="""
    The locus u_ε^(1) and the plane d* for generic values of the inertia and a small ε, in R^3. The surface is
    bounded, with pinch points and self-intersections, and tangent to the plane at the origin.
    """,
    differs="""
    The paper does not say which inertia and ε it draws; here they are those of section 8.1, I = (3, 4, 5; I13 = 1,
    I23 = 1/2), ε = 0.015. The surface is F l_d at rotations by up to π about all axes of d, computed from the
    definition and not from (28).
    """,
)
def bounded_locus() -> Data:
    surface = momentum_surface(GENERIC.system, SCHEMES["Moser-Veselov"], STEP, polar(np.pi * (1 - 1e-9), 181, 91))
    reach = np.abs(surface).reshape(-1, 3).max(axis=0)
    rows = [(f"largest |M{i + 1}| on the locus, times ε", float(STEP * reach[i])) for i in range(3)]
    rows.append(("slope between locus and plane at the origin", tangent_gap("Moser-Veselov")))
    return Data(("", "value"), rows, {"surface": surface, "plane": plane((reach[0], reach[1]))})


@styled
def draw_unbounded(data: Data) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    axes = space(figure, labels=LABELS, elev=14, azim=-118)
    axes.computed_zorder = False  # the curve lies on both surfaces: it is drawn on top
    draw_surfaces(axes, [Patch(data["surface"], alpha=0.9), Patch(data["plane"], COLOURS[4], 0.45)])
    for name in (name for name in data.arrays if name.startswith("curve")):
        axes.plot(
            *data[name].T,
            color="#cc0000",
            linewidth=1.8,
            zorder=10,
            label="intersection" if name == "curve 0" else None,
        )
    axes.legend(loc="upper left")
    return figure


@gallery(
    "figure-2",
    "The momentum locus of the Cayley discretisation and the plane d*",
    draw=draw_unbounded,
    printed="""
    The locus u_ε^(∞) and the plane d*, which meet along a red curve that crosses itself at the origin, where the
    surface is tangent to the plane. The surface appears to be unbounded.
    """,
    differs="""
    Inertia and ε as in Figure 1 here. The red curve is where the signed distance ρ of F l_d(u, v) from d* vanishes,
    found in the plane of (u, v). The surface is unbounded, M = O(|(u, v)|³): it is cut at rotations by 1.2 radians.
    """,
)
def unbounded_locus() -> Data:
    surface = momentum_surface(GENERIC.system, SCHEMES["Cayley"], STEP, polar(CUT, 181, 91))
    curves = [curve for curve in intersection() if len(curve) > 1]
    reach = np.abs(surface).reshape(-1, 3).max(axis=0)
    rows = [
        ("slope between locus and plane at the origin", tangent_gap("Cayley")),
        ("pieces of the intersection", len(curves)),
        (
            "largest distance of the red curve from the plane",
            float(max(np.abs(c @ GENERIC.normal).max() for c in curves)),
        ),
        ("its least distance from the origin", float(min(np.linalg.norm(c, axis=1).min() for c in curves))),
    ]
    arrays = {f"curve {k}": curve for k, curve in enumerate(curves)}
    return Data(("", "value"), rows, {"surface": surface, "plane": plane((reach[0], reach[1])), **arrays})


def intersection(points: int = 401) -> list[np.ndarray]:
    """The curves (k, 3) in which the Cayley locus meets d*: the zero lines of ρ over the disc, refined by Newton's method."""
    from contourpy import contour_generator

    system, scheme = GENERIC.system, SCHEMES["Cayley"]
    reach = 2 / STEP * np.tan(CUT / 2)
    line = np.linspace(-reach, reach, points)
    distance = lambda x: momentum_surface(system, scheme, STEP, x) @ GENERIC.normal
    grid = np.stack(np.meshgrid(line, line), -1)
    pieces = contour_generator(line, line, distance(grid)).lines(0.0)
    found = []
    for piece in pieces:
        x = np.asarray(piece)
        x = x[np.hypot(*x.T) <= reach]
        for _ in range(3):
            small = 1e-6 * reach
            slope = np.stack([(distance(x + small * e) - distance(x - small * e)) / (2 * small) for e in np.eye(2)], -1)
            size = np.sum(slope**2, axis=-1, keepdims=True)
            x = x - np.where(size > 1e-12, distance(x)[:, None] * slope / np.maximum(size, 1e-12), 0.0)
        found.append(momentum_surface(system, scheme, STEP, x))
    return found
