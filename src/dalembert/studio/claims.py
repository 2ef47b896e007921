"""What a method claims (`integrators.claims`), beside what this run shows of it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ..integrators import Integrator
from ..integrators.base import EXACT, MEANINGS, Claims
from ..system import MechanicalSystem
from .seen import Seen

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


def judged(claims: Claims, seen: Seen, peaks: dict[str, float | None], momentum: float | None) -> list[dict[str, Any]]:
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
