"""The scalar program: what remains of a JAX step when every array has been taken apart.

A program is a list of scalar operations in static single assignment form, on three types: doubles, 64-bit integers and
booleans. Structure is explicit: a `Block` is a list of statements, a statement is an operation (`Value`), a `Loop` with
scalar carries or a `Branch`. A `Program` has three blocks: `setup` runs once, `advance` once a step, `observe` once a
record. Backends only walk it; every decision that can change a bit of the result (order, fma, folding) is made in it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

F64, I64, BOOL = "f64", "i64", "i1"

FREE = frozenset({"const", "input", "param", "result", "neg", "copy"})
"""Operations that cost nothing: names of values, and signs (which every fma absorbs)."""


class LoweringError(Exception):
    """A step that the scalar kernels cannot run, and why; `backend="auto"` answers it by running XLA."""


class Value:
    """One scalar: the operation that makes it, its arguments, and the block it lives in."""

    __slots__ = ("args", "block", "data", "op", "type")

    def __init__(self, op: str, type: str, args: tuple[Value, ...], data: Any, block: Block):
        self.op, self.type, self.args, self.data, self.block = op, type, args, data, block

    def __repr__(self) -> str:
        if self.op == "const":
            return _literal(self)
        return f"<{self.op}:{self.type}>"


class Block:
    """A list of statements; the blocks of a loop hand what does not vary to their `outer` block."""

    __slots__ = ("depth", "outer", "parent", "statements", "table")

    def __init__(self, parent: Block | None = None, outer: Block | None = None):
        self.parent, self.outer = parent, outer
        self.depth: int = parent.depth + 1 if parent else 0
        self.statements: list[Statement] = []
        self.table: dict[tuple, Value] = {}

    def find(self, key: tuple) -> Value | None:
        """The same operation, computed here or in a block around this one."""
        block: Block | None = self
        while block is not None:
            found = block.table.get(key)
            if found is not None:
                return found
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
    following: list[Value]
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


Statement = Value | Loop | Branch


@dataclass(eq=False)
class Program:
    """The whole run of one trajectory, but for the two counting loops around `advance` and `observe`.

    `constants` and `controls` are inputs, `state` is what the step carries, `following` its next values; `observe`
    reads the state through `observed` and gives `record`.
    """

    constants: list[Value]
    controls: list[Value]
    setup: Block
    state: list[Value]
    advance: Block
    following: list[Value]
    observed: list[Value]
    observe: Block
    record: list[Value]
    notes: dict[str, Any] = field(default_factory=dict)

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
        """How often each operation occurs in a block; the body of a loop and both arms of a branch count once."""
        return Counter(value.op for value in values(getattr(self, block)) if value.op not in FREE)

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
    return ()


def blocks(block: Block) -> Iterator[Block]:
    """This block and all blocks inside it, outer before inner."""
    yield block
    for statement in block.statements:
        for inner in inner_blocks(statement):
            yield from blocks(inner)


def values(block: Block) -> Iterator[Value]:
    """Every operation in this block and in those inside it."""
    for each in blocks(block):
        for statement in each.statements:
            if isinstance(statement, Value):
                yield statement


def _literal(value: Value) -> str:
    return value.data.hex() if value.type == F64 else str(value.data)


class _Printer:
    """Numbers the values in the order in which they are computed."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}

    def name(self, value: Value) -> str:
        if value.op == "const":
            return _literal(value)
        return self.names.setdefault(value, f"%{len(self.names)}")

    def names_of(self, values: list[Value]) -> str:
        return ", ".join(map(self.name, values))

    def declare(self, values: list[Value]) -> str:
        return ", ".join(f"{self.name(value)}:{value.type}" for value in values)

    def program(self, program: Program) -> Iterator[str]:
        yield f"inputs {self.declare(program.constants)}; controls {self.declare(program.controls)}"
        yield "setup:"
        yield from self.block(program.setup, 1)
        yield f"advance {self.declare(program.state)}:"
        yield from self.block(program.advance, 1)
        yield f"  -> {self.names_of(program.following)}"
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
                yield f"{pad}  -> {self.names_of(statement.following)}"
                yield f"{pad}after {self.names_of(statement.results)}"
            else:
                yield f"{pad}if {self.name(statement.condition)}:"
                yield from self.block(statement.then, indent + 1)
                yield f"{pad}  -> {self.names_of(statement.then_values)}"
                yield f"{pad}else:"
                yield from self.block(statement.other, indent + 1)
                yield f"{pad}  -> {self.names_of(statement.other_values)}"
                yield f"{pad}after {self.names_of(statement.results)}"
