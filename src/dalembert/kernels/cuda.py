"""The GPU back end: a scalar program as C that NVRTC compiles through CuPy, one thread for each trajectory.

Control flow is that of C, because every thread has its own. The state stays in registers during a run; lanes are the
fastest axis of every buffer, so neighbouring threads touch neighbouring words. A C compiler makes the same text run on
the CPU, for tests. CuPy is imported where it is used, for a machine without a GPU may not have it.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import jax.dlpack
import numpy as np

from . import cache as disk
from .cache import LoweredProgram
from .ir import (
    BOOL,
    F64,
    I64,
    Block,
    Branch,
    Call,
    Convolve,
    Function,
    Look,
    Loop,
    LoweringError,
    Program,
    Repeat,
    Statement,
    Store,
    Value,
    find_look,
    free_values,
    used_values,
)
from .lowering import find_late
from .problem import ABI, COUNT_ARGUMENTS, POINTER_ARGUMENTS, Buffers, Layout, Problem, make_layout

BLOCK_THREADS = 64
"""Threads of a GPU block: programs fill the registers, and small blocks share a multiprocessor best."""
MULTIPROCESSOR_BLOCKS, MANY_BLOCKS = 8, 10
"""Blocks of a multiprocessor: 128 registers for each thread, or 102. Measured on an H200: more spills are slower."""
MAX_KEPT = 48
"""Numbers that steps read and do not make, up to which `MANY_BLOCKS` are faster: Suslov's body has 43, the disk 74."""
DEVICE_RECORD_BYTES = 1 << 28
"""Bytes of records that stay on the device before they are copied to the host."""
MAX_MEMORY = 4096
"""Numbers that a thread may keep in memory: the GPU sets them aside for every thread that it can hold."""
NVRTC_OPTIONS = ("--std=c++17", "--fmad=false")

PRELUDE = Path(__file__).with_name("prelude.h").read_text(encoding="utf-8")
"""What the C of every program begins with."""

_TYPES = {F64: "double", I64: "word", BOOL: "bool"}
# fmt: off
_C_FORMS = {
    F64: {
        "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
        "abs": "fabs({})", "sqrt": "sqrt({})", "floor": "floor({})", "ceil": "ceil({})", "round": "rint({})",
        "trunc": "trunc({})", "fma": "fma({}, {}, {})", "copysign": "copysign({}, {})",
        "min": "lesser({}, {})", "max": "greater({}, {})", "float": "(double){}", "unbits": "unbits({})",
    },
    I64: {
        "add": "add_words({}, {})", "sub": "sub_words({}, {})", "mul": "mul_words({}, {})",
        "div": "div_words({}, {})", "rem": "rem_words({}, {})", "neg": "sub_words(0, {})",
        "abs": "({0} < 0 ? sub_words(0, {0}) : {0})",
        "min": "({0} < {1} ? {0} : {1})", "max": "({0} > {1} ? {0} : {1})",
        "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "~{}",
        "shl": "shift_left({}, {})", "shr": "{} >> {}", "int": "to_word({})", "bits": "bits({})",
    },
    BOOL: {
        "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "!{}",
        "lt": "{} < {}", "le": "{} <= {}", "eq": "{} == {}", "ne": "{} != {}",
    },
}
# fmt: on


def literal(value: Value) -> str:
    """A constant as C reads it back to the last bit."""
    if value.type == BOOL:
        return "true" if value.data else "false"
    if value.type == I64:
        return f"{value.data}LL" if value.data > -(1 << 63) else "(-0x7fffffffffffffffLL - 1)"
    if math.isnan(value.data):
        return "unbits(0x7ff8000000000000LL)"
    if math.isinf(value.data):
        return f"unbits({'-0x0010000000000000LL' if value.data < 0 else '0x7ff0000000000000LL'})"
    return f"({value.data.hex()})"


class CEmitter:
    """Writes the text of one kernel."""

    def __init__(self, program: Program, layout: Layout):
        self.program, self.layout = program, layout
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.indent = 1
        self.count = 0
        self.functions: dict[Function, str] = {}
        self.repeated = False  # whether the steps that are written look at all their numbers
        used = [value for function in program.functions for value in free_values(function, program.setup)]
        self.free = {value: place for place, value in enumerate(dict.fromkeys(used))}
        self.reads = Counter(used_values(program.setup) + used_values(program.advance) + used_values(program.observe))
        self.look = find_look(program)
        if layout.streams and layout.streams.kept:
            self.look = None
        self.told = set(self.find_told())
        self.late = set(find_late(program, self.look) if self.look and not program.memory else [])
        self.after = self.find_after(self.look) if self.look else None

    def put(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    @contextmanager
    def braces(self, opening: str) -> Iterator[None]:
        self.put(f"{opening} {{")
        self.indent += 1
        yield
        self.indent -= 1
        self.put("}")

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def name(self, value: Value) -> str:
        return literal(value) if value.op == "const" else self.names[value]

    def define(self, value: Value, text: str) -> None:
        self.names[value] = self.fresh()
        self.put(f"const {_TYPES[value.type]} {self.names[value]} = {text};")

    def variables(self, values: Sequence[Value], initial: Sequence[str] | None = None) -> list[str]:
        """Declare variables for values that change, and name the values after them."""
        names = []
        for i, value in enumerate(values):
            names.append(self.fresh())
            self.names[value] = names[-1]
            self.put(f"{_TYPES[value.type]} {names[-1]}" + (f" = {initial[i]};" if initial else ";"))
        return names

    def assign(self, variables: Sequence[str], values: Sequence[Value]) -> None:
        """Assign all variables at once: the new values may be other variables of the list."""
        clash = set(variables)
        sources = []
        for variable, value in zip(variables, values, strict=True):
            source = self.name(value)
            if source in clash and source != variable:
                copy = self.fresh()
                self.put(f"const {_TYPES[value.type]} {copy} = {source};")
                source = copy
            sources.append(source)
        for variable, source in zip(variables, sources, strict=True):
            if variable != source:
                self.put(f"{variable} = {source};")

    def block(self, block: Block) -> None:
        self.statements([statement for statement in block.statements if statement not in self.late])

    def statements(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Value):
                if self.look is None or statement not in (*self.look.sums, self.look.answer):
                    known = statement in self.told and not self.repeated  # a lane that failed is repeated at once
                    self.define(statement, "true" if known else self.operation(statement))
                elif statement is self.look.answer:
                    self.ask(self.look)
            elif isinstance(statement, Loop):
                self.loop(statement)
            elif isinstance(statement, Call):
                self.call(statement)
            elif isinstance(statement, Store):
                place = self.place(statement.place, statement.counter, statement.stride)
                for i, value in enumerate(statement.values):
                    self.put(f"({place})[{i}] = {self.name(value)};")
            elif isinstance(statement, Repeat):
                self.repeat(statement)
            elif isinstance(statement, Convolve):
                self.convolve(statement)
            else:
                self.branch(statement)

    def ask(self, look: Look) -> None:
        """Whether the numbers of a step are finite: those that it must look at, and all where a run is repeated."""
        if self.repeated:
            for value in (*look.sums, look.answer):
                self.define(value, self.operation(value))
        else:
            self.define(look.answer, are_finite([self.name(term) for term in look.terms]))

    def finish(self, look: Look, state: Mapping[int, str]) -> None:
        """The state after a step. Where a step is not good, the run is repeated from its start, with all looks.

        The last step before a record computes what the others need not, and so does every step of a run that is
        repeated: a step that fails shows what the one before it left.
        """
        new, chosen = self.program.next_state, look.chosen
        rest = [i for i in state if i not in chosen]
        with self.braces(f"if (!{self.name(look.condition)})"):
            if self.repeated:
                self.assign([state[i] for i in rest], [new[i] for i in rest])
            self.put("continue;" if self.repeated else "repeated = true; goto again;")
        if self.late and (self.repeated or self.after is None):
            with self.braces("" if self.repeated else "if (k + 1 == every)"):
                self.compute_late(look, state, self.late)
        read = [i for i in state if not (self.late and i in look.held)]
        self.assign([state[i] for i in read], [new[i].args[1] if i in chosen else new[i] for i in read])

    def compute_late(self, look: Look, state: Mapping[int, str], late: Collection[Statement]) -> None:
        """What only a record shows of a step."""
        self.statements([each for each in self.program.advance.statements if each in late])
        self.assign([state[i] for i in look.held], [self.program.next_state[i].args[1] for i in look.held])

    def values_after(self, look: Look) -> dict[Value, int]:
        """The values after a good step that the state has, with their places."""
        new = enumerate(self.program.next_state)
        return {value.args[1] if i in look.chosen else value: i for i, value in new if i not in look.held}

    def find_after(self, look: Look) -> list[Value] | None:
        """The late values that follow from the state after the steps; None where one needs more than that."""
        program, new = self.program, self.program.next_state
        known = {*program.constants, *self.values_after(look)}
        needed = [new[i].args[1] for i in look.held]
        for value in needed:
            if value in self.late:
                needed += value.args
            elif not (value.op == "const" or value.block is program.setup or value in known):
                return None
        return [value for value in needed if value in self.late]

    def steps(self, state: Mapping[int, str]) -> None:
        """The steps between two records."""
        with self.braces("for (word k = 0; k != every; ++k)"):
            self.controls()
            self.block(self.program.advance)
            self.keep_row()
            if self.look:
                self.finish(self.look, state)
            else:
                self.assign([*state.values()], [self.program.next_state[i] for i in state])
        if self.look and self.late and self.after is not None and not self.repeated:
            self.names.update((value, state[i]) for value, i in self.values_after(self.look).items() if i in state)
            with self.braces("if (every != 0)"):
                self.compute_late(self.look, state, self.after)

    def find_told(self) -> list[Value]:
        """Parts of the condition that the state alone tells: whether a lane has not failed before."""
        parts, known = [self.look.condition] if self.look else [], set(self.program.state)
        for part in parts:
            parts += part.args if part.op == "and" else ()
        return [part for part in parts if part.args and all(arg in known or arg.op == "const" for arg in part.args)]

    def place(self, place: int, counter: Value | None = None, stride: int = 0) -> str:
        moved = f"memory + {place}"
        return moved if counter is None else f"{moved} + {stride} * {self.name(counter)}"

    def convolve(self, statement: Convolve) -> None:
        sizes = f"{statement.pairs}, {statement.rows}, {self.name(statement.counter)}"
        self.put(f"convolve({sizes}, memory, {self.place(statement.result)});")

    def repeat(self, repeat: Repeat) -> None:
        counter = self.names[repeat.counter] = self.fresh()
        with self.braces(f"for (word {counter} = {repeat.first}; {counter} < {repeat.last}; ++{counter})"):
            self.block(repeat.body)

    def operation(self, value: Value) -> str:
        counter = value.args[0] if value.args else None
        if value.op == "load":
            return f"*({self.place(value.data[0], counter, value.data[1])})"
        args = [self.name(arg) for arg in value.args]
        if value.op == "select":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if value.op == "div" and value.type == F64 and value.args[0].op == "const" and value.args[0].data == 1.0:
            root = value.args[1]
            shared = root.op == "sqrt" and root.block is value.block and self.reads[root] == 1
            if shared and self.look and not self.repeated and value.block is self.program.advance:
                return f"try_inverse_root({self.name(root.args[0])}, &odd)"
            return f"inverse_root({self.name(root.args[0])})" if shared else f"reciprocal({args[1]})"
        return _C_FORMS[value.type][value.op].format(*args)

    def loop(self, loop: Loop) -> None:
        variables = self.variables(loop.params, [self.name(value) for value in loop.initial])
        self.names.update(zip(loop.results, variables, strict=True))
        with self.braces("for (;;)"):
            self.block(loop.test)
            self.put(f"if (!{self.name(loop.condition)}) break;")
            self.block(loop.body)
            self.assign(variables, loop.next_values)

    def branch(self, branch: Branch) -> None:
        results = self.variables(branch.results)
        for opening, block, values in (
            (f"if ({self.name(branch.condition)})", branch.then, branch.then_values),
            ("else", branch.other, branch.other_values),
        ):
            with self.braces(opening):
                self.block(block)
                for result, value in zip(results, values, strict=True):
                    self.put(f"{result} = {self.name(value)};")

    def call(self, call: Call) -> None:
        """Arguments and results go through arrays of words."""
        names = self.fresh(), self.fresh()
        for name, values in zip(names, (call.args, call.results), strict=True):
            self.put(f"word {name}[{max(1, len(values))}];")
        for place, (param, arg) in enumerate(zip(call.function.params, call.args, strict=True)):
            self.store(f"{names[0]}[{place}]", param, self.name(arg))
        self.put(f"{self.functions[call.function]}(free_values, memory, {names[0]}, {names[1]});")
        for place, result in enumerate(call.results):
            self.define(result, self.load(result, f"{names[1]}[{place}]"))

    def routine(self, function: Function) -> str:
        """A function of the program, in C."""
        outside = self.names, self.lines, self.indent
        self.names, self.lines, self.indent = {}, [], 1
        name = self.functions[function] = f"function{len(self.functions)}"
        for value in free_values(function, self.program.setup):
            self.define(value, self.load(value, f"free_values[{self.free[value]}]"))
        for place, value in enumerate(function.params):
            self.define(value, self.load(value, f"args[{place}]"))
        self.block(function.body)
        for place, value in enumerate(function.values):
            self.store(f"results[{place}]", value, self.name(value))
        body = "\n".join(self.lines)
        self.names, self.lines, self.indent = outside
        given, out = "const word *__restrict__ free_values, double *memory", "word *__restrict__ results"
        words = f"{given}, const word *__restrict__ args, {out}"
        return f"ROUTINE void {name}({words}) {{\n{body}\n}}\n"

    def load(self, value: Value, word: str) -> str:
        return {F64: f"unbits({word})", I64: word, BOOL: f"{word} != 0"}[value.type]

    def store(self, place: str, value: Value, name: str) -> None:
        self.put(f"{place} = {f'bits({name})' if value.type == F64 else f'(word){name}'};")

    def inputs(self) -> None:
        rows, places = {True: 0, False: 0}, self.in_place("varying", self.layout.own or ())
        for value, varies in zip(self.program.constants, self.layout.varying, strict=True):
            place = f"varying[{rows[True]} * stride + lane]" if varies else f"shared[{rows[False]}]"
            if varies and self.layout.own is not None:
                place = places[rows[True]]
            self.define(value, self.load(value, place))
            rows[varies] += 1

    def in_place(self, table: str, leaves: Sequence[tuple[int, int]]) -> list[str]:
        """The scalars of leaves whose addresses are in a table."""
        pairs = [(i, place, step) for i, (size, step) in enumerate(leaves) for place in range(size)]
        return [f"((const word *){table}[{i}])[lane * {step} + {place}]" for i, place, step in pairs]

    def arrays(self) -> None:
        """The arrays of streams: addresses, words from a row to the next, words from a number to the next."""
        streams = self.layout.streams
        if streams is None:
            return
        made = len(self.layout.leaves) + bool(streams.kept)
        for table, const, count in (("controls", "const ", len(streams.controls)), ("records", "", made)):
            for i in range(count):
                self.put(f"{const}word *{table}{i} = ({const}word *){table}[{3 * i}];")
                self.put(f"const word {table}{i}_row = {table}[{3 * i + 1}], {table}{i}_number = {table}[{3 * i + 2}];")

    def controls(self) -> None:
        streams, values = self.layout.streams, iter(self.program.controls)
        if streams:
            self.put("const word step = control_stride + (save - first) * every + k;")
        for i, stream in enumerate(streams.controls if streams else ()):
            row = "step" if stream.clock == "step" else "save"
            lane = " + lane" if stream.varies else ""
            for place, value in zip(stream.places, values, strict=False):
                if place >= 0:
                    index = f"{row} * controls{i}_row + {place} * controls{i}_number{lane}"
                    text = self.load(value, f"controls{i}[{index}]")
                    self.define(value, f"k == 0 && {text}" if stream.clock == "record begins" else text)
        if streams:
            return
        lane = " + lane" if self.layout.controls_vary else ""
        for place, value in enumerate(self.program.controls):
            row = f"((save - first) * every + k) * {len(self.program.controls)} + {place}"
            self.define(value, self.load(value, f"controls[({row}) * control_stride{lane}]"))

    def keep_row(self) -> None:
        """Store what is kept of a step, before the state after it takes the place of the one before it."""
        streams, program = self.layout.streams, self.program
        if streams is None or not streams.kept:
            return
        sources = (*program.state, *program.next_state, *program.notes)
        array, lane = f"records{len(self.layout.leaves)}", " + lane" if streams.many else ""
        for place, source in enumerate(streams.kept):
            value = sources[source]
            assert value is not None
            self.store(f"{array}[step * {array}_row + {place} * {array}_number{lane}]", value, self.name(value))

    def record(self) -> None:
        if streams := self.layout.streams:
            values, lane = iter(self.program.record), " + lane" if streams.many else ""
            for i, size in enumerate(self.layout.leaves):
                for place, value in zip(range(size), values, strict=False):
                    index = f"save * records{i}_row + {place} * records{i}_number{lane}"
                    self.store(f"records{i}[{index}]", value, self.name(value))
            return
        for (before, size, place), value in zip(self.layout.offsets, self.program.record, strict=True):
            row = f"capacity * {before} + save * {size} + {place}"
            self.store(f"records[({row}) * stride + lane]", value, self.name(value))

    def find_unread(self) -> set[int]:
        """The places of the state that no step reads or changes: only a record loads them, from where they lie."""
        program, streams = self.program, self.layout.streams
        pairs = list(zip(program.state, program.next_state, strict=True))
        kept = [program.state[i] for i in (streams.kept if streams else ()) if i < len(pairs)]
        changed = [new for old, new in pairs if new is not old]
        read = {*used_values(program.setup), *used_values(program.advance), *program.notes, *changed, *kept}
        return {i for i, (old, new) in enumerate(pairs) if new is old and old not in read}

    def kernel(self) -> str:
        program = self.program
        words = {each: "word" if each in ("state", "records") else "const word" for each in POINTER_ARGUMENTS}
        pointers = ", ".join(f"{word} *__restrict__ {each}" for each, word in words.items())
        head = f"KERNEL run({pointers}, {', '.join(f'word {each}' for each in COUNT_ARGUMENTS)}) {{"
        routines = "".join(map(self.routine, program.functions))
        with self.braces("for (word lane = FIRST_LANE; lane < end; lane += LANE_STEP)"):
            self.put(f"double memory[{max(1, program.memory)}];")
            if self.look:
                self.put("bool repeated = false;")
                self.put("unsigned odd = 0;")
                self.put("again:;")
            self.inputs()
            self.arrays()
            places = [f"state[{row} * stride + lane]" for row in range(len(program.state))]
            if self.layout.start is not None:
                places = self.in_place("state", self.layout.start)
            initial = [self.load(value, place) for value, place in zip(program.state, places, strict=True)]
            unread = self.find_unread()
            in_steps = [i for i in range(len(initial)) if i not in unread]
            names = self.variables([program.state[i] for i in in_steps], [initial[i] for i in in_steps])
            state = dict(zip(in_steps, names, strict=True))
            self.names.update((program.observed[i], name) for i, name in state.items())
            if self.look:
                failed = " || ".join(f"!({self.operation(part)})" for part in self.told)
                self.put(f"repeated = repeated || {failed or 'false'};")
            self.block(program.setup)
            if self.functions:
                self.put(f"word free_values[{max(1, len(self.free))}];")
            for value, place in self.free.items():
                self.store(f"free_values[{place}]", value, self.name(value))
            with self.braces("for (word save = first; save < last; ++save)"):
                if self.look:  # the code stands twice: steps that need not keep the state before them run in registers
                    for self.repeated in (False, True):
                        with self.braces("else" if self.repeated else "if (!repeated)"):
                            self.steps(state)
                else:
                    self.steps(state)
                shown = {*used_values(program.observe), *program.record}
                for i in (i for i in sorted(unread) if program.observed[i] in shown):
                    self.define(program.observed[i], initial[i])
                self.block(program.observe)
                self.record()
            if self.look:
                good = are_finite([state[place] for place in self.look.places])
                self.put(f"if (!repeated && (odd >= RANGE || !({good}))) {{ repeated = true; goto again; }}")
            if self.layout.start is None:
                for row in (i for i in in_steps if program.next_state[i] is not program.state[i]):
                    self.store(places[row], program.state[row], state[row])
        return routines + "\n".join([head, *self.lines, "}", ""])


def are_finite(names: Sequence[str]) -> str:
    """Whether numbers are finite, in C, by their sum."""
    return f"fabs({' + '.join(names)}) < unbits(0x7ff0000000000000LL)" if names else "true"


def cuda_source(program: Program, layout: Layout) -> str:
    """The run as C, for NVRTC or for a C compiler."""
    outside = {*program.state, *program.constants}
    used = [value for value in used_values(program.advance) if value.op != "const"]
    kept = {value for value in used if value in outside or value.block is program.setup}
    blocks = MANY_BLOCKS if len(kept) <= MAX_KEPT and not program.functions else MULTIPROCESSOR_BLOCKS
    sizes = f"#define THREADS {BLOCK_THREADS}\n#define BLOCKS {blocks}"
    return f"{sizes}\n{PRELUDE}\n{CEmitter(program, layout).kernel()}"


@cache
def has_gpu() -> bool:
    """Whether there is CuPy and a GPU that answers."""
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # CuPy raises its own types for a missing driver, library or device
        return False


@cache
def _kernel(text: str) -> Any:
    """A kernel function on the current device."""
    import cupy
    from cupy.cuda import nvrtc

    architecture = f"sm_{cupy.cuda.Device().compute_capability}"
    version = ".".join(map(str, nvrtc.getVersion()))
    key = disk.entry_key(text, ABI, version, architecture, *NVRTC_OPTIONS)

    def build() -> bytes:
        program = nvrtc.createProgram(text, "dalembert.cu", [], [])
        try:
            nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", *NVRTC_OPTIONS))
        except nvrtc.NVRTCError as error:
            raise RuntimeError(f"NVRTC refused generated code:\n{nvrtc.getProgramLog(program)}") from error
        return bytes(nvrtc.getCUBIN(program))

    module = cupy.cuda.function.Module()
    disk.load_or_build(key, build, module.load)
    return module.get_function("run")


def on_gpu(leaf: Any) -> bool:
    """Whether an array (of JAX or CuPy) lies on a GPU."""
    return hasattr(leaf, "__cuda_array_interface__")


_kernels: dict[Any, Any] = {}


def cuda_kernel(lowered: LoweredProgram, layout: Layout) -> Any:
    """The kernel of a program; its source is written once in a process."""
    import cupy

    key = (lowered.digest, layout, cupy.cuda.Device().id)
    if key not in _kernels:
        _kernels[key] = _kernel(cuda_source(lowered.program, layout))
    return _kernels[key]


class Gpu:
    """What this process does with its GPU, by CuPy: memory, kernels, launches. Tests have one that the CPU plays."""

    held_bytes = 1 << 28
    """Memory that a run may hold from call to call."""
    _found: Any = None

    @property
    def xp(self) -> Any:
        """The array module of its memory."""
        import cupy

        return cupy

    def kernel(self, lowered: LoweredProgram, layout: Layout) -> Any:
        """The kernel of a program, or `LoweringError` where it does not fit."""
        require_memory(lowered)
        return cuda_kernel(lowered, layout)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def launch(self, kernel: Any, lanes: int, arguments: Sequence[int]) -> None:
        """Call a kernel, a thread a lane; it runs later, after those that were launched before."""
        self._call(kernel, (-(-lanes // BLOCK_THREADS), 1, 1, BLOCK_THREADS, 1, 1, 0), arguments)

    def _call(self, kernel: Any, grid: Sequence[int], arguments: Sequence[int]) -> None:
        """Call a kernel on a grid of blocks.

        The driver is called as it is: CuPy takes 20 us to look at 13 arguments.
        """
        count, stream = len(arguments), self.xp.cuda.get_current_stream().ptr
        words = (ctypes.c_int64 * count)(*arguments)
        begin = ctypes.addressof(words)
        places = (ctypes.c_void_p * count)(*range(begin, begin + 8 * count, 8))
        if code := self._launch(ctypes.c_void_p(kernel.ptr), *grid, ctypes.c_void_p(stream), places, None):
            raise RuntimeError(f"CUDA refused to launch a kernel: error {code}")

    @cached_property
    def _launch(self) -> Any:
        self.xp.cuda.runtime.getDevice()  # CuPy has loaded the driver then
        return ctypes.CDLL("libcuda.so.1").cuLaunchKernel

    def finish(self) -> None:
        """Wait for all launches."""
        self.xp.cuda.get_current_stream().synchronize()

    def free_words(self) -> int:
        """Words of memory that nobody has."""
        return int(self.xp.cuda.runtime.memGetInfo()[0]) // 8

    def find_words(self, wanted: Sequence[tuple[int, int, int, bool]]) -> list[bool]:
        """For each (address, words, word, equal), at most four: whether one of the words equals this one, or differs.

        All launches are done then.
        """
        found = self._found or self.xp.cuda.alloc_pinned_memory(32)
        self._found = None  # two threads do not share it
        seen = np.frombuffer(found, np.int64, 4)  # in memory of the host that kernels reach: nothing is copied
        seen[:] = 0
        most = max(words for _, words, _, _ in wanted)
        rows = [int(number) for each in wanted for number in each] + [0] * 4 * (4 - len(wanted))
        blocks = max(1, min(1024, -(-most // 256)))
        self._call(_kernel(FIND_WORDS), (blocks, len(wanted), 1, 256, 1, 1, 0), (found.ptr, *rows))
        self.finish()
        self._found = found
        return [bool(each) for each in seen[: len(wanted)].tolist()]

    def to_host(self, array: Any) -> Any:
        """An array of CuPy as one of NumPy."""
        return array.get()

    def to_jax(self, array: Any) -> Any:
        """The same memory as an array of JAX; it must be filled by then."""
        return jax.dlpack.from_dlpack(array)


FIND_WORDS = """
typedef long long word;
extern "C" __global__ void run(word *found, const word *p0, word n0, word w0, word e0, const word *p1, word n1, word w1,
  word e1, const word *p2, word n2, word w2, word e2, const word *p3, word n3, word w3, word e3) {
  const word *p = blockIdx.y == 0 ? p0 : blockIdx.y == 1 ? p1 : blockIdx.y == 2 ? p2 : p3;
  const word n = blockIdx.y == 0 ? n0 : blockIdx.y == 1 ? n1 : blockIdx.y == 2 ? n2 : n3;
  const word w = blockIdx.y == 0 ? w0 : blockIdx.y == 1 ? w1 : blockIdx.y == 2 ? w2 : w3;
  const bool equal = blockIdx.y == 0 ? e0 : blockIdx.y == 1 ? e1 : blockIdx.y == 2 ? e2 : e3;
  bool seen = false;
  for (word i = (word)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (word)gridDim.x * blockDim.x)
    seen |= (p[i] == w) == equal;
  if (seen) found[blockIdx.y] = 1;
}
"""


@cache
def gpu() -> Gpu:
    """The GPU of this process."""
    return Gpu()


def require_memory(lowered: LoweredProgram) -> None:
    """Refuse a program that does not fit on a GPU."""
    if lowered.memory > MAX_MEMORY:
        raise LoweringError(
            f"a step that keeps {lowered.memory} numbers in memory, more than {MAX_MEMORY}, does not fit on a GPU: "
            "backend 'llvm' runs it on the processor"
        )


class CudaSession:
    """A run in launches that each do many steps.

    Where a lane's numbers come from arrays on the GPU, everything stays there, and records and carry are arrays of
    CuPy. Else records come to the host after every launch.
    """

    name = "cuda"

    def __init__(self, problem: Problem, lowered: LoweredProgram):
        require_memory(lowered)
        self.gpu = gpu()
        given = jax.tree.leaves((problem.consts, problem.carry, problem.controls))
        axes = (*problem.const_axes, *problem.carry_axes, *problem.control_axes)
        self.resident = any(varies and on_gpu(leaf) for leaf, varies in zip(given, axes, strict=True))
        if self.resident:
            jax.block_until_ready(given)  # type: ignore[no-untyped-call]  # JAX does not annotate it
        self.buffers = Buffers(problem, lowered, 1, self.gpu.xp if self.resident else np)
        self.kernel = self.gpu.kernel(lowered, make_layout(problem, lowered))
        b, self.words = self.buffers, lowered.words
        inputs = (b.shared, b.varying, b.state, b.controls)
        self.shared, self.varying, self.state, self.controls = map(self.gpu.xp.asarray, inputs)
        self.limit = max(1, DEVICE_RECORD_BYTES // max(8, 8 * b.stride * lowered.words))

    def reserve(self, capacity: int) -> None:
        self.buffers.reserve(capacity)
        if self.resident:
            self.limit, self.device_records = max(1, capacity), self.buffers.records
            return
        self.limit = max(1, min(self.limit, capacity))
        self.device_records = self.gpu.xp.empty(self.limit * self.words * self.buffers.stride, np.int64)

    def run(self, first: int, count: int, every: int, step: int, keep: bool = True) -> None:
        b, address = self.buffers, self.gpu.address
        begin = first if self.resident else 0
        counts = (self.limit, begin, begin + count, every, b.stride, 0, b.stride, b.control_stride)
        controls = address(self.controls) + 8 * step * b.control_row
        pointers = (*map(address, (self.shared, self.varying, self.state)), controls, address(self.device_records))
        self.gpu.launch(self.kernel, b.stride, (*pointers, *counts))
        self.gpu.finish()
        if self.resident or not keep:
            return
        on_host, on_device = b.record_leaves(b.records, b.capacity), b.record_leaves(self.device_records, self.limit)
        for leaf, new in zip(on_host, on_device, strict=True):
            leaf[first : first + count] = self.gpu.to_host(new[:count])

    def carry(self) -> Any:
        if self.resident:
            self.buffers.state = self.state
            return self.buffers.unpack_carry()
        self.buffers.state[...] = self.gpu.to_host(self.state)
        return self.buffers.unpack_carry()

    def records(self, count: int) -> Any:
        return self.buffers.unpack_records(count)

    def save_state(self) -> Any:
        return self.state.copy()

    def restore_state(self, state: Any) -> None:
        self.state[...] = state


def as_jax(tree: Any) -> Any:
    """The tree with arrays of CuPy as those of JAX on the same GPU, without passing through the host."""
    leaves, structure = jax.tree.flatten(tree)
    ours = [not isinstance(leaf, jax.Array) and on_gpu(leaf) for leaf in leaves]
    if not any(ours):
        return tree
    leaves = [gpu().xp.ascontiguousarray(leaf) if own else leaf for leaf, own in zip(leaves, ours, strict=True)]
    gpu().finish()
    made = [gpu().to_jax(leaf) if own else leaf for leaf, own in zip(leaves, ours, strict=True)]
    return jax.tree.unflatten(structure, made)


def in_place(leaf: Any) -> Any:
    """The array where it lies: of CuPy on a GPU, of NumPy on the host."""
    return gpu().xp.asarray(leaf) if on_gpu(leaf) else np.asarray(leaf)


def to_host(tree: Any) -> Any:
    """The tree with arrays of NumPy."""
    return jax.tree.map(lambda leaf: gpu().to_host(in_place(leaf)) if on_gpu(leaf) else leaf, tree)
