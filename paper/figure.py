"""Draw the figure of the paper: `python paper/figure.py [PICTURE]`, or `make paper`. Every curve is computed here."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import dalembert as da
from dalembert.plotting.runs import draw_motion
from dalembert.plotting.style import COLOURS, DASHES, TIME, label_ends, save, sheet

BODY_METHODS = {
    "Moser-Veselov": da.DiscreteMoserVeselov(),
    "splitting": da.integrators.LiePoissonSplitting(),
    "Runge-Kutta": da.RungeKutta(),
}


def sleigh_run() -> da.Trajectory:
    """A Chaplygin sleigh that is pushed backwards and turns round."""
    sleigh = da.models.chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.0)
    state = sleigh.state(xi=[0.05, -1.0, 0.0])
    return da.simulate(sleigh, da.EulerPoincareSuslov(), state, step=0.02, steps=1500).check()


def body_errors() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Time and the largest energy error so far, relative to the energy, of a free rigid body by each method."""
    body = da.models.rigid_body([0.6, 0.8, 1.0])
    state, found = body.state(momentum=[1.8, 0.4, -0.9]), {}
    for name, method in BODY_METHODS.items():
        run = da.simulate(body, method, state, step=0.1, steps=20_000, save_every=20).check()
        error = np.abs(np.asarray(run.energy_error())) / float(np.asarray(run.energy())[0])
        found[name] = np.asarray(run.t), np.maximum.accumulate(error)
    return found


def particle_energies() -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """Time and energy, relative to that of the start, of the harmonic nonholonomic particle at three nodes."""
    particle = da.models.nonholonomic_particle("harmonic")
    state, found = particle.state([0.3, 0.5, -0.2], xi=[1.1, 0.7, 0.55]), {}
    for node in (0.0, 0.5, 1.0):
        method = da.LagrangeDAlembert(da.Cayley(), node=node)
        run = da.simulate(particle, method, state, step=0.1, steps=1000).check()
        assert np.max(np.asarray(run.constraint_residual())) < 1e-12, "every node stays on the constraint"
        energy = np.asarray(run.energy())
        found[node] = np.asarray(run.t), energy / energy[0]
    return found


@da.plotting.styled
def draw(path: Path) -> None:
    """Draw the three panels."""
    figure, (left, middle, right) = sheet(1, 3, size=(11.0, 3.4))
    cell = left.get_subplotspec()
    left.remove()
    draw_motion(figure, cell, {"": sleigh_run()})
    figure.axes[-1].set(title="Chaplygin sleigh, the body to scale")
    for (name, (t, error)), colour, dash in zip(body_errors().items(), COLOURS, DASHES, strict=False):
        middle.plot(t[1:], np.maximum(error[1:], 1e-17), color=colour, linestyle=dash, label=name)
    middle.set(xlabel=TIME, ylabel=r"$\max |E - E_0|/E_0$", title="Free rigid body, $h = 0.1$ s", yscale="log")
    for (node, (t, energy)), colour, dash in zip(particle_energies().items(), COLOURS, DASHES, strict=False):
        right.plot(t, energy, color=colour, linestyle=dash, label=f"node {node:g}")
    right.set(xlabel=TIME, ylabel="$E/E_0$", title="Nonholonomic particle, $h = 0.1$ s", ylim=(0.0, None))
    figure.draw_without_rendering()  # the places of labels follow from the sizes of the axes
    for axes in (middle, right):
        label_ends(axes, 8.0)
    save(figure, path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("figure.png"))
