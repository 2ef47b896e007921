"""Questions to ask of a run: energy balance, momentum maps, drift, reversibility, measures, Poincare sections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from ..errors import InvalidInput
from ..integrators import Integrator
from ..mechanics import MechanicalSystem, State
from ..numerics import Drift, classify, positive_int, solve
from ..numerics.types import Element
from ..simulation import Crossings, Event, Run, join_crossings, simulate


def energy_balance(trajectory: Run) -> np.ndarray:
    """The error of the energy balance, E(t) - E(0) - work(t), at each saved state: energy that only the method adds.

    `Run.work` includes the work of friction and controls. The error falls with the order of the method (up to 4, the
    order of the work).
    """
    return np.asarray(trajectory.energy_error() - trajectory.work())


def momentum_map(trajectory: Run, symmetry: Callable[[Element], Array]) -> Array:
    """The momentum of a symmetry (Noether) at each saved state: <p, `symmetry(g)`>, its generator (n,) in the body.

    Left translations by eta have the generator Ad_{g^-1} eta; `spatial_momentum` gives those of all of them at once.
    """
    states = trajectory.records.state
    momenta = jax.vmap(trajectory.system.momentum)(states.t, states.g, states.xi)
    return jnp.einsum("ki,ki->k", momenta, jax.vmap(symmetry)(states.g))


def spatial_momentum(trajectory: Run) -> Array:
    """The momentum seen from space, Ad*_{g^-1} p (saves, n), which a free left-invariant system conserves.

    p is the method's own momentum.
    """
    group = trajectory.system.group
    return jax.vmap(lambda g, p: group.Ad_star(group.inverse(g), p))(trajectory.g, trajectory.momentum)


def drift(trajectory: Run, values: ArrayLike | None = None) -> Drift:
    """How the energy error of a run or ensemble grows: bounded, random walk, linear or exponential, with its rate.

    `values` (saves,) or (members, saves) are those of another quantity that should stay constant, such as
    `momentum_map`. Members that failed are left out. Steps of variable size count as the step that the run was given.
    An error of a few last digits is called round-off.
    """
    members = np.atleast_2d(np.asarray(trajectory.energy() if values is None else values))
    good = np.broadcast_to(np.atleast_1d(np.asarray(trajectory.final.status)) == 0, len(members)) | (len(members) == 1)
    if not good.any():
        raise InvalidInput(f"all {len(members)} members of the ensemble failed: there is nothing to classify")
    own = trajectory.integrator.variable_step
    times = np.asarray(trajectory.records.steps * float(trajectory.step) if own else trajectory.t)
    errors = members[good] - members[good, :1]
    return classify(np.atleast_2d(times)[0], errors, scale=float(np.abs(members[good, 0]).min()))


def reversibility(system: MechanicalSystem, integrator: Integrator, state: State, *, step: float, steps: int) -> float:
    """How far `steps` steps forward and as many backward end from the start: round-off for a symmetric method."""
    forward = simulate(system, integrator, state, step=step, steps=steps, save_every=steps).check()
    turned = forward.final._replace(carry=jax.jit(integrator.reverse)(system, forward.final.carry, forward.step))
    begin = replace(forward, final=turned)
    back = simulate(system, integrator, begin, step=-step, steps=steps, save_every=steps).check()
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), (state.g, state.xi), (back.last.g, back.last.xi))
    return float(max(jax.tree.leaves(gaps)))


def log_jacobian(
    system: MechanicalSystem, integrator: Integrator, state: State, *, step: float, steps: int = 1
) -> float:
    """How `steps` steps change phase volume: log |det| of their derivative in (g, rho), rho the momenta on D.

    Zero at every state means that the measure dg drho is invariant. g varies left-trivialised, and rho has components
    in the basis of D of the system at the state.
    """
    group, n = system.group, system.group.dim
    rank = n - system.constraints
    frame = system.basis(state.t, state.g)
    end = simulate(system, integrator, state, step=step, steps=steps, save_every=steps).check().last
    end_frame = system.basis(end.t, end.g)

    def flow(x: Array) -> Array:
        g = group.compose(state.g, group.exp(x[:n]))
        basis = system.frame(state.t, g, frame)
        xi = system.velocity(state.t, g, basis @ solve(basis.T @ basis, rho + x[n:]), state.xi)
        begin = State(state.t, g, xi, system.momentum(state.t, g, xi), xi)
        carry, _ = integrator.start(system, begin, step)
        carry = jax.lax.fori_loop(0, steps, lambda _, c: integrator.step(system, c, step)[0], carry)
        final = integrator.observe(system, carry, step)
        last = system.frame(final.t, final.g, end_frame).T @ system.momentum(final.t, final.g, final.xi)
        return jnp.concatenate([group.log(group.compose(group.inverse(end.g), final.g)), last])

    rho = frame.T @ system.momentum(state.t, state.g, state.xi)
    jacobian = np.asarray(jax.jit(jax.jacfwd(flow))(jnp.zeros(n + rank)))
    return float(np.linalg.slogdet(jacobian)[1])


FIRST_RUN_STEPS = 4096  # later pieces are as long as the crossings so far say


def poincare_section(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    event: Event,
    *,
    step: float,
    crossings: int = 1000,
    max_steps: int = 10_000_000,
) -> Crossings:
    """A Poincare section: the first `crossings` states at which the motion from `state` crosses the `event`.

    The run ends when it has them: there are fewer only if it fails, or takes `max_steps` steps. Give the event a
    direction; otherwise the section has crossings in both directions.
    """
    crossings = positive_int("crossings", crossings)
    watched = replace(event, stop=False, name=event.name or "section")
    at: State | Run = state
    found: dict[str, Crossings] = {}
    done, piece = 0, FIRST_RUN_STEPS
    while done < max_steps:
        piece = min(piece, max_steps - done)
        run = simulate(system, integrator, at, step=step, steps=piece, save_every=piece, events=[watched])
        found = join_crossings(found, run.events)
        done, at, count = done + piece, run, len(found[watched.name])
        if count >= crossings or run.status != "ok":
            break
        piece = int(min(4 * piece, max(FIRST_RUN_STEPS, 1.1 * done * (crossings - count) / max(count, 1))))
    return found[watched.name].select(slice(crossings))
