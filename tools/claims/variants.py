"""The methods whose claims are measured: every method with its defaults on every system, other options on a panel of systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dalembert.groups import Euclidean
from dalembert.integrators import METHODS, Integrator, Reference

from .cases import Case

EXP = "exponential"
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "lagrange-dalembert": [
        {"retraction": EXP},
        {"node": 0.0},
        {"node": 0.3, "retraction": EXP},
        {"nodes": "velocity"},
        {"nodes": "velocity", "node": 0.0},
        {"nodes": "deformed"},
    ],
    "euler-poincare-suslov": [
        {"retraction": EXP},
        {"lagrangian": "retraction"},
        {"lagrangian": "retraction", "retraction": EXP},
    ],
    "retraction-adapted": [{"retraction": EXP}, {"node": 0.0}, {"node": 0.3, "retraction": EXP}],
    "leapfrog": [{"retraction": EXP}],
    "geometric-nonholonomic": [{"node": 0.0}, {"node": 0.3, "retraction": EXP}],
    "discrete-moser-veselov": [
        *({"order": order} for order in (2, 4, 6, 8, 10)),
        *({"order": order, "variant": "scaled"} for order in (4, 6, 8)),
    ],
    "rattle": [{"order": order} for order in (4, 6, 8)],
    "kinetic-splitting": [{"order": 4}],
    "tangent-lift": [{"node": 0.0}],
    "cotangent-lift": [{"node": 0.0}],
    "discrete-lr": [{"retraction": EXP}, {"lagrangian": "retraction"}, {"lagrangian": "retraction", "retraction": EXP}],
    "discrete-gradient": [{"gradient": "average"}, {"gradient": "itoh-abe"}, {"retraction": EXP}],
    "gauss": [{"stages": 1}, {"stages": 3}, {"stages": 4}, {"retraction": EXP}],
    "lobatto": [
        {"stages": 2},
        {"stages": 4},
        {"retraction": EXP},
        *({"form": "spark", "stages": stages} for stages in (2, 3, 4)),
        {"form": "spark", "family": "C"},
        {"form": "spark", "family": "D"},
    ],
    "projected-runge-kutta": [{"onto": "energy"}],
    "composition": [
        *({"scheme": s} for s in ("yoshida-4", "suzuki-4", "yoshida-6", "suzuki-umeno-8", "kahan-li-8")),
        {"scheme": "suzuki-4", "node": 0.0},
        {"scheme": "suzuki-4", "base": {"name": "discrete-gradient"}},
        {"scheme": "suzuki-4", "base": {"name": "retraction-adapted"}},
        {"scheme": "kahan-li-6", "base": {"name": "gauss", "stages": 1}},
        {"scheme": "sofroniou-spaletta-10"},
    ],
}
PANEL = (
    "nonholonomic-particle",
    "pendulum-cvt",
    "heavy-suslov",
    "chaplygin-sleigh",
    "suslov",
    "double-pendulum-with-followers",
    "veselova",
    "rigid-body",
    "heavy-top",
    "central-force",
)
"""Where the variants are measured: seven nonholonomic systems, then three without constraint."""


@dataclass(frozen=True)
class Variant:
    """A method with its options: the defaults are measured on all systems, others on the panel."""

    label: str
    integrator: Integrator
    options: Mapping[str, Any]

    def fits(self, case: Case) -> bool:
        """Whether this variant is measured there; another retraction is no other method on R^n."""
        if not self.options:
            return True
        if case.name not in PANEL:
            return False
        return set(self.options) != {"retraction"} or not isinstance(case.system.group, Euclidean)


def _label(name: str, options: Mapping[str, Any]) -> str:
    said = [f"{v['name']}" if isinstance(v, Mapping) else f"{k} {v}" for k, v in options.items()]
    return f"{name}, {', '.join(said)}" if said else name


@cache
def variants() -> dict[str, Variant]:
    """All of them by label, the defaults first."""
    wanted: list[tuple[str, dict[str, Any]]] = [
        (name, {}) for name, method in METHODS.items() if method.build is not Reference
    ]
    wanted += [(name, options) for name in METHODS for options in OPTIONS.get(name, [])]
    made = [Variant(_label(name, options), METHODS[name].make(options), options) for name, options in wanted]
    return {variant.label: variant for variant in made}
