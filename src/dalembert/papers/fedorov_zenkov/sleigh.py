"""Figures 7.2 and 7.3: the momentum surface and a trajectory of the discrete sleigh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...analysis.integrals import total_turning as discrete_turning
from ...integrators import RungeKutta
from ...models.sleigh import chaplygin_sleigh, total_turning
from ...plotting.style import COLOURS, sheet, space, styled
from ...plotting.surfaces import Patch, draw_surfaces, momentum_surface
from ..exhibit import Data
from ..running import simulate
from .setup import NUMBERS, SCHEME, gallery, sleigh_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INERTIA = 1.5
MASS = A = 1.0
EXTENT = 6.0


@styled
def draw_surface(data: Data) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 5.6), layout="constrained")
    axes = space(figure, labels=(r"$p_\theta$", r"$\hat p_1$", r"$z = \sin\Delta\theta$"), elev=28, azim=-60)
    draw_surfaces(axes, [Patch(data[name], alpha=0.9) for name in ("right", "left")])
    axes.set_xlim(-EXTENT, EXTENT)
    axes.set_ylim(-EXTENT, EXTENT)
    return figure


def ruled(angles: np.ndarray, lines: int = 121) -> np.ndarray:
    """(p_theta, p1^, z) over turning angles and p1^ = a p1 + 2 m a², inside the window, shape (angles, lines, 3).

    At a given angle both momenta of the discrete Legendre map are affine in the second coordinate of the displacement, so that p_theta is
    affine in p1^: the surface is ruled.
    """
    system = chaplygin_sleigh(MASS, INERTIA, A, 0.0)
    x0 = 2 * np.tan(angles / 2)
    impulse = lambda second: momentum_surface(system, SCHEME, 1.0, np.stack([x0, 0 * x0 + second], -1))
    at, rate = impulse(0.0), impulse(1.0) - impulse(0.0)
    offset, slope = A * at[:, 1] + 2 * MASS * A**2, A * rate[:, 1]
    tilt = rate[:, 0] / slope  # of p_theta = foot + tilt p1^
    foot = at[:, 0] - tilt * offset
    edges = np.sort((np.array([[-EXTENT], [EXTENT]]) - foot) / tilt, axis=0)
    low, high = np.clip(edges, -EXTENT, EXTENT)
    height = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, lines)
    theta = foot[:, None] + tilt[:, None] * height
    return np.stack([theta, height, np.broadcast_to(np.sin(angles)[:, None], theta.shape)], -1)


def cubic(points: np.ndarray) -> np.ndarray:
    """The left side of (7.16)."""
    p, hat, z = np.moveaxis(points, -1, 0)
    return INERTIA**2 * z**3 - 2 * INERTIA * p * z**2 + (hat**2 + 2 * INERTIA * hat + p**2) * z - 2 * p * hat


@gallery(
    "figure-7.2",
    "The surface Ũ of the sleigh's momenta, J = 1.5",
    draw=draw_surface,
    printed="""
    The surface Ũ in (p_theta, p1^, z = sin Δθ), p1^ = a p1 + 2 m a², for b = 0 and J = 1.5: a cubic between the
    planes z = ±1, one sheet but for a triangular domain over which there are three.
    """,
    differs="""
    The same surface, drawn from the discrete Legendre map over the turning angle and p1^ (it is ruled); its points
    satisfy the cubic (7.16). The "four inverse images" of a generic (p_theta, p1) are three, and item (2) of Lemma
    7.2 fails inside the triangle (docs/errata.md).
    """,
)
def surface() -> Data:
    turn = np.linspace(1e-6, np.pi * (1 - 1e-4), 181)
    parts = {"right": ruled(turn), "left": ruled(-turn)}
    near = np.concatenate([part.reshape(-1, 3) for part in parts.values()])
    residual = float(np.abs(cubic(near)).max())
    rows = [("largest residual of (7.16)", residual), ("largest |z|", float(np.abs(near[:, 2]).max()))]
    rows += [
        (f"real z over (p_theta, p1^) = ({p:g}, {q:g})", sheets(p, q))
        for p, q in ((0.0, -1.5), (0.0, 2.0), (3.0, -3.0))
    ]
    return Data(("", "value"), rows, parts)


def sheets(p: float, hat: float) -> int:
    """How many real roots z in [-1, 1] the cubic (7.16) has."""
    roots = np.roots([INERTIA**2, -2 * INERTIA * p, hat**2 + 2 * INERTIA * hat + p**2, -2 * p * hat])
    real = roots[np.abs(roots.imag) < 1e-9].real
    return int(np.sum(np.abs(real) <= 1 + 1e-12))


# -- a trajectory ---------------------------------------------------------------------------------------------------------------
STEP, STEPS = 0.4, 60
VELOCITY = (0.5, -1.0, 0.0)


@styled
def draw_path(data: Data) -> Figure:
    figure, axes = sheet(size=(6.6, 5.0))
    axes.plot(data["flow"][:, 0], data["flow"][:, 1], color=COLOURS[6], linewidth=0.9, label="continuous")
    axes.plot(
        data["discrete"][:, 0],
        data["discrete"][:, 1],
        "o",
        color=COLOURS[0],
        markersize=3.5,
        label=f"discrete, h = {STEP:g}",
    )
    axes.plot(*data["discrete"][0], "o", color=COLOURS[1], markersize=6, label="start")
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("x")
    axes.set_ylabel("y")
    axes.legend()
    return figure


@gallery(
    "figure-7.3",
    "A discrete trajectory of the sleigh",
    draw=draw_path,
    printed="""
    The contact points of a discrete sleigh with b = 0 beside the continuous trajectory with its cusp.
    """,
    differs=f"""
    {NUMBERS}; here m = J = 1, a = 0.3, w = 0.5, v1 = -1, h = 0.4. Both turn back in a cusp; the discrete motion
    keeps the constrained energy (7.21) to round-off.
    """,
)
def path() -> Data:
    parameters, system = sleigh_of(0.3, 0.0)
    state = system.state(xi=list(VELOCITY))
    run = simulate(system, SCHEME, state, step=STEP, steps=STEPS).check()
    flow = simulate(system, RungeKutta(), state, step=STEP / 100, steps=100 * STEPS, save_every=5).check()
    gap = np.linalg.norm(np.asarray(run.g)[:, :2, 2] - np.asarray(flow.g)[::20, :2, 2], axis=1)
    rows = [
        ("largest error of the energy", float(np.abs(np.asarray(run.energy_error())).max())),
        ("largest distance of the paths", float(gap.max())),
        ("angle turned, discrete", float(run.angles[-1, 0])),
        ("angle turned, continuous", float(flow.angles[-1, 0])),
        ("from k = -∞ to ∞, discrete", discrete_turning(system, SCHEME, state.momentum, STEP)),
        ("from t = -∞ to ∞, continuous", total_turning(parameters["mass"], parameters["inertia"], parameters["a"])),
    ]
    return Data(("", "value"), rows, {"flow": np.asarray(flow.g)[:, :2, 2], "discrete": np.asarray(run.g)[:, :2, 2]})
