"""The branches of the multivalued discrete map, runs that choose among them, and the steps at which they end."""

from __future__ import annotations

from itertools import pairwise

import jax
import numpy as np
import pytest

import dalembert as da
from dalembert.analysis.branches import find_branches as branches
from dalembert.analysis.branches import images, iterate, largest_step
from dalembert.analysis.integrals import largest_step_of_level
from dalembert.analysis.legendre import (
    AlgebraicMap,
    TracedMap,
    algebraic_map,
    angle_map,
    constrained_energy,
    legendre_map,
)
from dalembert.analysis.polynomials import RationalMap

GENERIC = [[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]]
SPECIAL = [[3.0, 0.0, 0.0], [0.0, 3.0, 0.5], [0.0, 0.5, 5.0]]
M_GENERIC, M_SPECIAL = np.array([41.07400078, -99.38251558]), np.array([179.9836568, 2.4255507998])
VESELOV, CAYLEY = da.EulerPoincareSuslov("moser-veselov"), da.EulerPoincareSuslov("retraction")
MASS4 = np.array([[1.0, 0.1, 0.05, 0.2], [0.1, 0.8, -0.1, 0.15], [0.05, -0.1, 0.6, 0.1], [0.2, 0.15, 0.1, 0.5]])


def generic():
    return da.models.suslov(GENERIC)


def special():
    return da.models.suslov(SPECIAL)


def tilted():
    return da.models.suslov([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]], normal=[0.3, -0.2, 1.0])


def sleigh():
    return da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.2)


def suslov_4():
    return da.models.suslov_n(MASS4)


@pytest.mark.parametrize("integrator", [VESELOV, CAYLEY], ids=["moser-veselov", "cayley"])
@pytest.mark.parametrize("build", [tilted, sleigh, pytest.param(suslov_4, marks=pytest.mark.heavy)])
def test_the_rational_map_is_the_integrators(build, integrator):
    """h F l_d(tau(B x)) in numpy, its derivatives, and Ad*_W h M(x) = -h M(-x), against the integrator's definition."""
    system = build()
    f = AlgebraicMap(system, integrator)
    x = 0.5 * np.random.default_rng(0).normal(size=f.rank)

    @jax.jit
    def definition(x):
        impulse = lambda x: integrator.impulse(system, system.subspace @ x, 1.0)
        W = integrator.retraction.tau(system.group, system.subspace @ x)
        return impulse(x), jax.jacfwd(impulse)(x), system.subspace.T @ system.group.Ad_star(W, impulse(x))

    impulse, slope, transported = definition(x)
    assert np.abs(f.impulse(x) - impulse).max() < 1e-14
    assert np.abs(f.slope(x) - slope).max() < 1e-13
    assert np.abs(f.transport(x) - transported).max() < 1e-14
    assert np.abs(f.rational.value(x[None])[0] - f.restriction(x)).max() < 1e-13
    shift = 1e-5 * np.eye(f.rank)
    bend = np.stack([(f.slope(x + e) - f.slope(x - e)) / 2e-5 for e in shift], axis=-1)
    assert np.abs(f.bend(x) - bend).max() < 1e-8


@pytest.mark.parametrize(
    ("build", "integrator", "momentum", "step", "count", "real"),
    [
        (generic, VESELOV, M_GENERIC, 0.015, 4, 2),
        (generic, CAYLEY, M_GENERIC, 0.015, 7, 1),
        (special, VESELOV, M_SPECIAL, 0.007, 4, 2),
        (special, CAYLEY, M_SPECIAL, 0.007, 5, 1),
        (sleigh, VESELOV, np.array([0.7, -1.1]), 0.1, 3, 1),
    ],
)
def test_branch_counts(build, integrator, momentum, step, count, real):
    system = build()
    first = branches(system, integrator, momentum, step)
    assert (len(first), first.is_real.sum()) == (count, real) and first.complete
    found = first.momenta @ np.asarray(system.subspace)
    assert np.abs(found - momentum).max() < 1e-9 * np.abs(momentum).max()
    second = images(system, integrator, first.real[0], step)
    assert (len(second), second.is_real.sum()) == (count, real)


def test_the_first_branches_are_those_of_the_reference_and_solve_the_printed_equations():
    A, B, p, q, h = 3.0, 4.0, 1.0, 0.5, 0.015
    first = branches(generic(), VESELOV, M_GENERIC, h)
    assert np.abs(first.real[0, :2] - [14.46920789902155, -26.04718900454228]).max() < 1e-10
    u0, v0 = first.real[0, :2]
    weight = 4 + h**2 * (u0**2 + v0**2)
    a = (4 * A * u0 - 2 * h * v0 * (p * u0 + q * v0)) / weight
    b = (4 * B * v0 + 2 * h * u0 * (p * u0 + q * v0)) / weight
    u, v, _ = images(generic(), VESELOV, first.real[0], h).increments.T
    assert (
        np.abs(4 * A * u + 2 * h * p * u * v + 2 * h * q * v**2 - a * (4 + h**2 * (u**2 + v**2))).max() < 1e-6
    )  # (31)
    assert np.abs(4 * B * v - 2 * h * q * u * v - 2 * h * p * u**2 - b * (4 + h**2 * (u**2 + v**2))).max() < 1e-6
    cayley = branches(generic(), CAYLEY, M_GENERIC, h)
    assert np.abs(cayley.real[0, :2] - [13.07418986678973, -23.87965657099247]).max() < 1e-10
    u, v, _ = cayley.increments.T
    cube = A * u + h / 2 * v * (p * u + q * v) + h**2 / 4 * u * (A * u**2 + B * v**2)
    assert np.abs(cube - M_GENERIC[0]).max() < 1e-8  # (42)


def test_a_map_too_large_for_homotopies_gives_the_real_branches_of_a_box(monkeypatch):
    every = branches(generic(), CAYLEY, M_GENERIC, 0.1)
    monkeypatch.setattr("dalembert.analysis.branches.MAX_GRID_POINTS", 1)
    found = branches(generic(), CAYLEY, M_GENERIC, 0.1)
    assert every.complete and not found.complete
    assert found.real.shape == every.real.shape and np.abs(found.real - every.real).max() < 1e-8


def test_three_real_cayley_branches():
    """No theorem says that the Cayley map has one real branch: this tensor of ERRATA.md has points with three."""
    system = da.models.suslov([[30.0, 0.0, 0.0], [0.0, 1.0, 4.25], [0.0, 4.25, 29.5]])
    f = AlgebraicMap(system, CAYLEY)
    grid = np.stack(np.meshgrid(*[np.linspace(-6, 6, 61)] * 2), -1).reshape(-1, 2)
    inside = grid[np.linalg.det(f.jacobian(grid)) < 0]
    assert len(inside)
    found = branches(system, CAYLEY, f.restriction(inside[0]), 1.0)
    assert (len(found), found.is_real.sum()) == (7, 3)


def test_the_sleighs_cubic():
    """ph t^3 - (p_theta + b p1) t^2 + (2 J + ph) t - (p_theta + b p1) = 0 with t = tan(dtheta/2) (ERRATA.md)."""
    m, J, a, b, h = 1.3, 0.9, 0.4, 0.2, 0.5
    p_theta, p1 = 1.4, -0.8
    found = branches(da.models.chaplygin_sleigh(m, J, a, b), VESELOV, [p_theta, p1], h)
    ph, shifted = a * h * p1 + 2 * m * a * a, h * (p_theta + b * p1)
    expected = np.roots([ph, -shifted, 2 * J + ph, -shifted])
    tangents = h * found.increments[:, 0] / 2
    assert len(found) == 3
    assert np.abs(np.sort_complex(tangents) - np.sort_complex(expected)).max() < 1e-10


def test_total_degree_and_monodromy_find_the_same_fibre():
    rational: RationalMap = algebraic_map(generic(), CAYLEY).rational
    base, start = rational._monodromy(np.random.default_rng(3))
    assert len(start) == 7
    other, gone = rational.fibre(rational.generic_fibre(), base)
    assert gone == 0 and len(other) == 7
    assert max(np.abs(other - x).max(1).min() for x in start) < 1e-8


@pytest.mark.parametrize(("integrator", "count"), [(VESELOV, None), (CAYLEY, None)], ids=["moser-veselov", "cayley"])
def test_branches_on_so4_contain_the_run(integrator, count):
    system, h = suslov_4(), 0.2
    momentum = np.array([0.5, -0.3, 0.4])
    run = iterate(system, integrator, momentum, step=h, steps=3)
    for now, following in pairwise(run):
        found = images(system, integrator, now, h)
        assert np.abs(found.increments - following).max(1).min() < 1e-9
        assert len(found) >= 2 and found.complete


def test_moser_veselov_branches_do_not_depend_on_the_retraction():
    """exp d = tau(d): the displacements are the same, their coordinates logarithms."""
    cayley = branches(generic(), VESELOV, M_GENERIC, 0.015)
    exponential = branches(generic(), da.EulerPoincareSuslov("moser-veselov", da.Exponential()), M_GENERIC, 0.015)
    assert exponential.complete and len(exponential) == 4
    gaps = np.abs(cayley.displacements[:, None] - exponential.displacements[None]).max((2, 3))
    assert gaps.min(1).max() < 1e-12


def test_other_methods_give_real_branches_in_a_box():
    method = da.EulerPoincareSuslov("retraction", da.Exponential())
    found = branches(generic(), method, M_GENERIC, 0.015)
    assert not found.complete and len(found) >= 1
    f = legendre_map(generic(), method)
    assert isinstance(f, TracedMap)
    x, exists = f.start(0.015 * M_GENERIC)
    assert exists and np.abs(found.real[0, :2] - x / 0.015).max() < 1e-9


def test_strategies_agree_inside_the_separatrix_and_the_component_is_kept_outside():
    system, h = generic(), 0.03
    runs = [
        iterate(system, VESELOV, M_GENERIC, step=h, steps=2, branch=branch)
        for branch in ("continuation", "smallest", "component")
    ]
    assert np.abs(runs[0] - runs[1]).max() < 1e-9 and np.abs(runs[0] - runs[2]).max() < 1e-9
    reference = da.simulate(system, VESELOV, system.state(momentum=M_GENERIC), step=h, steps=2).check()
    assert np.abs(runs[0] - np.asarray(reference.increment)).max() < 1e-9


def test_a_large_rotation_stays_on_its_own_component():
    from dalembert.analysis.branches import on_one_component

    found = branches(generic(), VESELOV, M_GENERIC, 0.03)
    small, large = 0.03 * found.real[:, :2]
    assert not on_one_component(generic(), VESELOV, small, large)
    following = 0.03 * images(generic(), VESELOV, found.real[1], 0.03).real[:, :2]
    assert [on_one_component(generic(), VESELOV, large, x) for x in following] == [False, True]


# -- thresholds -------------------------------------------------------------------------------------------------------
def test_thresholds_of_the_suslov_runs():
    """ERRATA.md: M(0) has no preimage above 0.0351714, the run fails first at 0.0327626 in step 6, the whole oval at
    0.032733773.
    """
    assert abs(largest_step(generic(), VESELOV, M_GENERIC) - 0.0351714) < 5e-8
    assert abs(largest_step(generic(), VESELOV, M_GENERIC, steps=6) - 0.0327626) < 5e-8
    assert largest_step(generic(), VESELOV, M_GENERIC, steps=5) > 0.033
    level = constrained_energy(generic(), M_GENERIC)
    assert abs(largest_step_of_level(generic(), VESELOV, level) - 0.032733773) < 1e-9
    level = constrained_energy(special(), M_SPECIAL)
    assert abs(largest_step_of_level(special(), VESELOV, level) - 1 / 60) < 1e-10
    assert largest_step(generic(), CAYLEY, M_GENERIC, steps=2, up_to=1.0) == np.inf


def test_a_threshold_is_exact():
    threshold = largest_step(generic(), VESELOV, M_GENERIC, steps=6)
    f = legendre_map(generic(), VESELOV)
    for h, exists in ((threshold * (1 - 1e-11), True), (threshold * (1 + 1e-11), False)):
        x, good = f.start(h * M_GENERIC)
        orbit = f.orbit(x, 6)
        assert good and np.isfinite(orbit[:6]).all() and np.isfinite(orbit[6]).all() == exists


@pytest.mark.heavy
def test_the_threshold_of_a_free_body_is_that_of_moser_veselov():
    J = np.array([0.92181297074480, 0.73820724581067, 0.17626614449462])
    m = np.array([0.41027020699095, 0.89364953091353, 0.05789130478427])
    body = da.InvariantSystem(da.SO3(), J.sum() - J)
    m /= np.linalg.norm(m)
    assert abs(largest_step(body, VESELOV, m) - 1.06021984678014) < 1e-12
    assert abs(largest_step(body, da.DiscreteMoserVeselov(order=2), m) - 1.06021984678014) < 1e-12


def test_a_failed_run_reports_the_threshold():
    system = generic()
    run = da.simulate(system, VESELOV, system.state(momentum=M_GENERIC), step=0.033, steps=30)
    with pytest.raises(da.NumericalFailure, match=r"after 5 good steps.*steps below 0\.0328343"):
        run.check()
    with pytest.raises(da.NumericalFailure, match=r"after 5 good steps.*steps below 0\.0328343"):
        iterate(system, VESELOV, M_GENERIC, step=0.033, steps=30)
    with pytest.raises(da.NumericalFailure, match=r"at its start.*steps below 0\.0351713"):
        iterate(system, VESELOV, M_GENERIC, step=0.036, steps=3)


def test_clear_errors():
    with pytest.raises(da.InvalidInput, match="momentum"):
        branches(generic(), VESELOV, [1.0, 2.0, 3.0, 4.0], 0.1)
    with pytest.raises(da.InvalidInput, match="step"):
        branches(generic(), VESELOV, [1.0, 2.0], 0.0)
    with pytest.raises(da.InvalidInput, match="EulerPoincareSuslov"):
        branches(generic(), da.integrators.ImplicitMidpoint(), [1.0, 2.0], 0.1)
    with pytest.raises(da.InvalidInput, match="not in d"):
        images(generic(), VESELOV, [0.1, 0.2, 0.3], 0.1)
    with pytest.raises(da.errors.UnknownName, match="continuation"):
        iterate(generic(), VESELOV, [1.0, 2.0], step=0.1, steps=1, branch="continuatoin")
    with pytest.raises(da.InvalidInput, match="potential"):
        branches(da.models.suslov(GENERIC, weight=[0, 0, 1.0]), VESELOV, [1.0, 2.0], 0.1)


def test_angle_coordinates_reach_rotations_by_pi():
    f, g = angle_map(generic(), VESELOV), AlgebraicMap(generic(), VESELOV)
    y = np.array([0.8, -1.1])
    t = np.hypot(*y)
    assert np.abs(f.impulse(y) - g.impulse(2 * np.tan(t / 2) / t * y)).max() < 1e-14
    half = np.array([np.pi, 0.0])
    assert np.abs(f.impulse(half) - f.impulse(-half)).max() < 1e-14
