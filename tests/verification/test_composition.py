"""Compositions: orders 4, 6, 8, D to round-off, adjoints of methods that are not symmetric, and what cannot be
composed. tools/claims measures the schemes on the systems of its panel; here stand systems and bases that it has not.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, gap

import dalembert as da
from dalembert.integrators.composition import HALVES, scheme_coefficients


def transmission():
    system = da.models.pendulum_cvt(0.3)
    return system, system.state([1.0, 0.5, 1.0], system.project(np.array([1.0, 0.5, 1.0]), [0.5, 0.2, 1.5]))


@cache
def problem(key):
    return transmission() if key == "transmission" else case(key)


# order: (duration, numbers of steps): errors above round-off, and steps where they fall regularly
RUNS = {4: (1.6, (32, 64)), 6: (1.6, (16, 32)), 8: (1.6, (8, 12))}
# At 8 and 12 steps of the transmission the terms after the eighth still dominate: slope 13, then 10.7, and 8.0 from 16
# to 24.
LATER = {("transmission", 8): (1.6, (16, 24))}


def measured(key, method) -> tuple[float, float]:
    """(the order against the run of a quarter of the step, the largest |A xi - b|)."""
    system, state = problem(key)
    duration, counts = LATER.get((key, method.order), RUNS[method.order])

    def run(n):
        return da.simulate(system, method, state, step=duration / n, steps=n, save_every=n // 4).check()

    runs, end = [run(n) for n in counts], run(4 * counts[-1]).last
    first, second = (gap(each.last, end) for each in runs)
    off = max(np.abs(jax.vmap(system.residual)(each.t, each.g, each.xi)).max() for each in runs)
    return float(np.log(first / second) / np.log(counts[1] / counts[0])), float(off)


def check(key, method):
    order, off = measured(key, method)
    assert order == pytest.approx(method.order, abs=0.35), order
    assert off < 4e-15


def test_order_4_on_the_particle():
    check("particle", da.Composition("yoshida-4"))


SCHEMES = ("yoshida-4", "suzuki-4", "yoshida-6", "kahan-li-6", "suzuki-umeno-8", "kahan-li-8")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("scheme", "key"),
    [("suzuki-4", "ball"), ("kahan-li-6", "ball"), ("kahan-li-8", "ball"), ("kahan-li-8", "transmission")],
)
def test_the_orders_with_drag_and_where_they_show_late(scheme, key):
    check(key, da.Composition(scheme))


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_orders_of_every_scheme(scheme):
    check("knife_edge", da.Composition(scheme))


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["particle", "heavy_suslov"])
def test_a_method_and_its_adjoint_compose_to_order_4(key):
    """The base is of order 1 only."""
    check(key, da.Composition("suzuki-4", node=0.3))


@pytest.mark.heavy
@pytest.mark.parametrize("base", [da.Gauss(1), da.LagrangeDAlembert(da.Exponential())], ids=lambda b: b.name)
def test_other_bases(base):
    check("heavy_suslov", da.Composition("suzuki-4", base=base))


def test_the_order_conditions():
    """sum gamma = 1 and sum gamma^(p+1) = 0 for p = 2, 4, ... below the order; symmetric."""
    for scheme, (order, _) in HALVES.items():
        gamma = np.array(scheme_coefficients(scheme))
        np.testing.assert_array_equal(gamma, gamma[::-1])
        assert sum(gamma) == pytest.approx(1.0, abs=1e-15)
        for power in range(3, order, 2):
            assert np.sum(gamma**power) == pytest.approx(0.0, abs=1e-14), (scheme, power)
        if order == 4:
            assert abs(np.sum(gamma**5)) > 1e-3


def test_what_cannot_be_composed_is_refused():
    with pytest.raises(da.InvalidInput, match=r"cannot be composed.*Allowed"):
        da.Composition(base=da.LagrangeDAlembert(nodes="velocity"))
    with pytest.raises(da.InvalidInput, match="cannot be composed"):
        da.Composition(base=da.Leapfrog())
    with pytest.raises(da.InvalidInput, match="no adjoint"):
        da.Composition(base=da.integrators.ProjectedRungeKutta())
    with pytest.raises(da.errors.UnknownName, match="kahan-li-6"):
        da.Composition("kahan-li-7")


@pytest.mark.heavy
def test_tangents_of_a_composition_run_natively():
    """A derivative of its whole numbers is nothing, and no reason to leave native code."""
    system = da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v - 0.25 * (q @ q) ** 2)
    start = system.state(np.array([1.0, 0.2]), np.array([0.3, -0.5]))

    def moved(s):
        return system, start._replace(g=start.g + s * jnp.array([1.0, 0.0])), 0.1

    run = da.simulate(system, da.Composition(), start, step=0.1, steps=3, backend="llvm", tangents=moved)
    beside = [system.state(start.g + e * np.array([1.0, 0.0]), start.xi) for e in (1e-5, -1e-5)]
    near = [da.simulate(system, da.Composition(), state, step=0.1, steps=3) for state in beside]
    slope = (np.asarray(near[0].g[-1]) - np.asarray(near[1].g[-1])) / 2e-5
    np.testing.assert_allclose(np.asarray(run.tangents.state.g)[-1], slope, atol=1e-8)
