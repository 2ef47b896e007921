"""Systems in more coordinates than they have freedom, with holonomic constraints phi(g) = 0.

Some have nonholonomic constraints as well. Each has a formulation in fewer coordinates that the tests compare it with.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import SE2, SE3, Euclidean
from ..mechanics import Input, System, symmetric
from ..numerics import array, finite, is_traced, not_negative, positive
from ..numerics.types import Array, Scalar
from .registry import MOMENTS, Numbers, Real, Values, register

Pair = tuple[Array, Array]  # an element of SE(2) x SE(2)


@register(
    "pendulum-chain",
    title="Chain of pendulums",
    example={"masses": [1.0, 0.6], "lengths": [1.0, 0.8]},
    initial={"configuration": [0.6, -0.8, 1.4, -0.8], "velocity": [0.8, 0.6, 0.8, 1.4]},
    step=0.02,
    why="Rods hold the masses at fixed distances: a holonomic constraint, in Cartesian coordinates. Two pendulums are "
    "chaotic already; watch whether the rods keep their length.",
)
def pendulum_chain(
    masses: Numbers = (1.0, 1.0), lengths: Numbers = (1.0, 1.0), gravity: Real = 9.81, dimension: int = 2
) -> System:
    """Masses on rods, one hung from the other, in Cartesian coordinates: in a plane (y up) or in space (z up), on R^n.

    L = sum m |x_i'|^2/2 - m g (height of x_i), phi_i = (|x_i - x_{i-1}|^2/l_i - l_i)/2 with x_0 = 0: the multipliers
    are the tensions of the rods, negative when pulled. `dimension` is 2 or 3. One mass in space is the spherical
    pendulum, two in the plane are the double pendulum (Hairer, Lubich, Wanner, VII.1). Configuration: (x_1, y_1, x_2,
    y_2, ..).
    """
    if type(dimension) is not int or dimension not in (2, 3):
        raise InvalidInput(f"dimension is {dimension!r}; allowed: 2 (in a plane) or 3 (in space)")
    parameters = {
        "masses": _several("masses", masses),
        "lengths": _several("lengths", lengths),
        "gravity": not_negative("gravity", gravity),
    }
    count = parameters["masses"].shape[0]
    if parameters["lengths"].shape != (count,):
        raise InvalidInput(f"there are {count} masses and {parameters['lengths'].shape[0]} lengths; allowed: as many")
    return System(Euclidean(int(dimension) * count), _chain_lagrangian, parameters=parameters, holonomic=_chain_rods)


@register(
    "skate-on-ellipsoid",
    title="Skate on an ellipsoid",
    example={"axes": [1.5, 1.2, 1.0], "inertia": [0.1, 0.2, 0.3]},
    initial={
        "configuration": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]],
        "velocity": [0.0, 0.8 / 2.25, 1.5, 0.8, 0.0, 0.0],
    },
    step=0.02,
    why="A skate glides on a curved surface, along its blade and never across. The surface is a holonomic constraint, "
    "the blade a nonholonomic one.",
    meaning={"inertia": MOMENTS},
)
def skate_on_ellipsoid(
    axes: Numbers = (1.0, 1.0, 1.0), mass: Real = 1.0, inertia: Numbers = (0.1, 0.2, 0.3), gravity: Real = 9.81
) -> System:
    """A skate on an ellipsoid: its blade, along e1 of the body, cannot slip along e2; e3 is normal to the surface.

    L = [<I w, w> + m |v|^2]/2 - m g z on SE(3), algebra (w, v); v2 = 0 beside phi = ((<x, n> - 1)/2, <R e1, n>, <R e2,
    n>), n = x/axes^2 for the semi-axes `axes`, with the centre of mass in the contact. On the sphere of radius r it is
    Suslov's problem for I + m r^2 (1, 1, 0), normal e1 and weight m g r e3. `inertia`: three moments or a matrix.
    """
    parameters = {
        "axes": _several("axes", axes, 3),
        "mass": positive("mass", mass),
        "inertia": symmetric(inertia, 3, "inertia"),
        "gravity": finite("gravity", gravity),
    }
    return System(SE3(), _skate_lagrangian, _skate_blade, parameters=parameters, holonomic=_skate_contact)


@register(
    "hinged-sleighs",
    title="Hinged sleighs",
    example={"front": 0.5, "arm": 0.3},
    initial={
        "configuration": [[[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 0, 0.8], [0, 1, 0], [0, 0, 1]]],
        "velocity": [-0.375, 0.6, 0.0, 0.625, 0.6, 0.0],
    },
    why="Two sleighs, each on its blade, joined by a hinge: when one turns, the blades together leave one way to go. "
    "The hinge must not come apart.",
    meaning={"front": "from the first blade to the hinge", "arm": "from the hinge to the second blade"},
)
def hinged_sleighs(
    mass: Real = 1.0,
    inertia: Real = 0.3,
    rider: Real = 0.2,
    rider_inertia: Real = 0.05,
    front: Real = 0.5,
    arm: Real = 0.3,
) -> System:
    """Two sleighs with a blade each, hinged: the roller racer with both bodies in full, or a car with a trailer.

    The hinge is `front` ahead of the first blade, the second blade `arm` beyond it (either sign), each body with its
    mass on its blade, on SE(2) x SE(2): L = [m |v|^2 + J w^2 + m2 |V|^2 + J2 W^2]/2, v2 = V2 = 0, and phi = x + R
    (front, 0) - X + S (arm, 0) (Krishnaprasad-Tsakiris 2001; `roller_racer` is the same in SE(2) x SO(2)). Control: the
    torque in the hinge (N m) on the second body.
    """
    sizes = {"mass": mass, "inertia": inertia, "rider": rider, "rider_inertia": rider_inertia}
    parameters = {name: positive(name, value) for name, value in sizes.items()}
    parameters |= {"front": finite("front", front), "arm": finite("arm", arm)}
    return System(
        SE2() * SE2(),
        _sleighs_lagrangian,
        _sleighs_blades,
        parameters=parameters,
        force=_hinge_torque,
        holonomic=_hinge,
        inputs=(Input("hinge torque", "N m"),),
    )


def _points(x: Array, p: Values) -> Array:
    """The masses' places or velocities, one row each."""
    return x.reshape(p["masses"].shape[0], -1)


def _chain_lagrangian(t: Scalar, q: Array, v: Array, p: Values) -> Array:
    kinetic = 0.5 * p["masses"] @ jnp.sum(_points(v, p) ** 2, axis=1)
    return kinetic - p["gravity"] * p["masses"] @ _points(q, p)[:, -1]


def _chain_rods(t: Scalar, q: Array, p: Values) -> Array:
    places = _points(q, p)
    rods = places - jnp.concatenate([jnp.zeros_like(places[:1]), places[:-1]])
    return 0.5 * (jnp.sum(rods**2, axis=1) / p["lengths"] - p["lengths"])


def _skate_lagrangian(t: Scalar, g: Array, xi: Array, p: Values) -> Array:
    kinetic = 0.5 * (xi[:3] @ p["inertia"] @ xi[:3] + p["mass"] * xi[3:] @ xi[3:])
    return kinetic - p["mass"] * p["gravity"] * g[2, 3]


def _skate_blade(t: Scalar, g: Array, p: Values) -> Array:
    return jnp.array([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]])


def _skate_contact(t: Scalar, g: Array, p: Values) -> Array:
    place = g[:3, 3]
    normal = place / p["axes"] ** 2
    return jnp.concatenate([0.5 * (place @ normal - 1.0)[None], (normal @ g[:3, :3])[:2]])


def _sleighs_lagrangian(t: Scalar, g: Pair, xi: Array, p: Values) -> Array:
    first, second = xi[:3], xi[3:]
    moving = p["mass"] * first[1:] @ first[1:] + p["rider"] * second[1:] @ second[1:]
    return 0.5 * (moving + p["inertia"] * first[0] ** 2 + p["rider_inertia"] * second[0] ** 2)


def _sleighs_blades(t: Scalar, g: Pair, p: Values) -> Array:
    return jnp.eye(6)[jnp.array([2, 5])]


def _hinge(t: Scalar, g: Pair, p: Values) -> Array:
    first, second = g
    return (first[:2, 2] + p["front"] * first[:2, 0]) - (second[:2, 2] - p["arm"] * second[:2, 0])


def _hinge_torque(t: Scalar, g: Pair, xi: Array, u: Array, p: Values) -> Array:
    return jnp.array([-1.0, 0.0, 0.0, 1.0, 0.0, 0.0]) * u[0]


def _several(name: str, values: Numbers, count: int | None = None) -> Array:
    """`values` as a list of positive numbers, or a clear error."""
    given = array(values)
    shaped = given.ndim == 1 and given.size and count in (None, given.size)
    if not shaped or (not is_traced(given) and not np.all(np.isfinite(np.asarray(given)) & (np.asarray(given) > 0))):
        raise InvalidInput(f"{name} is {values!r}; allowed: {count or 'a list of'} positive numbers")
    return given
