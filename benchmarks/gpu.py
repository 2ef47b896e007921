"""2^20 trajectories in double precision on a GPU: dalembert's kernel, hand-written CUDA of the same scheme, and
`jax.vmap` of the scheme as a JAX user writes it (plain.py) and of dalembert's own, leaner step.

Targets on an H200: generic Suslov Moser-Veselov in at most 25 ps per trajectory and step (aim: 17), at least 200 times
faster than `jax.vmap` on the same GPU. Times are differences of a long and a short run, so that copies and launches
drop out. Needs jax, numpy and cupy alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import plain
from _cases import Case, body_map, disk, lanes, members, suslov
from _timing import median, table, verdict

import dalembert as da
from dalembert.kernels import Block, Loop, Value, inner_blocks, to_host
from dalembert.kernels.execute import open_session
from dalembert.kernels.ir import Program

FLOPS = {"add": 1, "sub": 1, "mul": 1, "div": 1, "sqrt": 1, "fma": 2}
WARM_MILLISECONDS = 200.0
"""Calls of less than a millisecond are repeated for so long: the first dozens are slower."""
SHORT, LONG, SHORT_VMAP, LONG_VMAP, THREADS = 200, 2200, 5, 25, 64


# ---- what is run


def kernel(case: Case, start: da.Trajectory, backend: str) -> Callable[[int], Any]:
    """A call that takes all members some steps from their start and saves the last state."""
    session, _ = open_session(lanes(case, start), backend)  # type: ignore[arg-type]
    session.reserve(1)
    before = session.save_state()

    def run(steps: int):
        session.restore_state(before)
        session.run(0, 1, steps, 0)
        return session.records(1)

    return run


def rows_of_suslov(case: Case, start: da.Trajectory) -> np.ndarray:
    """State of cuda/suslov.cu: g, m, x, change, bend, sign, iterations, steps."""
    state, count = start.records.state, start.records.state.t.shape[0]
    first = [
        np.asarray(leaf)[:, 0].reshape(count, -1)
        for leaf in (state.g, state.momentum, case.step * state.increment[..., :2])
    ]
    return np.concatenate([*first, np.zeros((count, 7))], axis=1).T


def rows_of_body(case: Case, start: da.Trajectory) -> np.ndarray:
    """State of cuda/body.cu: q, m and the constants of the map."""
    states = members(case, start.records.state.t.shape[0])
    carry, _ = jax.jit(jax.vmap(lambda state: case.integrator.start(case.system, state, case.step)))(states)
    s = carry.step
    return np.concatenate(
        [*(np.asarray(leaf) for leaf in (carry.q, carry.m, s.p, s.r, s.a, s.f)), np.asarray(s.C)[:, None]], axis=1
    ).T


def rows_of_disk(case: Case, start: da.Trajectory) -> np.ndarray:
    """State of cuda/disk.cu: plane, wheel, p, x, change, bend, sign, iterations, steps."""
    state, count = start.records.state, start.records.state.t.shape[0]
    plane, wheel, momentum, xi = (np.asarray(leaf)[:, 0] for leaf in (*state.g, state.momentum, state.xi))
    motion = [plane[:, 0, 0], plane[:, 1, 0], plane[:, 0, 2], plane[:, 1, 2], wheel[:, 0, 0], wheel[:, 1, 0]]
    return np.concatenate([np.stack(motion), momentum.T, xi.T[[0, 3]], np.zeros((7, count))])


def numbers_by_hand(case: Case, name: str) -> np.ndarray:
    """The parameters of cuda/<name>.cu."""
    if name == "disk":
        return np.array([float(x) for x in case.parameters(case.system)[:4]])
    return np.asarray(case.system.inertia)[np.triu_indices(3)]


def by_hand(case: Case, rows: np.ndarray, name: str) -> Callable[[int], np.ndarray]:
    """The same call of cuda/<name>.cu; the rows of the state come back."""
    import cupy

    text = (Path(__file__).parent / "cuda" / f"{name}.cu").read_text()
    function = cupy.RawModule(code=text, options=("--std=c++17",)).get_function("run")
    numbers = cupy.asarray(numbers_by_hand(case, name))
    before = cupy.asarray(np.ascontiguousarray(rows))
    state = before.copy()
    blocks = -(-rows.shape[1] // THREADS)

    def run(steps: int):
        state[...] = before
        function(
            (blocks,), (THREADS,), (numbers, np.float64(case.step), np.int64(steps), state, np.int64(rows.shape[1]))
        )
        cupy.cuda.Device().synchronize()
        return state

    return run


# ---- how fast


def per_step(run: Callable[[int], Any], short: int, long: int, repeats: int) -> float:
    """Seconds of a step of all members."""
    run(short)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run(short)
        middle = time.perf_counter()
        run(long)
        times.append((time.perf_counter() - middle - (middle - begin)) / (long - short))
    return median(times)


def peak(repeats: int = 5) -> float:
    """Double precision operations a second that the GPU does in multiply-adds."""
    import cupy

    text = (Path(__file__).parent / "cuda" / "peak.cu").read_text()
    function = cupy.RawModule(code=text, options=("--std=c++17",)).get_function("peak")
    out = cupy.empty(132 * 16 * 256)

    def run(rounds: int):
        function((132 * 16,), (256,), (out, np.int64(rounds)))
        cupy.cuda.Device().synchronize()

    return 2 * 8 * out.size / per_step(run, 1000, 20_000, repeats)


def work(program: Program, iterations: float) -> tuple[float, float]:
    """(operations, floating-point operations) that a step executes: Newton's loop counts its mean number of iterations.

    A loop that holds another one follows a lost branch and is not entered.
    """

    def count(block: Block) -> np.ndarray:
        total = np.zeros(2)
        for statement in block.statements:
            if isinstance(statement, Value):
                total += (1, FLOPS.get(statement.op, 0) if statement.type == "f64" else 0)
            elif isinstance(statement, Loop):
                nested = any(isinstance(inner, Loop) for each in inner_blocks(statement) for inner in each.statements)
                total += 0 if nested else iterations * count(statement.body) + (iterations + 1) * count(statement.test)
        return total

    return tuple(count(program.advance))


def mean_iterations(case: Case, backend: str) -> float:
    """Newton iterations a step, over the steps that are timed, from a few members."""
    few = da.ensemble(case.system, case.integrator, members(case, 256), step=case.step, steps=LONG, backend=backend)
    return float(np.mean(few.iterations[:, SHORT:]))


def measured(case: Case, name: str, rows: Callable, given: argparse.Namespace, rate: float) -> list[str]:
    backend, count = given.backend, 1 << given.exponent
    start = da.ensemble(case.system, case.integrator, members(case, count), step=case.step, steps=1, backend=backend)
    run = kernel(case, start, backend)
    seconds = per_step(run, SHORT, LONG, given.repeats) / count
    iterations = mean_iterations(case, backend)
    operations, flops = work(lanes(case, start).lower().program, iterations)
    row = [case.name, f"{1e12 * seconds:.1f}", f"{iterations:.2f}", f"{operations:.0f}", f"{flops:.0f}"]
    row.append(f"{100 * flops / seconds / rate:.0f} %" if rate else "-")
    if backend != "cuda":
        return [*row, *["-"] * 7]
    hand = by_hand(case, rows(case, start), name)
    hand_seconds = per_step(hand, SHORT, LONG, given.repeats) / count
    ours, theirs = run(99), hand(100).get()
    off = _difference(name, ours, theirs, start)
    row += [f"{1e12 * hand_seconds:.1f}", f"{seconds / hand_seconds:.2f}", f"{off:.0e}"]
    if jax.devices()[0].platform != "gpu":
        return [*row, "no GPU in JAX", "-", "-", "-"]
    scans = [
        plain.runner(case, members(case, count)) if case.name in plain.SCHEMES else None,
        kernel(case, start, "xla"),
    ]
    for scan in scans:
        vmapped = per_step(scan, SHORT_VMAP, LONG_VMAP, given.repeats) / count if scan else 0.0
        row += [f"{1e12 * vmapped:.0f}", verdict(vmapped / seconds, 200, at_most=False)] if scan else ["-", "-"]
    return row


def _difference(name: str, ours: Any, theirs: np.ndarray, start: da.Trajectory) -> float:
    """max |momentum - that by hand| after 100 steps (the start of ours has done one of them); of a disk its place."""
    if name == "disk":
        place = np.asarray(to_host(ours.state.g[0]))[:, 0, :2, 2].T
        return float(np.max(np.abs(place - theirs[2:4])))
    momentum = np.asarray(to_host(ours.state.momentum))[:, 0].T
    rows = theirs[9:12] if name == "suslov" else theirs[4:7]
    return float(np.max(np.abs(momentum - rows)))


def rollouts(count: int, steps: int) -> tuple[da.System, da.State, jax.Array]:
    """Vehicles on one axle at rest, each with its own pushes."""
    system, rng = da.models.unicycle(centre=0.2), np.random.default_rng(1)
    one = system.state(xi=[0.3, 1.0, 0.0])
    many = jax.tree.map(lambda leaf: jax.device_put(np.broadcast_to(leaf, (count, *np.shape(leaf))).copy()), one)
    return system, many, jax.device_put(rng.normal(size=(count, steps, 2)))


def whole_calls(backend: str) -> list[tuple[str, Callable[[], Any], float]]:
    """Warm calls as a user writes them, on arrays of JAX: (what, call, milliseconds asked for; 0 for none)."""
    case, found = suslov(step=0.01), []

    def bodies(exponent: int, steps: int, every: int, place: Callable[[Any], Any]) -> Callable[[], Any]:
        start = jax.tree.map(lambda leaf: place(np.asarray(leaf)), members(case, 2**exponent))
        options: Any = {"step": 0.01, "steps": steps, "save_every": every, "backend": backend}
        return lambda: jax.block_until_ready(da.ensemble(case.system, case.integrator, start, **options).records)

    for exponent, steps, every, asked in ((14, 10, 10, 0.5), (20, 1000, 1000, 30), (17, 50, 1, 10)):
        what = f"2^{exponent} Suslov bodies, {steps} steps, {steps // every} saved"
        found.append((what, bodies(exponent, steps, every, jax.device_put), asked))
        found.append((f"{what}, from NumPy", bodies(exponent, steps, every, np.asarray), 0))
    (system, start, pushes), method = rollouts(2**17, 50), da.LagrangeDAlembert()

    def run(u: jax.Array) -> da.Trajectory:
        return da.ensemble(system, method, start, controls=u, step=0.05, steps=50, backend=backend)

    def distance(u: jax.Array) -> jax.Array:
        made = run(u)
        return jnp.sum(made.g[:, -1, :2, 2] ** 2) + 1e-3 * jnp.sum(u * u) + jnp.sum(made.xi[:, :, 1])

    found.append(("2^17 vehicles, 50 steps, own controls, all saved", lambda: jax.block_until_ready(run(pushes).g), 10))
    gradient = jax.grad(distance)
    found.append(("gradient of that in all controls", lambda: jax.block_until_ready(gradient(pushes)), 40))
    return found


def time_calls(backend: str, repeats: int) -> None:
    rows = []
    for what, call, asked in whole_calls(backend):
        begin = time.perf_counter()
        call()
        first, spent = time.perf_counter() - begin, []
        call()
        while len(spent) < repeats or sum(spent) < WARM_MILLISECONDS:
            begin = time.perf_counter()
            call()
            spent.append(1e3 * (time.perf_counter() - begin))
        low, high = np.quantile(spent, [0.1, 0.9])
        shown = verdict(median(spent), asked, at_most=True) if asked else f"{median(spent):.3g}"
        rows.append([what, shown, f"{low:.2f} to {high:.2f}", f"{asked:g}" if asked else "-", f"{first:.2f}"])
    table(["whole call", "ms", "10 % to 90 %", "asked", "first call s"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exponent", type=int, default=20, help="2^exponent trajectories")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--backend", default="cuda", help="llvm tries the script where there is no GPU")
    given = parser.parse_args()
    if given.backend == "cuda":
        from dalembert.kernels.cuda import has_gpu

        if not has_gpu():
            sys.exit("benchmarks/gpu.py needs CuPy and a GPU: there is none here, nothing was measured")
    rate = peak() if given.backend == "cuda" else 0.0
    where = jax.devices()[0].platform
    print(f"2^{given.exponent} trajectories; multiply-adds: {rate / 1e12:.1f} TFLOP/s; JAX on {where}", flush=True)
    cases = [(suslov(step=0.01), "suslov", rows_of_suslov), (body_map(2), "body", rows_of_body)]
    cases.append((disk(), "disk", rows_of_disk))
    head = [
        "per trajectory and step",
        "cuda ps",
        "iterations",
        "operations",
        "flops",
        "of peak",
        "by hand ps",
        "cuda/hand",
        "off",
        "vmap of the plain step ps",
        "/cuda",
        "vmap of our step ps",
        "/cuda",
    ]
    time_calls(given.backend, 4 * given.repeats)
    table(head, [measured(*case, given, rate) for case in cases])
    print(
        "targets: Suslov at most 25 ps, at least 200 x vmap (! marks a miss); `off`: momentum (disk: place) against "
        "CUDA by hand after 100 steps"
    )


if __name__ == "__main__":
    main()
