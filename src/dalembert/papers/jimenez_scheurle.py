"""Jimenez and Scheurle (2015): schemes of the nonholonomic particle; a discrete map as a periodically forced motion.

`embed` is Proposition 4.1: a method of order p on D solves z' = f(z) + eps^p g(eps, t/eps, z) exactly at the times
k eps, with g of period 1 in t/eps (Fiedler-Scheurle). Coordinates z = (q, v^a) are adapted to D: no curve leaves D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..analysis.order import choose_pieces, gauss_flow
from ..errors import InvalidInput, NumericalFailure
from ..integrators import Integrator, LagrangeDAlembert
from ..mechanics import Ehresmann, MechanicalSystem, State, deform_constraint, ehresmann
from ..models import exact_particle, nonholonomic_particle
from ..numerics import classify, slopes, solve_saddle
from ..numerics.types import Scalar
from ..plotting.runs import draw_invariants
from ..plotting.studies import draw_lines, draw_slope
from ..plotting.style import COLOURS, DASHES, curve
from ..simulation import Run
from .gallery import Data, Gallery, simulate_uninterrupted

gallery = Gallery("js")
POSITION, VELOCITY = np.array([0.3, 0.5, -0.2]), np.array([1.1, 0.7, 0.55])
COUNTS = (8, 16, 32, 64, 128, 256, 512)
SCHEMES = {
    "(81), β = 1": LagrangeDAlembert(node=1.0, nodes="velocity"),
    "β = 0": LagrangeDAlembert(node=0.0, nodes="velocity"),
    "(86), β = 1/2, redefined nodes": LagrangeDAlembert(node=0.5, nodes="velocity"),
    "β = 1/2, original nodes": LagrangeDAlembert(node=0.5),
    "(89), deformed, data on D_ε": LagrangeDAlembert(node=0.5, nodes="deformed"),
    "(89), deformed, data on D": LagrangeDAlembert(node=0.5, nodes="deformed"),
}
CLAIMED = {"(81), β = 1": 1, "β = 0": 1, "(86), β = 1/2, redefined nodes": 2, "(86) as printed": 2}
CLAIMED |= {"(89), deformed, data on D_ε": 1, "(89), deformed, data on D": 1}
EPSILON, END_TIME = 0.1, 60.0
FORMS = ("β = 1/2, original nodes", "(86), β = 1/2, redefined nodes", "(89), deformed, data on D_ε")
NODES = ("β = 0", "(86), β = 1/2, redefined nodes", "(81), β = 1")
MAX_ITERATIONS, STEP_SAMPLES = 40, 10


def particle(scheme: str, steps: int, t_end: float = 1.0, potential: str = "free", save_every: int = 1) -> Run:
    """A run from a state on D, or on D_ε with the z-velocity of (88) of jimenez-scheurle: y v_x - (ε/2) v_x v_y."""
    system, step = nonholonomic_particle(potential), t_end / steps
    state = system.state(POSITION, VELOCITY)
    if scheme.endswith("D_ε"):
        u, w = VELOCITY[:2]
        xi = jnp.asarray([u, w, POSITION[1] * u - step / 2 * u * w])
        state = state._replace(xi=xi, momentum=xi, increment=xi)
    return simulate_uninterrupted(system, SCHEMES[scheme], state, step=step, steps=steps, save_every=save_every).check()


def as_printed(steps: int) -> np.ndarray:
    """(86) of jimenez-scheurle to the letter, to t = 1: (q, v) at the end."""
    h = 1.0 / steps
    (x, y, z), (u, w, v) = POSITION, VELOCITY
    for _ in range(steps):
        multiplier = u * w / (1 + (y + h * w) * (y + h / 2 * w))
        u, v = u - h * multiplier * (y + h / 2 * w), v + h * multiplier
        x, y, z = x + h * u, y + h * w, z + h * v
    return np.array([x, y, z, u, w, v])


@lru_cache
def errors() -> dict[str, np.ndarray]:
    """The largest error of (q, v) at t = 1, for each scheme and number of steps."""
    goal = np.concatenate(exact_particle(1.0, POSITION, VELOCITY))

    def error(scheme: str, steps: int) -> float:
        last = particle(scheme, steps, save_every=steps).last
        return float(np.abs(np.concatenate([last.g, last.xi]) - goal).max())

    found = {scheme: np.array([error(scheme, n) for n in COUNTS]) for scheme in SCHEMES}
    found["(86) as printed"] = np.array([np.abs(as_printed(n) - goal).max() for n in COUNTS])
    return found


def multiplier_errors() -> dict[str, np.ndarray]:
    """The largest error of λ over [0, 1], read at the time of the state and at that of its own node, t - β ε."""
    found: dict[str, list[float]] = {}
    for scheme in list(SCHEMES)[:3]:
        for n in COUNTS:
            run = particle(scheme, n)
            times, values = np.asarray(run.t)[1:], np.asarray(run.multipliers)[1:, 0]
            for stamp, t in (("state", times), ("node", times - SCHEMES[scheme].node / n)):
                q, v = exact_particle(t, POSITION, VELOCITY)
                gap = np.abs(values - v[:, 0] * v[:, 1] / (1 + q[:, 1] ** 2)).max()
                found.setdefault(f"{scheme}, time of the {stamp}", []).append(float(gap))
    return {name: np.array(values) for name, values in found.items()}


def draw_orders(axes: Any, data: Data) -> None:
    names = [*SCHEMES, "(86) as printed"]
    draw_lines(axes[0], {name: (data["h"], data[name]) for name in names})
    draw_slope(axes[0], (0.02, 0.08), 2e-4, 1)
    draw_slope(axes[0], (0.02, 0.08), 2e-6, 2)
    axes[0].set_ylabel("largest error of $(q, v)$ at $t = 1$")
    reactions = {name: values for name, values in data.arrays.items() if name.startswith("lambda ")}
    draw_lines(axes[1], {name[7:]: (data["h"], values) for name, values in reactions.items()})
    draw_slope(axes[1], (0.02, 0.08), 2e-6, 2)
    axes[1].set_ylabel(r"largest error of $\lambda$")
    for panel, columns in zip(axes, (2, 1), strict=True):
        panel.set_xlabel(r"step $\varepsilon$")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns)


@gallery("particle-orders", draw=draw_orders, size=(11, 4.8), ncols=2)
def orders() -> Data:
    steps = 1.0 / np.array(COUNTS)
    states, multipliers = errors(), multiplier_errors()
    found = states | {f"λ of {name}": values for name, values in multipliers.items()}
    rows = [
        (name, v[0], v[-1], float(slopes(steps, v)[-1]), 0 if "the state" in name else CLAIMED.get(name))
        for name, v in found.items()
    ]
    arrays = {"h": steps, **states, **{f"lambda {name}": values for name, values in multipliers.items()}}
    return Data(("scheme", "error at ε = 1/8", "at ε = 1/512", "measured order", "claimed"), rows, arrays)


def draw_constraints(axes: Any, data: Data) -> None:
    labels = (r"$D$:  $|v_z - y\,v_x|$", r"$D_\epsilon$:  $|v_z - y\,v_x + \frac{\epsilon}{2} v_x v_y|$")
    for panel, which, label in zip(axes, ("D", "D_eps"), labels, strict=True):
        for form, colour, dash in zip(FORMS, COLOURS, DASHES, strict=False):
            curve(panel, data["t"], data[f"{form}, {which}"], color=colour, linestyle=dash, label=form, linewidth=0.9)
        panel.set_ylabel(label)
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes[-1].set_xlabel("$t$")


@gallery("deformed-constraint", draw=draw_constraints, size=(7.2, 5.2), nrows=2, sharex=True, sharey=True)
def deformed_constraint() -> Data:
    data = Data(("form", "largest residual of D", "largest residual of D_ε"))
    for form in FORMS:
        run = particle(form, round(END_TIME / EPSILON), END_TIME, "harmonic")
        y, (u, w, v) = np.asarray(run.g)[:, 1], np.asarray(run.xi).T
        plain, deformed = v - y * u, v - y * u + EPSILON / 2 * u * w
        data.arrays.update({"t": np.asarray(run.t), f"{form}, D": plain, f"{form}, D_eps": deformed})
        data.rows.append((form, float(np.abs(plain).max()), float(np.abs(deformed).max())))
    return data


def draw_energy(axes: Any, data: Data) -> None:
    draw_invariants(axes, data["t"], {name: data[name] for name in NODES})
    axes.set(xlabel="$t$", ylabel="$|E/E(0) - 1|$", ylim=(1e-8, 10))


@gallery("particle-energy", draw=draw_energy, size=(7.0, 4.2))
def energy() -> Data:
    data = Data(("scheme", "E/E(0) - 1 at t = 100", "largest |E/E(0) - 1|", "drift"))
    for name in NODES:
        run = particle(name, 1000, 100.0, "harmonic")
        total = np.asarray(run.energy())
        change = total / total[0] - 1
        data.arrays.update({"t": np.asarray(run.t), name: change})
        data.rows.append((name, float(change[-1]), float(np.abs(change).max()), classify(run.t, change).kind))
    return data


def chi0(tau: ArrayLike) -> Array:
    """The cut-off (1 + tanh(cot(pi tau)))/2 of (30) of jimenez-scheurle: smooth, 1 up to 0, 0 from 1 on."""
    return 0.5 * (1 + jnp.tanh(_cotangent(tau)))


def chi1(tau: ArrayLike) -> Array:
    """1 - chi0."""
    return 0.5 * (1 - jnp.tanh(_cotangent(tau)))


def chi1_slope(tau: ArrayLike) -> Array:
    """chi1'(tau) = (pi/2) (1 + cot^2) sech^2(cot), at most pi/2."""
    c = _cotangent(tau)
    tail = jnp.exp(-2 * jnp.abs(c))
    return 2 * jnp.pi * (1 + c * c) * tail / (1 + tail) ** 2


def _cotangent(tau: ArrayLike) -> Array:
    """cot(pi tau) within +-300, beyond which the cut-offs are constant."""
    inside = jnp.clip(tau, 1e-3, 1 - 1e-3)
    return jnp.clip(1 / jnp.tan(jnp.pi * inside), -300.0, 300.0)


_Iterate = tuple[Array, Array, Array, Array, Array, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Embedding:
    """The periodic perturbation of `system` whose period map is a step of `integrator`; `embed` builds it.

    Points are z = (q, v^a) in `chart`, times count from the start of a step, `order` is p.
    """

    system: MechanicalSystem
    integrator: Integrator = field(metadata={"static": True})
    fibre: tuple[int, ...] = field(metadata={"static": True})
    reference: Array
    step: float
    order: int
    pieces: int

    @property
    def chart(self) -> Ehresmann:
        """Adapted coordinates of what the method preserves: D, or with deformed nodes the deformed constraint."""
        return Ehresmann(_preserved_system(self.system, self.integrator, self.step), self.fibre, self.reference)

    # An embedding is a pytree: what is jitted is compiled once for all steps and parameters.
    @jax.jit
    def flow(self, t: ArrayLike, z: ArrayLike) -> Array:
        """F(t, z): the motion on D, or on the deformed constraint."""
        return gauss_flow(self.chart.field, 0.0, jnp.asarray(z, float), jnp.asarray(t, float), self.pieces)

    @jax.jit
    def step_and_residual(self, z: ArrayLike) -> tuple[Array, Array]:
        """Phi(eps, z), and how far the method's own velocity is from the constraint."""
        q, v = self.chart.lift(jnp.asarray(z, float))
        start = State(jnp.zeros(()), q, v, self.system.momentum(0.0, q, v), v)
        carry, _ = self.integrator.start(self.system, start, self.step)
        end = self.integrator.observe(self.system, self.integrator.step(self.system, carry, self.step)[0], self.step)
        off = jnp.max(jnp.abs(self.chart.system.residual(0.0, end.g, end.xi)), initial=0.0)
        return self.chart.coordinates(end.g, end.xi), off

    def map(self, z: ArrayLike) -> Array:
        """Phi(eps, z): one step of the method."""
        return jnp.asarray(self.step_and_residual(z)[0])

    @jax.jit
    def rate(self, t: Scalar, z: ArrayLike) -> Array:
        """f(t, z): the field of the motion."""
        return self.chart.field(t, jnp.asarray(z, float))

    def curve(self, tau: float, z: ArrayLike) -> Array:
        """G~(tau, eps, z) = chi0 F(eps tau, z) + chi1 F(eps (tau - 1), Phi(z)): a smooth curve through the iterates.

        It is (39), (40) of jimenez-scheurle.
        """
        for _ in range(int(np.floor(tau))):
            z = self.map(z)
        share = tau - np.floor(tau)
        ahead, behind = self.flow(self.step * share, z), self.flow(self.step * (share - 1), self.map(z))
        return jnp.asarray(chi0(share) * ahead + chi1(share) * behind)

    def g(self, tau: float, z: ArrayLike) -> Array:
        """The perturbation g(eps, tau, z) of (42) of jimenez-scheurle, of period 1 in tau."""
        return jnp.asarray(self.perturbation(tau % 1.0, z) / self.step**self.order)

    def field(self, t: float, z: ArrayLike) -> Array:
        """The right-hand side f(z) + eps^p g(eps, t/eps, z) of (38), (45) of jimenez-scheurle."""
        return jnp.asarray(self.rate(0.0, z) + self.perturbation((t / self.step) % 1.0, z))

    def field_on_D(self, t: float, x: ArrayLike, extra: Callable[[Array], Array] | None = None) -> Array:
        """The same on D in R^2n, x = (q, v): (50), h(x) + eps^p psi'(z) g(eps, t/eps, z).

        With `extra` it is the ODE (55), corrected, of the perturbed DAE (51) with eps^p g^ = eps^p psi' g + extra(x).
        """
        x = jnp.asarray(x, float)
        motion, slope, z = self._on_D(x)
        push = slope @ self.perturbation((t / self.step) % 1.0, z)
        return jnp.asarray(motion + (push if extra is None else self._tangent_part(x, push + extra(x))))

    @jax.jit
    def _on_D(self, x: Array) -> tuple[Array, Array, Array]:
        """(h(x), psi', z) at x = (q, v) in D."""
        q, v = jnp.split(x, 2)
        z = self.chart.coordinates(q, v)
        return jnp.concatenate([v, self.chart.system.acceleration(0.0, q, v)[0]]), self.chart.slope(z), z

    @jax.jit
    def _tangent_part(self, x: Array, vector: Array) -> Array:
        return tangent_part(self.chart.system, x, vector)

    def period_map(self, z: ArrayLike) -> np.ndarray:
        """The solution of (38) after a period, which is Phi(eps, z)."""
        return self.integrate(self.field, z)

    def integrate(self, field: Callable[[float, Any], Array], start: ArrayLike) -> np.ndarray:
        """The solution of y' = field(t, y) after a period, by DOP853."""
        from scipy.integrate import solve_ivp

        solution = solve_ivp(field, (0.0, self.step), np.asarray(start), method="DOP853", rtol=1e-13, atol=1e-14)
        if not solution.success:
            raise NumericalFailure(f"the embedded motion was not integrated over a period: {solution.message}")
        return np.asarray(solution.y[:, -1])

    def leading(self, z: ArrayLike) -> np.ndarray:
        """c(z) = lim (Phi - F)/eps^{p+1}, the local error coefficient, by interpolation through steps of both signs."""
        nodes = np.cos(np.pi * (np.arange(STEP_SAMPLES) + 0.5) / STEP_SAMPLES)
        weights = [np.prod([other / (other - node) for other in nodes if other != node]) for node in nodes]
        scaled = [self.at(self.step * node)._defect(z) / (self.step * node) ** (self.order + 1) for node in nodes]
        return np.asarray(np.tensordot(weights, scaled, 1))

    def limit(self, tau: float, z: ArrayLike) -> np.ndarray:
        """g(0, tau, z) = chi1'(tau) c(z)."""
        return np.asarray(chi1_slope(tau % 1.0) * self.leading(z))

    def at(self, step: float) -> Embedding:
        """The embedding of the same method with another step."""
        return replace(self, step=float(step))

    @jax.jit
    def perturbation(self, tau: ArrayLike, z: ArrayLike) -> Array:
        """eps^p g(eps, tau, z) of (42) of jimenez-scheurle, for 0 <= tau < 1.

        The y with G~(tau, y) = z solves y = F(-eps tau, z - chi1 gap(y)), a contraction by O(eps^{p+1}).
        """
        chart, eps, z = self.chart, self.step, jnp.asarray(z, float)
        share = chi1(tau)

        def improve(state: _Iterate) -> _Iterate:
            y, _, gap, _, change, count = state
            new = self.flow(-eps * tau, z - share * gap)
            ahead = self.flow(eps * tau, new)
            gap = self.flow(eps * (tau - 1), self.map(new)) - ahead
            return new, ahead, gap, change, jnp.max(jnp.abs(new - y)), count + 1

        def shrinking(state: _Iterate) -> Array:
            *_, before, change, count = state
            return jnp.asarray((count < MAX_ITERATIONS) & ((count < 3) | (change < 0.5 * before)) & (change > 0))

        far = jnp.array(jnp.inf)
        begin: _Iterate = (z, z, jnp.zeros_like(z), far, far, 0)
        _, ahead, gap, *_ = jax.lax.while_loop(shrinking, improve, begin)
        at_z, at_ahead, at_end = jax.vmap(lambda y: chart.field(0.0, y))(jnp.stack([z, ahead, ahead + gap]))
        return jnp.asarray(at_ahead - at_z + share * (at_end - at_ahead) + chi1_slope(tau) * gap / eps)

    def _defect(self, z: ArrayLike) -> np.ndarray:
        return np.asarray(self.map(z) - self.flow(self.step, z))


def _preserved_system(system: MechanicalSystem, integrator: Integrator, step: float) -> MechanicalSystem:
    """The system on the manifold that a method preserves."""
    if isinstance(integrator, LagrangeDAlembert) and integrator.nodes == "deformed":
        return deform_constraint(system, integrator.difference, step)
    return system


def tangent_part(system: MechanicalSystem, x: Array, vector: Array) -> Array:
    """What the multipliers leave of a perturbation (g_q, g_v): g_q and (1 - P) g_v - m^-1 phi_v^T C <phi_q, g_q>.

    P = m^-1 phi_v^T C phi_v is the m-orthogonal projector onto D-perp: (55) of jimenez-scheurle, corrected (Lemma 4.4).
    """
    (q, v), (g_q, g_v) = jnp.split(x, 2), jnp.split(vector, 2)
    metric = system.metric(0.0, q, v)
    turning = jax.jvp(lambda q: system.residual(0.0, q, v), (q,), (g_q,))[1]
    remaining, _ = solve_saddle(metric, system.rows(0.0, q)(v), metric @ g_v, -turning)
    return jnp.concatenate([g_q, remaining])


def embed(
    system: MechanicalSystem, integrator: Integrator, state: State, *, step: float, order: int | None = None
) -> Embedding:
    """The embedding of a method that preserves D, for an autonomous system on R^n near `state`.

    Its order p is measured if not given.
    With the nodes "deformed" the motion and `state` are on the deformed constraint (Remark 6.1 of jimenez-scheurle).
    """
    if not np.isfinite(step) or step == 0:
        raise InvalidInput(f"step is {step}; allowed: any finite number but 0")
    chart = ehresmann(_preserved_system(system, integrator, step), state)
    z = chart.coordinates(state.g, state.xi)
    found = Embedding(system, integrator, chart.fibre, chart.reference, float(step), order or 1, 1)
    values = np.stack([found.rate(t, z) for t in (0.0, 0.37, 1.91)])
    if np.ptp(values, axis=0).max() > 1e-12 * (1 + np.abs(values).max()):
        raise InvalidInput("the system depends on time; allowed: an autonomous one (take time as a coordinate)")
    found = replace(found, pieces=choose_pieces(lambda pieces: replace(found, pieces=pieces).flow(step, z)))
    end, off = (np.asarray(value) for value in found.step_and_residual(z))
    if not off <= 1e-12 * (1 + np.abs(end).max()):
        raise InvalidInput(
            f"one step of {integrator.name} leaves the constraint by {off:.3g}; allowed: a method that keeps it"
        )
    if order:
        return found
    # p from the local errors of order p + 1 with the steps eps/2 and eps/4
    wide, narrow = (np.abs(found.at(share * found.step)._defect(z)).max() for share in (0.5, 0.25))
    if not narrow > 1e-14 * (1 + np.abs(np.asarray(z)).max()):
        raise InvalidInput(f"the local error {narrow:.1g} is too small to measure the order; give order=")
    return replace(found, order=max(1, round(float(np.log2(wide / narrow))) - 1))
