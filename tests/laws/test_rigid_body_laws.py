"""Laws of the methods for free rigid bodies: conservation, reversibility, equivariance, backends, gradients, no LAPACK
in a step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import sampled

from dalembert.integrators import DiscreteMoserVeselov, ImplicitMidpoint, KineticSplitting, LiePoissonSplitting, Rattle
from dalembert.models import exact_body, rigid_body
from dalembert.simulation import simulate
from dalembert.simulation.driver import ensemble

TENSOR = np.array([[0.7, 0.08, -0.05], [0.08, 0.85, 0.1], [-0.05, 0.1, 1.0]])
SYSTEM = rigid_body(TENSOR)
START = SYSTEM.state(SYSTEM.group.exp(jnp.array([0.4, -0.3, 0.2])), momentum=[0.9, 0.4, -0.6])
DMV = [DiscreteMoserVeselov(), *[DiscreteMoserVeselov(order) for order in (2, 6)], DiscreteMoserVeselov(6, "scaled")]
METHODS = [*DMV, Rattle(), LiePoissonSplitting(), ImplicitMidpoint(), KineticSplitting()]


def name(method):
    return "-".join([method.name, str(getattr(method, "order", "")), getattr(method, "variant", "")])


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_momenta_energy_and_reversibility(method):
    run = simulate(SYSTEM, method, START, step=0.3, steps=100).check()
    spatial = np.einsum("kij,kj->ki", run.g, run.momentum)
    assert np.abs(spatial - spatial[0]).max() < 2e-14
    assert np.abs(run.group_distance()).max() < 5e-15
    if method.name != "lie-poisson-splitting":
        assert np.abs(run.energy_error()).max() < 1e-14
    back = simulate(SYSTEM, method, SYSTEM.state(run.g[-1], momentum=run.momentum[-1]), step=-0.3, steps=100).check()
    assert np.abs(back.momentum[-1] - START.momentum).max() < 1e-12
    assert np.abs(back.g[-1] - START.g).max() < 1e-12


@pytest.mark.parametrize("method", [DMV[0], DMV[1], Rattle(), ImplicitMidpoint()], ids=name)
def test_axes_do_not_matter(method):
    tilt = SYSTEM.group.exp(jnp.array([0.3, 1.1, -0.7]))
    turned = rigid_body(tilt @ TENSOR @ tilt.T)
    a = simulate(SYSTEM, method, START, step=0.3, steps=20).check()
    b = simulate(
        turned, method, turned.state(START.g @ tilt.T, momentum=tilt @ START.momentum), step=0.3, steps=20
    ).check()
    assert np.abs(b.momentum - a.momentum @ tilt.T).max() < 1e-13
    assert np.abs(b.g - a.g @ tilt.T).max() < 1e-13


@pytest.mark.parametrize("method", sampled([DMV[0], KineticSplitting(4)]), ids=name)
def test_backends_agree(method):
    a = simulate(SYSTEM, method, START, step=0.3, steps=50, backend="xla").check()
    b = simulate(SYSTEM, method, START, step=0.3, steps=50, backend="llvm").check()
    assert b.backend == "llvm"
    assert np.abs(a.momentum - b.momentum).max() < 3e-14  # 250 stages of the splitting, a round-off each
    assert np.abs(a.g - b.g).max() < 4e-14


def test_a_continued_run_and_an_ensemble():
    whole = simulate(SYSTEM, DMV[0], START, step=0.3, steps=40).check()
    part = simulate(SYSTEM, DMV[0], simulate(SYSTEM, DMV[0], START, step=0.3, steps=15), step=0.3, steps=25)
    assert np.array_equal(whole.g[-1], part.g[-1])
    states = [SYSTEM.state(momentum=m) for m in ([0.9, 0.4, -0.6], [0.0, 0.0, 0.0], [0.0, 0.0, 2.0], [0.1, -1.0, 0.2])]
    runs = ensemble(SYSTEM, DMV[0], states, step=0.7, steps=10).check()
    for k, state in enumerate(states):
        motion = exact_body(TENSOR, state.momentum, 7.0)
        assert np.abs(runs.momentum[k, -1] - motion.momentum).max() < 1e-13
        assert np.abs(runs.g[k, -1] - motion.attitude).max() < 1e-13


# -- gradients --------------------------------------------------------------------------------------------------------
def outcome(inertia, momentum, h):
    """A function of momentum and attitude after three steps."""
    system = rigid_body(inertia)
    run = simulate(system, DiscreteMoserVeselov(), system.state(momentum=momentum), step=h, steps=3, backend="xla")
    return run.momentum[-1] @ jnp.array([0.3, -0.5, 0.7]) + jnp.sum(run.g[-1] * jnp.arange(9.0).reshape(3, 3) / 9)


GRADIENT = jax.jit(jax.grad(outcome, argnums=(0, 1, 2)))


def exact_outcome(inertia, momentum, h):
    motion = exact_body(inertia, momentum, 3 * h)
    return motion.momentum @ [0.3, -0.5, 0.7] + np.sum(motion.attitude * np.arange(9.0).reshape(3, 3) / 9)


@pytest.mark.parametrize("momentum", [[0.9, 0.4, -0.6], [0.0, 0.0, 0.0]], ids=["moving", "at rest"])
@pytest.mark.parametrize(
    "inertia",
    [TENSOR, np.diag([1.0, 1.0, 1.4]), np.eye(3), np.diag([0.9, 1.0, 8.0])],
    ids=["generic", "symmetric", "spherical", "no body"],
)
def test_gradients_also_at_rest_and_where_moments_are_equal(inertia, momentum):
    momentum, h, small = np.array(momentum), 0.8, 1e-5
    gradient = GRADIENT(jnp.asarray(inertia), jnp.asarray(momentum), h)
    by_inertia, by_momentum, by_step = (np.asarray(part) for part in gradient)

    def slope(function):
        return (function(small) - function(-small)) / (2 * small)

    for k in range(3):
        e = np.eye(3)[k]
        assert abs(by_momentum[k] - slope(lambda d: exact_outcome(inertia, momentum + d * e, h))) < 1e-8
    assert abs(by_step - slope(lambda d: exact_outcome(inertia, momentum, h + d))) < 1e-8
    for i, j in ((0, 0), (0, 1), (0, 2), (1, 2)):
        e = np.outer(np.eye(3)[i], np.eye(3)[j])
        e = (e + e.T) / 2
        assert abs(np.sum(by_inertia * e) - slope(lambda d: exact_outcome(inertia + d * e, momentum, h))) < 1e-8


# -- what a step is made of -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_no_lapack_in_a_step(method):
    carry = jax.eval_shape(lambda s: method.start(SYSTEM, s, jnp.asarray(0.1))[0], START)
    jaxpr = jax.make_jaxpr(lambda c, h: method.step(SYSTEM, c, h)[0])(carry, jnp.asarray(0.1))
    assert not primitives(jaxpr.jaxpr) & {"lu", "eigh", "svd", "cholesky", "triangular_solve", "qr", "custom_call"}


def primitives(jaxpr) -> set[str]:
    """The names of the primitives in a jaxpr and in those inside it."""
    found = set()
    for equation in jaxpr.eqns:
        found.add(equation.primitive.name)
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if isinstance(getattr(inner, "eqns", None), list):
                found |= primitives(inner)
    return found
