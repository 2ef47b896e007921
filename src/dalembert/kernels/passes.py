"""What can only be decided when the whole program is known: shared reciprocals, fused products, dead code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .ir import F64, Block, Branch, Loop, Program, Statement, Value, blocks, values


def optimise(program: Program) -> Program:
    """The same program with fewer operations, changed in place."""
    remove_dead_code(program)
    settle_quotients(program)
    fuse_products(program)
    remove_dead_code(program)
    return program


def top_blocks(program: Program) -> tuple[Block, Block, Block]:
    """What runs once, at every step, and at every record."""
    return program.setup, program.advance, program.observe


def all_blocks(program: Program) -> Iterator[Block]:
    """The blocks of a program with those inside their loops and branches."""
    for top in top_blocks(program):
        yield from blocks(top)


def structures(program: Program) -> Iterator[Loop | Branch]:
    """All loops and branches."""
    for block in all_blocks(program):
        for statement in block.statements:
            if not isinstance(statement, Value):
                yield statement


# ---- dead code


def remove_dead_code(program: Program) -> None:
    """Keep what the next state and the records need, carries of loops included."""
    live = _live(program)
    for block in all_blocks(program):
        block.statements = [statement for statement in block.statements if _is_live(statement, live)]
    for structure in structures(program):
        if isinstance(structure, Loop):
            kept = [i for i, param in enumerate(structure.params) if param in live]
            for name in ("initial", "params", "following", "results"):
                setattr(structure, name, [getattr(structure, name)[i] for i in kept])
        else:
            kept = [i for i, result in enumerate(structure.results) if result in live]
            for name in ("then_values", "other_values", "results"):
                setattr(structure, name, [getattr(structure, name)[i] for i in kept])


def _is_live(statement: Statement, live: set[Value]) -> bool:
    if isinstance(statement, Value):
        return statement in live
    return any(result in live for result in statement.results)


def _live(program: Program) -> set[Value]:
    origins: dict[Value, tuple[Value, ...]] = {}
    for structure in structures(program):
        if isinstance(structure, Loop):
            for i, result in enumerate(structure.results):
                needs = (structure.params[i], structure.initial[i], structure.following[i], structure.condition)
                origins[result] = origins[structure.params[i]] = needs
        else:
            for i, result in enumerate(structure.results):
                origins[result] = (structure.then_values[i], structure.other_values[i], structure.condition)
    live: set[Value] = set()
    waiting = [*program.following, *program.record]
    while waiting:
        value = waiting.pop()
        if value not in live:
            live.add(value)
            waiting.extend(value.args)
            waiting.extend(origins.get(value, ()))
    return live


# ---- reciprocals


def settle_quotients(program: Program) -> None:
    """a/b becomes a * (1/b) where 1/b is needed anyway, shared by several quotients, or made outside the loop."""
    uses: dict[Value, int] = defaultdict(int)
    for block in top_blocks(program):
        for value in values(block):
            for arg in value.args:
                uses[arg] += 1
    for root in _structural_uses(program):
        uses[root] += 1
    for block in top_blocks(program):
        for value in values(block):
            if value.op == "quotient":
                a, b, reciprocal = value.args
                shared = uses[reciprocal] > 1 or reciprocal.block is not value.block
                value.op, value.args = ("mul", (a, reciprocal)) if shared else ("div", (a, b))


def _structural_uses(program: Program) -> Iterator[Value]:
    yield from (*program.following, *program.record)
    for structure in structures(program):
        yield structure.condition
        if isinstance(structure, Loop):
            yield from (*structure.initial, *structure.following)
        else:
            yield from (*structure.then_values, *structure.other_values)


# ---- fused multiply-add


def fuse_products(program: Program) -> None:
    """a*b + c becomes fma(a, b, c) where that makes the product disappear."""
    users: dict[Value, list[Value]] = defaultdict(list)
    for block in top_blocks(program):
        for value in values(block):
            for arg in value.args:
                users[arg].append(value)
    kept = set(_structural_uses(program))
    for block in all_blocks(program):
        fusable = {
            value
            for value in block.statements
            if isinstance(value, Value)
            and value.op == "mul"
            and value.type == F64
            and value not in kept
            and all(_is_sum(user, block) for user in users[value])
        }
        block.statements = list(_fused(block, fusable))


def _is_sum(value: Value, block: Block) -> bool:
    return value.op in ("add", "sub") and value.block is block and value.args[0] is not value.args[1]


def _fused(block: Block, fusable: set[Value]) -> Iterator[Statement]:
    negated: dict[Value, Value] = {}
    for statement in block.statements:
        if isinstance(statement, Value) and statement.op in ("add", "sub") and statement.type == F64:
            a, b = statement.args
            if b in fusable:
                x, y = b.args
                if statement.op == "sub" and x not in negated:
                    negated[x] = Value("neg", F64, (x,), None, block)
                    yield negated[x]
                statement.args = (negated[x] if statement.op == "sub" else x, y, a)
                statement.op = "fma"
            elif a in fusable:
                x, y = a.args
                if statement.op == "sub" and b not in negated:
                    negated[b] = Value("neg", F64, (b,), None, block)
                    yield negated[b]
                statement.args = (x, y, negated[b] if statement.op == "sub" else b)
                statement.op = "fma"
        yield statement
