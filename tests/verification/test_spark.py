"""Lobatto methods on D: Jay's SPARK and the nodal form of Martin de Diego and Sato, against transcriptions of their
definitions.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from registry import EXPONENTIAL, case, sampled
from scipy.optimize import fsolve

import dalembert as da
from dalembert.analysis.order import convergence
from dalembert.integrators.collocation import LOBATTO_NODES, lobatto_tableau

ROOT = 5**0.5
# Hairer, Wanner, Solving ODEs II, tables IV.5.7-5.11 (3 stages); Jay, SIAM J. Sci. Comput. 20 (1998) for C* and D
A3 = np.array([[0, 0, 0], [5 / 24, 1 / 3, -1 / 24], [1 / 6, 2 / 3, 1 / 6]])
B3 = np.array([[1 / 6, -1 / 6, 0], [1 / 6, 1 / 3, 0], [1 / 6, 5 / 6, 0]])
TABLES = {
    "A": A3,
    "B": B3,
    "C": np.array([[1 / 6, -1 / 3, 1 / 6], [1 / 6, 5 / 12, -1 / 12], [1 / 6, 2 / 3, 1 / 6]]),
    "C*": np.array([[0, 0, 0], [1 / 4, 1 / 4, 0], [0, 1, 0]]),
    "D": np.array([[1 / 12, -1 / 6, 1 / 12], [5 / 24, 1 / 3, -1 / 24], [1 / 12, 5 / 6, 1 / 12]]),
}
WEIGHTS = np.array([1 / 6, 2 / 3, 1 / 6])
C4 = np.array(
    [
        [1 / 12, -ROOT / 12, ROOT / 12, -1 / 12],
        [1 / 12, 1 / 4, (10 - 7 * ROOT) / 60, ROOT / 60],
        [1 / 12, (10 + 7 * ROOT) / 60, 1 / 4, -ROOT / 60],
        [1 / 12, 5 / 12, 5 / 12, 1 / 12],
    ]
)


def test_the_coefficients_are_those_of_the_tables():
    for family, table in TABLES.items():
        np.testing.assert_allclose(lobatto_tableau(np.array(LOBATTO_NODES[3]), family), table, atol=1e-15)
    np.testing.assert_allclose(lobatto_tableau(np.array(LOBATTO_NODES[4]), "C"), C4, atol=1e-15)


# -- textbook transcriptions, on R^3 ----------------------------------------------------------------------------------
def mass(q):
    return np.diag([1 + 0.3 * q[1] ** 2, 1.5, 1 + 0.2 * q[0] ** 2])


def push(q, v):
    """L_q of L = <M(q) v, v>/2 - |q|^2/2 - q_x^2 q_z^2/4."""
    bend = np.array([0.2 * q[0] * v[2] ** 2, 0.3 * q[1] * v[0] ** 2, 0.0])
    return bend - q - 0.5 * np.array([q[0] * q[2] ** 2, 0.0, q[0] ** 2 * q[2]])


def row(q):
    return np.array([-q[1], 0.0, 1.0])


def lagrangian(t, q, v, p):
    kinetic = (1 + 0.3 * q[1] ** 2) * v[0] ** 2 + 1.5 * v[1] ** 2 + (1 + 0.2 * q[0] ** 2) * v[2] ** 2
    return 0.5 * (kinetic - q @ q) - 0.25 * q[0] ** 2 * q[2] ** 2


def constraint(t, q, p):
    return jnp.stack([-q[1], jnp.zeros_like(q[1]), jnp.ones_like(q[1])])[None]


def textbook(q0, v0, first, h, form, table):
    """(q_1, v_1) of one step, all unknowns (V_i, l_i) at once, as the definitions are printed."""
    p0 = mass(q0) @ v0

    def unfolded(x):
        V, l = x[:9].reshape(3, 3), x[9:]
        Q = q0 + h * A3 @ V
        W = np.array([push(Q[i], V[i]) + l[i] * row(Q[i]) for i in range(3)])
        return V, l, Q, W, p0 + h * WEIGHTS @ W

    def equations(x):
        V, l, Q, W, p1 = unfolded(x)
        P = p0 + h * table @ W
        legendre = [P[i] - mass(Q[i]) @ V[i] for i in range(3)]
        if (
            form == "spark"
        ):  # Jay, BIT 43 (2003), (2.5): means of the constraint at the stages, and the constraint at the end
            means = A3[1:] @ np.array([row(Q[j]) @ V[j] for j in range(3)])
            rest = [*means, row(Q[2]) @ np.linalg.solve(mass(Q[2]), p1)]
        else:  # Martin de Diego, Sato (2018): (q_i, p_i) in D with p_i = p_0 + h a_ij W_j, and l_1 from the step before
            nodal = p0 + h * A3 @ W
            rest = [row(Q[i]) @ np.linalg.solve(mass(Q[i]), nodal[i]) for i in (1, 2)] + [l[0] - first]
        return np.concatenate([*legendre, rest])

    start = np.concatenate([np.tile(v0, 3), np.full(3, first)])
    x, *_ = fsolve(equations, start, xtol=1e-14, full_output=True)
    _, _, Q, _, p1 = unfolded(x)
    assert np.abs(equations(x)).max() < 1e-13
    return Q[2], np.linalg.solve(mass(Q[2]), p1)


def against_the_book(form, family):
    system = da.System(da.Euclidean(3), lagrangian, constraint)
    q = np.array([0.6, 0.5, -0.4])
    state = system.state(q, system.project(q, [0.9, -0.7, 0.4]))
    run = da.simulate(system, da.integrators.Lobatto(3, form=form, family=family), state, step=0.2, steps=1).check()
    first = float(run.multipliers[0, 0])
    place, velocity = textbook(q, np.asarray(state.xi), first, 0.2, form, TABLES[family])
    np.testing.assert_allclose(run.g[-1], place, atol=1e-13)
    np.testing.assert_allclose(run.xi[-1], velocity, atol=1e-13)


def test_spark_is_the_textbooks():
    against_the_book("spark", "B")


@pytest.mark.heavy
@pytest.mark.parametrize("form, family", [("nodes", "B"), ("spark", "C"), ("spark", "C*"), ("spark", "D")])
def test_every_form_is_the_textbooks(form, family):
    against_the_book(form, family)


# -- order, symmetry, and what carrying no multiplier is worth --------------------------------------------------------
COUNTS = {2: (32, 64), 4: (16, 32), 6: (6, 12)}


def slope(key, method, order) -> float:
    """That of the configurations of runs to 1.6, against DOP853."""
    system, state = case(key)
    found = convergence(system, method, state, duration=1.6, counts=COUNTS[order])
    return float(found.slopes("configuration")[-1])


@pytest.mark.parametrize("key", sampled(["particle", "heavy_suslov"]))
@pytest.mark.parametrize("family", sampled(["C", "C*", "D"]))
@pytest.mark.parametrize("stages", sampled([2, 3, 4]))
def test_other_families_have_the_order_of_b(stages, family, key):
    """B itself is measured by tools/claims and, where that does not, in test_high_order."""
    order = 2 * stages - 2
    method = da.integrators.Lobatto(stages, EXPONENTIAL, form="spark", family=family)
    assert slope(key, method, order) == pytest.approx(order, abs=0.25)


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["particle", "heavy_suslov", "knife_edge", "driven"])
@pytest.mark.parametrize("family", ["B", "D"])
def test_b_and_d_are_symmetric(family, key):
    system, state = case(key)
    method = da.integrators.Lobatto(3, form="spark", family=family)
    assert da.analysis.reversibility(system, method, state, step=0.1, steps=20) < 1e-12


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["particle", "heavy_suslov"])
def test_c_and_c_star_undo_each_other(key):
    system, state = case(key)
    method = da.integrators.Lobatto(3, form="spark", family="C")
    there = da.simulate(system, method, state, step=0.1, steps=10).check().last
    back = da.simulate(system, method.adjoint(), there, step=-0.1, steps=10).check().last
    np.testing.assert_allclose(back.xi, state.xi, atol=1e-12)
    again = da.simulate(system, method, there, step=-0.1, steps=10).check().last
    assert np.abs(again.xi - state.xi).max() > 1e-8


@pytest.mark.heavy
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_spark_holds_where_the_motion_contracts_phase_volume(stages):
    """Suslov's body, 8000 steps: the nodal form is lost there (test_high_order), its carried multiplier grows."""
    system, state = case("suslov")
    energy = float(system.energy(0.0, state.g, state.xi))
    method = da.integrators.Lobatto(stages, form="spark")
    run = da.simulate(system, method, state, step=0.05, steps=8000, monitor=True, save_every=100).check()
    assert float(run.final.peaks.energy_error) < 1e-2 * energy


@pytest.mark.heavy
def test_spark_composes_and_takes_reversible_steps():
    """Suzuki's composition of the 2-stage method has order 4; in an adaptive run the 3-stage one has its order 4."""
    method = da.Composition("suzuki-4", base=da.integrators.Lobatto(2, form="spark"))
    assert slope("heavy_suslov", method, 4) == pytest.approx(4.0, abs=0.25)
    system, state = case("particle")
    adaptive = da.Adaptive("speed", da.integrators.Lobatto(3, form="spark"))
    assert da.analysis.reversibility(system, adaptive, state, step=0.1, steps=20) < 1e-12


def test_other_forms_and_families_are_refused():
    with pytest.raises(da.errors.UnknownName, match="spark"):
        da.integrators.Lobatto(form="sparks")
    with pytest.raises(da.errors.UnknownName, match="family"):
        da.integrators.Lobatto(form="spark", family="E")
    with pytest.raises(da.InvalidInput, match="needs form"):
        da.integrators.Lobatto(family="C")
