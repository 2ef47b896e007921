"""Steady motions, the linear motion next to them, and where they lose their stability.

A motion is steady where xi is constant, g(t) = g0 exp(t xi): equilibria, and the relative equilibria of a vehicle that
rolls straight ahead or in a circle. Its neighbours g0 exp(t xi) exp(eta), xi + zeta obey to first order

    eta' = zeta - [xi, eta],    zeta' = a_g eta + a_xi zeta + a_u du,

where a(g, xi, u) is the acceleration on D. The constraints keep (eta, zeta) in the space E with phi_g eta = 0 and
(A xi - b)_g eta + A zeta = 0. Displacements that change no velocity at any time are symmetries (place, heading, angles
of wheels): they form the largest invariant subspace K of E with zeta = 0, and A of a `Linearisation` acts on E/K. Where
the energy is conserved and not stationary, neighbours of another energy are another steady motion: the eigenvalues are
those at the energy of this one.

Bicycles: Meijaard, Papadopoulos, Ruina, Schwab, Proc. R. Soc. A 463 (2007). Reduction: Bloch 2003, chapter 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, UnknownName
from ..kernels import evaluate
from ..mechanics import MechanicalSystem, MechanismSystem, NonlinearSystem, State, priority
from ..numerics import finite, known_arguments, positive_int, require_instance, vector
from ..plotting.studies import plot_eigenvalues
from ..simulation import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
MAX_ITERATIONS = 50  # of Newton's method for a steady motion
FOUND = 1e-8  # |xi'| and the constraints, below which Newton's method has found a state
STEADY = 1e-9  # |xi'| and |xi''| relative to the size of the terms, below which a motion is steady
RANK = 1e-9  # singular values, relative to the largest, that count as 0
NEUTRAL = 1e-9  # |Re s| relative to the largest |s|, below which an eigenvalue is on the imaginary axis
OUTSIDE = "ranks choose its coordinates, and have no derivatives: ask for it outside. Derivatives of the equations of "
OUTSIDE += "motion are jax.jacfwd of system.acceleration(t, g, xi, u)"
SHARE = 0.1  # of the largest amplitude, from which on a variable gives a mode its name


class Neighbours(NamedTuple):
    """Derivatives at a state in (eta, zeta, du), one row a direction."""

    acceleration: Array
    residual: Array
    phi: Array
    energy: Array
    named: Array


def _directional(system: MechanicalSystem, point: tuple[Any, ...]) -> tuple[Any, ...]:
    (t, g, xi, u), (eta, zeta, du) = point

    def moved(s: Any) -> tuple[Any, ...]:
        h, x = system.group.shift(g, s * eta), xi + s * zeta
        rate = system.acceleration(t, h, x, u + s * du)[0]
        return rate, system.residual(t, h, x), system.phi(t, h), system.energy(t, h, x), system.observe(t, h, x)

    found: tuple[Any, ...] = jax.jvp(moved, (jnp.zeros(()),), (jnp.ones(()),))
    return found


def _expand(system: MechanicalSystem, state: State, u: Array) -> tuple[Neighbours, Neighbours]:
    """The values at a state, and their derivatives; every direction is a lane of one native evaluation."""
    n = system.group.dim
    ways = np.eye(2 * n + len(u))
    count = len(ways)
    point = (np.asarray(state.t, float), jax.tree.map(np.asarray, state.g), np.asarray(state.xi), np.asarray(u, float))
    lanes = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count, *np.shape(leaf))), point)
    directions = (ways[:, :n], ways[:, n : 2 * n], ways[:, 2 * n :])
    values, slopes = evaluate(_directional, system, (lanes, directions), lanes=count, axes=(None, 0))
    first = Neighbours(*(np.asarray(leaf)[0] for leaf in values))
    return first, Neighbours(*(np.asarray(leaf) for leaf in slopes))


@dataclass(frozen=True)
class Mode:
    """A mode of linear motion: its eigenvalue, the names of the variables that move most in it, and its vector."""

    eigenvalue: complex
    names: tuple[str, ...]
    vector: Array

    def __str__(self) -> str:
        real, turning = self.eigenvalue.real, abs(self.eigenvalue.imag)
        real = 0.0 if abs(real) <= NEUTRAL * max(1.0, abs(self.eigenvalue)) else real
        shown = f"{real:.6g} ± {turning:.6g}i" if turning else f"{real:.6g}"
        kind = f"oscillates with {turning / (2 * np.pi):.4g} Hz, " if turning else ""
        rate = f"{'grows' if real > 0 else 'decays'} by e in {1 / abs(real):.4g} s" if real else "neutral"
        return f"{', '.join(self.names)}: {shown} ({kind}{rate})"


@dataclass(frozen=True)
class Linearisation:
    """The linear equations x' = A x + B du of small deviations x from a steady motion, with eigenvalues and modes.

    Symmetries and constraints are divided out. `eigenvalues` are sorted by their real parts, the largest first; where
    the system conserves the energy they are those at the energy of the steady motion (A has one more, 0, for its
    neighbours of other energies). `reduction` maps variations (eta, zeta) of (g, xi) to x.
    """

    names: tuple[str, ...]
    A: Array
    B: Array
    inputs: tuple[str, ...]
    eigenvalues: Array
    state: State
    controls: Array
    reduction: Array

    @property
    def stable(self) -> bool:
        """Whether all eigenvalues have negative real parts: the motion is then stable in the nonlinear system too."""
        return bool((self.eigenvalues.real < -_neutral_limit(self.eigenvalues)).all())

    @property
    def modes(self) -> list[Mode]:
        """The eigenvectors by the names of what moves in them, one of each conjugate pair."""
        values, vectors = np.linalg.eig(self.A)
        found = []
        for value in self.eigenvalues[self.eigenvalues.imag >= 0]:
            k = int(np.argmin(np.abs(values - value)))
            size = np.abs(vectors[:, k])
            moving = [j for j in np.argsort(-size) if size[j] >= SHARE * size.max()]
            coordinates = [j for j in moving if not self.names[j].endswith((" rate", "speed"))] or moving
            found.append(Mode(complex(value), tuple(self.names[j] for j in coordinates), vectors[:, k]))
        return found

    @property
    def controllable(self) -> bool:
        """Whether the inputs can bring every x to every other (Kalman's rank condition)."""
        return not self.uncontrollable

    @property
    def uncontrollable(self) -> list[complex]:
        """The eigenvalues of A that no input moves: rank [A - s, B] < n there (Popov, Belevitch, Hautus)."""
        scale = max(np.abs(self.A).max(initial=0.0), 1.0)
        size = max(np.abs(self.B).max(initial=0.0), 1e-300)
        return [
            complex(value)
            for value in np.linalg.eigvals(self.A)
            if np.linalg.svd(
                np.concatenate([(self.A - value * np.eye(len(self.A))) / scale, self.B / size], axis=1),
                compute_uv=False,
            )[-1]
            < 1e-8
        ]

    def __str__(self) -> str:
        grows = (self.eigenvalues.real > _neutral_limit(self.eigenvalues)).any()
        verdict = "stable" if self.stable else "unstable" if grows else "neutral: no mode grows, not all decay"
        lines = [f"{len(self.names)} variables: {', '.join(self.names)}; {verdict}", *map(str, self.modes)]
        if len(self.eigenvalues) < len(self.names):
            lines.append("and 0, to steady motions of other energies")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class LinearisedMotion:
    """The linear equations (eta, zeta)' = A(t) (eta, zeta) + B(t) du along a run, at its saved states.

    eta and zeta are variations of g (in the body) and of xi. `basis` has orthonormal columns that span, at each state,
    the variations that the constraints allow.
    """

    t: Array
    A: Array
    B: Array
    basis: Array


@known_arguments(OUTSIDE)
def steady(
    system: MechanicalSystem,
    near: State | None = None,
    *,
    controls: Any = None,
    trim: Sequence[str] = (),
    **named: float,
) -> tuple[State, Array]:
    """Find a motion with constant velocities, xi' = 0, and the controls that hold it: `steady(bicycle, speed=5)`.

    `named` are the coordinates and rates that are wanted. Newton's method starts from the state `near` (of a mechanism:
    from `system.state(**named)`); xi'' must be 0 too, so a mass that passes its balance is not steady. `trim` names
    inputs that may take any value: `steady(car, speed=10, steer=0.1, trim=["drive torque"])` finds the torque that
    holds the car there.
    """
    require_instance("system", system, MechanicalSystem, "a system")
    names = [name.replace(" ", "_") for name in (*system.coordinate_names, *system.rate_names)]
    for name in named:
        if name.replace(" ", "_") not in names:
            raise UnknownName("coordinate or rate", name, names)
    wanted = {names.index(name.replace(" ", "_")): float(finite(name, value)) for name, value in named.items()}
    inputs = [each.name for each in system.inputs or ()]
    for name in trim:
        if name not in inputs:
            raise UnknownName("input", name, inputs)
    if near is None:
        if not isinstance(system, MechanismSystem):
            raise InvalidInput("give a state near the steady motion, as steady(system, near=system.state(g, xi), ...)")
        near = _start(system, named)
    u, free = _controls(system, controls), [inputs.index(name) for name in trim]
    attempts = [wanted]
    if isinstance(system, MechanismSystem):  # next, with all that is bent at rest
        places = {f"{name}_rate".replace(" ", "_") for name in system.shape_names}
        attempts.append({k: 0.0 for k, name in enumerate(names) if name in places} | wanted)
    size = np.inf
    for targets in attempts:
        found, used, off = _newton(system, near, u, targets, free)
        if off <= FOUND:
            xi = system.project(found.g, found.xi, float(found.t))
            settled = system.state(found.g, xi, t=float(found.t))  # on the group, its velocity on D
            off = _drift(system, settled, *_expand(system, settled, used))
            if off <= STEADY:
                return settled, used
        size = min(size, off)
    held = ", ".join(f"{name} = {value:g}" for name, value in named.items())
    raise InvalidInput(
        f"no steady motion{f' with {held}' if held else ''} was found: |xi'|, |xi''| and the constraints are "
        f"{size:.3g} instead of 0. Start nearer to one (near=...), give fewer names, or free inputs (trim=[...])"
    )


def _newton(
    system: MechanicalSystem, state: State, u: Array, wanted: dict[int, float], free: list[int]
) -> tuple[State, Array, float]:
    """A state with xi' = 0 on the constraints, with these coordinates and rates; its inputs, and how far it is off."""
    n, targets = system.group.dim, np.array(list(wanted.values()))
    keep = [*range(2 * n), *(2 * n + k for k in free)]
    last = size = np.inf
    for _ in range(MAX_ITERATIONS):
        values, slopes = _expand(system, state, u)
        off = np.concatenate([values.acceleration, values.residual, values.phi, values.named[list(wanted)] - targets])
        jacobian = np.concatenate(
            [slopes.acceleration, slopes.residual, slopes.phi, slopes.named[:, list(wanted)]], axis=1
        ).T
        if not (np.isfinite(off).all() and np.isfinite(jacobian).all()):
            break
        size = np.abs(off).max(initial=0.0)
        change = np.linalg.lstsq(jacobian[:, keep], -off, rcond=1e-11)[0]
        moved = np.abs(change).max(initial=0.0)
        if size <= FOUND and (moved < 1e-14 * (1.0 + np.abs(state.xi).max()) or (moved < 1e-9 and size >= last)):
            break
        last = size
        change = change / max(1.0, moved)
        g = system.group.compose(state.g, system.group.exp(jnp.asarray(change[:n])))
        state = state._replace(g=jax.tree.map(np.asarray, g), xi=np.asarray(state.xi) + change[n : 2 * n])
        u = u.copy()
        u[free] += change[2 * n :]
    return state, u, float(size)


def _drift(system: MechanicalSystem, state: State, values: Neighbours, slopes: Neighbours) -> float:
    """|xi'| and |xi''| at a state, relative to the size of the terms: both are 0 where the motion is steady."""
    n, xi = system.group.dim, np.asarray(state.xi)
    speed = 1.0 + np.abs(xi).max(initial=0.0)
    scale = 1.0 + np.abs(slopes.acceleration[: 2 * n]).max(initial=0.0) * speed
    rate, bend = values.acceleration, slopes.acceleration[:n].T @ xi
    return float(max(np.abs(rate).max(initial=0.0), np.abs(bend).max(initial=0.0) / speed) / scale)


def _start(system: MechanismSystem, named: dict[str, float]) -> State:
    """A state of a mechanism with as many of these names as a state can have."""
    try:
        return system.state(**named)
    except InvalidInput:
        rates = {name.replace(" ", "_") for name in system.rate_names}
        kept = {name: value for name, value in named.items() if name == "speed" or name.replace(" ", "_") not in rates}
        return system.state(**kept)


def _controls(system: MechanicalSystem, controls: Any) -> Array:
    if system.inputs is None:
        raise InvalidInput("the inputs of the system are not known: declare them with System(..., inputs=...)")
    count = len(system.inputs)
    return np.zeros(count) if controls is None else np.array(vector(controls, count, "controls"))


@known_arguments(OUTSIDE)
def linearise(
    system: MechanicalSystem, about: State | Run | None = None, *, controls: Any = None, **named: float
) -> Any:
    """Linearise a system about a steady state (giving a `Linearisation`) or along a run (a `LinearisedMotion`).

    Without `about`, a steady motion with these names is found first: `linearise(bicycle, speed=5)`. `controls` are
    those that hold the motion; a run has its own.
    """
    require_instance("system", system, MechanicalSystem, "a system")
    if isinstance(system, NonlinearSystem):
        raise InvalidInput("a system with constraints that are not linear in xi cannot be linearised yet")
    if isinstance(about, Run):
        return _along(system, about)
    if about is None or named:
        state, u = steady(system, about, controls=controls, trim=(), **named)
    else:
        state, u = about, _controls(system, controls)
    values, slopes = _expand(system, state, u)
    F, G, basis, _ = _space(system, state, values, slopes)
    if _drift(system, state, values, slopes) > STEADY:
        bend = np.abs(slopes.acceleration[: system.group.dim].T @ np.asarray(state.xi)).max()
        raise InvalidInput(
            f"the motion at this state is not steady: |xi'| = {np.abs(values.acceleration).max():.3g}, "
            f"|xi''| = {bend:.3g}. Find a steady one with steady(system, near=state, ...), or linearise along a run"
        )
    own = basis.T @ F @ basis
    symmetries = _silent_subspace(own, basis[system.group.dim :])
    rest = _complement(symmetries)
    reduced = rest.T @ own @ rest
    names, T = _variables(system, slopes, basis @ rest, basis @ symmetries)
    inverse = np.linalg.inv(T)
    A = T @ reduced @ inverse
    B = T @ (rest.T @ (basis.T @ G))
    eigenvalues = np.linalg.eigvals(_at_energy(reduced, slopes.energy[: 2 * system.group.dim] @ basis @ rest))
    order = np.lexsort((-eigenvalues.imag, -eigenvalues.real.round(12)))
    inputs = tuple(each.name for each in system.inputs or ())
    return Linearisation(names, A, B, inputs, eigenvalues[order], state, u, T @ rest.T @ basis.T)


def _space(
    system: MechanicalSystem, state: State, values: Neighbours, slopes: Neighbours
) -> tuple[Array, Array, Array, Array]:
    """F and G of (eta, zeta)' = F (eta, zeta) + G du, an orthonormal basis of E, and the rows that vanish on it."""
    group, n = system.group, system.group.dim
    ad = np.asarray(jax.vmap(lambda e: group.ad(jnp.asarray(state.xi), e))(jnp.eye(n))).T
    F = np.concatenate([np.concatenate([-ad, np.eye(n)], axis=1), slopes.acceleration[: 2 * n].T])
    G = np.concatenate([np.zeros((n, len(slopes.energy) - 2 * n)), slopes.acceleration[2 * n :].T])
    rows = np.concatenate([slopes.phi[: 2 * n].T, slopes.residual[: 2 * n].T])
    return F, G, _kernel(rows), rows


def _kernel(rows: Array, tolerance: float = RANK) -> Array:
    """Orthonormal columns that span the vectors on which the rows vanish."""
    if not rows.size:
        return np.eye(rows.shape[1])
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(rows / np.where(size > 0, size, 1.0))
    rank = int((values > tolerance * max(values[0], 1e-300)).sum()) if values[0] > 0 else 0
    return np.asarray(right[rank:].T)


def _complement(columns: Array) -> Array:
    """Orthonormal columns that complete these."""
    return _kernel(columns.T) if columns.shape[1] else np.eye(columns.shape[0])


def _silent_subspace(own: Array, zeta: Array) -> Array:
    """The largest subspace that `own` keeps and in which zeta = 0: orthonormal columns."""
    scale = max(np.abs(own).max(initial=0.0), 1.0)
    found = _absolute_kernel(zeta)
    while found.shape[1]:
        moved = own @ found / scale
        outside = moved - found @ (found.T @ moved)
        kept = found @ _absolute_kernel(outside)
        if kept.shape[1] == found.shape[1]:
            break
        found = kept
    return found


def _absolute_kernel(rows: Array) -> Array:
    """As `_kernel`, for rows of size 1 and less, where round-off is nothing."""
    _, values, right = np.linalg.svd(rows)
    return np.asarray(right[int((values > RANK).sum()) :].T)


def _at_energy(reduced: Array, slope: Array) -> Array:
    """The linear motion at constant energy, where the energy is conserved and not stationary."""
    size = np.linalg.norm(slope)
    scale = max(np.abs(reduced).max(initial=0.0), 1.0)
    if size <= 1e-9 or np.linalg.norm(slope @ reduced) > 1e-9 * size * scale:
        return reduced
    level = _kernel(slope[None, :])
    return np.asarray(level.T @ reduced @ level)


def _variables(
    system: MechanicalSystem, slopes: Neighbours, space: Array, silent: Array
) -> tuple[tuple[str, ...], Array]:
    """Names of independent variables on E/K, and their rows: coordinates, their rates, then others."""
    n = system.group.dim
    coordinates, rates = list(system.coordinate_names), list(system.rate_names)
    rows = np.asarray(slopes.named[: 2 * n].T)
    if not coordinates:
        coordinates = [f"{axis.name} displacement" for axis in system.axes()]
        rows = np.concatenate([np.eye(n, 2 * n), rows])
    names = [*coordinates, *rates]
    order = _preference(system, coordinates, rates)
    chosen: list[int] = []
    basis = np.zeros((0, space.shape[1]))
    for k in order:
        if len(basis) == space.shape[1]:
            break
        row = rows[k] @ space
        if np.abs(rows[k] @ silent).max(initial=0.0) > 1e-7 or np.linalg.norm(row) < 1e-7:
            continue
        unit = row / np.linalg.norm(row)
        left = unit - basis.T @ (basis @ unit)
        if np.linalg.norm(left) > 1e-6:
            chosen.append(k)
            basis = np.concatenate([basis, [left / np.linalg.norm(left)]])
    T = rows[chosen] @ space
    missing = space.shape[1] - len(chosen)
    if missing:  # no name tells these apart
        T = np.concatenate([T, _kernel(T if len(T) else np.zeros((1, space.shape[1]))).T])
    return (*(names[k] for k in chosen), *(f"other {k + 1}" for k in range(missing))), T


def _preference(system: MechanicalSystem, coordinates: list[str], rates: list[str]) -> list[int]:
    """The order in which variables are taken."""
    m = len(coordinates)
    first = priority(system.parts) if isinstance(system, MechanismSystem) else list(range(m))
    speeds = [m + k for k, name in enumerate(rates) if name.startswith("speed")]
    own = [m + k for k in first if k < len(rates)]
    early, late = own[:2], own[2:]
    return [*first, *early, *speeds, *late, *(k for k in range(m, m + len(rates)) if k not in {*own, *speeds})]


def _neutral_limit(eigenvalues: Array) -> float:
    """The real part up to which an eigenvalue counts as neutral."""
    return NEUTRAL * max(1.0, float(np.abs(eigenvalues).max(initial=0.0)))


def _along(system: MechanicalSystem, run: Run) -> LinearisedMotion:
    """The linear motion at the saved states of a run."""
    if np.ndim(run.final.status):
        raise InvalidInput("a linearisation needs one run, not an ensemble")
    used = run.controls_at_states() if run.controls is not None else None
    found = []
    for k in range(len(run.t)):
        state = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], run.records.state)
        u = _controls(system, None if used is None else np.asarray(used)[k])
        found.append(_space(system, state, *_expand(system, state, u))[:3])
    F, G, basis = (np.stack(each) for each in zip(*found, strict=True))
    return LinearisedMotion(np.asarray(run.t), F, G, basis)


@dataclass(frozen=True)
class StabilityStudy:
    """The result of `stability`: eigenvalues of steady motions over a parameter, and its `critical` values."""

    over: str
    values: Array
    eigenvalues: Array  # (values, number)
    critical: Array
    unit: str = ""

    def stable(self) -> list[tuple[float, float]]:
        """The intervals of the parameter in which the motion is stable."""
        edges = [self.values[0], *self.critical, self.values[-1]]
        return [(float(a), float(b)) for a, b in pairwise(edges) if self._is_stable((a + b) / 2)]

    def _is_stable(self, value: float) -> bool:
        nearest = self.eigenvalues[int(np.argmin(np.abs(self.values - value)))]
        return bool((nearest.real < -_neutral_limit(nearest)).all())

    def plot(self, path: str | Path | None = None) -> Figure:
        """Real and imaginary parts over the parameter, with the stable interval; `path` saves the figure."""
        over = f"{self.over.replace('_', ' ')}, {self.unit}" if self.unit else self.over
        return plot_eigenvalues(over, self.values, self.eigenvalues, self.critical, self.stable(), path=path)


@known_arguments(OUTSIDE)
def stability(
    system: MechanicalSystem,
    over: str,
    low: float,
    high: float,
    *,
    near: State | None = None,
    count: int = 60,
    controls: Any = None,
    **named: float,
) -> StabilityStudy:
    """Find where steady motions are stable as a coordinate or rate `over`, such as "speed", goes from `low` to `high`.

    The critical values, where the number of unstable eigenvalues changes, are located between neighbours of the `count`
    values: by Brent's method where a real part crosses 0, or where the product of the nonzero eigenvalues does (a pair
    that meets at 0 and turns onto the imaginary axis); by bisection otherwise.
    """
    from scipy.optimize import brentq

    start, end = float(finite("low", low)), float(finite("high", high))
    if not start < end:
        raise InvalidInput(f"low is {start:g} and high is {end:g}; allowed: low < high")
    state = near

    def eigenvalues(value: float) -> Array:
        nonlocal state
        made = linearise(system, state, controls=controls, **{over: value}, **named)
        state = made.state if near is not None else None
        return np.asarray(made.eigenvalues)

    def unstable(value: float) -> int:
        found = eigenvalues(value)
        return int((found.real > _neutral_limit(found)).sum())

    values = np.linspace(start, end, positive_int("count", count))
    found = [eigenvalues(float(value)) for value in values]
    counts = [int((each.real > _neutral_limit(each)).sum()) for each in found]
    critical = []
    for k, (a, b) in enumerate(pairwise(values.tolist())):
        place = min(counts[k], counts[k + 1])
        if counts[k] == counts[k + 1]:
            continue

        def crossing(value: float, place: int = place) -> float:
            return float(np.sort(eigenvalues(value).real)[::-1][place])

        zeros = min(int((np.abs(each) < 1e-6 * np.abs(each).max()).sum()) for each in found[k : k + 2])

        def product(value: float, zeros: int = zeros) -> float:
            return float(np.poly(eigenvalues(value))[-1 - zeros].real)

        ends = [np.sort(each.real)[::-1][place] for each in found[k : k + 2]]
        transversal = min(abs(each) for each in ends) > _neutral_limit(found[k]) and ends[0] * ends[1] < 0
        if transversal or product(a) * product(b) < 0:
            critical.append(brentq(crossing if transversal else product, a, b, xtol=1e-14, rtol=1e-14))
            continue
        while b - a > 1e-13 * max(abs(a), abs(b)) and a < (middle := (a + b) / 2) < b:
            a, b = (middle, b) if unstable(middle) == counts[k] else (a, middle)
        critical.append((a + b) / 2)
    unit = system.units.get(over.replace("_", " "), "").replace(" s-1", "/s")
    return StabilityStudy(over, values, np.array(found), np.array(sorted(critical)), unit)
