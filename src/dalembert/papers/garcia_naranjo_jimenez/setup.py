"""The two bodies, the two schemes and the plane of the continuous momenta."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...integrators import EulerPoincareSuslov
from ...invariant import InvariantSystem
from ...models.suslov import suslov
from ..exhibit import Gallery, Paper

gallery = Gallery(
    Paper(
        "gnj",
        "garcia-naranjo-jimenez",
        "L. C. Garcia-Naranjo and F. Jimenez, The geometric discretisation of the Suslov problem: a case study of consistency for "
        "nonholonomic integrators, 2016.",
    )
)

SCHEMES = {"Moser-Veselov": EulerPoincareSuslov("moser-veselov"), "Cayley": EulerPoincareSuslov("retraction")}
"""l_d^(1), not consistent, and l_d^(infinity), consistent."""


@dataclass(frozen=True)
class Case:
    """A body with e3 as normal, its initial momentum, and the two steps of the figure."""

    inertia: tuple[tuple[float, float, float], ...]
    momentum: tuple[float, float]
    steps: tuple[float, float]

    @property
    def system(self) -> InvariantSystem:
        return suslov(self.inertia)

    @property
    def normal(self) -> np.ndarray:
        """The unit normal of the plane d* = I(d): (I22 I13, I11 I23, -I11 I22), (13)."""
        I = np.asarray(self.inertia)
        n = np.array([I[1, 1] * I[0, 2], I[0, 0] * I[1, 2], -I[0, 0] * I[1, 1]])
        return n / np.linalg.norm(n)


GENERIC = Case(((3.0, 0.0, 1.0), (0.0, 4.0, 0.5), (1.0, 0.5, 5.0)), (41.07400078, -99.38251558), (0.015, 0.030))
SPECIAL = Case(((3.0, 0.0, 0.0), (0.0, 3.0, 0.5), (0.0, 0.5, 5.0)), (179.9836568, 2.4255507998), (0.007, 0.014))
