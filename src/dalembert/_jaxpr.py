"""Questions that a function's jaxpr answers without evaluating it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr

LOOPS = ("while", "scan")
MOVES = ("broadcast_in_dim", "concatenate", "convert_element_type", "neg", "reshape", "squeeze", "transpose")
"""What moves numbers about and leaves zeros zero."""
CALLS = ("jit", "pjit")


def depends(function: Callable, argument) -> bool:
    """Whether the value of `function` can depend on `argument` (False is a proof, True is not)."""
    closed = jax.make_jaxpr(function)(argument)
    return any(_reach(closed.jaxpr, [True] * len(closed.jaxpr.invars)))


def vanishes(function: Callable, argument) -> bool:
    """Whether the value of `function` is zero by its very form (True is a proof, False is not)."""
    closed = jax.make_jaxpr(function)(argument)
    return all(_nulls(closed.jaxpr, closed.consts, [False] * len(closed.jaxpr.invars)))


def _nulls(jaxpr: Jaxpr, consts: Sequence, given: list[bool]) -> list[bool]:
    """Which outputs are zero when the inputs marked in `given` are."""
    from jax.extend.core import Literal

    null = {var for var, value in zip(jaxpr.constvars, consts, strict=True) if not np.asarray(value).any()}
    null |= {var for var, mark in zip(jaxpr.invars, given, strict=True) if mark}

    def is_null(atom) -> bool:
        return not np.asarray(atom.val).any() if isinstance(atom, Literal) else atom in null

    for eqn in jaxpr.eqns:
        inputs = [is_null(atom) for atom in eqn.invars]
        outputs = [eqn.primitive.name in MOVES and all(inputs)] * len(eqn.outvars)
        if eqn.primitive.name in CALLS:
            inner = eqn.params["jaxpr"]
            outputs = _nulls(inner.jaxpr, inner.consts, inputs)
        null |= {var for var, zero in zip(eqn.outvars, outputs, strict=True) if zero}
    return [is_null(atom) for atom in jaxpr.outvars]


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
