"""McLachlan and Zanna (2003): the discrete Moser-Veselov algorithm for the free rigid body, of order 2, 4 and 6."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ...integrators import DiscreteMoserVeselov, ImplicitMidpoint, Integrator, LiePoissonSplitting
from ...invariant import InvariantSystem
from ...models.rigid_body import exact, rigid_body
from ..exhibit import Gallery, Paper
from ..running import simulate

if TYPE_CHECKING:
    pass

gallery = Gallery(
    Paper(
        "mz",
        "mclachlan-zanna",
        "R. I. McLachlan and A. Zanna, The discrete Moser-Veselov algorithm for the free rigid body, revisited, "
        "Reports in Informatics 255, Bergen 2003 (Found. Comput. Math. 5, 2005).",
    )
)

MASS = np.array([0.92181297074480, 0.73820724581067, 0.17626614449462])
"""J of the running example, unrounded: the inputs that give the paper's own numbers."""
START = np.array([0.41027020699095, 0.89364953091353, 0.05789130478427])
START = START / np.linalg.norm(START)
INERTIA = MASS.sum() - MASS
END = 100.0
METHODS: dict[str, Integrator] = {
    "LP2": LiePoissonSplitting(),
    "IMR": ImplicitMidpoint(),
    "DMV": DiscreteMoserVeselov(2, "scaled"),
    "DMV4": DiscreteMoserVeselov(4, "scaled"),
    "DMV6": DiscreteMoserVeselov(6, "scaled"),
}
STEPS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.8, 1.0, 1.2, 1.5, 2.2, 2.5, 4.0)
INPUTS = (
    "The printed inputs are rounded, and m0_3 = 0.0577 is a misprint for 0.0587; the unrounded inputs used here reproduce Table 4 "
    "(docs/errata.md)."
)


def body() -> InvariantSystem:
    return rigid_body(INERTIA)


def momenta(method: str, step: float, steps: int) -> np.ndarray:
    """m_0, m_1, ... of a method, (k, 3); fewer than steps + 1 where it fails."""
    system = body()
    run = simulate(system, METHODS[method], system.state(momentum=START), step=step, steps=steps)
    return np.asarray(run.momentum) if run.failed_at != -1 else START[None]


def error(method: str, step: float) -> float:
    """|m_n - m(100)| with n = floor(100/h), as Table 4 has it; NaN where the method fails."""
    steps = int(END / step + 1e-9)
    found = momenta(method, step, steps)
    return float(np.linalg.norm(found[-1] - exact(INERTIA, START, END).momentum)) if len(found) > steps else np.nan


@lru_cache
def errors() -> dict[str, list[float]]:
    """The errors of all methods at all steps of Figure 7.5."""
    return {method: [error(method, h) for h in STEPS] for method in METHODS}


def energy(m: np.ndarray) -> np.ndarray:
    """H = sum m_i^2/I_i, (3.1)."""
    return np.sum(m**2 / INERTIA, axis=-1)
