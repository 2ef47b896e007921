"""Lie groups: vectors, rotations, rigid motions, matrix groups of one's own and products of them all; retractions."""

from .base import Group, MatrixGroup
from .coordinates import AlgebraAxis, euler_angles, quaternions
from .euclidean import Euclidean
from .product import Product, factors_named
from .retractions import Cayley, Exponential, Retraction
from .se import SE, SE2, SE3, Motions, SEn
from .so import SO, SO2, SO3, Rotations, SOn, unit_quaternion

__all__ = [
    "SE", "SE2", "SE3", "SO", "SO2", "SO3", "AlgebraAxis", "Cayley", "Euclidean", "Exponential", "Group", "MatrixGroup",
    "Motions", "Product", "Retraction", "Rotations", "SEn", "SOn", "euler_angles", "factors_named", "quaternions",
    "unit_quaternion",
]  # fmt: skip
