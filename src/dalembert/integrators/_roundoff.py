"""What keeps round-off from adding up over many steps: without these it grows in proportion to their number, not to its root."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def resized(rho: Array, square: Array) -> Array:
    """rho with |rho|^2 = `square`, which it has but for the round-off of frames: that would add up to a linear drift."""
    own = rho @ rho
    return rho + rho * (0.5 * (square - own) / jnp.where(own > 0.0, own, 1.0))


def added(total: Array, part: Array, lost: Array) -> tuple[Array, Array]:
    """(total + part, what that sum lost), with what the last one lost: compensated summation (Kahan 1965)."""
    part = part - lost
    new = total + part
    return new, (new - total) - part
