"""Ready systems: parameters, equations, sources, and exact solutions where they exist."""

from .particles import exact_particle, nonholonomic_particle
from .registry import MODELS, Model
from .rigid_body import rigid_body, rigid_body_n
from .sleigh import (
    chaplygin_sleigh,
    exact_disk,
    exact_knife_edge,
    exact_sleigh,
    knife_edge,
    total_turning,
    vertical_disk,
)
from .suslov import exact_momentum, suslov, suslov_n

__all__ = [
    "MODELS",
    "Model",
    "chaplygin_sleigh",
    "exact_disk",
    "exact_knife_edge",
    "exact_momentum",
    "exact_particle",
    "exact_sleigh",
    "knife_edge",
    "nonholonomic_particle",
    "rigid_body",
    "rigid_body_n",
    "suslov",
    "suslov_n",
    "total_turning",
    "vertical_disk",
]
