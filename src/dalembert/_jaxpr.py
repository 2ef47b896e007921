"""Questions that a function's jaxpr answers without evaluating it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr

LOOPS = ("while", "scan")


def depends(function: Callable, argument) -> bool:
    """Whether the value of `function` can depend on `argument` (False is a proof, True is not)."""
    closed = jax.make_jaxpr(function)(argument)
    return any(_reach(closed.jaxpr, [True] * len(closed.jaxpr.invars)))


def _reach(jaxpr: Jaxpr, marked: list[bool]) -> list[bool]:
    """Which outputs the marked inputs reach."""
    from jax.extend.core import ClosedJaxpr, Jaxpr, Literal  # late, for few runs ask and the import takes its time

    reached = {var for var, mark in zip(jaxpr.invars, marked, strict=True) if mark}

    def touches(atom) -> bool:
        return not isinstance(atom, Literal) and atom in reached

    for eqn in jaxpr.eqns:
        inputs = [touches(atom) for atom in eqn.invars]
        inner = next((eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), None)
        inner = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        constant = eqn.primitive.name == "integer_pow" and eqn.params["y"] == 0
        outputs = [any(inputs) and not constant] * len(eqn.outvars)
        if isinstance(inner, Jaxpr) and len(inner.invars) == len(inputs) and eqn.primitive.name not in LOOPS:
            outputs = _reach(inner, inputs)
        reached |= {var for var, mark in zip(eqn.outvars, outputs, strict=True) if mark}
    return [touches(atom) for atom in jaxpr.outvars]
