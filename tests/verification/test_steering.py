"""Closed loops and gaits: a car, a unicycle and a snakeboard go where they are steered."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import sampled
from scipy.integrate import solve_ivp

import dalembert as da

models = da.models
MIDPOINT = da.LagrangeDAlembert(da.Cayley(), node=0.5)


def wave(x):
    """y = sin(x), followed to the right."""
    return x[1] - jnp.sin(x[0])


def ring(x):
    """The circle of radius 2 about the origin, followed counterclockwise."""
    return 4.0 - x @ x


def distances(path, trajectory):
    """F/|F'| along the run."""
    pose = trajectory.g[0] if isinstance(trajectory.g, tuple) else trajectory.g
    values, slopes = jax.vmap(jax.value_and_grad(path))(jnp.asarray(pose[:, :2, 2]))
    return np.abs(values / jnp.linalg.norm(slopes, axis=1))


def drive(loop, start, path, steps, step=0.02):
    """A closed loop from the pose `start` at rest in shape; the distances from the path."""
    group = loop.group
    g = group.element([start, *([0.0] * (len(group.factors) - 1))]) if len(group.factors) > 1 else group.element(start)
    state = loop.state(g, loop.project(g, jnp.zeros(group.dim).at[1].set(0.3)))
    trajectory = da.simulate(loop, MIDPOINT, state, step=step, steps=steps).check()
    return trajectory, distances(path, trajectory)


@pytest.mark.heavy
def test_a_car_comes_onto_a_winding_path_and_stays_on_it():
    trajectory, off = drive(
        models.car_on_path(models.car(1.4, 0.6, 1.2, 0.5, 0.2), wave, quickness=15.0), [0.4, 0.0, 0.8], wave, 800
    )
    assert off[0] > 0.5 and off[400:].max() < 5e-3
    np.testing.assert_allclose(trajectory.xi[200:, 1], 1.0, atol=1e-3)
    assert float(trajectory.g[0][-1, 0, 2]) > 10.0  # it went along


@pytest.mark.parametrize(
    "path, start, tolerance", sampled([(ring, [0.3, 2.6, 0.0], 1e-4), (wave, [0.4, 0.0, 0.8], 1e-4)])
)
def test_a_unicycle_follows_paths(path, start, tolerance):
    _, off = drive(models.unicycle_on_path(models.unicycle(1.4, 0.6, 0.3), path), start, path, 1500)
    assert off[0] > 0.5 and off[1000:].max() < tolerance


@pytest.mark.heavy
def test_a_car_on_a_ring_loses_its_distance_entirely_and_on_a_wave_up_to_the_lag_of_its_steering():
    car = models.car(1.4, 0.6, 1.2, 0.5, 0.2)
    _, off = drive(models.car_on_path(car, ring), [0.3, 2.6, 0.0], ring, 3000, 0.01)
    assert off[-1] < 1e-9
    slow, quick = (
        drive(models.car_on_path(car, wave, quickness=q), [0.4, 0.0, 0.8], wave, 2400, 0.01)[1][1400:].max()
        for q in (10.0, 20.0)
    )
    assert np.log2(slow / quick) == pytest.approx(2.0, abs=0.3)


@pytest.mark.heavy
@pytest.mark.parametrize("path, start, tolerance", [(ring, [1.6, 2.2, 0.0], 1e-5), (wave, [0.3, 0.0, 0.3], 2e-3)])
def test_a_snakeboard_pumps_itself_along_paths(path, start, tolerance):
    """It has no motor and starts almost at rest: the rotor drives it wherever the path bends."""
    trajectory, off = drive(models.snakeboard_on_path(models.snakeboard(), path), start, path, 3000)
    assert off[0] > 0.15 and off[2000:].max() < tolerance
    assert np.abs(trajectory.xi[2000:, 1] - 0.5).max() < 0.1


def swing(rotor_rate, wheel_rate, steps, step=0.01):
    """A snakeboard by a gait from rest, and its gait."""
    loop = models.snakeboard_gait(
        models.snakeboard(), rotor=0.7, wheels=0.7, rotor_rate=rotor_rate, wheel_rate=wheel_rate
    )
    state = loop.state(xi=[0.0, 0.0, 0.0, 0.7 * rotor_rate, 0.7 * wheel_rate])
    return da.simulate(loop, MIDPOINT, state, step=step, steps=steps).check(), loop.policy


def by_hand(gait, times):
    """(theta, x, y) of the board if its shape swings exactly: the momentum equation of Bloch et al. 1996 and the
    connection.
    """
    p = {key: float(value) for key, value in gait.p.items()}
    turning, driving = p["inertia"] + 2 * p["wheels"], p["mass"] * p["length"] ** 2
    A, B, ra, rb = (float(value) for value in (gait.rotor, gait.wheels, gait.rotor_rate, gait.wheel_rate))

    def field(t, y):
        b, db, dda = B * np.sin(rb * t), B * rb * np.cos(rb * t), -A * ra**2 * np.sin(ra * t)
        inertia = (turning + p["rotor"]) * np.sin(b) ** 2 + driving * np.cos(b) ** 2
        change = (turning + p["rotor"] - driving) * np.sin(b) * np.cos(b) * db * y[3] + p["rotor"] * np.sin(b) * dda
        ahead = p["length"] * y[3] * np.cos(b)
        return [y[3] * np.sin(b), ahead * np.cos(y[0]), ahead * np.sin(y[0]), -change / inertia]

    return solve_ivp(field, (0, times[-1]), np.zeros(4), "DOP853", times, rtol=1e-12, atol=1e-12).y[:3].T


def test_a_snakeboard_by_a_driving_gait():
    """The shape follows its gait, and the board goes where the momentum equation says."""
    trajectory, gait = swing(3.0, 3.0, 400)
    assert np.abs(trajectory.angles[:, 1:] - jax.vmap(gait.shape)(jnp.asarray(trajectory.t))).max() < 2e-4
    pose = np.column_stack([trajectory.angles[:, 0], trajectory.g[0][:, :2, 2]])
    assert np.abs(pose - by_hand(gait, np.asarray(trajectory.t))).max() < 2e-3
    assert pose[-1, 1] > 0.8 and abs(pose[-1, 2]) < 0.2


@pytest.mark.heavy
def test_gaits_turn_and_park_a_snakeboard():
    turned, _ = swing(6.0, 3.0, 2000)
    parked, _ = swing(6.0, 4.0, 2000)
    assert turned.angles[-1, 0] > 6.0 and np.abs(turned.g[0][:, :2, 2]).max() < 0.2
    assert parked.g[0][-1, 1, 2] > 0.6 and abs(parked.g[0][-1, 0, 2]) < 0.3 and abs(parked.angles[-1, 0]) < 0.5


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.heavy
def test_the_examples_steer(capsys):
    off = runpy.run_path(str(EXAMPLES / "car.py"))["main"]()
    assert off[0] > 0.5 and off[400:].max() < 5e-3
    ridden = runpy.run_path(str(EXAMPLES / "snakeboard.py"))["main"]()
    assert abs(np.hypot(*ridden.g[0][-1, :2, 2]) - 1) < 1e-9
    assert "park sideways" in capsys.readouterr().out
