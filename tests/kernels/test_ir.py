"""The scalar program: folding, sharing, hoisting, fusing, and what may not be folded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

import dalembert as da
from dalembert import kernels
from dalembert.kernels import Builder, LoweringError, lower, make_problem
from dalembert.kernels.ir import fma
from dalembert.kernels.lowering import operations
from dalembert.simulation import run_kernel

jax.config.update("jax_enable_x64", True)


def spec(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def program(function, *shapes, consts=()):
    """The program of loop -> function(consts, loop) on arrays of the given shapes."""
    loop = tuple(jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes)
    return lower(lambda c, loop, u: function(c, *loop), lambda c, loop: loop[0], spec(consts), loop, None)


def test_literal_zeros_and_ones_vanish():
    found = program(lambda c, x: (jnp.eye(3) @ (x * 1.0 + 0.0),), (3,)).program
    assert found.operations == 0 and found.next_state == found.state


def test_the_zeros_of_tangents_vanish():
    direct = program(lambda c, x: (2 * x,), (3,)).program
    by_jvp = program(lambda c, x: (jax.jvp(lambda y: y * y, (x,), (jnp.ones(3),))[1],), (3,)).program
    assert by_jvp.operations == direct.operations == 3


def test_halves_and_doubles_that_round_nothing_vanish():
    """x/2 + x/2 and 2 x - x are x; constants of a chain are one where one of them is a power of two, and no other."""
    found = program(
        lambda c, x: (jnp.stack([0.5 * x[0] + 0.5 * x[0], 2 * x[1] - x[1], -0.5 * (2.0 * x[2])]),), (3,)
    ).program
    assert found.operations == 0
    assert program(lambda c, x: (0.25 * (3.0 * x),), ()).program.operations == 1
    assert program(lambda c, x: (0.1 * (3.0 * x),), ()).program.operations == 2


def test_the_arms_of_a_transposed_choice_are_one_again():
    """A cotangent that both arms pass on stays, and others are one choice: no sums with zeros."""

    def pull(c, x):
        good = x[0] < 1.0
        same = jax.vjp(lambda y: jnp.where(good, y, y + 1.0), x[0])[1](x[1])[0]
        crossed = jax.vjp(lambda y: jnp.where(good, y, y[::-1]), x[:2])[1](x[1:])[0]
        return (jnp.concatenate([same[None], crossed]),)

    found = program(pull, (3,)).program
    assert found.count() == {"lt": 1, "select": 2}
    assert found.next_state[0] is found.state[1]


def test_identities_of_polynomials_are_found_in_equations_and_nowhere_else():
    """w (1 + y^2) - y (y w) is w, and sin^2 + cos^2 is 1, in what a name marks as equations."""

    def solved_equations(x):
        w, y, a = x
        turned = w * jnp.sin(a) * jnp.sin(a) + (jnp.cos(a) * w) * jnp.cos(a)
        return jnp.stack([w * (1.0 + y * y) - y * (y * w), turned, (w + y) * (w - y) + y * y - w * w])

    both = (jax.jit(solved_equations), solved_equations)
    named, plain = (program(lambda c, x, f=f: (f(x),), (3,)).program for f in both)
    w = named.state[0]
    assert named.operations == 0 and named.next_state[:2] == [w, w] and named.next_state[2].data == 0.0
    assert plain.operations > 40


def test_identities_leave_what_is_small_accurate():
    """sin^2 of a small angle is no 1 - cos^2, and (a - b)(a + b) is no difference of squares."""

    @jax.jit
    def solved_equations(x):
        a, b = x
        s, c = jnp.sin(a), jnp.cos(a)
        squares = [1.0 - c * c, b * b - 1.0]
        return jnp.stack([s * s, (3.0 * s) * s * b - (2.0 * s) * (s * b), (b - 1.0) * (b + 1.0), *squares])

    a, b = x = np.array([1e-7, 1.0 + 1e-9])
    found = kernels.run(lambda c, u, p: (c, solved_equations(c)), x, 1).records[0]
    np.testing.assert_allclose(found[:3], [a * a, a * a * b, (b - 1.0) * (b + 1.0)], rtol=1e-13)
    assert abs(found[3] / (a * a) - 1.0) > 1e-4  # as it is written


def test_a_factor_of_many_products_is_taken_out_of_equations():
    """c x y + c z w is c (x y + z w), also where a sum inside is wanted too, and c d is known before the run."""

    def solved_equations(c, x):
        products = 2.0 * (c[0] * x)  # six of them
        inside = products[0] * x[1] - products[2] * x[3]
        first = c[1] * (inside - (products[4] * x[5] + x[0] * products[1]))
        return jnp.stack(
            [first + x[0], -inside, jnp.sin(products[3]), products[5] * x[0] + x[1], c[0] * c[0] + x[2], x[3]]
        )

    c, x = np.array([7.3, 1.9]), np.linspace(0.3, 1.7, 6)
    named, plain = (
        program(lambda c, x, f=f: (f(c, x),), (6,), consts=c) for f in (jax.jit(solved_equations), solved_equations)
    )
    counts = [each.program.count()["mul"] + each.program.count()["fma"] for each in (named, plain)]
    assert counts[1] - counts[0] >= 7, "c and 2 six times each become 2 c four times, and c[1] goes with it"
    found = kernels.run(lambda x, u, c: (jax.jit(solved_equations)(c, x), x), x, 1, parameters=c, backend="llvm").carry
    np.testing.assert_allclose(found, solved_equations(c, x), rtol=1e-14)


def test_products_of_factors_are_made_before_the_run_only_where_they_are_few():
    """Each is held all through a run: a disk's step had 145 such numbers for 36 products less, and took twice the time
    on a GPU."""
    system, kernel = da.models.vertical_disk(radius=0.7), run_kernel(da.LagrangeDAlembert(), False)
    consts = system, np.asarray(0.1)
    loop = kernel.begin(consts, (system.state(), None))
    made = make_problem(kernel.advance, kernel.observe, consts, loop).lower().program
    read = {arg for value in operations(made) if value.block is not made.setup for arg in value.args}
    assert sum(value.block is made.setup and value.op != "const" for value in read) < 60


def test_sines_of_literals_are_numbers():
    """Nothing is noted of them: the builder looked for a number among its atoms."""

    @jax.jit
    def solved_equations(x):
        angle = jnp.zeros_like(x) + 0.75
        return x * jnp.sin(angle) + jnp.cos(angle)

    assert program(lambda c, x: (solved_equations(x),), ()).program.operations == 1


def test_identities_keep_to_their_blocks():
    """A value inside a loop is no value outside of it."""

    @jax.jit
    def solved_equations(x):
        inside = jax.lax.while_loop(lambda c: c < 10.0, lambda c: c + x[0] * x[1] * c, x[0])
        return jnp.stack([inside * x[1], x[1] * x[0] * inside])

    run = kernels.run(lambda c, u, p: (solved_equations(c), c), np.array([1.5, 0.3]), 3)
    expected = np.array([1.5, 0.3])
    for _ in range(3):
        expected = solved_equations.__wrapped__(expected)
    np.testing.assert_allclose(run.carry, expected, rtol=1e-13)


def test_common_subexpressions_are_computed_once():
    found = program(lambda c, x: (jnp.sin(x) + jnp.sin(x) * x + x * jnp.sin(x),), ()).program
    single = program(lambda c, x: (jnp.sin(x),), ()).program
    assert found.operations == single.operations + 2  # two additions, one of them fused with the product


def test_sine_and_cosine_share_their_reduction():
    both, one = (program(lambda c, x: (f(x),), ()).program for f in (lambda x: jnp.sin(x) + jnp.cos(x), jnp.sin))
    assert both.operations < one.operations + 15


def test_products_are_fused_but_a_difference_of_equals_is_not():
    found = program(
        lambda c, x: (jnp.array([x[0] * x[1] + x[2], x[2] - x[0] * x[2], x[1] * x[1] - x[1] * x[1]]),), (3,)
    ).program
    assert found.count()["fma"] == 2 and found.count()["sub"] == 1


def test_what_only_depends_on_constants_leaves_the_loop():
    found = program(lambda c, x: (x + jnp.sin(c[0]) / c[0],), (), consts=(1.0,)).program
    assert found.operations == 1 and sum(found.count("setup").values()) > 20


def test_division_by_a_constant_becomes_a_product_with_its_reciprocal():
    found = program(lambda c, x: (x / c[0],), (3,), consts=(2.0,)).program
    assert found.count() == {"mul": 3} and found.count("setup") == {"div": 1}


def test_a_single_division_stays_a_division():
    assert program(lambda c, x: (1.5 + x / (1 + x),), ()).program.count()["div"] == 1


def test_captured_arrays_are_inputs_but_structure_folds():
    weights, basis = np.array([2.5, 3.5]), np.array([[0.0, 1.0], [-1.0, 0.0]])
    found = program(lambda c, x: (weights * (basis @ x),), (2,))
    assert len(found.program.constants) == 2 and found.program.operations == 2
    np.testing.assert_array_equal(found.captured[0], weights)


def test_dead_carries_of_loops_are_removed():
    def function(c, x):
        return (jax.lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + x, jnp.sin(s[1])), (x, x))[0],)

    assert program(function, ()).program.count()["fma"] == 0


def test_a_program_prints_hashes_and_counts_alike_in_two_lowerings():
    arguments = (spec(toys.consts()), spec(toys.start()), None)
    first, second = (lower(toys.advance, toys.observe, *arguments).program for _ in range(2))
    assert first.text == second.text and first.digest == second.digest
    assert first.operations == sum(first.count().values()) > 100
    assert "loop" in str(first) and "while" in str(first)


def test_other_parameters_give_the_same_program():
    one, two = (
        lower(toys.advance, toys.observe, spec(toys.consts(h)), spec(toys.start()), None).program for h in (0.1, 0.2)
    )
    assert one.digest == two.digest


def test_the_operation_budget_is_named():
    with pytest.raises(LoweringError, match="more than 100 scalar operations"):
        lower(toys.advance, toys.observe, spec(toys.consts()), spec(toys.start()), None, budget=100)


def test_constants_fold_to_the_bits_that_machines_compute():
    assert fma(1.0 + 2.0**-30, 1.0 - 2.0**-30, -1.0) == -(2.0**-60)
    b = Builder()
    assert b.div(b.const(1.0), b.const(0.0)).data == np.inf
    assert b.convert(b.const(1e300), "i64").data == 2**63 - 1 and b.convert(b.const(np.nan), "i64").data == 0
    assert b.emit("round", "f64", b.const(2.5)).data == 2.0
