"""When a run steps: how many steps there are, from where, and what controls are held over each of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import InvalidInput, UnknownName
from .integrators import Integrator

BACKENDS = ("auto", "llvm", "cuda", "xla")


MOST = 2**53


def count_steps(step, steps, t_end, t0) -> int:
    """The number of steps, from `steps` or from `t_end` (the last state at or before it)."""
    if not traced(step) and (not np.isfinite(step) or step == 0):
        raise InvalidInput(f"step is {step}; allowed: any finite number but 0 (negative steps go back in time)")
    if (steps is None) == (t_end is None):
        raise InvalidInput("give exactly one of steps and t_end")
    if steps is not None and whole("steps", steps) > MOST:
        raise InvalidInput(f"steps is {steps}; allowed: at most {MOST}, for steps are counted in floating point")
    if steps is not None:
        return int(steps)
    ratio = (t_end - t0) / step
    if not np.isfinite(ratio) or ratio < 1 - 1e-9:
        raise InvalidInput(f"t_end = {t_end} is not at least one step of {step} away from the start at t = {t0}")
    return int(np.floor(ratio * (1 + 1e-12) + 1e-9))


def whole(name: str, value) -> int:
    """A whole number of at least 1, or a clear error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} is {value!r}; allowed: a whole number of at least 1")
    return int(value)


def held_controls(controls, t0, step, steps: int) -> Any:
    """Controls as arrays with one row a step: u_k = u(t0 + (k + 1/2) h) of a function of time."""
    if controls is None:
        return None
    if callable(controls):
        return jax.vmap(controls)(t0 + step * (jnp.arange(steps) + 0.5))
    held = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), controls)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(held)}
    if sizes != {steps}:
        raise InvalidInput(f"controls have {sorted(sizes)} rows; allowed: one row a step, that is {steps}")
    return held


def require_known_times(integrator: Integrator, controls) -> None:
    """Refuse controls that are functions of time where the times of the steps are not known before the run."""
    if integrator.clock and callable(controls):
        raise InvalidInput(
            f"the times of the steps of {integrator.name} are not known before the run: give controls as an array with one row a step, "
            "or a force that depends on time"
        )


def first_row(controls) -> Any:
    """The controls of the first step."""
    return jax.tree.map(lambda leaf: leaf[0], controls)


def require_backend(backend: str) -> None:
    """Refuse the name of a backend that there is not."""
    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)


def traced(tree) -> bool:
    """Whether a JAX transformation looks at any leaf."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
