"""Newton's method to stagnation, differentiated by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ._linalg import direction, solve

EPS = 2.0**-52
LIMIT = 40
PATIENCE = 8
STAGES = 16


class Root(NamedTuple):
    """A root with the evidence for it.

    `sign` is the sign of the Jacobian's determinant at the last iterate: along one branch of solutions it never changes.
    """

    x: Array
    residual: Array
    iterations: Array
    converged: Array
    sign: Array


class _Iterate(NamedTuple):
    x: Array
    last: Array  # size of the last update
    iterations: Array
    sign: Array
    settled: Array  # whether the last update leaves x at round-off


def find_root(
    function: Callable[[Array], Array],
    guess: Array,
    *,
    anchor: Array | None = None,
    sign: Array | None = None,
    split: int | None = None,
) -> Root:
    """Solve f(x) = 0 from `guess`; derivatives of the root are -f_x^-1 df, whatever the path of the iteration.

    `anchor` is a point on the branch that the root must continue, and `sign` the orientation of that branch (0: not
    known). When Newton's iteration from the guess fails, or lands where the orientation differs, the homotopy
    f(x) = (1 - s) f(anchor) is followed from the anchor: it ends at the root, or at the fold where the branch ends.
    `split`: so many unknowns come before the multipliers of constraints (see `_linalg.direction`).
    """
    anchor = guess if anchor is None else anchor
    sign = jnp.zeros((), guess.dtype) if sign is None else sign

    def solver(f, x, anchor, sign):
        direct = _newton(f, x, split)
        good = _faithful(direct, sign)
        lost = ~good & (sign != 0)
        begin = direct._replace(x=jnp.where(lost, anchor, direct.x))
        return _follow(f, begin, sign, jnp.where(lost, 0.0, 1.0 * STAGES), lost | good, split)

    return _rooted(function, solver, guess, anchor, sign)


def follow_root(function: Callable[[Array], Array], anchor: Array) -> Root:
    """The root at the end of the homotopy f(x) = (1 - s) f(anchor): the one on the branch through the anchor."""

    def solver(f, x):
        _, sign = direction(jax.jacfwd(f)(x), f(x)[:, None])
        zero = jnp.zeros((), x.dtype)
        return _follow(f, _Iterate(x, zero, zero, sign, sign != 0), sign, zero, sign != 0)

    return _rooted(function, solver, anchor)


class _Contraction(NamedTuple):
    x: Array
    last: Array  # size of the last update
    least: Array  # the size when it last halved
    since: Array  # iterations since then
    iterations: Array
    settled: Array


def find_fixed_point(function: Callable[[Array], Array], guess: Array) -> Root:
    """Solve x = f(x) by iterating f until it stagnates: for contractions, where Newton's matrix would be large.

    The round-off of f is not known, only that updates no longer shrink: the last one grew, or none halved in `PATIENCE` iterations
    (round-off can make a cycle of two points that closes by 1e-3 of its size a turn). A contraction as slow as that would not end
    within the limit either.
    """

    def solver(gap, x):
        def body(state: _Contraction) -> _Contraction:
            update = gap(state.x)
            new = state.x - update
            size, last = jnp.max(jnp.abs(new)), jnp.max(jnp.abs(update))
            halved = last <= 0.5 * state.least
            since = jnp.where(halved, 0.0, state.since + 1.0)
            stagnant = ((last >= state.last) & (state.iterations > 0.0)) | (since >= PATIENCE)
            settled = (last <= 2.0**-51 * size) | (last <= 2.0**-26 * size) & stagnant
            least = jnp.where(halved, last, state.least)
            return _Contraction(new, last, least, since, state.iterations + 1.0, settled)

        def unfinished(state: _Contraction) -> Array:
            return (state.iterations < 3 * LIMIT) & ~state.settled & jnp.isfinite(state.last)

        zero = jnp.zeros((), x.dtype)
        begin = _Contraction(x, zero, zero + jnp.inf, zero, zero, zero > 0.0)
        end = jax.lax.while_loop(unfinished, body, begin)
        last = _Iterate(end.x, end.last, end.iterations, zero + 1.0, end.settled)
        return last, _faithful(last, zero)

    return _rooted(lambda x: x - function(x), solver, guess)


def _rooted(function: Callable[[Array], Array], solver: Callable, guess: Array, *context: Array) -> Root:
    """The root that solver(f, guess, *context) finds, with the implicit function theorem as its derivative.

    `jax.lax.custom_root` does the same, but traces the equations and their linear solve again for derivatives that few ask for.
    """
    # jit: the equations are traced once, not at each of their uses.
    f, parameters = jax.closure_convert(jax.jit(function), guess)

    @jax.custom_jvp
    def root(start, parameters):
        last, found = solver(lambda x: f(x, *parameters), *start)
        residual = jnp.max(jnp.abs(f(last.x, *parameters)))
        return last.x, (residual, last.iterations, found.astype(guess.dtype), last.sign)

    @root.defjvp
    def _(primals, tangents):
        (x, evidence), (_, parameters) = root(*primals), primals
        _, df = jax.jvp(lambda parameters: f(x, *parameters), (parameters,), tangents[1:])
        dx = -solve(jax.jacfwd(f)(x, *parameters), df)
        return (x, evidence), (dx, jax.tree.map(jnp.zeros_like, evidence))

    x, (residual, count, found, sign) = root((guess, *context), parameters)
    return Root(x, residual, count, found > 0.5, sign)


def _newton(f, x: Array, split: int | None = None) -> _Iterate:
    """Newton's iteration until the update is at round-off: a fixed tolerance would bias the energy of long runs linearly.

    It ends when the update is tiny, or when quadratic convergence (d, c d^2, c^3 d^4) proves that the next one will be.
    """

    def body(state: _Iterate) -> _Iterate:
        update, sign = direction(jax.jacfwd(f)(state.x), f(state.x)[:, None], split)
        x = state.x - update[:, 0]
        size, last = jnp.max(jnp.abs(x)), jnp.max(jnp.abs(update))
        converging = (last <= 2.0**-22 * size) & (last * last * last <= 0.125 * EPS * size * state.last * state.last)
        tiny = last <= 2.0**-36 * size
        return _Iterate(x, last, state.iterations + 1.0, sign, tiny | converging & (state.iterations > 0.0))

    def unfinished(state: _Iterate) -> Array:
        return (state.iterations < LIMIT) & ~state.settled & ~jnp.isnan(state.last)

    zero = jnp.zeros((), x.dtype)
    return jax.lax.while_loop(unfinished, body, _Iterate(x, zero, zero, zero + 1.0, zero > 0.0))


def _faithful(state: _Iterate, sign: Array) -> Array:
    """Whether an iteration ended at a root on the branch of this orientation."""
    return state.settled & jnp.all(jnp.isfinite(state.x)) & ((sign == 0) | (state.sign == sign))


def _follow(f, begin: _Iterate, sign: Array, stage: Array, good: Array, split: int | None = None):
    """The end of the homotopy from begin.x, and whether the branch went on as far as that."""

    def body(path):
        stage, state, offset, _ = path
        offset = jnp.where(stage == 0, f(state.x), offset)
        share = 1.0 - (stage + 1.0) / STAGES
        new = _newton(lambda x: f(x) - share * offset, state.x, split)
        return stage + 1.0, new._replace(iterations=state.iterations + new.iterations), offset, _faithful(new, sign)

    def unfinished(path):
        return (path[0] < STAGES) & path[3]

    _, state, _, good = jax.lax.while_loop(unfinished, body, (stage, begin, jnp.zeros_like(begin.x), good))
    return state, good
