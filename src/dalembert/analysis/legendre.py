"""The discrete Legendre map x -> h F l_d(tau(B x)) of an LL system, as a map that analysis can evaluate anywhere.

Everything is scaled by h as in the papers: x = h w are coordinates of the displacement W in the basis B of d, and h M
is the impulse; h then appears nowhere. With f(x) = iota* h F l_d(tau(B x)) a step is f(x') = iota* Ad*_W h M(x).

`AlgebraicMap` is rational: Cayley, and Moser-Veselov on subspaces that turn planes. `TracedMap` is any other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..errors import InvalidInput
from ..groups import Cayley, Exponential
from ..integrators import EulerPoincareSuslov, require_invariant
from ..mechanics import InvariantSystem, generators
from .polynomials import RationalMap, interpolate, solve_batch

HOMOTOPY_STAGES = 16
MAX_NEWTON_STEPS = 40


class LegendreMap(ABC):
    """f and its derivatives; x has shape (..., r), impulses (..., n)."""

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov):
        self.system, self.integrator = system, integrator
        self.subspace = np.asarray(system.subspace)
        self.dim, self.rank = self.subspace.shape

    @abstractmethod
    def impulse(self, x: np.ndarray) -> np.ndarray:
        """h F l_d(tau(B x)), shape (..., n)."""

    @abstractmethod
    def slope(self, x: np.ndarray) -> np.ndarray:
        """Its derivative in x, shape (..., n, r)."""

    @abstractmethod
    def bend(self, x: np.ndarray) -> np.ndarray:
        """Its second derivative in x, shape (..., n, r, r)."""

    @abstractmethod
    def transport(self, x: np.ndarray) -> np.ndarray:
        """iota* Ad*_W h F l_d(W), the right side of a step, shape (..., r)."""

    @abstractmethod
    def transport_slope(self, x: np.ndarray) -> np.ndarray:
        """Its derivative, shape (..., r, r)."""

    def restriction(self, x: np.ndarray) -> np.ndarray:
        """f(x) = iota* h F l_d(tau(B x)), shape (..., r)."""
        return np.asarray(self.impulse(x) @ self.subspace)

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """Df(x), shape (..., r, r)."""
        return np.asarray(self.subspace.T @ self.slope(x))

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """D^2 f(x), shape (..., r, r, r)."""
        return np.asarray(np.einsum("ai,...ajk->...ijk", self.subspace, self.bend(x)))

    def target(self, momentum: ArrayLike, step: float) -> np.ndarray:
        """h iota* M of a momentum: all n components, or the r of the basis of d."""
        momentum = np.asarray(momentum)
        if momentum.shape not in ((self.dim,), (self.rank,)) or not np.all(np.isfinite(momentum)):
            raise InvalidInput(
                f"momentum is {momentum.tolist()}; allowed: {self.dim} finite numbers, or {self.rank} in the basis of d"
            )
        full = momentum.shape == (self.dim,) and self.dim != self.rank
        return np.asarray(step * (momentum @ self.subspace if full else momentum))

    def solve(self, target: np.ndarray, guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x, whether it converged): Newton's method for f(x) = target from a guess, on every row of a batch."""
        x = np.array(np.broadcast_to(guess, np.broadcast_shapes(np.shape(guess), np.shape(target))))
        size = np.full(x.shape[:-1], np.inf)
        with np.errstate(all="ignore"):
            for _ in range(MAX_NEWTON_STEPS):
                update = solve_batch(self.jacobian(x), self.restriction(x) - target)
                x, size = x - update, np.abs(update).max(-1) / (1e-300 + np.abs(x).max(-1))
                if np.all(~(size > 1e-13)):
                    break
        return x, size < 1e-9

    def image(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x', whether it exists): one step on the branch that a run follows, for every row of a batch.

        Along the branch det Df keeps its sign; a root where it has the other one belongs to another branch.
        """
        target, sign = self.transport(x), self.orientation(x)
        new, good = self.solve(target, x)
        good = good & (self.orientation(new) == sign)
        if not np.all(good):
            main = sign == self.orientation(np.zeros(self.rank))  # the sheet through 0: come from 0, far from its edge
            begin = np.where(main[..., None], 0.0, x)
            other, exists = self._follow(begin, np.where(main[..., None], 0.0, self.restriction(x)), target, sign)
            new, good = np.where(good[..., None], new, other), good | exists
        return np.where(good[..., None], new, np.nan), good

    def start(self, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x, whether it exists): the solution of f(x) = target on the branch through 0."""
        target = np.asarray(target, float)
        zero = np.zeros_like(target)
        x, exists = self._follow(zero, zero, target, self.orientation(zero))
        return np.where(exists[..., None], x, np.nan), exists

    def orientation(self, x: np.ndarray) -> np.ndarray:
        """The sign of det Df(x)."""
        with np.errstate(all="ignore"):
            return np.asarray(np.sign(np.linalg.det(np.nan_to_num(self.jacobian(x)))))

    def _follow(
        self, x: np.ndarray, begin: np.ndarray, target: np.ndarray, sign: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The end of the homotopy f(x) = (1 - s) begin + s target, and whether this orientation stays."""
        alive = np.ones(np.shape(target)[:-1], bool)
        for s in np.arange(1, HOMOTOPY_STAGES + 1) / HOMOTOPY_STAGES:
            x, converged = self.solve((1 - s) * begin + s * target, x)
            alive = alive & converged & (self.orientation(x) == sign)
            if not np.any(alive):
                break
        return x, alive

    def require_reversible(self) -> None:
        """Refuse a map that x -> -x does not reverse; it does if l_d(W^-1) = l_d(W), as for every named Lagrangian."""
        x = np.array(0.1 * np.random.default_rng(0).normal(size=self.rank))
        if np.abs(self.transport(x) + self.restriction(-x)).max() > 1e-9 * np.abs(self.restriction(x)).max():
            raise InvalidInput(
                "this discrete Lagrangian is not symmetric, l_d(W^-1) != l_d(W): its map has no known inverse"
            )

    def orbit(self, x: np.ndarray, steps: int) -> np.ndarray:
        """x_0, ..., x_steps (backwards for negative steps), shape (|steps| + 1, ..., r); NaN after the branch ends."""
        if steps < 0:
            self.require_reversible()
        sign, x = (1.0, np.asarray(x, float)) if steps >= 0 else (-1.0, -np.asarray(x, float))
        points = [x]
        for _ in range(abs(steps)):
            points.append(self.image(points[-1])[0])
        return np.asarray(sign * np.array(points))


class TracedMap(LegendreMap):
    """Any retraction and discrete Lagrangian, by JAX at real points; a Lagrangian of your own is taken at `step`."""

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov, step: float = 1.0):
        super().__init__(system, integrator)
        basis, group = system.subspace, system.group

        def impulse(x: Array) -> Array:
            return integrator.impulse(system, basis @ x, step)

        def transport(x: Array) -> Array:
            return basis.T @ group.Ad_star(integrator.retraction.tau(group, basis @ x), impulse(x))

        self._impulse, self._transport = _batched(impulse), _batched(transport)
        self._slope, self._transport_slope = _batched(jax.jacfwd(impulse)), _batched(jax.jacfwd(transport))
        self._bend = _batched(jax.jacfwd(jax.jacfwd(impulse)))

    def impulse(self, x: np.ndarray) -> np.ndarray:
        return self._impulse(x)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return self._slope(x)

    def bend(self, x: np.ndarray) -> np.ndarray:
        return self._bend(x)

    def transport(self, x: np.ndarray) -> np.ndarray:
        return self._transport(x)

    def transport_slope(self, x: np.ndarray) -> np.ndarray:
        return self._transport_slope(x)


def _batched(function: Callable[[Array], Array]) -> Callable[[np.ndarray], np.ndarray]:
    """A jitted function of one point, mapped over all leading axes."""
    mapped = jax.jit(jax.vmap(function))

    def call(x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, float)
        flat = mapped(jnp.asarray(x.reshape(-1, x.shape[-1])))
        return np.asarray(flat.reshape(*x.shape[:-1], *flat.shape[1:]))

    return call


def constrained_energy(system: InvariantSystem, momentum: ArrayLike) -> Any:
    """E_c of momenta (..., n), or restricted ones (..., r), shape (...)."""
    basis = np.asarray(system.subspace)
    momentum = np.asarray(momentum)
    restricted = momentum @ basis if momentum.shape[-1] == basis.shape[0] != basis.shape[1] else momentum
    metric = basis.T @ np.asarray(system.inertia) @ basis
    return np.einsum("...i,ij,...j->...", restricted, np.linalg.inv(metric), restricted) / 2


def impulse_energy(f: LegendreMap, x: np.ndarray) -> Any:
    """E_c of the impulse at coordinates x: h^2 times the energy."""
    return constrained_energy(f.system, f.restriction(x))


COMPLEX_STEP, MAX_COORDINATE = 1e-30, 1e14
IMAGINARY_TOLERANCE = 1e-8
"""Imaginary parts below this, relative to the size, are round-off."""


class AlgebraicMap(LegendreMap):
    """Cayley with the retraction or the Moser-Veselov Lagrangian: rational functions of x, real or complex.

    W = (1 - xi/2)^-1 (1 + xi/2), xi = B x. Moser-Veselov: <h M, eta> = tr(eta (W J W^T - W J)); retraction: <h M, eta>
    = <I xi, (1 - xi/2) eta (1 + xi/2)>, the transpose of the right derivative of tau^-1. Since l_d(W^-1) = l_d(W), the
    momentum carried to the end of a step is Ad*_W h M(x) = -h M(-x): a step is f(x') = -f(-x) and x -> -x reverses it.

    `angles=True` uses the exponential for tau instead, whose coordinates reach rotations by pi: for Moser-Veselov on a
    d whose elements turn a plane, xi^3 = -t^2 xi with t^2 = -tr(xi^2)/2, so that
    exp xi = 1 + (sin t/t) xi + ((1 - cos t)/t^2) xi^2.
    """

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov, angles: bool = False):
        super().__init__(system, integrator)
        self.angles = angles
        self.generators = generators(system.group)
        self.basis = np.einsum("ac,aij->cij", self.subspace, self.generators)
        self.one = np.eye(self.generators.shape[1])
        self.veselov = integrator.lagrangian == "moser-veselov"
        self.mass = np.asarray(system.mass_matrix()) if self.veselov else np.zeros_like(self.one)
        self.inertia = np.asarray(system.inertia)
        flat = np.linalg.pinv(self.generators.reshape(self.dim, -1).T)
        self.dual = flat.reshape(self.generators.shape)

    @cached_property
    def rational(self) -> RationalMap:
        """f = N/D, polynomials found from values of f: D = det(1 - xi/2) for Moser-Veselov, 1 for the retraction."""
        degree = len(self.one) if self.veselov else 3

        def denominator(x: np.ndarray) -> np.ndarray:
            if self.veselov:
                return np.asarray(np.linalg.det(self.one - self._algebra(x) / 2)[..., None])
            return np.ones((*x.shape[:-1], 1))

        numerator = interpolate(lambda x: self.restriction(x) * denominator(x), self.rank, degree)
        return RationalMap(numerator, interpolate(denominator, self.rank, degree))

    @cached_property
    def generic_fibre(self) -> tuple[np.ndarray, np.ndarray]:
        """(c, all x with f(x) = c) at a random complex c, from which every other fibre is continued."""
        return self.rational.generic_fibre()

    def displacement(self, x: np.ndarray) -> np.ndarray:
        """W = tau(B x), shape (..., N, N)."""
        xi = self._algebra(x)
        if self.angles:
            first, second, _, _ = _turn_functions(-np.einsum("...ij,...ji->...", xi, xi) / 2)
            return np.asarray(self.one + first * xi + second * (xi @ xi))
        half = xi / 2
        return np.linalg.solve(self.one - half, self.one + half)

    def impulse(self, x: np.ndarray) -> np.ndarray:
        if self.veselov:
            W = self.displacement(x)
            return np.asarray(np.einsum("aij,...ji->...a", self.generators, W @ self.mass @ (W.mT - self.one)))
        x, (linear, quadratic, cubic) = np.asarray(x), self._tensors
        inner = linear + np.einsum("acd,...d->...ac", quadratic, x) + np.einsum("acde,...d,...e->...ac", cubic, x, x)
        return np.asarray(np.einsum("...ac,...c->...a", inner, x))

    def slope(self, x: np.ndarray) -> np.ndarray:
        if self.veselov:
            xi, E = self._algebra(x)[..., None, :, :], self.basis
            W = self.displacement(x)[..., None, :, :]
            dW = self._exp_slope(xi) if self.angles else np.linalg.solve(self.one - xi / 2, E @ (W + self.one)) / 2
            change = dW @ self.mass @ (W.mT - self.one) + W @ self.mass @ dW.mT
            return np.asarray(np.einsum("aij,...cji->...ac", self.generators, change))
        x, (linear, quadratic, cubic) = np.asarray(x), self._tensors
        square = np.einsum("acde,...d,...e->...ac", cubic, x, x)
        return np.asarray(linear + 2 * np.einsum("acd,...d->...ac", quadratic, x) + 3 * square)

    def bend(self, x: np.ndarray) -> np.ndarray:
        if np.iscomplexobj(x):
            raise InvalidInput("second derivatives are taken at real points")
        # complex steps of 1e-30 differentiate an analytic function exactly to round-off
        steps = 1j * COMPLEX_STEP * np.eye(self.rank)
        return np.stack([self.slope(np.asarray(x, float) + e).imag / COMPLEX_STEP for e in steps], axis=-1)

    def transport(self, x: np.ndarray) -> np.ndarray:
        return -self.restriction(-np.asarray(x))

    def transport_slope(self, x: np.ndarray) -> np.ndarray:
        return self.jacobian(-np.asarray(x))

    def _exp_slope(self, xi: np.ndarray) -> np.ndarray:
        """The derivative of exp xi in the coordinates, where xi turns a plane."""
        E = self.basis
        a, b, da, db = _turn_functions(-np.einsum("...ij,...ji->...", xi, xi) / 2)
        dz = -np.einsum("...ij,...ji->...", xi, E)[..., None, None]
        return np.asarray(da * dz * xi + a * E + db * dz * (xi @ xi) + b * (xi @ E + E @ xi))

    def _algebra(self, x: np.ndarray) -> np.ndarray:
        """The matrix B x; NaN where x is so large that 1 - xi/2 has lost its 1."""
        x = np.asarray(x)
        small = np.abs(x).max(-1, keepdims=True, initial=0.0) < MAX_COORDINATE
        return np.asarray(np.einsum("...c,cij->...ij", np.where(small, x, np.nan), self.basis))

    @cached_property
    def _tensors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tensors of x: <I xi, (1 - xi/2) eta (1 + xi/2)> = <I xi, eta> + <I xi, [eta, xi]>/2 - <I xi, xi eta xi>/4."""
        E, G = self.basis, self.generators
        covectors = np.einsum("bc,bij->cij", self.inertia @ self.subspace, self.dual)
        right = np.einsum("cij,aik,dkj->acd", covectors, G, E)
        left = np.einsum("cij,dik,akj->acd", covectors, E, G)
        triple = np.einsum("cij,dik,akl,elj->acde", covectors, E, G, E, optimize=True)
        quadratic, cubic = (right - left) / 2, -triple / 4
        quadratic = (quadratic + quadratic.swapaxes(1, 2)) / 2
        cubic = np.sum([np.transpose(cubic, (0, *order)) for order in permutations((1, 2, 3))], axis=0) / 6
        return self.inertia @ self.subspace, quadratic, cubic


def legendre_map(system: InvariantSystem, integrator: EulerPoincareSuslov, step: float = 1.0) -> LegendreMap:
    """The map in the coordinates of the integrator's own retraction."""
    _require(system, integrator)
    algebraic = isinstance(integrator.retraction, Cayley) and not callable(integrator.lagrangian)
    return AlgebraicMap(system, integrator) if algebraic else TracedMap(system, integrator, step)


def algebraic_map(system: InvariantSystem, integrator: EulerPoincareSuslov) -> AlgebraicMap | None:
    """The map in Cayley coordinates where it is rational, whatever coordinates the integrator uses; else None.

    Moser-Veselov sees only the displacement W, so exp(d) will do where it is tau(d): where odd powers of d lie in d.
    """
    _require(system, integrator)
    if callable(integrator.lagrangian):
        return None
    if isinstance(integrator.retraction, Cayley):
        return AlgebraicMap(system, integrator)
    veselov = integrator.lagrangian == "moser-veselov" and isinstance(integrator.retraction, Exponential)
    return AlgebraicMap(system, integrator) if veselov and closed_under_odd_powers(system) else None


def angle_map(system: InvariantSystem, integrator: EulerPoincareSuslov) -> LegendreMap:
    """The map in coordinates that reach every displacement: exponential ones for Moser-Veselov where d turns planes."""
    _require(system, integrator)
    veselov = integrator.lagrangian == "moser-veselov"
    if veselov and isinstance(integrator.retraction, Cayley | Exponential) and turns_planes(system):
        return AlgebraicMap(system, integrator, angles=True)
    return legendre_map(system, integrator)


def closed_under_odd_powers(system: InvariantSystem) -> bool:
    """Whether xi^3 (hence every odd power of xi) lies in d for xi in d: then exp(d) is Cayley's tau(d).

    This is Lemma 6.1 of fedorov-zenkov.
    """
    basis = np.einsum("ac,aij->cij", np.asarray(system.subspace), generators(system.group))
    flat = basis.reshape(len(basis), -1).T
    for x in np.random.default_rng(0).normal(size=(4, len(basis))):
        xi = np.einsum("c,cij->ij", x, basis)
        for power in (xi @ xi @ xi, xi @ xi @ xi @ xi @ xi):
            residual = power.ravel() - flat @ np.linalg.lstsq(flat, power.ravel(), rcond=None)[0]
            if np.abs(residual).max() > 1e-10 * (1 + np.abs(power).max()):
                return False
    return True


def turns_planes(system: InvariantSystem) -> bool:
    """Whether xi^3 = tr(xi^2)/2 xi for every xi in d: each turns one plane (Suslov on SO(n), the sleigh)."""
    basis = np.einsum("ac,aij->cij", np.asarray(system.subspace), generators(system.group))
    xi = np.einsum("kc,cij->kij", np.random.default_rng(0).normal(size=(8, len(basis))), basis)
    cube, half = xi @ xi @ xi, np.einsum("kij,kji->k", xi, xi)[:, None, None] / 2
    return bool(np.abs(cube - half * xi).max() < 1e-10 * (1 + np.abs(cube).max()))


def _turn_functions(z: np.ndarray) -> tuple[np.ndarray, ...]:
    """(sin t/t, (1 - cos t)/t^2) and their derivatives in z = t^2, each with two axes for matrices."""
    z = np.asarray(z)[..., None, None]
    small = np.abs(z) < 1e-2
    safe = np.where(small, 1.0, z)
    t = np.sqrt(safe.astype(complex)) if np.iscomplexobj(z) or np.any(safe < 0) else np.sqrt(safe)
    a, b = np.sin(t) / t, (1 - np.cos(t)) / safe
    exact = a, b, (np.cos(t) - a) / (2 * safe), (a / 2 - b) / safe
    terms = np.arange(8)
    series = []
    for first in (1, 2):  # sum of (-z)^k/(2k + first)!
        c = np.array([(-1.0) ** k / math.factorial(2 * k + first) for k in terms])
        series.append(np.polynomial.polynomial.polyval(z, c))
        series.append(np.polynomial.polynomial.polyval(z, np.polynomial.polynomial.polyder(c)))
    near = series[0], series[2], series[1], series[3]
    return tuple(np.where(small, n, e) for n, e in zip(near, exact, strict=True))


def _require(system: InvariantSystem, integrator: EulerPoincareSuslov) -> None:
    if not isinstance(integrator, EulerPoincareSuslov):
        raise InvalidInput(
            f"this needs the discrete Euler-Poincare-Suslov method; given {type(integrator).__name__}. "
            "Use EulerPoincareSuslov(...)"
        )
    require_invariant(integrator, system)
    if system.potential is not None:
        raise InvalidInput("a system with a potential is not invariant: its discrete map is not a map of momenta alone")
    if integrator.lagrangian == "moser-veselov":
        system.require_body()


def logarithm(f: AlgebraicMap, W: np.ndarray) -> np.ndarray:
    """log W in d of a displacement, real or complex."""
    from scipy.linalg import logm

    real = np.abs(W.imag).max() < IMAGINARY_TOLERANCE * (1 + np.abs(W).max()) if np.iscomplexobj(W) else True
    return np.asarray(np.einsum("aij,ij->a", f.dual, np.asarray(logm(W.real if real else W))))
