"""First integrals, equilibria, invariant curves and limits of the discrete Suslov problem and the discrete sleigh."""

from __future__ import annotations

import numpy as np
import pytest

import dalembert as da
from dalembert.analysis.branches import displacement_coordinates, image_tree, iterate
from dalembert.analysis.branches import find_branches as branches
from dalembert.analysis.integrals import (
    critical_points,
    discrete_energy,
    energy_jump,
    equilibrium_line,
    invariant_curves,
    jacobian_determinant,
    limits,
    projective,
)
from dalembert.analysis.integrals import discrete_total_turning as total_turning
from dalembert.analysis.legendre import AlgebraicMap, constrained_energy, legendre_map
from dalembert.models import exact_momentum
from dalembert.papers.garcia_naranjo_jimenez import scattering

A, B, p, q = 3.0, 4.0, 1.0, 0.5
GENERIC = [[A, 0.0, p], [0.0, B, q], [p, q, 5.0]]
SPECIAL = [[3.0, 0.0, 0.0], [0.0, 3.0, 0.5], [0.0, 0.5, 5.0]]
M_GENERIC = np.array([41.07400078, -99.38251558])
VESELOV, CAYLEY = da.EulerPoincareSuslov("moser-veselov"), da.EulerPoincareSuslov("retraction")
MASS4 = np.array([[1.0, 0.1, 0.05, 0.2], [0.1, 0.8, -0.1, 0.15], [0.05, -0.1, 0.6, 0.1], [0.2, 0.15, 0.1, 0.5]])
MASS5 = np.diag([1.0, 0.9, 0.8, 0.6, 0.5]) + 0.1 * np.array(
    [[0, 1, -1, 0.5, 1], [1, 0, 0.3, 0.7, -0.6], [-1, 0.3, 0, 0.2, 0.9], [0.5, 0.7, 0.2, 0, -0.4], [1, -0.6, 0.9, -0.4, 0]]
)  # fmt: skip


def increments(count: int = 20, size: float = 20.0) -> np.ndarray:
    w = size * np.random.default_rng(0).normal(size=(count, 3))
    return w * [1.0, 1.0, 0.0]


# -- energies ---------------------------------------------------------------------------------------------------------
def test_R_and_Q_and_the_jump_of_Q():
    """Propositions 7.1 and 7.2 as printed: R = 2 I11 I22 E_c for Moser-Veselov, Q and its jump for Cayley."""
    system, h, w = da.models.suslov(GENERIC), 0.015, increments()
    u, v = w[:, 0], w[:, 1]
    s = p * u + q * v
    R = 4 * (A * u**2 + B * v**2) * (4 * A * B + h**2 * s**2) / (4 + h**2 * (u**2 + v**2)) ** 2
    Q = (A * u**2 + B * v**2) / 16 * (
        16 * A * B + h**2 * (8 * A * B * (u**2 + v**2) + 4 * s**2) + 4 * h**3 * u * v * (B - A) * s
        + h**4 * (A * u**2 + B * v**2) * (B * u**2 + A * v**2)
    )  # fmt: skip
    jump = h**3 * u * v / 2 * (A - B) * (A * u**2 + B * v**2) * s
    assert np.abs(2 * A * B * discrete_energy(system, VESELOV, w, h) / R - 1).max() < 1e-13
    assert np.abs(2 * A * B * discrete_energy(system, CAYLEY, w, h) / Q - 1).max() < 1e-13
    assert np.abs(energy_jump(system, VESELOV, w, h) / discrete_energy(system, VESELOV, w, h)).max() < 1e-13
    assert np.abs(2 * A * B * energy_jump(system, CAYLEY, w, h) - jump).max() < 1e-10 * np.abs(jump).max()
    assert np.abs(energy_jump(da.models.suslov(SPECIAL), CAYLEY, w, h)).max() < 1e-10


def test_fedorov_zenkovs_integrals():
    """(6.17) = 2 det(B^T I B) E_c = 4 (6.18) in (q0, q1, q2) on SO(3); (7.21) = 2 m (J + m a^2) E_c on SE(2)."""
    inertia = np.array([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
    system = da.models.suslov(inertia)
    J = np.trace(inertia) / 2 * np.eye(3) - inertia
    y = np.random.default_rng(1).uniform(-1.5, 1.5, (10, 2))
    m = AlgebraicMap(system, VESELOV, angles=True).restriction(y)
    quadratic = (
        (J[0, 0] + J[2, 2]) * m[:, 0] ** 2 + 2 * J[0, 1] * m[:, 0] * m[:, 1] + (J[1, 1] + J[2, 2]) * m[:, 1] ** 2
    )
    assert np.abs(2 * np.linalg.det(inertia[:2, :2]) * constrained_energy(system, m) - quadratic).max() < 1e-12
    q1, q2, q0 = projective(y).T
    s = J[0, 2] * q1 + J[1, 2] * q2
    quartic = ((J[1, 1] + J[2, 2]) * q1**2 - 2 * J[0, 1] * q1 * q2 + (J[0, 0] + J[2, 2]) * q2**2) * (
        s**2 + ((J[0, 0] + J[2, 2]) * (J[1, 1] + J[2, 2]) - J[0, 1] ** 2) * q0**2
    )
    assert np.abs(quadratic - 4 * quartic).max() < 1e-11
    mass, Jc, a, b = 1.3, 0.9, 0.4, 0.2
    p_theta, p1 = 0.7, -1.1
    total = mass * p_theta**2 + 2 * b * mass * p_theta * p1 + (Jc + mass * (a**2 + b**2)) * p1**2
    found = constrained_energy(da.models.chaplygin_sleigh(mass, Jc, a, b), np.array([p_theta, p1]))
    assert abs(2 * mass * (Jc + mass * a * a) * found - total) < 1e-12


# -- invariant curves, equilibria -------------------------------------------------------------------------------------
def test_critical_values_and_invariant_curves():
    """Two ovals below h*, none above h**, and the discrete motion stays on its own (the foliation of Figure 6.3)."""
    system = da.models.suslov(GENERIC)
    points = critical_points(system, VESELOV)
    saddles = [point.value for point in points if point.index == 1 and projective(point.coordinates)[2] > 0.1]
    centres = [point.value for point in points if point.index == 2]
    assert len(saddles) == len(centres) == 2 and np.ptp(saddles) < 1e-12 and np.ptp(centres) < 1e-12
    low, high = saddles[0], centres[0]
    assert abs(low - 1.6241682532) < 1e-9 and low < high
    counts = [
        len(invariant_curves(system, VESELOV, value, points=121))
        for value in (0.9 * low, 0.5 * (low + high), 1.01 * high)
    ]
    assert counts == [2, 2, 0]
    f = AlgebraicMap(system, VESELOV)
    orbit = f.orbit(np.array([0.5, 0.6]), 30)
    levels = constrained_energy(system, f.restriction(orbit))
    assert np.ptp(levels) < 1e-14
    ovals = invariant_curves(system, VESELOV, levels[0], points=121)
    coordinates = (
        2 * np.arctan(np.linalg.norm(orbit, axis=1) / 2)[:, None] * orbit / np.linalg.norm(orbit, axis=1)[:, None]
    )
    distances = [max(np.nanmin(np.linalg.norm(oval - y, axis=1)) for y in coordinates) for oval in ovals]
    assert min(distances) < 0.05 < max(distances)


@pytest.mark.parametrize("integrator", [VESELOV, CAYLEY], ids=["moser-veselov", "cayley"])
def test_the_line_of_equilibria_and_its_stability(integrator):
    """Theorem 6.3: stationary where J13 q1 + J23 q2 = 0, stable in Theta_+ (ERRATA.md), unstable on the other side."""
    system, h = da.models.suslov(GENERIC), 0.015
    w = equilibrium_line(system, integrator)
    J = np.trace(np.asarray(GENERIC)) / 2 * np.eye(3) - np.asarray(GENERIC)
    assert abs(J[0, 2] * w[0] + J[1, 2] * w[1]) < 1e-12
    theta = (J[0, 1] * J[0, 2] + J[1, 1] * J[1, 2] + J[1, 2] * J[2, 2]) * w[0] - (
        J[0, 0] * J[0, 2] + J[0, 1] * J[1, 2] + J[0, 2] * J[2, 2]
    ) * w[1]
    assert theta > 0
    f = legendre_map(system, integrator, h)

    def stays(x):
        """Whether some branch of the map leaves the displacement where it is."""
        return np.abs(f.transport(x) - f.restriction(x)).max() <= 1e-10 * np.abs(f.restriction(x)).max()

    for size, stable in ((20.0, True), (-20.0, False)):
        x = displacement_coordinates(system, size * w, h)
        assert stays(x)
        values = np.abs(np.linalg.eigvals(np.linalg.solve(f.jacobian(x), f.transport_slope(x))))
        assert np.abs(values - 1).min() < 1e-10 and (values.min() < 0.95 if stable else values.max() > 1.05)
    assert not stays(displacement_coordinates(system, [3.0, 4.0, 0.0], h))


def test_the_volume_is_kept_only_where_nothing_attracts():
    """det d(M')/d(M) is 1 for balanced and for free bodies, not for an unbalanced Suslov body, whose equilibria
    attract.
    """
    w = increments(6)
    assert np.abs(jacobian_determinant(da.models.suslov([3.0, 4.0, 5.0]), VESELOV, w, 0.015) - 1).max() < 1e-12
    free = da.InvariantSystem(da.SO3(), [3.0, 4.0, 5.0])
    for integrator in (VESELOV, CAYLEY):
        assert (
            np.abs(
                jacobian_determinant(free, integrator, 10 * np.random.default_rng(2).normal(size=(6, 3)), 0.015) - 1
            ).max()
            < 1e-12
        )
        assert np.abs(jacobian_determinant(da.models.suslov(GENERIC), integrator, w, 0.015) - 1).max() > 0.05


# -- limits -----------------------------------------------------------------------------------------------------------
def test_limits_are_mutually_inverse_on_so3():
    """Theorem 6.3, from the unstable half of the line to the stable one; for Cayley's map only if I11 = I22."""
    for inertia, integrator, inverse in ((GENERIC, VESELOV, True), (SPECIAL, CAYLEY, True), (GENERIC, CAYLEY, False)):
        system = da.models.suslov(inertia)
        found = limits(system, integrator, [30.0, 40.0], 0.03)
        line = equilibrium_line(system, integrator)
        assert found.before @ line < 0 < found.after @ line
        gap = np.abs(found.before + found.after).max() / np.abs(found.after).max()
        assert gap < 1e-12 if inverse else gap > 1e-7
        assert np.abs(np.cross(found.after, line)).max() < 1e-11 * np.abs(found.after).max()


@pytest.mark.heavy
@pytest.mark.parametrize("mass", [MASS4, MASS5], ids=["SO(4)", "SO(5)"])
def test_limits_are_mutually_inverse_on_so_n(mass):
    """New: Moser-Veselov keeps the energy for every n, and the limit rotations are mutually inverse; Cayley's
    are not.
    """
    system = da.models.suslov_n(mass)
    momentum = 0.3 * np.arange(1, len(mass)) - 0.5
    found = limits(system, VESELOV, momentum, 0.2)
    assert np.abs(found.before + found.after).max() < 1e-12
    ends = discrete_energy(system, VESELOV, np.array([found.before, found.after]), 0.2)
    assert np.abs(ends - constrained_energy(system, momentum)).max() < 1e-12
    other = limits(system, CAYLEY, momentum, 0.2)
    assert np.abs(other.before + other.after).max() > 1e-10
    assert branches(system, VESELOV, momentum, 0.2).is_real.sum() == 2


def test_moser_veselov_keeps_the_energy_on_so_n():
    for mass in (MASS4, MASS5):
        system = da.models.suslov_n(mass)
        w = np.random.default_rng(0).normal(size=(5, len(mass) - 1)) @ np.asarray(system.subspace).T
        assert np.abs(energy_jump(system, VESELOV, w, 0.3)).max() < 1e-14
        assert np.abs(energy_jump(system, CAYLEY, w, 0.3)).max() > 1e-5


def test_moser_veselov_runs_fast_and_cayley_slowly():
    """Remark 8.1 is reversed in print. On the arc sin a = tanh(phase) the flow's phase grows at a constant rate
    (exact_momentum).
    """
    system, h, steps = da.models.suslov(GENERIC), 0.015, 67

    def phase(momentum):
        lower = np.linalg.cholesky(np.asarray(GENERIC)[:2, :2])
        u, k = np.linalg.solve(lower, momentum), np.linalg.solve(lower, [p, q])
        return np.arcsinh((k[0] * u[1] - k[1] * u[0]) / abs(k @ u))

    flow = phase(exact_momentum(GENERIC, M_GENERIC, steps * h)[:2]) - phase(M_GENERIC)
    speeds = []
    for integrator in (VESELOV, CAYLEY):
        f = AlgebraicMap(system, integrator)
        orbit = f.restriction(f.orbit(f.start(h * M_GENERIC)[0], steps)) / h
        speeds.append((phase(orbit[-1]) - phase(M_GENERIC)) / flow)
    assert speeds[0] > 1.001 and speeds[1] < 0.999


# -- the sleigh -------------------------------------------------------------------------------------------------------
def test_theorem_7_4():
    """Below E < m^2 a^2 (J + m a^2) one real branch, p1 rises from -inf to +inf, p_theta keeps its sign, limits are
    opposite.
    """
    m, J, a = 1.3, 0.9, 0.4
    system = da.models.chaplygin_sleigh(m, J, a, 0.0)
    bound = m**2 * a**2 * (J + m * a * a)
    for angle in np.linspace(0.2, 2 * np.pi, 5):
        size = np.sqrt(0.98 * bound)
        impulse = size * np.array([np.cos(angle) / np.sqrt(m), np.sin(angle) / np.sqrt(J + m * a * a)])
        assert branches(system, VESELOV, impulse, 1.0).is_real.sum() == 1
    f = AlgebraicMap(system, VESELOV)
    x, _ = f.start(impulse)
    orbit = np.concatenate([f.orbit(x, -40)[:0:-1], f.orbit(x, 40)])
    p_theta, p1 = f.restriction(orbit).T
    assert np.all(np.diff(p1) >= -1e-15) and len(set(np.sign(p_theta))) == 1 and p1[0] < 0 < p1[-1] < m * a
    found = limits(system, VESELOV, impulse, 1.0)
    assert np.abs(found.before + found.after).max() < 1e-10


def test_the_sleighs_total_turning():
    """It tends to (pi/a) sqrt((J + m a^2)/m) like h^2, and b does not matter."""
    exact = np.pi / 0.3 * np.sqrt(1.09)
    momentum = np.array([0.5 * 1.09, -1.0])
    errors = [
        total_turning(da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.0), VESELOV, momentum, h) - exact for h in (0.2, 0.1)
    ]
    assert abs(np.log2(errors[0] / errors[1]) - 2) < 0.05
    shifted = momentum - [0.2 * momentum[1], 0.0]
    other = total_turning(da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.2), VESELOV, shifted, 0.2) - exact
    assert abs(other - errors[0]) < 1e-10


def test_balanced_bodies():
    """J13 = J23 = 0 and a = 0: the body momentum is constant; the balanced sleigh runs on a circle of radius
    V1/sin(dtheta).
    """
    for system, momentum in (
        (da.models.suslov([3.0, 4.0, 5.0]), [3.0, 2.0]),
        (da.models.chaplygin_sleigh(a=0.0, b=0.2), [0.7, -1.0]),
    ):
        run = iterate(system, VESELOV, momentum, step=0.1, steps=10)
        assert np.abs(run - run[0]).max() < 1e-13
        with pytest.raises(da.InvalidInput, match="balanced"):
            equilibrium_line(system, VESELOV)
    f = AlgebraicMap(system, VESELOV)
    W = f.displacement(0.1 * run[0, :2])
    V1, turn = W[0, 2], np.arctan2(W[1, 0], W[0, 0])
    poses = [np.eye(3)]
    for _ in range(60):
        poses.append(poses[-1] @ W)
    points = np.array(poses)[:, :2, 2]
    centre = np.array([0.0, V1 / np.sin(turn)])
    assert np.ptp(np.linalg.norm(points - centre, axis=1)) < 1e-12
    assert abs(np.linalg.norm(points[7] - centre) - abs(V1 / np.sin(turn))) < 1e-12


def test_the_naive_constraint_makes_the_balanced_sleigh_spiral():
    """(7.9) with a = 0: the turns stay equal and every chord is cos(dtheta) times the last one, a logarithmic spiral
    (footnote 5).
    """
    system = da.models.chaplygin_sleigh(1.0, 1.0, 0.0, 0.0)
    naive = da.LagrangeDAlembert(pair=da.mechanics.chord_pair(system, da.mechanics.moser_veselov))
    run = da.simulate(system, naive, system.state(xi=[1.0, -1.0, 0.0]), step=0.1, steps=50).check()
    turns = np.diff(np.asarray(run.angles)[:, 0])
    chords = np.linalg.norm(np.diff(np.asarray(run.g)[:, :2, 2], axis=0), axis=1)
    assert np.ptp(turns) < 1e-13
    assert np.abs(chords[1:] / chords[:-1] - np.cos(turns[0])).max() < 1e-12


# -- open questions ---------------------------------------------------------------------------------------------------
def test_no_energy_like_integral_for_a_generic_tensor():
    """Remark 7.1: limits differ, oppositely on the two sides, for the generic tensor; equal when I11 = I22, I13 = 0 or
    I23 = 0.

    Unequal limits exclude every continuous first integral but constants (see analysis/scattering.py).
    """
    sizes = [0.5, 0.7]
    one, other = (scattering(da.models.suslov(GENERIC), CAYLEY, sizes, side=side) for side in (1.0, -1.0))
    assert np.all(one.gain < -1e-6) and np.all(other.gain > 1e-6)
    back = np.interp(one.after[0], other.before, other.after)
    assert abs(back - one.before[0]) < 1e-3
    for inertia in (SPECIAL, [[A, 0, p], [0, B, 0], [p, 0, 5.0]], [[A, 0, 0], [0, B, q], [0, q, 5.0]]):
        assert np.abs(scattering(da.models.suslov(inertia), CAYLEY, sizes).gain).max() < 1e-12


@pytest.mark.parametrize(("I11", "I22", "I13", "I23"), [(3.0, 4.0, 1.0, 0.5), (2.0, 5.0, 1.0, -0.7)])
def test_the_gain_of_the_limits(I11, I22, I13, I23):
    """a_+/a_- - 1 = -(pi/16) I13 I23 (I22 - I11) e^2/(I11 I22)^(5/2) + ..., e = h^2 E_c of the limit: found by fitting,
    to 1e-4.
    """
    found = scattering(da.models.suslov([[I11, 0, I13], [0, I22, I23], [I13, I23, 9.0]]), CAYLEY, [0.05, 0.1, 0.2])
    e = 0.5 * (I11 * I23**2 + I22 * I13**2) / (I13**2 + I23**2) * found.before**2
    ratio = found.gain / (-np.pi / 16 * I13 * I23 * (I22 - I11) * e**2 / (I11 * I22) ** 2.5)
    x = found.before**2
    limit = np.polynomial.polynomial.polyfit(x, ratio, 2)[0]
    assert abs(limit - 1) < 3e-4
    assert abs(found.exponent - 4) < 0.1


def test_the_number_of_images_grows_exponentially():
    """Remark 7.2: 4^k (Suslov) and 3^k (sleigh) distinct images after k steps: no closed form of Veselov's integrable
    kind.
    """
    tree = image_tree(da.models.suslov(GENERIC), VESELOV, [0.5, 0.3, 0.0], 1.0, 3)
    assert [len(level) for level in tree] == [1, 4, 16, 64]
    tree = image_tree(da.models.chaplygin_sleigh(), VESELOV, [0.5, 0.3, 0.0], 1.0, 4)
    assert [len(level) for level in tree] == [1, 3, 9, 27, 81]
    tree = image_tree(da.models.suslov([3.0, 4.0, 5.0]), VESELOV, [0.5, 0.3, 0.0], 1.0, 3)
    assert [len(level) for level in tree] == [1, 2, 2, 2]  # balanced: stationary
