"""Particles and oscillators in R^n with one nonholonomic constraint, the long-run tests of the literature; pendulums.

A chain of pendulums has holonomic constraints phi(q) = 0 instead. Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from typing import cast

import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, require_name
from ..groups import Euclidean
from ..mechanics import State, System
from ..numerics import finite, not_negative
from ..numerics.types import Array, Scalar
from .registry import Numbers, Real, Reals, Values, cached_partial, positive_vector, register, with_units

LEAPFROG = {"name": "leapfrog"}
NAMES = with_units("x, y, z", "x rate, y rate, z rate")  # all numbers are pure ones


@register(
    "nonholonomic-particle",
    example={"potential": "harmonic"},
    initial={"configuration": [0.3, 0.5, -0.2], "velocity": [1.1, 0.7, 0.55]},
    step=0.1,
    why="At every point the velocity must lie in the plane drawn there (z' = y x'). The planes twist along y, so that "
    "moving round in x and y lifts the particle: no surface contains the motion.",
    tries=(("no potential: it drifts away", "system.potential", "free"),),
)
def nonholonomic_particle(potential: str = "free") -> System:
    """A particle of unit mass in R^3 with the constraint z' = y x' (Rosenberg 1977; Jiménez, Scheurle 2015, 6.3).

    The basis of D is (d_x + y d_z, d_y). `potential`: "free", or "harmonic" for V = (x^2 + y^2)/2.
    """
    require_name("potential", potential, LAGRANGIANS)
    return System(Euclidean(3), LAGRANGIANS[potential], _contact_row, names=NAMES)


def _contact_row(t: Scalar, q: Array, p: None) -> Array:
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def _free(t: Scalar, q: Array, v: Array, p: None) -> Array:
    return 0.5 * v @ v


def _harmonic(t: Scalar, q: Array, v: Array, p: None) -> Array:
    return 0.5 * v @ v - 0.5 * (q[0] ** 2 + q[1] ** 2)


LAGRANGIANS = {"free": _free, "harmonic": _harmonic}


def exact_particle(t: Numbers, q: Numbers, v: Numbers) -> tuple[Reals, Reals]:
    """The exact motion (q(t), v(t)) of the free particle at the times t, shapes (..., 3).

    y grows linearly and x' sqrt(1 + y^2) = c is constant.
    """
    t = np.asarray(t, float)
    (x0, y0, z0), (u, w) = np.asarray(q, float), np.asarray(v, float)[:2]
    y = y0 + w * t
    c = u * np.hypot(1, y0)
    if w == 0:
        x, z = x0 + u * t, z0 + y0 * u * t
    else:
        x, z = x0 + c / w * (np.arcsinh(y) - np.arcsinh(y0)), z0 + c / w * (np.hypot(1, y) - np.hypot(1, y0))
    speed = c / np.hypot(1, y)
    return np.stack([x, y, z], axis=-1), np.stack([speed, np.full_like(y, w), y * speed], axis=-1)


@register(
    "contact-oscillator",
    example={"epsilon": 0.1},
    initial={"configuration": [1.0, 0.0, 0.0], "velocity": [0.0, 1.0, 1.0]},
    step=0.1,
    method=LEAPFROG,
    why="Springs pull the particle to the origin, and a plane at every point says where it may go (x' + y z' = 0). "
    "Watch the energy: reversible methods keep it, others drift.",
    tries=(("epsilon = 0: no coupling", "system.epsilon", 0.0),),
)
def contact_oscillator(epsilon: Real = 0.0) -> System:
    """An oscillator in R^3 with the contact constraint x' + y z' = 0, to test methods (McLachlan, Perlmutter 2006).

    The mass is 1 and V = (|q|^2 + epsilon x^2 z^2)/2. y is a free harmonic oscillator. The leapfrog of step 2
    sin(pi/N) moves y with the exact period N steps.
    """
    parameters = {"epsilon": finite("epsilon", epsilon)}
    return System(Euclidean(3), _contact_lagrangian, _oscillator_row, parameters=parameters, names=NAMES)


def _oscillator_row(t: Scalar, q: Array, p: Values) -> Array:
    return jnp.stack([jnp.ones_like(q[1]), jnp.zeros_like(q[1]), q[1]])[None]


def _contact_lagrangian(t: Scalar, q: Array, v: Array, p: Values) -> Array:
    return 0.5 * (v @ v - q @ q - p["epsilon"] * (q[0] * q[2]) ** 2)


@register(
    "chaotic-quartic",
    example={"n": 3},
    initial={"configuration": [0.0, 0.6, 0.4, 0.2, 1.0, 1.0, 1.0], "velocity": [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]},
    step=0.1,
    method=LEAPFROG,
    why="Seven coordinates, one constraint, chaos: three of the coordinates are drawn. The energy error of a good "
    "method wanders, that of a bad one runs away.",
)
def chaotic_quartic(n: int = 3) -> System:
    """A chaotic nonholonomic system on R^{2n+1}, whose energy error shows what methods do (McLachlan, Perlmutter 2006).

    q = (x, y, z) with x' + sum y_i z_i' = 0 and V = (|q|^2 + z_1^2 z_2^2 + sum y_i^2 z_i^2)/2. The constraint is the
    contact form; with sum z_i z_i' it would be holonomic.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 2 <= n <= 1000:
        raise InvalidInput(f"n is {n!r}; allowed: a whole number from 2, for V couples z_1 and z_2, to 1000")
    coordinates = ["x", *(f"{letter}{k + 1}" for letter in "yz" for k in range(n))]
    return System(
        Euclidean(2 * n + 1), cached_partial(_quartic_lagrangian, n), cached_partial(_quartic_constraint, n),
        names=with_units(", ".join(coordinates), ", ".join(f"{name} rate" for name in coordinates)),
    )  # fmt: skip


def quartic_state(angle: Real, n: int = 3) -> State:
    """A start of `chaotic_quartic` that has the same energy for every angle (3.06 if n = 3), for ensembles.

    x = cos(angle), y_i = 0.6 (1 - (i - 1)/n), z_i = 1, y_1' = sin(angle), else at rest.
    """
    system = chaotic_quartic(n)
    angle = jnp.asarray(angle, float)
    zero = jnp.zeros(2 * n + 1)
    q = zero.at[0].set(jnp.cos(angle)).at[1 : n + 1].set(0.6 * (1 - jnp.arange(n) / n)).at[n + 1 :].set(1.0)
    v = zero.at[1].set(jnp.sin(angle))
    return State(jnp.zeros(()), q, v, system.momentum(0.0, q, v), v, system.group)


def _quartic_constraint(n: int, t: Scalar, q: Array, p: None) -> Array:
    return jnp.concatenate([jnp.ones(1), jnp.zeros(n), q[1 : n + 1]])[None]


def _quartic_lagrangian(n: int, t: Scalar, q: Array, v: Array, p: None) -> Array:
    y, z = q[1 : n + 1], q[n + 1 :]
    return 0.5 * (v @ v - q @ q - (z[0] * z[1]) ** 2 - jnp.sum((y * z) ** 2))


@register(
    "pendulum-cvt",
    title="Pendulum with a variable transmission",
    example={"epsilon": 0.1},
    initial={"configuration": [1.0, 0.0, 0.0], "velocity": [0.3, 0.0, 2.0]},
    step=0.1,
    method=LEAPFROG,
    why="A pendulum changes the gear of a transmission between two oscillators. epsilon breaks the symmetry that saves "
    "many methods: compare their energies at epsilon = 0 and 0.1.",
    tries=(("epsilon = 0: reversible again", "system.epsilon", 0.0),),
)
def pendulum_cvt(epsilon: Real = 0.0) -> System:
    """A pendulum that drives a continuously variable transmission between two oscillators (Modin, Verdier 2020).

    With the pendulum's angle xi the constraint is y' + sin(xi) x' = 0. L = |v|^2/2 - (x^2 + y^2)/2 - cos(xi) +
    (epsilon/2) sin(2 xi) with q = (x, y, xi): epsilon breaks the reversibility xi -> -xi of the driving pendulum that
    keeps many methods on the right energy.
    """
    names, parameters = with_units("x, y, angle", "x rate, y rate, angle rate"), {"epsilon": finite("epsilon", epsilon)}
    return System(Euclidean(3), _cvt_lagrangian, _cvt_constraint, parameters=parameters, names=names)


def _cvt_constraint(t: Scalar, q: Array, p: Values) -> Array:
    return jnp.stack([jnp.sin(q[2]), jnp.ones_like(q[2]), jnp.zeros_like(q[2])])[None]


def _cvt_lagrangian(t: Scalar, q: Array, v: Array, p: Values) -> Array:
    x, y, xi = q
    return cast(Array, 0.5 * (v @ v - x * x - y * y) - jnp.cos(xi) + 0.5 * p["epsilon"] * jnp.sin(2 * xi))


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
    pendulum, two in the plane are the double one (Hairer, Lubich, Wanner, VII.1). Configuration: (x_1, y_1, x_2, ..).
    """
    if type(dimension) is not int or dimension not in (2, 3):
        raise InvalidInput(f"dimension is {dimension!r}; allowed: 2 (in a plane) or 3 (in space)")
    parameters = {"masses": positive_vector("masses", masses), "lengths": positive_vector("lengths", lengths)}
    count = parameters["masses"].size
    if parameters["lengths"].size != count:
        raise InvalidInput(f"there are {count} masses and {parameters['lengths'].size} lengths; allowed: as many")
    parameters |= {"gravity": not_negative("gravity", gravity)}
    coordinates = [f"{letter}{k + 1}" for k in range(count) for letter in "xyz"[:dimension]]
    names = with_units(
        ", ".join(f"{name} [m]" for name in coordinates), ", ".join(f"{name} rate [m s-1]" for name in coordinates),
        ", ".join(f"force in rod {k + 1} [N]" for k in range(count)),
    )  # fmt: skip
    group = Euclidean(dimension * count)
    return System(group, _chain_lagrangian, parameters=parameters, holonomic=_chain_rods, names=names)


def _chain_lagrangian(t: Scalar, q: Array, v: Array, p: Values) -> Array:
    places, velocities = (x.reshape(p["masses"].shape[0], -1) for x in (q, v))
    return 0.5 * p["masses"] @ jnp.sum(velocities**2, axis=1) - p["gravity"] * p["masses"] @ places[:, -1]


def _chain_rods(t: Scalar, q: Array, p: Values) -> Array:
    places = q.reshape(p["masses"].shape[0], -1)
    rods = places - jnp.concatenate([jnp.zeros_like(places[:1]), places[:-1]])
    return 0.5 * (jnp.sum(rods**2, axis=1) / p["lengths"] - p["lengths"])
