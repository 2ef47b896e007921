"""Lie groups: vectors, rotations, rigid motions and their products; retractions; coordinates and their names."""

from .base import Group
from .coordinates import along, axes, configuration, described, quaternions
from .euclidean import Euclidean
from .product import Product
from .retractions import Cayley, Exponential, Retraction
from .se import SE, SE2, SE3, Motions, SEn
from .so import SO, SO2, SO3, Rotations, SOn, unit_quaternion

__all__ = [
    "SE",
    "SE2",
    "SE3",
    "SO",
    "SO2",
    "SO3",
    "Cayley",
    "Euclidean",
    "Exponential",
    "Group",
    "Motions",
    "Product",
    "Retraction",
    "Rotations",
    "SEn",
    "SOn",
    "along",
    "axes",
    "configuration",
    "described",
    "quaternions",
    "unit_quaternion",
]
