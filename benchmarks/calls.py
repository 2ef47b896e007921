"""The calls that users write, warm and for the first time: processor time beside a jitted scan, heyoka and diffrax.

Fitting, control and sampling are loops over short runs, so that what a call costs beside its steps is what they cost.
Ten steps of built-in systems, a vehicle among them, and of an own system; `jax.jit` of the plain scheme (plain.py)
over the same ten steps, heyoka's `propagate_until` and diffrax's `diffeqsolve` over the same time at 1e-9, as their
users write them. Gradients are those of the sum of the last state in the initial velocity (others: in the initial
state), by diffrax with its default, the recursive checkpoints, and with the equation backwards in time (its direct
adjoint is for forward mode). Without `jit` JAX takes gradients operation by operation; what it needs for the sums
alone, without a run, is printed too. Targets: 300 us for a gradient under `jit` and 3 ms without, 100 us for
`simulate`, 50 us for `state`, `energy_error` and `at`, 15 us for a prepared run beside its steps, and 0.2 us for a
member of an ensemble beside its steps. A batch of calls follows one that is not counted: the caches of the processor
hold another contestant then. "Beside its steps" is what is left by nine steps more; the first steps of a large kernel
take longer than these, in caches that Python has used and from a guess that knows less. So the time of all native code
(judging, beginning, ten steps, the record), as a clock around it says, and what is beside that stand there too. Of an
ensemble the calls are made without the steps: members are packed, judged, begun and recorded, and that is all.
The first call of every contestant is measured in a process of its own, without and with what is on disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _cases import Case, members, sleigh, suslov
from _timing import median, ratio, table, verdict
from plain import SCHEMES
from work_precision import sleigh as sleigh_equations
from work_precision import suslov as suslov_equations

import dalembert as da
from dalembert.kernels.llvm import call_line
from dalembert.kernels.plans import HostLanes

STEPS, MEMBERS, BATCH = 10, (1 << 12, 1 << 14), 20
Calls = dict[str, Callable[[], Any]]


def own_sleigh() -> Case:
    """The Chaplygin sleigh as a user writes it: a Lagrangian and a constraint."""
    case = sleigh()

    def lagrangian(t, g, xi, p):
        return 0.5 * xi @ p["inertia"] @ xi

    def constraint(t, g, p):
        return jnp.array([[0.0, 0.0, 1.0]])

    system = da.System(da.SE2(), lagrangian, constraint, parameters={"inertia": np.asarray(case.system.inertia)})
    return Case(
        "own sleigh", system, da.LagrangeDAlembert(), system.state(xi=[0.5, -1.0, 0.0]), case.step, "", len, len
    )  # fmt: skip


def ackermann() -> Case:
    """A vehicle of the library, with 66 numbers in its drawing."""
    system = da.models.ackermann_car()
    return Case("Ackermann car", system, da.LagrangeDAlembert(), system.state(speed=2.0), 0.01, "", len, len)


def bicycle() -> Case:
    """A bicycle by its drawing: a step of it costs as much as those of thirty sleighs."""
    system = da.models.bicycle()
    return Case("bicycle", system, da.LagrangeDAlembert(), system.state(speed=5.0), 0.01, "", len, len)


CASES: dict[str, tuple[Callable[[], Case], Callable[[], Any] | None]] = {
    "Suslov": (suslov, suslov_equations),
    "Chaplygin sleigh": (sleigh, sleigh_equations),
    "own sleigh": (own_sleigh, None),
    "Ackermann car": (ackermann, None),
    "bicycle": (bicycle, None),
}


def ours(case: Case) -> Calls:
    """What a user of dalembert calls."""
    options: dict[str, Any] = {"step": case.step, "steps": STEPS}
    run = da.simulate(case.system, case.integrator, case.state, **options)
    prepared = da.prepare(case.system, case.integrator, **options, save="final")
    g, xi = jax.tree.map(np.asarray, (case.state.g, case.state.xi))
    between = 4.5 * case.step
    inputs = case.system.inputs or ()
    rows, by_name = np.full((STEPS, len(inputs)), 0.1), {each.name: np.full(STEPS, 0.1) for each in inputs}
    steered: Calls = {
        "simulate, controls": lambda: da.simulate(case.system, case.integrator, case.state, **options, controls=rows),
        "simulate, controls by name": lambda: da.simulate(
            case.system, case.integrator, case.state, **options, controls=by_name
        ),
        "prepared, controls": lambda: prepared(case.state, None, rows),
    }
    return {
        "simulate": lambda: da.simulate(case.system, case.integrator, case.state, **options),
        "prepared": lambda: prepared(case.state),
        "state": lambda: case.system.state(g, xi),
        **({"state by names": lambda: case.system.state(speed=2.0)} if "speed" in case.system.start_names else {}),
        "energy_error": run.energy_error,
        "at": lambda: run.at(between),
        **(steered if inputs else {}),
        **gradients(case, xi, options),
    }


def gradients(case: Case, xi: np.ndarray, options: dict[str, Any]) -> Calls:
    """The derivatives of the sum of the last state in the initial velocity."""

    def end(xi):
        run = da.simulate(case.system, case.integrator, case.system.state(case.state.g, xi), **options)
        return last_sum((run.g, run.xi))

    def last_sum(tree):
        return sum(jnp.sum(leaf[-1]) for leaf in jax.tree.leaves(tree))

    plain, jitted, sums = jax.grad(end), jax.jit(jax.grad(end)), jax.grad(last_sum)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((STEPS + 1, *np.shape(leaf))), (case.state.g, xi))
    return {
        "gradient": lambda: jax.block_until_ready(plain(xi)),
        "gradient, its sums by JAX": lambda: jax.block_until_ready(sums(zeros)),
        "gradient, jit": lambda: jax.block_until_ready(jitted(xi)),
    }


def scanned(case: Case) -> Callable[[], Any]:
    """jax.jit of a scan of the plain scheme, start included; its Newton iteration has no reverse mode."""
    start, step = SCHEMES[case.name](case)

    @jax.jit
    def run(state):
        return jax.lax.scan(lambda carry, _: (step(carry), carry[0]), start(state), length=STEPS)

    return lambda: jax.block_until_ready(run(case.state))


def propagated(equations: Any, end: float) -> Callable[[], Any]:
    """heyoka's propagate_until from the start."""
    import heyoka as hy

    names = hy.make_vars(*[f"y{i}" for i in range(len(equations.start))])
    right = list(zip(names, equations.field(list(names), hy.cos, hy.sin), strict=True))
    integrator = hy.taylor_adaptive(right, list(equations.start), tol=1e-9)

    def run():
        integrator.time = 0.0
        integrator.state[:] = equations.start
        return integrator.propagate_until(end)

    return run


def solved(equations: Any, end: float) -> Calls:
    """diffrax's diffeqsolve under jax.jit, and its gradients."""
    import diffrax

    term = diffrax.ODETerm(lambda t, y, p: jnp.stack(equations.field(list(y), jnp.cos, jnp.sin)))
    controller, start = diffrax.PIDController(rtol=1e-9, atol=1e-9), jnp.asarray(equations.start)
    solve = partial(diffrax.diffeqsolve, term, diffrax.Dopri8(), 0.0, end, 0.01, stepsize_controller=controller)

    def called(function):
        jitted = jax.jit(function)
        return lambda: jax.block_until_ready(jitted(start))

    calls = {"diffrax": called(lambda y: solve(y).ys)}
    for name, adjoint in (("", diffrax.RecursiveCheckpointAdjoint()), (", backwards", diffrax.BacksolveAdjoint())):
        calls[f"diffrax, gradient{name}"] = called(jax.grad(lambda y, a=adjoint: jnp.sum(solve(y, adjoint=a).ys)))
    return calls


def peers(name: str, case: Case) -> Calls:
    """The same by others, where they are installed."""
    equations = CASES[name][1]
    found: Calls = {"jit of a scan": scanned(case)} if case.name in SCHEMES else {}
    if equations is not None and importlib.util.find_spec("heyoka"):
        found["heyoka"] = propagated(equations(), STEPS * case.step)
    if equations is not None and importlib.util.find_spec("diffrax"):
        found |= solved(equations(), STEPS * case.step)
    return found


def repeated(call: Callable[[], Any]) -> Callable[[], float]:
    """The seconds of so many calls; what they give is dropped, as a fit drops it, and its memory is used again."""

    def run() -> float:
        call()
        begin = time.process_time()
        for _ in range(BATCH):
            call()
        return time.process_time() - begin

    return run


def native_share(prepared: Any, state: Any, repeats: int) -> list[float]:
    """(microseconds of the native code of a prepared run, of the rest of the call), medians by a clock on a wall."""
    prepared(state)
    chain = prepared._find(prepared.system, None, None, state)[0]
    play, inside, whole = chain.play, [], []

    def timed(*given: Any) -> None:
        begin = time.perf_counter()
        play(*given)
        inside.append(time.perf_counter() - begin)

    chain.play = timed
    for _ in range(BATCH * repeats):
        begin = time.perf_counter()
        prepared(state)
        whole.append(time.perf_counter() - begin)
    chain.play = play
    return [1e6 * median(inside), 1e6 * median([all - part for all, part in zip(whole, inside, strict=True)])]


def without_steps(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call of an ensemble whose native scripts end behind their first line, the beginning of the members."""
    whole, cut = HostLanes._find_scripts, list[int]()

    def begin_only(self: HostLanes, *given: Any) -> list[Any]:
        cut.append(self.lanes)
        line = len(call_line(self.begin.function, [(0, 0)] * 5, (1, 0, 1, 0), 0, (0, 0, 0)))
        return [np.append(script[:line], 0) for script in whole(self, *given)]

    def run() -> None:
        HostLanes._find_scripts = begin_only
        call()
        HostLanes._find_scripts = whole
        assert cut, "the members do not run as lanes in one call"

    return run


def measured(name: str, repeats: int) -> list[list[str]]:
    case = CASES[name][0]()
    calls = ours(case) | peers(name, case)
    single = da.prepare(case.system, case.integrator, step=case.step, steps=1, save="final")
    calls["prepared, one step"] = lambda: single(case.state)
    if "prepared, controls" in calls:
        row = np.full((1, len(case.system.inputs)), 0.1)
        calls["prepared, controls, one step"] = lambda: single(case.state, None, row)
    group = partial(da.ensemble, case.system, case.integrator, step=case.step, steps=1)
    crowds = {f"ensemble of {number}, a member beside its steps": number for number in MEMBERS}
    calls |= {key: without_steps(partial(group, members(case, number))) for key, number in crowds.items()}
    for call in calls.values():
        call()
    batches = {key: repeated(call) for key, call in calls.items()}
    rounds = [{key: 1e6 * batch() / BATCH for key, batch in batches.items()} for _ in range(repeats)]
    micro = {key: [each[key] for each in rounds] for key in batches}

    def beside_steps(key: str) -> list[float]:
        """By nine steps more: these, and not a thousand later ones, take as long as the ten of the call."""
        pairs = zip(micro[f"{key}, one step"], micro[key], strict=True)
        return [(STEPS * one - ten) / (STEPS - 1) for one, ten in pairs]

    beside = beside_steps("prepared")
    base = micro.get("jit of a scan")
    rows = []
    targets = {"simulate": 100.0, "state": 50.0, "state by names": 50.0, "energy_error": 50.0, "at": 50.0}
    targets |= {"simulate, controls": 100.0, "simulate, controls by name": 100.0}
    targets |= {"gradient": 3000.0, "gradient, jit": 300.0}
    shown = {key: spent for key, spent in micro.items() if key not in crowds and not key.endswith("one step")}
    for key, spent in shown.items():
        text = verdict(median(spent), targets[key], at_most=True) if key in targets else f"{median(spent):.3g}"
        rows.append([f"{name}: {key}", text, "" if base is None else f"{ratio(spent, base):.2f}"])
    rows.append([f"{name}: prepared, beside its steps", verdict(median(beside), 15.0, at_most=True), ""])
    if "prepared, controls" in calls:
        steered = verdict(median(beside_steps("prepared, controls")), 15.0, at_most=True)
        rows.append([f"{name}: prepared, controls, beside its steps", steered, ""])
    ten = da.prepare(case.system, case.integrator, step=case.step, steps=STEPS, save="final")
    native, rest = native_share(ten, case.state, repeats)
    rows.append([f"{name}: prepared, its native code", f"{native:.3g}", ""])
    rows.append([f"{name}: prepared, beside its native code", verdict(rest, 15.0, at_most=True), ""])
    for key, number in crowds.items():
        rows.append([f"{name}: {key}", verdict(median(micro[key]) / number, 0.2, at_most=True), ""])
    return rows


def first_call(name: str, who: str) -> None:
    """Say what the first result of a contestant costs after the imports, in this process."""
    begin = time.process_time()
    case = CASES[name][0]()
    calls = {"dalembert": lambda: da.simulate(case.system, case.integrator, case.state, step=case.step, steps=STEPS)}
    if who == "dalembert, gradient":
        options = {"step": case.step, "steps": STEPS}
        calls = {who: gradients(case, np.asarray(case.state.xi), options)["gradient, jit"]}
    (calls | (peers(name, case) if who not in calls else {}))[who]()
    print(json.dumps(time.process_time() - begin))


def first_calls(name: str) -> list[list[str]]:
    contestants = ["dalembert", "dalembert, gradient", *peers(name, CASES[name][0]())]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        for who, what in [("dalembert", ", nothing on disk"), *((each, "") for each in contestants)]:
            child = [sys.executable, __file__, "--first", name, who]
            done = subprocess.run(child, env=os.environ | {"DALEMBERT_CACHE": folder}, capture_output=True, check=True)
            rows.append([f"{name}: {who}{what}", f"{json.loads(done.stdout):.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first:
        return first_call(*given.first)
    names = [name for name in CASES if given.only in name]
    head = [f"{STEPS} steps, warm", "us", "of jit of a scan"]
    table(head, [row for name in names for row in measured(name, given.repeats)])
    print("processor time of a call, medians of interleaved repeats; ! marks a missed target\n")
    table(["the first result", "s"], [row for name in names for row in first_calls(name)])
    print("processor time after the imports, in a process of its own; dalembert then finds its code on disk")


if __name__ == "__main__":
    main()
