"""From a jaxpr to a scalar program: walk the equations with arrays whose elements are scalar values, then optimise.

Shapes are static, so every reshape, slice or product becomes numpy indexing of object arrays and leaves no trace in
the program. `rules.RULES` says what a primitive does. This module walks the jaxpr, holds the rules of primitives that
contain jaxprs (calls, `while`, `cond`, `scan`), and decides what needs the complete program: shared reciprocals,
fused products, dead code. Calls are written out; in a program that gets long, a routine that is called again is a
function.
"""

from __future__ import annotations

import gc
import itertools
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce, wraps
from operator import or_
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import partial_eval

from . import elementary, rules
from .cache import LoweredProgram
from .ir import (
    BOOL,
    COMMUTATIVE,
    F64,
    I64,
    MAX_OPERATIONS,
    Block,
    Branch,
    Builder,
    Call,
    Function,
    Look,
    Loop,
    LoweringError,
    OperationsExceeded,
    Program,
    Repeat,
    Statement,
    Store,
    Structure,
    Value,
    blocks,
    find_terms,
    inner_blocks,
    least_terms,
    used_values,
)
from .linear_algebra import all_columns, columns_in_turn, eliminate_in_loop, elimination_rule
from .rules import Arrays, Parameters, ValueArray, flatten_arrays, source_array

MAX_SELECT_COST = 40
"""Operations up to which both arms of a `cond` are computed and one is selected."""
MAX_UNROLLED_COST = 1500
"""Operations up to which a `scan` is unrolled."""
MAX_INLINE_OPERATIONS = 24_000
"""Operations up to which everything is written out: that is faster to run. A longer program has functions and loops."""
MAX_DERIVED_OPERATIONS = 9300
"""Operations up to which equations with their Jacobian are written out: beyond it a loop over columns is faster."""
Result = TypeVar("Result")
MIN_LOOPED_ROWS = 12, 16
"""Unknowns from which on an elimination is a loop in a long program: in an arm that is rarely taken, and elsewhere.
The loop takes 4 to 7 times as long."""
LONG_FOR_CERTAIN = 25
"""How many times too long a rough count must find a program, so that writing it out is not even tried."""
ROUTINE = "routine_"
"""How the name of a function begins that is worth a function of its own in a long program: see `as_routine`."""


EQUATIONS = "solved_equations"
"""Part of the name of a function whose identities are looked for, with those of its derivatives."""
MAX_TERMS = 16
"""Terms up to which a polynomial is known as one."""
Factors = tuple[int, ...]  # the numbers of atoms, in order
Terms = dict[Factors, float]  # a polynomial: coefficients by products of atoms
MAX_FRACTION_TERMS = 800
"""Terms of the longest polynomial that equations with denominators may become."""
SUMS = ("add", "sub")


def writing_limits() -> tuple[int, ...]:
    """What decides how a program is written, beside what it computes."""
    inline = MAX_INLINE_OPERATIONS, MAX_DERIVED_OPERATIONS
    return MAX_SELECT_COST, MAX_UNROLLED_COST, *inline, *MIN_LOOPED_ROWS, LONG_FOR_CERTAIN


class PolynomialBuilder(Builder):
    """A builder that knows its sums and products as polynomials, with sin^2 = 1 - cos^2: equal ones are one value.

    So w (1 + y^2) - y (y w) is w. It looks for this in equations that are solved to round-off alone: what is equal on
    paper may be rounded otherwise, and elementary functions live on that. No product becomes a sum, in which small
    numbers would be what large ones leave: a^2 - b^2 for (a - b) (a + b), 1 - cos^2 for sin^2.
    """

    def __init__(self, budget: int):
        super().__init__(budget)
        self.terms: dict[Value, Terms] = {}
        self.made: dict[frozenset[Any], list[Value]] = defaultdict(list)
        self.atoms: list[Value] = []
        self.circles: dict[int, int] = {}  # the cosine that belongs to a sine
        self.turned: dict[tuple[str, Value], Value] = {}  # sines and cosines
        self.looks = False
        self.solved: set[Value] = set()  # what was written while it looked

    def polynomial(self, value: Value) -> Terms:
        """Coefficients by products of atoms; what is no short sum or product of others is an atom."""
        if value.op == "const":
            return {(): value.data} if value.data else {}
        if value.op == "neg":
            return {factors: -c for factors, c in self.polynomial(value.args[0]).items()}
        if value not in self.terms:
            self.terms[value] = {(len(self.atoms),): 1.0}
            self.made[frozenset(self.terms[value].items())].append(value)
            self.atoms.append(value)
        return self.terms[value]

    def emit(self, op: str, type: str, *args: Value) -> Value:
        value = self._find(op, type, *args)
        if self.looks:
            self.solved.add(value)
        return value

    def _find(self, op: str, type: str, *args: Value) -> Value:
        if not self.looks or type != F64 or op not in ("add", "sub", "mul") or all(a.op == "const" for a in args):
            return super().emit(op, type, *args)
        first, second = map(self.polynomial, args)
        if self.circles:  # those that are known by now
            first, second = (self._times(each, {(): 1.0}) for each in (first, second))
        long = (len(first) * len(second) if op == "mul" else len(first) + len(second)) > MAX_TERMS
        if long or not all(map(math.isfinite, (*first.values(), *second.values()))):
            return super().emit(op, type, *args)
        total = self._times(first, second) if op == "mul" else add_terms(first, second, -1.0 if op == "sub" else 1.0)
        key, opposite = (frozenset((factors, s * c) for factors, c in total.items()) for s in (1.0, -1.0))
        for same, negative in ((key, False), (opposite, True)):
            known = filter(self.sees, self.made.get(same, ()))
            if (found := next((each for each in known if op != "mul" or each.op not in SUMS), None)) is not None:
                return self.neg(found) if negative else found
        if op != "mul" and len(total) <= min(2, len(first) + len(second) - 1):
            return self._write(total)
        value = super().emit(op, type, *args)
        self.terms[value] = total
        self.made[key].append(value)
        return value

    def sees(self, value: Value) -> bool:
        """Whether a value can be used in the block that is written."""
        block: Block | None = self.block
        while block is not None and block is not value.block:
            block = block.parent
        return block is not None

    @contextmanager
    def looking(self, looks: bool) -> Iterator[None]:
        before, self.looks = self.looks, looks
        try:
            yield
        finally:
            self.looks = before

    def note_turn(self, name: str, angle: Value, value: Value) -> None:
        """Note a sine or cosine; those of literals are numbers."""
        self.turned[name, angle] = value
        sine, cosine = (self.turned.get((each, angle)) for each in ("sin", "cos"))
        if sine is None or cosine is None or "const" in (sine.op, cosine.op):
            return
        for each in (sine, cosine):
            self.polynomial(each)
        self.circles[self.atoms.index(sine)] = self.atoms.index(cosine)

    def _times(self, first: Terms, second: Terms) -> Terms:
        total: Terms = {}
        for (one, c), (other, d) in itertools.product(first.items(), second.items()):
            total = add_terms(total, self._reduced(tuple(sorted((*one, *other))), c * d))
        return total

    def _reduced(self, factors: tuple[int, ...], c: float) -> Terms:
        for sine, after in itertools.pairwise(factors):
            if sine == after and sine in self.circles:
                rest = list(factors)
                rest.remove(sine)
                rest.remove(sine)
                cosine = self.circles[sine]
                square = self._reduced(tuple(sorted((*rest, cosine, cosine))), -c)
                return add_terms(self._reduced(tuple(rest), c), square)
        return {factors: c}

    def _write(self, terms: Terms) -> Value:
        """The value of a polynomial of one or two terms; of c - c cos^2 it is c sin^2."""
        for sine, cosine in self.circles.items():
            for factors, c in terms.items():
                if terms.get(tuple(sorted((*factors, cosine, cosine)))) == -c:
                    terms = {tuple(sorted((*factors, sine, sine))): c}
                    break
        value = self.const(0.0)
        for factors, c in terms.items():
            product = self.const(1.0)
            for atom in factors:
                product = self.mul(product, self.atoms[atom])
            value = self.add(value, self.mul(product, self.const(c)))
        return value


@dataclass
class Lowering:
    """The state of one lowering: the program under construction and the captured arrays met so far."""

    builder: Builder
    captured: list[np.ndarray[Any, Any]] = field(default_factory=list)
    routines: Routines | None = None  # of a long program, which must not be written out
    functions: dict[int, tuple[Function, list[Value | None]]] = field(default_factory=dict)
    """The function of a jaxpr, with the scalars that all its calls are given."""
    at_once: dict[int, Any] = field(default_factory=dict)  # Jacobians written out, by their functions
    _seen: dict[tuple[tuple[int, ...], bytes], ValueArray] = field(default_factory=dict)

    def constant(self, data: Any) -> ValueArray:
        """An array of literals."""
        data = np.asarray(data)
        if data.dtype == jax.dtypes.float0:
            data = np.zeros(data.shape, bool)
        type = rules.scalar_type(data.dtype)
        if not data.ndim:
            return rules.pack_values([self.builder.const(data.item(), type)], ())
        return rules.map_elements(lambda x: self.builder.const(x, type), data.astype(object))

    def capture(self, data: Any) -> ValueArray:
        """An array the step closes over: a run-time input, unless it is structure (integers, or only 0 and +-1)."""
        if isinstance(data, jax.core.Tracer):
            raise LoweringError(
                f"a function closes over an array {data.shape} that JAX traces (jit, grad, vmap): make it a parameter"
            )
        data = np.asarray(data)
        if _is_structure(data):
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

    def call_function(self, name: int, closed: core.ClosedJaxpr, args: Sequence[ValueArray]) -> Arrays:
        """The outputs of a jaxpr that stands in the program once, as a function of the scalars that vary.

        Literals and values of the setup are part of the function while all calls have the same: what follows from them
        is computed before the run. An output that is one of them, or an argument, is known without the call.
        """
        builder, scalars = self.builder, flatten_arrays(args)
        function, before = self.functions.get(name, (None, scalars))
        fixed = (a is b and a.block is builder.setup for a, b in zip(scalars, before, strict=True))
        same = [value if agrees else None for value, agrees in zip(scalars, fixed, strict=True)]
        varying = [value for value, known in zip(scalars, same, strict=True) if known is None]
        if all(value.block is builder.setup for value in varying):  # it is computed once, before the run
            return self.lower_closed(closed, args)
        if function is None or same != before:
            if function is not None:
                builder.discard(function.body)
            body = Block(builder.setup, outer=builder.setup)
            params = [builder.source("param", value.type, block=body) for value in varying]
            given = iter(params)
            inner = [next(given) if known is None else known for known in same]
            with builder.inside(body):
                values = flatten_arrays(self.lower_closed(closed, _unflatten(inner, args)))
            narrow, function = function, Function(params, body, values)
            self.functions[name] = function, same
            for call in narrow.calls if narrow is not None else []:  # they take the wider one too
                old = iter(call.args)
                wide = [next(old) if known is None else known for known in before]
                call.function, call.args = function, [v for v, known in zip(wide, same, strict=True) if known is None]
                function.calls.append(call)
        known = dict(zip(function.params, varying, strict=True))
        outputs = zip(function.values, builder.call(function, varying), strict=True)
        values = [value if value.block is builder.setup else known.get(value, result) for value, result in outputs]
        return _unflatten(values, [np.empty(variable.aval.shape, object) for variable in closed.jaxpr.outvars])

    def functions_in_order(self) -> list[Function]:
        """The functions, each after those that it calls."""
        ordered: dict[Function, None] = {}

        def visit(function: Function) -> None:
            for statement in (statement for block in blocks(function.body) for statement in block.statements):
                if isinstance(statement, Call) and statement.function not in ordered:
                    visit(statement.function)
            ordered[function] = None

        for function, _ in self.functions.values():
            visit(function)
        return list(ordered)

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
            results = self.apply_rule(name, params, args)
        elif name in rules.INDEXING_RULES:
            results = rules.INDEXING_RULES[name](self.builder, params, shapes[0], *args)
        else:
            raise LoweringError(f"no scalar rule for the primitive '{name}'")
        results = results if isinstance(results, list) else [results]
        pairs = zip(results, shapes, strict=True)
        return [r if getattr(r, "shape", None) == shape else np.broadcast_to(r, shape) for r, shape in pairs]

    def apply_rule(self, name: str, params: Parameters, args: Arrays) -> Any:
        """What a primitive of `rules.RULES` makes of its arguments; no identities are looked for inside functions."""
        if name not in elementary.FUNCTIONS or not isinstance(self.builder, PolynomialBuilder):
            return rules.RULES[name](self.builder, params, *args)
        with self.builder.looking(False):
            results = rules.RULES[name](self.builder, params, *args)
        if name in ("sin", "cos"):
            for angle, value in zip(args[0].ravel(), results.ravel(), strict=True):
                self.builder.note_turn(name, angle, value)
        return results


def _call(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    inner = next(value for value in params.values() if isinstance(value, core.ClosedJaxpr | core.Jaxpr))
    if EQUATIONS in str(params.get("name", "")) and isinstance(lowering.builder, PolynomialBuilder):
        with lowering.builder.looking(True):
            return _call(lowering, params | {"name": ""}, args)
    builder = lowering.builder
    if not isinstance(builder, Builder):  # a series, which is another arithmetic
        return _write_call(lowering, inner, args)
    key = (inner, getattr(builder, "looks", False), *(value for array in args for value in array.ravel()))
    if (found := builder.block.find(key)) is None:  # systems are asked for the same again and again
        found = builder.block.table[key] = _write_call(lowering, inner, args)
    return list(found)


def _write_call(lowering: Lowering, inner: Any, args: Arrays) -> Arrays:
    if isinstance(inner, core.ClosedJaxpr):
        name = lowering.routines.name(inner.jaxpr) if lowering.routines else None
        if lowering.routines and name in lowering.routines.repeated:
            return lowering.call_function(name, inner, args)
        return lowering.lower_closed(inner, args)
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
            unchanged.extend(i for i, param in zip(varying, params, strict=True) if stepped[i] in (param, initial[i]))
            return [stepped[i] for i in varying]

        results = builder.loop([initial[i] for i in varying], lambda p: test(rebuild(p)), step)
        if not unchanged:
            return rebuild(results)
        builder.discard(*inner_blocks(builder.block.statements.pop()))
        varying = [i for i in varying if i not in unchanged]


def _while(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    test_consts, body_consts, carry = args[:tests], args[tests : tests + bodies], args[tests + bodies :]

    def goes_on(carry: Arrays) -> ValueArray:
        return lowering.lower_closed(params["cond_jaxpr"], [*test_consts, *carry])[0]

    def body(carry: Arrays) -> Arrays:
        after = lowering.lower_closed(params["body_jaxpr"], [*body_consts, *carry])
        return after if not lanes else list(map(partial(_choose, lowering.builder, goes_on(carry)), after, carry))

    def test(carry: Arrays) -> Value:
        some: Value = reduce(partial(lowering.builder.logic, "or"), goes_on(carry).flat)
        return some

    lanes = params["cond_jaxpr"].out_avals[0].ndim  # under jax.vmap each lane ends by itself
    return _loop(lowering, carry, test, body)


def _choose(builder: Builder, yes: ValueArray, new: ValueArray, old: ValueArray) -> ValueArray:
    """The rows of `new` for which `yes` is true, and of `old` for the others."""
    return rules.map_elements(builder.select, yes.reshape(yes.shape + (1,) * (new.ndim - yes.ndim)), new, old)


def _cond(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    builder, branches = lowering.builder, params["branches"]
    index, operands = args[0].item(), args[1:]
    last = len(branches) - 1
    if index.op == "const":
        return lowering.lower_closed(branches[min(max(int(index.data), 0), last)], operands)
    costs = [_cost(branch.jaxpr) for branch in branches]
    cheap, usual = sum(costs) <= MAX_SELECT_COST, last == 1 and min(costs) == 0

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
        return _unflatten(builder.branch(here, this, lambda: arm(lambda: from_branch(i + 1)), usual), shapes)

    return from_branch(0)


def _scan_sizes(params: Parameters) -> tuple[int, int]:
    """The numbers of constants and of carries; from JAX 0.11 on the groups of the inputs, which may nest, tell them."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = (len(list(group)) for group in params["ft_in"].unpack())
    return consts, carry


def _is_looped(params: Parameters, long: bool) -> bool:
    """Whether a scan is a loop in the program: one without rows if it costs too much, any that can in a long one."""
    closed = params["jaxpr"]
    rows = len(closed.jaxpr.invars) > sum(_scan_sizes(params)) or len(closed.jaxpr.outvars) > _scan_sizes(params)[1]
    if rows and not long:
        return False
    cost = _count_written_out(closed.jaxpr, {}) if rows else _cost(closed.jaxpr)
    return bool(params["length"] * cost > MAX_UNROLLED_COST)


def _scan(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    (consts, carried), length = _scan_sizes(params), params["length"]
    fixed, carry, xs = args[:consts], args[consts : consts + carried], args[consts + carried :]
    closed, builder = params["jaxpr"], lowering.builder
    outputs = [variable.aval for variable in closed.jaxpr.outvars[carried:]]
    if _is_looped(params, lowering.routines is not None):
        end, one = builder.const(length), builder.const(1)

        def body(c: Arrays) -> Arrays:
            count, before, rows = c[0].item(), c[1 : 1 + carried], c[1 + carried :]
            place = builder.sub(builder.const(length - 1), count) if params["reverse"] else count
            now = rules.pack_values([builder.compare("eq", place, builder.const(i)) for i in range(length)], (length,))

            def pick(x: ValueArray) -> ValueArray:
                """The row of this turn."""
                each = x.reshape(length, math.prod(x.shape[1:])).T
                return rules.pack_values([rules.select_element(builder, one, [place]) for one in each], x.shape[1:])

            def put(old: ValueArray, new: ValueArray) -> ValueArray:
                """The rows with that of this turn."""
                return rules.map_elements(builder.select, now.reshape((length,) + (1,) * new.ndim), new[None], old)

            results = lowering.lower_closed(closed, [*fixed, *before, *map(pick, xs)])
            after = [put(old, new) for old, new in zip(rows, results[carried:], strict=True)]
            return [rules.pack_values([builder.add(count, one)], ()), *results[:carried], *after]

        counter = rules.pack_values([builder.const(0)], ())
        empty = [lowering.constant(np.zeros((length, *aval.shape), aval.dtype)) for aval in outputs]
        test = lambda c: builder.compare("lt", c[0].item(), end)
        return _loop(lowering, [counter, *carry, *empty], test, body)[1:]
    ys: list[Arrays] = []
    for i in reversed(range(length)) if params["reverse"] else range(length):
        results = lowering.lower_closed(closed, [*fixed, *carry, *(x[i : i + 1].reshape(x.shape[1:]) for x in xs)])
        carry = results[:carried]
        ys.append(results[carried:])
    if params["reverse"]:
        ys.reverse()
    if not length:
        return [*carry, *(np.empty((0, *aval.shape), object) for aval in outputs)]
    return [*carry, *(np.stack(items) for items in zip(*ys, strict=True))]


def _columns(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    if lowering.routines is not None:
        return lowering.lower_closed(lowering.routines.in_turn(params["function"]), args)
    key, function = id(params["function"]), params["function"]
    if key not in lowering.at_once:
        own = isinstance(lowering.builder, Builder)  # and no series, which is another arithmetic
        scalar = derive_columns(function, lowering.builder.budget) if own else None
        if (
            scalar
            and len(scalar.statements) > MAX_DERIVED_OPERATIONS * (lowering.builder.budget // MAX_INLINE_OPERATIONS)
            and lowering.builder.budget >= MAX_INLINE_OPERATIONS
        ):
            raise OperationsExceeded(f"a Jacobian of {len(scalar.statements)} operations")
        lowering.at_once[key] = scalar or _expand_columns(all_columns, function)
    known = lowering.at_once[key]
    return known.write(lowering, args) if isinstance(known, ScalarFunction) else lowering.lower_closed(known, args)


def _expand_columns(form: Callable[..., Any], function: core.ClosedJaxpr) -> core.ClosedJaxpr:
    shapes = [shape_struct(aval.shape, aval.dtype) for aval in function.in_avals]
    return jax.make_jaxpr(partial(form, function))(*shapes)


def _eliminate(lowering: Lowering, params: Parameters, args: Arrays) -> Arrays:
    matrix, rhs = args
    literal = all(value.op == "const" for value in matrix.ravel())
    if lowering.routines is None or literal or len(matrix) < MIN_LOOPED_ROWS[not lowering.builder.block.is_rare]:
        return elimination_rule(lowering.builder, params, matrix, rhs)
    return eliminate_in_loop(lowering.builder, matrix, rhs)


RULED = ("stop_gradient", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
"""What may have another derivative than that of what it computes."""
_CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "eval_jaxpr")
_CALLS = ("jit", "pjit", "call", "closed_call", "core_call", "remat", "remat2", "checkpoint", *_CUSTOM_CALLS)
STRUCTURED_RULES: dict[str, Callable[[Lowering, Parameters, Arrays], Arrays]] = {
    "while": _while,
    "cond": _cond,
    "scan": _scan,
    "eliminate": _eliminate,
    "columns": _columns,
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


def _count_written_out(jaxpr: Any, known: dict[int, int]) -> int:
    """A rough count of the operations of a jaxpr, were everything written out: more than remain, by up to 20 times."""
    if id(jaxpr) not in known:
        total = 0
        for equation in jaxpr.eqns:
            name, params, sizes = equation.primitive.name, equation.params, [v.aval.size for v in equation.outvars]
            if inner := [jaxpr for value in params.values() for jaxpr in _jaxprs_in(value)]:
                times = params["length"] if name == "scan" and not _is_looped(params, long=False) else 1
                times = 1 + sizes[0] if name == "columns" else times
                total += times * sum(_count_written_out(each, known) for each in inner)
            elif name == "eliminate":
                rows, columns = equation.invars[1].aval.shape
                total += 2 * rows * rows * (rows + columns)
            elif name == "dot_general":
                total += math.isqrt(sizes[0] * math.prod(v.aval.size for v in equation.invars))
            else:
                total += sum(sizes) * rules.ELEMENT_COSTS.get(name, 1)
        known[id(jaxpr)] = total
    return known[id(jaxpr)]


def count_operations(closed: core.ClosedJaxpr) -> int:
    """A rough count of the operations of a function: more than remain."""
    return _count_written_out(closed.jaxpr, {})


def count_equations(jaxpr: Any) -> int:
    """The equations of a jaxpr as XLA gets it: calls and bodies of loops inside, an elimination written out."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [jaxpr for value in equation.params.values() for jaxpr in _jaxprs_in(value)]
        if equation.primitive.name == "eliminate":
            total += 6 * equation.invars[0].aval.size
        elif inner:
            total += sum(map(count_equations, inner)) * (3 if equation.primitive.name == "columns" else 1)
        else:
            total += 1
    return total


def _jaxprs_in(value: Any) -> list[Any]:
    if value is None or type(value) in (int, bool, str):  # most parameters
        return []
    items = value if isinstance(value, tuple | list) else (value,)
    closed = [item.jaxpr if isinstance(item, core.ClosedJaxpr) else item for item in items]
    return [item for item in closed if isinstance(item, core.Jaxpr)]


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
    """The function of every row of the arrays, as rows: traced once."""
    of_row = jax.checkpoint(function, prevent_cse=False)
    return jax.lax.scan(lambda _, row: (None, of_row(*row)), None, arrays)[1]


# Fewer equations for the same function: JAX takes its derivatives in a part of the time.

MAX_SIMPLE_OPERATIONS = 1000
"""Scalar operations up to which a function is written by them."""
MIN_EQUATIONS = 100
"""Equations from which on it is worth looking."""
SCALAR_TYPES = {F64: np.float64, I64: np.int64, BOOL: np.bool_}
SCALAR_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "neg": lax.neg, "sqrt": lax.sqrt, "abs": lax.abs,
    "min": lax.min, "max": lax.max, "lt": lax.lt, "le": lax.le, "eq": lax.eq, "ne": lax.ne, "not": lax.bitwise_not,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "select": lax.select,
    "quotient": lambda a, b, _: lax.div(a, b),
}  # fmt: skip
_KEPT = ("while", "cond", "scan", "eliminate", "columns", "custom_linear_solve", "custom_jvp_call", "custom_vjp_call")


class _Kept(NamedTuple):
    """An equation that stays as it is, between the scalar operations."""

    equation: Any
    args: Arrays
    results: Arrays


class _Scalars(Lowering):
    """A lowering that keeps what has derivatives of its own, and elementary functions."""

    elements = frozenset(elementary.FUNCTIONS)

    def lower_equation(self, equation: Any, args: Arrays) -> Arrays:
        if equation.primitive.name in _KEPT:
            return self._keep(equation, args, [variable.aval for variable in equation.outvars])
        if equation.primitive.name in self.elements and equation.outvars[0].aval.dtype == np.float64:
            shape = equation.outvars[0].aval.shape
            found = rules.map_elements(partial(self._keep_element, equation), *args)
            return [np.broadcast_to(found, shape)]
        return super().lower_equation(equation, args)

    def _keep(self, equation: Any, args: Arrays, shapes: Sequence[Any]) -> Arrays:
        results = [source_array(self.builder, "kept", shape) for shape in shapes]
        cast(Any, self.builder.block.statements).append(_Kept(equation, args, results))
        return results

    def _keep_element(self, equation: Any, *scalars: Value) -> Value:
        key = equation.primitive.name, "kept", equation.params.get("y"), scalars
        table = self.builder.block.table
        if key not in table:
            args = [rules.pack_values([value], ()) for value in scalars]
            table[key] = self._keep(equation, args, [shape_struct((), np.float64)])[0].item()
        return cast(Value, table[key])

    def capture(self, data: Any) -> ValueArray:
        if isinstance(data, jax.core.Tracer):
            raise LoweringError("a constant that JAX traces")
        return self.constant(data)


def _is_structure(data: Any) -> bool:
    """Whether something is part of what a program does, and not one of its inputs: integers, or only 0 and +-1."""
    if isinstance(data, jax.core.Tracer | jax.core.ShapedArray):
        return False
    data = np.asarray(data)
    return bool(data.dtype.kind != "f" or np.isin(data, (-1.0, 0.0, 1.0)).all())


def _needed_statements(statements: Sequence[Any], outputs: Arrays) -> tuple[list[Any], set[Value]]:
    """The statements without those that the outputs do not need, and all values that these read."""
    needed, kept = set(flatten_arrays(outputs)), []
    for each in reversed(statements):
        made = flatten_arrays(each.results) if isinstance(each, _Kept) else [each]
        if not needed.isdisjoint(made):
            kept.append(each)
            needed.update(flatten_arrays(each.args) if isinstance(each, _Kept) else each.args)
    return kept[::-1], needed


def simplify(closed: core.ClosedJaxpr, solved: bool = False) -> core.ClosedJaxpr:
    """The same function with at most half the equations, or as it was given.

    What is vector calculus in three dimensions for a person is slices, products with ones and sums with zeros for JAX:
    written by scalars, with equal ones shared and constants folded, as a program is, it is a fraction of that.
    `solved`: only zeros are looked for, so that a function may be multiplied by its denominators, if it is shorter so.
    """
    count, solved = count_calls(closed.jaxpr), solved and _divides(closed.jaxpr)
    if count < MIN_EQUATIONS and not solved:
        return closed
    scalars = _Scalars(Builder(MAX_SIMPLE_OPERATIONS if solved else min(MAX_SIMPLE_OPERATIONS, count)))
    try:
        inputs = [
            scalars.constant(const) if _is_structure(const) else source_array(scalars.builder, "input", const)
            for const in (*closed.consts, *(variable.aval for variable in closed.jaxpr.invars))
        ]
        outputs = scalars.lower_jaxpr(closed.jaxpr, inputs[: len(closed.consts)], inputs[len(closed.consts) :])
    except LoweringError:
        return closed
    cleared = clear_denominators(scalars.builder, inputs[len(closed.consts)], outputs[0]) if solved else None
    outputs = outputs if cleared is None else [cleared]
    statements: list[Any] = list(scalars.builder.block.statements)
    if any(isinstance(each, Value) and each.op not in SCALAR_OPERATIONS for each in statements):
        return closed
    kept, needed = _needed_statements(statements, outputs)

    def evaluate(*args: Any) -> list[Any]:
        known: dict[Value, Any] = {}

        def spread(arrays: Sequence[ValueArray], values: Sequence[Any]) -> None:
            for array, value in zip(arrays, values, strict=True):
                for place, scalar in zip(np.ndindex(array.shape), array.ravel(), strict=True):
                    if scalar in needed:
                        one = lax.slice(value, place, [i + 1 for i in place]) if place else value
                        known[scalar] = lax.squeeze(one, range(len(place))) if place else value

        def read(value: Value) -> Any:
            return np.asarray(value.data, SCALAR_TYPES[value.type]) if value.op == "const" else known[value]

        def gather(array: ValueArray, dtype: Any) -> Any:
            if all(value.op == "const" for value in array.ravel()):
                return np.array([value.data for value in array.ravel()], dtype).reshape(array.shape)
            each = [lax.reshape(lax.convert_element_type(read(value), dtype), (1,)) for value in array.ravel()]
            return lax.reshape(lax.concatenate(each, 0), array.shape)

        spread(inputs, [*closed.consts, *args])
        for each in kept:
            if isinstance(each, Value):
                known[each] = SCALAR_OPERATIONS[each.op](*map(read, each.args))
                continue
            primitive = each.equation.primitive
            given = [gather(a, v.aval.dtype) for a, v in zip(each.args, each.equation.invars, strict=True)]
            found = primitive.bind(*given, **primitive.get_bind_params(each.equation.params))
            spread(each.results, found if primitive.multiple_results else [found])
        return [gather(a, v.aval.dtype) for a, v in zip(outputs, closed.jaxpr.outvars, strict=True)]

    shapes = [shape_struct(variable.aval.shape, variable.aval.dtype) for variable in closed.jaxpr.invars]
    simple = jax.make_jaxpr(evaluate)(*shapes)
    return simple if cleared is not None or 2 * count_calls(simple.jaxpr) <= count else closed


def _divides(jaxpr: Any) -> bool:
    """Whether a function has quotients."""
    inner = (each for equation in jaxpr.eqns for value in equation.params.values() for each in _jaxprs_in(value))
    return any(equation.primitive.name == "div" for equation in jaxpr.eqns) or any(map(_divides, inner))


# Equations that are to vanish are multiplied by denominators that cannot. A displacement by Cayley's map is a quotient
# by 1 + |x|^2/4, and so is what sums and products make of it. Where f(x) = p(x)/q(x) with q > 0, the zeros of f are
# those of p, and so is the sign of the Jacobian's determinant there. The coefficients of p do not depend on x: a
# program computes them before it iterates, many of them before the run.


def add_terms(first: Terms, second: Terms, factor: float = 1.0) -> Terms:
    """first + factor * second."""
    total = dict(first)
    for factors, c in second.items():
        total[factors] = total.get(factors, 0.0) + factor * c
    return {factors: c for factors, c in total.items() if c}


def multiply_terms(first: Terms, second: Terms) -> Terms:
    """The product of two polynomials."""
    if len(first) * len(second) > 8 * MAX_FRACTION_TERMS:
        raise LoweringError("a long polynomial")
    total = Terms()
    for one, c in first.items():
        for other, d in second.items():
            factors = tuple(sorted(one + other))
            total[factors] = total.get(factors, 0.0) + c * d
    return {factors: c for factors, c in total.items() if c}


def is_positive(value: Value, strictly: bool = True) -> bool:
    """Whether a value is positive, or not negative, by its form (True is a proof, False is not)."""
    args = value.args
    if value.op == "const":
        return bool(value.data > 0 if strictly else value.data >= 0)
    if value.op == "add":
        return all(is_positive(arg, False) for arg in args) and (not strictly or any(map(is_positive, args)))
    counts = Counter(_factors(value)) if value.op == "mul" else {}
    return bool(counts) and all((not strictly and n % 2 == 0) or is_positive(a, strictly) for a, n in counts.items())


def _factors(value: Value) -> list[Value]:
    return [value] if value.op != "mul" else [factor for arg in value.args for factor in _factors(arg)]


class Fractions:
    """Values as polynomials in unknowns x, in reciprocals of such polynomials, and in what does not depend on x.

    What depends on x must be a sum, a product, or a quotient whose denominator is positive by its form, as 1 + x^2/4
    is. All else is refused, and so are long polynomials.
    """

    def __init__(self, b: Builder, unknowns: Iterable[Value]):
        self.b, self.atoms = b, list(unknowns)
        self.count = len(self.atoms)
        self.denominators: dict[int, Terms] = {}  # by the atom that is its reciprocal
        self.known: dict[Value, Terms] = {value: {(i,): 1.0} for i, value in enumerate(self.atoms)}

    def depends(self, value: Value) -> bool:
        """Whether a value that was expanded, or need not be, depends on the unknowns."""
        return any(map(self.moves, self.known.get(value, ())))

    def moves(self, factors: Factors) -> bool:
        return any(i < self.count or i in self.denominators for i in factors)

    def degree(self, factors: Factors) -> int:
        return sum(i < self.count for i in factors)

    def terms(self, value: Value) -> Terms:
        if value.op == "const":
            return {(): value.data} if value.data else {}
        if value not in self.known:
            self.known[value] = {(len(self.atoms),): 1.0}
            self.atoms.append(value)
        return self.known[value]

    def expand(self, value: Value) -> None:
        """Find the terms of a value that depends on the unknowns; those of its arguments are known."""
        if not any(map(self.depends, value.args)):
            return
        args = [self.terms(arg) for arg in value.args]
        if value.op == "neg":
            terms = add_terms({}, args[0], -1.0)
        elif value.op in ("add", "sub"):
            terms = add_terms(args[0], args[1], 1.0 if value.op == "add" else -1.0)
        elif value.op in ("mul", "quotient"):  # a quotient (a, b, 1/b)
            terms = multiply_terms(args[0], args[-1])
        elif value.op == "div" and self.b.is_const(value.args[0], 1) and is_positive(value.args[1]):
            if any(i in self.denominators for factors in args[1] for i in factors):
                raise LoweringError("a fraction in a denominator")
            self.denominators[len(self.atoms)] = args[1]
            terms = self.terms(value)
        else:
            raise LoweringError(f"'{value.op}' of unknowns is no fraction of polynomials")
        if len(terms) > MAX_FRACTION_TERMS:
            raise LoweringError("a long polynomial")
        self.known[value] = terms

    def clear(self, value: Value) -> Value:
        """The value times as few denominators as leave a polynomial.

        What does not depend on x is multiplied by the denominators as they are, the rest has coefficients.
        """
        b, product = self.b, self.b.const(1.0)
        still = {factors: c for factors, c in self.terms(value).items() if not self.moves(factors)}
        terms = {factors: c for factors, c in self.terms(value).items() if factors not in still}
        for atom, below in self.denominators.items():
            power = max((factors.count(atom) for factors in terms), default=0)
            total = Terms()
            for k in range(power + 1):  # by Horner's rule
                part = {tuple(i for i in f if i != atom): c for f, c in terms.items() if f.count(atom) == k}
                total = add_terms(multiply_terms(total, below), part)
            while power and (quotient := self._divide(total, below)) is not None:
                total, power = quotient, power - 1
            terms, product = total, b.mul(product, b.power(self.atoms[atom].args[1], power))
        return b.add(self.write(terms), b.mul(self.write(still), product))

    def _divide(self, terms: Terms, below: Terms) -> Terms | None:
        """The quotient of polynomials, the lowest degrees first; None where there is a remainder."""
        if any(factors and not self.degree(factors) for factors in below):
            return None
        last = max(map(self.degree, terms), default=0) - max(map(self.degree, below))
        quotient = Terms()
        while terms and (least := min(map(self.degree, terms))) <= last:
            lowest = {factors: c / below[()] for factors, c in terms.items() if self.degree(factors) == least}
            quotient |= lowest
            terms = add_terms(terms, multiply_terms(lowest, below), -1.0)
        return None if terms else quotient

    def write(self, terms: Terms) -> Value:
        """The value of a polynomial by Horner's rule: unknowns outside, and inside what does not depend on them."""
        b = self.b
        counts = Counter(i for factors in terms for i in set(factors))
        if not counts:
            return b.const(terms.get((), 0.0))
        i = max(counts, key=lambda i: (i < self.count, counts[i], -i))
        inside, outside = Terms(), Terms()
        for factors, c in terms.items():
            if i in factors:
                at = factors.index(i)
                inside[factors[:at] + factors[at + 1 :]] = c
            else:
                outside[factors] = c
        return b.add(b.mul(self.atoms[i], self.write(inside)), self.write(outside))


def clear_denominators(b: Builder, x: ValueArray, outputs: ValueArray) -> ValueArray | None:
    """The outputs multiplied by denominators that no x makes zero, where that makes their evaluation shorter."""
    needed, fractions = _needed_statements(b.block.statements, [outputs])[0], Fractions(b, x.ravel())
    try:
        for each in needed:
            if isinstance(each, Value):
                fractions.expand(each)
            elif any(map(fractions.depends, flatten_arrays(each.args))):
                return None
        if not fractions.denominators:
            return None
        written = [fractions.clear(value) for value in outputs.ravel()]
    except LoweringError:
        return None
    cleared = rules.pack_values(written, outputs.shape)

    def cost(result: ValueArray) -> int:
        """The operations that an evaluation takes, once all is known that does not depend on x."""
        moving = set(x.ravel())
        for each in _needed_statements(b.block.statements, [result])[0]:
            if isinstance(each, Value) and not moving.isdisjoint(each.args):
                moving.add(each)
        return len(moving)

    return cleared if cost(cleared) <= cost(outputs) else None


# Jacobians: the chain rule on scalar operations, where JAX would write arrays of them that are mostly zeros.

Tangents = dict[int, Value]  # the derivatives of a value in the unknowns on which it depends


class _Derivable(_Scalars):
    """A lowering to operations whose derivatives are known, and to what JAX differentiates: functions of numbers and
    solves. Loops and branches are refused.
    """

    elements = _Scalars.elements | {"integer_pow", "square", "sqrt", "abs", "max", "min", "clamp", "floor", "ceil"}
    capture = Lowering.capture
    plain = False  # whether what is lowered has no derivatives

    def lower_equation(self, equation: Any, args: Arrays) -> Arrays:
        name = equation.primitive.name
        if name in ("while", "cond", "scan", "columns", "custom_vjp_call"):
            raise LoweringError(f"a '{name}' in a function that is differentiated")
        if self.plain and name in _KEPT:
            return Lowering.lower_equation(self, equation, args)
        if name == "stop_gradient":
            return self._keep(equation, args, [variable.aval for variable in equation.outvars])
        return super().lower_equation(equation, args)

    def derive(self, statement: Any, tangents: dict[Value, Tangents]) -> None:
        """Note the derivatives of what a statement makes, by those of its arguments."""
        b, kept = self.builder, isinstance(statement, _Kept)
        args = flatten_arrays(statement.args) if kept else statement.args
        given = [tangents.get(value, {}) for value in args]
        if not any(given) or not (kept or statement.type == F64):
            return
        if kept and statement.equation.primitive.name not in self.elements:
            self._derive_kept(statement, tangents, sorted(set[int]().union(*given)))
            return
        made, total = statement.results[0].item() if kept else statement, Tangents()
        if not kept and statement.op == "select":
            (_, yes, no), zero = given, b.const(0.0)
            total = {i: b.select(args[0], yes.get(i, zero), no.get(i, zero)) for i in yes | no}
        else:
            for factor, along in zip(self._factors(statement, args, given), given, strict=True):
                for i, tangent in along.items() if factor is not None else ():
                    product = b.mul(cast(Value, factor), tangent)
                    total[i] = b.add(total[i], product) if i in total else product
        tangents[made] = total

    def _factors(self, statement: Any, args: Sequence[Value], given: list[Tangents]) -> list[Value | None]:
        """The partial derivatives of what a statement makes, as far as they are needed."""
        b = self.builder
        if isinstance(statement, _Kept):
            slopes = (_slope(statement.equation, k) if given[k] else None for k in range(len(args)))
            return [None if slope is None else self._write(slope, statement.args)[0].item() for slope in slopes]
        op, one, minus = statement.op, b.const(1.0), b.const(-1.0)
        if op in ("add", "sub", "neg"):
            return [minus] if op == "neg" else [one, one if op == "add" else minus]
        if op == "mul":
            return [args[1], args[0]]
        if op in ("div", "quotient"):
            reciprocal = b.div(one, args[1])
            return [reciprocal, b.neg(b.mul(statement, reciprocal)), None][: len(args)]
        raise LoweringError(f"no derivative of the operation '{op}'")

    def _derive_kept(self, statement: _Kept, tangents: dict[Value, Tangents], directions: Sequence[int]) -> None:
        """Of a solve, or of what has a derivative of its own: JAX's, in one direction after the other."""
        along, zero = _derivative(statement.equation), self.builder.const(0.0)
        moving = [x for x, v in zip(statement.args, statement.equation.invars, strict=True) if _moves(v)]
        for i in directions:
            given = [rules.map_elements(lambda v, i=i: tangents.get(v, {}).get(i, zero), x) for x in moving]
            found = self._write(along, [*statement.args, *given])
            for value, tangent in zip(flatten_arrays(statement.results), flatten_arrays(found), strict=True):
                if not self.builder.is_const(tangent, 0):
                    tangents.setdefault(value, {})[i] = tangent

    def _write(self, closed: core.ClosedJaxpr, args: Arrays) -> Arrays:
        self.plain = True
        try:
            return self.lower_closed(closed, args)
        finally:
            self.plain = False


def _moves(variable: Any) -> bool:
    return bool(np.issubdtype(variable.aval.dtype, np.inexact))


_known_slopes: dict[Any, core.ClosedJaxpr] = {}


def _slope(equation: Any, k: int) -> core.ClosedJaxpr:
    """The derivative of a function of numbers in its k-th argument, as JAX has it."""
    primitive, params, count = equation.primitive, equation.params, len(equation.invars)
    key = primitive, count, k, str(sorted(params.items()))
    if key not in _known_slopes:

        def slope(*xs: Any) -> Any:
            along = lambda x: primitive.bind(*xs[:k], x, *xs[k + 1 :], **params)
            return jax.jvp(along, (xs[k],), (np.ones(()),))[1]

        _known_slopes[key] = jax.make_jaxpr(slope)(*[shape_struct((), np.float64)] * count)
    return _known_slopes[key]


def _derivative(equation: Any) -> core.ClosedJaxpr:
    """The derivative of an equation along one direction: a function of its inputs, and of directions of numbers."""
    primitive, shapes = equation.primitive, [shape_struct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    places = [k for k, variable in enumerate(equation.invars) if _moves(variable)]

    def along(*given: Any) -> Any:
        xs, directions = given[: len(shapes)], given[len(shapes) :]

        def value(*moving: Any) -> Any:
            every = dict(enumerate(xs)) | dict(zip(places, moving, strict=True))
            found = primitive.bind(*every.values(), **primitive.get_bind_params(equation.params))
            return found if primitive.multiple_results else [found]

        return jax.jvp(value, [xs[k] for k in places], list(directions))[1]

    return jax.make_jaxpr(along)(*shapes, *(shapes[k] for k in places))


class ScalarFunction(NamedTuple):
    """A function as scalar operations, that programs write in their own."""

    inputs: list[Value]  # what it is given, then what it captured
    captured: list[np.ndarray[Any, Any]]
    statements: list[Any]
    outputs: Arrays
    solved: bool  # whether identities are worth looking for

    def write(self, lowering: Lowering, args: Arrays) -> Arrays:
        """The outputs, in the program of another lowering."""
        b = lowering.builder
        begin = flatten_arrays([*args, *map(lowering.capture, self.captured)])
        known: dict[Value, Value] = dict(zip(self.inputs, begin, strict=True))
        write: dict[str, Callable[..., Value]] = {
            "add": b.add, "sub": b.sub, "mul": b.mul, "div": b.div, "neg": b.neg, "select": b.select, "not": b.invert,
            "quotient": lambda a, b_, _: b.div(a, b_),
            **{op: partial(b.compare, op) for op in ("lt", "le", "eq", "ne")},
            **{op: partial(b.logic, op) for op in ("and", "or", "xor")},
        }  # fmt: skip

        def read(value: Value) -> Value:
            return b.const(value.data, value.type) if value.op == "const" else known[value]

        looks = isinstance(b, PolynomialBuilder) and (self.solved or b.looks)
        with b.looking(looks) if isinstance(b, PolynomialBuilder) else nullcontext():
            for each in self.statements:
                if isinstance(each, Value):
                    make = write.get(each.op) or partial(b.emit, each.op, each.type)
                    known[each] = make(*map(read, each.args))
                    continue
                given, equation = [rules.map_elements(read, array) for array in each.args], each.equation
                if equation.primitive.name in _Derivable.elements:
                    found = [lowering.apply_rule(equation.primitive.name, equation.params, given)]
                else:
                    found = lowering.lower_equation(equation, given)
                known.update(zip(flatten_arrays(each.results), flatten_arrays(found), strict=True))
        return [rules.map_elements(read, array) for array in self.outputs]


def derive_columns(closed: core.ClosedJaxpr, budget: int) -> ScalarFunction | None:
    """f(x, *values) and its Jacobian in x as scalar operations; None where JAX must differentiate."""
    scalars = _Derivable(Builder(budget))
    b = scalars.builder
    inputs = [source_array(b, "input", variable.aval) for variable in closed.jaxpr.invars]
    try:
        (value,) = scalars.lower_closed(closed, inputs)
        tangents = {unknown: {i: b.const(1.0)} for i, unknown in enumerate(inputs[0].ravel())}
        for each in tuple(b.block.statements):
            scalars.derive(each, tangents)
    except OperationsExceeded:
        raise
    except LoweringError:
        return None
    zero, count = b.const(0.0), inputs[0].size
    along = [tangents.get(each, {}).get(i, zero) for each in value.ravel() for i in range(count)]
    outputs = [value, rules.pack_values(along, (*value.shape, count))]
    statements = _needed_statements(b.block.statements, outputs)[0]
    given = [*flatten_arrays(inputs), *scalars.captured_inputs]
    return ScalarFunction(given, scalars.captured, statements, outputs, _is_solved(closed.jaxpr))


def _is_solved(jaxpr: Any) -> bool:
    """Whether a function contains equations that are solved."""
    inner = (each for equation in jaxpr.eqns for value in equation.params.values() for each in _jaxprs_in(value))
    named = any(EQUATIONS in str(equation.params.get("name", "")) for equation in jaxpr.eqns)
    return named or any(map(_is_solved, inner))


def count_calls(jaxpr: Any) -> int:
    """The equations of a jaxpr for which JAX takes derivatives: those of calls inside, and not of loops."""
    total = 0
    for equation in jaxpr.eqns:
        called = equation.primitive.name in ("jit", "pjit", "closed_call")
        inner = [each for value in equation.params.values() for each in _jaxprs_in(value)] if called else []
        total += sum(map(count_calls, inner)) if inner else 1
    return total


def _hides_slopes(jaxpr: Any) -> bool:
    """Whether derivatives of a function may be others than its own: somebody stops them, or gives them by a rule."""
    inner = (each for equation in jaxpr.eqns for value in equation.params.values() for each in _jaxprs_in(value))
    return any(equation.primitive.name in RULED for equation in jaxpr.eqns) or any(map(_hides_slopes, inner))


def curvature(closed: core.ClosedJaxpr, known: Sequence[bool], budget: int) -> list[tuple[int, int]]:
    """Of every entry of f(x): the unknowns on which it depends, and the pairs of them in which it is not affine.

    Both are bits, the i-th of an unknown and the (i n + j)-th of a pair; a bit that is not set is a proof. `known` says
    which constants are numbers. Refused where derivatives hide a slope, for then no linear solve is exact.
    """
    if _hides_slopes(closed.jaxpr):
        raise LoweringError("derivatives that are not those of the function")
    lowering, n = Lowering(Builder(budget)), closed.in_avals[0].size
    consts = [
        lowering.capture(value) if number else source_array(lowering.builder, "input", variable.aval)
        for value, number, variable in zip(closed.consts, known, closed.jaxpr.constvars, strict=True)
    ]
    x = source_array(lowering.builder, "input", closed.in_avals[0])
    (result,) = lowering.lower_jaxpr(closed.jaxpr, consts, [x])
    bits: dict[Value, tuple[int, int]] = {value: (1 << i, 0) for i, value in enumerate(x.ravel())}

    def pairs(a: int, b: int) -> int:
        both = ((a, b), (b, a))
        return reduce(or_, (other << n * i for one, other in both for i in range(n) if one >> i & 1), 0)

    def bits_of(value: Value) -> tuple[int, int]:
        given = [bits.get(arg, (0, 0)) for arg in value.args]
        reached, bent = reduce(or_, (of for of, _ in given), 0), reduce(or_, (which for _, which in given), 0)
        op, first = value.op, given[0][0] if given else 0
        if op in ("mul", "fma"):
            return reached, bent | pairs(first, given[1][0])
        linear = op in ("add", "sub", "neg", "copy") or (op == "select" and not first)
        if linear or (op in ("div", "quotient") and not given[1][0]):
            return reached, bent
        return reached, pairs(reached, reached)

    for statement in lowering.builder.setup.statements:
        if isinstance(statement, Value):
            bits[statement] = bits_of(statement)
        elif isinstance(statement, Structure):
            inside = Block()
            inside.statements.append(statement)
            reached = reduce(or_, (bits.get(value, (0, 0))[0] for value in used_values(inside)), 0)
            bits |= dict.fromkeys(statement.results, (reached, pairs(reached, reached)))
        else:
            raise LoweringError("a function that keeps numbers in memory")
    return [bits.get(value, (0, 0)) for value in result.ravel()]


class Routines:
    """The routines of a long program by what they compute: JAX may trace one several times.

    `repeated` has those that are called more than once.
    """

    def __init__(self, *tops: Any):
        self._names: dict[Any, int] = {}
        self._known: dict[int, int] = {}
        self._calls: dict[int, Counter[int]] = {}
        self._in_turn: dict[int, core.ClosedJaxpr] = {}
        total = sum(map(self._count, tops), Counter[int]())
        self.repeated = {name for name, times in total.items() if times > 1}

    def in_turn(self, function: core.ClosedJaxpr) -> core.ClosedJaxpr:
        """A function with the columns of its Jacobian, one after the other."""
        if (name := self.name(function.jaxpr)) not in self._in_turn:
            self._in_turn[name] = _expand_columns(columns_in_turn, function)
        return self._in_turn[name]

    def name(self, jaxpr: Any) -> int:
        """A number that jaxprs have in common if they are the same but for the names of variables."""
        if id(jaxpr) not in self._known:
            places = {variable: place for place, variable in enumerate((*jaxpr.constvars, *jaxpr.invars))}

            def read(atom: Any) -> Any:
                literal = isinstance(atom, core.Literal)
                return (atom.aval, repr(atom.val)) if literal else places[atom]

            lines: list[Any] = [len(jaxpr.constvars), *(variable.aval for variable in places)]
            for equation in jaxpr.eqns:
                params = ((key, self._key(value)) for key, value in sorted(equation.params.items()))
                inputs = tuple(map(read, equation.invars))
                places.update((variable, len(places) + i) for i, variable in enumerate(equation.outvars))
                outputs = tuple(variable.aval for variable in equation.outvars)
                lines.append((equation.primitive.name, tuple(params), inputs, outputs))
            text = (*lines, *map(read, jaxpr.outvars))
            self._known[id(jaxpr)] = self._names.setdefault(text, len(self._names))
        return self._known[id(jaxpr)]

    def _key(self, value: Any) -> Any:
        """A parameter of an equation as part of a key; functions are there for derivatives and trace nothing new."""
        if isinstance(value, tuple | list):
            return tuple(map(self._key, value))
        if isinstance(value, core.ClosedJaxpr):
            return self.name(value.jaxpr), *map(id, value.consts)
        if isinstance(value, core.Jaxpr):
            return self.name(value)
        if callable(value) and not isinstance(value, type):
            return None
        try:
            hash(value)
        except TypeError:
            return repr(value)
        return value

    def _count(self, jaxpr: Any) -> Counter[int]:
        """How often each routine is called where this jaxpr is."""
        if (name := self.name(jaxpr)) not in self._calls:
            total: Counter[int] = Counter()
            for equation in jaxpr.eqns:
                values = list(equation.params.values())
                if equation.primitive.name == "columns":
                    values = [self.in_turn(equation.params["function"])]
                for inner in (inner for value in values for inner in _jaxprs_in(value)):
                    marked = ROUTINE in str(equation.params.get("name", ""))
                    unrolled = equation.primitive.name == "scan" and not _is_looped(equation.params, long=True)
                    times = equation.params["length"] if unrolled else 1
                    for found, number in (Counter([self.name(inner)] if marked else []) + self._count(inner)).items():
                        total[found] += number * times
            self._calls[name] = total
        return self._calls[name]


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

    lasting: list[int] = []

    def advance_and_note(*given: Any) -> Any:
        with on_tape() as tape:
            after = advance(*given)
        lasting[:] = [len(jax.tree.leaves(tape.found[:k])) for k in tape.lasting]
        return after, tape.found

    advance_jaxpr, (next_carry, notes) = jax.make_jaxpr(advance_and_note, return_shape=True)(consts, carry, control)
    observe_jaxpr, record = jax.make_jaxpr(observe, return_shape=True)(consts, carry)
    if mismatch := describe_mismatch(carry, next_carry, "carry"):
        raise LoweringError(f"the step changes its carry: {mismatch}")
    jaxprs, trees = (advance_jaxpr, observe_jaxpr), (consts, carry, control)
    known: dict[int, int] = {}
    inline = MAX_INLINE_OPERATIONS * getattr(advance, "steps_at_once", 1)
    try:
        rough = sum(_count_written_out(each.jaxpr, known) for each in jaxprs)
        long = any(getattr(each, "long", False) for each in (advance, observe))
        if long or rough > LONG_FOR_CERTAIN * inline:
            raise OperationsExceeded("the step is much too long to be written out")
        lowering, program = _lower(jaxprs, *trees, min(budget, inline), None)
    except OperationsExceeded:
        if budget <= inline:
            raise
        jaxprs = drop_unused(advance_jaxpr), drop_unused(observe_jaxpr)
        lowering, program = _lower(jaxprs, *trees, budget, Routines(*(each.jaxpr for each in jaxprs)))
    optimise(program)
    places = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(notes))]).tolist()
    found = LoweredProgram.of(program, lowering.captured, record, notes, control_reads(program), find_flows(program))
    found.counts, found.lasting = find_counts(program, [places[k] for k in lasting]), tuple(lasting)
    return found


def drop_unused(closed: core.ClosedJaxpr, known: dict[Any, Any] | None = None) -> core.ClosedJaxpr:
    """The function without what its results do not need, in all calls and loops inside."""
    known = {} if known is None else known
    if closed.jaxpr not in known:
        needed, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)

        def inside(value: Any) -> Any:
            if isinstance(value, tuple) and any(isinstance(each, core.ClosedJaxpr) for each in value):
                return type(value)(*map(inside, value)) if hasattr(value, "_fields") else tuple(map(inside, value))
            return drop_unused(value, known) if isinstance(value, core.ClosedJaxpr) else value

        equations = [
            each.replace(params={name: inside(value) for name, value in each.params.items()})
            if any(map(_jaxprs_in, each.params.values()))
            else each
            for each in needed.eqns
        ]
        known[closed.jaxpr] = core.ClosedJaxpr(needed.replace(eqns=equations), closed.consts)  # type: ignore[no-untyped-call]
    found: core.ClosedJaxpr = known[closed.jaxpr]
    return found


def _lower(
    jaxprs: tuple[core.ClosedJaxpr, core.ClosedJaxpr],
    consts: Any,
    carry: Any,
    control: Any,
    budget: int,
    routines: Routines | None,
) -> tuple[Lowering, Program]:
    builder = PolynomialBuilder(budget)
    (advance_jaxpr, observe_jaxpr), lowering = jaxprs, Lowering(builder, routines=routines)

    def sources(tree: Any, op: str, block: Block) -> Arrays:
        return [source_array(builder, op, leaf, block) for leaf in jax.tree.leaves(tree)]

    constants = sources(consts, "input", builder.setup)
    stepping, observing = Block(builder.setup, outer=builder.setup), Block(builder.setup, outer=builder.setup)
    state, controls = sources(carry, "param", stepping), sources(control, "input", stepping)
    observed = sources(carry, "param", observing)
    with builder.inside(stepping):
        after = flatten_arrays(lowering.lower_closed(advance_jaxpr, [*constants, *state, *controls]))
        next_state, notes = after[: (count := sum(array.size for array in state))], after[count:]
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
        functions=lowering.functions_in_order(),
        parallel_sums=builder.parallel_sums,
        memory=builder.memory,
        notes=[*notes],
    )
    for block in all_blocks(program):
        if block is not program.setup and not builder.solved.isdisjoint(block.statements):
            join_factors(program, block, builder.solved)
    return lowering, program


def join_programs(
    parts: Sequence[LoweredProgram], reads: Sequence[int | None], order: Sequence[int], record: Any
) -> LoweredProgram:
    """A program that records what some programs do, in this order; what they have in common it computes once.

    Part k observes the carry or, if `reads[k]` is a number, what that part recorded; all parts have the same constants,
    and those that observe the carry have the same. All operations are theirs as they were optimised, so each number has
    the bits that it has in a program of its own: in one that is lowered as a whole, a product that another part needs
    too would not be fused.
    """
    first = parts[0].program
    count = len(first.constants) - sum(array.size for array in parts[0].captured)
    setup = Block()
    stepping, observing = Block(setup, outer=setup), Block(setup, outer=setup)
    constants = [Value(each.op, each.type, (), each.data, setup) for each in first.constants[:count]]
    state, observed = (
        [Value(each.op, each.type, (), each.data, block) for each in values]
        for values, block in ((first.state, stepping), (first.observed, observing))
    )
    captured: list[tuple[Any, list[Value]]] = []
    join, records, functions = _Joining(setup), list[list[Value]](), list[Function]()
    for part, read in zip(parts, reads, strict=True):
        program = part.program
        given, rest = observed if read is None else records[read], iter(program.constants[count:])
        if [value.type for value in given] != [value.type for value in program.observed]:
            raise LoweringError("a program observes other numbers than are recorded")
        join.new = dict(zip(program.constants[:count], constants, strict=True))
        join.new.update(zip(program.observed, given, strict=True))
        for array in part.captured:
            own = [next(rest) for _ in range(array.size)]
            same = (inputs for known, inputs in captured if known is array or _is_equal(known, array))
            if (found := next(same, None)) is None:
                found = [Value(each.op, each.type, (), each.data, setup) for each in own]
                captured.append((array, found))
            join.new.update(zip(own, found, strict=True))
        join.blocks = {program.setup: setup, program.observe: observing}
        join.copy(program.setup)
        functions += map(join.function, program.functions)
        join.copy(program.observe)
        records.append(list(map(join.value, program.record)))
    program = Program(
        [*constants, *(value for _, values in captured for value in values)], [], setup, state, stepping, state,
        observed, observing, [value for k in order for value in records[k]], functions,
        any(part.program.parallel_sums for part in parts), max(part.memory for part in parts),
    )  # fmt: skip
    remove_dead_code(program)
    return LoweredProgram.of(program, [array for array, _ in captured], record, [], (), find_flows(program))


def _is_equal(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


class _Joining:
    """Copies the blocks of programs behind each other, but an operation that is there already."""

    def __init__(self, setup: Block):
        self.setup = setup
        self.new: dict[Value, Value] = {}
        self.blocks: dict[Block, Block] = {}
        self.functions: dict[Function, Function] = {}
        self.literals = Builder()
        self.literals.setup = setup

    def value(self, value: Value) -> Value:
        """What a value is here: an operation that was copied, a literal, or the name of something."""
        if (found := self.new.get(value)) is None:
            if value.op == "const":
                found = self.literals.const(value.data, value.type)
            else:
                found = Value(value.op, value.type, (), value.data, self.blocks[value.block])
            self.new[value] = found
        return found

    def values(self, values: Sequence[Value]) -> list[Value]:
        return list(map(self.value, values))

    def inner(self, block: Block) -> Block:
        """Where the copy of a block of a structure goes."""
        parent, outer = (None if each is None else self.blocks[each] for each in (block.parent, block.outer))
        made = self.blocks[block] = Block(parent, outer)
        return made

    def copy(self, block: Block) -> None:
        """Copy the statements of a block to its place here."""
        to = self.blocks[block]
        for statement in block.statements:
            if isinstance(statement, Value):
                self.new[statement] = self._operation(statement, to)
            else:
                to.statements.append(self._structure(statement))

    def _operation(self, value: Value, to: Block) -> Value:
        args = tuple(self.values(value.args))
        key = (value.op, value.type, args, value.data)
        if value.op != "load":  # what memory holds may be another number
            swapped = (args[1], args[0], *args[2:]) if value.op in COMMUTATIVE or value.op == "fma" else args
            for each in (key, (*key[:2], swapped, value.data)):
                if (found := to.find(each)) is not None:
                    return cast(Value, found)
        made = Value(value.op, value.type, args, value.data, to)
        to.table[key] = made
        to.statements.append(made)
        return made

    def _structure(self, statement: Any) -> Any:
        if isinstance(statement, Loop):
            initial = self.values(statement.initial)
            test, body = self.inner(statement.test), self.inner(statement.body)
            params = self.values(statement.params)
            self.copy(statement.test)
            condition = self.value(statement.condition)
            self.copy(statement.body)
            after = self.values(statement.next_values)
            return Loop(initial, params, test, condition, body, after, self.values(statement.results))
        if isinstance(statement, Branch):
            then, other = self.inner(statement.then), self.inner(statement.other)
            self.copy(statement.then)
            self.copy(statement.other)
            values = map(self.values, (statement.then_values, statement.other_values, statement.results))
            then_values, other_values, results = values
            return Branch(self.value(statement.condition), then, then_values, other, other_values, results)
        if isinstance(statement, Call):
            function = self.functions[statement.function]
            function.calls.append(call := Call(function, self.values(statement.args), self.values(statement.results)))
            return call
        if isinstance(statement, Repeat):
            body = self.inner(statement.body)
            counter = self.value(statement.counter)
            self.copy(statement.body)
            return replace(statement, counter=counter, body=body)
        at = None if statement.counter is None else self.value(statement.counter)
        if isinstance(statement, Store):
            return replace(statement, values=self.values(statement.values), counter=at)
        return replace(statement, counter=at)

    def function(self, function: Function) -> Function:
        """The copy of a function, which stands outside of all blocks."""
        made = self.functions[function] = Function([], Block(self.setup, outer=self.setup), [])
        self.blocks[function.body] = made.body
        made.params = self.values(function.params)
        self.copy(function.body)
        made.values = self.values(function.values)
        return made


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
    shorten_looks(program)
    fuse_products(program)
    remove_dead_code(program)
    made = set(_values_at_top(program))
    program.notes = [value if value in made or (value and value.op == "const") else None for value in program.notes]
    for block in all_blocks(program):  # what calls gave holds their traces, and is not asked for any more
        block.table = {key: found for key, found in block.table.items() if isinstance(key[0], str)}


def _values_at_top(program: Program) -> Iterator[Value]:
    """What is known when a step ends: inputs, state, and all that is made outside of loops, branches and functions."""
    yield from (*program.constants, *program.controls, *program.state)
    for statement in (*program.setup.statements, *program.advance.statements):
        if isinstance(statement, Value):
            yield statement
        elif isinstance(statement, Structure):
            yield from statement.results


def control_reads(program: Program) -> tuple[bool, ...]:
    """Which controls a program reads."""
    read = {arg for value in operations(program) for arg in value.args} | set(_structural_uses(program))
    return tuple(value in read for value in program.controls)


def find_counts(program: Program, lasting: Sequence[int]) -> tuple[int, ...]:
    """For every scalar of the state the lasting note that holds in just the steps that add 1 to it; -1: none.

    A note that lasts does not hold again after a step in which it did not.
    """
    gates = {note: k for k in lasting if (note := program.notes[k]) is not None}

    def gate(old: Value, new: Value) -> int:
        if new.op != "select" or new.args[0] not in gates or new.args[2] is not old or new.args[1].op != "add":
            return -1
        one = [arg for arg in new.args[1].args if arg is not old]
        counts = len(one) == 1 and one[0].op == "const" and one[0].data == 1.0 and old.type == F64
        return gates[new.args[0]] if counts else -1

    return tuple(map(gate, program.state, program.next_state))


def find_flows(program: Program) -> tuple[int, ...]:
    """Of every scalar of the next state, then of a record: the scalars of the state and the control that it is made of.

    They are bits, those of the control after those of the state. What a choice is made by does not count: a scalar that
    is linear in some others is zero where those of them are zero whose bits it has.
    """
    bits = {value: 1 << i for i, value in enumerate([*program.state, *program.controls])}
    bits |= {value: 1 << i for i, value in enumerate(program.observed)}
    through: dict[Function, list[int]] = {}  # the parameters of which each result of a function is made

    def join(values: Iterable[Value]) -> int:
        return reduce(or_, (bits.get(value, 0) for value in values), 0)

    def walk(block: Block) -> None:
        for statement in block.statements:
            if isinstance(statement, Value):
                bits[statement] = join(statement.args[statement.op == "select" :])
            elif isinstance(statement, Call):
                args = list(map(bits.get, statement.args))
                for result, of in zip(statement.results, through[statement.function], strict=True):
                    bits[result] = reduce(or_, (each or 0 for i, each in enumerate(args) if of >> i & 1), 0)
            elif isinstance(statement, Branch):
                walk(statement.then)
                walk(statement.other)
                arms = zip(statement.then_values, statement.other_values, strict=True)
                bits.update(zip(statement.results, map(join, arms), strict=True))
            elif isinstance(statement, Loop):
                walk_loop(statement)

    def walk_loop(loop: Loop) -> None:
        after, before = [join([value]) for value in loop.initial], list[int]()
        while after != before:
            before = after
            bits.update(zip(loop.params, before, strict=True))
            walk(loop.body)
            after = [old | join([new]) for old, new in zip(before, loop.next_values, strict=True)]
        bits.update(zip(loop.results, after, strict=True))

    if program.memory:
        return (-1,) * (len(program.next_state) + len(program.record))
    for function in program.functions:
        bits |= {value: 1 << i for i, value in enumerate(function.params)}
        walk(function.body)
        through[function] = [join([value]) for value in function.values]
    walk(program.advance)
    walk(program.observe)
    return tuple(join([value]) for value in (*program.next_state, *program.record))


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
    for statement in (statement for block in all_blocks(program) for statement in block.statements):
        if isinstance(statement, Store):
            yield from statement.values


def operations(program: Program) -> Iterator[Value]:
    """All operations."""
    for block in all_blocks(program):
        yield from (statement for statement in block.statements if isinstance(statement, Value))


def _is_needed(statement: Statement, live: set[Value]) -> bool:
    if isinstance(statement, Value):
        return statement in live
    return not isinstance(statement, Structure) or any(value in live for value in statement.results)


def find_late(program: Program, look: Look) -> list[Statement]:
    """What a step computes only for numbers that it hands on and does not read: after the last step is early enough."""
    others = [value for i, value in enumerate(program.next_state) if i not in look.held]
    live = _live_values(replace(program, next_state=[*others, look.condition]))
    return [statement for statement in program.advance.statements if not _is_needed(statement, live)]


def remove_dead_code(program: Program) -> None:
    """Keep what the next state and the records need, carries of loops included."""
    live = _live_values(program)
    for block in all_blocks(program):
        block.statements = [statement for statement in block.statements if _is_needed(statement, live)]
    calls: dict[Function, list[Call]] = defaultdict(list)
    for structure in structures(program):
        if isinstance(structure, Loop):
            _keep(structure, "initial params next_values results", [value in live for value in structure.params])
        elif isinstance(structure, Branch):
            _keep(structure, "then_values other_values results", [value in live for value in structure.results])
        else:
            calls[structure.function].append(structure)
    program.functions = [function for function in program.functions if function in calls]
    for function in program.functions:
        given, results = [value in live for value in function.params], (call.results for call in calls[function])
        wanted = [any(value in live for value in each) for each in zip(*results, strict=True)]
        _keep(function, "params", given)
        _keep(function, "values", wanted)
        for call in calls[function]:
            _keep(call, "args", given)
            _keep(call, "results", wanted)


def _keep(structure: Any, names: str, needed: list[bool]) -> None:
    """Keep the entries of some lists of a structure that are needed."""
    for name in names.split():
        setattr(structure, name, [each for each, kept in zip(getattr(structure, name), needed, strict=True) if kept])


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


def join_factors(program: Program, block: Block, solved: set[Value]) -> None:
    """x c d becomes x (c d), where c d is known before the run, if that saves more products than it adds such numbers.

    This is done in equations that are solved, whose last bits are free. Each such number is held all through a run: on
    a GPU, whose registers are few, a hundred of them take twice the time.
    """
    joined: dict[tuple[Value, Value], Value] = {}
    given, passed, before = dict[Value, tuple[Value, ...]](), set[Value](), _known_before(program, block)
    for value in block.statements:
        while isinstance(value, Value) and value in solved and value.op == "mul":
            pairs = [(a, b) for a, b in (value.args, value.args[::-1]) if b.block is program.setup and a.op == "mul"]
            found = [(a, b, c) for a, b in pairs if a.block is block and a in solved for c in a.args
                     if c.block is program.setup]  # fmt: skip
            if not found:
                break
            a, b, c = found[0]
            if (b, c) not in joined:
                both = b.op == "const" and c.op == "const"
                joined[b, c] = Value("const" if both else "mul", F64, () if both else (b, c), None, program.setup)
                if both:
                    joined[b, c].data = b.data * c.data
            given.setdefault(value, value.args)
            passed.add(a)
            value.args = (a.args[a.args[0] is c], joined[b, c])
    uses = Counter(arg for value in operations(program) for arg in value.args)
    uses.update(_structural_uses(program))
    if len(_known_before(program, block) - before) > sum(not uses[value] for value in passed):
        for value, args in given.items():
            value.args = args
    else:
        program.setup.statements += [value for value in joined.values() if value.op == "mul"]


def _known_before(program: Program, block: Block) -> set[Value]:
    """The numbers that a block reads and that are made once, before a run."""
    read = (arg for value in block.statements if isinstance(value, Value) for arg in value.args)
    return {arg for arg in read if arg.block is program.setup and arg.op != "const"}


def shorten_looks(program: Program) -> None:
    """Whether many numbers are finite is asked of a sum: what others of its terms were made of need not be in it."""
    uses = Counter(arg for value in operations(program) for arg in value.args)
    uses.update([*_structural_uses(program), *(value for value in program.notes if value is not None)])
    for block in all_blocks(program):
        for value in [each for each in block.statements if isinstance(each, Value) and each.op == "lt"]:
            terms, sums = find_terms(value, uses) or ([], [])
            if len(kept := least_terms(terms)) == len(terms):
                continue
            made: list[Value] = []
            while len(kept) > 1:  # a shallow tree
                pairs = zip(kept[::2], kept[1::2], strict=False)
                sums_of = [Value("add", F64, pair, None, block) for pair in pairs]
                made, kept = made + sums_of, sums_of + kept[len(kept) - len(kept) % 2 :]
            sums[-1].args = (kept[0],)
            at = block.statements.index(sums[-1])
            block.statements[at:at] = made


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


# Solutions of equations, noted by a step forwards and taken from there by the step backwards.
#
# An implicit step spends its time on iterations. Its derivative needs only where they ended: by the implicit function
# theorem f(x, p) = 0 gives dx = -f_x^-1 f_p dp. So a program says which of its values are solutions (`lower`),
# and whoever traces the transposed step gives them back in the same order.


class OtherSolutions(LoweringError):
    """A step that solves other equations when it is differentiated: its solutions are found again."""


class Tape:
    """The solutions of one trace of a step. Those of traces inside it (a loop, a routine) are not noted."""

    def __init__(self, given: Sequence[Any] | None):
        self.given = None if given is None else list(given)
        self.found: list[Any] = []
        self.lasting: list[int] = []  # those of the found that last
        self.level = _level()


class _Current(threading.local):
    tape: Tape | None = None


_current = _Current()


def _level() -> Any:
    """The trace that is being written."""
    return core.get_opaque_trace_state(convention="nested")  # type: ignore[no-untyped-call]  # JAX has no types


@contextmanager
def on_tape(given: Sequence[Any] | None = None) -> Iterator[Tape]:
    """Note the solutions of what is traced inside; or take those that are `given`, all of them and in their order."""
    outer, tape = _current.tape, Tape(given)
    _current.tape = tape
    try:
        yield tape
    finally:
        _current.tape = outer
    if tape.given:
        raise OtherSolutions("a step that is differentiated solves fewer equations")


def _tape() -> Tape | None:
    tape = _current.tape
    return tape if tape is not None and tape.level == _level() else None


def take_solution(like: Any) -> Any:
    """The known solution of the equation that is to be solved now; None where it must be solved."""
    tape = _tape()
    if tape is None or tape.given is None:
        return None
    shapes = [jax.tree.map(lambda leaf: (jax.numpy.shape(leaf), leaf.dtype), tree) for tree in (tape.given[:1], [like])]
    if shapes[0] != shapes[1]:
        raise OtherSolutions("a step that is differentiated solves other equations")
    return tape.given.pop(0)


def note_value(find: Callable[[], Any], like: Any, lasting: bool = False) -> Any:
    """A value that has no derivative: found by the step forwards, and taken from there by the step backwards.

    `lasting`: a condition that does not hold again after a step in which it did not; such a step leaves the real
    numbers of its carry as they are. Where the steps in which it holds are counted, nothing of it needs to be kept.
    """
    known = take_solution(like)
    value = find() if known is None else known
    note_solution(value, lasting)
    return value


def note_loop(loop: Callable[[Any], Any], like: Any) -> Any:
    """What a loop leaves, `loop(None)`; the step backwards takes it from the step forwards.

    There only the derivative is that of `loop(known)`, the same loop, which need not ask any more when it ends.
    """
    known = take_solution(like)
    end = loop(None) if known is None else with_slope(known, loop(known))
    note_solution(end)
    return end


@jax.custom_jvp
def with_slope(known: Any, same: Any) -> Any:
    """A value that is known, with the derivative of `same`, which it is but for round-off."""
    return known


with_slope.defjvp(lambda primals, tangents: (primals[0], tangents[1]))


def note_solution(solution: Any, lasting: bool = False) -> None:
    """Say that these are the values at which an iteration ended."""
    tape = _tape()
    if tape is not None and tape.given is None:
        tape.lasting += [len(tape.found)] * lasting
        tape.found.append(solution)
