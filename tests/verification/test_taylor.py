"""Taylor's method: its coefficients are those of the motion, its error follows the tolerance, and lanes, XLA and
tangents agree.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, gap, sampled

import dalembert as da
from dalembert.kernels import LoweringError, compile_function, eliminate, solution_series, taylor
from dalembert.kernels.taylor import PARTIALS
from dalembert.numerics import solve

T = 3.0


def model_case(key):
    """A model with its own example and initial state."""
    model = da.models.MODELS[key]
    system = model.make(model.example)
    place = jax.tree.map(jnp.asarray, model.initial.get("configuration"), is_leaf=lambda x: np.ndim(x) == 2)
    return system, system.state(tuple(place) if isinstance(place, list) else place, model.initial["velocity"])


def run(key, tolerance, step=T, steps=1, **options):
    system, state = case(key)
    return da.simulate(system, da.Taylor(tolerance), state, step=step, steps=steps, **options)


# ---- the series of y' = f(y)

FUNCTIONS = {
    "sin": lambda x: jnp.sin(x),
    "cos": lambda x: jnp.cos(x),
    "tan": lambda x: jnp.tan(x),
    "asin": lambda x: jnp.arcsin(0.5 * x),
    "acos": lambda x: jnp.arccos(0.5 * x),
    "atan": lambda x: jnp.arctan(x),
    "sinh": lambda x: jnp.sinh(x),
    "cosh": lambda x: jnp.cosh(x),
    "tanh": lambda x: jnp.tanh(x),
    "asinh": lambda x: jnp.arcsinh(x),
    "acosh": lambda x: jnp.arccosh(2.0 + x),
    "atanh": lambda x: jnp.arctanh(0.5 * x),
    "exp": lambda x: jnp.exp(-x),
    "exp2": lambda x: jnp.exp2(-x),
    "expm1": lambda x: jnp.expm1(x),
    "log": lambda x: jnp.log(1.5 + x),
    "log1p": lambda x: jnp.log1p(x),
    "logistic": lambda x: jax.nn.sigmoid(x),
    "cbrt": lambda x: jnp.cbrt(x),
    "pow": lambda x: (1.0 + x) ** (0.7 + x),
    "atan2": lambda x: jnp.arctan2(x, 1.0 - x),
    "sqrt": lambda x: jnp.sqrt(1.0 + x * x) / (2.0 - x),
    "choice": lambda x: jnp.where(x > 0, jnp.abs(-x) + jnp.maximum(x, -x * x), -x) + jnp.sign(x) * x,
}


def scalar_series(f, y0, order):
    """y_{k+1} = (k-th derivative of f(y(t)))/(k+1)!, by repeated differentiation along y' = f."""
    found, g = [y0], f
    for k in range(1, order + 1):
        found.append(float(g(y0)) / math.factorial(k))
        g = (lambda g: lambda y: jax.grad(g)(y) * f(y))(g)
    return np.array(found)


@pytest.fixture(params=["written out", "by a loop"])
def written(request, monkeypatch):
    """Both ways to compute coefficients."""
    monkeypatch.setattr(taylor, "MAX_WRITTEN_OPERATIONS", 10**9 if request.param == "written out" else 0)


def test_every_elementary_function_has_its_series(written):
    assert set(PARTIALS) <= set(FUNCTIONS)
    order, start = 3, 0.4

    @compile_function
    def native(y):
        return [solution_series(lambda c, y: f(y), (), y, order)[:, 0] for f in FUNCTIONS.values()]

    for name, found in zip(FUNCTIONS, native(jnp.asarray(start)), strict=True):
        expected = scalar_series(FUNCTIONS[name], start, order)
        np.testing.assert_allclose(found, expected, rtol=2e-13, atol=1e-14, err_msg=name)


def test_native_xla_vmap_and_tangents_agree(written):
    """A field with constants, products, a quotient, a root, a sine and a linear solve, whose product A x occurs again;
    the tangent is the series of the variational equation.
    """

    def field(c, y):
        t, x, v = y
        A, b = jnp.array([[2.0 + x, v], [0.0, 1.0 + x * x]]), jnp.array([v, c["k"]])
        z = jax.lax.custom_linear_solve(lambda z: A @ z, b, lambda _, b: eliminate(A, b[:, None])[0][:, 0])
        push = 0.1 * z[0] + jnp.sum(A @ z - b) * x + A[0, 0] * z[0]
        return 1.0 + 0.0 * t, v, -c["k"] * jnp.sin(x) / jnp.sqrt(1.0 + v * v) + 0.1 * jnp.cos(t) + push

    def series(k, x):
        return solution_series(field, {"k": k}, (jnp.zeros(()), x, jnp.asarray(0.3)), 9)

    k, x = jnp.asarray(1.3), jnp.asarray(0.8)
    native = compile_function(series)(k, x)
    np.testing.assert_allclose(native, jax.jit(series)(k, x), rtol=1e-13, atol=1e-15)
    lanes = jax.jit(jax.vmap(series, in_axes=(None, 0)))(k, jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(lanes[0], native, rtol=1e-13, atol=1e-15)
    slope = compile_function(lambda k, x: jax.jvp(series, (k, x), (jnp.ones(()), 2.0 * jnp.ones(())))[1])(k, x)
    step = 1e-5
    ahead, behind = (compile_function(series)(k + s, x + 2 * s) for s in (step, -step))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-9)


def test_a_field_without_a_series_is_refused():
    def looped(c, y):
        return jax.lax.while_loop(lambda z: z < 1.0, lambda z: 2.0 * z, y)

    for field, why in ((looped, "loop"), (lambda c, y: jnp.fmod(y, 0.7), "fma")):
        with pytest.raises(LoweringError, match=why):
            jax.make_jaxpr(lambda y, field=field: solution_series(field, (), y, 3))(jnp.asarray(0.3))

    def force(t, g, xi, u, p):
        return jax.lax.while_loop(lambda z: jnp.sum(z) < -1.0, lambda z: 0.5 * z, -g)

    system = da.System(da.Euclidean(1), lambda t, g, xi, p: 0.5 * xi @ xi, force=force)
    with pytest.raises(da.errors.InvalidInput, match=r"taylor differentiates.*loop.*dormand-prince"):
        da.simulate(system, da.Taylor(), system.state([1.0], [0.0]), step=0.1, steps=1)


def test_a_loop_over_the_orders_has_the_coefficients_that_are_written_out(monkeypatch):
    """1/(1 - t), whose coefficients are 1 exactly, to orders with one to five blocks of terms; and the rolling disk."""
    for order in (2, 9, 10, 11, 40):
        series = compile_function(lambda y, order=order: solution_series(lambda c, y: y * y, (), y, order))
        monkeypatch.setattr(taylor, "MAX_WRITTEN_OPERATIONS", 0)
        np.testing.assert_allclose(series(jnp.asarray(1.0))[:, 0], np.ones(order + 1), rtol=1e-14)
    system, state = model_case("rolling-disk")
    found = []
    for limit in (0, 10**9):
        monkeypatch.setattr(taylor, "MAX_WRITTEN_OPERATIONS", limit)
        both = compile_function(lambda t, g, xi: da.Taylor(1e-5).series(system, t, g, xi)[0])
        found.append(both(state.t, state.g, state.xi))
    size = np.abs(found[1]).max(axis=1, keepdims=True)
    np.testing.assert_allclose(found[0] / size, found[1] / size, atol=1e-14)


def test_a_linear_solve_is_not_written_out_at_every_order():
    """The series of a solve has the products of A x, not those of an elimination."""
    A = lambda y: jnp.eye(6) * 3.0 + 0.1 * jnp.outer(y, y)
    field = lambda c, y: solve(A(y), jnp.cos(y))
    jaxpr = jax.make_jaxpr(lambda y: solution_series(field, (), y, 8))(jnp.linspace(0.1, 0.6, 6))
    (graph,) = (equation.params["graph"] for equation in jaxpr.eqns if equation.primitive.name == "taylor_series")
    assert len(graph.solves) == 1 and not any(value.op in ("select", "div") for value in graph.changing)
    y = jnp.linspace(0.1, 0.6, 6)
    plain = lambda c, y: eliminate(A(y), jnp.cos(y)[:, None])[0][:, 0]
    found, expected = (compile_function(lambda y, f=f: solution_series(f, (), y, 8))(y) for f in (field, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


# ---- the method


@pytest.mark.parametrize("key", sampled(["sleigh", "heavy_suslov", "driven"]))
def test_the_error_follows_the_tolerance(key):
    system, state = case(key)
    exact = da.simulate(system, da.DormandPrince(1e-11), state, step=T, steps=1).check().last
    errors = [gap(run(key, tolerance).check().last, exact) for tolerance in (1e-3, 1e-7)]
    assert errors[0] < 1e-1 and errors[1] < 1e-5
    assert errors[1] < 1e-2 * errors[0]


def test_round_off_is_reached():
    system, state = case("particle")
    exact = da.simulate(system, da.DormandPrince(1e-15), state, step=T, steps=1).check().last
    assert gap(run("particle", 1e-15).check().last, exact) < 2e-13


def test_rest_and_polynomial_motion_take_one_substep():
    system = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi - 2.0 * g[0])
    fall = da.simulate(system, da.Taylor(), system.state([0.0, 1.0], [1.0, 3.0]), step=10.0, steps=1).check()
    np.testing.assert_allclose(fall.g[-1], [10.0 - 100.0, 31.0], rtol=1e-14)
    assert fall.records.iterations[-1] == 1


def test_members_equal_single_runs_bit_for_bit():
    system, state = case("sleigh")
    states = [system.state(state.g, speed * state.xi) for speed in (0.5, 1.0, 1.7)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    many = da.ensemble(system, da.Taylor(1e-6), together, step=0.5, steps=4)
    for k, each in enumerate(states):
        single = da.simulate(system, da.Taylor(1e-6), each, step=0.5, steps=4)
        assert np.array_equal(many.g[k], single.g)


@pytest.mark.heavy
def test_dense_output_and_events_are_values_of_its_polynomials():
    """One step of several substeps: `at` and an event between them lie on the series of the substep, to round-off."""
    (system, state), method = case("particle"), da.Taylor(1e-8)
    level = float(np.mean(run("particle", 1e-8).g[:, 0]))
    found = run("particle", 1e-8, events=[da.Event(lambda t, g, xi, p: g[0] - level, name="level")]).check()
    times = np.linspace(0.05, T - 0.05, 9)
    dense = found.at(times)

    @compile_function
    def expand(system, now, g, xi):
        terms, _ = method.series(system, now, g, xi)
        return terms, method.radius(terms)

    def place(t):
        """The configuration at t, substep by substep, by Horner's rule in NumPy; a row of terms is (t, g, xi)."""
        now, g, xi = 0.0, state.g, state.xi
        while True:
            terms, size = expand(system, now, np.asarray(g), np.asarray(xi))
            k = min(float(size), t - now)
            _, g, xi = np.split(np.polyval(np.asarray(terms)[::-1], k), [1, 4])
            if k < size:
                return g
            now, xi = now + k, system.project(g, xi, now + k)

    assert found.records.iterations[-1] > 2
    np.testing.assert_allclose(dense.g, [place(t) for t in times], atol=1e-14)
    (crossing,) = found.events["level"].t
    assert abs(place(float(crossing))[0] - level) < 1e-13


LARGE = ["snakeboard", "car", "rattleback", "hinged-sleighs", "skate-on-ellipsoid"]


@pytest.mark.parametrize("key", ["rolling-disk", *(pytest.param(key, marks=pytest.mark.heavy) for key in LARGE)])
def test_larger_systems_run_at_every_tolerance(key):
    system, state = model_case(key)
    exact = da.simulate(system, da.DormandPrince(1e-14), state, step=0.3, steps=1).check().last
    for tolerance, bound in ((1e-4, 1e-3), (1e-9, 1e-9), (1e-15, 1e-12)):
        run = da.simulate(system, da.Taylor(tolerance), state, step=0.3, steps=1, backend="llvm").check()
        assert gap(run.last, exact) < bound


def test_members_of_a_large_system_equal_single_runs_bit_for_bit():
    system, state = model_case("rolling-disk")
    states = [system.state(state.g, speed * state.xi) for speed in (0.5, 1.0, 1.7)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    many = da.ensemble(system, da.Taylor(1e-12), together, step=0.1, steps=3)
    for k, each in enumerate(states):
        single = da.simulate(system, da.Taylor(1e-12), each, step=0.1, steps=3)
        assert all(np.array_equal(a[k], b) for a, b in zip(*map(jax.tree.leaves, (many.g, single.g)), strict=True))


@pytest.mark.parametrize("tolerance", [0.0, -1e-6, 1.0, float("nan"), True])
def test_a_tolerance_that_means_nothing_is_refused(tolerance):
    with pytest.raises(da.errors.InvalidInput, match="tolerance is"):
        da.Taylor(tolerance)
