"""Short calls go by plans and chains: to the bits of the long way, with its checks."""

from __future__ import annotations

import dataclasses
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import FULL, more

import dalembert as da
from dalembert.errors import IndefiniteMetric
from dalembert.integrators import METHODS
from dalembert.io.config import build_state
from dalembert.kernels import evaluate, plans
from dalembert.mechanics import judge_start
from dalembert.simulation import driver, prepared

MODELS = da.models.MODELS
QUICK = ("suslov", "chaplygin-sleigh", "nonholonomic-particle", "rigid-body")


def over_models():
    return [*QUICK, *(more(name) for name in MODELS if name not in QUICK)]


def case(name):
    model = MODELS[name]
    system = model.make(model.example)
    options = {key: value for key, value in model.method.items() if key != "name"}
    return system, METHODS[model.method["name"]].make(options), build_state(system, model.initial, {})


def same_bits(first, second):
    (a, one), (b, other) = (jax.tree.flatten(tree) for tree in (first, second))
    return one == other and all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def long_way(*arguments, **options):
    """The same run as one that reports its progress, which no chain does."""
    return da.simulate(*arguments, **options, progress=lambda done, total: None)


@pytest.mark.parametrize("name", over_models())
def test_a_short_run_has_the_bits_of_the_long_way(name, monkeypatch):
    system, method, state = case(name)
    options = {"step": MODELS[name].step, "steps": 7, "save_every": 3, "monitor": True}
    slow = long_way(system, method, state, **options)
    if slow.backend == "llvm":
        monkeypatch.setattr(driver, "run_steps", None)  # the long way would fail
    fast = da.simulate(system, method, state, **options)
    assert fast.records.steps.tolist() == [0, 3, 6, 7]
    assert same_bits((fast.records, fast.final), (slow.records, slow.final))
    assert (fast.backend, fast.status) == (slow.backend, slow.status)
    if slow.backend == "llvm" and not method.must_ask(system):
        monkeypatch.setattr(driver, "make_schedule", None)  # a call that is known is not checked again
        again = da.simulate(system, method, state, **options)
        assert same_bits((again.records, again.final), (slow.records, slow.final))
    energies = jax.jit(jax.vmap(system.energy))(*fast.records.state[:3])
    np.testing.assert_allclose(fast.energy(), energies, rtol=1e-13, atol=1e-13)


def test_a_run_that_ends_well_has_all_fields_of_one_that_is_made_field_by_field():
    system = da.models.chaplygin_sleigh()
    run = partial(da.simulate, system, da.LagrangeDAlembert(), system.state(xi=[0.5, -1.0, 0.0]), step=0.1, steps=4)
    slow, fields = run(progress=lambda done, total: None), {each.name for each in dataclasses.fields(da.Trajectory)}
    for made in (run(), run()):
        assert {*vars(made)} == fields - {"final"} | {"_finish"}
        assert all(same_bits(getattr(made, name), getattr(slow, name)) for name in ("records", "final", "step"))
        plain = ("backend", "note", "interrupted", "batched", "controlled", "tangents", "events", "controls", "every")
        assert [getattr(made, name) for name in plain] == [getattr(slow, name) for name in plain]


def test_a_call_that_is_known_reads_numbers_again_and_refuses_what_it_refused():
    inertia = np.diag([2.0, 1.0, 1.0])
    kinetic = lambda t, g, xi, p: 0.5 * xi @ p["inertia"] @ xi
    system = da.System(da.SE2(), kinetic, lambda t, g, p: jnp.array([[0.0, 0.3, 1.0]]), parameters={"inertia": inertia})
    state, method = system.state(xi=[0.5, 1.0, -0.3]), da.LagrangeDAlembert()
    run = partial(da.simulate, system, method, step=0.05, steps=5)
    before = run(state)
    system.parameters["inertia"][0, 0] = 7.0
    for start in (state, system.state(xi=[0.4, 1.0, -0.3])):
        assert same_bits(run(start).records, long_way(system, method, start, step=0.05, steps=5).records)
    assert not same_bits(run(state).records, before.records)
    changes = [("t0", {"t": np.array(1e300)}), ("t0", {"t": np.array(np.nan)}), ("shape", {"xi": np.zeros(4)})]
    changes += [("momentum", {"momentum": np.full(3, np.nan)}), ("constraint", {"xi": np.ones(3)})]
    for words, change in changes:
        with pytest.raises(da.InvalidInput, match=words):
            run(state._replace(**change))
    for option in ({"steps": 5.0}, {"steps": True}, {"save_every": True}, {"backend": "gpu"}):
        with pytest.raises(da.InvalidInput, match=next(iter(option))):
            run(state, **option)
    others = da.models.chaplygin_sleigh(), method, da.models.suslov(FULL).state()
    with pytest.raises(da.InvalidInput, match="SO"):
        da.simulate(*others, step=0.05, steps=5)


@pytest.mark.parametrize("system", ["suslov", [], 3])
def test_what_is_no_system_is_refused_after_a_known_call_too(system):
    given, method, state = case("suslov")
    for _ in range(3):
        da.simulate(given, method, state, step=0.01, steps=10)
    with pytest.raises(da.InvalidInput, match="system"):
        da.simulate(system, method, state, step=0.01, steps=10)


@pytest.mark.parametrize("lanes", [None, 3])
def test_a_run_whose_steps_are_no_multiple_of_those_between_records_is_native_inside_jit(lanes):
    system, scales = da.models.chaplygin_sleigh(), jnp.linspace(1.0, 1.2, lanes or 1)
    run = da.simulate if lanes is None else da.ensemble

    def loss(xi, backend="auto"):
        one = system.state(xi=xi)
        state = one if lanes is None else jax.tree.map(lambda leaf: jnp.stack([leaf] * lanes), one)
        if lanes is not None:
            state = state._replace(xi=scales[:, None] * state.xi, momentum=scales[:, None] * state.momentum)
        made = run(system, da.LagrangeDAlembert(), state, step=0.05, steps=11, save_every=4, backend=backend)
        assert made.t.shape[-1] == 4
        return jnp.sum(jnp.sin(made.xi)) + jnp.sum(made.final.carry.t)

    xi, slope = jnp.array([0.5, -1.0, 0.0]), jax.jit(jax.grad(loss))
    if lanes is None:
        assert "callback" not in jax.jit(loss).lower(xi).as_text() + slope.lower(xi).as_text()
    for found in (slope(xi), jax.grad(loss)(xi)):
        np.testing.assert_allclose(found, jax.grad(lambda x: loss(x, "xla"))(xi), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(jax.jit(loss)(xi), loss(xi, "xla"), rtol=1e-12)


def test_a_run_from_a_state_that_is_made_inside_finds_the_momentum_itself_unless_another_is_given():
    """XLA needs longer for the momentum of a vehicle than native code for ten steps and their adjoints."""
    system, xi = da.models.vertical_disk(radius=0.7), jnp.array([0.8, 0.7, 0.0, 1.0])

    def end(xi, factor=None):
        state = system.state(xi=xi)
        if factor is not None:
            state = state._replace(momentum=factor * state.momentum)
        return jnp.sum(jnp.sin(da.simulate(system, da.LagrangeDAlembert(), state, step=0.1, steps=7).xi))

    def inputs(*given):
        return [len(each.invars) for each in jax.make_jaxpr(end)(*given).eqns if each.primitive.name == "run_whole"]

    assert inputs(xi)[0] == inputs(xi, 1.0)[0] - 1
    for transformed in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        np.testing.assert_allclose(transformed(end)(xi), transformed(end)(xi, 1.0), rtol=1e-12, atol=1e-13)
    more = jax.jit(end)(xi, 1.1)
    assert abs(more - end(xi, 1.1)) < 1e-12 and abs(more - end(xi)) > 1e-3


def test_a_run_that_fails_after_its_last_whole_block_has_no_derivative():
    """A particle falls into the centre after some steps: what it saved before has no derivatives then either."""
    fall = lambda t, q, v, p: 0.5 * v @ v - p * jnp.log(q[0] - 1.0)

    def run(p, steps, every):
        system = da.System(da.Euclidean(2), fall, parameters=p)
        state = da.State(jnp.zeros(()), jnp.array([1.5, 0.0]), *[jnp.array([-1.0, 0.5])] * 3)
        return da.simulate(system, da.RungeKutta(), state, step=0.1, steps=steps, save_every=every)

    good = run(1.0, 20, 1).failed_at
    assert good >= 2
    for steps in (good, good + 1):
        slope = jax.grad(lambda p, steps=steps: jnp.sum(run(p, steps, good).g[:2, 0]))
        for found in (slope(1.0), jax.jit(slope)(1.0)):
            assert np.isnan(found) == (steps > good)


def test_a_start_and_controls_in_any_order_of_memory():
    system, method = driven(), da.LagrangeDAlembert()
    state, rows = system.state(xi=[0.5, 1.0, -0.15]), 0.1 * np.arange(8.0).reshape(4, 2)
    turned = state._replace(g=np.asfortranarray(state.g), xi=np.repeat(state.xi, 2)[::2])
    for u in (np.asfortranarray(rows), np.repeat(rows, 2, 1)[:, ::2]):
        run = partial(da.simulate, system, method, step=0.05, steps=4, controls=u)
        assert same_bits(
            run(turned).records, long_way(system, method, state, step=0.05, steps=4, controls=rows).records
        )


def test_a_first_run_of_many_quick_steps_is_short_too(monkeypatch):
    """Nobody knows the pace of the first run; a guess would send it the long way, and all like it."""
    system, method = da.models.suslov([4.0, 3.0, 5.0]), da.EulerPoincareSuslov()
    state = system.state(xi=[0.9, 0.5, 0.0])
    plans._plans.clear()
    options = {"step": 0.01, "steps": 5 * plans.SHORT_STEPS, "save_every": 8}
    slow = long_way(system, method, state, **options)
    monkeypatch.setattr(driver, "run_steps", None)  # the long way would fail
    fast = da.simulate(system, method, state, **options)
    assert same_bits((fast.records, fast.final), (slow.records, slow.final))


def test_controls_and_a_run_that_goes_on(monkeypatch):
    system = driven()
    state, rows = system.state(xi=[0.5, 1.0, -0.15]), np.random.default_rng(1).normal(size=(11, 2))
    slow = long_way(system, da.LagrangeDAlembert(), state, step=0.05, steps=11, save_every=4, controls=rows)
    fast = da.simulate(system, da.LagrangeDAlembert(), state, step=0.05, steps=11, save_every=4, controls=rows)
    assert same_bits((fast.records, fast.final, fast.controls), (slow.records, slow.final, slow.controls))
    half = da.simulate(system, da.LagrangeDAlembert(), state, step=0.05, steps=5, controls=rows[:5])
    rest = da.simulate(system, da.LagrangeDAlembert(), half, step=0.05, steps=6, controls=rows[5:])
    assert same_bits(rest.final, fast.final)


def test_a_failure_is_data_and_keeps_the_good_part():
    system = da.models.suslov(FULL)
    state = system.state(xi=[40.0, -30.0, 0.0])
    options = {"step": 0.5, "steps": 30}
    fast = da.simulate(system, da.EulerPoincareSuslov(), state, **options)
    slow = long_way(system, da.EulerPoincareSuslov(), state, **options)
    assert fast.status == slow.status == "failed"
    assert (fast.failed_at, fast.reason, len(fast.t)) == (slow.failed_at, slow.reason, len(slow.t))
    assert same_bits((fast.records, fast.final), (slow.records, slow.final))


def many_starts(system, count=21):
    scales = np.linspace(0.5, 1.5, count)
    return [system.state(xi=scale * np.array([0.5, 1.0, -0.15])) for scale in scales]


@pytest.mark.parametrize("given", ["states", "systems", "shared controls", "own controls"])
def test_a_short_ensemble_has_the_bits_of_the_long_way(given, monkeypatch):
    system, rng = driven(), np.random.default_rng(5)
    states, systems = many_starts(system), system
    options = {"step": 0.05, "steps": 7, "save_every": 3}
    if given == "systems":
        systems = [dataclasses.replace(system, parameters={"J": k, "m": 1.0, "a": 0.3}) for k in 1.0 + np.arange(21)]
    elif given != "states":
        options["controls"] = rng.normal(size=(7, 2) if given == "shared controls" else (21, 7, 2))
    method = da.LagrangeDAlembert()
    slow = da.ensemble(systems, method, states, **options, progress=lambda done, total: None)
    monkeypatch.setattr(driver, "run_steps", None)  # the long way would fail
    for _ in range(2):  # the first one learns how long a step takes
        fast = da.ensemble(systems, method, states, **options)
        assert fast.backend == slow.backend == "llvm"
        assert same_bits((fast.records, fast.final, fast.controls), (slow.records, slow.final, slow.controls))
        assert [leaf.dtype for leaf in jax.tree.leaves(fast.final)] == [
            leaf.dtype for leaf in jax.tree.leaves(slow.final)
        ]


def test_a_short_ensemble_has_failures_as_data_and_refuses_what_the_long_way_refuses():
    system = da.models.suslov(FULL)
    states = [system.state(xi=[scale, -0.7 * scale, 0.0]) for scale in (0.1, 40.0, 1.0, 60.0, 0.2)]
    options = {"step": 0.5, "steps": 30}
    fast = da.ensemble(system, da.EulerPoincareSuslov(), states, **options)
    slow = da.ensemble(system, da.EulerPoincareSuslov(), states, **options, progress=lambda done, total: None)
    assert same_bits((fast.records, fast.final), (slow.records, slow.final))
    assert sorted(set(fast.status)) == ["failed", "ok"]
    wrong = [*states[:3], states[3]._replace(xi=np.array([1.0, 1.0, 1.0]))]
    with pytest.raises(da.InvalidInput, match=r"member 3: .*off the constraint"):
        da.ensemble(system, da.EulerPoincareSuslov(), wrong, **options)


def spread_starts(system, count):
    scales = jnp.linspace(0.5, 1.5, count)
    return jax.vmap(lambda scale: system.state(xi=scale * jnp.array([0.5, 1.0, -0.15])))(scales)


def test_lanes_whose_rows_fill_pages_and_tiles_have_the_bits_of_single_runs(monkeypatch):
    tile = 512
    monkeypatch.setattr(plans, "TILE_LANES", (tile, tile))
    system, method, count = driven(), da.LagrangeDAlembert(), 2 * tile + 32
    starts, u = spread_starts(system, count), np.random.default_rng(7).normal(size=(count, 3, 2))
    many = da.ensemble(system, method, starts, step=0.05, steps=3, controls=u)
    assert many.backend == "llvm"
    for k in (0, tile - 1, tile, count - 1):
        start = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], starts)
        one = da.simulate(system, method, start, step=0.05, steps=3, controls=u[k])
        assert same_bits(one.records, jax.tree.map(lambda leaf, k=k: leaf[k], many.records))
        assert same_bits(one.final, jax.tree.map(lambda leaf, k=k: leaf[k], many.final))


@pytest.mark.heavy
def test_gradients_of_lanes_whose_rows_fill_pages():
    system, method, count = driven(), da.LagrangeDAlembert(), 544
    starts, u = spread_starts(system, count), np.random.default_rng(7).normal(size=(count, 3, 2))

    def end(u, start, run):
        made = run(system, method, start, step=0.05, steps=3, controls=u)
        return jnp.sum(made.g[..., -1, :, :] ** 2) + jnp.sum(made.xi[..., 1])

    found = jax.grad(end)(u, starts, da.ensemble)
    for k in (0, count - 1):
        start = jax.tree.map(lambda leaf, k=k: leaf[k], starts)
        assert np.allclose(found[k], jax.grad(end)(u[k], start, da.simulate), rtol=1e-13, atol=1e-14)


def test_members_that_are_changed_in_place_are_judged_again():
    system, method = driven(), da.LagrangeDAlembert()
    states = jax.tree.map(lambda leaf: np.array(leaf), spread_starts(system, 4))
    options = {"step": 0.05, "steps": 2, "progress": lambda done, total: None}
    for _ in range(2):
        da.ensemble(system, method, states, **options)
    states.xi[2, 2] = 1.0
    with pytest.raises(da.InvalidInput, match=r"member 2: .*off the constraint"):
        da.ensemble(system, method, states, **options)


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_an_ensemble_that_is_known_reads_numbers_again_and_refuses_what_it_refused(kind, monkeypatch):
    system, method, rng = driven(), da.LagrangeDAlembert(), np.random.default_rng(3)
    other = dataclasses.replace(system, parameters={"J": 2.0, "m": 1.5, "a": 0.3})
    states = jax.tree.map(kind, spread_starts(system, 5))
    faster = jax.tree.map(kind, spread_starts(system, 5)._replace(xi=states.xi * 2.0, momentum=states.momentum * 2.0))
    cases = [(system, states, None), (system, faster, None), (other, states, None), (system, faster, None)]
    cases += [(made, states, kind(rng.normal(size=shape))) for made in (system, other) for shape in ((4, 2), (5, 4, 2))]
    options = {"step": 0.05, "steps": 4}

    def run(made, start, controls, **more):
        return da.ensemble(made, method, start, controls=controls, **options, **more)

    slow = [run(*each, progress=lambda done, total: None) for each in cases]
    for _ in range(2):
        for each, wanted in zip(cases, slow, strict=True):
            for _ in range(2):
                made = run(*each)
                assert same_bits((made.records, made.final, made.controls),
                                 (wanted.records, wanted.final, wanted.controls))  # fmt: skip
                assert made.system is each[0]
    with pytest.raises(da.InvalidInput, match=r"member 2: .*off the constraint"):
        run(system, states._replace(xi=states.xi + np.where(np.arange(5)[:, None] == 2, [0.0, 0.0, 1.0], 0.0)), None)
    with pytest.raises(da.InvalidInput, match="nan"):
        run(system, states, kind(np.full((4, 2), np.nan)))
    with pytest.raises(da.InvalidInput, match="controls have shape"):
        run(system, states, kind(np.zeros((4, 3))))
    pair = [run([system, other], jax.tree.map(lambda leaf: leaf[0], states), None) for _ in range(2)]
    assert same_bits(pair[0].records, pair[1].records) and len(pair[0].xi) == 2
    run(system, states, None)
    assert len(run([system] * 5, states, None).xi) == 5  # systems in a list, after a known call with one
    with pytest.raises(da.InvalidInput, match="system"):
        run("sleigh", states, None)
    for given in ((system, states, cases[4][2]), (system, states, None)):
        run(*given)
        monkeypatch.setattr(driver, "make_schedule", None)  # nothing is checked a second time
        run(*given)
        monkeypatch.undo()


def test_an_ensemble_that_takes_longer_than_a_chunk_goes_the_long_way(monkeypatch):
    system = driven()
    options = {"step": 0.05, "steps": 4}
    wanted = da.ensemble(system, da.LagrangeDAlembert(), many_starts(system), **options)
    monkeypatch.setattr(plans, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(plans, "FASTEST_STEP", 0.0)
    taken, run_steps = [], driver.run_steps

    def counted(*given, **named):
        taken.append(1)
        return run_steps(*given, **named)

    monkeypatch.setattr(driver, "run_steps", counted)
    made = da.ensemble(system, da.LagrangeDAlembert(), many_starts(system), **options)
    assert taken
    assert same_bits((made.records, made.final), (wanted.records, wanted.final))


def test_members_share_operations_and_keep_the_bits_of_single_runs(monkeypatch):
    """Products that judge or record needs too: in a program that is lowered as a whole they would not be fused."""

    def lagrangian(t, q, v, p):
        mixed = p["l"] * q[1] * q[0] * v[0] * v[1]
        return 0.5 * (p["m"] * q[0] * v[0] ** 2 + mixed + p["m"] * q[2] * v[1] ** 2 + v[2] ** 2) + jnp.cos(q[0])

    def constraint(t, q, p):
        return jnp.array([[jnp.sin(q[1]), 0.3 * q[2], 1.0]])

    system = da.System(da.Euclidean(3), lagrangian, constraint, parameters={"m": 1.3, "l": 0.37})
    rng, options = np.random.default_rng(1), {"step": 0.01, "steps": 2}
    q, v = 1.0 + rng.random((128, 3)), rng.random((128, 3))
    v[:, 2] = -(np.sin(q[:, 1]) * v[:, 0] + 0.3 * q[:, 2] * v[:, 1])
    states = jax.vmap(system.state)(q, v)
    monkeypatch.setattr(driver, "run_steps", None)  # the long way would fail
    made = da.ensemble(system, da.LagrangeDAlembert(), states, **options)
    for k in range(128):
        state = jax.tree.map(lambda leaf: np.asarray(leaf[k]), states)
        one = da.simulate(system, da.LagrangeDAlembert(), state, **options)
        assert same_bits(one.records, jax.tree.map(lambda leaf: leaf[k], made.records)), k


def quadratic(metric, rows, p=()):
    """A system on R^n with a constant metric and constant rows of the constraint."""
    metric, rows = np.asarray(metric, float), np.asarray(rows, float)
    n = len(metric)
    return da.System(
        da.Euclidean(n), lambda t, q, v, p: 0.5 * v @ p["M"] @ v, lambda t, q, p: p["A"],
        parameters={"M": metric.copy(), "A": rows.copy()},
    )  # fmt: skip


def is_refused(system, point):
    with warnings.catch_warnings():
        warnings.simplefilter("error", IndefiniteMetric)
        try:
            system._require_admissible(*point)
        except (da.InvalidInput, IndefiniteMetric):
            return True
    return False


def test_what_is_clearly_admissible_passes_the_exact_check():
    """Metrics and rows from regular to singular, velocities on D and off: clear is never more than the exact check."""
    rng, seen = np.random.default_rng(7), {True: 0, False: 0}
    for trial in range(300):
        basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
        eigenvalues = np.array(
            [1.0, 10.0 ** rng.uniform(-3, 3), 10.0 ** rng.uniform(-16, 1), rng.choice([1.0, -1e-9, 0.0])]
        )
        rows = rng.normal(size=(2, 4)) * [[1.0], [10.0 ** rng.uniform(-18, 1)]]
        if trial % 3 == 0:
            rows[1] = rows[0] * 2.0 + 10.0 ** rng.uniform(-18, 0) * rows[1]
        system = quadratic((basis * eigenvalues) @ basis.T, rows)
        v = np.linalg.svd(rows)[2][2:].T @ rng.normal(size=2)
        point = np.zeros(()), np.zeros(4), v + 10.0 ** rng.uniform(-18, -6) * rng.normal(size=4)
        clear = bool(evaluate(judge_start, system, point)[0])
        seen[clear] += 1
        assert not (clear and is_refused(system, point))
    assert min(seen.values()) > 50


@pytest.mark.parametrize("written", ["one unit", "two units"])
def test_what_is_clearly_admissible_where_rows_have_units_passes_the_exact_check(written):
    """Rows that are solved for some velocities, all of them or one: light and heavy ones, free and bound."""
    many = written == "two units"

    def constraint(t, q, p):
        second = jnp.array([1.0, 0.0]) if many else p["A"][1, 2:]
        return jnp.stack([jnp.append(p["A"][0, :2], jnp.array([0.0, -1.0])), jnp.append(p["A"][1, :2], second)])

    rng, seen = np.random.default_rng(5), {True: 0, False: 0}
    for _ in range(300):
        rows = rng.normal(size=(2, 4)) * 10.0 ** rng.uniform([[-3.0], [-9.0]], [[3.0], [9.0]])
        rows[0, 2:] = 0.0, -1.0
        if many:
            rows[1, 2:] = 1.0, 0.0
        units = 10.0 ** rng.uniform(-6, 2, size=4)
        basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
        values = np.array([1.0, 1.0, 10.0 ** rng.uniform(-16, 1), rng.choice([1.0, -1e-9, 0.0, -1.0])])
        metric = units[:, None] * ((basis * values) @ basis.T) * units
        system = dataclasses.replace(quadratic(metric, rows), constraint=constraint)
        v = np.linalg.svd(rows)[2][2:].T @ rng.normal(size=2)
        point = np.zeros(()), np.zeros(4), v + 10.0 ** rng.uniform(-18, -6) * rng.normal(size=4)
        clear = bool(evaluate(judge_start, system, point)[0])
        seen[clear] += 1
        assert not (clear and is_refused(system, point))
    assert min(seen.values()) > 40


def test_light_masses_and_masses_of_bound_velocities_alone_are_clearly_admissible():
    """A velocity without a mass of its own that the constraint ties to one that has; masses of 1e-9 beside 1."""
    tied = quadratic(np.diag([1.0, 0.0, 0.0]), [[1.0, -2.0, 0.0], [0.0, 1.0, 1e3]])
    light = quadratic(np.diag([1.0, 1e-9, 1e-4]), [[1.0, 1e-3, 0.5]])
    for system in (tied, light):
        v = np.linalg.svd(np.asarray(system.parameters["A"]))[2][-1]
        assert evaluate(judge_start, system, (np.zeros(()), np.zeros(3), v))[0]


@pytest.mark.parametrize("parameters", [{"M": np.nan}, {"M": np.inf}, {"A": np.nan}])
def test_numbers_that_are_not_finite_are_refused_after_good_ones(parameters):
    """The plan of the good system is there, and the same plan serves the bad one."""
    metric, rows = np.eye(3), np.array([[1.0, 0.0, 0.5]])
    good, v = quadratic(metric, rows), [0.0, 1.0, 0.0]
    state = good.state(xi=v)
    da.simulate(good, da.LagrangeDAlembert(), state, step=0.1, steps=2)
    bad = quadratic(metric, rows)
    for name, value in parameters.items():
        bad.parameters[name][0, 0] = value
    with pytest.raises(da.InvalidInput, match="finite"):
        bad.state(xi=v)
    with pytest.raises(da.InvalidInput, match="finite"):
        da.simulate(bad, da.LagrangeDAlembert(), state, step=0.1, steps=2)
    off = state._replace(xi=np.array([1.0, 1.0, 0.0]))
    with pytest.raises(da.InvalidInput, match="off the constraint"):
        da.simulate(good, da.LagrangeDAlembert(), off, step=0.1, steps=2)


def test_states_cannot_be_changed_in_place():
    state = da.models.suslov(FULL).state(xi=[0.9, -0.6, 0.0])
    for leaf in jax.tree.leaves(state):
        assert isinstance(leaf, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            leaf[...] = 0.0


def driven():
    """A sleigh with two controls and parameters of several types."""
    return da.System(
        da.SE2(), lambda t, g, xi, p: 0.5 * (p["J"] * xi[0] ** 2 + p["m"] * xi[1:] @ xi[1:]),
        lambda t, g, p: jnp.array([[p["a"], 0.0, 1.0]]), force=lambda t, g, xi, u, p: jnp.array([u[0], u[1], 0.0]),
        parameters={"J": 2.0, "m": 1, "a": jnp.array(0.3)}, inputs=2,
    )  # fmt: skip


@pytest.mark.heavy
def test_a_prepared_run_takes_other_parameters_and_controls():
    system, rng = driven(), np.random.default_rng(3)
    state, rows = system.state(xi=[0.5, 1.0, -0.15]), rng.normal(size=(6, 2))
    run = da.prepare(system, da.LagrangeDAlembert(), step=0.05, steps=6, save="final", controls=rows)
    alone = da.prepare(system, da.LagrangeDAlembert(), step=0.05, steps=6)
    for parameters in (None, {"J": 3.0, "m": 2, "a": 0.3}, {"J": 3, "m": 2.5, "a": np.array(0.3)}):  # other types too
        for controls in (None, rng.normal(size=(6, 2))):
            own = system if parameters is None else dataclasses.replace(system, parameters=parameters)
            wanted = da.simulate(
                own, da.LagrangeDAlembert(), state, step=0.05, steps=6, controls=rows if controls is None else controls
            )
            assert same_bits(run(state, parameters, controls).values, wanted.last)
            if controls is not None:
                assert same_bits(alone(state, parameters, controls).records, wanted.records)
    body = da.models.suslov(FULL)
    other, start = da.models.suslov(2.0 * np.array(FULL)), body.state(xi=[0.9, -0.6, 0.0])
    turned = da.prepare(body, da.EulerPoincareSuslov(), step=0.05, steps=4, save="final")
    assert same_bits(
        turned(start, other).values, da.simulate(other, da.EulerPoincareSuslov(), start, step=0.05, steps=4).last
    )


@pytest.mark.heavy
def test_a_long_prepared_run_goes_the_long_way():
    system = da.models.suslov(FULL)
    state = system.state(xi=[0.9, -0.6, 0.0])
    for save in ("final", ("xi",)):
        run = da.prepare(system, da.EulerPoincareSuslov(), step=0.01, steps=5000, save_every=1000, save=save)
        wanted = da.simulate(system, da.EulerPoincareSuslov(), state, step=0.01, steps=5000, save_every=1000)
        assert same_bits(run(state).values, wanted.last if save == "final" else {"xi": wanted.xi})
    by_xla = da.prepare(system, da.EulerPoincareSuslov(), step=0.01, steps=3, save="final", backend="xla")
    wanted = da.simulate(system, da.EulerPoincareSuslov(), state, step=0.01, steps=3, backend="xla")
    assert same_bits(by_xla(state).values, wanted.last)


def test_a_prepared_run_that_fails_says_so():
    system = da.models.suslov(FULL)
    state, good = system.state(xi=[40.0, -30.0, 0.0]), system.state(xi=[0.9, -0.6, 0.0])
    wanted = da.simulate(system, da.EulerPoincareSuslov(), state, step=0.5, steps=30)
    for save in ("final", ("xi",), lambda system, state: state.xi):
        run = da.prepare(system, da.EulerPoincareSuslov(), step=0.5, steps=30, save=save)
        assert run(good).status == "ok"
        made = run(state)
        assert (made.status, made.steps) == ("failed", wanted.failed_at)
        assert made.reason
        values = made.values if callable(save) else made.values["xi"] if save != "final" else made.values.xi[None]
        assert same_bits(np.asarray(values), wanted.xi[-1:] if save == "final" else wanted.xi)
    lost = da.prepare(
        system, da.EulerPoincareSuslov(), step=0.01, steps=5, save=lambda system, state: 1.0 / (state.t < 0.025)
    )
    made = lost(good)
    assert (made.status, made.steps, made.values.tolist()) == ("failed", 2, [1.0, 1.0, 1.0])


def test_a_prepared_run_refuses_what_simulate_refuses():
    system = driven()
    state, method = system.state(xi=[0.5, 1.0, -0.15]), da.LagrangeDAlembert()
    run = da.prepare(system, method, step=0.05, steps=4, save="final")
    for _ in range(2):
        run(state)
        with pytest.raises(da.InvalidInput, match="off the constraint"):
            run(state._replace(xi=np.array([0.5, 1.0, 0.0])))
        with pytest.raises(da.InvalidInput, match="finite"):
            run(state, {"J": np.nan, "m": 1, "a": 0.3})
        with pytest.raises(da.InvalidInput, match="does not change by a step"):
            run(state._replace(t=np.array(1e30)))
        with pytest.raises(da.InvalidInput, match="momentum of the state"):
            run(state._replace(momentum=np.full(3, np.nan)))
        with pytest.raises(da.InvalidInput, match="state is 3; allowed: a State"):
            run(3)
        with pytest.raises(
            da.InvalidInput, match=r"parameters are .*\(2,\).*; allowed: those of the prepared system, .*\(\)"
        ):
            run(state, {"J": np.ones(2), "m": 1, "a": 0.3})
        with pytest.raises(da.InvalidInput, match="allowed: those of the prepared system"):
            run(state, {"J": 1.0})
        with pytest.raises(da.InvalidInput, match="one row a step, that is 4"):
            run(state, controls=np.zeros((3, 2)))
        with pytest.raises(da.InvalidInput, match="the state is one of SO"):
            run(da.models.suslov(FULL).state(xi=[0.9, -0.6, 0.0]))
    for save in ("speed", ("xi", "speed"), (), 3):
        with pytest.raises(da.InvalidInput, match=r'save is .*; allowed: "all", "final", names'):
            da.prepare(system, method, step=0.05, steps=4, save=save)
    with pytest.raises(da.InvalidInput, match="one row a step: a function of time needs a t0"):
        da.prepare(system, method, step=0.05, steps=4, controls=lambda t: np.zeros(2))
    with pytest.raises(da.InvalidInput, match="steps is 0"):
        da.prepare(system, method, step=0.05, steps=0)


def counted_finds(run, monkeypatch):
    """A list that grows when a call of this prepared run is looked at as if none had been made before."""
    looked, find = [], prepared.PreparedRun._find
    monkeypatch.setattr(prepared.PreparedRun, "_find", lambda *given: looked.append(1) or find(*given))
    return looked


@pytest.mark.parametrize("save", ["all", "final", ("g", "xi"), lambda system, state: 2.0 * state.xi])
def test_a_prepared_call_of_a_known_kind_has_the_bits_of_the_first_and_reads_all_numbers_again(save, monkeypatch):
    system, rng, method = driven(), np.random.default_rng(5), da.LagrangeDAlembert()
    run = da.prepare(system, method, step=0.05, steps=6, save_every=2, save=save)
    of = lambda made: made.records if save == "all" else made.values
    xi, rows = np.array([0.5, 1.0, -0.15]), rng.normal(size=(6, 2))
    own = da.State(*map(np.array, system.state(xi=xi)), system.group)  # arrays that can be changed in place

    def fresh(state, *others):
        return of(da.prepare(system, method, step=0.05, steps=6, save_every=2, save=save)(state, *others))

    run(own), run(own, None, rows)
    looked = counted_finds(run, monkeypatch)
    same = [(own,), (own, None, rows), (system.state(xi=xi),), (own, None, rows)]
    found = [of(run(*given)) for given in same]
    assert not looked
    assert all(same_bits(each, fresh(*given)) for each, given in zip(found, same, strict=True))
    before = of(run(own)), of(run(own, None, rows))
    rows[2, 1] = 0.7  # numbers that are changed in place are read again, and what was given stays
    own.xi[:], own.momentum[:] = 2.0 * own.xi, 2.0 * own.momentum
    kept = jax.tree.map(np.copy, before)
    looked.clear()
    after = of(run(own)), of(run(own, None, rows))
    assert not looked
    assert same_bits(after, (fresh(own), fresh(own, None, rows))) and same_bits(before, kept)
    assert not same_bits(after[0], before[0]) and not same_bits(after[1], before[1])
    still = rows.copy()
    still.flags.writeable = False
    turned = np.asfortranarray(rows)
    by_name = {each.name: rows[:, i] for i, each in enumerate(system.inputs)}
    for controls in (still, turned, by_name, jnp.asarray(rows), rows.astype(np.float32).astype(float)):
        assert same_bits(of(run(own, None, controls)), fresh(own, None, controls))
    for leaf in (0.0, np.float32(0.0), jnp.zeros(())):  # other types go the way of a first call
        assert same_bits(of(run(own._replace(t=leaf))), fresh(own._replace(t=leaf)))
    half = own._replace(g=own.g.astype(np.float32))
    twin = da.prepare(system, method, step=0.05, steps=6, save_every=2, save=save)
    assert same_bits(of(run(half)), of(twin(half))) and same_bits(of(twin(own)), of(run(own)))
    if save == "final":
        traced = jax.jit(lambda state: run(state).values.xi)(own)
        np.testing.assert_allclose(traced, run(own).values.xi, rtol=1e-13)
        slope = jax.grad(lambda m: jnp.sum(run(own._replace(momentum=m)).values.xi))(jnp.asarray(own.momentum))
        assert np.isfinite(slope).all()


@pytest.mark.parametrize("save", ["all", "final"])
def test_a_prepared_call_of_a_known_kind_refuses_what_the_first_refuses(save):
    system, method, rows = driven(), da.LagrangeDAlembert(), np.full((4, 2), 0.1)
    state = system.state(xi=[0.5, 1.0, -0.15])
    bounded = dataclasses.replace(system, inputs=[da.Input("push", "N", -1.0, 1.0), da.Input("pull")])
    many = jax.tree.map(lambda leaf: np.stack([leaf] * 3), state)
    starts = [many, state._replace(xi=np.zeros(4)), state._replace(xi=np.array([0.5, 1.0, 0.0]))]
    starts += [state._replace(momentum=np.full(3, np.nan)), state._replace(t=np.array(np.nan))]
    starts += [state._replace(t=np.array(1e30)), tuple(state), 3, None]
    starts += [state._replace(xi=np.full(3, np.nan)), state._replace(xi=state.xi.astype(complex))]
    lost, wide, far = rows.copy(), rows.copy(), rows.copy()
    lost[1, 1], wide[3, 0], far[0, 0] = np.nan, np.inf, -2.0
    for own in (system, bounded):
        known, new = (da.prepare(own, method, step=0.05, steps=4, save=save) for _ in range(2))
        known(state), known(state, None, rows)
        calls = [(start, None, controls) for start in starts for controls in (None, rows)]
        bad = (lost, wide, rows[:3], rows[:, :1], 1j * rows, lambda t: t)
        calls += [(state, None, each) for each in bad]
        calls += [(state, None, {"push": rows[:, 0], "pul": rows[:, 1]})] if own is bounded else []
        calls += [(state, None, far)] if own is bounded else []
        for given in calls:
            with pytest.raises(da.InvalidInput) as first:
                new(*given)
            with pytest.raises(da.InvalidInput) as later:
                known(*given)
            assert str(first.value) == str(later.value)
        big = np.full((4, 2), 1.0 if own is bounded else 1e200)  # at a bound, or finite though its square is not
        for given in ((state._replace(g=np.zeros((3, 3))),), (state, None, big)):
            assert known(*given).status == new(*given).status


@pytest.mark.heavy
def test_one_time_is_one_of_many():
    """`at(t)` of a float takes a shorter way than `at([t])`."""
    system, method, state = case("suslov")
    sleigh = driven()
    start, rows = sleigh.state(t=0.3, xi=[0.5, 1.0, -0.15]), np.random.default_rng(5).normal(size=(9, 2))
    runs = [
        da.simulate(system, method, state, step=0.1, steps=9),
        da.simulate(system, method, state, step=0.1, steps=9, save_every=4),
        da.simulate(system, method, state, step=-0.1, steps=9),
        da.simulate(sleigh, da.LagrangeDAlembert(), start, step=0.1, steps=9, controls=rows),
    ]
    for run in runs:
        times = [*run.t, *np.linspace(run.t[0], run.t[-1], 23), run.t[1] - 1e-11, run.t[1] + 1e-11]
        many = run.at(times)
        for k, t in enumerate(times):
            assert same_bits(run.at(float(t)), jax.tree.map(lambda leaf, k=k: leaf[k], many))
        with pytest.raises(da.InvalidInput, match="there is no state at t"):
            run.at(float(run.t[-1] + run.step))


def test_a_method_with_checks_of_its_own_is_asked_every_time():
    """Subclasses inherit what their parents say of their checks, but not for a `require` that is newer."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Careful(da.LagrangeDAlembert):
        def require(self, system, state, h):
            seen.append(float(state.t))
            super().require(system, state, h)

    system = da.models.suslov(FULL)
    prepared = da.prepare(system, Careful(), step=0.1, steps=2, save="final")
    for t in (0.0, 1.0, 2.0):
        state = system.state(xi=[0.9, -0.6, 0.0], t=t)
        da.simulate(system, Careful(), state, step=0.1, steps=2)
        prepared(state)
    assert set(seen) == {0.0, 1.0, 2.0} and len(seen) >= 6


def test_a_system_that_a_method_took_says_nothing_of_another():
    """An inertia that no body has is refused after one that a body has, and by every method of bodies."""
    good, state = (
        da.models.rigid_body([1.0, 2.0, 2.5]),
        da.models.rigid_body([1.0, 2.0, 2.5]).state(momentum=[1.0, 2.0, 3.0]),
    )
    bad = da.InvariantSystem(da.SO3(), np.diag([1.0, 2.0, 5.0]))
    for _ in range(2):
        da.simulate(good, da.DiscreteMoserVeselov(order=2), state, step=0.1, steps=2)
        with pytest.raises(da.InvalidInput, match="triangle inequality"):
            da.simulate(bad, da.DiscreteMoserVeselov(order=2), bad.state(momentum=[1.0, 2.0, 3.0]), step=0.1, steps=2)
    run = da.prepare(good, da.DiscreteMoserVeselov(order=2), step=0.1, steps=2, save="final")
    run(state)
    with pytest.raises(da.InvalidInput, match="triangle inequality"):
        run(state, bad)


def test_a_prepared_run_has_derivatives():
    system = driven()
    state = system.state(xi=[0.5, 1.0, -0.15])
    run = da.prepare(system, da.LagrangeDAlembert(), step=0.05, steps=4, save="final")

    def speed(inertia):
        return run(state, {"J": inertia, "m": 1.0, "a": 0.3}).values.xi[1]

    slope = jax.grad(speed)(2.0)
    np.testing.assert_allclose(slope, (speed(2.0 + 1e-5) - speed(2.0 - 1e-5)) / 2e-5, rtol=1e-6)


def test_numbers_of_a_mechanism_are_packed_once_and_read_again_when_they_change():
    system = da.models.differential_drive()
    state = system.state(speed=1.0)
    packed = plans._packed[id(system)][3][0]
    assert np.array_equal(packed, jax.tree.leaves(system)) and len(packed) > plans.MANY_NUMBERS
    name = next(iter(system.parameters["bodies"]))
    system.parameters["bodies"][name]["mass"] *= 2.0
    heavy = system.state(state.g, np.asarray(state.xi))
    assert np.abs(heavy.momentum).max() > 1.2 * np.abs(state.momentum).max()
    run = da.simulate(system, da.LagrangeDAlembert(), heavy, step=0.01, steps=3)
    energies = jax.jit(jax.vmap(system.energy))(*run.records.state[:3])
    np.testing.assert_allclose(run.energy(), energies, rtol=1e-13)


def test_a_number_of_jax_in_the_place_of_one_of_a_mechanism_has_its_derivative():
    """Its value is the one that was packed; a number that is packed has no derivative."""
    system = da.models.differential_drive()
    state = system.state(speed=1.0)
    body = system.parameters["bodies"][next(iter(system.parameters["bodies"]))]
    mass = body["mass"]

    def momentum(number):
        body["mass"] = number
        return jnp.sum(system.state(state.g, np.asarray(state.xi)).momentum)

    slope, values = jax.grad(momentum)(mass), [momentum(mass + d) for d in (-0.5, 0.5)]
    assert abs(slope) > 0.1
    np.testing.assert_allclose(slope, values[1] - values[0], rtol=1e-9)


def test_a_prepared_run_of_a_mechanism_has_the_bits_of_simulate():
    """Its configurations are tuples of arrays; a state whose parts are something else goes the same way."""
    system = da.models.differential_drive()
    state, method = system.state(speed=1.0), da.LagrangeDAlembert()
    run = da.prepare(system, method, step=0.01, steps=5, save="final")
    last = da.simulate(system, method, state, step=0.01, steps=5).last
    for each in (state, state, jax.tree.map(jnp.asarray, state), state._replace(g=tuple(map(np.array, state.g)))):
        for found, wanted in zip(jax.tree.leaves(run(each).values), jax.tree.leaves(last), strict=True):
            assert np.array_equal(found, wanted)
    with pytest.raises(da.InvalidInput, match="t0"):
        run(state._replace(t=np.array(1e300)))
    with pytest.raises(da.InvalidInput, match="shape"):
        run(state._replace(xi=np.zeros(3)))


def test_what_an_ensemble_gave_stays_when_others_run():
    """Lanes use memory again that nobody holds: an array of a run that is gone holds it too."""
    system, method = da.models.chaplygin_sleigh(), da.LagrangeDAlembert()

    def run(speed):
        states = [system.state(xi=[speed, 0.1 * k, 0.0]) for k in range(8)]
        return da.ensemble(system, method, states, step=0.1, steps=4)

    plans._warm.clear()
    part = run(0.5).xi[3:5]
    before, held = part.copy(), run(0.7)
    kept, last = held.xi.copy(), held.final.carry.g.copy()
    for _ in range(3):
        run(0.9)
    assert np.array_equal(part, before)
    assert np.array_equal(held.xi, kept) and np.array_equal(held.final.carry.g, last)
    del part, held
    run(0.3)
    memory = plans._warm[0].ctypes.data
    run(0.3)
    assert plans._warm[0].ctypes.data == memory
