"""Lie groups: vectors, rotations, rigid motions, matrix groups of one's own and products of them all; retractions."""

import re
from collections.abc import Callable

from .base import Cayley, Euclidean, Exponential, Group, MatrixGroup, Product, Retraction, join_names
from .coordinates import AlgebraAxis, euler_angles, quaternions
from .se import SE, SE2, SE3, Motions, SEn
from .so import SO, SO2, SO3, Rotations, SOn, unit_quaternion

__all__ = [
    "SE", "SE2", "SE3", "SO", "SO2", "SO3", "AlgebraAxis", "Cayley", "Euclidean", "Exponential", "Group", "MatrixGroup",
    "Motions", "Product", "Retraction", "Rotations", "SEn", "SOn", "euler_angles", "factors_named", "join_names",
    "quaternions", "unit_quaternion",
]  # fmt: skip


def factors_named(name: str) -> tuple[Group | None, ...]:
    """The factors of the group that str() calls `name`, as a data file does; None for one that is not dalembert's."""
    found = [re.fullmatch(r"(SO\(|SE\(|R\^)([1-9][0-9]*)\)?", factor) for factor in name.split(" x ")]
    makers: dict[str, Callable[[int], Group]] = {"SO(": SO, "SE(": SE, "R^": Euclidean}
    return tuple(makers[match[1]](int(match[2])) if match else None for match in found)
