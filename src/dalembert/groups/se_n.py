"""Rigid motions in any dimension."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import Array

from ..errors import InvalidInput
from .matrix_exponential import exponential
from .motions import Motions
from .se2 import SE2
from .se3 import SE3
from .so_n import SOn


@jax.tree_util.register_static
@dataclass(frozen=True)
class SEn(Motions):
    """Matrices [[R, x], [0, 1]] of size n + 1; algebra coordinates (those of so(n), v); n >= 4."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 4:
            raise InvalidInput(f"SEn needs n >= 4, but n = {self.n} was given: use SE2() or SE3()")

    @property
    def rotations(self) -> SOn:
        return SOn(self.n)

    def exp(self, xi: Array) -> Array:
        omega, _ = self.split(xi)
        rotation, translation = self.parts(exponential(self.hat(xi), omega @ omega))
        return self.motion(rotation, translation)


def SE(n: int) -> Motions:
    """SE(n), as `SE2` or `SE3` where closed forms exist."""
    special: dict[int, Motions] = {2: SE2(), 3: SE3()}
    return special[n] if n in special else SEn(n)
