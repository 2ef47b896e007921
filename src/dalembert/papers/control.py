"""Optimal control problems with known answers: plans by `dalembert.plan`, their errors and the order of the errors.

A plan of N steps costs C(h) = C + c h^2 + ..., where the controls have no corners; Richardson's extrapolation over
several N then gives many more digits than the plans themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.transform import Rotation

from ..groups import SE2, SO3, Euclidean
from ..mechanics import Input, System
from ..models import car
from ..numerics import slopes
from ..optimise.planning import Plan, plan
from ..plotting.runs import draw_by_units
from ..plotting.studies import draw_lines
from ..plotting.style import COLOURS, DASHES, FLOOR, GREY, TIME, label_directly, label_ends, legend_below
from .gallery import Data, Gallery

gallery = Gallery("control")
Numbers = np.ndarray[Any, Any]
COLUMNS = ("problem", "steps", "found", "known", "relative error", "order", "first-order residual")
PULL = 9.80665  # m/s^2


@dataclass(frozen=True)
class KnownProblem:
    """A problem: `make(steps, guess)` plans it, and its `value` (the cost or the duration) tends to `known`."""

    make: Callable[[int, Plan | None], Plan]
    known: float
    steps: Sequence[int]
    value: Callable[[Plan], float] = lambda found: found.cost
    exact: bool = True  # else orders are those of the differences between plans, and two are extrapolated


def solve_all(problem: KnownProblem) -> list[Plan]:
    """Plans of the problem, each the first guess of the next; Ctrl-C ends the exhibit."""
    found: list[Plan] = []
    for steps in problem.steps:
        made = problem.make(steps, found[-1] if found else None)
        if made.status == "interrupted":
            raise KeyboardInterrupt
        found.append(made.check())
    return found


def extrapolate(values: Numbers) -> float:
    """Richardson's extrapolation of a series in h^2, of values at h, h/2, h/4, ..."""
    for k in range(1, len(values)):
        values = values[1:] + np.diff(values) / (4**k - 1)
    return float(values[-1])


def study(problems: Mapping[str, KnownProblem], motion: Callable[[Plan], Numbers]) -> Data:
    """The table of the errors and their orders, and the motions of the finest plans."""
    data = Data(COLUMNS, [], {})
    for name, problem in problems.items():
        plans = solve_all(problem)
        values = np.array([problem.value(each) for each in plans])
        errors = np.maximum(np.abs(values / problem.known - 1), FLOOR)
        changes = errors if problem.exact else np.abs(np.diff(values))
        measured = slopes(1.0 / np.array(problem.steps[-len(changes) :]), changes)
        orders = [*[None] * (len(plans) - len(measured)), *measured]
        for made, value, error, order in zip(plans, values, errors, orders, strict=True):
            data.rows.append((name, len(made.controls), value, problem.known, error, order, made.error))
        limit = extrapolate(values if problem.exact else values[-2:])
        data.rows.append((name, "extrapolated", limit, problem.known, abs(limit / problem.known - 1), None, None))
        apart = errors if problem.exact else np.abs(values / limit - 1)
        arrays = {"h": np.array([each.step for each in plans]), "error": apart, "t": plans[-1].t}
        arrays |= {"controls": plans[-1].controls, "motion": motion(plans[-1])}
        arrays["last"] = np.asarray(jax.tree.leaves(plans[-1].g)[-1])[-1]
        data.arrays.update({f"{name}, {key}": value for key, value in arrays.items()})
    return data


# -- pictures ----------------------------------------------------------------------------------------------------------
def draw_plan(axes: Any, data: Data, *, labels: Sequence[str], inputs: Mapping[str, str]) -> None:
    """The motion, the controls (names and units) and the errors; two labels make a path, others go over time."""
    names = list(dict.fromkeys(row[0] for row in data.rows))
    path, figure = len(labels) == 2, axes[0].figure
    for name, colour, dash in zip(names, COLOURS, DASHES, strict=False):
        t, motion = data[f"{name}, t"], data[f"{name}, motion"]
        if path:
            axes[0].plot(*motion[:, :2].T, dash, color=colour, label=name)
            axes[0].plot(*motion[[0, -1], :2].T, "o", color=colour, markersize=4)
        for column, label, own in zip(motion.T, () if path else labels, COLOURS, strict=False):
            axes[0].plot(t, column, dash, color=own, label=label)
    columns = {name: dict(zip(inputs, data[f"{name}, controls"].T, strict=False)) for name in names}
    values = {name: (data[f"{name}, t"], own) for name, own in columns.items()}
    cell = axes[1].get_subplotspec()
    axes[1].remove()
    for panel in draw_by_units(figure, cell, "Controls", values, inputs, held=True):
        panel.ticklabel_format(useOffset=False)
        low, high = panel.get_ylim()
        if high - low < 1e-6 * high:  # controls that are constant but for round-off
            panel.set_ylim(0.0, 1.2 * high)
    fine = {name: (data[f"{name}, h"][::-1], data[f"{name}, error"][::-1]) for name in names}
    draw_lines(axes[2], fine)
    h, least = fine[names[0]][0], min(error[0] for _, error in fine.values())
    axes[2].loglog(h, 0.4 * least * (h / h[0]) ** 2, color=GREY, linewidth=0.9, label="order 2")
    axes[2].set_xticks(h, [f"{step:.3g}" for step in h])
    axes[2].tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    across, up = labels if path else (TIME, "rotation vector, rad")
    axes[0].set(xlabel=across, ylabel=up, title="Motion")
    if path:
        axes[0].set_aspect("equal", adjustable="datalim")
    axes[2].set(xlabel="step $h$, s", ylabel="relative error", title="Distance from the limit")
    if len(names) > 1 or not path:
        legend_below(axes[0])
    label_directly(figure)
    label_ends(axes[2], 8.0)


SHEET: dict[str, Any] = {"size": (12.0, 4.4), "ncols": 3}
PLANE = partial(draw_plan, labels=("x, m", "y, m"))
TORQUES = {f"torque {k}": "N m" for k in (1, 2, 3)}
ATTITUDE = partial(draw_plan, labels=("about axis 1", "axis 2", "axis 3"), inputs=TORQUES)


def places(found: Plan) -> Numbers:
    """x and y of a plan on SE(2), or on a product that begins with it."""
    g = found.g[0] if isinstance(found.g, tuple) else found.g
    return np.asarray(g)[:, :2, 2]


def rotation_vectors(found: Plan) -> Numbers:
    return np.asarray(Rotation.from_matrix(np.asarray(found.g)).as_rotvec())


# -- systems -----------------------------------------------------------------------------------------------------------
def pose(theta: float, x: float, y: float) -> Numbers:
    """An element of SE(2)."""
    c, s = np.cos(theta), np.sin(theta)
    return np.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


def rotation_about_x(angle: float) -> Numbers:
    """The rotation about the first axis."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def _kinetic(t: Any, g: Any, xi: Any, p: Any) -> Any:
    return 0.5 * xi @ xi


def _blade(t: Any, g: Any, p: Any) -> Any:
    return jnp.array([[0.0, 0.0, 1.0]])


def heisenberg() -> System:
    """z' = y x' on R^3."""

    def rows(t: Any, g: Any, p: Any) -> Any:
        return jnp.stack([g[1], jnp.zeros(()), -jnp.ones(())])[None]

    return System(Euclidean(3), _kinetic, rows)


def offset_unicycle() -> System:
    """m = 1, J = 0.4 about the centre of mass, which lies 0.2 ahead of the axle; controls: force and torque."""

    def lagrangian(t: Any, g: Any, xi: Any, p: Any) -> Any:
        w, v1, v2 = xi
        m, J, a = p
        return 0.5 * (J + m * a**2) * w**2 + 0.5 * m * (v1**2 + v2**2) + m * a * w * v2

    def force(t: Any, g: Any, xi: Any, u: Any, p: Any) -> Any:
        return jnp.stack([u[1], u[0], jnp.zeros(())])

    numbers = jnp.array([1.0, 0.4, 0.2])
    return System(SE2(), lagrangian, _blade, force=force, parameters=numbers, inputs=("force", "torque"))


def bounded_satellite(inertia: Sequence[float], most: float = np.inf) -> System:
    """A body with a torque about each principal axis, at most `most` each."""
    torques = tuple(Input(f"torque {k + 1}", "N m", -most, most) for k in range(3))

    def lagrangian(t: Any, g: Any, xi: Any, p: Any) -> Any:
        return 0.5 * xi @ (p * xi)

    def force(t: Any, g: Any, xi: Any, u: Any, p: Any) -> Any:
        return u

    return System(SO3(), lagrangian, force=force, parameters=jnp.asarray(inertia), inputs=torques)


def steered_edge() -> System:
    """A knife edge on an upright plane, turned by a torque."""

    def lagrangian(t: Any, g: Any, xi: Any, p: Any) -> Any:
        return 0.5 * xi @ xi - PULL * g[1, 2]

    def force(t: Any, g: Any, xi: Any, u: Any, p: Any) -> Any:
        return jnp.stack([u[0], jnp.zeros(()), jnp.zeros(())])

    return System(SE2(), lagrangian, _blade, force=force, inputs=("steering torque",))


def ball_on_circle() -> System:
    """A ball of radius 1 that rolls on a circle about the origin and does not spin about the vertical.

    Coordinates: the radius of the circle, which stays, four times the angle along it (so that its rate alone is the
    free velocity), and the attitude R of the ball. R omega is the angular velocity in space, - radius angle' e_r, for
    the contact must not slide.
    """

    def rows(t: Any, g: Any, p: Any) -> Any:
        radius, angle, R = g[0][0], g[0][1] / 4, g[1]
        outwards = jnp.stack([jnp.cos(angle), jnp.sin(angle), jnp.zeros(())])
        along = jnp.stack([jnp.zeros(3), 0.25 * radius * outwards], axis=1)
        still = jnp.zeros(5).at[0].set(1.0)
        return jnp.concatenate([still[None], jnp.concatenate([along, R], axis=1)])

    return System(Euclidean(2) * SO3(), _kinetic, rows)


# -- the problems ------------------------------------------------------------------------------------------------------
def effort(t: Any, g: Any, xi: Any, u: Any) -> Any:
    return u @ u


def speed(t: Any, g: Any, xi: Any, u: Any) -> Any:
    """The squares of the first two velocities."""
    return xi[0] ** 2 + xi[1] ** 2


def _plan_drive(system: System, start: Any, goal: Any, steps: int, guess: Plan | None) -> Plan:
    """A kinematic plan of least length; the first one is the best of several."""
    options: dict[str, Any] = {"duration": 1.0, "cost": speed, "kinematic": True}
    found: Plan = plan(system, start=start, goal=goal, steps=steps, guess=guess, starts=1 if guess else 4, **options)
    return found


@gallery(
    "heisenberg", draw=partial(draw_plan, labels=("$x$", "$y$"), inputs={r"$\dot x$": "", r"$\dot y$": ""}), **SHEET
)
def heisenberg_geodesics() -> Data:
    def to(*goal: float) -> Callable[[int, Plan | None], Plan]:
        return partial(_plan_drive, heisenberg(), np.zeros(3), np.array(goal))

    counts = (25, 50, 100, 200)
    problems = {
        "to (0, 0, 1)": KnownProblem(to(0.0, 0.0, 1.0), 4 * np.pi, counts),
        "to (1, 0, π/8)": KnownProblem(to(1.0, 0.0, np.pi / 8), np.pi**2 / 4, counts),
    }
    return study(problems, lambda found: np.asarray(found.g))


@gallery("unicycle", draw=partial(PLANE, inputs={"ω": "rad s-1", "v": "m s-1"}), **SHEET)
def unicycle_geodesics() -> Data:
    system = System(SE2(), _kinetic, _blade)

    def aside(y: float) -> Callable[[int, Plan | None], Plan]:
        return partial(_plan_drive, system, pose(0, 0, 0), pose(0, 0, y))

    counts = (25, 50, 100, 200)
    problems = {
        "1 m aside": KnownProblem(aside(1.0), 11.158158715164, counts),
        "1/2 m aside": KnownProblem(aside(0.5), 5.910577194306, counts),
    }
    return study(problems, places)


@gallery("satellite", draw=ATTITUDE, **SHEET)
def satellite_effort() -> Data:
    system, angle = bounded_satellite([2.0, 2.0, 2.0]), 1.2
    goal = system.state(rotation_about_x(angle), np.zeros(3))

    def make(steps: int, guess: Plan | None) -> Plan:
        found: Plan = plan(system, start=np.eye(3), goal=goal, steps=steps, duration=1.0, cost=effort, guess=guess)
        return found

    return study({"1.2 rad": KnownProblem(make, 12 * 2.0**2 * angle**2, (10, 20, 40, 80))}, rotation_vectors)


def _plan_fastest(system: System, angle: float, times: tuple[float, float], steps: int, guess: Plan | None) -> Plan:
    """The least time for a turn about the first axis; the first plan is the best of eight."""
    goal, starts = system.state(rotation_about_x(angle), np.zeros(3)), 1 if guess else 8
    found: Plan = plan(system, start=np.eye(3), goal=goal, steps=steps, duration=times, starts=starts, guess=guess)
    return found


@gallery("fastest-turn", draw=ATTITUDE, **SHEET)
def fastest_turn() -> Data:
    make = partial(_plan_fastest, bounded_satellite([1.0, 1.0, 1.0], 1.0), np.pi * (1 - 1e-7), (1.0, 10.0))
    return study({"half a turn": KnownProblem(make, 3.243, (25, 50, 100, 200), exact=False)}, rotation_vectors)


@gallery("asymmetric-satellite", draw=ATTITUDE, **SHEET)
def asymmetric_satellite() -> Data:
    make = partial(_plan_fastest, bounded_satellite([5621.0, 4547.0, 2364.0], 50.0), np.radians(150.0), (10.0, 60.0))
    return study({"150 degrees": KnownProblem(make, 28.6304, (25, 50, 100, 200), exact=False)}, rotation_vectors)


@gallery("brachistochrone", draw=partial(PLANE, inputs={"steering torque": "N m"}), **SHEET)
def brachistochrone() -> Data:
    system = steered_edge()
    start, goal = system.state(pose(-1.4, 0, 10), np.zeros(3)), system.state(pose(-0.2, 10, 5), [0.0, 9.0, 0.0])

    def make(steps: int, guess: Plan | None) -> Plan:
        for weight in (1e-2, 1e-4):  # without a cost of steering the discrete problem is singular
            guess = plan(
                system, start=start, goal=goal, free_start=("along w", "w"), free_goal=("along w", "velocity"),
                steps=steps, duration=(1.2, 3.0), cost=partial(_time_and_steering, weight), guess=guess,
            )  # fmt: skip
        assert guess is not None
        return guess

    exact = KnownProblem(make, 1.8016031224531, (40, 80, 160), value=lambda found: found.duration)
    return study({"(0, 10) to (10, 5)": exact}, places)


def _time_and_steering(weight: float, t: Any, g: Any, xi: Any, u: Any) -> Any:
    return 1.0 + weight * u @ u


def plan_parking(steps: int, guess: Plan | None) -> Plan:
    """opty's car: a body of 1200 kg whose front wheels, a sixth of its mass, are 1.5 m ahead of its centre."""
    mass, moment = 1200.0, 1300.0
    total = mass + mass / 6
    centre = (mass * 1.5 + mass / 6 * 3.0) / total
    about = moment + mass * (1.5 - centre) ** 2 + mass / 6 * (3.0 - centre) ** 2
    system = car(mass=total, inertia=about, length=3.0, centre=centre, steering=moment / 32)
    bounds = {"drive force": (-300.0, 300.0), "steering torque": (-50.0, 50.0)}
    start, goal = system.state(xi=np.zeros(4)), system.state((pose(0, 0, 2), np.eye(2)), np.zeros(4))
    return plan(
        system, start=start, goal=goal, steps=steps, duration=30.0, cost=effort, bounds=bounds, path=_within,
        guess=guess, starts=1 if guess else 8,
    )  # fmt: skip


@gallery("parking", draw=partial(PLANE, inputs={"drive force": "N", "steering torque": "N m"}), **SHEET)
def parking() -> Data:
    return study({"2 m in 30 s": KnownProblem(plan_parking, 320235.8, (50, 100, 200, 400), exact=False)}, places)


def _within(t: Any, g: Any, xi: Any, u: Any) -> Any:
    """The front wheels turn by 45 degrees at most."""
    return g[1][0, 0] - np.cos(np.pi / 4)


@gallery("offset-unicycle", draw=partial(PLANE, inputs={"force": "N", "torque": "N m"}), **SHEET)
def offset_parking() -> Data:
    system = offset_unicycle()
    goal = system.state(pose(0, 0, 1), np.zeros(3))

    def make(steps: int, guess: Plan | None) -> Plan:
        options: dict[str, Any] = {"duration": 5.0, "cost": effort, "guess": guess}
        found: Plan = plan(system, start=pose(0, 0, 0), goal=goal, steps=steps, **options)
        return found

    return study({"1 m in 5 s": KnownProblem(make, 1.4200379, (50, 100, 200, 400))}, places)


@gallery("rolling-ball", draw=partial(PLANE, inputs={"4 × rate of the angle": "rad s-1"}), **SHEET)
def ball_loops() -> Data:
    system = ball_on_circle()

    def around(n: int) -> Callable[[int, Plan | None], Plan]:
        radius = np.sqrt(n**2 - 1)

        def make(steps: int, guess: Plan | None) -> Plan:
            found: Plan = plan(
                system, start=(np.array([0.95 * radius, 0.0]), np.eye(3)), goal=_once_around, steps=steps,
                duration=1.0, cost=effort, kinematic=True, free_start=("along v1",),
                guess=guess or np.full((steps, 1), 8 * np.pi),
                path=partial(_near_circle, radius),
            )  # fmt: skip
            return found

        return make

    problems = {
        f"{n} turns": KnownProblem(
            around(n), float(np.sqrt(n**2 - 1)), (40, 80, 160), lambda found: float(found.g[0][0, 0])
        )
        for n in (2, 3)
    }
    return study(problems, _on_circle)


def _once_around(t: Any, g: Any, xi: Any) -> Any:
    """The angle is 2 pi, and the ball has not turned about the vertical (nor, on that circle, about any other axis)."""
    angle, R = g[0][1] / 4, g[1]
    return jnp.stack([angle - 2 * np.pi, R[1, 0] - R[0, 1]])


def _near_circle(radius: float, t: Any, g: Any, xi: Any, u: Any) -> Any:
    """Other circles, and none at all, bring the ball back as well."""
    return 0.15**2 - (g[0][0] / radius - 1) ** 2


def _on_circle(found: Plan) -> Numbers:
    radius, angle = np.asarray(found.g[0]).T * [[1.0], [0.25]]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
