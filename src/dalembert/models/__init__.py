"""Ready systems: parameters, equations, sources, exact solutions where they exist. Notation: `dalembert.mechanics`.

Each model is registered where it is defined, by `register`; `MODELS` has them by name.
"""

from .bodies import (
    chaplygin_sphere,
    conserved_momentum,
    exact,
    exact_momentum,
    rigid_body,
    rigid_body_n,
    suslov,
    suslov_n,
    veselova,
)
from .particles import (
    LAGRANGIANS,
    chaotic_quartic,
    contact_oscillator,
    exact_particle,
    nonholonomic_particle,
    pendulum_chain,
    pendulum_cvt,
    quartic_state,
)
from .registry import MODELS, Model, register
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
    hinged_sleighs,
    inclined_disk,
    knife_edge,
    planar_body,
    skate_on_ellipsoid,
    sleigh_n,
    total_turning,
    vertical_disk,
)
from .vehicles import (
    car,
    car_on_path,
    exact_coasting,
    roller_racer,
    snakeboard,
    snakeboard_gait,
    snakeboard_on_path,
    unicycle,
    unicycle_on_path,
)

_ORDER = """
    rigid-body rigid-body-n suslov suslov-n chaplygin-sleigh nonholonomic-particle contact-oscillator chaotic-quartic
    pendulum-cvt vertical-disk inclined-disk rolling-disk rolling-ball ball-on-table chaplygin-ball rattleback unicycle
    car snakeboard roller-racer knife-edge sleigh-n veselova chaplygin-sphere pendulum-chain skate-on-ellipsoid
    hinged-sleighs
"""
for _name in _ORDER.split():  # lists, pages and the studio show the models in this order, and others after them
    MODELS[_name] = MODELS.pop(_name)

__all__ = [
    "LAGRANGIANS", "MODELS", "Model", "ball_on_table", "car", "car_on_path", "chaotic_quartic", "chaplygin_ball",
    "chaplygin_sleigh", "chaplygin_sphere", "circle", "conserved_momentum", "contact_momentum", "contact_oscillator",
    "ellipsoid", "exact", "exact_ball", "exact_coasting", "exact_disk", "exact_inclined_disk", "exact_knife_edge",
    "exact_momentum", "exact_particle", "exact_sleigh", "hinged_sleighs", "inclined_disk", "knife_edge",
    "nonholonomic_particle", "pendulum_chain", "pendulum_cvt", "planar_body", "quartic_state", "rattleback", "register",
    "rigid_body", "rigid_body_n", "roller_racer", "rolling_ball", "rolling_body", "rolling_disk", "skate_on_ellipsoid",
    "sleigh_n", "snakeboard", "snakeboard_gait", "snakeboard_on_path", "sphere", "suslov", "suslov_n", "total_turning",
    "unicycle", "unicycle_on_path", "vertical_disk", "veselova",
]  # fmt: skip
