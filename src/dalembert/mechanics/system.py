"""A nonholonomic system is a triple (Q, L, D): a Lie group, a Lagrangian and a constraint A(t, g) xi = b(t, g).

`MechanicalSystem` has all that the triple determines, `System` builds one from functions, and `State` is a point of a
motion. Holonomic constraints phi(t, g) = 0 add the rows dphi xi = -phi_t to A and b, after the nonholonomic ones.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from html import escape
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, OffConstraint
from ..groups import Group
from ..kernels import compile_function
from ..numerics import (
    Root,
    array,
    depends,
    fibre,
    find_root,
    follow_root,
    is_traced,
    null_basis,
    solve,
    solve_reduced,
    solve_saddle,
)
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Float, LinearMap, Number, Parameters, Scalar, Velocity

ADMISSIBLE_TOLERANCE = 1e-9  # how far, relative to the constraint, a start may be off it
Phi = Callable[[Any, Any], Array]  # (t, g) -> the values (k,) of holonomic constraints


def gradient(function: Callable[[Array], Array], x: Array) -> Array:
    """The derivative of a number in a vector, in reverse mode."""
    return cast(Array, jax.grad(function)(x))


def jacobian(function: Callable[[Array], Array], x: Array) -> Array:
    """The derivative of a vector in a vector, in forward mode."""
    return cast(Array, jax.jacfwd(function)(x))


def tangency(group: Group, phi: Phi, t: Scalar, g: Element) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
    """(dphi, phi_t) of dphi xi + phi_t = 0, phi = 0 differentiated in time: <dphi, eta> = d/ds phi(t, g exp(s eta))."""
    rows = jacobian(lambda eta: phi(t, group.shift(g, eta)), jnp.zeros(group.dim))
    time = jnp.asarray(t, float)
    return rows, jax.jvp(lambda s: phi(s, g), (time,), (jnp.ones_like(time),))[1]


def nearest(group: Group, phi: Phi, metric: Float[Array, "n n"], t: Scalar, g: Element) -> tuple[Element, Root]:
    """The configuration g exp(eta) with phi = 0 and the least <M eta, eta>, by Newton's method on M eta = (d phi)^T nu.

    It begins with the step of least length that solves the linearised constraint, as projection methods do (Hairer,
    Lubich, Wanner IV.4).
    """

    def moved(eta: Array) -> Array:
        return phi(t, group.compose(g, group.exp(eta)))

    n = group.dim
    metric = metric * (n / jnp.trace(metric))
    size = 1.0 + jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(g)]))
    rows = tangency(group, phi, t, g)[0]
    weights = solve(metric, rows.T)
    pull = -solve(rows @ weights, phi(t, g))

    def equations(shifted: Array) -> Array:
        """In unknowns of the size of g, for Newton's iteration ends at the round-off of its unknowns."""
        x = shifted - size
        return jnp.concatenate([metric @ x[:n] - jacobian(moved, x[:n]).T @ x[n:], moved(x[:n])])

    root = find_root(equations, size + jnp.concatenate([weights @ pull, pull]))
    return group.normalise(group.compose(g, group.exp(root.x[:n] - size))), root


def vector(value: Any, size: int, what: str) -> Array:
    """`value` as a finite vector of `size` numbers, or a clear error."""
    given = array(value)
    if given.shape != (size,):
        raise InvalidInput(f"{what} has shape {given.shape}; allowed: ({size},)")
    if not is_traced(given) and not np.all(np.isfinite(given)):
        raise InvalidInput(f"{what} must be finite; given {np.asarray(given).tolist()}")
    return given


class State(NamedTuple):
    """A point of the motion: time, configuration g, velocity xi in D, momentum, and the increment of the method.

    `increment` is tau^-1(W)/h of a discrete step (the papers' (u, v)); where a method has none it is the velocity.
    """

    t: Array
    g: Element
    xi: Array
    momentum: Array
    increment: Array


class MechanicalSystem:
    """What (Q, L, D) determines: the Legendre map, the energy, projections onto D and the equations of motion on D.

    A subclass evaluates the Lagrangian `L(t, g, xi)`, the constraint `A(t, g)`, its drift `b(t, g)` and the force `F(t,
    g, xi, u)`; every derivative is taken by `jax`. Where it has holonomic constraints, `phi(t, g)`, the last rows of A
    and b are theirs.
    """

    group: Group

    @abstractmethod
    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        """The Lagrangian at the velocity xi = g^-1 g'."""

    @abstractmethod
    def A(self, t: Scalar, g: Element) -> LinearMap:
        """The rows (m, n) of the constraint A(t, g) xi = b(t, g)."""

    @abstractmethod
    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        """The drift (m,) of the constraint: 0 where D is a linear distribution."""

    @abstractmethod
    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        """The force (n,), a covector on the algebra, under the control u."""

    def phi(self, t: Scalar, g: Element) -> Float[Array, " k"]:
        """The holonomic constraints (k,), zero where configurations may be; none by default."""
        return jnp.zeros(0)

    def momentum(self, t: Scalar, g: Element, xi: Velocity) -> Covector:
        """The Legendre map L_xi."""
        return cast(Array, jax.grad(self.L, argnums=2)(t, g, xi))

    def L_g(self, t: Scalar, g: Element, xi: Velocity) -> Covector:
        """The left-trivialised derivative <L_g, eta> = d/ds L(t, g exp(s eta), xi)."""
        return gradient(lambda eta: self.L(t, self.group.shift(g, eta), xi), self._zero())

    def metric(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, "n n"]:
        """The kinetic metric L_xi_xi."""
        return jacobian(lambda x: self.momentum(t, g, x), xi)

    def energy(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        """<L_xi, xi> - L."""
        return self.momentum(t, g, xi) @ xi - self.L(t, g, xi)

    @property
    def constraints(self) -> int:
        """The number m of constraint rows, those of holonomic constraints included."""
        return int(jax.eval_shape(self.A, 0.0, self.group.identity()).shape[0])

    @property
    def holonomic_constraints(self) -> int:
        """The number k of holonomic constraints."""
        return int(jax.eval_shape(self.phi, 0.0, self.group.identity()).shape[0])

    def residual(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, " m"]:
        """A xi - b, zero on D."""
        return self.A(t, g) @ xi - self.b(t, g)

    def rows(self, t: Scalar, g: Element) -> Callable[[Array], Array]:
        """xi -> the derivative of the constraint in xi, along which its reaction acts: A(t, g) for a linear one."""
        rows = self.A(t, g)
        return lambda xi: rows

    def project(self, g: Element, xi: Any, t: Scalar = 0.0) -> Velocity:
        """The admissible velocity nearest to xi in the kinetic metric at g."""
        given = jnp.asarray(xi, float)
        return given + self._saddle(t, g, given, self._zero(), -self.residual(t, g, given))[0]

    def project_configuration(self, g: Element, t: Scalar = 0.0) -> Element:
        """The configuration with phi = 0 nearest to g in the kinetic metric at g; refused where Newton finds none."""
        if not self.holonomic_constraints:
            return g
        traced = is_traced((self, t, g))
        there, converged = _nearest(self, t, g if traced else self.group.element(g))
        if not (traced or converged):
            given = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), g)
            raise InvalidInput(f"no configuration with phi = 0 was found near {given}: start from one that is nearer")
        return there

    def velocity(self, t: Scalar, g: Element, momentum: Covector) -> Velocity:
        """The velocity in D whose momentum agrees with `momentum` on D: L_xi + A^T l = momentum, A xi = b."""
        return cast(Array, _inverse_legendre(self, t, g, momentum))

    @property
    def quadratic(self) -> bool:
        """Whether L is known to be quadratic in xi (then the Legendre map is affine and needs no iteration)."""
        return not depends(lambda xi: self.metric(0.0, self.group.identity(), xi), self._zero())

    def frame(self, t: Scalar, g: Element, reference: Float[Array, "n r"]) -> Float[Array, "n r"]:
        """Vectors (n, n-m) that span ker A(t, g): the kinetic projection of the columns of `reference`, smooth in g."""
        metric, rows = self.metric(t, g, self._zero()), self.A(t, g)
        weights = solve(metric, rows.T)
        return reference - weights @ solve(rows @ weights, rows @ reference) if rows.shape[0] else reference

    def acceleration(
        self, t: Scalar, g: Element, xi: Velocity, u: Controls = None
    ) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
        """(xi', l) of the ODE on D: d/dt L_xi = ad*_xi L_xi + L_g + F + A^T l with A xi = b differentiated in time.

        On R^n this is Proposition 2.1 and (23) of jimenez-scheurle.
        """

        def along(function: Callable[[Any, Any], Array]) -> Array:
            """The derivative in time along the motion."""

            def moved(s: Array, eta: Array) -> Array:
                return function(t + s, self.group.shift(g, eta))

            zero, direction = (jnp.zeros_like(xi[0]), self._zero()), (jnp.ones_like(xi[0]), xi)
            return cast(Array, jax.jvp(moved, zero, direction)[1])

        momentum = self.momentum(t, g, xi)
        force = self.group.ad_star(xi, momentum) + self.L_g(t, g, xi) + self.F(t, g, xi, u)
        top = force - along(lambda s, h: self.momentum(s, h, xi))
        bottom = -along(lambda s, h: self.residual(s, h, xi))
        rate, multipliers = self._saddle(t, g, xi, top, bottom)
        return rate, -multipliers

    def _saddle(self, t: Scalar, g: Element, xi: Array, top: Array, bottom: Array) -> tuple[Array, Array]:
        """(x, l) with L_xi_xi x + A^T l = top and A x = bottom."""
        units = fibre(self, t, g, xi)
        solve = solve_saddle if units is None else partial(solve_reduced, units)
        return solve(self.metric(t, g, xi), self.rows(t, g)(xi), top, bottom)

    def multipliers(self, t: Scalar, g: Element, xi: Velocity, u: Controls = None) -> Float[Array, " m"]:
        """The reaction l of the continuous motion, (23) of jimenez-scheurle on any group."""
        return self.acceleration(t, g, xi, u)[1]

    def state(self, g: Any = None, xi: Any = None, *, momentum: Any = None, t: Scalar = 0.0) -> State:
        """A state from a configuration (default: 1) and a velocity in D or a momentum (all of it, or that on D)."""
        g = self.group.identity() if g is None else self.group.element(g)
        if (xi is None) == (momentum is None):
            raise InvalidInput("give exactly one of xi (a velocity) and momentum")
        time = array(t)
        if xi is None:
            xi = _velocity(self, time, g, self._covector(time, g, momentum))
        xi = vector(xi, self.group.dim, "velocity xi")
        self.require_admissible(time, g, xi)
        return State(time, g, xi, _momentum(self, time, g, xi), xi)

    def require_admissible(self, t: Scalar, g: Element, xi: Any) -> None:
        """Refuse a configuration off phi = 0 or a velocity off D, saying how far it is off."""
        if is_traced((self, t, g, xi)):
            return
        xi = vector(xi, self.group.dim, "velocity xi")
        rows, off, phi = (np.asarray(value) for value in _constraint(self, t, g, xi))
        m, k = len(rows), len(phi)
        if m and np.linalg.matrix_rank(rows) < m:
            theirs = f" (the last {k} are the derivative of phi)" if k else ""
            raise InvalidInput(
                f"the {m} constraint rows A(t, g){theirs} are linearly dependent at the initial state: {rows.tolist()}"
            )
        if np.any(~(np.abs(phi) <= ADMISSIBLE_TOLERANCE * (1.0 + np.linalg.norm(rows[m - k :], axis=1)))):
            given, there = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), (g, self.project_configuration(g, t)))
            raise OffConstraint(
                f"the initial configuration {given} is off the holonomic constraint: |phi| = {np.abs(phi).max():.3g}. "
                f"The nearest one is system.project_configuration(g) = {there}"
            )
        scale = 1.0 + np.linalg.norm(rows, axis=1) * np.linalg.norm(np.asarray(xi))
        if np.any(np.abs(off) > ADMISSIBLE_TOLERANCE * scale):
            there = np.asarray(_project(self, t, g, xi)).tolist()
            raise OffConstraint(
                f"the initial velocity {np.asarray(xi).tolist()} is off the constraint: |A xi - b| = "
                f"{np.abs(off).max():.3g}. The nearest admissible velocity is system.project(g, xi) = {there}"
            )

    def _covector(self, t: Array, g: Element, momentum: Any) -> Array:
        """All n components of a momentum given by n components, or by its n - m components in the basis of D."""
        n, rank = self.group.dim, self.group.dim - self.constraints
        momentum = array(momentum)
        if momentum.shape == (n,):
            return vector(momentum, n, "momentum")
        if momentum.shape != (rank,):
            raise InvalidInput(f"momentum has shape {momentum.shape}; allowed: ({n},) or, on D, ({rank},)")
        return _extend(self.basis(t, g), vector(momentum, rank, "momentum on D"))

    def basis(self, t: Scalar, g: Element) -> Float[Array, "n r"]:
        """The documented basis (n, n-m) of D at g: the null space of A in reduced echelon form."""
        return array(null_basis(np.asarray(_rows(self, t, g))))

    def _zero(self) -> Array:
        return jnp.zeros(self.group.dim)

    def constants(self) -> dict[str, Any]:
        """The numbers that tell this system from others of its kind, with names such as "parameter inertia.0"."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(getattr(self, "parameters", None))
        return {"parameter " + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def _repr_html_(self) -> str:
        """Group, components, constraint and parameters, for a notebook."""
        n, m, k = self.group.dim, self.constraints, self.holonomic_constraints
        held = f"{m}: D has rank {n - m}" if m else "none: the system is free"
        if k:
            held += f"; {k} of them holonomic, phi(g) = 0: configurations stay on a leaf of dimension {n - k}"
        about = {
            "configurations": f"{self.group}, dimension {n}",
            "velocity": "(" + ", ".join(axis.name for axis in self.group.axes()) + ")",
            "constraints": held,
        }
        numbers = {
            name: np.array2string(np.asarray(x), precision=6, threshold=40) for name, x in self.constants().items()
        }
        return html_table(type(self).__name__, about | numbers)


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Names and values, one row each, for a notebook."""
    cell = "text-align:left; vertical-align:top; font-family:inherit"
    head, body = f'<tr><th style="{cell}">', f'</th><td style="{cell}; white-space:pre">'
    lines = [f"{head}{escape(str(name))}{body}{escape(str(value))}</td></tr>" for name, value in rows.items()]
    return f"<table><caption><b>{escape(title)}</b></caption>{''.join(lines)}</table>"


# A system is a pytree, so these are compiled once for all systems of a kind; op by op they would take seconds.
@compile_function
def _velocity(system: MechanicalSystem, t: Array, g: Element, momentum: Array) -> Array:
    return system.velocity(t, g, momentum)


@compile_function
def _momentum(system: MechanicalSystem, t: Array, g: Element, xi: Array) -> Array:
    return system.momentum(t, g, xi)


@compile_function
def _extend(basis: Array, restricted: Array) -> Array:
    return basis @ solve(basis.T @ basis, restricted)


@compile_function
def _rows(system: MechanicalSystem, t: Scalar, g: Element) -> Array:
    return system.A(t, g)


@compile_function
def _project(system: MechanicalSystem, t: Scalar, g: Element, xi: Array) -> Array:
    return system.project(g, xi, t)


@compile_function
def _nearest(system: MechanicalSystem, t: Scalar, g: Element) -> tuple[Element, Array]:
    there, root = nearest(system.group, system.phi, system.metric(t, g, jnp.zeros(system.group.dim)), t, g)
    return there, root.converged


@compile_function
def _constraint(system: MechanicalSystem, t: Scalar, g: Element, xi: Array) -> tuple[Array, Array, Array]:
    return system.rows(t, g)(xi), system.residual(t, g, xi), system.phi(t, g)


@jax.jit  # traced once for all its uses
def _inverse_legendre(system: MechanicalSystem, t: Scalar, g: Element, momentum: Array) -> Array:
    rows = system.A(t, g)
    n, m = system.group.dim, rows.shape[0]

    def mismatch(x: Array) -> Array:
        return jnp.concatenate([system.momentum(t, g, x[:n]) + rows.T @ x[n:] - momentum, system.residual(t, g, x[:n])])

    # For the usual Lagrangian, quadratic in xi, these equations are linear. For others a full Newton step may leave the
    # domain of L: follow the momentum from that of rest.
    if not system.quadratic:
        return follow_root(mismatch, jnp.zeros(n + m)).x[:n]
    rest = jnp.zeros(n)
    return system._saddle(t, g, rest, momentum - system.momentum(t, g, rest), -system.residual(t, g, rest))[0]


@jax.jit  # traced once for all its uses
def _tangency(system: MechanicalSystem, t: Scalar, g: Element) -> tuple[Array, Array]:
    return tangency(system.group, system.phi, t, g)


@lru_cache(maxsize=1024)
def _traced_once(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function as one call: a step differentiates a Lagrangian thirty times, but JAX then traces it once."""
    return jax.jit(function)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("parameters",),
    meta_fields=("group", "lagrangian", "constraint", "drift", "force", "holonomic"),
)
@dataclass(frozen=True, eq=False)
class System(MechanicalSystem):
    """(Q, L, D) from functions: `lagrangian(t, g, xi, p)`, `constraint(t, g, p)` -> A, `drift(t, g, p)` -> b.

    `force(t, g, xi, u, p)` is a covector. `constraint=None` leaves the system free. `holonomic(t, g, p)` -> phi (k,)
    keeps configurations on phi = 0; its derivative gives the last k rows of A and b. `parameters` is the pytree p:
    ensembles, sweeps and gradients reach it.
    """

    group: Group
    lagrangian: Callable[..., Array]
    constraint: Callable[..., Array] | None = None
    _: KW_ONLY
    parameters: Parameters = None
    drift: Callable[..., Array] | None = None
    force: Callable[..., Array] | None = None
    holonomic: Callable[..., Array] | None = None

    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        return _traced_once(self.lagrangian)(t, g, xi, self.parameters)

    def A(self, t: Scalar, g: Element) -> LinearMap:
        rows = self._rows(t, g)
        return rows if self.holonomic is None else jnp.concatenate([rows, _tangency(self, t, g)[0]])

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        drift = self._drift(t, g)
        return drift if self.holonomic is None else jnp.concatenate([drift, -_tangency(self, t, g)[1]])

    def phi(self, t: Scalar, g: Element) -> Float[Array, " k"]:
        if self.holonomic is None:
            return jnp.zeros(0)
        value = jnp.asarray(self.holonomic(t, g, self.parameters))
        if value.ndim != 1 or value.shape[0] >= self.group.dim:
            raise InvalidInput(
                f"holonomic(t, g, p) gave shape {value.shape}; allowed: (k,) with k < {self.group.dim}, one entry for "
                f"each holonomic constraint on {self.group}"
            )
        return value

    def _rows(self, t: Scalar, g: Element) -> Array:
        """The nonholonomic rows of A."""
        if self.constraint is None:
            return jnp.zeros((0, self.group.dim))
        rows = jnp.asarray(_traced_once(self.constraint)(t, g, self.parameters))
        room = self.group.dim - self.holonomic_constraints
        if rows.ndim != 2 or rows.shape[1] != self.group.dim or rows.shape[0] >= room:
            raise InvalidInput(
                f"constraint(t, g, p) gave shape {rows.shape}; allowed: (m, {self.group.dim}) with m < {room}, "
                f"one row for each constraint on xi in the algebra of {self.group}"
            )
        return rows

    def _drift(self, t: Scalar, g: Element) -> Array:
        """The entries of b for the nonholonomic rows."""
        m = self._rows(t, g).shape[0]
        if self.drift is None:
            return jnp.zeros(m)
        value = jnp.asarray(self.drift(t, g, self.parameters))
        if value.shape != (m,):
            raise InvalidInput(f"drift(t, g, p) gave shape {value.shape}; allowed: ({m},), one entry a constraint row")
        return value

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        if self.force is None:
            return jnp.zeros(self.group.dim)
        return jnp.asarray(self.force(t, g, xi, u, self.parameters))
