"""Exact solutions of the models, against the equations of motion integrated by DOP853, and what is special
about them.
"""

from __future__ import annotations

import numpy as np
import pytest

import dalembert as da

TIMES = {"step": 0.5, "steps": 6}


def test_suslov():
    inertia = [[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]]
    system = da.models.suslov(inertia)
    run = da.simulate(system, da.integrators.Reference(), system.state(momentum=[3.0, -2.0]), **TIMES).check()
    exact = da.models.exact_momentum(inertia, [3.0, -2.0], np.asarray(run.t))
    np.testing.assert_allclose(run.momentum, exact, atol=1e-10)
    np.testing.assert_allclose(run.energy(), run.energy()[0], rtol=1e-12)


def test_suslov_on_its_line_of_equilibria():
    inertia = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]
    system = da.models.suslov(inertia)
    still = system.inertia @ np.array([-0.5, 1.0, 0.0])  # <I_3, w> = 0: no torque
    exact = da.models.exact_momentum(inertia, still[:2], np.array([0.0, 3.0]))
    np.testing.assert_allclose(exact, [still, still], atol=1e-14)
    rate, _ = system.acceleration(0.0, np.eye(3), np.array([-0.5, 1.0, 0.0]))
    assert np.abs(rate).max() < 1e-14


@pytest.mark.parametrize("a, b, velocity", [(0.3, 0.2, (0.5, -1.0)), (-0.4, 0.1, (-0.8, 0.3)), (0.0, 0.2, (0.5, 1.0))])
def test_sleigh(a, b, velocity):
    system = da.models.chaplygin_sleigh(1.4, 0.8, a, b)
    run = da.simulate(system, da.integrators.Reference(), system.state(xi=[*velocity, 0.0]), **TIMES).check()
    speeds, pose = da.models.exact_sleigh(np.asarray(run.t), velocity, mass=1.4, inertia=0.8, a=a, b=b)
    np.testing.assert_allclose(run.xi[:, :2], speeds, atol=1e-11)
    np.testing.assert_allclose(run.angles[:, 0], pose[:, 0], atol=1e-11)
    np.testing.assert_allclose(run.g[:, :2, 2], pose[:, 1:], atol=1e-11)


def test_total_turning_is_the_limit_of_the_exact_angle():
    _, late = da.models.exact_sleigh(200.0, [0.5, 0.0], mass=1.4, inertia=0.8, a=0.3)
    assert 2 * late[0, 0] == pytest.approx(da.models.total_turning(1.4, 0.8, 0.3), rel=1e-9)


@pytest.mark.parametrize("velocity", [(1.1, 0.7, 0.55), (1.1, 0.0, 0.55)])
def test_particle(velocity):
    system = da.models.nonholonomic_particle()
    state = system.state([0.3, 0.5, -0.2], velocity)
    run = da.simulate(system, da.integrators.Reference(), state, **TIMES).check()
    places, speeds = da.models.exact_particle(np.asarray(run.t), [0.3, 0.5, -0.2], velocity)
    np.testing.assert_allclose(run.g, places, atol=1e-11)
    np.testing.assert_allclose(run.xi, speeds, atol=1e-11)


@pytest.mark.parametrize("turn", [0.8, 0.0])
def test_disk(turn):
    system = da.models.vertical_disk(1.3, 0.5, 0.25, 0.7)
    state = system.state(xi=[turn, 0.7, 0.0, 1.0])
    run = da.simulate(system, da.integrators.Reference(), state, **TIMES).check()
    exact = da.models.exact_disk(np.asarray(run.t), state.xi, radius=0.7)
    np.testing.assert_allclose(run.g[0][:, :2, 2], exact[:, 1:3], atol=1e-11)
    np.testing.assert_allclose(run.angles, exact[:, [0, 3]], atol=1e-11)
    np.testing.assert_allclose(run.xi, np.broadcast_to(state.xi, run.xi.shape), atol=1e-12)


@pytest.mark.heavy
def test_the_disk_is_solved_exactly_by_the_exponential():
    """Both speeds are constant: from its redefined nodes the method with the exponential is exact."""
    system = da.models.vertical_disk(1.3, 0.5, 0.25, 0.7)
    state = system.state(xi=[0.8, 0.7, 0.0, 1.0])
    run = da.simulate(system, da.LagrangeDAlembert(da.Exponential(), 0.5, "velocity"), state, **TIMES).check()
    exact = da.models.exact_disk(np.asarray(run.t), state.xi, radius=0.7)
    np.testing.assert_allclose(run.g[0][:, :2, 2], exact[:, 1:3], atol=1e-13)
    np.testing.assert_allclose(run.angles, exact[:, [0, 3]], atol=1e-13)


@pytest.mark.parametrize("turn", [1.3, 0.0])
def test_knife_edge(turn):
    system = da.models.knife_edge(1.2, 0.7, 0.3, 9.81)
    run = da.simulate(system, da.integrators.Reference(), system.state(xi=[turn, 0.8, 0.0]), **TIMES).check()
    exact = da.models.exact_knife_edge(np.asarray(run.t), [turn, 0.8], slope=0.3)
    np.testing.assert_allclose(run.angles[:, 0], exact[:, 0], atol=1e-11)
    np.testing.assert_allclose(run.g[:, :2, 2], exact[:, 1:3], atol=1e-10)
    np.testing.assert_allclose(run.xi[:, 1], exact[:, 3], atol=1e-11)
    np.testing.assert_allclose(run.energy(), run.energy()[0], atol=1e-10)


def test_so_3_by_mass_is_suslov_by_inertia():
    """suslov_n on SO(3) is `suslov` with the hat map's e3."""
    mass = np.array([[1.1, 0.1, 0.2], [0.1, 0.8, -0.3], [0.2, -0.3, 0.6]])
    by_mass, inertia = da.models.suslov_n(mass), np.trace(mass) * np.eye(3) - mass
    np.testing.assert_allclose(by_mass.inertia, inertia, atol=1e-15)
    np.testing.assert_allclose(by_mass.subspace, da.models.suslov(inertia).subspace)
    np.testing.assert_allclose(by_mass.mass_matrix(), mass, atol=1e-15)
