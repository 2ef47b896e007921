"""docs/claims.md and docs/claims-figures.md from figures and verdicts; nothing in them depends on the day or the machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dalembert.integrators import EXACT, MEANINGS
from dalembert.kernels.ir import MAX_OPERATIONS

from .measure import COUNTS, FLOOR, HIGH, LONG, SPAN, TRIP, WIDE, slope
from .store import Figures
from .tables import adjoints, drifts, failed, million, number, order, refused, systems, table, unmeasured
from .variants import PANEL, variants
from .verdicts import SLACK, TOLERANCE, Verdict, claims_of

INTRO = f"""# Claims, measured

Every method states, for a system, its order, its symmetry and what it keeps: `integrator.claims(system)`. `make verify` measures
every claim on every system that the method takes, and writes this page; what is claimed and not met stands here as **NOT MET**, and
what could not be measured is listed. A method with its defaults is measured on all systems, its other options
on a panel of {len(PANEL)}. Every single figure: [claims-figures.md](claims-figures.md); as data:
`docs/claims.json`. What it means for a choice: [choosing.md](choosing.md).

How: by native kernels, from the example state of each model with its step h. Steps of more than {MAX_OPERATIONS} operations have no native
kernel; their pairs are under "What could not be measured".

- Orders: over {SPAN} h (orders from {HIGH} on: {WIDE} h) with {COUNTS[0]} to {COUNTS[-1]} steps, the slope of the error against DOP853
  at 1e-13, between the finest step whose relative error is above {FLOOR:.0e} and the one twice as large; met if at most {SLACK} below the
  claim (a system may raise an order).
- What a run keeps: the largest figure over {LONG} steps of h. Ways back: {TRIP} steps and as many back.
- Symplectic: J^T Omega J - Omega of two steps, with J by derivatives through the kernel.
- Figures are relative to max(1, size of the quantity).
"""


def page(figures: Mapping[str, Figures], found: Sequence[Verdict], missing: Sequence[str] = ()) -> str:
    """`missing` are the keys of what was not measured."""
    unmet = [v for v in found if v.met is False]
    met = sum(v.met is True for v in found)
    parts = [
        INTRO,
        f"**{met} claims are met, {len(unmet)} are not.**\n",
        "## Not met\n",
        _unmet(unmet),
        "## What is claimed\n",
        "On how many of the systems measured each claim is made; conditions are on the method's options and on the system.\n",
        _claimed(found),
        "## Order\n",
        "The least and largest measured order over the systems, and on how many the errors are below what can be measured at every step.\n",
        _orders(figures, found),
        "### Orders of 4 and more, system by system\n",
        "The order of the larger of the errors of configuration and velocity. Nonholonomic systems come first; an empty cell: it does\n"
        "not fit, or was not measured; a dash: round-off leaves too few errors to tell.\n",
        _high_orders(found),
    ]
    for name, meaning in MEANINGS.items():
        parts += [
            f"## {name.capitalize()}\n",
            f"Claimed: {meaning}. Met up to {TOLERANCE[name]:.0e}.\n",
            _property(name, found),
        ]
    parts += ["### Adjoints\n", "Forward with the method, back with what `adjoint()` gives.\n", adjoints(figures)]
    parts += ["## Drift of the energy: every family on two problems\n", drifts(figures)]
    parts += ["## Energy over a million steps\n", million(figures)]
    parts += ["## What does not fit, and why\n", refused(figures), "## What could not be measured\n", failed(figures)]
    parts += [unmeasured(missing)] if missing else []
    parts += ["## The systems\n", systems()]
    return "\n".join(parts)


def _unmet(unmet: Sequence[Verdict]) -> str:
    if not unmet:
        return "Nothing.\n"
    rows = [
        [v.label, v.case, v.name, order(v.claimed) if v.name == "order" else "yes", _shown(v), "**NOT MET**"]
        for v in unmet
    ]
    return table(["method", "system", "property", "claimed", "measured", ""], rows)


def _shown(v: Verdict) -> str:
    if v.name != "order" or v.figure is None:
        return number(v.figure)
    return "exact" if v.figure == EXACT else f"{v.figure:.2f}"


def _by_label(found: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    grouped = defaultdict(list)
    for v in found:
        grouped[v.label].append(v)
    return {label: grouped[label] for label in variants() if label in grouped}


def _claimed(found: Sequence[Verdict]) -> str:
    rows = []
    for label, own in _by_label(found).items():
        orders = sorted({order(v.claimed) for v in own if v.name == "order"})
        told = [[v for v in own if v.name == name] for name in MEANINGS]
        shares = [
            f"{sum(bool(v.claimed) for v in each)}/{len(each)}" if any(v.claimed for v in each) else "-"
            for each in told
        ]
        claims = claims_of(label, own[0].case)
        rows.append([label, ", ".join(orders), *shares, claims.condition if claims else ""])
    return table(["method", "order", *MEANINGS, "condition"], rows)


def _orders(figures: Mapping[str, Figures], found: Sequence[Verdict]) -> str:
    rows = []
    for label, own in _by_label(v for v in found if v.name == "order").items():
        claimed = Counter(order(v.claimed) for v in own)
        parts = [figures[f"pair | {label} | {v.case}"]["order"] for v in own]
        spans = [_span([part[name] for part in parts]) for name in ("configuration", "velocity")]
        wrong = sum(v.met is False for v in own)
        told = f"**NOT MET on {wrong}**" if wrong else "-" if list(claimed) == ["-"] else "met"
        rows.append([label, ", ".join(sorted(claimed)), *spans, str(len(own)), told])
    return table(["method", "claimed", "configuration", "velocity", "systems", ""], rows)


def _span(parts: Sequence[Sequence[float | None]]) -> str:
    known = [measured for errors in parts if (measured := slope(errors)) is not None]
    finite, exact = [p for p in known if p < EXACT], sum(p == EXACT for p in known)
    told = [f"{min(finite):.2f} to {max(finite):.2f}"] if finite else []
    return ", ".join([*told, *([f"below {FLOOR:.0e} on {exact}"] if exact else [])]) or "-"


def _high_orders(found: Sequence[Verdict]) -> str:
    high = [v for v in found if v.name == "order" and v.claimed is not None and 4 <= v.claimed < EXACT]
    names = [name for name in PANEL if any(v.case == name for v in high)]
    rows = []
    for label, own in _by_label(high).items():
        cells = {v.case: "**" * (v.met is False) + _shown(v) + "**" * (v.met is False) for v in own}
        rows.append(
            [label, ", ".join(sorted({order(v.claimed) for v in own})), *(cells.get(name, "") for name in names)]
        )
    return table(["method", "claimed", *names], rows)


def _property(name: str, found: Sequence[Verdict]) -> str:
    rows = []
    for label, own in _by_label(v for v in found if v.name == name and v.figure is not None).items():
        claimed, rest = [v for v in own if v.claimed], [v for v in own if not v.claimed]
        worst = max(claimed, key=lambda v: v.figure or 0.0, default=None)
        wrong = sum(v.met is False for v in claimed)
        told = "not claimed" if worst is None else f"**NOT MET on {wrong}**" if wrong else "met"
        holds = (
            f"holds on {sum(bool(v.holds) for v in rest)} of {len(rest)}, else up to {number(max(v.figure or 0.0 for v in rest))}"
            if rest
            else ""
        )
        rows.append([label, str(len(claimed)), f"{number(worst.figure)} ({worst.case})" if worst else "", told, holds])
    return table(["method", "claimed on", "largest figure there", "", "where it is not claimed"], rows)


def figures_page(figures: Mapping[str, Figures], found: Sequence[Verdict]) -> str:
    """One table a method, one row a system; what is not claimed is in parentheses."""
    lines = [
        "# Every figure of the claims\n",
        "The figures behind [claims.md](claims.md), which says what they are. In parentheses: not claimed.\n",
    ]
    for label, own in _by_label(found).items():
        rows = []
        for case in dict.fromkeys(v.case for v in own):
            mine = {v.name: v for v in own if v.case == case}
            rows.append(
                [
                    case,
                    order(mine["order"].claimed),
                    *(_part(figures, label, case, p) for p in ("configuration", "velocity")),
                    *(_cell(mine[name]) for name in MEANINGS),
                ]
            )
        lines += [f"## {label}\n", table(["system", "claimed order", "configuration", "velocity", *MEANINGS], rows)]
    return "\n".join(lines)


def _part(figures: Mapping[str, Figures], label: str, case: str, part: str) -> str:
    measured = slope(figures[f"pair | {label} | {case}"]["order"][part])
    return "?" if measured is None else "exact" if measured == EXACT else f"{measured:.2f}"


def _cell(v: Verdict) -> str:
    if v.figure is None:
        return ""
    if not v.claimed:
        return f"({number(v.figure)})"
    return number(v.figure) if v.met else f"{number(v.figure)} **NOT MET**"
