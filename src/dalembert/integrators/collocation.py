"""Methods of high order from nodes inside a step: Gauss, and the variational nonholonomic Lobatto IIIA-IIIB pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput, refuse_traced, require_name
from ..groups import Cayley, Retraction
from ..kernels import as_routine, map_rows, with_slope
from ..mechanics import MechanicalSystem, State, distribution, kinetic_metric
from ..numerics import find_fixed_point, solve
from ..numerics.types import Array, Controls, Element, Scalar, Velocity
from . import properties
from .base import Claims, Integrator, PhaseMethod, Prediction, Result, StepInfo, add_compensated, rescale
from .registry import register

Coefficients = NDArray[np.float64]
GAUSS_STAGES = (1, 2, 3, 4)
LOBATTO_FORMS = ("nodes", "spark")
LOBATTO_FAMILIES = ("B", "C", "C*", "D")
LOBATTO_NODES = {2: (0.0, 1.0), 3: (0.0, 0.5, 1.0), 4: (0.0, 0.5 - 0.05**0.5, 0.5 + 0.05**0.5, 1.0)}


def collocation_coefficients(nodes: Coefficients) -> tuple[Coefficients, Coefficients]:
    """(a, b) of the collocation method: a_ij and b_j are the integrals of the Lagrange polynomials to c_i and to 1."""
    powers = np.arange(1, len(nodes) + 1)
    inverse = np.linalg.inv(nodes[:, None] ** (powers - 1))
    return (nodes[:, None] ** powers / powers) @ inverse, (1.0 / powers) @ inverse


def symplectic_coefficients(nodes: Coefficients) -> tuple[Coefficients, Coefficients]:
    """(b, a/b - 1/2) of a symplectic collocation method, the second skew to the last bit.

    With L_j = h b_j f(Y_j) the stages are Y_i = y + sum (1/2 + skew_ij) L_j: quadratic invariants are kept whatever the
    round-off of the coefficients (Antonana, Makazaga, Murua, Numer. Algorithms 76, 2017). With a_ij themselves it adds
    up to a linear drift.
    """
    a, b = collocation_coefficients(nodes)
    skew = a / b - 0.5
    return b, 0.5 * (skew - skew.T)


class GaussCarry(NamedTuple):
    """The node g with a frame of D there, the velocity in it and its square, and what the last sum lost of that."""

    t: Array
    g: Element
    frame: Array
    rho: Array
    square: Array
    lost: Array
    prediction: Prediction  # of the slopes at the stages


@register(
    words="Collocation at Gauss points: high order, and energy errors that stay bounded.",
    use_when="runs are long, the order must be high and the energy bounded, and the system is not stiff",
)
@dataclass(frozen=True)
class Gauss(Integrator):
    """Gauss collocation on the constraint: symmetric, of order 2, 4, 6 or 8 with 1 to 4 `stages`; D holds exactly.

    It integrates (g, rho) with xi = X(g) rho, X an orthonormal frame of ker A, so the energy is |rho|^2/2 + V(g): it is
    conserved exactly where there is no V, or V is quadratic on R^n. Configurations are g~ tau(s) about the middle g~ of
    the step. Stages are found by fixed-point iteration, which needs h times the stiffness to be below about 1.
    """

    stages: int = 2
    retraction: Retraction = Cayley()
    name = "gauss"
    carry_is_step_free = self_adjoint = True
    needs = (properties.require_linear,)
    checks_numbers_of = "nothing"

    def __post_init__(self) -> None:
        refuse_traced("stages", self.stages)
        if type(self.stages) is not int or self.stages not in GAUSS_STAGES:
            raise InvalidInput(
                f"stages is {self.stages!r}; allowed: {', '.join(map(str, GAUSS_STAGES))} (order twice that)"
            )

    @property
    def nodes(self) -> Coefficients:
        """The zeros c_i of the Legendre polynomial on [0, 1]."""
        return 0.5 + 0.5 * np.polynomial.legendre.leggauss(self.stages)[0]

    def claims(self, system: MechanicalSystem) -> Claims:
        still = properties.is_conservative(system)
        canonical = still and properties.is_unconstrained(system) and properties.constant_metric(system)
        return Claims(
            2 * self.stages, symmetric=True, reversible=still, constraint=True, group=True,
            energy=still and properties.quadratic_potential(system), momentum=canonical, symplectic=canonical,
            condition="energy without potential, or with a quadratic one on R^n; "
            "symplectic on R^n with a constant metric"
        )  # fmt: skip

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[GaussCarry]:
        t, g, xi = state.t, state.g, state.xi
        reference, (rate, multipliers) = distribution.initial_frame(system, t, g), system.acceleration(t, g, xi, u)
        rho = reference.T @ (kinetic_metric(system, t, g) @ (xi - distribution.orthogonal_drift(system, t, g)))
        slope = jnp.concatenate([xi, _frame_rate(system, t, g, reference, xi, rate)])
        prediction = Prediction.at(jnp.tile(slope, self.stages))
        return GaussCarry(t, g, reference, rho, rho @ rho, jnp.zeros(()), prediction), StepInfo.explicit(multipliers)

    def step(self, system: MechanicalSystem, carry: GaussCarry, h: Scalar, u: Controls = None) -> Result[GaussCarry]:
        group, n = system.group, system.group.dim
        weights, skew = map(jnp.asarray, symplectic_coefficients(self.nodes))
        times = carry.t + h * jnp.asarray(self.nodes)
        momenta = kinetic_metric(system, carry.t, carry.g) @ carry.frame

        def parts_of(slopes: Array) -> tuple[Element, Array, Array, Array]:
            """(middle, its frame, rho at the start, the parts of the step) of a step with these slopes."""
            parts = (h * weights)[:, None] * slopes
            middle = group.compose(carry.g, self.retraction.tau(group, 0.5 * jnp.sum(parts[:, :n], axis=0)))
            reference = distribution.orthonormal_frame(system, carry.t + 0.5 * h, middle, carry.frame)
            turned = distribution.orthonormal_frame(system, carry.t, carry.g, reference) - carry.frame
            return middle, reference, rescale(carry.rho + turned.T @ (momenta @ carry.rho), carry.square), parts

        def field(t: Scalar, s: Array, rho: Array, middle: Element, reference: Array) -> Array:
            """(s', rho')."""
            g = group.compose(middle, self.retraction.tau(group, s))
            here = distribution.orthonormal_frame(system, t, g, reference)
            xi = here @ rho + distribution.orthogonal_drift(system, t, g)
            rate = system.acceleration(t, g, xi, u)[0]
            slope = self.retraction.left_inverse(group, s, xi)
            return jnp.concatenate([slope, _frame_rate(system, t, g, reference, xi, rate)])

        def slopes_of(flat: Array) -> Array:
            middle, reference, rho, parts = parts_of(flat.reshape(len(times), -1))
            moved = skew @ parts
            within = rho + 0.5 * jnp.sum(parts[:, n:], axis=0) + moved[:, n:]
            at = as_routine(lambda t, s, rho: field(t, s, rho, middle, reference))
            return jnp.reshape(map_rows(at, times, moved[:, :n], within), -1)

        root = find_fixed_point(slopes_of, carry.prediction.guess)
        # Once more, which the residual of the root needs anyway: what the iteration leaves is smooth and would add up.
        last = with_slope(slopes_of(root.x), root.x)  # which is the root: so is its derivative
        middle, reference, rho, parts = parts_of(last.reshape(len(times), -1))
        half, kick = 0.5 * jnp.sum(parts[:, :n], axis=0), jnp.sum(parts[:, n:], axis=0)
        t, g = carry.t + h, group.restore(group.compose(middle, self.retraction.tau(group, half)))
        square, lost = add_compensated(carry.square, kick @ (2.0 * rho + kick), carry.lost)
        frame = distribution.orthonormal_frame(system, t, g, reference)
        new = GaussCarry(t, g, frame, rho + kick, square, lost, carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, system.multipliers(t, g, _velocity(system, new), u))

    def observe(self, system: MechanicalSystem, carry: GaussCarry, h: Scalar) -> State:
        xi = _velocity(system, carry)
        return State(carry.t, carry.g, xi, system.momentum(carry.t, carry.g, xi), xi)

    def reverse(self, system: MechanicalSystem, carry: GaussCarry, h: Scalar) -> GaussCarry:
        """Back from the same velocity, in the same frame."""
        return carry._replace(prediction=Prediction.at(carry.prediction.x))


def _velocity(system: MechanicalSystem, carry: GaussCarry) -> Array:
    return carry.frame @ carry.rho + distribution.orthogonal_drift(system, carry.t, carry.g)


def _frame_rate(system: MechanicalSystem, t: Scalar, g: Element, reference: Array, xi: Velocity, rate: Array) -> Array:
    """rho' of xi = X rho + drift, from xi' = `rate`: X^T M (xi' - X' rho - drift')."""
    here, metric = distribution.orthonormal_frame(system, t, g, reference), kinetic_metric(system, t, g)
    rho = here.T @ (metric @ (xi - distribution.orthogonal_drift(system, t, g)))

    def velocity(s: Scalar, q: Element) -> Array:
        return distribution.orthonormal_frame(system, s, q, reference) @ rho + distribution.orthogonal_drift(
            system, s, q
        )

    return here.T @ (metric @ (rate - distribution.derivative_along(system, velocity, t, g, xi, 1.0)))


def lobatto_tableau(nodes: Coefficients, family: str) -> Coefficients:
    """a_ij of Lobatto IIIA, IIIB, IIIC, IIIC* or IIID, from what defines them (Hairer, Wanner II, IV.5; Jay 1998).

    A is collocation, B its conjugate b_j (1 - a_ji/b_i), C has a_i1 = b_1 and C* a_is = 0, both of stage order s - 1;
    D = (C + C*)/2.
    """
    a, b = collocation_coefficients(nodes)
    if family == "D":
        return 0.5 * (lobatto_tableau(nodes, "C") + lobatto_tableau(nodes, "C*"))
    if family in ("C", "C*"):
        s, known = len(nodes), 0 if family == "C" else -1
        powers, free = np.arange(1, s), np.arange(s) != (known % s)
        column = np.full(s, b[0] if family == "C" else 0.0)
        moments = nodes[:, None] ** powers / powers - column[:, None] * nodes[known] ** (powers - 1)
        result = np.zeros((s, s))
        result[:, known] = column
        result[:, free] = moments @ np.linalg.inv(nodes[free][:, None] ** (powers - 1))
        return result
    return {"A": a, "B": b * (1.0 - a.T / b[:, None])}[family]


def lobatto_shares(nodes: Coefficients, family: str) -> tuple[Coefficients, Coefficients]:
    """a_ij/b_j of Lobatto IIIA and of the `family`.

    For the pair of A and B their symplecticity s^_ij = 1 - s_ji holds to the last bit: for that the shares are rounded
    to multiples of 2^-52. Round-off of a_ij themselves adds up to a linear drift of momenta.
    """
    a, b = collocation_coefficients(nodes)
    first = np.round(a / b * 2.0**52) * 2.0**-52
    return first, 1.0 - first.T if family == "B" else lobatto_tableau(nodes, family) / b


class LobattoCarry(NamedTuple):
    """The node g with its velocity in D and the multiplier there."""

    t: Array
    g: Element
    xi: Array
    multipliers: Array
    prediction: Prediction  # of the velocities at the stages


class StageTerms(NamedTuple):
    """l_s + F, l_v(0), l_vv, A and b of the Lagrangian l(s, v) in a chart and its constraint; one row a stage."""

    force: Array
    rest: Array
    metric: Array
    rows: Array
    drift: Array


@register(
    words="Collocation at Lobatto points, with the constraint at each of them: high order.",
    use_when="you want high order and multipliers; take form spark where the motion contracts phase volume",
)
@dataclass(frozen=True)
class Lobatto(PhaseMethod):
    """Lobatto collocation with Lagrange multipliers: order 2, 4 or 6 with 2, 3 or 4 `stages`.

    Lobatto IIIA-IIIB on D (Jay 1998, 2003; Martin de Diego, Sato 2018): Q_i = q_0 + h a_ij V_j, P_i = p_0 + h a^_ij
    W_j, P_i = L_v(Q_i, V_i), W_i = L_q(Q_i, V_i) + F + A(Q_i)^T l_i, q_1 = Q_s and p_1 = p_0 + h b_j W_j. On a group q
    are the coordinates s of g~ tau(s) about the middle of the step, which is symmetric. `form` is one of

    - "nodes" (Martin de Diego, Sato): the momenta p_i = p_0 + h a_ij W_j have their velocity in D; l_1 is the
      multiplier of the last step, and l_s goes on to the next. With 2 stages it is the leapfrog (M constant), and like
      that it carries an error of the multiplier that grows where the motion contracts phase volume.
    - "spark" (Jay): a_ij (A V - b)_j = 0 for i > 1, and p_1 has its velocity in D. All l are its own: nothing is
      carried, and the method composes. Its a^_ij may be of another `family` than the conjugate "B": "D", which is
      symmetric too, or "C" and "C*", which are not.
    """

    stages: int = 3
    retraction: Retraction = Cayley()
    form: str = "nodes"
    family: str = "B"
    name = "lobatto"
    needs = properties.require_linear, properties.require_quadratic
    checks_numbers_of = "nothing"

    def __post_init__(self) -> None:
        require_name("form of lobatto", self.form, LOBATTO_FORMS)
        require_name("family of lobatto", self.family, LOBATTO_FAMILIES)
        if self.form == "nodes" and self.family != "B":
            raise InvalidInput(
                f'family = "{self.family}" needs form = "spark"; the form "nodes" is the variational pair of A and B'
            )
        refuse_traced("stages", self.stages)
        if type(self.stages) is not int or self.stages not in LOBATTO_NODES:
            raise InvalidInput(
                f"stages is {self.stages!r}; allowed: {', '.join(map(str, LOBATTO_NODES))} "
                "(order 2 less than twice that)"
            )

    @property
    def carry_is_step_free(self) -> bool:  # type: ignore[override]
        """The multipliers of the form "spark" are its own: nothing is carried."""
        return self.form == "spark"

    def adjoint(self) -> Lobatto:
        """C and C* are the adjoints of each other."""
        return replace(self, family={"C": "C*", "C*": "C"}.get(self.family, self.family))

    def claims(self, system: MechanicalSystem) -> Claims:
        still, symmetric = properties.is_conservative(system), self.adjoint() == self
        canonical = still and self.family == "B" and properties.euclidean(system)  # on a group the chart moves along
        return Claims(
            2 * self.stages - 2, symmetric=symmetric, reversible=still and symmetric, constraint=True, group=True,
            momentum=canonical, symplectic=canonical and properties.is_unconstrained(system),
            condition="the way back is that of the whole carry, multipliers included" if self.form == "nodes" else ""
        )  # fmt: skip

    def start(self, system: MechanicalSystem, state: State, h: Scalar, u: Controls = None) -> Result[LobattoCarry]:
        info, prediction = StepInfo.at(system, state, u), Prediction.at(jnp.tile(state.xi, self.stages))
        return LobattoCarry(state.t, state.g, state.xi, info.multipliers, prediction), info

    def step(
        self, system: MechanicalSystem, carry: LobattoCarry, h: Scalar, u: Controls = None
    ) -> Result[LobattoCarry]:
        group, tau = system.group, self.retraction
        nodes = np.array(LOBATTO_NODES[self.stages])
        a, b = collocation_coefficients(nodes)
        conjugate = lobatto_tableau(nodes, self.family)
        share, conjugate_share = lobatto_shares(nodes, self.family)
        weights, nodal = (h * b)[:, None], self.form == "nodes"
        p = system.momentum(carry.t, carry.g, carry.xi)

        def stage(middle: Element, t: Scalar, s: Array, v: Velocity) -> StageTerms:
            zero, g = jnp.zeros_like(v), group.compose(middle, tau.tau(group, s))

            def lagrangian(s: Array, v: Velocity) -> Array:
                return system.L(t, group.compose(middle, tau.tau(group, s)), tau.left(group, s, v))

            chart = jax.jacfwd(lambda v: tau.left(group, s, v))(zero)
            metric = chart.T @ system.metric(t, g, zero) @ chart
            force = jax.grad(lagrangian)(s, v) + chart.T @ system.F(t, g, chart @ v, u)
            rest = chart.T @ system.momentum(t, g, zero)
            return StageTerms(force, rest, metric, system.A(t, g) @ chart, system.b(t, g))

        def moved(velocities: Array) -> tuple[Array, Element, Array, Array, Array, StageTerms]:
            """(half the way, middle, p_0 in its chart, W, l, the stages) of a step with these velocities."""
            half = 0.5 * jnp.sum(weights * velocities, axis=0)
            middle = group.compose(carry.g, tau.tau(group, half))
            start = tau.left_star(group, -half, p)
            places = (share - 0.5) @ (weights * velocities)
            of_row = as_routine(lambda t, s, v: stage(middle, t, s, v))
            at = map_rows(of_row, carry.t + h * nodes, places, velocities)
            multipliers = _multipliers(at, (a, b, conjugate), start, carry.multipliers if nodal else None, h)
            return half, middle, start, at.force + jnp.einsum("iam,ia->im", at.rows, multipliers), multipliers, at

        def velocities_of(flat: Array) -> Array:
            _, _, start, rates, _, at = moved(flat.reshape(self.stages, -1))
            momenta = start + conjugate_share @ (weights * rates) - at.rest
            return jnp.reshape(map_rows(solve, at.metric, momenta), -1)

        root = find_fixed_point(velocities_of, carry.prediction.guess)
        half, middle, start, rates, multipliers, _ = moved(root.x.reshape(self.stages, -1))
        t, g = carry.t + h, group.restore(group.compose(middle, tau.tau(group, half)))
        xi = system.velocity(t, g, tau.left_inverse_star(group, half, start + jnp.sum(weights * rates, axis=0)))
        new = LobattoCarry(t, g, xi, multipliers[-1], carry.prediction.after(root))
        return new, StepInfo.from_root(carry.prediction, root, multipliers[-1])

    def reverse(self, system: MechanicalSystem, carry: LobattoCarry, h: Scalar) -> LobattoCarry:
        """Back from the same velocity and multiplier."""
        return carry._replace(prediction=Prediction.at(jnp.tile(carry.xi, self.stages)))


def _multipliers(
    at: StageTerms, tableaux: tuple[Coefficients, ...], start: Array, first: Array | None, h: Scalar
) -> Array:
    """l (stages, m), by a linear system. Where the `first` is given, the others put the momenta p_i on D.

    Else those of Jay's method: the means a_ij (A V - b)_j for i > 1 and A v - b at the end vanish.
    """
    (a, b, conjugate), (stages, m, _) = tableaux, at.rows.shape
    if m == 0:
        return jnp.zeros((stages, 0))
    duals = map_rows(lambda metric, rows: solve(metric, rows.T).T, at.metric, at.rows)  # A M^-1

    def response(weights: Coefficients, where: slice, known: Array) -> tuple[Array, Array]:
        """(b - A v, its response to l) for momenta start + h weights W at the stages `where`, all but l `known`."""
        gap = at.drift[where] - jnp.einsum("iam,im->ia", duals[where], known - at.rest[where])
        return gap, jnp.einsum("ij,iam,jbm->iajb", jnp.asarray(weights), duals[where], at.rows)

    if first is not None:
        known = start + h * a @ at.force + h * jnp.outer(a[:, 0], at.rows[0].T @ first)
        gap, matrix = response(a, slice(None), known)
        gap, matrix = gap[1:], matrix[1:, :, 1:]
    else:
        inner, slope = response(conjugate, slice(None), start + h * conjugate @ at.force)
        end, end_slope = response(b[None], slice(-1, None), start + h * b[None] @ at.force)
        gap = jnp.concatenate([jnp.einsum("ki,ia->ka", a[1:], inner), end])
        matrix = jnp.concatenate([jnp.einsum("ki,iajb->kajb", a[1:], slope), end_slope])
    found = solve(matrix.reshape(gap.size, gap.size), gap.reshape(gap.size) / h).reshape(gap.shape)
    return found if first is None else jnp.concatenate([first[None], found])
