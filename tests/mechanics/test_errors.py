"""Bad input: each refused before anything runs, with what was given, what is allowed and what to do."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from registry import GENERIC, case

import dalembert as da
from dalembert import InvalidInput
from dalembert.errors import OffConstraint, UnknownName

NAN = float("nan")
SUSLOV = da.models.suslov(GENERIC)
STATE = SUSLOV.state(momentum=[3.0, 2.0])
METHOD = da.LagrangeDAlembert()


def refuses(match, function, error=InvalidInput):
    with pytest.raises(error, match=match) as caught:
        function()
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) > 20


# -- systems ----------------------------------------------------------------------------------------------------------
INVARIANT = {
    "inertia of the wrong shape": (r"inertia has shape \(2, 2\); allowed: \(3, 3\)", {"inertia": np.eye(2)}),
    "inertia of the wrong length": (
        r"inertia has shape \(4,\); allowed: \(3, 3\), or \(3,\)",
        {"inertia": [1.0, 2.0, 3.0, 4.0]},
    ),
    "indefinite inertia": (r"positive definite; its smallest eigenvalue is -1", {"inertia": np.diag([1.0, 2.0, -1.0])}),
    "singular inertia": (r"positive definite; its smallest eigenvalue is 0", {"inertia": np.diag([1.0, 2.0, 0.0])}),
    "inertia that is not symmetric": ("inertia must be symmetric; given", {"inertia": np.eye(3) + np.eye(3, k=1)}),
    "NaN in the inertia": ("inertia must be finite; given", {"inertia": [1.0, NAN, 3.0]}),
    "both subspace and annihilator": (
        "not by both",
        {"inertia": np.eye(3), "subspace": np.eye(3)[:, :2], "annihilator": [0.0, 0.0, 1.0]},
    ),
    "dependent rows": (
        r"annihilator .* dependent rows: rank 1 of 2",
        {"inertia": np.eye(3), "annihilator": [[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]},
    ),
    "a zero row": (
        r"annihilator .* dependent rows: rank 0 of 1",
        {"inertia": np.eye(3), "annihilator": [0.0, 0.0, 0.0]},
    ),
    "dependent columns": (
        r"subspace .* dependent columns: rank 1 of 2",
        {"inertia": np.eye(3), "subspace": [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]},
    ),
    "rows of the wrong length": (
        r"annihilator .* has shape \(1, 2\); allowed: \(m, 3\)",
        {"inertia": np.eye(3), "annihilator": [[1.0, 0.0]]},
    ),
    "a subspace given by rows": (
        r"subspace .* has shape \(2, 3\); allowed: \(3, r\)",
        {"inertia": np.eye(3), "subspace": np.eye(3)[:2]},
    ),
    "NaN in the annihilator": ("annihilator .* must be finite", {"inertia": np.eye(3), "annihilator": [0.0, NAN, 1.0]}),
}


@pytest.mark.parametrize("key", INVARIANT)
def test_invariant_systems(key):
    match, arguments = INVARIANT[key]
    refuses(match, lambda: da.InvariantSystem(da.SO3(), **arguments))


MODELS = {
    "normal of the wrong shape": (
        r"normal is \[0.0, 1.0\]; allowed: three finite numbers",
        lambda: da.models.suslov(GENERIC, [0.0, 1.0]),
    ),
    "zero normal": ("not all 0", lambda: da.models.suslov(GENERIC, [0.0, 0.0, 0.0])),
    "weight of the wrong shape": (
        r"weight has shape \(2,\); allowed: \(3,\)",
        lambda: da.models.suslov(GENERIC, weight=[1.0, 2.0]),
    ),
    "indefinite inertia": ("smallest eigenvalue is -", lambda: da.models.suslov([[1.0, 0, 3], [0, 1, 0], [3, 0, 1]])),
    "negative mass": ("mass is -1.0; allowed: one positive number", lambda: da.models.chaplygin_sleigh(mass=-1.0)),
    "NaN mass": ("mass is nan; allowed: one positive number", lambda: da.models.knife_edge(mass=NAN)),
    "zero radius": ("radius is 0.0; allowed: one positive number", lambda: da.models.vertical_disk(radius=0.0)),
    "two masses": ("mass is .*; allowed: one positive number", lambda: da.models.chaplygin_sleigh(mass=[1.0, 2.0])),
    "mass matrix of no body": ("whose sum is not positive", lambda: da.models.rigid_body_n([1.0, -2.0, 0.5, 0.3])),
    "mass matrix of the wrong shape": (r"mass has shape \(2, 3\)", lambda: da.models.rigid_body_n(np.ones((2, 3)))),
    "mass matrix not symmetric": ("mass must be symmetric", lambda: da.models.suslov_n(np.eye(4) + np.eye(4, k=1))),
    "Suslov in the plane": ("needs n >= 3", lambda: da.models.suslov_n([1.0, 2.0])),
    "unknown potential": (
        "unknown potential 'harmonc'. Did you mean 'harmonic'",
        lambda: da.models.nonholonomic_particle("harmonc"),
    ),
}


@pytest.mark.parametrize("key", MODELS)
def test_models(key):
    refuses(*MODELS[key])


def _free(t, q, v, p):
    return 0.5 * v @ v


def _system(constraint, drift=None):
    return da.System(da.Euclidean(3), _free, constraint, drift=drift)


SYSTEMS = {
    "a flat constraint": (
        r"gave shape \(3,\); allowed: \(m, 3\) with m < 3",
        lambda t, q, p: jnp.array([0.0, 0.0, 1.0]),
        None,
    ),
    "rows of the wrong length": (r"gave shape \(1, 2\); allowed: \(m, 3\)", lambda t, q, p: jnp.ones((1, 2)), None),
    "no freedom left": (r"gave shape \(3, 3\); allowed: \(m, 3\) with m < 3", lambda t, q, p: jnp.eye(3), None),
    "a drift of the wrong shape": (
        r"drift\(t, g, p\) gave shape \(2,\); allowed: \(1,\)",
        lambda t, q, p: jnp.ones((1, 3)),
        lambda t, q, p: jnp.ones(2),
    ),
    "dependent rows": (
        "2 constraint rows .* linearly dependent",
        lambda t, q, p: jnp.array([[1.0, 0, 0], [2.0, 0, 0]]),
        None,
    ),
}


@pytest.mark.parametrize("key", SYSTEMS)
def test_systems(key):
    match, constraint, drift = SYSTEMS[key]
    refuses(match, lambda: _system(constraint, drift).state(xi=[0.0, 0.0, 0.0]))


# -- states -----------------------------------------------------------------------------------------------------------
STATES = {
    "both velocity and momentum": ("not both", lambda: SUSLOV.state(xi=[1.0, 0, 0], momentum=[1.0, 0])),
    "velocity of the wrong shape": (
        r"velocity xi has shape \(2,\); allowed: \(3,\)",
        lambda: SUSLOV.state(xi=[1.0, 2.0]),
    ),
    "momentum of the wrong shape": (
        r"momentum has shape \(4,\); allowed: \(3,\) or, on D, \(2,\)",
        lambda: SUSLOV.state(momentum=[1.0, 2.0, 3.0, 4.0]),
    ),
    "NaN velocity": ("velocity xi must be finite", lambda: SUSLOV.state(xi=[NAN, 0.0, 0.0])),
    "NaN momentum": ("momentum .*must be finite", lambda: SUSLOV.state(momentum=[NAN, 0.0])),
    "infinite momentum": ("momentum must be finite", lambda: SUSLOV.state(momentum=[np.inf, 0.0, 0.0])),
    "no rotation": ("R", lambda: SUSLOV.state(np.diag([1.0, 2.0, 1.0]), [1.0, 0.0, 0.0])),
}


@pytest.mark.parametrize("key", STATES)
def test_states(key):
    refuses(*STATES[key])


def test_a_velocity_off_D_is_refused_with_its_distance_and_the_way_out():
    with pytest.raises(OffConstraint, match=r"off the constraint: \|A xi - b\| = 0.7") as caught:
        SUSLOV.state(xi=[1.0, 0.5, 0.7])
    assert "system.project(g, xi)" in str(caught.value)
    offered = SUSLOV.project(jnp.eye(3), [1.0, 0.5, 0.7])
    assert str(float(offered[0])) in str(caught.value)
    SUSLOV.state(xi=offered)


def test_a_state_off_D_is_refused_by_the_run_too():
    bad = STATE._replace(xi=jnp.array([1.0, 0.5, 0.3]))
    refuses("off the constraint", lambda: da.simulate(SUSLOV, METHOD, bad, step=0.1, steps=1), OffConstraint)
    system, state = case("driven")
    refuses("off the constraint", lambda: da.simulate(system, METHOD, state, step=0.1, steps=1, t0=2.0), OffConstraint)


def test_a_nan_in_a_state_made_by_hand_is_refused_by_the_run():
    bad = STATE._replace(xi=jnp.array([NAN, 0.5, 0.0]))
    refuses("finite", lambda: da.simulate(SUSLOV, METHOD, bad, step=0.1, steps=1))


# -- runs -------------------------------------------------------------------------------------------------------------
def _run(**arguments):
    return lambda: da.simulate(SUSLOV, METHOD, STATE, **arguments)


RUNS = {
    "zero steps": ("steps is 0; allowed: a whole number of at least 1", _run(step=0.1, steps=0)),
    "negative steps": ("steps is -3; allowed", _run(step=0.1, steps=-3)),
    "half a step": ("steps is 2.5; allowed", _run(step=0.1, steps=2.5)),
    "a truth value": ("steps is True; allowed", _run(step=0.1, steps=True)),
    "zero step": ("step is 0.0; allowed: any finite number but 0", _run(step=0.0, steps=3)),
    "NaN step": ("step is nan; allowed", _run(step=NAN, steps=3)),
    "infinite step": ("step is inf; allowed", _run(step=np.inf, steps=3)),
    "steps and t_end": ("exactly one of steps and t_end", _run(step=0.1, steps=3, t_end=1.0)),
    "neither steps nor t_end": ("exactly one of steps and t_end", _run(step=0.1)),
    "t_end behind": ("t_end = -1.0 is not at least one step", _run(step=0.1, t_end=-1.0)),
    "t_end too near": ("t_end = 0.05 is not at least one step of 0.1", _run(step=0.1, t_end=0.05)),
    "NaN t_end": ("t_end is nan; allowed: one finite number", _run(step=0.1, t_end=NAN)),
    "save nothing": ("save_every is 0; allowed", _run(step=0.1, steps=3, save_every=0)),
    "controls of the wrong length": (
        r"controls have 4 rows; allowed: one row a step, that is 3",
        _run(step=0.1, steps=3, controls=np.ones((4, 2))),
    ),
    "controls without rows": (r"controls have 0 rows", _run(step=0.1, steps=3, controls=1.0)),
    "unknown backend": ("unknown backend 'xlaa'. Did you mean 'xla'", _run(step=0.1, steps=3, backend="xlaa")),
}


@pytest.mark.parametrize("key", RUNS)
def test_runs(key):
    refuses(*RUNS[key])


# -- methods ----------------------------------------------------------------------------------------------------------
METHODS = {
    "unknown nodes": (
        "unknown nodes 'velocty'. Did you mean 'velocity'",
        lambda: da.LagrangeDAlembert(nodes="velocty"),
        UnknownName,
    ),
    "node above 1": (
        r"node \(beta\) is 1.5; allowed: a number in \[0, 1\]",
        lambda: da.LagrangeDAlembert(node=1.5),
        InvalidInput,
    ),
    "node below 0": (r"node \(beta\) is -0.1; allowed", lambda: da.RetractionAdapted(node=-0.1), InvalidInput),
    "NaN node": (r"node \(beta\) is nan; allowed", lambda: da.mechanics.FiniteDifference(node=NAN), InvalidInput),
    "a node that is no number": (
        r"node \(beta\) is 'half'; allowed",
        lambda: da.LagrangeDAlembert(node="half"),
        InvalidInput,
    ),
    "unknown Lagrangian": (
        "unknown discrete Lagrangian 'moser-vesselov'. Did you mean 'moser-veselov'",
        lambda: da.EulerPoincareSuslov("moser-vesselov"),
        UnknownName,
    ),
    "nothing near": (
        r"unknown discrete Lagrangian 'xyz'. Allowed: moser-veselov, retraction",
        lambda: da.EulerPoincareSuslov("xyz"),
        UnknownName,
    ),
    "a pair with redefined nodes": (
        "has only its original nodes",
        lambda: da.LagrangeDAlembert(
            nodes="velocity", pair=da.mechanics.from_difference(SUSLOV, da.mechanics.FiniteDifference())
        ),
        InvalidInput,
    ),
}


@pytest.mark.parametrize("key", METHODS)
def test_methods(key):
    refuses(*METHODS[key])


@pytest.mark.parametrize("method", [da.EulerPoincareSuslov(), da.RetractionAdapted()], ids=lambda m: m.name)
def test_a_plain_system_is_refused_by_methods_for_invariant_ones(method):
    system, state = case("particle")
    refuses("needs an InvariantSystem .* given System", lambda: da.simulate(system, method, state, step=0.1, steps=1))


def test_a_potential_is_refused_by_euler_poincare_suslov():
    system, state = case("heavy_suslov")
    refuses(
        "without potential; use lagrange-dalembert",
        lambda: da.simulate(system, da.EulerPoincareSuslov(), state, step=0.1, steps=1),
    )


@pytest.mark.parametrize("group", [da.groups.SO(4), da.SE2()], ids=str)
def test_an_inertia_of_no_body_is_refused_by_moser_veselov(group):
    """On SO(3) every inertia has a mass matrix; on SO(4) and SE(2) only physical ones have."""
    inertia = np.diag(1.0 + np.arange(group.dim) ** 2)
    system = da.InvariantSystem(group, inertia, annihilator=np.eye(group.dim)[-1:])
    state = system.state(xi=np.eye(group.dim)[0])
    refuses(
        "no mass matrix J .* Use the retraction Lagrangian",
        lambda: da.simulate(system, da.EulerPoincareSuslov(), state, step=0.1, steps=1),
    )


# -- ensembles --------------------------------------------------------------------------------------------------------
OTHER = da.models.chaplygin_sleigh()
ENSEMBLES = {
    "one state": ("needs a leading axis", lambda: da.ensemble(SUSLOV, METHOD, STATE, step=0.1, steps=1)),
    "no state": ("at least one", lambda: da.ensemble(SUSLOV, METHOD, [], step=0.1, steps=1)),
    "two kinds of systems": (
        "of one kind",
        lambda: da.ensemble([SUSLOV, OTHER], METHOD, [STATE, STATE], step=0.1, steps=1),
    ),
    "numbers that disagree": (
        r"disagree in number: leading axes \[2, 3\]",
        lambda: da.ensemble([SUSLOV] * 2, METHOD, [STATE] * 3, step=0.1, steps=1),
    ),
    "the first member off D": (
        "off the constraint",
        lambda: da.ensemble(SUSLOV, METHOD, [STATE._replace(xi=jnp.ones(3)), STATE], step=0.1, steps=1),
    ),
    "zero steps": ("steps is 0", lambda: da.ensemble(SUSLOV, METHOD, [STATE, STATE], step=0.1, steps=0)),
}


@pytest.mark.parametrize("key", ENSEMBLES)
def test_ensembles(key):
    refuses(*ENSEMBLES[key])


def test_any_member_off_D_is_refused():
    bad = [STATE, STATE._replace(xi=jnp.ones(3))]
    refuses("off the constraint", lambda: da.ensemble(SUSLOV, METHOD, bad, step=0.1, steps=1))


def test_errors_are_value_errors_and_failures_are_not():
    assert (
        issubclass(InvalidInput, ValueError)
        and issubclass(UnknownName, InvalidInput)
        and issubclass(OffConstraint, InvalidInput)
    )
    assert issubclass(da.NumericalFailure, RuntimeError) and not issubclass(da.NumericalFailure, ValueError)


def test_mistakes_of_every_day_are_told_in_a_sentence(tmp_path):
    """A name nearly right, a file that cannot be written, a picture without a folder, parameters that are not given."""
    sleigh = da.models.chaplygin_sleigh()
    run = da.simulate(sleigh, da.RungeKutta(), sleigh.state(xi=[0.5, 1.0, 0.0]), step=0.1, steps=2)
    with pytest.raises(AttributeError, match="did you mean 'chaplygin_sleigh'"):
        _ = da.models.chaplygin_slegh
    with pytest.raises(InvalidInput, match=r"the file is .*run\.h5; allowed"):
        run.save(tmp_path / "run.h5")
    with pytest.raises(InvalidInput, match=r"ends in \.png, \.pdf or \.svg"):
        run.plot(tmp_path / "run.bmpx")
    with pytest.raises(InvalidInput, match="does not exist"):
        run.plot(tmp_path / "none" / "run.png")
    with pytest.raises(InvalidInput, match=r"p is None: give parameters="):
        da.System(da.SE2(), lambda t, g, xi, p: p["mass"] * xi @ xi).state(xi=[0.0, 1.0, 0.0])
