"""A system of one's own in twenty lines: a skate on an inclined rink, with its blade `a` behind its centre of mass."""

from typing import Annotated

import jax.numpy as jnp

import dalembert as da


def make(
    mass: Annotated[float, "kg"] = 1.0,
    inertia: Annotated[float, "kg m2"] = 0.5,
    a: Annotated[float, "m"] = 0.2,
    pull: Annotated[float, "N"] = 1.0,
):
    """Parameters come from [system] of the configuration; `pull` = m g sin(slope), x down the slope."""

    def lagrangian(t, g, xi, p):
        w, v1, v2 = xi
        x = g[0, 2] + p["a"] * g[0, 0]  # the centre of mass is `a` ahead of the blade
        return 0.5 * p["mass"] * (v1**2 + (v2 + p["a"] * w) ** 2) + 0.5 * p["inertia"] * w**2 + p["pull"] * x

    blade = lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]])  # v2 = 0
    parameters = {"mass": mass, "inertia": inertia, "a": a, "pull": pull}
    names = {
        "system": "Skate on a slope",
        "coordinates": ["heading [rad]", "x [m]", "y [m]"],
        "velocities": ["turn [rad s-1]", "speed [m s-1]", "slip [m s-1]"],
        "constraints": ["blade [N]"],
    }
    return da.System(da.SE2(), lagrangian, blade, parameters=parameters, names=names)
