"""mclachlan-zanna 2003, Hairer-Vilmart 2006 and REFERENCE.md: Table 4, orders, thresholds, modified fields, SO(4)."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moser_veselov import (
    displacement_series,
    effective_scale,
    modified_term_3,
    modified_term_5,
    satisfies_cardoso_leite,
    solve_explicit,
    solve_newton,
    solve_schur,
    solve_symmetric_functions,
    spectrum_splits,
    velocity,
)
from scipy.optimize import least_squares

from dalembert.analysis.branches import failing_steps, largest_free_step
from dalembert.analysis.series import modified_expansion
from dalembert.errors import NumericalFailure
from dalembert.groups import SO3, unit_quaternion
from dalembert.integrators import (
    DiscreteMoserVeselov,
    ImplicitMidpoint,
    KineticSplitting,
    LiePoissonSplitting,
    Rattle,
    Reference,
)
from dalembert.mechanics import InvariantSystem
from dalembert.models import exact_body, rigid_body, rigid_body_n
from dalembert.papers import mclachlan_zanna as mz
from dalembert.simulation import simulate

J = np.array([0.92181297074480, 0.73820724581067, 0.17626614449462])
INERTIA = J.sum() - J
M0 = np.array([0.41027020699095, 0.89364953091353, 0.05789130478427])
M0 = M0 / np.linalg.norm(M0)
BODY = rigid_body(INERTIA)
STATE = BODY.state(momentum=M0)
FINAL = np.array([0.66566662210620437, 0.62730351885915240, 0.40420074646225079])
METHODS = [LiePoissonSplitting(), ImplicitMidpoint(), *[DiscreteMoserVeselov(order, "scaled") for order in (2, 4, 6)]]
TABLE_4 = {
    1 / 16: (6.790317037e-3, 1.549432558e-4, 1.501400809e-2, 1.759761109e-7, 5.930209175e-12),
    1 / 2: (5.104311878e-1, 9.932977608e-3, 5.989944824e-1, 7.616708693e-4, 1.644085638e-6),
    1.2: (1.605509071, 1.311996871e-1, None, 1.078544201e-1, 7.026946512e-2),
    2.2: (1.700203751, 3.951418277e-1, None, 1.609461223, None),
    2.5: (1.948986004, 2.527622418e-1, None, 5.024524715e-1, 7.040700434e-1),
    4.0: (np.nan, 6.190543276e-1, None, 5.162496636e-1, 1.051994479e-1),
}


def hat(m):
    return np.asarray(SO3().hat(jnp.asarray(m)))


@pytest.mark.parametrize("column", range(5), ids=lambda k: f"{METHODS[k].name}-{getattr(METHODS[k], 'order', '')}")
def test_table_4(column):
    for h, row in TABLE_4.items():
        steps = int(np.floor(100 / h))
        run = simulate(BODY, METHODS[column], STATE, step=h, steps=steps, save_every=steps)
        if row[column] is None:
            assert run.status == "failed"
            assert run.failed_at == -1
        elif np.isfinite(row[column]):
            error = np.linalg.norm(run.check().momentum[-1] - FINAL)
            assert abs(error - row[column]) < 2e-9 * row[column] + 1e-13


def test_single_steps_and_two_hundred():
    run = simulate(BODY, DiscreteMoserVeselov(2), STATE, step=0.5, steps=200).check()
    assert (
        np.abs(run.momentum[1] - np.array([0.41047117106139570, 0.91160255375569422, 0.02223064806934478])).max()
        < 1e-15
    )
    assert (
        np.abs(run.momentum[-1] - np.array([0.41792018630364832, 0.90619456602556325, -0.06445251264043140])).max()
        < 1e-14
    )
    mass, m = np.array([0.9218, 0.7382, 0.1762]), np.array([0.4165, 0.9072, 0.0577])
    system = rigid_body(mass.sum() - mass)
    run = simulate(
        system, DiscreteMoserVeselov(2), system.state(momentum=m / np.linalg.norm(m)), step=0.5, steps=200
    ).check()
    assert (
        np.abs(run.momentum[1] - np.array([0.41066313169836529, 0.91154180718018653, 0.02115008336557401])).max()
        < 1e-15
    )


# -- the Moser-Veselov equation ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("h", [0.25, 0.5, 1.0, 1.06, -0.5])
def test_four_solvers_agree(h):
    M = h * hat(M0)
    solutions = [solve(J, M) for solve in (solve_explicit, solve_symmetric_functions, solve_schur, solve_newton)]
    for w in solutions:
        assert np.abs(w.T @ np.diag(J) - np.diag(J) @ w - M).max() < 1e-13
        assert np.abs(w @ w.T - np.eye(3)).max() < 1e-12
        assert np.abs(w - solutions[0]).max() < 1e-12
    assert spectrum_splits(J, M)


def test_failure_and_criteria():
    assert not spectrum_splits(J, 1.0603 * hat(M0))
    assert spectrum_splits(J, 1.0602 * hat(M0))
    assert not satisfies_cardoso_leite(J, 1.0603 * hat(M0))
    assert satisfies_cardoso_leite(J, 0.1 * hat(M0))
    for solve in (solve_explicit, solve_symmetric_functions, solve_schur):
        with pytest.raises(NumericalFailure, match="imaginary axis"):
            solve(J, 1.2 * hat(M0))


def test_symmetric_bodies_have_equal_roots():
    mass, M = [0.5, 0.5, 0.7], 0.3 * hat([0.2, 0.1, 0.4])
    assert np.abs(solve_symmetric_functions(mass, M) - solve_newton(mass, M)).max() < 1e-13


def test_thresholds():
    assert abs(largest_free_step(INERTIA, M0) - 1.06021984678014) < 1e-13
    assert largest_free_step(INERTIA, M0, 4) == np.inf
    (a, b), (c, d) = failing_steps(INERTIA, M0, 6)
    assert np.abs(np.array([a, b]) - [2.10005972216078, 2.20442968577789]).max() < 1e-12
    assert np.abs(np.array([c, d]) - [15.9050028, 20.2094922]).max() < 1e-7
    assert failing_steps(INERTIA, M0, "exact") == []
    assert effective_scale(INERTIA, M0, 1e8, 4) < 1e-7  # section 5: the motion stops
    for order, h, works in (
        (2, 1.0602198, True),
        (2, 1.0602199, False),
        (6, 2.1000597, True),
        (6, 2.1000598, False),
        (6, 2.2044297, True),
    ):
        run = simulate(BODY, DiscreteMoserVeselov(order, "scaled"), STATE, step=h, steps=1)
        assert (run.status == "ok") == works


# -- orders -----------------------------------------------------------------------------------------------------------
HV = rigid_body([0.6, 0.8, 1.0])
HV_STATE = HV.state(momentum=[1.8, 0.4, -0.9])


@cache
def hv_end():
    return exact_body([0.6, 0.8, 1.0], [1.8, 0.4, -0.9], 10.0)


def errors(run):
    q, p = (
        np.array([float(part) for part in np.hstack(unit_quaternion(jnp.asarray(g)))])
        for g in (run.g[-1], hv_end().attitude)
    )
    return np.linalg.norm(run.momentum[-1] - hv_end().momentum), min(np.linalg.norm(q - p), np.linalg.norm(q + p))


@pytest.mark.parametrize(
    ("order", "coarse", "fine"),
    [(2, 0.275, 0.0665), (4, 1.42e-3, 8.56e-5), (6, 3.56e-6, 5.38e-8), (8, 5.27e-9, 1.99e-11), (10, 5.15e-12, None)],
)
def test_modified_moments_raise_both_orders(order, coarse, fine):
    method = DiscreteMoserVeselov(order)
    runs = [errors(simulate(HV, method, HV_STATE, step=10 / n, steps=n, save_every=n).check()) for n in (100, 200)]
    assert abs(runs[0][1] / coarse - 1) < 5e-3
    if fine is not None:
        assert abs(runs[1][1] / fine - 1) < 5e-3
        assert np.all(np.log2(np.array(runs[0]) / runs[1]) > order - 0.1)
    else:
        assert runs[1][1] < coarse / 2**order * 1.5 + 2e-14
        assert runs[1][0] < runs[0][0] / 2**order * 1.5 + 2e-14


@pytest.mark.parametrize("order", [4, 6, 8])
def test_scaling_raises_the_order_of_the_momentum_only(order):
    method = DiscreteMoserVeselov(order, "scaled")
    runs = np.array(
        [errors(simulate(HV, method, HV_STATE, step=10 / n, steps=n, save_every=n).check()) for n in (80, 160)]
    )
    orders = np.log2(runs[0] / runs[1])
    assert orders[0] > order - 0.2
    assert abs(orders[1] - 2) < 0.1


@pytest.mark.parametrize("method", [LiePoissonSplitting(), ImplicitMidpoint(), Rattle()], ids=lambda m: m.name)
def test_order_two(method):
    runs = np.array(
        [errors(simulate(HV, method, HV_STATE, step=10 / n, steps=n, save_every=n).check()) for n in (200, 400)]
    )
    assert np.all(np.abs(np.log2(runs[0] / runs[1]) - 2) < 0.1)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_rattle_is_discrete_moser_veselov(order):
    for h in (0.25, 1.0, -0.5):
        a = simulate(BODY, Rattle(order), STATE, step=h, steps=50).check()
        b = simulate(BODY, DiscreteMoserVeselov(order, "scaled"), STATE, step=h, steps=50).check()
        assert np.abs(a.momentum - b.momentum).max() < 1e-13
        assert np.abs(a.g - b.g).max() < 3e-13
    assert simulate(BODY, Rattle(2), STATE, step=1.2, steps=1).status == "failed"


# -- modified fields --------------------------------------------------------------------------------------------------
def test_taus():
    found = mz.speed_coefficients(INERTIA, M0)
    assert np.abs(np.array(found) - [0.22534968125639203, 0.10089293651933735, 0.05631623594547037]).max() < 1e-16
    t3, t5, t7 = found
    assert np.allclose(
        mz.scaling_coefficients(INERTIA, M0), [t3, t5 - 2 * t3**2, t7 - 6 * t3 * t5 + 7 * t3**3], atol=1e-15
    )
    mass, m = np.array([0.9218, 0.7382, 0.1762]), np.array([0.4165, 0.9072, 0.0577])
    printed = mz.speed_coefficients(mass.sum() - mass, m / np.linalg.norm(m))
    assert np.abs(np.array(printed) - [0.22540225064679248, 0.10094053500206030, 0.05635636259808242]).max() < 1e-16


def test_printed_taus():
    """Propositions 3.1 and 3.2."""
    a, b, c = J
    trace, det = lambda k: a**k + b**k + c**k, a * b * c
    C = lambda i, j=None: a**i * b ** (j or i) + a**i * c ** (j or i) + b**i * c ** (j or i)
    D, H2 = (a + b) * (a + c) * (b + c), np.sum(J**2 * M0**2)
    tau3 = ((3 * det * trace(1) + C(2)) + (3 * C(1) + trace(2)) * H2) / (6 * D**2)
    tau5 = (3 * trace(4) + 27 * C(2) + 15 * trace(2) * C(1) + 45 * det * trace(1)) * H2**2
    tau5 += (
        10 * C(3) + 50 * det * trace(1) * C(1) + 10 * det * trace(1) * trace(2) + 2 * C(2) * trace(2) - 28 * det**2
    ) * H2
    tau5 += 60 * det**2 * C(1) + 3 * C(4) + 27 * det**2 * trace(2) + 15 * det * (C(2, 3) + C(3, 2))
    assert np.allclose(mz.speed_coefficients(INERTIA, M0, 2), [tau3, tau5 / (40 * D**4)], rtol=1e-14)


@pytest.mark.heavy
def test_modified_field_terms():
    M, field = hat(M0), np.cross(M0, M0 / INERTIA)
    t3, t5, _ = mz.speed_coefficients(INERTIA, M0)
    vee = lambda X: np.array([X[2, 1], X[0, 2], X[1, 0]])
    assert np.abs(vee(modified_term_3(J, M)) - t3 * field).max() < 1e-15
    assert np.abs(vee(modified_term_5(J, M)) - t5 * field).max() < 1e-15
    for h in (0.05, 0.025):
        w = solve_newton(J, h * M)
        series = sum(h ** (k + 1) * omega for k, omega in enumerate(displacement_series(J, M)))
        assert np.abs(np.asarray(SO3().log(jnp.asarray(w.T))) - vee(series)).max() < 0.5 * h**6


def test_numerical_backward_error_analysis():
    f, third, fifth = modified_expansion(BODY, DiscreteMoserVeselov(2), STATE, 0.2, terms=3)
    field = np.cross(M0, M0 / INERTIA)
    t3, t5, _ = mz.speed_coefficients(INERTIA, M0)
    assert np.abs(f - np.concatenate([M0 / INERTIA, field])).max() < 1e-10
    assert np.abs(third[3:] - t3 * field).max() < 1e-7
    assert np.abs(fifth[3:] - t5 * field).max() < 1e-4


# -- SO(4) ------------------------------------------------------------------------------------------------------------
MASS4 = np.array([1.1, 0.8, 0.6, 0.3])
BODY4 = rigid_body_n(MASS4)
STATE4 = BODY4.state(momentum=[0.3, -0.2, 0.45, 0.25, -0.35, 0.15])
MATRIX4 = np.asarray(BODY4.group.hat(STATE4.momentum))


@pytest.mark.heavy
def test_so4():
    run = simulate(BODY4, DiscreteMoserVeselov(2), STATE4, step=0.25, steps=80).check()
    reference = [0.3092188988162, -0.2031568053631, 0.4356460218127, 0.2536925868062, -0.3525135913507, 0.1571552354868]
    assert np.abs(run.momentum[1] - np.array(reference)).max() < 1e-12
    w = solve_schur(MASS4, 0.25 * MATRIX4)
    assert np.abs(BODY4.group.vee(jnp.asarray(w @ MATRIX4 @ w.T)) - run.momentum[1]).max() < 1e-14
    back = simulate(
        BODY4, DiscreteMoserVeselov(2), BODY4.state(g=run.g[-1], momentum=run.momentum[-1]), step=-0.25, steps=80
    ).check()
    assert np.abs(back.momentum[-1] - STATE4.momentum).max() < 1e-12
    assert np.abs(back.g[-1] - np.eye(4)).max() < 1e-12
    matrices = np.asarray(jax.vmap(BODY4.group.hat)(run.momentum))
    invariants = np.array(
        [[np.linalg.det(X + z * np.diag(MASS4**2) - 0.4 * np.eye(4)) for z in (0.3, 1.0, -2.0, 5.0)] for X in matrices]
    )
    assert np.abs(invariants - invariants[0]).max() < 1e-12
    pfaffian = (
        matrices[:, 0, 1] * matrices[:, 2, 3]
        - matrices[:, 0, 2] * matrices[:, 1, 3]
        + matrices[:, 0, 3] * matrices[:, 1, 2]
    )
    assert np.abs(pfaffian - pfaffian[0]).max() < 1e-13
    assert np.abs(run.energy_error()).max() < 1e-13
    spatial = np.einsum("kij,kjl,kml->kim", run.g, matrices, run.g)
    assert np.abs(spatial - spatial[0]).max() < 1e-12


def test_so4_has_order_two_and_is_no_reparametrisation():
    runs = [
        simulate(BODY4, DiscreteMoserVeselov(2), STATE4, step=2 / n, steps=n, save_every=n).check()
        for n in (16, 32, 64)
    ]
    changes = [np.abs(a.momentum[-1] - b.momentum[-1]).max() for a, b in pairwise(runs)]
    assert abs(np.log2(changes[0] / changes[1]) - 2) < 0.05
    field = MATRIX4 @ velocity(MASS4, MATRIX4) - velocity(MASS4, MATRIX4) @ MATRIX4
    third = modified_term_3(MASS4, MATRIX4)
    along = np.sum(field * third) / np.sum(field * field) * field
    assert np.linalg.norm(third - along) > 5e-3 * np.linalg.norm(third)


# -- splitting --------------------------------------------------------------------------------------------------------
TOP = InvariantSystem(
    SO3(), [1.0, 1.4, 0.7], potential=lambda t, g, p: p * g[2] @ jnp.array([0.1, 0.2, 1.0]), parameters=jnp.array(1.3)
)
TOP_STATE = TOP.state(xi=jnp.array([0.3, 0.5, 2.0]))


@pytest.mark.parametrize(("order", "counts"), [(2, (20, 40, 80)), (4, (20, 40, 80))])
def test_heavy_top(order, counts):
    end = simulate(TOP, Reference(), TOP_STATE, step=2.0, steps=1)
    errors = []
    for n in counts:
        run = simulate(TOP, KineticSplitting(order), TOP_STATE, step=2 / n, steps=n, save_every=n).check()
        errors.append(max(np.abs(run.momentum[-1] - end.momentum[-1]).max(), np.abs(run.g[-1] - end.g[-1]).max()))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - order) < 0.05)
    vertical = [run.g[k][2] @ run.momentum[k] for k in (0, -1)]
    assert abs(vertical[1] - vertical[0]) < 1e-13


def test_splitting_without_potential_is_exact():
    run = simulate(HV, KineticSplitting(), HV_STATE, step=0.5, steps=20, save_every=20).check()
    assert max(errors(run)) < 1e-13


@pytest.mark.heavy
def test_one_shifted_map_is_exact_on_so4():
    """New: with J~^2 = J^2 + c and a scale s (both constant on the level) discrete Moser-Veselov on SO(4) has the exact
    momentum.
    """
    step = lambda p, M: solve_schur(np.sqrt(MASS4**2 + p[0]), p[1] * M)
    matrix = lambda m: np.asarray(BODY4.group.hat(jnp.asarray(m)))
    run = simulate(BODY4, Reference(), STATE4, step=0.5, steps=9)
    momenta = [matrix(m) for m in run.momentum]

    def defect(p, k):
        w = step(p, momenta[k])
        return np.asarray(BODY4.group.vee(jnp.asarray(w @ momenta[k] @ w.T - momenta[k + 1])))

    found = least_squares(defect, [0.0, 0.5], args=(0,), xtol=1e-15, ftol=1e-15, gtol=1e-15).x
    assert np.abs(found - [1.96005848e-04, 4.91316826e-01]).max() < 1e-8
    shares = []
    for k in (0, 4, 8):
        assert np.abs(defect(found, k)).max() < 1e-12
        rest = (
            run.g[k].T @ run.g[k + 1] @ step(found, momenta[k])
        )  # commutes with M: exp(a M + b M^3), a and b constant
        basis = np.stack(
            [BODY4.group.vee(jnp.asarray(X)) for X in (momenta[k], np.linalg.matrix_power(momenta[k], 3))], axis=1
        )
        logarithm = np.asarray(BODY4.group.log(jnp.asarray(rest)))
        shares.append(np.linalg.lstsq(basis, logarithm, rcond=None)[0])
        assert np.abs(basis @ shares[-1] - logarithm).max() < 1e-11
    assert np.ptp(shares, axis=0).max() < 1e-10
