"""Errors that say what was given, what is allowed and what to do; the version, and what else made a file."""

from __future__ import annotations

import datetime
import difflib
import platform
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np


class InvalidInput(ValueError):
    """Raised for input that is refused before anything runs; `place` is its section of a configuration, if any."""

    place = ""


class UnknownName(InvalidInput):
    """Raised for a name that is not known; the message has the nearest one that is."""

    def __init__(self, kind: str, given: object, allowed: Iterable[str]):
        allowed = sorted(allowed)
        shown = str(given)[:60] + "..." * (len(str(given)) > 60)
        near = difflib.get_close_matches(shown, allowed, n=1, cutoff=0.6 if len(shown) > 3 else 0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        super().__init__(f"unknown {kind} '{shown}'.{hint} Allowed: {', '.join(allowed) or 'none at all'}.")


def refuse_traced(what: str, given: object) -> None:
    """Refuse a number that JAX traces where a program is compiled for its value."""
    if isinstance(given, jax.core.Tracer):
        raise InvalidInput(
            f"{what} needs a value that is known, but JAX traces it (jit, grad, vmap): a program is compiled for each "
            "value (jax.jit(..., static_argnames=...) leaves an argument as it is)"
        )


def require_name(kind: str, given: object, allowed: Collection[object]) -> None:
    """Refuse what is none of these names or whole numbers."""
    refuse_traced(kind, given)
    if isinstance(given, bool) or not isinstance(given, str | int) or given not in allowed:
        raise UnknownName(kind, given, map(str, allowed))


def spell(name: str, known: Iterable[str]) -> str:
    """The known name that this one is, where _ stands for a blank; itself where there is none.

    Files of version 0.1 number every name on a product by its factor: x_0 may be the x that only one factor has.
    """
    by_plain, plain = {each.replace(" ", "_"): each for each in known}, name.replace(" ", "_")
    numbered = re.fullmatch(r"((?:velocity[._]|configuration\.|along_)?(?:theta|[xyz]|[qvw]\d*))_\d+", plain)
    found = by_plain.get(plain, by_plain.get(numbered[1] if numbered else plain, name))
    return name if name in by_plain.values() else found


def match_names(kind: str, given: Mapping[Any, Any], known: Collection[str]) -> dict[str, Any]:
    """What was given by names, under the known ones; _ may stand for a blank in them."""
    found = {spell(str(name), known): value for name, value in given.items()}
    for name in found:
        require_name(kind, name, known)
    return found


class OffConstraint(InvalidInput):
    """Raised for an initial velocity that violates the constraint A xi = b."""


class IndefiniteMetric(UserWarning):
    """Warns of a mass matrix L_xi_xi that is regular on D but not positive: kinetic energy that can be negative."""


class NotRead(UserWarning):
    """Warns of what a file of another program (such as a URDF) says and we do not read."""


class NumericalFailure(RuntimeError):
    """Raised by `run.check()` for a run that failed, with the step and the reason; never inside a run."""


class WriteFailure(OSError):
    """Raised for a file that could not be written; what was there before is unchanged."""


class InconsistentDiscretisation(InvalidInput):
    """Raised for a pair (L_d, D_d) or a difference map that violates one of its axioms."""


__version__ = "0.2.0"


def stamp_origin() -> dict[str, str]:
    """Versions, machine and time."""
    return {
        "dalembert": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
