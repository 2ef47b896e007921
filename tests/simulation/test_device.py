"""Ensembles on a GPU that this processor plays: the numbers, messages and gradients of ensembles on the processor."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulation import play_gpu

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.simulation import driver

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler to play a GPU")
BODY = da.models.suslov([[3.0, 0.4, 1.0], [0.4, 4.0, 0.5], [1.0, 0.5, 5.0]])
MEMBERS = 5


@pytest.fixture
def gpu(monkeypatch):
    return play_gpu(monkeypatch)


def starts(size=1.0):
    speed = size * np.linspace(0.1, 1.0, MEMBERS)
    states = [BODY.state(xi=[v, -v, 0.0]) for v in speed]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *states)


def agree(a, b, tolerance=0.0):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("given", [{"steps": 7, "save_every": 3}, {"steps": 4}, {"steps": 6, "monitor": True}])
def test_an_ensemble_on_the_gpu_has_the_bits_of_one_on_the_processor(gpu, given):
    options = {"step": 0.05, **given}
    wanted = da.ensemble(BODY, da.EulerPoincareSuslov(), starts(), backend="llvm", **options)
    runs = [da.ensemble(BODY, da.EulerPoincareSuslov(), starts(), **options) for _ in range(2)]
    for run in runs:
        assert run.backend == "cuda" and (run.status == "ok").all()
        agree((run.records, run.final), (wanted.records, wanted.final))


def test_a_warm_call_costs_few_launches(gpu):
    """The beginning, the first record, the steps: nothing else runs, and nothing is asked of the members one by one."""
    options = {"step": 0.05, "steps": 10, "save_every": 10}
    da.ensemble(BODY, da.EulerPoincareSuslov(), starts(), **options)
    before = gpu.launches
    da.ensemble(BODY, da.EulerPoincareSuslov(), starts(0.5), **options)
    assert gpu.launches - before == 3


def test_members_that_fail_and_members_that_are_refused_on_the_gpu(gpu):
    options = {"step": 0.05, "steps": 20, "save_every": 5}
    strong = starts(30.0)
    wanted = da.ensemble(BODY, da.EulerPoincareSuslov(), strong, backend="llvm", **options)
    run = da.ensemble(BODY, da.EulerPoincareSuslov(), strong, **options)
    assert run.backend == "cuda" and 0 < (run.status == "ok").sum() < MEMBERS
    assert (run.status == wanted.status).all() and (run.failed_at == wanted.failed_at).all()
    agree(run.records, wanted.records)
    for _ in range(2):  # the second is of a kind that was taken before
        with pytest.raises(InvalidInput, match="member 3"):
            wrong = starts()._replace(xi=starts().xi.at[3, 2].set(1.0))
            da.ensemble(BODY, da.EulerPoincareSuslov(), wrong, **options)


def test_members_with_systems_of_their_own_on_the_gpu(gpu):
    family = jax.vmap(lambda p: da.models.suslov(jnp.array([[3.0, 0.0, p], [0.0, 4.0, 0.5], [p, 0.5, 5.0]])))(
        jnp.linspace(0.2, 1.0, MEMBERS)
    )
    options = {"step": 0.05, "steps": 6, "save_every": 2, "batched_system": True}
    for state in (starts(), BODY.state(xi=[0.3, -0.2, 0.0])):
        wanted, run = (
            da.ensemble(family, da.EulerPoincareSuslov(), state, backend=backend, **options)
            for backend in ("llvm", "auto")
        )
        assert run.backend == "cuda"
        agree(run.records, wanted.records)


def knife(m=1.0):
    """A knife edge of mass m with a push and a turning moment."""

    def lagrangian(t, q, v, p):
        return 0.5 * p["m"] * (v[0] ** 2 + v[1] ** 2) + 0.5 * p["J"] * v[2] ** 2

    def edge(t, q, p):
        return jnp.stack([-jnp.sin(q[2]), jnp.cos(q[2]), 0.0])[None]

    def push(t, q, v, u, p):
        return jnp.stack([u[0] * jnp.cos(q[2]), u[0] * jnp.sin(q[2]), u[1]])

    inputs = (da.Input("push", "N", low=-9.0, high=9.0), da.Input("moment", "N m"))
    return da.System(da.Euclidean(3), lagrangian, edge, force=push, inputs=inputs, parameters={"m": m, "J": 0.4})


EDGE = knife()
STEPS = 6


def rest():
    states = [EDGE.state(xi=[0.1 * k, 0.0, 0.2]) for k in range(MEMBERS)]
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *states)


def pushes():
    return jnp.asarray(np.random.default_rng(3).normal(size=(MEMBERS, STEPS, 2)))


@pytest.mark.heavy
def test_each_member_may_have_its_own_controls(gpu):
    options = {"step": 0.1, "steps": STEPS}
    method = da.LagrangeDAlembert()
    many, u = rest(), pushes()
    alone = [
        da.simulate(EDGE, method, EDGE.state(xi=[0.1 * k, 0.0, 0.2]), controls=u[k], **options) for k in range(MEMBERS)
    ]
    for backend in ("llvm", "auto"):
        run = da.ensemble(EDGE, method, many, controls=u, backend=backend, **options)
        assert run.backend == ("llvm" if backend == "llvm" else "cuda")
        agree(run.g, np.stack([each.g for each in alone]))
        agree(run["push"], np.stack([each["push"] for each in alone]))
        state = run.at(0.25)
        agree(state.g[2], alone[2].at(0.25).g)
    shared = da.ensemble(EDGE, method, many, controls=u[1], **options)
    agree(shared.g[1], alone[1].g)
    with pytest.raises(InvalidInput, match="of member 2, row 4: push is 10"):
        da.ensemble(EDGE, method, many, controls=u.at[2, 4, 0].set(10.0), **options)
    with pytest.raises(InvalidInput, match=r"or \(5, 6, 2\) where each member has its own"):
        da.ensemble(EDGE, method, many, controls=u[:3], **options)


@pytest.mark.heavy
def test_events_of_members_with_their_own_controls():
    u, event = np.asarray(pushes()), da.Event(lambda t, g, xi, p: g[0] - 0.1, name="there", stop=True)
    options = {"step": 0.1, "steps": STEPS, "events": [event]}
    run = da.ensemble(EDGE, da.LagrangeDAlembert(), rest(), controls=u, **options)
    for k in range(MEMBERS):
        alone = da.simulate(EDGE, da.LagrangeDAlembert(), EDGE.state(xi=[0.1 * k, 0.0, 0.2]), controls=u[k], **options)
        agree(run.events["there"].of(k).t, alone.events["there"].t, 1e-14)
        agree(run.final.carry.g[k], alone.final.carry.g, 1e-13)
    assert len(run.events["there"]) > 1


@pytest.mark.heavy
def test_gradients_of_an_ensemble_on_the_gpu(gpu):
    """With respect to all controls, starts, parameters and the step, as on the processor."""

    def total(u, speed, m, step, backend):
        state = rest()
        state = state._replace(xi=state.xi * speed, momentum=state.momentum * speed, increment=state.increment * speed)
        run = da.ensemble(
            knife(m), da.LagrangeDAlembert(), state, controls=u, step=step, steps=STEPS, save_every=2, backend=backend
        )
        return jnp.sum(jnp.sin(run.g[:, 1:])) + jnp.sum(run.xi[:, -1] ** 2)

    given = (pushes(), 1.1, 1.2, 0.1)
    on_cpu, on_gpu = (jax.grad(total, (0, 1, 2, 3))(*given, backend) for backend in ("llvm", "auto"))
    assert gpu.launches > 3
    agree(on_gpu, on_cpu, 1e-13)
    assert on_gpu[0].shape == (MEMBERS, STEPS, 2) and np.abs(on_gpu[0]).max() > 0


def test_a_gradient_runs_each_program_once(gpu, monkeypatch):
    """Begin, the first record and the steps, then the steps and the beginning backwards; and as in parts under jit."""

    def total(u):
        run = da.ensemble(EDGE, da.LagrangeDAlembert(), rest(), controls=u, step=0.1, steps=STEPS)
        return jnp.sum(jnp.sin(run.g[:, -1])) + jnp.sum(run.xi[:, -1] ** 2)

    gradient = jax.grad(total)
    found = gradient(pushes())
    monkeypatch.setattr(driver.Members, "require", lambda self, integrator, step: None)
    before = gpu.launches
    agree(gradient(pushes()), found)
    assert gpu.launches - before <= 6
    monkeypatch.setattr(driver, "bind_whole", lambda *given: None)
    agree(gradient(pushes()), found, 1e-14)


def test_gradients_of_members_that_fail_are_nan(gpu):
    strong = starts(30.0)

    def total(size):
        state = strong._replace(xi=size[:, None] * strong.xi, momentum=size[:, None] * strong.momentum)
        run = da.ensemble(BODY, da.EulerPoincareSuslov(), state, step=0.05, steps=20, save_every=5)
        return jnp.sum(run.momentum[:, -1])

    given = jnp.ones(MEMBERS)
    well = da.ensemble(BODY, da.EulerPoincareSuslov(), strong, step=0.05, steps=20, save_every=5).status == "ok"
    found = np.asarray(jax.grad(total)(given))
    assert 0 < well.sum() < MEMBERS
    np.testing.assert_array_equal(np.isfinite(found), well)
