"""The discrete Lagrange-d'Alembert principle on any group, for any pair (L_d, D_d).

Where coordinates on the discrete constraint are known, a step has as many unknowns as the motion has freedoms. Where
-D1 L_d = mu0(w) is explicit, p_k + A(g_k)^T h l = mu0(w) says that mu0 - p_k annihilates D at g_k: n - m equations for
the n - m coordinates of w, and h l is read off afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, OffConstraint
from ..groups import Group
from ..kernels import LoweringError
from ..mechanics import Discretisation, FiniteDifference, InvariantSystem, MechanicalSystem, State
from ..numerics import Root, literals, require_instance, solve
from ..numerics.types import AnyArray as Array
from ..numerics.types import Controls, Covector, Element, Scalar, Velocity
from .base import Claims, NodeMethod, Prediction, Result, StepInfo
from .properties import conservative, purely_inertial, require_option, unconstrained
from .registry import register


class OnSubspace(NamedTuple):
    """Coordinates w = B x where d is constant. (For the methods see `OnFibre`.)"""

    def of(self, system: Any, w: Velocity) -> tuple[Array, Array]:
        return system.coordinates(w), jnp.zeros(0)

    def velocity(self, system: Any, x: Array, rest: Array) -> Any:
        return system.subspace @ x

    def rest(self, off: Callable[[Array], Array], x: Array) -> Array:
        return jnp.zeros(0)

    def on_D(self, system: Any, rows: Array, c: Covector) -> Any:
        return system.subspace.T @ c

    def reaction(self, system: Any, rows: Array, c: Covector) -> Array:
        return solve(rows @ rows.T, rows @ c)


class OnFibre(NamedTuple):
    """Coordinates x of w = (x, w_f) where the discrete constraint is written as w_f = r(x), and A(g_k) = (K, +-1).

    This is an Ehresmann connection. c = mu0 - p are covectors, to be paired with D.
    """

    free: tuple[int, ...]
    bound: tuple[int, ...]
    signs: tuple[int, ...]

    def of(self, system: Any, w: Velocity) -> tuple[Array, Array]:
        """(x, what else w is made of)."""
        return w[_indices(self.free)], w[_indices(self.bound)]

    def velocity(self, system: Any, x: Array, rest: Array) -> Array:
        """w from both."""
        return jnp.concatenate([x, rest])[np.argsort(_indices(self.free + self.bound))]

    def rest(self, off: Callable[[Array], Array], x: Array) -> Array:
        """What else w is made of, so that off(w) = 0: the discrete constraint."""
        return off(self.velocity(None, x, jnp.zeros(len(self.bound)))) * -np.array(self.signs, float)

    def on_D(self, system: Any, rows: Array, c: Covector) -> Array:
        """c on the kernel of `rows`, n - m numbers."""
        return c[_indices(self.free)] - rows[:, _indices(self.free)].T @ self.reaction(system, rows, c)

    def reaction(self, system: Any, rows: Array, c: Covector) -> Array:
        """l with rows^T l = c, for a c that is zero on D."""
        return c[_indices(self.bound)] * np.array(self.signs, float)


Coordinates = OnSubspace | OnFibre  # on the velocities w that a step may have


def _indices(places: tuple[int, ...]) -> np.ndarray:
    return np.array(places, int)


DiscreteConstraint = Callable[[Any, Any, Any, Array, Any], Array]


def multiplier_free_coordinates(
    system: Any, difference: FiniteDifference, off: DiscreteConstraint, t: Scalar, g: Element, h: Scalar
) -> Coordinates | None:
    """Coordinates on off(system, t, g, w, h) = 0 that leave no multipliers.

    None where there are none, or where mu0(w) is not explicit.
    """
    if not difference.explicit(system.group) or system.holonomic_constraints:
        return None
    if isinstance(system, InvariantSystem):
        return OnSubspace()
    leaves, structure = jax.tree.flatten((system, t, g, h))
    return _on_fibre(off, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@lru_cache(maxsize=128)
def _on_fibre(off: DiscreteConstraint, structure: Any, leaves: tuple[Any, ...]) -> OnFibre | None:
    """Each row needs a literal unit column, in the derivative of the discrete constraint and in A(g_k)."""

    def slopes(w: Velocity, *flat: Any) -> Array:
        system, t, g, h = jax.tree.unflatten(structure, flat)
        return jnp.concatenate([jax.jacfwd(lambda w: off(system, t, g, w, h))(w), system.rows(t, g)(w)])

    shapes = [jax.ShapeDtypeStruct(*leaf) for leaf in leaves]  # type: ignore[no-untyped-call]  # jax has none
    n = jax.tree.unflatten(structure, shapes)[0].group.dim
    try:
        velocity = jax.ShapeDtypeStruct((n,), float)  # type: ignore[no-untyped-call]  # as above
        known = literals(slopes, velocity, *shapes)
    except LoweringError:
        return None
    units = [_unit_column(known, np.tile(unit, 2)) for unit in np.eye(known.shape[0] // 2)]
    if None in units:
        return None
    bound, signs = zip(*units, strict=True) if units else ((), ())
    return OnFibre(tuple(j for j in range(n) if j not in bound), bound, signs)


def _unit_column(matrix: np.ndarray, unit: np.ndarray) -> tuple[int, int] | None:
    """(j, s) with column j equal to s * unit."""
    signed = ((j, s) for s in (1, -1) for j in range(matrix.shape[1]) if np.array_equal(matrix[:, j], s * unit))
    return next(signed, None)


NODES = ("original", "velocity", "deformed")


class Carry(NamedTuple):
    """The node g at time t with its unprojected momentum p, and the velocity w at the last inner point g~."""

    t: Array
    g: Any
    p: Array
    inner: Any  # g~ where nodes = "velocity", else nothing
    prediction: Prediction  # of the unknowns: (w, impulse h l), or coordinates of w
    rest: Array  # what else w and the impulse are made of


@register(
    words="D'Alembert's principle made discrete: takes every system, and stays exactly on the constraint.",
    use_when="there are forces, controls, time, holonomic, affine or nonlinear constraints, or nothing else fits",
)
@dataclass(frozen=True)
class LagrangeDAlembert(NodeMethod):
    """D1 L_d(g_k, g_{k+1}) + D2 L_d(g_{k-1}, g_k) = -h A(g_k)^T l_k, (g_k, g_{k+1}) in D_d, with L_d = h L o rho.

    (59) of jimenez-scheurle. rho is the finite difference map of (retraction, node), or `pair` gives any other L_d and
    D_d. The order is 2 at node 1/2, else 1 (2 on force-free invariant systems). What a state means is `nodes`:
    "original": (g_k, v), v in D with the restricted momentum of p_k; composes, does not depend on h.
    "velocity": the redefined nodes (g~, w), on D exactly (Definition 5.6).
    "deformed": (g_{k+1}, w), on the deformed constraint (87)-(89).
    Holonomic constraints hold at the original nodes only, phi(g_{k+1}) = 0, with reactions dphi(g_k)^T l_k beside
    A(g_k)^T l_k, and dphi v = -phi_t: RATTLE (Andersen 1983) for this L_d, symplectic where nothing is nonholonomic.
    """

    nodes: str = "original"
    pair: Discretisation | None = None
    name = "lagrange-dalembert"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_option("nodes", self.nodes, NODES)
        if self.pair is not None:
            require_instance("pair", self.pair, Discretisation, "a Discretisation")
        if self.pair is not None and self.nodes != "original":
            raise InvalidInput(
                f'nodes = "{self.nodes}" needs a finite difference map; a pair (L_d, D_d) has only its original nodes'
            )

    @property
    def carry_is_step_free(self) -> bool:  # type: ignore[override]
        return self.nodes == "original"

    def adjoint(self) -> LagrangeDAlembert | None:
        return replace(self, node=1 - self.node) if self.pair is None else None

    def claims(self, system: MechanicalSystem) -> Claims:
        symmetric = self.node == 0.5 and self.nodes != "deformed" and self.pair is None
        original, still = self.nodes == "original", conservative(system)
        lifted = original and self.pair is None and isinstance(system, InvariantSystem) and purely_inertial(system)
        return Claims(
            2 if symmetric or lifted else 1, symmetric=symmetric, reversible=symmetric and still,
            constraint=self.nodes != "deformed", group=True, momentum=original and still,
            symplectic=original and still and unconstrained(system),
            condition="order 2 and symmetric at node 1/2, order 2 at every node on invariant systems without potential"
        )  # fmt: skip

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        multipliers = system.multipliers(state.t, state.g, state.xi, u)
        prediction, rest = self._unknowns(system, state, h * multipliers, h)
        if self.nodes == "original":
            return Carry(state.t, state.g, state.momentum, None, prediction, rest), StepInfo.explicit(multipliers)
        s, group, xi = self.node, system.group, h * state.xi
        shift = self.retraction.tau(group, (1 - s) * xi)
        moved = self.nodes == "velocity"
        inner = state.g if moved else group.compose(state.g, group.inverse(shift))
        g = group.compose(inner, shift) if moved else state.g
        t = state.t if moved else state.t - (1 - s) * h  # of the inner point
        impulse = h * (system.L_g(t, inner, state.xi) + system.F(t, inner, state.xi, u))
        _, p = self.difference.momenta(group, xi, system.momentum(t, inner, state.xi), impulse)
        return Carry(t + (1 - s) * h, g, p, inner if moved else None, prediction, rest), StepInfo.explicit(multipliers)

    def step(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        frame = self._coordinates(system, carry, h)
        solver = self._solve if frame is None else partial(self._solve_on_D, frame)
        root, w, impulse, p = solver(system, carry, h, u)
        inner = self.difference.inner(system.group, carry.g, h * w) if self.nodes == "velocity" else None
        g = system.group.normalise(self._end(system.group, carry.g, h * w))
        # A momentum known on D only cannot tell the first reaction: it is the continuous one, from the start.
        first = (carry.prediction.sign == 0) & (self.nodes == "original")
        impulse = jnp.where(first, self._velocity_and_impulse(system, carry, h)[1], impulse)
        rest = carry.rest if frame is None else jnp.concatenate([frame.of(system, w)[1], impulse])
        new = Carry(carry.t + h, g, p, inner, carry.prediction.after(root), rest)
        return new, StepInfo.from_root(carry.prediction, root, impulse / h)

    def _coordinates(self, system: MechanicalSystem, at: State | Carry, h: Scalar) -> Coordinates | None:
        """Coordinates of w in which a step needs no multipliers."""
        if self.pair is not None:
            return None
        return multiplier_free_coordinates(system, self.difference, self._discrete_constraint, at.t, at.g, h)

    def _unknowns(self, system: MechanicalSystem, state: State, impulse: Array, h: Scalar) -> tuple[Prediction, Array]:
        """What a step solves for, from the velocity and the impulse before it, and what else these are made of."""
        frame = self._coordinates(system, state, h)
        if frame is None:
            return Prediction.at(jnp.concatenate([state.xi, impulse])), jnp.zeros(0)
        x, rest = frame.of(system, state.xi)
        return Prediction.at(x), jnp.concatenate([rest, impulse])

    def _velocity_and_impulse(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> tuple[Array, Array]:
        x, frame = carry.prediction.x, self._coordinates(system, carry, h)
        if frame is None:
            return x[: system.group.dim], x[system.group.dim :]
        rest, impulse = jnp.split(carry.rest, [len(carry.rest) - system.constraints])
        return frame.velocity(system, x, rest), impulse

    def _solve(
        self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls
    ) -> tuple[Root, Array, Array, Array]:
        """The root, w, the impulse and mu1, from the balance of momentum and the discrete constraint."""
        n = system.group.dim
        rows, before = system.rows(carry.t, carry.g), carry.prediction.x[:n]

        @jax.jit  # traced once for both uses
        def balanced(x: Array) -> tuple[Array, Array, Array]:
            """A nonlinear constraint reacts along its rows at the mean velocity, which keeps the step symmetric."""
            kicked = carry.p + rows(0.5 * (before + x[:n])).T @ x[n:]  # p_k + h A^T l_k
            return self._balance(system, carry, x[:n], kicked, h, u)

        def equations(x: Array) -> Array:
            balance, _, off = balanced(x)
            return jnp.concatenate([balance, off])

        root = carry.prediction.solve(equations, split=n)
        _, p, _ = balanced(root.x)
        return root, root.x[:n], root.x[n:], p

    def _solve_on_D(
        self, frame: Coordinates, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls
    ) -> tuple[Root, Array, Array, Array]:
        """The same in coordinates of w, n - m unknowns: the balance of momentum on D at g_k, without multipliers."""
        rows, before = system.rows(carry.t, carry.g), self._velocity_and_impulse(system, carry, h)[0]

        @jax.jit  # traced once for both uses
        def kick(x: Array) -> tuple[Array, Array, Array, Array]:
            """w, mu0 - p_k, the rows along which that acts, and mu1 - mu0."""
            rest = frame.rest(lambda w: self._discrete_constraint(system, carry.t, carry.g, w, h), x)
            w = frame.velocity(system, x, rest)
            t, inner = carry.t + self.node * h, self.difference.inner(system.group, carry.g, h * w)
            impulse = h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))
            known = system.group, h * w, system.momentum(t, inner, w), impulse
            mu0, _ = self.difference.momenta(*known)
            return w, mu0 - carry.p, rows(0.5 * (before + w)), self.difference.gain(*known)

        def equations(x: Array) -> Array:
            _, c, along, _ = kick(x)
            return frame.on_D(system, along, c)

        root = carry.prediction.solve(equations)
        w, c, along, gain = kick(root.x)
        impulse = frame.reaction(system, along, c)
        return root, w, impulse, carry.p + (along.T @ impulse + gain)

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        s = self.node
        w = self._velocity_and_impulse(system, carry, h)[0]
        if self.nodes == "velocity":
            t = carry.t - (1 - s) * h
            return State(t, carry.inner, w, system.momentum(t, carry.inner, w), w)
        if self.nodes == "deformed":
            return State(carry.t, carry.g, w, system.momentum(carry.t, carry.g, w), w)
        xi = system.velocity(carry.t, carry.g, carry.p, w)
        return State(carry.t, carry.g, xi, system.momentum(carry.t, carry.g, xi), w)

    def reaction_time(self, t: Scalar, h: Scalar) -> Scalar:
        """When the multiplier that comes with a state at time t acts: at the node before it.

        That is t - s h for "velocity" nodes, else t - h.
        """
        return t - (self.node if self.nodes == "velocity" else 1.0) * h

    def require(self, system: MechanicalSystem, state: State, h: Scalar) -> None:
        if system.holonomic_constraints and (self.nodes != "original" or self.pair is not None):
            shown = f'nodes = "{self.nodes}" shows others'
            other = shown if self.pair is None else "a pair (L_d, D_d) says nothing of phi"
            raise InvalidInput(
                f"{self.name} keeps holonomic constraints at its original nodes; {other}. "
                'Use nodes = "original" without a pair'
            )
        if self.nodes != "deformed":
            return system.require_admissible(state.t, state.g, state.xi)
        inner = system.group.compose(state.g, self.retraction.tau(system.group, -(1 - self.node) * h * state.xi))
        try:
            system.require_admissible(state.t - (1 - self.node) * h, inner, state.xi)
        except OffConstraint:
            system.require_admissible(state.t, state.g, state.xi)

    def _end(self, group: Group, g: Element, xi: Velocity) -> Element:
        by_pair = self.pair is not None
        return group.compose(g, self.retraction.tau(group, xi)) if by_pair else self.difference.end(group, g, xi)

    def _balance(
        self, system: MechanicalSystem, carry: Carry, w: Velocity, mu0: Covector, h: Scalar, u: Controls
    ) -> tuple[Array, Array, Array]:
        """(the balance of momentum, mu1, the discrete constraint) of a step with velocity w that mu0 starts."""
        if self.pair is not None:
            where = (carry.t, carry.g, self._end(system.group, carry.g, h * w), h)
            balance = mu0 + self.pair.D1(*where, system, u)
            return balance, self.pair.D2(*where, system, u), self.pair.constraint(*where, system)
        t = carry.t + self.node * h
        inner = self.difference.inner(system.group, carry.g, h * w)
        impulse = h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))
        reaction, mu1 = self.difference.reaction(system.group, h * w, mu0, impulse)
        balance = reaction - system.momentum(t, inner, w)
        return balance, mu1, self._discrete_constraint(system, carry.t, carry.g, w, h)

    def _discrete_constraint(self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar) -> Array:
        """The discrete constraint of a step with velocity w from (t, g)."""
        inner, k = self.difference.inner(system.group, g, h * w), system.holonomic_constraints
        off = system.residual(t + self.node * h, inner, w)
        if not k:
            return off
        return jnp.concatenate([off[:-k], system.phi(t + h, self.difference.end(system.group, g, h * w)) / h])
