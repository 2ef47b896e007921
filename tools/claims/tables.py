"""The tables of the page that no claim heads: adjoints, long runs, what does not fit, what is not measured, the systems."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dalembert.integrators import EXACT
from dalembert.models import MODELS

from .cases import NOTES, cases
from .drifts import FINE, HORIZON, MEMBERS, PROBLEMS, STEP
from .store import Figures
from .variants import PANEL, variants
from .verdicts import LONG_ENERGY, TOLERANCE


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in lines) + "\n"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if value else "0"


def order(value: float | None) -> str:
    return "-" if value is None else "exact" if value == EXACT else f"{value:g}"


def adjoints(figures: Mapping[str, Figures]) -> str:
    grouped: dict[str, list[float]] = defaultdict(list)
    for key, values in figures.items():
        what, label, _ = key.split(" | ")
        if what == "pair" and values.get("adjoint") is not None:
            grouped[label].append(float(values["adjoint"]))
    limit = TOLERANCE["symmetric"]
    rows = [
        [label, str(len(each)), number(max(each)), "met" if max(each) <= limit else "**NOT MET**"]
        for label, each in grouped.items()
    ]
    return table(["method", "systems", "largest figure", ""], rows)


def drifts(figures: Mapping[str, Figures]) -> str:
    text = (
        f"E - E(0) with h = {STEP:g}: Modin and Verdier's transmission up to t = {HORIZON['transmission']:g} (E(0) = 3.545), and the\n"
        f"chaotic quartic up to t = {HORIZON['quartic']:g} with {MEMBERS} members; the kind by `diagnostics.drift`, and the largest size\n"
        "over all steps.\n"
        "Sizes of 1e-9 and below are round-off: their kind says how round-off adds up, not what the method does. Methods for invariant\n"
        "systems and free bodies alone do not take these problems.\n\n"
    )
    rows = []
    for label in variants():
        cells = [_drift(figures.get(f"drift | {label} | {problem}")) for problem in PROBLEMS]
        if any(cells):
            rows.append([label, *cells])
    return text + table(["method", *PROBLEMS], rows)


def _drift(values: Figures | None) -> str:
    if values is None or "refused" in values:
        return ""
    if "failed" in values:
        return "not measured"
    lost = f"; {values['failed_members']} failed" if values["failed_members"] else ""
    kind = values["kind"] or "no verdict"
    return f"{kind}, {number(float(values['size']))}{lost}"


def million(figures: Mapping[str, Figures]) -> str:
    rows = []
    for key, values in figures.items():
        what, label, case = key.split(" | ")
        if what == "million" and "energy" in values:
            ended = f"stopped at step {values['stopped']['step']}" if values["stopped"] else ""
            told = "met" if float(values["energy"]) <= LONG_ENERGY and not ended else "**NOT MET**"
            rows.append(
                [label, case, number(float(values["energy"])), number(float(values["constraint"])), ended or told]
            )
    text = (
        f"Largest relative |E - E(0)| and |A xi| over 10^6 steps of {FINE:g}, for the methods that claim the energy there. Met up to\n"
        f"{LONG_ENERGY:.0e}.\n\n"
    )
    return text + table(["method", "system", "energy", "constraint", ""], rows)


def _why(reason: str) -> str:
    """A refusal without the numbers of one system."""
    return re.sub(r"\s+", " ", re.split(r"[;.] ", reason)[0]).strip()


def refused(figures: Mapping[str, Figures]) -> str:
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, values in figures.items():
        what, label, case = key.split(" | ")
        if what == "pair" and "refused" in values and not variants()[label].options:
            grouped[label, _why(values["refused"])].append(case)
    rows = [[label, reason, ", ".join(names)] for (label, reason), names in grouped.items()]
    return table(["method", "because", "systems"], rows)


def failed(figures: Mapping[str, Figures]) -> str:
    rows = []
    for key, values in figures.items():
        _, label, case = key.split(" | ")
        if "failed" in values:
            rows.append([label, case, " ".join(values["failed"].split())[:200]])
        elif values.get("stopped"):
            rows.append(
                [label, case, f"the run stopped after step {values['stopped']['step']}: {values['stopped']['reason']}"]
            )
    return table(["method", "system", "why"], rows) if rows else "Nothing.\n"


def unmeasured(keys: Sequence[str]) -> str:
    """What an unfinished run left out, by system or problem."""
    grouped = defaultdict(list)
    for key in keys:
        what, label, case = key.split(" | ")
        grouped[what, case].append(label)
    rows = [[what, case, str(len(labels)), "; ".join(labels)] for (what, case), labels in grouped.items()]
    head = f"**Not measured yet: {len(keys)} pairs and runs**: the run that wrote this page was cut short. `make verify` measures all.\n\n"
    return head + table(["what", "system", "how many", "methods"], rows)


def systems() -> str:
    rows = []
    for case in cases().values():
        what = MODELS[case.name].summary if case.name in MODELS else NOTES[case.name]
        rows.append([case.name, f"{case.step:g}", "yes" if case.name in PANEL else "", what])
    return table(["system", "h", "panel", "what"], rows)
