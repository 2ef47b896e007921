"""Ready systems: parameters, equations, sources, and exact solutions where they exist."""

from .holonomic import hinged_sleighs, pendulum_chain, skate_on_ellipsoid
from .lr import chaplygin_sphere, conserved_momentum, veselova
from .oscillators import chaotic_quartic, contact_oscillator, pendulum_cvt, quartic_state
from .particles import exact_particle, nonholonomic_particle
from .registry import MODELS, Model
from .rigid_body import rigid_body, rigid_body_n
from .rolling import (
    ball_on_table,
    chaplygin_ball,
    circle,
    contact_momentum,
    ellipsoid,
    exact_ball,
    rattleback,
    rolling_ball,
    rolling_body,
    rolling_disk,
    sphere,
)
from .sleigh import (
    chaplygin_sleigh,
    exact_disk,
    exact_inclined_disk,
    exact_knife_edge,
    exact_sleigh,
    inclined_disk,
    knife_edge,
    total_turning,
    vertical_disk,
)
from .sleigh_n import planar_body, sleigh_n
from .steering import car_on_path, snakeboard_gait, snakeboard_on_path, unicycle_on_path
from .suslov import exact_momentum, suslov, suslov_n
from .wheeled import car, exact_coasting, roller_racer, snakeboard, unicycle

__all__ = [
    "MODELS",
    "Model",
    "ball_on_table",
    "car",
    "car_on_path",
    "chaotic_quartic",
    "chaplygin_ball",
    "chaplygin_sleigh",
    "chaplygin_sphere",
    "circle",
    "conserved_momentum",
    "contact_momentum",
    "contact_oscillator",
    "ellipsoid",
    "exact_ball",
    "exact_coasting",
    "exact_disk",
    "exact_inclined_disk",
    "exact_knife_edge",
    "exact_momentum",
    "exact_particle",
    "exact_sleigh",
    "hinged_sleighs",
    "inclined_disk",
    "knife_edge",
    "nonholonomic_particle",
    "pendulum_chain",
    "pendulum_cvt",
    "planar_body",
    "quartic_state",
    "rattleback",
    "rigid_body",
    "rigid_body_n",
    "roller_racer",
    "rolling_ball",
    "rolling_body",
    "rolling_disk",
    "skate_on_ellipsoid",
    "sleigh_n",
    "snakeboard",
    "snakeboard_gait",
    "snakeboard_on_path",
    "sphere",
    "suslov",
    "suslov_n",
    "total_turning",
    "unicycle",
    "unicycle_on_path",
    "vertical_disk",
    "veselova",
]
