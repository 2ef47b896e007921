"""What methods claim about themselves, measured: every method and every telling option on one system each.

`make verify` measures all of them on all systems (`python -m tools.claims`); `make test` runs this panel.
"""

from __future__ import annotations

from collections import deque
from functools import cache

import pytest
from registry import more
from tools.claims.cases import PANEL, cases, variants
from tools.claims.measure import measure
from tools.claims.page import judge

from dalembert.errors import InvalidInput

LARGE = {
    *(f"composition, scheme {name}" for name in ("kahan-li-6, gauss", "suzuki-umeno-8", "kahan-li-8")),
    "composition, scheme sofroniou-spaletta-10",
    *(f"gauss, stages {stages}" for stages in (3, 4)),
    *(f"lobatto, {form}stages 4" for form in ("", "form spark, ")),
    *(f"{name}, node 0.3, retraction exponential" for name in ("lagrange-dalembert", "geometric-nonholonomic")),
}
"""Variants whose kernels are large, and on some systems too large: the fast tests measure them on the particle."""
SLOW = {
    *("kinetic-splitting, order 4", "composition, scheme suzuki-4, retraction-adapted"),
    *("composition, scheme sofroniou-spaletta-10", "composition, scheme kahan-li-6, gauss"),
}
"""Variants that compile for a second or more and have their like in the panel: `make verify` measures them."""
SMALL = ("nonholonomic-particle", "pendulum-cvt", "central-force")
CHOSEN = {**dict.fromkeys(LARGE, PANEL[0]), "lagrange-dalembert": "rigid-body"}  # without constraint it is symplectic


def accepts(label: str, name: str) -> bool:
    variant, case = variants()[label], cases()[name]
    try:
        variant.integrator.require(case.system, case.state, case.step)
    except InvalidInput:
        return False
    return variant.fits(case)


@cache
def panel() -> dict[str, str]:
    """Each variant with one system that it accepts, in turn, so that all systems of the panel occur.

    Other options than the defaults come to the smallest, which compile soonest, where they are taken there.
    """
    names, small, pairs = deque(PANEL), deque(SMALL), {}
    for label, variant in variants().items():
        in_turn = (*small, *names) if variant.options else names
        pairs[label] = CHOSEN.get(label) or next(name for name in in_turn if accepts(label, name))
        names.rotate(-1)
        small.rotate(-1)
    return pairs


@pytest.mark.parametrize("label", [more(label) if label in SLOW else label for label in variants()])
def test_claims_are_met(label):
    name = panel()[label]
    integrator, case = variants()[label].integrator, cases()[name]
    figures = measure(case, integrator, claimed_only=True)
    assert "failed" not in figures and "refused" not in figures, figures
    verdicts = judge(label, name, integrator.claims(case.system), figures)
    assert any(verdict.met for verdict in verdicts)
    assert not [verdict for verdict in verdicts if verdict.met is False]


def test_the_panel_covers_every_variant_and_every_system():
    pairs = panel()
    assert set(pairs) == set(variants()) > LARGE | SLOW and len(pairs) >= 75
    assert set(pairs.values()) == set(PANEL)
    symplectic = [variants()[label].integrator.claims(cases()[pairs[label]].system).symplectic for label in pairs]
    assert sum(symplectic) >= 8
