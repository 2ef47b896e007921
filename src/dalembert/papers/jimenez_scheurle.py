"""Jimenez and Scheurle (2015): the schemes of the nonholonomic particle, their orders, and the constraints that they keep."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from ..integrators import LagrangeDAlembert
from ..mechanics import State, System
from ..models import exact_particle, nonholonomic_particle
from ..numerics import classify, slopes
from ..plotting.runs import draw_invariants
from ..plotting.studies import draw_lines, draw_slope
from ..plotting.style import COLOURS, DASHES, curve, sheet, styled
from ..simulation import Run
from .gallery import Data, Gallery, Paper, simulate_uninterrupted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


gallery = Gallery(
    Paper(
        "js",
        "jimenez-scheurle",
        "F. Jimenez and J. Scheurle, On the discretization of nonholonomic dynamics in R^n, J. Geom. Mech. 7, 2015.",
    )
)

POSITION, VELOCITY = np.array([0.3, 0.5, -0.2]), np.array([1.1, 0.7, 0.55])
COUNTS = (8, 16, 32, 64, 128, 256, 512)
SCHEMES = {
    "(81), β = 1": LagrangeDAlembert(node=1.0, nodes="velocity"),
    "β = 0": LagrangeDAlembert(node=0.0, nodes="velocity"),
    "(86), β = 1/2, redefined nodes": LagrangeDAlembert(node=0.5, nodes="velocity"),
    "β = 1/2, original nodes": LagrangeDAlembert(node=0.5),
    "(89), deformed, data on D_ε": LagrangeDAlembert(node=0.5, nodes="deformed"),
    "(89), deformed, data on D": LagrangeDAlembert(node=0.5, nodes="deformed"),
}
CLAIMED = {"(81), β = 1": 1, "β = 0": 1, "(86), β = 1/2, redefined nodes": 2, "(86) as printed": 2} | {
    "(89), deformed, data on D_ε": 1,
    "(89), deformed, data on D": 1,
}


def start(system: System, scheme: str, step: float) -> State:
    """The state on D, or for D_ε with the z-velocity of (88): v_z = y v_x - (ε/2) v_x v_y."""
    state = system.state(POSITION, VELOCITY)
    if not scheme.endswith("D_ε"):
        return state
    u, w = VELOCITY[:2]
    xi = jnp.asarray([u, w, POSITION[1] * u - step / 2 * u * w])
    return state._replace(xi=xi, momentum=xi, increment=xi)


def particle(scheme: str, steps: int, t_end: float = 1.0, potential: str = "free", save_every: int = 1) -> Run:
    system, step = nonholonomic_particle(potential), t_end / steps
    state = start(system, scheme, step)
    return simulate_uninterrupted(system, SCHEMES[scheme], state, step=step, steps=steps, save_every=save_every).check()


def as_printed(steps: int) -> np.ndarray:
    """(86) to the letter, to t = 1: (q, v) at the end."""
    h = 1.0 / steps
    (x, y, z), (u, w, v) = POSITION, VELOCITY
    for _ in range(steps):
        multiplier = u * w / (1 + (y + h * w) * (y + h / 2 * w))
        u, v = u - h * multiplier * (y + h / 2 * w), v + h * multiplier
        x, y, z = x + h * u, y + h * w, z + h * v
    return np.array([x, y, z, u, w, v])


# -- orders -------------------------------------------------------------------------------------------------------------------
@lru_cache
def errors() -> dict[str, np.ndarray]:
    """The largest error of (q, v) at t = 1, for each scheme and number of steps."""
    goal = np.concatenate(exact_particle(1.0, POSITION, VELOCITY))

    def error(scheme: str, steps: int) -> float:
        last = particle(scheme, steps, save_every=steps).last
        return float(np.abs(np.concatenate([last.g, last.xi]) - goal).max())

    found = {scheme: np.array([error(scheme, n) for n in COUNTS]) for scheme in SCHEMES}
    found["(86) as printed"] = np.array([np.abs(as_printed(n) - goal).max() for n in COUNTS])
    return found


def multiplier_errors() -> dict[str, np.ndarray]:
    """The largest error of λ over [0, 1], read at the time of the state and at that of its own node, t - β ε."""
    found: dict[str, list[float]] = {}
    for scheme in list(SCHEMES)[:3]:
        for n in COUNTS:
            run = particle(scheme, n)
            times, values = np.asarray(run.t)[1:], np.asarray(run.multipliers)[1:, 0]
            for stamp, t in (("state", times), ("node", times - SCHEMES[scheme].node / n)):
                q, v = exact_particle(t, POSITION, VELOCITY)
                gap = np.abs(values - v[:, 0] * v[:, 1] / (1 + q[:, 1] ** 2)).max()
                found.setdefault(f"{scheme}, time of the {stamp}", []).append(float(gap))
    return {name: np.array(values) for name, values in found.items()}


@styled
def draw_orders(data: Data) -> Figure:
    figure, axes = sheet(1, 2, size=(11, 4.8))
    names = [*SCHEMES, "(86) as printed"]
    draw_lines(axes[0], {name: (data["h"], data[name]) for name in names})
    draw_slope(axes[0], (0.02, 0.08), 2e-4, 1)
    draw_slope(axes[0], (0.02, 0.08), 2e-6, 2)
    axes[0].set_ylabel("largest error of (q, v) at t = 1")
    draw_lines(
        axes[1], {name[7:]: (data["h"], values) for name, values in data.arrays.items() if name.startswith("lambda ")}
    )
    draw_slope(axes[1], (0.02, 0.08), 2e-6, 2)
    axes[1].set_ylabel("largest error of λ")
    for panel, columns in zip(axes, (2, 1), strict=True):
        panel.set_xlabel("ε")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns)
    return figure


@gallery(
    "particle-orders",
    "Orders of the particle's schemes",
    draw=draw_orders,
    printed="""
    No figure: Propositions 6.1 to 6.3 claim (1,0) for (81) and for the deformed scheme (89), (2,0) for (86) with
    redefined nodes, where the second number is the order of the multiplier.
    """,
    differs="""
    The orders are measured at t = 1 from q = (0.3, 0.5, -0.2), v = (1.1, 0.7, 0.55). Printed (86) has x_{k+1} = x_k
    + ε v_{k+1} for x_k + (ε/2)(v_k + v_{k+1}) and is of order 1. With data on D instead of D_ε the first multiplier
    of (89) is half the right one: still order 1. The multiplier's "0" is a matter of the time at which it is read:
    at its own node t - β ε it is of order 2 for β = 1/2, and at the time of the state of order 1 (docs/errata.md).
    """,
)
def orders() -> Data:
    steps = 1.0 / np.array(COUNTS)
    states, multipliers = errors(), multiplier_errors()
    rows: list[tuple] = [
        (name, values[0], values[-1], float(slopes(steps, values)[-1]), CLAIMED.get(name))
        for name, values in states.items()
    ]
    rows += [
        (f"λ of {name}", v[0], v[-1], float(slopes(steps, v)[-1]), 0 if "state" in name else None)
        for name, v in multipliers.items()
    ]
    arrays = {"h": steps, **states, **{f"lambda {name}": values for name, values in multipliers.items()}}
    return Data(("scheme", "error at ε = 1/8", "at ε = 1/512", "measured order", "claimed"), rows, arrays)


# -- the deformed constraint and the energy ---------------------------------------------------------------------------------
EPSILON, END_TIME = 0.1, 60.0
FORMS = ("β = 1/2, original nodes", "(86), β = 1/2, redefined nodes", "(89), deformed, data on D_ε")


def residuals(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(v_z - y v_x, v_z - y v_x + (ε/2) v_x v_y) along a run."""
    y, (u, w, v) = np.asarray(run.g)[:, 1], np.asarray(run.xi).T
    return v - y * u, v - y * u + EPSILON / 2 * u * w


@styled
def draw_constraints(data: Data) -> Figure:
    figure, axes = sheet(2, 1, size=(7.2, 5.2), sharex=True, sharey=True)
    labels = ("D: |v_z - y v_x|", "D_ε: |v_z - y v_x + (ε/2) v_x v_y|")
    for panel, which, label in zip(axes, ("D", "D_eps"), labels, strict=True):
        for form, colour, dash in zip(FORMS, COLOURS, DASHES, strict=False):
            curve(panel, data["t"], data[f"{form}, {which}"], color=colour, linestyle=dash, label=form, linewidth=0.9)
        panel.set_ylabel(label)
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes[-1].set_xlabel("t")
    return figure


@gallery(
    "deformed-constraint",
    "Who keeps D and who keeps the deformed constraint",
    draw=draw_constraints,
    printed="""
    No figure: (87)-(89) say that (q_{k+1}, v_{k+1}) with the original nodes obeys v_z - y v_x + (ε/2) v_x v_y = 0
    (88) in place of the constraint; section 6.3 reports that in all cases the constraint was preserved up to small
    bounded oscillatory variations.
    """,
    differs="""
    Harmonic particle V = (x² + y²)/2, ε = 0.1. The redefined nodes, and the original nodes with the velocity that
    has the momentum p_k on D, keep D to round-off and not D_ε; the deformed form keeps D_ε to round-off and
    oscillates about D by O(ε).
    """,
)
def deformed_constraint() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple] = []
    for form in FORMS:
        run = particle(form, round(END_TIME / EPSILON), END_TIME, "harmonic")
        plain, deformed = residuals(run)
        arrays |= {"t": np.asarray(run.t), f"{form}, D": plain, f"{form}, D_eps": deformed}
        rows.append((form, float(np.abs(plain).max()), float(np.abs(deformed).max())))
    return Data(("form", "largest residual of D", "largest residual of D_ε"), rows, arrays)


NODES = ("β = 0", "(86), β = 1/2, redefined nodes", "(81), β = 1")


@styled
def draw_energy(data: Data) -> Figure:
    figure, axes = sheet(size=(7.0, 4.2))
    draw_invariants(axes, data["t"], {name: data[name] for name in NODES})
    axes.set_ylim(1e-8, 10)
    axes.set_xlabel("t")
    axes.set_ylabel("|E/E(0) - 1|")
    return figure


@gallery(
    "particle-energy",
    "Keeping D is not keeping the energy",
    draw=draw_energy,
    printed="""
    No figure: the paper presents the preservation of D as what makes these schemes good and leaves numerics to
    later work.
    """,
    differs="""
    Harmonic particle, ε = 0.1, t = 100, all three exactly on D. Only the symmetric scheme keeps its energy:
    D-preservation buys nothing (docs/errata.md).
    """,
)
def energy() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple] = []
    for name in NODES:
        run = particle(name, 1000, 100.0, "harmonic")
        total = np.asarray(run.energy())
        arrays |= {"t": np.asarray(run.t), name: total / total[0] - 1}
        kind = classify(run.t, arrays[name]).kind
        rows.append((name, float(arrays[name][-1]), float(np.abs(arrays[name]).max()), kind))
    return Data(("scheme", "E/E(0) - 1 at t = 100", "largest |E/E(0) - 1|", "drift"), rows, arrays)
