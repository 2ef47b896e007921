"""Where a motion begins: Lagrangians with and without a mass in every direction, states and their groups, and runs that
end where a recorded number is not finite."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own_groups import SU2

import dalembert as da
from dalembert.errors import IndefiniteMetric, NumericalFailure
from dalembert.numerics import follow_root


def _quartic(t, g, xi, p):
    return (xi @ xi) ** 2


def _until_one(t, g, xi, p):
    """A free particle whose potential is not a number from q1 = 1 on; its derivative is 0."""
    return 0.5 * xi @ xi - jnp.where(g[0] > 1.0, jnp.nan, 0.0)


def test_the_velocity_of_a_momentum_is_sought_from_the_given_one():
    """L = |xi|^4 has no mass at rest. On SE(2) w and |v| are constant, and v turns in the body at the rate -w."""
    system = da.System(da.SE2(), _quartic)
    run = da.simulate(system, da.LagrangeDAlembert(), system.state(xi=[0.5, 1.0, 0.0]), step=0.01, steps=20).check()
    turned = np.stack([np.full(21, 0.5), np.cos(0.5 * run.t), -np.sin(0.5 * run.t)], axis=1)
    np.testing.assert_allclose(run.xi, turned, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "last"), [({}, 10), ({"monitor": True}, 10), ({"save_every": 4}, 8)], ids=["all", "monitored", "fourth"]
)
def test_a_run_ends_where_a_recorded_number_is_not_finite(options, last):
    system = da.System(da.Euclidean(2), _until_one)
    run = da.simulate(system, da.RungeKutta(), system.state(xi=[1.0, 0.0]), step=0.1, steps=20, **options)
    assert run.status == "failed" and run.failed_at == last and "not finite" in run.reason
    assert np.isfinite(run.energy()).all() and run.t[-1] == pytest.approx(0.1 * last)
    with pytest.raises(da.NumericalFailure, match=f"after {last} good steps"):
        run.check()


def test_a_member_ends_where_a_recorded_number_is_not_finite_and_the_others_go_on():
    system = da.System(da.Euclidean(2), _until_one)
    states = [system.state(xi=[1.0, 0.0]), system.state(xi=[-1.0, 0.0])]
    run = da.ensemble(system, da.RungeKutta(), states, step=0.1, steps=20)
    assert run.status.tolist() == ["failed", "ok"] and run.failed_at.tolist() == [10, -2]
    assert np.isfinite(run.energy()).all() and run.t[:, -1].tolist() == pytest.approx([1.0, 2.0])


def test_an_indefinite_metric_runs_with_a_warning_that_names_the_direction():
    system = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * (xi[0] ** 2 - xi[1] ** 2))
    with pytest.warns(IndefiniteMetric, match="indefinite on D .* in the directions of v2.* mass or .* negative"):
        state = system.state(xi=[1.0, 0.5])
    with pytest.warns(IndefiniteMetric):
        run = da.simulate(system, da.LagrangeDAlembert(), state, step=0.1, steps=3).check()
    np.testing.assert_allclose(run.g[-1], [0.3, 0.15], atol=1e-14)


@pytest.mark.parametrize("mass", [1e-20, 1e20])
def test_a_light_coordinate_is_not_a_singular_one(mass):
    system = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * (xi[0] ** 2 + p * xi[1] ** 2), parameters=mass)
    np.testing.assert_allclose(system.state(xi=[1.0, 0.5]).momentum, [1.0, 0.5 * mass], rtol=1e-15)


def test_a_coordinate_without_mass_is_allowed_where_the_constraint_holds_it():
    system = da.System(da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi[0] ** 2, lambda t, g, p: jnp.array([[1.0, -2.0]]))
    run = da.simulate(system, da.RungeKutta(), system.state(xi=[1.0, 0.5]), step=0.1, steps=3).check()
    np.testing.assert_allclose(run.g[-1], [0.3, 0.15], atol=1e-14)


def test_a_state_keeps_its_group(tmp_path):
    system = da.InvariantSystem(da.SE2(), np.eye(3))
    state = system.state(xi=[1.0, 0.5, 0.0])
    assert len(state) == 5 and da.State(*state).group is None
    kept = [state._replace(t=jnp.ones(())), copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    kept += [jax.tree.map(lambda leaf: 2.0 * leaf, state), jax.jit(lambda s: s)(state)]
    kept += [jax.vmap(lambda w: state._replace(xi=w * state.xi))(jnp.ones(2))]
    kept += [jax.grad(lambda s: s.xi @ s.xi)(state)]
    run = da.simulate(system, da.LagrangeDAlembert(), state, step=0.1, steps=2)
    run.save(tmp_path / "run.nc")
    kept += [run.last, run.at(0.15), da.load(tmp_path / "run.nc").last]
    assert all(each.group == da.SE2() for each in kept)
    other = da.InvariantSystem(da.SO3(), np.eye(3))
    with pytest.raises(da.InvalidInput, match=r"SE\(2\).*SO\(3\)"):
        da.load(tmp_path / "run.nc", system=other)


def test_a_state_made_by_hand_mixes_with_those_that_know_their_group():
    system = da.models.unicycle()
    known = system.state(xi=[0.1, 0.2, 0.0])
    by_hand = da.State(*known)
    assert by_hand.group is None
    members = da.ensemble(system, da.LagrangeDAlembert(), [known, by_hand], step=0.1, steps=2)
    np.testing.assert_array_equal(members.xi[0], members.xi[1])
    assert jax.tree.map(lambda a, b: a + b, known, by_hand).group == system.group
    assert jax.tree.structure(known) != jax.tree.structure(known._replace(group=da.SO3()))


@pytest.mark.parametrize("method", [da.LagrangeDAlembert(), da.integrators.Gauss(2)], ids=lambda method: method.name)
def test_a_method_that_inverts_a_singular_metric_says_what_is_singular(method):
    """L = v1^2/2 with v2 = -0.3 v1 has a motion, v constant, though L_xi_xi has no mass in v2."""
    system = da.System(da.Euclidean(2), lambda t, q, v, p: 0.5 * v[0] ** 2, lambda t, q, p: jnp.array([[0.3, 1.0]]))
    start = system.state(xi=[1.0, -0.3])
    np.testing.assert_allclose(da.simulate(system, da.RungeKutta(), start, step=0.1, steps=3).check().xi[-1], start.xi)
    run = da.simulate(system, method, start, step=0.1, steps=3)
    with pytest.raises(NumericalFailure, match=r"L_xi_xi is singular in the directions of v2: .* use runge-kutta"):
        run.check()
    assert "singular" in run.reason


@pytest.mark.parametrize("given", ["velocity", "momentum", "rest"])
def test_a_state_by_one_native_call_is_the_state_that_is_looked_at_part_by_part(given, monkeypatch):
    """On a product of groups, with a matrix that is 1e-9 off: the bits of the two ways are the same."""
    system = da.models.vertical_disk()
    turn = np.array([[np.cos(0.3), -np.sin(0.3), 1.0], [np.sin(0.3), np.cos(0.3), 2.0], [0.0, 0.0, 1.0]])
    turn[:2, :2] *= 1.0 + 1e-9
    g, xi = (turn, np.eye(2)), system.project((turn, np.eye(2)), np.array([0.4, 1.0, 0.0, 2.0]))
    arguments = {"velocity": {"xi": np.asarray(xi)}, "momentum": {"momentum": np.array([0.4, 1.0, 0.0, 2.0])}}
    options = arguments.get(given, {})
    at_once = system.state(g, **options)
    assert type(system)._admit(system, g, options.get("xi"), options.get("momentum"), 0.0) is not None
    monkeypatch.setattr(type(system), "_admit", lambda *_: None)
    for one, other in zip(jax.tree.leaves(at_once), jax.tree.leaves(system.state(g, **options)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-16 * (1 + np.abs(other).max()))
        assert not one.flags.writeable


class _Doubled(SU2):
    """A group that reads its elements in a way of its own."""

    def element(self, value):
        return super().element(np.asarray(value) / 2.0)


def test_a_group_that_reads_elements_in_its_own_way_is_asked():
    system = da.System(_Doubled(), lambda t, g, xi, p: 0.5 * xi @ xi)
    np.testing.assert_allclose(system.state(2.0 * np.eye(4), [1.0, 0.0, 0.0]).g, np.eye(4), atol=1e-15)


def test_what_is_off_the_group_is_refused_on_a_product_too():
    system = da.models.vertical_disk()
    with pytest.raises(da.InvalidInput, match=r"a rotation in SO\(2\) must satisfy"):
        system.state((np.eye(3), 1.1 * np.eye(2)), np.zeros(4))
    with pytest.raises(da.InvalidInput, match="finite"):
        system.state((np.eye(3), np.full((2, 2), np.nan)), np.zeros(4))


def test_the_branch_through_the_anchor_is_followed_where_one_step_of_newton_leaves_it():
    """arctan(x) = c: near 0 Newton's first step is close, far away it overshoots; x^3 - x = c folds at x = -0.58."""
    for c, most in ((0.1, 8), (1.5, 200)):
        root = follow_root(lambda x, c=c: jnp.arctan(x) - c, jnp.zeros(1))
        np.testing.assert_allclose(root.x, np.tan(c), rtol=1e-13)
        assert bool(root.converged) and int(root.iterations) <= most
    inside = follow_root(lambda x: x**3 - x - 0.3, jnp.zeros(1))
    np.testing.assert_allclose(inside.x**3 - inside.x, 0.3, rtol=1e-14)
    assert bool(inside.converged) and -0.58 < float(inside.x[0]) < 0.0
    assert not bool(follow_root(lambda x: x**3 - x - 0.6, jnp.zeros(1)).converged)


def test_a_start_by_names_does_not_depend_on_the_starts_before_it():
    """A new start tries the rows of the last one first; where these are not the first independent ones, it looks."""
    one = da.models.ackermann_car()
    turning = {"yaw": 0.3, "steer": 0.2, "yaw_rate": 0.1}
    for names in ({"speed": 2.0}, {"x": 1.0, "speed": 1.0}, turning, {"speed": 1.0, "x": 2.0}):
        found, fresh = one.state(**names), da.models.ackermann_car().state(**names)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(fresh), strict=True):
            np.testing.assert_array_equal(a, b)
