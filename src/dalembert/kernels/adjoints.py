"""The adjoint method: a run, and the run of its transposed steps backwards, in native code.

A run R maps x = (consts, carry, controls) to (last carry, records). DR(x)^T w needs the carry before every step and the
solutions of its equations (see `lowering`): the run keeps them, and the step backwards reads them. The derivatives
with respect to all of x come out at once. Where all that is kept would not fit into memory, the carries before every
L-th step are kept, and the steps between are taken once more (Griewank 1992).
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import partial_eval

from . import llvm
from .cuda import Gpu, require_memory
from .lowering import OtherSolutions, on_tape, shape_struct
from .problem import (
    Advance,
    Observe,
    Problem,
    Stream,
    Streams,
    Words,
    from_words,
    lane_stride,
    make_layout,
    pack,
    split_in_jax,
    to_words,
)

MAX_KEPT_WORDS = 1 << 22
"""Words of the carries that a transposed run keeps at once: 32 MiB."""

Leaves = Sequence[Any]
Marks = tuple[bool, ...]


@dataclass(frozen=True)
class RunSpec:
    """All of a run but its numbers. `reverse`: the rows of controls and records go from the last to the first."""

    advance: Advance
    observe: Observe
    structures: tuple[Any, Any, Any]  # of consts, carry and controls
    axes: tuple[Marks, Marks, Marks]  # which of their leaves vary over the lanes
    lanes: int | None
    saves: int
    every: int
    initial: bool
    backend: Any
    reverse: bool = False
    keeps: Marks | None = None  # a run that will be transposed with respect to these leaves
    single: bool = False  # a run with one record, which has no axis for its number

    @property
    def plain(self) -> RunSpec:
        """The same run, whether or not it will be transposed, with an axis for the number of a record."""
        return self if self.keeps is None and not self.single else replace(self, keeps=None, single=False)

    @property
    def steps(self) -> int:
        return self.saves * self.every

    def split(self, leaves: Leaves) -> list[list[Any]]:
        """The leaves of the constants, of the carry and of the controls."""
        ends = np.cumsum([0, *(each.num_leaves for each in self.structures)])
        return [list(leaves[a:b]) for a, b in pairwise(ends)]

    @property
    def rows(self) -> int:
        """The axis of the rows of a record."""
        return 0 if self.lanes is None else 1

    def turn(self, leaves: Leaves) -> list[Any]:
        """The leaves with the rows of controls in the opposite order."""
        consts, carry, controls = self.split(leaves)
        pairs = zip(controls, self.axes[2], strict=True)
        flip = np.flip if not any(isinstance(leaf, jax.core.Tracer) for leaf in controls) else jnp.flip
        return [*consts, *carry, *(flip(leaf, 1 if varies else 0) for leaf, varies in pairs)]

    def problem(self, leaves: Leaves) -> Problem:
        """The problem with these numbers, or these shapes."""
        consts, carry, controls = map(jax.tree.unflatten, self.structures, self.split(leaves))
        return Problem(self.advance, self.observe, consts, carry, controls, self.lanes, *map(list, self.axes))

    def shapes(self, leaves: Leaves) -> tuple[list[Any], list[Any]]:
        """The shapes of the leaves of the last carry and of the records."""
        return shapes_of_run(self, tuple([(np.shape(leaf), np.dtype(leaf.dtype)) for leaf in leaves]))


@lru_cache(maxsize=256)
def shapes_of_run(spec: RunSpec, shapes: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The shapes of what a run with such leaves leaves."""
    problem = spec.problem([shape_struct(*shape) for shape in shapes])
    many = () if spec.lanes is None else (spec.lanes,)
    rows = () if spec.single else (spec.saves + spec.initial,)
    carry = [shape_struct((*many, *leaf.shape), leaf.dtype) for leaf in problem.carry_specs]
    records = jax.tree.leaves(problem.lower().record)
    return carry, [shape_struct((*many, *rows, *leaf.shape), leaf.dtype) for leaf in records]


_REAL: dict[Any, bool] = {np.dtype(kind): kind is np.float64 for kind in (np.float64, np.int64, np.bool_)}


def is_real(leaf: Any) -> bool:
    """Whether a leaf has tangents."""
    if (known := _REAL.get(getattr(leaf, "dtype", None))) is not None:
        return known
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def real_leaves(tree: Any) -> list[Any]:
    """The leaves of a tree that have tangents."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_real(leaf)]


def replace_leaves(tree: Any, marks: Sequence[bool], values: Leaves) -> Any:
    """The tree with other values of the marked leaves."""
    leaves, structure = jax.tree.flatten(tree)
    new = iter(values)
    return jax.tree.unflatten(
        structure, [next(new) if mark else leaf for leaf, mark in zip(leaves, marks, strict=True)]
    )


def pick(leaves: Leaves, marks: Sequence[bool]) -> list[Any]:
    """The marked ones of some leaves."""
    return [leaf for leaf, mark in zip(leaves, marks, strict=True) if mark]


def real_marks(tree: Any) -> Marks:
    return tuple(map(is_real, jax.tree.leaves(tree)))


@dataclass(frozen=True)
class Keeping:
    """Which leaves of a carry a step backwards reads."""

    structure: Any
    specs: tuple[tuple[tuple[int, ...], Any], ...]  # (shape, type) of each leaf
    used: Marks

    @property
    def words(self) -> int:
        return sum(math.prod(shape) for shape, _ in pick(self.specs, self.used))

    def leaves(self, carry: Any) -> list[Any]:
        return pick(jax.tree.leaves(carry), self.used)

    def carry(self, kept: Leaves) -> Any:
        """The carry of what was kept, with zeros for the rest."""
        zeros = [np.zeros(*spec) for spec in self.specs]
        return replace_leaves(jax.tree.unflatten(self.structure, zeros), self.used, kept)


@dataclass(frozen=True)
class KeepingAdvance:
    """A step that keeps what its transpose reads of the carry from which it started, beside the next carry."""

    advance: Advance
    keeping: Keeping

    def __call__(self, consts: Any, carry: Any, control: Any) -> Any:
        return self.advance(consts, carry[0], control), self.keeping.leaves(carry[0])


@lru_cache(maxsize=256)
def used_leaves(step: TransposedAdvance, carry_shapes: Any, other_shapes: Any) -> Keeping:
    """What a step backwards reads of the carry."""
    carry, others = (
        jax.tree.unflatten(structure, [shape_struct(*spec) for spec in specs])
        for structure, specs in (carry_shapes, other_shapes)
    )
    consts, control = others
    sums, pushes = pick(jax.tree.leaves(consts), step.consts), pick(jax.tree.leaves(control), step.controls)
    record = []
    if step.observe is not None:
        record = [leaf for leaf in jax.tree.leaves(jax.eval_shape(step.observe, consts, carry)) if is_real(leaf)]

    def backwards(carry: Any, consts: Any, state: Any, control: Any, record: Any, recorded: Any) -> Any:
        return step(consts, state, ((carry, None), control, record, recorded))

    given = (carry, consts, (real_leaves(carry), sums, pushes), control, record, shape_struct((), bool))
    closed = jax.make_jaxpr(backwards)(*given)
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return Keeping(carry_shapes[0], carry_shapes[1], tuple(used[: len(carry_shapes[1])]))


def shapes_in(tree: Any) -> tuple[Any, tuple[tuple[tuple[int, ...], Any], ...]]:
    """The structure of a tree, and the shapes and types of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves)


def prune(function: Callable[..., Any], given: Sequence[Any]) -> Callable[..., Any]:
    """The same function, in which JAX meets nothing that its results do not need: their derivative takes less time."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    structure = jax.tree.structure(shapes)

    def pruned(*values: Any) -> Any:
        return jax.tree.unflatten(structure, evaluate_reversibly(jaxpr, closed.consts, *jax.tree.leaves(values)))

    return pruned


# A loop that ends by a condition, transposed. Its turns are taken backwards, each from the carry before it. The carries
# lie in `PLACES` places, the first of which has that of the beginning. A carry that lies in none is found again from
# the last one that does, and on this way half of the free places are filled, at equal distances: all of a loop of few
# turns is taken twice, and one of n turns about log n times (Griewank 1992).

PLACES = 8
"""Carries of a loop that are kept at once."""


def find_loops(jaxpr: Any) -> bool:
    """Whether a function contains, perhaps in functions that it calls, loops that end by a condition."""
    return any(
        equation.primitive.name == "while"
        or ((inner := _inner_function(equation)) is not None and find_loops(inner.jaxpr))
        for equation in jaxpr.eqns
    )


def _inner_function(equation: Any) -> core.ClosedJaxpr | None:
    return equation.params["jaxpr"] if equation.primitive.name in ("jit", "pjit") else None


def evaluate_reversibly(jaxpr: Any, consts: Leaves, *args: Any) -> list[Any]:
    """The values of a function whose loops have a transpose."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        given, inner = [read(atom) for atom in equation.invars], _inner_function(equation)
        if equation.primitive.name == "while":
            found = reversible_loop(given, **equation.params)
        elif inner is not None and find_loops(inner.jaxpr):
            found = evaluate_reversibly(inner.jaxpr, inner.consts, *given)
        else:
            found = equation.primitive.bind(*given, **equation.primitive.get_bind_params(equation.params))
            found = found if equation.primitive.multiple_results else [found]
        known.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


_as_function: Any = core.jaxpr_as_fun  # JAX does not annotate it


def reversible_loop(
    given: Leaves, cond_nconsts: int, body_nconsts: int, cond_jaxpr: Any, body_jaxpr: Any, **_: Any
) -> list[Any]:
    """A loop that ends by a condition, with a transpose: derivatives are those of the turns that it takes."""
    tests, rest = given[:cond_nconsts], given[cond_nconsts:]
    held, begin = rest[:body_nconsts], rest[body_nconsts:]
    lanes = cond_jaxpr.out_avals[0].ndim  # under jax.vmap each lane ends by itself

    def test(tests: Leaves, carry: Leaves) -> Any:
        return _as_function(cond_jaxpr)(*tests, *carry)[0]

    def turn(tests: Leaves, held: Leaves, carry: Leaves, evaluate: Callable[..., Any] = evaluate_reversibly) -> Any:
        after = evaluate(body_jaxpr.jaxpr, body_jaxpr.consts, *held, *carry)
        if not lanes:
            return after
        yes, pairs = test(tests, carry), zip(after, carry, strict=True)
        return [jnp.where(yes.reshape(yes.shape + (1,) * (new.ndim - lanes)), new, old) for new, old in pairs]

    def run(tests: Leaves, held: Leaves, begin: Leaves) -> tuple[Any, list[Any]]:
        """How many turns it takes, and what they leave."""
        goes_on = lambda state: jnp.any(test(tests, state[1]))
        plain = lambda state: (state[0] + 1.0, turn(tests, held, state[1], jax.core.eval_jaxpr))
        end: tuple[Any, list[Any]] = lax.while_loop(goes_on, plain, (jnp.zeros(()), list(begin)))
        return end

    @jax.custom_vjp
    def loop(tests: Leaves, held: Leaves, begin: Leaves) -> list[Any]:
        return run(tests, held, begin)[1]

    def forwards(tests: Leaves, held: Leaves, begin: Leaves) -> tuple[list[Any], Any]:
        count, end = run(tests, held, begin)
        return end, (count, tests, held, begin)

    def backwards(kept: Any, cotangents: Leaves) -> Any:
        count, tests, held, begin = kept
        marks = real_marks(held), real_marks(begin)

        def take_back(state: Any) -> Any:
            last, filled, places, after, sums = state
            last = last - 1.0
            at, carry = choose_last(filled, places)
            free = PLACES - filled
            fits = last - at <= free + 1.0
            stride = jnp.where(fits, 1.0, jnp.ceil((last - at) / (1.0 + jnp.ceil(0.5 * free))))

            def step(state: Any) -> Any:
                at, filled, places, carry, mark = state
                carry, at = turn(tests, held, carry), at + 1.0
                marked = (at == mark) & (at < last) & (filled < PLACES)
                here = [marked & (filled == k) for k in range(PLACES)]
                pairs = [(partial(jnp.where, yes), old) for yes, old in zip(here, places, strict=True)]
                places = [jax.tree.map(choose, (at, carry), old) for choose, old in pairs]
                return at, jnp.where(marked, filled + 1.0, filled), places, carry, jnp.where(marked, at + stride, mark)

            found = lax.while_loop(lambda state: state[0] < last, step, (at, filled, places, carry, at + stride))
            _, filled, places, carry, _ = found

            def slopes(shared: Leaves, own: Leaves) -> list[Any]:
                new = replace_leaves(held, marks[0], shared), replace_leaves(carry, marks[1], own)
                return real_leaves(turn(tests, *new))

            moving = pick(held, marks[0]), pick(carry, marks[1])
            shared, before = jax.vjp(slopes, *moving)[1](after)
            done = choose_last(filled, places)[0] == last
            sums = [a + b for a, b in zip(sums, shared, strict=True)]
            return last, jnp.where(done, filled - 1.0, filled), places, before, sums

        def choose_last(filled: Any, places: Any) -> Any:
            found = places[0]
            for k in range(1, PLACES):
                found = jax.tree.map(partial(jnp.where, filled == k + 1.0), places[k], found)
            return found

        first = jnp.zeros(()), list(begin)
        sums = [jnp.zeros_like(leaf) for leaf in pick(held, marks[0])]
        start = count, jnp.ones(()), [first] * PLACES, pick(cotangents, marks[1]), sums
        *_, before, sums = lax.while_loop(lambda state: state[0] > 0.0, take_back, start)
        return [None] * cond_nconsts, *(spread(*each) for each in zip(marks, (sums, before), strict=True))

    loop.defvjp(forwards, backwards)
    return loop(tests, held, begin)


def spread(marks: Marks, values: Leaves) -> list[Any]:
    """The values at the marked places, and None at the others."""
    new = iter(values)
    return [next(new) if mark else None for mark in marks]


def kept_leaves(consts: Any, carry: Any) -> Any:
    return carry[1]


def whole_carry(consts: Any, carry: Any) -> Any:
    return carry


def pull_back(function: Callable[..., Any], given: Sequence[Any]) -> tuple[Callable[[Any], Any], Any]:
    """(cotangents of the results -> cotangents of the arguments, the second result) of a function with two results.

    JAX has no transpose of a loop that ends by a condition (the steps of Dormand-Prince, say). There it is the product
    with the Jacobian, whose columns are derivatives in all directions.
    """
    flat, restore = jax.flatten_util.ravel_pytree(list(given))

    def by_columns(cotangents: Any) -> Any:
        def along(direction: Any) -> Any:
            slopes = jax.jvp(lambda x: function(*restore(x))[0], (flat,), (direction,))[1]
            return sum(jnp.sum(a * b) for a, b in zip(slopes, cotangents, strict=True))

        return restore(lax.map(along, jnp.eye(flat.size)))

    try:
        _, transposed, other = jax.vjp(function, *given, has_aux=True)
    except ValueError:
        return by_columns, function(*given)[1]

    def pull(cotangents: Any) -> Any:
        try:
            return transposed(cotangents)
        except ValueError:
            return by_columns(cotangents)

    return pull, other


@dataclass(frozen=True)
class TransposedAdvance:
    """A step backwards: cotangents of (carry, moving constants, moving controls of this step) from those after it.

    Its control is (what is kept of the step, control, cotangent of the record after the step, whether there is one).
    What is kept are the carry before the step and the solutions that the step found (None: they are found again), or
    what a `Keeping` kept of the carry.
    """

    advance: Advance
    observe: Observe | None
    consts: Marks
    controls: Marks
    sparse: bool  # not every step has a record
    keeping: Keeping | None = None
    long: bool = False  # whether nobody tries to write it out
    skips: bool = False  # records whose cotangents vanish; the derivative by these would be lost
    some: Marks | None = None  # which real leaves of a record have cotangents; None: all
    gate: int | None = None  # the leaf of the solutions that says whether the step moved its carry (`note_value`)

    def __call__(self, consts: Any, state: Any, row: Any) -> Any:
        (after, sums, _), (kept, control, record, recorded) = state, row
        carry, notes = kept if self.keeping is None else (self.keeping.carry(kept), None)
        trees, marks = (carry, consts, control), (real_marks(carry), self.consts, self.controls)
        moving = [pick(jax.tree.leaves(tree), part) for tree, part in zip(trees, marks, strict=True)]
        good: Any = None
        if notes is not None and self.gate is not None:  # the slopes are those of a step that moves
            found, structure = jax.tree.flatten(notes)
            good, found[self.gate] = found[self.gate], np.ones((), bool)
            notes = jax.tree.unflatten(structure, found)

        def step(*values: Leaves) -> tuple[list[Any], Any]:
            own, shared, acting = (replace_leaves(*each) for each in zip(trees, marks, values, strict=True))
            with on_tape(notes):
                new = self.advance(shared, own, acting)
            return real_leaves(new), new

        pull, new = pull_back(prune(step, moving), moving)
        if good is not None:
            new = jax.tree.map(partial(jnp.where, good), new, carry)
        if self.observe is not None:
            seen = TransposedObserve(self.observe, self.consts, some=self.some)

            def add() -> tuple[Any, Any]:
                own, shared = seen(consts, (new, record))
                added: tuple[Any, Any] = jax.tree.map(jnp.add, (after, sums), (own, shared))
                return added

            if self.skips:
                some = jnp.stack([jnp.any(leaf != 0.0) for leaf in record]).any()
                recorded = recorded & some if self.sparse else some
            after, sums = add() if recorded is None else lax.cond(recorded, add, lambda: (after, sums))

        def move() -> Any:
            before, shared, acting = pull(after)
            return before, [a + b for a, b in zip(sums, shared, strict=True)], acting

        stay = lambda: (after, sums, [jnp.zeros_like(leaf) for leaf in moving[2]])
        return move() if good is None else lax.cond(good, move, stay)


@dataclass(frozen=True)
class SparingTransposed:
    """A step backwards that needs no rows for what is known of all steps.

    The leaves of the carry that no step changes are constants: what depends on these alone is computed once. Where the
    good steps are counted, its state has the number of steps up to its own, which tells the counts and whether its
    step was good.
    """

    step: TransposedAdvance
    structure: Any  # of the carry
    steady: Marks
    counts: Marks
    notes: Any  # the structure of the notes, where one of these is counted
    gate: int

    def __call__(self, consts: Any, state: Any, row: Any) -> Any:
        (consts, kept, counted), ((moving, notes), *rest) = consts, row
        number: Any = None
        if counted:
            (*state, number), (*starts, last) = state, counted
            number, good = number - 1.0, last - starts[0]
            counted = [start + jnp.minimum(number, good) for start in starts]
            notes = [*notes[: self.gate], number < good, *notes[self.gate :]]
            notes = jax.tree.unflatten(self.notes, notes)
        first, second, third = iter(kept), iter(moving), iter(counted)
        leaves = [
            next(first) if still else next(third) if count else next(second)
            for still, count in zip(self.steady, self.counts, strict=True)
        ]
        after = self.step(consts, state, ((jax.tree.unflatten(self.structure, leaves), notes), *rest))
        return after if number is None else (*after, number)


@dataclass(frozen=True)
class TransposedObserve:
    """Cotangents of (carry, moving constants) from those of a record, or of some of its real leaves; the carry comes
    with these.
    """

    observe: Observe
    consts: Marks
    long: bool = False
    some: Marks | None = None

    def __call__(self, consts: Any, carry: Any) -> Any:
        own, record = carry
        marks = real_marks(own)
        moving = pick(jax.tree.leaves(own), marks), pick(jax.tree.leaves(consts), self.consts)

        def see(own_values: Leaves, shared: Leaves) -> list[Any]:
            given = replace_leaves(consts, self.consts, shared), replace_leaves(own, marks, own_values)
            found = real_leaves(self.observe(*given))
            return found if self.some is None else pick(found, self.some)

        seen = see if self.some is None else prune(see, moving)
        return pull_back(lambda *values: (seen(*values), None), moving)[0](record)


def control_cotangents(consts: Any, state: Any) -> Any:
    return state[2]


def stay(consts: Any, carry: Any, control: Any) -> Any:
    return carry


def transposed_step(spec: RunSpec, moving: Sequence[Marks], records: Leaves) -> TransposedAdvance:
    """The step backwards of a run with such records; where one alone belongs to the last carry, it enters before it."""
    sparse = spec.every > 1
    seen = any(map(is_real, records)) and not (spec.saves == 1 and sparse)
    observe = spec.observe if seen else None
    return TransposedAdvance(spec.advance, observe, moving[0], moving[2], sparse and spec.saves > 1)


def _nothing(consts: Any, carry: Any) -> tuple[()]:
    return ()


@dataclass
class Kept:
    """What is left of a run for its transpose: the words of its inputs, and what was kept on the way."""

    constants: tuple[Words, Words]
    controls: list[Words]
    starts: list[Words]  # the state before every segment
    final: Words
    segments: list[Piece]
    rows: Words  # of the last segment that was run
    finished: bool = False  # whether that is the last one
    used: bool = False  # whether it was transposed

    @property
    def words(self) -> int:
        return sum(part.size for part in (*self.constants, *self.controls, *self.starts, self.final, self.rows))

    def belongs_to(self, constants: tuple[Words, Words], state: Words, controls: list[Words]) -> bool:
        """Whether these are the inputs, bit for bit."""
        pairs = zip((*self.constants, self.starts[0], *self.controls), (*constants, state, *controls), strict=True)
        return all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


class NativeAdjoint:
    """R and DR^T of all runs with the same functions and shapes.

    `pulls`: so many cotangents at once, as lanes of the run backwards where the run itself has none. With a `gpu` both
    runs go there, and all that is kept between them stays there. `some`: of the real leaves of a record these alone
    have cotangents (None: all).
    """

    def __init__(
        self, spec: RunSpec, moving: Marks, shapes: tuple[Any, ...], pulls: int | None = None, gpu: Gpu | None = None,
        some: Marks | None = None,
    ):  # fmt: skip
        self.gpu, self.xp, self.some = gpu, np if gpu is None else gpu.xp, some
        self.most_words = MAX_KEPT_WORDS if gpu is None else max(MAX_KEPT_WORDS, gpu.free_words() // 4)
        try:
            self._build(spec, moving, shapes, pulls, True)
        except OtherSolutions:
            self._build(spec, moving, shapes, pulls, False)

    def _build(self, spec: RunSpec, moving: Marks, shapes: tuple[Any, ...], pulls: int | None, notes: bool) -> None:
        self.spec, self.marks = spec, tuple(map(tuple, spec.split(moving)))
        problem = spec.problem([shape_struct(*shape) for shape in shapes])
        lowered = problem.lower()
        self.lanes = spec.lanes if pulls is None else pulls
        many = self.lanes is not None
        records = jax.tree.leaves(lowered.record)
        real = [leaf for leaf in records if is_real(leaf)]
        self.real_records = real if self.some is None else pick(real, self.some)
        own, consts, acting = (
            pick(jax.tree.leaves(tree), marks)
            for tree, marks in zip(
                (problem.carry_tree, problem.const_tree, problem.control_tree),
                (self.marks[1], self.marks[0], self.marks[2]),
                strict=True,
            )
        )
        self.own, self.shared, self.acting = own, consts, acting
        alone = self.lanes is None  # what one trajectory does once is better short than fast
        long = lowered.long or (alone and spec.steps == 1)
        step = transposed_step(spec, self.marks, self.real_records)
        gate = lowered.lasting[0] if notes and len(lowered.lasting) == 1 else None
        step = replace(step, long=long, skips=alone, some=self.some, gate=gate)
        self.seen = step.observe is not None
        seen = self.real_records if self.seen else []
        solutions = lowered.notes if notes else None
        recorded = shape_struct((), bool) if step.sparse else None
        # what stays as it is through the run is a constant for a step backwards, where that is most of the carry
        sizes = [leaf.size for leaf in problem.carry_specs]
        places, state = np.cumsum([0, *sizes]).tolist(), sum(sizes)
        steady = tuple([all(lowered.steady[a:b]) for a, b in pairwise(places)])
        one = spec.lanes is None and self.gpu is None and spec.steps > 1
        if not one or 2 * sum(pick(sizes, steady)) < state:
            steady = (False,) * len(sizes)
        counts = tuple([size == 1 and lowered.counts[a] >= 0 for size, a in zip(sizes, places, strict=False)])
        counts = counts if one and notes else (False,) * len(sizes)
        gate = next((lowered.counts[a] for a in pick(places, [*counts, False])), -1)
        counts = tuple([mark and lowered.counts[a] == gate for mark, a in zip(counts, places, strict=False)])
        counters, noted = pick(places, [*counts, False]), jax.tree.leaves(solutions)
        self.counted = bool(counters)
        # of the first carry, then of the last one
        self.fixed = [k for a, b in pick(list(pairwise(places)), steady) for k in range(a, b)]
        self.fixed += [*counters, *(state + k for k in counters[:1])]
        moves = [not (mark or count) for mark, count in zip(steady, counts, strict=True)]
        carry = problem.carry_tree if all(moves) else pick(problem.carry_specs, moves)
        places_of_notes = np.cumsum([0, *(leaf.size for leaf in noted)]).tolist()
        if self.counted:
            gate = places_of_notes.index(gate)
            solutions = [*noted[:gate], *noted[gate + 1 :]]
        control = ((carry, solutions), problem.control_tree, seen, recorded)
        number = [shape_struct((), float)] * self.counted
        back = self._problem(problem, step, _nothing, (own, consts, acting, *number), control)
        if self.fixed:
            fixed, counted = pick(problem.carry_specs, steady), [shape_struct((), float) for k in (*counters, 0)]
            counted = counted if self.counted else []
            trees = jax.tree.structure(problem.carry_tree), jax.tree.structure(lowered.notes)
            back.advance = SparingTransposed(step, trees[0], steady, counts, trees[1], gate)
            back.consts = back.consts, fixed, counted
            back.const_axes = [*back.const_axes, *[False] * len(fixed + counted)]
        reads = iter(back.lower().reads)
        # what a step backwards reads of a carry and of the solutions is kept, in this order
        sources = [k for a, b in pick(list(pairwise(places)), moves) for k in range(a, b)]
        left = [k for k in range(len(lowered.noted) if notes else 0) if not counters or k != places_of_notes[gate]]
        sources += [2 * state + k for k in left]
        wanted = [next(reads) for _ in sources]
        kept = pick(sources, wanted)
        self.key = (spec, moving, shapes, self.gpu, self.some, tuple(kept))
        if not all(lowered.noted[k - 2 * state] for k in kept if k >= 2 * state):
            raise OtherSolutions("a step does not make all solutions that its transpose needs")
        places = iter(range(len(kept)))
        of_kept = Stream(tuple(next(places) if want else -1 for want in wanted), spec.lanes is not None)
        axes = spec.axes[2]
        inputs = [_stream(leaf, varies) for leaf, varies in zip(_leaves(problem.control_tree), axes, strict=True)]
        streams = [of_kept, *inputs, *(_stream(leaf, many, "record") for leaf in seen)]
        if step.sparse:
            streams.append(Stream((0,), False, "record begins"))
        self.forwards = StreamLoop(problem, inputs, kept, gpu=self.gpu)
        size = sum(leaf.size for leaf in (*own, *consts, *acting))
        pushed = sum(leaf.size for leaf in acting)
        last = 2 * size + self.counted  # after a state, all of it: the cotangents of controls of the next one
        self.backwards = StreamLoop(back, streams, range(last - pushed, last), spec.steps == 1, self.gpu)
        rest = (problem.carry_tree, self.real_records)
        self.observer: StreamLoop | None = None
        if self.real_records and (spec.initial or not self.seen):
            seeing = TransposedObserve(spec.observe, self.marks[0], alone)
            self.observer = StreamLoop(self._problem(problem, stay, seeing, rest, ()), (), gpu=self.gpu)
        self.records_at = sum(leaf.size for leaf in _leaves((back.carry_tree, *control[:2])))
        self.words, self.sources = state, self.xp.asarray(np.array(kept, int))
        # What one step keeps of its carry is the first carry itself: no run is needed for it.
        self.keeps_on_the_way = spec.steps != 1 or any(k >= 2 * state for k in kept)

    def reached(self, some: Marks) -> Marks:
        """Which real leaves of the first carry can get cotangents, where `some` of the last one and of records have."""
        live, given = _bits(some[: len(self.own)], self.own), _bits(some[len(self.own) :], self.real_records)
        size, flows = sum(leaf.size for leaf in self.own), self.backwards.lowered.flows
        if (observer := self.observer) is not None:
            added = observer.lowered.flows[sum(leaf.size for leaf in observer.carry_specs) :]
            live |= sum(1 << j for j in range(size) if added[j] & given << self.words)
        given = given << self.records_at if self.seen else 0
        while live != (more := live | sum(1 << j for j in range(size) if flows[j] & (live | given))):
            live = more
        places = np.cumsum([0, *(leaf.size for leaf in self.own)])
        return tuple(bool(live >> a & (1 << b - a) - 1) for a, b in pairwise(places.tolist()))

    def _problem(self, problem: Problem, advance: Any, observe: Any, carry: Any, control: Any) -> Problem:
        """A problem with the constants of the run, all of whose carry is each lane's own."""
        many = () if self.lanes is None else (self.lanes,)
        carries = jax.tree.map(lambda leaf: shape_struct((*many, *leaf.shape), leaf.dtype), carry)
        rows = jax.tree.map(lambda leaf: shape_struct((1, *leaf.shape), leaf.dtype), control)
        varying = [varies and self.spec.lanes is not None for varies in self.spec.axes[0]]
        axes = [self.lanes is not None] * len(_leaves(carry))
        return Problem(
            advance, observe, problem.consts, carries, rows, self.lanes, varying, axes, [False] * len(_leaves(control))
        )

    def run(self, leaves: Leaves) -> list[Any]:
        """The leaves of the last carry and of the records; what the transpose needs is remembered."""
        kept, found, _ = self.run_and_keep(leaves)
        memory.put(self.key, kept)
        return found

    def run_and_keep(self, leaves: Leaves, first: Words | None = None) -> tuple[Kept, list[Any], Words]:
        """What the transpose needs, the leaves of the last carry and of the records, and the words of these.

        `first` are the words of the first carry, where they are known.
        """
        loop, rows = self.forwards, self.spec.saves + self.spec.initial
        kept, (words, room) = self._begin(leaves, first), self.forwards.room(rows, self.words)
        self._advance(kept, self._time_rows(room, rows))
        kept.controls = [each.copy() for each in kept.controls]  # whose memory belongs to others
        return kept, [*loop.carry(kept.final), *loop.records(room)], words

    def place(self, kept: Kept, words: Words) -> list[Any]:
        """What a run left on a GPU as arrays of JAX there, by one program: each array alone would cost 0.1 ms."""
        assert self.gpu is not None
        words[: kept.final.size] = kept.final.ravel()
        self.gpu.finish()
        return self._spread(self.gpu.to_jax(words.view(np.float64)))

    @cached_property
    def _spread(self) -> Callable[[Any], list[Any]]:
        loop, rows = self.forwards, self.spec.saves + self.spec.initial
        carry, records = ([(leaf.shape, leaf.dtype) for leaf in part] for part in (loop.carry_specs, loop.record_specs))

        def spread(words: Any) -> list[Any]:
            first = [leaf[:, 0] for leaf in split_in_jax(words, carry, 0, 1, loop.stride)]
            return [*first, *split_in_jax(words, records, self.words, rows, loop.stride)]

        return jax.jit(spread)

    @property
    def segment_steps(self) -> int:
        """Steps whose rows are kept at once: as many as fit; where few do, as many words in rows as in starts."""
        fitting = self.most_words // max(1, self.forwards.kept * self.forwards.stride)
        balanced = math.isqrt(self.spec.steps * self.words // max(1, self.forwards.kept))
        return max(1, fitting, balanced)

    def _begin(self, leaves: Leaves, first: Words | None = None) -> Kept:
        """The words of the inputs: nothing is kept so far."""
        loop, (consts, carry, controls) = self.forwards, self.spec.split(leaves)
        given = [loop.control_rows(*each) for each in zip(controls, self.spec.axes[2], strict=True)]
        segments = Piece(0, self.spec.saves, self.spec.every, 0).split(self.segment_steps)
        state = loop.state(carry) if first is None else first
        return Kept(loop.constants(consts), given, [], state, list(segments), loop.empty(0))

    def _time_rows(self, arrays: Sequence[Words], count: int) -> list[Rows]:
        """The rows of arrays in the order of the steps."""
        rows = [Rows(self.forwards.address(array), array[0].size if len(array) else 0) for array in arrays]
        return [each.turned(count) for each in rows] if self.spec.reverse else rows

    def _advance(self, kept: Kept, records: list[Rows]) -> None:
        """Run from the first state to the last, segment by segment."""
        if not self.keeps_on_the_way:
            kept.starts, kept.rows, kept.finished = [kept.final], kept.final[self.sources][None], True
            return
        if self.spec.initial:
            self.forwards.run(kept.constants, kept.final, self._inputs(kept), [*records, Rows(0, 0)], Piece(0, 1, 0, 0))
            records = [each.after(-1) for each in records]
        longest = max((piece.steps for piece in kept.segments), default=0)
        shape = longest, self.forwards.kept, self.forwards.stride
        kept.rows = memory.room(self.key, shape, self.forwards.empty)
        for piece in kept.segments:
            kept.starts.append(kept.final.copy())
            self._take(kept, kept.final, piece, records)
        kept.starts = kept.starts or [kept.final.copy()]
        kept.finished = True

    def _inputs(self, kept: Kept) -> list[Rows]:
        return self._time_rows(kept.controls, self.spec.steps)

    def _take(self, kept: Kept, state: Words, piece: Piece, records: list[Rows]) -> None:
        """Take the steps of a segment, and keep what they need backwards."""
        rows = self._kept_rows(kept, piece)
        self.forwards.run(kept.constants, state, self._inputs(kept), [*records, rows], piece)

    def _kept_rows(self, kept: Kept, piece: Piece) -> Rows:
        return Rows(self.forwards.address(kept.rows), self.forwards.kept * self.forwards.stride).after(piece.step)

    def pull(self, leaves: Leaves, cotangents: Leaves, apart: bool) -> list[Any]:
        """The cotangents of the moving arguments; `apart`: each lane's own of what all lanes share."""
        given = self._begin(leaves)
        kept = memory.take(self.key, given) if self.keeps_on_the_way else None
        if kept is None:
            _, room = self.forwards.room(1)
            self._advance(kept := given, [Rows(self.forwards.address(array), 0) for array in room])
            kept.controls = [each.copy() for each in kept.controls]
        return self.pull_kept(kept, cotangents, apart)

    def pull_kept(self, kept: Kept, cotangents: Leaves, apart: bool = False) -> list[Any]:
        """The same of a run that kept this; cotangents that are None vanish."""
        _, room = self.forwards.room(1)
        beside = [Rows(self.forwards.address(array), 0) for array in room]  # records of what is run again
        found = self._pull(kept, cotangents, beside, apart)
        kept.used = True
        if self.keeps_on_the_way:
            memory.put(self.key, kept)
        return found

    def _pull(self, kept: Kept, cotangents: Leaves, beside: list[Rows], apart: bool) -> list[Any]:
        spec, loop = self.spec, self.backwards
        count = sum(self.marks[1])
        first = zip(cotangents[:count], self.own, strict=True)
        after, records = [self._zeros(leaf) if each is None else each for each, leaf in first], cotangents[count:]
        records = records if self.some is None else pick(records, self.some)
        sums = [self._zeros(leaf) for leaf in self.shared]
        if self.observer is not None and not self.seen and spec.saves:
            after, sums = self._add_record(kept, kept.final, self._row_of(records, -1), after, sums)
        number = self.xp.full(() if self.lanes is None else (self.lanes,), float(spec.steps))
        numbers = [number] * self.counted
        state = loop.state([*after, *sums, *(self._zeros(leaf) for leaf in self.acting), *numbers])
        seen, many = self.real_records if self.seen else [], self.lanes is not None
        given_rows = [
            loop.empty(1, leaf.size, loop.stride if many else 1) if each is None else loop.control_rows(each, many)
            for each, leaf in zip(records, seen, strict=False)
        ]
        of_records = self._time_rows(given_rows, spec.saves + spec.initial)
        for k, array in enumerate(given_rows):
            if records[k] is None:  # the same zeros for all
                array.fill(0)
                of_records[k] = Rows(loop.address(array), 0)
        of_records = [each.after(-1) if spec.initial else each for each in of_records]
        pushed = loop.empty(spec.steps, sum(leaf.size for leaf in self.acting), loop.stride)
        made = [each.turned(spec.steps) for each in self._time_rows([pushed], spec.steps)]
        flags = self.xp.asarray(np.array([1, 0], np.int64))
        for number, piece in reversed(list(enumerate(kept.segments))):
            if not kept.finished or number < len(kept.segments) - 1:
                kept.finished = False
                self._take(kept, kept.starts[number].copy(), piece, beside)
            given = [self._kept_rows(kept, piece).turned(spec.steps)]
            given += [each.turned(spec.steps) for each in self._inputs(kept)]
            given += [each.turned(spec.saves) for each in of_records]
            sparse = spec.every > 1 and self.seen
            yes, no = ([Rows(loop.address(flags) + 8 * k, 0)] if sparse else [] for k in range(2))
            turned = piece.turned(spec.saves, spec.steps)
            known = self.xp.concatenate([kept.starts[0].ravel(), kept.final.ravel()])[self.fixed]
            shared = self.xp.concatenate([kept.constants[0], known])
            loop.run((shared, kept.constants[1]), state, [*given, *yes], made, turned, [*given, *no])
        found = loop.carry(state)
        after, sums = found[:count], found[count : count + len(self.shared)]
        if spec.initial and self.observer is not None:
            after, sums = self._add_record(kept, kept.starts[0], self._row_of(records, 0), after, sums)
        acting, begin = [], 0
        for leaf in self.acting:
            acting.append(loop.unpack(pushed[:, begin : begin + leaf.size], leaf))
            begin += leaf.size
        total = pushed.view(np.float64).sum() + sum(leaf.sum() for leaf in (*after, *sums))
        if not bool(self.xp.isfinite(total)):  # asked once: a GPU has to be waited for
            sums, after, acting = self._leave_out((sums, after, acting), cotangents)
        parts = zip((sums, after, acting), self.marks, self.spec.axes, strict=True)
        if apart or self.lanes is None:
            return [leaf for leaves, _, _ in parts for leaf in leaves]
        return [
            leaf if varies else leaf.sum(axis=0)
            for leaves, marks, axes in parts
            for leaf, varies in zip(leaves, pick(axes, marks), strict=True)
        ]

    def _leave_out(self, found: Sequence[list[Any]], cotangents: Leaves) -> Sequence[list[Any]]:
        """What has no cotangents gives none, also where derivatives are NaN, as those of a step that failed."""
        asked = self.xp.zeros(self.lanes or 1, bool)
        for leaf in cotangents:
            if leaf is not None:
                asked |= (leaf.reshape((len(asked), -1)) != 0.0).any(axis=1)

        def keep_asked(leaf: Any) -> Any:
            return self.xp.where(asked.reshape((-1,) + (1,) * (leaf.ndim - 1)) if self.lanes else asked[0], leaf, 0.0)

        return [list(map(keep_asked, part)) for part in found]

    def _row_of(self, records: Leaves, number: int) -> list[Any]:
        """The first (0) or the last (-1) of records, in the order of the steps."""
        place = -1 - number if self.spec.reverse else number
        pairs = zip(records, self.real_records, strict=True)
        return [
            self._zeros(each) if leaf is None else leaf[place] if self.lanes is None else leaf[:, place]
            for leaf, each in pairs
        ]

    def _zeros(self, leaf: Any) -> Any:
        return self.xp.zeros(leaf.shape if self.lanes is None else (self.lanes, *leaf.shape), leaf.dtype)

    def _add_record(
        self, kept: Kept, state: Words, record: Leaves, after: Leaves, sums: Leaves
    ) -> tuple[list[Any], list[Any]]:
        """The cotangents with what one record adds to them, whose carry is this state."""
        loop = self.observer
        assert loop is not None
        carry = self.forwards.carry(state)
        if self.lanes is not None and self.spec.lanes is None:
            carry = [self.xp.broadcast_to(leaf, (self.lanes, *leaf.shape)) for leaf in carry]
        (_, room), given = loop.room(1), loop.state([*carry, *record])
        made = [*(Rows(loop.address(each), 0) for each in room), Rows(0, 0)]
        loop.run(kept.constants, given, (), made, Piece(0, 1, 0, 0))
        added = [leaf[0] if self.lanes is None else leaf[:, 0] for leaf in loop.records(room)]
        total = [a + b for a, b in zip((*after, *sums), added, strict=True)]
        return total[: len(after)], total[len(after) :]


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree)


def _bits(marks: Marks, leaves: Leaves) -> int:
    """The scalars of the marked leaves, as bits."""
    found, begin = 0, 0
    for mark, leaf in zip(marks, leaves, strict=True):
        found |= ((1 << leaf.size) - 1) << begin if mark else 0
        begin += leaf.size
    return found


def _stream(leaf: Any, varies: bool, clock: str = "step") -> Stream:
    return Stream(tuple(range(leaf.size)), varies, clock)


@lru_cache(maxsize=64)
def find_adjoint(
    spec: RunSpec, moving: Marks, shapes: tuple[Any, ...], pulls: int | None = None, gpu: Gpu | None = None,
    some: Marks | None = None,
) -> NativeAdjoint:  # fmt: skip
    """The adjoint of runs of this kind; `LoweringError` where it has no native code."""
    return NativeAdjoint(spec, moving, shapes, pulls, gpu, some)


class Memory:
    """What the last runs kept: the transpose of a run with the same inputs, bit for bit, need not run it again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: OrderedDict[int, tuple[Any, Kept]] = OrderedDict()

    def put(self, key: Any, kept: Kept) -> None:
        """Remember, and forget the oldest where all of it takes too much."""
        with self.lock:
            self.entries[id(kept)] = key, kept
            while len(self.entries) > MAX_KEPT_RUNS or (
                len(self.entries) > 1 and sum(each.words for _, each in self.entries.values()) > 2 * MAX_KEPT_WORDS
            ):
                self.entries.popitem(last=False)

    def room(self, key: Any, shape: tuple[int, ...], empty: Callable[..., Words]) -> Words:
        """Memory for rows: that of an earlier run which was transposed, for it is warm, or else new memory."""
        with self.lock:
            for name, (known, kept) in self.entries.items():
                if kept.used and kept.rows.shape == shape and known == key:
                    del self.entries[name]
                    return kept.rows
        return empty(*shape)

    def take(self, key: Any, given: Kept) -> Kept | None:
        """What a run with the inputs of `given` kept; who takes it, puts it back."""
        with self.lock:
            for name, (known, kept) in reversed(self.entries.items()):
                if known == key and kept.belongs_to(given.constants, given.final, given.controls):
                    del self.entries[name]
                    return kept
        return None


MAX_KEPT_RUNS = 64
"""Runs whose carries are remembered."""
memory = Memory()


# Native loops whose rows lie anywhere: the run and the run backwards read and write the same arrays, so that nothing is
# copied, joined or turned between them. What all numbers of one kind have in common is found once.


Numbers = np.ndarray[Any, Any]

CALL_SECONDS = 0.05
"""Seconds that a call should take: a Ctrl-C waits so long."""
FIRST_STEPS = 4096
"""Steps of all lanes together in a call, until one was measured."""


class Rows(NamedTuple):
    """The rows of an array in the order of the steps: the address of the first, and the words from each to the next."""

    address: int
    words: int

    def turned(self, count: int) -> Rows:
        """The same `count` rows from the last to the first."""
        return Rows(self.address + 8 * (count - 1) * self.words, -self.words)

    def after(self, count: int) -> Rows:
        """Rows whose number `count` is the first of these."""
        return Rows(self.address - 8 * count * self.words, self.words)


class Piece(NamedTuple):
    """Some steps of a run: `records` records from number `first` on, with `every` steps before each."""

    first: int
    records: int
    every: int
    step: int  # number of the first step
    begins: bool = True  # whether the first step is the first of its record
    ends: bool = True  # whether the last step is the last of its record

    @property
    def steps(self) -> int:
        return self.records * self.every

    def turned(self, saves: int, steps: int) -> Piece:
        """The same steps, counted from the last one of the run."""
        record, step = saves - self.first - self.records, steps - self.step - self.steps
        return Piece(record, self.records, self.every, step, self.ends, self.begins)

    def split(self, most: int) -> Iterator[Piece]:
        """Parts of at most so many steps: whole records where they fit."""
        if self.steps <= most or self.every <= most:
            whole = max(1, most // max(1, self.every))
            for k in range(0, self.records, whole):
                first, last = k == 0, k + whole >= self.records
                part = Piece(self.first + k, min(whole, self.records - k), self.every, self.step + k * self.every)
                yield part._replace(begins=self.begins or not first, ends=self.ends or not last)
            return
        for k in range(self.records):
            for j in range(0, self.every, most):
                length, step = min(most, self.every - j), self.step + k * self.every + j
                begins, ends = j == 0 and (self.begins or k > 0), j + length == self.every
                yield Piece(self.first + k, 1, length, step, begins, ends and (self.ends or k < self.records - 1))


class StreamLoop:
    """The native code of a problem with streams, for all numbers of its shapes."""

    def __init__(
        self, problem: Problem, controls: Sequence[Stream], kept: Sequence[int] = (), once: bool = False,
        gpu: Gpu | None = None,
    ):  # fmt: skip
        lowered = problem.lower()
        if gpu is not None:
            require_memory(lowered)
        self.gpu, self.xp = gpu, np if gpu is None else gpu.xp
        self.lanes, self.const_axes, self.carry_axes = problem.lanes, problem.const_axes, problem.carry_axes
        most = 1 if gpu is not None or self.lanes is None else llvm.best_width(self.lanes)
        self.width = 1 if lowered.memory else most
        self.stride = lane_stride(self.lanes, most)  # loops with lanes read each other's rows
        streams = Streams(tuple(controls), tuple(kept), self.lanes is not None, once)
        self.lowered, self.layout = (
            lowered,
            replace(make_layout(problem, lowered), controls_vary=False, streams=streams),
        )
        self.workers = None if gpu is not None else llvm.LaneThreads(self.stride, self.width)
        self.captured, self.kept = join_words(lowered.captured, self.xp), len(kept)
        self.carry_specs, self.record_specs = problem.carry_specs, jax.tree.leaves(lowered.record)
        self.pace = CALL_SECONDS * self.stride / FIRST_STEPS  # seconds of a step: a guess, then as a call went
        self.measured = False

    @cached_property
    def function(self) -> Any:
        """The native function, or the kernel, compiled when it is called first."""
        if self.gpu is not None:
            return self.gpu.kernel(self.lowered, self.layout)
        return llvm.native_function(self.lowered, self.layout, self.width)

    def address(self, words: Words) -> int:
        return words.ctypes.data if self.gpu is None else self.gpu.address(words)

    def empty(self, *shape: int) -> Words:
        made: Words = self.xp.empty(shape, np.int64)
        return made

    def constants(self, leaves: Sequence[Numbers]) -> tuple[Words, Words]:
        """The words of the constants that lanes share, and of the others."""
        pairs = list(zip(leaves, self.const_axes, strict=True))
        shared = [leaf for leaf, varies in pairs if not varies]
        varying = [leaf for leaf, varies in pairs if varies]
        return join_words(shared, self.xp), pack(varying, [True] * len(varying), self.stride, self.xp)

    def state(self, leaves: Sequence[Numbers]) -> Words:
        """The words of a carry."""
        given = [self.xp.asarray(leaf, spec.dtype) for leaf, spec in zip(leaves, self.carry_specs, strict=True)]
        if self.lanes is None:
            return join_words(given, self.xp).reshape(-1, 1)
        return pack(given, self.carry_axes, self.stride, self.xp)

    def carry(self, state: Words) -> list[Numbers]:
        """The leaves of the carry that these words are, each with the lanes in front where there are any."""
        leaves, row = [], 0
        for spec in self.carry_specs:
            size = math.prod(spec.shape)
            leaves.append(self._leaf(state[row : row + size], spec))
            row += size
        return leaves

    def _leaf(self, words: Words, spec: Any) -> Numbers:
        data = from_words(words, spec.dtype)
        if self.lanes is None:
            return data[:, 0].reshape(spec.shape)
        return data[:, : self.lanes].T.reshape(self.lanes, *spec.shape)

    def control_rows(self, leaf: Any, varies: bool) -> Words:
        """The words of a control, (steps, scalars, lanes) or, where lanes share it, (steps, scalars, 1)."""
        words: Words = self.xp.ascontiguousarray(to_words(leaf, self.xp))
        if not varies:
            return words.reshape(len(words), -1, 1)
        rows = words.shape[1]
        return pack([words.reshape(len(words), -1)], [True], self.stride, self.xp).reshape(rows, -1, self.stride)

    def room(self, rows: int, before: int = 0) -> tuple[Words, list[Words]]:
        """Memory for so many records in one piece, after so many other words of each lane; and that of each leaf."""
        sizes = [math.prod(spec.shape) for spec in self.record_specs]
        words, made = self.empty((before + rows * sum(sizes)) * self.stride), []
        for size in sizes:
            place, count = before * self.stride, rows * size
            made.append(words[place : place + count * self.stride].reshape(rows, size, self.stride))
            before += count
        return words, made

    def records(self, room: Sequence[Words]) -> list[Numbers]:
        """The leaves of records, (rows, ...) or (lanes, rows, ...)."""
        return [self.unpack(words, spec) for words, spec in zip(room, self.record_specs, strict=True)]

    def unpack(self, words: Words, spec: Any) -> Numbers:
        """The leaf that rows of words are."""
        data = from_words(words, spec.dtype).reshape(len(words), *spec.shape, words.shape[-1])
        return data[..., 0] if self.lanes is None else self.xp.moveaxis(data[..., : self.lanes], -1, 0)

    def run(
        self, constants: tuple[Words, Words], state: Words, controls: Sequence[Rows], records: Sequence[Rows],
        piece: Piece, later: Sequence[Rows] | None = None,
    ) -> None:  # fmt: skip
        """Take the steps of a piece from the state, which they change.

        `controls` are for pieces at whose first step a record begins, `later` for others. `records` end with the rows
        of what is kept.
        """
        words = self.xp.concatenate([constants[0], self.captured])
        shared, varying = self.address(words), self.address(constants[1])
        streams = self.layout.streams
        assert streams is not None
        vary = [stream.varies for stream in streams.controls]
        given, made = self._table(controls, vary), self._table(records, [streams.many] * len(records))
        other = given if later is None else self._table(later, vary)
        function = self.function  # compiled before the clock starts
        most = max(1, int(CALL_SECONDS / self.pace))
        waits = self.gpu is None or not self.measured or piece.steps > most  # else who reads the results waits
        for part in piece.split(most):
            table = given if part.begins else other
            pointers = (shared, varying, *map(self.address, (state, table, made)))
            counts, begin = (0, part.first, part.first + part.records, part.every), time.perf_counter()
            if self.gpu is None:
                assert self.workers is not None
                self.workers.call(function, pointers, counts, part.step)
            else:
                self.gpu.launch(function, self.stride, (*pointers, *counts, self.stride, 0, self.stride, part.step))
                if waits:
                    self.gpu.finish()
            if part.steps and waits:
                self.pace, self.measured = max(1e-10, (time.perf_counter() - begin) / part.steps), True

    def _table(self, arrays: Sequence[Rows], vary: Sequence[bool]) -> Words:
        """The three words of each array that native code reads: lanes lie side by side where they vary."""
        own = zip(arrays, vary, strict=True)
        rows = [(*rows, self.stride if varies else 1) for rows, varies in own]
        table: Words = self.xp.asarray(np.array([*rows, (0, 0, 0)], np.int64))
        return table


def join_words(leaves: Sequence[Any], xp: Any = np) -> Words:
    """The words of leaves, one after the other."""
    parts = [to_words(leaf, xp).ravel() for leaf in leaves]
    joined: Words = xp.concatenate(parts) if parts else xp.empty(0, np.int64)
    return joined
