"""Poincare sections: the states at which a motion crosses a surface, as many as are wanted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import InvalidInput
from ..events import Event
from ..integrators import Integrator
from ..records import Crossings, joined
from ..run import Run
from ..simulate import simulate
from ..system import MechanicalSystem, State

PIECE = 4096
"""Steps of the first piece; later ones are as long as the crossings so far say."""


def poincare_section(
    system: MechanicalSystem,
    integrator: Integrator,
    state: State,
    event: Event,
    *,
    step: float,
    crossings: int = 1000,
    most: int = 10_000_000,
) -> Crossings:
    """The first `crossings` states at which the motion from `state` crosses the event, each located to round-off.

    The run is as long as it takes: fewer come back only if it fails, or has not crossed often enough after `most` steps. Give the
    event a direction, or the section has both of its sides.
    """
    if isinstance(crossings, bool) or not isinstance(crossings, int | np.integer) or crossings < 1:
        raise InvalidInput(f"crossings is {crossings!r}; allowed: a whole number of at least 1")
    watched = replace(event, stop=False, name=event.name or "section")
    at: State | Run = state
    found: dict[str, Crossings] = {}
    done, piece = 0, PIECE
    while done < most:
        piece = min(piece, most - done)
        run = simulate(system, integrator, at, step=step, steps=piece, save_every=piece, events=[watched])
        found = joined(found, run.events)
        done, at, count = done + piece, run, len(found[watched.name])
        if count >= crossings or run.status != "ok" or run.interrupted:
            break
        piece = int(min(4 * piece, max(PIECE, 1.1 * done * (crossings - count) / max(count, 1))))
    return found[watched.name].kept(slice(crossings))
