"""Tables for notebooks, and how a system shows itself in one.

Holonomic constraints phi(t, g) = 0: what they ask of velocities, and the nearest configuration that satisfies them.

Where a motion may start: configurations and velocities held against the constraints of a system, and what is nearest to them.

A nonholonomic system is a triple (Q, L, D): a Lie group, a Lagrangian and a constraint A(t, g) xi = b(t, g).

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

from ..errors import InvalidInput, OffConstraint
from ..groups import Group, axes
from ..kernels import compiled
from ..numerics import (
    Root,
    array,
    depends,
    fibre,
    find_root,
    follow_root,
    null_basis,
    solve,
    solve_reduced,
    solve_saddle,
)


def system_html(system: Any) -> str:
    """Group, components, constraint and parameters."""
    m, k = system.constraints, system.holonomic_constraints
    rows: dict[str, Any] = {
        "configurations": f"{system.group}, dimension {system.group.dim}",
        "velocity": "(" + ", ".join(axis.name for axis in axes(system.group)) + ")",
        "constraints": f"{m}: D has rank {system.group.dim - m}" if m else "none: the system is free",
    }
    if k:
        rows["constraints"] += (
            f"; {k} of them holonomic, phi(g) = 0: configurations stay on a leaf of dimension {system.group.dim - k}"
        )
    rows |= {name: _numbers(value) for name, value in system.constants().items()}
    return table(type(system).__name__, rows)


def parameter_names(parameters: Any) -> dict[str, Any]:
    """The leaves of a pytree of parameters, by names such as "parameter inertia.0"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
    return {"parameter " + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def table(title: str, rows: dict[str, Any]) -> str:
    """Names and values, one row each."""
    from html import escape

    cell = "text-align:left; vertical-align:top; font-family:inherit"
    lines = "".join(
        f'<tr><th style="{cell}">{escape(str(name))}</th><td style="{cell}; white-space:pre">{escape(str(value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{lines}</table>"


def _numbers(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=6, threshold=40)


Phi = Callable[[Any, Any], Array]


def tangency(group: Group, phi: Phi, t, g) -> tuple[Array, Array]:
    """(dphi, phi_t) with <dphi, eta> = d/ds phi(t, g exp(s eta)): phi = 0 differentiated in time is dphi xi + phi_t = 0."""
    rows = jax.jacfwd(lambda eta: phi(t, group.shift(g, eta)))(jnp.zeros(group.dim))
    time = jnp.asarray(t, float)
    return rows, jax.jvp(lambda s: phi(s, g), (time,), (jnp.ones_like(time),))[1]


def nearest(group: Group, phi: Phi, metric: Array, t, g) -> tuple[Any, Root]:
    """The configuration g exp(eta) with phi = 0 and the least <M eta, eta>, by Newton's method on M eta = (d phi)^T nu.

    It begins with the step of least length that solves the linearised constraint, as projection methods do (Hairer, Lubich, Wanner IV.4).
    """

    def moved(eta):
        return phi(t, group.compose(g, group.exp(eta)))

    n, slope = group.dim, jax.jacfwd(moved)
    metric = metric * (n / jnp.trace(metric))
    size = 1.0 + jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(g)]))
    rows = tangency(group, phi, t, g)[0]
    weights = solve(metric, rows.T)
    pull = -solve(rows @ weights, phi(t, g))

    def equations(shifted):
        """In unknowns of the size of g, for Newton's iteration ends at the round-off of its unknowns."""
        x = shifted - size
        return jnp.concatenate([metric @ x[:n] - slope(x[:n]).T @ x[n:], moved(x[:n])])

    root = find_root(equations, size + jnp.concatenate([weights @ pull, pull]))
    return group.normalise(group.compose(g, group.exp(root.x[:n] - size))), root


TOLERANCE = 1e-9


def require_admissible(system: Any, t, g, xi) -> None:
    """Refuse a configuration off phi = 0 or a velocity off D, saying how far it is off."""
    if _traced((system, t, g, xi)):
        return
    xi = vector(xi, system.group.dim, "velocity xi")
    rows, off, phi = (np.asarray(value) for value in _constraint(system, t, g, xi))
    k = phi.shape[0]
    if rows.shape[0] and np.linalg.matrix_rank(rows) < rows.shape[0]:
        theirs = f" (the last {k} are the derivative of phi)" if k else ""
        raise InvalidInput(
            f"the {rows.shape[0]} constraint rows A(t, g){theirs} are linearly dependent at the initial state: {rows.tolist()}"
        )
    if np.any(~(np.abs(phi) <= TOLERANCE * (1.0 + np.linalg.norm(rows[rows.shape[0] - k :], axis=1)))):
        raise OffConstraint(
            f"the initial configuration {_listed(g)} is off the holonomic constraint: |phi| = {np.abs(phi).max():.3g}. "
            f"The nearest one is system.project_configuration(g) = {_listed(nearest_configuration(system, g, t))}"
        )
    scale = 1.0 + np.linalg.norm(rows, axis=1) * np.linalg.norm(np.asarray(xi))
    if np.any(np.abs(off) > TOLERANCE * scale):
        raise OffConstraint(
            f"the initial velocity {np.asarray(xi).tolist()} is off the constraint: |A xi - b| = {np.abs(off).max():.3g}. "
            f"The nearest admissible velocity is system.project(g, xi) = {np.asarray(_project(system, t, g, xi)).tolist()}"
        )


def nearest_configuration(system: Any, g, t) -> Any:
    """The configuration with phi = 0 nearest to g in the kinetic metric at g; a clear error where Newton's method finds none."""
    traced = _traced((system, t, g))
    there, found = _nearest(system, t, g if traced else system.group.element(g))
    if not (traced or found):
        raise InvalidInput(f"no configuration with phi = 0 was found near {_listed(g)}: start from one that is nearer")
    return there


def vector(value, size: int, what: str) -> Array:
    """`value` as a finite vector of `size` numbers, or a clear error."""
    given = array(value)
    if given.shape != (size,):
        raise InvalidInput(f"{what} has shape {given.shape}; allowed: ({size},)")
    if not isinstance(given, jax.core.Tracer) and not np.all(np.isfinite(given)):
        raise InvalidInput(f"{what} must be finite; given {np.asarray(given).tolist()}")
    return given


# A system is a pytree, so these are compiled once for all systems of a kind; op by op they would take seconds.
@compiled
def _project(system: Any, t, g, xi):
    return system.project(g, xi, t)


@compiled
def _nearest(system: Any, t, g):
    there, root = nearest(system.group, system.phi, system.metric(t, g, jnp.zeros(system.group.dim)), t, g)
    return there, root.converged


@compiled
def _constraint(system: Any, t, g, xi):
    return system.rows(t, g)(xi), system.residual(t, g, xi), system.phi(t, g)


def _traced(tree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _listed(g: Any):
    """An element as nested lists of numbers."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), g)


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
