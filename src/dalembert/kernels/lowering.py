"""From a jaxpr to a scalar program: walk the equations with arrays whose elements are scalar values, then optimise.

Shapes are static, so every reshape, slice or product becomes numpy indexing of object arrays and leaves no trace in
the program. `rules.RULES` says what a primitive does. This module walks the jaxpr, holds the rules of primitives that
contain jaxprs (calls, `while`, `cond`, `scan`), and decides what needs the complete program: shared reciprocals,
fused products, dead code. Calls are written out; in a program that gets long, a routine that is called again is a
function.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from . import rules
from .cache import LoweredProgram
from .ir import (
    F64,
    MAX_OPERATIONS,
    Block,
    Branch,
    Builder,
    Call,
    Function,
    Loop,
    LoweringError,
    OperationsExceeded,
    Program,
    Statement,
    Store,
    Structure,
    Value,
    blocks,
)
from .rules import Arrays, Parameters, ValueArray, flatten_arrays, source_array

MAX_SELECT_COST = 40
"""Operations up to which both arms of a `cond` are computed and one is selected."""
MAX_UNROLLED_COST = 1500
"""Operations up to which a `scan` is unrolled."""
MAX_INLINE_OPERATIONS = 24_000
"""Operations up to which everything is written out: that is faster to run. A longer program has functions and loops."""
_long_program: ContextVar[bool] = ContextVar("long program", default=False)
Result = TypeVar("Result")
ROUTINE = "routine_"
"""How the name of a function begins that is worth a function of its own in a long program: see `as_routine`."""


@dataclass
class Lowering:
    """The state of one lowering: the program under construction and the captured arrays met so far."""

    builder: Builder
    captured: list[np.ndarray[Any, Any]] = field(default_factory=list)
    repeated: frozenset[int] = frozenset()  # the jaxprs that become functions
    functions: dict[tuple[Any, ...], Function] = field(default_factory=dict)
    agreed: dict[int, list[Value | None]] = field(default_factory=dict)  # what all calls of a jaxpr are given
    _seen: dict[tuple[tuple[int, ...], bytes], ValueArray] = field(default_factory=dict)

    def constant(self, data: Any) -> ValueArray:
        """An array of literals."""
        data = np.asarray(data)
        type = rules.scalar_type(data.dtype)
        return rules.map_elements(lambda x: self.builder.const(x, type), data.astype(object))

    def capture(self, data: Any) -> ValueArray:
        """An array the step closes over: a run-time input, unless it is structure (integers, or only 0 and +-1)."""
        data = np.asarray(data)
        if data.dtype.kind != "f" or np.isin(data, (-1.0, 0.0, 1.0)).all():
            return self.constant(data)
        key = (data.shape, data.tobytes())
        if key not in self._seen:
            self._seen[key] = source_array(self.builder, "input", data, self.builder.setup)
            self.captured.append(data)
        return self._seen[key]

    @property
    def captured_inputs(self) -> list[Value]:
        """The scalar inputs that stand for the arrays which the functions captured."""
        return flatten_arrays(list(self._seen.values()))

    def lower_closed(self, closed: core.ClosedJaxpr, args: Sequence[ValueArray]) -> Arrays:
        """The outputs of a jaxpr that brings its constants: they become inputs, not literals."""
        return self.lower_jaxpr(closed.jaxpr, [self.capture(const) for const in closed.consts], args)

    def lower_jaxpr(self, jaxpr: Any, consts: Sequence[ValueArray], args: Sequence[ValueArray]) -> Arrays:
        """The values of a jaxpr's outputs."""
        environment: dict[Any, ValueArray] = dict(zip(jaxpr.constvars, consts, strict=True))
        environment |= zip(jaxpr.invars, args, strict=True)

        def read(atom: Any) -> ValueArray:
            return self.constant(atom.val) if isinstance(atom, core.Literal) else environment[atom]

        for equation in jaxpr.eqns:
            results = self.lower_equation(equation, [read(atom) for atom in equation.invars])
            for variable, result in zip(equation.outvars, results, strict=True):
                environment[variable] = result
        return [read(atom) for atom in jaxpr.outvars]

    def call_function(self, closed: core.ClosedJaxpr, args: Sequence[ValueArray]) -> Arrays:
        """The outputs of a jaxpr that stands in the program once, as a function of the scalars that vary.

        Literals and values of the setup are part of the function while all calls have the same: what follows from them
        is computed before the run.
        """
        builder, scalars = self.builder, flatten_arrays(args)
        before = self.agreed.get(id(closed.jaxpr), scalars)
        fixed = (a is b and a.block is builder.setup for a, b in zip(scalars, before, strict=True))
        same = [value if agrees else None for value, agrees in zip(scalars, fixed, strict=True)]
        varying = [value for value, known in zip(scalars, same, strict=True) if known is None]
        if not varying:
            return self.lower_closed(closed, args)
        self.agreed[id(closed.jaxpr)] = same
        key = (id(closed.jaxpr), *same)
        if key not in self.functions:
            body = Block(builder.setup, outer=builder.setup)
            params = [builder.source("param", value.type, block=body) for value in varying]
            given = iter(params)
            inner = [next(given) if known is None else known for known in same]
            with builder.inside(body):
                values = flatten_arrays(self.lower_closed(closed, _unflatten(inner, args)))
            self.functions[key] = Function(params, body, values)
        shapes = [np.empty(variable.aval.shape, object) for variable in closed.jaxpr.outvars]
        return _unflatten(builder.call(self.functions[key], varying), shapes)

    def lower_equation(self, equation: Any, args: Arrays) -> Arrays:
        """The outputs of one equation, by the rule of its primitive."""
        name, params = equation.primitive.name, equation.params
        shapes = [variable.aval.shape for variable in equation.outvars]
        if name in STRUCTURED_RULES:
            try:
                results = STRUCTURED_RULES[name](self, params, args)
            except KeyError as missing:
                raise LoweringError(f"this version of JAX writes '{name}' without {missing}") from missing
        elif name in rules.RULES:
            results = rules.RULES[name](self.builder, params, *args)
        elif name in rules.INDEXING_RULES:
            results = rules.INDEXING_RULES[name](self.builder, params, shapes[0], *args)
        else:
            raise LoweringError(f"no scalar rule for the primitive '{name}'")
        results = results if isinstance(results, list) else [results]
        return [np.broadcast_to(result, shape) for result, shape in zip(results, shapes, strict=True)]


def _call(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    inner = next(value for value in params.values() if isinstance(value, core.ClosedJaxpr | core.Jaxpr))
    if isinstance(inner, core.ClosedJaxpr):
        repeated = id(inner.jaxpr) in lowering.repeated
        return lowering.call_function(inner, args) if repeated else lowering.lower_closed(inner, args)
    return lowering.lower_jaxpr(inner, [], args)


def _expand(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    """A primitive of primitives (JAX 0.11 makes custom_root one): lower what it expands to."""
    primitive = params["_prim"]
    shapes = [shape_struct(aval.shape, aval.dtype) for aval in primitive.in_avals_flat]
    closed = jax.make_jaxpr(lambda *flat: primitive.expand(*jax.tree.unflatten(primitive.in_tree, flat)))(*shapes)
    return lowering.lower_closed(closed, args)


def _linear_solve(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    """custom_linear_solve: run `solve` on the right-hand side; the other three functions are for derivatives."""
    lengths = params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    right_hand_side = args[start + lengths.solve + lengths.transpose_solve :]
    return lowering.lower_closed(params["jaxprs"].solve, args[start : start + lengths.solve] + right_hand_side)


def _unflatten(values: Sequence[Value], arrays: Sequence[ValueArray]) -> Arrays:
    """A flat list of values in the shapes of `arrays`."""
    result, start = [], 0
    for array in arrays:
        result.append(rules.pack_values(values[start : start + array.size], array.shape))
        start += array.size
    return result


def _loop(
    lowering: Lowering, carry: Arrays, test: Callable[[Arrays], Value], body: Callable[[Arrays], Arrays]
) -> Arrays:
    """A loop over the scalars of `carry`; if some turn out not to vary, the loop is built anew without them."""
    builder, initial = lowering.builder, flatten_arrays(carry)
    varying = list(range(len(initial)))
    while True:
        unchanged: list[int] = []

        def rebuild(params: list[Value]) -> Arrays:
            scalars = list(initial)
            for i, param in zip(varying, params, strict=True):
                scalars[i] = param
            return _unflatten(scalars, carry)

        def step(params: list[Value]) -> list[Value]:
            stepped = flatten_arrays(body(rebuild(params)))
            unchanged.extend(i for i, param in zip(varying, params, strict=True) if stepped[i] is param)
            return [stepped[i] for i in varying]

        results = builder.loop([initial[i] for i in varying], lambda p: test(rebuild(p)), step)
        if not unchanged:
            return rebuild(results)
        varying = [i for i in varying if i not in unchanged]


def _while(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, carry = args[:tests], args[tests : tests + bodies], args[tests + bodies :]
    test = lambda c: lowering.lower_closed(params["cond_jaxpr"], [*test_consts, *c])[0].item()
    return _loop(lowering, carry, test, lambda c: lowering.lower_closed(params["body_jaxpr"], [*body_consts, *c]))


def _cond(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    builder, branches = lowering.builder, params["branches"]
    index, operands = args[0].item(), args[1:]
    last = len(branches) - 1
    if index.op == "const":
        return lowering.lower_closed(branches[min(max(int(index.data), 0), last)], operands)
    cheap = sum(_cost(branch.jaxpr) for branch in branches) <= MAX_SELECT_COST

    def from_branch(i: int) -> Arrays:
        if i == last:
            return lowering.lower_closed(branches[i], operands)
        here = builder.compare("le", index, builder.const(i)) if index.type == "i64" else builder.invert(index)
        if cheap:
            chosen, rest = lowering.lower_closed(branches[i], operands), from_branch(i + 1)
            select = lambda u, v: builder.select(here, u, v)
            return [rules.map_elements(select, u, v) for u, v in zip(chosen, rest, strict=True)]
        shapes: Arrays = []

        def arm(compute: Callable[[], Arrays]) -> list[Value]:
            shapes[:] = compute()
            return flatten_arrays(shapes)

        this = lambda: arm(lambda: lowering.lower_closed(branches[i], operands))
        return _unflatten(builder.branch(here, this, lambda: arm(lambda: from_branch(i + 1))), shapes)

    return from_branch(0)


def _scan_sizes(params: Parameters) -> tuple[int, int]:
    """The numbers of constants and of carries; JAX 0.11 tells them by the groups of the inputs."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].elts
    return len(consts.elts), len(carry.elts)


def _scan(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    (consts, carried), length = _scan_sizes(params), params["length"]
    fixed, carry, xs = args[:consts], args[consts : consts + carried], args[consts + carried :]
    closed, builder = params["jaxpr"], lowering.builder
    if not xs and len(closed.jaxpr.outvars) == carried and length * _cost(closed.jaxpr) > MAX_UNROLLED_COST:
        end, one = builder.const(length), builder.const(1)

        def body(c: Arrays) -> Arrays:
            count = rules.pack_values([builder.add(c[0].item(), one)], ())
            return [count, *lowering.lower_closed(closed, [*fixed, *c[1:]])]

        counter = rules.pack_values([builder.const(0)], ())
        return _loop(lowering, [counter, *carry], lambda c: builder.compare("lt", c[0].item(), end), body)[1:]
    ys: list[Arrays] = []
    for i in reversed(range(length)) if params["reverse"] else range(length):
        results = lowering.lower_closed(closed, [*fixed, *carry, *(x[i : i + 1].reshape(x.shape[1:]) for x in xs)])
        carry = results[:carried]
        ys.append(results[carried:])
    if params["reverse"]:
        ys.reverse()
    if not length:
        return [*carry, *(np.empty((0, *variable.aval.shape), object) for variable in closed.jaxpr.outvars[carried:])]
    return [*carry, *(np.stack(items) for items in zip(*ys, strict=True))]


_CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "eval_jaxpr")
_CALLS = ("jit", "pjit", "call", "closed_call", "core_call", "remat", "remat2", "checkpoint", *_CUSTOM_CALLS)
STRUCTURED_RULES: dict[str, Callable[[Lowering, Parameters, Arrays], Arrays]] = {
    "while": _while,
    "cond": _cond,
    "scan": _scan,
    "custom_linear_solve": _linear_solve,
    "call_hi_primitive": _expand,
    **dict.fromkeys(_CALLS, _call),
}


def _cost(jaxpr: Any) -> int:
    """A rough count of the operations of a jaxpr; loops weigh heavily."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [jaxpr for value in equation.params.values() for jaxpr in _jaxprs_in(value)]
        if inner:
            total += sum(map(_cost, inner)) * (20 if equation.primitive.name in ("while", "scan") else 1)
        else:
            size = sum(int(np.prod(variable.aval.shape)) for variable in equation.outvars)
            total += size * rules.ELEMENT_COSTS.get(equation.primitive.name, 1)
    return total


def _jaxprs_in(value: Any) -> list[Any]:
    items = value if isinstance(value, tuple | list) else (value,)
    closed = [item.jaxpr if isinstance(item, core.ClosedJaxpr) else item for item in items]
    return [item for item in closed if isinstance(item, core.Jaxpr)]


def in_long_program() -> bool:
    """Whether what is being traced must not be written out: a function that can be a loop or a call should be one."""
    return _long_program.get()


def as_routine(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function as one call in what JAX traces; its body stands once in a long program that calls it again.

    It pays for a long function whose calls are at different points: within a function equal operations are shared,
    but not between two calls.
    """

    @wraps(function)
    def routine(*args: Any) -> Result:
        return function(*args)

    routine.__name__ = ROUTINE + function.__name__
    return cast(Callable[..., Result], jax.jit(routine))


def map_rows(function: Callable[..., Any], *arrays: Any) -> Any:
    """The function of every row of the arrays, as rows: all at once, or in a long program by calls of one routine."""
    if not in_long_program():
        return jax.vmap(function)(*arrays)
    routine = as_routine(function)
    rows = [routine(*(array[i] for array in arrays)) for i in range(len(arrays[0]))]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)


def _repeated_routines(*tops: Any) -> frozenset[int]:
    """The jaxprs of routines that are called more than once."""
    known: dict[int, Counter[int]] = {}

    def calls(jaxpr: Any) -> Counter[int]:
        if id(jaxpr) not in known:
            total: Counter[int] = Counter()
            for equation in jaxpr.eqns:
                for inner in (inner for value in equation.params.values() for inner in _jaxprs_in(value)):
                    marked = ROUTINE in str(equation.params.get("name", ""))
                    times = equation.params["length"] if equation.primitive.name == "scan" else 1
                    for found, number in (Counter([id(inner)] if marked else []) + calls(inner)).items():
                        total[found] += number * times
            known[id(jaxpr)] = total
        return known[id(jaxpr)]

    return frozenset(each for each, times in sum(map(calls, tops), Counter()).items() if times > 1)


def shape_struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # JAX does not annotate it


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
    advance: Callable[[Any, Any, Any], Any],
    observe: Callable[[Any, Any], Any],
    consts: Any,
    carry: Any,
    control: Any,
    *,
    budget: int = MAX_OPERATIONS,
) -> LoweredProgram:
    """The program of a run: advance(consts, carry, control) -> carry, observe(consts, carry) -> record.

    The arguments are pytrees of arrays or ShapeDtypeStructs; only their shapes and dtypes matter.
    """
    try:
        return _lower(advance, observe, consts, carry, control, min(budget, MAX_INLINE_OPERATIONS))
    except OperationsExceeded:
        if budget <= MAX_INLINE_OPERATIONS:
            raise
    token, settings = _long_program.set(True), cast(Any, jax.config)
    other = "high" if settings.jax_default_matmul_precision == "highest" else "highest"
    try:  # JAX must not find what it traced for the other kind of program: the precision is part of its keys
        with jax.default_matmul_precision(other):
            return _lower(advance, observe, consts, carry, control, budget)
    finally:
        _long_program.reset(token)


def _lower(
    advance: Callable[[Any, Any, Any], Any],
    observe: Callable[[Any, Any], Any],
    consts: Any,
    carry: Any,
    control: Any,
    budget: int,
) -> LoweredProgram:
    advance_jaxpr, next_carry = jax.make_jaxpr(advance, return_shape=True)(consts, carry, control)
    observe_jaxpr, record = jax.make_jaxpr(observe, return_shape=True)(consts, carry)
    if mismatch := describe_mismatch(carry, next_carry, "carry"):
        raise LoweringError(f"the step changes its carry: {mismatch}")
    routines = _repeated_routines(advance_jaxpr.jaxpr, observe_jaxpr.jaxpr) if in_long_program() else frozenset()
    lowering = Lowering(Builder(budget), repeated=routines)
    builder = lowering.builder

    def sources(tree: Any, op: str, block: Block) -> Arrays:
        return [source_array(builder, op, leaf, block) for leaf in jax.tree.leaves(tree)]

    constants = sources(consts, "input", builder.setup)
    stepping, observing = Block(builder.setup, outer=builder.setup), Block(builder.setup, outer=builder.setup)
    state, controls = sources(carry, "param", stepping), sources(control, "input", stepping)
    observed = sources(carry, "param", observing)
    with builder.inside(stepping):
        next_state = flatten_arrays(lowering.lower_closed(advance_jaxpr, [*constants, *state, *controls]))
    with builder.inside(observing):
        records = flatten_arrays(lowering.lower_closed(observe_jaxpr, [*constants, *observed]))
    program = Program(
        constants=[*flatten_arrays(constants), *lowering.captured_inputs],
        controls=flatten_arrays(controls),
        setup=builder.setup,
        state=flatten_arrays(state),
        advance=stepping,
        next_state=next_state,
        observed=flatten_arrays(observed),
        observe=observing,
        record=records,
        functions=list(lowering.functions.values()),
        parallel_sums=builder.parallel_sums,
        memory=builder.memory,
    )
    optimise(program)
    return LoweredProgram.of(program, lowering.captured, record)


def describe_mismatch(expected: Any, given: Any, name: str) -> str:
    """How the structure, a shape or a type of `given` differs from `expected`; empty where they agree."""
    structures: list[Any] = [jax.tree.structure(expected), jax.tree.structure(given)]
    if structures[0] != structures[1]:
        return f"{name} has the structure {structures[1]}, not {structures[0]}"
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(given), strict=True):
        wanted, found = (f"{np.dtype(leaf.dtype)}{list(leaf.shape)}" for leaf in (old, new))
        if wanted != found:
            return f"{name}{jax.tree_util.keystr(path)} is {found}, not {wanted}"
    return ""


def optimise(program: Program) -> None:
    """Reduce the operations of a program, in place."""
    remove_dead_code(program)
    choose_reciprocals(program)
    fuse_products(program)
    remove_dead_code(program)


def all_blocks(program: Program) -> Iterator[Block]:
    """The blocks of a program with those inside their loops and branches."""
    for top in (program.setup, *(each.body for each in program.functions), program.advance, program.observe):
        yield from blocks(top)


def structures(program: Program) -> Iterator[Structure]:
    """All loops, branches and calls."""
    for block in all_blocks(program):
        yield from (statement for statement in block.statements if isinstance(statement, Structure))


def stored_values(program: Program) -> Iterator[Value]:
    """What goes to memory."""
    for block in all_blocks(program):
        yield from (statement.value for statement in block.statements if isinstance(statement, Store))


def operations(program: Program) -> Iterator[Value]:
    """All operations."""
    for block in all_blocks(program):
        yield from (statement for statement in block.statements if isinstance(statement, Value))


def remove_dead_code(program: Program) -> None:
    """Keep what the next state and the records need, carries of loops included."""
    live = _live_values(program)

    def is_needed(statement: Statement) -> bool:
        if isinstance(statement, Value):
            return statement in live
        return not isinstance(statement, Structure) or any(value in live for value in statement.results)

    for block in all_blocks(program):
        block.statements = list(filter(is_needed, block.statements))
    for structure in structures(program):
        if isinstance(structure, Loop):
            _keep(structure, "initial params next_values results", structure.params, live)
        elif isinstance(structure, Branch):
            _keep(structure, "then_values other_values results", structure.results, live)
        else:
            _keep(structure, "args", structure.function.params, live)
            _keep(structure, "results", structure.function.values, live)
    called = {structure.function for structure in structures(program) if isinstance(structure, Call)}
    program.functions = [function for function in program.functions if function in called]
    for function in program.functions:
        _keep(function, "params", function.params, live)
        _keep(function, "values", function.values, live)


def _keep(structure: Any, names: str, needed: list[Value], live: set[Value]) -> None:
    """Keep the entries of some lists of a structure whose `needed` value is live."""
    places = [i for i, value in enumerate(needed) if value in live]
    for name in names.split():
        setattr(structure, name, [getattr(structure, name)[i] for i in places])


def _live_values(program: Program) -> set[Value]:
    origins: dict[Value, tuple[Value, ...]] = {}
    for structure in structures(program):
        if isinstance(structure, Loop):
            for i, result in enumerate(structure.results):
                needs = (structure.params[i], structure.initial[i], structure.next_values[i], structure.condition)
                origins[result] = origins[structure.params[i]] = needs
        elif isinstance(structure, Call):
            for param, arg in zip(structure.function.params, structure.args, strict=True):
                origins[param] = (*origins.get(param, ()), arg)
            origins |= {r: (value,) for r, value in zip(structure.results, structure.function.values, strict=True)}
        else:
            for i, result in enumerate(structure.results):
                origins[result] = (structure.then_values[i], structure.other_values[i], structure.condition)
    live: set[Value] = set()
    waiting = [*program.next_state, *program.record, *stored_values(program)]
    while waiting:
        value = waiting.pop()
        if value not in live:
            live.add(value)
            waiting.extend(value.args)
            waiting.extend(origins.get(value, ()))
    return live


def choose_reciprocals(program: Program) -> None:
    """a/b becomes a * (1/b) where 1/b is needed anyway, shared by several quotients, or made outside the loop."""
    uses = Counter(arg for value in operations(program) for arg in value.args)
    uses.update(_structural_uses(program))
    for value in operations(program):
        if value.op == "quotient":
            a, b, reciprocal = value.args
            shared = uses[reciprocal] > 1 or reciprocal.block is not value.block
            value.op, value.args = ("mul", (a, reciprocal)) if shared else ("div", (a, b))


def _structural_uses(program: Program) -> Iterator[Value]:
    yield from (*program.next_state, *program.record, *stored_values(program))
    yield from (value for function in program.functions for value in function.values)
    for structure in structures(program):
        if isinstance(structure, Call):
            yield from structure.args
            continue
        yield structure.condition
        if isinstance(structure, Loop):
            yield from (*structure.initial, *structure.next_values)
        else:
            yield from (*structure.then_values, *structure.other_values)


def fuse_products(program: Program) -> None:
    """a*b + c becomes fma(a, b, c) where that makes the product disappear."""
    users: dict[Value, list[Value]] = defaultdict(list)
    for value in operations(program):
        for arg in value.args:
            users[arg].append(value)
    roots = set(_structural_uses(program))

    def is_sum(value: Value, block: Block) -> bool:
        return value.op in ("add", "sub") and value.block is block and value.args[0] is not value.args[1]

    for block in all_blocks(program):
        fusable = {
            value
            for value in block.statements
            if isinstance(value, Value) and value.op == "mul" and value.type == F64 and value not in roots
            if all(is_sum(user, block) for user in users[value])
        }
        block.statements = list(_fuse_block(block, fusable))


def _fuse_block(block: Block, fusable: set[Value]) -> Iterator[Statement]:
    negated: dict[Value, Value] = {}
    for statement in block.statements:
        if isinstance(statement, Value) and statement.op in ("add", "sub") and statement.type == F64:
            a, b = statement.args
            if a in fusable or b in fusable:
                (x, y), other = (b.args, a) if b in fusable else (a.args, b)
                if statement.op == "sub":  # a - x y = (-x) y + a, and x y - b = x y + (-b)
                    sign = x if b in fusable else b
                    if sign not in negated:
                        negated[sign] = Value("neg", F64, (sign,), None, block)
                        yield negated[sign]
                    x, other = (negated[x], other) if b in fusable else (x, negated[b])
                statement.op, statement.args = "fma", (x, y, other)
        yield statement
