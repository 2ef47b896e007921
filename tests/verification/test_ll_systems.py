"""Left-invariant systems in n dimensions: Suslov on SO(n), sleighs on SE(n), symmetric pairs (fedorov-zenkov 2004)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import EXPONENTIAL, case, distance, flow, gap
from scipy.linalg import expm

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.mechanics import MechanicalSystem
from dalembert.numerics import slopes
from dalembert.papers.fedorov_zenkov import rotation_of_sphere, sphere_of_rotation, symmetric_pair

MV = da.EulerPoincareSuslov()


def body(n, seed=2):
    """A mass tensor with all products of inertia."""
    root = np.random.default_rng(seed).normal(size=(n, n))
    return np.diag(np.linspace(1.2, 0.5, n)) + 0.05 * root @ root.T


def suslov(n):
    system = da.models.suslov_n(body(n))
    return system, system.state(momentum=np.linspace(0.6, -0.5, n - 1))


def sleigh(n, directions=None):
    system = da.models.sleigh_n(body(n), np.linspace(0.3, -0.2, n), 1.3, directions)
    return system, system.state(momentum=np.linspace(0.6, -0.5, system.subspace.shape[1]))


def displacements(run):
    """g_k^-1 g_{k+1} of a run, as matrices."""
    return np.linalg.solve(np.asarray(run.g[:-1]), np.asarray(run.g[1:]))


# -- momentum and reconstruction --------------------------------------------------------------------------------------
LARGE = [pytest.param(n, marks=pytest.mark.heavy) for n in (5, 6)]


@pytest.mark.parametrize("n", [4, *LARGE])
def test_suslov_on_so_n(n):
    """Moser-Veselov on SO(n): energy exact, run natively, and the reconstruction moves by matrices (6.6) only."""
    system, state = suslov(n)
    run = da.simulate(system, MV, state, step=0.1, steps=400).check()
    assert run.backend == "llvm"
    assert np.abs(run.energy_error()).max() < 5e-15
    assert run.group_distance().max() < 1e-14
    W = displacements(run)
    assert np.abs(W[:, :-1, :-1] - np.swapaxes(W, 1, 2)[:, :-1, :-1]).max() < 1e-13
    assert np.abs(W[:, -1, :-1] + W[:, :-1, -1]).max() < 1e-13
    reduced = np.asarray(run.momentum @ system.subspace)
    assert np.abs(reduced[-1] - reduced[0]).max() > 0.1


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.heavy) for n in (2, 4, 5, 6))])
def test_the_sleigh_on_se_n_with_the_symmetric_constraint(n):
    """(5.10): energy exact for every n, which the paper has for n = 2; sigma(W) = W^-1 with sigma = conjugation by
    diag(-1, 1, ..).
    """
    system, state = sleigh(n)
    run = da.simulate(system, MV, state, step=0.1, steps=200).check()
    assert run.backend == "llvm"
    assert np.abs(run.energy_error()).max() < 5e-15
    sigma = np.diag([-1.0] + [1.0] * n)
    W = displacements(run)
    assert np.abs(sigma @ W @ sigma @ W - np.eye(n + 1)).max() < 1e-12


@pytest.mark.parametrize(
    "n, k", [(2, 1), *(pytest.param(*pair, marks=pytest.mark.heavy) for pair in [(3, 1), (3, 2), (4, 2)])]
)
def test_the_sleigh_on_se_n_with_its_velocity_in_a_subspace(n, k):
    """The other choice of section 5: order 2, and no exact energy beyond n = 2, where both choices agree."""
    system, state = sleigh(n, k)
    runs = [da.simulate(system, MV, state, step=1 / m, steps=m).check() for m in (10, 20)]
    errors = [np.abs(run.energy_error()).max() for run in runs]
    if n == 2:
        both = flow(MV, *sleigh(2), 0.1, 10)
        assert gap(runs[0].last, both) < 1e-14 and max(errors) < 1e-15
    else:
        assert errors[0] > 1e-7
        assert slopes((1 / 10, 1 / 20), errors)[0] == pytest.approx(2, abs=0.3)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "make", [lambda: suslov(4), lambda: suslov(5), lambda: sleigh(3), lambda: sleigh(4), lambda: sleigh(4, 2)]
)
def test_momentum_and_reconstruction_converge_with_order_2(make):
    system, state = make()
    exact = da.simulate(system, da.integrators.Reference(), state, step=1.0, steps=1).last
    errors = [gap(flow(MV, system, state, 1 / n, n), exact) for n in (40, 80)]
    assert slopes((1 / 40, 1 / 80), errors)[0] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("n", [2, 3])
def test_the_sleigh_on_se_2_is_the_chaplygin_sleigh_and_its_tensor_is_that_of_points(n):
    """L = sum_i m_i |v + w x_i|^2/2 over point masses, by definition."""
    rng = np.random.default_rng(4)
    points, masses = rng.normal(size=(8, n)), rng.uniform(0.2, 1.0, 8)
    centre = masses @ points / masses.sum()
    tensor = np.einsum("a,ai,aj->ij", masses, points - centre, points - centre)
    system = da.models.sleigh_n(tensor, centre, masses.sum())
    xi = rng.normal(size=system.group.dim)
    twist = np.asarray(system.group.hat(jnp.asarray(xi)))
    speeds = points @ twist[:n, :n].T + twist[:n, n]
    assert float(system.L(0.0, system.group.identity(), jnp.asarray(xi))) == pytest.approx(
        0.5 * masses @ np.sum(speeds**2, axis=1)
    )
    if n == 2:
        plane = da.models.chaplygin_sleigh(masses.sum(), np.trace(tensor), *centre)
        np.testing.assert_allclose(system.inertia, plane.inertia, rtol=1e-14)
        np.testing.assert_allclose(system.subspace, plane.subspace)


def test_the_motion_on_d_is_the_general_one():
    """xi' and the reaction by two small solves are those of the saddle of (Q, L, D), off d too."""
    system, state = case("heavy_suslov")
    xi = state.xi + jnp.array([0.1, 0.2, -0.4])

    @jax.jit
    def both(system, g, xi):
        return system.acceleration(0.0, g, xi), MechanicalSystem.acceleration(system, 0.0, g, xi)

    assert distance(*both(system, state.g, xi)) < 1e-13


# -- the sleigh's counterexample and the free body --------------------------------------------------------------------
def test_the_naive_constraint_loses_energy():
    """REFERENCE.md: (7.9), b = 0, h = .1, T = 20."""
    system = da.models.chaplygin_sleigh(1.0, 1.0, 0.3, 0.0)
    state = system.state(xi=[0.5, -1.0, 0.0])
    naive = da.LagrangeDAlembert(pair=da.mechanics.chord_pair(system, da.mechanics.moser_veselov))
    run = da.simulate(system, naive, state, step=0.1, steps=200).check()
    energy = run.energy()
    assert float(energy[-1] / energy[0]) == pytest.approx(0.828925115906, abs=1e-11)
    assert np.abs(displacements(run)[:, 1, 2]).max() < 1e-14


def test_the_unconstrained_discrete_body():
    """(7.8): the momentum seen from space is conserved; with the centre of mass at the origin the displacements are
    equal.
    """
    system = da.models.planar_body(1.2, 0.7, 0.3, 0.2)
    run = da.simulate(system, MV, system.state(xi=[0.9, -1.0, 0.4]), step=0.1, steps=50).check()
    group = system.group
    spatial = np.asarray(jax.vmap(lambda g, mu: group.Ad_star(group.inverse(g), mu))(run.g, run.momentum))
    assert np.abs(spatial - spatial[0]).max() < 1e-13
    centred = da.models.planar_body(1.2, 0.7, 0.0, 0.0)
    place = da.simulate(centred, MV, centred.state(xi=[0.9, -1.0, 0.4]), step=0.1, steps=50).check().g
    assert np.abs(np.diff(place[:, :2, 2], n=2, axis=0)).max() < 1e-14


# -- symmetric pairs --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [3, 4])
def test_suslov_and_the_sleigh_are_symmetric_pairs(n):
    for system in (da.models.suslov_n(body(n)), da.models.sleigh_n(body(n), np.zeros(n))):
        pair = symmetric_pair(system.group, system.subspace)
        assert pair.holds and str(pair) == "a symmetric pair"
        assert pair.h.shape[1] == system.group.dim - system.subspace.shape[1]
        xi = np.asarray(system.subspace) @ np.linspace(0.7, -0.4, system.subspace.shape[1])
        assert pair.residual(expm(np.asarray(system.group.hat(xi)))) < 1e-12
        assert pair.residual(expm(np.asarray(system.group.hat(np.linspace(0.7, -0.4, len(xi)))))) > 0.1


def test_what_is_no_symmetric_pair():
    free = da.models.sleigh_n(body(3), np.zeros(3), directions=1)
    with pytest.raises(InvalidInput, match="give one by its basis"):
        symmetric_pair(free.group, free.subspace)
    pair = symmetric_pair(free.group, free.subspace, np.eye(6)[:, 4:])
    assert not pair.holds and "[d, d] in h fails" in str(pair)
    with pytest.raises(InvalidInput, match="complement"):
        symmetric_pair(free.group, free.subspace, np.eye(6)[:, :2])
    disk = da.models.vertical_disk()
    assert not symmetric_pair(disk.group, disk.subspace, np.eye(4)[:, 1:3]).holds


@pytest.mark.parametrize("n", [3, 5])
def test_exp_d_is_the_projective_space(n):
    """Lemma 6.1: exp d and cay d are the matrices (6.7), z on the unit sphere up to sign."""
    rng = np.random.default_rng(n)
    z = rng.normal(size=n)
    z /= np.linalg.norm(z)
    W = rotation_of_sphere(z)
    np.testing.assert_allclose(W, rotation_of_sphere(-z), atol=1e-15)
    np.testing.assert_allclose(W @ W.T, np.eye(n), atol=1e-14)
    np.testing.assert_allclose(sphere_of_rotation(W), z * np.sign(z[0]), atol=1e-12)
    half_turn = np.concatenate([[0.0], z[1:] / np.linalg.norm(z[1:])])
    again = sphere_of_rotation(rotation_of_sphere(half_turn))
    np.testing.assert_allclose(rotation_of_sphere(again), rotation_of_sphere(half_turn), atol=1e-12)
    system = da.models.suslov_n(np.linspace(1.0, 2.0, n))
    theta, u = 2 * np.arccos(z[0]), z[1:] / np.linalg.norm(z[1:])
    x = theta * (np.array([-u[1], u[0]]) if n == 3 else u)  # the hat map has e1 = -(23)
    plane = np.asarray(system.group.hat(system.subspace @ x))
    np.testing.assert_allclose(expm(plane), W, atol=1e-13)
    chord, one = np.tan(theta / 2) / theta * plane, np.eye(n)
    np.testing.assert_allclose(np.linalg.solve(one - chord, one + chord), W, atol=1e-13)


def test_a_sleigh_is_refused_with_a_reason():
    for given, message in (
        ({"tensor": np.ones(7), "centre": np.zeros(7)}, "sizes 2 to 6"),
        ({"tensor": [1.0, 2.0], "centre": [0.0]}, r"centre has shape \(1,\); allowed: \(2,\)"),
        ({"tensor": [1.0, 2.0], "centre": [0.0, 0.0], "directions": 2}, "whole number from 1 to 1"),
        ({"tensor": [1.0, 2.0], "centre": [0.0, 0.0], "mass": -1.0}, "positive"),
    ):
        with pytest.raises(InvalidInput, match=message):
            da.models.sleigh_n(**given)


@pytest.mark.heavy
def test_the_exponential_moves_by_the_same_displacements():
    """W in exp d or cay d: the Moser-Veselov map is the same map (garcia-naranjo-jimenez, section 4.2)."""
    system, state = suslov(4)
    assert (
        gap(
            flow(MV, system, state, 0.1, 20),
            flow(da.EulerPoincareSuslov(retraction=EXPONENTIAL), system, state, 0.1, 20),
        )
        < 1e-12
    )
