"""Event times against exact motions and against SciPy's: their error is that of the method, and round-off where the
method is exact.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from registry import case, sampled
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

import dalembert as da
from dalembert.analysis.diagnostics import poincare_section
from dalembert.integrators import Adaptive, derivative
from dalembert.models import exact_body

L = da.LagrangeDAlembert


def times(system, state, method, quantity, *, step, until, direction=0):
    run = da.simulate(
        system, method, state, step=step, steps=round(until / step), events=[da.Event(quantity, direction, name="e")]
    )
    return np.asarray(run.check().events["e"].t)


def dop853(system, state, quantity, until):
    """The event times of SciPy's DOP853 at tolerance 1e-13."""
    flat, restore = ravel_pytree((state.g, state.xi))

    @jax.jit
    def field(t, y):
        return ravel_pytree(derivative(system, t, *restore(y), None))[0]

    @jax.jit
    def event(t, y):
        g, xi = restore(y)
        return quantity(system, da.State(t, g, xi, xi, xi), system.group.angles(g))

    solution = solve_ivp(
        lambda t, y: np.asarray(field(t, y)), (0.0, until), np.asarray(flat), method="DOP853", rtol=1e-13, atol=1e-13,
        events=[lambda t, y: float(event(t, y))],
    )  # fmt: skip
    return solution.t_events[0]


# -- exact motions ----------------------------------------------------------------------------------------------------
@pytest.mark.heavy
def test_an_exact_method_finds_the_events_of_a_rigid_body_to_round_off():
    """omega_1 = 0 of Jacobi's motion, found on it by Brent's method."""
    inertia, momentum = np.diag([1.0, 2.0, 2.7]), np.array([0.4, 2.2, -0.81])
    body = da.models.rigid_body(inertia)
    found = times(
        body,
        body.state(momentum=momentum),
        da.DiscreteMoserVeselov("exact"),
        da.Quantity("velocity", (0,)),
        step=0.7,
        until=35.0,
    )
    curve = lambda t: float(exact_body(inertia, momentum, t).momentum[0])
    truth = [brentq(curve, t - 0.1, t + 0.1, xtol=1e-15, rtol=1e-15) for t in found]
    assert len(found) >= 3
    np.testing.assert_allclose(found, truth, atol=2e-13)


@pytest.mark.heavy
def test_the_cusp_of_the_sleigh():
    """V = r tanh(k t + c) with b = 0: the contact point reverses once, at t = -c/k, and the method's error there is of
    order 2.
    """
    a, w0, v0 = 0.3, 0.9, -1.0
    sleigh = da.models.chaplygin_sleigh(1.0, 1.0, a, 0.0)
    about = 1.0 + a**2
    r = np.sqrt(v0**2 + about * w0**2)
    truth = -np.arcsinh(v0 / (w0 * np.sqrt(about))) / (a * r / about)
    cusp = da.Quantity("velocity", (1,))
    errors = [
        times(sleigh, sleigh.state(xi=[w0, v0, 0.0]), L(), cusp, step=h, until=6.0, direction=1) - truth
        for h in (0.1, 0.05)
    ]
    assert [len(error) for error in errors] == [1, 1]
    assert 1.9 < np.log2(abs(errors[0][0] / errors[1][0])) < 2.1


@pytest.mark.heavy
def test_a_disk_on_the_spot_turns_at_a_constant_rate():
    """theta = w t: unwrapped angles reach 2.5 turns at their time, whatever the step."""
    system, _ = case("disk")
    state = system.state(xi=[0.8, 0.0, 0.0, 0.0])
    value = 5 * np.pi
    found = times(system, state, L(da.Exponential()), da.Quantity("angles", (0,), value), step=0.3, until=24.0)
    np.testing.assert_allclose(found, [value / 0.8], rtol=1e-13)


# -- orders -----------------------------------------------------------------------------------------------------------
CASES = [
    ("particle", da.Quantity("configuration", (0,)), L(), 2),
    ("particle", da.Quantity("configuration", (0,)), L(nodes="velocity"), 2),
    ("particle", da.Quantity("configuration", (0,)), da.Leapfrog(), 2),
    ("particle", da.Quantity("configuration", (0,)), da.Composition("yoshida-4"), 4),
    ("particle", da.Quantity("configuration", (0,)), da.Composition("kahan-li-6"), 6),
    ("particle", da.Quantity("configuration", (0,)), da.integrators.Lobatto(3), 4),
    ("suslov", da.Quantity("configuration", (0, 2)), da.EulerPoincareSuslov(), 2),
    ("suslov", da.Quantity("configuration", (0, 2)), da.Composition("kahan-li-6", base=da.RetractionAdapted()), 6),
    ("sleigh", da.Quantity("velocity", (1,)), Adaptive(), 2),
    ("sleigh", da.Quantity("velocity", (1,)), da.integrators.Lobatto(4), 6),
    ("ball", da.Quantity("configuration", (0, 0, 1)), da.Composition("yoshida-4"), 4),
]


@pytest.mark.parametrize(
    "key, quantity, method, order", sampled(CASES), ids=lambda value: getattr(value, "name", str(value))[:24]
)
def test_event_times_have_the_order_of_the_method(key, quantity, method, order):
    system, state = case(key)
    until = 9.0
    truth = dop853(system, state, quantity, until)
    errors = []
    for h in (0.1, 0.05):
        found = times(system, state, method, quantity, step=h, until=(1.5 if method.variable_step else 1.0) * until)[
            : len(truth)
        ]
        errors.append(np.max(np.abs(found - truth)))
    measured = np.log2(errors[0] / errors[1])
    print(f"{key}, {method.name}: errors {errors[0]:.2e}, {errors[1]:.2e}, order {measured:.2f}")
    assert order - 0.15 < measured < order + 0.4


@pytest.mark.heavy
@pytest.mark.parametrize("key, cross, stop", [
    ("particle", da.Quantity("configuration", (0,)), da.Quantity("momentum", (1,))),
    ("sleigh", da.Quantity("angles", (0,), 4.5), da.Quantity("time", (), 8.03)),
])  # fmt: skip
def test_the_reference_method_has_events_too(key, cross, stop):
    system, state = case(key)
    events = [da.Event(cross, name="cross"), da.Event(stop, 1, True, "end")]
    runs = [
        da.simulate(system, method, state, step=0.1, steps=90, save_every=7, events=events)
        for method in (da.integrators.Reference(), da.Composition("kahan-li-6"))
    ]
    for name in ("cross", "end"):
        np.testing.assert_allclose(runs[0].events[name].t, runs[1].events[name].t, atol=1e-8)
    assert [run.stopped_by for run in runs] == ["end", "end"] and runs[0].steps == runs[1].steps
    np.testing.assert_allclose(runs[0].t, runs[1].t, atol=1e-8)
    np.testing.assert_allclose(runs[0].at([0.0, 1.23, 3.14]).g, runs[1].at([0.0, 1.23, 3.14]).g, atol=1e-8)


@pytest.mark.heavy
def test_dense_output_has_the_order_of_the_method_at_every_part_of_a_step():
    """The largest error over theta falls with the order of the method at its steps, 4 and 6: no interpolant of lower
    order hides there.
    """
    system, state = case("particle")
    for method, order in ((da.Composition("yoshida-4"), 4), (da.Composition("kahan-li-6"), 6)):
        wanted = np.linspace(0.0, 6.0, 61) + 0.0123
        truth = da.simulate(system, da.Composition("kahan-li-8"), state, step=0.01, steps=620).at(wanted)
        errors = []
        for h in (0.2, 0.1):
            found = da.simulate(system, method, state, step=h, steps=round(6.2 / h)).at(wanted)
            errors.append(np.max(np.abs(found.g - truth.g)))
        print(f"{method.scheme}: {errors[0]:.2e}, {errors[1]:.2e}, order {np.log2(errors[0] / errors[1]):.2f}")
        assert order - 0.3 < np.log2(errors[0] / errors[1]) < order + 0.5


@pytest.mark.heavy
def test_a_section_of_the_contact_oscillator_lies_on_a_curve():
    """y is a free harmonic oscillator: with y = 0, y' > 0 as the section, y' is constant, and energy leaves a curve in
    (z, z').
    """
    system = da.models.contact_oscillator(0.0)
    state = system.state([1.0, 0.0, 0.2], system.project(np.array([1.0, 0.0, 0.2]), [0.0, 0.8, 0.5]))
    found = poincare_section(
        system,
        da.Composition("kahan-li-6"),
        state,
        da.Event(da.Quantity("configuration", (1,)), 1),
        step=0.1,
        crossings=2000,
    )
    assert len(found) == 2000 and found.suspects[0] == 0
    np.testing.assert_allclose(np.diff(found.t), 2 * np.pi, atol=1e-8)
    np.testing.assert_allclose(found.xi[:, 1], found.xi[0, 1], atol=1e-8)
