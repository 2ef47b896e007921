"""Claims against figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dalembert.errors import InvalidInput
from dalembert.integrators import MEANINGS, Claims

from .cases import cases
from .measure import slope
from .store import Figures
from .variants import variants

TOLERANCE = {
    "symmetric": 1e-11,
    "reversible": 1e-11,
    "constraint": 1e-12,
    "group": 1e-13,
    "energy": 1e-11,
    "momentum": 1e-11,
    "symplectic": 1e-10,
}
LONG_ENERGY = 1e-9  # over a million steps, round-off included
SLACK = 0.35  # how much a measured order may be below the one claimed


@dataclass(frozen=True)
class Verdict:
    """One claim, or what is not claimed, on one system: `met` is None where nothing is claimed or nothing could be told."""

    label: str
    case: str
    name: str
    claimed: float | bool | None
    figure: float | None
    met: bool | None

    @property
    def holds(self) -> bool | None:
        """Whether the property holds by its figure, claimed or not; None where there is none."""
        if self.name == "order" or self.figure is None:
            return None
        return self.figure <= TOLERANCE[self.name]


@cache
def claims_of(label: str, case: str) -> Claims | None:
    """What a method claims on a system; None where it refuses it."""
    try:
        return variants()[label].integrator.claims(cases()[case].system)
    except InvalidInput:
        return None


def verdicts(figures: Mapping[str, Figures]) -> list[Verdict]:
    """Of all pairs that were measured, a verdict for each property."""
    found = []
    for key, values in figures.items():
        what, label, case = key.split(" | ")
        claims = (
            claims_of(label, case) if what == "pair" and "refused" not in values and "failed" not in values else None
        )
        if claims is not None:
            found += judge(label, case, claims, values)
    return found


def judge(label: str, case: str, claims: Claims, values: Figures) -> list[Verdict]:
    """The verdicts on one pair."""
    orders = [_order(label, case, claims, values)]
    others = []
    for name in MEANINGS:
        claimed, figure = getattr(claims, name), _number(values[name])
        others.append(Verdict(label, case, name, claimed, figure, _met(claimed, figure, TOLERANCE[name])))
    return orders + others


def _number(value: float | str | None) -> float | None:
    """A figure; what is not finite is a word in the store."""
    return None if value is None else float(value)


def _met(claimed: bool, figure: float | None, tolerance: float) -> bool | None:
    return None if not claimed or figure is None else figure <= tolerance


def _order(label: str, case: str, claims: Claims, values: Figures) -> Verdict:
    """The order of the state: of the larger of both errors. Where velocities claim another, each is judged for itself."""
    parts = values["order"]
    if claims.velocity_order is None:
        measured = slope([_worse(*pair) for pair in zip(parts["configuration"], parts["velocity"], strict=True)])
        return Verdict(label, case, "order", claims.order, measured, _reached(measured, claims.order))
    wanted = {"configuration": claims.order, "velocity": claims.velocity_order}
    found = {part: slope(parts[part]) for part in wanted}
    judged = [_reached(found[part], wanted[part]) for part in wanted]
    met = False if False in judged else None if None in judged else True
    return Verdict(label, case, "order", claims.order, found["configuration"], met)


def _worse(a: float | str | None, b: float | str | None) -> float | None:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else None


def _reached(measured: float | None, order: float | None) -> bool | None:
    return None if order is None or measured is None else measured >= order - SLACK
