"""The operations of every model's acceleration and step, compared with those in counts.toml: `make bench-gate`.

A count is exact: the same on every machine, whatever else it does. One that is more than a tenth above that of the file
fails; `--write` writes the file anew. `--ratios` also compares the kernels of `single.py` with C, by processor time
inside this run, where a ratio that is worse is measured once more before it fails. A ratio belongs to a kind of
processor (a division takes 4 cycles on one and 14 on another, for C as for us, but not for both alike): the file has a
table for each kind, and on a kind that it does not know ratios are printed and cannot fail. Operations are those of
`Program.operations`: the body of a loop once, a function at each call, signs not at all. What depends on parameters
alone is computed before the run, and is not counted.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import llvmlite.binding as llvm
import numpy as np

import dalembert as da
from dalembert.integrators import METHODS
from dalembert.io.config import build_state
from dalembert.kernels import LoweringError, make_problem
from dalembert.kernels.lowering import lower
from dalembert.models import MODELS
from dalembert.simulation import run_kernel

FILE = Path(__file__).with_name("counts.toml")
COUNTED = ("lagrange-dalembert", "runge-kutta", "geometric-nonholonomic", "retraction-adapted", "taylor")
WORSE = 1.1
RATIOS = f"kernel to C, {llvm.get_host_cpu_name()}"
Counts = dict[str, dict[str, float]]  # of a table, by the names of what is counted


def start_model(name: str) -> tuple[Any, Any]:
    """The example of a model and its start."""
    model = MODELS[name]
    system = model.make(model.example)
    return system, build_state(system, model.initial, {})


def count_acceleration(system: Any, state: Any) -> int:
    """The operations of (xi', l) at a point."""

    def observe(system: Any, point: Any) -> Any:
        return system.acceleration(*point, system.zero_controls() if system.inputs else None)

    point = jax.tree.map(np.asarray, (state.t, state.g, state.xi))
    system = jax.tree.map(np.asarray, system)
    program = lower(lambda system, point, u: point, observe, system, point, None).program
    return sum(program.count("observe").values())


def count_step(system: Any, state: Any, integrator: Any, h: float) -> int | None:
    """The operations of a step (of one iteration where it iterates); None where method and system do not fit."""
    begin, advance, observe = run_kernel(integrator, False)
    consts, controls = (system, np.asarray(h)), system.zero_controls()[None] if system.inputs else None
    try:
        integrator.require(system, state, h)
        loop = jax.eval_shape(begin, consts, (state, None if controls is None else controls[0]))
        return make_problem(advance, observe, consts, loop, controls).lower().program.operations
    except (da.InvalidInput, LoweringError):
        return None


def count_model(name: str, tables: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(the table, the operations) of one model, where it has any."""
    system, state = start_model(name)
    for table in tables:
        if table == "acceleration":
            yield table, count_acceleration(system, state)
        elif (found := count_step(system, state, METHODS[table].make({}), MODELS[name].step)) is not None:
            yield table, found


def count_all(names: Iterable[str], tables: Iterable[str] = ("acceleration", *COUNTED)) -> Counts:
    """The counts of models in tables, each with the names that it has."""
    counts: Counts = {table: {} for table in tables}
    for name in names:
        for table, number in count_model(name, counts):
            counts[table][name] = number
        jax.clear_caches()
    return counts


def count_cases() -> Counts:
    """The operations of the cases of `single.py`."""
    return {"single": {case.name: case.problem().lower().program.operations for case in _cases()}}


def measure_ratios(names: Iterable[str] | None = None) -> Counts:
    """Processor time of the kernels of `single.py` over that of C, in interleaved repeats."""
    cases = [case for case in _cases() if names is None or case.name in names]
    from _timing import interleaved, ratio
    from single import STEPS, often

    ratios = {}
    for case in cases:
        times = interleaved({"c": often(case.by_hand(STEPS)), "kernel": often(case.kernel(STEPS))}, 51)
        ratios[case.name] = round(ratio(times["kernel"], times["c"]), 2)
    return {RATIOS: ratios}


def _cases() -> list[Any]:
    sys.path.insert(0, str(Path(__file__).parent))
    from _cases import all_cases

    return all_cases()


def read_counts() -> Counts:
    """The tables of the file."""
    return tomllib.loads(FILE.read_text()) if FILE.exists() else {}


def write_counts(counts: Counts) -> None:
    """Write the file anew."""
    lines = ["# Written by `python benchmarks/counts.py --write`: see there."]
    for table, numbers in counts.items():
        lines += ["", f'["{table}"]', *(f'"{name}" = {number}' for name, number in numbers.items())]
    FILE.write_text("\n".join(lines) + "\n")


def compare(found: Counts, known: Counts) -> tuple[list[str], list[str]]:
    """What is worse than in the file by more than a tenth, or not in it; and what is better by more than that."""
    worse, better = [], []
    for table, name, number in ((table, name, n) for table, numbers in found.items() for name, n in numbers.items()):
        before = known.get(table, {}).get(name)
        words = f"{table}, {name}: {before} before, {number} now"
        if before is None or number > WORSE * before:
            worse.append(words)
        elif before > WORSE * number:
            better.append(words)
    return worse, better


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file anew")
    parser.add_argument("--ratios", action="store_true", help="measure the kernels of single.py against C too")
    parser.add_argument("--only", nargs="+", default=list(MODELS), help="models")
    given = parser.parse_args()
    known = read_counts()
    found = count_all(given.only) | count_cases() | (measure_ratios() if given.ratios else {})
    if given.write:
        write_counts({table: known.get(table, {}) | found.get(table, {}) for table in {**found, **known}})
        return
    if given.ratios and RATIOS not in known:
        print(f"{FILE.name} has no ratios of this processor; `--ratios --write` puts these there: {found.pop(RATIOS)}")
    if slower := compare({RATIOS: found.get(RATIOS, {})}, known)[0]:
        again = [name for name in found[RATIOS] if any(f", {name}:" in words for words in slower)]
        found[RATIOS] |= measure_ratios(again)[RATIOS]
    worse, better = compare(found, known)
    for words in better:
        print(f"better: {words}")
    if worse:
        sys.exit("\n".join(f"worse: {words}" for words in worse))
    print(f"{sum(map(len, found.values()))} counts, none above those of {FILE.name} by more than a tenth")


if __name__ == "__main__":
    main()
