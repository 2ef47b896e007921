"""What a fit says: estimates with their errors, how good it is, and what the data cannot tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import UnknownName
from ..simulation import to_json

Numbers = np.ndarray[Any, Any]
SINGULAR = 1e-8  # singular values of the scaled Jacobian, relative to the largest, that count as 0
SHARE = 1e-3  # of a combination, from which on an unknown belongs to it
POOR = 1.0  # a relative error from which on a combination is not determined


class Combination(NamedTuple):
    """Changes of unknowns, relative to their size, that (nearly) no measurement shows; the error along them."""

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

    The covariance is H^-1 M H^-1 with H = J^T J (and M = H unless given), on the linear space where the gaps between
    shots stay closed. `fixed` unknowns are at a bound and have no error. J is taken in units of `scale`.
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
    """Values with their errors. `values`, `errors` and `covariance` are in the order of `names`.

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
        rows = zip(self.names, to_json(self.values), to_json(self.errors), strict=True)
        return {
            "unknowns": {name: {"estimate": value, "error": error} for name, value, error in rows},
            "correlation": to_json(self.correlation),
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
