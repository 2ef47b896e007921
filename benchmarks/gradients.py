"""Gradients of a run beside the run itself: processor time, and the time of the first call.

A number that the last state decides, differentiated with respect to all parameters of the system, the initial state and
the step together, under `jax.jit`, by native adjoints; the same through XLA's gradient of the scan. Targets (issue 19):
a gradient takes at most 3 times the run, and compiles in at most 3 times its time. A gradient of a number that depends
on all states takes at most 3 times the run that saves them all (a tenth of the steps). The derivatives along twelve
directions (`tangents=`) take at most 6 times the run, and 6 times a warm call of 1000 steps too (the bicycle: ten).
The Whipple bicycle (R^8,
tests/bicycle.py) takes a hundredth of the steps; it takes most of the time of this script, for its programs compile in
a minute where nothing is on disk. The first calls, a run and then its gradient, are those of a process
of its own that finds nothing on disk: in one that ran other systems JAX has done a part of the work of the first run.
`--models` measures these, for ten steps, and the warm ratio, for `--steps` steps at most, of the example of every
built-in model; `--methods` the same of every method on each of four systems that it takes. Nothing else is run then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _cases import Case, body, body_map, disk, particle, sleigh, suslov
from _timing import interleaved, median, ratio, table, verdict

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.integrators import METHODS
from dalembert.io.config import parse_job
from dalembert.models import MODELS
from dalembert.studio.catalogue import example

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import bicycle

BATCH = 20  # warm calls that are timed together
METHOD_STEPS = 2_000  # of a warm run of `--models` and `--methods`, which are many


def whipple() -> Any:
    """The published bicycle at 5 m/s, leaning a little."""
    system = bicycle.make_bicycle()
    state = system.state(*bicycle.on_the_road(system, 5.0, lean=0.05, steer=0.02, lean_rate=0.3))
    return SimpleNamespace(
        name="bicycle", system=system, state=state, step=0.1, integrator=da.LagrangeDAlembert(), share=100
    )


def built_in(name: str) -> Any:
    """The example of a built-in model, with its method."""
    job = parse_job(example(name))
    step, integrator = job.run["step"], job.integrator
    return SimpleNamespace(name=name, system=job.system, state=job.state, step=step, integrator=integrator)


CASES: dict[str, Callable[[], Any]] = {
    "Suslov": suslov,
    "sleigh": sleigh,
    "particle": particle,
    "rolling disk": disk,
    "rigid body": body,
    "rigid body, exact": lambda: body_map("exact"),
    "bicycle": whipple,
}
FITTED = ("sleigh", "Suslov", "rolling disk", "particle", "rigid body")  # systems of `--methods`


def by_method(name: str) -> Any:
    """One of the cases with another method, by the name "method, case"."""
    method, case = name.split(", ", 1)
    return replace(CASES[case](), name=name, integrator=METHODS[method].make({}))


def accepted() -> Iterator[str]:
    """The names of all methods with each system that they take."""
    for method in METHODS:
        for case in FITTED:
            given = by_method(f"{method}, {case}")
            try:
                given.integrator.require(given.system, given.state, given.step)
            except InvalidInput:
                continue
            yield given.name


def made(name: str) -> Any:
    """A case, the example of a model, or a method with a system, by its name."""
    return CASES[name]() if name in CASES else built_in(name) if name in MODELS else by_method(name)


def final_number(
    case: Case, steps: int, backend: Any, every: int | None = None
) -> tuple[Callable[[list[Any]], Any], list[Any]]:
    """(a number at the end of the run, or of all states with `every`, as a function of all its real numbers, these)."""
    leaves, structure = jax.tree.flatten((case.system, case.state, jnp.asarray(0.1 * case.step)))
    real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def end(values: list[Any]) -> Any:
        new = iter(values)
        given = [next(new) if mark else leaf for leaf, mark in zip(leaves, real, strict=True)]
        system, state, step = jax.tree.unflatten(structure, given)
        options: dict[str, Any] = {"save_every": every or steps, "backend": backend}
        run = da.simulate(system, case.integrator, state, step=step, steps=steps, **options)
        found = jax.tree.leaves((run.g, run.xi))
        if every is None:
            return sum(jnp.sum(leaf[-1]) for leaf in found)
        return sum(jnp.sum(leaf * leaf) for leaf in found)

    return end, [jnp.asarray(leaf, float) for leaf, mark in zip(leaves, real, strict=True) if mark]


def along_twelve(case: Case, steps: int) -> Callable[[], Any]:
    """The run with the derivatives along its first twelve numbers: of the parameters, then of the initial state."""
    leaves, structure = jax.tree.flatten((case.system, case.state, jnp.asarray(0.1 * case.step)))
    sizes = [jnp.size(leaf) for leaf in leaves]

    def curve(s: Any) -> Any:
        slopes = jnp.split(jnp.zeros(sum(sizes)).at[:12].set(s), np.cumsum(sizes)[:-1])
        pairs = zip(leaves, slopes, strict=True)
        return jax.tree.unflatten(structure, [leaf + slope.reshape(jnp.shape(leaf)) for leaf, slope in pairs])

    options: dict[str, Any] = {"step": 0.1 * case.step, "steps": steps, "save_every": steps}
    return lambda: da.simulate(case.system, case.integrator, case.state, tangents=curve, directions=12, **options)


def first(call: Callable[[], Any]) -> float:
    """Processor seconds of the first call."""
    begin = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - begin


def run_and_gradient(
    case: Case, steps: int, every: int | None = None
) -> tuple[dict[str, Callable[[], Any]], list[Any]]:
    end, values = final_number(case, steps, "auto", every)
    plain, gradient = jax.jit(end), jax.jit(jax.grad(end))
    calls = {
        "run": lambda: jax.block_until_ready(plain(values)),
        "gradient": lambda: jax.block_until_ready(gradient(values)),
    }
    return calls, values


def first_calls(name: str, steps: int) -> dict[str, float]:
    """Processor seconds of the first run and of the first gradient after it, in a new process without a cache."""
    child = [sys.executable, __file__, "--first", name, "--steps", str(steps)]
    done = subprocess.run(child, env=os.environ | {"DALEMBERT_CACHE": "off"}, capture_output=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measured(name: str, steps: int, repeats: int, xla: bool) -> list[str]:
    case = CASES[name]()
    steps = max(1, steps // getattr(case, "share", 1))
    calls, values = run_and_gradient(case, steps)
    begun = first_calls(name, steps)
    for call in calls.values():
        call()
    if xla:
        slow, _ = final_number(case, steps, "xla")
        through = jax.jit(jax.grad(slow))
        begun["xla"] = first(lambda: through(values))
        calls["xla"] = lambda: jax.block_until_ready(through(values))
    some = max(1, min(steps, 1000 // min(100, getattr(case, "share", 1))))
    short = {"step": 0.1 * case.step, "steps": some, "save_every": some}
    along = along_twelve(case, some)
    calls["twelve"], calls["twelve, short"] = along_twelve(case, steps), lambda: [along() for _ in range(BATCH)]
    calls["short"] = lambda: [da.simulate(case.system, case.integrator, case.state, **short) for _ in range(BATCH)]
    of_all, _ = run_and_gradient(case, max(1, steps // 10), 1)
    calls |= {f"{name} of all": call for name, call in of_all.items()}
    for call in calls.values():
        call()
    spent = interleaved(calls, repeats)
    row = [name, f"{1e9 * median(spent['run']) / steps:.0f}", f"{1e9 * median(spent['gradient']) / steps:.0f}"]
    row += [
        verdict(ratio(spent["gradient"], spent["run"]), 3.0, at_most=True),
        f"{begun['run']:.1f}",
        f"{begun['gradient']:.1f}",
    ]
    row.append(verdict(begun["gradient"] / begun["run"], 3.0, at_most=True))
    row.append(verdict(ratio(spent["gradient of all"], spent["run of all"]), 3.0, at_most=True))
    row.append(verdict(ratio(spent["twelve"], spent["run"]), 6.0, at_most=True))
    row.append(verdict(ratio(spent["twelve, short"], spent["short"]), 6.0, at_most=True))
    return [*row, f"{ratio(spent['xla'], spent['gradient']):.1f}" if xla else "-", f"{begun.get('xla', 0.0):.1f}"]


def survey(names: Iterable[str], steps: int, repeats: int) -> None:
    """The warm ratio and that of the first calls of many cases, one after the other."""
    head = ["gradient in everything", "run ns/step", "gradient ns/step", "ratio", "first run s", "first gradient s"]
    rows = []
    for name in names:
        calls, _ = run_and_gradient(made(name), steps)
        for call in calls.values():
            call()
        spent, begun = interleaved(calls, repeats), first_calls(name, 10)
        row = [name, *(f"{1e9 * median(spent[call]) / steps:.0f}" for call in calls)]
        row += [verdict(ratio(spent["gradient"], spent["run"]), 3.0, at_most=True)]
        row += [*(f"{begun[call]:.2f}" for call in calls)]
        rows.append([*row, verdict(begun["gradient"] / begun["run"], 3.0, at_most=True)])
        print("; ".join(rows[-1]), file=sys.stderr, flush=True)
    table([*head, "ratio"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--xla", action="store_true", help="XLA's gradient beside it: it compiles for seconds")
    parser.add_argument("--models", action="store_true", help="the examples of all built-in models instead")
    parser.add_argument("--methods", action="store_true", help="all methods, each with some systems, instead")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first:
        calls, _ = run_and_gradient(made(given.first), given.steps)
        return print(json.dumps({name: first(call) for name, call in calls.items()}))
    if given.models or given.methods:
        names = (name for name in (MODELS if given.models else accepted()) if given.only in name)
        return survey(names, min(given.steps, METHOD_STEPS), given.repeats)
    head = [
        "gradient in everything",
        "run ns/step",
        "gradient ns/step",
        "ratio",
        "first run s",
        "first gradient s",
        "ratio",
        "of all states",
        "12 directions",
        "the same, 1000 steps",
    ]
    names = [name for name in CASES if given.only in name]
    rows = []
    for name in names:
        rows.append(measured(name, given.steps, given.repeats, given.xla))
        print("; ".join(rows[-1]), file=sys.stderr, flush=True)  # the bicycle, which comes last, takes minutes
    table([*head, "xla/ours", "xla first s"], rows)
    print("targets: at most 3 times the run, 3 times its first call, and 6 runs for 12 directions (! marks a miss)")


if __name__ == "__main__":
    main()
