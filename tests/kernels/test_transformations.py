"""JAX transformations of runs: native code gives what JAX gets from the same run as a `lax.scan`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dalembert import kernels, numerics
from dalembert.kernels import adjoints, llvm, transformations

STEPS = 12
PARAMETERS = {"h": jnp.array(0.05), "k": jnp.array(1.3)}
START = {"q": jnp.array([0.3, -0.2]), "v": jnp.array([0.1, 0.4]), "count": 0}
PUSHES = jnp.sin(jnp.arange(2.0 * STEPS)).reshape(STEPS, 2)


def swing(carry, push, parameters):
    """Two pendulums with a spring between them; an integer goes along."""
    h, q = parameters["h"], carry["q"]
    v = carry["v"] - h * parameters["k"] * jnp.sin(q) + h * (q[::-1] - q) + h * push
    return {"q": q + h * v, "v": v, "count": carry["count"] + 1}, {"energy": v @ v + q[0], "count": carry["count"]}


def loss(parameters, start, pushes, backend="llvm", save_every=1):
    carry = {**START, **start}
    run = kernels.run(swing, carry, STEPS, inputs=pushes, parameters=parameters, save_every=save_every, backend=backend)
    return jnp.sum(jnp.sin(run.records["energy"]) * jnp.arange(1.0, 1 + STEPS // save_every)) + run.carry["q"][1] ** 2


GIVEN = (PARAMETERS, {"q": START["q"], "v": START["v"]}, PUSHES)
TRANSFORMATIONS = {
    "grad": lambda f: jax.grad(f, (0, 1, 2)),
    "jit of grad": lambda f: jax.jit(jax.grad(f, (0, 1, 2))),
    "jacfwd": lambda f: jax.jacfwd(f, (0, 1, 2)),
    "jacrev": lambda f: jax.jacrev(lambda *x: jnp.stack([f(*x), f(*x) ** 2]), (0, 1)),
    "hessian": lambda f: jax.hessian(f, (0, 1)),
    "reverse over reverse": lambda f: jax.jacrev(jax.grad(f, 0), 1),
    "vmap": lambda f: lambda p, s, u: jax.vmap(f, (None, 0, None))(p, many(s), u),
    "vmap of grad": lambda f: lambda p, s, u: jax.vmap(jax.grad(f, (0, 2)), (None, 0, None))(p, many(s), u),
    "grad of vmap": lambda f: jax.grad(lambda p, s, u: jax.vmap(f, (None, 0, None))(p, many(s), u).sum(), (0, 1, 2)),
    "scan": lambda f: lambda p, s, u: jax.lax.scan(lambda c, a: (c + f(p, s, a * u), c), 0.0, jnp.arange(3.0)),
}


def many(start):
    return jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf, leaf - 0.2]), start)


def agree(found, expected, tolerance=1e-12):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


CASES = [(name, 1) for name in TRANSFORMATIONS if name != "hessian"] + [("grad", 4), ("grad of vmap", STEPS)]
REST = [(name, every) for every in (1, 4, STEPS) for name in TRANSFORMATIONS if (name, every) not in CASES]


@pytest.mark.parametrize(
    ("name", "save_every"), [*CASES, *(pytest.param(*case, marks=pytest.mark.heavy) for case in REST)]
)
def test_a_transformed_run_is_that_of_a_scan(name, save_every):
    transform = TRANSFORMATIONS[name]
    found, expected = (
        transform(lambda *x, b=backend: loss(*x, backend=b, save_every=save_every))(*GIVEN)
        for backend in ("llvm", "xla")
    )
    agree(found, expected)


@pytest.mark.parametrize("save_every", [1, 3, STEPS])
def test_carries_that_do_not_fit_are_computed_again(save_every, monkeypatch):
    """Segments with a remainder, inside a record and over several, give the gradient of the whole to the last bit."""

    def end(*x):
        return jax.grad(lambda *x: loss(*x, save_every=save_every), (0, 1, 2))(*x)

    lanes = jax.grad(lambda p, s, u: jax.vmap(lambda a: loss(p, a, u, save_every=save_every))(many(s)).sum())
    whole, of_lanes = end(*GIVEN), lanes(*GIVEN)
    for steps in (1, 2, 5, 7):
        adjoints.memory.entries.clear()
        monkeypatch.setattr(adjoints.NativeAdjoint, "segment_steps", steps)
        agree(end(*GIVEN), whole, 0)
        agree(lanes(*GIVEN), of_lanes, 0)
    monkeypatch.undo()
    for words in (16, 10):  # the same in JAX, of which second derivatives are made
        monkeypatch.setattr(transformations, "MAX_KEPT_WORDS", words)
        monkeypatch.setattr(adjoints, "MAX_KEPT_WORDS", words)
        monkeypatch.setitem(transformations._executors, "native", lambda lanes, backend: False)
        agree(end(*GIVEN), whole, 1e-14)
        agree(lanes(*GIVEN), of_lanes, 1e-14)


def test_a_transpose_takes_what_its_own_run_kept(monkeypatch):
    """Two runs of one kind and other numbers: each transpose finds its own, or runs again to the same bits."""
    shifted = jax.tree.map(lambda leaf: leaf + 0.01, GIVEN[0])

    def both(p, s, u):
        return loss(p, s, u) * loss(shifted, s, 2 * u) + loss(p, s, u)

    runs = []
    advance = adjoints.NativeAdjoint._advance
    monkeypatch.setattr(
        adjoints.NativeAdjoint, "_advance", lambda self, *given: (runs.append(self), advance(self, *given))
    )
    gradient = jax.grad(both, (0, 1, 2))
    adjoints.memory.entries.clear()
    found = gradient(*GIVEN)
    assert len(runs) == 3
    agree(found, jax.grad(lambda *x: both(*x), (0, 1, 2))(*GIVEN), 0)
    monkeypatch.setattr(adjoints.memory, "take", lambda key, given: None)
    agree(gradient(*GIVEN), found, 0)
    assert len(runs) == 3 + 3 + 6


def test_a_record_without_steps_says_nothing_of_their_pace(monkeypatch):
    """The record before the first step is a call of no steps: the steps after it are not taken one by one."""
    calls = []
    call = llvm.LaneThreads.call
    monkeypatch.setattr(llvm.LaneThreads, "call", lambda self, *given: (calls.append(given[2]), call(self, *given)))

    def end(start):
        problem = kernels.make_problem(fall, lambda consts, carry: carry, 0.01, start)
        return jnp.sum(kernels.run_problem(problem, saves=2000, initial=True, backend="llvm").records)

    jax.grad(end)(jnp.array([1.0, 0.5]))
    assert 3 <= len(calls) <= 8


def fall(h, carry, control):
    return carry + h * jnp.stack([carry[1], -jnp.sin(carry[0])])


def root_step(carry, push, parameters):
    """An implicit midpoint step of a pendulum, by Newton's method."""
    h = parameters["h"]

    def gap(x):
        return x - carry - h * jnp.stack([0.5 * (x + carry)[1], -jnp.sin(0.5 * (x + carry)[0]) + push[0]])

    return numerics.find_root(gap, carry).x, carry[0]


def test_a_step_backwards_iterates_nothing(monkeypatch):
    """The solutions of the run are kept: the program of the transposed step has no loop, and the right derivatives."""
    programs = []
    lower = kernels.problem.Problem.lower

    def noting(problem, *args):
        found = lower(problem, *args)
        if isinstance(problem.advance, adjoints.TransposedAdvance):
            programs.append(found.program)
        return found

    def end(parameters, start, pushes, backend):
        run = kernels.run(root_step, start, STEPS, inputs=pushes, parameters=parameters, backend=backend)
        return jnp.sum(run.records**2) + run.carry[1]

    monkeypatch.setattr(kernels.problem.Problem, "lower", noting)
    given = ({"h": jnp.array(0.1)}, jnp.array([0.4, 0.3]), PUSHES)
    found, expected = (jax.grad(lambda *x, b=b: end(*x, b), (0, 1, 2))(*given) for b in ("llvm", "xla"))
    agree(found, expected)
    assert programs
    assert not any(isinstance(each, kernels.Loop) for each in programs[0].advance.statements)
    forwards = kernels.lower(lambda c, x, u: root_step(x, u, c)[0], lambda c, x: x, given[0], given[1], PUSHES[0])
    assert any(isinstance(each, kernels.Loop) for each in forwards.program.advance.statements)


def grow(factor, carry, control):
    """Steps that are counted while they are good."""
    x, count = carry
    good = kernels.note_value(lambda: jnp.sum(x) < 3.0, np.zeros((), bool), lasting=True)
    return jnp.where(good, factor * x * (1.0 + 0.01 * count), x), jnp.where(good, count + 1.0, count)


@pytest.mark.parametrize("save_every", [1, 3, STEPS])
def test_what_the_number_of_good_steps_tells_is_not_kept(save_every, monkeypatch):
    """Runs that stay good, that stop on the way and that never begin; in one piece and in several."""
    made = []
    build = adjoints.NativeAdjoint._build
    monkeypatch.setattr(adjoints.NativeAdjoint, "_build", lambda self, *x: (made.append(self), build(self, *x))[1])
    adjoints.find_adjoint.cache_clear()

    def end(factor, start, count, backend):
        problem = kernels.make_problem(grow, lambda consts, carry: carry[0] * carry[1], factor, (start, count))
        options = {"saves": STEPS // save_every, "save_every": save_every, "initial": True, "backend": backend}
        run = kernels.run_problem(problem, **options)
        weights = jnp.cos(jnp.arange(1.0 * run.records.size)).reshape(run.records.shape)
        return jnp.sum(weights * run.records) + jnp.sum(run.carry[0] ** 2)

    for start in ([0.1, 0.2], [0.01, 0.02], [2.0, 1.5]):
        given = jnp.array(1.2), jnp.array(start), 5.0
        found, expected = (jax.grad(end, (0, 1, 2))(*given, backend) for backend in ("llvm", "xla"))
        agree(found, expected)
        with monkeypatch.context() as several:
            adjoints.memory.entries.clear()
            several.setattr(adjoints.NativeAdjoint, "segment_steps", 5)
            agree(jax.grad(end, (0, 1, 2))(*given, "llvm"), found, 0)
    assert {each.forwards.kept for each in made} == {2}


def test_a_loop_of_lanes_ends_for_each_of_them_alone():
    """What jax.vmap makes of a loop with a condition has a condition for each lane: it had no native code."""

    def grow(x):
        return jax.lax.while_loop(lambda y: jnp.abs(y) < 3.0, lambda y: y * (1.3 + 0.1 * x * x), x)

    def step(carry, inputs, factor):
        return jnp.sin(factor * jax.vmap(grow)(carry)), carry

    def end(factor):
        return kernels.run(step, jnp.array([0.3, -1.2, 2.0]), 2, parameters=factor, backend="llvm").carry

    found, size = jax.jacfwd(end)(0.7), 1e-6
    np.testing.assert_allclose(found, (end(0.7 + size) - end(0.7 - size)) / (2 * size), rtol=1e-6)
    agree(jax.jacrev(end)(0.7), found)


def test_what_has_no_native_code_is_differentiated_by_xla():
    def step(carry, inputs, parameters):
        return parameters @ jnp.linalg.cholesky(jnp.eye(2) + jnp.outer(carry, carry)) @ carry, carry

    def end(matrix, backend):
        return kernels.run(step, jnp.ones(2), 3, parameters=matrix, backend=backend).carry.sum()

    matrix = jnp.array([[0.3, 0.1], [-0.2, 0.5]])
    with pytest.warns(UserWarning, match="cholesky"):
        found = jax.grad(lambda m: end(m, "auto"))(matrix)
    agree(found, jax.grad(lambda m: end(m, "xla"))(matrix))
    with pytest.raises(kernels.LoweringError, match="cholesky"):
        jax.grad(lambda m: end(m, "llvm"))(matrix)


def test_a_transformed_run_compiles_nothing_twice(monkeypatch):
    def gradient():
        return jax.grad(loss, (0, 1, 2))(*GIVEN)

    gradient()
    monkeypatch.setattr(transformations.Problem, "lower", refuse_to_trace(transformations.Problem.lower))
    gradient()


def refuse_to_trace(lower):
    def only_known(problem, *args):
        from dalembert.kernels import problem as module

        before = len(module._programs)
        found = lower(problem, *args)
        assert len(module._programs) == before
        return found

    return only_known


def keep_three(carry, push, parameters):
    """What `guess` becomes never reaches the others; what the others become does reach it."""
    x, y, guess = carry
    x, y = jax.lax.cond(guess > 100.0, lambda: (x, y), lambda: (x * parameters, y + jnp.sin(x)))
    return (x, y, guess + x * y), (x, guess)


@pytest.mark.parametrize(
    ("some", "reached"), [("x", "x"), ("y", "xy"), ("guess", "xyg"), ("record x", "x"), ("record guess", "xyg")]
)
def test_only_what_a_result_is_made_of_gets_cotangents(some, reached):
    outputs = ["x", "y", "guess", "last x", "last guess", "record x", "record guess"]
    problem = kernels.compile(keep_three, (0.5, 0.7, 0.1), parameters=1.1).problem
    trees, axes = (problem.consts, problem.carry, problem.controls), ((False,), (False,) * 5, ())
    structures = tuple(map(jax.tree.structure, trees))
    spec = adjoints.RunSpec(problem.advance, problem.observe, structures, axes, None, 3, 1, True, "llvm")
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves((problem.consts, problem.carry))]
    adjoint = transformations.adjoint_of(spec, (True,) * 6, leaves)
    found = adjoint.reached(tuple(name == some for name in outputs))
    # the record before the first step is that of the carry's outputs, which no step reads
    assert "".join(name[0] for name, mark in zip(outputs[:3], found, strict=False) if mark) == reached
    assert found[3:] == (some == "record x", some == "record guess")
    cotangents = [np.ones(leaf.shape) for leaf in leaves[1:]] + [np.ones(4), np.ones(4)]
    pulled = adjoint.pull(
        leaves, [each if name == some else None for name, each in zip(outputs, cotangents, strict=True)], False
    )
    assert [bool(np.any(each)) for each in pulled[1:]] == list(found)
