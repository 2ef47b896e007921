"""Special cases that a method computes by other means: they are the general case, to round-off."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import registry

import dalembert as da
from dalembert.kernels import evaluate
from dalembert.mechanics import FiniteDifference, System
from dalembert.models.rolling import GROUP, RollingBody

GROUPS = [da.SO2(), da.SO3(), da.SE2(), da.SE2() * da.SO2(), da.SO3() * da.Euclidean(2)]


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_momenta_of_a_midpoint_step_need_no_solve(group, monkeypatch):
    difference = FiniteDifference(da.Cayley(), 0.5)
    xi, legendre, impulse = np.random.default_rng(0).normal(size=(3, group.dim))
    assert difference.explicit(group)
    explicit = jax.jit(lambda: difference.momenta(group, xi, legendre, impulse))()
    monkeypatch.setattr(FiniteDifference, "explicit", lambda self, group: False)
    general = jax.jit(lambda: difference.momenta(group, xi, legendre, impulse))()
    np.testing.assert_allclose(explicit, general, atol=2e-14)


def _same_motion(reduced, full, scale):
    for a, b in zip(jax.tree.leaves(reduced.g), jax.tree.leaves(full.g), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(reduced.xi, full.xi, atol=1e-12)
    np.testing.assert_allclose(reduced.increment, full.increment, atol=1e-12)
    np.testing.assert_allclose(reduced.multipliers, scale * full.multipliers, atol=1e-10)


def _unknowns(run) -> int:
    return run.final.carry.prediction.x.shape[-1]


@pytest.mark.parametrize("case", registry.sampled(["heavy_suslov", "disk"]))
def test_a_step_on_d_is_the_step_with_multipliers(case):
    """InvariantSystem solves for coordinates of w in d, System for (w, multipliers): the same motion and reactions."""
    invariant, state = getattr(registry, case)()
    general = da.System(
        invariant.group,
        lambda t, g, xi, p: p[0].L(t, g, xi),
        lambda t, g, p: p[1] * p[0].annihilator,
        parameters=(
            invariant,
            jnp.array(2.0),
        ),  # a number of the run: rows with literal units would need no multipliers
    )
    method = da.LagrangeDAlembert(da.Cayley(), node=0.5)
    reduced = da.simulate(invariant, method, state, step=0.05, steps=30)
    full = da.simulate(general, method, general.state(state.g, state.xi), step=0.05, steps=30)
    n, m = general.group.dim, general.constraints
    assert (_unknowns(reduced), _unknowns(full)) == (n - m, n + m)
    _same_motion(reduced, full, 2.0)


ALONG = [
    ("ball", "velocity"),
    registry.more("ball", "original"),
    ("driven", "original"),
    registry.more("driven", "velocity"),
]
ALONG += [registry.more("quartic", "original"), registry.more("quartic", "velocity")]


@pytest.mark.parametrize("case, nodes", ALONG)
def test_a_step_along_a_connection_is_the_step_with_multipliers(case, nodes):
    """Rows with literal units leave n - m unknowns; twice the same rows, by a parameter that is 2, leave all n + m."""
    system, state = getattr(registry, case)()

    def doubled(function):
        return None if function is None else lambda t, g, p: p[1] * function(t, g, p[0])

    general = da.System(
        system.group,
        lambda t, g, xi, p: system.lagrangian(t, g, xi, p[0]),
        doubled(system.constraint),
        drift=doubled(system.drift),
        force=None if system.force is None else lambda t, g, xi, u, p: system.force(t, g, xi, u, p[0]),
        parameters=(system.parameters, jnp.array(2.0)),
    )
    method = da.LagrangeDAlembert(da.Cayley(), node=0.5, nodes=nodes)
    controls = np.linspace(-0.2, 0.3, 90).reshape(30, 3) if case == "driven" else None
    options = {"step": 0.05, "steps": 30, "controls": controls}
    reduced = da.simulate(system, method, state, **options)
    full = da.simulate(general, method, general.state(state.g, state.xi, t=state.t), **options)
    n, m = system.group.dim, system.constraints
    assert (_unknowns(reduced), _unknowns(full)) == (n - m, n + m)
    _same_motion(reduced, full, 2.0)


def test_where_the_mean_is_no_multiple_of_one_nothing_is_explicit():
    assert not FiniteDifference(da.Cayley(), 0.5).explicit(da.SE3())
    assert not FiniteDifference(da.Cayley(), 0.25).explicit(da.SO3())
    assert not FiniteDifference(da.Exponential(), 0.5).explicit(da.SO3())
    assert (da.SE3() * da.SO2()).mean_dcayley(jnp.zeros(7)) is None


def egg(n, shape):
    """H of a body with no symmetry: the sum of an ellipsoid's and a ball's about a point beside the centre."""
    return jnp.sqrt((shape * n) @ (shape * n)) + 0.2 * jnp.sqrt(n @ n) + 0.03 * n[0]


def push(t, g, xi, u, p):
    return jnp.sin(jnp.arange(5.0) + xi * p["mass"]) + g[1][0]


INERTIA = [[0.5, 0.1, -0.05], [0.1, 0.7, 0.02], [-0.05, 0.02, 0.9]]
ROLLING = {
    "disk": lambda: da.models.rolling_disk(1.3, 0.6),
    "rattleback": da.models.rattleback,
    "egg on a slope": lambda: da.models.rolling_body(egg, np.array([0.4, 0.6, 0.5]), 1.4, INERTIA, slope=0.3),
    "pushed": lambda: replace(
        da.models.rolling_body(egg, np.array([0.4, 0.6, 0.5]), 1.4, INERTIA), force=push, inputs=0
    ),
}


@pytest.mark.parametrize("name", ROLLING)
def test_a_rolling_body_moves_as_its_lagrangian_says(name):
    """Newton's and Euler's equations in the body are d/dt L_xi = ad* L_xi + L_g + F + A^T l, off D too."""
    system = ROLLING[name]()
    rng = np.random.default_rng(3)
    coordinates, xi = 0.5 * rng.normal(size=5), rng.normal(size=5)

    def both(system, given):
        g = system.group.exp(given[0])
        return [way(system, 0.0, g, given[1], None) for way in (RollingBody._acceleration, System._acceleration)]

    (rate, load), (expected, reaction) = evaluate(both, system, (coordinates, xi), backend="llvm")
    np.testing.assert_allclose(rate, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(load, reaction, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_a_rolling_body_with_another_part_goes_by_its_derivatives():
    """Whoever replaces the Lagrangian, or adds a drift, gets the equations of what is there."""
    disk = da.models.rolling_disk(1.3, 0.6)
    heavy = replace(disk, lagrangian=lambda t, g, xi, p: 2.0 * disk.lagrangian(t, g, xi, p) - g[1][0])
    turning = replace(disk, drift=lambda t, g, p: jnp.stack([-g[1][1], g[1][0]]))
    for system in (heavy, turning):
        general = System(GROUP, system.lagrangian, system.constraint, parameters=disk.parameters, drift=system.drift)
        given = (0.0, (np.eye(3), np.array([0.3, 0.2])), np.array([0.2, 3.0, 0.5, 1.8, -0.1]))
        for found, expected in zip(system.acceleration(*given), general.acceleration(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


class TurnsByQuaternion(da.SO3):
    """SO(3) without its series in entries."""

    series_entries = da.SO3.series_start


def test_a_series_in_entries_of_a_rotation_is_the_one_in_a_quaternion():
    """A rolling disk has the first, a body that turns freely the second; both give the same motion."""
    system = da.models.rolling_disk(1.0, 0.5)
    state = system.state(xi=[0.2, 6.0, 0.5, 3.0, -0.1])
    terms, _ = da.Taylor().series(system, state.t, state.g, state.xi)
    assert terms.shape[1] == 1 + 9 + 2 + 5
    body = da.models.rigid_body([0.6, 0.8, 1.0])
    start = body.state(momentum=[1.8, 0.4, -0.9])
    assert da.Taylor().series(body, start.t, start.g, start.xi)[0].shape[1] == 1 + 4 + 3
    by_entries = registry.flow(da.Taylor(1e-13), system, state, 0.5, 1)
    other = replace(system, group=TurnsByQuaternion() * da.Euclidean(2))
    assert da.Taylor().series(other, state.t, state.g, state.xi)[0].shape[1] == 1 + 4 + 2 + 5
    by_quaternion = registry.flow(da.Taylor(1e-13), other, other.state(state.g, state.xi), 0.5, 1)
    assert registry.gap(by_entries, by_quaternion) < 1e-11
