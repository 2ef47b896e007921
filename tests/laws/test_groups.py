"""The axioms of a Lie group, over every group, sampled where formulas change or break."""

import functools
import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from own_groups import SU2, Heisenberg
from sampling import compiled, gap, on_samples, turning

from dalembert.errors import InvalidInput
from dalembert.groups import SE, SE2, SE3, SO, SO2, SO3, Euclidean, MatrixGroup, Product, SEn, SOn
from dalembert.groups import functions as _series

CUT = _series.CUT
GROUPS = [
    Euclidean(3),
    SO2(),
    SO3(),
    SE2(),
    SE3(),
    SOn(4),
    SOn(5),
    SEn(4),
    SO3() * Euclidean(2) * SE2(),
    Heisenberg(),
    SU2(),
]
SLOW = (SOn(5), SEn(4), SU2(), Heisenberg())  # to compile; SO(4) and SE(3) are like them
over_groups = pytest.mark.parametrize(
    "group", [pytest.param(group, marks=[pytest.mark.heavy] * (group in SLOW)) for group in GROUPS], ids=str
)


def products(a, b, *more):
    """Matrix products, factor by factor."""
    value = jax.tree.map(jnp.matmul, a, b)
    return products(value, *more) if more else value


@functools.cache
def evaluated(group):
    """(what each law leaves, hat(xi), matrix of exp(xi)) on every sample, compiled once for each group."""
    function = lambda xi, *more: (laws(group, xi, *more), group.hat(xi), group.matrix(group.exp(xi)))
    return on_samples(group, function)


def laws(G, xi, eta, zeta, mu):
    """What each law leaves, for g = exp(xi), h = exp(eta), k = exp(zeta)."""
    g, h, k, e = G.exp(xi), G.exp(eta), G.exp(zeta), G.identity()
    gh, x, y = G.compose(g, h), G.hat(xi), G.hat(eta)
    log_g, log_h = jax.vmap(G.log)(jax.tree.map(lambda *pair: jnp.stack(pair), g, h))
    off = jax.tree.map(lambda part: part + 1e-5 * jnp.sin(jnp.arange(part.size) + 1.0).reshape(part.shape), g)
    aside = jax.tree.map(lambda there, part: 1e5 * (there - part), off, g)  # out of the group too
    at_zero = lambda curve: jax.jvp(curve, (0.0,), (1.0,))[1]
    return {
        "associative": gap(G.compose(gh, k), G.compose(g, G.compose(h, k))),
        "left identity": gap(G.compose(e, g), g),
        "right identity": gap(G.compose(g, e), g),
        "inverse": gap(G.compose(g, G.inverse(g)), e),
        "matrix is a homomorphism": gap(G.matrix(gh), products(G.matrix(g), G.matrix(h))),
        "vee hat": gap(G.vee(x), xi),
        "log exp": gap(log_g, xi),
        "exp log": gap(G.exp(log_h), h),
        "exp stays on the group": G.distance(g),
        "normalise keeps the group": gap(G.normalise(g), g),
        "restore keeps the group": gap(G.restore(g), g),
        "restore has the slope of normalise": gap(*(jax.jvp(f, (g,), (aside,))[1] for f in (G.restore, G.normalise))),
        "normalise is a Newton step": jnp.maximum(G.distance(G.normalise(off)) - 2 * G.distance(off) ** 2, 0.0),
        "Ad is a homomorphism": gap(G.Ad(gh, zeta), G.Ad(g, G.Ad(h, zeta))),
        "Ad is conjugation": gap(G.hat(G.Ad(g, eta)), products(G.matrix(g), y, G.matrix(G.inverse(g)))),
        "ad is the derivative of Ad": gap(G.ad(xi, eta), at_zero(lambda t: G.Ad(G.exp(t * xi), eta))),
        "ad is the commutator": gap(G.hat(G.ad(xi, eta)), jax.tree.map(jnp.subtract, products(x, y), products(y, x))),
        "Jacobi": gap(G.ad(xi, G.ad(eta, zeta)) + G.ad(zeta, G.ad(xi, eta)), G.ad(eta, G.ad(xi, zeta))),
        "Ad_star is dual to Ad": gap(G.Ad_star(g, mu) @ eta, mu @ G.Ad(g, eta)),
        "ad_star is dual to ad": gap(G.ad_star(xi, mu) @ eta, mu @ G.ad(xi, eta)),
        "velocity inverts tangent": gap(G.velocity(g, G.tangent(g, eta)), eta),
        "tangent of a curve": gap(G.tangent(g, eta), at_zero(lambda t: G.compose(g, G.exp(t * eta)))),
    }


@over_groups
def test_laws(group):
    """All laws of a group in one test, which compiles them once whatever worker it runs on."""
    left = {law: float(values.max()) for law, values in evaluated(group)[0].items()}
    assert len(left) == 22 and not {law: most for law, most in left.items() if not most < 2e-14}


def reference_exp(matrix):
    """The matrix exponential in 30 digits, rounded."""
    with mpmath.workdps(30):
        return np.array(mpmath.expm(mpmath.matrix(np.asarray(matrix).tolist())).tolist(), dtype=float)


@over_groups
def test_exponential_is_the_matrix_exponential(group):
    _, *given = evaluated(group)
    for hats, values in zip(*map(jax.tree.leaves, given), strict=True):
        for hat, value in zip(hats, values, strict=True):
            np.testing.assert_allclose(value, reference_exp(hat), rtol=0, atol=3e-15)


@pytest.mark.parametrize("group", [SOn(4), SOn(5), SEn(4)], ids=str)
def test_exponential_of_large_rotations(group):
    exp = jax.jit(group.exp)
    for size in (9.99, 10.01, 150.0):
        xi = jnp.asarray(turning(group, size, np.random.default_rng(3)))
        np.testing.assert_allclose(exp(xi), reference_exp(group.hat(xi)), rtol=0, atol=1e-15 * (3 + size))


SERIES = {
    "sinc": lambda t: mpmath.sin(t) / t,
    "cosc": lambda t: (1 - mpmath.cos(t)) / t**2,
    "sinc1": lambda t: (t - mpmath.sin(t)) / t**3,
    "cotc": lambda t: (1 - t / 2 * mpmath.cot(t / 2)) / t**2,
}
ANGLES = [1e-6, 1e-3, 0.1, 0.7, 1.2, 0.999 * CUT, 1.001 * CUT, 2.0, 3.0, np.pi - 1e-6, 4.0, 5.5]


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_series_and_their_derivatives(name, order):
    value = getattr(_series, name)
    for _ in range(order):
        value = jax.grad(value)
    with mpmath.workdps(50):
        exact = [float(mpmath.diff(lambda x: SERIES[name](mpmath.sqrt(x)), mpmath.mpf(t * t), order)) for t in ANGLES]
    np.testing.assert_allclose(compiled(value)(jnp.array(ANGLES) ** 2), exact, rtol=4e-15, atol=2e-16)


@pytest.mark.parametrize("name", ["cosc", "sinc1", "cotc"])
def test_named_derivatives_of_series(name):
    x = jnp.array([0.0, *ANGLES]) ** 2
    derivative, given = compiled(jax.grad(getattr(_series, name)))(x), compiled(getattr(_series, f"d_{name}"))(x)
    np.testing.assert_allclose(given, derivative, rtol=0, atol=2e-16)


PLANES = [
    (np.pi, 0.0),
    (np.pi, 1.0),
    (np.pi, np.pi),
    (np.pi - 1e-6, np.pi - 2e-6),
    (np.pi - 1e-12, 2.0),
    (1.0, 1.0),
    (1e-9, 3.0),
]


@pytest.mark.parametrize("group", [SOn(4), SOn(5)], ids=str)
def test_log_of_special_rotations(group):
    """Half turns, equal angles and tiny angles: a logarithm of the right length whose exponential is g."""
    tilted = np.linalg.qr(np.random.default_rng(0).normal(size=(group.n, group.n)))[0]
    rotations = []
    for basis in (np.eye(group.n), tilted):
        for angles in PLANES:
            blocks = np.eye(group.n)
            for k, angle in enumerate(angles):
                sine = 0.0 if angle == np.pi else np.sin(angle)
                blocks[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[np.cos(angle), sine], [-sine, np.cos(angle)]]
            rotations.append(basis @ blocks @ basis.T)
    xi, again = compiled(lambda g: (group.log(g), group.exp(group.log(g))))(jnp.array(rotations))
    np.testing.assert_allclose(again, rotations, rtol=0, atol=8e-15)  # those tilted are off SO(n), by the processor
    np.testing.assert_allclose(np.linalg.norm(xi, axis=1), np.tile(np.linalg.norm(PLANES, axis=1), 2), rtol=1e-14)


def test_log_near_half_turns_of_space():
    axes = np.random.default_rng(1).normal(size=(200, 3))
    axes = np.concatenate([np.eye(3), -np.eye(3), axes / np.linalg.norm(axes, axis=1, keepdims=True)])
    exp, log = compiled(SO3().exp), compiled(SO3().log)
    for delta in (0.0, 1e-15, 1e-9, 1e-6):
        g = exp((np.pi - delta) * axes)
        xi = log(g)
        np.testing.assert_allclose(exp(xi), g, rtol=0, atol=2e-15)
        np.testing.assert_allclose(np.linalg.norm(xi, axis=1), np.pi - delta, rtol=1e-15)
        if delta > 0:
            np.testing.assert_allclose(xi, (np.pi - delta) * axes, rtol=0, atol=2e-15)


def test_log_at_exact_half_turns_of_space():
    half_turns = jnp.array([np.diag(signs) for signs in [(1.0, -1.0, -1.0), (-1.0, 1.0, -1.0), (-1.0, -1.0, 1.0)]])
    np.testing.assert_array_equal(compiled(SO3().log)(half_turns), np.pi * np.eye(3))
    assert jnp.isfinite(compiled(jax.jacfwd(SO3().log))(half_turns)).all()


def test_distance_has_a_gradient_on_the_group():
    assert not jax.grad(SE3().distance)(SE3().identity()).any()


PLANAR = [SO2(), SE2(), SO2() * Euclidean(1) * SE2() * SO3()]


@pytest.mark.parametrize("group", PLANAR, ids=str)
def test_windings_accumulate_to_the_true_angle(group):
    rng = np.random.default_rng(5)
    turns = np.isin(np.arange(group.dim), np.cumsum([0, *(f.dim for f in group.factors)])[:-1])
    turns &= np.repeat([str(f) in ("SO(2)", "SE(2)") for f in group.factors], [f.dim for f in group.factors])
    steps = np.where(turns, rng.uniform(-3.1, 3.1, size=(400, group.dim)), 0.1)

    def walk(g, xi):
        following = group.compose(g, group.exp(xi))
        return following, (group.winding(g, following), group.angles(following))

    _, (windings, angles) = jax.lax.scan(walk, group.identity(), jnp.array(steps))
    assert set(np.unique(windings)) == {-1.0, 0.0, 1.0}
    unwrapped = angles + 2 * np.pi * np.cumsum(windings, axis=0)
    np.testing.assert_allclose(unwrapped, np.cumsum(steps, axis=0)[:, turns], rtol=0, atol=1e-11)


def test_windings_at_the_cut():
    half, above, below = jnp.array([[-1.0, -0.0], [0.0, -1.0]]), SO2().element(3.0), SO2().element(-3.0)
    assert SO2().angles(half) == np.pi
    pairs = [(above, half), (half, below), (below, half), (half, above)]
    assert [int(SO2().winding(a, b)[0]) for a, b in pairs] == [0, 1, -1, 0]
    assert SO2().winding(SO2().element(0.1), SO2().element(-0.1)) == 0


def test_an_angle_has_its_slope_where_it_is_zero_or_half_a_turn():
    """There the sine is 0 or -0, which must not hide it."""
    for angle, sine in ((0.0, 0.0), (0.0, -0.0), (np.pi, 0.0), (np.pi, -0.0)):
        g = jnp.array([[np.cos(angle), -sine], [sine, np.cos(angle)]])
        turned = lambda w, g=g: SO2().angles(SO2().compose(g, SO2().exp(w[None])))[0]
        value, slope = jax.jvp(turned, (jnp.zeros(()),), (jnp.ones(()),))
        assert value == angle and slope == 1.0


@pytest.mark.parametrize("group", [SO3(), SE3(), SOn(4), Euclidean(2)], ids=str)
def test_groups_without_angles(group):
    assert group.angles(group.identity()).shape == group.winding(group.identity(), group.identity()).shape == (0,)


def test_algebra_coordinates():
    np.testing.assert_array_equal(SO3().hat(jnp.array([1.0, 2, 3])), [[0, -3, 2], [3, 0, -1], [-2, 1, 0]])
    np.testing.assert_array_equal(SO2().hat(jnp.array([2.0])), [[0, -2], [2, 0]])
    np.testing.assert_array_equal(SE2().hat(jnp.array([2.0, 3, 4])), [[0, -2, 3], [2, 0, 4], [0, 0, 0]])
    np.testing.assert_array_equal(
        SOn(4).hat(jnp.arange(1.0, 7.0)), [[0, 1, 2, 3], [-1, 0, 4, 5], [-2, -4, 0, 6], [-3, -5, -6, 0]]
    )
    turn = SO3().exp(jnp.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(SO3().Ad_star(turn, jnp.arange(3.0)), turn.T @ jnp.arange(3.0), atol=1e-16)


def test_random_elements_are_on_the_group_and_differ():
    group = SO3() * Euclidean(2)
    g, h = jax.jit(jax.vmap(group.random))(jax.random.split(jax.random.key(0))), group.identity()
    first, second = (jax.tree.map(lambda part, k=k: part[k], g) for k in range(2))
    assert group.distance(first) < 1e-15 and gap(first, second) > 0.1 and gap(first, h) > 0.1


def test_names_factories_and_products():
    assert [str(SO(3)), str(SE(2)), str(SO(5)), str(SE(6))] == ["SO(3)", "SE(2)", "SO(5)", "SE(6)"]
    assert (SO(2), SO(3), SE(2), SE(3), SO(4), SE(5)) == (SO2(), SO3(), SE2(), SE3(), SOn(4), SEn(5))
    product = SO3() * (Euclidean(2) * SE2())
    assert product == Product((SO3(), Euclidean(2), SE2())) and hash(product) == hash(SO3() * Euclidean(2) * SE2())
    assert str(product) == "SO(3) x R^2 x SE(2)" and product.dim == 8
    assert jax.tree.leaves(product) == []


@over_groups
def test_element_projects_what_is_nearly_on_the_group(group):
    g = jax.jit(group.exp)(0.3 * jnp.ones(group.dim))
    nearly = jax.tree.map(lambda x: np.where(np.abs(x) < 1, np.asarray(x) * (1 + 1e-10), x).tolist(), g)
    projected = group.element(nearly)
    assert gap(projected, g) < 1e-9
    assert jax.jit(group.distance)(projected) < 2e-15
    assert jax.eval_shape(group.element, g) == jax.eval_shape(group.identity)


def test_element_accepts_angles_and_poses():
    np.testing.assert_allclose(SO2().angles(SO2().element(0.3)), [0.3], rtol=1e-15)
    pose = SE2().element([0.3, 1, 2])
    np.testing.assert_allclose(pose, [[np.cos(0.3), -np.sin(0.3), 1], [np.sin(0.3), np.cos(0.3), 2], [0, 0, 1]])
    slope = jax.jit(jax.jacfwd(lambda angle: SE2().element([angle, 1.0, 2.0])))(0.3)
    np.testing.assert_allclose(slope, SE2().tangent(pose, jnp.array([1.0, 0.0, 0.0])), atol=1e-16)


BAD = [
    (SO3(), np.eye(2), r"SO\(3\).*shape \(3, 3\).*shape \(2, 2\)"),
    (SO3(), np.diag([1.0, 1.0, 1.1]), r"R\^T R - 1.*0.21"),
    (SO3(), np.diag([1.0, 1.0, -1.0]), r"determinant \+1.*reflection"),
    (SO3(), np.full((3, 3), np.nan), "finite.*nan"),
    (SO3(), "upright", "real numbers.*upright"),
    (SO3(), np.eye(3) * 1j, "real numbers"),
    (SO2(), [1.0, 2.0], r"an angle.*shape \(2,\)"),
    (SO2(), None, "real numbers.*None"),
    (SE2(), [0.0, 1.0], r"\(angle, x, y\).*shape \(2,\)"),
    (SE3(), np.eye(4) + np.eye(4)[3][:, None] * np.eye(4)[0], "last row"),
    (SE3(), np.diag([2.0, 1.0, 1.0, 1.0]), r"R\^T R"),
    (SOn(4), [[1, 0], [0]], r"shape \(4, 4\)"),
    (Euclidean(2), [1.0, np.inf], "finite"),
    (Euclidean(2), 3.0, r"R\^2.*shape \(2,\).*shape \(\)"),
    (SO3() * Euclidean(2), np.eye(3), "tuple of 2"),
    (SO3() * Euclidean(2), (np.eye(3),), "tuple of 2 elements; given 1 entries; nest them by factor"),
    (SO3() * Euclidean(2), (np.eye(3), [0.0]), r"R\^2"),
]


@pytest.mark.parametrize("group, value, message", BAD, ids=[f"{group}-{k}" for k, (group, *_) in enumerate(BAD)])
def test_element_refuses(group, value, message):
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        group.element(value)


@pytest.mark.parametrize("make", [lambda: Euclidean(0), lambda: SOn(3), lambda: SEn(1), lambda: Product(())])
def test_impossible_groups_are_refused(make):
    with pytest.raises(InvalidInput, match="given"):
        make()


@over_groups
def test_steps_need_no_lapack(group):
    """What a step uses must compile to straight scalar code: no factorisation, no loop, no gather by data."""

    def used(xi, eta, g):
        return (
            group.exp(xi), group.cayley(xi), group.Ad(g, eta), group.Ad_star(g, eta), group.ad(xi, eta),
            group.ad_star(xi, eta), group.dexp(xi, eta), group.dcayley(xi, eta), group.dcayley_inverse(xi, eta),
            group.compose(g, g), group.inverse(g), group.winding(g, g), *([] if is_default else [group.normalise(g)]),
        )  # fmt: skip

    is_default = type(group).normalise is MatrixGroup.normalise  # by the logarithm, which iterates

    vector = jnp.zeros(group.dim)
    program = str(jax.make_jaxpr(used)(vector, vector, group.identity()))
    assert not re.findall(r"= (lu|qr|svd|eigh?|schur|cholesky|triangular_solve|while|scan|gather|scatter)\b", program)


def test_a_product_takes_its_groups_in_a_tuple_or_one_by_one():
    assert Product(SE2(), SO2()) == Product([SE2(), SO2()]) == SE2() * SO2()
    assert Product(SE2()).dim == 3
    with pytest.raises(InvalidInput, match=r"a product is made of groups, as Product.*; given \(SE2"):
        Product(SE2(), 3)
