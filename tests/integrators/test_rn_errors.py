"""Nonlinear constraints, adapted coordinates and embeddings refuse what they cannot take, and say what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import jax.numpy as jnp
import pytest
import rn
from registry import case

import dalembert as da
from dalembert.papers.jimenez_scheurle import embed


def _kinetic(t, q, v, p):
    return 0.5 * v @ v


def _speed(t, q, v, p):
    return jnp.stack([v @ v - 1.0])


UNIT_SPEED = da.mechanics.NonlinearSystem(da.Euclidean(2), _kinetic, _speed)


def test_nonlinear_constraint_of_a_wrong_shape():
    scalar = da.mechanics.NonlinearSystem(da.Euclidean(2), _kinetic, lambda t, q, v, p: v @ v - 1.0)
    with pytest.raises(da.InvalidInput, match=r"gave shape \(\); allowed: \(m,\) with m < 2"):
        scalar.state([0.0, 0.0], [1.0, 0.0])
    many = da.mechanics.NonlinearSystem(da.Euclidean(2), _kinetic, lambda t, q, v, p: v)
    with pytest.raises(da.InvalidInput, match=r"gave shape \(2,\)"):
        many.state([0.0, 0.0], [0.0, 0.0])


def test_nonlinear_constraint_that_is_violated_or_singular():
    with pytest.raises(
        da.errors.OffConstraint, match=r"off the constraint.*project\(g, xi\) = \[0\.(6|59999).*, 0\.(8|79999)"
    ):
        UNIT_SPEED.state([0.0, 0.0], [0.9, 1.2])
    cone = da.mechanics.NonlinearSystem(da.Euclidean(2), _kinetic, lambda t, q, v, p: jnp.stack([v @ v]))
    with pytest.raises(da.InvalidInput, match="linearly dependent"):
        cone.state([0.0, 0.0], [0.0, 0.0])


def test_what_needs_a_linear_constraint_refuses_a_nonlinear_one():
    with pytest.raises(da.InvalidInput, match=r"has no rows A\(t, g\).*lagrange-dalembert"):
        da.nonholonomy(UNIT_SPEED)


def test_adapted_coordinates_need_R_n_and_a_regular_fibre():
    with pytest.raises(da.InvalidInput, match=r"those of R\^n; the system lives on"):
        da.mechanics.ehresmann(*case("sleigh"))
    system, state = rn.particle()
    assert da.mechanics.ehresmann(system, state, fibre=[0]).base == (1, 2)
    with pytest.raises(da.InvalidInput, match="cannot be solved for the velocities of fibre = \\[1\\]"):
        da.mechanics.ehresmann(system, state, fibre=[1])
    for fibre in ([0, 2], [3], [-1]):
        with pytest.raises(da.InvalidInput, match="allowed: 1 different indices of 0 to 2"):
            da.mechanics.ehresmann(system, state, fibre=fibre)


def test_embedding_refuses_a_step_of_zero():
    system, state = rn.particle()
    with pytest.raises(da.InvalidInput, match="step is 0"):
        embed(system, rn.velocity_form(0.5), state, step=0.0)


@pytest.mark.heavy
def test_embedding_refuses_what_it_cannot_embed():
    system, state = rn.particle("harmonic")
    with pytest.raises(da.InvalidInput, match=r"leaves the constraint by .*; allowed: a method that keeps it"):
        embed(system, da.RungeKutta(), state, step=0.3)
    system, state = case("driven")
    with pytest.raises(da.InvalidInput, match="depends on time"):
        embed(system, rn.velocity_form(0.5), state, step=0.1)


@pytest.mark.heavy
def test_the_examples_of_the_documentation_run():
    page = Path(__file__).parents[2] / "docs" / "nonholonomic-rn.md"
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(block, names)
    assert names["found"].ps == pytest.approx((2, 0), abs=0.05)
    assert float(names["shot"].phi[0]) == pytest.approx(-3.6e-4, rel=0.02)
