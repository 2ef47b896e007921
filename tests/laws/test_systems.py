"""Laws of (Q, L, D): Legendre map, projection, energy, equations of motion, Hamel's form, brackets."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import SYSTEMS, case

import dalembert as da
from dalembert.kernels import evaluate
from dalembert.mechanics import distribution
from dalembert.numerics import echelon, null_basis

KEYS = [key for key in SYSTEMS if key != "suslov_4"]


E = 1e-5  # of central differences
E4 = 1e-4  # of those of order four


def _laws(system, point):
    """What the laws of a system speak of, in one program: the tests below say how these numbers belong together."""
    t, g, xi, rough, direction, reference = point
    group = system.group
    momentum, rows = system.momentum(t, g, xi), system.A(t, g)
    other = system.velocity(t, g, system.momentum(t, g, rough))
    nearest = system.project(g, rough, t)
    moved = group.compose(g, group.exp(0.3 * jnp.ones(group.dim)))
    rate, multipliers = system.acceleration(t, g, xi)

    def along(function):
        """The derivative in time along the curve through g with velocity xi and acceleration xi', to second order."""

        def at(s):
            return function(t + s, group.compose(g, group.exp(s * xi + 0.5 * s**2 * rate)), xi + s * rate)

        return (8 * (at(E4) - at(-E4)) - (at(2 * E4) - at(-2 * E4))) / (12 * E4)

    def difference(function):
        return (function(E) - function(-E)) / (2 * E)

    force = group.ad_star(xi, momentum) + system.L_g(t, g, xi) + system.F(t, g, xi, None)
    return {
        "rows": rows,
        "velocity": system.velocity(t, g, momentum),
        "pushed": system.velocity(t, g, momentum + rows.T @ jnp.arange(1.0, 1.0 + rows.shape[0])),
        "other": (system.residual(t, g, other), system.momentum(t, g, other), system.momentum(t, g, rough)),
        "derivatives": {
            "momentum": (
                system.momentum(t, g, rough) @ direction,
                difference(lambda e: system.L(t, g, rough + e * direction)),
            ),
            "metric": (
                system.metric(t, g, rough) @ direction,
                difference(lambda e: system.momentum(t, g, rough + e * direction)),
            ),
            "L_g": (
                system.L_g(t, g, rough) @ direction,
                difference(lambda e: system.L(t, group.compose(g, group.exp(e * direction)), rough)),
            ),
        },
        "nearest": (nearest, system.residual(t, g, nearest), system.metric(t, g, rough) @ (nearest - rough)),
        "again": (system.project(g, nearest, t), system.project(g, xi, t)),
        "frame": (system.frame(t, g, reference) - reference, system.frame(t, moved, reference), system.A(t, moved)),
        "off": along(system.residual),
        "newton": (along(system.momentum) - force, rows.T @ multipliers),
    }


@pytest.fixture(scope="module", params=KEYS)
def point(request):
    """(system, xi, any velocity, the numbers of `_laws`) at a state of the registry."""
    system, state = case(request.param)
    n = np.arange(system.group.dim)
    rough, direction = np.asarray(state.xi) + np.cos(1.0 + n), np.sin(2.0 + n)
    given = (state.t, state.g, state.xi, rough, direction, system.basis(state.t, state.g))
    return system, np.asarray(state.xi), rough, jax.tree.map(np.asarray, evaluate(_laws, system, given))


def test_the_legendre_map(point):
    """velocity(momentum(xi)) = xi on D, and covectors in the range of A^T do not move it."""
    _, xi, _, found = point
    np.testing.assert_allclose(found["velocity"], xi, atol=1e-13)
    np.testing.assert_allclose(found["pushed"], xi, atol=1e-12)
    frame, (off, there, given) = null_basis(found["rows"]), found["other"]
    assert np.abs(off).max(initial=0.0) < 1e-12
    np.testing.assert_allclose(frame.T @ there, frame.T @ given, atol=1e-12)


def test_momentum_and_metric_are_derivatives_of_L(point):
    for derivative, difference in point[-1]["derivatives"].values():
        np.testing.assert_allclose(derivative, difference, rtol=1e-8, atol=1e-8)


def test_project_is_the_nearest_point_of_D(point):
    system, xi, rough, found = point
    nearest, off, correction = found["nearest"]
    assert np.abs(off).max(initial=0.0) < 1e-13
    np.testing.assert_allclose(found["again"], (nearest, xi), atol=1e-13)
    assert np.abs(null_basis(found["rows"]).T @ correction).max() < 1e-12
    if system.constraints:
        assert np.abs(nearest - rough).max() > 1e-2


def test_energy_of_a_kinetic_minus_potential_lagrangian():
    system, state = case("heavy_suslov")
    kinetic = 0.5 * state.xi @ system.inertia @ state.xi
    potential = system.parameters["weight"] @ state.g[2]
    np.testing.assert_allclose(system.energy(state.t, state.g, state.xi), kinetic + potential, rtol=1e-14)
    system, state = case("quartic")
    v2 = state.xi @ state.xi
    kinetic = 0.5 * v2 + 0.45 * v2**2 + 0.1 * state.g[0] * state.xi[0] * state.xi[1]
    np.testing.assert_allclose(system.energy(0.0, state.g, state.xi), kinetic + 0.5 * state.g @ state.g, rtol=1e-14)


def test_frame_spans_D_and_is_the_reference_where_it_was_taken(point):
    system, *_, found = point
    change, frame, rows = found["frame"]
    assert np.abs(change).max() < 1e-13
    assert np.abs(rows @ frame).max(initial=0.0) < 1e-13
    assert np.linalg.matrix_rank(frame) == frame.shape[1] == system.group.dim - system.constraints


def test_the_motion_stays_on_D_and_obeys_newton(point):
    """With xi' from `acceleration` A xi - b stays 0, and d/dt L_xi - ad*_xi L_xi - L_g - F = A^T l, by differences."""
    found = point[-1]
    assert np.abs(found["off"]).max(initial=0.0) < 1e-8
    np.testing.assert_allclose(*found["newton"], atol=1e-8)


@pytest.mark.parametrize(
    "key, quadratic", [("driven", True), ("heavy_suslov", True), ("ball", True), ("quartic", False)]
)
def test_quadratic_lagrangians_are_recognised(key, quadratic):
    assert case(key)[0].quadratic is quadratic


def test_a_relativistic_lagrangian_is_inverted():
    """L = -sqrt(1 - v^2): p = v/sqrt(1 - v^2), v = p/sqrt(1 + p^2)."""
    system = da.System(da.Euclidean(2), lambda t, q, v, p: -jnp.sqrt(1 - v @ v))
    momentum = jnp.array([0.4, -0.3])
    np.testing.assert_allclose(system.velocity(0.0, jnp.zeros(2), momentum), momentum / jnp.sqrt(1.25), rtol=1e-14)
    assert float(system.energy(0.0, jnp.zeros(2), momentum / jnp.sqrt(1.25))) == pytest.approx(np.sqrt(1.25), rel=1e-14)


# -- energy -----------------------------------------------------------------------------------------------------------
def test_the_reference_conserves_the_energy_of_a_quartic_lagrangian():
    system, state = case("quartic")
    run = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=5).check()
    assert np.abs(run.energy_error()).max() < 1e-11
    assert np.abs(run.constraint_residual()).max() < 1e-11
    assert np.abs(run.xi - run.xi[0]).max() > 0.5


def test_node_one_half_nearly_conserves_the_energy_of_a_quartic_lagrangian():
    system, state = case("quartic")
    method = da.LagrangeDAlembert(node=0.5)
    coarse = da.simulate(system, method, state, step=0.1, steps=100).check()
    fine = da.simulate(system, method, state, step=0.05, steps=200).check()
    ratio = np.abs(coarse.energy_error()).max() / np.abs(fine.energy_error()).max()
    assert 3.3 < ratio < 4.7


def _push(t):
    return jnp.stack([0.3 * jnp.cos(t), 0.2 + 0.0 * t, -0.1 * t])


def test_energy_balance_of_the_motion_and_of_the_method():
    """dE/dt = <F, xi> - L_t + <l, b>: nothing is left for the motion, O(h^2) for the symmetric method."""
    system, state = case("driven")
    exact = da.simulate(system, da.integrators.Reference(), state, step=0.02, steps=100).check()
    assert np.abs(exact.energy_error()).max() > 0.1
    assert np.abs(da.analysis.energy_balance(exact)).max() < 1e-7
    left = [
        np.abs(
            da.analysis.energy_balance(
                da.simulate(system, da.LagrangeDAlembert(node=0.5), state, step=h, steps=n, save_every=1).check()
            )
        ).max()
        for h, n in [(0.04, 50), (0.02, 100)]
    ]
    assert np.log2(left[0] / left[1]) == pytest.approx(2.0, abs=0.15)


def test_energy_balance_with_controls():
    system, state = case("driven")
    run = da.simulate(system, da.integrators.Reference(), state, step=0.02, steps=20, controls=_push).check()
    work = run.work()
    assert np.abs(work - replace(run, controls=None, controlled=False).work()).max() > 1e-2
    # the controls are held over each step at its midpoint: what remains is O(h^2)
    assert np.abs(np.asarray(run.energy_error()) - work).max() < 1e-4


# -- Hamel's form -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", ["heavy_suslov", "particle", "disk"])
def test_hamels_equations_are_the_equations_on_D(key):
    """rho_a = <L_xi, X_a> moves by (4) of retraction-maps exactly as along the ODE on D."""
    system, state = case(key)
    base = system.group.compose(state.g, system.group.exp(0.2 * jnp.ones(system.group.dim)))
    form = da.mechanics.hamel(system, base)

    def restricted(g, xi):
        return form.frame(g).T @ system.momentum(0.0, g, xi)

    def both(_, point):
        """(xi, rho', h) of Hamel's form, and the same by the equations on D."""
        g, xi = point
        rho, rate = restricted(g, xi), system.acceleration(0.0, g, xi)[0]
        along = lambda s: restricted(system.group.shift(g, s * xi), xi + s * rate)
        expected = jax.jvp(along, (0.0,), (1.0,))[1]
        return (*form.field(g, rho), form.hamiltonian(g, rho)), (xi, expected, system.energy(0.0, g, xi))

    (velocity, rate, hamiltonian), (xi, expected, energy) = evaluate(both, (), (state.g, state.xi))
    np.testing.assert_allclose(velocity, xi, atol=1e-12)
    np.testing.assert_allclose(rate, expected, atol=1e-11)
    assert key == "disk" or np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(hamiltonian, energy, rtol=1e-12)


def test_structure_functions_of_suslov():
    """[e1, e2] = e3 has no part in d beyond its projection along the kinetic complement I^-1 e3."""
    system, state = case("suslov")
    structure = np.asarray(da.mechanics.hamel(system).structure(state.g))
    complement = np.linalg.solve(system.inertia, [0.0, 0.0, 1.0])
    expected = -complement[:2] / complement[2]
    np.testing.assert_allclose(structure[:, 0, 1], expected, atol=1e-13)
    np.testing.assert_allclose(structure, -structure.transpose(0, 2, 1), atol=1e-13)


# -- nonholonomy ------------------------------------------------------------------------------------------------------
def _constrained(group, rows):
    return da.System(group, lambda t, g, xi, p: 0.5 * xi @ xi, rows)


def _car(t, g, p):
    """A car on SE(2) x R, (w, v1, v2, steering rate): no sliding, w = v1 tan(steering)/l."""
    return jnp.array([[0.0, 0.0, 1.0, 0.0], [0.8, 0.0, 0.0, 0.0]]) - jnp.tan(g[1][0]) * jnp.array(
        [[0.0] * 4, [0.0, 1.0, 0.0, 0.0]]
    )


GROWTH = {
    "particle": (lambda: case("particle")[0], [0.3, 0.5, -0.2], (2, 3)),
    "suslov": (lambda: case("suslov")[0], None, (2, 3)),
    "sleigh": (lambda: case("sleigh")[0], None, (2, 3)),
    "disk": (lambda: case("disk")[0], None, (2, 3, 4)),
    "ball": (lambda: case("ball")[0], None, (3, 5)),
    "car": (lambda: _constrained(da.SE2() * da.Euclidean(1), _car), None, (2, 3, 4)),
    "holonomic": (
        lambda: _constrained(da.Euclidean(3), lambda t, q, p: jnp.stack([q[0], q[1], 1.0 + 0 * q[2]])[None]),
        [0.3, 0.5, 1.0],
        (2,),
    ),
    "subgroup": (lambda: _constrained(da.SE2(), lambda t, g, p: jnp.array([[1.0, 0.0, 0.0]])), None, (2,)),
    "partly": (
        lambda: _constrained(
            da.Euclidean(4),
            lambda t, q, p: jnp.stack([jnp.stack([-q[1], 0 * q[0], 1 + 0 * q[0], 0 * q[0]]), jnp.eye(4)[3]]),
        ),
        None,
        (2, 3),
    ),
    "free": (lambda: case("heavy_top")[0], None, (3,)),
}


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("place", [0.0, 0.4])
def test_growth_vector_at_singular_points(power, place):
    """dz = y^k dx: at y = 0 the brackets vanish up to the k-th, which must not be taken for their closure."""
    system = _constrained(
        da.Euclidean(3), lambda t, q, p: jnp.stack([-(q[1] ** power), 0 * q[0], 1.0 + 0 * q[0]])[None]
    )
    found = da.nonholonomy(system, [0.3, place, -0.2], depth=4)
    assert found.growth == ((2,) * power + (3,) if place == 0.0 else (2, 3))
    assert str(found).startswith("nonholonomic")


@pytest.mark.parametrize("key", GROWTH)
def test_growth_vector(key):
    make, g, growth = GROWTH[key]
    found = da.nonholonomy(make(), g, depth=3)
    assert found.growth == growth
    words = {
        "holonomic": "integrable",
        "subgroup": "integrable",
        "partly": "partly integrable",
        "free": "unconstrained",
    }
    assert str(found).startswith(words.get(key, "nonholonomic"))
    assert found.bracket_generating == (key not in ("holonomic", "subgroup", "partly"))
    assert found.integrable == (key in ("holonomic", "subgroup", "free"))
    assert found.holonomic_combinations == {"holonomic": 1, "subgroup": 1, "partly": 1}.get(key, 0)


def _iterated_car(t, g, p):
    """The same car, its tangent by Newton's iteration for atan(x) = steering: rows without a Taylor series."""
    angle = g[1][0]
    slope = jax.lax.fori_loop(0, 8, lambda _, x: x - (jnp.arctan(x) - angle) * (1.0 + x * x), angle)
    return jnp.array([[0.0, 0.0, 1.0, 0.0], [0.8, 0.0, 0.0, 0.0]]) - slope * jnp.array(
        [[0.0] * 4, [0.0, 1.0, 0.0, 0.0]]
    )


def test_growth_vector_of_rows_with_an_iteration():
    g = (np.eye(3), np.array([0.3]))
    found = da.nonholonomy(_constrained(da.SE2() * da.Euclidean(1), _iterated_car), g)
    assert found.growth == da.nonholonomy(_constrained(da.SE2() * da.Euclidean(1), _car), g).growth == (2, 3, 4)


def _turning_rows(t, g, p):
    """Two rows on SE(3) x R that depend on the attitude and on the last coordinate, not on the place."""
    motion, (x,) = g
    rotation = motion[:3, :3]
    a = jnp.concatenate([rotation[0] * jnp.sin(x), rotation[1] + rotation[2, 0], jnp.ones(1)])
    b = jnp.concatenate([jnp.exp(rotation[2]), rotation @ rotation[:, 1] * x, jnp.cos(x)[None]])
    return jnp.stack([a, b])


def test_derivatives_of_a_frame_along_invariant_fields():
    """E_i E_j E_k X by series along directions, against nested derivatives; translations do not matter and drop out."""
    group = da.SE3() * da.Euclidean(1)
    system = _constrained(group, _turning_rows)
    g = (group.groups[0].exp(jnp.array([0.3, -0.4, 0.2, 1.0, 2.0, 3.0])), jnp.array([0.7]))
    given, here = (system, np.asarray(0.0)), (g, np.zeros(1))
    leaves, structure = jax.tree.flatten((given, here))
    kind = structure, tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)
    active = distribution._active_directions(distribution._in_space, group, *kind)
    assert active == (0, 1, 2, 6)
    rows = np.asarray(system.A(0.0, g))
    reference, pivots = null_basis(rows), echelon(rows)[1]
    points = jax.tree.map(lambda leaf: np.stack([leaf] * (1 + distribution.NEIGHBOURS)), g)
    A = distribution._derivatives(distribution._in_space, group, given, points, active, 3, 3)
    jets = distribution._frame_jets(group, A, reference, pivots, active)

    def frame(q):
        rows = system.A(0.0, q)
        return reference.T - jnp.linalg.solve(rows[:, pivots], rows @ reference).T @ np.eye(group.dim)[pivots]

    def nested(q, ways):
        if not ways:
            return frame(q)
        way = np.eye(group.dim)[ways[0]]
        return jax.jvp(lambda s: nested(group.shift(q, s * way), ways[1:]), (0.0,), (1.0,))[1]

    for places in [(), (1,), (2, 0), (0, 2), (3, 1, 0), (1, 3, 1), (0, 1, 2), (2, 1, 0)]:
        expected = nested(g, [active[i] for i in places])
        np.testing.assert_allclose(jets[len(places)][(0, slice(None), *places)], expected, atol=1e-11)


def test_a_lagrangian_with_a_bounded_domain_has_its_inverse_legendre_map():
    """L = -sqrt(1 - |v|^2): a full Newton step from rest would leave |v| < 1."""
    system = da.System(da.Euclidean(2), lambda t, q, v, p: -jnp.sqrt(1.0 - v @ v))
    momentum = jnp.array([1.2, -1.6])
    velocity = system.velocity(0.0, jnp.zeros(2), momentum)
    np.testing.assert_allclose(velocity, momentum / np.sqrt(1 + 4.0), rtol=1e-13)
