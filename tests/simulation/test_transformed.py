"""Events inside JAX transformations: times and states at crossings are functions of all that a run depends on.

A ball that is thrown up has closed forms, and the other cases have central differences.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import sampled
from scipy.special import ellipe, ellipk

import dalembert as da

METHOD = da.Leapfrog()


def lagrangian(t, q, v, p):
    return 0.5 * v @ v - p["g"] * q[0]


def height(t, q, v, p):
    return q[0]


GROUND = da.Event(height, -1, stop=True, name="ground")
HALF = da.Event(lambda t, q, v, p: q[0] - 1.05, name="half")
THROWN = jnp.array([9.81, 1.0, 2.0, 0.05])  # gravity, height, speed, step


def throw(x, events=(GROUND,), steps=20, method=METHOD, **options):
    system = da.System(da.Euclidean(1), lagrangian, parameters={"g": x[0]})
    start = system.state(x[1:2], x[2:3])
    return da.simulate(system, method, start, step=x[3], steps=steps, events=list(events), **options)


def landing(x, **options):
    return throw(x, **options).events["ground"].t[0]


def exact_landing(x):
    """Steps of this method are exact for a constant force, so the run lands when the ball does."""
    return (x[2] + jnp.sqrt(x[2] ** 2 + 2 * x[0] * x[1])) / x[0]


def differences(function, x, e=1e-4):
    """Central differences of fourth order."""
    x = np.asarray(x, float)
    moved = lambda k, s: np.asarray(function(jnp.asarray(x + s * e * np.eye(len(x))[k])))
    return np.stack(
        [(8 * (moved(k, 1) - moved(k, -1)) - (moved(k, 2) - moved(k, -2))) / (12 * e) for k in range(len(x))], -1
    )


def compiled_grad(function):
    return jax.jit(jax.grad(function))


@pytest.mark.parametrize("transformed", sampled([compiled_grad, jax.grad, jax.jacfwd]))
def test_a_thrown_ball_lands_with_the_derivatives_of_the_closed_form(transformed):
    expected = jax.grad(exact_landing)(THROWN)
    np.testing.assert_allclose(transformed(landing)(THROWN), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.heavy
def test_the_speed_of_landing_has_the_derivatives_of_the_closed_form():
    speed = lambda x: throw(x).last.xi[0]  # the run ends at the event: v = -sqrt(v^2 + 2 g q)
    np.testing.assert_allclose(
        jax.grad(speed)(THROWN), jax.grad(lambda x: -jnp.sqrt(x[2] ** 2 + 2 * x[0] * x[1]))(THROWN), atol=1e-12
    )


def test_jit_and_vmap_keep_the_shapes_of_a_run_that_may_stop():
    many = jnp.stack([THROWN, THROWN.at[1].set(0.5), THROWN.at[2].set(9.0)])  # the last one is in the air at the end
    times = jax.jit(jax.vmap(landing))(many)
    np.testing.assert_allclose(times[:2], jax.vmap(exact_landing)(many[:2]), rtol=1e-13)
    assert np.isnan(times[2])
    run = jax.jit(throw)(THROWN)
    plain = throw(THROWN)
    assert run.stopped_by == plain.stopped_by == "ground" and run.status == "ok" and len(run.t) == 21
    np.testing.assert_allclose(run.t[: len(plain.t)], plain.t, rtol=1e-14)
    assert np.all(run.t[len(plain.t) - 1 :] == run.t[-1])
    assert jax.jit(throw)(many[2]).stopped_by is None


@pytest.mark.heavy
def test_a_crossing_that_does_not_happen_has_no_derivative_and_the_run_has_one():
    short = {"steps": 5}
    for transformed in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        assert np.isnan(transformed(lambda x: landing(x, **short))(THROWN)).all()
        found = transformed(lambda x: throw(x, **short).g[-1, 0])(THROWN)
        t = 0.25
        np.testing.assert_allclose(found, [-(t**2) / 2, 1.0, t, 5 * (2.0 - 9.81 * t)], rtol=1e-12)


@pytest.mark.heavy
def test_a_crossing_that_only_touches_has_no_derivative():
    """(x - 0.7)^3 passes zero without a rate: the time is found, its derivative does not exist."""

    def cubic(x):
        system = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v, parameters={})
        flat = da.Event(lambda t, q, v, p: (q[0] - 0.7) ** 3, stop=True, name="flat")
        run = da.simulate(system, METHOD, system.state(x[:1], x[1:]), step=0.1, steps=20, events=[flat])
        return run.events["flat"].t[0]

    x = jnp.array([0.0, 1.0])
    assert abs(cubic(x) - 0.7) < 1e-4
    assert np.isnan(jax.jacfwd(cubic)(x)).all()


@pytest.mark.heavy
def test_the_quarter_period_of_a_pendulum_is_an_elliptic_integral():
    """T/4 = sqrt(l/g) K(sin^2(a/2)): its derivatives in g, l and the amplitude a."""

    def quarter(x):
        energy = lambda t, q, v, p: 0.5 * p["l"] ** 2 * v @ v + p["g"] * p["l"] * jnp.cos(q[0])
        system = da.System(da.Euclidean(1), energy, parameters={"g": x[0], "l": x[1]})
        bottom, start = da.Event(height, stop=True, name="bottom"), system.state(x[2:3], jnp.zeros(1))
        return da.simulate(system, da.Gauss(3), start, step=0.01, steps=60, events=[bottom]).events["bottom"].t[0]

    m, time = np.sin(0.5) ** 2, np.sqrt(1.0 / 9.81)
    K, E = ellipk(m), ellipe(m)
    by_amplitude = time * (E / (1 - m) - K) / (2 * m) * np.sin(0.5) * np.cos(0.5)
    x = jnp.array([9.81, 1.0, 1.0])
    assert abs(quarter(x) - time * K) < 1e-13
    np.testing.assert_allclose(jax.grad(quarter)(x), [-time * K / (2 * 9.81), time * K / 2, by_amplitude], rtol=1e-12)


@pytest.mark.heavy
def test_gradients_of_several_runs_of_which_one_does_not_land():
    many = jnp.stack([THROWN, THROWN.at[1].set(0.5), THROWN.at[2].set(9.0)])
    gradients, expected = jax.vmap(jax.grad(landing))(many), jax.vmap(jax.grad(exact_landing))(many[:2])
    np.testing.assert_allclose(gradients[:2], expected, rtol=1e-12, atol=1e-13)
    assert np.isnan(gradients[2]).all()
    total = jax.grad(lambda x: jnp.nansum(jax.vmap(landing)(x)))(many)  # the last one is left out, and says nothing
    np.testing.assert_allclose(total[:2], expected, rtol=1e-12, atol=1e-13)
    assert np.all(total[2] == 0.0)


@pytest.mark.heavy
@pytest.mark.parametrize("every", [3, 7])
def test_few_saved_states_lose_no_derivative(every):
    rows, expected = lambda x: landing(x, save_every=every), jax.grad(exact_landing)(THROWN)
    for transformed in (jax.jacfwd, jax.grad, lambda f: jax.jit(jax.grad(f))):
        np.testing.assert_allclose(transformed(rows)(THROWN), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.heavy
def test_all_crossings_of_a_run_and_second_derivatives():
    both = (GROUND, HALF)
    times = lambda x: throw(x, both).events["half"].t
    by_height = lambda x: jnp.stack(
        [(x[2] + s * jnp.sqrt(x[2] ** 2 + 2 * x[0] * (x[1] - 1.05))) / x[0] for s in (-1.0, 1.0)]
    )
    np.testing.assert_allclose(jax.jacfwd(times)(THROWN), jax.jacfwd(by_height)(THROWN), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(jax.hessian(landing)(THROWN), jax.hessian(exact_landing)(THROWN), rtol=1e-9, atol=1e-10)


def test_a_number_of_crossings_that_jax_does_not_know_is_refused():
    for transformed, x in ((jax.jit, THROWN), (jax.vmap, THROWN[None])):
        with pytest.raises(da.InvalidInput, match="events: how often 'half' is crossed depends on numbers that jax"):
            transformed(lambda x: throw(x, (GROUND, HALF)).events["half"].t)(x)


def pushed_run(x, rows, events):
    """A driven sleigh, from all that its run depends on."""
    system = da.System(
        da.Euclidean(3), lambda t, q, v, p: 0.5 * p["m"] * (v[0] ** 2 + v[1] ** 2) + 0.5 * p["J"] * v[2] ** 2,
        lambda t, q, p: jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2]), 0.0])[None],
        force=lambda t, q, v, u, p: jnp.stack([u[0] * jnp.cos(q[2]), u[0] * jnp.sin(q[2]) * (1 + 0.1 * t), u[1]]),
        inputs=2, parameters={"m": x[0], "J": x[1]},
    )  # fmt: skip
    place = jnp.stack([0.1, 0.2 + 0.0 * x[0], x[2]])
    start = system.state(place, system.project(place, jnp.array([0.9, 0.4, 0.3])))
    options = {"controls": rows, "events": events, "save_every": 4, "monitor": True}
    return da.simulate(system, METHOD, start, step=x[3], steps=len(rows), t0=x[4], **options)


def pushed(x, rows):
    """The times and states at which it faces a wall."""
    turned = da.Event(lambda t, q, v, p: q[2] - 0.5 - 0.1 * jnp.sin(q[0]), name="turned")
    wall = da.Event(lambda t, q, v, p: q[0] - 0.9, stop=True, name="wall")
    run = pushed_run(x, rows, [turned, wall])
    facing, stop = run.events["turned"], run.events["wall"]
    return jnp.concatenate([facing.t, facing.g[0], stop.t, stop.xi[0], stop.theta, run.last.g, run.multipliers[-1]])


PUSHED = jnp.array([1.3, 0.4, 0.3, 0.05, 0.2])
ROWS = 0.3 * jnp.sin(jnp.arange(60.0)).reshape(30, 2) + 0.2
TURNED = jnp.cos(jnp.arange(60.0)).reshape(30, 2)


def test_controls_by_differences():
    slope = jax.jvp(lambda u: pushed(PUSHED, u), (ROWS,), (TURNED,))[1]
    along = differences(lambda s: pushed(PUSHED, ROWS + s[0] * TURNED), jnp.zeros(1))[:, 0]
    np.testing.assert_allclose(slope, along, rtol=1e-7, atol=1e-8)


@pytest.mark.heavy
def test_parameters_start_step_and_time_by_differences_and_controls_backwards():
    expected = differences(lambda x: pushed(x, ROWS), PUSHED)
    scale = 1e-3 + np.abs(expected).max(axis=1, keepdims=True)
    np.testing.assert_allclose(jax.jacfwd(pushed)(PUSHED, ROWS) / scale, expected / scale, atol=1e-7)
    slope = jax.jvp(lambda u: pushed(PUSHED, u), (ROWS,), (TURNED,))[1]
    weights = jnp.sin(1.0 + jnp.arange(len(slope)))
    gradient = jax.grad(lambda u: weights @ pushed(PUSHED, u))(ROWS)
    assert abs(jnp.sum(gradient * TURNED) - weights @ slope) < 1e-11 * float(jnp.abs(weights * slope).sum())


@pytest.mark.heavy
def test_members_that_stop_have_their_own_derivatives():
    def times(x):
        system = da.System(da.Euclidean(1), lagrangian, parameters={"g": x[0]})
        starts = [system.state(x[1:2], x[2:3]), system.state(0.5 * x[1:2], x[2:3]), system.state(x[1:2], 20.0 * x[2:3])]
        run = da.ensemble(system, METHOD, starts, step=0.05, steps=20, events=[GROUND])
        return run.events["ground"].t, run.g[:, -1, 0]

    found, _ = times(THROWN)
    jacobian, last = jax.jacfwd(times)(THROWN)
    for k, factor in enumerate((1.0, 0.5)):
        own = lambda x, factor=factor: exact_landing(x.at[1].multiply(factor))
        np.testing.assert_allclose(found[k], own(THROWN), rtol=1e-12)
        np.testing.assert_allclose(jacobian[k], jax.grad(own)(THROWN), rtol=1e-11, atol=1e-12)
    assert len(found) == 2 and np.isnan(jacobian[2]).all()
    np.testing.assert_allclose(last[2], [-0.5, 1.0, 20.0, 0.0], rtol=1e-12, atol=1e-14)
    by_jit = jax.jit(lambda x: jax.jacrev(times)(x))(THROWN)
    np.testing.assert_allclose(by_jit[0][:2], jacobian[:2], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(by_jit[1], last, rtol=1e-11, atol=1e-12)


@pytest.mark.heavy
def test_steps_that_vary_and_a_run_that_goes_on():
    method = da.Adaptive()
    ends = lambda x: throw(x, method=method, steps=40).events["ground"].t
    found = jax.jacfwd(ends)(THROWN)
    np.testing.assert_allclose(found[0], differences(lambda x: ends(x)[0], THROWN), rtol=1e-6, atol=1e-8)

    def later(x):
        first = throw(x, events=(), steps=5)
        return da.simulate(first.system, METHOD, first, step=x[3], steps=20, events=[GROUND]).events["ground"].t[0]

    np.testing.assert_allclose(jax.grad(later)(THROWN), jax.grad(exact_landing)(THROWN), rtol=1e-11, atol=1e-12)


def test_a_run_that_goes_on_with_its_own_step_has_the_derivatives_of_that_step_alone():
    """Times count from the first start as long as the step stays: so they do in their bits, not in their slopes."""
    ball = da.System(da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v - t * q[0])
    start, h = ball.state([1.0], [2.0]), 0.1
    go_on = lambda run, step: da.simulate(ball, METHOD, run, step=step, steps=10)
    first = da.simulate(ball, METHOD, start, step=h, steps=20)
    later = lambda step: (run := go_on(first, step)).t[-1] + run.g[-1, 0]
    known = go_on(da.simulate(ball, METHOD, start, step=h, steps=20), h)
    np.testing.assert_array_equal(jax.jit(lambda step: go_on(first, step).t)(h), known.t)
    assert abs(jax.grad(lambda step: go_on(first, step).t[-1])(h) - 10.0) < 1e-12
    np.testing.assert_allclose(jax.grad(later)(h), (later(h + 1e-5) - later(h - 1e-5)) / 2e-5, rtol=1e-8)
    before = lambda step: go_on(da.simulate(ball, METHOD, start, step=step, steps=20), h).t[-1]
    assert abs(jax.grad(before)(h) - 20.0) < 1e-12


@pytest.mark.heavy
def test_the_number_of_variable_steps_to_an_end_is_that_of_the_run():
    """Derivatives are those of the run with as many steps; under jit nobody knows how many these are."""
    method, h = da.Adaptive(), THROWN[3]

    def last(x, **until):
        run = throw(x, (), method=method, **until)
        return jnp.append(run.last.g, run.t[-1])

    plain = throw(THROWN, (), method=method, steps=None, t_end=0.6)
    known = {"steps": plain.steps}
    found = jax.jacfwd(lambda x: last(x, steps=None, t_end=0.6))(THROWN)
    np.testing.assert_allclose(found, jax.jacfwd(lambda x: last(x, **known))(THROWN), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found, differences(lambda x: last(x, **known), THROWN), rtol=1e-7, atol=1e-9)
    later = lambda x: da.simulate(plain.system, method, throw(x, (), method=method, steps=3), step=h, t_end=0.6).t
    assert jax.jacfwd(later)(THROWN).shape == (plain.steps - 2, 4)

    def fall(x):
        system, state, _ = thrown(x)
        return da.simulate(system, method, state, step=0.05, t_end=0.6).t

    for transformed, x in ((jax.jit, THROWN), (jax.vmap, THROWN[None])):
        with pytest.raises(da.InvalidInput, match="how many steps adaptive takes to t_end depends on numbers that jax"):
            transformed(fall)(x)


# -- along curves of problems ------------------------------------------------------------------------------------------
def thrown(x):
    system = da.System(da.Euclidean(1), lagrangian, parameters={"g": x[0]})
    return system, system.state(x[1:2], x[2:3]), x[3]


def test_events_have_tangents():
    """Along each number of a thrown ball: when it lands, how fast, when it passes a height on the way."""
    system, state, step = thrown(THROWN)
    options = {"step": step, "steps": 20, "events": [GROUND, HALF]}
    plain = da.simulate(system, METHOD, state, **options)
    run = da.simulate(system, METHOD, state, **options, tangents=lambda s: thrown(THROWN + s), directions=4)
    np.testing.assert_array_equal(run.g, plain.g)
    ground, half = run.events["ground"], run.events["half"]
    np.testing.assert_allclose(ground.tangents.state.t[:, 0], jax.grad(exact_landing)(THROWN), rtol=1e-12, atol=1e-13)
    assert run.tangents.state.g.shape == (4, *run.g.shape) and half.tangents.state.g.shape == (4, 2, 1)
    np.testing.assert_allclose(run.tangents.state.xi[:, -1], ground.tangents.state.xi[:, 0], rtol=1e-13)
    assert half.select([1]).tangents.state.t.shape == (4, 1)
    one = da.simulate(system, METHOD, state, **options, tangents=lambda s: thrown(THROWN + s * jnp.eye(4)[2]))
    np.testing.assert_allclose(one.events["half"].tangents.state.t, half.tangents.state.t[2], rtol=1e-12)
    np.testing.assert_allclose(one.tangents.state.g, run.tangents.state.g[2], rtol=1e-12, atol=1e-14)


# -- states at any time ------------------------------------------------------------------------------------------------
TIMES = jnp.array([0.0, 0.13, 0.2, 0.331])


def exact_place(x, t):
    return x[1] + x[2] * t - 0.5 * x[0] * t**2


def place(x, t):
    return throw(x, (), steps=9, save_every=4).at(t).g[:, 0]


@pytest.mark.parametrize("transformed", sampled([jax.jacfwd, lambda *f: jax.jit(jax.jacrev(*f))]))
def test_states_at_any_time_have_derivatives(transformed):
    """In all that the run depends on, and in the times: at saved states, between them, and at the ends."""
    found = transformed(place, (0, 1))(THROWN, TIMES)
    for own, exact in zip(found, jax.jacfwd(exact_place, (0, 1))(THROWN, TIMES), strict=True):
        np.testing.assert_allclose(own, exact, rtol=1e-11, atol=1e-12)


@pytest.mark.heavy
def test_states_at_many_times_and_beyond_the_end():
    ends = jax.jit(jax.vmap(place, (None, 0)))(THROWN, TIMES[:, None])
    np.testing.assert_allclose(ends[:, 0], place(THROWN, TIMES), rtol=1e-13)
    beyond = jax.value_and_grad(lambda x: throw(x, ()).at(2.0).g[0])(THROWN)
    assert np.isnan(beyond[0]) and np.isnan(beyond[1]).all()


@pytest.mark.heavy
def test_states_at_any_time_of_driven_and_adaptive_runs_and_of_members():
    def between(x, rows):
        run = pushed_run(x, rows, [])
        state = run.at(jnp.stack([x[4] + 0.31, 0.88, run.t[-1]]))
        return jnp.concatenate([state.g.ravel(), state.xi.ravel(), state.momentum.ravel(), state.t])

    found, expected = jax.jacfwd(between)(PUSHED, ROWS), differences(lambda x: between(x, ROWS), PUSHED)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    weights = jnp.sin(1.0 + jnp.arange(found.shape[0]))
    slope = jax.jvp(lambda u: between(PUSHED, u), (ROWS,), (TURNED,))[1]
    gradient = jax.grad(lambda u: weights @ between(PUSHED, u))(ROWS)
    assert abs(jnp.sum(gradient * TURNED) - weights @ slope) < 1e-11 * float(jnp.abs(weights * slope).sum())
    varying = lambda x: throw(x, (), method=da.Adaptive()).at(0.41).g
    np.testing.assert_allclose(jax.jacfwd(varying)(THROWN), differences(varying, THROWN), rtol=1e-6, atol=1e-8)

    def members(x):
        system = da.System(da.Euclidean(1), lagrangian, parameters={"g": x[0]})
        starts = [system.state(x[1:2], x[2:3]), system.state(0.5 * x[1:2], x[2:3])]
        return da.ensemble(system, METHOD, starts, step=x[3], steps=9, save_every=4).at(TIMES).g[..., 0]

    second = lambda x: exact_place(x.at[1].multiply(0.5), TIMES)
    expected = jnp.stack([jax.jacfwd(exact_place)(THROWN, TIMES), jax.jacfwd(second)(THROWN)])
    np.testing.assert_allclose(jax.jacfwd(members)(THROWN), expected, rtol=1e-11, atol=1e-12)


# -- numbers that have to be known ------------------------------------------------------------------------------------
def particle(**options):
    return da.simulate(PARTICLE, METHOD, BEGIN, **{"step": 0.1, "steps": 3, **options})


PARTICLE = da.models.nonholonomic_particle("harmonic")
BEGIN = PARTICLE.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])
slower = lambda s: BEGIN._replace(xi=s * BEGIN.xi, momentum=s * BEGIN.momentum)
LEVEL = lambda c: da.Event(lambda t, q, v, p: q[0] - c, name="level")
REFUSED = {
    "steps is a number that JAX traces": lambda n: particle(steps=n).g,
    "save_every is a number that JAX traces": lambda n: particle(save_every=n).g,
    "for JAX traces t_end: give steps": lambda t: particle(steps=None, t_end=1.0 * t).g,
    "for JAX traces step: give steps": lambda h: particle(steps=None, t_end=1.0, step=0.1 * h).g,
    r"run\.status needs numbers": lambda h: particle(step=0.1 * h).status == "ok",
    r"run\.check\(\) needs numbers": lambda h: particle(step=0.1 * h).check().g,
    r"run\.failed_at needs numbers": lambda h: particle(step=0.1 * h).failed_at,
    r"run\.reason needs numbers": lambda h: particle(step=0.1 * h).reason,
    r"run\.summary\(\) needs numbers": lambda h: particle(step=0.1 * h).summary(),
    r"run\.work\(\) needs numbers": lambda h: particle(step=0.1 * h).work(),
    r"run\.power\(\) needs numbers": lambda h: particle(step=0.1 * h).power(),
    r"run\.save\(path\) needs numbers": lambda h: particle(step=0.1 * h).save("run.nc"),
    r"run\.plot\(\) needs numbers": lambda h: particle(step=0.1 * h).plot(),
    r"run\.to_xarray\(\) needs numbers": lambda h: particle(step=0.1 * h).to_xarray(),
    r"run\.coordinates\(kind\) needs numbers": lambda h: particle(step=0.1 * h).coordinates("position"),
    "the function of 'level' holds a number that JAX traces": lambda c: particle(events=[LEVEL(0.4 * c)]).t,
    "holds a number that JAX traces": lambda c: (
        particle(events=[da.Event(da.Quantity("configuration", (0,), 0.4 * c))]).t
    ),
    "step of a prepared run needs": lambda h: da.prepare(PARTICLE, METHOD, step=0.1 * h, steps=3)(BEGIN).g,
    "traces monitor": lambda m: particle(monitor=m).g,
    "linearise needs numbers that are known, but JAX traces about .*: ranks": lambda s: da.linearise(
        PARTICLE, slower(s)
    ),
    "steady needs numbers .* JAX traces speed": lambda s: da.steady(PARTICLE, BEGIN, speed=1.0 * s),
    "stability needs numbers .* JAX traces low": lambda s: da.stability(PARTICLE, "speed", 1.0 * s, 4.0),
    "nonholonomy needs numbers .* JAX traces g": lambda x: da.nonholonomy(PARTICLE, jnp.ones(3) * x),
    "fit needs numbers .* JAX traces step": lambda h: da.fit(PARTICLE, METHOD, [], {}, step=0.1 * h),
    "an experiment needs numbers .* JAX traces times": lambda t: da.optimise.Experiment(
        [1.0 * t], {"velocity": [0.0]}, BEGIN
    ),
    "an ensemble needs numbers .* JAX traces batched_system": lambda b: (
        da.ensemble(PARTICLE, METHOD, [BEGIN], step=0.1, steps=3, batched_system=b).g
    ),
    "an ensemble to t_end .* JAX traces state": lambda s: (
        da.ensemble(PARTICLE, da.Adaptive(), [slower(s)], step=0.1, t_end=1.0).g
    ),
    "body needs numbers .* JAX traces mass": lambda m: da.Mechanism("r").body("base", mass=1.0 * m, ball=0.1),
    "the basis of D needs numbers": lambda x: PARTICLE.state([0.3, 1.0 * x, -0.2], momentum=[1.0, 0.7]).xi,
    r"run\.monitored needs numbers": lambda h: particle(step=0.1 * h).monitored,
    r"node \(beta\) needs a value that is known, but JAX traces it": lambda s: da.LagrangeDAlembert(node=0.5 * s),
    "tolerance needs a value that is known, but JAX traces it": lambda s: da.Taylor(tolerance=1e-9 * s),
    "stages needs a value that is known, but JAX traces it": lambda n: da.Gauss(stages=n),
    "order of discrete-moser-veselov needs a value that is known": lambda n: da.DiscreteMoserVeselov(order=2 * n),
    "backend needs a value that is known": lambda n: particle(backend=n),
    r"save\(system, state\) holds a number that JAX traces": lambda s: (
        da.prepare(PARTICLE, METHOD, step=0.1, steps=3, save=lambda system, state: s * state.g)(BEGIN).values
    ),
    "a comparison needs numbers that are known, but JAX traces steps": lambda h: da.compare(
        PARTICLE, {"a": METHOD}, BEGIN, steps=[0.1 * h], t_end=1.0
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_traced_number_that_has_to_be_known_is_named(message):
    with pytest.raises(da.InvalidInput, match=message):
        jax.jit(REFUSED[message])(1)


def test_axes_are_explained_in_the_words_of_the_user():
    states = jax.vmap(lambda x: PARTICLE.state(jnp.stack([x, 0.5, -0.2]), jnp.array([1.1, 0.7, 0.55])))(jnp.ones(2))
    with pytest.raises(
        da.InvalidInput, match=r"has shape \(2, 3\); allowed: \(3,\)\. States .* da\.ensemble, or jax\.vmap"
    ):
        da.simulate(PARTICLE, METHOD, states, step=0.1, steps=3)
    many = "An axis in front is one of many runs: da.ensemble, or jax.vmap"
    with pytest.raises(da.InvalidInput, match=rf"velocity xi has shape \(2, 3\); allowed: \(3,\)\. {many}"):
        PARTICLE.state(BEGIN.g, np.ones((2, 3)))
    with pytest.raises(da.InvalidInput, match=rf"of shape \(5, 3, 3\) was given\. {many}"):
        da.SO3().element(np.ones((5, 3, 3)))
    with pytest.raises(da.InvalidInput, match=f"allowed: any finite number but 0. {many}"):
        particle(step=np.array([0.1, 0.2]))
    driven = da.System(da.Euclidean(1), lagrangian, force=lambda t, q, v, u, p: u, inputs=1, parameters={"g": 1.0})
    with pytest.raises(da.InvalidInput, match=f"one row a step, that is 3. {many}"):
        da.simulate(driven, METHOD, driven.state([1.0], [0.0]), step=0.1, steps=3, controls=np.zeros((4, 3, 1)))
    fall = lambda g: da.System(da.Euclidean(1), lagrangian, parameters={"g": g})
    with pytest.raises(da.InvalidInput, match="leading axis are many systems"):
        da.simulate(fall(jnp.ones(2)), METHOD, fall(1.0).state([1.0], [0.0]), step=0.1, steps=3)
    plane = lambda m: da.System(
        da.Euclidean(2), lambda t, q, v, p: 0.5 * jnp.sum(p["m"] * v**2), parameters={"m": m, "k": 1.0}
    )
    with pytest.raises(
        da.InvalidInput, match=r"incompatible shapes.*Parameters that are arrays: p\['m'\] \(3,\);.*vmap"
    ):
        plane(jnp.ones(3)).state([1.0, 0.0], [0.0, 0.0])
    with pytest.raises(
        da.InvalidInput, match=r"batched_system=True, but parameters\['k'\] is one number; allowed: a leading"
    ):
        start = plane(1.0).state([1.0, 0.0], [0.0, 0.0])
        da.ensemble(plane(jnp.ones(3)), METHOD, start, step=0.1, steps=3, batched_system=True)
    starts = [fall(1.0).state([1.0], [0.0])] * 3
    with pytest.raises(da.InvalidInput, match=r"disagree in number: leading axes \[2, 3\]"):
        jax.jit(lambda g: da.ensemble(fall(g), METHOD, starts, step=0.1, steps=3, batched_system=True).g)(jnp.ones(2))


@pytest.mark.heavy
def test_what_a_traced_run_can_tell():
    """Members under vmap over the step, loads and names under grad, crossings of a member."""
    ends = jax.vmap(lambda h: da.ensemble(PARTICLE, METHOD, [BEGIN, BEGIN], step=h, steps=3).g)(jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(ends[1, 0], particle(step=0.2).g, rtol=1e-13)
    by_name = jax.jit(lambda h: particle(step=h)["x"][-1])(0.1)
    assert by_name == particle()["x"][-1]
    reaction = jax.jit(lambda h: particle(step=h).reaction())(0.1)
    np.testing.assert_allclose(reaction, particle().reaction(), rtol=1e-13)

    def level(h):
        found = particle(step=h, steps=30, events=[LEVEL(0.8)]).events["level"]
        return found.of(0).t[0] + found.select([0]).t[0]

    assert abs(jax.jvp(level, (0.1,), (1.0,))[1] - differences(lambda h: level(float(h[0])), [0.1])[0]) < 1e-7


def test_a_loss_that_vanishes_has_second_derivatives():
    """Its records have no cotangents: what leaves them out for a gradient must not for the derivative of one."""
    ends = lambda x: (run := throw(jnp.append(x, 0.05), events=(), steps=9)).xi[3:, 0] + run.g[3:, 0]
    best = np.asarray(ends(THROWN[:3]))
    loss = lambda x: 0.5 * jnp.sum((ends(x) - best) ** 2)
    slopes = jax.jacfwd(ends)(THROWN[:3])
    assert not np.any(jax.jit(jax.grad(loss))(THROWN[:3]))
    np.testing.assert_allclose(jax.hessian(loss)(THROWN[:3]), slopes.T @ slopes, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("every", sampled([1, 3]))
def test_a_number_of_all_states_of_the_exact_body_has_its_gradient(every):
    """What no step changes is a constant of the step backwards; records whose cotangents vanish are passed over."""
    method, x = da.DiscreteMoserVeselov(), jnp.array([1.1, 1.9, 3.2, 0.2, 0.7, 0.5, -0.6, 0.7])

    def number(x, weights):
        system = da.models.rigid_body(
            jnp.diag(x[:3]) + x[3] * jnp.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
        )
        run = da.simulate(system, method, system.state(momentum=x[4:7]), step=x[7], steps=60, save_every=every)
        return sum(jnp.sum(jnp.tensordot(weights, leaf * leaf, 1)) for leaf in (run.g, run.xi))

    rows = 60 // every + 1
    many = jnp.stack([jnp.sin(1.0 + jnp.arange(rows)), jnp.zeros(rows).at[rows // 2].set(1.0)])
    for weights in many:
        expected = np.asarray(jax.jacfwd(number)(x, weights))
        for found in (jax.grad(number)(x, weights), jax.jit(jax.grad(number))(x, weights)):
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
        steps = 1e-6 * np.eye(len(x))
        slopes = [(number(x + step, weights) - number(x - step, weights)) / 2e-6 for step in steps]
        np.testing.assert_allclose(expected, slopes, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    lanes = jax.vmap(jax.grad(number), (None, 0))(x, many)
    np.testing.assert_allclose(lanes[1], expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
    assert np.abs(expected).max() > 0.1


# -- what failed, and what would be refused ----------------------------------------------------------------------------
POINT = da.System(
    da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v + p / jnp.sqrt(q @ q), force=lambda t, q, v, u, p: u, inputs=2,
    parameters=1.0,
)  # fmt: skip


def attract(x, v, p, h, u, **options):
    """A particle near the centre of attraction: a step that is too long has no solution."""
    system = da.System(POINT.group, POINT.lagrangian, force=POINT.force, inputs=2, parameters=p)
    return da.simulate(system, da.LagrangeDAlembert(), system.state(x, v), step=h, steps=6, controls=u, **options)


CLOSE, NEAR = (jnp.array([x, 0.0]) for x in (0.05, 0.3))  # it fails in the first step, and after two
ATTRACTED = jnp.array([-0.5, 0.0]), 1.0, 0.05, jnp.zeros((6, 2))
ALL = tuple(range(5))


def members_and_gradients(function):
    twice = lambda given: [jnp.stack([leaf] * 2) for leaf in given]
    return lambda *given: [leaf[0] for leaf in jax.vmap(jax.grad(function, ALL))(*twice(given))]


@pytest.mark.parametrize("start", sampled([CLOSE, NEAR]))
def test_a_run_that_failed_has_no_gradient_in_anything_that_it_was_given(start):
    """It stays where it was: what it shows there depends on no control after it, and at first on the start alone."""
    assert attract(start, *ATTRACTED).status == "failed"
    given = jax.tree.map(jnp.asarray, (start, *ATTRACTED))
    loss = lambda *x: jnp.sum(attract(*x).g[-1])
    left_out = lambda *x: jnp.where((run := attract(*x)).final.status == 0, jnp.sum(run.g[-1]), jnp.sum(x[0]))
    for transformed in (lambda f: jax.grad(f, ALL), lambda f: jax.jit(jax.grad(f, ALL)), members_and_gradients):
        assert all(np.isnan(leaf).all() for leaf in transformed(loss)(*given))
        found = transformed(left_out)(*given)
        assert np.array_equal(found[0], [1.0, 1.0]) and not any(np.any(leaf) for leaf in found[1:])


@pytest.mark.parametrize("method", sampled([da.LagrangeDAlembert(), da.RungeKutta()]), ids=lambda method: method.name)
def test_a_run_that_left_its_domain_can_be_left_out(method):
    """Its last step has derivatives NaN, and 0 times these was NaN, also in what it shared with good runs."""

    def end(v, u):
        system = da.System(
            da.Euclidean(1), lambda t, q, v, p: 0.5 * v @ v + 0.3 * jnp.sqrt(1.0 - q[0]), force=lambda t, q, v, u, p: u,
            inputs=1,
        )  # fmt: skip
        run = da.simulate(system, method, system.state([-0.5], v[None]), step=0.1, steps=6, controls=u)
        return run.g[-1, 0], run.final.status == 0

    given, pushes = jnp.array([0.3, 4.0]), jnp.full((6, 1), 0.1)
    loss = lambda v, u: jnp.sum(jax.vmap(lambda v: jnp.where((found := end(v, u))[1], found[0], 0.0))(v))
    expected = jax.grad(lambda v, u: end(v, u)[0], (0, 1))(given[0], pushes)
    assert not end(given[1], pushes)[1]
    for gradient in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        found = gradient(given, pushes)
        np.testing.assert_allclose(found[0], [expected[0], 0.0], rtol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


def test_members_that_failed_spoil_no_other_but_what_they_share():
    def end(x, v, p, h, u, member):
        system = da.System(POINT.group, POINT.lagrangian, force=POINT.force, inputs=2, parameters=p)
        states = jax.vmap(lambda x: system.state(x, v))(x)
        run = da.ensemble(system, da.LagrangeDAlembert(), states, step=h, steps=6, controls=u)
        return jnp.sum(run.g[member, -1])

    given = jnp.stack([CLOSE, jnp.array([1.0, 0.0])]), *ATTRACTED[:3], jnp.zeros((2, 6, 2))
    for transformed in (jax.grad(end, ALL), jax.jit(jax.grad(end, ALL), static_argnums=5)):
        bad, good = transformed(*given, 0), transformed(*given, 1)
        assert all(np.isnan(leaf).all() for leaf in bad[1:4])
        assert np.isnan(bad[0][0]).all() and np.isnan(bad[4][0]).all()
        assert not np.any(bad[0][1]) and not np.any(bad[4][1])
        assert all(np.isfinite(leaf).all() for leaf in good) and not np.any(good[0][0]) and np.all(good[4][1, :, 0])


@pytest.mark.parametrize("method", sampled([da.LagrangeDAlembert(), da.RungeKutta()]), ids=lambda method: method.name)
def test_a_start_that_would_be_refused_fails_where_its_numbers_are_traced(method):
    """Outside it is refused; inside, a velocity off the constraint ran on as if another had been given."""
    sleigh = da.models.chaplygin_sleigh()
    slide = lambda xi: da.simulate(sleigh, method, sleigh.state(xi=xi), step=0.05, steps=4)
    on, off = jnp.array([0.5, 1.0, 0.0]), jnp.array([0.5, 1.0, 0.3])
    with pytest.raises(da.InvalidInput, match="off the constraint"):
        slide(off)
    assert np.array_equal(jax.jit(slide)(on).g, slide(on).g)
    with pytest.raises(da.NumericalFailure, match="at its start: the initial state is off the constraint"):
        jax.jit(slide)(off).check()
    loss = lambda xi: jnp.sum(slide(xi).g[-1])
    for transformed in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.jacfwd(loss)):
        assert np.isnan(transformed(off)).all() and np.isfinite(transformed(on)).all()
    found = jax.vmap(jax.grad(loss))(jnp.stack([on, off]))
    assert np.isnan(found[1]).all() and np.array_equal(found[0], jax.grad(loss)(on))
    again = da.prepare(sleigh, method, step=0.05, steps=4, save="final")
    assert jax.jit(lambda xi: again(sleigh.state(xi=xi)).final.status)(off) == 4


@pytest.mark.parametrize(
    "group, bad",
    [(da.SO3(), 2 * np.eye(3)), (da.SO3(), np.diag([1.0, 1.0, -1.0])), (da.SE2(), np.eye(3) + np.eye(3)[2][:, None])],
    ids=["scaled", "reflection", "last row"],
)
def test_a_matrix_off_its_group_is_nan_where_it_is_traced(group, bad):
    """One correction made -1 of the matrix 2, and a run from there went well."""
    with pytest.raises(da.InvalidInput):
        group.element(bad)
    element = jax.jit(group.element)
    assert np.isnan(element(bad)).all()
    good = group.exp(jnp.full(group.dim, 0.3))
    short = good.astype(np.float32)
    np.testing.assert_array_equal(element(short), element(jnp.asarray(short, float)))
    np.testing.assert_allclose(element(good), good, atol=1e-15)


def test_runs_that_vmap_returned_are_examined_one_by_one():
    """Each has its own parameters: the energy of all by all parameters is a number too, and none of theirs."""

    def run(m):
        system = da.System(da.Euclidean(3), lambda t, q, v, p: 0.5 * jnp.sum(p * v**2) - q[0], parameters=m)
        return da.simulate(system, METHOD, system.state([1.0, 0.0, 0.0], [0.3, 1.0, 2.0]), step=0.1, steps=3)

    masses = 1.0 + jnp.arange(9.0).reshape(3, 3)
    runs, alone = jax.vmap(run)(masses), [run(m) for m in masses]
    for what in ("energy", "energy_error", "reaction", "constraint_residual"):
        np.testing.assert_allclose(getattr(runs, what)(), [getattr(each, what)() for each in alone], atol=1e-14)
    np.testing.assert_allclose(runs.at(0.17).g, [each.at(0.17).g for each in alone], rtol=1e-14)
    np.testing.assert_array_equal(runs.step_sizes, [each.step_sizes for each in alone])
    second = jax.tree.map(lambda leaf: leaf[1], runs)
    assert second.summary().energy_error == alone[1].summary().energy_error
    for what in (lambda: runs.plot(), lambda: runs.save("runs.nc"), lambda: runs.work()):
        with pytest.raises(da.InvalidInput, match=r"needs one run, but jax.vmap returned 3: take one of them, jax\.t"):
            what()


def test_power_and_work_are_those_of_one_run():
    """Lanes were members and states at once: what came of it was a traceback, or no number of theirs."""
    runs = da.ensemble(PARTICLE, METHOD, [BEGIN, BEGIN], step=0.1, steps=3)
    for what in (runs.power, runs.work):
        with pytest.raises(da.InvalidInput, match="needs one run, and this is an ensemble: simulate the member alone"):
            what()
    with pytest.raises(da.InvalidInput, match="gave 'text'; allowed: arrays of numbers"):
        da.prepare(PARTICLE, METHOD, step=0.1, steps=3, save=lambda system, state: "text")(BEGIN)
