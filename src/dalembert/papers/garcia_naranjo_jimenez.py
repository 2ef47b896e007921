"""Garcia-Naranjo and Jimenez (2016): the discrete Suslov problem, two discretisations and their momentum loci.

`scattering` answers the open question of Remark 7.1: is there an energy-like integral? On a two-dimensional d every
motion near 0 goes from an unstable stationary displacement tau(-a_- w) to a stable one tau(a_+ w) on the line of
equilibria. x -> -x reverses the map, so the motions on the other side of the line go from a_+ to a_-: the two sides
have the maps phi: a_- -> a_+ and its inverse. A continuous first integral F gives F(-a w) = F(phi(a) w) = F(phi^-1(a)
w). If phi(a) != a for 0 < a <= a_0, the iterates of phi^2 or of its inverse take every such a to 0, so F is constant
on the line of equilibria, and with it everywhere: no other integrals exist. If phi = 1, E_c at the limit is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..analysis.branches import largest_step
from ..analysis.comparison import measure_step_time
from ..analysis.integrals import equilibrium_line
from ..analysis.legendre import constrained_energy, legendre_map
from ..errors import NumericalFailure
from ..integrators import EulerPoincareSuslov, Integrator, RungeKutta
from ..mechanics import InvariantSystem
from ..models import exact_momentum, suslov
from ..numerics import slopes
from ..plotting.studies import draw_lines, draw_slope, draw_surfaces, momentum_surface
from ..plotting.style import COLOURS, MARKERS
from ..simulation import Run
from .gallery import MOMENTUM_AXES, Data, Gallery, simulate_uninterrupted

gallery = Gallery("gnj")
SCHEMES = {"Moser-Veselov": EulerPoincareSuslov("moser-veselov"), "Cayley": EulerPoincareSuslov("retraction")}
"""l_d^(1), not consistent, and l_d^(infinity), consistent."""


@dataclass(frozen=True)
class SuslovExample:
    """A body with e3 as normal, its initial momentum, and the two steps of the figure."""

    inertia: tuple[tuple[float, float, float], ...]
    momentum: tuple[float, float]
    steps: tuple[float, float]

    @property
    def system(self) -> InvariantSystem:
        return suslov(self.inertia)

    @property
    def normal(self) -> np.ndarray:
        """The unit normal (I22 I13, I11 I23, -I11 I22) of the plane d* = I(d), (13) of garcia-naranjo-jimenez."""
        I = np.asarray(self.inertia)
        n = np.array([I[1, 1] * I[0, 2], I[0, 0] * I[1, 2], -I[0, 0] * I[1, 1]])
        return np.asarray(n / np.linalg.norm(n))


GENERIC = SuslovExample(((3.0, 0, 1.0), (0, 4.0, 0.5), (1.0, 0.5, 5.0)), (41.07400078, -99.38251558), (0.015, 0.030))
SPECIAL = SuslovExample(((3.0, 0, 0), (0, 3.0, 0.5), (0, 0.5, 5.0)), (179.9836568, 2.4255507998), (0.007, 0.014))
STEP, MAX_ANGLE = 0.015, 1.2
COUNTS = tuple(64 * 2**k for k in range(9))
METHODS: dict[str, Integrator] = {**SCHEMES, "Runge-Kutta 4": RungeKutta()}
TIMED_STEPS = 50_000
BRANCH_STEPS = 12
"""Steps within which the Moser-Veselov branch ends, if it ends at all: the momentum then swings to the other side."""


def polar(largest: float, angles: int = 121, radii: int = 61) -> np.ndarray:
    """Increments (u, v) of rotations by 0 .. `largest` about all axes in d, shape (radii, angles, 2).

    eps |(u, v)| = 2 tan(angle/2).
    """
    turn, around = np.meshgrid(np.linspace(0, largest, radii), np.linspace(0, 2 * np.pi, angles), indexing="ij")
    return np.asarray((2 / STEP * np.tan(turn / 2))[..., None] * np.stack([np.cos(around), np.sin(around)], -1))


def plane_points(reach: tuple[float, float]) -> np.ndarray:
    """The corners (2, 2, 3) of a part of d*: M3 = (I13/I11) M1 + (I23/I22) M2."""
    (a, _, p), (_, b, q), _ = GENERIC.inertia
    x, y = np.meshgrid(*(np.array([-r, r]) for r in reach), indexing="ij")
    return np.stack([x, y, p / a * x + q / b * y], -1)


def tangent_gap(scheme: str) -> float:
    """The largest slope between the locus and d* at the origin: 0 when they are tangent there."""
    small = momentum_surface(GENERIC.system, SCHEMES[scheme], STEP, 1e-5 * polar(np.pi / 2)[-1])
    return float(np.abs(small @ GENERIC.normal / np.linalg.norm(small, axis=-1)).max())


def draw_bounded(axes: Any, data: Data) -> None:
    draw_surfaces(axes, [data["surface"]], plane=data["plane"])
    axes.plot([0], [0], [0], "o", color="black", markersize=3, zorder=10)


@gallery("figure-1", draw=draw_bounded, size=(6.6, 5.6), labels=MOMENTUM_AXES, elev=10, azim=-120)
def bounded_locus() -> Data:
    surface = momentum_surface(GENERIC.system, SCHEMES["Moser-Veselov"], STEP, polar(np.pi * (1 - 1e-9), 361, 241))
    reach = np.abs(surface).reshape(-1, 3).max(axis=0)
    rows = [(f"largest |M{i + 1}| on the locus, times ε", float(STEP * reach[i])) for i in range(3)]
    rows.append(("slope between locus and plane at the origin", tangent_gap("Moser-Veselov")))
    return Data(("", "value"), rows, {"surface": surface, "plane": plane_points((reach[0], reach[1]))})


def draw_unbounded(axes: Any, data: Data) -> None:
    draw_surfaces(axes, [data["surface"]], plane=data["plane"])
    for name in (name for name in data.arrays if name.startswith("curve")):
        label = "intersection" if name == "curve 0" else None
        axes.plot(*data[name].T, color="#cc0000", linewidth=1.8, zorder=10, label=label)
    axes.legend(loc="upper left")


@gallery("figure-2", draw=draw_unbounded, size=(6.6, 5.6), labels=MOMENTUM_AXES, elev=14, azim=-118)
def unbounded_locus() -> Data:
    surface = momentum_surface(GENERIC.system, SCHEMES["Cayley"], STEP, polar(MAX_ANGLE, 181, 91))
    curves = [curve for curve in intersection() if len(curve) > 1]
    reach = np.abs(surface).reshape(-1, 3).max(axis=0)
    rows = [
        ("slope between locus and plane at the origin", tangent_gap("Cayley")),
        ("pieces of the intersection", len(curves)),
        ("largest distance of the red curve from the plane", max(float(abs(c @ GENERIC.normal).max()) for c in curves)),
        ("its least distance from the origin", float(min(np.linalg.norm(c, axis=1).min() for c in curves))),
    ]
    arrays = {f"curve {k}": curve for k, curve in enumerate(curves)}
    return Data(("", "value"), rows, {"surface": surface, "plane": plane_points((reach[0], reach[1])), **arrays})


def intersection(points: int = 401) -> list[np.ndarray]:
    """The curves (k, 3) in which the Cayley locus meets d*: zero lines of ρ, refined by Newton's method."""
    from contourpy import contour_generator

    system, scheme = GENERIC.system, SCHEMES["Cayley"]
    reach = 2 / STEP * np.tan(MAX_ANGLE / 2)
    line = np.linspace(-reach, reach, points)

    def distance(x: np.ndarray) -> np.ndarray:
        return np.asarray(momentum_surface(system, scheme, STEP, x) @ GENERIC.normal)

    grid = np.stack(np.meshgrid(line, line), -1)
    pieces = contour_generator(line, line, distance(grid)).lines(0.0)
    found = []
    for piece in pieces:
        x = np.asarray(piece)
        x = x[np.hypot(*x.T) <= reach]
        for _ in range(3):
            small = 1e-6 * reach
            slope = np.stack([(distance(x + small * e) - distance(x - small * e)) / (2 * small) for e in np.eye(2)], -1)
            size = np.sum(slope**2, axis=-1, keepdims=True)
            x = x - np.where(size > 1e-12, distance(x)[:, None] * slope / np.maximum(size, 1e-12), 0.0)
        found.append(momentum_surface(system, scheme, STEP, x))
    return found


def run_scheme(case: SuslovExample, method: str, step: float, steps: int, save_every: int = 1) -> Run:
    """Steps of a method from the paper's initial momentum."""
    state = case.system.state(momentum=case.momentum)
    options = {"step": step, "steps": steps, "save_every": save_every}
    return simulate_uninterrupted(case.system, METHODS[method], state, **options)


def lead(case: SuslovExample, t: np.ndarray, M: np.ndarray) -> float:
    """How much sooner than the flow a run reaches the state half way between its limits: positive if it is too fast."""
    fine = np.linspace(0, 1, 20001)
    exact = exact_momentum(case.inertia, case.momentum, fine)
    axis = np.argmax(np.abs(exact[-1, :2] - exact[0, :2]))
    sign = 1.0 if exact[-1, axis] > exact[0, axis] else -1.0

    def crossing(time: np.ndarray, values: np.ndarray) -> float:
        return float(np.interp(0.0, sign * values[:, axis], time))

    return crossing(fine, exact) - crossing(t, M)


def compare_schemes(case: SuslovExample) -> Data:
    """Momenta, energy and distance from d* for both schemes and both steps."""
    fine = np.linspace(0, 1, 501)
    exact = exact_momentum(case.inertia, case.momentum, fine)
    columns = "run", "M1 at the end", "M2", "M3", "largest |E_c - E_c(0)|", "largest |ρ|"
    data = Data((*columns, "ahead of the flow by", "fails from ε ="), [], {"t": fine, "exact": exact})
    data.rows.append(("exact", *exact_momentum(case.inertia, case.momentum, 1.0), 0.0, 0.0, 0.0, None))
    for scheme, integrator in SCHEMES.items():
        ends = None
        if scheme == "Moser-Veselov":
            ends = largest_step(case.system, integrator, case.momentum, steps=BRANCH_STEPS)
        for step in case.steps:
            run = run_scheme(case, scheme, step, round(1 / step)).check()
            t, M = np.asarray(run.t), np.asarray(run.momentum)
            energy, distance = constrained_energy(case.system, M), M @ case.normal
            key = f"{scheme}, ε = {step:g}"
            found = {"t": t, "M": M, "energy": energy, "distance": distance}
            data.arrays.update({f"{key}, {name}": values for name, values in found.items()})
            drift = float(np.abs(energy - energy[0]).max())
            data.rows.append((key, *M[-1], drift, float(np.abs(distance).max()), lead(case, t, M), ends))
    return data


def draw_comparison(axes: Any, data: Data, case: SuslovExample) -> None:
    """The momenta of both schemes beside the exact ones, above their energy and their distance from the plane d*."""
    labels = [f"{scheme}, ε = {step:g}" for scheme in SCHEMES for step in case.steps]
    for i, panel in enumerate(axes[0]):
        panel.plot(data["t"], data["exact"][:, i], color="black", label="exact")
        for k, label in enumerate(labels):
            style = {"color": COLOURS[k], "marker": MARKERS[k], "markersize": 3, "linewidth": 0.6}
            panel.plot(data[f"{label}, t"], data[f"{label}, M"][:, i], label=label, **style)
        panel.set(ylabel=f"$M_{i + 1}$")
    for panel, name, title in zip(
        axes[1], ("energy", "distance"), ("energy $E_c$", r"distance $\rho$ from $d^*$"), strict=True
    ):
        for k, label in enumerate(labels):
            style = {"color": COLOURS[k], "marker": MARKERS[k], "markersize": 2, "linewidth": 0.6}
            panel.plot(data[f"{label}, t"], data[f"{label}, {name}"], **style)
        panel.set(xlabel="time $t$", ylabel=title)
    energies = np.concatenate([data[f"{label}, energy"] for label in labels])
    middle = (energies.max() + energies.min()) / 2
    half = max(0.6 * np.ptp(energies), 1e-3 * abs(middle))
    axes[1][0].set_ylim(middle - half, middle + half)
    axes[1][0].ticklabel_format(useOffset=False)
    axes[0][0].figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)


for label, case in (("figure-3", GENERIC), ("figure-4", SPECIAL)):
    draw = partial(draw_comparison, case=case)
    options: dict[str, Any] = {"nrows": 2, "ncols": 2, "sharex": True, "height_ratios": (2, 1)}
    gallery(label, draw=draw, size=(11.5, 6.6), **options)(partial(compare_schemes, case))


def relative_error(method: str, steps: int) -> float:
    """|(M1, M2) - exact| at t = 1, relative to |M|; NaN where the run fails."""
    run = run_scheme(GENERIC, method, 1 / steps, steps, steps)
    exact = exact_momentum(GENERIC.inertia, GENERIC.momentum, 1.0)[:2]
    if run.status != "ok":
        return np.nan
    return float(np.linalg.norm(np.asarray(run.momentum[-1][:2]) - exact) / np.linalg.norm(exact))


def draw_work(axes: Any, data: Data) -> None:
    draw_lines(axes[0], {name: (data["step"], data[f"{name} error"]) for name in METHODS})
    draw_slope(axes[0], (2.5e-4, 1e-3), 4e-6, 2)
    draw_lines(axes[1], {name: (data[f"{name} seconds"], data[f"{name} error"]) for name in METHODS})
    untimed = [name for name in METHODS if not np.any(np.isfinite(data[f"{name} seconds"]))]
    if untimed:
        axes[1].text(0.02, 0.02, "not timed: " + ", ".join(untimed), transform=axes[1].transAxes, fontsize=8)
    axes[0].set(xlabel=r"step $\varepsilon$", ylabel="relative error of $(M_1, M_2)$ at $t = 1$")
    axes[1].set_xlabel("processor time of the run, s")
    axes[0].legend()


@gallery("work-precision", draw=draw_work, size=(10.5, 4.4), ncols=2, sharey=True)
def work_precision() -> Data:
    counts = np.array(COUNTS)
    columns = ("method", "error at ε = 1/64", "error at ε = 1/1024", "order", "ns a step", "spread of it, ns")
    data, untimed = Data(columns, [], {"step": 1.0 / counts}), []
    for name in METHODS:
        errors = np.array([relative_error(name, n) for n in COUNTS])
        cost = measure_step_time(lambda n: run_scheme(GENERIC, name, 1 / TIMED_STEPS, n, n).steps, TIMED_STEPS)
        if cost is None:
            untimed.append(name)
        seconds = counts * (np.nan if cost is None else cost.seconds)
        data.arrays.update({f"{name} error": errors, f"{name} seconds": seconds})
        times = (None, None) if cost is None else (1e9 * cost.seconds, 1e9 * cost.spread)
        order = float(np.median(slopes(data["step"][3:6], errors[3:6])))
        data.rows.append((name, errors[0], errors[4], order, *times))
    note = f"A step could not be timed for {' and '.join(untimed)}: the machine was too busy. Run the exhibit again."
    return replace(data, note=note) if untimed else data


@dataclass(frozen=True, eq=False)
class Scattering:
    """Sizes a_-, a_+ (k,) of h w of the stationary displacements between which motions go, one motion an entry."""

    before: np.ndarray
    after: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """(a_+ - a_-)/a_-: 0 for all motions if and only if a continuous energy-like integral exists."""
        return np.asarray((self.after - self.before) / self.before)

    @property
    def exponent(self) -> float:
        """The slope of log|gain| against log a."""
        return float(np.polyfit(np.log(self.before), np.log(np.abs(self.gain)), 1)[0])


def scattering(
    system: InvariantSystem,
    integrator: EulerPoincareSuslov,
    sizes: ArrayLike,
    *,
    side: float = 1.0,
    max_steps: int = 200_000,
) -> Scattering:
    """The limits of motions through x = h w = size n, with n the normal of the line of equilibria on the given side."""
    f = legendre_map(system, integrator)
    f.require_reversible()
    line = np.linalg.lstsq(f.subspace, equilibrium_line(system, integrator), rcond=None)[0]
    line /= np.linalg.norm(line)
    begin = np.outer(np.asarray(sizes, float), side * np.array([-line[1], line[0]]))
    ends = np.concatenate([-begin, begin])
    for _ in range(max_steps):
        new, good = f.image(ends)
        if not np.all(good):
            raise NumericalFailure("a branch ends: take smaller sizes")
        still = np.abs(new - ends).max(1) < 1e-15 * np.abs(new).max(1)
        ends = new
        if np.all(still):
            break
    along = ends @ line
    return Scattering(along[: len(begin)], along[len(begin) :])
