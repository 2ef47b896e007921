"""A system of real size, as a user writes it: the published bicycle, by every method that takes it, natively."""

import bicycle
import mechanisms
import numpy as np
import pytest

import dalembert as da
from dalembert import integrators

M = np.array([[80.81722, 2.31941332208709], [2.31941332208709, 0.29784188199686]])
C1 = np.array([[0.0, 33.86641391492494], [-0.85035641456978, 1.68540397397560]])
K0 = np.array([[-80.95, -2.59951685249872], [-2.59951685249872, -0.80329488458618]])
K2 = np.array([[0.0, 76.59734589573222], [0.0, 2.65431523794604]])
EIGENVALUES = [-14.07838969279822, -0.77534188219585, -0.77534188219585, -0.32286642900409]  # real parts at 5 m/s


@pytest.fixture(scope="module")
def system():
    return bicycle.make_bicycle()


@pytest.mark.heavy
def test_the_linear_motion_is_the_published_one(system):
    """M q'' + v C1 q' + (g K0 + v^2 K2) q = 0, from differences of the acceleration."""
    speed, small = 5.0, 1e-4

    def rates(system, speed, small):
        """(lean'', steer'') at a state with (lean, steer, lean', steer') = small."""
        q, v = bicycle.on_the_road(system, speed, *small)
        return np.asarray(system.acceleration(0.0, q, v)[0])[[3, 5]]

    found = np.stack([(rates(system, speed, d) - rates(system, speed, -d)) / (2 * small) for d in small * np.eye(4)], 1)
    stiffness = np.linalg.solve(M, -(bicycle.GRAVITY * K0 + speed**2 * K2))
    damping = np.linalg.solve(M, -speed * C1)
    np.testing.assert_allclose(found, np.hstack([stiffness, damping]), atol=2e-5)
    values = np.linalg.eigvals(np.block([[np.zeros((2, 2)), np.eye(2)], [found]]))
    np.testing.assert_allclose(np.sort(values.real), EIGENVALUES, atol=2e-6)


@pytest.mark.heavy
def test_the_ground_carries_the_weight(system):
    """The multiplier of the front contact is the static load of 309.303529411765 N."""
    q, v = bicycle.on_the_road(system, 0.0)
    assert abs(abs(system.multipliers(0.0, q, v)[-1]) - 309.303529411765) < 1e-9


@pytest.mark.heavy
def test_what_a_bicycle_can_reach(system):
    """The same leaf of dimension 7 by both drawings, by brackets of depth 3 in coordinates and 4 upright on SE(3)."""
    q, _ = bicycle.on_the_road(system, 5.0, lean=0.05, steer=0.02)
    flat = da.nonholonomy(system, q)
    assert (flat.growth, flat.declared, len(flat.covectors)) == ((3, 5, 7), 1, 0)
    drawn = mechanisms.draw_bicycle().system()
    upright = da.nonholonomy(drawn, drawn.state(speed=5.0).g)
    assert (upright.growth, upright.declared, len(upright.covectors)) == ((3, 4, 6, 7), 2, 0)


def start(system):
    q, v = bicycle.on_the_road(system, 5.0, lean=0.05, steer=0.02, lean_rate=0.3)
    return system.state(q, v)


@pytest.mark.heavy
def test_a_long_program_runs_natively(system):
    run = da.simulate(system, da.DormandPrince(), start(system), step=0.01, steps=50, backend="llvm").check()
    assert np.abs(run.energy_error()).max() < 1e-9
    assert run.reaction().shape == (51, 8)


@pytest.mark.heavy
def test_taylor_runs_natively_at_any_tolerance(system):
    begin = start(system)
    exact = da.simulate(system, da.DormandPrince(1e-13), begin, step=0.5, steps=1, backend="llvm").check().g[-1]
    for tolerance, bound in ((1e-4, 1e-4), (1e-15, 1e-12)):
        run = da.simulate(system, da.Taylor(tolerance), begin, step=0.5, steps=1, backend="llvm").check()
        assert np.abs(run.g[-1] - exact).max() < bound


METHODS = {
    "lagrange-dalembert": (integrators.LagrangeDAlembert(), 2),
    "runge-kutta": (integrators.RungeKutta(), 4),
    "gauss 1": (integrators.Gauss(1), 2),
    "gauss 2": (integrators.Gauss(2), 4),
    "gauss 3": (integrators.Gauss(3), 6),
    "lobatto": (integrators.Lobatto(3), 4),
    "discrete-gradient": (integrators.DiscreteGradient(), 2),
    "projected": (integrators.ProjectedRungeKutta(), 4),
    "tangent-lift": (integrators.TangentLift(), 2),
    "cotangent-lift": (integrators.CotangentLift(), 2),
    "order 8": (integrators.Composition("kahan-li-8"), 8),
}


FAST = "runge-kutta"
OTHERS = [pytest.param(name, marks=pytest.mark.heavy) for name in METHODS if name != FAST]


@pytest.mark.parametrize("name", [FAST, *OTHERS])
def test_every_method_finds_the_same_motion(system, name):
    """At t = 0.5, against Dormand and Prince's; the error falls by 2^order."""
    method, order = METHODS[name]
    begin = start(system)
    exact = da.simulate(system, da.DormandPrince(), begin, step=0.005, steps=100, backend="llvm").check().g[-1]
    errors = []
    for steps in (25, 50):
        run = da.simulate(system, method, begin, step=0.5 / steps, steps=steps, backend="llvm").check()
        errors.append(np.abs(np.asarray(run.g[-1] - exact)).max())
    assert errors[1] < 1e-10 or np.log2(errors[0] / errors[1]) > order - 0.5
    assert errors[1] < 2e-3
