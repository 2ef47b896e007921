"""Surfaces in space, and momenta on their locus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput
from ..integrators import EulerPoincareSuslov
from ..invariant import InvariantSystem
from .style import COLOURS, headline, save, space, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIGHT_FROM = np.array([0.48, -0.36, 0.8])


class Patch(NamedTuple):
    """A parametrised surface (i, j, 3) with its looks."""

    surface: np.ndarray
    colour: str = COLOURS[5]
    alpha: float = 0.8


def momentum_surface(
    system: InvariantSystem, integrator: EulerPoincareSuslov, step: float, grid: np.ndarray
) -> np.ndarray:
    """M = F l_d(tau(h B x)) at increments x of a grid (..., 2): the discrete momentum locus, shape (..., 3)."""
    if system.group.dim != 3 or system.subspace.shape[1] != 2:
        raise InvalidInput(
            f"a momentum locus is drawn in three dimensions: the group must have dimension 3 and d dimension 2; "
            f"given {system.group} with d of dimension {system.subspace.shape[1]}"
        )
    flat = jnp.asarray(grid, float).reshape(-1, 2)
    return np.asarray(_momenta(integrator, system, step, flat)).reshape(*grid.shape[:-1], 3)


@partial(jax.jit, static_argnums=0)
def _momenta(integrator: EulerPoincareSuslov, system: InvariantSystem, step, increments) -> jax.Array:
    return jax.vmap(lambda x: integrator.legendre(system, system.subspace @ x, step))(increments)


def draw_surfaces(axes: Any, patches: Sequence[Patch], *, lines: int = 0) -> None:
    """Parametrised surfaces (i, j, 3) in one collection, so that faces of different surfaces hide each other as they should.

    `lines` > 0 draws that many coordinate lines of each direction on the first one.
    """
    from matplotlib.colors import to_rgb
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    points = np.concatenate([patch.surface.reshape(-1, 3) for patch in patches])
    low, high = points.min(axis=0), points.max(axis=0)
    faces, colours = [], []
    for patch in patches:
        a = patch.surface
        quads = np.stack([a[:-1, :-1], a[1:, :-1], a[1:, 1:], a[:-1, 1:]], axis=2).reshape(-1, 4, 3)
        normals = np.cross(quads[:, 2] - quads[:, 0], quads[:, 3] - quads[:, 1]) * (high - low)
        size = np.maximum(np.linalg.norm(normals, axis=1), 1e-300)
        light = 0.55 + 0.45 * np.abs(normals @ LIGHT_FROM) / size
        faces.append(quads)
        colours.append(
            np.column_stack([np.asarray(to_rgb(patch.colour)) * light[:, None], np.full(len(quads), patch.alpha)])
        )
    axes.add_collection3d(
        Poly3DCollection(np.concatenate(faces), facecolors=np.concatenate(colours), edgecolors="none")
    )
    axes.auto_scale_xyz(*np.stack([low, high], axis=1))
    if lines:
        first = np.moveaxis(patches[0].surface, -1, 0)
        axes.plot_wireframe(*first, color="black", linewidth=0.25, alpha=0.45, rcount=lines, ccount=lines)


@styled
def plot_momentum(trajectory: Any, path: str | Path | None = None) -> Figure:
    """The momenta of an Euler-Poincare-Suslov run on their locus, beside the plane I(d) of the continuous motion."""
    from matplotlib.figure import Figure

    system, step = trajectory.system, float(trajectory.step)
    momenta = np.asarray(trajectory.momentum)
    reach = 1.15 * np.abs(np.asarray(trajectory.increment) @ np.linalg.pinv(np.asarray(system.subspace)).T).max(axis=0)
    grid = np.stack(
        np.meshgrid(*(np.linspace(-r, r, 61) for r in np.maximum(reach, 0.3 * reach.max())), indexing="ij"), -1
    )
    surface = momentum_surface(system, trajectory.integrator, step, grid)
    plane = grid @ np.asarray(system.inertia @ system.subspace).T
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    axes = space(figure, labels=("$M_1$", "$M_2$", "$M_3$"), elev=10, azim=-120)
    axes.computed_zorder = False  # the momenta lie on the surface: they are drawn on top
    draw_surfaces(axes, [Patch(surface), Patch(plane, COLOURS[4], 0.4)], lines=20)
    axes.plot(*momenta.T, "o-", color=COLOURS[1], markersize=2.5, linewidth=0.9, zorder=10, label="momenta of the run")
    axes.legend(loc="upper left")
    headline(figure, f"Momentum on its locus, step {step:g}")
    return save(figure, path)
