"""A nonholonomic system is a triple (Q, L, D): a Lie group, a Lagrangian and a constraint A(t, g) xi = b(t, g).

`MechanicalSystem` has all that the triple determines, `System` builds one from functions, and `State` is a point of a
motion. Holonomic constraints phi(t, g) = 0 add the rows dphi xi = -phi_t to A and b, after the nonholonomic ones.
Notation: see `dalembert.mechanics`.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial, wraps
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import IndefiniteMetric, InvalidInput, OffConstraint, require_name, spell
from ..groups import AlgebraAxis, Group, join_names
from ..kernels import Template, as_routine, compile_function, evaluate, find_plan, hold, is_own, recognise, take_numbers
from ..numerics import (
    TOLERANCE,
    Root,
    array,
    depends,
    echelon,
    fibre,
    find_root,
    finite,
    finite_reals,
    follow_root,
    html_table,
    is_traced,
    not_negative,
    null_basis,
    own_value,
    positive,
    read_reals,
    real,
    reduce_by_units,
    require_function,
    require_instance,
    require_known,
    say_many,
    show,
    solve,
    solve_reduced,
    solve_saddle,
    vector,
)
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Float, LinearMap, Number, Parameters, Scalar, Velocity

SINGULAR_METRIC = 1e-13  # an eigenvalue of L_xi_xi on D, in units in which its rows have size 1, that counts as 0
SPARE_INPUTS = 8  # a force may read so many controls more than there are velocities; more have to be declared
UNKNOWN_INPUTS = (
    "the force depends on controls u whose number is not known: give controls to the run, or say what they are with "
    "System(..., inputs=...)"
)
ADMISSIBLE_TOLERANCE = 1e-9  # how far, relative to the constraint, a start may be off it
CHART_STEPS = 4  # of Newton's method for a configuration with given coordinates
CLEAR_MARGIN = 1e-8  # an eigenvalue, in these units or smaller ones, that is clearly positive
MAX_JUDGED = 16  # velocities up to which `judge_start` looks at them: it takes n^3 operations
Phi = Callable[[Any, Any], Array]  # (t, g) -> the values (k,) of holonomic constraints
Force = Callable[[Any, Any, Array], Array]  # (t, g, xi) -> a covector, or the controls


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


def nearest_point(group: Group, phi: Phi, metric: Float[Array, "n n"], t: Scalar, g: Element) -> tuple[Element, Root]:
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


class _Point(NamedTuple):
    t: Array
    g: Element
    xi: Array
    momentum: Array
    increment: Array


@dataclass(eq=False, slots=True)
class _GroupMark:
    """The group of a state in the structure of its tree: one that is not known (None) agrees with every other."""

    group: Group | None

    def __eq__(self, other: object) -> bool:
        theirs = other.group if isinstance(other, _GroupMark) else other
        return self.group is None or theirs is None or bool(self.group == theirs)

    def __hash__(self) -> int:
        return 0


@jax.tree_util.register_pytree_with_keys_class
class State(_Point):
    """A point of a motion: where a run starts, and what it saves. `system.state(...)` makes one and checks it.

    It is the tuple (t, g, xi, momentum, increment): time, configuration, velocity xi = g^-1 g' in the body (n,),
    momentum dual to it (n,), and the mean velocity tau^-1(W)/h of the method's last step (the papers' (u, v)), which is
    xi where a method has none. `group` is the group of g, or None where the state was made by hand. A state that
    `system.state` made where JAX traces knows that `system`: its momentum is L_xi there.
    """

    group: Group | None = None
    system: MechanicalSystem | None = None

    def __new__(
        cls, t: Any, g: Any, xi: Any, momentum: Any, increment: Any, group: Group | None = None
    ) -> State:  # JAX builds states of all that can be a leaf
        return cls.tree_unflatten(_GroupMark(group), (t, g, xi, momentum, increment))

    def _replace(self, **changes: Any) -> State:
        return self.tree_unflatten(_GroupMark(changes.pop("group", self.group)), super()._replace(**changes))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.group)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], _GroupMark]:
        keys = map(jax.tree_util.GetAttrKey, self._fields)
        return tuple(zip(keys, self, strict=True)), _GroupMark(self.group)

    def tree_flatten(self) -> tuple[tuple[Any, ...], _GroupMark]:
        return tuple(self), _GroupMark(self.group)

    @classmethod
    def tree_unflatten(cls, mark: _GroupMark, leaves: tuple[Any, ...]) -> State:
        state: State = tuple.__new__(cls, leaves)
        state.group = mark.group
        return state


def in_group(group: Group, tree: Any) -> Any:
    """`tree` with this group in all its states."""
    return jax.tree.map(
        lambda leaf: leaf._replace(group=group) if isinstance(leaf, State) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, State),
    )


@dataclass(frozen=True)
class Input:
    """One control of a system: its name, its unit, and the bounds within which a run accepts its values."""

    name: str
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not isinstance(self.unit, str):
            raise InvalidInput(f"an input is {self.name!r} in {self.unit!r}; allowed: a name and a unit, as texts")
        if not (isinstance(self.low, int | float) and isinstance(self.high, int | float) and self.low < self.high):
            raise InvalidInput(
                f"input {self.name} has bounds {show(self.low)} and {show(self.high)}; allowed: low < high"
            )


@dataclass(frozen=True)
class Names:
    """What a user calls a system, its coordinates, velocities and constraints, and their units: see `System`."""

    system: str = ""
    coordinates: tuple[str, ...] = ()
    velocities: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()  # of those that have one

    @classmethod
    def read(cls, given: Any, system: MechanicalSystem) -> Names | None:
        """The names that a user gave, as many as there are things, or a clear error; with `inputs` none twice."""
        if given is None or isinstance(given, Names):
            return given
        kinds = ("system", *_WHAT_IS_NAMED)
        require_instance("names", given, Mapping, f"a dictionary with {', '.join(kinds)}")
        found: dict[str, Any] = {}
        units: list[tuple[str, str]] = []
        for kind, texts in given.items():
            require_name("kind of names", kind, kinds)
            listed = (texts,) if kind == "system" else texts
            if not isinstance(listed, tuple | list) or not all(isinstance(text, str) and text for text in listed):
                raise InvalidInput(f"names of {kind} are {texts!r}; allowed: texts such as 'speed' or 'speed [m s-1]'")
            pairs = [split_unit(text) for text in listed]
            units += [(name, unit) for name, unit in pairs if unit]
            found[kind] = pairs[0][0] if kind == "system" else tuple(name for name, _ in pairs)
        group = system.group
        counts: dict[str, Callable[[], int]] = {
            "coordinates": lambda: int(jax.eval_shape(group.chart, group.identity()).shape[0]),
            "velocities": lambda: group.dim,
            "constraints": lambda: system.constraints,
        }
        for kind in [kind for kind in counts if kind in found]:
            if len(found[kind]) != (count := counts[kind]()):
                raise InvalidInput(
                    f"names has {len(found[kind])} {kind} ({', '.join(found[kind])}), but on {group} this system has "
                    f"{count}: {_WHAT_IS_NAMED[kind]}"
                )
        every = [name for kind in counts for name in found.get(kind, ())] + [each.name for each in system.inputs or ()]
        if twice := sorted({name for name in every if every.count(name) > 1}):
            raise InvalidInput(f"two things are called {', '.join(twice)}; allowed: each name once, inputs among them")
        rates = [f"{name} rate" for name in found.get("coordinates", ())]
        if group.is_flat and "velocities" not in found and not set(rates) & set(every):
            units += [(f"{name} rate", f"{unit} s-1") for name, unit in units if f"{name} rate" in rates]
            found["velocities"] = tuple(rates)
        return cls(**found, units=tuple(units))


_WHAT_IS_NAMED = {
    "coordinates": "a point of R^n has n, SO(2) has an angle, SE(2) an angle, x and y, SE(3) x, y and z; a product has "
    "those of its factors in order",
    "velocities": "the components of xi",
    "constraints": "the rows of A, then the holonomic ones",
}


def split_unit(text: str) -> tuple[str, str]:
    """("speed", "m s-1") of "speed [m s-1]"; a name alone has no unit."""
    name, bracket, unit = text.partition("[")
    return (name.strip(), unit.removesuffix("]").strip()) if bracket and name.strip() else (text.strip(), "")


_DUAL_UNITS = {"rad s-1": ("kg m2 s-1", "N m"), "m s-1": ("kg m s-1", "N")}


@lru_cache(maxsize=256)
def _find_turning(factor: Group) -> tuple[bool, ...]:
    """For each number of the chart of a group whether it is the angle of a rotation."""
    size, angles = (jax.eval_shape(each, factor.identity()).shape[0] for each in (factor.chart, factor.angles))
    return tuple(k < angles for k in range(size))


@lru_cache(maxsize=256)
def _names_on(group: Group) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """theta, x, y, z, or q1, q2, ..., of each factor, and which are angles up to turns."""
    names, turning = list[list[str]](), list[bool]()
    for factor in group.factors:
        turns = _find_turning(factor)
        plain = [f"q{j + 1}" for j in range(len(turns))] if factor.is_flat else ["theta"][: sum(turns)] + list("xyz")
        names.append(plain[: len(turns)])
        turning += turns
    return tuple(join_names(names)), tuple(turning)


def names_of(system: MechanicalSystem) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The names of coordinates, and which are angles up to turns: the system's own names, else those of its group."""
    own, turning = system.coordinate_names, system.turning_names
    return (own, tuple(name in turning for name in own)) if own else _names_on(system.group)


def observe(system: MechanicalSystem, t: Scalar, g: Element, xi: Velocity) -> Array:
    """The values of `names_of` a system, then of its rates."""
    return system.observe(t, g, xi) if system.coordinate_names else jnp.concatenate([system.group.chart(g), xi])


class MechanicalSystem:
    """What all mechanical systems (Q, L, D) can do: energy, momentum, projection onto D, acceleration, reactions.

    D are the velocities that the constraint A(t, g) xi = b(t, g) admits. A subclass evaluates the Lagrangian
    `L(t, g, xi)` and the rows `A(t, g)`; the drift `b(t, g)` and the force `F(t, g, xi, u)` are 0 unless it defines
    them. JAX takes all derivatives. Rows that follow from holonomic constraints `phi(t, g)` = 0 come last in A and b.
    """

    group: Group
    inputs: tuple[Input, ...] | None = ()
    """What the controls u of the force are, one `Input` each; None where that is not known."""
    names: Any = None
    """The `Names` that a user gave, or None."""

    @abstractmethod
    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        """The Lagrangian, kinetic less potential energy, at the velocity xi = g^-1 g' (n,)."""

    @abstractmethod
    def A(self, t: Scalar, g: Element) -> LinearMap:
        """The matrix (m, n) of the constraint A(t, g) xi = b(t, g), one row for each constraint."""

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        """The right side (m,) of the constraint A(t, g) xi = b(t, g): 0 where the constraint is linear in xi."""
        return jnp.zeros(self.constraints)

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        """The force (n,) that is no part of L, dual to the velocity, under the controls u; None: no controls."""
        return self._zero()

    def zero_controls(self) -> Array:
        """The controls of a run that was given none: a zero for each input."""
        if self.inputs is None:
            raise InvalidInput(UNKNOWN_INPUTS)
        return jnp.zeros(len(self.inputs))

    def phi(self, t: Scalar, g: Element) -> Float[Array, " k"]:
        """The holonomic constraints (k,): a configuration is allowed where all of them are 0. None by default."""
        return jnp.zeros(0)

    def momentum(self, t: Scalar, g: Element, xi: Velocity) -> Covector:
        """The momentum dL/dxi (n,) of a velocity: the Legendre map."""
        return cast(Array, jax.grad(self.L, argnums=2)(t, g, xi))

    def L_g(self, t: Scalar, g: Element, xi: Velocity) -> Covector:
        """The derivative of L in the configuration (n,), left-trivialised: <L_g, eta> = d/ds L(t, g exp(s eta), xi)."""
        return gradient(lambda eta: self.L(t, self.group.shift(g, eta), xi), self._zero())

    def metric(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, "n n"]:
        """The mass matrix d^2 L/dxi^2 (n, n), which is the kinetic metric."""
        return jacobian(lambda x: self.momentum(t, g, x), xi)

    def energy(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        """The energy <dL/dxi, xi> - L."""
        return self.momentum(t, g, xi) @ xi - self.L(t, g, xi)

    @property
    def constraints(self) -> int:
        """The number m of constraint rows, those of holonomic constraints included."""
        return _count(self, "A")

    @property
    def holonomic_constraints(self) -> int:
        """The number k of holonomic constraints."""
        return _count(self, "phi")

    def residual(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, " m"]:
        """How far a velocity is from the constraint: A xi - b (m,), zero on D."""
        return self.A(t, g) @ xi - self.b(t, g)

    def rows(self, t: Scalar, g: Element) -> Callable[[Array], Array]:
        """The function xi -> derivative (m, n) of the constraint in xi, along which it reacts; A(t, g) if linear."""
        rows = self.A(t, g)
        return lambda xi: rows

    def project(self, g: Element, xi: Any, t: Scalar = 0.0) -> Velocity:
        """The admissible velocity nearest to xi in the kinetic metric at g."""
        return _project(self, *self._point(t, g, xi))

    def _project(self, t: Scalar, g: Element, xi: Array) -> Array:
        return xi + self._saddle(t, g, xi, self._zero(), -self.residual(t, g, xi))[0]

    def _point(self, t: Any, g: Any, xi: Any) -> tuple[Scalar, Element, Array]:
        """(t, g, xi) of a user, checked unless JAX traces them."""
        if is_traced((self, t, g, xi)):
            return t, self.group.element(g) if isinstance(g, list) else g, jnp.asarray(xi, float)
        return array(finite("t", t)), self.group.element(g), vector(xi, self.group.dim, "velocity xi")

    def project_configuration(self, g: Element, t: Scalar = 0.0) -> Element:
        """The nearest configuration with phi = 0, in the kinetic metric at g; refused if Newton's method finds none."""
        if not self.holonomic_constraints:
            return g
        traced = is_traced((self, t, g))
        there, converged = _nearest(self, t, g if traced else self.group.element(g))
        if not (traced or converged):
            given = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), g)
            raise InvalidInput(f"no configuration with phi = 0 was found near {given}: start from one that is nearer")
        return there

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        """The admissible velocity of a momentum (n,): L_xi + A^T l = momentum with A xi = b, for some l.

        Only the part of the momentum on D counts. Where L is not quadratic in xi, Newton's method starts from the
        velocity `near` (default: rest).
        """
        return cast(Array, _inverse_legendre(self, t, g, momentum, self._zero() if near is None else near))

    @property
    def quadratic(self) -> bool:
        """Whether L is known to be quadratic in xi (then the Legendre map is affine and needs no iteration)."""
        return not depends(lambda xi: self.metric(0.0, self.group.identity(), xi), self._zero())

    def frame(self, t: Scalar, g: Element, reference: Float[Array, "n r"]) -> Float[Array, "n r"]:
        """A basis (n, n-m) of ker A(t, g) that is smooth in g: the columns of `reference`, projected in the metric."""
        metric, (rows, _) = kinetic_metric(self, t, g), constraint_at(self, t, g)
        weights = solve(metric, rows.T)
        return reference - weights @ solve(rows @ weights, rows @ reference) if rows.shape[0] else reference

    def acceleration(
        self, t: Scalar, g: Element, xi: Velocity, u: Controls = None
    ) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
        """The acceleration xi' (n,) and the Lagrange multipliers l (m,) of the equations of motion.

        They solve d/dt L_xi = ad*_xi L_xi + L_g + F + A^T l together with the time derivative of A xi = b; on R^n this
        is Proposition 2.1 and (23) of jimenez-scheurle.
        """
        return _accelerate(self, *self._point(t, g, xi), u)

    def _acceleration(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> tuple[Array, Array]:
        """The acceleration as it is computed; a class of systems that knows a shorter way has its own."""

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
        """The Lagrange multipliers l (m,) of the equations of motion; the reaction is A^T l ((23) jimenez-scheurle)."""
        return self.acceleration(t, g, xi, u)[1]

    def state(
        self, g: Any = None, xi: Any = None, *, momentum: Any = None, t: Scalar = 0.0, project: Any = False,
        **named: float) -> State:  # fmt: skip
        """An initial state at the configuration `g` (default: the identity), checked against the constraints.

        Give the velocity `xi` (n,), or the `momentum`: all n components, or those in the `basis` of D. With neither,
        the system is at rest, or has the least velocity that the drift b of its constraint allows. Or give coordinates
        and velocities by their names, `state(x=1.0, speed=0.5)` or `xi={"speed": 0.5}`: the others are 0. `project`
        takes the nearest configuration and velocity that satisfy the constraints.
        """
        if isinstance(xi, Mapping):
            for name in xi:
                require_name("velocity", spell(str(name), self.rate_names), self.rate_names)
            xi = self._place_by_names(xi)[1]
        if named:
            if g is not None or xi is not None or momentum is not None:
                raise InvalidInput(f"give g and xi, or names ({', '.join(named)}), not both")
            g, xi = self._place_by_names(named)
        if project:
            g = self.project_configuration(unit_element(self.group) if g is None else self.group.element(g), t)
            xi = None if xi is None else self.project(g, xi, t)
        if (made := self._admit(g, xi, momentum, t)) is not None:
            return made
        g = unit_element(self.group) if g is None else self.group.element(g)
        if xi is not None and momentum is not None:
            raise InvalidInput("give xi (a velocity) or momentum, not both")
        time: Any = finite("t", t)
        time = time if is_traced(time) else np.asarray(time)
        if momentum is not None:
            xi = self._velocity_of(time, g, momentum)
        elif xi is None:
            xi = np.zeros(self.group.dim) if self._can_rest else self._least_velocity(time, g)
        xi = vector(xi, self.group.dim, "velocity xi")
        if is_traced((self, time, g, xi)):
            made = State(time, g, xi, _momentum(self, time, g, xi), xi, self.group)
            made.system = self
            return made
        time, g, xi = map(read_only, (time, g, xi))
        return State(time, g, xi, read_only(self._judge(time, g, xi)), xi, self.group)

    def _place_by_names(self, named: Mapping[str, float]) -> tuple[Element, Any]:
        """The configuration and the velocity whose parts have these values; parts without a name are 0."""
        names, count = (*self.coordinate_names, *self.rate_names), len(self.coordinate_names)
        known, values = [name.replace(" ", "_") for name in names], dict[int, Any]()
        for name, value in named.items():
            require_name("coordinate or velocity", key := name.replace(" ", "_"), known)
            checked = finite(name, value)
            values[known.index(key)] = checked if is_traced(checked) else float(checked)
        every = [values.get(k, 0.0) for k in range(len(names))]
        wanted: Any = jnp.stack(every) if is_traced(every) else np.array(every)
        return find_place(self.group)(wanted[:count]) if min(values, default=count) < count else None, wanted[count:]

    def _admit(self, g: Any, xi: Any, momentum: Any, t: Any) -> State | None:
        """The state of plain numbers that are clearly admissible, by one native call; None: each is looked at."""
        group = self.group
        g = unit_element(group) if g is None else g
        given, admit = (xi, admit_velocity) if momentum is None else (momentum, _admit_momentum)
        if given is None:
            given, admit = np.zeros(group.dim), admit_velocity if self._can_rest else _admit_rest
        elif type(given) is list and set(map(type, given)) == {float}:
            given = np.array(given)
        if (xi is not None and momentum is not None) or type(given) is not np.ndarray or given.shape != (group.dim,):
            return None
        if type(t) is not float or given.dtype != np.float64 or not group.has_form(g):
            return None
        point = (np.array(t), g, given)
        if (found := find_plan(admit, self, point, check=partial(require_numbers, self))) is None:
            return None
        made: Admission = found[0].evaluate(found[1])
        if not made.clear:
            return None
        group.refuse(g, *made.flaws)
        time, there, velocity, covector = map(freeze, (point[0], made.g, made.xi, made.momentum))
        return State(time, there, velocity, covector, velocity, group)

    @property
    def _can_rest(self) -> bool:
        """Whether the velocity 0 is known to be in D."""
        return type(self).b is MechanicalSystem.b

    def _least_velocity(self, t: Any, g: Element) -> Array:
        """The velocity in D nearest to 0."""
        rest: Any = np.zeros(self.group.dim)
        if is_traced((self, t, g)) or type(self).project is not MechanicalSystem.project:
            xi: Any = self.project(g, rest, t)
        else:
            xi = _project(self, t, g, rest, place=False)
        return cast(Array, xi if is_traced(xi) or np.isfinite(np.asarray(xi)).all() else rest)

    def require_admissible(self, t: Scalar, g: Element, xi: Any) -> None:
        """Raise `InvalidInput` if phi(g) is not 0, xi is not in D, or L determines no acceleration there."""
        if is_traced((self, t, g, xi)):
            return
        self._judge(np.asarray(t, float), g, vector(xi, self.group.dim, "velocity xi"))

    def _judge(self, t: Any, g: Element, xi: Array) -> Array:
        """The momentum at an admissible start: one that is not clearly admissible has to meet the exact conditions."""
        if not all(map(_is_real, jax.tree.leaves(self))):
            require_numbers(self)
        made: Admission = evaluate(admit_velocity, self, (t, g, xi))
        if not made.clear:
            self._require_admissible(t, g, xi)
        return made.momentum

    def _require_admissible(self, t: Any, g: Element, xi: Array) -> None:
        require_numbers(self)
        found = evaluate(_at_start, self, (t, g, xi))
        rows, off, phi, metric, energy = (np.asarray(value) for value in found)
        m, k = len(rows), len(phi)
        if not np.isfinite(rows).all():
            which = self._name_rows(~np.isfinite(rows).all(axis=1))
            raise InvalidInput(f"the rows A(t, g){which} are not finite at the initial state: {rows.tolist()}")
        if m and np.linalg.matrix_rank(rows) < m:
            theirs = f" (the last {k} are the derivative of phi)" if k else ""
            left, sizes, _ = np.linalg.svd(rows)
            empty = np.append(sizes, np.zeros(m))[:m] <= 1e-9 * max(sizes[0], 1e-300)
            theirs = self._name_rows(np.abs(left[:, empty]).max(axis=1) > 1e-9) or theirs
            raise InvalidInput(
                f"the {m} constraint rows A(t, g){theirs} are linearly dependent at the initial state: {rows.tolist()}"
            )
        if np.any(~(np.abs(phi) <= ADMISSIBLE_TOLERANCE * (1.0 + np.linalg.norm(rows[m - k :], axis=1)))):
            given, there = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), (g, self.project_configuration(g, t)))
            which = self._name_rows(np.append(np.zeros(m - k, bool), np.abs(phi) > ADMISSIBLE_TOLERANCE))
            raise OffConstraint(
                f"the initial configuration {given} is off the holonomic constraint{which}: |phi| = "
                f"{np.abs(phi).max():.3g}. The nearest one is system.project_configuration(g) = {there}; "
                "project=True in `state`, or project = true in [initial], takes it"
            )
        require_regular(metric, rows, [axis.name for axis in self.axes()])
        if not np.isfinite(energy):
            raise InvalidInput(
                f"the energy <L_xi, xi> - L is not finite at the initial state: {energy}. L is not defined there, or "
                f"the velocity {xi.tolist()} is too large for its square"
            )
        scale = 1.0 + np.linalg.norm(rows, axis=1) * np.linalg.norm(np.asarray(xi))
        if np.any(~(np.abs(off) <= ADMISSIBLE_TOLERANCE * scale)):
            there = np.asarray(self.project(g, xi, t)).tolist()
            which = self._name_rows(~(np.abs(off) <= ADMISSIBLE_TOLERANCE * scale))
            raise OffConstraint(
                f"the initial velocity {np.asarray(xi).tolist()} is off the constraint{which}: |A xi - b| = "
                f"{np.abs(off).max():.3g}. The nearest admissible velocity is system.project(g, xi) = {there}; "
                "project=True in `state`, or project = true in [initial], takes it"
            )

    def _velocity_of(self, t: Array, g: Element, momentum: Any) -> Array:
        """The velocity with a momentum given by n components, or by its n - m components in the basis of D."""
        n, rank = self.group.dim, self.group.dim - self.constraints
        given = finite_reals("momentum", momentum)
        if given.shape not in ((n,), (rank,)):
            raise InvalidInput(f"momentum has shape {given.shape}; allowed: ({n},) or, on D, ({rank},)")
        if given.shape != (n,):
            given = _extend(self.basis(t, g), given, place=False)
        xi, gap = _velocity(self, t, g, given, place=False)
        if not (is_traced(gap) or gap <= 0.0):
            raise InvalidInput(
                f"no velocity in D was found from rest with the momentum {np.asarray(given).tolist()}: give the "
                "velocity xi instead"
            )
        return xi

    def basis(self, t: Scalar, g: Element) -> Float[Array, "n r"]:
        """The basis (n, n-m) of D at g in which restricted momenta are given: the null space of A in echelon form."""
        rows = _rows(self, t, g)
        require_known("the basis of D", {"the constraint": rows}, "give the velocity xi, or all of the momentum")
        return array(null_basis(np.asarray(rows)))

    def _zero(self) -> Array:
        return jnp.zeros(self.group.dim)

    def _name_rows(self, which: Any) -> str:
        """ " (no slip)", the names of some constraint rows; nothing where they have none."""
        names = [name for name, chosen in zip(self.load_names, which, strict=False) if chosen]
        return f" ({', '.join(names)})" if names else ""

    def axes(self) -> list[AlgebraAxis]:
        """The names and units of the components of xi: the user's own, else those of the group."""
        axes, units = self.group.axes(), self._own_units
        for k, name in enumerate(self.names.velocities if self.names else ()):
            unit = units.get(name, axes[k].velocity)
            dual = (axes[k].momentum, axes[k].force) if unit == axes[k].velocity else (f"J ({unit})-1", f"W ({unit})-1")
            axes[k] = AlgebraAxis(name, unit, *_DUAL_UNITS.get(unit, dual))
        return axes

    @property
    def _own_units(self) -> dict[str, str]:
        return dict(self.names.units) if self.names else {}

    @property
    def units(self) -> dict[str, str]:
        """The units of coordinates, rates, loads and inputs by name; "" where none was given."""
        found = dict.fromkeys((*self.coordinate_names, *self.rate_names, *self.load_names), "")
        found |= {axis.name: axis.velocity for axis in self.axes() if "[q]" not in axis.velocity}
        return found | self._own_units | {each.name: each.unit for each in self.inputs or ()}

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """The names of the coordinates: the user's own, else q1, ..., qn on R^n, and none on other groups."""
        if self.names and self.names.coordinates:
            return cast(tuple[str, ...], self.names.coordinates)
        return tuple(f"q{k + 1}" for k in range(self.group.dim)) if self.group.is_flat else ()

    @property
    def turning_names(self) -> tuple[str, ...]:
        """The coordinates that are angles of rotations of the group, in (-pi, pi]: data may count their turns."""
        turning = [turns for factor in self.group.factors for turns in _find_turning(factor)]
        return tuple(name for name, turns in zip(self.coordinate_names, turning, strict=False) if turns)

    @property
    def kept_components(self) -> NDArray[np.float64]:
        """1 for all of (g, xi), but 0 for angles that turn without end and rates of rolling wheels."""
        return np.ones(2 * self.group.dim)

    @property
    def rate_names(self) -> tuple[str, ...]:
        """The names of the rates, which are the components of xi."""
        return tuple(axis.name for axis in self.axes())

    @property
    def start_names(self) -> tuple[str, ...]:
        """The keywords that `state` accepts: names of coordinates and rates of a mechanism, with _ for spaces."""
        return ()

    @property
    def load_names(self) -> tuple[str, ...]:
        """The names of the Lagrange multipliers (loads), where they have names."""
        return self.names.constraints if self.names else ()

    def observe(self, t: Scalar, g: Element, xi: Velocity) -> Array:
        """The values of the named coordinates, then of the named rates: `coordinate_names`, then `rate_names`."""
        return jnp.concatenate([self.group.chart(g), xi]) if self.coordinate_names else xi

    def named_coordinates(self, g: Element) -> dict[str, Any]:
        """The coordinates of configurations by their names; g may have leading axes."""
        if not self.coordinate_names:
            return {}
        chart: Any = self.group.chart
        for _ in range(np.ndim(jax.tree.leaves(g)[0]) - np.ndim(jax.tree.leaves(self.group.identity())[0])):
            chart = jax.vmap(chart)
        return dict(zip(self.coordinate_names, np.moveaxis(np.asarray(chart(g)), -1, 0), strict=True))

    def constants(self) -> dict[str, Any]:
        """The numbers of this system (masses, lengths, ...) by names such as "parameter inertia.0"."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(getattr(self, "parameters", None))
        return {"parameter " + jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def __repr__(self) -> str:
        parts = {"inputs": [each.name for each in self.inputs or ()]}
        parts["parameters"] = [name.removeprefix("parameter ") for name in self.constants()]
        about = [f"on {self.group}", *(f"{kind} {', '.join(names)}" for kind, names in parts.items() if names)]
        return f"<{self.title} {'; '.join(about)}>"

    def _repr_html_(self) -> str:
        """Group, components, constraint and parameters, for a notebook."""
        n, m, k = self.group.dim, self.constraints, self.holonomic_constraints
        held = f"{m}: D has rank {n - m}" if m else "none: the system is free"
        if k:
            held += f"; {k} of them holonomic, phi(g) = 0: configurations stay on a leaf of dimension {n - k}"
        about = {
            "configurations": f"{self.group}, dimension {n}",
            "velocity": "(" + ", ".join(axis.name for axis in self.axes()) + ")",
            "constraints": held,
        }
        numbers = {
            name: np.array2string(np.asarray(x), precision=6, threshold=40) for name, x in self.constants().items()
        }
        about |= {kind: ", ".join(names) for kind, names in (("coordinates", self.coordinate_names), ("constraint rows",
                  self.load_names), ("inputs", [each.name for each in self.inputs or ()])) if names}  # fmt: skip
        return html_table(self.title, about | numbers)

    @property
    def title(self) -> str:
        """The title of the system in figures and tables: the user's own name for it, else that of its class."""
        return (self.names.system if self.names else "") or type(self).__name__


def _count(system: MechanicalSystem, name: str) -> int:
    """The number of rows of A(t, g) or entries of phi(t, g), traced once for all systems of a kind."""
    known: dict[str, int] = system.__dict__.setdefault("_counts", {})
    if name not in known:
        known[name] = _count_now(system, name)
    return known[name]


def _count_now(system: MechanicalSystem, name: str) -> int:
    leaves, structure = jax.tree.flatten(system)
    if any(leaf is system for leaf in leaves):  # a class that is no pytree
        return int(jax.eval_shape(getattr(system, name), 0.0, system.group.identity()).shape[0])
    return _count_once(name, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@lru_cache(maxsize=512)
def _count_once(name: str, structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> int:
    shapes = [jax.ShapeDtypeStruct(*leaf) for leaf in leaves]  # type: ignore[no-untyped-call]  # JAX has no types

    def value(*flat: Any) -> Array:
        system: MechanicalSystem = jax.tree.unflatten(structure, flat)
        return cast(Array, getattr(system, name)(0.0, system.group.identity()))

    return int(jax.eval_shape(value, *shapes).shape[0])


def name_leaves(system: MechanicalSystem) -> tuple[str, ...]:
    """The names of the numbers of a system: paths in its parameters, or in its tree where they are no parameters."""

    def paths(tree: Any) -> list[tuple[str, Any]]:
        found = jax.tree_util.tree_flatten_with_path(tree)[0]
        return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in found]

    own = {id(leaf): name for name, leaf in paths(getattr(system, "parameters", None))}
    return tuple(own.get(id(leaf), name) for name, leaf in paths(system))


def of_part(part: str, *names: str) -> Any:
    """Properties and methods that are those of a part."""
    return tuple(property(attrgetter(f"{part}.{name}")) for name in names)


@as_routine
def kinetic_metric(system: MechanicalSystem, t: Scalar, g: Element) -> Float[Array, "n n"]:
    """The kinetic metric at rest."""
    return system.metric(t, g, jnp.zeros(system.group.dim))


@as_routine
def constraint_at(system: MechanicalSystem, t: Scalar, g: Element) -> tuple[Float[Array, "m n"], Float[Array, " m"]]:
    """The rows A and the drift b of the constraint at a configuration."""
    return system.A(t, g), system.b(t, g)


@as_routine
def _acceleration(system: MechanicalSystem, t: Scalar, g: Element, xi: Array, u: Controls) -> tuple[Array, Array]:
    return system._acceleration(t, g, xi, u)


class Admission(NamedTuple):
    """Whether a start is clearly admissible, its momentum, configuration and velocity, and what is off the group."""

    clear: Array
    momentum: Array
    g: Element
    xi: Array
    flaws: tuple[Any, ...]


def admit_velocity(system: MechanicalSystem, point: tuple[Scalar, Element, Array]) -> Admission:
    """A start (t, g, xi), where g has the form of an element."""
    t, g, xi = point
    there, flaws = system.group.examine(g)
    clear, momentum = judge_start(system, (t, there, xi))
    return Admission(clear, momentum, there, xi, flaws)


def _admit_momentum(system: MechanicalSystem, point: tuple[Scalar, Element, Array]) -> Admission:
    """A start from (t, g, momentum)."""
    t, g, momentum = point
    there, flaws = system.group.examine(g)
    xi, gap = _momentum_gap(system, t, there, momentum)
    clear, momentum = judge_start(system, (t, there, xi))
    return Admission(clear & (gap <= 0.0), momentum, there, xi, flaws)


def _admit_rest(system: MechanicalSystem, point: tuple[Scalar, Element, Array]) -> Admission:
    """A start from (t, g, 0) with the velocity in D that is nearest to 0."""
    t, g, rest = point
    there, flaws = system.group.examine(g)
    xi = system._project(t, there, rest)
    return Admission(*judge_start(system, (t, there, xi)), there, xi, flaws)


def _momentum_gap(system: MechanicalSystem, t: Scalar, g: Element, momentum: Array) -> tuple[Array, Array]:
    """The velocity, and by how much its momentum is further off the given one along D than round-off explains."""
    xi = system.velocity(t, g, momentum)
    rows, gap = system.rows(t, g)(xi), system.momentum(t, g, xi) - momentum
    gap = gap - rows.T @ solve(rows @ rows.T, rows @ gap)
    return xi, jnp.max(jnp.abs(gap), initial=0.0) - 1e-9 * jnp.max(jnp.abs(momentum))


# A system is a pytree, so these are compiled once for all systems of a kind; op by op they would take seconds.
_velocity = compile_function(_momentum_gap)


@compile_function
def _extend(basis: Array, restricted: Array) -> Array:
    return basis @ solve(basis.T @ basis, restricted)


@compile_function
def _rows(system: MechanicalSystem, t: Scalar, g: Element) -> Array:
    return system.A(t, g)


@compile_function
def drift_of(system: MechanicalSystem, t: Scalar, g: Element) -> Array:
    """The drift b of the constraint."""
    return system.b(t, g)


@compile_function
def _accelerate(system: MechanicalSystem, t: Scalar, g: Element, xi: Array, u: Controls) -> tuple[Array, Array]:
    return _acceleration(system, t, g, xi, u)


@compile_function
def _project(system: MechanicalSystem, t: Scalar, g: Element, xi: Array) -> Array:
    return system._project(t, g, xi)


@compile_function
def _nearest(system: MechanicalSystem, t: Scalar, g: Element) -> tuple[Element, Array]:
    there, root = nearest_point(system.group, system.phi, system.metric(t, g, jnp.zeros(system.group.dim)), t, g)
    return there, root.converged


def _at_start(system: MechanicalSystem, point: tuple[Scalar, Element, Array]) -> tuple[Array, ...]:
    t, g, xi = point
    rows, off, phi = system.rows(t, g)(xi), system.residual(t, g, xi), system.phi(t, g)
    return rows, off, phi, system.metric(t, g, xi), system.energy(t, g, xi)


@compile_function
def _momentum(system: MechanicalSystem, t: Scalar, g: Element, xi: Array) -> Array:
    return system.momentum(t, g, xi)


def judge_start(system: MechanicalSystem, point: tuple[Scalar, Element, Array]) -> tuple[Array, Array]:
    """Whether a start is clearly admissible, far within every bound of `require_admissible`; and its momentum.

    The units of `metric_on_D` weigh a velocity x at most as sum R_i x_i^2 does, where R_i is the sum of |L_xi_xi| over
    row i: each pass after the first only lowers the weights. So no eigenvalue on D = ker A is below CLEAR_MARGIN where
    L_xi_xi - CLEAR_MARGIN R is positive on D. Literal units of A make that a matrix on the velocities that are left;
    the rest of A is added as A^T W A, which vanishes on D. The rows are independent if their products are, less the
    same margin. Pivots tell what is positive. Nothing is divided by its size, and no root taken.
    """
    t, g, xi = point
    try:
        rows, off, phi, metric, energy = _at_start(system, point)
    except TypeError as fault:
        if shape := jnp.shape(system.L(t, g, xi)):
            raise InvalidInput(
                f"the Lagrangian of the system has shape {shape}; allowed: one number. Parameters with a leading axis, "
                "as jax.vmap makes them, are many systems: da.ensemble(..., batched_system=True)"
            ) from fault
        raise
    momentum, (m, n), k = system.momentum(t, g, xi), rows.shape, phi.shape[0]
    if n > MAX_JUDGED:
        return jnp.asarray(False), momentum
    known = [leaf for leaf in jax.tree.leaves((system, point)) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    upper = jnp.triu(jnp.abs(metric))
    weights, squares = jnp.sum(upper + jnp.triu(upper, 1).T, axis=1), jnp.sum(rows * rows, axis=1)
    total = energy + jnp.sum(momentum) + sum(jnp.sum(leaf) for leaf in known) + jnp.sum(weights) + jnp.sum(squares)
    weights, good = jnp.where(weights == 0.0, 1.0, weights), jnp.isfinite(total)
    units = fibre(system, t, g, xi) or (None,) * m
    some = reduce_by_units(units, metric, rows)
    sizes = jnp.diag(weights[some.free]) + some.K.T @ (weights[some.bound][:, None] * some.K)
    reduced, left = some.metric - CLEAR_MARGIN * sizes, some.rows
    if len(left):
        inverse = 1.0 / jnp.sum(left * left / jnp.diagonal(sizes), axis=1)
        reduced = reduced + left.T @ (inverse[:, None] * left)
        products = rows @ rows.T - CLEAR_MARGIN * jnp.diag(squares)
        good = good & (jnp.min(squares) > 1e-12 * jnp.max(squares)) & _is_positive(products)
    elif m:  # with units in all rows their singular values are 1 or more
        good = good & (jnp.sum(squares) < 1e12)
    if m:
        least = (0.5 * ADMISSIBLE_TOLERANCE) ** 2
        good = good & jnp.all(off * off <= least * (1.0 + squares * (xi @ xi)))
        good = good & jnp.all(phi * phi <= least * (1.0 + squares[m - k :]))
    return good & _is_positive(reduced), momentum


def _is_positive(matrix: Array) -> Array:
    """Whether a symmetric matrix, of which the upper half is read, is positive definite."""
    left, good = matrix, jnp.asarray(True)
    while left.shape[0]:
        pivot, row = left[0, 0], left[0, 1:]
        good = good & (pivot > 0.0)
        left = left[1:, 1:] - jnp.triu(jnp.outer(row / pivot, row))
    return good


def read_only(tree: Any) -> Any:
    """The numbers of a tree as arrays of doubles that nobody can change in place."""

    def fix(leaf: Any) -> Any:
        own = np.asarray(leaf, float).view()
        own.setflags(write=False)
        return own

    return fix(tree) if isinstance(tree, np.ndarray) else jax.tree.map(fix, tree)


def freeze(tree: Any) -> Any:
    """Arrays of our own, which nobody can change from now on."""
    for leaf in (tree,) if type(tree) is np.ndarray else jax.tree.leaves(tree):
        leaf.setflags(write=False)
    return tree


@lru_cache(maxsize=128)
def unit_element(group: Group) -> Element:
    """The unit of a group, as arrays of NumPy, also where JAX traces what asks for it."""
    try:
        return _unit(group)
    except TypeError:  # it has no hash
        return _unit.__wrapped__(group)


@lru_cache(maxsize=64)
def _unit(group: Group) -> Element:
    with jax.ensure_compile_time_eval():
        return cast(Element, read_only(group.identity()))


def find_place(group: Group) -> Callable[[Array], Element]:
    """The compiled function coordinates -> configuration, by Newton's method with increments of least size."""
    try:
        return _find_place(group)
    except TypeError:  # it has no hash
        return _find_place.__wrapped__(group)


@lru_cache(maxsize=64)
def _find_place(group: Group) -> Callable[[Array], Element]:
    def place(wanted: Array) -> Element:
        def step(_: Any, g: Element) -> Element:
            chart: Callable[[Array], Array] = lambda d: group.chart(group.compose(g, group.exp(d)))
            slope = jacobian(chart, rest := jnp.zeros(group.dim))
            increment = slope.T @ solve(slope @ slope.T, wanted - chart(rest))
            return group.compose(g, group.exp(increment))

        return cast(Element, jax.lax.fori_loop(0, CHART_STEPS, step, group.identity()))

    return compile_function(place, place=False)


def _is_short(leaf: Any) -> bool:
    """Whether a leaf has real numbers that are no doubles: native code has none."""
    kind = getattr(leaf, "dtype", None)
    return kind is not None and kind != np.float64 and jnp.issubdtype(kind, jnp.floating)


def _is_real(leaf: Any) -> bool:
    return leaf.dtype.kind in "iufb" if hasattr(leaf, "dtype") else isinstance(leaf, int | float)


def require_numbers(system: MechanicalSystem) -> None:
    """Refuse parameters that are no finite real numbers (truth values may be among them), with their names."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(system):
        kind = getattr(leaf, "dtype", np.asarray(leaf).dtype).kind
        if kind not in "iufb" or not np.isfinite(leaf).all():
            allowed = "finite numbers" if kind in "iufb" else "real numbers"
            raise InvalidInput(f"{jax.tree_util.keystr(path).lstrip('.')} is {show(leaf)}; allowed: {allowed}")


def metric_on_D(metric: Any, rows: Any) -> tuple[Any, Any, Any]:
    """Eigenvalues and eigenvectors of L_xi_xi on D = ker A, and the units of velocities in which they are; of many too.

    Velocities are scaled so that rows of L_xi_xi have entries of size 1 (Ruiz 2001): a light coordinate is not a
    singular one.
    """
    units = np.ones(metric.shape[:-1])
    for _ in range(3):
        size = np.sqrt(np.abs(metric).max(axis=-1))
        size[size == 0.0] = 1.0
        metric, units = metric / (size[..., :, None] * size[..., None, :]), units / size
    scaled = rows * units[..., None, :]
    right = np.linalg.svd(scaled / np.linalg.norm(scaled, axis=-1, keepdims=True))[2]
    basis = np.swapaxes(right[..., rows.shape[-2] :, :], -1, -2)
    values, vectors = np.linalg.eigh(np.swapaxes(basis, -1, -2) @ metric @ basis)
    return values, basis @ vectors, units


def _definiteness(metric: Any, rows: Any, names: list[str]) -> tuple[str, str, bool]:
    """The directions of D in which L_xi_xi is singular, and negative, in words; and whether all of them are negative.

    The equations of motion have one solution where B^T L_xi_xi B is regular, for the columns B of a basis of D.
    """
    values, vectors, units = metric_on_D(metric, rows)

    def directions(which: Any) -> str:
        """Combinations of the components that span these eigenvectors, each with as few of them as can be."""
        reduced, pivots = echelon((units[:, None] * vectors[:, which]).T)
        texts = []
        for row in reduced[np.argsort(pivots)]:
            terms = [(f"{c:+.4g}", name) for c, name in zip(row, names, strict=True) if abs(c) > 1e-8]
            text = " ".join(f"{c[0]} {name if c[1:] == '1' else f'{c[1:]} {name}'}" for c, name in terms)
            texts.append(text.removeprefix("+ "))
        return ", ".join(texts)

    singular, negative = np.abs(values) <= SINGULAR_METRIC, values < 0.0
    return directions(singular), directions(negative), bool(negative.all())


def require_regular(metric: Any, rows: Any, names: list[str]) -> None:
    """Refuse an L_xi_xi that is singular on D = ker A, naming the directions; warn where it is not positive on D."""
    if not np.isfinite(metric).all():
        raise InvalidInput(f"L_xi_xi is not finite at the initial state: {metric.tolist()}; L must have it there")
    singular, negative, everywhere = _definiteness(metric, rows, names)
    if singular:
        raise InvalidInput(
            f"L_xi_xi is singular on D at the initial state, in the directions of {singular}: L has no "
            "mass there, and nothing determines the motion. Add the kinetic energy, or a constraint"
        )
    if negative:
        kind = "negative definite" if everywhere else "indefinite"
        warnings.warn(
            f"L_xi_xi is {kind} on D at the initial state: negative in the directions of {negative}. The "
            "equations of motion have one solution, but the energy bounds no velocity, and methods may fail. Is a mass "
            "or a moment of inertia negative?",
            IndefiniteMetric,
            stacklevel=2,
        )


def explain_singular(system: MechanicalSystem, t: Any, g: Element, xi: Any) -> str:
    """Why a method that inverts L_xi_xi fails at this point, where it is singular off D; otherwise nothing."""
    point = (np.asarray(t, float), g, np.nan_to_num(np.asarray(xi, float)))
    metric = np.asarray(evaluate(_at_start, system, point)[3])
    names = [axis.name for axis in system.axes()]
    singular = np.isfinite(metric).all() and _definiteness(metric, np.zeros((0, len(names))), names)[0]
    if not singular:
        return ""
    return (
        f"L_xi_xi is singular in the directions of {singular}: it need not be regular off D for the motion, but this "
        "method inverts all of it. Give these directions a mass, or use runge-kutta or reference"
    )


@jax.jit  # traced once for all its uses
def _inverse_legendre(system: MechanicalSystem, t: Scalar, g: Element, momentum: Array, near: Array) -> Array:
    rows = system.A(t, g)
    n, m = system.group.dim, rows.shape[0]

    def mismatch(x: Array) -> Array:
        return jnp.concatenate([system.momentum(t, g, x[:n]) + rows.T @ x[n:] - momentum, system.residual(t, g, x[:n])])

    # For the usual Lagrangian, quadratic in xi, these equations are linear. For others a full Newton step may leave the
    # domain of L: follow the momentum from that of `near`.
    if not system.quadratic:
        root = follow_root(mismatch, jnp.concatenate([near, jnp.zeros(m)]))
        return jnp.where(root.converged, root.x[:n], jnp.nan)
    rest = jnp.zeros(n)
    return system._saddle(t, g, rest, momentum - system.momentum(t, g, rest), -system.residual(t, g, rest))[0]


@jax.jit  # traced once for all its uses
def _tangency(system: MechanicalSystem, t: Scalar, g: Element) -> tuple[Array, Array]:
    return tangency(system.group, system.phi, t, g)


@lru_cache(maxsize=128)
def _trace_once(function: Callable[..., Array], words: str, kinds: str = "iuf") -> Callable[..., Array]:
    """The function as one call: a step differentiates a Lagrangian thirty times, but JAX then traces it once."""
    return jax.jit(wraps(function)(partial(own_value, words, function, kinds=kinds)))


def require_shape(words: str, value: Array, shape: tuple[int, ...] | str, is_good: bool = False) -> Array:
    """A value of a user's function, refused where it has another shape: JAX would spread a number over a vector."""
    if value.shape != shape and not is_good:
        many = ". Parameters with a leading axis are many systems: jax.vmap around simulate, or da.ensemble"
        hint = many if value.ndim and value.shape[1:] == shape else ""
        raise InvalidInput(f"{words} gave shape {value.shape}; allowed: {shape}{hint}")
    return value


MAX_INPUTS = 10_000  # each has a name


def _declare_inputs(given: Any) -> tuple[Input, ...]:
    """The inputs that a user names by their number, by names, or as `Input`."""
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= MAX_INPUTS:
        return tuple(Input(f"u{k + 1}") for k in range(given))
    if isinstance(given, tuple | list) and all(isinstance(each, str | Input) for each in given):
        made = tuple(Input(*split_unit(each)) if isinstance(each, str) else each for each in given)
        if len({each.name for each in made}) == len(made):
            return made
    raise InvalidInput(
        f"inputs is {given!r}; allowed: their number (at most {MAX_INPUTS}), their names, or a list of Input, no name "
        "twice"
    )


def _infer_inputs(system: System) -> tuple[Input, ...] | None:
    """The inputs that `force` reads, found by tracing it with controls of every width; None where it cannot be told.

    A force that picks entries takes every width from some number on, and that is theirs. Otherwise it takes one width
    alone, apart from 1, which spreads over a vector.
    """
    wide = system.group.dim + SPARE_INPUTS
    widths = [width for width in (*range(wide), 4 * wide) if _takes(system, width)]
    return _declare_inputs(min(widths) if 4 * wide in widths else max(widths)) if widths else None


def _takes(system: System, width: int) -> bool:
    """Whether the force can be traced under so many controls and gives a covector."""
    u = np.zeros(width)  # an index beyond the end is an error of NumPy, not of JAX
    force, n = cast(Callable[..., Array], system.force), system.group.dim
    given = (0.0, system.group.identity(), np.zeros(n), system.parameters)
    try:
        made = jax.eval_shape(lambda t, g, xi, p: jnp.asarray(force(t, g, xi, u, p)), *given)
    except Exception:  # whatever a user's function raises for controls that are not its own
        return False
    return bool(made.shape == (n,))


def _require_width(system: System) -> None:
    """Refuse a force that reads more controls than there are inputs: JAX would read the last one instead."""
    count, known = len(system.inputs), _known_of_force(system)
    if known.get(count):
        return
    if not _takes(system, count) and (wanted := _infer_inputs(system)) is not None and len(wanted) > count:
        names = ", ".join(each.name for each in system.inputs)
        raise InvalidInput(
            f"inputs has {count} ({names or 'none'}), but force(t, g, xi, u, p) reads {len(wanted)} controls: name "
            f"as many inputs as it reads, or let it give {system.group.dim} numbers, one for each component of xi"
        )
    known[count] = True


def _find_inputs(system: System) -> tuple[Input, ...] | None:
    """The inputs that `force` reads: those of a force that the same code made before are known."""
    known = _known_of_force(system)
    if "inputs" not in known:
        known["inputs"] = _infer_inputs(system)
    found: tuple[Input, ...] | None = known["inputs"]
    return found


def _known_of_force(system: System) -> dict[Any, Any]:
    """What is known of the controls of a force: how many of them it takes, and its inputs if these are inferred."""
    force, found = cast(Any, system.force), system._closures.get("force")
    leaves, structure = jax.tree.flatten(system.parameters)
    try:
        return _notes_of_force(found[0].digest if found else force, system.group, structure, *map(np.shape, leaves))
    except TypeError:  # an object without a hash
        return {}


@lru_cache(maxsize=256)
def _notes_of_force(force: Any, *_: Any) -> dict[Any, Any]:
    """The notes on a force, or on the digest of its code; they are added when something is found out."""
    return {}


def unify(function: Any) -> Any:
    """The one object for all functions that the same code builds; as it is where it holds traced numbers."""
    found = recognise(function) if is_own(function) else None
    return function if found is None or found[1] else found[0].function


Closures = dict[str, tuple[Template, list[Any]]]


def _recognise(system: Any, names: tuple[str, ...], take: str = "numbers") -> None:
    """Put the recognised functions into a system, and note the numbers that they hold.

    These numbers are inputs of the program. A function that needs their values (for NumPy, or for a condition) keeps
    them.
    """
    closures: Closures = {}
    for name in names:
        function = getattr(system, name)
        if not is_own(function):
            continue
        kind = name, system.group, jax.tree.structure(system.parameters)
        found = take_numbers(function, partial(_arguments, system, name), kind, take)
        if found is not None:
            closures[name] = found
            object.__setattr__(system, name, found[0].fill(found[1]))
    object.__setattr__(system, "_closures", closures)


def free_numbers(system: Any) -> Any:
    """The same system, in which numbers that functions hold are inputs of the program even where they are 0 or 1."""
    if not isinstance(system, System | VectorField):
        return system
    made: Any = object.__new__(type(system))
    made.__dict__.update(system.__dict__)
    _recognise(made, ("field",) if isinstance(system, VectorField) else FUNCTIONS, "all")
    return made


def _arguments(system: Any, name: str) -> tuple[Any, ...]:
    """Arguments with which a function of a system can be traced."""
    velocity = np.zeros(system.group.dim)
    given: tuple[Any, ...] = (velocity,) if name in ("lagrangian", "force") else ()
    if name == "constraint" and isinstance(system, NonlinearSystem):
        given = (velocity,)
    if name == "force":
        inputs = _infer_inputs(system) if system.inputs == "infer" else system.inputs
        given = velocity, None if inputs is None else np.zeros(len(inputs))
    return 0.0, system.group.identity(), *given, system.parameters


def register_system(functions: tuple[str, ...], static: tuple[str, ...]) -> Callable[[Any], Any]:
    """Make a class of systems a pytree whose leaves are the parameters and the arrays that functions close over."""

    def flatten(system: Any) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        closures: Closures = system._closures
        kept = [closures[name][0] if name in closures else getattr(system, name) for name in functions]
        arrays = [closures[name][1] for name in functions if name in closures and closures[name][1]]
        return (system.parameters, arrays), (*kept, *(getattr(system, name) for name in static))

    def flatten_with_keys(system: Any) -> Any:
        data, rest = flatten(system)
        keys = jax.tree_util.GetAttrKey("parameters"), jax.tree_util.GetAttrKey("closures")
        return tuple(zip(keys, data, strict=True)), rest

    def register(cls: Any) -> Any:
        def unflatten(rest: tuple[Any, ...], data: Any) -> Any:
            parameters, lists = data
            made, closures, arrays = object.__new__(cls), {}, iter(lists if isinstance(lists, list) else ())
            values = dict(zip((*functions, *static), rest, strict=True))
            for name in functions:
                template = values[name]
                if isinstance(template, Template):
                    own: Any = next(arrays) if template.inputs else []
                    values[name], closures[name] = template.fill(own), (template, own)
            made.__dict__.update(values, parameters=parameters, _closures=closures)
            return made

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register


FUNCTIONS = ("lagrangian", "constraint", "drift", "force", "holonomic")


@register_system(FUNCTIONS, ("group", "inputs", "names"))
@dataclass(frozen=True, eq=False, repr=False)
class System(MechanicalSystem):
    """A mechanical system (Q, L, D) of your own: configurations, Lagrangian and constraint as functions written in JAX.

    `lagrangian(t, g, xi, p)` is L; `constraint(t, g, p)` -> A (m, n) and `drift(t, g, p)` -> b (m,) admit velocities
    with A xi = b; `force(t, g, xi, u, p)` (n,) is dual to the velocity; `holonomic(t, g, p)` -> phi (k,) keeps
    configurations on phi = 0, and its derivative gives the last k rows of A and b. What is None is absent. `parameters`
    is the pytree p, which ensembles, sweeps and gradients reach. `inputs` describes the controls u (one number each, 0
    where a run has none): how many, their names, or an `Input` each; if left out, `force` is traced to count them.

    `names` are yours for the system and for its coordinates, velocities (the components of xi) and constraints (rows of
    A), each with a unit if you like: `names={"system": "Skate", "coordinates": ["heading [rad]", "x [m]", "y [m]"],
    "velocities": ["turn [rad s-1]", "speed [m s-1]", "slip [m s-1]"], "constraints": ["blade [N]"]}`. Then `run["x"]`
    and `run["blade"]` are arrays, and files, tables, pictures and messages use these names. On R^n velocities without
    names are called after the coordinates: "x rate".
    """

    group: Group
    lagrangian: Callable[..., Array]
    constraint: Callable[..., Array] | None = None
    _: KW_ONLY
    parameters: Parameters = None
    drift: Callable[..., Array] | None = None
    force: Callable[..., Array] | None = None
    holonomic: Callable[..., Array] | None = None
    inputs: Any = "infer"
    names: Any = None

    def __post_init__(self) -> None:
        require_instance("group", self.group, Group, "a group")
        if any(map(_is_short, jax.tree.leaves(self.parameters))):
            widen = lambda leaf: leaf.astype(np.float64) if _is_short(leaf) else leaf
            object.__setattr__(self, "parameters", jax.tree.map(widen, self.parameters))
        require_function("lagrangian", self.lagrangian, "(t, g, xi, p)", optional=False)
        for name in ("constraint", "drift", "force", "holonomic"):
            require_function(name, getattr(self, name), "(t, g, xi, u, p)" if name == "force" else "(t, g, p)")
        infers = isinstance(self.inputs, str) and self.inputs == "infer"
        if not infers and self.inputs is not None:
            object.__setattr__(self, "inputs", _declare_inputs(self.inputs))
        _recognise(self, FUNCTIONS)
        if infers:
            object.__setattr__(self, "inputs", () if self.force is None else _find_inputs(self))
        elif self.force is not None and self.inputs is not None:
            _require_width(self)
        object.__setattr__(self, "names", Names.read(self.names, self))

    _closures: ClassVar[Closures] = {}

    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        words = "lagrangian(t, g, xi, p)"
        return require_shape(words, _trace_once(self.lagrangian, words, "f")(t, g, xi, self.parameters), ())

    def A(self, t: Scalar, g: Element) -> LinearMap:
        rows = self._rows(t, g)
        return rows if self.holonomic is None else jnp.concatenate([rows, _tangency(self, t, g)[0]])

    @property
    def _can_rest(self) -> bool:
        return type(self).b is System.b and self.drift is None and self.holonomic is None

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        drift = self._drift(t, g)
        return drift if self.holonomic is None else jnp.concatenate([drift, -_tangency(self, t, g)[1]])

    def phi(self, t: Scalar, g: Element) -> Float[Array, " k"]:
        if self.holonomic is None:
            return jnp.zeros(0)
        words, n = "holonomic(t, g, p)", self.group.dim
        value = own_value(words, self.holonomic, t, g, self.parameters)
        allowed = f"(k,) with k < {n}, one entry for each holonomic constraint on {self.group}"
        return require_shape(words, value, allowed, value.ndim == 1 and value.shape[0] < n)

    def _rows(self, t: Scalar, g: Element) -> Array:
        """The nonholonomic rows of A."""
        if self.constraint is None:
            return jnp.zeros((0, self.group.dim))
        words, n, room = "constraint(t, g, p)", self.group.dim, self.group.dim - self.holonomic_constraints
        rows = _trace_once(self.constraint, words)(t, g, self.parameters)
        allowed = f"(m, {n}) with m < {room}, one row for each constraint on xi in the algebra of {self.group}"
        return require_shape(words, rows, allowed, rows.ndim == 2 and rows.shape[1] == n and rows.shape[0] < room)

    def _drift(self, t: Scalar, g: Element) -> Array:
        """The entries of b for the nonholonomic rows."""
        m = self._rows(t, g).shape[0]
        if self.drift is None:
            return jnp.zeros(m)
        value = own_value("drift(t, g, p)", self.drift, t, g, self.parameters)
        return require_shape("drift(t, g, p)", value, f"({m},), one entry a constraint row", value.shape == (m,))

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        if self.force is None:
            return jnp.zeros(self.group.dim)
        words, given = "force(t, g, xi, u, p)", u
        if u is None:  # where no width of u will do, say what is wrong with the force
            given = jnp.zeros(self.group.dim + SPARE_INPUTS) if self.inputs is None else self.zero_controls()
        elif self.inputs is not None and jnp.shape(u) != (len(self.inputs),):
            raise InvalidInput(f"the controls of a step have shape {jnp.shape(u)}; allowed: ({len(self.inputs)},)")
        try:
            value = own_value(words, self.force, t, g, xi, given, self.parameters)
        except InvalidInput as error:  # it may want controls with names, say
            if self.inputs is None and u is None:
                raise InvalidInput(f"{UNKNOWN_INPUTS} ({error})") from error
            raise
        return require_shape(words, value, (self.group.dim,))


@register_system(FUNCTIONS, ("group", "inputs", "names"))
@dataclass(frozen=True, eq=False, repr=False)
class NonlinearSystem(System):
    """A system of your own whose constraint phi(t, g, xi) = 0 is not linear in the velocity; else as `System`.

    `constraint(t, g, xi, p)` -> phi (m,); with a `drift` b it reads phi = b. The reaction acts along phi_xi: d/dt L_xi
    - ad*_xi L_xi - L_g - F = phi_xi^T l ((5) of jimenez-scheurle). Rows of a `holonomic` constraint follow.
    """

    def residual(self, t: Scalar, g: Element, xi: Velocity) -> Float[Array, " m"]:
        """phi(t, g, xi), zero on the constraint; then dphi xi + phi_t of the holonomic ones."""
        own = self._own(t, g, xi)
        if self.holonomic is None:
            return own
        rows, rate = tangency(self.group, self.phi, t, g)
        return jnp.concatenate([own, rows @ xi + rate])

    def _own(self, t: Scalar, g: Element, xi: Velocity) -> Array:
        if self.constraint is None:
            return jnp.zeros(0)
        words, n = "constraint(t, g, xi, p)", self.group.dim
        value = own_value(words, self.constraint, t, g, xi, self.parameters)
        allowed = f"(m,) with m < {n}, one entry for each constraint on xi in the algebra of {self.group}"
        value = require_shape(words, value, allowed, value.ndim == 1 and value.shape[0] < n)
        return value - self.drift(t, g, self.parameters) if self.drift is not None else value

    def rows(self, t: Scalar, g: Element) -> Callable[[Array], Array]:
        """xi -> phi_xi, shape (m, n)."""
        return jax.jacfwd(lambda xi: self.residual(t, g, xi))

    @property
    def constraints(self) -> int:
        return int(jax.eval_shape(self.residual, 0.0, self.group.identity(), self._zero()).shape[0])

    def A(self, t: Scalar, g: Element) -> LinearMap:
        raise InvalidInput(
            "a nonlinear constraint phi(t, g, xi) = 0 has no rows A(t, g), only system.rows(t, g)(xi); allowed for it: "
            "methods that need no more, among them lagrange-dalembert, runge-kutta and reference"
        )

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        return self.A(t, g)

    def _project(self, t: Scalar, g: Element, xi: Array) -> Array:
        """The admissible velocity nearest to xi in the kinetic metric at (g, xi), by Newton's method from xi."""
        metric = self.metric(t, g, xi)
        return self._admissible(t, g, xi, lambda x: metric @ (x - xi))

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        """The velocity with L_xi + phi_xi^T l = momentum, phi = 0: from that of the free system."""

        def mismatch(xi: Array) -> Array:
            return self.momentum(t, g, xi) - momentum

        rest = self._zero()
        if self.quadratic:
            return self._admissible(t, g, rest - solve(self.metric(t, g, rest), mismatch(rest)), mismatch)
        return self._admissible(t, g, follow_root(mismatch, rest if near is None else near).x, mismatch)

    def _admissible(self, t: Scalar, g: Element, guess: Array, gradient: Callable[[Array], Array]) -> Array:
        """The critical point on the constraint, gradient(x) + phi_xi(x)^T l = 0, which Newton finds from `guess`."""
        n, m = self.group.dim, self.constraints
        rows = self.rows(t, g)

        def equations(x: Array) -> Array:
            return jnp.concatenate([gradient(x[:n]) + rows(x[:n]).T @ x[n:], self.residual(t, g, x[:n])])

        root = find_root(equations, jnp.concatenate([guess, jnp.zeros(m)]))
        return jnp.where(root.converged, root.x[:n], jnp.nan)


def perturb_constraint(system: MechanicalSystem, g: Callable[..., Array], delta: Scalar = 1.0) -> NonlinearSystem:
    """The system with its constraint perturbed to A xi - b + delta g(t, q, xi) = 0, where g(t, q, xi) -> (m,).

    This is Remark 6.1, (91) to (96), of jimenez-scheurle. The `parameters` of the result are {"system", "delta"}, so an
    ensemble may run over delta.
    """

    def constraint(t: Scalar, q: Element, xi: Array, p: dict[str, Any]) -> Array:
        system: MechanicalSystem = p["system"]
        return system.residual(t, q, xi) + jnp.asarray(p["delta"]) * jnp.asarray(g(t, q, xi))

    return with_constraint(system, constraint, {"delta": jnp.asarray(delta, float)})


def with_constraint(
    system: MechanicalSystem, constraint: Callable[..., Array], parameters: dict[str, Array]
) -> NonlinearSystem:
    both, names = {"system": system, **parameters}, system.names and replace(system.names, constraints=())
    return NonlinearSystem(
        system.group, _lagrangian, constraint, parameters=both, force=_force, inputs=system.inputs, names=names
    )


def _lagrangian(t: Scalar, g: Element, xi: Array, p: dict[str, Any]) -> Array:
    return cast(MechanicalSystem, p["system"]).L(t, g, xi)


def _force(t: Scalar, g: Element, xi: Array, u: Controls, p: dict[str, Any]) -> Array:
    return cast(MechanicalSystem, p["system"]).F(t, g, xi, u)


@register_system(("field",), ("group",))
@dataclass(frozen=True, eq=False, repr=False)
class VectorField(MechanicalSystem):
    """A first-order equation g' = g X on a group, X = `field(t, g, p)` in the algebra (retraction-maps, section III C).

    As a system (Q, L, D) it has L = |xi|^2/2, A = 1 and b = X, so that every method for affine constraints runs it.
    """

    group: Group
    field: Callable[..., Array]
    parameters: Parameters = None

    _closures: ClassVar[Closures] = {}

    def __post_init__(self) -> None:
        _recognise(self, ("field",))

    def L(self, t: Scalar, g: Element, xi: Velocity) -> Number:
        return 0.5 * xi @ xi

    def A(self, t: Scalar, g: Element) -> LinearMap:
        return jnp.eye(self.group.dim)

    def b(self, t: Scalar, g: Element) -> Float[Array, " m"]:
        words = "field(t, g, p)"
        return require_shape(words, own_value(words, self.field, t, g, self.parameters), (self.group.dim,))

    def velocity(self, t: Scalar, g: Element, momentum: Covector, near: Velocity | None = None) -> Velocity:
        return self.b(t, g)

    def state(self, g: Any = None, xi: Any = None, *, momentum: Any = None, t: Scalar = 0.0, **named: float) -> State:
        """The initial state at the configuration g; its velocity is the value of the field there."""
        if named:
            return super().state(g, xi, momentum=momentum, t=t, **named)
        g = self.group.identity() if g is None else self.group.element(g)
        return super().state(g, self.b(t, g) if xi is None and momentum is None else xi, momentum=momentum, t=t)


@dataclass(frozen=True, eq=False)
class Driven(MechanicalSystem):
    """A system with another force; everything else is the system's own (`inertia` to `annihilator`: if it has them)."""

    system: MechanicalSystem

    group, inputs, quadratic, constraints = of_part("system", "group", "inputs", "quadratic", "constraints")
    inertia, subspace, annihilator = of_part("system", "inertia", "subspace", "annihilator")
    L, A, b, phi, residual, rows = of_part("system", "L", "A", "b", "phi", "residual", "rows")
    project, velocity, basis = of_part("system", "project", "velocity", "basis")
    coordinate_names, turning_names, rate_names, load_names, kept_components = of_part(
        "system", "coordinate_names", "turning_names", "rate_names", "load_names", "kept_components"
    )
    start_names, observe, named_coordinates = of_part("system", "start_names", "observe", "named_coordinates")
    names, axes, units, title = of_part("system", "names", "axes", "units", "title")

    def state(self, g: Any = None, xi: Any = None, *, momentum: Any = None, t: Scalar = 0.0, **named: float) -> State:
        """A state as the system without this force makes it; a mechanism takes names."""
        if named or isinstance(xi, Mapping) or (g is None and xi is None and momentum is None):
            return self.system.state(g, xi, momentum=momentum, t=t, **named)
        return super().state(g, xi, momentum=momentum, t=t)


@partial(jax.tree_util.register_dataclass, data_fields=("system", "force"), meta_fields=())
@dataclass(frozen=True, eq=False, repr=False)
class Forced(Driven):
    """A system on which one more force `force(t, g, xi)` (n,) acts; `with_force` makes it."""

    force: Force

    def __repr__(self) -> str:
        added = "friction" if isinstance(self.force, Friction) else "a force"
        return f"<{str(self.system).strip('<>')}, with {added}>"

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        added = own_value("force(t, g, xi)", self.force, t, g, xi)
        return self.system.F(t, g, xi, u) + require_shape("force(t, g, xi)", added, (self.group.dim,))


@partial(jax.tree_util.register_dataclass, data_fields=("system", "policy"), meta_fields=())
@dataclass(frozen=True, eq=False, repr=False)
class Steered(Driven):
    """A closed loop: a system whose controls are u = `policy(t, g, xi)`; `with_feedback` makes it."""

    policy: Force
    inputs = ()  # the policy gives them all

    def __repr__(self) -> str:
        return f"<{str(self.system).strip('<>')}, with feedback>"

    def F(self, t: Scalar, g: Element, xi: Velocity, u: Controls) -> Covector:
        return self.system.F(t, g, xi, own_value("policy(t, g, xi)", self.policy, t, g, xi))


def with_force(system: MechanicalSystem, force: Force) -> Forced:
    """Add the force `force(t, g, xi)` (n,), dual to the velocity, to a system.

    It is a function in JAX, or a pytree with `__call__` whose leaves are its parameters.
    """
    return Forced(system, _pytree("force", system, force))


def with_feedback(system: MechanicalSystem, policy: Force) -> Steered:
    """Close the loop: make the inputs of a system a function u = `policy(t, g, xi)` of its state.

    The policy is a function in JAX, or a pytree with `__call__`, whose leaves gradients reach. The bounds of the inputs
    do not bind it: cut off what it gives (`jnp.clip`).
    """
    made = Steered(system, _pytree("policy", system, policy))
    if system.inputs is not None and not system.inputs:
        reason = "a feedback sets them" if feedback(system) else "its force does not read u, as far as tracing shows"
        raise InvalidInput(f"a feedback sets inputs, but {system} has none: {reason}")
    return made


def feedback(system: MechanicalSystem) -> Steered | None:
    """The loop that `with_feedback` closed around a system, under forces that were added to it; None without one."""
    if isinstance(system, Steered) or not isinstance(system, Driven):
        return system if isinstance(system, Steered) else None
    return feedback(system.system)


def without_forces(system: MechanicalSystem) -> MechanicalSystem:
    """The system without the forces and the feedback that `with_force`, `with_friction` and `with_feedback` added."""
    return without_forces(system.system) if isinstance(system, Driven) else system


def with_friction(
    system: MechanicalSystem, *, viscous: Any = 0.0, dry: Any = 0.0, along: Any = None, width: Any = 1e-3
) -> Forced:
    """Add friction to a system: viscous, or of constant size (`dry`); see `Friction` for the formula.

    It acts on the velocities `along` @ xi, with rows (k, n) or one row (n,); default: on all of xi. `viscous` is a
    number, k of them, or a symmetric matrix (k, k). Several kinds add up:
    with_friction(with_friction(car, viscous=0.1), dry=2.0, along=[0, 1, 0, 0]).
    """
    require_instance("system", system, MechanicalSystem, "a system")
    n = system.group.dim
    rows = jnp.eye(n) if along is None else jnp.atleast_2d(real("along", along))
    if rows.ndim != 2 or rows.shape[1] != n:
        raise InvalidInput(f"along has shape {np.shape(along)}; allowed: ({n},) or (k, {n})")
    values = read_viscous(viscous, len(rows)), not_negative("dry", dry), positive("width", width)
    return Forced(system, Friction(rows, *values))


def read_viscous(viscous: Any, k: int) -> Any:
    """The coefficients of viscous friction on `k` velocities: a number, (k,) or symmetric (k, k), none negative."""
    given = read_reals(viscous)
    if given is None or not given.ndim:
        return not_negative("viscous", viscous)
    if given.shape not in ((k,), (k, k)):
        raise InvalidInput(
            f"viscous has shape {given.shape}; allowed: one number, ({k},) with one for each velocity, or a symmetric "
            f"matrix ({k}, {k}){say_many(given, (), (k,), (k, k))}"
        )
    known = real("viscous", given)
    if not is_traced(known):
        table = np.asarray(known) if known.ndim == 2 else np.diag(np.asarray(known))
        if not np.allclose(table, table.T) or np.linalg.eigvalsh(table).min() < -TOLERANCE * np.abs(table).max():
            raise InvalidInput(
                f"viscous is {show(viscous)}; allowed: no negative number, or a symmetric matrix that only brakes"
            )
    return known


@partial(jax.tree_util.register_dataclass, data_fields=("along", "viscous", "dry", "width"), meta_fields=())
@dataclass(frozen=True)
class Friction:
    """A force against the velocity: F = -S^T (viscous + dry/sqrt(|s|^2 + width^2)) s with s = S xi.

    It is the gradient of a Rayleigh function, and its power <F, xi> is never positive. `dry` is the largest size of the
    force (Coulomb's mu N; for a wheel the rolling resistance), reached where |s| is many times `width`: below that the
    force is smooth, and a body creeps instead of sticking.
    """

    along: Any  # rows (k, n); JAX puts placeholders into all of them when it flattens
    viscous: Any  # a number, (k,) or (k, k); the others are numbers
    dry: Any
    width: Any

    def __call__(self, t: Scalar, g: Element, xi: Velocity) -> Covector:
        s = self.along @ xi
        size = self.dry / jnp.sqrt(s @ s + self.width**2)
        if not (axes := jnp.ndim(self.viscous)):
            return cast(Array, -(self.viscous + size) * (self.along.T @ s))
        braked = self.viscous @ s if axes == 2 else self.viscous * s
        return cast(Array, -self.along.T @ (braked + size * s))


def _pytree(name: str, system: MechanicalSystem, function: Force) -> Force:
    """A function as a pytree of the numbers that it holds; what is a pytree already stays one."""
    require_instance("system", system, MechanicalSystem, "a system")
    require_function(name, function, "(t, g, xi)", optional=False)
    if not jax.tree_util.all_leaves([function]):
        return cast(Force, unify(function))
    group = system.group
    held = hold(function, lambda: (0.0, group.identity(), np.zeros(group.dim)), (name, group))
    return held or cast(Force, jax.tree_util.Partial(unify(function)))  # type: ignore[no-untyped-call]
