"""A system of one's own in fifteen lines: a skate on an inclined rink, whose blade sits `a` behind its centre
of mass.
"""

import jax.numpy as jnp

import dalembert as da


def make(mass=1.0, inertia=0.5, a=0.2, pull=1.0):
    """Parameters come from [system] of the configuration; `pull` = m g sin(slope), x down the slope."""

    def lagrangian(t, g, xi, p):
        w, v1, v2 = xi
        x = g[0, 2] + p["a"] * g[0, 0]  # the centre of mass is `a` ahead of the blade
        return 0.5 * p["mass"] * (v1**2 + (v2 + p["a"] * w) ** 2) + 0.5 * p["inertia"] * w**2 + p["pull"] * x

    blade = lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]])  # v2 = 0
    parameters = {"mass": mass, "inertia": inertia, "a": a, "pull": pull}
    return da.System(da.SE2(), lagrangian, blade, parameters=parameters)
