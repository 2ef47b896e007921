"""The exact map and the exact motion of the free rigid body, against each other and against REFERENCE.md."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from forty_digits import Body, bodies, by_series, distance, error, motion, reference
from registry import sampled

from dalembert.groups import SO3, unit_quaternion
from dalembert.integrators import DiscreteMoserVeselov
from dalembert.integrators import free_body as free
from dalembert.integrators.free_body import modified_moments
from dalembert.integrators.polhode import at_time as exact_motion
from dalembert.integrators.polhode import on_level, turned_frame
from dalembert.kernels import compile_function
from dalembert.models import exact_body, rigid_body
from dalembert.simulation import simulate

HV_INERTIA, HV_MOMENTUM = [0.6, 0.8, 1.0], [1.8, 0.4, -0.9]
HV_FINAL = [1.765962508518207536, -0.695464197033089119, 0.779554981481871086]
HV_QUATERNION = np.array([-0.736061364160793936, -0.570786951240350733, -0.299388571830790094, -0.206839086104673192])
J = np.array([0.92181297074480, 0.73820724581067, 0.17626614449462])
RECOVERED = J.sum() - J
M0 = np.array([0.41027020699095, 0.89364953091353, 0.05789130478427])
M0 = M0 / np.linalg.norm(M0)
EXACT = DiscreteMoserVeselov()


def quaternion_error(g, q) -> float:
    scalar, vector = unit_quaternion(jnp.asarray(g))
    p = np.array([float(scalar), *np.asarray(vector)])
    return min(np.linalg.norm(p - q), np.linalg.norm(p + q))


def level(inertia=HV_INERTIA, momentum=HV_MOMENTUM) -> free.Body:
    return free.body_on_level(jnp.diag(jnp.asarray(inertia)), jnp.asarray(momentum))


@jax.jit
def SETUP(b, h):
    """s, x, y and B of the exact flow over the time h."""
    gain = lambda point: jnp.sum(free.taylor_coefficients(point, free.scale_equations(b), h / 100)[:0:-1], axis=0)
    return jax.lax.fori_loop(0, 100, lambda _, point: point + gain(point), jnp.zeros(4))


@jax.jit
def STEP(b, h):
    s, x, y, _ = SETUP(b, h)
    return free.step_constants(b, free.Scale(s, x, y, True))


# -- the closed form --------------------------------------------------------------------------------------------------
def test_exact_motion_is_the_reference():
    flow = exact_body(HV_INERTIA, HV_MOMENTUM, 10.0)
    assert np.abs(flow.momentum - HV_FINAL).max() < 1e-14
    assert quaternion_error(flow.attitude, HV_QUATERNION) < 1e-14
    assert (
        np.abs(
            exact_body(RECOVERED, M0, 100.0).momentum - [0.66566662210620437, 0.62730351885915240, 0.40420074646225079]
        ).max()
        < 1e-13
    )
    mass = np.array([0.9218, 0.7382, 0.1762])
    printed = np.array([0.4165, 0.9072, 0.0577])
    final = exact_body(mass.sum() - mass, printed / np.linalg.norm(printed), [0.0, 100.0, 34.840845736744658]).momentum
    assert np.abs(final[1] - [0.66089810446116980, 0.63540420429099134, 0.39934345204217990]).max() < 1e-13
    assert np.abs(final[2] - final[0]).max() < 1e-13


def series_motion(inertia, momentum, time, pieces):
    """The motion by Taylor series of order 24 in 30 digits."""
    with mp.workdps(30):
        m, q = [mp.mpf(float(v)) for v in momentum], [mp.mpf(1), mp.mpf(0), mp.mpf(0), mp.mpf(0)]
        L, dt = [1 / mp.mpf(float(v)) for v in inertia], mp.mpf(time) / pieces
        for _ in range(pieces):
            M, Q, W = [[v] for v in m], [[v] for v in q], [[v * l] for v, l in zip(m, L, strict=True)]
            for k in range(24):
                dot = lambda a, b: mp.fsum(a[j] * b[k - j] for j in range(k + 1))
                slopes = [dot(M[i - 2], W[i - 1]) - dot(M[i - 1], W[i - 2]) for i in range(3)]
                turns = [
                    -(dot(Q[1], W[0]) + dot(Q[2], W[1]) + dot(Q[3], W[2])) / 2,
                    (dot(Q[0], W[0]) + dot(Q[2], W[2]) - dot(Q[3], W[1])) / 2,
                ]
                turns += [
                    (dot(Q[0], W[1]) + dot(Q[3], W[0]) - dot(Q[1], W[2])) / 2,
                    (dot(Q[0], W[2]) + dot(Q[1], W[1]) - dot(Q[2], W[0])) / 2,
                ]
                for coefficients, value in zip(M + Q, slopes + turns, strict=True):
                    coefficients.append(value * dt / (k + 1))
                for i in range(3):
                    W[i].append(M[i][-1] * L[i])
            m, q = [mp.fsum(c) for c in M], [mp.fsum(c) for c in Q]
        return np.array([float(v) for v in m]), np.array([float(v) for v in q])


BODIES = {
    "oblate": ([1, 1, 2], [0.3, 0.4, 0.5]),
    "prolate": ([2, 1, 2], [0.3, 0.4, 0.5]),
    "spherical": ([1, 1, 1], [0.3, 0.4, 0.5]),
    "equator of a symmetric body": ([1, 1, 2], [1, 0, 0]),
    "principal axis": ([1, 2, 3], [0, 0, 1]),
    "unstable axis": ([1, 2, 3], [0, 1, 0]),
    "separatrix": ([1, 2, 3], [np.sqrt(1 / 3), 0.3, 1.0]),
    "next to the separatrix": ([1, 2, 3], [np.sqrt(1 / 3), 0.3, 1 + 1e-10]),
    "next to the unstable axis": ([1, 2, 3], [1e-8, 1, 1e-9]),
    "nearly symmetric": ([1, 1 + 1e-9, 2], [0.5, 0.4, 1e-4]),
    "nearly symmetric, other family": ([1, 1 + 1e-5, 2], [0.5, 0.4, 1e-3]),
    "nearly spherical": ([1, 1 + 1e-12, 1 + 2e-12], [0.5, 0.4, 0.3]),
    "flat": ([1, 2, 3], [0.5, -0.7, 0.6]),
    "needle": ([0.1, 1, 1.05], [0.1, -1, 0.5]),
    "no body (triangle inequality violated)": ([1, 1.5, 6], [1, -2, 0.5]),
    "slow": ([1, 2, 3], [1e-3, -1e-3, 2e-3]),
}


@pytest.mark.parametrize("name", BODIES)
def test_exact_motion_and_exact_map_against_thirty_digits(name):
    inertia, momentum = BODIES[name]
    m, q = series_motion(inertia, momentum, 4.0, 24)
    flow = exact_body(inertia, momentum, 4.0)
    assert np.abs(flow.momentum - m).max() < 1e-13
    assert quaternion_error(flow.attitude, q) < 1e-13
    system = rigid_body(inertia)
    run = simulate(system, EXACT, system.state(momentum=momentum), step=0.5, steps=8).check()
    assert np.abs(run.momentum[-1] - m).max() < 5e-15
    assert quaternion_error(run.g[-1], q) < 5e-15


def test_exact_motion_of_a_tilted_body():
    tilt = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    tilt *= np.sign(np.linalg.det(tilt))
    straight = exact_body(HV_INERTIA, HV_MOMENTUM, [0.0, 3.0, 10.0])
    tilted = exact_body(tilt @ np.diag(HV_INERTIA) @ tilt.T, tilt @ HV_MOMENTUM, [0.0, 3.0, 10.0])
    assert np.abs(tilted.momentum - straight.momentum @ tilt.T).max() < 1e-13
    assert np.abs(tilted.attitude - tilt @ straight.attitude @ tilt.T).max() < 1e-13


# -- the set-up of the map --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("h", "values"),
    [
        (0.1, (0.097626683817578681221, 0.031296868042416249343, 0.01700380410354449785, -0.0011919885966078753423)),
        (0.5, (0.30993921377632496786, 0.49984281554769160926, 0.27267878285252508604, -0.11286937609579744651)),
    ],
)
def test_setup_values(h, values):
    ours = np.array(SETUP(level(), h))
    assert np.abs(ours / values - 1).max() < 1e-14
    assert np.abs(np.array(SETUP(level(), -h)) / (np.array([-1, 1, 1, -1]) * values) - 1).max() < 1e-14


def test_setup_satisfies_the_discrete_equation():
    """The quadratics that define x and y, and the Moser-Veselov equation itself, on random levels and steps
    beyond s*.
    """
    rng = np.random.default_rng(0)
    for _ in range(20):
        inertia, m, h = 1 + rng.random(3), rng.normal(size=3), 4 * rng.random()
        b = level(inertia, m)
        s, x, y, _ = SETUP(b, h)
        assert abs(x * x - 2 * b.E1 * x + 2 * y + s * s * b.C) < 1e-12
        assert abs(y * y - 2 * b.E2 * y + 2 * b.E3 * x + s * s * b.H2) < 1e-12
        new, turn = (np.asarray(part) for part in free.advance_body(STEP(b, h), jnp.asarray(m)))
        q0, q = turn[0] / np.linalg.norm(turn), turn[1:] / np.linalg.norm(turn)
        assert np.abs(s * m - 2 * q0 * inertia * q - 2 * np.cross(q, inertia * q)).max() < 1e-12
        assert np.abs(s * new - 2 * q0 * inertia * q + 2 * np.cross(q, inertia * q)).max() < 1e-12
        assert abs(x - 2 * q @ (inertia * q)) < 1e-12


def test_exact_time_of_the_recovered_inputs():
    b = level(RECOVERED, M0)
    assert abs(free.largest_scale(b) - 1.06021984678014) < 1e-13
    for h, s in ((0.5, 0.47335238625030948), (0.53184418899435417, 0.5), (1.51120111733731112, 1.0)):
        assert abs(SETUP(b, h)[0] - s) < 1e-14
    assert abs(SETUP(b, 2.14844666068175)[0] - 1.06021984678014) < 1e-13  # T(s*), where s turns back
    assert abs(free.largest_scale(level()) - 0.31831253504602667352) < 1e-15
    assert abs(SETUP(level(), 0.62685271329348827463)[0] - 0.31831253504602667352) < 1e-15


def test_modified_moments_of_hairer_and_vilmart():
    alpha, beta = modified_moments(level(), 7)
    assert np.allclose(
        alpha[1:],
        [
            -2.43013888888889,
            1.9435024537037,
            -0.603200859416106,
            0.0994554451099419,
            -0.0103319351572397,
            0.000756443508387947,
        ],
        rtol=1e-9,
    )
    assert np.allclose(
        beta[1:],
        [
            1.20902777777778,
            -1.73303796296296,
            0.623755283618781,
            -0.109221031870311,
            0.0117046163173177,
            -0.000876044440033973,
        ],
        rtol=1e-9,
    )
    for h, a, c in (
        (0.1, 0.97589235914914407898, 0.011917596645724367648),
        (0.5, 0.50488775787508854188, 0.20327282284748287841),
    ):
        s, x, _, B = SETUP(level(), h)
        size = np.sqrt(4.21)
        f = -size * B / 2
        u = s * np.cos(f) - np.sin(f) / size * x
        assert abs(u * u / (s * h) - a) < 1e-14
        assert abs(2 * np.sin(f) / size * u / (s * h) - c) < 1e-14


# -- the integrator ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("h", "steps"), [(0.5, 200), (1.2, 83), (2.1, 47)])
def test_exact_on_the_recovered_inputs(h, steps):
    system = rigid_body(RECOVERED)
    run = simulate(system, EXACT, system.state(momentum=M0), step=h, steps=steps, save_every=steps).check()
    flow = exact_body(RECOVERED, M0, steps * h)
    assert np.abs(run.momentum[-1] - flow.momentum).max() < 1e-12
    assert np.abs(run.g[-1] - flow.attitude).max() < 1e-12


@pytest.mark.parametrize(("h", "steps"), [(0.1, 100), (0.5, 20), (2.0, 5), (10.0, 1)])
def test_exact_on_the_body_of_hairer_and_vilmart(h, steps):
    system = rigid_body(HV_INERTIA)
    run = simulate(system, EXACT, system.state(momentum=HV_MOMENTUM), step=h, steps=steps, save_every=steps).check()
    assert np.linalg.norm(run.momentum[-1] - np.array(HV_FINAL)) < 1e-13
    assert quaternion_error(run.g[-1], HV_QUATERNION) < 1e-13
    back = simulate(
        system, EXACT, system.state(g=run.g[-1], momentum=run.momentum[-1]), step=-h, steps=steps, save_every=steps
    ).check()
    assert np.abs(back.momentum[-1] - np.array(HV_MOMENTUM)).max() < 2e-13
    assert np.abs(back.g[-1] - np.eye(3)).max() < 2e-13


def multiple_of_the_condition(body):
    """The errors of the integrator and of `exact_body` in multiples of the condition of the problem."""
    true, condition = reference(body)
    system = rigid_body(body.inertia)
    start = system.state(momentum=body.momentum)
    run = simulate(system, EXACT, start, step=body.step, steps=body.steps, save_every=body.steps).check()
    flow = exact_body(body.inertia, body.momentum, body.step * body.steps)
    results = ((run.momentum[-1], run.g[-1]), flow)
    return max(error(body, *result, true) / condition for result in results)


@pytest.mark.parametrize(("count", "seed"), [(14, 1), pytest.param(500, 17, marks=pytest.mark.heavy)])
def test_random_bodies_within_ten_times_the_condition(count, seed):
    """One step and 1000 of them, short and long ones: next to separatrix and axes, nearly symmetric, no bodies at all,
    moments with ratios of up to 1e12.
    """
    multiples = [multiple_of_the_condition(body) for body in bodies(count, seed)]
    assert np.max(multiples) < 10
    assert np.median(multiples) < 2


@pytest.mark.parametrize(
    ("inertia", "momentum", "step", "steps"),
    [
        ([0.00722733, 8.0604, 0.00288033], [-0.53638, -1.36611, 0.05468], 0.012, 1),
        *[([1.733, 2.258, 2.867], [1.147 * d, 1, -0.418 * d], 1000 / n, n) for d in (1e-5, 1e-11) for n in (1, 1000)],
    ],
)
def test_bodies_that_were_wrong(inertia, momentum, step, steps):
    body = Body(np.array(inertia), np.array(momentum), step, steps, "")
    assert multiple_of_the_condition(body) < 10


def test_the_reference_is_the_solution_of_the_equations_of_motion():
    body = Body(np.array([1.2, 8.0, 0.7]), np.array([0.5, -0.3, 0.4]), 1.7, 1, "")
    with mp.workdps(50):
        closed, series = (
            solve(body.inertia, body.momentum, mp.mpf(body.step), *more)
            for solve, more in ((motion, ()), (by_series, (16, 30)))
        )
        assert distance(closed, series, 1) < 1e-40


LEVELS = {
    "general": ([1.0, 2.0, 3.0], [0.3, 0.5, -0.7]),
    "near an axis": ([1.0, 2.0, 3.0], [1e-6, 1e-7, 0.7]),
    "on an axis": ([1.0, 2.0, 3.0], [0.0, 0.0, 0.7]),
    "on the unstable axis": ([1.0, 2.0, 3.0], [0.0, 0.7, 0.0]),
    "symmetric": ([2.0, 2.0, 3.0], [0.3, 0.5, 0.4]),
    "a sphere": ([2.0, 2.0, 2.0], [0.3, 0.5, 0.4]),
    "near the separatrix": ([1.0, 2.0, 3.0], [1e-3, 0.7, 1e-4]),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", LEVELS)
def test_derivatives_of_many_periods_are_powers_of_those_of_one(name):
    """Against short steps along the whole motion, for symmetric changes of the inertia.

    Next to the separatrix these are 3e-12 off at t = -60.3: there round-off grows as e^(2 l t), and for three other
    momenta near this one it is 2e-12 to 9e-12.
    """
    moments, m = map(jnp.array, LEVELS[name])
    one = jnp.eye(3)
    level = on_level(moments, m, one, one)
    for t in (37.0, -60.3):
        given = (level, jnp.diag(moments), m, one, one, t)
        slow = SLOW(*given)
        for quick in (ALONG(*given), CHOSEN(*given)[1]):
            for found, expected in zip(quick[:2], slow[:2], strict=True):
                size = np.abs(SYMMETRIC @ expected).max()
                assert np.abs(SYMMETRIC @ (found - expected)).max() <= 5e-12 * size
            assert np.abs(quick.rotation - slow.rotation).max() <= 1e-13


def change_along(level, inertia, m, g, axes, t):
    """The derivatives by the equation that they follow, as those by the map."""
    start = jnp.concatenate([jnp.zeros((9, 3)), jnp.eye(3)])
    given = jnp.concatenate([jnp.concatenate([free.PAIRING, jnp.zeros((3, 6))]), start @ g.T], 1)
    turn = given @ free.turn_along(level, inertia, m, g, axes, t).T @ level.begin.T
    momentum, rotation = free._motion_in_axes(level, inertia, m, g, axes, t)
    turn = turn @ g @ rotation
    return free.Change(start @ rotation + jnp.cross(momentum, turn), turn, rotation)


def change_of_motion(level, inertia, m, g, axes, t):
    """(whether it is regular, the derivatives that a run has, in all directions)."""

    def push(d):
        moved = lambda inertia, m: free._motion_in_axes(level, inertia, m, g, axes, t)
        (_, rotation), (momentum, turned) = jax.jvp(moved, (inertia, m), (d[:9].reshape(3, 3), d[9:]))
        skew = rotation.T @ turned
        return momentum, 0.5 * jnp.stack([skew[2, 1] - skew[1, 2], skew[0, 2] - skew[2, 0], skew[1, 0] - skew[0, 1]])

    rotation = free._motion_in_axes(level, inertia, m, g, axes, t)[1]
    regular = free.turn_by_shape(level, free.BodyVariation(), inertia, m, axes, t, turned_frame(level, t))[0]
    return regular, free.Change(*jax.vmap(push)(jnp.eye(12)), rotation)


CHOSEN, SLOW, ALONG = (
    compile_function(each, place=False) for each in (change_of_motion, free._change_by_substeps, change_along)
)
SYMMETRIC = np.eye(12)
SYMMETRIC[:9, :9] = 0.5 * (np.eye(9) + np.eye(9).reshape(3, 3, 9).transpose(1, 0, 2).reshape(9, 9))


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*LEVELS, "no momentum", "no body", "fast"])
def test_derivatives_of_a_motion_are_those_of_the_map(name):
    """The two ways of first derivatives against short steps of the map, which JAX differentiates."""
    others = {
        "no momentum": ([0.6, 0.8, 1.0], [0.0, 0.0, 0.0]),
        "no body": ([0.1, 2.0, 5.0], [0.4, 0.5, -0.3]),
        "fast": ([0.6, 0.8, 1.0], [1.8, 0.4, -0.9]),
    }
    moments, m = map(jnp.array, (LEVELS | others)[name])
    turned = SO3().exp(jnp.array([0.6, -0.4, 0.8]))
    level = on_level(moments, m, turned, turned)
    for t in (1.3, -3.0):
        given = (level, jnp.diag(moments), m, turned, turned, t)
        expected, (regular, chosen) = SLOW(*given), CHOSEN(*given)
        assert regular == (name in ("general", "no body", "fast"))
        for found in (ALONG(*given), chosen):
            for one, other in zip(found[:2], expected[:2], strict=True):
                assert np.abs(SYMMETRIC @ (one - other)).max() <= 3e-14 * np.abs(SYMMETRIC @ other).max()
            assert np.abs(found.rotation - expected.rotation).max() <= 1e-15


@pytest.mark.parametrize(("seed", "count"), [(0, 4), pytest.param(1, 100, marks=pytest.mark.heavy)])
def test_the_closed_form_of_a_derivative_against_the_equation_that_it_follows(seed, count):
    """Random bodies over up to half a period, in the regular and in the other cases, which the derivative chooses."""
    rng, one, several = np.random.default_rng(seed), jnp.eye(3), 0
    for k in range(count):
        moments, m = jnp.array(np.exp(rng.normal(size=3))), jnp.array(rng.normal(size=3))
        if k % 4 == 3:
            moments = moments.at[1].set(moments[0] * (1.0 + 10.0 ** rng.uniform(-9, -1)))
        level = on_level(moments, m, one, one)
        t = rng.uniform(-0.5, 0.5) * 2.0 * level.period / level.speed
        given = (level, jnp.diag(moments), m, one, one, t)
        expected, (regular, found) = ALONG(*given), CHOSEN(*given)
        several += regular
        for part, other in zip(found[:2], expected[:2], strict=True):
            assert np.abs(SYMMETRIC @ (part - other)).max() <= 1e-12 * np.abs(SYMMETRIC @ other).max()
    assert 0 < several < max(count, 5)


def test_a_derivative_after_many_periods_takes_no_longer():
    """10^5 time units; against differences of the closed form itself, whose size is t times the rate of the angle."""
    moments, m, one, t = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.3, 0.5, -0.7]), jnp.eye(3), 1e5

    def momentum(m):
        return exact_motion(on_level(moments, m, one, one), t)[0]

    e = 1e-9
    given = (on_level(moments, m, one, one), jnp.diag(moments), m, one, one, t)
    step = jax.jit(
        lambda d: (
            (8 * (momentum(m + e * d) - momentum(m - e * d)) - momentum(m + 2 * e * d) + momentum(m - 2 * e * d))
            / (12 * e)
        )
    )
    expected = np.stack([step(d) for d in one])
    for found in (ALONG(*given), CHOSEN(*given)[1]):
        assert np.abs(found.momentum[9:] - expected).max() <= 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(ALONG(*given).turn, CHOSEN(*given)[1].turn, rtol=0.0, atol=1e-10 * t)
    assert np.abs(expected).max() > 1e4


def test_no_momentum_no_motion():
    system = rigid_body(HV_INERTIA)
    run = simulate(system, EXACT, system.state(momentum=np.zeros(3)), step=0.5, steps=3).check()
    assert np.all(run.momentum == 0)
    assert np.abs(run.g - np.eye(3)).max() < 1e-15


def test_step_of_a_full_and_of_a_half_period():
    """At a full period s = x = 0, at half a period s = 0: the map passes both, and their neighbourhoods."""
    mass = np.array([0.9218, 0.7382, 0.1762])
    inertia, m = mass.sum() - mass, np.array([0.4165, 0.9072, 0.0577]) / np.linalg.norm([0.4165, 0.9072, 0.0577])
    system = rigid_body(inertia)
    for share in (1.0, 0.5):
        for off in (0.0, 1e-15, 1e-12, -1e-9, 1e-6, -1e-3):
            h = share * 34.840845736744658 * (1 + off)
            run = simulate(system, EXACT, system.state(momentum=m), step=h, steps=1).check()
            flow = exact_body(inertia, m, h)
            assert np.abs(run.momentum[-1] - flow.momentum).max() < 2e-13
            assert np.abs(run.g[-1] - flow.attitude).max() < 1e-12


@pytest.mark.heavy
def test_a_million_steps():
    system = rigid_body(HV_INERTIA)
    run = simulate(
        system, EXACT, system.state(momentum=HV_MOMENTUM), step=0.1, steps=1_000_000, save_every=1000, monitor=True
    ).check()
    assert float(run.final.peaks.energy_error) < 1e-14
    assert np.abs(np.sum(np.asarray(run.momentum) ** 2, axis=1) - 4.21).max() < 1e-14
    flow = exact_body(HV_INERTIA, HV_MOMENTUM, 1e5)
    assert np.abs(run.momentum[-1] - flow.momentum).max() < 1e-9
    spatial = np.einsum("kij,kj->ki", run.g, run.momentum)
    assert np.abs(spatial - HV_MOMENTUM).max() < 1e-12  # a random walk of 1e-16 a step


# -- discrete Moser-Veselov for every body ----------------------------------------------------------------------------
def physical_bodies(count, seed):
    """Moments of bodies, flat, needle-like and nearly symmetric ones among them, and momenta also close to the axes."""
    rng = np.random.default_rng(seed)
    masses = np.exp(rng.normal(size=(count, 3)))
    masses[1::4] *= 10.0 ** rng.uniform(-12, 0, size=masses[1::4].shape)
    masses[2::4, :2] = masses[2::4, 2:] * 10.0 ** rng.uniform(-12, -3, size=masses[2::4, :2].shape)
    masses[3::4, 1] = masses[3::4, 0] * (1 + 10.0 ** rng.uniform(-14, -3, size=len(masses[3::4])))
    masses = rng.permuted(masses, axis=1)
    moments = np.stack([masses[:, 1] + masses[:, 2], masses[:, 0] + masses[:, 2], masses[:, 0] + masses[:, 1]], axis=1)
    return moments, rng.normal(size=(count, 3)) * 10.0 ** rng.choice([0, -3, -8], size=(count, 3))


@pytest.mark.parametrize(
    ("order", "variant"), sampled([(6, "scaled"), (2, "moments"), (4, "moments"), (10, "moments")])
)
def test_a_step_solves_the_moser_veselov_equation_or_fails(order, variant):
    """s m = 2 q0 I q + 2 q x I q and s m' = 2 q0 I q - 2 q x I q to round-off, or the step is said to be too long."""
    inertia, momentum = physical_bodies(400, 3)
    rate = np.linalg.norm(momentum / inertia, axis=1)

    @jax.jit
    @jax.vmap
    def residual(moments, m, h):
        step, exists = free.map_constants(jnp.diag(moments), m, h, order, variant)
        body, s = free.body_on_level(jnp.diag(moments), m), h
        if variant == "scaled":
            s = free.truncated_scale(body, h, order)
        elif order > 2:
            moments = 1 / jnp.diag(free.modified_body(body, m, h, order).inverse)
        new, turn = free.advance_body(step, m)
        q = turn / jnp.linalg.norm(turn)
        along, across = 2 * q[0] * moments * q[1:], 2 * jnp.cross(q[1:], moments * q[1:])
        gaps = jnp.linalg.norm(s * m - along - across) + jnp.linalg.norm(s * new - along + across)
        return gaps / jnp.linalg.norm(s * m), exists

    for reach, share in ((0.5, 1.0), (30.0, 0.01)):
        gap, exists = residual(inertia, momentum, reach / rate * np.random.default_rng(0).uniform(0.01, 1, size=400))
        assert np.mean(exists) >= share and np.max(gap[exists]) < (3e-15 if order < 4 or reach < 1 else 1e-9)
        assert np.median(gap[exists]) < 1e-15
