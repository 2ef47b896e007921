"""The bodies of the figures; the paper prints none of their numbers but J = 1.5 of Figure 7.2."""

from __future__ import annotations

import numpy as np

from ...integrators import EulerPoincareSuslov
from ...invariant import InvariantSystem
from ...models.sleigh import chaplygin_sleigh
from ...models.suslov import suslov
from ..exhibit import Gallery, Paper

gallery = Gallery(
    Paper(
        "fz",
        "fedorov-zenkov",
        "Y. N. Fedorov and D. V. Zenkov, Discrete nonholonomic LL systems on Lie groups, Nonlinearity 18, 2005 (preprint 2004).",
    )
)
INERTIA = np.array([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
SCHEME = EulerPoincareSuslov("moser-veselov")
NUMBERS = "The paper does not print the numbers of its example"


def body() -> InvariantSystem:
    """An unbalanced body with e3 as normal and I12 != 0."""
    return suslov(INERTIA)


def sleigh_of(a: float, b: float) -> tuple[dict[str, float], InvariantSystem]:
    """The parameters of a sleigh with m = J = 1, and the sleigh."""
    parameters = {"mass": 1.0, "inertia": 1.0, "a": a, "b": b}
    return parameters, chaplygin_sleigh(**parameters)
