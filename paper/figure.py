"""Draw the figure of the paper: `python paper/figure.py [PICTURE]`, or `make paper`. Every curve is computed here."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

import dalembert as da

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BODY_METHODS = {
    "discrete Moser-Veselov (exact)": da.DiscreteMoserVeselov(),
    "Lie-Poisson splitting": da.integrators.LiePoissonSplitting(),
    "Runge-Kutta 4": da.RungeKutta(),
}


def sleigh_path() -> np.ndarray:
    """The contact point (x, y) of a Chaplygin sleigh that is pushed backwards and turns round."""
    sleigh = da.models.chaplygin_sleigh(mass=1.0, inertia=1.0, a=0.3, b=0.0)
    run = da.simulate(sleigh, da.EulerPoincareSuslov(), sleigh.state(xi=[0.05, -1.0, 0.0]), step=0.02, steps=1500)
    return np.asarray(run.check().g)[:, :2, 2]


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


def draw(path: Path) -> None:
    """Draw the three panels."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="constrained")
    left.plot(*sleigh_path().T, color="#20639b")
    left.set(xlabel="$x$ / m", ylabel="$y$ / m", title="Chaplygin sleigh", aspect="equal")
    for name, (t, error) in body_errors().items():
        middle.plot(t[1:], np.maximum(error[1:], 1e-17), label=name)
    middle.set(xlabel="$t$ / s", ylabel=r"$\max |E - E_0| / E_0$", title="free rigid body, $h = 0.1$ s", yscale="log")
    middle.legend(fontsize=7)
    for node, (t, energy) in particle_energies().items():
        right.plot(t, energy, label=f"node {node:g}")
    right.set(xlabel="$t$ / s", ylabel="$E / E_0$", title="nonholonomic particle, $h = 0.1$ s", yscale="log")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("figure.png"))
