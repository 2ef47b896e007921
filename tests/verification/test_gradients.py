"""Gradients through `simulate`: adjoints, tangents, central differences and XLA's own gradients agree."""

from __future__ import annotations

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import GENERIC, case
from tools.claims.cases import cases, variants

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.io.config import parse_job
from dalembert.kernels import gradients, llvm
from dalembert.mechanics.system import unit_element
from dalembert.models import MODELS
from dalembert.studio.catalogue import example

STEPS = 4
NORMAL = np.cos(np.arange(9.0)).reshape(3, 3)
SYMMETRIC = jnp.asarray(NORMAL + NORMAL.T)


def suslov_end(x, method, backend="auto"):
    """A number that the final attitude and velocity decide, as a function of (inertia, momentum, step) parameters."""
    tensor, momentum, step = x
    system = da.models.suslov(jnp.asarray(GENERIC) + tensor * SYMMETRIC)
    state = system.state(momentum=momentum)
    run = da.simulate(system, method, state, step=step, steps=STEPS, save_every=STEPS, backend=backend)
    return jnp.sum(jnp.sin(run.last.g) * jnp.arange(9.0).reshape(3, 3)) + run.last.xi @ jnp.array([1.0, -2.0, 0.5])


def differences(function, x, e=1e-5):
    """Central differences of fourth order, leaf by leaf."""
    flat, restore = jax.flatten_util.ravel_pytree(x)

    def at(i, s):
        return float(function(restore(flat.at[i].add(s * e))))

    return np.array([(8 * (at(i, 1) - at(i, -1)) - (at(i, 2) - at(i, -2))) / (12 * e) for i in range(flat.size)])


START = (jnp.array(0.05), jnp.array([3.0, 2.0]), jnp.array(0.2))
METHODS = [
    da.EulerPoincareSuslov("moser-veselov"),
    pytest.param(da.LagrangeDAlembert(da.Cayley(), 0.5), marks=pytest.mark.heavy),  # fast below: another system
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_reverse_mode_in_inertia_momentum_and_step(method):
    gradient, _ = jax.flatten_util.ravel_pytree(jax.jit(jax.grad(lambda x: suslov_end(x, method)))(START))
    expected = differences(lambda x: suslov_end(x, method), START)
    np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8)
    assert np.abs(expected).min() > 1e-3
    by_xla, _ = jax.flatten_util.ravel_pytree(jax.jit(jax.grad(lambda x: suslov_end(x, method, "xla")))(START))
    np.testing.assert_allclose(gradient, by_xla, rtol=1e-11)


def test_forward_mode_agrees_and_does_not_depend_on_the_backend_that_ran():
    method = da.LagrangeDAlembert(da.Cayley(), 0.5)
    direction = (jnp.array(0.3), jnp.array([1.0, -0.5]), jnp.array(0.1))
    value, slope = jax.jit(lambda x: jax.jvp(lambda y: suslov_end(y, method), (x,), (direction,)))(START)

    def along(s):
        return suslov_end(jax.tree.map(lambda a, d: a + s * d, START, direction), method, "auto")

    e = 1e-4
    expected = (8 * (along(e) - along(-e)) - (along(2 * e) - along(-2 * e))) / (12 * e)
    np.testing.assert_allclose(value, along(0.0), rtol=1e-13)
    np.testing.assert_allclose(slope, expected, rtol=1e-7)


@pytest.mark.heavy
def test_a_g_dependent_constraint_and_batched_gradients():
    """vmap(grad) in the initial position and velocity of a particle, projected onto D on the way."""
    system, state = case("particle")
    method = da.LagrangeDAlembert(node=0.5, nodes="velocity")

    def end(x):
        q, v = x[:3], system.project(x[:3], x[3:])
        begin = da.State(jnp.zeros(()), q, v, v, v)
        run = da.simulate(system, method, begin, step=0.2, steps=STEPS, save_every=STEPS)
        return jnp.sum(run.last.g * jnp.array([1.0, -1.0, 2.0])) + run.last.xi[0] ** 2

    points = jnp.stack([jnp.concatenate([state.g, state.xi]), jnp.array([0.1, -0.4, 0.2, 0.5, 0.9, -0.3])])
    gradients = jax.jit(jax.vmap(jax.grad(end)))(points)
    plain = jax.jit(end)
    for point, gradient in zip(points, gradients, strict=True):
        np.testing.assert_allclose(gradient, differences(plain, point), rtol=1e-7, atol=1e-8)
    assert np.abs(gradients[0] - gradients[1]).max() > 1e-2


def moving_parts(system, state, step):
    """The real numbers of a problem, and the way back to the problem."""
    leaves, structure = jax.tree.flatten((system, state, jnp.asarray(step)))
    real = [jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in leaves]

    def restore(values):
        new = iter(values)
        return jax.tree.unflatten(structure, [next(new) if r else leaf for leaf, r in zip(leaves, real, strict=True)])

    return [jnp.asarray(leaf, float) for leaf, r in zip(leaves, real, strict=True) if r], restore


@cache
def built(name):
    """(system, state, step): a case of the claims, or the example of a model that is none."""
    if name in cases():
        return cases()[name].system, cases()[name].state, cases()[name].step
    job = parse_job(example(name))
    return job.system, job.state, job.run["step"]


def weighted_run(given, method, steps, backend="llvm"):
    """A number that all records decide."""
    system, state, step = given
    run = da.simulate(system, method, state, step=step, steps=steps, backend=backend)
    draw, seen = np.random.default_rng(2), jax.tree.leaves((run.g, run.xi, run.momentum, run.multipliers))
    return sum(jnp.sum(leaf * draw.standard_normal(leaf.shape)) for leaf in seen)


@cache
def way_of_problems(name):
    """Problems near that of this name, as a function of a number, and its derivative at 0; the start stays on D."""
    system, state, step = built(name)
    values, restore = moving_parts(system, (), step)
    draw = np.random.default_rng(3)
    # Matrices stay symmetric, and as large as they are: a metric that is not, or not positive, has no meaning.
    sizes = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in (*values[:-1], state.xi)]
    leaves = zip((*values[:-1], state.xi), jnp.where(jnp.array(sizes) == 0.0, 1.0, jnp.array(sizes)), strict=True)
    ways = [draw.standard_normal(leaf.shape) * (0.1 * size + jnp.abs(leaf)) for leaf, size in leaves]
    ways = [each + each.T if each.ndim == 2 and len(each) == len(each.T) else each for each in ways]

    @jax.jit
    def problem(s):
        shifted = [leaf + s * way for leaf, way in zip(values[:-1], ways, strict=False)]
        moved, _, h = restore([*shifted, values[-1] * (1.0 + 0.3 * s)])
        g = moved.project_configuration(state.g, state.t)
        start = moved.state(g, moved.project(g, state.xi + s * ways[-1], state.t), t=state.t)
        return moving_parts(moved, start, h)[0]

    return problem, jax.jvp(problem, (0.0,), (1.0,))[1]


def check_gradient(name, method, steps=6, by_xla=False):
    """The adjoint in all parameters, the start and the step is the transpose of the tangent, and what differences say.

    The tangent, XLA's too where `by_xla`, is taken along a random direction.
    """
    values, restore = moving_parts(*built(name))
    draw = np.random.default_rng(1)
    direction = [jnp.asarray(draw.standard_normal(leaf.shape)) for leaf in values]
    gradient = jax.jit(jax.grad(lambda values: weighted_run(restore(values), method, steps)))
    terms = [np.sum(a * b) for a, b in zip(gradient(values), direction, strict=True)]
    for backend in ["llvm", "xla"] if by_xla else ["llvm"]:
        along = lambda v, by=backend: jax.jvp(lambda x: weighted_run(restore(x), method, steps, by), (values,), (v,))[1]
        slope = jax.jit(along)(direction)
        assert np.isfinite(slope)
        assert abs(slope - sum(terms)) <= 1e-11 * np.abs(terms).sum()

    problem, rates = way_of_problems(name)
    number = jax.jit(lambda values: weighted_run(restore(values), method, steps))
    slope = sum(np.sum(a * b) for a, b in zip(gradient(problem(0.0)), rates, strict=True))
    tolerance = 1e-6 if method.variable_step else 1e-7  # a motion by substeps is rough by its own tolerance

    def agrees(e):
        """Whether differences over this distance say the same: a number that bends much wants a shorter one."""
        at = {k: float(number(problem(k * e))) for k in (-3, -2, -1, 1, 2, 3)}
        odd = {k: at[k] - at[-k] for k in (1, 2, 3)}
        expected = (45.0 * odd[1] - 9.0 * odd[2] + odd[3]) / (60.0 * e)
        return abs(slope - expected) <= tolerance * max(abs(expected), abs(at[1]))

    assert agrees(1e-3) or agrees(1e-5)


FAST = {
    ("lagrange-dalembert", "nonholonomic-particle"), ("runge-kutta", "rigid-body"), ("euler-poincare-suslov", "suslov"),
    ("dormand-prince", "nonholonomic-particle"), ("taylor", "nonholonomic-particle"), ("gauss", "rigid-body"),
    ("lie-poisson-splitting", "rigid-body"),
}  # fmt: skip
THREE = ("nonholonomic-particle", "suslov", "rigid-body")
METHODS_AND_SYSTEMS = [
    (label, name)
    for name in dict.fromkeys((*THREE, *cases(), *MODELS))
    for label, variant in variants().items()
    if not variant.options
]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        pytest.param(label, name, id=f"{name}, {label}", marks=() if (label, name) in FAST else pytest.mark.heavy)
        for label, name in METHODS_AND_SYSTEMS
    ],
)
def test_the_adjoint_is_the_transpose_of_the_tangent_and_what_differences_say(label, name, monkeypatch):
    monkeypatch.setattr(llvm, "EFFORT", 0)  # the numbers are the same, and compiled in a tenth of the time
    method = variants()[label].integrator
    try:
        method.require(*built(name))
    except InvalidInput as fault:
        pytest.skip(str(fault))
    check_gradient(name, method, by_xla=name in THREE and (label, name) not in FAST)


def knife(t, q, v, p):
    return 0.5 * p["m"] * (v[0] ** 2 + v[1] ** 2) + 0.5 * p["J"] * v[2] ** 2


def edge(t, q, p):
    return jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2]), 0.0])[None]


def push(t, q, v, u, p):
    return jnp.stack([u[0] * jnp.cos(q[2]), u[0] * jnp.sin(q[2]) * (1 + 0.1 * t), u[1]])


def pushed_knife(parameters, pushes, start, step, t0):
    """The end of a driven knife edge, from everything that a run depends on."""
    system = da.System(da.Euclidean(3), knife, edge, parameters=parameters, force=push, inputs=2)
    state = system.state(start, system.project(start, jnp.array([0.3, 0.2, 0.1])))
    run = da.simulate(system, da.LagrangeDAlembert(), state, step=step, steps=len(pushes), controls=pushes, t0=t0)
    return run.g[-1] @ jnp.array([1.0, 2.0, 3.0]) + jnp.sum(run.multipliers**2)


PUSHED = (
    {"m": jnp.array(1.3), "J": jnp.array(0.4)}, jnp.sin(jnp.arange(8.0)).reshape(4, 2), jnp.array([0.1, 0.2, 0.3]),
    jnp.array(0.05), jnp.array(0.2),
)  # fmt: skip


def test_controls_parameters_start_step_and_time_of_an_own_system():
    gradient, _ = jax.flatten_util.ravel_pytree(jax.grad(lambda x: pushed_knife(*x))(PUSHED))
    np.testing.assert_allclose(gradient, differences(lambda x: pushed_knife(*x), PUSHED), rtol=1e-7, atol=1e-9)


def pulled_particle(x, pushes, every):
    """A number that all records decide, as a function of the parameter, the start, the step and the controls."""

    def lagrangian(t, q, v, p):
        return 0.5 * v @ v - 0.25 * p * (q @ q) ** 2

    system = da.System(da.Euclidean(2), lagrangian, parameters=x[0], force=lambda t, q, v, u, p: u * q, inputs=2)
    options = {"step": x[5], "steps": len(pushes), "save_every": every, "controls": pushes}
    run = da.simulate(system, da.RungeKutta(), system.state(x[1:3], x[3:5]), **options)
    return jnp.sum(run.g**2 * jnp.arange(1.0, 3.0)) + run.xi[-1, 0]


PULLED = jnp.array([1.3, 0.4, -0.3, 0.5, 0.7, 0.1]), 0.1 * jnp.cos(jnp.arange(12.0)).reshape(6, 2)


@pytest.mark.parametrize(("steps", "every"), [(6, 1), (6, 2), (6, 6), (1, 1)])
def test_a_short_run_in_a_program_is_one_native_call(steps, every, monkeypatch):
    """A run of a single step was a call back into Python: 2 ms, where two steps took 10 us."""
    given = PULLED[0], PULLED[1][:steps]
    end = jax.value_and_grad(lambda x: pulled_particle(*x, every))
    text = jax.jit(end).lower(given).as_text()
    assert text.count("dalembert_script") == 2  # the run, and its transpose
    assert "callback" not in text
    at_once, eager = jax.jit(end)(given), end(given)
    alone = jax.jit(lambda x: pulled_particle(*x, every))
    assert alone.lower(given).as_text().count("dalembert_script") == 1
    monkeypatch.setattr(gradients, "_fits_script", lambda *given: False)
    in_parts = jax.jit(jax.value_and_grad(lambda x: pulled_particle(*x, every)))(given)
    for found in (at_once, eager):
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(in_parts), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(alone(given), in_parts[0], rtol=1e-14)


def test_a_prepared_run_in_a_program_is_one_native_call():
    """It was a call back into Python; and what fails has its status, and a gradient that is not a number."""
    method, options = da.LagrangeDAlembert(), {"step": 0.05, "steps": 5}

    def end(x, whole, steps=5):
        lagrangian = lambda t, q, v, p: 0.5 * v @ v + p * q[0] ** 4
        system = da.System(da.Euclidean(1), lagrangian, parameters=x[0])
        given, state = options | {"steps": steps}, system.state(x[1:2], x[2:3])
        if whole:
            run = da.simulate(system, method, state, **given)
            return run.xi[-1, 0], run.final.status
        saved = da.prepare(system, method, save=("xi",), **given)(state)
        return saved.values["xi"][-1, 0], saved.final.status

    x = jnp.array([1.0, 0.2, 0.3])
    gradient = jax.jit(jax.value_and_grad(end, has_aux=True), static_argnums=(1, 2))
    text = gradient.lower(x, False, 5).as_text()
    assert text.count("dalembert_script") == 2
    assert "callback" not in text
    for a, b in zip(jax.tree.leaves(gradient(x, False, 5)), jax.tree.leaves(gradient(x, True, 5)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    (_, status), slope = gradient(jnp.array([1.0, 1.0, 3.0]), False, 200)
    assert int(status) != 0
    assert np.isnan(slope).all()


def test_a_gradient_where_jax_works_on_a_gpu_needs_no_script(monkeypatch):
    """XLA calls scripts on a processor only; the eager gradient of one run had no rule for a GPU."""
    end = jax.value_and_grad(lambda x: pulled_particle(*x, 1))
    wanted = end(PULLED)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(gradients.Script, "bind", None)
    for a, b in zip(jax.tree.leaves(end(PULLED)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_native_calls_in_a_program_keep_small_numbers():
    """XLA lets its threads flush numbers below 2e-308 to 0."""
    script = gradients.Script([0, 0], [jax.ShapeDtypeStruct((3,), np.float64)])
    script.copy(script.result(0), (0, 0), 3)
    script.add(script.result(0), (1, 0), 3)
    x = np.array([5e-324, 1e-310, 1.0])
    np.testing.assert_array_equal(script.play(jnp.asarray(x), jnp.asarray(x))[0], 2 * x)


@pytest.mark.heavy
def test_programs_with_short_runs_are_transformed_again():
    x, pushes = PULLED
    gradient = jax.grad(lambda x: pulled_particle(x, pushes, 1))
    many = x + 0.01 * jnp.arange(3.0)[:, None]
    each = np.stack([gradient(row) for row in many])
    np.testing.assert_allclose(jax.vmap(jax.jit(gradient))(many), each, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(many), each, rtol=1e-12)
    np.testing.assert_allclose(jax.lax.map(gradient, many), each, rtol=1e-12)
    outside = jax.grad(jax.jit(lambda x: pulled_particle(x, pushes, 1)))
    np.testing.assert_allclose(outside(x), each[0], rtol=1e-12)
    slope = jax.jvp(jax.jit(gradient), (x,), (jnp.ones(6),))[1]
    near = [
        (8 * (gradient(x + e) - gradient(x - e)) - (gradient(x + 2 * e) - gradient(x - 2 * e))) / (12 * e)
        for e in (1e-3,)
    ]
    np.testing.assert_allclose(slope, near[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.hessian(lambda x: pulled_particle(x, pushes, 1)))(x) @ jnp.ones(6), slope, rtol=1e-10
    )


def test_the_first_state_of_a_process_may_be_made_inside_jit():
    unit_element.cache_clear()
    system = da.models.suslov(GENERIC)
    np.testing.assert_array_equal(jax.jit(lambda m: system.state(momentum=m).g)(jnp.array([3.0, 2.0])), np.eye(3))


def test_parameters_of_single_precision_run_in_native_code():
    """They went to XLA, which compiled for half a minute; the gradient has their type, as JAX has it everywhere."""

    def speed(mass):
        system = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * p * v @ v - q[0], parameters=mass)
        run = da.simulate(system, da.LagrangeDAlembert(), system.state([0.0], [1.0]), step=0.5, steps=2)
        assert run.backend == "llvm"
        return run.xi[-1, 0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slope = jax.grad(speed)(jnp.asarray(2.0, jnp.float32))
        assert float(speed(np.float32(2.0))) == float(speed(2.0))
    assert slope.dtype == jnp.float32
    np.testing.assert_allclose(slope, 0.25, rtol=1e-6)  # v = 1 - t/m at t = 1


def test_a_state_with_numbers_of_32_bits_runs_natively_in_64():
    """`_replace` takes any array. The run of such a state ended in a TypeError of XLA, or ran there with a warning."""
    system, method = da.models.unicycle(), da.LagrangeDAlembert()
    state, options = system.state(xi=[0.5, 0.25, 0.0]), {"step": 0.1, "steps": 3}
    single = state._replace(xi=np.asarray(state.xi, np.float32))
    last = da.simulate(system, method, state, **options).xi[-1]

    def end(xi):
        run = da.simulate(system, method, state._replace(xi=xi), **options)
        assert run.backend == "llvm"
        return run.xi[-1]

    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), single)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [da.prepare(system, method, **options, save="final")(single).values.xi, end(single.xi)]
        found += [jax.jit(end)(jnp.asarray(single.xi)), *da.ensemble(system, method, many, **options).xi[:, -1]]
        assert jax.grad(lambda xi: end(xi)[0])(jnp.asarray(single.xi)).dtype == np.float32
    for each in found:
        assert each.dtype == np.float64
        np.testing.assert_allclose(each, last, rtol=1e-14)


def test_a_state_that_is_closed_over_and_a_scan_around_runs():
    system, state = case("particle")
    method = da.LagrangeDAlembert(node=0.5, nodes="velocity")

    def go(state, _):
        return da.simulate(system, method, state, step=0.1, steps=3).last, None

    end = jax.jit(lambda: jax.lax.scan(go, state, None, length=4)[0])()
    plain = da.simulate(system, method, state, step=0.1, steps=12)
    np.testing.assert_allclose(end.g, plain.g[-1], rtol=1e-13)
    closed = jax.jit(lambda h: da.simulate(system, method, state, step=h, steps=3).g[-1])(0.1)
    np.testing.assert_allclose(closed, plain.g[3], rtol=1e-13)
    step = jnp.asarray(0.1)  # which was asked inside jit whether it changes t0: TracerBoolConversionError
    closed = jax.jit(lambda: da.simulate(system, method, state, step=step, steps=3).g[-1])()
    np.testing.assert_allclose(closed, plain.g[3], rtol=1e-13)


def test_a_failed_run_has_no_derivative():
    """A particle that falls into the centre: the run stays at its last good state, and the gradient is NaN."""

    def lagrangian(t, q, v, p):
        return 0.5 * v @ v - p * jnp.log(q[0] - 1.0)

    def end(p):
        system = da.System(da.Euclidean(2), lagrangian, parameters=p)
        state = da.State(jnp.zeros(()), jnp.array([1.5, 0.0]), *[jnp.array([-1.0, 0.5])] * 3)
        return da.simulate(system, da.RungeKutta(), state, step=0.1, steps=20, backend="llvm")

    assert end(1.0).status == "failed"
    assert np.isfinite(end(1.0).last.g).all()
    assert np.isnan(jax.grad(lambda p: end(p).g[-1, 0])(1.0))
    assert np.isnan(jax.jit(jax.grad(lambda p: end(p).g[-1, 0]))(1.0))
    assert int(jax.jit(lambda p: end(p).final.status)(1.0)) == int(end(1.0).final.status)
    assert jax.jit(jax.grad(lambda p: 0.0 * p + jnp.where(end(p).final.status == 0, end(p).g[-1, 0], p)))(1.0) == 1.0
    assert np.isnan(jax.jvp(lambda p: end(p).g[-1, 0], (1.0,), (1.0,))[1])
    assert np.isfinite(jax.grad(lambda p: end(-p).g[-1, 0])(1.0))
