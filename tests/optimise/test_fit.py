"""`fit`: parameters from data that other code made, with errors that mean what they say."""

import typing
from collections.abc import Sequence

import jax.numpy as jnp
import newton
import numpy as np
import pytest
from fitted import EXACT, METHOD, TIMES, TRUE, by_hand, far, launched, poses, seen, sleigh
from scipy.integrate import solve_ivp

import dalembert as da
from dalembert.optimise import Experiment, Fit, Fits, Unknown, fit


def test_offset_and_friction_of_a_sleigh():
    found = fit(
        sleigh, METHOD, seen(np.random.default_rng(1).standard_normal((60, 2))), {"a": 0.2, "rubbing": 0.1}, step=0.02
    )
    assert found.converged and not found.loose and np.abs(far(found, TRUE)).max() < 3.0
    assert found.dof == 118 and 0.001 < found.p_value < 0.999 and "chi^2" in str(found)
    assert found.errors.max() < 0.01 and np.abs(found.correlation).max() <= 1.0 + 1e-12
    run = found.run()
    np.testing.assert_allclose(run.g[5::5, :2, 2], EXACT[:, 1:3], atol=0.02)
    np.testing.assert_allclose(np.nansum(found.residuals() ** 2), found.chi2, rtol=1e-9)


def test_the_jacobian_is_the_derivative_of_the_residuals():
    """Off the grid, on the group, with velocities, missing numbers, controls, two experiments and four shots."""
    rng, times = np.random.default_rng(3), np.sort(np.random.default_rng(3).uniform(0.0, 2.0, 25))
    rows = by_hand(times)
    speeds = np.column_stack([rows[:, 3:], np.zeros(25)])
    speeds[3, 1] = np.nan
    free = {"state": launched(), "free": ("configuration", "velocity")}
    data = {"configuration": poses(rows), "velocity": speeds}
    one = Experiment(times, data, deviations={"configuration": 0.1}, covariances={"velocity": np.eye(3) + 0.3}, **free)
    two = Experiment([0.5, 0.5, 2.0], {"w": [0.1, 0.2, np.nan]}, deviations=0.1, state=launched())
    unknowns = {"a": Unknown(0.35, prior=(0.3, 0.1)), "rubbing": Unknown(0.1, own=True)}
    problem = fit(sleigh, METHOD, [one, two], unknowns, step=0.05, shots=4, max_runs=2).problem
    x = problem.guess + 0.01 * rng.standard_normal(problem.guess.shape)
    here = problem(x).of(0)
    for k, way in enumerate(1e-6 * np.eye(x.shape[1])):
        ahead, behind = problem(x + way).of(0), problem(x - way).of(0)
        for name, slope in (("residual", here.jacobian), ("gaps", here.gap_jacobian)):
            between = (getattr(ahead, name) - getattr(behind, name)) / 2e-6
            np.testing.assert_allclose(slope[:, k], between, atol=1e-6 * max(1.0, np.abs(slope).max()))


def repeat(count, seed):
    """Standardised estimates of many experiments with noise of their own, fitted side by side."""
    rng = np.random.default_rng(seed)
    given = [[seen(rng.standard_normal((60, 2)))] for _ in range(count)]
    found = fit(sleigh, METHOD, given, {"a": 0.25, "rubbing": 0.1}, step=0.02)
    assert all(found.converged)
    return (found.values - list(TRUE.values())) / found.errors


def test_errors_mean_what_they_say():
    """With 60 repetitions the scatter is known to 9 %: it is within three such of the stated errors."""
    far_off = repeat(60, 11)
    assert (np.abs(far_off) < 3.0).mean() > 0.95
    assert np.abs(np.sqrt((far_off**2).mean(axis=0)) - 1.0).max() < 3.0 / np.sqrt(120)


@pytest.mark.heavy
def test_errors_mean_what_they_say_a_thousand_times():
    far_off = repeat(1000, 12)
    assert (np.abs(far_off) < 3.0).mean() >= 0.99
    assert np.abs(np.sqrt((far_off**2).mean(axis=0)) - 1.0).max() < 0.1


def test_a_satellite_shows_its_inertia_up_to_scale():
    """Angular velocities by SciPy on Euler's equations: no measurement shows a common factor of the moments."""
    moments, w0 = np.array([1.0, 1.4, 2.1]), np.array([0.7, 0.5, 0.4])
    euler = solve_ivp(
        lambda t, w: np.cross(moments * w, w) / moments, (0, 20), w0, "DOP853", 0.25 * np.arange(81), rtol=1e-12
    ).y.T
    data = euler + 0.002 * np.random.default_rng(5).standard_normal(euler.shape)

    def body(I1, I2, I3):
        return da.models.rigid_body(jnp.stack([I1, I2, I3]))

    given = Experiment(0.25 * np.arange(81), {"velocity": data}, body(*moments).state(xi=w0), 0.002)
    found = fit(body, da.RungeKutta(), given, {"I1": 1.2, "I2": 1.3, "I3": 1.8}, step=0.05)
    (loose,) = found.loose
    assert loose.names == ("I1", "I2", "I3") and np.isinf(loose.error) and np.isinf(found.errors).all()
    assert "a common factor of I1, I2, I3: not at all" in str(found)
    np.testing.assert_allclose(found.values / found.values[0], moments, rtol=0.01)
    fixed = fit(lambda I2, I3: body(1.0, I2, I3), da.RungeKutta(), given, {"I2": 1.3, "I3": 1.8}, step=0.05)
    assert not fixed.loose and np.abs(far(fixed, {"I2": 1.4, "I3": 2.1})).max() < 3.0


def rattleback(first, second):
    return da.models.rattleback(axes=jnp.stack([first, second, 0.02 * jnp.ones_like(first)]))


def rocking(count):
    """Attitudes of a rattleback, by Newton and Euler, with noise; its place was not seen."""
    celt, roller = newton.PAIRS["rattleback"]
    w0, times, rng = np.array([1.0, 0.4, -2.0]), 0.02 * np.arange(1, count + 1), np.random.default_rng(7)
    R, _ = roller.flow(np.eye(3), w0, times)
    R = np.stack([turn @ np.asarray(da.SO3().exp(0.002 * rng.standard_normal(3))) for turn in R])
    rows = np.asarray(celt.A(0.0, celt.group.identity()))
    state = celt.state(xi=np.concatenate([w0, -np.linalg.solve(rows[:, 3:], rows[:, :3] @ w0)]))
    return Experiment(times, {"configuration": (R, np.full((count, 2), np.nan))}, state, 0.002)


def test_the_axes_of_a_rattleback():
    found = fit(rattleback, da.RungeKutta(), rocking(30), {"first": 0.19, "second": 0.031}, step=0.004)
    assert found.converged and found.dof == 88 and 0.001 < found.p_value < 0.999
    assert np.abs(far(found, {"first": 0.2, "second": 0.03})).max() < 3.0


@pytest.mark.heavy
def test_one_shot_loses_a_rattleback_that_five_find():
    guess = {"first": 0.17, "second": 0.035}
    lost = fit(rattleback, da.RungeKutta(), rocking(100), guess, step=0.002)
    assert lost.p_value < 1e-6
    found = fit(rattleback, da.RungeKutta(), rocking(100), guess, step=0.002, shots=5)
    assert found.converged and found.dof == 298 and 0.001 < found.p_value < 0.999
    assert found.names == ("first", "second") and np.abs(far(found, {"first": 0.2, "second": 0.03})).max() < 3.0


@pytest.mark.heavy
def test_chaotic_motion_is_found_from_a_guess_that_is_far_off():
    """A double pendulum turns over for 8 s. Shots that begin where a run with the guess goes had nothing in common."""

    def pendulum(gravity, length):
        def energy(t, q, v, p):
            moving = v[0] ** 2 + 0.5 * p[1] ** 2 * v[1] ** 2 + p[1] * v[0] * v[1] * jnp.cos(q[0] - q[1])
            return moving + p[0] * (2 * jnp.cos(q[0]) + p[1] * jnp.cos(q[1]))

        return da.System(da.Euclidean(2), energy, parameters=jnp.stack([jnp.asarray(gravity), jnp.asarray(length)]))

    true, start = {"gravity": 9.81, "length": 1.0}, pendulum(9.81, 1.0).state([2.0, 2.5], [0.0, 0.0])
    run = da.simulate(pendulum(**true), METHOD, start, step=0.005, steps=1600, save_every=10)
    angles = np.asarray(run.g)[1:] + 0.01 * np.random.default_rng(0).standard_normal((160, 2))
    seen = {"angles": lambda system, state: state.g}
    data = Experiment(run.t[1:], {"angles": angles}, start, 0.01, observables=seen, angles=["angles"])
    guess = {"gravity": 9.0, "length": 0.8}
    assert fit(pendulum, METHOD, data, guess, step=0.005).p_value < 1e-6
    found = fit(pendulum, METHOD, data, guess, step=0.005, shots=16)
    assert found.converged and found.p_value > 0.001 and np.abs(far(found, true)).max() < 3.5


@pytest.mark.parametrize("loss", ["linear", "huber"])
def test_gauss_newton_ends_where_levenberg_and_marquardt_do(loss):
    noise = np.random.default_rng(8).standard_normal((60, 2))
    guess = {"a": 0.2, "rubbing": Unknown(0.1, low=0.0)}
    found = [
        fit(sleigh, METHOD, seen(noise, free="velocity"), guess, step=0.05, loss=loss, search=search)
        for search in ("levenberg-marquardt", "gauss-newton")
    ]
    assert all(each.converged for each in found)
    np.testing.assert_allclose(found[1].values, found[0].values, atol=1e-4 * found[0].errors.max())
    held = fit(
        sleigh, METHOD, seen(noise), {"a": Unknown(0.2, high=0.25), "rubbing": 0.1}, step=0.05, search="gauss-newton"
    )
    assert held.converged and held["a"] == 0.25 and held.at_bound == ("a",)
    with pytest.raises(da.InvalidInput, match="unknown search 'newton'"):
        fit(sleigh, METHOD, seen(noise), guess, step=0.05, search="newton")


def test_fits_side_by_side_are_the_fits_one_by_one():
    """Five films, two of them with frames of another number: each fit has its own search, start, data and end."""
    rng, given = np.random.default_rng(9), []
    for k in range(5):
        noise, frames = rng.standard_normal((60, 2)), slice(None, None, 2 if k > 2 else None)
        noise[rng.uniform(size=60) < 0.1] = np.nan
        data = {"times": TIMES[frames], "exact": EXACT[frames], "free": "velocity.w"}
        given.append([seen(noise[frames], **data), seen(rng.standard_normal((60, 2)))])
    unknowns = {"a": Unknown(0.2, low=0.1, high=0.3), "rubbing": Unknown(0.1, prior=(0.1, 0.01), own=True)}
    calls = []
    together = fit(sleigh, METHOD, given, unknowns, step=0.05, progress=lambda *done: calls.append(done))
    assert len(together) == 5 and calls[-1][1] == 5 and "5 of them converged" in repr(together)
    for many, one in zip(together, given, strict=True):
        alone = fit(sleigh, METHOD, one, unknowns, step=0.05)
        assert many.names == alone.names and many.runs == alone.runs and many.at_bound == alone.at_bound
        np.testing.assert_allclose(many.values, alone.values, rtol=1e-9)
        np.testing.assert_allclose(many.covariance, alone.covariance, rtol=1e-6, atol=1e-12)
        assert many.dof == alone.dof and many.chi2 == pytest.approx(alone.chi2, rel=1e-9)
    np.testing.assert_array_equal(together[1:3].values, together.values[1:3])
    np.testing.assert_allclose(together[4].residuals(), alone.residuals(), atol=1e-6)
    np.testing.assert_allclose(together[4].run(1).g, alone.run(1).g, atol=1e-8)
    assert alone.plot(experiment=1).get_suptitle() == "Experiment 1 (of 0 to 1; experiment= shows another)"


def test_an_interrupt_keeps_the_best_of_many_fits(monkeypatch):
    monkeypatch.setattr("dalembert.optimise.fitting.SIDE_BY_SIDE", 2)
    rng, calls = np.random.default_rng(10), []
    given = [[seen(rng.standard_normal((60, 2)))] for _ in range(4)]

    def progress(done, total):
        calls.append(done)
        if done == 2:
            raise KeyboardInterrupt

    found = fit(sleigh, METHOD, given, {"a": 0.2, "rubbing": 0.1}, step=0.05, progress=progress)
    assert found.converged == [True, True, False, False]
    assert {each.reason for each in found[2:]} == {"interrupted; these are the best so far"}


@pytest.mark.parametrize("given", [[], [[]], "x", [3], [[seen(np.zeros((60, 2)))], []]])
def test_what_is_no_experiment_is_refused(given):
    with pytest.raises(da.InvalidInput, match="allowed: an Experiment"):
        fit(sleigh, METHOD, given, {"a": 0.2}, step=0.05)


def test_types_tell_one_fit_from_many():
    """A list of lists gives `Fits`, all else a `Fit`: users' type checkers see it."""
    said = [typing.get_type_hints(each) for each in typing.get_overloads(fit)]
    assert [each["return"] for each in said] == [Fit, Fits]
    assert [each["experiments"] for each in said] == [Experiment | Sequence[Experiment], Sequence[Sequence[Experiment]]]
