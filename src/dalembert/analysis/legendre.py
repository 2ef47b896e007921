"""The discrete Legendre map x -> h F l_d(tau(B x)) of an LL system, as a map that analysis can evaluate anywhere.

Everything is scaled by h as in the papers: x = h w are coordinates of the displacement W in the basis B of d, and h M is the
impulse; h then appears nowhere. With f(x) = iota* h F l_d(tau(B x)) a step is f(x') = iota* Ad*_W h M(x).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..integrators.euler_poincare_suslov import EulerPoincareSuslov
from ..invariant import InvariantSystem
from .homotopy import solve

STAGES = 16
NEWTON = 40


class LegendreMap(ABC):
    """f and its derivatives; x has shape (..., r), impulses (..., n)."""

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov):
        self.system, self.integrator = system, integrator
        self.subspace = np.asarray(system.subspace)
        self.dim, self.rank = self.subspace.shape

    @abstractmethod
    def impulse(self, x) -> np.ndarray:
        """h F l_d(tau(B x)), shape (..., n)."""

    @abstractmethod
    def slope(self, x) -> np.ndarray:
        """Its derivative in x, shape (..., n, r)."""

    @abstractmethod
    def bend(self, x) -> np.ndarray:
        """Its second derivative in x, shape (..., n, r, r)."""

    @abstractmethod
    def transported(self, x) -> np.ndarray:
        """iota* Ad*_W h F l_d(W), the right side of a step, shape (..., r)."""

    @abstractmethod
    def transported_slope(self, x) -> np.ndarray:
        """Its derivative, shape (..., r, r)."""

    def restricted(self, x) -> np.ndarray:
        """f(x) = iota* h F l_d(tau(B x)), shape (..., r)."""
        return self.impulse(x) @ self.subspace

    def jacobian(self, x) -> np.ndarray:
        """Df(x), shape (..., r, r)."""
        return np.swapaxes(self.subspace, 0, 1) @ self.slope(x)

    def curvature(self, x) -> np.ndarray:
        """D^2 f(x), shape (..., r, r, r)."""
        return np.einsum("ai,...ajk->...ijk", self.subspace, self.bend(x))

    def target(self, momentum, step: float) -> np.ndarray:
        """h iota* M of a momentum: all n components, or the r of the basis of d."""
        momentum = np.asarray(momentum)
        if momentum.shape not in ((self.dim,), (self.rank,)) or not np.all(np.isfinite(momentum)):
            raise InvalidInput(
                f"momentum is {momentum.tolist()}; allowed: {self.dim} finite numbers, or {self.rank} in the basis of d"
            )
        full = momentum.shape == (self.dim,) and self.dim != self.rank
        return step * (momentum @ self.subspace if full else momentum)

    def solve(self, target, guess) -> tuple[np.ndarray, np.ndarray]:
        """(x, whether it converged): Newton's method for f(x) = target from a guess, on every row of a batch."""
        x = np.array(np.broadcast_to(guess, np.broadcast_shapes(np.shape(guess), np.shape(target))))
        size = np.full(x.shape[:-1], np.inf)
        with np.errstate(all="ignore"):
            for _ in range(NEWTON):
                update = solve(self.jacobian(x), self.restricted(x) - target)
                x, size = x - update, np.abs(update).max(-1) / (1e-300 + np.abs(x).max(-1))
                if np.all(~(size > 1e-13)):
                    break
        return x, size < 1e-9

    def image(self, x) -> tuple[np.ndarray, np.ndarray]:
        """(x', whether it exists): one step on the branch that a run follows, for every row of a batch.

        Along the branch det Df keeps its sign; a root where it has the other one belongs to another branch.
        """
        target, sign = self.transported(x), self.orientation(x)
        new, good = self.solve(target, x)
        good = good & (self.orientation(new) == sign)
        if not np.all(good):
            main = sign == self.orientation(np.zeros(self.rank))  # the sheet through 0: come from 0, far from its edge
            begin = np.where(main[..., None], 0.0, x)
            other, exists = self._followed(begin, np.where(main[..., None], 0.0, self.restricted(x)), target, sign)
            new, good = np.where(good[..., None], new, other), good | exists
        return np.where(good[..., None], new, np.nan), good

    def start(self, target) -> tuple[np.ndarray, np.ndarray]:
        """(x, whether it exists): the solution of f(x) = target on the branch through 0."""
        target = np.asarray(target, float)
        zero = np.zeros_like(target)
        x, exists = self._followed(zero, zero, target, self.orientation(zero))
        return np.where(exists[..., None], x, np.nan), exists

    def orientation(self, x) -> np.ndarray:
        """The sign of det Df(x)."""
        with np.errstate(all="ignore"):
            return np.sign(np.linalg.det(np.nan_to_num(self.jacobian(x))))

    def _followed(self, x, begin, target, sign) -> tuple[np.ndarray, np.ndarray]:
        """The end of the homotopy f(x) = (1 - s) begin + s target, and whether the branch of this orientation went on."""
        alive = np.ones(np.shape(target)[:-1], bool)
        for s in np.arange(1, STAGES + 1) / STAGES:
            x, fine = self.solve((1 - s) * begin + s * target, x)
            alive = alive & fine & (self.orientation(x) == sign)
            if not np.any(alive):
                break
        return x, alive

    def require_reversible(self) -> None:
        """Refuse a map that x -> -x does not reverse: it does where l_d(W^-1) = l_d(W), as for every Lagrangian with a name."""
        x = 0.1 * np.random.default_rng(0).normal(size=self.rank)
        if np.abs(self.transported(x) + self.restricted(-x)).max() > 1e-9 * np.abs(self.restricted(x)).max():
            raise InvalidInput(
                "this discrete Lagrangian is not symmetric, l_d(W^-1) != l_d(W): its map has no known inverse"
            )

    def orbit(self, x, steps: int) -> np.ndarray:
        """x_0, ..., x_steps (backwards for negative steps), shape (|steps| + 1, ..., r); NaN after the branch ends."""
        if steps < 0:
            self.require_reversible()
        sign, x = (1.0, np.asarray(x, float)) if steps >= 0 else (-1.0, -np.asarray(x, float))
        points = [x]
        for _ in range(abs(steps)):
            points.append(self.image(points[-1])[0])
        return sign * np.array(points)


class TracedMap(LegendreMap):
    """Any retraction and any discrete Lagrangian, by JAX at real points; a Lagrangian of one's own is taken at `step`."""

    def __init__(self, system: InvariantSystem, integrator: EulerPoincareSuslov, step: float = 1.0):
        super().__init__(system, integrator)
        basis, group = system.subspace, system.group

        def impulse(x):
            return integrator.impulse(system, basis @ x, step)

        def transported(x):
            return basis.T @ group.Ad_star(integrator.retraction.tau(group, basis @ x), impulse(x))

        self._impulse, self._transported = _batched(impulse), _batched(transported)
        self._slope, self._turned = _batched(jax.jacfwd(impulse)), _batched(jax.jacfwd(transported))
        self._bend = _batched(jax.jacfwd(jax.jacfwd(impulse)))

    def impulse(self, x) -> np.ndarray:
        return self._impulse(x)

    def slope(self, x) -> np.ndarray:
        return self._slope(x)

    def bend(self, x) -> np.ndarray:
        return self._bend(x)

    def transported(self, x) -> np.ndarray:
        return self._transported(x)

    def transported_slope(self, x) -> np.ndarray:
        return self._turned(x)


def _batched(function):
    """A jitted function of one point, mapped over all leading axes."""
    mapped = jax.jit(jax.vmap(function))

    def call(x):
        x = np.asarray(x, float)
        flat = mapped(jnp.asarray(x.reshape(-1, x.shape[-1])))
        return np.asarray(flat).reshape(*x.shape[:-1], *flat.shape[1:])

    return call


def constrained_energy(system: InvariantSystem, momentum) -> np.ndarray:
    """E_c of momenta (..., n), or restricted ones (..., r)."""
    basis = np.asarray(system.subspace)
    momentum = np.asarray(momentum)
    restricted = momentum @ basis if momentum.shape[-1] == basis.shape[0] != basis.shape[1] else momentum
    metric = basis.T @ np.asarray(system.inertia) @ basis
    return np.einsum("...i,ij,...j->...", restricted, np.linalg.inv(metric), restricted) / 2


def energy_on(f: LegendreMap, x) -> np.ndarray:
    """E_c of the impulse at coordinates x: h^2 times the energy."""
    return constrained_energy(f.system, f.restricted(x))
