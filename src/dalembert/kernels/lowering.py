"""From a jaxpr to a scalar program: walk the equations with arrays whose elements are scalar values.

Shapes are static, so every reshape, slice or product becomes numpy indexing of object arrays and leaves no trace in the
program. `rules.RULES` and `indexing.RULES` say what a primitive does; this module walks, and holds the rules of
primitives that contain jaxprs: calls, `while`, `cond`, `scan`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend import core

from . import rules
from . import rules as indexing
from .cache import Lowered
from .ir import BUDGET, Block, Builder, LoweringError, Program, Value
from .passes import optimise

CHEAP = 40
"""Below this many operations both arms of a `cond` are computed and one is selected."""
UNROLL = 1500
"""A `scan` whose unrolled body stays below this many operations is unrolled."""

Array = np.ndarray  # of Values


@dataclass
class Lowering:
    """The state of one lowering: the program under construction and the captured arrays met so far."""

    builder: Builder
    captured: list[np.ndarray] = field(default_factory=list)
    _seen: dict[tuple, Array] = field(default_factory=dict)

    def constant(self, data: Any) -> Array:
        """An array of literals."""
        data = np.asarray(data)
        type = rules.scalar_type(data.dtype)
        return rules.mapped(lambda x: self.builder.const(x, type), data.astype(object))

    def capture(self, data: Any) -> Array:
        """An array the step closes over: a run-time input, unless it is structure (integers, or only 0 and +-1)."""
        data = np.asarray(data)
        type = rules.scalar_type(data.dtype)
        if data.dtype.kind != "f" or np.isin(data, (-1.0, 0.0, 1.0)).all():
            return self.constant(data)
        key = (data.shape, data.tobytes())
        if key not in self._seen:
            inputs = [self.builder.source("input", type, block=self.builder.setup) for _ in range(data.size)]
            self._seen[key] = rules.packed(inputs, data.shape)
            self.captured.append(data)
        return self._seen[key]

    @property
    def captured_inputs(self) -> list[Value]:
        """The scalar inputs that stand for the arrays which the functions captured."""
        return [value for array in self._seen.values() for value in array.ravel()]

    def closed(self, closed: core.ClosedJaxpr, args: Sequence[Array]) -> list[Array]:
        """The outputs of a jaxpr that brings its constants: they become inputs, not literals."""
        return self.jaxpr(closed.jaxpr, [self.capture(const) for const in closed.consts], args)

    def jaxpr(self, jaxpr: Any, consts: Sequence[Array], args: Sequence[Array]) -> list[Array]:
        """The values of a jaxpr's outputs."""
        environment: dict[Any, Array] = dict(zip(jaxpr.constvars, consts, strict=True))
        environment |= zip(jaxpr.invars, args, strict=True)

        def read(atom: Any) -> Array:
            return self.constant(atom.val) if isinstance(atom, core.Literal) else environment[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            for variable, result in zip(equation.outvars, results, strict=True):
                environment[variable] = result
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, args: list[Array]) -> list[Array]:
        """The outputs of one equation, by the rule of its primitive."""
        name, params = equation.primitive.name, equation.params
        shapes = [variable.aval.shape for variable in equation.outvars]
        if name in STRUCTURES:
            try:
                results = STRUCTURES[name](self, params, args)
            except KeyError as missing:
                raise LoweringError(f"this version of JAX writes '{name}' without {missing}") from missing
        elif name in rules.RULES:
            results = rules.RULES[name](self.builder, params, *args)
        elif name in indexing.INDEXING_RULES:
            results = indexing.INDEXING_RULES[name](self.builder, params, shapes[0], *args)
        else:
            raise LoweringError(f"no scalar rule for the primitive '{name}'")
        results = results if isinstance(results, list) else [results]
        return [np.broadcast_to(result, shape) for result, shape in zip(results, shapes, strict=True)]


# ---- primitives that contain jaxprs


def _call(lowering: Lowering, params: dict, args: list[Array]) -> list[Array]:
    inner = next(value for value in params.values() if isinstance(value, core.ClosedJaxpr | core.Jaxpr))
    if isinstance(inner, core.ClosedJaxpr):
        return lowering.closed(inner, args)
    return lowering.jaxpr(inner, [], args)


def _expanded(lowering: Lowering, params: dict, args: list[Array]) -> list[Array]:
    """A primitive of primitives (JAX 0.11 makes custom_root one): lower what it expands to."""
    primitive = params["_prim"]
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in primitive.in_avals_flat]
    closed = jax.make_jaxpr(lambda *flat: primitive.expand(*jax.tree.unflatten(primitive.in_tree, flat)))(*shapes)
    return lowering.closed(closed, args)


def _linear_solve(lowering: Lowering, params: dict, args: list[Array]) -> list[Array]:
    """custom_linear_solve: run `solve` on the right-hand side; the other three functions are for derivatives."""
    lengths = params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    right_hand_side = args[start + lengths.solve + lengths.transpose_solve :]
    return lowering.closed(params["jaxprs"].solve, args[start : start + lengths.solve] + right_hand_side)


def _flat(arrays: Sequence[Array]) -> list[Value]:
    return [value for array in arrays for value in array.ravel()]


def _like(values: Sequence[Value], arrays: Sequence[Array]) -> list[Array]:
    """A flat list of values in the shapes of `arrays`."""
    result, start = [], 0
    for array in arrays:
        result.append(rules.packed(values[start : start + array.size], array.shape))
        start += array.size
    return result


def _loop(lowering: Lowering, carry: list[Array], test: Callable, body: Callable) -> list[Array]:
    """A loop over the scalars of `carry`; if some turn out not to vary, the loop is built anew without them."""
    builder, initial = lowering.builder, _flat(carry)
    varying = list(range(len(initial)))
    while True:
        unchanged: list[int] = []

        def full(params: list[Value]) -> list[Array]:
            every = list(initial)
            for i, param in zip(varying, params, strict=True):
                every[i] = param
            return _like(every, carry)

        def step(params: list[Value]) -> list[Value]:
            following = _flat(body(full(params)))
            unchanged.extend(i for i, param in zip(varying, params, strict=True) if following[i] is param)
            return [following[i] for i in varying]

        results = builder.loop([initial[i] for i in varying], lambda p: test(full(p)), step)
        if not unchanged:
            return full(results)
        varying = [i for i in varying if i not in unchanged]


def _while(lowering: Lowering, params: dict, args: list[Array]) -> list[Array]:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, carry = args[:tests], args[tests : tests + bodies], args[tests + bodies :]
    return _loop(
        lowering,
        carry,
        lambda c: lowering.closed(params["cond_jaxpr"], [*test_consts, *c])[0].item(),
        lambda c: lowering.closed(params["body_jaxpr"], [*body_consts, *c]),
    )


def _cond(lowering: Lowering, params: dict, args: list[Array]) -> list[Array]:
    builder, branches = lowering.builder, params["branches"]
    index, operands = args[0].item(), args[1:]
    last = len(branches) - 1
    if index.op == "const":
        return lowering.closed(branches[min(max(int(index.data), 0), last)], operands)
    cheap = sum(_cost(branch.jaxpr) for branch in branches) <= CHEAP

    def from_branch(i: int) -> list[Array]:
        if i == last:
            return lowering.closed(branches[i], operands)
        here = builder.compare("le", index, builder.const(i)) if index.type == "i64" else builder.invert(index)
        if cheap:
            chosen, rest = lowering.closed(branches[i], operands), from_branch(i + 1)
            return [
                rules.mapped(lambda u, v: builder.select(here, u, v), a, b) for a, b in zip(chosen, rest, strict=True)
            ]
        shapes: list[Array] = []

        def arm(compute: Callable[[], list[Array]]) -> list[Value]:
            shapes[:] = compute()
            return _flat(shapes)

        values = builder.branch(
            here, lambda: arm(lambda: lowering.closed(branches[i], operands)), lambda: arm(lambda: from_branch(i + 1))
        )
        return _like(values, shapes)

    return from_branch(0)


def _scan_sizes(params: dict) -> tuple[int, int]:
    """The numbers of constants and of carries; JAX 0.11 tells them by the groups of the inputs."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].elts
    return len(consts.elts), len(carry.elts)


def _scan(lowering: Lowering, params: dict, args: list[Array]) -> list[Array]:
    (consts, carried), length = _scan_sizes(params), params["length"]
    fixed, carry, xs = args[:consts], args[consts : consts + carried], args[consts + carried :]
    closed, builder = params["jaxpr"], lowering.builder
    collected = len(closed.jaxpr.outvars) - carried
    if not xs and not collected and length * _cost(closed.jaxpr) > UNROLL:
        end, one = builder.const(length), builder.const(1)
        counter = rules.packed([builder.const(0)], ())
        counted = _loop(
            lowering,
            [counter, *carry],
            lambda c: builder.compare("lt", c[0].item(), end),
            lambda c: [rules.packed([builder.add(c[0].item(), one)], ()), *lowering.closed(closed, [*fixed, *c[1:]])],
        )
        return counted[1:]
    ys: list[list[Array]] = []
    for i in reversed(range(length)) if params["reverse"] else range(length):
        results = lowering.closed(closed, [*fixed, *carry, *(x[i : i + 1].reshape(x.shape[1:]) for x in xs)])
        carry = results[:carried]
        ys.append(results[carried:])
    if params["reverse"]:
        ys.reverse()
    stacks = [
        np.stack(items) if length else np.empty((0, *variable.aval.shape), object)
        for items, variable in zip(
            zip(*ys, strict=True) if ys else [()] * collected, closed.jaxpr.outvars[carried:], strict=True
        )
    ]
    return [*carry, *stacks]


STRUCTURES: dict[str, Callable[[Lowering, dict, list[Array]], list[Array]]] = {
    "while": _while,
    "cond": _cond,
    "scan": _scan,
    "custom_linear_solve": _linear_solve,
    "call_hi_primitive": _expanded,
    **dict.fromkeys(
        (
            "jit",
            "pjit",
            "call",
            "closed_call",
            "core_call",
            "remat",
            "remat2",
            "checkpoint",
            "custom_jvp_call",
            "custom_vjp_call",
            "custom_vjp_call_jaxpr",
            "eval_jaxpr",
        ),
        _call,
    ),
}


def _cost(jaxpr: Any) -> int:
    """A rough count of the operations of a jaxpr; loops weigh heavily."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [core_jaxpr for value in equation.params.values() for core_jaxpr in _jaxprs_in(value)]
        if inner:
            total += sum(map(_cost, inner)) * (20 if equation.primitive.name in ("while", "scan") else 1)
        else:
            size = sum(int(np.prod(variable.aval.shape)) for variable in equation.outvars)
            total += size * rules.WEIGHTS.get(equation.primitive.name, 1)
    return total


def _jaxprs_in(value: Any) -> list[Any]:
    found = []
    for item in value if isinstance(value, tuple | list) else (value,):
        if isinstance(item, core.ClosedJaxpr):
            found.append(item.jaxpr)
        elif isinstance(item, core.Jaxpr):
            found.append(item)
    return found


# ---- the whole step


@contextmanager
def _without_collection() -> Iterator[None]:
    """Tracing makes a million objects and hardly a cycle: to look for cycles would take a fifth of its time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@_without_collection()
def lower(
    advance: Callable, observe: Callable, consts: Any, loop: Any, control: Any, *, budget: int = BUDGET
) -> Lowered:
    """The program of a run: advance(consts, loop, control) -> loop, observe(consts, loop) -> record.

    The arguments are pytrees of arrays or ShapeDtypeStructs; only their shapes and dtypes matter.
    """
    stepping, following = jax.make_jaxpr(advance, return_shape=True)(consts, loop, control)
    looking, record = jax.make_jaxpr(observe, return_shape=True)(consts, loop)
    _check_carry(loop, following)
    lowering = Lowering(Builder(budget))
    builder = lowering.builder

    def sources(tree: Any, op: str, block: Block) -> list[Array]:
        arrays = []
        for leaf in jax.tree.leaves(tree):
            type = rules.scalar_type(leaf.dtype)
            arrays.append(rules.packed([builder.source(op, type, block=block) for _ in range(leaf.size)], leaf.shape))
        return arrays

    constants = sources(consts, "input", builder.setup)
    stepped, observed = Block(builder.setup, outer=builder.setup), Block(builder.setup, outer=builder.setup)
    state, controls = sources(loop, "param", stepped), sources(control, "input", stepped)
    seen = sources(loop, "param", observed)
    with builder.inside(stepped):
        next_state = _flat(lowering.closed(stepping, [*constants, *state, *controls]))
    with builder.inside(observed):
        records = _flat(lowering.closed(looking, [*constants, *seen]))
    program = Program(
        [*_flat(constants), *lowering.captured_inputs],
        _flat(controls),
        builder.setup,
        _flat(state),
        stepped,
        next_state,
        _flat(seen),
        observed,
        records,
        builder.notes,
    )
    return Lowered.of(optimise(program), lowering.captured, record)


def _check_carry(before: Any, after: Any) -> None:
    def signature(leaf: Any) -> tuple:
        return tuple(leaf.shape), np.dtype(leaf.dtype)

    structures: list[Any] = [jax.tree.structure(before), jax.tree.structure(after)]
    if structures[0] != structures[1]:
        raise LoweringError("advance returns another structure than the loop it was given")
    for path_and_leaf, new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        path, old = path_and_leaf
        if signature(old) != signature(new):
            name = jax.tree_util.keystr(path)
            raise LoweringError(f"advance changes loop{name} from {signature(old)} to {signature(new)}")
