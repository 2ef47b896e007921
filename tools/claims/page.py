"""Verdicts on claims by their figures, and the pages docs/claims.md (in short) and docs/claims/METHOD.md (in full).

Nothing in the pages depends on the day or the machine.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dalembert.errors import InvalidInput
from dalembert.integrators import EXACT, MEANINGS, Claims
from dalembert.kernels.ir import MAX_OPERATIONS
from dalembert.models import MODELS

from .cases import NOTES, PANEL, cases, variants
from .measure import (
    DRIFT_HORIZONS,
    DRIFT_MEMBERS,
    DRIFT_PROBLEMS,
    DRIFT_STEP,
    ERROR_FLOOR,
    FLOOR_RATIO,
    HIGH_ORDER,
    HIGH_ORDER_SPAN_STEPS,
    LONG_RUN_STEP,
    RETURN_STEPS,
    RUN_STEPS,
    SPAN_STEPS,
    STEP_COUNTS,
    Figures,
    slope,
)

TOLERANCE = {
    "symmetric": 1e-11,
    "reversible": 1e-11,
    "constraint": 1e-12,
    "group": 1e-13,
    "energy": 1e-11,
    "momentum": 1e-11,
    "symplectic": 1e-10,
}
LONG_RUN_ENERGY_TOLERANCE = 1e-9  # over a million steps, round-off included
ORDER_SLACK = 0.35  # how much a measured order may be below the one claimed


@dataclass(frozen=True)
class Verdict:
    """One property on one system, claimed or not: `met` is None where nothing is claimed or could be measured."""

    label: str
    case: str
    name: str
    claimed: float | bool | None
    figure: float | None
    met: bool | None

    @property
    def holds(self) -> bool | None:
        """Whether the property holds by its figure, claimed or not; None where there is none."""
        if self.name == "order" or self.figure is None:
            return None
        return self.figure <= TOLERANCE[self.name]


@cache
def claims_of(label: str, case: str) -> Claims | None:
    """What a method claims on a system; None where it refuses it."""
    try:
        return variants()[label].integrator.claims(cases()[case].system)
    except InvalidInput:
        return None


def verdicts(figures: Mapping[str, Figures]) -> list[Verdict]:
    """Of all pairs that were measured, a verdict for each property."""
    found = []
    for key, values in figures.items():
        what, label, case = key.split(" | ")
        claims = (
            claims_of(label, case) if what == "pair" and "refused" not in values and "failed" not in values else None
        )
        if claims is not None:
            found += judge(label, case, claims, values)
    return found


def judge(label: str, case: str, claims: Claims, values: Figures) -> list[Verdict]:
    """The verdicts on one pair."""
    orders = [_judge_order(label, case, claims, values)]
    others = []
    for name in MEANINGS:
        claimed, figure = getattr(claims, name), _number(values[name])
        others.append(Verdict(label, case, name, claimed, figure, _meets(claimed, figure, TOLERANCE[name])))
    return orders + others


def _number(value: float | str | None) -> float | None:
    """A figure; what is not finite is a word in the store."""
    return None if value is None else float(value)


def _meets(claimed: bool, figure: float | None, tolerance: float) -> bool | None:
    return None if not claimed or figure is None else figure <= tolerance


def _judge_order(label: str, case: str, claims: Claims, values: Figures) -> Verdict:
    """The order of the larger of both errors. Where velocities claim another order, each is judged for itself."""
    parts = values["order"]
    if claims.velocity_order is None:
        measured = slope([_larger(*pair) for pair in zip(parts["configuration"], parts["velocity"], strict=True)])
        return Verdict(label, case, "order", claims.order, measured, _reaches(measured, claims.order))
    wanted = {"configuration": claims.order, "velocity": claims.velocity_order}
    found = {part: slope(parts[part]) for part in wanted}
    judged = [_reaches(found[part], wanted[part]) for part in wanted]
    met = False if False in judged else None if None in judged else True
    return Verdict(label, case, "order", claims.order, found["configuration"], met)


def _larger(a: float | str | None, b: float | str | None) -> float | None:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else None


def _reaches(measured: float | None, order: float | None) -> bool | None:
    return None if order is None or measured is None else measured >= order - ORDER_SLACK


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in lines) + "\n"


def format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if value else "0"


def format_order(value: float | None) -> str:
    return "-" if value is None else "exact" if value == EXACT else f"{value:g}"


def _adjoints_table(figures: Mapping[str, Figures]) -> str:
    grouped: dict[str, list[float]] = defaultdict(list)
    for key, values in figures.items():
        what, label, _ = key.split(" | ")
        if what == "pair" and values.get("adjoint") is not None:
            grouped[label].append(float(values["adjoint"]))
    limit = TOLERANCE["symmetric"]
    rows = [
        [label, str(len(each)), format_number(max(each)), "met" if max(each) <= limit else "**NOT MET**"]
        for label, each in grouped.items()
    ]
    return markdown_table(["method", "systems", "largest figure", ""], rows)


def _drifts_table(figures: Mapping[str, Figures]) -> str:
    text = (
        f"The table shows how the energy error $E - E(0)$ grows with $h = {DRIFT_STEP:g}$, and its largest size over "
        f"all steps. The problems are\nModin and Verdier's transmission (`pendulum-cvt`, $E(0) = 3.545$) up to "
        f"$t = {DRIFT_HORIZONS['transmission']:g}$, and {DRIFT_MEMBERS} initial states of the chaotic\n"
        f"quartic up to $t = {DRIFT_HORIZONS['quartic']:g}$. `da.analysis.drift` finds the kind of growth. "
        "Sizes of 1e-9 and below are round-off: their kind says\n"
        "how round-off adds up, not what the method does. Methods for invariant systems and for free bodies do not "
        "accept these problems.\n\n"
    )
    rows = []
    for label in variants():
        cells = [_drift_cell(figures.get(f"drift | {label} | {problem}")) for problem in DRIFT_PROBLEMS]
        if any(cells):
            rows.append([label, *cells])
    return text + markdown_table(["method", *DRIFT_PROBLEMS], rows)


def _drift_cell(values: Figures | None) -> str:
    if values is None or "refused" in values:
        return ""
    if "failed" in values:
        return "not measured"
    lost = f"; {values['failed_members']} failed" if values["failed_members"] else ""
    kind = values["kind"] or "no verdict"
    return f"{kind}, {format_number(float(values['size']))}{lost}"


def _long_runs_table(figures: Mapping[str, Figures]) -> str:
    rows = []
    for key, values in figures.items():
        what, label, case = key.split(" | ")
        if what == "million" and "energy" in values:
            ended = f"stopped at step {values['stopped']['step']}" if values["stopped"] else ""
            told = "met" if float(values["energy"]) <= LONG_RUN_ENERGY_TOLERANCE and not ended else "**NOT MET**"
            rows.append(
                [
                    label,
                    case,
                    format_number(float(values["energy"])),
                    format_number(float(values["constraint"])),
                    ended or told,
                ]
            )
    text = (
        "The largest relative energy error and the largest residual of the constraint over $10^6$ steps of "
        f"{LONG_RUN_STEP:g}, for the\nmethods that claim the energy there. A claim is met if the energy error is at "
        f"most {LONG_RUN_ENERGY_TOLERANCE:.0e}.\n\n"
    )
    return text + markdown_table(["method", "system", "energy", "constraint", ""], rows)


def _short_reason(reason: str) -> str:
    """A refusal without the numbers of one system."""
    return re.sub(r"\s+", " ", re.split(r"[;.] ", reason)[0]).strip()


def _refused_table(figures: Mapping[str, Figures]) -> str:
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, values in figures.items():
        what, label, case = key.split(" | ")
        if what == "pair" and "refused" in values and not variants()[label].options:
            grouped[label, _short_reason(values["refused"])].append(case)
    rows = [[label, reason, ", ".join(names)] for (label, reason), names in grouped.items()]
    return markdown_table(["method", "because", "systems"], rows)


def _failed_table(figures: Mapping[str, Figures]) -> str:
    rows = []
    for key, values in figures.items():
        _, label, case = key.split(" | ")
        if "failed" in values:
            rows.append([label, case, " ".join(values["failed"].split())[:200]])
        elif values.get("stopped"):
            rows.append(
                [label, case, f"the run stopped after step {values['stopped']['step']}: {values['stopped']['reason']}"]
            )
    return markdown_table(["method", "system", "why"], rows)


def _unmeasured_table(keys: Sequence[str]) -> str:
    """What an unfinished run left out, by system or problem."""
    grouped = defaultdict(list)
    for key in keys:
        what, label, case = key.split(" | ")
        grouped[what, case].append(label)
    rows = [[what, case, str(len(labels)), "; ".join(labels)] for (what, case), labels in grouped.items()]
    head = f"**Not measured yet: {len(keys)} pairs and runs**: the run that wrote this page was cut short. "
    return head + "`make verify` measures all.\n\n" + markdown_table(["what", "system", "how many", "methods"], rows)


def _systems_table() -> str:
    rows = []
    for case in cases().values():
        what = MODELS[case.name].summary if case.name in MODELS else NOTES[case.name]
        rows.append([case.name, f"{case.step:g}", "yes" if case.name in PANEL else "", what])
    return markdown_table(["system", "h", "panel", "what"], rows)


INTRO = """# Claims, measured

What may you rely on? Every method states, for a system, its order, its symmetry and what it conserves:
`integrator.claims(system)`. `make verify` measures every claim on every system that the method accepts and writes
these pages. A claim that is not met is marked **NOT MET**, and what could not be measured is listed.
[Which method for which system](choosing.md) says what this means for your choice.
"""
HOW = f"""## How it is measured

Every run starts from the example state of a model, takes its step $h$ and is computed by native code. A method with
its default options is measured on all systems, its other options on a panel of {len(PANEL)}. A step of more than
{MAX_OPERATIONS} operations has no native code and is not measured.

- **Order**: the time ${SPAN_STEPS}h$ (${HIGH_ORDER_SPAN_STEPS}h$ for orders from {HIGH_ORDER} on) is divided into \
{STEP_COUNTS[0]} to {STEP_COUNTS[-1]} steps. The error is that against DOP853
  with the tolerance 1e-13. The order is the slope between two step sizes, one twice the other; the smaller one is the \
finest
  whose relative error is above {ERROR_FLOOR:.0e} (or above {FLOOR_RATIO:g} times the third smallest error, where that \
is less). A claim is met
  if the order is at most {ORDER_SLACK} below it; on some systems a method has a higher order than it claims.
- **What a run conserves**: the largest change over {RUN_STEPS} steps of $h$, relative to the size of the quantity or
  to 1, whichever is larger. No method claims the energy of `ball-on-table`, where the table does work: its figure is
  the energy that the motion itself gains.
- **Symmetric, reversible**: {RETURN_STEPS} steps and as many back. Some conditions speak of the *carry*: all that a
  method hands from step to step (momenta and multipliers too). There the carry comes back, not the state alone.
- **Symplectic**: $J^T\\Omega J - \\Omega$ of two steps, with $J$ by central differences of order eight.

`docs/claims.json` has all figures as data.
"""


def claims_pages(
    figures: Mapping[str, Figures], found: Sequence[Verdict], missing: Sequence[str] = ()
) -> dict[str, str]:
    """The pages by their names; `missing` are the keys of what was not measured."""
    pages = {"claims.md": _short_page(figures, found, missing), "claims/long-runs.md": _long_runs_page(figures)}
    for name, labels in _methods().items():
        own = {key: values for key, values in figures.items() if key.split(" | ")[1] in labels}
        if own:
            pages[f"claims/{name}.md"] = _method_page(name, own, [v for v in found if v.label in labels])
    return pages


def _methods() -> dict[str, list[str]]:
    """The variants of each method, its defaults first."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for label in variants():
        grouped[label.partition(",")[0]].append(label)
    return dict(grouped)


def _short_page(figures: Mapping[str, Figures], found: Sequence[Verdict], missing: Sequence[str]) -> str:
    unmet = [v for v in found if v.met is False]
    met = sum(v.met is True for v in found)
    lost = sum("failed" in values or bool(values.get("stopped")) for values in figures.values())
    parts = [
        INTRO,
        f"**{met} claims are met, {len(unmet)} {'is' if len(unmet) == 1 else 'are'} not.**\n",
        _unmet_table(unmet) if unmet else "",
        "## In short\n",
        "For each method with its default options, the table says on how many of the systems that it accepts it "
        "claims a property. The page of a method has its other options and every figure; "
        "[long runs](claims/long-runs.md) has the drift of the energy.\n",
        _claims_table(v for v in found if v.label in _methods()),
        "\n".join(f"- **{name}**: {meaning}" for name, meaning in MEANINGS.items()) + "\n",
        f"{lost} pairs of a method and a system could not be measured or stopped early; "
        "the page of the method lists them.\n",
        HOW,
    ]
    parts += [_unmeasured_table(missing)] if missing else []
    parts += ["## The systems\n", _systems_table()]
    return "\n".join(parts)


def _long_runs_page(figures: Mapping[str, Figures]) -> str:
    parts = [
        "# Claims: long runs\n",
        "What happens to the energy in long runs? [Claims](../claims.md) has the summary.\n",
    ]
    parts += ["## Drift of the energy: every family on two problems\n", _drifts_table(figures)]
    parts += ["## Energy over a million steps\n", _long_runs_table(figures)]
    return "\n".join(parts)


def _method_page(name: str, figures: Mapping[str, Figures], found: Sequence[Verdict]) -> str:
    parts = [
        f"# Claims: {name}\n",
        "[Claims](../claims.md) has the summary of all methods, the meaning of each property and how it is measured.\n",
        "## What is claimed\n",
        "Each cell says on how many of the systems that were measured the property is claimed. The last column says "
        "under which conditions on the options and on the system.\n",
        _claims_table(found),
        "## Order\n",
        "The smallest and the largest measured order over the systems. "
        "On some systems the errors of all step sizes are too small to measure an order; these are counted.\n",
        _orders_table(figures, found),
    ]
    for title, told in {
        "What it conserves": _properties_table(found),
        "Orders of 4 and more, system by system": _high_orders_table(found),
        "Adjoints": _adjoints_table(figures),
        "What it does not accept": _refused_table(figures),
        "What could not be measured": _failed_table(figures),
    }.items():
        parts += [f"## {title}\n", told] if told.count("\n|") > 1 else []
    return "\n".join(
        [*parts, "## Every figure\n", "Figures in parentheses are not claimed.\n", _figures_tables(figures, found)]
    )


def _unmet_table(unmet: Sequence[Verdict]) -> str:
    if not unmet:
        return "Nothing.\n"
    rows = [
        [
            v.label,
            v.case,
            v.name,
            format_order(v.claimed) if v.name == "order" else "yes",
            _figure_text(v),
            "**NOT MET**",
        ]
        for v in unmet
    ]
    return markdown_table(["method", "system", "property", "claimed", "measured", ""], rows)


def _figure_text(v: Verdict) -> str:
    if v.name != "order" or v.figure is None:
        return format_number(v.figure)
    return "exact" if v.figure == EXACT else f"{v.figure:.2f}"


def _by_label(found: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    grouped = defaultdict(list)
    for v in found:
        grouped[v.label].append(v)
    return {label: grouped[label] for label in variants() if label in grouped}


def _claims_table(found: Iterable[Verdict]) -> str:
    rows, whole = [], _by_label(found)
    linked = len({label.partition(",")[0] for label in whole}) > 1
    for label, own in whole.items():
        orders = sorted({format_order(v.claimed) for v in own if v.name == "order"})
        told = [[v for v in own if v.name == name] for name in MEANINGS]
        shares = [
            f"{sum(bool(v.claimed) for v in each)}/{len(each)}" if any(v.claimed for v in each) else "-"
            for each in told
        ]
        claims = claims_of(label, own[0].case)
        shown = f"[{label}](claims/{label}.md)" if linked else label
        rows.append([shown, ", ".join(orders), *shares, claims.condition if claims else ""])
    return markdown_table(["method", "order", *MEANINGS, "condition"], rows)


def _orders_table(figures: Mapping[str, Figures], found: Sequence[Verdict]) -> str:
    rows = []
    for label, own in _by_label(v for v in found if v.name == "order").items():
        claimed = Counter(format_order(v.claimed) for v in own)
        parts = [figures[f"pair | {label} | {v.case}"]["order"] for v in own]
        spans = [_order_range([part[name] for part in parts]) for name in ("configuration", "velocity")]
        wrong = sum(v.met is False for v in own)
        told = f"**NOT MET on {wrong}**" if wrong else "-" if list(claimed) == ["-"] else "met"
        rows.append([label, ", ".join(sorted(claimed)), *spans, str(len(own)), told])
    return markdown_table(["method", "claimed", "configuration", "velocity", "systems", ""], rows)


def _order_range(parts: Sequence[Sequence[float | None]]) -> str:
    known = [measured for errors in parts if (measured := slope(errors)) is not None]
    finite, exact = [p for p in known if p < EXACT], sum(p == EXACT for p in known)
    told = [f"{min(finite):.2f} to {max(finite):.2f}"] if finite else []
    return ", ".join([*told, *([f"below {ERROR_FLOOR:.0e} on {exact}"] if exact else [])]) or "-"


def _high_orders_table(found: Sequence[Verdict]) -> str:
    high = [v for v in found if v.name == "order" and v.claimed is not None and 4 <= v.claimed < EXACT]
    names = [name for name in PANEL if any(v.case == name for v in high)]
    rows = []
    for label, own in _by_label(high).items():
        cells = {v.case: "**" * (v.met is False) + _figure_text(v) + "**" * (v.met is False) for v in own}
        rows.append(
            [label, ", ".join(sorted({format_order(v.claimed) for v in own})), *(cells.get(name, "") for name in names)]
        )
    return markdown_table(["method", "claimed", *names], rows)


def _properties_table(found: Sequence[Verdict]) -> str:
    """A row for each variant and property that was measured."""
    rows = []
    for label, own in _by_label(v for v in found if v.name in MEANINGS and v.figure is not None).items():
        for name in MEANINGS:
            each = [v for v in own if v.name == name]
            claimed, rest = [v for v in each if v.claimed], [v for v in each if not v.claimed]
            if not each:
                continue
            worst = max(claimed, key=lambda v: v.figure or 0.0, default=None)
            wrong = sum(v.met is False for v in claimed)
            told = "not claimed" if worst is None else f"**NOT MET on {wrong}**" if wrong else "met"
            held = sum(bool(v.holds) for v in rest)
            other = "with figures" if held == len(rest) else "else"
            holds = (
                f"holds on {held} of {len(rest)}, {other} up to {format_number(max(v.figure or 0.0 for v in rest))}"
                if rest
                else ""
            )
            largest = f"{format_number(worst.figure)} ({worst.case})" if worst else ""
            rows.append([label, name, str(len(claimed)), largest, f"{TOLERANCE[name]:.0e}", told, holds])
    head = ["method", "property", "claimed on", "largest figure there", "met up to", "", "where it is not claimed"]
    return markdown_table(head, rows)


def _figures_tables(figures: Mapping[str, Figures], found: Sequence[Verdict]) -> str:
    """One table a variant, one row a system; what is not claimed is in parentheses."""
    lines = []
    for label, own in _by_label(found).items():
        rows = []
        for case in dict.fromkeys(v.case for v in own):
            mine = {v.name: v for v in own if v.case == case}
            rows.append(
                [
                    case,
                    format_order(mine["order"].claimed),
                    *(_order_cell(figures, label, case, p) for p in ("configuration", "velocity")),
                    *(_figure_cell(mine[name]) for name in MEANINGS),
                ]
            )
        lines += [
            f"### {label}\n",
            markdown_table(["system", "claimed order", "configuration", "velocity", *MEANINGS], rows),
        ]
    return "\n".join(lines)


def _order_cell(figures: Mapping[str, Figures], label: str, case: str, part: str) -> str:
    measured = slope(figures[f"pair | {label} | {case}"]["order"][part])
    return "?" if measured is None else "exact" if measured == EXACT else f"{measured:.2f}"


def _figure_cell(v: Verdict) -> str:
    if v.figure is None:
        return ""
    if not v.claimed:
        return f"({format_number(v.figure)})"
    return format_number(v.figure) if v.met else f"{format_number(v.figure)} **NOT MET**"
