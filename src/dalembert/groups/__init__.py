"""Lie groups: vectors, rotations, rigid motions and their products."""

from .base import Group
from .euclidean import Euclidean
from .product import Product
from .se2 import SE2
from .se3 import SE3
from .se_n import SE, SEn
from .so2 import SO2
from .so3 import SO3
from .so_n import SO, SOn

__all__ = ["SE", "SE2", "SE3", "SO", "SO2", "SO3", "Euclidean", "Group", "Product", "SEn", "SOn"]
