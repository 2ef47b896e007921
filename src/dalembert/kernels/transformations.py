"""Runs as JAX primitives: `grad`, `jvp`, `vmap`, `jit` and `scan` around a run execute native code.

A run R maps x = (consts, carry, controls) to (last carry, records). `run_p` is R itself, and `vmap` gives it lanes. Its
derivative DR(x) v is `slope_p`: the same run with tangents beside its numbers. The transpose DR(x)^T w is the adjoint
method: a run that keeps the carry before every step, then a run of the transposed step backwards over these, which
gives the derivatives with respect to all of x at once. Both are `run_p` again and so have derivatives themselves: a
Hessian is forward over reverse. Where all carries would not fit into memory, those before every L-th step are kept, and
the steps between are taken once more (Griewank 1992).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir, partial_eval

from . import cuda
from .adjoints import (
    MAX_KEPT_WORDS,
    Keeping,
    KeepingAdvance,
    Leaves,
    Marks,
    NativeAdjoint,
    RunSpec,
    TransposedAdvance,
    TransposedObserve,
    control_cotangents,
    find_adjoint,
    is_real,
    kept_leaves,
    memory,
    pick,
    real_leaves,
    real_marks,
    replace_leaves,
    shapes_in,
    stay,
    transposed_step,
    used_leaves,
    whole_carry,
)
from .cache import StaleEntry
from .ir import LoweringError
from .linear_algebra import instantiate_zeros
from .lowering import shape_struct
from .problem import Advance, Observe, Problem

run_p: Any = type(lax.add_p)("run_steps")  # a Primitive: the import of jax.extend.core would take 40 ms
slope_p: Any = type(lax.add_p)("run_slopes")
run_p.multiple_results = slope_p.multiple_results = True


def bind_run(
    problem: Problem, saves: int, every: int, initial: bool, backend: Any, reverse: bool = False, single: bool = False
) -> tuple[Any, Any]:
    """(last carry, records) of a run whose arguments JAX traces; `LoweringError` where there is no native code.

    `single`: there is one record, and it has no axis for its number.
    """
    trees = (problem.consts, problem.carry, problem.controls)
    leaves, structures = zip(*map(jax.tree.flatten, trees), strict=True)
    marks = (tuple(problem.const_axes), tuple(problem.carry_axes), tuple(problem.control_axes))
    counts = saves, every, initial
    spec = RunSpec(
        problem.advance, problem.observe, structures, marks, problem.lanes, *counts, backend, reverse, single=single
    )
    found = run_p.bind(*map(as_array, [leaf for part in leaves for leaf in part]), spec=spec)
    count = structures[1].num_leaves
    record = jax.tree.structure(problem.lower().record)
    return jax.tree.unflatten(structures[1], found[:count]), jax.tree.unflatten(record, found[count:])


def is_transformed(leaf: Any) -> bool:
    """Whether a number is being differentiated or mapped at once, and is not a part of a program that JAX writes."""
    while isinstance(leaf, jax.core.Tracer):
        kind = type(leaf).__name__
        if kind not in ("JVPTracer", "LinearizeTracer", "GradTracer", "BatchTracer"):
            return False
        leaf = leaf.val if kind == "BatchTracer" else leaf.primal
    return True


def known_number(leaf: Any) -> Any:
    """The number whose derivatives are taken; None where it is mapped, or a part of a program that JAX writes."""
    while isinstance(leaf, jax.core.Tracer):
        kind = type(leaf).__name__
        if kind == "BatchTracer" and leaf.batch_dim is None:  # the same for all
            leaf = leaf.val
        elif kind in ("JVPTracer", "LinearizeTracer", "GradTracer"):
            leaf = leaf.primal
        else:
            return None
    return leaf


def as_array(leaf: Any) -> Any:
    """What JAX can bind; numbers of Python get their strong type."""
    return leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf, jnp.result_type(leaf))


Execute = Callable[[Problem, int, int, bool, Any], tuple[Any, Any]]
Portable = Callable[[Problem, int, int, bool], tuple[Any, Any]]
_executors: dict[str, Any] = {}


def execute_by(run: Execute, portable: Portable, native: Callable[[int | None, Any], bool]) -> None:
    """Say how a run with concrete numbers is executed, and which run JAX differentiates where the kernels cannot.

    `native` says whether so many lanes run on this processor, and not on a GPU or by XLA.
    """
    _executors.update(run=run, portable=portable, native=native)


def run_on_host(
    problem: Problem, saves: int, every: int, initial: bool, backend: Any, reverse: bool = False
) -> tuple[Any, Any]:
    """(last carry, records) of a run whose numbers are known, by native code alone: arrays of NumPy, or of CuPy."""
    if reverse:
        rows = zip(jax.tree.leaves(problem.controls), problem.control_axes, strict=True)
        turned = [_turn(leaf, 1 if varies else 0) for leaf, varies in rows]
        problem = replace(problem, controls=jax.tree.unflatten(jax.tree.structure(problem.controls), turned))
    carry, records = _executors["run"](problem, saves, every, initial, backend)
    if reverse:
        records = jax.tree.map(lambda leaf: _turn(leaf, 0 if problem.lanes is None else 1), records)
    return carry, records


def _turn(leaf: Any, axis: int) -> Any:
    """The leaf with the opposite order along an axis, where it lies."""
    return leaf[(slice(None),) * axis + (slice(None, None, -1),)]


def _gpu_for(spec: RunSpec) -> cuda.Gpu | None:
    """The GPU on which so many lanes run; None where they do not."""
    elsewhere = spec.lanes is not None and spec.backend != "xla" and not _executors["native"](spec.lanes, spec.backend)
    return cuda.gpu() if elsewhere and cuda.has_gpu() else None


def adjoint_of(
    spec: RunSpec, moving: Marks, leaves: Leaves, pulls: int | None = None, some: Marks | None = None
) -> NativeAdjoint:
    """The native adjoint of a run with such numbers; `LoweringError` where there is none.

    `some`: of the real leaves of a record these have cotangents. A run of one record keeps nothing on the way, and so
    its adjoint need not serve others.
    """
    gpu = _gpu_for(spec)
    if gpu is None and not _executors["native"](spec.lanes, spec.backend):
        raise LoweringError("the run is not for native code")
    shapes = tuple([(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves])
    only = some if some is not None and spec.single and not all(some) else None
    return find_adjoint(spec.plain, moving, shapes, pulls, gpu, only)


def _with_adjoint(use: Callable[[NativeAdjoint], list[Any]], *given: Any) -> list[Any]:
    """What is made with an adjoint; where the disk told of another program, the adjoint is built anew."""
    try:
        return use(adjoint_of(*given))
    except StaleEntry:
        find_adjoint.cache_clear()
        memory.entries.clear()
        return use(adjoint_of(*given))


def known_leaves(spec: RunSpec, leaves: Leaves) -> list[Any]:
    """Concrete leaves for native code: of NumPy or, where the run is for a GPU and they lie there, of CuPy."""
    if _gpu_for(spec) is None or not any(map(cuda.on_gpu, leaves)):
        return [np.asarray(leaf) for leaf in leaves]
    jax.block_until_ready(leaves)  # type: ignore[no-untyped-call]  # JAX does not annotate it
    return [cuda.in_place(leaf) for leaf in leaves]


def _rows(spec: RunSpec, records: Leaves, many: bool, add: bool) -> list[Any]:
    """Records, or their cotangents, with the axis of the one record of a `single` run, or without it."""
    if not spec.single:
        return list(records)
    place = (slice(None),) * many + ((None,) if add else (0,))
    return [leaf[place] for leaf in records]


def place_arrays(found: Leaves, leaves: Leaves) -> Any:
    """What a run left as arrays of JAX, on the GPU where what it was given lies there."""
    return cuda.as_jax(found) if any(map(cuda.on_gpu, leaves)) else jax.device_put(cuda.to_host(found))


def _execute(spec: RunSpec, leaves: Leaves) -> list[Any]:
    known, count, many = known_leaves(spec, leaves), spec.structures[1].num_leaves, spec.lanes is not None
    if spec.keeps is not None:
        with suppress(LoweringError):
            if adjoint_of(spec, spec.keeps, known).keeps_on_the_way:
                found = _with_adjoint(lambda adjoint: adjoint.run(known), spec, spec.keeps, known)
                return [*found[:count], *_rows(spec, found[count:], many, False)]
    problem = spec.problem(known)
    carry, records = run_on_host(problem, spec.saves, spec.every, spec.initial, spec.backend, spec.reverse)
    return [*jax.tree.leaves(carry), *_rows(spec, jax.tree.leaves(records), many, False)]


MAX_JOINED_SIZE = 256
"""Numbers of an array that goes to the host and back joined with others: each argument of a call costs 25 us there."""


def _joins(leaf: Any) -> bool:
    return bool(leaf.dtype == np.float64 and leaf.size <= MAX_JOINED_SIZE)


def _call_host(function: Callable[[Leaves], Leaves], shapes: Leaves, leaves: Leaves) -> list[Any]:
    """function(leaves) on the host, from a program of XLA; small arrays of doubles travel as one."""
    given, made = [_joins(leaf) for leaf in leaves], [_joins(each) for each in shapes]

    def on_host(joined: Any, *others: Any) -> list[Any]:
        found = function(_mix(np.asarray(joined), others, leaves, given))
        parts = [np.ravel(leaf) for leaf in pick(found, made)]
        rest = [leaf for leaf, joins in zip(found, made, strict=True) if not joins]
        return [np.concatenate([np.empty(0), *parts]), *rest]

    joined = jnp.concatenate([jnp.empty(0), *(jnp.ravel(leaf) for leaf in pick(leaves, given))])
    size = sum(each.size for each in pick(shapes, made))
    rest = [each for each, joins in zip(shapes, made, strict=True) if not joins]
    others = [leaf for leaf, joins in zip(leaves, given, strict=True) if not joins]
    found = jax.pure_callback(on_host, [shape_struct((size,), np.float64), *rest], joined, *others)
    return _mix(found[0], found[1:], shapes, made)


def _mix(joined: Any, others: Leaves, shapes: Leaves, marks: Sequence[bool]) -> list[Any]:
    """The leaves of these shapes, the marked ones out of one array."""
    leaves, begin, rest = [], 0, iter(others)
    for each, mark in zip(shapes, marks, strict=True):
        size = math.prod(each.shape)
        leaves.append(joined[begin : begin + size].reshape(each.shape) if mark else next(rest))
        begin += size if mark else 0
    return leaves


def _call_back(*leaves: Any, spec: RunSpec) -> Any:
    carry, records = spec.shapes(leaves)
    return _call_host(lambda given: cuda.to_host(_execute(spec, given)), [*carry, *records], leaves)


run_p.def_impl(lambda *leaves, spec: place_arrays(_execute(spec, leaves), leaves))
mlir.register_lowering(run_p, mlir.lower_fun(_call_back, multiple_results=True))


def _shapes_of_run(*avals: Any, spec: RunSpec) -> list[Any]:
    carry, records = spec.shapes(avals)
    return [jax.core.ShapedArray(each.shape, each.dtype) for each in (*carry, *records)]


run_p.def_abstract_eval(_shapes_of_run)


def _with_lanes(leaves: Leaves, dims: Sequence[Any], spec: RunSpec, size: int) -> tuple[list[Any], RunSpec]:
    """A run whose mapped axis is the lanes, beside those that there are."""
    own, marks, given = spec.lanes, [mark for part in spec.axes for mark in part], []
    for leaf, dim, varies in zip(leaves, dims, marks, strict=True):
        if dim is not None:
            leaf = jnp.moveaxis(leaf, dim, 0)
            if own is not None:  # (size, lanes, ...) or (size, ...)
                leaf = leaf.reshape(size * own, *leaf.shape[2:]) if varies else jnp.repeat(leaf, own, axis=0)
        elif varies:
            leaf = jnp.tile(leaf, (size, *(1,) * (leaf.ndim - 1)))
        given.append(leaf)
    moved = [varies or dim is not None for varies, dim in zip(marks, dims, strict=True)]
    consts, carry, controls = map(tuple, spec.split(moved))
    return given, replace(spec, axes=(consts, carry, controls), lanes=size * (own or 1))


def _mapped_size(leaves: Leaves, dims: Sequence[Any]) -> int:
    return next(leaf.shape[dim] for leaf, dim in zip(leaves, dims, strict=True) if dim is not None)  # type: ignore[no-any-return]


def _batch_run(leaves: Leaves, dims: Sequence[Any], *, spec: RunSpec) -> tuple[list[Any], list[int]]:
    size, own = _mapped_size(leaves, dims), spec.lanes
    given, spec = _with_lanes(leaves, dims, spec, size)
    found = run_p.bind(*given, spec=spec)
    if own is not None:
        found = [leaf.reshape(size, own, *leaf.shape[1:]) for leaf in found]
    return found, [0] * len(found)


batching.primitive_batchers[run_p] = _batch_run


# Derivatives: the run with tangents.


def _push(
    function: Callable[..., Any],
    trees: Leaves,
    marks: Sequence[Marks],
    slopes: Sequence[Leaves],
    directions: int | None,
) -> Any:
    """(value, slopes of its real leaves) where the marked leaves of the arguments have slopes.

    With `directions`, a slope has a row for each of them. The value is computed once, and so is what its derivative
    needs of it: the factors of a linear solve, say.
    """
    moving = [leaf for tree, part in zip(trees, marks, strict=True) for leaf in pick(jax.tree.leaves(tree), part)]

    def on_moving(*values: Any) -> tuple[list[Any], Any]:
        rest, given = list(values), []
        for tree, part in zip(trees, marks, strict=True):
            own, rest = rest[: sum(part)], rest[sum(part) :]
            given.append(replace_leaves(tree, part, own))
        result = function(*given)
        return real_leaves(result), result

    along = [each for part in slopes for each in part]

    def push(*given: Any) -> Any:
        return jax.jvp(on_moving, tuple(moving), given, has_aux=True)[1:]

    if directions is None:
        slope, result = push(*along)
    else:
        slope, result = jax.vmap(push, out_axes=(0, None), axis_size=directions)(*along)
    return result, slope


@dataclass(frozen=True)
class SlopeAdvance:
    """A step on numbers with slopes: ((consts, slopes), (carry, slopes), (control, slopes)) -> (carry, slopes).

    With `directions`, every slope has a row for each of them, and the numbers are computed once for all.
    """

    advance: Advance
    consts: Marks  # which leaves move
    controls: Marks
    directions: int | None = None

    @property
    def steps_at_once(self) -> int:
        """As how many steps it may be written out: a loop over columns would find each slope again in every turn."""
        return 2 + 2 * (self.directions or 1)

    def __call__(self, consts: Any, carry: Any, control: Any) -> Any:
        trees, slopes = zip(consts, carry, control, strict=True)
        marks = (self.consts, real_marks(carry[0]), self.controls)
        return _push(self.advance, trees, marks, slopes, self.directions)


@dataclass(frozen=True)
class SlopeObserve:
    """What is recorded, on numbers with slopes."""

    observe: Observe
    consts: Marks
    directions: int | None = None
    carry: Marks | None = None  # None: all real leaves move

    def __call__(self, consts: Any, carry: Any) -> Any:
        trees, slopes = zip(consts, carry, strict=True)
        marks = real_marks(carry[0]) if self.carry is None else self.carry
        return _push(self.observe, trees, (self.consts, marks), slopes, self.directions)


def _in_jax(spec: RunSpec, primals: Leaves, moving: Marks) -> Callable[..., list[Any]]:
    """The real leaves that a run gives, as a function of its moving arguments that JAX can differentiate."""

    def run(*values: Any) -> list[Any]:
        new = iter(values)
        given = [next(new) if mark else leaf for leaf, mark in zip(primals, moving, strict=True)]
        turned = given if not spec.reverse else spec.turn(given)
        carry, records = _executors["portable"](spec.problem(turned), spec.saves, spec.every, spec.initial)
        rows = [jnp.flip(leaf, spec.rows) if spec.reverse else leaf for leaf in jax.tree.leaves(records)]
        return real_leaves([jax.tree.leaves(carry), _rows(spec, rows, spec.lanes is not None, False)])

    return run


SLOPE_LANES = 4
"""Lanes over which directions are spread. Twelve cost 2.7 to 3.2 runs (Suslov, sleigh, rolling disk; bicycle: 6) as
three in each of four lanes, 4.3 to 6.3 as twelve lanes, and 8.2 to 10 as one step with twelve slopes."""
MAX_SLOPE_OPERATIONS = 64_000
"""Operations of a step with slopes up to which directions share it. A slope adds about 0.6 of those of the step. Twelve
parameters of a bicycle (14,749 operations) cost 6.5 runs as three in each of four lanes, 16 as twelve lanes, and the
first call takes as long."""


def share_directions(directions: int, operations: int) -> tuple[int, int]:
    """(lanes, directions of each of them) of a step of so many operations."""
    fitting = int((MAX_SLOPE_OPERATIONS / operations - 1.0) / 0.6) if operations else directions
    together = max(1, min(-(-directions // SLOPE_LANES), fitting))
    return -(-directions // together), together


def _run_slopes(*leaves: Any, spec: RunSpec, moving: Marks, some: Marks, directions: int | None) -> list[Any]:
    """The slopes of the real leaves that a run gives; `leaves` are its arguments and the slopes of the moving ones.

    Of the moving ones `some` have slopes, the others do not change. With `directions`, slopes have a row for each of
    them in front.
    """
    known = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    given = [np.asarray(leaf) for leaf in leaves] if known else leaves
    primals, xp = given[: len(moving)], np if known else jnp
    slopes = fill_zeros(given[len(moving) :], some, pick(primals, moving), directions, xp)
    try:
        pushed = SlopeRun(spec.problem(primals), spec.split(moving), slopes, directions)
        run = run_on_host if known else bind_run
        last, records = run(pushed.problem, spec.saves, spec.every, spec.initial, spec.backend, spec.reverse)
        rows = pushed.slopes(records, rows=True)
        if spec.single:
            rows = [leaf.take(0, (spec.lanes is not None) + (directions is not None)) for leaf in rows]
        found = [*pushed.slopes(last), *rows]
        return jax.device_put(found) if known else found
    except LoweringError as error:
        announce_xla(spec.backend, error)
        in_jax = _in_jax(spec, primals, moving)

        def push(*along: Any) -> list[Any]:
            made: list[Any] = jax.jvp(in_jax, pick(primals, moving), list(along))[1]
            return made

        return push(*slopes) if directions is None else jax.vmap(push)(*slopes)


def fill_zeros(given: Leaves, some: Marks, shapes: Leaves, front: int | None, xp: Any) -> list[Any]:
    """Slopes or cotangents of these shapes, with zeros beside the given ones; `front` of them where it is a number."""
    rest, many = iter(given), () if front is None else (front,)
    pairs = zip(some, shapes, strict=True)
    return [next(rest) if mark else xp.zeros((*many, *each.shape), each.dtype) for mark, each in pairs]


class Directions:
    """How slopes along several directions lie: as rows of the slopes of a lane, in groups of lanes.

    Slopes are given with a row for each direction in front, and come back so.
    """

    def __init__(self, lanes: int | None, number: int | None, operations: Callable[[], int]):
        self.lanes, self.number, self.groups, self.together = lanes, number, 1, number
        if number is not None:
            self.groups, self.together = share_directions(number, operations())

    def repeat(self, leaf: Any) -> Any:
        """A leaf that varies over the lanes of the run, for each group of directions."""
        return leaf if self.groups == 1 else _namespace(leaf).concatenate([leaf] * self.groups)

    def spread(self, slope: Any, varies: bool, control: bool) -> tuple[Any, bool]:
        """The slope of a leaf, (directions, [lanes,] [steps,] ...), as every lane has it, and whether lanes differ."""
        if self.together is None:
            return slope, varies
        if self.lanes is None and self.groups == 1:
            return _namespace(slope).moveaxis(slope, 0, int(control)), False
        rows = self.in_groups(slope, varies + control)
        if self.lanes is None:
            return rows, True
        if not varies:
            return _namespace(slope).repeat(rows, self.lanes, axis=0), True
        return rows.reshape(self.groups * self.lanes, *rows.shape[2:]), True

    def in_groups(self, slope: Any, before: int = 0) -> Any:
        """The slope of a leaf with the groups in front, and the directions of a group after `before` other axes."""
        assert self.together is not None
        xp, missing = _namespace(slope), self.groups * self.together - len(slope)
        if missing:
            slope = xp.concatenate([slope, xp.zeros((missing, *slope.shape[1:]), slope.dtype)])
        rows = slope.reshape(self.groups, self.together, *slope.shape[1:])
        return xp.moveaxis(rows, 1, 1 + before) if before else rows

    def numbers(self, pair: Any) -> Any:
        """The carry or the records without slopes."""
        if self.groups == 1:
            return pair[0]
        return jax.tree.map(lambda leaf: leaf[0] if self.lanes is None else leaf[: self.lanes], pair[0])

    def gather(self, slope: Any, rows: bool) -> Any:
        """The slope of a leaf of a carry, or of records (which have `rows`), with the directions in front."""
        if self.together is None:
            return slope
        many = () if self.lanes is None else (self.lanes,)
        own = slope.shape[1 if many or self.groups > 1 else 0 :]
        return self.from_groups(slope.reshape(self.groups, *many, *own), len(many) + rows)

    def from_groups(self, slope: Any, before: int) -> Any:
        """The opposite of `in_groups`."""
        found = slope.swapaxes(1, 2) if before == 1 else _namespace(slope).moveaxis(slope, 1 + before, 1)
        return found.reshape(found.shape[0] * found.shape[1], *found.shape[2:])[: self.number]


class SlopeRun:
    """A run with the slopes of its moving numbers beside them, along one direction or several.

    Several directions are rows of the slopes of a lane, and lanes beside those that the run has.
    """

    def __init__(self, problem: Problem, marks: Sequence[Sequence[bool]], slopes: Leaves, directions: int | None):
        self.directions = ways = Directions(problem.lanes, directions, lambda: _operations(problem))
        alone = directions is None or (problem.lanes is None and ways.groups == 1)
        lanes = problem.lanes if alone else ways.groups * (problem.lanes or 1)
        trees: list[Any] = []
        axes: list[list[bool]] = []
        rest = iter(slopes)
        own = (problem.const_axes, problem.carry_axes, problem.control_axes)
        for part, tree in enumerate((problem.consts, problem.carry, problem.controls)):
            leaves, structure = jax.tree.flatten(tree)
            moving = [ways.spread(next(rest), varies, part == 2) for varies in pick(own[part], marks[part])]
            numbers = [ways.repeat(leaf) if varies else leaf for leaf, varies in zip(leaves, own[part], strict=True)]
            trees.append((jax.tree.unflatten(structure, numbers), [slope for slope, _ in moving]))
            axes.append([*own[part], *(varies for _, varies in moving)])
        consts, controls = tuple(marks[0]), tuple(marks[2])
        advance = SlopeAdvance(problem.advance, consts, controls, ways.together)
        observe = SlopeObserve(problem.observe, consts, ways.together)
        self.problem = Problem(advance, observe, trees[0], trees[1], trees[2], lanes, *axes)

    def slopes(self, pair: Any, rows: bool = False) -> list[Any]:
        """The slopes of a carry, or of records (which have `rows`), with the directions in front."""
        return [self.directions.gather(leaf, rows) for leaf in pair[1]]

    def numbers(self, pair: Any) -> Any:
        """The carry or the records without slopes."""
        return self.directions.numbers(pair)


def _namespace(leaf: Any) -> Any:
    return jnp if isinstance(leaf, jax.Array) else np


def _operations(problem: Problem) -> int:
    try:
        return problem.lower().operations
    except LoweringError:
        return 0


XLA_SECONDS = 1.5e-3
"""About what XLA takes to compile an equation of a jaxpr: 1 to 2.4 ms, measured on steps of 2,000 to 48,000 of them."""
MAX_XLA_EQUATIONS = 100_000
"""Equations up to which "auto" lets XLA compile: two to four minutes."""


def announce_xla(backend: Any, error: Exception, equations: Callable[[], int] | None = None) -> None:
    """Tell that XLA runs what has no native code; raise where that would take too long or was not asked for."""
    if backend != "auto" or isinstance(error.__cause__, LoweringError):  # the second was refused below already
        raise error
    count = equations() if equations else 0
    if count > MAX_XLA_EQUATIONS:
        minutes = f"{XLA_SECONDS * count / 60:.0f} minutes"
        raise LoweringError(
            f"no native code: {error}. XLA would compile these {count} array operations for about {minutes} in every "
            f'process; "auto" goes as far as {MAX_XLA_EQUATIONS} of them. Take a shorter step or method, or '
            'backend="xla" to compile it all the same'
        ) from error
    cost = "it compiles for seconds to minutes in every process, and its steps take 10 to 100 times as long"
    warnings.warn(f"no native code, but XLA runs this: {error}; {cost}", stacklevel=1)  # one line for a reason


def _jvp_of_run(primals: Leaves, tangents: Leaves, *, spec: RunSpec) -> tuple[list[Any], list[Any]]:
    given = [
        not isinstance(tangent, ad.Zero) and is_real(leaf) for leaf, tangent in zip(primals, tangents, strict=True)
    ]
    consts, _, controls = spec.split(given)
    moving = (*consts, *map(is_real, spec.split(primals)[1]), *controls)
    # A slope that is not known yet will be transposed, as a rule: what that needs is kept at once.
    later = any(type(tangent).__name__ == "JaxprTracer" for tangent in tangents)
    found = run_p.bind(*primals, spec=replace(spec, keeps=moving) if later and not spec.single else spec)
    spec = replace(spec, keeps=None)
    along = pick(tangents, moving)
    some = tuple(not isinstance(tangent, ad.Zero) for tangent in along)
    slopes = iter(slope_p.bind(*primals, *pick(along, some), spec=spec, moving=moving, some=some, directions=None))
    zeros = (ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in found)
    return found, [next(slopes) if is_real(leaf) else zero for leaf, zero in zip(found, zeros, strict=True)]


ad.primitive_jvps[run_p] = _jvp_of_run
slope_p.def_impl(_run_slopes)


def _shapes_of_slopes(*avals: Any, spec: RunSpec, moving: Marks, some: Marks, directions: int | None) -> list[Any]:
    front = () if directions is None else (directions,)
    found = [each for each in _shapes_of_run(*avals[: len(moving)], spec=spec) if is_real(each)]
    return [each.update(shape=(*front, *each.shape)) for each in found]


slope_p.def_abstract_eval(_shapes_of_slopes)
mlir.register_lowering(slope_p, mlir.lower_fun(_run_slopes, multiple_results=True))


def _jvp_of_slopes(primals: Leaves, tangents: Leaves, **params: Any) -> Any:
    real = [is_real(leaf) for leaf in primals]

    def on_reals(*values: Any) -> list[Any]:
        new = iter(values)
        given = [next(new) if mark else leaf for leaf, mark in zip(primals, real, strict=True)]
        return _run_slopes(*given, **params)

    return jax.jvp(on_reals, pick(primals, real), list(map(instantiate_zeros, pick(tangents, real))))


def _batch_slopes(
    leaves: Leaves, dims: Sequence[Any], *, spec: RunSpec, moving: Marks, some: Marks, directions: int | None
) -> tuple[list[Any], list[int]]:
    """Several directions of one run are a run with several slopes; runs that differ are lanes."""
    count, params = len(moving), cast(Any, {"spec": spec, "moving": moving, "some": some})
    if any(dim is not None for dim in dims[:count]):
        found = jax.vmap(lambda *given: _run_slopes(*given, **params, directions=directions), dims)(*leaves)
        return found, [0] * len(found)
    size = _mapped_size(leaves, dims)
    slopes = [
        jnp.broadcast_to(leaf, (size, *leaf.shape)) if dim is None else jnp.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves[count:], dims[count:], strict=True)
    ]
    if directions is not None:
        slopes = [leaf.reshape(size * directions, *leaf.shape[2:]) for leaf in slopes]
    found = slope_p.bind(*leaves[:count], *slopes, **params, directions=size * (directions or 1))
    if directions is not None:
        found = [leaf.reshape(size, directions, *leaf.shape[1:]) for leaf in found]
    return found, [0] * len(found)


ad.primitive_jvps[slope_p] = _jvp_of_slopes
batching.primitive_batchers[slope_p] = _batch_slopes


# The transpose: forwards with the carries kept, then backwards.


def _transpose_slopes(
    cotangents: Leaves, *leaves: Any, spec: RunSpec, moving: Marks, some: Marks, directions: int | None
) -> list[Any]:
    primals = leaves[: len(moving)]
    known = tuple(not isinstance(each, ad.Zero) for each in cotangents)
    asked = list(some)  # of these arguments, if they can have cotangents

    def pull(*given: Any) -> list[Any]:
        try:
            try:
                own = sum(spec.split(moving)[1])
                adjoint = adjoint_of(spec, moving, list(map(jax.typeof, primals)), some=known[own:])
                if not spec.single:
                    begin = sum(spec.split(moving)[0])
                    reached = [True] * begin + [*adjoint.reached(known)] + [True] * sum(spec.split(moving)[2])
                    asked[:] = [a and b for a, b in zip(some, reached, strict=True)]
            except LoweringError:
                if _executors["native"](spec.lanes, spec.backend):
                    raise
                shapes = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in (*primals, *given))
                _require_transpose(spec, moving, known, some, shapes)
            params = cast(Any, {"spec": spec, "moving": moving, "some": known, "wanted": tuple(asked)})
            found: list[Any] = transpose_p.bind(*primals, *given, **params, apart=None)
        except LoweringError as error:
            announce_xla(spec.backend, error)
            whole = fill_zeros(given, known, _moved_shapes(spec, primals, moving), None, jnp)
            found = pick(jax.vjp(_in_jax(spec, primals, moving), *pick(primals, moving))[1](whole), tuple(asked))
        return found

    given = pick(cotangents, known)
    found = pull(*given) if directions is None else jax.vmap(pull)(*given)
    is_wanted: Any = ad.is_undefined_primal  # JAX does not annotate it
    rest, wanted = iter(found), map(is_wanted, leaves[len(moving) :])
    every = [next(rest) if mark else None for mark in pick(asked, some)]
    return [None] * len(moving) + [each if want else None for each, want in zip(every, wanted, strict=True)]


def _moved_shapes(spec: RunSpec, primals: Leaves, moving: Marks) -> list[Any]:
    """The shapes of the real leaves that a run leaves: these have cotangents."""
    carry, records = spec.shapes(primals)
    return [each for each in (*carry, *records) if is_real(each)]


ad.primitive_transposes[slope_p] = _transpose_slopes
transpose_p: Any = type(lax.add_p)("run_transposed")
transpose_p.multiple_results = True
# Its parameters: the run, the arguments that move, `some`: which cotangents are given (the others vanish), `wanted`: of
# which moving arguments they are asked for, and `apart`: None, or so many cotangents at once (one for each lane of the
# run, or all for a run without lanes), each with its own result also where the lanes share an argument.


def _pull_in_jax(
    *leaves: Any, spec: RunSpec, moving: Marks, some: Marks, wanted: Marks, apart: int | None
) -> list[Any]:
    """The transpose as two runs that JAX can transform again."""
    primals, cotangents = leaves[: len(moving)], _cotangents(leaves, spec, moving, some, apart, jnp)
    spec = spec.plain
    if apart is not None and spec.lanes is None:
        return pick(jax.vmap(_Transpose(spec, moving, primals).pull)(cotangents), wanted)
    return pick(_Transpose(spec, moving, primals, apart=apart is not None).pull(cotangents), wanted)


def _cotangents(leaves: Leaves, spec: RunSpec, moving: Marks, some: Marks, apart: int | None, xp: Any) -> list[Any]:
    """All cotangents of the last carry and of records, these with an axis for their number."""
    primals, front = leaves[: len(moving)], apart if spec.lanes is None else None
    found = fill_zeros(leaves[len(moving) :], some, _moved_shapes(spec, primals, moving), front, xp)
    count, many = sum(spec.split(moving)[1]), spec.lanes is not None or apart is not None
    return [*found[:count], *_rows(spec, found[count:], many, True)]


@lru_cache(maxsize=256)
def _require_transpose(spec: RunSpec, moving: Marks, some: Marks, wanted: Marks, shapes: tuple[Any, ...]) -> None:
    """Compile the runs of a transpose, or raise `LoweringError`."""
    given = [shape_struct(shape, dtype) for shape, dtype in shapes]
    params = cast(Any, {"spec": spec, "moving": moving, "some": some, "wanted": wanted, "apart": None})
    jax.eval_shape(lambda *leaves: _pull_in_jax(*leaves, **params), *given)


def _pull(leaves: Leaves, spec: RunSpec, moving: Marks, some: Marks, wanted: Marks, apart: int | None) -> list[Any]:
    """The same at once, when all numbers are known: nothing that is kept passes through JAX."""
    known = known_leaves(spec, leaves)
    gpu = _gpu_for(spec)
    primals = known[: len(moving)]
    cotangents = _cotangents(known, spec, moving, some, apart, np if gpu is None else gpu.xp)
    pulls = apart if spec.lanes is None else None
    seen = some[sum(spec.split(moving)[1]) :]
    native = _executors["native"](spec.lanes or pulls, spec.backend)
    if native or gpu is not None:
        given = [each if mark else None for each, mark in zip(cotangents, some, strict=True)]
        use: Any = lambda adjoint: adjoint.pull(primals, given, apart is not None)
        try:
            return pick(_with_adjoint(use, spec, moving, primals, pulls, seen), wanted)
        except LoweringError:
            if native:
                raise
    primals, cotangents = cuda.to_host((primals, cotangents))
    if pulls is not None:
        return _pull_in_jax(*leaves, spec=spec, moving=moving, some=some, wanted=wanted, apart=apart)
    return pick(_Transpose(spec.plain, moving, primals, run_on_host, apart is not None).pull(cotangents), wanted)


def _pull_shapes(*avals: Any, spec: RunSpec, moving: Marks, some: Marks, wanted: Marks, apart: int | None) -> list[Any]:
    shapes, marks = [], [mark for part in spec.axes for mark in part]
    for (aval, varies), mark in zip(zip(avals, marks, strict=False), moving, strict=True):
        many = (apart,) if apart is not None and not varies else ()
        if mark:
            shapes.append(jax.core.ShapedArray((*many, *aval.shape), aval.dtype))
    return pick(shapes, wanted)


def _call_back_pull(*leaves: Any, **params: Any) -> Any:
    shapes = [shape_struct(each.shape, each.dtype) for each in _pull_shapes(*leaves, **params)]
    return _call_host(lambda given: cuda.to_host(_pull(given, **params)), shapes, leaves)


def _jvp_of_pull(primals: Leaves, tangents: Leaves, **params: Any) -> Any:
    real = [is_real(leaf) for leaf in primals]

    def on_reals(*values: Any) -> list[Any]:
        new = iter(values)
        return _pull_in_jax(*(next(new) if mark else leaf for leaf, mark in zip(primals, real, strict=True)), **params)

    return jax.jvp(on_reals, pick(primals, real), list(map(instantiate_zeros, pick(tangents, real))))


def _batch_pull(
    leaves: Leaves, dims: Sequence[Any], *, spec: RunSpec, moving: Marks, some: Marks, wanted: Marks, apart: int | None
) -> tuple[list[Any], list[int]]:
    """The mapped axis becomes the lanes, or so many cotangents of a run that has none."""
    size, count, own = _mapped_size(leaves, dims), len(moving), spec.lanes
    if apart is not None and own is None:  # cotangents of cotangents
        params = cast(Any, {"spec": spec, "moving": moving, "some": some, "wanted": wanted, "apart": apart})
        found = jax.vmap(lambda *given: _pull_in_jax(*given, **params), dims)(*leaves)
        return found, [0] * len(found)
    cotangents = [
        jnp.broadcast_to(leaf, (size, *leaf.shape)) if dim is None else jnp.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves[count:], dims[count:], strict=True)
    ]
    primals = list(leaves[:count])
    marks = pick(pick([mark for part in spec.axes for mark in part], moving), wanted)
    if own is not None or any(dim is not None for dim in dims[:count]):
        primals, spec = _with_lanes(primals, dims[:count], spec, size)
        cotangents = cotangents if own is None else [leaf.reshape(size * own, *leaf.shape[2:]) for leaf in cotangents]
    params = cast(Any, {"spec": spec, "moving": moving, "some": some, "wanted": wanted})
    found = transpose_p.bind(*primals, *cotangents, **params, apart=size * (own or 1))
    if own is not None:
        found = [leaf.reshape(size, own, *leaf.shape[1:]) for leaf in found]
        if apart is None:  # what the lanes of the run share gets the sum over them
            found = [leaf if varies else leaf.sum(axis=1) for leaf, varies in zip(found, marks, strict=True)]
    return found, [0] * len(found)


transpose_p.def_impl(lambda *leaves, **params: place_arrays(_pull(leaves, **params), leaves))
transpose_p.def_abstract_eval(_pull_shapes)
mlir.register_lowering(transpose_p, mlir.lower_fun(_call_back_pull, multiple_results=True))
ad.primitive_jvps[transpose_p] = _jvp_of_pull
batching.primitive_batchers[transpose_p] = _batch_pull


class _Transpose:
    """DR(x)^T of one run. Its runs are bound by JAX, or executed at once by `run_on_host`."""

    def __init__(self, spec: RunSpec, moving: Marks, primals: Leaves, run: Any = bind_run, apart: bool = False):
        self.apart, self.run, self.xp = apart, run, np if run is run_on_host else jnp
        self.lanes, self.rows, self.spec = spec.lanes, spec.rows, spec
        self.trees = tuple(map(jax.tree.unflatten, spec.structures, spec.split(primals)))
        self.marks = tuple(tuple(part) for part in spec.split(moving))

    def pull(self, cotangents: list[Any]) -> list[Any]:
        """The cotangents of the moving arguments."""
        spec, count = self.spec, sum(self.marks[1])
        after, records = cotangents[:count], cotangents[count:]
        xp = self.xp
        if spec.reverse:  # in the order of the steps
            records = [xp.flip(leaf, self.rows) for leaf in records]
        sums = [self._zeros(leaf, varies) for leaf, varies in self._moving(0)]
        first = None
        if spec.initial:
            first = [leaf[self._at(0)] for leaf in records]
            records = [leaf[self._at(slice(1, None))] for leaf in records]
        fitting = MAX_KEPT_WORDS // max(1, self.keeping.words * (self.lanes or 1))
        length = max(1, min(spec.steps, fitting))
        after, sums, acting = self._backwards(after, sums, records, length)
        if first is not None:
            after, sums = self._add_record(self._first_carry(), first, after, sums)
        totals = [self._total(each, varies) for each, (_, varies) in zip(sums, self._moving(0), strict=True)]
        starts = [self._total(each, varies) for each, (_, varies) in zip(after, self._moving(1), strict=True)]
        if spec.reverse:
            acting = [xp.flip(leaf, self.rows) for leaf in acting]
        pushes = [self._total(each, varies) for each, (_, varies) in zip(acting, self._moving(2), strict=True)]
        return [*totals, *starts, *pushes]

    @property
    def keeping(self) -> Keeping:
        """What the step backwards reads of a carry."""
        assert self.step.keeping is not None
        return self.step.keeping

    @cached_property
    def step(self) -> TransposedAdvance:
        """The step backwards, which says what it reads of a carry."""
        spec, problem = self.spec, self.spec.problem(jax.tree.leaves(self.trees))
        step = transposed_step(spec, self.marks, spec.shapes(jax.tree.leaves(self.trees))[1])
        others = shapes_in((problem.const_tree, problem.control_tree))
        return replace(step, keeping=used_leaves(step, shapes_in(problem.carry_tree), others))

    def _moving(self, part: int) -> list[tuple[Any, bool]]:
        """The moving leaves of the constants, the carry or the controls, and whether each lane has its own."""
        pairs = list(zip(jax.tree.leaves(self.trees[part]), self.spec.axes[part], strict=True))
        return pick(pairs, self.marks[part])

    def _at(self, rows: Any) -> Any:
        return (slice(None),) * self.rows + (rows,)

    def _zeros(self, leaf: Any, varies: bool) -> Any:
        shape = np.shape(leaf) if varies or self.lanes is None else (self.lanes, *np.shape(leaf))
        return np.zeros(shape, jnp.result_type(leaf))

    def _total(self, leaf: Any, varies: bool) -> Any:
        """What a leaf gets that all lanes share: the sum over them."""
        return leaf if varies or self.apart or self.lanes is None else leaf.sum(axis=0)

    def _problem(self, advance: Any, observe: Any, carry: Any, controls: Any = (), control_axes: Any = ()) -> Problem:
        many = self.lanes is not None
        axes = [many] * len(jax.tree.leaves(carry))
        return Problem(
            advance,
            observe,
            self.trees[0],
            carry,
            controls,
            self.lanes,
            list(self.spec.axes[0]),
            axes,
            list(control_axes),
        )

    def _run(self, problem: Problem, saves: int, every: int, initial: bool = False, **options: Any) -> tuple[Any, Any]:
        return self.run(problem, saves, every, initial, self.spec.backend, **options)  # type: ignore[no-any-return]

    def _add_record(self, carry: Any, record: Leaves, after: Leaves, sums: Leaves) -> tuple[list[Any], list[Any]]:
        """The cotangents with what one record adds to them."""
        problem = self._problem(stay, TransposedObserve(self.spec.observe, self.marks[0]), (carry, record))
        own, shared = self._run(problem, 1, 1)[1]
        own, shared = (jax.tree.map(lambda leaf: leaf[self._at(0)], each) for each in (own, shared))
        return [a + b for a, b in zip(after, own, strict=True)], [a + b for a, b in zip(sums, shared, strict=True)]

    def _first_carry(self) -> Any:
        """The carry before the first step, with a lane axis on every leaf where there are lanes."""
        pairs = zip(jax.tree.leaves(self.trees[1]), self.spec.axes[1], strict=True)
        shape = () if self.lanes is None else (self.lanes,)
        leaves = [leaf if varies else self.xp.broadcast_to(leaf, (*shape, *np.shape(leaf))) for leaf, varies in pairs]
        return self.trees[1] if self.lanes is None else jax.tree.unflatten(self.spec.structures[1], leaves)

    def _backwards(self, after: Any, sums: Any, records: Any, length: int) -> Any:
        """(cotangents of the first carry, of the moving constants, of the moving controls of every step)."""
        spec, carry, controls = self.spec, self._first_carry(), self.trees[2]
        if spec.reverse:
            turned = spec.split(spec.turn(jax.tree.leaves(self.trees)))[2]
            controls = jax.tree.unflatten(spec.structures[2], turned)
        if length == spec.steps:
            return self._segment(carry, controls, records, 0, length, after, sums)
        whole, rest = divmod(spec.steps, length)
        many = self._slice(controls, 0, whole * length)
        problem = self._problem(spec.advance, whole_carry, carry, many, spec.axes[2])
        last, starts = self._run(problem, whole, length, True)
        parts = []
        if rest:
            part = self._slice(controls, whole * length, rest)
            after, sums, acting = self._segment(last, part, records, whole * length, rest, after, sums)
            parts.append(acting)

        def back(cotangents: Any, k: Any) -> Any:
            start = jax.tree.map(lambda leaf: self.xp.take(leaf, k, axis=self.rows), starts)
            part = self._slice(controls, k * length, length)
            later, sums = cotangents
            before, total, acting = self._segment(start, part, records, k * length, length, later, sums)
            return (before, total), acting

        if self.xp is np:
            for k in reversed(range(whole)):
                (after, sums), acting = back((after, sums), k)
                parts.insert(0, acting)
        else:
            (after, sums), acting = lax.scan(back, (after, sums), jnp.arange(whole), reverse=True)
            # (segments, [lanes,] length, ...) in the order of the steps
            joined = [
                jnp.moveaxis(leaf, 0, self.rows).reshape(
                    *leaf.shape[1 : 1 + self.rows], whole * length, *leaf.shape[2 + self.rows :]
                )
                for leaf in acting
            ]
            parts.insert(0, joined)
        return after, sums, [self.xp.concatenate(each, self.rows) for each in zip(*parts, strict=True)]

    def _slice(self, controls: Any, first: Any, count: int) -> Any:
        def cut(leaf: Any, axis: int) -> Any:
            if self.xp is np:
                return leaf[(slice(None),) * axis + (slice(first, first + count),)]
            return lax.dynamic_slice_in_dim(leaf, first, count, axis)

        leaves = [
            cut(leaf, 1 if varies else 0)
            for leaf, varies in zip(jax.tree.leaves(controls), self.spec.axes[2], strict=True)
        ]
        return jax.tree.unflatten(self.spec.structures[2], leaves)

    def _segment(self, carry: Any, controls: Any, records: Any, first: Any, steps: int, after: Any, sums: Any) -> Any:
        """The same over `steps` steps from number `first` on, which start at `carry`."""
        spec, xp = self.spec, self.xp
        recorded, rows = None, records
        sparse = spec.every > 1
        advance = self.step
        many = () if self.lanes is None else (self.lanes,)
        empty = [np.zeros((*many, *shape), dtype) for shape, dtype in pick(self.keeping.specs, self.keeping.used)]
        forwards = KeepingAdvance(spec.advance, self.keeping)
        (last, _), kept = self._run(
            self._problem(forwards, kept_leaves, (carry, empty), controls, spec.axes[2]), steps, 1
        )
        if spec.saves == 1 and sparse:  # the one record belongs to the last carry
            at_end = [leaf[self._at(0)] for leaf in records]
            if steps == spec.steps or (xp is np and first + steps == spec.steps):
                after, sums = self._add_record(last, at_end, after, sums)
            elif xp is jnp:
                added = self._add_record(last, at_end, after, sums)
                ends = first + steps == spec.steps
                after, sums = jax.tree.map(lambda a, b: xp.where(ends, a, b), added, (list(after), list(sums)))
            rows = ()
        elif sparse or steps < spec.steps:
            numbers = first + xp.arange(steps) + 1
            recorded = (numbers % spec.every == 0) if sparse else None
            index = xp.clip(numbers // spec.every - 1, 0, spec.saves - 1)
            rows = [xp.take(leaf, index, axis=self.rows) for leaf in records]
        each = [self.lanes is not None]
        axes = each * len(kept) + list(spec.axes[2]) + each * len(rows) + [False] * (recorded is not None)
        zeros = [
            np.zeros((*many, *np.shape(leaf)[1 + (each[0] and varies) :]), jnp.result_type(leaf))
            for leaf, varies in self._moving(2)
        ]
        problem = self._problem(
            advance, control_cotangents, (list(after), list(sums), zeros), (kept, controls, list(rows), recorded), axes
        )
        saves, every = (steps, 1) if zeros else (1, steps)
        (before, total, _), acting = self._run(problem, saves, every, reverse=True)
        return before, total, acting


# Derivatives that do not exist.

mark_p: Any = type(lax.add_p)("mark_slopes")
FORWARDS, LEAVES_OUT, ALL = range(3)
"""Marks of slopes; of cotangents but those that vanish, which a gradient leaves out; of all cotangents."""
Root = tuple[int, tuple[int, ...], Any]
"""Of a number that results were made of: how many of its first axes are those of `good`, its shape and type."""


def mark_slopes(good: Any, slopes: Any) -> Any:
    """The slopes of real leaves, NaN where `good`, which has their first axes, is not.

    What a result that is not good adds to a gradient is NaN too, unless the gradient does not depend on it.
    """
    leaves = jax.tree.leaves(slopes)
    real = list(map(is_real, leaves))
    return replace_leaves(slopes, real, mark_p.bind(good, *pick(leaves, real), back=FORWARDS, roots=()))


def mark_values(good: Any, tree: Any, made_of: Sequence[tuple[Any, bool]] = ()) -> Any:
    """The tree as it is, with slopes that are NaN where `good` is not: see `mark_slopes`.

    A gradient that depends on the tree is NaN then in all that the tree is `made_of`, also where a run that failed no
    longer depends on it: pairs of numbers, and whether these have the axes of `good`.
    """
    leaves = jax.tree.leaves(tree)
    real = list(map(is_real, leaves))
    sources = [(leaf, own) for leaf, own in made_of if isinstance(leaf, jax.core.Tracer) and is_real(leaf)]
    roots = tuple([(np.ndim(good) if own else 0, leaf.shape, leaf.dtype) for leaf, own in sources])
    values = [leaf for leaf, _ in sources]
    return replace_leaves(tree, real, hold_p.bind(good, *pick(leaves, real), *values, roots=roots))


def _mark(good: Any, *slopes: Any, back: int, roots: tuple[Root, ...]) -> list[Any]:
    """The slopes of results, from theirs and those of the roots; backwards the cotangents of both."""
    made, count = [], len(slopes) if back else len(slopes) - len(roots)
    for slope in slopes[:count]:
        factor = jnp.where(good, 1.0, jnp.nan).reshape(good.shape + (1,) * (slope.ndim - good.ndim))
        made.append(jnp.where(slope == 0.0, 0.0, slope * factor) if back == LEAVES_OUT else slope * factor)
    if back and roots:
        lost = jnp.logical_not(good)
        lost = lost & _is_asked(good, slopes) if back == LEAVES_OUT else lost
        for own, shape, kind in roots:
            here = jnp.where(jnp.any(lost, axis=tuple(range(own, good.ndim))), jnp.nan, 0.0).astype(kind)
            made.append(jnp.broadcast_to(here.reshape(shape[:own] + (1,) * (len(shape) - own)), shape))
    return made


def _is_asked(good: Any, cotangents: Leaves) -> Any:
    """Whether a cotangent of what `good` is about does not vanish."""
    asked = jnp.zeros(good.shape, bool)
    for each in cotangents:
        asked = asked | jnp.any(each != 0.0, axis=tuple(range(good.ndim, each.ndim)))
    return asked


def _mark_known(good: Any, *slopes: Any, back: int, roots: tuple[Root, ...]) -> list[Any]:
    if not np.all(good):
        return _mark(good, *slopes, back=back, roots=roots)
    return [*slopes, *(jnp.zeros(*root[1:]) for root in roots)] if back else list(slopes[: len(slopes) - len(roots)])


def _mark_shapes(good: Any, *slopes: Any, back: int, roots: tuple[Root, ...]) -> list[Any]:
    return [*slopes, *_root_shapes(roots)] if back else list(slopes[: len(slopes) - len(roots)])


def _root_shapes(roots: tuple[Root, ...]) -> list[Any]:
    return [jax.core.ShapedArray(*root[1:]) for root in roots]


def _mark_some(good: Any, slopes: Leaves, back: int, roots: tuple[Root, ...]) -> list[Any]:
    """The slopes of the results, backwards of the roots too, where JAX knows that some that are given vanish."""
    count = len(slopes) if back else len(slopes) - len(roots)
    slopes, of_roots = slopes[:count], slopes[count:]
    some, moving = ([not isinstance(slope, ad.Zero) for slope in part] for part in (slopes, of_roots))
    if any(moving):
        slopes, some = [instantiate_zeros(slope) for slope in slopes], [True] * count
    if not any(some):
        return [*slopes, *(map(ad.Zero, _root_shapes(roots)) if back else ())]
    kept = roots if back else tuple(pick(roots, moving))
    found = iter(mark_p.bind(good, *pick(slopes, some), *pick(of_roots, moving), back=back, roots=kept))
    return [*(next(found) if mark else slope for slope, mark in zip(slopes, some, strict=True)), *found]


def _jvp_of_mark(primals: Leaves, tangents: Leaves, *, back: int, roots: tuple[Root, ...]) -> tuple[Any, Any]:
    good, *slopes = primals
    found = mark_p.bind(good, *slopes, back=back, roots=roots)
    if not back or (not isinstance(good, jax.core.Tracer) and np.all(good)):
        return found, _mark_some(good, tangents[1:], back, roots)
    if back == LEAVES_OUT:  # what is NaN has no slope; a cotangent that vanishes has
        good = good | jnp.logical_not(_is_asked(good, slopes))
    return found, mark_p.bind(good, *map(instantiate_zeros, tangents[1:]), back=ALL, roots=roots)


def _batch_mark(
    primitive: Any, leaves: Leaves, dims: Sequence[Any], *, roots: tuple[Root, ...], **params: Any
) -> tuple[Any, list[int]]:
    size = _mapped_size(leaves, dims)
    pairs = zip(leaves, dims, strict=True)
    given = [jnp.broadcast_to(x, (size, *np.shape(x))) if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in pairs]
    many = tuple([(own + 1, (size, *shape), kind) for own, shape, kind in roots])
    found = primitive.bind(*given, roots=many, **params)
    return found, [0] * len(found)


def _transpose_mark(cotangents: Leaves, good: Any, *slopes: Any, back: int, roots: tuple[Root, ...]) -> list[Any]:
    if not back and not isinstance(good, jax.core.Tracer) and np.all(good):
        return [None, *cotangents, *map(ad.Zero, _root_shapes(roots))]
    found = _mark_some(good, cotangents, FORWARDS if back else LEAVES_OUT, roots)
    unknown = cast(Callable[[Any], bool], ad.is_undefined_primal)
    return [None, *(each if unknown(slope) else None for each, slope in zip(found, slopes, strict=True))]


def _drop_unused(used: Sequence[bool], *given: Any) -> tuple[list[bool], Any]:
    """The equation of marks without the results that nothing uses: JAX cannot transpose a scan with such results.

    The equation is what is given last; JAX 0.12 says before it which inputs live.
    """
    equation = given[-1]
    roots, params = equation.params["roots"], equation.params
    if not any(used):
        return [False] * len(equation.invars), None
    used = list(used)
    if params.get("back"):
        count = len(used) - len(roots)
        if any(used[count:]):  # these depend on all that is given
            return [True] * len(equation.invars), equation
        taken, params = [True, *used[:count]], params | {"roots": ()}
    else:
        taken = [True, *used, *[True] * len(roots)]
    invars, outvars = pick(equation.invars, taken), pick(equation.outvars, used)
    return taken, equation.replace(invars=invars, outvars=outvars, params=params)


mark_p.multiple_results = True
mark_p.def_impl(_mark_known)
mark_p.def_abstract_eval(_mark_shapes)
mlir.register_lowering(mark_p, mlir.lower_fun(_mark, multiple_results=True))
ad.primitive_jvps[mark_p] = _jvp_of_mark
ad.primitive_transposes[mark_p] = _transpose_mark
batching.primitive_batchers[mark_p] = partial(_batch_mark, mark_p)
hold_p: Any = type(lax.add_p)("mark_values")
hold_p.multiple_results = True


def _hold(good: Any, *leaves: Any, roots: tuple[Root, ...]) -> list[Any]:
    return list(leaves[: len(leaves) - len(roots)])


hold_p.def_impl(_hold)
hold_p.def_abstract_eval(_hold)
mlir.register_lowering(hold_p, mlir.lower_fun(_hold, multiple_results=True))
ad.primitive_jvps[hold_p] = lambda primals, tangents, roots: (
    hold_p.bind(*primals, roots=roots),
    _mark_some(primals[0], tangents[1:], FORWARDS, roots),
)
batching.primitive_batchers[hold_p] = partial(_batch_mark, hold_p)
partial_eval.dce_rules[mark_p] = partial_eval.dce_rules[hold_p] = _drop_unused
