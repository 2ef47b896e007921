"""Retraction maps for nonholonomic systems on Lie groups (2026): the Suslov experiment as printed and corrected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..groups import Cayley, Exponential, Retraction
from ..integrators import CotangentLift, Integrator, Prediction, RetractionAdapted, StepInfo
from ..mechanics import InvariantSystem, State
from ..models import rigid_body, suslov
from ..numerics.types import Controls, Scalar
from ..plotting.style import COLOURS, DASHES, curve
from .gallery import Data, Gallery, simulate_uninterrupted

gallery = Gallery("rm")
INERTIA = (1.0, 10.0, 100.0)
GENERIC = ((3.0, 0.0, 1.0), (0.0, 4.0, 0.5), (1.0, 0.5, 5.0))
START = (1.0, 1.0)
STEP, STEPS, SAVE = 0.01, 180_000, 180
RETRACTIONS: dict[str, Retraction] = {"exponential": Exponential(), "Cayley": Cayley()}
ROWS = (("energy", "$|E/E(0) - 1|$"), ("constraint", r"$|\Omega_3|$"), ("group", "distance of $R$\nfrom SO(3)"))
READINGS = ("with the reaction", "free body")


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
        carry = Carry(state.t, state.g, restricted, Prediction.at(jnp.asarray(guess)))
        return carry, StepInfo.explicit(jnp.zeros(system.constraints))

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


def experiment(integrator: Integrator, system: InvariantSystem, start: Sequence[float]) -> dict[str, np.ndarray]:
    """The paper's run, 30 minutes with t = 0.01 from R = 1 and a momentum in d*, as what the figures show.

    The constraint is asked of the displacements, tau^-1(W)/h.
    """
    state = system.state(momentum=list(start))
    run = simulate_uninterrupted(system, integrator, state, step=STEP, steps=STEPS, save_every=SAVE)
    energy = np.asarray(run.energy())
    return {
        "energy": energy / energy[0] - 1,
        "constraint": np.abs(np.asarray(run.increment[:, 2])),
        "group": np.asarray(run.group_distance()),
        "momentum": np.asarray(run.momentum),
        "t": np.asarray(run.t) / 60,
    }


Start = tuple[InvariantSystem, Sequence[float]]


def tabulate(shown: Mapping[str, tuple[Integrator, Start]], others: Mapping[str, Integrator]) -> Data:
    """The runs `shown` in the figure, as a table and as arrays, and rows for the generic tensor by the `others`."""
    data = Data(("run", "largest |E/E(0) - 1|", "largest |Ω3|", "distance from SO(3)", "Π at the end"))
    generic = {f"generic tensor, {name}": (method, (suslov(GENERIC), (3.0, 2.0))) for name, method in others.items()}
    for name, (method, start) in {**shown, **generic}.items():
        found = experiment(method, *start)
        if name in shown:
            data.arrays.update({f"{name}, {measure}": values for measure, values in found.items() if measure != "t"})
            data.arrays["t"] = found["t"]
        end = "(" + ", ".join(f"{value:.6g}" for value in found["momentum"][-1]) + ")"
        worst = (float(np.abs(found[part]).max()) for part in ("energy", "constraint", "group"))
        data.rows.append((name, *worst, end))
    return data


def draw_panels(axes: Any, data: Data, columns: Sequence[str], rows: Sequence[tuple[str, str]] = ROWS) -> None:
    """A column for each reading, a row for each measure, a curve for each retraction; three minutes of a free body."""
    for column, panels in zip(columns, axes.T, strict=True):
        panels[0].set_title(column)
        for i, name in enumerate(RETRACTIONS):
            key = f"{column}, {name}"
            for panel, (measure, _) in zip(panels, rows, strict=False):
                curve(panel, data["t"], data[f"{key}, {measure}"], color=COLOURS[i], linestyle=DASHES[i], label=name)
            for part, values in enumerate(data[f"{key}, momentum"].T):
                style = {"color": COLOURS[i], "linestyle": DASHES[part], "label": rf"{name}, $\Pi_{part + 1}$"}
                panels[-1].plot(data["t"], values, **style)
        for panel in panels:
            panel.set_xlim(0, 30)
        panels[-1].set(xlim=(0, 3 if column == "free body" else 30), xlabel="time, minutes")
    for panel, (_, label) in zip(axes[:, 0], (*rows, ("", r"momentum $\Pi$")), strict=True):
        panel.set_ylabel(label)
    axes[0, -1].legend()
    axes[-1, 0].legend(ncols=2, fontsize=7)


ADAPTED: dict[str, Callable[[Retraction], Integrator]] = {
    "as printed": AsPrinted,
    "factor t mended": lambda tau: AsPrinted(tau, True),
    "corrected": lambda tau: RetractionAdapted(tau, 0.0),
}


draw_figure_1 = partial(draw_panels, columns=tuple(ADAPTED))
draw_figure_2 = partial(draw_panels, columns=READINGS, rows=ROWS[:2])


@gallery("figure-1", draw=draw_figure_1, size=(3.3 * 3 + 0.6, 1.8 * 4), nrows=4, ncols=3, sharey="row")
def adapted_retraction() -> Data:
    start = (suslov(INERTIA), START)
    shown = {f"{key}, {name}": (make(tau), start) for key, make in ADAPTED.items() for name, tau in RETRACTIONS.items()}
    nodes = [(name, tau, node) for name, tau in RETRACTIONS.items() for node in (0.0, 0.5)]
    return tabulate(shown, {f"corrected, {name}, s = {s:g}": RetractionAdapted(tau, s) for name, tau, s in nodes})


@gallery("figure-2", draw=draw_figure_2, size=(3.3 * 2 + 0.6, 1.8 * 3), nrows=3, ncols=2, sharey="row")
def unadapted_retraction() -> Data:
    methods = {name: CotangentLift(tau, 0.0) for name, tau in RETRACTIONS.items()}
    bodies: tuple[Start, Start] = (suslov(INERTIA), START), (rigid_body(INERTIA), (*START, 0.0))
    starts = dict(zip(READINGS, bodies, strict=True))
    shown = {f"{key}, {name}": (method, start) for key, start in starts.items() for name, method in methods.items()}
    return tabulate(shown, {f"with the reaction, {name}": method for name, method in methods.items()})
