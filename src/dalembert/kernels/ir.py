"""The scalar program: what remains of a JAX step when every array has been taken apart, and the builder that writes it.

A program is a list of scalar operations in static single assignment form, on three types: doubles, 64-bit integers
and booleans. Structure is explicit: a `Block` is a list of statements, a statement is an operation (`Value`), a
`Loop` with scalar carries, a `Branch`, the `Call` of a `Function`, or a `Repeat` over a counter, whose iterations hand
numbers on by a `Store` in the memory of the trajectory. A `Program` has three blocks: `setup` runs once, `advance` once
a step, `observe` once a record. The back ends only translate it: whatever can change a bit of the result is decided in
it.

The `Builder` folds every operation, shares it with an equal one, and moves it out of the loops it does not depend on.
Only literals fold. The identities used are those of real arithmetic on finite numbers (0 * x = 0, x + 0 = x), which
is what removes the zeros of tangents and structure constants, and those that round nothing (x/2 + x/2 = x,
2 x - x = x), which is what midpoints and kinetic energies leave behind; sums are never reordered.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

F64, I64, BOOL = "f64", "i64", "i1"

FREE_OPERATIONS = frozenset({"const", "input", "param", "result", "neg", "copy"})
"""Operations that cost nothing: names of values, and signs (which every fma absorbs)."""


class LoweringError(Exception):
    """A step that the scalar kernels cannot run, and why; `backend="auto"` answers it by running XLA."""


class OperationsExceeded(LoweringError):
    """A step that needs more operations than a program may have."""


class Value:
    """One scalar: the operation that makes it, its arguments, and the block it lives in."""

    __slots__ = ("args", "block", "data", "op", "type")

    def __init__(self, op: str, type: str, args: tuple[Value, ...], data: Any, block: Block):
        self.op, self.type, self.args, self.data, self.block = op, type, args, data, block

    def __repr__(self) -> str:
        return _literal(self) if self.op == "const" else f"<{self.op}:{self.type}>"


class Block:
    """A list of statements; the blocks of a loop hand what does not vary to their `outer` block."""

    __slots__ = ("depth", "outer", "parent", "statements", "table", "usual")

    def __init__(self, parent: Block | None = None, outer: Block | None = None, usual: bool = False):
        self.parent, self.outer = parent, outer
        self.usual = usual  # an arm that is mostly taken: the other one does nothing
        self.depth: int = parent.depth + 1 if parent else 0
        self.statements: list[Statement] = []
        self.table: dict[tuple[Any, ...], Any] = {}  # operations, and the results of calls

    @property
    def is_arm(self) -> bool:
        """Whether this is one of the arms of a branch, or inside one."""
        return self.parent is not None and (self.outer is None or self.parent.is_arm)

    @property
    def is_rare(self) -> bool:
        """Whether this is an arm of a branch whose other arm does something, or inside one."""
        arm = self.outer is None and not self.usual
        return self.parent is not None and (arm or self.parent.is_rare)

    def find(self, key: tuple[Any, ...]) -> Any:
        """The same operation or call, computed here or in a block around this one."""
        block: Block | None = self
        while block is not None:
            if key in block.table:
                return block.table[key]
            block = block.parent
        return None


@dataclass(eq=False)
class Loop:
    """while test(params): params = body(params); the params after the loop are `results`."""

    initial: list[Value]
    params: list[Value]
    test: Block
    condition: Value
    body: Block
    next_values: list[Value]
    results: list[Value]


@dataclass(eq=False)
class Branch:
    """results = then-arm if condition else other-arm; used where computing both arms would cost too much."""

    condition: Value
    then: Block
    then_values: list[Value]
    other: Block
    other_values: list[Value]
    results: list[Value]


@dataclass(eq=False)
class Function:
    """A computation that stands once in a program, however often it is called: values(params).

    Its body may also use values of the program's `setup`, where everything goes that depends on them alone.
    """

    params: list[Value]
    body: Block
    values: list[Value]
    calls: list[Call] = field(default_factory=list)


@dataclass(eq=False)
class Call:
    """results = function(args)."""

    function: Function
    args: list[Value]
    results: list[Value]


@dataclass(eq=False)
class Store:
    """memory[place + stride * counter + i] = values[i]: one number, or a row of GROUP numbers."""

    values: list[Value]
    place: int
    counter: Value | None = None
    stride: int = 0


@dataclass(eq=False)
class Repeat:
    """The body for counter = first ... last - 1; an iteration finds what earlier ones stored in memory."""

    counter: Value
    first: int
    last: int
    body: Block


@dataclass(eq=False)
class Convolve:
    """memory[result + i] = the sum of u_j v_{counter - j} over 0 < j < counter, for the i-th of some pairs (u, v).

    Terms are added in the order of j, each in one rounding with its product. GROUP pairs lie side by side, so that a
    vector register holds a term of each of them: `places` says where.
    """

    counter: Value
    rows: int  # coefficients of u, and of v
    pairs: int
    result: int

    def places(self, i: int) -> tuple[int, int]:
        """Where u_0 and v_0 of the i-th pair are; the next coefficient lies GROUP further."""
        first = i // GROUP * 2 * GROUP * self.rows + i % GROUP
        return first, first + GROUP * self.rows

    @property
    def groups(self) -> int:
        """The number of groups, two of which are summed at a time: a sum need not wait for itself then."""
        return 2 * -(-self.pairs // (2 * GROUP))


GROUP = 8
"""Pairs of a group of convolutions: a vector register of AVX-512, two of AVX, four of others."""
Structure = Loop | Branch | Call
Statement = Value | Structure | Store | Repeat | Convolve


@dataclass(eq=False)
class Program:
    """The run of one trajectory, but for the two counting loops around `advance` and `observe`.

    `constants` and `controls` are inputs, `state` is what the step carries, `next_state` its next values; `observe`
    reads the state through `observed` and gives `record`. `functions` stand in an order in which each calls only those
    before it. `parallel_sums`: equal operations stand side by side. `memory`: numbers that the stores of one trajectory
    need; who loads has stored before, in the same run of a block. `notes` are solutions that a step found (None where
    no operation was left that makes one).
    """

    constants: list[Value]
    controls: list[Value]
    setup: Block
    state: list[Value]
    advance: Block
    next_state: list[Value]
    observed: list[Value]
    observe: Block
    record: list[Value]
    functions: list[Function] = field(default_factory=list)
    parallel_sums: bool = False
    memory: int = 0
    notes: list[Value | None] = field(default_factory=list)

    @cached_property
    def text(self) -> str:
        """The program as text: the same for the same program in every process."""
        return "\n".join(_Printer().program(self))

    @cached_property
    def digest(self) -> str:
        """The name of the program, by which machine code is found again."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return self.text

    def count(self, block: str = "advance") -> Counter[str]:
        """How often each operation occurs in a block; the body of a loop and both arms of a branch count once.

        The body of a function counts once for each call.
        """
        called: dict[Function, Counter[str]] = {}

        def occurrences(top: Block) -> Counter[str]:
            total: Counter[str] = Counter()
            for statement in (statement for each in blocks(top) for statement in each.statements):
                if isinstance(statement, Call):
                    total += called[statement.function]
                elif isinstance(statement, Value) and statement.op not in FREE_OPERATIONS:
                    total[statement.op] += 1
            return total

        for function in self.functions:
            called[function] = occurrences(function.body)
        return occurrences(getattr(self, block))

    @property
    def operations(self) -> int:
        """Arithmetic operations of one step (one Newton iteration when the step iterates)."""
        return sum(self.count().values())


def inner_blocks(statement: Statement) -> tuple[Block, ...]:
    """The blocks inside a loop or branch."""
    if isinstance(statement, Loop):
        return statement.test, statement.body
    if isinstance(statement, Branch):
        return statement.then, statement.other
    return (statement.body,) if isinstance(statement, Repeat) else ()


def used_values(top: Block) -> list[Value]:
    """What the statements of a block and of those inside it read, in their order."""
    used: list[Value] = []
    for statement in (statement for block in blocks(top) for statement in block.statements):
        if isinstance(statement, Value | Call):
            used += statement.args
        elif isinstance(statement, Loop):
            used += [*statement.initial, statement.condition, *statement.next_values]
        elif isinstance(statement, Store):
            used += statement.values
        elif isinstance(statement, Branch):
            used += [statement.condition, *statement.then_values, *statement.other_values]
    return used


REFLECTING = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "neg": 1, "abs": 1, "sqrt": 1, "div": 1}
"""Operations whose result is finite only where these many of their first arguments are: 0 * inf is NaN, 1/inf is 0."""


def imply_finite(values: Iterable[Value]) -> set[Value]:
    """These values, and all that must be finite where these are."""
    implied: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value not in implied:
            implied.add(value)
            waiting += value.args[: REFLECTING.get(value.op, 0)] if value.type == F64 else ()
    return implied


def find_terms(value: Value, uses: Mapping[Value, int]) -> tuple[list[Value], list[Value]] | None:
    """(the terms, the sums) of a value |a + b + ...| < inf, which asks whether they are all finite; None of others.

    The sums, of which the last is the size, serve this question alone; `uses` are those of all values.
    """
    if value.op != "lt" or value.args[0].op != "abs" or value.args[1].op != "const" or value.args[1].data != math.inf:
        return None
    terms, sums, waiting = [], [], [*value.args]
    while waiting:
        term = waiting.pop(0)
        inside = all(each.block is value.block for each in (term, *term.args))
        if term.op in ("add", "abs") and uses[term] == 1 and inside and term.type == F64:
            sums.append(term)
            waiting += term.args
        elif term.op != "const":
            terms.append(term)
    return list(dict.fromkeys(terms)), sums[::-1]


def least_terms(terms: Sequence[Value], known: Iterable[Value] = ()) -> list[Value]:
    """Terms that are finite, beside what is known to be, only where all of them are."""
    made_of = imply_finite([*known, *(arg for term in terms for arg in term.args[: REFLECTING.get(term.op, 0)])])
    return [term for term in terms if term not in made_of]


class Look(NamedTuple):
    """The look of a step at its numbers, whether they are all finite, as far as the end of a run can take it over.

    What is not finite makes what follows not finite: those numbers of the state for which this is certain, the
    `places`, need to be looked at only after the last step. `terms` are what else a step must look at. Where the end
    finds something, the run is repeated with the whole question, `answer`, asked at every step; `sums` serve it alone.
    """

    answer: Value
    sums: list[Value]
    terms: list[Value]
    places: list[int]
    condition: Value  # that a step is good
    chosen: list[int]  # the numbers of the state that stay where it is not
    held: list[int]  # those of them that no step reads


def find_look(program: Program) -> Look | None:
    """The look of the steps of a program that can be taken once for many steps; None where it has none."""
    uses = Counter(used_values(program.advance))
    uses.update(value for value in (*program.next_state, *program.notes) if value is not None)
    chosen = [i for i, value in enumerate(program.next_state) if value.op == "select" and value.type == F64]
    chosen = [i for i in chosen if program.next_state[i].args[2] is program.state[i]]
    conditions = Counter(program.next_state[i].args[0] for i in chosen)
    if not conditions:
        return None
    condition = conditions.most_common(1)[0][0]
    parts = [condition]
    for part in parts:  # all that must be true, each for this condition alone
        parts += [arg for arg in part.args if part.op == "and" and (uses[arg] == 1 or arg.op != "and")]
    places = [i for i in chosen if program.next_state[i].args[0] is condition]
    while True:
        implied = imply_finite(program.next_state[i].args[1] for i in places)
        if len(lasting := [i for i in places if program.state[i] in implied]) == len(places):
            break
        places = lasting
    for part in parts:
        found = find_terms(part, uses) if uses[part] == 1 and part.block is program.advance else None
        if found is not None and len(terms := least_terms(found[0], implied)) < len(found[0]):
            pairs = list(zip(program.state, program.next_state, strict=True))
            chosen = [
                i for i, (old, new) in enumerate(pairs) if new.op == "select" and new.args[::2] == (condition, old)
            ]
            held = [i for i in chosen if uses[pairs[i][0]] == uses[pairs[i][1]] == 1]
            return Look(part, found[1], terms, places, condition, chosen, held)
    return None


def free_values(function: Function, setup: Block) -> list[Value]:
    """The values of the setup that a function uses, in the order of their first use."""
    used = (*used_values(function.body), *function.values)
    values = (value for value in used if value.block is setup and value.op != "const")
    return list(dict.fromkeys(values))


def blocks(block: Block) -> Iterator[Block]:
    """This block and all blocks inside it, outer before inner."""
    yield block
    for statement in block.statements:
        if type(statement) is not Value:  # nearly all are: to ask first takes a fifth of the time
            for inner in inner_blocks(statement):
                yield from blocks(inner)


def _literal(value: Value) -> str:
    return value.data.hex() if value.type == F64 else str(value.data)


class _Printer:
    """Numbers the values in the order in which they are computed."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.functions: dict[Function, str] = {}

    def name(self, value: Value) -> str:
        if value.op == "const":
            return _literal(value)
        return self.names.setdefault(value, f"%{len(self.names)}")

    def names_of(self, values: Sequence[Value]) -> str:
        return ", ".join(map(self.name, values))

    def declare(self, values: list[Value]) -> str:
        return ", ".join(f"{self.name(value)}:{value.type}" for value in values)

    def program(self, program: Program) -> Iterator[str]:
        yield f"inputs {self.declare(program.constants)}; controls {self.declare(program.controls)}"
        yield "setup:"
        yield from self.block(program.setup, 1)
        for function in program.functions:
            self.functions[function] = f"function{len(self.functions)}"
            yield f"{self.functions[function]} {self.declare(function.params)}:"
            yield from self.block(function.body, 1)
            yield f"  -> {self.names_of(function.values)}"
        yield f"advance {self.declare(program.state)}:"
        yield from self.block(program.advance, 1)
        yield f"  -> {self.names_of(program.next_state)}"
        if program.notes:
            yield f"notes {', '.join('none' if value is None else self.name(value) for value in program.notes)}"
        yield f"observe {self.declare(program.observed)}:"
        yield from self.block(program.observe, 1)
        yield f"  -> {self.names_of(program.record)}"

    def block(self, block: Block, indent: int) -> Iterator[str]:
        pad = "  " * indent
        for statement in block.statements:
            if isinstance(statement, Value):
                data = "" if statement.data is None else f" [{statement.data}]"
                arguments = " ".join(map(self.name, statement.args))
                yield f"{pad}{self.name(statement)}:{statement.type} = {statement.op}{data} {arguments}"
            elif isinstance(statement, Loop):
                yield f"{pad}loop {self.names_of(statement.params)} = {self.names_of(statement.initial)}:"
                yield from self.block(statement.test, indent + 1)
                yield f"{pad}while {self.name(statement.condition)}:"
                yield from self.block(statement.body, indent + 1)
                yield f"{pad}  -> {self.names_of(statement.next_values)}"
                yield f"{pad}after {self.names_of(statement.results)}"
            elif isinstance(statement, Call):
                called = f"{self.functions[statement.function]}({self.names_of(statement.args)})"
                yield f"{pad}{self.names_of(statement.results)} = {called}"
            elif isinstance(statement, Store):
                at = "" if statement.counter is None else f" {statement.stride:+} {self.name(statement.counter)}"
                yield f"{pad}memory[{statement.place}{at}] = {self.names_of(statement.values)}"
            elif isinstance(statement, Repeat):
                yield f"{pad}repeat {self.name(statement.counter)} = {statement.first} ... {statement.last - 1}:"
                yield from self.block(statement.body, indent + 1)
            elif isinstance(statement, Convolve):
                sizes = f"{statement.pairs} pairs of {statement.rows}"
                yield f"{pad}memory[{statement.result} ...] = convolve {self.name(statement.counter)}: {sizes}"
            else:
                yield f"{pad}if {self.name(statement.condition)}:"
                yield from self.block(statement.then, indent + 1)
                yield f"{pad}  -> {self.names_of(statement.then_values)}"
                yield f"{pad}else:"
                yield from self.block(statement.other, indent + 1)
                yield f"{pad}  -> {self.names_of(statement.other_values)}"
                yield f"{pad}after {self.names_of(statement.results)}"


MAX_OPERATIONS = 800_000
"""Operations that a program may have; XLA is the better place for a longer one."""


def _wrap(n: int) -> int:
    """The 64-bit two's complement integer congruent to n."""
    n &= (1 << 64) - 1
    return n - (1 << 64) if n >> 63 else n


def fma(a: float, b: float, c: float) -> float:
    """a * b + c rounded once."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c
    except OverflowError:
        return math.copysign(math.inf, exact)


def _float_division(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def _integer_division(a: int, b: int) -> int:
    return -1 if b == 0 else _wrap(int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b)))


def _to_int(x: float) -> int:
    """Conversion to an integer as XLA does it: towards zero, NaN to 0, the ends of the range beyond it."""
    if math.isnan(x):
        return 0
    return max(-(1 << 63), min((1 << 63) - 1, int(x) if math.isfinite(x) else int(math.copysign(1 << 63, x))))


def _keep_sign(function: Callable[[float], Any]) -> Callable[[float], float]:
    return lambda x: math.copysign(float(function(x)), x) if math.isfinite(x) else x


# fmt: off
FOLDING_RULES: dict[tuple[str, str], Callable[..., Any]] = {
    ("add", F64): lambda a, b: a + b, ("sub", F64): lambda a, b: a - b, ("mul", F64): lambda a, b: a * b,
    ("div", F64): _float_division, ("neg", F64): lambda a: -a, ("abs", F64): abs, ("fma", F64): fma,
    ("sqrt", F64): lambda a: math.sqrt(a) if a >= 0 else math.nan,
    ("floor", F64): _keep_sign(math.floor), ("ceil", F64): _keep_sign(math.ceil),
    ("round", F64): _keep_sign(round), ("trunc", F64): _keep_sign(math.trunc),
    ("min", F64): lambda a, b: a if a < b or a != a else b, ("max", F64): lambda a, b: a if a > b or a != a else b,
    ("copysign", F64): math.copysign,
    ("add", I64): lambda a, b: _wrap(a + b), ("sub", I64): lambda a, b: _wrap(a - b),
    ("mul", I64): lambda a, b: _wrap(a * b), ("div", I64): _integer_division,
    ("rem", I64): lambda a, b: a if b == 0 else a - b * _integer_division(a, b),
    ("neg", I64): lambda a: _wrap(-a), ("abs", I64): lambda a: _wrap(abs(a)), ("min", I64): min, ("max", I64): max,
    ("shl", I64): lambda a, b: _wrap(a << (b & 63)), ("shr", I64): lambda a, b: a >> (b & 63),
    ("and", I64): lambda a, b: a & b, ("or", I64): lambda a, b: a | b, ("xor", I64): lambda a, b: a ^ b,
    ("not", I64): lambda a: ~a,
    ("and", BOOL): lambda a, b: a and b, ("or", BOOL): lambda a, b: a or b, ("xor", BOOL): lambda a, b: a != b,
    ("not", BOOL): lambda a: not a,
    ("float", F64): float, ("bits", I64): lambda a: int(np.float64(a).view(np.int64)),
    ("unbits", F64): lambda a: float(np.int64(a).view(np.float64)),
}
# fmt: on
COMPARISONS: dict[str, Callable[..., bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
SCALES = frozenset(2.0**k for k in range(-8, 9))
"""Factors that round nothing: what is multiplied by one of them and by another constant is multiplied once."""
COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor", "eq", "ne"})


_PYTHON_TYPES: dict[str, Callable[[Any], Any]] = {F64: float, I64: int, BOOL: bool}


class Builder:
    """Appends operations to the current block, or finds that they are already there."""

    def __init__(self, budget: int = MAX_OPERATIONS):
        self.setup = self.block = Block()
        self.budget = budget
        self.size = 0
        self.parallel_sums = False
        self.selects = False  # whether both arms of a branch are computed, and one of each value selected
        self.memory = 0  # numbers that stores and loads use
        self._constants: dict[tuple[str, Any], Value] = {}

    def const(self, data: Any, type: str | None = None) -> Value:
        if type is None:
            type = BOOL if isinstance(data, bool | np.bool_) else I64 if isinstance(data, int | np.integer) else F64
        data = _PYTHON_TYPES[type](data)
        key = (type, data if data and data == data else str(data))  # -0.0 is not 0.0, and NaN is itself
        if key not in self._constants:
            self._constants[key] = Value("const", type, (), data, self.setup)
        return self._constants[key]

    def source(self, op: str, type: str, data: Any = None, block: Block | None = None) -> Value:
        """An input, a loop parameter or the result of a structure: a name that no operation makes."""
        return Value(op, type, (), data, block or self.block)

    def emit(self, op: str, type: str, *args: Value) -> Value:
        for arg in args:  # a third of the time that `all` takes
            if arg.op != "const":
                break
        else:
            return self.const(self._fold(op, type, *(arg.data for arg in args)), type)
        found: Value | None = self.block.find((op, type, args))
        if found is None and op in COMMUTATIVE:
            found = self.block.find((op, type, args[::-1]))
        if found is not None:
            return found
        home = self.home(args)
        self.size += 1
        if self.size > self.budget:
            raise OperationsExceeded(f"the step needs more than {self.budget} scalar operations")
        value = Value(op, type, args, None, home)
        home.statements.append(value)
        home.table[op, type, args] = value
        return value

    def home(self, args: Sequence[Value]) -> Block:
        """The outermost block in which something can be computed of these arguments."""
        home, depth = self.block, max(arg.block.depth for arg in args)
        while home.outer is not None and depth <= home.outer.depth:
            home = home.outer
        return home if depth or not home.is_arm else self.setup  # once for all steps, be there one that takes the arm

    def _fold(self, op: str, type: str, *data: Any) -> Any:
        if op in COMPARISONS:
            return COMPARISONS[op](*data)
        if op == "select":
            return data[1] if data[0] else data[2]
        if op == "int":
            return _to_int(float(data[0]))
        try:
            return FOLDING_RULES[op, type](*data)
        except OverflowError:
            return math.inf

    def is_const(self, value: Value, *among: float) -> bool:
        return value.op == "const" and (not among or value.data in among)

    def add(self, a: Value, b: Value) -> Value:
        if self.is_const(a, 0):
            return b
        if self.is_const(b, 0):
            return a
        if b.op == "neg":
            return self.sub(a, b.args[0])
        if a.op == "neg":
            return self.sub(b, a.args[0])
        if a is b and a.type == F64:
            return self.mul(a, self.const(2.0))
        if a.op == b.op == "select" and a.args[0] is b.args[0]:  # the transpose of a choice: its arms one by one
            for yes, no in ((a, b), (b, a)):
                if self.is_const(yes.args[2], 0) and self.is_const(no.args[1], 0):
                    return self.select(a.args[0], yes.args[1], no.args[2])
        return self.emit("add", a.type, a, b)

    def sub(self, a: Value, b: Value) -> Value:
        if self.is_const(b, 0):
            return a
        if self.is_const(a, 0):
            return self.neg(b)
        if b.op == "neg":
            return self.add(a, b.args[0])
        if a.type == I64 and a is b:
            return self.const(0)
        if a.op == "mul" and a.args[0] is b and self.is_const(a.args[1], 2.0):
            return b
        return self.emit("sub", a.type, a, b)

    def mul(self, a: Value, b: Value) -> Value:
        if a.op == "const":
            a, b = b, a
        if b.op == "const":
            if b.data == 0:
                return self.const(0, a.type)
            if b.data == 1:
                return a
            if b.data == -1:
                return self.neg(a)
        if a.op == "neg" or b.op == "neg":
            flipped = (a.op == "neg") != (b.op == "neg")
            product = self.mul(a.args[0] if a.op == "neg" else a, b.args[0] if b.op == "neg" else b)
            return self.neg(product) if flipped else product
        if b.op == "const" and a.type == F64:
            if b.data < 0:
                return self.neg(self.mul(a, self.const(-b.data)))
            if a.op == "mul" and a.args[1].op == "const" and (b.data in SCALES or a.args[1].data in SCALES):
                return self.mul(a.args[0], self.const(a.args[1].data * b.data))
        return self.emit("mul", a.type, a, b)

    def div(self, a: Value, b: Value) -> Value:
        """a / b; the optimiser decides between the division and the product with a shared reciprocal."""
        if a.type != F64 or (self.is_const(a) and self.is_const(b)):
            return self.emit("div", a.type, a, b)
        if self.is_const(a, 0):
            return a
        if self.is_const(b) and b.data != 0 and 1e-300 < abs(b.data) < 1e300:
            return self.mul(a, self.const(1.0 / b.data))
        if a.op == "neg" or b.op == "neg":
            flipped = (a.op == "neg") != (b.op == "neg")
            quotient = self.div(a.args[0] if a.op == "neg" else a, b.args[0] if b.op == "neg" else b)
            return self.neg(quotient) if flipped else quotient
        if b.op == "mul" and b.args[0] is b.args[1]:  # d(1/x) = -dx/x^2 needs no division beside 1/x
            root = self.div(self.const(1.0), b.args[0])
            return self.mul(a, self.mul(root, root))
        reciprocal = self.emit("div", F64, self.const(1.0), b)
        if self.is_const(a, 1, -1):
            return reciprocal if a.data == 1 else self.neg(reciprocal)
        return self.emit("quotient", F64, a, b, reciprocal)

    def rem(self, a: Value, b: Value) -> Value:
        """The remainder of the division towards zero."""
        if a.type == I64:
            return self.emit("rem", I64, a, b)
        return self.sub(a, self.mul(self.emit("trunc", F64, self.emit("div", F64, a, b)), b))

    def neg(self, a: Value) -> Value:
        if a.op == "neg":
            return a.args[0]
        if self.is_const(a, 0):
            return a
        return self.emit("neg", a.type, a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c rounded once, wherever the elementary functions need exactly that."""
        if self.is_const(a, 0) or self.is_const(b, 0):
            return c
        return self.emit("fma", F64, a, b, c)

    def power(self, a: Value, n: int) -> Value:
        """a^n by repeated squaring."""
        if n < 0:
            return self.div(self.const(1.0), self.power(a, -n))
        result: Value | None = None
        while n:
            if n & 1:
                result = a if result is None else self.mul(result, a)
            n >>= 1
            if n:
                a = self.mul(a, a)
        return self.const(1, a.type) if result is None else result

    def unary(self, op: str, a: Value) -> Value:
        """abs, sqrt, floor, ceil, round (half to even) and trunc."""
        if op == "abs" and a.op in ("neg", "abs"):
            return self.unary("abs", a.args[0])
        if op in ("floor", "ceil", "round", "trunc") and a.op in ("floor", "ceil", "round", "trunc", "float"):
            return a
        return self.emit(op, a.type, a)

    def min(self, a: Value, b: Value) -> Value:
        return a if a is b else self.emit("min", a.type, a, b)

    def max(self, a: Value, b: Value) -> Value:
        return a if a is b else self.emit("max", a.type, a, b)

    def copysign(self, size: Value, sign: Value) -> Value:
        return self.emit("copysign", F64, size, sign)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        if op in ("gt", "ge"):
            op, a, b = {"gt": "lt", "ge": "le"}[op], b, a
        if a.type == BOOL:
            different = self.logic("xor", a, b)
            return {
                "ne": different,
                "eq": self.invert(different),
                "lt": self.logic("and", self.invert(a), b),
                "le": self.logic("or", self.invert(a), b),
            }[op]
        if a is b and a.type == I64:
            return self.const(op in ("le", "eq"))
        return self.emit(op, BOOL, a, b)

    def logic(self, op: str, a: Value, b: Value) -> Value:
        if a.op == "const":
            a, b = b, a
        if a.type == BOOL and b.op == "const":
            if op == "xor":
                return self.invert(a) if b.data else a
            return a if b.data == (op == "and") else b
        if a is b:
            return self.const(0, a.type) if op == "xor" else a
        return self.emit(op, a.type, a, b)

    def invert(self, a: Value) -> Value:
        return a.args[0] if a.op == "not" else self.emit("not", a.type, a)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        if condition.op == "const":
            return yes if condition.data else no
        if yes is no:
            return yes
        if condition.op == "not":
            return self.select(condition.args[0], no, yes)
        if yes.type == BOOL and yes.op == "const":
            return self.logic("or", condition, no) if yes.data else self.logic("and", self.invert(condition), no)
        if no.type == BOOL and no.op == "const":
            return self.logic("or", self.invert(condition), yes) if no.data else self.logic("and", condition, yes)
        return self.emit("select", yes.type, condition, yes, no)

    def convert(self, a: Value, type: str) -> Value:
        if a.type == type:
            return a
        if type == BOOL:
            return self.compare("ne", a, self.const(0, a.type))
        if a.type == BOOL:
            return self.select(a, self.const(1, type), self.const(0, type))
        return self.emit("float" if type == F64 else "int", type, a)

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        outside, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outside

    def loop(
        self, initial: Sequence[Value], test: Callable[[list[Value]], Value], body: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """while test(carry): carry = body(carry)."""
        testing = Block(self.block, outer=self.block)
        working = Block(testing, outer=self.block)
        params = [self.source("param", value.type, block=testing) for value in initial]
        with self.inside(testing):
            condition = test(params)
        if condition.op == "const" and not condition.data:
            return list(initial)
        with self.inside(working):
            next_values = body(params)
        results = [self.source("result", value.type) for value in initial]
        self.block.statements.append(Loop(list(initial), params, testing, condition, working, next_values, results))
        return results

    def discard(self, *tops: Block) -> None:
        """Forget the length of blocks that are taken away again."""
        inside = (block for top in tops for block in blocks(top))
        self.size -= sum(isinstance(each, Value) for block in inside for each in block.statements)

    def branch(
        self, condition: Value, then: Callable[[], list[Value]], other: Callable[[], list[Value]], usual: bool = False
    ) -> list[Value]:
        """The values of one of two computations; `usual`: one of them does nothing, the other is mostly done."""
        if self.selects:
            return [self.select(condition, x, y) for x, y in zip(then(), other(), strict=True)]
        first, second = (Block(self.block, usual=usual) for _ in range(2))
        with self.inside(first):
            then_values = then()
        with self.inside(second):
            other_values = other()
        found = [a if a is b else self.source("result", a.type) for a, b in zip(then_values, other_values, strict=True)]
        differing = [k for k, (a, b) in enumerate(zip(then_values, other_values, strict=True)) if a is not b]
        arms = ([values[k] for k in differing] for values in (then_values, other_values, found))
        then_values, other_values, results = arms
        self.block.statements.append(Branch(condition, first, then_values, second, other_values, results))
        return found

    def call(self, function: Function, args: Sequence[Value]) -> list[Value]:
        """The values of a function of these arguments."""
        key, home = (function, *args), self.home(args)
        if (found := self.block.find(key)) is None:
            found = [self.source("result", value.type, block=home) for value in function.values]
            function.calls.append(Call(function, list(args), found))
            home.statements.append(function.calls[-1])
            home.table[key] = found
        return list(found)

    def repeat(self, first: int, last: int, body: Callable[[Value], None]) -> None:
        """body(counter) for counter = first ... last - 1."""
        inside = Block(self.block, outer=self.block)
        counter = self.source("param", I64, block=inside)
        with self.inside(inside):
            body(counter)
        self.block.statements.append(Repeat(counter, first, last, inside))

    def store(self, values: Sequence[Value], place: int, counter: Value | None = None, stride: int = 0) -> None:
        """memory[place + stride * counter + i] = values[i]: one number, or a row of GROUP numbers."""
        self.block.statements.append(Store(list(values), place, counter, stride))

    def load(self, place: int, counter: Value | None = None, stride: int = 0) -> Value:
        """memory[place + stride * counter], as it is now: it is neither shared nor moved."""
        self.size += 1
        value = Value("load", F64, () if counter is None else (counter,), (place, stride), self.block)
        self.block.statements.append(value)
        return value

    def convolve(self, sums: Convolve) -> None:
        """Take sums of products, at this place: whoever needs one loads it from memory."""
        self.block.statements.append(sums)
