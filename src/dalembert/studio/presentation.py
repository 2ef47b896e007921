"""The second view: momenta on the surfaces that hold them.

A free body's lie on a sphere and an ellipsoid, a constrained one's on the plane I(d) or, discretised by Moser and Veselov's
Lagrangian or another, on the locus that stands in its place; those of an LR system, seen from space, on a line.

What the page plots beside the scene, with a sentence that says what a good method shows.

What the page plots of the motion itself: velocities by name and unit, the push of the constraint, the energy.

What a method claims (`integrators.claims`), beside what this run shows of it.

A request of the page made into a show: checked, simulated with the native kernels, drawn as data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..analysis.summary import to_json
from ..errors import InvalidInput
from ..integrators import EXACT, MEANINGS, Claims, EulerPoincareSuslov, Integrator, Reference
from ..io.config import Job
from ..io.dataset import open_dataset
from ..mechanics import InvariantSystem, LRSystem, MechanicalSystem
from ..plotting.scenes import globe
from ..plotting.studies import momentum_surface
from ..plotting.style import COLOURS, FLOOR
from ..simulation import ENERGY_BALANCE, ENERGY_CHANGE, ENERGY_ERROR, Conservation, Run, receives_power, save_interval, simulate, subsampled
from .frames import RunFrames, config_of_file, frames_of, frames_in_file
from .requests import StudioInput, at, checked, completed, jobs_of
from .scenes import dimension, principal, scene, turned
from .texts import TITLES, WHY
from .view import CONSTRAINT, DARK, MOMENTUM, SURFACE, VELOCITY, View, label, packed, sphere, surface

GRID = 25


def momentum_view(runs: Sequence[RunFrames]) -> View | None:
    """Momenta in three dimensions, where the system has so many and its kinetic energy alone."""
    system = runs[0].system
    if system is None or system.group.dim != 3 or not isinstance(system, InvariantSystem | LRSystem):
        return None
    view = View("Momentum")
    points = [_full(seen) for seen in runs]
    size = max(float(np.abs(np.concatenate(points)).max()), 1e-9)
    if isinstance(system, LRSystem):
        view.title = "Momentum seen from space"
        if str(system.group) != "SO(3)":
            return None
        points = [turned(seen.motion.parts[0], m) for seen, m in zip(runs, points, strict=True)]
        _line(view, system, points[0][0], size)
    elif not system.annihilator.shape[0]:
        view.title = "Momentum in the body: sphere and energy ellipsoid"
        _free(view, system, runs[0], points[0][0])
    elif system.subspace.shape[1] == 2:
        view.title = "Momentum in the body: plane I(d)"
        _constrained(view, system, runs, size)
    for seen, momentum in zip(runs, points, strict=True):
        view.trace("momentum", momentum, seen.colour, width=3.0, run=seen.number)
        view.add("momentum now", sphere(0.035 * size), seen.colour, position=momentum, run=seen.number)
    _axes(view, size)
    return view


def _full(seen: RunFrames) -> np.ndarray:
    """All three components: the method's own momentum, or I xi where it has a restricted one."""
    if seen.momentum.shape[1] == 3:
        return seen.momentum
    return seen.velocity @ np.asarray(seen.system.inertia).T  # type: ignore[union-attr]


def _axes(view: View, size: float) -> None:
    for k, axis in enumerate(np.eye(3)):
        view.line("", np.stack([0 * axis, 1.25 * size * axis]), DARK, width=1.0)
        view.add("", label(f"M{k + 1}"), DARK, position=1.33 * size * axis)


def _free(view: View, system: InvariantSystem, seen: RunFrames, start: np.ndarray) -> None:
    """|m| and the energy <m, I^-1 m>/2 are constant: the polhode is where their surfaces meet."""
    radius, energy = float(np.linalg.norm(start)), max(float(seen.energy[0]), 0.0)
    if str(system.group) == "SO(3)" and radius > 0:
        view.add("sphere of constant momentum", sphere(radius), SURFACE, opacity=0.25)
    if energy > 0 and system.potential is None:
        moments, axes = principal(np.asarray(system.inertia))
        shell = globe(np.sqrt(2 * energy * moments), 41, 21) @ axes.T
        view.add("ellipsoid of constant energy", surface(shell), CONSTRAINT, opacity=0.3)


def _constrained(view: View, system: InvariantSystem, runs: Sequence[RunFrames], size: float) -> None:
    """The plane I(d) with the ellipse of constant energy, and the loci of the methods that leave the plane."""
    subspace, inertia = np.asarray(system.subspace), np.asarray(system.inertia)
    spread = inertia @ subspace  # from coordinates on d to momenta
    reduced = subspace.T @ spread
    orthogonal, _ = np.linalg.qr(spread)
    square = 1.2 * size * np.stack(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], indexing="ij"), axis=-1)
    view.add("plane I(d) of the exact motion", surface(square @ orthogonal.T), VELOCITY, opacity=0.3)
    energy = float(runs[0].energy[0])
    if energy > 0 and system.potential is None:
        angle = np.linspace(0, 2 * np.pi, 97)
        circle = np.sqrt(2 * energy) * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        ellipse = np.linalg.solve(np.linalg.cholesky(reduced).T, circle.T).T @ spread.T
        view.line("ellipse of constant energy", ellipse, MOMENTUM, width=2.0)
    for seen in runs:
        integrator = seen.trajectory.integrator if seen.trajectory is not None else None
        if isinstance(integrator, EulerPoincareSuslov) and seen.trajectory is not None:
            reach = 1.15 * np.abs(np.asarray(seen.trajectory.increment) @ np.linalg.pinv(subspace).T).max(axis=0)
            sides = [np.linspace(-r, r, GRID) for r in np.maximum(reach, max(0.3 * reach.max(), 1e-6))]
            grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
            locus = momentum_surface(system, integrator, float(seen.trajectory.step), grid)
            if np.all(np.isfinite(locus)):
                view.title = "Momentum in the body: plane I(d) and discrete locus"
                view.add("locus of the discrete momentum", surface(locus), seen.colour, opacity=0.35, run=seen.number)


def _line(view: View, system: LRSystem, start: np.ndarray, size: float) -> None:
    """The components on d are kept, so the momentum moves along the annihilator of d."""
    if system.annihilator.shape[0] != 1:
        return
    direction = np.asarray(system.annihilator)[0]
    direction = 1.3 * size * direction / np.linalg.norm(direction)
    across = start - (start @ direction) / (direction @ direction) * direction
    view.line(
        "line of constant momentum on d", np.stack([across - direction, across + direction]), CONSTRAINT, width=2.0
    )


def momentum_change(seen: RunFrames) -> np.ndarray | None:
    """How far the momenta that symmetries conserve are from their start, relative to their size; None where none is known.

    A free left-invariant system keeps all of Ad*_{g^-1} m, an LR system the components of that on d.
    """
    system = seen.system
    if seen.momentum.ndim != 2 or seen.momentum.shape[1] != seen.velocity.shape[1]:
        return None
    free = isinstance(system, InvariantSystem) and not system.annihilator.shape[0] and system.potential is None
    if free and str(system.group) == "SO(3)":  # type: ignore[union-attr]
        spatial = turned(seen.motion.parts[0], seen.momentum)
    elif isinstance(system, LRSystem):
        if str(system.group) not in ("SO(3)", "SO(3) x R^2"):
            return None
        parts = [turned(seen.motion.parts[0], seen.momentum[:, :3]), seen.momentum[:, 3:]]
        spatial = np.concatenate(parts, axis=1) @ np.asarray(system.subspace)
    else:
        return None
    return np.linalg.norm(spatial - spatial[0], axis=1) / max(float(np.linalg.norm(spatial[0])), 1e-300)


ENERGY_TEXTS = {
    ENERGY_ERROR: "A geometric method keeps the error small for ever, or at round-off; a drift that grows is the method's doing.",
    ENERGY_BALANCE: "Power enters here, so the energy changes. What no work explains is the method's doing: it falls with the step.",
    ENERGY_CHANGE: "Power enters here: this is what it does to the energy, no error. With fewer steps the work is taken away.",
}
CONSTRAINT_TEXT = "Round-off (below 1e-12) means that the body never slips; anything larger is motion across the blade."
MOMENTUM_TEXT = (
    "Symmetry keeps the momentum (on d) fixed in space: Noether's theorem, which a discrete method may inherit or lose."
)
GROUP = "Rotations must stay rotations: a method that leaves the group deforms the body."


def plots(runs: Sequence[RunFrames]) -> list[dict[str, Any]]:
    """What should be kept: the energy (or its balance), the constraint and, where a run leaves its group, how far."""
    energy = runs[0].kept
    found = [
        logarithmic(energy.title, energy.label, runs, [seen.kept.values for seen in runs], ENERGY_TEXTS[energy.title])
    ]
    if runs[0].rows.shape[1]:
        found.append(logarithmic("Constraint", "|A xi - b|", runs, [seen.constraint for seen in runs], CONSTRAINT_TEXT))
    changes = [momentum_change(seen) for seen in runs]
    known = [(seen, change) for seen, change in zip(runs, changes, strict=True) if change is not None]
    if known:
        shown = [seen for seen, _ in known]
        found.append(
            logarithmic("Momentum in space", "relative change", shown, [change for _, change in known], MOMENTUM_TEXT)
        )
    if any(seen.distance.max() > 1e-13 for seen in runs):
        found.append(
            logarithmic("Distance from the group", "|R^T R - 1|", runs, [seen.distance for seen in runs], GROUP)
        )
    return found


def logarithmic(
    title: str, label: str, runs: Sequence[RunFrames], values: Sequence[np.ndarray], help: str
) -> dict[str, Any]:
    """|values| over time; exact zeros stand on the floor."""
    curves = [
        curve(seen, title, seen.motion.t[: seen.good], np.maximum(np.abs(entry[: seen.good]), FLOOR))
        for seen, entry in zip(runs, values, strict=True)
    ]
    return {"group": "kept", "title": title, "x": "time", "y": label, "log": True, "curves": curves, "help": help}


def curve(seen: RunFrames, label: str, x: Any, y: Any) -> dict[str, Any]:
    return {"run": seen.number, "label": label, "x": packed(x), "y": packed(y)}


ALONG = "Along the blade or the wheels, forward is positive. Where it passes zero the body stops and turns back: its path has a cusp."
YAW = "How fast the body turns: positive to the left."
TURNING = "Components about the axes of the body."
MOVING = "Components of the velocity; on a body, along its own axes."
JOINTS = "How fast the wheels, rotors or joints turn."
PUSH = "The size of the force with which the ground keeps the body on its constraint."
ENERGY_TEXT = "Kinetic and potential energy together: constant where nothing drives the system."
NEGLIGIBLE = 1e-6
"""A component that stays below this part of the others is not drawn."""


class Component(NamedTuple):
    """One column of the velocity: what it is, its name, and its unit where that is known."""

    kind: str  # "yaw", "turning", "joint", "moving"
    name: str
    unit: str


def components(group: str) -> list[Component]:
    """The columns of velocities on a group by its name, as `coordinates.axes` orders them."""
    factors, found = group.split(" x "), []
    for factor in factors:
        if factor.startswith("R^"):
            found += [Component("moving", f"v{i + 1}", "") for i in range(dimension(factor))]
            continue
        n = int(factor[3:-1])
        turns = [""] if n == 2 else "123" if n == 3 else [f"{i + 1}{j + 1}" for i in range(n) for j in range(i + 1, n)]
        kind = "turning" if n > 2 else "yaw" if factor.startswith("SE") else "joint"
        found += [Component(kind, f"w{turn}", "rad/s") for turn in turns]
        if factor.startswith("SE"):
            found += [Component("moving", f"v{i + 1}", "m/s") for i in range(n)]
    return found


def quantities(runs: Sequence[RunFrames]) -> list[dict[str, Any]]:
    """The plots of the motion: for a body on the plane how fast it runs and turns, for others the velocities that belong together."""
    columns = components(runs[0].motion.group)
    moving = _columns(columns, runs, "moving")
    forward = "SE(2)" in runs[0].motion.group and {columns[k].name for k in moving} == {"v1"}
    velocity = ("Forward velocity", ALONG) if forward else ("Velocity", MOVING)
    return [
        *_several("Angular velocity", TURNING, columns, runs, _of(columns, "turning")),
        *_several(*velocity, columns, runs, moving),
        *_several("Yaw rate", YAW, columns, runs, _of(columns, "yaw")),
        *_several("Rates of wheels and joints", JOINTS, columns, runs, _of(columns, "joint")),
        *_push(runs, columns),
        _scalar("Energy", "E, J", runs, [seen.energy for seen in runs], ENERGY_TEXT),
    ]


def _of(columns: list[Component], kind: str) -> list[int]:
    return [k for k, column in enumerate(columns) if column.kind == kind]


def _columns(columns: list[Component], runs: Sequence[RunFrames], kind: str) -> list[int]:
    """The columns of a kind that are not negligible in every run."""
    own = _of(columns, kind)
    sizes = np.max([np.abs(seen.velocity[:, own]).max(axis=0) for seen in runs], axis=0) if own else np.zeros(0)
    return [k for k, size in zip(own, sizes, strict=True) if size > NEGLIGIBLE * sizes.max()]


def _several(
    title: str, help: str, columns: list[Component], runs: Sequence[RunFrames], which: list[int]
) -> list[dict[str, Any]]:
    """One plot of several components, each in a colour of its own; none of none. Names of several bodies are numbered."""
    if not which:
        return []
    names = [columns[k].name for k in which]
    if len(set(names)) < len(names):
        names = [f"{name}.{names[: i + 1].count(name)}" for i, name in enumerate(names)]
    unit = columns[which[0]].unit
    label = (f"{names[0]}..{names[-1]}" if len(names) > 1 else names[0]) + (f", {unit}" if unit else "")
    inks = cycle(COLOURS) if len(which) > 1 else [None]
    curves = [
        _curve(seen, name, seen.velocity[:, k], ink)
        for name, k, ink in zip(names, which, inks, strict=False)
        for seen in runs
    ]
    return [_of_motion(title, label, curves, [seen.velocity[:, which] for seen in runs], help)]


def _scalar(
    title: str, label: str, runs: Sequence[RunFrames], values: Sequence[np.ndarray], help: str
) -> dict[str, Any]:
    curves = [_curve(seen, "", entry, None) for seen, entry in zip(runs, values, strict=True)]
    return _of_motion(title, label, curves, values, help)


def _push(runs: Sequence[RunFrames], columns: list[Component]) -> list[dict[str, Any]]:
    """The size of the reaction on the components that move, in newtons where those are metres."""
    own = _of(columns, "moving")
    sizes = [np.linalg.norm(seen.reaction[:, own], axis=1) for seen in runs]
    if not own or max(size.max() for size in sizes) < 1e-12:
        return []
    return [_scalar("Push of the constraint", "N" if columns[own[0]].unit else "force", runs, sizes, PUSH)]


def _curve(seen: RunFrames, name: str, values: np.ndarray, colour: str | None) -> dict[str, Any]:
    """A curve in the colour of its run, or one of several components in a colour of its own, with its name."""
    made = curve(seen, name, seen.motion.t[: seen.good], values[: seen.good])
    return made | ({} if colour is None else {"colour": colour, "name": name})


def _of_motion(
    title: str, label: str, curves: list[dict[str, Any]], values: Sequence[np.ndarray], help: str
) -> dict[str, Any]:
    low, high = min(entry.min() for entry in values), max(entry.max() for entry in values)
    level = [{"label": "", "value": 0.0}] if low < 0 < high or title == "Energy" else []
    return {
        "group": "motion",
        "title": title,
        "x": "time",
        "y": label,
        "log": False,
        "curves": curves,
        "level": level,
        "help": help,
    }


ROUND_OFF = 1e-11
SOLVER = 1e-9
"""Relative sizes up to which a number counts as round-off, and an invariant as kept to the accuracy of the solver."""


def claims_of(integrator: Integrator, system: MechanicalSystem) -> Claims:
    """The claims of a method on systems of a kind: they depend on its functions, not on its numbers."""
    leaves, kind = jax.tree.flatten(system)
    return _claims(integrator, kind, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves), _Held(leaves))


class _Held:
    """The numbers of a system, which do not tell two of a kind apart."""

    def __init__(self, leaves: list[Any]):
        self.leaves = leaves

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=512)
def _claims(integrator: Integrator, kind: Any, shapes: Any, held: _Held) -> Claims:
    return integrator.claims(jax.tree.unflatten(kind, held.leaves))


def judged(
    claims: Claims, seen: RunFrames, peaks: dict[str, float | None], momentum: float | None
) -> list[dict[str, Any]]:
    """Every claim as a sentence, and whether it held in this run: null where one run cannot tell.

    `momentum` is the largest change of the momenta that symmetries conserve, relative to their size.
    """
    order = "exact: the flow itself" if claims.order == EXACT else claims.text().partition(";")[0]
    energy = float(np.abs(seen.energy).max()) or 1.0
    speed = 1.0 + float(np.abs(seen.velocity).max())
    limits = {
        "constraint": (peaks["constraint"], ROUND_OFF * speed * (1.0 + float(np.abs(seen.rows).max(initial=0.0)))),
        "group": (peaks["group"], ROUND_OFF),
        "energy": (peaks["energy_error"], SOLVER * energy),
        "momentum": (momentum, SOLVER),
    }
    found: list[dict[str, Any]] = [{"text": order, "held": None, "about": "order"}]
    for name in claims.kept:
        size, limit = limits.get(name, (None, 0.0))
        found.append(
            {"text": f"{name}: {MEANINGS[name]}", "held": None if size is None else bool(size <= limit), "about": name}
        )
    return found


SECONDS = 60.0
"""How long one run may take."""


class Cancelled(Exception):
    """The page that asked does not wait any more."""


def show(request: Any, opened: StudioInput, cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """The answer to a request: scene, momentum, plots, and how every run went."""
    frames, saved = checked(request, opened)
    if saved is not None:
        run = frames_in_file(saved, frames)
        return _show([run], [_about_file(saved, run)], saved.name, "")
    request, velocity = completed(request, opened) if request.get("complete") else (request, None)
    jobs = jobs_of(request, opened)
    done = [integrate(job, save_every(job, frames), cancelled) for job in jobs]
    times = max((np.asarray(run.t) for run, *_ in done), key=lambda t: abs(t[-1] - t[0]))
    runs = [frames_of(run, job, k, times, kept) for k, ((run, kept, _), job) in enumerate(zip(done, jobs, strict=True))]
    about = [_about(entry, job, run, seconds) for entry, job, (run, _, seconds) in zip(runs, jobs, done, strict=True)]
    initial = {} if velocity is None else {"velocity": velocity}
    return _show(runs, about, jobs[0].names["system"], jobs[0].text) | {"initial": initial}


def save_every(job: Job, frames: int) -> int:
    """How many steps a frame takes, so that there are at most `frames` and the last state."""
    return max(1, -(-job.run["steps"] // frames))


def integrate(job: Job, every: int, cancelled: Callable[[], bool]) -> tuple[Run, Conservation | None, float]:
    """The run of a job, where power enters its energy balance, and the seconds it took.

    Given up when nobody waits for it, or when it takes too long.
    """
    begin = time.perf_counter()

    def go_on(done: int, total: int) -> None:
        if cancelled() or time.perf_counter() - begin > SECONDS:
            raise KeyboardInterrupt  # `kernels.run` ends a run so, between pieces

    options: dict[str, Any] = {"step": job.run["step"], "monitor": True, "backend": job.run.get("backend", "auto")}
    with job.blaming():
        if not isinstance(job.integrator, Reference):
            simulate(job.system, job.integrator, job.state, steps=1, **options)  # compiles, if that is still to be done
        started = time.perf_counter()
        saved = save_interval(job.system, job.run["steps"], every)
        run = simulate(
            job.system, job.integrator, job.state, steps=job.run["steps"], save_every=saved, progress=go_on, **options
        )
    seconds = time.perf_counter() - started
    if run.interrupted:
        if cancelled():
            raise Cancelled
        raise at("run.steps", InvalidInput(f"the run takes longer than {SECONDS:g} s: take fewer steps"))
    if receives_power(job.system) and run.failed_at != -1:
        return *subsampled(run, every), seconds
    return run, None, seconds


def _show(runs: list[RunFrames], about: list[dict[str, Any]], title: str, config: str) -> dict[str, Any]:
    view, caption = scene(runs)
    momentum = momentum_view(runs)
    return {
        "title": TITLES.get(title, title),
        "why": WHY.get(runs[0].motion.name, ""),
        "time": packed(runs[0].motion.t),
        "runs": about,
        "scene": view.data(),
        "momentum": None if momentum is None else momentum.data(),
        "plots": plots(runs) + quantities(runs),
        "caption": caption,
        "config": config,
    }


def _about(entry: RunFrames, job: Job, run: Run, seconds: float) -> dict[str, Any]:
    """How a run went."""
    peaks, started = run.final.peaks, run.failed_at != -1
    energy = peaks.energy_error if entry.balance is None else entry.balance.peak
    extremes = {"energy_error": energy, "constraint": peaks.constraint, "group": peaks.group}
    numbers = {name: to_json(value) if started else None for name, value in extremes.items()}
    change = momentum_change(entry) if started else None
    return {
        "label": job.names["method"],
        "colour": entry.colour,
        "method": job.names["method"],
        "steps": max(0, int(run.steps)),
        "step": float(run.step),
        "seconds": seconds,
        "backend": run.backend,
        "status": run.status,
        "reason": run.reason,
        "failed_at": run.failed_at,
        "time_failed": None if run.status == "ok" else float(np.asarray(run.t)[-1]),
        "claims": judged(
            claims_of(run.integrator, run.system), entry, numbers, None if change is None else change.max()
        ),
        "energy_title": entry.kept.title,
        "energy_error": numbers["energy_error"],
        "constraint": numbers["constraint"],
        "peaks": numbers,
    }


def _about_file(path: Path, entry: RunFrames) -> dict[str, Any]:
    """How a run in a file went."""
    data = open_dataset(path)
    attributes = data.attrs
    numbers = {
        "energy_error": to_json(entry.kept.peak),
        "constraint": to_json(entry.constraint.max()),
        "group": to_json(entry.distance.max()),
    }
    failed = attributes.get("status") == "failed"
    named = (config_of_file(path) or {}).get("method", {}).get("name", "")
    return {
        "label": named or str(attributes.get("method", "")).partition("(")[0],
        "colour": entry.colour,
        "method": str(attributes.get("method", "")),
        "steps": len(entry.motion.t),
        "step": float(attributes.get("step", 0.0)),
        "seconds": None,
        "backend": str(attributes.get("backend", "")),
        "status": "failed" if failed else "ok",
        "reason": str(attributes.get("reason", "")),
        "failed_at": None,
        "time_failed": float(entry.motion.t[-1]) if failed else None,
        "claims": [],
        "energy_title": entry.kept.title,
        "energy_error": numbers["energy_error"],
        "constraint": numbers["constraint"],
        "peaks": numbers,
    }
