"""Retraction maps for nonholonomic systems on Lie groups (2026): the Suslov experiment as printed and corrected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..groups import Cayley, Exponential, Retraction
from ..integrators import CotangentLift, Integrator, Prediction, RetractionAdapted, StepInfo
from ..mechanics import InvariantSystem, State
from ..models import rigid_body, suslov
from ..numerics.types import Controls, Scalar
from ..plotting.style import COLOURS, DASHES, FLOOR, curve, sheet
from ..simulation import Run
from .gallery import Data, Gallery, Paper, simulate_uninterrupted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CITATION = (
    "Retraction maps for nonholonomic systems on Lie groups, 2026 "
    "(constraint-adapted integrators for the Suslov problem)."
)
gallery = Gallery(Paper("rm", "retraction-maps", CITATION))
INERTIA = (1.0, 10.0, 100.0)
GENERIC = ((3.0, 0.0, 1.0), (0.0, 4.0, 0.5), (1.0, 0.5, 5.0))
START = (1.0, 1.0)
STEP, STEPS, SAVE = 0.01, 180_000, 180
RETRACTIONS: dict[str, Retraction] = {"exponential": Exponential(), "Cayley": Cayley()}


class Carry(NamedTuple):
    t: Array
    g: Any
    momentum: Array
    prediction: Prediction


@dataclass(frozen=True)
class AsPrinted(Integrator):
    """(18) and (19) of retraction-maps to the letter, with x = t Omega in d.

    c d^L tau_{cx}* Pi = r I x on d, R' = R tau(c x), Pi' = tau(c x) Pi on d. c = 2 for the paper's Cayley map, whose
    derivative at 0 is 2. The print has r = 1 (t I Omega on the right); r = 1/t, `mend_factor`, is the reading in which
    at least Omega = Pi/I for small steps.
    """

    retraction: Retraction = Exponential()
    mend_factor: bool = False
    name = "retraction-maps-as-printed"

    def start(self, system: InvariantSystem, state: State, h: Scalar, u: Controls = None) -> tuple[Carry, StepInfo]:
        restricted = system.subspace.T @ state.momentum
        guess = (h if self.mend_factor else 1.0) * system.subspace.T @ state.xi
        return Carry(state.t, state.g, restricted, Prediction.at(jnp.asarray(guess))), StepInfo.explicit(
            jnp.zeros(system.constraints)
        )

    def step(self, system: InvariantSystem, carry: Carry, h: Scalar, u: Controls = None) -> tuple[Carry, StepInfo]:
        group, basis = system.group, system.subspace
        c = 2.0 if isinstance(self.retraction, Cayley) else 1.0
        scale = 1.0 / h if self.mend_factor else 1.0
        momentum = basis @ carry.momentum

        def mismatch(x: Array) -> Array:
            moved = c * self.retraction.left_star(group, c * basis @ x, momentum)
            return basis.T @ (scale * (system.inertia @ basis @ x) - moved)

        root = carry.prediction.solve(mismatch)
        W = self.retraction.tau(group, c * basis @ root.x)
        new = Carry(carry.t + h, carry.g @ W, basis.T @ (W @ momentum), carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, jnp.zeros(system.constraints))

    def observe(self, system: InvariantSystem, carry: Carry, h: Scalar) -> State:
        xi = system.velocity(carry.t, carry.g, system.subspace @ carry.momentum)
        return State(carry.t, carry.g, xi, carry.momentum, system.subspace @ carry.prediction.x / h)


def experiment(integrator: Integrator, system: InvariantSystem | None = None, start: Sequence[float] = START) -> Run:
    """The paper's run: 30 minutes with t = 0.01 from R = 1 and a momentum in d*."""
    system = suslov(INERTIA) if system is None else system
    return simulate_uninterrupted(
        system, integrator, system.state(momentum=list(start)), step=STEP, steps=STEPS, save_every=SAVE
    )


@lru_cache
def adapted() -> dict[str, dict[str, Run]]:
    """The three readings of the adapted scheme, each with both retractions."""
    return {
        "as printed": {name: experiment(AsPrinted(tau)) for name, tau in RETRACTIONS.items()},
        "factor t mended": {name: experiment(AsPrinted(tau, True)) for name, tau in RETRACTIONS.items()},
        "corrected": {name: experiment(RetractionAdapted(tau, 0.0)) for name, tau in RETRACTIONS.items()},
    }


def _measures(run: Run) -> dict[str, np.ndarray]:
    """What the figures show; the constraint is asked of the displacements, tau^-1(W)/h."""
    energy = np.asarray(run.energy())
    return {
        "energy": energy / energy[0] - 1,
        "constraint": np.abs(np.asarray(run.increment[:, 2])),
        "group": np.asarray(run.group_distance()),
        "momentum": np.asarray(run.momentum),
        "t": np.asarray(run.t) / 60,
    }


ROWS = (("energy", "|E/E(0) - 1|"), ("constraint", "|Ω₃|"), ("group", "distance of R\nfrom SO(3)"))


def _panels(
    data: Data,
    columns: tuple[str, ...],
    rows: tuple[tuple[str, str], ...] = ROWS,
    minutes: dict[str, float] | None = None,
) -> Figure:
    """A column for each reading, a row for each measure, a curve for each retraction; momenta up to `minutes`."""
    count = len(rows) + 1
    figure, axes = sheet(count, len(columns), size=(3.3 * len(columns) + 0.6, 1.8 * count), sharey="row", squeeze=False)
    for column, panels in zip(columns, axes.T, strict=True):
        panels[0].set_title(column)
        for i, name in enumerate(RETRACTIONS):
            key = f"{column}, {name}"
            for panel, (measure, _) in zip(panels, rows, strict=False):
                curve(panel, data["t"], data[f"{key}, {measure}"], color=COLOURS[i], linestyle=DASHES[i], label=name)
            for part, values in enumerate(data[f"{key}, momentum"].T):
                panels[-1].plot(
                    data["t"], values, color=COLOURS[i], linestyle=DASHES[part], label=f"{name}, Π{'₁₂₃'[part]}"
                )
        for panel in panels:
            panel.set_xlim(0, 30)
        panels[-1].set_xlim(0, (minutes or {}).get(column, 30))
        panels[-1].set_xlabel("time, minutes")
    for panel, (_, label) in zip(axes[:, 0], (*rows, ("", "momentum Π")), strict=True):
        panel.set_ylabel(label)
    axes[0, -1].legend()
    axes[-1, 0].legend(ncols=2, fontsize=7)
    if np.max([data[f"{column}, {name}, constraint"] for column in columns for name in RETRACTIONS]) == 0:
        for panel in axes[1]:
            panel.set_ylim(FLOOR / 10, 1e-2)
            panel.text(0.5, 0.25, "exactly 0 (drawn at 1e-17)", transform=panel.transAxes, ha="center", fontsize=8)
    return figure


def draw_adapted(data: Data) -> Figure:
    return _panels(data, ("as printed", "factor t mended", "corrected"))


@gallery(
    "figure-1",
    "The constraint-adapted integrators, 30 minutes",
    draw=draw_adapted,
    printed="""The exponential and the Cayley adapted integrators for I = diag(1, 10, 100), Π(0) = (1, 1, 0), t =
    0.01 s, run for 30 minutes: they satisfy the constraint, remain on the group and show a "stabilised energy
    error".""",
    differs="""With a diagonal inertia tensor the constrained momentum is constant, so a right scheme has no energy
    error at all: see the column "corrected". The printed schemes (18), (19) carry t I Ω for I Ω (so that a step turns
    by Π/I, whatever t is), the printed matrix acts on the wrong momentum, Π is transported by W instead of its
    transpose, and the printed Cayley map has derivative 2 at 0. To the letter the momentum slides to a principal axis
    within a few steps; with the factor t mended, as the authors' program must have had it, within minutes: the error of
    the energy "stabilises" because the motion has died (docs/errata.md). The telling test is the generic tensor of
    garcia-naranjo-jimenez, which the last rows of the table have.""",
)
def constraint_adapted() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple[object, ...]] = []
    for reading, runs in adapted().items():
        for name, run in runs.items():
            found = _measures(run)
            arrays |= {f"{reading}, {name}, {measure}": values for measure, values in found.items() if measure != "t"}
            arrays["t"] = found["t"]
            rows.append((f"{reading}, {name}", *_extremes(found)))
    for name, tau in RETRACTIONS.items():
        for node in (0.0, 0.5):
            found = _measures(experiment(RetractionAdapted(tau, node), suslov(GENERIC), (3.0, 2.0)))
            rows.append((f"generic tensor, corrected, {name}, s = {node:g}", *_extremes(found)))
    return Data(("run", "largest |E/E(0) - 1|", "largest |Ω3|", "distance from SO(3)", "Π at the end"), rows, arrays)


def _extremes(found: dict[str, np.ndarray]) -> tuple[object, ...]:
    end = "(" + ", ".join(f"{value:.6g}" for value in found["momentum"][-1]) + ")"
    return *(float(np.abs(found[name]).max()) for name in ("energy", "constraint", "group")), end


READINGS = ("with the reaction", "free body")


def draw_unadapted(data: Data) -> Figure:
    return _panels(data, READINGS, ROWS[:2], {"free body": 3.0})


@gallery(
    "figure-2",
    "The unadapted integrator (10) leaves the constraint",
    draw=draw_unadapted,
    printed="""The unadapted integrator (10) for the same problem: it clearly fails to preserve the constraint.""",
    differs="""The paper does not say which vector field on all of g* it means. Two readings are shown: that of the
    constrained motion with its reaction, μ' = ad*_ξ μ + λ e3, and that of the free body. With the reaction the nodes
    stay on the constraint but the displacements do not (Ω3 of order t), and the energy drifts by 9 %; for the free
    body, where the integrator is symplectic, the energy stays and the constraint is gone altogether. Both bear out the
    paper's sentence.""",
)
def unadapted() -> Data:
    arrays: dict[str, np.ndarray] = {}
    rows: list[tuple[object, ...]] = []
    bodies = dict(zip(READINGS, ((suslov(INERTIA), START), (rigid_body(INERTIA), (*START, 0.0))), strict=True))
    for reading, (system, start) in bodies.items():
        for name, tau in RETRACTIONS.items():
            found = _measures(experiment(CotangentLift(tau, 0.0), system, start))
            arrays |= {f"{reading}, {name}, {measure}": values for measure, values in found.items() if measure != "t"}
            arrays["t"] = found["t"]
            rows.append((f"{reading}, {name}", *_extremes(found)))
    for name, tau in RETRACTIONS.items():
        found = _measures(experiment(CotangentLift(tau, 0.0), suslov(GENERIC), (3.0, 2.0)))
        rows.append((f"generic tensor, with the reaction, {name}", *_extremes(found)))
    return Data(("run", "largest |E/E(0) - 1|", "largest |Ω3|", "distance from SO(3)", "Π at the end"), rows, arrays)
