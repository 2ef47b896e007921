"""McLachlan and Zanna (2003): the discrete Moser-Veselov algorithm for the free rigid body, of order 2, 4 and 6.

The Moser-Veselov equation is M = w^T J - J w for an orthogonal w. W = w^T J satisfies W^2 - M W - J^2 = 0. Its
eigenvalues are the roots with positive real part of det(l^2 - l M - J^2) = 0; when some root is imaginary there is no
map.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from ..analysis.branches import failing_steps, free_body_level
from ..integrators import DiscreteMoserVeselov, ImplicitMidpoint, Integrator, LiePoissonSplitting
from ..integrators import free_body as free
from ..kernels import Block, Loop, Value, inner_blocks, lower
from ..models import exact_body, rigid_body
from ..plotting.studies import draw_lines, draw_slope, name_lines
from ..plotting.style import COLOURS, DASHES
from ..simulation import Run
from .gallery import Data, Gallery, simulate_uninterrupted

gallery = Gallery("mz")
MASS = np.array([0.92181297074480, 0.73820724581067, 0.17626614449462])
"""J of the running example, unrounded: the inputs that give the paper's own numbers."""
START = np.array([0.41027020699095, 0.89364953091353, 0.05789130478427])
START = START / np.linalg.norm(START)
INERTIA = MASS.sum() - MASS
END_TIME = 100.0
METHODS: dict[str, Integrator] = {
    "LP2": LiePoissonSplitting(),
    "IMR": ImplicitMidpoint(),
    "DMV": DiscreteMoserVeselov(2, "scaled"),
    "DMV4": DiscreteMoserVeselov(4, "scaled"),
    "DMV6": DiscreteMoserVeselov(6, "scaled"),
}
STEPS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.8, 1.0, 1.2, 1.5, 2.2, 2.5, 4.0)
TABLE_4: dict[str, tuple[float | None, ...]] = {  # as printed; None where a method fails
    "LP2": (6.7903e-03, 5.1043e-01, 1.6055, 1.7002, 1.9489, 1.3902),
    "IMR": (1.5494e-04, 9.9329e-03, 1.3119e-01, 3.9514e-01, 2.5276e-01, 6.1905e-01),
    "DMV": (1.5014e-02, 5.9899e-01, None, None, None, None),
    "DMV4": (1.757e-07, 7.6167e-04, 1.0785e-01, 1.6094, 5.0245e-01, 5.1624e-01),
    "DMV6": (1.962e-10, 1.6440e-06, 7.0269e-02, None, 7.0407e-01, 1.0519e-01),
}
TABLE_STEPS = (1 / 16, 1 / 2, 1.2, 2.2, 2.5, 4.0)
FLOPS = dict.fromkeys(("add", "sub", "mul", "div", "sqrt", "neg"), 1) | {"fma": 2}
LARGE_STEP_METHODS = ("LP2", "IMR", "DMV4", "DMV6")


def run_free(method: str, step: float, steps: int) -> Run:
    """A run of the free body from the paper's start."""
    system = rigid_body(INERTIA)
    return simulate_uninterrupted(system, METHODS[method], system.state(momentum=START), step=step, steps=steps)


def momenta(method: str, step: float, steps: int) -> np.ndarray:
    """m_0, m_1, ... of a method, (k, 3); fewer than steps + 1 where it fails."""
    run = run_free(method, step, steps)
    return np.asarray(run.momentum) if run.failed_at != -1 else START[None]


@lru_cache
def errors() -> dict[str, np.ndarray]:
    """|m_n - m(100)| with n = floor(100/h) of all methods at all `STEPS`; NaN where a method fails."""
    goal = exact_body(INERTIA, START, END_TIME).momentum

    def error(method: str, step: float) -> float:
        steps = int(END_TIME / step + 1e-9)
        found = momenta(method, step, steps)
        return float(np.linalg.norm(found[-1] - goal)) if len(found) > steps else np.nan

    return {method: np.array([error(method, h) for h in STEPS]) for method in METHODS}


def energy(m: np.ndarray) -> Any:
    """H = sum m_i^2/I_i, (3.1) of mclachlan-zanna."""
    return np.sum(m**2 / INERTIA, axis=-1)


def figure_run() -> tuple[np.ndarray, np.ndarray]:
    """(t_k, m_k) of Figures 3.1 and 3.2: DMV with h = 0.8 up to t = 50."""
    return 0.8 * np.arange(63), momenta("DMV", 0.8, 62)


def draw_components(axes: Any, data: Data) -> None:
    curves = (
        ("exact, f", "exact", "-", COLOURS[6]),
        ("f + h² f₃", "order 4", "-.", COLOURS[2]),
        ("f + h² f₃ + h⁴ f₅", "order 6", "--", COLOURS[1]),
    )
    for i, panel in enumerate(axes):
        for label, name, dash, colour in curves:
            panel.plot(data["t"], data[name][:, i], linestyle=dash, color=colour, label=label)
        dotted = {"color": COLOURS[0], "markersize": 3, "linewidth": 0.8, "label": "DMV, h = 0.8"}
        panel.plot(data["nodes"], data["DMV"][:, i], ":o", **dotted)
        panel.set_ylabel(f"$m_{i + 1}$")
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    axes[-1].set_xlabel("$t$")


@gallery("figure-3.1", draw=draw_components, size=(7.2, 6.2), nrows=3, sharex=True)
def modified_motions() -> Data:
    tau3, tau5 = speed_coefficients(INERTIA, START, 2)
    fourth = 1 + tau3 * 0.8**2
    rates = {"exact": 1.0, "order 4": fourth, "order 6": fourth + tau5 * 0.8**4}
    nodes, found = figure_run()
    t = np.linspace(0, 50.0, 1001)
    motion = {name: exact_body(INERTIA, START, rate * t).momentum for name, rate in rates.items()}
    rows = [
        (label, rates[name], float(np.abs(found - exact_body(INERTIA, START, rates[name] * nodes).momentum).max()))
        for label, name in (("f", "exact"), ("f + h² f3", "order 4"), ("f + h² f3 + h⁴ f5", "order 6"))
    ]
    columns = ("vector field", "its speed", "largest distance of DMV from its solution")
    return Data(columns, rows, {"t": t, "nodes": nodes, "DMV": found, **motion})


def draw_conservation(axes: Any, data: Data) -> None:
    for panel, name, label in zip(axes, ("energy", "norm"), ("$H - H_0$", "$|m| - |m_0|$"), strict=True):
        panel.plot(data["nodes"], data[name], "o-", color=COLOURS[0], markersize=2.5)
        panel.set_ylabel(label)
    axes[-1].set_xlabel("$t$")


@gallery("figure-3.2", draw=draw_conservation, size=(7.2, 4.6), nrows=2, sharex=True)
def conservation() -> Data:
    nodes, found = figure_run()
    drift = energy(found) - energy(START)
    norm = np.linalg.norm(found, axis=1) - 1.0
    rows = [("H", float(np.abs(drift).max())), ("|m|", float(np.abs(norm).max()))]
    return Data(("invariant", "largest error"), rows, {"nodes": nodes, "energy": drift, "norm": norm})


LINE_STYLES = {"DMV": ("o", ":", COLOURS[0], 6), "DMV4": ("*", "-.", COLOURS[1], 6), "DMV6": ("h", "--", COLOURS[2], 4)}


def spectra(steps: np.ndarray) -> Data:
    """The six roots of P(l) at some steps, and the steps at which they are imaginary so that there is no map.

    h m is scaled by 1, 1 + tau3 h² and 1 + tau3 h² + tau5~ h⁴.
    """
    tau3, tau5 = scaling_coefficients(INERTIA, START, 2)
    hat = np.cross(np.eye(3), START)
    scales = {"DMV": 0 * steps + 1, "DMV4": 1 + tau3 * steps**2, "DMV6": 1 + tau3 * steps**2 + tau5 * steps**4}
    printed = {"DMV": "from about 1.2", "DMV4": "never", "DMV6": "at about 2.2"}
    data = Data(("method", "no map for h in", "printed"), [], {"h": steps})
    for order, (name, scale) in zip((2, 4, 6), scales.items(), strict=True):
        values = np.array([spectrum(MASS, h / s * hat) for h, s in zip(steps, scale, strict=True)])
        data.arrays.update({f"{name} real": np.sort(values.real), f"{name} imaginary": np.sort(values.imag)})
        intervals = failing_steps(INERTIA, START, order, up_to=1000.0)
        ours = ", ".join(f"[{low:.8g}, {'∞' if high >= 1000 else f'{high:.8g}'}]" for low, high in intervals) or "never"
        data.rows.append((name, ours, printed[name]))
    return data


def draw_spectrum(axes: Any, data: Data, scale: str, limit: float, every: int) -> None:
    for panel, part in zip(axes, ("real", "imaginary"), strict=True):
        for name, (marker, dash, colour, size) in LINE_STYLES.items():
            for k, column in enumerate(data[f"{name} {part}"].T):
                style = {"marker": marker, "linestyle": dash, "color": colour, "markersize": size, "linewidth": 0.8}
                style |= {"markerfacecolor": "none", "markeredgewidth": 0.7, "markevery": every}
                panel.plot(data["h"], column, label=None if k else name, **style)
        bound = 1.1 if part == "real" else limit
        panel.set(ylabel=f"{part} part of λ", ylim=(-bound, bound), xscale=scale)
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes[-1].set_xlabel("step $h$")


for label, steps, scale, limit, every in (
    ("figure-5.3", np.linspace(0.0, 3.0, 301), "linear", 1.6, 5),
    ("figure-5.4", np.geomspace(0.1, 1000.0, 481), "log", 2.2, 6),
):
    draw = partial(draw_spectrum, scale=scale, limit=limit, every=every)
    gallery(label, draw=draw, size=(7.2, 6.0), nrows=2, sharex=True)(partial(spectra, steps))


def draw_errors(axes: Any, data: Data) -> None:
    draw_lines(axes, {name: (data["h"], data[name]) for name in METHODS})
    for order, height in ((2, 3e-5), (4, 2e-8), (6, 7e-13)):
        draw_slope(axes, (0.0625, 0.25), height, order)
    axes.set(xlabel="step $h$", ylabel="error at $T = 100$")
    axes.legend()


@gallery("table-4", draw=draw_errors, size=(6.4, 4.8))
def table_4() -> Data:
    found = errors()
    names = [f"1/{round(1 / h)}" if h <= 0.5 else f"{h:g}" for h in TABLE_STEPS]
    columns = ["method", *(f"h = {name}{which}" for name in names for which in ("", ", printed"))]
    rows = []
    for name, printed in TABLE_4.items():
        ours = [found[name][STEPS.index(h)] for h in TABLE_STEPS]
        values = [value for pair in zip(ours, printed, strict=True) for value in pair]
        rows.append([name, *("fails" if value is None or np.isnan(value) else value for value in values)])
    return Data(columns, rows, {"h": np.array(STEPS), **found})


@gallery("figure-7.5", draw=draw_errors, size=(6.4, 4.8))
def error_against_step() -> Data:
    rows = [(name, found[0], found[3], float(np.log2(found[1] / found[0]))) for name, found in errors().items()]
    columns = ("method", "error at h = 1/16", "error at h = 1/2", "order between 1/8 and 1/16")
    return Data(columns, rows, {"h": np.array(STEPS), **errors()})


def draw_cost(axes: Any, data: Data) -> None:
    draw_lines(axes, {name: (data[f"{name} error"], data[f"{name} operations"]) for name in METHODS})
    axes.invert_xaxis()
    axes.set(xlabel="error at $T = 100$", ylabel="floating-point operations")
    name_lines(axes)


@gallery("figure-7.6", draw=draw_cost, size=(6.4, 4.8))
def cost_against_accuracy() -> Data:
    data = Data(("method", "operations a step (h = 1/2)", "error at h = 1/2"))
    for name, values in errors().items():
        step = momentum_step(name)
        counts = [int(END_TIME / h + 1e-9) for h in STEPS]
        runs = [run_free(name, h, n) for h, n in zip(STEPS, counts, strict=True)]
        newton = [float(np.mean(np.asarray(run.iterations)[1:])) if len(run.t) > 1 else 0.0 for run in runs]
        each = [_count_operations(step, iterations) for iterations in newton]
        total = np.array([flops * n for flops, n in zip(each, counts, strict=True)])
        data.arrays.update({f"{name} error": values, f"{name} operations": total})
        data.rows.append((name, each[3], values[3]))
    return data


def momentum_step(method: str) -> Block:
    """The compiled step of a method, of the momentum alone."""
    system, integrator = rigid_body(INERTIA), METHODS[method]
    attitude = "g" if method == "IMR" else "q"

    def advance(consts: Any, carry: Any, u: Any) -> Any:
        return integrator.step(consts[0], carry, consts[1])[0]._replace(**{attitude: getattr(carry, attitude)})

    def observe(consts: Any, carry: Any) -> Any:
        return carry.prediction.x if method == "IMR" else carry.m

    consts = (system, np.float64(1.0))
    carry = jax.eval_shape(lambda: integrator.start(system, system.state(momentum=START), 1.0)[0])
    return lower(advance, observe, jax.eval_shape(lambda: consts), carry, None).program.advance


def _count_operations(block: Block, iterations: float) -> float:
    """Floating-point operations of a block in which Newton's method takes so many iterations.

    A loop that holds another one follows a branch that has ended, and is not entered.
    """
    total = 0.0
    for statement in block.statements:
        if isinstance(statement, Value):
            total += FLOPS.get(statement.op, 0) if statement.type == "f64" else 0
        elif isinstance(statement, Loop):
            nested = any(isinstance(inner, Loop) for each in inner_blocks(statement) for inner in each.statements)
            tests = (iterations + 1) * _count_operations(statement.test, iterations)
            total += 0 if nested else iterations * _count_operations(statement.body, iterations) + tests
    return total


def draw_motions(axes: Any, data: Data) -> None:
    for panel, name in zip(axes, LARGE_STEP_METHODS, strict=True):
        for i in range(3):
            panel.plot(data["t"], data["exact"][:, i], color=COLOURS[i], linewidth=0.8, alpha=0.6)
            style = {"color": COLOURS[i], "linestyle": DASHES[i], "label": f"$m_{i + 1}$"}
            panel.plot(data["nodes"], data[name][:, i], marker="osD"[i], markersize=3, **style)
        panel.set(ylabel=name, ylim=(-1.15, 1.15))
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, title="markers: method, thin lines: exact")
    axes[-1].set_xlabel("$t$")


def motions(step: float) -> Data:
    """The momenta of the methods at one step beside the exact motion."""
    steps = int(END_TIME / step)
    nodes, t = step * np.arange(steps + 1), np.linspace(0, END_TIME, 1501)
    truth, there = exact_body(INERTIA, START, t).momentum, exact_body(INERTIA, START, nodes).momentum
    columns = ("method", "largest error of m", "of |m|", "of H, relative", "speed of the motion")
    data = Data(columns, [], {"t": t, "exact": truth, "nodes": nodes})
    for name in LARGE_STEP_METHODS:
        found = momenta(name, step, steps)
        data.arrays[name] = found = np.concatenate([found, np.full((steps + 1 - len(found), 3), np.nan)])
        size, level = np.linalg.norm(found, axis=1), energy(found)
        gaps = (np.linalg.norm(found - there, axis=1), size - 1, level / energy(START) - 1)
        data.rows.append((name, *(float(np.abs(gap).max()) for gap in gaps), effective_speed(name, step)))
    return data


def effective_speed(name: str, step: float) -> float | None:
    """Over what time of the exact flow a step of a Moser-Veselov method goes, divided by h; None for the others."""
    if not name.startswith("DMV"):
        return None
    from scipy.optimize import minimize_scalar

    one = momenta(name, step, 1)[-1]

    def distance(s: float) -> float:
        return float(np.linalg.norm(exact_body(INERTIA, START, s).momentum - one))

    grid = np.linspace(0, 2 * step, 400)
    near = grid[np.argmin([distance(s) for s in grid])]
    bounds = max(0.0, near - step / 100), near + step / 100
    found = minimize_scalar(distance, bounds=bounds, method="bounded", options={"xatol": 1e-12})
    return float(found.x) / step


for label, step in (("figure-7.7", 5.0), ("figure-7.8", 1.0)):
    gallery(label, draw=draw_motions, size=(7.4, 7.6), nrows=4, sharex=True, sharey=True)(partial(motions, step))


def speed_coefficients(inertia: ArrayLike, momentum: ArrayLike, count: int = 3) -> list[float]:
    """tau_3, tau_5, ...: on SO(3) discrete Moser-Veselov solves m' = (1 + tau_3 h^2 + tau_5 h^4 + ...) m x I^-1 m.

    1 + tau_3 h^2 + ... = T(h)/h, T the inverse of the series s(t) of docs/exact-rigid-body.md (Lagrange's inversion).
    """
    b = free_body_level(inertia, momentum)
    inverse = free.series_reciprocal(free.scale_series(b, count + 1).s)
    found, power = [], inverse
    for k in range(1, count + 1):
        power = free.series_product(free.series_product(power, inverse), inverse)
        found.append(float(power[k]) / (2 * k + 1))
    return found


def scaling_coefficients(inertia: ArrayLike, momentum: ArrayLike, count: int = 3) -> list[float]:
    """The coefficients of DMV4, DMV6, DMV8: tau_3, tau_5 - 2 tau_3^2, tau_7 - 6 tau_3 tau_5 + 7 tau_3^3."""
    b = free_body_level(inertia, momentum)
    return [float(c) for c in free.series_reciprocal(free.scale_series(b, count + 1).s)[1:]]


def spectrum(mass: np.ndarray, M: np.ndarray) -> np.ndarray:
    """The 2n roots of det(l^2 - l M - J^2) = 0, J = diag(mass)."""
    n = len(mass)
    return np.linalg.eigvals(np.block([[np.zeros((n, n)), np.eye(n)], [np.diag(mass**2), M]]))
