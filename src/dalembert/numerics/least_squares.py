"""Nonlinear least squares: bounds, robust losses, equations that have to hold; what an estimate says of its unknowns.

    minimise the sum of rho(r_i(x)^2) such that low <= x <= high and c(x) = 0.

Without c it is SciPy's trust-region method, whose steps are those of Levenberg and Marquardt, inside bounds.
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
        if not ((low <= guess) & (guess <= high)).all():
            raise InvalidInput(f"the guess {show(self.guess)} is not between its bounds, {bounds}: give one that is")


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
        places = np.ndindex(guess.shape)
        self.names += [f"{name}[{', '.join(map(str, place))}]" if place else name for place in places]
        self.numbers = np.concatenate([self.numbers, rows], axis=1)
        return np.arange(len(self.names) - guess.size, len(self.names))


class Evaluation(NamedTuple):
    """Residuals with their Jacobian, the gaps c(x) of the equations with theirs, and why there are none (or None)."""

    residual: Numbers
    jacobian: Numbers
    gaps: Numbers
    gap_jacobian: Numbers
    failure: Any


class Problem(Protocol):
    """What is minimised, with the number of evaluations so far; losses apply to the first `data` residuals."""

    low: Numbers
    high: Numbers
    data: int
    runs: int

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
STOPPED = {
    1: "the gradient is zero",
    2: "chi^2 changes no more",
    3: "the unknowns change no more",
    4: "nothing changes",
}
INTERRUPTED = "interrupted; these are the best so far"
SMALLEST_PART = 1e-6  # of a step that is tried
CLOSED = 1e-9  # gaps of equations that count as closed


class Outcome(NamedTuple):
    """Where the solution ended: the unknowns, which are at a bound, whether it converged, and why it stopped."""

    x: Numbers
    fixed: Numbers
    converged: bool
    reason: str


@dataclass
class Search:
    """The search for the least chi^2, with the best unknowns so far."""

    problem: Problem
    loss: str
    threshold: float
    max_runs: int
    progress: Callable[[int, int], None] | None
    best: tuple[float, Numbers] = (math.inf, np.zeros(0))
    weight: float = 0.0  # of the gaps, where they are part of the sum

    def losses(self, z: Numbers) -> Numbers:
        """rho of squared residuals with its derivatives; priors and gaps have none."""
        made, data, c = np.stack([z, np.ones_like(z), np.zeros_like(z)]), self.problem.data, self.threshold**2
        if (robust := LOSSES[self.loss]) is not None:
            value, first, second = robust(z[:data] / c)
            made[:, :data] = c * value, first, second / c
        return made

    def residuals(self, x: Numbers) -> Numbers:
        found = self.problem(x)
        r = np.concatenate([found.residual, self.weight * found.gaps]) if self.weight else found.residual
        cost = float(self.losses(r * r)[0].sum())
        if cost < self.best[0]:
            self.best = cost, x.copy()
        if self.progress is not None:
            self.progress(min(self.problem.runs, self.max_runs), self.max_runs)
        return r

    def jacobian(self, x: Numbers) -> Numbers:
        found = self.problem(x)
        return np.concatenate([found.jacobian, self.weight * found.gap_jacobian]) if self.weight else found.jacobian

    def minimise(self, x: Numbers) -> Outcome:
        """Minimise from x on. Where a run fails, the trust region shrinks."""
        from scipy.optimize import least_squares

        problem, self.best = self.problem, (math.inf, x)
        try:
            done = least_squares(
                self.residuals, x, self.jacobian, (problem.low, problem.high), x_scale="jac", ftol=1e-10,
                xtol=1e-10, gtol=1e-12, loss="linear" if self.loss == "linear" else self.losses,
                max_nfev=max(1, self.max_runs - problem.runs),
            )  # fmt: skip
        except KeyboardInterrupt:
            return Outcome(self.best[1], np.zeros(len(x), bool), False, INTERRUPTED)
        reason = STOPPED.get(done.status, f"{problem.runs} runs did not suffice: allow more, or give a better guess")
        return Outcome(done.x, done.active_mask != 0, done.status > 0, reason)

    def minimise_by_gauss_newton(self, x: Numbers, prepared: bool = False) -> Outcome:
        """Minimise with closed gaps: Gauss-Newton steps along the linearised constraint, as Bock (1983) has them.

        If `prepared`, the sum falls before that while gaps cost next to nothing. A part of a step is taken if, beside
        every point before, chi^2 or the gaps are less: a filter (Fletcher and Leyffer 2002), so that gaps may open.
        """
        if prepared:
            self.weight, first = 1.0, self.minimise(x)
            if first.reason == INTERRUPTED:
                return first
            x = first.x
        problem, part, fixed = self.problem, 1.0, np.zeros(len(x), bool)
        here, seen, reason = problem(x), [], "no step was better: give a better guess, or other pieces"
        try:
            while part > SMALLEST_PART and problem.runs < self.max_runs:
                rho, slope, _ = self.losses(here.residual**2)
                r, jacobian = np.sqrt(slope) * here.residual, np.sqrt(slope)[:, None] * here.jacobian
                step, fixed = constrained_step(r, jacobian, here, problem.low - x, problem.high - x)
                gain = r @ r - ((r + jacobian @ step) ** 2).sum()
                if np.abs(here.gaps).max(initial=0.0) < CLOSED and abs(gain) <= 1e-10 * (1.0 + rho.sum()):
                    return Outcome(x, fixed, True, STOPPED[2])
                seen.append((np.abs(here.gaps).sum(), rho.sum()))
                part = 1.0
                while part > SMALLEST_PART and problem.runs < self.max_runs:
                    there = problem(x + part * step)
                    apart, cost = np.abs(there.gaps).sum(), self.losses(there.residual**2)[0].sum()
                    if self.progress is not None:
                        self.progress(min(problem.runs, self.max_runs), self.max_runs)
                    less = 1e-4 * part
                    better = all(apart < (1.0 - less) * gap or cost < (1.0 - less) * old for gap, old in seen)
                    if not len(here.gaps):  # nothing but chi^2 has to fall, by a part of what the model says
                        better = cost <= rho.sum() - less * gain
                    if better and there.failure is None:
                        x, here = x + part * step, there
                        break
                    part *= 0.5
            if problem.runs >= self.max_runs:
                reason = f"{problem.runs} runs did not suffice: allow more, or give a better guess"
        except KeyboardInterrupt:
            reason = INTERRUPTED
        return Outcome(x, fixed, False, reason)


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
        lines += [f"not determined: {each}" for each in self.loose]
        lines.append(f"{'converged' if self.converged else 'NOT converged'} after {self.runs} runs: {self.reason}")
        return "\n".join(lines)

    __repr__ = __str__
