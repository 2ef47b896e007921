"""Orders that tools/claims does not measure: systems with time, drag or a quartic L, nodes between, and multipliers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from registry import CAYLEY, case, gap, more

import dalembert as da

T = 0.8
COUNTS = (16, 32, 64)


@cache
def exact(key: str):
    """The states at 0, T/2 and T, by DOP853."""
    system, state = case(key)
    return da.simulate(system, da.integrators.Reference(), state, step=T / 2, steps=2).check()


def errors(key, method, end=None):
    """Errors of the final state with 16, 32 and 64 steps."""
    system, state = case(key)
    goal = exact(key).last if end is None else end
    return [
        gap(da.simulate(system, method, state, step=T / n, steps=n, save_every=n).check().last, goal) for n in COUNTS
    ]


def order(errors) -> float:
    """The slope over the last halving."""
    return float(np.log2(errors[-2] / errors[-1]))


LAGRANGE = [
    more("particle", CAYLEY, 1.0, 1),
    ("particle", CAYLEY, 0.3, 1),
    more("driven", CAYLEY, 0.0, 1),
    ("driven", CAYLEY, 0.5, 2),
    more("quartic", CAYLEY, 0.5, 2),
    more("ball", CAYLEY, 1.0, 1),
    more("ball", CAYLEY, 0.5, 2),
]


def name(value):
    return type(value).__name__ if isinstance(value, da.groups.Retraction) else str(value)


@pytest.mark.parametrize("key, retraction, node, expected", LAGRANGE, ids=name)
def test_lagrange_dalembert_at_its_original_nodes(key, retraction, node, expected):
    measured = errors(key, da.LagrangeDAlembert(retraction, node))
    assert order(measured) == pytest.approx(expected, abs=0.12), measured


@pytest.mark.parametrize("key, node, expected", [("particle", 1.0, 1), ("driven", 0.5, 2)])
def test_lagrange_dalembert_at_redefined_nodes(key, node, expected):
    measured = errors(key, da.LagrangeDAlembert(CAYLEY, node, "velocity"))
    assert order(measured) == pytest.approx(expected, abs=0.12), measured


@pytest.mark.parametrize(
    "key, node, expected",
    [("suslov", 1.0, 2), more("sleigh", 0.3, 2), ("knife_edge", 0.3, 1), more("knife_edge", 0.5, 2)],
)
def test_retraction_adapted(key, node, expected):
    """Order 2 for every node without potential; with one, only at node 1/2."""
    measured = errors(key, da.RetractionAdapted(CAYLEY, node))
    assert order(measured) == pytest.approx(expected, abs=0.12), measured


@pytest.mark.parametrize("key", ["suslov", more("sleigh")])
def test_lagrange_dalembert_is_of_second_order_for_every_node_on_free_invariant_systems(key):
    measured = errors(key, da.LagrangeDAlembert(CAYLEY, 0.3))
    assert order(measured) == pytest.approx(2.0, abs=0.12), measured


def test_runge_kutta_is_of_fourth_order():
    measured = errors("driven", da.RungeKutta())
    assert order(measured) == pytest.approx(4.0, abs=0.2), measured


# -- multipliers ------------------------------------------------------------------------------------------------------
def multiplier_errors(key, node, nodes, stamp):
    """|l - l(t)| at the last step, with the multiplier stamped at `stamp` steps after the start of that step."""
    system, state = case(key)
    found = []
    for n in COUNTS:
        h = T / n
        run = da.simulate(system, da.LagrangeDAlembert(CAYLEY, node, nodes), state, step=h, steps=n).check()
        truth = (
            da.simulate(system, da.integrators.Reference(), exact(key).last, step=(stamp - 1) * h, steps=1).check()
            if stamp != 1
            else exact(key)
        )
        found.append(float(np.abs(np.asarray(run.multipliers[-1]) - np.asarray(truth.multipliers[-1])).max()))
    return found


def test_multipliers_of_redefined_nodes_belong_to_the_middle_of_the_step():
    """At node 1/2 l_k is of order 2 at t_k + h/2 of the redefined nodes, of order 1 at either end: the paper's (2, 0)
    is the stamp.
    """
    assert order(multiplier_errors("particle", 0.5, "velocity", 0.5)) == pytest.approx(2.0, abs=0.15)
    assert order(multiplier_errors("particle", 0.5, "velocity", 1)) == pytest.approx(1.0, abs=0.15)


def test_multipliers_of_original_nodes_belong_to_the_start_of_the_step():
    assert order(multiplier_errors("particle", 0.5, "original", 0)) == pytest.approx(2.0, abs=0.15)
    assert order(multiplier_errors("particle", 0.0, "original", 0)) == pytest.approx(1.0, abs=0.15)


def test_the_first_multiplier_is_the_continuous_one():
    """A momentum known on D only cannot tell the first reaction: it is taken from (23) of jimenez-scheurle."""
    system, state = case("particle")
    run = da.simulate(system, da.LagrangeDAlembert(CAYLEY, 0.5), state, step=0.05, steps=16, save_every=1).check()
    truth = system.multipliers(state.t, state.g, state.xi)
    np.testing.assert_allclose(run.multipliers[:2], [truth, truth], rtol=1e-13)
    assert np.abs(np.diff(np.asarray(run.multipliers)[1:, 0])).max() < 0.1


@pytest.mark.parametrize(("node", "order"), [more(0.0, 1), (0.25, 1), (0.5, 2)])
def test_the_discrete_lagrangian_approximates_the_action(node, order):
    """(56) of jimenez-scheurle: the order of L_d is 1, and 2 at node 1/2."""
    from dalembert.analysis.order import lagrangian_order

    system = da.models.nonholonomic_particle("harmonic")
    state = system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])
    pair = da.mechanics.from_difference(system, da.mechanics.FiniteDifference(da.Cayley(), node))
    assert lagrangian_order(pair, state) == pytest.approx(order, abs=0.1)
