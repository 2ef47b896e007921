"""Dense output that belongs to the method: between two steps the state is that of the method's own step of a part of the size."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .events import Event
from .integrators import Integrator
from .kernels.problem import problem
from .kernels.run import Backend, run
from .loop import functions
from .records import Record
from .system import MechanicalSystem, State

ULP = 2.0**-52
BLOCK = 12
"""Steps of the root finder between two looks at who is done: most crossings need about eight."""
BLOCKS = 10
JUMP = 1e-3
"""A function that is still this share of its change over the step, where it changes sign, jumps there: that is no zero."""


class Moment(NamedTuple):
    """The end of a step: its state with unwrapped angles, its number, and the size of the step that follows."""

    state: State
    angles: Array
    steps: Array
    size: Any


@lru_cache(maxsize=256)
def between(integrator: Integrator) -> Callable:
    """(system, moment, theta, u) -> (record, status) of Phi_{theta h}, started anew from the moment.

    A method's step of size theta h has the method's order, whatever theta is. One whose carry does not depend on h passes through the
    next state of the run at theta = 1, to round-off; the others come as near to it as their order says.
    """
    method = integrator.method if integrator.clock else integrator  # type: ignore[attr-defined]
    plain = functions(method, False)

    def at(system: MechanicalSystem, moment: Moment, theta: Array, u: Any) -> tuple[Record, Array]:
        consts, group = (system, theta * moment.size), system.group
        loop = plain.advance(consts, plain.begin(consts, (moment.state, u)), u)
        record = plain.observe(consts, loop)
        turned = group.angles(group.compose(group.inverse(moment.state.g), record.state.g))
        size = consts[1] if integrator.clock else None
        steps = (moment.steps + 1).astype(int)
        return record._replace(angles=moment.angles + turned, steps=steps, step_size=size), loop.status

    return at


# -- roots ----------------------------------------------------------------------------------------------------------------------
class Sought(NamedTuple):
    """What a search looks for: the event's number, and the sign that its function had before."""

    moment: Moment
    u: Any
    which: Any
    sign: Any


class Search(NamedTuple):
    """theta in [a, b] with f(a) < 0 <= f(b), the end that was replaced last, the next theta to try, and the record at b."""

    a: Any
    fa: Any
    b: Any
    fb: Any
    replaced: Any
    f_replaced: Any
    x: Any
    tries: Any
    done: Any
    found: Record


@lru_cache(maxsize=256)
def searching(integrator: Integrator, events: tuple[Event, ...]) -> tuple[Callable, Callable]:
    """(advance, observe) of the search for zeros: Chandrupatla's method, a bisection that interpolates where it is safe to.

    f = -sign e(Phi_{theta h}); the end found is the one beyond the event. (Chandrupatla, Adv. Eng. Software 28, 1997.)
    """
    at = between(integrator)

    def advance(consts, s: Search, _) -> Search:
        system, sought = consts
        record, status = at(system, sought.moment, s.x, sought.u)
        values = [event.value(system, record.state, record.angles) for event in events]
        value = sum((jnp.where(sought.which == k, v, 0.0) for k, v in enumerate(values)), jnp.zeros(()))
        f = jnp.where(status == 0, -sought.sign * value, jnp.nan)
        after = ~(f < 0.0)
        first = s.tries == 0
        new = Search(
            jnp.where(after, s.a, s.x),
            jnp.where(after, s.fa, f),
            jnp.where(after | first, s.x, s.b),
            jnp.where(after | first, f, s.fb),
            jnp.where(after, s.b, s.a),
            jnp.where(after, s.fb, s.fa),
            s.x,
            s.tries + 1.0,
            s.done,
            jax.tree.map(lambda a, b: jnp.where(after | first, a, b), record, s.found),
        )
        new = _next(new, after, f)
        return jax.tree.map(lambda a, b: jnp.where(s.done, b, a), new, s)

    return advance, _theta


def _next(s: Search, after: Array, f: Array) -> Search:
    """Where to look next: inside the bracket, or a little beyond the step where the sign has not changed by its end."""
    open_end = s.fb < 0.0
    beyond = 1.0 + jnp.maximum(32.0 * (s.x - 1.0), 4.0 * ULP)
    x2, f2 = jnp.where(after, s.a, s.b), jnp.where(after, s.fa, s.fb)
    x1, f1, x3, f3 = s.x, f, s.replaced, s.f_replaced
    xi, phi, alpha = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2), (x3 - x1) / (x2 - x1)
    smooth = (phi * phi < xi) & ((1.0 - phi) * (1.0 - phi) < 1.0 - xi)
    inverse = f1 / (f1 - f2) * f3 / (f3 - f2) - alpha * f1 / (f3 - f1) * f2 / (f2 - f3)
    secant = jnp.where(f1 == f1, f1 / (f1 - f2), 0.5)
    share = jnp.where(s.tries == 1.0, secant, jnp.where(smooth, inverse, 0.5))
    width = jnp.abs(x2 - x1)
    least = jnp.minimum(0.5, 0.5 * ULP / width)
    inside = x1 + jnp.clip(share, least, 1.0 - least) * (x2 - x1)
    done = jnp.where(open_end, beyond > 2.0, (s.fb == 0.0) | (width <= ULP))
    return s._replace(x=jnp.where(open_end, beyond, inside), done=done)


def _theta(consts, s: Search) -> Array:
    return s.b


def locate(
    system: MechanicalSystem, integrator: Integrator, events: tuple[Event, ...], sought: Sought, before: np.ndarray,
    scale: np.ndarray, batched: bool, backend: Backend,
) -> tuple[np.ndarray, Record, np.ndarray]:  # fmt: skip
    """(theta, record, whether it is a zero) of every search, each of them a lane of a run.

    `before` are the values at the beginning of the steps, `scale` their changes over the steps.
    """
    lanes = len(before)
    first = jax.tree.map(lambda leaf: leaf[0], (system, sought) if batched else (None, sought))
    shapes = jax.eval_shape(between(integrator), first[0] if batched else system, first[1].moment, 1.0, first[1].u)[0]
    room = jax.tree.map(lambda leaf: np.zeros((lanes, *leaf.shape), leaf.dtype), shapes)
    zeros, ones, minus = np.zeros(lanes), np.ones(lanes), -np.abs(before)
    search = Search(zeros, minus, ones, minus, zeros, minus, ones, zeros, np.zeros(lanes, bool), room)
    axes = ((0 if batched else None, 0), 0)
    for _ in range(BLOCKS):
        described = problem(*searching(integrator, events), (system, sought), search, lanes=lanes, axes=axes)
        search = run(described, saves=1, save_every=BLOCK, backend=backend).loop
        if np.all(search.done):
            break
    good = np.abs(search.fb) <= JUMP * np.abs(scale)
    return np.asarray(search.b), jax.tree.map(np.asarray, search.found), good
