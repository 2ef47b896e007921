"""10^4 members to one accuracy: `da.ensemble` beside heyoka's batch mode, or on a GPU beside a `vmap` of diffrax.

Members differ in their velocity (0.8 to 1.2 of that of `work_precision.py`), and only the last states are kept. heyoka
gets the equations of `work_precision.py`, its batch integrator with as many lanes as the processor has, and a loop over
batches in Python; with `--threads` its `ensemble_propagate_until_batch` too, which copies the integrator for each batch
(135 us a member where the loop takes 2). Ours is the whole call.
Errors are the largest of 16 members against Dormand and Prince's method of order 8 in extended precision. Times are
processor times of all threads; on a GPU, where `--backend cuda` runs, they are wall times, and where diffrax is not
installed a Dormand-Prince 5 of our own in JAX under `vmap` and `while_loop` stands in, with the same controller.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import work_precision as wp
from _timing import interleaved, median, table

import dalembert as da
from dalembert.kernels import LoweringError

TARGETS = (1e-4, 1e-8, 1e-12)
TOLERANCES = tuple(10.0**-k for k in range(3, 16))
SAMPLE, THREADS = 16, len(os.sched_getaffinity(0))
Runs = Iterator[tuple[np.ndarray, Callable[[], Any]]]  # (what is compared of the sample, a call to time)


class Members:
    """Starts of a problem with scaled velocities, in the coordinates of the peers and as states of ours."""

    def __init__(self, case: wp.Problem, count: int, moving: list[int]):
        self.case, self.count = case, count
        scales = np.linspace(0.8, 1.2, count)
        self.y = np.repeat(case.start[:, None], count, axis=1)
        self.y[moving] *= scales
        state = case.system.state
        self.states = jax.jit(jax.vmap(lambda scale: state(case.state.g, scale * case.state.xi)))(jnp.asarray(scales))
        self.sample = np.linspace(0, count - 1, SAMPLE).astype(int)

    def compare(self, columns: np.ndarray) -> np.ndarray:
        """What is compared of the members of the sample."""
        return np.array([self.case.compared(columns[:, i]) for i in self.sample])

    def truth(self) -> np.ndarray:
        one = [replace(self.case, start=self.y[:, i], accurate_steps=1500) for i in self.sample]
        return np.array([wp.reference(case) for case in one])


def our_runs(many: Members, method: Any, backend: Any, place: Callable[[Any], Any]) -> Runs:
    states = jax.tree.map(lambda leaf: place(np.asarray(leaf)), many.states)
    options: Any = {"step": many.case.end, "steps": 1, "backend": backend}
    for tolerance in TOLERANCES:
        integrator = replace(method, tolerance=tolerance)

        def run(integrator=integrator):
            return jax.block_until_ready(da.ensemble(many.case.system, integrator, states, **options).records)

        last = jax.tree.map(lambda leaf: np.asarray(leaf)[many.sample, -1], run().state)
        yield np.array([many.case.read(jax.tree.map(lambda x, i=i: x[i], last)) for i in range(SAMPLE)]), run


def heyoka_runs(many: Members, threads: bool) -> Runs:
    import heyoka as hy

    lanes = hy.recommended_simd_size()
    names = hy.make_vars(*[f"y{i}" for i in range(len(many.case.start))])
    rates = many.case.field(list(names), hy.cos, hy.sin)
    equations = [
        (name, x if isinstance(x, hy.expression) else hy.expression(x)) for name, x in zip(names, rates, strict=True)
    ]
    batches = many.count // lanes
    starts = np.ascontiguousarray(many.y[:, : batches * lanes].reshape(len(names), batches, lanes).transpose(1, 0, 2))
    end = np.full(lanes, many.case.end)
    for tolerance in TOLERANCES:
        one = hy.taylor_adaptive_batch(equations, starts[0].copy(), tol=tolerance, compact_mode=False)
        found = np.empty_like(starts)

        def loop(one=one, found=found):
            for start, last in zip(starts, found, strict=True):
                one.set_time(0.0)
                one.state[:] = start
                one.propagate_until(end)
                last[:] = one.state

        def begin(copy, i):
            copy.set_time(0.0)
            copy.state[:] = starts[i]
            return copy

        def ensemble(one=one, found=found, begin=begin):
            made = hy.ensemble_propagate_until_batch(one, many.case.end, batches, begin, max_workers=THREADS)
            for last, result in zip(found, made, strict=True):
                last[:] = result[0].state

        run = ensemble if threads else loop
        run()
        columns = np.empty_like(many.y)
        columns[:, : batches * lanes] = found.transpose(1, 0, 2).reshape(len(names), -1)
        columns[:, batches * lanes :] = columns[:, [-lanes - 1]]
        yield many.compare(columns), run


def diffrax_runs(many: Members, solver: str) -> Runs:
    import diffrax

    field, end = many.case.field, many.case.end
    term = diffrax.ODETerm(lambda t, y, p: jnp.stack(field(list(y), jnp.cos, jnp.sin)))

    def one(y: Any, tolerance: Any) -> Any:
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        chosen, kept = getattr(diffrax, solver)(), diffrax.SaveAt(t1=True)
        options: Any = {"saveat": kept, "stepsize_controller": controller, "max_steps": None, "throw": False}
        return diffrax.diffeqsolve(term, chosen, 0.0, end, 0.01, y, **options).ys[-1]

    return vmapped_runs(many, one)


A = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
)
A = (*A, (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656))
A = (*A, (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84))
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def plain_runs(many: Members, _: str) -> Runs:
    """Dormand and Prince's method of order 5 as a JAX user writes it."""
    field, end = many.case.field, many.case.end

    def slope(y: Any) -> Any:
        return jnp.stack([jnp.asarray(x, float) for x in field(list(y), jnp.cos, jnp.sin)])

    def one(start: Any, tolerance: Any) -> Any:
        def body(now: Any) -> Any:
            t, y, h, first = now
            h = jnp.minimum(h, end - t)
            slopes = [first]
            for row in A[1:]:
                slopes.append(slope(y + h * sum(a * k for a, k in zip(row, slopes, strict=True))))
            new = y + h * sum(a * k for a, k in zip(A[-1], slopes, strict=False))
            gap = h * sum(e * k for e, k in zip(E, slopes, strict=True))
            error = jnp.sqrt(jnp.mean((gap / (tolerance * (1 + jnp.maximum(abs(y), abs(new))))) ** 2))
            size = h * jnp.clip(0.9 * (error + 1e-30) ** -0.2, 0.2, 10.0)
            good = error <= 1
            return jnp.where(good, t + h, t), jnp.where(good, new, y), size, jnp.where(good, slopes[-1], first)

        begin = jnp.zeros(()), start, jnp.asarray(0.01), slope(start)
        return jax.lax.while_loop(lambda now: now[0] < end, body, begin)[1]

    return vmapped_runs(many, one)


def vmapped_runs(many: Members, one: Callable[[Any, Any], Any]) -> Runs:
    solve = jax.jit(jax.vmap(one, in_axes=(0, None)))
    start = jax.device_put(many.y.T)
    for tolerance in TOLERANCES[:-1]:

        def run(tolerance=tolerance):
            return solve(start, tolerance).block_until_ready()

        yield many.compare(np.asarray(run()).T), run


def points(runs: Runs, truth: np.ndarray, clock: Callable[[], float], repeats: int) -> list[wp.Point]:
    """(error, seconds) of each tolerance; a run of more than ten seconds, or one that is too large, ends the list."""
    found: list[wp.Point] = []
    try:
        for value, call in runs:
            spent = median(interleaved({"": call}, repeats, clock)[""])
            found.append((float(np.max(np.abs(value - truth))), spent))
            if spent > 10.0:
                break
    except (LoweringError, da.errors.InvalidInput) as fault:
        print(f"left out: {fault}")
    return found


def soonest(found: list[wp.Point], target: float, count: int) -> str:
    times = [seconds for error, seconds in found if error <= target]
    return f"{1e6 * min(times) / count:.2f}" if times else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", default="llvm", choices=("llvm", "cuda"))
    parser.add_argument("--only", default="", help="problems whose names contain this")
    parser.add_argument("--threads", action="store_true", help="heyoka's ensemble of batches, in threads, too")
    parser.add_argument("--vmap", action="store_true", help="the peers under vmap on the processor too")
    given = parser.parse_args()
    on_gpu = given.backend == "cuda"
    clock, place = (time.perf_counter, jax.device_put) if on_gpu else (time.process_time, np.asarray)
    problems = (wp.suslov, [0, 1]), (wp.sleigh, [0, 1]), (wp.particle, [3, 4]), (wp.disk, [3, 4, 5])
    for make, moving in problems:
        case = make()
        if given.only not in case.name:
            continue
        many = Members(case, given.members, moving)
        truth, rows = many.truth(), {}
        for name, method in (("taylor", da.Taylor()), ("dormand-prince", da.DormandPrince())):
            rows[f"dalembert, {name}"] = our_runs(many, method, given.backend, place)
        if importlib.util.find_spec("heyoka") and not on_gpu:
            rows["heyoka, batches"] = heyoka_runs(many, False)
            if given.threads:
                rows["heyoka, batches by its ensemble"] = heyoka_runs(many, True)
        if on_gpu or given.vmap:
            if importlib.util.find_spec("diffrax"):
                rows["diffrax Tsit5 under vmap"] = diffrax_runs(many, "Tsit5")
                rows["diffrax Dopri8 under vmap"] = diffrax_runs(many, "Dopri8")
            rows["Dormand-Prince in JAX under vmap"] = plain_runs(many, "")
        found = {name: points(runs, truth, clock, given.repeats) for name, runs in rows.items()}
        head = [f"{case.name}, {given.members} members: us a member to", *(f"{target:.0e}" for target in TARGETS)]
        table(head, [[name, *(soonest(each, t, given.members) for t in TARGETS)] for name, each in found.items()])
        print(f"load {os.getloadavg()[0]:.1f}\n", flush=True)


if __name__ == "__main__":
    main()
