"""A discrete map as the time-eps map of a periodic perturbation of the motion (Proposition 4.1 of jimenez-scheurle).

A method of order p on D solves z' = f(z) + eps^p g(eps, t/eps, z) exactly at the times k eps, with g of period 1 in t/eps
(Fiedler-Scheurle). Everything is computed in coordinates z = (q, v^a) adapted to D, so that no curve leaves D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..analysis.consistency import choose_pieces, gauss_flow
from ..errors import InvalidInput, NumericalFailure
from ..integrators import Integrator, LagrangeDAlembert
from ..mechanics import Ehresmann, MechanicalSystem, State, deformed, ehresmann
from ..numerics import solve_saddle

ITERATIONS, SAMPLES = 40, 10


# -- interpolation within D -----------------------------------------------------------------------------------------------
def chi0(tau) -> Array:
    """The cut-off (1 + tanh(cot(pi tau)))/2 of (30): smooth, 1 up to 0, 0 from 1 on."""
    return 0.5 * (1 + jnp.tanh(_cotangent(tau)))


def chi1(tau) -> Array:
    """1 - chi0."""
    return 0.5 * (1 - jnp.tanh(_cotangent(tau)))


def chi1_slope(tau) -> Array:
    """chi1'(tau) = (pi/2) (1 + cot^2) sech^2(cot), at most pi/2."""
    c = _cotangent(tau)
    tail = jnp.exp(-2 * jnp.abs(c))
    return 2 * jnp.pi * (1 + c * c) * tail / (1 + tail) ** 2


def _cotangent(tau) -> Array:
    """cot(pi tau) within +-300, beyond which the cut-offs are constant."""
    inside = jnp.clip(tau, 1e-3, 1 - 1e-3)
    return jnp.clip(1 / jnp.tan(jnp.pi * inside), -300.0, 300.0)


def interpolate(chart: Ehresmann, first: State, last: State, tau) -> tuple[Array, Array]:
    """(q, v) in D at the share tau of the way from one point of D to another (Definition 3.1)."""
    z1, z2 = (chart.coordinates(state.g, state.xi) for state in (first, last))
    return chart.lift(chi0(tau) * z1 + chi1(tau) * z2)


# -- the embedding --------------------------------------------------------------------------------------------------------
@partial(
    jax.tree_util.register_dataclass,
    data_fields=("system", "reference", "step", "order", "pieces"),
    meta_fields=("integrator", "fibre"),
)
@dataclass(frozen=True, eq=False)
class Embedding:
    """The periodic perturbation of `system` whose period map is a step of `integrator`; build it with `embed`.

    Points are z = (q, v^a) in `chart`, times count from the start of a step, `order` is p.
    """

    system: MechanicalSystem
    integrator: Integrator
    fibre: tuple[int, ...]
    reference: Array
    step: float
    order: int
    pieces: int

    @property
    def chart(self) -> Ehresmann:
        """Adapted coordinates of the manifold that the method keeps: D, or for deformed nodes the deformed constraint."""
        return Ehresmann(_kept(self.system, self.integrator, self.step), self.fibre, self.reference)

    def map(self, z) -> Array:
        """Phi(eps, z): one step of the method."""
        return _step(self, _point(z))[0]

    def flow(self, t, z) -> Array:
        """F(t, z): the motion on D, or on the deformed constraint."""
        return _flow(self, _point(t), _point(z))

    def curve(self, tau, z) -> Array:
        """G~(tau, eps, z), the smooth curve (39), (40) through the iterates: chi0 F(eps tau, z) + chi1 F(eps (tau - 1), Phi(z))."""
        for _ in range(int(np.floor(tau))):
            z = self.map(z)
        share = tau - np.floor(tau)
        return chi0(share) * self.flow(self.step * share, z) + chi1(share) * self.flow(
            self.step * (share - 1), self.map(z)
        )

    def g(self, tau, z) -> Array:
        """The perturbation g(eps, tau, z) of (42), of period 1 in tau."""
        return self._push(tau * self.step, z) / self.step**self.order

    def field(self, t, z) -> Array:
        """The right-hand side f(z) + eps^p g(eps, t/eps, z) of (38), (45)."""
        return _motion(self, 0.0, _point(z)) + self._push(t, z)

    def field_on_D(self, t, x, extra: Callable | None = None) -> Array:
        """The same on D in R^2n, x = (q, v): (50), h(x) + eps^p psi'(z) g(eps, t/eps, z).

        With `extra` it is the ODE (55), corrected, of the perturbed DAE (51) with eps^p g^ = eps^p psi' g + extra(x).
        """
        motion, slope, z = _on_D(self, _point(x))
        push = slope @ self._push(t, z)
        return motion + (push if extra is None else _tangent_part(self, _point(x), push + extra(_point(x))))

    def period_map(self, z) -> np.ndarray:
        """The solution of (38) after a period, which is Phi(eps, z)."""
        return self.integrate(self.field, z)

    def integrate(self, field: Callable, start) -> np.ndarray:
        """The solution of y' = field(t, y) after a period, by DOP853."""
        from scipy.integrate import solve_ivp

        solution = solve_ivp(
            lambda t, y: np.asarray(field(t, y)),
            (0.0, self.step),
            np.asarray(start),
            method="DOP853",
            rtol=1e-13,
            atol=1e-14,
        )
        if not solution.success:
            raise NumericalFailure(f"the embedded motion was not integrated over a period: {solution.message}")
        return solution.y[:, -1]

    def leading(self, z) -> np.ndarray:
        """c(z) = lim (Phi - F)/eps^{p+1}, the local error coefficient: the interpolant through steps of both signs, at 0."""
        nodes = np.cos(np.pi * (np.arange(SAMPLES) + 0.5) / SAMPLES)
        weights = [np.prod([other / (other - node) for other in nodes if other != node]) for node in nodes]
        scaled = [self.at(self.step * node)._defect(z) / (self.step * node) ** (self.order + 1) for node in nodes]
        return np.tensordot(weights, scaled, 1)

    def limit(self, tau, z) -> np.ndarray:
        """g(0, tau, z) = chi1'(tau) c(z)."""
        return np.asarray(chi1_slope(tau % 1.0)) * self.leading(z)

    def at(self, step: float) -> Embedding:
        """The embedding of the same method with another step."""
        return replace(self, step=float(step))

    def _push(self, t, z) -> Array:
        """eps^p g(eps, t/eps, z)."""
        return _perturbation(self, _point((t / self.step) % 1.0), _point(z))

    def _defect(self, z) -> np.ndarray:
        return np.asarray(self.map(z) - self.flow(self.step, z))


def _point(value) -> Array:
    return jnp.asarray(value, float)


def _kept(system: MechanicalSystem, integrator: Integrator, step) -> MechanicalSystem:
    """The system on the manifold that a method keeps."""
    if isinstance(integrator, LagrangeDAlembert) and integrator.nodes == "deformed":
        return deformed(system, integrator.difference, step)
    return system


# An embedding is a pytree: these are compiled once for all steps and parameters.
@jax.jit
def _flow(e: Embedding, t, z) -> Array:
    return gauss_flow(e.chart.field, 0.0, z, t, e.pieces)


def _stepped(e: Embedding, z) -> State:
    q, v = e.chart.lift(z)
    carry, _ = e.integrator.start(e.system, State(jnp.zeros(()), q, v, e.system.momentum(0.0, q, v), v), e.step)
    return e.integrator.observe(e.system, e.integrator.step(e.system, carry, e.step)[0], e.step)


@jax.jit
def _step(e: Embedding, z) -> tuple[Array, Array]:
    """Phi(eps, z), and how far the method's own velocity is from the constraint."""
    end = _stepped(e, z)
    off = jnp.max(jnp.abs(e.chart.system.residual(0.0, end.g, end.xi)), initial=0.0)
    return e.chart.coordinates(end.g, end.xi), off


@jax.jit
def _perturbation(e: Embedding, tau, z) -> Array:
    """eps^p g of (42): y with G~(tau, y) = z solves y = F(-eps tau, z - chi1 gap(y)), a contraction by O(eps^{p+1})."""
    chart, eps = e.chart, e.step
    share = chi1(tau)

    def improve(state):
        y, _, gap, _, change, count = state
        new = _flow(e, -eps * tau, z - share * gap)
        end = _stepped(e, new)
        ahead = _flow(e, eps * tau, new)
        gap = _flow(e, eps * (tau - 1), chart.coordinates(end.g, end.xi)) - ahead
        return new, ahead, gap, change, jnp.max(jnp.abs(new - y)), count + 1

    def shrinking(state):
        *_, before, change, count = state
        return (count < ITERATIONS) & ((count < 3) | (change < 0.5 * before)) & (change > 0)

    far = jnp.array(jnp.inf)
    _, ahead, gap, *_ = jax.lax.while_loop(shrinking, improve, (z, z, jnp.zeros_like(z), far, far, 0))
    at_z, at_ahead, at_end = jax.vmap(lambda y: chart.field(0.0, y))(jnp.stack([z, ahead, ahead + gap]))
    return at_ahead - at_z + share * (at_end - at_ahead) + chi1_slope(tau) * gap / eps


@jax.jit
def _motion(e: Embedding, t, z) -> Array:
    return e.chart.field(t, z)


@jax.jit
def _on_D(e: Embedding, x) -> tuple[Array, Array, Array]:
    """(h(x), psi', z) at x = (q, v) in D."""
    q, v = jnp.split(x, 2)
    z = e.chart.coordinates(q, v)
    return jnp.concatenate([v, e.chart.system.acceleration(0.0, q, v)[0]]), e.chart.slope(z), z


def tangent_part(system: MechanicalSystem, x, vector) -> Array:
    """The part of a perturbation (g_q, g_v) that the multipliers leave: g_q and (1 - P) g_v - m^-1 phi_v^T C <phi_q, g_q>.

    P = m^-1 phi_v^T C phi_v is the m-orthogonal projector onto D-perp: (55) of jimenez-scheurle as Lemma 4.4 should have it.
    """
    (q, v), (g_q, g_v) = jnp.split(x, 2), jnp.split(vector, 2)
    metric = system.metric(0.0, q, v)
    turning = jax.jvp(lambda q: system.residual(0.0, q, v), (q,), (g_q,))[1]
    kept, _ = solve_saddle(metric, system.rows(0.0, q)(v), metric @ g_v, -turning)
    return jnp.concatenate([g_q, kept])


@jax.jit
def _tangent_part(e: Embedding, x, vector) -> Array:
    return tangent_part(e.chart.system, x, vector)


def embed(
    system: MechanicalSystem, integrator: Integrator, state: State, *, step: float, order: int | None = None
) -> Embedding:
    """The embedding of a method that keeps D, for an autonomous system on R^n near `state`; its order p is measured if not given.

    With the nodes "deformed" the motion is that on the deformed constraint (Remark 6.1), and `state` must lie there.
    """
    if not np.isfinite(step) or step == 0:
        raise InvalidInput(f"step is {step}; allowed: any finite number but 0")
    chart = ehresmann(_kept(system, integrator, step), state)
    z = chart.coordinates(state.g, state.xi)
    found = Embedding(system, integrator, chart.fibre, chart.reference, float(step), order or 1, 1)
    values = np.stack([_motion(found, t, z) for t in (0.0, 0.37, 1.91)])
    if np.ptp(values, axis=0).max() > 1e-12 * (1 + np.abs(values).max()):
        raise InvalidInput("the system depends on time; allowed: an autonomous one (take time as a coordinate)")
    found = replace(found, pieces=choose_pieces(lambda pieces: replace(found, pieces=pieces).flow(step, z)))
    end, off = (np.asarray(value) for value in _step(found, z))
    if not off <= 1e-12 * (1 + np.abs(end).max()):
        raise InvalidInput(
            f"one step of {integrator.name} leaves the constraint by {off:.3g}; allowed: a method that keeps it"
        )
    return found if order else replace(found, order=_measured_order(found, z))


def _measured_order(embedding: Embedding, z) -> int:
    """p from the local errors of order p + 1 with the steps eps/2 and eps/4."""
    wide, narrow = (np.abs(embedding.at(share * embedding.step)._defect(z)).max() for share in (0.5, 0.25))
    if not narrow > 1e-14 * (1 + np.abs(np.asarray(z)).max()):
        raise InvalidInput(f"the local error {narrow:.1g} is too small to measure the order; give order=")
    return max(1, round(float(np.log2(wide / narrow))) - 1)
