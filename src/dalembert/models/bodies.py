"""Rigid bodies about a point: free on SO(3) and SO(n) with the exact motion, Suslov's problem, and LR systems.

The axis about which Suslov's body may not turn is fixed in the body, that of an LR system in space.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..groups import SO, SO3, Euclidean
from ..integrators import free_body, polhode
from ..mechanics import Input, InvariantSystem, LRSystem, System, inertia_of_mass, mass_tensor, symmetric_matrix
from ..numerics import finite_reals, namespace, positive, vector
from ..numerics.types import Array, Covector, Element, Scalar
from .registry import MOMENTS, ROLLING_NAMES, SUSLOV_METHOD, Numbers, Real, Reals, Values, register, with_units

E3 = (0.0, 0.0, 1.0)
GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]


@register(
    "rigid-body",
    title="Free rigid body",
    example={"inertia": [0.6, 0.8, 1.0]},
    initial={"momentum": [1.8, 0.4, -0.9]},
    step=0.1,
    method={"name": "discrete-moser-veselov"},
    why="Nothing turns this body from outside, so its momentum (purple) stands still in space while the body tumbles: "
    "the ellipsoid rolls on the invariable plane without slipping (Poinsot). Start near the middle axis, and it "
    "flips.",
    tries=(
        ("start along the middle axis: it flips", "initial.momentum", [0.01, 1.5, 0.0]),
        ("a long thin body", "system.inertia", [0.2, 1.0, 1.1]),
    ),
    meaning={"inertia": MOMENTS},
)
def rigid_body(inertia: Numbers) -> InvariantSystem:
    """A rigid body that turns freely about its centre of mass, on SO(3) (Euler 1765).

    L = <I w, w>/2, so that m' = m x I^-1 m. `inertia` is I (kg m^2): three moments, or a matrix (3, 3).
    """
    return InvariantSystem(SO3(), inertia)


@register(
    "rigid-body-n",
    title="Free rigid body in n dimensions",
    example={"mass": [1.1, 0.8, 0.6, 0.3]},
    initial={"momentum": [0.3, -0.2, 0.45, 0.25, -0.35, 0.15]},
    step=0.25,
    method={"name": "discrete-moser-veselov", "order": 2},
    why="In four dimensions a body turns in planes, not about axes. The arrows are the images of its basis vectors, "
    "seen in three of the four directions.",
    meaning={"mass": "mass tensor [kg m2]"},
)
def rigid_body_n(mass: Numbers) -> InvariantSystem:
    """The free rigid body in n dimensions, on SO(n) (Manakov 1976).

    <I xi, xi> = tr(xi J xi^T), so that M' = [M, xi] with M = J xi + xi J. `mass` is J: n numbers, or a matrix (n, n).
    """
    tensor = mass_tensor(mass)
    return InvariantSystem(SO(len(tensor)), inertia_of_mass(SO(len(tensor)), tensor))


class ExactMotion(NamedTuple):
    """Momenta (.., 3) in the body and attitudes (.., 3, 3) at given times."""

    momentum: Reals
    attitude: Reals


def exact_body(inertia: Numbers, momentum: Numbers, t: Numbers, attitude: Any = None) -> ExactMotion:
    """The exact motion of a free rigid body at the times t (a number or an array): Jacobi (1849).

    It solves m' = m x I^-1 m, g' = g hat(I^-1 m) to round-off for any positive moments, at principal axes and on the
    separatrix too: see docs/exact-rigid-body.md.
    """
    tensor = np.asarray(symmetric_matrix(inertia, 3, "inertia"))
    m0 = np.asarray(vector(momentum, 3, "momentum"))
    g0 = np.asarray(SO3().identity() if attitude is None else SO3().element(attitude))
    t = np.asarray(t, float)
    times = np.zeros(1 << max(t.size - 1, 63).bit_length())  # few sizes, so that few programs are compiled
    times[: t.size] = t.ravel()
    m, g = (np.asarray(part)[: t.size] for part in _motion(tensor, m0, g0, times))
    return ExactMotion(m.reshape(*t.shape, 3), g.reshape(*t.shape, 3, 3))


@jax.jit
def _motion(tensor: Array, m: Array, g: Array, times: Array) -> tuple[Array, Array]:
    axes = free_body.principal_frame(tensor)
    level = polhode.on_level(jnp.diag(axes.T @ tensor @ axes), axes.T @ m, g @ axes, axes)
    return jax.vmap(lambda t: polhode.at_time(level, t))(times)


@register(
    "satellite",
    title="Satellite with thrusters",
    example={},
    initial={"velocity": [0.02, 1.0, 0.0]},
    why="Nobody fires a thruster: it spins about its middle axis, and turns over again and again. Press Turn: a plan "
    "finds the thrusts that turn it as you want it, and stop it there.",
    tries=(
        ("about the axis of the largest moment: it keeps its spin", "initial.velocity", [0.02, 0.0, 1.0]),
        ("alike about all axes: nothing turns over", "system.inertia", [1.0, 1.0, 1.0]),
    ),
    meaning={"inertia": MOMENTS},
)
def satellite(inertia: Numbers = (0.5, 0.8, 1.1)) -> System:
    """A satellite that three pairs of thrusters turn about its axes, on SO(3).

    L = <I w, w>/2 and the thrusters add the torques u: (I w)' = I w x w + u. `inertia` is I (kg m^2): three moments, or
    a matrix (3, 3).
    """
    tensor = symmetric_matrix(inertia, 3, "inertia")
    return System(SO3(), _spin_energy, parameters={"inertia": tensor}, force=_thrust, inputs=THRUSTERS)


THRUSTERS = tuple(Input(f"{axis} torque", "N m") for axis in ("roll", "pitch", "yaw"))


def _spin_energy(t: Scalar, g: Array, xi: Array, p: Values) -> Array:
    return 0.5 * xi @ p["inertia"] @ xi


def _thrust(t: Scalar, g: Array, xi: Array, u: Array, p: Values) -> Array:
    return u


@register(
    "suslov",
    title="Suslov's body",
    example={"inertia": GENERIC},
    initial={"momentum": [3.0, 2.0]},
    method=SUSLOV_METHOD,
    why="A sharp wheel keeps the body from turning about the crossed axis, which is fixed in the body. The angular "
    "velocity must stay in the plane across it, so it settles on a steady turn: forward and backward in time the "
    "motion ends on the two sides of one line.",
    tries=(("no coupling: a balanced body turns steadily", "system.inertia", [[3.0, 0, 0], [0, 4.0, 0], [0, 0, 5.0]]),),
    meaning={
        "inertia": MOMENTS,
        "weight": "m g times the vector from the fixed point to the centre of mass, in the body",
    },
)
def suslov(inertia: Numbers, normal: Numbers = E3, *, weight: Numbers | None = None) -> InvariantSystem:
    """A rigid body about a fixed point that may not turn about an axis fixed in the body, on SO(3) (Suslov 1902).

    L = <I w, w>/2 and <normal, w> = 0 ((12) of garcia-naranjo-jimenez). `inertia` is I (3 moments or 3 x 3). `weight`
    = m g l (a vector in the body, from the fixed point to the centre of mass, times m g) adds the potential <weight,
    R^T e3> of gravity. The basis of d for the normal e3 is (e1, e2).
    """
    rows = _axis(normal)
    if weight is None:
        return InvariantSystem(SO3(), inertia, annihilator=rows)
    pull = vector(weight, 3, "weight")
    return InvariantSystem(SO3(), inertia, annihilator=rows, potential=gravity, parameters={"weight": pull})


def _axis(normal: Numbers) -> Reals:
    given = np.asarray(finite_reals("normal", normal))
    if given.shape != (3,) or not given.any():
        raise InvalidInput(f"normal is {given.tolist()}; allowed: three finite numbers, not all 0")
    return given


def gravity(t: Scalar, g: Array, p: Values) -> Array:
    """The potential <weight, R^T e3> of gravity, for `suslov` with a `weight`."""
    return p["weight"] @ g[2]


@register(
    "suslov-n",
    title="Suslov's body in n dimensions",
    example={"mass": [[1.1, 0.0, 0.0, 0.1], [0.0, 0.8, 0.0, -0.2], [0.0, 0.0, 0.6, 0.15], [0.1, -0.2, 0.15, 0.5]]},
    initial={"momentum": [0.5, -0.3, 0.4]},
    step=0.1,
    method=SUSLOV_METHOD,
    why="Only planes that contain the last basis vector may turn. The arrows are the images of the basis vectors in "
    "three of the directions.",
    meaning={"mass": "mass tensor [kg m2]"},
)
def suslov_n(mass: Numbers) -> InvariantSystem:
    """The n-dimensional Suslov problem on SO(n): only planes that contain e_n turn, w_ij = 0 for i, j < n.

    This is (4.10) of fedorov-zenkov with p = 1. `mass` is J, n numbers or n x n. On SO(3) it is `suslov` with the hat
    map's e3. The basis of d is (1n, 2n, ..).
    """
    tensor = mass_tensor(mass)
    n, group = len(tensor), SO(len(tensor))
    if n < 3:
        raise InvalidInput(f"the Suslov problem needs n >= 3; mass is {n} x {n}")
    planes = [(i, j) for i in range(n) for j in range(i + 1, n)]  # in the order of the coordinates of so(n)
    rows = np.eye(3)[2:] if n == 3 else np.eye(group.dim)[[k for k, (_, j) in enumerate(planes) if j < n - 1]]
    return InvariantSystem(group, inertia_of_mass(group, tensor), annihilator=rows)


def exact_momentum(inertia: Numbers, momentum: Numbers, t: Numbers) -> Reals:
    """The exact momentum M(t) = I w(t) of Suslov's body from the restricted momentum (M1, M2); shape (..., 3).

    The normal is e3, the times t have shape (...). With I12 = L L^T on d and M12 = L u the energy is |u|^2/2, and
    u = r (cos a, sin a) in the frame of k = L^-1 I_3/det L turns by a' = r |k| cos a: the motion is the
    heteroclinic arc sin a = tanh(r |k| t + c) (fedorov-zenkov, 4).
    """
    given, t = np.asarray(inertia, float), np.asarray(t, float)
    tensor = np.diag(given) if given.ndim == 1 else given
    lower = np.linalg.cholesky(tensor[:2, :2])
    u = np.linalg.solve(lower, np.asarray(momentum, float)[:2])
    coupling = np.linalg.solve(lower, tensor[:2, 2])
    radius, strength = np.hypot(*u), np.hypot(*coupling) / np.linalg.det(lower)
    axis = coupling / np.hypot(*coupling) if strength else np.array([1.0, 0.0])
    across, along = axis @ u, axis[0] * u[1] - axis[1] * u[0]
    if strength == 0 or across == 0:  # balanced, or on the line of equilibria
        turned = np.broadcast_to(u, (*t.shape, 2))
    else:
        phase = radius * strength * t + np.arcsinh(along / abs(across))
        perpendicular = np.array([-axis[1], axis[0]])
        swing = np.sign(across) / np.cosh(phase)[..., None] * axis
        turned = radius * (swing + np.tanh(phase)[..., None] * perpendicular)
    return np.concatenate([turned @ lower.T, (turned @ coupling)[..., None]], axis=-1)


@register(
    "veselova",
    title="Veselova's body",
    example={"inertia": GENERIC},
    initial={"momentum": [3.0, 2.0]},
    method={"name": "discrete-lr"},
    why="The axis about which this body may not turn is fixed in space (crossed), not in the body as Suslov's is. The "
    "angular velocity stays in the horizontal plane.",
    meaning={"inertia": MOMENTS},
)
def veselova(inertia: Numbers, normal: Numbers = E3) -> LRSystem:
    """A rigid body about a fixed point that may not turn about an axis fixed in space: <normal, R w> = 0.

    It is Suslov's problem with the axis in space instead of in the body (Veselov-Veselova 1986). The momentum seen from
    space keeps its components across the normal. The basis of d for the normal e3 is (e1, e2), seen from space.
    """
    return LRSystem(SO3(), inertia, annihilator=_axis(normal))


@register(
    "chaplygin-sphere",
    title="Chaplygin's ball as an LR system",
    example={"inertia": [0.3, 0.4, 0.5], "radius": 0.6},
    initial={"momentum": [0.5, -0.3, 0.4]},
    step=0.1,
    method={"name": "discrete-lr"},
    why="The same ball, written with the constraint invariant in space: all three components of the momentum about the "
    "contact (purple) are kept exactly by the discrete LR method.",
    meaning={"inertia": MOMENTS},
)
def chaplygin_sphere(inertia: Numbers, mass: Real = 1.0, radius: Real = 1.0) -> LRSystem:
    """A ball with three different moments that rolls on a plane (Chaplygin's), as an LR system on SO(3) x R^2.

    x' = r W x e3 for the angular velocity W seen from space. The components on d of the momentum seen from space are
    K, the angular momentum about the point of contact: all three are conserved (Fedorov 2007). The same motion as
    `chaplygin_ball`.
    """
    mass, r = positive("mass", mass), float(positive("radius", radius))
    tensor = symmetric_matrix(inertia, 3, "inertia")
    across = np.zeros((3, 2))
    both = namespace(tensor, mass).block([[tensor, across], [across.T, mass * np.eye(2)]])
    rolling = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, r, 0.0], [-r, 0.0, 0.0]]
    return LRSystem(SO3() * Euclidean(2), both, subspace=rolling, names=with_units(*ROLLING_NAMES))


def conserved_momentum(system: LRSystem, g: Element, momentum: Covector) -> Array:
    """What an LR system conserves: the components on d of its momentum seen from space.

    For `veselova` these are (m1, m2), for `chaplygin_sphere` the angular momentum K about the point of contact."""
    return system.subspace.T @ system.spatial_momentum(g, momentum)
