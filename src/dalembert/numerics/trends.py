"""How the error of an invariant grows: bounded, like a random walk, linearly or exponentially.

The error is averaged over 2^J equal blocks of time and written in Haar wavelets y = H m: differences of neighbouring
means, one variance for each scale, as in an Allan deviation. From scale to scale a bounded error averages out, a random
walk grows like the square root, a trend like the scale itself or, where it is exponential, unevenly. Each kind is a
Gaussian model of y,

    bounded: 0,  random walk: 0,  linear: b H t,  exponential: c H e^{kappa t}      plus noise of variance s^2 v_scale,

with v of white noise mixed with a process that has a memory or a period shorter than a third of the run, or with a
random walk. The kind with the largest log-likelihood less a penalty for its parameters wins. Members of an ensemble
share the kind, not the constants.

Errors at several steps, and the orders that their slopes say, are a `Convergence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import InvalidInput
from .checks import html_table

Numbers = np.ndarray[Any, Any]

GROWTH_KINDS = ("bounded", "random walk", "linear", "exponential")
MAX_BLOCKS = 64
MIN_SAMPLES = 16  # samples that a verdict needs
MEMORIES = (0.5, 1.0, 2.0, 4.0)  # correlation times of a bounded error, in blocks
PERIODS = (6.0, 8.0, 12.0, 16.0, 21.0)  # of a slow oscillation, in blocks
SHARES = (0.9, 0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-4, 1e-6)  # of white noise in the variance of a block mean
PENALTY = {"bounded": 2.0, "random walk": 1.0, "linear": 6.0, "exponential": 13.0}
SLOW_NOISE_PENALTY = 8.0  # the penalty for a trend among slow noise: set so that few random walks pass for trends
RATES = np.concatenate([-np.geomspace(0.5, 600.0, 48), np.geomspace(0.5, 600.0, 48)])  # kappa times the duration
OSCILLATION_SAMPLES = 8  # samples that show the amplitude of an oscillation
LAST_PLACES = 4.0  # units in the last place of a constant within which its error is round-off
MIN_GROWTH = 1.5  # times that the amplitude of an oscillation must grow to count


@dataclass(frozen=True)
class Drift:
    """What `classify` found: the kind, its rate, the largest |error|, and the evidence for each kind (the best has 0).

    The rate is per unit of time: D of a random walk, rms = D sqrt(t); b of b t; kappa of e^{kappa t} (negative where
    the error settles to a limit); 0 when bounded. Over an ensemble it is the root mean square, of kappa the median.
    `amplitude` says that the oscillation of the error grows so, not its mean; `round_off`, that the error is a few
    units in the last place of what should be constant, too coarse a grid to tell how it grows: it counts as bounded.
    """

    kind: str
    rate: float
    size: float
    evidence: dict[str, float]
    amplitude: bool = False
    round_off: bool = False

    def __str__(self) -> str:
        if self.round_off:
            return f"round-off, at most {self.size:.3g}"
        rates = {"random walk": "rms {:.3g} sqrt(t)", "linear": "{:.3g} a unit of time", "exponential": "e^({:.3g} t)"}
        rate = ", " + rates[self.kind].format(self.rate) if self.kind in rates else ""
        kind = "settles to a limit" if self.kind == "exponential" and self.rate < 0 else self.kind
        return f"{kind}{rate}{' (its amplitude)' if self.amplitude else ''}, at most {self.size:.3g}"

    def _repr_html_(self) -> str:
        against = {f"against {name}": f"{value:.3g}" for name, value in self.evidence.items()}
        return html_table("Drift", {"verdict": self} | against)


Noise = tuple[Numbers, ...]
"""Models of noise: the variances of H m, one row a model; the share of white noise; whether the rest is slow."""


def classify(t: Any, error: Any, *, scale: float = 0.0) -> Drift:
    """The kind of growth of an error (saves,), or of those of an ensemble (members, saves), at equidistant times.

    `scale` is the size of the numbers whose difference the error is: a few of their last places are round-off.
    """
    errors = np.atleast_2d(np.asarray(error, float))
    times = np.asarray(t, float)
    times = times[0] if times.ndim == 2 else times
    if errors.ndim != 2 or times.shape != errors.shape[1:]:
        raise InvalidInput(
            f"times {np.shape(t)} and errors {np.shape(error)} do not match; allowed: (saves,), (members, saves)"
        )
    gaps = np.diff(times)
    if len(gaps) > 1 and not np.isclose(gaps[-1], gaps[0]):  # the remainder that ends a run
        times, errors, gaps = times[:-1], errors[:, :-1], gaps[:-1]
    if len(times) < MIN_SAMPLES:
        raise InvalidInput(f"{len(times)} saved states cannot tell how an error grows; save at least {MIN_SAMPLES}")
    if not np.all(np.isfinite(errors)):
        raise InvalidInput("the error is not finite everywhere: classify the part before that")
    if not np.allclose(gaps, gaps[0], rtol=1e-6):
        raise InvalidInput("the times are not equidistant: save every state, or every k-th one")
    size = float(np.abs(errors).max())
    spread = np.ptp(errors, axis=1).max()
    round_off = bool(0.0 < size <= LAST_PLACES * np.finfo(float).eps * scale)
    if spread == 0.0 or round_off:
        evidence = {kind: 0.0 if kind == "bounded" else -np.inf for kind in GROWTH_KINDS}
        return Drift("bounded", 0.0, size, evidence, round_off=round_off)
    time, errors, amplitude = times[-1] - times[0], errors / spread, False
    means, deviations = _blocks(errors, _power_of_two(errors.shape[1]))
    kind, rate, evidence = _verdict(means, deviations, errors.shape[1], time)
    count = _power_of_two(errors.shape[1] // OSCILLATION_SAMPLES)
    if count >= MIN_SAMPLES:
        _, deviations = _blocks(errors, count)
        grown = deviations[:, -count // 4 :].mean() > MIN_GROWTH * deviations[:, : count // 4].mean()
        other = _verdict(deviations, np.sqrt(0.5) * deviations, errors.shape[1], time)
        amplitude = bool(grown and GROWTH_KINDS.index(other[0]) > max(1, GROWTH_KINDS.index(kind)) and other[1] > 0)
        kind, rate, evidence = other if amplitude else (kind, rate, evidence)
    return Drift(kind, rate * (1.0 if kind in ("bounded", "exponential") else spread), size, evidence, amplitude)


def _power_of_two(count: int) -> int:
    return min(MAX_BLOCKS, 1 << int(np.log2(max(1, count))))


def _blocks(errors: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """(means, standard deviations) of each member over each of `count` blocks of time."""
    pieces = np.array_split(errors, count, axis=1)
    means, deviations = (np.stack([f(piece, axis=1) for piece in pieces], axis=1) for f in (np.mean, np.std))
    return means, deviations


@lru_cache
def _haar(n: int) -> tuple[Numbers, Numbers]:
    """(H, the scale of each row): the mean of a dyadic window's second half less that of its first, for all windows."""
    widths = n >> np.arange(int(np.log2(n)))
    rows = [np.kron(np.eye(n // width), np.repeat([-2 / width, 2 / width], width // 2)) for width in widths]
    return np.vstack(rows), np.repeat(widths, n // widths)


@lru_cache
def _noises(n: int) -> tuple[Noise, Noise, Noise]:
    """(bounded noise, random walks, both), each mixed with white noise."""
    lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    slow = [np.exp(-lag / memory) for memory in MEMORIES] + [np.cos(2 * np.pi * lag / period) for period in PERIODS]
    walk = np.minimum.outer(np.arange(n), np.arange(n)) + 0.5 - np.eye(n) / 6  # block means of a random walk
    white = _variances(np.eye(n))
    is_slow = np.array([*(memory > 1.0 for memory in MEMORIES), *(True for _ in PERIODS), True])
    shares = np.tile(SHARES, len(is_slow))
    mixed = np.repeat([_variances(process) for process in [*slow, walk]], len(SHARES), axis=0)
    variances = shares[:, None] * white + (1 - shares)[:, None] * mixed
    every = (np.vstack([white, variances]), np.append(1.0, shares), np.append(False, np.repeat(is_slow, len(SHARES))))
    return tuple(part[: -len(SHARES)] for part in every), tuple(part[-len(SHARES) :] for part in every), every


def _variances(covariance: Numbers) -> Numbers:
    """The variance of each Haar coefficient, averaged over those of one scale."""
    rows, scales = _haar(len(covariance))
    each = np.maximum(np.einsum("ai,ij,aj->a", rows, covariance, rows), 1e-12)
    return np.array([each[scales == scale].mean() for scale in scales])


def _fit(y: Numbers, floor: float, noise: Noise, trends: Numbers | None = None) -> tuple[float, float, int, float]:
    """The likeliest noise and trend (k, N): generalised least squares with at least the white noise `floor`.

    It is (log-likelihood, amplitude and number of the trend, D^2 a block of a random walk).
    """
    variances, shares, slow = noise
    weights, n = 1 / variances, len(y)
    rest = (weights @ (y * y))[:, None]
    amplitudes = np.zeros_like(rest)
    if trends is not None:
        amplitudes = (weights * y) @ trends.T / (weights @ (trends * trends).T)
        rest = rest - amplitudes * ((weights * y) @ trends.T)
    penalty = SLOW_NOISE_PENALTY * slow[:, None] * (trends is not None)
    tiny = np.finfo(float).tiny
    scale = np.maximum(np.maximum(rest / n, (floor / shares)[:, None]), tiny)
    likelihood = -0.5 * (np.log(variances).sum(axis=1)[:, None] + n * np.log(scale) + rest / scale) - penalty
    i, j = np.unravel_index(np.argmax(likelihood), likelihood.shape)
    return float(likelihood[i, j]), float(amplitudes[i, j]), int(j), float(scale[i, j] * (1 - shares[i]))


def _verdict(series: Numbers, deviations: Numbers, samples: int, time: float) -> tuple[str, float, dict[str, float]]:
    """(kind, rate, evidence) of the block means of all members together, with the deviations of samples from them."""
    count = series.shape[1]
    sizes = [len(block) for block in np.array_split(np.arange(samples), count)]
    edges = (np.cumsum([0, *sizes]) - 0.5) / (samples - 1)
    # The error of a mean if samples were independent: what varies less is no news.
    floors = np.median(deviations, axis=1) ** 2 * count / samples
    fits = [_fits(m, floor, edges) for m, floor in zip(series, floors, strict=True)]
    score = {kind: sum(f[kind][0] - PENALTY[kind] for f in fits) for kind in GROWTH_KINDS}
    kind = max(GROWTH_KINDS, key=score.__getitem__)
    rates = np.array([f[kind][1] for f in fits])
    if kind == "random walk":
        rate = np.sqrt(np.mean(rates) * count / abs(time))
    elif kind == "linear" and len(rates) > 1:
        rate = np.sqrt(np.mean(rates**2)) / abs(time)
    else:
        rate = np.median(rates) / time
    return kind, float(rate), {name: float(value - score[kind]) for name, value in score.items()}


def _fits(m: Numbers, floor: float, edges: Numbers) -> dict[str, tuple[float, float]]:
    """The log-likelihood of each kind for the block means of one member; D^2 a block, or the rate over the run."""
    rows, _ = _haar(len(m))
    y = rows @ m
    bounded, walks, every = _noises(len(m))
    walk, _, _, diffusion = _fit(y, floor, walks)
    line, slope, _, _ = _fit(y, floor, every, (rows @ (0.5 * (edges[1:] + edges[:-1])))[None])
    rates = RATES
    for width in (0.16, 0.02, 0.0025, 0.0003):  # from a coarse grid to finer ones around the best
        # The means of e^{rate x} over the blocks between the edges, one row a rate, scaled to at most about 1.
        powers = np.exp(np.multiply.outer(rates, edges) - np.maximum(rates, 0)[:, None])
        grown, _, best, _ = _fit(y, floor, every, np.diff(powers) / (np.diff(edges) * rates[:, None]) @ rows.T)
        rate = rates[best]
        rates = rate * np.linspace(1 - width, 1 + width, 17)
    return {
        "bounded": (_fit(y, floor, bounded)[0], 0.0),
        "random walk": (walk, diffusion),
        "linear": (line, slope),
        "exponential": (grown, float(rate)),
    }


ROUND_OFF_FLOOR = 1e-11
"""Relative: below it an error is that of the comparison."""


def slopes(steps: Sequence[float] | Numbers, errors: Sequence[float] | Numbers) -> Numbers:
    """The local orders d log(error)/d log(step)."""
    return np.diff(np.log(errors)) / np.diff(np.log(np.abs(steps)))


@dataclass(frozen=True)
class Convergence:
    """Errors of one method at several steps h, from large to small, by quantity.

    The quantities are "configuration", "velocity", "multipliers" and "energy". Global errors belong to t0 + duration,
    local ones to t0 + h after one step. `errors` (k, d) are signed: left-trivialised log(g_exact^-1 g) for
    configurations; `norms` (k,) are the largest entries over all compared times, NaN where the run failed.
    """

    local: bool
    steps: Numbers
    errors: dict[str, Numbers]
    norms: dict[str, Numbers]
    sizes: dict[str, float]
    failures: tuple[str, ...]
    finer: Numbers  # the steps of the runs that are compared with; 0 for the exact motion

    def __repr__(self) -> str:
        """The order of every quantity and the size of its error, a line each; why runs failed."""
        told, where = [], "of a step" if self.local else "at the end"
        for name in self.norms:
            order, scale = self.order(name), self.coefficient(name)
            words = "exact to round-off, or too few steps"
            if order is not None and scale is not None:
                size = ", ".join(format(c, ".3g") for c in scale)
                words = f"order {order:.2f}, error {where} about ({size}) h^{round(order)}"
            told.append(f"{name}: {words}")
        failed = zip(self.steps, self.failures, strict=True)
        return "\n".join(told + [f"step {step:g}: {reason}" for step, reason in failed if reason])

    def slopes(self, quantity: str) -> Numbers:
        """The local orders d log(error)/d log(h) between neighbouring steps, NaN where one of them says nothing."""
        norms = np.where(self._telling(quantity), self.norms[quantity], np.nan)
        return slopes(self.steps, norms)

    def order(self, quantity: str) -> float | None:
        """The slope over the two smallest steps whose errors are above round-off; None where the method is exact."""
        told = np.flatnonzero(self._telling(quantity))
        return float(slopes(self.steps[told], self.norms[quantity][told])[-1]) if len(told) > 1 else None

    def coefficient(self, quantity: str) -> Numbers | None:
        """c of error = c h^p + ... with p the order rounded to a whole number, extrapolated from the same two steps."""
        order, told = self.order(quantity), np.flatnonzero(self._telling(quantity))
        if order is None:
            return None
        p, (i, j) = round(order), told[-2:]
        scaled = [self.errors[quantity][k] / (self.steps[k] ** p - self.finer[k] ** p) for k in (i, j)]
        return np.asarray(scaled[1] + (scaled[1] - scaled[0]) * self.steps[j] / (self.steps[i] - self.steps[j]))

    def _telling(self, quantity: str) -> Numbers:
        return np.asarray(np.nan_to_num(self.norms[quantity]) > ROUND_OFF_FLOOR * max(1.0, self.sizes[quantity]))
