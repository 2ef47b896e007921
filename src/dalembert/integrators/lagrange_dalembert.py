"""Nonholonomic methods of a discrete Lagrangian L_d, on any group and for any pair (L_d, D_d).

The discrete Lagrange-d'Alembert principle, and methods that reflect the momentum in D at every node after an
unconstrained variational step: the geometric nonholonomic integrators, and the leapfrog among them.

Where coordinates on the discrete constraint are known, a step has as many unknowns as the motion has freedoms. Where
-D1 L_d = mu0(w) is explicit, p_k + A(g_k)^T h l = mu0(w) says that mu0 - p_k annihilates D at g_k: n - m equations for
the n - m coordinates of w, and h l is read off afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, OffConstraint, require_name
from ..groups import Cayley, Group, Retraction
from ..kernels import LoweringError, map_rows
from ..mechanics import Discretisation, FiniteDifference, InvariantSystem, MechanicalSystem, State
from ..numerics import Root, depends, fibre, literals, own_value, require_instance, solve
from ..numerics.types import Array, Controls, Covector, Element, Scalar, Velocity
from .base import Claims, Integrator, NodeMethod, Prediction, Result, StepInfo
from .properties import is_conservative, is_purely_inertial, is_unconstrained
from .registry import register

NODES = ("original", "velocity", "deformed")
MANY_UNKNOWNS = 8  # n + m from which on the columns of the multipliers are written down, not differentiated


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

    free: np.ndarray
    bound: np.ndarray
    signs: np.ndarray

    def of(self, system: Any, w: Velocity) -> tuple[Array, Array]:
        """(x, what else w is made of)."""
        return w[self.free], w[self.bound]

    def velocity(self, system: Any, x: Array, rest: Array) -> Array:
        """w from both."""
        return jnp.concatenate([x, rest])[np.argsort(np.concatenate([self.free, self.bound]))]

    def rest(self, off: Callable[[Array], Array], x: Array) -> Array:
        """What else w is made of, so that off(w) = 0: the discrete constraint."""
        return off(self.velocity(None, x, jnp.zeros(len(self.bound)))) * -self.signs

    def on_D(self, system: Any, rows: Array, c: Covector) -> Array:
        """c on the kernel of `rows`, n - m numbers."""
        return c[self.free] - rows[:, self.free].T @ self.reaction(system, rows, c)

    def reaction(self, system: Any, rows: Array, c: Covector) -> Array:
        """l with rows^T l = c, for a c that is zero on D."""
        return c[self.bound] * self.signs


Chart = OnSubspace | OnFibre  # coordinates on the velocities w that a step may have
DiscreteConstraint = Callable[[Any, Any, Any, Array, Any], Array]
Solution = tuple[Root, Array, Array, Array]  # the root, w, the impulse and mu1
Momenta = tuple[Array, Array]  # (-D1 L_d, D2 L_d) of a step, forces included


@lru_cache(maxsize=128)
def _on_fibre(off: DiscreteConstraint, structure: Any, leaves: tuple[Any, ...]) -> OnFibre | None:
    """Coordinates on off(system, t, g, w, h) = 0.

    Each row needs a literal unit column, in the derivative of the discrete constraint and in A(g_k).
    """

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
    units = [
        next(((j, s) for s in (1, -1) for j in range(n) if np.array_equal(known[:, j], s * np.tile(unit, 2))), None)
        for unit in np.eye(known.shape[0] // 2)
    ]
    if None in units:
        return None
    bound, signs = np.array(units, int).reshape(-1, 2).T
    return OnFibre(np.setdiff1d(np.arange(n), bound), bound, signs.astype(float))


class Carry(NamedTuple):
    """The node g at time t with its unprojected momentum p, and the velocity w at the last inner point g~."""

    t: Array
    g: Any
    p: Array
    inner: Any  # g~ where nodes = "velocity", else nothing
    prediction: Prediction  # of the unknowns: (w, impulse h l), or coordinates of w
    rest: Array  # what else w and the impulse are made of


@register(
    words="The discrete Lagrange-d'Alembert principle: accepts every system, satisfies the constraint exactly.",
    use_when="there are forces, controls, time dependence, holonomic, affine or nonlinear constraints; the default",
)
@dataclass(frozen=True)
class LagrangeDAlembert(NodeMethod):
    """The discrete Lagrange-d'Alembert principle: accepts every system and stays exactly on the constraint; order 2.

    D1 L_d(g_k, g_{k+1}) + D2 L_d(g_{k-1}, g_k) = -h A(g_k)^T l_k with (g_k, g_{k+1}) in D_d and L_d = h L o rho: (59)
    of jimenez-scheurle. rho is the finite difference map of (retraction, node), or `pair` gives any other L_d and D_d.
    The order is 2 at node 1/2, else 1 (2 on force-free invariant systems). `nodes` says what a saved state is:

    - "original": (g_k, v), with v in D and the restricted momentum of p_k. It does not depend on h.
    - "velocity": the redefined nodes (g~, w), exactly on D (Definition 5.6).
    - "deformed": (g_{k+1}, w), on the deformed constraint (87)-(89).

    Holonomic constraints hold at the original nodes only, phi(g_{k+1}) = 0, with reactions dphi(g_k)^T l_k beside
    A(g_k)^T l_k, and dphi v = -phi_t: RATTLE (Andersen 1983) for this L_d, symplectic where nothing is nonholonomic.
    """

    nodes: str = "original"
    pair: Discretisation | None = None
    name = "lagrange-dalembert"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("nodes", self.nodes, NODES)
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
        original, still = self.nodes == "original", is_conservative(system)
        lifted = original and self.pair is None and isinstance(system, InvariantSystem) and is_purely_inertial(system)
        return Claims(
            2 if symmetric or lifted else 1, symmetric=symmetric, reversible=symmetric and still,
            constraint=self.nodes != "deformed", group=True, momentum=original and still,
            symplectic=original and still and is_unconstrained(system),
            condition="order 2 and symmetric at node 1/2, order 2 at every node on invariant systems without potential"
        )  # fmt: skip

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[Carry]:
        info = StepInfo.at(system, state, u)
        frame, impulse = self._coordinates(system, state, h), h * info.multipliers
        if frame is None:
            x, rest = jnp.concatenate([state.xi, impulse]), jnp.zeros(0)
        else:
            x, bound = frame.of(system, state.xi)
            rest = jnp.concatenate([bound, impulse])
        prediction = Prediction.at(x)
        if self.nodes == "original":
            return Carry(state.t, state.g, state.momentum, None, prediction, rest), info
        s, group, xi = self.node, system.group, h * state.xi
        shift = self.retraction.tau(group, (1 - s) * xi)
        moved = self.nodes == "velocity"
        inner = state.g if moved else group.compose(state.g, group.inverse(shift))
        g = group.compose(inner, shift) if moved else state.g
        t = state.t if moved else state.t - (1 - s) * h  # of the inner point
        impulse = h * (system.L_g(t, inner, state.xi) + system.F(t, inner, state.xi, u))
        _, p = self.difference.momenta(group, xi, system.momentum(t, inner, state.xi), impulse)
        return Carry(t + (1 - s) * h, g, p, inner if moved else None, prediction, rest), info

    def step(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls = None) -> Result[Carry]:
        frame = self._coordinates(system, carry, h)
        solver = self._solve if frame is None else partial(self._solve_on_D, frame)
        root, w, impulse, p = solver(system, carry, h, u)
        inner = self.difference.inner(system.group, carry.g, h * w) if self.nodes == "velocity" else None
        g = system.group.restore(self._end(system.group, carry.g, h * w))
        # A momentum known on D only cannot tell the first reaction: it is the continuous one, from the start.
        first = (carry.prediction.sign == 0) & (self.nodes == "original")
        impulse = jnp.where(first, self._velocity_and_impulse(system, carry, h)[1], impulse)
        rest = carry.rest if frame is None else jnp.concatenate([frame.of(system, w)[1], impulse])
        new = Carry(carry.t + h, g, p, inner, carry.prediction.after(root), rest)
        return new, StepInfo.from_root(carry.prediction, root, impulse / h)

    def _coordinates(self, system: MechanicalSystem, at: State | Carry, h: Scalar) -> Chart | None:
        """Coordinates of w in which a step needs no multipliers; none where mu0(w) is not explicit."""
        if self.pair is not None or not self.difference.explicit(system.group) or system.holonomic_constraints:
            return None
        if isinstance(system, InvariantSystem):
            return OnSubspace()
        units = fibre(system, at.t, at.g, np.zeros(system.group.dim))
        if units is None or None in units:  # there are none, and it takes half as long to know
            return None
        leaves, structure = jax.tree.flatten((system, at.t, at.g, h))
        shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        return _on_fibre(self._discrete_constraint, structure, shapes)

    def _velocity_and_impulse(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> tuple[Array, Array]:
        x, frame = carry.prediction.x, self._coordinates(system, carry, h)
        if frame is None:
            return x[: system.group.dim], x[system.group.dim :]
        rest, impulse = jnp.split(carry.rest, [len(carry.rest) - system.constraints])
        return frame.velocity(system, x, rest), impulse

    def _solve(self, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls) -> Solution:
        """The step from the balance of momentum and the discrete constraint."""
        group, n = system.group, system.group.dim
        rows, before = system.rows(carry.t, carry.g), carry.prediction.x[:n]

        @jax.jit  # traced once for both uses
        def balanced(x: Array) -> tuple[Array, Array, Array]:
            """(the balance of momentum, the discrete constraint, mu1) of a step with velocity and impulse x.

            A nonlinear constraint reacts along its rows at the mean velocity, which keeps the step symmetric. The rows
            at g_k are made here, for their zeros show where the equations are affine.
            """
            rows = system.rows(carry.t, carry.g)
            w, mu0 = x[:n], carry.p + rows(0.5 * (before + x[:n])).T @ x[n:]  # p_k + h A^T l_k
            if self.pair is not None:
                where = (carry.t, carry.g, self._end(group, carry.g, h * w), h)
                balance, mu1 = mu0 + self.pair.D1(*where, system, u), self.pair.D2(*where, system, u)
                words = "constraint(t, g0, g1, h, system)"
                return balance, own_value(words, self.pair.constraint, *where, system), mu1
            t, inner = carry.t + self.node * h, self.difference.inner(group, carry.g, h * w)
            kick = h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))
            reaction, mu1 = self.difference.reaction(group, h * w, mu0, kick)
            balance = reaction - system.momentum(t, inner, w)
            return balance, self._discrete_constraint(system, carry.t, carry.g, w, h), mu1

        def coupling(x: Array) -> Array:
            """The columns of the impulse: how its rows enter the balance."""
            own = rows(before)
            entering = map_rows(lambda row: self.difference.reaction(group, h * x[:n], row, jnp.zeros(n))[0], own)
            return jnp.concatenate([entering.T, jnp.zeros((len(own), len(own)))])

        m = system.constraints
        many = m > 0 and n + m > MANY_UNKNOWNS and self.pair is None and not depends(rows, before)
        equations = lambda x: jnp.concatenate(balanced(x)[:2])
        columns = coupling if many else None
        options: dict[str, Any] = {"split": n, "coupling": columns, "whole": self.pair is not None}
        root = carry.prediction.solve(equations, **options, more=lambda x: balanced(x)[2])
        return root, root.x[:n], root.x[n:], root.more

    def _solve_on_D(self, frame: Chart, system: MechanicalSystem, carry: Carry, h: Scalar, u: Controls) -> Solution:
        """The same in coordinates of w, n - m unknowns: the balance of momentum on D at g_k, without multipliers."""
        before = self._velocity_and_impulse(system, carry, h)[0]

        @jax.jit  # traced once for both uses
        def kick(x: Array) -> tuple[Array, Array, Array, Array]:
            """The rows along which mu0 - p_k acts, mu0 - p_k, w, and mu1 - mu0.

            The rows at g_k are made here, for their zeros show where the equations are affine.
            """
            rows = system.rows(carry.t, carry.g)
            rest = frame.rest(lambda w: self._discrete_constraint(system, carry.t, carry.g, w, h), x)
            w = frame.velocity(system, x, rest)
            t, inner = carry.t + self.node * h, self.difference.inner(system.group, carry.g, h * w)
            impulse = h * (system.L_g(t, inner, w) + system.F(t, inner, w, u))
            known = system.group, h * w, system.momentum(t, inner, w), impulse
            mu0, _ = self.difference.momenta(*known)
            return rows(0.5 * (before + w)), mu0 - carry.p, w, self.difference.gain(*known)

        root = carry.prediction.solve(lambda x: frame.on_D(system, *kick(x)[:2]), more=kick)
        along, c, w, gain = root.more
        impulse = frame.reaction(system, along, c)
        return root, w, impulse, carry.p + (along.T @ impulse + gain)

    def observe(self, system: MechanicalSystem, carry: Carry, h: Scalar) -> State:
        t, g, w = carry.t, carry.g, self._velocity_and_impulse(system, carry, h)[0]
        if self.nodes == "velocity":
            t, g = carry.t - (1 - self.node) * h, carry.inner
        xi = system.velocity(t, g, carry.p, w) if self.nodes == "original" else w
        return State(t, g, xi, system.momentum(t, g, xi), w)

    def reaction_time(self, t: Scalar, h: Scalar) -> Scalar:
        """When the multiplier that comes with a state acts: a node before, t - s h for "velocity" nodes, else t - h."""
        return t - (self.node if self.nodes == "velocity" else 1.0) * h

    @property
    def checks_numbers_of(self) -> Literal["nothing", "start"]:
        return "start" if self.nodes == "deformed" else "nothing"

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

    def _discrete_constraint(self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar) -> Array:
        """The discrete constraint of a step with velocity w from (t, g)."""
        inner, k = self.difference.inner(system.group, g, h * w), system.holonomic_constraints
        off = system.residual(t + self.node * h, inner, w)
        if not k:
            return off
        return jnp.concatenate([off[:-k], system.phi(t + h, self.difference.end(system.group, g, h * w)) / h])


class MirrorCarry(NamedTuple):
    """The node g, its velocity v in D, and the momentum p^- = -D1 L_d with which the next step leaves it."""

    t: Array
    g: Element
    v: Array
    p: Array
    prediction: Prediction  # of the velocity w of a step


class Reflecting(Integrator):
    """p_k^+ = D2 L_d(g_{k-1}, g_k) and p_k^- = -D1 L_d(g_k, g_{k+1}) agree on D; their mean has its velocity in D.

    With the metric's projectors P onto D and Q = 1 - P this is P* p^- = P* p^+, Q* p^- = -Q* p^+ (Ferraro, Iglesias,
    Martin de Diego, Nonlinearity 21, 2008); an affine constraint A v = b moves the mirror (Ferraro, Jimenez, Martin de
    Diego 2015). The map is reversible if L_d is symmetric. The start is p^- = L_v + (h/2) A^T l, with l of the
    continuous motion.
    """

    retraction: Retraction
    pair: Discretisation | None = None

    @abstractmethod
    def momenta(self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar, u: Controls) -> Momenta:
        """Those of the step from g with velocity w."""

    def end(self, group: Group, g: Element, xi: Velocity) -> Element:
        """Where that step ends, with xi = h w."""
        return group.compose(g, self.retraction.tau(group, xi))

    def claims(self, system: MechanicalSystem) -> Claims:
        still = is_conservative(system)
        return Claims(
            2, symmetric=True, reversible=still, constraint=True, group=True, momentum=still,
            symplectic=still and is_unconstrained(system),
            condition="for a symmetric L_d; the way back is that of the whole carry, not of the state alone"
        )  # fmt: skip

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[MirrorCarry]:
        t, g, v = state.t, state.g, state.xi
        info = StepInfo.at(system, state, u)
        p = system.momentum(t, g, v) + 0.5 * h * system.rows(t, g)(v).T @ info.multipliers
        return MirrorCarry(t, g, v, p, Prediction.at(v)), info

    def step(self, system: MechanicalSystem, carry: MirrorCarry, h: Scalar, u: Controls = None) -> Result[MirrorCarry]:
        def gap(w: Velocity) -> Array:
            return self.momenta(system, carry.t, carry.g, w, h, u)[0] - carry.p

        zero, prediction = jnp.zeros_like(carry.v), carry.prediction
        # The work of a pair hides the slope of its force from derivatives: Newton's method finds the root all the same.
        explicit = self.pair is None and not depends(jax.jacfwd(gap), zero)
        root = None if explicit else prediction.solve(gap, whole=self.pair is not None)
        w = root.x if root is not None else -solve(jax.jacfwd(gap)(zero), gap(zero))  # -D1 L_d is affine in w
        t, g = carry.t + h, system.group.restore(self.end(system.group, carry.g, h * w))
        arriving = self.momenta(system, carry.t, carry.g, w, h, u)[1]
        v, leaving, kick = reflect(system, t, g, arriving, w)
        if root is None:
            return MirrorCarry(t, g, v, leaving, prediction._replace(x=w)), StepInfo.explicit(kick / h)
        return MirrorCarry(t, g, v, leaving, prediction.after(root)), StepInfo.from_root(prediction, root, kick / h)

    def observe(self, system: MechanicalSystem, carry: MirrorCarry, h: Scalar) -> State:
        return State(carry.t, carry.g, carry.v, system.momentum(carry.t, carry.g, carry.v), carry.prediction.x)

    def reverse(self, system: MechanicalSystem, carry: MirrorCarry, h: Scalar) -> MirrorCarry:
        """The carry from which a step of -h goes back: it leaves with the momentum that arrived."""
        arrived = 2 * system.momentum(carry.t, carry.g, carry.v) - carry.p
        return carry._replace(p=arrived, prediction=Prediction.at(carry.prediction.x))


def reflect(system: MechanicalSystem, t: Scalar, g: Element, arrived: Array, w: Velocity) -> tuple[Array, Array, Array]:
    """(v, p^-, k): v in D, near w, has the restricted momentum of p^+, L_v is the mean of p^+ and p^- = p^+ + A^T k."""
    zero = jnp.zeros_like(arrived)
    affine = system.quadratic and not depends(lambda xi: system.rows(t, g)(xi), zero)
    if not affine:
        v = system.velocity(t, g, arrived, w)
        rows, leaving = system.rows(t, g)(v), 2 * system.momentum(t, g, v) - arrived
        return v, leaving, solve(rows @ rows.T, rows @ (leaving - arrived))
    metric, rows = system.metric(t, g, zero), system.A(t, g)
    free, weights = solve(metric, arrived - system.momentum(t, g, zero)), solve(metric, rows.T)
    half = solve(rows @ weights, system.b(t, g) - rows @ free)
    return free + weights @ half, arrived + 2 * rows.T @ half, 2 * half


@register(
    words="Reflects the momentum at the constraint in every step: reversible; fails if phase volume shrinks.",
    use_when="runs are long, the motion is reversible, and the mass matrix depends on position or Q is a product",
)
@dataclass(frozen=True)
class GeometricNonholonomic(NodeMethod, Reflecting):
    """The geometric nonholonomic integrator: reflects the momentum in D at every node; reversible, order 2.

    L_d = (h/2)(L o rho_s + L o rho_{1-s}) (Ferraro, Iglesias, Martin de Diego 2008), with momenta as in `Reflecting`.
    rho_s is the finite difference map of (retraction, node); every node gives a reversible method of order 2, node
    1/2 the midpoint rule and node 0 the leapfrog. `pair` gives any other L_d (its D_d is not used): reversible if that
    is symmetric.
    """

    pair: Discretisation | None = None
    name = "geometric-nonholonomic"

    def claims(self, system: MechanicalSystem) -> Claims:
        claims = super().claims(system)
        return claims if self.pair is None else replace(claims, order=1, symmetric=False, reversible=False)

    def momenta(self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar, u: Controls) -> Momenta:
        if self.pair is not None:
            where = (t, g, self.end(system.group, g, h * w), h)
            return -self.pair.D1(*where, system, u), self.pair.D2(*where, system, u)

        def one(difference: FiniteDifference) -> Array:
            when, inner = t + difference.node * h, difference.inner(system.group, g, h * w)
            impulse = h * (system.L_g(when, inner, w) + system.F(when, inner, w, u))
            return jnp.stack(difference.momenta(system.group, h * w, system.momentum(when, inner, w), impulse))

        # Both maps lead from g to the same end, so the momenta of the mean of two Lagrangians are the means of momenta.
        here = one(self.difference)
        mean = here if self.node == 0.5 else 0.5 * (here + one(FiniteDifference(self.retraction, 1 - self.node)))
        return mean[0], mean[1]

    def end(self, group: Group, g: Element, xi: Velocity) -> Element:
        return super().end(group, g, xi) if self.pair is not None else self.difference.end(group, g, xi)


@register(
    words="Explicit, reversible and cheap: bounded energy error on oscillators; fails if phase volume shrinks.",
    use_when="runs are long, Q = R^n with a constant mass matrix, and phase volume does not shrink",
)
@dataclass(frozen=True)
class Leapfrog(Reflecting):
    """Long runs of nonholonomic systems on R^n at the least cost: explicit, reversible, order 2.

    M (q_{k+1} - 2 q_k + q_{k-1}) = h^2 (F + A^T l_k) with A(q_k) v_k = b, where v_k = (q_{k+1} - q_{k-1})/(2 h) is the
    velocity at q_k (McLachlan, Perlmutter 2006). It is the geometric nonholonomic integrator of L_d = (h/2)(L(q0, w) +
    L(q1, w)), w = (q1 - q0)/h. The same L_d with w = tau^-1(g0^-1 g1)/h defines the method for masses that depend on
    q and on groups; there a step is implicit.
    """

    retraction: Retraction = Cayley()
    name = "leapfrog"

    def momenta(self, system: MechanicalSystem, t: Scalar, g: Element, w: Velocity, h: Scalar, u: Controls) -> Momenta:
        """tau(xi) = g0^-1 g1 varies by d^R tau_xi(dxi) = eta1 - eta0 seen from g0, by d^L tau_xi(dxi) seen from g1."""
        group, xi, end = system.group, h * w, self.end(system.group, g, h * w)

        def half_impulse(t: Scalar, g: Element) -> Array:
            return 0.5 * h * (system.L_g(t, g, w) + system.F(t, g, w, u))

        legendre = 0.5 * (system.momentum(t, g, w) + system.momentum(t + h, end, w))
        before = self.retraction.right_inverse_star(group, xi, legendre) - half_impulse(t, g)
        return before, self.retraction.left_inverse_star(group, xi, legendre) + half_impulse(t + h, end)
