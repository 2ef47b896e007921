"""The discrete problem for other solvers: its derivatives against differences, and what IPOPT and SciPy find."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest
from registry import more
from scipy.optimize import NonlinearConstraint, minimize
from scipy.sparse import coo_array

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.kernels import LoweringError


def pose(theta, x, y):
    c, s = np.cos(theta), np.sin(theta)
    return np.array([[c, -s, x], [s, c, y], [0.0, 0.0, 1.0]])


def turned(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])


def sledge(most=np.inf):
    """A sleigh with a centre ahead of its blade, pushed and turned."""
    return da.System(
        da.SE2(),
        lambda t, g, xi, p: 0.22 * xi[0] ** 2 + 0.5 * (xi[1] ** 2 + xi[2] ** 2) + 0.2 * xi[0] * xi[2],
        constraint=lambda t, g, p: jnp.array([[0.0, 0.0, 1.0]]),
        force=lambda t, g, xi, u, p: jnp.stack([u[1], u[0], jnp.zeros(())]),
        inputs=(da.Input("force", "N", -most, most), da.Input("torque", "N m", -most, most)),
    )


def satellite():
    return da.System(
        da.SO3(),
        lambda t, g, xi, p: 0.5 * xi @ (p * xi),
        force=lambda t, g, xi, u, p: u,
        parameters=jnp.array([2.0, 1.5, 1.0]),
        inputs=("t1", "t2", "t3"),
    )


def effort(t, g, xi, u):
    return u @ u


def around(t, g, xi, u):
    """Out of a disc, and not too fast."""
    return jnp.stack([(g[0, 2] - 0.4) ** 2 + (g[1, 2] - 0.1) ** 2 - 0.04, 4.0 - xi[1] ** 2])


def free_duration(**options):
    system = sledge(most=2.0)
    goal = system.state(pose(0.3, 1.0, 0.2), np.zeros(3))
    return da.plan(system, start=pose(0, 0, 0), goal=goal, steps=8, duration=(0.5, 6.0), **options)


def with_path(**options):
    system = sledge()
    goal = system.state(pose(0.0, 1.0, 0.0), np.zeros(3))
    options |= {"steps": 10, "duration": 2.0, "cost": effort, "path": around}
    return da.plan(system, da.RungeKutta(), start=pose(0, 0, 0), goal=goal, **options)


def partly_free(**options):
    """Start and goal are free in part, there is a final cost, and the method leaves the group between the nodes."""
    system = satellite()
    return da.plan(
        system, da.RungeKutta(), start=np.eye(3), goal=system.state(turned(1.2), np.zeros(3)),
        free_start=("w1",), free_goal=("w2", "along w3"), steps=6, duration=3.0, cost=effort,
        final_cost=lambda t, g, xi: 0.1 * xi @ xi, **options,
    )  # fmt: skip


PROBLEMS = {"free duration": free_duration, "path": with_path, "partly free goal": partly_free}


class Caught(Exception):
    """The program that a plan was to be found with."""


def program_of(problem):
    def catch(program):
        raise Caught(program)

    with pytest.raises(InvalidInput) as fault:
        problem(solver=catch)
    return fault.value.__cause__.args[0]


def dense(values, structure, shape):
    return coo_array((values, structure), shape).toarray()


@pytest.mark.parametrize("name", ["free duration", "path", more("partly free goal")])
def test_derivatives_agree_with_differences(name):
    program = program_of(PROBLEMS[name])
    rng = np.random.default_rng(3)
    size, count = len(program.guess), len(program.least)
    z = program.guess + 0.05 * rng.standard_normal(size)
    y, factor, eps = rng.standard_normal(count), 0.7, 1e-5
    jacobian = dense(program.jacobian(z), program.jacobianstructure(), (count, size))
    lower = dense(program.hessian(z, y, factor), program.hessianstructure(), (size, size))
    hessian = lower + np.tril(lower, -1).T

    def slope(z):
        return factor * program.gradient(z) + y @ dense(program.jacobian(z), program.jacobianstructure(), (count, size))

    for k in range(size):
        ends = [z + sign * eps * np.eye(size)[k] for sign in (1, -1)]
        values, rows, slopes = ([f(each) for each in ends] for f in (program.objective, program.constraints, slope))
        assert program.gradient(z)[k] == pytest.approx((values[0] - values[1]) / (2 * eps), abs=1e-7)
        np.testing.assert_allclose(jacobian[:, k], (rows[0] - rows[1]) / (2 * eps), atol=1e-7)
        np.testing.assert_allclose(hessian[:, k], (slopes[0] - slopes[1]) / (2 * eps), atol=2e-7)
    only = dense(program.hessian(z, y, 0.0), program.hessianstructure(), (size, size))
    cost = dense(program.hessian(z, 0 * y, 1.0), program.hessianstructure(), (size, size))
    np.testing.assert_allclose(only + factor * cost, lower, atol=1e-12)


def by_scipy(program):
    """SciPy's trust-constr, on the same callables."""
    size, count = len(program.guess), len(program.least)

    def jacobian(z):
        return dense(program.jacobian(z), program.jacobianstructure(), (count, size))

    def hessian(z, y, factor):
        lower = dense(program.hessian(z, y, factor), program.hessianstructure(), (size, size))
        return lower + np.tril(lower, -1).T

    held = NonlinearConstraint(
        program.constraints, program.least, program.most, jacobian, lambda z, y: hessian(z, y, 0.0)
    )
    found = minimize(
        program.objective, program.guess, jac=program.gradient, hess=lambda z: hessian(z, 0 * program.least, 1.0),
        constraints=[held], method="trust-constr", options={"gtol": 1e-9, "xtol": 1e-13, "maxiter": 300},
    )  # fmt: skip
    program.iterations = found.nit
    return found.x, {"mult_g": found.v[0]}


def same(made, own, tolerance):
    assert made.status == own.status == "optimal"
    assert made.cost == pytest.approx(own.cost, rel=tolerance)
    for name in ("controls", "costates", "goal_multipliers", "bound_multipliers"):
        mine, its = getattr(own, name), getattr(made, name)
        np.testing.assert_allclose(its, mine, atol=100 * tolerance * (1 + np.abs(mine).max(initial=0)))


@pytest.mark.heavy
def test_scipy_finds_the_same_plan():
    """Another solver, on the callables of the protocol, ends at our optimum with our multipliers."""
    own = partly_free()
    made = partly_free(solver=by_scipy)
    assert made.iterations > 1
    same(made, own, 1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_ipopt_finds_the_same_plan(name):
    pytest.importorskip("cyipopt", reason="IPOPT is an extra")
    calls, own = [], PROBLEMS[name]()
    near = own.controls + 0.01 * np.random.default_rng(1).standard_normal(own.controls.shape)
    made = PROBLEMS[name](guess=near, solver="ipopt", progress=lambda *given: calls.append(given))
    assert len(calls) == made.iterations + 1 > 2
    same(made, own, 1e-6)


def test_without_cyipopt_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cyipopt", None)
    with pytest.raises(InvalidInput, match="needs the package cyipopt"):
        partly_free(solver="ipopt")


@pytest.mark.heavy
def test_ctrl_c_keeps_the_last_iterate():
    def stopped(program):
        program.objective(program.guess + 0.01)
        raise KeyboardInterrupt

    made = partly_free(solver=stopped)
    assert made.status == "interrupted" and "best so far" in made.reason
    np.testing.assert_allclose(made.controls, 0.01)


@pytest.mark.parametrize("answer", [None, 3, (1, 2), (np.zeros(3), {}), (np.full(57, np.nan), {}), "x"])
def test_answers_of_a_solver_are_checked(answer):
    with pytest.raises(InvalidInput, match="solver"):
        partly_free(solver=lambda program: answer)


@pytest.mark.parametrize("place", ["Solver", "solve_by"])
def test_a_step_that_is_too_long_is_refused_by_a_sentence(monkeypatch, place):
    """As that of Runge and Kutta on a bicycle is, which takes minutes to find out."""

    def exceeded(*given):
        raise LoweringError("the step needs more than 160000 scalar operations")

    monkeypatch.setattr(f"dalembert.optimise.planning.{place}", exceeded)
    with pytest.raises(InvalidInput, match=r"cannot be differentiated natively.*fewer coordinates"):
        partly_free(solver=by_scipy if place == "solve_by" else None)
