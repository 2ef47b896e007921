"""Time to accuracy: the error at the end of a run against the processor time it takes, beside heyoka, diffrax and
SciPy.

Compilation and set-up are not counted, for anybody; only the last state is kept. Peers that are not installed are left
out (`pip install dalembert[bench]`). A geometric method is chosen for what it keeps over long times; this asks only how
soon it is accurate. On Suslov's body, sleigh, particle, free body and disk the peers are given equations that were
derived by hand, in the fewest variables (quaternions, Euler angles); on disk, snakeboard, rattleback and bicycle those
that SymPy derives from a Lagrangian in coordinates (derived.py). Our methods differentiate the Lagrangian. All
integrate the whole configuration. What is timed is one call from Python: of ours that of the machine code, of heyoka
`propagate_until`; "whole call" is `simulate` as a user writes it, and "prepared" the run of `da.prepare`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _timing import once

import dalembert as da
from dalembert.integrators import DiscreteMoserVeselov
from dalembert.kernels import LoweringError
from dalembert.kernels import make_problem as problem
from dalembert.kernels.execute import open_session
from dalembert.models.bodies import GENERIC
from dalembert.plotting.style import label_ends
from dalembert.simulation import run_kernel as functions

TARGETS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
TOLERANCES = tuple(10.0**-k for k in range(3, 16))
STEPS = tuple(25 * 2**k for k in range(14))
WIDTH = 36  # of the names in a table
Point = tuple[float, float]  # (error, seconds)


@dataclass(frozen=True)
class Problem:
    """y' = field(y, cos, sin) in coordinates, the same motion as a system, and how a state of the system reads as y."""

    name: str
    field: Callable
    start: np.ndarray
    system: Any
    state: Any
    integrators: dict[str, Any]
    read: Callable[[Any], np.ndarray]  # from a dalembert state to what is compared
    compared: Callable[[np.ndarray], np.ndarray]  # from y to what is compared
    end: float = 20.0
    by_sympy: bool = False  # whether the field is SymPy's
    large: bool = False  # compiling takes long: fewer tolerances
    compact: bool = False  # larger still: heyoka's `compact_mode`
    accurate_steps: int = 4000  # of the reference
    quick: bool = False  # few tolerances and steps: to see that all runs


# ---- the problems, in arithmetic that numbers, arrays and expressions share


def turning(q, w):
    """q' of the attitude quaternion, scalar first, with body velocity w."""
    a, b, c, d = q
    u, v, z = w
    return [
        0.5 * (-b * u - c * v - d * z),
        0.5 * (a * u + c * z - d * v),
        0.5 * (a * v - b * z + d * u),
        0.5 * (a * z + b * v - c * u),
    ]


def rotation(q) -> np.ndarray:
    a, b, c, d = q / np.sqrt(q @ q)
    return np.array(
        [
            [1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)],
        ]
    )


def with_attitude(vector, q) -> np.ndarray:
    return np.concatenate([vector, rotation(q).ravel()])


ONE = (1.0, 0.0, 0.0, 0.0)
FAST = {"Taylor": da.Taylor(), "Dormand-Prince": da.DormandPrince()}
HIGH = {
    **FAST,
    "Gauss, order 6": da.Gauss(3),
    "Runge-Kutta 4": da.RungeKutta(),
}


def rigid_body() -> Problem:
    moments = (0.6, 0.8, 1.0)

    def field(y, cos, sin):
        m, q = y[:3], y[3:]
        w = [m[i] / moments[i] for i in range(3)]
        return [m[1] * w[2] - m[2] * w[1], m[2] * w[0] - m[0] * w[2], m[0] * w[1] - m[1] * w[0], *turning(q, w)]

    system = da.models.rigid_body(moments)
    orders = {f"Moser-Veselov, order {order}": DiscreteMoserVeselov(order=order) for order in (2, 4, 6, 10)}
    methods = {"Moser-Veselov, exact": DiscreteMoserVeselov(), **orders, **HIGH}
    start = np.array([1.8, 0.4, -0.9, *ONE])
    return Problem(
        "free rigid body",
        field,
        start,
        system,
        system.state(momentum=start[:3]),
        methods,
        lambda s: np.concatenate([s.momentum, np.ravel(s.g)]),
        lambda y: with_attitude(y[:3], y[3:]),
    )


def suslov() -> Problem:
    (a, b, c), (_, d, e), _ = GENERIC
    scale = 1.0 / (a * d - b * b)

    def field(y, cos, sin):
        u, v = y[:2]
        n = c * u + e * v
        f, g = -(n * v), n * u
        return [scale * (d * f - b * g), scale * (a * g - b * f), *turning(y[2:], (u, v, 0.0 * u))]

    system = da.models.suslov(GENERIC)
    methods = {
        "Moser-Veselov": da.EulerPoincareSuslov("moser-veselov"),
        "Cayley": da.EulerPoincareSuslov("retraction"),
        "composition, order 6": da.Composition(base=da.RetractionAdapted()),
        **HIGH,
    }
    start = np.array([0.9, 0.5, *ONE])
    return Problem(
        "Suslov",
        field,
        start,
        system,
        system.state(xi=[0.9, 0.5, 0.0]),
        methods,
        lambda s: np.concatenate([s.xi[:2], np.ravel(s.g)]),
        lambda y: with_attitude(y[:2], y[2:]),
    )


def sleigh() -> Problem:
    mass, inertia, a, b = 1.0, 1.0, 0.3, 0.2
    about = inertia + mass * a**2

    def field(y, cos, sin):
        w, v, theta = y[:3]
        V = v - b * w
        rate = -(mass * a / about) * w * V
        return [rate, a * w * w + b * rate, w, v * cos(theta), v * sin(theta)]

    system = da.models.chaplygin_sleigh(mass, inertia, a, b)
    methods = {
        "Moser-Veselov": da.EulerPoincareSuslov("moser-veselov"),
        "composition, order 6": da.Composition(base=da.RetractionAdapted()),
        **HIGH,
    }
    return Problem(
        "Chaplygin sleigh",
        field,
        np.array([0.5, -1.0, 0.0, 0.0, 0.0]),
        system,
        system.state(xi=[0.5, -1.0, 0.0]),
        methods,
        lambda s: np.concatenate([s.xi[:2], s.g[:2, 2], s.g[:2, 0]]),
        lambda y: np.array([y[0], y[1], y[3], y[4], np.cos(y[2]), np.sin(y[2])]),
    )


def particle() -> Problem:
    def field(y, cos, sin):
        x, y, _, u, v = y
        force = (v * u - x * y) / (1.0 + y * y)
        return [u, v, y * u, -x - y * force, -y]

    system = da.models.nonholonomic_particle("harmonic")
    methods = {"Lagrange-d'Alembert": da.LagrangeDAlembert(), "composition, order 6": da.Composition(), **HIGH}
    return Problem(
        "nonholonomic particle",
        field,
        np.array([0.3, 0.5, -0.2, 1.1, 0.7]),
        system,
        system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55]),
        methods,
        lambda s: np.concatenate([s.g, s.xi[:2]]),
        lambda y: np.asarray(y),
    )


def disk() -> Problem:
    """A disk that leans by alpha, heads for psi and spins with s: R = Rz(psi) Rx(alpha) Ry(phi), p and q about its
    other two axes.
    """
    mass, r, gravity, axial, across = 1.0, 0.5, 9.81, 0.125, 0.0625
    A, C = across + mass * r * r, axial + mass * r * r

    def field(y, cos, sin):
        alpha, psi, _, p, s, q = y[:6]
        turn = q / cos(alpha)
        k = turn * sin(alpha)
        rate = (C * q * s - across * k * q + mass * gravity * r * sin(alpha)) / A
        back = p * cos(alpha)
        return [
            p,
            turn,
            s - k,
            rate,
            -(mass * r * r / C) * q * p,
            p * (k - (axial / across) * s),
            r * (s * cos(psi) + back * sin(psi)),
            r * (s * sin(psi) - back * cos(psi)),
        ]

    system = da.models.rolling_disk(mass, r, gravity=gravity)
    methods = {"Lagrange-d'Alembert": da.LagrangeDAlembert(), "composition, order 6": da.Composition(), **HIGH}

    def compared(y):
        return np.concatenate([y[4:5], attitude(y[1], y[0], y[2]).ravel(), y[6:]])

    return Problem(
        "rolling disk",
        field,
        np.array([0.0, 0.0, 0.0, 0.2, 6.0, 0.5, 0.0, 0.0]),
        system,
        system.state(xi=[0.2, 6.0, 0.5, 3.0, -0.1]),
        methods,
        lambda s: np.concatenate([s.xi[1:2], np.ravel(s.g[0]), s.g[1]]),
        compared,
    )


def about(axis, angle):
    return rotation(np.array([np.cos(angle / 2), *(np.sin(angle / 2) * np.eye(3)[axis])]))


def attitude(psi, alpha, phi):
    return about(2, psi) @ about(0, alpha) @ about(1, phi)


# ---- problems whose equations SymPy derives, y = (q, v)


def derived_disk() -> Problem:
    """The disk by Euler angles: y = (x, y, psi, alpha, phi and the rates of the angles)."""
    import derived  # needs SymPy

    by_hand = disk()

    def compared(y):
        spin = y[7] + y[5] * np.sin(y[3])
        return np.concatenate([[spin], attitude(*y[2:5]).ravel(), y[:2]])

    return replace(
        by_hand,
        name="rolling disk by SymPy",
        field=derived.disk(1.0, 0.5, 0.125, 0.0625, 9.81),
        start=np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.2, 6.0]),
        integrators=FAST,
        compared=compared,
        by_sympy=True,
        large=True,
    )


def snakeboard() -> Problem:
    import derived  # needs SymPy

    system = da.models.snakeboard()
    numbers = (6.0, 0.016, 0.072, 0.0013, 0.2)

    def read(s):
        (pose, rotor, wheels), (_, v, _, a, _) = s.g, s.xi
        return np.concatenate([[v, a], pose[:2, 2], pose[:2, 0], rotor[:, 0], wheels[:, 0]])

    def compared(y):
        x, z, theta, a, b, dx, dy, _, da, _ = y
        along = np.cos(theta) * dx + np.sin(theta) * dy
        return np.array([along, da, x, z, *(f(angle) for angle in (theta, a, b) for f in (np.cos, np.sin))])

    return Problem(
        "snakeboard",
        derived.snakeboard(*numbers),
        np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 2.0, 0.4]),
        system,
        system.state(xi=[0.0, 0.5, 0.0, 2.0, 0.4]),
        {"Lagrange-d'Alembert": da.LagrangeDAlembert(), **FAST},
        read,
        compared,
        by_sympy=True,
    )


def rattleback() -> Problem:
    import derived  # needs SymPy

    system = da.models.rattleback()
    inertia = ((2e-4, -2e-5, 0.0), (-2e-5, 1.6e-3, 0.0), (0.0, 0.0, 1.7e-3))
    return Problem(
        "rattleback",
        derived.rattleback(1.0, inertia, (0.2, 0.03, 0.02), 0.01, 9.81),
        np.array([0.0, 0.0, 0.0, 0.0, 0.0, -5.0, 0.5, 0.0]),
        system,
        system.state(xi=[0.5, 0.0, -5.0, 0.0, -0.005]),
        {"Lagrange-d'Alembert": da.LagrangeDAlembert(), **FAST},
        lambda s: np.concatenate([np.ravel(s.g[0]), s.g[1]]),
        lambda y: np.concatenate([attitude(*y[2:5]).ravel(), y[:2]]),
        end=4.0,
        by_sympy=True,
        large=True,
        accurate_steps=16_000,
    )


def bicycle() -> Problem:
    """The bicycle of our models has z up, that of SymPy (the numbers of tests/bicycle.py) z down."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    import bicycle as numbers
    import derived  # needs SymPy

    system = da.models.bicycle()
    flip = np.diag([1.0, -1.0, -1.0])

    def read(s):
        return np.concatenate([np.ravel(s.g[0][:3]), s.g[1], s.xi[6:]])

    def compared(y):
        q, upright = y[:8], about(2, y[2]) @ about(0, y[3])
        frame = upright @ about(1, q[4])
        place = np.array([q[0], q[1], 0.0]) - numbers.REAR_RADIUS * upright[:, 2] - frame @ numbers.REAR_HUB
        pose = np.concatenate([flip @ frame @ flip, (flip @ place)[:, None]], axis=1)
        return np.concatenate([pose.ravel(), q[5:6], -q[6:], y[13:14], -y[14:]])

    start = np.zeros(16)
    start[[8, 11, 14, 15]] = 4.6, 0.5, -4.6 / 0.3, -4.6 / 0.35
    return Problem(
        "bicycle",
        derived.bicycle(numbers),
        start,
        system,
        system.state(speed=4.6, lean_rate=0.5),
        FAST,
        read,
        compared,
        end=5.0,
        by_sympy=True,
        large=True,
        compact=True,
        accurate_steps=1000,
    )


def reference(case: Problem) -> np.ndarray:
    """The end of the motion to 1e-15 or so: Dormand and Prince's method of order 8 with fixed steps in extended
    precision.
    """
    from scipy.integrate import DOP853

    A, B, count = DOP853.A.astype(np.longdouble), DOP853.B.astype(np.longdouble), DOP853.n_stages
    steps = case.accurate_steps
    y, h = case.start.astype(np.longdouble), np.longdouble(case.end) / steps
    for _ in range(steps):
        slopes = np.zeros((count, len(y)), np.longdouble)
        for i in range(count):
            slopes[i] = case.field(list(y + h * (A[i, :i] @ slopes[:i])), np.cos, np.sin)
        y = y + h * (B @ slopes)
    return case.compared(y).astype(float)


# ---- who runs them: each yields (what is compared, a call to time)

Runs = Iterator[tuple[np.ndarray, Callable[[], Any]]]


def stay(consts, given, u):
    return given


def dalembert_runs(case: Problem, integrator: Any) -> Runs:
    """The call is the machine code of the start, where it computes anything, and of all steps."""
    for method, steps in variants(case, integrator):
        begin, advance, observe = functions(method, False)
        consts, given = (case.system, np.asarray(case.end / steps)), (case.state, None)
        loop = jax.jit(begin)(consts, given)
        session = open_session(problem(advance, observe, consts, loop), "llvm")[0]
        calls = [partial(session.restore_state, session.save_state()), partial(session.run, 0, 1, steps, 0)]
        session.reserve(1)
        if works(method, consts, given):
            first = open_session(problem(stay, begin, consts, given), "llvm")[0]
            first.reserve(1)
            calls.insert(0, partial(first.run, 0, 1, 1, 0))

        def run(calls=calls):
            for call in calls:
                call()

        run()
        last = jax.tree.map(lambda leaf: np.array(leaf[0]), session.records(1))
        if last.steps == steps:
            yield case.read(last.state), run


def works(method: Any, consts: Any, given: Any) -> bool:
    """Whether the start of a method computes what it carries; an explicit method begins with the state that it is
    given.
    """
    carried = problem(stay, lambda consts, given: method.start(consts[0], given[0], consts[1])[0], consts, given)
    program = carried.lower().program
    return any(program.count(block) for block in ("setup", "observe"))


def tolerances_of(case: Problem) -> tuple[float, ...]:
    """All of them, or every second one where compiling takes long, or two of them."""
    return TOLERANCES[1:6:4] if case.quick else TOLERANCES[1::2] if case.large else TOLERANCES


def variants(case: Problem, integrator: Any) -> list[tuple[Any, int]]:
    """(method, steps): many steps, few of an exact map, one of a method that takes its own substeps."""
    if isinstance(integrator, da.DormandPrince | da.Taylor):
        return [(replace(integrator, tolerance=tolerance), 1) for tolerance in tolerances_of(case)]
    many = (1, *STEPS[2:6]) if getattr(integrator, "order", None) == "exact" else STEPS
    return [(integrator, steps) for steps in (many[:5:2] if case.quick else many)]


def whole_runs(case: Problem, integrator: Any, prepared: bool) -> Runs:
    """The call is `simulate` as a user writes it, or the run that `prepare` made."""
    for method, _ in variants(case, integrator)[1::2]:
        options: Any = {"step": case.end, "steps": 1}
        run = partial(da.simulate, case.system, method, case.state, **options)
        if prepared:
            run = partial(da.prepare(case.system, method, **options, save="final"), case.state)
        last = run()
        state = last.values if prepared else jax.tree.map(lambda leaf: np.array(leaf[-1]), last.records.state)
        yield case.read(state), run


def scipy_runs(case: Problem, method: str) -> Runs:
    from scipy.integrate import solve_ivp

    def field(t, y):
        return case.field(y, np.cos, np.sin)

    for tolerance in tolerances_of(case):
        run = partial(
            solve_ivp, field, (0.0, case.end), case.start, method=method, rtol=max(tolerance, 3e-14), atol=tolerance
        )
        yield case.compared(run().y[:, -1]), run


def diffrax_runs(case: Problem, solver: str) -> Runs:
    import diffrax
    import jax.numpy as jnp

    term = diffrax.ODETerm(lambda t, y, p: jnp.stack(case.field(list(y), jnp.cos, jnp.sin)))

    @jax.jit
    def solve(y, tolerance):
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        chosen = getattr(diffrax, solver)()
        return diffrax.diffeqsolve(
            term,
            chosen,
            0.0,
            case.end,
            0.01,
            y,
            saveat=diffrax.SaveAt(t1=True),
            stepsize_controller=controller,
            max_steps=None,
            throw=False,
        ).ys[-1]

    start = jnp.asarray(case.start)
    for tolerance in tolerances_of(case)[: None if case.quick else -1]:
        yield (
            case.compared(np.asarray(solve(start, tolerance))),
            lambda tol=tolerance: solve(start, tol).block_until_ready(),
        )


def heyoka_runs(case: Problem, _: str) -> Runs:
    import heyoka as hy

    names = hy.make_vars(*[f"y{i}" for i in range(len(case.start))])
    rates = [hy.expression(x) if isinstance(x, float) else x for x in case.field(list(names), hy.cos, hy.sin)]
    equations = list(zip(names, rates, strict=True))
    for tolerance in (*tolerances_of(case), 2.3e-16):
        integrator = hy.taylor_adaptive(equations, list(case.start), tol=tolerance, compact_mode=case.compact)

        def run(integrator=integrator):
            integrator.time = 0.0
            integrator.state[:] = case.start
            integrator.propagate_until(case.end)

        run()
        yield case.compared(integrator.state.copy()), run


WHOLE = {"dalembert: Taylor prepared": True, "dalembert: Taylor whole call": False}
PEERS = {
    "heyoka": (heyoka_runs, "heyoka", ("",)),
    "diffrax": (diffrax_runs, "diffrax", ("Dopri8", "Tsit5")),
    "SciPy": (scipy_runs, "scipy", ("DOP853", "LSODA")),
}


def points(runs: Runs, truth: np.ndarray) -> list[Point]:
    """Errors and seconds; a run that takes longer than a second, or is too large for native code, ends the list."""
    found: list[Point] = []
    try:
        for value, call in runs:
            seconds = once(call)
            found.append((float(np.max(np.abs(value - truth))), seconds))
            if seconds > 1.0:
                break
    except (LoweringError, da.errors.InvalidInput):
        if not found:
            raise
    return found


def measured(case: Problem, methods: str) -> Iterator[tuple[str, list[Point]]]:
    """(who runs it, what was found), one after the other, of those whose names contain `methods`."""
    truth = reference(case)
    runs = {f"dalembert: {name}": dalembert_runs(case, method) for name, method in case.integrators.items()}
    runs |= {name: whole_runs(case, da.Taylor(), prepared) for name, prepared in WHOLE.items()}
    for name, (peer, module, chosen) in PEERS.items():
        if importlib.util.find_spec(module) and (name == "heyoka" or not case.by_sympy):
            runs |= {f"{name} {method}".strip(): peer(case, method) for method in chosen}
    for name, each in runs.items():
        if methods in name:
            try:
                yield name, points(each, truth)
            except (LoweringError, da.errors.InvalidInput) as fault:
                print(f"{name} is left out on the {case.name}: {fault}", flush=True)


def soonest(found: list[Point], target: float) -> str:
    times = [seconds for error, seconds in found if error <= target]
    return f"{1e6 * min(times):.0f}" if times else "-"


def against(curves: dict[str, list[Point]], target: float) -> str:
    """The least time of our kernels over heyoka's."""
    if "heyoka" not in curves:
        return "-"
    least = lambda found: min((s for e, s in found if e <= target), default=np.inf)
    kernels = [found for name, found in curves.items() if name.startswith("dalembert") and name not in WHOLE]
    ours, theirs = min(map(least, kernels), default=np.inf), least(curves["heyoka"])
    return f"{ours / theirs:.2f}" if np.isfinite(ours) and np.isfinite(theirs) else "-"


def plot(results: dict[str, dict[str, list[Point]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(5, 2, figsize=(16, 20), layout="constrained")
    labels = list(dict.fromkeys(label for curves in results.values() for label in curves))
    for axis in axes.flat[len(results) :]:
        axis.remove()
    for axis, (name, curves) in zip(axes.flat, results.items(), strict=False):
        for label, found in curves.items():
            errors, seconds = np.array(found).reshape(-1, 2).T
            axis.loglog(
                np.maximum(errors, 1e-16),
                1e6 * seconds,
                "o-" if "dalembert" in label else "s--",
                ms=3,
                label=label,
                color=plt.cm.tab20(labels.index(label) % 20),
            )
        axis.set(title=name, xlabel="error at the end", ylabel="processor time, microseconds")
        axis.invert_xaxis()
        axis.grid(alpha=0.3)
        label_ends(axis, 8.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    print(f"figure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/work_precision.png"))
    parser.add_argument("--only", default="", help="problems whose names contain this")
    parser.add_argument("--methods", default="", help="methods and peers whose names contain this")
    parser.add_argument("--quick", action="store_true", help="few tolerances and steps: to see that all runs")
    given = parser.parse_args()
    for name, (_, module, _) in PEERS.items():
        if not importlib.util.find_spec(module):
            print(f"{name} is not installed: left out (pip install dalembert[bench])")
    made = {"free rigid body": rigid_body, "Suslov": suslov, "Chaplygin sleigh": sleigh, "particle": particle}
    made |= {"rolling disk": disk, "disk by SymPy": derived_disk, "snakeboard": snakeboard, "rattleback": rattleback}
    made |= {"bicycle": bicycle}
    results: dict[str, dict[str, list[Point]]] = {}
    for make in (make for name, make in made.items() if given.only in name):
        case = make()
        if given.quick:
            case = replace(case, quick=True, accurate_steps=case.accurate_steps // 8)
        print(f"{case.name}: microseconds to".ljust(WIDTH), *(f"{target:>8.0e}" for target in TARGETS), flush=True)
        curves = results.setdefault(case.name, {})
        for label, found in measured(case, given.methods):  # a row as soon as it is known: all take half an hour
            curves[label] = found
            print(label.ljust(WIDTH), *(f"{soonest(found, target):>8}" for target in TARGETS), flush=True)
        best = [
            min((min((s for e, s in found if e <= t), default=np.inf), label) for label, found in curves.items())[1]
            for t in TARGETS
            if curves
        ]
        ratios = [f"{t:.0e} {against(curves, t)}" for t in TARGETS]
        print("best kernel of ours / heyoka: " + ", ".join(ratios))
        print("soonest: " + "; ".join(f"{t:.0e} {label}" for t, label in zip(TARGETS, best, strict=False)) + "\n")
    plot(results, given.out)


if __name__ == "__main__":
    main()
