"""Laws of the small linear algebra and of Newton's method: values, signs, derivatives, and what a step may contain."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import case, more

import dalembert as da
from dalembert.kernels import Loop, curvature, eliminate, lower
from dalembert.numerics import depends, find_root, solve, solve_saddle
from dalembert.numerics.solvers import direction, divide_equations

RNG = np.random.default_rng(7)
MATRICES = {
    "random": RNG.normal(size=(5, 5)),
    "needs pivots": np.array([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [3.0, 0.0, 1e-20]]),
    "negative": np.diag([-1.0, 2.0, 3.0]),
    "swap": np.array([[0.0, 1.0], [1.0, 0.0]]),
    "one": np.array([[-4.0]]),
    "scales": np.array([[1e-9, 1.0, 0.0], [1.0, 1.0, 1e6], [0.0, 1e6, 1e9]]) + np.eye(3),
}


@pytest.mark.parametrize("key", MATRICES)
def test_elimination_solves_and_knows_the_sign_of_the_determinant(key):
    matrix = MATRICES[key]
    rhs = RNG.normal(size=(len(matrix), 2))
    solution, sign = eliminate(jnp.asarray(matrix), jnp.asarray(rhs))
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, rhs), rtol=1e-12, atol=1e-13)
    assert float(sign) == np.linalg.slogdet(matrix)[0]
    np.testing.assert_allclose(solve(jnp.asarray(matrix), jnp.asarray(rhs[:, 0])), solution[:, 0], rtol=1e-13)


@pytest.mark.parametrize("axes", [(None, 0), (None, 1), (0, 0), (0, None)])
def test_many_solves_at_once(axes):
    """One matrix for all members is eliminated once, with their right-hand sides as columns."""
    matrix, rhs = RNG.normal(size=(5, 4, 4)), RNG.normal(size=(5, 4, 2))
    given = (matrix if axes[0] == 0 else matrix[0], rhs[0] if axes[1] is None else np.moveaxis(rhs, 0, axes[1]))
    solutions, signs = jax.vmap(eliminate, axes)(*map(jnp.asarray, given))
    matrices = np.broadcast_to(given[0], matrix.shape)
    sides = np.broadcast_to(rhs[0] if axes[1] is None else rhs, rhs.shape)
    expected = np.linalg.solve(matrices, sides)
    np.testing.assert_allclose(solutions, expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(signs, np.linalg.slogdet(matrices)[0])


def test_nothing_is_solved_where_there_is_no_constraint():
    solutions, signs = jax.vmap(lambda b: eliminate(jnp.zeros((0, 0)), b))(jnp.zeros((3, 0, 2)))
    assert solutions.shape == (3, 0, 2)
    np.testing.assert_array_equal(signs, 1.0)


def test_a_jaxpr_of_solves_does_not_grow_with_their_number():
    shared = jnp.asarray(MATRICES["random"])
    counts = {len(jax.make_jaxpr(jax.vmap(lambda b: solve(shared, b)))(jnp.ones((n, 5))).eqns) for n in (2, 100_000)}
    assert len(counts) == 1


def test_a_singular_matrix_is_no_silent_answer():
    for matrix in (jnp.array([[1.0, 2.0], [2.0, 4.0]]), jnp.ones((3, 3)), jnp.zeros((1, 1))):
        solution, _ = eliminate(matrix, jnp.ones((len(matrix), 1)))
        assert not np.all(np.isfinite(solution))


def test_the_derivatives_of_solve():
    matrix, rhs = jnp.asarray(MATRICES["random"]), jnp.asarray(RNG.normal(size=5))
    weight = jnp.asarray(RNG.normal(size=5))

    def function(matrix, rhs):
        return weight @ solve(matrix, rhs)

    by_matrix, by_rhs = jax.jit(jax.grad(function, argnums=(0, 1)))(matrix, rhs)
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(by_rhs, inverse.T @ weight, rtol=1e-11)
    np.testing.assert_allclose(by_matrix, -np.outer(inverse.T @ weight, inverse @ rhs), rtol=1e-10)
    second = jax.jit(jax.hessian(lambda r: solve(matrix * (1 + r @ r), rhs)[0]))(rhs)
    expected = jax.jit(jax.hessian(lambda r: (jnp.asarray(inverse) @ rhs)[0] / (1 + r @ r)))(rhs)
    np.testing.assert_allclose(second, expected, rtol=1e-10, atol=1e-12)


METRICS = {
    "definite": np.eye(4) + 0.1 * np.ones((4, 4)),
    "indefinite": np.array([[0.0, 1.0, 0.0, 0.2], [1.0, 0.0, 0.3, 0.0], [0.0, 0.3, -1.0, 0.1], [0.2, 0.0, 0.1, 2.0]]),
    "singular": np.diag([1.0, 2.0, 3.0, 0.0]),
    "all but singular": np.diag([1.0, 1e-12, 3.0, 2.0]) + 1e-13 * np.eye(4)[::-1],
}
SADDLE = np.random.default_rng(11).normal(size=(3, 2, 4))


@jax.jit
@partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
def _pairing(metric, rows, top, bottom, weight):
    solution = jnp.concatenate(solve_saddle(metric, rows, top, bottom))
    return weight @ solution, solution


@pytest.mark.parametrize("key", METRICS)
def test_the_saddle_point(key):
    """Any metric will do while it is regular on the kernel of the rows."""
    metric, rows, top, bottom = METRICS[key], SADDLE[0], SADDLE[1, 0], SADDLE[1, 1, :2]
    matrix = np.block([[metric, rows.T], [rows, np.zeros((2, 2))]])
    expected = np.linalg.solve(matrix, np.concatenate([top, bottom]))
    weight = jnp.asarray(SADDLE[2].ravel()[:6])
    (_, found), slopes = _pairing(metric, rows, top, bottom, weight)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
    back = np.linalg.solve(matrix.T, weight)
    x, l = np.split(expected, [4])
    np.testing.assert_allclose(np.concatenate(slopes[2:]), back, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(slopes[0], -np.outer(back[:4], x), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(slopes[1], -np.outer(l, back[:4]) - np.outer(back[4:], x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("split", [None, 5])
@pytest.mark.parametrize("kind", ["near a metric", "needs pivots"])
def test_the_direction_of_newton(kind, split):
    """Large systems do without exchanges of rows where the pivots are fair, and with them elsewhere."""
    rng = np.random.default_rng(3)
    block = -np.eye(5) + 0.1 * rng.normal(size=(5, 5)) if kind == "near a metric" else np.eye(5)[::-1]
    matrix = block
    if split is not None:
        matrix = np.block([[block, rng.normal(size=(5, 2))], [rng.normal(size=(2, 5)), np.zeros((2, 2))]])
    rhs = rng.normal(size=(len(matrix), 1))
    found, sign = jax.jit(lambda a, b: direction(a, b, split))(matrix, rhs)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, rhs), rtol=1e-11, atol=1e-12)
    assert float(sign) == np.linalg.slogdet(matrix)[0]


def test_newton_converges_to_round_off_and_differentiates_by_the_implicit_function_theorem():
    def root(a):
        return find_root(lambda x: jnp.stack([x[0] ** 3 - a, x[1] - jnp.sin(x[0])]), jnp.array([1.5, 0.0])).x

    cube = np.cbrt(2.0)
    np.testing.assert_allclose(root(2.0), [cube, np.sin(cube)], rtol=4e-16)
    slope = 1 / (3 * cube**2)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(root))(2.0), [slope, np.cos(cube) * slope], rtol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.jacrev(root))(2.0), [slope, np.cos(cube) * slope], rtol=1e-14)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_asked_for_at_a_root_has_the_derivatives_that_it_has_there(whole):
    """`more` is a short way: the same numbers as the function at the root, in all directions, once and twice."""

    def shown(a, short):
        work = lambda x: jnp.sin(a[0] * x) * jnp.exp(a[1] * x[::-1])
        f = lambda x: x + 0.2 * work(x) - a[1:]
        more = lambda x: {"work": work(x), "both": (x[0] * a[2], jnp.outer(x, work(x)))}
        guess, anchor = jnp.array([0.5, -0.5]), jnp.array([0.4, -0.4])
        root = find_root(f, guess, anchor=anchor, whole=whole, more=more if short else None)
        given = root.more if short else more(root.x)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in (*jax.tree.leaves(given), root.x)])

    a, weights = jnp.array([0.7, 0.4, -0.3]), jnp.cos(jnp.arange(9.0))
    twice, of_lanes = lambda f: jax.jacfwd(jax.jacrev(f)), lambda f: lambda a: jax.vmap(f)(jnp.stack([a, 1.1 * a]))
    for of in (lambda f: f, jax.jacfwd, jax.jacrev, twice, lambda f: of_lanes(jax.grad(lambda a: weights @ f(a)))):
        short, long = (jax.jit(of(lambda a, way=way: shown(a, way)))(a) for way in (True, False))
        np.testing.assert_allclose(short, long, rtol=1e-12, atol=1e-13)
    assert find_root(lambda x: x - 1.0, jnp.zeros(1)).more == ()


A = np.array([2.0, 0.3, -1.1, 0.7])
EQUATIONS = {  # (f(x), whether it is solved without iterating)
    "affine": (lambda x: jnp.array([[3.0, 1.0, 0.2], [0.5, -2.0, 1.0], [1.0, 0.3, 4.0]]) @ x - A[:3] * A[3], True),
    "one after the other": (lambda x: jnp.stack([x[0] * (2.0 + x[1]) - A[0], x[1] + A[1]]), True),
    "exchanged": (lambda x: jnp.stack([x[1] * A[0] - 1.0, x[0] * x[1] + A[2]]), True),
    "three in turn": (
        lambda x: jnp.stack([x[2] - A[0], x[0] * jnp.cos(x[2]) - A[1], x[0] * x[1] * x[2] + x[0] ** 3 - A[2]]),
        True,
    ),
    "a cube between": (
        lambda x: jnp.stack([x[0] + A[3], x[0] + x[1] ** 3 + x[1] - A[0], x[1] ** 2 * x[2] + x[2] - x[0], x[3] - x[0]]),
        False,
    ),
    "a square": (lambda x: jnp.stack([x[0] ** 2 - A[0], x[1] * x[0] + x[1] - 1.0]), False),
}


@pytest.mark.parametrize("key", [key if key in ("three in turn", "a cube between") else more(key) for key in EQUATIONS])
def test_affine_equations_are_solved_without_iterating_and_as_newton_solves_them(key):
    """Values, the sign of the determinant and derivatives are Newton's; the program of an affine solve has no loop."""
    equations, explicit = EQUATIONS[key]
    guess = 1.0 + 0.1 * np.arange({"affine": 3, "three in turn": 3, "a cube between": 4}.get(key, 2))

    def root(shift, anchor):
        found = find_root(lambda x: equations(x) - shift, guess, anchor=anchor)
        return found.x, found

    def with_slope(anchor):
        return jax.jit(lambda shift: (*root(shift, anchor), jax.jacrev(lambda s: root(s, anchor)[0])(shift)))(0.01)

    (divided, found, slope), (whole, _, slope_of_whole) = with_slope(guess), with_slope(None)
    np.testing.assert_allclose(divided, whole, rtol=4e-15)
    assert bool(found.converged) and float(found.residual) < 1e-14
    assert float(found.sign) == np.sign(np.linalg.det(jax.jacfwd(equations)(divided)))
    np.testing.assert_allclose(slope, slope_of_whole, rtol=1e-13)
    lowered = lower(lambda p, c, u: root(p, guess)[0], lambda p, c: c, np.asarray(0.01), guess, None)
    loops = [each for each in lowered.program.advance.statements if isinstance(each, Loop)]
    assert (not loops) == explicit
    assert float(found.iterations) == 1.0 or not explicit


def test_newton_is_left_with_what_is_not_affine():
    """The equations of a part need no unknowns of later ones."""
    closed = jax.make_jaxpr(EQUATIONS["a cube between"][0])(jnp.ones(4))
    parts = divide_equations(curvature(closed, [True] * len(closed.consts), 100))
    assert [part.unknowns for part in parts.first] == [[0, 3]]
    assert parts.rest == ([1], [1]) and [part.unknowns for part in parts.last] == [[2]]


@jax.custom_jvp
def flat(x):
    """x, without a slope."""
    return 1.0 * x


flat.defjvp(lambda primals, tangents: (primals[0], jnp.zeros_like(tangents[0])))


@pytest.mark.parametrize("hidden", [jax.lax.stop_gradient, flat], ids=["stopped", "by a rule"])
def test_equations_that_hide_a_slope_are_iterated(hidden):
    """1.1 x - 1 has a slope of 1 for who stops gradients: one linear solve would miss the root."""
    guess = jnp.array([0.3])
    found = find_root(lambda x: x + 0.1 * hidden(x) - 1.0, guess, anchor=guess)
    np.testing.assert_allclose(found.x, 1.0 / 1.1, rtol=1e-11)  # ends at an update of 1.5e-11, a tenth of the last


@pytest.mark.parametrize("count", [2, 3, 5])
def test_affine_equations_without_one_root_have_none(count):
    """A matrix of rank one but for round-off has finite garbage for an inverse, which is no proof of a root."""
    column = jnp.array([0.1, 0.3, 0.7, 1.1, 1.3])[:count]
    matrix, guess = column[:, None] * (column * 3.3)[None, :] / 3.3, jnp.ones(count)
    found = find_root(lambda x: matrix @ x - jnp.arange(1.0, count + 1.0), guess, anchor=guess)
    assert not bool(found.converged)


def test_a_second_update_proves_nothing_where_another_direction_bends():
    """d = (1/300, 1e-8) leaves e = 3e-11 by the product alone: e^2/d is tiny, but the error is e/300, 1e-13."""
    equations = lambda x: jnp.stack([x[0] - 1.0, (x[0] - 1.0 + 1.0) * x[1] - 1e-8])
    coupled = lambda x: equations(x) + 1e-3 * jnp.stack([(x[1] - 1e-8) ** 3, x[0] ** 2 - x[0]])
    guess = jnp.array([1.0 - 1.0 / 300.0, 0.0])
    found = find_root(coupled, guess, anchor=guess)
    np.testing.assert_allclose(coupled(found.x), 0.0, atol=1e-19)


def test_the_particle_steps_without_iterating():
    """Its equations are affine in w_2, and then in w_1; C by hand does the same."""
    system = da.models.nonholonomic_particle("harmonic")
    state = system.state([0.3, 0.5, -0.2], [1.1, 0.7, 0.55])
    run = da.simulate(system, da.LagrangeDAlembert(), state, step=0.1, steps=100)
    assert set(run.iterations[1:]) == {1} and float(np.max(run.residual)) < 1e-15


def test_a_matrix_of_newton_serves_two_updates():
    """At h = 0.05 a parabola leaves 1e-5 of Suslov's displacement: d, and e = c d^2 by the same matrix, are enough."""
    system = da.models.suslov([[3.0, 0.0, 1.0], [0.0, 4.0, 0.5], [1.0, 0.5, 5.0]])
    run = da.simulate(system, da.EulerPoincareSuslov(), system.state(momentum=[3.0, 2.0]), step=0.05, steps=400)
    assert float(np.mean(run.iterations[3:])) < 1.2
    assert float(np.max(run.residual)) < 1e-15


def test_newton_says_that_there_is_no_root():
    result = find_root(lambda x: x**2 + 1.0, jnp.array([0.7]))
    assert not bool(result.converged)
    assert bool(find_root(lambda x: x**2 - 1.0, jnp.array([0.7])).converged)


def test_newton_stays_on_the_branch_of_its_orientation():
    """x^2 = 1 from the anchor 3: with the sign of the branch x > 0 the root -1 near the guess is refused."""
    free = find_root(lambda x: x**2 - 1.0, jnp.array([-0.2]))
    bound = find_root(lambda x: x**2 - 1.0, jnp.array([-0.2]), anchor=jnp.array([3.0]), sign=jnp.ones(()))
    assert float(free.x[0]) == -1.0
    assert float(bound.x[0]) == pytest.approx(1.0, abs=1e-15)
    assert bool(bound.converged)
    lost = find_root(lambda x: x**2 + 1.0, jnp.array([2.0]), anchor=jnp.array([3.0]), sign=jnp.ones(()))
    assert not bool(lost.converged)


@pytest.mark.parametrize(
    "key, method",
    [
        ("heavy_suslov", da.LagrangeDAlembert()),
        ("driven", da.LagrangeDAlembert(nodes="velocity")),
        ("ball", da.LagrangeDAlembert(da.Exponential())),
        ("suslov", da.EulerPoincareSuslov()),
        ("sleigh", da.RetractionAdapted()),
        ("quartic", da.LagrangeDAlembert()),
    ],
    ids=str,
)
def test_no_step_calls_lapack(key, method):
    """A step must lower to straight scalar code: no lu, no triangular solve, no qr, svd or eigh."""
    system, state = case(key)

    def step(system, state, h):
        carry, _ = method.start(system, state, h)
        return method.step(system, carry, h)

    text = str(jax.make_jaxpr(step)(system, state, 0.1))
    for word in (
        "lu",
        "lu_pivots_to_permutation",
        "triangular_solve",
        "cholesky",
        "householder_product",
        "qr",
        "svd",
        "eigh",
    ):
        assert f" {word}[" not in text and f"= {word} " not in text, word
    assert "while" in text


def test_dependence_is_read_from_the_program():
    assert depends(lambda x: x**2, jnp.ones(2))
    assert not depends(lambda x: x**0 + jnp.ones(2), jnp.ones(2))
    assert not depends(jax.jacfwd(lambda x: 3 * x), jnp.ones(2))
    assert depends(jax.jacfwd(lambda x: 3 * x**2), jnp.ones(2))
    assert depends(jax.jit(lambda x: jnp.sin(x)), jnp.ones(2))
