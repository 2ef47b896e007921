"""Where the time of a step goes: the kernels of `single.py` with parts of their programs taken out, one after another.

A part is taken out by writing something else for the operation in which it ends; LLVM then removes what only led there.
The numbers of such a kernel are wrong, its time is not. What is left is the step itself: transport, equations and
Jacobian, solve, the end of the iteration, configuration and momentum, and the numbers of the record. `--samples` tells,
by `perf` where it is installed, how the stretches of code without a jump share the time.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _cases import Case, all_cases
from _timing import interleaved, median, ratio, table
from single import STEPS, often

from dalembert.kernels.ir import Block, Program, Value
from dalembert.kernels.llvm import LLVMEmitter, NativeSession, _entry, compile_object, load_object
from dalembert.kernels.problem import Buffers, make_layout

Other = dict[Value, str]  # what is written for a value
WEIGHTS = '!0 = !{!"branch_weights", i32 65536, i32 1}\n!1 = !{!"branch_weights", i32 1, i32 65536}\n'


def questions(block: Block) -> Iterator[Value]:
    """The values x < inf of a block."""
    for value in block.statements:
        if isinstance(value, Value) and value.op == "lt" and value.args[1].data == math.inf:
            yield value


def no_looks(program: Program) -> Other:
    return {value: "or i1 true, true" for block in (program.advance, program.observe) for value in questions(block)}


def no_angles(program: Program) -> Other:
    found = (v for v in program.observe.statements if isinstance(v, Value) and v.op == "copysign")
    return {value: "fadd double 0.0, 0.0" for value in found if value.args[0].op != "const"}


def no_residual(program: Program) -> Other:
    return {value: "fadd double 0.0, 0.0" for value in program.notes if value is not None and value.op == "max"}


PARTS: dict[str, Callable[[Program], Other]] = {"looks": no_looks, "angles": no_angles, "residual": no_residual}


def built(case: Case, other: Callable[[Program], Other]) -> tuple[Callable[[], Any], bytes]:
    """The kernel of a case with other operations, and its machine code."""
    problem = case.problem()
    lowered = problem.lower()
    written = other(lowered.program)

    class Emitter(LLVMEmitter):
        def operation(self, value: Value) -> str:
            return written.get(value) or super().operation(value)

    text = Emitter(lowered.program, make_layout(problem, lowered), 1).function("run") + _entry("run") + WEIGHTS
    code = compile_object(text)
    session = NativeSession("llvm", load_object(code), Buffers(problem, lowered, 1), 1, 1)
    session.reserve(STEPS)
    before = session.save_state()

    def run() -> None:
        session.restore_state(before)
        session.run(0, STEPS, 1, 0)

    return run, code


def measured(case: Case, repeats: int) -> list[str]:
    taken: list[str] = []
    calls = {"C": often(case.by_hand(STEPS)), "all": often(built(case, lambda program: {})[0])}
    for name in PARTS:
        taken.append(name)
        chosen = tuple(taken)
        without = lambda program, chosen=chosen: {k: v for name in chosen for k, v in PARTS[name](program).items()}
        calls[name] = often(built(case, without)[0])
    for call in calls.values():
        call()
    times = interleaved(calls, repeats)
    costs = [f"{1e9 * median(times[name]) / (10 * STEPS):.0f} ({ratio(times[name], times['C']):.2f})" for name in calls]
    return [case.name, *costs]


def sample(case: Case) -> None:
    """Print how samples of a running kernel are shared by the stretches of its code."""
    with tempfile.TemporaryDirectory(prefix="dalembert-parts-") as folder:
        command = [sys.executable, __file__, "--only", case.name, "--run", str(Path(folder, "code.o"))]
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", f"{folder}/samples"]
        begin = int(subprocess.run([*record, *command], capture_output=True, text=True, check=True).stdout.split()[0])
        listing = ["objdump", "-d", "--no-show-raw-insn", f"{folder}/code.o"]
        text = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
        script = ["perf", "script", "-i", f"{folder}/samples", "-F", "ip"]
        places = subprocess.run(script, capture_output=True, text=True, check=True).stdout.split()
    entry = re.search(r"^([0-9a-f]+) <enter_run>", text, re.M)
    assert entry is not None
    counts = Counter(int(place, 16) - begin + int(entry[1], 16) for place in places)
    targets = {int(found, 16) for found in re.findall(r"\sj\w+\s+([0-9a-f]+) ", text)}
    rows, stretch = [], [0, 0, 0]  # samples, instructions, divisions
    for line in text.splitlines():
        if (found := re.match(r"\s*([0-9a-f]+):\s*(\S+)", line)) is None:
            continue
        if int(found[1], 16) in targets or found[2].startswith("j"):
            rows.append(stretch)
            stretch = [0, 0, 0]
        divides = found[2].startswith(("vdiv", "vsqrt"))
        stretch = [stretch[0] + counts[int(found[1], 16)], stretch[1] + 1, stretch[2] + divides]
    total = sum(row[0] for row in rows)
    shares = [[f"{100 * n / total:.0f} %", str(count), str(slow)] for n, count, slow in rows if n > 0.01 * total]
    table([case.name, "instructions", "divisions"], shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--samples", action="store_true", help="sample the code with perf")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    cases = [case for case in all_cases() if given.only in case.name]
    if given.run:
        case = next(case for case in cases if case.name == given.only)
        given.run.write_bytes(built(case, lambda program: {})[1])
        run = case.kernel(STEPS)
        print(int(run().function.__kwdefaults__["library"]["enter_run"]), flush=True)
        end = time.process_time() + 4.0
        while time.process_time() < end:
            run()
    elif given.samples:
        for case in cases:
            sample(case)
    else:
        table(
            ["ns a step (of C)", "C", "all", *(f"no {n}" for n in PARTS)], [measured(c, given.repeats) for c in cases]
        )


if __name__ == "__main__":
    main()
