"""Several derivatives of a run at once: each is the one that is taken alone, and all together cost a few runs."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import GENERIC, sampled

import dalembert as da
from dalembert.kernels import transformations
from dalembert.simulation import driver

TWELVE = 12
METHOD = da.LagrangeDAlembert()
BODY = da.EulerPoincareSuslov()


def tensors(count):
    """Symmetric tensors, one for each direction."""
    drawn = np.random.default_rng(4).standard_normal((count, 3, 3))
    return jnp.asarray(drawn + drawn.transpose(0, 2, 1))


TENSORS = tensors(TWELVE)


def body(s):
    """Suslov problems in twelve directions: inertia, momentum and step."""
    system = da.models.suslov(jnp.asarray(GENERIC) + 0.1 * jnp.tensordot(s, TENSORS, 1))
    return system, system.state(momentum=jnp.stack([3.0 + s[0], 2.0 - s[3]])), 0.1 * (1.0 + s[11])


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("count", sampled([3, 1, 12]))
def test_tangents_in_several_directions_are_those_of_each(count):
    padded = lambda s: jnp.concatenate([s, jnp.zeros(TWELVE - count)])
    system, state, step = body(np.zeros(TWELVE))
    options = {"step": step, "steps": 40, "save_every": 3}
    many = da.simulate(system, BODY, state, **options, tangents=lambda s: body(padded(s)), directions=count)
    plain = da.simulate(system, BODY, state, **options)
    np.testing.assert_allclose(numbers(many.records), numbers(plain.records), rtol=1e-13, atol=1e-13)
    assert many.tangents.state.g.shape == (count, *plain.g.shape)
    for k in range(count):
        along = lambda s, k=k: body(s * jnp.eye(TWELVE)[k])
        one = da.simulate(system, BODY, state, **options, tangents=along).tangents
        found = jax.tree.map(lambda leaf, k=k: leaf[k], many.tangents)
        np.testing.assert_allclose(numbers(found), numbers(one), rtol=1e-13, atol=1e-13 * np.abs(numbers(one)).max())
        assert np.abs(numbers(one)).max() > 0.1


@pytest.mark.parametrize("method", sampled([da.DiscreteGradient(), da.Gauss()]), ids=lambda method: method.name)
def test_methods_that_iterate_their_derivative_have_several_directions(method):
    """Each direction ends its iteration by itself, and such loops had no native code."""

    def end(x):
        system = da.System(
            da.Euclidean(2), lambda t, q, v, p: 0.5 * v @ v - jnp.cos(q[0] - p * q[1]),
            lambda t, q, p: jnp.stack([q[1], 1.0])[None], parameters=x[0],
        )  # fmt: skip
        start = system.state(x[1:3], system.project(x[1:3], x[3:5]))
        run = da.simulate(system, method, start, step=x[5], steps=4)
        return jnp.concatenate([run.g[-1], run.xi[-1]])

    x = jnp.array([0.7, 0.2, 0.3, 0.5, -0.4, 0.1])
    np.testing.assert_allclose(jax.jacfwd(end)(x), jax.jit(jax.jacrev(end))(x), rtol=1e-11, atol=1e-12)


def knife(t, q, v, p):
    return 0.5 * p["m"] * (v[0] ** 2 + v[1] ** 2) + 0.5 * p["J"] * v[2] ** 2


def edge(t, q, p):
    return jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2]), 0.0])[None]


def push(t, q, v, u, p):
    return jnp.stack([u[0] * jnp.cos(q[2]), u[0] * jnp.sin(q[2]), u[1]])


def end(s):
    system, state, step = body(s)
    last = da.simulate(system, BODY, state, step=step, steps=20, save_every=20).last
    return jnp.concatenate([last.g.ravel(), last.xi])


def test_a_jacobian_is_one_run_with_slopes(monkeypatch):
    """jacfwd has the columns that jvp gives; the slopes of all of them come from one run."""
    runs = []
    plain = transformations.SlopeRun
    monkeypatch.setattr(transformations, "SlopeRun", lambda *given: runs.append(given[3]) or plain(*given))
    zero = jnp.zeros(TWELVE)
    jacobian = jax.jacfwd(end)(zero)
    assert set(runs) == {TWELVE}
    columns = [jax.jvp(end, (zero,), (e,))[1] for e in jnp.eye(TWELVE)]
    scale = float(jnp.abs(jacobian).max())
    np.testing.assert_allclose(jacobian, np.stack(columns, 1), rtol=1e-13, atol=1e-13 * scale)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(end))(zero), jacobian, rtol=1e-13, atol=1e-13 * scale)


def driven(m):
    return da.System(da.Euclidean(3), knife, edge, force=push, inputs=2, parameters={"m": m[0], "J": m[1]})


MASSES = jnp.array([1.3, 0.4])
ROWS = 0.1 * np.sin(np.arange(6.0)).reshape(3, 2)


@pytest.fixture(scope="module")
def knives():
    """A driven knife edge and two of its states."""
    system, place = driven(np.asarray(MASSES)), np.array([0.1, 0.2, 0.3])
    state = system.state(place, system.project(place, np.array([0.3, 0.2, 0.1])))
    return system, [state, state._replace(xi=1.1 * state.xi, momentum=1.1 * state.momentum)]


@pytest.mark.heavy
def test_directions_of_members_in_their_controls(knives):
    system, states = knives

    def ends(u):
        return da.ensemble(system, METHOD, states, step=0.1, steps=3, controls=u).g[:, -1]

    jacobian = jax.jacfwd(ends)(ROWS)
    one = jax.jvp(ends, (jnp.asarray(ROWS),), (jnp.zeros((3, 2)).at[1, 1].set(1.0),))[1]
    np.testing.assert_allclose(jacobian[..., 1, 1], one, rtol=1e-13, atol=1e-15)
    assert np.abs(one).max() > 1e-3 and np.abs(jacobian[0] - jacobian[1]).max() > 1e-5


@pytest.mark.heavy
def test_derivatives_of_a_jacobian_agree(knives):
    """Forwards and backwards over several directions, and the transpose of the run with several directions."""
    _, (state, _) = knives

    def number(m):
        last = da.simulate(driven(m), METHOD, state, step=0.1, steps=3, controls=ROWS).last
        return last.xi @ last.xi + jnp.sum(jnp.sin(last.g))

    forwards, backwards = (np.asarray(outer(jax.jacfwd(number))(MASSES)) for outer in (jax.jacfwd, jax.jacrev))
    np.testing.assert_allclose(backwards, forwards, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(forwards, forwards.T, rtol=1e-10, atol=1e-13)
    assert np.abs(forwards).min() > 1e-6


def test_twelve_directions_cost_at_most_six_runs():
    system, state, step = body(np.zeros(TWELVE))
    options = {"step": step, "steps": 30_000, "save_every": 1000}
    plain = lambda: da.simulate(system, BODY, state, **options)
    many = lambda: da.simulate(system, BODY, state, **options, tangents=body, directions=TWELVE)

    spent = {plain: [], many: []}
    for _ in range(7):
        for call, found in spent.items():
            begin = time.process_time()
            call()
            found.append(time.process_time() - begin)
    assert min(spent[many]) < 6 * min(spent[plain])


def test_a_curve_is_traced_once_however_often_the_same_code_makes_it(knives, monkeypatch):
    """Other numbers that a curve closes over are the same program; a curve that has to know them is right too."""
    _, (state, _) = knives
    called, plain = [], driver.CurveSlopes.leaves
    monkeypatch.setattr(driver.CurveSlopes, "leaves", lambda *given: called.append(1) or plain(*given))

    options = {"step": 0.1, "steps": 5, "save_every": 2, "controls": np.repeat(ROWS, 2, 0)[:5]}

    def jacobian(masses, needs):
        def curve(s):
            needs(masses)
            return driven(masses * (1.0 + s)), state, 0.1

        return da.simulate(driven(masses), METHOD, state, **options, tangents=curve, directions=2).tangents.state.g

    known = lambda m: float(m[0])
    for needs in (lambda m: None, known):
        for masses in (np.array([1.3, 0.4]), np.array([1.5, 0.7])):
            called.clear()
            found = jacobian(masses, needs)
            assert bool(called) == (needs is known or masses[0] == 1.3)
            for k, change in enumerate(1e-5 * np.eye(2)):
                ends = [da.simulate(driven(masses * s), METHOD, state, **options).g for s in (1 + change, 1 - change)]
                np.testing.assert_allclose(found[k], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-9)
            assert np.abs(found).max() > 1e-4


WEIGHTS = np.array([1.0, 0.5])
PLACES = (np.array([0.1, 0.2]), {"far": np.array([0.3])})


def test_a_call_that_was_made_before_has_the_derivatives_of_its_own_numbers(knives, monkeypatch):
    """Numbers that a curve closes over or reads change from call to call, in place too: the slopes are those of JAX."""
    _, (state, other) = knives
    at_once, plain = [], driver._run_again
    monkeypatch.setattr(driver, "_run_again", lambda *given: at_once.append(made := plain(*given)) or made)

    def compare(masses, begin, shift, directions):
        def scaled(s):
            if shift.size == 1:
                return driven(masses)
            return driven(masses * (1.0 + jnp.sum(s * WEIGHTS[:1]) * shift[0]) + jnp.sum(PLACES[1]["far"] * s))

        def curve(s):
            moved = begin._replace(xi=begin.xi + shift[-1] * WEIGHTS[0] * jnp.sum(s))
            return scaled(s), moved._replace(momentum=scaled(s).momentum(moved.t, moved.g, moved.xi)), 0.1

        here = jax.tree.map(np.asarray, curve(np.zeros(() if directions is None else directions)))
        options = {"step": 0.1, "steps": 5, "save_every": 2}
        run = da.simulate(here[0], METHOD, here[1], **options, tangents=curve, directions=directions)
        along = lambda s: da.simulate(curve(s)[0], METHOD, curve(s)[1], **options).records
        expected = jax.jacfwd(lambda s: along(s).state)(jnp.zeros(() if directions is None else directions))
        for found, wanted in zip(jax.tree.leaves(run.tangents.state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(found if directions is None else np.moveaxis(found, 0, -1), wanted, atol=1e-13)
        return np.asarray(run.tangents.state.g[..., -1, :])

    found = []
    for shift in (np.array([0.3]), np.array([0.5, 0.7]), np.array([0.4, 0.2]), np.array([0.3, 0.6])):
        for k, (masses, begin) in enumerate([(MASSES, state), (1.1 * MASSES, state), (1.1 * MASSES, other)]):
            WEIGHTS[0], PLACES[1]["far"][0] = 1.0 + k, 0.3 + k
            found += [compare(np.asarray(masses), begin, shift, directions) for directions in (None, 1)]
    assert len({each.tobytes() for each in found[1::2]}) == len(found[1::2])
    steady = compare(np.asarray(MASSES), state, np.array([0.3, 0.6]), 3)
    at_once.clear()
    np.testing.assert_array_equal(compare(np.asarray(MASSES), state, np.array([0.3, 0.6]), 3), steady)
    assert [each is not None for each in at_once if each is None or each.tangents is not None] == [True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"directions": 0, "tangents": body}, "directions is 0"),
        ({"directions": 2}, "give tangents"),
        ({"directions": 2, "tangents": lambda s: s}, r"tangents\(s\) is no curve of problems"),
    ],
)
def test_what_is_no_direction_is_refused(options, words):
    system, state, step = body(np.zeros(TWELVE))
    with pytest.raises(da.InvalidInput, match=words):
        da.simulate(system, BODY, state, step=step, steps=2, **options)


def test_directions_of_a_series_end_as_one_by_one():
    """The substeps of a series are a loop: the numbers that end it are the same for all directions."""
    sleigh, velocity = da.models.chaplygin_sleigh(), jnp.array([0.5, -1.0, 0.0])

    def curve(s):
        return sleigh, sleigh.state(xi=velocity * (1.0 + s[0])), 0.05 * (1.0 + s[1])

    def run(s, **more):
        system, state, step = curve(s)
        return da.simulate(system, da.Taylor(), state, step=step, steps=4, **more)

    found = run(np.zeros(2), tangents=curve, directions=2).tangents.state.xi
    for k, direction in enumerate(np.eye(2)):
        difference = (run(1e-3 * direction).xi - run(-1e-3 * direction).xi) / 2e-3
        np.testing.assert_allclose(found[k], difference, atol=1e-7)
