"""Steady motions and their linear neighbours against published numbers and closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from bicycle import make_bicycle, on_the_road
from mechanisms import draw_bicycle, draw_coin

import dalembert as da
from dalembert.errors import InvalidInput

# Meijaard, Papadopoulos, Ruina, Schwab, Proc. R. Soc. A 463 (2007), 1955-1982, section 5 and table 2
M = np.array([[80.81722, 2.31941332208709], [2.31941332208709, 0.29784188199686]])
C1 = np.array([[0, 33.86641391492494], [-0.85035641456978, 1.68540397397560]])
K0 = np.array([[-80.95, -2.59951685249872], [-2.59951685249872, -0.80329488458618]])
K2 = np.array([[0, 76.59734589573222], [0, 2.65431523794604]])
AT_FIVE = [-0.32286642900409, -0.77534188219585 + 4.46486771378823j, -0.77534188219585 - 4.46486771378823j]
AT_FIVE += [-14.07838969279822]
WEAVE, CAPSIZE = 4.29238253634111, 6.02426201538837


@pytest.fixture(scope="module")
def bicycle():
    return draw_bicycle().system()


@pytest.mark.heavy
def test_the_bicycle_is_the_published_one(bicycle):
    """M q'' + v C1 q' + (g K0 + v^2 K2) q = (0, torque), without a formula by the user."""
    for speed in (0.5, 5.0, 9.0):
        found = da.linearise(bicycle, speed=speed)
        assert found.names == ("lean", "steer", "lean rate", "steer rate", "speed")
        stiffness, damping = np.linalg.solve(M, 9.81 * K0 + speed**2 * K2), np.linalg.solve(M, speed * C1)
        np.testing.assert_allclose(found.A[2:4, :4], -np.hstack([stiffness, damping]), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(found.B[2:4, 0], np.linalg.solve(M, [0.0, 1.0]), rtol=1e-11)
        np.testing.assert_allclose(found.A[:2, 2:4], np.eye(2), atol=1e-12)
        assert np.abs(found.A[4]).max() < 1e-11 and np.abs(found.A[:, 4]).max() < 1e-11
    np.testing.assert_allclose(da.linearise(bicycle, speed=5.0).eigenvalues, AT_FIVE, rtol=0, atol=1e-10)


@pytest.mark.heavy
def test_both_critical_speeds(bicycle):
    found = da.stability(bicycle, "speed", 3.0, 8.0, count=12)
    np.testing.assert_allclose(found.critical, [WEAVE, CAPSIZE], rtol=0, atol=1e-10)
    ((low, high),) = found.stable()
    assert (low, high) == tuple(found.critical)


def test_static_wheel_loads(bicycle):
    state = bicycle.state()
    loads = dict(zip(bicycle.load_names, bicycle.multipliers(0.0, state.g, state.xi), strict=True))
    assert float(loads["rear wheel load"]) == pytest.approx(612.836470588236, abs=1e-10)
    assert float(loads["front wheel load"]) == pytest.approx(309.303529411765, abs=1e-10)


@pytest.mark.heavy
def test_the_mechanism_moves_as_the_equations_by_hand(bicycle):
    """A second of nonlinear motion, z down and on R^8 there."""
    by_hand = make_bicycle()
    q, v = on_the_road(by_hand, 4.6, lean=0.1, steer=-0.05, lean_rate=0.5)
    start = bicycle.state(rear_wheel_rate=-v[6], lean=0.1, steer=-0.05, lean_rate=0.5)
    run = da.simulate(bicycle, da.RungeKutta(), start, step=0.0025, steps=400)
    other = da.simulate(by_hand, da.RungeKutta(), by_hand.state(q, v), step=0.0025, steps=400)
    np.testing.assert_allclose(run["lean"], other.g[:, 3], atol=2e-9)
    np.testing.assert_allclose(run["steer"], other.g[:, 5], atol=2e-9)
    np.testing.assert_allclose(run["rear wheel"], -other.g[:, 6], atol=2e-9)


@pytest.mark.heavy
def test_a_steady_turn_needs_its_torque(bicycle):
    state, torque = da.steady(bicycle, speed=5.0, lean=0.1, trim=["steer torque"])
    names = (*bicycle.coordinate_names, *bicycle.rate_names)
    told = dict(zip(names, np.asarray(bicycle.observe(0.0, state.g, state.xi)), strict=True))
    assert told["lean"] == pytest.approx(0.1, abs=1e-12) and told["speed"] == pytest.approx(5.0, abs=1e-12)
    assert abs(torque[0]) > 1e-3 and told["steer"] > 0
    rate, _ = bicycle.acceleration(0.0, state.g, state.xi, torque)
    assert np.abs(rate).max() < 1e-10
    # it goes round in a circle: half a second later lean and steer are the same
    run = da.simulate(bicycle, da.RungeKutta(), state, step=0.01, steps=50, controls=np.tile(torque, (50, 1)))
    np.testing.assert_allclose(run["lean"], 0.1, atol=1e-9)
    np.testing.assert_allclose(run["steer"], told["steer"], atol=1e-9)


def test_there_is_no_such_steady_motion(bicycle):
    with pytest.raises(InvalidInput, match=r"no steady motion with speed = 5, lean = 0.1, steer = -0.3 was found"):
        da.steady(bicycle, speed=5.0, lean=0.1, steer=-0.3)


@pytest.mark.heavy
def test_a_rolling_coin_is_stable_above_its_critical_speed():
    """spin^2 > m g r It/(Ia (Ia + m r^2)), upright and straight (Bloch 2003, 8.6)."""
    m, r, g = 0.5, 0.1, 9.81
    system = draw_coin(m, r).system()
    across, along = m * r**2 / 4, m * r**2 / 2
    critical = r * np.sqrt(m * g * r * across / (along * (along + m * r**2)))
    found = da.stability(system, "speed", 0.5 * critical, 2.0 * critical, count=8)
    np.testing.assert_allclose(found.critical, [critical], rtol=1e-9)
    slow, fast = (da.linearise(system, speed=factor * critical) for factor in (0.9, 1.1))
    assert slow.eigenvalues.real.max() > 0.1 and np.abs(fast.eigenvalues.real).max() < 1e-9
    assert not fast.stable  # neutral: it wobbles for ever


def test_a_pendulum_and_an_inverted_one():
    """On R^1, with a spring: eigenvalues +-sqrt(-(k - m g l)/(m l^2))."""

    def lagrangian(t, q, v, p):
        return 0.5 * v @ v - 9.81 * jnp.cos(q[0]) - 0.5 * p * q[0] ** 2

    for stiffness, expected in ((15.0, 1j * np.sqrt(15.0 - 9.81)), (0.0, np.sqrt(9.81))):
        system = da.System(da.Euclidean(1), lagrangian, parameters=jnp.asarray(stiffness))
        found = da.linearise(system, system.state(np.zeros(1), np.zeros(1)))
        assert found.names == ("q1", "v1")
        np.testing.assert_allclose(
            np.sort_complex(found.eigenvalues), np.sort_complex([expected, -expected]), atol=1e-12
        )


def test_a_free_body_is_unstable_about_its_middle_axis():
    """xi constant on SO(3): +-w sqrt((I2 - I1)(I3 - I2)/(I1 I3)) about the second axis; the attitude is a symmetry."""
    body = da.InvariantSystem(da.SO3(), np.diag([1.0, 2.0, 3.0]))
    found = da.linearise(body, body.state(np.eye(3), np.array([0.0, 2.0, 0.0])))
    assert found.A.shape == (3, 3) and not found.stable
    np.testing.assert_allclose(np.sort(found.eigenvalues.real), 2.0 * np.sqrt(1 / 3) * np.array([-1, 1]), atol=1e-12)


def test_what_is_not_steady_is_refused():
    body = da.InvariantSystem(da.SO3(), np.diag([1.0, 2.0, 3.0]))
    with pytest.raises(InvalidInput, match=r"is not steady"):
        da.linearise(body, body.state(np.eye(3), np.array([1.0, 2.0, 0.0])))


def test_along_a_run_the_matrices_carry_a_neighbour():
    body = da.InvariantSystem(da.SO3(), np.diag([1.0, 2.0, 3.0]))
    start = np.array([0.3, 1.0, -0.2])
    run = da.simulate(body, da.RungeKutta(), body.state(np.eye(3), start), step=0.001, steps=200)
    along = da.linearise(body, run)
    assert along.A.shape == (201, 6, 6) and along.basis.shape == (201, 6, 6)
    x = np.array([0, 0, 0, 1e-6, 0, 0])
    for k in range(200):
        middle = 0.5 * (along.A[k] + along.A[k + 1])
        x = np.linalg.solve(np.eye(6) - 0.0005 * middle, (np.eye(6) + 0.0005 * middle) @ x)
    near = da.simulate(
        body, da.RungeKutta(), body.state(np.eye(3), start + np.array([1e-6, 0, 0])), step=0.001, steps=200
    )
    np.testing.assert_allclose(near.xi[-1] - run.xi[-1], x[3:], atol=1e-11)
    apart = da.SO3().log(run.g[-1].T @ near.g[-1])
    np.testing.assert_allclose(apart, x[:3], atol=1e-11)


def test_a_robot_is_controllable_and_a_bicycle_without_drive_is_not(bicycle):
    assert da.linearise(bicycle, speed=5.0).uncontrollable == pytest.approx([0.0], abs=1e-9)


def test_a_mass_that_moves_through_its_balance_is_not_steady():
    """m x'' = -k x - c x' - m g is 0 for many (x, x'): steady is x = -m g/k, x' = 0."""
    made = da.Mechanism("quarter of a car")
    made.body("body", mass=300.0, centre=(0, 0, 1), ball=0.3)
    made.slider("height", "ground", "body", axis="z", stiffness=20_000.0, damping=1000.0)
    car = made.system()
    state, _ = da.steady(car)
    np.testing.assert_allclose(state.g, [-300 * 9.81 / 20_000], rtol=1e-13)
    np.testing.assert_allclose(state.xi, [0.0], atol=1e-13)
    rate = np.roots([300.0, 1000.0, 20_000.0])
    np.testing.assert_allclose(np.sort_complex(da.linearise(car).eigenvalues), np.sort_complex(rate), rtol=1e-12)
    passing = car.state(np.array([-300 * 9.81 / 20_000 - 0.05]), np.array([1.0]))
    with pytest.raises(InvalidInput, match=r"not steady: .xi'. = .*, .xi''. = 66.7"):
        da.linearise(car, passing)
