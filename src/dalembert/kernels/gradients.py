"""A run from its start under `jax.grad`, at once: begin, steps and both transposes, and nothing of JAX between them.

JAX takes some 50 us for each array that a transformed operation gives. A run with its beginning is two operations with
20 to 30 arrays each, and a third one marks what failed. Where nothing but a gradient is taken and all numbers are
known, `whole_p` is these three, and its transpose the three transposes. Everywhere else (`jit`, `vmap`, derivatives of
derivatives) it is its parts, which are primitives of their own (`transformations`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from . import cuda
from .adjoints import Kept, Leaves, Marks, NativeAdjoint, RunSpec, is_real, marked, replace_leaves
from .cache import StaleEntry
from .execute import run_problem
from .ir import LoweringError
from .lowering import shape_struct
from .plans import Watch, evaluate, keep_carry
from .problem import Advance, Observe, lane_axes
from .transformations import adjoint_of, as_array, fill_zeros, known_leaves, mark_values, placed

MAX_KEPT_RUNS = 2
"""Runs that wait for their transpose."""


class Outline(NamedTuple):
    """What runs of one kind leave: shapes of carry and records, their trees, and where status and marks are."""

    carry: list[Any]
    records: list[Any]
    loop: Any
    record: Any
    status: int
    marks: int

    @property
    def shapes(self) -> list[Any]:
        return [*self.carry, *self.records]


@dataclass(frozen=True)
class WholeRun:
    """All of a run from its start but its numbers: begin(consts, start) -> carry, then the steps of `spec`."""

    begin: RunSpec
    spec: RunSpec
    watch: Watch

    def split(self, leaves: Leaves) -> tuple[list[Any], list[Any], list[Any]]:
        """The leaves of the constants, of the start and of the controls."""
        consts, start, _ = self.begin.split(leaves)
        return consts, start, list(leaves[len(consts) + len(start) :])

    def outline(self, leaves: Leaves) -> Outline:
        return outline_of(self, tuple([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves]))

    def in_parts(self, *leaves: Any) -> list[Any]:
        """The leaves of the last carry and of the records, by the primitives of the parts."""
        spec, (consts, start, controls) = self.spec, self.split(leaves)
        begun = self.begin.problem([*consts, *start])
        loop = run_problem(begun, saves=1, backend=spec.backend, single=True).records
        problem = spec.problem([*consts, *jax.tree.leaves(loop), *controls])
        options: Any = {"saves": spec.saves, "save_every": spec.every, "initial": spec.initial, "backend": spec.backend}
        result = run_problem(problem, **options)
        outline, watch = self.outline(leaves), self.watch
        found = [*jax.tree.leaves(result.carry), *jax.tree.leaves(result.records)]
        found[outline.status] = watch.judge(found[outline.status], found[outline.marks], jnp)
        marked_found: list[Any] = mark_values(found[outline.status] == watch.good, found)
        return marked_found


@lru_cache(maxsize=256)
def outline_of(whole: WholeRun, shapes: tuple[Any, ...]) -> Outline:
    """The outline of runs with such leaves."""
    consts, start, controls = whole.split([shape_struct(*shape) for shape in shapes])
    begun = whole.begin.problem([*consts, *start]).lower().record
    loop = whole.begin.shapes([*consts, *start])[1]
    given = [*consts, *loop, *controls]
    carry, records = whole.spec.shapes(given)
    structures = jax.tree.structure(begun), jax.tree.structure(whole.spec.problem(given).lower().record)
    status = whole.watch.status(jax.tree.unflatten(structures[0], range(len(carry))))
    marks = whole.watch.marks(jax.tree.unflatten(structures[1], range(len(records))))
    return Outline(carry, records, *structures, status, len(carry) + marks)


whole_p: Any = type(lax.add_p)("run_whole")
slope_p: Any = type(lax.add_p)("run_whole_slopes")
whole_p.multiple_results = slope_p.multiple_results = True


def bind_whole(
    begin: Observe, advance: Advance, observe: Observe, trees: tuple[Any, Any, Any], lanes: int | None,
    axes: tuple[Any, Any, Any], saves: int, every: int, backend: Any, watch: Watch,
) -> tuple[Any, Any] | None:  # fmt: skip
    """(last carry, records with the first) of a run whose gradient is taken; None where that is not all, or not native.

    What failed has its status, and derivatives that are NaN.
    """
    flat = [jax.tree.flatten(tree) for tree in trees]
    leaves = [as_array(leaf) for part, _ in flat for leaf in part]
    if backend == "xla" or not all(map(_is_linearised, leaves)) or saves * every < 2:
        return None
    consts, start, controls = (cast(Any, structure) for _, structure in flat)
    marks = [tuple(lane_axes(tree, prefix)) for tree, prefix in zip(trees, axes, strict=True)]
    nothing = jax.tree.structure(None)
    of_begin = RunSpec(
        keep_carry, begin, (consts, start, nothing), (marks[0], marks[1], ()), lanes, 1, 1, False, backend, single=True
    )
    try:
        loop = (
            of_begin.problem([shape_of(leaf) for leaf in leaves[: consts.num_leaves + start.num_leaves]]).lower().record
        )
        structure = cast(Any, jax.tree.structure(loop))
        varies = (lanes is not None,) * structure.num_leaves
        spec = RunSpec(
            advance, observe, (consts, structure, controls), (marks[0], varies, marks[2]), lanes, saves, every, True,
            backend,
        )  # fmt: skip
        whole = WholeRun(of_begin, spec, watch)
        outline = whole.outline(list(map(shape_of, leaves)))
    except LoweringError:
        return None
    found = whole_p.bind(*leaves, whole=whole, keeps=None)
    count = structure.num_leaves
    return jax.tree.unflatten(structure, found[:count]), jax.tree.unflatten(outline.record, found[count:])


def shape_of(leaf: Any) -> Any:
    return shape_struct(np.shape(leaf), jnp.result_type(leaf))


def _is_linearised(leaf: Any) -> bool:
    """Whether a number is known, or is one whose gradient is taken and nothing else."""
    if not isinstance(leaf, jax.core.Tracer):
        return True
    return type(leaf).__name__ in ("LinearizeTracer", "GradTracer") and not isinstance(leaf.primal, jax.core.Tracer)


class _Waiting(NamedTuple):
    """A run that waits for its transpose."""

    leaves: Leaves
    whole: WholeRun
    keeps: Marks
    adjoint: NativeAdjoint
    kept: Kept
    good: Any  # which lanes are; None: all


_waiting: deque[_Waiting] = deque(maxlen=MAX_KEPT_RUNS)
_lock = threading.Lock()


def _execute(leaves: Leaves, whole: WholeRun, keeps: Marks | None) -> list[Any]:
    """Run at once; `keeps` says which of the leaves will get cotangents."""
    spec = whole.spec
    known = known_leaves(spec, leaves)
    consts, start, controls = whole.split(known)
    if spec.lanes is None:
        trees = map(jax.tree.unflatten, whole.begin.structures[:2], (consts, start))
        loop = evaluate(whole.begin.observe, *trees, backend=spec.backend)
    else:
        loop = run_problem(whole.begin.problem([*consts, *start]), saves=1, backend=spec.backend, single=True).records
    given = [*consts, *jax.tree.leaves(loop), *controls]
    outline, watch = whole.outline(leaves), whole.watch
    if keeps is None:
        options: Any = {"saves": spec.saves, "save_every": spec.every, "initial": True, "backend": spec.backend}
        result = run_problem(spec.problem(given), **options)
        found = [*jax.tree.leaves(result.carry), *jax.tree.leaves(result.records)]
    else:
        adjoint = adjoint_of(spec, _moving(whole, keeps, outline), given)
        kept, found = adjoint.run_and_keep(given)
    xp = np if not any(map(cuda.on_gpu, found)) else cuda.gpu().xp
    found[outline.status] = status = watch.judge(found[outline.status], found[outline.marks], xp)
    if keeps is not None:
        good = status == watch.good
        with _lock:
            _waiting.append(_Waiting(leaves, whole, keeps, adjoint, kept, None if bool(good.all()) else good))
    return found


def _moving(whole: WholeRun, keeps: Marks, outline: Outline) -> Marks:
    """Which arguments of the steps have cotangents: of the carry, all real ones."""
    consts, _, controls = whole.split(keeps)
    return (*consts, *map(is_real, outline.carry), *controls)


def _take(leaves: Leaves, whole: WholeRun, keeps: Marks) -> _Waiting:
    for _ in range(2):
        with _lock:
            for place, each in enumerate(_waiting):
                same = each.whole == whole and each.keeps == keeps
                if same and all(a is b for a, b in zip(each.leaves, leaves, strict=True)):
                    del _waiting[place]
                    return each
        _execute(leaves, whole, keeps)
    raise AssertionError("a run that was just made is not there")


def _pull(leaves: Leaves, cotangents: Leaves, whole: WholeRun, keeps: Marks, some: Marks) -> list[Any]:
    """The cotangents of the leaves that `keeps` names, from those of some real numbers that the run left."""
    outline, spec = whole.outline(leaves), whole.spec
    waiting = _take(leaves, whole, keeps)
    xp, good = waiting.adjoint.xp, waiting.good
    real = [each for each in outline.shapes if is_real(each)]
    given = known_leaves(spec, cotangents)
    if good is not None:
        factor = [xp.where(good, 1.0, np.nan).reshape(good.shape + (1,) * (leaf.ndim - good.ndim)) for leaf in given]
        given = [xp.where(leaf == 0.0, 0.0, leaf * each) for leaf, each in zip(given, factor, strict=True)]
    found = waiting.adjoint.pull_kept(waiting.kept, fill_zeros(given, some, real, None, xp))
    parts = spec.split(_moving(whole, keeps, outline))
    sums, carries = sum(parts[0]), sum(parts[1])
    consts, loop, controls = found[:sums], found[sums : sums + carries], found[sums + carries :]
    known = known_leaves(spec, leaves)
    first = [*whole.split(known)[0], *whole.split(known)[1]]
    starts = whole.split(leaves)[1]
    moving = (*whole.split(keeps)[0], *map(is_real, starts))
    zeros = [xp.zeros(leaf.shape, leaf.dtype) for leaf in starts if is_real(leaf)]
    many = (slice(None),) * (spec.lanes is not None)
    records = [leaf[(*many, None)] for leaf in loop]
    before = adjoint_of(whole.begin, moving, first).pull(first, [*zeros, *records], False)
    shared = [a + b for a, b in zip(consts, before[:sums], strict=True)]
    begun = marked(before[sums:], marked(whole.split(keeps)[1], list(map(is_real, starts))))
    return [*shared, *begun, *controls]


whole_p.def_impl(lambda *leaves, whole, keeps: placed(_with_fresh(_execute, leaves, whole, keeps), leaves))


def _with_fresh(use: Callable[..., list[Any]], *given: Any) -> list[Any]:
    """What is made; where the disk told of another program, once more."""
    try:
        return use(*given)
    except StaleEntry:
        outline_of.cache_clear()
        return use(*given)


def _shapes(*avals: Any, whole: WholeRun, keeps: Any) -> list[Any]:
    return [jax.core.ShapedArray(each.shape, each.dtype) for each in whole.outline(avals).shapes]


def _real_shapes(*avals: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    return [each for each in _shapes(*avals[: len(keeps)], whole=whole, keeps=None) if is_real(each)]


def _jvp(primals: Leaves, tangents: Leaves, *, whole: WholeRun, keeps: Any) -> tuple[list[Any], list[Any]]:
    given = tuple(not isinstance(each, ad.Zero) and is_real(leaf) for leaf, each in zip(primals, tangents, strict=True))
    later = any(type(tangent).__name__ == "JaxprTracer" for tangent in tangents)
    if not later or not _has_adjoints(primals, whole, given):
        return _jvp_in_parts(primals, tangents, whole)
    found = whole_p.bind(*primals, whole=whole, keeps=given)
    slopes = iter(slope_p.bind(*primals, *marked(tangents, given), whole=whole, keeps=given))
    zeros = (ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in found)
    return found, [next(slopes) if is_real(leaf) else zero for leaf, zero in zip(found, zeros, strict=True)]


def _has_adjoints(primals: Leaves, whole: WholeRun, keeps: Marks) -> bool:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in primals):
        return False
    outline = whole.outline(primals)
    consts, start, controls = whole.split(list(map(shape_of, primals)))
    try:
        adjoint_of(whole.begin, (*whole.split(keeps)[0], *map(is_real, start)), [*consts, *start])
        steps = adjoint_of(whole.spec, _moving(whole, keeps, outline), [*consts, *outline.carry, *controls])
    except LoweringError:
        return False
    return steps.keeps_on_the_way


def _jvp_in_parts(primals: Leaves, tangents: Leaves, whole: WholeRun) -> tuple[list[Any], list[Any]]:
    real = [is_real(leaf) for leaf in primals]
    along = [ad.instantiate_zeros(each) for each in marked(tangents, real)]  # type: ignore[no-untyped-call]  # JAX has no types
    found, slopes = jax.jvp(
        lambda *values: whole.in_parts(*replace_leaves(list(primals), real, values)), marked(primals, real), along
    )
    zeros = (ad.Zero(jax.typeof(leaf).to_tangent_aval()) for leaf in found)
    pairs = zip(found, slopes, zeros, strict=True)
    return found, [slope if is_real(leaf) else zero for leaf, slope, zero in pairs]


def _slopes_in_parts(*leaves: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    primals, along = leaves[: len(keeps)], leaves[len(keeps) :]

    def run(*values: Any) -> list[Any]:
        return [leaf for leaf in whole.in_parts(*replace_leaves(list(primals), keeps, values)) if is_real(leaf)]

    found: list[Any] = jax.jvp(run, marked(primals, keeps), list(along))[1]
    return found


def _transpose(cotangents: Leaves, *leaves: Any, whole: WholeRun, keeps: Marks) -> list[Any]:
    primals, some = leaves[: len(keeps)], tuple(not isinstance(each, ad.Zero) for each in cotangents)
    given = marked(cotangents, some)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in (*primals, *given)):
        found = placed(_with_fresh(_pull, primals, given, whole, keeps, some), primals)
    else:
        real = [each for each in whole.outline(primals).shapes if is_real(each)]

        def run(*values: Any) -> list[Any]:
            return [leaf for leaf in whole.in_parts(*replace_leaves(list(primals), keeps, values)) if is_real(leaf)]

        found = jax.vjp(run, *marked(primals, keeps))[1](fill_zeros(given, some, real, None, jnp))
    return [None] * len(keeps) + list(found)


def _in_parts(*leaves: Any, whole: WholeRun, keeps: Any) -> list[Any]:
    return whole.in_parts(*leaves)


def _batch(function: Callable[..., list[Any]], leaves: Leaves, dims: Sequence[Any], **params: Any) -> Any:
    found = jax.vmap(lambda *given: function(*given, **params), dims)(*leaves)
    return found, [0] * len(found)


whole_p.def_abstract_eval(_shapes)
slope_p.def_abstract_eval(_real_shapes)
slope_p.def_impl(_slopes_in_parts)
for primitive, function in ((whole_p, _in_parts), (slope_p, _slopes_in_parts)):
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))
    batching.primitive_batchers[primitive] = partial(_batch, function)
ad.primitive_jvps[whole_p] = _jvp
ad.primitive_transposes[slope_p] = _transpose


def _jvp_of_slopes(primals: Leaves, tangents: Leaves, **params: Any) -> Any:
    real = [is_real(leaf) for leaf in primals]
    along = [ad.instantiate_zeros(each) for each in marked(tangents, real)]  # type: ignore[no-untyped-call]  # JAX has no types
    return jax.jvp(
        lambda *values: _slopes_in_parts(*replace_leaves(list(primals), real, values), **params),
        marked(primals, real),
        along,
    )


ad.primitive_jvps[slope_p] = _jvp_of_slopes
