"""The discrete Legendre map x -> h F l_d(tau(B x)) of an LL system, its charts, and its image: the momentum locus.

Everything is scaled by h as in the papers: x = h w are coordinates of the displacement W in the basis B of d, and h M
is the impulse; h then appears nowhere. With f(x) = iota* h F l_d(tau(B x)) a step is f(x') = iota* Ad*_W h M(x).

`AlgebraicMap` is rational: Cayley, and Moser-Veselov on subspaces that turn planes. `TracedMap` is any other.

Curves on a two-dimensional d are level sets of functions in a chart, refined to round-off. The chart has exponential
coordinates y of W where Moser-Veselov allows them (so that rotations by pi are inside) and the integrator's own
otherwise. On rotations y and its antipode y (1 - 2 pi/|y|) are one displacement.

The locus is in impulses h M, in which it does not depend on h; divide by h for momenta. Surfaces (two-dimensional d in
a three-dimensional algebra) have curves and points to be found; the equations and the tangent plane exist for any
system.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.polynomial import polynomial
from numpy.typing import ArrayLike

from ..errors import InvalidInput, NumericalFailure
from ..groups import Cayley, Exponential
from ..integrators import EulerPoincareSuslov, require_invariant
from ..mechanics import InvariantSystem, generators
from . import polynomials

HOMOTOPY_STAGES = 16
MAX_NEWTON_STEPS = 40
Batched = Callable[[np.ndarray], np.ndarray]


class LegendreMap:
    """f and its derivatives; x has shape (..., r), impulses (..., n)."""

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov):
        self.system, self.integrator = system, integrator
        self.subspace = np.asarray(system.subspace)
        self.dim, self.rank = self.subspace.shape

    angles = False  # whether x are angles: coordinates that reach rotations by pi
    impulse: Batched  # h F l_d(tau(B x)), shape (..., n)
    slope: Batched  # its derivative in x, shape (..., n, r)
    bend: Batched  # its second derivative in x, shape (..., n, r, r)
    transport: Batched  # iota* Ad*_W h F l_d(W), the right side of a step, shape (..., r)
    transport_slope: Batched  # its derivative, shape (..., r, r)

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
                update = polynomials.solve_batch(self.jacobian(x), self.restriction(x) - target)
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
            raise InvalidInput("this discrete Lagrangian is not symmetric, l_d(W^-1) != l_d(W): no inverse is known")

    def orbit(self, x: np.ndarray, steps: int) -> np.ndarray:
        """x_0, ..., x_steps (backwards for negative steps), shape (|steps| + 1, ..., r); NaN after the branch ends."""
        if steps < 0:
            self.require_reversible()
        sign, points = 1.0 if steps >= 0 else -1.0, np.full((abs(steps) + 1, *np.shape(x)), np.nan)
        points[0] = sign * np.asarray(x)
        for k in range(abs(steps)):
            if np.isnan(points[k]).all():
                break
            points[k + 1] = self.image(points[k])[0]
        return sign * points


class TracedMap(LegendreMap):
    """Any retraction and discrete Lagrangian, by JAX at real points; a Lagrangian of your own is taken at `step`."""

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov, step: float = 1.0):
        super().__init__(system, integrator)
        basis, group = system.subspace, system.group

        def impulse(x: Array) -> Array:
            return integrator.impulse(system, basis @ x, step)

        def transport(x: Array) -> Array:
            return basis.T @ group.Ad_star(integrator.retraction.tau(group, basis @ x), impulse(x))

        self.impulse, self.transport = _batch(impulse), _batch(transport)
        self.slope, self.transport_slope = _batch(jax.jacfwd(impulse)), _batch(jax.jacfwd(transport))
        self.bend = _batch(jax.jacfwd(jax.jacfwd(impulse)))


def _batch(function: Callable[[Array], Array]) -> Batched:
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
IMAGINARY_TOLERANCE = 1e-8  # imaginary parts below this, relative to the size, are round-off


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
        self.degree = len(self.one) if self.veselov else 3
        self.mass = np.asarray(system.mass_matrix()) if self.veselov else np.zeros_like(self.one)
        self.dual = np.linalg.pinv(self.generators.reshape(self.dim, -1).T).reshape(self.generators.shape)
        self.momenta = np.einsum("bc,bij->cji", np.asarray(system.inertia) @ self.subspace, self.dual)

    @cached_property
    def rational(self) -> polynomials.RationalMap:
        """f = N/D, polynomials found from values of f: D = det(1 - xi/2) for Moser-Veselov, 1 for the retraction."""

        def denominator(x: np.ndarray) -> np.ndarray:
            matrix = self.one - self._algebra(x) / 2 if self.veselov else self.one
            return np.asarray(np.broadcast_to(np.linalg.det(matrix), x.shape[:-1])[..., None])

        numerator = polynomials.interpolate(lambda x: self.restriction(x) * denominator(x), self.rank, self.degree)
        return polynomials.RationalMap(numerator, polynomials.interpolate(denominator, self.rank, self.degree))

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
            inner = W @ self.mass @ (W.mT - self.one)
        else:
            half = self._algebra(x) / 2
            inner = (self.one + half) @ np.einsum("...c,cij->...ij", x, self.momenta) @ (self.one - half)
        return np.asarray(np.einsum("aij,...ji->...a", self.generators, inner))

    def slope(self, x: np.ndarray) -> np.ndarray:
        xi, E = self._algebra(x)[..., None, :, :], self.basis
        if self.veselov:
            W = self.displacement(x)[..., None, :, :]
            dW = self._exp_slope(xi) if self.angles else np.linalg.solve(self.one - xi / 2, E @ (W + self.one)) / 2
            change = dW @ self.mass @ (W.mT - self.one) + W @ self.mass @ dW.mT
        else:
            left, right, momentum = self.one + xi / 2, self.one - xi / 2, np.einsum("...c,cij->...ij", x, self.momenta)
            turned = E @ momentum[..., None, :, :] @ right - left @ momentum[..., None, :, :] @ E
            change = left @ self.momenta @ right + turned / 2
        return np.asarray(np.einsum("aij,...cji->...ac", self.generators, change))

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


def legendre_map(system: InvariantSystem, integrator: EulerPoincareSuslov, step: float = 1.0) -> LegendreMap:
    """The map in the coordinates of the integrator's own retraction."""
    _require(system, integrator)
    if not np.isfinite(step) or step == 0:
        raise InvalidInput(f"step is {step}; allowed: a finite number other than 0")
    algebraic = isinstance(integrator.retraction, Cayley) and not callable(integrator.lagrangian)
    return AlgebraicMap(system, integrator) if algebraic else TracedMap(system, integrator, step)


def algebraic_map(system: InvariantSystem, integrator: EulerPoincareSuslov) -> AlgebraicMap | None:
    """The map in Cayley coordinates where it is rational, whatever coordinates the integrator uses; else None.

    Moser-Veselov sees only the displacement W, so exp(d) will do where it is tau(d): where odd powers of d lie in d.
    """
    _require(system, integrator)
    rational = isinstance(integrator.retraction, Cayley) or (
        integrator.lagrangian == "moser-veselov"
        and isinstance(integrator.retraction, Exponential)
        and closed_under_odd_powers(system)
    )
    return AlgebraicMap(system, integrator) if rational and not callable(integrator.lagrangian) else None


def angle_map(system: InvariantSystem, integrator: EulerPoincareSuslov) -> LegendreMap:
    """The map in coordinates that reach every displacement: exponential ones for Moser-Veselov where d turns planes."""
    _require(system, integrator)
    veselov = integrator.lagrangian == "moser-veselov"
    if veselov and isinstance(integrator.retraction, Cayley | Exponential) and turns_planes(system):
        return AlgebraicMap(system, integrator, angles=True)
    return legendre_map(system, integrator)


def closed_under_odd_powers(system: InvariantSystem) -> bool:
    """Whether odd powers of xi in d lie in d: then exp(d) is Cayley's tau(d) (Lemma 6.1 of fedorov-zenkov)."""
    basis = np.einsum("ac,aij->cij", np.asarray(system.subspace), generators(system.group))
    xi = np.einsum("kc,cij->kij", np.random.default_rng(0).normal(size=(4, len(basis))), basis)
    cubes, flat = xi @ xi @ xi, basis.reshape(len(basis), -1)
    powers = np.concatenate([cubes, cubes @ xi @ xi]).reshape(8, -1)
    outside = powers - powers @ np.linalg.pinv(flat) @ flat
    return bool(np.all(np.abs(outside).max(1) <= 1e-10 * (1 + np.abs(powers).max(1))))


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
    # sums of (-z)^k/(2k + 1)! and (-z)^k/(2k + 2)!, and their derivatives
    sums = [np.array([(-1.0) ** k / math.factorial(2 * k + first) for k in range(8)]) for first in (1, 2)]
    near = [polynomial.polyval(z, c) for c in (*sums, *map(polynomial.polyder, sums))]
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


@dataclass(frozen=True, eq=False)
class Chart:
    """Coordinates y (..., 2) of the displacements of a two-dimensional d, and the window in which curves are sought."""

    map: LegendreMap
    window: np.ndarray  # half-widths
    projective: bool  # |y| <= pi with opposite points identified

    @staticmethod
    def of(system: InvariantSystem, integrator: EulerPoincareSuslov, extent: float | None = None) -> Chart:
        """`extent` bounds the coordinates that are not angles (default 4, in units of h w)."""
        f = angle_map(system, integrator)
        if f.rank != 2:
            raise InvalidInput(f"curves are drawn on a two-dimensional d; this one has dimension {f.rank}")
        projective = f.angles and system.group.is_rotation_group() and system.group.dim > 1
        window = np.full(2, 4.0 if extent is None else float(extent))
        if isinstance(f, AlgebraicMap) and f.angles:
            turning = np.array([np.abs(np.linalg.eigvals(E)).max() > 0 for E in f.basis])
            window = np.where(turning, 1.02 * np.pi, window)
        return Chart(f, window, projective)

    def inside(self, y: np.ndarray) -> np.ndarray:
        """Where a point is in the chart."""
        if self.projective:
            return np.asarray(np.hypot(y[..., 0], y[..., 1]) < 1.02 * np.pi)
        return np.asarray(np.all(np.abs(y) <= self.window, -1))

    def from_coordinates(self, x: ArrayLike) -> np.ndarray:
        """y of points given in the integrator's own coordinates."""
        f = self.map
        if not (isinstance(f, AlgebraicMap) and f.angles and isinstance(f.integrator.retraction, Cayley)):
            return np.asarray(x)
        W = AlgebraicMap(f.system, f.integrator).displacement(np.atleast_2d(x))
        y = np.array([logarithm(f, w) for w in W]) @ np.linalg.pinv(f.subspace).T
        return np.asarray(y.reshape(np.shape(x)))

    def antipode(self, y: np.ndarray) -> np.ndarray:
        """The other coordinates of a rotation: y (1 - 2 pi/|y|)."""
        return np.asarray(y * (1 - 2 * np.pi / np.hypot(y[..., 0], y[..., 1]))[..., None])

    def zeros(self, function: Batched, *, points: int = 201) -> list[np.ndarray]:
        """The curves function(y) = 0 in the chart: polylines (k, 2) whose points satisfy the equation to round-off."""
        from contourpy import contour_generator

        axes = [np.linspace(-width, width, points + i) for i, width in enumerate(self.window)]  # 0 is no grid point
        grid = np.stack(np.meshgrid(*axes), axis=-1)
        values = np.where(self.inside(grid), function(grid), np.nan)
        lines = contour_generator(axes[0], axes[1], np.ma.masked_invalid(values)).lines(0.0)
        return [self._refined(function, np.asarray(line)) for line in lines if len(line) > 1]

    def _refined(self, function: Batched, y: np.ndarray) -> np.ndarray:
        """Newton's method along the gradient, which stops where it would leave the neighbourhood of a vertex."""
        begin = y
        for _ in range(6):
            # the gradient, by central differences, only steers Newton's method
            slope = np.stack([(function(y + e) - function(y - e)) / 2e-6 for e in 1e-6 * np.eye(2)], axis=-1)
            size = np.sum(slope**2, -1, keepdims=True)
            new = y - function(y)[:, None] * slope / np.where(size > 0, size, np.inf)
            y = np.where(np.all(np.abs(new - begin) < self.window / 50, -1, keepdims=True), new, y)
        return y


def connected_components(chart: Chart, lines: list[np.ndarray]) -> np.ndarray:
    """The number of the connected component of each line: lines that meet, also across the cut at pi, are one."""
    label = np.arange(len(lines))
    near = 3 * 2 * chart.window.max() / 200
    for i, line in enumerate(lines):
        ends = line[[0, -1]]
        if chart.projective:
            ends = np.vstack([ends, chart.antipode(ends)])
        for j, other in enumerate(lines):
            gaps = np.linalg.norm(ends[:, None] - other[None], axis=-1).min()
            if i != j and gaps < near:
                label[label == label[j]] = label[i]
    return label


MAX_DEGREE = 10
MAX_MONOMIALS = 3000


@dataclass(frozen=True, eq=False)
class Locus:
    """The momentum locus: the impulses h F l_d(W) of all displacements W in tau(d), in the dual of the algebra.

    For the Suslov problem it is a surface in R^3, which meets the plane I d of the continuous motion at 0.
    """

    system: InvariantSystem
    integrator: EulerPoincareSuslov

    @cached_property
    def map(self) -> LegendreMap:
        """The parametrisation y -> h F l_d(W(y)), in coordinates that reach every displacement."""
        return angle_map(self.system, self.integrator)

    def surface(
        self, *, extent: float = 4.0, points: int = 81, angles: tuple[float, float] = (0.0, np.pi)
    ) -> tuple[np.ndarray, np.ndarray]:
        """(y, impulses): a grid of the surface for plotting, shapes (points, points, 2) and (points, points, n).

        On rotations the grid is polar: the angle between `angles`, then the axis (2 arccos(0.8), 2 arccos(0.4) give the
        section 0.4 <= q0 <= 0.8 of Figure 6.2 of fedorov-zenkov); otherwise each coordinate goes up to `extent`.
        """
        chart = self._surface_chart(extent)
        if chart.projective:
            radius, turn = np.meshgrid(np.linspace(*angles, points), np.linspace(0, 2 * np.pi, points), indexing="ij")
            y = radius[..., None] * np.stack([np.cos(turn), np.sin(turn)], -1)
        else:
            axes = [np.linspace(-width, width, points) for width in chart.window]
            y = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        return y, self.map.impulse(y)

    def tangent_plane(self) -> np.ndarray:
        """Unit normals (n - r, n) of the locus at 0, tangent to I d (Proposition 5.1 of garcia-naranjo-jimenez)."""
        return np.linalg.svd(self.map.slope(np.zeros(self.map.rank)).T)[2][self.map.rank :]

    def distance(self, momentum: ArrayLike) -> np.ndarray:
        """rho: the signed distance of momenta (..., n) from d* = I d along each normal, shape (..., n - r).

        The normal points as the last algebra direction that is not in d does: for the Suslov problem M3 > 0 of d* is
        positive.
        """
        image = np.asarray(self.system.inertia) @ self.map.subspace
        normals = np.linalg.svd(image.T)[2][self.map.rank :]
        outer = np.asarray(self.system.annihilator)
        signs = np.sign(np.einsum("ij,ij->i", normals, outer / np.linalg.norm(outer, axis=1, keepdims=True)))
        return np.asarray(momentum @ (normals * np.where(signs == 0, 1, signs)[:, None]).T)

    def bounded(self, *, far: float = 1e6) -> bool:
        """Whether the impulse stays bounded along random lines of displacements, some along each axis of d."""
        f = algebraic_map(self.system, self.integrator) or self.map
        rng = np.random.default_rng(0)
        lines = np.concatenate([rng.normal(size=(100, f.rank)), np.repeat(np.eye(f.rank), 20, axis=0)])
        base = rng.normal(size=lines.shape)
        near, distant = (np.abs(f.impulse(base + size * lines)).max() for size in (1e2, far))
        return bool(distant < 10 * near)

    def implicit(self, degree: int | None = None) -> polynomials.Polynomials:
        """The polynomials of lowest (or of this) degree in h M that vanish on the locus, one column each.

        For the Suslov problem p4 with Moser-Veselov (the Steiner quartic (6.11) of fedorov-zenkov for diagonal J) and
        q7 with Cayley, up to a factor. They are the null space of the matrix of monomials on complex points of the
        locus, so that no rank is lost to real gaps.
        """
        f = algebraic_map(self.system, self.integrator)
        if f is None:
            raise InvalidInput("the locus of this method is not algebraic: it has no polynomial equation")
        for trial in range(1, MAX_DEGREE + 1) if degree is None else (degree,):
            size = len(polynomials.exponents(f.dim, trial))
            if size > MAX_MONOMIALS:
                break
            rng, count = np.random.default_rng(1), 3 * size // 2 + 20  # complex points of the locus of moderate size
            x = rng.normal(size=(count, f.rank)) + 1j * rng.normal(size=(count, f.rank))
            found = polynomials.vanishing_polynomials(f.impulse(x * np.sqrt(rng.random((count, 1)) + 0.2)), trial)
            if found.coefficients.shape[1]:
                rows = np.abs(found.coefficients).argmax(0)  # the largest coefficient becomes 1
                scaled = found.coefficients / found.coefficients[rows, np.arange(found.coefficients.shape[1])]
                scaled = scaled.real if np.abs(scaled.imag).max() < 1e-8 else scaled
                return polynomials.Polynomials(found.exponents, np.where(np.abs(scaled) < 1e-12, 0.0, scaled))
        tried = trial if degree is None else degree
        raise NumericalFailure(f"no polynomial of degree up to {tried} vanishes on this locus")

    def pinch_points(self, *, extent: float = 6.0, starts: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """(y, impulses) of the real points without a tangent plane, Whitney's umbrellas; shapes (k, 2), (k, n).

        Gauss-Newton for slope(y) v = 0, |v| = 1 from many starts.
        """
        chart, f, rng = self._surface_chart(extent), self.map, np.random.default_rng(0)
        window = chart.window
        y, v = rng.uniform(-1, 1, (starts, 2)) * window, rng.normal(size=(starts, 2))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        for _ in range(60):
            slope = f.slope(y)
            residual = np.concatenate([np.einsum("kij,kj->ki", slope, v), np.sum(v**2, 1, keepdims=True) - 1], axis=1)
            matrix = np.zeros((starts, f.dim + 1, 4))
            matrix[:, :-1, :2], matrix[:, :-1, 2:] = np.einsum("kijl,kj->kil", f.bend(y), v), slope
            matrix[:, -1, 2:] = 2 * v
            update = np.einsum("kij,kj->ki", np.linalg.pinv(matrix), residual)
            size = np.linalg.norm(update, axis=1, keepdims=True)
            update *= np.minimum(1, 0.3 * window.max() / np.maximum(size, 1e-300))
            y, v = y - update[:, :2], v - update[:, 2:]
        values = np.linalg.svd(f.slope(y), compute_uv=False)
        good = (values[:, 1] < 1e-9 * values[:, 0]) & chart.inside(y)
        impulses = f.impulse(y[good])
        places = polynomials.deduplicate(impulses)
        return y[good][[int(np.argmin(np.abs(impulses - place).max(1))) for place in places]], places

    def self_intersections(self, *, extent: float = 6.0, length: float = 12.0) -> list[np.ndarray]:
        """The double curves of a surface: lists of impulses (k, n), each met at two displacements.

        They are followed from the pinch points, where the two displacements meet, until they end in another one or
        leave the window.
        """
        chart = self._surface_chart(extent)
        curves: list[np.ndarray] = []
        for y in self.pinch_points(extent=extent)[0]:
            kernel = np.linalg.svd(self.map.slope(y))[2][-1]
            pairs = _double_curve(self.map, y, kernel, length, chart)
            curve = self.map.impulse(pairs[:, :2])
            if len(curve) <= 2:
                continue
            middle = curve[len(curve) // 2]
            if not any(np.abs(c - middle).max(1).min() < 1e-2 * np.ptp(c, axis=0).max() for c in curves):
                curves.append(curve)
        return curves

    def intersection_with_plane(self, *, extent: float = 4.0, points: int = 201) -> list[tuple[np.ndarray, np.ndarray]]:
        """(y, impulses) along the curves in which the surface meets its tangent plane d* at 0, where they cross."""
        chart, normal = self._surface_chart(extent), self.tangent_plane()[0]
        return [(y, self.map.impulse(y)) for y in chart.zeros(lambda y: self.map.impulse(y) @ normal, points=points)]

    def discriminant(self, *, extent: float = 4.0, points: int = 201) -> list[tuple[np.ndarray, np.ndarray]]:
        """(y, restricted impulses) along the folds det Df = 0 of the projection to restricted momenta, both (k, 2).

        The images are the curves across which the number of real branches changes by two.
        """
        chart = Chart.of(self.system, self.integrator, extent)
        folds = chart.zeros(lambda y: np.linalg.det(self.map.jacobian(y)), points=points)
        return [(y, self.map.restriction(y)) for y in folds]

    def cusps(self, *, extent: float = 4.0, points: int = 201) -> tuple[np.ndarray, np.ndarray]:
        """(y, restricted impulses) of the cusps of the discriminant: the kernel of Df is tangent to the fold."""
        found = []
        for y, image in self.discriminant(extent=extent, points=points):
            if np.ptp(image, axis=0).max() < 1e-9 * np.abs(self.map.jacobian(np.zeros(2))).max():
                continue  # a fold that collapses to a point
            ahead = np.diff(image, axis=0)
            for k in np.flatnonzero(np.sum(ahead[1:] * ahead[:-1], axis=1) < 0):  # the image turns back
                found.append(_cusp(self.map, y[k + 1]))
        places = polynomials.deduplicate(np.array([y for y in found if y is not None]).reshape(-1, 2))
        return places, self.map.restriction(places)

    def _surface_chart(self, extent: float) -> Chart:
        if (self.map.rank, self.map.dim) != (2, 3):
            raise InvalidInput(
                "this is for surfaces: d of dimension 2 in an algebra of dimension 3; "
                f"given {self.map.rank} in {self.map.dim}"
            )
        return Chart.of(self.system, self.integrator, extent)


def _double_curve(f: LegendreMap, y: np.ndarray, kernel: np.ndarray, length: float, chart: Chart) -> np.ndarray:
    """Pairs (k, 4) of displacements with one impulse, from a pinch point on: pseudo-arclength continuation."""
    # on rotations y is regular below 2 pi
    reach = (lambda y: np.linalg.norm(y, axis=-1) < 6.0) if chart.projective else chart.inside
    pair = np.concatenate([y + 0.02 * kernel, y - 0.02 * kernel])
    direction = np.concatenate([kernel, -kernel]) / np.sqrt(2)
    path, step, gone = [np.concatenate([y, y])], 0.05, 0.0

    def difference(pair: np.ndarray) -> np.ndarray:
        first, second = (f.displacement(y) if isinstance(f, AlgebraicMap) else y for y in (pair[:2], pair[2:]))
        return np.ravel(first - second)

    gap = difference(pair)
    for _ in range(2000):
        new = pair
        for _ in range(12):
            residual = np.append(f.impulse(new[:2]) - f.impulse(new[2:]), (new - pair) @ direction)
            matrix = np.vstack([np.hstack([f.slope(new[:2]), -f.slope(new[2:])]), direction])
            update = np.linalg.lstsq(matrix, residual, rcond=None)[0]
            new = new - update
            if np.abs(update).max() < 1e-12:
                break
        new_gap = difference(new)
        through = len(path) > 1 and new_gap @ gap <= 1e-3 * step**2  # the two displacements meet: another pinch point
        if np.abs(update).max() > 1e-9 or through or not np.all(reach(new.reshape(2, 2))) or gone > length:
            break
        path.append(new)
        gap = new_gap
        tangent = np.linalg.svd(np.hstack([f.slope(new[:2]), -f.slope(new[2:])]))[2][-1]
        direction = tangent if tangent @ direction > 0 else -tangent
        pair, gone = new + step * direction, gone + step
    return np.array(path)


def _cusp(f: LegendreMap, y: np.ndarray) -> np.ndarray | None:
    """Newton's method (numerical slope) for det Df = 0 and its derivative along the kernel = 0."""
    from scipy.optimize import root

    def equations(y: np.ndarray) -> list[float]:
        D, bend = f.jacobian(y), f.curvature(y)
        left, _, right = np.linalg.svd(D)
        kernel, other = right[-1], left[:, -1]
        return [np.linalg.det(D), other @ np.einsum("ijk,j,k->i", bend, kernel, kernel)]

    found = root(equations, y, tol=1e-13)
    return found.x if np.abs(found.fun).max() < 1e-8 and np.linalg.norm(found.x - y) < 0.5 else None
