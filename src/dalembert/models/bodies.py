"""Rigid bodies about a point: free on SO(3) and SO(n) with the exact motion, Suslov's problem, and LR systems.

Suslov's body may not turn about an axis that is fixed in the body; the axis of an LR system is fixed in space.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..groups import SO, SO3, Euclidean
from ..mechanics import InvariantSystem, LRSystem, inertia_of_mass, mass_tensor, symmetric, vector
from ..numerics import namespace, positive
from ..numerics.types import Array, Covector, Element, Scalar
from .registry import MOMENTS, SUSLOV_METHOD, Numbers, Real, Values, register

Reals = NDArray[np.float64]
Elliptic = tuple[Reals, Reals, Reals]  # sn, cn, dn
E3 = (0.0, 0.0, 1.0)
GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]


@register(
    "rigid-body",
    title="Free rigid body",
    example={"inertia": [0.6, 0.8, 1.0]},
    initial={"momentum": [1.8, 0.4, -0.9]},
    step=0.1,
    method={"name": "discrete-moser-veselov"},
    why="Nothing turns this body from outside, so its momentum (pink) stands still in space while the body tumbles: "
    "the ellipsoid rolls on the invariable plane without slipping (Poinsot). Start near the middle axis, and it "
    "flips.",
    tries=(
        ("start along the middle axis: it flips", "initial.momentum", [0.01, 1.5, 0.0]),
        ("a long thin body", "system.inertia", [0.2, 1.0, 1.1]),
    ),
    meaning={"inertia": MOMENTS},
)
def rigid_body(inertia: Numbers) -> InvariantSystem:
    """The free rigid body on SO(3), L = <I w, w>/2: m' = m x I^-1 m (Euler 1765). `inertia`: (3,) or (3, 3)."""
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
)
def rigid_body_n(mass: Numbers) -> InvariantSystem:
    """The free rigid body on SO(n), <I xi, xi> = tr(xi J xi^T): M' = [M, xi], M = J xi + xi J (Manakov 1976).

    `mass`: J (n,) or (n, n).
    """
    tensor = mass_tensor(mass)
    return InvariantSystem(SO(len(tensor)), inertia_of_mass(SO(len(tensor)), tensor))


class ExactMotion(NamedTuple):
    """Momenta (.., 3) in the body and attitudes (.., 3, 3) at given times."""

    momentum: Reals
    attitude: Reals


def exact(inertia: Numbers, momentum: Numbers, t: Numbers, attitude: Any = None) -> ExactMotion:
    """The motion m' = m x I^-1 m, g' = g hat(I^-1 m) at the times t (a number or an array): Jacobi (1849).

    The momentum is (A cn, B sn, D dn) of u = u0 + l t in principal axes (a, b, c), b the intermediate one. The axis c
    turns about the fixed momentum by psi = |m| t/I_c + |m| (1/I_a - 1/I_c) Pi(n, u)/l, n = 1 - B^2/A^2, which gives the
    attitude (Celledoni, Fasso, Safstrom and Zanna 2008; here with Carlson's R_J). No expression cancels: symmetric
    bodies, principal axes and the separatrix are limits and no cases.
    """
    tensor = np.asarray(symmetric(inertia, 3, "inertia"))
    m0 = np.asarray(vector(momentum, 3, "momentum"))
    g0 = np.asarray(SO3().identity() if attitude is None else SO3().element(attitude))
    t = np.asarray(t, float)
    diagonal = not np.any(tensor - np.diag(np.diag(tensor)))
    moments, axes = (np.diag(tensor), np.eye(3)) if diagonal else np.linalg.eigh(tensor)
    axes = axes * np.sign(np.linalg.det(axes))
    velocity = np.linalg.solve(tensor, m0)
    if not np.any(np.cross(m0, velocity)):
        turned = [g0 @ np.asarray(SO3().exp(angle * velocity)) for angle in t.ravel()]
        return ExactMotion(np.broadcast_to(m0, (*t.shape, 3)).copy(), np.reshape(turned, (*t.shape, 3, 3)))
    size = np.linalg.norm(m0)
    orbit = _Orbit.of(moments, axes.T @ m0)
    m, psi = orbit.at(t)
    zero, _ = orbit.at(np.zeros(()))
    begin, end = orbit.frame(zero), orbit.frame(m)
    g = g0 @ axes @ begin.matrix @ _about_third(psi) @ np.swapaxes(end.matrix, -1, -2) @ axes.T
    return ExactMotion(size * (end.direction @ axes.T), g)


class _Frame(NamedTuple):
    direction: Reals  # of the momentum, (.., 3)
    matrix: Reals  # columns: the axis c projected across the momentum, its normal, the momentum


class _Orbit(NamedTuple):
    """A polhode: axes (a, b, c), differences u_ij = |1/I_i - 1/I_j|, amplitudes, and the argument u = u0 + speed t."""

    axes: tuple[int, int, int]
    ratio: float  # B/A
    A: float
    D: float
    signs: tuple[float, float]  # of m_a (at the start) and of m_c
    mc: float  # 1 - k^2
    speed: float
    u0: float
    size: float
    rate: float  # |m|/I_a, or |m|/I_c after the exchange of n and k^2/n
    n: float
    factor: float
    arc: tuple[float, float]  # (0, 0), or the sign and the k of an angle atan(k sn/cn dn)

    @classmethod
    def of(cls, moments: Reals, m: Reals) -> _Orbit:
        a, b, c = _family(moments, m)

        def gap(i: int, j: int) -> float:
            """1/I_i - 1/I_j."""
            return float((moments[j] - moments[i]) / (moments[i] * moments[j]))

        ac, bc, ab = abs(gap(a, c)), abs(gap(b, c)), abs(gap(a, b))
        share, rest = (bc / ac, ab / ac) if ac > 0 else (1.0, 0.0)
        A, D = np.hypot(m[a], m[b] * np.sqrt(share)), np.hypot(m[c], m[b] * np.sqrt(rest))
        ratio = 1 / np.sqrt(share)
        excess = bc * m[c] ** 2 - ab * m[a] ** 2  # |H - C/I_b|
        mc = min(1.0, max(0.0, excess / (bc * D**2))) if bc * D > 0 else 1.0
        sa, sc = (-1.0 if m[a] < 0 else 1.0), (-1.0 if m[c] < 0 else 1.0)
        cyclic = 1.0 if (b - a) % 3 == 1 else -1.0
        speed = sa * sc * cyclic * np.sign(gap(a, c)) * np.sqrt(ac * bc) * D
        sn, cn, dn = (m[b] / (A * ratio), abs(m[a]) / A, abs(m[c]) / D if D > 0 else 1.0) if A > 0 else (0.0, 1.0, 1.0)
        u0 = sn * _carlson().elliprf(cn**2, dn**2, 1.0) if sn else 0.0
        size = float(np.linalg.norm(m))
        orbit = ((a, b, c), ratio, A, D, (sa, sc), mc, speed, u0, size)
        if not speed or ab < bc:  # Pi(n, u) = u + (n/3) S^3 R_J(cn^2, dn^2, 1, 1 - n S^2), |n| < 1
            n = -rest / share
            return cls(*orbit, size / moments[a], n, size * gap(a, c) * n / (3 * speed) if speed else 0.0, (0.0, 0.0))
        n = -((A / D) ** 2)  # DLMF 19.7.8: Pi(n) + Pi(k^2/n) - u is an arc
        arc = np.sign(gap(a, c) * speed), ratio * size / D
        return cls(*orbit, size / moments[c], n, -size * gap(a, c) * n / (3 * speed), arc)

    def at(self, t: Reals) -> tuple[Elliptic, Reals]:
        """((sn, cn, dn), psi) at the times t."""
        values, angle = self._angle(self.u0 + self.speed * t)
        return values, self.rate * t + angle - self._angle(np.asarray(self.u0))[1]

    def _angle(self, u: Reals) -> tuple[Elliptic, Reals]:
        """sn, cn, dn and what psi has beside its linear part, by reduction to |u| <= K."""
        K, complete = 1e300, 0.0
        if self.mc > 0:
            K, complete = _carlson().elliprf(0.0, self.mc, 1.0), _carlson().elliprj(0.0, self.mc, 1.0, 1 - self.n)
        turns = np.round(u / (2 * K))
        sn, cn, dn = jacobi(u - 2 * K * turns, self.mc)
        integral = sn**3 * _carlson().elliprj(cn**2, dn**2, 1.0, 1 - self.n * sn**2) + 2 * turns * complete
        arc = self.arc[0] * (np.arctan2(self.arc[1] * sn, cn * dn) + np.pi * turns)
        sign = 1 - 2 * np.mod(turns, 2)
        return (sign * sn, sign * cn, dn), self.factor * integral + arc

    def frame(self, values: Elliptic) -> _Frame:
        a, b, c = self.axes
        sn, cn, dn = values
        across = np.hypot(cn, self.ratio * sn)
        sine, cosine = self.A * across / self.size, self.signs[1] * self.D * dn / self.size
        norm = np.hypot(sine, cosine)
        sine, cosine = sine / norm, cosine / norm
        planar = np.zeros((*np.shape(sn), 3))
        planar[..., a], planar[..., b] = self.signs[0] * cn / across, self.ratio * sn / across
        third = np.eye(3)[c]
        direction = sine[..., None] * planar + cosine[..., None] * third
        first = -cosine[..., None] * planar + sine[..., None] * third
        return _Frame(direction, np.stack([first, np.cross(direction, first), direction], axis=-1))


def _family(moments: Reals, m: Reals) -> tuple[int, int, int]:
    """(a, b, c): b the intermediate axis, c the one that the polhode encircles."""
    low, b, high = (int(i) for i in np.argsort(moments, kind="stable"))
    below, above = (moments[b] - moments[low]) / moments[low], (moments[high] - moments[b]) / moments[high]
    excess = below * m[low] ** 2 - above * m[high] ** 2  # I_b H - C
    around_low = excess > 0 or (excess == 0 and below > above)
    return (high, b, low) if around_low else (low, b, high)


def _about_third(psi: Reals) -> Reals:
    c, s, zero = np.cos(psi), np.sin(psi), np.zeros_like(psi)
    return np.stack([np.stack([c, -s, zero], -1), np.stack([s, c, zero], -1), np.stack([zero, zero, 1 + zero], -1)], -2)


def jacobi(u: Reals, mc: float) -> Elliptic:
    """sn, cn, dn of |u| <= K for the complementary parameter mc = 1 - k^2, each with a small relative error.

    Next to the separatrix cn and dn are tiny for a long time and the attitude depends on their logarithms: beyond K/2
    they are reflected, sn(K - u) = cn/dn etc., and the ascending Landen transformation, free of cancellation, leads to
    sech.
    """
    if mc == 0.0:
        return _landen(u, mc)
    K = _carlson().elliprf(0.0, mc, 1.0)
    far = np.abs(u) > K / 2
    sn, cn, dn = (_landen if mc < 0.5 else _mean)(np.where(far, K - np.abs(u), u), mc)
    kc = np.sqrt(mc)
    return np.where(far, np.sign(u) * cn / dn, sn), np.where(far, kc * sn / dn, cn), np.where(far, kc / dn, dn)


def _landen(u: Reals, mc: float) -> Elliptic:
    """The ascending Landen transformation (Abramowitz and Stegun 16.14), for |u| <= K/2."""
    if mc < 1e-20:
        return np.tanh(u), 1 / np.cosh(u), 1 / np.cosh(u)
    root = mc / (1 + np.sqrt(1 - mc)) ** 2  # (1 - k)/(1 + k), the new complementary modulus
    s, c, d = _landen(u / (1 + root), root * root)
    scale = (1 + root) / (1 - root * root) / d
    return (1 + root) * s * c / d, scale * (d * d - root), (1 - root) / (1 + root) * scale * (d * d + root)


def _mean(u: Reals, mc: float) -> Elliptic:
    """The arithmetic-geometric mean (Abramowitz and Stegun 16.4)."""
    a, b, c = 1.0, np.sqrt(mc), np.sqrt(1 - mc)
    ratios = []
    while c > 1e-9 * a:  # the next c is c^2/4a, below round-off
        a, b, c = (a + b) / 2, np.sqrt(a * b), (a - b) / 2
        ratios.append(c / a)
    phi = 2.0 ** len(ratios) * a * u
    for ratio in reversed(ratios):
        phi = (phi + np.arcsin(ratio * np.sin(phi))) / 2
    sn, cn = np.sin(phi), np.cos(phi)
    return sn, cn, np.sqrt(mc + (1 - mc) * cn**2)


def _carlson() -> ModuleType:
    """SciPy's Carlson integrals, imported where they are needed: a GPU machine may not have SciPy."""
    from scipy import special

    return special  # type: ignore[no-any-return]  # SciPy has no types


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
    """A rigid body on SO(3) with L = <I w, w>/2 and <normal, w> = 0 (Suslov 1902; garcia-naranjo-jimenez (12)).

    `weight` = m g l (a vector in the body, from the fixed point to the centre of mass, times m g) adds the potential
    <weight, R^T e3> of gravity. The basis of d for the normal e3 is (e1, e2).
    """
    rows = _axis(normal)
    if weight is None:
        return InvariantSystem(SO3(), inertia, annihilator=rows)
    pull = jnp.asarray(weight, float)
    if pull.shape != (3,):
        raise InvalidInput(f"weight has shape {pull.shape}; allowed: (3,), a vector in the body")
    return InvariantSystem(SO3(), inertia, annihilator=rows, potential=gravity, parameters={"weight": pull})


def _axis(normal: Numbers) -> Reals:
    given = np.asarray(normal, float)
    if given.shape != (3,) or not np.all(np.isfinite(given)) or not given.any():
        raise InvalidInput(f"normal is {given.tolist()}; allowed: three finite numbers, not all 0")
    return given


def gravity(t: Scalar, g: Array, p: Values) -> Array:
    """<weight, R^T e3>."""
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
    """M(t) = I w(t) of Suslov's body with normal e3 and restricted momentum (M1, M2), shape (..., 3) for times t (...).

    With I12 = L L^T on d and M12 = L u the energy is |u|^2/2, and u = r (cos a, sin a) in the frame of k = L^-1 I_3/det
    L turns by a' = r |k| cos a: the motion is the heteroclinic arc sin a = tanh(r |k| t + c) (fedorov-zenkov, section
    4).
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
    "contact (pink) are kept exactly by the discrete LR method.",
    meaning={"inertia": MOMENTS},
)
def chaplygin_sphere(inertia: Numbers, mass: Real = 1.0, radius: Real = 1.0) -> LRSystem:
    """Chaplygin's ball as an LR system on SO(3) x R^2: x' = r W x e3 for the angular velocity W seen from space.

    The components on d of the momentum seen from space are K, the angular momentum about the point of contact: all
    three are conserved (Fedorov 2007). The same motion as `chaplygin_ball`.
    """
    mass, r = positive("mass", mass), float(positive("radius", radius))
    tensor = symmetric(inertia, 3, "inertia")
    across = np.zeros((3, 2))
    both = namespace(tensor, mass).block([[tensor, across], [across.T, mass * np.eye(2)]])
    rolling = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, r, 0.0], [-r, 0.0, 0.0]]
    return LRSystem(SO3() * Euclidean(2), both, subspace=rolling)


def conserved_momentum(system: LRSystem, g: Element, momentum: Covector) -> Array:
    """The components on d of the momentum seen from space: Veselova's (m1, m2), the sphere's K about the contact."""
    return system.subspace.T @ system.spatial_momentum(g, momentum)
