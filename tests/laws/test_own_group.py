"""A group of one's own, defined by hat and vee, works wherever a group of dalembert's does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from own_groups import SU2, Heisenberg

import dalembert as da
from dalembert.errors import InvalidInput, UnknownName
from dalembert.groups import MatrixGroup
from dalembert.studio.catalogue import make_catalogue
from dalembert.studio.presentation import present
from dalembert.studio.requests import StudioInput, frames_of_file

METHODS = [
    da.integrators.LagrangeDAlembert(),
    da.integrators.RungeKutta(),
    da.integrators.Gauss(2),
    da.integrators.DormandPrince(1e-12),
]
GROUPS = [Heisenberg(), SU2(), SU2() * da.Euclidean(1)]
SLOW = [*((method, GROUPS[2]) for method in METHODS), *((METHODS[k], GROUPS[1]) for k in (0, 1, 2))]  # large programs
SLOW += [(METHODS[k], GROUPS[0]) for k in (0, 2)]
PAIRS = [
    pytest.param(method, group, marks=[pytest.mark.heavy] * ((method, group) in SLOW), id=f"{method.name}-{group}")
    for method in METHODS
    for group in GROUPS
]


def system_on(group):
    """A left-invariant kinetic energy with the constraint that the third velocity follows from the others."""
    metric = jnp.diag(jnp.linspace(1.0, 2.0, group.dim))
    row = jnp.zeros((1, group.dim)).at[0, :3].set(jnp.array([0.3, 0.0, 1.0]))
    return da.System(
        group, lambda t, g, xi, p: 0.5 * xi @ p["m"] @ xi, lambda t, g, p: p["a"], parameters={"m": metric, "a": row}
    )


def start_on(system):
    xi = 0.5 * np.arange(1.0, system.group.dim + 1.0)
    xi[2] = -0.3 * xi[0]
    return system.state(None, xi)


@pytest.mark.heavy
@pytest.mark.parametrize(("method", "group"), PAIRS)
def test_methods_keep_what_they_claim_and_find_the_motion(method, group):
    system = system_on(group)
    run = da.simulate(system, method, start_on(system), step=0.05, steps=40)
    run.check()
    if method.claims(system).group:
        assert np.asarray(run.group_distance()).max() < 1e-12
    assert np.abs(np.asarray(run.constraint_residual())).max() < 1e-12
    exact = da.simulate(system, METHODS[-1], start_on(system), step=0.05, steps=40)
    gap = group.log(group.compose(group.inverse(run.last.g), exact.last.g))
    assert np.abs(gap).max() < (5e-3 if method is METHODS[0] else 1e-6)


def test_motions_on_su2_are_those_on_so3():
    """SU(2) covers SO(3): with the same inertia the velocities agree."""
    runs = [
        da.simulate(
            s := da.InvariantSystem(group, [1.0, 2.0, 3.0]),
            METHODS[1],
            s.state(None, [0.5, 1.0, -0.2]),
            step=0.05,
            steps=60,
        )
        for group in (SU2(), da.SO3())
    ]
    np.testing.assert_allclose(runs[0].xi, runs[1].xi, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def run():
    system = system_on(Heisenberg())
    return da.simulate(system, METHODS[1], start_on(system), step=0.05, steps=20)


def test_compare_files_and_figures(run, tmp_path):
    methods = {method.name: method for method in METHODS[1:3]}
    table = da.compare(run.system, methods, start_on(run.system), steps=[0.05], t_end=1.0, timing=False)
    assert [row.status for row in table.rows] == ["ok", "ok"] and all(row.error < 1e-2 for row in table.rows)
    data = run.to_xarray()
    assert data.attrs["group"] == "Heisenberg" and list(data["component"].values) == ["v1", "v2", "v3"]
    run.save(tmp_path / "run.nc")
    loaded = da.load(tmp_path / "run.nc", system=run.system)
    np.testing.assert_array_equal(loaded.g, run.g)
    further = da.simulate(run.system, METHODS[1], loaded, step=0.05, steps=5)
    straight = da.simulate(run.system, METHODS[1], start_on(run.system), step=0.05, steps=25)
    np.testing.assert_array_equal(further.last.g, straight.last.g)
    assert run.plot().axes and table.plot().axes
    assert frames_of_file(tmp_path / "run.nc").factors == (None,)


OWN = '''import jax.numpy as jnp
import dalembert as da
from dalembert.groups import MatrixGroup

class Plane(MatrixGroup):
    """Upper triangular 2 x 2 matrices [[a, b], [0, 1]], a > 0: the hyperbolic plane."""
    def hat(self, xi):
        return jnp.array([[xi[0], xi[1]], [0.0, 0.0]])
    def vee(self, matrix):
        return matrix[0]

def make(mass=1.0):
    return da.System(Plane(), lambda t, g, xi, p: 0.5 * p["mass"] * xi @ xi, parameters={"mass": mass})
'''
CONFIG = {
    "system": {"python": "plane.py:make", "mass": 2.0},
    "method": {"name": "runge-kutta"},
    "initial": {"configuration": {"log": [0.1, 0.2]}, "velocity": [0.3, 0.4]},
    "run": {"step": 0.05, "steps": 40},
}


def test_the_studio_shows_a_run_on_it(tmp_path):
    (tmp_path / "plane.py").write_text(OWN)
    opened = StudioInput(CONFIG, tmp_path, max_steps=1000)
    (own, *_) = make_catalogue(opened)["systems"]
    answer = present({"config": own["example"], "frames": 20}, opened)
    json.dumps(answer, allow_nan=False)
    assert own["name"] == "file" and answer["runs"][0]["label"] == "runge-kutta" and answer["scene"]["parts"]


def test_the_page_about_groups_of_ones_own_is_true():
    page = (Path(__file__).parents[2] / "docs" / "own-group.md").read_text(encoding="utf-8")
    exec("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {"__name__": "page"})


def test_coordinates_of_a_matrix_group():
    group = SU2()
    g = group.configuration({"log": [0.1, 0.2, 0.3]})
    np.testing.assert_allclose(group.configuration(group.describe(g)), g, atol=1e-15)
    np.testing.assert_allclose(group.configuration(group.identity_table()), np.eye(4), atol=1e-15)
    with pytest.raises(UnknownName, match=r"coordinate of SU2 'angle'. Allowed: log, matrix"):
        group.configuration({"angle": 0.1})
    with pytest.raises(InvalidInput, match="a matrix in SU2 may be 1e-08 away from the group"):
        group.element(2.0 * np.eye(4))
    assert group.dim == 3 and group.side == 4 and str(group) == "SU2" and group == SU2() != Heisenberg()


class SL3(MatrixGroup):
    """3 x 3 matrices of determinant 1, on which the Cayley map does not stay."""

    def hat(self, xi):
        return jnp.append(xi, -xi[0] - xi[4]).reshape(3, 3)

    def vee(self, matrix):
        return (matrix - jnp.trace(matrix) / 3 * jnp.eye(3)).reshape(9)[:8]


def test_cayley_is_refused_where_it_leaves_the_group():
    assert SL3().dim == 8
    with pytest.raises(InvalidInput, match=r"the Cayley map leads out of SL3.*use Exponential"):
        SL3().cayley(jnp.zeros(8))
    with pytest.raises(InvalidInput, match="leads out of SL3"):
        jax.jit(SL3().cayley_inverse)(jnp.eye(3))


def test_a_vee_that_does_not_fit_is_refused():
    class Wrong(Heisenberg):
        def vee(self, matrix):
            return jnp.array([matrix[0, 1], matrix[0, 2]])

    with pytest.raises(InvalidInput, match=r"vee\(hat\(xi\)\) = xi holds in no dimension"):
        Wrong().dim  # noqa: B018
