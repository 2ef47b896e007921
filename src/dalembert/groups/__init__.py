"""Lie groups: vectors, rotations, rigid motions, matrix groups of one's own and products of them all; retractions."""

from typing import Any

from .base import Group, MatrixGroup
from .coordinates import AlgebraAxis, euler_angles, quaternions
from .euclidean import Euclidean
from .product import Product, factors_named
from .retractions import Cayley, Exponential, Retraction
from .se import SE, SE2, SE3, Motions, SEn
from .so import SO, SO2, SO3, Rotations, SOn, unit_quaternion


def axes(group: Group) -> list[AlgebraAxis]:
    return group.axes()


def configuration(group: Group, given: Any) -> Any:
    return group.configuration(given)


def described(group: Group, g: Any, angles: Any = ()) -> Any:
    return group.describe(g, angles)


def along(trajectory: Any, kind: str, convention: str = "ZXZ") -> Any:
    return trajectory.system.group.along(kind, trajectory.g, trajectory.angles, convention)


__all__ = ["SE", "SE2", "SE3", "SO", "SO2", "SO3", "AlgebraAxis", "Cayley", "Euclidean", "Exponential", "Group", "MatrixGroup",
           "Motions", "Product", "Retraction", "Rotations", "SEn", "SOn", "along", "axes", "configuration", "described",
           "euler_angles", "factors_named", "quaternions", "unit_quaternion"]  # fmt: skip
