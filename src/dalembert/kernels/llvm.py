"""The back end of this computer: a scalar program as LLVM IR, compiled by llvmlite and run by ctypes on threads.

One emitter serves one trajectory and lanes <W x double>. A lane computes exactly the operations of a single run, in
the same order. Loops over lanes are masked: a lane whose condition is false keeps its carries (a select), and the
loop ends when no lane is left. Numbers in memory have one for each lane, side by side.
LLVM may decide nothing: there are no fast-math flags, and fma stands only where the program says so. ctypes releases
the GIL during a call, so blocks of lanes run side by side.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

from . import cache as disk
from .cache import LoweredProgram
from .ir import (
    BOOL,
    F64,
    GROUP,
    I64,
    Block,
    Branch,
    Call,
    Convolve,
    Function,
    Look,
    Loop,
    Program,
    Repeat,
    Store,
    Value,
    find_look,
    free_values,
    used_values,
)
from .problem import (
    ABI,
    ARGUMENT_WORDS,
    COUNT_ARGUMENTS,
    ENTRY_SIGNATURE,
    POINTER_ARGUMENTS,
    Buffers,
    Kernel,
    Layout,
    Streams,
)

_SCALARS = {F64: "double", I64: "i64", BOOL: "i1"}
_INTRINSICS = {op: op for op in ("sqrt", "floor", "ceil", "trunc", "fma", "copysign")}
_INTRINSICS |= {"abs": "fabs", "round": "roundeven"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "neg": "fneg"}
_COMPARE = {
    F64: {"lt": "fcmp olt", "le": "fcmp ole", "eq": "fcmp oeq", "ne": "fcmp une"},
    I64: {"lt": "icmp slt", "le": "icmp sle", "eq": "icmp eq", "ne": "icmp ne"},
}
_INTEGER = {op: op for op in ("add", "sub", "mul", "and", "or", "xor", "shl")} | {"shr": "ashr"}

TASKS_PER_THREAD = 4
"""Tasks that a thread gets, so that an unlucky one does not keep the others waiting."""
MAX_FUNCTIONS = 256
"""Native functions held in memory; the one used least recently goes first."""
MAX_OPTIMISED_LINES = 4000
"""Lines of LLVM IR above which its passes cost more than they gain."""
MAX_SCHEDULED_LINES = 20_000
"""Lines of LLVM IR above which the code generator takes less trouble: 5.7 s instead of 9.9 for a bicycle, as fast."""
MAX_BLOCK_STATEMENTS = 300
"""Operations in one basic block of code that is compiled without effort: every fma there costs time in proportion to
the block (22,945 lines of a bicycle: 0.2 s instead of 1.7 to 5.9)."""
MAX_ALLOCATED_LINES = 40_000
"""Lines of a program that runs once in a call, for one trajectory, above which its numbers get no registers of their
own: below, a state of a bicycle between two steps takes 34 us instead of 56, and compiles in 2.4 s instead of 1.8. In
lanes that is not done: the first plan of a process would take 4.0 s instead of 3.2. What begins an ensemble runs often:
0.16 us for each of many bicycles instead of 0.25, and 0.3 s to compile."""
EFFORT = 2
"""How hard LLVM works on what runs more than once, 0 to 3; the numbers are the same. Tests run little of much code."""
MAX_MAKE_UP_SECONDS = 30.0
"""How long one process waits for the better code of another."""
MAX_OPTIMISED_PROGRAMS = 1000
"""Programs of a process that go through LLVM's passes: of each one they keep 0.1 to 0.2 MiB for ever."""
STORING_WIDTH = 4
"""Lanes at a time of a program that stores what it computes: more of them would not stay in the first cache."""
LONG_WIDTH, MAX_SHORT_OPERATIONS = 8, 2000
"""Lanes at a time of a step with more operations than this, and of what takes no step: they have enough to do while
one waits, and twice as many numbers in registers (car, 7,986 operations: 0.84 of the time; its beginning: 0.6)."""
MIN_CHOICES = 4
"""Numbers of the next state that one condition must choose to be worth a branch."""


CONVOLVE = """
declare <8 x double> @llvm.fma.v8f64(<8 x double>, <8 x double>, <8 x double>)
define internal void @convolve(ptr %first, i64 %groups, i64 %rows, i64 %k, ptr %out) nounwind noinline {
entry:
  %size = shl i64 %rows, 1
  %terms = icmp sgt i64 %k, 1
  br label %group
group:
  %g = phi i64 [ 0, %entry ], [ %next_g, %sum ]
  %at = mul i64 %g, %size
  %u0 = getelementptr <8 x double>, ptr %first, i64 %at
  %u1 = getelementptr <8 x double>, ptr %u0, i64 %size
  %last = add i64 %rows, %k
  %v0 = getelementptr <8 x double>, ptr %u0, i64 %last
  %v1 = getelementptr <8 x double>, ptr %u1, i64 %last
  br i1 %terms, label %term, label %sum
term:
  %j = phi i64 [ 1, %group ], [ %next_j, %term ]
  %s0 = phi <8 x double> [ zeroinitializer, %group ], [ %next_s0, %term ]
  %s1 = phi <8 x double> [ zeroinitializer, %group ], [ %next_s1, %term ]
  %back = sub i64 0, %j
  %u0_at = getelementptr <8 x double>, ptr %u0, i64 %j
  %v0_at = getelementptr <8 x double>, ptr %v0, i64 %back
  %u1_at = getelementptr <8 x double>, ptr %u1, i64 %j
  %v1_at = getelementptr <8 x double>, ptr %v1, i64 %back
  %u0_j = load <8 x double>, ptr %u0_at, align 64
  %v0_j = load <8 x double>, ptr %v0_at, align 64
  %u1_j = load <8 x double>, ptr %u1_at, align 64
  %v1_j = load <8 x double>, ptr %v1_at, align 64
  %next_s0 = call <8 x double> @llvm.fma.v8f64(<8 x double> %u0_j, <8 x double> %v0_j, <8 x double> %s0)
  %next_s1 = call <8 x double> @llvm.fma.v8f64(<8 x double> %u1_j, <8 x double> %v1_j, <8 x double> %s1)
  %next_j = add i64 %j, 1
  %more_terms = icmp slt i64 %next_j, %k
  br i1 %more_terms, label %term, label %sum
sum:
  %sum0 = phi <8 x double> [ zeroinitializer, %group ], [ %next_s0, %term ]
  %sum1 = phi <8 x double> [ zeroinitializer, %group ], [ %next_s1, %term ]
  %out0 = getelementptr <8 x double>, ptr %out, i64 %g
  %out1 = getelementptr <8 x double>, ptr %out0, i64 1
  store <8 x double> %sum0, ptr %out0, align 64
  store <8 x double> %sum1, ptr %out1, align 64
  %next_g = add i64 %g, 2
  %more_groups = icmp slt i64 %next_g, %groups
  br i1 %more_groups, label %group, label %done
done:
  ret void
}
"""
"""The convolutions of groups of pairs, as `ir.Convolve` says, with GROUP = 8."""


def write_convolve_lanes(width: int) -> str:
    """The same for lanes side by side: a register holds a term of one pair for each of them.

    Four pairs that lie side by side are summed at a time: a sum need not wait for itself then.
    """
    vector, four = f"<{width} x double>", range(4)

    def each(line: str) -> str:
        return "\n".join(line.replace("#", str(i)).replace("VECTOR", vector) for i in four)

    def at(name: str, base: str, offset: str) -> str:
        rows = f"  %{name}_row = getelementptr {vector}, ptr %{base}, i64 %{offset}\n"
        return rows + each(
            f"  %{name}_at# = getelementptr VECTOR, ptr %{name}_row, i64 #\n"
            f"  %{name}# = load VECTOR, ptr %{name}_at#, align 8"
        )

    store = each("  %to# = getelementptr VECTOR, ptr %result, i64 #\n  store VECTOR %total#, ptr %to#, align 8")
    return f"""
define internal void @convolve(ptr %memory, i64 %pairs, i64 %rows, i64 %k, ptr %out) nounwind noinline {{
entry:
  %terms = icmp sgt i64 %k, 1
  br label %pair
pair:
  %i = phi i64 [ 0, %entry ], [ %next_i, %sum ]
  %group = lshr i64 %i, 3
  %within = and i64 %i, 7
  %before = mul i64 %group, %rows
  %first = shl i64 %before, 4
  %at = add i64 %first, %within
  %u = getelementptr {vector}, ptr %memory, i64 %at
  %last = add i64 %rows, %k
  %beyond = shl i64 %last, 3
  %v = getelementptr {vector}, ptr %u, i64 %beyond
  br i1 %terms, label %term, label %sum
term:
  %j = phi i64 [ 1, %pair ], [ %next_j, %term ]
{each("  %s# = phi VECTOR [ zeroinitializer, %pair ], [ %next_s#, %term ]")}
  %ahead = shl i64 %j, 3
  %back = sub i64 0, %ahead
{at("x", "u", "ahead")}
{at("y", "v", "back")}
{each(f"  %next_s# = call VECTOR @llvm.fma.v{width}f64(VECTOR %x#, VECTOR %y#, VECTOR %s#)")}
  %next_j = add i64 %j, 1
  %more_terms = icmp slt i64 %next_j, %k
  br i1 %more_terms, label %term, label %sum
sum:
{each("  %total# = phi VECTOR [ zeroinitializer, %pair ], [ %next_s#, %term ]")}
  %result = getelementptr {vector}, ptr %out, i64 %i
{store}
  %next_i = add i64 %i, 4
  %more_pairs = icmp slt i64 %next_i, %pairs
  br i1 %more_pairs, label %pair, label %done
done:
  ret void
}}
"""


class LLVMEmitter:
    """Writes the text of one function."""

    def __init__(self, program: Program, layout: Layout, width: int, once: bool = False):
        self.program, self.layout, self.width = program, layout, width
        self.longest = MAX_BLOCK_STATEMENTS if once else 0
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.declared: set[str] = set()
        self.count = 0
        self.label = "entry"
        self.functions: dict[Function, str] = {}
        used = [value for function in program.functions for value in free_values(function, program.setup)]
        self.free = {value: place for place, value in enumerate(dict.fromkeys(used))}
        self.most_args = self.most_results = 0  # of the calls in the function that is being written
        self.convolves = False
        self.moved: dict[tuple[Value | None, int], str] = {(None, 0): "%memory"}  # the memory, a counter further
        self.turns: dict[Value, str] = {}  # the counters of loops as they are, one for all lanes
        self.choices = choices_of_state(program)
        self.look = find_look(program) if self.choices else None
        self.single = layout.single and width == 1

    def vector(self, type: str) -> str:
        scalar = _SCALARS[type]
        return scalar if self.width == 1 else f"<{self.width} x {scalar}>"

    def fresh(self, prefix: str = "v") -> str:
        self.count += 1
        return f"%{prefix}{self.count}"

    def put(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, *texts: str) -> None:
        self.lines += [f"  {text}" for text in texts]

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def labels(self, *kinds: str) -> list[str]:
        self.count += 1
        return [f"{kind}{self.count}" for kind in kinds]

    def literal(self, data: float | int | bool, type: str) -> str:
        if type == F64:
            text = f"0x{struct.unpack('>Q', struct.pack('>d', data))[0]:016X}"
        else:
            text = str(int(data)) if type == I64 else ("true" if data else "false")
        return text if self.width == 1 else f"splat ({_SCALARS[type]} {text})"

    def name(self, value: Value) -> str:
        return self.literal(value.data, value.type) if value.op == "const" else self.names[value]

    def intrinsic(self, name: str, type: str, *args: str) -> str:
        vector = self.vector(type)
        suffix = _SCALARS[type].replace("double", "f64")
        full = f"@llvm.{name}.{suffix if self.width == 1 else f'v{self.width}{suffix}'}"
        self.declared.add(f"declare {vector} {full}({', '.join([vector] * len(args))})")
        return f"call {vector} {full}({', '.join(f'{vector} {arg}' for arg in args)})"

    def operation(self, value: Value) -> str:
        """The right-hand side of one operation."""
        if value.op == "load":
            place, stride = value.data
            return f"load {self.vector(F64)}, ptr {self.place(place, next(iter(value.args), None), stride)}, align 8"
        args = [self.name(arg) for arg in value.args]
        op, type = value.op, value.type
        source = value.args[0].type
        vector, of_source = self.vector(type), self.vector(source)
        if op in _COMPARE[F64]:
            return f"{_COMPARE[source][op]} {of_source} {args[0]}, {args[1]}"
        if op == "select":
            return f"select {self.vector(BOOL)} {args[0]}, {vector} {args[1]}, {vector} {args[2]}"
        if op in ("bits", "unbits"):
            return f"bitcast {of_source} {args[0]} to {vector}"
        if op == "float":
            return f"sitofp {of_source} {args[0]} to {vector}"
        if op == "int":
            return self.saturating(args[0])
        if op == "not":
            return f"xor {vector} {args[0]}, {self.literal(-1 if type == I64 else True, type)}"
        if op in ("min", "max"):
            return self.extreme(op, type, *args)
        if type == F64 and op in _INTRINSICS:
            return self.intrinsic(_INTRINSICS[op], type, *args)
        if type == F64:
            return f"{_FLOAT[op]} {vector} {', '.join(args)}"
        return self.integer(op, vector, *args)

    def saturating(self, x: str) -> str:
        integer, double = self.vector(I64), self.vector(F64)
        suffix = "i64.f64" if self.width == 1 else f"v{self.width}i64.v{self.width}f64"
        self.declared.add(f"declare {integer} @llvm.fptosi.sat.{suffix}({double})")
        return f"call {integer} @llvm.fptosi.sat.{suffix}({double} {x})"

    def extreme(self, op: str, type: str, a: str, b: str) -> str:
        """min and max; for doubles a NaN wins: (a < b or a is NaN) ? a : b."""
        if type == I64:
            return self.intrinsic("smin" if op == "min" else "smax", I64, a, b)
        double, boolean = self.vector(F64), self.vector(BOOL)
        better = self.put(f"fcmp {'olt' if op == 'min' else 'ogt'} {double} {a}, {b}")
        is_nan = self.put(f"fcmp uno {double} {a}, {a}")
        first = self.put(f"or {boolean} {better}, {is_nan}")
        return f"select {boolean} {first}, {double} {a}, {double} {b}"

    def integer(self, op: str, vector: str, *args: str) -> str:
        if op == "neg":
            return f"sub {vector} zeroinitializer, {args[0]}" if self.width > 1 else f"sub {vector} 0, {args[0]}"
        if op == "abs":
            return self.intrinsic("smax", I64, args[0], self.put(self.integer("neg", vector, args[0])))
        if op in ("div", "rem"):
            return self.division(op, vector, *args)
        return f"{_INTEGER[op]} {vector} {args[0]}, {args[1]}"

    def division(self, op: str, vector: str, a: str, b: str) -> str:
        """Integer division without traps: a/0 = -1, a rem 0 = a, and division by -1 is negation."""
        boolean = self.vector(BOOL)
        is_zero = self.put(f"icmp eq {vector} {b}, {self.literal(0, I64)}")
        is_minus = self.put(f"icmp eq {vector} {b}, {self.literal(-1, I64)}")
        odd = self.put(f"or {boolean} {is_zero}, {is_minus}")
        safe = self.put(f"select {boolean} {odd}, {vector} {self.literal(1, I64)}, {vector} {b}")
        usual = self.put(f"{'sdiv' if op == 'div' else 'srem'} {vector} {a}, {safe}")
        minus = self.put(self.integer("neg", vector, a)) if op == "div" else self.literal(0, I64)
        result = self.put(f"select {boolean} {is_minus}, {vector} {minus}, {vector} {usual}")
        return f"select {boolean} {is_zero}, {vector} {self.literal(-1, I64) if op == 'div' else a}, {vector} {result}"

    def block(self, block: Block, mask: str | None) -> None:
        for number, statement in enumerate(block.statements, 1):
            if self.longest and number % self.longest == 0:
                (label,) = self.labels("next")
                self.do(f"br label %{label}")
                self.start(label)
            if isinstance(statement, Value):
                if statement in self.choices or (self.look and statement in self.look.sums):
                    continue
                if self.look and statement is self.look.answer:
                    self.ask(self.look)
                else:
                    self.names[statement] = self.put(self.operation(statement))
            elif isinstance(statement, Loop):
                self.loop(statement, mask)
            elif isinstance(statement, Call):
                self.call(statement, mask)
            elif isinstance(statement, Store):
                self.keep(statement)
            elif isinstance(statement, Repeat):
                self.repeat(statement)
            elif isinstance(statement, Convolve):
                self.convolve(statement)
            else:
                self.branch(statement, mask)

    def ask(self, look: Look) -> None:
        """Whether the numbers of a step are finite: those that it must look at, and all where a run is repeated."""
        last = self.are_finite([self.name(term) for term in look.terms])
        here, (whole, known) = self.label, self.labels("whole", "known")
        self.do(f"br i1 %checked, label %{whole}, label %{known}, !prof !1")
        self.start(whole)
        for value in (*look.sums, look.answer):
            self.names[value] = self.put(self.operation(value))
        asked = self.names[look.answer]
        self.do(f"br label %{known}")
        self.start(known)
        self.names[look.answer] = self.put(f"phi {self.vector(BOOL)} [ {asked}, %{whole} ], [ {last}, %{here} ]")

    def are_finite(self, names: Sequence[str]) -> str:
        """Whether numbers are finite, by their sum."""
        vector, names = self.vector(F64), list(names)
        if not names:
            return self.literal(True, BOOL)
        while len(names) > 1:
            pairs = zip(names[::2], names[1::2], strict=False)
            names = [self.put(f"fadd {vector} {a}, {b}") for a, b in pairs] + names[len(names) - len(names) % 2 :]
        size = self.put(self.intrinsic("fabs", F64, names[0]))
        return self.put(f"fcmp olt {vector} {size}, {self.literal(math.inf, F64)}")

    def both(self, mask: str | None, condition: str) -> str:
        return condition if mask is None else self.put(f"and {self.vector(BOOL)} {mask}, {condition}")

    def any(self, mask: str) -> str:
        if self.width == 1:
            return mask
        word = self.put(f"bitcast {self.vector(BOOL)} {mask} to i{self.width}")
        return self.put(f"icmp ne i{self.width} {word}, 0")

    def all(self, mask: str) -> str:
        if self.width == 1:
            return mask
        word = self.put(f"bitcast {self.vector(BOOL)} {mask} to i{self.width}")
        return self.put(f"icmp eq i{self.width} {word}, -1")

    def phis(
        self, values: Sequence[Value], initial: Sequence[str], origin: str, carried: Sequence[str], back: str
    ) -> None:
        for value, first, later in zip(values, initial, carried, strict=True):
            self.do(f"{self.names[value]} = phi {self.vector(value.type)} [ {first}, %{origin} ], [ {later}, %{back} ]")

    def loop(self, loop: Loop, mask: str | None) -> None:
        head, work, back, done = self.labels("test", "body", "again", "done")
        origin, initial = self.label, [self.name(value) for value in loop.initial]
        carried = [self.fresh("n") for _ in loop.params]
        for param, result in zip(loop.params, loop.results, strict=True):
            self.names[param] = self.names[result] = self.fresh("p")
        self.do(f"br label %{head}")
        self.start(head)
        self.phis(loop.params, initial, origin, carried, back)
        self.block(loop.test, mask)
        active = self.both(mask, self.name(loop.condition))
        self.do(f"br i1 {self.any(active)}, label %{work}, label %{done}")
        self.start(work)
        self.block(loop.body, active)
        self.do(f"br label %{back}")
        self.start(back)
        for param, value, name in zip(loop.params, loop.next_values, carried, strict=True):
            vector = self.vector(param.type)
            condition = "true" if self.width == 1 else active
            self.do(
                f"{name} = select {self.vector(BOOL)} {condition}, {vector} {self.name(value)}, "
                f"{vector} {self.names[param]}"
            )
        self.do(f"br label %{head}")
        self.start(done)

    def branch(self, branch: Branch, mask: str | None) -> None:
        condition = self.name(branch.condition)
        if self.width == 1:
            return self.choose(branch, condition)
        opposite = self.put(f"xor {self.vector(BOOL)} {condition}, {self.literal(True, BOOL)}")
        then = self.arm(branch.then, branch.then_values, self.both(mask, condition))
        other = self.arm(branch.other, branch.other_values, self.both(mask, opposite))
        for result, yes, no in zip(branch.results, then, other, strict=True):
            vector = self.vector(result.type)
            self.names[result] = self.put(f"select {self.vector(BOOL)} {condition}, {vector} {yes}, {vector} {no}")

    def choose(self, branch: Branch, condition: str) -> None:
        """The values of one arm, of a single lane."""
        then, other, done = self.labels("then", "else", "join")
        self.do(f"br i1 {condition}, label %{then}, label %{other}")
        ends = []
        for label, block, values in (then, branch.then, branch.then_values), (other, branch.other, branch.other_values):
            self.start(label)
            self.block(block, None)
            ends.append([f"[ {self.name(value)}, %{self.label} ]" for value in values])
            self.do(f"br label %{done}")
        self.start(done)
        for result, *pair in zip(branch.results, *ends, strict=True):
            self.names[result] = self.put(f"phi {self.vector(result.type)} {', '.join(pair)}")

    def arm(self, block: Block, results: Sequence[Value], active: str) -> list[str]:
        """The values of one arm, computed only if some lane wants them."""
        work, leave, done = self.labels("arm", "leave", "join")
        origin = self.label
        self.do(f"br i1 {self.any(active)}, label %{work}, label %{done}")
        self.start(work)
        self.block(block, active)
        names = [self.name(value) for value in results]
        self.do(f"br label %{leave}")
        self.start(leave)
        self.do(f"br label %{done}")
        self.start(done)
        joined = []
        for value, name in zip(results, names, strict=True):
            nothing = self.literal(0, value.type)
            joined.append(self.put(f"phi {self.vector(value.type)} [ {name}, %{leave} ], [ {nothing}, %{origin} ]"))
        return joined

    def call(self, call: Call, mask: str | None) -> None:
        """Arguments and results go through memory on the stack, a vector of lanes after the other."""
        function = call.function
        self.most_args, self.most_results = (
            max(self.most_args, len(call.args)),
            max(self.most_results, len(call.results)),
        )
        for place, (param, arg) in enumerate(zip(function.params, call.args, strict=True)):
            self.store("%args", str(place * self.width), self.name(arg), param.type)
        active = f", {self.vector(BOOL)} {mask or self.literal(True, BOOL)}" if self.width > 1 else ""
        memory = "ptr %memory, " if self.program.memory else ""
        self.do(f"call void @{self.functions[function]}(ptr %free, {memory}ptr %args, ptr %results{active})")
        for place, result in enumerate(call.results):
            self.names[result] = self.load("%results", str(place * self.width), result.type)

    def place(self, place: int, counter: Value | None = None, stride: int = 0) -> str:
        """The address of memory[place + stride * counter], which has a number for each lane."""
        return self.put(f"getelementptr {self.vector(F64)}, ptr {self.moved[counter, stride]}, i64 {place}")

    def convolve(self, statement: Convolve) -> None:
        """A loop over the pairs, which makes no code longer."""
        if statement.pairs:
            self.convolves = True
            if self.width > 1:
                self.intrinsic("fma", F64, *3 * [""])  # what the loop over lanes calls is declared
            count = statement.groups if self.width == 1 else statement.pairs
            sizes = f"i64 {count}, i64 {statement.rows}, i64 {self.turns[statement.counter]}"
            self.do(f"call void @convolve(ptr %memory, {sizes}, ptr {self.place(statement.result)})")

    def keep(self, store: Store) -> None:
        address, names = self.place(store.place, store.counter, store.stride), list(map(self.name, store.values))
        if self.width == 1 and len(names) > 1:  # as a whole, for a load of a whole row waits for stores of its parts
            row, of = "poison", f"<{len(names)} x double>"
            for i, name in enumerate(names):
                row = self.put(f"insertelement {of} {row}, double {name}, i64 {i}")
            return self.do(f"store {of} {row}, ptr {address}, align {8 * GROUP}")
        for i, name in enumerate(names):
            here = self.put(f"getelementptr {self.vector(F64)}, ptr {address}, i64 {i}")
            self.do(f"store {self.vector(F64)} {name}, ptr {here}, align 8")

    def repeat(self, repeat: Repeat) -> None:
        work, back, done = self.labels("repeat", "again", "done")
        origin, counter, after = self.label, self.fresh("k"), self.fresh("k")
        self.do(f"br label %{work}")
        self.start(work)
        self.do(f"{counter} = phi i64 [ {repeat.first}, %{origin} ], [ {after}, %{back} ]")
        self.turns[repeat.counter] = self.names[repeat.counter] = counter
        if self.width > 1:
            one = self.put(f"insertelement {self.vector(I64)} poison, i64 {counter}, i64 0")
            same = f"{self.vector(I64)} {one}, {self.vector(I64)} poison, <{self.width} x i32> zeroinitializer"
            self.names[repeat.counter] = self.put(f"shufflevector {same}")
        for stride in (1, GROUP):
            place = self.put(f"mul i64 {counter}, {stride}")
            self.moved[repeat.counter, stride] = self.put(f"getelementptr {self.vector(F64)}, ptr %memory, i64 {place}")
        self.block(repeat.body, None)
        self.do(f"br label %{back}")
        self.start(back)
        self.do(f"{after} = add i64 {counter}, 1")
        more = self.put(f"icmp slt i64 {after}, {repeat.last}")
        self.do(f"br i1 {more}, label %{work}, label %{done}")
        self.start(done)

    def stack(self, name: str, vectors: int) -> str:
        return f"  %{name} = alloca i64, i64 {max(1, vectors * self.width)}, align 64"

    def routine(self, function: Function) -> str:
        """A function of the program: its free values, its arguments and its results lie in memory."""
        outside = self.names, self.lines
        self.names, self.lines, self.most_args, self.most_results = {}, [], 0, 0
        name = self.functions[function] = f"function{len(self.functions)}"
        self.start("work")
        for value in free_values(function, self.program.setup):
            self.names[value] = self.load("%free", str(self.free[value] * self.width), value.type)
        for place, value in enumerate(function.params):
            self.names[value] = self.load("%given", str(place * self.width), value.type)
        self.block(function.body, "%active" if self.width > 1 else None)
        for place, value in enumerate(function.values):
            self.store("%out", str(place * self.width), self.name(value), value.type)
        memory = [self.stack("args", self.most_args), self.stack("results", self.most_results)]
        body = "\n".join(["entry:", *memory, "  br label %work", *self.lines, "  ret void"])
        self.names, self.lines = outside
        active = f", {self.vector(BOOL)} %active" if self.width > 1 else ""
        shared = "ptr noalias %memory, " if self.program.memory else ""
        pointers = f"ptr noalias %free, {shared}ptr noalias %given, ptr noalias %out"
        return f"define internal void @{name}({pointers}{active}) nounwind noinline {{\n{body}\n}}\n"

    def load(self, pointer: str, index: str, type: str, shared: bool = False) -> str:
        """One scalar of every lane; booleans are stored as words."""
        stored = F64 if type == F64 else I64
        scalar = _SCALARS[stored]
        address = self.put(f"getelementptr inbounds i64, ptr {pointer}, i64 {index}")
        if shared or self.width == 1:
            word = self.put(f"load {scalar}, ptr {address}, align 8")
            if self.width > 1:
                first = self.put(f"insertelement {self.vector(stored)} poison, {scalar} {word}, i64 0")
                word = self.put(
                    f"shufflevector {self.vector(stored)} {first}, {self.vector(stored)} poison, "
                    f"<{self.width} x i32> zeroinitializer"
                )
        else:
            word = self.put(f"load {self.vector(stored)}, ptr {address}, align 8")
        return self.put(f"trunc {self.vector(I64)} {word} to {self.vector(BOOL)}") if type == BOOL else word

    def store(self, pointer: str, index: str, name: str, type: str) -> None:
        if type == BOOL:
            name, type = self.put(f"zext {self.vector(BOOL)} {name} to {self.vector(I64)}"), I64
        address = self.put(f"getelementptr inbounds i64, ptr {pointer}, i64 {index}")
        self.do(f"store {self.vector(type)} {name}, ptr {address}, align 8")

    def slot(self, row: str | int, lane: str) -> str:
        """The index of a scalar of this lane in a (rows, lanes) buffer."""
        if self.single:
            return str(row)
        return self.put(f"add i64 {self.put(f'mul i64 {row}, %stride')}, {lane}")

    def load_inputs(self, lane: str) -> None:
        rows = {True: 0, False: 0}
        for value, varies in zip(self.program.constants, self.layout.varying, strict=True):
            if varies:
                self.names[value] = self.load("%varying", self.slot(rows[True], lane), value.type)
            else:
                self.names[value] = self.load("%shared", str(rows[False]), value.type, shared=True)
            rows[varies] += 1

    def table(self, name: str, arrays: int) -> list[tuple[str, str, str]]:
        """The addresses of the arrays in a table, the words from a row to the next, and from a number to the next."""
        found: list[Any] = []
        for place in range(0, 3 * arrays, 3):
            entries = [self.put(f"getelementptr i64, ptr %{name}, i64 {place + i}") for i in range(3)]
            found.append(
                tuple(
                    self.put(f"load {t}, ptr {e}, align 8") for t, e in zip(("ptr", "i64", "i64"), entries, strict=True)
                )
            )
        return found

    def row_of(self, array: tuple[str, str, str], row: str) -> str:
        """The address of a row of an array."""
        return self.put(f"getelementptr i64, ptr {array[0]}, i64 {self.put(f'mul i64 {row}, {array[1]}')}")

    def entry(self, array: tuple[str, str, str], place: int, lane: str | None) -> str:
        """The index of a number of this lane in a row of an array."""
        index = self.put(f"mul i64 {place}, {array[2]}")
        return index if lane is None else self.put(f"add i64 {index}, {lane}")

    def load_streams(self, streams: Streams, arrays: Sequence[tuple[str, str, str]], step: str, lane: str) -> None:
        controls = iter(self.program.controls)
        for stream, array in zip(streams.controls, arrays, strict=True):
            row = self.row_of(array, step if stream.clock == "step" else "%save")
            for place, value in zip(stream.places, controls, strict=False):
                if place >= 0:
                    index = self.entry(array, place, lane if stream.varies else None)
                    self.names[value] = self.load(row, index, value.type, shared=not stream.varies)
                if stream.clock == "record begins":
                    first, vector = self.put("icmp eq i64 %k, 0"), self.vector(BOOL)
                    never = self.literal(False, BOOL)
                    self.names[value] = self.put(f"select i1 {first}, {vector} {self.names[value]}, {vector} {never}")

    def keep_row(
        self, streams: Streams, array: tuple[str, str, str], step: str, lane: str, states: Sequence[str]
    ) -> None:
        """Store what is kept of a step; `states` are the names of the state before it and after it."""
        row, program = self.row_of(array, step), self.program
        types = [value.type for value in (*program.state, *program.state)]
        for place, source in enumerate(streams.kept):
            if source < len(states):
                name, type = states[source], types[source]
            else:
                note = program.notes[source - len(states)]
                assert note is not None
                name, type = self.name(note), note.type
            self.store(row, self.entry(array, place, lane if streams.many else None), name, type)

    def load_controls(self, step: str, lane: str) -> None:
        width = len(self.program.controls)
        for place, value in enumerate(self.program.controls):
            row = self.put(f"add i64 {self.put(f'mul i64 {step}, {width}')}, {place}")
            index = row if self.single else self.put(f"mul i64 {row}, %control_stride")
            if self.layout.controls_vary:
                index = self.put(f"add i64 {index}, {lane}")
            self.names[value] = self.load("%controls", index, value.type, shared=not self.layout.controls_vary)

    def store_record(self, save: str, lane: str, arrays: Sequence[tuple[str, str, str]]) -> None:
        streams = self.layout.streams
        if streams is not None:
            record = iter(self.program.record)
            for size, array in zip(self.layout.leaves, arrays, strict=False):
                row = self.row_of(array, save)
                for place, value in zip(range(size), record, strict=False):
                    index = self.entry(array, place, lane if streams.many else None)
                    self.store(row, index, self.name(value), value.type)
            return
        for (before, size, place), value in zip(self.layout.offsets, self.program.record, strict=True):
            first, here = self.put(f"mul i64 %capacity, {before}"), self.put(f"mul i64 {save}, {size}")
            row = self.put(f"add i64 {first}, {here}")
            if self.single:  # the numbers of a leaf lie side by side
                leaf = self.put(f"getelementptr inbounds i64, ptr %records, i64 {row}")
                self.store(leaf, str(place), self.name(value), value.type)
            else:
                index = self.slot(self.put(f"add i64 {row}, {place}"), lane)
                self.store("%records", index, self.name(value), value.type)

    def function(self, name: str) -> str:
        """for every vector of lanes: load, for every record: advance `every` times and observe, store the state."""
        program = self.program
        pointers = ", ".join(f"ptr noalias %{each}" for each in POINTER_ARGUMENTS)
        counts = ", ".join(f"i64 %{each}" for each in COUNT_ARGUMENTS)
        routines = "".join(map(self.routine, program.functions))
        self.most_args = self.most_results = 0
        self.label, alike = "entry", not any(self.layout.varying) and not program.memory
        if alike:
            self.set_up()
        again, before = ", [ {}, %repeated ]" if self.look else "", self.label
        self.do("br label %lanes")
        self.start("lanes")
        self.do(f"%lane = phi i64 [ %begin, %{before} ], [ %next_lane, %lanes_end ]" + again.format("%lane"))
        if self.look:
            self.do(f"%checked = phi i1 [ false, %{before} ], [ false, %lanes_end ]" + again.format("true"))
        if not alike:
            self.set_up()
        initial = [self.load("%state", self.slot(row, "%lane"), value.type) for row, value in enumerate(program.state)]
        streams, given, made = self.layout.streams, [], []
        if streams is not None:
            given = self.table("controls", len(streams.controls))
            made = self.table("records", len(self.layout.leaves) + 1)
        at_save, at_step = [self.fresh("s") for _ in program.state], [self.fresh("s") for _ in program.state]
        origin = self.label
        stepped, at_end = [self.fresh("f") for _ in program.state], [self.fresh("s") for _ in program.state]
        self.do("br label %saves")
        self.start("saves")
        self.do(f"%save = phi i64 [ %first, %{origin} ], [ %next_save, %saves_end ]")
        self.names.update(zip(program.state, at_save, strict=True))
        self.phis(program.state, initial, origin, at_end, "saves_end")
        self.do("%from = sub i64 %save, %first", "%step0 = mul i64 %from, %every")
        self.do("%some_steps = icmp sgt i64 %every, 0", "br i1 %some_steps, label %steps, label %observe")
        self.start("steps")
        self.do("%k = phi i64 [ 0, %saves ], [ %next_k, %steps_end ]")
        self.names.update(zip(program.state, at_step, strict=True))
        self.phis(program.state, at_save, "saves", stepped, "steps_end")
        if self.look:
            self.keep_state()
        step = self.put("add i64 %step0, %k") if streams or program.controls else ""
        if streams is not None:
            step = self.put(f"add i64 %control_stride, {step}")
            self.load_streams(streams, given, step, "%lane")
        elif program.controls:
            self.load_controls(step, "%lane")
        self.block(program.advance, None)
        self.choose_state(stepped)
        if streams is not None and streams.kept:
            self.keep_row(streams, made[-1], step, "%lane", [*at_step, *stepped])
        self.do("%next_k = add i64 %k, 1", "%more_steps = icmp slt i64 %next_k, %every")
        self.do("br i1 %more_steps, label %steps, label %observe")
        self.start("observe")  # the state after the steps, or the one before where there are none
        self.names.update(zip(program.observed, at_end, strict=True))
        self.phis(program.observed, at_save, "saves", stepped, "steps_end")
        self.block(program.observe, None)
        self.store_record("%save", "%lane", made)
        self.do("br label %saves_end")
        self.start("saves_end")
        self.do("%next_save = add i64 %save, 1", "%more_saves = icmp slt i64 %next_save, %last")
        self.do(f"br i1 %more_saves, label %saves, label %{'ended' if self.look else 'lanes_end'}")
        if self.look:
            self.start("ended")
            good = self.all(self.are_finite([at_end[place] for place in self.look.places]))
            over = self.put(f"or i1 %checked, {good}")
            self.do(f"br i1 {over}, label %lanes_end, label %repeated, !prof !0")
            self.start("repeated")
            self.do("br label %lanes")
        self.start("lanes_end")
        for row, (value, result) in enumerate(zip(at_end, program.next_state, strict=True)):
            self.store("%state", self.slot(row, "%lane"), value, result.type)
        self.do(f"%next_lane = add i64 %lane, {self.width}", "%more_lanes = icmp slt i64 %next_lane, %end")
        self.do("br i1 %more_lanes, label %lanes, label %finish")
        self.start("finish")
        memory = [self.stack("before", len(program.state))] if self.look else []
        if self.functions:
            sizes = {"free": len(self.free), "args": self.most_args, "results": self.most_results}
            memory += [self.stack(each, size) for each, size in sizes.items()]
        if program.memory:
            self.declared |= {"declare ptr @malloc(i64)", "declare void @free(ptr)"}
            memory += [  # a line of the cache holds GROUP numbers
                f"  %allocated = call ptr @malloc(i64 {8 * (self.width * program.memory + GROUP)})",
                "  %address = ptrtoint ptr %allocated to i64",
                f"  %beyond = add i64 %address, {8 * GROUP - 1}",
                f"  %aligned = and i64 %beyond, {-8 * GROUP}",
                "  %memory = inttoptr i64 %aligned to ptr",
            ]
            self.do("call void @free(ptr %allocated)")
        self.do("ret void")
        body, declarations = (
            "\n".join(["entry:", *memory, *self.lines]),
            "\n".join(sorted(self.declared)),
        )
        if self.convolves:
            routines = (CONVOLVE if self.width == 1 else write_convolve_lanes(self.width)) + routines
        return f"{declarations}\n{routines}define void @{name}({pointers}, {counts}) nounwind noinline {{\n{body}\n}}\n"

    def set_up(self) -> None:
        """What depends on constants alone: before all lanes, where these have the same constants."""
        self.load_inputs("%lane")
        self.block(self.program.setup, None)
        for used, place in self.free.items():
            self.store("%free", str(place * self.width), self.name(used), used.type)

    def choose_state(self, stepped: Sequence[str]) -> None:
        """The state after a step: where all lanes were good there is nothing to choose, and the next step may begin.

        A processor foresees a branch. Selects would let the next step wait until the last number of this one is known
        to be finite. Where a look comes at the end of a run, a step that fails ends it too, and the run is repeated
        with the state before every step in memory, so that nothing else need hold it.
        """
        results = list(zip(stepped, self.program.next_state, strict=True))
        if self.choices:
            condition = next(iter(self.choices)).args[0]
            failed = "failed" if self.look else "stayed"
            self.do(f"br i1 {self.all(self.name(condition))}, label %went, label %{failed}, !prof !0")
            if self.look:
                self.start("failed")
                self.do("br i1 %checked, label %stayed, label %repeated")
            self.start("stayed")
            before = {}
            for value in self.choices if self.look else ():
                before[value] = self.load("%before", self.kept_at(value), value.type)
            chosen = {value: self.put(self.choice(value, before.get(value))) for value in self.choices}
            self.do("br label %steps_end")
            self.start("went")
        self.do("br label %steps_end")
        self.start("steps_end")
        for name, result in results:
            if result in self.choices:
                went = self.name(result.args[1])
                self.do(f"{name} = phi {self.vector(result.type)} [ {went}, %went ], [ {chosen[result]}, %stayed ]")
        for name, result in results:
            if result not in self.choices:
                vector = self.vector(result.type)
                self.do(f"{name} = select i1 true, {vector} {self.name(result)}, {vector} {self.name(result)}")

    def kept_at(self, choice: Value) -> str:
        """Where in memory the state before a step has what a choice takes if the step fails."""
        return str(self.width * self.program.state.index(choice.args[2]))

    def choice(self, value: Value, old: str | None) -> str:
        condition, new = map(self.name, value.args[:2])
        vector = self.vector(value.type)
        return f"select {self.vector(BOOL)} {condition}, {vector} {new}, {vector} {old or self.name(value.args[2])}"

    def keep_state(self) -> None:
        """Keep the state before a step in memory, where a run is repeated."""
        self.do("br i1 %checked, label %keep, label %kept, !prof !1")
        self.start("keep")
        for value in self.choices:
            self.store("%before", self.kept_at(value), self.name(value.args[2]), value.type)
        self.do("br label %kept")
        self.start("kept")


def choices_of_state(program: Program) -> dict[Value, None]:
    """The numbers of the next state that the same condition chooses, as a failed step makes them; few are none."""
    read = {*used_values(program.advance), *program.notes}
    own = (value for value in program.next_state if value.op == "select" and value.block is program.advance)
    choices = [value for value in dict.fromkeys(own) if value not in read and value.args[2] in program.state]
    counts = Counter(value.args[0] for value in choices)
    condition = max(counts, key=lambda value: counts[value], default=None)
    found = [value for value in choices if value.args[0] is condition]
    return dict.fromkeys(found if len(found) >= MIN_CHOICES else [])


def llvm_source(program: Program, layout: Layout, width: int, name: str = "run", once: bool = False) -> str:
    """The run as LLVM IR; what is called `once` is cut into parts that compile fast."""
    likely = '!0 = !{!"branch_weights", i32 65536, i32 1}\n!1 = !{!"branch_weights", i32 1, i32 65536}\n'
    return LLVMEmitter(program, layout, width, once).function(name) + _entry(name) + likely


def _entry(name: str) -> str:
    """The same function of the address of its arguments: Python passes one ten times as fast as thirteen."""
    types = ["ptr"] * len(POINTER_ARGUMENTS) + ["i64"] * len(COUNT_ARGUMENTS)
    address = "  %p{0} = getelementptr i64, ptr %words, i64 {0}\n  %a{0} = load {1}, ptr %p{0}"
    lines = [address.format(i, type) for i, type in enumerate(types)]
    arguments = ", ".join(f"{type} %a{i}" for i, type in enumerate(types))
    body = "\n".join([*lines, f"  call void @{name}({arguments})", "  ret void"])
    return f"define void @enter_{name}(ptr %words) nounwind {{\n{body}\n}}\n"


@cache
def _host() -> tuple[str, str, str]:
    """Triple, name and features of this processor."""
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


@cache
def _emitter_text() -> str:
    """The text of the emitter and of what it asks of programs: code of another version must not be found again."""
    return "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("llvm.py", "ir.py"))


@cache
def best_width(lanes: int = 16) -> int:
    """The doubles in a vector register; in two where there are 32 of them, so that one hides the other's latency.

    Up to four lanes take a register of four: that is faster, and code for more widths would be compiled more often.
    """
    features = _host()[2].split(",")
    most = 16 if "+avx512f" in features else 4 if "+avx" in features else 2
    return min(most, 4) if lanes <= 4 else most


def fitting_width(lowered: LoweredProgram) -> int:
    """The most lanes at a time that suit a program."""
    short = 0 < lowered.operations <= MAX_SHORT_OPERATIONS
    return STORING_WIDTH if lowered.memory else best_width() if short else LONG_WIDTH


_functions: OrderedDict[tuple[str, Layout, int], Kernel] = OrderedDict()


def native_function(lowered: LoweredProgram, layout: Layout, width: int) -> Kernel:
    """The run of a program on `width` lanes at a time, as a native function; compiled once.

    MAX_FUNCTIONS are kept. Of the others a session keeps its own, and the memory of the code returns with the last one.
    """
    key = (lowered.digest, layout, width)
    function = _functions.get(key) or compile_native(lowered, layout, width)
    _functions[key] = function
    with suppress(KeyError):  # another thread may have taken it out
        _functions.move_to_end(key)
        while len(_functions) > MAX_FUNCTIONS:
            _functions.popitem(last=False)
    return function


def compile_native(lowered: LoweredProgram, layout: Layout, width: int) -> Kernel:
    """The run of a program on `width` lanes at a time: machine code from the disk, or else from LLVM."""
    import llvmlite

    passes = len(_optimised) < MAX_OPTIMISED_PROGRAMS
    parts = (repr(layout), str(width), ABI, _emitter_text(), llvmlite.__version__, str(passes), str(EFFORT), *_host())
    key = disk.entry_key(lowered.digest, *parts)

    def build(most: int = EFFORT) -> bytes:
        program = lowered.program
        once = not program.operations or (layout.streams is not None and layout.streams.once)
        alone = (width == 1 or layout.often) and program.text.count("\n") <= MAX_ALLOCATED_LINES
        effort = min(most, int(alone)) if once else most
        if effort and passes and not once:
            _optimised.add(key)
        sums = width == 1 and program.parallel_sums
        return compile_object(llvm_source(program, layout, width, once=not effort), effort, sums, passes and not once)

    def hurry() -> bytes:
        _owed[key] = build
        return build(0)

    if EFFORT and _hastens.get() and disk.cache_folder() is not None and not disk.has_entry(key):
        _owed[key] = None  # another process has built it, and will build the better one
        return disk.load_or_build(disk.entry_key(key, "in haste"), hurry, load_object)
    return disk.load_or_build(key, build, load_object)


_hastens: ContextVar[bool] = ContextVar("whether somebody waits for a first run", default=False)
_owed: dict[str, Callable[[], bytes] | None] = {}


@contextmanager
def in_haste() -> Iterator[None]:
    """A context in which what is not on disk is compiled without effort: `make_up` is to follow. Numbers are equal."""
    token = _hastens.set(True)
    try:
        yield
    finally:
        _hastens.reset(token)


def make_up() -> bool:
    """Compile with effort what was compiled in haste, and let go of the hasty code; whether there was some."""
    end, owed = time.monotonic() + MAX_MAKE_UP_SECONDS, bool(_owed)
    while _owed:
        key, build = _owed.popitem()
        if build is not None:
            disk.load_or_build(key, build, bytes)
        while not disk.has_entry(key) and time.monotonic() < end:  # another process is at it
            time.sleep(0.1)
    if owed:
        _functions.clear()
    return owed


def compile_object(text: str, effort: int = 2, vectorise: bool = False, passes: bool = True) -> bytes:
    """An object file for this processor; `effort` 0 compiles ten times as fast as 2.

    With `vectorise` LLVM puts equal operations side by side into one: the same numbers, and worth its time for long
    sums. A long text goes to the code generator as it is: our own optimiser has done what LLVM's passes look for, and
    in small loops, where they still find something, they take no time.
    """
    import llvmlite.binding as binding

    lines, (triple, cpu, features) = text.count("\n"), _host()
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu,
        features=features,
        opt=min(effort, 1) if lines > MAX_SCHEDULED_LINES else effort,
        reloc="pic",
        codemodel="small",
    )
    module = binding.parse_assembly(text)
    module.triple = triple
    module.data_layout = str(machine.target_data)
    if passes and effort and lines < MAX_OPTIMISED_LINES:
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.loop_unrolling = False
        options.slp_vectorization = vectorise
        builder = binding.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


@cache
def _linker() -> Any:
    import llvmlite.binding as binding

    _host()
    return binding.create_lljit_compiler(use_jit_link=True)


_library_numbers = itertools.count()
_optimised: set[str] = set()


def load_object(machine_code: bytes) -> Kernel:
    """The function in an object file; its code is unloaded when nothing holds the function any more."""
    library = link_object(machine_code, ["enter_run"])
    enter, words = ENTRY_SIGNATURE(library["enter_run"]), ARGUMENT_WORDS.pack

    def call(*arguments: int, library: Any = library) -> None:
        enter(words(*arguments))

    return call


def link_object(machine_code: bytes, names: Sequence[str]) -> Any:
    """The addresses of some functions of an object file, by their names; the code stays as long as they are held."""
    import llvmlite.binding as binding

    builder = binding.JITLibraryBuilder().add_object_img(machine_code).add_current_process()
    for name in names:
        builder.export_symbol(name)
    return builder.link(_linker(), f"kernel-{next(_library_numbers)}")


Place = tuple[int, int]  # a space (an argument or a result of a script; -1: none) and the bytes before it there


def call_line(
    function: Kernel, places: Sequence[Place], counts: Sequence[int], last: int = 1,
    lanes: tuple[int, int, int] = (1, 0, 1),
) -> list[int]:  # fmt: skip
    """The line of a script (`scripts.ll`) that calls a kernel with (capacity, first, last, every).

    `last` is its last argument, and `lanes` are (stride, begin, end): one lane, unless told.
    """
    named = function.__kwdefaults__
    assert named is not None, "not a function of `load_object`"
    numbers = [(-1, each) for each in (*counts, *lanes, last)]
    return [6, int(named["library"]["enter_run"]), *(word for place in (*places, *numbers) for word in place)]


KEEP_SMALL = {
    "x86_64": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @keep_small(i64 %given, i1 %now) nounwind noinline {
  %word = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %old = load i32, ptr %word
  %kept = and i32 %old, -32833
  %other = trunc i64 %given to i32
  %new = select i1 %now, i32 %kept, i32 %other
  store i32 %new, ptr %word
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  %before = zext i32 %old to i64
  ret i64 %before
}
""",
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @keep_small(i64 %given, i1 %now) nounwind noinline {
  %old = call i64 @llvm.aarch64.get.fpcr()
  %kept = and i64 %old, -16777217
  %new = select i1 %now, i64 %kept, i64 %given
  call void @llvm.aarch64.set.fpcr(i64 %new)
  ret i64 %old
}
""",
}
"""How a thread is told not to flush subnormal numbers to 0, and then what it was told before."""
LEAVE_SMALL = "define internal i64 @keep_small(i64 %given, i1 %now) nounwind { ret i64 0 }"


@cache
def script_player() -> tuple[Callable[[int, bytes], None], int, Any]:
    """The function that plays the script at an address with the addresses of its spaces, XLA's, and what holds both."""
    import jax
    import llvmlite

    header = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    known = header.read_text(encoding="utf-8") if header.exists() else ""
    machine = _host()[0].partition("-")[0].replace("arm64", "aarch64")
    text = Path(__file__).with_name("scripts.ll").read_text(encoding="utf-8") + KEEP_SMALL.get(machine, LEAVE_SMALL)
    for name in ("MAJOR", "MINOR"):
        found = known.partition(f"#define XLA_FFI_API_{name} ")[2].split()
        text = text.replace(f"i32 {name}", f"i32 {found[0] if found else 0}")
    key = disk.entry_key(text, llvmlite.__version__, *_host())
    link = partial(link_object, names=("play", "answer"))
    library: Any = disk.load_or_build(key, lambda: compile_object(text), link)
    play = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)(library["play"])
    return play, int(library["answer"]) if known else 0, library


def count_processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LaneThreads:
    """Threads that call a native function, each for some vectors of `width` lanes."""

    def __init__(self, stride: int, width: int, threads: int | None = None):
        vectors, self.stride = stride // width, stride
        self.threads = max(1, min(threads or count_processors(), vectors))
        tasks = 1 if self.threads == 1 else min(vectors, TASKS_PER_THREAD * self.threads)
        self.ranges = [(vectors * i // tasks * width, vectors * (i + 1) // tasks * width) for i in range(tasks)]
        self.pool = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None

    def call(self, function: Kernel, pointers: Sequence[int], counts: Sequence[int], control_stride: int) -> None:
        """Call it with these pointers and (capacity, first, last, every)."""
        if self.pool is None:  # there is one task, and nobody to share it with
            return function(*pointers, *counts, self.stride, *self.ranges[0], control_stride)
        self.share(lambda part: function(*pointers, *counts, self.stride, *part, control_stride), self.ranges)

    def share(self, do: Callable[[Any], None], tasks: Sequence[Any]) -> None:
        """Do all tasks: whoever is free takes the next one."""
        rest = iter(tasks)

        def work() -> None:
            for task in rest:
                do(task)

        if self.pool is None:
            return work()
        helpers = [self.pool.submit(work) for _ in range(self.threads - 1)]
        work()  # this thread is one of them: a short call does not wait for two to wake up
        for helper in helpers:
            helper.result()


class NativeSession:
    """A run in calls of a native function."""

    limit = 1 << 62

    def __init__(self, name: str, function: Kernel, buffers: Buffers, width: int, threads: int | None):
        self.name, self.function, self.buffers, self.width = name, function, buffers, width
        self.words = buffers.lowered.words
        self.workers = LaneThreads(buffers.stride, width, threads)
        self.threads = self.workers.threads

    def reserve(self, capacity: int) -> None:
        b = self.buffers
        b.reserve(capacity)
        self.addresses = [array.ctypes.data for array in (b.shared, b.varying, b.state, b.controls, b.records)]

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        b = self.buffers
        shared, varying, state, controls, records = self.addresses
        pointers = (shared, varying, state, controls + 8 * step * b.control_row, records)
        self.workers.call(self.function, pointers, (b.capacity, first, first + count, every), b.control_stride)

    def carry(self) -> Any:
        return self.buffers.unpack_carry()

    def records(self, count: int) -> Any:
        return self.buffers.unpack_records(count)

    def save_state(self) -> Any:
        return self.buffers.state.copy()

    def restore_state(self, state: Any) -> None:
        self.buffers.state[...] = state
