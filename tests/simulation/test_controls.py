"""A run keeps its controls: everything that is asked of it afterwards knows them, and so does its file."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import sampled

import dalembert as da

METHOD = da.LagrangeDAlembert()
MASS, INERTIA, CENTRE = 1.0, 1.0, 0.5
ROWS = 0.3 * np.ones((50, 2))


def _kinetic(t, q, v, p):
    return 0.5 * v @ v


def _cart(t, q, v, u, p):
    return jnp.stack([u[0], 0.0 * u[0]]) - 0.1 * v


CART = da.System(da.Euclidean(2), _kinetic, force=_cart, inputs=[da.Input("motor", "N", -2.0, 2.0)])


@pytest.fixture(scope="module")
def driven() -> da.Trajectory:
    system = da.models.unicycle(MASS, INERTIA, CENTRE)
    return da.simulate(system, METHOD, system.state(xi=[0.0, 0.0, 0.0]), step=0.1, steps=50, controls=ROWS).check()


@pytest.fixture(scope="module")
def cart() -> da.Trajectory:
    rows = np.sin(np.arange(30))[:, None]
    return da.simulate(CART, METHOD, CART.state([0.0, 0.0], [0.5, 0.2]), step=0.1, steps=30, controls=rows).check()


# -- the run --------------------------------------------------------------------------------------------------------
def test_states_between_know_the_controls(driven):
    """From rest the motion begins with xi' = M^-1 u: drive force over mass, torque over inertia about the axle."""
    late = driven.at(0.33)
    fine = da.simulate(
        driven.system,
        METHOD,
        driven.system.state(xi=[0.0, 0.0, 0.0]),
        step=0.01,
        steps=33,
        controls=ROWS[:1].repeat(33, 0),
    )
    np.testing.assert_allclose(late.xi, fine.xi[-1], atol=2e-4)
    assert late.xi[1] == pytest.approx(0.099, abs=2e-3)
    np.testing.assert_array_equal(driven.at(driven.t[7]).xi, driven.xi[7])


def test_the_books_of_a_controlled_run_balance(driven):
    """The work of the motors is the energy: the midpoint rule takes constant forces exactly."""
    assert np.abs(da.analysis.energy_balance(driven)).max() < 1e-3 * driven.energy()[-1]
    gained = driven.summary()
    assert gained.energy_title == "Energy balance" and gained.work == pytest.approx(driven.work()[-1])
    assert gained.work == pytest.approx(float(driven.energy()[-1]), rel=1e-3)
    power = 0.3 * (driven.xi[:, 0] + driven.xi[:, 1])
    np.testing.assert_allclose(driven.power(), power, atol=1e-13)
    assert gained.power == pytest.approx(float(np.abs(power).max()))


def test_the_reaction_knows_the_controls(driven):
    """Newton: the blade holds m (v2' + w v1) with v2 = centre w' of the centre of mass, at every state."""
    w, v1 = np.asarray(driven.xi[:, 0]), np.asarray(driven.xi[:, 1])
    rate = (0.3 - MASS * CENTRE * w * v1) / (INERTIA + MASS * CENTRE**2)
    np.testing.assert_allclose(driven.reaction()[:, 2], MASS * (CENTRE * rate + w * v1), atol=1e-12)


def test_controls_that_jump_belong_to_the_step_that_begins(cart):
    u = cart.controls_at_states()
    assert u.shape == (31, 1)
    np.testing.assert_array_equal(u[:-1], cart.controls)
    np.testing.assert_array_equal(u[-1], cart.controls[-1])
    thin = da.simulate(
        CART, METHOD, cart.at(0.0), step=0.1, steps=30, controls=np.asarray(cart.controls), save_every=4
    ).check()
    np.testing.assert_array_equal(thin.controls_at_states()[:, 0], np.append(np.sin(np.arange(0, 29, 4)), np.sin(29)))
    np.testing.assert_allclose(thin.at(1.27).xi, cart.at(1.27).xi, atol=1e-14)
    assert thin.summary().energy_title == "Energy change"


def test_a_continued_run_needs_its_own_controls(cart):
    with pytest.raises(da.InvalidInput, match="give controls for the new steps"):
        da.simulate(CART, METHOD, cart, step=0.1, steps=3)
    rows = np.sin(np.arange(30, 40))[:, None]
    onward = da.simulate(CART, METHOD, cart, step=0.1, steps=10, controls=rows)
    both = np.concatenate([cart.controls, rows])
    long = da.simulate(CART, METHOD, cart.at(0.0), step=0.1, steps=40, controls=both)
    np.testing.assert_array_equal(onward.xi[-1], long.xi[-1])
    np.testing.assert_allclose(onward.at(3.55).xi, long.at(3.55).xi, atol=1e-14)
    np.testing.assert_array_equal(onward.controls, rows)


def test_a_run_that_stops_keeps_the_controls_of_its_steps(cart):
    stop = da.Event(da.Quantity("time", (), 1.234), stop=True, name="late")
    run = da.simulate(CART, METHOD, cart.at(0.0), step=0.1, steps=30, controls=np.asarray(cart.controls), events=[stop])
    assert run.controls.shape == (13, 1) and float(run.t[-1]) == pytest.approx(1.234)
    np.testing.assert_allclose(run.at(1.2).xi, cart.at(1.2).xi, atol=1e-14)
    np.testing.assert_allclose(run.xi[-1], cart.at(1.234).xi, atol=1e-13)


def test_members_of_an_ensemble_share_the_controls(cart):
    states = [CART.state([0.0, 0.0], [0.5 * k, 0.2]) for k in (1, 2)]
    run = da.ensemble(CART, METHOD, states, step=0.1, steps=30, controls=np.asarray(cart.controls), save_every=3)
    assert run.controls_at_states().shape == (2, 11, 1)
    np.testing.assert_allclose(run.at(1.27).xi[0], cart.at(1.27).xi, atol=1e-14)
    assert run.reaction().shape == (2, 11, 2)


def test_a_controlled_run_under_jit_and_with_tangents(cart):
    rows = np.asarray(cart.controls)

    @jax.jit
    def end(speed):
        start = CART.state([0.0, 0.0], jnp.stack([speed, 0.2]))
        run = da.simulate(CART, METHOD, start, step=0.1, steps=30, controls=rows, backend="xla")
        return run.xi[-1], run.controls

    xi, held = end(0.5)
    np.testing.assert_allclose(xi, cart.xi[-1], atol=1e-14)
    np.testing.assert_array_equal(held, rows)
    curve = lambda s: (CART, CART.state([0.0, 0.0], jnp.stack([0.5 + s, 0.2 + 0.0 * s])), 0.1)
    lifted = da.simulate(CART, METHOD, cart.at(0.0), step=0.1, steps=30, controls=rows, tangents=curve)
    assert lifted.controlled and lifted.work()[-1] == pytest.approx(cart.work()[-1])


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_the_file_has_the_controls(driven, tmp_path, suffix):
    if suffix == ".zarr":
        pytest.importorskip("zarr")
    path = tmp_path / f"run{suffix}"
    driven.save(path)
    back = da.load(path)
    np.testing.assert_array_equal(back.controls, ROWS)
    assert [each.name for each in back.system.inputs] == ["turning torque", "drive force"]
    np.testing.assert_array_equal(back.at(0.33).xi, driven.at(0.33).xi)
    np.testing.assert_array_equal(back.work(), driven.work())
    data = driven.to_xarray()
    assert data["control"].dims == ("time", "input") and list(data["input"].values) == ["turning torque", "drive force"]
    assert list(data["input_unit"].values) == ["N m", "N"] and data["work"].attrs["units"] == "J"
    np.testing.assert_array_equal(data["control"][:-1], ROWS)


def test_a_file_of_before_says_that_its_controls_are_lost(cart):
    lost = replace(cart, controls=None)
    for ask in (lambda: lost.at(0.33), lost.reaction, lost.work, lost.power):
        with pytest.raises(da.InvalidInput, match="written before runs kept them"):
            ask()
    assert lost.summary().energy_title == "Energy change"
    np.testing.assert_array_equal(replace(lost, controls=cart.controls).work(), cart.work())


def test_figures_show_controls_power_and_work(cart):
    titles = [axes.get_title("left") for axes in cart.plot().axes]
    assert "Power and work" in titles and "Controls" in titles
    assert "energy that entered" in cart._repr_html_()


# -- the inputs of a system -----------------------------------------------------------------------------------------
READS = {
    "nothing": (lambda t, q, v, u, p: -v, 0),
    "the first entry": (lambda t, q, v, u, p: u[0] * q, 1),
    "the last of three": (lambda t, q, v, u, p: u[2] * q + u[0], 3),
    "by unpacking": (lambda t, q, v, u, p: (lambda a, b: a * q + b * v)(*u), 2),
    "by a matrix": (lambda t, q, v, u, p: p["B"] @ u, 4),
    "all as a covector": (lambda t, q, v, u, p: u - v, 3),
    "with a test for None": (lambda t, q, v, u, p: jnp.zeros(3) if u is None else u[1] * q, 2),
}


@pytest.mark.parametrize("case", READS)
def test_inputs_are_found_by_tracing_the_force(case):
    force, count = READS[case]
    system = da.System(da.Euclidean(3), _kinetic, parameters={"B": jnp.ones((3, 4))}, force=force)
    assert [each.name for each in system.inputs] == [f"u{k + 1}" for k in range(count)]
    start = system.state(xi=[1.0, 0.0, 0.0])
    with pytest.raises(da.InvalidInput, match="no inputs" if count == 0 else rf"allowed: \(2, {count}\)"):
        da.simulate(system, METHOD, start, step=0.1, steps=2, controls=np.zeros((2, 7)))


@pytest.mark.parametrize("case", sampled(["with a test for None", *(case for case in READS if "None" not in case)]))
def test_a_run_needs_no_controls(case):
    system = da.System(da.Euclidean(3), _kinetic, parameters={"B": jnp.ones((3, 4))}, force=READS[case][0])
    da.simulate(system, METHOD, system.state(xi=[1.0, 0.0, 0.0]), step=0.1, steps=2, backend="xla").check()


def test_a_force_whose_controls_have_names_takes_any_pytree():
    """u is a dictionary: its entries are not found by tracing, so a run must be given them."""
    system = da.System(da.Euclidean(2), _kinetic, force=lambda t, q, v, u, p: jnp.stack([u["left"], u["right"]]))
    assert system.inputs is None
    start = system.state(xi=[1.0, 0.0])
    rows = {"left": np.ones(4), "right": np.arange(4.0)}
    run = da.simulate(system, METHOD, start, step=0.1, steps=4, controls=rows).check()
    np.testing.assert_allclose(run.xi[-1], [1.4, 0.6], atol=1e-14)
    np.testing.assert_allclose(run.at(0.25).xi, [1.25, 0.2], atol=1e-14)
    assert np.abs(da.analysis.energy_balance(run)).max() < 1e-14
    with pytest.raises(da.InvalidInput, match="give controls to the run"):
        da.simulate(system, METHOD, start, step=0.1, steps=4)


REFUSED = {
    "of the wrong width": (
        r"allowed: \(5, 1\), a row for each step and a column for each input: motor",
        np.zeros((5, 2)),
    ),
    "with another number of rows": ("controls have 4 rows", np.zeros((4, 1))),
    "beyond a bound": (r"controls row 3: motor is 2.5; allowed: a number from -2 to 2", [[0.0]] * 3 + [[2.5], [0.0]]),
    "that are not finite": (r"controls row 1: motor is nan", [[0.0], [np.nan], [0.0], [0.0], [0.0]]),
    "by another name": ("unknown input 'push'. Allowed: motor", {"push": np.zeros(5)}),
    "as a function of the wrong width": (r"controls have shape \(5, 2\)", lambda t: jnp.stack([t, t])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_controls_are_refused(case):
    message, controls = REFUSED[case]
    with pytest.raises(da.InvalidInput, match=message):
        da.simulate(CART, METHOD, CART.state(xi=[0.1, 0.0]), step=0.1, steps=5, controls=controls)


def test_one_input_may_be_a_list_of_numbers(cart):
    again = da.simulate(CART, METHOD, cart.at(0.0), step=0.1, steps=30, controls=np.sin(np.arange(30)))
    np.testing.assert_array_equal(again.xi, cart.xi)


def test_a_steered_system_chooses_its_controls_itself():
    loop = da.with_feedback(CART, lambda t, q, v: -jnp.stack([q[0]]))
    with pytest.raises(da.InvalidInput, match="no inputs"):
        da.simulate(loop, METHOD, loop.state(xi=[0.1, 0.0]), step=0.1, steps=5, controls=np.zeros((5, 1)))


def test_a_feedback_without_inputs_to_set_is_refused():
    free, loop = da.System(da.Euclidean(2), _kinetic), da.with_feedback(CART, lambda t, q, v: -jnp.stack([q[0]]))
    for system, reason in ((free, "its force does not read u"), (loop, "a feedback sets them")):
        with pytest.raises(da.InvalidInput, match=f"a feedback sets inputs, but .* has none: {reason}"):
            da.with_feedback(system, lambda t, q, v: jnp.zeros(1))


def test_a_policy_at_fault_is_named():
    for policy, words in (
        (lambda t: jnp.zeros(1), r"called as policy\(t, g, xi\), but it takes \(t\)"),
        (lambda t, q, v: jnp.zeros(1) if v[0] > 0 else jnp.ones(1), r"^policy\(t, g, xi\) asks whether a number"),
    ):
        loop = da.with_feedback(CART, policy)
        with pytest.raises(da.InvalidInput, match=words):
            da.simulate(loop, METHOD, loop.state(xi=[0.1, 0.0]), step=0.1, steps=5)


def test_a_system_with_additions_shows_what_it_is():
    loop = da.with_feedback(da.with_friction(CART, viscous=0.1), lambda t, q, v: -jnp.stack([q[0]]))
    assert repr(loop) == f"<{repr(CART)[1:-1]}, with friction, with feedback>"


@pytest.mark.parametrize("inputs", [-1, 1.5, "motor", ["a", "a"], [3], True, {"a": 1}])
def test_inputs_are_numbers_names_or_inputs(inputs):
    with pytest.raises(da.InvalidInput, match=r"inputs is .*; allowed: their number"):
        da.System(da.Euclidean(2), _kinetic, force=_cart, inputs=inputs)


def test_an_input_has_bounds_in_order():
    with pytest.raises(da.InvalidInput, match="low < high"):
        da.Input("motor", "N", 2.0, -2.0)
    with pytest.raises(da.InvalidInput, match="a name and a unit"):
        da.Input(3)


def test_rows_that_do_not_fit_into_memory_are_refused():
    with pytest.raises(da.InvalidInput, match=r"a row for each of 1000000000000 steps, and these take .* GiB"):
        da.simulate(
            CART, METHOD, CART.state(xi=[0.1, 0.0]), step=0.1, steps=10**12, controls=lambda t: t, save_every=10**11
        )


@pytest.mark.parametrize("order", [np.asfortranarray, lambda rows: rows[::-1][::-1], lambda rows: rows.T.copy().T])
def test_the_order_of_controls_in_memory_does_not_matter(order):
    system = da.System(
        da.Euclidean(2), lambda t, g, xi, p: 0.5 * xi @ xi, force=lambda t, g, xi, u, p: jnp.stack([u[0], 2.0 * u[1]])
    )
    rows, start = np.arange(14.0).reshape(7, 2), system.state(np.zeros(2), np.zeros(2))
    given = order(rows)
    plain, other = (
        da.simulate(system, da.LagrangeDAlembert(), start, step=0.1, steps=7, controls=each) for each in (rows, given)
    )
    np.testing.assert_array_equal(other.g, plain.g)
    prepared = da.prepare(system, da.LagrangeDAlembert(), step=0.1, steps=7, controls=rows, save="final")
    np.testing.assert_array_equal(prepared(start, None, given).values.g, plain.g[-1])


# -- by name --------------------------------------------------------------------------------------------------------
@pytest.mark.heavy
def test_controls_by_name_are_the_columns_of_an_array():
    system = da.models.unicycle(MASS, INERTIA, CENTRE)
    start, (first, second) = system.state(), (each.name for each in system.inputs)
    rows = np.stack([np.sin(0.1 * (np.arange(9) + 0.5)), np.full(9, 0.2)], axis=1)
    names = {first: jnp.sin, second: 0.2}
    runs = [da.simulate(system, METHOD, start, step=0.1, steps=9, controls=each) for each in (rows, names)]
    np.testing.assert_allclose(runs[1].xi, runs[0].xi, rtol=0, atol=1e-15)
    assert runs[1].controls.shape == (9, 2)
    assert " " in second  # and _ may stand for the blank
    alone = da.simulate(system, METHOD, start, step=0.1, steps=9, controls={second.replace(" ", "_"): rows[:, 1]})
    np.testing.assert_array_equal(alone.controls, rows * [0, 1])  # what is not named does nothing
    many = da.ensemble(system, METHOD, [start, start], step=0.1, steps=9, controls=names)
    np.testing.assert_array_equal(many.xi[1], runs[1].xi)
    slope = jax.grad(lambda push: da.simulate(
        system, METHOD, start, step=0.1, steps=9, controls={second: push}).xi[-1, 1])(0.2)  # fmt: skip
    assert np.isfinite(slope) and slope != 0


def test_controls_by_name_that_cannot_be_are_refused():
    system = da.models.unicycle(MASS, INERTIA, CENTRE)
    first = system.inputs[0].name

    def run(controls, method=METHOD):
        return da.simulate(system, method, system.state(), step=0.1, steps=9, controls=controls)

    with pytest.raises(da.errors.UnknownName, match=first):
        run({"motor": 1.0})
    for odd in (np.ones(8), np.ones((9, 1)), lambda t: jnp.ones(2)):
        with pytest.raises(da.errors.InvalidInput, match=f"the control of {first} has shape .* allowed: a number"):
            run({first: odd})
    with pytest.raises(da.errors.InvalidInput, match="are not known before the run"):
        run({first: jnp.sin}, da.integrators.Adaptive())
    with pytest.raises(da.errors.InvalidInput, match="controls have 8 rows; allowed: one row a step, that is 9"):
        run(np.ones((8, 2)))


def test_a_prepared_run_takes_no_function_of_time_at_a_call():
    """It was taken with t0 = 0, whatever the time of the state."""
    system = da.models.unicycle(MASS, INERTIA, CENTRE)
    run = da.prepare(system, METHOD, step=0.1, steps=9, controls=np.ones((9, 2)))
    for given in (lambda t: jnp.stack([t, t]), {system.inputs[0].name: jnp.sin}):
        with pytest.raises(da.errors.InvalidInput, match="needs a t0"):
            run(system.state(), controls=given)


@pytest.mark.parametrize("kind", ["rows", "columns", "jax", "names", "numbers", "integers"])
def test_a_call_that_is_made_again_reads_its_controls_as_the_first_did(kind):
    system = da.models.unicycle(MASS, INERTIA, CENTRE)
    start, names = system.state(xi=[0.0, 0.0, 0.0]), [each.name for each in system.inputs]
    rows = np.random.default_rng(3).integers(-3, 4, (10, 2)).astype(float)
    rows[:, 1] = 0.25 if kind == "numbers" else rows[:, 1]
    given = {
        "rows": rows.copy(),
        "columns": np.asfortranarray(rows),
        "jax": jnp.asarray(rows),
        "names": dict(zip(names, rows.T, strict=True)),
        "numbers": {names[0]: rows[:, 0], names[1]: 0.25},
        "integers": rows.astype(int),
    }[kind]
    long_way = da.simulate(system, METHOD, start, step=0.1, steps=10, controls=rows, backend="xla")
    prepared = da.prepare(system, METHOD, step=0.1, steps=10)
    da.simulate(system, METHOD, start, step=0.1, steps=10, controls=2.0 * rows)  # the call is known from here on
    for run in [*(da.simulate(system, METHOD, start, step=0.1, steps=10, controls=given) for _ in range(2)),
                *(prepared(start, None, given) for _ in range(2))]:  # fmt: skip
        np.testing.assert_array_equal(run.controls, rows)
        np.testing.assert_allclose(run.xi, long_way.xi, rtol=0, atol=1e-14)
    if kind == "rows":
        given[:] = 0.0
        np.testing.assert_array_equal(run.controls, rows)  # a run keeps what it was given


def test_a_call_that_is_made_again_refuses_what_the_first_would():
    start = CART.state([0.0, 0.0], [0.5, 0.2])

    def drive(controls):
        return da.simulate(CART, METHOD, start, step=0.1, steps=4, controls=controls)

    for good in (np.ones(4), np.ones((4, 1)), {"motor": 1.0}):
        drive(good)
    bad = {
        "row 2: motor is nan": np.array([0.0, 0.0, np.nan, 0.0]),
        "row 1: motor is 3": np.array([[0.0], [3.0], [0.0], [0.0]]),
        "row 0: motor is inf": {"motor": np.inf},
        "one row a step": np.ones(3),
        "unknown input 'moter'": {"moter": 1.0},
        "real numbers": np.ones(4) * 1j,
    }
    for words, controls in bad.items():
        with pytest.raises(da.InvalidInput, match=words):
            drive(controls)
    assert drive(None).controls is None
