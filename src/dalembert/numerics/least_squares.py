"""Nonlinear least squares: bounds, robust losses, equations that have to hold; what an estimate says of its unknowns.

    minimise the sum of rho(r_i(x)^2) such that low <= x <= high and c(x) = 0.

Without c many problems of one form are solved side by side, each with a search of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import InvalidInput, UnknownName
from .checks import finite_reals, read_reals, show

Numbers = np.ndarray[Any, Any]
SINGULAR = 1e-8  # singular values of the scaled Jacobian, relative to the largest, that count as 0
SHARE = 1e-3  # of a combination, from which on an unknown belongs to it
MISFIT = 1e-6  # a p-value below which a model does not describe the data
POOR = 1.0  # a relative error from which on a combination is not determined


def one_blas_thread() -> AbstractContextManager[Any]:
    """Within it the linear algebra of NumPy and SciPy uses one thread: for small matrices a second one only spins."""
    context: AbstractContextManager[Any] = _blas_threads().limit(limits=1, user_api="blas")
    return context


@cache
def _blas_threads() -> Any:
    import scipy.linalg  # noqa: F401  # whose library must be there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@dataclass(frozen=True)
class Unknown:
    """An unknown of a fit: its first guess (a number or an array), its bounds, and what was known of it before.

    `prior` is (mean, standard deviation). With `own`, each of several experiments has its own value of it.
    """

    guess: Any
    low: Any = -math.inf
    high: Any = math.inf
    prior: tuple[Any, Any] | None = None
    own: bool = False

    def __post_init__(self) -> None:
        guess, bounds = finite_reals("the guess of an unknown", self.guess), f"{show(self.low)} and {show(self.high)}"
        given = f"bounds {bounds} and prior {show(self.prior)}"
        try:
            mean, deviation = (0.0, 1.0) if self.prior is None else self.prior
            numbers = [read_reals(each) for each in (self.low, self.high, mean, deviation)]
            low, high, *prior = (np.broadcast_to(np.asarray(each, float), guess.shape) for each in numbers)
        except (TypeError, ValueError) as fault:
            raise InvalidInput(f"an unknown has {given}; allowed: numbers, and (mean, standard deviation)") from fault
        if any(each is None for each in numbers) or not guess.size:
            raise InvalidInput(f"an unknown has {guess.size} numbers, {given}; allowed: real numbers, at least one")
        if not ((low < high).all() and np.isfinite(prior[0]).all() and (prior[1] > 0).all()):
            raise InvalidInput(f"an unknown has {given}; allowed: low < high, (mean, positive standard deviation)")


class Columns:
    """The unknowns as one vector: names, and for each its guess, bounds, and prior (deviation inf: none)."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers = np.zeros((5, 0))

    def add(self, name: str, unknown: Unknown) -> Numbers:
        """The places of an unknown in the vector."""
        guess, prior = np.asarray(unknown.guess, float), unknown.prior or (0.0, math.inf)
        given = (guess, unknown.low, unknown.high, *prior)
        rows = [np.broadcast_to(np.asarray(each, float), guess.shape).ravel() for each in given]
        names = [f"{name}[{', '.join(map(str, place))}]" if place else name for place in np.ndindex(guess.shape)]
        for own, value, low, high in zip(names, *rows[:3], strict=True):
            if not low <= value <= high:
                bounds = f"not between its bounds, {low:g} and {high:g}: give one that is"
                raise InvalidInput(f"the guess of the unknown {own!r} is {value:g}, {bounds}")
        self.names += names
        self.numbers = np.concatenate([self.numbers, rows], axis=1)
        return np.arange(len(self.names) - guess.size, len(self.names))


class Evaluation(NamedTuple):
    """Residuals with their Jacobian, the gaps c(x) of the equations with theirs, and why there are none (or None).

    Each has an axis in front, with an entry a problem.
    """

    residual: Numbers
    jacobian: Numbers
    gaps: Numbers
    gap_jacobian: Numbers
    failure: Any

    def of(self, b: int) -> Evaluation:
        """What belongs to one of the problems, without the axis in front."""
        return Evaluation(*(part[b] for part in self))


class LeastSquares(Protocol):
    """What is minimised, many problems of one form: rows of unknowns go in. The first residuals have losses."""

    low: Numbers
    high: Numbers
    measured: int  # how many of them

    def __call__(self, x: Numbers) -> Evaluation: ...


def _soft_l1(z: Numbers) -> tuple[Numbers, ...]:
    root = np.sqrt(1.0 + z)
    return 2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3


def _huber(z: Numbers) -> tuple[Numbers, ...]:
    root = np.sqrt(np.maximum(z, 1.0))
    return np.where(z <= 1.0, z, 2.0 * root - 1.0), 1.0 / root, np.where(z <= 1.0, 0.0, -0.5 / root**3)


def _cauchy(z: Numbers) -> tuple[Numbers, ...]:
    return np.log1p(z), 1.0 / (1.0 + z), -1.0 / (1.0 + z) ** 2


SEARCHES = ("levenberg-marquardt", "gauss-newton")
LOSSES: dict[str, Callable[[Numbers], tuple[Numbers, ...]] | None]
LOSSES = {"linear": None, "huber": _huber, "soft-l1": _soft_l1, "cauchy": _cauchy}
"""rho(z) of a squared residual z, with its first two derivatives (Huber 1981; Triggs and others 2000, section 4)."""
ACTIVE, FLAT, LEAST, STILL, SETTLED, INTERRUPTED, TOO_LONG, WORSE = range(8)
REASONS = (
    "", "the gradient is zero", "chi^2 changes no more", "the unknowns change no more", "nothing changes",
    "interrupted; these are the best so far", "{} runs did not suffice: allow more, or give a better guess",
    "no step was better: give a better guess, or other pieces",
)  # fmt: skip
CHANGE, GRADIENT = 1e-10, 1e-12  # relative changes of chi^2 and of the unknowns, and a gradient, that count as none
SMALLEST_PART = 1e-6  # of a step that is tried
ROUND_OFF = 1e-13  # of the largest effect of an unknown: what changes less by its own size is not seen
CLOSED = 1e-9  # gaps of equations that count as closed


class Outcome(NamedTuple):
    """Where searches ended, each in a row: the unknowns, which are at a bound, why, the runs, and what is there."""

    x: Numbers
    fixed: Numbers
    why: Numbers
    runs: Numbers
    there: Evaluation

    def of(self, b: int) -> Outcome:
        """One of them, without the axis in front."""
        return Outcome(self.x[b], self.fixed[b], self.why[b], self.runs[b], self.there.of(b))

    @property
    def reason(self) -> str:
        """Why a search stopped, in words."""
        return REASONS[int(self.why)].format(int(self.runs))

    @property
    def converged(self) -> bool:
        """Whether a search found a minimum."""
        return int(self.why) < INTERRUPTED


@dataclass
class Search:
    """The search for the least chi^2 of one problem, or of many side by side."""

    problem: LeastSquares
    loss: str
    threshold: float
    max_runs: int
    progress: Callable[[int, int], None] | None
    weight: float = 0.0  # of the gaps, where they are part of the sum

    def losses(self, z: Numbers) -> Numbers:
        """rho of squared residuals with its derivatives; priors and gaps have none."""
        made, data, c = np.stack([z, np.ones_like(z), np.zeros_like(z)]), self.problem.measured, self.threshold**2
        if (robust := LOSSES[self.loss]) is not None:
            value, first, second = robust(z[..., :data] / c)
            made[..., :data] = c * value, first, second / c
        return made

    def _report(self, runs: Numbers) -> None:
        if self.progress is not None:
            self.progress(min(int(runs.max()), self.max_runs), self.max_runs)

    def _squares(self, there: Evaluation) -> tuple[Numbers, Numbers, Numbers]:
        """(chi^2, residuals and Jacobian of the least squares that have its slope and curvature)."""
        r, jacobian = there.residual, there.jacobian
        if self.weight:
            r = np.concatenate([r, self.weight * there.gaps], axis=1)
            jacobian = np.concatenate([jacobian, self.weight * there.gap_jacobian], axis=1)
        value, slope, bend = self.losses(r * r)
        if self.loss != "linear":
            root = np.sqrt(np.maximum(slope + 2.0 * bend * r * r, np.finfo(float).eps))
            r, jacobian = r * slope / root, root[..., None] * jacobian
        return value.sum(axis=1), r, jacobian

    def minimise(self, x: Numbers, here: Evaluation) -> Outcome:
        """Minimise from the rows of x on: steps of Levenberg and Marquardt inside a trust region, and inside bounds.

        Unknowns are measured by what they change. Where a run fails, the region shrinks. A search that has ended stands
        still beside the others.
        """
        low, high, count = self.problem.low, self.problem.high, len(x)
        runs, why, fixed = np.ones(count, int), np.zeros(count, int), np.zeros(x.shape, bool)
        largest, radius, (cost, r, jacobian) = np.zeros(x.shape), np.zeros(count), self._squares(here)
        try:
            self._report(runs)
            while True:
                largest = np.maximum(largest, np.linalg.norm(jacobian, axis=1))
                effect = largest * np.maximum(np.abs(x), 1.0)
                unseen = effect <= ROUND_OFF * effect.max(axis=1, keepdims=True)  # it would have endless steps
                unit = np.where(unseen, 1.0, largest)
                size = np.linalg.norm(x * unit, axis=1)
                radius = np.where(radius > 0, radius, np.where(size > 0, size, 1.0))
                slope = (r[:, None] @ jacobian)[:, 0]
                outward = ((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0))
                flat = np.abs(np.where(outward, 0.0, slope)).max(axis=1) < GRADIENT
                ended = np.where(flat, FLAT, np.where(runs >= self.max_runs, TOO_LONG, ACTIVE))
                why = np.where(why == ACTIVE, ended, why)
                active = why == ACTIVE
                if not active.any():
                    break
                whole = np.concatenate([np.where(unseen, 0.0, 1.0 / unit)[:, None] * jacobian, r[..., None]], axis=2)
                model, rest = np.split(np.linalg.qr(whole, mode="r"), [x.shape[1]], axis=2)
                step, held = step_inside(model, rest[..., 0], radius, unit * (low - x), unit * (high - x))
                gain = (rest**2 - (rest + model @ step[..., None]) ** 2).sum(axis=(1, 2))
                length, change = np.linalg.norm(step, axis=1), np.where(active[:, None], step / unit, 0.0)
                fixed, new = np.where(active[:, None], held, fixed), np.clip(x + change, low, high)
                there = self.problem(new)
                runs = runs + active
                after, new_r, new_jacobian = self._squares(there)
                known = np.isfinite(after)
                less = np.where(known, cost - after, -np.inf)
                ratio = less / np.where(gain > 0, gain, np.inf)
                least = (less < CHANGE * cost) & (ratio > 0.25)
                still = known & (np.linalg.norm(change, axis=1) < CHANGE * (CHANGE + np.linalg.norm(x, axis=1)))
                why = np.where(active, np.array([[ACTIVE, STILL], [LEAST, SETTLED]])[least * 1, still * 1], why)
                wider = np.where((ratio > 0.75) & (length > 0.95 * radius), 2.0 * radius, radius)
                radius = np.where(ratio < 0.25, 0.25 * length, wider)
                old, better = (x, cost, r, jacobian, *here), active & (less > 0)
                pairs = zip((new, after, new_r, new_jacobian, *there), old, strict=True)
                x, cost, r, jacobian, *parts = (pick_rows(better, *pair) for pair in pairs)
                here = Evaluation(*parts)
                self._report(runs)
        except KeyboardInterrupt:
            why = np.where(why == ACTIVE, INTERRUPTED, why)
        return Outcome(x, fixed, why, runs, here)

    def minimise_by_gauss_newton(self, x: Numbers, there: Evaluation, prepared: bool = False) -> Outcome:
        """Minimise one problem with closed gaps: Gauss-Newton steps along the linearised constraint (Bock 1983).

        If `prepared`, the sum falls before that while gaps cost next to nothing. A part of a step is taken if, beside
        every point before, chi^2 or the gaps are less: a filter (Fletcher and Leyffer 2002), so that gaps may open.
        """
        problem, part, runs, why, fixed = self.problem, 1.0, np.ones(1, int), WORSE, np.zeros(x.shape, bool)
        seen: list[tuple[float, float]] = []
        if prepared:
            self.weight, first = 1.0, self.minimise(x, there)
            if first.why[0] == INTERRUPTED:
                return first
            x, runs, there = first.x, first.runs, first.there
        try:
            while part > SMALLEST_PART and runs[0] < self.max_runs:
                here = there.of(0)
                rho, slope, _ = self.losses(here.residual**2)
                r, jacobian = np.sqrt(slope) * here.residual, np.sqrt(slope)[:, None] * here.jacobian
                step, fixed[0] = constrained_step(r, jacobian, here, problem.low - x[0], problem.high - x[0])
                gain = r @ r - ((r + jacobian @ step) ** 2).sum()
                if np.abs(here.gaps).max(initial=0.0) < CLOSED and abs(gain) <= CHANGE * (1.0 + rho.sum()):
                    return Outcome(x, fixed, np.array([LEAST]), runs, there)
                seen.append((np.abs(here.gaps).sum(), rho.sum()))
                part = 1.0
                while part > SMALLEST_PART and runs[0] < self.max_runs:
                    new = problem(x + part * step)
                    runs = runs + 1
                    apart, cost = np.abs(new.gaps).sum(), self.losses(new.residual**2)[0].sum()
                    self._report(runs)
                    less = 1e-4 * part
                    better = all(apart < (1.0 - less) * gap or cost < (1.0 - less) * old for gap, old in seen)
                    if not len(here.gaps):  # nothing but chi^2 has to fall, by a part of what the model says
                        better = cost <= rho.sum() - less * gain
                    if better and new.failure[0] is None:
                        x, there = x + part * step, new
                        break
                    part *= 0.5
            if runs[0] >= self.max_runs:
                why = TOO_LONG
        except KeyboardInterrupt:
            why = INTERRUPTED
        return Outcome(x, fixed, np.array([why]), runs, there)


def pick_rows(which: Numbers, new: Any, old: Any) -> Any:
    """The rows of `new` that are marked, and of `old` the others; arrays or lists."""
    if which.all() or not which.any():
        return new if which.all() else old
    if isinstance(new, list):
        return [a if mark else b for mark, a, b in zip(which, new, old, strict=True)]
    return np.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def step_inside(model: Numbers, rest: Numbers, radius: Numbers, low: Numbers, high: Numbers) -> tuple[Numbers, Numbers]:
    """(the steps y of least |rest + model y|^2 with |y| <= radius and low <= y <= high, which end at a bound).

    Unknowns that would pass a bound are put there, and the rest is found again.
    """
    fixed, ends = np.zeros(low.shape, bool), np.zeros(low.shape)
    while True:
        shifted = rest + (model @ ends[..., None])[..., 0]
        step = np.where(fixed, ends, step_in_ball(np.where(fixed[:, None], 0.0, model), shifted, radius))
        beyond = ~fixed & ((step < low) | (step > high))
        if not beyond.any():
            return step, fixed
        fixed, ends = fixed | beyond, np.where(beyond, np.clip(step, low, high), ends)


def step_in_ball(model: Numbers, rest: Numbers, radius: Numbers) -> Numbers:
    """The steps of least |rest + model y|^2 with |y| <= radius: damped until they are short enough (More 1978)."""
    left, s, right = np.linalg.svd(model, full_matrices=False)
    seen = s > np.finfo(float).eps * max(model.shape[1:]) * s.max(axis=1, initial=0.0, keepdims=True)
    s, along = np.where(seen, s, 1.0), np.where(seen, (rest[:, None] @ left)[:, 0], 0.0)
    damping, far = np.zeros((len(s), 1)), radius[:, None]
    for _ in range(10):
        found = s * along / (s * s + damping)
        length = np.linalg.norm(found, axis=1, keepdims=True)
        if not (length > far).any():
            break
        bend = (found**2 / (s * s + damping)).sum(axis=1, keepdims=True)
        more = length**2 / np.where(bend > 0, bend, 1.0) * (length / far - 1.0)
        damping = damping + np.where(length > far, more, 0.0)
    found = found * np.minimum(1.0, far / np.where(length > 0, length, far))
    return np.asarray(-(found[:, None] @ right)[:, 0])


def constrained_step(
    r: Numbers, jacobian: Numbers, here: Evaluation, low: Numbers, high: Numbers
) -> tuple[Numbers, Numbers]:
    """(the step with the least |r + J d|^2 that closes the gaps, which unknowns it takes to a bound).

    Unknowns that would pass a bound are put there, and the rest is found again.
    """
    unit, fixed, ends = np.eye(len(low)), np.zeros(len(low), bool), np.zeros(len(low))
    while True:
        rows = np.concatenate([here.gap_jacobian, unit[fixed]])
        q, triangle = np.linalg.qr(rows.T, mode="complete")
        held, free = q[:, : len(rows)], q[:, len(rows) :]
        d = held @ np.linalg.solve(triangle[: len(rows)].T, np.concatenate([-here.gaps, ends[fixed]]))
        d = d + free @ np.linalg.lstsq(jacobian @ free, -(r + jacobian @ d))[0]
        beyond = ~fixed & ((d < low) | (d > high))
        if not beyond.any():
            return d, fixed
        fixed, ends = fixed | beyond, np.where(beyond, np.clip(d, low, high), ends)


class Combination(NamedTuple):
    """A combination of unknowns that the data do not determine: their relative changes, and the error along it."""

    names: tuple[str, ...]
    changes: Numbers
    error: float

    def __str__(self) -> str:
        what, scaled = ", ".join(self.names), self.changes / np.abs(self.changes).max()
        if len(self.names) > 1 and np.ptp(scaled) < SHARE:
            what = f"a common factor of {what}"
        elif len(self.names) > 1:
            pairs = zip(self.names, scaled, strict=True)
            what = ", ".join(f"{name} {change:+.3g}" for name, change in pairs) + " (relative changes, together)"
        return f"{what}: " + ("not at all" if np.isinf(self.error) else f"to {100 * self.error:.3g} % only")


def find_spread(
    names: tuple[str, ...], jacobian: Numbers, middle: Numbers | None, scale: Numbers, fixed: Numbers, gaps: Numbers
) -> tuple[Numbers, list[Combination]]:
    """(the covariance of an estimate, the combinations that are not determined).

    The covariance is H^-1 M H^-1 with H = J^T J (and M = H unless given), on the linear space where gaps stay closed.
    `fixed` unknowns are at a bound and have no error. J is taken in units of `scale`.
    """
    ways = scale[:, None] * np.eye(len(names))[:, ~fixed]
    if len(gaps):
        _, s, right = np.linalg.svd(gaps @ ways)
        ways = ways @ right[int((s > 1e-12 * s.max()).sum()) :].T
    _, s, right = np.linalg.svd(jacobian @ ways, full_matrices=len(jacobian) < ways.shape[1])
    s = np.pad(s, (0, ways.shape[1] - len(s)))
    seen = s > SINGULAR * s.max(initial=0.0)
    inverse = ways @ (right[seen].T / s[seen] ** 2) @ right[seen] @ ways.T
    covariance, loose = inverse if middle is None else inverse @ middle @ inverse, []
    for k in np.flatnonzero(~seen | (POOR * s < 1.0)):
        change = ways @ right[k] / scale
        change = change * np.sign(change[np.argmax(np.abs(change))])
        which = np.flatnonzero(np.abs(change) > SHARE * np.abs(change).max())
        found = Combination(tuple(names[j] for j in which), change[which], 1.0 / s[k] if seen[k] else np.inf)
        loose.append(found)
        if not seen[k]:
            covariance[which, which] = np.inf
    return covariance, loose


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """Estimated values with their standard errors; `values`, `errors` and `covariance` are in the order of `names`.

    `loose` are the combinations of unknowns that the data do not determine; an unknown in one of them that no
    measurement shows at all has an infinite error. Where no standard deviations were given, they are taken from the
    scatter of the data, and there is no `p_value`. Unknowns at a bound have no error.
    """

    names: tuple[str, ...]
    values: Numbers
    covariance: Numbers
    chi2: float
    dof: int
    loose: list[Combination]
    at_bound: tuple[str, ...]
    converged: bool
    reason: str
    runs: int
    scaled: bool

    @property
    def errors(self) -> Numbers:
        """The standard errors."""
        errors: Numbers = np.sqrt(np.diag(self.covariance))
        return errors

    @property
    def correlation(self) -> Numbers:
        """The correlations of the estimates; NaN where an error is infinite or 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Numbers = self.covariance / np.outer(self.errors, self.errors)
        return found

    @property
    def p_value(self) -> float | None:
        """The probability of so large a chi^2 or a larger one, if the model and the standard deviations are right."""
        from scipy.special import gammaincc

        return None if self.scaled or self.dof < 1 else float(gammaincc(0.5 * self.dof, 0.5 * self.chi2))

    def __getitem__(self, name: str) -> Any:
        """An unknown by its name: a number, or the array of its entries."""
        if name in self.names:
            return float(self.values[self.names.index(name)])
        found = [k for k, each in enumerate(self.names) if each.startswith(name + "[")]
        if not found:
            raise UnknownName("unknown", name, self.names)
        last = self.names[found[-1]].removeprefix(name + "[").rstrip("]").split(",")
        return self.values[found].reshape([int(k) + 1 for k in last])

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain numbers and texts, for JSON; None where a number is not finite."""
        numbers = [[x if math.isfinite(x) else None for x in row] for row in (self.values, self.errors)]
        rows = zip(self.names, *numbers, strict=True)
        return {
            "unknowns": {name: {"estimate": value, "error": error} for name, value, error in rows},
            "correlation": [[x if math.isfinite(x) else None for x in row] for row in self.correlation.tolist()],
            "chi2": self.chi2,
            "degrees_of_freedom": self.dof,
            "p_value": self.p_value,
            "not_determined": [str(each) for each in self.loose],
            "at_bound": list(self.at_bound),
            "converged": self.converged,
            "reason": self.reason,
            "runs": self.runs,
        }

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [f"{'':{width}}  {'estimate':>14}  {'error':>10}"]
        for name, value, error in zip(self.names, self.values, self.errors, strict=True):
            lines.append(f"{name:{width}}  {value:14.8g}  {error:10.3g}{'  at a bound' * (name in self.at_bound)}")
        good = "" if self.p_value is None else f", p = {self.p_value:.3g}"
        lines.append(f"chi^2 = {self.chi2:.6g} with {self.dof} degrees of freedom{good}")
        if self.p_value is not None and self.p_value < MISFIT:
            lines.append(
                "WARNING: the model does not describe the data (p is about 0), the standard deviations are too small, "
                "or a better minimum is elsewhere (try other guesses): the errors above mean nothing"
            )
        if any(name.startswith("configuration.") for name in self.names):
            lines.append("configuration: the shift from the given start along this velocity, not the coordinate itself")
        lines += [f"not determined: {each}" for each in self.loose]
        lines.append(f"{'converged' if self.converged else 'NOT converged'} after {self.runs} runs: {self.reason}")
        return "\n".join(lines)

    __repr__ = __str__
