"""A nonholonomic system is a triple (Q, L, D): a Lie group, a Lagrangian and a constraint A(t, g) xi = b(t, g).

Holonomic constraints phi(t, g) = 0 add dphi xi = -phi_t to the rows of A and b, after the nonholonomic ones.

Velocities and momenta are left-trivialised: xi = g^-1 g', and a covector mu at g pairs with g xi as mu . xi.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._echelon import null_basis
from ._fibre import fibre, solve_reduced
from ._html import parameter_names, system_html
from ._input import array
from ._jaxpr import depends
from ._linalg import solve, solve_saddle
from ._newton import follow_root
from .admissible import nearest_configuration, require_admissible, vector
from .errors import InvalidInput
from .groups import Group
from .holonomic import tangency
from .kernels.evaluate import compiled

Element = Any


class State(NamedTuple):
    """A point of the motion: time, configuration g, velocity xi in D, momentum in the dual, and the method's own increment.

    `increment` is tau^-1(W)/h of a discrete step (the papers' (u, v)); where a method has none it is the velocity.
    """

    t: Array
    g: Element
    xi: Array
    momentum: Array
    increment: Array


def vary(group: Group, function: Callable[[Element], Any], g: Element) -> Callable[[Array], Any]:
    """eta -> f(g exp(eta)) to first order: what a left-trivialised derivative at g differentiates at eta = 0."""
    return lambda eta: function(group.shift(g, eta))


class MechanicalSystem:
    """What (Q, L, D) determines: the Legendre map, the energy, projections onto D and the equations of motion on D.

    A subclass evaluates the Lagrangian `L(t, g, xi)`, the constraint `A(t, g)`, its drift `b(t, g)` and the force
    `F(t, g, xi, u)`; every derivative is taken by `jax`. Where it has holonomic constraints, `phi(t, g)`, the last rows of A and b
    are theirs.
    """

    group: Group

    @abstractmethod
    def L(self, t, g, xi) -> Array:
        """The Lagrangian at the velocity xi = g^-1 g'."""

    @abstractmethod
    def A(self, t, g) -> Array:
        """The rows (m, n) of the constraint A(t, g) xi = b(t, g)."""

    @abstractmethod
    def b(self, t, g) -> Array:
        """The drift (m,) of the constraint: 0 where D is a linear distribution."""

    @abstractmethod
    def F(self, t, g, xi, u) -> Array:
        """The force (n,), a covector on the algebra, under the control u."""

    def phi(self, t, g) -> Array:
        """The holonomic constraints (k,), zero where configurations may be; none by default."""
        return jnp.zeros(0)

    # -- derivatives ---------------------------------------------------------------------------------------------------
    def momentum(self, t, g, xi) -> Array:
        """The Legendre map L_xi."""
        return jax.grad(self.L, argnums=2)(t, g, xi)

    def L_g(self, t, g, xi) -> Array:
        """The left-trivialised derivative <L_g, eta> = d/ds L(t, g exp(s eta), xi)."""
        return jax.grad(vary(self.group, lambda h: self.L(t, h, xi), g))(self._zero())

    def metric(self, t, g, xi) -> Array:
        """The kinetic metric L_xi_xi."""
        return jax.jacfwd(lambda x: self.momentum(t, g, x))(xi)

    def energy(self, t, g, xi) -> Array:
        """<L_xi, xi> - L."""
        return self.momentum(t, g, xi) @ xi - self.L(t, g, xi)

    @property
    def constraints(self) -> int:
        """The number m of constraint rows, those of holonomic constraints included."""
        return jax.eval_shape(self.A, 0.0, self.group.identity()).shape[0]

    @property
    def holonomic_constraints(self) -> int:
        """The number k of holonomic constraints."""
        return jax.eval_shape(self.phi, 0.0, self.group.identity()).shape[0]

    def residual(self, t, g, xi) -> Array:
        """A xi - b, zero on D."""
        return self.A(t, g) @ xi - self.b(t, g)

    def rows(self, t, g) -> Callable[[Array], Array]:
        """xi -> the derivative of the constraint in xi, along which its reaction acts: always A(t, g) for a linear one."""
        rows = self.A(t, g)
        return lambda xi: rows

    # -- D and its dual ------------------------------------------------------------------------------------------------
    def project(self, g, xi, t=0.0) -> Array:
        """The admissible velocity nearest to xi in the kinetic metric at g."""
        xi = jnp.asarray(xi, float)
        return xi + self._saddle(t, g, xi, self._zero(), -self.residual(t, g, xi))[0]

    def project_configuration(self, g, t=0.0) -> Element:
        """The configuration with phi = 0 nearest to g in the kinetic metric at g."""
        return nearest_configuration(self, g, t) if self.holonomic_constraints else g

    def velocity(self, t, g, momentum) -> Array:
        """The velocity in D whose momentum agrees with `momentum` on D: L_xi + A^T l = momentum, A xi = b."""
        return _inverted(self, t, g, momentum)

    @property
    def quadratic(self) -> bool:
        """Whether L is known to be quadratic in xi (then the Legendre map is affine and needs no iteration)."""
        return not depends(lambda xi: self.metric(0.0, self.group.identity(), xi), self._zero())

    def frame(self, t, g, reference: Array) -> Array:
        """Vectors (n, n-m) that span ker A(t, g): the kinetic projection of the columns of `reference`, smooth in g."""
        metric, rows = self.metric(t, g, self._zero()), self.A(t, g)
        weights = solve(metric, rows.T)
        return reference - weights @ solve(rows @ weights, rows @ reference) if rows.shape[0] else reference

    # -- equations of motion -------------------------------------------------------------------------------------------
    def acceleration(self, t, g, xi, u=None) -> tuple[Array, Array]:
        """(xi', l) of the ODE on D: d/dt L_xi = ad*_xi L_xi + L_g + F + A^T l with A xi = b differentiated in time.

        On R^n this is Proposition 2.1 and (23) of jimenez-scheurle.
        """
        momentum = self.momentum(t, g, xi)
        direction = self._zero(), (jnp.ones_like(xi[0]), xi)

        def along(function):
            def moved(s, eta):
                return function(t + s, self.group.shift(g, eta))

            zero = (jnp.zeros_like(xi[0]), direction[0])
            return jax.jvp(moved, zero, direction[1])[1]

        force = self.group.ad_star(xi, momentum) + self.L_g(t, g, xi) + self.F(t, g, xi, u)
        top = force - along(lambda s, h: self.momentum(s, h, xi))
        bottom = -along(lambda s, h: self.residual(s, h, xi))
        rate, multipliers = self._saddle(t, g, xi, top, bottom)
        return rate, -multipliers

    def _saddle(self, t, g, xi, top, bottom) -> tuple[Array, Array]:
        """(x, l) with L_xi_xi x + A^T l = top and A x = bottom."""
        units = fibre(self, t, g, xi)
        solve = solve_saddle if units is None else partial(solve_reduced, units)
        return solve(self.metric(t, g, xi), self.rows(t, g)(xi), top, bottom)

    def multipliers(self, t, g, xi, u=None) -> Array:
        """The reaction l of the continuous motion, (23) of jimenez-scheurle on any group."""
        return self.acceleration(t, g, xi, u)[1]

    # -- states --------------------------------------------------------------------------------------------------------
    def state(self, g=None, xi=None, *, momentum=None, t=0.0) -> State:
        """A state from a configuration (default: identity) and a velocity in D or a momentum (all components, or those on D)."""
        g = self.group.identity() if g is None else self.group.element(g)
        if (xi is None) == (momentum is None):
            raise InvalidInput("give exactly one of xi (a velocity) and momentum")
        t = array(t)
        if xi is None:
            xi = _velocity(self, t, g, self._covector(t, g, momentum))
        xi = vector(xi, self.group.dim, "velocity xi")
        self.require_admissible(t, g, xi)
        return State(t, g, xi, _momentum(self, t, g, xi), xi)

    def require_admissible(self, t, g, xi) -> None:
        """Refuse a configuration off phi = 0 or a velocity off D, saying how far it is off."""
        require_admissible(self, t, g, xi)

    def _covector(self, t, g, momentum) -> Array:
        """All n components of a momentum given by n components, or by its n - m components in the basis of D."""
        n, rank = self.group.dim, self.group.dim - self.constraints
        momentum = array(momentum)
        if momentum.shape == (n,):
            return vector(momentum, n, "momentum")
        if momentum.shape != (rank,):
            raise InvalidInput(f"momentum has shape {momentum.shape}; allowed: ({n},) or, on D, ({rank},)")
        return _extend(self.basis(t, g), vector(momentum, rank, "momentum on D"))

    def basis(self, t, g) -> Array:
        """The documented basis (n, n-m) of D at g: the null space of A in reduced echelon form."""
        return array(null_basis(np.asarray(_rows(self, t, g))))

    def _zero(self) -> Array:
        return jnp.zeros(self.group.dim)

    def constants(self) -> dict[str, Any]:
        """The numbers that tell this system from others of its kind, by name."""
        return parameter_names(getattr(self, "parameters", None))

    def _repr_html_(self) -> str:
        return system_html(self)


# A system is a pytree, so these are compiled once for all systems of a kind; op by op they would take seconds.
@compiled
def _velocity(system: MechanicalSystem, t, g, momentum):
    return system.velocity(t, g, momentum)


@compiled
def _momentum(system: MechanicalSystem, t, g, xi):
    return system.momentum(t, g, xi)


@compiled
def _extend(basis: Array, restricted: Array):
    return basis @ solve(basis.T @ basis, restricted)


@compiled
def _rows(system: MechanicalSystem, t, g):
    return system.A(t, g)


@jax.jit  # traced once for all its uses
def _inverted(system: MechanicalSystem, t, g, momentum) -> Array:
    rows = system.A(t, g)
    n, m = system.group.dim, rows.shape[0]

    def mismatch(x):
        return jnp.concatenate([system.momentum(t, g, x[:n]) + rows.T @ x[n:] - momentum, system.residual(t, g, x[:n])])

    # For the usual Lagrangian, quadratic in xi, these equations are linear. For others a full Newton step may leave the domain of L:
    # follow the momentum from that of rest.
    if not system.quadratic:
        return follow_root(mismatch, jnp.zeros(n + m)).x[:n]
    rest = jnp.zeros(n)
    return system._saddle(t, g, rest, momentum - system.momentum(t, g, rest), -system.residual(t, g, rest))[0]


@jax.jit  # traced once for all its uses
def _tangency(system: MechanicalSystem, t, g) -> tuple[Array, Array]:
    return tangency(system.group, system.phi, t, g)


@lru_cache(maxsize=1024)
def _once(function: Callable) -> Callable:
    """The function as a call in its own right: a step differentiates a Lagrangian thirty times over, but JAX then traces it once."""
    return jax.jit(function)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("parameters",),
    meta_fields=("group", "lagrangian", "constraint", "drift", "force", "holonomic"),
)
@dataclass(frozen=True, eq=False)
class System(MechanicalSystem):
    """(Q, L, D) from functions: `lagrangian(t, g, xi, p)`, `constraint(t, g, p)` -> A, `drift(t, g, p)` -> b, `force(t, g, xi, u, p)`.

    `constraint=None` leaves the system free. `holonomic(t, g, p)` -> phi (k,) keeps configurations on phi = 0; its derivative gives the
    last k rows of A and b. `parameters` is the pytree p: ensembles, sweeps and gradients reach it.
    """

    group: Group
    lagrangian: Callable
    constraint: Callable | None = None
    _: KW_ONLY
    parameters: Any = None
    drift: Callable | None = None
    force: Callable | None = None
    holonomic: Callable | None = None

    def L(self, t, g, xi) -> Array:
        return _once(self.lagrangian)(t, g, xi, self.parameters)

    def A(self, t, g) -> Array:
        rows = self._rows(t, g)
        return rows if self.holonomic is None else jnp.concatenate([rows, _tangency(self, t, g)[0]])

    def b(self, t, g) -> Array:
        drift = self._drift(t, g)
        return drift if self.holonomic is None else jnp.concatenate([drift, -_tangency(self, t, g)[1]])

    def phi(self, t, g) -> Array:
        if self.holonomic is None:
            return jnp.zeros(0)
        value = jnp.asarray(self.holonomic(t, g, self.parameters))
        if value.ndim != 1 or value.shape[0] >= self.group.dim:
            raise InvalidInput(
                f"holonomic(t, g, p) gave shape {value.shape}; allowed: (k,) with k < {self.group.dim}, one entry for each "
                f"holonomic constraint on {self.group}"
            )
        return value

    def _rows(self, t, g) -> Array:
        """The nonholonomic rows of A."""
        if self.constraint is None:
            return jnp.zeros((0, self.group.dim))
        rows = jnp.asarray(_once(self.constraint)(t, g, self.parameters))
        room = self.group.dim - self.holonomic_constraints
        if rows.ndim != 2 or rows.shape[1] != self.group.dim or rows.shape[0] >= room:
            raise InvalidInput(
                f"constraint(t, g, p) gave shape {rows.shape}; allowed: (m, {self.group.dim}) with m < {room}, "
                f"one row for each constraint on xi in the algebra of {self.group}"
            )
        return rows

    def _drift(self, t, g) -> Array:
        """The entries of b for the nonholonomic rows."""
        m = self._rows(t, g).shape[0]
        if self.drift is None:
            return jnp.zeros(m)
        value = jnp.asarray(self.drift(t, g, self.parameters))
        if value.shape != (m,):
            raise InvalidInput(f"drift(t, g, p) gave shape {value.shape}; allowed: ({m},), one entry a constraint row")
        return value

    def F(self, t, g, xi, u) -> Array:
        if self.force is None:
            return jnp.zeros(self.group.dim)
        return jnp.asarray(self.force(t, g, xi, u, self.parameters))
