"""Reversible step-size control: the order of its base in eps, steps back over the same points, and energy that does not
drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, gap, sampled

import dalembert as da
from dalembert.integrators.composition import PACES


def _lagrangian(t, q, v, p):
    return 0.5 * v @ v - 0.5 * q[0] ** 2 - 0.5 * p**2 / q[1] ** 2 + 1 / q[1]


def _constraint(t, q, p):
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


@cache
def approach():
    """z' = y x' with a spring in x and the radial motion of a Kepler orbit in y, from 0.05 to 2: its time scale changes
    by 250.

    y keeps its own energy and drives x as a transmission does, so the motion is regular (Modin, Verdier 2020).
    """
    system = da.System(da.Euclidean(3), _lagrangian, _constraint, parameters=jnp.array(0.3))
    q = jnp.array([0.5, 1.95, 0.0])
    return system, system.state(q, system.project(q, [0.3, 0.1, 0.0]))


def period(system, t, q, v):
    """The time scale y^3/2 of the orbit."""
    return q[1] ** 1.5


@dataclass(frozen=True)
class Naive(da.Adaptive):
    """h_n = eps Q(z_n)/Q(z_0): the same steps but for the symmetry. `slope` keeps Q(z_0)."""

    name = "naive"

    def step(self, system, carry, h, u=None):
        size = h * self._slope(system, carry.inner, carry.size, u) / carry.slope
        inner, info = self.method.step(system, carry.inner, size, u)
        inner = inner._replace(t=carry.t + size)
        return carry._replace(t=inner.t, inner=inner, size=size), info

    def _slope(self, system, inner, size, u):
        state = self.method.observe(system, inner, size)
        return self.quotient(system, state.t, state.g, state.xi)


def order(method, key, eps, steps) -> float:
    """The slope of the error at the last time of runs with eps and eps/2, against DOP853 at that time."""
    system, state = approach() if key == "approach" else case(key)
    errors = []
    for n in (1, 2):
        run = da.simulate(system, method, state, step=eps / n, steps=n * steps, save_every=n * steps).check()
        exact = da.integrators.scipy_motion(system, state, np.array([float(state.t), float(run.t[-1])]))[-1]
        errors.append(gap(run.last, exact))
    return float(np.log2(errors[0] / errors[1]))


@pytest.fixture(scope="module")
def there():
    system, state = approach()
    return da.simulate(system, da.Adaptive(period), state, step=0.02, steps=800).check()


# -- the law ----------------------------------------------------------------------------------------------------------
def test_steps_back_go_over_the_same_points_with_the_same_sizes(there):
    back = da.simulate(there.system, there.integrator, there, step=-0.02, steps=800).check()
    np.testing.assert_allclose(back.g[::-1], there.g, atol=2e-12)
    np.testing.assert_allclose(back.t[::-1], there.t, atol=2e-12)
    np.testing.assert_allclose(-back.step_sizes[:0:-1], there.step_sizes[1:], atol=1e-13)
    assert float(there.step_sizes.max()) > 100 * float(there.step_sizes.min())  # the law is not empty


def test_the_sizes_follow_the_pace(there):
    """rho Q is constant to second order, and the times are the sums of the steps."""
    sizes, y = np.asarray(there.step_sizes), np.asarray(there.g)[:, 1]
    between = np.sqrt(y[1:] * y[:-1]) ** 1.5 / y[0] ** 1.5
    np.testing.assert_allclose(sizes[1:] / 0.02, between, rtol=0.1)
    np.testing.assert_allclose(np.cumsum(sizes[1:]), there.t[1:] - there.t[0], rtol=1e-13)


@pytest.mark.heavy
def test_a_constant_pace_is_the_base_itself():
    """But for the last bits: the steps of both are programs of their own, whose operations are in another order."""
    system, state = case("heavy_suslov")
    base = da.RetractionAdapted()
    runs = [
        da.simulate(system, method, state, step=0.1, steps=30).check()
        for method in (base, da.Adaptive(lambda system, t, g, xi: jnp.ones(()), base))
    ]
    for found, expected in ((runs[1].g, runs[0].g), (runs[1].xi, runs[0].xi), (runs[1].t, runs[0].t)):
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


def height(t):
    """y(t) by Kepler's equation: y = a (1 - e cos E), t - t_0 = a^3/2 (E - e sin E)."""
    y, speed, moment = 1.95, 0.1, 0.3
    axis = -0.5 / (0.5 * speed**2 + 0.5 * moment**2 / y**2 - 1 / y)
    e = np.sqrt(1 - moment**2 / axis)
    first = np.arccos((1 - y / axis) / e)  # it rises
    mean = first - e * np.sin(first) + t / axis**1.5
    anomaly = mean
    for _ in range(200):
        anomaly = anomaly - (anomaly - e * np.sin(anomaly) - mean) / (1 - e * np.cos(anomaly)) * 0.5
    return axis * (1 - e * np.cos(anomaly))


def test_the_order_is_that_of_the_base(there):
    """Against Kepler's equation, at the times of the run, past the closest approach."""
    finer = da.simulate(there.system, there.integrator, approach()[1], step=0.01, steps=1600, save_every=2).check()
    errors = [np.abs(np.asarray(run.g)[:, 1] - height(np.asarray(run.t))).max() for run in (there, finer)]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.1)
    assert errors[1] < 1e-2


ORDERS = [
    (None, 2, 0.04),
    (da.DiscreteGradient(), 2, 0.04),
    (da.Composition("suzuki-4"), 4, 0.08),
    (da.Gauss(2), 4, 0.08),
    (da.Gauss(3), 6, 0.16),
    (da.Composition("kahan-li-6", base=da.Gauss(1)), 6, 0.16),
]


@pytest.mark.parametrize("pace", sampled(PACES))
@pytest.mark.parametrize("base, p, eps", sampled(ORDERS), ids=lambda x: getattr(x, "name", str(x)))
def test_the_order_on_a_group(pace, base, p, eps):
    assert order(da.Adaptive(pace, base), "heavy_suslov", eps, round(1.6 / eps)) == pytest.approx(p, abs=0.35)


FREE = ("arclength", "speed", "acceleration")  # the paces that need no potential
BACK = [(key, pace) for key in ("sleigh", "heavy_top", "driven") for pace in FREE]
BACK += [("knife_edge", "arclength"), ("quartic", "speed"), ("suslov_4", "speed")]


@pytest.mark.heavy
@pytest.mark.parametrize("key, pace", BACK)
def test_every_system_goes_back(key, pace):
    system, state = case(key)
    assert da.analysis.reversibility(system, da.Adaptive(pace), state, step=0.05, steps=40) < 1e-11


def test_a_pace_that_becomes_infinite_ends_the_run():
    """The knife edge turns across the slope, where nothing pulls it: "acceleration" has no value there, and rho falls
    below 0.
    """
    system, state = case("knife_edge")
    run = da.simulate(system, da.Adaptive("acceleration"), state, step=0.05, steps=40)
    assert run.status == "failed" and "too large" in run.reason


# -- what it is worth -------------------------------------------------------------------------------------------------
def test_the_energy_does_not_drift_where_that_of_a_plain_controller_does():
    """200 000 steps, 350 close approaches: the same sizes without symmetry drift linearly, equal steps of the same
    number are lost.
    """
    system, state = approach()

    def drift(method, step):
        run = da.simulate(system, method, state, step=step, steps=200_000, save_every=37, monitor=True).check()
        return da.analysis.drift(run).kind, float(run.final.peaks.energy_error), float(run.t[-1])

    kind, error, end = drift(da.Adaptive(period), 0.05)
    assert kind == "bounded" and error < 1e-3
    kind, plain, _ = drift(Naive(period), 0.05)
    assert kind == "linear" and plain > 10 * error
    assert drift(da.LagrangeDAlembert(), end / 200_000)[1] > 1000 * error


@pytest.mark.heavy
def test_exact_energy_stays_exact():
    system, state = approach()
    method = da.Adaptive(period, da.DiscreteGradient())
    run = da.simulate(system, method, state, step=0.05, steps=20_000, save_every=100, monitor=True).check()
    assert float(run.final.peaks.energy_error) < 1e-12
