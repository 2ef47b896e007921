"""Holonomic constraints: what is accepted and refused, what a run says of phi, and advice where a constraint is
integrable.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import dalembert as da
from dalembert.cli import app

models = da.models
METHOD = da.LagrangeDAlembert()


def kinetic(t, g, xi, p):
    return 0.5 * xi @ xi


def sphere(t, q, p):
    return (q @ q - 1.0)[None]


def constrained(group, rows=None, **more):
    return da.System(group, kinetic, rows, **more)


PENDULUM = models.pendulum_chain([1.0], [1.0], dimension=3)


# -- refused ----------------------------------------------------------------------------------------------------------
REFUSED = {
    "a scalar phi": (
        r"holonomic\(t, g, p\) gave shape \(\); allowed: \(k,\)",
        lambda: constrained(da.Euclidean(3), holonomic=lambda t, q, p: q @ q).constraints,
    ),
    "too many": (
        r"gave shape \(3,\); allowed: \(k,\) with k < 3",
        lambda: constrained(da.Euclidean(3), holonomic=lambda t, q, p: q).constraints,
    ),
    "too many with the rows": (
        r"allowed: \(m, 3\) with m < 2",
        lambda: constrained(da.Euclidean(3), lambda t, q, p: jnp.eye(3)[:2], holonomic=sphere).constraints,
    ),
    "off phi": (
        r"off the holonomic constraint \(force in rod 1\): \|phi\| = 0\.095.*project_configuration\(g\) = \[1\.0",
        lambda: PENDULUM.state([0.9, 0.0, 0.0], [0.0, 1.0, 0.0]),
    ),
    "off its velocities": (
        r"off the constraint \(force in rod 1\): \|A xi - b\| = 0\.5",
        lambda: PENDULUM.state([1.0, 0.0, 0.0], [0.5, 1.0, 0.0]),
    ),
    "the default configuration": (r"linearly dependent", lambda: PENDULUM.state(xi=[0.0, 1.0, 0.0])),
    "a constraint twice": (
        r"constraint rows A\(t, g\) \(the last 2 are the derivative of phi\) are linearly dependent",
        lambda: constrained(
            da.Euclidean(3), holonomic=lambda t, q, p: jnp.stack([q @ q - 1.0, 2.0 * (q @ q) - 2.0])
        ).state([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
    ),
    "a row that phi implies": (
        r"linearly dependent",
        lambda: constrained(da.Euclidean(3), lambda t, q, p: q[None], holonomic=sphere).state(
            [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
        ),
    ),
    "no such configuration": (
        "no configuration with phi = 0 was found near",
        lambda: constrained(da.Euclidean(2), holonomic=lambda t, q, p: (q @ q + 1.0)[None]).project_configuration(
            [1.0, 0.5]
        ),
    ),
    "a chain of nothing": ("masses is", lambda: models.pendulum_chain([], [])),
    "a chain with a missing rod": ("2 masses and 1 lengths", lambda: models.pendulum_chain([1.0, 2.0], [1.0])),
    "a chain in four dimensions": ("dimension is 4; allowed: 2", lambda: models.pendulum_chain(dimension=4)),
    "an ellipsoid with two axes": ("axes is .*allowed: 3 positive", lambda: models.skate_on_ellipsoid([1.0, 2.0])),
    "a negative mass": ("rider is -1.0", lambda: models.hinged_sleighs(rider=-1.0)),
    "two torques in one hinge": (
        r"shape \(2,\); allowed: \(1,\)",
        lambda: models.hinged_sleighs().F(0.0, None, jnp.zeros(6), jnp.zeros(2)),
    ),
}


@pytest.mark.parametrize("key", REFUSED)
def test_refused(key):
    match, make = REFUSED[key]
    with pytest.raises(da.InvalidInput, match=match):
        make()


def test_methods_that_cannot_keep_phi_say_what_to_use():
    state = PENDULUM.state([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    pair = da.LagrangeDAlembert(pair=da.mechanics.from_difference(PENDULUM, da.mechanics.FiniteDifference()))
    for method in (da.LagrangeDAlembert(nodes="velocity"), da.LagrangeDAlembert(nodes="deformed"), pair):
        with pytest.raises(da.InvalidInput, match='Use nodes = "original" without a pair'):
            da.simulate(PENDULUM, method, state, step=0.1, steps=1)
    for method in (
        da.EulerPoincareSuslov(),
        da.RetractionAdapted(),
        da.integrators.Rattle(),
        da.DiscreteMoserVeselov(),
    ):
        with pytest.raises(da.InvalidInput, match=r"needs an InvariantSystem.*Use LagrangeDAlembert"):
            da.simulate(PENDULUM, method, state, step=0.1, steps=1)


# -- the one path -----------------------------------------------------------------------------------------------------
def test_rows_of_phi_follow_those_of_the_constraint():
    """On SE(2), with dphi by finite differences along the group, and phi_t."""

    def phi(t, g, p):
        return jnp.stack([g[0, 2] ** 2 + jnp.sin(t) * g[1, 2], g[0, 0] * g[1, 2] - t])

    system = constrained(
        da.SE2() * da.Euclidean(1),
        lambda t, g, p: jnp.array([[0.0, 0.0, 1.0, 2.0]]),
        drift=lambda t, g, p: jnp.array([0.3]),
        holonomic=lambda t, g, p: phi(t, g[0], p),
    )
    group, g, t, step = system.group, system.group.exp(jnp.array([0.4, 0.3, -0.7, 0.2])), 0.6, 1e-6
    moved = jax.jit(lambda eta: phi(t, group.compose(g, group.exp(eta))[0], None))
    ends = [[moved(s * e) for s in (step, -step)] for e in np.eye(4)]
    slopes = np.array([(a - b) / (2 * step) for a, b in ends]).T
    A, b = jax.jit(lambda t, g: (system.A(t, g), system.b(t, g)))(t, g)
    np.testing.assert_allclose(A, np.vstack([[0.0, 0.0, 1.0, 2.0], slopes]), atol=1e-9)
    rate = (np.asarray(phi(t + step, g[0], None)) - np.asarray(phi(t - step, g[0], None))) / (2 * step)
    np.testing.assert_allclose(b, [0.3, *(-rate)], atol=1e-9)
    assert system.constraints == 3 and system.holonomic_constraints == 2


def test_the_nearest_configuration_is_nearest_in_the_kinetic_metric():
    masses = np.array([1.0, 5.0])
    system = models.pendulum_chain(masses, [1.0, 0.7])
    far = np.array([0.5, -1.0, 1.4, -0.9])
    q = np.asarray(system.project_configuration(far))
    assert np.abs(system.phi(0.0, q)).max() < 1e-15
    force = np.repeat(masses, 2) * (far - q)  # normal to the tangent space of phi = 0
    tangent = np.linalg.svd(np.asarray(system.A(0.0, q)))[2][2:]
    assert np.abs(tangent @ force).max() < 1e-13
    assert system.project_configuration(q) == pytest.approx(q, abs=1e-15)


def test_forces_and_nonlinear_constraints_keep_phi():
    state = PENDULUM.state([1.0, 0.0, 0.0], [0.0, 1.0, 0.5])
    damped = da.with_friction(PENDULUM, viscous=0.5)
    assert damped.holonomic_constraints == 1
    run = da.simulate(damped, METHOD, state, step=0.05, steps=50).check()
    assert run.holonomic_residual().max() < 1e-15 and run.energy_error()[-1] < -0.1
    speed = da.mechanics.NonlinearSystem(
        da.Euclidean(3), lambda t, q, v, p: 0.5 * v @ v - q[2], lambda t, q, v, p: (v @ v - 1.0)[None], holonomic=sphere
    )
    state = speed.state([1.0, 0.0, 0.0], [0.0, 0.6, 0.8])
    run = da.simulate(speed, METHOD, state, step=0.05, steps=50).check()
    assert run.holonomic_residual().max() < 1e-14 and run.constraint_residual().max() < 1e-13


# -- what a run says of phi -------------------------------------------------------------------------------------------
CONFIG = """
[system]
name = "pendulum-chain"
masses = [1.0]
lengths = [1.0]
dimension = 3
[method]
name = "lagrange-dalembert"
[initial]
configuration = [0.6, 0.0, -0.8]
velocity = [0.0, 1.0, 0.0]
[run]
step = 0.05
steps = 100
"""


def invoke(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_reports_files_and_drift(tmp_path):
    config, out = tmp_path / "pendulum.toml", tmp_path / "pendulum.nc"
    config.write_text(CONFIG)
    kept = json.loads(invoke("run", config, "--json", "--out", out))
    assert kept["holonomic"]["max"] < 1e-15 and kept["constraint"]["max"] < 1e-14
    drifted = json.loads(invoke("run", config, "--json", "--set", "method.name=runge-kutta"))
    assert 1e-6 < drifted["holonomic"]["max"] < 1e-2
    saved = da.load(out)
    assert saved.holonomic_constraints == 1 and "holonomic_residual" in saved.to_xarray()
    shown = json.loads(invoke("show", config, "--json"))
    assert shown["holonomic"] == shown["constraints"] == 1 and shown["integrable"] is None


def test_a_run_without_holonomic_constraints_says_nothing():
    system = models.chaplygin_sleigh()
    run = da.simulate(system, METHOD, system.state(xi=[0.5, 1.0, 0.0]), step=0.1, steps=2, monitor=True)
    assert run.final.peaks.holonomic.shape == (0,) and run.holonomic_constraints == 0
    assert run.summary().holonomic is None


def test_check_refuses_a_run_that_left_the_constraint():
    state = PENDULUM.state([1.0, 0.0, 0.0], [0.0, 1.0, 0.5])
    run = da.simulate(PENDULUM, da.RungeKutta(), state, step=0.1, steps=100)
    with pytest.raises(
        da.NumericalFailure, match=r"holonomic constraint: \|phi\| exceeds 0\.001 at t = .*runge-kutta satisfies"
    ):
        run.check()
    da.simulate(PENDULUM, METHOD, state, step=0.1, steps=100).check()


# -- advice -----------------------------------------------------------------------------------------------------------
def row(*entries):
    return lambda t, g, p: jnp.array([entries], float)


def _partly(t, q, p):
    """dz - y dx is not integrable, dw is; the rows given are their sum and dw."""
    contact = jnp.stack([-q[1], 0.0 * q[0], 1.0 + 0.0 * q[0], 0.0 * q[0]])
    return jnp.stack([contact + jnp.eye(4)[3], jnp.eye(4)[3]])


ADVICE = {
    "paraboloids in R^3": (
        lambda: constrained(da.Euclidean(3), lambda t, q, p: jnp.stack([q[0], q[1], 1.0 + 0.0 * q[2]])[None]),
        [0.3, 0.5, 1.0],
        [[0.3, 0.5, 1.0]],
        2,
    ),
    "heading on SE(2)": (lambda: constrained(da.SE2(), row(1.0, 0.0, 0.0)), None, [[1.0, 0.0, 0.0]], 2),
    "a subalgebra of so(3)": (
        lambda: da.InvariantSystem(da.SO3(), [1.0, 2.0, 3.0], subspace=[0.6, 0.0, 0.8]),
        None,
        [[0.0, 1.0, 0.0], [1.0, 0.0, -0.75]],
        1,
    ),
    "one of two rows": (lambda: constrained(da.Euclidean(4), _partly), None, [[0.0, 0.0, 0.0, 1.0]], 3),
    "a row beside phi": (
        lambda: constrained(
            da.Euclidean(3), lambda t, q, p: jnp.stack([-q[1], q[0], 0.0 * q[0]])[None], holonomic=sphere
        ),
        [0.6, 0.0, 0.8],
        [[0.0, 1.0, 0.0]],
        1,
    ),
}


@pytest.mark.parametrize("key", ADVICE)
def test_advice_where_a_constraint_is_integrable(key):
    make, g, covectors, leaf = ADVICE[key]
    system = make()
    found = da.nonholonomy(system, g)
    np.testing.assert_allclose(found.covectors, covectors, atol=1e-12)
    rows = np.asarray(system.A(0.0, system.group.identity() if g is None else jnp.asarray(g)))
    np.testing.assert_allclose(found.combinations @ rows, covectors, atol=1e-12)
    assert f"leaf of dimension {leaf}" in found.advice and "Write it as holonomic=phi" in str(found)
    assert found.holonomic_combinations == system.holonomic_constraints + len(covectors)


def _flat(t, q, p):
    """x^9 dy - dz: at x = 0 no bracket up to the ninth sees that it is not integrable."""
    return jnp.stack([0.0 * q[0], q[0] ** 9, -1.0 + 0.0 * q[0]])[None]


SILENT = {
    "suslov": (lambda: models.suslov([1.0, 2.0, 3.0]), None),
    "a particle": (lambda: models.nonholonomic_particle("free"), [0.3, 0.5, -0.2]),
    "flat at one point": (lambda: constrained(da.Euclidean(3), _flat), None),
    "affine": (lambda: constrained(da.Euclidean(3), row(0.0, 0.0, 1.0), drift=lambda t, q, p: q[:1]), None),
    "declared": (lambda: PENDULUM, [0.6, 0.0, -0.8]),
}


@pytest.mark.parametrize("key", SILENT)
def test_no_advice_where_nothing_more_is_integrable(key):
    make, g = SILENT[key]
    found = da.nonholonomy(make(), g)
    assert found.advice == "" and len(found.covectors) == 0
    assert found.integrable == (key == "declared")


def test_an_integral_that_moves_in_time():
    """z' = cos(t): z - sin(t) is kept, though b is not 0."""
    system = constrained(da.Euclidean(3), row(0.0, 0.0, 1.0), drift=lambda t, q, p: jnp.cos(t)[None])
    found = da.nonholonomy(system, t=0.3)
    np.testing.assert_allclose(found.covectors, [[0.0, 0.0, 1.0]], atol=1e-12)
    np.testing.assert_allclose(found.rates, [-np.cos(0.3)], rtol=1e-12)
    assert "a leaf that moves in time" in found.advice and "phi_t = -0.955336" in found.advice


def test_advice_is_right():
    """The advised form keeps on positions what the row alone lets drift."""
    start = {"g": [0.3, 0.5, 1.0], "xi": [1.0, -0.5, -0.05]}
    level = 1.0 + 0.5 * (0.3**2 + 0.5**2)
    rows = constrained(da.Euclidean(3), lambda t, q, p: jnp.stack([q[0], q[1], 1.0 + 0.0 * q[2]])[None])
    whole = constrained(da.Euclidean(3), holonomic=lambda t, q, p: (q[2] + 0.5 * (q[:2] @ q[:2]) - level)[None])

    def off(system, method):
        run = da.simulate(system, method, system.state(**start), step=0.1, steps=50)
        return float(np.abs(jax.vmap(lambda q: whole.phi(0.0, q))(run.g)).max())

    assert off(whole, METHOD) < 1e-14
    assert off(rows, da.RungeKutta()) > 1e-8
