"""Claims are stated by every method, judged against figures, and a false one is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tools.claims.__main__ import broken_claims
from tools.claims.cases import OPTIONS, Case, cases, variants
from tools.claims.measure import STEP_COUNTS, measure, measure_symplecticity, slope
from tools.claims.page import TOLERANCE, claims_pages, judge, verdicts
from tools.claims.store import Store, round_figures

import dalembert as da
from dalembert.errors import InvalidInput
from dalembert.integrators import EXACT, MEANINGS, METHODS, Claims, Integrator

DOCS = Path(__file__).parents[2] / "docs"
PARTICLE, CENTRAL = cases()["nonholonomic-particle"], cases()["central-force"]

CLASSES = [method.build for method in METHODS.values()]


@pytest.fixture(scope="module")
def figures():
    """The classical Runge-Kutta method on the particle: order 4, nothing kept."""
    return measure(PARTICLE, da.RungeKutta())


# -- stating ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_every_method_states_its_claims(cls):
    assert cls.claims is not Integrator.claims, (
        f"{cls.__name__} states no claims: define claims(self, system) -> Claims in its class (`Claims` "
        "in integrators/base.py says what they "
        "mean), list its telling options in tools/claims/cases.py, and run `python -m tools.claims --only "
        f"'{cls.name}'` to see whether they are met"
    )


def test_claims_are_of_the_method_and_of_the_system():
    particle, body = PARTICLE.system, cases()["rigid-body"].system
    assert (
        da.LagrangeDAlembert().claims(particle).order == 2
        and da.LagrangeDAlembert(node=0.0).claims(particle).order == 1
    )
    assert da.LagrangeDAlembert(node=0.0).claims(body).order == 2
    assert not da.LagrangeDAlembert().claims(particle).symplectic and da.LagrangeDAlembert().claims(body).symplectic
    assert da.Gauss(2).claims(particle).energy and not da.Gauss(2).claims(cases()["pendulum-cvt"].system).energy
    assert da.DiscreteMoserVeselov().claims(body).order == EXACT
    drag = da.with_friction(particle, viscous=0.1)
    assert da.DiscreteGradient().claims(particle).energy and not da.DiscreteGradient().claims(drag).energy
    with pytest.raises(InvalidInput):
        da.DiscreteMoserVeselov().require(particle, PARTICLE.state, 0.1)


def test_claims_in_words():
    assert (
        da.integrators.Lobatto(4).claims(PARTICLE.system).text()
        == "order 6; symmetric, reversible; keeps constraint, group, momentum"
    )
    assert str(da.DiscreteMoserVeselov(4, "scaled").claims(cases()["rigid-body"].system)).startswith(
        "order 2 (velocity: 4); symmetric"
    )
    assert Claims(None).text() == "order by tolerance" and Claims(EXACT).text() == "exact"
    assert set(MEANINGS) == set(TOLERANCE) and set(MEANINGS) <= set(Claims.__dataclass_fields__)


def test_every_option_that_is_measured_exists():
    assert set(OPTIONS) <= {cls.name for cls in CLASSES}
    assert {type(v.integrator) for v in variants().values()} >= set(CLASSES) - {da.integrators.Reference}


# -- measuring --------------------------------------------------------------------------------------------------------
def test_true_claims_are_met_and_a_false_one_is_found(figures):
    found = {v.name: v for v in judge("runge-kutta", PARTICLE.name, da.RungeKutta().claims(PARTICLE.system), figures)}
    assert found["order"].met and found["order"].figure == pytest.approx(4.0, abs=0.1)
    assert not any(v.met is False for v in found.values())
    boast = Claims(
        5, symmetric=True, reversible=True, constraint=True, group=True, energy=True, momentum=True, symplectic=True
    )
    false = {v.name: v.met for v in judge("runge-kutta", PARTICLE.name, boast, figures)}
    assert false.pop("group") is false.pop("momentum") is false.pop("symplectic") is None  # nothing to measure here
    assert set(false.values()) == {False}, false
    assert judge("", "", Claims(EXACT), figures)[0].met is False
    assert judge("", "", Claims(4, velocity_order=6), figures)[0].met is False


def test_what_is_not_finite_is_not_met(figures):
    blown = round_figures({**figures, "energy": float("inf"), "constraint": float("nan")})
    found = {v.name: v.met for v in judge("", "", Claims(4, constraint=True, energy=True), blown)}
    assert found["energy"] is found["constraint"] is False


def test_a_symplectic_map_is_told_from_another():
    assert measure_symplecticity(CENTRAL, da.Leapfrog()) < 1e-13
    assert measure_symplecticity(CENTRAL, da.RungeKutta()) > 1e-8


def test_a_method_that_leaves_the_group_goes_back_from_where_it_is():
    assert measure(cases()["veselova"], da.RungeKutta())["symmetric"] > 1e-9


def test_orders_are_read_above_what_the_reference_is_off():
    for noise in (5e-14, 1e-12):
        errors = [max(5e-6 * (6 / n) ** 10, noise * (1 + 0.3 * (-1) ** n)) for n in STEP_COUNTS]
        assert slope(errors) == pytest.approx(10.0, abs=0.01)
    assert slope([e * 1e-7 for e in errors]) == EXACT and slope([None] * len(errors)) == EXACT
    late = [9.8e-6, 5.1e-7, 6.6e-9, 5.8e-10, 1.1e-11, 6.5e-13, *[5e-14] * 5]  # the slope comes to 10 at finer steps
    assert slope(late) > 9.65 and slope([max(e, 1e-12) for e in late]) < 9.5


def test_what_does_not_fit_says_why():
    assert "InvariantSystem" in measure(PARTICLE, da.integrators.Rattle())["refused"]


def test_a_run_that_ends_early_is_no_figure():
    fast = Case("fast", lambda: (cases()["suslov"].system, cases()["suslov"].system.state(momentum=[3e3, 2e3])), 0.05)
    assert "no solution" in measure(fast, da.EulerPoincareSuslov())["failed"]


# -- writing ----------------------------------------------------------------------------------------------------------
def rows_match(text: str) -> bool:
    """Whether the rows of each table have as many cells as its head."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    tables = [[line for line in block if line.startswith("|")] for block in blocks]
    return all(len({line.count(" | ") for line in table}) <= 1 for table in tables)


def test_the_page_hides_nothing(figures):
    known = {
        "pair | runge-kutta | nonholonomic-particle": figures,
        "pair | lagrange-dalembert | nonholonomic-particle": figures,  # which claims more than these figures show
        "pair | rattle | nonholonomic-particle": {"refused": "rattle needs | a body. Use another"},
        "pair | gauss | chaotic-quartic": {"failed": "too large"},
        "drift | leapfrog | chaotic quartic, n = 2": {
            "kind": "random walk",
            "rate": 1e-4,
            "size": 0.01,
            "failed_members": 2,
        },
    }
    found = verdicts(known)
    unmet = [v for v in found if v.met is False]
    assert {v.name for v in unmet} == {"symmetric", "reversible", "constraint"} and {v.label for v in unmet} == {
        "lagrange-dalembert"
    }
    pages = claims_pages(known, found)
    text = "\n".join(pages.values())
    assert all(map(rows_match, pages.values()))
    assert pages["claims.md"].count("| **NOT MET** |") == len(unmet)
    assert pages["claims/lagrange-dalembert.md"].partition("## Every figure")[2].count("NOT MET") == len(unmet)
    for part in ("rattle needs", "too large", "random walk, 1.0e-02; 2 failed"):
        assert part in text


def test_the_committed_page_is_that_of_the_committed_figures():
    """Every claim that the figures in docs/claims.json do not meet is on the page, with the claims of today."""
    known = json.loads((DOCS / "claims.json").read_text())
    text, some = (DOCS / "claims.md").read_text(), {k: v for k, v in known.items() if k.endswith("| pendulum-cvt")}
    assert rows_match(text) and some
    for v in verdicts(some):
        assert (v.met is False) == (f"| {v.label} | {v.case} | {v.name} |" in text), v


def test_a_cut_run_goes_on(tmp_path, figures):
    path = tmp_path / "store.jsonl"
    Store(path).add("a", figures)
    with path.open("a") as file:
        file.write('{"key": "b", "sou')
    again = Store(path)
    assert list(again.figures) == ["a"] and again.figures["a"]["refused" if "refused" in figures else "order"]
    again.sources = "other"
    again.add("c", figures)
    assert set(Store(path).figures) == {"a"} and set(Store(path, keep=True).figures) == {"a", "c"}


def test_false_claims_of_a_whole_class_are_seen(figures):
    claims = replace(da.RungeKutta().claims(PARTICLE.system), energy=True)
    assert [v.name for v in judge("", "", claims, figures) if v.met is False] == ["energy"]


def test_a_claim_that_breaks_ends_the_measurement_with_its_name(figures):
    """One that is known not to be met does not: it stands on the page."""
    true, false = (f"pair | {method} | nonholonomic-particle" for method in ("runge-kutta", "lagrange-dalembert"))
    boasts = [
        f"lagrange-dalembert, nonholonomic-particle, {name}" for name in ("constraint", "reversible", "symmetric")
    ]
    assert broken_claims({}, {true: figures, false: figures}) == boasts
    assert broken_claims({false: figures}, {true: figures, false: figures}) == []


@pytest.mark.heavy
def test_moser_veselov_claims_the_energy_on_lie_triple_systems_alone():
    """On SO(4) and SE(3) a random d is none, and the energy moves (measured: 9e-4, 7e-4)."""
    scheme = da.EulerPoincareSuslov("moser-veselov")
    claimed = {name: scheme.claims(cases()[name].system).energy for name in cases() if "random-subspace" in name}
    assert claimed == {"random-subspace-so4": False, "random-subspace-se2": True, "random-subspace-se3": False}
    assert all(scheme.claims(cases()[name].system).energy for name in ("suslov", "chaplygin-sleigh", "suslov-n"))
